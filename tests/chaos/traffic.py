"""Rights that are given and ended without pause, and those who use them: publishers that do not take no for an answer, readers, one pair that keeps
its rights all the time, somebody who never had any, and askers who look around.

Whatever was asked, taken, given and shown is written down, for the checker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from entity_client import EntityClient, lists, path
from tdn.bus.address import ConnectionSettings, load_connection
from tdn.bus.connection import Channel, Connection
from tdn.errors import Absent, BrokerUnavailable, NoNodeAnswered, QueryError, Refused, TdnError, TrustError
from tdn.trust import credentials
from tdn.trust.credentials import Credentials
from tests.chaos.race import Books, Recording
from tests.chaos.traffic_checker import PUBLISH, SUBSCRIBE, Got, Held, Message, Shown, Traffic, Unshown
from tests.live import LiveNetwork, until

#: Errors that are right answers to a fault (T22): whether it happened is then not known.
UNSURE = (BrokerUnavailable, NoNodeAnswered, TrustError)
_PATIENT_SECONDS = 60.0
_AGES = timedelta(days=1)
#: Between two messages of one publisher. It goes on for minutes, beside everything else.
_PACE_SECONDS = 0.1
#: What is said of every topic here, so that askers find all of them.
WORD = "market"

_IDS = itertools.count()


@dataclass
class Market:
    """The topics that are fought over at the moment, by owner; all know all of them."""

    traffic: Traffic
    books: Books
    topics: dict[str, str] = field(default_factory=dict)


class Owner:
    """Gives rights to its topic and ends them. When it was not told what became of something, it makes another topic: rights to the
    former may last."""

    def __init__(
        self, client: EntityClient, market: Market, dice: random.Random, hidden_from: list[str], users: dict[str, list[str]]
    ) -> None:
        self._client = client
        self._market = market
        self._dice = dice
        self._hidden_from = hidden_from
        #: Who may be given what.
        self._users = users
        self.name = client.identity.name.id
        self.ended = 0
        #: Ends of rights that a guard did not confirm: nothing was promised then.
        self.unconfirmed = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                topic = await self._open_topic()
                while not stop.is_set():
                    await self._round(topic)
            except (*UNSURE, Refused, Absent):
                self._market.books.count["begun anew"] += 1

    async def _open_topic(self) -> str:
        hidden = lists(deny=self._hidden_from) if self._dice.random() < 0.5 else lists()
        topic = (await self._client.create(path(f"{WORD}/{self.name}"), lists=hidden, lifetime=_AGES)).uuid
        traffic = self._market.traffic
        # An owner may do both, from the beginning.
        traffic.held += [Held(self.name, right, topic, 0.0) for right in (PUBLISH, SUBSCRIBE)]
        await self._speak(topic, 0.0)
        self._market.topics[self.name] = topic
        return topic

    async def _speak(self, topic: str, seconds: float) -> None:
        """Publish for so long, once at least: whoever may read has something to read, and whoever may no longer has something to miss."""
        until = time.monotonic() + seconds
        async with self._client.publisher(topic) as publisher:
            while True:
                one = Message(f"owner-{next(_IDS)}", topic, self.name, time.monotonic())
                self._market.traffic.messages[one.id] = one
                # Under an id that we know, whatever becomes of it.
                await publisher.publish(one.id, message_id=one.id)
                one.taken = time.monotonic()
                self._market.books.serve("publish")
                if time.monotonic() >= until:
                    return
                await asyncio.sleep(_PACE_SECONDS)

    async def _round(self, topic: str) -> None:
        right = self._dice.choice((PUBLISH, SUBSCRIBE))
        entity = self._dice.choice(self._users[right])
        held = Held(entity, right, topic, time.monotonic())
        self._market.traffic.held.append(held)
        granted = await self._client.grants.give(right, topic, entity, lifetime=_AGES)
        await self._speak(topic, self._dice.uniform(0.1, 2.0))
        revoked = await self._client.grants.revoke(granted.id)
        if revoked.unconfirmed:
            self.unconfirmed += 1
            raise NoNodeAnswered("not every guard has said that it is done")
        held.ends = time.monotonic()
        self.ended += 1
        await self._speak(topic, 0.0)


class Insistent:
    """Publishes to the topics of the market without asking anybody, over a plain connection of its own; what is refused it tries again."""

    def __init__(self, folder: Path, market: Market, dice: random.Random) -> None:
        self._credentials: Credentials = credentials.load(folder)
        self._settings: ConnectionSettings = load_connection(folder)
        self._market = market
        self._dice = dice
        self.name = self._credentials.identity.name.id
        self.refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                connection = await Connection.open(self._settings.brokers, self._credentials, vhost=self._settings.vhost)
                try:
                    while not stop.is_set():
                        # A refusal closes the channel, not the connection.
                        await self._publish(await connection.channel(confirms=True), stop)
                finally:
                    await connection.close()
            except TdnError:
                await asyncio.sleep(0.1)

    async def _publish(self, channel: Channel, stop: asyncio.Event) -> None:
        login = str(self._credentials.identity.name)
        try:
            while not stop.is_set():
                await asyncio.sleep(_PACE_SECONDS)
                if not self._market.topics:
                    continue
                topic = self._dice.choice(list(self._market.topics.values()))
                message = Message(f"{self.name}-{next(_IDS)}", topic, self.name, time.monotonic())
                self._market.traffic.messages[message.id] = message
                body = message.id.encode()
                await channel.publish(topic, "", body, persistent=True, message_id=message.id, login=login)
                message.taken = time.monotonic()
                self._market.books.serve("publish")
        except Refused:
            self.refused += 1
        finally:
            await channel.close()


class Reader:
    """Subscribes to a topic of the market after the other, and reads as long as it may."""

    def __init__(self, client: EntityClient, market: Market, dice: random.Random) -> None:
        self._client = client
        self._market = market
        self._dice = dice
        self.name = client.identity.name.id
        self._readings = itertools.count()
        self.refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(0.1)
            if self._market.topics:
                try:
                    async with asyncio.timeout(self._dice.uniform(2, 8)):
                        await self.read(self._dice.choice(list(self._market.topics.values())))
                except (Refused, Absent):
                    self.refused += 1
                except (*UNSURE, TimeoutError):
                    continue

    async def read(self, topic: str) -> None:
        reading = next(self._readings)
        async with self._client.subscribe(topic) as subscription:
            async for message in subscription:
                self._market.traffic.got.append(Got(self.name, topic, str(message.id), time.monotonic(), reading))


class Pair:
    """A publisher and a reader that keep their rights: every message that was confirmed arrives, once."""

    def __init__(self, publisher: EntityClient, reader: EntityClient, market: Market, dice: random.Random) -> None:
        self._publisher = publisher
        self._market = market
        self._reader = Reader(reader, market, dice)
        self.topic = ""

    async def begin(self) -> None:
        traffic, owner, reader = self._market.traffic, self._publisher.identity.name.id, self._reader.name
        self.topic = (await self._publisher.create(path(f"{WORD}/steady"), lifetime=_AGES)).uuid
        await self._publisher.grants.give(SUBSCRIBE, self.topic, reader, lifetime=_AGES)
        traffic.held += [Held(owner, PUBLISH, self.topic, 0.0), Held(reader, SUBSCRIBE, self.topic, 0.0)]
        # Its queue is there before the first message.
        async with self._reader._client.subscribe(self.topic):
            traffic.steady[reader] = self.topic

    async def publish(self, stop: asyncio.Event) -> None:
        traffic = self._market.traffic
        while not stop.is_set():
            try:
                async with self._publisher.publisher(self.topic, sign=True) as publisher:
                    while not stop.is_set():
                        await asyncio.sleep(_PACE_SECONDS)
                        message = Message(f"steady-{next(_IDS)}", self.topic, self._publisher.identity.name.id, time.monotonic())
                        traffic.messages[message.id] = message
                        await publisher.publish(message.id, message_id=message.id)
                        message.taken = time.monotonic()
                        self._market.books.serve("publish")
            except (*UNSURE, Refused, Absent):
                self._market.books.count["unanswered"] += 1
                await asyncio.sleep(0.2)

    async def read(self) -> None:
        """Until it is cancelled: what was published last is to arrive too."""
        while True:
            try:
                await self._reader.read(self.topic)
            except (*UNSURE, Refused, Absent):
                self._market.books.count["unanswered"] += 1
                await asyncio.sleep(0.2)


DISCOVERIES = ("discover", "discover by regex", "discover by SQL")
LOOKS = ("hierarchy", "collection")


class Asker:
    """Looks around: discovers in several languages, looks at hierarchies and collections, and writes down what it was shown."""

    def __init__(self, client: EntityClient, market: Market, dice: random.Random, places: Callable[[], tuple[str, str]]) -> None:
        self._client = client
        self._market = market
        self._dice = dice
        #: A topic and a collection to look into.
        self._places = places
        self.answered = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Both at once: how long nobody could discover is measured, and a look that waits is no part of it."""
        await asyncio.gather(self._run(stop, DISCOVERIES), self._run(stop, LOOKS))

    async def _run(self, stop: asyncio.Event, questions: tuple[str, ...]) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._dice.uniform(0.1, 0.6))
            question = self._dice.choice(questions)
            try:
                await self._look(question, self._ask(question))
            except (*UNSURE, Refused, Absent, QueryError):
                self._market.books.count["unanswered"] += 1

    def _ask(self, question: str) -> AsyncIterable[Any]:
        topic, collection = self._places()
        if question == "hierarchy":
            return self._client.hierarchy.tree(topic)
        if question == "collection":
            return self._client.collections.topics(collection)
        if question == "discover by SQL":
            return self._client.discover("path LIKE 'race/%'", language="sql", limit=300)
        if question == "discover by regex":
            return self._client.discover("^(race|market)/", language="regex", limit=300)
        return self._client.discover(WORD, limit=300)

    async def _look(self, question: str, answers: AsyncIterable[Any]) -> None:
        traffic, found = self._market.traffic, set()
        always = set(traffic.steady.values()) if question == "discover" else set()
        async for one in answers:
            found.add(one.uuid)
            traffic.shown.add(Shown(self._client.asker, one.uuid, question))
        traffic.unshown += [Unshown(self._client.identity.name.id, uuid, question, time.monotonic()) for uuid in sorted(always - found)]
        self.answered += 1
        self._market.books.serve("discover" if question.startswith("discover") else "look")


