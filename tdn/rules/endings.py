"""What follows when a topic or collection ends, or is shortened: its subtree does too (T26), it leaves its collections, watchers are told.

A hundred thousand topics may hang on one. So that no record stalls every node, a record settles a few and every tick some more. Until then
`sight.live` looks at ancestors too, so that nobody is shown, or can use, what has ended and is not marked yet.
"""

from __future__ import annotations

import itertools

from tdn.protocol.trees import EXPIRED
from tdn.rules import collections, hierarchy, watches
from tdn.rules.sight import COLLECTION, LIVE, TOPIC, live
from tdn.rules.state import Draft, Fact, Occasion, scan_below

#: What one change settles at once. Most have fewer children than this.
AT_ONCE = 100
#: How many follow in one turn, and after how much work no further turn begins: half of what a change may be.
_PORTION = 50
MOST_WORK = 50_000


def end(draft: Draft, uuid: str, state: str, occasion: Occasion) -> None:
    """A live topic or collection ends, withdrawn or expired. A subtree's end is one change: of what ends with an ancestor, those who follow
    the ancestors are not told."""
    topic = draft.get("topic", uuid)
    if topic is None or topic["state"] != LIVE:
        return
    draft.put("topic", uuid, {**topic, "state": state, "seq": occasion.seq})
    draft.put("ends", f"{topic['expires']} topic {uuid}", None)
    places = collections.containers(draft, uuid)
    if places:
        watches.tell_collections(draft, places, uuid, topic, state, occasion)
    if "parent" in topic:
        hierarchy.leave(draft, uuid, topic)
        if live(draft, topic["parent"], occasion.now) is not None:
            watches.tell_hierarchy(draft, uuid, topic, state, occasion)
    watches.tell_followers(draft, uuid, topic, state, occasion)
    if topic["kind"] == COLLECTION:
        # It stays where it is until it is empty: what it holds is counted there.
        draft.put("settling", f"collection {uuid}", {})
        return
    collections.detach(draft, places, {uuid: topic})
    begin_settling(draft, uuid)


def begin_settling(draft: Draft, uuid: str) -> None:
    """Let the children of a topic follow it."""
    if hierarchy.size_of(draft, uuid):
        if draft.get("settling", f"topic {uuid}") is None:
            _count_pending(draft, 1)
        draft.put("settling", f"topic {uuid}", {"after": ""})


def settle(draft: Draft, occasion: Occasion, budget: int) -> None:
    """Let some of what hangs on ended things follow, as much as the budget and the work allow. Each kind has its turn: nobody can keep
    topics from settling by ending collections."""
    turns = itertools.cycle(("topic", "collection", "watch"))
    idle = 0
    while budget > 0 and idle < 3 and draft.work < MOST_WORK:
        kind = next(turns)
        waiting = next(draft.scan("settling", after=kind, up_to=f"{kind} ~", limit=1), None)
        if waiting is None:
            idle += 1
            continue
        idle = 0
        key, fact = waiting
        name = key.partition(" ")[2]
        portion = min(budget, _PORTION)
        if kind == "topic":
            used, done = _settle_children(draft, name, fact, occasion, portion)
        elif kind == "collection":
            used, done = _empty(draft, name, portion)
        else:
            used, done = watches.forget(draft, name, portion)
        if done:
            draft.put("settling", key, None)
            if kind == "topic":
                _count_pending(draft, -1)
        budget -= max(used, 1)


def _settle_children(draft: Draft, uuid: str, progress: Fact, occasion: Occasion, budget: int) -> tuple[int, bool]:
    """Bring children in line with their parent: ended with it, or lasting no longer."""
    parent = draft.get("topic", uuid) or {}
    portion = list(itertools.islice(scan_below(draft, "child", uuid, after=progress["after"]), budget))
    for rest, _ in portion:
        child = rest.rpartition(" ")[2]
        if parent["state"] != LIVE:
            end(draft, child, EXPIRED, occasion)
        else:
            _shorten(draft, child, parent["expires"], occasion)
    if len(portion) < budget:
        return len(portion), True
    draft.put("settling", f"topic {uuid}", {"after": portion[-1][0]})
    return len(portion), False


def _shorten(draft: Draft, uuid: str, expires: str, occasion: Occasion) -> None:
    topic = draft.get("topic", uuid)
    if topic is None or topic["state"] != LIVE or topic["expires"] <= expires:
        return
    reschedule(draft, uuid, topic, expires, occasion)


def reschedule(draft: Draft, uuid: str, topic: Fact, expires: str, occasion: Occasion) -> None:
    """Another end for a live topic or collection. Its children never outlive it."""
    draft.put("topic", uuid, {**topic, "expires": expires, "seq": occasion.seq})
    draft.put("ends", f"{topic['expires']} topic {uuid}", None)
    draft.put("ends", f"{expires} topic {uuid}", {})
    if expires < topic["expires"] and topic["kind"] == TOPIC:
        begin_settling(draft, uuid)


def _empty(draft: Draft, uuid: str, budget: int) -> tuple[int, bool]:
    """Release members of an ended collection; when none is left, take it out of what it is in."""
    collection = draft.get("topic", uuid) or {}
    portion = list(itertools.islice(collections.direct_members(draft, uuid), budget))
    collections.detach(draft, [uuid], {member: draft.get("topic", member) or {} for _, member in portion})
    if len(portion) == budget:
        return budget, False
    collections.detach(draft, collections.containers(draft, uuid), {uuid: collection})
    draft.put("size", uuid, None)
    return len(portion), True


def _count_pending(draft: Draft, number: int) -> None:
    pending = draft.get("pending", "topics")
    count = (0 if pending is None else int(pending["count"])) + number
    draft.put("pending", "topics", {"count": count} if count else None)
