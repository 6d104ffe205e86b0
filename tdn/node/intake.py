"""Taking messages off the queues and answering them, over one connection.

Every message has a task of its own; prefetch bounds how many. A change is acknowledged to the broker only after its answer was sent, so
a killed node's work is redelivered. Nothing that a sender can write ends the node: bad input is answered where the sender is entitled
to an answer, counted, and taken off the queue; what fails by our own fault goes back and, after a few times, to the dead letters.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from tdn import machine
from tdn.bus import topology
from tdn.bus.connection import Broker, Channel, Connection, Delivery
from tdn.bus.direct import DirectReplies
from tdn.errors import BrokerUnavailable, LogDiverged, MalformedMessage, Refused, TdnError, TrustError, UnknownRules
from tdn.node import changes, questions
from tdn.node.answering import Answering
from tdn.node.changes import Changes, ClockBehind, LogStands, NoLongerCurrent, require_accepted
from tdn.node.guards import Guards
from tdn.node.observed import Observed
from tdn.node.questions import Answer
from tdn.node.traffic import Traffic
from tdn.observe import trail
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.protocol.rates import Rate
from tdn.protocol.times import format_time
from tdn.replica.replica import Applied, Replica
from tdn.rules import principals
from tdn.trust import envelope, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_QUESTION_LIFE

logger = logging.getLogger(__name__)

#: Changes and questions in work at once.
_PREFETCH = 128

#: A node whose clock is behind has its hands free, and would take most of what it puts back again before others do: so it holds each for a moment. As many
#: at once: anybody can write a date that another node's wrong clock bears out, and must not hold up the others' changes by it.
_HOLD_SECONDS = 0.5
_MOST_HELD = 64

#: How long the guards are waited for before a revocation is answered with their names. Longer than one takes to be fenced.
_GUARDS_SECONDS = 8.0
#: What is in work when the node is told to stop may take so long: as long as guards are waited for.
_DRAIN_SECONDS = _GUARDS_SECONDS

Work = Callable[[Delivery], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Post:
    """What a node's messages are worked on with, whatever the connection."""

    credentials: Credentials
    brokers: Sequence[Broker]
    vhost: str
    network: str
    clock: Callable[[], datetime]
    replica: Replica
    answering: Answering
    counts: Counter[str]
    #: Each session makes a queue that stays for a minute; nobody may fill the broker with them.
    sessions: Rate
    #: Queues for the time without nodes, which stay for a week.
    peers: Rate
    #: Errors to those who cannot be named, all of them together.
    strangers: Rate
    guards: Guards
    #: The kind of the queues that are made for subscriptions.
    feeds: str
    #: Counts and tells what became of each message.
    observed: Observed


