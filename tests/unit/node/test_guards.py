"""What a node knows of the guards: who is done with a record, who is fenced, who has only not said so."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from little_network import LittleNetwork, Log

from tdn.bus.connection import Delivery
from tdn.node.guards import SILENT_SECONDS, Guards, Settled
from tdn.trust.credentials import Credentials

CUT = {"connections": ["entity:bob"], "queues": 1, "bindings": 2}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    log = net.log()
    for name in ("g1", "g2"):
        log.put("enrol", net.enrol(net.guard(name)))
    return log


@pytest.fixture
def guards(log: Log, clock: Clock) -> Guards:
    return Guards(log.state, clock)


def word(who: Credentials | str | None, **values: Any) -> Delivery:
    login = str(who.identity.name) if isinstance(who, Credentials) else who
    body = json.dumps({"applied": 1, **values}).encode()
    return Delivery(1, body, {}, None, "", False, None, login)


def settled(guards: Guards, seq: int) -> Settled:
    return asyncio.run(guards.settled(seq, within_seconds=0))


def test_done_when_every_guard_has_said_so(net: LittleNetwork, guards: Guards) -> None:
    """T21: the receipt names what all guards cut, and waits for all of them."""
    guards.hear(word(net.guard("g1"), seq=7, cut=CUT))
    assert settled(guards, 7) == Settled({"connections": ["entity:bob"], "queues": 1, "bindings": 2}, ("g1",), (), ("g2",))
    guards.hear(word(net.guard("g2"), seq=7, cut={"connections": ["entity:carol"], "queues": 1, "bindings": 0}))
    both = settled(guards, 7)
    assert (both.guards, both.fenced, both.unconfirmed) == (("g1", "g2"), (), ())
    assert both.cut == {"connections": ["entity:bob", "entity:carol"], "queues": 2, "bindings": 2}


def test_a_word_about_another_record_is_not_enough(net: LittleNetwork, guards: Guards) -> None:
    for name in ("g1", "g2"):
        guards.hear(word(net.guard(name), seq=6, cut=CUT, applied=9))
    assert settled(guards, 7).unconfirmed == ("g1", "g2")


def test_the_silent_are_fenced_once_another_guard_has_closed_what_they_left(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """T21: a silent guard allows nothing new, but its broker remembers what it allowed: silence alone is not enough for a receipt."""
    guards.hear(word(net.guard("g1")))
    guards.hear(word(net.guard("g2")))
    clock.now += SILENT_SECONDS - 1
    guards.hear(word(net.guard("g1"), seq=7, cut=CUT))
    assert settled(guards, 7).unconfirmed == ("g2",)
    # A word from before this node calls it silent may speak of an earlier silence.
    guards.hear(word(net.guard("g1"), cleared=["g2"]))
    clock.now += 2
    assert settled(guards, 7).unconfirmed == ("g2",)
    guards.hear(word(net.guard("g1")))
    assert settled(guards, 7).unconfirmed == ("g2",)
    guards.hear(word(net.guard("g1"), cleared=["g2"]))
    assert settled(guards, 7).fenced == ("g2",)
    guards.hear(word(net.guard("g1")))
    assert settled(guards, 7).unconfirmed == ("g2",), "the last word counts"
    guards.hear(word(net.guard("g1"), cleared=["g2"]))
    guards.hear(word(net.guard("g2")))
    assert settled(guards, 7).unconfirmed == ("g2",)


def test_silence_is_counted_from_the_connection_on(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """A node that was away for long has heard nothing, which says nothing of the guards."""
    for name in ("g1", "g2"):
        guards.hear(word(net.guard(name)))
    clock.now += 10 * SILENT_SECONDS
    assert guards.standing() == {"heard": 0, "fenced": 2}
    guards._since = clock.now
    assert guards.standing() == {"heard": 2, "fenced": 0}


def test_a_revoked_guards_word_fences_nobody(net: LittleNetwork, log: Log, guards: Guards, clock: Clock) -> None:
    clock.now += SILENT_SECONDS + 1
    guards.hear(word(net.guard("g2"), cleared=["g1"]))
    assert settled(guards, 7).fenced == ("g1",)
    log.put("revoke", net.revoke("guard:g2", until=net.guard("g2").identity.issued))
    assert settled(guards, 7).unconfirmed == ("g1",)


def test_one_that_was_never_heard_of_has_its_chance_first(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    assert settled(guards, 7).unconfirmed == ("g1", "g2")
    clock.now += SILENT_SECONDS - 1
    guards.hear(word(net.guard("g1"), cleared=["g2"]))
    assert settled(guards, 7).unconfirmed == ("g1", "g2")
    clock.now += 2
    guards.hear(word(net.guard("g1"), cleared=["g2"]))
    assert (settled(guards, 7).fenced, settled(guards, 7).unconfirmed) == (("g2",), ("g1",))


def test_without_any_guard_nobody_is_fenced(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """Nobody is there who closes what the broker remembers, and the receipt does not say otherwise."""
    for name in ("g1", "g2"):
        guards.hear(word(net.guard(name)))
    clock.now += 10 * SILENT_SECONDS
    assert settled(guards, 7).unconfirmed == ("g1", "g2")


def test_a_revoked_guard_is_not_waited_for(net: LittleNetwork, log: Log, guards: Guards) -> None:
    log.put("revoke", net.revoke("guard:g2", until=net.guard("g2").identity.issued))
    guards.hear(word(net.guard("g1"), seq=7, cut=CUT))
    assert settled(guards, 7) == Settled(CUT, ("g1",), (), ())


def test_only_guards_are_heard(net: LittleNetwork, guards: Guards) -> None:
    """The broker vouches for logins. Whoever is no guard, or says nothing readable, is not heard."""
    for stranger in (net.entity("alice"), net.node("n1"), "g1", "", None):
        guards.hear(word(stranger, seq=7, cut=CUT))
    guards.hear(Delivery(1, b"not json", {}, None, "", False, None, str(net.guard("g1").identity.name)))
    guards.hear(Delivery(1, b'{"applied": "many"}', {}, None, "", False, None, str(net.guard("g1").identity.name)))
    assert settled(guards, 7).unconfirmed == ("g1", "g2")


def test_waiting_ends_with_the_last_word(net: LittleNetwork, log: Log) -> None:
    async def wait() -> Settled:
        guards = Guards(log.state)
        waiting = asyncio.create_task(guards.settled(7, within_seconds=30))
        await asyncio.sleep(0)
        guards.hear(word(net.guard("g1"), seq=7, cut=CUT))
        await asyncio.sleep(0)
        assert not waiting.done()
        guards.hear(word(net.guard("g2"), seq=7, cut=CUT))
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(wait()).guards == ("g1", "g2")


def test_applied_is_the_least_of_all(net: LittleNetwork, log: Log) -> None:
    async def wait() -> None:
        guards = Guards(log.state)
        guards.hear(word(net.guard("g1"), applied=9))
        guards.hear(word(net.guard("g2"), applied=4))
        waiting = asyncio.create_task(guards.applied(5, within_seconds=30))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        guards.hear(word(net.guard("g2"), applied=5))
        await asyncio.wait_for(waiting, 10)

    asyncio.run(wait())
