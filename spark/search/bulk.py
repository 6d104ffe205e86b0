"""All queries of a job, asked of one batch of topics after the other.

Plain strings, regular expressions and SQL are asked here: each takes time in proportion to the text, within the limits of its compiler, and can be stopped
between slices of it. XPath and XQuery have no such bound and are asked in a process that can be killed (`confined`). A query that takes longer than it may
(`budget`) is given up. A regular expression that is left many topics is put to all of them by Arrow, whose RE2 is the one that defines the language (a test
compares the two over all of Unicode), and which needs no Python for each; SQL is put to different values, not to topics (`sql_columns`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from spark.search import budget, sql_columns
from spark.search.asked import Asked, unexpected
from spark.search.budget import Budget, Overrun, clock, keep_to, one_by_one, text_by_text
from spark.search.clues import Clues, usable
from spark.search.confined import Confined, portions
from spark.search.topics import Rows, Topics
from tdn.errors import TrustError
from tdn.queries.compile import compile_query
from tdn.queries.model import Anything, Clue, Query
from tdn.queries.regex import RegexQuery
from tdn.queries.sql import SqlQuery
from tdn.queries.string import StringQuery
from tdn.queries.times import ANY_TIME

logger = logging.getLogger(__name__)

#: A query by its number, and the rows of the topics that it found; or why it could not go on.
Found = tuple[int, Rows | str]

_CONFINED = ("xpath", "xquery")
#: From so many topics on it is cheaper to let Arrow compile a pattern anew and look at the whole batch.
_MANY = 500
#: Instructions of a pattern beyond which it is not left to Arrow. Arrow's RE2 has more memory than ours and builds states for longer before it does without:
#: up to 15 s for a megabyte, and no way to stop it in between. Patterns up to this size take a second at most. Nearly all are smaller: `(?i)weather/.*(oslo|bergen)` has 40.
_MOST_INSTRUCTIONS = 100

#: What is no query's fault, and stops the task: the index cannot be read, or there is no memory or disk for what is asked of it.
_THE_MACHINES = (TrustError, OSError, MemoryError)

#: Those of some rows that a query finds, or Overrun at a moment of the clock.
_Matching = Callable[[Topics, Rows, float], Rows]


@lru_cache(maxsize=1)
def _compiled(asked: tuple[Asked, ...]) -> tuple[list[tuple[Asked, Clue, _Matching | None]], Clues]:
    """The queries of a job, each with what asks it. Kept for the next task of the same job in this worker: compiling a thousand takes longer than asking
    them of a thousand topics."""
    queries: list[tuple[Asked, Clue, _Matching | None]] = []
    for one in asked:
        if one.text is None:
            queries.append((one, Anything(), _all))
            continue
        try:
            # Not by `compile_query`'s memory, which holds fewer than a job may have.
            query: Query = compile_query.__wrapped__(one.language, one.text)
            queries.append((one, usable(query.clue), None if one.language in _CONFINED else _matching(query)))
        except _THE_MACHINES:
            raise
        except Exception as error:
            queries.append((one, Anything(), _failing(error)))
    return queries, Clues(clue for _, clue, _ in queries)


class Bulk:
    """The queries of a job in one task."""

    def __init__(self, asked: Sequence[Asked], confined: Confined) -> None:
        self._queries, self._clues = _compiled(tuple(asked))
        self._confined = confined
        self._given_up: set[int] = set()
        self._here, self._beside = Budget(), Budget()

    def ask(self, topics: Topics) -> Iterator[Found]:
        """What the queries find among some topics, each in the order of its rows. A query that was given up is not asked again."""
        left = self._clues.of(topics)
        is_open, is_xml, everything = ~topics.are("sealed"), topics.are("xml"), np.ones(len(topics), np.bool_)
        self._here.allow(len(topics) * budget.SECONDS_PER_TOPIC + topics.bytes * budget.SECONDS_PER_BYTE)
        self._beside.allow(int(is_xml.sum()) * budget.SECONDS_PER_DOCUMENT)
        confined: list[tuple[Asked, Rows]] = []
        for asked, clue, matching in self._queries:
            if asked.number in self._given_up:
                continue
            # No query finds a sealed topic; by its times alone it is found (T9, T14).
            admitted = is_xml if matching is None else everything if asked.text is None else is_open
            try:
                rows = left.by(clue)
                rows = np.flatnonzero(admitted) if rows is None else np.sort(rows[admitted[rows]])
                # Not by identity: each task has copies.
                if asked.times != ANY_TIME and len(rows):
                    created, expires = topics.column("created"), topics.column("expires")
                    rows = rows[[asked.times.admit(created[row], expires[row]) for row in rows.tolist()]]
                if not len(rows):
                    continue
                if matching is None:
                    confined.append((asked, rows))
                    continue
                began = clock()
                found = matching(topics, rows, began + self._here.left(asked.number))
            except Overrun:
                yield self._give_up(asked, self._here.overrun)
                continue
            except _THE_MACHINES:
                raise
            except Exception as error:
                yield self._failed(asked, error)
                continue
            self._here.use(asked.number, clock() - began)
            if len(found):
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
                if self._beside.left(one.number) < 0:
                    yield self._give_up(one, self._beside.overrun)
                    continue
                try:
                    told, seconds = self._confined.ask(one, [documents[row] for row in some.tolist()])
                except _THE_MACHINES:
                    raise
                except Exception as error:
                    yield self._failed(one, error)
                    continue
                self._beside.use(one.number, seconds)
                if isinstance(told, str):
                    yield self._give_up(one, told)
                elif told:
                    yield one.number, some[told]

    def _failed(self, asked: Asked, error: Exception) -> Found:
        """T38: one query stops none of the others, whatever is wrong with it, or with us."""
        logger.info("query %s failed", asked.id, exc_info=error)
        return self._give_up(asked, unexpected(error))

    def _give_up(self, asked: Asked, why: str) -> Found:
        self._given_up.add(asked.number)
        return asked.number, why


def _matching(query: Query) -> _Matching:
    """What finds the topics that match among those that a clue has left."""
    if isinstance(query, RegexQuery):
        return lambda topics, rows, until: _regex(query, topics, rows, until)
    if isinstance(query, StringQuery):
        return lambda topics, rows, until: rows[text_by_text(query.stands_in, map(topics.folded, rows.tolist()), until=until)]
    if isinstance(query, SqlQuery) and (by_columns := sql_columns.asks(query)) is not None:
        return by_columns
    return lambda topics, rows, until: rows[one_by_one(lambda row: query.matches(topics.subject(row)), rows.tolist(), until=until)]


def _failing(error: Exception) -> _Matching:
    """Of a query that could not be compiled here, although it was where the job began: a worker's stack may be less deep."""

    def fail(topics: Topics, rows: Rows, until: float) -> Rows:
        raise error

    return fail


def _all(topics: Topics, rows: Rows, until: float) -> Rows:
    return rows


def _regex(query: RegexQuery, topics: Topics, rows: Rows, until: float) -> Rows:
    if len(rows) < _MANY or query.instructions > _MOST_INSTRUCTIONS:
        return rows[text_by_text(query.stands_in, map(topics.searchable, rows.tolist()), until=until)]
    parts: list[npt.NDArray[np.bool_]] = []
    for texts in topics.slices:
        if parts:
            keep_to(until)
        parts.append(np.asarray(pc.match_substring_regex(texts, query.pattern).fill_null(False)))
    found: npt.NDArray[np.bool_] = np.concatenate(parts)
    return rows[found[rows]]
