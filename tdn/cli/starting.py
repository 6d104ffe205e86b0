"""What a node or guard does before it serves: open its store, make its indexes anew, take a snapshot. Minutes, where there is much of it.

It happens in a thread, so that the loop turns meanwhile: `/healthz` is answered, `/readyz` says what is being waited for, and SIGTERM is heard. Whoever
ends what does not answer for a minute would otherwise end it again and again, each time from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from tdn import machine
from tdn.errors import NoRoom
from tdn.local.home import Home
from tdn.local.processes import start_mark
from tdn.protocol.names import Role

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Between two looks of a process that starts whether there is room again.
_ROOM_SECONDS = 2.0
#: Between what is said of a start.
_AGAIN_SECONDS = 0.5


class Starting:
    """One start of one process, and what it says of itself until there is more to show."""

    def __init__(self, home: Home, role: Role, name: str) -> None:
        self._home = home
        self._name = f"{role}-{name}"
        self._why = "starting"
        self._stop: asyncio.Event | None = None
        self._said: Mapping[str, Any] | None = None

    def readiness(self) -> dict[str, Any]:
        return {"ready": False, "reason": self._why}

    def progress(self, count: int) -> None:
        """Called by the work, in its thread, now and then. Nothing of the work is in place before all of it is done, so here it can be ended."""
        if self._stop is not None and self._stop.is_set():
            raise _ToldToStop
        self._why = f"it makes its store ready, and has taken in {count:,}"
        # Written by the loop, not by this thread. `tdn up` waits as long as something gets on.
        self._said = {"ready": False, "sequence": count, "why": self._why}

    async def make(self, begin: Callable[[], T], stop: asyncio.Event) -> T | None:
        """What `begin` makes, in a thread. None when it was told to stop meanwhile.

        A disk that is full at the start is waited for, as one that fills later is: no supervisor has to know that this end would not come again.
        """
        self._stop = stop
        saying = asyncio.create_task(self._go_on_saying())
        try:
            return await self._made(begin, stop)
        finally:
            saying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saying

    async def _made(self, begin: Callable[[], T], stop: asyncio.Event) -> T | None:
        told: str | None = None
        while not stop.is_set():
            try:
                with machine.explained():
                    return await asyncio.to_thread(begin)
            except _ToldToStop:
                logger.info("%s was told to stop before it had made its store ready; the next start begins with that again", self._name)
                return None
            except NoRoom as error:
                why = error.as_object()
            if told != why["message"]:
                told = self._why = why["message"]
                logger.warning("%s waits for room: %s", self._name, told)
            with contextlib.suppress(OSError):
                self._say({"ready": False, "why": told, "waits": why})
            # What a start that failed had opened is closed before the next one.
            gc.collect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROOM_SECONDS):
                    await stop.wait()
        return None


    def _say(self, values: Mapping[str, Any]) -> None:
        self._said = values
        report(self._home, self._name, values)

    async def _go_on_saying(self) -> None:
        """Also the same again: who says nothing for seconds is taken for paused."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            if self._said is not None:
                with contextlib.suppress(OSError):
                    report(self._home, self._name, self._said)


def report(home: Home, name: str, values: Mapping[str, Any]) -> None:
    """What this process says of itself."""
    pid = os.getpid()
    home.report(name, {"pid": pid, "started": _start_mark_of(pid), **values})


def report_trouble(home: Home, name: str, why: str) -> None:
    """That this process cannot say more, and why. Else what it last said would stand there, which is no longer true; or nothing, as of one that does not run."""
    pid = os.getpid()
    try:
        home.report_over(name, {"pid": pid, "started": _start_mark_of(pid), "ready": False, "why": why})
    except OSError:
        home.withdraw_report(name)


@cache
def _start_mark_of(pid: int) -> str | None:
    """By this, who reads a report knows our pid from the same number of a later process."""
    return start_mark(pid)


class _ToldToStop(Exception):
    """Ends the thread; nobody else hears it."""
