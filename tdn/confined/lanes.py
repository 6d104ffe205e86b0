"""Three lanes of work: quick, slow and heavy. A job begins in the quick lane; what does not end there at once starts over in the slow one.

    quick   nearly every query: ends within some tens of milliseconds, or is interrupted
    slow    the expensive ones, at the lowest priority, each with seconds of time; few at once for each asker
    heavy   work that cannot be interrupted, only killed with its process (XQuery); lowest priority too

In each lane askers take turns, and none holds every worker of a lane that has more than one: whatever one asks, the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tdn.confined import frames
from tdn.confined.processes import Cut, Done, Ending, Raised, StartFailed, Terms, Worker, Workers
from tdn.errors import Refused, TdnError

logger = logging.getLogger(__name__)

#: What a worker gets to react to the interruption before it is killed, in seconds.
GRACE_SECONDS = 0.25
_LOWEST_PRIORITY = 19
#: How many askers' last turns are remembered. Who is forgotten had none for that many turns of others.
_REMEMBERED_ASKERS = 1024
#: Pauses between starts that fail, in seconds: the first, and the longest.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job may cost, and what an asker may have in work."""

    quick_seconds: float = 0.05
    slow_seconds: float = 10.0
    #: Of one worker.
    memory_bytes: int = 1024**3
    quick_workers: int = 2
    #: Two, so that one asker, who never holds all of a lane, does not keep the others waiting.
    slow_workers: int = 2
    #: Two, so that the uninterruptible work of one asker does not keep another's waiting for slow_seconds.
    heavy_workers: int = 2
    #: Waiting and running, in each case.
    slow_per_asker: int = 2
    heavy_per_asker: int = 8
    #: Waiting in a lane, of all askers.
    waiting: int = 256


@dataclass(frozen=True, slots=True)
class Load:
    """What a lane has to do now, and how many jobs of it were cut short since the start, by why."""

    waiting: int
    running: int
    cuts: Mapping[str, int]


@dataclass(eq=False, slots=True)
class _Job:
    frame: bytes
    asker: str
    answer: asyncio.Future[tuple[dict[str, Any], list[bytes]]]

    def refuse(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Turns:
    """Jobs that wait. It is the turn of the asker whose last turn is longest ago; the jobs of one keep their order."""

    def __init__(self) -> None:
        self._of: dict[str, deque[_Job]] = {}
        self._count = 0
        self._turn = 0
        self._last_turns: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_Job]:
        return (job for jobs in self._of.values() for job in jobs)

    def of(self, asker: str) -> int:
        return len(self._of.get(asker, ()))

    def add(self, job: _Job) -> None:
        self._of.setdefault(job.asker, deque()).append(job)
        self._count += 1

    def next(self, running: Counter[str], most: int) -> _Job | None:
        """The first job of the asker whose turn it is, of those with fewer than `most` running."""
        able = [asker for asker in self._of if running[asker] < most]
        if not able:
            return None
        asker = min(able, key=lambda asker: self._last_turns.get(asker, 0))
        self._turn += 1
        self._last_turns[asker] = self._turn
        self._last_turns.move_to_end(asker)
        if len(self._last_turns) > _REMEMBERED_ASKERS:
            self._last_turns.popitem(last=False)
        job = self._of[asker][0]
        self.remove(job)
        return job

    def remove(self, job: _Job) -> None:
        jobs = self._of.get(job.asker)
        if jobs is None or job not in jobs:
            return
        jobs.remove(job)
        self._count -= 1
        if not jobs:
            del self._of[job.asker]

    def last_of_the_longest(self) -> _Job:
        return max(self._of.values(), key=len)[-1]


