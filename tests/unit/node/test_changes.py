"""T22: whether a change is for now, where clocks disagree: a node that is behind refuses nothing that its sender and another node think is sound."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from little_network import HOUR, MINUTE, LittleNetwork
from pki import T0

from tdn.errors import BrokerUnavailable, TdnError, TrustError
from tdn.node.changes import Changes
from tdn.rules.apply import audience
from tdn.trust import envelope
from tdn.trust.replay import MAX_CHANGE_LIFE

NOW = T0 + 2 * HOUR
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("own", "others", "sent", "refused"),
    [
        (NOW, NOW, NOW, None),
        (NOW - 30 * SECOND, NOW, NOW, None),
        (NOW - 31 * SECOND, NOW, NOW, BrokerUnavailable),
        (NOW - HOUR, NOW - 29 * SECOND, NOW, BrokerUnavailable),
        # The others' clocks say nothing of it: nobody ticks any more, or the sender is alone with its date.
        (NOW - HOUR, NOW - 31 * SECOND, NOW, TrustError),
        (NOW, NOW, NOW + HOUR, TrustError),
        (NOW, NOW - HOUR, NOW + HOUR, TrustError),
        # By the fast clock of another node, a right one is behind too. Then nobody refuses, until it is a dead letter (`test_intake.py`).
        (NOW, NOW + HOUR, NOW + HOUR, BrokerUnavailable),
        (NOW + MAX_CHANGE_LIFE + MINUTE, NOW, NOW, TrustError),
    ],
)
def test_for_now(net: LittleNetwork, own: datetime, others: datetime, sent: datetime, refused: type[TdnError] | None) -> None:
    log = net.log(("alice",))
    log.tick(T0)
    log.tick(others, *(node for node in net.node_ids if node != "n1"))
    alice = net.entity("alice")
    raw = net.request("withdraw", {"uuid": "0b7c8a0e-7f0c-4d3f-8a55-1f6d1f0e9a01"}, alice, at=sent)
    request = envelope.authenticate(raw, lambda header: alice.identity)
    replica: Any = SimpleNamespace(reader=log.state)
    unused: Any = None
    changes = Changes(replica, unused, net.node("n1"), lambda: own)
    assert request.audience == audience(log.state)
    foreign = envelope.authenticate(net.request("withdraw", {"uuid": request.body["uuid"]}, alice, at=sent, audience="tdn:nodes"), lambda header: alice.identity)
    with pytest.raises(TrustError):
        # Whatever the clocks say.
        changes.require_for_now(foreign, longest=MAX_CHANGE_LIFE)
    if refused is None:
        changes.require_for_now(request, longest=MAX_CHANGE_LIFE)
        return
    with pytest.raises(refused):
        changes.require_for_now(request, longest=MAX_CHANGE_LIFE)


def test_of_one_node(net: LittleNetwork) -> None:
    """Nobody says that it is behind, itself least of all: before its clock was set back it was somewhere else."""
    log = net.log(("alice",))
    log.tick(NOW, "n1")
    alice = net.entity("alice")
    request = envelope.authenticate(net.request("withdraw", {"uuid": "0b7c8a0e-7f0c-4d3f-8a55-1f6d1f0e9a01"}, alice, at=NOW), lambda header: alice.identity)
    replica: Any = SimpleNamespace(reader=log.state)
    unused: Any = None
    with pytest.raises(TrustError, match="future"):
        Changes(replica, unused, net.node("n1"), lambda: NOW - HOUR).require_for_now(request, longest=MAX_CHANGE_LIFE)
