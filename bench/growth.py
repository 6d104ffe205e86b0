"""Whether the memory of a process grows steadily or only fills what is bounded: a straight line through the last half of a series, and what it cannot show.

A node and a guard keep pages of their store in memory, 64 MB at most (`tdn.store.view`), and facts, certificates and headers, by number. Until those are full,
memory grows with every record. So what a store has grown by is taken off, up to that bound, and growth is given for each quarter: what fills slows down, and a
leak does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Pages of its store that a process keeps in memory, in bytes.
STORE_CACHE_BYTES = 64 * 1024 * 1024
#: Facts and certificates are kept by number, and are all there after so many records, at four to five facts each; before that nothing can be said of a process with a store.
FILLED_AFTER_RECORDS = 6_000
#: Shorter than this, what the allocator does hides everything.
SHORTEST_SECONDS = 600.0
#: Growth that is none, in MB a minute: what comes and goes moves the line by as much.
NOTHING = 0.2
#: How many times its own uncertainty a slope must be.
SURE = 3.0


@dataclass(frozen=True, slots=True)
class Point:
    """A process, or several of one role together, at a moment."""

    seconds: float
    rss: int
    #: The last record that was applied, and the store's size; 0 where there is none.
    records: int = 0
    store: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """In MB; what is given by the minute is the slope of a line."""

    first: float
    half: float
    last: float
    quarters: tuple[float, ...]
    a_minute: float
    uncertain: float
    #: None where no records were applied.
    a_thousand_records: float | None
    #: Pages of the store, at most: of what the last half has grown by, a minute.
    pages: float
    verdict: str


def growth_of(points: Sequence[Point]) -> Growth:
    """What a series shows, of three points at least."""
    first, last = points[0], points[-1]
    span = last.seconds - first.seconds
    later = [point for point in points if point.seconds >= first.seconds + span / 2]
    slope, uncertain = _line(later)
    minutes = (last.seconds - later[0].seconds) / 60
    records = last.records - later[0].records
    pages = min(max(0, last.store - later[0].store), max(0, STORE_CACHE_BYTES - later[0].store)) / 1e6 / minutes if minutes else 0.0
    quarters = tuple(
        _line([point for point in points if begin <= (point.seconds - first.seconds) / span * 4 <= begin + 1])[0] for begin in range(4)
    )
    return Growth(
        first.rss / 1e6,
        later[0].rss / 1e6,
        last.rss / 1e6,
        quarters,
        slope,
        uncertain,
        slope * minutes / records * 1000 if records else None,
        pages,
        _verdict(span, slope, uncertain, pages, later[0]),
    )


def _verdict(span: float, slope: float, uncertain: float, pages: float, half: Point) -> str:
    if span < SHORTEST_SECONDS:
        return "too short to tell"
    rest = slope - pages
    if slope <= NOTHING or slope <= SURE * uncertain:
        return "stays"
    if half.store and half.records < FILLED_AFTER_RECORDS:
        return "still fills what is bounded"
    if rest <= NOTHING or rest <= SURE * uncertain:
        return "grows by no more than pages of its store"
    return f"GROWS by {rest:.2f} MB a minute, {rest * 60 * 24 / 1000:.1f} GB a day"


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """The slope in MB a minute, by least squares, and its standard error."""
    if len(points) < 3:
        return 0.0, float("inf")
    minutes, sizes = [point.seconds / 60 for point in points], [point.rss / 1e6 for point in points]
    slope, intercept = statistics.linear_regression(minutes, sizes)
    off = sum((size - intercept - slope * minute) ** 2 for minute, size in zip(minutes, sizes, strict=True))
    spread = sum((minute - statistics.fmean(minutes)) ** 2 for minute in minutes)
    return slope, (off / (len(points) - 2) / spread) ** 0.5
