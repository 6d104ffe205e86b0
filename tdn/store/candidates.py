"""From a clue to the rows of topics that are worth looking at, in the order (created, uuid).

Where some part of the clue leaves few topics, those are fetched by number. Where all parts leave many, the table is walked in order, which
finds many matches soon; and when it does not, all parts of the clue are looked up after all and taken together. Every way gives every
topic that can match, in the same order, so the choice changes the time that a question takes and nothing else.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tdn.queries.model import FIELD, INDEXED_FIELDS, SHORTEST_CLUE, AllOf, AnyOf, Clue, Contains, Value
from tdn.store.topics import as_stored

#: So many topics are few: fetching and matching them takes a few milliseconds.
_FEW = 1_000
#: And so many are not worth a look at another part of the clue.
_VERY_FEW = 10
#: A trigram in such a share of topics is common. Where all of a text's are, matches are met soon by walking: within so many rows.
_COMMON = 0.02
_SOON = 200
#: Rows walked in order before the index is asked again, with more patience.
_STRIDE = 10_000
#: Most topics that one part of a clue is followed to. Beyond it, walking the table is as good.
_MANY = 300_000
#: Trigrams looked up for one text or several. The rarest of them decide; more only cost time.
_GRAMS = 4
#: Topics that the chosen ones are expected to leave before no further one is looked up.
_FEW_ENOUGH = 1.0

#: Fields whose index has their topics in the order of answers.
_HOLDERS = frozenset({f"{FIELD}creator", f"{FIELD}owner", f"{FIELD}institution"})
#: Columns of topics that have an index.
_COLUMNS = INDEXED_FIELDS | {"duration"}

Row = tuple[Any, ...]


class Candidates:
    """Rows of topics under one condition (SQL over `topics t`), from one connection."""

    def __init__(self, db: sqlite3.Connection, columns: str, condition: str, values: Mapping[str, Any]) -> None:
        self._db = db
        self._select = f"SELECT t.created, t.uuid, {columns} FROM"
        self._condition = condition
        self._values = dict(values)

    def rows(self, clue: Clue | None, after: tuple[str, str], wanted: int | None = None) -> Generator[Row]:
        """Every row after a place in the order that meets the condition and may meet the clue. No clue: every row.

        `wanted` is how many matches the caller stops at: where they are likely to be met soon, the table is walked before any index.
        """
        holder, parts = (None, ()) if clue is None else _divided(clue)
        if soon := self._worth_walking(parts, wanted):
            for row in itertools.islice(self._walk(after, holder), soon):
                after = (row[0], row[1])
                yield row
        few = self._few(parts)
        if few is not None:
            if few:
                yield from self._fetch(few, after)
            return
        walk = self._walk(after, holder)
        if not parts:
            yield from walk
            return
        for row in itertools.islice(walk, _STRIDE):
            after = (row[0], row[1])
            yield row
        many = self._all(parts)
        yield from walk if many is None else self._fetch(many, after)

    def _walk(self, after: tuple[str, str], holder: Value | None) -> Iterator[Row]:
        """Rows in order, of the whole table or of one holder: its index has them in order too."""
        values = {**self._values, "created": after[0], "uuid": after[1]}
        index, held = "topics_in_order", ""
        if holder is not None:
            name = holder.key.removeprefix(FIELD)
            index, held = f"topics_by_{name}", f"t.{name} = :holder AND"
            values["holder"] = holder.low
        return self._db.execute(
            f"{self._select} topics t INDEXED BY {index}"
            f" WHERE {held} (t.created, t.uuid) > (:created, :uuid) AND {self._condition} ORDER BY t.created, t.uuid",
            values,
        )

    def _fetch(self, numbers: Collection[int], after: tuple[str, str]) -> Iterator[Row]:
        values = {**self._values, "created": after[0], "uuid": after[1]}
        if len(numbers) == 1:
            # The commonest case of all, and twice as fast without a table of numbers.
            (values["number"],) = numbers
            source, chosen = "topics t", "t.id = :number AND"
        else:
            values["numbers"] = json.dumps(sorted(numbers))
            source, chosen = "json_each(:numbers) n CROSS JOIN topics t ON t.id = n.value", ""
        return self._db.execute(
            f"{self._select} {source} WHERE {chosen} (t.created, t.uuid) > (:created, :uuid) AND {self._condition}"
            " ORDER BY t.created, t.uuid",
            values,
        )

    def _worth_walking(self, parts: tuple[_Part, ...], wanted: int | None) -> int:
        """How many rows to walk before an index is asked: enough to meet what is wanted, where nothing rare is looked for."""
        if wanted is None or len(parts) != 1 or not isinstance(parts[0], _Texts):
            return 0
        sampled, seen = self._sampled(_grams(parts[0].texts))
        share = min(seen.values()) / max(1, sampled)
        return int(2 * wanted / share) if share >= _COMMON and wanted / share < _SOON else 0

    # --- which topics a clue leaves ---

    def _few(self, parts: tuple[_Part, ...]) -> set[int] | None:
        """The topics that those parts leave together which leave few, until they are very few."""
        left: set[int] | None = None
        for part in parts:
            found = self._up_to(part, _FEW)
            if found is not None:
                left = found if left is None else left & found
                if len(left) <= _VERY_FEW:
                    break
        return left

    def _all(self, parts: tuple[_Part, ...]) -> set[int] | None:
        """The topics that all parts leave which can be followed."""
        left: set[int] | None = None
        for part in parts:
            found = self._up_to(part, _MANY)
            if found is not None:
                left = found if left is None else left & found
        return left

    def _up_to(self, clue: _Part, most: int) -> set[int] | None:
        """The topics that a clue leaves, or None when they are more than so many, or cannot be told."""
        if isinstance(clue, AnyOf):
            together: set[int] = set()
            for part in clue.clues:
                found = self._up_to(part, most)
                if found is None or len(together := together | found) > most:
                    return None
            return together
        if isinstance(clue, AllOf):
            kept = [found for part in _parts(clue) if (found := self._up_to(part, most)) is not None]
            return set.intersection(*kept) if kept else None
        if isinstance(clue, Contains):
            clue = _Texts((clue.text,))
        if isinstance(clue, _Texts):
            return self._numbers("SELECT rowid FROM topic_text WHERE topic_text MATCH ?", [self._phrase(clue.texts)], most)
        if isinstance(clue, Value):
            return self._numbers(*_range(clue), most)
        return None

    def _numbers(self, sql: str, values: list[Any], most: int) -> set[int] | None:
        rows = self._db.execute(f"{sql} LIMIT ?", [*values, most + 1]).fetchall()
        return None if len(rows) > most else {row[0] for row in rows}

    def _phrase(self, texts: tuple[str, ...]) -> str:
        """The rarest trigrams of some texts, in FTS5's words. All of them stand in every topic that is looked for."""
        grams = _grams(texts)
        sampled, seen = self._sampled(grams)
        chosen: list[str] = []
        left = float(self._db.execute("SELECT seq FROM position").fetchone()[0])
        for gram in sorted(grams, key=lambda gram: seen[gram]):
            chosen.append(gram)
            # As if trigrams stood in topics independently of each other. They do not; the matcher looks at what is left.
            left *= (seen[gram] + 0.5) / (sampled + 1)
            if len(chosen) == _GRAMS or left < _FEW_ENOUGH:
                break
        return " AND ".join('"' + gram.replace('"', '""') + '"' for gram in chosen)

    def _sampled(self, grams: list[str]) -> tuple[int, dict[str, int]]:
        """How many topics were sampled, and in how many of those each trigram stood."""
        sampled = int(self._db.execute("SELECT sampled FROM derived").fetchone()[0])
        known = self._db.execute(
            "SELECT gram, seen FROM grams WHERE gram IN (SELECT value FROM json_each(?))", (json.dumps(grams),)
        )
        return sampled, dict.fromkeys(grams, 0) | dict(known.fetchall())


