"""One question on one machine, over the same index without Spark's start: DuckDB leaves few topics by the query's clue, the query itself has the last word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

from spark.index.store import Index
from spark.search import standing
from spark.search.asked import Asked
from spark.search.bulk import Bulk
from spark.search.confined import Confined
from spark.search.engines import DuckTables
from spark.search.topics import COLUMNS, Topics
from tdn.errors import QueryError, Refused, UsageError
from tdn.queries.compile import compile_query
from tdn.queries.model import FIELD, NUMBER, STRING, AllOf, AnyOf, Clue, Contains, Value
from tdn.trust.certificates import TrustRoots


def query(
    index: Index, roots: TrustRoots, asked: Asked, *, entity: str | None, at: datetime | None, now: datetime, limit: int | None
) -> tuple[list[dict[str, Any]], bool]:
    """The first topics that match, in the order (created, uuid), each with its signed bytes; and whether there are more."""
    if index.place.local is None:
        raise UsageError(f"{index.place} is not on this machine; search it with `tdn-spark search`")
    commits = index.require(roots)
    with closing(DuckTables(index, commits)) as tables, Confined() as confined:
        when = standing.moment(tables, at, now)
        who = standing.asker(tables, entity, when) if entity is not None else None
        if asked.language == "xquery" and (wrong := confined.check(asked)) is not None:
            # Only its engine finds it; and where no topic is left to ask, nothing would.
            raise QueryError(wrong)
        values: list[Any] = []
        condition = "TRUE" if asked.text is None else _condition(compile_query(asked.language, asked.text).clue, values)
        sql = f"SELECT * FROM ({standing.whole(tables, when, who)}) topics WHERE {condition} ORDER BY created, uuid"  # noqa: S608  # values are parameters
        found: list[dict[str, Any]] = []
        for topics, row in _matching(Bulk([asked], confined), tables.batches(sql, values)):
            if limit is not None and len(found) == limit:
                return _signed(tables, found), True
            found.append(_described(topics, row))
        return _signed(tables, found), False


def _matching(bulk: Bulk, batches: Any) -> Iterator[tuple[Topics, int]]:
    for batch in batches:
        topics = Topics.of(batch)
        for _, found in bulk.ask(topics):
            if isinstance(found, str):
                raise Refused(found)
            yield from ((topics, row) for row in found.tolist())


def _described(topics: Topics, row: int) -> dict[str, Any]:
    subject = topics.subject(row)
    return {
        "uuid": subject.uuid,
        "kind": subject.kind,
        "creator": subject.creator,
        "owner": subject.owner,
        "institution": subject.institution,
        "created": subject.created,
        "expires": subject.expires,
        "descriptor": {name: value for name, value in subject.descriptor.items() if name != "types"},
        "synopsis": subject.synopsis,
    }


def _signed(tables: DuckTables, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not found:
        return found
    listed = ", ".join("?" for _ in found)
    rows = tables.rows(f"SELECT uuid, advertisement FROM signed WHERE uuid IN ({listed})", [topic["uuid"] for topic in found])  # noqa: S608  # question marks
    tokens = {row["uuid"]: row["advertisement"] for row in rows}
    return [{**topic, "advertisement": tokens[topic["uuid"]]} for topic in found]


def _condition(clue: Clue, values: list[Any]) -> str:
    """A clue in DuckDB's words, or something that more topics fulfil."""
    if isinstance(clue, Contains):
        values.append(clue.text)
        return "contains(indexed, ?)"
    if isinstance(clue, Value):
        return _within(clue, values)
    if isinstance(clue, AllOf):
        return f"({' AND '.join(_condition(part, values) for part in clue.clues)})"
    if isinstance(clue, AnyOf):
        return f"({' OR '.join(_condition(part, values) for part in clue.clues)})"
    return "TRUE"


def _within(clue: Value, values: list[Any]) -> str:
    low, high = clue.low, clue.high
    if clue.key.startswith(FIELD):
        column = clue.key.removeprefix(FIELD)
        if column not in COLUMNS or column in ("created", "expires"):
            # Times are texts in a clue: left to the query itself.
            return "TRUE"
    elif clue.key.startswith((STRING, NUMBER)):
        values.append(clue.key[2:])
        column = "properties[?]"
        if clue.key.startswith(NUMBER):
            # Integers beyond 2^53 are not exact as DOUBLE: the bounds are a little wider than what was asked.
            column = f"TRY_CAST({column} AS DOUBLE)"
            low = None if low is None else _wider(low, -math.inf)
            high = None if high is None else _wider(high, math.inf)
    else:
        return "TRUE"
    parts: list[str] = []
    for relation, bound in ((">=", low), ("<=", high)):
        if bound is not None:
            if parts and "?" in column:
                values.append(clue.key[2:])
            parts.append(f"{column} {relation} ?")
            values.append(bound)
    if not parts:
        parts.append(f"{column} IS NOT NULL")
    return f"({' AND '.join(parts)})"


def _wider(bound: Any, towards: float) -> float:
    try:
        value = float(bound)
    except OverflowError:
        return towards
    return math.nextafter(math.nextafter(value, towards), towards)
