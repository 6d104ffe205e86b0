"""A broker that loses the end of the log, or all of it: nodes put back what was acknowledged before anyone appends, and a store that others
went on without is not served. The loss is real: the broker's data folder of an earlier hour, or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from entity_client import path
from tdn.protocol import names
from tdn.protocol.names import Role
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, compare_states, until, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(300)]

LONG = os.environ.get("TDN_CHAOS") == "long"
#: Nodes that are down are not waited for longer than this.
QUICK = """
[limits]
wait_for_others_seconds = 4.0
"""
MEMBERS = ((Role.NODE, "n1"), (Role.NODE, "n2"), (Role.GUARD, "g1"))


class Losing:
    """A network, and what its broker and its stores were at an earlier hour."""

    def __init__(self, live: LiveNetwork, earlier: Path) -> None:
        self.live = live
        self._earlier = earlier
        self._data = live.home.credentials(Role.BROKER, "broker") / "rabbitmq" / "data"

    def remember(self) -> None:
        """Stop all of it in order, and keep the broker's data and everybody's store as they are then."""
        self.live.network.down()
        shutil.copytree(self._data, self._earlier / "data")
        for role, name in MEMBERS:
            shutil.copytree(self.live.home.credentials(role, name), self._earlier / name)
        self.live.up()

    def lose(self, *, all_of_it: bool = False) -> None:
        """What a power cut may do to the data of a broker, which does not run."""
        shutil.rmtree(self._data)
        if all_of_it:
            self._data.mkdir()
        else:
            shutil.copytree(self._earlier / "data", self._data)

    def lose_store(self, role: Role, name: str) -> None:
        for one in self._store(role, name).parent.glob("store.sqlite*"):
            one.unlink()
        for one in (self._earlier / name).glob("store.sqlite*"):
            shutil.copy(one, self._store(role, name).parent)

    def remove_store(self, role: Role, name: str) -> None:
        for one in self._store(role, name).parent.glob("store.sqlite*"):
            one.unlink()

    def _store(self, role: Role, name: str) -> Path:
        return self.live.home.credentials(role, name) / "store.sqlite"

    def chain(self, role: Role, name: str) -> list[tuple[int, int, str, bytes]]:
        """What a store has of the log: number, offset, head and bytes of each record."""
        with contextlib.closing(sqlite3.connect(f"file:{self._store(role, name)}?mode=ro", uri=True)) as store:
            return store.execute("SELECT seq, offset, head, raw FROM records ORDER BY seq").fetchall()

    def has(self, role: Role, name: str, uuid: str) -> bool:
        """Whether a store has a record about a topic."""
        with contextlib.closing(sqlite3.connect(f"file:{self._store(role, name)}?mode=ro", uri=True)) as store:
            return store.execute("SELECT 1 FROM records WHERE outcome LIKE ?", (f"%{uuid}%",)).fetchone() is not None

    def heads(self, role: Role, name: str) -> dict[int, str]:
        return {seq: head for seq, _, head, _ in self.chain(role, name)}

    def log(self) -> list[tuple[int, bytes]]:
        """The log itself, as the broker delivers it now: offset and bytes of each record, up to what n1 has."""
        last = self.chain(Role.NODE, "n1")[-1][1]
        found: list[tuple[int, bytes]] = []
        connection = self.live.as_node()
        with contextlib.closing(connection):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10_000)
            channel.basic_consume(
                names.LOG,
                lambda _c, _m, properties, body: found.append((properties.headers["x-stream-offset"], body)),
                arguments={"x-stream-offset": "first"},
            )
            while not found or found[-1][0] < last:
                connection.process_data_events(time_limit=1)
        return [one for one in found if one[0] <= last]

    def same_everywhere(self, scratch: Path) -> Any:
        """Nodes and guard have the log that the broker has, at the same offsets, and its state. Gives a replay."""
        wait_for(self.live.ready, "all to be ready", seconds=60)
        log = self.log()
        for role, name in MEMBERS:
            wait_for(lambda role=role, name=name: len(self.chain(role, name)) >= len(log), f"{name} to have the log")
            assert [(offset, raw) for _, offset, _, raw in self.chain(role, name)[: len(log)]] == log, f"{name} has another log"
        return compare_states(self.live, scratch)


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Losing]:
    live = LiveNetwork(tmp_path_factory.mktemp("losing network") / "home")
    losing = Losing(live, tmp_path_factory.mktemp("earlier"))
    try:
        live.issue_nodes({"n1": QUICK, "n2": QUICK})
        live.up()
        yield losing
    finally:
        live.end()


@pytest.fixture(scope="module")
def remembered(losing: Losing) -> Losing:
    """The same, with a state to fall back to. It takes another start, which only those pay for who need it."""
    losing.remember()
    return losing


def is_live(state: Any, uuid: str) -> bool:
    fact = state.get("topic", uuid)
    return fact is not None and fact["state"] == "live"


@pytest.mark.slow
async def test_the_end_of_the_log_is_put_back(remembered: Losing, connect: Connect, tmp_path: Path) -> None:
    """T22: the broker lost what one node alone has acknowledged; all was killed. It is in the log again, with its numbers and heads."""
    losing, live = remembered, remembered.live
    client = await connect(live, timeout=40)
    both = await client.create(path("lost/both have it"))
    await until(lambda: live.fact("topic", both.uuid, "n2"), "n2 to have it")
    live.kill("n2")
    one = [await client.create(path(f"lost/one has it/{number}")) for number in range(3)]
    await client.withdraw(one[0].uuid)
    live.end()
    acknowledged = losing.heads(Role.NODE, "n1")
    assert live.fact("topic", one[2].uuid, "n2") is None
    losing.lose()

    await asyncio.to_thread(live.up)
    state = losing.same_everywhere(tmp_path / "states")
    assert [is_live(state, topic.uuid) for topic in (both, *one)] == [True, False, True, True]
    state.close()
    now = losing.heads(Role.NODE, "n2")
    assert {seq: now[seq] for seq in acknowledged} == acknowledged, "a receipt names another record"
    assert "has put back" in live.network.process(Role.NODE, "n1").tail(lines=100)
    # The network goes on: whoever held a receipt gets the same again, and others see it.
    assert one[1].uuid in {topic.uuid async for topic in client.discover("lost/one has it")}
    assert (await client.create(path("lost/afterwards"))).receipt


async def test_all_of_the_log_is_put_back(losing: Losing, connect: Connect, tmp_path: Path) -> None:
    """T22: the broker's data is gone; guard and nodes, one of them behind, live on. The log is made anew from the longest store."""
    live = losing.live
    client = await connect(live, timeout=40)
    with live.paused("n2"):
        topics = [await client.create(path(f"gone/{number}")) for number in range(3)]
        acknowledged = losing.heads(Role.NODE, "n1")
        assert len(losing.chain(Role.NODE, "n2")) < len(acknowledged)
        broker: Any = live.network.broker()
        broker.kill_hard()
        losing.lose(all_of_it=True)
        await asyncio.to_thread(broker.start)
    state = losing.same_everywhere(tmp_path / "states")
    assert all(is_live(state, topic.uuid) for topic in topics)
    state.close()
    now = losing.heads(Role.NODE, "n2")
    assert {seq: now[seq] for seq in acknowledged} == acknowledged
    assert (await client.create(path("gone/afterwards"))).receipt


