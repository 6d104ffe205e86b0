"""Freshness: a message counts within its own window, and a question once.

A replayed change has no second effect because the log remembers its request id; this window is for questions, whose answer goes sealed
to the asker's own queue anyway, so that a replay costs a node nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from datetime import datetime, timedelta

from tdn.errors import TrustError

#: How far two clocks may be apart.
CLOCK_SKEW = timedelta(seconds=30)
#: Longest life of a question. Bounds what the window must remember.
MAX_QUESTION_LIFE = timedelta(minutes=2)
#: Longest life of a change: what was sent while every node was down still counts.
MAX_CHANGE_LIFE = timedelta(days=1)


def require_fresh(issued: datetime, expires: datetime, now: datetime, longest: timedelta) -> None:
    if issued > now + CLOCK_SKEW:
        raise TrustError("the message is dated in the future; compare the clocks")
    if expires <= now - CLOCK_SKEW:
        raise TrustError("the message has expired")
    if expires - issued > longest:
        raise TrustError(f"the message asks to live longer than {int(longest.total_seconds())} s")


class ReplayWindow:
    """Remembers the ids of fresh questions until they have expired; bounded for all and for each sender, and says so when it is full."""

    def __init__(self, capacity: int = 100_000, per_sender: int = 10_000) -> None:
        self._capacity = capacity
        self._per_sender = per_sender
        self._by_sender: Counter[str] = Counter()
        self._seen: OrderedDict[tuple[str, str], datetime] = OrderedDict()

    def admit(self, sender: str, message_id: str, expires: datetime, now: datetime) -> None:
        """Take note of a message, or TrustError when it was here before."""
        while self._seen:
            oldest, ends = next(iter(self._seen.items()))
            if ends + CLOCK_SKEW >= now:
                break
            del self._seen[oldest]
            self._by_sender[oldest[0]] -= 1
            if not self._by_sender[oldest[0]]:
                del self._by_sender[oldest[0]]
        key = (sender, message_id)
        if key in self._seen:
            raise TrustError("the message was received before")
        if len(self._seen) >= self._capacity or self._by_sender[sender] >= self._per_sender:
            raise TrustError("too many messages at once; send it again in a minute")
        self._seen[key] = expires
        self._by_sender[sender] += 1
