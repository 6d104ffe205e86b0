"""T37, T38 as a user does it: a live network, `tdn archive export`, `tdn-spark index`, `search` and `query`, beside `entity discover` on the nodes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from drawn_queries import Drawn
from little_world import ODD
from sizes import LONG

from entity_client import EntityClient
from spark.index.store import Index
from spark.places import Place
from spark.search import asked, single
from tdn.errors import QueryError, UsageError
from tdn.protocol.access import Lists
from tdn.protocol.names import Role
from tdn.queries.times import ANY_TIME
from tdn.sample.topics import describe
from tdn.trust import credentials
from tests.live import LiveNetwork, Ran, run, wait_for

pytestmark = pytest.mark.timeout(600)


class Commands:
    def __init__(self, network: LiveNetwork, folder: Path) -> None:
        self.network = network
        self.home = network.home.folder
        self.folder = folder

    def spark(self, *words: str | Path) -> Ran:
        return run("tdn-spark", "--home", self.home, "--json", *words, seconds=400)

    def tdn(self, *words: str | Path) -> Ran:
        return run("tdn", "--home", self.home, "--json", *words)

    def entity(self, name: str, *words: str | Path) -> Ran:
        done = run("entity", "--home", self.home, "--as", name, "--json", *words)
        assert done.code == 0, done.err
        return done

    def discovered(self, name: str, language: str, query: str) -> set[str]:
        return {topic["uuid"] for topic in self.entity(name, "discover", f"--{language}", query).lines}

    async def client(self, name: str) -> EntityClient:
        return await self.network.client(self.network.home.credentials(Role.ENTITY, name), timeout=60)

    async def create_all(self, name: str, descriptors: Sequence[Any], lists: Sequence[Lists]) -> None:
        client = await self.client(name)
        try:
            for descriptor, access in zip(descriptors, itertools.cycle(lists), strict=False):
                await client.create(descriptor, lists=access)
        finally:
            await client.close()

    async def answers(self, name: str, queries: Sequence[dict[str, Any]], sealed: set[str]) -> dict[str, set[str] | None]:
        """What the nodes answer; nothing to those that are no query."""
        client = await self.client(name)
        found: dict[str, set[str] | None] = {}
        try:
            for query in queries:
                found[query["id"]] = None
                try:
                    sound, faulty = asked.read([json.dumps(query)])
                    times = ANY_TIME if faulty else sound[0].times
                    topics = client.discover(query["query"], language=query["language"], times=times, limit=10_000)
                    found[query["id"]] = {topic.uuid async for topic in topics} - sealed
                except (QueryError, UsageError):
                    # An XQuery is found wrong by its engine alone, which the nodes have.
                    continue
        finally:
            await client.close()
        return found

    def found(self, out: Path) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path in (out / "matches").glob("*.json"):
            for line in path.read_text("utf-8").splitlines():
                found.setdefault(json.loads(line)["query"], set()).add(json.loads(line)["uuid"])
        return found


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("archived network")
    network = LiveNetwork(folder / "home")
    try:
        network.up(nodes=2)
        yield Commands(network, folder)
    finally:
        network.end()


QUERIES = {
    "word": ("string", "oslo"),
    "pattern": ("regex", "^weather/.*/temperature$"),
    "predicate": ("sql", "height > 10 AND site = 'roof' OR owner = 'bob'"),
    "path": ("xpath", "//sensor[@id = 'x42']"),
    "expression": ("xquery", "for $s in //sensor where $s/@unit = 'hPa' return $s"),
}


#: Queries of each language that nobody picked, more of them in the long form; and topics to ask about, listed in turns.
EACH = 8 if LONG else 4
DRAWN_TOPICS = [*(describe(23, number).descriptor for number in range(25)), *ODD]
LISTS = (Lists(), Lists(allow=("bob",)), Lists(deny=("institution:local",)), Lists(allow=("carol", "institution:Oslo Weather")))


def test_from_a_live_network_to_its_archive(commands: Commands) -> None:
    """T37, T38: the nodes' own answers, of several entities, beside those of the index, by Spark and by DuckDB."""
    folder = commands.folder
    for name, institution in (("alice", "Oslo Weather"), ("bob", "local"), ("carol", "local")):
        assert commands.tdn("ca", "issue", name, "--institution", institution).code == 0
    document = folder / "station.xml"
    document.write_text('<station city="Oslo"><sensor id="x42" unit="hPa"/></station>')
    for name in ("bob", "carol"):
        commands.entity(name, "locate")
    made = {
        "open": commands.entity("alice", "create", "--path", "weather/oslo/temperature"),
        "hidden": commands.entity("alice", "create", "--path", "weather/oslo/secret/temperature", "--discover-allow", "bob"),
        "barred": commands.entity("alice", "create", "--property", "site=roof", "--property", "height=12.5", "--discover-deny", "carol"),
        "xml": commands.entity("alice", "create", "--xml", document, "--lifetime", "30d"),
        "sealed": commands.entity("alice", "create", "--path", "weather/oslo/sealed", "--sealed-for", "bob"),
        "given": commands.entity("alice", "create", "--text", "Oslo harbour"),
        "gone": commands.entity("alice", "create", "--text", "Oslo, withdrawn"),
    }
    uuids = {name: done.one["uuid"] for name, done in made.items()}
    commands.entity("alice", "transfer", uuids["given"], "bob")
    commands.entity("bob", "accept", uuids["given"])
    commands.entity("alice", "withdraw", uuids["gone"])

    asyncio.run(commands.create_all("alice", DRAWN_TOPICS, LISTS))
    archive, index = folder / "archive", folder / "index"
    first = commands.tdn("archive", "export", "--to", archive)
    assert first.code == 0, first.err
    wait_for(lambda: commands.tdn("archive", "export", "--to", archive).one["last"] > first.one["last"], "ticks to be added")
    verified = commands.tdn("archive", "verify", archive)
    assert verified.code == 0, verified.err
    assert (verified.one["valid"], verified.one["judged"]) == (True, True)
    assert commands.tdn("verify", next((archive / "manifest").iterdir())).one["kind"] == "archive"

    indexed = commands.spark("index", "--archive", archive, "--index", index)
    assert indexed.code == 0, indexed.err
    assert (indexed.one["rejected"], indexed.one["last"]) == (0, verified.one["records"])

    queries = folder / "queries.jsonl"
    lines = [{"id": name, "language": language, "query": query} for name, (language, query) in QUERIES.items()]
    drawn = Drawn("live nodes", DRAWN_TOPICS).some(EACH)
    queries.write_text("\n".join(map(json.dumps, lines)) + "\nnot json\n" + "".join(json.dumps(query) + "\n" for query in drawn))
    out = folder / "found"
    done = commands.spark("search", "--index", index, "--queries", queries, "--out", out, "--as", "bob")
    assert done.code == 0, done.err
    # A client opens sealed topics with its own key; nodes and archives cannot.
    by_command = {name: commands.discovered("bob", *query) - {uuids["sealed"]} for name, query in QUERIES.items()}
    assert by_command["pattern"] == {uuids["open"], uuids["hidden"]}
    live = by_command | asyncio.run(commands.answers("bob", drawn, {uuids["sealed"]}))
    ran = {name: found for name, found in live.items() if found is not None}
    assert {name: commands.found(out).get(name, set()) for name in ran} == ran
    assert sum(map(bool, ran.values())) > len(ran) / 4, "many queries must find something for this to show anything"
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert {one["id"]: one["matches"] for one in summary["queries"] if "error" not in one} == {name: len(found) for name, found in ran.items()}
    assert {one["id"] for one in summary["queries"] if "error" in one} == {"line 6"} | (live.keys() - ran.keys())
    assert {name.split()[0] for name in live.keys() - ran.keys()} >= {"broken"}
    # Another, of whom other topics are hidden.
    some, opened = [lines[0], *drawn[::3]], Index(Place(index))
    roots = credentials.load_roots(commands.network.home.settings().roots)
    others = asyncio.run(commands.answers("carol", some, {uuids["sealed"]}))
    for query in some:
        (one,) = asked.read([json.dumps(query)])[0] or (None,)
        if others[query["id"]] is None:
            if one is not None:
                with pytest.raises(QueryError):
                    single.query(opened, roots, one, entity="carol", at=None, now=datetime.now(UTC), limit=None)
            continue
        assert one is not None, query
        topics, _ = single.query(opened, roots, one, entity="carol", at=None, now=datetime.now(UTC), limit=None)
        assert {topic["uuid"] for topic in topics} == others[query["id"]], query
    assert any(others[name] != live[name] for name in others), "they are not shown the same"
    for name in ("word", "expression"):
        language, query = QUERIES[name]
        alone = commands.spark("query", "--index", index, "--as", "carol", f"--{language}", query)
        assert alone.code == 0, alone.err
        assert {topic["uuid"] for topic in alone.lines} == commands.discovered("carol", language, query), name
    refused = commands.spark("search", "--index", index, "--queries", queries, "--out", out, "--as", "alice")
    assert (refused.code, refused.error["error"]) == (2, "usage")
    assert "is there already" in refused.error["message"]
    stranger = commands.spark("query", "--index", index, "--as", "nobody", "--string", "oslo")
    assert (stranger.code, stranger.error["error"]) == (4, "trust")
    report = commands.spark("report", "--index", index, "--out", folder / "report.html")
    assert report.code == 0, report.err
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("<svg") == 5
    assert "Oslo Weather" in page


