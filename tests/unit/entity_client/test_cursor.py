"""Going on with a discovery misses nothing, also when one of the nodes lags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from entity_client.discovery import Discovery, Wanted


def discovery(cursor: str | None = None) -> Discovery:
    client = cast(Any, SimpleNamespace(seen=0))
    return Discovery(client, cast(Any, None), wanted=Wanted(), nodes=frozenset(), limit=2, cursor=cursor)


def test_the_earliest_end_counts() -> None:
    found = discovery()
    found._note_cursor("2026-01-02_b")
    found._note_cursor("2026-01-01_a")
    found._note_cursor(None)
    assert found.cursor == "2026-01-01_a"


def test_what_was_left_out_comes_again() -> None:
    """A lagging node gave t1 and t3, another t1 and t2; t2 was one too many, so the next page begins after t1."""
    found = discovery()
    found._note_cursor("2026-01-03_t3")
    found._note_cursor("2026-01-02_t2")
    found._mind({"2026-01-02_t2"}, ["2026-01-01_t1", "2026-01-03_t3"])
    assert found.cursor == "2026-01-01_t1"


def test_nothing_before_it_means_the_page_begins_where_this_one_did() -> None:
    found = discovery(cursor="2026-01-01_t0")
    found._mind({"2026-01-02_t2"}, ["2026-01-03_t3"])
    assert found.cursor == "2026-01-01_t0"


def test_nothing_left_out_changes_nothing() -> None:
    found = discovery()
    found._mind(set(), ["2026-01-03_t3"])
    assert found.cursor is None
