"""T37: an archive holds the log record by record, none lost or doubled, however it was exported; and whoever has the roots notices what was changed."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pki import T0
from population import Population, populate

from tdn.archive import export as exporting
from tdn.archive import manifest, segments
from tdn.archive.export import Exported, export
from tdn.archive.manifest import Archive, Entry
from tdn.archive.segments import ArchivedRecord
from tdn.archive.verify import verify
from tdn.errors import Absent, LogDiverged, TdnError, TrustError, UnknownRules, UsageError
from tdn.rules.state import EMPTY_HEAD
from tdn.sample import log
from tdn.sample.archive import write_archive
from tdn.sample.network import SampleNetwork
from tdn.store.view import View
from tdn.trust import signing, statements
from tdn.trust.verdict import judge

NOW = T0 + timedelta(hours=1)


@pytest.fixture(scope="module")
def population() -> Population:
    return populate("archive", 60)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_RECORDS", 16)


class Exporting:
    """A network's store and an archive of it."""

    def __init__(self, population: Population, folder: Path) -> None:
        self.population = population
        self.net = population.net
        self.store = folder / "store.sqlite"
        self.archive = Archive(folder / "archive")
        self.roots = self.net.node("n1").roots

    def apply(self, records: slice = slice(None), store: Path | None = None) -> None:
        view = View(store or self.store)
        numbered = list(enumerate((raw for raw, _ in self.population.records), start=5))
        view.apply_all(numbered[records], durable=False)
        view.close()

    def export(self, store: Path | None = None, node: str = "n1") -> Exported:
        return export(store or self.store, self.archive, self.net.node(node), self.roots, clock=lambda: NOW)

    @property
    def entries(self) -> list[Entry]:
        return self.archive.entries(self.roots)

    def archived(self) -> list[ArchivedRecord]:
        return [record for entry in self.entries for record in segments.read(self.archive.require_file(entry))]

    def logged(self, store: Path | None = None) -> list[ArchivedRecord]:
        with closing(sqlite3.connect(store or self.store)) as db:
            rows = db.execute(f"SELECT {segments.COLUMNS} FROM records ORDER BY seq").fetchall()
        return [ArchivedRecord.from_row(row) for row in rows]


@pytest.fixture
def made(population: Population, tmp_path: Path, small_segments: None) -> Exporting:
    return Exporting(population, tmp_path)


def test_the_archive_is_the_log(made: Exporting) -> None:
    made.apply()
    done = made.export()
    assert made.archived() == made.logged()
    assert [record.raw for record in made.archived()] == [raw for raw, _ in made.population.records]
    last = made.logged()[-1]
    assert done == Exported(len(made.entries), len(made.logged()), last.seq, last.head)
    assert len(made.entries) > 3
    found = verify(made.archive, made.roots)
    assert (found.network, found.records, found.head, found.judged) == (made.net.id, last.seq, last.head, True)


