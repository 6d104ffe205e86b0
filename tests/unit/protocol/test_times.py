"""Times and durations: what people write and what is printed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import UsageError
from tdn.protocol.times import (
    describe_duration,
    format_time,
    from_epoch,
    parse_duration,
    parse_time,
    whole_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000), ("3650d", 315360000), ("0001s", 1)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0s",
        "0d",
        "3651d",
        "999999999d",
        "1",
        "s",
        "1.5h",
        "-1s",
        "+1s",
        "1w",
        "1 h",
        " 1h",
        "1h ",
        "1h\n",
        "1H",
        "1h30m",
        "१s",
    ],
)
def test_durations_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00Z"),
        ("2027-01-31t12:00:00z", "2027-01-31T12:00:00Z"),
        ("2027-01-31T12:00:00+02:00", "2027-01-31T10:00:00Z"),
        ("2027-01-31T12:00:00-00:00", "2027-01-31T12:00:00Z"),
        ("2027-01-31T12:00:00.5Z", "2027-01-31T12:00:00.500Z"),
        ("2027-01-31T12:00:00.000100Z", "2027-01-31T12:00:00.000100Z"),
        ("2027-01-31T12:00:00.000Z", "2027-01-31T12:00:00Z"),
        ("0999-01-01T00:00:00Z", "0999-01-01T00:00:00Z"),
    ],
)
def test_times(text: str, printed: str) -> None:
    assert format_time(parse_time(text)) == printed
    assert parse_time(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2027-01-31",
        "2027-01-31T12:00:00",
        "2027-01-31 12:00:00Z",
        "2027-01-31T12:00Z",
        "2027-02-30T12:00:00Z",
        "2027-01-31T24:00:00Z",
        "2027-01-31T12:00:60Z",
        "2027-01-31T12:00:00Z\n",
        "2027-01-31T12:00:00+25:00",
        "20270131T120000Z",
        "2027-W04-7T12:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "２０２７-01-31T12:00:00Z",
    ],
)
def test_times_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time(text)


@given(st.datetimes(timezones=st.just(UTC)))
def test_round_trip(moment: datetime) -> None:
    assert parse_time(format_time(moment)) == moment


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_order_as_text_is_order_in_time(one: datetime, two: datetime) -> None:
    """The log's ends and the store's columns rely on it: of whole seconds, the earlier is the smaller text."""
    one, two = whole_seconds(one), whole_seconds(two)
    assert (format_time(one) < format_time(two)) == (one < two)


def test_other_zones_become_utc() -> None:
    moment = datetime(2027, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2027-01-01T00:00:00Z"
    assert whole_seconds(moment).tzinfo is UTC
    assert from_epoch(0) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-5, "0s"), (59, "59s"), (60, "1m"), (3661, "1h 1m"), (86400 * 2 + 3600, "2d 1h"), (86400 * 2 + 5, "2d 5s")],
)
def test_describe(seconds: int, text: str) -> None:
    assert describe_duration(timedelta(seconds=seconds)) == text
