"""T38: an index is the same wherever it lies and whatever the folders above it are called: nothing in a path is a pattern, a column, or of another file system."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_index import LATER, ROOTS, make, principal, topic, uuid

from spark.index.store import Index
from spark.places import Place
from spark.search import single
from spark.search.asked import Asked
from spark.search.engines import DuckTables, SparkTables
from spark.search.running import search
from tdn.queries.model import indexed_text

NOW = LATER.replace(year=2027, month=6)
ASKED = [Asked(0, "q", "regex", "secret"), Asked(1, "x", "xpath", "//a")]
ODD = ["v[1]", "b\\s[x]", "a{b,c}", "**", "q?", "sp ace", "per%20c", "h#x", "c:d", "O'Slo", "^[^]", "ü"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Two topics, which no entity of Physics may see but their owner."""
    xml = {"descriptor_kind": "xml", "path": None, "xml": "<a>secret</a>", "indexed": indexed_text({"kind": "xml", "xml": "<a>secret</a>"}, uuid(2))}
    return make(
        tmp_path_factory.mktemp("made") / "index",
        {
            "principals": [principal("mallory", "Physics"), principal("bob", "Oslo")],
            "advertisements": [topic(1, "secret/x", access="A"), topic(2, "", access="A", **xml)],
            "access": [{"access": "A", "seq": 1, "allow": None, "deny": ["institution:Physics"], "lists": "{}"}],
            "signed": [{"uuid": uuid(number), "seq": number, "advertisement": "…", "opening": "{}"} for number in (1, 2)],
        },
    )


def moved(made: Index, to: Path) -> Index:
    assert made.place.local is not None
    shutil.copytree(made.place.local, to)
    return Index(Place(to))


def found(spark: Any, index: Index, out: Path, entity: str | None, **more: Any) -> set[tuple[str, str]]:
    search(spark, index, ROOTS, ASKED, [], out, entity=entity, at=None, now=NOW, **more)
    rows = [json.loads(line) for path in (out / "matches").glob("*.json") for line in path.read_text("utf-8").splitlines()]
    return {(row["query"], row["uuid"]) for row in rows}


def asked_of_duckdb(index: Index, entity: str | None) -> set[str]:
    topics, _ = single.query(index, ROOTS, ASKED[0], entity=entity, at=None, now=NOW, limit=None)
    return {topic["uuid"] for topic in topics}


#: Folders that would be columns: of who asks, of what the lists are about, of when a topic ends, of what it is.
ABOVE = ["institution=Oslo", "access=B/deny=x", "creator=mallory/owner=mallory", "expires=2030-01-01/descriptor_kind=sealed", "batch=7/seq=0"]


@pytest.mark.parametrize("above", ABOVE)
def test_folders_above_are_no_columns_to_duckdb(made: Index, tmp_path: Path, above: str) -> None:
    """T18: an index that lies in `institution=Oslo` shows nobody what only Oslo may see."""
    index = moved(made, tmp_path / above / "index")
    assert asked_of_duckdb(index, "mallory") == set()
    assert asked_of_duckdb(index, "bob") == asked_of_duckdb(index, None) == {uuid(1), uuid(2)}
    with closing(DuckTables(index, index.commits())) as tables:
        assert {row["descriptor_kind"] for row in tables.rows("SELECT descriptor_kind FROM advertisements")} == {"path", "xml"}


def test_folders_above_are_no_columns_to_spark(spark: Any, made: Index, tmp_path: Path) -> None:
    index = moved(made, tmp_path.joinpath(*ABOVE) / "index")

    def asked_as() -> set[str]:
        return {table.name for table in spark.catalog.listTables() if table.name.startswith("asking")}

    before = asked_as()
    assert found(spark, index, tmp_path / "out", "mallory") == set()
    assert asked_as() == before, "who asked is not left in the session"
    assert found(spark, index, tmp_path / "other", "bob") == {("q", uuid(1)), ("q", uuid(2)), ("x", uuid(2))}


@pytest.mark.parametrize("name", ODD)
def test_no_letter_of_a_path_means_anything(spark: Any, made: Index, tmp_path: Path, name: str) -> None:
    index = moved(made, tmp_path / name / "index")
    assert asked_of_duckdb(index, "bob") == {uuid(1), uuid(2)}
    tables = SparkTables(spark, index, index.commits())
    assert {row["uuid"] for row in tables.rows("SELECT uuid FROM advertisements WHERE file LIKE 'batch=%/descriptor_kind=%/part-1.parquet'")} == {uuid(1), uuid(2)}


@contextmanager
def elsewhere(spark: Any) -> Iterator[None]:
    """A Spark whose files are on another machine, as of most clusters."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        yield
    finally:
        settings.set("fs.defaultFS", before)


def test_a_search_between_odd_folders(spark: Any, made: Index, tmp_path: Path) -> None:
    """With the signed bytes, for which Spark reads the results again, and writes them; also where its own files are elsewhere."""
    index = moved(made, tmp_path / "v[1]" / "index")
    everything = {("q", uuid(1)), ("q", uuid(2)), ("x", uuid(2))}
    assert found(spark, index, tmp_path / "x[1]" / "out{a,b}", None, signed=True) == everything
    with elsewhere(spark):
        assert found(spark, index, tmp_path / "y[1]", "bob", signed=True) == everything