def test_each_entry_is_verified_once(made: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many segments an export adds: years of a log are hundreds."""
    read: list[str] = []
    read_entry = manifest.read_entry
    monkeypatch.setattr(manifest, "read_entry", lambda token, roots, name: read.append(name) or read_entry(token, roots, name))  # type: ignore[func-returns-value]
    made.apply()
    made.export()
    assert read == sorted(set(read))
    assert len(read) > 3
    assert made.archived() == made.logged()


def test_incremental_and_repeated(made: Exporting) -> None:
    made.apply(slice(0, 40))
    made.export()
    before = {path.name: path.read_bytes() for path in made.archive.folder.rglob("*") if path.is_file()}
    assert made.export() == Exported(0, 0, 40, made.entries[-1].head)
    made.apply(slice(40, None))
    assert made.export().records == len(made.logged()) - 40
    assert made.archived() == made.logged()
    after = {path.name: path.read_bytes() for path in made.archive.folder.rglob("*") if path.is_file()}
    assert before.items() <= after.items(), "what was exported never changes"


def test_from_another_node_and_one_that_is_behind(made: Exporting, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    made.apply()
    made.apply(slice(0, 30), other)
    made.export(other, "n2")
    assert made.export().last == len(made.logged())
    assert made.export(other, "n2").records == 0
    assert made.archived() == made.logged()
    assert {entry.node for entry in made.entries} == {"n1", "n2"}


def test_two_at_once(made: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment is added by one of them, whichever is first; both end with all of it."""
    other = tmp_path / "other.sqlite"
    made.apply()
    made.apply(store=other)
    turns = threading.Barrier(2, timeout=20)
    write = segments.write

    def together(path: Path, records: list[ArchivedRecord]) -> None:
        # Both have decided what to add before either does. One that is left waiting when the other is done goes on alone.
        with contextlib.suppress(threading.BrokenBarrierError):
            turns.wait()
        write(path, records)

    monkeypatch.setattr(exporting.segments, "write", together)
    ended: list[Exported] = []

    def run(store: Path, node: str) -> None:
        try:
            ended.append(made.export(store, node))
        finally:
            turns.abort()

    threads = [threading.Thread(target=run, args=one) for one in ((made.store, "n1"), (other, "n2"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.last for one in ended] == [len(made.logged())] * 2
    assert made.archived() == made.logged()
    files = {path.name for path in made.archive.segments.iterdir() if path.suffix == ".parquet"}
    assert files == {entry.file for entry in made.entries}, "what lost is not left behind"


@pytest.mark.parametrize("step", ["write", "digest", "link"])
def test_killed_anywhere(made: Exporting, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made.apply()
    left = 3

    class Killed(BaseException):
        pass

    def dying(act: object) -> object:
        def run(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return act(*arguments)  # type: ignore[operator]

        return run

    where, name = {"write": (segments, "write"), "digest": (segments, "digest_of"), "link": (os, "link")}[step]
    whole = getattr(where, name)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, dying(whole))
        with pytest.raises(Killed):
            made.export()
    assert len(made.entries) == 2
    verify(made.archive, made.roots)
    made.export()
    assert made.archived() == made.logged()
    files = {path.name for path in made.archive.segments.iterdir() if path.suffix == ".parquet"}
    assert files == {entry.file for entry in made.entries}


def test_leftovers_are_removed_after_a_day(made: Exporting) -> None:
    made.apply()
    made.archive.prepare()
    old, new = made.archive.unfinished(), made.archive.unfinished()
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    made.export()
    assert (old.exists(), new.exists()) == (False, True)


# --- what is wrong is noticed ---


def _rewrite(made: Exporting, change: object, *, sign_anew: bool = False) -> None:
    """Change the second segment, with or without an entry that fits."""
    entry = made.entries[1]
    path = made.archive.segments / entry.file
    table = pq.read_table(path)
    rows = change(table.to_pylist())  # type: ignore[operator]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    if sign_anew:
        sha256 = segments.digest_of(path)
        token = _signed(made, replace(entry, sha256=sha256, bytes=path.stat().st_size))
        path.rename(made.archive.segments / manifest.segment_name(entry.first, entry.last, sha256))
        (made.archive.manifest / manifest.entry_name(entry.first)).write_bytes(token)


def _signed(made: Exporting, entry: Entry) -> bytes:
    return manifest.sign(
        made.net.node("n1"),
        NOW,
        network=entry.network,
        rules=entry.rules,
        first=entry.first,
        last=entry.last,
        offsets=entry.offsets,
        before=entry.before,
        head=entry.head,
        sha256=entry.sha256,
        size=entry.bytes,
    )


def test_a_segment_that_was_cut_short_or_changed(made: Exporting) -> None:
    made.apply()
    made.export()
    path = made.archive.segments / made.entries[1].file
    whole = path.read_bytes()
    for content in (whole[:-100], b"", whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(TrustError, match="digest differs"):
            verify(made.archive, made.roots, judge=False)
    path.unlink()
    with pytest.raises(TrustError, match="is missing"):
        verify(made.archive, made.roots)


@pytest.mark.parametrize("what", ["record", "effects", "order", "lost", "status"])
def test_a_segment_that_a_node_signed_and_that_is_wrong(made: Exporting, what: str) -> None:
    """The manifest is a node's word; judging all of it again shows whether that was true."""
    made.apply()
    made.export()

    def change(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        if what == "record":
            rows[3]["raw"] = rows[4]["raw"]
        elif what == "effects":
            row = next(row for row in rows if '"state":"live"' in str(row["effects"]))
            row["effects"] = str(row["effects"]).replace('"owner":"', '"owner":"x')
        elif what == "order":
            rows[3], rows[4] = rows[4], rows[3]
        elif what == "status":
            rows[3]["status"] = "refused"
        else:
            del rows[3]
        return rows

    _rewrite(made, change, sign_anew=True)
    with pytest.raises(TrustError, match=r"is not the one that the log has|is judged otherwise|does not hold records"):
        verify(made.archive, made.roots)
    if what in ("effects", "status"):
        assert verify(made.archive, made.roots, judge=False).judged is False


@pytest.mark.parametrize("what", ["alike", "fallen", "shifted", "the first", "the last", "the entry's"])
def test_offsets_that_do_not_rise_or_are_not_the_entrys(made: Exporting, what: str) -> None:
    """Nobody signs them but the node that exported; what can be seen from them is looked at, also by --quick."""
    made.apply()
    made.export()
    entry = made.entries[1]
    assert entry.offsets == (made.logged()[entry.first - 1].offset, made.logged()[entry.last - 1].offset)

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if what == "alike":
            rows[3]["offset"] = rows[4]["offset"]
        elif what == "fallen":
            rows[3]["offset"], rows[4]["offset"] = rows[4]["offset"], rows[3]["offset"]
        elif what in ("shifted", "the first"):
            for row in rows if what == "shifted" else rows[:1]:
                row["offset"] -= 1
        elif what == "the last":
            rows[-1]["offset"] += 1
        return rows

    if what == "the entry's":
        first, last = entry.offsets
        (made.archive.manifest / manifest.entry_name(entry.first)).write_bytes(_signed(made, replace(entry, offsets=(first, last + 1))))
    else:
        _rewrite(made, change, sign_anew=True)
    for judging in (False, True):
        with pytest.raises(TrustError, match=r"has offset .*, and the one before it|at the offsets that its entry names"):
            verify(made.archive, made.roots, judge=judging)


def test_a_segment_ends_where_offsets_begin_again(made: Exporting) -> None:
    """A store that is in the middle of taking over the offsets of a log that was put back has some of either."""
    made.apply()
    with closing(sqlite3.connect(made.store)) as db, db:
        db.execute("UPDATE records SET offset = offset + 1000 WHERE seq <= 20")
    made.export()
    assert [entry.last for entry in made.entries][:3] == [16, 20, 36]
    assert verify(made.archive, made.roots).records == len(made.logged())


def test_moments_that_nobody_has_and_unknown_rules(made: Exporting) -> None:
    made.apply()
    made.export()
    entry = made.entries[1]
    (made.archive.manifest / manifest.entry_name(entry.first)).write_bytes(_signed(made, replace(entry, rules=99)))
    with pytest.raises(UnknownRules, match="rules version 99"):
        verify(made.archive, made.roots)

    def change(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        rows[3]["at"] = 10**18
        return rows

    _rewrite(made, change, sign_anew=True)
    with pytest.raises(TrustError, match="cannot be read"):
        verify(made.archive, made.roots, judge=False)


def test_a_manifest_with_a_hole(made: Exporting) -> None:
    made.apply()
    made.export()
    second = made.entries[1]
    (made.archive.manifest / manifest.entry_name(second.first)).unlink()
    with pytest.raises(TrustError, match=f"hole: records {second.first} to {second.last}"):
        verify(made.archive, made.roots)
    with pytest.raises(TrustError, match="hole"):
        made.export()


@pytest.mark.parametrize("signer", ["entity", "stranger", "changed"])
def test_an_entry_that_no_node_signed(made: Exporting, signer: str) -> None:
    made.apply()
    made.export()
    entry = made.entries[0]
    path = made.archive.manifest / manifest.entry_name(entry.first)
    payload = signing.parse_payload(signing.split(entry.token.encode()))
    if signer == "changed":
        token = entry.token.encode()
        path.write_bytes(token[:-8] + (b"AAAAAAAA" if token[-8:] != b"AAAAAAAA" else b"BBBBBBBB"))
    else:
        who = made.net.entity("alice") if signer == "entity" else populate("strangers", 1).net.node("n1")
        path.write_bytes(statements.sign("archive", payload, who, NOW))
    with pytest.raises(TrustError, match=path.name):
        made.archive.entries(made.roots)


def test_an_entry_in_anothers_place(made: Exporting) -> None:
    made.apply()
    made.export()
    first, second = (made.archive.manifest / manifest.entry_name(entry.first) for entry in made.entries[:2])
    first.write_bytes(second.read_bytes())
    with pytest.raises(TrustError, match=first.name):
        made.archive.entries(made.roots)


def test_another_network_and_another_log(made: Exporting, tmp_path: Path) -> None:
    made.apply()
    made.export()
    other = Exporting(populate("another", 3), tmp_path / "other")
    other.apply()
    other.archive = made.archive
    with pytest.raises(TrustError):
        other.export()
    fork = tmp_path / "fork.sqlite"
    view = View(fork)
    tick = made.net.record("tick")
    view.apply_all([(number, tick if number == 9 else raw) for number, (raw, _) in enumerate(made.population.records)])
    view.close()
    with pytest.raises(LogDiverged, match="another record"):
        made.export(fork)


def test_an_unknown_format(made: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    made.apply()
    with monkeypatch.context() as newer:
        newer.setattr(manifest, "FORMAT", 2)
        made.export()
    with pytest.raises(UsageError, match="format 2; this build reads 1"):
        made.archive.entries(made.roots)


def test_no_archive_no_store_and_a_store_from_before(made: Exporting, tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no archive"):
        verify(Archive(tmp_path / "nowhere"), made.roots)
    with pytest.raises(UsageError, match="no store"):
        made.export(tmp_path / "none.sqlite")
    View(made.store).close()
    with pytest.raises(UsageError, match="empty"):
        made.export()
    made.apply()
    with closing(sqlite3.connect(made.store)) as db:
        db.execute("UPDATE records SET effects = NULL WHERE seq = 20")
        db.commit()
    with pytest.raises(UsageError, match=r"remove its store\.sqlite"):
        made.export()


def test_an_empty_log_has_no_entries(made: Exporting) -> None:
    made.apply(slice(0, 1))
    assert made.export().last == 1
    assert made.entries[0].before == EMPTY_HEAD


def test_an_entry_proves_itself(made: Exporting) -> None:
    made.apply()
    made.export()
    (verdict,) = judge([made.entries[0].token.encode()], made.roots)
    assert verdict.valid
    assert made.entries[0].sha256 in verdict.proves[0]


def test_the_sample_as_an_archive(tmp_path: Path) -> None:
    """T37: what the generator writes down without judging is what judging finds."""
    network = SampleNetwork.found(3, datetime.now(UTC) - timedelta(hours=15))
    entries = write_archive(tmp_path, 3, 120, network=network, processes=1)
    found = verify(Archive(tmp_path), network.node("n1").roots)
    assert found.records == entries[-1].last > 240
    assert found.network == network.id


def test_processes_share_the_sample_and_its_archive_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More topics than one process makes at a time, in more than one segment: every record once and in its place, whoever signed it."""
    monkeypatch.setattr(segments, "MOST_RECORDS", 700)
    count = log._AT_ONCE + 20
    network = SampleNetwork.found(3, datetime.now(UTC) - timedelta(hours=15))
    did: dict[int, list[tuple[object, ...]]] = {}
    for processes in (1, 2):
        archive = Archive(tmp_path / str(processes))
        entries = write_archive(archive.folder, 3, count, network=network, processes=processes)
        assert len(entries) > 1
        records = [record for entry in entries for record in segments.read(archive.require_file(entry))]
        assert [(record.seq, record.offset) for record in records] == [(number + 1, number) for number in range(len(records))]
        written = [[(space, key) for space, key, _ in json.loads(record.effects or "[]") if space == "topic"] for record in records]
        did[processes] = [(record.kind, record.status, record.at, *wrote) for record, wrote in zip(records, written, strict=True)]
        assert sum(map(len, written)) == count
    assert did[1] == did[2]
    assert verify(archive, network.node("n1").roots).records == len(did[2])


def test_every_error_is_ours(made: Exporting) -> None:
    """Whatever a folder holds, nothing but our own errors leaves."""
    made.apply()
    made.export()
    path = made.archive.manifest / manifest.entry_name(made.entries[-1].first)
    for content in (b"", b"\xff\xfe", b"a.b.c", b"{}" * 50_000, path.read_bytes().replace(b".", b"..", 1)):
        path.write_bytes(content)
        with pytest.raises(TdnError):
            made.archive.entries(made.roots)
