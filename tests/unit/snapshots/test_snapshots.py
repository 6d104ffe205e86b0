"""A store from a snapshot is the store that replay would have made; and whatever in a snapshot is not what the nodes stated is not taken."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from granting import Granting, TwoHouses, begin
from little_network import HOUR, MINUTE, LittleNetwork
from pki import T0

from tdn.archive.export import export
from tdn.archive.manifest import Archive
from tdn.archive.verify import verify
from tdn.errors import Absent, LogDiverged, Refused, TrustError, UnknownRules, UsageError
from tdn.local.trimming import bytes_from, require_in_log
from tdn.protocol.access import Asker
from tdn.rules.apply import write_record
from tdn.rules.state import Fact
from tdn.snapshots.make import Made, make, text_of
from tdn.snapshots.take import Taken, examine, take
from tdn.store.kept import needed_by_text, trim
from tdn.store.search import Reader, Search
from tdn.store.state_text import Moment
from tdn.store.topics import advertisement_in
from tdn.store.view import View

NODES = ("n1", "n2", "n3")
ALICE = Asker("alice", "north")
LATER = T0 + 2 * HOUR
Lines = list[bytes]


@dataclass
class World:
    """A log with a checkpoint in it, the store of a node that has applied it, and a snapshot of the checkpoint."""

    net: LittleNetwork
    log: Granting
    folder: Path
    store: Path
    seq: int
    digest: str
    made: Made
    uuids: dict[str, str]

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshot"

    def enrolments(self, *nodes: str) -> list[bytes]:
        return [self.net.enrol(self.net.node(node)) for node in nodes or (*NODES, "n4")]

    def take(self, store: Path, snapshot: Path | None = None, **choices: Any) -> Taken | None:
        given = {"genesis": self.net.genesis, "enrolments": self.enrolments(), "newcomer": "node:n4", **choices}
        return take(snapshot or self.snapshot, store, **given)

    def forged(self, to: Path, change: Callable[[Lines], Lines]) -> Path:
        with gzip.open(self.snapshot, "rb") as file:
            lines = change(list(file))
        with gzip.open(to, "wb") as file:
            file.writelines(lines)
        return to


def apply(store: Path, log: Granting, first: int, last: int | None = None) -> None:
    """Apply some records of a log, by their numbers, and the last too."""
    with closing(View(store)) as view:
        records = [(one.seq + 10, one.raw) for one in log.records[first - 1 : last]]
        if records:
            view.apply_all(records, durable=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    net = TwoHouses("snapshots", nodes=NODES)
    log = begin(net)
    uuids = {
        "live": log.advertised("alice", lifetime=30 * HOUR),
        "ended": log.advertised("alice", lifetime=MINUTE),
        "granted and ended": log.advertised("alice", lifetime=5 * MINUTE),
        "ends later": log.advertised("bob", lifetime=3 * HOUR),
        "listed": log.advertised("alice", lifetime=30 * HOUR, lists={"discover_allow": ["alice"]}),
    }
    first = log.gave("alice", "bob", uuids["live"], delegable=True)
    log.passed("bob", "carol", first)
    log.gave("alice", "bob", uuids["granted and ended"], ends=T0 + 4 * MINUTE)
    log.tick(T0 + 2 * HOUR)
    folder = tmp_path_factory.mktemp("snapshots")
    store = folder / "nodes" / "store.sqlite"
    seq = len(log.records)
    apply(store, log, 1, seq)
    with closing(Moment(store)) as moment:
        place = moment.place
        digest = moment.write(text_of(store, seq), wait=lambda seconds: None)
    assert digest == log.state.digest(), "the text is the canonical state"
    stated = {"seq": place.seq, "head": place.head, "at": place.at, "digest": digest}
    for node in NODES:
        outcome = log.append(write_record("checkpoint", net.node(node), LATER, checkpoint=stated))
        assert outcome.status == "accepted"
    uuids["tail"] = log.advertised("bob", lifetime=30 * HOUR, at=LATER)
    log.tick(LATER + 2 * HOUR)
    apply(store, log, seq + 1)
    return World(net, log, folder, store, seq, digest, make(store, folder / "snapshot"), uuids)


def digest_of(store: Path) -> str:
    with closing(View(store)) as view:
        return view.digest()


def rows(store: Path, first: int) -> list[Any]:
    with closing(sqlite3.connect(store)) as db:
        return db.execute("SELECT * FROM records WHERE seq >= ? ORDER BY seq", (first,)).fetchall()


def found(store: Path) -> dict[str, bytes]:
    """What discovery gives to alice, with the signed bytes."""
    with closing(Reader(store)) as reader:
        return {topic.uuid: topic.advertisement for topic in reader.discover(Search(ALICE, LATER), limit=100).topics}


def test_a_store_from_a_snapshot_is_the_one_that_replay_makes(world: World, tmp_path: Path) -> None:
    """T22: the state at the checkpoint, verified and not replayed; then the tail gives the same records, state and answers as on the other nodes."""
    store = tmp_path / "n4" / "store.sqlite"
    taken = world.take(store)
    assert taken is not None
    assert (taken.seq, taken.facts, taken.nodes) == (world.seq, world.made.facts, ("n1", "n2"))
    assert digest_of(store) == world.digest
    with closing(Reader(store)) as reader:
        position = reader.position()
        assert (position.seq, position.offset, position.head) == (
            world.seq,
            world.seq + 10,
            world.log.records[world.seq - 1].head,
        )
        assert reader.record(3) is None, "nothing was replayed"
    apply(store, world.log, world.seq + 1)
    assert digest_of(store) == digest_of(world.store) == world.log.state.digest()
    assert rows(store, world.seq + 1) == rows(world.store, world.seq + 1)
    assert found(store) == found(world.store)
    assert {world.uuids["live"], world.uuids["listed"], world.uuids["tail"]} <= found(store).keys()


def test_what_grants_rest_on_comes_along(world: World, tmp_path: Path) -> None:
    """Also the advertisement of a topic that has ended: its grant is listed for a while."""
    store = tmp_path / "store.sqlite"
    world.take(store)
    with closing(Reader(store)) as reader:
        for fact in all_of(reader, "grant"):
            topic = reader.get("topic", fact["topic"])
            assert topic is not None
            for seq in (fact["given"], *(seq for seq, _ in fact["rests"]), topic["advertised"]):
                raw = reader.record(seq)
                assert raw == world.log.records[seq - 1].raw
                assert advertisement_in(raw or b"")
        ended = reader.get("topic", world.uuids["ended"])
        assert ended is not None
        assert reader.record(ended["advertised"]) is None, "nobody asks for these bytes"


def all_of(reader: Reader, space: str) -> list[Fact]:
    return [fact for _, fact in reader.all(space)]


def test_a_snapshot_is_private_and_whole(world: World, tmp_path: Path) -> None:
    assert world.snapshot.stat().st_mode & 0o777 == 0o600
    assert world.snapshot.stat().st_size == world.made.bytes
    assert {path.name for path in world.folder.iterdir()} == {"nodes", "snapshot"}
    assert make(world.store, tmp_path / "again").digest == world.digest
    assert (tmp_path / "again").read_bytes() == world.snapshot.read_bytes()


def test_only_where_the_store_is_behind(world: World, tmp_path: Path) -> None:
    """A store that is as far is left alone, so that the same command line can be used for every start; one behind is replaced."""
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1, world.seq)
    before = store.read_bytes()
    assert world.take(store) is None
    assert store.read_bytes() == before
    store.unlink()
    apply(store, world.log, 1, 10)
    assert world.take(store) is not None
    assert digest_of(store) == world.digest
    assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite"]


# --- what is not taken ---


def changed_title(**changes: Any) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        title = json.loads(lines[0])
        title["snapshot"] |= changes
        return [json.dumps(title).encode() + b"\n", *lines[1:]]

    return change


def topic_line(lines: Lines) -> int:
    return next(at for at, line in enumerate(lines) if line.startswith(b'["topic",'))


def record_line(lines: Lines) -> int:
    return next(at for at, line in enumerate(lines) if line.startswith(b'{"raw":'))


def fact_changed(lines: Lines) -> Lines:
    at = topic_line(lines)
    return [
        *lines[:at],
        lines[at].replace(b'"owner":"alice"', b'"owner":"carol"').replace(b'"owner":"bob"', b'"owner":"carol"'),
        *lines[at + 1 :],
    ]


def fact_dropped(lines: Lines) -> Lines:
    at = topic_line(lines)
    return counted_anew([*lines[:at], *lines[at + 1 :]])


def fact_added(lines: Lines) -> Lines:
    at = topic_line(lines)
    return counted_anew([*lines[:at], b'["tock","n1",{}]\n', *lines[at:]])


def facts_swapped(lines: Lines) -> Lines:
    at = topic_line(lines)
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


def facts_joined(lines: Lines) -> Lines:
    """The same bytes but for the end of a line."""
    at = topic_line(lines)
    return counted_anew([*lines[:at], lines[at].rstrip(b"\n") + lines[at + 1], *lines[at + 2 :]])


def fact_twice(lines: Lines) -> Lines:
    at = topic_line(lines)
    return counted_anew([*lines[: at + 1], lines[at], *lines[at + 1 :]])


def record_changed(lines: Lines) -> Lines:
    at = record_line(lines)
    one = json.loads(lines[at])
    one["raw"] = one["raw"][:-1] + ("A" if one["raw"][-1] != "A" else "B")
    return [*lines[:at], json.dumps(one, sort_keys=True).encode() + b"\n", *lines[at + 1 :]]


def record_dropped(lines: Lines) -> Lines:
    at = record_line(lines)
    return counted_anew([*lines[:at], *lines[at + 1 :]])


def record_added(lines: Lines) -> Lines:
    at = record_line(lines)
    return counted_anew([*lines[:at], b'{"raw":"x","seq":1}\n', *lines[at:]])


def counted_anew(lines: Lines) -> Lines:
    """With a last line that fits: whoever forges can count."""
    facts, records = (sum(line.startswith(mark) for line in lines) for mark in (b"[", b'{"raw":'))
    return [*lines[:-1], json.dumps({"end": {"facts": facts, "records": records}}).encode() + b"\n"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (fact_changed, "facts are not those"),
        (fact_dropped, "facts are not those"),
        (fact_added, "facts are not those"),
        (facts_swapped, "facts are not those"),
        (facts_joined, "not a whole snapshot"),
        (fact_twice, "holds something twice"),
        (record_changed, "is not the one that its state refers to"),
        (record_dropped, "lacks record"),
        (record_added, "is not the one that its state refers to"),
        (changed_title(record="AAAA"), "does not hold record"),
        (changed_title(before="0" * 64), "does not hold record"),
        (changed_title(digest="0" * 64), "stated by 0 of the 3 other nodes"),
        (changed_title(head="0" * 64), "stated by 0 of"),
        (changed_title(seq=7), "stated by 0 of"),
        (changed_title(at="2030-01-01T00:00:00Z"), "stated by 0 of"),
        (changed_title(statements=[]), "stated by 0 of"),
        (changed_title(network="0" * 64), "is of network 000000000000…"),
        (changed_title(offset="x"), "not a whole snapshot"),
        (lambda lines: lines[:-1], "ends in the middle"),
        (lambda lines: [*lines, b"{}\n"], "does not end as it should"),
        (lambda lines: lines[1:], "not a whole snapshot"),
        (lambda lines: [], "not a whole snapshot"),
        (lambda lines: [b"[]\n", *lines[1:]], "not a whole snapshot"),
    ],
)
def test_forged(world: World, tmp_path: Path, change: Callable[[Lines], Lines], why: str) -> None:
    """Each thing that a snapshot holds, changed: it is not taken, and the present store is as it was."""
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1, 10)
    before = store.read_bytes()
    with pytest.raises(TrustError, match=why):
        world.take(store, world.forged(tmp_path / "forged", change))
    assert store.read_bytes() == before
    assert not list(tmp_path.glob("*from-snapshot*"))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cut(world: World, tmp_path: Path, share: float) -> None:
    whole = world.snapshot.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(TrustError, match="not a whole snapshot"):
        world.take(tmp_path / "store.sqlite", cut)
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]


def test_noise(world: World, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"not gzip at all")
    with pytest.raises(TrustError, match="not a whole snapshot"):
        world.take(tmp_path / "store.sqlite", tmp_path / "noise")
    with pytest.raises(UsageError, match="cannot be read"):
        world.take(tmp_path / "store.sqlite", tmp_path / "absent")


def test_another_format_and_other_rules(world: World, tmp_path: Path) -> None:
    for changes, kind in (({"format": 2}, UsageError), ({"rules": 99}, UnknownRules)):
        with pytest.raises(kind):
            world.take(tmp_path / "store.sqlite", world.forged(tmp_path / "forged", changed_title(**changes)))


def statement(world: World, node: Any, **changes: Any) -> str:
    title = json.loads(gzip.decompress(world.snapshot.read_bytes()).split(b"\n", 1)[0])["snapshot"]
    stated = {name: title[name] for name in ("seq", "head", "at", "digest")} | changes
    return write_record("checkpoint", node, LATER, checkpoint=stated).decode()


def test_a_minority_convinces_nobody(world: World, tmp_path: Path) -> None:
    """One of three, however often it says so; nodes that the operator has not enrolled; an entity; a node about something else."""
    net = world.net
    said = [
        [statement(world, net.node("n1"))],
        [statement(world, net.node("n1")), statement(world, net.node("n1"))],
        [statement(world, net.node(node)) for node in ("n1", "n5", "n6", "n7")],
        [statement(world, net.node("n1")), statement(world, net.entity("alice")), statement(world, net.guard())],
        [statement(world, net.node("n1")), statement(world, net.node("n2"), digest="0" * 64)],
        [statement(world, net.node("n1")), write_record("tick", net.node("n2"), LATER).decode(), "garbage", ""],
        # Another key that calls itself n2.
        [statement(world, net.node("n1")), statement(world, net.node("n2", 2))],
    ]
    for statements in said:
        forged = world.forged(tmp_path / "forged", changed_title(statements=statements))
        with pytest.raises(TrustError, match="stated by 1 of the 3 other nodes"):
            world.take(tmp_path / "store.sqlite", forged)


def test_the_enrolments_at_hand_decide(world: World, tmp_path: Path) -> None:
    """With more nodes enrolled two are no majority; without any, nothing is believed. One's own earlier word counts as one more."""
    store = tmp_path / "store.sqlite"
    with pytest.raises(TrustError, match="stated by 2 of the 5 other"):
        world.take(store, enrolments=world.enrolments(*NODES, "n4", "n5", "n6"))
    with pytest.raises(TrustError, match="stated by 0 of the 0 other"):
        world.take(store, enrolments=[])
    with pytest.raises(TrustError, match="stated by 0 of the 0 other"):
        world.take(store, enrolments=world.enrolments("n4"))
    with pytest.raises(TrustError, match="stated by 0 of the 1 other"):
        world.take(store, enrolments=world.enrolments("n9"), newcomer="guard:g1")
    with pytest.raises(TrustError):
        world.take(
            store, enrolments=[*world.enrolments(), world.net.enrol(world.net.node("n5"), signer=world.net.entity("alice"))]
        )
    with pytest.raises(TrustError):
        world.take(store, enrolments=[world.net.revoke("node:n1")])
    assert not store.exists()
    taken = world.take(store, enrolments=world.enrolments("n1"), newcomer="node:n1")
    assert taken is not None, "a single node that lost its store believes what it signed itself"
    assert taken.nodes == ("n1",)


