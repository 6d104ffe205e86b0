"""A replica lets records gather while nobody waits, and syncs only for what somebody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from little_network import LittleNetwork

from tdn.replica.replica import Replica

NET = LittleNetwork("waiting")


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = Replica(tmp_path / "store.sqlite", NET.id, linger_seconds=3600)
    yield replica
    replica.close()


async def test_who_waits_ends_the_gathering(replica: Replica) -> None:
    gathering = asyncio.create_task(replica._linger())
    await asyncio.sleep(0)
    assert not gathering.done()
    replica.expect(b"a record")
    await asyncio.wait_for(gathering, 5)


async def test_who_waited_before_does_not(replica: Replica) -> None:
    replica.expect(b"a record")
    replica.forget(b"a record")
    gathering = asyncio.create_task(replica._linger())
    await asyncio.sleep(0)
    assert not gathering.done()
    gathering.cancel()


async def test_only_a_batch_with_what_is_waited_for_is_synced(replica: Replica) -> None:
    genesis, *rest = list(enumerate(NET.opening()))
    decided = replica.expect(rest[-1][1])
    await replica._apply([genesis])
    assert not replica._view._durable
    await replica._apply(rest)
    assert replica._view._durable
    assert decided.result().status == "accepted"


async def test_what_is_committed_is_known_although_its_reader_was_stopped(replica: Replica) -> None:
    """A connection that is lost while a large batch is being applied ends the following, not the transaction."""
    records = list(enumerate(NET.opening()))
    assert len(records) > 4
    assert replica.reader.get("network", "network") is None
    begun, go_on = threading.Event(), threading.Event()
    apply_all = replica._view.apply_all

    def slowly(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        go_on.wait(10)
        return apply_all(*args, **kwargs)

    replica._view.apply_all = slowly  # type: ignore[method-assign]
    applying = asyncio.create_task(replica._apply(records))
    await asyncio.to_thread(begun.wait, 10)
    applying.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await applying
    assert replica.reader.get("network", "network") is not None
    assert replica.found == replica.position[0] == len(records)
