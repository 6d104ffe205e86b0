"""One view of the log, kept up to date while a connection lasts, and continued on the next one.

Resuming starts *at* the last applied record, not after it: the log must still hold the very bytes that the store was built from. A log
that is shorter or different stops the process, because serving a state that others do not have would be guessing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tdn.bus import log
from tdn.bus.connection import Connection
from tdn.errors import LogDiverged, UnknownRules
from tdn.rules.apply import RULES_VERSION
from tdn.rules.state import LogRecord, Outcome
from tdn.store.search import Reader
from tdn.store.topics import EVERYTHING, Stores
from tdn.store.view import View

logger = logging.getLogger(__name__)

#: Records applied in one transaction at most. On replay the commit is then a small part of the work.
_BATCH = 500
#: Batches up to this size are applied in place: handing them to a thread costs more (two wake-ups, and the GIL is handed over in steps of
#: 5 ms) than the millisecond for which the loop stands still.
_IN_PLACE = 4
#: A replica that nobody waits for lets records gather for so long: one commit for several, and no competition for the processor with the
#: node that an entity is waiting for.
_LINGER_SECONDS = 0.02
#: How long the broker may take to deliver a record that the log must hold.
_RESUME_SECONDS = 20.0

Applied = Sequence[tuple[LogRecord, Outcome]]


class Replica:
    def __init__(
        self,
        path: Path,
        network_id: str,
        on_applied: Callable[[Applied], None] | None = None,
        *,
        stores: Stores = EVERYTHING,
        linger_seconds: float = _LINGER_SECONDS,
    ) -> None:
        self._linger_seconds = linger_seconds
        self._view = View(path, stores)
        self._network_id = network_id
        self._on_applied = on_applied
        #: Committed state, for the event loop's own small questions.
        self.reader = Reader(path, cached=True)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="apply")
        self._waiting: dict[bytes, asyncio.Future[Outcome]] = {}
        #: Set when somebody begins to wait.
        self._wanted = asyncio.Event()
        self._head_offset = -1
        self.caught_up = asyncio.Event()
        self._progress = asyncio.Event()
        self._require_network()

    @property
    def position(self) -> tuple[int, str]:
        return self._view.position.seq, self._view.position.head

    @property
    def lag(self) -> int:
        """Records known to be in the log and not yet applied, as far as the broker has told."""
        return max(0, self._head_offset - self._view.position.offset)

    async def follow(self, connection: Connection) -> None:
        """Read and apply until the connection ends (BrokerUnavailable) or store and log disagree (LogDiverged)."""
        self.caught_up.clear()
        self._head_offset = await log.last_offset(connection)
        resume = self._view.position.offset
        follower = await log.Follower.open(connection, offset=resume)
        if resume >= 0:
            await self._check_resumption(follower, resume)
        self._note_caught_up()
        while True:
            records = await follower.batch(_BATCH)
            if not self._waiting and len(records) <= _IN_PLACE and self.caught_up.is_set():
                await self._linger()
                records += follower.arrived(_BATCH)
            await self._apply(records)

    async def _linger(self) -> None:
        """Let records gather, until somebody waits for one: what has gathered is then applied while that one is on its way."""
        self._wanted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._linger_seconds):
                await self._wanted.wait()

    async def progress(self, *, within_seconds: float) -> None:
        """Return when something was applied, or when the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._progress.wait()

    async def reached(self, seq: int, *, within_seconds: float) -> None:
        """Return when the record is applied here, or when the time is up: whoever has seen it in the log finds it here too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                while self._view.position.seq < seq:
                    await self._progress.wait()

    def expect(self, raw: bytes) -> asyncio.Future[Outcome]:
        """The outcome of a record that is about to be appended, when this replica has committed it."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[_key(raw)] = waiting
        self._wanted.set()
        return waiting

    def forget(self, raw: bytes) -> None:
        self._waiting.pop(_key(raw), None)

    def digest(self) -> str:
        return self._view.digest()

    def close(self) -> None:
        self._writer.shutdown(wait=True)
        self.reader.close()
        self._view.close()

    async def _apply(self, records: list[tuple[int, bytes]]) -> None:
        # An answer implies that its record is on disk here; nobody is answered for the records of others.
        durable = bool(self._waiting) and any(_key(raw) in self._waiting for _, raw in records)
        if len(records) <= _IN_PLACE:
            applied = self._view.apply_all(records, durable=durable)
        else:
            apply = partial(self._view.apply_all, records, durable=durable)
            applied = await asyncio.get_running_loop().run_in_executor(self._writer, apply)
        for _, outcome in applied:
            self.reader.learn(outcome.writes)
        if any(outcome.kind == "genesis" for _, outcome in applied):
            self._require_network()
        for record, outcome in applied:
            waiting = self._waiting.pop(_key(record.raw), None) if self._waiting else None
            if waiting is not None and not waiting.done():
                waiting.set_result(outcome)
        self._progress.set()
        self._progress = asyncio.Event()
        if self._on_applied is not None:
            self._on_applied(applied)
        self._note_caught_up()

    async def _check_resumption(self, follower: log.Follower, resume: int) -> None:
        try:
            batch = await asyncio.wait_for(follower.batch(_BATCH), _RESUME_SECONDS)
        except TimeoutError as error:
            raise LogDiverged(
                f"the log ends before record {self._view.position.seq} of this store; compare the nodes before going on"
            ) from error
        offset, raw = batch[0]
        if offset != resume or raw != self._view.record_at(resume):
            raise LogDiverged(
                f"the log holds something else at record {self._view.position.seq} than this store; compare the nodes before going on"
            )
        if batch[1:]:
            await self._apply(batch[1:])

    def _note_caught_up(self) -> None:
        if self._view.position.offset >= self._head_offset:
            self.caught_up.set()

    def _require_network(self) -> None:
        network = self.reader.get("network", "network")
        if network is not None and network["rules"] != RULES_VERSION:
            raise UnknownRules(f"the store follows rules version {network['rules']}; this build knows {RULES_VERSION}")
        if network is not None and network["id"] != self._network_id:
            raise LogDiverged(
                f"the log belongs to network {network['id'][:12]}…, not to {self._network_id[:12]}…; look at genesis.jws and the broker's address"
            )


def _key(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()
