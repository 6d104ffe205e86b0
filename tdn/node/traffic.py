"""Making what topics' messages need at the broker: exchanges, queues and bindings, as the log says. Nodes make, guards end.

Everything can be made again, by any node, as often as it takes. Before anybody hears that something is ready, every guard that allows anything
has applied what it rests on; and what was lost meanwhile is ended again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from tdn.bus import topology
from tdn.bus.connection import Channel, Connection
from tdn.errors import BrokerUnavailable, NoNodeAnswered, Refused
from tdn.node.guards import Guards
from tdn.protocol import names
from tdn.replica.replica import Applied
from tdn.rules import feeds
from tdn.rules.feeds import Feed
from tdn.rules.rights import Rights, topics_in
from tdn.rules.sight import live
from tdn.rules.state import State
from tdn.trust.envelope import Envelope
from tdn.trust.grants import PUBLISH

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long it is tried to make something, for who asks and for a change that was decided, and the pause between two tries. A guard that has just
#: started lets nobody make anything for a moment.
_READY_SECONDS = 2.0
_AFTER_SECONDS = 8.0
_PAUSE_SECONDS = 0.2
#: How long a guard is waited for before something is called ready all the same: whoever then finds a door closed tries again.
_GUARD_SECONDS = 2.0
#: How long guards have to end what was lost, before this node looks at what it has made itself.
_GUARDS_END_SECONDS = 10.0
#: How long what was made is taken to be there, and for how many topics.
_REMEMBERED_SECONDS = 3600.0
_MOST_REMEMBERED = 100_000
_PORTION = 200
#: What RabbitMQ says of a queue that is there and differs from what is declared, and of one whose only broker is away.
_OTHER_KIND = 406
_NOT_FOUND = 404
#: Changes after which something is to be made: a topic or subscription, or bindings of those who follow a tree that something joins.
_MAKES = frozenset({"open", "subscribe", "give", "accept", "add", "move"})


class QueueAway(NoNodeAnswered):
    """A subscription's queue lives on one broker, made before there were several, and that one is away."""


