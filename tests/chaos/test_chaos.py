"""Entities create while nodes and broker are killed and paused at random. At the end a checker compares what was acknowledged with the
log: nothing lost, nothing twice, and every node with the same state.

Short by default; `make chaos` (TDN_CHAOS=long) goes on for minutes, waits for real heartbeats to be missed, and prints its seed. A run is
repeated with TDN_CHAOS_SEED.
"""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, path
from tdn.bus.connection import HEARTBEAT_SECONDS
from tdn.errors import BrokerUnavailable, NoNodeAnswered, TrustError
from tdn.protocol.names import Role
from tests.conftest import Connect
from tests.live import LiveNetwork, compare_states, until, wait_for

LONG = os.environ.get("TDN_CHAOS") == "long"
#: Faults in a run, and entities that work meanwhile.
FAULTS = 60 if LONG else 4
ENTITIES = 6 if LONG else 3
SEED = int(os.environ.get("TDN_CHAOS_SEED", "1"))

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(3000 if LONG else 120)]


class Chaos:
    """The faults, one after the other, in an order that the seed decides."""

    def __init__(self, network: LiveNetwork, seed: int) -> None:
        self.network = network
        self.dice = random.Random(seed)
        self.done: list[str] = []

    async def one(self, fault: str) -> None:
        self.done.append(fault)
        node = self.dice.choice(self.network.nodes())
        broker: Any = self.network.network.broker()
        if fault == "kill a node":
            self.network.kill(node)
            await asyncio.to_thread(self.network.start, node)
        elif fault == "stop a node":
            await asyncio.to_thread(self.network.stop, node)
            await asyncio.to_thread(self.network.start, node)
        elif fault == "pause a node":
            with self.network.paused(node):
                await asyncio.sleep(self.dice.uniform(0.2, 2.0))
        elif fault == "cut a node off":
            await asyncio.to_thread(self.network.cut, self.network.node(node).name)
        elif fault == "kill all nodes":
            for name in self.network.nodes():
                self.network.kill(name)
            for name in self.network.nodes():
                await asyncio.to_thread(self.network.start, name)
        elif fault == "kill the broker":
            await asyncio.to_thread(broker.kill_hard)
            await asyncio.to_thread(broker.start)
        elif fault == "restart the broker":
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
        else:
            # Longer than the broker waits for a heartbeat: two intervals and the time until it looks.
            with self.network.paused(node):
                await asyncio.sleep(3 * HEARTBEAT_SECONDS)

    def plan(self, count: int) -> list[str]:
        light = ["kill a node", "pause a node", "cut a node off", "stop a node"]
        heavy = ["kill all nodes", "kill the broker"]
        if not LONG:
            # The broker's turn is in tests/broker/test_faults.py, both ways: each time costs ten seconds.
            plan = [*light[:3], "kill all nodes"]
            self.dice.shuffle(plan)
            return plan[:count]
        heavy += ["restart the broker", "miss heartbeats"]
        return [self.dice.choice(light * 4 + heavy) for _ in range(count)]


class Worker:
    """One entity that creates, renews and withdraws, and remembers what it was told."""

    def __init__(self, client: EntityClient, number: int, seed: int) -> None:
        self.client = client
        self.word = f"chaos-{seed}-{number}-{os.getpid()}"
        self.dice = random.Random(seed * 1000 + number)
        self.live: set[str] = set()
        self.withdrawn: set[str] = set()
        #: Told to be undecided: either way is right.
        self.unsure: set[str] = set()
        self.errors: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._step()
            except (BrokerUnavailable, NoNodeAnswered, TrustError) as error:
                # A clear error is a right answer to a fault (T22); what it is about may or may not have happened.
                self.errors.append(f"{type(error).__name__}: {error}")

    async def _step(self) -> None:
        if self.live and self.dice.random() < 0.2:
            uuid = self.dice.choice(sorted(self.live))
            self.live.discard(uuid)
            self.unsure.add(uuid)
            await self.client.withdraw(uuid)
            self.unsure.discard(uuid)
            self.withdrawn.add(uuid)
            return
        topic = await self.client.create(path(self.word), lifetime=timedelta(hours=6), advertise=False)
        self.unsure.add(topic.uuid)
        await self.client.advertise(topic.token)
        self.unsure.discard(topic.uuid)
        self.live.add(topic.uuid)


