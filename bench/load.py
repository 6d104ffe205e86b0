"""A thousand entities connected at once, with certificates of their own and mixed traffic, on one machine: operations a second, how long they
take, what every process costs in memory, processor time and file descriptors, and whether memory stays where it is.

Beside it as many bare connections over mutual TLS that do nothing: what one costs the broker.

`TDN_LOAD_SECONDS` is how long (default 90), `TDN_LOAD_ENTITIES` how many, `TDN_LOAD_THINK_SECONDS` how long each waits between two things. Whether memory grows
for ever shows from ten minutes on (`bench.growth`): `TDN_LOAD_SECONDS=900 python -m bench load`. `TDN_LOAD_SERIES=FILE` has every sample, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import time
import urllib.request
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.figures import percentile, print_table
from bench.growth import Point, growth_of
from bench.load_clients import Done, Entities
from tdn.bus.connection import tls_context
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import MANAGEMENT_USER, Role
from tdn.trust import credentials

ENTITIES = int(os.environ.get("TDN_LOAD_ENTITIES", "1000"))
#: Processes that they are in.
PROCESSES = 4
NODES = 2
SECONDS = float(os.environ.get("TDN_LOAD_SECONDS", "90"))
#: What an entity waits between two operations, on average: a thousand of them then ask for forty a second. At 10 s two cores are full.
THINK_SECONDS = float(os.environ.get("TDN_LOAD_THINK_SECONDS", "25"))
#: Where every sample goes, if anywhere.
SERIES = os.environ.get("TDN_LOAD_SERIES")
_SAMPLE_SECONDS = 2.0
_SETTLE_SECONDS = 6.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes of one role use at a moment, together."""

    at: float
    rss: int
    cpu_seconds: float
    descriptors: int
    #: Of a process that has a store: the last record that it has applied, and what the store holds, in bytes.
    records: int = 0
    store: int = 0


class Watched:
    """The processes of the network and of the clients, by role."""

    def __init__(self, network: Network, clients: Sequence[int] = ()) -> None:
        self._pids = {"clients": list(clients)}
        self._home = network.home
        #: The stores of those that have one, with the name under which each reports.
        self._stores: dict[str, tuple[str, Path]] = {}
        for entry in network.status():
            name = entry["role"] if entry["role"] == "broker" else f"{entry['role']} {entry['id']}"
            self._pids.setdefault(name, []).append(entry["pid"])
            if entry["role"] in (Role.NODE, Role.GUARD):
                folder = self._home.credentials(Role(entry["role"]), entry["id"])
                self._stores[name] = f"{entry['role']}-{entry['id']}", folder / "store.sqlite"
        self.samples: dict[str, list[Sample]] = defaultdict(list)

    def look(self) -> None:
        now = time.monotonic()
        children = _children()
        for name, pids in self._pids.items():
            self.samples[name].append(replace(_sample(now, pids), **self._stored(name)))
            if name.startswith("node"):
                self.samples[f"{name}, workers"].append(_sample(now, _below(pids, children)))

    def _stored(self, name: str) -> dict[str, int]:
        if name not in self._stores:
            return {}
        reports_as, store = self._stores[name]
        # With what is written beside it: a process keeps pages of both alike.
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            pages, size = (db.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
        return {"records": self._home.reported(reports_as).get("sequence", 0), "store": pages * size}

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_SAMPLE_SECONDS)

    def points(self, name: str) -> list[Point]:
        return [Point(one.at, one.rss, one.records, one.store) for one in self.samples[name]]

    def rss(self, name: str) -> int:
        return self.samples[name][-1].rss


def run(folder: Path) -> None:
    network = Network(Home(folder))
    network.up(nodes=NODES)
    try:
        asyncio.run(measure(network))
    finally:
        network.down()


async def measure(network: Network) -> None:
    began = time.monotonic()
    folders = [network.operator.issue(Role.ENTITY, f"load-{number}") for number in range(ENTITIES)]
    issued = time.monotonic() - began
    shares = [folders[number::PROCESSES] for number in range(PROCESSES)]
    clients = [Entities(share, seed=number, think_seconds=THINK_SECONDS) for number, share in enumerate(shares)]
    try:
        await _measure(network, clients, issued)
    finally:
        await asyncio.gather(*(one.close() for one in clients))


