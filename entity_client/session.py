"""One entity's session with the network: connected, introduced, with a reply queue of its own; renewed when it is lost.

The first contact goes through RabbitMQ's direct reply-to, which needs no permission; a node answers with the name of the reply queue
that it made. Every reply is unsealed, and verified to be a node's, ours, an answer to what we asked, and fresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tdn.bus.address import ConnectionSettings
from tdn.bus.connection import Channel, Connection, Delivery
from tdn.errors import BrokerUnavailable, LoginRefused, NoNodeAnswered, TdnError, TrustError, UsageError, from_object
from tdn.protocol import jsontext, names
from tdn.protocol.names import Role
from tdn.trust import envelope, sealing, signing
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_CHANGE_LIFE, MAX_QUESTION_LIFE

logger = logging.getLogger(__name__)

_QUESTION_LIFE = timedelta(seconds=60)
#: How long one attempt waits before the same message is sent again.
_ATTEMPT_SECONDS = 3.0
#: The same for a change that a node answers only when the guards have ended something: longer than a node waits for a guard that is gone. A message
#: that is sent again meanwhile may be the broker's occasion to ask that very guard, and to close the channel on which the answer would come.
_ENDING_SECONDS = 12.0
#: After a broker has come back, its guard lets entities in again once it has caught up with the log. Who was in before waits so long.
_READMISSION_SECONDS = 8.0


class Patience:
    """How long answers are waited for. Whoever receives them may shorten it."""

    def __init__(self, seconds: float) -> None:
        self.until = _now() + seconds

    @property
    def left(self) -> float:
        return self.until - _now()

    def shorten(self, seconds: float) -> None:
        """Wait no longer than so many seconds from now."""
        self.until = min(self.until, _now() + seconds)


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
        #: Nodes whose certificate was verified, by its thumbprint.
        self._nodes: dict[str, Identity] = {}
        self._pending: dict[str, asyncio.Queue[bytes | TdnError]] = {}
        self._line: _Line | None = None
        self._session: str | None = None
        self._welcomed = False
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        if self._line is not None:
            await self._line.connection.close()
            self._line = None
            self._session = None

    async def ready(self, timeout: float) -> None:
        """Connect and introduce ourselves now, rather than with the first message."""
        await self._ensure(_now() + timeout)

    async def line(self, timeout: float) -> Connection:
        """A connection, also when no node is there to introduce us to."""
        async with self._lock:
            if self._line is None or not self._line.is_open:
                await self.close()
                async with asyncio.timeout(timeout):
                    self._line = await self._open_line()
            return self._line.connection

    # --- asking ---

    async def ask(
        self, kind: str, body: Mapping[str, Any], node: Identity | None, *, key: str, patience: Patience
    ) -> AsyncGenerator[Envelope, None]:
        """Send a question, to one node (sealed to it) or to all, and give its answers as they come until the patience is at its end."""
        line = await self._ensure(patience.until)
        raw = envelope.write(
            kind,
            body,
            self.credentials,
            audience=node.name.principal if node else "tdn:nodes",
            now=datetime.now(UTC),
            life=_QUESTION_LIFE,
            message_id=(message_id := envelope.new_id()),
            reply=self._session,
        )
        _require_size(raw)
        message = sealing.seal(raw, node.public_key) if node else raw
        async with self._expecting(message_id) as replies:
            # Not confirmed: the answer is the confirmation, and without one the question is asked again.
            await line.replies.publish(
                names.REQUESTS,
                key,
                message,
                headers={names.PATH_HEADER: names.QUESTION_PATH},
                expiration_seconds=max(1.0, patience.left),
            )
            while patience.left > 0:
                try:
                    async with asyncio.timeout_at(patience.until):
                        reply = await self._next(replies, message_id)
                except TimeoutError:
                    return
                if node is not None and reply.signer.name.id != node.name.id:
                    continue
                if reply.kind == "error":
                    raise from_object(reply.body)
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
        deadline = _now() + timeout
        attempt = _ENDING_SECONDS if kind in envelope.ENDS_RIGHTS else _ATTEMPT_SECONDS
        raw: bytes | None = None
        sent = False
        while True:
            try:
                try:
                    await self._ensure(min(deadline, _now() + max(_ATTEMPT_SECONDS, timeout / 2)))
                except NoNodeAnswered:
                    if node is not None:
                        raise
                    # Nobody to introduce us: the change can wait in the broker all the same, for a day.
                    await self._post(self._write_change(kind, body, message_id, tail, None), message_id)
                    raise self._undecided(kind) from None
                raw = self._write_change(kind, body, message_id, tail, self._session)
                async with self._expecting(message_id) as replies:
                    await self._post(raw, message_id, node)
                    sent = True
                    async with asyncio.timeout(min(attempt, max(0.05, deadline - _now()))):
                        reply = await self._next(replies, message_id)
                if reply.kind == "error":
                    raise from_object(reply.body)
                return reply
            except (BrokerUnavailable, TimeoutError) as error:
                if _now() >= deadline:
                    if sent and node is not None:
                        raise NoNodeAnswered(f"node {node.name.id} did not answer") from error
                    if sent:
                        raise self._undecided(kind) from error
                    raise error if isinstance(error, TdnError) else BrokerUnavailable("the broker did not answer") from error
                await asyncio.sleep(0.2)

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
        await self._line.requests.publish(
            names.REQUESTS,
            names.topics_key(node.name.id if node is not None else None),
            sealing.seal(raw, node.public_key) if node is not None else raw,
            headers={names.PATH_HEADER: names.CHANGE_PATH},
            persistent=True,
            mandatory=True,
            message_id=message_id,
        )

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

    async def _ensure(self, deadline: float) -> _Line:
        """A connection with a reply queue: the present one, or a new one."""
        async with self._lock:
            readmission = min(deadline, _now() + _READMISSION_SECONDS)
            while self._line is None or not self._line.is_open or self._session is None:
                try:
                    await self._connect(deadline)
                    self._welcomed = True
                except BrokerUnavailable:
                    if _now() >= deadline:
                        raise
                    readmission = min(deadline, _now() + _READMISSION_SECONDS)
                    await asyncio.sleep(0.3)
                except LoginRefused:
                    if not self._welcomed or _now() >= readmission:
                        raise
                    await asyncio.sleep(0.3)
            return self._line

    async def _connect(self, deadline: float) -> None:
        if self._line is None or not self._line.is_open:
            await self.close()
            self._line = await self._open_line()
        session = await self._introduce(self._line, deadline)
        await self._line.replies.consume(names.reply_queue(self.credentials.identity.name, session), self._on_reply, no_ack=True)
        self._session = session

    async def _open_line(self) -> _Line:
        connection = await Connection.open(self._settings.brokers, self.credentials, vhost=self._settings.vhost)
        connection.closed.add_done_callback(self._on_lost)
        line = _Line(connection, await connection.channel(confirms=True), await connection.channel())
        # A channel alone is closed when the broker refuses something on it; whoever waits for an answer on it must not wait in vain.
        line.requests.closed.add_done_callback(self._on_lost)
        line.replies.closed.add_done_callback(self._on_lost)
        line.replies.on_cancelled(self._on_queue_lost)
        await line.replies.consume(names.DIRECT_REPLY, self._on_reply, no_ack=True)
        return line

    async def _introduce(self, line: _Line, deadline: float) -> str:
        """Say hello until a node answers with our reply queue."""
        while True:
            message_id = envelope.new_id()
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
        """The reply queue is gone, the connection is not: the next message begins with a hello."""
        self._session = None

    def _on_lost(self, closed: asyncio.Future[TdnError]) -> None:
        self._session = None
        if isinstance(closed.result(), LoginRefused):
            # Cut off, not merely disconnected: there is no coming back to wait for.
            self._welcomed = False
        for replies in self._pending.values():
            replies.put_nowait(closed.result())

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
            try:
                reply = self._read(arrived)
            except TdnError as error:
                logger.warning("a reply was not believed: %s", error)
                continue
            if reply.answers == message_id or (reply.answers is None and reply.kind == "error"):
                return reply

    def _read(self, message: bytes) -> Envelope:
        """A reply that was sealed to us and signed by a node for us, now. Only an error to an unnamed sender comes unsealed."""
        now = datetime.now(UTC)
        sealed = sealing.is_sealed(message)
        raw = sealing.unseal(message, self.credentials.key) if sealed else message
        reply = envelope.authenticate(raw, self._identify)
        audience = self.credentials.identity.name.principal if sealed else "tdn:sender"
        if not sealed and reply.kind != "error":
            raise TrustError("a reply that is not sealed")
        envelope.require_addressed(reply, audiences=frozenset({audience}), now=now, longest=MAX_QUESTION_LIFE)
        return reply

    def _identify(self, header: signing.Header) -> Identity:
        known = self._nodes.get(header.thumbprint)
        if known is None:
            if not header.chain:
                raise TrustError("a reply from a node that was not located")
            known = self.credentials.roots.identify(header.chain, at=datetime.now(UTC))
            if known.name.role is not Role.NODE:
                raise TrustError(f"a reply signed by {known.name.principal}, which is not a node")
            self._nodes[header.thumbprint] = known
        return known

    def remember(self, node: Identity) -> None:
        """A node that was verified before, in another session."""
        self._nodes[node.thumbprint] = node


def _require_size(raw: bytes) -> None:
    """Say here what a node would not read: a sealed request that is too long has no sender that it could tell."""
    if len(raw) > jsontext.MAX_REQUEST_BYTES - 1024:
        raise UsageError(
            f"the request has {len(raw)} bytes, over the limit of {jsontext.MAX_REQUEST_BYTES}; shorten the descriptor"
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
