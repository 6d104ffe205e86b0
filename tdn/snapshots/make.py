"""From a node's store, running or not, to a snapshot of the last checkpoint that counts."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tdn import machine
from tdn.errors import Absent, LogDiverged, UsageError
from tdn.rules.state import EMPTY_HEAD, Fact
from tdn.snapshots import file
from tdn.snapshots.file import Title
from tdn.store import schema
from tdn.store.kept import needed_by_text
from tdn.store.state_text import Place, private

#: Records between two checkpoints. At a million topics the digest is some ten seconds of work beside others; replaying as many records takes about a
#: minute, which is the most that a node from a snapshot has to read beside what was appended since.
CHECKPOINT_RECORDS = 50_000
#: What those are told who need a checkpoint before there is one.
NO_CHECKPOINT = (
    f"no checkpoint counts yet: nodes state one every {CHECKPOINT_RECORDS:,} records (`tdn status` shows the log's last), and it counts when a majority "
    "of them has stated the same"
)
#: Folder beside a store with the texts of the states that its node has stated.
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Made:
    """What a snapshot holds."""

    place: Place
    digest: str
    facts: int
    records: int
    bytes: int


def text_of(store: Path, seq: int) -> Path:
    """The text of the state that a store's node stated at a record."""
    return store.parent / CHECKPOINTS / f"{seq:020}.facts.gz"


def counted(store: Path) -> Fact | None:
    """The last checkpoint that counts, as a store knows it."""
    if not schema.is_made(store):
        return None
    with closing(_open(store)) as db:
        return _counted(db)


def make(store: Path, to: Path) -> Made:
    """Write the snapshot of the last checkpoint that counts into a new file, private to its owner, which appears when it is whole."""
    if not schema.is_made(store):
        raise UsageError(f"there is no store {store}; a snapshot is made where a node runs, or ran")
    with closing(_open(store)) as db:
        db.execute("BEGIN")
        checkpoint = _counted(db)
        if checkpoint is None:
            raise Absent(NO_CHECKPOINT)
        text = text_of(store, checkpoint["seq"])
        if not text.is_file():
            raise Absent(
                f"this node has not kept the state of checkpoint {checkpoint['seq']}: it was away then; take another node, or wait for the next"
            )
        title = _title(db, checkpoint)
        unfinished = to.with_name(f".{to.name}.unfinished-{os.getpid()}")
        try:
            with private(unfinished) as target:
                facts, records = file.write(target, title, text, _records(db, text))
                target.flush()
                os.fsync(target.fileno())
            size = unfinished.stat().st_size
            unfinished.replace(to)
        except OSError as error:
            raise machine.cannot_write(error, to) from error
        finally:
            unfinished.unlink(missing_ok=True)
    return Made(title.place, title.digest, facts, records, size)


def _title(db: sqlite3.Connection, checkpoint: Fact) -> Title:
    seq = checkpoint["seq"]
    network = json.loads(db.execute("SELECT value FROM facts WHERE space = 'network'").fetchone()[0])
    row = db.execute("SELECT raw, offset, head FROM records WHERE seq = ?", (seq,)).fetchone()
    before = db.execute("SELECT head FROM records WHERE seq = ?", (seq - 1,)).fetchone() if seq > 1 else (EMPTY_HEAD,)
    if row is None or before is None or row[2] != checkpoint["head"]:
        raise LogDiverged(f"the store does not hold record {seq} as the checkpoint names it; compare the nodes before going on")
    statements = [db.execute("SELECT raw FROM records WHERE seq = ?", (one,)).fetchone() for one in checkpoint["records"]]
    return Title(
        network["id"],
        network["rules"],
        Place(seq, checkpoint["head"], checkpoint["at"]),
        checkpoint["digest"],
        bytes(row[0]),
        str(before[0]),
        int(row[1]),
        tuple(bytes(one[0]) for one in statements if one is not None),
    )


def _records(db: sqlite3.Connection, text: Path) -> Iterator[tuple[int, bytes]]:
    for seq, _ in needed_by_text(text):
        row = db.execute("SELECT raw FROM records WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            raise LogDiverged(f"the store has lost record {seq}, which its state refers to; make the snapshot from another node")
        yield seq, bytes(row[0])


def _counted(db: sqlite3.Connection) -> Fact | None:
    row = db.execute("SELECT value FROM facts WHERE space = 'counted' AND key = 'latest'").fetchone()
    found: Fact | None = json.loads(row[0]) if row else None
    return found


def _open(store: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{store}?mode=ro", uri=True, isolation_level=None)
    db.execute("PRAGMA busy_timeout=10000")
    return db
