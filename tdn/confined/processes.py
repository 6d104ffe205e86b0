"""The node's side of the processes: a template, and workers forked from it, each with one job at a time and its end certain.

A job ends in `Done`, `Raised` or a `Cut`, never in silence: a worker that is late, too large, odd or dead is killed, and the job's ending says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tdn.confined import frames, template
from tdn.errors import TdnError

logger = logging.getLogger(__name__)

#: How long imports, or a factory, may take, in seconds. Cold disks are slow; what never ends must not hold up a start for ever.
START_SECONDS = 60.0
#: How long a worker may take to hand over an answer that it has begun to send, in seconds.
_HANDOVER_SECONDS = 5.0
#: What the kernel may hold of an answer, if it grants that: one of 2 MB is then written at once, not in ten turns of two processes.
_ANSWER_BUFFER_BYTES = 4 * 1024 * 1024
#: How often the memory of a busy worker is looked at, in seconds.
_LOOK_SECONDS = 0.05
#: A worker that keeps more than this share of its memory after a job is replaced: else the next job would be blamed for it.
_WORN = 0.5
#: After so many jobs a worker is weighed, however quick they were. Small leaks add up.
_WEIGH_EVERY = 1000
#: What the template gets to end by itself, in seconds. Freeing a gigabyte takes some tenths.
_END_SECONDS = 5.0

#: What a worker sees of our environment. The rest may hold secrets, and some query languages can read the environment.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "SSL_CERT_FILE")
_ENVIRONMENT_PREFIXES = ("LC_", "PYTHON")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StartFailed(Exception):
    """The template or a worker could not be started; the message says why."""


class Cut(enum.Enum):
    """How a job ended that did not come to its end."""

    OVERRUN = "overrun"
    MEMORY = "memory"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Done:
    result: dict[str, Any]
    parts: list[bytes]


@dataclass(frozen=True, slots=True)
class Raised:
    error: Exception


Ending: TypeAlias = Done | Raised | Cut


@dataclass(frozen=True, slots=True)
class Terms:
    """How the workers of a lane work."""

    #: A job's time, in seconds.
    seconds: float
    #: After this the worker is killed, in seconds.
    kill_seconds: float
    #: Whether the job can be interrupted within its process.
    interruptible: bool
    nice: int
    memory_bytes: int


class Workers:
    """The template process. It is started when a worker is asked for, and again when it was lost."""

    def __init__(self, work: str) -> None:
        self._work = work
        self._numbers = itertools.count()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def start(self, terms: Terms, argument: Any, gone: Callable[[Worker], None]) -> Worker:
        """A worker that is ready. Raises StartFailed, or the error of ours that its factory raised."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start_template()
        number = next(self._numbers)
        worker = Worker(terms, gone, kill=lambda: self._command(template.KILL, number))
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            with contextlib.suppress(OSError):
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ANSWER_BUFFER_BYTES)
            await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
            self._command(template.FORK, number, theirs)
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker.begin_life(argument)
        except BaseException as error:
            worker.kill(Cut.DIED)
            if isinstance(error, TimeoutError):
                raise StartFailed(f"{self._work} was not ready after {START_SECONDS:.0f} s") from error
            raise
        return worker

    async def close(self) -> None:
        """When it returns, no process is left."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def _command(self, letter: bytes, number: int, channel: socket.socket | None = None) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [template.COMMAND.pack(letter, number)], [channel.fileno()] if channel else [])
        except OSError as error:
            # Lost, or so stuck that its buffer is full. All workers die with it, and the next start begins anew.
            logger.error("the template of confined processes does not listen: %s", error)
            if self._process is not None and self._process.returncode is None:
                self._process.kill()

    async def _start_template(self) -> None:
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._control = ours
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", template.__name__, str(theirs.fileno()), str(os.getpid()), self._work),
                stdin=subprocess.DEVNULL,
                stdout=2,  # What a library prints is no result of ours.
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                # Ctrl-C goes to the foreground's group: not even a template that has just begun gets it.
                process_group=0,
            )
        try:
            async with asyncio.timeout(START_SECONDS):
                said = await _first_frame(ours)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            if isinstance(error, TimeoutError | OSError | frames.BadFrame):
                raise StartFailed(f"{self._work} cannot be loaded: {error or 'it takes too long'}") from error
            raise
        if "ready" not in said:
            await self._process.wait()
            raise StartFailed(f"{self._work} cannot be loaded: {said.get('failed', 'its process ended')}")


class Worker(asyncio.Protocol):
    """One worker process, as the node sees it."""

    def __init__(self, terms: Terms, gone: Callable[[Worker], None], *, kill: Callable[[], None]) -> None:
        self._terms = terms
        self._gone = gone
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._assembler = frames.Assembler()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._finish: Callable[[Ending], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._jobs = 0
        self._weight = 0
        self._cut = Cut.DIED
        self._doomed = False
        self._answering = False
        self.pid = 0

    @property
    def alive(self) -> bool:
        """Whether it can be given a job, once the present one is over."""
        return self._transport is not None and not self._doomed

    async def begin_life(self, argument: Any) -> None:
        terms = self._terms
        how = {
            "argument": argument,
            "seconds": terms.seconds if terms.interruptible else None,
            "kill_seconds": terms.kill_seconds + 1.0,  # The node's own kill comes first.
            "nice": terms.nice,
            "memory_bytes": terms.memory_bytes,
        }
        self._write(frames.encode(how))
        await self._ready

    def begin(self, job: bytes, finish: Callable[[Ending], None]) -> None:
        """Start a job, a frame. `finish` is called once, however it ends."""
        self._finish = finish
        self._jobs += 1
        self._weight = 0
        self._answering = False
        now = self._loop.time()
        self._deadline = now + self._terms.kill_seconds
        self._timer = self._loop.call_at(min(now + _LOOK_SECONDS, self._deadline), self._look)
        self._write(job)

    def kill(self, cut: Cut) -> None:
        """End the process now. A job in it ends in `cut`."""
        if self._transport is not None and not self._doomed:
            self._doomed = True
            self._cut = cut
            self._kill()
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # for mypy: asyncio gives a stream's
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._answering:
            # The job is over; its answer may come in several pieces.
            self._answering = True
            self._deadline = self._loop.time() + _HANDOVER_SECONDS
        try:
            for content, parts in self._assembler.feed(data):
                self._hear(content, parts)
        except frames.BadFrame as error:
            logger.error("worker %s sent what cannot be read and is killed: %s", self.pid, error)
            self.kill(Cut.DIED)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._cut is Cut.DIED and self._weight > self._terms.memory_bytes * _WORN:
            # Saxon's runtime ends its process when the kernel gives it no more memory. A crash does not look like that.
            self._cut = Cut.MEMORY
        if not self._ready.done():
            self._ready.set_exception(StartFailed("a worker died before it was ready"))
        if self._ready.cancelled() or self._ready.exception() is not None:
            return
        if self._finish is not None and not self._doomed:
            logger.warning("worker %s died in the middle of a job", self.pid)
        self._end(self._cut)
        self._gone(self)

    # What follows from it.

    def _hear(self, content: dict[str, Any], parts: list[bytes]) -> None:
        if not self._ready.done():
            if "ready" in content:
                self.pid = int(content["ready"])
                self._ready.set_result(None)
            else:
                ending = _ending(content, parts)
                failed = ending.error if isinstance(ending, Raised) else StartFailed("there is not memory enough for it")
                self._ready.set_exception(
                    failed if isinstance(failed, TdnError) else StartFailed(f"a worker cannot start: {failed}")
                )
            return
        if self._finish is None:
            raise frames.BadFrame("an answer to nothing")
        ending = _ending(content, parts)
        if ending is Cut.MEMORY:
            self.kill(Cut.MEMORY)  # Half of what it had in hand may be lost.
            return
        if (self._weight or self._jobs % _WEIGH_EVERY == 0) and weight_bytes(self.pid) > self._terms.memory_bytes * _WORN:
            logger.info("worker %s keeps much memory after a job and is replaced", self.pid)
            self.kill(Cut.DIED)
        self._end(ending)

    def _end(self, ending: Ending) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(ending)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self.kill(Cut.OVERRUN)
            return
        self._weight = weight_bytes(self.pid)
        if self._weight > self._terms.memory_bytes:
            self.kill(Cut.MEMORY)
            return
        self._timer = self._loop.call_at(min(now + _LOOK_SECONDS, self._deadline), self._look)

    def _write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)


def weight_bytes(pid: int) -> int:
    """The memory that a process holds for itself, files that it has mapped not counted. 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def _ending(content: dict[str, Any], parts: list[bytes]) -> Ending:
    if isinstance(result := content.get("result"), dict):
        return Done(result, parts)
    if "error" in content:
        return Raised(frames.error_from_object(content["error"]))
    if "bug" in content:
        return Raised(frames.WorkFailed(str(content["bug"])))
    if "overrun" in content:
        return Cut.OVERRUN
    if "memory" in content:
        return Cut.MEMORY
    raise frames.BadFrame("an answer of no known kind")


async def _first_frame(control: socket.socket) -> dict[str, Any]:
    assembler = frames.Assembler()
    while piece := await asyncio.get_running_loop().sock_recv(control, 65_536):
        for content, _ in assembler.feed(piece):
            return content
    return {}


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES)}
    return kept | {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
