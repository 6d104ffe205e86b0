"""What every test of hierarchies and collections asks of a state: that its facts agree with each other, and that a refusal leaves no trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from little_network import Log

from tdn.rules.state import Fact, MemoryState, Outcome, State, digest_of
from tdn.store.search import Reader
from tdn.store.view import View

#: Everything that hierarchies and collections are made of.
SPACES = ("topic", "reserved", "child", "member", "in", "size", "settling", "pending", "watch", "watched", "change", "ends")


def refused(log: Log, act: Callable[[], Outcome]) -> str:
    """Why something was refused, after it was found to have left nothing but the memory of the request."""
    before = _without_requests(log.state)
    outcome = act()
    assert outcome.status == "refused", outcome
    assert {write.space for write in outcome.writes} <= {"request", "ends"}
    assert _without_requests(log.state) == before
    assert outcome.error is not None
    return str(outcome.error["message"])


def accepted(outcome: Outcome) -> Fact:
    """The receipt of what was accepted."""
    assert outcome.status == "accepted", outcome
    assert outcome.receipt is not None
    return outcome.receipt


def _without_requests(state: MemoryState) -> str:
    """The digest of a state apart from which requests it remembers."""
    facts = sorted(state._facts.items())
    return digest_of(
        (space, key, fact)
        for (space, key), fact in facts
        if space != "request" and not (space == "ends" and key.split(" ")[1] == "request")
    )


def fork(log: Log) -> Log:
    """The same log, to go on with in another way."""
    state = MemoryState()
    state._facts = dict(log.state._facts)
    state._keys = {space: list(keys) for space, keys in log.state._keys.items()}
    return Log(log.net, state, list(log.records), list(log.outcomes))


class Counted:
    """A state that counts how many facts were read of it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.reads = 0

    def get(self, space: str, key: str) -> Fact | None:
        self.reads += 1
        return self._state.get(space, key)

    def scan(self, space: str, *, after: str = "", up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        found = list(self._state.scan(space, after=after, up_to=up_to, limit=limit))
        self.reads += 1 + len(found)
        return iter(found)

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        found = list(self._state.all(space))
        self.reads += 1 + len(found)
        return iter(found)


# --- facts that agree ---


def check_sound(state: State) -> None:
    """Sizes are what is counted, both directions of a membership are there, no limit is passed, and nobody outlives an ancestor."""
    facts = {space: dict(state.all(space)) for space in SPACES}
    topics = facts["topic"]
    settling = set(facts["settling"])
    _check_hierarchies(facts, topics, settling)
    _check_collections(facts, topics, settling)
    _check_watches(facts, topics)
    live = {f"{fact['expires']} topic {uuid}" for uuid, fact in topics.items() if fact["state"] == "live"}
    assert {key for key in facts["ends"] if key.split(" ")[1] == "topic"} == live
    reserved = {f"{fact['until']} reserved {uuid}" for uuid, fact in facts["reserved"].items()}
    assert {key for key in facts["ends"] if key.split(" ")[1] == "reserved"} == reserved


def _check_hierarchies(facts: dict[str, dict[str, Fact]], topics: dict[str, Fact], settling: set[str]) -> None:
    below = {f"{fact['parent']} {fact['created']} {uuid}" for uuid, fact in topics.items() if _is_child(fact)}
    assert set(facts["child"]) == below
    count = Counter(key.partition(" ")[0] for key in below) + Counter(fact["parent"] for fact in facts["reserved"].values())
    for uuid, fact in topics.items():
        if fact["kind"] != "topic":
            continue
        size = facts["size"].get(uuid, {"members": 0})["members"]
        assert size == count[uuid], f"{uuid} counts {size} children and has {count[uuid]}"
        width = (fact.get("hosting") or {}).get("width")
        assert width is None or size <= width
    waiting = {key.removeprefix("topic ") for key in settling if key.startswith("topic ")}
    assert facts["pending"].get("topics", {"count": 0})["count"] == len(waiting)
    for uuid, fact in topics.items():
        if not _is_child(fact):
            continue
        parent = topics[fact["parent"]]
        assert fact["root"] == parent.get("root", fact["parent"])
        if fact["parent"] not in waiting:
            assert parent["state"] == "live", f"{uuid} outlives {fact['parent']}"
            assert fact["expires"] <= parent["expires"], f"{uuid} outlives {fact['parent']}"
        above, own = parent["hosting"], fact["hosting"]
        assert above["allow"]
        assert above["depth"] is None or (own["depth"] is not None and 1 <= own["depth"] < above["depth"])
        assert above["width"] is None or (own["width"] is not None and own["width"] <= above["width"])


def _is_child(fact: Fact) -> bool:
    return fact["state"] == "live" and "parent" in fact


def _check_collections(facts: dict[str, dict[str, Fact]], topics: dict[str, Fact], settling: set[str]) -> None:
    held = {tuple(key.split(" ")) for key in facts["member"]}
    assert {(member, place) for place, _, member in held} == {tuple(key.split(" ")) for key in facts["in"]}
    members: dict[str, set[str]] = {}
    for place, kind, member in held:
        assert topics[place]["kind"] == "collection"
        assert topics[member]["kind"] == kind
        assert topics[member]["state"] == "live" or f"collection {member}" in settling
        members.setdefault(place, set()).add(member)
    trees: dict[str, tuple[int, frozenset[str], int]] = {}
    for uuid, fact in topics.items():
        if fact["kind"] != "collection":
            continue
        ended = fact["state"] != "live"
        assert not ended or f"collection {uuid}" in settling or uuid not in members
        size = facts["size"].get(uuid, {"members": 0})
        assert size["members"] == len(members.get(uuid, ()))
        if ended:
            continue
        limits = fact["gathering"]["limits"]
        height, inside, breadth = _tree(uuid, members, topics, trees)
        assert not limits["depth"] or height <= limits["depth"]
        assert not limits["breadth"] or breadth <= limits["breadth"]
        if limits["topics"]:
            assert size.get("topics", 0) == len(inside) <= limits["topics"]
        else:
            assert "topics" not in size


def _tree(
    uuid: str, members: dict[str, set[str]], topics: dict[str, Fact], known: dict[str, tuple[int, frozenset[str], int]]
) -> tuple[int, frozenset[str], int]:
    """Levels, topics and the largest breadth of a collection's tree. Recursive: for small trees."""
    if uuid not in known:
        own = members.get(uuid, set())
        inner = [_tree(member, members, topics, known) for member in own if topics[member]["kind"] == "collection"]
        inside = frozenset(member for member in own if topics[member]["kind"] == "topic").union(*(part[1] for part in inner))
        known[uuid] = (
            1 + max((part[0] for part in inner), default=0),
            inside,
            max([len(own), *(part[2] for part in inner)]),
        )
    return known[uuid]


def _check_watches(facts: dict[str, dict[str, Fact]], topics: dict[str, Fact]) -> None:
    watched: Counter[str] = Counter()
    for key in facts["watch"]:
        uuid = key.partition(" ")[0]
        watched[uuid] += 1
        if topics[uuid]["kind"] == "topic":
            watched[f"tree {topics[uuid].get('root', uuid)}"] += 1
    assert {key: fact["count"] for key, fact in facts["watched"].items()} == dict(watched)
    leases = {f"{fact['until']} watch {key}" for key, fact in facts["watch"].items()}
    assert {key for key in facts["ends"] if key.split(" ")[1] == "watch"} == leases
    places = {f"{key} {fact['since']:012d}": fact["version"] for key, fact in facts["watch"].items()}
    told: dict[str, list[int]] = {}
    for key in facts["change"]:
        place, _, version = key.rpartition(" ")
        told.setdefault(place, []).append(int(version))
    for place, versions in told.items():
        if place not in places:
            assert f"watch {place}" in facts["settling"]
            continue
        assert versions == list(range(places[place] - len(versions) + 1, places[place] + 1))


# --- the same in a store ---


@dataclass
class StoredLog:
    """A log in memory whose records a store on disk has applied too, as far as it was told to."""

    log: Log
    path: Path
    view: View = field(init=False)
    reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.view = View(self.path)
        self.catch_up()
        self.reader = Reader(self.path)

    def catch_up(self) -> None:
        """Apply what was appended since, and find that the store decides as the memory does."""
        fresh = self.log.records[self.view.position.seq :]
        decided = self.view.apply_all([(record.seq, record.raw) for record in fresh], durable=False)
        assert [outcome for _, outcome in decided] == self.log.outcomes[len(self.log.outcomes) - len(fresh) :]

    def close(self) -> None:
        self.reader.close()
        self.view.close()


def in_turn(iterator: Iterator[Any]) -> list[tuple[str, int, str | None]]:
    """What is seen of a tree: which, how far, inside what."""
    return [(seen.uuid, seen.depth, seen.inside) for seen in iterator]
