"""Log time: the lower median of the nodes' ticks, never back; and what ends by it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, fresh_uuid
from pki import T0

from tdn.protocol.times import format_time
from tdn.rules import clock
from tdn.rules.state import MemoryState, Outcome, Write


def at(minutes: float) -> str:
    return format_time(T0 + minutes * MINUTE)


def test_one_fast_clock_expires_nothing(net: LittleNetwork) -> None:
    """One of three nodes is a year ahead: log time follows the others."""
    log = net.log()
    uuid = log.advertised()
    log.tick(T0 + MINUTE, "n1", "n2")
    log.tick(T0 + 300 * DAY, "n3")
    assert log.time == at(1)
    log.tick(T0 + 2 * MINUTE, "n1", "n2")
    assert log.time == at(2)
    assert log.topic(uuid)["state"] == "live"


def test_one_slow_clock_of_three_holds_nothing_up(net: LittleNetwork) -> None:
    log = net.log()
    log.tick(T0 + MINUTE, "n3")
    log.tick(T0 + HOUR, "n1", "n2")
    assert log.time == at(60)


def test_of_two_the_slower_counts() -> None:
    """The lower median of two is the lower one: a fast clock alone expires nothing, at the price that a silent node holds time."""
    net = LittleNetwork("two", nodes=("n1", "n2"))
    log = net.log()
    log.tick(T0 + MINUTE, "n1", "n2")
    log.tick(T0 + DAY, "n1")
    assert log.time == at(1)


def test_never_back(net: LittleNetwork) -> None:
    log = net.log()
    log.tick(T0 + HOUR)
    assert log.time == at(60)
    log.tick(T0 + MINUTE)
    assert log.time == at(60)
    ticks = dict(log.state.all("tick"))
    assert {fact["at"] for fact in ticks.values()} == {at(60)}


def test_revoked_node_has_no_voice(net: LittleNetwork) -> None:
    log = net.log()
    log.tick(T0 + MINUTE)
    log.put("revoke", net.revoke("node:n3"))
    log.put("revoke", net.revoke("node:n2"))
    log.tick(T0 + HOUR, "n1")
    assert log.time == at(60)


def test_node_without_a_tick_has_no_voice_yet(net: LittleNetwork) -> None:
    log = net.log()
    log.tick(T0 + HOUR, "n1")
    assert log.time == at(60)


@given(st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 500)), max_size=20))
def test_median_against_a_plain_model(net: LittleNetwork, ticks: list[tuple[str, int]]) -> None:
    log = net.log(())
    latest: dict[str, int] = {}
    expected = 0
    for node, minutes in ticks:
        log.tick(T0 + minutes * MINUTE, node)
        latest[node] = max(minutes, latest.get(node, 0))
        ordered = sorted(latest.values())
        expected = max(expected, ordered[(len(ordered) - 1) // 2])
        assert log.time == at(expected)


@pytest.mark.parametrize(("after", "state"), [(HOUR - SECOND, "live"), (HOUR, "expired")])
def test_expiry_to_the_second(net: LittleNetwork, after: timedelta, state: str) -> None:
    log = net.log()
    uuid = log.advertised(lifetime=HOUR)
    log.tick(T0 + after)
    assert log.topic(uuid)["state"] == state


def test_an_idle_network_still_expires_things(net: LittleNetwork) -> None:
    log = net.log()
    uuids = [log.advertised(lifetime=minutes * MINUTE) for minutes in (1, 2, 3)]
    log.tick(T0 + 2 * MINUTE)
    assert [log.topic(uuid)["state"] for uuid in uuids] == ["expired", "expired", "live"]
    assert [key for key, _ in log.state.all("ends") if " topic " in key] == [f"{at(3)} topic {uuids[2]}"]


def test_request_memory_is_cleared_after_the_deadline(net: LittleNetwork) -> None:
    """The log remembers a request until it can no longer be sent again, and no longer."""
    log = net.log()
    alice = net.entity("alice")
    request = net.advertise(alice, net.mint(alice), message_id="remembered", life=HOUR)
    log.put("advertise", request)
    log.tick(T0 + HOUR + 29 * SECOND)
    assert log.state.get("request", "entity:alice/remembered") is not None
    assert log.put("advertise", request).status == "repeated"
    log.tick(T0 + HOUR + 30 * SECOND)
    assert log.state.get("request", "entity:alice/remembered") is None
    assert log.put("advertise", request).status == "refused"
    # What came too late is not remembered either, or a replay could fill the state.
    assert log.state.get("request", "entity:alice/remembered") is None


def test_one_tick_ends_a_bounded_number(net: LittleNetwork) -> None:
    """No single record stalls every node: what is left ends at the next tick."""
    log = net.log(())
    many = clock.MAX_ENDS + 5
    uuids = [fresh_uuid() for _ in range(many)]
    topic = {"kind": "topic", "state": "live", "expires": at(1), "owner": "alice"}
    log.state.write(
        Outcome(
            "accepted",
            "advertise",
            tuple(Write("topic", uuid, topic) for uuid in uuids)
            + tuple(Write("ends", f"{at(1)} topic {uuid}", {}) for uuid in uuids),
        )
    )

    def live() -> int:
        return sum(fact["state"] == "live" for _, fact in log.state.all("topic"))

    log.tick(T0 + HOUR, "n1")
    assert live() == 5
    log.tick(T0 + HOUR, "n1")
    assert live() == 0
    assert not [key for key, _ in log.state.all("ends") if " topic " in key]


def test_a_stale_end_ends_nothing() -> None:
    """An entry that does not agree with its topic is removed and has no effect."""
    net = LittleNetwork()
    log = net.log()
    uuid = log.advertised(lifetime=HOUR)
    log.state.write(Outcome("accepted", "x", (Write("ends", f"{at(1)} topic {uuid}", {}),)))
    log.tick(T0 + 2 * MINUTE)
    assert log.topic(uuid)["state"] == "live"
    assert log.state.get("ends", f"{at(1)} topic {uuid}") is None


def test_scan_is_bounded_and_ordered() -> None:
    state = MemoryState()
    state.write(Outcome("accepted", "x", tuple(Write("ends", key, {}) for key in ("c", "a", "b", "d"))))
    assert [key for key, _ in state.scan("ends", up_to="c", limit=10)] == ["a", "b", "c"]
    assert [key for key, _ in state.scan("ends", up_to="c", limit=2)] == ["a", "b"]
