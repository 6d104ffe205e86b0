"""Who follows what, and what each is told (T29, T35): changes numbered for every watcher from 1, without holes.

A change is numbered when it happens, for those alone who may see it then; so a hidden change leaves no gap, and a lost message does. What is
told is kept for a while, for whoever was away. Nodes sign and send it; a watcher that misses something asks from its version on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from tdn.errors import Refused
from tdn.protocol.access import DISCOVER, HIERARCHY
from tdn.protocol.times import format_time
from tdn.rules import principals
from tdn.rules.sight import COLLECTION, Sight, asker_of
from tdn.rules.state import Draft, Fact, Occasion, State, Write, scan_below
from tdn.trust.envelope import Envelope

#: How long something is followed without being asked for again. Whoever never comes back must not cost every change a write for ever.
LEASE = timedelta(days=30)
#: Changes that are kept for a watcher.
KEPT_CHANGES = 10_000
#: Watchers of one topic or collection: each costs every change two writes.
MAX_WATCHERS = 256


@dataclass(frozen=True, slots=True)
class Told:
    """A change as a watcher is told it."""

    subject: str
    watcher: str
    version: int
    fact: Fact

    def payload(self, network: str) -> dict[str, Any]:
        """What a node signs. Any node signs the same."""
        return {
            "v": 1,
            "network": network,
            "subject": self.subject,
            "watcher": self.watcher,
            "version": self.version,
            **self.fact,
        }


def watch(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T29, T35: from now on, for a while. Asking again goes on counting, and begins the while anew."""
    uuid, watcher = request.body["uuid"], request.signer.name.id
    sight = Sight(draft, request.signer.asker, occasion.now)
    fact = sight.topic(uuid)
    if fact is None or not sight.may_follow(fact):
        raise Refused(f"there is no {uuid} that you may follow")
    key = f"{uuid} {watcher}"
    present = draft.get("watch", key)
    if present is None:
        count = _count(draft, uuid)
        if count >= MAX_WATCHERS:
            raise Refused(f"{uuid} is followed by {count} entities; no more can")
        _add_to_counts(draft, uuid, fact, 1)
        present = {"since": occasion.seq, "version": 0}
    else:
        draft.put("ends", f"{present['until']} watch {key}", None)
    until = format_time(occasion.now + LEASE)
    draft.put("watch", key, {**present, "until": until})
    draft.put("ends", f"{until} watch {key}", {})
    return {"uuid": uuid, "version": present["version"], "expires": until}


