"""What goes wrong: each fault with its undoing, in an order that the seed decides, and when it began and was over."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from tdn.bus.connection import HEARTBEAT_SECONDS
from tdn.protocol.names import Name, Role
from tests.chaos.fragile import FragileNetwork
from tests.live import until

#: How long a broker may take to serve again, on a machine that is busy.
_BROKER_SECONDS = 180.0
#: How far a clock jumps.
JUMP_SECONDS = 7200
#: Quick to do and to get over; once each in the short form.
LIGHT = (
    "kill a node",
    "pause a node",
    "pause and kill a node",
    "stop a node",
    "kill the guard",
    "pause the guard",
    "cut logins",
    "cut connections",
    "stall connections",
    "fill the disk",
    "jump of a clock",
)
#: Some ten seconds each and more.
HEAVY = ("kill all nodes", "kill a broker", "restart a broker", "pause a broker", "silence connections")
#: Nearly a minute each.
SLOW = ("pause past the heartbeat",)
#: With several brokers alone.
OF_CLUSTERS = ("kill most brokers",)
#: What hurts one node, and what hurts the rest: one of each can happen at once, and leaves enough to serve everybody where there are three brokers.
OF_A_NODE = ("kill a node", "pause a node", "pause and kill a node", "stop a node", "fill the disk", "jump of a clock")
OF_THE_REST = (
    "kill the guard",
    "pause the guard",
    "kill a broker",
    "restart a broker",
    "pause a broker",
    "cut logins",
    "cut connections",
    "stall connections",
    "silence connections",
)
#: What is asked for all the time.
SERVICES = ("change", "discover", "publish")
#: What nobody can be given until these are undone: without most brokers, nodes still answer questions at their own endpoints.
STOPS = {"kill all nodes": SERVICES, "kill most brokers": ("change", "publish")}
#: And these stop everything where there is one broker and one guard.
STOPS_THE_ONLY_ONE = ("kill the guard", "pause the guard", "kill a broker", "restart a broker", "pause a broker")


@dataclass
class Disturbance:
    """One fault, or two at once: when it began, when it was undone, when everybody had got on again."""

    kind: str
    began: float
    undone: float = 0.0
    over: float = 0.0
    #: For what it left enough to serve everybody: most brokers, a guard beside each, and a node.
    leaves: tuple[str, ...] = SERVICES


class Faults:
    def __init__(self, network: FragileNetwork, entities: Sequence[Name], dice: random.Random) -> None:
        self._network = network
        self._entities = entities
        self._dice = dice
        self.happened: list[Disturbance] = []
        #: A node is killed alone, and the next with all that it has started, in turns.
        self._kills = itertools.cycle((network.kill_alone, network.kill))
        self._ways: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a node": self._kill,
            "pause a node": self._pause,
            "pause and kill a node": self._pause_and_kill,
            "stop a node": self._stop,
            "kill all nodes": self._kill_all,
            "pause past the heartbeat": self._pause_long,
            "kill the guard": self._kill_guard,
            "pause the guard": self._pause_guard,
            "kill a broker": self._kill_broker,
            "restart a broker": self._restart_broker,
            "pause a broker": self._pause_broker,
            "kill most brokers": self._kill_brokers,
            "cut logins": self._cut_logins,
            "cut connections": self._cut,
            "stall connections": self._stall,
            "silence connections": self._silence,
            "fill the disk": self._fill,
            "jump of a clock": self._jump,
        }

    @property
    def count(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.happened)

    async def all_of(self, kinds: Sequence[str]) -> Disturbance:
        """Do them at once, and undo each in its time. Others work on meanwhile."""
        stops = STOPS if len(self._network.brokers()) > 1 else {**STOPS, **dict.fromkeys(STOPS_THE_ONLY_ONE, SERVICES)}
        stopped = {what for kind in kinds for what in stops.get(kind, ())}
        fault = Disturbance(" and ".join(kinds), time.monotonic(), leaves=tuple(what for what in SERVICES if what not in stopped))
        self.happened.append(fault)
        await asyncio.gather(*(self._ways[kind]() for kind in kinds))
        fault.undone = time.monotonic()
        return fault

    def possible(self, kinds: Sequence[str]) -> list[str]:
        """Without what this machine cannot do."""
        return [kind for kind in kinds if kind not in self._network.missing]

    def for_a_while(self, seconds: float) -> Iterator[Sequence[str]]:
        """Every fault once, then any of them, the light ones more often, or two at once, until the time is over."""
        ends = time.monotonic() + seconds
        heavy = [*HEAVY, *(OF_CLUSTERS if len(self._network.brokers()) > 2 else ())]
        every = self.possible([*LIGHT, *heavy, *SLOW])
        self._dice.shuffle(every)
        for kind in every:
            yield (kind,)
        for number in itertools.count():
            if time.monotonic() >= ends:
                return
            if number % 2 == 0:
                yield self._dice.choice(self.possible(OF_A_NODE)), self._dice.choice(self.possible(OF_THE_REST))
            else:
                yield (self._dice.choice(self.possible([*LIGHT] * 3 + heavy)),)

    # --- nodes ---

    def _node(self) -> str:
        return self._dice.choice(self._network.nodes())

    async def _start(self, node: str) -> None:
        await asyncio.to_thread(self._network.start, node)

    async def _kill_one(self, node: str) -> None:
        await asyncio.to_thread(next(self._kills), node)

    async def _kill(self) -> None:
        node = self._node()
        await self._kill_one(node)
        await self._start(node)

    async def _stop(self) -> None:
        node = self._node()
        await asyncio.to_thread(self._network.stop, node)
        await self._start(node)

    async def _kill_all(self) -> None:
        for node in self._network.nodes():
            await self._kill_one(node)
        await asyncio.gather(*(self._start(node) for node in self._network.nodes()))

    async def _pause(self) -> None:
        with self._network.paused(self._node()):
            await asyncio.sleep(self._dice.uniform(0.2, 2.0))

    async def _pause_long(self) -> None:
        # Longer than the broker waits: two intervals and the time until it looks. Everybody else goes on meanwhile.
        with self._network.paused(self._node()):
            await asyncio.sleep(3 * HEARTBEAT_SECONDS)

    async def _pause_and_kill(self) -> None:
        node = self._node()
        with self._network.paused(node):
            await asyncio.sleep(self._dice.uniform(0.2, 1.0))
            await self._kill_one(node)
        await self._start(node)

    # --- guards and brokers ---

    async def _kill_guard(self) -> None:
        network = self._network.network
        guard = self._dice.choice(network.guards())
        network.process(Role.GUARD, guard).kill_hard()
        await asyncio.to_thread(network.start_one, Role.GUARD, guard)

    async def _pause_guard(self) -> None:
        network = self._network.network
        guard = self._dice.choice(network.guards())
        with self._network.stopped(network.process(Role.GUARD, guard).pid):
            await asyncio.sleep(self._dice.uniform(0.5, 5.0))

    async def _kill_broker(self) -> None:
        broker = self._dice.choice(self._network.brokers())
        await asyncio.to_thread(broker.kill_hard)
        await asyncio.to_thread(broker.start, timeout_seconds=_BROKER_SECONDS)

    async def _restart_broker(self) -> None:
        broker = self._dice.choice(self._network.brokers())
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start, timeout_seconds=_BROKER_SECONDS)

    async def _pause_broker(self) -> None:
        with self._network.stopped(self._dice.choice(self._network.brokers()).pid):
            await asyncio.sleep(self._dice.uniform(0.5, 4.0))

    async def _kill_brokers(self) -> None:
        """So many that the rest is no majority, for a while."""
        brokers = self._network.brokers()
        killed = self._dice.sample(brokers, len(brokers) // 2 + 1)
        for broker in killed:
            await asyncio.to_thread(broker.kill_hard)
        await asyncio.sleep(self._dice.uniform(0.5, 3.0))
        # As `tdn up` does: one that ran on may have to be told to go on.
        await asyncio.to_thread(self._network.network.cluster.start)

    # --- connections ---

    async def _cut_logins(self) -> None:
        """As the broker does to a peer that misses its heartbeats."""
        await asyncio.to_thread(self._network.cut, self._network.node(self._node()).name)
        for name in self._dice.sample(self._entities, len(self._entities) // 3):
            await asyncio.to_thread(self._network.cut, name)

    async def _cut(self) -> None:
        self._network.proxy.cut(self._dice.choice((0.3, 0.6, 1.0)))

    async def _stall(self) -> None:
        seconds = self._dice.uniform(0.5, 5.0)
        self._network.proxy.stall(seconds)
        await asyncio.sleep(seconds)

    async def _silence(self) -> None:
        # Never all: the network goes on for the others, and these find out by their heartbeats at the latest.
        self._network.proxy.silence(0.3)

    # --- disk and clock ---

    async def _fill(self) -> None:
        """A disk without a byte left, for long enough that the node notices; then there is room again, and it goes on by itself."""
        network = self._network
        report = f"node-{network.on_a_small_disk}"
        before = network.home.reported(report).get("sequence")
        await asyncio.to_thread(network.fill_disk)
        try:
            ends = time.monotonic() + self._dice.uniform(3.0, 6.0)
            while time.monotonic() < ends:
                # What it gave free itself meanwhile is taken too.
                await asyncio.to_thread(network.fill_disk)
                await asyncio.sleep(0.2)
        finally:
            network.free_disk()
        await until(
            lambda: (network.home.reported(report).get("sequence") or 0) > (before or 0),
            "the node to go on when its disk has room again",
            seconds=60,
        )

    async def _jump(self) -> None:
        network = self._network
        seconds = self._dice.choice((-JUMP_SECONDS, JUMP_SECONDS))
        network.set_clock(seconds)
        try:
            await until(lambda: abs(network.clock_error() - seconds) < JUMP_SECONDS / 2, "the clock to jump", seconds=30)
            await asyncio.sleep(self._dice.uniform(1.0, 4.0))
        finally:
            network.set_clock(0)
        # Before the beginning of its certificate the log takes nothing from it, so it has stopped.
        await self._start(network.with_another_clock)
        await until(lambda: abs(network.clock_error()) < JUMP_SECONDS / 2, "the clock to be right again", seconds=30)
