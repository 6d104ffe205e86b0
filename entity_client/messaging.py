"""Publishing and subscribing (T20, T28): confirmed, over lost connections, to topics that a grant or ownership opens.

What a topic needs at the broker is made by a node, which is asked first. A message is published once in effect: it is sent again under the same
id when its confirmation was lost, and a subscriber passes over an id that it has given before. It is taken off the queue when the
application asks for the next one, so that what a crashed application had not finished with comes again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from entity_client.session import Session
from tdn.bus.connection import Channel, Connection, Delivery
from tdn.errors import BrokerUnavailable, LoginRefused, NoNodeAnswered, Refused, TdnError, TrustError, UsageError
from tdn.protocol import names
from tdn.protocol.names import Name, Role, check_uuid
from tdn.protocol.times import format_time, from_epoch
from tdn.trust import envelope, messages
from tdn.trust.certificates import decode_chain
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tdn.trust.statements import by_roots

if TYPE_CHECKING:
    from entity_client.client import EntityClient

logger = logging.getLogger(__name__)

#: Messages that are on their way to an application, or with it, at once.
PREFETCH = 200
#: Ids of messages that were given, so that none is given twice.
_REMEMBERED = 10_000
#: Between two tries while the network is away, or a guard has not heard of our right yet.
_AGAIN_SECONDS = 0.2
#: How long a broker may take to confirm a message before another is tried, where there are several: it may answer, and have no leader for the queue. And
#: how long a channel to a topic that was ready before may take to be opened again, before a node is asked what is the matter.
_CONFIRM_SECONDS = 10.0
_REOPEN_SECONDS = 5.0
#: How long readers of a topic are taken to be the same.
_READERS_SECONDS = 5.0
#: How often a subscriber that hears nothing asks whether all is as it should be. So its subscription is kept as well.
_CHECK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a subscriber gets it. Who published it is what the broker vouches for; of a signed one, what its signature proves."""

    topic: str
    id: str | None
    publisher: str | None
    at: datetime | None
    body: bytes
    content_type: str
    signed: bool
    encrypted: bool
    #: Whether it may have been given before, by a program of ours that did not finish with it.
    redelivered: bool = False

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "topic": self.topic,
            "id": self.id,
            "publisher": self.publisher,
            "at": format_time(self.at) if self.at is not None else None,
        }
        try:
            result["body"] = self.body.decode("utf-8")
        except UnicodeDecodeError:
            result["body_base64"] = base64.b64encode(self.body).decode()
        return result | {"signed": self.signed, "encrypted": self.encrypted}


@dataclass(frozen=True, slots=True)
class Published:
    """A message that the broker has taken."""

    topic: str
    id: str
    at: datetime

    def as_object(self) -> dict[str, Any]:
        return {"topic": self.topic, "id": self.id, "at": format_time(self.at)}


