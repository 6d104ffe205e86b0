"""A replica finds its store in a log that was cut, put back, made anew or replaced; what it has already it does not apply again."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from little_network import LittleNetwork

from tdn.errors import BrokerUnavailable, LogDiverged, LogTrimmed
from tdn.replica import replica as module
from tdn.replica.replica import Applied, Replica
from tdn.store.records import Records

NET = LittleNetwork("recognising")
RECORDS = [*NET.opening(), *(NET.record("tick", by=node) for node in ("n1", "n2", "n3", "n1", "n2"))]
REPEATED = NET.record("tick", by="n3")


class Stream:
    """What a broker holds: records at offsets, which may have holes."""

    def __init__(self, records: list[bytes], *, first: int = 0, step: int = 1) -> None:
        self.records = [(first + number * step, raw) for number, raw in enumerate(records)]
        self._step = step
        self._grown = asyncio.Condition()

    def cut(self, count: int) -> None:
        del self.records[count:]

    async def append(self, *raws: bytes, hole: int = 0) -> None:
        async with self._grown:
            for raw in raws:
                last = self.records[-1][0] if self.records else -1
                self.records.append((last + 1 + hole, raw))
            self._grown.notify_all()

    async def last_offset(self, connection: Any) -> int:
        return self.records[-1][0] if self.records else -1

    async def at_or_after(self, offset: int) -> list[tuple[int, bytes]]:
        async with self._grown:
            while not (found := [one for one in self.records if one[0] >= offset]):
                await self._grown.wait()
        return found


class Followed:
    """Reads a stream as `tdn.bus.log.Follower` does."""

    def __init__(self, stream: Stream, offset: int) -> None:
        self._stream = stream
        self._offset = offset

    async def batch(self, most: int) -> list[tuple[int, bytes]]:
        # In small parts, so that what is recognised and what is new meet in the middle of one.
        found = (await self._stream.at_or_after(self._offset))[:3]
        self._offset = found[-1][0] + 1
        return found

    def arrived(self, most: int) -> list[tuple[int, bytes]]:
        return []

    async def close(self) -> None:
        pass


class Bus:
    """The log of `tdn.bus`, as far as a replica uses it, over the stream that it is connected to."""

    class Follower:
        @staticmethod
        async def open(connection: Stream, *, offset: int) -> Followed:
            return Followed(connection, offset)

    @staticmethod
    async def last_offset(connection: Stream) -> int:
        return await connection.last_offset(connection)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "log", Bus)
    monkeypatch.setattr(module, "_GONE_SECONDS", 0.05)


class Watched(Replica):
    """A replica that counts what it applied since it was opened."""

    def __init__(self, path: Path) -> None:
        self.applied: list[int] = []
        super().__init__(path, NET.id, self._note, linger_seconds=0.0)

    def _note(self, applied: Applied) -> None:
        self.applied += [record.seq for record, _ in applied]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@contextlib.asynccontextmanager
async def following(path: Path, stream: Stream) -> AsyncIterator[Watched]:
    replica = Watched(path)
    task = asyncio.create_task(replica.follow(stream))  # type: ignore[arg-type]  # the stream stands for the connection to it
    placed = asyncio.create_task(replica.placed.wait())
    try:
        await asyncio.wait([task, placed], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        if task.done():
            task.result()
        yield replica
        if task.done():
            task.result()
    finally:
        for one in (task, placed):
            one.cancel()
        await asyncio.gather(task, placed, return_exceptions=True)
        replica.close()


async def fill(path: Path, stream: Stream) -> str:
    """A store of all of a stream; gives its digest."""
    async with following(path, stream) as replica:
        assert replica.caught_up.is_set()
        assert replica.found == replica.position[0] == len(stream.records)
        return replica.digest()


async def goes_on(path: Path, stream: Stream, *raws: bytes) -> None:
    """Follow a stream that was cut to five records and goes on with these."""
    async with following(path, stream) as replica:
        assert replica.found == 5
        await stream.append(*raws)
        await replica.progress(within_seconds=0.2)


async def is_placed(path: Path, stream: Stream) -> None:
    async with following(path, stream):
        pass


def offsets(path: Path) -> list[int]:
    records = Records(path)
    found = [one.offset for one in records.after(0, 1000)]
    records.close()
    return found


async def until_caught_up(replica: Watched) -> None:
    await asyncio.wait_for(replica.caught_up.wait(), 10)


async def test_a_log_that_is_as_it_was(path: Path) -> None:
    stream = Stream(RECORDS)
    before = await fill(path, stream)
    async with following(path, stream) as replica:
        assert replica.caught_up.is_set()
        assert replica.applied == []
        assert replica.digest() == before
        await stream.append(REPEATED)
        await replica.reached(len(RECORDS) + 1, within_seconds=10)
        assert replica.applied == [len(RECORDS) + 1]


@pytest.mark.parametrize("hole", [0, 3])
async def test_a_log_that_lost_its_end_and_gets_it_back(path: Path, hole: int) -> None:
    """It is ahead until the last record is back, applies none of them again, and takes their new offsets; then it goes on."""
    stream = Stream(RECORDS)
    before = await fill(path, stream)
    stream.cut(5)
    async with following(path, stream) as replica:
        assert not replica.caught_up.is_set()
        assert (replica.found, replica.position[0], replica.lag) == (5, len(RECORDS), 0)
        await stream.append(*RECORDS[5:-1], hole=hole)
        await asyncio.sleep(0)
        assert not replica.caught_up.is_set()
        await stream.append(RECORDS[-1], REPEATED, hole=hole)
        await until_caught_up(replica)
        await replica.reached(len(RECORDS) + 1, within_seconds=10)
        assert replica.applied == [len(RECORDS) + 1]
    assert offsets(path) == [offset for offset, _ in stream.records]
    stream.cut(len(RECORDS))
    async with following(path, stream) as replica:
        assert replica.found == len(RECORDS)
    assert before


async def test_a_restart_in_the_middle_of_getting_it_back(path: Path) -> None:
    stream = Stream(RECORDS)
    await fill(path, stream)
    stream.cut(4)
    await stream.append(RECORDS[4], hole=5)
    async with following(path, stream) as replica:
        assert replica.found == 5
    await stream.append(*RECORDS[5:], hole=1)
    async with following(path, stream) as replica:
        await until_caught_up(replica)
        assert replica.applied == []
    assert offsets(path) == [offset for offset, _ in stream.records]


@pytest.mark.parametrize(("first", "step"), [(0, 1), (100, 1), (0, 6)])
async def test_a_log_that_was_made_anew(path: Path, first: int, step: int) -> None:
    """The same records at other offsets, lower or higher."""
    await fill(path, Stream(RECORDS, first=50, step=2))
    anew = Stream(RECORDS, first=first, step=step)
    async with following(path, anew) as replica:
        await until_caught_up(replica)
        assert replica.applied == []
        assert replica.lag == 0
    assert offsets(path) == [offset for offset, _ in anew.records]


async def test_a_log_that_is_gone(path: Path) -> None:
    before = await fill(path, Stream(RECORDS, first=50))
    empty = Stream([])
    async with following(path, empty) as replica:
        assert (replica.found, replica.position[0]) == (0, len(RECORDS))
        assert not replica.caught_up.is_set()
        await empty.append(*RECORDS)
        await until_caught_up(replica)
        assert replica.applied == []
        assert replica.digest() == before
    assert offsets(path) == list(range(len(RECORDS)))


async def test_a_log_whose_beginning_was_archived(path: Path) -> None:
    await fill(path, Stream(RECORDS))
    async with following(path, Stream(RECORDS[3:], first=1000)) as replica:
        await until_caught_up(replica)
        assert (replica.found, replica.applied) == (len(RECORDS), [])


async def test_records_that_are_there_twice_are_applied_twice(path: Path) -> None:
    """Two that put the same back one after the other: the second time they are new records, and judged as such, as every reader does."""
    stream = Stream(RECORDS)
    await fill(path, stream)
    stream.cut(6)
    await stream.append(*RECORDS[6:], *RECORDS[6:])
    async with following(path, stream) as replica:
        await replica.reached(len(stream.records), within_seconds=10)
        assert replica.applied == [*range(len(RECORDS) + 1, len(stream.records) + 1)]
        again = replica.digest()
    fresh = path.with_name("fresh.sqlite")
    assert await fill(fresh, stream) == again


@pytest.mark.parametrize("at", [4, len(RECORDS) - 1])
async def test_a_log_that_holds_something_else(path: Path, at: int) -> None:
    """T22: it says at which record, and how far its own store goes; nothing of the store is changed."""
    await fill(path, Stream(RECORDS))
    other = [*RECORDS[:at], REPEATED, *RECORDS[at:]]
    with pytest.raises(LogDiverged, match=rf"something else at record {at + 1} than this store, which has {len(RECORDS)}"):
        await is_placed(path, Stream(other))
    assert offsets(path) == list(range(len(RECORDS)))


async def test_others_who_go_on_while_it_waits(path: Path) -> None:
    stream = Stream(RECORDS)
    await fill(path, stream)
    stream.cut(5)
    with pytest.raises(LogDiverged, match="others went on without these records"):
        await goes_on(path, stream, REPEATED)


async def test_another_log(path: Path) -> None:
    await fill(path, Stream(RECORDS))
    with pytest.raises(LogDiverged, match="begins with a record that this store does not have"):
        await is_placed(path, Stream([REPEATED]))


async def test_a_store_that_does_not_keep_its_end(path: Path) -> None:
    """What it does not have it cannot compare."""
    stream = Stream(RECORDS)
    await fill(path, stream)
    replica = Watched(path)
    replica._view._db.execute("DELETE FROM records WHERE seq = 6")
    replica.close()
    stream.cut(5)
    with pytest.raises(LogDiverged, match="does not keep record 6"):
        await goes_on(path, stream, RECORDS[5])


async def test_reading_to_the_end_before_appending(path: Path) -> None:
    stream = Stream(RECORDS)
    async with following(path, stream) as replica:
        await stream.append(REPEATED)
        await replica.read_to_end(stream)  # type: ignore[arg-type]  # as above
        assert replica.found == len(RECORDS) + 1


async def test_a_broker_that_delivers_nothing_is_no_other_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow broker makes nobody give up its store."""
    stream = Stream(RECORDS)
    await fill(path, stream)
    monkeypatch.setattr(module, "_RESUME_SECONDS", 0.05)

    async def told_wrongly(connection: Any) -> int:
        return len(RECORDS)

    stream.cut(0)
    monkeypatch.setattr(stream, "last_offset", told_wrongly)
    with pytest.raises(BrokerUnavailable):
        await is_placed(path, stream)


