"""Answers to RabbitMQ's direct reply-to, over a connection of their own.

The address comes from the sender, and a made-up one (`amq.rabbitmq.reply-to.none.none`) makes the broker close the whole connection of
whoever answers it (541 on 3.10.8). So a node answers such addresses on a connection that it can lose, never on the one it serves with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tdn.bus.connection import Broker, Channel, Connection
from tdn.errors import BrokerUnavailable, TdnError
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: Answers that wait while the connection is made again. Askers say hello again by themselves.
_WAITING = 1000
#: When the broker has not taken an answer within so long, it is seen whether it is there at all: nobody else would find out that this connection was lost
#: without a word, and every first contact through this node would wait for heartbeats.
_DOUBT_SECONDS = 2.0


class DirectReplies:
    def __init__(self, brokers: Sequence[Broker], credentials: Credentials, vhost: str) -> None:
        self._brokers = brokers
        self._credentials = credentials
        self._vhost = vhost
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_WAITING)
        self._sending = asyncio.create_task(self._run())

    def send(self, address: str, message: bytes) -> None:
        """Send when possible; dropped when too many wait."""
        if not self._waiting.full():
            self._waiting.put_nowait((address, message))

    async def close(self) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)

    async def _run(self) -> None:
        connection: Connection | None = None
        channel: Channel | None = None
        try:
            while True:
                address, message = await self._waiting.get()
                try:
                    if connection is None or channel is None or connection.closed.done() or channel.closed.done():
                        if connection is not None:
                            await connection.close()
                        connection = await Connection.open(self._brokers, self._credentials, vhost=self._vhost)
                        channel = await connection.channel(confirms=True)
                    await self._publish(connection, channel, address, message)
                except TdnError as error:
                    logger.info("a direct reply was lost: %s", error)
        finally:
            if connection is not None:
                await connection.close()

    async def _publish(self, connection: Connection, channel: Channel, address: str, message: bytes) -> None:
        try:
            async with asyncio.timeout(_DOUBT_SECONDS):
                await channel.publish("", address, message)
        except TimeoutError:
            logger.info("a direct reply was not confirmed")
            if not await connection.answers():
                connection.give_up(BrokerUnavailable("the broker does not answer on this connection any more"))