@pytest.mark.skipif(not LONG, reason="half a minute; `make chaos` runs it, and tests/unit/node/test_heads.py simulates it")
async def test_what_only_a_guard_has_is_put_back(remembered: Losing, connect: Connect, tmp_path: Path) -> None:
    """T22: broker and nodes lost it; the guard, which does not append, has it, and a node puts it back. Until then nobody is let in."""
    losing, live = remembered, remembered.live
    client = await connect(live, timeout=40)
    topic = await client.create(path("only a guard"))
    await until(lambda: losing.has(Role.GUARD, "g1", topic.uuid), "the guard to have it")
    live.end()
    acknowledged = losing.heads(Role.GUARD, "g1")
    losing.lose()
    for node in live.nodes():
        losing.lose_store(Role.NODE, node)

    await asyncio.to_thread(live.up)
    state = losing.same_everywhere(tmp_path / "states")
    assert is_live(state, topic.uuid)
    state.close()
    now = losing.heads(Role.NODE, "n1")
    assert {seq: now[seq] for seq in acknowledged} == acknowledged


@pytest.mark.slow
async def test_a_store_that_others_went_on_without(remembered: Losing, connect: Connect, tmp_path: Path) -> None:
    """T22: the only one that has what was lost comes when the others have gone on: it stops, says so, and the others serve."""
    losing, live = remembered, remembered.live
    client = await connect(live, timeout=40)
    lost = await client.create(path("left behind"))
    await until(lambda: live.fact("topic", lost.uuid, "n2"), "n2 to have it")
    live.end()
    last = losing.chain(Role.NODE, "n2")[-1][0]
    losing.lose()
    losing.lose_store(Role.NODE, "n1")
    losing.lose_store(Role.GUARD, "g1")
    broker: Any = live.network.broker()

    def start_without_n2() -> None:
        live.network._spawn(Role.GUARD, "g1")
        broker.start()
        live.network.start_one(Role.NODE, "n1")

    await asyncio.to_thread(start_without_n2)
    assert "goes on without having heard from node:n2" in live.network.process(Role.NODE, "n1").tail(lines=100)
    assert (await client.create(path("gone on"))).receipt

    process = live.network.process(Role.NODE, "n2")
    live.network._spawn(Role.NODE, "n2")
    await until(lambda: not process.alive(), "n2 to stop by itself")
    said = process.tail(lines=1)
    assert said.startswith("error: the log holds something else at record")
    assert f"which has {last}: others went on without these records" in said
    assert live.home.reported("node-n2")["ready"] is False
    assert losing.has(Role.NODE, "n2", lost.uuid), "what it had is still there to look at"
    assert [entry["id"] for entry in live.network.status() if entry["alive"] and entry.get("ready")] == ["broker", "g1", "n1"]

    # What docs/operations.md says to do.
    losing.remove_store(Role.NODE, "n2")
    await asyncio.to_thread(live.start, "n2")
    losing.same_everywhere(tmp_path / "states").close()


