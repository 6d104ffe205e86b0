"""A node's checkpoints: every so many records it takes the digest of its state there, keeps the text that it was taken of, and states it in the log.

All nodes stop at the same records, so that they state the same; nobody waits for it. The text is what a snapshot is made from (`tdn.snapshots`).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

from tdn.errors import BrokerUnavailable, Refused
from tdn.node.changes import Changes, NoLongerCurrent
from tdn.rules import checkpoints
from tdn.rules.state import State
from tdn.snapshots.make import CHECKPOINTS, text_of
from tdn.store.state_text import Moment

logger = logging.getLogger(__name__)


class Checkpointing:
    """One per node. `begin` is called between two batches; everything else goes on beside what the node does."""

    def __init__(self, store: Path, state: State) -> None:
        self._store = store
        self._state = state
        self._taking: asyncio.Task[None] | None = None
        self._closed = threading.Event()
        #: What was taken and is not in the log yet.
        self._to_state: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def begin(self) -> None:
        """Fix the state that is committed now, and take its digest. Skipped while one is being taken."""
        if self._taking is not None and not self._taking.done():
            logger.warning("a checkpoint is still being taken; this one is left out")
            return
        try:
            moment = Moment(self._store)
        except sqlite3.Error as error:
            logger.error("no checkpoint could be taken: %s", error)
            return
        self._taking = asyncio.create_task(self._take(moment))

    async def state(self, work: Changes) -> None:
        """Put what is taken into the log, as long as a connection lasts. What was not confirmed is stated again on the next."""
        while True:
            stated = await self._to_state.get()
            try:
                await work.append("checkpoint", None, checkpoint=stated)
                logger.info("stated the checkpoint at record %d: %s…", stated["seq"], stated["digest"][:12])
            except NoLongerCurrent:
                raise
            except Refused as error:
                # It was in the log already, as after a lost connection.
                logger.info("the checkpoint at record %d was not taken: %s", stated["seq"], error)
            except (BrokerUnavailable, asyncio.CancelledError):
                self._to_state.put_nowait(stated)
                raise

    async def close(self) -> None:
        self._closed.set()
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)

    async def _take(self, moment: Moment) -> None:
        place = moment.place
        try:
            self._tidy()
            digest = await asyncio.to_thread(moment.write, text_of(self._store, place.seq), wait=self._wait)
        except _Closed:
            return
        except (OSError, sqlite3.Error) as error:
            # A full disk: the node goes on, and so do the other nodes' checkpoints.
            logger.error("the checkpoint at record %d could not be taken: %s", place.seq, error)
            return
        finally:
            moment.close()
        self._to_state.put_nowait({"seq": place.seq, "head": place.head, "at": place.at, "digest": digest})

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise _Closed

    def _tidy(self) -> None:
        """Texts from before the last checkpoint that counts are of no more use, nor is what a killed node left."""
        counted = checkpoints.latest(self._state)
        first = text_of(self._store, counted["seq"] if counted is not None else 0).name
        for path in (self._store.parent / CHECKPOINTS).glob("*.facts.gz*"):
            if path.name < first or path.name.endswith(".unfinished"):
                path.unlink(missing_ok=True)


class _Closed(Exception):
    """The node ends; the checkpoint is left out."""
