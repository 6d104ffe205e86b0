"""The whole under load and faults (T22): trees that most requests must lose to, rights that come and go, watchers, publishers, readers and
askers; meanwhile processes are killed and paused, connections cut, stalled and lost, a disk is full and a clock jumps. Then a checker.

A short form runs with all tests; `make chaos` (TDN_CHAOS=long) goes on for minutes. It says its seed; TDN_CHAOS_SEED begins with another,
TDN_CHAOS_SECONDS is how long faults are made, TDN_CHAOS_BROKERS and TDN_CHAOS_NODES how many there are of each. The long form writes its
figures to the file that TDN_CHAOS_REPORT names.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from tdn.guard.settings import LOOK_SECONDS
from tests.chaos.checker import Checker, Violations
from tests.chaos.faults import Disturbance, Faults
from tests.chaos.fragile import FragileNetwork
from tests.chaos.race import Race
from tests.chaos.report import figures, report, stood_still
from tests.chaos.traffic import WORD, Trading
from tests.chaos.traffic_checker import Traffic, incomplete, left_connections, left_queues
from tests.live import compare_states, processes_of, until
from tests.unit.rules.tree_model import LIVE

LONG = os.environ.get("TDN_CHAOS") == "long"
SEED = int(os.environ.get("TDN_CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("TDN_CHAOS_SECONDS", "420"))
NODES = int(os.environ.get("TDN_CHAOS_NODES", "4" if LONG else "3"))
BROKERS = int(os.environ.get("TDN_CHAOS_BROKERS", "3" if LONG else "1"))
#: Those who race for places in trees, and those who give rights and end them.
RACERS = 12 if LONG else 4
OWNERS = 3 if LONG else 2
#: How long what a dying node left may stay: guards look every half minute, and end what two looks have seen.
LEFT_SECONDS = 3 * LOOK_SECONDS
#: The others have tests of their own, in tests/broker/test_faults.py and tests/cli/test_doctor.py, or take too long for every day.
SHORT = (("kill a node", "cut connections"), ("kill the guard",), ("pause a node", "stall connections"), ("kill a broker",))

pytestmark = [
    pytest.mark.broker,
    pytest.mark.chaos,
    pytest.mark.timeout(3000 if LONG else 600),
]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[FragileNetwork]:
    network = FragileNetwork(tmp_path / "home", seed=SEED, nodes=NODES)
    try:
        network.up(brokers=BROKERS)
        yield network
    finally:
        network.end()


@pytest_asyncio.fixture
async def race(network: FragileNetwork) -> AsyncIterator[Race]:
    race = Race(network, SEED, entities=RACERS)
    yield race
    await race.close()


@pytest_asyncio.fixture
async def trading(network: FragileNetwork, race: Race) -> AsyncIterator[Trading]:
    trading = Trading(network, race.books, SEED, owners=OWNERS)
    yield trading
    await trading.close()


async def test_nothing_is_lost_exceeded_or_leaked(
    network: FragileNetwork, race: Race, trading: Trading, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T18, T20, T21, T22, T24, T25, T29, T33, T35: whatever is killed, paused, cut, full or wrong meanwhile: what was acknowledged is in the
    log once and on every node, no limit is exceeded, nobody is shown, publishes or reads what it may not, every watcher is told everything
    in order, nobody stands still for long while enough is left to serve everybody, and nothing is left behind."""
    with capsys.disabled():
        print(f"\nchaos: seed {SEED}, {NODES} nodes, {BROKERS} brokers", flush=True)
        print(f"  a disk of {network.on_a_small_disk}, the clock of {network.with_another_clock}", flush=True)
        for kind, why in network.missing.items():
            print(f"  left out: {kind} ({why})", flush=True)
    began = time.monotonic()
    await race.begin()
    await trading.begin(lambda: (race.world.narrow, race.world.collections[0]))
    await race.go_on("the beginning", steps=5)
    faults = Faults(network, race.entities, random.Random(SEED))
    for kinds in faults.for_a_while(SECONDS) if LONG else SHORT:
        fault = await faults.all_of(kinds)
        await race.go_on(fault.kind)
        assert not trading.ended(), [task.result() for task in trading.ended()]
        fault.over = time.monotonic()
        with capsys.disabled():
            print(f"  {fault.began - began:5.0f} s  {fault.kind}, everybody got on after {fault.over - fault.began:.1f} s", flush=True)
    # However fast the machine got over it all.
    await until(lambda: sum(owner.ended for owner in trading.owners) > 3, "rights to be ended", seconds=60)
    await until(lambda: was_used(trading.traffic), "rights that end to be used for publishing and for reading", seconds=60)
    await trading.finish(seconds=60)
    await race.finish(patience=60)
    checker = Checker(race.stores(tmp_path / "stores"))
    await race.hear_out(checker.due, seconds=60)
    violations: list[str] = []
    try:
        checker.check(race.books.sent.values(), race.received)
    except Violations as error:
        violations += error.found
    violations += trading.traffic.violations(checker.model)
    violations += await not_shown(network, tmp_path)
    view = compare_states(network, tmp_path / "states")
    feeds = {(*key.split(" "), fact["queue"]) for key, fact in view.scan("feed", after="", up_to="~", limit=100_000)}
    ended = {uuid for uuid, fact in view.scan("topic", after="", up_to="~", limit=1_000_000) if fact["state"] != LIVE}
    view.close()
    await trading.close()
    await race.close()

    def left() -> list[str]:
        queues = left_queues(
            network.manage("GET", "/queues/tdn"),
            nodes=network.nodes(),
            guards=network.network.guards(),
            entities=network.issued,
            feeds=feeds,
            held=trading.traffic.held,
        )
        connections = left_connections(network.manage("GET", "/connections?columns=user,channels"))
        exchanges = {exchange["name"] for exchange in network.manage("GET", "/exchanges/tdn?columns=name")}
        return [*queues, *connections, *(f"exchange {uuid} was left, whose topic has ended" for uuid in sorted(exchanges & ended))]

    with contextlib.suppress(AssertionError):
        await until(lambda: not left(), "what nobody owns to go", seconds=LEFT_SECONDS)
    violations += left()
    violations += stood_still(faults.happened, race.books.served)
    network.network.down()
    violations += [f"process {pid} was left after `tdn down`" for pid in processes_of(network.home.folder)]
    with capsys.disabled():
        print(figures(race, trading, checker, faults, violations), flush=True)
    if LONG:
        report(race, trading, checker, faults, violations, network.missing, seed=SEED, nodes=NODES, brokers=BROKERS)
    assert not violations, Violations(violations)
    shows_something(race, trading, checker, faults.happened)
    assert_checker_notices(checker, race)


