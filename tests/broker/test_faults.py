"""Faults with real processes (T22): whatever is killed or paused in between, an operation completes with one effect or ends in a clear
error, and what was acknowledged is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, Hosting, path
from entity_client.session import Session
from tdn.bus.connection import Connection
from tdn.errors import Absent, TrustError
from tdn.local import node_file
from tdn.node.changes import Changes
from tdn.node.service import Node, NodeSettings
from tdn.protocol.names import Role
from tdn.rules.state import Outcome
from tdn.trust import envelope, statements
from tdn.trust.envelope import Envelope
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, compare_states, run, until

pytestmark = [pytest.mark.broker, pytest.mark.chaos]


def accepted(network: LiveNetwork, uuid: str, node: str = "n1") -> int:
    return [record["status"] for record in network.records_about(uuid, node)].count("accepted")


async def minted(client: EntityClient, count: int) -> list[Any]:
    return [await client.create(path(f"fault/{number}"), advertise=False) for number in range(count)]


async def test_chosen_node_is_killed(mortal: LiveNetwork, connect: Connect) -> None:
    """T12: the choice is made again when the chosen node stops answering, and remembered anew."""
    folder = mortal.entity()
    client = await connect(mortal, folder)
    await client.choose(lambda nodes: next(node for node in nodes if node.id == "n1"))
    assert json.loads((folder / "chosen-node.json").read_text())["node"] == "n1"
    assert (await client.create(path("first"))).advertisement.node == "n1"
    mortal.kill("n1")
    assert (await client.create(path("second"))).advertisement.node == "n2"
    assert json.loads((folder / "chosen-node.json").read_text())["node"] == "n2"
    again = await connect(mortal, folder)
    assert (await again.create(path("third"))).advertisement.node == "n2"


async def test_answers_are_shown_as_they_come(mortal: LiveNetwork, connect: Connect) -> None:
    """T15: topics of a node that answers are shown although another one hangs; who was silent is said at the end."""
    client = await connect(mortal, timeout=20)
    topic = await client.create(path("as they come"))
    await until(lambda: mortal.fact("topic", topic.uuid, "n1"), "n1 to have it")
    loop = asyncio.get_running_loop()
    with mortal.paused("n2"):
        discovery = client.discover("as they come", nodes=["n1", "n2"])
        started = loop.time()
        assert [found.uuid async for found in discovery] == [topic.uuid]
        assert loop.time() - started < 10, "nobody waits for a node that hangs until the time is over"
        assert discovery.answered == {"n1"}
        assert discovery.silent == {"n2"}


async def test_node_killed_between_request_and_answer(mortal: LiveNetwork, connect: Connect) -> None:
    """T22: changes that a hanging node has taken are finished by the other one when it is killed; each has one effect and one receipt."""
    folder = mortal.entity()
    topics = await minted(await connect(mortal, folder), 8)
    raw = RawEntity(mortal, folder)
    raw.hello()
    with mortal.paused("n1"):
        for topic in topics:
            raw.change(raw.write("advertise", {"uuid": topic.uuid, "opening": topic.opening}, tail=topic.token.encode()))
        # Shared out in turn: the other one's half is answered, the rest lies with the one that hangs.
        receipts = [receipt(raw.reply(), raw) for _ in range(4)]
        assert raw.more_replies() == 0
        mortal.kill("n1")
    receipts += [receipt(raw.reply(), raw) for _ in range(4)]
    assert raw.more_replies() == 0
    raw.close()
    assert {entry["uuid"] for entry in receipts} == {topic.uuid for topic in topics}
    for topic in topics:
        assert accepted(mortal, topic.uuid, "n2") == 1


def receipt(reply: Envelope, raw: RawEntity) -> dict[str, Any]:
    assert reply.kind == "decided", reply.body
    return dict(statements.read(reply.tail or b"", statements.by_roots(raw.credentials.roots)).payload)


async def test_node_dies_between_the_log_and_the_answer(
    mortal: LiveNetwork, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22: decided in the log, not answered, and its node is gone: the next node finds the outcome and answers with the same record."""
    decided: list[Outcome] = []

    class Dying(Changes):
        async def decide(self, request: Envelope) -> Outcome:
            outcome = await super().decide(request)
            if request.kind == "advertise":
                decided.append(outcome)
                await asyncio.Event().wait()
            return outcome

    folder = mortal.entity()
    (topic,) = await minted(await connect(mortal, folder), 1)
    raw = RawEntity(mortal, folder)
    raw.hello()
    for node in mortal.nodes():
        mortal.stop(node)
    monkeypatch.setattr("tdn.node.service.Changes", Dying)
    async with node_in_this_process(mortal, "n1"):
        raw.change(raw.write("advertise", {"uuid": topic.uuid, "opening": topic.opening}, tail=topic.token.encode()))
        await until(lambda: decided, "the log to decide")
        assert raw.more_replies() == 0
    monkeypatch.undo()
    await asyncio.to_thread(mortal.start, "n2")
    answer = receipt(raw.reply(), raw)
    raw.close()
    assert decided[0].receipt is not None
    assert answer == dict(decided[0].receipt)
    assert accepted(mortal, topic.uuid, "n2") == 1


