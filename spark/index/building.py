"""Building an index: segments in, one verified pass, tables out; batch by batch, so that a long archive is not lost with the last of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa

from spark.index import certificates as certified
from spark.index.certificates import Carried
from spark.index.rows import Trust, stage
from spark.index.store import Commit, Index, batch_name, commit_of
from spark.places import Place
from spark.tables import ADVERTISEMENTS, CERTIFICATES, MANY, ONE, SIGNED, STAGED, TABLES, Table
from tdn.archive.manifest import MANIFEST, SEGMENTS, Entry, read_chain
from tdn.errors import Absent, TrustError
from tdn.protocol.times import format_time
from tdn.trust.certificates import TrustRoots, roots_from_ders

#: Segments in one batch: four million records at most. A table of a smaller index is one file.
MOST_SEGMENTS = 256
#: Advertisements in one file, or so.
_FILE_ROWS = 250_000
_ROW_GROUP_BYTES = 16 * 1024**2

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Built:
    """What one run added, and what is in the index now."""

    batches: int
    segments: int
    records: int
    advertisements: int
    rejected: int
    last: int


def build(
    spark: Any, archive: Place, index: Index, roots: TrustRoots, *, progress: Callable[[str], None] = lambda what: None
) -> Built:
    """Bring an index up to an archive. Repeated, or killed and repeated, it adds each record once."""
    with index.alone():
        commits = index.commits()
        index.require_roots(commits, roots)
        index.tidy(commits)
        entries = _entries(archive, roots)
        new = _after(commits, entries, index)
        added: list[Commit] = []
        for start in range(0, len(new), MOST_SEGMENTS):
            portion = new[start : start + MOST_SEGMENTS]
            added.append(_batch(spark, archive, index, roots, [*commits, *added], portion, progress))
    return Built(
        len(added),
        len(new),
        sum(commit.rows["records"] for commit in added),
        sum(commit.rows["advertisements"] for commit in added),
        sum(commit.rows["rejected"] for commit in added),
        added[-1].last if added else commits[-1].last,
    )


def _entries(archive: Place, roots: TrustRoots) -> list[Entry]:
    names = [name for name in archive.list(MANIFEST) if name.endswith(".jws")]
    if not names:
        raise Absent(f"there is no archive in {archive}; `tdn archive export --to {archive}` makes one")
    return read_chain([(name, archive.read(MANIFEST, name)) for name in names], roots)


def _after(commits: list[Commit], entries: list[Entry], index: Index) -> list[Entry]:
    """The entries that the index has not got, if it was made of the ones before them."""
    if not commits:
        return entries
    done = commits[-1]
    same = next((entry for entry in entries if entry.last == done.last), None)
    if same is None or same.head != done.head or same.network != done.network:
        raise TrustError(f"the index in {index.place} was made from another archive; make it anew")
    return [entry for entry in entries if entry.first > done.last]


def _batch(
    spark: Any,
    archive: Place,
    index: Index,
    roots: TrustRoots,
    commits: list[Commit],
    entries: list[Entry],
    progress: Callable[[str], None],
) -> Commit:
    first, last = entries[0].first, entries[-1].last
    batch = batch_name(first, last)
    progress(f"records {first} to {last}: digests")
    files = [archive.name(SEGMENTS, entry.file) for entry in entries]
    _require_digests(spark, archive, entries, files)
    records = spark.read.parquet(*files)
    progress(f"records {first} to {last}: certificates")
    known = _certificates(spark, index, commits, batch, records, roots)
    progress(f"records {first} to {last}: signatures")
    staged = index.place.name("staging", "staged")
    _frame(records.select(*_STAGED_FROM), _staging(roots.ders, known, entries[0].network), STAGED).write.parquet(staged)
    rows: dict[str, int] = {}
    for table in TABLES.values():
        progress(f"records {first} to {last}: {table.name}")
        if table is not CERTIFICATES:
            _write(spark.read.parquet(staged), table, index.place.name("tables", table.name, f"batch={batch}"), last - first + 1)
        rows[table.name] = index.written(table.name, batch)
    until = spark.read.parquet(*index.paths("records", [_unfinished(rows, first, last)])).agg({"judged_at": "max"}).collect()[0][0]
    commit = commit_of(entries, roots, rows, _text(until))
    index.commit(commit)
    return commit


def _unfinished(rows: dict[str, int], first: int, last: int) -> Commit:
    return Commit(0, "", "", first, last, "", "", rows)


def _text(moment: Any) -> str:
    # Spark gives times of the session's zone, UTC, without saying so.
    return format_time(moment.replace(tzinfo=UTC)) if moment is not None else ""


def _frame(frame: Any, function: Callable[[Batches], Batches], schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return frame.mapInArrow(function, from_arrow_schema(schema))


# --- digests ---

_DIGESTS = pa.schema([("path", pa.string()), ("sha256", pa.string())])


def _require_digests(spark: Any, archive: Place, entries: list[Entry], files: list[str]) -> None:
    """Every file is the one that its entry names. A file that was cut short is found here too, before anything reads it."""
    wanted = {entry.file: entry for entry in entries}
    missing = sorted(wanted.keys() - set(archive.list(SEGMENTS)))
    if missing:
        raise TrustError(f"segment {missing[0]} is missing from {archive}")
    found = _frame(spark.read.format("binaryFile").load(files).select("path", "content"), _digests, _DIGESTS).collect()
    digests = {row["path"].rpartition("/")[2]: row["sha256"] for row in found}
    for name, entry in wanted.items():
        if digests.get(name) != entry.sha256:
            raise TrustError(f"segment {name} is not the file that was exported: its digest differs")


def _digests(batches: Batches) -> Batches:
    for batch in batches:
        digests = [hashlib.sha256(content.as_buffer()).hexdigest() for content in batch.column("content")]
        yield pa.RecordBatch.from_arrays([batch.column("path"), pa.array(digests)], schema=_DIGESTS)


# --- certificates ---


def _certificates(
    spark: Any, index: Index, commits: list[Commit], batch: str, records: Any, roots: TrustRoots
) -> dict[str, Carried]:
    """All certificates that the index knows, the new ones written to the batch that is being made."""
    bringing = records.where(records.effects.contains('["certificate",')).select("seq", "at", "effects")
    new = _frame(bringing, _certificates_in(roots.ders), CERTIFICATES.schema)
    path = index.place.name("tables", CERTIFICATES.name, f"batch={batch}")
    new.coalesce(1).write.parquet(path)
    known: dict[str, Carried] = {}
    for place in [*index.paths(CERTIFICATES.name, commits), path]:
        known |= certified.carried(spark.read.schema(new.schema).parquet(place).toArrow().to_pylist())
    return known


def _certificates_in(ders: tuple[bytes, ...]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        roots = roots_from_ders(ders)
        for batch in batches:
            rows = [
                row for seq, at, effects in _rows(batch, "seq", "at", "effects") for row in certified.in_effects(seq, at, effects, roots)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=CERTIFICATES.schema)

    return run


# --- the pass over all records ---

_STAGED_FROM = ("seq", "at", "kind", "status", "raw", "effects")
#: Rows given to Arrow at a time.
_AT_ONCE = 1000


def _staging(ders: tuple[bytes, ...], certificates: dict[str, Carried], network: str) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        trust = Trust(roots_from_ders(ders), certified.knower(certificates), network)
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                rows = [
                    stage(seq, at, kind, status, raw, effects, trust)
                    for seq, at, kind, status, raw, effects in _rows(batch.slice(start, _AT_ONCE), *_STAGED_FROM)
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=STAGED)

    return run


def _rows(batch: pa.RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


# --- from the pass to the tables ---


def _write(staged: Any, table: Table, path: str, records: int) -> None:
    """One table's rows of a batch, ordered."""
    from pyspark.sql import functions as F

    column = F.col(table.name)
    if table in ONE:
        frame = staged.where(column.isNotNull()).select(f"{table.name}.*")
    elif table in MANY:
        frame = staged.where(F.size(column) > 0).select(F.explode(column).alias("row")).select("row.*")
    else:
        raise ValueError(table.name)
    frame = frame.select(*table.schema.names)
    parts = max(1, records // _FILE_ROWS) if table in (ADVERTISEMENTS, SIGNED) else 1
    order = [table.partition, *table.order] if table.partition else list(table.order)
    frame = frame.repartitionByRange(parts, *order) if parts > 1 else frame.coalesce(1)
    writer = (
        frame.sortWithinPartitions(*order)
        .write.option("parquet.block.size", _ROW_GROUP_BYTES)
        .option("parquet.bloom.filter.enabled#uuid", "true" if "uuid" in table.schema.names else "false")
    )
    if table.partition:
        writer = writer.partitionBy(table.partition)
    writer.parquet(path)
