"""T22: connections that are lost without either end being told, as by a firewall that forgets them. Heartbeats show it after 10 to 20 s; whoever
waits for an answer finds out before.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from entity_client import path
from tdn.bus import connection as connections
from tdn.bus.address import load_connection, write_connection
from tdn.bus.connection import Broker, Connection
from tdn.errors import BrokerUnavailable
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import credentials
from tests.chaos.proxy import Proxy
from tests.conftest import Connect
from tests.live import LiveNetwork, meet, until

pytestmark = pytest.mark.broker

#: Heartbeats are made so rare here that none is missed before a test is over.
RARE_SECONDS = 60
#: How long finding out, connecting anew and being served again may take. On a quiet machine it is a dozen.
SOON_SECONDS = 40.0


@pytest.fixture(autouse=True)
def _rare_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEARTBEAT_SECONDS", RARE_SECONDS)
    monkeypatch.setenv("TESTS_HEARTBEAT_SECONDS", str(RARE_SECONDS))


@pytest.fixture
def proxy(live: LiveNetwork) -> Iterator[Proxy]:
    proxy = Proxy([live.home.ports()["amqps"]])
    yield proxy
    proxy.close()


def behind(proxy: Proxy, folder: Path) -> Path:
    """An entity that reaches the broker through the proxy, and no node in another way."""
    settings = load_connection(folder)
    write_connection(folder, replace(settings, brokers=[Broker("127.0.0.1", proxy.ports[0])], nodes=[]))
    return folder


async def timed(done: Awaitable[object]) -> float:
    began = time.monotonic()
    await done
    return time.monotonic() - began


async def test_whoever_waits_for_an_answer_finds_out(live: LiveNetwork, proxy: Proxy, connect: Connect) -> None:
    """A new contact, questions, a change and a message: each is put again over another connection, and the message is there once."""
    (owner,) = await meet(live, connect, 1)
    topic = (await owner.create(path("silence"))).uuid
    folder = live.home.credentials(owner.identity.name.role, owner.identity.name.id)
    clients = [await connect(live, behind(proxy, folder), timeout=60.0) for _ in range(5)]
    for client in clients:
        await client.show(topic)
        # Learned from the nodes: there is no other way to them here.
        client._session._endpoints._known.clear()
    showing, discovering, creating, publishing, entering = clients
    entering._session._session = None

    async def discover() -> None:
        assert topic in [found.uuid async for found in discovering.discover("silence")]

    async with owner.subscribe(topic) as subscription, publishing.publisher(topic) as publisher:
        await publisher.publish("before")
        assert (await anext(subscription)).body == b"before"
        proxy.silence(1.0)
        work: dict[str, Awaitable[object]] = {
            "show": showing.show(topic),
            "discover": discover(),
            "create": creating.create(path("created in silence")),
            "publish": publisher.publish("into the silence"),
            "locate": entering.choose(),
        }
        seconds = dict(zip(work, await asyncio.gather(*map(timed, work.values())), strict=True))
        assert max(seconds.values()) < SOON_SECONDS, seconds
        await publisher.publish("after")
        assert [(await anext(subscription)).body for _ in range(2)] == [b"into the silence", b"after"]


@pytest_asyncio.fixture
async def connection(live: LiveNetwork, proxy: Proxy) -> AsyncIterator[Connection]:
    who = credentials.load(live.entity())
    connection = await Connection.open([Broker("127.0.0.1", proxy.ports[0])], who, vhost="tdn")
    yield connection
    connection.abandon()


async def test_who_is_told(connection: Connection, proxy: Proxy) -> None:
    """A connection that is given up ends at once, for whoever waits for a confirmation, an answer, or its end."""
    channel = await connection.channel(confirms=True)
    assert await connection.answers()
    proxy.silence(1.0)
    assert not await connection.answers()
    confirmed = channel.publish(names.REQUESTS, names.NODES, b"lost")
    waiting = asyncio.create_task(channel.prefetch(10))
    await asyncio.sleep(0)
    reason = BrokerUnavailable("given up")
    connection.give_up(reason)
    for told in (confirmed, waiting):
        with pytest.raises(BrokerUnavailable, match="given up"):
            await asyncio.wait_for(told, 1)
    assert (connection.closed.result(), channel.closed.result()) == (reason, reason)
    assert await timed(connection.close()) < 1
    assert not await connection.answers()


def started_behind(proxy: Proxy, network: LiveNetwork, role: Role, name: str) -> None:
    """A node or guard anew, which reaches the broker through the proxy."""
    process = network.network.process(role, name)
    process.kill_hard()
    network.home.report(f"{role}-{name}", {})
    argv = [sys.executable, "-m", "tests.chaos.proxied", str(proxy.ports[0]), "--home", str(network.home), str(role), "--id", name]
    process.spawn(argv, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, cwd=network.home.folder)
    network.network.start_one(role, name)


@pytest.mark.parametrize(("role", "name"), [(Role.GUARD, "g1"), (Role.NODE, "n1")], ids=["the guard", "a node"])
async def test_a_process_of_the_network(mortal: LiveNetwork, connect: Connect, role: Role, name: str) -> None:
    """A guard that hears nothing is sure of nothing, and its broker lets nobody do anything; a node's changes wait at the broker. Neither waits for
    heartbeats."""
    proxy = Proxy([mortal.home.ports()["amqps"]])
    try:
        await asyncio.to_thread(started_behind, proxy, mortal, role, name)
        client = await connect(mortal, timeout=60.0)
        await client.create(path("before"))
        proxy.silence(1.0)
        report, process = f"{role}-{name}", mortal.network.process(role, name)
        stopped = process.tail(lines=100).count("stopped serving")
        began = time.monotonic()

        def has_noticed() -> bool:
            # Its report, four times a second, may miss that a node was away; the log does not.
            return not mortal.home.reported(report)["ready"] or process.tail(lines=100).count("stopped serving") > stopped

        await until(has_noticed, f"{name} to say that it does not serve", seconds=60)
        await until(lambda: mortal.home.reported(report)["ready"], f"{name} to serve again", seconds=60)
        await client.create(path("after"))
        assert time.monotonic() - began < SOON_SECONDS
    finally:
        mortal.network.process(role, name).kill_hard()
        proxy.close()
