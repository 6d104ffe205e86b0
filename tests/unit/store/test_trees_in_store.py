"""Hierarchies and collections in a store on disk: the same facts as in memory, rows that follow them, and costs that do not grow with the trees."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, Log, fresh_uuid
from pki import T0
from sound_trees import Counted, StoredLog, accepted, check_sound, in_turn
from store_index import check_sound as check_indexes

from tdn.protocol.access import Asker
from tdn.protocol.times import format_time
from tdn.rules import endings
from tdn.rules.apply import apply
from tdn.rules.sight import Sight
from tdn.rules.state import LogRecord, Outcome, next_head
from tdn.store.search import Reader, Search
from tdn.store.topics import NOTHING
from tdn.store.view import View

PEOPLE = ("alice", "bob", "carol")
HOSTS = {"allow_children": True}
OPEN: dict[str, Any] = {
    "child_collections": True,
    "inclusion": True,
    "lists": {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]},
}
MANY = 100_000


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    return net.log(PEOPLE)


@pytest.fixture
def stored(log: Log, tmp_path: Path) -> Iterator[StoredLog]:
    with closing(StoredLog(log, tmp_path / "view.db")) as stored:
        yield stored


def found(reader: Reader, who: str = "bob", at: datetime = T0) -> set[str]:
    """What discovery gives."""
    return {topic.uuid for topic in reader.discover(Search(Asker(who, "local"), at), limit=100_000).topics}


def withdraw(log: Log, uuid: str) -> Outcome:
    return log.put("withdraw", log.net.withdraw(log.net.entity("alice"), uuid))


def add(log: Log, place: str, *uuids: str) -> None:
    for uuid in uuids:
        accepted(log.change("add", "alice", collection=place, uuid=uuid))


# --- the same as in memory ---


def test_a_store_decides_as_the_memory_does(stored: StoredLog) -> None:
    """T25: record by record the same outcomes, and the same digest, also after it was opened again in the middle."""
    log = stored.log
    root = log.advertised(hosting={**HOSTS, "max_width": 3, "max_depth": 3}, lifetime=DAY, lists={"hierarchy_deny": ["carol"]})
    top, inner = log.collection(**OPEN, limits={"topics": 3}), log.collection(**OPEN)
    for uuid in (root, top):
        accepted(log.change("watch", "bob", uuid=uuid))
    children = [log.child(root, hosting=HOSTS, lifetime=HOUR) for _ in range(3)]
    log.put("register", log.net.register(log.net.entity("bob"), root))
    add(log, inner, *children)
    stored.catch_up()
    stored.close()
    stored.view, stored.reader = View(stored.path), Reader(stored.path)
    add(log, top, inner)
    log.put("register", log.net.register(log.net.entity("bob"), children[0]))
    log.change("move", "alice", uuid=children[0], to=top, **{"from": inner})
    log.change("add", "alice", collection=top, uuid=log.advertised())
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), root, 2 * MINUTE)))
    log.tick(T0 + MINUTE)
    withdraw(log, children[1])
    log.tick(T0 + 2 * MINUTE)
    stored.catch_up()
    assert stored.view.digest() == log.state.digest()
    check_sound(stored.view)
    check_indexes(stored.path)


# --- the table of topics ---


def test_children_are_discovered_under_the_lists_that_hold(stored: StoredLog) -> None:
    """T18, T27: a child's inherited lists are part of the condition of discovery; one list of many topics is stored once."""
    log = stored.log
    root = log.advertised(hosting=HOSTS, lists={"discover_allow": ["carol"], "hierarchy_deny": ["carol"]})
    inherits = {log.child(root) for _ in range(5)}
    widened = log.child(root, lists={"discover_allow": ["*"]})
    barred = log.child(root, lists={"discover_deny": ["carol"]})
    stored.catch_up()
    assert found(stored.reader, "carol") == {root, widened} | inherits
    assert found(stored.reader, "bob") == {widened}
    assert found(stored.reader, "alice") == {root, widened, barred} | inherits
    for uuid in (root, widened, barred, *inherits):
        for who in PEOPLE:
            shown = stored.reader.topic(uuid, Asker(who, "local"), T0) is not None
            assert shown == (uuid in found(stored.reader, who))
    with closing(sqlite3.connect(stored.path)) as db:
        rows = db.execute("SELECT access, count(*) FROM listed GROUP BY access").fetchall()
    assert sorted(count for _, count in rows) == [1, 1, 2]


