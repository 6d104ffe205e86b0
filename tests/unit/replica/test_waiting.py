"""A replica lets records gather while nobody waits, and syncs only for what somebody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

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
