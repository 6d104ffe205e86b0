"""T38: an index gives the same answers, to the same askers, as a live node that has read the same records: for queries that nobody picked, in five
languages, now and at past moments, by Spark and by DuckDB."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from drawn_queries import Drawn, endless, hostile
from little_network import DAY, MINUTE
from little_world import World

from spark.index.building import build
from spark.index.store import Index
from spark.places import Place
from spark.search import asked, bulk, running, single, sql_columns, standing
from spark.search.asked import Asked, Faulty
from spark.search.running import search
from tdn.errors import QueryError, TrustError, UsageError
from tdn.protocol.access import Asker
from tdn.queries.sql import compile_sql
from tdn.queries.times import ANY_TIME, Times
from tdn.rules.sight import asker_of

pytestmark = pytest.mark.timeout(600)

LONG = os.environ.get("TDN_TESTS") == "long"
#: Of each language. Most find something, many find much. `make test-long` draws more, and asks as more entities.
EACH = 60 if LONG else 20
ENTITIES = ("alice", "bob", "carol", "kim", "lee") if LONG else ("bob", "kim")


@pytest.fixture(scope="module")
def index(spark: Any, world: World, tmp_path_factory: pytest.TempPathFactory) -> Index:
    made = Index(Place(tmp_path_factory.mktemp("index") / "index"))
    built = build(spark, Place(world.archive), made, world.roots)
    assert built.records == len(world.raw)
    assert built.rejected == 0
    return made


@pytest.fixture(scope="module")
def drawn(world: World) -> list[dict[str, Any]]:
    descriptors = [known.subject.descriptor for known in world.population.topics if not known.is_sealed]
    return Drawn("same answers", descriptors).some(EACH)


def run(
    spark: Any, index: Index, world: World, queries: list[dict[str, Any]], out: Path, entity: str | None, at: datetime | None, now: datetime
) -> tuple[dict[str, set[str]], dict[str, str], list[Asked]]:
    """What each query found, and which could not run."""
    sound, faulty = asked.read(json.dumps(query) for query in queries)
    found = search(spark, index, world.roots, sound, faulty, out, entity=entity, at=at, now=now)
    matches: dict[str, set[str]] = {one.id: set() for one in sound}
    rows = 0
    for path in (out / "matches").glob("*.json"):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            rows += 1
            matches[row["query"]].add(row["uuid"])
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert summary["matches"] == rows == found.matches
    errors = {one["id"]: one["error"] for one in summary["queries"] if "error" in one}
    assert {one["id"]: one["matches"] for one in summary["queries"] if "error" not in one} == {
        name: len(uuids) for name, uuids in matches.items() if name not in errors
    }
    assert rows == sum(map(len, matches.values())), "no row stands twice"
    return matches, errors, sound


def reference(
    world: World, sound: list[Asked], errors: dict[str, str], who: Asker | None, now: datetime, records: int | None = None
) -> dict[str, set[str]]:
    """What a live node finds; it refuses those that could not run, too."""
    found = {}
    for one in sound:
        if one.id in errors:
            with pytest.raises(QueryError):
                world.found(who, now, one.language, one.text, one.times, records)
        else:
            found[one.id] = world.found(who, now, one.language, one.text, one.times, records)
    return found


@pytest.mark.parametrize("entity", [*ENTITIES, None])
def test_now(spark: Any, world: World, index: Index, drawn: list[dict[str, Any]], tmp_path: Path, entity: str | None) -> None:
    now = world.moments["at the end"]
    matches, errors, sound = run(spark, index, world, drawn, tmp_path / "out", entity, None, now)
    who = asker_of(world.log.state, entity) if entity is not None else None
    expected = reference(world, sound, errors, who, now)
    assert {name: uuids for name, uuids in matches.items() if name not in errors} == expected
    assert sum(1 for uuids in expected.values() if uuids) > len(expected) / 5, "many queries must find something for this to show anything"
    # What cannot run is what does not compile, here or in the engine.
    for name in errors.keys() - {one.id for one in sound}:
        assert name.startswith(("broken", "sql-", "xpath-", "xquery-")), (name, errors[name])


@pytest.mark.parametrize("name", [*(("at the beginning", "with trees") if LONG else ()), "handed over", "before all have followed"])
def test_at_a_past_moment(spark: Any, world: World, index: Index, tmp_path: Path, name: str) -> None:
    """The log as it was, and what had expired by then."""
    moment = world.moments[name]
    records = world.records_until(moment)
    queries = [
        {"id": "all", "language": "regex", "query": "."},
        {"id": "trees", "language": "string", "query": "tree"},
        {"id": "mine", "language": "sql", "query": "owner = 'lee' OR owner = 'kim' AND expires > '2027-01-01T00:10:00Z'"},
        {"id": "xml", "language": "xpath", "query": "//*"},
    ]
    for entity in ("bob", "kim", None) if LONG and name != "at the beginning" else ("bob", None):
        who = asker_of(world.log.state, entity) if entity is not None else None
        out = tmp_path / f"out-{entity}"
        matches, errors, sound = run(spark, index, world, queries, out, entity, moment, moment + 9 * MINUTE)
        assert errors == {}
        assert matches == reference(world, sound, errors, who, moment, records), entity
    if name == "before all have followed":
        assert not matches["trees"] & {world.topics["wide"], *world.children}
    if name == "with trees":
        assert matches["trees"] >= {world.topics["wide"], *world.children}


def test_who_is_not_there(spark: Any, world: World, index: Index, tmp_path: Path) -> None:
    query = [{"id": "q", "language": "string", "query": "tree"}]
    before, now = world.moments["at the beginning"], world.moments["at the end"]
    with pytest.raises(TrustError, match="did not know an entity 'kim'"):
        run(spark, index, world, query, tmp_path / "out", "kim", before, now)
    with pytest.raises(TrustError, match="'erin' was revoked"):
        run(spark, index, world, query, tmp_path / "out", "erin", None, now)
    assert not (tmp_path / "out").exists()
    run(spark, index, world, query, tmp_path / "out", "erin", world.moments["with trees"], now)


def test_hostile_queries_cost_their_own_budget(spark: Any, world: World, index: Index, tmp_path: Path) -> None:
    """One that never ends is given up, says so, and neither kills a task nor keeps the others from their answers."""
    easy = [
        {"id": "easy regex", "language": "regex", "query": "tree/(wide|root)"},
        {"id": "easy xpath", "language": "xpath", "query": "//price > 9"},
        {"id": "easy xquery", "language": "xquery", "query": "exists(//*:a)"},
    ]
    now = world.moments["at the end"]
    queries = [*endless(), *easy[:1], *hostile(), *easy[1:]]
    matches, errors, sound = run(spark, index, world, queries, tmp_path / "out", "alice", None, now)
    assert {one["id"] for one in endless()} <= errors.keys()
    for name, error in errors.items():
        assert not name.startswith("easy"), error
        assert "was stopped" in error or "could not be evaluated" in error, error
        assert matches[name] == set(), "what was found before is not taken for all"
    finished = [one for one in sound if one.id not in errors]
    assert any(one.id.startswith("hostile regex") for one in finished)
    expected = reference(world, finished, {}, Asker("alice", "Physics"), now)
    assert {name: matches[name] for name in expected} == expected
    assert expected["easy xpath"]


def test_duckdb_answers_one_query_alike(world: World, index: Index, drawn: list[dict[str, Any]]) -> None:
    now = world.moments["at the end"]
    asked_for = 0
    # Some of each language: each starts the engines that it needs.
    for query in drawn[::7]:
        sound, faulty = asked.read([json.dumps(query)])
        if faulty:
            continue
        one = sound[0]
        for entity in ("bob", None):
            who = asker_of(world.log.state, entity) if entity is not None else None
            try:
                topics, more = single.query(index, world.roots, one, entity=entity, at=None, now=now, limit=None)
            except QueryError:
                # Only the engine of XQuery finds that it is wrong; on a node too.
                assert one.language == "xquery"
                with pytest.raises(QueryError):
                    world.found(who, now, one.language, one.text, one.times)
                continue
            assert not more
            assert {topic["uuid"] for topic in topics} == world.found(who, now, one.language, one.text, one.times), query
            assert topics == sorted(topics, key=lambda topic: (topic["created"], topic["uuid"]))
            asked_for += 1
    assert asked_for > EACH


def test_a_wrong_xquery_is_wrong_whatever_it_is_asked_of(world: World, index: Index) -> None:
    """Also where no topic is left to ask: only its engine finds it."""
    nobodys = Times(created_before=world.moments["at the beginning"] - 365 * DAY)
    for times in (ANY_TIME, nobodys):
        wrong = Asked(0, "q", "xquery", "let $x := 1 return $y", times)
        with pytest.raises(QueryError):
            single.query(index, world.roots, wrong, entity=None, at=None, now=world.moments["at the end"], limit=None)


def test_times_alone(spark: Any, world: World, index: Index, tmp_path: Path) -> None:
    """T14: without a query, as on a node: sealed topics too, which no query finds."""
    now = world.moments["at the end"]
    lines: list[dict[str, Any]] = [
        {"id": "all", "created_after": "2020-01-01T00:00:00Z"},
        {"id": "late", "created_after": "2027-01-01T00:02:00Z"},
        {"id": "early", "created_before": "2027-01-01T00:02:00Z", "valid_at_least": "2h"},
        {"id": "ends", "expires_before": "2027-01-02T00:00:00Z", "valid_at_most": "30d"},
        {"id": "queried", "language": "regex", "query": "(?s).*", "created_after": "2020-01-01T00:00:00Z"},
    ]
    for entity in ("bob", None):
        who = asker_of(world.log.state, entity) if entity is not None else None
        matches, errors, sound = run(spark, index, world, lines, tmp_path / f"{entity}", entity, None, now)
        assert matches == reference(world, sound, errors, who, now)
        assert all(matches.values())
        assert len(sound) == len(lines)
        sealed = {known.uuid for known in world.population.topics if known.is_sealed}
        assert matches["all"] & sealed
        assert not matches["queried"] & sealed
        for one in sound:
            topics, _ = single.query(index, world.roots, one, entity=entity, at=None, now=now, limit=None)
            assert {topic["uuid"] for topic in topics} == matches[one.id]


def test_a_search_that_fails_leaves_nothing(spark: Any, world: World, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And touches nothing of another one that is on its way to the same folder."""
    now, out, query = world.moments["at the end"], tmp_path / "out", [{"id": "q", "language": "string", "query": "tree"}]
    for name in (".out.unfinished", ".out.0123456789abcdef.unfinished"):
        (tmp_path / name / "found").mkdir(parents=True)
        (tmp_path / name / "found" / "part-00000.json").write_text('{"query":"q","uuid":"another"}\n')
    others = sorted(tmp_path.rglob("*"))

    def fail(told: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, "_summed", fail)
        with pytest.raises(KeyboardInterrupt):
            run(spark, index, world, query, out, "lee", None, now)
    assert sorted(tmp_path.rglob("*")) == others
    matches, _, _ = run(spark, index, world, query, out, "lee", None, now)
    assert matches["q"] == world.found(Asker("lee", "local"), now, "string", "tree")
    assert set(others) < set(tmp_path.rglob("*"))

    summed = running._summed

    def overtaken(told: Any) -> Any:
        (tmp_path / "late" / "matches").mkdir(parents=True)
        return summed(told)

    monkeypatch.setattr(running, "_summed", overtaken)
    with pytest.raises(UsageError, match="appeared during the search"):
        run(spark, index, world, query, tmp_path / "late", "lee", None, now)
    assert [path.name for path in (tmp_path / "late").iterdir()] == ["matches"]
    assert not list(tmp_path.glob(".late*"))