async def not_shown(network: FragileNetwork, scratch: Path) -> list[str]:
    """Every node, asked by itself, shows what is live and nothing else; held against its own log, as it is then."""
    client = await network.client(timeout=60)
    await client.choose()
    found = {}
    async with client:
        for node in network.nodes():
            found[node] = [topic.uuid async for topic in client.discover(nodes=[node], limit=10_000, query=WORD)]
    model = Checker({node: network.copy_store(node, scratch / "later" / node) for node in network.nodes()}).model
    ours = {uuid for uuid, thing in model.things.items() if thing.owner.startswith("owner-")}
    for uuid in set(model.things) - ours:
        # The query does not ask for these.
        del model.things[uuid]
    return list(incomplete(found, model, client.asker, ends_after=datetime.now(UTC) + timedelta(minutes=1), word=WORD))


def was_used(traffic: Traffic) -> bool:
    """Whether anything was published, and anything read, by a right that does not last."""
    published = any(message.taken is not None and message.publisher.startswith("publisher-") for message in traffic.messages.values())
    return published and any(got.reader not in traffic.steady for got in traffic.got)


def shows_something(race: Race, trading: Trading, checker: Checker, happened: list[Disturbance]) -> None:
    """Else it showed nothing."""
    count, traffic = checker.log.count(), trading.traffic
    assert count["refused"] > 10
    assert count["accepted"] > 50
    assert count["repeated"] > 5
    assert all(one.payloads for one in race.received)
    assert sum(owner.ended for owner in trading.owners) > 3
    assert trading.outsider is not None
    assert all(one.refused for one in (*trading.insistent, trading.outsider))
    taken = [message for message in traffic.messages.values() if message.taken is not None]
    assert was_used(traffic)
    # Who never publishes loses nothing.
    assert sum(message.topic in traffic.steady.values() for message in taken) > 10
    assert {shown.question for shown in traffic.shown} >= {"discover", "hierarchy"}
    assert happened


def assert_checker_notices(checker: Checker, race: Race) -> None:
    """Of the very same race, what would be wrong: a change that was not told, or told twice, or in another order; another answer."""
    one = max(race.received, key=lambda received: checker.due[received.subject, received.watcher])
    told = one.payloads
    for wrong in (told[1:], [*told[:2], *told[1:]], [told[1], told[0], *told[2:]], told[: len(told) // 2]):
        with pytest.raises(Violations):
            checker.check([], [replace(one, payloads=wrong)])
    answered = [sent for sent in race.books.sent.values() if sent.answers]
    first = next(sent for sent in answered if sent.answers[0].kind == "decided")
    refused = next(sent for sent in answered if sent.answers[0].kind == "error")
    for swapped in (replace(first, answers=refused.answers), replace(refused, answers=first.answers)):
        with pytest.raises(Violations):
            checker.check([swapped])
