"""Freshness: a message counts within its own window, and a question once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pki import T0

from tdn.errors import TrustError
from tdn.trust.replay import CLOCK_SKEW, MAX_QUESTION_LIFE, ReplayWindow, require_fresh

S = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("now", [T0 - CLOCK_SKEW, T0, T0 + MINUTE, T0 + MINUTE + CLOCK_SKEW - S])
def test_fresh(now: object) -> None:
    require_fresh(T0, T0 + MINUTE, now, MAX_QUESTION_LIFE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("issued", "expires", "why"),
    [
        (T0 + CLOCK_SKEW + S, T0 + 2 * MINUTE, "in the future"),
        (T0 - MINUTE, T0 - CLOCK_SKEW, "has expired"),
        (T0, T0 + MAX_QUESTION_LIFE + S, "live longer"),
        (T0 + MINUTE, T0, "in the future"),
    ],
)
def test_not_fresh(issued: object, expires: object, why: str) -> None:
    """T19: bound to a short time window."""
    with pytest.raises(TrustError, match=why):
        require_fresh(issued, expires, T0, MAX_QUESTION_LIFE)  # type: ignore[arg-type]


def test_once() -> None:
    """T19: a replay has no second effect."""
    window = ReplayWindow()
    window.admit("alice", "1", T0 + MINUTE, T0)
    with pytest.raises(TrustError, match="received before"):
        window.admit("alice", "1", T0 + MINUTE, T0 + S)
    window.admit("bob", "1", T0 + MINUTE, T0)
    window.admit("alice", "2", T0 + MINUTE, T0)


def test_full_window_refuses_and_recovers() -> None:
    """Bounded: better to refuse a while than to forget what was seen."""
    window = ReplayWindow(capacity=3)
    for number in range(3):
        window.admit("alice", str(number), T0 + MINUTE, T0)
    with pytest.raises(TrustError, match="too many"):
        window.admit("alice", "3", T0 + MINUTE, T0)
    with pytest.raises(TrustError, match="received before"):
        window.admit("alice", "0", T0 + MINUTE, T0)
    window.admit("alice", "3", T0 + 3 * MINUTE, T0 + 2 * MINUTE)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120), st.integers(0, 40)), max_size=40),
    st.integers(2, 50),
)
def test_nothing_fresh_is_admitted_twice(messages: list[tuple[int, int, int]], capacity: int) -> None:
    """T19: whatever lives how long, sent in whatever order: as long as a message is fresh, a second one is refused."""
    window = ReplayWindow(capacity)
    now = T0
    admitted: set[tuple[int, int]] = set()
    for number, life, wait in messages:
        now += wait * S
        # The same id always has the same window, since both are signed together.
        issued, expires = T0 + number * MINUTE, T0 + number * MINUTE + life * S
        try:
            require_fresh(issued, expires, now, MAX_QUESTION_LIFE)
            window.admit("alice", f"{number} {life}", expires, now)
        except TrustError:
            continue
        assert (number, life) not in admitted
        admitted.add((number, life))
