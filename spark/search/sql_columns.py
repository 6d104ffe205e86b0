"""SQL asked of many topics at once: each term for each different value of its property or field, by the definition (`queries.sql_terms`), and what joins the
terms by arrays. A predicate that cannot be divided, or that has few topics left to it, is asked topic by topic."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark.index.rows import as_value
from spark.search.topics import Rows, Topics
from tdn.queries.sql import SqlQuery
from tdn.queries.sql_terms import Both, Either, Inverse, Part, Term, divided, terms

#: Where rows are TRUE, and where they are FALSE; elsewhere NULL.
_Truth = tuple[Any, Any]


class SqlColumns:
    """One query."""

    def __init__(self, query: SqlQuery) -> None:
        self._whole = divided(query)
        self._columns = [] if self._whole is None else [term.column for term in terms(self._whole) if term.column is not None]

    @property
    def possible(self) -> bool:
        """Whether the query can be divided."""
        return self._whole is not None

    def pays(self, topics: Topics, rows: Rows) -> bool:
        """Whether there are no more different values to look at than topics."""
        if not self.possible:
            return False
        left = len(rows)
        for column in self._columns:
            left -= len(topics.coded(column).values) + 1
            if left < 0:
                return False
        return True

    def matching(self, topics: Topics, rows: Rows) -> Rows:
        """Those of some rows that the query finds. Only where it pays."""
        assert self._whole is not None  # noqa: S101  # it would not pay
        true, _ = _evaluate(self._whole, topics, rows)
        return rows[true]


def _evaluate(part: Part, topics: Topics, rows: Rows) -> _Truth:
    if isinstance(part, Term):
        return _term(part, topics, rows)
    if isinstance(part, Both | Either):
        true, false = _evaluate(part.parts[0], topics, rows)
        for other in part.parts[1:]:
            also_true, also_false = _evaluate(other, topics, rows)
            if isinstance(part, Both):
                true, false = true & also_true, false | also_false
            else:
                true, false = true | also_true, false & also_false
        return true, false
    true, false = _evaluate(part.part, topics, rows)
    if isinstance(part, Inverse):
        return false, true
    found = true if part.wanted else false
    return found, ~found


def _term(term: Term, topics: Topics, rows: Rows) -> _Truth:
    if term.column is None:
        truth = term.truth(None)
        return np.full(len(rows), truth is True), np.full(len(rows), truth is False)
    coded = topics.coded(term.column)
    pairs = zip(coded.values, coded.kinds, strict=True)
    truths = [term.truth(as_value(value, kind), kind) for value, kind in pairs]
    # Of rows without a value, whose code is -1: the last.
    truths.append(term.truth(None))
    codes = coded.codes[rows]
    return np.array([truth is True for truth in truths])[codes], np.array([truth is False for truth in truths])[codes]
