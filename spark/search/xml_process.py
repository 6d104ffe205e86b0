"""What the processes that evaluate XPath and XQuery import, once, before the first of them is forked; and what they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tdn.protocol.descriptor import xml
from tdn.queries import xpath_document
from tdn.queries.compile import compile_query, warm_up
from tdn.queries.model import Subject
from tdn.queries.xpath import NOT_READ, XPathQuery
from tdn.queries.xquery import XQueryQuery

warm_up(xquery=False)


def evaluator(argument: dict[str, Any]) -> Any:
    """What answers jobs: the places of the documents that match. Everything that it needs is opened here: later nothing can be."""
    if argument["language"] == "xquery":
        # Each process needs an engine of its own.
        warm_up(xquery=True)
    return evaluate


def evaluate(job: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    query = _compiled(job["language"], job["query"])
    if job["check"]:
        if isinstance(query, XQueryQuery):
            query.prepare()
        return {"matched": []}, []
    matches = _holding(query) if isinstance(query, XPathQuery) else lambda document: query.matches(_subject(document))
    return {"matched": [place for place, document in enumerate(job["documents"]) if matches(document)]}, []


#: All queries of all but the largest jobs: each comes again for every portion of documents.
_compiled = lru_cache(maxsize=4096)(compile_query.__wrapped__)
#: Documents that are kept, parsed, for the queries that are asked of the same ones next: those of one portion (`confined.DOCUMENTS`).
_KEPT_DOCUMENTS = 256
_read = lru_cache(maxsize=_KEPT_DOCUMENTS)(xpath_document.read)


def _holding(query: XPathQuery) -> Callable[[str], bool]:
    def holds(document: str) -> bool:
        try:
            return query.holds_in(_read(document))
        except NOT_READ:
            return False

    return holds


def _subject(document: str) -> Subject:
    """XPath and XQuery see the document alone."""
    return Subject("", "topic", "", "", "", "", "", xml(document), "")
