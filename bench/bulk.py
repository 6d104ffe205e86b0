"""Bulk discovery beside the bare limit: one pass of Spark over an index, and DuckDB asked the same queries one by one over the same Parquet; equal results
demanded. How it grows with topics and with queries; and what an index costs beside bare signature checks of the same bytes.

A quarter of the topics is signed, archived and indexed (which takes ten minutes and more for a million); the rest are the same ones under other UUIDs, since a
search looks at no signature. `TDN_BENCH_TOPICS=200000` sets how many there are in all; archives and indexes are kept in `TDN_BENCH_FOLDER` if it is set.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.bulk_bare import bare_rate
from bench.bulk_data import (
    ADVERTISEMENTS,
    NOW,
    QUICK,
    SEED,
    SIGNED,
    TOPICS,
    archive_of,
    copied,
    index_of,
    kept,
    roots_of_sample,
    timed_build,
)
from bench.figures import print_table
from spark.cluster import Cluster
from spark.index.store import Index
from spark.places import Place
from spark.search.asked import Asked
from spark.search.running import search
from spark.session import session
from tdn.local.home import Home
from tdn.protocol.descriptor import searchable
from tdn.sample.queries import broad_queries, selective_queries
from tdn.sample.topics import describe
from tdn.trust.certificates import TrustRoots

QUERIES = 40 if QUICK else 1000
PATHS = 10 if QUICK else 200
#: Queries of each language that are asked one pass each, and from which all are reckoned.
_ALONE = 2 if QUICK else 5
#: DuckDB is asked one regular expression in so many, and the rest is reckoned: all of them would take it ten minutes. Broad ones come in the same proportion.
_ONE_IN = 1 if QUICK else 10
_RECKONED = "" if QUICK else ", reckoned from a tenth"
#: Topics whose index is made before the one that is timed.
WARM = 1000
#: One regular expression in so many is a broad one, which a good part of all topics match.
_BROAD_ONE_IN = 50
#: The large index is the signed one so many times, and the largest so many times.
_LARGE, _LARGEST = 4, 16
#: And the one for XPath and XQuery: a seventh of the topics are XML documents, and 250,000 of those are wanted.
_OF_DOCUMENTS = 7


def run(folder: Path) -> None:
    """Each in a process of its own: a JVM that an index started is not one for searches."""
    for name in SECTIONS:
        subprocess.run([sys.executable, "-m", "bench", f"bulk.{name}"], env={**os.environ, "TDN_BENCH_FOLDER": str(kept(folder))}, check=True)


def index(folder: Path) -> None:
    """Building an index, on one core and on two, beside bare signature checks of the same bytes."""
    archive = archive_of(folder, SIGNED)
    roots = roots_of_sample()
    rows: list[tuple[str, float, float, float]] = []
    for cores in (1, 2):
        # Before and after: what else the machine does changes within minutes.
        bare = [bare_rate(archive, cores)]
        with session(f"local[{cores}]", light=True) as spark:
            # As the bare checks: by processes that run.
            timed_build(spark, archive_of(folder, WARM), kept(folder) / "warm", roots)
            seconds, rate = timed_build(spark, archive, kept(folder) / f"once-{cores}", roots)
        bare.append(bare_rate(archive, cores))
        rows.append((f"ours, {cores} core{'s' if cores > 1 else ''}", seconds, rate, rate / mean(bare)))
        rows += [("  bare ES256 of the same bytes", 0.0, found, 1.0) for found in bare]
    print_table("Index: records a second, all signatures verified", ("", "seconds", "records/s", "of bare"), rows)


def regex(folder: Path) -> None:
    index = copied(folder, _LARGE)
    cold, rows = _cold(folder, index)
    with _searching(folder) as passes:
        _regexes(passes, index, cold, rows)


def sql(folder: Path) -> None:
    with _searching(folder) as passes:
        _sql(passes, copied(folder, _LARGE))


def xpath(folder: Path) -> None:
    with _searching(folder) as passes:
        _xml(passes, copied(folder, _OF_DOCUMENTS), "xpath")


def xquery(folder: Path) -> None:
    with _searching(folder) as passes:
        _xml(passes, copied(folder, _OF_DOCUMENTS), "xquery")


def workers(folder: Path) -> None:
    """One worker of a standalone cluster, and two, each with one core and one executor."""
    rows = []
    index, asked = copied(folder, _LARGE), _queries("regex", QUERIES)
    for count in (1, 2):
        # In a process of its own: a JVM that is there has its settings already.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append((count, *pool.apply(_by_workers, (kept(folder) / "cluster", index.place.name(), asked, count))))
    (_, first, found), (_, second, same) = rows
    assert found == same
    print_table(
        f"{len(asked)} regular expressions over {TOPICS} topics on a standalone cluster",
        ("", "seconds", "times as fast"),
        [("one worker", first, 1.0), ("two workers", second, first / second)],
    )


def growth(folder: Path) -> None:
    with _searching(folder) as passes:
        _growth(passes, [index_of(folder, SIGNED), copied(folder, _LARGE), copied(folder, _LARGEST)])


SECTIONS: dict[str, Callable[[Path], None]] = {
    "index": index, "regex": regex, "sql": sql, "xpath": xpath, "xquery": xquery, "workers": workers, "growth": growth
}


@contextmanager
def _searching(folder: Path) -> Iterator[_Passes]:
    """A warm session over an index that is there."""
    small = index_of(folder, SIGNED)
    copied(folder, _LARGE)
    with session("local[2]") as spark:
        passes = _Passes(spark, roots_of_sample(), kept(folder))
        passes(small, _queries("regex", 10))
        yield passes


def _cold(folder: Path, index: Index) -> tuple[float, int]:
    """What all of it takes from nothing: Python, a new JVM, the session, the pass. And how many rows it wrote."""
    out = kept(folder) / "cold"
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _ONCE, index.place.name(), str(out)], check=True, capture_output=True)
    return time.perf_counter() - began, pq.read_table(out / "matches").num_rows


#: One search in a process of its own.
_ONCE = """
import sys
from bench.bulk import search_once
search_once(*sys.argv[1:])
"""


def search_once(index: str, out: str) -> None:
    with session("local[2]") as spark:
        search(spark, Index(Place(index)), roots_of_sample(), _queries("regex", QUERIES), [], Path(out), entity=None, at=None, now=NOW, form="parquet")


def _by_workers(folder: Path, index: str, asked: Sequence[Asked], count: int) -> tuple[float, list[tuple[str, int]]]:
    """Seconds of a warm session's pass, and how many matches each query has."""
    cluster = Cluster(Home(folder))
    running, _ = cluster.up(count)
    try:
        if count == 1:
            # A worker alone would have all cores of the machine.
            with (cluster.conf / "spark-defaults.conf").open("a") as settings:
                settings.write("spark.cores.max 1\n")
        assert cluster.settings(running.master)
        with session(running.master) as spark:
            passes, found = _Passes(spark, roots_of_sample(), folder), Index(Place(index))
            passes(found, _queries("regex", 10))
            seconds, matches = passes(found, asked)
            return seconds, _counts(matches)
    finally:
        cluster.down()


