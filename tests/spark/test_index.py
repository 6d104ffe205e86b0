"""T38: an index holds each record of its archives once, verified; what is bad is rejected with the reason; killed and repeated, it is the same."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from little_network import HOUR, NO_LISTS, LittleNetwork
from little_world import World
from pki import T0

from spark.index import building
from spark.index.building import Built, build
from spark.index.store import Commit, Index, batch_name, commit_of
from spark.places import Place
from spark.search.engines import DuckTables
from spark.tables import TABLES
from tdn.archive import manifest, segments
from tdn.archive.manifest import Archive
from tdn.errors import Absent, Refused, TrustError, UnknownRules, UsageError
from tdn.rules.apply import RULES_VERSION
from tdn.rules.state import EMPTY_HEAD
from tdn.trust import signing

pytestmark = pytest.mark.timeout(600)

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def contents(index: Index) -> dict[str, list[Any]]:
    """All rows of all tables, in order."""
    found = {}
    for name, table in TABLES.items():
        paths = [f"{index.place.local}/tables/{name}/batch={commit.batch}" for commit in index.commits() if commit.rows[name]]
        rows = [row for path in paths for row in ds.dataset(path, partitioning="hive").to_table().to_pylist()]
        found[name] = sorted(json.dumps({key: row.get(key) for key in table.schema.names}, default=str, sort_keys=True) for row in rows)
    return found


@pytest.fixture(scope="module")
def whole(spark: Any, world: World, tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index(Place(tmp_path_factory.mktemp("whole") / "index"))
    build(spark, Place(world.archive), index, world.roots)
    return index


def test_tables_say_what_the_log_says(world: World, whole: Index) -> None:
    rows = {name: [json.loads(row) for row in found] for name, found in contents(whole).items()}
    state = world.log.state
    assert [row["seq"] for row in sorted(rows["records"], key=lambda row: row["seq"])] == list(range(1, len(world.raw) + 1))
    assert {row["uuid"] for row in rows["advertisements"]} == {uuid for uuid, _ in state.all("topic")}
    assert {row["uuid"] for row in rows["signed"]} == {row["uuid"] for row in rows["advertisements"]}
    assert {row["principal"] for row in rows["principals"]} == {name for name, _ in state.all("principal")}
    assert {row["thumbprint"] for row in rows["certificates"]} == {name for name, _ in state.all("certificate")}
    assert {row["access"] for row in rows["access"]} >= {key for key, _ in state.all("access")}
    present = {}
    for row in sorted(rows["members"], key=lambda row: row["seq"]):
        present[row["collection"], row["kind"], row["uuid"]] = row["present"]
    assert {" ".join(key) for key, there in present.items() if there} == {key for key, _ in state.all("member")}
    latest = {}
    for row in sorted(rows["grants"], key=lambda row: row["seq"]):
        latest[row["id"]] = row
    assert {name: row["state"] for name, row in latest.items()} == {name: fact["state"] for name, fact in state.all("grant")}
    assert {row["name"] for row in rows["properties"]} >= {"a", "site", "x.y-z"}
    assert rows["rejected"] == []
    parents = {row["uuid"]: row["parent"] for row in rows["advertisements"]}
    assert parents[world.topics["leaf"]] == world.topics["inner"]


def test_the_documented_examples_run(spark: Any, world: World, whole: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/spark.md, as somebody opens the tables who has read it: by DuckDB in their folder, and by Spark; wherever that folder is."""
    from pyspark.sql.pandas.types import from_arrow_schema

    assert whole.place.local is not None
    folder_of = shutil.copytree(whole.place.local / "tables", tmp_path / "institution=nobody/tables").joinpath
    monkeypatch.chdir(folder_of())
    opened = re.search(r"read_parquet\('advertisements(/.*?)'\, (.*?)\)", DOCUMENT.read_text("utf-8"))
    assert opened is not None
    examples = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, table in TABLES.items():
            if folder_of(name).is_dir():
                db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{name}{opened[1]}', {opened[2]})")
            else:
                db.register(name, table.schema.empty_table())
        found = [db.execute(example).fetchall() for example in examples]
    by_institution, depths, granted = found
    assert {row[0] for row in by_institution} >= {"Physics", "local"}
    assert sum(row[2] for row in by_institution) == sum(1 for _, fact in world.log.state.all("topic") if fact["kind"] == "topic")
    assert {row[0]: row[1:] for row in depths}[world.topics["root"]] == (3, 3)
    assert len(depths) == 2
    assert {row[0]: row[1:] for row in depths}[world.topics["wide"]] == (2, 1 + len(world.children))
    # Lapsed with its owner, and cut off by the end of the grant that it was passed on from: the tables have both as `live`.
    said = {"held": "counted", "lapsed": "lapsed", "kept on": "counted", "passed on": "counted", "its parent": "counted", "cut off": "cut off"}
    assert {row[0]: row[4] for row in granted} == {world.topics[name]: standing for name, standing in said.items()}
    assert {fact["state"] for name, fact in world.log.state.all("grant") if name in {row[0] for row in granted}} == {"live"}
    for name, table in TABLES.items():
        there = folder_of(name).is_dir()
        frame = spark.read.parquet(str(folder_of(name))) if there else spark.createDataFrame([], from_arrow_schema(table.schema))
        frame.createOrReplaceTempView(name)
        # What is whole is told by the names of the commits.
        assert not there or frame.where(frame.batch.isin([commit.batch for commit in whole.commits()])).count() > 0
    # Spark lets a recursion have a million rows, which a log of a million topics has by its roots alone. Here: no more than there are topics in trees.
    most = sum(row[2] for row in depths) + 1
    assert most < sum(1 for _, fact in world.log.state.all("topic") if fact["kind"] == "topic")
    before = spark.conf.get("spark.sql.cteRecursionRowLimit")
    spark.conf.set("spark.sql.cteRecursionRowLimit", str(most))
    try:
        for example, rows in zip(examples, found, strict=True):
            asked = spark.sql(example.strip().rstrip(";")).collect()
            assert [tuple(map(_plain, row)) for row in asked] == [tuple(map(_plain, row)) for row in rows]
    finally:
        spark.conf.set("spark.sql.cteRecursionRowLimit", before)


