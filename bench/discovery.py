"""Discovery on a store of 1,000,000 advertisements, beside the bare limits on the same data.

A private network of the sample is started, and its node's store filled with signed advertisements as `apply` would have left it, without
checking every signature (`_fill`); how fast `apply` itself loads is measured on a part. Then the same questions are asked of a node with
10,000 topics and of one with all of them, end to end over a warm connection; and of the store alone, beside RE2 and lxml over everything
and SQL written by hand on an indexed table.

`TDN_BENCH_TOPICS` sets how many (default 1,000,000: some 10 GB of disk and half an hour); `TDN_BENCH_KEEP` names a folder where filled
stores are kept and used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from bench.bare_discovery import HandMade, Topic, hop, learn_columns, scan_documents, scan_texts, searchable_texts, xml_documents
from bench.figures import percentile, print_table
from entity_client import EntityClient
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol import jsontext
from tdn.protocol.access import Asker
from tdn.protocol.names import Role
from tdn.queries.compile import compile_query
from tdn.rules.state import next_head
from tdn.sample import log
from tdn.sample.network import SampleNetwork
from tdn.sample.queries import SampleQuery, expensive_queries, selective_queries
from tdn.store import topics
from tdn.store.search import Reader, Search
from tdn.store.view import View
from tdn.trust import signing
from tdn.trust.envelope import Envelope

TOPICS = int(os.environ.get("TDN_BENCH_TOPICS", "1000000"))
SMALL = 10_000
SEED = 1
_AT_ONCE = 500
_LOADED = 5_000
_ASKERS = 16
_SECONDS = 10.0


def run(folder: Path) -> None:
    keep = os.environ.get("TDN_BENCH_KEEP")
    small = _Stage(Path(keep or folder) / f"sample-{min(SMALL, TOPICS)}", min(SMALL, TOPICS))
    large = _Stage(Path(keep or folder) / f"sample-{TOPICS}", TOPICS)
    for stage in (small, large):
        stage.prepare()
    _print_loading(large)
    before = small.ask()
    after = large.ask(extras=True)
    _print_growth(before, after)
    _print_store(large)


class _Stage:
    """A network whose one node holds so many topics of the sample."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self.home = Home(folder)
        self.network = Network(self.home)
        self.store = self.home.credentials(Role.NODE, "n1") / "store.sqlite"

    def prepare(self) -> None:
        """Start it once, so that its log begins; then fill the store of its node."""
        done = self.home.folder / "filled"
        if done.exists():
            return
        shutil.rmtree(self.home.folder, ignore_errors=True)
        sample = SampleNetwork.found(SEED, datetime.now(UTC) - timedelta(hours=15), nodes=("n1",))
        sample.save(self.home.folder)
        self.network.up(nodes=1)
        self.network.down()
        started = time.perf_counter()
        _fill(self.store, sample, self.count)
        print(f"filled a store with {self.count} topics in {time.perf_counter() - started:.0f} s", flush=True)
        done.write_text("", "utf-8")

    def ask(self, *, extras: bool = False) -> dict[str, list[float]]:
        """The seconds of selective queries by language, end to end; and what else is measured on the large one."""
        self.network.up()
        try:
            return asyncio.run(self._ask(extras))
        finally:
            self.network.down()

    async def _ask(self, extras: bool) -> dict[str, list[float]]:
        folder = self.network.operator.issue(Role.ENTITY, "bench-asker")
        async with await EntityClient.connect(folder, timeout=60.0) as client:
            samples: dict[str, list[float]] = {}
            for language, queries in selective_queries(SEED, min(SMALL, TOPICS)).items():
                for query in queries:
                    await _discover(client, query.text, language)
                samples[language] = [(await _discover(client, query.text, language))[0] for _ in range(5) for query in queries]
            if extras:
                await self._sizes(client)
                await self._crowd()
            return samples

    async def _sizes(self, client: EntityClient) -> None:
        """1, 10 and 100 topics, beside a hop of the same size and as many raw signature checks."""
        rows: list[tuple[object, ...]] = []
        firsts: list[float] = []
        query = f"creator = '{self._busy_creator()}'"
        async with hop(self.home.credentials(Role.NODE, "n1")) as bare:
            for count, paper in ((1, 65.9), (10, 104.0), (100, 481.0)):
                sent, received, signed = await _observe(client, query, count)
                ours: list[float] = []
                limit: list[float] = []
                for _ in range(20):
                    for _ in range(5):
                        limit.append(await bare.ask(request=sent, reply=received, checks=count, signed=signed))
                    for _ in range(5):
                        ours.append((await _discover(client, query, "sql", limit=count))[0])
                p50, bare50 = percentile(ours, 0.5), percentile(limit, 0.5)
                firsts.append(p50)
                rows.append(
                    (
                        count,
                        p50 * 1000,
                        percentile(ours, 0.99) * 1000,
                        bare50 * 1000,
                        p50 / bare50,
                        p50 / firsts[0],
                        paper,
                        paper / 65.9,
                    )
                )
        headings = ("topics", "p50 ms", "p99 ms", "bare p50 ms", "ours : bare", "growth", "paper ms", "paper's growth")
        print_table(f"Discovering 1, 10 and 100 of {self.count} topics, end to end", headings, rows)

    def _busy_creator(self) -> str:
        """Somebody with more topics than are asked for."""
        db = sqlite3.connect(self.store)
        try:
            found = db.execute("SELECT creator FROM topics GROUP BY creator HAVING count(*) > 150 ORDER BY count(*) LIMIT 1")
            return str(found.fetchone()[0])
        finally:
            db.close()

    async def _crowd(self) -> None:
        """16 askers at once; then easy queries alone, and beside somebody who asks the most expensive ones."""
        easy = [
            query
            for queries in selective_queries(SEED, min(SMALL, TOPICS)).values()
            for query in queries
            if query.language != "xquery"
        ]
        async with contextlib.AsyncExitStack() as stack:
            clients = []
            for number in range(_ASKERS):
                folder = self.network.operator.issue(Role.ENTITY, f"bench-{number}")
                clients.append(await stack.enter_async_context(await EntityClient.connect(folder, timeout=60.0)))
            await asyncio.gather(*(_discover(client, easy[0].text, easy[0].language) for client in clients))
            together = await _for_a_while([_asking(client, easy) for client in clients])
            rows: list[tuple[object, ...]] = [
                (
                    f"{_ASKERS} askers",
                    len(together) / _SECONDS,
                    percentile(together, 0.5) * 1000,
                    percentile(together, 0.99) * 1000,
                    "",
                )
            ]
            alone = await _for_a_while([_asking(clients[0], easy)])
            rows.append(("one asker", len(alone) / _SECONDS, percentile(alone, 0.5) * 1000, percentile(alone, 0.99) * 1000, 1.0))
            quiet = percentile(alone, 0.99)
            for language, queries in expensive_queries().items():
                burden = asyncio.create_task(_burden(clients[1], queries))
                beside = await _for_a_while([_asking(clients[0], easy)])
                burden.cancel()
                await asyncio.gather(burden, return_exceptions=True)
                p99 = percentile(beside, 0.99)
                rows.append(
                    (
                        f"beside expensive {language}",
                        len(beside) / _SECONDS,
                        percentile(beside, 0.5) * 1000,
                        p99 * 1000,
                        p99 / quiet,
                    )
                )
        headings = ("easy queries", "per second", "p50 ms", "p99 ms", "p99 : alone")
        print_table(f"Easy queries on {self.count} topics, {_SECONDS:.0f} s each", headings, rows)


