"""T9, T18: whether there are sealed topics for an asker: right for everybody, and of no cost to others however many are hidden."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from little_network import HOUR, LittleNetwork, fresh_uuid
from pki import T0
from population import ASKERS, INSTITUTIONS
from sizes import examples

from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import DISCOVER, Access, Asker, Lists, lists
from tdn.protocol.names import Role
from tdn.queries.times import ANY_TIME, Times
from tdn.store import search as searching
from tdn.store.search import Reader, Search
from tdn.store.view import View
from tdn.trust import sealed

NET = LittleNetwork("sealed looks")
PEOPLE = {name: NET.pki.credentials(Role.ENTITY, name, institution=place) for name, place in INSTITUTIONS.items()}
SEALED = {
    name: sealed.seal_descriptor(descriptors.path("secret"), creator=name, network=NET.id, readers=[who.identity.public_key])
    for name, who in PEOPLE.items()
}
#: Two that most askers are named by, so that lists which both allow and bar somebody are common.
NAMES = ["*", "alice", "bob", "carol", "zoe", "institution:Physics", "institution:Zürich, West", "institution:Nowhere"]


@dataclass(frozen=True)
class Plan:
    """A sealed topic (or, `plain`, one that is not) that a log is to have."""

    owner: str
    lists: Lists
    minute: int = 0
    lifetime: timedelta = HOUR
    plain: bool = False

    @property
    def created(self) -> datetime:
        return T0 + timedelta(minutes=self.minute)

    def shows(self, asker: Asker, now: datetime, times: Times) -> bool:
        """The definition, in words of its own: no word of SQL, no index, no function of the product."""
        mine = {"*", f"institution:{asker.institution}", asker.entity}
        owns = asker.entity is not None and asker.entity == self.owner
        allowed = self.lists.allow is None or bool(mine & set(self.lists.allow))
        barred = bool(mine & set(self.lists.deny))
        expires = self.created + self.lifetime
        in_time = (times.created_after is None or self.created >= times.created_after) and (
            times.created_before is None or self.created < times.created_before
        )
        lasting = times.valid_at_least is None or self.lifetime >= timedelta(seconds=times.valid_at_least)
        return not self.plain and now < expires and in_time and lasting and (owns or (allowed and not barred))

    def names(self, asker: Asker) -> bool:
        """Whether the asker stands on one of its lists, or owns it."""
        return asker.entity == self.owner or not asker.names.isdisjoint({*(self.lists.allow or ()), *self.lists.deny})


plans = st.builds(
    Plan,
    st.sampled_from(sorted(PEOPLE)),
    st.builds(lists, st.lists(st.sampled_from(NAMES), max_size=3), st.lists(st.sampled_from(NAMES), max_size=2)),
    st.integers(0, 3),
    st.sampled_from([timedelta(minutes=2), HOUR]),
    st.sampled_from([False, False, False, True]),
)
SPANS = [
    ANY_TIME,
    Times(created_after=T0 + timedelta(minutes=2)),
    Times(created_before=T0 + timedelta(minutes=1)),
    Times(created_after=T0 + timedelta(minutes=1), created_before=T0 + timedelta(minutes=2), valid_at_least=3600),
]
NOWS = [T0 + timedelta(minutes=1), T0 + timedelta(minutes=4)]


class Store:
    """A view to which topics come and go."""

    def __init__(self, path: Path) -> None:
        self.view = View(path)
        self.path = path
        opening = [*NET.opening(()), *(NET.record("hello", NET.hello(who)) for who in PEOPLE.values())]
        self.view.apply_all(list(enumerate(opening)), durable=False)

    def apply(self, records: list[bytes]) -> None:
        start = self.view.position.offset + 1
        decided = self.view.apply_all(list(enumerate(records, start)), durable=False)
        assert {outcome.status for _, outcome in decided} <= {"accepted"}

    def hold(self, topics: list[Plan]) -> Callable[[], None]:
        """Advertise these. What is given back withdraws them."""
        made: list[tuple[Plan, str]] = []
        records = []
        for plan in topics:
            who, uuid = PEOPLE[plan.owner], fresh_uuid()
            descriptor = descriptors.path("open") if plan.plain else SEALED[plan.owner]
            token = NET.mint(
                who,
                uuid=uuid,
                at=plan.created,
                lifetime=plan.lifetime,
                lists=Access({DISCOVER: plan.lists}).as_object(),
                descriptor=descriptor,
            )
            records.append(NET.record("advertise", NET.advertise(who, token, at=plan.created), at=plan.created))
            made.append((plan, uuid))
        self.apply(records)
        return lambda: self.apply([NET.record("withdraw", NET.withdraw(PEOPLE[plan.owner], uuid)) for plan, uuid in made])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(Path(tmp_path_factory.mktemp("sealed")) / "view.db")
    yield made
    made.view.close()


def says(reader: Reader, asker: Asker, now: datetime = NOWS[0], times: Times = ANY_TIME) -> bool:
    return reader.has_sealed(Search(asker, now, None, times))


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(st.lists(plans, max_size=5))
@example([Plan("alice", Lists(("bob",), ("institution:Physics",)))])
@example([Plan("alice", Lists(("*",), ("bob",))), Plan("bob", Lists(("bob",), ("*",)))])
@example([Plan("dave", Lists(None, ("*",)))])
@example([Plan("dave", Lists(None, ("institution:Physics",)))])
def test_right_for_every_asker(store: Store, topics: list[Plan]) -> None:
    """T9, T18: open to all, allowed by id, institution or `*`, one's own, barred, and allowed and barred at once; in times, now and later."""
    withdraw = store.hold(topics)
    try:
        with closing(Reader(store.path)) as reader:
            for asker in ASKERS:
                for now in NOWS:
                    for times in SPANS:
                        expected = any(plan.shows(asker, now, times) for plan in topics)
                        assert says(reader, asker, now, times) is expected, (asker, now, times)
    finally:
        withdraw()


