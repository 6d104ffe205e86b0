"""Answers to addresses that their senders wrote: one that is not confirmed holds up none, and a connection that ends loses none but what it ended for.
RabbitMQ's part is played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pika
import pytest
import pytest_asyncio
from played_broker import PlayedConnection

from tdn.bus import direct
from tdn.bus.connection import Connection
from tdn.bus.direct import DirectReplies
from tdn.errors import BrokerUnavailable, TdnError
from tests.live import until


class Line(PlayedConnection):
    """A connection that a test ends, or over which nothing comes any more."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: asyncio.Future[TdnError] = asyncio.get_running_loop().create_future()
        self.goodbye = asyncio.Event()
        self.channels: list[Any] = []

    async def channel(self, *, prefetch: int = 0, confirms: bool = False) -> Any:
        self.channels.append(await super().channel(prefetch=prefetch, confirms=confirms))
        return self.channels[-1]

    @property
    def sent(self) -> list[bytes]:
        return [body for channel in self.opened for body in channel.sent]

    def confirms(self, tag: int, *, multiple: bool = False) -> None:
        self.opened[0].says(pika.spec.Basic.Ack, tag, multiple=multiple)

    def give_up(self, error: Exception) -> None:
        super().give_up(error)
        self.ends(cast(TdnError, error))

    def ends(self, error: TdnError) -> None:
        if not self.closed.done():
            self.closed.set_result(error)
            for channel in self.channels:
                channel.end(error)

    def abandon(self) -> None: ...

    async def close(self) -> None:
        await self.goodbye.wait()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    lines: list[Line] = []

    async def opens(*_: object, **__: object) -> Line:
        lines.append(Line())
        return lines[-1]

    monkeypatch.setattr(Connection, "open", opens)
    monkeypatch.setattr(direct, "_DOUBT_SECONDS", 0.05)
    return lines


@pytest_asyncio.fixture
async def replies(lines: list[Line]) -> AsyncIterator[DirectReplies]:
    replies = DirectReplies([], cast(Any, None), "tdn")
    yield replies
    await replies.close(in_order=False)


async def test_one_does_not_wait_for_another(replies: DirectReplies, lines: list[Line]) -> None:
    """T22: nobody's first contact waits because the broker has not confirmed somebody else's."""
    for number in range(3):
        replies.send("somewhere", b"%d" % number)
    await until(lambda: lines and lines[0].sent == [b"0", b"1", b"2"], "all to be sent", seconds=2)
    lines[0].confirms(3, multiple=True)
    await asyncio.sleep(0.1)
    assert (lines[0].given_up, len(lines), lines[0].sent) == ([], 1, [b"0", b"1", b"2"])


async def test_a_connection_that_was_lost_without_a_word(replies: DirectReplies, lines: list[Line]) -> None:
    """T22: it is found out, and what went into it is sent again, once."""
    replies.send("somewhere", b"confirmed")
    await until(lambda: lines and lines[0].sent, "it to be sent")
    lines[0].confirms(1)
    lines[0].alive = False
    replies.send("somewhere", b"1")
    replies.send("somewhere", b"2")
    await until(lambda: len(lines) == 2 and lines[1].sent, "another connection")
    assert len(lines[0].given_up) == 1
    assert lines[1].sent == [b"1"], "one by one: one of them may be what the connection ended for"
    lines[1].confirms(1)
    await until(lambda: lines[1].sent == [b"1", b"2"], "the next")
    lines[1].alive = False
    replies.send("somewhere", b"3")
    await until(lambda: len(lines) == 3 and lines[2].sent == [b"3"], "the one that was sent once; the other was sent twice")


async def test_an_address_that_ends_the_connection(replies: DirectReplies, lines: list[Line]) -> None:
    """It takes nobody else's answer with it, and it is not tried for ever."""
    for body in (b"1", b"made up", b"3"):
        replies.send("somewhere", body)
    answered: set[bytes] = set()
    refused = 0
    deadline = time.monotonic() + 10
    while answered != {b"1", b"3"} and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
        line = lines[-1] if lines else None
        if line is None or line.closed.done():
            continue
        if b"made up" in line.sent:
            refused += 1
            line.ends(BrokerUnavailable("541"))
        elif line.sent:
            answered |= set(line.sent)
            line.confirms(len(line.sent), multiple=True)
    assert answered == {b"1", b"3"}
    assert refused == 2
    await asyncio.sleep(0.1)
    assert b"made up" not in lines[-1].sent


async def test_the_broker_is_there_and_does_not_confirm(replies: DirectReplies, lines: list[Line]) -> None:
    """Its asker says hello again; the others are not disturbed."""
    replies.send("somewhere", b"1")
    await until(lambda: lines and lines[0].sent, "it to be sent")
    await until(lambda: not replies._unconfirmed, "it to be given up")
    lines[0].confirms(1)
    replies.send("somewhere", b"2")
    await until(lambda: lines[0].sent == [b"1", b"2"], "the next")
    assert (len(lines), lines[0].given_up) == (1, [])


async def test_a_channel_on_which_something_is_refused(replies: DirectReplies, lines: list[Line]) -> None:
    replies.send("somewhere", b"1")
    await until(lambda: lines and lines[0].sent, "it to be sent")
    lines[0].opened[0].says(pika.spec.Basic.Nack, 1)
    await until(lambda: len(lines) == 2 and lines[1].sent == [b"1"], "it to be sent again")


async def test_closing(lines: list[Line]) -> None:
    """A node that stops waits until the broker has what was sent; one that has lost its connections does not wait for goodbyes that do not come."""
    first, other = (DirectReplies([], cast(Any, None), "tdn") for _ in range(2))
    first.send("somewhere", b"1")
    await until(lambda: lines and lines[0].sent, "it to be sent")
    closing = asyncio.create_task(first.close(in_order=True))
    await asyncio.sleep(0.05)
    assert not closing.done()
    lines[0].goodbye.set()
    await closing
    assert lines[0].given_up == []
    other.send("somewhere", b"1")
    await until(lambda: len(lines) == 2 and lines[1].sent, "it to be sent")
    await asyncio.wait_for(other.close(in_order=False), 1)
    assert len(lines[1].given_up) == 1


async def test_too_many_wait(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_WAITING", 2)
    replies = DirectReplies([], cast(Any, None), "tdn")
    for _ in range(5):
        replies.send("somewhere", b"")
    await until(lambda: lines and len(lines[0].sent) == 2, "two to be sent")
    await asyncio.sleep(0.02)
    assert len(lines[0].sent) == 2
    await replies.close(in_order=False)