# --- filling a store ------------------------------------------------------------------------------------------------------------------


def _fill(path: Path, sample: SampleNetwork, count: int) -> None:
    """Put topics into a node's store as `apply` leaves them. Advertisements are signed; creators need no first contact to be served."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA cache_size=-262144")
    seq, _, head = db.execute("SELECT seq, offset, head FROM position").fetchone()
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for records in pool.imap(partial(_records, sample, count), range(0, count, _AT_ONCE)):
            db.execute("BEGIN")
            for raw in records:
                seq += 1
                head = next_head(head, raw)
                _take_in(db, seq, head, raw)
            db.execute("UPDATE position SET seq = ?, head = ?", (seq, head))
            db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def _records(sample: SampleNetwork, count: int, start: int) -> list[bytes]:
    """Some topics as records in their outer form: the advertisement is signed, what is around it is not, since no reader looks at it."""
    records = []
    for number in range(start, min(start + _AT_ONCE, count)):
        uuid, opening, advertisement = log.advertisement(sample, SEED, number)
        body = signing.encode_segment(jsontext.canonical({"body": {"uuid": uuid, "opening": opening}})).encode()
        records.append(b"record.e30.unsigned~request." + body + b".unsigned~" + advertisement)
    return records


def _take_in(db: sqlite3.Connection, seq: int, head: str, raw: bytes) -> None:
    segment = topics.advertisement_in(raw).split(b".")[1]
    told = jsontext.parse(signing.decode_segment(segment))
    fact = {
        "kind": told["kind"],
        "digest": signing.encode_segment(hashlib.sha256(segment).digest()),
        "creator": told["creator"],
        "owner": told["creator"],
        "created": told["created"],
        "expires": told["expires"],
        "state": "live",
        "seq": seq,
        "advertised": seq,
    }
    # No offset of the stream: these records are in no log.
    db.execute("INSERT INTO records VALUES (?, -1, 'advertise', 'accepted', '{}', ?, ?, NULL, NULL)", (seq, head, raw))
    db.execute("INSERT INTO facts VALUES ('topic', ?, ?)", (told["uuid"], jsontext.canonical(fact).decode()))
    topics.write(db, told["uuid"], fact, raw, topics.EVERYTHING)


def _print_loading(stage: _Stage) -> None:
    """How fast `apply` itself takes advertisements in, all signatures checked; and what a topic takes on disk."""
    sample = SampleNetwork.found(SEED, datetime.now(UTC) - timedelta(hours=15), nodes=("n1",))
    path = stage.home.folder / "loading.sqlite"
    for leftover in path.parent.glob("loading.sqlite*"):
        leftover.unlink()
    records = list(enumerate(log.advertisements(SEED, _LOADED, network=sample)))
    view = View(path)
    first = len(records) - _LOADED
    view.apply_all(records[:first], durable=False)
    started = time.perf_counter()
    for start in range(first, len(records), _AT_ONCE):
        view.apply_all(records[start : start + _AT_ONCE], durable=False)
    applied = _LOADED / (time.perf_counter() - started)
    view.close()
    hand = HandMade(stage.home.folder / "loading-by-hand.sqlite", learn_columns(SEED))
    inserted, seconds = hand.load(islice(_topics(stage.store), _LOADED))
    hand.close()
    (stage.home.folder / "loading-by-hand.sqlite").unlink()
    rows: list[tuple[object, ...]] = [
        ("verified, applied, indexed, committed", applied, 1.0),
        ("raw inserts into the table made by hand", inserted / seconds, inserted / seconds / applied),
    ]
    print_table(f"Loading, {_LOADED} advertisements", ("", "per second", "times ours"), rows)
    kept = stage.store.stat().st_size / stage.count - _raw_size(stage.store)
    raw = _raw_size(path)
    print(f"\nOn disk: {kept + raw:.0f} bytes an advertisement: the signed record {raw:.0f}, state and indexes {kept:.0f}")


def _raw_size(path: Path) -> float:
    db = sqlite3.connect(path)
    try:
        return float(
            db.execute("SELECT avg(length(raw)) FROM (SELECT raw FROM records WHERE kind = 'advertise' LIMIT 10000)").fetchone()[
                0
            ]
        )
    finally:
        db.close()


# --- asking ---------------------------------------------------------------------------------------------------------------------------


async def _discover(client: EntityClient, query: str, language: str, limit: int = 100) -> tuple[float, int]:
    """Seconds until everything was there and verified, and how many topics."""
    # The same topics come again and again here: signatures that held before are looked at anew, as the bare run does.
    signing._held.clear()
    started = time.perf_counter()
    found = 0
    async for _ in client.discover(query, language=language, limit=limit):
        found += 1
    return time.perf_counter() - started, found


async def _observe(client: EntityClient, query: str, count: int) -> tuple[int, int, int]:
    """Bytes of the question, bytes of the answer, and bytes of one advertisement."""
    believing = client._session._believing
    received: list[int] = []
    read = believing.read

    def watched(message: bytes) -> Envelope:
        received.append(len(message))
        return read(message)

    believing.read = watched  # type: ignore[method-assign]
    sizes = [len(topic.token) async for topic in client.discover(query, language="sql", limit=count)]
    believing.read = read  # type: ignore[method-assign]
    # A question takes the first step; a `located` may have been among what was received.
    return 4_200, sum(received[-max(1, count // 40) :]), sum(sizes) // len(sizes)


def _asking(client: EntityClient, queries: list[SampleQuery]) -> Callable[[int], Awaitable[float]]:
    async def ask(number: int) -> float:
        query = queries[number * 7 % len(queries)]
        return (await _discover(client, query.text, query.language))[0]

    return ask


async def _for_a_while(askers: list[Callable[[int], Awaitable[float]]]) -> list[float]:
    samples: list[float] = []
    ends = time.perf_counter() + _SECONDS

    async def loop(ask: Callable[[int], Awaitable[float]], start: int) -> None:
        number = start
        while time.perf_counter() < ends:
            samples.append(await ask(number))
            number += 1

    await asyncio.gather(*(loop(ask, index * 13) for index, ask in enumerate(askers)))
    return samples


async def _burden(client: EntityClient, queries: list[SampleQuery]) -> None:
    """Ask the most expensive queries, two at a time, again and again, whatever becomes of them."""

    async def loop(query: SampleQuery) -> None:
        while True:
            with contextlib.suppress(Exception):
                await _discover(client, query.text, query.language)

    await asyncio.gather(*(loop(query) for query in queries))


def _print_growth(before: dict[str, list[float]], after: dict[str, list[float]]) -> None:
    rows: list[tuple[object, ...]] = []
    for language in before:
        small, large = percentile(before[language], 0.5), percentile(after[language], 0.5)
        rows.append((language, small * 1000, large * 1000, large / small, percentile(after[language], 0.99) * 1000))
    headings = ("language", f"p50 ms at {min(SMALL, TOPICS)}", f"p50 ms at {TOPICS}", "growth", "p99 ms")
    print_table("Selective queries, end to end", headings, rows)


# --- the store alone ------------------------------------------------------------------------------------------------------------------


def _print_store(stage: _Stage) -> None:
    queries = selective_queries(SEED, min(SMALL, TOPICS))
    reader = Reader(stage.store)
    now = datetime.now(UTC)
    ours = {language: [_timed(reader, query, now) for query in asked] for language, asked in queries.items()}
    reader.close()
    hand = HandMade(stage.home.folder / "hand.sqlite", learn_columns(SEED))
    hand.load(_topics(stage.store))
    by_hand = []
    for query in queries["sql"]:
        hand.ask(query)
        by_hand.append(min(hand.ask(query).seconds for _ in range(5)))
    hand.close()
    (stage.home.folder / "hand.sqlite").unlink()
    texts = searchable_texts(_topics(stage.store))
    regexes = [timing.seconds for timing in scan_texts(texts, queries["regex"][:6])]
    del texts
    documents = xml_documents(_topics(stage.store))
    xpaths = [timing.seconds for timing in scan_documents(documents, queries["xpath"][:4])]
    rows: list[tuple[object, ...]] = [
        ("string", percentile(ours["string"], 0.5) * 1000, "", "", ""),
        _row("regex", ours["regex"], "RE2 over all texts", regexes),
        _row("sql", ours["sql"], "by hand, indexed", by_hand),
        _row("xpath", ours["xpath"], "lxml over all XML", xpaths),
        ("xquery", percentile(ours["xquery"], 0.5) * 1000, "", "", ""),
    ]
    headings = ("selective", "ours p50 ms", "bare", "bare p50 ms", "bare : ours")
    print_table(f"The store alone, {stage.count} topics", headings, rows)


def _row(language: str, ours: list[float], name: str, bare: list[float]) -> tuple[object, ...]:
    mine, theirs = percentile(ours, 0.5), percentile(bare, 0.5)
    return (language, mine * 1000, name, theirs * 1000, theirs / mine)


def _timed(reader: Reader, query: SampleQuery, now: datetime) -> float:
    """The best of five, as for the hand-made table: compiled, its pages in memory."""
    search = Search(Asker("bench-asker", "local"), now, compile_query(query.language, query.text))
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        reader.discover(search, limit=100)
        best = min(best, time.perf_counter() - started)
    return best


def _topics(path: Path) -> Iterator[Topic]:
    db = sqlite3.connect(path)
    try:
        for (raw,) in db.execute("SELECT raw FROM records WHERE kind = 'advertise' ORDER BY seq"):
            advertisement = topics.advertisement_in(raw)
            yield Topic(json.loads(signing.decode_segment(advertisement.split(b".")[1])), advertisement)
    finally:
        db.close()
