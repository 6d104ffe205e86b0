"""The table of live topics and its indexes: nothing stays behind, other rules make it anew, and an earlier version's file becomes one."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_network import DAY, HOUR, LittleNetwork, fresh_uuid
from pki import T0
from population import ASKERS, Population, populate
from sizes import examples
from store_index import check_sound, contents, owners

from tdn.node.policy import Policy, read_policy
from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import Asker, Lists
from tdn.protocol.names import Role
from tdn.queries.compile import compile_query
from tdn.queries.model import fold, indexed_text, indexed_values
from tdn.store import schema
from tdn.store.search import Reader, Search
from tdn.store.topics import EVERYTHING, NOTHING, as_stored
from tdn.store.view import View

TABLES = ("topics", "listed", "sealed_for", "property_values", "topic_text")


@pytest.fixture(scope="module")
def population() -> Population:
    return populate("table", 70)


@pytest.fixture
def view(population: Population, tmp_path: Path) -> Iterator[View]:
    view = population.build(tmp_path / "view.db")
    yield view
    view.close()


def digest_of(lists: Lists) -> str:
    """By which topics that have the same lists share them: of their canonical text."""
    sides = {"discover_allow": lists.allow and list(lists.allow), "discover_deny": list(lists.deny)}
    text = json.dumps({side: names for side, names in sides.items() if names}, separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def expected_contents(population: Population, path: Path) -> dict[str, set[object]]:
    """What the indexes must hold, worked out from the descriptors."""
    with closing(sqlite3.connect(path)) as db:
        numbers = dict(db.execute("SELECT json_extract(value, '$.advertised'), key FROM facts WHERE space = 'topic'").fetchall())
    places = {uuid: number for number, uuid in numbers.items()}
    result: dict[str, set[object]] = {"listed": set(), "sealed_for": set(), "property_values": set(), "topic_text": set()}
    for known in population.topics:
        number, subject, access = places[known.uuid], known.subject, digest_of(known.lists)
        result["listed"] |= {(access, 1, who) for who in known.lists.allow or ()} | {(access, 2, who) for who in known.lists.deny}
        if subject.descriptor["kind"] == "sealed":
            result["sealed_for"] |= {(who, number) for who in known.lists.allow or ()}
        result["property_values"] |= {(key, as_stored(value), number) for key, value in indexed_values(subject.descriptor)}
        body = indexed_text(subject.descriptor, subject.synopsis)
        result["topic_text"] |= {(body[at : at + 3], number) for at in range(len(body) - 2)}
    return result


def test_the_indexes_hold_exactly_the_live_topics(population: Population, view: View) -> None:
    """T16: each trigram, value and listed name of each live topic, and nothing else; of a sealed topic, nothing that it says."""
    found = contents(view.path)
    assert {row[1] for row in found["topics"]} == {known.uuid for known in population.topics}
    for table, rows in expected_contents(population, view.path).items():
        assert rows
        assert set(found[table]) == rows, table
    sealed = {row[0] for row in found["topics"] if row[9] == "sealed"}
    assert sealed
    assert sealed.isdisjoint(owners(view.path)["topic_text"] | owners(view.path)["property_values"])
    check_sound(view.path)


def test_withdrawn_topics_leave_nothing_behind(population: Population, view: View) -> None:
    """T39: one after the other, until every table is empty; the facts remember."""
    net, names = population.net, {who.entity: who for who in ASKERS}
    left = {known.uuid for known in population.topics}
    records = []
    for known in population.topics:
        institution = names[known.subject.owner].institution
        owner = net.pki.credentials(Role.ENTITY, known.subject.owner, institution=institution)
        records.append(net.record("withdraw", net.withdraw(owner, known.uuid)))
    half = len(records) // 2
    view.apply_all([(10_000 + number, raw) for number, raw in enumerate(records[:half])])
    left -= {known.uuid for known in population.topics[:half]}
    found = contents(view.path)
    assert {row[1] for row in found["topics"]} == left
    remaining = {row[0] for row in found["topics"]}
    for table, those in owners(view.path).items():
        assert those <= remaining, table
    for table, rows in expected_contents(Population(net, (), population.topics[half:]), view.path).items():
        assert set(found[table]) == rows, table
    check_sound(view.path)
    view.apply_all([(20_000 + number, raw) for number, raw in enumerate(records[half:])])
    assert contents(view.path) == {table: [] for table in TABLES}
    check_sound(view.path)


def test_expired_topics_leave_nothing_behind(population: Population, view: View) -> None:
    """T39: log time takes them, in one tick or many."""
    net = population.net
    at = T0 + 2 * HOUR
    view.apply_all([(10_000 + number, net.record("tick", by=node, at=at)) for number, node in enumerate(net.node_ids)])
    rows = contents(view.path)["topics"]
    assert 0 < len(rows) < len(population.topics)
    assert all(row[3] > "2027-01-01T02:00:00Z" for row in rows)
    remaining = {row[0] for row in rows}
    for table, those in owners(view.path).items():
        assert those <= remaining, table
    assert {row[0] for row in contents(view.path)["listed"]} == {row[12] for row in rows} - {None}
    at = T0 + 40 * DAY
    view.apply_all([(20_000 + number, net.record("tick", by=node, at=at)) for number, node in enumerate(net.node_ids)])
    assert contents(view.path) == {table: [] for table in TABLES}
    check_sound(view.path)


def test_lists_are_shared_and_go_with_the_last_that_has_them(tmp_path: Path) -> None:
    """T18, T27: a hundred thousand children have the lists of their parent, once. Lists about other things than discovery are not here."""
    net = LittleNetwork("shared")
    alice, bob = net.entity("alice"), Asker("bob", "local")
    view = View(tmp_path / "view.db")
    one, same, other, open_to_all = (fresh_uuid() for _ in range(4))
    barred = {"discover_deny": ["bob"]}
    chosen = {one: barred, same: barred, other: {**barred, "register_deny": ["bob"]}, open_to_all: {"hierarchy_deny": ["bob"]}}
    minted = [net.mint(alice, uuid=uuid, lists=lists) for uuid, lists in chosen.items()]
    view.apply_all(list(enumerate([*net.opening(), *(net.record("advertise", net.advertise(alice, token)) for token in minted)])))

    def withdraw(uuid: str) -> None:
        offset = view.position.offset + 1
        _, outcome = view.apply_all([(offset, net.record("withdraw", net.withdraw(alice, uuid)))])[0]
        assert outcome.status == "accepted"

    def found() -> list[str]:
        with closing(Reader(view.path)) as reader:
            return [topic.uuid for topic in reader.discover(Search(bob, T0), limit=10).topics]

    assert len(contents(view.path)["listed"]) == 2
    for uuid, left in ((one, 2), (other, 1), (same, 0)):
        assert found() == [open_to_all]
        withdraw(uuid)
        assert len(contents(view.path)["listed"]) == left
    assert found() == [open_to_all]
    view.close()


# --- policies ---

POLICIES = {
    "a realm": read_policy({"realm": "Physics"}),
    "kinds": read_policy({"kinds": ["xml", "sealed"]}),
    "one entity and an institution": read_policy(
        {"stores": ["dave", "institution:Zürich, West"], "kinds": ["text", "properties", "path"]}
    ),
    "nobody there": read_policy({"stores": ["institution:Nobody"]}),
    "everything": Policy(),
}


def accepted(population: Population, policy: Policy) -> set[str]:
    """By the policy's words, not by its code."""
    return {
        known.uuid
        for known in population.topics
        if known.subject.descriptor["kind"] in policy.kinds
        and {"*", known.subject.creator, f"institution:{known.subject.institution}"} & set(policy.stores)
    }


