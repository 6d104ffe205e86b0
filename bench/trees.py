"""Hierarchies and collections: what a child costs beside a root, whether large trees make it dearer, and how soon a watcher knows.

- Child registrations (a slot in the log, minting, advertising) beside root creations (minting, advertising) of the same clients on two nodes.
- Registering under a parent with 10 and with 100,000 children, and at depth 2 and 100, turn by turn in one store (`filled_trees`).
- From sending `add` until another entity's `Watching` yields it, beside its bare parts (`bare_watching`), and where it goes (`traced_node`).
- A collection of 100,000 topics listed by one client, beside raw checks of as many signatures.

`TDN_BENCH_QUICK=1` looks only whether everything works; `TDN_BENCH_KEEP` names a folder where the filled network is kept and used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bench import bare_watching
from bench.bare import Crypto
from bench.bare_watching import BareWatching, Parts
from bench.figures import percentile, print_table
from bench.filled_trees import FEW, FilledNetwork, Trees, kept_in
from bench.traced_node import STEPS, TracedNetwork, times_of
from entity_client import EntityClient, path
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.protocol.trees import Hosting
from tdn.trust import signing

_QUICK = bool(os.environ.get("TDN_BENCH_QUICK"))
CHILDREN = 500 if _QUICK else 100_000
DEPTH = 100
CONCURRENT = (1, 4) if _QUICK else (1, 4, 16)
_SECONDS = 0.5 if _QUICK else 8.0
#: Of each kind, turn by turn.
_CREATIONS = 10 if _QUICK else 400
_REGISTRATIONS = 6 if _QUICK else 200
#: Blocks of changes and of their bare parts alternate.
_BLOCKS, _BLOCK = (2, 5) if _QUICK else (12, 25)
#: Between two changes, and between two runs of the bare parts: one change at a time, with the other node at rest.
_GAP_SECONDS = 0.05
#: Signature checks that are timed. Their rate does not depend on how many there are.
_CHECKS = 1000 if _QUICK else 6000


def run(folder: Path) -> None:
    traced = TracedNetwork(Home(folder / "small"))
    traced.up()
    try:
        asyncio.run(_children_and_roots(traced))
        asyncio.run(_watching(traced))
    finally:
        traced.down()
    filled = FilledNetwork(kept_in(folder) / f"trees-{CHILDREN}", children=CHILDREN, depth=DEPTH)
    trees = filled.prepare()
    filled.network.up()
    try:
        asyncio.run(_growth(filled.network, trees))
        asyncio.run(_listing(filled.network, trees))
    finally:
        filled.network.down()


async def _connect(stack: contextlib.AsyncExitStack, network: Network, name: str) -> EntityClient:
    folder = network.operator.issue(Role.ENTITY, name)
    return await stack.enter_async_context(await EntityClient.connect(folder, timeout=60.0))


# --- children beside roots ------------------------------------------------------------------------------------------------------------


async def _children_and_roots(network: Network) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await _connect(stack, network, f"bench-{number}") for number in range(max(CONCURRENT))]
        parent = (await clients[0].create(path("bench/parent"), hosting=Hosting(allow_children=True))).uuid
        await asyncio.gather(*(_create(client, parent)() for client in clients), *(_create(client)() for client in clients))
        kinds = {"child": _create(clients[0], parent), "root": _create(clients[0])}
        samples = await _in_turn(kinds, _CREATIONS)
        rows: list[tuple[object, ...]] = []
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            child, root = (percentile(samples[kind], share) * 1000 for kind in kinds)
            rows.append((name, child, root, child / root))
        title = f"A child beside a root, {_CREATIONS} of each in turn, milliseconds (goal: p50 at most 3x)"
        print_table(title, ("", "child", "root", "ratio"), rows)
        rows = []
        for concurrent in CONCURRENT:
            children = await _for_a_while([_create(client, parent) for client in clients[:concurrent]])
            roots = await _for_a_while([_create(client) for client in clients[:concurrent]])
            speeds = len(children) / _SECONDS, len(roots) / _SECONDS
            rows.append(
                (
                    concurrent,
                    speeds[0],
                    percentile(children, 0.5) * 1000,
                    speeds[1],
                    percentile(roots, 0.5) * 1000,
                    speeds[1] / speeds[0],
                )
            )
        headings = ("concurrent", "children/s", "p50 ms", "roots/s", "p50 ms", "roots : children")
        print_table(
            f"Children and roots a second on two nodes, {_SECONDS:.0f} s each, all entities in one process", headings, rows
        )


def _create(client: EntityClient, parent: str | None = None) -> Callable[[], Awaitable[float]]:
    """What creates a topic, until its receipt is there, and says how long that took."""

    async def create() -> float:
        started = time.perf_counter()
        await client.create(path("bench/topic"), parent=parent)
        return time.perf_counter() - started

    return create


async def _in_turn(kinds: dict[str, Callable[[], Awaitable[float]]], count: int) -> dict[str, list[float]]:
    """One of each kind, again and again, so that noise hits all of them."""
    samples: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(count):
        for kind, act in kinds.items():
            samples[kind].append(await act())
    return samples


async def _for_a_while(creators: Sequence[Callable[[], Awaitable[float]]]) -> list[float]:
    samples: list[float] = []
    ends = time.perf_counter() + _SECONDS

    async def go_round(create: Callable[[], Awaitable[float]]) -> None:
        while time.perf_counter() < ends:
            samples.append(await create())

    await asyncio.gather(*(go_round(create) for create in creators))
    return samples


# --- from a change to its watcher -----------------------------------------------------------------------------------------------------


class _Followed:
    """A collection, an entity that adds to it and another that watches it; when pushes arrive, and when changes are given."""

    def __init__(self, adder: EntityClient, watcher: EntityClient, collection: str) -> None:
        self.adder = adder
        self.collection = collection
        self._watching = watcher.collections.watch(collection)
        self._given: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._pushed: tuple[float, int] = (0.0, 0)
        self._task = asyncio.create_task(self._watch())
        self._observe(watcher)

    async def ready(self) -> None:
        await self._watching.ready.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def push_size(self) -> int:
        return self._pushed[1]

    async def add(self, uuid: str) -> tuple[float, float, float, float]:
        """The moments of sending, of the push's arrival, of the watcher's yield, and of the adder's receipt."""
        started = time.perf_counter()
        await self.adder.collections.add(self.collection, uuid)
        decided = time.perf_counter()
        given, at = await self._given.get()
        if given != uuid:
            raise RuntimeError(f"the watcher was told of {given} after {uuid} was added")
        return started, self._pushed[0], at, decided

    async def _watch(self) -> None:
        async for change in self._watching:
            self._given.put_nowait((change.uuid, time.perf_counter()))

    def _observe(self, watcher: EntityClient) -> None:
        session = watcher._session
        received = session._on_reply

        def observed(delivery: Any) -> None:
            self._pushed = (time.perf_counter(), len(delivery.body))
            received(delivery)

        # Before it connects, which is when the session hands it on.
        session._on_reply = observed  # type: ignore[method-assign]


