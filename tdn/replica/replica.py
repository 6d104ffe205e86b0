"""One view of the log, kept up to date while a connection lasts, and continued on the next one.

Resuming starts *at* the last applied record, not after it: the log must still hold the very bytes that the store was built from. A log
that holds something else stops the process, because serving a state that others do not have would be guessing.

A log that is *shorter* (the broker lost its end) is read to its end, and what comes then must be what this store has already: it is
recognised, byte for byte, and not applied again. Until all of it has come, the replica is ahead of the log and not caught up; who puts
the missing records back is not decided here.
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
from tdn.bus.log import goes_on
from tdn.errors import BrokerUnavailable, LogDiverged, LogTrimmed, UnknownRules
from tdn.rules.apply import RULES_VERSION
from tdn.rules.state import LogRecord, Outcome
from tdn.store.records import Records
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
#: A log that gives nothing for so long is looked at: ticks come more often than that wherever a node is.
_SILENT_SECONDS = 15.0
#: How long a log that seems to hold nothing, although the store does, may take to deliver a first record. Rare, and a costly mistake.
_GONE_SECONDS = 5.0

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
        stop_every: int | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """After every `stop_every` records, once all of the log was read, `on_stop` finds exactly these committed."""
        self._stop_every = stop_every
        self._on_stop = on_stop
        self._linger_seconds = linger_seconds
        self.path = path
        self._view = View(path, stores)
        self._network_id = network_id
        self._on_applied = on_applied
        #: Committed state, for the event loop's own small questions.
        self.reader = Reader(path, cached=True)
        #: What the store has of the log, committed.
        self.records = Records(path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="apply")
        self._waiting: dict[bytes, asyncio.Future[Outcome]] = {}
        #: Set when somebody begins to wait.
        self._wanted = asyncio.Event()
        self._head_offset = -1
        #: Up to where the log, as it is now, is known to hold this store's records: number and offset.
        self._found, self._found_offset = 0, -1
        #: Whether the log is empty, and where what is put back begins is not known.
        self._unplaced = False
        #: Set when the log was read to where it ended when this connection began.
        self.placed = asyncio.Event()
        #: Set when, besides, the log holds all that the store has.
        self.caught_up = asyncio.Event()
        self._progress = asyncio.Event()
        self._require_network()

    @property
    def position(self) -> tuple[int, str]:
        return self._view.position.seq, self._view.position.head

    @property
    def found(self) -> int:
        """The record up to which the log holds what this store has. Less than `position` only when the log lost its end."""
        return self._found

    @property
    def lag(self) -> int:
        """Records known to be in the log and not yet applied, as far as the broker has told."""
        return max(0, self._head_offset - self._view.position.offset)

    async def follow(self, connection: Connection) -> None:
        """Read and apply until the connection ends (BrokerUnavailable) or store and log disagree (LogDiverged)."""
        self.caught_up.clear()
        self.placed.clear()
        self._found, self._found_offset, self._unplaced = 0, -1, False
        self._head_offset = await log.last_offset(connection)
        follower = await self._find_place(connection)
        self._note_place()
        while True:
            records = await self._next(connection, follower)
            if self._view.position.seq == 0:
                _require_beginning(*records[0])
            if self._unplaced:
                records = await self._place(follower, records)
            if not self._waiting and len(records) <= _IN_PLACE and self.caught_up.is_set():
                await self._linger()
                records += follower.arrived(_BATCH)
            await self._take(records)

    async def _next(self, connection: Connection, follower: log.Follower) -> list[tuple[int, bytes]]:
        """What the log goes on with, however late. A stream whose leader was killed may forget a reader: a node would then decide nothing, and a
        guard would be sure of what has long changed."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SILENT_SECONDS):
                    return await follower.batch(_BATCH)
            if await log.last_offset(connection) > self._found_offset:
                return await self._await_batch(follower)

    async def read_to_end(self, connection: Connection) -> None:
        """Return when what the log holds now has been read here: for whoever is about to append what it lacks."""
        end = await log.last_offset(connection)
        try:
            async with asyncio.timeout(_RESUME_SECONDS):
                await self.read_to(end)
        except TimeoutError as error:
            raise BrokerUnavailable("the broker does not deliver the end of the log") from error

    async def read_to(self, offset: int) -> None:
        """Return when the log has been read here up to an offset, however long that takes."""
        while self._found_offset < offset:
            await self._progress.wait()

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
        self.records.close()
        self._view.close()

    async def _take(self, records: list[tuple[int, bytes]]) -> None:
        new = self._recognise(records)
        if new:
            await self._apply(new)
        else:
            self._told()

    async def _apply(self, records: list[tuple[int, bytes]]) -> None:
        while records:
            every, reached = self._stop_every, self._view.position.seq
            room = len(records) if every is None else every - reached % every
            await self._apply_at_once(records[:room])
            records = records[room:]
            if every is not None and self._view.position.seq % every == 0 and self.caught_up.is_set():
                self._on_stop()

    async def _apply_at_once(self, records: list[tuple[int, bytes]]) -> None:
        # An answer implies that its record is on disk here; nobody is answered for the records of others.
        durable = bool(self._waiting) and any(_key(raw) in self._waiting for _, raw in records)
        if len(records) <= _IN_PLACE:
            applied = self._view.apply_all(records, durable=durable)
        else:
            apply = partial(self._view.apply_all, records, durable=durable)
            applying = asyncio.get_running_loop().run_in_executor(self._writer, apply)
            try:
                applied = await asyncio.shield(applying)
            except asyncio.CancelledError:
                # A thread is not cancelled: it commits, whoever has gone, and what it wrote must be known here before anyone reads on.
                self._conclude(await applying)
                raise
        self._conclude(applied)

    def _conclude(self, applied: Applied) -> None:
        """What follows from records that are committed."""
        for _, outcome in applied:
            self.reader.learn(outcome.writes)
        if any(outcome.kind == "genesis" for _, outcome in applied):
            self._require_network()
        for record, outcome in applied:
            waiting = self._waiting.pop(_key(record.raw), None) if self._waiting else None
            if waiting is not None and not waiting.done():
                waiting.set_result(outcome)
        self._found, self._found_offset = self._view.position.seq, self._view.position.offset
        self._told()
        if self._on_applied is not None:
            self._on_applied(applied)

    async def _find_place(self, connection: Connection) -> log.Follower:
        """Begin to read where the log, as it is now, holds a record of this store; or at its beginning, when offsets mean nothing any more."""
        if self._view.position.seq == 0:
            return await log.Follower.open(connection, offset=-1)
        last = self.records.last_up_to(self._head_offset)
        if last is not None:
            follower = await log.Follower.open(connection, offset=last.offset)
            batch = await self._await_batch(follower)
            if batch[0] == (last.offset, last.raw):
                self._found, self._found_offset = last.seq, last.offset
                await self._take(batch[1:])
                return follower
            await follower.close()
        return await self._walk(connection)

    async def _walk(self, connection: Connection) -> log.Follower:
        """Hold the log against the store from the log's first record on: it was made anew, or it is another one."""
        follower = await log.Follower.open(connection, offset=-1)
        if self._head_offset < 0:
            try:
                batch = await asyncio.wait_for(follower.batch(_BATCH), _GONE_SECONDS)
            except TimeoutError:
                logger.warning("the log is empty, and this store has %d records of it", self._view.position.seq)
                # What this store could put back begins where it keeps all records; another store may begin elsewhere.
                self._found, self._unplaced = self.records.first - 1, True
                return follower
        else:
            batch = await self._await_batch(follower)
        await self._take(await self._place(follower, batch))
        return follower

    async def _place(self, follower: log.Follower, batch: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Find where a log that begins with these stands in this store. One that has lost its own beginning passes over what it no longer has."""
        self._unplaced = False
        offset, beginning = batch[0]
        first = self.records.number_of(beginning)
        if first is not None:
            self._found = first - 1
            return batch
        own = self.records.earliest()
        while own is not None and own.seq > 1:
            for at, (_, raw) in enumerate(batch):
                if raw == own.raw:
                    self._found = own.seq - 1
                    return batch[at:]
            if 0 <= self._head_offset <= batch[-1][0]:
                break
            batch = await self._await_batch(follower)
        if offset > 0 and goes_on(offset, beginning):
            raise LogTrimmed(
                f"the log begins behind record {self._view.position.seq}, at which this store ends: what is between was archived and trimmed; "
                f"{_FROM_A_SNAPSHOT}"
            )
        raise LogDiverged(
            "the log begins with a record that this store does not have; compare the nodes before going on. If the log was put back from stores that "
            "had been trimmed, start this one from a snapshot"
        )

    async def _await_batch(self, follower: log.Follower) -> list[tuple[int, bytes]]:
        try:
            return await asyncio.wait_for(follower.batch(_BATCH), _RESUME_SECONDS)
        except TimeoutError as error:
            raise BrokerUnavailable("the broker does not deliver a record that the log must hold") from error

    def _recognise(self, records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Records that the store has already are compared and take their new offsets; gives what comes after them."""
        ahead = self._view.position.seq - self._found
        if ahead == 0 or not records:
            return records
        own = self.records.after(self._found, min(ahead, len(records)))
        if not own:
            raise LogDiverged(
                f"this store does not keep record {self._found + 1}, with which the log goes on; move it away, not remove it, and {_FROM_A_SNAPSHOT}"
            )
        moved: list[tuple[int, int]] = []
        for (offset, raw), kept in zip(records, own, strict=False):
            if raw != kept.raw:
                raise LogDiverged(_forked(kept.seq, self._view.position.seq))
            if offset != kept.offset:
                moved.append((kept.seq, offset))
            self._found, self._found_offset = kept.seq, offset
        if moved:
            self._view.move(moved)
        return records[len(own) :] if len(own) == ahead else self._recognise(records[len(own) :])

    def _told(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()
        self._note_place()

    def _note_place(self) -> None:
        if self._found_offset >= self._head_offset:
            self.placed.set()
            if self._found == self._view.position.seq:
                self.caught_up.set()

    def _require_network(self) -> None:
        network = self.reader.get("network", "network")
        if network is not None and network["rules"] != RULES_VERSION:
            raise UnknownRules(f"the store follows rules version {network['rules']}; this build knows {RULES_VERSION}")
        if network is not None and network["id"] != self._network_id:
            raise LogDiverged(
                f"the log belongs to network {network['id'][:12]}…, not to {self._network_id[:12]}…; look at genesis.jws and the broker's address"
            )


def _forked(seq: int, last: int) -> str:
    return (
        f"the log holds something else at record {seq} than this store, which has {last}: others went on without these records; "
        "see docs/operations.md, When a process stops by itself, before you remove anything"
    )


_FROM_A_SNAPSHOT = "start it from a snapshot that another node has made: `tdn snapshot`, then `--snapshot FILE`"


def _require_beginning(offset: int, raw: bytes) -> None:
    """An empty store must read the log from its genesis on: from anywhere else it would judge everything otherwise than the others did."""
    if goes_on(offset, raw):
        raise LogTrimmed(
            f"the log no longer has its beginning, which was archived and trimmed, and this store is empty; {_FROM_A_SNAPSHOT}"
        )


def _key(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()
