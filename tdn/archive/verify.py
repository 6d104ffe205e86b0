"""Whether an archive is what it says: every entry, every file, every record's place, and, by judging all of it again, every signature and every effect."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tdn.archive import segments
from tdn.archive.manifest import Archive, Entry, require_rules
from tdn.archive.segments import ArchivedRecord
from tdn.errors import TrustError
from tdn.rules.state import EMPTY_HEAD, next_head
from tdn.store.topics import NOTHING
from tdn.store.view import View
from tdn.trust.certificates import TrustRoots, decode_chain

#: Records judged in one transaction.
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Verified:
    """An archive that was found sound."""

    network: str
    segments: int
    records: int
    head: str
    #: Whether all was judged again, or only entries, files and the chain of hashes looked at.
    judged: bool


def verify(
    archive: Archive, roots: TrustRoots, *, judge: bool = True, progress: Callable[[int, int], None] = lambda done, last: None
) -> Verified:
    """The archive, if nothing is wrong with it; else TrustError that says what and where.

    Judging applies every record as a node would, from the first on: it verifies the signatures of nodes, requesters and advertisements, and
    demands the same outcomes and effects. It takes a millisecond a record or so.
    """
    entries = archive.require_entries(roots)
    last = entries[-1].last
    with tempfile.TemporaryDirectory(prefix="tdn-verify-") as folder, closing(View(Path(folder) / "view.sqlite", NOTHING)) as view:
        head = EMPTY_HEAD
        for entry in entries:
            records: list[ArchivedRecord] = []
            for record in segments.read(archive.require_file(entry)):
                expected = entry.first + len(records)
                head = next_head(head, record.raw)
                if record.seq != expected or record.head != head:
                    raise TrustError(f"segment {entry.file}: record {expected} is not the one that the log has there")
                if records and record.offset <= records[-1].offset:
                    raise TrustError(
                        f"segment {entry.file}: record {expected} has offset {record.offset} in the broker's stream, and the one before it {records[-1].offset}"
                    )
                records.append(record)
            if len(records) != entry.last - entry.first + 1 or head != entry.head:
                raise TrustError(f"segment {entry.file} does not hold records {entry.first} to {entry.last}")
            if (records[0].offset, records[-1].offset) != entry.offsets:
                raise TrustError(f"segment {entry.file} does not begin and end at the offsets that its entry names")
            if judge:
                require_rules(entry)
                _judge(view, records, entry, lambda done: progress(done, last))
            progress(entry.last, last)
        if judge:
            _require_roots(view, roots, entries[0])
    return Verified(entries[0].network, len(entries), last, head, judge)


def _judge(view: View, records: list[ArchivedRecord], entry: Entry, progress: Callable[[int], None]) -> None:
    for start in range(0, len(records), _BATCH):
        batch = records[start : start + _BATCH]
        # Numbered anew: offsets begin again where the log was put back after the broker had lost it.
        view.apply_all([(one.seq, one.raw) for one in batch], durable=False)
        with closing(sqlite3.connect(view.path)) as db:
            rows = db.execute(f"SELECT {segments.COLUMNS} FROM records WHERE seq >= ? ORDER BY seq", (batch[0].seq,)).fetchall()  # noqa: S608  # a constant
        for found, archived in zip(rows, batch, strict=True):
            if replace(ArchivedRecord.from_row(found), offset=archived.offset) != archived:
                raise TrustError(
                    f"segment {entry.file}: record {archived.seq} is archived as {archived.kind} {archived.status}, and is judged otherwise or has other effects"
                )
        progress(batch[-1].seq)


def _require_roots(view: View, roots: TrustRoots, entry: Entry) -> None:
    """The log brings its own roots. They must be those of whoever verifies."""
    network = view.get("network", "network")
    if network is None or network["id"] != entry.network:
        raise TrustError("the archive's records do not begin the network that its manifest names")
    if not set(decode_chain(network["roots"])) <= set(roots.ders):
        raise TrustError("the archive's log trusts other roots than those given")
