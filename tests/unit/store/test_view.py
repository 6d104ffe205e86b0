"""The SQLite view and the dict reach the same state from the same log, however it was cut into batches and interrupted."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, Log, fresh_uuid, read_uuid
from pki import T0
from sizes import examples
from store_index import check_sound, owners

from tdn.errors import LogDiverged, NoRoom, UnknownRules
from tdn.protocol.access import Asker
from tdn.protocol.times import parse_time
from tdn.rules.state import ARCHIVED, EMPTY_HEAD, Outcome
from tdn.store import schema
from tdn.store.records import Kept, Records
from tdn.store.search import Reader
from tdn.store.view import View

NET = LittleNetwork("store")
OPENING = NET.opening(("alice", "bob"))
BOB = Asker("bob", "local")


def _prepare() -> list[bytes]:
    """Records of every kind and every fate, to be drawn from in any order: signed once, so that examples are cheap."""
    alice, bob = NET.entity("alice"), NET.entity("bob")
    tokens = [NET.mint(who, lifetime=life, at=T0) for who in (alice, bob) for life in (MINUTE, HOUR, 2 * DAY)]
    records = [b"garbage", b"", NET.record("tick", by=alice)]
    for number, token in enumerate(tokens):
        owner, other = (alice, bob) if number < 3 else (bob, alice)
        uuid = read_uuid(token)
        request = NET.advertise(owner, token)
        records += [
            NET.record("advertise", request),
            NET.record("advertise", request, by="n2", at=T0 + MINUTE),
            NET.record("advertise", NET.advertise(owner, token), at=T0 + 30 * SECOND),
            NET.record("advertise", NET.advertise(other, token)),
            NET.record("renew", NET.renew(owner, uuid, HOUR), at=T0 + 30 * SECOND),
            NET.record("withdraw", NET.withdraw(owner, uuid), by="n3"),
            NET.record("withdraw", NET.withdraw(other, uuid)),
        ]
    records += [NET.record("tick", by=node, at=T0 + late) for node in NET.node_ids for late in (MINUTE, HOUR, DAY, 3 * DAY)]
    later = NET.entity("alice", 2)
    n4 = NET.node("n4")
    records += [
        NET.record("hello", NET.hello(later)),
        NET.record("hello", NET.hello(NET.entity("carol"))),
        NET.record("enrol", NET.enrol(n4), by=n4),
        NET.record("tick", by=n4, at=T0 + HOUR),
        NET.record("revoke", NET.revoke("entity:bob")),
        NET.record("revoke", NET.revoke("node:n3")),
        NET.record("genesis", NET.genesis),
    ]
    return records


RECORDS = _prepare()


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    view = View(tmp_path / "view.db")
    yield view
    view.close()


def offsets(records: list[bytes], first: int = 0) -> list[tuple[int, bytes]]:
    """As a stream gives them: with holes."""
    return [(first + 3 * number, raw) for number, raw in enumerate(records)]


def plain(outcome: Outcome) -> tuple[object, ...]:
    return outcome.status, outcome.kind, outcome.request, outcome.receipt, outcome.error, outcome.cut


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_batching_gives_the_same_state(data: st.DataObject) -> None:
    """The same random log, with duplicates, in any batches, reopened anywhere: same outcomes, head and digest as the dict."""
    drawn = data.draw(st.lists(st.integers(0, len(RECORDS) - 1), min_size=1, max_size=30), label="records")
    log = offsets([*OPENING, *(RECORDS[number] for number in drawn)])
    memory = Log(NET)
    for _, raw in log:
        memory.append(raw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "view.db"
        view = View(path)
        outcomes: list[Outcome] = []
        done = 0
        while done < len(log):
            size = data.draw(st.integers(1, len(log) - done), label="batch")
            outcomes += [outcome for _, outcome in view.apply_all(log[done : done + size])]
            done += size
            if data.draw(st.booleans(), label="reopen"):
                view.close()
                view = View(path)
        assert [plain(outcome) for outcome in outcomes] == [plain(outcome) for outcome in memory.outcomes]
        assert view.position.head == memory.records[-1].head
        assert view.position.seq == len(log)
        assert view.digest() == memory.state.digest()
        _compare_topics(path, memory)
        view.close()


def _compare_topics(path: Path, memory: Log) -> None:
    """The table that discovery reads says what the facts say."""
    db = sqlite3.connect(path)
    rows = db.execute("SELECT uuid, created, expires, duration, owner, seq, id FROM topics ORDER BY uuid").fetchall()
    db.close()
    assert rows == [
        (uuid, fact["created"], fact["expires"], _seconds(fact), fact["owner"], fact["seq"], fact["advertised"])
        for uuid, fact in memory.state.all("topic")
        if fact["state"] == "live"
    ]
    assert owners(path)["topic_text"] == {row[-1] for row in rows}, "what has ended left the index of text too"
    check_sound(path)


def _seconds(fact: Mapping[str, Any]) -> int:
    return int((parse_time(fact["expires"]) - parse_time(fact["created"])).total_seconds())


def test_what_an_archive_takes_and_what_an_operator_asks(view: View) -> None:
    """T37: every record has the moment at which it was judged, never before the one before it, and the writes that archives keep; the
    refused ones can be asked for."""
    outcomes = [outcome for _, outcome in view.apply_all(offsets([*OPENING, *RECORDS]))]
    with closing(sqlite3.connect(view.path)) as db:
        rows = db.execute("SELECT at, effects FROM records ORDER BY seq").fetchall()
    moments = [moment for moment, _ in rows]
    assert moments == sorted(moments)
    assert max(moments) >= "2027"
    for (_, effects), outcome in zip(rows, outcomes, strict=True):
        kept = [[one.space, one.key, one.value] for one in outcome.writes if one.space in ARCHIVED]
        assert json.loads(effects) == kept
    assert {space for _, effects in rows for space, *_ in json.loads(effects)} >= {"topic", "principal", "certificate"}
    with closing(Reader(view.path)) as reader:
        refused = list(reader.refusals())
        since = parse_time(refused[3].at)
        assert [one for one in refused if parse_time(one.at) >= since] == list(reader.refusals(since))
    found = [(number, outcome) for number, outcome in enumerate(outcomes, start=1) if outcome.status == "refused"]
    assert [(one.seq, one.kind, one.because) for one in refused] == [
        (number, outcome.kind, (outcome.error or {})["message"]) for number, outcome in found
    ]
    assert {one.principal for one in refused} >= {"entity:alice", "entity:bob"}
    assert all(one.uuid for one in refused if one.kind == "withdraw")


def test_replay_from_nothing(tmp_path: Path) -> None:
    """A new node that reads the whole log has the state of one that was there all the time."""
    log = offsets([*OPENING, *RECORDS])
    first, second = View(tmp_path / "first.db"), View(tmp_path / "second.db")
    for item in log:
        first.apply_all([item])
    second.apply_all(log)
    assert first.digest() == second.digest()
    assert first.position == second.position
    first.close()
    second.close()


def test_failure_in_the_middle_leaves_nothing(view: View) -> None:
    """T22: a batch is one transaction. What stops it (here: unknown rules) leaves state, position, cache and tables as they were."""
    view.apply_all(offsets(OPENING))
    before, position = view.digest(), view.position
    token = NET.mint(NET.entity("alice"))
    batch = [
        NET.record("advertise", NET.advertise(NET.entity("alice"), token)),
        NET.record("tick", at=T0 + MINUTE),
        NET.record("rules", NET.request("rules", {"rules": 99}, NET.operator)),
    ]
    with pytest.raises(UnknownRules):
        view.apply_all(offsets(batch, first=100))
    assert view.digest() == before
    assert view.position == position
    assert view.get("topic", read_uuid(token)) is None
    network = view.get("network", "network")
    assert network is not None
    assert network["time"] == "2027-01-01T00:00:00Z"
    with closing(Reader(view.path)) as reader:
        assert reader.topic(read_uuid(token), BOB, T0) is None
        assert reader.position() == position
    # And the view goes on.
    assert [outcome.status for _, outcome in view.apply_all(offsets(batch[:2], first=100))] == ["accepted", "accepted"]


def test_any_exception_leaves_nothing(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the program is at fault, or interrupted."""
    view.apply_all(offsets(OPENING))
    before, position = view.digest(), view.position
    calls = 0
    real = View._write

    def fail_at_the_third(self: View, *arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(View, "_write", fail_at_the_third)
    batch = offsets([NET.record("tick", by=node, at=T0 + HOUR) for node in NET.node_ids], first=100)
    with pytest.raises(KeyboardInterrupt):
        view.apply_all(batch)
    monkeypatch.undo()
    assert (view.digest(), view.position) == (before, position)
    view.apply_all(batch)
    assert view.position.seq == position.seq + 3


def test_an_offset_that_was_read_is_refused(view: View) -> None:
    """The log and the store disagree: nothing is guessed."""
    view.apply_all(offsets(OPENING))
    before = view.digest()
    last = view.position.offset
    for offset in (last, last - 1, 0):
        with pytest.raises(LogDiverged):
            view.apply_all([(offset, NET.record("tick"))])
    with pytest.raises(LogDiverged):
        view.apply_all([(last + 5, NET.record("tick")), (last + 5, NET.record("tick"))])
    assert view.digest() == before
    assert view.position.offset == last


def test_empty_view_and_empty_batch(view: View) -> None:
    assert (view.position.seq, view.position.offset, view.position.head) == (0, -1, EMPTY_HEAD)
    assert view.apply_all([]) == []
    assert view.position.seq == 0


def test_records_are_kept_as_they_came(view: View) -> None:
    log = offsets([*OPENING, b"garbage"])
    view.apply_all(log)
    records = Records(view.path)
    assert [(one.offset, one.raw) for one in records.after(0, len(log) + 1)] == log
    assert [one.seq for one in records.after(1, 2)] == [2, 3]
    assert records.head(len(log)) == view.position.head
    assert records.head(len(log) + 1) is None
    assert records.number_of(b"garbage") == len(log)
    assert records.number_of(b"rubbish") is None
    assert records.last_up_to(-1) is None
    assert records.last_up_to(log[1][0]) == Kept(2, *log[1])
    assert records.last_up_to(10_000) == Kept(len(log), *log[-1])
    records.close()


def test_records_that_stand_elsewhere_now(view: View) -> None:
    """Other offsets, and nothing else: the same number, head, state and outcome."""
    view.apply_all(offsets(OPENING))
    before, digest = view.position, view.digest()
    view.move([(1, 7), (2, 9)])
    assert view.position == before
    view.move([(before.seq, 1000)])
    assert view.position == replace(before, offset=1000)
    assert view.digest() == digest
    reopened = View(view.path)
    assert reopened.position == replace(before, offset=1000)
    reopened.close()
    view.apply_all([(1001, NET.record("tick"))])


def test_advertisement_is_kept_byte_for_byte(view: View) -> None:
    """T5: what a reader gets is what the node signed."""
    view.apply_all(offsets(OPENING))
    token = NET.mint(NET.entity("alice"))
    view.apply_all([(100, NET.record("advertise", NET.advertise(NET.entity("alice"), token)))])
    reader = Reader(view.path)
    found = reader.topic(read_uuid(token), BOB, T0)
    reader.close()
    assert found is not None
    assert found.advertisement == token
    assert not found.changed


def test_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    View(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(LogDiverged, match="newer build"):
        View(path)


def test_two_views_of_one_log_are_equal_whatever_the_offsets(tmp_path: Path) -> None:
    """Positions are our own: the stream's holes are not part of the state."""
    records = [*OPENING, *RECORDS[:20]]
    one, two = View(tmp_path / "1.db"), View(tmp_path / "2.db")
    one.apply_all(list(enumerate(records)))
    two.apply_all([(7 * number + 2, raw) for number, raw in enumerate(records)])
    assert (one.digest(), one.position.head, one.position.seq) == (two.digest(), two.position.head, two.position.seq)
    one.close()
    two.close()


def test_a_cached_reader_learns_of_writes(view: View) -> None:
    """A reader with a cache answers as one without, once it was told of the writes."""
    view.apply_all(offsets(OPENING))
    reader = Reader(view.path, cached=True)
    uuid = fresh_uuid()
    assert reader.get("topic", uuid) is None
    token = NET.mint(NET.entity("alice"), uuid=uuid)
    for offset, raw in (
        (100, NET.record("advertise", NET.advertise(NET.entity("alice"), token))),
        (101, NET.record("withdraw", NET.withdraw(NET.entity("alice"), uuid))),
    ):
        for _, outcome in view.apply_all([(offset, raw)]):
            reader.learn(outcome.writes)
        assert reader.get("topic", uuid) == view.get("topic", uuid)
    reader.close()


def test_full_disk_at_the_first_start_leaves_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: all tables or none, whatever step the disk was full at; and the next try finds no lock of the last."""
    path, connect = tmp_path / "store.sqlite", sqlite3.connect

    def small(*words: Any, **how: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*words, **how)
        db.execute("PRAGMA max_page_count = 12")
        return db

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", small)
        with pytest.raises(NoRoom, match="full; free some room"):
            View(path)
    assert path.exists()
    assert not schema.is_made(path)
    View(path).close()
    assert schema.is_made(path)


def test_full_disk_leaves_nothing(view: View) -> None:
    """T22: SQLite itself may end the transaction (disk full); the view must not go on from facts that were never committed."""
    view.apply_all(offsets(OPENING))
    before, position = view.digest(), view.position
    batch = [NET.record("tick", by=node, at=T0 + HOUR) for node in NET.node_ids] + [b"x" * 100_000] * 3
    pages = view._db.execute("PRAGMA page_count").fetchone()[0]
    view._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(NoRoom, match="full; free some room"):
        view.apply_all(offsets(batch, first=100))
    view._db.execute("PRAGMA max_page_count = 1000000")
    assert (view.digest(), view.position) == (before, position)
    network = view.get("network", "network")
    assert network is not None
    assert network["time"] == "2027-01-01T00:00:00Z"
    assert len(view.apply_all(offsets(batch, first=100))) == len(batch)
