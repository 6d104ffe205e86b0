"""Which login was allowed to publish to which topic. The broker remembers an allowed publish on an open channel and asks no more, so a
revocation must know whose connections to end, also after this guard was killed and started again.

Nothing waits for the disk, so a machine that went down may have lost the last entries: `complete` then says so.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

#: Name of the file in a guard's folder.
MEMORY_FILE = "memory.sqlite"

#: Changes at every start of the machine. Where there is none, every start may be one.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNUSABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS allowed (
    login TEXT NOT NULL,
    topic TEXT NOT NULL,
    chain TEXT NOT NULL, -- what it rested on when first allowed, separated by commas: for a person who looks
    PRIMARY KEY (login, topic)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);
COMMIT;
"""


class Remembered:
    """One per guard, used by one thread. What cannot be written is not remembered and raises: the publish must then be denied.

    A login may connect anew while its old connections are being closed. So: `moment = mark()`, close, `forget(login, until=moment)`;
    what was allowed after the mark stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Whether everything that was ever remembered and not forgotten is here. If not (a new file, or the machine was started anew),
        #: any open connection may hold any right: close them all, then say `completed()`.
        self.complete = False
        #: The mark at which a pair was last allowed. Dictionaries of dictionaries: they take less memory than sets.
        self._topics: dict[str, dict[str, int]] = {}
        self._logins: dict[str, dict[str, None]] = {}
        self._mark = 1
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _UNUSABLE:
                raise
            aside = path.with_name(f"{path.name}.unusable-{time.time_ns()}")
            logger.error("the guard's memory %s is unusable (%s); it is kept as %s", path, error, aside.name)
            path.rename(aside)
            for ending in ("-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
            self._open()

    def remember(self, login: str, topic: str, chain: Sequence[str] = ()) -> None:
        """Survives a killed guard once this returns. Only the first time for a pair costs a write."""
        topics = self._topics.get(login)
        if topics is None or topic not in topics:
            self._db.execute("INSERT OR REPLACE INTO allowed VALUES (?, ?, ?)", (login, topic, ",".join(chain)))
            self._index(login, topic, self._mark)
        else:
            topics[topic] = self._mark

    def mark(self) -> int:
        """A moment: what is allowed from now on is later than it."""
        self._mark += 1
        return self._mark - 1

    def publishers(self, topic: str) -> list[str]:
        return list(self._logins.get(topic, ()))

    def topics_of(self, login: str) -> list[str]:
        return list(self._topics.get(login, ()))

    def logins(self) -> list[str]:
        return list(self._topics)

    def all_topics(self) -> list[str]:
        return list(self._logins)

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def forget(self, login: str, *, until: int | None = None) -> None:
        """Its connections were closed: all of them, or those of the time up to a mark."""
        until = self._mark if until is None else until
        self._forget(login, [topic for topic, allowed in self._topics.get(login, {}).items() if allowed <= until])

    def forget_topic(self, login: str, topic: str, *, until: int | None = None) -> None:
        until = self._mark if until is None else until
        if self._topics.get(login, {}).get(topic, until + 1) <= until:
            self._forget(login, [topic])

    def completed(self) -> None:
        """Every connection that was open at the start has been closed: what is remembered is now all there is."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM boot")
        self._db.execute("INSERT INTO boot SELECT ?1 WHERE ?1 IS NOT NULL", (_boot_id(),))
        self._db.execute("COMMIT")
        self.complete = True

    def close(self) -> None:
        self._db.close()

    def _forget(self, login: str, topics: list[str]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("DELETE FROM allowed WHERE login = ? AND topic = ?", [(login, topic) for topic in topics])
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        for topic in topics:
            _drop(self._topics, login, topic)
            _drop(self._logins, topic, login)

    def _open(self) -> None:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")
            db.executescript(_SCHEMA)
            self._load(db)
            # From here on the broker waits meanwhile.
            db.execute("PRAGMA busy_timeout=1000")
        except BaseException:
            db.close()
            raise
        self._db = db

    def _load(self, db: sqlite3.Connection) -> None:
        self._topics, self._logins = {}, {}
        for login, topic in db.execute("SELECT login, topic FROM allowed"):
            self._index(login, topic, 0)
        self.complete = db.execute("SELECT id FROM boot").fetchall() == [(_boot_id(),)]

    def _index(self, login: str, topic: str, mark: int) -> None:
        # One string for each name, however often it occurs.
        login, topic = sys.intern(login), sys.intern(topic)
        self._topics.setdefault(login, {})[topic] = mark
        self._logins.setdefault(topic, {})[login] = None


def _boot_id() -> str | None:
    return _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else None


def _drop(index: dict[str, dict[str, int]] | dict[str, dict[str, None]], outer: str, inner: str) -> None:
    below = index[outer]
    del below[inner]
    if not below:
        del index[outer]
