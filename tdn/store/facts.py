"""The rules' State over a SQLite connection: reading only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator

from tdn.rules.state import Fact, Write

#: Facts kept in memory. The hot ones (network, principals, certificates) are read for every message and record.
_CACHED_FACTS = 20_000


class StoredFacts:
    """Facts by way of a small cache, which whoever learns of writes must keep true (`learn`), or do without (`cached=False`)."""

    def __init__(self, db: sqlite3.Connection, *, cached: bool) -> None:
        self._db = db
        self._cached = cached
        self._cache: dict[tuple[str, str], Fact | None] = {}
        db.execute("PRAGMA busy_timeout=10000")

    def get(self, space: str, key: str) -> Fact | None:
        if (space, key) in self._cache:
            return self._cache[space, key]
        row = self._db.execute("SELECT value FROM facts WHERE space = ? AND key = ?", (space, key)).fetchone()
        fact: Fact | None = json.loads(row[0]) if row else None
        if self._cached and space != "access":
            # Lists may be long; who reads them remembers them by their digest.
            if len(self._cache) >= _CACHED_FACTS:
                self._cache.clear()
            self._cache[space, key] = fact
        return fact

    def learn(self, writes: Iterable[Write]) -> None:
        """Take note of facts that were written by another connection and committed."""
        for write in writes:
            if (write.space, write.key) in self._cache:
                self._cache[write.space, write.key] = write.value

    def scan(self, space: str, *, after: str = "", up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        rows = self._db.execute(
            "SELECT key, value FROM facts WHERE space = ? AND key > ? AND key <= ? ORDER BY key LIMIT ?",
            (space, after, up_to, limit),
        ).fetchall()
        for key, value in rows:
            yield key, json.loads(value)

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        rows = self._db.execute("SELECT key, value FROM facts WHERE space = ? ORDER BY key", (space,)).fetchall()
        for key, value in rows:
            yield key, json.loads(value)

    def close(self) -> None:
        self._db.close()
