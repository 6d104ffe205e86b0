"""A connection and its channels, awaitable: pika's callbacks become futures, its exceptions become ours.

Whoever waits on a channel that closes gets the reason, never silence. A publish returns when the broker has confirmed it; a channel on which the
broker did not take a message is closed. Of several brokers any will do: clients spread over them, and one that is dead, hangs or lets nobody in costs a moment and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import pika
import pika.exceptions as foreign
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflow, AMQPConnectionWorkflowAborted, AMQPConnectorException
from pika.credentials import ExternalCredentials

from tdn.errors import BrokerUnavailable, LoginRefused, NotTaken, Refused, TdnError, TrustError
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: What a guard gives the broker as the reason when it cuts off a login that the log has ended.
CUT_OFF = "the key was revoked or superseded"
#: What we ask for as the time of a heartbeat, in seconds. RabbitMQ looks twice in that time, and sends one where it has sent nothing since its last look: so
#: something comes of it at least every 5 s (measured, after traffic: 2.5 to 4.5). It notices a dead peer after two to three of these times (10 to 15 s), and pika a dead
#: broker after 10 to 20 s. RabbitMQ advises against less than 5 s: whoever is only busy would be cut off.
HEARTBEAT_SECONDS = 5
_CONNECT_SECONDS = 10
#: How long a broker may take to answer a request on an open connection. One that hangs keeps its connections, and shows it by missing heartbeats alone;
#: one whose queue has no leader says nothing at all, for as long as that lasts.
_ANSWER_SECONDS = 15.0
#: How long nothing at all may come of a broker, when it is doubted that it is there: a heartbeat comes before, however much it has to do. Asked to open a
#: channel it answers at once, unless that waits behind what we send.
_ALIVE_SECONDS = HEARTBEAT_SECONDS + 1.0
#: After how long the socket has taken what it has room for: what waits longer waits until the other end acknowledges what was sent before.
_WRITTEN_SECONDS = 0.1
#: How long a connection that is closed waits for the broker to say goodbye.
_GOODBYE_SECONDS = 5.0
#: How long a broker may take before the next one is tried beside it. Connecting takes 11 ms where nothing else is going on.
_NEXT_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens, and the name that its certificate must carry."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as it came."""

    tag: int
    body: bytes
    headers: dict[str, Any]
    reply_to: str | None
    routing_key: str
    redelivered: bool
    #: The request that a reply answers, as far as its sender may say so in the clear.
    correlation: str | None
    #: The sender's login, where it named it: the broker lets nobody name another's.
    login: str | None = None
    message_id: str | None = None
    content_type: str | None = None
    #: When its sender says that it was sent, in seconds.
    sent: int | None = None
    #: The exchange that it was sent to.
    exchange: str = ""


#: What RabbitMQ says when its authorisation backend failed, rather than refused. (AMQP cuts texts at 255 bytes, so of a very long name not all.)
_UNASKED = re.compile(r"refused for user '[^']*'.*backend")


