"""Tables of the view and their migrations. A newer file than this build knows is refused, never guessed at."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

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
    # Discovery in five languages. What the topics table held is derived anew from the records (`topics.bring_up_to_date`).
    """
    DROP TABLE topics;
    CREATE TABLE topics (
        id INTEGER PRIMARY KEY,        -- sequence of the record that advertised it, where its signed bytes are
        uuid TEXT NOT NULL UNIQUE,
        created TEXT NOT NULL,
        expires TEXT NOT NULL,         -- readers compare it with their own clock too
        duration INTEGER NOT NULL,     -- seconds from created to expires
        creator TEXT NOT NULL,
        owner TEXT NOT NULL,
        institution TEXT NOT NULL,
        kind TEXT NOT NULL,
        descriptor_kind TEXT NOT NULL,
        seq INTEGER NOT NULL,          -- last change
        restricted INTEGER NOT NULL,   -- whether `listed` has rows of it: 1 those allowed, 2 those barred, 3 both
        descriptor TEXT NOT NULL,      -- canonical JSON
        synopsis TEXT NOT NULL
    );
    CREATE INDEX topics_in_order ON topics (created, uuid);
    CREATE INDEX topics_by_end ON topics (expires);
    CREATE INDEX topics_by_duration ON topics (duration);
    CREATE INDEX topics_by_creator ON topics (creator, created, uuid);
    CREATE INDEX topics_by_owner ON topics (owner, created, uuid);
    CREATE INDEX topics_by_institution ON topics (institution, created, uuid);
    CREATE INDEX topics_sealed ON topics (restricted, created, uuid) WHERE descriptor_kind = 'sealed';
    CREATE INDEX topics_sealed_by_owner ON topics (owner) WHERE descriptor_kind = 'sealed';
    CREATE TABLE listed (              -- who may, and who may not, discover a topic
        topic INTEGER NOT NULL,
        side INTEGER NOT NULL,         -- 1 allowed, 2 barred; 3 allowed, of sealed topics once more, to find them by
        who TEXT NOT NULL,
        PRIMARY KEY (topic, side, who)
    ) WITHOUT ROWID;
    CREATE INDEX sealed_by_who ON listed (who, topic) WHERE side = 3;
    CREATE TABLE property_values (     -- what clues of kind Value look up
        key TEXT NOT NULL,
        value NOT NULL,
        topic INTEGER NOT NULL,
        PRIMARY KEY (key, value, topic)
    ) WITHOUT ROWID;
    -- What clues of kind Contains look up. Text that was folded already, hence case_sensitive; which topics, not where in them.
    CREATE VIRTUAL TABLE topic_text USING fts5(body, content='', detail=none, columnsize=0, tokenize='trigram case_sensitive 1');
    CREATE TABLE grams (               -- how often a trigram was seen in a sample: the rare ones are looked up
        gram TEXT PRIMARY KEY,
        seen INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE derived (             -- by which rules the tables above were made
        one INTEGER PRIMARY KEY CHECK (one = 1),
        stamp TEXT NOT NULL,
        sampled INTEGER NOT NULL       -- topics in the sample of `grams`
    );
    INSERT INTO derived VALUES (1, '', 0);
    """,
    # Lists are shared: a hundred thousand children have those of their parent.
    """
    DROP TABLE listed;
    DROP TABLE topics;
    CREATE TABLE topics (
        id INTEGER PRIMARY KEY,        -- sequence of the record that advertised it, where its signed bytes are
        uuid TEXT NOT NULL UNIQUE,
        created TEXT NOT NULL,
        expires TEXT NOT NULL,         -- readers compare it with their own clock too
        duration INTEGER NOT NULL,     -- seconds from created to expires
        creator TEXT NOT NULL,
        owner TEXT NOT NULL,
        institution TEXT NOT NULL,
        kind TEXT NOT NULL,
        descriptor_kind TEXT NOT NULL,
        seq INTEGER NOT NULL,          -- last change
        restricted INTEGER NOT NULL,   -- which lists it has: 1 of those allowed, 2 of those barred, 3 both
        access TEXT,                   -- digest of its lists, by which `listed` has them
        descriptor TEXT NOT NULL,      -- canonical JSON
        synopsis TEXT NOT NULL
    );
    CREATE INDEX topics_in_order ON topics (created, uuid);
    CREATE INDEX topics_by_end ON topics (expires);
    CREATE INDEX topics_by_duration ON topics (duration);
    CREATE INDEX topics_by_creator ON topics (creator, created, uuid);
    CREATE INDEX topics_by_owner ON topics (owner, created, uuid);
    CREATE INDEX topics_by_institution ON topics (institution, created, uuid);
    CREATE INDEX topics_sealed ON topics (restricted, created, uuid) WHERE descriptor_kind = 'sealed';
    CREATE INDEX topics_sealed_by_owner ON topics (owner) WHERE descriptor_kind = 'sealed';
    CREATE INDEX topics_by_access ON topics (access) WHERE access IS NOT NULL;
    CREATE TABLE listed (              -- who may, and who may not, discover the topics with certain lists
        access TEXT NOT NULL,
        side INTEGER NOT NULL,         -- 1 allowed, 2 barred
        who TEXT NOT NULL,
        PRIMARY KEY (access, side, who)
    ) WITHOUT ROWID;
    CREATE TABLE sealed_for (          -- those allowed once more, of sealed topics, to find these by
        who TEXT NOT NULL,
        topic INTEGER NOT NULL,
        PRIMARY KEY (who, topic)
    ) WITHOUT ROWID;
    CREATE INDEX sealed_for_topic ON sealed_for (topic);
    """,
    # What an archive takes beside the bytes (T37). Records that were applied before have none, and cannot be exported.
    """
    ALTER TABLE records ADD COLUMN at TEXT;        -- when it was judged: see `View`; never earlier than the record before
    ALTER TABLE records ADD COLUMN effects TEXT;   -- JSON: [space, key, value or null] of each write that archives keep
    CREATE INDEX records_refused ON records (at) WHERE status = 'refused';    -- for an operator's audit
    """,
    # The beginning of the log may go (`kept`), or never have been here (a store that began with a snapshot).
    """
    CREATE TABLE kept (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        first INTEGER NOT NULL         -- records from here on are all in `records`; of those before, the ones that facts refer to
    );
    INSERT INTO kept VALUES (1, 1);
    """,
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the newest version, or LogDiverged when it is newer than this build."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise LogDiverged(f"the store is of version {version}; this build knows {len(MIGRATIONS)}; use the newer build")
    if version < len(MIGRATIONS):
        # At once, whatever the version: a new store has all of its tables or, where the disk was full, none.
        steps = "".join(MIGRATIONS[version:])
        connection.executescript(f"BEGIN; {steps} PRAGMA user_version = {len(MIGRATIONS)}; COMMIT;")


def is_made(store: Path) -> bool:
    """Whether there is a store. A disk that is full when a process first starts leaves a file without tables, which is none; what cannot be read is one:
    whoever opens it says what is wrong."""
    if not store.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return bool(db.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error:
        return True