class Intake:
    """Takes messages off the queues and answers them, while one connection lasts."""

    def __init__(self, post: Post, connection: Connection, work: Changes) -> None:
        self._post = post
        self._connection = connection
        self._work = work
        #: Fails when this connection no longer serves, or when this node must not go on.
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = 0
        self._traffic = Traffic(post.replica.reader, connection, post.guards, post.clock, feeds=post.feeds)
        # Two, so that nobody who cannot be named disturbs the first contact of those who can.
        self._welcomes = DirectReplies(post.brokers, post.credentials, post.vhost)
        self._strangers = DirectReplies(post.brokers, post.credentials, post.vhost)

    async def open(self, queue: str) -> None:
        """Begin to take messages: changes and dead letters with all nodes, questions from this node's own queue."""
        self._answers = await self._channel()
        self._sessions = await self._channel()
        self._changes = await self._channel(prefetch=_PREFETCH)
        self._questions = await self._channel(prefetch=_PREFETCH)
        self._tags = [
            (self._changes, await self._consume(self._changes, names.CHANGES, self._change)),
            (self._changes, await self._consume(self._changes, names.DEAD, self._dead)),
            (self._questions, await self._consume(self._questions, queue, self._question)),
        ]

    async def _channel(self, *, prefetch: int = 0) -> Channel:
        channel = await self._connection.channel(prefetch=prefetch)
        channel.closed.add_done_callback(lambda closed: self._break(closed.result()))
        channel.on_cancelled(lambda: self._break(BrokerUnavailable("the broker ended a consumer of this node")))
        return channel

    async def _consume(self, channel: Channel, queue: str, work: Work) -> str:
        return await channel.consume(queue, lambda delivery: self._take(channel, delivery, work))

    def _break(self, error: TdnError) -> None:
        """A node that serves with half its channels would look alive and take nothing: rather connect anew."""
        if not self.broken.done():
            self.broken.set_exception(error)
            # Whoever waits for it is told; when nobody does, the node is stopping.
            self.broken.exception()

    async def close(self) -> None:
        """Leave off what is in work; the broker gives it to somebody again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._traffic.close()
        # Unless this node stops in order, it has lost its connection, and these may be lost with it.
        await asyncio.gather(*(replies.close(in_order=not self._open) for replies in (self._welcomes, self._strangers)))

    def on_applied(self, applied: Applied) -> None:
        self._traffic.on_applied(applied)

    async def drain(self) -> None:
        """Take nothing new, finish what is in work."""
        self._open = False
        for channel, tag in self._tags:
            await channel.cancel(tag)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_DRAIN_SECONDS)

    def _take(self, channel: Channel, delivery: Delivery, work: Work) -> None:
        if not self._open:
            # Not begun, so it is another node's: at once, rather than when this connection ends.
            if not channel.closed.done():
                channel.nack(delivery.tag)
        else:
            path = "change" if work == self._change else "question" if work == self._question else "dead"
            task = asyncio.create_task(self._post.observed.follow(path, partial(self._finish, channel, delivery, work)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish(self, channel: Channel, delivery: Delivery, work: Work) -> None:
        """Do the work, then take the message off its queue; or put it back when the fault is ours."""
        try:
            await work(delivery)
        except BrokerUnavailable as error:
            # It comes again, here or at another node.
            trail.ended(trail.UNFINISHED)
            logger.info("left unfinished: %s", error)
            if isinstance(error, LogStands):
                # This connection is open and of no use; what was taken over it comes again when it ends.
                self._break(error)
                return
            if isinstance(error, ClockBehind):
                await self._hold()
            if not channel.closed.done():
                channel.nack(delivery.tag)
            return
        except (LogDiverged, UnknownRules, NoLongerCurrent) as error:
            trail.ended(trail.UNFINISHED)
            self._break(error)
            return
        except Exception as error:
            if isinstance(error, sqlite3.Error) and (ours := machine.explain(error, self._post.replica.path)) is not None:
                # No fault of the message: a node that cannot read its store serves nobody.
                trail.ended(trail.UNFINISHED)
                self._break(ours)
                return
            trail.ended(trail.FAILED)
            logger.exception("a message could not be worked on")
            self._post.counts["failed"] += 1
            if work == self._change and not channel.closed.done():
                # Tried again, by another node perhaps, until the delivery limit. A question is asked again by its asker, and a dead
                # letter has had its chance: neither goes back, or it would come again at once and for ever.
                channel.nack(delivery.tag)
                return
        if not channel.closed.done():
            channel.ack(delivery.tag)

    async def _hold(self) -> None:
        if self._held < _MOST_HELD:
            self._held += 1
            try:
                await asyncio.sleep(_HOLD_SECONDS)
            finally:
                self._held -= 1

    async def _change(self, delivery: Delivery) -> None:
        try:
            with trail.step("admit"):
                request = await self._work.admit(delivery.body)
        except TdnError as error:
            self._turn_away(delivery, error)
            return
        trail.identified(request.kind, request.id, request.signer.name.principal)
        self._post.counts[request.kind] += 1
        await self._answer_change(request, delivery)

    async def _answer_change(self, request: Envelope, delivery: Delivery, *, last: bool = False) -> None:
        """Decide a change of a verified sender, or tell it what is wrong: by this node's clock alone where it goes to no other."""
        try:
            if request.kind == "hello":
                await self._welcome(request, delivery)
            else:
                await self._decide(request, delivery)
        except ClockBehind as error:
            if not last or not isinstance(error.__cause__, TrustError):
                raise
            self._send(request, delivery, "error", error.__cause__.as_object())
        except (BrokerUnavailable, LogDiverged, UnknownRules, NoLongerCurrent):
            raise
        except TdnError as error:
            self._send(request, delivery, "error", error.as_object())

    async def _decide(self, request: Envelope, delivery: Delivery) -> None:
        began = time.monotonic()
        receipt = require_accepted(await self._work.decide(request))
        seq = int(str(receipt["seq"]))
        trail.decided(seq)
        if request.kind == "register":
            # The slot is reserved; that it is taken is for the advertisement's receipt to say.
            opening, token = self._work.mint_child(request, receipt)
            body = {"uuid": receipt["uuid"], "opening": dict(opening)}
            self._send(request, delivery, "created", {**body, "cut": True} if "cut" in receipt else body, token)
            return
        await self._traffic.after(request, seq)
        body = {"queue": receipt["queue"]} if "queue" in receipt else {}
        if request.kind in envelope.ENDS_RIGHTS:
            body["revocation"] = (await self._revocation(request, seq, began)).decode()
        token = statements.sign("receipt", receipt, self._post.credentials, self._post.clock())
        self._send(request, delivery, "decided", body, token)

    async def _revocation(self, request: Envelope, seq: int, began: float) -> bytes:
        """T21: wait until every guard has ended at the broker what a change ends, and say so. What a guard does not say is said too."""
        settled = await self._post.guards.settled(seq, within_seconds=_GUARDS_SECONDS)
        payload: dict[str, Any] = {
            "v": 1,
            "network": self._post.network,
            "seq": seq,
            **{name: request.body[name] for name in ("grant", "uuid", "principal") if name in request.body},
            "cut": dict(settled.cut),
            "guards": list(settled.guards),
            "fenced": list(settled.fenced),
            "unconfirmed": list(settled.unconfirmed),
            "milliseconds": round((time.monotonic() - began) * 1000),
            "at": format_time(self._post.clock().replace(microsecond=0)),
        }
        return statements.sign("revocation", payload, self._post.credentials, self._post.clock())

    async def _welcome(self, request: Envelope, delivery: Delivery) -> None:
        """First contact: the certificate into the log if it is news, then a reply queue for the session."""
        signer = request.signer
        reader = self._post.replica.reader
        self._work.require_for_now(request, longest=MAX_QUESTION_LIFE)
        try:
            principals.require_current(reader, signer)
        except TrustError:
            # News, or no good: the log decides.
            require_accepted(await self._work.decide(request))
            principals.require_current(reader, signer)
        if not self._post.sessions.take(signer.name.principal):
            raise Refused("too many sessions in a short time; wait a minute, or keep one open")
        session = names.new_session()
        await topology.declare_session(self._sessions, signer.name, session)
        body = {
            "session": session,
            "network": self._post.network,
            "node": self._post.credentials.identity.name.id,
            "institution": signer.institution,
        }
        self._send(request, delivery, "welcome", body, with_chain=True)

    async def _dead(self, delivery: Delivery) -> None:
        """What failed too often is tried a last time; then its sender is told, and it is gone."""
        if _was_late(delivery):
            # A first contact that nobody took in time. Its sender has long said hello again.
            return
        self._post.counts["dead"] += 1
        trail.ended(trail.FAILED)
        logger.error("a change failed %d times: %r", topology.DELIVERY_LIMIT, delivery.body[:200])
        try:
            request = await self._work.admit(delivery.body)
        except TdnError:
            return
        try:
            # Once more: it may have failed because nodes or brokers were killed again and again.
            await self._answer_change(request, delivery, last=True)
        except TdnError:
            raise
        except Exception:
            logger.exception("a change is given up")
            error = Refused("the request failed too often inside the nodes and was given up; it had no effect unless a retry says so")
            self._send(request, delivery, "error", error.as_object())

    async def _question(self, delivery: Delivery) -> None:
        post = self._post
        now = post.clock()
        try:
            question, sealed = await post.answering.read(delivery.body)
        except TdnError as error:
            self._turn_away(delivery, error)
            return
        post.counts[question.kind] += 1
        if question.kind == "register" and sealed:
            # Its creator named this node. Decided like any other change; nobody else takes it when this node dies.
            await self._answer_change(question, delivery, last=True)
            return
        try:
            post.answering.admit(question, sealed=sealed, now=now)
        except TrustError as error:
            # A replayed or misdirected question is not answered: its sender may be anyone.
            self._turn_away(delivery, error)
            return
        except TdnError as error:
            self._send(question, delivery, "error", error.as_object())
            return
        try:
            await post.answering.catch_up_with(question)
            if question.kind == "peer":
                answers = [await self._make_peer_queue(question)]
            elif question.kind == "use":
                answers = [await self._make_ready(question)]
            else:
                if question.kind == "changes":
                    await self._admit_follower(question)
                answers = await post.answering.answers(question, now)
        except TdnError as error:
            self._send(question, delivery, "error", error.as_object())
            return
        for number, answer in enumerate(answers):
            if number:
                # Page by page, with others in between: signing and sealing a long answer takes a while.
                await asyncio.sleep(0)
            self._send(question, delivery, answer.kind, answer.body, answer.tail)

    async def _admit_follower(self, question: Envelope) -> None:
        """Bound how often one asks, since every notification costs a signature; and where it wants, have it told of changes as they happen.
        That before they are looked up, so that none falls in between."""
        self._post.answering.require_served(question)
        change_topic = questions.followed(question, self._post.replica.reader)
        self._post.answering.require_rate(question)
        if not question.body.get("follow"):
            return
        if question.reply is None:
            raise Refused("changes are told to a session's reply queue; name it")
        if not self._post.sessions.take(question.signer.name.principal):
            raise Refused("too many sessions in a short time; wait a minute, or keep one open")
        # On a channel that may be lost: a session's queue cannot be bound while the broker that it lives on is away.
        channel = await self._connection.channel()
        try:
            await topology.follow(channel, question.signer.name, question.reply, change_topic)
        except BrokerUnavailable as error:
            # Gone, or away with its broker; or the guard could not be asked. Another one, by another hello, will do.
            raise BrokerUnavailable("your reply queue is not there at the moment; say hello again", detail={"hello": True}) from error
        finally:
            await channel.close()

    async def _make_ready(self, question: Envelope) -> Answer:
        """What publishing or subscribing needs at the broker (T20)."""
        self._post.answering.require_served(question)
        if question.signer.name.role is not Role.ENTITY:
            raise Refused("only entities publish and subscribe")
        self._post.answering.require_rate(question)
        return Answer("ready", await self._traffic.ready(question, self._post.replica.position[0]))

    async def _make_peer_queue(self, question: Envelope) -> Answer:
        """A queue for the time when no node is there (T17). It lasts, so few are made for one entity in a short time."""
        self._post.answering.require_served(question)
        signer = question.signer
        if signer.name.role is not Role.ENTITY:
            raise Refused("only entities ask each other")
        if not self._post.peers.take(signer.name.principal):
            raise Refused("too many peer queues in a short time; the one that you have still serves")
        session = names.new_session()
        await topology.declare_peer(self._sessions, signer.name, session, answers=question.body["answers"])
        return Answer("peered", {"session": session})

    def _turn_away(self, delivery: Delivery, error: TdnError) -> None:
        """A message that nobody can be named for. It is answered only where the address itself proves the sender."""
        self._post.counts["turned away"] += 1
        trail.ended(trail.TURNED_AWAY, error.word)
        received = error.received if isinstance(error, MalformedMessage) else delivery.body[:80]
        logger.info("turned away: %r %r", str(error), received)
        if delivery.reply_to and delivery.reply_to.startswith(names.DIRECT_REPLY) and self._post.strangers.take(""):
            raw = self._post.answering.write("error", error.as_object(), audience="tdn:sender", with_chain=True)
            self._strangers.send(delivery.reply_to, raw)

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
        answer = Answer(kind, body, tail)
        sealed = self._post.answering.reply(request, answer, with_chain=with_chain or request.kind in changes.KINDS)
        if request.reply is not None:
            queue = names.reply_queue(request.signer.name, request.reply)
            self._answers.publish(names.REPLIES, queue, sealed, correlation=request.id)
        elif delivery.reply_to and delivery.reply_to.startswith(names.DIRECT_REPLY):
            self._welcomes.send(delivery.reply_to, sealed)


def _was_late(delivery: Delivery) -> bool:
    """Whether a dead letter expired in its queue, rather than failed in it, as the broker noted."""
    deaths = delivery.headers.get("x-death")
    return isinstance(deaths, list) and bool(deaths) and isinstance(deaths[0], dict) and deaths[0].get("reason") == "expired"
