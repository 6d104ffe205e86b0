"""What tasks of an index do: read some segments, and write the rows that they come to, one file of each table.

A task's files are named after its first record (those of certificates after the task) and hold what the archive says and nothing else: a task that is done
twice, because its worker was thought dead, writes the same rows under the same names. A file appears whole or not at all. What a task did, or what is wrong
with its segments, is all that it sends back; but for certificates, which other tasks follow than find them.
"""

from __future__ import annotations

import gc
import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.index import certificates as certified
from spark.index.rows import Known, Trust, reject, stage
from spark.places import Place
from spark.tables import CERTIFICATES, TABLES, TIME, Table
from tdn.archive import segments
from tdn.archive.manifest import SEGMENTS
from tdn.errors import TdnError, TrustError
from tdn.trust import signing
from tdn.trust.certificates import TrustRoots, roots_from_ders

Batches = Iterator[pa.RecordBatch]

#: What a task sends back: how many rows of a table it wrote, into how many files, and when its last record was judged; or what is wrong.
DONE = pa.schema([("table", pa.string()), ("rows", pa.int64()), ("files", pa.int64()), ("until", TIME), ("problem", pa.string())])
#: What a record says that brought a certificate; or what is wrong with its segment.
BROUGHT = pa.schema([("seq", pa.int64()), ("at", TIME), ("effects", pa.string()), ("problem", pa.string())])

#: Rows in a row group, and bytes of them in memory: a reader of a few rows reads a few megabytes, and one of all holds no more than that at a time.
_ROW_GROUP = 16_384
_GROUP_BYTES = 64 * 1024**2
#: Records whose rows are Python's at a time, before they are Arrow's.
_AT_ONCE = 2_000
#: What Arrow raises for a value that is not of its column's type.
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Segment:
    """What a task has to know of an entry of the manifest."""

    file: str
    sha256: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Portion:
    """The segments of one task."""

    first: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a batch are told. Small: certificates are read where they are, from the table."""

    archive: str
    index: str
    batch: str
    roots: tuple[bytes, ...]
    network: str
    portions: tuple[Portion, ...]
    #: Folders of the certificates that are known, this batch's with them.
    certificates: tuple[str, ...] = ()
    #: Of this batch and this run of it alone: what a worker keeps for the next task is not kept for another run.
    run: str = field(default_factory=lambda: secrets.token_hex(8))


def bringing_certificates(work: Work) -> Callable[[Batches], Batches]:
    """Tasks that look for the records which brought certificates. A log begins with most of them, so whoever follows them takes them from all tasks."""

    def one(portion: Portion) -> Batches:
        for segment in _read(work, portion, ("seq", "at", "effects")):
            bringing = segment.filter(pc.match_substring(segment["effects"], '["certificate",'))
            yield from bringing.append_column("problem", pa.nulls(len(bringing), pa.string())).cast(BROUGHT).to_batches()

    return _task(work, one, BROUGHT)


def following_certificates(work: Work) -> Callable[[Batches], Batches]:
    """Tasks that follow each certificate to the roots, and write those that lead there. Which records a task gets follows from their numbers."""

    def run(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101  # for mypy: only tasks run this
        roots = roots_from_ders(work.roots)
        parts = _Parts()
        try:
            for batch in batches:
                brought = pa.Table.from_batches([batch])
                yield _told({"problem": problem} for problem in brought["problem"].drop_null().to_pylist())
                sound = brought.filter(pc.is_null(brought["problem"])).drop_columns("problem")
                parts.add({CERTIFICATES.name: [row for seq, at, effects in _rows(sound) for row in certified.in_effects(seq, at, effects, roots)]})
            yield _told(parts.write(work, context.partitionId()))
        except TdnError as error:
            yield _told([{"problem": error.message}])

    return run


def verifying(work: Work) -> Callable[[Batches], Batches]:
    """Tasks that verify every record and write its rows."""

    def one(portion: Portion) -> Batches:
        signing.remember(0)
        trust = Trust(_roots(work.roots), _known(work.run, work.index, work.certificates), work.network)
        parts = _Parts()
        until: datetime | None = None
        for segment in _read(work, portion, ("seq", "at", "kind", "status", "raw", "effects")):
            until = pc.max(segment["at"]).as_py() or until
            for start in range(0, segment.num_rows, _AT_ONCE):
                with _uncollected():
                    _add(parts, segment.slice(start, _AT_ONCE), trust)
        yield _told({**told, "until": until} for told in parts.write(work, portion.first))

    return _task(work, one, DONE)


def _add(parts: _Parts, records: pa.Table, trust: Trust) -> None:
    try:
        parts.add(_staged(_rows(records), trust))
    except _UNFIT:
        # One of them says something of another type than its column has. That is found out here and not before: to look at every value would cost each
        # record of each archive, and this costs the few beside a bad one a second time.
        for record in _rows(records):
            seq, at, kind, status, raw, _ = record
            try:
                parts.add(_staged([record], trust))
            except _UNFIT as error:
                known = {"seq": seq, "judged_at": at, "kind": kind, "status": status}
                parts.add({"records": [known], "rejected": [reject(seq, at, kind, raw, error)]})


def _staged(records: Iterable[tuple[Any, ...]], trust: Trust) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for seq, at, kind, status, raw, effects in records:
        for name, found in stage(seq, at, kind, status, raw, effects, trust).items():
            rows.setdefault(name, []).extend(found)
    return rows


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look through all of the rows again and again: nothing here refers to itself."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _task(work: Work, one: Callable[[Portion], Batches], schema: pa.Schema) -> Callable[[Batches], Batches]:
    """Numbers of portions in, what comes of each out. What is wrong with a segment is told, since Spark would show it as a traceback."""

    def run(batches: Batches) -> Batches:
        # Arrow's own gives large blocks back to the system at once, and the kernel clears each page anew: half of what writing takes.
        pa.set_memory_pool(pa.system_memory_pool())
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield from one(work.portions[number])
                except TdnError as error:
                    yield pa.RecordBatch.from_pylist([{"problem": error.message}], schema=schema)

    return run


def _told(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=DONE)


def _read(work: Work, portion: Portion, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Some columns of the segments, `seq` and `at` with them. The bytes that are read are those whose digest was compared."""
    archive = Place(work.archive)
    for segment in portion.segments:
        content = archive.read(SEGMENTS, segment.file)
        if hashlib.sha256(content).hexdigest() != segment.sha256:
            raise TrustError(f"segment {segment.file} is not the file that was exported: its digest differs")
        try:
            with pq.ParquetFile(pa.BufferReader(content)) as file:
                segments.require_columns(file.schema_arrow, segment.file)
                records = file.read(columns)
            # Text that is no UTF-8, and moments that Python has no year for.
            records.validate(full=True)
            pc.min_max(records["at"]).as_py()
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise TrustError(f"segment {segment.file} cannot be read: {str(error).splitlines()[0][:200]}") from error
        # A node signed the digest, and may have been wrong: what is there twice would be indexed twice.
        if not records["seq"].combine_chunks().equals(pa.arange(segment.first, segment.last + 1)):
            raise TrustError(f"segment {segment.file} does not hold records {segment.first} to {segment.last}, each once and in order")
        yield records


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*map(_values, table.columns), strict=True)


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return cast("list[Any]", column.to_pylist())
    # Records are judged at few moments, and each that becomes Python's costs as much as a digest. Arrow's UTC is another object than Python's, and moments of
    # two zones take longer to compare.
    encoded = column.combine_chunks().dictionary_encode()
    moments = [moment and moment.astimezone(UTC) for moment in encoded.dictionary.to_pylist()]
    return [None if place is None else moments[place] for place in encoded.indices.to_pylist()]


