"""Reading a view while it is written: facts, single topics, and discovery in the order (created, uuid).

Each reader has a connection of its own and sees what was committed. Ended means ended by log time or by the reader's clock.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tdn.protocol.times import format_time, whole_seconds
from tdn.queries.string import StringQuery
from tdn.store.facts import StoredFacts
from tdn.store.view import Position


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A live topic as the store holds it. The advertisement was verified when it was applied."""

    uuid: str
    created: str
    expires: str
    owner: str
    #: Sequence of the record that changed it last, and of the one that advertised it.
    seq: int
    advertised: int
    advertisement: str

    @property
    def changed(self) -> bool:
        """Whether its state is no longer what its advertisement says (T39)."""
        return self.seq != self.advertised


@dataclass(frozen=True, slots=True)
class Page:
    topics: tuple[FoundTopic, ...]
    #: Where the next page starts, when there is one.
    after: tuple[str, str] | None


_COLUMNS = "uuid, created, expires, owner, seq, advertised, advertisement"


class Reader(StoredFacts):
    """Read-only questions about a view, from one thread at a time. Cached only for a holder that tells it of every write."""

    def __init__(self, path: Path, *, cached: bool = False) -> None:
        super().__init__(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False), cached=cached
        )

    def position(self) -> Position:
        return Position(*self._db.execute("SELECT seq, offset, head FROM position").fetchone())

    def count_live(self, now: datetime) -> int:
        row = self._db.execute("SELECT count(*) FROM topics WHERE live = 1 AND expires > ?", (_text(now),)).fetchone()
        return int(row[0])

    def topic(self, uuid: str, now: datetime) -> FoundTopic | None:
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM topics WHERE uuid = ? AND live = 1 AND expires > ?", (uuid, _text(now))
        ).fetchone()
        return FoundTopic(*row) if row else None

    def discover(self, query: StringQuery | None, *, after: tuple[str, str], limit: int, now: datetime) -> Page:
        """Live topics that match, after a place in the order; one more than `limit` is looked for, to know whether there are more."""
        found: list[FoundTopic] = []
        rows = self._db.execute(
            f"SELECT folded, {_COLUMNS} FROM topics WHERE live = 1 AND expires > ? AND (created, uuid) > (?, ?) ORDER BY created, uuid",
            (_text(now), *after),
        )
        for folded, *columns in rows:
            if query is not None and not query.matches(folded):
                continue
            if len(found) == limit:
                return Page(tuple(found), (found[-1].created, found[-1].uuid))
            found.append(FoundTopic(*columns))
        return Page(tuple(found), None)


def _text(now: datetime) -> str:
    """The moment as stored times are written: their order as text is their order in time."""
    return format_time(whole_seconds(now))
