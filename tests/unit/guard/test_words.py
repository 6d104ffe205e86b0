"""T21: what a guard says of itself goes on whatever becomes of the words, and it vouches for nobody when the others cannot hear it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from tdn.guard import service
from tdn.guard.others import SILENT_BEATS
from tdn.guard.service import LEASE_SECONDS, Guard
from tests.live import until


class Played:
    """What a guard's beat uses of it: words that nobody confirms."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.said: list[float] = []
        self.cancelled = 0

    def _ended_lately(self) -> dict[str, object]:
        return {}

    async def _say(self, what: object) -> bool:
        self.said.append(time.monotonic())
        try:
            await asyncio.sleep(LEASE_SECONDS)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return False


async def test_words_go_on_while_none_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of several brokers hanging, nobody's word is confirmed; whoever waited for that would be taken for dead by the others."""
    monkeypatch.setattr(service, "BEAT_SECONDS", 0.02)
    played = Played()
    beating = asyncio.create_task(Guard._beat(cast(Any, played)))
    await until(lambda: len(played.said) >= SILENT_BEATS, "the guard to speak on")
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await asyncio.sleep(0)
    assert played.said[-1] - played.said[0] < LEASE_SECONDS
    assert played.cancelled == len(played.said), "what is under way ends with it"


@pytest.mark.parametrize(
    ("following", "said", "confirmed", "sure"),
    [(True, 0.0, 0.0, True), (True, LEASE_SECONDS, 0.0, False), (True, 0.0, LEASE_SECONDS, False), (False, 0.0, 0.0, False)],
    ids=["all is well", "no word got out", "nothing is confirmed", "the log is not read"],
)
def test_who_is_sure(following: bool, said: float, confirmed: float, sure: bool) -> None:
    guard = Guard.__new__(Guard)
    guard._following = following
    guard._said, guard._confirmed = time.monotonic() - said, time.monotonic() - confirmed
    assert guard.sure is sure
