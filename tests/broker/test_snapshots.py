"""A network that does not grow for ever: checkpoints that count, a node from a snapshot, a log that is trimmed, a home saved and restored."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from entity_client import path
from tdn.errors import LogTrimmed
from tdn.guard import trim_policy
from tdn.node.service import Node, NodeSettings
from tdn.protocol.names import Role
from tdn.snapshots import make
from tdn.store.records import Records
from tdn.store.search import Reader
from tests.conftest import Connect
from tests.live import LiveNetwork, Ran, run, until, wait_for

# Some forty seconds in all when nothing else runs; the first test starts a network besides.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

#: Small enough that a few dozen topics make several checkpoints and segments. Ticks are so far apart that an export reaches the last checkpoint,
#: on a busy machine too.
SMALL = {"TDN_CHECKPOINT_RECORDS": "30", "TDN_LOG_SEGMENT_BYTES": "20000", "TDN_TICK_SECONDS": "3"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    network = LiveNetwork(tmp_path_factory.mktemp("small network") / "home")
    before = {name: os.environ.get(name) for name in SMALL}
    os.environ.update(SMALL)
    try:
        network.up(nodes=2)
        yield network
    finally:
        network.end()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: once the log is trimmed, no other can be begun."""
    return tmp_path_factory.mktemp("archive") / "archive"


def counted(network: LiveNetwork, node: str = "n1") -> int:
    found = make.counted(network.home.store(node))
    return int(found["seq"]) if found is not None else 0


def settings(network: LiveNetwork, store: Path) -> NodeSettings:
    connection = network.home.connection()
    return NodeSettings(connection.brokers, connection.vhost, network.home.genesis(), store, network.home.enrolments, 0.5)


async def refusal(network: LiveNetwork, store: Path) -> str:
    """Why a node with this store does not serve. It must never have been ready, and its store is as it was."""
    node = Node(network.credentials(Role.NODE, "n2"), settings(network, store))
    before = node.replica.position
    with pytest.raises(LogTrimmed) as error:
        await asyncio.wait_for(node.run(asyncio.Event()), 30)
    assert not node.condition.ready
    with closing(Reader(store)) as reader:
        assert (reader.position().seq, reader.position().head) == before
    return str(error.value)


def export_and_trim(network: LiveNetwork, archive: Path) -> Ran:
    """As a timer does it: where a checkpoint counts in between that the export does not reach, the next time does it."""
    for _ in range(10):
        assert run("tdn", "--home", network.home, "archive", "export", "--to", archive).code == 0
        trimmed = run("tdn", "--home", network.home, "--json", "log", "trim", "--archive", archive)
        if trimmed.code != 5:
            break
    return trimmed


