"""The log and its views: continued after `kill -9`, replayed from nothing, and never served when store and log disagree."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from entity_client import path
from tdn.errors import LogDiverged
from tdn.node.service import Node, NodeSettings
from tdn.protocol.names import Role
from tdn.rules.apply import network_id
from tdn.trust import signing
from tests.conftest import Connect
from tests.live import LiveNetwork, compare_states, until

pytestmark = pytest.mark.broker


@pytest.mark.slow
async def test_kill_in_the_middle_of_load(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: a node killed under load continues where it was, and ends with the same log and state as the other."""
    clients = [await connect(mortal, timeout=60) for _ in range(3)]
    done: list[str] = []

    async def load(client: object, count: int) -> None:
        for number in range(count):
            done.append((await client.create(path(f"load/{number}"))).uuid)  # type: ignore[attr-defined]

    working = [asyncio.create_task(load(client, 15)) for client in clients]
    await until(lambda: len(done) >= 6, "some to be done")
    mortal.kill("n1")
    await until(lambda: len(done) >= 15, "the other node to go on")
    before = mortal.records("n1")[-1]["seq"]
    await asyncio.to_thread(mortal.start, "n1")
    await asyncio.gather(*working)

    state = compare_states(mortal, tmp_path / "states")
    for uuid in done:
        fact = state.get("topic", uuid)
        assert fact is not None
        assert fact["state"] == "live"
    assert state.position.seq > before
    assert len(done) == len(set(done)) == 45
    state.close()


@pytest.mark.slow
async def test_a_third_node_replays_from_nothing(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T10: a new node reads the whole log and has the same head and digest as the others; then it serves what they serve."""
    client = await connect(mortal)
    topic = await client.create(path("before the third"))
    await asyncio.to_thread(mortal.up, 3)
    assert mortal.nodes() == ["n1", "n2", "n3"]
    try:
        assert {node.id async for node in client.locate()} == {"n1", "n2", "n3"}
        compare_states(mortal, tmp_path / "states").close()
        assert topic.uuid in {found.uuid async for found in client.discover("before the third", nodes=["n3"])}
        minted = await client.create(path("by the third"), node="n3")
        assert minted.advertisement.node == "n3"
        assert minted.receipt
    finally:
        # Two cores: the tests that follow need no third. Gone for good, as an operator would do it.
        mortal.stop("n3")
        (mortal.home.enrolments / "node-n3.jws").unlink()
        shutil.rmtree(mortal.home.credentials(Role.NODE, "n3"))


def settings(network: LiveNetwork, store: Path, *, genesis: bytes | None = None) -> NodeSettings:
    connection = network.home.connection()
    return NodeSettings(
        connection.brokers, connection.vhost, genesis or network.home.genesis(), store, network.home.enrolments, 0.5
    )


async def refuses_to_serve(node: Node) -> str:
    """Run a node until it ends by itself; it must never have been ready."""
    with pytest.raises(LogDiverged) as refusal:
        await asyncio.wait_for(node.run(asyncio.Event()), 40)
    assert not node.condition.ready
    assert not node.condition.counts
    return str(refusal.value)


@contextlib.contextmanager
def stopped_copy(network: LiveNetwork, node: str, to: Path) -> Iterator[Path]:
    """The store of a node that is stopped meanwhile, copied."""
    network.stop(node)
    shutil.copy(network.home.credentials(Role.NODE, node) / "store.sqlite", to)
    try:
        yield to
    finally:
        network.start(node)


async def test_a_store_that_disagrees_with_the_log_is_not_served(mortal: LiveNetwork, tmp_path: Path) -> None:
    """A store whose last record is not the log's stops the node with the reason, before anyone is answered."""
    with stopped_copy(mortal, "n2", tmp_path / "store.sqlite") as store:
        with contextlib.closing(sqlite3.connect(store)) as db, db:
            db.execute("UPDATE records SET raw = CAST(raw || 'x' AS BLOB) WHERE seq = (SELECT seq FROM position)")
        node = Node(mortal.credentials(Role.NODE, "n2"), settings(mortal, store))
        assert "something else at record" in await refuses_to_serve(node)


async def test_another_networks_log_is_not_served(mortal: LiveNetwork, live: LiveNetwork, tmp_path: Path) -> None:
    """A node that was told of another network stops: with a store of this one at once, with an empty one at the genesis."""
    foreign = live.home.genesis()
    assert network_id(foreign) != mortal.home.network
    with stopped_copy(mortal, "n2", tmp_path / "store.sqlite") as store:
        with pytest.raises(LogDiverged, match="belongs to network"):
            Node(mortal.credentials(Role.NODE, "n2"), settings(mortal, store, genesis=foreign))
        node = Node(mortal.credentials(Role.NODE, "n2"), settings(mortal, tmp_path / "empty.sqlite", genesis=foreign))
        assert "belongs to network" in await refuses_to_serve(node)


async def test_a_doctored_store_convinces_nobody(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T16: an advertisement that does not verify is never shown, whoever serves it; the others are, and so is the true one."""
    client = await connect(mortal)
    doctored, untouched = [await client.create(path(f"doctored/{number}")) for number in range(2)]
    store = mortal.home.credentials(Role.NODE, "n2") / "store.sqlite"

    def at_n2() -> bool:
        return mortal.fact("topic", untouched.uuid, "n2") is not None

    await until(at_n2, "n2 to have both")
    mortal.stop("n2")
    shutil.copy(store, tmp_path / "kept.sqlite")
    try:
        # Sound in every way but its signature.
        header, payload, signature = doctored.token.split(".")
        content = signing.decode_segment(payload.encode()).replace(b"doctored/0", b"doctored/9")
        changed = ".".join((header, signing.encode_segment(content), signature))
        assert changed != doctored.token
        with contextlib.closing(sqlite3.connect(store)) as db, db:
            ((seq, raw),) = db.execute(
                "SELECT r.seq, r.raw FROM records r JOIN topics t ON t.id = r.seq WHERE t.uuid = ?", (doctored.uuid,)
            ).fetchall()
            assert doctored.token.encode() in raw
            db.execute("UPDATE records SET raw = ? WHERE seq = ?", (raw.replace(doctored.token.encode(), changed.encode()), seq))
        await asyncio.to_thread(mortal.start, "n2")

        alone = client.discover("doctored", nodes=["n2"])
        assert [topic.uuid async for topic in alone] == [untouched.uuid]
        assert [node for node, _ in alone.disbelieved] == ["n2"]
        everyone = client.discover("doctored")
        assert {topic.uuid async for topic in everyone} == {doctored.uuid, untouched.uuid}
        assert [node for node, _ in everyone.disbelieved] == ["n2"]
    finally:
        mortal.stop("n2")
        for leftover in store.parent.glob("store.sqlite*"):
            leftover.unlink()
        shutil.copy(tmp_path / "kept.sqlite", store)
        await asyncio.to_thread(mortal.start, "n2")
