"""What the processes that evaluate XPath and XQuery import, once, before the first of them is forked; and what they do."""

from __future__ import annotations

from typing import Any

from tdn.protocol.descriptor import xml
from tdn.queries.compile import compile_query, warm_up
from tdn.queries.model import Subject
from tdn.queries.xquery import XQueryQuery

warm_up(xquery=False)


def evaluator(argument: dict[str, Any]) -> Any:
    """What answers jobs: the places of the documents that match. Everything that it needs is opened here: later nothing can be."""
    if argument["language"] == "xquery":
        # Each process needs an engine of its own.
        warm_up(xquery=True)
    return evaluate


def evaluate(job: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    query = compile_query(job["language"], job["query"])
    if job["check"]:
        if isinstance(query, XQueryQuery):
            query.prepare()
        return {"matched": []}, []
    return {"matched": [place for place, document in enumerate(job["documents"]) if query.matches(_subject(document))]}, []


def _subject(document: str) -> Subject:
    """XPath and XQuery see the document alone."""
    return Subject("", "topic", "", "", "", "", "", xml(document), "")
