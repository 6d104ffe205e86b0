"""A stranger's query over one's own topics: what runs in a process that can be killed (T17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tdn.queries.compile import compile_query, warm_up
from tdn.queries.model import Subject, finds

# Nobody but that process imports this module, and it must not be interrupted in the middle of an import.
warm_up(xquery=False)


def matcher(argument: dict[str, Any]) -> Callable[[dict[str, Any]], tuple[dict[str, Any], Sequence[bytes]]]:
    """What answers jobs: which of the subjects a query finds, by number. All that a job needs is loaded here: later nothing can be opened."""
    if argument.get("heavy"):
        warm_up(xquery=True)

    def match(job: dict[str, Any]) -> tuple[dict[str, Any], Sequence[bytes]]:
        query = compile_query(job["language"], job["query"])
        return {"matches": [number for number, subject in enumerate(job["subjects"]) if finds(query, Subject(**subject))]}, []

    return match