@contextlib.asynccontextmanager
async def node_in_this_process(network: LiveNetwork, name: str) -> AsyncIterator[Node]:
    """A node of the network, served by this process; at the end it is gone as if killed, with nothing finished."""
    folder = network.home.credentials(Role.NODE, name)
    connection = network.home.connection()
    _, limits = node_file.read(folder)
    settings = NodeSettings(
        connection.brokers,
        connection.vhost,
        network.home.genesis(),
        folder / "store.sqlite",
        network.home.enrolments,
        0.5,
        limits=limits,
    )
    node = Node(network.credentials(Role.NODE, name), settings)
    serving = asyncio.create_task(node._serve_once(asyncio.Event()))
    try:
        await until(lambda: node.condition.ready or serving.done(), "the node to be ready")
        yield node
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        node.replica.close()


async def test_a_lost_answer(mortal: LiveNetwork, connect: Connect) -> None:
    """T22: a client that is gone before the answer sends the request again, signed anew, and gets the receipt of the first."""
    folder = mortal.entity()
    client = await connect(mortal, folder)
    (topic,) = await minted(client, 1)
    body, tail = {"uuid": topic.uuid, "opening": topic.opening}, topic.token.encode()
    raw = RawEntity(mortal, folder)
    raw.introduce()
    raw.change(raw.write("advertise", body, tail=tail, message_id="the-first-time"))
    raw.connection.close()
    await until(lambda: accepted(mortal, topic.uuid) == 1, "the log to have it")
    (first,) = [record for record in mortal.records_about(topic.uuid) if record["status"] == "accepted"]
    again = RawEntity(mortal, folder)
    again.hello()
    again.change(again.write("advertise", body, tail=tail, message_id="the-first-time", seconds=600))
    assert receipt(again.reply(), again) == first["receipt"]
    again.close()
    assert accepted(mortal, topic.uuid) == 1
    # Whoever has even lost the request's id asks anew; nothing changes by it.
    before = mortal.fact("topic", topic.uuid)
    assert (await client.advertise(topic.token)).uuid == topic.uuid
    assert mortal.fact("topic", topic.uuid) == before


