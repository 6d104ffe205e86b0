"""Fixtures for tests against real parts: one network that most tests share, and one whose processes may be killed.

Starting a network takes several seconds, so both are started once, when first needed; tests keep apart by using fresh entities.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from entity_client import EntityClient
from tests.live import TICK_SECONDS, LiveNetwork, RawEntity

# Before any node is started: it inherits our environment.
os.environ.setdefault("TDN_TICK_SECONDS", TICK_SECONDS)

# It logs a page for every connection that a test breaks on purpose.
logging.getLogger("pika").setLevel(logging.CRITICAL)

# A run that is told to end (a job's time limit) still stops the networks that it started.
signal.signal(signal.SIGTERM, signal.default_int_handler)

Connect = Callable[..., Awaitable[EntityClient]]


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    """The shared network: broker, guard and two nodes. Nothing of it is killed or reconfigured."""
    network = LiveNetwork(tmp_path_factory.mktemp("shared network") / "home")
    try:
        network.up()
        yield network
    finally:
        network.end()


#: Who starts one node while the others are down on purpose does not wait for them.
IMPATIENT = """
[limits]
wait_for_others_seconds = 1.0
"""


@pytest.fixture(scope="session")
def _mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    network = LiveNetwork(tmp_path_factory.mktemp("mortal network") / "home")
    network.issue_nodes({"n1": IMPATIENT, "n2": IMPATIENT})
    try:
        yield network
    finally:
        network.end()


@pytest.fixture
def mortal(_mortal: LiveNetwork) -> LiveNetwork:
    """A network whose processes a test may kill. The next test finds all of it running again."""
    _mortal.up()
    return _mortal


#: What makes the nodes of the particular network particular.
REALM = """
[policy]
realm = "physics"
"""
TIGHT = """
[limits]
query_seconds = 2.0
query_memory_mb = 300
queries_per_second = 0.2
queries_burst = 12
"""
SHORT = """
[limits]
query_seconds = 2.0
query_memory_mb = 300
wait_for_others_seconds = 1.0
"""
#: No tick of any node for so long, and its guard lets entities ask each other.
SILENCE_SECONDS = 4.0


@pytest.fixture(scope="session")
def _particular(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    network = LiveNetwork(tmp_path_factory.mktemp("particular network") / "home")
    os.environ["TDN_SILENCE_SECONDS"] = str(SILENCE_SECONDS)
    try:
        network.issue_nodes({"n1": SHORT, "n2": REALM, "n3": TIGHT})
        network.up(nodes=3)
        yield network
    finally:
        del os.environ["TDN_SILENCE_SECONDS"]
        network.end()


@pytest.fixture
def particular(_particular: LiveNetwork) -> LiveNetwork:
    """Three nodes with settings of their own, which a test may stop: n1 stops long queries early, n2 serves institution physics alone, n3
    also lets nobody ask often. Its guard takes short silence for the absence of nodes."""
    _particular.up()
    return _particular


@pytest.fixture
def entity(live: LiveNetwork) -> Path:
    """Credentials of a new entity in the shared network."""
    return live.entity()


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients, of a network and a folder of credentials (or a new entity's); they are closed after the test."""
    clients: list[EntityClient] = []

    async def make(network: LiveNetwork, folder: Path | None = None, *, timeout: float = 15.0) -> EntityClient:
        clients.append(await network.client(folder, timeout=timeout))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def raw(live: LiveNetwork) -> Iterator[RawEntity]:
    """A new entity of the shared network that speaks AMQP by itself."""
    entity = RawEntity(live)
    yield entity
    entity.close()
