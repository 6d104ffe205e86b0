"""What a guard knows of the other guards, and what it does in place of one that is silent (T21).

A guard ends what it has allowed itself; what another allowed it does not know, and the broker that asked that one remembers it for as long as
channels live. So the guards hear each other's words, each of which says which broker asks its guard. When one has been silent for longer than its
yes counts, the others close the connections of all entities at brokers that no guard speaks for, and say so. Nobody gets in there until its
guard is back; whoever was there connects to another broker. A node calls a silent guard fenced when it has heard this.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tdn.bus import topology
from tdn.bus.connection import Channel, Delivery
from tdn.errors import TdnError
from tdn.protocol.names import Name, Role
from tdn.rules import principals
from tdn.rules.state import State

logger = logging.getLogger(__name__)

#: Beats without a word after which a guard is silent, 5 s: a guard allows nothing after 3 s without a confirmed word, and some words are on their
#: way. Less than the 6 s of the nodes, so that they find it done. Beats of our own and not seconds, so that whoever was paused itself, with the
#: others' words waiting unread, takes nobody to be silent.
SILENT_BEATS = 10


@dataclass(slots=True)
class _Other:
    missed: int = 0
    #: The broker that asks it, as the brokers call it, once it has said so.
    broker: str | None = None
    #: Up to which record it was done with the log, by its last word.
    applied: int = 0
    #: Whether what it allowed has been closed, in this silence.
    cleared: bool = False

    @property
    def silent(self) -> bool:
        return self.missed >= SILENT_BEATS


class Others:
    def __init__(
        self,
        own: str,
        state: State,
        *,
        sure: Callable[[], bool],
        channel: Callable[[], Awaitable[Channel]],
        own_broker: Callable[[], Awaitable[str]],
        clear: Callable[[frozenset[str]], Awaitable[None]],
        news: Callable[[], None],
    ) -> None:
        self._own = own
        self._state = state
        #: Whether the brokers confirm what this guard says. While they do not, as when all of them are short of memory, silence says nothing of others.
        self._sure = sure
        #: A new channel of the guard's connection, as it is now.
        self._open = channel
        self._ask_own_broker = own_broker
        #: Closes the connections of entities at all brokers but these, and returns when there are none.
        self._clear = clear
        self._news = news
        self._broker: str | None = None
        self._heard_by: Channel | None = None
        self._known: dict[str, _Other] = {}
        #: The last word of each that was heard: of which process of it, and its number there.
        self._last: dict[str, list[int]] = {}

    def word(self) -> dict[str, object]:
        """What is said of it to the others, and to the nodes."""
        said: dict[str, object] = {} if self._broker is None else {"broker": self._broker}
        # With its last word before the closing: none of them came after it. A node that has heard a later one, or heard it while this guard's own words
        # were on their way, knows that what it allowed since is still open.
        cleared = {name: self._last.get(name) for name, other in sorted(self._known.items()) if other.cleared}
        return {**said, "cleared": cleared} if cleared and self._hears else said

    def hear(self, delivery: Delivery) -> None:
        """The broker vouches for who wrote it."""
        name = Name.parse(delivery.login or "")
        if name is None or name.role is not Role.GUARD or name.id == self._own:
            return
        try:
            word = json.loads(delivery.body)
            broker, applied = word.get("broker"), word.get("applied")
            if "word" in word:
                start, number = map(int, word["word"])
                self._last[name.id] = [start, number]
        except (ValueError, AttributeError, TypeError, OverflowError) as error:
            logger.warning("a word of guard %s cannot be read: %s", name.id, error)
            broker = applied = None
        self._known[name.id] = _Other(
            broker=broker if isinstance(broker, str) else None, applied=applied if isinstance(applied, int) else 0
        )

    @property
    def applied(self) -> dict[str, int]:
        """How far each of the others has read the log, as far as it was heard: what is trimmed must not be what one of them still needs."""
        return {name: other.applied for name, other in self._known.items()}

    async def beat(self) -> None:
        """Count one beat of silence of all others, and close what those who are silent have left behind."""
        others = [name for name in principals.enrolled(self._state, Role.GUARD) if name != self._own]
        if not others:
            return
        if self._broker is None:
            self._broker = await self._ask_own_broker()
        if not self._sure():
            self._known.clear()
            return
        if not self._hears:
            await self._listen()
        self._known = {name: self._known.get(name, _Other()) for name in others}
        for other in self._known.values():
            other.missed += 1
        silent = [name for name, other in self._known.items() if other.silent and not other.cleared]
        if silent:
            await self._close_behind(silent)

    async def _listen(self) -> None:
        """On a channel of its own; what was said before it was open counts neither way."""
        self._known.clear()
        channel = await self._open()
        queue = await topology.declare_guards_queue(channel, self._own)
        channel.on_cancelled(self._deafen)
        await channel.consume(queue, self.hear, no_ack=True)
        self._heard_by = channel

    def _deafen(self) -> None:
        self._heard_by = None

    async def _close_behind(self, silent: list[str]) -> None:
        spoken_for = {self._broker} | {other.broker for other in self._known.values() if not other.silent}
        spared = frozenset(broker for broker in spoken_for if broker is not None)
        if len(spared) < len(spoken_for):
            # One that speaks and does not say for which broker: closing there would go on for ever, since it lets everybody in again.
            return
        logger.warning(
            "guard %s hears nothing of %s: entities are cut off from all brokers but %s",
            self._own,
            ", ".join(silent),
            ", ".join(sorted(spared)),
        )
        await self._clear(spared)
        for name in silent:
            # Unless it has spoken meanwhile: it may have allowed something since.
            self._known[name].cleared = self._known[name].silent
        self._news()

    @property
    def _hears(self) -> bool:
        return self._heard_by is not None and not self._heard_by.closed.done() and self._sure()


async def watch(others: Others, *, beat_seconds: float) -> None:
    while True:
        await asyncio.sleep(beat_seconds)
        try:
            await others.beat()
        except (TdnError, TimeoutError) as error:
            # The broker is away, or no node has made the exchange yet.
            logger.debug("the other guards cannot be watched at the moment: %s", error)
