"""Before a node appends on a new connection, it hears whether anybody has more of the log than the broker.

A node that has compared says so to every newcomer, who then goes on at once: the broker has not been gone since. Only when nobody says so
are all waited for that ticked lately, for some seconds at most. Words go over an exchange of the nodes alone, and the broker vouches for
their writers. What is decided is in `heads`; this is the hearing, the saying and the putting back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta

from tdn.bus import topology
from tdn.bus.connection import Channel, Connection, Delivery
from tdn.bus.log import Appender
from tdn.errors import BrokerUnavailable, LogDiverged, TdnError
from tdn.node.heads import Go, Pass, Restore, Stop, Wait, Word, next_step, read_body, read_word
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.protocol.times import parse_time
from tdn.replica.replica import Replica
from tdn.rules import principals
from tdn.rules.state import State
from tdn.trust.replay import CLOCK_SKEW

logger = logging.getLogger(__name__)

#: Between two words of a node that compares, and how long one counts: who has said nothing for so long is gone.
_SAY_SECONDS = 0.5
_FRESH_SECONDS = 5.0
#: How often the step is thought over without news: the log may have grown.
_LOOK_SECONDS = 0.1
#: A log that does not grow for so long although somebody says that it will: connect and compare anew.
_STUCK_SECONDS = 30.0
#: Records that are put back and not confirmed yet, at most.
_WINDOW = 500
#: A node whose last tick is so much older than the latest of all was not there when the log ended, and has nothing that others have not.
_LATELY = timedelta(seconds=60) + CLOCK_SKEW


def expected(state: State, enrolments: Sequence[str]) -> frozenset[str]:
    """The principals whose words are waited for: nodes that ticked shortly before the log's end, and the guards, which may have read further.

    A store without a network knows nobody; then it is all whom the operator's statements at hand enrol.
    """
    if state.get("network", "network") is None:
        return frozenset(enrolments)
    ticks = {name: parse_time(fact["at"]) for name, fact in state.all("tick")}
    latest = max(ticks.values(), default=None)
    nodes = [
        name for name in principals.enrolled(state, Role.NODE) if name in ticks and latest and latest - ticks[name] <= _LATELY
    ]
    guards = principals.enrolled(state, Role.GUARD)
    return frozenset([*(f"{Role.NODE}:{name}" for name in nodes), *(f"{Role.GUARD}:{name}" for name in guards)])


class Comparing:
    def __init__(
        self,
        connection: Connection,
        speaking: Channel,
        replica: Replica,
        name: Name,
        wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._speaking = speaking
        #: Fails when it hears nobody any more, or nobody hears it.
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._replica = replica
        self._name = name
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._settled = False
        self._heard: dict[str, tuple[float, Word]] = {}
        self._said: tuple[float, Word | None] = (float("-inf"), None)
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, connection: Connection, replica: Replica, name: Name, *, wait_seconds: float) -> Comparing:
        """Listen from now on: what others say while this node still reads the log counts too.

        Nothing is confirmed here: a word that did not get out is said again half a second later. And RabbitMQ refuses words whenever a broker with
        somebody's queue for them has hung and is declared dead, which would end the channel.
        """
        listening, speaking = await connection.channel(), await connection.channel()
        comparing = cls(connection, speaking, replica, name, wait_seconds)
        for channel in (listening, speaking):
            channel.closed.add_done_callback(lambda closed: comparing._break(closed.result()))
        listening.on_cancelled(lambda: comparing._break(BrokerUnavailable("the broker ended what this node hears the others by")))
        queue = await topology.declare_heads_queue(listening, name.id)
        await listening.consume(queue, comparing.hear, no_ack=True)
        return comparing

    def _break(self, error: TdnError) -> None:
        """Who hears nobody would go on as if nobody were there, or leave newcomers without an answer: rather connect anew."""
        if not self.broken.done():
            self.broken.set_exception(error)
            # Whoever waits for it is told; when nobody does, the node is stopping.
            self.broken.exception()
        self._news.set()

    def hear(self, delivery: Delivery) -> None:
        """The broker vouches for who wrote it: it lets nobody name another's login, and the guards let only nodes and guards write here."""
        name = Name.parse(delivery.login or "")
        if name is None or name.role not in (Role.NODE, Role.GUARD) or name.principal == self._name.principal:
            return
        if self._settled and name.role is Role.GUARD:
            return
        try:
            told = read_body(delivery.body)
            if name.role is Role.GUARD:
                # Guards say other things too; how far their store goes only when they know where the log ends.
                told = told.get("store")
                if told is None:
                    return
            word = read_word(name.principal, told)
        except (ValueError, AttributeError) as error:
            logger.warning("a word of %s about its store cannot be read: %s", name.principal, error)
            return
        if self._settled:
            if not word.settled:
                self._publish(self._mine())
            return
        if name.principal not in self._heard:
            # It has just come, and has not heard from us.
            self._said = (float("-inf"), None)
        self._heard[name.principal] = (self._clock(), word)
        self._news.set()

    async def settle(self, awaited: Callable[[], frozenset[str]]) -> None:
        """Return when this node may append; LogDiverged when stores disagree, BrokerUnavailable when they cannot be compared."""
        deadline = self._clock() + self._wait_seconds
        seen, moved = (-1, -1), self._clock()
        told = ""
        while True:
            self._news.clear()
            if self.broken.done():
                self.broken.result()
            self._say()
            fresh = [word for at, word in self._heard.values() if self._clock() - at < _FRESH_SECONDS]
            silent = awaited() - {self._name.principal} - {word.who for word in fresh}
            late = self._clock() >= deadline
            match next_step(self._mine(), fresh, () if late else silent, self._replica.records.head):
                case Go():
                    if late and silent:
                        logger.warning("node %s goes on without having heard from %s", self._name.id, ", ".join(sorted(silent)))
                    self._settled = True
                    self._publish(self._mine())
                    return
                case Stop(why):
                    await self._say_for_certain(self._mine(torn=True))
                    raise LogDiverged(
                        f"{why}; nobody appends before an operator has chosen: see docs/operations.md, When a process stops by itself"
                    )
                case Restore(log):
                    await self._restore(log, self._portions())
                case Pass(log, records):
                    await self._restore(log, iter([list(records)]))
                case Wait(why, for_words):
                    place = (self._replica.found, self._replica.position[0])
                    if for_words or place != seen:
                        seen, moved = place, self._clock()
                    elif self._clock() - moved > _STUCK_SECONDS:
                        raise BrokerUnavailable(f"{why}, and the log does not grow; comparing anew")
                    if why != told:
                        logger.info("node %s does not append yet: %s", self._name.id, why)
                        told = why
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await self._news.wait()

    def _mine(self, *, torn: bool = False) -> Word:
        seq, head = self._replica.position
        return Word(self._name.principal, seq, head, self._replica.found, self._settled, torn)

    def _say(self) -> None:
        """Now and then, and whenever there is something new to say."""
        at, before = self._said
        if self._mine() != before or self._clock() - at >= _SAY_SECONDS:
            self._publish(self._mine())

    def _publish(self, word: Word) -> None:
        self._said = (self._clock(), word)
        self._put(self._speaking, word)

    async def _say_for_certain(self, word: Word) -> None:
        await self._put(await self._connection.channel(confirms=True), word)

    def _put(self, channel: Channel, word: Word) -> asyncio.Future[None]:
        return channel.publish(names.HEADS, "", json.dumps(word.as_object()).encode(), login=str(self._name))

    # --- putting back ---

    def _portions(self) -> Iterator[list[bytes]]:
        """What this store has and the log has not, as it was read."""
        at = self._replica.found
        while kept := self._replica.records.after(at, _WINDOW):
            yield [one.raw for one in kept]
            at = kept[-1].seq
        if at < self._replica.position[0]:
            raise LogDiverged(
                f"the log ends at record {self._replica.found}, and this store does not keep record {at + 1}: the log cannot be put back "
                "from it; see docs/operations.md, When a process stops by itself"
            )

    async def _restore(self, log: int, portions: Iterator[list[bytes]]) -> None:
        """Append what the log lacks after record `log`, in order; unless somebody else does so at this moment, or has."""
        async with self._alone() as alone:
            if not alone:
                await asyncio.sleep(_LOOK_SECONDS)
                return
            await self._replica.read_to_end(self._connection)
            if self._replica.found != log:
                return
            appender = await Appender.open(self._connection)
            last = log
            for portion in portions:
                await asyncio.gather(*[appender.append(raw) for raw in portion])
                last += len(portion)
                self._say()
            logger.warning("the log ended at record %d; node %s has put back those up to %d", log, self._name.id, last)
            deadline = self._clock() + _STUCK_SECONDS
            while self._replica.found < last:
                if self._clock() > deadline:
                    raise BrokerUnavailable("the log does not show what was put back")
                await self._replica.progress(within_seconds=_SAY_SECONDS)
                self._say()

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[bool]:
        """Whether this connection alone puts something back. Two at once would mix their records, and the log would be neither's."""
        channel = await self._connection.channel()
        try:
            await channel.declare_queue(names.RESTORING, exclusive=True)
        except BrokerUnavailable:
            if self._connection.closed.done():
                raise
            yield False
            return
        try:
            yield True
            await channel.delete_queue(names.RESTORING)
        finally:
            await channel.close()