async def _watching(network: TracedNetwork) -> None:
    node = network.home.credentials(Role.NODE, "n1")
    async with contextlib.AsyncExitStack() as stack:
        adder = await _connect(stack, network, "bench-adder")
        watcher = await _connect(stack, network, "bench-watcher")
        collection = (await adder.create_collection(path("bench/followed"))).uuid
        followed = _Followed(adder, watcher, collection)
        stack.push_async_callback(followed.close)
        await followed.ready()
        topics = [(await adder.create(path("bench/member"))).uuid for _ in range(_BLOCKS * _BLOCK + 10)]
        for uuid in (warm := topics[:10]):
            await followed.add(uuid)
        # Whichever node decided, this one has applied it when it answers with it.
        await adder.show(warm[-1])
        rows = await _rows(node / "store.sqlite", collection, warm[-1], "bench-watcher")
        bare = await stack.enter_async_context(
            bare_watching.watching(
                node, network.home.folder / "bare-watching.sqlite", rows, request=_request_size(rows.raw), push=followed.push_size
            )
        )
        ours: list[tuple[float, float, float, float]] = []
        parts: list[Parts] = []
        await _block(bare, parts, 10)
        parts.clear()
        for start in range(10, len(topics), _BLOCK):
            await _block(bare, parts, _BLOCK)
            for uuid in topics[start : start + _BLOCK]:
                await asyncio.sleep(_GAP_SECONDS)
                ours.append(await followed.add(uuid))
        sizes = f"record {len(rows.raw)}, request {_request_size(rows.raw)}, push {followed.push_size}; {len(rows.facts)} facts"
    _print_watching(network, ours, parts, sizes)


