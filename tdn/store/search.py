"""Reading a view while it is written: facts, single topics, and discovery in the order (created, uuid).

Each reader has a connection of its own and sees what was committed. Ended means ended by log time or by the reader's clock. Whether the
asker may see a topic is part of the condition under which rows are selected (T18): nothing that it may not see is looked at, counted or
made a set of.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from tdn.errors import UsageError
from tdn.protocol.access import EVERYONE, INSTITUTION, Asker
from tdn.protocol.times import format_time, whole_seconds
from tdn.queries.model import FIELD, Anything, Clue, Query, Subject, Value, all_of
from tdn.queries.times import ANY_TIME, Times
from tdn.rules import sight
from tdn.rules.state import Fact
from tdn.store.candidates import Candidates
from tdn.store.facts import StoredFacts
from tdn.store.topics import ALLOWED, BARRED, advertisement_in, request_body_in
from tdn.store.view import Position
from tdn.trust import openings
from tdn.trust.openings import Opening


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
    advertisement: bytes
    #: What the advertisement hides: all of it for its owner, a part for whoever is entitled to that.
    opening: Opening | None = None

    @property
    def changed(self) -> bool:
        """Whether its state is no longer what its advertisement says (T39)."""
        return self.seq != self.advertised


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change that the log refused: whose, what it asked, and why it was refused."""

    seq: int
    at: str
    principal: str
    kind: str
    uuid: str | None
    grant: str | None
    because: str
    #: The id that its sender chose.
    request: str


