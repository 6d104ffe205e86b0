"""A broker that has said why it takes nothing is there, however silent; pika's connection is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tdn.bus import connection as connections
from tdn.bus.connection import Connection


class Played:
    """What `Connection` uses of pika's connection, over which nothing is answered."""

    def __init__(self) -> None:
        self.said: dict[str, Callable[..., None]] = {}
        self.opened = 0

    def add_on_close_callback(self, told: Callable[..., None]) -> None:
        self.said["closed"] = told

    def add_on_connection_blocked_callback(self, told: Callable[..., None]) -> None:
        self.said["blocked"] = told

    def add_on_connection_unblocked_callback(self, told: Callable[..., None]) -> None:
        self.said["unblocked"] = told

    def channel(self, *, on_open_callback: Callable[..., None]) -> None:
        self.opened += 1


async def test_a_blocked_connection_is_not_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: a thousand clients that connect anew every few seconds are no help to a broker that is short of memory."""
    monkeypatch.setattr(connections, "_ALIVE_SECONDS", 0.05)
    raw = Played()
    connection = Connection(cast(Any, raw), "entity:alice")
    assert not await connection.answers()
    raw.said["blocked"](raw, "low on memory")
    assert await connection.answers()
    assert raw.opened == 1
    raw.said["unblocked"](raw, None)
    assert not await connection.answers()
    raw.said["blocked"](raw, "low on memory")
    raw.said["closed"](raw, OSError("gone"))
    assert not await connection.answers()