@pytest.mark.parametrize("name", POLICIES)
def test_a_store_of_a_policy(population: Population, tmp_path: Path, name: str) -> None:
    """T11: what a policy does not store never enters the table, whether it was there from the start or came later; and comes back after."""
    policy, path = POLICIES[name], tmp_path / "view.db"
    fresh = population.build(tmp_path / "fresh.db", policy.stored())
    whole = population.build(path)
    digest = whole.digest()
    assert fresh.digest() == digest, "the rule state is whole in every view"
    everything = contents(path)
    whole.close()
    fresh.close()
    View(path, policy.stored()).close()
    found = contents(path)
    assert {row[1] for row in found["topics"]} == accepted(population, policy)
    assert found == contents(tmp_path / "fresh.db")
    check_sound(path)
    with closing(Reader(path)) as reader:
        for asker in (ASKERS[0], ASKERS[-1]):
            expected = [uuid for uuid in population.expected(asker, T0) if uuid in accepted(population, policy)]
            assert [topic.uuid for topic in reader.discover(Search(asker, T0), limit=1000).topics] == expected
            words = [topic.uuid for topic in reader.discover(Search(asker, T0, compile_query("string", "a")), limit=1000).topics]
            assert set(words) <= set(expected)
    view = View(path, EVERYTHING)
    assert contents(path) == everything
    assert view.digest() == digest
    view.close()