def test_arrow_finds_what_a_regular_expression_finds(
    world: World, index: Index, drawn: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left many topics, or few: the same."""
    monkeypatch.setattr(bulk, "_MANY", 1)
    now = world.moments["at the end"]
    sound, _ = asked.read([json.dumps(query) for query in drawn if query["language"] == "regex"])
    assert len(sound) > EACH // 2
    for one in sound:
        topics, _ = single.query(index, world.roots, one, entity=None, at=None, now=now, limit=None)
        assert {topic["uuid"] for topic in topics} == world.found(None, now, one.language, one.text, one.times), one.text


def test_more_changes_than_are_sent(spark: Any, world: World, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a shuffle has taken out of their order are the same topics, each with its own owner and expiry."""
    monkeypatch.setattr(standing, "_MOST_SENT", 0)
    now = world.moments["at the end"]
    queries = [
        {"id": "all", "language": "regex", "query": "."},
        {"id": "owners", "language": "sql", "query": "owner <> creator OR expires > '2027-01-01T00:10:00Z'"},
    ]
    for entity in ("bob", None):
        matches, errors, sound = run(spark, index, world, queries, tmp_path / f"{entity}", entity, None, now)
        who = asker_of(world.log.state, entity) if entity is not None else None
        assert matches == reference(world, sound, errors, who, now)
        assert matches["owners"]


def test_columns_find_what_a_predicate_finds(world: World, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQL asked of different values finds what it finds topic by topic; most predicates can be divided."""
    now = world.moments["at the end"]
    descriptors = [known.subject.descriptor for known in world.population.topics if not known.is_sealed]
    queries = [query for query in Drawn("columns", descriptors).some(2 * EACH) if query["language"] == "sql"]
    sound, _ = asked.read(map(json.dumps, queries))
    divisible = [one for one in sound if sql_columns.asks(compile_sql(one.text)) is not None]
    assert len(divisible) > len(sound) / 2
    found = {}
    for way in ("columns", "topics"):
        if way == "topics":
            monkeypatch.setattr(sql_columns, "asks", lambda query: None)
            bulk._compiled.cache_clear()
        for one in divisible:
            topics, _ = single.query(index, world.roots, one, entity=None, at=None, now=now, limit=None)
            found[way, one.id] = {topic["uuid"] for topic in topics}
    bulk._compiled.cache_clear()
    for one in divisible:
        assert found["columns", one.id] == found["topics", one.id], one.text


def test_an_index_without_changes(spark: Any, world: World, tmp_path: Path) -> None:
    """Tables of which there is no row yet are there all the same."""
    index = Index(Place(tmp_path / "index"))
    # Of the first topic, and nothing that became of it: the eleventh record withdraws it.
    build(spark, Place(world.export(tmp_path / "archive", 10)), index, world.roots)
    assert not index.paths("changes", index.commits())
    everything = Asked(0, "q", "regex", ".")
    for entity in (None, "alice"):
        topics, _ = single.query(index, world.roots, everything, entity=entity, at=None, now=world.moments["at the end"], limit=None)
        found, _, _ = run(
            spark, index, world, [{"id": "q", "language": "regex", "query": "."}], tmp_path / f"{entity}", entity, None, world.moments["at the end"]
        )
        assert {topic["uuid"] for topic in topics} == found["q"]


def test_one_query_in_pages_and_in_the_past(world: World, index: Index) -> None:
    now = world.moments["at the end"]
    everything = Asked(0, "q", "regex", ".")
    topics, more = single.query(index, world.roots, everything, entity=None, at=None, now=now, limit=5)
    assert (len(topics), more) == (5, True)
    assert all(set(topic) >= {"uuid", "owner", "descriptor", "advertisement"} for topic in topics)
    past = world.moments["with trees"]
    topics, _ = single.query(index, world.roots, Asked(0, "q", "string", "tree wide"), entity="lee", at=past, now=now, limit=None)
    assert {topic["uuid"] for topic in topics} == {world.topics["wide"], *world.children}


def test_matches_with_their_advertisements_as_parquet(spark: Any, world: World, index: Index, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from tdn.trust.statements import by_roots, read_advertisement

    sound, _ = asked.read([json.dumps({"id": "q", "language": "string", "query": "tree"})])
    out = tmp_path / "out"
    search(
        spark,
        index,
        world.roots,
        sound,
        [Faulty("x", "was wrong")],
        out,
        entity="lee",
        at=None,
        now=world.moments["at the end"],
        form="parquet",
        signed=True,
    )
    rows = pq.read_table(out / "matches").to_pylist()
    assert {row["uuid"] for row in rows} == world.found(Asker("lee", "local"), world.moments["at the end"], "string", "tree")
    assert all(read_advertisement(row["advertisement"].encode(), by_roots(world.roots)).uuid == row["uuid"] for row in rows)
