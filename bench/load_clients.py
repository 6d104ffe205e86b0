"""Many entities in one process, each connected for itself, with mixed traffic. Several such processes make a thousand.

An entity thinks, then does one thing: discover, show, create and advertise, renew, publish to a topic of its own, grant and revoke. Some read the
topics of others the whole time. Every operation's kind, duration and outcome is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from entity_client import EntityClient, path
from entity_client.messaging import Publisher
from tdn.bus.address import load_connection
from tdn.bus.connection import Connection
from tdn.errors import TdnError
from tdn.trust import credentials

#: How often each is done, of a hundred; a discovery asks both nodes.
MIX = {"discover": 35, "publish": 30, "show": 15, "create": 10, "renew": 6, "grant and revoke": 4}
#: One in so many reads the topic of another all the time.
ONE_READER_IN = 10
#: Entities of one process that connect at the same moment.
_AT_ONCE = 8
_LIFETIME = timedelta(hours=6)
_TIMEOUT_SECONDS = 60.0


@dataclass
class Done:
    """What a process of clients did."""

    #: Arrays, and not lists: it is watched what these processes need, too.
    seconds: dict[str, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    errors: Counter[str] = field(default_factory=Counter)
    read: int = 0


class Entities:
    """A process, for whoever commands it."""

    def __init__(self, folders: Sequence[Path], *, seed: int, think_seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(list(folders), seed, think_seconds, theirs), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    async def call(self, *command: object) -> Any:
        self._pipe.send(command)
        answer = await asyncio.to_thread(self._pipe.recv)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def close(self) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.join)


class _Entity:
    def __init__(self, client: EntityClient, dice: random.Random, done: Done) -> None:
        self.client = client
        self._dice = dice
        self._done = done
        self._topics: deque[str] = deque(maxlen=5)
        self._publisher: Publisher | None = None
        self.stage: str | None = None

    async def enter(self) -> None:
        """Connected, known, and with a topic that it may publish to."""
        await self.client.choose()
        self.stage = (await self.client.create(path("load/stage"), lifetime=_LIFETIME)).uuid
        self._topics.append(self.stage)

    async def run(self, stop: asyncio.Event, think_seconds: float) -> None:
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "discover": self._discover,
            "publish": self._publish,
            "show": self._show,
            "create": self._create,
            "renew": self._renew,
            "grant and revoke": self._grant,
        }
        # Not all of them at the same moment.
        await _rest(stop, self._dice.uniform(0, think_seconds))
        while not stop.is_set():
            kind = self._dice.choices(list(MIX), list(MIX.values()))[0]
            began = time.perf_counter()
            try:
                await ways[kind]()
                self._done.seconds[kind].append(time.perf_counter() - began)
            except TdnError as error:
                self._done.errors[f"{kind}: {type(error).__name__}"] += 1
            await _rest(stop, self._dice.expovariate(1 / think_seconds))

    async def read(self, topic: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with self.client.subscribe(topic) as subscription:
                    async for _ in subscription:
                        self._done.read += 1
            except TdnError as error:
                self._done.errors[f"read: {type(error).__name__}"] += 1
                await asyncio.sleep(1)

    async def _discover(self) -> None:
        word = self._dice.choice(("stage", "temperature", "load/tem"))
        async for _ in self.client.discover(word, limit=10):
            pass

    async def _show(self) -> None:
        await self.client.show(self._dice.choice(list(self._topics)))

    async def _create(self) -> None:
        self._topics.append((await self.client.create(path("load/temperature"), lifetime=_LIFETIME)).uuid)

    async def _renew(self) -> None:
        await self.client.renew(self._topics[-1], _LIFETIME)

    async def _publish(self) -> None:
        assert self.stage is not None
        if self._publisher is None:
            self._publisher = self.client.publisher(self.stage)
            await self._publisher.__aenter__()
        await self._publisher.publish("six degrees")

    async def _grant(self) -> None:
        assert self.stage is not None
        granted = await self.client.grants.give("subscribe", self.stage, "institution:elsewhere")
        await self.client.grants.revoke(granted.id)


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class _Process:
    def __init__(self, folders: list[Path], seed: int, think_seconds: float) -> None:
        self._folders = folders
        self._dice = random.Random(seed)
        self._think_seconds = think_seconds
        self._bare: list[Connection] = []
        self._entities: list[_Entity] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._done = Done()

    async def connect_bare(self) -> int:
        """Connections over mutual TLS that do nothing."""

        async def open_one(folder: Path) -> Connection:
            settings = load_connection(folder)
            return await Connection.open(settings.brokers, credentials.load(folder), vhost=settings.vhost)

        self._bare = await _a_few_at_once(open_one, self._folders)
        return len(self._bare)

    async def disconnect_bare(self) -> int:
        await asyncio.gather(*(connection.close() for connection in self._bare))
        self._bare.clear()
        return 0

    async def enter(self) -> int:
        async def enter(folder: Path) -> _Entity:
            client = await EntityClient.connect(folder, timeout=_TIMEOUT_SECONDS)
            one = _Entity(client, random.Random(self._dice.random()), self._done)
            await one.enter()
            return one

        self._entities = await _a_few_at_once(enter, self._folders)
        return len(self._entities)

    async def begin(self) -> int:
        readers = self._entities[::ONE_READER_IN]
        for one in readers:
            assert one.stage is not None
            self._tasks.append(asyncio.create_task(one.read(one.stage, self._stop)))
        working = [one.run(self._stop, self._think_seconds) for one in self._entities]
        self._tasks += [asyncio.create_task(work) for work in working]
        return len(readers)

    async def end(self) -> Done:
        self._stop.set()
        await asyncio.wait(self._tasks, timeout=_TIMEOUT_SECONDS / 4)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._done.seconds = dict(self._done.seconds)
        return self._done


async def _a_few_at_once(work: Callable[[Path], Awaitable[Any]], folders: Sequence[Path]) -> list[Any]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(folder: Path) -> Any:
        async with turns:
            return await work(folder)

    return await asyncio.gather(*(in_turn(folder) for folder in folders))


def _main(folders: list[Path], seed: int, think_seconds: float, pipe: Pipe) -> None:
    asyncio.run(_serve(_Process(folders, seed, think_seconds), pipe))


async def _serve(process: _Process, pipe: Pipe) -> None:
    while True:
        (name, *arguments) = await asyncio.to_thread(pipe.recv)
        try:
            pipe.send(await getattr(process, name)(*arguments))
        except Exception as error:
            pipe.send(error)
