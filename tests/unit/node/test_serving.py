"""What ends a node's serving over one connection: whatever it would go on without as if all were well. Everything that it serves with is played."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from little_network import LittleNetwork

from tdn.errors import BrokerUnavailable
from tdn.node import service
from tdn.node.service import Condition, Node
from tests.live import until


def never() -> Any:
    return asyncio.get_running_loop().create_future()


def reached() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize("what", ["connection", "intake", "comparing"])
async def test_what_ends_it(net: LittleNetwork, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """T22: a node whose connection or consumers are gone connects anew; also one that hears no other nodes any more, whom a newcomer would ask in vain."""
    ends = {name: never() for name in ("connection", "intake", "comparing")}
    connection, intake, comparing = AsyncMock(), AsyncMock(), AsyncMock()
    connection.closed, intake.broken, comparing.broken = ends["connection"], ends["intake"], ends["comparing"]
    monkeypatch.setattr(service.Connection, "open", AsyncMock(return_value=connection))
    monkeypatch.setattr(service, "topology", AsyncMock())
    monkeypatch.setattr(service, "Comparing", SimpleNamespace(open=AsyncMock(return_value=comparing)))
    monkeypatch.setattr(service, "Appender", AsyncMock())
    monkeypatch.setattr(service, "Changes", lambda *_, **__: AsyncMock())
    monkeypatch.setattr(service, "Intake", lambda *_: intake)
    node: Any = Node.__new__(Node)
    node.id, node.network, node.condition, node._credentials = "n1", net.id, Condition(), net.node("n1")
    node._settings = SimpleNamespace(
        brokers=["b1"], vhost="tdn", limits=SimpleNamespace(wait_for_others_seconds=1.0), tick_seconds=60.0
    )
    async def follow(_: object) -> None:
        await asyncio.sleep(60)

    node.replica = SimpleNamespace(follow=follow, placed=reached(), caught_up=reached(), position=(1, ""))
    node.observed, node._post, node._clock = MagicMock(), None, None
    node._guards, node._telling, node._enter = AsyncMock(), SimpleNamespace(channel=None), AsyncMock()
    node._checkpointing = SimpleNamespace(state=lambda _: asyncio.sleep(60))

    serving = asyncio.create_task(node._serve_once(asyncio.Event()))
    await until(lambda: node.condition.ready or serving.done(), "it to serve")
    assert node.condition.ready, serving
    error = BrokerUnavailable("gone")
    if what == "connection":
        ends[what].set_result(error)
    else:
        ends[what].set_exception(error)
    with pytest.raises(BrokerUnavailable, match="gone"):
        await asyncio.wait_for(serving, 2)
    intake.close.assert_awaited_once()
    connection.close.assert_awaited_once()
