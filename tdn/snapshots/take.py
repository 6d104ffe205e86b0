"""From a snapshot to a store: verified without replay, or not taken at all.

What is believed is what the operator has signed: the genesis, and the enrolments at hand. A majority of the nodes enrolled there must have
stated the checkpoint, with keys that the operator enrolled; then the digest of the facts, the digests that facts hold of records, and the rolling
hash bind everything else. The store appears when all of it has been found sound.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tdn import machine
from tdn.errors import LogDiverged, TdnError, TrustError, UnknownRules, UsageError
from tdn.protocol import jsontext, schemas
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time, whole_seconds
from tdn.rules.apply import RULES_VERSION, network_id, read_genesis
from tdn.rules.checkpoints import is_majority
from tdn.rules.state import next_head
from tdn.snapshots import file
from tdn.snapshots.file import Contents, Title
from tdn.store import kept, schema
from tdn.trust import envelope, signing
from tdn.trust.certificates import TrustRoots, decode_chain, roots_from_ders

#: Facts written at a time.
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Taken:
    """What a store was made from."""

    seq: int
    facts: int
    records: int
    #: Nodes whose statements counted.
    nodes: tuple[str, ...]


def take(
    snapshot: Path,
    store: Path,
    *,
    genesis: bytes,
    enrolments: Iterable[bytes],
    newcomer: str,
    progress: Callable[[int], None] = lambda count: None,
    before_it_counts: Callable[[], None] = lambda: None,
) -> Taken | None:
    """Make a store from a snapshot, in the place of one that is behind it; None when the store there is as far already.

    `newcomer` is who starts, as `node:n3`: a new node's own word is not asked for. On any failure the present store is untouched.
    `before_it_counts` is called once all of it was found sound, before the store is put in place.
    """
    fresh = store.with_name(f"{store.name}.from-snapshot")
    store.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.read(snapshot) as contents:
            title = contents.title
            nodes = _require_stated(title, snapshot, genesis, enrolments, newcomer)
            if _reached(store) >= title.place.seq:
                return None
            _remove(fresh)
            with closing(sqlite3.connect(fresh, isolation_level=None)) as db:
                _fill(db, contents, progress)
        _sync(fresh)
        before_it_counts()
        _remove(store)
        fresh.replace(store)
        _sync(store.parent)
    except sqlite3.IntegrityError as error:
        raise TrustError(f"{snapshot.name} holds something twice: {error}") from error
    except (OSError, sqlite3.Error) as error:
        raise machine.explain(error, store) or UsageError(f"the store {store} cannot be written: {error}") from error
    finally:
        _remove(fresh)
    return Taken(title.place.seq, contents.facts, contents.records, nodes)


@dataclass(frozen=True, slots=True)
class Examined:
    """A snapshot that was found sound, as long as it is looked at."""

    title: Title
    _db: sqlite3.Connection

    def needed(self) -> Iterator[tuple[int, str]]:
        """The records that its state refers to, each with the digest of its bytes."""
        yield from self._db.execute("SELECT seq, record FROM needed ORDER BY seq")


@contextmanager
def examine(snapshot: Path, *, genesis: bytes, enrolments: Iterable[bytes], newcomer: str) -> Iterator[Examined]:
    """Verify a snapshot as `take` does, in a file of SQLite's own that goes with the connection. No store is made of it."""
    with closing(sqlite3.connect("", isolation_level=None)) as db:
        try:
            with file.read(snapshot) as contents:
                _require_stated(contents.title, snapshot, genesis, enrolments, newcomer)
                _fill(db, contents, lambda count: None)
        except sqlite3.IntegrityError as error:
            raise TrustError(f"{snapshot.name} holds something twice: {error}") from error
        yield Examined(contents.title, db)


def _require_stated(title: Title, snapshot: Path, genesis: bytes, enrolments: Iterable[bytes], newcomer: str) -> tuple[str, ...]:
    """The nodes that stated it, if it is of this network, by rules that are known here."""
    if title.network != network_id(genesis):
        raise TrustError(f"{snapshot.name} is of network {title.network[:12]}…, not of {network_id(genesis)[:12]}…")
    if title.rules != RULES_VERSION:
        raise UnknownRules(f"{snapshot.name} follows rules version {title.rules}; this build knows {RULES_VERSION}")
    return _require_majority(title, genesis, list(enrolments), newcomer)