def test_another_network(world: World, tmp_path: Path) -> None:
    other = LittleNetwork("another", nodes=NODES)
    with pytest.raises(TrustError, match="is of network"):
        world.take(tmp_path / "store.sqlite", genesis=other.genesis)


# --- making and keeping ---


def test_nothing_counts_yet(world: World, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1, world.seq + 1)
    with pytest.raises(Absent, match="no checkpoint counts"):
        make(store, tmp_path / "snapshot")
    apply(store, world.log, world.seq + 2)
    with pytest.raises(Absent, match="was away then"):
        make(store, tmp_path / "snapshot")
    with pytest.raises(UsageError, match="there is no store"):
        make(tmp_path / "none.sqlite", tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()


def test_the_state_is_that_of_the_moment(world: World, tmp_path: Path) -> None:
    """Written while the store goes on: the text is that of the record at which it was opened."""
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1, world.seq)
    with closing(View(store)) as view, closing(Moment(store)) as moment:
        view.apply_all([(one.seq + 10, one.raw) for one in world.log.records[world.seq :]], durable=False)
        assert moment.write(tmp_path / "text", wait=lambda seconds: None) == world.digest
        assert moment.place.seq == world.seq


def test_trimmed(world: World, tmp_path: Path) -> None:
    """What nobody needs is gone; answers, grants, snapshots and archives go on as before."""
    store = tmp_path / "n1" / "store.sqlite"
    apply(store, world.log, 1)
    answers, state = found(store), digest_of(store)
    archive = Archive(tmp_path / "archive")
    node = world.net.node("n1")
    archived = export(store, archive, node, node.roots, clock=lambda: LATER)
    text = text_of(world.store, world.seq)
    removed = trim(store, world.seq, needed_by_text(text))
    assert removed > 10
    assert trim(store, world.seq, needed_by_text(text)) == 0
    assert found(store) == answers
    assert digest_of(store) == state
    with closing(Reader(store)) as reader:
        left = [seq for seq in range(1, world.seq) if reader.record(seq) is not None]
        assert len(left) == world.seq - 1 - removed
        assert left[-1] == world.seq - 1, "the rolling hash before the checkpoint is a part of a snapshot"
        ends_later = reader.get("topic", world.uuids["ends later"])
        assert ends_later is not None
        assert ends_later["state"] == "expired"
        assert ends_later["advertised"] in left, "it was live at the checkpoint, from which a node may begin"
    text_of(store, world.seq).parent.mkdir()
    text_of(store, world.seq).write_bytes(text.read_bytes())
    assert make(store, tmp_path / "snapshot").records == world.made.records
    assert (tmp_path / "snapshot").read_bytes() == world.snapshot.read_bytes()

    world.log.tick(LATER + 3 * HOUR)
    apply(store, world.log, archived.last + 1)
    assert export(store, archive, node, node.roots, clock=lambda: LATER).records == 3
    assert verify(archive, node.roots).records == len(world.log.records)
    with pytest.raises(UsageError, match="export into a copy of the archive"):
        export(store, Archive(tmp_path / "new archive"), node, node.roots)
    # Another run of this test's world begins where it was.
    del world.log.records[archived.last :], world.log.outcomes[archived.last :]