def test_mistakes(commands: Commands, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"id": "q", "language": "sql", "query": "a ="}\n')
    sound = tmp_path / "sound.jsonl"
    sound.write_text('{"id": "q", "language": "sql", "query": "a = 1"}\n')
    index = commands.folder / "index"
    out = tmp_path / "out"
    for words, code, what in (
        (("search", "--index", tmp_path, "--queries", queries, "--out", out, "--operator"), 6, "no index"),
        (("search", "--index", index, "--queries", tmp_path / "none", "--out", out, "--operator"), 2, "cannot be read"),
        (("search", "--index", index, "--queries", queries, "--out", out), 2, "one of the arguments"),
        (("search", "--index", index, "--queries", queries, "--out", out, "--operator", "--as", "alice"), 2, "not allowed with"),
        (("search", "--index", index, "--queries", sound, "--out", out, "--operator", "--master", "nonsense"), 2, "no Spark master"),
        (("search", "--index", index, "--queries", sound, "--out", out, "--operator", "--master", "spark://127.0.0.1:1"), 3, "no Spark answers"),
        (("search", "--index", index, "--queries", queries, "--out", out, "--operator"), 5, "no query could run"),
        (("query", "--index", index, "--operator", "--sql", "a ="), 2, "value is missing"),
        (("query", "--index", index, "--operator", "--sql", "a = 1", "--limit", "-1"), 2, "--limit"),
        (("query", "--index", tmp_path, "--operator", "--string", "a"), 6, "no index"),
        (("index", "--archive", tmp_path, "--index", tmp_path / "index"), 6, "no archive"),
        (("cluster", "up", "--workers", "0"), 2, "--workers"),
    ):
        done = commands.spark(*words)
        assert done.code == code, (words, done.err)
        assert what in done.error["message"], words
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert [(one["id"], one["matches"], "value is missing" in one["error"]) for one in summary["queries"]] == [("q", 0, True)]
    assert summary["record"] > 0
    assert list((out / "matches").iterdir()) == []
    stranger = commands.spark("search", "--index", index, "--queries", queries, "--out", tmp_path / "other", "--as", "nobody")
    assert (stranger.code, stranger.error["error"]) == (4, "trust")
    queries.write_text("\n\n")
    empty = commands.spark("search", "--index", index, "--queries", queries, "--out", tmp_path / "empty", "--operator")
    assert (empty.code, "no query in the file" in empty.error["message"]) == (2, True)
    for words, code in ((("archive", "verify", tmp_path / "nothing"), 6), (("archive", "export", "--to", tmp_path / "x", "--node", "none"), 2)):
        assert commands.tdn(*words).code == code


