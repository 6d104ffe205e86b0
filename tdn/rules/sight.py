"""Who may see what (T18, T27, T36): the read-only questions about topics, hierarchies and collections. Ended, hidden and absent look the same.

A topic is visible to its owner, and to whomever its lists, as they hold under its ancestors', admit. Its place in a hierarchy shows to those
whom the hierarchy lists admit too; a relation shows where both ends do. Of a collection's tree one sees what is reached through
collections that one sees.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tdn.errors import LogDiverged, UsageError
from tdn.protocol.access import DISCOVER, HIERARCHY, NO_ACCESS, WATCH, Access, Asker, read_access
from tdn.protocol.times import parse_time
from tdn.rules.state import Fact, State, scan_below

LIVE = "live"
TOPIC, COLLECTION = "topic", "collection"

#: Access by its digest. The same digest is the same lists, in whatever state they stand.
_known_access: dict[str, Access] = {}
_KNOWN_ACCESS = 512


@dataclass(frozen=True, slots=True)
class Seen:
    """Something in a tree: how far from what was asked about, and what it is directly below or in, where that shows."""

    uuid: str
    fact: Fact
    depth: int
    inside: str | None = None


def access_of(state: State, topic: Fact) -> Access:
    """The lists that hold for a topic."""
    digest = topic.get("access")
    if digest is None:
        return NO_ACCESS
    access = _known_access.get(digest)
    if access is None:
        fact = state.get("access", digest)
        if fact is None:
            # No lists would mean that everybody may.
            raise LogDiverged(f"the store has lost the lists of a topic ({digest})")
        access = read_access(fact)
        if len(_known_access) >= _KNOWN_ACCESS:
            _known_access.clear()
        _known_access[digest] = access
    return access


def live(state: State, uuid: str, now: datetime, standing: dict[str, bool] | None = None) -> Fact | None:
    """A topic or collection that has not ended by now, nor any ancestor of it (T26). Who asks about many brings along what was found of
    ancestors: in a deep tree each would be looked at for every topic below it."""
    topic = state.get("topic", uuid)
    if topic is None or not _lasts(topic, now):
        return None
    # Somewhere a subtree may have ended whose topics have not all been marked yet.
    unsure = "parent" in topic and state.get("pending", "topics") is not None
    return None if unsure and not _stands(state, topic["parent"], now, {} if standing is None else standing) else topic


def _stands(state: State, uuid: str, now: datetime, known: dict[str, bool]) -> bool:
    """Whether a topic and all its ancestors last; noted for all that were looked at."""
    path: list[str] = []
    at: str | None = uuid
    stands = True
    while at is not None and stands:
        if at in known:
            stands = known[at]
            break
        path.append(at)
        fact = state.get("topic", at) or {}
        stands, at = _lasts(fact, now), fact.get("parent")
    known.update(dict.fromkeys(path, stands))
    return stands


def _lasts(topic: Fact, now: datetime) -> bool:
    return topic.get("state") == LIVE and now < parse_time(topic["expires"])


def asker_of(state: State, entity: str) -> Asker | None:
    """An entity as lists mean it now; nobody, when the network knows none or its certificate was revoked."""
    principal = state.get("principal", f"entity:{entity}")
    if principal is None or not principal["thumbprint"] or principal["key"] in principal["revoked"]:
        return None
    return Asker(entity, principal["institution"])


class Sight:
    """What one asker sees of a state at a moment."""

    def __init__(self, state: State, asker: Asker, now: datetime) -> None:
        self._state = state
        self._asker = asker
        self._now = now
        #: Answers of lists, by their digest: a hundred thousand children share one.
        self._admitted: dict[tuple[str, str], bool] = {}
        self._standing: dict[str, bool] = {}

    # --- one thing ---

    def topic(self, uuid: str) -> Fact | None:
        """A live topic or collection that the asker may see."""
        fact = live(self._state, uuid, self._now, self._standing)
        return fact if fact is not None and self.admits(fact, DISCOVER) else None

    def place(self, uuid: str) -> Fact | None:
        """A live topic whose place in its hierarchy the asker may see."""
        fact = self.topic(uuid)
        return fact if fact is not None and fact["kind"] == TOPIC and self.admits(fact, HIERARCHY) else None

    def collection(self, uuid: str) -> Fact | None:
        fact = self.topic(uuid)
        return fact if fact is not None and fact["kind"] == COLLECTION else None

    def may_follow(self, fact: Fact) -> bool:
        """Whether the asker may watch a topic's subtree or a collection (T29, T35)."""
        return self.admits(fact, DISCOVER) and self.admits(fact, HIERARCHY if fact["kind"] == TOPIC else WATCH)

    def admits(self, fact: Fact, subject: str) -> bool:
        """Whether its lists about something admit the asker, whether or not it is live."""
        if fact["owner"] == self._asker.entity:
            return True
        digest = fact.get("access", "")
        answer = self._admitted.get((digest, subject))
        if answer is None:
            # Of somebody who is no owner: lists that are for the owner alone then admit nobody.
            answer = access_of(self._state, fact).admit(subject, self._asker, "")
            self._admitted[digest, subject] = answer
        return answer

    # --- hierarchies (T27) ---

    def parents(self, uuid: str, depth: int | None = None) -> Iterator[Seen]:
        """The ancestors, the nearest first, as far up as they show."""
        fact, level = self.place(uuid), 0
        while fact is not None and (parent := fact.get("parent")) is not None and (depth is None or level < depth):
            level += 1
            fact = self.place(parent)
            if fact is not None:
                above = fact.get("parent")
                shows = above is not None and self.place(above) is not None
                yield Seen(parent, fact, level, above if shows else None)

    def tree(self, uuid: str, depth: int | None = None, after: str | None = None) -> Iterator[Seen]:
        """The topic and what is below it, each before its children; from behind `after` on, which was given before."""
        path = [uuid] if after is None else [uuid, *self._way_down(uuid, after)]
        if after is None:
            fact = self.place(uuid)
            if fact is None:
                return
            yield Seen(uuid, fact, 0)
        stack = self._stack(path)
        while stack:
            below = next(stack[-1], None) if depth is None or len(stack) <= depth else None
            if below is None:
                stack.pop()
                path.pop()
                continue
            child, fact = below
            yield Seen(child, fact, len(stack), path[-1])
            stack.append(self._children(child, ""))
            path.append(child)

    def _stack(self, path: list[str]) -> list[Iterator[tuple[str, Fact]]]:
        """Where a walk stands that has just given the last of a path: at each level, the children that are left."""
        stack = []
        for above, at in zip(path, [*path[1:], None], strict=True):
            fact = self._state.get("topic", at) if at is not None else None
            stack.append(self._children(above, f"{fact['created']} {at}" if fact is not None else ""))
        return stack

    def _way_down(self, uuid: str, below: str) -> list[str]:
        """The way from a topic to one below it, without the first. It may have ended meanwhile, but must be one that the asker could be
        given: where a hidden one stands would show by what comes after it."""
        path = [below]
        while path[-1] != uuid:
            fact = self._state.get("topic", path[-1])
            if fact is None or "parent" not in fact or not (self.admits(fact, DISCOVER) and self.admits(fact, HIERARCHY)):
                raise UsageError("the cursor is not one of ours; take it from the last answer")
            path.append(fact["parent"])
        return path[-2::-1]

    def _children(self, uuid: str, after: str) -> Iterator[tuple[str, Fact]]:
        for rest, _ in scan_below(self._state, "child", uuid, after=after):
            child = rest.rpartition(" ")[2]
            fact = self.place(child)
            if fact is not None:
                yield child, fact

    # --- collections (T36) ---

    def collections(self, uuid: str, depth: int | None = None) -> Iterator[Seen]:
        """The collections inside a collection, the nearer first, each once."""
        if self.collection(uuid) is not None:
            yield from self._spread(uuid, depth, self._inner)

    def containing(self, uuid: str, depth: int | None = None) -> Iterator[Seen]:
        """The collections that a topic or collection is in, those that hold it directly first, each once."""
        if self.topic(uuid) is not None:
            yield from self._spread(uuid, depth, self._outer)

    def topics(self, uuid: str, after: str = "", depth: int | None = None) -> Iterator[Seen]:
        """The topics in a collection and in those inside it, each once, in the order of their UUIDs."""
        if self.collection(uuid) is None:
            return
        levels = {uuid: 1} | {seen.uuid: seen.depth + 1 for seen in self.collections(uuid, None if depth is None else depth - 1)}
        last = ""
        # Where several collections hold one topic, the nearest names it.
        for topic, level, inside in heapq.merge(*(self._held(inner, level, after) for inner, level in levels.items())):
            if topic == last:
                continue
            last = topic
            fact = self.topic(topic)
            if fact is not None:
                yield Seen(topic, fact, level, inside)

    def _held(self, uuid: str, level: int, after: str) -> Iterator[tuple[str, int, str]]:
        for topic, _ in scan_below(self._state, "member", f"{uuid} {TOPIC}", after=after):
            yield topic, level, uuid

    def _inner(self, uuid: str) -> Iterator[str]:
        for inner, _ in scan_below(self._state, "member", f"{uuid} {COLLECTION}"):
            yield inner

    def _outer(self, uuid: str) -> Iterator[str]:
        for outer, _ in scan_below(self._state, "in", uuid):
            yield outer

    def _spread(self, uuid: str, depth: int | None, step: Callable[[str], Iterator[str]]) -> Iterator[Seen]:
        known, level, edge = {uuid}, 0, [uuid]
        while edge and (depth is None or level < depth):
            level += 1
            new: list[str] = []
            for at in edge:
                for found in step(at):
                    fact = self.collection(found) if found not in known else None
                    if fact is not None:
                        known.add(found)
                        new.append(found)
                        yield Seen(found, fact, level, at)
            edge = new
