"""Grants, transfers and subscriptions in a little network's log: each as one call, sound or forged."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, TypeVar, cast

from little_network import DAY, HOUR, MINUTE, LittleNetwork, Log, payload_of
from pki import T0

from tdn.guard.enforcing import Enforcer
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.rules import feeds
from tdn.rules.feeds import Feed
from tdn.rules.rights import Basis, Rights
from tdn.rules.sight import asker_of
from tdn.rules.state import Outcome, State
from tdn.trust import signing
from tdn.trust.credentials import Credentials

T = TypeVar("T")
_numbers = count(1)

#: What a grant rests on: the digest of an advertisement, or a grant's id and digest.
RestsOn = str | tuple[str, str]


#: Everybody's certificates in turn: which of its keys, and where it works. With the same key, open connections go on.
CERTIFICATES: Mapping[str, Sequence[tuple[int, str]]] = {
    "alice": ((1, "north"), (2, "north")),
    "bob": ((1, "north"), (1, "south"), (2, "north")),
    "carol": ((1, "south"), (2, "south")),
    "dave": ((1, "south"), (1, "north")),
    "erin": ((1, "north"), (2, "south")),
}
ENTITIES = tuple(CERTIFICATES)


class TwoHouses(LittleNetwork):
    """Five entities of two institutions. Dave's first certificate runs out after five hours and a half minute."""

    def _principal(self, role: Role, name: str, generation: int) -> Credentials:
        if role is not Role.ENTITY:
            return super()._principal(role, name, generation)
        if (role, name, generation) not in self._known:
            turns = CERTIFICATES[name]
            key, institution = turns[(generation - 1) % len(turns)]
            # A key comes back, as if it were another: only the certificates in turn matter.
            key += 10 * ((generation - 1) // len(turns))
            begins = T0 - DAY + (generation - 1) * MINUTE
            ends = T0 + (5 * HOUR if name == "dave" and generation == 1 else 90 * DAY)
            self._known[role, name, generation] = self.pki.credentials(
                role, name, generation=key, not_before=begins, not_after=ends, institution=institution
            )
        return self._known[role, name, generation]


def begin(net: LittleNetwork, entities: tuple[str, ...] = ENTITIES) -> Granting:
    """A log that has begun, in which every node has ticked."""
    begun = net.log(entities)
    log = Granting(net, begun.state, begun.records, begun.outcomes)
    log.tick(T0)
    return log


def fresh_grant() -> str:
    return f"granted-{next(_numbers):018d}"


def fresh_queue() -> str:
    return f"{next(_numbers):032x}"


def sign_grant(
    net: LittleNetwork,
    issuer: Credentials,
    to: str,
    right: str,
    topic: str,
    rests_on: RestsOn,
    *,
    grant_id: str | None = None,
    at: datetime = T0,
    begins: datetime | None = None,
    ends: datetime | None = None,
    tree: bool = False,
    delegable: bool = False,
    **changes: Any,
) -> bytes:
    """A grant for an hour, unless said otherwise; `to` as messages name a grantee. What is changed is signed as it is, sound or not."""
    basis: dict[str, Any] = (
        {"advertisement": rests_on} if isinstance(rests_on, str) else {"parent": {"grant": rests_on[0], "digest": rests_on[1]}}
    )
    payload = {
        "v": 1,
        "iss": str(issuer.identity.name),
        "sub": to,
        "aud": net.audience,
        "jti": grant_id or fresh_grant(),
        "iat": int(at.timestamp()),
        "nbf": int((begins or at).timestamp()),
        "exp": int((ends or at + HOUR).timestamp()),
        "right": right,
        "topic": topic,
        "tree": tree,
        "delegable": delegable,
        **basis,
        **changes,
    }
    return signing.sign("grant", payload, issuer.key, chain=issuer.identity.chain, with_chain=True)


class Granting(Log):
    """A log with what this module is about."""

    def name(self, to: str) -> str:
        """A grantee as grants name it: an entity with its first key, unless it is named in full."""
        return to if to == "*" or ":" in to else str(self.net.entity(to).identity.name)

    def give(
        self,
        who: str,
        to: str,
        uuid: str,
        right: str = "publish",
        *,
        at: datetime = T0,
        by: Credentials | None = None,
        sender: Credentials | None = None,
        rests_on: RestsOn | None = None,
        **terms: Any,
    ) -> Outcome:
        """A grant on a topic, resting on its advertisement. `by`: who signs the grant itself, where it is not the sender."""
        fact = self.state.get("topic", uuid)
        on = rests_on or (fact["digest"] if fact is not None else "A" * 43)
        sender = sender or self.net.entity(who)
        return self.hand_in(sender, sign_grant(self.net, by or sender, self.name(to), right, uuid, on, at=at, **terms), at=at)

    def hand_in(self, sender: Credentials, token: bytes, *, at: datetime = T0, **body: Any) -> Outcome:
        """Put a grant into the log, as it is."""
        claims = payload_of(token)
        said = {"grant": claims["jti"], "uuid": claims["topic"], **body}
        return self.put("give", self.net.request("give", said, sender, at=at, tail=token), at=at)

    def pass_on(self, who: str, to: str, above: str, **terms: Any) -> Outcome:
        """A grant that rests on another: of the same right on the same topic, unless said otherwise."""
        fact = self.grant(above)
        terms = {"uuid": fact["topic"], "right": fact["right"], "rests_on": (above, str(fact["digest"])), **terms}
        return self.give(who, to, terms.pop("uuid"), terms.pop("right"), **terms)

    def gave(self, *what: str, **terms: Any) -> str:
        """The id of a grant that was given just now."""
        return granted(self.give(*what, **terms))

    def passed(self, *what: str, **terms: Any) -> str:
        return granted(self.pass_on(*what, **terms))

    def renew_grant(self, grant: str, **terms: Any) -> Outcome:
        """The same grant again, signed anew, for another time."""
        fact = self.grant(grant)
        same = {name: fact[name] for name in ("tree", "delegable")}
        if "parent" in fact:
            above = self.grant(fact["parent"])
            same["rests_on"] = (fact["parent"], str(above["digest"]))
        what = (fact["issuer"], fact["grantee"], fact["topic"], fact["right"])
        return self.give(*what, **{**same, "grant_id": grant, **terms})

    def grant(self, grant: str) -> Any:
        fact = self.state.get("grant", grant)
        assert fact is not None, f"there is no grant {grant}"
        return fact

    def retract(self, who: str, grant: str, *, at: datetime = T0) -> Outcome:
        return self.change("retract", who, at=at, grant=grant)

    def transfer(self, who: str, uuid: str, to: str, *, at: datetime = T0) -> Outcome:
        return self.change("transfer", who, at=at, uuid=uuid, to=to)

    def accept(self, who: str, uuid: str, *, keep_grants: bool = False, at: datetime = T0) -> Outcome:
        return self.change("accept", who, at=at, uuid=uuid, keep_grants=keep_grants)

    def hand_over(self, who: str, uuid: str, to: str, *, keep_grants: bool = False, at: datetime = T0) -> Outcome:
        """A topic changes hands; the outcome of its acceptance."""
        assert self.transfer(who, uuid, to, at=at).status == "accepted"
        outcome = self.accept(to, uuid, keep_grants=keep_grants, at=at)
        assert outcome.status == "accepted", outcome
        return outcome

    def open(self, who: str, uuid: str, *, at: datetime = T0) -> Outcome:
        return self.change("open", who, at=at, uuid=uuid)

    def subscribe(
        self,
        who: str,
        uuid: str,
        *,
        tree: bool = False,
        depth: int | None = None,
        at: datetime = T0,
        queue: str | None = None,
        sender: Credentials | None = None,
    ) -> Outcome:
        body = {"uuid": uuid, "tree": tree, **({} if depth is None else {"depth": depth})}
        request = self.net.request("subscribe", body, sender or self.net.entity(who), at=at)
        return self.put("subscribe", request, at=at, minted={"queue": queue or fresh_queue()})

    def unsubscribe(self, who: str, uuid: str, *, at: datetime = T0) -> Outcome:
        return self.change("unsubscribe", who, at=at, uuid=uuid)

    def withdraw(self, who: str, uuid: str, *, at: datetime = T0) -> Outcome:
        return self.put("withdraw", self.net.withdraw(self.net.entity(who), uuid, at=at), at=at)

    def revoke(self, who: str, generation: int = 1, *, at: datetime = T0) -> Outcome:
        """An entity's certificate is revoked, and all before it."""
        until = self.net.entity(who, generation).identity.issued
        return self.put("revoke", self.net.revoke(f"entity:{who}", until=until, at=at), at=at)

    def certify(self, who: str, generation: int = 2, *, at: datetime = T0) -> Credentials:
        """An entity comes with another certificate."""
        credentials = self.net.entity(who, generation)
        assert self.put("hello", self.net.hello(credentials, at=at), at=at).status == "accepted"
        return credentials

    # --- questions ---

    @property
    def now(self) -> datetime:
        return parse_time(self.time)

    def basis(self, who: str, right: str, uuid: str, *, at: datetime | None = None) -> Basis | None:
        """Why an entity may do something with a topic at a moment: by log time, unless said otherwise."""
        asker = asker_of(self.state, who)
        return None if asker is None else Rights(self.state, at or self.now).basis(asker, right, uuid)

    def may(self, who: str, right: str, uuid: str, *, at: datetime | None = None) -> bool:
        return self.basis(who, right, uuid, at=at) is not None

    def rests(self, who: str, right: str, uuid: str) -> tuple[str, ...]:
        """The grants that a right rests on."""
        basis = self.basis(who, right, uuid)
        assert basis is not None, f"{who} may not {right} to {uuid}"
        return basis.grants

    def feed(self, subject: str, who: str) -> Feed:
        feed = feeds.feed_of(self.state, subject, who)
        assert feed is not None, f"{who} has no subscription to {subject}"
        return feed

    def gets(self, who: str, subject: str, *topics: str, at: datetime | None = None) -> list[bool]:
        """Which of some topics come into a subscription's queue."""
        return [feeds.gets(self.state, self.feed(subject, who), topic, at or self.now) for topic in topics]

    def queue(self, who: str, subject: str) -> str:
        return self.feed(subject, who).queue

    def spaces(self, *spaces: str) -> dict[str, list[str]]:
        """The keys that some spaces have."""
        return {space: [key for key, _ in self.state.all(space)] for space in spaces}


def granted(outcome: Outcome) -> str:
    assert outcome.status == "accepted", outcome
    assert outcome.receipt is not None
    return str(outcome.receipt["grant"])


def looked_at(state: State, outcome: Outcome) -> set[str]:
    """The topics at which a guard looks after a record."""
    return set(feeds.topics_touched(state, feeds.losses(outcome.writes)))


def looked_at_by_guards(state: State, outcome: Outcome) -> set[str]:
    """The same, as guards find them that have allowed nobody anything yet."""
    memory, nothing = cast(Any, _Empty()), cast(Any, None)
    return set(drive(Enforcer(state, memory, nothing, nothing, nothing, nothing)._topics(feeds.losses(outcome.writes))))


class _Empty:
    def topics_of(self, login: str) -> list[str]:
        return []


def drive(task: Coroutine[Any, Any, T]) -> T:
    """Run what waits for nothing, without an event loop."""
    try:
        while True:
            task.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