async def test_a_life_without_the_beginning(small: LiveNetwork, archive: Path, connect: Connect, tmp_path: Path) -> None:
    """T22: checkpoints count; a store falls behind; the log is exported and trimmed; a new node starts from a snapshot and serves; what was left behind
    says what it needs; the archive goes on and verifies."""
    client = await connect(small)
    early = await client.create(path("early/topic"))
    # A node that will have missed all that follows.
    await asyncio.to_thread(small.stop, "n2")
    behind = tmp_path / "behind" / "store.sqlite"
    behind.parent.mkdir()
    with closing(sqlite3.connect(small.home.store("n2"))) as source, closing(sqlite3.connect(behind)) as copy:
        source.backup(copy)
    await asyncio.to_thread(small.start, "n2")
    for number in range(60):
        await client.create(path(f"many/{number}"))
    await until(lambda: counted(small) >= 60 and counted(small) == counted(small, "n2"), "a checkpoint to count")

    home = ("--home", small.home)
    refused = await asyncio.to_thread(run, "tdn", *home, "--json", "log", "trim", "--archive", archive)
    assert refused.code == 6, refused.err
    trimmed = await asyncio.to_thread(export_and_trim, small, archive)
    assert trimmed.code == 0, trimmed.err
    assert trimmed.one["kept_from"] >= 60
    assert trimmed.one["removed"] > 0
    assert trimmed.one["stores"] == 3
    assert trimmed.one["first_offset"] > trimmed.one["first_offset_before"] == 0, "the stream has shrunk"
    assert not trims(small), "nothing more is dropped"
    with closing(sqlite3.connect(small.home.store("n1"))) as db:
        (offset,) = db.execute("SELECT offset FROM records WHERE seq = ?", (trimmed.one["kept_from"],)).fetchone()
    assert trimmed.one["first_offset"] <= offset, "everything from the checkpoint on is there"

    assert "start it from a snapshot" in await refusal(small, behind)
    assert "the log no longer has its beginning" in await refusal(small, tmp_path / "empty" / "store.sqlite")

    snapshot = tmp_path / "snapshot"
    made = await asyncio.to_thread(run, "tdn", *home, "--json", "snapshot", "--to", snapshot)
    assert made.code == 0, made.err
    assert made.one["seq"] >= trimmed.one["kept_from"]
    await asyncio.to_thread(small.network.up, nodes=3, snapshot=snapshot)
    with closing(Reader(small.home.store("n3"))) as reader:
        assert reader.record(1) is None, "it has never read the beginning"
    log = (small.home.run / "node-n3.log").read_text()
    assert f"begins with record {made.one['seq']}" in log
    assert early.uuid in {found.uuid async for found in client.discover("early", nodes=["n3"])}
    later = await client.create(path("after/the/trim"), node="n3")
    assert later.receipt

    before = len(list((archive / "manifest").iterdir()))
    exported = await asyncio.to_thread(run, "tdn", *home, "--json", "archive", "export", "--to", archive, "--node", "n1")
    assert exported.code == 0, exported.err
    assert exported.one["records"] > 0
    assert len(list((archive / "manifest").iterdir())) == before + 1
    verified = await asyncio.to_thread(run, "tdn", *home, "--json", "archive", "verify", archive)
    assert verified.code == 0, verified.err
    assert verified.one["records"] == exported.one["last"]

    # All three state the next one, the newcomer too.
    seen = counted(small)
    for number in range(40):
        await client.create(path(f"more/{number}"))
    await until(lambda: counted(small) > seen, "the next checkpoint to count")
    await until(lambda: _stated(small, "n3")["seq"] == _stated(small, "n1")["seq"] > seen, "the newcomer to state one too")
    for told in ("head", "at", "digest"):
        assert _stated(small, "n3")[told] == _stated(small, "n1")[told]
    small.stop("n3")
    told = await asyncio.to_thread(_doctor_on_a_damaged_store, small, "n3")
    assert "its beginning was trimmed" in told["log"]
    assert "move " in told["node n3"]
    assert "`tdn snapshot --to FILE --node n1`, then `tdn node --id n3 --snapshot FILE`" in told["node n3"]
    assert "made anew" not in told["node n3"]
    trim = await asyncio.to_thread(run, "tdn", *home, "log", "trim", "--archive", archive)
    assert trim.code == 5
    assert "tdn archive export" in trim.err


def _doctor_on_a_damaged_store(network: LiveNetwork, node: str) -> dict[str, str]:
    """What is said of the log, and what to do about the store; which is whole again afterwards."""
    store = network.home.store(node)
    whole = store.read_bytes()
    store.write_bytes(b"x" * 5000)
    try:
        lines = run("tdn", "--home", network.home, "--json", "doctor").lines
    finally:
        store.write_bytes(whole)
    (log,) = [line["what"] for line in lines if line["check"] == "log" and line["what"].startswith("offsets ")]
    (do,) = [line["do"] for line in lines if line["check"] == "stores" and line["what"].startswith(f"node {node}")]
    return {"log": log, f"node {node}": do}


def trims(network: LiveNetwork) -> bool:
    """Whether the broker is told to drop what is oldest in the log."""
    return trim_policy.POLICY in {policy["name"] for policy in network.manage("GET", "/policies/tdn")}


def _stated(network: LiveNetwork, node: str) -> dict[str, Any]:
    with closing(Reader(network.home.store("n1"))) as reader:
        fact = reader.get("checkpoint", node)
    return dict(fact["stated"][-1]) if fact is not None else {"seq": 0}


