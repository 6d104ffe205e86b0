"""Reading a view: what is live now, in the order (created, uuid), in pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_network import HOUR, MINUTE, SECOND, LittleNetwork, payload_of, read_uuid
from pki import T0

from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import Asker
from tdn.queries.string import compile_string
from tdn.store.search import FoundTopic, Page, Reader, Search
from tdn.store.view import View
from tdn.trust import openings

NET = LittleNetwork("search")
BEGIN = ("", "")
BOB = Asker("bob", "local")
ALICE = Asker("alice", "local")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Twelve topics, created in pairs a minute apart; every third is about snow, one was withdrawn, one renewed."""
    path = Path(tmp_path_factory.mktemp("search")) / "view.db"
    view = View(path)
    alice = NET.entity("alice")
    records = NET.opening()
    uuids = []
    for number in range(12):
        created = T0 + (number // 2) * MINUTE
        word = "SNOW" if number % 3 == 0 else "rain"
        token = NET.mint(alice, at=created, lifetime=HOUR, descriptor=descriptors.path(f"weather/{word}/{number}"))
        uuids.append(read_uuid(token))
        records.append(NET.record("advertise", NET.advertise(alice, token, at=created), at=created))
    records.append(NET.record("withdraw", NET.withdraw(alice, uuids[4])))
    records.append(NET.record("renew", NET.renew(alice, uuids[7], 5 * HOUR)))
    view.apply_all(list(enumerate(records)))
    view.close()
    reader = Reader(path)
    yield reader
    reader.close()


def pages(reader: Reader, query: str | None, limit: int, now: timedelta = timedelta(0)) -> list[FoundTopic]:
    compiled = compile_string(query) if query is not None else None
    found: list[FoundTopic] = []
    after: tuple[str, str] | None = BEGIN
    while after is not None:
        page: Page = reader.discover(Search(BOB, T0 + now, compiled), after=after, limit=limit)
        assert len(page.topics) <= limit
        found += page.topics
        after = page.after
    return found


def test_everything_live_in_order(reader: Reader) -> None:
    """T16: ordered by (created, uuid); what was withdrawn is not there."""
    found = pages(reader, None, 100)
    assert len(found) == 11
    assert [(topic.created, topic.uuid) for topic in found] == sorted((topic.created, topic.uuid) for topic in found)


@given(st.integers(1, 14), st.sampled_from([None, "snow", "weather rain", "nothing"]))
def test_pages_give_everything_once(reader: Reader, limit: int, query: str | None) -> None:
    """T16: any page size gives the same topics, none twice, none left out."""
    assert pages(reader, query, limit) == pages(reader, query, 1000)


def test_no_empty_page_follows_a_full_one(reader: Reader) -> None:
    page = reader.discover(Search(BOB, T0), after=BEGIN, limit=11)
    assert len(page.topics) == 11
    assert page.after is None


def test_string_query(reader: Reader) -> None:
    """T13: case does not matter; every word must be there."""
    assert len(pages(reader, "snow", 100)) == 4
    assert len(pages(reader, "WEATHER Snow", 100)) == 4
    assert pages(reader, "snow rain", 100) == []


def test_ended_by_the_readers_clock(reader: Reader) -> None:
    """Log time has not moved; what has expired by the reader's clock is not shown, what was renewed is."""
    at_the_hour = pages(reader, None, 100, HOUR)
    assert {topic.created for topic in at_the_hour} == {f"2027-01-01T00:0{n}:00Z" for n in (1, 2, 3, 4, 5)}
    late = pages(reader, None, 100, 2 * HOUR)
    assert len(late) == 1
    assert late[0].changed
    assert reader.count_live(T0) == 11
    assert reader.count_live(T0 + 2 * HOUR) == 1
    assert reader.topic(late[0].uuid, BOB, T0 + 5 * HOUR - SECOND) is not None
    assert reader.topic(late[0].uuid, BOB, T0 + 5 * HOUR) is None


def test_absent(reader: Reader) -> None:
    assert reader.topic("00000000-0000-4000-8000-000000000000", BOB, T0) is None


def test_the_owner_alone_is_told_what_is_hidden(reader: Reader) -> None:
    """T18: the opening goes to the topic's owner, in answers and by UUID; to nobody else, and never to one without an id."""
    for asker in (ALICE, BOB, Asker(None, "local")):
        found = reader.discover(Search(asker, T0), limit=100).topics
        shown = [reader.topic(topic.uuid, asker, T0) for topic in found]
        assert len(found) == 11
        for topic in (*found, *shown):
            assert topic is not None
            assert (topic.opening is not None) == (asker == ALICE)
            if topic.opening is not None:
                openings.read(topic.opening, str(payload_of(topic.advertisement)["hidden"]))


def test_reader_cannot_write(reader: Reader) -> None:
    import sqlite3

    with pytest.raises(sqlite3.OperationalError):
        reader._db.execute("DELETE FROM facts")