def answers(store: Store, asker: Asker, topics: list[Plan]) -> list[bool]:
    """What the asker is told of a store with these topics, at each time."""
    withdraw = store.hold(topics)
    try:
        with closing(Reader(store.path)) as reader:
            return [says(reader, asker, now, times) for now in NOWS for times in SPANS]
    finally:
        withdraw()


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(st.sampled_from(ASKERS), st.lists(plans, max_size=6), st.integers(1, 3))
@example(ASKERS[1], [Plan("dave", lists(["erin"]))] * 4, 1)
@example(ASKERS[1], [Plan("dave", lists(["erin"], ["zoe"]))] * 4, 1)
def test_hidden_topics_that_name_nobody_change_nothing(store: Store, asker: Asker, topics: list[Plan], looks: int) -> None:
    """T18: whoever is on no list of a hidden topic is answered as by a store that never had it, even where few are looked at."""
    concern = [plan for plan in topics if plan.names(asker) or plan.shows(asker, T0, ANY_TIME)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "_SEALED_LOOKS", looks)
        said = answers(store, asker, topics)
        assert said == answers(store, asker, concern)
    true = [any(plan.shows(asker, now, times) for plan in topics) for now in NOWS for times in SPANS]
    assert all(told or not there for told, there in zip(said, true, strict=True)), "nobody is told too little"


