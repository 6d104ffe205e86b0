"""A race for too few places: entities that want more than the limits leave, and watchers that follow all of it.

Everything that was sent, confirmed, answered and told is kept, for the checker to compare with the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from entity_client import EntityClient, Gathering, Hosting, Limits, Topic, lists, path
from entity_client.session import Session
from tdn.bus.address import load_connection
from tdn.bus.connection import Delivery
from tdn.errors import BrokerUnavailable, NoNodeAnswered, Refused, TdnError, TrustError
from tdn.protocol.names import Name, Role
from tdn.trust import credentials, signing
from tdn.trust.certificates import Identity
from tests.chaos.checker import Answer, Received, Sent, decided_in, payload_of
from tests.live import LiveNetwork, until

#: Who gives up so early that a request is sent once and then left to the network, which has promised to decide it.
_IMPATIENT_SECONDS = 2.5
_PATIENT_SECONDS = 30.0
#: The longest pause between two requests of one entity.
_PAUSE_SECONDS = 0.3
#: Signed requests that an entity keeps, to send them once more when they were decided long ago.
_OLD_REQUESTS = 40
_EVERYONE = lists(allow=["*"])


class Books:
    """What was sent, and what became of it."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.count: Counter[str] = Counter()
        #: When somebody was served, by what it was.
        self.served: dict[str, list[float]] = defaultdict(list)

    def serve(self, what: str) -> None:
        self.served[what].append(time.monotonic())

    def decided(self, key: str) -> bool:
        return key in self.sent and bool(self.sent[key].answers)


class Recording(Session):
    """A session that keeps books, and that sends the very same bytes more than once, on its own connection and on a second one."""

    def __init__(self, folder: Path, books: Books, dice: random.Random, *, copying: float) -> None:
        super().__init__(credentials.load(folder), load_connection(folder))
        self._books = books
        self._dice = dice
        self._copying = copying
        self.second: Session | None = None
        self._old: deque[tuple[str, bytes]] = deque(maxlen=_OLD_REQUESTS)

    async def _post(self, raw: bytes, message_id: str, node: Identity | None = None) -> None:
        request = payload_of(raw)
        key = f"{self.credentials.identity.name.principal}/{request['jti']}"
        sent = self._books.sent.setdefault(key, Sent(key, signing.split(raw).header.kind))
        self._old.append((key, raw))
        copies = self._dice.choice((1, 1, 2)) if self._dice.random() < self._copying else 0
        # Copies count as little as the first: any of them may arrive, or none.
        lines = [self, *(self._dice.choice((self, self.second or self)) for _ in range(copies))]
        results = await asyncio.gather(*(Session._post(line, raw, message_id, node) for line in lines), return_exceptions=True)
        arrived = results.count(None)
        sent.copies += arrived
        sent.confirmed |= arrived > 0
        if isinstance(results[0], BaseException):
            raise results[0]

    async def repeat(self) -> None:
        """Send something once more that was decided long ago."""
        decided = [raw for key, raw in self._old if self._books.decided(key)]
        if decided:
            raw = self._dice.choice(decided)
            self._books.count["repeated later"] += 1
            await super()._post(raw, payload_of(raw)["jti"])

    def _on_reply(self, delivery: Delivery) -> None:
        sent = self._books.sent.get(f"{self.credentials.identity.name.principal}/{delivery.correlation}")
        if sent is not None:
            with contextlib.suppress(TdnError):
                reply = self._believing.read(delivery.body)
                sent.answers.append(Answer(reply.kind, reply.body, payload_of(reply.tail) if reply.tail else None))
                self._books.serve("change")
        super()._on_reply(delivery)


@dataclass
class World:
    """What they race for. All know all of it."""

    narrow: str
    deep: str
    #: The first holds all others.
    collections: list[str]
    #: Children that somebody has, the newest last.
    children: deque[str] = field(default_factory=lambda: deque(maxlen=40))


async def found(client: EntityClient, watchers: list[str]) -> World:
    """Two hierarchies and six collections, nested in each other in more than one way, all of them too small. One is hidden from watchers."""
    narrow = await client.create(path("race/narrow"), hosting=Hosting(True, max_width=3), lifetime=_AGES)
    deep = await client.create(path("race/deep"), hosting=Hosting(True, max_depth=3, max_width=2), lifetime=_AGES)
    top = await _collection(client, Limits(breadth=5, depth=4, topics=7), lifetime=_AGES)
    left = await _collection(client, Limits(breadth=4, topics=4), lifetime=_AGES)
    right = await _collection(client, Limits(depth=3, topics=5), lifetime=_AGES)
    both = await _collection(client, Limits(breadth=3), lifetime=_AGES)
    low = await _collection(client, Limits(topics=2), lifetime=_AGES)
    hidden = await _collection(client, Limits(topics=3), lifetime=_AGES, discover=lists(deny=watchers))
    for outer, inner in ((top, left), (top, right), (left, both), (right, both), (both, low), (right, hidden)):
        await client.collections.add(outer.uuid, inner.uuid)
    return World(narrow.uuid, deep.uuid, [one.uuid for one in (top, left, right, both, low, hidden)])


