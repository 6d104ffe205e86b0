"""The log's beginning goes (`tdn log trim`): from the stores of this home, and from the broker's stream where a guard of this home is beside the broker.

Only what a verified archive holds and what lies before a checkpoint that counts may go, and only while the state of that checkpoint is at hand, so
that a node can still begin there: nodes keep it; where only a guard is, a snapshot shows it, which is verified as by one that begins with it. RabbitMQ drops whole segments, by a policy; the policy stands for the moment in which it is wanted (guards see to that
when a trim is killed), and allows more than everything from the checkpoint on.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tdn.archive import segments
from tdn.archive.manifest import Archive
from tdn.archive.verify import verify
from tdn.bus import log, topology
from tdn.bus.connection import Connection
from tdn.errors import Absent, BrokerUnavailable, LogDiverged, Refused, UsageError
from tdn.guard import trim_policy
from tdn.guard.management import Management
from tdn.local import guard_file
from tdn.local.home import SILENT_SECONDS, Home
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.rules import checkpoints, principals
from tdn.rules.state import Fact
from tdn.snapshots import make, take
from tdn.store import kept, schema
from tdn.store.search import Reader
from tdn.trust import credentials

#: What the broker adds to a record, at most: its own headers and the record's share of a chunk's. Measured: 200.
_ADDED_BYTES = 512
#: Segments that are kept beyond what must be: a segment is a little larger than it was asked to be, and records come while the policy stands.
_SPARE_SEGMENTS = 4

#: How long a process that serves may take to have read what has just come. In a busy log there is always something on its way.
_CATCH_UP_SECONDS = 10.0

Progress = Callable[[int, int], None]
#: The records that the state of a checkpoint refers to, each with the digest of its bytes. Asked once for each store.
Needed = Callable[[], Iterable[tuple[int, str]]]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a trim did."""

    #: Everything from this record on is kept.
    bound: int
    #: Records that each store lost.
    removed: dict[str, int]
    #: The stream's first offset before and after; None where the stream was left to a guard's machine.
    offsets: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Serving:
    """A process of this home that serves and has read the whole log: from its store one knows how much the stream must keep."""

    role: Role
    name: str
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store.sqlite"


def trim(
    home: Home,
    folder: Path,
    *,
    snapshot: Path | None = None,
    leave_behind: bool = False,
    progress: Progress = lambda done, last: None,
) -> Trimmed:
    """Trim what is here up to the last checkpoint that counts, or up to that of a snapshot, as far as the archive in `folder` covers it."""
    if snapshot is None and not home.ids(Role.NODE):
        raise UsageError(
            "no node keeps its state here, so a snapshot must show that one can still begin: `tdn snapshot --to FILE` where a node is, bring the file, "
            "and name it with --snapshot FILE"
        )
    serving = _serving(home)
    with _beginning(home, serving, snapshot, folder, progress) as (bound, needed):
        reaches_stream = _reaches_stream(home)
        behind = _behind(home, serving, bound, elsewhere=reaches_stream)
        if behind and not leave_behind:
            raise Refused(
                f"{', '.join(behind)} would be left behind: they have not read the log up to record {bound}, as far as is known here. Start them, revoke "
                "those that are gone, or say --leave-behind and start them from a snapshot afterwards"
            )
        removed = {
            name: kept.trim(store, bound, needed(), progress=progress)
            for name, store in _stores(home)
            if _position(store) >= bound
        }
    return Trimmed(bound, removed, asyncio.run(_trim_stream(home, serving, bound)) if reaches_stream else None)


def _serving(home: Home) -> _Serving:
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while True:
        found = [
            (_Serving(role, name, home.credentials(role, name)), state)
            for role in (Role.NODE, Role.GUARD)
            for name in home.ids(role)
            if (state := _serves(home, role, name))
        ]
        for one, state in found:
            if state.get("lag") == 0:
                return one
        if not found or time.monotonic() > deadline:
            raise BrokerUnavailable(
                "no node or guard of this home serves and has read the whole log; `tdn status` shows them, `tdn up` or their units start them"
            )
        time.sleep(0.1)


