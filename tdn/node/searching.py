"""One discovery, from the question to the rows: what runs in a process that can be killed.

It holds no key and signs nothing. It reads the node's store, and gives signed advertisements as they were stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tdn.protocol.access import Asker
from tdn.protocol.times import parse_time
from tdn.queries.compile import compile_query, warm_up
from tdn.queries.times import ANY_TIME, read_times
from tdn.store.search import FoundTopic, Reader, Search

Result = tuple[dict[str, Any], Sequence[bytes]]

#: What a status beside an advertisement takes.
_STATUS_BYTES = 2_400
#: Bytes of advertisements, and of what goes with them, in one answer. Who wants more goes on with the cursor; a small question must not make a node hold hundreds of
#: megabytes.
ANSWER_BYTES = 1_500_000


def searcher(argument: dict[str, Any]) -> Callable[[dict[str, Any]], Result]:
    """What answers jobs, over the store at a path. Everything that a job needs is opened here: later nothing can be."""
    if argument.get("heavy"):
        # Each process needs an engine of its own; the rest was loaded before it was forked.
        warm_up(xquery=True)
    reader = Reader(Path(argument["store"]))
    reader.open_all()
    return lambda job: search(reader, job)


def search(reader: Reader, job: dict[str, Any]) -> Result:
    """Rows and their advertisements; or how many there are. One of our errors when the query is no good."""
    looked_for = Search(
        asker=Asker(job["entity"], job["institution"]),
        now=parse_time(job["now"]),
        query=compile_query(job["language"], job["query"]) if "query" in job else None,
        times=read_times(job["times"]) if "times" in job else ANY_TIME,
        sealed=job.get("sealed", False),
    )
    if job.get("count"):
        return {"total": reader.count(looked_for)}, []
    page = reader.discover(looked_for, after=(job["after"][0], job["after"][1]), limit=job["limit"])
    topics, after = _up_to(ANSWER_BYTES, page.topics, page.after)
    rows = [
        [topic.uuid, topic.created, topic.expires, topic.owner, topic.seq, topic.advertised, topic.opening] for topic in topics
    ]
    # Only where a query was asked: without one, sealed topics are among those found.
    sealed = looked_for.query is not None and reader.has_sealed(looked_for)
    return {"rows": rows, "after": after, "sealed": sealed}, [topic.advertisement for topic in topics]


def read_result(result: Result) -> tuple[list[FoundTopic], tuple[str, str] | None]:
    """The topics of a result, in the node's own process."""
    said, advertisements = result
    topics = [
        FoundTopic(uuid, created, expires, owner, seq, advertised, advertisement, opening)
        for (uuid, created, expires, owner, seq, advertised, opening), advertisement in zip(
            said["rows"], advertisements, strict=True
        )
    ]
    after = said["after"]
    return topics, (after[0], after[1]) if after is not None else None


def _up_to(
    most_bytes: int, topics: Sequence[FoundTopic], after: tuple[str, str] | None
) -> tuple[Sequence[FoundTopic], tuple[str, str] | None]:
    """As many topics as an answer may hold, at least one, and where to go on."""
    size = 0
    for number, topic in enumerate(topics):
        size += len(topic.advertisement) + (_STATUS_BYTES if topic.changed else 0)
        if topic.opening is not None:
            size += len(json.dumps(topic.opening))
        if number and size > most_bytes:
            before = topics[number - 1]
            return topics[:number], (before.created, before.uuid)
    return topics, after