def translate(error: BaseException, *, who: str = "") -> TdnError:
    """Our error for one of pika's. The one table."""
    if isinstance(error, TdnError):
        return error
    if isinstance(error, AMQPConnectorException | foreign.AMQPConnectionError) and (inner := _inside(error)) is not None:
        return translate(inner, who=who)
    if isinstance(error, foreign.ProbableAuthenticationError | foreign.ProbableAccessDeniedError | foreign.AuthenticationError):
        return LoginRefused(
            f"the broker refused the login of {who}: its key is revoked or superseded, or the guard does not answer"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return TrustError(
            f"the broker's certificate does not hold: {getattr(error, 'verify_message', error)}; are trust.pem and the brokers in connection.toml those of this network? "
            "The operator's home has both; look at the clock, too"
        )
    if isinstance(error, ssl.SSLError) and not _is_end(error):
        return TrustError(f"TLS with the broker failed: {error.reason or error}")
    if (
        isinstance(error, foreign.IncompatibleProtocolError | foreign.StreamLostError)
        and "ssl" in str(error).lower()
        and not _is_end(error)
    ):
        # Under TLS 1.3 a refused client certificate shows only at the first read after the handshake.
        return TrustError(f"the broker refused the certificate of {who}: {error}")
    if isinstance(error, foreign.ChannelClosedByBroker | foreign.ConnectionClosedByBroker):
        if CUT_OFF in error.reply_text:
            return LoginRefused(f"the network ended the connection of {who or 'this key'}: {CUT_OFF}")
        if error.reply_code == 403 and _UNASKED.search(error.reply_text):
            # Nobody said no: the broker could not ask. It fails closed, and we try again.
            return BrokerUnavailable(f"the broker's guard did not answer: {error.reply_text[:300]}")
        if error.reply_code == 403:
            return Refused("the broker refused it", detail={"broker": error.reply_text[:300]})
        return BrokerUnavailable(
            f"the broker closed the channel: {error.reply_code} {error.reply_text[:300]}", detail={"code": error.reply_code}
        )
    said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error or type(error).__name__
    return BrokerUnavailable(f"the broker is not reachable: {said}")


def _is_end(error: BaseException) -> bool:
    """Whether TLS only saw the other side go, as a killed broker does. A refusal comes as an alert."""
    return isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "EOF" in str(error)


def _inside(error: BaseException) -> BaseException | None:
    """What pika has wrapped, if anything: the last of several tries, or the failure of a phase."""
    several = getattr(error, "exceptions", None) or [getattr(error, "exception", None), *error.args]
    return next((inner for inner in reversed(several) if isinstance(inner, BaseException)), None)


def _tolerate_late_endings() -> None:
    """pika (1.4.4) fails, with a traceback on the user's terminal, when a try to connect ends that was given up before."""
    ended = AMQPConnectionWorkflow._on_connector_done

    def on_connector_done(workflow: Any, outcome: Any) -> None:
        if workflow._connection_errors is not None:
            ended(workflow, outcome)

    AMQPConnectionWorkflow._on_connector_done = on_connector_done


_tolerate_late_endings()


class _OurConnection(AsyncioConnection):  # type: ignore[misc]  # pika ships no types
    """pika's, with what it does not tell, and what it does not do well."""

    @property
    def bytes_gone(self) -> int:
        """How much the socket has taken; `bytes_sent` counts what waits for it too."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return int(self.bytes_sent - waiting)

    def _output_marshaled_frames(self, marshaled_frames: Sequence[bytes]) -> None:
        """pika sends a message's three frames as three TLS records, each a system call here and a wake-up in the broker. One is enough:
        a sixth less processor time for a creation, over all processes."""
        super()._output_marshaled_frames([b"".join(marshaled_frames)])

    def _on_connection_workflow_done(self, conn_or_exc: Any) -> None:
        """pika (1.4.4) hands over the class of this error instead of one, and then fails on it, when a connection is given up while it logs in."""
        super()._on_connection_workflow_done(
            AMQPConnectionWorkflowAborted() if conn_or_exc is AMQPConnectionWorkflowAborted else conn_or_exc
        )

    def _read_frame(self) -> Any:
        """A frame, also when its properties cannot be read: a sender's header table that RabbitMQ passes on and pika fails on (a time
        beyond the calendar, tables three thousand deep) once ended the connection of every node that it reached."""
        try:
            return super()._read_frame()
        except foreign.AMQPError:
            raise
        except Exception:
            kind, channel, size = struct.unpack(">BHL", self._frame_buffer[:7])
            if kind != pika.spec.FRAME_HEADER:
                raise
            (body_size,) = struct.unpack_from(">Q", self._frame_buffer, 11)
            return size + 8, pika.frame.Header(channel, body_size, pika.BasicProperties(headers={}))


class Connection:
    """One AMQP connection over mutual TLS, logged in by certificate."""

    def __init__(self, raw: _OurConnection, who: str, broker: Broker | None = None) -> None:
        self._raw = raw
        self._who = who
        #: The other end.
        self.broker = broker
        #: Done when the connection is gone, with the reason as its result.
        self.closed: asyncio.Future[TdnError] = asyncio.get_running_loop().create_future()
        self._channels: WeakSet[Channel] = WeakSet()
        #: Whether the broker has said that it takes nothing for the time being, because it is short of memory or disk.
        self._blocked = False
        raw.add_on_close_callback(self._on_closed)
        raw.add_on_connection_blocked_callback(lambda *_: self._note_blocked(True))
        raw.add_on_connection_unblocked_callback(lambda *_: self._note_blocked(False))

    @classmethod
    async def open(
        cls,
        brokers: Sequence[Broker],
        credentials: Credentials,
        *,
        vhost: str,
        prefer: Broker | None = None,
        avoid: Sequence[Broker] = (),
    ) -> Connection:
        """Connect to any broker, the preferred one first, else by chance, and those to avoid after all others. The next is tried when one has failed or
        takes long.

        A refused login may be the fault of one broker's guard, so the others are asked too; but once one has refused, those that hang are
        not waited for.
        """
        late = {broker: place for place, broker in enumerate(avoid, start=1)}
        waiting = sorted(random.sample(brokers, len(brokers)), key=lambda broker: (broker != prefer, late.get(broker, 0)))
        trying: set[asyncio.Task[Connection]] = set()
        failures: list[TdnError] = []
        try:
            while waiting or trying:
                if waiting:
                    trying.add(asyncio.create_task(cls._open_one(waiting.pop(0), credentials, vhost)))
                refused = any(isinstance(failure, TrustError) for failure in failures)
                patience = _NEXT_SECONDS if waiting or refused else None
                done, _ = await asyncio.wait(trying, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    trying.discard(task)
                    try:
                        return task.result()
                    except TdnError as failure:
                        failures.append(failure)
                if refused and not done and not waiting:
                    break
        finally:
            for task in trying:
                if not task.cancel() and task.exception() is None:
                    # It came second.
                    task.result().abandon()
        if not failures:
            raise BrokerUnavailable("no broker is configured")
        failures.sort(key=lambda failure: not isinstance(failure, TrustError))
        if len(brokers) > 1 and isinstance(failures[0], BrokerUnavailable):
            raise BrokerUnavailable(
                f"none of the {len(brokers)} brokers takes connections; most must run, or the others stop too (`tdn status`): {failures[0]}"
            ) from failures[0]
        raise failures[0]

    @classmethod
    async def _open_one(cls, broker: Broker, credentials: Credentials, vhost: str) -> Connection:
        who = credentials.identity.name.principal
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[_OurConnection] = loop.create_future()
        parameters = pika.ConnectionParameters(
            host=broker.host,
            port=broker.port,
            virtual_host=vhost,
            credentials=ExternalCredentials(),
            ssl_options=pika.SSLOptions(tls_context(credentials), broker.host),
            heartbeat=HEARTBEAT_SECONDS,
            socket_timeout=_CONNECT_SECONDS,
            stack_timeout=_CONNECT_SECONDS,
            blocked_connection_timeout=30,
            client_properties={"connection_name": who},
        )

        def failed(_: AsyncioConnection, error: BaseException | str) -> None:
            if not opened.done():
                opened.set_exception(
                    translate(error if isinstance(error, BaseException) else BrokerUnavailable(str(error)), who=who)
                )

        raw = _OurConnection(
            parameters,
            on_open_callback=lambda raw: _settle(opened, raw),
            on_open_error_callback=failed,
            on_close_callback=failed,
            custom_ioloop=loop,
        )
        try:
            # Not wait_for: in Python 3.11 it forgets that it was cancelled when the answer comes in the same moment.
            async with asyncio.timeout(_CONNECT_SECONDS + 5):
                return cls(await opened, who, broker)
        except (TimeoutError, asyncio.CancelledError) as error:
            # Nobody waits for it any more: it must not open later and stay.
            with contextlib.suppress(foreign.AMQPError):
                raw.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise BrokerUnavailable(f"the broker at {broker.host}:{broker.port} did not answer") from error

    async def channel(self, *, prefetch: int = 0, confirms: bool = False) -> Channel:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.closed.done():
            raise self.closed.result()

        def take(opened: Any) -> None:
            if waiting.done():
                # Nobody waits for it any more.
                opened.close()
            else:
                waiting.set_result(opened)

        try:
            self._raw.channel(on_open_callback=take)
        except foreign.AMQPError as error:
            raise translate(error, who=self._who) from error
        try:
            await asyncio.wait([waiting, self.closed], return_when=asyncio.FIRST_COMPLETED, timeout=_ANSWER_SECONDS)
            if not waiting.done():
                raise self.closed.result() if self.closed.done() else _unanswered()
        finally:
            waiting.cancel()
        channel = Channel(waiting.result())
        self._channels.add(channel)
        try:
            if prefetch:
                await channel.prefetch(prefetch)
            if confirms:
                await channel.confirm()
        except BaseException:
            channel.abandon()
            raise
        return channel

    @property
    def bytes_received(self) -> int:
        """How much has come of the broker, heartbeats too."""
        return int(self._raw.bytes_received)

    @property
    def is_sending(self) -> bool:
        """Whether something that we send still waits to go out."""
        return bool(self._raw.bytes_gone < self._raw.bytes_sent)

    async def answers(self) -> bool:
        """Whether the broker is at the other end: a connection that was lost on its way is open to both ends until heartbeats are missed. One
        that has said why it takes nothing is there, and so is one of which anything comes, if it be only a part of what it sends, or which goes on
        taking what waited for it: a long message on a slow line keeps the answer waiting, and must not be begun again and again."""
        raw = self._raw
        heard, given = raw.bytes_received, raw.bytes_sent
        # How much had gone, where more waits for the other end.
        gone: int | None = None
        if not self._blocked:
            try:
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await asyncio.sleep(_WRITTEN_SECONDS)
                    # Not what the socket takes while it has room: that goes nowhere on a connection that was lost.
                    gone = raw.bytes_gone if raw.bytes_gone < given else None
                    channel = await self.channel()
                channel.abandon()
                return True
            except (TimeoutError, TdnError):
                pass
        if self.closed.done():
            return False
        return self._blocked or raw.bytes_received > heard or (gone is not None and raw.bytes_gone > gone)

    def abandon(self) -> None:
        """Close without waiting for it."""
        if not self.closed.done() and not (self._raw.is_closing or self._raw.is_closed):
            self._raw.close()

    def give_up(self, error: TdnError) -> None:
        """Close without waiting for it, and say so now, and not when heartbeats are missed, to whoever waits on it or on a channel of it."""
        self.abandon()
        for channel in list(self._channels):
            channel.end(error)
        if not self.closed.done():
            self.closed.set_result(error)

    async def close(self) -> None:
        self.abandon()
        if not self.closed.done():
            await asyncio.wait([self.closed], timeout=_GOODBYE_SECONDS)
            # The broker has not said goodbye. Whoever still waits on it need not wait for heartbeats to be missed.
            self.give_up(BrokerUnavailable("the connection to the broker is closed"))

    def _note_blocked(self, blocked: bool) -> None:
        self._blocked = blocked

    def _on_closed(self, _: AsyncioConnection, error: BaseException) -> None:
        if not self.closed.done():
            self.closed.set_result(translate(error, who=self._who))


class Channel:
    """One channel. Its methods return when the broker has answered."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._waiting: set[asyncio.Future[Any]] = set()
        self._unconfirmed: dict[int, tuple[asyncio.Future[None], str | None]] = {}
        self._returned: set[str] = set()
        self._published = 0
        self._confirms = False
        self.closed: asyncio.Future[TdnError] = asyncio.get_running_loop().create_future()
        raw.add_on_close_callback(self._on_closed)

    async def prefetch(self, count: int) -> None:
        await self._call(self._raw.basic_qos, prefetch_count=count)

    async def confirm(self) -> None:
        await self._call(self._raw.confirm_delivery, self._on_confirm)
        self._raw.add_on_return_callback(self._on_return)
        self._confirms = True

    async def declare_exchange(self, name: str, kind: str) -> None:
        await self._call(self._raw.exchange_declare, exchange=name, exchange_type=kind, durable=True)

    async def declare_queue(self, name: str, arguments: dict[str, Any] | None = None, *, exclusive: bool = False) -> None:
        """A queue that lasts; or an exclusive one, which nobody else reads and which ends with the connection."""
        await self._call(
            self._raw.queue_declare, queue=name, durable=not exclusive, exclusive=exclusive, arguments=arguments or {}
        )

    async def count_messages(self, name: str) -> int:
        """How many messages a queue or stream holds. Asked passively, which needs no permission."""
        declared = await self._call(self._raw.queue_declare, queue=name, passive=True)
        return int(declared.method.message_count)

    async def bind_queue(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        await self._call(self._raw.queue_bind, queue=queue, exchange=exchange, routing_key=key, arguments=arguments)

    async def unbind_queue(self, queue: str, exchange: str, key: str = "") -> None:
        await self._call(self._raw.queue_unbind, queue=queue, exchange=exchange, routing_key=key)

    async def delete_queue(self, name: str) -> None:
        """Harmless when it is not there."""
        await self._call(self._raw.queue_delete, queue=name)

    async def bind_exchange(self, destination: str, source: str, key: str) -> None:
        await self._call(self._raw.exchange_bind, destination=destination, source=source, routing_key=key)

    async def consume(
        self,
        queue: str,
        on_delivery: Callable[[Delivery], None],
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        def deliver(_: Any, method: Any, properties: Any, body: bytes) -> None:
            delivery = Delivery(
                tag=method.delivery_tag,
                body=body,
                headers=properties.headers or {},
                reply_to=_text(properties.reply_to),
                routing_key=method.routing_key,
                redelivered=method.redelivered,
                correlation=_text(properties.correlation_id),
                login=_text(properties.user_id),
                message_id=_text(properties.message_id),
                content_type=_text(properties.content_type),
                sent=properties.timestamp if isinstance(properties.timestamp, int) else None,
                exchange=method.exchange,
            )
            try:
                on_delivery(delivery)
            except Exception:
                # pika drops the connection without a word; whoever comes back meets the same message again.
                logger.exception("a delivery could not be taken")
                raise

        tag_holder: list[str] = []

        def start(*, callback: Callable[..., None]) -> None:
            tag_holder.append(
                self._raw.basic_consume(
                    queue, deliver, auto_ack=no_ack, exclusive=exclusive, arguments=arguments, callback=callback
                )
            )

        await self._call(start)
        return tag_holder[0]

    def on_cancelled(self, callback: Callable[[], None]) -> None:
        """Told when the broker ends a consumer by itself: its queue was deleted, or its leader is gone."""
        self._raw.add_on_cancel_callback(lambda _frame: callback())

    def on_returned(self, callback: Callable[[str], None]) -> None:
        """Told the id of a mandatory message that no queue takes. For channels without confirms; with them, the publish fails."""
        self._raw.add_on_return_callback(
            lambda _channel, _method, properties, _body: callback(_text(properties.message_id) or "")
        )

    async def cancel(self, tag: str) -> None:
        await self._call(self._raw.basic_cancel, tag)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._raw.basic_ack(tag, multiple)

    def nack(self, tag: int) -> None:
        self._raw.basic_nack(tag, requeue=True)

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        *,
        headers: dict[str, Any] | None = None,
        persistent: bool = False,
        mandatory: bool = False,
        reply_to: str | None = None,
        expiration_seconds: float | None = None,
        message_id: str | None = None,
        correlation: str | None = None,
        login: str | None = None,
        content_type: str | None = None,
        sent: int | None = None,
    ) -> asyncio.Future[None]:
        """Send now; await the result for the broker's confirm (on a channel with confirms). `mandatory` needs a message id."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed.done():
            done.set_exception(self.closed.result())
            done.exception()
            return done
        properties = pika.BasicProperties(
            headers=headers,
            delivery_mode=2 if persistent else 1,
            reply_to=reply_to,
            expiration=str(int(expiration_seconds * 1000)) if expiration_seconds is not None else None,
            message_id=message_id,
            correlation_id=correlation,
            user_id=login,
            content_type=content_type,
            timestamp=sent,
        )
        try:
            self._raw.basic_publish(exchange, key, body, properties, mandatory=mandatory)
        except foreign.AMQPError as error:
            done.set_exception(translate(error))
            done.exception()
            return done
        if self._confirms:
            self._published += 1
            self._unconfirmed[self._published] = (done, message_id)
        else:
            done.set_result(None)
        return done

    def abandon(self) -> None:
        """Close without waiting for it."""
        if not self.closed.done() and self._raw.is_open:
            self._raw.close()

    async def close(self) -> None:
        if not self.closed.done() and self._raw.is_open:
            self._raw.close()
            await asyncio.wait([self.closed], timeout=_GOODBYE_SECONDS)

    async def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.closed.done():
            raise self.closed.result()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            method(*args, callback=lambda frame: _settle(waiting, frame), **kwargs)
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await waiting
        except foreign.AMQPError as error:
            raise translate(error) from error
        except TimeoutError as error:
            raise _unanswered() from error
        finally:
            self._waiting.discard(waiting)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tags = [tag for tag in self._unconfirmed if tag <= method.delivery_tag] if method.multiple else [method.delivery_tag]
        taken = not isinstance(method, pika.spec.Basic.Nack)
        for tag in tags:
            done, message_id = self._unconfirmed.pop(tag, (None, None))
            returned = message_id is not None and message_id in self._returned
            self._returned.discard(message_id or "")
            if done is None or done.done():
                continue
            if returned:
                done.set_exception(BrokerUnavailable("nobody is there to take the message"))
            elif taken:
                done.set_result(None)
            else:
                done.set_exception(_not_taken())
            # Retrieved, as in `end`.
            done.exception()
        if not taken:
            # On a channel whose first message to a quorum queue came while that had no leader, RabbitMQ (3.10.8) takes no message to it ever again. The
            # next channel begins anew, also when nobody waits for this message any more.
            self.abandon()
            self.end(_not_taken())

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        if properties.message_id is not None:
            self._returned.add(properties.message_id)

    def _on_closed(self, _: Any, error: BaseException) -> None:
        self.end(translate(error))

    def end(self, ours: TdnError) -> None:
        """It is over, and whoever waits on it is told why."""
        if not self.closed.done():
            self.closed.set_result(ours)
        for waiting in [*self._waiting, *(done for done, _ in self._unconfirmed.values())]:
            if not waiting.done():
                waiting.set_exception(ours)
                # Retrieved here too: a publisher that did not wait is not to be told by a warning at exit.
                waiting.exception()
        self._unconfirmed.clear()


def _not_taken() -> NotTaken:
    return NotTaken("the broker did not take the message; it is full or in trouble")


def _unanswered() -> BrokerUnavailable:
    return BrokerUnavailable(f"the broker has not answered for {_ANSWER_SECONDS:.0f} s")


def _text(value: Any) -> str | None:
    """A property as text. pika gives bytes where it is not UTF-8, which no address or id of ours is."""
    return value if isinstance(value, str) else None


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Mutual TLS: our roots and nobody else's, our certificate, the broker's name checked."""
    folder = credentials.folder
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "trust.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    return context
