"""The policy by which the log is trimmed, as guards watch over it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tdn.errors import BrokerUnavailable
from tdn.guard import trim_policy
from tdn.guard.management import Management


class Broker:
    """The management API of a broker: what a guard sees at each look, and what was removed."""

    def __init__(self, looks: list[bool | None]) -> None:
        self.looks = looks
        self.removed = 0
        self.asked = asyncio.Event()

    async def has_policy(self, name: str) -> bool:
        assert name == trim_policy.POLICY
        if not self.looks:
            self.asked.set()
            await asyncio.Event().wait()
        found = self.looks.pop(0)
        if found is None:
            raise BrokerUnavailable("away")
        return found

    async def delete_policy(self, name: str) -> bool:
        assert name == trim_policy.POLICY
        self.removed += 1
        return True


@pytest.mark.parametrize(
    ("looks", "removed"),
    [
        ([False, False], 0),
        ([True], 1),
        ([False, True, False], 1),
        ([None, None, True, None], 1),
        ([True, True], 2),
    ],
)
async def test_what_stays_is_removed_at_the_next_look(looks: list[bool | None], removed: int) -> None:
    broker = Broker(looks)
    watching = asyncio.create_task(trim_policy.watch(cast(Management, broker), look_seconds=0))
    await broker.asked.wait()
    watching.cancel()
    assert broker.removed == removed


async def test_one_that_a_trim_removed_itself_is_no_matter() -> None:
    class Gone(Broker):
        async def delete_policy(self, name: str) -> bool:
            await super().delete_policy(name)
            return False

    broker = Gone([True, False, False])
    watching = asyncio.create_task(trim_policy.watch(cast(Management, broker), look_seconds=0))
    await broker.asked.wait()
    watching.cancel()
    assert broker.removed == 1, "asked once, and then seen to be gone"


def test_a_trim_is_over_before_a_guard_looks_twice() -> None:
    assert trim_policy.LOOK_SECONDS > trim_policy.DROP_SECONDS
