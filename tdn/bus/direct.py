"""Answers to RabbitMQ's direct reply-to, over a connection of their own.

The address comes from the sender, and a made-up one (`amq.rabbitmq.reply-to.none.none`) makes the broker close the whole connection of
whoever answers it (541 on 3.10.8). So a node answers such addresses on a connection that it can lose, never on the one it serves with. What was not
confirmed when that ended is sent once more, so that nobody's first contact is lost with somebody else's address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tdn.bus.connection import Broker, Channel, Connection
from tdn.errors import BrokerUnavailable, TdnError
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: Answers that wait while the connection is made again. Askers say hello again by themselves.
_WAITING = 1000
#: When the broker has not taken an answer within so long, it is seen whether it is there at all: nobody else would find out that this connection was lost
#: without a word, and every first contact through this node would wait for heartbeats.
_DOUBT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Reply:
    address: str
    message: bytes
    #: It was sent already, over a connection that ended before the broker had confirmed it.
    again: bool = False


class DirectReplies:
    def __init__(self, brokers: Sequence[Broker], credentials: Credentials, vhost: str) -> None:
        self._brokers = brokers
        self._credentials = credentials
        self._vhost = vhost
        self._waiting: asyncio.Queue[_Reply] = asyncio.Queue(_WAITING)
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        #: What the broker has not confirmed yet, in the order in which it was sent.
        self._unconfirmed: dict[asyncio.Future[None], _Reply] = {}
        self._watching: asyncio.Task[None] | None = None
        self._sending = asyncio.create_task(self._run())

    def send(self, address: str, message: bytes) -> None:
        """Send when possible; dropped when too many wait."""
        self._put(_Reply(address, message))

    async def close(self, *, in_order: bool) -> None:
        """In order, the broker's goodbye is waited for: it has all that was sent. Over a connection that may be lost it does not come."""
        tasks = [self._sending, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is None:
            return
        if in_order:
            await self._connection.close()
        else:
            self._connection.give_up(BrokerUnavailable("the connection for direct replies is closed"))

    def _put(self, reply: _Reply) -> None:
        if not self._waiting.full():
            self._waiting.put_nowait(reply)

    async def _run(self) -> None:
        while True:
            reply = await self._waiting.get()
            try:
                connection, channel = await self._open()
            except TdnError as error:
                logger.info("a direct reply was lost: %s", error)
                continue
            confirmed = channel.publish("", reply.address, reply.message)
            self._unconfirmed[confirmed] = reply
            confirmed.add_done_callback(self._settle)
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch(connection))
            if reply.again:
                # One by one: its address may be what the broker closed the connection for, and the next one's is not.
                await asyncio.wait([confirmed])

    async def _open(self) -> tuple[Connection, Channel]:
        if self._connection is None or self._channel is None or self._connection.closed.done() or self._channel.closed.done():
            if self._connection is not None:
                self._connection.abandon()
            self._channel = None
            self._connection = await Connection.open(self._brokers, self._credentials, vhost=self._vhost)
            self._channel = await self._connection.channel(confirms=True)
        return self._connection, self._channel

    async def _watch(self, connection: Connection) -> None:
        """While anything is unconfirmed: see whether the broker is there, when the oldest has waited for long."""
        while (oldest := next(iter(self._unconfirmed), None)) is not None:
            await asyncio.wait([oldest], timeout=_DOUBT_SECONDS)
            if oldest.done():
                # Its place is given up by what is called when it is done.
                await asyncio.sleep(0)
            elif await connection.answers():
                oldest.cancel()
            else:
                connection.give_up(BrokerUnavailable("the broker does not answer on this connection any more"))
                return

    def _settle(self, confirmed: asyncio.Future[None]) -> None:
        reply = self._unconfirmed.pop(confirmed)
        if confirmed.cancelled():
            logger.info("a direct reply was not confirmed")
        elif (error := confirmed.exception()) is None:
            return
        elif reply.again:
            logger.info("a direct reply was lost: %s", error)
        else:
            self._put(replace(reply, again=True))
