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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from bench.figures import print_table
from spark.cluster import Cluster
from spark.index.building import build
from spark.index.store import Index
from spark.places import Place
from spark.search.asked import Asked
from spark.search.running import search
from spark.session import session
from tdn.archive import segments
from tdn.local.home import Home
from tdn.protocol.descriptor import searchable
from tdn.sample.archive import write_archive
from tdn.sample.network import SampleNetwork
from tdn.sample.queries import broad_queries, selective_queries
from tdn.sample.topics import describe
from tdn.trust import signing
from tdn.trust.certificates import TrustRoots, decode_chain

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
#: DuckDB is asked one regular expression in so many, and the rest is reckoned: all of them would take it ten minutes. Broad ones come in the same proportion.
_ONE_IN = 1 if _QUICK else 10
_RECKONED = "" if _QUICK else ", reckoned from a tenth"
#: Topics whose index is made before the one that is timed.
_WARM = 1000
#: Of how many records signatures are checked bare, or some more.
_CHECKED = 500 if _QUICK else 20_000
#: One regular expression in so many is a broad one, which a good part of all topics match.
_BROAD_ONE_IN = 50
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
    index = _copied(folder, _LARGE)
    cold, rows = _cold(folder, index)
    with _searching(folder) as passes:
        _regexes(passes, index, cold, rows)


def sql(folder: Path) -> None:
    with _searching(folder) as passes:
        _sql(passes, _copied(folder, _LARGE))


def xpath(folder: Path) -> None:
    with _searching(folder) as passes:
        _xml(passes, _copied(folder, _OF_DOCUMENTS), "xpath")


def xquery(folder: Path) -> None:
    with _searching(folder) as passes:
        _xml(passes, _copied(folder, _OF_DOCUMENTS), "xquery")


def workers(folder: Path) -> None:
    """One worker of a standalone cluster, and two, each with one core and one executor."""
    rows = []
    index, asked = _copied(folder, _LARGE), _queries("regex", QUERIES)
    for count in (1, 2):
        # In a process of its own: a JVM that is there has its settings already.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append((count, *pool.apply(_by_workers, (_kept(folder) / "cluster", index.place.name(), asked, count))))
    (_, first, found), (_, second, same) = rows
    assert found == same
    print_table(
        f"{len(asked)} regular expressions over {TOPICS} topics on a standalone cluster",
        ("", "seconds", "times as fast"),
        [("one worker", first, 1.0), ("two workers", second, first / second)],
    )


def growth(folder: Path) -> None:
    with _searching(folder) as passes:
        _growth(passes, [_index(folder, SIGNED), _copied(folder, _LARGE), _copied(folder, _LARGEST)])


SECTIONS: dict[str, Callable[[Path], None]] = {
    "index": index, "regex": regex, "sql": sql, "xpath": xpath, "xquery": xquery, "workers": workers, "growth": growth
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


def _cold(folder: Path, index: Index) -> tuple[float, int]:
    """What all of it takes from nothing: Python, a new JVM, the session, the pass. And how many rows it wrote."""
    out = _kept(folder) / "cold"
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
        search(spark, Index(Place(index)), _roots(), _queries("regex", QUERIES), [], Path(out), entity=None, at=None, now=NOW, form="parquet")


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
            passes, found = _Passes(spark, _roots(), folder), Index(Place(index))
            passes(found, _queries("regex", 10))
            seconds, matches = passes(found, asked)
            return seconds, _counts(matches)
    finally:
        cluster.down()


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


#: What each process checks: set before it is forked, so that nothing is handed over while it is timed.
_jobs: list[list[tuple[bytes, bytes, bytes]]] = []


def _bare(archive: Path, processes: int) -> float:
    """Records a second of which each ES256 signature is checked with raw `cryptography` and nothing else: of records, requests and advertisements, and those
    on the certificates that came along. Records of all kinds, taken evenly from the whole archive."""
    files = sorted((archive / "segments").iterdir())
    records = [record for path in files for record in list(segments.read(path))[:: max(1, _signed_records(files) // _CHECKED)]]
    keys = _keys(archive)
    found = [[(signed, signature, keys[who]) for signed, signature, who in _signatures(record.raw)] + _certificates(record.effects) for record in records]
    _jobs[:] = [[one for signatures in found[start::processes] for one in signatures] for start in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(_check, [(number, 100) for number in range(processes)], chunksize=1)
        began = time.perf_counter()
        pool.map(_check, [(number, None) for number in range(processes)], chunksize=1)
        return len(records) / (time.perf_counter() - began)


def _signed_records(files: Sequence[Path]) -> int:
    return sum(pq.ParquetFile(path).metadata.num_rows for path in files)


def _keys(archive: Path) -> dict[str, bytes]:
    """Public keys by thumbprint, of all certificates that the log took."""
    return {
        thumbprint: x509.load_der_x509_certificate(chain[0]).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for path in sorted((archive / "segments").iterdir())
        for record in segments.read(path)
        for thumbprint, chain in _chains(record.effects)
    }


def _chains(effects: str) -> Iterator[tuple[str, Sequence[bytes]]]:
    for space, thumbprint, value in orjson.loads(effects) if "certificate" in effects else ():
        if space == "certificate":
            yield thumbprint, decode_chain(value["chain"])


def _certificates(effects: str) -> list[tuple[bytes, bytes, bytes]]:
    """The signature on each certificate that a record brought. Those above it are the same for all."""
    found = []
    for _, chain in _chains(effects):
        leaf, issuer = (x509.load_der_x509_certificate(der) for der in chain[:2])
        key = issuer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        found.append((leaf.tbs_certificate_bytes, leaf.signature, key))
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


def _check(job: tuple[int, int | None]) -> None:
    number, most = job
    known: dict[bytes, ec.EllipticCurvePublicKey] = {}
    algorithm = ec.ECDSA(hashes.SHA256())
    for signed, signature, der in _jobs[number][:most]:
        key = known.get(der)
        if key is None:
            loaded = load_der_public_key(der)
            assert isinstance(loaded, ec.EllipticCurvePublicKey)
            key = known[der] = loaded
        key.verify(signature, signed, algorithm)


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
    sizes = [sum(commit.rows[_ADS] for commit in index.commits()) for index in indexes]
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