async def _has_entered(client: EntityClient) -> bool:
    with contextlib.suppress(*UNSURE):
        await client.choose()
        return True
    return False


class Worker(Protocol):
    """Somebody who trades until told to stop."""

    async def run(self, stop: asyncio.Event) -> None: ...


class Trading:
    """All of them together, on one network."""

    def __init__(self, network: LiveNetwork, books: Books, seed: int, *, owners: int) -> None:
        self.network = network
        self.market = Market(Traffic(), books)
        self._dice = random.Random(seed)
        self._owners_wanted = owners
        self._clients: list[EntityClient] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self.outsider: Insistent | None = None

    @property
    def traffic(self) -> Traffic:
        return self.market.traffic

    async def begin(self, places: Callable[[], tuple[str, str]]) -> None:
        network, dice = self.network, self._dice
        folders = {kind: [network.entity(kind) for _ in range(2)] for kind in ("publisher", "reader")}
        outside = [network.entity("outsider", institution="elsewhere") for _ in range(2)]
        askers = [self._client(network.entity("asker", institution=name)) for name in ("here", "elsewhere")]
        readers = [self._client(folder) for folder in folders["reader"]]
        outsider = self._client(outside[1])
        pair = Pair(self._client(network.entity("owner")), self._client(network.entity("reader")), self.market, dice)
        # Whoever is given something must have been there once.
        known = [self._client(folder) for folder in folders["publisher"]]
        everybody = [*known, *readers, *askers, outsider, pair._reader._client]
        for client in everybody:
            await until(partial(_has_entered, client), "everybody to be introduced", seconds=120)
        names = {
            PUBLISH: [client.identity.name.id for client in known],
            SUBSCRIBE: [client.identity.name.id for client in readers],
        }
        for client in everybody:
            for node in network.nodes():
                principal = client.identity.name.principal
                await until(partial(network.fact, "principal", principal, node), f"{node} to know {principal}")
        hidden_from = [askers[1].identity.name.id, outsider.identity.name.id]
        self.owners = [
            Owner(self._client(network.entity("owner")), self.market, random.Random(dice.random()), hidden_from, names)
            for _ in range(self._owners_wanted)
        ]
        await pair.begin()
        self.insistent = [Insistent(folder, self.market, random.Random(dice.random())) for folder in folders["publisher"]]
        self.outsider = Insistent(outside[0], self.market, random.Random(dice.random()))
        self.askers = [Asker(client, self.market, random.Random(dice.random()), places) for client in askers]
        self.readers = [Reader(client, self.market, random.Random(dice.random())) for client in (*readers, outsider)]
        working: tuple[Worker, ...] = (*self.owners, *self.insistent, self.outsider, *self.askers, *self.readers)
        self._tasks = [self._begin(one.run(self._stop)) for one in working]
        self._tasks.append(self._begin(pair.publish(self._stop)))
        self._reading = [self._begin(pair.read())]

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    def _client(self, folder: Path) -> EntityClient:
        session = Recording(folder, self.market.books, self._dice, copying=0.0)
        self._clients.append(EntityClient(session, timeout=_PATIENT_SECONDS))
        return self._clients[-1]

    def ended(self) -> list[asyncio.Task[None]]:
        """Whoever has left; there should be none."""
        return [task for task in (*self._tasks, *self._reading) if task.done()]

    async def finish(self, *, seconds: float) -> None:
        """Let everybody stop, and the steady reader have what was confirmed, if it ever comes."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.traffic.lost(), "the steady reader to have everything", seconds=seconds)

    async def close(self) -> None:
        self._stop.set()
        for task in (*self._tasks, *self._reading):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._reading, return_exceptions=True)
        for client in self._clients:
            await client.close()
