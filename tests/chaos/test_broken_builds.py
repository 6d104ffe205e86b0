"""A checker that cannot fail is worth nothing: builds with a defect, under the same load, and what the checker finds (T22, T25)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from entity_client import path
from tests.chaos.broken_node import BrokenNetwork
from tests.chaos.checker import Checker, Violations
from tests.chaos.race import Race
from tests.live import LiveNetwork

pytestmark = [
    pytest.mark.broker,
    pytest.mark.chaos,
    pytest.mark.skipif("TDN_CHAOS" not in os.environ, reason="only by `make chaos`, or with TDN_CHAOS=short"),
]

Begin = Callable[[str], Awaitable[Race]]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LiveNetwork]:
    network = LiveNetwork(tmp_path / "home")
    try:
        yield network
    finally:
        network.end()


@pytest_asyncio.fixture
async def begin(network: LiveNetwork) -> AsyncIterator[Begin]:
    """Begins a race on two nodes that have a defect; it is over after the test."""
    races: list[Race] = []

    async def make(defect: str) -> Race:
        network.network = BrokenNetwork(network.home)
        network.network.defect = defect
        network.up(nodes=2)
        races.append(Race(network, 1, entities=4))
        await races[-1].begin()
        return races[-1]

    yield make
    for race in races:
        await race.close()


async def test_checker_finds_missing_deduplication(begin: Begin, tmp_path: Path) -> None:
    """T22, T25: of a build that judges every copy of a request anew, the checker says so."""
    race = await begin("no-deduplication")
    await race.go_on("the copies", steps=15)
    await race.finish(patience=20)
    with pytest.raises(Violations) as found:
        Checker(race.stores(tmp_path / "stores")).check(race.books.sent.values())
    assert any("was decided 2 times: accepted" in what for what in found.value.found)


async def test_checker_finds_early_acknowledgement(begin: Begin, network: LiveNetwork, tmp_path: Path) -> None:
    """T22: of a build that tells the broker too early that a request is done with, the checker finds those that a kill has lost."""
    race = await begin("early-acknowledgement")
    await race.go_on("the beginning", steps=2)
    for node in network.nodes():
        network.kill(node)
    for node in network.nodes():
        network.start(node)
    await race.finish(patience=5)
    with pytest.raises(Violations) as found:
        Checker(race.stores(tmp_path / "stores")).check(race.books.sent.values())
    assert all("was taken by the broker and is lost" in what for what in found.value.found)


async def test_checker_finds_missing_limits(begin: Begin, network: LiveNetwork, tmp_path: Path) -> None:
    """T22, T25: of a build that lets in one child too many after the other, the checker names the limits."""
    race = await begin("no-limits")
    # The racers' own children end within seconds: whether they meet is chance.
    async with await network.client(timeout=60) as crowding:
        for _ in range(4):
            await crowding.create(path("race/child"), parent=race.world.narrow)
    await race.go_on("the crowd")
    await race.finish(patience=20)
    with pytest.raises(Violations) as found:
        Checker(race.stores(tmp_path / "stores")).check(race.books.sent.values())
    assert any(f"MaxWidth 3 of {race.world.narrow} is exceeded" in what for what in found.value.found)