async def _measure(network: Network, clients: Sequence[Entities], issued: float) -> None:
    watched = Watched(network, [one.pid for one in clients])
    watched.look()
    empty = watched.rss("broker")
    bare_seconds = await _all(clients, "connect_bare")
    await asyncio.sleep(_SETTLE_SECONDS)
    watched.look()
    bare = watched.rss("broker")
    bare_memory = _broker_memory(network)
    await _all(clients, "disconnect_bare")
    await asyncio.sleep(_SETTLE_SECONDS)
    watched.look()
    between = watched.rss("broker")
    entering = await _all(clients, "enter")
    await asyncio.sleep(_SETTLE_SECONDS)
    watched.look()
    entered = watched.rss("broker")
    memory = _broker_memory(network)
    overview = _counted(network)
    print_table(
        f"{ENTITIES} entities, each with a certificate of its own (issued in {issued:.0f} s), {NODES} nodes, one broker",
        ("", "seconds", "a second", "KB of broker memory each", "of these in use, by its own count"),
        [
            (
                "bare: connections that do nothing",
                bare_seconds,
                ENTITIES / bare_seconds,
                (bare - empty) / ENTITIES / 1024,
                _each(bare_memory),
            ),
            (
                "ours: introduced, with reply queue and a topic",
                entering,
                ENTITIES / entering,
                (entered - between) / ENTITIES / 1024,
                _each(memory),
            ),
        ],
    )
    print(f"\nat the broker: {', '.join(f'{name} {count}' for name, count in overview.items())}")
    await _traffic(network, clients)


async def _traffic(network: Network, clients: Sequence[Entities]) -> None:
    asked = _guard_questions(network)
    stores = _stored_bytes(network)
    at_first, counted_first = _broker_memory(network), _counted(network)
    watched = Watched(network, [one.pid for one in clients])
    await _all(clients, "begin")
    watching = asyncio.create_task(watched.run())
    began = time.monotonic()
    await asyncio.sleep(SECONDS)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    seconds = time.monotonic() - began
    questions = (_guard_questions(network) - asked) / seconds
    memory, counted = _broker_memory(network), _counted(network)
    done = await asyncio.gather(*(one.call("end") for one in clients))
    _print_operations(done, seconds)
    _print_processes(watched, seconds)
    _print_growth(watched)
    grown = {name: after - stores.get(name, 0) for name, after in _stored_bytes(network).items()}
    print(f"\nthe guard was asked {questions:.0f} times a second")
    print("stores grew by " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in grown.items()))
    rows = sorted(((name, at_first.get(name, 0) / 1e6, size / 1e6) for name, size in memory.items() if size > 1e6), key=lambda row: -row[2])
    print_table("What the broker's memory is for, by its own count", ("", "MB at first", "MB at last"), rows)
    print("\nat the broker: " + ", ".join(f"{name} {counted_first[name]}, then {count}" for name, count in counted.items()))


def _print_operations(done: Sequence[Done], seconds: float) -> None:
    samples: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for one in done:
        errors.update(one.errors)
        for kind, found in one.seconds.items():
            samples[kind] += found
    everything = [sample for found in samples.values() for sample in found]
    rows = [
        (kind, len(found), len(found) / seconds, *(percentile(found, share) * 1000 for share in (0.5, 0.99)), max(found) * 1000)
        for kind, found in [*samples.items(), ("all", everything)]
    ]
    print_table(f"Mixed traffic for {seconds:.0f} s", ("operation", "done", "a second", "p50 ms", "p99 ms", "longest ms"), rows)
    print(f"\nmessages read {sum(one.read for one in done)}; errors: {dict(errors) or 'none'}")


