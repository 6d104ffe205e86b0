"""What a series of memory shows: growth that goes on is told from what fills up, and from what comes and goes."""

from __future__ import annotations

from random import Random

import pytest

from bench.growth import STORE_CACHE_BYTES, Point, growth_of

MB = 1_000_000


def series(a_minute: float, *, minutes: float = 15, store: int = 0, stored: float = 0.0, records: float = 0.0, fills: float = 0.0) -> list[Point]:
    """Every two seconds, with noise; `fills` MB that are there after some minutes."""
    dice = Random(1)
    return [
        Point(
            float(at),
            int((100 + a_minute * at / 60 + min(fills, fills * at / 240) + dice.gauss(0, 0.3)) * MB),
            int(10_000 + records * at / 60) if records else 0,
            int(store + stored * MB * at / 60) if store else 0,
        )
        for at in range(0, int(minutes * 60), 2)
    ]


def test_what_goes_on() -> None:
    found = growth_of(series(0.5, records=600.0))
    assert found.verdict.startswith("GROWS by 0.")
    assert found.a_minute == pytest.approx(0.5, abs=0.1)
    assert found.a_thousand_records == pytest.approx(0.5 / 0.6, abs=0.2)


@pytest.mark.parametrize("points", [series(0.0), series(0.0, fills=60.0), series(-1.0), series(0.05)], ids=["nothing", "fills", "less", "slowly"])
def test_what_stays(points: list[Point]) -> None:
    assert growth_of(points).verdict == "stays"


def test_pages_of_a_store() -> None:
    """As much as the store grows, while there is room for pages; what comes on top, and what comes when there is none, is growth."""
    small, large = 10 * MB, STORE_CACHE_BYTES + MB
    assert growth_of(series(3.0, store=small, stored=3.0, records=600.0)).verdict == "grows by no more than pages of its store"
    assert growth_of(series(4.0, store=small, stored=3.0, records=600.0)).verdict.startswith(("GROWS by 0.9", "GROWS by 1.0"))
    assert growth_of(series(3.0, store=large, stored=3.0, records=600.0)).verdict.startswith(("GROWS by 2.9", "GROWS by 3.0"))


def test_too_early() -> None:
    assert growth_of(series(5.0, minutes=5)).verdict == "too short to tell"
    new = [Point(point.seconds, point.rss, point.records - 10_000, 1 * MB) for point in series(5.0, records=60.0)]
    assert growth_of(new).verdict == "still fills what is bounded"