def _serves(home: Home, role: Role, name: str) -> dict[str, Any]:
    """What a process says of itself if it serves and is still there to say it; else nothing. Its pid alone does not show that: in another container another
    process has the same one."""
    state = home.reported(f"{role}-{name}")
    pid = state.get("pid")
    silent = abs(home.silence_seconds(f"{role}-{name}")) > SILENT_SECONDS
    return state if state.get("ready") and not silent and isinstance(pid, int) and _runs(pid) else {}


def _runs(pid: int) -> bool:
    # Not by /proc, in which a hardened unit sees nothing of another.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _beginning(
    home: Home, serving: _Serving, snapshot: Path | None, folder: Path, progress: Progress
) -> Iterator[tuple[int, Needed]]:
    """From which record on a node can begin, the archive holding what was before; and what its state there refers to."""
    with closing(Reader(serving.store)) as reader:
        counted, voices = checkpoints.latest(reader), checkpoints.enrolled_nodes(reader)
    if counted is None:
        raise Absent(make.NO_CHECKPOINT)
    if snapshot is None:
        _require_archived(home, folder, counted, progress)
        yield int(counted["seq"]), partial(kept.needed_by_text, _require_text(home, counted))
        return
    # What was carried stays where it is when a node is revoked; the log says whose voice no longer counts.
    stated = (home.enrolments / f"{Role.NODE}-{node}.jws" for node in voices)
    enrolments = [path.read_bytes() for path in stated if path.is_file()]
    newcomer = f"{serving.role}:{serving.name}"
    with take.examine(snapshot, genesis=home.genesis(), enrolments=enrolments, newcomer=newcomer) as examined:
        title = examined.title
        shown = {"seq": title.place.seq, "head": title.place.head, "at": title.place.at, "digest": title.digest}
        require_in_log(serving.store, shown, counted)
        _require_archived(home, folder, shown, progress)
        yield title.place.seq, examined.needed


def require_in_log(store: Path, shown: Fact, counted: Fact) -> None:
    """The snapshot is of this log, as the store has it, and of no later checkpoint than the last that counts here."""
    seq = shown["seq"]
    if seq > counted["seq"]:
        raise Refused(
            f"the snapshot is of record {seq}, and here the last checkpoint that counts is at {counted['seq']}; wait until the log says so"
        )
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT head FROM records WHERE seq = ?", (seq,)).fetchone()
        first = int(db.execute("SELECT first FROM kept").fetchone()[0])
    # A store that began with a snapshot has the record there, and what is whole begins behind it.
    if row is None or seq < first - 1:
        raise UsageError(f"the snapshot is of record {seq}, and the store here has nothing before {first}; make a later one")
    if row[0] != shown["head"] or (seq == counted["seq"] and shown["digest"] != counted["digest"]):
        raise LogDiverged(
            f"the snapshot says otherwise than the log here what was at record {seq}; compare the nodes before going on"
        )


def _reaches_stream(home: Home) -> bool:
    """Whether a guard is here: it is beside its broker, whose management API listens nowhere else, and has the password. One that a node's home had
    made up would let nobody in."""
    return bool(home.ids(Role.GUARD)) and home.has_management_password


def _behind(home: Home, serving: _Serving, bound: int, *, elsewhere: bool) -> list[str]:
    """Nodes that the log has not heard of since; guards of this home that have not read so far; and, where the stream goes too, guards elsewhere that
    those of this home have not heard say so."""
    guards = set(home.ids(Role.GUARD))
    late = {
        guard
        for guard in guards
        if schema.is_made(store := home.credentials(Role.GUARD, guard) / "store.sqlite") and _position(store) < bound
    }
    with closing(Reader(serving.store)) as reader:
        ticks = {node: int(fact["seq"]) for node, fact in reader.all("tick")}
        nodes = [f"node {node}" for node in checkpoints.enrolled_nodes(reader) if ticks.get(node, 0) < bound]
        if elsewhere:
            told = _told_of_guards(home)
            others = (guard for guard in principals.enrolled(reader, Role.GUARD) if guard not in guards)
            late |= {guard for guard in others if told.get(guard, 0) < bound}
    return nodes + [f"guard {guard}" for guard in sorted(late)]


