"""One entity's line to the network: connected to a broker, introduced, with a reply queue of its own; made anew when it is lost.

The first contact goes through RabbitMQ's direct reply-to, which needs no permission; a node answers with the name of the reply queue
that it made. Answers are sorted to whoever waits for them, and believed there: unsealed, and verified to be a node's, ours, an answer to what we
asked, and fresh. What is asked, and which other way it may take, is the session's business (`session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from entity_client.believing import Believing
from tdn.bus.address import ConnectionSettings
from tdn.bus.connection import Broker, Channel, Connection, Delivery
from tdn.errors import BrokerUnavailable, LoginRefused, NoNodeAnswered, Refused, TdnError, TrustError, UsageError, from_object
from tdn.protocol import names
from tdn.trust import envelope
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

logger = logging.getLogger(__name__)

QUESTION_LIFE = timedelta(seconds=60)
#: How long one attempt waits before the same message is sent again.
ATTEMPT_SECONDS = 3.0
#: The longest that it becomes, when nobody has answered the ones before: each that is only late makes a queue.
_LONGEST_ATTEMPT_SECONDS = 4 * ATTEMPT_SECONDS
#: When nothing has come back for so long, it is looked whether the broker is there at all; and then again and again.
DOUBT_SECONDS = 2.0
#: Notifications of one thing that whoever follows it has not taken yet. What comes beyond is dropped: its version says that something is missing, and
#: nodes keep it. Who is slow, or told of more than it can take, must not fill its own memory.
_MOST_NOTIFICATIONS = 200
#: What connecting gets at least, however short the time is that a caller has left.
_LEAST_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Line:
    """A connection and its channels: one for questions, which nobody confirms, and for all answers; and, from the first change on, one for changes,
    which are confirmed."""

    connection: Connection
    replies: Channel
    _changes: Channel | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_open(self) -> bool:
        return not any(part.closed.done() for part in (self.connection, self.replies))

    async def for_changes(self) -> Channel:
        """The channel for changes. A broker that has refused one may go on refusing on that channel, which is then closed."""
        async with self._opening:
            if self._changes is None or self._changes.closed.done():
                self._changes = await self.connection.channel(confirms=True)
            return self._changes


class Suspicion:
    """Whoever waits for something of a broker has this looked into, again and again, until it is done waiting. Not while anything at all comes of that broker:
    it is there, and a thousand clients that open channels to see it are no help to one that is slow."""

    __slots__ = ("_connection", "_heard", "_look", "_timer")

    def __init__(self, connection: Connection, look: Callable[[Connection], None]) -> None:
        self._connection = connection
        self._heard = connection.bytes_received
        self._look = look
        self._timer = asyncio.get_running_loop().call_later(DOUBT_SECONDS, self._due)

    def _due(self) -> None:
        before, self._heard = self._heard, self._connection.bytes_received
        if self._heard == before:
            self._look(self._connection)
        self._timer = asyncio.get_running_loop().call_later(DOUBT_SECONDS, self._due)

    def end(self) -> None:
        self._timer.cancel()


class Introduced:
    """Whoever is connected and known to a node."""

    def __init__(self, credentials: Credentials, settings: ConnectionSettings) -> None:
        self.credentials = credentials
        self.network = settings.network
        self._settings = settings
        self._believing = Believing(credentials)
        self._pending: dict[str, asyncio.Queue[bytes | TdnError]] = {}
        self._line: Line | None = None
        self._session: str | None = None
        #: Whether a login that is refused may be so for the moment alone, by a guard that has to catch up first: we were let in before, or the broker
        #: has just come back.
        self._may_be_late = False
        #: Being introduced may wait for a node; whoever needs no more than a connection does not wait for that.
        self._lock = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._doubting: dict[Connection, asyncio.Task[None]] = {}
        #: How long a hello is waited for at first. Longer after each broker that was left because of it: they may all be slow.
        self._patience = ATTEMPT_SECONDS
        #: Brokers that were left, since we were introduced last, the latest last: the others are tried before.
        self._left: list[Broker] = []

    # --- being connected ---

    @property
    def _is_introduced(self) -> bool:
        return self._line is not None and self._line.is_open and self._session is not None

    @contextlib.contextmanager
    def suspecting(self, connection: Connection) -> Iterator[None]:
        """While something is waited for. When it does not come for a while, it is seen whether the broker is there at all, and the connection left if not: it
        may have been lost without either end being told, and what is sent again over the same one is lost too."""
        suspicion = Suspicion(connection, self._doubt)
        try:
            yield
        finally:
            suspicion.end()

    def _doubt(self, connection: Connection) -> None:
        if connection not in self._doubting and not connection.closed.done():
            looking = self._doubting[connection] = asyncio.create_task(self._leave_if_silent(connection))
            looking.add_done_callback(lambda _: self._doubting.pop(connection, None))

    async def _leave_if_silent(self, connection: Connection) -> None:
        if not await connection.answers():
            logger.info("the broker does not answer; another connection is tried")
            self.leave(connection)

    @property
    def has_choice(self) -> bool:
        """Whether there are several brokers, so that one that hangs can be left."""
        return len(self._settings.brokers) > 1

    def leave(self, connection: Connection) -> None:
        """Give up a connection whose broker does not do what is asked of it, without waiting for it. Whoever waits on it is told."""
        connection.give_up(BrokerUnavailable("the broker does not answer on this connection any more"))
        if connection.broker is not None:
            self._left = [*(broker for broker in self._left if broker != connection.broker), connection.broker]
        if self._line is not None and self._line.connection is connection:
            self._line = self._session = None

    async def _disconnect(self) -> None:
        for looking in self._doubting.values():
            looking.cancel()
        if self._line is not None:
            await self._line.connection.close()
            self._line = None
            self._session = None

    async def line(self, timeout: float) -> Connection:
        """A connection, also when no node is there to introduce us to."""
        try:
            async with asyncio.timeout(timeout):
                return (await self._connected()).connection
        except TimeoutError as error:
            raise BrokerUnavailable("no broker answered in time") from error

    async def _connected(self) -> Line:
        """The present connection, or a new one."""
        async with self._connecting:
            if self._line is None or not self._line.is_open:
                await self._disconnect()
                self._line = await self._open_line()
            return self._line

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
    async def _expecting(
        self, message_id: str, replies: asyncio.Queue[bytes | TdnError] | None = None
    ) -> AsyncIterator[asyncio.Queue[bytes | TdnError]]:
        replies = asyncio.Queue() if replies is None else replies
        self._pending[message_id] = replies
        try:
            yield replies
        finally:
            self._pending.pop(message_id, None)

    @property
    def guards_may_be_late(self) -> bool:
        """Whether a refused login may be that of a guard which has not caught up with the log yet: brokers were away, or let us in before, and nobody has
        told us that our key is over."""
        return self._may_be_late

    async def _ensure(self, deadline: float) -> Line:
        """A connection with a reply queue: the present one, or a new one."""
        # A broker that hangs accepts connections and says nothing: it must not take all the time there is, or more. One that is slow takes its time for
        # every step.
        latest = max(deadline, now() + _LEAST_SECONDS)
        async with self._turn(latest):
            while not self._is_introduced:
                try:
                    await self._connect(deadline, latest)
                    self._may_be_late = True
                except TimeoutError as error:
                    raise BrokerUnavailable("no broker answered in time") from error
                except BrokerUnavailable:
                    if now() >= deadline:
                        raise
                    self._may_be_late = True
                    await asyncio.sleep(0.3)
                except LoginRefused:
                    # After brokers have come back, a guard lets entities in again once it has caught up with the log, which of several brokers
                    # most must have again. Who was in before, or waits for those brokers, and was not told that its key is over, waits for that.
                    if not self._may_be_late or now() >= deadline:
                        raise
                    await asyncio.sleep(0.3)
            if self._line is None:
                raise BrokerUnavailable("the connection to the broker is gone")
            return self._line

    @contextlib.asynccontextmanager
    async def _turn(self, latest: float) -> AsyncIterator[None]:
        """One at a time is introduced. Whoever has less time than the one before does not wait for that one's end."""
        try:
            async with asyncio.timeout_at(latest):
                await self._lock.acquire()
        except TimeoutError as error:
            if self._line is None:
                raise BrokerUnavailable("no broker answered in time") from error
            raise _nobody() from error
        try:
            yield
        finally:
            self._lock.release()

    async def _connect(self, deadline: float, latest: float) -> None:
        """Nobody answers a hello after the deadline; what the broker is asked besides may take a little longer."""
        async with asyncio.timeout_at(latest):
            line = await self._connected()
        try:
            session = await self._introduce(line, deadline, latest)
            async with asyncio.timeout_at(latest):
                await line.replies.consume(names.reply_queue(self.credentials.identity.name, session), self._on_reply, no_ack=True)
        except Refused as error:
            raise for_now(error) from error
        self._patience = ATTEMPT_SECONDS
        self._left.clear()
        if self._line is line:
            self._session = session

    async def _open_line(self) -> Line:
        connection = await Connection.open(self._settings.brokers, self.credentials, vhost=self._settings.vhost, avoid=self._left)
        try:
            return await self._open_channels(connection)
        except BaseException:
            # Also when nobody waits any more: it would stay open.
            connection.abandon()
            raise

    async def _open_channels(self, connection: Connection) -> Line:
        line = Line(connection, await connection.channel())
        # A channel alone is closed when the broker refuses something on it; whoever waits for an answer on it must not wait in vain.
        for part in (line.connection, line.replies):
            part.closed.add_done_callback(partial(self._on_lost, line))
        line.replies.on_cancelled(self._on_queue_lost)
        line.replies.on_returned(self._on_returned)
        return line

    async def _introduce(self, line: Line, deadline: float, latest: float) -> str:
        """Say hello until a node answers with our reply queue."""
        with self.suspecting(line.connection):
            async with asyncio.timeout_at(latest):
                # The address of a direct reply belongs to the channel that published.
                channel = await line.connection.channel(confirms=True)
            try:
                async with asyncio.timeout_at(latest):
                    await channel.consume(names.DIRECT_REPLY, self._on_reply, no_ack=True)
                welcome = await self._say_hello(line, channel, deadline)
            finally:
                channel.abandon()
        if welcome.kind == "error":
            raise from_object(welcome.body)
        if welcome.kind != "welcome" or welcome.body["network"] != self.network:
            raise TrustError("the node belongs to another network than connection.toml names")
        return str(welcome.body["session"])

    async def _say_hello(self, line: Line, channel: Channel, deadline: float) -> Envelope:
        """Until the first answer to any of them: a node that is slow is not made slower by forgetting what it was asked."""
        asked: list[str] = []
        patience = self._patience
        replies: asyncio.Queue[bytes | TdnError] = asyncio.Queue()
        async with contextlib.AsyncExitStack() as expecting:
            while True:
                asked.append(envelope.new_id())
                await expecting.enter_async_context(self._expecting(asked[-1], replies))
                sent = self._hello(channel, asked[-1], patience)
                try:
                    async with asyncio.timeout(max(0.05, min(patience, deadline - now()))):
                        return await self._welcome(sent, replies, asked)
                except TimeoutError as error:
                    if now() >= deadline:
                        raise _nobody() from error
                    if self.has_choice and not sent.done():
                        # This broker cannot put anything into the queue that the nodes share, or is slow; then the next may be as slow.
                        self._patience = min(2 * patience, _LONGEST_ATTEMPT_SECONDS)
                        self.leave(line.connection)
                        raise BrokerUnavailable("the broker does not take what nodes are asked") from error
                patience = min(2 * patience, _LONGEST_ATTEMPT_SECONDS)

    async def _welcome(self, sent: asyncio.Future[None], replies: asyncio.Queue[bytes | TdnError], asked: Sequence[str]) -> Envelope:
        """The first answer, which may come before the broker confirms what it answers; or why the broker did not take that."""
        answering = asyncio.create_task(self._next(replies, *asked))
        either: list[asyncio.Future[Any]] = [sent, answering]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await sent
            return await answering
        finally:
            answering.cancel()

    def _hello(self, channel: Channel, message_id: str, patience: float) -> asyncio.Future[None]:
        logger.info("hello is request %s", message_id)
        raw = envelope.write(
            "hello",
            {},
            self.credentials,
            audience=f"tdn:network:{self.network}",
            now=datetime.now(UTC),
            life=QUESTION_LIFE,
            message_id=message_id,
            with_chain=True,
        )
        return channel.publish(
            names.REQUESTS,
            names.nodes_key(),
            raw,
            headers={names.PATH_HEADER: names.CHANGE_PATH},
            reply_to=names.DIRECT_REPLY,
            # One is in the queue at any time: a node may come back just before the next is sent.
            expiration_seconds=min(2 * patience, QUESTION_LIFE.total_seconds()),
        )

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

    def _on_lost(self, line: Line, closed: asyncio.Future[TdnError]) -> None:
        if self._line is not None and self._line is not line:
            # One that was left before, and ends only now.
            return
        self._session = None
        if isinstance(closed.result(), LoginRefused):
            # Cut off, not merely disconnected: there is no coming back to wait for.
            self._may_be_late = False
        for replies in self._pending.values():
            replies.put_nowait(for_now(closed.result()))

    # --- replies ---

    def _on_reply(self, delivery: Delivery) -> None:
        """Sort an answer to whoever waits for it. It is opened there: of two answers to a locate, one may be enough."""
        if delivery.correlation is not None:
            waiting = self._pending.get(delivery.correlation)
            is_told = delivery.correlation.startswith(names.watching(""))
            if waiting is not None and not (is_told and waiting.qsize() >= _MOST_NOTIFICATIONS):
                waiting.put_nowait(delivery.body)
            return
        # To a direct reply-to: a welcome, or an error to somebody who could not be named. Only a hello is sent that way.
        for message_id, waiting in self._pending.items():
            if not message_id.startswith(names.watching("")):
                waiting.put_nowait(delivery.body)

    async def _next(self, replies: asyncio.Queue[bytes | TdnError], *message_ids: str) -> Envelope:
        """The next answer to a message, or to one of several, that is believed. Anybody could have sent what is not; it is passed over."""
        while True:
            arrived = await replies.get()
            if isinstance(arrived, TdnError):
                raise arrived
            reply = self._believing.believed(arrived, *message_ids)
            if reply is not None:
                return reply

    def remember(self, node: Identity) -> None:
        """A node that was verified before, in another session."""
        self._believing.remember(node)


def for_now(error: TdnError) -> TdnError:
    """What ended a channel of a session, for who waits on it.

    Everybody whom the guard knows may write requests and read its own replies. If the broker refuses that, its guard is not sure of anything:
    it has just started, or lost the log. That passes. Who may no longer is refused the login.
    """
    if isinstance(error, Refused) and "broker" in error.detail:
        return BrokerUnavailable("the broker's guard lets nobody do anything at the moment", detail=error.detail)
    return error


def _nobody() -> NoNodeAnswered:
    return NoNodeAnswered("no node answered; is one running? (`tdn status`)")


def now() -> float:
    return asyncio.get_running_loop().time()
