"""Three brokers that are one (T22): one is killed and nothing that was acknowledged is lost; two are killed and changes are refused; all are
back and everything goes on. One network is shared: each test leaves it whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pytest

from entity_client import EntityClient, path
from tdn.bus.connection import Broker, Connection
from tdn.errors import BrokerUnavailable, LoginRefused, Refused, UsageError
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.protocol.trees import Gathering
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tests.conftest import Connect
from tests.live import LiveNetwork, compare_states, meet, reading, run, stubborn, until, wait_for

# Three brokers start together, several times, on a machine that may have other things to do.
pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(400)]

#: The longest that a change, a publish or a discovery may take when one broker is killed. Measured on a quiet machine: docs/operations.md. Ours may be busy.
STANDSTILL_SECONDS = 15.0
#: What a node leaves to guards beyond what fencing takes, and less than it takes until a guard that runs seems silent. A machine that stands still for so long excuses them.
STALL_SECONDS = 2.0


@dataclass(frozen=True)
class Grown:
    """Three brokers that were restored from the backup of a network that had one."""

    network: LiveNetwork
    #: Whoever was there before, and its topic.
    who: str
    topic: str


async def _live_on_one(single: LiveNetwork) -> tuple[str, str]:
    """Gives an entity of a network with one broker, and its topic. The number stays, and it says so."""
    async with await single.client() as owner:
        topic = await owner.create(path("before"))
        for brokers, said in ((3, "keeps that number"), (2, "odd|1, 3 or 5")):
            with pytest.raises(UsageError, match=said):
                single.network.up(brokers=brokers)
        assert (await owner.show(topic.uuid)).uuid == topic.uuid, "nothing was changed"
        return owner.identity.name.id, topic.uuid


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    """As docs/operations.md says it is done: the only way from one broker to three, and here three are started once for all tests."""
    folder = tmp_path_factory.mktemp("three brokers")
    single, network = LiveNetwork(folder / "single"), LiveNetwork(folder / "home")
    try:
        single.up(nodes=2)
        who, topic = asyncio.run(_live_on_one(single))
        single.network.down()
        assert run("tdn", "--home", single.home.folder, "backup", "--to", folder / "backup").code == 0
        assert run("tdn", "--home", network.home.folder, "restore", folder / "backup").code == 0
        network.up(brokers=3, nodes=4)
        yield Grown(network, who, topic)
    finally:
        single.end()
        network.end()


@pytest.fixture
def _three(grown: Grown) -> LiveNetwork:
    return grown.network


@pytest.fixture
def three(_three: LiveNetwork) -> LiveNetwork:
    """Three brokers, three guards, four nodes; a test may kill any. The next finds all of it running again."""
    _three.up()
    wait_for(_three.ready, "all to be ready", seconds=60)
    return _three


#: A minute of a processor each, most of it to start brokers again, and their own patience with three brokers is measured in seconds: they run where nothing
#: else does. What the loss of one stops is measured every day too, at the end of `test_from_one_broker_to_three`, after which nothing is started again.
alone = pytest.mark.skipif("TDN_CHAOS" not in os.environ, reason="only by `make chaos`, or with TDN_CHAOS=short")


def leader(network: LiveNetwork, queue: str) -> str:
    """The broker that leads a queue or stream, by its name in the home."""
    # The brokers say it every few seconds.
    name = wait_for(lambda: network.manage("GET", f"/queues/tdn/{queue}").get("node"), f"the leader of {queue} to be known")
    return next(place.broker for place in network.home.places() if place.nodename == name)


def await_copies(network: LiveNetwork, *queues: str) -> None:
    """Wait until every broker has a copy of some queues. The brokers say it every few seconds."""
    everywhere = {place.nodename for place in network.home.places()}
    for queue in queues:

        def is_everywhere(queue: str = queue) -> bool:
            return set(network.manage("GET", f"/queues/tdn/{queue}").get("online", ())) == everywhere

        wait_for(is_everywhere, f"{queue} to be on all brokers")


def pids(network: LiveNetwork) -> dict[str, int]:
    return {entry["id"]: entry["pid"] for entry in network.network.status() if entry["alive"]}


class ClosedBehind:
    """From now on: whether another guard has heard nothing of this one for so long that it cut off the entities at its broker."""

    def __init__(self, network: LiveNetwork, guard: str) -> None:
        self._guard = guard
        self._logs = [network.home.run / f"guard-{name}.log" for name in network.network.guards() if name != guard]
        self._read = [log.stat().st_size for log in self._logs]

    def __bool__(self) -> bool:
        since = [log.read_bytes()[size:].decode() for log, size in zip(self._logs, self._read, strict=True)]
        return any(re.search(rf"hears nothing of ([^:]*, )?{self._guard}[,:]", log) for log in since)


class Stall:
    """From now on: the longest that the machine let somebody wait who wanted to do next to nothing ten times a second."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._longest, self._last = self.longest, time.monotonic()

    @property
    def longest(self) -> float:
        # Also when nobody has had a turn since but who asks.
        return max(self._longest, time.monotonic() - self._last)

    def __bool__(self) -> bool:
        """Whether it stood still for so long that whoever is given seconds for something may have missed them."""
        return self.longest > STALL_SECONDS

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Repeated:
    """Something that is done again and again: how often, and the longest that one time took."""

    def __init__(self, one: Callable[[], Awaitable[object]]) -> None:
        self.count = 0
        self.longest = 0.0
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(one))

    async def _run(self, one: Callable[[], Awaitable[object]]) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            await one()
            self.longest = max(self.longest, time.monotonic() - began)
            self.count += 1
            # Often enough to see a standstill; without pause it would keep the machine too busy to see anything else.
            await asyncio.sleep(0.1)

    async def more(self, count: int) -> None:
        enough = self.count + count
        await until(lambda: self.count >= enough or self._task.done(), f"{count} more", seconds=60)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._stop.set()
        await self._task