def test_a_subtree_that_has_ended_is_not_discovered_while_rows_are_left(
    stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T26: gone for everybody with the record that ends its root; the rows go with the ticks."""
    monkeypatch.setattr(endings, "AT_ONCE", 10)
    log = stored.log
    root, beside = log.advertised(hosting=HOSTS), log.advertised(hosting=HOSTS)
    children = [log.child(root, hosting=HOSTS) for _ in range(25)]
    grandchild, other = log.child(children[-1]), log.child(beside)
    stored.catch_up()
    assert found(stored.reader) == {root, beside, grandchild, other, *children}
    withdraw(log, root)
    stored.catch_up()
    assert rows(stored.path) > 10
    assert found(stored.reader) == {beside, other}
    assert stored.reader.count(Search(Asker("bob", "local"), T0)) == 2
    assert {stored.reader.topic(uuid, Asker("alice", "local"), T0) for uuid in (root, grandchild, *children)} == {None}
    log.tick(T0, "n1")
    stored.catch_up()
    assert rows(stored.path) == 2
    assert found(stored.reader) == {beside, other}
    check_indexes(stored.path)


def test_a_subtree_that_was_shortened_is_not_discovered_too_long(stored: StoredLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """T26: also where its rows still say otherwise; then they say it too."""
    monkeypatch.setattr(endings, "AT_ONCE", 10)
    log = stored.log
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    children = [log.child(root, lifetime=DAY) for _ in range(25)]
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), root, MINUTE)))
    stored.catch_up()
    assert found(stored.reader, at=T0 + MINUTE - SECOND) == {root, *children}
    assert found(stored.reader, at=T0 + MINUTE) == set()
    log.tick(T0, "n1")
    stored.catch_up()
    with closing(sqlite3.connect(stored.path)) as db:
        assert db.execute("SELECT DISTINCT expires FROM topics").fetchall() == [(format_time(T0 + MINUTE),)]


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM topics").fetchone()[0])


def test_trees_are_looked_at_where_the_table_has_no_topics(log: Log, tmp_path: Path) -> None:
    """T11: a node that stores no topics still has the rule state, and every advertisement in the log."""
    root = log.advertised(hosting=HOSTS)
    child = log.child(root)
    with closing(View(tmp_path / "none.db", NOTHING)) as view:
        view.apply_all([(record.seq, record.raw) for record in log.records], durable=False)
        with closing(Reader(tmp_path / "none.db")) as reader:
            assert found(reader) == set()
            assert in_turn(Sight(reader, Asker("bob", "local"), T0).tree(root)) == [(root, 0, None), (child, 1, root)]
            fact = reader.get("topic", child)
            assert fact is not None
            assert reader.known(child, fact, opened=None).opening is not None


# --- a collection with a hundred thousand topics ---


class Filled:
    """A store with a small and a large collection, both full of topics."""

    def __init__(self, net: LittleNetwork, path: Path) -> None:
        self.log = net.log(PEOPLE)
        limits = {"breadth": 1_000_000, "topics": 1_000_000}
        self.small, self.large = (self.log.collection(limits=limits, lifetime=DAY) for _ in range(2))
        for place in (self.small, self.large):
            add(self.log, place, *(self.log.advertised(lifetime=DAY) for _ in range(10)))
        self.view = View(path)
        self.view.apply_all([(record.seq, record.raw) for record in self.log.records], durable=False)
        self.inside = sorted(self._state_the_rest(path))
        self.view.close()
        self.view = View(path)

    def _state_the_rest(self, path: Path) -> list[str]:
        """What some hundred thousand more requests would have made of the large collection."""
        fact = next(fact for _, fact in self.log.state.all("topic") if fact["kind"] == "topic")
        more = [fresh_uuid(2**30 + number) for number in range(MANY - 10)]
        text = json.dumps(dict(fact), sort_keys=True, separators=(",", ":"))
        with closing(sqlite3.connect(path)) as db:
            db.executemany("INSERT INTO facts VALUES ('topic', ?, ?)", [(uuid, text) for uuid in more])
            db.executemany("INSERT INTO facts VALUES ('member', ?, '{}')", [(f"{self.large} topic {uuid}",) for uuid in more])
            db.executemany("INSERT INTO facts VALUES ('in', ?, '{}')", [(f"{uuid} {self.large}",) for uuid in more])
            size = json.dumps({"members": MANY, "topics": MANY})
            db.execute("UPDATE facts SET value = ? WHERE space = 'size' AND key = ?", (size, self.large))
            db.commit()
            here = db.execute("SELECT key FROM facts WHERE space = 'member' AND key LIKE ?", (f"{self.large} topic %",))
            return [key.split(" ")[2] for (key,) in here]

    def judge(self, kind: str, **body: Any) -> tuple[Outcome, int]:
        """What comes of a request, and how many facts were read for it. Nothing is written."""
        raw = self.log.net.record(kind, self.log.net.request(kind, body, self.log.net.entity("alice")))
        counted = Counted(self.view)
        position = self.view.position
        return apply(counted, LogRecord(position.seq + 1, next_head(position.head, raw), raw)), counted.reads


@pytest.fixture(scope="module")
def filled(net: LittleNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    filled = Filled(net, Path(tmp_path_factory.mktemp("filled")) / "view.db")
    yield filled
    filled.view.close()


def test_adding_to_and_removing_from_a_hundred_thousand(filled: Filled) -> None:
    """T33: as many facts are read and written as where there are ten; the counts are right afterwards."""
    single = next(uuid for uuid, fact in filled.view.all("topic") if fact["kind"] == "topic" and uuid not in filled.inside)
    small = next(key.split(" ")[2] for key, _ in filled.view.all("member") if key.startswith(filled.small))
    costs: dict[tuple[str, str], tuple[int, int]] = {}
    for name, place, member in (("small", filled.small, small), ("large", filled.large, filled.inside[MANY // 2])):
        free = single if place == filled.large else filled.inside[0]
        for kind, uuid, change in (("add", free, 1), ("remove", member, -1)):
            outcome, reads = filled.judge(kind, collection=place, uuid=uuid)
            accepted(outcome)
            costs[name, kind] = (reads, len(outcome.writes))
            written = {(write.space, write.key): write.value for write in outcome.writes}
            count = (10 if place == filled.small else MANY) + change
            assert written["size", place] == {"members": count, "topics": count}
    assert costs["small", "add"] == costs["large", "add"]
    assert costs["small", "remove"] == costs["large", "remove"]


def test_adding_twice_to_a_hundred_thousand(filled: Filled) -> None:
    """T33: a clear answer, without looking for it."""
    outcome, reads = filled.judge("add", collection=filled.large, uuid=filled.inside[-1])
    assert outcome.error is not None
    assert outcome.error["message"] == f"{filled.inside[-1]} is in collection {filled.large} already"
    assert reads < 50


def test_the_end_of_a_hundred_thousand(filled: Filled) -> None:
    """T33: its record releases a few; it is not one that stalls every node."""
    outcome, reads = filled.judge("withdraw", uuid=filled.large)
    accepted(outcome)
    assert len(outcome.writes) < 10 * endings.AT_ONCE
    assert reads < 20 * endings.AT_ONCE


def test_a_hundred_thousand_are_listed(filled: Filled) -> None:
    """T36: each once, in order, read in portions; from a place in the middle, as quickly as from the beginning."""
    asker = Asker("bob", "local")
    sight = Sight(filled.view, asker, T0)
    first = itertools.islice(sight.topics(filled.large), 5000)
    assert [seen.uuid for seen in first] == filled.inside[:5000]
    counted = Counted(filled.view)
    later = Sight(counted, asker, T0).topics(filled.large, after=filled.inside[MANY - 100])
    assert [seen.uuid for seen in later] == filled.inside[MANY - 99 :]
    assert counted.reads < 1000
