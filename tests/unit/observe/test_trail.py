"""A message's trail goes with its task, and nothing has to hand it on."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tdn.errors import BrokerUnavailable
from tdn.observe import trail
from tdn.observe.metrics import GuardMetrics, NodeMetrics
from tdn.observe.trail import Trail


async def test_each_message_has_its_own() -> None:
    """Two in work at once, in turns: neither writes into the other's trail."""
    ended: list[Trail] = []
    both = asyncio.Barrier(2)

    async def deep(request: str) -> None:
        await both.wait()
        with trail.step("append"):
            await asyncio.sleep(0)
        trail.decided(len(request))

    async def work(request: str) -> None:
        trail.identified("advertise", request, f"entity:{request}")
        # As a node does: what it starts meanwhile belongs to the same message.
        await asyncio.create_task(deep(request))

    await asyncio.gather(*(trail.follow("change", partial(work, request), ended.append) for request in ("a", "bcd")))
    assert {(one.request, one.principal, one.seq, one.outcome) for one in ended} == {
        ("a", "entity:a", 1, "done"),
        ("bcd", "entity:bcd", 3, "done"),
    }
    assert [[step.name for step in one.steps] for one in ended] == [["append"], ["append"]]
    assert all(0 <= step.began <= step.ended <= one.elapsed() for one in ended for step in one.steps)
    assert trail.current() is None


async def test_cancelled_is_unfinished() -> None:
    ended: list[Trail] = []
    task = asyncio.create_task(trail.follow("change", partial(asyncio.sleep, 60), ended.append))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one.outcome for one in ended] == [trail.UNFINISHED]


@pytest.mark.parametrize(("error", "outcome"), [(RuntimeError("a bug"), trail.FAILED), (BrokerUnavailable("gone"), trail.UNFINISHED)])
async def test_what_nobody_answers_for_has_failed(error: Exception, outcome: str) -> None:
    ended: list[Trail] = []

    async def work() -> None:
        raise error

    with pytest.raises(type(error)):
        await trail.follow("endpoint", work, ended.append)
    assert [one.outcome for one in ended] == [outcome]


async def test_a_failure_that_its_sender_was_told_is_no_refusal() -> None:
    ended: list[Trail] = []

    async def work() -> None:
        trail.ended(trail.FAILED)
        trail.ended(trail.REFUSED, "refused")

    await trail.follow("question", work, ended.append)
    assert [(one.outcome, one.reason) for one in ended] == [(trail.FAILED, "refused")]


def test_without_a_message_nothing_is_noted() -> None:
    trail.identified("advertise", "r", "entity:a")
    trail.ended(trail.FAILED)
    with trail.step("append"):
        assert trail.current() is None


def test_what_a_node_counts() -> None:
    metrics = NodeMetrics()
    metrics.ended(Trail("change", "advertise", "r1"))
    metrics.ended(Trail("change", "advertise", "r2", outcome=trail.REFUSED, reason="refused"))
    metrics.ended(Trail("question", outcome=trail.TURNED_AWAY, reason="trust"))
    metrics.ended(Trail("dead", outcome=trail.FAILED))
    metrics.ended(Trail("dead"))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert value("tdn_node_requests_total", kind="advertise", outcome="done") == 1
    assert value("tdn_node_requests_total", kind="advertise", outcome="refused") == 1
    assert value("tdn_node_requests_total", kind="unknown", outcome="turned_away") == 1
    assert value("tdn_node_request_seconds_count", kind="advertise") == 2
    assert value("tdn_node_refusals_total", reason="refused") == 1
    assert value("tdn_node_turned_away_total", reason="trust") == 1
    assert value("tdn_node_dead_letters_total") == 1, "a late hello was not given up"
    assert value("tdn_node_failures_total") == 0, "and one that was given up failed before, each time that it was tried"
    metrics.ended(Trail("change", "create", "r3", outcome=trail.FAILED))
    assert value("tdn_node_failures_total") == value("tdn_node_requests_total", kind="create", outcome="failed") == 1


def test_what_a_guard_counts() -> None:
    """Anybody can make the broker ask about anything, so what is not known is one label."""
    metrics = GuardMetrics()
    for question in ("resource", "x" * 1000, "y"):
        metrics.decided(question, False, 0.001)
    told = {
        labels["question"]
        for family in metrics.registry.collect()
        for _, labels, *_ in family.samples
        if "question" in labels
    }
    assert told == {"user", "vhost", "resource", "topic", "other"}
    assert metrics.registry.get_sample_value("tdn_guard_decisions_total", {"question": "other", "outcome": "denied"}) == 2


def test_a_number_that_cannot_be_read_leaves_the_others() -> None:
    metrics = NodeMetrics()

    def broken() -> float:
        raise OSError("no such store")

    metrics.gauge("tdn_broken", "", broken)
    metrics.gauge("tdn_whole", "", lambda: 7)
    text = metrics.text().decode()
    assert "tdn_broken NaN" in text
    assert "tdn_whole 7.0" in text


def test_registries_are_apart() -> None:
    """Two nodes in one process, as in tests, do not meet."""
    NodeMetrics()
    NodeMetrics()
    GuardMetrics()
