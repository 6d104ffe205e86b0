"""One entity's session with the network: connected, introduced, with a reply queue of its own; renewed when it is lost.

The first contact goes through RabbitMQ's direct reply-to, which needs no permission; a node answers with the name of the reply queue
that it made. Every reply is unsealed, and verified to be a node's, ours, an answer to what we asked, and fresh.

While no broker can be reached, or nobody answers through it, questions that only read go to the nodes' own endpoints instead, where such are
known; the same messages, verified alike. It is gone back to the broker as soon as that serves again. Changes wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from entity_client.believing import Believing
from entity_client.endpoints import Age, Endpoints
from entity_client.patience import Patience, before
from tdn.bus.address import ConnectionSettings, NodeAddress
from tdn.bus.connection import Channel, Connection, Delivery
from tdn.errors import BrokerUnavailable, LoginRefused, NoNodeAnswered, Refused, TdnError, TrustError, UsageError, from_object
from tdn.observe.traces import of_entity
from tdn.observe.trail import REFUSED, Trail
from tdn.protocol import jsontext, names
from tdn.trust import envelope, sealing
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_CHANGE_LIFE

logger = logging.getLogger(__name__)

_QUESTION_LIFE = timedelta(seconds=60)
#: How long one attempt waits before the same message is sent again.
_ATTEMPT_SECONDS = 3.0
#: The same for a change that a node answers only when the guards have ended something: longer than a node waits for a guard that is gone. A message
#: that is sent again meanwhile may be the broker's occasion to ask that very guard, and to close the channel on which the answer would come.
_ENDING_SECONDS = 12.0
#: What connecting gets at least, however short the time is that a caller has left.
_LEAST_SECONDS = 1.0
#: How long the broker, and a node's first answer through it, are waited for before a question that only reads goes to the nodes' own endpoints.
_FALLBACK_SECONDS = 4.0
#: While the broker is away: how long a question waits for another try, how far apart tries are, and how long one may take.
_GLANCE_SECONDS = 0.5
_TRY_AGAIN_SECONDS = 1.0
_TRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Line:
    """A connection and its two channels: changes are confirmed; questions and first contact are not, since the address of a direct
    reply belongs to the channel that published."""

    connection: Connection
    requests: Channel
    replies: Channel

    @property
    def is_open(self) -> bool:
        return not any(part.closed.done() for part in (self.connection, self.requests, self.replies))


class Session:
    def __init__(self, credentials: Credentials, settings: ConnectionSettings) -> None:
        self.credentials = credentials
        self.network = settings.network
        self._settings = settings
        self._believing = Believing(credentials)
        self._pending: dict[str, asyncio.Queue[bytes | TdnError]] = {}
        self._line: _Line | None = None
        self._session: str | None = None
        #: Whether a login that is refused may be so for the moment alone, by a guard that has to catch up first: we were let in before, or the broker
        #: has just come back.
        self._may_be_late = False
        self._lock = asyncio.Lock()
        self._endpoints = Endpoints(credentials, settings.nodes)
        #: Why questions that only read go to nodes' own endpoints at present; None while they go through the broker.
        self._away: TdnError | None = None
        self._trying: asyncio.Task[TdnError | None] | None = None
        self._try_at = float("-inf")
        #: Nodes that have answered without the broker, and how old their latest answers may be.
        self.ages: dict[str, Age] = {}

    def _leave(self, line: _Line) -> None:
        """Give up a connection without waiting for its broker, unless somebody else has done so already."""
        if self._line is line:
            line.connection.abandon()
            self._line = self._session = None

    async def close(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._line is not None:
            await self._line.connection.close()
            self._line = None
            self._session = None

    @property
    def is_away(self) -> bool:
        """Whether the broker did not serve us lately, so that nodes are asked at their own endpoints."""
        return self._away is not None

    async def ready(self, timeout: float, *, to_read: bool = False) -> None:
        """Connect and introduce ourselves now, rather than with the first message; or find out that reading goes another way."""
        if to_read and self._endpoints and not await self._broker_serves(timeout):
            return
        try:
            await self._ensure(_now() + timeout)
        except BrokerUnavailable as error:
            raise error if to_read else _unchanged(error) from error

    def learn(self, address: NodeAddress) -> None:
        """Where a node answers by itself, as it said."""
        self._endpoints.learn(address)

    async def line(self, timeout: float) -> Connection:
        """A connection, also when no node is there to introduce us to."""
        async with self._lock:
            if self._line is None or not self._line.is_open:
                await self._disconnect()
                try:
                    async with asyncio.timeout(timeout):
                        self._line = await self._open_line()
                except TimeoutError as error:
                    raise BrokerUnavailable("no broker answered in time") from error
            return self._line.connection

    # --- asking ---

    async def ask(
        self, kind: str, body: Mapping[str, Any], node: Identity | None, *, key: str, patience: Patience
    ) -> AsyncGenerator[Envelope, None]:
        """Send a question, to one node (sealed to it) or to all, and give its answers as they come until the patience is at its end.

        Where one way gives no answer to a question for all nodes, the other is tried; what the broker's says in the end counts.
        """
        by_broker = partial(self._ask_by_broker, kind, body, node, key, patience)
        ways: Sequence[Callable[[str], AsyncGenerator[Envelope, None]]] = [by_broker]
        if kind in envelope.READS and self._endpoints:
            by_endpoints = partial(self._ask_by_endpoints, kind, body, node, patience)
            if not await self._broker_serves(patience.left):
                ways = [by_endpoints, by_broker] if node is None else [by_endpoints]
            elif node is None:
                ways = [partial(by_broker, silence=_FALLBACK_SECONDS), by_endpoints, by_broker]
        heard = False
        for number, way in enumerate(ways, start=1):
            try:
                # Each way has a message of its own: a node answers one once.
                message_id = envelope.new_id()
                with self._traced("question", kind, message_id):
                    async with contextlib.aclosing(way(message_id)) as replies:
                        async for reply in replies:
                            heard = True
                            yield reply
            except (BrokerUnavailable, NoNodeAnswered) as error:
                if heard or number == len(ways) or patience.left <= 0:
                    raise
                self._away = error
            if heard:
                return
            if node is None and self._away is not None and patience.left <= 0:
                # It says more than that nobody answered.
                raise self._away

    async def _ask_by_endpoints(
        self, kind: str, body: Mapping[str, Any], node: Identity | None, patience: Patience, message_id: str
    ) -> AsyncGenerator[Envelope, None]:
        """Ask at nodes' own endpoints. Of several, one that answers is enough: what others complain of is told when none does."""
        message = self._write_question(kind, body, node, message_id)
        errors: list[TdnError] = []
        heard = False
        asked = self._endpoints.ask(message, node.name.id if node is not None else None, seconds=max(0.1, patience.left))
        async with contextlib.aclosing(asked) as arriving:
            while (arrived := await before(patience, anext(arriving, None))) is not None:
                reply = self._believing.believed(arrived, message_id)
                if reply is None or (node is not None and reply.signer.name.id != node.name.id):
                    continue
                if reply.as_of is not None:
                    # Both by the node's own clock, whatever ours says.
                    self.ages[reply.signer.name.id] = Age(reply.as_of, max(0.0, (reply.issued - reply.as_of).total_seconds()))
                if reply.kind == "error":
                    errors.append(from_object(reply.body))
                    continue
                heard = True
                yield reply
        if errors and not heard:
            if self._away is not None and (isinstance(self._away, LoginRefused) or "unknown" in errors[0].detail):
                # The network refused us already, for a reason that it knew better; or has never met us, and only a broker could change that.
                raise self._away
            raise errors[0]

    def _write_question(self, kind: str, body: Mapping[str, Any], node: Identity | None, message_id: str) -> bytes:
        """A question as it is sent."""
        raw = envelope.write(
            kind,
            body,
            self.credentials,
            audience=node.name.principal if node else "tdn:nodes",
            now=datetime.now(UTC),
            life=_QUESTION_LIFE,
            message_id=message_id,
            reply=self._session,
        )
        _require_size(raw)
        return sealing.seal(raw, node.public_key) if node else raw

    async def _ask_by_broker(
        self,
        kind: str,
        body: Mapping[str, Any],
        node: Identity | None,
        key: str,
        patience: Patience,
        message_id: str,
        *,
        silence: float | None = None,
    ) -> AsyncGenerator[Envelope, None]:
        """Ask through the broker. When there is no answer at all within the `silence`, that is an end too: the next question says hello again."""
        line = await self._ensure(patience.until)
        message = self._write_question(kind, body, node, message_id)
        first = min(patience.until, _now() + silence) if silence is not None else patience.until
        heard = False
        async with self._expecting(message_id) as replies:
            # Not confirmed: the answer is the confirmation, and without one the question is asked again.
            await line.replies.publish(
                names.REQUESTS,
                key,
                message,
                headers={names.PATH_HEADER: names.QUESTION_PATH},
                expiration_seconds=max(1.0, patience.left),
                # A node's queue lives as long as its connection: without one, somebody else can be asked at once.
                mandatory=node is not None,
                message_id=message_id,
            )
            while patience.left > 0:
                try:
                    async with asyncio.timeout_at(patience.until if heard else min(first, patience.until)):
                        reply = await self._next(replies, message_id)
                except NoNodeAnswered:
                    return
                except TimeoutError:
                    if silence is not None and not heard:
                        self._session = None
                        raise NoNodeAnswered("no node answered; is one running? (`tdn status`)") from None
                    return
                if node is not None and reply.signer.name.id != node.name.id:
                    continue
                heard = True
                if reply.kind == "error":
                    error = from_object(reply.body)
                    if "hello" in error.detail:
                        self._session = None
                    raise error
                yield reply

    async def change(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        message_id: str,
        tail: bytes | None = None,
        timeout: float,
        node: Identity | None = None,
    ) -> Envelope:
        """Put a change to the network until a node has decided it. The same request id each time: a retry has no second effect.

        To one node where it is named, sealed to it: only that node can decide it then.
        """
        with self._traced("change", kind, message_id):
            return await self._change(kind, body, message_id, tail, timeout, node)

    async def _change(
        self,
        kind: str,
        body: Mapping[str, Any],
        message_id: str,
        tail: bytes | None,
        timeout: float,
        node: Identity | None,
    ) -> Envelope:
        deadline = _now() + timeout
        attempt = _ENDING_SECONDS if kind in envelope.ENDS_RIGHTS else _ATTEMPT_SECONDS
        raw: bytes | None = None
        sent = False
        while True:
            confirmed, line = False, None
            try:
                try:
                    line = await self._ensure(min(deadline, _now() + max(_ATTEMPT_SECONDS, timeout / 2)))
                except NoNodeAnswered:
                    if node is not None:
                        raise
                    if not sent:
                        # Nobody to introduce us: the change can wait in the broker all the same, for a day.
                        async with asyncio.timeout(_ATTEMPT_SECONDS):
                            await self._post(self._write_change(kind, body, message_id, tail, None), message_id)
                        sent = True
                    if _now() >= deadline:
                        raise self._undecided(kind) from None
                    continue
                raw = self._write_change(kind, body, message_id, tail, self._session)
                async with (
                    self._expecting(message_id) as replies,
                    # The confirmation is waited for no longer than the answer: with most brokers away none comes.
                    asyncio.timeout(min(attempt, max(0.05, deadline - _now()))),
                ):
                    await self._post(raw, message_id, node)
                    sent = confirmed = True
                    reply = await self._next(replies, message_id)
                if reply.kind == "error":
                    raise from_object(reply.body)
                return reply
            except LoginRefused:
                if not self._may_be_late or _now() >= deadline:
                    raise
            except (BrokerUnavailable, TimeoutError) as error:
                if _now() >= deadline:
                    if (sent or self._session is not None) and node is not None:
                        raise NoNodeAnswered(f"node {node.name.id} did not answer") from error
                    if sent:
                        raise self._undecided(kind) from error
                    raise _unchanged(error) from error
                if isinstance(error, TimeoutError) and line is not None and not confirmed and len(self._settings.brokers) > 1:
                    # This broker hangs, which its connection shows only when heartbeats are missed: another is tried.
                    self._leave(line)
                await asyncio.sleep(0.2)

    @contextlib.contextmanager
    def _traced(self, path: str, kind: str, message_id: str) -> Iterator[None]:
        """Name a request where a person looks for it: in our log, in the error that it ends with, and in traces where they are wanted.
        Nodes and guards name it alike."""
        logger.info("%s is request %s", kind, message_id)
        trail = Trail(path, kind, message_id)
        try:
            yield
        except TdnError as error:
            error.detail.setdefault("request", message_id)
            trail.outcome, trail.reason = REFUSED, error.word
            raise
        finally:
            if (traces := of_entity()) is not None:
                traces.tell(trail)

    def _write_change(self, kind: str, body: Mapping[str, Any], message_id: str, tail: bytes | None, reply: str | None) -> bytes:
        return envelope.write(
            kind,
            body,
            self.credentials,
            audience=f"tdn:network:{self.network}",
            now=datetime.now(UTC),
            life=MAX_CHANGE_LIFE,
            message_id=message_id,
            reply=reply,
            tail=tail,
        )

    async def _post(self, raw: bytes, message_id: str, node: Identity | None = None) -> None:
        _require_size(raw)
        if self._line is None or not self._line.is_open:
            raise BrokerUnavailable("the connection to the broker is gone")
        try:
            await self._line.requests.publish(
                names.REQUESTS,
                names.topics_key(node.name.id if node is not None else None),
                sealing.seal(raw, node.public_key) if node is not None else raw,
                headers={names.PATH_HEADER: names.CHANGE_PATH},
                persistent=True,
                mandatory=True,
                message_id=message_id,
            )
        except Refused as error:
            raise _for_now(error) from error

    def _undecided(self, kind: str) -> NoNodeAnswered:
        return NoNodeAnswered(
            f"no node has decided the {kind} yet; it waits in the broker for up to a day and counts when a node takes it; "
            "the same command again asks for the outcome",
            detail={"queued": True},
        )

    @property
    def queue(self) -> str | None:
        """The session's own half of its reply queue's name; another one after each reconnection."""
        return self._session

    @contextlib.asynccontextmanager
    async def notifications(self, uuid: str) -> AsyncIterator[asyncio.Queue[bytes | TdnError]]:
        """What nodes send us of what we follow, unread; and what ends the connection (T29)."""
        if names.watching(uuid) in self._pending:
            raise UsageError(f"{uuid} is followed in this session already")
        async with self._expecting(names.watching(uuid)) as arriving:
            yield arriving

    @contextlib.asynccontextmanager
    async def _expecting(self, message_id: str) -> AsyncIterator[asyncio.Queue[bytes | TdnError]]:
        replies: asyncio.Queue[bytes | TdnError] = asyncio.Queue()
        self._pending[message_id] = replies
        try:
            yield replies
        finally:
            self._pending.pop(message_id, None)

    # --- being connected ---

    @property
    def _is_introduced(self) -> bool:
        return self._line is not None and self._line.is_open and self._session is not None

    async def _broker_serves(self, within: float) -> bool:
        """Whether a question that only reads goes through the broker now. Tried for a few seconds, half of the time that there is at most; while the
        broker is away, only glanced at: the tries go on beside the questions."""
        if not self._is_introduced:
            if (self._trying is None or self._trying.done()) and _now() >= self._try_at:
                self._try_at = _now() + _TRY_AGAIN_SECONDS
                self._trying = asyncio.create_task(self._try())
            if self._trying is not None and not self._trying.done():
                patience = _FALLBACK_SECONDS if self._away is None else _GLANCE_SECONDS
                await asyncio.wait([self._trying], timeout=min(patience, within / 2))
        if self._is_introduced:
            self._away = None
            return True
        done = self._trying is not None and self._trying.done() and not self._trying.cancelled()
        tried = self._trying.result() if done and self._trying is not None else None
        if tried is not None and not isinstance(tried, BrokerUnavailable | NoNodeAnswered | LoginRefused):
            # Something that no other way would mend.
            raise tried
        self._away = tried or self._away or BrokerUnavailable("the broker did not answer")
        return False

    async def _try(self) -> TdnError | None:
        """Connect and introduce ourselves, once; gives what went wrong."""
        try:
            async with asyncio.timeout(_TRY_SECONDS), self._lock:
                if not self._is_introduced:
                    await self._connect(_now() + _TRY_SECONDS)
                    self._may_be_late = True
        except TdnError as error:
            return error
        except TimeoutError:
            return BrokerUnavailable("the broker did not answer")
        return None

    async def _ensure(self, deadline: float) -> _Line:
        """A connection with a reply queue: the present one, or a new one."""
        if self._trying is not None and not self._trying.done() and not self._is_introduced:
            # It is on the way already.
            await asyncio.wait([self._trying], timeout=max(0.0, deadline - _now()))
            self._trying.cancel()
            await asyncio.wait([self._trying])
        async with self._lock:
            while not self._is_introduced:
                try:
                    try:
                        await self._connect(deadline)
                    except Refused as error:
                        raise _for_now(error) from error
                    self._may_be_late = True
                except TimeoutError as error:
                    raise BrokerUnavailable("no broker answered in time") from error
                except BrokerUnavailable:
                    if _now() >= deadline:
                        raise
                    self._may_be_late = True
                    await asyncio.sleep(0.3)
                except LoginRefused:
                    # After brokers have come back, a guard lets entities in again once it has caught up with the log, which of several brokers
                    # most must have again. Who was in before, or waits for those brokers, and was not told that its key is over, waits for that.
                    if not self._may_be_late or _now() >= deadline:
                        raise
                    await asyncio.sleep(0.3)
            if self._line is None:
                raise BrokerUnavailable("the connection to the broker is gone")
            return self._line

    async def _connect(self, deadline: float) -> None:
        if self._line is None or not self._line.is_open:
            await self._disconnect()
            # A broker that hangs accepts connections and says nothing: it must not take all the time there is, or more.
            async with asyncio.timeout_at(max(deadline, _now() + _LEAST_SECONDS)):
                self._line = await self._open_line()
        line = self._line
        session = await self._introduce(line, deadline)
        await line.replies.consume(names.reply_queue(self.credentials.identity.name, session), self._on_reply, no_ack=True)
        if self._line is line:
            self._session = session

    async def _open_line(self) -> _Line:
        connection = await Connection.open(self._settings.brokers, self.credentials, vhost=self._settings.vhost)
        try:
            return await self._open_channels(connection)
        except BaseException:
            # Also when nobody waits any more: it would stay open.
            connection.abandon()
            raise

    async def _open_channels(self, connection: Connection) -> _Line:
        line = _Line(connection, await connection.channel(confirms=True), await connection.channel())
        # A channel alone is closed when the broker refuses something on it; whoever waits for an answer on it must not wait in vain.
        for part in (line.connection, line.requests, line.replies):
            part.closed.add_done_callback(partial(self._on_lost, line))
        line.replies.on_cancelled(self._on_queue_lost)
        line.replies.on_returned(self._on_returned)
        await line.replies.consume(names.DIRECT_REPLY, self._on_reply, no_ack=True)
        return line

    async def _introduce(self, line: _Line, deadline: float) -> str:
        """Say hello until a node answers with our reply queue."""
        while True:
            message_id = envelope.new_id()
            logger.info("hello is request %s", message_id)
            raw = envelope.write(
                "hello",
                {},
                self.credentials,
                audience=f"tdn:network:{self.network}",
                now=datetime.now(UTC),
                life=_QUESTION_LIFE,
                message_id=message_id,
                with_chain=True,
            )
            async with self._expecting(message_id) as replies:
                await line.replies.publish(
                    names.REQUESTS,
                    names.nodes_key(),
                    raw,
                    headers={names.PATH_HEADER: names.CHANGE_PATH},
                    reply_to=names.DIRECT_REPLY,
                    expiration_seconds=_ATTEMPT_SECONDS * 2,
                )
                try:
                    async with asyncio.timeout(max(0.05, min(_ATTEMPT_SECONDS, deadline - _now()))):
                        reply = await self._next(replies, message_id)
                except TimeoutError as error:
                    if _now() >= deadline:
                        raise NoNodeAnswered("no node answered; is one running? (`tdn status`)") from error
                    continue
            if reply.kind == "error":
                raise from_object(reply.body)
            if reply.kind != "welcome" or reply.body["network"] != self.network:
                raise TrustError("the node belongs to another network than connection.toml names")
            return str(reply.body["session"])

    def _on_queue_lost(self) -> None:
        """The reply queue is gone, with the broker that it was on, and the connection is not: the next message begins with a hello. No answer
        comes to whoever waits for one."""
        self._session = None
        for replies in self._pending.values():
            replies.put_nowait(BrokerUnavailable("the broker has lost the reply queue of this session"))

    def _on_returned(self, message_id: str) -> None:
        """A question to a node that is not there."""
        if (replies := self._pending.get(message_id)) is not None:
            replies.put_nowait(NoNodeAnswered("the node is not there"))

    def _on_lost(self, line: _Line, closed: asyncio.Future[TdnError]) -> None:
        if self._line is not None and self._line is not line:
            # One that was left before, and ends only now.
            return
        self._session = None
        if isinstance(closed.result(), LoginRefused):
            # Cut off, not merely disconnected: there is no coming back to wait for.
            self._may_be_late = False
        for replies in self._pending.values():
            replies.put_nowait(_for_now(closed.result()))

    # --- replies ---

    def _on_reply(self, delivery: Delivery) -> None:
        """Sort an answer to whoever waits for it. It is opened there: of two answers to a locate, one may be enough."""
        if delivery.correlation is not None:
            waiting = self._pending.get(delivery.correlation)
            if waiting is not None:
                waiting.put_nowait(delivery.body)
            return
        # To a direct reply-to: a welcome, or an error to somebody who could not be named. Only a hello is sent that way.
        for message_id, waiting in self._pending.items():
            if not message_id.startswith(names.watching("")):
                waiting.put_nowait(delivery.body)

    async def _next(self, replies: asyncio.Queue[bytes | TdnError], message_id: str) -> Envelope:
        """The next answer to a message that is believed. Anybody could have sent what is not; it is passed over."""
        while True:
            arrived = await replies.get()
            if isinstance(arrived, TdnError):
                raise arrived
            reply = self._believing.believed(arrived, message_id)
            if reply is not None:
                return reply

    def remember(self, node: Identity) -> None:
        """A node that was verified before, in another session."""
        self._believing.remember(node)


def _unchanged(error: BaseException) -> BrokerUnavailable:
    """What somebody is told whose change did not even get to a broker."""
    reason = error.message if isinstance(error, TdnError) else "the broker did not answer"
    return BrokerUnavailable(f"{reason}; nothing was changed, and nothing can be until a broker is back")


def _require_size(raw: bytes) -> None:
    """Say here what a node would not read: a sealed request that is too long has no sender that it could tell."""
    if len(raw) > jsontext.MAX_REQUEST_BYTES - 1024:
        raise UsageError(
            f"the request has {len(raw)} bytes, over the limit of {jsontext.MAX_REQUEST_BYTES}; shorten the descriptor"
        )


def _for_now(error: TdnError) -> TdnError:
    """What ended a channel of a session, for who waits on it.

    Everybody whom the guard knows may write requests and read its own replies. If the broker refuses that, its guard is not sure of anything:
    it has just started, or lost the log. That passes. Who may no longer is refused the login.
    """
    if isinstance(error, Refused) and "broker" in error.detail:
        return BrokerUnavailable("the broker's guard lets nobody do anything at the moment", detail=error.detail)
    return error


def _now() -> float:
    return asyncio.get_running_loop().time()