class Traffic:
    """What one connection of a node makes. Remembers for a while what it has made, so that a topic's next publisher costs nothing."""

    def __init__(
        self,
        state: State,
        connection: Connection,
        guards: Guards,
        clock: Callable[[], datetime],
        *,
        feeds: str = topology.CLASSIC,
    ) -> None:
        self._state = state
        #: The kinds of subscriptions' queues: how they are made, and how they may have been made when the network had another number of brokers.
        self._kinds = sorted((topology.CLASSIC, topology.QUORUM), key=lambda kind: kind != feeds)
        self._connection = connection
        self._opened_channel: Channel | None = None
        self._guards = guards
        self._clock = clock
        #: Exchanges that were made, each with the feeds whose queues were bound to it.
        self._made: dict[str, set[Feed]] = {}
        #: Queues that were declared.
        self._declared: set[str] = set()
        self._since = time.monotonic()
        self._checking: set[asyncio.Task[None]] = set()

    def on_applied(self, applied: Applied) -> None:
        """Where somebody may have lost a right, a guard may unbind: it is bound again when it is asked for again. And what this node has bound is
        looked at once more: a guard that knew of the loss before this node did may have looked before it was bound."""
        lost: dict[str, set[Feed]] = {}
        over: set[str] = set()
        for _, outcome in applied:
            touched = feeds.losses(outcome.writes)
            over |= self._declared & {names.feed_queue(entity, subject, queue) for subject, entity, queue in touched.stale}
            if touched.trees or touched.entities:
                lost |= self._made
                self._made.clear()
            for topic in touched.topics:
                lost[topic] = lost.get(topic, set()) | self._made.pop(topic, set())
        if over or any(lost.values()):
            task = asyncio.create_task(self._look_again(lost, over, applied[-1][0].seq))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)

    async def close(self) -> None:
        for task in self._checking:
            task.cancel()
        await asyncio.gather(*self._checking, return_exceptions=True)

    async def _look_again(self, bound: Mapping[str, Collection[Feed]], over: Iterable[str], seq: int) -> None:
        # Guards first: they count what they end, for the receipt.
        await self._guards.applied(seq, within_seconds=_GUARDS_END_SECONDS)
        try:
            for queue in over:
                await (await self._channel()).delete_queue(queue)
            for number, (topic, several) in enumerate(bound.items()):
                if number % _PORTION == _PORTION - 1:
                    await asyncio.sleep(0)
                for feed in several:
                    if not feeds.gets(self._state, feed, topic, self._clock()):
                        await self._unbind(feed, topic)
        except BrokerUnavailable as error:
            # The guards have looked, or will.
            logger.info("what was bound before a right was lost could not be looked at: %s", error)

    async def ready(self, question: Envelope, seq: int) -> dict[str, Any]:
        """Answer `use`: make ready what publishing or subscribing needs, or say which change must come first."""
        return await self._until_made(lambda: self._ready(question, seq), _READY_SECONDS)

    async def after(self, request: Envelope, seq: int) -> None:
        """What a change that was decided asks for at the broker, before its sender hears of it."""
        await self._until_made(lambda: self._after(request, seq), _AFTER_SECONDS)

    async def _until_made(self, make: Callable[[], Awaitable[T]], seconds: float) -> T:
        """A queue that a guard deletes between its declaration and its binding closes the channel, and no more than that: it is tried again. What
        cannot be made is no refusal: the change that asks for it is in the log."""
        deadline = time.monotonic() + seconds
        while True:
            used = self._present
            try:
                return await make()
            except BrokerUnavailable as error:
                if self._connection.closed.done():
                    raise
                logger.info("something for a topic could not be made: %s", error)
                self._made.clear()
                # One on which the broker owes an answer takes no other request before that, and is closed with it: or each that hangs would stay. Of several
                # who waited on it the first has done that; the others' next channel is not theirs to close.
                if self._opened_channel is not None and used in (None, self._opened_channel):
                    self._opened_channel.abandon()
                    self._opened_channel = None
                if time.monotonic() >= deadline:
                    raise BrokerUnavailable(f"what the topic needs at the broker cannot be made at the moment: {error.message}") from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _channel(self) -> Channel:
        if (present := self._present) is not None:
            return present
        opened = await self._connection.channel()
        if (present := self._present) is not None:
            # Of several who began at once another came first. One that nobody knows of would stay.
            opened.abandon()
            return present
        self._opened_channel = opened
        return opened

    @property
    def _present(self) -> Channel | None:
        channel = self._opened_channel
        return None if channel is None or channel.closed.done() else channel

    async def _ready(self, question: Envelope, seq: int) -> dict[str, Any]:
        body, entity = question.body, question.signer.name.id
        uuid, right = body["uuid"], body["right"]
        tree = feeds.is_tree(self._state, uuid, bool(body.get("tree")))
        needs_right = right == PUBLISH or not tree
        if needs_right and Rights(self._state, self._clock()).basis(question.signer.asker, right, uuid) is None:
            raise Refused(f"there is no topic {uuid} that you may {right} to")
        if right == PUBLISH:
            if self._state.get("opened", uuid) is None:
                return {"uuid": uuid, "needs": "open"}
            await self._guards.applied(seq, within_seconds=_GUARD_SECONDS)
            await self._topics([uuid])
            return {"uuid": uuid}
        feed = feeds.feed_of(self._state, uuid, entity)
        wanted = (tree, body.get("depth") if tree else None)
        if feed is None or (feed.tree, feed.depth) != wanted or not feeds.goes_on(self._state, feed, self._clock()):
            return {"uuid": uuid, "needs": "subscribe"}
        await self._guards.applied(seq, within_seconds=_GUARD_SECONDS)
        await self._feed(feed)
        return {"uuid": uuid, "queue": feed.queue}

    async def _after(self, request: Envelope, seq: int) -> None:
        uuid = request.body.get("uuid")
        if request.kind not in _MAKES or uuid is None:
            return
        # First, so that no guard still ends what an earlier record ended.
        await self._guards.applied(seq, within_seconds=_GUARD_SECONDS)
        if request.kind == "open":
            await self._topics([uuid])
        elif request.kind == "subscribe":
            feed = feeds.feed_of(self._state, uuid, request.signer.name.id)
            if feed is not None:
                await self._feed(feed)
        else:
            # Somebody who follows a tree may read more topics now.
            await self._topics([topic async for topic in self._opened(uuid)])

    async def _opened(self, uuid: str, *, below: bool = True) -> AsyncIterator[str]:
        """The topics that have an exchange: a topic and those below it, or those in a collection."""
        for number, topic in enumerate(topics_in(self._state, uuid) if below else [uuid]):
            if number % _PORTION == _PORTION - 1:
                await asyncio.sleep(0)
            if self._state.get("opened", topic) is not None:
                yield topic

    async def _topics(self, uuids: Iterable[str]) -> None:
        """Exchanges, and every queue bound that gets their messages."""
        self._forget_now_and_then()
        for uuid in uuids:
            if live(self._state, uuid, self._clock()) is None:
                continue
            await self._exchange(uuid)
            for feed in list(feeds.reaching(self._state, uuid, self._clock())):
                if feed not in self._made.get(uuid, ()):
                    try:
                        await self._queue(feed)
                        await self._bind(feed, uuid)
                    except QueueAway as error:
                        # Its messages are for one subscriber. The others, and who publishes, do not wait for that broker.
                        logger.warning("%s", error)

    async def _feed(self, feed: Feed) -> None:
        """A subscription's queue, bound to all topics that it gets. Anew each time: the broker drops a queue that nobody reads for a week."""
        queue = await self._queue(feed)
        async for topic in self._opened(feed.subject, below=feed.tree):
            if feeds.gets(self._state, feed, topic, self._clock()):
                await self._exchange(topic)
                await self._bind(feed, topic)
        now = feeds.feed_of(self._state, feed.subject, feed.entity)
        if now is None or now.queue != feed.queue or not feeds.lasts(self._state, feed, self._clock()):
            # It ended while it was made, and a guard may have looked before.
            await (await self._channel()).delete_queue(queue)

    async def _queue(self, feed: Feed) -> str:
        """A subscription's queue, of the kind that it has: a network that has grown keeps those that it made on one broker."""
        self._declared.add(names.feed_queue(feed.entity, feed.subject, feed.queue))
        for kind in self._kinds:
            try:
                return await topology.declare_feed(await self._channel(), feed.entity, feed.subject, feed.queue, kind)
            except BrokerUnavailable as error:
                if error.detail.get("code") == _NOT_FOUND:
                    raise QueueAway(
                        f"the queue of {feed.entity} for {feed.subject} is on a broker that is away; `tdn up` starts it"
                    ) from error
                if error.detail.get("code") != _OTHER_KIND or kind == self._kinds[-1]:
                    raise
        raise AssertionError("there are two kinds")

    async def _exchange(self, uuid: str) -> None:
        if uuid not in self._made:
            await topology.declare_topic(await self._channel(), uuid)
            self._made[uuid] = set()

    async def _bind(self, feed: Feed, uuid: str) -> None:
        queue = names.feed_queue(feed.entity, feed.subject, feed.queue)
        await (await self._channel()).bind_queue(queue, uuid)
        if feeds.gets(self._state, feed, uuid, self._clock()):
            self._made.setdefault(uuid, set()).add(feed)
        else:
            # The right was lost while it was bound, and a guard may have looked before.
            await self._unbind(feed, uuid)

    async def _unbind(self, feed: Feed, uuid: str) -> None:
        """End what a lost right leaves: the binding; of a subscription to this topic alone, its queue."""
        queue, channel = names.feed_queue(feed.entity, feed.subject, feed.queue), await self._channel()
        if feed.single:
            await channel.delete_queue(queue)
        else:
            await channel.unbind_queue(queue, uuid)

    def _forget_now_and_then(self) -> None:
        if time.monotonic() - self._since > _REMEMBERED_SECONDS or max(len(self._made), len(self._declared)) > _MOST_REMEMBERED:
            self._made.clear()
            self._declared.clear()
            self._since = time.monotonic()