_DIES = """
import asyncio, sys
from entity_client import EntityClient, Hosting, path
from entity_client.session import Session

async def main():
    async with await EntityClient.connect(sys.argv[1], timeout=30) as client:
        topic = await client.create(path("half done"), advertise=False)
        print(topic.token, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_entity_killed_between_creation_and_advertisement(mortal: LiveNetwork, connect: Connect) -> None:
    """T7, T22: it leaves nothing behind, and whoever kept the advertisement can advertise later."""
    folder = mortal.entity()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _DIES, str(folder), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    token = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    other = await connect(mortal)
    uuid = statements.read_advertisement(token.encode(), statements.by_roots(mortal.credentials(Role.NODE, "n1").roots)).uuid
    assert [topic.uuid async for topic in other.discover("half done")] == []
    with pytest.raises(Absent):
        await other.show(uuid)
    assert mortal.records_about(uuid) == []
    later = await connect(mortal, folder)
    assert (await later.advertise(token)).uuid == uuid
    await until(lambda: _discovers(other, "half done", uuid), "it to be discovered")


async def _discovers(client: EntityClient, query: str, uuid: str) -> bool:
    return [topic.uuid async for topic in client.discover(query)] == [uuid]


@pytest.mark.slow
async def test_all_nodes_are_down_while_advertisements_are_sent(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: exit 3 and `queued`; when nodes are back the topics are there, and the same command gives the receipt."""
    folder = mortal.entity()
    topics = await minted(await connect(mortal, folder), 2)
    for node in mortal.nodes():
        mortal.stop(node)
    files = []
    for topic in topics:
        files.append(tmp_path / f"{topic.uuid}.jws")
        files[-1].write_text(topic.token)
    words = ("--home", mortal.home.folder, "--as", folder.name, "--json", "--timeout", "2s", "advertise")
    for file in files:
        undecided = await asyncio.to_thread(run, "entity", *words, file)
        assert undecided.code == 3, undecided
        assert undecided.out == ""
        assert undecided.error["error"] == "unreachable"
        assert undecided.request, "by which it is found in the logs when a node has taken it"
        assert undecided.error["detail"] == {"queued": True}
    # Told to go: whoever creates, rather than advertises, is told that nobody is there.
    create = await asyncio.to_thread(run, "entity", *words[:-1], "create", "--path", "nobody/there")
    assert (create.code, create.error["error"]) == (3, "unreachable")
    assert "queued" not in create.error["detail"]

    for node in mortal.nodes():
        await asyncio.to_thread(mortal.start, node)
    other = await connect(mortal)
    for topic, file in zip(topics, files, strict=True):
        await until(lambda topic=topic: accepted(mortal, topic.uuid) == 1, "the log to have it")
        assert (await other.show(topic.uuid)).token == topic.token
        before = mortal.fact("topic", topic.uuid)
        again = await asyncio.to_thread(run, "entity", *words, file)
        assert again.code == 0, again
        assert again.one["uuid"] == topic.uuid
        assert mortal.fact("topic", topic.uuid) == before, "one effect"


