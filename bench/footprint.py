"""What a topic costs a node on disk, part by part, and an archive, and how quickly it is applied. For docs/scale.md; no network is needed.

The sample's log is applied to a store by the same code as a node's. The bare limit is the signed record itself, which somebody has to keep.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.figures import print_table
from tdn.sample import archive, log
from tdn.sample.network import SampleNetwork
from tdn.store.view import View

TOPICS = int(os.environ.get("TDN_FOOTPRINT_TOPICS", "10000"))
SEED = 1
#: Records in one transaction, as a node does it that catches up.
_BATCH = 500


def run(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    network = SampleNetwork.found(SEED, datetime.now(UTC) - timedelta(hours=15))
    records = list(log.advertisements(SEED, TOPICS, network=network))
    store = folder / "store.sqlite"
    view = View(store)
    began = time.perf_counter()
    for start in range(0, len(records), _BATCH):
        view.apply_all([(start + number, raw) for number, raw in enumerate(records[start : start + _BATCH])])
    seconds = time.perf_counter() - began
    view.close()
    archived = folder / "archive"
    archive.write_archive(archived, SEED, TOPICS, network=network, processes=1)
    rows = [("a record's bytes, in the log and in every store", sum(map(len, records)) / TOPICS)]
    rows += [(f"store: {name}", size / TOPICS) for name, size in _by_table(store)]
    rows.append(("store, altogether", store.stat().st_size / TOPICS))
    rows.append(("archive, altogether", sum(path.stat().st_size for path in archived.rglob("*") if path.is_file()) / TOPICS))
    print_table(f"Bytes a topic, {TOPICS} topics of the sample", ("what", "bytes"), rows)
    facts = [(space, count / TOPICS, size / TOPICS) for space, count, size in _by_space(store)]
    print_table("State by what it is about", ("space", "facts a topic", "bytes a topic"), facts)
    print(f"\napplied {len(records) / seconds:.0f} records a second on one core, verified, indexed and committed")


def _by_table(store: Path) -> Iterator[tuple[str, int]]:
    """The bytes of every table with its indexes, the larger first."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        owners = dict(db.execute("SELECT name, tbl_name FROM sqlite_master"))
        pages: dict[str, int] = {}
        try:
            for name, size in db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"):
                table = owners.get(name, name)
                pages[table] = pages.get(table, 0) + size
        except sqlite3.OperationalError:
            # This SQLite was built without the table that knows; the total is measured all the same.
            return
    yield from sorted(pages.items(), key=lambda item: -item[1])[:8]


def _by_space(store: Path) -> list[tuple[str, int, int]]:
    with contextlib.closing(sqlite3.connect(store)) as db:
        question = (
            "SELECT space, count(*), sum(length(space) + length(key) + length(value)) FROM facts GROUP BY space ORDER BY 3 DESC"
        )
        return db.execute(question).fetchall()
