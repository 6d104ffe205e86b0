"""Which rows of a batch the clues of many queries leave, found for all queries together.

Texts are looked for by one automaton (Aho and Corasick) that reads each row once, whatever the number of queries; values by sorted lists. A clue is a
condition that every match fulfils, so what it leaves out cannot match, and what it leaves is asked of the query itself.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any

import ahocorasick
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.index.rows import as_value
from spark.search.topics import Topics
from tdn.protocol.times import parse_time
from tdn.queries.model import (
    BOOLEAN,
    FIELD,
    NUMBER,
    STRING,
    TIMESTAMP,
    AllOf,
    AnyOf,
    Anything,
    Clue,
    Contains,
    Value,
    microseconds,
)

#: Rows of a batch, in order. None stands for all of them.
Rows = frozenset[int] | None

_FAMILIES = {"string": STRING, "integer": NUMBER, "float": NUMBER, "boolean": BOOLEAN, "timestamp": TIMESTAMP}
_NONE: frozenset[int] = frozenset()


class Clues:
    """The clues of a job's queries, made ready once."""

    def __init__(self, clues: Iterable[Clue]) -> None:
        texts: dict[str, None] = {}
        self.keys: set[str] = set()
        for clue in clues:
            _gather(clue, texts, self.keys)
        self._automaton: Any = None
        if texts:
            self._automaton = ahocorasick.Automaton()
            for text in texts:
                self._automaton.add_word(text, text)
            self._automaton.make_automaton()

    def of(self, topics: Topics) -> Left:
        return Left(topics, self._containing(topics), self.keys)

    def _containing(self, topics: Topics) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        if self._automaton is None:
            return found
        search = self._automaton.iter
        for row, text in enumerate(topics.column("indexed")):
            if text:
                for _, word in search(text):
                    rows = found.get(word)
                    if rows is None:
                        found[word] = {row}
                    else:
                        rows.add(row)
        return found


def _gather(clue: Clue, texts: dict[str, None], keys: set[str]) -> None:
    if isinstance(clue, Contains):
        texts[clue.text] = None
    elif isinstance(clue, Value):
        keys.add(clue.key)
    elif isinstance(clue, AllOf | AnyOf):
        for part in clue.clues:
            _gather(part, texts, keys)


class Left:
    """What clues leave of one batch."""

    def __init__(self, topics: Topics, containing: dict[str, set[int]], keys: set[str]) -> None:
        self._topics = topics
        self._containing = containing
        self._properties = _property_values(topics, {key for key in keys if not key.startswith(FIELD)})
        self._sorted: dict[str, tuple[list[Any], list[int]]] = {}

    def by(self, clue: Clue) -> Rows:
        """The rows that a clue leaves; None: all."""
        if isinstance(clue, Contains):
            return frozenset(self._containing.get(clue.text, ()))
        if isinstance(clue, Value):
            return self._within(clue)
        if isinstance(clue, AllOf):
            left: Rows = None
            for part in clue.clues:
                found = self.by(part)
                if found is not None:
                    left = found if left is None else left & found
                    if not left:
                        return _NONE
            return left
        if isinstance(clue, AnyOf):
            together: set[int] = set()
            for part in clue.clues:
                found = self.by(part)
                if found is None:
                    return None
                together |= found
            return frozenset(together)
        assert isinstance(clue, Anything)  # noqa: S101  # for mypy: no other kind is left
        return None

    def _within(self, clue: Value) -> Rows:
        values, rows = self._in_order(clue.key)
        low = 0 if clue.low is None else bisect.bisect_left(values, clue.low)
        high = len(values) if clue.high is None else bisect.bisect_right(values, clue.high)
        return frozenset(rows[low:high])

    def _in_order(self, key: str) -> tuple[list[Any], list[int]]:
        """The values of a key in their order, each with its row."""
        found = self._sorted.get(key)
        if found is None:
            pairs = self._field(key.removeprefix(FIELD)) if key.startswith(FIELD) else self._properties.get(key, [])
            pairs.sort(key=lambda pair: pair[0])
            found = self._sorted[key] = ([value for value, _ in pairs], [row for _, row in pairs])
        return found

    def _field(self, name: str) -> list[tuple[Any, int]]:
        column: Sequence[Any] = self._topics.times(name) if name in ("created", "expires") else self._topics.column(name)
        return [(value, row) for row, value in enumerate(column)]


def _property_values(topics: Topics, keys: set[str]) -> dict[str, list[tuple[Any, int]]]:
    """Values of the properties that clues name, by family and name. Chosen in the flat arrays of the maps: most are not named by any."""
    if not keys:
        return {}
    offsets, names, texts, kinds = topics.maps()
    named = pc.is_in(names, pa.array(sorted({key[2:] for key in keys}), pa.string()))
    places = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    rows = np.searchsorted(offsets.to_numpy(), places, side="right") - 1
    # A batch may be a part of its arrays.
    within = (rows >= 0) & (rows < len(topics))
    places, rows = places[within], rows[within]
    chosen = pa.array(places)
    found: dict[str, list[tuple[Any, int]]] = {}
    columns = (names.take(chosen).to_pylist(), texts.take(chosen).to_pylist(), kinds.take(chosen).to_pylist(), rows.tolist())
    for name, text, kind, row in zip(*columns, strict=True):
        key = f"{_FAMILIES[kind]}{name}"
        if key in keys:
            found.setdefault(key, []).append((_indexed(text, kind), row))
    return found


def _indexed(text: str, kind: str) -> Any:
    """A value as `queries.model.indexed_values` gives it."""
    if kind == "timestamp":
        return microseconds(parse_time(text))
    value = as_value(text, kind)
    return int(value) if kind == "boolean" else value