async def test_a_reader_that_the_broker_has_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21, T22: it notices that the log goes on without it, and connects anew; one that is silent because nothing happens is left alone."""
    stream = Stream(RECORDS)
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(module, "_RESUME_SECONDS", 0.05)
    looked = asyncio.Semaphore(0)

    async def look(connection: Any) -> int:
        looked.release()
        return len(RECORDS) - 1

    async with following(path, stream) as replica:
        await until_caught_up(replica)
        monkeypatch.setattr(stream, "last_offset", look)
        for _ in range(3):
            await looked.acquire()
        await stream.append(REPEATED)
        await replica.reached(len(RECORDS) + 1, within_seconds=5)
        assert replica.found == len(RECORDS) + 1, "silence alone is no reason"

    async def further(connection: Any) -> int:
        return len(RECORDS) + 5

    monkeypatch.setattr(stream, "last_offset", Stream.last_offset.__get__(stream))
    with pytest.raises(BrokerUnavailable, match="does not deliver"):
        await _follows_until(path, stream, lambda: monkeypatch.setattr(stream, "last_offset", further))


async def _follows_until(path: Path, stream: Stream, then: Callable[[], None]) -> None:
    """Follow until something happens, and as long as it goes then."""
    async with following(path, stream) as replica:
        await until_caught_up(replica)
        then()
        await asyncio.sleep(1)


# --- logs and stores that have lost their beginning ---


def lose_beginning(path: Path, first: int) -> None:
    """What `tdn log trim` leaves of a store in which nothing before is referred to."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM records WHERE seq < ?", (first,))
        db.execute("UPDATE kept SET first = ?", (first,))