def _told_of_guards(home: Home) -> dict[str, int]:
    """How far guards elsewhere are, as guards of this home have heard them say."""
    told: dict[str, int] = {}
    for guard in home.ids(Role.GUARD):
        for other, applied in _serves(home, Role.GUARD, guard).get("others", {}).items():
            told[other] = max(told.get(other, 0), int(applied))
    return told


def _require_archived(home: Home, folder: Path, checkpoint: Fact, progress: Progress) -> None:
    """The archive holds every record up to the checkpoint, as this network's log has them."""
    archive = Archive(folder)
    bound = int(checkpoint["seq"])
    roots = credentials.load_roots(home.settings().roots)
    found = verify(archive, roots, judge=False, progress=progress)
    if found.network != home.network:
        raise UsageError(f"the archive in {folder} is of another network")
    if found.records < bound:
        raise Refused(
            f"the archive ends at record {found.records}, and the checkpoint is at {bound}: `tdn archive export --to {folder}` first"
        )
    entry = next(one for one in archive.require_entries(roots) if one.first <= bound <= one.last)
    record = next(one for one in segments.read(archive.require_file(entry)) if one.seq == bound)
    if record.head != checkpoint["head"]:
        raise LogDiverged(f"the archive holds another record {bound} than the log; compare the nodes before going on")


def _require_text(home: Home, checkpoint: Fact) -> Path:
    """The state of the checkpoint, kept by a node of this home: from it a node can begin when the log's beginning is gone."""
    for node in home.ids(Role.NODE):
        text = make.text_of(home.store(node), int(checkpoint["seq"]))
        if text.is_file():
            total = hashlib.sha256()
            with gzip.open(text, "rb") as file:
                while piece := file.read(1024**2):
                    total.update(piece)
            if total.hexdigest() == checkpoint["digest"]:
                return text
    raise Absent(
        f"no node of this home has kept the state of the checkpoint at record {checkpoint['seq']}; wait for the next, or run this where one has"
    )


def _stores(home: Home) -> list[tuple[str, Path]]:
    found = [
        (f"{role}:{name}", home.credentials(role, name) / "store.sqlite")
        for role in (Role.NODE, Role.GUARD)
        for name in home.ids(role)
    ]
    return [(name, store) for name, store in found if schema.is_made(store)]


def _position(store: Path) -> int:
    with closing(Reader(store)) as reader:
        return reader.position().seq


def bytes_from(store: Path, bound: int) -> int:
    """How much the stream takes at most from a record on."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        db.execute("BEGIN")
        count, size = db.execute(
            "SELECT count(*), sum(length(raw) + ?) FROM records WHERE seq >= ?", (_ADDED_BYTES, bound)
        ).fetchone()
        last = int(db.execute("SELECT seq FROM position").fetchone()[0])
    if count != last - bound + 1:
        raise LogDiverged(
            f"the store {store} does not hold all records from {bound} to {last}; what the stream must keep is not known from it"
        )
    return int(size)


async def _trim_stream(home: Home, serving: _Serving, bound: int) -> tuple[int, int]:
    """Let the broker drop its oldest segments; the first offset before and after."""
    settings = home.settings()
    who = credentials.load(serving.folder)
    named = (guard_file.read(home.credentials(Role.GUARD, guard)).management_url for guard in home.ids(Role.GUARD))
    urls = list(dict.fromkeys([*(url.rstrip("/") for url in named if url is not None), *settings.management_urls]))
    connection = await Connection.open(settings.hosts, who, vhost=settings.vhost)
    try:
        async with Management(urls, home.management_password(), settings.vhost, who) as management:
            arguments = await management.arguments_of(names.LOG) or {}
            segment = int(arguments.get(topology.SEGMENT_ARGUMENT, topology.log_arguments()[topology.SEGMENT_ARGUMENT]))
            before = after = await log.first_offset(connection)
            try:
                # As late as may be: what is written while stores are trimmed must stay too.
                needed = bytes_from(serving.store, bound)
                await trim_policy.put(management, needed + _SPARE_SEGMENTS * segment)
                deadline = time.monotonic() + trim_policy.DROP_SECONDS
                while after == before and time.monotonic() < deadline:
                    await asyncio.sleep(0.5)
                    after = await log.first_offset(connection)
            finally:
                # Left in force, it would go on dropping, at some time what no archive has.
                await trim_policy.remove(management)
            return before, after
    finally:
        await connection.close()
