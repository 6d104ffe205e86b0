"""Asking many nodes at once, and giving what they answer as it comes: each topic once, each verified (T15, T16).

Every node that answers a broadcast `locate` is asked by itself, sealed to its key, so that a broker sees neither query nor answer. A
node that does not answer the broadcast is taken to be absent; one whose policy does not serve us says so there. Sealed topics, which no
node can search, are fetched by time alone and matched here, those that our key opens (T9). When no node is there at all, the question
goes to the entities that offered to answer (T17). Which way a question takes to a node, and how old an answer without the broker may be,
is the session's to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from entity_client import peers
from entity_client.objects import LocatedNode, Topic, read_topic
from entity_client.patience import Patience
from entity_client.session import Session
from tdn.errors import BrokerUnavailable, NoNodeAnswered, Refused, TdnError, UsageError
from tdn.protocol import names
from tdn.protocol.names import check_uuid
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.queries.compile import compile_query
from tdn.queries.model import Query, finds
from tdn.queries.times import ANY_TIME, Times
from tdn.trust import sealed
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

logger = logging.getLogger(__name__)

#: Sealed topics asked for at a time, where a query is matched on them here.
_SEALED_AT_ONCE = 1000

#: How long one discovery may try its key on sealed topics, in all; and how many are remembered.
_OPENING_SECONDS = 2.0
_SEALED_KNOWN = 100_000
#: A cursor before every topic.
_BEGINNING = "1000-01-01T00:00:00Z_00000000-0000-4000-8000-000000000000"
#: Nodes that were about a moment ago and have not answered for so long: it is found out who is about now.
_PROMPT_SECONDS = 0.5
#: How long what has come is held back for a node that may have an earlier topic. Only one that hangs, or just died, takes longer.
_TOGETHER_SECONDS = 0.5
#: Before everybody is asked again when the connection was lost and nobody had answered.
_AGAIN_SECONDS = 0.3
#: The source that stands for nodes that are not located yet. No node has this id.
_LOCATING = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: a query in its language, times, or both."""

    language: str = "string"
    query: str | None = None
    times: Times = ANY_TIME

    def compiled(self) -> Query | None:
        """The query, compiled here: for sealed topics, and to say what is wrong with it before anybody is asked."""
        return compile_query(self.language, self.query) if self.query is not None else None

    def as_body(self) -> dict[str, Any]:
        """As a `discover` carries it."""
        body: dict[str, Any] = {}
        if self.query is not None:
            body |= {"language": self.language, "query": self.query}
        if times := self.times.as_object():
            body["times"] = times
        return body


