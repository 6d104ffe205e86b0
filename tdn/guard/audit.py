"""The audit log: what this guard decided, for whom and why, in a SQLite file that an operator reads while the guard writes.

Noting costs the broker's question about a microsecond; what was noted reaches the file at the next flush and then survives a killed guard
(not a power cut: nothing waits for the disk). The size is bounded, and no one login can fill it:

- Equal denials between two flushes are one row with a count. A login that is denied many different things is told apart up to a rate;
  beyond that its denials are only counted.
- The same thing allowed again is counted, and the count written once a minute: a busy publisher's channel asks for every message.
- Above `keep_rows` the oldest rows go, of denied or allowed whichever are more. So neither kind can push out the other.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tdn.errors import UsageError
from tdn.protocol.rates import Rate

logger = logging.getLogger(__name__)

#: Name of the file in a guard's folder.
AUDIT_FILE = "audit.sqlite"

#: Longest text of a stranger's that is kept. Long enough for any name of ours.
MAX_CHARACTERS = 300
#: Grants are ours, and a chain of them must stay whole.
MAX_GRANT_CHARACTERS = 4_000

#: Different denials of one login that are told apart: at once, and steadily. The second is 86,400 rows a day for each certificate.
DENIALS_BURST = 1_000
DENIALS_PER_SECOND = 1.0
#: Stands for the resource of what was counted and not told apart.
OTHERS = "…"
TOO_MANY = "more in a short time than are told apart"

#: How often the counts of what repeats are written.
REPEATS_SECONDS = 60.0
#: Rows that wait for a flush, and allowed things that are recognised as repeats. Bound memory.
_MOST_WAITING = 20_000
_MOST_TOLD = 50_000
#: Rows pruned at a flush beyond those that it wrote: some two milliseconds, and a shortened log still shrinks.
_PRUNED_AT_ONCE = 500
#: Rows read in one transaction. A long one would keep SQLite from folding back what the guard writes meanwhile.
_READ_AT_ONCE = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_VERSION = 1
_UNUSABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Both indexes grow at their ends only. Indexes by entity and by topic made a flush of 1,000 rows take 25 ms instead of 5, in the thread that
# answers the broker; a search without them looks through a million rows in 0.3 s, in a process of its own.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL, -- microseconds since 1970
    login TEXT NOT NULL,
    entity TEXT,
    action TEXT NOT NULL,
    resource TEXT NOT NULL,
    topic TEXT,
    allowed INTEGER NOT NULL,
    because TEXT NOT NULL,
    granted TEXT,
    count INTEGER NOT NULL
);
CREATE INDEX by_time ON entries (at);
CREATE INDEX by_verdict ON entries (allowed, at);
PRAGMA user_version = {_VERSION};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision. What it rests on, `grant`, is the ids of grants, separated by commas, or `owner`."""

    at: datetime
    login: str
    #: The id, when the login is a name of ours.
    entity: str | None
    action: str
    resource: str
    topic: str | None
    allowed: bool
    because: str
    grant: str | None = None
    count: int = 1


_Key = tuple[str, str, str, str, str | None, bool]
#: The columns after the id, in their order; the count is last and grows.
_Row = list[Any]


