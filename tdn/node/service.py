"""A node's life: connect, catch up, enrol, serve, and start over when the broker went away.

Every message has a task of its own; prefetch bounds how many. A change is acknowledged to the broker only after its answer was sent, so
a killed node's work is redelivered. Nothing that a sender can write ends the node: bad input is answered where the sender is entitled
to an answer, counted, and taken off the queue; what fails by our own fault goes back and, after a few times, to the dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tdn.bus import topology
from tdn.bus.connection import Broker, Channel, Connection, Delivery
from tdn.bus.direct import DirectReplies
from tdn.bus.log import Appender
from tdn.errors import BrokerUnavailable, LogDiverged, MalformedMessage, Refused, TdnError, TrustError, UnknownRules
from tdn.node import changes, questions
from tdn.node.changes import Changes, NoLongerCurrent, require_accepted
from tdn.protocol import jsontext, names
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.replica.replica import Replica
from tdn.rules import principals
from tdn.rules.apply import audience, network_id, requester
from tdn.store.search import Reader
from tdn.trust import envelope, sealing, statements
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_QUESTION_LIFE, ReplayWindow

logger = logging.getLogger(__name__)

#: Changes and questions in work at once.
_PREFETCH = 128
#: Between ticks. Log time, and so expiry in the log, is this fine.
TICK_SECONDS = 5.0
#: How long a reply counts. The asker is waiting for it now.
_REPLY_LIFE = timedelta(minutes=2)

#: How long a question waits for this node to have applied what its asker has already seen in the log.
_READ_OWN_SECONDS = 3.0
#: How far ahead that may be, and how many may wait for it: a made-up number must not hold the node's attention.
_READ_OWN_RECORDS = 10_000
_READ_OWN_ASKERS = 32

SERVES_EVERYONE = {"answers": ["*"], "stores": ["*"]}


@dataclass(frozen=True, slots=True)
class NodeSettings:
    brokers: Sequence[Broker]
    vhost: str
    genesis: bytes
    store: Path
    #: Folder of the operator's enrolment statements (`*.jws`), appended when the log does not have them.
    enrolments: Path
    tick_seconds: float = TICK_SECONDS


@dataclass(slots=True)
class Condition:
    """What `tdn status` shows of a node."""

    ready: bool = False
    counts: Counter[str] = field(default_factory=Counter)


class Node:
    def __init__(
        self, credentials: Credentials, settings: NodeSettings, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        if credentials.identity.name.role is not Role.NODE:
            raise TrustError(f"{credentials.identity.name.principal} is not a node; `tdn ca issue NAME --node` makes one")
        self.id = credentials.identity.name.id
        self.condition = Condition()
        self._credentials = credentials
        self._settings = settings
        self._clock = clock
        self.network = network_id(settings.genesis)
        self.replica = Replica(settings.store, self.network)
        self._desk = questions.Desk(credentials, self.network, SERVES_EVERYONE)
        self._window = ReplayWindow()
        self._readers = threading.local()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="question")
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, over as many connections as it takes. Ends by itself only when going on would be wrong."""
        stopping = asyncio.create_task(stop.wait())
        delay = 0.2
        try:
            while not stop.is_set():
                serving = asyncio.create_task(self._serve_once(stop))
                await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    # Graceful: what is in work is finished and answered first.
                    await asyncio.wait([serving], timeout=10)
                    serving.cancel()
                    await asyncio.gather(serving, return_exceptions=True)
                    return
                error = serving.exception()
                if isinstance(error, LogDiverged | UnknownRules | NoLongerCurrent):
                    raise error
                if self.condition.ready:
                    delay = 0.2
                self.condition.ready = False
                logger.warning("node %s lost the broker, trying again in %.1f s: %s", self.id, delay, error)
                await asyncio.wait([stopping], timeout=delay)
                delay = min(delay * 2, 5.0)
        finally:
            self.condition.ready = False
            stopping.cancel()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self.replica.close()

    async def _serve_once(self, stop: asyncio.Event) -> None:
        connection = await Connection.open(self._settings.brokers, self._credentials, vhost=self._settings.vhost)
        session: list[asyncio.Task[Any]] = []
        closing = contextlib.AsyncExitStack()
        closing.push_async_callback(connection.close)
        try:
            channel = await connection.channel()
            await topology.declare(channel)
            queue = await topology.declare_node(channel, self.id)
            following = asyncio.create_task(self.replica.follow(connection))
            session.append(following)
            await _first(self.replica.caught_up.wait(), following)
            appender = await Appender.open(connection)
            work = Changes(self.replica, appender, self._credentials, self._clock)
            await _first(self._enter(work), following)
            desk = _Counter(self, connection, work)
            await desk.open(queue)
            closing.push_async_callback(desk.close)
            session.append(asyncio.create_task(self._tick(work)))
            session.append(asyncio.create_task(_result(connection.closed)))
            session.append(asyncio.create_task(_result(desk.broken)))
            self.condition.ready = True
            logger.info("node %s serves network %s at record %d", self.id, self.network[:12], self.replica.position[0])
            stopping = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*session, stopping], return_when=asyncio.FIRST_COMPLETED)
            self.condition.ready = False
            if stopping in done:
                await desk.drain()
                return
            stopping.cancel()
            for task in done:
                if isinstance(task.exception(), LogDiverged | UnknownRules | NoLongerCurrent):
                    raise task.exception()  # type: ignore[misc]  # it is one of the three
            for task in done:
                if task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]  # just looked
                if isinstance(task.result(), TdnError):
                    raise task.result()
        finally:
            for task in session:
                task.cancel()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*session, *self._tasks, return_exceptions=True)
            await closing.aclose()

    async def _enter(self, work: Changes) -> None:
        """Make sure that the log begins, and that the operator's enrolments, ours among them, stand in it."""
        if self.replica.reader.get("network", "network") is None:
            await work.offer("genesis", self._settings.genesis)
        statements_found = sorted(self._settings.enrolments.glob("*.jws"))
        for path in sorted(statements_found, key=lambda path: path.stem != f"node-{self.id}"):
            raw = path.read_bytes().strip()
            if self._is_news(raw, path):
                outcome = await work.append("enrol", raw)
                if outcome.error is not None:
                    logger.warning("enrolment %s was refused: %s", path.name, outcome.error.get("message"))
        principals.require_current(self.replica.reader, self._credentials.identity)

    def _is_news(self, raw: bytes, path: Path) -> bool:
        try:
            statement = envelope.authenticate(raw, lambda header: requester(self.replica.reader, header, self._clock()))
            identity = principals.identify(self.replica.reader, statement.body["chain"], self._clock())
        except TdnError as error:
            logger.warning("enrolment %s is not usable: %s", path.name, error)
            return False
        present = self.replica.reader.get("principal", identity.name.principal)
        return present is None or parse_time(present["issued"]) < identity.issued

    async def _tick(self, work: Changes) -> None:
        while True:
            await work.append("tick", None)
            await asyncio.sleep(self._settings.tick_seconds)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reader(self) -> Reader:
        """A reader of the calling thread's own."""
        if not hasattr(self._readers, "reader"):
            self._readers.reader = Reader(self._settings.store)
        reader: Reader = self._readers.reader
        return reader


