"""T21: what a node has made at the broker is looked at once more when it learns that a right was lost. A guard that knew before may have looked too early."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tdn.bus.connection import Connection
from tdn.errors import BrokerUnavailable
from tdn.node.guards import Guards
from tdn.node.traffic import Traffic
from tdn.protocol import names
from tdn.rules.feeds import Feed
from tdn.rules.state import LogRecord, MemoryState, Outcome, Write
from tdn.trust.envelope import Envelope
from tests.live import until

TOPIC = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
NOW = datetime(2027, 1, 1, tzinfo=UTC)
ALONE = Feed(TOPIC, "alice", "0" * 32, tree=False, depth=None)
TREE = Feed(TOPIC, "alice", "1" * 32, tree=True, depth=None)
#: A grant on the topic that has changed: somebody may have lost its right.
REVOKED = Write("grant", "g", {"tree": False, "topic": TOPIC})


class Broker:
    """Connection and channel in one: says what it was told, and fails as often as it should."""

    def __init__(self, *, failures: int = 0) -> None:
        self.closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.done: list[tuple[str, ...]] = []
        self._failures = failures

    async def channel(self) -> Broker:
        return self

    async def declare_queue(self, name: str, arguments: Any = None) -> None:
        self.done.append(("declare", name))

    async def delete_queue(self, name: str) -> None:
        if self._failures:
            self._failures -= 1
            raise BrokerUnavailable("not now")
        self.done.append(("delete", name))

    async def unbind_queue(self, name: str, exchange: str) -> None:
        self.done.append(("unbind", name, exchange))


class Done:
    """Guards that have ended what they end; how often that was asked."""

    def __init__(self) -> None:
        self.waited: list[int] = []

    async def applied(self, seq: int, *, within_seconds: float) -> None:
        self.waited.append(seq)


def traffic(broker: Broker, guards: Done | None = None) -> Traffic:
    return Traffic(MemoryState(), cast(Connection, broker), cast(Guards, guards or Done()), lambda: NOW)


def queue(feed: Feed) -> str:
    return names.feed_queue(feed.entity, feed.subject, feed.queue)


async def applied(node: Traffic, write: Write) -> None:
    node.on_applied([(LogRecord(1, "0" * 64, b""), Outcome("accepted", "retract", (write,)))])
    await asyncio.gather(*node._checking)


@pytest.mark.parametrize(("feed", "ended"), [(ALONE, ("delete", queue(ALONE))), (TREE, ("unbind", queue(TREE), TOPIC))])
async def test_what_was_bound_before_the_loss_was_known(feed: Feed, ended: tuple[str, ...]) -> None:
    """After the guards, whose count of what they ended is in the receipt."""
    broker, guards = Broker(), Done()
    node = traffic(broker, guards)
    node._made[TOPIC] = {feed}
    await applied(node, REVOKED)
    assert guards.waited == [1]
    assert broker.done == [ended]
    assert TOPIC not in node._made


async def test_queues_of_subscriptions_that_are_over() -> None:
    """Only those that this node has declared: the guards end the others."""
    broker = Broker()
    node = traffic(broker)
    await node._queue(ALONE)
    await applied(node, Write("stale", f"{TOPIC} alice {TREE.queue}", {}))
    assert broker.done == [("declare", queue(ALONE))]
    await applied(node, Write("stale", f"{TOPIC} alice {ALONE.queue}", {}))
    assert broker.done[1:] == [("delete", queue(ALONE))]


async def test_a_broker_that_fails_meanwhile_ends_nothing_else() -> None:
    broker = Broker(failures=1)
    node = traffic(broker)
    node._made[TOPIC] = {ALONE}
    await applied(node, REVOKED)
    assert broker.done == []


async def test_what_cannot_be_made_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: a change that is decided waits a while for what it needs at the broker; its sender is not told that it was refused."""
    monkeypatch.setattr("tdn.node.traffic._AFTER_SECONDS", 0.05)
    monkeypatch.setattr("tdn.node.traffic._PAUSE_SECONDS", 0.01)
    tries: list[int] = []

    async def fail(self: Traffic, request: Envelope, seq: int) -> None:
        tries.append(seq)
        raise BrokerUnavailable("the guard does not answer")

    monkeypatch.setattr(Traffic, "_after", fail)
    with pytest.raises(BrokerUnavailable, match="at the moment: the guard does not answer"):
        await traffic(Broker()).after(cast(Envelope, None), 7)
    assert len(tries) > 1


