"""The log: one RabbitMQ stream, appended to with confirms and followed from any offset, in order.

Streams want a prefetch and acknowledgements as credit; offsets have holes, so they are only a place to resume from.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tdn.bus.connection import Channel, Connection, Delivery
from tdn.errors import BrokerUnavailable
from tdn.protocol import names

#: Messages in flight to a follower. 30,000 a second on replay; more only costs memory.
_CREDIT = 1000


class Appender:
    """Puts records at the end of the log."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    async def open(cls, connection: Connection) -> Appender:
        return cls(await connection.channel(confirms=True))

    def append(self, raw: bytes) -> asyncio.Future[None]:
        """Send a record; the future is done when the broker has it. Order of calls is order in the log, per appender."""
        return self._channel.publish("", names.LOG, raw, persistent=True)


class Follower:
    """Reads the log from an offset on, in batches of whatever has arrived."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()

    @classmethod
    async def open(cls, connection: Connection, *, offset: int) -> Follower:
        channel = await connection.channel(prefetch=_CREDIT)
        follower = cls(channel)
        channel.on_cancelled(lambda: follower._arrived.put_nowait(None))
        channel.closed.add_done_callback(lambda _: follower._arrived.put_nowait(None))
        arguments: dict[str, Any] = {"x-stream-offset": offset if offset > 0 else "first"}
        await channel.consume(names.LOG, follower._arrived.put_nowait, arguments=arguments)
        return follower

    async def batch(self, most: int) -> list[tuple[int, bytes]]:
        """The next records as (offset, bytes): at least one, and all that have arrived up to `most`."""
        first = await self._arrived.get()
        if first is None:
            self._arrived.put_nowait(None)
            raise BrokerUnavailable("the broker ended the reading of the log")
        return self._take([first], most)

    def arrived(self, most: int) -> list[tuple[int, bytes]]:
        """What has arrived since, possibly nothing."""
        return self._take([], most)

    def _take(self, deliveries: list[Delivery], most: int) -> list[tuple[int, bytes]]:
        while len(deliveries) < most and not self._arrived.empty():
            delivery = self._arrived.get_nowait()
            if delivery is None:
                # The end is told to whoever asks next; what came before it still counts.
                self._arrived.put_nowait(None)
                break
            deliveries.append(delivery)
        if deliveries and not self._channel.closed.done():
            self._channel.ack(deliveries[-1].tag, multiple=True)
        return [(int(delivery.headers["x-stream-offset"]), delivery.body) for delivery in deliveries]

    @property
    def pending(self) -> int:
        return self._arrived.qsize()


async def last_offset(connection: Connection, *, within_seconds: float = 5.0) -> int:
    """An offset at or near the end of the log: the start of its last chunk, or -1 for an empty log."""
    channel = await connection.channel(prefetch=1)
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(delivery: Delivery) -> None:
        if not found.done():
            found.set_result(int(delivery.headers["x-stream-offset"]))

    tag = await channel.consume(names.LOG, take, arguments={"x-stream-offset": "last"})
    try:
        return await asyncio.wait_for(found, within_seconds)
    except TimeoutError:
        return -1
    finally:
        await channel.cancel(tag)
        await channel.close()