def unwatch(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    uuid = request.body["uuid"]
    key = f"{uuid} {request.signer.name.id}"
    present = draft.get("watch", key)
    if present is None:
        raise Refused(f"there is no {uuid} that you follow")
    draft.put("ends", f"{present['until']} watch {key}", None)
    end(draft, key)
    return {"uuid": uuid, "version": present["version"]}


def end(draft: Draft, key: str) -> None:
    """A watch is over. What it was told is forgotten bit by bit (`settling`)."""
    present = draft.get("watch", key)
    uuid = key.partition(" ")[0]
    fact = draft.get("topic", uuid)
    if present is None or fact is None:
        return
    draft.put("watch", key, None)
    _add_to_counts(draft, uuid, fact, -1)
    draft.put("settling", f"watch {_place(key, present)}", {})


def forget(draft: Draft, place: str, budget: int) -> tuple[int, bool]:
    """Forget some of what an ended watch was told: how much, and whether that was all."""
    told = [rest for rest, _ in itertools.islice(scan_below(draft, "change", place), budget)]
    for rest in told:
        draft.put("change", f"{place} {rest}", None)
    return len(told), len(told) < budget


# --- telling ---


def tell_hierarchy(draft: Draft, uuid: str, topic: Fact, change: str, occasion: Occasion) -> None:
    """A child came or went: whoever follows an ancestor and sees all that is between is told."""
    if draft.get("watched", f"tree {topic['root']}") is None:
        return
    told = _fact(uuid, topic, change, occasion, topic["parent"])
    sights: dict[str, Sight | None] = {}
    between = [topic]
    #: How far up each watcher was found to see everything. Looked at once, however many of the ancestors it follows.
    clear: dict[str, int] = {}
    above: str | None = topic["parent"]
    while above is not None:
        fact = draft.get("topic", above)
        if fact is None:
            return
        between.append(fact)
        for watcher, sight in _watchers(draft, above, sights):
            at = clear.get(watcher, 0)
            while at < len(between) and all(sight.admits(between[at], subject) for subject in (DISCOVER, HIERARCHY)):
                at += 1
            clear[watcher] = at
            if at == len(between):
                _tell(draft, above, watcher, told)
        above = fact.get("parent")


def tell_collections(draft: Draft, places: Sequence[str], uuid: str, member: Fact, change: str, occasion: Occasion) -> None:
    """A member came to, or went from, some collections: whoever follows one of them, or one above, and sees it from there is told once."""
    followed = [above for above in sorted(_upward(draft, places, lambda _: True)) if _count(draft, above)]
    if not followed:
        return
    sights: dict[str, Sight | None] = {}
    reached: dict[str, set[str]] = {}
    for above in followed:
        for watcher, sight in _watchers(draft, above, sights):
            if watcher not in reached:
                seen = sight.admits(member, DISCOVER)
                reached[watcher] = _upward(draft, places, partial(_shows, sight)) if seen else set()
            fact = draft.get("topic", above)
            if above in reached[watcher] and fact is not None and sight.may_follow(fact):
                # Of the places, those alone that it sees: that there are others must not show.
                seen_in = [place for place in places if place in reached[watcher]]
                inside = seen_in[0] if len(seen_in) == 1 else None
                _tell(draft, above, watcher, _fact(uuid, member, change, occasion, inside))


def tell_followers(draft: Draft, uuid: str, topic: Fact, change: str, occasion: Occasion) -> None:
    """What somebody follows has itself ended: the last that it is told."""
    told = _fact(uuid, topic, change, occasion, None)
    for watcher, sight in _watchers(draft, uuid, {}):
        if sight.may_follow(topic):
            _tell(draft, uuid, watcher, told)


def told_by(writes: Sequence[Write]) -> Iterator[Told]:
    """What a record's writes tell whom."""
    for write in writes:
        if write.space == "change" and write.value is not None:
            subject, watcher, _, version = write.key.split(" ")
            yield Told(subject, watcher, int(version), write.value)


def told_since(state: State, uuid: str, watcher: str, version: int, limit: int) -> tuple[int, list[Told]] | None:
    """A watcher's present version, and what it was told after another, the oldest first. Nothing when it does not follow this."""
    present = state.get("watch", f"{uuid} {watcher}")
    if present is None:
        return None
    place = _place(f"{uuid} {watcher}", present)
    found = state.scan("change", after=f"{place} {int(version):012d}", up_to=f"{place} ~", limit=limit)
    return present["version"], [Told(uuid, watcher, int(key.rpartition(" ")[2]), fact) for key, fact in found]


def _tell(draft: Draft, uuid: str, watcher: str, told: Mapping[str, Any]) -> None:
    key = f"{uuid} {watcher}"
    present = draft.get("watch", key)
    if present is None:
        return
    version = present["version"] + 1
    place = _place(key, present)
    draft.put("watch", key, {**present, "version": version})
    draft.put("change", f"{place} {version:012d}", told)
    if version > KEPT_CHANGES:
        draft.put("change", f"{place} {version - KEPT_CHANGES:012d}", None)


def _watchers(draft: Draft, uuid: str, sights: dict[str, Sight | None]) -> Iterator[tuple[str, Sight]]:
    """Who follows something and is still somebody, with what it sees."""
    if not _count(draft, uuid):
        return
    for watcher, _ in list(scan_below(draft, "watch", uuid)):
        if watcher not in sights:
            asker = asker_of(draft, watcher)
            # By log time: what has ended by one node's clock alone may yet be renewed, and its followers must have been told.
            sights[watcher] = Sight(draft, asker, principals.log_time(draft)) if asker is not None else None
        sight = sights[watcher]
        if sight is not None:
            yield watcher, sight


def _shows(sight: Sight, uuid: str) -> bool:
    return sight.collection(uuid) is not None


def _upward(draft: Draft, places: Sequence[str], passes: Callable[[str], bool]) -> set[str]:
    """Some collections and all above them, as far as each passes."""
    found = {place for place in places if passes(place)}
    edge = sorted(found)
    while edge:
        at = edge.pop()
        for outer, _ in scan_below(draft, "in", at):
            if outer not in found and passes(outer):
                found.add(outer)
                edge.append(outer)
    return found


def _fact(uuid: str, topic: Fact, change: str, occasion: Occasion, inside: str | None) -> dict[str, Any]:
    fact = {"change": change, "uuid": uuid, "kind": topic["kind"], "seq": occasion.seq, "at": format_time(occasion.at)}
    return fact if inside is None else {**fact, "in": inside}


def _place(key: str, watch: Fact) -> str:
    return f"{key} {watch['since']:012d}"


def _count(draft: Draft, uuid: str) -> int:
    watched = draft.get("watched", uuid)
    return 0 if watched is None else int(watched["count"])


def _add_to_counts(draft: Draft, uuid: str, fact: Fact, number: int) -> None:
    subjects = [uuid] if fact["kind"] == COLLECTION else [uuid, f"tree {fact.get('root', uuid)}"]
    for subject in subjects:
        count = _count(draft, subject) + number
        draft.put("watched", subject, {"count": count} if count else None)
