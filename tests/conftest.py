"""Fixtures for tests against real parts: one network that most tests share, one whose processes may be killed, and one with settings of its own.

Starting a network takes fifteen seconds of a processor, and each that runs takes a tenth of one for doing nothing. So all tests of a network
come one after another, in one process (`--dist loadgroup`): it is started once, when first needed, and ended after the last of them. Tests
keep apart by using fresh entities.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import pytest_asyncio
from xdist.scheduler import LoadScopeScheduling

from entity_client import EntityClient
from tdn import environment
from tdn.local.broker import find_rabbitmq
from tdn.local.processes import free_ports
from tests.live import TICK_SECONDS, LiveNetwork, RawEntity
from tests.one_broker import Authority, OneBroker, StandInGuard, make_broker

# Before any node is started: it inherits our environment.
os.environ.setdefault("TDN_TICK_SECONDS", TICK_SECONDS)

# Each process of a run chooses ports from a part of its own: between the choice and the server that binds it are seconds, in which another network would
# now and then choose the same one.
if "PYTEST_XDIST_WORKER" in os.environ:
    _width = 12_000 // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _first = 20_000 + _width * int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.environ.setdefault("TDN_PORTS", f"{_first}-{_first + _width - 1}")

# A JVM of a test lives for seconds: what its second compiler would make of it comes too late, and takes as much of a processor as all the rest.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# It logs a page for every connection that a test breaks on purpose.
logging.getLogger("pika").setLevel(logging.CRITICAL)

#: The processes of a run that has several, from the side of the one that was called.
_workers: list[Any] = []
#: What they get to end their networks in. xdist by itself kills them after ten seconds, and does not interrupt the test in the first five.
_ENDING_SECONDS = 60.0


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    _workers.append(node)


def _end_run(number: int, frame: FrameType | None) -> None:
    """A run that is told to end (a job's time limit) still stops the networks that it started, each process its own."""
    signal.signal(number, signal.SIG_IGN)
    for worker in _workers:
        worker.gateway._io.popen.send_signal(number)
    deadline = time.monotonic() + _ENDING_SECONDS
    while not all(worker._down for worker in _workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal.default_int_handler(number, frame)


signal.signal(signal.SIGTERM, _end_run)

Connect = Callable[..., Awaitable[EntityClient]]


#: The fixtures that tests of several files share: Spark's session, and networks. Their tests come first, the largest group before the others.
SHARED = ("spark", "live", "private", "_mortal", "_particular", "one_broker")
#: Files that start what they need themselves and take long: first of the rest, or one process would be left with them at the end.
LONG = ("test_chaos.py", "test_cluster.py", "test_commands.py", "test_heads.py", "test_entry_points.py", "test_retention.py", "test_own_parts.py", "test_rotation.py", "test_doctor.py")

#: How each network that runs here is ended.
_ends: dict[str, list[Callable[[], None]]] = {}


def group_of(item: pytest.Item) -> str:
    """The network that a test is for, or else its file."""
    needed = getattr(item, "fixturenames", ())
    return next((name for name in SHARED if name in needed), item.path.name)


class GroupScheduling(LoadScopeScheduling):
    """One group after another to whichever process has nothing to do. (xdist's own groups want a way to rename tests that pytest 9 has not.)"""

    def _split_scope(self, nodeid: str) -> str:
        groups: dict[str, str] = json.loads((_shared(self.config) / "groups.json").read_text("utf-8"))
        self._split_scope = lambda one: groups[one]  # type: ignore[method-assign]
        return groups[nodeid]


def _shared(config: pytest.Config) -> Path:
    """A folder that all processes of a run know."""
    workerinput = getattr(config, "workerinput", None)
    own: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return own if workerinput is None else own.parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    # Before xdist tells that we are ready. All collect the same.
    if hasattr(session.config, "workerinput"):
        folder = _shared(session.config)
        own = folder / f"groups.{os.getpid()}"
        own.write_text(json.dumps({item.nodeid: group_of(item) for item in session.items}), "utf-8")
        own.replace(folder / "groups.json")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate((*SHARED, *LONG))}
    # Who needs two of them is the last of the first one's.
    items.sort(key=lambda item: (order.get(group_of(item), len(order)), len({*SHARED} & {*getattr(item, "fixturenames", ())})))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or group_of(nextitem) != group_of(item):
        while _ends:
            for end in _ends.popitem()[1]:
                end()


def lasting(name: str, network: LiveNetwork) -> LiveNetwork:
    """A network that ends with the last test of its group, or with the session: ending it twice is harmless."""
    _ends.setdefault(name, []).append(network.end)
    return network


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    """The shared network: broker, guard and two nodes. Nothing of it is killed or reconfigured."""
    network = lasting("live", LiveNetwork(tmp_path_factory.mktemp("shared network") / "home"))
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
    network = lasting("_mortal", LiveNetwork(tmp_path_factory.mktemp("mortal network") / "home"))
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
#: No tick of any node for so long, and its guard lets entities ask each other; and how often that guard holds the broker against the log.
SILENCE_SECONDS = 4.0
LOOK_SECONDS = 0.5


@pytest.fixture(scope="session")
def _particular(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    network = lasting("_particular", LiveNetwork(tmp_path_factory.mktemp("particular network") / "home"))
    numbers = {environment.SILENCE_SECONDS.variable: str(SILENCE_SECONDS), environment.LOOK_SECONDS.variable: str(LOOK_SECONDS)}

    def forget() -> None:
        """They are of no other network that is started later."""
        for number in numbers:
            os.environ.pop(number, None)

    os.environ |= numbers
    _ends["_particular"].append(forget)
    try:
        network.issue_nodes({"n1": SHORT, "n2": REALM, "n3": TIGHT})
        network.up(nodes=3)
        yield network
    finally:
        forget()
        network.end()


@pytest.fixture
def particular(_particular: LiveNetwork) -> LiveNetwork:
    """Three nodes with settings of their own, which a test may stop: n1 stops long queries early, n2 serves institution physics alone, n3
    also lets nobody ask often. Its guard takes short silence for the absence of nodes, and looks through the broker often."""
    _particular.up()
    return _particular


@pytest.fixture(scope="session")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBroker]:
    """A broker without a network, beside a guard that says what a test wants; a test leaves that as it was."""
    assert find_rabbitmq() is not None, "RabbitMQ is not installed; run `make setup`"
    # A blank in the path: homes have them.
    folder = tmp_path_factory.mktemp("one broker")
    authority = Authority(folder, "local")
    guard = StandInGuard(free_ports(1)[0], authority.server("guard"))
    broker = make_broker(folder / "broker", authority, guard.port)

    def end() -> None:
        # Not `stop`, which has a test of its own and takes six seconds with the management plugin.
        broker.kill_hard()
        guard.stop()

    _ends["one_broker"] = [end]
    try:
        # In this order: the guard reads the log from the broker, so the broker has to come up without it.
        broker.start()
        guard.start()
        yield OneBroker(authority, guard, broker)
    finally:
        end()


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