def test_new_records_meet_the_policy(tmp_path: Path) -> None:
    """T11: a topic that is not stored can be renewed and withdrawn all the same, and leaves no trace in the table."""
    net = LittleNetwork("policy")
    alice = net.entity("alice")
    view = View(tmp_path / "view.db", read_policy({"kinds": ["xml"]}).stored())
    uuid, other = fresh_uuid(), fresh_uuid()
    records = [
        *net.opening(),
        net.record("advertise", net.advertise(alice, net.mint(alice, uuid=uuid, lists={"discover_deny": ["bob"]}))),
        net.record("advertise", net.advertise(alice, net.mint(alice, uuid=other, descriptor=descriptors.xml("<a/>")))),
        net.record("renew", net.renew(alice, uuid, DAY)),
    ]
    assert {outcome.status for _, outcome in view.apply_all(list(enumerate(records)))} == {"accepted"}
    assert [row[1] for row in contents(view.path)["topics"]] == [other]
    assert contents(view.path)["listed"] == []
    view.apply_all([(100, net.record("withdraw", net.withdraw(alice, uuid)))])
    assert [row[1] for row in contents(view.path)["topics"]] == [other]
    topic = view.get("topic", uuid)
    assert topic is not None
    assert topic["state"] == "withdrawn"
    view.close()


def test_a_guards_view_has_no_table(population: Population, tmp_path: Path) -> None:
    view = population.build(tmp_path / "view.db", NOTHING)
    assert contents(view.path) == {table: [] for table in TABLES}
    view.close()


def test_an_unchanged_policy_leaves_the_table_alone(population: Population, view: View) -> None:
    """Making it anew takes minutes at a million topics: a restart must not."""
    view._db.execute("DELETE FROM listed")
    view.close()
    again = View(view.path)
    assert contents(view.path)["listed"] == []
    again.close()
    # The order in which a policy names things is not a change either.
    one, other = (
        read_policy({"stores": names, "kinds": kinds}).stored().stamp
        for names, kinds in ((["a", "b"], ["xml", "text"]), (["b", "a"], ["text", "xml"]))
    )
    assert one == other
    assert len({policy.stored().stamp for policy in POLICIES.values()} | {NOTHING.stamp, EVERYTHING.stamp}) == len(POLICIES) + 2


def test_making_anew_tells_how_far_it_is(population: Population, view: View) -> None:
    """Minutes at a million topics: whoever starts the node sees that it goes on. Opened again, nothing is made and nothing told."""
    view.close()
    told: list[int] = []
    for _ in range(2):
        View(view.path, POLICIES["kinds"].stored(told.append)).close()
    assert told == [0]


