"""T22: what is written beside a store is folded back into it also when searches read from it without a pause, and never under somebody who reads."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tdn.node import folding
from tdn.node.folding import Folding

MOST = 100_000


class Searches:
    """Workers, each of which begins its next search before the other has ended its own, until they are held."""

    def __init__(self, store: Path) -> None:
        self._workers = [sqlite3.connect(f"file:{store}?mode=ro", uri=True, isolation_level=None) for _ in range(2)]
        self._reading: list[sqlite3.Cursor | None] = [None, None]
        self._turn = 0

    def go_on(self) -> None:
        self._turn = 1 - self._turn
        cursor = self._workers[self._turn].execute("SELECT x FROM t ORDER BY id")
        cursor.fetchone()
        before, self._reading[self._turn] = self._reading[self._turn], cursor
        if before is not None:
            before.close()

    def end(self) -> None:
        self._reading = [None, None]

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        self.end()
        yield
        self.go_on()

    def close(self) -> None:
        self.end()
        for worker in self._workers:
            worker.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def writer(store: Path) -> Iterator[sqlite3.Connection]:
    """Who folds back after 20 pages, where it can."""
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA wal_autocheckpoint=20")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x BLOB)")
        db.execute("INSERT INTO t VALUES (0, zeroblob(1000))")
        yield db


@pytest.fixture
def searches(store: Path, writer: sqlite3.Connection) -> Iterator[Searches]:
    with contextlib.closing(Searches(store)) as searches:
        yield searches


def beside(store: Path) -> int:
    return Path(f"{store}-wal").stat().st_size


def write(writer: sqlite3.Connection, searches: Searches, rows: int) -> None:
    for _ in range(rows):
        searches.go_on()
        writer.execute("INSERT INTO t (x) VALUES (zeroblob(1000))")


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_PAUSE_SECONDS", 0.001)


async def test_searches_without_a_pause(store: Path, writer: sqlite3.Connection, searches: Searches) -> None:
    one = Folding(store, searches, MOST)
    for rows in (200, 400):
        write(writer, searches, rows)
        assert beside(store) > 4 * MOST
        assert await one.fold_if_large()
        assert beside(store) == 0
    assert writer.execute("SELECT count(*) FROM t").fetchone() == (601,)


async def test_somebody_else_reads(store: Path, writer: sqlite3.Connection, searches: Searches) -> None:
    """A checkpoint of the state, say: what it reads from stays until it has ended. Searches go on."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM t").fetchone() == (1,)
        write(writer, searches, 200)
        size = beside(store)
        assert not await Folding(store, searches, MOST).fold_if_large()
        assert beside(store) == size
        assert other.execute("SELECT count(*) FROM t").fetchone() == (1,)
    write(writer, searches, 1)
    assert await Folding(store, searches, MOST).fold_if_large()
    assert beside(store) == 0


async def test_a_small_one_holds_nobody_up(store: Path, writer: sqlite3.Connection, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "held", lambda: pytest.fail("searches were held"))
    write(writer, searches, 10)
    assert await Folding(store, searches, MOST).fold_if_large()
    assert beside(store) > 0
