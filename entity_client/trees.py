"""Hierarchies and collections as an application sees them: `client.hierarchy` and `client.collections` (T27 to T36).

Whatever is shown was verified: each topic against its own advertisement, a child's parent against what that advertisement hides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from entity_client.objects import Decided, Placed, read_placed
from entity_client.session import Session
from entity_client.watching import Watching
from tdn.errors import TrustError, UsageError
from tdn.protocol.names import check_uuid
from tdn.trust.envelope import Envelope
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

_OF_HIERARCHIES = ("parents", "children", "tree")
#: How long a node may take to look at a tree: a little more than it gives itself.
_LOOK_SECONDS = 7.0


class _Trees:
    """What both have: looking and following."""

    def __init__(self, client: EntityClient, session: Session) -> None:
        self._client = client
        self._session = session

    def watch(self, uuid: str, *, since: int | None = None) -> Watching:
        """Follow changes as they happen (T29, T35): an asynchronous iterator that ends when that has ended itself.

        Without `since`, from now on; with it, from what was told after that version, which is kept for a while.
        """
        return Watching(self._client, self._session, check_uuid(uuid), since)

    async def unwatch(self, uuid: str) -> Decided:
        """Follow no longer. What was told is forgotten."""
        return await self._client.change("unwatch", {"uuid": check_uuid(uuid)})

    async def _look(self, what: str, uuid: str, depth: int | None, countersigned: str | None) -> AsyncGenerator[Placed, None]:
        body: dict[str, Any] = {"uuid": check_uuid(uuid), "what": what, "after": self._client.seen}
        if depth is not None:
            if depth < 1:
                raise UsageError("a depth is 1 or more")
            body["depth"] = depth
        if countersigned is not None:
            body["countersigned"] = countersigned
        asking: asyncio.Task[list[Envelope]] | None = asyncio.create_task(self._ask(body))
        try:
            while asking is not None:
                pages = await asking
                cursor = pages[-1].body.get("cursor")
                asking = asyncio.create_task(self._ask({**body, "cursor": cursor})) if cursor is not None else None
                # It is sent before these are verified: the node looks further while we do.
                await asyncio.sleep(0)
                for page in pages:
                    for placed in self._read(page, in_hierarchy=what in _OF_HIERARCHIES):
                        yield placed
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self, body: dict[str, Any]) -> list[Envelope]:
        return await self._client.ask_pages("tree", body, is_last=_is_last, within_seconds=_LOOK_SECONDS)

    def _read(self, page: Envelope, *, in_hierarchy: bool) -> list[Placed]:
        if page.kind != "placed":
            raise TrustError(f"a {page.kind} is no answer to what was asked")
        credentials = self._session.credentials
        identify = by_roots(credentials.roots)
        lines = page.tail.split(b"\n") if page.tail else []
        network = self._session.network
        seen = [read_placed(line, identify, network, credentials.key, in_hierarchy=in_hierarchy) for line in lines]
        return seen if page.as_of is None else [replace(one, topic=replace(one.topic, as_of=page.as_of)) for one in seen]


class Hierarchy(_Trees):
    """Topics below topics. Register a child with `client.create(…, parent=…)`."""

    def parents(self, uuid: str, *, depth: int | None = None, countersigned: str | None = None) -> AsyncGenerator[Placed, None]:
        """The ancestors, the nearest first, as far as they show."""
        return self._look("parents", uuid, depth, countersigned)

    def children(self, uuid: str, *, depth: int | None = None, countersigned: str | None = None) -> AsyncGenerator[Placed, None]:
        """The topics directly below, or down to a depth."""
        return self._look("children", uuid, depth, countersigned)

    def tree(self, uuid: str, *, depth: int | None = None, countersigned: str | None = None) -> AsyncGenerator[Placed, None]:
        """The topic itself and all below it, each before its children; or down to a depth."""
        return self._look("tree", uuid, depth, countersigned)


class Collections(_Trees):
    """Collections of topics and of collections. Create one with `client.create_collection`."""

    async def add(self, collection: str, uuid: str, *, countersigned: str | None = None) -> Decided:
        """Put a topic or collection of one's own into a collection (T33); with its owner's countersignature, another's."""
        body = {"collection": check_uuid(collection), "uuid": check_uuid(uuid)}
        return await self._client.change("add", _with(body, countersigned))

    async def remove(self, collection: str, uuid: str) -> Decided:
        """Take a member out: one's own, or out of one's own collection."""
        return await self._client.change("remove", {"collection": check_uuid(collection), "uuid": check_uuid(uuid)})

    async def move(self, uuid: str, *, source: str, target: str, countersigned: str | None = None) -> Decided:
        """Out of one collection and into another, both or neither (T34)."""
        body = {"uuid": check_uuid(uuid), "from": check_uuid(source), "to": check_uuid(target)}
        return await self._client.change("move", _with(body, countersigned))

    def topics(
        self, collection: str, *, depth: int | None = None, countersigned: str | None = None
    ) -> AsyncGenerator[Placed, None]:
        """The topics in a collection's tree, each once (T36)."""
        return self._look("topics", collection, depth, countersigned)

    def collections(
        self, collection: str, *, depth: int | None = None, countersigned: str | None = None
    ) -> AsyncGenerator[Placed, None]:
        """The collections inside a collection, the nearer first."""
        return self._look("collections", collection, depth, countersigned)

    def containing(
        self, uuid: str, *, depth: int | None = None, countersigned: str | None = None
    ) -> AsyncGenerator[Placed, None]:
        """The collections that a topic or collection is in: those that hold it directly first (T36)."""
        return self._look("of", uuid, depth, countersigned)


def _with(body: dict[str, Any], countersigned: str | None) -> dict[str, Any]:
    return body if countersigned is None else {**body, "countersigned": countersigned}


def _is_last(reply: Envelope) -> bool:
    return bool(reply.body.get("last", True))
