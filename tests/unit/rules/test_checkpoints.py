"""Checkpoints: what nodes state of the state, and when it counts."""

from __future__ import annotations

from typing import Any

import pytest
from little_network import MINUTE, LittleNetwork, Log, message_of
from pki import T0

from tdn.protocol.times import format_time
from tdn.rules import checkpoints
from tdn.rules.apply import write_record
from tdn.rules.state import Outcome

A, B = "a" * 64, "b" * 64


def stated(seq: int, digest: str = A, head: str = B) -> dict[str, Any]:
    return {"seq": seq, "head": head, "at": format_time(T0), "digest": digest}


def state(log: Log, node: str, what: dict[str, Any]) -> Outcome:
    return log.append(write_record("checkpoint", log.net.node(node), T0, checkpoint=what))


def counted(log: Log) -> int | None:
    latest = checkpoints.latest(log.state)
    return latest["seq"] if latest is not None else None


def test_a_majority_makes_it_count(net: LittleNetwork) -> None:
    """One of three is not enough, two are; what counts names the records in which they said so."""
    log = net.log()
    assert state(log, "n1", stated(2)).status == "accepted"
    assert counted(log) is None
    assert state(log, "n3", stated(2)).status == "accepted"
    latest = checkpoints.latest(log.state)
    assert latest == {**stated(2), "records": [len(log.records) - 1, len(log.records)]}
    state(log, "n2", stated(2))
    assert checkpoints.latest(log.state) == latest


@pytest.mark.parametrize(
    "other", [stated(2, digest=B), stated(2, head=A), stated(3), {**stated(2), "at": format_time(T0 + MINUTE)}]
)
def test_another_statement_is_another(net: LittleNetwork, other: dict[str, Any]) -> None:
    log = net.log()
    state(log, "n1", stated(2))
    state(log, "n2", other)
    assert counted(log) is None
    state(log, "n3", other)
    latest = checkpoints.latest(log.state)
    assert latest is not None
    assert {name: latest[name] for name in other} == other


def test_of_two_both_must_agree() -> None:
    log = LittleNetwork("two", nodes=("n1", "n2")).log()
    state(log, "n1", stated(2))
    assert counted(log) is None
    state(log, "n2", stated(2))
    assert counted(log) == 2


def test_a_single_node_counts_alone() -> None:
    log = LittleNetwork("one", nodes=("n1",)).log()
    state(log, "n1", stated(2))
    assert counted(log) == 2


def test_revoked_nodes_have_no_voice_and_are_not_counted(net: LittleNetwork) -> None:
    log = net.log()
    state(log, "n3", stated(2))
    log.put("revoke", net.revoke("node:n3"))
    assert state(log, "n3", stated(3)).status == "void"
    state(log, "n1", stated(2))
    assert counted(log) is None, "n3's word is void, so one of two"
    state(log, "n2", stated(2))
    assert counted(log) == 2
    log.put("revoke", net.revoke("node:n2"))
    state(log, "n1", stated(4))
    assert counted(log) == 4, "n1 is all there is"


def test_what_counts_never_goes_back(net: LittleNetwork) -> None:
    """A slow node's word completes an older checkpoint after a newer one counted: the newer one stays."""
    log = net.log()
    state(log, "n1", stated(2))
    state(log, "n1", stated(4))
    state(log, "n2", stated(4))
    assert counted(log) == 4
    state(log, "n3", stated(2))
    assert counted(log) == 4


def test_slow_nodes_still_agree(net: LittleNetwork) -> None:
    """The last few statements of a node are kept: the other may be at the one before."""
    log = net.log()
    state(log, "n1", stated(2))
    state(log, "n1", stated(3))
    state(log, "n2", stated(2))
    assert counted(log) == 2


def test_only_the_last_few_are_kept(net: LittleNetwork) -> None:
    log = net.log()
    while len(log.records) < 20:
        log.tick(T0 + MINUTE)
    for seq in range(2, 12):
        assert state(log, "n1", stated(seq)).status == "accepted"
    fact = log.state.get("checkpoint", "n1")
    assert fact is not None
    assert [one["seq"] for one in fact["stated"]] == [9, 10, 11]
    assert len(fact["stated"]) == checkpoints.KEPT


@pytest.mark.parametrize(
    ("seqs", "why"),
    [((3, 3), "already"), ((3, 2), "already"), ((10_000,), "what came before it")],
)
def test_void(net: LittleNetwork, seqs: tuple[int, ...], why: str) -> None:
    """A statement again, of an earlier place, or of what is not there yet: it does nothing."""
    log = net.log()
    for seq in seqs[:-1]:
        state(log, "n1", stated(seq))
    before = log.state.digest()
    outcome = state(log, "n1", stated(seqs[-1]))
    assert (outcome.status, outcome.writes) == ("void", ())
    assert why in message_of(outcome)
    assert log.state.digest() == before


def test_a_checkpoint_says_what_it_states(net: LittleNetwork) -> None:
    """And nothing else does."""
    log = net.log()
    assert log.append(write_record("checkpoint", net.node("n1"), T0)).status == "void"
    assert log.append(write_record("tick", net.node("n1"), T0, checkpoint=stated(2))).status == "void"
    assert state(log, "n1", {**stated(2), "digest": "x"}).status == "void"
    assert log.append(write_record("checkpoint", net.entity("alice"), T0, checkpoint=stated(2))).status == "void"
    assert counted(log) is None
