"""All queries of a job, asked of one batch of topics after the other.

Plain strings, regular expressions and SQL are asked here: each takes time in proportion to the text, within the limits of its compiler. XPath and XQuery
have no such bound and are asked in a process that can be killed (`confined`). A regular expression that is left many topics is put to all of them by
Arrow, whose RE2 is the one that defines the language (a test compares the two over all of Unicode), and which needs no Python for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow.compute as pc

from spark.search.asked import Asked
from spark.search.clues import Clues
from spark.search.confined import Confined
from spark.search.topics import Topics
from tdn.queries.compile import compile_query
from tdn.queries.model import Query
from tdn.queries.regex import RegexQuery
from tdn.queries.times import ANY_TIME

#: A query by its number, and the rows of the topics that it found; or why it could not go on.
Found = tuple[int, list[int] | str]

_CONFINED = ("xpath", "xquery")
#: From so many topics on it is cheaper to let Arrow compile a pattern anew and look at the whole batch.
_MANY = 500


@lru_cache(maxsize=1)
def _compiled(asked: tuple[Asked, ...]) -> tuple[list[tuple[Asked, Query]], Clues]:
    """The queries of a job. Kept for the next task of the same job in this worker: compiling a thousand takes longer than asking them of a thousand topics."""
    # Not by `compile_query`'s memory, which holds fewer than a job may have.
    queries: list[tuple[Asked, Query]] = [(one, compile_query.__wrapped__(one.language, one.text)) for one in asked]
    return queries, Clues(query.clue for _, query in queries)


class Bulk:
    """The queries of a job in one task."""

    def __init__(self, asked: Sequence[Asked], confined: Confined) -> None:
        self._queries, self._clues = _compiled(tuple(asked))
        self._confined = confined
        self._given_up: set[int] = set()

    def ask(self, topics: Topics) -> Iterator[Found]:
        """What the queries find among some topics. A query that was given up is not asked again."""
        left = self._clues.of(topics)
        open_rows = [row for row, kind in enumerate(topics.column("descriptor_kind")) if kind != "sealed"]
        is_open = frozenset(open_rows)
        xml_rows = [row for row in open_rows if topics.column("descriptor_kind")[row] == "xml"]
        is_xml = frozenset(xml_rows)
        for asked, query in self._queries:
            if asked.number in self._given_up:
                continue
            rows = left.by(query.clue)
            confined = asked.language in _CONFINED
            if rows is None:
                candidates = xml_rows if confined else open_rows
            else:
                candidates = sorted(rows & (is_xml if confined else is_open))
            if asked.times is not ANY_TIME:
                created, expires = topics.column("created"), topics.column("expires")
                candidates = [row for row in candidates if asked.times.admit(created[row], expires[row])]
            if not candidates:
                continue
            found = self._ask_confined(asked, topics, candidates) if confined else self._matching(query, topics, candidates)
            if found:
                yield asked.number, found

    def _matching(self, query: Query, topics: Topics, candidates: list[int]) -> list[int]:
        if not isinstance(query, RegexQuery):
            matches, subject = query.matches, topics.subject
            return [row for row in candidates if matches(subject(row))]
        if len(candidates) < _MANY:
            stands_in, text = query.stands_in, topics.searchable
            return [row for row in candidates if stands_in(text(row))]
        found = pc.match_substring_regex(topics.all_searchable(), query.pattern).to_pylist()
        return [row for row in candidates if found[row]]

    def _ask_confined(self, asked: Asked, topics: Topics, candidates: list[int]) -> list[int] | str:
        documents = topics.column("xml")
        told = self._confined.ask(asked, [documents[row] for row in candidates])
        if isinstance(told, str):
            self._given_up.add(asked.number)
            return told
        return [candidates[place] for place in told]
