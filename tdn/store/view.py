"""The view: apply records and commit them with their position, or leave everything as it was.

`Batch` collects many records and commits once (`synchronous=FULL`), so that an answer implies a transaction on disk, and throughput is
not one over the disk's latency. Readers use connections of their own and see only what was committed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tdn import machine
from tdn.errors import LogDiverged
from tdn.protocol import jsontext
from tdn.rules.apply import apply, judged_at
from tdn.rules.state import LogRecord, Outcome, Write, digest_of, effects_of, next_head
from tdn.store import schema, topics
from tdn.store.facts import StoredFacts
from tdn.store.topics import EVERYTHING, Stores


@dataclass(frozen=True, slots=True)
class Position:
    seq: int
    offset: int
    head: str


class View(StoredFacts):
    """The writing side: one per process. Not for two threads at once; its owner runs it in one."""

    def __init__(self, path: Path, stores: Stores = EVERYTHING) -> None:
        self.path = path
        self._stores = stores
        with machine.explained(path):
            self._open(path, stores)

    def _open(self, path: Path, stores: Stores) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Autocommit in sqlite3's sense: transactions are ours, explicit.
        super().__init__(sqlite3.connect(path, isolation_level=None, check_same_thread=False), cached=True)
        try:
            self._make_ready(stores)
        except BaseException:
            # One that a full disk stopped halfway would hold its lock against the next try.
            self._db.close()
            raise

    def _make_ready(self, stores: Stores) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._durable = True
        # Facts are written in the order of random keys: pages that are about to be written again stay in memory, and the log of writes is
        # folded back in larger parts. Replaying a long log is bound by it otherwise.
        self._db.execute("PRAGMA cache_size=-65536")
        self._db.execute("PRAGMA wal_autocheckpoint=8000")
        schema.migrate(self._db)
        topics.bring_up_to_date(self._db, stores)
        self.position = self._read_position()
        row = self._db.execute("SELECT at FROM records WHERE seq = ?", (self.position.seq,)).fetchone()
        self._moment: str | None = row[0] if row else None

    def apply_all(self, records: Sequence[tuple[int, bytes]], *, durable: bool = True) -> list[tuple[LogRecord, Outcome]]:
        """Apply (offset, bytes) pairs in order and commit once. On any failure nothing of it happened.

        Durable means on disk when this returns, with all that was committed before. What nobody waits for need not be: after a power
        cut it is read from the log again.
        """
        decided: list[tuple[LogRecord, Outcome]] = []
        position, moment = self.position, self._moment
        try:
            if durable != self._durable:
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._db.execute("BEGIN IMMEDIATE")
            for offset, raw in records:
                if offset <= position.offset:
                    raise LogDiverged(
                        f"the log delivered offset {offset} after {position.offset}; the store and the log disagree"
                    )
                record = LogRecord(position.seq + 1, next_head(position.head, raw), raw)
                outcome = apply(self, record)
                written = next((one.value for one in outcome.writes if one.space == "network"), None)
                moment = judged_at(record, outcome, written or self.get("network", "network"), moment)
                self._write(record, offset, outcome, moment)
                position = Position(record.seq, offset, record.head)
                decided.append((record, outcome))
            self._db.execute("UPDATE position SET seq = ?, offset = ?, head = ?", (position.seq, position.offset, position.head))
            self._db.execute("COMMIT")
        except BaseException as error:
            # First of all, and whatever follows: a full disk makes SQLite end the transaction itself, and facts that were never
            # committed must not be what the next record is judged by.
            self._cache.clear()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error) and (ours := machine.explain(error, self.path)) is not None:
                raise ours from error
            raise
        self.position, self._moment = position, moment
        return decided

    def move(self, places: Sequence[tuple[int, int]]) -> None:
        """Take other offsets for records that stand elsewhere in the stream now, as (seq, offset): what they did stays as it is."""
        position = self.position
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("UPDATE records SET offset = ? WHERE seq = ?", [(offset, seq) for seq, offset in places])
            for seq, offset in places:
                if seq == position.seq:
                    position = replace(position, offset=offset)
                    self._db.execute("UPDATE position SET offset = ?", (offset,))
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.position = position

    def digest(self) -> str:
        """Digest of the canonical state: equal on every node that applied the same log."""
        rows = self._db.execute("SELECT space, key, value FROM facts ORDER BY space, key")
        return digest_of((space, key, json.loads(value)) for space, key, value in rows)

    def _read_position(self) -> Position:
        return Position(*self._db.execute("SELECT seq, offset, head FROM position").fetchone())

    def _write(self, record: LogRecord, offset: int, outcome: Outcome, moment: str | None) -> None:
        self._db.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.seq,
                offset,
                outcome.kind,
                outcome.status,
                jsontext.canonical(outcome.as_fact()).decode(),
                record.head,
                record.raw,
                moment,
                effects_of(outcome),
            ),
        )
        for write in outcome.writes:
            self._write_fact(write)
            if write.space == "topic" and write.value is not None:
                advertised = write.value["advertised"] == record.seq
                topics.write(self._db, write.key, write.value, record.raw if advertised else b"", self._stores)

    def _write_fact(self, write: Write) -> None:
        if write.space != "access":
            self._cache[write.space, write.key] = write.value
        if write.value is None:
            self._db.execute("DELETE FROM facts WHERE space = ? AND key = ?", (write.space, write.key))
        else:
            self._db.execute(
                "INSERT INTO facts VALUES (?, ?, ?) ON CONFLICT (space, key) DO UPDATE SET value = excluded.value",
                (write.space, write.key, jsontext.canonical(write.value).decode()),
            )
