"""Permits for what leaves something behind."""

from __future__ import annotations

from tdn.protocol.rates import Rate


def test_a_burst_and_then_a_steady_rate() -> None:
    now = 0.0
    rate = Rate(burst=3, per_second=2.0, clock=lambda: now)
    assert [rate.take("mallory") for _ in range(5)] == [True, True, True, False, False]
    assert rate.take("alice")
    now = 0.5
    assert [rate.take("mallory") for _ in range(2)] == [True, False]
    now = 1000.0
    assert [rate.take("mallory") for _ in range(4)] == [True, True, True, False]


def test_names_are_forgotten_in_the_order_of_their_use() -> None:
    rate = Rate(burst=1, per_second=0.0, clock=lambda: 0.0, most_names=2)
    assert rate.take("a")
    assert rate.take("b")
    assert not rate.take("a")
    assert rate.take("c")
    assert not rate.take("a")
    assert rate.take("b")
