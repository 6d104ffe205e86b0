"""Ending at the broker what the log has ended (T21): connections that hold a remembered right, queues and bindings of lost subscriptions.

RabbitMQ asks once and remembers the answer as long as a channel lasts. So whoever may no longer publish has its connections closed; whoever
may no longer subscribe has its queue deleted, or the one binding, and keeps its connection. What is ended is found from what a record
wrote, from this guard's memory of whom it allowed what, and from what is really there in the broker. Everything here can be repeated, and is
until it is done: nobody is told before that.

A node that is behind, or dies at its work, leaves what no record ends any more. So all that is in the broker is held against the log now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tdn.errors import BrokerUnavailable
from tdn.guard import decisions
from tdn.guard.decisions import Knowledge
from tdn.guard.management import Management
from tdn.guard.memory import Remembered
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.rules import feeds, principals
from tdn.rules.feeds import Feed, Touched
from tdn.rules.sight import LIVE
from tdn.rules.state import State

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: What those are told whose connections are closed because they lost a right on a topic. Others of their rights are as before.
RIGHT_ENDED = "a right to publish has ended; connect again"

#: And those at a broker whose guard is silent: what they were allowed there, no guard that can be asked knows.
GUARD_SILENT = "the guard of this broker is silent; connect to another"

#: And those whose certificate has run out while they were connected.
CERTIFICATE_EXPIRED = "the certificate has expired"

#: Between two tries of a step, at first and at most.
_AGAIN_SECONDS = 0.3
_AGAIN_MOST_SECONDS = 5.0
#: How long after the first look at somebody's connections the second is taken: one that was just being opened at the first look shows up by then.
SECOND_LOOK_SECONDS = 0.15
#: Looks at connections behind a silent guard, until none is there.
_LOOKS = 20
#: Steps of one record at once, and bindings of one topic: one that waits for a broker keeps no other waiting. And of all that failed, those that are tried again at once.
_STEPS_AT_ONCE = 16
_RETRIES_AT_ONCE = 8
#: Work between which others have their turn.
_PORTION = 200


@dataclass(slots=True)
class Cut:
    """What was ended."""

    logins: set[str] = field(default_factory=set)
    queues: int = 0
    bindings: int = 0

    def take(self, other: Cut) -> None:
        """Count what another counted too."""
        self.logins |= other.logins
        self.queues += other.queues
        self.bindings += other.bindings

    def as_object(self) -> dict[str, object]:
        named = sorted({name.principal for login in self.logins if (name := Name.parse(login)) is not None})
        return {"connections": named[:1000], "queues": self.queues, "bindings": self.bindings}

    def __bool__(self) -> bool:
        return bool(self.logins or self.queues or self.bindings)


class Enforcer:
    def __init__(
        self,
        state: State,
        memory: Remembered,
        management: Management,
        know: Callable[[], Knowledge],
        note: Callable[[str, str, str | None, str], None],
        read_to_end: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._memory = memory
        self._management = management
        self._know = know
        #: Takes note of what is ended: login or entity, resource, topic, why.
        self._note = note
        #: Returns when all that the log holds by now is in the state.
        self._read_to_end = read_to_end
        self._retrying = asyncio.Semaphore(_RETRIES_AT_ONCE)
        #: How many steps were done that had failed before.
        self._mended = 0
        #: What the last look through the broker found to rest on nothing: queues, and bindings of a queue to a topic.
        self._doubted: set[tuple[str, ...]] = set()

    async def settle(self, touched: Touched, ended_logins: Iterable[tuple[str, str]]) -> Cut:
        """End what some writes may have ended. Logins that are over come with the reason that they are told."""
        cut = Cut()
        closing = dict(ended_logins)
        for entity in touched.entities:
            login = self._expired(entity)
            if login is not None:
                closing.setdefault(login, CERTIFICATE_EXPIRED)
        topics = await self._topics(touched)
        for topic in topics:
            for login in self._lost_publishers(topic):
                closing.setdefault(login, RIGHT_ENDED)
        cut.logins |= closing.keys()
        # Publishers and readers at the same time: both go on meanwhile.
        async with asyncio.TaskGroup() as closing_all:
            for login, reason in closing.items():
                closing_all.create_task(self._close(login, reason))
            await self._each(self._steps_for_readers(touched, topics, cut))
        return cut

    def _steps_for_readers(self, touched: Touched, topics: Sequence[str], cut: Cut) -> Iterator[Callable[[], Awaitable[None]]]:
        for topic in topics:
            if self._state.get("opened", topic) is not None:
                yield partial(self._settle_topic, topic, cut)
        for subject, entity, queue in touched.stale:
            yield partial(self._drop, names.feed_queue(entity, subject, queue), "is over", cut)
        for subject, entity in touched.feeds:
            yield partial(self._settle_feed, subject, entity, cut)

    async def settle_all(self, ended_logins: Mapping[str, str]) -> Cut:
        """Hold everything that is in the broker against the log: after a start, when it is not known what was missed."""
        cut = Cut()
        lost = dict(ended_logins)
        for number, topic in enumerate(self._memory.all_topics()):
            lost = dict.fromkeys(self._lost_publishers(topic), RIGHT_ENDED) | lost
            if number % _PORTION == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*(self._close(login, reason) for login, reason in lost.items()))
        cut.logins |= lost.keys()
        cut.take(await self.look_through(at_once=True))
        topics = [exchange for exchange in await self._management.exchanges() if names.is_topic(exchange)]
        await self._all(partial(self._settle_topic, topic, cut) for topic in topics)
        return cut

    async def look_through(self, *, at_once: bool) -> Cut:
        """Hold the queues of subscriptions, their bindings and topics' exchanges against the log.

        What rests on nothing is ended at once where the log says that it is over, or after a start if the log knows it. Otherwise it is ended if the next
        look finds it again: a broker that was away gives an old end of the log for the seconds in which its copy grows (1.2 GB: 4.5 s), and what others
        subscribed to meanwhile is not known. BrokerUnavailable if some of it could not be ended, after all else was.
        """
        cut, doubted, failures = Cut(), set[tuple[str, ...]](), list[BrokerUnavailable]()

        def may_end(*what: str, known: bool = True) -> bool:
            doubted.add(what)
            return (at_once and known) or what in self._doubted

        async def attempt(steps: Iterator[Callable[[], Awaitable[object]]]) -> None:
            try:
                await self._all(steps)
            except BrokerUnavailable as error:
                failures.append(error)

        async def hold(queue: str, words: tuple[str, str, str], bound: Sequence[tuple[str, str]] | None) -> None:
            feed = self._feed(*words)
            if feed is not None and feeds.lasts(self._state, feed, self._know().now):
                if bound is not None:
                    await self._unbind(words, bound, cut, partial(may_end, queue))
            elif feeds.is_stale(self._state, *words) or may_end(queue, known=feed is not None):
                await self._drop(queue, "rests on nothing", cut)

        queues = await self._management.queues()
        topics = [exchange for exchange in await self._management.exchanges() if names.is_topic(exchange)]
        named = [(queue, found) for queue in queues if (found := names.read_feed_queue(queue)) is not None]
        for portion in _portions(named):
            bound = {}
            for queue, words in portion:
                feed = self._feed(*words)
                if feed is not None and feed.tree:
                    bound[queue] = await self._management.bindings_to(queue)
            # What is there now was made for a record that is in the log by now.
            await self._read_to_end()
            await attempt(partial(hold, queue, words, bound.get(queue)) for queue, words in portion)
        # A topic that has ended never comes back, however much of the log is not read yet.
        for part in _portions(topics):
            await asyncio.sleep(0)
            await attempt(partial(self._management.delete_exchange, topic) for topic in part if self._is_over(topic))
        self._doubted = doubted
        if failures:
            raise failures[-1]
        return cut

    async def close_all(self) -> None:
        """Close every entity's connections: nobody knows what they were allowed. By name, for all whom the log knows: the broker's list shows
        a connection some seconds after it was opened. Once is enough, because none is opened without a guard."""
        after, last = f"{Role.ENTITY}:", f"{Role.ENTITY}:~"
        while portion := list(self._state.scan("principal", after=after, up_to=last, limit=_PORTION)):
            # Former keys too: the record that ended one may be before the snapshot that this guard began with.
            keys = [
                (principal.partition(":")[2], key)
                for principal, fact in portion
                for key in dict.fromkeys([fact["key"], *fact["superseded"], *fact["revoked"]])
                if key
            ]
            logins = [str(Name(Role.ENTITY, entity, key)) for entity, key in keys]
            await asyncio.gather(*(self._management.close_connections(login, RIGHT_ENDED) for login in logins))
            after = portion[-1][0]

    async def clear(self, spared: frozenset[str]) -> None:
        """Close every entity's connections at all brokers but some, and whatever else may no longer log in there. Returns when a look shows none:
        nobody gets in meanwhile, because no guard answers those brokers."""
        for _ in range(_LOOKS):
            open_there = {login for login, broker in await self._management.connections() if broker not in spared}
            left = [login for login in open_there if self._is_cleared(login)]
            if not left:
                return
            for login in left:
                self._note(login, "connections", None, GUARD_SILENT)
            await asyncio.gather(*(self._management.close_connections(login, GUARD_SILENT) for login in left))
            await asyncio.sleep(SECOND_LOOK_SECONDS)
        raise BrokerUnavailable("connections at a broker whose guard is silent are there again and again")

    def _is_cleared(self, login: str) -> bool:
        name = Name.parse(login)
        return name is None or name.role is Role.ENTITY or not decisions.may_log_in(self._know(), login).allowed

    async def _topics(self, touched: Touched) -> list[str]:
        """All topics that are touched and in use: opened, or published to."""
        found: dict[str, None] = {}
        for number, topic in enumerate(feeds.topics_touched(self._state, touched)):
            found[topic] = None
            if number % _PORTION == _PORTION - 1:
                await asyncio.sleep(0)
        for entity in sorted(touched.certified):
            # Who works for another institution now may have lost what it was allowed anywhere.
            key = (self._state.get("principal", f"{Role.ENTITY}:{entity}") or {}).get("key")
            if key:
                found |= dict.fromkeys(self._memory.topics_of(str(Name(Role.ENTITY, entity, key))))
        return list(found)

    def _expired(self, entity: str) -> str | None:
        """The login of an entity whose certificate has run out: the broker looks at it once, when it connects."""
        principal = self._state.get("principal", f"{Role.ENTITY}:{entity}")
        if principal is None or not principals.has_expired(self._state, f"{Role.ENTITY}:{entity}", self._know().now):
            return None
        return str(Name(Role.ENTITY, entity, principal["key"]))

    def _lost_publishers(self, topic: str) -> list[str]:
        know = self._know()
        return [login for login in self._memory.publishers(topic) if not decisions.may_publish(know, login, topic).allowed]

    async def _close(self, login: str, reason: str) -> None:
        """Close, and look once more: a connection that was under way at the first look shows up by the second."""
        for look in range(2):
            moment = self._memory.mark()
            await self._try(partial(self._management.close_connections, login, reason))
            self._memory.forget(login, until=moment)
            if not look:
                self._note(login, "connections", None, reason)
                await asyncio.sleep(SECOND_LOOK_SECONDS)

    async def _settle_topic(self, topic: str, cut: Cut) -> None:
        """Delete what a topic's exchange is bound to and must not be, several at once; and the exchange with its topic."""
        bound = await self._management.bindings_from(topic)
        await self._all(partial(self._settle_binding, topic, queue, binding, cut) for queue, binding in bound)
        if self._is_over(topic):
            await self._management.delete_exchange(topic)

    async def _settle_binding(self, topic: str, queue: str, binding: str, cut: Cut) -> None:
        now = self._know().now
        named = names.read_feed_queue(queue)
        feed = self._feed(*named) if named is not None else None
        if feed is None:
            # One that nothing is known of may be of a record that this guard has not read yet: it is left to the next look.
            if named is None or feeds.is_stale(self._state, *named):
                await self._drop(queue, f"may not read {topic}", cut)
        elif feed.single and not feeds.gets(self._state, feed, topic, now):
            await self._drop(queue, f"may not read {topic}", cut)
        elif not feeds.gets(self._state, feed, topic, now) and await self._management.unbind(topic, queue, binding):
            cut.bindings += 1
            self._note(feed.entity, f"binding of {queue}", topic, "the subscription does not reach this topic any more")

    def _is_over(self, topic: str) -> bool:
        """By the log alone, whose time may be behind this guard's clock: until then it may be renewed. Of one that is not known here yet, nothing is over."""
        fact = self._state.get("topic", topic)
        return fact is not None and fact["state"] != LIVE

    async def _settle_feed(self, subject: str, entity: str, cut: Cut) -> None:
        """Delete the bindings of a subscription to topics that it does not reach, or no longer."""
        feed = feeds.feed_of(self._state, subject, entity)
        if feed is not None and feed.tree:
            bound = await self._management.bindings_to(names.feed_queue(entity, subject, feed.queue))
            await self._unbind((entity, subject, feed.queue), bound, cut)

    async def _unbind(
        self, words: tuple[str, str, str], bound: Sequence[tuple[str, str]], cut: Cut, may_end: Callable[[str], bool] = lambda topic: True
    ) -> None:
        queue = names.feed_queue(*words)
        for number, (topic, binding) in enumerate(bound):
            if number % _PORTION == _PORTION - 1:
                await asyncio.sleep(0)
            # As it is now: it may reach more than when the broker was asked.
            feed = self._feed(*words)
            if feed is None:
                return
            is_lost = not feeds.gets(self._state, feed, topic, self._know().now) and may_end(topic)
            if is_lost and await self._management.unbind(topic, queue, binding):
                cut.bindings += 1

    async def _drop(self, queue: str, why: str, cut: Cut) -> None:
        if await self._management.delete_queue(queue):
            cut.queues += 1
            named = names.read_feed_queue(queue)
            self._note(named[0] if named else "", queue, named[1] if named else None, f"a subscription that {why}")

    def _feed(self, entity: str, subject: str, secret: str) -> Feed | None:
        feed = feeds.feed_of(self._state, subject, entity)
        return feed if feed is not None and feed.queue == secret else None

    async def _each(self, steps: Iterator[Callable[[], Awaitable[None]]]) -> None:
        await self._all(partial(self._try, step) for step in steps)

    async def _all(self, steps: Iterator[Callable[[], Awaitable[object]]]) -> None:
        """Some at once. BrokerUnavailable if one cannot be done, after all others were."""
        failures: list[BrokerUnavailable] = []

        async def work() -> None:
            for number, step in enumerate(steps):
                if number % _PORTION == _PORTION - 1:
                    await asyncio.sleep(0)
                try:
                    await step()
                except BrokerUnavailable as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(_STEPS_AT_ONCE):
                group.create_task(work())
        if failures:
            raise failures[-1]

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """Until it is done, whatever is in its way: what a broker would not end while others of its cluster were away would otherwise be there again with
        them, and be said to be gone. Where nothing can be ended for hours, a few are tried at a time. As soon as one of
        them is done, the others are tried without a pause: they would otherwise take as long again."""
        mended = self._mended
        if await self._done(step):
            return
        pause = _AGAIN_SECONDS
        while True:
            async with self._retrying:
                if mended == self._mended:
                    await asyncio.sleep(pause)
                mended = self._mended
                if await self._done(step):
                    self._mended += 1
                    return
            pause = min(2 * pause, _AGAIN_MOST_SECONDS)

    async def _done(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except BrokerUnavailable as error:
            logger.warning("could not end something at the broker, and will try again: %s", error)
            return False
        except Exception:
            logger.exception("could not end something at the broker, and will try again")
            return False
        return True


def _portions(things: Sequence[T]) -> Iterator[Sequence[T]]:
    return (things[begin : begin + _PORTION] for begin in range(0, len(things), _PORTION))
