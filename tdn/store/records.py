"""The raw records of a store: by number, by place in the stream, by bytes. Read on a connection of its own, beside whoever writes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kept:
    """One record as it was read from the log, and where it stood there."""

    seq: int
    offset: int
    raw: bytes


class Records:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA busy_timeout=10000")

    @property
    def first(self) -> int:
        """From where on the store has all records. Those before are gone, but for some that facts refer to (`kept`)."""
        return int(self._db.execute("SELECT first FROM kept").fetchone()[0])

    def earliest(self) -> Kept | None:
        """The first of all records that follow each other without a hole. A store from a snapshot has one before those: where it began."""
        row = self._db.execute(
            "SELECT seq, offset, raw FROM records WHERE seq >= (SELECT first - 1 FROM kept) ORDER BY seq LIMIT 1"
        ).fetchone()
        return Kept(row[0], row[1], bytes(row[2])) if row else None

    def after(self, seq: int, most: int) -> list[Kept]:
        """The records that follow a number, as many as there are, without a hole."""
        rows = self._db.execute("SELECT seq, offset, raw FROM records WHERE seq > ? ORDER BY seq LIMIT ?", (seq, most))
        found = [Kept(number, offset, bytes(raw)) for number, offset, raw in rows]
        return [one for place, one in enumerate(found, seq + 1) if one.seq == place]

    def last_up_to(self, offset: int) -> Kept | None:
        """The last record that was read at an offset or before it."""
        # From the end backwards: it is the very last one unless the log was cut.
        row = self._db.execute(
            "SELECT seq, offset, raw FROM records WHERE offset <= ? AND seq >= (SELECT first - 1 FROM kept) ORDER BY seq DESC LIMIT 1",
            (offset,),
        ).fetchone()
        return Kept(row[0], row[1], bytes(row[2])) if row else None

    def number_of(self, raw: bytes) -> int | None:
        """The first record with these bytes. Looks at all of them; only a log that was made anew asks for it."""
        row = self._db.execute("SELECT min(seq) FROM records WHERE raw = ? AND seq >= (SELECT first - 1 FROM kept)", (raw,)).fetchone()
        return None if row[0] is None else int(row[0])

    def head(self, seq: int) -> str | None:
        """The rolling hash up to and with a record."""
        row = self._db.execute("SELECT head FROM records WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        self._db.close()