def test_only_nodes_say_what_they_have(losing: Losing) -> None:
    """T19: an entity can neither write nor hear the nodes' words, nor hold what keeps two from putting back at once."""
    live = losing.live
    live.up()
    raw = RawEntity(live)
    node = live.node("n1").name

    def refused(act: Any) -> bool:
        channel = raw.connection.channel()
        channel.confirm_delivery()
        try:
            act(channel)
        except pika.exceptions.ChannelClosedByBroker as error:
            return error.reply_code == 403
        return False

    word = b'{"seq": 1000000, "head": "%s", "log": 0, "torn": true}' % (b"0" * 64)
    for exchange in (names.HEADS, names.GUARDS):
        for login in (str(node), str(raw.name), None):
            assert refused(lambda c, x=exchange, u=login: c.basic_publish(x, "", word, pika.BasicProperties(user_id=u))), (
                exchange,
                login,
            )
    heard = next(queue["name"] for queue in live.manage("GET", "/queues/tdn") if queue["name"].startswith(f"{names.HEADS}."))
    for queue in (heard, names.RESTORING):
        assert refused(lambda c, q=queue: c.basic_publish("", q, word))
        assert refused(lambda c, q=queue: c.queue_declare(q, exclusive=True))
        assert refused(lambda c, q=queue: c.queue_bind(q, names.HEADS))
    assert refused(lambda c: c.exchange_declare(names.HEADS, "fanout", durable=True))
    raw.close()
    assert live.ready()
