"""A node that signs what no node should cannot stop the others: what it signed is in the log and the facts, and is not searched."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from little_network import DAY, HOUR, LittleNetwork, fresh_uuid
from pki import T0
from store_index import check_sound, contents

from tdn.errors import MalformedMessage
from tdn.protocol import descriptor as descriptors
from tdn.protocol import schemas
from tdn.protocol.access import Asker
from tdn.queries.compile import compile_query
from tdn.store.search import Reader, Search
from tdn.store.topics import EVERYTHING, NOTHING, Stores
from tdn.store.view import View

NET = LittleNetwork("unreadable")
ALICE = NET.entity("alice")
BOB = Asker("bob", "local")
#: Each fits the schema, and each is one that `descriptors.check` refuses when a topic is minted.
UNREADABLE: dict[str, dict[str, Any]] = {
    "a property without a type": {"kind": "properties", "properties": {"a": "snow"}, "types": {"b": "string"}},
    "a timestamp that is none": {"kind": "properties", "properties": {"a": "snow"}, "types": {"a": "timestamp"}},
    "a timestamp that is a number": {"kind": "properties", "properties": {"a": 5}, "types": {"a": "timestamp"}},
    "a boolean that is a text": {"kind": "properties", "properties": {"a": "snow"}, "types": {"a": "boolean"}},
    "XML that is not closed": {"kind": "xml", "xml": "<snow>"},
    "XML that is none": {"kind": "xml", "xml": "snow & ice"},
    "a DOCTYPE": {"kind": "xml", "xml": "<!DOCTYPE a [<!ENTITY b 'snow'>]><a>&b;</a>"},
    "XML of another version": {"kind": "xml", "xml": "<?xml version='1.1'?><snow/>"},
}
TABLES = ("topics", "listed", "property_values", "topic_text")


def mint_unchecked(descriptor: dict[str, Any], **choices: Any) -> bytes:
    """As a node mints that leaves the check out: taken over, or of another build. Signed and valid in every other way."""
    schemas.check("descriptor", descriptor)
    with pytest.raises(MalformedMessage):
        descriptors.check(descriptor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptors, "check", lambda descriptor: None)
        return NET.mint(ALICE, descriptor=descriptor, **choices)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    view = View(tmp_path / "view.db")
    view.apply_all(list(enumerate(NET.opening())), durable=False)
    yield view
    view.close()


def apply(view: View, *records: bytes) -> None:
    """All at once, each accepted."""
    decided = view.apply_all(list(enumerate(records, view.position.offset + 1)), durable=False)
    assert [outcome.status for _, outcome in decided] == ["accepted"] * len(records)


def advertise(view: View, descriptor: dict[str, Any], **choices: Any) -> tuple[str, str]:
    """The unreadable topic, and a good one that follows it in the same batch."""
    bad, good = fresh_uuid(), fresh_uuid()
    choices = {"lists": {"discover_deny": ["zoe"]}, **choices}
    apply(
        view,
        NET.record("advertise", NET.advertise(ALICE, mint_unchecked(descriptor, uuid=bad, **choices))),
        NET.record("advertise", NET.advertise(ALICE, NET.mint(ALICE, uuid=good, lifetime=DAY))),
    )
    return bad, good


def state(view: View, uuid: str) -> str:
    fact = view.get("topic", uuid)
    assert fact is not None
    return str(fact["state"])


def found(path: Path, **choices: Any) -> list[str]:
    with closing(Reader(path)) as reader:
        return [topic.uuid for topic in reader.discover(Search(BOB, T0, **choices), limit=10).topics]


@pytest.mark.parametrize("descriptor", UNREADABLE.values(), ids=UNREADABLE)
def test_it_is_in_the_facts_and_not_in_the_table(
    view: View, descriptor: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """T2, T16: applied like any other, logged as an error, found by nobody; what comes after it is there."""
    caplog.set_level(logging.ERROR)
    bad, good = advertise(view, descriptor)
    assert state(view, bad) == state(view, good) == "live"
    assert [row[1] for row in contents(view.path)["topics"]] == [good]
    assert contents(view.path)["listed"] == []
    assert [record.message for record in caplog.records if bad in record.message]
    assert found(view.path) == [good]
    assert found(view.path, query=compile_query("string", "snow")) == []
    assert found(view.path, query=compile_query("string", "weather")) == [good]
    with closing(Reader(view.path)) as reader:
        assert reader.topic(bad, BOB, T0) is None
        assert reader.topic(bad, Asker("alice", "local"), T0) is None
        assert reader.count_live(T0) == 1
    check_sound(view.path)


@pytest.mark.parametrize("descriptor", UNREADABLE.values(), ids=UNREADABLE)
def test_it_can_be_renewed_and_withdrawn(view: View, descriptor: dict[str, Any]) -> None:
    """T39: its owner still owns it."""
    bad, good = advertise(view, descriptor)
    apply(view, NET.record("renew", NET.renew(ALICE, bad, DAY)))
    fact = view.get("topic", bad)
    assert fact is not None
    assert fact["expires"] == "2027-01-02T00:00:00Z"
    apply(view, NET.record("withdraw", NET.withdraw(ALICE, bad)), NET.record("withdraw", NET.withdraw(ALICE, good)))
    assert state(view, bad) == state(view, good) == "withdrawn"
    assert {table: contents(view.path)[table] for table in TABLES} == {table: [] for table in TABLES}
    check_sound(view.path)


@pytest.mark.parametrize("descriptor", UNREADABLE.values(), ids=UNREADABLE)
def test_it_expires(view: View, descriptor: dict[str, Any]) -> None:
    """T39: log time ends it, and leaves the good one alone."""
    bad, good = advertise(view, descriptor, lifetime=HOUR)
    apply(view, *(NET.record("tick", by=node, at=T0 + 2 * HOUR) for node in NET.node_ids))
    assert state(view, bad) == "expired"
    assert state(view, good) == "live"
    assert [row[1] for row in contents(view.path)["topics"]] == [good]


def test_a_table_that_is_made_anew_leaves_them_out(view: View) -> None:
    """T11: a node that changes its policy, or had stored nothing, starts as well; the state is the same whatever is stored."""
    good = {advertise(view, descriptor)[1] for descriptor in UNREADABLE.values()}
    before, digest = contents(view.path), view.digest()
    assert {row[1] for row in before["topics"]} == good
    view.close()
    for stores, expected in ((NOTHING, set()), (Stores(lambda payload: True, "another policy"), good), (EVERYTHING, good)):
        again = View(view.path, stores)
        assert {row[1] for row in contents(view.path)["topics"]} == expected
        assert again.digest() == digest
        again.close()
    assert contents(view.path) == before
    check_sound(view.path)