def _print_processes(watched: Watched, seconds: float) -> None:
    rows = []
    for name, samples in watched.samples.items():
        third = max(1, len(samples) // 3)
        first, last = (statistics.median(one.rss for one in part) / 1e6 for part in (samples[:third], samples[-third:]))
        cpu = (samples[-1].cpu_seconds - samples[0].cpu_seconds) / (samples[-1].at - samples[0].at)
        rows.append((name, first, last, f"{(last / first - 1) * 100:+.1f} %", f"{cpu * 100:.0f} %", samples[-1].descriptors))
    headings = ("process", "MB, first third", "MB, last third", "growth", "of one core", "descriptors")
    print_table("What each process uses meanwhile", headings, rows)


def _print_growth(watched: Watched) -> None:
    rows: list[tuple[object, ...]] = []
    verdicts = []
    for name in watched.samples:
        points = watched.points(name)
        if len(points) < 12:
            continue
        found = growth_of(points)
        by_records = "" if found.a_thousand_records is None else f"{found.a_thousand_records:+.2f}"
        quarters = " ".join(f"{slope:+.2f}" for slope in found.quarters)
        rate = f"{found.a_minute:+.2f} ± {found.uncertain:.2f}"
        rows.append((name, found.first, found.half, found.last, quarters, rate, by_records, f"{found.pages:.2f}" if points[-1].store else ""))
        verdicts.append(f"{name}: {found.verdict}")
    headings = ("process", "MB at first", "at half", "at last", "MB a minute, by quarters", "in the last half", "a 1,000 records", "of it pages of its store, at most")
    print_table("How memory grows", headings, rows)
    print("\nmemory: " + "; ".join(verdicts))
    if SERIES:
        lines = [json.dumps({"process": name, **asdict(one)}) for name, samples in watched.samples.items() for one in samples]
        Path(SERIES).write_text("\n".join(lines) + "\n", "utf-8")


async def _all(clients: Sequence[Entities], command: str) -> float:
    began = time.monotonic()
    await asyncio.gather(*(one.call(command) for one in clients))
    return time.monotonic() - began


def _each(memory: dict[str, int]) -> float:
    """What the broker counts as belonging to connections, channels and queues, in KB for each entity."""
    return sum(size for name, size in memory.items() if name.startswith(("connection_", "queue_"))) / ENTITIES / 1024


def _guard_questions(network: Network) -> int:
    counts = [network.home.reported(f"{Role.GUARD}-{name}").get("counts", {}) for name in network.guards()]
    return sum(sum(count.get(what, 0) for what in ("allowed", "denied")) for count in counts)


def _stored_bytes(network: Network) -> dict[str, int]:
    home = network.home
    stores = {node: home.credentials(Role.NODE, node) for node in home.ids(Role.NODE)}
    return {name: sum(path.stat().st_size for path in folder.glob("store.sqlite*")) for name, folder in stores.items()}


def _broker_memory(network: Network) -> dict[str, int]:
    (node,) = _manage(network, "/nodes")
    memory = _manage(network, f"/nodes/{node['name']}/memory")["memory"]
    return {name: size for name, size in memory.items() if isinstance(size, int)}


def _counted(network: Network) -> dict[str, int]:
    totals: dict[str, int] = _manage(network, "/overview")["object_totals"]
    return totals


def _manage(network: Network, path: str) -> Any:
    home = network.home
    request = urllib.request.Request(f"{home.settings().management_url}/api{path}")
    login = f"{MANAGEMENT_USER}:{home.management_password()}"
    request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
    context = tls_context(credentials.load(home.credentials(Role.GUARD, network.guards()[0])))
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        return json.loads(response.read())


def _sample(now: float, pids: Sequence[int]) -> Sample:
    rss = descriptors = 0
    cpu = 0.0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            folder = Path(f"/proc/{pid}")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            cpu += (int(fields[11]) + int(fields[12])) / _TICKS
            rss += int((folder / "statm").read_text().split()[1]) * _PAGE
            descriptors += len(os.listdir(folder / "fd"))
    return Sample(now, rss, cpu, descriptors)


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[parent].append(int(entry.name))
    return found


def _below(pids: Sequence[int], children: dict[int, list[int]]) -> list[int]:
    found: list[int] = []
    new = list(pids)
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found
