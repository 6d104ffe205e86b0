"""Which topics stand at a moment and show to an asker, by the rules that a live node has (T18, T26, T39): questions in SQL that Spark and DuckDB both answer.

A moment is a place in the log: the records judged until then. What had expired by the moment itself is gone, whether or not a tick had ended it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from spark.index.store import Commit
from spark.search.topics import COLUMNS
from tdn.errors import TrustError
from tdn.protocol.access import Asker
from tdn.protocol.names import check_id, check_uuid, is_topic
from tdn.protocol.times import format_time, parse_time

#: Names in one SQL text. Beyond it, there are several questions.
_AT_ONCE = 1_000
#: Rows of a table that every worker is sent whole. Beyond it the topics go to where the rows are, with all of their text, which takes longer than asking
#: queries of them; Spark by itself does so with every table whose size it does not know, an empty one too.
_MOST_SENT = 2_000_000


class Engine(Protocol):
    """What runs SQL over the tables of an index, each a view by its own name."""

    #: What it calls a moment in time.
    timestamp: str

    @property
    def commits(self) -> list[Commit]: ...

    def rows(self, sql: str) -> list[dict[str, Any]]: ...

    def asking(self, who: Asker) -> str:
        """A table of one row for an asker: `names`, every name that a list can mean it by, and `entity`. What somebody may choose freely, as an institution
        its name, is never a part of a SQL text."""
        ...

    def overlap(self, one: str, other: str) -> str:
        """A condition: two lists have at least one name in common. Of no list: unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """What is asked about: the log up to a record, and the time by which expiries are judged."""

    seq: int
    at: datetime


def moment(engine: Engine, at: datetime | None, now: datetime) -> Moment:
    """The moment that is meant: a past one, or now and all that the index holds. Clocks may differ: now is not before the last record."""
    last = engine.commits[-1]
    if at is None:
        return Moment(last.last, max(now, parse_time(last.until)) if last.until else now)
    found = engine.rows(f"SELECT MAX(r.seq) AS seq FROM records r WHERE r.judged_at <= {_time(engine, at)}")
    return Moment(found[0]["seq"] or 0, at)


def asker(engine: Engine, entity: str, when: Moment) -> Asker:
    """An entity as lists meant it then; or TrustError, of one that the network did not know or had revoked."""
    check_id(entity)
    rows = engine.rows(
        f"SELECT institution, revoked FROM principals WHERE principal = 'entity:{entity}' AND seq <= {when.seq} ORDER BY seq DESC LIMIT 1"
    )
    if not rows:
        raise TrustError(f"the network did not know an entity {entity!r} at {format_time(when.at)}")
    if rows[0]["revoked"]:
        raise TrustError(f"the certificate of entity {entity!r} was revoked by {format_time(when.at)}")
    return Asker(entity, rows[0]["institution"])


def whole(engine: Engine, when: Moment, who: Asker | None) -> str:
    """SQL for the topics that were live at a moment and that an asker may see (None: the operator, who sees all), with what queries look at."""
    chosen = {"owner": "COALESCE(c.owner, a.creator) AS owner", "expires": "COALESCE(c.expires, a.expires) AS expires"}
    return _standing(engine, when, who, [chosen.get(name, f"a.{name}") for name in COLUMNS])


def places(engine: Engine, when: Moment, who: Asker | None) -> str:
    """SQL for where those topics are: file and row, and the owner and expiry that changed."""
    return _standing(engine, when, who, ["a.file", "a.row", "c.owner", "c.expires"])


def moves(engine: Engine) -> bool:
    """Whether rows of topics are taken out of their order, since what they are compared with is too large to be sent to them."""
    return any(_count(engine, table) > _MOST_SENT for table in ("changes", "access"))


def _standing(engine: Engine, when: Moment, who: Asker | None, columns: Sequence[str]) -> str:
    joins, conditions = [f"LEFT JOIN ({_latest('changes', when)}) c ON c.uuid = a.uuid"], [f"a.seq <= {when.seq}", _lasts(engine, when)]
    if who is not None:
        # T18: those without lists, one's own, and those whose lists admit the asker; barred wins over allowed.
        asking = engine.asking(who)
        names = f"(SELECT names FROM {asking})"
        admitting = (
            f"SELECT DISTINCT access FROM access WHERE NOT {engine.overlap('deny', names)} AND (allow IS NULL OR {engine.overlap('allow', names)})"
        )
        joins.append(f"LEFT JOIN ({admitting}) l ON l.access = a.access")
        conditions.append(f"(a.access IS NULL OR COALESCE(c.owner, a.creator) = (SELECT entity FROM {asking}) OR l.access IS NOT NULL)")
    gone = _ended_above(engine, when)
    for start in range(0, len(gone), _AT_ONCE):
        conditions.append(f"a.uuid NOT IN ({_listed(gone[start : start + _AT_ONCE])})")
    small = [alias for alias, table in (("c", "changes"), ("l", "access")) if _count(engine, table) <= _MOST_SENT]
    # A comment to DuckDB.
    hint = f"/*+ BROADCAST({', '.join(small)}) */ " if small else ""
    return f"SELECT {hint}{', '.join(columns)} FROM advertisements a {' '.join(joins)} WHERE {' AND '.join(conditions)}"


def _count(engine: Engine, table: str) -> int:
    return sum(commit.rows.get(table, 0) for commit in engine.commits)


def _latest(table: str, when: Moment) -> str:
    """What was said last of each, up to a moment."""
    numbered = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY uuid ORDER BY seq DESC) AS later FROM {table} WHERE seq <= {when.seq}"
    return f"SELECT * FROM ({numbered}) numbered WHERE later = 1"


def _lasts(engine: Engine, when: Moment) -> str:
    return f"COALESCE(c.state, 'live') = 'live' AND COALESCE(c.expires, a.expires) > {_time(engine, when.at)}"


def _ended_above(engine: Engine, when: Moment) -> list[str]:
    """Topics whose ancestor has ended and that the log had not marked yet. Nearly always none: a subtree follows within seconds."""
    # By the word of a node alone. What is no topic's name has nothing below it.
    marked = (row["uuid"] for row in engine.rows(f"SELECT uuid FROM ({_latest('settling', when)}) s WHERE present"))
    unsettled = sorted(uuid for uuid in marked if is_topic(uuid))
    lasting = {
        row["uuid"]
        for start in range(0, len(unsettled), _AT_ONCE)
        for row in engine.rows(
            f"SELECT a.uuid FROM advertisements a LEFT JOIN ({_latest('changes', when)}) c ON c.uuid = a.uuid"
            f" WHERE a.seq <= {when.seq} AND {_lasts(engine, when)} AND a.uuid IN ({_listed(unsettled[start : start + _AT_ONCE])})"
        )
    }
    edge = [uuid for uuid in unsettled if uuid not in lasting]
    if not edge:
        return []
    children: dict[str, list[str]] = {}
    for row in engine.rows(f"SELECT uuid, parent FROM advertisements WHERE parent IS NOT NULL AND seq <= {when.seq}"):
        children.setdefault(row["parent"], []).append(row["uuid"])
    below: set[str] = set()
    while edge:
        edge = [child for above in edge for child in children.get(above, ()) if child not in below]
        below.update(edge)
    return sorted(below)


def _listed(uuids: Collection[str]) -> str:
    return ", ".join(f"'{check_uuid(uuid)}'" for uuid in uuids)


def _time(engine: Engine, moment: datetime) -> str:
    return f"CAST('{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00' AS {engine.timestamp})"
