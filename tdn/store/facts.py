"""The rules' State over a SQLite connection: reading only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from tdn.rules.state import Fact


class StoredFacts:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("PRAGMA busy_timeout=10000")

    def get(self, space: str, key: str) -> Fact | None:
        row = self._db.execute("SELECT value FROM facts WHERE space = ? AND key = ?", (space, key)).fetchone()
        return json.loads(row[0]) if row else None

    def scan(self, space: str, *, up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        rows = self._db.execute(
            "SELECT key, value FROM facts WHERE space = ? AND key <= ? ORDER BY key LIMIT ?", (space, up_to, limit)
        ).fetchall()
        for key, value in rows:
            yield key, json.loads(value)

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        rows = self._db.execute("SELECT key, value FROM facts WHERE space = ? ORDER BY key", (space,)).fetchall()
        for key, value in rows:
            yield key, json.loads(value)

    def close(self) -> None:
        self._db.close()