#: Refusals read in one transaction.
_REFUSALS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Page:
    topics: tuple[FoundTopic, ...]
    #: Where the next page starts, when there is one.
    after: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for: by whom, now, and in which times. Without a query, everything; `sealed`: sealed topics alone (T9)."""

    asker: Asker
    now: datetime
    query: Query | None = None
    times: Times = ANY_TIME
    sealed: bool = False


#: Bounds of times, each with the column and the relation that it stands for.
_BOUNDS = {
    "created_after": "created >=",
    "created_before": "created <",
    "expires_after": "expires >=",
    "expires_before": "expires <",
    "valid_at_least": "duration >=",
    "valid_at_most": "duration <=",
}

#: Sealed topics looked at, of each sort, before an asker is told to look for itself.
_SEALED_LOOKS = 200

_FOUND = "t.expires, t.owner, t.seq, t.id, t.kind"
_SUBJECT = "t.creator, t.institution, t.descriptor, t.synopsis"

#: Barred wins over allowed; the owner sees its own. One list less to look into where a topic has none.
_VISIBLE = f"""(t.restricted = 0 OR t.owner = :asker OR (
    NOT EXISTS (SELECT 1 FROM listed l WHERE l.access = t.access AND l.side = {BARRED} AND l.who IN (:asker, :institution, :everyone))
    AND (t.restricted & {ALLOWED} = 0
         OR EXISTS (SELECT 1 FROM listed l WHERE l.access = t.access AND l.side = {ALLOWED} AND l.who IN (:asker, :institution, :everyone)))))"""  # noqa: S608  # numbers of ours


class Reader(StoredFacts):
    """Read-only questions about a view, from one thread at a time. Cached only for a holder that tells it of every write."""

    def __init__(self, path: Path, *, cached: bool = False, indexes: bool = True) -> None:
        """`indexes=False` looks at every topic that the asker may see: the same answers, slowly (for tests)."""
        super().__init__(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False), cached=cached
        )
        self._indexes = indexes

    def record(self, seq: int) -> bytes | None:
        """The bytes of a record, as long as this store keeps it."""
        row = self._db.execute("SELECT raw FROM records WHERE seq = ?", (seq,)).fetchone()
        return bytes(row[0]) if row else None

    def refusals(self, since: datetime | None = None) -> Iterator[Refusal]:
        """Changes that the log refused, in time order. Read in portions: whoever writes meanwhile is not held up."""
        place = (_text_up(since) if since is not None else "", 0)
        page = (
            "SELECT seq, at, kind, outcome, raw FROM records INDEXED BY records_refused"
            " WHERE status = 'refused' AND at >= ? AND (at, seq) > (?, ?) ORDER BY at, seq LIMIT ?"
        )
        while rows := self._db.execute(page, (place[0], *place, _REFUSALS_AT_ONCE)).fetchall():
            for seq, at, kind, outcome, raw in rows:
                told, body = json.loads(outcome), request_body_in(raw)
                principal, _, request = str(told["request"]).partition("/")
                because = str(told["error"]["message"])
                yield Refusal(seq, at, principal, kind, body.get("uuid"), body.get("grant"), because, request)
            place = (rows[-1][1], rows[-1][0])

    def open_all(self) -> None:
        """Make ready for a process that can open nothing more and is interrupted by an alarm: files are opened by a first read, what SQLite
        sorts stays in memory, and it comes back to Python now and then while it works."""
        self._db.execute("PRAGMA temp_store=MEMORY")
        self._db.execute(
            "SELECT count(*) FROM (SELECT rowid FROM topic_text WHERE topic_text MATCH '\"abc\"' LIMIT 1)"
        ).fetchone()
        self._db.set_progress_handler(lambda: 0, 100_000)

    def position(self) -> Position:
        return Position(*self._db.execute("SELECT seq, offset, head FROM position").fetchone())

    def count_live(self, now: datetime) -> int:
        row = self._db.execute("SELECT count(*) FROM topics WHERE expires > ?", (_text(now),)).fetchone()
        return int(row[0])

    def topic(self, uuid: str, asker: Asker, now: datetime) -> FoundTopic | None:
        """One topic, if it is live and the asker may see it. Whether it is not there or not to be seen, the answer is the same."""
        row = self._db.execute(
            f"SELECT t.created, t.uuid, {_FOUND} FROM topics t WHERE t.uuid = :uuid AND t.expires > :now AND {_VISIBLE}",  # noqa: S608  # constants; values are parameters
            {"uuid": uuid, "now": _text(now), **_who(asker)},
        ).fetchone()
        return self._found(row, asker) if row and sight.live(self, uuid, now) is not None else None

    def known(self, uuid: str, fact: Fact, *, opened: Collection[str] | None) -> FoundTopic:
        """A topic whose fact was seen already, with some of what it hides (None: with all of it). Also where the table has it not (T11)."""
        raw = self._record(fact["advertised"])
        opening: Opening | None = None
        if opened is None or opened:
            opening = request_body_in(raw)["opening"]
            opening = opening if opened is None else openings.disclose(opening, opened)
        return FoundTopic(
            uuid, fact["created"], fact["expires"], fact["owner"], fact["seq"], fact["advertised"], advertisement_in(raw), opening
        )

    def discover(self, search: Search, *, after: tuple[str, str] = ("", ""), limit: int) -> Page:
        """Topics that match, after a place in the order; one more than `limit` is looked for, to know whether there are more.

        Not one transaction: numbers are never used again and records never removed, so what changes meanwhile is seen or not seen.
        """
        found: list[FoundTopic] = []
        for row in self._matching(search, after, limit + 1):
            if len(found) == limit:
                return Page(tuple(found), (found[-1].created, found[-1].uuid))
            found.append(self._found(row, search.asker))
        return Page(tuple(found), None)

    def count(self, search: Search) -> int:
        """How many topics match that the asker may see."""
        return sum(1 for _ in self._matching(search, ("", ""), None))

    def has_sealed(self, search: Search) -> bool:
        """Whether the asker may see sealed topics in these times, which no query finds."""
        condition, values = _condition(Search(search.asker, search.now, None, search.times, sealed=True))
        # By what makes them visible, so that many that are hidden cost nothing: for everyone, for those named, one's own, not barred.
        # Where a list both names and bars the asker, some have to be looked at; after a few of those, it looks for itself.
        for source in (
            "topics t INDEXED BY topics_sealed WHERE t.restricted = 0 AND",
            "sealed_for l CROSS JOIN topics t ON t.id = l.topic WHERE l.who IN (:asker, :institution, :everyone) AND",
            "topics t INDEXED BY topics_sealed_by_owner WHERE t.owner = :asker AND",
            f"topics t INDEXED BY topics_sealed WHERE t.restricted = {BARRED} AND",
        ):
            looked_at = self._db.execute(
                f"SELECT ({condition}) FROM {source} t.descriptor_kind = 'sealed' LIMIT {_SEALED_LOOKS}", values  # noqa: S608  # constants; values are parameters
            ).fetchall()
            if len(looked_at) == _SEALED_LOOKS or any(visible for (visible,) in looked_at):
                return True
        return False

    def _matching(self, search: Search, after: tuple[str, str], wanted: int | None) -> Iterator[tuple[Any, ...]]:
        """Rows of topics that match, in order."""
        condition, values = _condition(search)
        query = search.query
        columns = _FOUND if query is None else f"{_FOUND}, {_SUBJECT}"
        start = max(after, (_text_up(search.times.created_after), "")) if search.times.created_after else after
        rows = Candidates(self._db, columns, condition, values).rows(_clue(search) if self._indexes else None, start, wanted)
        # Of a subtree that has just ended, some rows may still be to go.
        settling = self.get("pending", "topics") is not None
        standing: dict[str, bool] = {}
        # Closed at once when a query fails on a row, and not when somebody lets go of the error: the store may be closed by then.
        with closing(rows):
            for row in rows:
                if (query is None or query.matches(_subject(row))) and not (
                    settling and sight.live(self, row[1], search.now, standing) is None
                ):
                    yield row

    def _found(self, row: tuple[Any, ...], asker: Asker) -> FoundTopic:
        created, uuid, expires, owner, seq, identifier, kind = row[:7]
        raw = self._record(identifier)
        opening = None
        if owner == asker.entity:
            opening = request_body_in(raw)["opening"]
        elif kind == sight.COLLECTION:
            # Whoever sees a collection may know its limits and options (T31).
            opening = openings.disclose(request_body_in(raw)["opening"], (openings.GATHERING,))
        return FoundTopic(uuid, created, expires, owner, seq, identifier, advertisement_in(raw), opening)

    def _record(self, seq: int) -> bytes:
        return bytes(self._db.execute("SELECT raw FROM records WHERE seq = ?", (seq,)).fetchone()[0])


def _subject(row: tuple[Any, ...]) -> Subject:
    created, uuid, expires, owner, _, _, kind, creator, institution, descriptor, synopsis = row
    return Subject(uuid, kind, creator, owner, institution, created, expires, json.loads(descriptor), synopsis)


def _condition(search: Search) -> tuple[str, dict[str, Any]]:
    """The condition that every candidate meets, and its values."""
    values: dict[str, Any] = {"now": _text(search.now), **_who(search.asker)}
    bounds: tuple[str, ...] = ()
    if search.times is not ANY_TIME:
        given = {name: getattr(search.times, name) for name in _BOUNDS}
        bounds = tuple(name for name, bound in given.items() if bound is not None)
        values |= {name: given[name] if isinstance(given[name], int) else _text_up(given[name]) for name in bounds}
    return _condition_text(search.sealed, search.query is not None, bounds), values


@lru_cache(maxsize=256)
def _condition_text(sealed: bool, queried: bool, bounds: tuple[str, ...]) -> str:
    conditions = ["t.expires > :now", _VISIBLE]
    if sealed:
        conditions.append("t.descriptor_kind = 'sealed'")
    elif queried:
        conditions.append("t.descriptor_kind <> 'sealed'")
    return " AND ".join([*conditions, *(f"t.{_BOUNDS[name]} :{name}" for name in bounds)])


def _clue(search: Search) -> Clue:
    """What an index can use: of the query, and of the times apart from creation, which is the order of the table itself."""
    times = search.times
    if times is ANY_TIME:
        return Anything() if search.query is None else search.query.clue
    clues: list[Clue] = []
    if times.expires_after is not None or times.expires_before is not None:
        clues.append(Value(f"{FIELD}expires", _text_or_none(times.expires_after), _text_or_none(times.expires_before)))
    if times.valid_at_least is not None or times.valid_at_most is not None:
        clues.append(Value(f"{FIELD}duration", times.valid_at_least, times.valid_at_most))
    return all_of(*([search.query.clue] if search.query is not None else []), *clues)


def _who(asker: Asker) -> dict[str, str]:
    # An asker without an id is nobody's owner and on no list by name: no id is empty.
    return {"asker": asker.entity or "", "institution": f"{INSTITUTION}{asker.institution}", "everyone": EVERYONE}


def _text(now: datetime) -> str:
    """The moment as stored times are written: their order as text is their order in time."""
    return format_time(whole_seconds(now))


def _text_up(moment: datetime) -> str:
    """The first whole second not before a moment. Stored times are whole, so `>=` and `<` mean the same with it."""
    whole = whole_seconds(moment)
    if whole != moment:
        try:
            whole += timedelta(seconds=1)
        except OverflowError as error:
            raise UsageError("the time is beyond the calendar") from error
    return format_time(whole)


def _text_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else _text_up(moment)
