"""The bare limits of discovery, on the same data: what one would do by hand, with nothing around it.

- `scan_texts`: RE2 over every searchable text, in memory.
- `HandMade`: an indexed SQLite table made for just these properties, with the same queries written by hand; and its raw insert rate.
- `scan_documents`: lxml over every XML descriptor, parsed for each query, as a scan of a store has to.
- `Hop`: a request and a reply of the same sizes over raw pika and TLS, and as many raw signature checks as the reply has advertisements.

`python -m bench.bare_discovery LOG` prints all but the hop for a file of `tdn.sample.log.write_log`.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pika
import re2
from lxml import etree

from bench import bare
from bench.bare import Crypto
from bench.figures import percentile, print_table
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext
from tdn.protocol.times import parse_time
from tdn.sample import log, topics
from tdn.sample.queries import SampleQuery, selective_queries
from tdn.trust import signing

QUEUE, REPLIES = "bench.discovery", "bench.discovery.replies"

#: Columns of the hand-made table that have an index: those that the selective queries ask for.
INDEXED = ("serial", "asset", "campaign", "creator", "institution")
_FIELDS = ("uuid", "creator", "institution", "created", "expires", "descriptor_kind", "path", "text", "synopsis")
#: Topics that are looked at to learn which properties there are and of which type each mostly is.
_LEARN_FROM = 20_000
#: Rows of one transaction, as many as a node applies in one when it catches up.
_ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Topic:
    """One advertisement of a log, taken apart."""

    payload: dict[str, Any]
    advertisement: bytes

    @property
    def descriptor(self) -> dict[str, Any]:
        found: dict[str, Any] = self.payload["descriptor"]
        return found


@dataclass(frozen=True, slots=True)
class Timing:
    query: SampleQuery
    seconds: float
    matches: int


def read_topics(path: Path) -> Iterator[Topic]:
    """The advertisements of a file of records, in order. Nothing is verified: this is the bare side."""
    for raw in log.read_log(path):
        record = signing.split(raw)
        if b'"advertise"' not in signing.decode_segment(record.payload_segment) or record.tail is None:
            continue
        advertisement = signing.split(record.tail).tail
        if advertisement is None:
            continue
        payload = jsontext.parse(signing.decode_segment(signing.split(advertisement).payload_segment))
        yield Topic(payload, advertisement)


# --- scans ----------------------------------------------------------------------------------------------------------------------------


def searchable_texts(found: Iterable[Topic]) -> list[bytes]:
    """What regular expressions see, in UTF-8, as RE2 wants it: from `str` each search would encode its text first (2.4 µs, so 1.8)."""
    return [descriptors.searchable(topic.descriptor).encode() for topic in found]


def scan_texts(texts: Sequence[bytes], queries: Iterable[SampleQuery]) -> list[Timing]:
    """RE2 over all texts, once for each query."""
    timings = []
    for query in queries:
        search = re2.compile(query.text).search
        started = time.perf_counter()
        matches = sum(1 for text in texts if search(text) is not None)
        timings.append(Timing(query, time.perf_counter() - started, matches))
    return timings


def xml_documents(found: Iterable[Topic]) -> list[bytes]:
    """All XML descriptors, as the bytes that lxml wants when a document declares its encoding."""
    return [topic.descriptor["xml"].encode() for topic in found if topic.descriptor["kind"] == "xml"]


def scan_documents(documents: Sequence[bytes], queries: Iterable[SampleQuery]) -> list[Timing]:
    """lxml's XPath 1.0 over all documents, once for each query; each document is parsed each time."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    timings = []
    for query in queries:
        evaluate = etree.XPath(query.text)
        started = time.perf_counter()
        # True, or something found: both are a match.
        matches = sum(1 for document in documents if evaluate(etree.fromstring(document, parser)))
        timings.append(Timing(query, time.perf_counter() - started, matches))
    return timings