async def test_a_channel_that_hangs_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: the broker owes an answer on it, and the next try takes another. A connection has room for so many, and no more."""
    monkeypatch.setattr("tdn.node.traffic._AFTER_SECONDS", 0.05)
    monkeypatch.setattr("tdn.node.traffic._PAUSE_SECONDS", 0.01)
    opened: list[Hanging] = []

    class Hanging(Broker):
        is_abandoned = False

        async def channel(self) -> Broker:
            opened.append(Hanging())
            return opened[-1]

        async def declare_queue(self, name: str, arguments: Any = None) -> None:
            raise BrokerUnavailable("the broker has not answered")

        def abandon(self) -> None:
            self.is_abandoned = True

    async def after(self: Traffic, request: Envelope, seq: int) -> None:
        await self._queue(ALONE)

    monkeypatch.setattr(Traffic, "_after", after)
    with pytest.raises(BrokerUnavailable):
        await traffic(Hanging()).after(cast(Envelope, None), 7)
    assert len(opened) > 1
    assert all(channel.is_abandoned for channel in opened)


async def test_of_several_that_waited_on_a_channel_the_last_does_not_close_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: it is others' by then."""
    monkeypatch.setattr("tdn.node.traffic._PAUSE_SECONDS", 0.0)
    opened: list[Hanging] = []

    class Hanging(Broker):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[asyncio.Future[None]] = []
            self.is_abandoned = False

        async def channel(self) -> Broker:
            opened.append(Hanging())
            return opened[-1]

        async def declare_queue(self, name: str, arguments: Any = None) -> None:
            self.asked.append(asyncio.get_running_loop().create_future())
            await self.asked[-1]

        def abandon(self) -> None:
            self.is_abandoned = True

    async def after(self: Traffic, request: Envelope, seq: int) -> None:
        await self._queue(ALONE)

    monkeypatch.setattr(Traffic, "_after", after)
    node = traffic(Hanging())
    await node._channel()
    both = [asyncio.create_task(node.after(cast(Envelope, None), 7)) for _ in range(2)]
    await until(lambda: len(opened[0].asked) == 2, "both to wait on the first channel")
    for number, waiting in enumerate(opened[0].asked, 1):
        waiting.set_exception(BrokerUnavailable("the broker has not answered"))
        await until(lambda number=number: len(opened) > 1 and len(opened[1].asked) == number, "it to wait on the second")
    assert [channel.is_abandoned for channel in opened] == [True, False]
    for waiting in opened[1].asked:
        waiting.set_result(None)
    await asyncio.gather(*both, return_exceptions=True)


async def test_of_several_that_begin_at_once_one_channel_is_kept() -> None:
    """T22: as when a node has just connected, or when the broker has closed the one there was. The others would stay for as long as the connection."""
    opened: list[One] = []
    both = asyncio.Barrier(2)

    class One(Broker):
        is_abandoned = False

        async def channel(self) -> Broker:
            opened.append(one := One())
            await both.wait()
            return one

        def abandon(self) -> None:
            self.is_abandoned = True

    node = traffic(One())
    for _ in range(2):
        await asyncio.gather(node._queue(ALONE), node._queue(TREE))
        kept = [one for one in opened if not one.is_abandoned and not one.closed.done()]
        assert [*kept] == [node._opened_channel]
        assert sorted(kept[0].done) == sorted([("declare", queue(ALONE)), ("declare", queue(TREE))])
        kept[0].closed.set_result(None)
    assert len(opened) == 4
