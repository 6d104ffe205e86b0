"""What a node knows of the guards: who is done with a record, who is fenced, who has only not said so."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from little_network import LittleNetwork, Log

from tdn.bus import topology
from tdn.bus.connection import Delivery
from tdn.errors import BrokerUnavailable
from tdn.node.guards import SILENT_SECONDS, Guards, Settled
from tdn.node.service import Node
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


def word(who: Credentials | str | None, *, number: int = 0, start: int = 1000, log: int = 1, **values: Any) -> Delivery:
    """With its number, where that matters; of a guard that has read the log up to some record."""
    login = str(who.identity.name) if isinstance(who, Credentials) else who
    numbered = {"word": [start, number]} if number else {}
    body = json.dumps({"applied": 1, "store": {"log": log}, **numbered, **values}).encode()
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
    guards.hear(word(net.guard("g1"), number=1))
    guards.hear(word(net.guard("g2"), number=7))
    clock.now += SILENT_SECONDS - 1
    guards.hear(word(net.guard("g1"), number=2, seq=7, cut=CUT))
    assert settled(guards, 7).unconfirmed == ("g2",)
    guards.hear(word(net.guard("g1"), number=3, cleared={"g2": [1000, 7]}))
    clock.now += 2
    assert settled(guards, 7).unconfirmed == ("g2",), "that was before this node calls it silent"
    guards.hear(word(net.guard("g1"), number=4))
    assert settled(guards, 7).unconfirmed == ("g2",)
    guards.hear(word(net.guard("g1"), number=5, cleared={"g2": [1000, 7]}))
    assert settled(guards, 7).fenced == ("g2",)
    guards.hear(word(net.guard("g1"), number=7))
    assert settled(guards, 7).unconfirmed == ("g2",), "the last word counts"
    guards.hear(word(net.guard("g1"), number=6, cleared={"g2": [1000, 7]}))
    assert settled(guards, 7).unconfirmed == ("g2",), "the last that was said, and not the last that came"
    guards.hear(word(net.guard("g1"), number=8, cleared={"g2": [1000, 7]}))
    assert settled(guards, 7).fenced == ("g2",)
    guards.hear(word(net.guard("g2"), number=8))
    assert settled(guards, 7).unconfirmed == ("g2",)


def test_a_word_of_an_earlier_silence_that_comes_late(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """T21: g1 closed behind g2 and said so, in a word that was on its way for long. Meanwhile g2 was back, allowed somebody something, and died: its broker
    still remembers that."""
    guards.hear(word(net.guard("g1"), number=1))
    guards.hear(word(net.guard("g2"), number=7))
    late = word(net.guard("g1"), number=2, log=40, cleared={"g2": [1000, 7]})
    clock.now += SILENT_SECONDS + 1
    guards.note_appended(guards.silent(), 40)
    guards.hear(word(net.guard("g2"), number=8))
    clock.now += SILENT_SECONDS + 1
    guards.hear(late)
    assert settled(guards, 50).fenced == ()
    guards.hear(word(net.guard("g1"), number=3, log=40, cleared={"g2": [1000, 8]}))
    assert settled(guards, 50).fenced == ("g2",)


def restarted(net: LittleNetwork, guards: Guards, *starts: int) -> None:
    for start in starts:
        guards.hear(word(net.guard("g2"), number=5, start=start))


@pytest.mark.parametrize(
    ("heard", "cleared", "fenced"),
    [
        ([1000, 2000], [2000, 5], True),
        ([1000, 2000], [2000, 6], True),
        ([1000, 2000], [2000, 4], False),
        ([1000, 2000], [1000, 9], False),
        ([1000, 2000, 1000], [2000, 5], True),
        ([2000, 1000], [2000, 5], False),
        ([2000, 1000], [1000, 5], False),
        ([1000], None, False),
        ([], [1000, 5], False),
        ([], None, False),
    ],
    ids=[
        "the same",
        "one that was lost on its way to this node",
        "an earlier one",
        "one of the process before",
        "the last one, and then a late one of the process before",
        "in whatever order they were said",
        "in whatever order they were said: the other one",
        "its last word is not known",
        "this node has heard none",
        "nobody has",
    ],
)
def test_which_word_it_had_heard(
    net: LittleNetwork, guards: Guards, clock: Clock, heard: list[int], cleared: list[int] | None, fenced: bool
) -> None:
    """Where it cannot be told by that, what was closed must have been said after this node has found the guard silent, and has appended a record since."""
    restarted(net, guards, *heard)
    clock.now += SILENT_SECONDS + 1
    guards.hear(word(net.guard("g1"), number=1, cleared={"g2": cleared}))
    assert settled(guards, 7).fenced == (("g2",) if fenced else ())
    guards.note_appended(guards.silent(), 40)
    guards.hear(word(net.guard("g1"), number=2, log=39, cleared={"g2": cleared}))
    assert settled(guards, 7).fenced == (("g2",) if fenced else ())
    guards.hear(word(net.guard("g1"), number=3, log=40, cleared={"g2": cleared}))
    assert settled(guards, 7).fenced == ("g2",)
    restarted(net, guards, 3000)
    clock.now += SILENT_SECONDS + 1
    guards.hear(word(net.guard("g1"), number=4, log=99, cleared={"g2": cleared}))
    assert settled(guards, 7).unconfirmed == ("g1", "g2"), "it has spoken since"


def test_one_that_spoke_while_a_record_was_appended(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """Nobody knows whether it spoke before that record or after it."""
    clock.now += SILENT_SECONDS + 1
    silent = guards.silent()
    assert set(silent) == {"g1", "g2"}
    guards.hear(word(net.guard("g2"), number=1))
    clock.now += SILENT_SECONDS + 1
    guards.note_appended(silent, 40)
    guards.hear(word(net.guard("g1"), number=1, log=40, cleared={"g2": None}))
    assert settled(guards, 7).fenced == ()


async def test_a_node_notes_its_ticks(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """Who was silent before it began to append one; and the record is in the log when it is noted."""
    node: Any = Node.__new__(Node)
    node._settings, node._guards, node.replica = SimpleNamespace(tick_seconds=0.0), guards, SimpleNamespace(position=(40, ""))
    ticks = 0

    async def append(kind: str, request: None) -> None:
        nonlocal ticks
        ticks += 1
        node.replica.position = (40 + ticks, "")
        if ticks == 1:
            guards.hear(word(net.guard("g2"), number=1))
            clock.now += SILENT_SECONDS + 1
        if ticks == 3:
            raise BrokerUnavailable("away")

    clock.now += SILENT_SECONDS + 1
    with pytest.raises(BrokerUnavailable):
        await node._tick(SimpleNamespace(append=append))
    for number, (log, fenced) in enumerate([(41, ()), (42, ("g2",))], start=1):
        guards.hear(word(net.guard("g1"), number=number, log=log, cleared={"g2": None}))
        assert (await guards.settled(7, within_seconds=0)).fenced == fenced, log


def test_what_was_said_between_two_connections(net: LittleNetwork, guards: Guards, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard may have spoken then, and have allowed somebody something: what is said of it on the new connection must be of after that."""

    async def declare(channel: object, listener: str) -> str:
        return f"tdn.guards.{listener}"

    monkeypatch.setattr(topology, "declare_guards_queue", declare)
    guards.hear(word(net.guard("g2"), number=7))
    clock.now += SILENT_SECONDS + 1
    guards.note_appended(guards.silent(), 30)
    asyncio.run(guards.listen(cast(Any, AsyncMock()), "n1"))
    clock.now += SILENT_SECONDS + 1
    guards.hear(word(net.guard("g1"), number=2, log=39, cleared={"g2": [1000, 7]}))
    assert settled(guards, 7).fenced == ()
    guards.note_appended(guards.silent(), 40)
    guards.hear(word(net.guard("g1"), number=3, log=40, cleared={"g2": [1000, 7]}))
    assert settled(guards, 7).fenced == ("g2",)