# --- SQL by hand ----------------------------------------------------------------------------------------------------------------------


class HandMade:
    """One wide table: a column for each field and each property, indexes on what is asked for, the advertisement in the row."""

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA cache_size=-65536")
        # As our SQL has it; and only so can LIKE with a prefix use an index.
        self._db.execute("PRAGMA case_sensitive_like=ON")
        self._properties = tuple(columns)
        listed = ", ".join(
            ['"uuid" TEXT PRIMARY KEY', *(f'"{name}" TEXT' for name in _FIELDS[1:]), *(f'"{n}" {t}' for n, t in columns.items())]
        )
        self._db.execute(f"CREATE TABLE topics ({listed}, advertisement BLOB)")
        for column in INDEXED:
            self._db.execute(f'CREATE INDEX "by_{column}" ON topics ("{column}")')
        self._insert = f"INSERT INTO topics VALUES ({', '.join('?' * (len(_FIELDS) + len(columns) + 1))})"

    def load(self, found: Iterable[Topic]) -> tuple[int, float]:
        """Insert all; how many, and the seconds that SQLite took for it (taking messages apart is not counted)."""
        count, seconds = 0, 0.0
        rows = (self._row(topic) for topic in found)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            started = time.perf_counter()
            self._db.execute("BEGIN")
            self._db.executemany(self._insert, batch)
            self._db.execute("COMMIT")
            seconds += time.perf_counter() - started
            count += len(batch)
        started = time.perf_counter()
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count, seconds + time.perf_counter() - started

    def ask(self, query: SampleQuery) -> Timing:
        """One query, its rows fetched: the UUID and the advertisement."""
        statement = written_by_hand(query)
        started = time.perf_counter()
        rows = self._db.execute(statement).fetchall()
        return Timing(query, time.perf_counter() - started, len(rows))

    def plan(self, query: SampleQuery) -> str:
        """How SQLite goes about a query."""
        rows = self._db.execute(f"EXPLAIN QUERY PLAN {written_by_hand(query)}").fetchall()
        return "; ".join(str(row[3]) for row in rows)

    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def close(self) -> None:
        self._db.close()

    def _row(self, topic: Topic) -> tuple[Any, ...]:
        payload, descriptor = topic.payload, topic.descriptor
        values, types = descriptor.get("properties", {}), descriptor.get("types", {})
        return (
            payload["uuid"],
            payload["creator"],
            payload["institution"],
            payload["created"],
            payload["expires"],
            descriptor["kind"],
            descriptor.get("path"),
            descriptor.get("text"),
            payload["synopsis"]["value"],
            *(
                parse_time(values[name]).timestamp() if types.get(name) == "timestamp" else values.get(name)
                for name in self._properties
            ),
            topic.advertisement,
        )


def learn_columns(seed: int) -> dict[str, str]:
    """The properties of a sample, each with its column's type. Text gets TEXT, which LIKE needs; the rest keep the type of each value,
    since a column that turned '42' into 42 would find what was not asked for."""
    kinds: dict[str, Counter[str]] = {}
    for one in islice(topics.descriptions(seed), _LEARN_FROM):
        for name, kind in one.descriptor.get("types", {}).items():
            kinds.setdefault(name, Counter())[kind] += 1
    return {name: "TEXT" if kinds[name].most_common(1)[0][0] == "string" else "" for name in sorted(kinds)}


def written_by_hand(query: SampleQuery) -> str:
    """A selective SQL query of the sample as one would write it for the table."""
    condition = query.text.removeprefix("SELECT * FROM topics WHERE ")
    return f"SELECT uuid, advertisement FROM topics WHERE {condition} ORDER BY created, uuid"


# --- a hop ----------------------------------------------------------------------------------------------------------------------------


