"""How a node leaves its connection: in order when it stops, at once when it has lost it."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tdn.node.intake import Intake


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
