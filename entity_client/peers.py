"""Discovery among entities while no node is there (T17): asking those that offered to answer, and answering for one's own topics.

Nodes have made the queues while they were there: one for the answers to our questions, and one for others' questions if we offered. The
guard opens the way between entities only while no node ticks. A question goes to every entity that offered, once, and lives for seconds;
nobody passes it on. An answer holds the answerer's own topics, as far as its lists let the asker see them, one page at most, sealed to
the asker. Who has nothing to show says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entity_client.objects import Topic, read_topic
from entity_client.patience import Patience
from entity_client.session import Session
from tdn.bus.connection import Channel, Connection, Delivery
from tdn.confined.lanes import Lanes, Limits
from tdn.errors import BrokerUnavailable, NoNodeAnswered, TdnError, TrustError, UsageError
from tdn.protocol import jsontext, names
from tdn.protocol.access import Asker
from tdn.protocol.names import Role
from tdn.protocol.rates import Rate
from tdn.protocol.times import format_time
from tdn.queries.times import read_times
from tdn.trust import envelope, sealing, signing
from tdn.trust.certificates import Identity
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_QUESTION_LIFE, ReplayWindow
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

logger = logging.getLogger(__name__)

#: How long answers of entities are waited for.
GATHER_SECONDS = 3.0
_AUDIENCE = "tdn:peers"
#: How long a question or an answer counts.
_LIFE = timedelta(seconds=20)
#: A queue that was made so long ago is asked for anew while nodes are there; it lasts for a week without use.
_QUEUE_GOOD_FOR = timedelta(days=1)
#: Bytes of topics in an answer: one page, as a node's.
_ANSWER_BYTES = 140_000
#: Bytes of advertisements whose descriptors go into one job of a search process.
_JOB_BYTES = 1_000_000
#: Topics that one entity answers for at most. A node does better by then.
_MOST_TOPICS = 10_000
#: Between looks at a node for one's own topics, while there is one; and between tries to connect.
_REFRESH_SECONDS = 60.0
_AGAIN_SECONDS = 1.0


# --- queues ---


@dataclass(frozen=True, slots=True)
class PeerQueue:
    """A remembered queue: the secret half of its name, and when a node made it."""

    session: str
    made: datetime


def recall_queue(folder: Path, purpose: str) -> PeerQueue | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads((folder / f"peer-{purpose}.json").read_text("utf-8"))
        if names.is_session(said["session"]):
            return PeerQueue(said["session"], datetime.fromtimestamp(float(said["made"]), UTC))
    return None


async def ready_queue(client: EntityClient, session: Session, purpose: str) -> PeerQueue:
    """A queue for the time without nodes, made by a node now unless a fresh one is remembered."""
    known = recall_queue(session.credentials.folder, purpose)
    if known is not None and datetime.now(UTC) - known.made < _QUEUE_GOOD_FOR:
        return known
    secret = await client.peer_queue(answers=purpose == "answer")
    made = PeerQueue(secret, datetime.now(UTC))
    with contextlib.suppress(OSError):
        path = session.credentials.folder / f"peer-{purpose}.json"
        path.write_text(json.dumps({"session": secret, "made": made.made.timestamp()}) + "\n", "utf-8")
        path.chmod(0o600)
    return made


# --- asking ---


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What an entity says of its own topics: lines that are not yet verified, and where it would go on."""

    peer: str
    lines: list[bytes]
    cursor: str | None