class Hop:
    """The asker's side of a bare request and reply."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._crypto = Crypto()
        self._replies: asyncio.Queue[int] = asyncio.Queue()

    async def open(self) -> None:
        await bare.call(
            self._channel.basic_consume, REPLIES, lambda *event: self._replies.put_nowait(len(event[3])), auto_ack=True
        )

    async def ask(self, *, request: int, reply: int, checks: int, signed: int) -> float:
        """Seconds for a request and a reply of so many bytes, and so many checks of signatures over `signed` bytes each."""
        # Made when first used, and not to be timed.
        self._crypto.verify(signed)
        body = str(reply).encode().ljust(request)
        started = time.perf_counter()
        self._channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=1))
        received = await self._replies.get()
        for _ in range(checks):
            self._crypto.verify(signed)
        elapsed = time.perf_counter() - started
        if received != reply:
            raise RuntimeError(f"asked for {reply} bytes, received {received}")
        return elapsed


@contextlib.asynccontextmanager
async def hop(folder: Path) -> AsyncIterator[Hop]:
    """A hop through the broker that a node's credentials lead to, answered by a process of its own."""
    connection = await bare.connect(folder)
    channel = await bare.open_channel(connection)
    for queue in (QUEUE, REPLIES):
        await bare.call(channel.queue_delete, queue)
        await bare.call(channel.queue_declare, queue, durable=True, arguments={"x-queue-type": "classic"})
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    responder = context.Process(target=_respond, args=(folder, ready), daemon=True)
    responder.start()
    try:
        if not await asyncio.to_thread(ready.wait, 30):
            raise RuntimeError("the bare responder did not start")
        asker = Hop(channel)
        await asker.open()
        yield asker
    finally:
        responder.terminate()
        responder.join()
        # A channel that the broker has closed has its reason raised above, and nothing left to delete with.
        for queue in (QUEUE, REPLIES) if channel.is_open else ():
            await bare.call(channel.queue_delete, queue)
        if connection.is_open:
            connection.close()


def _respond(folder: Path, ready: Event) -> None:
    asyncio.run(_answer(folder, ready))


async def _answer(folder: Path, ready: Event) -> None:
    connection = await bare.connect(folder)
    channel = await bare.open_channel(connection)
    transient = pika.BasicProperties(delivery_mode=1)

    def answer(_: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_publish("", REPLIES, b"x" * int(body), transient)
        channel.basic_ack(method.delivery_tag)

    await bare.call(channel.basic_consume, QUEUE, answer)
    ready.set()
    await asyncio.Event().wait()


# --- printed --------------------------------------------------------------------------------------------------------------------------


def summary(timings: Sequence[Timing]) -> tuple[float, float, str]:
    """p50 and p99 in milliseconds, and the range of matches."""
    milliseconds = [timing.seconds * 1000 for timing in timings]
    counts = [timing.matches for timing in timings]
    return percentile(milliseconds, 0.5), percentile(milliseconds, 0.99), f"{min(counts)} to {max(counts)}"


def main(path: Path) -> None:
    seed, count = log.read_sample(path)
    queries = selective_queries(seed, count)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        table = HandMade(Path(scratch) / "hand.sqlite", learn_columns(seed))
        inserted, seconds = table.load(read_topics(path))
        # Twice: the first time brings pages into memory, as they are in a store that is in use.
        asked = [[table.ask(query) for query in queries["sql"]] for _ in range(2)][1]
        size = table.size()
        table.close()
    rows: list[tuple[object, ...]] = [("indexed SQLite by hand", *summary(asked))]
    rows.append(("RE2 over all texts", *summary(scan_texts(searchable_texts(read_topics(path)), queries["regex"]))))
    rows.append(("lxml over all XML", *summary(scan_documents(xml_documents(read_topics(path)), queries["xpath"]))))
    print_table(f"Bare limits, {inserted} advertisements", ("selective queries", "p50 ms", "p99 ms", "matches"), rows)
    print(f"\nRaw inserts: {inserted / seconds:.0f} rows/s, {size / inserted:.0f} bytes a row")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
