"""The log: one RabbitMQ stream, appended to with confirms and followed from any offset, in order.

Streams want a prefetch and acknowledgements as credit; offsets have holes, so they are only a place to resume from.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tdn.bus.connection import Channel, Connection, Delivery
from tdn.errors import BrokerUnavailable, MalformedMessage
from tdn.protocol import names
from tdn.trust import signing

#: Messages in flight to a follower. 30,000 a second on replay; more only costs memory.
_CREDIT = 1000
#: Acknowledging every record would be a message for every record.
_ACKNOWLEDGE_EVERY = 250
#: How long the broker may take to give the end of a log that is not empty, of one that may be, and the rest of a chunk whose first
#: record has come.
_LAST_SECONDS = 20.0
_EMPTY_SECONDS = 1.5
_CHUNK_SECONDS = 0.05


def goes_on(offset: int, raw: bytes) -> bool:
    """Whether the first record that the log has was not its first: others were before it, and were trimmed."""
    try:
        message = signing.split(raw)
        return message.header.kind == "record" and signing.parse_payload(message).get("kind") != "genesis"
    except MalformedMessage:
        return offset > 0


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
        self._unacknowledged = 0

    @classmethod
    async def open(cls, connection: Connection, *, offset: int) -> Follower:
        channel = await connection.channel(prefetch=_CREDIT)
        follower = cls(channel)
        channel.on_cancelled(lambda: follower._arrived.put_nowait(None))
        channel.closed.add_done_callback(lambda _: follower._arrived.put_nowait(None))
        arguments: dict[str, Any] = {"x-stream-offset": offset if offset > 0 else "first"}
        await channel.consume(names.LOG, follower._arrived.put_nowait, arguments=arguments)
        return follower

    async def close(self) -> None:
        """Read no more. The channel goes with its consumer on it (see `last_offset`)."""
        await self._channel.close()

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
        self._unacknowledged += len(deliveries)
        if self._unacknowledged >= _ACKNOWLEDGE_EVERY and not self._channel.closed.done():
            # Only credit: the stream keeps everything, and our place in it is in the store.
            self._channel.ack(deliveries[-1].tag, multiple=True)
            self._unacknowledged = 0
        return [(int(delivery.headers["x-stream-offset"]), delivery.body) for delivery in deliveries]


async def last_offset(connection: Connection) -> int:
    """The offset of the log's last record, or of one very near it; -1 for an empty log.

    The broker gives the start of the last chunk, and all of that chunk; what comes together with the first is counted. The channel is
    closed with its consumer on it: cancelling first makes pika reject what is still arriving, and a stream answers that with 540.
    """
    channel = await connection.channel(prefetch=_CREDIT)
    try:
        # The broker's count lags behind by seconds: more than none is certain, none is not.
        certain = await channel.count_messages(names.LOG) > 0
        arrived: asyncio.Queue[int] = asyncio.Queue()
        await channel.consume(
            names.LOG,
            lambda delivery: arrived.put_nowait(int(delivery.headers["x-stream-offset"])),
            arguments={"x-stream-offset": "last"},
        )
        try:
            async with asyncio.timeout(_LAST_SECONDS if certain else _EMPTY_SECONDS):
                latest = await arrived.get()
        except TimeoutError as error:
            if certain:
                raise BrokerUnavailable("the broker does not say where the log ends") from error
            return -1
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_CHUNK_SECONDS):
                    latest = max(latest, await arrived.get())
        return latest
    finally:
        await channel.close()


async def first_offset(connection: Connection) -> int:
    """The offset of the first record that the log still has; -1 for an empty log."""
    channel = await connection.channel(prefetch=1)
    try:
        arrived: asyncio.Queue[int] = asyncio.Queue()
        await channel.consume(
            names.LOG,
            lambda delivery: arrived.put_nowait(int(delivery.headers["x-stream-offset"])),
            arguments={"x-stream-offset": "first"},
        )
        async with asyncio.timeout(_LAST_SECONDS):
            return await arrived.get()
    except TimeoutError:
        return -1
    finally:
        await channel.close()
