"""The log trimmed where homes are carried: the store in a node's home, store and stream in a guard's, by the words of the units; and what must not let it go."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, path
from tdn.bus import log
from tdn.bus.connection import Connection
from tdn.local.home import Home
from tdn.protocol.names import Role
from tdn.snapshots import make
from tdn.trust import credentials
from tests.deploy.as_systemd import directives
from tests.deploy.test_entry_points import BIN, DEPLOY, Place, founded, running, unit_command
from tests.live import LiveNetwork, Ran, run, wait_for

# Certificates and a broker come before the first test; on a busy machine that alone takes a minute.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

#: Small enough that a few dozen topics make several checkpoints and segments. Ticks are so far apart that an export reaches the last checkpoint.
SMALL = {"TDN_CHECKPOINT_RECORDS": "30", "TDN_LOG_SEGMENT_BYTES": "20000", "TDN_TICK_SECONDS": "3"}


@dataclass
class Kept:
    """A node's machine and a guard's, with a log of several segments and checkpoints. Guard g2 is enrolled, and runs nowhere."""

    place: Place
    node: Home
    guard: Home
    pids: list[int]
    #: An archive that ends before the first checkpoint, and one that holds all.
    early: Path
    archive: Path
    snapshot: Path

    def trim(self, home: Home, *words: str | Path) -> Ran:
        return run("tdn", "--home", home, "--json", "log", "trim", *words)

    def first_offset(self) -> int:
        """Of the stream, as anybody reads it."""

        async def ask() -> int:
            connection = await Connection.open(
                self.guard.settings().hosts, credentials.load(self.guard.credentials(Role.GUARD, "g1")), vhost="tdn"
            )
            try:
                return await log.first_offset(connection)
            finally:
                await connection.close()

        return asyncio.run(ask())

    @property
    def stores(self) -> tuple[Path, Path]:
        return self.node.store("n1"), self.guard.credentials(Role.GUARD, "g1") / "store.sqlite"

    def held(self) -> tuple[int, ...]:
        """From which record on each store is whole, and the stream's first offset."""
        return (*map(first, self.stores), self.first_offset())

    def policies(self) -> Any:
        return LiveNetwork(self.guard.folder).manage("GET", "/policies/tdn")


def first(store: Path) -> int:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT first FROM kept").fetchone()[0])


def export(home: Home, to: Path) -> None:
    done = run("tdn", "--home", home, "archive", "export", "--to", to)
    assert done.code == 0, done.err


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("retained")
    with founded(folder, ("g1", "--role", "guard"), ("g2", "--role", "guard"), ("n1", "--node"), ("alice",)) as place:
        var = folder / "var" / "lib" / "tdn"
        guard, node = place.home_of("guard", "g1", at=var / "guard-g1"), place.home_of("node", "n1", at=var / "node-n1")
        with running(place, unit_command(place, "guard", "g1", guard), unit_command(place, "node", "n1", node), **SMALL) as pids:
            kept = Kept(place, Home(node), Home(guard), pids, folder / "early", Path(f"{var}-archive"), Path(f"{var}-snapshot") / "snapshot")
            kept.snapshot.parent.mkdir()
            export(kept.node, kept.early)

            async def fill() -> None:
                async with await EntityClient.connect(place.operator / "entities" / "alice", timeout=30.0) as client:
                    for number in range(90):
                        await client.create(path(f"many/{number}"))

            asyncio.run(fill())
            wait_for(lambda: _counted(kept) >= 80, "a checkpoint to count")
            made = run("tdn", "--home", node, "snapshot", "--to", kept.snapshot)
            assert made.code == 0, made.err
            export(kept.node, kept.archive)
            wait_for(lambda: Home(guard).reported("guard-g1").get("sequence", 0) > _counted(kept), "the guard to have read so far")
            yield kept


def _counted(kept: Kept) -> int:
    found = make.counted(kept.node.store("n1"))
    return int(found["seq"]) if found is not None else 0