@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(st.sampled_from(ASKERS), st.lists(plans, max_size=6))
def test_as_a_store_without_the_hidden_ones(store: Store, asker: Asker, topics: list[Plan]) -> None:
    """T18: with any lists, as long as no more are looked at than may be."""
    seen = [plan for plan in topics if plan.shows(asker, T0, ANY_TIME)]
    assert answers(store, asker, topics) == answers(store, asker, seen)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (lists((), ["bob"]), True),
        (lists((), ["institution:Physics"]), True),
        (lists(["bob"], ["institution:Physics"]), True),
        (lists(["*"], ["bob"]), True),
        (lists(["erin"], ["bob"]), False),
        (lists(["erin"]), False),
    ],
    ids=str,
)
def test_after_so_many_looks_the_asker_looks_for_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch, chosen: Lists, told: bool
) -> None:
    """One less than may be looked at, and the answer is exact. Those that only others may see are never among them."""
    monkeypatch.setattr(searching, "_SEALED_LOOKS", 3)
    bob = Asker("bob", "Physics")
    assert not any(answers(store, bob, [Plan("dave", chosen)] * 2))
    assert set(answers(store, bob, [Plan("dave", chosen)] * 3)) == {told}


# --- what it costs ---


def steps(path: Path, asker: Asker) -> int:
    """How many steps SQLite's machine takes. Unlike time, it is the same in every run."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    with closing(Reader(path)) as reader:
        reader._db.set_progress_handler(count, 1)
        assert says(reader, asker) is False
        reader._db.set_progress_handler(None, 1)
    return taken


def multiply(path: Path, times: int) -> None:
    """So many more of each topic in the table, with its lists: minted one by one, they would take minutes."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TEMP TABLE copies AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n",
            (times,),
        )
        columns = [row[1] for row in db.execute("PRAGMA table_info(topics)")]
        changed = {"id": "id + i * 100000", "uuid": "uuid || '-' || i", "access": "access || '-' || i"}
        chosen = ", ".join(changed.get(name, name) for name in columns)
        db.execute(f"INSERT INTO topics SELECT {chosen} FROM topics, copies")
        db.execute("INSERT INTO listed SELECT access || '-' || i, side, who FROM listed, copies")
        db.execute("INSERT INTO sealed_for SELECT who, topic + i * 100000 FROM sealed_for, copies")
        db.commit()


HIDDEN = [Plan("dave", lists(["erin"])), Plan("erin", lists(["dave", "carol"], ["zoe"])), Plan("erin", lists(["alice"], ["bob"]))]


@pytest.mark.parametrize("asker", [Asker("bob", "Physics"), Asker("zed", "Nowhere"), Asker(None, "Physics")], ids=str)
def test_many_hidden_topics_are_not_walked(tmp_path: Path, asker: Asker) -> None:
    """T18: thousands of sealed topics for others cost an asker nothing, and it cannot tell them by the time that an answer takes."""
    store = Store(tmp_path / "view.db")
    empty = steps(store.path, asker)
    store.hold(HIDDEN)
    store.view.close()
    few = steps(store.path, asker)
    multiply(store.path, 2000)
    with closing(sqlite3.connect(store.path)) as db:
        assert db.execute("SELECT count(*) FROM topics WHERE descriptor_kind = 'sealed'").fetchone() == (6003,)
    assert steps(store.path, asker) == few
    assert few <= empty + 20


def test_what_names_the_asker_is_walked_for_a_few_alone(tmp_path: Path) -> None:
    """Thousands that bar it, or allow and bar it at once, cost as much as a few hundred."""
    taken = []
    for number, chosen in enumerate((lists((), ["bob"]), lists(["bob"], ["institution:Physics"]))):
        store = Store(tmp_path / f"{number}.db")
        store.hold([Plan("dave", chosen)])
        store.view.close()
        bob = Asker("bob", "Physics")
        one = steps(store.path, bob)
        multiply(store.path, 3000)
        with closing(Reader(store.path)) as reader:
            before = 0

            def count() -> int:
                nonlocal before
                before += 1
                return 0

            reader._db.set_progress_handler(count, 1)
            assert says(reader, bob) is True
            reader._db.set_progress_handler(None, 1)
        taken.append(before / one)
    assert all(times < 2 * searching._SEALED_LOOKS for times in taken), taken