async def test_a_store_that_ends_before_the_log_begins(path: Path) -> None:
    """It says so and changes nothing, however the log came to begin there."""
    await fill(path, Stream(RECORDS[:5]))
    trimmed = Stream(RECORDS)
    del trimmed.records[:7]
    with pytest.raises(LogTrimmed, match=r"begins behind record 5.*start it from a snapshot"):
        await is_placed(path, trimmed)
    with pytest.raises(LogDiverged, match="put back from stores that had been trimmed"):
        await is_placed(path, Stream(RECORDS[7:]))
    assert len(offsets(path)) == 5


@pytest.mark.parametrize("first", [0, 7])
async def test_an_empty_store_and_a_log_without_its_beginning(path: Path, first: int) -> None:
    with pytest.raises(LogTrimmed, match="no longer has its beginning"):
        async with following(path, Stream(RECORDS[7:], first=first)) as replica:
            await replica.reached(1, within_seconds=2)
    assert offsets(path) == []


async def test_a_trimmed_log_goes_on(path: Path) -> None:
    stream = Stream(RECORDS)
    await fill(path, stream)
    lose_beginning(path, 8)
    del stream.records[:5]
    await stream.append(REPEATED)
    async with following(path, stream) as replica:
        await until_caught_up(replica)
        assert replica.applied == [len(RECORDS) + 1]


@pytest.mark.parametrize(("own", "log"), [(8, 1), (8, 6), (6, 8), (8, 8)])
async def test_a_log_made_anew_from_a_store_that_begins_elsewhere(path: Path, own: int, log: int) -> None:
    """From a whole store, from one that begins earlier or later: what this one has of it is recognised, nothing is applied again."""
    await fill(path, Stream(RECORDS, first=50))
    lose_beginning(path, own)
    anew = Stream(RECORDS[log - 1 :])
    async with following(path, anew) as replica:
        await until_caught_up(replica)
        assert replica.applied == []
        await anew.append(REPEATED)
        await replica.reached(len(RECORDS) + 1, within_seconds=10)


@pytest.mark.parametrize(("own", "log"), [(8, 6), (6, 8), (8, 1)])
async def test_an_empty_log_that_is_put_back_by_another(path: Path, own: int, log: int) -> None:
    """Where it begins is known only when it comes."""
    await fill(path, Stream(RECORDS))
    lose_beginning(path, own)
    stream = Stream([])
    async with following(path, stream) as replica:
        assert (replica.found, replica.position[0]) == (own - 1, len(RECORDS))
        assert not replica.caught_up.is_set()
        await stream.append(*RECORDS[log - 1 :])
        await until_caught_up(replica)
        assert replica.applied == []
