"""What a node knows of the guards: how far each is, and what each has ended.

A guard says a word twice a second. While the broker does not confirm them, it allows nothing new; what it allowed before, its broker goes on
remembering. So one that has been silent for long enough is *fenced* as soon as another guard has said that it closed what the silent one left behind
(`tdn.guard.others`): whatever it missed, it lets nobody do. That word may have been on its way for long, and the silent one may have been back meanwhile:
it counts when it follows the last that was heard of the silent one, not when it comes after it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tdn.bus import topology
from tdn.bus.connection import Channel, Delivery
from tdn.protocol.names import Name, Role
from tdn.rules import principals
from tdn.rules.state import State

logger = logging.getLogger(__name__)

#: A guard whose words were not confirmed for three seconds allows nothing. Twice that, for words that were on their way.
SILENT_SECONDS = 6.0
#: Records whose ends are remembered, of every guard.
_REMEMBERED = 10_000
#: Processes of one guard that are told apart, on one connection.
_PROCESSES = 100


@dataclass(slots=True)
class _Guard:
    heard: float
    applied: int = 0
    #: Silent guards that it has closed everything behind, by its last word, with the last word of each that it had heard before.
    cleared: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)
    #: The record up to which it had read the log when it said that.
    read: int = 0
    #: The number of the last word of each of its processes, by when that began, in the order in which they were heard; on this connection.
    words: dict[int, int] = field(default_factory=dict)
    #: What was ended for a record, by its number.
    ended: OrderedDict[int, Mapping[str, Any]] = field(default_factory=OrderedDict)

    def note(self, start: int, number: int) -> bool:
        """Whether this word is later than all that was heard of the same process."""
        before = self.words.get(start)
        self.words[start] = number if before is None else max(before, number)
        if len(self.words) > _PROCESSES:
            del self.words[next(iter(self.words))]
        return before is None or number > before

    @property
    def last(self) -> tuple[int, int] | None:
        """The last of its words; None when one cannot say, because its clock was set back, or words of a process come after those of the next."""
        if not self.words:
            return None
        start = next(reversed(self.words))
        return (start, self.words[start]) if start == max(self.words) else None


@dataclass(frozen=True, slots=True)
class Settled:
    """What the guards have made of a record."""

    cut: Mapping[str, Any]
    guards: tuple[str, ...]
    fenced: tuple[str, ...]
    unconfirmed: tuple[str, ...]


class Guards:
    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._known: dict[str, _Guard] = {}
        self._news = asyncio.Event()
        #: Guards that were never heard of get their chance from here on.
        self._since = clock()
        #: Of guards that are silent: a record that this node has appended since they are.
        self._silent_at: dict[str, int] = {}

    async def listen(self, channel: Channel, node_id: str) -> None:
        self._since = self._clock()
        # What was said between two connections was not heard: a later word may have been among it.
        self._silent_at.clear()
        for guard in self._known.values():
            guard.words.clear()
        queue = await topology.declare_guards_queue(channel, node_id)
        await channel.consume(queue, self.hear, no_ack=True)

    def hear(self, delivery: Delivery) -> None:
        """The broker vouches for who wrote it: it lets nobody name another's login."""
        name = Name.parse(delivery.login or "")
        if name is None or name.role is not Role.GUARD:
            return
        try:
            word = json.loads(delivery.body)
            guard = self._known.setdefault(name.id, _Guard(self._clock()))
            guard.heard = self._clock()
            self._silent_at.pop(name.id, None)
            guard.applied = max(guard.applied, int(word["applied"]))
            start, number = _read_mark(word.get("word", (0, 0)))
            read, cleared = int(word["store"]["log"]) if "store" in word else 0, _read_cleared(word.get("cleared", {}))
            if guard.note(start, number) or not start:
                guard.read, guard.cleared = read, cleared
            for one in ([word] if "seq" in word else []) + word.get("ended", []):
                guard.ended.setdefault(int(one["seq"]), one["cut"])
                if len(guard.ended) > _REMEMBERED:
                    guard.ended.popitem(last=False)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("a word of guard %s cannot be read: %s", name.id, error)
        self._news.set()
        self._news = asyncio.Event()

    def silent(self) -> dict[str, float]:
        """Guards that are silent, and when each was last heard."""
        return {name: self._heard(name) for name in self._enrolled() if self._is_silent(name)}

    def note_appended(self, silent: Mapping[str, float], seq: int) -> None:
        """This node has appended a record, and before it began to, these were silent: who has read the record speaks after that."""
        for name, heard in silent.items():
            if self._heard(name) == heard:
                self._silent_at.setdefault(name, seq)

    def standing(self) -> dict[str, int]:
        """How many guards are heard, and how many allow nothing because they are silent."""
        silent = [self._is_silent(name) for name in self._enrolled()]
        return {"heard": silent.count(False), "fenced": silent.count(True)}

    async def applied(self, seq: int, *, within_seconds: float) -> None:
        """Return when every guard that allows anything knows a record; or when the time is up."""
        await self._until(lambda name: self._is_silent(name) or self._is(name, lambda guard: guard.applied >= seq), within_seconds)

    async def settled(self, seq: int, *, within_seconds: float) -> Settled:
        """What was ended for a record, once every guard is done with it or fenced; or when the time is up."""
        await self._until(lambda name: self._is_fenced(name) or self._is(name, lambda guard: seq in guard.ended), within_seconds)
        enrolled = self._enrolled()
        done = tuple(name for name in enrolled if name in self._known and seq in self._known[name].ended)
        fenced = tuple(name for name in enrolled if name not in done and self._is_fenced(name))
        connections: set[str] = set()
        queues = bindings = 0
        for name in done:
            cut = self._known[name].ended[seq]
            connections |= set(cut["connections"])
            queues += cut["queues"]
            bindings += cut["bindings"]
        return Settled(
            {"connections": sorted(connections)[:1000], "queues": queues, "bindings": bindings},
            done,
            fenced,
            tuple(name for name in enrolled if name not in done and name not in fenced),
        )

    async def _until(self, done: Callable[[str], bool], within_seconds: float) -> None:
        deadline = self._clock() + within_seconds
        while not all(map(done, self._enrolled())):
            left = deadline - self._clock()
            if left <= 0:
                return
            try:
                # Now and then without news too: a guard may have become silent.
                async with asyncio.timeout(min(left, 0.5)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _is(self, name: str, done: Callable[[_Guard], bool]) -> bool:
        return name in self._known and done(self._known[name])

    def _is_silent(self, name: str) -> bool:
        return self._clock() - self._heard(name) > SILENT_SECONDS

    def _is_fenced(self, name: str) -> bool:
        """By a word that came when this node, too, had heard nothing of it for so long: an earlier one may be of an earlier silence."""
        if not self._is_silent(name):
            return False
        late = self._heard(name) + SILENT_SECONDS
        others = [self._known[other] for other in self._enrolled() if other in self._known]
        return any(name in other.cleared and other.heard > late and self._follows(other, name) for other in others)

    def _follows(self, other: _Guard, name: str) -> bool:
        """Whether a guard closed what the silent one left behind after that one's last word. Either it had heard all of them that this node has heard; or it
        says so having read a record that this node appended when the other was silent, which also holds for one of which no word is known."""
        closed_after = other.cleared[name]
        last = self._known[name].last if name in self._known else None
        if last is not None and closed_after is not None and closed_after[0] == last[0] and closed_after[1] >= last[1]:
            return True
        return name in self._silent_at and other.read >= self._silent_at[name]

    def _heard(self, name: str) -> float:
        # No earlier than this connection: over the last one nothing may have been heard for long.
        return max(self._since, self._known[name].heard) if name in self._known else self._since

    def _enrolled(self) -> list[str]:
        return principals.enrolled(self._state, Role.GUARD)


def _read_cleared(told: Any) -> dict[str, tuple[int, int] | None]:
    if not isinstance(told, dict):
        # Of a guard that does not number its words yet.
        return dict.fromkeys(map(str, told))
    return {name: None if last is None else _read_mark(last) for name, last in told.items()}


def _read_mark(told: Any) -> tuple[int, int]:
    start, number = map(int, told)
    return start, number
