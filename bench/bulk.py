"""Bulk discovery beside the bare limit: one pass of Spark over an index, and DuckDB asked the same queries one by one over the same Parquet; equal results
demanded. How it grows with topics and with queries; and what an index costs beside bare signature checks of the same bytes.

`TDN_BENCH_TOPICS=200000` sets the size (a million needs twenty minutes to be signed alone); archives and indexes are kept in `TDN_BENCH_FOLDER` if it is set.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
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
QUERIES = 40 if _QUICK else 1000
PATHS = 10 if _QUICK else 200
#: Queries of each language that are asked one pass each, and from which all are reckoned.
_ALONE = 2 if _QUICK else 5
#: Records whose signatures are checked bare.
_CHECKED = 500 if _QUICK else 20_000


def run(folder: Path) -> None:
    kept = os.environ.get("TDN_BENCH_FOLDER")
    folder = Path(kept) if kept else folder
    folder.mkdir(parents=True, exist_ok=True)
    sizes = sorted({TOPICS // 4, TOPICS})
    archives = {size: _archive(folder, size) for size in sizes}
    roots = _roots()
    indexes = {size: Index(Place(folder / f"index-{size}")) for size in sizes}
    rows = []
    for cores in (1, 2):
        with session(f"local[{cores}]") as spark:
            rows.append((f"ours, {cores} core{'s' if cores > 1 else ''}", *_build(spark, archives[sizes[0]], folder / f"once-{cores}", roots)))
    with session("local[2]") as spark:
        if not indexes[TOPICS].commits():
            rows.append((f"ours, 2 cores, {TOPICS} topics", *_build(spark, archives[TOPICS], folder / f"index-{TOPICS}", roots)))
    bare = {processes: _bare(archives[sizes[0]], processes) for processes in (1, 2)}
    rows += [(f"bare ES256 of the same bytes, {processes} processes", 0.0, rate) for processes, rate in bare.items()]
    print_table("Index: records a second, all signatures verified", ("", "seconds", "records/s"), rows)
    if not indexes[sizes[0]].commits():
        shutil.move(folder / "once-2", folder / f"index-{sizes[0]}")

    started = _start_seconds()
    with session("local[2]") as spark:
        passes = _Passes(spark, roots, folder)
        passes(indexes[sizes[0]], _queries("regex", 10))  # Warm.
        _regexes(passes, indexes[TOPICS], started)
        _sql(passes, indexes[TOPICS])
        _xml(passes, indexes[TOPICS], "xpath")
        _xml(passes, indexes[TOPICS], "xquery")
        _growth(passes, indexes)


def _start_seconds() -> float:
    """What a session costs that begins with a new JVM: in a process of its own, since this one has a JVM already."""
    began = time.perf_counter()
    script = "from spark.session import session\nwith session('local[2]') as spark: spark.range(1).count()"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    return time.perf_counter() - began


def _roots() -> TrustRoots:
    return SampleNetwork.found(SEED, BEGIN).node("n1").roots


def _archive(folder: Path, size: int) -> Path:
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
    forms = selective_queries(SEED, TOPICS, 1, [language])[language]
    found = selective_queries(SEED, TOPICS, count // len(forms) + 1, [language])[language]
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
        import pyarrow.parquet as pq

        shutil.rmtree(self._out, ignore_errors=True)
        asked = [replace(one, number=number) for number, one in enumerate(asked)]
        began = time.perf_counter()
        done = search(self._spark, index, self._roots, asked, [], self._out, entity=None, at=None, now=NOW, form="parquet")
        seconds = time.perf_counter() - began
        assert not [one for one in done.queries if "error" in one], done.queries
        table = pq.read_table(self._out / "matches")
        return seconds, set(zip(table["query"].to_pylist(), table["uuid"].to_pylist(), strict=True)) if table.num_rows else set()


def _duck(index: Index, made: str, ask: Callable[[Any, Asked], list[Any]], asked: Sequence[Asked]) -> tuple[float, set[tuple[str, str]]]:
    """The same queries, one by one, in a DuckDB that has its view of the table ready."""
    folder = index.place.local
    assert folder is not None
    with closing(duckdb.connect()) as db:
        for table in ("advertisements", "properties"):
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{folder}/tables/{table}/**/*.parquet', hive_partitioning=true)")
        db.execute(made)
        began = time.perf_counter()
        found = {(one.id, row[0]) for one in asked for row in ask(db, one)}
        return time.perf_counter() - began, found


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
    assert found == same, (len(found), len(same), sorted(found ^ same)[:5])
    print_table(
        f"{len(asked)} regular expressions over {TOPICS} topics, {len(found)} matches",
        ("", "seconds", "times ours"),
        [
            ("one pass of Spark, warm", seconds, 1.0),
            ("with the session's start", seconds + started, (seconds + started) / seconds),
            ("DuckDB, one by one", duck, duck / seconds),
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
    few = asked[: max(1, len(asked) // 10)]
    table_seconds, by_table = _duck(
        index,
        "SELECT 1",
        lambda db, one: db.execute(
            f"SELECT uuid FROM properties WHERE name IN ({_names(one.text)}) GROUP BY uuid HAVING {tables[one.id]}"
        ).fetchall(),
        few,
    )
    assert found == by_map, (len(found), len(by_map), sorted(found ^ by_map)[:5])
    named = {one.id for one in few}
    assert {row for row in found if row[0] in named} == by_table
    print_table(
        f"{len(asked)} SQL queries over {TOPICS} topics, {len(found)} matches",
        ("", "seconds", "times ours"),
        [
            ("one pass of Spark, warm", seconds, 1.0),
            ("DuckDB on the map, one by one", map_seconds, map_seconds / seconds),
            ("DuckDB on single values, reckoned from a tenth", table_seconds * 10, table_seconds * 10 / seconds),
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
    print_table(
        f"{len(asked)} {language} queries, {len(found)} matches",
        ("", "seconds", "times ours"),
        [("one pass", seconds, 1.0), (f"one pass a query, reckoned from {_ALONE}", reckoned, reckoned / seconds)],
    )


def _growth(passes: _Passes, indexes: dict[int, Index]) -> None:
    rows = []
    for language in ("regex", "sql", "string"):
        asked = _queries(language, QUERIES)
        taken = {size: passes(index, asked)[0] for size, index in indexes.items()}
        small, large = min(taken), max(taken)
        rows.append((f"{len(asked)} {language}, {small} to {large} topics", taken[small], taken[large], taken[large] / taken[small], large / small))
    few, many = _queries("regex", QUERIES // 10), _queries("regex", QUERIES * 10)
    first, second = passes(indexes[max(indexes)], few)[0], passes(indexes[max(indexes)], many)[0]
    rows.append((f"regex, {len(few)} to {len(many)} queries", first, second, second / first, len(many) / len(few)))
    print_table("Growth", ("", "first, s", "second, s", "grows", "in proportion"), rows)