_AGES = timedelta(days=1)


async def _collection(
    client: EntityClient, limits: Limits, *, lifetime: timedelta, fixed: bool = False, members: tuple[str, ...] = (), **pairs: Any
) -> Topic:
    gathering = Gathering(fixed=fixed, limits=limits, child_collections=True, inclusion=True)
    open_to_all = {"add": _EVERYONE, "owner": _EVERYONE, "include": _EVERYONE, **pairs}
    return await client.create_collection(
        path("race/collection"), gathering, members=members, lists=open_to_all, lifetime=lifetime
    )


class Racer:
    """One entity, which asks for more than there is."""

    def __init__(self, folder: Path, world: World, books: Books, dice: random.Random, watchers: list[str]) -> None:
        self._dice = dice
        self._world = world
        self._books = books
        self._watchers = watchers
        self.sessions = [Recording(folder, books, dice, copying=0.3) for _ in range(2)]
        self.sessions[0].second, self.sessions[1].second = self.sessions[1], self.sessions[0]
        # The one waits for its answers and asks again; the other sends and goes on.
        self._clients = [
            EntityClient(session, timeout=seconds)
            for session, seconds in zip(self.sessions, (_PATIENT_SECONDS, _IMPATIENT_SECONDS), strict=True)
        ]
        self.topics: deque[str] = deque(maxlen=12)
        self.collections: deque[str] = deque(maxlen=4)
        #: Steps that were answered, with yes or no.
        self.answered = 0

    @property
    def identity(self) -> Identity:
        return self._clients[0].identity

    async def run(self, stop: asyncio.Event) -> None:
        try:
            await asyncio.gather(
                *(self._run(client, session, stop) for client, session in zip(self._clients, self.sessions, strict=True))
            )
        finally:
            for client in self._clients:
                await client.close()

    async def _run(self, client: EntityClient, session: Recording, stop: asyncio.Event) -> None:
        steps, weights = zip(*self._steps(client, session).items(), strict=True)
        while not stop.is_set():
            step: Callable[[], Awaitable[None]] = self._dice.choices(steps, weights)[0]
            # Without a pause, whoever is quick keeps the machine so busy that answers come too late for the impatient.
            await asyncio.sleep(self._dice.uniform(0, _PAUSE_SECONDS))
            try:
                await step()
                self.answered += 1
            except Refused:
                self.answered += 1
            except (BrokerUnavailable, NoNodeAnswered, TrustError):
                # A clear error is a right answer to a fault (T22). Whether it happened is for the log to say.
                self._books.count["unanswered"] += 1

    def _steps(self, client: EntityClient, session: Recording) -> Mapping[Callable[[], Awaitable[None]], int]:
        dice, world = self._dice, self._world

        async def child() -> None:
            """Somewhere in the hierarchies, the narrow root above all."""
            parents = [world.narrow, world.narrow, world.deep, *world.children]
            parent = dice.choice(parents)
            wanted = dice.choice((Hosting(True), Hosting(True), Hosting(True), Hosting(), Hosting(True, 2), Hosting(True, 0, 1)))
            shy = lists(deny=self._watchers) if dice.random() < 0.1 else lists()
            topic = await client.create(
                path("race/child"),
                parent=parent,
                hosting=wanted,
                lists=shy,
                lifetime=self._short(),
                advertise=dice.random() > 0.03,
            )
            world.children.append(topic.uuid)
            self.topics.append(topic.uuid)

        async def topic() -> None:
            self.topics.append((await client.create(path("race/topic"), lifetime=self._short(30))).uuid)

        async def collection() -> None:
            limits = Limits(breadth=dice.choice((0, 2)), depth=dice.choice((0, 2)), topics=dice.choice((0, 2)))
            members = tuple(dice.sample(list(self.topics), min(len(self.topics), dice.randint(0, 3))))
            made = await _collection(client, limits, lifetime=self._short(30), fixed=dice.random() < 0.3, members=members)
            self.collections.append(made.uuid)

        async def add() -> None:
            await client.collections.add(self._place(), self._own())

        async def nest() -> None:
            """Any collection into any, which is a cycle often enough."""
            await client.collections.add(self._place(), self._place())

        async def move() -> None:
            await client.collections.move(self._own(), source=self._place(), target=self._place())

        async def remove() -> None:
            await client.collections.remove(self._place(), self._own())

        async def withdraw() -> None:
            await client.withdraw(self._own())

        async def renew() -> None:
            await client.renew(self._own(), self._short(12))

        async def again() -> None:
            await session.repeat()

        return {child: 8, topic: 3, collection: 1, add: 8, nest: 2, move: 5, remove: 3, withdraw: 2, renew: 1, again: 2}

    def _short(self, longest: int = 15) -> timedelta:
        return timedelta(seconds=self._dice.randint(2, longest))

    def _own(self) -> str:
        """Something of our own; before there is anything, what is not."""
        mine = [*self.topics, *self.topics, *self.collections]
        return self._dice.choice(mine) if mine else self._world.narrow

    def _place(self) -> str:
        return self._dice.choice([*self._world.collections, *self._world.collections, *self.collections])


