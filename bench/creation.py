"""Topic creation, the paper's six steps, beside the bare run: p50, p99 and their ratio. Blocks of the two alternate, so that noise hits both."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import bare
from bench.bare import BareClient, Sizes
from bench.figures import percentile, print_table
from entity_client import EntityClient, path
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.store.search import Reader

BLOCKS = 12
BLOCK = 50


async def create_once(client: EntityClient, name: str) -> tuple[float, float, float]:
    """Locate (until the first answer), create, advertise; the seconds at which each had ended."""
    started = time.perf_counter()
    await client.choose()
    located = time.perf_counter() - started
    topic = await client.create(path(name), advertise=False)
    created = time.perf_counter() - started
    await client.advertise(topic)
    return located, created, time.perf_counter() - started


async def observe_sizes(client: EntityClient, home: Home) -> Sizes:
    """What one real creation puts on the wire."""
    sent: list[int] = []
    received: list[int] = []
    session = client._session
    await session.ready(10.0)
    assert session._line is not None
    channels = (await session._line.for_changes(), session._line.replies)
    originals = [channel.publish for channel in channels]
    believing = session._believing
    read = believing.read

    def watching(publish: Any) -> Any:
        def watched(exchange: str, key: str, body: bytes, **kwargs: Any) -> Any:
            sent.append(len(body))
            return publish(exchange, key, body, **kwargs)

        return watched

    def watched_read(message: bytes) -> Any:
        received.append(len(message))
        return read(message)

    for channel, original in zip(channels, originals, strict=True):
        channel.publish = watching(original)  # type: ignore[method-assign]
    believing.read = watched_read  # type: ignore[method-assign]
    await client.choose()
    topic = await client.create(path("bench/sizes"), advertise=False)
    await client.advertise(topic.token)
    for channel, original in zip(channels, originals, strict=True):
        channel.publish = original  # type: ignore[method-assign]
    believing.read = read  # type: ignore[method-assign]
    locate, create, advertise = sent
    # A second node's answer to the locate may have been read too.
    located, created, decided = received[0], received[-2], received[-1]
    return Sizes(locate, located, create, created, advertise, decided, await _record_size(home))


async def _record_size(home: Home) -> int:
    """Size of the record that it became, from the store of a node, once that node has applied it."""
    reader = Reader(home.credentials(Role.NODE, "n1") / "store.sqlite")
    try:
        for _ in range(200):
            row = reader._db.execute("SELECT length(raw) FROM records WHERE kind = 'advertise'").fetchone()
            if row is not None:
                return int(row[0])
            await asyncio.sleep(0.05)
        raise RuntimeError("the record of a decided creation is not in the store")
    finally:
        reader.close()


async def measure(home: Home) -> None:
    network = Network(home)
    folder = network.operator.issue(Role.ENTITY, "bench-creator")
    async with await EntityClient.connect(folder) as client:
        sizes = await observe_sizes(client, home)
        node = home.credentials(Role.NODE, "n1")
        connection = await bare.connect(node)
        channel = await bare.open_channel(connection)
        await bare.declare(channel)
        with tempfile.TemporaryDirectory(dir=home.folder) as scratch, bare.responders(node, Path(scratch), sizes):
            try:
                bare_client = BareClient(channel, sizes)
                await bare_client.open()
                ours: list[tuple[float, float, float]] = []
                limit: list[float] = []
                for warm in range(20):
                    await create_once(client, f"bench/warm/{warm}")
                    await bare_client.create()
                for block in range(BLOCKS):
                    for _ in range(BLOCK):
                        limit.append(await bare_client.create())
                    for number in range(BLOCK):
                        ours.append(await create_once(client, f"bench/{block}/{number}"))
            finally:
                await bare.remove(channel)
                connection.close()
    _print(ours, limit, sizes)


def _print(ours: list[tuple[float, float, float]], limit: list[float], sizes: Sizes) -> None:
    total = [sample[2] * 1000 for sample in ours]
    bare_total = [sample * 1000 for sample in limit]
    rows: list[tuple[object, ...]] = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        mine, raw = percentile(total, share), percentile(bare_total, share)
        rows.append((name, mine, raw, mine / raw))
    print_table(
        f"Creation, {len(ours)} of each, milliseconds (goal: p50 at most 2x the bare run)", ("", "ours", "bare", "ratio"), rows
    )
    steps = (
        ("locate, first answer", [sample[0] * 1000 for sample in ours]),
        ("request, mint, sign, answer", [(sample[1] - sample[0]) * 1000 for sample in ours]),
        ("verify, advertise, receipt", [(sample[2] - sample[1]) * 1000 for sample in ours]),
    )
    print_table("Where it goes, p50 milliseconds", ("step", "ms"), [(name, percentile(samples, 0.5)) for name, samples in steps])
    print(f"\nThe paper, for context: 211 ms on one machine, 641 ms over a wide area. Sizes on the wire: {sizes}")