class Publisher:
    """Publishes to one topic, over a channel of its own. Use it with `async with`."""

    def __init__(self, client: EntityClient, session: Session, uuid: str, *, sign: bool, encrypt: bool) -> None:
        self.topic = check_uuid(uuid)
        self._client = client
        self._session = session
        self._sign = sign or encrypt
        self._encrypt = encrypt
        self._channel: Channel | None = None
        self._connection: Connection | None = None
        #: Whether the last message was confirmed: what the topic needs is there, and we may.
        self._proven = False
        self._lock = asyncio.Lock()
        self._readers: Sequence[EllipticCurvePublicKey] = ()
        self._readers_at = float("-inf")

    async def __aenter__(self) -> Self:
        await self._open(time.monotonic() + self._client.timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def publish(self, body: bytes | str, *, content_type: str | None = None, message_id: str | None = None) -> Published:
        """Send a message and wait until the broker has it. Several may be under way at once."""
        content = body.encode() if isinstance(body, str) else body
        kind = content_type or (messages.TEXT if isinstance(body, str) else messages.BYTES)
        now = datetime.now(UTC)
        message_id = message_id or envelope.new_id()
        deadline = time.monotonic() + self._client.timeout
        written, written_kind = messages.write(
            content,
            kind,
            sender=self._session.credentials if self._sign else None,
            readers=await self._current_readers() if self._encrypt else None,
            topic=self.topic,
            network=self._session.network,
            message_id=message_id,
            now=now,
        )
        while True:
            try:
                connection, channel = await self._open(deadline)
                with self._session.suspecting(connection):
                    sent = channel.publish(
                        self.topic,
                        "",
                        written,
                        persistent=True,
                        message_id=message_id,
                        content_type=written_kind,
                        sent=int(now.timestamp()),
                        login=str(self._client.identity.name),
                    )
                    await self._confirmed(sent, connection, deadline)
                self._proven = True
                return Published(self.topic, message_id, now)
            except TimeoutError as error:
                if time.monotonic() >= deadline:
                    raise BrokerUnavailable("the broker has not confirmed the message in time; it may arrive all the same") from error
                self._session.leave(connection)
            except LoginRefused:
                raise
            except Refused as error:
                # By the broker. A node is asked again when the channel is opened: it says whether we may, or a guard is only behind.
                if "broker" not in error.detail or time.monotonic() >= deadline:
                    raise
            except BrokerUnavailable:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _confirmed(self, sent: asyncio.Future[None], connection: Connection, deadline: float) -> None:
        """Until the broker has it, or TimeoutError. Where there are several it is not overdue before all of it has been sent: begun again, a long one would be
        no sooner there."""
        while True:
            left = max(0.1, deadline - time.monotonic())
            patience = min(left, _CONFIRM_SECONDS) if self._session.has_choice else left
            try:
                async with asyncio.timeout(patience):
                    return await asyncio.shield(sent)
            except TimeoutError:
                if patience == left or not connection.is_sending:
                    sent.cancel()
                    raise

    async def _open(self, deadline: float) -> tuple[Connection, Channel]:
        async with self._lock:
            if self._connection is not None and self._channel is not None and not self._channel.closed.done():
                return self._connection, self._channel
            proven, self._proven = self._proven, False
            if proven:
                # A moment ago all was well, so it was only the connection that was lost: no node is waited for, who may have lost its own with the
                # same broker. What else may be wrong shows at the next message, and then a node is asked.
                with contextlib.suppress(TdnError):
                    return await self._open_channel(min(deadline, time.monotonic() + _REOPEN_SECONDS))
            await use(self._client, self.topic, PUBLISH)
            return await self._open_channel(deadline)

    async def _open_channel(self, deadline: float) -> tuple[Connection, Channel]:
        self._connection = await self._session.line(max(0.1, deadline - time.monotonic()))
        with self._session.suspecting(self._connection):
            self._channel = await self._connection.channel(confirms=True)
        return self._connection, self._channel

    async def _current_readers(self) -> Sequence[EllipticCurvePublicKey]:
        """The keys of those who read the topic, and our own."""
        if time.monotonic() - self._readers_at > _READERS_SECONDS:
            roots = self._session.credentials.roots
            found: dict[str, EllipticCurvePublicKey] = {self._client.identity.name.key_hash: self._client.identity.public_key}
            cursor: dict[str, Any] = {}
            while True:
                body = {"uuid": self.topic, "after": self._client.seen, **cursor}
                (reply,) = await self._client.ask_pages("readers", body)
                if reply.kind != "reading":
                    raise TrustError(f"a {reply.kind} is no answer to what was asked")
                for chain in reply.body["chains"]:
                    reader = roots.identify(decode_chain(chain), at=datetime.now(UTC))
                    if reader.name.role is Role.ENTITY:
                        found[reader.name.key_hash] = reader.public_key
                if "cursor" not in reply.body:
                    break
                cursor = {"cursor": reply.body["cursor"]}
            self._readers, self._readers_at = list(found.values()), time.monotonic()
        return self._readers


class Subscription:
    """The messages of a topic, or of what is below it or in it, as they come. An asynchronous iterator, to be used with `async with`.

    It goes on through lost connections, however long brokers or nodes are away, and ends with Refused when the right has ended. Two programs of one entity
    that subscribe to the same share its messages.
    """

    def __init__(
        self, client: EntityClient, session: Session, uuid: str, *, children: bool, depth: int | None, signed_only: bool
    ) -> None:
        self.topic = check_uuid(uuid)
        if depth is not None and depth < 1:
            raise UsageError("a depth is 1 or more")
        self._client = client
        self._session = session
        self._tree = {"tree": children or depth is not None, **({"depth": depth} if depth is not None else {})}
        self._signed_only = signed_only
        self._channel: Channel | None = None
        self._arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._given: OrderedDict[tuple[str, str | None, str], None] = OrderedDict()
        #: The message that the application has now: its channel and tag.
        self._held: tuple[Channel, int] | None = None
        #: Messages that were left out, because they could not be believed, and why the last of them.
        self.disbelieved = 0
        self.last_disbelieved: str | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        if self._channel is not None:
            # What was not given goes back to its place in the queue.
            await self._channel.close()
            self._channel = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._finish()
        while True:
            delivery = await self._next()
            if delivery is None:
                await self._reopen()
                continue
            channel = self._channel
            if channel is None or channel.closed.done():
                continue
            message = self._read(delivery)
            if message is None or not self._is_new(message):
                channel.ack(delivery.tag)
                continue
            self._held = (channel, delivery.tag)
            return message

    async def _next(self) -> Delivery | None:
        """The next delivery; nothing when the connection or the queue is gone."""
        while True:
            if self._channel is None or (self._channel.closed.done() and self._arrived.empty()):
                return None
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    return await self._arrived.get()
            except TimeoutError:
                # Bindings may be missing that nobody knows of, and what is not asked for is forgotten in the end.
                try:
                    await self._ready()
                except (BrokerUnavailable, NoNodeAnswered) as error:
                    # Nobody is there to ask. Messages come all the same, or the channel ends.
                    logger.info("whether the subscription to %s is as it should be is asked later: %s", self.topic, error)

    async def _open(self) -> None:
        secret = await self._ready()
        name = self._client.identity.name
        connection = await self._session.line(self._client.timeout)
        channel = await connection.channel(prefetch=PREFETCH)
        arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._arrived = arrived
        channel.closed.add_done_callback(lambda _: arrived.put_nowait(None))
        channel.on_cancelled(lambda: arrived.put_nowait(None))
        try:
            await channel.consume(names.feed_queue(name.id, self.topic, secret), arrived.put_nowait)
        except BaseException:
            # Also when nobody waits any more: the broker would go on giving messages to a channel that nobody reads.
            channel.abandon()
            raise
        self._channel = channel

    async def _ready(self) -> str:
        return await use(self._client, self.topic, SUBSCRIBE, self._tree)

    async def _reopen(self) -> None:
        """The connection was lost, or the queue: subscribe again, if we still may."""
        self._held = None
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        deadline = time.monotonic() + max(self._client.timeout, 60.0)
        told = False
        while True:
            try:
                await self._open()
                if told:
                    logger.warning("the subscription to %s goes on", self.topic)
                return
            except LoginRefused:
                # A guard that catches up lets nobody in. It gets as long as one that is behind.
                if not self._session.guards_may_be_late or time.monotonic() >= deadline:
                    raise
            except (BrokerUnavailable, NoNodeAnswered) as error:
                # However long they are away: what is published meanwhile waits in the queue, and who reads it has nothing else to do than to wait too.
                if not told:
                    logger.warning("the subscription to %s is interrupted and will go on by itself: %s", self.topic, error.message.partition("; ")[0])
                told = True
                deadline = time.monotonic() + max(self._client.timeout, 60.0)
            except Refused as error:
                # By the broker: a guard is behind, or the right is just ending. A node, asked again, says which.
                if "broker" not in error.detail or time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    def _finish(self) -> None:
        """The application is done with the message that it has."""
        if self._held is not None:
            channel, tag = self._held
            self._held = None
            if not channel.closed.done():
                channel.ack(tag)

    def _is_new(self, message: Message) -> bool:
        if message.id is None:
            return True
        key = (message.topic, message.publisher, message.id)
        if key in self._given:
            return False
        self._given[key] = None
        if len(self._given) > _REMEMBERED:
            self._given.popitem(last=False)
        return True

    def _read(self, delivery: Delivery) -> Message | None:
        try:
            return read_message(delivery, self._session, signed_only=self._signed_only)
        except TdnError as error:
            self.disbelieved += 1
            self.last_disbelieved = str(error)
            logger.warning("a message on topic %s was left out: %s", delivery.exchange, error)
            return None


def read_message(delivery: Delivery, session: Session, *, signed_only: bool) -> Message:
    """A message as it can be believed, or one of our errors."""
    read = messages.read(
        delivery.body,
        delivery.content_type or "",
        key=session.credentials.key,
        identify=by_roots(session.credentials.roots),
        topic=delivery.exchange,
        network=session.network,
        message_id=delivery.message_id or "",
        now=datetime.now(UTC),
    )
    if signed_only and not read.signed:
        raise TrustError("the message is not signed")
    sender = Name.parse(delivery.login or "")
    if sender is not None and sender.role is not Role.ENTITY:
        raise TrustError(f"the message was published by {sender.principal}, which is no entity")
    if read.publisher is not None and sender is not None and read.publisher.id != sender.id:
        raise TrustError("the message was signed by another entity than published it")
    publisher = read.publisher or sender
    at = read.at
    if at is None and delivery.sent is not None:
        with contextlib.suppress(OverflowError, ValueError, OSError):
            at = from_epoch(delivery.sent)
    return Message(
        topic=delivery.exchange,
        id=delivery.message_id,
        publisher=publisher.id if publisher is not None else None,
        at=at,
        body=read.body,
        content_type=read.content_type,
        signed=read.signed,
        encrypted=read.encrypted,
        redelivered=delivery.redelivered,
    )


async def use(client: EntityClient, uuid: str, right: str, tree: dict[str, Any] | None = None) -> str:
    """Have a node make ready what publishing or subscribing needs; for subscribing, the secret part of the queue's name."""
    body: dict[str, Any] = {"uuid": uuid, **(tree or {})}
    (reply,) = await client.ask_pages("use", {**body, "right": right, "after": client.seen})
    if reply.kind != "ready":
        raise TrustError(f"a {reply.kind} is no answer to what was asked")
    needs = reply.body.get("needs")
    if needs is None:
        return str(reply.body.get("queue", ""))
    if needs == "open":
        await client.change("open", {"uuid": uuid})
        return ""
    decided = await client.change("subscribe", {"tree": False, **body})
    queue = decided.answer.get("queue")
    if queue is None:
        raise TrustError("the node named no queue")
    return str(queue)