def _grams(texts: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(text[at : at + SHORTEST_CLUE] for text in texts for at in range(len(text) - SHORTEST_CLUE + 1)))


@dataclass(frozen=True, slots=True)
class _Texts:
    """Several `Contains` that all hold: their trigrams are chosen from together."""

    texts: tuple[str, ...]


_Part: TypeAlias = Clue | _Texts


@lru_cache(maxsize=256)
def _divided(clue: Clue) -> tuple[Value | None, tuple[_Part, ...]]:
    """Whose topics they all are, if a creator, owner or institution is named, and the other parts of a clue."""
    parts = _parts(clue)
    for part in parts:
        if isinstance(part, Value) and part.key in _HOLDERS and part.low is not None and part.low == part.high:
            return part, tuple(other for other in parts if other is not part)
    return None, parts


def _parts(clue: Clue) -> tuple[_Part, ...]:
    """The parts of a clue that all hold, the cheapest to look up first."""
    flat = list(_flat(clue))
    texts = tuple(part.text for part in flat if isinstance(part, Contains))
    values = [part for part in flat if isinstance(part, Value)]
    rest = [part for part in flat if isinstance(part, AnyOf)]
    # A single value before a range: it is the likelier to leave few.
    values.sort(key=lambda value: value.low is None or value.low != value.high)
    return (*values, *([_Texts(texts)] if texts else []), *rest)


def _flat(clue: Clue) -> Iterator[Clue]:
    if isinstance(clue, AllOf):
        for part in clue.clues:
            yield from _flat(part)
    else:
        yield clue


def _range(clue: Value) -> tuple[str, list[Any]]:
    values: list[Any] = []
    if clue.key.startswith(FIELD):
        sql, name = "SELECT id FROM topics WHERE TRUE", clue.key.removeprefix(FIELD)
        if name not in _COLUMNS:
            raise ValueError(f"no index knows the field {name}")
    else:
        sql, name = "SELECT topic FROM property_values WHERE key = ?", "value"
        values.append(clue.key)
    if clue.low is not None and clue.low == clue.high:
        return f"{sql} AND {name} = ?", [*values, as_stored(clue.low)]
    if clue.low is not None:
        sql, values = f"{sql} AND {name} >= ?", [*values, as_stored(clue.low)]
    if clue.high is not None:
        sql, values = f"{sql} AND {name} <= ?", [*values, as_stored(clue.high)]
    return sql, values
