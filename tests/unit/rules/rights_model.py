"""A second opinion on who may publish and subscribe to what, and which subscription gets which topic: from the accepted requests alone.

Everything is worked out anew from the whole history for each question, over plain sets and with plain recursion. Nothing of the rules is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

LONGEST_CHAIN = 8
LEASE = timedelta(days=30)
OFFERED_FOR = timedelta(days=7)
ALIKE = 16
TOPIC, COLLECTION = "topic", "collection"


@dataclass(frozen=True)
class Event:
    """A request that was accepted, or something that stood at the beginning."""

    kind: str
    who: str
    now: datetime
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Thing:
    """A topic or a collection."""

    kind: str
    owner: str
    expires: datetime
    parent: str | None = None
    lists: Mapping[str, Any] = field(default_factory=dict)
    withdrawn: bool = False
    #: For each change of owner, whether the grants before were kept.
    kept: list[bool] = field(default_factory=list)
    offer: tuple[str, datetime] | None = None


@dataclass
class Given:
    """A grant."""

    right: str
    topic: str
    issuer: str
    to: str
    begins: datetime
    ends: datetime
    tree: bool
    delegable: bool
    parent: str | None
    issued: datetime
    #: How often its topic had changed hands when it was first given.
    owners_before: int
    retracted: bool = False


@dataclass
class Wish:
    """A subscription."""

    tree: bool
    depth: int | None
    until: datetime


class World:
    """What a history has made true, at its last moment."""

    def __init__(self, history: list[Event]) -> None:
        self.things: dict[str, Thing] = {}
        self.members: set[tuple[str, str]] = set()
        self.grants: dict[str, Given] = {}
        self.wishes: dict[tuple[str, str], Wish] = {}
        self.institutions: dict[str, str] = {}
        self.certified_until: dict[str, datetime] = {}
        self.revoked: set[str] = set()
        self.now = history[0].now
        self.good = lru_cache(maxsize=None)(self._good)
        for event in history:
            self.now = max(self.now, event.now)
            getattr(self, f"_{event.kind}")(event, **event.body)
        for key, wish in list(self.wishes.items()):
            if wish.until <= self.now:
                del self.wishes[key]

    # --- what happened ---

    def _plant(self, event: Event, uuid: str, **thing: Any) -> None:
        self.things[uuid] = Thing(owner=event.who, **thing)

    def _tick(self, event: Event) -> None:
        pass

    def _hello(self, event: Event, institution: str, until: datetime) -> None:
        self.institutions[event.who] = institution
        self.certified_until[event.who] = until
        self.revoked.discard(event.who)

    def _revoke(self, event: Event) -> None:
        self.revoked.add(event.who)

    def _renew(self, event: Event, uuid: str, expires: datetime) -> None:
        self.things[uuid].expires = expires
        for other in self.things:
            if uuid in self.ancestors(other):
                self.things[other].expires = min(self.things[other].expires, expires)

    def _withdraw(self, event: Event, uuid: str) -> None:
        self.things[uuid].withdrawn = True

    def _add(self, event: Event, collection: str, uuid: str) -> None:
        self.members.add((collection, uuid))

    def _remove(self, event: Event, collection: str, uuid: str) -> None:
        self.members.remove((collection, uuid))

    def _give(self, event: Event, grant: str, **terms: Any) -> None:
        present = self.grants.get(grant)
        before = len(self.things[terms["topic"]].kept) if present is None else present.owners_before
        self.grants[grant] = Given(issuer=event.who, owners_before=before, **terms)

    def _retract(self, event: Event, grant: str) -> None:
        self.grants[grant].retracted = True

    def _transfer(self, event: Event, uuid: str, to: str) -> None:
        self.things[uuid].offer = None if to == event.who else (to, event.now + OFFERED_FOR)

    def _accept(self, event: Event, uuid: str, keep_grants: bool) -> None:
        thing = self.things[uuid]
        thing.owner, thing.offer = event.who, None
        thing.kept.append(keep_grants)

    def _open(self, event: Event, uuid: str) -> None:
        pass

    def _subscribe(self, event: Event, uuid: str, tree: bool, depth: int | None) -> None:
        tree = tree or self.things[uuid].kind == COLLECTION
        self.wishes[uuid, event.who] = Wish(tree, depth if tree else None, event.now + LEASE)

    def _unsubscribe(self, event: Event, uuid: str) -> None:
        del self.wishes[uuid, event.who]

    # --- what there is ---

    def ancestors(self, uuid: str) -> list[str]:
        parent = self.things[uuid].parent
        return [] if parent is None else [parent, *self.ancestors(parent)]

    def live(self, uuid: str) -> bool:
        return uuid in self.things and all(
            not self.things[at].withdrawn and self.now < self.things[at].expires for at in (uuid, *self.ancestors(uuid))
        )

    def holders(self, uuid: str) -> set[str]:
        """The collections that something is in, directly and through others."""
        direct = {collection for collection, member in self.members if member == uuid and self.live(collection)}
        return direct.union(*(self.holders(collection) for collection in direct))

    def inside(self, grant: Given, uuid: str) -> bool:
        """Whether something is what a grant is about."""
        if grant.topic == uuid:
            return True
        return grant.tree and (grant.topic in self.ancestors(uuid) or grant.topic in self.holders(uuid))

    def stands(self, entity: str) -> bool:
        return entity in self.institutions and entity not in self.revoked

    def active(self, entity: str) -> bool:
        """Whether somebody can do anything now: what it said before counts also when its certificate has run out."""
        return self.stands(entity) and self.now <= self.certified_until[entity]

    def means(self, to: str, entity: str) -> bool:
        return self.stands(entity) and to in (entity, f"institution:{self.institutions[entity]}", "*")

    # --- who may ---

    def may(self, entity: str, right: str, uuid: str) -> bool:
        if not (self.live(uuid) and self.things[uuid].kind == TOPIC and self.active(entity)):
            return False
        return self.things[uuid].owner == entity or any(
            grant.right == right and self.means(grant.to, entity) and self.good(key, uuid, 1)
            for key, grant in self.grants.items()
        )

    def holds(self, grant: Given) -> bool:
        return not grant.retracted and grant.begins <= self.now < grant.ends

    def _good(self, key: str, uuid: str, length: int) -> bool:
        """Whether a grant lets its grantee use a topic: it and all that it rests on hold, and the topic's owner is behind them."""
        grant = self.grants[key]
        if length > LONGEST_CHAIN or not self.holds(grant) or not self.inside(grant, uuid):
            return False
        if grant.parent is not None:
            above = self.grants[grant.parent]
            return above.delegable and self.means(above.to, grant.issuer) and self.good(grant.parent, uuid, length + 1)
        subject = self.things[grant.topic]
        if not (self.live(grant.topic) and all(subject.kept[grant.owners_before :]) and self.stands(subject.owner)):
            return False
        if grant.topic == uuid or subject.owner == self.things[uuid].owner:
            return True
        return any(
            other.delegable
            and other.right == grant.right
            and self.means(other.to, subject.owner)
            and self.good(passed, uuid, length + 1)
            for passed, other in self.grants.items()
        )

    # --- who sees ---

    def sees(self, entity: str, uuid: str, subject: str = "discover") -> bool:
        if not self.live(uuid):
            return False
        if self.things[uuid].owner == entity:
            return True
        ways = [self.things[at].lists for at in (uuid, *self.ancestors(uuid))]
        if any(self.means(to, entity) for lists in ways for to in lists.get(f"{subject}_deny", ())):
            return False
        allowed = next((lists[f"{subject}_allow"] for lists in ways if f"{subject}_allow" in lists), None)
        return allowed is None or any(self.means(to, entity) for to in allowed)

    def sees_place(self, entity: str, uuid: str) -> bool:
        return self.things[uuid].kind == TOPIC and self.sees(entity, uuid) and self.sees(entity, uuid, "hierarchy")

    def reach(self, entity: str, uuid: str, depth: int | None) -> set[str]:
        """The topics that somebody sees below a topic, or in a collection, down to a depth."""
        if depth == 0:
            return set()
        rest = None if depth is None else depth - 1
        if self.things[uuid].kind == TOPIC:
            below = {other for other, thing in self.things.items() if thing.parent == uuid and self.sees_place(entity, other)}
            return below.union(*(self.reach(entity, other, rest) for other in below))
        inside = {member for collection, member in self.members if collection == uuid and self.sees(entity, member)}
        topics = {member for member in inside if self.things[member].kind == TOPIC}
        return topics.union(*(self.reach(entity, member, rest) for member in inside - topics))

    def gets(self, uuid: str, entity: str) -> set[str]:
        """The topics that come into a subscription."""
        wish = self.wishes[uuid, entity]
        wanted = {uuid} if self.things[uuid].kind == TOPIC else set()
        if wish.tree and (self.sees_place(entity, uuid) if self.things[uuid].kind == TOPIC else self.sees(entity, uuid)):
            wanted |= self.reach(entity, uuid, wish.depth)
        return {topic for topic in wanted if self.may(entity, "subscribe", topic)}

    # --- what would be accepted; None where the rules may choose ---

    def takes_give(self, who: str, grant: str, terms: Mapping[str, Any]) -> bool | None:
        new = Given(issuer=who, owners_before=0, **terms)
        thing = self.things.get(new.topic)
        if thing is None or not self.live(new.topic) or (thing.kind == COLLECTION and not new.tree):
            return False
        if new.ends <= self.now:
            return False
        taken: bool | None = True
        if new.parent is None:
            if thing.owner != who:
                return False
        else:
            taken = self._takes_passed_on(who, new)
        if not taken and taken is not None:
            return False
        present = self.grants.get(grant)
        if present is not None:
            same = ("right", "topic", "issuer", "to", "tree", "delegable", "parent")
            if any(getattr(present, name) != getattr(new, name) for name in same):
                return False
            if present.retracted or present.ends <= self.now or new.issued <= present.issued:
                return False
            return taken
        alike = [
            other
            for other in self.grants.values()
            if (other.right, other.topic, other.to) == (new.right, new.topic, new.to)
            and not other.retracted
            and self.now < other.ends
        ]
        is_entity = new.to in self.institutions
        return False if len(alike) >= ALIKE or (is_entity and (new.to == who or not self.stands(new.to))) else taken

    def _takes_passed_on(self, who: str, new: Given) -> bool | None:
        assert new.parent is not None
        above = self.grants.get(new.parent)
        if above is None or not self.means(above.to, who) or not self.good(new.parent, new.topic, 1) or not above.delegable:
            return False
        if above.right != new.right or (new.tree and not above.tree):
            return False
        if new.begins < above.begins or new.ends > above.ends:
            return False
        chain = self.chain(new.parent)
        if len(chain) >= LONGEST_CHAIN or new.to in {link.issuer for link in chain}:
            return False
        if self.things[new.topic].owner != self.things[chain[-1].topic].owner and chain[-1].topic != new.topic:
            # Which grant of the topic's owner the rules take to be behind it is for them to say.
            return None if new.to in {other.issuer for other in self.grants.values()} else True
        return True

    def chain(self, key: str) -> list[Given]:
        grant = self.grants[key]
        return [grant] if grant.parent is None else [grant, *self.chain(grant.parent)]

    def takes_retract(self, who: str, grant: str) -> bool:
        if grant not in self.grants:
            return False
        chain = self.chain(grant)
        return who in {chain[0].to, self.things[chain[0].topic].owner, *(link.issuer for link in chain)}

    def takes_transfer(self, who: str, uuid: str, to: str) -> bool:
        return self.live(uuid) and self.things[uuid].owner == who and (to == who or self.stands(to))

    def takes_accept(self, who: str, uuid: str) -> bool:
        offer = self.things[uuid].offer
        return self.live(uuid) and offer is not None and offer[0] == who and self.now < offer[1]

    def takes_open(self, who: str, uuid: str) -> bool:
        return any(self.may(who, right, uuid) for right in ("publish", "subscribe"))

    def takes_subscribe(self, who: str, uuid: str, tree: bool) -> bool:
        if self.things[uuid].kind == COLLECTION:
            return self.sees(who, uuid)
        return self.sees_place(who, uuid) if tree else self.may(who, "subscribe", uuid)