class _Counter:
    """The counter where messages are taken and answered, over one connection."""

    def __init__(self, node: Node, connection: Connection, work: Changes) -> None:
        self._node = node
        self._connection = connection
        self._work = work
        #: Fails when this node must not go on.
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = True
        self._catching_up = 0

    async def open(self, queue: str) -> None:
        self._direct = DirectReplies(self._node._settings.brokers, self._node._credentials, self._node._settings.vhost)
        self._answers = await self._connection.channel()
        self._sessions = await self._connection.channel()
        self._changes = await self._connection.channel(prefetch=_PREFETCH)
        self._questions = await self._connection.channel(prefetch=_PREFETCH)
        self._tags = [
            (
                self._changes,
                await self._changes.consume(names.CHANGES, lambda delivery: self._take(self._changes, delivery, self._change)),
            ),
            (
                self._changes,
                await self._changes.consume(names.DEAD, lambda delivery: self._take(self._changes, delivery, self._dead)),
            ),
            (
                self._questions,
                await self._questions.consume(queue, lambda delivery: self._take(self._questions, delivery, self._question)),
            ),
        ]

    async def close(self) -> None:
        await self._direct.close()

    async def drain(self) -> None:
        """Take nothing new, finish what is in work."""
        self._open = False
        for channel, tag in self._tags:
            await channel.cancel(tag)
        if self._node._tasks:
            await asyncio.wait(list(self._node._tasks), timeout=5)

    def _take(self, channel: Channel, delivery: Delivery, work: Callable[[Delivery], Coroutine[Any, Any, None]]) -> None:
        if self._open:
            self._node.start(self._finish(channel, delivery, work))

    async def _finish(self, channel: Channel, delivery: Delivery, work: Callable[[Delivery], Coroutine[Any, Any, None]]) -> None:
        """Do the work, then take the message off its queue; or put it back when the fault is ours."""
        try:
            await work(delivery)
        except BrokerUnavailable as error:
            # Not acknowledged: it comes again, here or at another node.
            logger.info("left unfinished: %s", error)
            return
        except (LogDiverged, UnknownRules, NoLongerCurrent) as error:
            if not self.broken.done():
                self.broken.set_exception(error)
            return
        except Exception:
            logger.exception("a message could not be worked on")
            self._node.condition.counts["failed"] += 1
            if not channel.closed.done():
                channel.nack(delivery.tag)
            return
        if not channel.closed.done():
            channel.ack(delivery.tag)

    async def _change(self, delivery: Delivery) -> None:
        try:
            request = await self._work.admit(delivery.body)
        except TdnError as error:
            self._turn_away(delivery, error)
            return
        self._node.condition.counts[request.kind] += 1
        try:
            if request.kind == "hello":
                await self._welcome(request, delivery)
                return
            receipt = require_accepted(await self._work.decide(request))
        except (BrokerUnavailable, LogDiverged, UnknownRules, NoLongerCurrent):
            raise
        except TdnError as error:
            self._send(request, delivery, "error", error.as_object())
            return
        token = statements.sign("receipt", receipt, self._node._credentials, self._node._clock())
        self._send(request, delivery, "decided", {}, token)

    async def _welcome(self, request: Envelope, delivery: Delivery) -> None:
        """First contact: the certificate into the log if it is news, then a reply queue for the session."""
        signer = request.signer
        reader = self._node.replica.reader
        now = self._node._clock()
        envelope.require_addressed(request, audiences=frozenset({audience(reader)}), now=now, longest=MAX_QUESTION_LIFE)
        try:
            principals.require_current(reader, signer)
        except TrustError:
            # News, or no good: the log decides.
            require_accepted(await self._work.decide(request))
            principals.require_current(reader, signer)
        session = names.new_session()
        await topology.declare_session(self._sessions, signer.name, session)
        body = {"session": session, "network": self._node.network, "node": self._node.id, "institution": signer.institution}
        self._send(request, delivery, "welcome", body, with_chain=True)

    async def _dead(self, delivery: Delivery) -> None:
        """What failed too often: its sender is told, and it is gone."""
        self._node.condition.counts["dead"] += 1
        logger.error("a change failed %d times and was given up: %r", topology.DELIVERY_LIMIT, delivery.body[:200])
        try:
            request = await self._work.admit(delivery.body)
        except Exception:
            # Whatever it breaks, it has broken often enough.
            logger.exception("nobody can be told of a change that was given up")
            return
        error = Refused("the request failed too often inside the nodes and was given up; it had no effect unless a retry says so")
        self._send(request, delivery, "error", error.as_object())

    async def _question(self, delivery: Delivery) -> None:
        node = self._node
        now = node._clock()
        try:
            if len(delivery.body) > jsontext.MAX_REQUEST_BYTES:
                raise MalformedMessage(f"question of {len(delivery.body)} bytes is over the limit", received=delivery.body)
            sealed = sealing.is_sealed(delivery.body)
            raw = sealing.unseal(delivery.body, node._credentials.key) if sealed else delivery.body
            question = envelope.authenticate(raw, lambda header: principals.known(node.replica.reader, header))
        except TdnError as error:
            self._turn_away(delivery, error)
            return
        node.condition.counts[question.kind] += 1
        try:
            self._admit_question(question, sealed, now)
        except TrustError as error:
            # A replayed or misdirected question is not answered: its sender may be anyone.
            self._turn_away(delivery, error)
            return
        except TdnError as error:
            self._send(question, delivery, "error", error.as_object())
            return
        try:
            await self._catch_up_with(question)
            if question.kind == "discover":
                # May take long, so not on the event loop: other askers do not notice.
                answers = await asyncio.get_running_loop().run_in_executor(
                    node._pool, lambda: list(questions.answer(node._desk, question, node._reader(), now))
                )
            else:
                answers = list(questions.answer(node._desk, question, node.replica.reader, now))
        except TdnError as error:
            self._send(question, delivery, "error", error.as_object())
            return
        for answer in answers:
            self._send(question, delivery, answer.kind, answer.body, answer.tail, with_chain=answer.kind == "located")

    async def _catch_up_with(self, question: Envelope) -> None:
        """Wait until this node has applied what the asker has a receipt for; not for just anything, and not for too many at once."""
        ahead = question.body.get("after", 0) - self._node.replica.position[0]
        if 0 < ahead <= _READ_OWN_RECORDS and self._catching_up < _READ_OWN_ASKERS:
            self._catching_up += 1
            try:
                await self._node.replica.reached(question.body["after"], within_seconds=_READ_OWN_SECONDS)
            finally:
                self._catching_up -= 1

    def _admit_question(self, question: Envelope, sealed: bool, now: datetime) -> None:
        if question.kind not in questions.KINDS:
            raise Refused(f"{question.kind} is not a question; changes are sent to {names.TOPICS.replace('.', '/')}")
        to_all = question.kind == "locate"
        if not to_all and not sealed:
            raise Refused(f"{question.kind} must be sealed to the node")
        audiences = frozenset({"tdn:nodes"} if to_all else {self._node._credentials.identity.name.principal})
        envelope.require_addressed(question, audiences=audiences, now=now, longest=MAX_QUESTION_LIFE)
        self._node._window.admit(str(question.signer.name), question.id, question.expires, now)

    def _turn_away(self, delivery: Delivery, error: TdnError) -> None:
        """A message that nobody can be named for. It is answered only where the address itself proves the sender."""
        self._node.condition.counts["turned away"] += 1
        received = error.received if isinstance(error, MalformedMessage) else delivery.body[:80]
        logger.info("turned away: %s %r", error, received)
        if delivery.reply_to and delivery.reply_to.startswith(names.DIRECT_REPLY):
            raw = self._write("error", error.as_object(), "tdn:sender", None, None, with_chain=True)
            self._direct.send(delivery.reply_to, raw)

    def _send(
        self,
        request: Envelope,
        delivery: Delivery,
        kind: str,
        body: dict[str, Any],
        tail: bytes | None = None,
        *,
        with_chain: bool = False,
    ) -> None:
        """A reply to the verified sender: signed, sealed to its key, to its own reply queue (T6) or its direct reply-to.

        Any node may answer a change, so such an answer carries its chain; a question's asker has located the node before.
        """
        signer: Identity = request.signer
        raw = self._write(
            kind, body, signer.name.principal, request.id, tail, with_chain=with_chain or request.kind in changes.KINDS
        )
        sealed = sealing.seal(raw, signer.public_key)
        if request.reply is not None:
            self._answers.publish(names.REPLIES, names.reply_queue(signer.name, request.reply), sealed, correlation=request.id)
        elif delivery.reply_to and delivery.reply_to.startswith(names.DIRECT_REPLY):
            self._direct.send(delivery.reply_to, sealed)

    def _write(
        self, kind: str, body: dict[str, Any], audience: str, answers: str | None, tail: bytes | None, *, with_chain: bool
    ) -> bytes:
        return envelope.write(
            kind,
            body,
            self._node._credentials,
            audience=audience,
            now=self._node._clock(),
            life=_REPLY_LIFE,
            answers=answers,
            tail=tail,
            with_chain=with_chain,
        )


async def _result(future: asyncio.Future[Any]) -> Any:
    """Wait for a future that others wait for too: cancelling this leaves it alone."""
    return await asyncio.shield(future)


async def _first(wanted: Coroutine[Any, Any, Any], lost: asyncio.Task[None]) -> None:
    """Wait for something, or fail with what makes it impossible."""
    task = asyncio.create_task(wanted)
    await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        lost.result()
        raise BrokerUnavailable("the reading of the log ended")
    task.result()