async def ask(session: Session, body: Mapping[str, Any], *, seconds: float) -> AsyncIterator[PeerAnswer]:
    """Ask the entities that offered to answer."""
    queue = recall_queue(session.credentials.folder, "ask")
    if queue is None:
        raise NoNodeAnswered("no node answered, and other entities can be asked only by those that a node knew before")
    connection = await session.line(seconds + 5)
    # A channel of its own: the broker closes it when the way between entities is not open.
    channel = await connection.channel(confirms=True)
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    own = session.credentials.identity.name
    try:
        await channel.consume(names.peer_queue(own, queue.session), arrived.put_nowait, no_ack=True, exclusive=True)
        message_id = envelope.new_id()
        question = {name: body[name] for name in ("language", "query", "times", "limit", "cursor") if name in body}
        raw = envelope.write(
            "discover",
            question,
            session.credentials,
            audience=_AUDIENCE,
            now=datetime.now(UTC),
            life=_LIFE,
            message_id=message_id,
            reply=queue.session,
            with_chain=True,
        )
        await channel.publish(names.PEERS, "", raw, expiration_seconds=_LIFE.total_seconds(), login=str(own))
        patience = Patience(seconds)
        heard: set[str] = set()
        while patience.left > 0:
            try:
                async with asyncio.timeout_at(patience.until):
                    delivery = await arrived.get()
            except TimeoutError:
                break
            try:
                reply = _read_answer(session, delivery, message_id)
            except TdnError as error:
                logger.warning("an entity's answer was not believed: %s", error)
                continue
            peer = reply.signer.name.id
            if peer in heard:
                continue
            heard.add(peer)
            yield PeerAnswer(peer, (reply.tail or b"").split(b"\n"), reply.body.get("cursor"))
        if not heard:
            raise NoNodeAnswered("no node answered, and no other entity that has such a topic")
    except BrokerUnavailable as error:
        raise NoNodeAnswered(f"no node answered, and other entities could not be asked: {error}") from error
    except TrustError as error:
        raise NoNodeAnswered(
            "no node answered; other entities can be asked once the nodes have been silent for a while"
        ) from error
    finally:
        await channel.close()


def _read_answer(session: Session, delivery: Delivery, message_id: str) -> Envelope:
    """An entity's answer to our question: sealed to us, signed by it and sent by its login, fresh."""
    raw = sealing.unseal(delivery.body, session.credentials.key)
    reply = envelope.authenticate(raw, _entity(session))
    _require_login(delivery, reply)
    envelope.require_addressed(
        reply,
        audiences=frozenset({session.credentials.identity.name.principal}),
        now=datetime.now(UTC),
        longest=MAX_QUESTION_LIFE,
    )
    if reply.kind != "discovered" or reply.answers != message_id:
        raise TrustError("not an answer to what was asked")
    return reply


def _entity(session: Session) -> Callable[[signing.Header], Identity]:
    """Who signed, by the chain that comes along: an entity of this network's roots."""

    def identify(header: signing.Header) -> Identity:
        if not header.chain:
            raise TrustError("the message does not carry its certificate chain")
        found = session.credentials.roots.identify(header.chain, at=datetime.now(UTC))
        if found.name.role is not Role.ENTITY:
            raise TrustError(f"signed by {found.name.principal}; only entities ask and answer each other")
        return found

    return identify


# --- answering ---


@dataclass(frozen=True, slots=True)
class Answered:
    """A question that was answered."""

    asker: str
    topics: int

    def as_object(self) -> dict[str, Any]:
        return {"asker": self.asker, "topics": self.topics, "at": format_time(datetime.now(UTC))}


