"""Archives and indexes of the sample to search: some signed topics, and the same ones again under other UUIDs, since a search looks at no signature."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.index.building import build
from spark.index.store import Index
from spark.places import Place
from spark.session import session
from tdn.sample.archive import write_archive
from tdn.sample.network import SampleNetwork
from tdn.trust.certificates import TrustRoots

SEED = 11
#: The sample's time, whenever it is measured; it is asked about a day later.
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
NOW = BEGIN + timedelta(days=1)
QUICK = bool(os.environ.get("TDN_BENCH_QUICK"))
TOPICS = int(os.environ.get("TDN_BENCH_TOPICS", "3000" if QUICK else "1000000"))
#: How many of them are signed: the first of each index's copies.
SIGNED = TOPICS // 4
ADVERTISEMENTS = "advertisements"
#: What searches and DuckDB read.
_COPIED = (ADVERTISEMENTS, "properties")


def kept(folder: Path) -> Path:
    """Where archives and indexes are: for the next section too, where `TDN_BENCH_FOLDER` names a place."""
    place = Path(os.environ.get("TDN_BENCH_FOLDER") or folder)
    place.mkdir(parents=True, exist_ok=True)
    return place


def index_of(folder: Path, size: int) -> Index:
    """The index of so many topics, made if it is not there."""
    place = kept(folder) / f"index-{size}"
    found = Index(Place(place))
    if not found.commits():
        archive = archive_of(folder, size)
        with session("local[2]") as spark:
            seconds, rate = timed_build(spark, archive, place, roots_of_sample())
        print(f"index of {size} topics: {seconds:.0f} s, {rate:.0f} records/s", flush=True)
    return found


def copied(folder: Path, times: int) -> Index:
    """An index of so many times the topics: the same ones, each time under other UUIDs."""
    original = index_of(folder, SIGNED)
    place = Place(kept(folder) / f"index-{SIGNED}-times-{times}")
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


def roots_of_sample() -> TrustRoots:
    return SampleNetwork.found(SEED, BEGIN).node("n1").roots


def archive_of(folder: Path, size: int) -> Path:
    folder = kept(folder)
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


def timed_build(spark: Any, archive: Path, folder: Path, roots: TrustRoots) -> tuple[float, float]:
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    built = build(spark, Place(archive), Index(Place(folder)), roots)
    seconds = time.perf_counter() - began
    assert built.rejected == 0
    return seconds, built.records / seconds
