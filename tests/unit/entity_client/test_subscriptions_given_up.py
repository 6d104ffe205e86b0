"""T20, T22: what a subscription leaves behind that does not come about. Broker and nodes are played."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork, fresh_uuid

from entity_client.messaging import Subscription
from tdn.errors import BrokerUnavailable, TdnError

NET = LittleNetwork("subscribing")
TOPIC = fresh_uuid()


class Played:
    """A client, its session, the broker and its channels in one. What is asked for last, the messages, `fails` or never begins."""

    identity = NET.entity("alice").identity
    timeout = 5.0
    seen = 0

    def __init__(self, fails: TdnError | None) -> None:
        self._fails = fails
        self.closed: asyncio.Future[TdnError] = asyncio.get_running_loop().create_future()
        self.consuming = asyncio.Event()
        self.abandoned = 0

    async def ask_pages(self, kind: str, body: Any) -> list[Any]:
        return [SimpleNamespace(kind="ready", body={"queue": "0" * 32})]

    async def line(self, timeout: float) -> Any:
        return self

    async def channel(self, *, prefetch: int) -> Any:
        return self

    def on_cancelled(self, told: Any) -> None: ...

    async def consume(self, queue: str, on_delivery: Any) -> str:
        self.consuming.set()
        if self._fails is not None:
            raise self._fails
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def abandon(self) -> None:
        self.abandoned += 1


async def test_who_waits_no_longer_leaves_no_channel() -> None:
    """The broker may have begun to give it messages, which nobody would read and nobody else would get."""
    played = Played(None)
    opening = asyncio.create_task(Subscription(cast(Any, played), cast(Any, played), TOPIC, children=False, depth=None, signed_only=False).__aenter__())
    await played.consuming.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert played.abandoned == 1


async def test_a_failure_leaves_no_channel() -> None:
    played = Played(BrokerUnavailable("gone"))
    with pytest.raises(BrokerUnavailable):
        await Subscription(cast(Any, played), cast(Any, played), TOPIC, children=False, depth=None, signed_only=False).__aenter__()
    assert played.abandoned == 1