class Audit:
    """The writing side: one per guard, used by one thread."""

    _db: sqlite3.Connection
    #: Rows in the file: allowed ones, and denied ones.
    _rows: dict[bool, int]

    def __init__(self, path: Path, *, keep_rows: int = 1_000_000, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._keep_rows = keep_rows
        self._clock = clock
        self._denials = Rate(burst=DENIALS_BURST, per_second=DENIALS_PER_SECOND, clock=clock)
        self._fresh: dict[_Key, _Row] = {}
        self._repeated: dict[_Key, _Row] = {}
        self._told: set[_Key] = set()
        self._repeats_since = clock()
        self._failing = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def note(self, entry: Entry) -> None:
        """Keep an entry for the next flush. Writes nothing."""
        login, action = _kept(entry.login), _kept(entry.action)
        resource, because = _kept(entry.resource), _kept(entry.because)
        key = (login, action, resource, because, entry.grant, entry.allowed)
        if entry.allowed and key in self._told:
            rows = self._repeated
        elif key in self._fresh:
            rows = self._fresh
        elif len(self._fresh) < _MOST_WAITING and (entry.allowed or self._denials.take(_proven(entry, login))):
            rows = self._fresh
            if entry.allowed:
                self._told.add(key)
        else:
            self._count_among_others(entry, action)
            return
        if (row := rows.get(key)) is not None:
            row[-1] += entry.count
            return
        entity, topic = entry.entity and _kept(entry.entity), entry.topic and _kept(entry.topic)
        grant = entry.grant and _kept(entry.grant, MAX_GRANT_CHARACTERS)
        rows[key] = [_stamp(entry.at), login, entity, action, resource, topic, entry.allowed, because, grant, entry.count]

    def _count_among_others(self, entry: Entry, action: str) -> None:
        login = _proven(entry, _kept(entry.login))
        key = (login, action, OTHERS, TOO_MANY, None, entry.allowed)
        if (row := self._repeated.get(key)) is not None:
            row[-1] += entry.count
        else:
            entity = entry.entity and _kept(entry.entity) if login else None
            at = _stamp(entry.at)
            self._repeated[key] = [at, login, entity, action, OTHERS, None, entry.allowed, TOO_MANY, None, entry.count]

    @property
    def waiting(self) -> int:
        """Rows that are not in the file yet."""
        return len(self._fresh) + len(self._repeated)

    def flush(self) -> None:
        """Write what has gathered, in one transaction. Failing, keep it for the next time, within bounds: the guard goes on deciding."""
        self._flush(counts=self._clock() - self._repeats_since >= REPEATS_SECONDS or len(self._told) > _MOST_TOLD)

    def close(self) -> None:
        """Write everything, the counts of what repeats too."""
        self._flush(counts=True)
        self._db.close()

    def _flush(self, *, counts: bool) -> None:
        rows = [*self._fresh.values(), *(self._repeated.values() if counts else ())]
        if rows or sum(self._rows.values()) > self._keep_rows:
            try:
                self._write(rows)
            except sqlite3.Error as error:
                self._fail(error)
                return
        self._failing = False
        self._fresh.clear()
        if counts:
            self._repeated.clear()
            self._told.clear()
            self._repeats_since = self._clock()

    def _write(self, rows: list[_Row]) -> None:
        kept = dict(self._rows)
        for row in rows:
            kept[row[6]] += 1
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT INTO entries VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            portion = min(sum(kept.values()) - self._keep_rows, len(rows) + _PRUNED_AT_ONCE)
            if portion > 0:
                more = kept[True] > kept[False]
                pruned = self._db.execute(
                    "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE allowed = ? ORDER BY at LIMIT ?)",
                    (more, portion),
                )
                kept[more] -= pruned.rowcount
            self._db.execute("COMMIT")
        except BaseException:
            # A full disk makes SQLite end the transaction itself.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._rows = kept

    def _fail(self, error: sqlite3.Error) -> None:
        if not self._failing:
            logger.error("the audit log %s cannot be written: %s", self.path, error)
        self._failing = True
        if _is_unusable(error):
            self._db.close()
            # If that fails too, the next flush finds a closed database, and the operator the line above.
            with suppress(sqlite3.Error, OSError):
                self._begin_anew(error)

    def _open(self) -> None:
        try:
            self._db, self._rows = _opened(self.path)
        except sqlite3.Error as error:
            if not _is_unusable(error):
                raise
            self._begin_anew(error)

    def _begin_anew(self, error: sqlite3.Error) -> None:
        """After a power cut, for one. The guard is needed more than its past."""
        aside = self.path.with_name(f"{self.path.name}.unusable-{time.time_ns()}")
        logger.error("the audit log %s is unusable (%s); it is kept as %s, and a new one begins", self.path, error, aside.name)
        self.path.rename(aside)
        for ending in ("-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        self._db, self._rows = _opened(self.path)


def search(
    path: Path,
    *,
    entity: str | None = None,
    topic: str | None = None,
    since: datetime | None = None,
    denied_only: bool = False,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """The entries that fit, in time order; with a limit the latest. `at` is a datetime; a guard may write meanwhile.

    No file means no entries. Entries that come after the search has begun are not in it.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)) as db:
            db.row_factory = sqlite3.Row
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise UsageError(f"{path} was written by a newer build")
            if version == _VERSION:
                yield from _found(db, *_condition(entity, topic, since, denied_only), limit)
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _condition(entity: str | None, topic: str | None, since: datetime | None, denied_only: bool) -> tuple[str, list[Any]]:
    parts: list[tuple[str, Any]] = []
    if entity is not None:
        parts.append(("entity = ?", entity))
    if topic is not None:
        parts.append(("topic = ?", topic))
    if since is not None:
        parts.append(("at >= ?", _stamp(since)))
    if denied_only:
        parts.append(("allowed = ?", 0))
    return " AND ".join(text for text, _ in parts) or "true", [value for _, value in parts]


def _found(db: sqlite3.Connection, condition: str, values: list[Any], limit: int | None) -> Iterator[dict[str, Any]]:
    if limit is not None:
        latest = f"SELECT * FROM entries WHERE {condition} ORDER BY at DESC, id DESC LIMIT ?"  # noqa: S608  # values are parameters
        yield from map(_as_object, reversed(db.execute(latest, [*values, limit]).fetchall()))
        return
    last = db.execute("SELECT coalesce(max(id), 0) FROM entries").fetchone()[0]
    place = (-(2**63), 0)
    page = f"SELECT * FROM entries WHERE {condition} AND id <= ? AND (at, id) > (?, ?) ORDER BY at, id LIMIT ?"  # noqa: S608  # values are parameters
    while rows := db.execute(page, [*values, last, *place, _READ_AT_ONCE]).fetchall():
        yield from map(_as_object, rows)
        place = (rows[-1]["at"], rows[-1]["id"])


def _as_object(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "at": _EPOCH + row["at"] * _MICROSECOND,
        "entity": row["entity"],
        "login": row["login"],
        "action": row["action"],
        "resource": row["resource"],
        "topic": row["topic"],
        "allowed": bool(row["allowed"]),
        "because": row["because"],
        "grant": row["granted"],
        "count": row["count"],
    }


def _opened(path: Path) -> tuple[sqlite3.Connection, dict[bool, int]]:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=OFF")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise UsageError(f"{path} was written by a newer build; move it away to go on with this one")
        if version == 0:
            db.executescript(_SCHEMA)
        counted = db.execute("SELECT allowed, count(*) FROM entries GROUP BY allowed").fetchall()
        # From here on the broker waits meanwhile. What cannot be written now is written at the next flush.
        db.execute("PRAGMA busy_timeout=50")
        return db, {True: 0, False: 0} | {bool(allowed): count for allowed, count in counted}
    except BaseException:
        db.close()
        raise


def _is_unusable(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNUSABLE


def _proven(entry: Entry, login: str) -> str:
    """Whose denials are counted together. Before the login is accepted the name is anybody's claim, so those are all one."""
    return login if entry.entity is not None and entry.action != "login" else ""


def _kept(text: str, most: int = MAX_CHARACTERS) -> str:
    """Text of a stranger's, bounded, and safe for a terminal whoever reads the file: what does not print is a dot."""
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    return text if text.isprintable() else "".join(character if character.isprintable() else "·" for character in text)


def _stamp(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
