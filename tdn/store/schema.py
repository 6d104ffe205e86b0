"""Tables of the view and their migrations. A newer file than this build knows is refused, never guessed at."""

from __future__ import annotations

import sqlite3

from tdn.errors import LogDiverged

#: Each step is applied once, in order; its number is the file's `user_version`.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE position (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        seq INTEGER NOT NULL,          -- our own count of records
        offset INTEGER NOT NULL,       -- the stream's, which has holes
        head TEXT NOT NULL             -- rolling hash up to and with seq
    );
    INSERT INTO position VALUES (1, 0, -1, '0000000000000000000000000000000000000000000000000000000000000000');
    CREATE TABLE records (
        seq INTEGER PRIMARY KEY,
        offset INTEGER NOT NULL,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        outcome TEXT NOT NULL,         -- JSON without the writes
        head TEXT NOT NULL,
        raw BLOB NOT NULL
    );
    CREATE TABLE facts (
        space TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,           -- canonical JSON
        PRIMARY KEY (space, key)
    ) WITHOUT ROWID;
    CREATE TABLE topics (
        uuid TEXT PRIMARY KEY,
        live INTEGER NOT NULL,         -- by log time; a reader compares expires with its own clock too
        created TEXT NOT NULL,
        expires TEXT NOT NULL,
        owner TEXT NOT NULL,
        seq INTEGER NOT NULL,          -- last change
        advertised INTEGER NOT NULL,   -- first record
        advertisement TEXT NOT NULL,   -- the signed bytes
        folded TEXT NOT NULL           -- what plain strings are looked for in
    ) WITHOUT ROWID;
    CREATE INDEX topics_in_order ON topics (created, uuid) WHERE live = 1;
    CREATE INDEX topics_by_end ON topics (expires) WHERE live = 1;    -- counting them reads no advertisement
    """,
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the newest version, or LogDiverged when it is newer than this build."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise LogDiverged(f"the store is of version {version}; this build knows {len(MIGRATIONS)}; use the newer build")
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")
