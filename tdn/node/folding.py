"""Folding what is written beside the store (SQLite's WAL file) back into it, when searches keep that from happening by itself.

SQLite begins that file anew only in a moment in which nobody reads from it. Searches that take long and follow each other without a pause leave no such
moment, and the file grows for as long as they go on, whoever asks them: by 300 MB in 24 s, with two askers and 80 records a second. So when it is large,
no search is begun until those in work have ended, for which each has a limit; then it is folded back. What the log brings is applied meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Protocol

logger = logging.getLogger(__name__)

#: A few times what it takes where there is a moment now and then: it is folded back after 32 MB (`View`).
MOST_BYTES = 128 * 1024 * 1024
#: Between two looks at its size; and after one at which others than searches were reading, as a checkpoint or a backup, which end by themselves.
_LOOK_SECONDS = 5.0
_AGAIN_SECONDS = 60.0
#: How long whoever applies waits at most while a reader is waited for.
_BUSY_MILLISECONDS = 500
#: Whoever applies may be folding back at the same moment, or have just written more: so often it is tried again, and after how long.
_TRIES = 10
_PAUSE_SECONDS = 0.05


class Searches(Protocol):
    def held(self) -> AbstractAsyncContextManager[None]:
        """While it lasts no search reads the store."""
        ...


class Folding:
    def __init__(self, store: Path, searches: Searches, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._beside = store.with_name(f"{store.name}-wal")
        self._searches = searches
        self._most_bytes = most_bytes

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if not await self.fold_if_large():
                    await asyncio.sleep(_AGAIN_SECONDS)
            except (OSError, sqlite3.Error) as error:
                # A full disk, say. What is written beside the store is as good as what is in it.
                logger.warning("what is written beside the store could not be folded back: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def fold_if_large(self) -> bool:
        """Whether it is small now."""
        size = self._size()
        if size <= self._most_bytes:
            return True
        async with self._searches.held():
            folded = await asyncio.to_thread(_fold, self._store)
        if folded:
            logger.info("%d MB that were written beside the store were folded back into it", size // 1024**2)
        else:
            logger.warning("%d MB are written beside the store, and somebody else than a search reads from them", size // 1024**2)
        return folded

    def _size(self) -> int:
        return self._beside.stat().st_size if self._beside.exists() else 0


def _fold(store: Path) -> bool:
    """Fold all of it back and make the file small, unless somebody still reads from it."""
    with closing(sqlite3.connect(f"file:{store}?mode=rw", uri=True, isolation_level=None)) as db:
        db.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
        for _ in range(_TRIES):
            # The greater part is done without holding anybody up, and shows whether the rest can be.
            busy, written, folded = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and folded == written:
                (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not busy:
                    return True
            time.sleep(_PAUSE_SECONDS)
        return False