def test_making_anew_happens_whole_or_not_at_all(population: Population, view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is killed while it makes its table anew begins again at the next start, from what it had."""
    view.close()
    before = contents(view.path)

    def interrupt(payload: object) -> bool:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return True

    left = 20
    with pytest.raises(KeyboardInterrupt):
        View(view.path, type(EVERYTHING)(interrupt, "another"))
    assert contents(view.path) == before
    View(view.path, POLICIES["kinds"].stored()).close()
    assert {row[1] for row in contents(view.path)["topics"]} == accepted(population, POLICIES["kinds"])


# --- an earlier version's file ---


def test_migration_from_version_1(population: Population, view: View, tmp_path: Path) -> None:
    """A store of the earlier schema, with its records and facts: opened, it has the tables of today, made from its records."""
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as db:
        db.executescript(f"BEGIN; {schema.MIGRATIONS[0]} PRAGMA user_version = 1; COMMIT;")
        db.execute("ATTACH ? AS new", (str(view.path),))
        for table, columns in (("records", "seq, offset, kind, status, outcome, head, raw"), ("facts", "space, key, value")):
            db.execute(f"INSERT INTO main.{table} SELECT {columns} FROM new.{table}")
        db.execute("UPDATE main.position SET (seq, offset, head) = (SELECT seq, offset, head FROM new.position)")
        db.execute(
            "INSERT INTO main.topics SELECT uuid, 1, created, expires, owner, seq, id, 'signed bytes', 'folded text' FROM new.topics"
        )
        db.commit()
    migrated = View(old)
    assert migrated.position == view.position
    assert migrated.digest() == view.digest()
    assert contents(old) == contents(view.path)
    check_sound(old)
    tick = population.net.record("tick")
    migrated.apply_all([(50_000, tick)])
    migrated.close()
    with closing(Reader(old)) as reader, closing(Reader(view.path)) as today:
        for asker in ASKERS:
            for query in (None, compile_query("string", "e"), compile_query("sql", "priority > 1")):
                search = Search(asker, T0, query)
                assert reader.discover(search, limit=1000) == today.discover(search, limit=1000)
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)


# --- values that a database could stumble over ---

NET = LittleNetwork("odd values")
ALICE = Asker("alice", "local")

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64, 10**300, -(10**308), int(1.7e308), 0, -1]),
    st.floats(allow_nan=False, allow_infinity=False),
)


def _odd_properties(values: dict[str, object]) -> descriptors.Descriptor:
    kinds = {name: "string" if isinstance(value, str) else "float" for name, value in values.items()}
    return {"kind": "properties", "properties": values, "types": kinds}


odd_descriptors = st.one_of(
    st.builds(lambda body, words: descriptors.text(body, words), texts, st.just([])),
    st.dictionaries(st.sampled_from(["a", "b.c", "D-_1"]), st.one_of(texts, numbers, st.just("x" * 4096)), min_size=1).map(
        _odd_properties
    ),
)


@pytest.fixture(scope="module")
def odd_view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    view = View(Path(tmp_path_factory.mktemp("odd")) / "view.db")
    view.apply_all(list(enumerate(NET.opening())))
    yield view
    view.close()


def _look_for_it(path: Path, uuid: str, descriptor: descriptors.Descriptor, data: st.DataObject) -> None:
    said = fold(descriptors.searchable(descriptor))
    start = data.draw(st.integers(0, len(said) - 1))
    words = said[start : start + data.draw(st.integers(1, 30))].replace("\0", " ").split()
    queries = [compile_query("string", data.draw(st.sampled_from(words)))] if words else []
    for name, value in descriptor.get("properties", {}).items():
        if isinstance(value, str) and "\0" not in value:
            queries.append(compile_query("sql", f"\"{name}\" = '{value.replace(chr(39), chr(39) * 2)}'"))
        elif not isinstance(value, str):
            queries += [compile_query("sql", f'"{name}" {sign} {float(value)!r}') for sign in (">=", "<=")]
    for indexes in (True, False):
        with closing(Reader(path, indexes=indexes)) as reader:
            for query in queries:
                assert [topic.uuid for topic in reader.discover(Search(ALICE, T0, query), limit=5).topics] == [uuid], query
            assert reader.topic(uuid, ALICE, T0) is not None


@settings(max_examples=examples(60), derandomize=True)
@given(descriptor=odd_descriptors, data=st.data())
def test_odd_values_are_stored_found_and_forgotten(
    odd_view: View, descriptor: descriptors.Descriptor, data: st.DataObject
) -> None:
    """T2, T13: numbers beyond 64 bits, NUL, any Unicode, the longest strings: found by index and without, and gone when withdrawn."""
    alice, uuid = NET.entity("alice"), fresh_uuid()
    offset = odd_view.position.offset
    token = NET.mint(alice, uuid=uuid, descriptor=descriptor)
    _, outcome = odd_view.apply_all([(offset + 1, NET.record("advertise", NET.advertise(alice, token)))], durable=False)[0]
    assert outcome.status == "accepted"
    try:
        _look_for_it(odd_view.path, uuid, descriptor, data)
    finally:
        odd_view.apply_all([(offset + 2, NET.record("withdraw", NET.withdraw(alice, uuid)))], durable=False)
    assert contents(odd_view.path) == {table: [] for table in TABLES}


@given(st.integers(), st.integers())
def test_numbers_keep_their_order(one: int, other: int) -> None:
    """A whole number that SQLite cannot hold becomes the nearest that it can: ranges still cover what they covered."""
    low, high = sorted((one, other))
    assert as_stored(low) <= as_stored(high)
    for value in (low, high):
        assert -(2**63) <= as_stored(value) < 2**63 if -(2**63) <= value < 2**63 else isinstance(as_stored(value), float)


def test_numbers_beyond_floats() -> None:
    assert as_stored(10**400) == float("inf")
    assert as_stored(-(10**400)) == float("-inf")
    assert as_stored(2**63 - 1) == 2**63 - 1
    assert isinstance(as_stored(2**63 - 1), int)
    assert isinstance(as_stored(-(2**63)), int)
    assert as_stored("text") == "text"
