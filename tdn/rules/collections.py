"""Collections (T31 to T34): topics and collections gathered in a graph without cycles, under limits that hold at every collection above.

Limits, and whose topics are taken, hold for the whole tree of the collection that states them. So whatever is added is held against every
collection above the place, on every path; what is above is looked up for each change, since it changes all the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdn.errors import Refused
from tdn.protocol.access import ADD, DISCOVER, INCLUDE, OWNER
from tdn.protocol.trees import ADDED, REMOVED
from tdn.rules import countersignatures, watches
from tdn.rules.hierarchy import count, size_of
from tdn.rules.sight import COLLECTION, LIVE, TOPIC, Sight, access_of, asker_of, live
from tdn.rules.state import Draft, Fact, Occasion, State, scan_below
from tdn.trust.envelope import Envelope

#: Collections that may stand above one to which something is added, and inside one that is added; topics inside that one. Each is looked at.
MAX_ABOVE = 1000
MAX_INSIDE = 1000
MAX_TOPICS_INSIDE = 10_000
#: Collections that may hold one thing directly.
MAX_CONTAINERS = 1000


@dataclass(frozen=True, slots=True)
class Joining:
    """One thing that is to become a member, on behalf of somebody."""

    collection: str
    uuid: str
    requester: str
    countersigned: tuple[str, ...] = ()


def add(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T33: a topic or collection becomes a member."""
    body = request.body
    tokens = (body["countersigned"],) if "countersigned" in body else ()
    joining = Joining(body["collection"], body["uuid"], request.signer.name.id, tokens)
    _require_may_add(draft, request, body["collection"], occasion)
    _join(draft, request, joining, occasion)
    return {"collection": body["collection"], "uuid": body["uuid"]}


