"""T22: how an entity comes to its place in the network, and finds out that its connection leads nowhere. Real credentials and messages; the broker is
played, so that it can be slow, deaf or gone at will.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from entity_client import introduced
from entity_client.introduced import Introduced, Line
from tdn.bus.address import ConnectionSettings
from tdn.bus.connection import Broker, Connection, Delivery
from tdn.errors import BrokerUnavailable, NoNodeAnswered, TdnError
from tdn.local.ca import CertificateAuthority
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import credentials, envelope, sealing
from tdn.trust.credentials import Credentials
from tests.live import until

NETWORK = "0" * 64
TOLD = BrokerUnavailable("ended")

Future = asyncio.Future[Any]


@dataclass
class People:
    alice: Credentials
    node: Credentials


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    folder = tmp_path_factory.mktemp("people")
    authority = CertificateAuthority(folder / "ca")
    authority.create()
    authority.issue(Role.ENTITY, "alice", folder / "alice")
    authority.issue(Role.NODE, "n1", folder / "n1")
    return People(credentials.load(folder / "alice"), credentials.load(folder / "n1"))


#: What a broker is asked for before and after a hello.
STEPS = ("the hello's channel", names.DIRECT_REPLY, "the reply queue")


class PlayedChannel:
    """One whose messages the broker takes, or says nothing of."""

    def __init__(self, broker: PlayedBroker) -> None:
        self._broker = broker
        self.closed: Future = asyncio.get_running_loop().create_future()
        self.is_abandoned = False

    async def consume(self, queue: str, on_delivery: Callable[[Delivery], None], *, no_ack: bool) -> str:
        self._deliver = on_delivery
        await self._broker.take(names.DIRECT_REPLY if queue == names.DIRECT_REPLY else "the reply queue")
        return "tag"

    def publish(self, exchange: str, key: str, body: bytes, **how: Any) -> Future:
        sent: Future = asyncio.get_running_loop().create_future()
        if self._broker.takes and self._broker.slow_seconds:
            asyncio.get_running_loop().call_later(self._broker.slow_seconds, self._take, sent, body)
        elif self._broker.takes:
            sent.set_result(None)
        self._broker.sent.append((self, body))
        self._broker.lives.append(how["expiration_seconds"])
        if self._broker.is_served:
            asyncio.get_running_loop().call_soon(self.welcome, body)
        return sent

    def _take(self, sent: Future, hello: bytes) -> None:
        if not (sent.done() or self.is_abandoned):
            sent.set_result(None)
            self.welcome(hello)

    def welcome(self, hello: bytes) -> None:
        """As a node answers it."""
        people = self._broker.people
        asked = envelope.authenticate(hello, lambda header: people.alice.identity)
        raw = envelope.write(
            "welcome",
            {"node": "n1", "institution": "local", "network": NETWORK, "session": "a" * 32},
            people.node,
            audience="entity:alice",
            now=datetime.now(UTC),
            life=timedelta(minutes=1),
            answers=asked.id,
            with_chain=True,
        )
        sealed = sealing.seal(raw, people.alice.identity.public_key)
        self._deliver(cast(Any, SimpleNamespace(correlation=None, body=sealed)))

    def on_cancelled(self, told: Callable[[], None]) -> None: ...

    def on_returned(self, told: Callable[[str], None]) -> None: ...

    def abandon(self) -> None:
        self.is_abandoned = True


class PlayedConnection:
    def __init__(self, played: PlayedBroker, address: Broker) -> None:
        self._broker = played
        self.broker = address
        self.bytes_received = 1000
        self.closed: Future = asyncio.get_running_loop().create_future()
        self.channels: list[PlayedChannel] = []

    async def channel(self, *, confirms: bool = False) -> PlayedChannel:
        await asyncio.sleep(0)
        if confirms:
            await self._broker.take("the hello's channel")
        self.channels.append(PlayedChannel(self._broker))
        return self.channels[-1]

    async def answers(self) -> bool:
        self._broker.looks += 1
        return self._broker.answers

    def give_up(self, error: TdnError) -> None:
        if not self.closed.done():
            self.closed.set_result(error)

    async def close(self) -> None:
        self.give_up(TOLD)

    def abandon(self) -> None:
        self.give_up(TOLD)


class PlayedBroker:
    def __init__(self, people: People) -> None:
        self.people = people
        self.takes = self.answers = True
        #: Whether a node answers every hello at once.
        self.is_served = False
        self.looks = 0
        #: How long it takes to pass a hello on, and to confirm it.
        self.slow_seconds = 0.0
        #: The step that it does not get done with.
        self.slow: str | None = None
        self.sent: list[tuple[PlayedChannel, bytes]] = []
        #: How long each waits in the queue, in seconds.
        self.lives: list[float] = []
        self.connections: list[PlayedConnection] = []

    async def take(self, step: str) -> None:
        if step == self.slow:
            await asyncio.sleep(60)


class Played(Introduced):
    def __init__(self, broker: PlayedBroker, brokers: int = 1) -> None:
        addresses = [Broker("127.0.0.1", port) for port in range(1, brokers + 1)]
        super().__init__(broker.people.alice, ConnectionSettings(NETWORK, "tdn", addresses, []))
        self.remember(broker.people.node.identity)

    async def enter(self, seconds: float) -> Line:
        return await self._ensure(asyncio.get_running_loop().time() + seconds)


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introduced, "ATTEMPT_SECONDS", 0.05)
    monkeypatch.setattr(introduced, "DOUBT_SECONDS", 0.02)


@pytest.fixture
def broker(people: People, monkeypatch: pytest.MonkeyPatch) -> PlayedBroker:
    """However many addresses it has."""
    played = PlayedBroker(people)

    async def open_one(address: Broker, credentials: Credentials, vhost: str) -> PlayedConnection:
        played.connections.append(PlayedConnection(played, address))
        return played.connections[-1]

    monkeypatch.setattr(Connection, "_open_one", open_one)
    return played


@pytest_asyncio.fixture
async def one(broker: PlayedBroker) -> AsyncIterator[Played]:
    played = Played(broker)
    yield played
    await played._disconnect()


async def test_a_slow_node_is_asked_again_and_its_first_answer_counts(broker: PlayedBroker, one: Played) -> None:
    """Where an answer takes longer than an attempt, as long as there is patience: forgetting what was asked would make it endless."""
    entering = asyncio.create_task(one.enter(10))
    await until(lambda: len(broker.sent) == 3)
    channel, first = broker.sent[0]
    channel.welcome(first)
    assert await entering is one._line
    assert one.queue == "a" * 32
    assert channel.is_abandoned
    assert not one._pending


async def test_attempts_are_further_and_further_apart(broker: PlayedBroker, one: Played) -> None:
    """Each makes a queue, if it is only late."""
    with pytest.raises(NoNodeAnswered):
        await one.enter(0.5)
    # At 0, 0.05, 0.15, 0.35.
    assert 2 <= len(broker.sent) <= 4
    assert len(broker.connections) == 1


async def test_a_node_that_comes_back_finds_a_hello(broker: PlayedBroker, one: Played) -> None:
    """T22: whenever it does: each waits in the queue until the next is there."""
    at: list[float] = []
    entering = asyncio.create_task(one.enter(10))
    while len(at) < 5:
        await until(lambda: len(broker.sent) > len(at))
        at.append(asyncio.get_running_loop().time())
    entering.cancel()
    # Not the first, which are shorter here than a busy machine may be late.
    assert all(begun + life > after for begun, life, after in zip(at[2:], broker.lives[2:], at[3:], strict=False)), (at, broker.lives)
    assert max(broker.lives) <= introduced.QUESTION_LIFE.total_seconds()


async def test_a_broker_that_takes_no_hello_is_left(broker: PlayedBroker) -> None:
    """Where there is another. It may answer, and have no leader for the queue that the nodes share."""
    played = Played(broker, brokers=3)
    broker.takes = False
    entering = asyncio.create_task(played.enter(10))
    await until(lambda: bool(broker.connections) and broker.connections[0].closed.done())
    broker.takes = True
    await until(lambda: broker.sent[-1][0] not in broker.connections[0].channels)
    channel, hello = broker.sent[-1]
    channel.welcome(hello)
    assert await entering is played._line
    await played._disconnect()


async def test_brokers_that_are_all_slow_are_waited_for(broker: PlayedBroker) -> None:
    """T22: in the end; each that is left costs a connection, and whatever else goes over the one before. Another broker each time, as long as there is one."""
    played = Played(broker, brokers=3)
    broker.slow_seconds = 0.12
    await played.enter(5)
    assert 2 <= len(broker.connections) <= 3
    assert len({connection.broker for connection in broker.connections}) == len(broker.connections)
    # The next time begins anew.
    assert (played._patience, played._left) == (introduced.ATTEMPT_SECONDS, [])
    await played._disconnect()


async def test_every_broker_is_tried(broker: PlayedBroker) -> None:
    """Not by chance the same ones again."""
    played = Played(broker, brokers=5)
    for _ in range(10):
        played.leave(await played.line(1.0))
    tried = [connection.broker for connection in broker.connections]
    assert len(set(tried[:5])) == 5
    assert tried[5:] == tried[:5]


async def test_an_answer_that_comes_before_the_confirmation_counts(broker: PlayedBroker) -> None:
    """T22: a broker may be behind with what it says of messages that it has passed on."""
    played = Played(broker, brokers=3)
    broker.takes, broker.is_served = False, True
    await played.enter(5)
    assert len(broker.connections) == 1
    await played._disconnect()


async def test_what_the_broker_says_of_a_hello_is_told(one: Played) -> None:
    sent: Future = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(one._welcome(sent, asyncio.Queue(), ["a"]))
    await asyncio.sleep(0)
    sent.set_exception(TOLD)
    with pytest.raises(BrokerUnavailable, match="ended"):
        await waiting


async def test_who_has_no_time_left_leaves_no_broker(broker: PlayedBroker) -> None:
    """Its last attempt is short, and others publish and subscribe on the same connection."""
    played = Played(broker, brokers=3)
    broker.takes = False
    with pytest.raises(NoNodeAnswered):
        await played.enter(0.01)
    assert not broker.connections[0].closed.done()
    await played._disconnect()


@pytest.mark.parametrize("step", STEPS)
async def test_a_slow_broker_does_not_outlast_its_caller(
    broker: PlayedBroker, one: Played, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22: at none of its steps, each of which may take fifteen seconds by itself; and whoever comes after is not kept."""
    monkeypatch.setattr(introduced, "_LEAST_SECONDS", 0.1)
    broker.slow, broker.is_served = step, True
    with pytest.raises(BrokerUnavailable, match="in time"):
        async with asyncio.timeout(5):
            await one.enter(0.2)
    broker.slow = None
    async with asyncio.timeout(5):
        await one.enter(1.0)


