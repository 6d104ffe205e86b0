"""Bulk discovery beside the bare limit: one pass of Spark over an index, and DuckDB asked the same queries one by one over the same Parquet; equal results
demanded. How it grows with topics and with queries; and what an index costs beside bare signature checks of the same bytes.

A quarter of the topics is signed, archived and indexed (which takes ten minutes and more for a million); the rest are the same ones under other UUIDs, since a
search looks at no signature. `TDN_BENCH_TOPICS=200000` sets how many there are in all; archives and indexes are kept in `TDN_BENCH_FOLDER` if it is set.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from bench.figures import print_table
from spark.index.building import build
from spark.index.store import Index
from spark.places import Place
from spark.search.asked import Asked
from spark.search.running import search
from spark.session import session
from tdn.archive import segments
from tdn.sample.archive import write_archive
from tdn.sample.network import SampleNetwork
from tdn.sample.queries import broad_queries, selective_queries
from tdn.trust import signing
from tdn.trust.certificates import TrustRoots

SEED = 11
#: The sample's time, whenever it is measured; it is asked about a day later.
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
NOW = BEGIN + timedelta(days=1)
_QUICK = bool(os.environ.get("TDN_BENCH_QUICK"))
TOPICS = int(os.environ.get("TDN_BENCH_TOPICS", "3000" if _QUICK else "1000000"))
#: How many of them are signed: the first of each index's copies.
SIGNED = TOPICS // 4
QUERIES = 40 if _QUICK else 1000
PATHS = 10 if _QUICK else 200
#: Queries of each language that are asked one pass each, and from which all are reckoned.
_ALONE = 2 if _QUICK else 5
#: DuckDB is asked one query in so many, and the rest is reckoned: all of them would take it half an hour.
_ONE_IN = 1 if _QUICK else 10
_RECKONED = "" if _QUICK else ", reckoned from a tenth"
#: Topics whose index is made before the one that is timed.
_WARM = 1000
#: Records whose signatures are checked bare.
_CHECKED = 500 if _QUICK else 20_000
#: The large index is the signed one so many times, and the largest so many times.
_LARGE, _LARGEST = 4, 16
#: And the one for XPath and XQuery: a seventh of the topics are XML documents, and 250,000 of those are wanted.
_OF_DOCUMENTS = 7
_ADS = "advertisements"
#: What searches and DuckDB read.
_COPIED = (_ADS, "properties")


def run(folder: Path) -> None:
    """Each in a process of its own: a JVM that an index started is not one for searches."""
    for name in SECTIONS:
        subprocess.run([sys.executable, "-m", "bench", f"bulk.{name}"], env={**os.environ, "TDN_BENCH_FOLDER": str(_kept(folder))}, check=True)


def index(folder: Path) -> None:
    """Building an index, on one core and on two, beside bare signature checks of the same bytes."""
    archive = _archive(folder, SIGNED)
    roots = _roots()
    rows: list[tuple[str, float, float, float]] = []
    for cores in (1, 2):
        # Before and after: what else the machine does changes within minutes.
        bare = [_bare(archive, cores)]
        with session(f"local[{cores}]", light=True) as spark:
            # As the bare checks: by processes that run.
            _build(spark, _archive(folder, _WARM), _kept(folder) / "warm", roots)
            seconds, rate = _build(spark, archive, _kept(folder) / f"once-{cores}", roots)
        bare.append(_bare(archive, cores))
        rows.append((f"ours, {cores} core{'s' if cores > 1 else ''}", seconds, rate, rate / mean(bare)))
        rows += [("  bare ES256 of the same bytes", 0.0, found, 1.0) for found in bare]
    print_table("Index: records a second, all signatures verified", ("", "seconds", "records/s", "of bare"), rows)


def regex(folder: Path) -> None:
    started = _start_seconds()
    with _searching(folder) as passes:
        _regexes(passes, _copied(folder, _LARGE), started)


def sql(folder: Path) -> None:
    with _searching(folder) as passes:
        _sql(passes, _copied(folder, _LARGE))


def xpath(folder: Path) -> None:
    with _searching(folder) as passes:
        _xml(passes, _copied(folder, _OF_DOCUMENTS), "xpath")


def xquery(folder: Path) -> None:
    with _searching(folder) as passes:
        _xml(passes, _copied(folder, _OF_DOCUMENTS), "xquery")


def growth(folder: Path) -> None:
    with _searching(folder) as passes:
        _growth(passes, [_index(folder, SIGNED), _copied(folder, _LARGE), _copied(folder, _LARGEST)])


SECTIONS: dict[str, Callable[[Path], None]] = {
    "index": index, "regex": regex, "sql": sql, "xpath": xpath, "xquery": xquery, "growth": growth
}


def _kept(folder: Path) -> Path:
    """Where archives and indexes are: for the next section too, where `TDN_BENCH_FOLDER` names a place."""
    kept = Path(os.environ.get("TDN_BENCH_FOLDER") or folder)
    kept.mkdir(parents=True, exist_ok=True)
    return kept


@contextmanager
def _searching(folder: Path) -> Iterator[_Passes]:
    """A warm session over an index that is there."""
    small = _index(folder, SIGNED)
    _copied(folder, _LARGE)
    with session("local[2]") as spark:
        passes = _Passes(spark, _roots(), _kept(folder))
        passes(small, _queries("regex", 10))
        yield passes


def _index(folder: Path, size: int) -> Index:
    """The index of so many topics, made if it is not there."""
    place = _kept(folder) / f"index-{size}"
    found = Index(Place(place))
    if not found.commits():
        archive = _archive(folder, size)
        with session("local[2]") as spark:
            seconds, rate = _build(spark, archive, place, _roots())
        print(f"index of {size} topics: {seconds:.0f} s, {rate:.0f} records/s", flush=True)
    return found


def _copied(folder: Path, times: int) -> Index:
    """An index of so many times the topics: the same ones, each time under other UUIDs."""
    original = _index(folder, SIGNED)
    place = Place(_kept(folder) / f"index-{SIGNED}-times-{times}")
    copies = Index(place)
    if copies.commits():
        return copies
    shutil.rmtree(str(place), ignore_errors=True)
    assert original.place.local is not None
    assert place.local is not None
    shutil.copytree(original.place.local / "tables", place.local / "tables")
    commits = original.commits()
    span = commits[-1].last
    for copy in range(1, times):
        for commit in commits:
            rows = {table: count if table in _COPIED else 0 for table, count in commit.rows.items()}
            moved = replace(commit, first=commit.first + copy * span, last=commit.last + copy * span, rows=rows)
            for table in _COPIED:
                _copy_table(place.local / "tables" / table, commit.batch, moved.batch, copy, span)
            copies.commit(replace(moved, files=copies.written(moved.batch)))
    for commit in commits:
        copies.commit(replace(commit, files=copies.written(commit.batch)))
    return copies


def _copy_table(folder: Path, batch: str, to: str, copy: int, span: int) -> None:
    for path in sorted((folder / f"batch={batch}").rglob("*.parquet")):
        table = pq.ParquetFile(path).read()
        # Of the same length and form: the seventh and eighth character are the copy's number.
        uuids = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(table["uuid"], 0, 6), f"{copy:02x}", pc.utf8_slice_codeunits(table["uuid"], 8), ""
        )
        table = table.set_column(table.schema.get_field_index("uuid"), "uuid", uuids)
        table = table.set_column(table.schema.get_field_index("seq"), "seq", pc.add(table["seq"], copy * span))
        target = folder / f"batch={to}" / path.relative_to(folder / f"batch={batch}")
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, target, compression="zstd", row_group_size=16_384)


def _start_seconds() -> float:
    """What a session costs that begins with a new JVM: in a process of its own, since this one has a JVM already."""
    began = time.perf_counter()
    script = "from spark.session import session\nwith session('local[2]') as spark: spark.range(1).count()"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    return time.perf_counter() - began


def _roots() -> TrustRoots:
    return SampleNetwork.found(SEED, BEGIN).node("n1").roots


def _archive(folder: Path, size: int) -> Path:
    folder = _kept(folder)
    path = folder / f"archive-{size}"
    if not path.exists():
        began = time.perf_counter()
        # Made within a day, however many: what lives shortest lives a day.
        network = SampleNetwork.found(SEED, BEGIN, pace=max(20, size // 40_000))
        unfinished = folder / f"archive-{size}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        entries = write_archive(unfinished, SEED, size, network=network, processes=2)
        unfinished.rename(path)
        print(f"{entries[-1].last} records with {size} topics signed in {time.perf_counter() - began:.0f} s", flush=True)
    return path


def _build(spark: Any, archive: Path, folder: Path, roots: TrustRoots) -> tuple[float, float]:
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    built = build(spark, Place(archive), Index(Place(folder)), roots)
    seconds = time.perf_counter() - began
    assert built.rejected == 0
    return seconds, built.records / seconds


def _bare(archive: Path, processes: int) -> float:
    """Records a second whose signatures, of record, request and advertisement, are checked with raw `cryptography` and nothing else."""
    raws: list[bytes] = []
    for path in sorted((archive / "segments").iterdir()):
        raws += [record.raw for record in segments.read(path) if record.kind == "advertise"]
        if len(raws) >= _CHECKED:
            break
    keys = _keys(archive)
    jobs = [[(signed, signature, keys[who]) for raw in raws[start::processes] for signed, signature, who in _signatures(raw)] for start in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(_check, [job[:10] for job in jobs])
        began = time.perf_counter()
        pool.map(_check, jobs)
        return len(raws) / (time.perf_counter() - began)


def _keys(archive: Path) -> dict[str, bytes]:
    import json

    from cryptography.hazmat.primitives import serialization

    from tdn.trust.certificates import decode_chain, roots_from_ders

    roots = roots_from_ders(_roots().ders)
    found = {}
    for path in sorted((archive / "segments").iterdir()):
        for record in segments.read(path):
            for space, thumbprint, value in json.loads(record.effects) if "certificate" in record.effects else ():
                if space == "certificate":
                    identity = roots.follow(decode_chain(value["chain"]), at=datetime.fromisoformat(value["at"]))
                    found[thumbprint] = identity.public_key.public_bytes(
                        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
                    )
    return found


def _signatures(raw: bytes) -> list[tuple[bytes, bytes, str]]:
    found = []
    rest: bytes | None = raw
    while rest is not None:
        message = signing.split(rest)
        r, s = int.from_bytes(message.signature[:32], "big"), int.from_bytes(message.signature[32:], "big")
        found.append((message.signed, encode_dss_signature(r, s), message.header.thumbprint))
        rest = message.tail
    return found


def _check(job: Sequence[tuple[bytes, bytes, bytes]]) -> None:
    from cryptography.hazmat.primitives import serialization

    known: dict[bytes, Any] = {}
    algorithm = ec.ECDSA(hashes.SHA256())
    for signed, signature, der in job:
        key = known.get(der)
        if key is None:
            key = known[der] = serialization.load_der_public_key(der)
        key.verify(signature, signed, algorithm)


# --- queries ---


def _queries(language: str, count: int) -> list[Asked]:
    """So many of the sample's selective queries, and a few broad ones among them."""
    forms = selective_queries(SEED, SIGNED, 1, [language])[language]
    found = selective_queries(SEED, SIGNED, count // len(forms) + 1, [language])[language]
    random.Random(SEED).shuffle(found)
    broad = broad_queries()[language]
    chosen = [*found[: count - min(len(broad), count // 20)], *broad[: count // 20]]
    return [Asked(number, f"q{number}", language, query.text) for number, query in enumerate(chosen[:count])]


class _Passes:
    """Searches as the operator in a warm session; what was found, and how long it took."""

    def __init__(self, spark: Any, roots: TrustRoots, folder: Path) -> None:
        self._spark = spark
        self._roots = roots
        self._out = folder / "out"

    def __call__(self, index: Index, asked: Sequence[Asked]) -> tuple[float, set[tuple[str, str]]]:
        shutil.rmtree(self._out, ignore_errors=True)
        asked = [replace(one, number=number) for number, one in enumerate(asked)]
        began = time.perf_counter()
        done = search(self._spark, index, self._roots, asked, [], self._out, entity=None, at=None, now=NOW, form="parquet")
        seconds = time.perf_counter() - began
        assert not [one for one in done.queries if "error" in one], done.queries
        table = pq.read_table(self._out / "matches")
        return seconds, set(zip(table["query"].to_pylist(), table["uuid"].to_pylist(), strict=True)) if table.num_rows else set()


def _duck(index: Index, made: str, ask: Callable[[Any, Asked], list[Any]], asked: Sequence[Asked]) -> tuple[float, set[tuple[str, str]]]:
    """Some of the same queries, one by one, in a DuckDB that has its view of the table ready: what they find, and how long all would take."""
    folder = index.place.local
    assert folder is not None
    with closing(duckdb.connect()) as db:
        for table in ("advertisements", "properties"):
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{folder}/tables/{table}/**/*.parquet', hive_partitioning=true)")
        db.execute(made)
        began = time.perf_counter()
        found = {(one.id, row[0]) for one in _some(asked) for row in ask(db, one)}
        return (time.perf_counter() - began) * len(asked) / len(_some(asked)), found


def _some(asked: Sequence[Asked]) -> Sequence[Asked]:
    return asked[::_ONE_IN]


def _of_some(found: set[tuple[str, str]], asked: Sequence[Asked]) -> set[tuple[str, str]]:
    named = {one.id for one in _some(asked)}
    return {row for row in found if row[0] in named}


#: What regular expressions see, as a Parquet file of its own: DuckDB then reads nothing else.
_TEXTS = """COPY (SELECT uuid, CASE descriptor_kind WHEN 'path' THEN path WHEN 'xml' THEN xml
    WHEN 'text' THEN array_to_string(list_prepend(text, keywords), chr(10))
    ELSE array_to_string([name || '=' || properties[name] FOR name IN list_sort(map_keys(properties))], chr(10)) END AS searchable
    FROM advertisements WHERE descriptor_kind <> 'sealed') TO '{path}' (FORMAT parquet, COMPRESSION zstd)"""


def _regexes(passes: _Passes, index: Index, started: float) -> None:
    asked = _queries("regex", QUERIES)
    seconds, found = passes(index, asked)
    path = index.place.name("texts.parquet")
    duck, same = _duck(
        index,
        _TEXTS.format(path=path),
        lambda db, one: db.execute(f"SELECT uuid FROM '{path}' WHERE regexp_matches(searchable, ?)", [one.text]).fetchall(),
        asked,
    )
    assert _of_some(found, asked) == same, (len(found), len(same), sorted(_of_some(found, asked) ^ same)[:5])
    print_table(
        f"{len(asked)} regular expressions over {TOPICS} topics, {len(found)} matches",
        ("", "seconds", "times ours"),
        [
            ("one pass of Spark, warm", seconds, 1.0),
            ("with the session's start", seconds + started, (seconds + started) / seconds),
            (f"DuckDB, one by one{_RECKONED}", duck, duck / seconds),
            ("DuckDB : Spark with its start", duck, duck / (seconds + started)),
        ],
    )


def _sql(passes: _Passes, index: Index) -> None:
    """Conjunctions, alternatives, negations, ranges and patterns over properties, drawn from what there is; each in three wordings."""
    folder = index.place.local
    with closing(duckdb.connect()) as db:
        values = db.execute(
            f"SELECT name, type, value FROM read_parquet('{folder}/tables/properties/**/*.parquet') USING SAMPLE reservoir(4000 ROWS) REPEATABLE (7)"
        ).fetchall()
    draws = random.Random(SEED)
    texts = [(name, value) for name, kind, value in values if kind == "string" and "'" not in value and len(value) > 3]
    # Of other names: DuckDB's wording has one type for each.
    numbers = [(name, float(value)) for name, kind, value in values if kind in ("integer", "float") and name not in dict(texts)]
    asked, maps, tables = [], {}, {}
    for number in range(QUERIES):
        (a, x), (b, y), (c, n) = draws.choice(texts), draws.choice(texts), draws.choice(numbers)
        shape = number % 5
        ours = {
            0: f"\"{a}\" = '{x}' AND \"{b}\" = '{y}'",
            1: f"\"{a}\" = '{x}' OR \"{b}\" = '{y}' AND \"{c}\" > {n!r}",
            2: f"\"{a}\" = '{x}' AND NOT (\"{b}\" = '{y}')",
            3: f"\"{c}\" BETWEEN {n!r} AND {n + 0.5!r} AND \"{a}\" <> '{x}'",
            4: f"\"{a}\" LIKE '{x[:6].replace('%', '').replace('_', '')}%' AND \"{c}\" <= {n!r}",
        }[shape]
        asked.append(Asked(number, f"q{number}", "sql", ours))
        maps[f"q{number}"] = _worded(ours, (a, b), c, lambda name: f"properties['{name}']")
        tables[f"q{number}"] = _worded(ours, (a, b), c, lambda name: f"max(value) FILTER (name = '{name}')")
    seconds, found = passes(index, asked)
    map_seconds, by_map = _duck(
        index, "SELECT 1", lambda db, one: db.execute(f"SELECT uuid FROM advertisements WHERE descriptor_kind = 'properties' AND ({maps[one.id]})").fetchall(), asked
    )
    # The best layout for one query: rows of single values, of which only those that it names are read.
    table_seconds, by_table = _duck(
        index,
        "SELECT 1",
        lambda db, one: db.execute(
            f"SELECT uuid FROM properties WHERE name IN ({_names(one.text)}) GROUP BY uuid HAVING {tables[one.id]}"
        ).fetchall(),
        asked,
    )
    assert _of_some(found, asked) == by_map, (len(found), len(by_map), sorted(_of_some(found, asked) ^ by_map)[:5])
    assert by_map == by_table
    print_table(
        f"{len(asked)} SQL queries over {TOPICS} topics, {len(found)} matches",
        ("", "seconds", "times ours"),
        [
            ("one pass of Spark, warm", seconds, 1.0),
            (f"DuckDB on the map, one by one{_RECKONED}", map_seconds, map_seconds / seconds),
            (f"DuckDB on single values{_RECKONED}", table_seconds, table_seconds / seconds),
        ],
    )


def _worded(ours: str, texts: Sequence[str], number: str, column: Callable[[str], str]) -> str:
    """One of our queries in DuckDB's words."""
    for name in texts:
        ours = ours.replace(f'"{name}"', column(name))
    return ours.replace(f'"{number}"', f"TRY_CAST({column(number)} AS DOUBLE)")


def _names(text: str) -> str:
    import re

    return ", ".join(f"'{name}'" for name in sorted(set(re.findall(r'"([^"]+)"', text))))


def _xml(passes: _Passes, index: Index, language: str) -> None:
    asked = _queries(language, PATHS)
    seconds, found = passes(index, asked)
    alone = [passes(index, [one]) for one in asked[:_ALONE]]
    for one, (_, matched) in zip(asked, alone, strict=False):
        assert matched == {row for row in found if row[0] == one.id}
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
    sizes = [sum(commit.rows[_ADS] for commit in index.commits()) for index in indexes]
    for language in ("regex", "sql", "string"):
        asked = _queries(language, QUERIES)
        taken = [passes(index, asked)[0] for index in indexes]
        for number in range(1, len(indexes)):
            grown = taken[number] / taken[number - 1], sizes[number] / sizes[number - 1]
            rows.append((f"{len(asked)} {language}, {sizes[number - 1]} to {sizes[number]} topics", taken[number - 1], taken[number], *grown))
    few, many = _queries("regex", QUERIES // 10), _queries("regex", QUERIES * 10)
    first, second = passes(indexes[1], few)[0], passes(indexes[1], many)[0]
    rows.append((f"regex, {len(few)} to {len(many)} queries", first, second, second / first, len(many) / len(few)))
    print_table("Growth", ("", "first, s", "second, s", "grows", "in proportion"), rows)