@lru_cache(maxsize=4)
def _roots(ders: tuple[bytes, ...]) -> TrustRoots:
    return roots_from_ders(ders)


@lru_cache(maxsize=2)
def _known(run: str, index: str, folders: tuple[str, ...]) -> Known:
    """Kept from task to task: a worker that goes on with the next portion has them."""
    place = Place(index)
    rows: list[tuple[Any, ...]] = []
    for folder in folders:
        for path in place.parquet("tables", CERTIFICATES.name, folder):
            rows += _rows(pq.read_table(path, filesystem=place.files, columns=list(certified.CARRIED), partitioning=None))
    return certified.knower(certified.carried(rows))


class _Parts:
    """The rows of a portion, by table."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {}

    def add(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        """All of them, or none where some value does not fit."""
        made = {name: _arrow(found, TABLES[name].schema) for name, found in rows.items() if found}
        for name, table in made.items():
            self._tables.setdefault(name, []).append(table)

    def write(self, work: Work, number: int) -> list[dict[str, Any]]:
        """Each table as a file of this number, ordered; and how many rows there are of each."""
        place = Place(work.index)
        told = []
        for name, parts in self._tables.items():
            table, rows = TABLES[name], pa.concat_tables(parts)
            folder = ("tables", name, f"batch={work.batch}")
            files = 0
            for value, divided in _divided(table, rows):
                ordered = divided.combine_chunks().sort_by([(column, "ascending") for column in table.order])
                place.write(_parquet(ordered), *folder, *value, f"part-{number:020}.parquet")
                files += 1
            told.append({"table": name, "rows": rows.num_rows, "files": files})
        return told


def _arrow(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as Arrow's. What a row does not name is null."""
    try:
        # Column by column without a step of Python's for each value; half the time of `from_pylist`.
        columns = zip(*map(itemgetter(*schema.names), rows), strict=True)
        return pa.Table.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
    except KeyError:
        return pa.Table.from_pylist(rows, schema=schema)


def _divided(table: Table, rows: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """By the values of a column: folders that Spark and DuckDB read as that column."""
    if table.partition is None:
        yield (), rows
        return
    for value in pc.unique(rows[table.partition]).to_pylist():
        chosen = rows.filter(pc.equal(rows[table.partition], value))
        yield (f"{table.partition}={value}",), chosen.drop_columns([table.partition])


def _parquet(rows: pa.Table) -> pa.Buffer:
    content = pa.BufferOutputStream()
    size = max(1, min(rows.num_rows, _ROW_GROUP, _GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
    blooms = {"uuid": {"ndv": size}} if "uuid" in rows.column_names else None
    pq.write_table(rows, content, compression="zstd", row_group_size=size, bloom_filter_options=blooms)
    return content.getvalue()