class _Lane:
    """Workers of one kind, and the jobs that wait for them."""

    def __init__(
        self, name: str, count: int, terms: Terms, workers: Workers, argument: Any, *, per_asker: int | None, waiting: int
    ) -> None:
        self.name = name
        self.count = count
        self._terms = terms
        self._workers = workers
        self._argument = argument
        self._per_asker = per_asker
        self._waiting_most = waiting
        self._running_most = max(1, count - 1)
        self._waiting = _Turns()
        self._running: Counter[str] = Counter()
        self._staff: set[Worker] = set()
        self._idle: list[Worker] = []
        self._hiring: set[asyncio.Task[None]] = set()
        self._closed = False
        #: Whether no job is begun for the time being; and set whenever one has ended.
        self._held = False
        self._ended = asyncio.Event()
        #: Where a job goes that takes too long here; None: it ends.
        self.next: _Lane | None = None
        self._cuts = {cut.value: 0 for cut in Cut}

    @property
    def load(self) -> Load:
        return Load(len(self._waiting), self._running.total(), dict(self._cuts))

    async def close(self) -> None:
        self._closed = True
        for task in self._hiring:
            task.cancel()
        await asyncio.gather(*self._hiring, return_exceptions=True)
        for worker in list(self._staff):
            worker.kill(Cut.DIED)
        self._refuse_waiting("the node is stopping; ask another one")

    def add(self, job: _Job) -> None:
        """Let a job wait for its turn, or refuse it."""
        if self._per_asker is not None and self._waiting.of(job.asker) + self._running[job.asker] >= self._per_asker:
            job.refuse(Refused(f"you have {self._per_asker} long queries in work here already; wait until one has ended"))
            return
        self._waiting.add(job)
        if len(self._waiting) > self._waiting_most:
            # Whoever has most in the queue gives way, so that one asker cannot shut the others out by filling it.
            last = self._waiting.last_of_the_longest()
            self._waiting.remove(last)
            last.refuse(Refused("too many queries are waiting here; try again later"))
        self._go_on()

    def drop(self, job: _Job) -> None:
        self._waiting.remove(job)

    async def hold(self) -> None:
        """Begin no job until `let_go`; returns when none is in work."""
        self._held = True
        while self._running:
            self._ended.clear()
            await self._ended.wait()

    def let_go(self) -> None:
        self._held = False
        self._go_on()

    def _go_on(self) -> None:
        while not self._held and self._idle and (job := self._waiting.next(self._running, self._running_most)) is not None:
            self._begin(self._idle.pop(), job)

    def _begin(self, worker: Worker, job: _Job) -> None:
        self._running[job.asker] += 1
        worker.begin(job.frame, lambda ending: self._finish(worker, job, ending))

    def _finish(self, worker: Worker, job: _Job, ending: Ending) -> None:
        self._running[job.asker] -= 1
        if not self._running[job.asker]:
            del self._running[job.asker]
        self._ended.set()
        if worker.alive:
            self._idle.append(worker)
        if isinstance(ending, Cut):
            self._cuts[ending.value] += 1
        if not job.answer.done():
            self._tell(job, ending)
        self._go_on()

    def _tell(self, job: _Job, ending: Ending) -> None:
        if isinstance(ending, Done):
            job.answer.set_result((ending.result, ending.parts))
        elif isinstance(ending, Raised):
            job.refuse(ending.error)
        elif self._closed:
            job.refuse(Refused("the node is stopping; ask another one"))
        elif ending is Cut.OVERRUN and self.next is not None:
            self.next.add(job)
        elif ending is Cut.OVERRUN:
            job.refuse(Refused(f"the query took longer than {self._terms.seconds:g} s and was stopped; make it more selective"))
        elif ending is Cut.MEMORY:
            megabytes = self._terms.memory_bytes // 1024**2
            job.refuse(Refused(f"the query needed more than {megabytes} MB and was stopped; make it more selective"))
        else:
            job.refuse(Refused("the query could not be evaluated: the process that worked on it ended; write it in another way"))

    def _gone(self, worker: Worker) -> None:
        self._staff.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if not self._closed:
            task = asyncio.get_running_loop().create_task(self._replace())
            self._hiring.add(task)
            task.add_done_callback(self._hiring.discard)

    async def hire(self) -> None:
        worker = await self._workers.start(self._terms, self._argument, self._gone)
        if not worker.alive:
            return  # It died at once, and _gone has seen to it.
        self._staff.add(worker)
        self._idle.append(worker)
        self._go_on()

    async def _replace(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self.hire()
            except (StartFailed, TdnError, OSError) as error:
                logger.error("the %s lane cannot replace a worker, next try in %.1f s: %s", self.name, pause, error)
                if not self._staff:
                    self._refuse_waiting("queries cannot be evaluated here at present; ask another node")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _refuse_waiting(self, why: str) -> None:
        for job in list(self._waiting):
            self._waiting.remove(job)
            job.refuse(Refused(why))


class Lanes:
    """Runs jobs of strangers in worker processes.

    `work` names a factory, "package.module:function". Its module is imported once, before workers are forked, so it imports all that the work
    needs, and starts no thread. In each worker `factory(argument)` gives the function that is called with each job, a JSON object, and returns a
    JSON object and some bytes objects. It may be interrupted anywhere, and is then called with the next job. After the factory no worker can
    open a file or a socket. In the heavy lane an argument that is a dict has `heavy` set, for engines that only that lane needs.
    """

    def __init__(self, work: str, argument: Any, *, limits: Limits) -> None:
        self._workers = Workers(work)
        slow, nice, memory = limits.slow_seconds, _LOWEST_PRIORITY, limits.memory_bytes
        quick_terms = Terms(
            limits.quick_seconds, limits.quick_seconds + GRACE_SECONDS, interruptible=True, nice=0, memory_bytes=memory
        )
        slow_terms = Terms(slow, slow + GRACE_SECONDS, interruptible=True, nice=nice, memory_bytes=memory)
        heavy_terms = Terms(slow, slow, interruptible=False, nice=nice, memory_bytes=memory)

        def lane(name: str, count: int, terms: Terms, per_asker: int | None) -> _Lane:
            known = {**argument, "heavy": True} if name == "heavy" and isinstance(argument, dict) else argument
            return _Lane(name, count, terms, self._workers, known, per_asker=per_asker, waiting=limits.waiting)

        self._quick = lane("quick", limits.quick_workers, quick_terms, None)
        self._slow = lane("slow", limits.slow_workers, slow_terms, limits.slow_per_asker)
        self._heavy = lane("heavy", limits.heavy_workers, heavy_terms, limits.heavy_per_asker)
        self._quick.next = self._slow
        self._lanes = (self._quick, self._slow, self._heavy)
        self._open = False

    def load(self) -> dict[str, Load]:
        """Of each lane."""
        return {lane.name: lane.load for lane in self._lanes}

    async def start(self) -> None:
        """Ready when it returns. Raises StartFailed, or the error of ours that the factory raised; then no process is left."""
        try:
            await self._quick.hire()  # Alone: when the work cannot be loaded, one try tells.
            others = [lane for lane in self._lanes for _ in range(lane.count)][1:]
            for outcome in await asyncio.gather(*(lane.hire() for lane in others), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await self.close()
            raise
        self._open = True

    async def close(self) -> None:
        """When it returns no process is left. What was in work is refused."""
        self._open = False
        try:
            for lane in self._lanes:
                await lane.close()
        finally:
            await self._workers.close()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """While it lasts no job is in work, and those that come wait. The long ones are waited for first: the quick ones stand still for a moment only."""
        try:
            for lane in (self._heavy, self._slow, self._quick):
                await lane.hold()
            yield
        finally:
            for lane in self._lanes:
                lane.let_go()

    async def run(self, job: dict[str, Any], *, asker: str, heavy: bool = False) -> tuple[dict[str, Any], list[bytes]]:
        """What the work returns for a job. Raises the error of ours that it raised; Refused for what a limit stopped; WorkFailed for a bug.

        Cancelled while it waits, the job is dropped; while it runs, it is left to its end, and its result is dropped.
        """
        if not self._open:
            raise RuntimeError("these lanes are not open")
        queued = _Job(frames.encode({"job": job}), asker, asyncio.get_running_loop().create_future())
        (self._heavy if heavy else self._quick).add(queued)
        try:
            return await queued.answer
        finally:
            if queued.answer.cancelled():
                for lane in self._lanes:
                    lane.drop(queued)
