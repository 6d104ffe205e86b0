"""Changes: admitted once, appended, judged by this node's own `apply`, then answered with a receipt.

A change is addressed to the network, so any node can finish it. A redelivered or repeated one finds its outcome already decided.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tdn.bus.log import Appender
from tdn.errors import BrokerUnavailable, MalformedMessage, Refused, TrustError, from_object
from tdn.node.senders import Senders
from tdn.observe import trail
from tdn.protocol import jsontext
from tdn.protocol.names import mint_uuid, new_session
from tdn.protocol.times import format_time, parse_time
from tdn.replica.replica import Replica
from tdn.rules import clock, principals
from tdn.rules.apply import RULES, audience, repeated, write_record
from tdn.rules.state import Outcome
from tdn.trust import envelope, openings, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.openings import Opening
from tdn.trust.replay import CLOCK_SKEW, MAX_CHANGE_LIFE

logger = logging.getLogger(__name__)

#: How long a record may take into the log and back to us. A stream whose leader was killed can forget a record on its way, or a reader of it, and says
#: nothing: whoever then waits on that connection waits for ever.
_DECIDED_SECONDS = 10.0

KINDS = frozenset(RULES)


class NoLongerCurrent(Refused):
    """The log judged our own record void: this node's certificate was superseded or revoked."""


class LogStands(BrokerUnavailable):
    """The log takes no records over this connection, or gives none back. Another connection may do better."""


class ClockBehind(BrokerUnavailable):
    """By its sender's date and another node's clock, this node's is behind. What it would answer by its own clock is the cause."""


class Changes:
    """Puts changes into the log and waits for what became of them."""

    def __init__(
        self,
        replica: Replica,
        appender: Appender,
        node: Credentials,
        clock: Callable[[], datetime],
        *,
        appended: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        #: Told how long the broker took to confirm a record, in seconds.
        self._appended = appended
        self._replica = replica
        self._appender = appender
        self._node = node
        self._clock = clock
        self._senders = Senders(replica, clock)

    async def admit(self, raw: bytes) -> Envelope:
        """Who sent this and what it asks. A certificate that another node has just logged is waited for."""
        if len(raw) > jsontext.MAX_REQUEST_BYTES:
            raise MalformedMessage(f"request of {len(raw)} bytes is over the limit of {jsontext.MAX_REQUEST_BYTES}", received=raw)
        request = await self._senders.authenticate(raw)
        if request.kind not in KINDS:
            raise TrustError(f"{request.kind} is not a change")
        return request

    async def decide(self, request: Envelope) -> Outcome:
        """The outcome of a change: what the log already says, or what it says once it is appended."""
        before = repeated(self._replica.reader, request)
        if before is not None:
            return before
        self.require_for_now(request, longest=MAX_CHANGE_LIFE)
        minted = None
        if request.kind == "register":
            minted = {"uuid": mint_uuid(), "seed": openings.new_seed()}
            # A child that no node could mint must not take a slot: what is wrong with it is told before anything is reserved.
            self.mint_child(request, minted | {"created": format_time(self._clock())})
        elif request.kind == "subscribe":
            minted = {"queue": new_session()}
        return await self.append(request.kind, request.raw, minted)

    def require_for_now(self, request: Envelope, *, longest: timedelta) -> None:
        """Refuse what is meant for another network, or not for now.

        Where its sender and another node agree against this node's clock, this one is behind. What it refused would be lost, since nobody believes an answer
        with its date; another node judges it.
        """
        reader, now = self._replica.reader, self._clock()
        audiences = frozenset({audience(reader)})
        try:
            envelope.require_addressed(request, audiences=audiences, now=now, longest=longest)
        except TrustError as refusal:
            told = clock.latest(reader, but=self._node.identity.name.id) if request.issued > now + CLOCK_SKEW else None
            if told is None or request.issued > told + CLOCK_SKEW:
                raise
            # What is wrong with it at any time is no matter of clocks.
            envelope.require_addressed(request, audiences=audiences, now=request.issued, longest=longest)
            raise ClockBehind(f"this node's clock is behind another node's, which said {format_time(told)}; set it") from refusal

    def mint_child(self, request: Envelope, fixed: Mapping[str, Any]) -> tuple[Opening, bytes]:
        """The advertisement of a registered child, and what it hides, from what the outcome fixed: any node mints the same."""
        opening = openings.conceal(openings.claims_of(request.body), fixed["seed"])
        token = statements.mint(
            request,
            uuid=fixed["uuid"],
            network=principals.network(self._replica.reader)["id"],
            opening=opening,
            node=self._node,
            now=parse_time(fixed["created"]),
            expires=parse_time(fixed["expires"]) if "expires" in fixed else None,
        )
        return opening, token

    async def append(
        self,
        kind: str,
        request: bytes | None,
        minted: Mapping[str, str] | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Append a record of ours and wait for its outcome."""
        outcome = await self.offer(kind, request, minted, checkpoint)
        if outcome.status == "void":
            reason = (outcome.error or {}).get("message")
            try:
                principals.require_current(self._replica.reader, self._node.identity)
                self._node.identity.require_valid_at(self._clock())
            except TrustError as error:
                raise NoLongerCurrent(f"the log takes no records of this node: {error}") from error
            # Ours to answer for, not a reason to stop: the next node would stop as well.
            raise Refused(f"the log did not take the request: {reason}")
        return outcome

    async def offer(
        self,
        kind: str,
        request: bytes | None,
        minted: Mapping[str, str] | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Append a record that may be void because another node was first (a genesis)."""
        raw = write_record(kind, self._node, self._clock(), request, minted, checkpoint)
        decided = self._replica.expect(raw)
        began = time.monotonic()
        try:
            async with asyncio.timeout(_DECIDED_SECONDS):
                with trail.step("append"):
                    confirmed = self._appender.append(raw)
                    # Whichever fails first. The outcome alone is enough: what we read from the log is in it.
                    either: list[asyncio.Future[Any]] = [confirmed, decided]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if confirmed.done():
                        confirmed.result()
                self._appended(time.monotonic() - began)
                with trail.step("apply"):
                    outcome = await decided
        except TimeoutError as error:
            raise LogStands(f"a record was not in the log and back within {_DECIDED_SECONDS:.0f} s") from error
        except BrokerUnavailable as error:
            raise LogStands(error.message, detail=error.detail) from error
        finally:
            self._replica.forget(raw)
        return outcome


def require_accepted(outcome: Outcome) -> dict[str, object]:
    """The receipt's payload, or the refusal as an exception."""
    if outcome.receipt is None:
        raise from_object(outcome.error or {})
    return dict(outcome.receipt)