class Answering:
    """Stays, and answers for one's own topics while no node is there. Own topics are fetched, with their lists, while one is."""

    def __init__(self, client: EntityClient, session: Session) -> None:
        self._client = client
        self._session = session
        self._window = ReplayWindow()
        self._rate = Rate(burst=20, per_second=2.0, clock=time.monotonic)
        self._all = Rate(burst=100, per_second=20.0, clock=time.monotonic)
        self._topics: list[Topic] = []
        self._lanes = Lanes("entity_client.matching:matcher", {}, limits=Limits(slow_seconds=5.0))
        self._answers: Channel | None = None
        self.ready = asyncio.Event()

    @property
    def topics(self) -> int:
        """How many topics it answers for."""
        return len(self._topics)

    async def run(self) -> AsyncGenerator[Answered, None]:
        """Answer until the caller stops. Gives every question that was answered."""
        answered: asyncio.Queue[Answered] = asyncio.Queue()
        self._recall()
        await self._lanes.start()
        tasks = [asyncio.create_task(self._refresh()), asyncio.create_task(self._serve(answered))]
        try:
            while True:
                getting = asyncio.create_task(answered.get())
                await asyncio.wait([getting, *tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        getting.cancel()
                        task.result()
                yield getting.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._lanes.close()

    async def _refresh(self) -> None:
        """Learn of one's own topics from the nodes, again and again, while there are any."""
        while True:
            try:
                await ready_queue(self._client, self._session, "answer")
                await self._fetch()
                self._remember()
                self.ready.set()
            except TdnError as error:
                # Whatever it is, what is known stays, and is answered for.
                logger.info("nothing learnt from a node: %s", error)
                if recall_queue(self._session.credentials.folder, "answer") is not None:
                    self.ready.set()
            await asyncio.sleep(_REFRESH_SECONDS)

    async def _fetch(self) -> None:
        own = self._client.identity.name.id
        found: list[Topic] = []
        cursor = None
        while True:
            discovery = self._client.discover(f"owner = '{own}'", language="sql", limit=_MOST_TOPICS, cursor=cursor)
            page = [topic async for topic in discovery if topic.owner == own and topic.opening is not None]
            if not discovery.answered:
                # Other entities answered in the nodes' place. What they say of our topics is nothing to go by.
                raise NoNodeAnswered("no node answered")
            found += page
            cursor = discovery.cursor
            if cursor is None or not page or len(found) >= _MOST_TOPICS:
                break
        self._topics = found[:_MOST_TOPICS]

    def _path(self) -> Path:
        return self._session.credentials.folder / "answering.json"

    def _remember(self) -> None:
        """So that answering can begin while no node is there."""
        with contextlib.suppress(OSError):
            self._path().write_text(json.dumps([topic.line().decode() for topic in self._topics]), "utf-8")
            self._path().chmod(0o600)

    def _recall(self) -> None:
        credentials = self._session.credentials
        with contextlib.suppress(OSError, ValueError):
            for line in json.loads(self._path().read_text("utf-8")):
                with contextlib.suppress(TdnError, AttributeError):
                    topic = read_topic(line.encode(), by_roots(credentials.roots), self._session.network, credentials.key)
                    if topic.owner == credentials.identity.name.id and topic.opening is not None:
                        self._topics.append(topic)

    async def _serve(self, answered: asyncio.Queue[Answered]) -> None:
        """Take questions off our queue, over as many connections as it takes."""
        await self.ready.wait()
        while True:
            try:
                await self._serve_once(answered)
            except TdnError as error:
                logger.info("connecting again: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _serve_once(self, answered: asyncio.Queue[Answered]) -> None:
        queue = recall_queue(self._session.credentials.folder, "answer")
        if queue is None:
            return
        connection = await self._session.line(10.0)
        questions = await connection.channel(prefetch=8)
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        await questions.consume(
            names.peer_queue(self._client.identity.name, queue.session), arrived.put_nowait, no_ack=False, exclusive=True
        )
        at_work: set[asyncio.Task[None]] = set()
        try:
            while not questions.closed.done() and not connection.closed.done():
                getting = asyncio.create_task(arrived.get())
                ends: list[asyncio.Future[Any]] = [getting, questions.closed, connection.closed]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    return
                # Each by itself, as many as the broker hands out at once: one that takes long holds nobody else up.
                task = asyncio.create_task(self._take(getting.result(), questions, connection, answered))
                at_work.add(task)
                task.add_done_callback(at_work.discard)
        finally:
            for task in at_work:
                task.cancel()

    async def _take(
        self, delivery: Delivery, questions: Channel, connection: Connection, answered: asyncio.Queue[Answered]
    ) -> None:
        try:
            told = await self._answer(delivery, connection)
            if told is not None:
                answered.put_nowait(told)
        except TdnError as error:
            logger.info("a question was not answered: %s", error)
        except Exception:
            # Ours to look into. One question must not keep the others from being taken.
            logger.exception("a question could not be answered")
        finally:
            if not questions.closed.done():
                questions.ack(delivery.tag)

    async def _replies(self, connection: Connection) -> Channel:
        """A channel for answers: the broker closes it when the way between entities is shut."""
        if self._answers is None or self._answers.closed.done():
            self._answers = await connection.channel(confirms=True)
        return self._answers

    async def _answer(self, delivery: Delivery, connection: Connection) -> Answered | None:
        question = self._admit(delivery)
        who = question.signer
        asker = who.asker
        body = question.body
        if who.name.id == self._client.identity.name.id:
            return None
        if not self._rate.take(who.name.principal) or not self._all.take(""):
            logger.info("%s asks too often", who.name.principal)
            return None
        found = await self._find(asker, body)
        if not found:
            return None
        lines, more = _page(found, body["limit"])
        page: dict[str, Any] = {"page": 1, "last": True, "count": len(lines)}
        if more is not None:
            page["cursor"] = more
        raw = envelope.write(
            "discovered",
            page,
            self._session.credentials,
            audience=who.name.principal,
            now=datetime.now(UTC),
            life=_LIFE,
            answers=question.id,
            tail=b"\n".join(lines),
            with_chain=True,
        )
        replies = await self._replies(connection)
        await replies.publish(
            names.PEER_REPLIES,
            names.peer_queue(who.name, question.reply or ""),
            sealing.seal(raw, who.public_key),
            expiration_seconds=_LIFE.total_seconds(),
            login=str(self._client.identity.name),
        )
        return Answered(who.name.id, len(lines))

    def _admit(self, delivery: Delivery) -> Envelope:
        """A question of an entity that the broker knows by this very key, for now, and not for the second time."""
        now = datetime.now(UTC)
        if len(delivery.body) > jsontext.MAX_REQUEST_BYTES:
            raise UsageError("a question that is too long")
        question = envelope.authenticate(delivery.body, _entity(self._session))
        _require_login(delivery, question)
        envelope.require_addressed(question, audiences=frozenset({_AUDIENCE}), now=now, longest=MAX_QUESTION_LIFE)
        if question.kind != "discover" or question.reply is None or question.body.get("sealed") or question.body.get("count"):
            raise UsageError("entities answer discoveries alone")
        self._window.admit(str(question.signer.name), question.id, question.expires, now)
        return question

    async def _find(self, asker: Asker, body: Mapping[str, Any]) -> list[Topic]:
        """Own live topics that the asker may see and that match, in the order of answers. The query runs where it can be killed."""
        now = datetime.now(UTC)
        times = read_times(body.get("times", {}))
        after = body.get("cursor", "")
        visible = sorted(
            (
                topic
                for topic in self._topics
                if topic.expires > now
                and topic.lists is not None
                # What ancestors bar is not ours to know, so of a child nobody can be told without a node.
                and topic.hides.parent is None
                and topic.lists.admit(asker, topic.owner)
                and times.admit(topic.advertisement.created, topic.expires)
                and topic.place > after
            ),
            key=lambda topic: topic.place,
        )
        if "query" not in body:
            return visible
        candidates = [topic for topic in visible if not topic.is_sealed]
        matching: set[str] = set()
        for part in _parts(candidates):
            job = {
                "language": body.get("language", "string"),
                "query": body["query"],
                "subjects": [{**asdict(topic.subject), "descriptor": dict(topic.subject.descriptor)} for topic in part],
            }
            said, _ = await self._lanes.run(job, asker=asker.entity or "", heavy=job["language"] == "xquery")
            matching |= {part[number].uuid for number in said["matches"]}
        # Sealed ones go along, as a node would give them: whoever can open them matches them itself (T9).
        return [topic for topic in visible if topic.is_sealed or topic.uuid in matching]


def _require_login(delivery: Delivery, message: Envelope) -> None:
    """The guard lets no revoked key in; the login ties the signature to what it let in."""
    if delivery.login != str(message.signer.name):
        raise TrustError("the message came by another login than its signature names")


def _parts(topics: list[Topic]) -> Iterator[list[Topic]]:
    """Topics in parts that fit into a job."""
    part: list[Topic] = []
    size = 0
    for topic in topics:
        size += len(topic.token)
        if part and size > _JOB_BYTES:
            yield part
            part, size = [], len(topic.token)
        part.append(topic)
    if part:
        yield part


def _page(topics: list[Topic], limit: int) -> tuple[list[bytes], str | None]:
    """One page of them, without what they hide, and where the rest begins."""
    lines: list[bytes] = []
    size = 0
    for number, topic in enumerate(topics):
        line = topic.line(hidden=False)
        size += len(line) + 1
        if number and (size > _ANSWER_BYTES or number == limit):
            return lines, topics[number - 1].place
        lines.append(line)
    return lines, None
