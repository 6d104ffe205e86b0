"""Grants as an application sees them: `client.grants` (T20, T21). Whatever is shown was followed to the topic's advertisement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from entity_client.objects import Decided, told_as_of
from entity_client.session import Session
from tdn.errors import Absent, Refused, TrustError, UsageError
from tdn.protocol.access import EVERYONE, INSTITUTION, check_who
from tdn.protocol.names import Role, check_uuid
from tdn.protocol.times import format_time, whole_seconds
from tdn.trust import grants, signing, statements
from tdn.trust.grants import RIGHTS, Bundle, Grant, Terms
from tdn.trust.replay import CLOCK_SKEW
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

LIVE = "live"
DAY = timedelta(days=1)
#: By how much the clock that a grant was signed by may be ahead of ours for its renewal to wait.
_MOST_AHEAD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Granted:
    """A grant with all that it rests on, verified; and what a node says of its state."""

    bundle: Bundle
    #: `live`, `revoked` (it, or something that it rests on), `expired`.
    state: str
    token: str = field(repr=False)
    receipt: str | None = field(default=None, repr=False)
    #: Whether it lasts for less than was asked for, because what it rests on does.
    cut: bool = False
    #: Where a node told its state without the broker: as it was at this moment.
    as_of: datetime | None = None

    @property
    def grant(self) -> Grant:
        return self.bundle.grants[-1]

    @property
    def id(self) -> str:
        return self.grant.id

    def as_object(self) -> dict[str, Any]:
        grant, terms = self.grant, self.grant.terms
        result: dict[str, Any] = {
            "id": grant.id,
            "right": terms.right,
            "topic": terms.topic,
            "tree": terms.tree,
            "issuer": grant.issuer.name.id,
            "grantee": grant.grantee,
            "not_before": format_time(terms.not_before),
            "expires": format_time(terms.expires),
            "delegable": terms.delegable,
            "state": self.state,
            "token": self.token,
        }
        if grant.parent is not None:
            result["parent"] = grant.parent[0]
        if self.receipt is not None:
            result["receipt"] = self.receipt
        return result | ({"cut": True} if self.cut else {}) | told_as_of(self.as_of)


@dataclass(frozen=True, slots=True)
class Revocation:
    """What was ended when somebody lost a right, as a node signed it."""

    about: dict[str, str]
    cut: dict[str, Any]
    milliseconds: int
    guards: tuple[str, ...]
    #: Guards that do not answer, and so allow nothing; and those that answer and have not said that they are done.
    fenced: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    seq: int
    receipt: str = field(repr=False)

    def as_object(self) -> dict[str, Any]:
        return {
            **self.about,
            "cut": self.cut,
            "milliseconds": self.milliseconds,
            "guards": list(self.guards),
            "fenced": list(self.fenced),
            "unconfirmed": list(self.unconfirmed),
            "seq": self.seq,
            "receipt": self.receipt,
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """May I? With the reason."""

    right: str
    topic: str
    allowed: bool
    because: str
    grants: tuple[str, ...] = ()
    #: Where a node said so without the broker: as it was at this moment.
    as_of: datetime | None = None

    def as_object(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "topic": self.topic,
            "allowed": self.allowed,
            "because": self.because,
            "grants": list(self.grants),
        } | told_as_of(self.as_of)


def read_revocation(decided: Decided, client: EntityClient, session: Session) -> Revocation:
    """What a node says was ended by a change; TrustError when it is about another."""
    token = decided.answer.get("revocation")
    if token is None:
        raise TrustError("the node did not say what was ended")
    statement = statements.read(str(token).encode(), by_roots(session.credentials.roots))
    payload = statement.payload
    if statement.kind != "revocation" or (payload["network"], payload["seq"]) != (session.network, decided.seq):
        raise TrustError("the revocation is about something else")
    return Revocation(
        about={name: str(payload[name]) for name in ("grant", "uuid", "principal") if name in payload},
        cut=dict(payload["cut"]),
        milliseconds=int(payload["milliseconds"]),
        guards=tuple(payload["guards"]),
        fenced=tuple(payload["fenced"]),
        unconfirmed=tuple(payload["unconfirmed"]),
        seq=decided.seq,
        receipt=str(token),
    )


class Grants:
    """Giving, listing, renewing and revoking."""

    def __init__(self, client: EntityClient, session: Session) -> None:
        self._client = client
        self._session = session
        self._identify = by_roots(session.credentials.roots)

    async def give(
        self,
        right: str,
        uuid: str,
        to: str,
        *,
        lifetime: timedelta = DAY,
        not_before: datetime | None = None,
        delegable: bool = False,
        tree: bool = False,
        parent: str | None = None,
    ) -> Granted:
        """Let somebody publish or subscribe: an entity by its id, `institution:X`, or `*`. On a topic that we own, or, with a grant that may be
        passed on, on another's: the one named, or one that fits. What is passed on lasts no longer than what it rests on."""
        if right not in RIGHTS:
            raise UsageError(f"{right!r} cannot be granted; there are {' and '.join(RIGHTS)}")
        now = whole_seconds(datetime.now(UTC))
        begins = whole_seconds(not_before) if not_before is not None else now - CLOCK_SKEW
        terms = Terms(
            right, check_uuid(uuid), await self._name(check_who(to)), begins, max(begins, now) + lifetime, tree, delegable
        )
        if parent is None:
            own = await self._own(terms, now)
            if own is not None:
                return own
        return await self._pass_on(terms, now, parent)

    async def let_pass_on(self, right: str, uuid: str, joined: str) -> Granted | None:
        """Let the owner of the topic or collection that a topic of ours has joined pass a right to ours on, as long as ours lasts: grants on
        that tree then cover it. Nothing when we own both."""
        ours, above = await self._client.show(uuid), await self._client.show(joined)
        if above.owner == self._client.identity.name.id:
            return None
        left = ours.expires - datetime.now(UTC)
        return await self.give(right, uuid, above.owner, lifetime=left, delegable=True)

    async def find(self, uuid: str | None = None) -> AsyncGenerator[Granted, None]:
        """Those of a topic that we own; otherwise those that we gave and those that we hold, of a topic or of all."""
        body: dict[str, Any] = {} if uuid is None else {"uuid": check_uuid(uuid)}
        cursor: str | None = None
        while True:
            page = await self._ask({**body, **({"cursor": cursor} if cursor is not None else {})})
            for granted in page[0]:
                yield granted
            cursor = page[1]
            if cursor is None:
                return

    async def get(self, grant: str) -> Granted:
        """One grant that concerns us."""
        found, _ = await self._ask({"grant": grant})
        if not found:
            raise Absent(f"there is no grant {grant} that concerns you")
        return found[0]

    async def renew(self, grant: str, lifetime: timedelta) -> Granted:
        """Another end for a grant that we gave, counted from now. What it rests on may cut it."""
        present = await self.get(grant)
        if present.grant.issuer.name.id != self._client.identity.name.id:
            raise Refused(f"grant {grant} was given by {present.grant.issuer.name.id}, who alone can renew it")
        await _wait_past(present.grant.issued)
        now = whole_seconds(datetime.now(UTC))
        old = present.grant.terms
        terms = replace(old, to=await self._name(present.grant.grantee), expires=max(old.not_before, now) + lifetime)
        if present.grant.parent is None:
            return await self._put(terms, now, present.bundle.advertisement, _after_first(present.token), grant_id=grant)
        above = await self.get(present.grant.parent[0])
        return await self._put(_within(terms, above.grant), now, above.grant, above.token, grant_id=grant, asked=terms)

    async def revoke(self, grant: str) -> Revocation:
        """End a grant that we gave, that rests on one that we gave, on our topic, or that we hold; and all that rests on it."""
        decided = await self._client.change("retract", {"grant": grant})
        return read_revocation(decided, self._client, self._session)

    # --- inside ---

    async def _name(self, who: str) -> str:
        """A grantee as a grant names it: an entity with its present key."""
        if who == EVERYONE or who.startswith(INSTITUTION):
            return who
        try:
            return str((await self._client.lookup(f"{Role.ENTITY}:{who}")).name)
        except Absent as error:
            raise Absent(
                f"the network does not know entity {who} yet; it must have connected once, as with `entity --as {who} locate`"
            ) from error

    async def _own(self, terms: Terms, now: datetime) -> Granted | None:
        try:
            topic = await self._client.show(terms.topic)
        except Absent:
            return None
        if topic.owner != self._client.identity.name.id:
            return None
        rests_on = [topic.advertisement.token.encode()]
        if topic.advertisement.creator != topic.owner:
            rests_on.insert(0, (topic.status or "").encode())
        return await self._put(terms, now, topic.advertisement, grants.join(*rests_on).decode())

    async def _pass_on(self, terms: Terms, now: datetime, parent: str | None) -> Granted:
        """With the grant that is named, or the one that lasts longest of those that fit."""
        if parent is not None:
            found = [await self.get(parent)]
        else:
            found = [granted async for granted in self.find() if self._fits(granted, terms)]
            found.sort(key=lambda granted: (granted.grant.terms.topic != terms.topic, -granted.grant.terms.expires.timestamp()))
        refusal: Refused | None = None
        for above in found:
            try:
                return await self._put(_within(terms, above.grant), now, above.grant, above.token, asked=terms)
            except Refused as error:
                # A tree's grant may not cover this topic: the log knows.
                refusal = refusal or error
        raise refusal or Refused(f"there is no topic {terms.topic} that you may let others {terms.right} to")

    def _fits(self, granted: Granted, terms: Terms) -> bool:
        given = granted.grant
        return (
            granted.state == LIVE
            and given.terms.delegable
            and given.terms.right == terms.right
            and self._client.asker.is_meant_by([given.grantee])
            and (given.terms.topic == terms.topic or given.terms.tree)
            and (given.terms.tree or not terms.tree)
        )

    async def _put(
        self,
        terms: Terms,
        now: datetime,
        rests_on: statements.Advertisement | Grant,
        evidence: str,
        *,
        grant_id: str | None = None,
        asked: Terms | None = None,
    ) -> Granted:
        if terms.expires <= now:
            raise Refused("what the grant would rest on has ended, or ends before it would begin")
        token = grants.write(
            terms, self._session.credentials, network=self._session.network, now=now, rests_on=rests_on, grant_id=grant_id
        )
        grant = grants.read(token, self._identify)
        decided = await self._client.change("give", {"grant": grant.id, "uuid": terms.topic}, tail=token)
        whole = grants.join(token, evidence.encode())
        cut = asked is not None and terms.expires < asked.expires
        return Granted(grants.read_bundle(whole, self._identify), LIVE, whole.decode(), decided.receipt, cut)

    async def _ask(self, body: dict[str, Any]) -> tuple[list[Granted], str | None]:
        (reply,) = await self._client.ask_pages("grants", {**body, "after": self._client.seen})
        if reply.kind != "granted":
            raise TrustError(f"a {reply.kind} is no answer to what was asked")
        found = []
        for line in reply.tail.split(b"\n") if reply.tail else []:
            state, _, bundle = line.partition(b" ")
            read = grants.read_bundle(bundle, self._identify)
            found.append(Granted(read, state.decode(), bundle.decode(), as_of=reply.as_of))
        return found, reply.body.get("cursor")


async def _wait_past(issued: datetime) -> None:
    """A grant that is renewed must be signed in a later second than before: of two of the same one the log cannot tell the newer. It may also have been signed on
    a machine of ours whose clock is ahead, or here before the clock was set back."""
    while (left := (issued + timedelta(seconds=1) - datetime.now(UTC)).total_seconds()) > 0:
        if left > _MOST_AHEAD_SECONDS:
            raise Refused(
                f"the grant was signed at {format_time(issued)}, which this machine's clock has not reached; set the clock right, or renew it then"
            )
        await asyncio.sleep(left + 0.01)


def _after_first(bundle: str) -> str:
    return bundle.partition(signing.TILDE.decode())[2]


def _within(terms: Terms, above: Grant) -> Terms:
    """Terms cut to what they rest on."""
    return replace(
        terms,
        not_before=max(terms.not_before, above.terms.not_before),
        expires=min(terms.expires, above.terms.expires),
    )
