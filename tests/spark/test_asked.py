"""T38: a file of queries as it comes, what the command refuses, and what tasks leave behind. No Spark is needed."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark.cli.main import build_parser
from spark.places import Place
from spark.search import asked, results, running
from spark.search.bulk import Found
from spark.search.results import TOLD, Part
from spark.search.topics import Topics
from tdn.errors import UsageError
from tdn.queries.times import Times


def test_a_bad_line_stops_no_other(tmp_path: Path) -> None:
    good = {"id": "good", "language": "string", "query": "a\u2028b\u0085c\u2029d"}
    lines = [
        "[" * 100_000,
        '{"id": "deep", "query": ' + "[" * 100_000 + "]" * 100_000 + "}",
        json.dumps(good, ensure_ascii=False) + "\r",
        '{"id": "none"}',
        '{"id": "half", "query": "x", "created_after": "2027-01-01T00:00:00Z"}',
        '{"id": "times", "created_after": "2027-01-01T00:00:00Z"}',
    ]
    path = tmp_path / "queries.jsonl"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    sound, faulty = asked.read_file(path)
    assert [(one.id, one.text) for one in sound] == [("good", good["query"]), ("times", None)]
    assert sound[1].times == Times(created_after=datetime(2027, 1, 1, tzinfo=UTC))
    assert [one.id for one in faulty] == ["line 1", "line 2", "none", "half"]
    assert "nested too deeply" in faulty[0].error
    assert "nothing to look for" in faulty[2].error
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        asked.read_file(path)
    with pytest.raises(UsageError, match="cannot be read"):
        asked.read_file(tmp_path / "none")


@pytest.mark.parametrize("out", ["s3a://bucket/found", "hdfs://host/found"])
def test_results_go_to_a_folder(out: str) -> None:
    with pytest.raises(UsageError, match="share"):
        build_parser().parse_args(["search", "--index", "i", "--queries", "q", "--operator", "--out", out])


def test_files_that_are_not_here(tmp_path: Path) -> None:
    """Workers that do not share the folder write their own: nothing must not be taken for what they found."""
    found = tmp_path / ".out.unfinished" / "found"
    told = pa.Table.from_pylist([{"file": "part-00000-1.json", "topics": 5, "numbers": [0], "matches": [2]}, {"file": None, "topics": 5}], schema=TOLD)
    with pytest.raises(UsageError, match="name a folder for --out that all of them share"):
        running._tidied(found, told, "jsonl")
    (found / "part-00000-1.json").write_text("{}\n")
    (found / "part-00000-0.json").write_text("{}\n")
    running._tidied(found, told, "jsonl")
    assert [path.name for path in found.iterdir()] == ["part-00000-1.json"]


def test_what_many_queries_found_is_not_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_AT_ONCE", 100)
    kept: list[weakref.ref[object]] = []
    most = 0

    def found() -> Iterator[Found]:
        nonlocal most
        for number in range(200):
            rows = np.arange(10)
            kept.append(weakref.ref(rows))
            yield number, rows
            del rows
            most = max(most, sum(1 for one in kept if one() is not None))

    topics = Topics({"uuid": pa.array([f"u{n}" for n in range(10)])}.__getitem__, 10)
    with Part(Place(tmp_path), "part", "jsonl", [f"q{n}" for n in range(200)]) as part:
        part.add(found(), topics)
    assert most <= 12
    rows = [json.loads(line) for line in (tmp_path / "part.json").read_text().splitlines()]
    assert len({(row["query"], row["uuid"]) for row in rows}) == len(rows) == 2000
