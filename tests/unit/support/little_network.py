"""A whole network in memory: its operator, nodes and entities, and the records they would put into a log.

No I/O. The network holds values only; a `Log` holds a state and what was applied to it.
"""

from __future__ import annotations

import base64
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count
from typing import Any

from pki import T0, YEAR, Pki

from tdn.protocol import descriptor as descriptors
from tdn.protocol.names import Role
from tdn.protocol.times import format_time, parse_time
from tdn.rules.apply import RULES_VERSION, apply, network_id, write_record
from tdn.rules.state import EMPTY_HEAD, LogRecord, MemoryState, Outcome, next_head
from tdn.rules.watches import Told, told_since
from tdn.trust import envelope, openings, statements
from tdn.trust.certificates import Identity, encode_chain
from tdn.trust.credentials import Credentials

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

_numbers = count(1)

#: An opening of no lists, for advertisements that were not minted here.
NO_LISTS = {"access": {"salt": "0" * 22, "value": {}}}


def fresh_uuid(number: int | None = None) -> str:
    """A version 4 UUID that no other test has, the same in every run."""
    return str(uuids.UUID(int=(next(_numbers) if number is None else number) << 80, version=4))


def fresh_id() -> str:
    return f"request-{next(_numbers):08d}"


class LittleNetwork:
    def __init__(self, seed: str = "little", nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.pki = Pki(seed)
        self.node_ids = nodes
        self.operator = self.pki.credentials(Role.OPERATOR, "operator", not_after=T0 + 10 * YEAR)
        self._known: dict[tuple[Role, str, int], Credentials] = {}
        self._openings: dict[bytes, Mapping[str, Any]] = {}

    def node(self, name: str, generation: int = 1) -> Credentials:
        return self._principal(Role.NODE, name, generation)

    def guard(self, name: str = "guard") -> Credentials:
        return self._principal(Role.GUARD, name, 1)

    def entity(self, name: str, generation: int = 1) -> Credentials:
        """An entity; a later generation is a rotated certificate, issued an hour later than the one before."""
        return self._principal(Role.ENTITY, name, generation)

    def _principal(self, role: Role, name: str, generation: int) -> Credentials:
        key = (role, name, generation)
        if key not in self._known:
            begins = T0 - DAY + (generation - 1) * HOUR
            self._known[key] = self.pki.credentials(role, name, generation=generation, not_before=begins)
        return self._known[key]

    # --- what the operator signs ---

    def write_genesis(self, *, rules: int = RULES_VERSION, signer: Credentials | None = None, **changes: Any) -> bytes:
        body = {
            "operator": encode_chain(self.operator.identity.chain),
            "roots": [base64.b64encode(der).decode() for der in self.operator.roots.ders],
            "rules": rules,
            "created": format_time(T0),
            "salt": "00" * 16,
            **changes,
        }
        return envelope.write("genesis", body, signer or self.operator, audience="tdn:nodes", now=T0, life=DAY)

    @cached_property
    def genesis(self) -> bytes:
        return self.write_genesis()

    @cached_property
    def id(self) -> str:
        return network_id(self.genesis)

    @property
    def audience(self) -> str:
        return f"tdn:network:{self.id}"

    # --- requests ---

    def request(
        self,
        kind: str,
        body: Mapping[str, Any],
        sender: Credentials,
        *,
        at: datetime = T0,
        message_id: str | None = None,
        life: timedelta = DAY,
        audience: str | None = None,
        tail: bytes | None = None,
        with_chain: bool = False,
    ) -> bytes:
        return envelope.write(
            kind,
            body,
            sender,
            audience=audience or self.audience,
            now=at,
            life=life,
            message_id=message_id or fresh_id(),
            tail=tail,
            with_chain=with_chain,
        )

    def enrol(self, who: Credentials, *, signer: Credentials | None = None, **choices: Any) -> bytes:
        body = {"chain": encode_chain(who.identity.chain)}
        return self.request("enrol", body, signer or self.operator, life=choices.pop("life", 3650 * DAY), **choices)

    def revoke(
        self,
        principal: str,
        *,
        until: datetime = T0,
        keys: tuple[str, ...] = (),
        signer: Credentials | None = None,
        **choices: Any,
    ) -> bytes:
        body = {"principal": principal, "issued_until": format_time(until), "keys": list(keys)}
        return self.request("revoke", body, signer or self.operator, **choices)

    def hello(self, who: Credentials, **choices: Any) -> bytes:
        return self.request("hello", {}, who, with_chain=True, **choices)

    def create(self, creator: Credentials, /, *, lifetime: timedelta = HOUR, at: datetime = T0, **body: Any) -> bytes:
        asked = {
            "creator": creator.identity.name.id,
            "institution": creator.identity.institution,
            "lifetime_seconds": int(lifetime.total_seconds()),
            "descriptor": descriptors.path("weather/europe"),
            "synopsis": {"type": "string", "placeholder": "{uuid}"},
            **body,
        }
        return self.request("create", asked, creator, at=at, life=MINUTE, audience="node:n1")

    def mint(
        self,
        creator: Credentials,
        /,
        *,
        uuid: str | None = None,
        node: Credentials | None = None,
        at: datetime = T0,
        lifetime: timedelta = HOUR,
        network: str | None = None,
        lists: Mapping[str, Any] | None = None,
        salt: str | None = None,
        **body: Any,
    ) -> bytes:
        """An advertisement, minted as a node does it. What it hides is remembered for `advertise`."""
        if lists is not None:
            body["lists"] = dict(lists)
        asked = envelope.authenticate(self.create(creator, lifetime=lifetime, at=at, **body), lambda _: creator.identity)
        claims = openings.claims_of(asked.body, fresh_uuid() if "gathering" in body else None)
        opening = openings.conceal(claims, f"{next(_numbers):022d}")
        if salt is not None:
            opening = {name: {**claim, "salt": salt} for name, claim in opening.items()}
        token = statements.mint(
            asked, uuid=uuid or fresh_uuid(), network=network or self.id, opening=opening, node=node or self.node("n1"), now=at
        )
        self._openings[token] = opening
        return token

    def register(
        self, creator: Credentials, parent: str, /, *, lifetime: timedelta = HOUR, at: datetime = T0, **body: Any
    ) -> bytes:
        """A request for a child topic."""
        choices = {name: body.pop(name) for name in ("message_id", "life") if name in body}
        asked = {
            "creator": creator.identity.name.id,
            "institution": creator.identity.institution,
            "lifetime_seconds": int(lifetime.total_seconds()),
            "descriptor": descriptors.path("weather/europe/oslo"),
            "synopsis": {"type": "string", "placeholder": "{uuid}"},
            "parent": parent,
            **body,
        }
        return self.request("register", asked, creator, at=at, **choices)

    def mint_child(self, request: bytes, outcome: Outcome, *, node: Credentials | None = None) -> bytes:
        """The advertisement of a registered child, as any node mints it from the outcome."""
        fixed = outcome.receipt
        assert fixed is not None, outcome
        asked = envelope.authenticate(request, lambda header: self._by_thumbprint(header.thumbprint))
        opening = openings.conceal(openings.claims_of(asked.body), fixed["seed"])
        token = statements.mint(
            asked,
            uuid=fixed["uuid"],
            network=self.id,
            opening=opening,
            node=node or self.node("n1"),
            now=parse_time(fixed["created"]),
            expires=parse_time(fixed["expires"]),
        )
        self._openings[token] = opening
        return token

    def _by_thumbprint(self, thumbprint: str) -> Identity:
        return next(known.identity for known in self._known.values() if known.identity.thumbprint == thumbprint)

    def countersign(
        self,
        owner: Credentials,
        right: str,
        uuid: str,
        entity: str,
        *,
        collection: str | None = None,
        at: datetime = T0,
        life: timedelta = HOUR,
    ) -> str:
        """An owner's word for another entity."""
        body = {"right": right, "uuid": uuid, "entity": entity}
        if collection is not None:
            body["collection"] = collection
        return self.request("countersign", body, owner, at=at, life=life).decode()

    def advertise(self, sender: Credentials, advertisement: bytes, **choices: Any) -> bytes:
        uuid = choices.pop("uuid", None) or read_uuid(advertisement)
        opening = choices.pop("opening", None) or self._openings.get(advertisement, NO_LISTS)
        return self.request("advertise", {"uuid": uuid, "opening": opening}, sender, tail=advertisement, **choices)

    def renew(self, sender: Credentials, uuid: str, lifetime: timedelta, **choices: Any) -> bytes:
        return self.request("renew", {"uuid": uuid, "lifetime_seconds": int(lifetime.total_seconds())}, sender, **choices)

    def withdraw(self, sender: Credentials, uuid: str, **choices: Any) -> bytes:
        return self.request("withdraw", {"uuid": uuid}, sender, **choices)

    # --- records ---

    def record(
        self,
        kind: str,
        request: bytes | None = None,
        *,
        by: str | Credentials = "n1",
        at: datetime = T0,
        minted: Mapping[str, str] | None = None,
    ) -> bytes:
        if kind == "register" and minted is None:
            minted = {"uuid": fresh_uuid(), "seed": f"{next(_numbers):022d}"}
        return write_record(kind, self.node(by) if isinstance(by, str) else by, at, request, minted)

    def opening(self, entities: tuple[str, ...] = ("alice", "bob")) -> list[bytes]:
        """Genesis, the nodes' enrolments and the entities' first contacts."""
        records = [self.record("genesis", self.genesis)]
        records += [self.record("enrol", self.enrol(self.node(node)), by=node) for node in self.node_ids]
        records += [self.record("hello", self.hello(self.entity(entity))) for entity in entities]
        return records

    def log(self, entities: tuple[str, ...] = ("alice", "bob")) -> Log:
        """A log that has begun."""
        log = Log(self)
        for raw in self.opening(entities):
            outcome = log.append(raw)
            assert outcome.status == "accepted", outcome
        return log


@dataclass
class Log:
    """A log in memory: what was appended, and the state it leads to."""

    net: LittleNetwork
    state: MemoryState = field(default_factory=MemoryState)
    records: list[LogRecord] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def append(self, raw: bytes) -> Outcome:
        head = self.records[-1].head if self.records else EMPTY_HEAD
        record = LogRecord(len(self.records) + 1, next_head(head, raw), raw)
        outcome = apply(self.state, record)
        self.state.write(outcome)
        self.records.append(record)
        self.outcomes.append(outcome)
        return outcome

    def put(self, kind: str, request: bytes | None, **choices: Any) -> Outcome:
        return self.append(self.net.record(kind, request, **choices))

    def tick(self, at: datetime, *nodes: str) -> Outcome:
        """Ticks of some nodes (all, when none is named); the last one's outcome."""
        outcomes = [self.put("tick", None, by=node, at=at) for node in nodes or self.net.node_ids]
        return outcomes[-1]

    def advertised(self, creator: str = "alice", **choices: Any) -> str:
        """The UUID of a topic that is live now."""
        who = self.net.entity(creator)
        token = self.net.mint(who, **choices)
        at = choices.get("at", T0)
        outcome = self.put("advertise", self.net.advertise(who, token, at=at), at=at)
        assert outcome.status == "accepted", outcome
        return read_uuid(token)

    def child(self, parent: str, creator: str = "alice", **choices: Any) -> str:
        """The UUID of a child topic that is live now."""
        who, at = self.net.entity(creator), choices.get("at", T0)
        request = self.net.register(who, parent, **choices)
        registered = self.put("register", request, at=at)
        assert registered.status == "accepted", registered
        token = self.net.mint_child(request, registered)
        outcome = self.put("advertise", self.net.advertise(who, token, at=at), at=at)
        assert outcome.status == "accepted", outcome
        return read_uuid(token)

    def collection(self, creator: str = "alice", *, limits: Mapping[str, int] | None = None, **choices: Any) -> str:
        """The UUID of a collection that is live now. Options as in `gathering`; `lists` and `members` too."""
        options = {name: choices.pop(name, False) for name in ("fixed", "child_collections", "inclusion")}
        gathering = {**options, "limits": {"breadth": 0, "depth": 0, "topics": 0, **(limits or {})}}
        return self.advertised(creator, gathering=gathering, **choices)

    def change(self, kind: str, who: str, /, *, at: datetime = T0, **body: Any) -> Outcome:
        """A change that is its body alone: add, remove, move, watch, unwatch."""
        return self.put(kind, self.net.request(kind, body, self.net.entity(who), at=at), at=at)

    def told(self, uuid: str, who: str, since: int = 0) -> list[Told]:
        """What a watcher was told after a version; and its version is that of the last."""
        found = told_since(self.state, uuid, who, since, 10**6)
        assert found is not None, f"{who} does not follow {uuid}"
        version, told = found
        assert [change.version for change in told] == list(range(since + 1, version + 1))
        return told

    def topic(self, uuid: str) -> Mapping[str, Any]:
        fact = self.state.get("topic", uuid)
        assert fact is not None
        return fact

    @property
    def time(self) -> str:
        network = self.state.get("network", "network")
        assert network is not None
        return str(network["time"])


def read_uuid(advertisement: bytes) -> str:
    return str(payload_of(advertisement)["uuid"])


def payload_of(token: bytes) -> dict[str, Any]:
    """The payload of a signed message, unverified: for tests that look at what was signed."""
    import json

    segment = token.split(b"~")[0].split(b".")[1]
    payload: dict[str, Any] = json.loads(base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4)))
    return payload


def message_of(outcome: Outcome) -> str:
    """Why a record was refused or void; empty when it was neither."""
    return str((outcome.error or {}).get("message", ""))
