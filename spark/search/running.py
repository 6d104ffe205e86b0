"""A search job: queries in, (query, topic) rows and a summary out. The folder of results appears when all of it is there."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark.index.store import Index
from spark.search import standing
from spark.search.asked import Asked, Faulty
from spark.search.bulk import Bulk, Found
from spark.search.confined import Confined
from spark.search.engines import SparkTables
from spark.search.topics import Topics
from tdn.errors import UsageError
from tdn.protocol.times import format_time
from tdn.trust.certificates import TrustRoots

#: A topic that a query found; or why one could not go on; or, of no query, how many topics a batch had.
_FOUND = pa.schema([("number", pa.int32()), ("uuid", pa.string()), ("error", pa.string()), ("topics", pa.int64())])
#: Matches given to Arrow at a time.
_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Searched:
    """A summary: of each query its matches, or why it could not run."""

    queries: list[dict[str, Any]]
    matches: int
    topics: int
    at: datetime
    seq: int
    seconds: float

    def as_object(self) -> dict[str, Any]:
        return {
            "at": format_time(self.at),
            "record": self.seq,
            "topics": self.topics,
            "matches": self.matches,
            "seconds": round(self.seconds, 3),
            "queries": self.queries,
        }


def search(
    spark: Any,
    index: Index,
    roots: TrustRoots,
    asked: Sequence[Asked],
    faulty: Sequence[Faulty],
    out: Path,
    *,
    entity: str | None,
    at: datetime | None,
    now: datetime,
    form: str = "jsonl",
    signed: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> Searched:
    """Ask all queries on behalf of an entity (None: the operator). Results are in `out` when this returns; before, nothing is.

    `form` is jsonl or parquet; `signed` adds the advertisements to the rows.
    """
    if out.exists():
        raise UsageError(f"{out} is there already; name a folder that is not")
    began = time.monotonic()
    tables = SparkTables(spark, index, index.require(roots))
    when = standing.moment(tables, at, now)
    who = standing.asker(tables, entity, when) if entity is not None else None
    asked, wrong = _checked(asked)
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        topics = tables.frame(standing.standing(tables, when, who))
        progress(f"{len(asked)} queries over the topics of record {when.seq}")
        found = _found(topics, asked, str(unfinished / "found"), spark)
        progress("results")
        counts, failed, looked_at = _counted(found)
        _write(spark, found, asked, failed, tables, unfinished / "matches", form=form, signed=signed)
        names = {one.number: one.id for one in asked}
        told = [
            *({"id": one.id, "matches": 0, "error": one.error} for one in (*faulty, *wrong)),
            *(
                {"id": names[number], "matches": 0, "error": failed[number]}
                if number in failed
                else {"id": names[number], "matches": counts.get(number, 0)}
                for number in names
            ),
        ]
        total = sum(counts.values())
        summary = Searched(told, total, looked_at, when.at, when.seq, time.monotonic() - began)
        shutil.rmtree(unfinished / "found", ignore_errors=True)
        (unfinished / "summary.json").write_text(json.dumps(summary.as_object(), indent=1, ensure_ascii=False) + "\n", "utf-8")
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return summary


def _checked(asked: Sequence[Asked]) -> tuple[list[Asked], list[Faulty]]:
    """Queries whose engine finds nothing wrong with them before any topic is looked at."""
    sound: list[Asked] = []
    wrong: list[Faulty] = []
    with Confined() as confined:
        for one in asked:
            error = confined.check(one) if one.language == "xquery" else None
            if error is None:
                sound.append(one)
            else:
                wrong.append(Faulty(one.id, error))
    return sound, wrong


def _found(topics: Any, asked: Sequence[Asked], path: str, spark: Any) -> Any:
    """What was found, once: the pass over all topics is not made again for each thing that is counted."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(_FOUND)
    topics.mapInArrow(_asking(tuple(asked)), schema).write.parquet(path)
    return spark.read.schema(schema).parquet(path)


def _asking(asked: Sequence[Asked]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Confined() as confined:
            bulk = Bulk(asked, confined)
            for batch in batches:
                yield _row(topics=batch.num_rows)
                yield from _told(bulk.ask(Topics(batch)), batch.column("uuid"))

    return run


def _told(found: Iterator[Found], uuids: pa.Array) -> Iterator[pa.RecordBatch]:
    """What queries found in one batch of topics, as rows, some thousand at a time."""
    numbers: list[int] = []
    rows: list[int] = []
    for number, told in found:
        if isinstance(told, str):
            yield _row(number=number, error=told)
            continue
        numbers += [number] * len(told)
        rows += told
        if len(rows) >= _AT_ONCE:
            yield _matches(numbers, uuids.take(pa.array(rows)))
            numbers, rows = [], []
    if rows:
        yield _matches(numbers, uuids.take(pa.array(rows)))


def _matches(numbers: list[int], uuids: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int32()), uuids.cast(pa.string()), *(pa.nulls(len(numbers), kind) for kind in _FOUND.types[2:])], schema=_FOUND
    )


def _row(**told: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([told], schema=_FOUND)


def _counted(found: Any) -> tuple[dict[int, int], dict[int, str], int]:
    """How many topics each query found; which queries were given up by some task, and why: what they had found elsewhere is not taken for all; and how
    many topics were looked at."""
    from pyspark.sql import functions as F

    rows = found.groupBy("number").agg(F.count("uuid"), F.min("error"), F.sum("topics")).collect()
    counts: dict[int, int] = {}
    failed: dict[int, str] = {}
    looked_at = 0
    for number, count, error, topics in rows:
        if number is None:
            looked_at = topics
        elif error is not None:
            failed[number] = error
        else:
            counts[number] = count
    return counts, failed, looked_at


def _write(
    spark: Any,
    found: Any,
    asked: Sequence[Asked],
    failed: dict[int, str],
    tables: SparkTables,
    path: Path,
    *,
    form: str,
    signed: bool,
) -> None:
    from pyspark.sql import functions as F

    names = spark.createDataFrame([(one.number, one.id) for one in asked if one.number not in failed], "number int, query string")
    rows = found.where("uuid IS NOT NULL").join(F.broadcast(names), "number").select("query", "uuid")
    if signed:
        rows = rows.join(tables.frame("SELECT uuid, advertisement FROM signed"), "uuid").select("query", "uuid", "advertisement")
    rows = rows.sortWithinPartitions("query", "uuid")
    (rows.write.json if form == "jsonl" else rows.write.parquet)(str(path))
