"""Traffic on one topic while rights to it are ended, in a process of its own so that nobody who measures is held up by it.

Four entities: a publisher and a subscriber who lose their rights again and again and do not take no for an answer (they connect and try anew
until they are told to rest), and another two who keep theirs all the time. Every message says who sent it and when, by a clock that all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Self

from tdn.bus.address import load_connection
from tdn.bus.connection import Channel, Connection, Delivery
from tdn.errors import TdnError
from tdn.trust import credentials

#: Messages a second: of the publisher who loses its right, and of the other.
RATE, OTHERS_RATE = 1000, 50
_BODY_BYTES = 256
#: As the client library has it.
_PREFETCH = 200
#: Between two looks at how many messages are due, and two tries of somebody who was refused.
_PACE_SECONDS = 0.002
_AGAIN_SECONDS = 0.02
_READY_SECONDS = 30.0
#: How often is looked whether the other subscriber has got the last message.
_DRAIN_LOOKS = 200

_HEADER = struct.Struct(">?dQ")


@dataclass(frozen=True, slots=True)
class Cast:
    """Folders of credentials, the topic, and the queue of the one who keeps reading."""

    publisher: Path
    subscriber: Path
    other_publisher: Path
    other_subscriber: Path
    topic: str
    other_queue: str


@dataclass(slots=True)
class Seen:
    """What happened since the last time it was asked for. Pairs are the moments at which a message was sent, and at which it was seen."""

    #: Messages of the publisher: all that it sent, those that were confirmed, and those that reached the other subscriber.
    sent: list[float] = field(default_factory=list)
    confirmed: list[tuple[float, float]] = field(default_factory=list)
    passed: list[tuple[float, float]] = field(default_factory=list)
    #: Messages that the subscriber got, whoever sent them; and when it tried to read its queue.
    delivered: list[tuple[float, float]] = field(default_factory=list)
    tried: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Others:
    """How the two fared who kept their rights."""

    sent: int = 0
    confirmed: int = 0
    delivered: int = 0
    longest_confirm: float = 0.0
    #: Connections, theirs and the revoked subscriber's, that ended. (Who may no longer publish is cut off; who may not subscribe is not.)
    lost: int = 0
    subscriber_lost: int = 0


class Traffic:
    """The process, for whoever commands it."""

    def __init__(self, cast: Cast) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(cast, theirs), daemon=True)

    async def __aenter__(self) -> Self:
        self._process.start()
        await self._answer()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.join)

    async def publish(self, *, insist: bool) -> None:
        """Have the publisher begin; return when a first message was confirmed."""
        await self._call("publish", insist)

    async def read(self, queue: str, *, insist: bool) -> None:
        """Have the subscriber read a queue; return when it got a first message."""
        await self._call("read", queue, insist)

    async def rest(self) -> None:
        """Whoever was refused tries no more."""
        await self._call("rest")

    async def seen(self) -> Seen:
        return await self._call("seen")  # type: ignore[no-any-return]

    async def end(self) -> Others:
        return await self._call("end")  # type: ignore[no-any-return]

    async def _call(self, *command: object) -> Any:
        self._pipe.send(command)
        return await self._answer()

    async def _answer(self) -> Any:
        answer = await asyncio.to_thread(self._receive)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _receive(self) -> Any:
        while not self._pipe.poll(0.5):
            if not self._process.is_alive():
                raise RuntimeError("the traffic has ended by itself")
        return self._pipe.recv()


def _main(cast: Cast, pipe: Pipe) -> None:
    asyncio.run(_Stage(cast).serve(pipe))


class _Stage:
    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self._seen = Seen()
        self._others = Others()
        self._publishing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_out = {"publisher": True, "subscriber": True}

    async def serve(self, pipe: Pipe) -> None:
        subscriber = await self._connect(self._cast.subscriber)
        subscriber.closed.add_done_callback(partial(self._lost, "subscriber_lost"))
        others = await self._start_others()
        pipe.send(None)
        commands: dict[str, Callable[..., Awaitable[Any]]] = {
            "publish": self._begin_publishing,
            "read": partial(self._begin_reading, subscriber),
            "rest": self._rest,
            "seen": self._take_seen,
            "end": partial(self._end, others),
        }
        while True:
            command, *values = await asyncio.to_thread(pipe.recv)
            try:
                pipe.send(await commands[command](*values))
            except (TdnError, TimeoutError) as error:
                pipe.send(RuntimeError(f"{command}: {error or type(error).__name__}"))

    # --- what is commanded ---

    async def _begin_publishing(self, insist: bool) -> None:
        await _stop(self._publishing)
        self._publishing = asyncio.create_task(self._publish(insist))
        await self._until(lambda: bool(self._seen.confirmed), "confirmed")

    async def _begin_reading(self, connection: Connection, queue: str, insist: bool) -> None:
        await _stop(self._reading)
        self._reading = asyncio.create_task(self._read(connection, queue, insist))
        await self._until(lambda: bool(self._seen.delivered), "delivered")

    async def _rest(self) -> None:
        if self._is_out["publisher"]:
            await _stop(self._publishing)
        if self._is_out["subscriber"]:
            await _stop(self._reading)

    async def _take_seen(self) -> Seen:
        seen, self._seen = self._seen, Seen()
        return seen

    async def _end(self, sending: asyncio.Task[None]) -> Others:
        await _stop(sending)
        for _ in range(_DRAIN_LOOKS):
            if min(self._others.delivered, self._others.confirmed) >= self._others.sent:
                break
            await asyncio.sleep(0.05)
        return self._others

    async def _until(self, condition: Callable[[], bool], list_name: str) -> None:
        getattr(self._seen, list_name).clear()
        async with asyncio.timeout(_READY_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()

    # --- the one who publishes until it is stopped, and then tries again ---

    async def _publish(self, insist: bool) -> None:
        while True:
            try:
                connection = await self._connect(self._cast.publisher)
                try:
                    channel = await connection.channel(confirms=True)
                    self._is_out["publisher"] = False
                    await self._send(channel, RATE, others=False)
                finally:
                    await connection.close()
            except TdnError:
                pass
            finally:
                self._is_out["publisher"] = True
            if not insist:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _send(self, channel: Channel, rate: int, *, others: bool) -> None:
        """At a steady rate, until the channel is closed."""
        began, count = time.monotonic(), 0
        padding = b"x" * (_BODY_BYTES - _HEADER.size)
        while not channel.closed.done():
            while count < (time.monotonic() - began) * rate and not channel.closed.done():
                count += 1
                now = time.monotonic()
                done = channel.publish(self._cast.topic, "", _HEADER.pack(others, now, count) + padding, persistent=True)
                done.add_done_callback(partial(self._confirmed_other if others else self._confirmed, now))
                if others:
                    self._others.sent += 1
                else:
                    self._seen.sent.append(now)
            await asyncio.sleep(_PACE_SECONDS)

    def _confirmed(self, sent: float, done: asyncio.Future[None]) -> None:
        if done.exception() is None:
            self._seen.confirmed.append((sent, time.monotonic()))
            self._news.set()

    # --- the one who reads until its queue is gone, and then tries again ---

    async def _read(self, connection: Connection, queue: str, insist: bool) -> None:
        while True:
            gone = asyncio.Event()
            try:
                channel = await connection.channel(prefetch=_PREFETCH)
                channel.closed.add_done_callback(partial(_set, gone))
                channel.on_cancelled(gone.set)
                self._seen.tried.append(time.monotonic())
                await channel.consume(queue, partial(self._delivered, channel))
                self._is_out["subscriber"] = False
                try:
                    await gone.wait()
                finally:
                    self._is_out["subscriber"] = True
                    await channel.close()
            except TdnError:
                pass
            if not insist:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    def _delivered(self, channel: Channel, delivery: Delivery) -> None:
        _, sent, _ = _HEADER.unpack_from(delivery.body)
        self._seen.delivered.append((sent, time.monotonic()))
        self._news.set()
        if not channel.closed.done():
            channel.ack(delivery.tag)

    # --- the two who keep their rights ---

    async def _start_others(self) -> asyncio.Task[None]:
        reader, writer = await self._connect(self._cast.other_subscriber), await self._connect(self._cast.other_publisher)
        for connection in (reader, writer):
            connection.closed.add_done_callback(partial(self._lost, "lost"))
        channel = await reader.channel(prefetch=_PREFETCH)
        await channel.consume(self._cast.other_queue, partial(self._delivered_other, channel))
        return asyncio.create_task(self._send(await writer.channel(confirms=True), OTHERS_RATE, others=True))

    def _confirmed_other(self, sent: float, done: asyncio.Future[None]) -> None:
        if done.exception() is None:
            self._others.confirmed += 1
            self._others.longest_confirm = max(self._others.longest_confirm, time.monotonic() - sent)

    def _delivered_other(self, channel: Channel, delivery: Delivery) -> None:
        others, sent, _ = _HEADER.unpack_from(delivery.body)
        if others:
            self._others.delivered += 1
        else:
            self._seen.passed.append((sent, time.monotonic()))
        if not channel.closed.done():
            channel.ack(delivery.tag)

    def _lost(self, name: str, _: object) -> None:
        setattr(self._others, name, getattr(self._others, name) + 1)

    @staticmethod
    async def _connect(folder: Path) -> Connection:
        settings = load_connection(folder)
        return await Connection.open(settings.brokers, credentials.load(folder), vhost=settings.vhost)


async def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _set(event: asyncio.Event, _: object) -> None:
    event.set()
