"""Which rows of a batch the clues of many queries leave, found for all queries together.

Texts are looked for by one automaton (Aho and Corasick) that reads each row once, whatever the number of queries; values by sorted lists. A clue is a
condition that every match fulfils, so what it leaves out cannot match, and what it leaves is asked of the query itself.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ahocorasick
import numpy as np

from spark.search.topics import Coded, Rows, Topics
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
    all_of,
    any_of,
    microseconds,
)
from tdn.queries.sql_terms import Column

_FAMILIES = {"string": STRING, "integer": NUMBER, "float": NUMBER, "boolean": BOOLEAN, "timestamp": TIMESTAMP}
_NONE: Rows = np.empty(0, np.int64)


class Clues:
    """The clues of a job's queries, made ready once: those that `usable` gave."""

    def __init__(self, clues: Iterable[Clue]) -> None:
        self._texts: dict[str, int] = {}
        for clue in clues:
            _gather(clue, self._texts)
        self._automaton: Any = None
        if self._texts:
            self._automaton = ahocorasick.Automaton()
            for text, number in self._texts.items():
                self._automaton.add_word(text, number)
            self._automaton.make_automaton()

    def of(self, topics: Topics) -> Left:
        return Left(topics, self._texts, self._containing(topics))

    def _containing(self, topics: Topics) -> Sequence[list[int]]:
        """Of each text the rows that it stands in."""
        found: list[list[int]] = [[] for _ in self._texts]
        if self._automaton is None:
            return found
        search = self._automaton.iter
        for row, text in enumerate(topics.column("indexed")):
            if text:
                for number in {number for _, number in search(text)}:
                    found[number].append(row)
        return found


def usable(clue: Clue) -> Clue:
    """A clue, or one that more topics fulfil and that is cheaper to look up: where a value must be in a range, texts that must stand somewhere add little,
    and without any of them no text has to be read."""
    if isinstance(clue, AnyOf):
        return any_of(*map(usable, clue.clues))
    if isinstance(clue, AllOf):
        parts = [usable(part) for part in clue.clues]
        return all_of(*([part for part in parts if not _only_texts(part)] or parts))
    return clue


def _only_texts(clue: Clue) -> bool:
    return all(map(_only_texts, clue.clues)) if isinstance(clue, AllOf | AnyOf) else not isinstance(clue, Value)


def _gather(clue: Clue, texts: dict[str, int]) -> None:
    if isinstance(clue, Contains):
        texts.setdefault(clue.text, len(texts))
    elif isinstance(clue, AllOf | AnyOf):
        for part in clue.clues:
            _gather(part, texts)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """The different values under a key in their order; `rows` from `starts[n]` to `starts[n + 1]` have the n-th."""

    values: list[Any]
    starts: Rows
    rows: Rows


class Left:
    """What clues leave of one batch."""

    def __init__(self, topics: Topics, texts: dict[str, int], containing: Sequence[list[int]]) -> None:
        self._topics = topics
        self._texts = texts
        self._containing = containing
        self._ordered: dict[str, _Ordered] = {}

    def by(self, clue: Clue) -> Rows | None:
        """The rows that a clue leaves, in any order; None: all."""
        if isinstance(clue, Contains):
            return np.array(self._containing[self._texts[clue.text]], np.int64)
        if isinstance(clue, Value):
            return self._within(clue)
        if isinstance(clue, AllOf):
            return self._all(clue.clues)
        if isinstance(clue, AnyOf):
            return self._any(clue.clues)
        assert isinstance(clue, Anything)  # noqa: S101  # for mypy: no other kind is left
        return None

    def _all(self, clues: Iterable[Clue]) -> Rows | None:
        parts: list[Rows] = []
        for clue in clues:
            found = self.by(clue)
            if found is not None:
                if not len(found):
                    return _NONE
                parts.append(found)
        if not parts:
            return None
        parts.sort(key=len)
        left = parts[0]
        for other in parts[1:]:
            left = left[self._marked(other)[left]]
        return left

    def _any(self, clues: Iterable[Clue]) -> Rows | None:
        parts: list[Rows] = []
        for clue in clues:
            found = self.by(clue)
            if found is None:
                return None
            if len(found):
                parts.append(found)
        if len(parts) <= 1:
            return parts[0] if parts else _NONE
        return np.flatnonzero(self._marked(np.concatenate(parts)))

    def _marked(self, rows: Rows) -> Any:
        marks = np.zeros(len(self._topics), np.bool_)
        marks[rows] = True
        return marks

    def _within(self, clue: Value) -> Rows:
        ordered = self._in_order(clue.key)
        low = 0 if clue.low is None else bisect.bisect_left(ordered.values, clue.low)
        high = len(ordered.values) if clue.high is None else bisect.bisect_right(ordered.values, clue.high)
        return ordered.rows[ordered.starts[low] : ordered.starts[high]] if low < high else _NONE

    def _in_order(self, key: str) -> _Ordered:
        found = self._ordered.get(key)
        if found is None:
            if key.startswith(FIELD):
                coded = self._topics.coded(Column(key.removeprefix(FIELD), is_property=False))
                found = _sorted(coded, list(enumerate(coded.values)))
            else:
                coded = self._topics.coded(Column(key[2:], is_property=True))
                family = [place for place, kind in enumerate(coded.kinds) if _FAMILIES[kind] == key[:2]]
                found = _sorted(coded, [(place, _indexed(coded.parsed[place], coded.kinds[place])) for place in family])
            self._ordered[key] = found
        return found


def _sorted(coded: Coded, chosen: list[tuple[int, Any]]) -> _Ordered:
    """Some of a column's values, each by its place, in order."""
    chosen.sort(key=lambda pair: pair[1])
    # One more than there are: rows without a value, whose code is -1, find it at the end.
    ranks = np.full(len(coded.values) + 1, -1, np.int64)
    ranks[[place for place, _ in chosen]] = np.arange(len(chosen))
    of_rows = ranks[coded.codes]
    rows = np.flatnonzero(of_rows >= 0)
    of_rows = of_rows[rows]
    order = np.argsort(of_rows, kind="stable")
    return _Ordered([value for _, value in chosen], np.searchsorted(of_rows[order], np.arange(len(chosen) + 1)), rows[order])


def _indexed(value: Any, kind: str) -> Any:
    """A value as `queries.model.indexed_values` gives it."""
    if kind == "timestamp":
        return microseconds(parse_time(value))
    return int(value) if kind == "boolean" else value
