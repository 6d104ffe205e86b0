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
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tdn import machine
from tdn.errors import NoRoom
from tdn.local.home import Home
from tdn.protocol.names import Role

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Between two looks of a process that starts whether there is room again.
_ROOM_SECONDS = 2.0


class Starting:
    """One start of one process, and what it says of itself until there is more to show."""

    def __init__(self, home: Home, role: Role, name: str) -> None:
        self._home = home
        self._name = f"{role}-{name}"
        self._why = "starting"
        self._stop: asyncio.Event | None = None

    def readiness(self) -> dict[str, Any]:
        return {"ready": False, "reason": self._why}

    def progress(self, count: int) -> None:
        """Called by the work, in its thread, now and then. Nothing of the work is in place before all of it is done, so here it can be ended."""
        if self._stop is not None and self._stop.is_set():
            raise _ToldToStop
        self._why = f"it makes its store ready, and has taken in {count:,}"
        # `tdn up` waits as long as something gets on.
        self._home.report(self._name, {"pid": os.getpid(), "ready": False, "sequence": count, "why": self._why})

    async def make(self, begin: Callable[[], T], stop: asyncio.Event) -> T | None:
        """What `begin` makes, in a thread. None when it was told to stop meanwhile.

        A disk that is full at the start is waited for, as one that fills later is: no supervisor has to know that this end would not come again.
        """
        self._stop = stop
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
                report = {"pid": os.getpid(), "ready": False, "why": told, "waits": why, "at": int(time.time())}
                self._home.report(self._name, report)
            # What a start that failed had opened is closed before the next one.
            gc.collect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROOM_SECONDS):
                    await stop.wait()
        return None


class _ToldToStop(Exception):
    """Ends the thread; nobody else hears it."""
