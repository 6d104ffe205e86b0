"""SQL asked of many topics at once: each term for each different value of its property or field, by the definition (`queries.sql_terms`), and what joins the
terms by arrays. A predicate that cannot be divided is asked topic by topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spark.search.budget import one_by_one
from spark.search.topics import Rows, Topics
from tdn.queries.sql import SqlQuery
from tdn.queries.sql_terms import Both, Either, Inverse, Part, Term, divided

#: Where rows are TRUE, and where they are FALSE; elsewhere NULL.
_Truth = tuple[Any, Any]


def asks(query: SqlQuery) -> Callable[[Topics, Rows, float], Rows] | None:
    """What gives those of some rows that a query finds, or Overrun at a moment of the clock; None where it cannot be divided."""
    whole = divided(query)
    return None if whole is None else lambda topics, rows, until: rows[_evaluate(whole, topics, rows, until)[0]]


def _evaluate(part: Part, topics: Topics, rows: Rows, until: float) -> _Truth:
    if isinstance(part, Term):
        return _term(part, topics, rows, until)
    if isinstance(part, Both | Either):
        true, false = _evaluate(part.parts[0], topics, rows, until)
        for other in part.parts[1:]:
            also_true, also_false = _evaluate(other, topics, rows, until)
            if isinstance(part, Both):
                true, false = true & also_true, false | also_false
            else:
                true, false = true | also_true, false & also_false
        return true, false
    true, false = _evaluate(part.part, topics, rows, until)
    if isinstance(part, Inverse):
        return false, true
    found = true if part.wanted else false
    return found, ~found


def _term(term: Term, topics: Topics, rows: Rows, until: float) -> _Truth:
    if term.column is None:
        truth = term.truth(None)
        return np.full(len(rows), truth is True), np.full(len(rows), truth is False)
    coded = topics.coded(term.column)
    codes = coded.codes[rows]
    if len(rows) <= len(coded.values):
        # Fewer topics than values: only those that they have.
        some, codes = np.unique(codes, return_inverse=True)
        truths = one_by_one(
            lambda code: term.truth(coded.parsed[code], coded.kinds[code]) if code >= 0 else term.truth(None), some.tolist(), until=until
        )
    else:
        truths = one_by_one(term.truth, coded.parsed, coded.kinds, until=until)
        # Of rows without a value, whose code is -1: the last.
        truths.append(term.truth(None))
    return np.array([truth is True for truth in truths])[codes], np.array([truth is False for truth in truths])[codes]
