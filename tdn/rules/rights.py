"""Who may publish and subscribe (T20, T21): the read-only question that the broker's guard, nodes and the rules themselves ask.

A right rests on ownership, or on a chain of grants from the owner down, each of which must hold now and cover the topic. Nothing is carried
along: a grant that is revoked, ran out, or whose issuer was revoked takes all that rests on it with it, at once and without a write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

from tdn.protocol.access import EVERYONE, INSTITUTION, Asker
from tdn.protocol.times import format_time, whole_seconds
from tdn.rules import principals
from tdn.rules.sight import COLLECTION, LIVE, TOPIC, asker_of, live
from tdn.rules.state import Fact, State, scan_below
from tdn.trust.grants import MAX_CHAIN

#: How many topics above one, ways into collections above it, and grants are looked at for one question; where there is none to be found, that
#: is a look too. What needs more is refused: whoever builds such a thing must not hold up everybody's broker.
MAX_ABOVE = 1000
MAX_WAYS = 2000
MAX_LOOKS = 8000


@dataclass(frozen=True, slots=True)
class Basis:
    """What a right rests on: grants, the one nearest to the owner first; none of them for the owner itself."""

    grants: tuple[str, ...]
    #: When it ends at the latest, unless something ends it before.
    until: str


@lru_cache(maxsize=4096)
def who_key(who: str) -> str:
    """A grantee as keys of facts have it: institutions may have spaces."""
    return quote(who, safe=":*")


class Rights:
    """What anybody may do at a moment, by a state."""

    def __init__(self, state: State, now: datetime) -> None:
        self._state = state
        self._now = now
        # To the second, as grants have it: their order as text is then their order in time.
        self._moment = format_time(whole_seconds(now))
        self._looks = 0
        self._above_of: dict[str, dict[str, int]] = {}
        self._standing: dict[str, bool] = {}
        #: Owners to whom nobody passed on a right to what is asked about, by their chains' length.
        self._unpassed: dict[tuple[str, str], int] = {}

    def basis(self, asker: Asker, right: str, uuid: str) -> Basis | None:
        """Why an entity may do this with a topic; nothing when it may not, or the topic is none."""
        topic = live(self._state, uuid, self._now)
        if topic is None or topic["kind"] != TOPIC or asker.entity is None:
            return None
        if principals.has_expired(self._state, f"entity:{asker.entity}", self._now):
            # A connection outlives its certificate; a right does not.
            return None
        self._begin()
        if topic["owner"] == asker.entity:
            return Basis((), str(topic["expires"]))
        chain = self._found(asker, right, uuid, topic, 1, to_pass_on=False)
        if chain is None:
            return None
        ends = [str((self._state.get("grant", grant) or {})["until"]) for grant in chain]
        return Basis(chain, min([*ends, str(topic["expires"])]))

    def chain_of(self, grant: str, uuid: str) -> tuple[str, ...] | None:
        """A grant and those that it rests on, the one nearest to the owner first, if all of them hold for a topic or collection now."""
        topic = live(self._state, uuid, self._now)
        self._begin()
        fact = self._state.get("grant", grant)
        return None if topic is None or fact is None else self._chain(grant, fact, uuid, topic, 1)

    def _begin(self) -> None:
        self._looks = 0
        self._unpassed.clear()

    def holds(self, grant: Fact) -> bool:
        """Whether a grant by itself counts now."""
        return bool(grant["state"] == LIVE and grant["from"] <= self._moment < grant["until"])

    def above(self, uuid: str) -> dict[str, int]:
        """The topics above a topic and the collections that it is in, on all ways up; each with how many steps away at least."""
        found = self._above_of.get(uuid)
        if found is None:
            found = self._above_of[uuid] = dict(self._walk_up(uuid))
        return found

    def _walk_up(self, uuid: str) -> Iterator[tuple[str, int]]:
        steps = 0
        fact = self._state.get("topic", uuid) or {}
        while (parent := fact.get("parent")) is not None and steps < MAX_ABOVE:
            steps += 1
            yield parent, steps
            fact = self._state.get("topic", parent) or {}
        known, edge, steps, ways = {uuid}, [uuid], 0, 0
        while edge:
            steps += 1
            outer: list[str] = []
            for at in edge:
                for holder, _ in scan_below(self._state, "in", at):
                    ways += 1
                    if ways > MAX_WAYS:
                        return
                    if holder not in known and live(self._state, holder, self._now) is not None:
                        known.add(holder)
                        outer.append(holder)
                        yield holder, steps
            edge = outer

    def _found(
        self, asker: Asker, right: str, uuid: str, topic: Fact, length: int, *, to_pass_on: bool
    ) -> tuple[str, ...] | None:
        """A chain that ends with the asker: of grants for the topic itself, then of such for what is above it."""
        names = [EVERYONE, f"{INSTITUTION}{asker.institution}", *([asker.entity] if asker.entity is not None else [])]
        for subject in self._subjects(uuid):
            for name in reversed(names):
                chain = self._first(subject, right, name, uuid, topic, length, to_pass_on)
                if chain is not None:
                    return chain
                if self._looks > MAX_LOOKS:
                    return None
        return None

    def _subjects(self, uuid: str) -> Iterator[str]:
        """What a grant that covers a topic can be about, the topic itself first: most need no look further up."""
        yield uuid
        yield from self.above(uuid)

    def _first(
        self, subject: str, right: str, name: str, uuid: str, topic: Fact, length: int, to_pass_on: bool
    ) -> tuple[str, ...] | None:
        self._looks += 1
        for grant, listed in scan_below(self._state, "granted", f"{subject} {right} {who_key(name)}"):
            if (subject != uuid and not listed["tree"]) or (to_pass_on and not listed["delegable"]):
                continue
            fact = self._state.get("grant", grant)
            chain = self._chain(grant, fact, uuid, topic, length) if fact is not None else None
            if chain is not None:
                return chain
            if self._looks > MAX_LOOKS:
                return None
        return None

    def _chain(self, grant: str, fact: Fact, uuid: str, topic: Fact, length: int) -> tuple[str, ...] | None:
        self._looks += 1
        if length > MAX_CHAIN or self._looks > MAX_LOOKS or not self.holds(fact) or not self._covers(fact, uuid):
            return None
        if "parent" in fact:
            above = self._state.get("grant", fact["parent"])
            issuer = asker_of(self._state, fact["issuer"])
            # The id of a forgotten grant may have been used for another one.
            if above is None or not above["delegable"] or above["right"] != fact["right"]:
                return None
            # Who has left the institution that it was granted to passes nothing on any more.
            if issuer is None or not issuer.is_meant_by([above["grantee"]]):
                return None
            chain = self._chain(fact["parent"], above, uuid, topic, length + 1)
            return None if chain is None else (*chain, grant)
        subject = live(self._state, fact["topic"], self._now)
        # Where a later owner has confirmed it, that one speaks.
        if subject is None or fact["epoch"] < subject.get("honours", 0) or not self._stands(subject["owner"]):
            return None
        if fact["topic"] == uuid or topic["owner"] == subject["owner"]:
            return (grant,)
        # A tree's grant covers what its grantor owns, and what the owner let it pass on.
        speaker = asker_of(self._state, subject["owner"])
        if speaker is None:
            return None
        known = (subject["owner"], fact["right"])
        if self._unpassed.get(known, length + 1) <= length:
            # One owner may have a thousand collections; and what is too long stays so.
            return None
        passed = self._found(speaker, fact["right"], uuid, topic, length + 1, to_pass_on=True)
        if passed is None:
            self._unpassed[known] = length
            return None
        return (*passed, grant)

    def _covers(self, grant: Fact, uuid: str) -> bool:
        return grant["topic"] == uuid or (grant["tree"] and grant["topic"] in self.above(uuid))

    def _stands(self, entity: str) -> bool:
        """Whether an issuer is still somebody: what a revoked one signed gives nothing while it is revoked."""
        if entity not in self._standing:
            self._standing[entity] = asker_of(self._state, entity) is not None
        return self._standing[entity]


def topics_in(state: State, uuid: str) -> Iterator[str]:
    """A topic and all below it, or the topics in a collection and in those inside it; also ended ones that have not left yet."""
    # A collection's topics do not bring along what is below them.
    down = (state.get("topic", uuid) or {}).get("kind") == TOPIC
    known, edge = {uuid}, [uuid]
    while edge:
        at = edge.pop()
        if (state.get("topic", at) or {}).get("kind") == COLLECTION:
            below = [member for kind in (TOPIC, COLLECTION) for member, _ in scan_below(state, "member", f"{at} {kind}")]
        else:
            yield at
            below = [rest.rpartition(" ")[2] for rest, _ in scan_below(state, "child", at)] if down else []
        for inner in below:
            if inner not in known:
                known.add(inner)
                edge.append(inner)