class Load(Repeated):
    """Topics created one after another: those that were acknowledged."""

    def __init__(self, client: EntityClient, name: str) -> None:
        self.done: list[str] = []

        async def create() -> None:
            self.done.append((await client.create(path(f"{name}/{len(self.done)}"), lifetime=timedelta(hours=1))).uuid)

        super().__init__(create)


@contextlib.asynccontextmanager
async def repeated(one: Callable[[], Awaitable[object]]) -> AsyncIterator[Repeated]:
    under_way = Repeated(one)
    try:
        yield under_way
    finally:
        await under_way.stop()


@contextlib.asynccontextmanager
async def loads(network: LiveNetwork, connect: Connect, name: str, count: int = 2) -> AsyncIterator[list[Load]]:
    # Patient: two of three brokers are away for as long as it takes to start them, and one that does not go on by itself to be told to.
    under_way = [Load(await connect(network, timeout=150), f"{name}/{number}") for number in range(count)]
    try:
        yield under_way
    finally:
        for load in under_way:
            await load.stop()


def test_one_network_of_three(three: LiveNetwork) -> None:
    """Each broker and each guard is told; the log and the shared queues are on all brokers, and everybody knows where those are."""
    entries = {(entry["role"], entry["id"]): entry for entry in three.network.status()}
    expected = {
        ("broker", "broker"),
        ("broker", "broker2"),
        ("broker", "broker3"),
        ("guard", "g1"),
        ("guard", "g2"),
        ("guard", "g3"),
    }
    assert entries.keys() == expected | {("node", f"n{number}") for number in range(1, 5)}
    assert all(entry["alive"] and entry["ready"] for entry in entries.values())
    await_copies(three, names.LOG, names.CHANGES, names.DEAD, names.MAJORITY)
    assert (three.entity() / "connection.toml").read_text().count("[[broker]]") == 3
    assert not three.network.up(), "a second time changes nothing"
    assert not three.network.up(brokers=3)
    for brokers in (0, 1, 2, 4, 7):
        with pytest.raises(UsageError):
            three.network.up(brokers=brokers)