# --- queries ---


def _queries(language: str, count: int) -> list[Asked]:
    """So many of the sample's selective queries, and broad ones among them: of regular expressions one in fifty, however many there are."""
    forms = selective_queries(SEED, SIGNED, 1, [language])[language]
    found = [query.text for query in selective_queries(SEED, SIGNED, count // len(forms) + 1, [language])[language]]
    random.Random(SEED).shuffle(found)
    broad = _broad_regexes(count // _BROAD_ONE_IN) if language == "regex" else [query.text for query in broad_queries()[language]][: count // 20]
    return [Asked(number, f"q{number}", language, text) for number, text in enumerate([*broad, *found][:count])]


def _broad_regexes(count: int) -> list[str]:
    """The commonest words of the sample, each in three ways."""
    words = Counter(word for number in range(3000) for word in set(re.findall("[a-z]{4,}", searchable(describe(SEED, number).descriptor))))
    common = [word for word, _ in words.most_common(count // 3 + 1)]
    return [form for word in common for form in (word, f"(?i){word}", f"\\b{word}")][:count]


class _Passes:
    """Searches as the operator in a warm session; what was found, and how long it took."""

    def __init__(self, spark: Any, roots: TrustRoots, folder: Path) -> None:
        self._spark = spark
        self._roots = roots
        self._out = folder / "out"

    def __call__(self, index: Index, asked: Sequence[Asked]) -> tuple[float, pa.Table]:
        shutil.rmtree(self._out, ignore_errors=True)
        asked = [replace(one, number=number) for number, one in enumerate(asked)]
        began = time.perf_counter()
        done = search(self._spark, index, self._roots, asked, [], self._out, entity=None, at=None, now=NOW, form="parquet")
        seconds = time.perf_counter() - began
        assert not [one for one in done.queries if "error" in one], done.queries
        return seconds, pq.read_table(self._out / "matches")


def _found(matches: pa.Table) -> set[tuple[str, str]]:
    return set(zip(matches["query"].to_pylist(), matches["uuid"].to_pylist(), strict=True)) if matches.num_rows else set()


def _counts(matches: pa.Table) -> list[tuple[str, int]]:
    """How many matches each query has that has any."""
    return sorted((one["values"], one["counts"]) for one in pc.value_counts(matches["query"]).to_pylist()) if matches.num_rows else []


def _duck(
    index: Index, made: str, ask: Callable[[Any, Asked], list[Any]], asked: Sequence[Asked], one_in: int = 1
) -> tuple[float, set[tuple[str, str]]]:
    """The same queries, or some of them, one by one, in a DuckDB that has its view of the table ready: what they find, and how long all would take."""
    folder = index.place.local
    assert folder is not None
    with closing(duckdb.connect()) as db:
        for table in ("advertisements", "properties"):
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{folder}/tables/{table}/**/*.parquet', hive_partitioning=true)")
        db.execute(made)
        began = time.perf_counter()
        some = asked[::one_in]
        answers = [(one.id, ask(db, one)) for one in some]
        seconds = (time.perf_counter() - began) * len(asked) / len(some)
        return seconds, {(name, row[0]) for name, rows in answers for row in rows}


#: What regular expressions see, as a Parquet file of its own: DuckDB then reads nothing else.
_TEXTS = """COPY (SELECT uuid, CASE descriptor_kind WHEN 'path' THEN path WHEN 'xml' THEN xml
    WHEN 'text' THEN array_to_string(list_prepend(text, keywords), chr(10))
    ELSE array_to_string([name || '=' || properties[name] FOR name IN list_sort(map_keys(properties))], chr(10)) END AS searchable
    FROM advertisements WHERE descriptor_kind <> 'sealed') TO '{path}' (FORMAT parquet, COMPRESSION zstd)"""


def _regexes(passes: _Passes, index: Index, cold: float, rows: int) -> None:
    asked = _queries("regex", QUERIES)
    seconds, matches = passes(index, asked)
    assert rows == matches.num_rows
    named = {one.id for one in asked[::_ONE_IN]}
    found = {row for row in _found(matches) if row[0] in named}
    path = Path(index.place.local or ".") / "texts.parquet"
    duck, same = _duck(
        index,
        _TEXTS.format(path=path),
        lambda db, one: db.execute(f"SELECT uuid FROM '{path}' WHERE regexp_matches(searchable, ?)", [one.text]).fetchall(),
        asked,
        _ONE_IN,
    )
    assert found == same, (len(found), len(same), sorted(found ^ same)[:5])
    print_table(
        f"{len(asked)} regular expressions over {TOPICS} topics, {matches.num_rows} matches",
        ("", "seconds", "times ours"),
        [
            ("one pass of Spark, warm", seconds, 1.0),
            ("a process of its own, from its start", cold, cold / seconds),
            (f"DuckDB, one by one{_RECKONED}", duck, duck / seconds),
            ("DuckDB : Spark from its start", duck, duck / cold),
        ],
    )


def _sql(passes: _Passes, index: Index) -> None:
    """Conjunctions, alternatives, negations, ranges and patterns over properties, drawn from what there is; each in three wordings."""
    folder = index.place.local
    with closing(duckdb.connect()) as db:
        db.execute(f"CREATE VIEW properties AS SELECT * FROM read_parquet('{folder}/tables/properties/**/*.parquet')")
        values = db.execute("SELECT name, value FROM properties USING SAMPLE reservoir(4000 ROWS) REPEATABLE (7)").fetchall()
        kinds: dict[str, list[str]] = dict(db.execute("SELECT name, list(DISTINCT type) FROM properties GROUP BY name").fetchall())
    draws = random.Random(SEED)
    # Of names that have one type in all topics: where they have several, ours tells 9 from '9', which DuckDB would have to be asked by another condition.
    texts = [(name, value) for name, value in values if kinds[name] == ["string"] and "'" not in value and len(value) > 3]
    numbers = [(name, float(value)) for name, value in values if {"integer", "float"} >= {*kinds[name]}]
    asked, maps, tables = [], {}, {}
    for number in range(QUERIES):
        (a, x), (b, y), (c, n) = draws.choice(texts), draws.choice(texts), draws.choice(numbers)
        shape, opening = number % 5, x[:6].replace("%", "").replace("_", "")
        ours = {
            0: f"\"{a}\" = '{x}' AND \"{b}\" = '{y}'",
            1: f"\"{a}\" = '{x}' OR \"{b}\" = '{y}' AND \"{c}\" > {n!r}",
            2: f"\"{a}\" = '{x}' AND NOT (\"{b}\" = '{y}')",
            3: f"\"{c}\" BETWEEN {n!r} AND {n + 0.5!r} AND \"{a}\" <> '{x}'",
            4: f"\"{a}\" LIKE '{opening}%' AND \"{c}\" <= {n!r}",
        }[shape]
        asked.append(Asked(number, f"q{number}", "sql", ours))
        maps[f"q{number}"] = _worded(ours, (a, b), c, lambda name: f"properties['{name}']")
        same, starts = _single(a, f"value = '{x}'"), _single(a, f"value LIKE '{opening}%'")
        other, unlike, second = _single(a, f"value <> '{x}'"), _single(b, f"value <> '{y}'"), _single(b, f"value = '{y}'")
        more, within, less = (_single(c, f"number {of}") for of in (f"> {n!r}", f"BETWEEN {n!r} AND {n + 0.5!r}", f"<= {n!r}"))
        tables[f"q{number}"] = {
            0: f"{same} INTERSECT {second}",
            1: f"{same} UNION ({second} INTERSECT {more})",
            2: f"{same} INTERSECT {unlike}",
            3: f"{within} INTERSECT {other}",
            4: f"{starts} INTERSECT {less}",
        }[shape]
    seconds, matches = passes(index, asked)
    found = _found(matches)
    map_seconds, by_map = _duck(
        index, "SELECT 1", lambda db, one: db.execute(f"SELECT uuid FROM advertisements WHERE descriptor_kind = 'properties' AND ({maps[one.id]})").fetchall(), asked
    )
    # The best layout for one query at a time: a table of DuckDB's own, in memory, of single values sorted by name and value.
    singles = "CREATE TABLE singles AS SELECT uuid, name, value, number FROM properties ORDER BY name, value, number"
    table_seconds, by_table = _duck(index, singles, lambda db, one: db.execute(tables[one.id]).fetchall(), asked)
    assert found == by_map, (len(found), len(by_map), sorted(found ^ by_map)[:5])
    assert by_map == by_table, (len(by_map), len(by_table), sorted(by_map ^ by_table)[:5])
    print_table(
        f"{len(asked)} SQL queries over {TOPICS} topics, {len(found)} matches",
        ("", "seconds", "times ours"),
        [
            ("one pass of Spark, warm", seconds, 1.0),
            ("DuckDB on the map, one by one", map_seconds, map_seconds / seconds),
            ("DuckDB on its own sorted table of single values, one by one", table_seconds, table_seconds / seconds),
        ],
    )


def _worded(ours: str, texts: Sequence[str], number: str, column: Callable[[str], str]) -> str:
    """One of our queries in DuckDB's words."""
    for name in texts:
        ours = ours.replace(f'"{name}"', column(name))
    return ours.replace(f'"{number}"', f"TRY_CAST({column(number)} AS DOUBLE)")


def _single(name: str, condition: str) -> str:
    """Topics of which one property is so."""
    return f"SELECT uuid FROM singles WHERE name = '{name}' AND {condition}"


def _xml(passes: _Passes, index: Index, language: str) -> None:
    asked = _queries(language, PATHS)
    seconds, matches = passes(index, asked)
    found = _found(matches)
    alone = [passes(index, [one]) for one in asked[:_ALONE]]
    for one, (_, matched) in zip(asked, alone, strict=False):
        assert _found(matched) == {row for row in found if row[0] == one.id}
    reckoned = sum(taken for taken, _ in alone) / len(alone) * len(asked)
    with closing(duckdb.connect()) as db:
        documents = db.execute(
            f"SELECT count(*) FROM read_parquet('{index.place.local}/tables/advertisements/*/descriptor_kind=xml/*.parquet')"
        ).fetchall()[0][0]
    print_table(
        f"{len(asked)} {language} queries over {documents} documents, {len(found)} matches",
        ("", "seconds", "times ours"),
        [("one pass", seconds, 1.0), (f"one pass a query, reckoned from {_ALONE}", reckoned, reckoned / seconds)],
    )


def _growth(passes: _Passes, indexes: Sequence[Index]) -> None:
    rows = []
    sizes = [sum(commit.rows[ADVERTISEMENTS] for commit in index.commits()) for index in indexes]
    for language in ("regex", "sql", "string"):
        asked = _queries(language, QUERIES)
        # Once before it is timed: what is asked first finds files that nobody has read yet.
        passes(indexes[0], asked)
        taken, found = zip(*((seconds, _counts(matches)) for seconds, matches in (passes(index, asked) for index in indexes)), strict=True)
        for times, counts in zip((_LARGE, _LARGEST), found[1:], strict=True):
            # Each copy has the same matches, but for those who ask for one UUID.
            by_uuid = {one.id for one in asked if str(one.text).startswith("uuid ")}
            compared = [[(query, count) for query, count in one if query not in by_uuid] for one in (counts, found[0])]
            assert compared[0] == [(query, times * count) for query, count in compared[1]]
        for number in range(1, len(indexes)):
            grown = taken[number] / taken[number - 1], sizes[number] / sizes[number - 1]
            rows.append((f"{len(asked)} {language}, {sizes[number - 1]} to {sizes[number]} topics", taken[number - 1], taken[number], *grown))
    few, many = _queries("regex", QUERIES // 10), _queries("regex", QUERIES * 10)
    first, second = passes(indexes[1], few)[0], passes(indexes[1], many)[0]
    rows.append((f"regex, {len(few)} to {len(many)} queries", first, second, second / first, len(many) / len(few)))
    print_table("Growth", ("", "first, s", "second, s", "grows", "in proportion"), rows)