async def test_a_forged_snapshot_is_not_taken(small: LiveNetwork, tmp_path: Path) -> None:
    """T16: exit code 4, and no store."""
    snapshot = tmp_path / "snapshot"
    made = await asyncio.to_thread(run, "tdn", "--home", small.home, "snapshot", "--to", snapshot)
    assert made.code == 0, made.err
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[: len(whole) // 2])
    small.network.operator.issue(Role.NODE, "n9")
    try:
        ran = await asyncio.to_thread(run, "tdn", "--home", small.home, "--json", "node", "--id", "n9", "--snapshot", snapshot)
        assert ran.code == 4
        assert "not a whole snapshot" in ran.error["message"]
        assert not small.home.store("n9").exists()
    finally:
        (small.home.enrolments / "node-n9.jws").unlink()
        shutil.rmtree(small.home.credentials(Role.NODE, "n9"))


def private(file: Path) -> bool:
    return file.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_a_home_is_saved_and_restored(small: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: saved while it runs, without the broker's data, of a log that has lost its beginning. The nodes of the restored home put back what their
    stores have, each beginning elsewhere, and the network goes on. While it is down, the broker's data can be saved too."""
    client = await connect(small)
    topic = await client.create(path("saved/topic"))
    saved = await asyncio.to_thread(run, "tdn", "--home", small.home, "--json", "backup", "--to", tmp_path)
    assert saved.code == 0, saved.err
    file = Path(saved.one["backup"])
    assert private(file)
    assert "every key" in saved.err
    live = await asyncio.to_thread(run, "tdn", "--home", small.home, "backup", "--to", tmp_path / "all", "--with-broker")
    assert (live.code, (tmp_path / "all").exists()) == (2, False)
    await client.close()
    await asyncio.to_thread(small.network.down)
    whole = await asyncio.to_thread(
        run, "tdn", "--home", small.home, "--json", "backup", "--to", tmp_path / "all", "--with-broker"
    )
    assert whole.code == 0, whole.err
    with tarfile.open(tmp_path / "all") as tar:
        assert [name for name in tar.getnames() if name.endswith(".segment")], "the log is in it"

    again = LiveNetwork(tmp_path / "again")
    restored = await asyncio.to_thread(run, "tdn", "--home", again.home, "--json", "restore", file)
    assert restored.code == 0, restored.err
    assert restored.one["network"] == small.home.network
    assert not (again.home.folder / "broker" / "rabbitmq").exists()
    beginnings = set()
    for node in again.nodes():
        with closing(Records(again.home.store(node))) as records:
            beginnings.add(records.first)
    if len(again.nodes()) == 3:
        # After the test above: two nodes were trimmed, one began with a snapshot.
        assert len(beginnings) == 2
        assert 1 not in beginnings
    try:
        await asyncio.to_thread(again.up)
        reached = await connect(again)
        assert (await reached.show(topic.uuid)).uuid == topic.uuid
        assert (await reached.create(path("goes/on"))).receipt
        heads = {one.split("has put back")[0].rsplit(" ", 2)[1] for one in _logs(again) if "has put back" in one}
        assert len(heads) == 1, "one of them did it"
    finally:
        again.end()


def test_a_trim_that_is_killed(small: LiveNetwork, archive: Path) -> None:
    """T22: `kill -9` while the broker's policy stands; the doctor says so, and a guard removes it."""
    # The last test of the network: what is trimmed here is what the one before tells the nodes apart by, and that one has ended it.
    small.up()
    assert _killed_while_it_trims(small, archive)
    assert trims(small), "nobody has removed it yet"
    (said,) = [
        line["what"] for line in run("tdn", "--home", small.home, "--json", "doctor").lines if trim_policy.POLICY in line["what"]
    ]
    assert "was killed" in said
    wait_for(lambda: not trims(small), "a guard to remove it", seconds=2 * trim_policy.LOOK_SECONDS + 10)
    # It says so when the broker has answered, a moment after the policy is gone.
    wait_for(lambda: f"removed the policy {trim_policy.POLICY}" in (small.home.run / "guard-g1.log").read_text(), "the guard to say so")


def _killed_while_it_trims(network: LiveNetwork, archive: Path) -> bool:
    """`kill -9` a trim as soon as its policy stands; whether one stood. As in `export_and_trim`, a checkpoint may count after an export."""
    words = ["--home", str(network.home), "log", "trim", "--archive", str(archive), "--leave-behind"]
    for _ in range(10):
        assert run("tdn", "--home", network.home, "archive", "export", "--to", archive).code == 0
        trim = subprocess.Popen([str(Path(sys.executable).parent / "tdn"), *words], stderr=subprocess.PIPE)
        try:
            wait_for(lambda trim=trim: trims(network) or trim.poll() is not None, "the policy to stand", seconds=60)
            stood = trim.poll() is None
        finally:
            trim.kill()
            _, said = trim.communicate()
        if stood:
            return True
        assert b"tdn archive export" in said, said
    return False


def _logs(network: LiveNetwork) -> list[str]:
    return [line for log in network.home.run.glob("node-*.log") for line in log.read_text().splitlines()]
