"""The log's beginning goes (`tdn log trim`): from the stores of this home, and from the broker's stream.

Only what a verified archive holds and what lies before a checkpoint that counts may go, and only while the state of that checkpoint is at hand, so
that a node can still begin there. RabbitMQ drops whole segments, by a policy; the policy stands for the moment in which it is wanted (guards see to that
when a trim is killed), and allows more than everything from the checkpoint on.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
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
from tdn.local.home import Home
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.rules import checkpoints
from tdn.rules.state import Fact
from tdn.snapshots import make
from tdn.store import kept, schema
from tdn.store.search import Reader
from tdn.trust import credentials

#: What the broker adds to a record, at most: its own headers and the record's share of a chunk's. Measured: 200.
_ADDED_BYTES = 512
#: Segments that are kept beyond what must be: a segment is a little larger than it was asked to be, and records come while the policy stands.
_SPARE_SEGMENTS = 4

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a trim did."""

    #: Everything from this record on is kept.
    bound: int
    #: Records that each store lost.
    removed: dict[str, int]
    #: The stream's first offset before and after.
    offsets: tuple[int, int]


def trim(home: Home, folder: Path, *, leave_behind: bool = False, progress: Progress = lambda done, last: None) -> Trimmed:
    """Trim stores and stream up to the last checkpoint that counts, as far as the archive in `folder` covers it."""
    node, store = _serving_node(home)
    with closing(Reader(store)) as reader:
        checkpoint = checkpoints.latest(reader)
        if checkpoint is None:
            raise Absent(make.NO_CHECKPOINT)
        bound = int(checkpoint["seq"])
        behind = _behind(home, reader, bound)
    _require_archived(home, folder, checkpoint, progress)
    text = _require_text(home, checkpoint)
    if behind and not leave_behind:
        raise Refused(
            f"{', '.join(behind)} would be left behind: they have not read the log up to record {bound}. Start them, revoke those that are gone, or say "
            "--leave-behind and start them from a snapshot afterwards"
        )
    needed = _bytes_from(store, bound)
    removed = {}
    for name, one in _stores(home):
        if _position(one) >= bound:
            removed[name] = kept.trim(one, bound, text, progress=progress)
    offsets = asyncio.run(_trim_stream(home, node, needed))
    return Trimmed(bound, removed, offsets)


def _serving_node(home: Home) -> tuple[str, Path]:
    """A node of this home that serves and has read the whole log: from its store one knows how much the stream must keep."""
    for node in home.ids(Role.NODE):
        state = home.reported(f"{Role.NODE}-{node}")
        if state.get("ready") and state.get("lag") == 0 and _runs(state.get("pid")):
            return node, home.store(node)
    raise BrokerUnavailable(
        "no node of this home serves and has read the whole log; `tdn status` shows them, `tdn up` starts them"
    )


def _runs(pid: Any) -> bool:
    return isinstance(pid, int) and Path(f"/proc/{pid}").exists()


def _behind(home: Home, reader: Reader, bound: int) -> list[str]:
    """Nodes that the log has not heard of since, and guards of this home that have not read so far."""
    ticks = {node: int(fact["seq"]) for node, fact in reader.all("tick")}
    nodes = [f"node {node}" for node in checkpoints.enrolled_nodes(reader) if ticks.get(node, 0) < bound]
    guards = [
        f"guard {guard}"
        for guard in home.ids(Role.GUARD)
        if schema.is_made(store := home.credentials(Role.GUARD, guard) / "store.sqlite") and _position(store) < bound
    ]
    return nodes + guards


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


def _bytes_from(store: Path, bound: int) -> int:
    """How much the stream takes at most from a record on."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT sum(length(raw) + ?) FROM records WHERE seq >= ?", (_ADDED_BYTES, bound)).fetchone()
    return int(row[0])


async def _trim_stream(home: Home, node: str, needed: int) -> tuple[int, int]:
    """Let the broker drop its oldest segments; the first offset before and after."""
    settings = home.settings()
    who = credentials.load(home.credentials(Role.NODE, node))
    connection = await Connection.open(settings.hosts, who, vhost=settings.vhost)
    try:
        async with Management(settings.management_urls, home.management_password(), settings.vhost, who) as management:
            arguments = await management.arguments_of(names.LOG) or {}
            segment = int(arguments.get(topology.SEGMENT_ARGUMENT, topology.log_arguments()[topology.SEGMENT_ARGUMENT]))
            before = after = await log.first_offset(connection)
            try:
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
