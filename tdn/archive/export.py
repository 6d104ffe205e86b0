"""From a node's store to an archive: what the log has and the archive has not, in segments. Interrupted, repeated or run twice at once, it adds each
record once."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tdn.archive import manifest, segments
from tdn.archive.manifest import Archive, Entry
from tdn.archive.segments import ArchivedRecord
from tdn.errors import LogDiverged, TrustError, UsageError
from tdn.rules.state import EMPTY_HEAD
from tdn.trust.certificates import TrustRoots
from tdn.trust.credentials import Credentials

#: What a killed export left unfinished is removed after so long: somebody else may be writing it.
_LEFT_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What one run added, and how far the archive goes."""

    segments: int
    records: int
    last: int
    head: str


def export(
    store: Path,
    archive: Archive,
    node: Credentials,
    roots: TrustRoots,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    progress: Callable[[int, int], None] = lambda done, last: None,
) -> Exported:
    """Add what the store has and the archive has not, up to where the store is now. The node signs what it adds.

    The store may be written meanwhile. `progress` is told the last record that is in the archive, and the last that will be.
    """
    archive.prepare()
    _tidy(archive)
    added = records = 0
    with closing(_Store(store)) as source:
        entries = archive.entries(roots)
        end = source.last
        while True:
            at = _reached(entries, source)
            progress(at, max(at, end))
            if at >= end:
                return Exported(added, records, at, entries[-1].head if entries else EMPTY_HEAD)
            portion = list(source.portion(at + 1, end))
            before = entries[-1].head if entries else EMPTY_HEAD
            if add_segment(archive, portion, node, clock(), network=source.network, rules=source.rules, before=before):
                added, records = added + 1, records + len(portion)
            # Another export may have added this or more: whoever was first has it, and both go on from there.
            entries = archive.entries(roots, entries)


def _reached(entries: list[Entry], source: _Store) -> int:
    """The last record that an archive has, if the store is of the same log."""
    if not entries:
        if source.first > 1:
            raise UsageError(
                f"this store has all records from {source.first} on only, and an archive begins with the first: export into a copy of the archive "
                "that has those before"
            )
        return 0
    last = entries[-1]
    if last.network != source.network:
        raise TrustError(f"the archive in that folder is of network {last.network[:12]}…, the store of {source.network[:12]}…")
    if last.last + 1 < source.first:
        raise UsageError(
            f"the archive ends at record {last.last}, and this store has all records from {source.first} on only: export from a node that has those "
            "between, or go on with an archive that reaches further"
        )
    if last.last <= source.last and source.head(last.last) != last.head:
        raise LogDiverged(f"the archive holds another record {last.last} than the store; compare the nodes before going on")
    return last.last


def add_segment(
    archive: Archive, records: Sequence[ArchivedRecord], node: Credentials, now: datetime, *, network: str, rules: int, before: str
) -> bool:
    """Write records as a segment and add it with an entry that the node signs; False when somebody else was first."""
    first, last = records[0], records[-1]
    unfinished = archive.unfinished()
    try:
        segments.write(unfinished, records)
        sha256 = segments.digest_of(unfinished)
        entry = manifest.sign(
            node,
            now,
            network=network,
            rules=rules,
            first=first.seq,
            last=last.seq,
            offsets=(first.offset, last.offset),
            before=before,
            head=last.head,
            sha256=sha256,
            size=unfinished.stat().st_size,
        )
        return archive.add(unfinished, entry, first.seq, manifest.segment_name(first.seq, last.seq, sha256))
    finally:
        unfinished.unlink(missing_ok=True)


def _tidy(archive: Archive) -> None:
    for path in archive.segments.glob(".unfinished-*"):
        # Another export may remove it first.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _LEFT_SECONDS:
                path.unlink()


class _Store:
    """The records of a node's store, read beside whoever writes it."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(f"there is no store {path}; an archive is exported where a node runs, or ran")
        try:
            self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
            self._db.execute("PRAGMA busy_timeout=10000")
            if not any(row[1] == "effects" for row in self._db.execute("PRAGMA table_info(records)")):
                raise UsageError(_OLD)
            network = self._db.execute(
                "SELECT json_extract(value, '$.id'), json_extract(value, '$.rules') FROM facts WHERE space = 'network'"
            ).fetchone()
            if network is None:
                raise UsageError(f"the store {path} is empty: its node has not read the log's beginning yet")
            self.network, self.rules = str(network[0]), int(network[1])
            self.last = int(self._db.execute("SELECT seq FROM position").fetchone()[0])
            #: From where on it has all records.
            self.first = int(self._db.execute("SELECT first FROM kept").fetchone()[0])
        except sqlite3.Error as error:
            raise UsageError(f"the store {path} cannot be read: {error}") from error

    def close(self) -> None:
        self._db.close()

    def head(self, seq: int) -> str:
        return str(self._db.execute("SELECT head FROM records WHERE seq = ?", (seq,)).fetchone()[0])

    def portion(self, first: int, last: int) -> Iterator[ArchivedRecord]:
        """Records from one on, as many as a segment holds."""
        rows = self._db.execute(
            f"SELECT {segments.COLUMNS} FROM records WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?",  # noqa: S608  # a constant
            (first, last, segments.MOST_RECORDS),
        )
        size, before = 0, None
        for expected, row in enumerate(rows, start=first):
            record = ArchivedRecord.from_row(row)
            if record.effects is None:
                raise UsageError(_OLD)
            if record.seq != expected:
                raise LogDiverged(f"the store has no record {expected}; export from another node")
            if before is not None and record.offset <= before:
                # A log that was put back after the broker had lost it has other offsets, which a node takes over bit by bit. Within a segment they rise.
                return
            before = record.offset
            size += len(record.raw) + len(record.effects)
            if record.seq > first and size > segments.MOST_BYTES:
                return
            yield record


_OLD = (
    "the store holds records from before archives, without what they did; stop that node, remove its store.sqlite, and start it: it "
    "reads the log again"
)
