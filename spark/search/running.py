"""A search job: queries in, (query, topic) rows and a summary out. The folder of results appears when all of it is there."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.index.store import Index
from spark.places import Place
from spark.search import standing
from spark.search.asked import Asked, Faulty
from spark.search.bulk import Bulk
from spark.search.confined import Confined
from spark.search.engines import DuckTables, SparkTables
from spark.search.reading import read_topics
from spark.search.results import MATCHES, TOLD, Part
from tdn.errors import UsageError
from tdn.protocol.times import format_time
from tdn.trust.certificates import TrustRoots


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
    from pyspark.sql.pandas.types import from_arrow_schema

    _require_new(out)
    began = time.monotonic()
    with closing(SparkTables(spark, index, index.require(roots))) as tables:
        when = standing.moment(tables, at, now)
        who = standing.asker(tables, entity, when) if entity is not None else None
        asked, wrong = _checked(asked)
        with _results(out) as unfinished:
            places = tables.frame(standing.places(tables, when, who))
            if standing.moves(tables):
                # Back into the order of files: each is then read by one task, once.
                places = places.repartition("file").sortWithinPartitions("file", "row")
            progress(f"{len(asked)} queries over the topics of record {when.seq}")
            found = unfinished / "found"
            told = places.mapInArrow(_asking(tuple(asked), index.place.text, str(found), form), from_arrow_schema(TOLD)).toArrow()
            progress("results")
            counts, failed, looked_at = _summed(told)
            _tidied(found, told, form)
            names = {one.number: one.id for one in asked}
            if signed or failed:
                _rewritten(spark, found, [names[number] for number in failed], tables, unfinished / "matches", form=form, signed=signed)
                shutil.rmtree(found)
            else:
                found.rename(unfinished / "matches")
            queries = [
                *_told_of((*faulty, *wrong)),
                *(
                    {"id": names[number], "matches": 0, "error": failed[number]}
                    if number in failed
                    else {"id": names[number], "matches": counts.get(number, 0)}
                    for number in names
                ),
            ]
            total = sum(counts.values())
            return _summed_up(unfinished, Searched(queries, total, looked_at, when.at, when.seq, time.monotonic() - began))


def search_nothing(
    index: Index, roots: TrustRoots, faulty: Sequence[Faulty], out: Path, *, entity: str | None, at: datetime | None, now: datetime
) -> Searched:
    """The same of queries none of which compiles, over an index on this machine: Spark is not started to say so."""
    _require_new(out)
    began = time.monotonic()
    with closing(DuckTables(index, index.require(roots))) as tables:
        when = standing.moment(tables, at, now)
        if entity is not None:
            standing.asker(tables, entity, when)
    with _results(out) as unfinished:
        (unfinished / "matches").mkdir(parents=True)
        return _summed_up(unfinished, Searched(_told_of(faulty), 0, 0, when.at, when.seq, time.monotonic() - began))


def _require_new(out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already; name a folder that is not")


@contextmanager
def _results(out: Path) -> Iterator[Path]:
    """A folder that becomes the results when all of it is there."""
    # Workers have other current folders.
    out = out.absolute()
    # A name of its own: another search may be on its way to the same folder. What a killed one leaves is hidden, and nobody takes it for results.
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(8)}.unfinished")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}") from error
    try:
        yield unfinished
        try:
            unfinished.rename(out)
        except OSError as error:
            raise UsageError(f"{out} appeared during the search ({error.strerror}); name a folder that is not there") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _summed_up(folder: Path, summary: Searched) -> Searched:
    (folder / "summary.json").write_text(json.dumps(summary.as_object(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    return summary


def _told_of(faulty: Iterable[Faulty]) -> list[dict[str, Any]]:
    return [{"id": one.id, "matches": 0, "error": one.error} for one in faulty]


def _checked(asked: Sequence[Asked]) -> tuple[list[Asked], list[Faulty]]:
    """Queries whose engine finds nothing wrong with them before any topic is looked at, numbered by their places; and the others."""
    sound: list[Asked] = []
    wrong: list[Faulty] = []
    with Confined() as confined:
        for one in asked:
            error = confined.check(one) if one.language == "xquery" else None
            if error is None:
                sound.append(replace(one, number=len(sound)))
            else:
                wrong.append(Faulty(one.id, error))
    return sound, wrong


def _asking(
    asked: tuple[Asked, ...], index: str, folder: str, form: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task: the places of topics in, what was told of them out; what was found is in the folder."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None  # noqa: S101  # for mypy: there is one in every task
        name = f"part-{task.partitionId():05}-{task.taskAttemptId()}"
        with Confined() as confined, Part(Place(folder), name, form, [one.id for one in asked]) as part:
            bulk = Bulk(asked, confined)
            for topics in read_topics(batches, index):
                part.add(bulk.ask(topics), topics)
        yield part.told()

    return run


def _summed(told: pa.Table) -> tuple[dict[int, int], dict[int, str], int]:
    """How many topics each query found; which queries were given up by some task, and why: what they had found elsewhere is not taken for all; and how
    many topics were looked at."""
    numbers, matches = pc.list_flatten(told["numbers"]).to_pylist(), pc.list_flatten(told["matches"]).to_pylist()
    counts: dict[int, int] = {}
    for number, count in zip(numbers, matches, strict=True):
        counts[number] = counts.get(number, 0) + count
    failed = dict(sorted(zip(pc.list_flatten(told["given_up"]).to_pylist(), pc.list_flatten(told["reasons"]).to_pylist(), strict=True)))
    return {number: count for number, count in counts.items() if number not in failed}, failed, pc.sum(told["topics"]).as_py() or 0


def _tidied(found: Path, told: pa.Table, form: str) -> None:
    """Only the files that tasks told of, all of them, and at least one where a folder without any cannot be read."""
    found.mkdir(parents=True, exist_ok=True)
    kept = set(told["file"].drop_null().to_pylist())
    if missing := kept - {path.name for path in found.iterdir()}:
        raise UsageError(
            f"{len(missing)} of {len(kept)} files that tasks wrote are not here: workers do not share {found.parent.parent} with this machine;"
            " name a folder for --out that all of them share"
        )
    for path in found.iterdir():
        if path.name not in kept:
            path.unlink()
    if form == "parquet" and not any(found.iterdir()):
        pq.write_table(MATCHES.empty_table(), found / "part-00000.parquet")


def _rewritten(spark: Any, found: Path, failed: Iterable[str], tables: SparkTables, to: Path, *, form: str, signed: bool) -> None:
    """The rows without those of queries that were given up, with the advertisements if they are asked for."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    read = spark.read.schema(from_arrow_schema(MATCHES))
    rows = (read.json if form == "jsonl" else read.parquet)(Place(found).spark_pattern())
    names = spark.createDataFrame([(name,) for name in failed], "query string")
    rows = rows.join(F.broadcast(names), "query", "left_anti")
    if signed:
        rows = rows.join(tables.frame("SELECT uuid, advertisement FROM signed"), "uuid").select("query", "uuid", "advertisement")
    rows = rows.sortWithinPartitions("query", "uuid")
    (rows.write.json if form == "jsonl" else rows.write.parquet)(Place(to).spark_name())