@alone
async def test_the_leader_is_killed(three: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T21, T22: nothing acknowledged is lost and nobody stands still for long, watchers and subscribers neither; meanwhile a revocation takes
    effect, also by the guard whose broker is gone; and the broker comes back beside all that runs."""
    owner, reader, victim = await meet(three, connect, 3)
    topic = await owner.create(path("traffic"))
    await owner.grants.give(SUBSCRIBE, topic.uuid, reader.identity.name.id)
    granted = await owner.grants.give(PUBLISH, topic.uuid, victim.identity.name.id)
    collection = await owner.create_collection(path("followed"), Gathering())
    seen: list[str] = []

    watching = owner.collections.watch(collection.uuid)

    async def follow() -> None:
        async for change in watching:
            seen.append(change.uuid)

    following = asyncio.create_task(follow())
    await watching.ready.wait()
    sent: list[str] = []
    seeker = await connect(three, timeout=60)

    async def publish() -> None:
        text = f"message {len(sent)}"
        await publisher.publish(text)
        sent.append(text)

    async def discover() -> None:
        assert topic.uuid in [found.uuid async for found in seeker.discover("traffic")]

    async with (
        reading(reader, topic.uuid) as messages,
        loads(three, connect, "leader killed") as under_way,
        owner.publisher(topic.uuid) as publisher,
        repeated(publish) as publishing,
        repeated(discover) as discovering,
    ):
        await messages.has("message 5")
        queue = next(name["name"] for name in three.manage("GET", "/queues/tdn?columns=name") if topic.uuid in name["name"])
        assert three.manage("GET", f"/queues/tdn/{queue}")["arguments"]["x-queue-type"] == "quorum"
        everything = [*under_way, publishing, discovering]
        for one in everything:
            await one.more(3)
        killed = await asyncio.to_thread(leader, three, names.LOG)
        before = pids(three)
        three.network.broker(killed).kill_hard()
        for one in everything:
            one.longest = 0.0
        for one in everything:
            await one.more(5)
        added = (await owner.create(path("added"))).uuid
        await owner.collections.add(collection.uuid, added)
        await until(lambda: added in seen or following.done(), "the watcher to hear of it", seconds=30)
        # With a broker dead: everybody is told, every guard has done its part, and the right is gone at the brokers that are left.
        revocation = await owner.grants.revoke(granted.id)
        assert set(revocation.guards) == {"g1", "g2", "g3"}, revocation
        with pytest.raises(Refused):
            await victim.publish(topic.uuid, "too late")
        creating = max(load.longest for load in under_way)
        print(f"longest: a creation {creating:.2f} s, a publish {publishing.longest:.2f} s, a discovery {discovering.longest:.2f} s")
        assert max(creating, publishing.longest, discovering.longest) < STANDSTILL_SECONDS
        await asyncio.to_thread(three.up)
        after = pids(three)
        assert {name: pid for name, pid in after.items() if name != killed} == {
            name: pid for name, pid in before.items() if name != killed
        }, "what ran went on"
        for one in everything:
            await one.more(3)
        await publishing.stop()
        await messages.has(*sent)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await check(three, under_way, tmp_path)


async def check(network: LiveNetwork, under_way: list[Load], scratch: Path) -> None:
    """All nodes have the same state, and everything that was acknowledged is in it."""
    await until(network.ready, "all to be ready", seconds=60)
    state = await asyncio.to_thread(compare_states, network, scratch / "states")
    for uuid in (uuid for load in under_way for uuid in load.done):
        fact = state.get("topic", uuid)
        assert fact is not None, "an acknowledged topic is lost"
        assert fact["state"] == "live"
    state.close()


async def test_the_guard_of_one_broker_is_killed(three: LiveNetwork, connect: Connect) -> None:
    """T21: what that broker remembers of a dead guard's yes is ended by the other guards before the receipt names it as fenced; others publish
    on at their brokers, and those of that broker find another."""
    owner, friend, other, third = await meet(three, connect, 4)
    owner.timeout = 60.0
    uuid = (await owner.create(path("topic"))).uuid
    await owner.publish(uuid, "first")
    # By everyone's grant: nothing in the log says who has used it.
    lost = await owner.grants.give(PUBLISH, uuid, "*")
    for client in (other, third):
        await owner.grants.give(PUBLISH, uuid, client.identity.name.id)
    # A login is cut off as a whole: one that is connected at g2's broker too loses its connections elsewhere as well.
    await third.close()
    at = {place.guard: Broker("127.0.0.1", place.amqps) for place in three.home.places()}
    folders = [three.home.credentials(Role.ENTITY, client.identity.name.id) for client in (friend, other, third)]
    async with (
        stubborn(three, folders[0], uuid, prefer=at["g2"]) as publisher,
        stubborn(three, folders[1], uuid, prefer=at["g2"]) as moved,
        stubborn(three, folders[2], uuid, only=at["g3"]) as elsewhere,
        Stall() as stall,
    ):
        connections, g2_is_closed_behind, g3_is_closed_behind = elsewhere.connections, ClosedBehind(three, "g2"), ClosedBehind(three, "g3")
        await asyncio.to_thread(three.network.process(Role.GUARD, "g2").kill_hard)
        await publisher.publishes(20)
        revocation = await owner.grants.revoke(lost.id)
        if stall and revocation.unconfirmed == ("g2",):
            # The others took longer to close behind it than a node waits, which the receipt says. It has been silent for long now.
            await until(lambda: g2_is_closed_behind, "g2 to be closed behind", seconds=60)
            lost = await owner.grants.give(PUBLISH, uuid, "*")
            await publisher.publishes(20)
            revocation = await owner.grants.revoke(lost.id)
        moment = time.monotonic()
        assert (set(revocation.guards), revocation.fenced, revocation.unconfirmed) == ({"g1", "g3"}, ("g2",), ()), (stall.longest, revocation)
        await publisher.is_refused()
        assert max(publisher.taken.values()) < moment
        await moved.publishes(20)
        await elsewhere.publishes(20)
        # Unless the machine has so much else to do that this guard was silent too: then everybody is cut off there as well.
        assert elsewhere.connections == connections or (stall and g3_is_closed_behind), (stall.longest, elsewhere.refusals)
        # It is fenced already: nobody waits for it any more.
        again = await owner.grants.give(PUBLISH, uuid, friend.identity.name.id)
        await publisher.publishes(20)
        revocation = await owner.grants.revoke(again.id)
        moment = time.monotonic()
        assert (revocation.fenced, revocation.unconfirmed) == (("g2",), ()), revocation
        assert revocation.milliseconds < 5000
        await publisher.is_refused()
        assert max(publisher.taken.values()) < moment


@alone
async def test_two_are_killed(three: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: changes are refused in time and in words, and discovery goes on at the nodes' own endpoints; when the brokers are back, those who were there
    go on, and so do nodes and guards."""
    (known,) = await meet(three, connect, 1)
    before_it = await known.create(path("two killed/known"))
    asking = ("--home", three.home.folder, "--as", known.identity.name.id, "--json", "--timeout", "6s")
    words = (*asking, "create", "--path", "nobody/takes/it")
    async with loads(three, connect, "two killed") as under_way:
        for load in under_way:
            await load.more(2)
        before = pids(three)
        killed = ("broker", leader(three, names.CHANGES))
        killed = killed if killed[1] != "broker" else ("broker", "broker3")
        for name in killed:
            three.network.broker(name).kill_hard()
        began = time.monotonic()
        refused = await asyncio.to_thread(run, "entity", *words)
        assert (refused.code, refused.error["error"], refused.out) == (3, "unreachable", ""), refused
        assert time.monotonic() - began < 6 + STANDSTILL_SECONDS
        (left,) = (entry for entry in three.network.cluster.status() if entry["alive"])
        await until(lambda: not next(e for e in three.network.cluster.status() if e["id"] == left["id"])["ready"], "it to pause")
        assert (await asyncio.to_thread(run, "entity", *words)).code == 3
        found = await asyncio.to_thread(run, "entity", *asking, "discover", "--string", "two killed/known")
        assert found.code == 0, found.err
        assert [line["uuid"] for line in found.lines] == [before_it.uuid]
        assert parse_time(found.lines[0]["as_of"]) <= datetime.now(UTC), "it says how old it is"
        await asyncio.to_thread(three.up)
        for load in under_way:
            await load.more(3)
    after = pids(three)
    assert {name: pid for name, pid in after.items() if name not in killed} == {
        name: pid for name, pid in before.items() if name not in killed
    }, "no process but the killed was started anew"
    await check(three, under_way, tmp_path)


async def test_a_broker_that_does_not_go_on_is_told_to(three: LiveNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: RabbitMQ 3.10 sometimes fails at going on after it had paused, and then stands still with its machine running: `tdn up` sees to it."""
    monkeypatch.setattr("tdn.local.cluster._RESUMES_SECONDS", 1.0)
    before = pids(three)

    def ready() -> bool:
        return next(bool(entry["ready"]) for entry in three.network.cluster.status() if entry["id"] == "broker2")

    await asyncio.to_thread(three.network.broker("broker2").control, "rabbitmqctl", "stop_app")
    await until(lambda: not ready(), "it to stand still")
    await asyncio.to_thread(three.up)
    assert ready()
    assert pids(three) == before, "nothing was started anew"
    await until(three.ready, "all to be ready", seconds=60)


async def test_a_broker_that_hangs_or_refuses_is_passed_over(three: LiveNetwork) -> None:
    """A client is in at another broker after a moment; a refused login is told at once, whoever hangs."""
    known = three.home.connection().brokers
    who = three.credentials(Role.NODE, "n1")
    with socket.socket() as hangs, socket.socket() as closed:
        for one in (hangs, closed):
            one.bind(("127.0.0.1", 0))
        hangs.listen()
        hung, dead = (Broker("127.0.0.1", one.getsockname()[1]) for one in (hangs, closed))
        for first in (hung, dead):
            began = time.monotonic()
            connection = await Connection.open([first, *known], who, vhost="tdn", prefer=first)
            await connection.close()
            assert time.monotonic() - began < 6
        stranger = three.credentials(Role.BROKER, "broker")
        began = time.monotonic()
        with pytest.raises(LoginRefused):
            await Connection.open([hung, *known], stranger, vhost="tdn", prefer=hung)
        assert time.monotonic() - began < 8
        with pytest.raises(BrokerUnavailable):
            await Connection.open([dead], who, vhost="tdn")


async def test_from_one_broker_to_three(three: LiveNetwork, grown: Grown, connect: Connect) -> None:
    """A home keeps the number of its brokers, and says so; a backup of it, restored, has as many as one wants, and all topics. The one that leads
    the log is killed, and changes, publishes and discoveries go on (T22)."""
    again = await connect(three, three.home.credentials(Role.ENTITY, grown.who), timeout=60)
    assert (await again.show(grown.topic)).uuid == grown.topic
    (friend,) = await meet(three, connect, 1)
    friend.timeout = 60.0
    may_read = await again.grants.give(SUBSCRIBE, grown.topic, friend.identity.name.id)
    friend.seen = again.seen

    async def discover() -> None:
        assert grown.topic in [found.uuid async for found in again.discover("before")]

    async with (
        reading(friend, grown.topic) as reader,
        again.publisher(grown.topic) as publisher,
        repeated(lambda: publisher.publish("still there")) as publishing,
        repeated(discover) as discovering,
        repeated(lambda: again.create(path("after"))) as creating,
    ):
        everything = {"creation": creating, "publish": publishing, "discovery": discovering}
        for one in everything.values():
            await one.more(2)
        killed = await asyncio.to_thread(leader, three, names.LOG)
        three.network.broker(killed).kill_hard()
        for one in everything.values():
            one.longest = 0.0
        for one in everything.values():
            await one.more(3)
        longest = {what: one.longest for what, one in everything.items()}
        # A copy of the subscription's queue is on the dead broker: RabbitMQ waits five seconds for it (T21).
        revocation = await again.grants.revoke(may_read.id)
        assert revocation.unconfirmed == (), revocation
        alive = next(number for number, place in enumerate(three.home.places()) if place.broker != killed)
        assert not [queue for queue in three.manage("GET", "/queues/tdn?columns=name", alive) if grown.topic in queue["name"]]
        read = len(reader.got)
        assert read
        await publishing.more(2)
        assert len(reader.got) == read
    assert max(longest.values()) < STANDSTILL_SECONDS, longest
    with pytest.raises(UsageError, match="fewer"):
        three.network.up(brokers=1)