async def test_a_node_that_was_cut_off_while_it_hung(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: a node that is paused past its heartbeats has lost its connection when it wakes; it comes back by itself.

    The broker's end of a missed heartbeat is done by hand here, because waiting for a real one takes a minute (`make chaos` does).
    """
    client = await connect(mortal, timeout=30)
    pid = mortal.network.process(Role.NODE, "n2").pid
    with mortal.paused("n2"):
        mortal.cut(mortal.node("n2").name)
        while_away = [await client.create(path(f"away/{number}")) for number in range(4)]
    await until(lambda: _located(client, {"n1", "n2"}), "n2 to be back")
    await until(lambda: mortal.fact("topic", while_away[-1].uuid, "n2"), "n2 to have caught up")
    assert mortal.network.process(Role.NODE, "n2").pid == pid, "the same process"
    compare_states(mortal, tmp_path / "states").close()


async def _located(client: EntityClient, expected: set[str]) -> bool:
    return {node.id async for node in client.locate()} == expected


@pytest.mark.parametrize("way", [pytest.param("in order", marks=pytest.mark.slow), "kill -9"])
async def test_broker_restart_under_load(mortal: LiveNetwork, connect: Connect, tmp_path: Path, way: str) -> None:
    """T22: clients, guard and nodes come back by themselves; what was acknowledged before is there, and nothing is there twice."""
    clients = [await connect(mortal, timeout=60) for _ in range(3)]
    done: list[str] = []
    stop = asyncio.Event()

    async def load(client: EntityClient) -> None:
        while not stop.is_set():
            # Alternating, so that both halves of a creation are under way when the broker goes.
            done.append((await client.create(path(f"restart/{way}/{len(done)}"), lifetime=timedelta(hours=1))).uuid)

    working = [asyncio.create_task(load(client)) for client in clients]
    await until(lambda: len(done) >= 9, "some to be done")
    broker: Any = mortal.network.broker()
    before = len(done)
    await asyncio.to_thread(broker.stop if way == "in order" else broker.kill_hard)
    assert not broker.alive()
    await asyncio.to_thread(broker.start)
    await until(lambda: len(done) >= before + 9 or any(task.done() for task in working), "the load to go on", seconds=60)
    stop.set()
    await asyncio.gather(*working)
    await until(mortal.ready, "all to be ready")

    state = compare_states(mortal, tmp_path / "states")
    assert len(done) == len(set(done))
    for uuid in done:
        fact = state.get("topic", uuid)
        assert fact is not None, "an acknowledged topic is lost"
        assert fact["state"] == "live"
    state.close()
    newcomer = await connect(mortal)
    assert {topic.uuid async for topic in newcomer.discover(f"restart/{way}", limit=1000)} >= set(done)


async def test_a_refused_login_is_told_from_an_absent_guard(mortal: LiveNetwork, connect: Connect) -> None:
    """T22: with the guard away a newcomer gets a clear error, and those who are in go on."""
    inside = await connect(mortal, timeout=30)
    await inside.create(path("inside"))
    guard = mortal.network.process(Role.GUARD, "g1")
    guard.kill_hard()
    try:
        newcomer = await connect(mortal, timeout=3)
        with pytest.raises(TrustError, match="guard does not answer"):
            await newcomer.create(path("outside"))
        assert (await inside.create(path("still inside"))).receipt
    finally:
        await asyncio.to_thread(mortal.network.start_one, Role.GUARD, "g1")
    assert (await newcomer.create(path("now inside"))).receipt


async def test_the_guard_catches_up_on_what_it_missed(mortal: LiveNetwork, connect: Connect) -> None:
    """T21: a revocation while the guard was away takes effect when it is back: the connection is closed, the login refused."""
    folder = mortal.entity()
    client = await connect(mortal, folder, timeout=3)
    await client.create(path("soon gone"))
    name = client.identity.name
    connection: Connection = client._session._line.connection  # type: ignore[union-attr]
    session = Session(mortal.credentials(Role.OPERATOR, "operator"), mortal.home.connection())

    # Made before: the broker forgets what it allowed on a channel that is idle for a second.
    first, second = (mortal.network.operator.revoke(Role.ENTITY, one.name) for one in (mortal.entity(), folder))
    guard = mortal.network.process(Role.GUARD, "g1")
    pid = guard.pid
    assert pid is not None

    written = {pending: pending.read_bytes() for pending in (first, second)}

    async def revoke(pending: Path) -> None:
        waiting = envelope.authenticate(written[pending], lambda header: session.credentials.identity)
        await session.change(waiting.kind, waiting.body, message_id=waiting.id, timeout=20)

    # The operator is in when the guard is killed, and has just done the like: the broker asks nobody again for the same channel.
    await revoke(first)
    os.kill(pid, signal.SIGKILL)
    answered = asyncio.create_task(revoke(second))
    for node in mortal.nodes():
        await until(lambda node=node: name.key_hash in (mortal.fact("principal", name.principal, node) or {})["revoked"])
    assert not connection.closed.done()
    guard.kill_hard()
    await asyncio.to_thread(mortal.network.start_one, Role.GUARD, "g1")
    await asyncio.wait_for(asyncio.wait([connection.closed]), 20)
    # Without a guard nobody is let in, nodes neither; once it is back, the one who revoked is answered.
    await answered
    await session.close()
    for pending in (first, second):
        pending.unlink()
    with pytest.raises(TrustError):
        await client.create(path("gone"))


async def test_guard_that_is_not_sure_is_waited_for(mortal: LiveNetwork, connect: Connect) -> None:
    """T21, T22: a guard that has lost the log allows nothing. Who asks, changes and follows meanwhile waits for it; nobody is told that it
    may not."""
    client = await connect(mortal, timeout=30)
    root = await client.create(path("guarded"), hosting=Hosting(True))
    follower = await connect(mortal, timeout=30)
    told: list[str] = []
    watching = follower.hierarchy.watch(root.uuid)

    async def follow() -> None:
        async for change in watching:
            told.append(change.uuid)

    following = asyncio.create_task(follow())
    await asyncio.wait_for(watching.ready.wait(), 30)
    guard = mortal.credentials(Role.GUARD, "g1").identity.name
    made: list[str] = []
    for _ in range(6):
        # New channels, which the guard is asked about, while it has no connection of its own.
        for name in (guard, client.identity.name, follower.identity.name, guard):
            await asyncio.to_thread(mortal.cut, name)
        child = asyncio.create_task(client.create(path("guarded/child"), parent=root.uuid))
        await asyncio.to_thread(mortal.cut, guard)
        made.append((await child).uuid)
        await client.show(made[-1])
    await until(lambda: told == made or following.done(), "the follower to be told of everything", seconds=30)
    assert not following.done()
    assert told == made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
