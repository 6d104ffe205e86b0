"""T37, T38 as a user does it: a live network, `tdn archive export`, `tdn-spark index`, `search` and `query`, beside `entity discover` on the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_from_a_live_network_to_its_archive(commands: Commands) -> None:
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
    queries.write_text("\n".join(map(json.dumps, lines)) + "\nnot json\n" + json.dumps({"id": "bad", "language": "sql", "query": "a ="}) + "\n")
    out = folder / "found"
    done = commands.spark("search", "--index", index, "--queries", queries, "--out", out, "--as", "bob")
    assert done.code == 0, done.err
    # A client opens sealed topics with its own key; nodes and archives cannot.
    live = {name: commands.discovered("bob", *query) - {uuids["sealed"]} for name, query in QUERIES.items()}
    assert {name: commands.found(out).get(name, set()) for name in QUERIES} == live
    assert live["pattern"] == {uuids["open"], uuids["hidden"]}
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert {one["id"]: one["matches"] for one in summary["queries"] if "error" not in one} == {name: len(found) for name, found in live.items()}
    assert {one["id"] for one in summary["queries"] if "error" in one} == {"line 6", "bad"}
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


