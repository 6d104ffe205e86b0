"""How a node leaves its connection: in order when it stops, at once when it has lost it. And what it does with a message that it cannot judge."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tdn.errors import TrustError
from tdn.node import intake as module
from tdn.node.changes import ClockBehind
from tdn.node.intake import Intake
from tdn.protocol.names import Name, Role
from tests.live import until


class Replies:
    """What a first contact, or somebody who cannot be named, is answered with: closing takes as long as the other takes too."""

    def __init__(self, both: asyncio.Barrier) -> None:
        self._both = both
        self.in_order: bool | None = None

    async def close(self, *, in_order: bool) -> None:
        self.in_order = in_order
        await self._both.wait()


@pytest.mark.parametrize("drained", [True, False])
async def test_leaving(drained: bool) -> None:
    """T22: a node that has lost its connections waits for no goodbye, and whatever it waits for, it waits for at the same time."""
    intake: Any = Intake.__new__(Intake)
    both = asyncio.Barrier(2)
    intake._tasks, intake._tags, intake._traffic, intake._open = set(), [], AsyncMock(), True
    intake._welcomes, intake._strangers = Replies(both), Replies(both)
    if drained:
        await intake.drain()
    await asyncio.wait_for(intake.close(), 2)
    assert (intake._welcomes.in_order, intake._strangers.in_order) == (drained, drained)


class Behind:
    """A node by whose clock all that it gets is of the future, and by another node's is not; what it says to the broker and to the sender."""

    def __init__(self) -> None:
        signer = SimpleNamespace(name=Name(Role.ENTITY, "alice", "0" * 64))
        request: Any = SimpleNamespace(kind="register", id="r", signer=signer, reply="s")
        intake: Any = Intake.__new__(Intake)
        intake._work = SimpleNamespace(admit=AsyncMock(return_value=request), decide=self._decide)
        answering = SimpleNamespace(read=AsyncMock(return_value=(request, True)), reply=lambda request, answer, with_chain: answer)
        intake._post = SimpleNamespace(answering=answering, counts=Counter(), clock=lambda: None)
        intake._held = 0
        sent: list[Any] = []
        intake._answers = SimpleNamespace(publish=lambda exchange, queue, answer, correlation: sent.append(answer.body))
        self.intake, self.sent = intake, sent
        self.put_back: list[int] = []
        self.taken_off: list[int] = []
        self.channel: Any = SimpleNamespace(
            closed=asyncio.get_running_loop().create_future(), nack=self.put_back.append, ack=self.taken_off.append
        )

    async def _decide(self, request: Any) -> None:
        raise ClockBehind("another node's clock says otherwise") from TrustError("dated in the future")

    async def takes(self, queue: str, tag: int = 1) -> None:
        delivery: Any = SimpleNamespace(tag=tag, body=b"", headers={}, reply_to=None)
        await self.intake._finish(self.channel, delivery, getattr(self.intake, queue))


async def test_a_change_is_put_back_for_nodes_whose_clock_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: after a moment, or it would be taken here again before another node has a hand free; but no more than some are held."""
    monkeypatch.setattr(module, "_MOST_HELD", 2)
    monkeypatch.setattr(module, "_HOLD_SECONDS", 3600.0)
    node = Behind()
    taking = [asyncio.create_task(node.takes("_change", tag)) for tag in (1, 2, 3)]
    await until(lambda: node.put_back, "one to be put back")
    assert node.put_back == [3]
    for task in taking[:2]:
        task.cancel()
    await asyncio.gather(*taking, return_exceptions=True)
    monkeypatch.setattr(module, "_HOLD_SECONDS", 0.0)
    await asyncio.gather(*(node.takes("_change", tag) for tag in (4, 5)))
    assert node.put_back == [3, 4, 5]
    assert (node.sent, node.taken_off) == ([], [])


@pytest.mark.parametrize("queue", ["_dead", "_question"])
async def test_what_goes_to_no_other_node_is_answered(queue: str) -> None:
    """T22: a change that was put back too often, and one that was sealed to this node: it would come again at once and for ever, or be dropped without a word."""
    node = Behind()
    await node.takes(queue)
    assert [body["message"] for body in node.sent] == ["dated in the future"]
    assert (node.put_back, node.taken_off) == ([], [1])
