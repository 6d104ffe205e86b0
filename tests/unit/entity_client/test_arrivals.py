"""Topics of several nodes become one stream in the order of answers, and a node that hangs stops nobody."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from entity_client.discovery import Arrivals


def topic(place: str) -> Any:
    return cast(Any, SimpleNamespace(place=place))


async def rest(arrivals: Arrivals) -> list[str]:
    async with asyncio.timeout(10):
        return [found.place async for found in arrivals]


async def test_several_sources_are_merged_in_order() -> None:
    """T16: the quick node's later topics do not come before the slow one's earlier ones."""
    arrivals = Arrivals()
    for source in ("", "n1", "n2"):
        arrivals.begin(source)

    async def answer(source: str, places: str, turns: int) -> None:
        for place in places:
            for _ in range(turns):
                await asyncio.sleep(0)
            arrivals.add(source, topic(place))
        arrivals.end(source)

    reading = asyncio.create_task(rest(arrivals))
    await asyncio.gather(answer("n1", "cefh", 1), answer("n2", "abdgi", 7), answer("", "", 1))
    assert await reading == list("abcdefghi")


async def test_what_is_first_is_shown_before_all_has_come() -> None:
    """T15: as soon as every source has given something."""
    arrivals = Arrivals()
    for source in ("n1", "n2"):
        arrivals.begin(source)
        arrivals.add(source, topic(source))
    reading = aiter(arrivals)
    assert (await anext(reading)).place == "n1"
    arrivals.end("n1")
    assert (await anext(reading)).place == "n2"


async def test_a_source_that_hangs_is_not_waited_for() -> None:
    """T15: what others gave is shown after a moment, and what they give from then on at once; it may still come back."""
    arrivals = Arrivals()
    for source in ("hangs", "n1"):
        arrivals.begin(source)
    arrivals.add("n1", topic("b"))
    reading = aiter(arrivals)
    assert (await anext(reading)).place == "b"
    arrivals.add("n1", topic("d"))
    assert (await asyncio.wait_for(anext(reading), 0.2)).place == "d"
    arrivals.add("hangs", topic("a"))
    assert (await anext(reading)).place == "a"
    arrivals.add("n1", topic("e"))
    arrivals.end("n1")
    arrivals.end("hangs")
    assert [found.place async for found in reading] == ["e"]


async def test_nothing_at_all() -> None:
    arrivals = Arrivals()
    arrivals.begin("n1")
    reading = asyncio.create_task(rest(arrivals))
    await asyncio.sleep(0)
    arrivals.end("n1")
    assert await reading == []
