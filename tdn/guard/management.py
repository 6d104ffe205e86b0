"""The brokers' management API, as far as we need it: a guard closes connections, deletes queues, bindings and exchanges, looks what is there; an operator
sets a policy for the moment in which the log is trimmed.

Each broker answers for all of them, so any that answers will do; the guard's own is asked first. The API knows no client certificates as logins, so it is used with a password that the guard alone accepts, for this one purpose.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from tdn.bus.connection import tls_context
from tdn.errors import BrokerUnavailable
from tdn.protocol.names import MANAGEMENT_USER
from tdn.trust.credentials import Credentials

#: Requests at once to one broker.
_AT_ONCE = 32
#: How long one of several brokers may take before another is asked too: longer than looking through many queues takes.
_ASK_ANOTHER_SECONDS = 4.0
#: And how long it may take at all. A queue that is on several brokers, one of which goes away in the middle of its deletion, is deleted by force after 5 s for each of them, by
#: whoever is still waiting: a request that is given up earlier deletes nothing, however often it is made.
_ANSWER_SECONDS = 30.0

T = TypeVar("T")


class Management:
    """The API of one broker, or of several that are one. Absent things are no error: somebody else was quicker."""

    def __init__(self, urls: Sequence[str], password: str, vhost: str, credentials: Credentials) -> None:
        #: The one that answered last stands first.
        self._urls = [f"{url}/api" for url in urls]
        self._own = self._urls[:1]
        self._password = password
        self._vhost = quote(vhost, safe="")
        self._credentials = credentials

    async def __aenter__(self) -> Self:
        self._session = self._open()
        # A connection is closed at once, also while many queues wait for a broker that is away.
        self._closing = self._open()
        return self

    def _open(self) -> ClientSession:
        return ClientSession(
            connector=TCPConnector(ssl=tls_context(self._credentials), limit=0, limit_per_host=_AT_ONCE),
            headers={"Authorization": f"Basic {b64encode(f'{MANAGEMENT_USER}:{self._password}'.encode()).decode()}"},
            # From when it is sent: what waits for one of our own connections is not given up in the middle of its work.
            timeout=ClientTimeout(total=None, sock_connect=_ANSWER_SECONDS, sock_read=_ANSWER_SECONDS),
        )

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.gather(self._session.close(), self._closing.close())

    async def close_connections(self, login: str, reason: str) -> None:
        """Every open connection of a login. They are known from their first moment on."""
        path, headers = f"connections/username/{quote(login, safe='')}", {"X-Reason": reason}

        async def close(url: str) -> bool:
            async with self._closing.delete(f"{url}/{path}", headers=headers) as response:
                return await _is_there(response)

        await self._any(close)

    async def connections(self) -> list[tuple[str, str]]:
        """Login and broker of every open connection, from its first moment on: what is counted of connections shows up seconds later."""
        rows = await self._get("connections?disable_stats=true") or []
        # One that has not logged in yet has no login, and no right.
        return [(row["user"], row["node"]) for row in rows if row.get("user")]

    async def own_broker(self) -> str:
        """What the brokers call the one whose API stands first, by its own word."""
        found = await self._get("overview?columns=node", self._own)
        if found is None:
            raise BrokerUnavailable("the broker's management API does not say which broker it is")
        return str(found["node"])

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

    async def arguments_of(self, queue: str) -> dict[str, Any] | None:
        """What a queue was declared with; None when it is not there."""
        found = await self._get(f"queues/{self._vhost}/{quote(queue, safe='')}?columns=arguments")
        return dict(found["arguments"]) if found is not None else None

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        """A policy for queues."""
        body = {"pattern": pattern, "definition": dict(definition), "apply-to": "queues"}

        async def put(url: str) -> bool:
            async with self._session.put(f"{url}/policies/{self._vhost}/{name}", json=body) as response:
                return await _is_there(response)

        await self._any(put)

    async def has_policy(self, name: str) -> bool:
        return await self._get(f"policies/{self._vhost}/{name}") is not None

    async def delete_policy(self, name: str) -> bool:
        return await self._delete(f"policies/{self._vhost}/{name}")

    async def brokers(self) -> list[dict[str, Any]]:
        """Each broker of the cluster as it describes itself: running or not, alarms, open files."""
        return await self._get("nodes") or []

    async def queues(self) -> list[str]:
        return await self._names("queues")

    async def exchanges(self) -> list[str]:
        return await self._names("exchanges")

    async def _names(self, what: str) -> list[str]:
        # All at once: a broker looks at all of them for each page of 500. Of 10,000 queues: 0.3 s, and 5.5 s of its processor in pages.
        rows = await self._get(f"{what}/{self._vhost}?columns=name") or []
        return [row["name"] for row in rows]

    async def _get(self, path: str, urls: Sequence[str] | None = None) -> Any:
        async def get(url: str) -> Any:
            async with self._session.get(f"{url}/{path}") as response:
                return json.loads(await response.read()) if await _is_there(response) else None

        return await self._any(get, urls)

    async def _delete(self, path: str) -> bool:
        async def delete(url: str) -> bool:
            async with self._session.delete(f"{url}/{path}") as response:
                return await _is_there(response)

        return await self._any(delete)

    async def _any(self, ask: Callable[[str], Awaitable[T]], urls: Sequence[str] | None = None) -> T:
        """What the first broker says that answers, of all or of some. One that is slow goes on while the next is asked."""
        failure = BrokerUnavailable("no management API is configured")
        left = list(self._urls if urls is None else urls)
        asked: dict[asyncio.Task[T], str] = {}
        try:
            while left or asked:
                if left:
                    url = left.pop(0)
                    asked[asyncio.ensure_future(ask(url))] = url
                done, _ = await asyncio.wait(asked, timeout=_ASK_ANOTHER_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    url = asked.pop(task)
                    try:
                        answer = task.result()
                    except BrokerUnavailable as error:
                        failure = error
                    except (ClientError, TimeoutError, OSError, ValueError) as error:
                        failure = BrokerUnavailable(f"the broker's management API did not answer: {error or type(error).__name__}")
                        failure.__cause__ = error
                    else:
                        self._urls.sort(key=lambda known: known != url)
                        return answer
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise failure


async def _is_there(response: ClientResponse) -> bool:
    if response.status == 404:
        return False
    if response.status >= 400:
        text = (await response.text())[:200]
        raise BrokerUnavailable(f"the broker's management API answered {response.status}: {text}")
    return True
