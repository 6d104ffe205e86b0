"""Which records a store keeps when the log's beginning goes: those whose bytes facts refer to, each with the digest that the fact holds.

Those are the advertisements of topics that are live, and the grants that are listed with all that they rest on. Whoever asks for a topic or a grant
gets the signed bytes from there; nothing else before the bound is ever read.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from tdn.errors import UsageError

#: Records removed in one transaction: a node that writes the same store waits for some milliseconds at most.
_AT_ONCE = 250

_NEEDED = (
    "CREATE TEMP TABLE needed (seq INTEGER PRIMARY KEY, record TEXT NOT NULL)",
    """INSERT OR IGNORE INTO needed SELECT json_extract(value, '$.advertised'), json_extract(value, '$.record') FROM facts
       WHERE space = 'topic' AND json_extract(value, '$.state') = 'live'""",
    """INSERT OR IGNORE INTO needed SELECT json_extract(value, '$.given'), json_extract(value, '$.record') FROM facts
       WHERE space = 'grant'""",
    """INSERT OR IGNORE INTO needed SELECT json_extract(below.value, '$[0]'), json_extract(below.value, '$[1]')
       FROM facts, json_each(facts.value, '$.rests') below WHERE facts.space = 'grant'""",
    # A grant is shown with the advertisement that its chain begins with, also when the topic has ended.
    """INSERT OR IGNORE INTO needed SELECT json_extract(topic.value, '$.advertised'), json_extract(topic.value, '$.record')
       FROM (SELECT DISTINCT coalesce(json_extract(value, '$.root'), json_extract(value, '$.topic')) AS uuid FROM facts WHERE space = 'grant') begun
       JOIN facts topic ON topic.space = 'topic' AND topic.key = begun.uuid""",
)


def note_needed(db: sqlite3.Connection) -> None:
    """Make the temporary table `needed` (seq, record: digest of its bytes) from a connection's facts."""
    for statement in _NEEDED:
        db.execute(statement)


def needed_by_text(text: Path) -> Iterator[tuple[int, str]]:
    """The same for a state that is there as text (`state_text`), in the order of the records."""
    with closing(sqlite3.connect("", isolation_level=None)) as db:
        # A file of SQLite's own that goes with the connection.
        db.execute("CREATE TABLE facts (space TEXT, key TEXT, value TEXT, PRIMARY KEY (space, key)) WITHOUT ROWID")
        db.execute("BEGIN")
        with gzip.open(text, "rb") as lines:
            for line in lines:
                if line.startswith((b'["topic",', b'["grant",')):
                    space, key, value = json.loads(line)
                    db.execute("INSERT INTO facts VALUES (?, ?, ?)", (space, key, json.dumps(value)))
        note_needed(db)
        yield from db.execute("SELECT seq, record FROM needed ORDER BY seq")
        db.execute("COMMIT")


def trim(
    store: Path,
    bound: int,
    checkpoint: Iterable[tuple[int, str]],
    *,
    progress: Callable[[int, int], None] = lambda done, last: None,
) -> int:
    """Remove the records before `bound` that nobody needs: neither the state now nor that of the checkpoint there (what it needs is given). How many went.

    The store may be in use. Interrupted, it is whole, and the next time goes on.
    """
    removed = 0
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA busy_timeout=30000")
        db.execute("PRAGMA synchronous=NORMAL")
        reached = int(db.execute("SELECT seq FROM position").fetchone()[0])
        if reached < bound:
            raise UsageError(f"the store {store} ends at record {reached}, before {bound}: it needs what would be removed")
        db.execute("BEGIN")
        note_needed(db)
        db.executemany("INSERT OR IGNORE INTO needed VALUES (?, ?)", checkpoint)
        db.execute("COMMIT")
        # The one before stays too: the rolling hash before the bound is a part of every snapshot there.
        bound -= 1
        # Said before it is done: whoever reads what is left between knows that there are holes.
        db.execute("UPDATE kept SET first = max(first, ?)", (bound,))
        start = int(db.execute("SELECT coalesce(min(seq), ?) FROM records", (bound,)).fetchone()[0])
        for first in range(start, bound, _AT_ONCE):
            last = min(first + _AT_ONCE, bound)
            done = db.execute(
                "DELETE FROM records WHERE seq >= ? AND seq < ? AND seq NOT IN (SELECT seq FROM needed)", (first, last)
            )
            removed += done.rowcount
            progress(last - 1, bound - 1)
    return removed
