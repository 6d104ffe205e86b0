"""T38: a report draws what the tables hold: each plot's numbers are those that are counted here otherwise, from the rows."""

from __future__ import annotations

import errno
import html
import os
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.dates import num2date
from matplotlib.figure import Figure
from small_index import ROOTS, make, topic, uuid

from spark import report
from spark.index.store import Index
from spark.search.engines import DuckTables
from tdn.errors import UsageError

#: Late in the evening of UTC: a day elsewhere.
BEGIN = datetime(2027, 3, 30, 22, 15, tzinfo=UTC)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_LIVES = [_HOUR, 2 * _HOUR, _DAY, 6 * _DAY, 30 * _DAY, 31 * _DAY, 500 * _DAY]


def rows(span: timedelta, count: int = 120) -> list[dict[str, Any]]:
    """Topics of a span of time, with a hole in its middle; chains of them below each other, of different depths; a few collections."""
    draws = Random(7)
    found: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        part = number / count
        created = BEGIN + span * (part if part < 0.3 or part > 0.6 else 0.3)
        parent = uuid(draws.randrange(max(1, number - 6), number)) if number > 1 and draws.random() < 0.6 else None
        kind = "collection" if number % 29 == 0 else "topic"
        more = {"parent": None if kind == "collection" else parent, "kind": kind, "institution": f"House {draws.randrange(number) % 19} <&$x$>"}
        found.append(topic(number, f"a/{number}", created=created, expires=created + draws.choice(_LIVES), **more))
    # Below a collection there is nothing: what was drawn so is a root.
    collections = {row["uuid"] for row in found if row["kind"] == "collection"}
    return [{**row, "parent": None} if row["parent"] in collections else row for row in found]


def index_of(found: Sequence[Mapping[str, Any]], folder: Path) -> Index:
    return make(folder / "index", {"advertisements": found})


def drawn(index: Index, title: str) -> Any:
    axes = Figure().subplots()
    with closing(DuckTables(index, index.commits())) as tables:
        report._FIGURES[title](axes, tables)
    return axes


def bars(index: Index, title: str) -> list[tuple[str, int, str]]:
    """Of each bar what it is called, how long it is, and what stands beside it."""
    axes = drawn(index, title)
    names = [label.get_text().replace(r"\$", "$") for label in axes.get_yticklabels()]
    return [(name, int(bar.get_width()), label.get_text()) for name, bar, label in zip(names, axes.patches, axes.texts, strict=True)]