async def test_a_first_contact_does_not_wait_for_one_with_more_time(
    broker: PlayedBroker, one: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introduced, "_LEAST_SECONDS", 0.1)
    patient = asyncio.create_task(one.enter(10))
    await until(lambda: bool(broker.sent))
    with pytest.raises(NoNodeAnswered):
        async with asyncio.timeout(5):
            await one.enter(0.05)
    channel, hello = broker.sent[-1]
    channel.welcome(hello)
    assert await one.enter(0.05) is await patient


async def test_a_connection_is_not_waited_for_behind_a_hello(broker: PlayedBroker, one: Played) -> None:
    """Who publishes needs no node."""
    entering = asyncio.create_task(one.enter(10))
    await until(lambda: bool(broker.sent))
    assert await one.line(1.0) is broker.connections[0]
    assert not entering.done()
    assert len(broker.connections) == 1
    channel, hello = broker.sent[-1]
    channel.welcome(hello)
    await entering


async def test_two_who_connect_share_a_connection(broker: PlayedBroker, one: Played) -> None:
    lines = await asyncio.gather(*(one.line(1.0) for _ in range(3)))
    assert set(lines) == {broker.connections[0]}
    assert one._line is not None
    opened = len(broker.connections[0].channels)
    changes = await asyncio.gather(*(one._line.for_changes() for _ in range(3)))
    assert len(set(changes)) == 1
    assert len(broker.connections[0].channels) == opened + 1


