"""The trail of one message: what is known of it while it is worked on, and how long each step took.

Each message has a task of its own, and the trail goes with the task: whoever works on it, however deep, adds to the trail and hands nothing on. Log
lines written meanwhile carry its request id, and when the message is done the trail is counted, logged and traced in one place.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from tdn.errors import BrokerUnavailable

T = TypeVar("T")

#: How a message can end. A *refusal* was told to its sender; what is *turned away* came from nobody who can be named; *unfinished* comes again, here or elsewhere; *failed* is a bug
#: of ours.
DONE, REFUSED, TURNED_AWAY, UNFINISHED, FAILED = "done", "refused", "turned_away", "unfinished", "failed"
OUTCOMES = (DONE, REFUSED, TURNED_AWAY, UNFINISHED, FAILED)

#: The kind of what could not be read.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    #: From the beginning of the trail, in nanoseconds.
    began: int
    ended: int


@dataclass(slots=True)
class Trail:
    #: Where the message came in: a queue's sort, or an endpoint's.
    path: str
    kind: str = UNKNOWN
    #: The id that its sender chose for it.
    request: str | None = None
    principal: str | None = None
    #: The record that it became.
    seq: int | None = None
    outcome: str = DONE
    #: The word of the error, where the outcome is one.
    reason: str | None = None
    steps: list[Step] = field(default_factory=list)
    #: By the wall clock, for others to see; all else is measured by a clock that does not jump.
    began_at: int = field(default_factory=time.time_ns)
    _began: int = field(default_factory=time.perf_counter_ns)

    def elapsed(self) -> int:
        """Nanoseconds since it began."""
        return time.perf_counter_ns() - self._began

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = self.elapsed()
        try:
            yield
        finally:
            self.steps.append(Step(name, began, self.elapsed()))


_CURRENT: ContextVar[Trail | None] = ContextVar("trail", default=None)


def current() -> Trail | None:
    """The trail of the message that this task works on, if any."""
    return _CURRENT.get()


async def follow(path: str, work: Callable[[], Awaitable[T]], ended: Callable[[Trail], None]) -> T:
    """Do the work on a message with a trail of its own, and give the trail when it has ended."""
    trail = Trail(path)
    token = _CURRENT.set(trail)
    try:
        return await work()
    except Exception as error:
        # Who works on it has an answer for every error that is somebody else's.
        trail.outcome = UNFINISHED if isinstance(error, BrokerUnavailable) else FAILED
        raise
    except BaseException:
        # Cancelled: it comes again.
        trail.outcome = UNFINISHED
        raise
    finally:
        _CURRENT.reset(token)
        ended(trail)


def identified(kind: str, request: str, principal: str) -> None:
    """Its sender was verified."""
    if (trail := _CURRENT.get()) is not None:
        trail.kind, trail.request, trail.principal = kind, request, principal


def decided(seq: int) -> None:
    """It stands in the log."""
    if (trail := _CURRENT.get()) is not None:
        trail.seq = seq


def ended(outcome: str, reason: str | None = None) -> None:
    """It did not end well. What failed stays failed: that its sender was told of an error makes it no refusal."""
    if (trail := _CURRENT.get()) is not None:
        trail.outcome, trail.reason = FAILED if trail.outcome == FAILED else outcome, reason


def step(name: str) -> contextlib.AbstractContextManager[None]:
    """A part of the work on the present message, timed."""
    trail = _CURRENT.get()
    return contextlib.nullcontext() if trail is None else trail.step(name)
