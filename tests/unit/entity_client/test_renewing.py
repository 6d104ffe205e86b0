"""T20: when a grant can be renewed: in a later second than that in which it was signed, by whatever clock that was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork, fresh_uuid

from entity_client import grants
from entity_client.grants import Grants
from tdn.errors import Refused
from tdn.trust.grants import Terms

NET = LittleNetwork("renewing")
ALICE = NET.entity("alice")
SECOND = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Clock:
    """Ours. Whoever sleeps moves it on."""

    def __init__(self) -> None:
        self.time = SECOND + timedelta(milliseconds=300)
        self.slept: list[float] = []

    def now(self, zone: Any) -> datetime:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += timedelta(seconds=seconds)


class Played(Grants):
    """What is there was issued at a time; what is put to the network is only kept."""

    def __init__(self, issued: datetime) -> None:
        super().__init__(cast(Any, SimpleNamespace(identity=ALICE.identity)), cast(Any, SimpleNamespace(credentials=ALICE)))
        self._issued = issued
        self.put: list[datetime] = []

    async def get(self, grant: str) -> Any:
        terms = Terms("publish", fresh_uuid(), "*", SECOND, SECOND + timedelta(days=1), False, False)
        issuer = SimpleNamespace(name=ALICE.identity.name)
        return SimpleNamespace(
            grant=SimpleNamespace(issuer=issuer, issued=self._issued, terms=terms, grantee="*", parent=None),
            bundle=SimpleNamespace(advertisement=None),
            token="",
        )

    async def _put(self, terms: Terms, now: datetime, *rests_on: Any, **how: Any) -> Any:
        self.put.append(now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(grants, "datetime", clock)
    monkeypatch.setattr(grants, "asyncio", clock)
    return clock


@pytest.mark.parametrize("ahead", [0, 1, 4], ids=["the same second", "the next second", "a clock that is ahead"])
async def test_a_later_second_is_waited_for(clock: Clock, ahead: int) -> None:
    """The log refuses one that was signed in the same second, or before."""
    issued = SECOND + timedelta(seconds=ahead)
    played = Played(issued)
    await played.renew("a", timedelta(days=2))
    assert played.put == [issued + timedelta(seconds=1)]
    assert sum(clock.slept) < ahead + 1


async def test_one_of_before_is_renewed_at_once(clock: Clock) -> None:
    played = Played(SECOND - timedelta(seconds=1))
    await played.renew("a", timedelta(days=2))
    assert (played.put, clock.slept) == ([SECOND], [])


async def test_nobody_waits_for_a_clock_that_is_wrong(clock: Clock) -> None:
    """It is said what to do."""
    played = Played(SECOND + timedelta(hours=1))
    with pytest.raises(Refused, match=r"signed at 2026-03-01T13:00:00.*set the clock right"):
        await played.renew("a", timedelta(days=2))
    assert (played.put, clock.slept) == ([], [])
