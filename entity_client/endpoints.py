"""Asking nodes at their own endpoints, over HTTPS with mutual TLS: the way that questions take while no broker can be reached.

The messages are those that would go over the broker. Who answers is not believed for its address: each reply is verified by whoever reads it, as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tdn.bus.address import NodeAddress
from tdn.bus.connection import tls_context
from tdn.errors import MalformedMessage
from tdn.protocol import framing
from tdn.trust.credentials import Credentials

if TYPE_CHECKING:
    from aiohttp import ClientSession

logger = logging.getLogger(__name__)

#: Where endpoints that nodes told of are kept, in the folder of credentials.
FILE = "endpoints.json"
#: How long a node may take to accept a connection.
_CONNECT_SECONDS = 3.0
#: Messages that have come and are not yet read, of all nodes together. Who answers more is read more slowly.
_WAITING = 32
#: Endpoints that are remembered, beside those of connection.toml.
_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class Age:
    """How old what a node answered without the broker may be: it has all that was in the log at that moment, so long before it answered."""

    as_of: datetime
    seconds: float


class Endpoints:
    """The endpoints that are known: from connection.toml, and from nodes that were located."""

    def __init__(self, credentials: Credentials, configured: Iterable[NodeAddress]) -> None:
        self._credentials = credentials
        self._known = {address.id: address for address in configured}
        self._told: dict[str, NodeAddress] = _recall(credentials.folder)
        # What a node itself said is later than what was configured.
        self._known |= self._told

    def __bool__(self) -> bool:
        return bool(self._known)

    def learn(self, address: NodeAddress) -> None:
        """Remember what a node said, verified, of its own endpoint; also for the next time."""
        if self._known.get(address.id) == address:
            return
        self._known[address.id] = self._told[address.id] = address
        while len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        with contextlib.suppress(OSError):
            path = self._credentials.folder / FILE
            path.write_text(json.dumps([asdict(told) for told in self._told.values()]) + "\n", "utf-8")

    async def ask(self, message: bytes, node: str | None, *, seconds: float) -> AsyncGenerator[bytes, None]:
        """Send a message to one node, or to all that are known at once; gives what they answer, unread, as it comes, until all have ended."""
        asked = [address for address in self._known.values() if node in (None, address.id)]
        if not asked:
            return
        arrived: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_WAITING)
        # Imported here: it takes a third of a second, which every command would pay for the rare one that needs it.
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        limits = ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        connector = TCPConnector(ssl=tls_context(self._credentials), force_close=True)
        async with ClientSession(connector=connector, timeout=limits, auto_decompress=False) as session:
            asking = [asyncio.create_task(self._ask_one(session, address, message, arrived)) for address in asked]
            try:
                silent = 0
                while silent < len(asking):
                    answer = await arrived.get()
                    if answer is None:
                        silent += 1
                    elif isinstance(answer, Exception):
                        raise answer
                    else:
                        yield answer
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)

    async def _ask_one(
        self, session: ClientSession, address: NodeAddress, message: bytes, arrived: asyncio.Queue[bytes | Exception | None]
    ) -> None:
        """Puts what one node answers into the queue, and None behind it. Not when cancelled: nobody reads any more, and there may be no room for it, ever."""
        from aiohttp import ClientError

        frames = framing.Frames()
        try:
            async with session.post(_url(address), data=message, allow_redirects=False) as response:
                if response.content_type == framing.CONTENT_TYPE:
                    async for data in response.content.iter_any():
                        for frame in frames.feed(data):
                            await arrived.put(frame)
                else:
                    logger.info("the endpoint of node %s answered with status %d", address.id, response.status)
        except (ClientError, OSError, TimeoutError, MalformedMessage) as error:
            logger.info("the endpoint of node %s did not answer: %s", address.id, error or type(error).__name__)
        except Exception as error:
            await arrived.put(error)
        await arrived.put(None)


def _url(address: NodeAddress) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"https://{host}:{address.port}/ask"


def _recall(folder: Path) -> dict[str, NodeAddress]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads((folder / FILE).read_text("utf-8"))
        return {str(one["id"]): NodeAddress(str(one["id"]), str(one["host"]), int(one["port"])) for one in said[:_REMEMBERED]}
    return {}
