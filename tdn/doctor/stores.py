"""Checks of the stores: whole, of this build's form, of this network, and equal to each other as far as they go."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tdn import machine
from tdn.doctor.findings import Finding, of_error, ok, problem, warning
from tdn.doctor.lost_stores import Kept
from tdn.errors import LogDiverged, StoreDamaged, UnknownRules
from tdn.local.home import Home
from tdn.protocol.names import Role
from tdn.rules.apply import RULES_VERSION
from tdn.rules.state import next_head
from tdn.store import schema
from tdn.store.facts import StoredFacts

#: How long one store is looked through, unless told to take its time. Some gigabytes on a fast disk.
_SECONDS = 20.0
#: How many of the latest records are held against the hash chain.
_RECORDS = 2_000
#: In the place of what to do about a store that is of no use: that depends on the others, which are looked at first.
_MAKE_ANOTHER = "make another"


@dataclass(frozen=True, slots=True)
class Store:
    """What a store says of itself."""

    who: str
    path: Path
    seq: int
    offset: int
    head: str


def look_at_stores(home: Home, *, thorough: bool) -> tuple[list[Finding], list[Store]]:
    """Findings, and the stores that can be read."""
    stores: list[Store] = []
    places = {
        f"{role} {name}": home.credentials(role, name) / "store.sqlite" for role in (Role.NODE, Role.GUARD) for name in home.ids(role)
    }
    kept = Kept.look(places.items())
    found: dict[str, list[Finding]] = {}
    for who, path in places.items():
        found[who] = []
        if not schema.is_made(path):
            found[who].append(warning("stores", f"{who} has none yet", kept.where_none_is(who)))
            continue
        try:
            found[who] += _look_at(home, who, path, stores, thorough=thorough)
        except sqlite3.Error as error:
            found[who].append(_unreadable(who, path, error))
    useless = {who for who, findings in found.items() if any(finding.do == _MAKE_ANOTHER for finding in findings)}
    findings = [
        replace(one, do=kept.instead_of(who, places[who], useless=useless)) if one.do == _MAKE_ANOTHER else one
        for who, some in found.items()
        for one in some
    ]
    return [*findings, *_compare(stores)], stores


def _unreadable(who: str, path: Path, error: sqlite3.Error) -> Finding:
    ours = machine.explain(error, path) or StoreDamaged(f"{path} cannot be read: {error}")
    if not isinstance(ours, StoreDamaged):
        return of_error("stores", ours, who)
    return problem("stores", StoreDamaged, f"{who}: {ours.message.partition('; ')[0]}", _MAKE_ANOTHER)


def _look_at(home: Home, who: str, path: Path, stores: list[Store], *, thorough: bool) -> Iterator[Finding]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(schema.MIGRATIONS):
            yield problem(
                "stores",
                LogDiverged,
                f"{who}: the store is of version {version}, this build knows {len(schema.MIGRATIONS)}",
                "install the newer build: the store is whole, and that build goes on with it",
            )
            return
        facts = StoredFacts(db, cached=False)
        network = facts.get("network", "network")
        if network is not None and network["id"] != home.network:
            yield problem("stores", LogDiverged, f"{who}: the store is of another network, {network['id'][:12]}…", _MAKE_ANOTHER)
            return
        if network is not None and network["rules"] != RULES_VERSION:
            yield problem(
                "stores",
                UnknownRules,
                f"{who}: the store follows rules {network['rules']}, this build knows {RULES_VERSION}",
                "use the build that does",
            )
        row = db.execute("SELECT seq, offset, head FROM position").fetchone()
        if row is None:
            yield problem("stores", StoreDamaged, f"{who}: the store does not say how far it is", _MAKE_ANOTHER)
            return
        store = Store(who, path, *row)
        stores.append(store)
        if (broken := _broken_chain(db, store)) is not None:
            yield problem("stores", StoreDamaged, f"{who}: record {broken} is not what the hash chain says", _MAKE_ANOTHER)
        yield from _whole(db, who, thorough=thorough)
        yield ok("stores", f"{who}: at record {store.seq}, head {store.head[:12]}…")


def _whole(db: sqlite3.Connection, who: str, *, thorough: bool) -> Iterator[Finding]:
    deadline = time.monotonic() + _SECONDS
    if not thorough:
        db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
    try:
        said = [str(row[0]) for row in db.execute("PRAGMA quick_check(5)")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        yield warning("stores", f"{who}: not looked through within {_SECONDS:.0f} s", "`tdn doctor --thorough` takes its time")
        return
    finally:
        db.set_progress_handler(None, 0)
    if said != ["ok"]:
        yield problem("stores", StoreDamaged, f"{who}: SQLite finds it damaged: {said[0].splitlines()[0][:200]}", _MAKE_ANOTHER)


def _broken_chain(db: sqlite3.Connection, store: Store) -> int | None:
    """The first of the latest records that does not follow from the one before, if there is one."""
    rows = db.execute(
        "SELECT seq, head, raw FROM records WHERE seq > ? AND seq <= ? AND seq >= (SELECT first FROM kept) ORDER BY seq",
        (store.seq - _RECORDS, store.seq),
    )
    before: tuple[int, str] | None = None
    for seq, head, raw in rows:
        if before is not None and before[0] + 1 == seq and next_head(before[1], bytes(raw)) != head:
            return int(seq)
        before = seq, head
    # A node that writes meanwhile has moved on; what it has written by then is not looked at.
    return store.seq if before is not None and before[0] == store.seq and before[1] != store.head else None


def _compare(stores: Sequence[Store]) -> Iterator[Finding]:
    """Heads at the furthest record that all have: equal hashes mean equal logs up to there."""
    if len(stores) < 2:
        return
    common = min(store.seq for store in stores)
    heads: dict[str, list[str]] = {}
    for store in stores:
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as db,
        ):
            row = db.execute("SELECT head FROM records WHERE seq = ? AND head <> ''", (common,)).fetchone()
            if row is not None:
                heads.setdefault(row[0], []).append(store.who)
    if len(heads) > 1:
        sides = "; ".join(f"{', '.join(who)} at {head[:12]}…" for head, who in heads.items())
        yield problem(
            "stores",
            LogDiverged,
            f"they disagree at record {common}: {sides}",
            "`tdn down`, copy the home, and compare as docs/operations.md says (LogDiverged)",
        )
    elif heads:
        yield ok("stores", f"all have the same log up to record {common}")
