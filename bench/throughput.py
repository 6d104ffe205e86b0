"""Creations a second with 1, 4 and 16 concurrent entities on two nodes, beside as many concurrent bare runs."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import bare, creation
from bench.bare import BareClient
from bench.figures import percentile, print_table
from entity_client import EntityClient
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role

CONCURRENT = (1, 4, 16)
SECONDS = 8.0


async def measure(home: Home) -> None:
    network = Network(home)
    rows: list[tuple[object, ...]] = []
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(max(CONCURRENT)):
            folder = network.operator.issue(Role.ENTITY, f"bench-{number}")
            clients.append(await stack.enter_async_context(await EntityClient.connect(folder, timeout=60.0)))
        sizes = await creation.observe_sizes(clients[0], home)
        await asyncio.gather(*(creation.create_once(client, "bench/warm") for client in clients))
        node = home.credentials(Role.NODE, "n1")
        connection = await bare.connect(node)
        channel = await bare.open_channel(connection)
        await bare.declare(channel)
        with tempfile.TemporaryDirectory(dir=home.folder) as scratch, bare.responders(node, Path(scratch), sizes):
            try:
                # One client serves any number of loops: an answer is an answer.
                raw = BareClient(channel, sizes)
                await raw.open()
                for concurrent in CONCURRENT:
                    ours = await _count([_loop(client, number) for number, client in enumerate(clients[:concurrent])])
                    limit = await _count([raw.create] * concurrent)
                    rows.append((concurrent, ours[0], percentile(ours[1], 0.5) * 1000, limit[0], limit[0] / ours[0]))
            finally:
                await bare.remove(channel)
                connection.close()
    headings = ("concurrent", "ours/s", "ours p50 ms", "bare/s", "bare : ours")
    print_table(f"Creations a second on two nodes, {SECONDS:.0f} s each, all entities in one process", headings, rows)


def _loop(client: EntityClient, number: int) -> Callable[[], Awaitable[float]]:
    async def create() -> float:
        return (await creation.create_once(client, f"bench/throughput/{number}"))[2]

    return create


async def _count(creators: list[Callable[[], Awaitable[float]]]) -> tuple[float, list[float]]:
    """Let every creator go round for a while; creations a second, and the seconds of each."""
    samples: list[float] = []
    started = time.perf_counter()

    async def go_round(create: Callable[[], Awaitable[float]]) -> None:
        while time.perf_counter() - started < SECONDS:
            samples.append(await create())

    await asyncio.gather(*(go_round(create) for create in creators))
    return len(samples) / (time.perf_counter() - started), samples