def test_indexes_are_made_anew_from_a_trimmed_store(world: World, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1)
    answers = found(store)
    trim(store, world.seq, needed_by_text(text_of(world.store, world.seq)))
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE derived SET stamp = ''")
    View(store).close()
    assert found(store) == answers


def test_a_store_that_is_behind_is_not_trimmed(world: World, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1, world.seq - 1)
    with pytest.raises(UsageError, match="needs what would be removed"):
        trim(store, world.seq, needed_by_text(text_of(world.store, world.seq)))


def test_an_archive_that_ends_before_a_snapshot_store(world: World, tmp_path: Path) -> None:
    """A node from a snapshot cannot fill what it never had; an archive that reaches the snapshot goes on from it."""
    node = world.net.node("n1")
    whole, store = tmp_path / "whole.sqlite", tmp_path / "store.sqlite"
    archive = Archive(tmp_path / "archive")
    apply(whole, world.log, 1, world.seq - 1)
    export(whole, archive, node, node.roots, clock=lambda: LATER)
    world.take(store)
    apply(store, world.log, world.seq + 1)
    with pytest.raises(UsageError, match="export from a node that has those between"):
        export(store, archive, node, node.roots, clock=lambda: LATER)
    apply(whole, world.log, world.seq, world.seq)
    export(whole, archive, node, node.roots, clock=lambda: LATER)
    assert export(store, archive, node, node.roots, clock=lambda: LATER + timedelta(seconds=1)).last == len(world.log.records)
    assert verify(archive, node.roots).records == len(world.log.records)