class Arrivals:
    """Topics from several sources, each in the order of answers, made one stream in that order.

    Nodes store different topics, and one may be quick. If its topics were shown as they come, a limit would be used up by later topics
    again and again, and the earlier ones of another node never be reached. A source that is late is not waited for any longer.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Topic]] = {}
        self._open: set[str] = set()
        self._late: set[str] = set()
        self._news = asyncio.Event()

    def begin(self, source: str) -> None:
        self._waiting.setdefault(source, deque())
        self._open.add(source)

    def add(self, source: str, topic: Topic) -> None:
        self._waiting[source].append(topic)
        self._late.discard(source)
        self._news.set()

    def end(self, source: str) -> None:
        self._open.discard(source)
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[Topic]:
        """Until every source has ended."""
        while True:
            while (topic := self._next()) is not None:
                yield topic
            if not self._open:
                return
            self._news.clear()
            held_back = any(self._waiting.values())
            try:
                async with asyncio.timeout(_TOGETHER_SECONDS if held_back else None):
                    while not self._wakes(held_back):
                        await self._news.wait()
                        self._news.clear()
            except TimeoutError:
                self._late |= self._missing()

    def _wakes(self, held_back: bool) -> bool:
        """Whether there is something to show, or a reason to begin to wait for the rest; or nothing more to come."""
        return not self._open or (any(self._waiting.values()) and (not held_back or not self._missing()))

    def _missing(self) -> set[str]:
        return {source for source in self._open - self._late if not self._waiting[source]}

    def _next(self) -> Topic | None:
        heads = [(topics[0].place, source) for source, topics in self._waiting.items() if topics]
        return self._waiting[min(heads)[1]].popleft() if heads and not self._missing() else None


class Discovery:
    """An asynchronous iterator of topics. After it has ended, `cursor` says where to go on and `silent` who did not finish."""

    def __init__(
        self, client: EntityClient, session: Session, *, wanted: Wanted, nodes: frozenset[str], limit: int, cursor: str | None
    ) -> None:
        self._client = client
        self._session = session
        self._wanted = wanted
        self._query = wanted.compiled()
        self._body: dict[str, Any] = {"limit": limit, "after": client.seen, **wanted.as_body()}
        if cursor is not None:
            self._body["cursor"] = cursor
        self._nodes = nodes
        self._limit = limit
        #: Where the next page begins, when there is more.
        self.cursor: str | None = None
        #: Nodes that answered all of it, nodes that began or were named and did not, and nodes that answer others only.
        self.answered: set[str] = set()
        self.silent: set[str] = set()
        self.declined: set[str] = set()
        #: Nodes that answered with an error, such as a query that took too long there.
        self.failed: dict[str, str] = {}
        #: Sealed topics that were not tried, because trying those before them took too long.
        self.unopened = 0
        self._opening_seconds = 0.0
        #: Entities that answered for their own topics, because no node was there.
        self.peers: set[str] = set()
        #: Advertisements that did not verify, with who gave them. Never shown, never silently dropped.
        self.disbelieved: list[tuple[str, str]] = []

    def __aiter__(self) -> AsyncIterator[Topic]:
        return self._run()

    async def _run(self) -> AsyncIterator[Topic]:
        deadline = time.monotonic() + self._client.timeout
        shown: dict[str, str] = {}
        left_out: set[str] = set()
        while True:
            errors: list[TdnError] = []
            async with contextlib.aclosing(self._try(errors, shown, left_out)) as topics:
                async for topic in topics:
                    yield topic
            if not self._was_cut(errors) or time.monotonic() + _AGAIN_SECONDS >= deadline:
                break
            # A question has no effect: it is asked again, over a new connection (T22).
            self.silent.clear()
            await asyncio.sleep(_AGAIN_SECONDS)
        self._mind(left_out, shown.values())
        if not self.answered and not self.peers:
            raise errors[0] if errors else self._nobody()

    async def _try(self, errors: list[TdnError], shown: dict[str, str], left_out: set[str]) -> AsyncGenerator[Topic, None]:
        """Ask everybody once; what was shown before is not shown again."""
        arrived = Arrivals()
        arrived.begin(_LOCATING)
        feeding = asyncio.create_task(self._feed(arrived, errors))
        try:
            async for topic in arrived:
                if topic.uuid in shown:
                    continue
                if len(shown) == self._limit:
                    left_out.add(topic.place)
                    continue
                shown[topic.uuid] = topic.place
                yield topic
            await feeding
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    def _was_cut(self, errors: list[TdnError]) -> bool:
        """Whether nobody's answer came because the connection was lost meanwhile."""
        heard = self.answered or self.peers or self.declined or self.failed
        return not heard and any(isinstance(error, BrokerUnavailable) for error in errors)

    def _nobody(self) -> TdnError:
        if self.declined:
            return Refused(f"every node that is there answers others only: {', '.join(sorted(self.declined))}")
        return NoNodeAnswered("no node answered; is one running? (`tdn status`)")

    async def _feed(self, arrived: Arrivals, errors: list[TdnError]) -> None:
        """Ask the nodes that were about a moment ago, or locate, and ask every node as soon as it has answered."""
        asking: dict[str, asyncio.Task[None]] = {}

        def ask(node: LocatedNode) -> None:
            if node.id in self._nodes or node.serves(self._client.asker):
                arrived.begin(node.id)
                asking[node.id] = asyncio.create_task(self._ask(node, arrived, errors))
            else:
                self.declined.add(node.id)

        try:
            remembered = self._client.nodes_about() if not self._nodes else []
            for node in remembered:
                ask(node)
            waiting = set(asking.values())
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=_PROMPT_SECONDS)
            if waiting or not (self.answered or self.failed or self.declined):
                for silent in self.silent:
                    # Its answer was lost, with the connection perhaps. If it is about, it is asked again.
                    asking.pop(silent, None)
                present = await self._locate(ask, asking)
                for gone in asking.keys() - present:
                    # It was about, and is not any more: nobody waits for it.
                    if not asking[gone].done():
                        asking[gone].cancel()
                        self.silent.add(gone)
            arrived.end(_LOCATING)
            for ended in await asyncio.gather(*asking.values(), return_exceptions=True):
                if isinstance(ended, Exception):
                    # Ours to look into: what nodes do wrong has become one of our errors before.
                    raise ended
            self.silent |= self._nodes - self.failed.keys() - self.declined
            self.silent -= self.answered
        except NoNodeAnswered as error:
            # Silence, so none is there: one that declines says so. A named node has no substitute.
            errors.append(error)
            self._client.forget_nodes()
            if not self._nodes and not self.answered:
                for task in asking.values():
                    task.cancel()
                await self._ask_peers(arrived, errors)
        except TdnError as error:
            errors.append(error)
        finally:
            for asked, task in asking.items():
                task.cancel()
                # One that was cancelled before it began does not say so itself, and would be waited for without end.
                arrived.end(asked)
            arrived.end(_LOCATING)

    async def _locate(self, ask: Callable[[LocatedNode], None], asking: Mapping[str, object]) -> set[str]:
        """Ask whoever answers a locate and was not asked yet; who answered it."""
        found: list[LocatedNode] = []
        async with contextlib.aclosing(self._client.locate(expect=self._nodes)) as located:
            async for node in located:
                found.append(node)
                if node.id not in asking and (not self._nodes or node.id in self._nodes):
                    ask(node)
                if self._nodes and self._nodes <= asking.keys():
                    break
        if not self._nodes:
            self._client.remember_nodes(found)
        return {node.id for node in found}

    async def _ask_peers(self, arrived: Arrivals, errors: list[TdnError]) -> None:
        try:
            async for answer in peers.ask(self._session, self._body, seconds=peers.GATHER_SECONDS):
                self.peers.add(answer.peer)
                if answer.cursor is not None and _is_place(answer.cursor) and answer.cursor > self._body.get("cursor", ""):
                    self._note_cursor(answer.cursor)
                arrived.begin(answer.peer)
                for line in answer.lines:
                    topic = self._read(answer.peer, line)
                    # What a peer says is its own and matches is looked at again: nobody else has checked it.
                    if (
                        topic is not None
                        and topic.owner == answer.peer
                        and self._wanted.times.admit(topic.advertisement.created, topic.expires)
                        and self._matches(topic)
                    ):
                        arrived.add(answer.peer, topic)
                arrived.end(answer.peer)
        except TdnError as error:
            # It says more than that no node answered, which comes before it.
            errors.insert(0, error)

    async def _ask(self, node: LocatedNode, arrived: Arrivals, errors: list[TdnError]) -> None:
        """Ask one node, and again from its cursor on, until it has given as many topics as are wanted, or all."""
        body = dict(self._body)
        try:
            while True:
                given, held, reply = await self._ask_once(node, body, arrived)
                cursor = reply.get("cursor")
                if "sealed" in reply:
                    held += await self._ask_sealed(node, body.get("cursor"), cursor)
                    for topic in sorted(held, key=lambda topic: topic.place):
                        arrived.add(node.id, topic)
                if cursor is None or given == 0 or given >= body["limit"]:
                    break
                body |= {"cursor": cursor, "limit": body["limit"] - given}
            self._note_cursor(cursor)
            self.answered.add(node.id)
        except TdnError as error:
            errors.append(error)
            if "declined" in error.detail:
                self.declined.add(node.id)
            elif isinstance(error, NoNodeAnswered | BrokerUnavailable):
                self.silent.add(node.id)
                self._client.forget_nodes()
            else:
                self.failed[node.id] = str(error)
        finally:
            arrived.end(node.id)

    async def _ask_sealed(self, node: LocatedNode, since: str | None, until: str | None) -> list[Topic]:
        """The sealed topics between two places that we can open and that match."""
        body: dict[str, Any] = {name: self._body[name] for name in ("after", "times") if name in self._body}
        body |= {"limit": _SEALED_AT_ONCE, "sealed": True}
        if since is not None:
            body["cursor"] = since
        matching: list[Topic] = []
        while True:
            given, topics, reply = await self._ask_once(node, body, None)
            matching += [topic for topic in topics if (until is None or topic.place <= until) and self._matches(topic)]
            cursor = reply.get("cursor")
            if cursor is None or given == 0 or self.unopened or (until is not None and cursor >= until):
                return matching
            body["cursor"] = cursor

    async def _ask_once(
        self, node: LocatedNode, body: dict[str, Any], arrived: Arrivals | None
    ) -> tuple[int, list[Topic], dict[str, Any]]:
        """One answer in its pages: how many topics it gave, those that have not been passed on, and what its last page says.

        Topics are passed on page by page, unless there are sealed ones to be put between them.
        """
        expected, given = 1, 0
        held: list[Topic] = []
        patience = Patience(self._client.timeout)
        answers = self._session.ask("discover", body, node.identity, key=names.topics_key(node.id), patience=patience)
        async with contextlib.aclosing(answers):
            async for reply in answers:
                if reply.kind != "discovered" or reply.body["page"] != expected:
                    continue
                expected += 1
                given += reply.body["count"]
                for line in (reply.tail or b"").split(b"\n") if reply.body["count"] else ():
                    topic = self._read(node.id, line, reply.as_of)
                    if topic is not None and (arrived is None or "sealed" in reply.body):
                        held.append(topic)
                    elif topic is not None and arrived is not None:
                        arrived.add(node.id, topic)
                if reply.body["last"]:
                    return given, held, dict(reply.body)
        raise NoNodeAnswered(f"node {node.id} did not answer in time")

    def _read(self, giver: str, line: bytes, as_of: datetime | None = None) -> Topic | None:
        try:
            topic = read_topic(line, by_roots(self._session.credentials.roots), self._session.network, None)
            if as_of is not None:
                topic = replace(topic, as_of=as_of)
            return self._opened(topic) if topic.is_sealed else topic
        except TdnError as error:
            self.disbelieved.append((giver, str(error)))
            logger.warning("%s gave an advertisement that does not verify: %s", giver, error)
            return None

    def _opened(self, topic: Topic) -> Topic:
        """A sealed topic, opened if it is sealed for us. Tried once for all nodes and all discoveries, and not without end: anybody can
        make many that are for nobody."""
        told, known = topic.advertisement, self._client.sealed_before
        if told.digest not in known:
            if self._opening_seconds > _OPENING_SECONDS:
                self.unopened += 1
                return topic
            started = time.perf_counter()
            if len(known) >= _SEALED_KNOWN:
                known.clear()
            known[told.digest] = sealed.open_descriptor(
                told.descriptor, creator=told.creator, network=told.network, key=self._session.credentials.key
            )
            self._opening_seconds += time.perf_counter() - started
        return replace(topic, opened=known[told.digest])

    def _matches(self, topic: Topic) -> bool:
        return self._query is None or finds(self._query, topic.subject)

    def _mind(self, left_out: set[str], shown: Iterable[str]) -> None:
        """A node that lags may have filled the answer with later topics: go on before the first that was left out."""
        if left_out:
            first = min(left_out)
            before = max((place for place in shown if place < first), default=self._body.get("cursor", _BEGINNING))
            self.cursor = before if self.cursor is None else min(self.cursor, before)

    def _note_cursor(self, cursor: str | None) -> None:
        """Several nodes end in several places; going on from the earliest misses nothing."""
        if cursor is not None:
            self.cursor = cursor if self.cursor is None else min(self.cursor, cursor)


def _is_place(cursor: str) -> bool:
    """Whether a cursor is one of ours. A node's was made by a node; an entity can write anything. A time that is written in another way
    would stand elsewhere in the order of texts than in time: `14:00:00+14:00` is midnight."""
    created, _, uuid = cursor.partition("_")
    try:
        return format_time(whole_seconds(parse_time(created))) == created and check_uuid(uuid) == uuid
    except UsageError:
        return False
