"""Answering questions from this node's own view, whatever way they came: over the broker, or at the node's own endpoint.

Who asks, whether it is fresh, whom the policy serves and how much one may ask is decided here, once for all ways. What a question needs at the
broker (queues for a session, bindings for a topic) is not here: nothing in this module needs a connection.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tdn.confined.frames import WorkFailed
from tdn.confined.lanes import Lanes
from tdn.errors import MalformedMessage, Refused
from tdn.node import questions
from tdn.node.questions import Answer, Desk
from tdn.node.senders import Senders
from tdn.observe import trail
from tdn.protocol import jsontext, names
from tdn.protocol.rates import Rate
from tdn.protocol.times import parse_time
from tdn.replica.replica import Replica
from tdn.trust import envelope, sealing
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_QUESTION_LIFE, ReplayWindow

logger = logging.getLogger(__name__)

#: Longest question that is opened, sealed as it comes.
MAX_QUESTION_BYTES = jsontext.MAX_REQUEST_BYTES + sealing.OVERHEAD_BYTES

#: How long a reply counts. The asker is waiting for it now.
_REPLY_LIFE = timedelta(minutes=2)
#: How long a question waits for this node to have applied what its asker has already seen in the log.
_READ_OWN_SECONDS = 3.0
#: How far ahead that may be, and how many may wait for it: a made-up number must not hold the node's attention.
_READ_OWN_RECORDS = 10_000
_READ_OWN_ASKERS = 32
#: Discoveries of one entity in work at once. Each may answer with a few MB.
_DISCOVERIES_AT_ONCE = 32


class Answering:
    """One for a node, for as long as it runs: an asker's rates and a message's being new do not depend on the way that it takes."""

    def __init__(
        self,
        desk: Desk,
        replica: Replica,
        clock: Callable[[], datetime],
        *,
        lanes: Lanes,
        counts: Counter[str],
        queries: Rate,
        follows: Callable[[], bool],
    ) -> None:
        self._desk = desk
        self._replica = replica
        self._clock = clock
        #: Where discoveries run.
        self._lanes = lanes
        self._counts = counts
        #: Discoveries of one entity.
        self._queries = queries
        #: Whether this node reads the log now. When it does not, there is nothing to wait for.
        self._follows = follows
        self._senders = Senders(replica, clock)
        self._window = ReplayWindow()
        self._catching_up = 0
        self._looking: Counter[str] = Counter()

    def as_of(self) -> datetime | None:
        """This node has everything that was in the log at this moment: it has read back its own tick of then. None when it never ticked."""
        tick = self._replica.reader.get("tick", self._desk.node.identity.name.id)
        # A clock that was put back since must not make the answer younger than now.
        return min(parse_time(tick["at"]), self._clock()) if tick is not None else None

    async def read(self, message: bytes) -> tuple[Envelope, bool]:
        """Who asks what, and whether it was sealed to this node."""
        if len(message) > MAX_QUESTION_BYTES:
            raise MalformedMessage(f"question of {len(message)} bytes is over the limit", received=message)
        sealed = sealing.is_sealed(message)
        raw = sealing.unseal(message, self._desk.node.key) if sealed else message
        with trail.step("admit"):
            question = await self._senders.authenticate(raw)
        trail.identified(question.kind, question.id, question.signer.name.principal)
        return question, sealed

    def admit(self, question: Envelope, *, sealed: bool, now: datetime) -> None:
        """Refuse what is no question, not for us, not for now, or was here before (TrustError: its sender may be anyone)."""
        if question.kind not in questions.KINDS:
            raise Refused(f"{question.kind} is not a question; changes are sent to {names.TOPICS.replace('.', '/')}")
        to_all = question.kind == "locate"
        if not to_all and not sealed:
            raise Refused(f"{question.kind} must be sealed to the node")
        audiences = frozenset({"tdn:nodes"} if to_all else {self._desk.node.identity.name.principal})
        envelope.require_addressed(question, audiences=audiences, now=now, longest=MAX_QUESTION_LIFE)
        self._window.admit(str(question.signer.name), question.id, question.expires, now)

    def require_served(self, question: Envelope) -> None:
        """Decline aloud whom the policy does not serve (T11)."""
        questions.require_served(self._desk, question)

    def require_rate(self, question: Envelope) -> None:
        """So many questions of one entity in a time, where an answer costs something."""
        if not self._queries.take(question.signer.name.principal):
            raise Refused("too many questions in a short time; wait a moment")

    async def catch_up_with(self, question: Envelope) -> None:
        """Wait until this node has applied what the asker has a receipt for; not for just anything, and not for too many at once."""
        ahead = question.body.get("after", 0) - self._replica.position[0]
        if 0 < ahead <= _READ_OWN_RECORDS and self._catching_up < _READ_OWN_ASKERS and self._follows():
            self._catching_up += 1
            try:
                await self._replica.reached(question.body["after"], within_seconds=_READ_OWN_SECONDS)
            finally:
                self._catching_up -= 1

    async def answers(self, question: Envelope, now: datetime) -> list[Answer]:
        """The answers to a question that was admitted, one message each; or one of our errors."""
        if question.kind in questions.SEARCHED:
            return await self._look_for(question, now)
        return list(questions.answer(self._desk, question, self._replica.reader, now))

    async def _look_for(self, question: Envelope, now: datetime) -> list[Answer]:
        """The answers to a discovery or a look at a tree. May take long, so in a process of its own, and only so many of one asker at a time."""
        self.require_served(question)
        in_tree = question.kind == "tree"
        job = questions.tree_job(question, self._replica.reader, now) if in_tree else questions.search_job(question, now)
        asker = question.signer.name.principal
        if self._looking[asker] >= _DISCOVERIES_AT_ONCE:
            raise Refused(f"too many discoveries at once; at most {_DISCOVERIES_AT_ONCE} of one entity are in work at a node")
        if not self._queries.take(asker):
            raise Refused("too many discoveries in a short time; wait a moment, or ask for more topics at once")
        self._looking[asker] += 1
        try:
            # Saxon cannot be interrupted, so XQuery has workers that nobody else waits for.
            result = await self._lanes.run(job, asker=asker, heavy=job.get("language") == "xquery")
            return list((questions.placed if in_tree else questions.discovered)(self._desk, result, now))
        except WorkFailed as error:
            # Ours to look into. Its asker is told all the same: silence means that no node is there (T17).
            trail.ended(trail.FAILED)
            logger.error("a discovery failed: %s", error)
            self._counts["failed"] += 1
            raise Refused("the query could not be evaluated here; write it in another way, or ask another node") from error
        finally:
            self._looking[asker] -= 1
            if not self._looking[asker]:
                del self._looking[asker]

    # --- replies ---

    def reply(self, request: Envelope, answer: Answer, *, with_chain: bool = False, as_of: datetime | None = None) -> bytes:
        """A reply to a verified sender: signed, and sealed to its key (T6). Whoever locates a node learns its certificate by the answer."""
        if answer.kind == "error":
            trail.ended(trail.REFUSED, answer.body["error"])
        with trail.step("answer"):
            raw = self.write(
                answer.kind,
                answer.body,
                audience=request.signer.name.principal,
                answers=request.id,
                tail=answer.tail,
                with_chain=with_chain or answer.kind == "located",
                as_of=as_of,
            )
            return sealing.seal(raw, request.signer.public_key)

    def write(
        self,
        kind: str,
        body: dict[str, Any],
        *,
        audience: str,
        answers: str | None = None,
        tail: bytes | None = None,
        with_chain: bool = False,
        as_of: datetime | None = None,
    ) -> bytes:
        return envelope.write(
            kind,
            body,
            self._desk.node,
            audience=audience,
            now=self._clock(),
            life=_REPLY_LIFE,
            answers=answers,
            tail=tail,
            with_chain=with_chain,
            as_of=as_of,
        )
