"""Who sent a message, by what the log says of certificates. A certificate that another node has just logged is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime

from tdn.errors import TrustError
from tdn.replica.replica import Replica
from tdn.rules.apply import requester
from tdn.trust import envelope
from tdn.trust.envelope import Envelope

#: How long a certificate may take to reach this node's view after another node logged it.
_UNKNOWN_SECONDS = 1.0
#: How many may wait for that at once. Anybody can name a certificate that does not exist, and must not hold the others up by it: half of what a node
#: works on at once is left to them. A newcomer who asks twenty things as soon as it is let in finds all of them answered.
_UNKNOWN_WAITING = 64


class Senders:
    def __init__(self, replica: Replica, clock: Callable[[], datetime]) -> None:
        self._replica = replica
        self._clock = clock
        self._waiting = 0

    async def authenticate(self, raw: bytes) -> Envelope:
        """Who signed this. Another node may have logged the certificate a moment ago: a few are waited for."""
        try:
            return self._authenticate(raw)
        except TrustError as error:
            if "unknown" not in error.detail or self._waiting >= _UNKNOWN_WAITING:
                raise
        return await self._await_certificate(raw)

    def _authenticate(self, raw: bytes) -> Envelope:
        return envelope.authenticate(raw, lambda header: requester(self._replica.reader, header, self._clock()))

    async def _await_certificate(self, raw: bytes) -> Envelope:
        self._waiting += 1
        try:
            deadline = asyncio.get_running_loop().time() + _UNKNOWN_SECONDS
            while asyncio.get_running_loop().time() < deadline:
                await self._replica.progress(within_seconds=_UNKNOWN_SECONDS)
                with contextlib.suppress(TrustError):
                    return self._authenticate(raw)
        finally:
            self._waiting -= 1
        return self._authenticate(raw)
