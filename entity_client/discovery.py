"""Asking many nodes at once, and giving what they answer as it comes: each topic once, each verified (T15, T16).

Every node that answers a broadcast `locate` is asked by itself, sealed to its key, so that a broker sees neither query nor answer. A
node that does not answer the broadcast is taken to be absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from entity_client.objects import LocatedNode, Topic, read_topic
from entity_client.session import Patience, Session
from tdn.errors import NoNodeAnswered, TdnError
from tdn.protocol import names
from tdn.protocol.times import format_time
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

logger = logging.getLogger(__name__)


class Discovery:
    """An asynchronous iterator of topics. After it has ended, `cursor` says where to go on and `silent` who did not finish."""

    def __init__(
        self, client: EntityClient, session: Session, *, query: str | None, nodes: frozenset[str], limit: int, cursor: str | None
    ) -> None:
        self._client = client
        self._session = session
        self._body: dict[str, Any] = {"limit": limit, "after": client.seen}
        if query is not None:
            self._body |= {"language": "string", "query": query}
        if cursor is not None:
            self._body["cursor"] = cursor
        self._nodes = nodes
        self._limit = limit
        #: Where the next page begins, when there is more.
        self.cursor: str | None = None
        #: Nodes that answered all of it, and nodes that began or were named and did not.
        self.answered: set[str] = set()
        self.silent: set[str] = set()
        #: Advertisements that did not verify, with their node. Never shown, never silently dropped.
        self.disbelieved: list[tuple[str, str]] = []

    def __aiter__(self) -> AsyncIterator[Topic]:
        return self._run()

    async def _run(self) -> AsyncIterator[Topic]:
        arrived: asyncio.Queue[Topic | None] = asyncio.Queue()
        errors: list[TdnError] = []
        feeding = asyncio.create_task(self._feed(arrived, errors))
        shown: dict[str, str] = {}
        left_out: set[str] = set()
        try:
            while (topic := await arrived.get()) is not None:
                if topic.uuid in shown:
                    continue
                if len(shown) == self._limit:
                    left_out.add(_place(topic))
                    continue
                shown[topic.uuid] = _place(topic)
                yield topic
            await feeding
            self._mind(left_out, shown.values())
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        if not self.answered:
            raise errors[0] if errors else NoNodeAnswered("no node answered; is one running? (`tdn status`)")

    async def _feed(self, arrived: asyncio.Queue[Topic | None], errors: list[TdnError]) -> None:
        """Locate, and ask every node as soon as it has answered."""
        asking: list[asyncio.Task[None]] = []
        try:
            async with contextlib.aclosing(self._client.locate(expect=self._nodes)) as located:
                async for node in located:
                    if not self._nodes or node.id in self._nodes:
                        asking.append(asyncio.create_task(self._ask(node, arrived, errors)))
                    if self._nodes and len(asking) == len(self._nodes):
                        break
            await asyncio.gather(*asking)
            self.silent |= self._nodes - self.answered
        except TdnError as error:
            errors.append(error)
        finally:
            for task in asking:
                task.cancel()
            arrived.put_nowait(None)

    async def _ask(self, node: LocatedNode, arrived: asyncio.Queue[Topic | None], errors: list[TdnError]) -> None:
        """Ask one node, and again from its cursor on, until it has given as many topics as are wanted, or all."""
        body = dict(self._body)
        try:
            while True:
                given, cursor = await self._ask_once(node, body, arrived)
                if cursor is None or given == 0 or given >= body["limit"]:
                    break
                body |= {"cursor": cursor, "limit": body["limit"] - given}
            self._note_cursor(cursor)
            self.answered.add(node.id)
        except TdnError as error:
            errors.append(error)
            self.silent.add(node.id)

    async def _ask_once(
        self, node: LocatedNode, body: dict[str, Any], arrived: asyncio.Queue[Topic | None]
    ) -> tuple[int, str | None]:
        """One answer in its pages: how many topics it gave, and where it would go on."""
        identify = by_roots(self._session.credentials.roots)
        expected, given = 1, 0
        patience = Patience(self._client.timeout)
        answers = self._session.ask("discover", body, node.identity, key=names.topics_key(node.id), patience=patience)
        async with contextlib.aclosing(answers):
            async for reply in answers:
                if reply.kind != "discovered" or reply.body["page"] != expected:
                    continue
                expected += 1
                given += reply.body["count"]
                for line in (reply.tail or b"").split(b"\n") if reply.body["count"] else ():
                    try:
                        arrived.put_nowait(read_topic(line, identify, self._session.network))
                    except TdnError as error:
                        self.disbelieved.append((node.id, str(error)))
                        logger.warning("node %s gave an advertisement that does not verify: %s", node.id, error)
                if reply.body["last"]:
                    return given, reply.body.get("cursor")
        raise NoNodeAnswered(f"node {node.id} did not answer in time")

    def _mind(self, left_out: set[str], shown: Iterable[str]) -> None:
        """A node that lags may have filled the answer with later topics: go on before the first that was left out."""
        if left_out:
            first = min(left_out)
            before = max((place for place in shown if place < first), default=self._body.get("cursor"))
            self.cursor = before if self.cursor is None or before is None else min(self.cursor, before)

    def _note_cursor(self, cursor: str | None) -> None:
        """Several nodes end in several places; going on from the earliest misses nothing."""
        if cursor is not None:
            self.cursor = cursor if self.cursor is None else min(self.cursor, cursor)


def _place(topic: Topic) -> str:
    """Where a topic stands in the order of answers, as cursors write it."""
    return f"{format_time(topic.advertisement.created)}_{topic.uuid}"
