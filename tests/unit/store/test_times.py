"""Time filters (T14): as Python means them and as the store selects by them; and as messages carry them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from little_network import LittleNetwork, read_uuid
from pki import T0
from sizes import examples

from tdn.errors import UsageError
from tdn.protocol import schemas
from tdn.protocol.access import Asker
from tdn.protocol.times import format_time
from tdn.queries.times import ANY_TIME, Times, read_times
from tdn.store.search import Reader, Search
from tdn.store.view import View

ASKER = Asker("bob", "local")
#: Seconds after T0 at which topics are created, and their lifetimes.
BIRTHS, LIVES = (0, 1, 2, 5, 6), (1, 2, 3, 60)

seconds = st.one_of(st.integers(-2, 70), st.sampled_from([0.5, 1.000001, 1.999999, 4.5, 65.25, -0.000001]))
moments = st.one_of(st.none(), seconds.map(lambda late: T0 + timedelta(seconds=late)))
durations = st.one_of(st.none(), st.sampled_from([1, 2, 3, 4, 59, 60, 61]))
filters = st.builds(
    Times,
    created_after=moments,
    created_before=moments,
    expires_after=moments,
    expires_before=moments,
    valid_at_least=durations,
    valid_at_most=durations,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Reader, dict[str, tuple[datetime, datetime]]]]:
    net = LittleNetwork("times")
    alice, times, records = net.entity("alice"), {}, net.opening()
    for born in BIRTHS:
        for life in LIVES:
            created, lifetime = T0 + timedelta(seconds=born), timedelta(seconds=life)
            token = net.mint(alice, at=created, lifetime=lifetime)
            times[read_uuid(token)] = (created, created + lifetime)
            records.append(net.record("advertise", net.advertise(alice, token, at=created), at=created))
    path = Path(tmp_path_factory.mktemp("times")) / "view.db"
    view = View(path)
    assert {outcome.status for _, outcome in view.apply_all(list(enumerate(records)))} == {"accepted"}
    view.close()
    with closing(Reader(path)) as reader:
        yield reader, times


@settings(max_examples=examples(200), derandomize=True)
@given(times=filters, now=st.sampled_from([-1, 0, 1.5, 2, 5, 7.999999]))
@example(times=Times(created_after=T0 + timedelta(seconds=0.5), created_before=T0 + timedelta(seconds=1.5)), now=0)
@example(times=Times(expires_after=T0 + timedelta(seconds=2.000001), expires_before=T0 + timedelta(seconds=3)), now=0)
@example(times=Times(created_after=T0, created_before=T0), now=0)
def test_the_store_selects_as_admit_says(store: Any, times: Times, now: float) -> None:
    """T14: also with fractions of seconds, where bounds meet, where they contradict each other, and together with the reader's clock."""
    reader, known = store
    moment = T0 + timedelta(seconds=now)
    expected = {uuid for uuid, (created, expires) in known.items() if times.admit(created, expires) and moment < expires}
    search = Search(ASKER, moment, None, times)
    assert {topic.uuid for topic in reader.discover(search, limit=100).topics} == expected
    assert reader.count(search) == len(expected)


@given(filters)
def test_as_messages_carry_them(times: Times) -> None:
    """Written and read again they are the same, and fit the schema."""
    written = times.as_object()
    assert read_times(written) == times
    schemas.check("discover", {"limit": 1, "times": written})
    assert len(written) == sum(
        bound is not None
        for bound in (
            times.created_after,
            times.created_before,
            times.expires_after,
            times.expires_before,
            times.valid_at_least,
            times.valid_at_most,
        )
    )


def test_no_bounds() -> None:
    assert ANY_TIME.as_object() == {}
    assert read_times({}) == ANY_TIME
    assert ANY_TIME.admit(T0, T0 + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("times", "admitted"),
    [
        (Times(created_after=T0), True),
        (Times(created_after=T0 + timedelta(microseconds=1)), False),
        (Times(created_before=T0), False),
        (Times(created_before=T0 + timedelta(microseconds=1)), True),
        (Times(expires_after=T0 + timedelta(seconds=60)), True),
        (Times(expires_after=T0 + timedelta(seconds=61)), False),
        (Times(expires_before=T0 + timedelta(seconds=60)), False),
        (Times(expires_before=T0 + timedelta(seconds=61)), True),
        (Times(valid_at_least=60), True),
        (Times(valid_at_least=61), False),
        (Times(valid_at_most=60), True),
        (Times(valid_at_most=59), False),
        (Times(created_after=T0, created_before=T0 + timedelta(days=1), valid_at_most=59), False),
    ],
)
def test_bounds(times: Times, admitted: bool) -> None:
    """T14: `after` includes its moment, `before` does not; durations include theirs; all of them together."""
    assert times.admit(T0, T0 + timedelta(seconds=60)) is admitted


def test_the_end_of_the_calendar(store: Any) -> None:
    """The last second that there is cannot be rounded up: said, not raised from the depths."""
    reader, _ = store
    last = datetime(9999, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)
    with pytest.raises(UsageError, match="beyond the calendar"):
        reader.discover(Search(ASKER, T0, None, Times(expires_after=last)), limit=1)
    assert reader.discover(Search(ASKER, T0, None, Times(expires_after=last.replace(microsecond=0))), limit=1).topics == ()
    assert format_time(last.replace(microsecond=0)) == "9999-12-31T23:59:59Z"