async def _block(bare: BareWatching, parts: list[Parts], count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(_GAP_SECONDS)
        parts.append(await bare.change())


async def _rows(store: Path, collection: str, uuid: str, watcher: str) -> bare_watching.Rows:
    """What an `add` that a watcher was told put into a node's store, once that node has it."""
    keys = (
        ("member", f"{collection} topic {uuid}"),
        ("in", f"{uuid} {collection}"),
        ("size", collection),
        ("watch", f"{collection} {watcher}"),
        ("change", f"{collection} {watcher} "),
    )
    for _ in range(200):
        with contextlib.suppress(TypeError):
            rows = bare_watching.read_rows(store, "add", keys)
            if len(rows.facts) == len(keys) + 2:
                return rows
        await asyncio.sleep(0.05)
    raise RuntimeError("the record of a decided change is not in the store")


def _request_size(record: bytes) -> int:
    return len(record.split(signing.TILDE, 1)[1])


def _print_watching(
    network: TracedNetwork, ours: list[tuple[float, float, float, float]], parts: list[Parts], sizes: str
) -> None:
    told = [given - started for started, _, given, _ in ours]
    rows: list[tuple[object, ...]] = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        mine = percentile(told, share) * 1000
        counted = percentile([part.counted for part in parts], share) * 1000
        whole = percentile([part.whole for part in parts], share) * 1000
        receipt = percentile([decided - started for started, _, _, decided in ours], share) * 1000
        rows.append((name, mine, counted, mine / counted, whole, mine / whole, receipt))
    headings = ("", "watcher knows", "bare parts", "ratio", "with the others", "ratio", "adder has receipt")
    print_table(
        f"From `add` to the watcher, {len(ours)} of each, milliseconds (goal: p50 at most 3x the bare parts)", headings, rows
    )
    named = (
        ("confirmed append to a stream", [part.append for part in parts]),
        ("SQLite commit, synchronous=FULL", [part.commit for part in parts]),
        ("publish and delivery over TLS", [part.push for part in parts]),
        ("other: the request into a quorum queue and out of it", [part.request for part in parts]),
        ("other: the record read back from the stream, after its confirm", [part.read for part in parts]),
        ("other: three signatures, their checks, one seal", [part.crypto for part in parts]),
    )
    print_table(
        "The bare parts, p50 milliseconds", ("part", "ms"), [(name, percentile(samples, 0.5) * 1000) for name, samples in named]
    )
    marks = network.marks()
    steps: list[list[float]] = []
    for started, pushed, given, _ in ours:
        times = times_of(marks, started, given)
        if times is not None:
            moments = [started, *(times[step] for step in STEPS), pushed, given]
            steps.append([after - before for before, after in itertools.pairwise(moments)])
    names = (
        "sign, send, quorum queue, taken by a node",
        "admit, sign the record",
        "append, the stream, read again",
        "verify, apply, commit",
        "sign, seal and publish the notification",
        "the broker, delivered to the watcher",
        "unseal, verify, yield",
    )
    print_table(
        f"Where it goes, p50 and p99 milliseconds, {len(steps)} changes",
        ("step", "p50", "p99"),
        [
            (name, percentile(column, 0.5) * 1000, percentile(column, 0.99) * 1000)
            for name, column in zip(names, zip(*steps, strict=True), strict=True)
        ],
    )
    print(f"\nSizes in bytes: {sizes}")


# --- large trees ----------------------------------------------------------------------------------------------------------------------


async def _growth(network: Network, trees: Trees) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await _connect(stack, network, "bench-registrar")
        narrow = iter(trees.narrow * (_REGISTRATIONS + 1))

        async def under_few() -> float:
            return await _create(client, next(narrow))()

        kinds = {
            "few": under_few,
            "many": _create(client, trees.wide),
            "shallow": _create(client, trees.chain[0]),
            "deep": _create(client, trees.chain[-1]),
            "root": _create(client),
        }
        for act in kinds.values():
            await act()
        samples = await _in_turn(kinds, _REGISTRATIONS)
        watcher = await _connect(stack, network, "bench-watcher")
        watching = watcher.hierarchy.watch(trees.chain[0])
        following = asyncio.create_task(_drain(watching))
        await watching.ready.wait()
        followed = await _in_turn({kind: kinds[kind] for kind in ("shallow", "deep")}, _REGISTRATIONS)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    p50 = {kind: percentile(values, 0.5) * 1000 for kind, values in samples.items()}
    p50 |= {f"followed {kind}": percentile(values, 0.5) * 1000 for kind, values in followed.items()}
    depth = len(trees.chain) + 1
    rows: list[tuple[object, ...]] = [
        (f"parent with {FEW} children, with {trees.children}", p50["few"], p50["many"], p50["many"] / p50["few"]),
        (f"at depth 2, at depth {depth}", p50["shallow"], p50["deep"], p50["deep"] / p50["shallow"]),
        (
            f"the same, the root of the {depth} being followed",
            p50["followed shallow"],
            p50["followed deep"],
            p50["followed deep"] / p50["followed shallow"],
        ),
        ("a root in this store, a child beside it", p50["root"], p50["few"], p50["few"] / p50["root"]),
    ]
    title = f"Registering a child in large trees, {_REGISTRATIONS} of each in turn, p50 milliseconds (goal: at most 2x)"
    print_table(title, ("", "first", "second", "growth"), rows)


async def _drain(changes: Any) -> None:
    async for _ in changes:
        pass


# --- listing --------------------------------------------------------------------------------------------------------------------------


async def _listing(network: Network, trees: Trees) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await _connect(stack, network, "bench-lister")
        signing._held.clear()
        first = size = count = 0
        started = time.perf_counter()
        async for placed in client.collections.topics(trees.collection):
            if not count:
                first_after = time.perf_counter() - started
                first = len(placed.topic.token)
            size += len(placed.topic.token)
            count += 1
        elapsed = time.perf_counter() - started
    if count != trees.children:
        raise RuntimeError(f"{count} topics were listed of {trees.children}")
    raw = _bare_checks(size // count)
    rows: list[tuple[object, ...]] = [
        ("listed: found, paged, signed, sealed, opened, verified", count / elapsed, 1.0),
        ("bare signature checks, 1 a topic", raw, raw * elapsed / count),
    ]
    title = (
        f"A collection of {count} topics listed by one client, {first} bytes a topic, the first after {first_after * 1000:.0f} ms"
    )
    print_table(title, ("", "topics/s", "times ours"), rows)


def _bare_checks(size: int) -> float:
    crypto = Crypto()
    crypto.verify(size)
    started = time.perf_counter()
    for _ in range(_CHECKS):
        crypto.verify(size)
    return _CHECKS / (time.perf_counter() - started)
