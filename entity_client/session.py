"""One entity's session with the network: questions and changes, put until they are answered or the time is up.

How it is connected, and whose replies are believed, is in `introduced`.

While no broker can be reached, or nobody answers through it, questions that only read go to the nodes' own endpoints instead, where such are
known; the same messages, verified alike. It is gone back to the broker as soon as that serves again. Changes wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from entity_client.endpoints import Age, Endpoints
from entity_client.introduced import ATTEMPT_SECONDS, QUESTION_LIFE, Introduced, Line, for_now, now
from entity_client.patience import Patience, before
from tdn.bus.address import ConnectionSettings, NodeAddress
from tdn.errors import BrokerUnavailable, LoginRefused, NoNodeAnswered, Refused, TdnError, UsageError, from_object
from tdn.observe.traces import of_entity
from tdn.observe.trail import REFUSED, Trail
from tdn.protocol import jsontext, names
from tdn.trust import envelope, sealing
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_CHANGE_LIFE

logger = logging.getLogger(__name__)

#: How long one attempt waits, of a change that a node answers only when the guards have ended something: longer than a node waits for a guard that
#: is gone. A message that is sent again meanwhile may be the broker's occasion to ask that very guard, and to close the channel on which the answer
#: would come.
_ENDING_SECONDS = 12.0
#: How long the broker, and a node's first answer through it, are waited for before a question that only reads goes to the nodes' own endpoints.
_FALLBACK_SECONDS = 4.0
#: After so long without an answer a node is asked once more, and after twice as long again, as long as there is patience: the question may have been lost
#: with the node's connection, or the answer. Longer than a node searches (`query_seconds`), so that what is slow is not made slower.
_ASK_AGAIN_SECONDS = 6.0
#: While the broker is away: how long a question waits for another try, how far apart tries are, and how long one may take.
_GLANCE_SECONDS = 0.5
_TRY_AGAIN_SECONDS = 1.0
_TRY_SECONDS = 10.0


class Session(Introduced):
    def __init__(self, credentials: Credentials, settings: ConnectionSettings) -> None:
        super().__init__(credentials, settings)
        self._endpoints = Endpoints(credentials, settings.nodes)
        #: Why questions that only read go to nodes' own endpoints at present; None while they go through the broker.
        self._away: TdnError | None = None
        self._trying: asyncio.Task[TdnError | None] | None = None
        self._try_at = float("-inf")
        #: Nodes that have answered without the broker, and how old their latest answers may be.
        self.ages: dict[str, Age] = {}

    async def close(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        await self._disconnect()

    @property
    def is_away(self) -> bool:
        """Whether the broker did not serve us lately, so that nodes are asked at their own endpoints."""
        return self._away is not None

    async def ready(self, timeout: float, *, to_read: bool = False) -> None:
        """Connect and introduce ourselves now, rather than with the first message; or find out that reading goes another way."""
        if to_read and self._endpoints and not await self._broker_serves(timeout):
            return
        try:
            await self._ensure(now() + timeout)
        except BrokerUnavailable as error:
            raise error if to_read else _unchanged(error) from error

    def learn(self, address: NodeAddress) -> None:
        """Where a node answers by itself, as it said."""
        self._endpoints.learn(address)

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
            life=QUESTION_LIFE,
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
        first = min(patience.until, now() + silence) if silence is not None else patience.until
        pause = _ASK_AGAIN_SECONDS
        again = now() + pause if node is not None else patience.until
        asked = [message_id]
        heard = False
        async with contextlib.AsyncExitStack() as expecting:
            replies = await expecting.enter_async_context(self._expecting(message_id))
            expecting.enter_context(self.suspecting(line.connection))
            await self._put(line, kind, body, node, key, patience, message_id)
            while patience.left > 0:
                try:
                    async with asyncio.timeout_at(min(first, again, patience.until)):
                        reply = await self._next(replies, *asked)
                except NoNodeAnswered:
                    return
                except TimeoutError:
                    if not heard and again <= now() < patience.until:
                        # As another message: a node answers one once, and may have taken this one. Whichever answer comes first counts.
                        asked.append(envelope.new_id())
                        logger.info("%s is asked again, as request %s", kind, asked[-1])
                        await expecting.enter_async_context(self._expecting(asked[-1], replies))
                        await self._put(line, kind, body, node, key, patience, asked[-1])
                        pause *= 2
                        again = now() + pause
                        continue
                    if silence is not None and not heard:
                        self._session = None
                        raise NoNodeAnswered("no node answered; is one running? (`tdn status`)") from None
                    return
                if node is not None and reply.signer.name.id != node.name.id:
                    continue
                heard, first = True, patience.until
                # The pages of one answer follow each other; when they stop, the node is gone.
                again = now() + _ASK_AGAIN_SECONDS if node is not None else patience.until
                if reply.answers is not None:
                    asked = [reply.answers]
                if reply.kind == "error":
                    error = from_object(reply.body)
                    if "hello" in error.detail:
                        self._session = None
                    raise error
                yield reply

    async def _put(
        self, line: Line, kind: str, body: Mapping[str, Any], node: Identity | None, key: str, patience: Patience, message_id: str
    ) -> None:
        # Not confirmed: the answer is the confirmation, and without one the question is asked again.
        await line.replies.publish(
            names.REQUESTS,
            key,
            self._write_question(kind, body, node, message_id),
            headers={names.PATH_HEADER: names.QUESTION_PATH},
            expiration_seconds=max(1.0, patience.left),
            # A node's queue lives as long as its connection: without one, somebody else can be asked at once.
            mandatory=node is not None,
            message_id=message_id,
        )

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
        deadline = now() + timeout
        attempt = _ENDING_SECONDS if kind in envelope.ENDS_RIGHTS else ATTEMPT_SECONDS
        raw: bytes | None = None
        sent = False
        while True:
            confirmed, line = False, None
            try:
                try:
                    line = await self._ensure(min(deadline, now() + max(ATTEMPT_SECONDS, timeout / 2)))
                except NoNodeAnswered:
                    if node is not None:
                        raise
                    if not sent:
                        # Nobody to introduce us: the change can wait in the broker all the same, for a day.
                        async with asyncio.timeout(ATTEMPT_SECONDS):
                            await self._post(self._write_change(kind, body, message_id, tail, None), message_id)
                        sent = True
                    if now() >= deadline:
                        raise self._undecided(kind) from None
                    continue
                raw = self._write_change(kind, body, message_id, tail, self._session)
                with self.suspecting(line.connection):
                    async with (
                        self._expecting(message_id) as replies,
                        # The confirmation is waited for no longer than the answer: with most brokers away none comes.
                        asyncio.timeout(min(attempt, max(0.05, deadline - now()))),
                    ):
                        await self._post(raw, message_id, node)
                        sent = confirmed = True
                        reply = await self._next(replies, message_id)
                if reply.kind == "error":
                    raise from_object(reply.body)
                return reply
            except LoginRefused:
                if not self._may_be_late or now() >= deadline:
                    raise
            except (BrokerUnavailable, TimeoutError) as error:
                if now() >= deadline:
                    if (sent or self._session is not None) and node is not None:
                        raise NoNodeAnswered(f"node {node.name.id} did not answer") from error
                    if sent:
                        raise self._undecided(kind) from error
                    raise _unchanged(error) from error
                if isinstance(error, TimeoutError) and line is not None and not confirmed and self.has_choice:
                    # This broker may be there and have no leader for what we sent: another is tried.
                    self.leave(line.connection)
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
            channel = await self._line.for_changes()
            await channel.publish(
                names.REQUESTS,
                names.topics_key(node.name.id if node is not None else None),
                sealing.seal(raw, node.public_key) if node is not None else raw,
                headers={names.PATH_HEADER: names.CHANGE_PATH},
                persistent=True,
                mandatory=True,
                message_id=message_id,
            )
        except Refused as error:
            raise for_now(error) from error

    def _undecided(self, kind: str) -> NoNodeAnswered:
        return NoNodeAnswered(
            f"no node has decided the {kind} yet; it waits in the broker for up to a day and counts when a node takes it; "
            "the same command again asks for the outcome",
            detail={"queued": True},
        )

    # --- which way ---

    async def _ensure(self, deadline: float) -> Line:
        """A connection with a reply queue: the present one, or a new one."""
        if self._trying is not None and not self._trying.done() and not self._is_introduced:
            # It is on the way already.
            await asyncio.wait([self._trying], timeout=max(0.0, deadline - now()))
            self._trying.cancel()
            await asyncio.wait([self._trying])
        return await super()._ensure(deadline)

    async def _broker_serves(self, within: float) -> bool:
        """Whether a question that only reads goes through the broker now. Tried for a few seconds, half of the time that there is at most; while the
        broker is away, only glanced at: the tries go on beside the questions."""
        if not self._is_introduced:
            if (self._trying is None or self._trying.done()) and now() >= self._try_at:
                self._try_at = now() + _TRY_AGAIN_SECONDS
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
                    latest = now() + _TRY_SECONDS
                    await self._connect(latest, latest)
                    self._may_be_late = True
        except TdnError as error:
            return error
        except TimeoutError:
            return BrokerUnavailable("the broker did not answer")
        return None


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