class Watcher:
    """Follows one thing the whole time; now and then it goes away and comes back with its version."""

    def __init__(self, client: EntityClient, subject: str, *, hierarchy: bool, restless: random.Random | None = None) -> None:
        self._client = client
        self._watch = client.hierarchy.watch if hierarchy else client.collections.watch
        self._restless = restless
        self.received = Received(subject, client.identity.name.id)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        since: int | None = None
        while True:
            watching = self._watch(self.received.subject, since=since)
            beginning = asyncio.create_task(self._begin(watching.ready))
            leave_after = self._restless.randint(3, 12) if self._restless is not None else None
            async with contextlib.aclosing(aiter(watching)) as changes:
                async for change in changes:
                    self.received.payloads.append(payload_of(change.notification))
                    since = change.version
                    if leave_after is not None and (leave_after := leave_after - 1) == 0:
                        break
            beginning.cancel()

    async def _begin(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self.ready.set()


class Race:
    """All of it together, on one network."""

    def __init__(self, network: LiveNetwork, seed: int, *, entities: int) -> None:
        self.network = network
        self.books = Books()
        self._dice = random.Random(seed)
        self._folders = [network.entity("racer") for _ in range(entities)]
        self.watchers: list[Watcher] = []
        self._clients: list[EntityClient] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    async def begin(self) -> None:
        founder, *followers = [await self._client(kind) for kind in ("founder", "follower", "follower", "follower")]
        everyone = [client.identity.name.id for client in followers]
        world = await found(founder, everyone[:2])
        for number, client in enumerate(followers):
            restless = random.Random(number) if number == 1 else None
            self.watchers.append(Watcher(client, world.narrow, hierarchy=True, restless=restless))
            self.watchers.append(Watcher(client, world.collections[0], hierarchy=False, restless=restless))
        # One deeper down: what happens above it is none of its business.
        self.watchers.append(Watcher(followers[0], world.collections[3], hierarchy=False))
        self._tasks = [asyncio.create_task(watcher.run()) for watcher in self.watchers]
        for watcher in self.watchers:
            await asyncio.wait_for(watcher.ready.wait(), 30)
        self.racers = [
            Racer(folder, world, self.books, random.Random(self._dice.random()), everyone[:2]) for folder in self._folders
        ]
        self.world = world
        self.entities: list[Name] = [*(one.identity.name for one in self.racers), *(one.identity.name for one in followers)]
        self._tasks += [asyncio.create_task(racer.run(self._stop)) for racer in self.racers]

    @property
    def received(self) -> list[Received]:
        return [watcher.received for watcher in self.watchers]

    async def _client(self, kind: str) -> EntityClient:
        self._clients.append(await self.network.client(self.network.entity(kind), timeout=60))
        return self._clients[-1]

    async def go_on(self, what: str, *, steps: int = 3) -> None:
        """Everybody gets on, or it would show nothing."""
        before = [racer.answered for racer in self.racers]
        await until(
            lambda: all(racer.answered >= done + steps for racer, done in zip(self.racers, before, strict=True)) or self._ended(),
            f"everybody to get on: {what}",
            seconds=120,
        )
        for task in self._ended():
            task.result()
            raise AssertionError("somebody has left the race")

    def _ended(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if task.done()]

    async def finish(self, *, patience: float) -> None:
        """Let everybody stop, and wait until what the broker keeps is decided, if it ever is."""
        self._stop.set()
        await asyncio.gather(*self._tasks[len(self.watchers) :])
        await until(self.network.ready, "all to be ready", seconds=60)
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.undecided(), "all that was sent to be decided", seconds=patience)

    def undecided(self) -> set[str]:
        node = self.network.nodes()[0]
        kept = {key for key, sent in self.books.sent.items() if sent.confirmed}
        return kept - decided_in(self.network.home.credentials(Role.NODE, node) / "store.sqlite")

    def stores(self, scratch: Path) -> dict[str, Path]:
        """A copy of every node's store, taken now."""
        return {node: self.network.copy_store(node, scratch / f"{node}.sqlite") for node in self.network.nodes()}

    async def hear_out(self, due: Mapping[tuple[str, str], int], *, seconds: float) -> None:
        """Wait until the watchers have received what they are due; whether it is right is for the checker to say."""
        with contextlib.suppress(AssertionError):
            await until(
                lambda: all(len(one.payloads) >= due.get((one.subject, one.watcher), 0) for one in self.received),
                "the watchers to be told",
                seconds=seconds,
            )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()