@pytest.mark.parametrize(
    ("span", "begin", "step"),
    [
        (timedelta(hours=1), {"second": 0, "microsecond": 0}, timedelta(minutes=1)),
        (2 * _DAY, {"minute": 0, "second": 0, "microsecond": 0}, _HOUR),
        (40 * _DAY, {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}, _DAY),
        (400 * _DAY, {"day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0}, None),
    ],
    ids=["minutes", "hours", "days", "months"],
)
def test_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: timedelta, begin: dict[str, int], step: timedelta | None) -> None:
    """By UTC, and where nothing was advertised there is nothing."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    found = rows(span)
    expected = Counter(row["created"].replace(**begin) for row in found)
    axes = drawn(index_of(found, tmp_path), "Over time")
    (line,) = axes.lines
    moments, counts = [num2date(at) if not isinstance(at, datetime) else at for at in line.get_xdata()], list(line.get_ydata())
    assert counts[-1] == counts[-2]
    shown = {at.astimezone(UTC): count for at, count in zip(moments[:-1], counts[:-1], strict=True)}
    assert {at: count for at, count in shown.items() if count} == expected
    assert 0 in shown.values()
    for at, later in pairwise(moments):
        assert later - at == step if step is not None else (later.day, (later - at).days in range(28, 32)) == (1, True)


def test_the_bars(tmp_path: Path) -> None:
    found = rows(40 * _DAY)
    index = index_of(found, tmp_path)

    def counted(counts: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        return {name: (count, f"{count:,}") for name, count in counts.items()}

    def shown(title: str) -> dict[str, tuple[int, str]]:
        return {name: (width, label) for name, width, label in bars(index, title)}

    parents = {row["uuid"]: row["parent"] for row in found if row["kind"] == "topic"}

    def depth(one: str) -> int:
        return 1 if parents[one] is None else 1 + depth(parents[one])

    depths = Counter(f"level {depth(one)}" for one in parents)
    assert len(depths) > 3
    assert shown("Depth of hierarchies") == counted(depths)
    assert shown("By kind") == counted(Counter(f"{row['kind']}, path" for row in found))
    houses = Counter(row["institution"] for row in found)
    first = sorted(houses, key=lambda name: (-houses[name], name))[: report._NAMED]
    others = {f"{len(houses) - len(first)} others": sum(count for name, count in houses.items() if name not in first)}
    assert shown("By institution") == counted({name: houses[name] for name in first} | others)
    classes = {"an hour": _HOUR, "a day": _DAY, "a week": 7 * _DAY, "30 days": 30 * _DAY, "a year": 365 * _DAY}
    lives = dict.fromkeys([*(f"up to {name}" for name in classes), "longer"], 0)
    for row in found:
        name = next((f"up to {name}" for name, most in classes.items() if row["expires"] - row["created"] <= most), "longer")
        lives[name] += 1
    assert shown("By lifetime") == counted(lives)


def test_the_page(tmp_path: Path) -> None:
    """What is drawn stands in it as text, with the sums; as often as it is made, the same."""
    found = rows(40 * _DAY)
    index = index_of(found, tmp_path)
    out = tmp_path / "report.html"
    report.write(index, ROOTS, out)
    page = out.read_text("utf-8")
    for title in report._FIGURES:
        assert f"<h2>{title}</h2>" in page
    texts = {html.unescape(text) for text in re.findall(r"<text [^>]*>([^<]*)</text>", page)}
    for title in ("By kind", "By lifetime", "Depth of hierarchies", "By institution"):
        for name, _, label in bars(index, title):
            assert {name, label} <= texts, (title, name)
    assert f"<td>advertised</td><td>{len(found)}</td>" in page
    assert f"<td>institutions</td><td>{len({row['institution'] for row in found})}</td>" in page
    report.write(index, ROOTS, out)
    assert out.read_text("utf-8") == page
    assert mpl.get_backend().lower() == "svg"


def test_a_report_is_there_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up leaves the one of before, and nothing half."""
    index = index_of(rows(2 * _DAY, 10), tmp_path)
    before, out = tmp_path / "kept.html", tmp_path / "report.html"
    before.write_text("the one of before")
    out.symlink_to(before)
    there = sorted(tmp_path.iterdir())
    write_text = Path.write_text

    def full(self: Path, text: str, *more: Any) -> int:
        write_text(self, text[:100], *more)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(UsageError, match="cannot be written: No space left"):
            report.write(index, ROOTS, out)
    assert before.read_text("utf-8") == "the one of before"
    assert sorted(tmp_path.iterdir()) == there
    report.write(index, ROOTS, out)
    assert out.is_symlink()
    assert before.read_text("utf-8").startswith("<!doctype html>")
    assert sorted(tmp_path.iterdir()) == there


def test_a_report_into_a_pipe(tmp_path: Path) -> None:
    index, pipe = index_of(rows(2 * _DAY, 10), tmp_path), tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text("utf-8")), daemon=True)
    reader.start()
    report.write(index, ROOTS, pipe)
    reader.join(30.0)
    assert pipe.is_fifo()
    assert read[0].endswith("</html>\n")


def test_an_index_without_topics(tmp_path: Path) -> None:
    report.write(make(tmp_path / "index", {}), ROOTS, tmp_path / "report.html")
    assert "There are none." in (tmp_path / "report.html").read_text("utf-8")
