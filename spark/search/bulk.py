"""All queries of a job, asked of one batch of topics after the other.

Plain strings, regular expressions and SQL are asked here: each takes time in proportion to the text, within the limits of its compiler. XPath and XQuery
have no such bound and are asked in a process that can be killed (`confined`). A regular expression that is left many topics is put to all of them by
Arrow, whose RE2 is the one that defines the language (a test compares the two over all of Unicode), and which needs no Python for each; SQL is
put to different values, not to topics (`sql_columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from spark.search import sql_columns
from spark.search.asked import Asked
from spark.search.clues import Clues, usable
from spark.search.confined import Confined, portions
from spark.search.topics import Rows, Topics
from tdn.queries.compile import compile_query
from tdn.queries.model import Clue, Query
from tdn.queries.regex import RegexQuery
from tdn.queries.sql import SqlQuery
from tdn.queries.string import StringQuery
from tdn.queries.times import ANY_TIME

#: A query by its number, and the rows of the topics that it found; or why it could not go on.
Found = tuple[int, Rows | str]

_CONFINED = ("xpath", "xquery")
#: From so many topics on it is cheaper to let Arrow compile a pattern anew and look at the whole batch.
_MANY = 500

_Matching = Callable[[Topics, Rows], Rows]


@lru_cache(maxsize=1)
def _compiled(asked: tuple[Asked, ...]) -> tuple[list[tuple[Asked, Clue, _Matching | None]], Clues]:
    """The queries of a job, each with what asks it. Kept for the next task of the same job in this worker: compiling a thousand takes longer than asking
    them of a thousand topics."""
    queries = []
    for one in asked:
        # Not by `compile_query`'s memory, which holds fewer than a job may have.
        query: Query = compile_query.__wrapped__(one.language, one.text)
        queries.append((one, usable(query.clue), None if one.language in _CONFINED else _matching(query)))
    return queries, Clues(clue for _, clue, _ in queries)


class Bulk:
    """The queries of a job in one task."""

    def __init__(self, asked: Sequence[Asked], confined: Confined) -> None:
        self._queries, self._clues = _compiled(tuple(asked))
        self._confined = confined
        self._given_up: set[int] = set()

    def ask(self, topics: Topics) -> Iterator[Found]:
        """What the queries find among some topics, each in the order of its rows. A query that was given up is not asked again."""
        left = self._clues.of(topics)
        is_open, is_xml = ~topics.are("sealed"), topics.are("xml")
        confined: list[tuple[Asked, Rows]] = []
        for asked, clue, matching in self._queries:
            if asked.number in self._given_up:
                continue
            admitted = is_xml if matching is None else is_open
            rows = left.by(clue)
            rows = np.flatnonzero(admitted) if rows is None else np.sort(rows[admitted[rows]])
            if asked.times is not ANY_TIME and len(rows):
                created, expires = topics.column("created"), topics.column("expires")
                rows = rows[[asked.times.admit(created[row], expires[row]) for row in rows.tolist()]]
            if not len(rows):
                continue
            if matching is None:
                confined.append((asked, rows))
            elif len(found := matching(topics, rows)):
                yield asked.number, found
        # A document is parsed once for all XPaths that are asked of it. XQueries are compiled by an engine that keeps few of them, so each goes through all
        # of the documents before the next.
        yield from self._by_documents([one for one in confined if one[0].language == "xpath"], topics)
        for one in confined:
            if one[0].language == "xquery":
                yield from self._by_documents([one], topics)

    def _by_documents(self, asked: Sequence[tuple[Asked, Rows]], topics: Topics) -> Iterator[Found]:
        """Portion by portion of the documents, what queries find in it."""
        if not asked:
            return
        rows = asked[0][1] if len(asked) == 1 else np.unique(np.concatenate([rows for _, rows in asked]))
        documents = topics.column("xml")
        for begin, end in portions([len(documents[row]) for row in rows.tolist()]):
            first, last = rows[begin], rows[end - 1]
            for one, left in asked:
                some = left[np.searchsorted(left, first) : np.searchsorted(left, last, side="right")]
                if not len(some) or one.number in self._given_up:
                    continue
                told = self._confined.ask(one, [documents[row] for row in some.tolist()])
                if isinstance(told, str):
                    self._given_up.add(one.number)
                    yield one.number, told
                elif told:
                    yield one.number, some[told]


def _matching(query: Query) -> _Matching:
    """What finds the topics that match among those that a clue has left."""
    if isinstance(query, RegexQuery):
        return lambda topics, rows: _regex(query, topics, rows)
    if isinstance(query, StringQuery):
        return lambda topics, rows: _those(rows, lambda row: query.stands_in(topics.folded(row)))
    if isinstance(query, SqlQuery) and (by_columns := sql_columns.asks(query)) is not None:
        return by_columns
    return lambda topics, rows: _those(rows, lambda row: query.matches(topics.subject(row)))


def _regex(query: RegexQuery, topics: Topics, rows: Rows) -> Rows:
    if len(rows) < _MANY:
        return _those(rows, lambda row: query.stands_in(topics.searchable(row)))
    found: npt.NDArray[np.bool_] = np.asarray(pc.match_substring_regex(topics.all_searchable, query.pattern).fill_null(False))
    return rows[found[rows]]


def _those(rows: Rows, matches: Callable[[int], bool]) -> Rows:
    return rows[[matches(row) for row in rows.tolist()]]
