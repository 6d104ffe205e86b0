"""One discovery, or one look at a tree, from the question to the rows: what runs in a process that can be killed.

It holds no key and signs nothing. It reads the node's store, and gives signed advertisements as they were stored.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tdn.errors import Absent, UsageError
from tdn.protocol.access import Asker
from tdn.protocol.times import parse_time
from tdn.queries.compile import compile_query, warm_up
from tdn.queries.times import ANY_TIME, read_times
from tdn.rules.sight import COLLECTION, TOPIC, Seen, Sight
from tdn.store.search import FoundTopic, Reader, Search
from tdn.trust import openings

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
    return lambda job: look_at_tree(reader, job) if "tree" in job else search(reader, job)


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
    rows = [_row(topic) for topic in topics]
    # Only where a query was asked: without one, sealed topics are among those found.
    sealed = looked_for.query is not None and reader.has_sealed(looked_for)
    return {"rows": rows, "after": after, "sealed": sealed}, [topic.advertisement for topic in topics]


#: Topics in one answer about a tree, also where they are small.
_TREE_TOPICS = 2_000


def look_at_tree(reader: Reader, job: dict[str, Any]) -> Result:
    """T27, T36: what stands around a topic or in a collection, as far as the viewer sees; with the cursor, from there on."""
    view = Sight(reader, Asker(job["entity"], job["institution"]), parse_time(job["now"]))
    result = _take(reader, view, job)
    if result[0]["more"] and job["tree"] in _BY_DISTANCE and "cursor" not in job:
        # More than one answer holds. How near something is may change until the next is asked for; its UUID does not.
        result = _take(reader, view, {**job, "cursor": ""})
    return result


def _take(reader: Reader, view: Sight, job: dict[str, Any]) -> Result:
    """As much as one answer may hold."""
    rows: list[list[Any]] = []
    advertisements: list[bytes] = []
    size = 0
    for seen in _around(view, job):
        topic = reader.known(seen.uuid, seen.fact, opened=_disclosed(seen, job["asker"]))
        size += _size(topic)
        if rows and (size > ANSWER_BYTES or len(rows) == _TREE_TOPICS):
            return {"rows": rows, "more": True}, advertisements
        place = {"depth": seen.depth} if seen.inside is None else {"depth": seen.depth, "in": seen.inside}
        rows.append([*_row(topic), place])
        advertisements.append(topic.advertisement)
    return {"rows": rows, "more": False}, advertisements


def _around(view: Sight, job: dict[str, Any]) -> Iterator[Seen]:
    what, uuid, depth, after = job["tree"], job["uuid"], job.get("depth"), job.get("cursor")
    fact = view.topic(uuid)
    if fact is None or (what in _OF_HIERARCHIES and fact["kind"] == TOPIC and view.place(uuid) is None):
        raise Absent(f"there is no topic {uuid}" if what in _OF_HIERARCHIES else f"there is no {uuid}")
    if what in _OF_HIERARCHIES and fact["kind"] != TOPIC:
        raise UsageError(f"{uuid} is a collection, which is in no hierarchy; see `entity collection`")
    if what in ("topics", "collections") and fact["kind"] == TOPIC:
        raise UsageError(f"{uuid} is a topic, which holds nothing; see `entity hierarchy`")
    if what == "tree":
        return view.tree(uuid, depth, after)
    if what == "children":
        return (seen for seen in view.tree(uuid, depth or 1, after) if seen.depth)
    if what == "topics":
        return view.topics(uuid, after or "", depth)
    if what == "parents":
        found = view.parents(uuid, depth)
        # An ancestor ends with all below it, so the one that was given last is still there.
        return found if after is None else itertools.islice(itertools.dropwhile(lambda seen: seen.uuid != after, found), 1, None)
    found = (view.collections if what == "collections" else view.containing)(uuid, depth)
    return found if after is None else iter(sorted((seen for seen in found if seen.uuid > after), key=lambda seen: seen.uuid))


_OF_HIERARCHIES = ("parents", "children", "tree")
#: What is given in the order of its distance where one answer holds it all, else in the order of UUIDs.
_BY_DISTANCE = ("collections", "of")


def _disclosed(seen: Seen, asker: str) -> Collection[str] | None:
    """Which claims of what an advertisement hides go along: all to its owner, the place to whoever sees it."""
    if seen.fact["owner"] == asker:
        return None
    if seen.fact["kind"] == COLLECTION:
        return (openings.GATHERING,)
    # That there is a claim shows too: nothing of a child where its parent does not show, and nothing of a root, which must look the same.
    return (openings.PARENT, openings.HOSTING) if seen.inside is not None and seen.inside == seen.fact.get("parent") else ()


def _row(topic: FoundTopic) -> list[Any]:
    return [topic.uuid, topic.created, topic.expires, topic.owner, topic.seq, topic.advertised, topic.opening]


def read_places(result: Result) -> list[tuple[FoundTopic, dict[str, Any]]]:
    """What was seen of a tree, in the node's own process: each with its place."""
    said, advertisements = result
    return [(_found(row[:-1], advertisement), row[-1]) for row, advertisement in zip(said["rows"], advertisements, strict=True)]


def read_result(result: Result) -> tuple[list[FoundTopic], tuple[str, str] | None]:
    """The topics of a result, in the node's own process."""
    said, advertisements = result
    topics = [_found(row, advertisement) for row, advertisement in zip(said["rows"], advertisements, strict=True)]
    after = said["after"]
    return topics, (after[0], after[1]) if after is not None else None


def _found(row: list[Any], advertisement: bytes) -> FoundTopic:
    uuid, created, expires, owner, seq, advertised, opening = row
    return FoundTopic(uuid, created, expires, owner, seq, advertised, advertisement, opening)


def _up_to(
    most_bytes: int, topics: Sequence[FoundTopic], after: tuple[str, str] | None
) -> tuple[Sequence[FoundTopic], tuple[str, str] | None]:
    """As many topics as an answer may hold, at least one, and where to go on."""
    size = 0
    for number, topic in enumerate(topics):
        size += _size(topic)
        if number and size > most_bytes:
            before = topics[number - 1]
            return topics[:number], (before.created, before.uuid)
    return topics, after


def _size(topic: FoundTopic) -> int:
    size = len(topic.advertisement) + (_STATUS_BYTES if topic.changed else 0)
    return size if topic.opening is None else size + len(json.dumps(topic.opening))