def forged(snapshot: Path, to: Path, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    with gzip.open(snapshot, "rb") as file:
        lines = change(list(file))
    with gzip.open(to, "wb") as file:
        file.writelines(lines)
    return to


def _of_another_network(lines: list[bytes]) -> list[bytes]:
    title = json.loads(lines[0])
    title["snapshot"]["network"] = "0" * 64
    return [json.dumps(title).encode() + b"\n", *lines[1:]]


def _without_a_topic(lines: list[bytes]) -> list[bytes]:
    lines.remove(next(line for line in lines if line.startswith(b'["topic",')))
    return lines


def _stated_by_nobody(lines: list[bytes]) -> list[bytes]:
    title = json.loads(lines[0])
    title["snapshot"]["statements"] = []
    return [json.dumps(title).encode() + b"\n", *lines[1:]]


def test_what_must_not_let_the_beginning_go(kept: Kept, tmp_path: Path) -> None:
    """T16, T22: in a guard's home no snapshot, one of another network, forged ones, an archive that ends too early, a guard elsewhere that nobody has heard of; in
    a node's home such an archive. Nothing goes."""
    before = kept.held()
    assert before == (1, 1, 0)
    whole = ("--archive", kept.archive)
    refused = [
        (2, "tdn snapshot --to FILE", kept.trim(kept.guard, *whole, "--leave-behind")),
        (2, "cannot be read", kept.trim(kept.guard, *whole, "--leave-behind", "--snapshot", tmp_path / "absent")),
        (5, "the archive ends at record", kept.trim(kept.guard, "--archive", kept.early, "--leave-behind", "--snapshot", kept.snapshot)),
        (5, "guard g2 would be left behind", kept.trim(kept.guard, *whole, "--snapshot", kept.snapshot)),
        (5, "the archive ends at record", kept.trim(kept.node, "--archive", kept.early)),
    ]
    for number, (change, said) in enumerate(
        ((_of_another_network, "is of network"), (_without_a_topic, "not those whose digest"), (_stated_by_nobody, "stated by 0 of"))
    ):
        false = forged(kept.snapshot, tmp_path / f"forged-{number}", change)
        refused += [(4, said, kept.trim(home, *whole, "--leave-behind", "--snapshot", false)) for home in (kept.guard, kept.node)]
    for code, said, ran in refused:
        assert (ran.code, said in ran.error["message"]) == (code, True), (said, ran.err)
    assert kept.held() == before
    assert kept.policies() == []


def test_what_a_process_said_once_does_not_count(kept: Kept) -> None:
    """Stopped in their tracks, guard and node have said a moment ago that they serve; their pids are there."""
    before = kept.held()
    for pid in kept.pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        reports = [kept.guard.reported("guard-g1"), kept.node.reported("node-n1")]
        assert all(one["ready"] for one in reports)
        wait_for(lambda: time.time() - max(one["at"] for one in reports) > 6, "what they said to be old")
        for home in (kept.guard, kept.node):
            ran = kept.trim(home, "--archive", kept.archive, "--leave-behind", "--snapshot", kept.snapshot)
            assert (ran.code, "no node or guard of this home serves" in ran.error["message"]) == (3, True), ran.err
    finally:
        for pid in kept.pids:
            os.kill(pid, signal.SIGCONT)
    wait_for(lambda: all(time.time() - home.reported(name)["at"] < 3 for home, name in ((kept.guard, "guard-g1"), (kept.node, "node-n1"))), "them to speak")
    wait_for(lambda: kept.guard.reported("guard-g1")["ready"] and kept.node.reported("node-n1")["ready"], "them to serve")
    assert kept.held() == before


def test_stores_and_stream_are_trimmed_each_where_it_is_reached(kept: Kept) -> None:
    """T22: by the words of the units, under their confinement. A node's home leaves the stream to a guard's; from the checkpoint on everything stays."""
    var = kept.node.folder.parent
    password = kept.node.folder / "network" / "management-password"
    for _ in range(3):
        for words in unit_words(kept, "node", "n1"):
            done = as_unit("node", words)
            assert done.returncode == 0 or "log" in words, done.stderr
        if done.returncode != 5:  # A checkpoint may count between export and trim; the next night's does it.
            break
    assert done.returncode == 0, done.stderr
    assert "left to a guard's machine" in done.stderr
    bound = first(kept.stores[0]) + 1
    assert bound > 60
    assert (first(kept.stores[1]), kept.first_offset()) == (1, 0)
    assert not password.exists(), "none is made up"
    again = kept.trim(kept.node, "--archive", kept.archive)
    if again.code != 5:
        assert (again.one["stream"], again.one["first_offset"]) == ("left", None)

    # As it is brought to the guard's machine.
    copies = Path(f"{var}-kept")
    copies.mkdir()
    subprocess.run(["cp", "-a", str(kept.snapshot), str(copies / "snapshot")], check=True)
    subprocess.run(["cp", "-a", str(kept.archive), str(copies / "archive")], check=True)
    (words,) = unit_words(kept, "guard", "g1")
    refused = as_unit("guard", words)
    assert (refused.returncode, "guard g2 would be left behind" in refused.stderr) == (5, True), refused.stderr
    done = as_unit("guard", [*words, "--leave-behind"])
    assert done.returncode == 0, done.stderr
    trimmed = json.loads(done.stdout)
    assert (trimmed["stream"], trimmed["stores"], trimmed["first_offset_before"]) == ("trimmed", 1, 0)
    assert trimmed["removed"] > 0
    assert trimmed["first_offset"] == kept.first_offset() > 0
    assert first(kept.stores[1]) + 1 == trimmed["kept_from"] >= 60
    assert kept.policies() == [], "nothing more is dropped"
    with closing(sqlite3.connect(kept.stores[0])) as db:
        (offset,) = db.execute("SELECT offset FROM records WHERE seq = ?", (trimmed["kept_from"],)).fetchone()
    assert trimmed["first_offset"] <= offset, "everything from the checkpoint on is there"
    # A second time there is nothing to do, and no harm in it.
    ran = kept.trim(kept.guard, "--archive", copies / "archive", "--snapshot", copies / "snapshot", "--leave-behind")
    assert (ran.code, ran.one["removed"], ran.one["stream"]) == (0, 0, "whole"), ran.err


def unit_words(kept: Kept, role: str, instance: str) -> list[list[str]]:
    said = directives(DEPLOY / "systemd" / f"tdn-trim-{role}@.service")
    lines = [[word.replace("%i", instance) for word in line.split()] for line in said["ExecStart"]]
    assert {words[0] for words in lines} == {"/opt/tdn/bin/tdn"}
    return [[str(BIN / "tdn"), "--json", *kept.place.mapped(words[1:], kept.node.folder.parent)] for words in lines]


def as_unit(role: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    confined = [sys.executable, str(Path(__file__).with_name("as_systemd.py")), str(DEPLOY / "systemd" / f"tdn-trim-{role}@.service")]
    return subprocess.run([*confined, *words], capture_output=True, text=True, check=False, timeout=100)
