"""The race (T25): four nodes, many entities, limits that most requests must lose to; nodes killed and paused, the broker restarted,
connections cut, requests sent twice and more. A checker replays the model over the log.

Short by default; `make chaos` (TDN_CHAOS=long) goes on for minutes. It says its seed; a run is repeated with TDN_CHAOS_SEED.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.broken_node import BrokenNetwork
from tests.chaos.checker import Checker, Violations
from tests.chaos.race import Race
from tests.live import LiveNetwork, compare_states

LONG = os.environ.get("TDN_CHAOS") == "long"
SEED = int(os.environ.get("TDN_CHAOS_SEED", "1"))
ENTITIES = 16 if LONG else 6
#: How long the long form goes on making faults.
LONG_SECONDS = float(os.environ.get("TDN_CHAOS_SECONDS", "420"))

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(3000 if LONG else 240)]

Begin = Callable[[LiveNetwork, int], Awaitable[Race]]
Break = Callable[[str], LiveNetwork]


@pytest.fixture
def four_nodes(tmp_path: Path) -> Iterator[LiveNetwork]:
    network = LiveNetwork(tmp_path / "home")
    try:
        network.up(nodes=4)
        yield network
    finally:
        network.end()


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Break]:
    """Makes a network of two nodes that have a defect."""
    network = LiveNetwork(tmp_path / "home")

    def make(defect: str) -> LiveNetwork:
        network.network = BrokenNetwork(network.home)
        network.network.defect = defect
        network.up(nodes=2)
        return network

    try:
        yield make
    finally:
        network.end()


@pytest_asyncio.fixture
async def begin() -> AsyncIterator[Begin]:
    """Begins races; they are over after the test."""
    races: list[Race] = []

    async def make(network: LiveNetwork, entities: int) -> Race:
        races.append(Race(network, SEED, entities=entities))
        await races[-1].begin()
        return races[-1]

    yield make
    for race in races:
        await race.close()


def plan(dice: random.Random) -> Iterator[str]:
    """Some faults once; in the long form, then all of them at random for a while."""
    each = ["pause", "cut", "pause and kill", "kill the broker"]
    dice.shuffle(each)
    yield from each
    ends = time.monotonic() + LONG_SECONDS
    if LONG:
        yield from ("restart the broker", "kill all", "pause past the heartbeat")
    while LONG and time.monotonic() < ends:
        yield dice.choice(
            [
                *["kill"] * 6,
                *["pause"] * 5,
                *["cut"] * 5,
                *["pause and kill"] * 3,
                "kill all",
                "kill the broker",
                "restart the broker",
            ]
        )


async def test_limits_hold_whatever_is_killed(
    four_nodes: LiveNetwork, begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T22, T24, T25, T29, T33, T35: no limit is ever exceeded, every request is answered once in effect, alike on every node, and every
    change that was acknowledged is in the log and was told."""
    race = await begin(four_nodes, ENTITIES)
    await race.go_on("the beginning", steps=10)
    for fault in plan(random.Random(SEED)):
        await race.faults.one(fault)
        await race.go_on(fault)
    await race.finish(patience=60)
    checker = Checker(race.stores(tmp_path / "stores"))
    await race.hear_out(checker.due, seconds=60)
    violations: list[str] = []
    try:
        checker.check(race.books.sent.values(), race.received)
    except Violations as error:
        violations = error.found
        raise
    finally:
        with capsys.disabled():
            print(f"\n{figures(race, checker)}, violations {len(violations)} (seed {SEED})")
    compare_states(four_nodes, tmp_path / "states").close()
    # Else it showed nothing.
    count = checker.log.count()
    assert count["refused"] > count["accepted"] > 50
    assert count["repeated"] > 10
    assert all(one.payloads for one in race.received)
    assert_checker_notices(checker, race)


def figures(race: Race, checker: Checker) -> str:
    sent, faults, count = race.books.sent.values(), race.faults, checker.log.count()
    return (
        f"race for trees: requests {len(sent)} in {sum(one.copies for one in sent) + race.books.count['repeated later']} copies, "
        f"accepted {count['accepted']}, refused {count['refused']}, repeated {count['repeated']}, "
        f"told {sum(len(one.payloads) for one in race.received)}, "
        f"kills {faults.kills}, pauses {faults.pauses}, broker restarts {faults.broker_restarts}, cuts {faults.count['cut']}"
    )


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


async def test_checker_finds_missing_deduplication(broken: Break, begin: Begin, tmp_path: Path) -> None:
    """T22, T25: of a build that judges every copy of a request anew, the checker says so."""
    race = await begin(broken("no-deduplication"), 4)
    await race.go_on("the copies", steps=15)
    await race.finish(patience=20)
    with pytest.raises(Violations) as found:
        Checker(race.stores(tmp_path / "stores")).check(race.books.sent.values())
    assert any("was decided 2 times: accepted" in what for what in found.value.found)


async def test_checker_finds_early_acknowledgement(broken: Break, begin: Begin, tmp_path: Path) -> None:
    """T22: of a build that tells the broker too early that a request is done with, the checker finds those that a kill has lost."""
    race = await begin(broken("early-acknowledgement"), 4)
    await race.go_on("the beginning", steps=2)
    await race.faults.one("kill all")
    await race.finish(patience=5)
    with pytest.raises(Violations) as found:
        Checker(race.stores(tmp_path / "stores")).check(race.books.sent.values())
    assert all("was taken by the broker and is lost" in what for what in found.value.found)