def _require_majority(title: Title, genesis: bytes, enrolments: list[bytes], newcomer: str) -> tuple[str, ...]:
    """The nodes that stated the checkpoint, if they are a majority of those that the operator's statements at hand enrol. Who starts is one of them
    only where it stated it itself, before it lost its store."""
    founded = read_genesis(genesis)
    roots = roots_from_ders(decode_chain(founded.body["roots"]))
    enrolled: dict[str, list[bytes]] = {}
    for raw in enrolments:
        statement = envelope.authenticate(raw.strip(), lambda header: founded.signer)
        if statement.kind != "enrol" or statement.audience != f"tdn:network:{title.network}":
            raise TrustError("an enrolment at hand is none of this network; look at network/enrolments")
        chain = list(decode_chain(statement.body["chain"]))
        identity = roots.identify(chain, at=statement.issued)
        if identity.name.role is Role.NODE:
            enrolled[identity.name.id] = chain
    agreeing = {node for raw in title.statements if (node := _stated(raw, title, enrolled, roots)) is not None}
    if newcomer not in {f"{Role.NODE}:{node}" for node in agreeing}:
        enrolled = {node: chain for node, chain in enrolled.items() if f"{Role.NODE}:{node}" != newcomer}
    if not is_majority(len(agreeing), len(enrolled)):
        raise TrustError(
            f"the snapshot's checkpoint was stated by {len(agreeing)} of the {len(enrolled)} other nodes that the enrolments at hand name; a majority is "
            "needed. Bring the enrolments of all nodes; take out those of nodes that are gone; or take a later snapshot"
        )
    return tuple(sorted(agreeing))


def _stated(raw: bytes, title: Title, enrolled: Mapping[str, list[bytes]], roots: TrustRoots) -> str | None:
    """The node that signed a record with this very checkpoint; None when it is anything else."""
    try:
        message = signing.split(raw)
        claimed = jsontext.parse(signing.decode_segment(message.payload_segment))
        node = claimed.get("node")
        if message.header.kind != "record" or message.tail is not None or node not in enrolled:
            return None
        at: datetime = whole_seconds(parse_time(claimed["at"]))
        identity = roots.identify(enrolled[node], at=at)
        payload = signing.verify(message, identity.public_key)
        schemas.check("record", payload)
    except (TdnError, KeyError, TypeError, AttributeError):
        return None
    place = title.place
    stated = {"seq": place.seq, "head": place.head, "at": place.at, "digest": title.digest}
    return node if payload["kind"] == "checkpoint" and payload["checkpoint"] == stated else None


def _fill(db: sqlite3.Connection, contents: Contents, progress: Callable[[int], None]) -> None:
    title = contents.title
    # Nothing of it counts before it is whole, so it needs no journal.
    db.execute("PRAGMA journal_mode=OFF")
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA cache_size=-65536")
    schema.migrate(db)
    db.execute("BEGIN")
    _fill_facts(db, contents, progress)
    row = db.execute("SELECT json_extract(value, '$.id') FROM facts WHERE space = 'network'").fetchone()
    if row is None or row[0] != title.network:
        raise TrustError("the snapshot's state is that of another network")
    kept.note_needed(db)
    _fill_records(db, contents)
    if next_head(title.before, title.record) != title.place.head:
        raise TrustError(f"the snapshot does not hold record {title.place.seq}, at which it was taken")
    place = title.place
    db.execute(
        "INSERT OR REPLACE INTO records VALUES (?, ?, '', '', '{}', ?, ?, ?, NULL)",
        (place.seq, title.offset, place.head, title.record, place.at),
    )
    db.execute("UPDATE position SET seq = ?, offset = ?, head = ?", (place.seq, title.offset, place.head))
    # The record there is the last of those before: what is whole begins behind it.
    db.execute("UPDATE kept SET first = ?", (place.seq + 1,))
    db.execute("COMMIT")


def _fill_facts(db: sqlite3.Connection, contents: Contents, progress: Callable[[int], None]) -> None:
    total = hashlib.sha256()
    rows: list[tuple[str, str, str]] = []
    for line in contents.fact_lines():
        total.update(line)
        space, key, _ = json.loads(line)
        start = len(jsontext.canonical([space, key]))
        rows.append((space, key, line[start:-2].decode()))
        if len(rows) == _AT_ONCE:
            db.executemany("INSERT INTO facts VALUES (?, ?, ?)", rows)
            rows.clear()
            progress(contents.facts)
    db.executemany("INSERT INTO facts VALUES (?, ?, ?)", rows)
    if total.hexdigest() != contents.title.digest:
        raise TrustError("the snapshot's facts are not those whose digest the nodes stated")


def _fill_records(db: sqlite3.Connection, contents: Contents) -> None:
    """The records that facts refer to, each with the digest that the fact holds; all of them, and no others."""
    for seq, raw in contents.record_lines():
        row = db.execute("SELECT record FROM needed WHERE seq = ?", (seq,)).fetchone()
        if row is None or row[0] != signing.digest(raw):
            raise TrustError(f"the snapshot's record {seq} is not the one that its state refers to")
        db.execute("INSERT INTO records VALUES (?, -1, '', 'accepted', '{}', '', ?, NULL, NULL)", (seq, raw))
    missing = db.execute("SELECT seq FROM needed WHERE seq NOT IN (SELECT seq FROM records) LIMIT 1").fetchone()
    if missing is not None:
        raise TrustError(f"the snapshot lacks record {missing[0]}, which its state refers to")


def _reached(store: Path) -> int:
    """How far a store is; 0 where there is none."""
    if not schema.is_made(store):
        return 0
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT seq FROM position").fetchone()[0])
    except sqlite3.Error as error:
        raise LogDiverged(f"the store {store} cannot be read ({error}); move it away, then start from the snapshot") from error


def _remove(store: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        store.with_name(store.name + ending).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