def test_a_guard_that_is_restarted_very_often(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    restarted(net, guards, *range(1000, 1500))
    assert len(guards._known["g2"].words) == 100
    clock.now += SILENT_SECONDS + 1
    guards.hear(word(net.guard("g1"), number=2, cleared={"g2": [1499, 5]}))
    assert settled(guards, 7).fenced == ("g2",)


def test_silence_is_counted_from_the_connection_on(net: LittleNetwork, guards: Guards, clock: Clock) -> None:
    """A node that was away for long has heard nothing, which says nothing of the guards."""
    for name in ("g1", "g2"):
        guards.hear(word(net.guard(name)))
    clock.now += 10 * SILENT_SECONDS
    assert guards.standing() == {"heard": 0, "fenced": 2}
    guards._since = clock.now
    assert guards.standing() == {"heard": 2, "fenced": 0}


def test_a_revoked_guards_word_fences_nobody(net: LittleNetwork, log: Log, guards: Guards, clock: Clock) -> None:
    guards.hear(word(net.guard("g1"), number=1))
    clock.now += SILENT_SECONDS + 1
    guards.hear(word(net.guard("g2"), cleared={"g1": [1000, 1]}))
    assert settled(guards, 7).fenced == ("g1",)
    log.put("revoke", net.revoke("guard:g2", until=net.guard("g2").identity.issued))
    assert settled(guards, 7).unconfirmed == ("g1",)


@pytest.mark.parametrize("cleared", [{"g2": None}, ["g2"]], ids=["", "said by a guard that does not number its words yet"])
def test_one_that_was_never_heard_of_has_its_chance_first(net: LittleNetwork, guards: Guards, clock: Clock, cleared: Any) -> None:
    assert settled(guards, 7).unconfirmed == ("g1", "g2")
    clock.now += SILENT_SECONDS - 1
    guards.note_appended(guards.silent(), 40)
    guards.hear(word(net.guard("g1"), log=40, cleared=cleared))
    assert settled(guards, 7).unconfirmed == ("g1", "g2")
    clock.now += 2
    guards.hear(word(net.guard("g1"), log=40, cleared=cleared))
    assert settled(guards, 7).unconfirmed == ("g1", "g2")
    guards.note_appended(guards.silent(), 41)
    guards.hear(word(net.guard("g1"), log=41, cleared=cleared))
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
    for bad in ("many", 1e999, None, [], {}):
        guards.hear(word(net.guard("g1"), applied=bad, seq=7, cut=CUT))
        guards.hear(word(net.guard("g1"), store={"log": bad}, word=[1, 1], seq=7, cut=CUT))
        guards.hear(word(net.guard("g1"), word=[1, bad], seq=7, cut=CUT))
        guards.hear(word(net.guard("g1"), cleared={"g2": [bad]}, word=[1, 2], seq=7, cut=CUT))
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