async def test_doubt_goes_on(broker: PlayedBroker, one: Played) -> None:
    """A connection may be lost after the first look: it is looked at as long as something is waited for, and left then."""
    connection = await one.line(1.0)
    with one.suspecting(connection):
        await until(lambda: broker.looks >= 3)
        assert not connection.closed.done()
        broker.answers = False
        await until(connection.closed.done)
    assert (one._line, one.queue) == (None, None)
    looks = broker.looks
    await asyncio.sleep(0.1)
    assert broker.looks == looks


async def test_a_broker_of_which_anything_comes_is_not_doubted(broker: PlayedBroker, one: Played) -> None:
    """T22: it is slow, and each look asks it for one more channel. When nothing comes any more, it is looked at."""
    connection = await one.line(1.0)
    with one.suspecting(connection):
        end = asyncio.get_running_loop().time() + 0.2
        while asyncio.get_running_loop().time() < end:
            broker.connections[0].bytes_received += 8
            await asyncio.sleep(0)
        assert not broker.looks
        await until(lambda: broker.looks > 0)


async def test_what_came_in_time_is_not_doubted(broker: PlayedBroker, one: Played) -> None:
    with one.suspecting(await one.line(1.0)):
        pass
    await asyncio.sleep(0.1)
    assert not broker.looks


async def test_a_connection_of_before_can_be_left(broker: PlayedBroker, one: Played) -> None:
    """A publisher may still wait on it. The present one stays."""
    before = await one.line(1.0)
    one._line = None
    present = await one.line(1.0)
    one.leave(before)
    assert before.closed.done()
    assert not present.closed.done()
    assert await one.line(1.0) is present


async def test_a_slow_follower_keeps_a_bounded_number_of_notifications(one: Played) -> None:
    """T29: what is left out shows by its version, and nodes keep it; that the connection has ended is told however many wait."""
    subject = "6f1c0000-0000-4000-8000-000000000000"
    told = cast(Any, SimpleNamespace(correlation=names.watching(subject), body=b"told"))
    async with one.notifications(subject) as arriving, one._expecting("asked") as replies:
        for _ in range(10_000):
            one._on_reply(told)
        assert arriving.qsize() == introduced._MOST_NOTIFICATIONS
        one._on_queue_lost()
        assert arriving.qsize() == introduced._MOST_NOTIFICATIONS + 1
        # An answer is never left out.
        one._on_reply(cast(Any, SimpleNamespace(correlation="asked", body=b"answer")))
        assert replies.qsize() == 2