async def test_acknowledged_once_and_everywhere(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: whatever is killed meanwhile, what was acknowledged is in the log once, discoverable, and every node has the same state."""
    print(f"seed {SEED}")
    workers = [Worker(await connect(mortal, timeout=60), number, SEED) for number in range(ENTITIES)]
    stop = asyncio.Event()
    working = [asyncio.create_task(worker.run(stop)) for worker in workers]
    chaos = Chaos(mortal, SEED)
    try:
        for fault in chaos.plan(FAULTS):
            before = [len(worker.live) + len(worker.withdrawn) for worker in workers]
            await chaos.one(fault)
            # Everybody gets on again before the next fault: a standstill would show nothing.
            await until(
                lambda before=before: (
                    all(len(worker.live) + len(worker.withdrawn) > done for worker, done in zip(workers, before, strict=True))
                    or any(task.done() for task in working)
                ),
                f"everybody to get on after: {fault}",
                seconds=90,
            )
            assert not any(task.done() for task in working), "a worker met an error that is no answer to a fault"
    finally:
        stop.set()
        results = await asyncio.gather(*working, return_exceptions=True)
    assert results == [None] * len(workers)
    await until(mortal.ready, "all to be ready", seconds=60)

    state = compare_states(mortal, tmp_path / "states")
    asker = await connect(mortal, timeout=60)
    for worker in workers:
        for uuid in worker.live:
            fact = state.get("topic", uuid)
            assert fact is not None, f"acknowledged and lost: {uuid}"
            assert fact["state"] == "live"
        for uuid in worker.withdrawn:
            fact = state.get("topic", uuid)
            assert fact is not None
            assert fact["state"] == "withdrawn"
        for node in mortal.nodes():
            found = [topic.uuid async for topic in asker.discover(worker.word, nodes=[node], limit=10_000)]
            assert len(found) == len(set(found))
            assert set(found) >= worker.live
            assert not set(found) & worker.withdrawn
            assert set(found) <= worker.live | worker.unsure, "there is a topic that nobody created"
        _judged_once(state, worker)
    state.close()


def _judged_once(state: Any, worker: Worker) -> None:
    """No request was decided twice: every request id has at most one record that was accepted."""
    rows = state._db.execute(
        "SELECT json_extract(outcome, '$.request') AS request, count(*) FROM records "
        "WHERE status IN ('accepted', 'refused') AND request LIKE ? GROUP BY request HAVING count(*) > 1",
        (f"entity:{worker.client.identity.name.id}/%",),
    ).fetchall()
    assert rows == []


if LONG:
    # Its short form is in tests/broker/test_faults.py, with the broker's part done by hand.

    def test_a_pause_past_the_heartbeat(mortal: LiveNetwork) -> None:
        """T22: the true thing, which takes a minute: a node that missed its heartbeats is cut off by the broker and comes back by itself."""
        process = mortal.network.process(Role.NODE, "n2")
        pid, size = process.pid, process.log_path.stat().st_size
        with mortal.paused("n2"):
            wait_for(lambda: not _connected(mortal, "n2"), "the broker to cut n2 off", seconds=5 * HEARTBEAT_SECONDS)
        wait_for(lambda: "lost the broker" in process.log_path.read_text()[size:], "n2 to notice", seconds=60)
        wait_for(lambda: _connected(mortal, "n2") and mortal.ready(), "n2 to be back", seconds=60)
        assert process.pid == pid

    def _connected(network: LiveNetwork, node: str) -> bool:
        login = str(network.node(node).name)
        return any(connection["user"] == login for connection in network.manage("GET", "/connections"))
