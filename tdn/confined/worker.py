"""The worker's side: one job after the other, each within its time, until the node hangs up.

A job that is interrupted for its time never answers, whatever the code did with the interruption. The worker bounds its own memory, leaves no
core dumps, opens no file once it is ready, dies with the process that forked it, and is what the kernel takes first when memory runs out.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

from tdn.confined import frames
from tdn.errors import TdnError

Handle: TypeAlias = Callable[[dict[str, Any]], tuple[dict[str, Any], Sequence[bytes]]]
Factory: TypeAlias = Callable[[Any], Handle]

#: The interruption comes again at this interval, in seconds: callbacks of SQLite and `__del__` swallow any exception.
_AGAIN_SECONDS = 0.02
#: What the kernel gives at most, as a multiple of what the node allows. The node looks every 50 ms, in which no process here filled more
#: than 150 MB, and speaks first, with the better sentence; this stops what would take gigabytes at once. At 1.25 Saxon's collector, which
#: copies, met it before the node saw it, and wrote 190 kB of diagnosis into the log as it died.
_HARD_MEMORY = 2
#: Of 1000. The node itself is at 0, and must be taken last.
_OOM_SCORE = "500"
_PR_SET_PDEATHSIG = 1

_READ_BYTES = 256 * 1024


class _Overrun(BaseException):
    """The job's time is over. Not an Exception: libraries catch those."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even while it is busy in C. Elsewhere than on Linux: when it next reads."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before we asked.
        os._exit(0)


def leave_signals_to_the_node() -> None:
    """Ctrl-C, `systemctl stop` and a closed terminal reach every process; the node alone decides what they mean."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def serve(channel: socket.socket, factory: Factory) -> None:
    """Answer frames until the channel ends. The first one is no job but how to work."""
    received = _receive(channel)
    how = next(received, None)
    if how is None:
        return
    _restrain(how)
    worker = _Worker(how["seconds"], how["kill_seconds"])
    try:
        worker.make(factory, how["argument"])
    except BaseException as error:  # The node is told, and decides.
        channel.sendall(_explained(error))
        return
    gc.collect()
    gc.freeze()
    _open_nothing_more()
    channel.sendall(frames.encode({"ready": os.getpid()}))
    for content in received:
        channel.sendall(worker.answer(content["job"]))


def _receive(channel: socket.socket) -> Iterator[dict[str, Any]]:
    assembler = frames.Assembler()
    with contextlib.suppress(ConnectionError):
        while piece := channel.recv(_READ_BYTES):
            for content, _ in assembler.feed(piece):
                yield content


def _restrain(how: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.nice(how["nice"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Not RLIMIT_AS, which counts files that are mapped as well: a store of a gigabyte, read by mmap, costs no memory of ours.
    most = int(how["memory_bytes"] * _HARD_MEMORY)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _open_nothing_more() -> None:
    """No file and no socket from here on. An engine that is talked into reading files (as Saxon was, past every setting of its own) finds
    that it cannot open any. What a job needs was opened and imported by its factory."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, lowest_free))


class _Worker:
    """The handle, and the alarm around it."""

    _handle: Handle

    def __init__(self, seconds: float | None, kill_seconds: float) -> None:
        self._seconds = seconds
        self._kill_seconds = kill_seconds
        self._armed = False
        self._rang = False
        # Work that cannot be interrupted ends with its process. The node does that; this is for when the node itself is stopped.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if seconds is None else self._ring)

    def make(self, factory: Factory, argument: Any) -> None:
        self._handle = factory(argument)

    def answer(self, job: dict[str, Any]) -> bytes:
        self._rang = False
        try:
            reply = self._within_time(job)
        except BaseException as error:  # Also SystemExit: a job must not end its worker.
            reply = _OVERRUN if self._rang else _explained(error)
        # An interruption that was swallowed on its way may have made the result a wrong one.
        return _OVERRUN if self._rang else reply

    def _within_time(self, job: dict[str, Any]) -> bytes:
        try:
            if self._seconds is None:
                signal.setitimer(signal.ITIMER_REAL, self._kill_seconds)
            else:
                signal.setitimer(signal.ITIMER_REAL, self._seconds, _AGAIN_SECONDS)
            self._armed = True
            result, parts = self._handle(job)
            return frames.encode({"result": result}, parts)
        finally:
            # CPython runs signal handlers after calls and at jumps, so none comes between the try's end and this line.
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._rang = True
            raise _Overrun


_OVERRUN = frames.encode({"overrun": True})
_MEMORY = frames.encode({"memory": True})


def _explained(error: BaseException) -> bytes:
    if isinstance(error, MemoryError):
        return _MEMORY
    try:
        if isinstance(error, TdnError):
            return frames.encode({"error": frames.error_as_object(error)})
    except (TypeError, ValueError, frames.BadFrame) as odd:  # A detail that is not JSON, or without end.
        error = odd
    text = "".join(traceback.format_exception(error))
    return frames.encode({"bug": text[-20_000:]})