def remove(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T33: asked by the member's owner or the collection's."""
    body = request.body
    _leave(draft, request, body["collection"], body["uuid"], occasion)
    return {"collection": body["collection"], "uuid": body["uuid"]}


def move(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T34: out of one and into the other, both or neither. What the first gives free, the second may need."""
    body = request.body
    if body["from"] == body["to"]:
        raise Refused(f"{body['uuid']} would be moved to where it is")
    _require_may_add(draft, request, body["to"], occasion)
    _leave(draft, request, body["from"], body["uuid"], occasion)
    tokens = (body["countersigned"],) if "countersigned" in body else ()
    _join(draft, request, Joining(body["to"], body["uuid"], request.signer.name.id, tokens), occasion)
    return {"collection": body["to"], "uuid": body["uuid"]}


def found(draft: Draft, request: Envelope, uuid: str, members: tuple[str, ...], occasion: Occasion) -> None:
    """T32, T33: the members that a collection is created with, under the same rules as later ones; all of them or no collection."""
    words = countersignatures.sorted_by_subject(request.body.get("countersigned", ()))
    for member in members:
        _join(draft, request, Joining(uuid, member, request.signer.name.id, words.get(member, ())), occasion, first=True)


# --- joining ---


def _require_may_add(draft: Draft, request: Envelope, uuid: str, occasion: Occasion) -> None:
    """T33: the collection authorises the requester. To whoever may not see it, it is absent."""
    sight = Sight(draft, request.signer.asker, occasion.now)
    collection = sight.topic(uuid)
    if collection is None:
        raise Refused(f"there is no collection {uuid} that you may see; it may have ended")
    if collection["kind"] != COLLECTION:
        raise Refused(f"{uuid} is a topic; only a collection has members")
    if not sight.admits(collection, ADD):
        raise Refused(f"you may not add to collection {uuid}")
    if collection["gathering"]["fixed"]:
        raise Refused(f"collection {uuid} is fixed; its members were named when it was created")


def _join(draft: Draft, request: Envelope, joining: Joining, occasion: Occasion, *, first: bool = False) -> None:
    uuid, place = joining.uuid, joining.collection
    member = live(draft, uuid, occasion.now)
    collection = draft.get("topic", place)
    if uuid == place:
        raise Refused(f"collection {place} cannot be in itself")
    sight = Sight(draft, request.signer.asker, occasion.now)
    allowed = member is not None and _has_consent(draft, sight, joining, member, occasion)
    if member is None or not (allowed or sight.admits(member, DISCOVER)):
        raise Refused(f"there is no {uuid} that you may see; it may have ended")
    if not allowed:
        raise Refused(f"only the owner of {uuid}, or who has its countersignature, can put it into a collection")
    if member["owner"] != joining.requester and not _shows_to(draft, member["owner"], collection, occasion):
        # Its limits would bind what it holds, and the owner could not take it out of what it does not see.
        raise Refused(f"{uuid} cannot be put into a collection that its owner may not see")
    assert collection is not None  # noqa: S101  # for mypy: whoever asked has seen it, or has just founded it
    if draft.get("in", f"{uuid} {place}") is not None:
        raise Refused(f"{uuid} is in collection {place} already")
    if sum(1 for _ in scan_below(draft, "in", uuid)) >= MAX_CONTAINERS:
        raise Refused(f"{uuid} is in {MAX_CONTAINERS} collections; no more can hold it")
    if member["kind"] == COLLECTION:
        _require_may_nest(place, collection, uuid, member)
    _fit(draft, place, uuid, member)
    draft.put("member", f"{place} {member['kind']} {uuid}", {})
    draft.put("in", f"{uuid} {place}", {})
    count(draft, place, 1)
    if not first:
        watches.tell_collections(draft, [place], uuid, member, ADDED, occasion)


def _shows_to(draft: Draft, entity: str, collection: Fact | None, occasion: Occasion) -> bool:
    asker = asker_of(draft, entity)
    return asker is not None and collection is not None and Sight(draft, asker, occasion.now).admits(collection, DISCOVER)


def _has_consent(draft: Draft, sight: Sight, joining: Joining, member: Fact, occasion: Occasion) -> bool:
    """T33: the requester owns it or has its owner's countersignature; of a collection, its owner may have said who else (T32)."""
    if member["owner"] == joining.requester:
        return True
    if member["kind"] == COLLECTION and sight.admits(member, DISCOVER) and sight.admits(member, INCLUDE):
        return True
    return any(
        countersignatures.holds(
            draft,
            token,
            countersignatures.INCLUDE,
            joining.uuid,
            member,
            entity=joining.requester,
            now=occasion.now,
            collection=joining.collection,
        )
        for token in joining.countersigned
    )


def _require_may_nest(place: str, collection: Fact, uuid: str, member: Fact) -> None:
    if not collection["gathering"]["child_collections"]:
        raise Refused(f"collection {place} takes no child collections; its creator did not allow them")
    if not member["gathering"]["inclusion"]:
        raise Refused(f"collection {uuid} cannot be part of others; its creator did not allow it")
    if collection["gathering"]["fixed"] and not member["gathering"]["fixed"]:
        raise Refused(f"collection {place} is fixed, and collection {uuid}, which is not, would change it")


@dataclass(slots=True)
class _Inside:
    """What comes with a member: itself alone, or the collection's tree."""

    #: Collections with how many direct members each has.
    breadths: dict[str, int] = field(default_factory=dict)
    #: Levels of collections, its own included. A topic has none.
    height: int = 0
    topics: set[str] = field(default_factory=set)


def _fit(draft: Draft, place: str, uuid: str, member: Fact) -> None:
    """T33: no limit breaks in the collection or above it, on any path; whose topics come is right for all of them; never a cycle."""
    above = _above(draft, place)
    if uuid in above:
        raise Refused(f"collection {uuid} holds {place}, so it cannot be put into it: a collection is never inside itself")
    facts = {at: fact for at in above if (fact := draft.get("topic", at)) is not None and fact["state"] == LIVE}
    limited = [at for at, fact in facts.items() if fact["gathering"]["limits"]["topics"]]
    choosy = [at for at, fact in facts.items() if not _takes_all(draft, fact)]
    inside = _inside(draft, uuid, member, with_topics=bool(limited or choosy))
    for at, fact in facts.items():
        limits = fact["gathering"]["limits"]
        own = at == place
        if limits["breadth"]:
            if size_of(draft, place) + 1 > limits["breadth"]:
                raise _full(place, own, f"at most {limits['breadth']} direct members")
            if any(breadth > limits["breadth"] for breadth in inside.breadths.values()):
                raise Refused(f"collection {uuid} has a collection with too many members in its tree for collection {place}")
        if limits["depth"] and above[at] + 1 + inside.height > limits["depth"]:
            raise Refused(f"collection {uuid} would make the tree of collection {place} too deep")
    for at in choosy:
        _require_owners(draft, place, facts[at], inside.topics)
    entering = _newly_inside(draft, limited, inside.topics)
    for at in limited:
        limit = facts[at]["gathering"]["limits"]["topics"]
        total = _topics_in(draft, at) + entering[at]
        if total > limit:
            raise _full(place, at == place, f"at most {limit} topics in its tree")
        _set_topics_in(draft, at, total)


def _full(place: str, own: bool, limit: str) -> Refused:
    # Who set a limit further up is not told: the requester may not know what is above.
    return Refused(
        f"collection {place} is full: {limit}" if own else f"collection {place} can take no more: a limit above it is reached"
    )


def _above(draft: Draft, place: str) -> dict[str, int]:
    """A collection and all above it, each with the longest way down to it. Those that have ended and are still being emptied count."""
    outer_of: dict[str, list[str]] = {}
    edge = [place]
    while edge:
        at = edge.pop()
        if at not in outer_of:
            outer_of[at] = containers(draft, at)
            edge += outer_of[at]
            if len(outer_of) > MAX_ABOVE:
                raise Refused(f"more than {MAX_ABOVE} collections are above collection {place}; nothing more can be added to it")
    # In an order in which everything below has had its turn: how many ways up are still to come.
    coming = dict.fromkeys(outer_of, 0)
    for outers in outer_of.values():
        for outer in outers:
            coming[outer] += 1
    distance, ready = {place: 0}, [place]
    while ready:
        at = ready.pop()
        for outer in outer_of[at]:
            distance[outer] = max(distance.get(outer, 0), distance[at] + 1)
            coming[outer] -= 1
            if coming[outer] == 0:
                ready.append(outer)
    return distance


def _inside(draft: Draft, uuid: str, member: Fact, *, with_topics: bool) -> _Inside:
    if member["kind"] == TOPIC:
        return _Inside(topics={uuid})
    inside = _Inside()
    heights: dict[str, int] = {}
    stack: list[tuple[str, bool]] = [(uuid, False)]
    while stack:
        at, done = stack.pop()
        inner = _inner(draft, at)
        if done:
            heights[at] = 1 + max((heights[below] for below in inner), default=0)
            continue
        if at in inside.breadths:
            continue
        inside.breadths[at] = size_of(draft, at)
        if len(inside.breadths) > MAX_INSIDE:
            raise Refused(f"collection {uuid} has more than {MAX_INSIDE} collections in its tree; too many to be added at once")
        if with_topics:
            for topic in _direct_topics(draft, at):
                inside.topics.add(topic)
                if len(inside.topics) > MAX_TOPICS_INSIDE:
                    raise Refused(
                        f"collection {uuid} has more than {MAX_TOPICS_INSIDE} topics in its tree; too many to be added at once"
                    )
        stack.append((at, True))
        stack += [(below, False) for below in inner if below not in inside.breadths]
    inside.height = heights[uuid]
    return inside


def _takes_all(draft: Draft, collection: Fact) -> bool:
    pair = access_of(draft, collection).about(OWNER)
    return pair.allow == ("*",) and not pair.deny


def _require_owners(draft: Draft, place: str, collection: Fact, topics: set[str]) -> None:
    """T32: whose topics a collection takes, in its whole tree."""
    access = access_of(draft, collection)
    admitted: dict[str, bool] = {}
    for topic in topics:
        owner = (draft.get("topic", topic) or {})["owner"]
        if owner not in admitted:
            asker = asker_of(draft, owner)
            admitted[owner] = asker is not None and access.admit(OWNER, asker, collection["owner"])
        if not admitted[owner]:
            raise Refused(
                f"collection {place}, or one above it, does not take topics of everybody; those that would come are not all of owners that it takes"
            )


# --- distinct topics in a tree, counted where there is a limit on them ---


def _newly_inside(draft: Draft, limited: list[str], topics: set[str]) -> Mapping[str, int]:
    """For each of some collections, how many of these topics its tree does not have, as things stand in the draft."""
    missing = dict.fromkeys(limited, 0)
    if not limited:
        return missing
    above: dict[str, set[str]] = {}
    for topic in topics:
        has: set[str] = set()
        for outer in containers(draft, topic):
            if outer not in above:
                above[outer] = _all_above(draft, outer)
            has |= above[outer]
        for at in limited:
            missing[at] += at not in has
    return missing


def _all_above(draft: State, *places: str) -> set[str]:
    known, edge = set(places), list(places)
    while edge:
        for outer in containers(draft, edge.pop()):
            if outer not in known:
                known.add(outer)
                edge.append(outer)
    return known


def _topics_in(draft: Draft, uuid: str) -> int:
    return int((draft.get("size", uuid) or {}).get("topics", 0))


def _set_topics_in(draft: Draft, uuid: str, total: int) -> None:
    size = {**(draft.get("size", uuid) or {"members": 0}), "topics": total}
    draft.put("size", uuid, size if any(size.values()) else None)


# --- leaving ---


def _leave(draft: Draft, request: Envelope, place: str, uuid: str, occasion: Occasion) -> None:
    asker = request.signer.name.id
    sight = Sight(draft, request.signer.asker, occasion.now)
    collection, member = live(draft, place, occasion.now), live(draft, uuid, occasion.now)
    held = draft.get("in", f"{uuid} {place}") is not None
    owns_member = held and member is not None and member["owner"] == asker
    if collection is None or not (owns_member or sight.admits(collection, DISCOVER)):
        raise Refused(f"there is no collection {place} that you may see; it may have ended")
    if collection["kind"] != COLLECTION:
        raise Refused(f"{place} is a topic; only a collection has members")
    visible = member is not None and sight.admits(member, DISCOVER)
    if member is None or not held or not (visible or owns_member or collection["owner"] == asker):
        raise Refused(f"{uuid} is not in collection {place}, as far as you may see")
    if not (owns_member or collection["owner"] == asker):
        raise Refused(f"only the owner of {uuid} or of collection {place} can take it out")
    if collection["gathering"]["fixed"]:
        raise Refused(f"collection {place} is fixed; its members were named when it was created")
    watches.tell_collections(draft, [place], uuid, member, REMOVED, occasion)
    detach(draft, [place], {uuid: member})


def detach(draft: Draft, places: Sequence[str], members: Mapping[str, Fact]) -> None:
    """Members of collections (each of each) are no longer any: their slots are free, and trees that have lost topics count fewer. What is
    above is looked at once for all of them."""
    # One that has ended is being emptied, and nobody asks how full it is.
    limited = [
        at
        for at in sorted(_all_above(draft, *places))
        if _topics_in(draft, at) and (draft.get("topic", at) or {})["state"] == LIVE
    ]
    for place in places:
        for uuid, member in members.items():
            draft.put("member", f"{place} {member['kind']} {uuid}", None)
            draft.put("in", f"{uuid} {place}", None)
        count(draft, place, -len(members))
    if limited:
        topics: set[str] = set()
        for uuid, member in members.items():
            topics |= {uuid} if member["kind"] == TOPIC else set(_all_topics(draft, uuid))
        for at, lost in _newly_inside(draft, limited, topics).items():
            if lost:
                _set_topics_in(draft, at, _topics_in(draft, at) - lost)


def containers(state: State, uuid: str) -> list[str]:
    """The collections that hold something directly."""
    return [outer for outer, _ in scan_below(state, "in", uuid)]


def direct_members(state: State, uuid: str) -> Iterator[tuple[str, str]]:
    """A collection's members: what each is, and its UUID."""
    for rest, _ in scan_below(state, "member", uuid):
        kind, _, member = rest.partition(" ")
        yield kind, member


def _inner(state: State, uuid: str) -> list[str]:
    return [inner for inner, _ in scan_below(state, "member", f"{uuid} {COLLECTION}")]


def _direct_topics(state: State, uuid: str) -> Iterator[str]:
    for topic, _ in scan_below(state, "member", f"{uuid} {TOPIC}"):
        yield topic


def _all_topics(state: State, uuid: str) -> Iterator[str]:
    known, edge = {uuid}, [uuid]
    while edge:
        at = edge.pop()
        yield from _direct_topics(state, at)
        for inner in _inner(state, at):
            if inner not in known:
                known.add(inner)
                edge.append(inner)