def test_a_store_that_lost_a_record_makes_no_snapshot(world: World, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    apply(store, world.log, 1)
    text_of(store, world.seq).parent.mkdir()
    text_of(store, world.seq).write_bytes(text_of(world.store, world.seq).read_bytes())
    live = world.log.state.get("topic", world.uuids["live"])
    assert live is not None
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("DELETE FROM records WHERE seq = ?", (live["advertised"],))
    with pytest.raises(LogDiverged, match="has lost record"):
        make(store, tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()


def test_a_snapshot_is_examined_as_it_is_taken(world: World, tmp_path: Path) -> None:
    """Sound, it says which records its state refers to; changed, it is refused; no store is made of it."""
    given: dict[str, Any] = {"genesis": world.net.genesis, "enrolments": world.enrolments(*NODES), "newcomer": "guard:g1"}
    with examine(world.snapshot, **given) as examined:
        assert (examined.title.place.seq, examined.title.digest) == (world.seq, world.digest)
        assert list(examined.needed()) == list(needed_by_text(text_of(world.store, world.seq))) == list(examined.needed())
    for name, change in (
        ("facts", lambda lines: [line.replace(b'"live"', b'"ended"', 1) if line.startswith(b'["topic",') else line for line in lines]),
        ("records", lambda lines: [line for line in lines if not line.startswith(b'{"raw":')]),
        ("twice", lambda lines: [lines[0], lines[1], *lines[1:]]),
        ("cut", lambda lines: lines[:-1]),
    ):
        with pytest.raises(TrustError), examine(world.forged(tmp_path / name, change), **given):
            pass
    with pytest.raises(TrustError), examine(world.snapshot, **{**given, "genesis": LittleNetwork("another").genesis}):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"facts", "records", "twice", "cut"}


def test_a_snapshot_trims_what_the_log_here_counts(world: World) -> None:
    """One of a later checkpoint, of another log, or from before what a store has is of no use to who trims."""
    with closing(Reader(world.store)) as reader:
        counted = reader.get("counted", "latest")
    assert counted is not None
    require_in_log(world.store, counted, counted)
    with pytest.raises(Refused, match="the last checkpoint that counts is at"):
        require_in_log(world.store, {**counted, "seq": counted["seq"] + 1}, counted)
    for name in ("head", "digest"):
        with pytest.raises(LogDiverged, match="otherwise than the log here"):
            require_in_log(world.store, {**counted, name: "0" * 64}, counted)
    with closing(sqlite3.connect(world.store)) as source, closing(sqlite3.connect(world.folder / "trimmed.sqlite")) as copy:
        source.backup(copy)
    trim(world.folder / "trimmed.sqlite", world.seq, needed_by_text(text_of(world.store, world.seq)))
    require_in_log(world.folder / "trimmed.sqlite", counted, counted)
    with pytest.raises(UsageError, match="make a later one"):
        require_in_log(world.folder / "trimmed.sqlite", {**counted, "seq": world.seq - 3}, counted)
    world.take(world.folder / "taken.sqlite")
    require_in_log(world.folder / "taken.sqlite", counted, counted)


def test_what_the_stream_must_keep_is_not_guessed_from_a_store_with_holes(world: World) -> None:
    store = world.folder / "holes.sqlite"
    with closing(sqlite3.connect(world.store)) as source, closing(sqlite3.connect(store)) as copy:
        source.backup(copy)
        copy.execute("DELETE FROM records WHERE seq = ?", (world.seq + 2,))
        copy.commit()
    sizes = [bytes_from(world.store, world.seq), bytes_from(world.store, world.seq + 1)]
    assert sizes[0] > sizes[1] > 0
    with pytest.raises(LogDiverged, match="does not hold all records"):
        bytes_from(store, world.seq)
