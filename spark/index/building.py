"""Building an index: segments in, one verified pass, tables out; batch by batch, so that a long archive is not lost with the last of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from spark.index.store import Commit, Index, batch_name, commit_of
from spark.index.tasks import (
    BROUGHT,
    DONE,
    Batches,
    Portion,
    Segment,
    Work,
    bringing_certificates,
    following_certificates,
    verifying,
)
from spark.places import Place
from spark.tables import CERTIFICATES
from tdn.archive.manifest import MANIFEST, SEGMENTS, Entry, read_chain, require_rules
from tdn.errors import Absent, TrustError, UsageError
from tdn.protocol.times import format_time
from tdn.trust.certificates import TrustRoots

#: Segments in one batch: four million records at most.
MOST_SEGMENTS = 256
#: Segments of one task, at most: their rows are in a task's memory together, half a gigabyte of them. Of fewer segments there are as many tasks as this.
_TASK_SEGMENTS = 4
_TASKS = 16
#: Certificates are found and followed by fewer tasks: what there is to do takes less time than many tasks do (of a batch of 270,000 records 2.7 s instead of 4.2).
_PORTIONS_OF_CERTIFICATES = 4
_FEWEST = 4


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
    index.require_ours()
    with index.alone():
        commits = index.commits()
        index.require_roots(commits, roots)
        # What was verified by certificates that are gone would be rejected now.
        index.require_whole(commits)
        index.tidy(commits)
        entries = entries_of(archive, roots)
        new = _after(commits, entries, index)
        for entry in new:
            require_rules(entry)
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


def entries_of(archive: Place, roots: TrustRoots) -> list[Entry]:
    """What an archive says that it holds, verified; Absent where there is none."""
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
    _require_files(archive, entries)
    work = Work(archive.text, index.place.text, batch_name(first, last), roots.ders, entries[0].network, _portions(entries))
    progress(f"records {first} to {last}: certificates")
    few = max(_FEWEST, len(work.portions) // _PORTIONS_OF_CERTIFICATES)
    brought = _tasks(spark, work, bringing_certificates(work), BROUGHT, few).repartition(few, "seq")
    done = _done(brought.mapInArrow(following_certificates(work), _columns(DONE)))
    known = [commit.batch for commit in commits if commit.rows[CERTIFICATES.name]]
    work = replace(work, certificates=tuple(f"batch={batch}" for batch in (*known, work.batch)))
    progress(f"records {first} to {last}: signatures")
    done += _done(_tasks(spark, work, verifying(work), DONE))
    rows: dict[str, int] = {}
    files: dict[str, int] = {}
    for row in done:
        rows[row["table"]] = rows.get(row["table"], 0) + row["rows"]
        files[row["table"]] = files.get(row["table"], 0) + row["files"]
    written = index.written(work.batch)
    if files != {table: len(found) for table, found in written.items()}:
        raise UsageError(f"{index.place} does not hold what tasks wrote there: it has to be the same folder for this machine and for every executor")
    commit = commit_of(entries, roots, rows, _until([row["until"] for row in done]), written)
    index.commit(commit)
    return commit


def _require_files(archive: Place, entries: Sequence[Entry]) -> None:
    missing = sorted({entry.file for entry in entries} - set(archive.list(SEGMENTS)))
    if missing:
        raise TrustError(f"segment {missing[0]} is missing from {archive}")


def _portions(entries: Sequence[Entry]) -> tuple[Portion, ...]:
    """Segments that follow each other, for one task each."""
    size = max(1, min(_TASK_SEGMENTS, len(entries) // _TASKS))
    shares = (entries[start : start + size] for start in range(0, len(entries), size))
    return tuple(
        Portion(share[0].first, tuple(Segment(entry.file, entry.sha256, entry.first, entry.last) for entry in share)) for share in shares
    )


def _tasks(spark: Any, work: Work, tasks: Callable[[Batches], Batches], schema: pa.Schema, at_most: int | None = None) -> Any:
    """A task for each portion, or so many for all, and what they say."""
    count = len(work.portions)
    return spark.range(0, count, 1, min(count, at_most or count)).mapInArrow(tasks, _columns(schema))


def _done(frame: Any) -> list[Any]:
    """What all tasks say, if nothing is wrong with any segment."""
    done: list[Any] = frame.collect()
    problems = sorted(row["problem"] for row in done if row["problem"] is not None)
    if problems:
        raise TrustError(problems[0])
    return done


def _columns(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _until(moments: Sequence[datetime | None]) -> str:
    latest = max((moment for moment in moments if moment is not None), default=None)
    # Spark gives times of the session's zone, UTC, without saying so.
    return format_time(latest.replace(tzinfo=UTC)) if latest is not None else ""
