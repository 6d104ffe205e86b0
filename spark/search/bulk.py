"""All queries of a job, asked of one batch of topics after the other.

Plain strings, regular expressions and SQL are asked here: each takes time in proportion to the text, within the limits of its compiler. XPath and XQuery
have no such bound and are asked in a process that can be killed (`confined`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark.search.asked import Asked
from spark.search.clues import Clues
from spark.search.confined import Confined
from spark.search.topics import Topics
from tdn.queries.compile import compile_query
from tdn.queries.model import Query
from tdn.queries.times import ANY_TIME

#: A query that found a topic, by its number; or one that could not go on, and why.
Found = tuple[int, str | None, str | None]

_CONFINED = ("xpath", "xquery")


class Bulk:
    """The queries of a job in one task."""

    def __init__(self, asked: Sequence[Asked], confined: Confined) -> None:
        # Not by `compile_query`'s memory, which holds fewer than a job may have.
        self._queries: list[tuple[Asked, Query]] = [(one, compile_query.__wrapped__(one.language, one.text)) for one in asked]
        self._clues = Clues(query.clue for _, query in self._queries)
        self._confined = confined
        self._given_up: set[int] = set()

    def ask(self, topics: Topics) -> Iterator[Found]:
        """What the queries find among some topics. A query that was given up is not asked again."""
        left = self._clues.of(topics)
        uuids = topics.column("uuid")
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
            if confined:
                yield from self._ask_confined(asked, topics, candidates)
                continue
            subject, matches = topics.subject, query.matches
            for row in candidates:
                if matches(subject(row)):
                    yield asked.number, uuids[row], None

    def _ask_confined(self, asked: Asked, topics: Topics, candidates: list[int]) -> Iterator[Found]:
        documents = topics.column("xml")
        told = self._confined.ask(asked, [documents[row] for row in candidates])
        if isinstance(told, str):
            self._given_up.add(asked.number)
            yield asked.number, None, told
            return
        uuids = topics.column("uuid")
        for place in told:
            yield asked.number, uuids[candidates[place]], None
