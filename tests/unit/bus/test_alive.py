"""When a broker counts as gone, and what becomes of a channel that comes too late; pika's connection is played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tdn.bus import connection as connections
from tdn.bus.connection import Connection
from tdn.errors import BrokerUnavailable


class Played:
    """What `Connection` uses of pika's connection, over which nothing is answered."""

    def __init__(self) -> None:
        self.said: dict[str, Callable[..., None]] = {}
        self.opened = 0
        self.bytes_received = 1000
        self.bytes_sent = self.bytes_gone = 5000
        self.is_closing = self.is_closed = False

    def add_on_close_callback(self, told: Callable[..., None]) -> None:
        self.said["closed"] = told

    def add_on_connection_blocked_callback(self, told: Callable[..., None]) -> None:
        self.said["blocked"] = told

    def add_on_connection_unblocked_callback(self, told: Callable[..., None]) -> None:
        self.said["unblocked"] = told

    def channel(self, *, on_open_callback: Callable[..., None]) -> None:
        self.opened += 1
        self.open = on_open_callback

    def close(self) -> None:
        self.is_closing = True


class PlayedChannel:
    """One that pika has opened."""

    is_open = True

    def add_on_close_callback(self, told: Callable[..., None]) -> None: ...

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def raw() -> Played:
    return Played()


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(connections, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(connections, "_WRITTEN_SECONDS", 0.01)


async def test_a_blocked_connection_is_not_doubted(raw: Played) -> None:
    """T22: a thousand clients that connect anew every few seconds are no help to a broker that is short of memory."""
    connection = Connection(cast(Any, raw), "entity:alice")
    assert not await connection.answers()
    raw.said["blocked"](raw, "low on memory")
    assert await connection.answers()
    assert raw.opened == 1
    raw.said["unblocked"](raw, None)
    assert not await connection.answers()
    raw.said["blocked"](raw, "low on memory")
    raw.said["closed"](raw, OSError("gone"))
    assert not await connection.answers()


async def test_who_sends_anything_is_there(raw: Played) -> None:
    """The answer may wait behind a long message of ours, or behind many of theirs: heartbeats and parts of what comes show that the broker lives."""
    connection = Connection(cast(Any, raw), "entity:alice")
    looking = asyncio.create_task(connection.answers())
    await asyncio.sleep(0)
    raw.bytes_received += 8
    assert await looking
    assert not await connection.answers()


async def test_who_takes_what_waited_is_there(raw: Played) -> None:
    """T22: a message of 16 MB on a slow line takes a minute, in which the broker has nothing to say; begun again each time, it would never arrive."""
    connection = Connection(cast(Any, raw), "entity:alice")
    raw.bytes_sent += 16_000_000
    assert not await connection.answers()
    looking = asyncio.create_task(connection.answers())
    await asyncio.sleep(0.03)
    raw.bytes_gone += 1
    assert await looking


async def test_what_the_socket_takes_by_itself_shows_nothing(raw: Played) -> None:
    """On a connection that was lost it goes on taking for as long as it has room."""
    connection = Connection(cast(Any, raw), "entity:alice")
    raw.bytes_sent += 100
    looking = asyncio.create_task(connection.answers())
    await asyncio.sleep(0)
    raw.bytes_gone += 100
    await asyncio.sleep(0.03)
    raw.bytes_sent += 100
    raw.bytes_gone += 100
    assert not await looking


async def test_a_silence_is_longer_than_a_broker_is_ever_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: RabbitMQ says nothing for as long as a whole heartbeat (measured: 2.5 to 4.5 s of 5, 5.5 to 10 of 10), just after it has said something."""
    monkeypatch.undo()
    assert connections.HEARTBEAT_SECONDS < connections._ALIVE_SECONDS


async def test_who_is_blocked_meanwhile_is_there(raw: Played) -> None:
    connection = Connection(cast(Any, raw), "entity:alice")
    looking = asyncio.create_task(connection.answers())
    await asyncio.sleep(0)
    raw.said["blocked"](raw, "low on memory")
    assert await looking


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "unanswered"])
async def test_a_channel_that_opens_too_late_is_closed(raw: Played, cancelled: bool) -> None:
    """Else it would stay as long as the connection, for each look at a slow broker."""
    connection = Connection(cast(Any, raw), "entity:alice")
    opening = asyncio.create_task(connection.channel())
    await asyncio.sleep(0)
    if cancelled:
        opening.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else BrokerUnavailable):
        await opening
    late = PlayedChannel()
    raw.open(late)
    assert not late.is_open


async def test_a_broker_that_does_not_say_goodbye(raw: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits on a connection that was closed is told after a while, and not by heartbeats."""
    monkeypatch.setattr(connections, "_GOODBYE_SECONDS", 0.05)
    connection = Connection(cast(Any, raw), "entity:alice")
    opening = asyncio.create_task(connection.channel())
    await asyncio.sleep(0)
    raw.open(PlayedChannel())
    channel = await opening
    await connection.close()
    assert raw.is_closing
    assert isinstance(channel.closed.result(), BrokerUnavailable)
    assert isinstance(connection.closed.result(), BrokerUnavailable)