def _plain(value: Any) -> Any:
    """A moment as Spark gives it: of UTC, without saying so."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


def test_incremental_is_the_same(spark: Any, world: World, whole: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that are added later, in any number of runs and batches, give the same tables; a run with nothing new adds nothing."""
    monkeypatch.setattr(segments, "MOST_RECORDS", 120)
    archive, index = tmp_path / "archive", Index(Place(tmp_path / "index"))
    world.export(archive, 150)
    first = build(spark, Place(archive), index, world.roots)
    assert (first.records, first.batches) == (150, 1)
    assert build(spark, Place(archive), index, world.roots) == Built(0, 0, 0, 0, 0, 150)
    world.export(archive)
    monkeypatch.setattr(building, "MOST_SEGMENTS", 2)
    second = build(spark, Place(archive), index, world.roots)
    assert (second.records, second.batches) == (len(world.raw) - 150, 2)
    assert contents(index) == contents(whole)


def test_killed_and_repeated(spark: Any, world: World, whole: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a killed run left is taken for whole, and nothing of it stays."""

    class Killed(BaseException):
        pass

    index = Index(Place(tmp_path / "index"))

    def ended(*_: object) -> None:
        raise Killed

    # Before the second job, with certificates written alone; and with all written but the commit.
    for step in ("verifying", "commit_of"):
        with monkeypatch.context() as patched:
            patched.setattr(building, step, ended)
            with pytest.raises(Killed):
                build(spark, Place(world.archive), index, world.roots)
        assert index.place.list("tables")
        assert index.commits() == []
        with pytest.raises(Absent, match="no index"):
            index.require(world.roots)

    def beside(*told: Any) -> Commit:
        # What a task leaves that dies in the middle of a file.
        unfinished = tmp_path / f"index/tables/records/batch={batch_name(1, len(world.raw))}/.part-1.parquet.12ab.unfinished"
        unfinished.write_bytes(b"half of it")
        return commit_of(*told)

    monkeypatch.setattr(building, "commit_of", beside)
    build(spark, Place(world.archive), index, world.roots)
    assert contents(index) == contents(whole)
    assert not list((tmp_path / "index").rglob("*.unfinished"))
    # As somebody reads it who knows nothing of commits: no row twice.
    assert ds.dataset(tmp_path / "index/tables/records", partitioning="hive").count_rows() == len(world.raw)


@pytest.mark.parametrize("there", ["tables/orders/2025.csv", "notes.txt", "tables/access/2025.csv", "commits/1.json", "tables/records/batch=1-2/x.parquet", ".git/config"])
def test_a_folder_of_something_else(spark: Any, world: World, tmp_path: Path, there: str) -> None:
    """Is refused, and as it was: no lock in it, and nothing removed."""
    path = tmp_path / "lake" / there
    path.parent.mkdir(parents=True)
    path.write_text("a,b\n")
    before = sorted((tmp_path / "lake").rglob("*"))
    with pytest.raises(UsageError, match=r"is not empty and holds no index: there is .*; name an index"):
        build(spark, Place(world.archive), Index(Place(tmp_path / "lake")), world.roots)
    assert sorted((tmp_path / "lake").rglob("*")) == before


def test_what_is_beside_the_batches_of_an_index_is_left(world: World, whole: Index, tmp_path: Path) -> None:
    assert whole.place.local is not None
    folder = tmp_path / "index"
    shutil.copytree(whole.place.local, folder)
    index = Index(Place(folder))
    left = [folder / "README", folder / "tables/orders/2025.csv", folder / "tables/access/notes.txt", folder / "tables/mine" / f"batch={batch_name(1, 2)}" / "x.parquet"]
    torn = [folder / "tables" / name / f"batch={batch_name(7_000, 8_000)}" / "part-1.parquet" for name in ("access", "records")]
    for path in (*left, *torn):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a,b\n")
    index.require_ours()
    index.tidy(index.commits())
    assert [path for path in left if not path.exists()] == []
    assert [path for path in torn if path.parent.exists()] == []
    index.require(world.roots)


def test_two_at_once(spark: Any, world: World, whole: Index) -> None:
    with whole.alone(), pytest.raises(Refused, match="another process is writing"):
        build(spark, Place(world.archive), whole, world.roots)


# --- what is bad ---


def forge(world: World, folder: Path, change: Any, *, rules: int = RULES_VERSION) -> Path:
    """The archive with some of its records changed, and a manifest that a node signed over that: as if a node lied, or the log had it."""
    world.export(folder)
    archive = Archive(folder)
    (entry,) = archive.entries(world.roots)
    path = archive.segments / entry.file
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    sha256 = segments.digest_of(path)
    path.rename(archive.segments / manifest.segment_name(entry.first, entry.last, sha256))
    token = manifest.sign(
        world.log.net.node("n2"),
        T0 + HOUR,
        network=entry.network,
        rules=rules,
        first=entry.first,
        last=entry.last,
        offsets=(0, 0),
        before=EMPTY_HEAD,
        head=entry.head,
        sha256=sha256,
        size=(archive.segments / manifest.segment_name(entry.first, entry.last, sha256)).stat().st_size,
    )
    (archive.manifest / manifest.entry_name(1)).write_bytes(token)
    return folder


def test_forged_records_are_rejected(spark: Any, world: World, tmp_path: Path) -> None:
    """Each has no effect, a reason in `rejected`, and leaves all others as they were."""
    net, stranger = world.log.net, LittleNetwork("strangers")
    advertised = [number for number, outcome in enumerate(world.log.outcomes, start=1) if outcome.kind == "advertise" and outcome.status == "accepted"]
    withdrawn = max(n for n, outcome in enumerate(world.log.outcomes, start=1) if outcome.kind == "withdraw" and outcome.status == "accepted")
    alice = net.entity("kim")
    forged: dict[int, str] = {}

    def change(rows: list[dict[str, Any]]) -> None:
        def put(number: int, raw: bytes, reason: str) -> None:
            rows[number - 1]["raw"] = raw
            forged[number] = reason

        raw = world.raw
        first, second, third, fourth, fifth, sixth = advertised[-6:]
        request = signing.split(raw[first - 1]).tail or b""
        token = signing.split(request).tail or b""
        # Signed by an entity instead of a node, by a node of another network, and changed after it was signed.
        payload = signing.parse_payload(signing.split(token))
        by_entity = signing.sign("advertisement", payload, alice.key, chain=alice.identity.chain, with_chain=True, issued=int(T0.timestamp()))
        by_stranger = signing.sign(
            "advertisement", payload, stranger.node("n1").key, chain=stranger.node("n1").identity.chain, with_chain=True, issued=int(T0.timestamp())
        )
        for number, minted in ((first, by_entity), (second, by_stranger), (third, token[:-6] + b"AAAAAA")):
            wrapped = net.request("advertise", {"uuid": payload["uuid"], "opening": NO_LISTS}, alice, tail=minted)
            put(number, net.record("advertise", wrapped), "")
        # A request that its signer did not sign; a record that no node signed; one that is none.
        fourth_request = signing.split(raw[fourth - 1]).tail or b""
        put(fourth, net.record("advertise", fourth_request.replace(b".", b".A", 1)), "")
        put(fifth, net.record("advertise", signing.split(raw[fifth - 1]).tail, by=alice), "node")
        put(sixth, b"\xff\x00 not a record", "")
        # A withdrawal by somebody whose certificate the log does not hold.
        stranger_request = net.request("withdraw", {"uuid": world.topics["wide"]}, stranger.entity("kim"))
        put(withdrawn, net.record("withdraw", stranger_request), "certificate")

    archive = forge(world, tmp_path / "archive", change)
    index = Index(Place(tmp_path / "index"))
    built = build(spark, Place(archive), index, world.roots)
    rows = {name: [json.loads(row) for row in found] for name, found in contents(index).items()}
    assert {row["seq"] for row in rows["rejected"]} == set(forged), rows["rejected"]
    assert built.rejected == len(forged)
    assert all(row["reason"] for row in rows["rejected"])
    for row in rows["rejected"]:
        assert forged[row["seq"]] in row["reason"], row["reason"]
    assert {row["seq"] for row in rows["advertisements"]} == set(advertised) - set(forged)
    assert world.topics["wide"] not in {row["uuid"] for row in rows["changes"]}


def test_effects_of_another_advertisement(spark: Any, world: World, tmp_path: Path) -> None:
    """Rightly signed, and the manifest claims that it did something else."""
    accepted = {n for n, outcome in enumerate(world.log.outcomes, start=1) if (outcome.kind, outcome.status) == ("advertise", "accepted")}
    number = next(n for n in sorted(accepted) if n + 1 in accepted)

    def change(rows: list[dict[str, Any]]) -> None:
        rows[number - 1]["effects"] = rows[number]["effects"].replace(f'"advertised":{number + 1}', f'"advertised":{number}')

    index = Index(Place(tmp_path / "index"))
    assert build(spark, Place(forge(world, tmp_path / "archive", change)), index, world.roots).rejected == 1
    (row,) = contents(index)["rejected"]
    assert "about another advertisement" in json.loads(row)["reason"]


def test_records_that_cannot_be_read(spark: Any, world: World, whole: Index, tmp_path: Path) -> None:
    """Effects that are no JSON, and values of other types than their columns': each record is rejected alone, and all others are as they were."""
    numbers = {(outcome.kind, outcome.status): n for n, outcome in enumerate(world.log.outcomes, start=1)}
    tick, handed, withdrawn = (numbers[kind, "accepted"] for kind in ("tick", "accept", "withdraw"))
    renewed = numbers["renew", "accepted"]
    bad = {handed, renewed, withdrawn}

    def change(rows: list[dict[str, Any]]) -> None:
        def put(number: int, effects: str) -> None:
            assert effects != rows[number - 1]["effects"]
            rows[number - 1]["effects"] = effects

        put(handed, '[["certificate","a",{"chain":')
        put(renewed, '["certificate",1]')
        put(withdrawn, rows[withdrawn - 1]["effects"].replace('"owner":"kim"', '"owner":5'))
        given = next(row["seq"] for row in reversed(rows) if '"issuer":' in row["effects"] and row["seq"] not in bad)
        put(given, re.sub(r'"issuer":"[a-z]+"', '"issuer":{"a":[1]}', rows[given - 1]["effects"]))
        bad.add(given)
        # A certificate that is none is not believed, which is all.
        put(tick, '[["certificate","a",5],["certificate",[],{"chain":[7],"at":{}}]]')

    archive, index = forge(world, tmp_path / "archive", change), Index(Place(tmp_path / "index"))
    assert build(spark, Place(archive), index, world.roots).rejected == len(bad) == 4
    found, before = contents(index), contents(whole)
    rejected = {row["seq"]: row["reason"] for row in map(json.loads, found.pop("rejected"))}
    assert set(rejected) == bad
    assert "JSON" in rejected[handed]
    assert "ArrowTypeError" in rejected[withdrawn]
    for name, rows in found.items():
        left_out = set() if name == "records" else {tick, *bad}
        assert rows == [row for row in before[name] if json.loads(row)["seq"] not in left_out], name


@pytest.mark.parametrize("what", ["doubled", "lost", "order", "moment"])
def test_a_segment_that_a_node_signed_and_that_does_not_hold_its_records(spark: Any, world: World, tmp_path: Path, what: str) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        if what == "doubled":
            rows[3] = rows[4]
        elif what == "lost":
            del rows[-1]
        elif what == "order":
            rows[3], rows[4] = rows[4], rows[3]
        else:
            rows[3]["at"] = 10**18

    index = Index(Place(tmp_path / "index"))
    with pytest.raises(TrustError, match="cannot be read" if what == "moment" else "does not hold records 1 to"):
        build(spark, Place(forge(world, tmp_path / "archive", change)), index, world.roots)
    assert index.commits() == []


def test_unknown_rules_and_a_manifest_with_a_hole(spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(Place(tmp_path / "index"))
    with pytest.raises(UnknownRules, match=f"rules version {RULES_VERSION + 1}; this build"):
        build(spark, Place(forge(world, tmp_path / "newer", list, rules=RULES_VERSION + 1)), index, world.roots)
    monkeypatch.setattr(segments, "MOST_RECORDS", 120)
    holed = world.export(tmp_path / "holed")
    (holed / "manifest" / manifest.entry_name(121)).unlink()
    with pytest.raises(TrustError, match="hole: records 121 to 240"):
        build(spark, Place(holed), index, world.roots)
    assert index.commits() == []


def test_segments_and_manifests_that_are_wrong(spark: Any, world: World, whole: Index, tmp_path: Path) -> None:
    archive = world.export(tmp_path / "archive")
    index = Index(Place(tmp_path / "index"))
    (path,) = (archive / "segments").glob("*.parquet")
    content = path.read_bytes()
    for bad in (content[:-10], content[:100] + b"\0" + content[101:], b""):
        path.write_bytes(bad)
        with pytest.raises(TrustError, match="digest differs"):
            build(spark, Place(archive), index, world.roots)
    path.unlink()
    with pytest.raises(TrustError, match="is missing"):
        build(spark, Place(archive), index, world.roots)
    assert index.commits() == []
    with pytest.raises(Absent, match="no archive"):
        build(spark, Place(tmp_path / "nowhere"), index, world.roots)
    # Another network's roots, for the archive and for an index that is there.
    others = LittleNetwork("strangers").node("n1").roots
    with pytest.raises(TrustError):
        build(spark, Place(world.archive), index, others)
    with pytest.raises(TrustError, match="other trust roots"):
        build(spark, Place(world.archive), whole, others)
    with pytest.raises(TrustError, match="other trust roots"):
        whole.require(others)


def test_an_index_of_another_archive(spark: Any, world: World, tmp_path: Path) -> None:
    index = Index(Place(tmp_path / "index"))
    build(spark, Place(world.export(tmp_path / "short", 100)), index, world.roots)
    with pytest.raises(TrustError, match="another archive"):
        build(spark, Place(world.archive), index, world.roots)


def test_a_damaged_index(spark: Any, world: World, whole: Index, tmp_path: Path) -> None:
    """A file that is gone, cut, or of nobody is missed before anything is read: by readers, and by whoever would add to it."""
    assert whole.place.local is not None
    index = Index(Place(shutil.copytree(whole.place.local, tmp_path / "a" / ".." / "index")))
    index.require(world.roots)
    (path,) = (tmp_path / "index/tables/changes").rglob("*.parquet")
    content = path.read_bytes()
    for damage, what in (
        (path.unlink, "is missing"),
        (lambda: path.write_bytes(content[:-1]), "has another length"),
        (lambda: shutil.copyfile(path, path.with_name("part-2.parquet")), "was not committed"),
    ):
        damage()
        with pytest.raises(TrustError, match=f"changes/.*{what}; index the archive anew"):
            index.require(world.roots)
        with pytest.raises(TrustError, match=what):
            build(spark, Place(world.archive), index, world.roots)
        path.with_name("part-2.parquet").unlink(missing_ok=True)
        path.write_bytes(content)
    # The first of two commits is lost: what is left would be taken for all.
    commits = index.require(world.roots)
    rest = Index(Place(tmp_path / "rest"))
    rest.commit(replace(commits[0], first=2))
    with pytest.raises(TrustError, match="begins with record 2"):
        rest.require(world.roots)
    # As long as it was, and something else.
    for broken in (bytes(len(content)), content[:20] + bytes(len(content) // 2) + content[20 + len(content) // 2 :]):
        path.write_bytes(broken)
        index.require(world.roots)
        with pytest.raises(TrustError, match=r"is damaged: .*; index the archive anew"), closing(DuckTables(index, commits)) as tables:
            tables.rows("SELECT * FROM changes")
        with pytest.raises(TrustError, match="is damaged"), closing(DuckTables(index, commits)) as tables:
            list(tables.batches("SELECT * FROM changes", []))


def test_executors_that_write_elsewhere(spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the same name on every machine is not the same folder."""
    index = Index(Place(tmp_path / "index"))
    monkeypatch.setattr(Index, "written", lambda self, batch: {})
    with pytest.raises(UsageError, match="the same folder for this machine and for every executor"):
        build(spark, Place(world.archive), index, world.roots)
    assert index.commits() == []


@pytest.mark.parametrize(
    ("content", "error"), [(b"{", TrustError), (b'{"format": 1}', UsageError), (b'{"format": 2}', UsageError), (b'{"format": 4}', UsageError), (b'{"format": 3}', TrustError)]
)
def test_commits_that_cannot_be_read(world: World, tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    place = Place(tmp_path / "index")
    place.write(content, "commits", f"{1:020}-{9:020}.json")
    with pytest.raises(error):
        Index(place).require(world.roots)
