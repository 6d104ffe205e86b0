"""The broker's management API, as far as a guard needs it: close connections, delete queues, bindings and exchanges, look what is there.

The API knows no client certificates as logins, so it is used with a password that the guard alone accepts, for this one purpose.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from aiohttp import BasicAuth, ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from tdn.bus.connection import tls_context
from tdn.errors import BrokerUnavailable
from tdn.trust.credentials import Credentials

#: Login of the management API. Not a principal's name, so it can never be a certificate's.
MANAGEMENT_USER = "tdn-management"

_AT_ONCE = 8
_PAGE = 500


class Management:
    """One broker's API. Absent things are no error: somebody else was quicker."""

    def __init__(self, url: str, password: str, vhost: str, credentials: Credentials) -> None:
        self._url = f"{url}/api"
        self._password = password
        self._vhost = quote(vhost, safe="")
        self._credentials = credentials

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            connector=TCPConnector(ssl=tls_context(self._credentials), limit=_AT_ONCE),
            auth=BasicAuth(MANAGEMENT_USER, self._password),
            timeout=ClientTimeout(total=10),
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._session.close()

    async def close_connections(self, login: str, reason: str) -> None:
        """Every open connection of a login. They are known from their first moment on."""
        await self._delete(f"connections/username/{quote(login, safe='')}", headers={"X-Reason": reason})

    async def bindings_from(self, exchange: str) -> list[tuple[str, str]]:
        """The queues that an exchange is bound to, each with the binding's own name."""
        rows = await self._get(f"exchanges/{self._vhost}/{quote(exchange, safe='')}/bindings/source") or []
        return [(row["destination"], row["properties_key"]) for row in rows if row["destination_type"] == "queue"]

    async def bindings_to(self, queue: str) -> list[tuple[str, str]]:
        """The exchanges that a queue is bound to."""
        rows = await self._get(f"queues/{self._vhost}/{quote(queue, safe='')}/bindings") or []
        return [(row["source"], row["properties_key"]) for row in rows if row["source"]]

    async def delete_queue(self, queue: str) -> bool:
        return await self._delete(f"queues/{self._vhost}/{quote(queue, safe='')}")

    async def delete_exchange(self, exchange: str) -> bool:
        return await self._delete(f"exchanges/{self._vhost}/{quote(exchange, safe='')}")

    async def unbind(self, exchange: str, queue: str, binding: str) -> bool:
        path = f"bindings/{self._vhost}/e/{quote(exchange, safe='')}/q/{quote(queue, safe='')}/{quote(binding, safe='')}"
        return await self._delete(path)

    async def queues(self) -> AsyncIterator[str]:
        async for row in self._pages("queues"):
            yield row["name"]

    async def exchanges(self) -> AsyncIterator[str]:
        async for row in self._pages("exchanges"):
            yield row["name"]

    async def _pages(self, what: str) -> AsyncIterator[dict[str, Any]]:
        page = 1
        while True:
            found = await self._get(f"{what}/{self._vhost}?columns=name&page={page}&page_size={_PAGE}&pagination=true")
            if not isinstance(found, dict):
                return
            for row in found["items"]:
                yield row
            if page >= found["page_count"]:
                return
            page += 1

    async def _get(self, path: str) -> Any:
        try:
            async with self._session.get(f"{self._url}/{path}") as response:
                return json.loads(await response.read()) if await _is_there(response) else None
        except (ClientError, TimeoutError, OSError, ValueError) as error:
            raise BrokerUnavailable(f"the broker's management API did not answer: {error or type(error).__name__}") from error

    async def _delete(self, path: str, headers: dict[str, str] | None = None) -> bool:
        try:
            async with self._session.delete(f"{self._url}/{path}", headers=headers) as response:
                return await _is_there(response)
        except (ClientError, TimeoutError, OSError) as error:
            raise BrokerUnavailable(f"the broker's management API did not answer: {error or type(error).__name__}") from error


async def _is_there(response: ClientResponse) -> bool:
    if response.status == 404:
        return False
    if response.status >= 400:
        text = (await response.text())[:200]
        raise BrokerUnavailable(f"the broker's management API answered {response.status}: {text}")
    return True
