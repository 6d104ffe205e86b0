"""`tdn snapshot`, `tdn log trim`, `tdn backup`, `tdn restore`: what keeps a network startable and its disk bounded."""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tdn.cli.output import emit, note, record
from tdn.errors import Absent, UsageError
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role


def add_parsers(commands: Any) -> list[argparse.ArgumentParser]:
    snapshot = commands.add_parser("snapshot", help="the state at the last checkpoint in one file, from which a node starts")
    snapshot.add_argument("--to", type=Path, required=True, metavar="FILE")
    snapshot.add_argument("--node", metavar="ID", help="from the store of this node (default: one that has kept it)")
    snapshot.set_defaults(perform=_snapshot)

    log = commands.add_parser("log", help="the log itself")
    acts = log.add_subparsers(dest="act", required=True, metavar="ACT")
    trim = acts.add_parser(
        "trim", help="drop what an archive and a checkpoint cover, from the stores here and, where a guard is, from the broker"
    )
    trim.add_argument(
        "--archive", type=Path, required=True, metavar="DIR", help="an archive that holds all of it; it is checked first"
    )
    trim.add_argument(
        "--snapshot",
        type=Path,
        metavar="FILE",
        help="up to the checkpoint of this snapshot, which shows that a node can begin there; needed where only a guard is",
    )
    trim.add_argument(
        "--leave-behind",
        action="store_true",
        help="although nodes that are down, or guards, would need a snapshot to start again",
    )
    trim.set_defaults(perform=_trim)

    backup = commands.add_parser("backup", help="this home in one file, with all its keys; while it runs, or not")
    backup.add_argument("--to", type=Path, required=True, metavar="FILE|DIR", help="a new file, or a folder to put one into")
    backup.add_argument("--with-broker", action="store_true", help="with the private broker's data; the network must be down")
    backup.set_defaults(perform=_backup)

    restore = commands.add_parser("restore", help="make a new home (`--home`) from a backup")
    restore.add_argument("file", type=Path, metavar="FILE")
    restore.set_defaults(perform=_restore)
    return [snapshot, trim, backup, restore]


def _snapshot(arguments: argparse.Namespace) -> None:
    from tdn.snapshots import make

    home = _existing(arguments)
    nodes = home.ids(Role.NODE) if arguments.node is None else [arguments.node]
    _keep_scratch_beside(home)
    store = _keeping(home, nodes)
    made = make.make(store, arguments.to)
    _emit(
        arguments,
        {
            "snapshot": str(arguments.to),
            "seq": made.place.seq,
            "head": made.place.head,
            "digest": made.digest,
            "facts": made.facts,
            "records": made.records,
            "bytes": made.bytes,
            "node": store.parent.name,
        },
    )
    note("it shows everything, also what is hidden; keep it as you keep the operator's key")


def _keeping(home: Home, nodes: list[str]) -> Path:
    """The store of the node that has kept the latest checkpoint that counts."""
    from tdn.snapshots import make

    found = [(counted["seq"], home.store(node)) for node in nodes if (counted := make.counted(home.store(node))) is not None]
    if not found:
        raise Absent(make.NO_CHECKPOINT)
    return max(found, key=lambda one: (one[0], make.text_of(one[1], one[0]).is_file()))[1]


def _trim(arguments: argparse.Namespace) -> None:
    # Loaded here: the other commands start without pyarrow.
    from tdn.cli.archive import progress_line
    from tdn.local.trimming import trim

    home = _existing(arguments)
    # The policy that lets the broker drop segments must not stay behind: a request to end is an interruption.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _keep_scratch_beside(home)
    done = trim(
        home, arguments.archive, snapshot=arguments.snapshot, leave_behind=arguments.leave_behind, progress=progress_line()
    )
    before, after = done.offsets or (None, None)
    _emit(
        arguments,
        {
            "kept_from": done.bound,
            "removed": sum(done.removed.values()),
            "stores": len(done.removed),
            "stream": "left" if done.offsets is None else "whole" if before == after else "trimmed",
            "first_offset_before": before,
            "first_offset": after,
        },
    )
    if done.offsets is None:
        note(
            "the broker's stream was left to a guard's machine, from which alone it is reached: `tdn log trim` in the home of a guard, with --snapshot"
        )
    elif before == after:
        note("the broker kept all of its segments: less than a few of them lie before the checkpoint")


def _keep_scratch_beside(home: Home) -> None:
    """What SQLite sorts out in files of its own is as large as the state; /tmp of a container is not. The stores' own disk has the room."""
    if "SQLITE_TMPDIR" in os.environ:
        return
    place = str(home).replace("'", "''")
    # By the pragma, although it is deprecated: the environment was read when sqlite3 was loaded. A home that is read-only is none for it.
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"PRAGMA temp_store_directory = '{place}'")


def _backup(arguments: argparse.Namespace) -> None:
    from tdn.local.backup import backup

    home = _existing(arguments)
    if arguments.with_broker:
        if not home.settings().private_broker:
            raise UsageError("--with-broker is for a private broker; back up your own RabbitMQ by its own means")
        if any(entry["alive"] for entry in Network(home).status()):
            raise UsageError(
                "the broker's data can be copied only while the network is down: `tdn down` first, or leave out --with-broker"
            )
    saved = backup(home, arguments.to, with_broker=arguments.with_broker)
    _emit(arguments, {"backup": str(saved.file), "files": saved.files, "bytes": saved.bytes, "broker": saved.broker})
    for what in saved.passed_over:
        note(f"not in it: {what}")
    note("it holds every key of this home, the CA's too: whoever can read it is the network")


def _restore(arguments: argparse.Namespace) -> None:
    from tdn.local.backup import restore

    home = Home(arguments.home)
    restored = restore(arguments.file, home)
    _emit(
        arguments,
        {
            "home": str(home),
            "network": restored.network,
            "created": restored.created,
            "files": restored.files,
            "broker": restored.broker,
        },
    )
    note(f"`tdn --home {home} up` starts it" + ("" if restored.broker else "; its nodes put the log back from their stores"))


def _existing(arguments: argparse.Namespace) -> Home:
    home = Home(arguments.home)
    home.require_version()
    if not home.exists:
        raise UsageError(f"there is no network in {home}; `tdn up` makes one")
    return home


def _emit(arguments: argparse.Namespace, value: dict[str, Any]) -> None:
    if arguments.json:
        emit(value)
    else:
        record({name: one for name, one in value.items() if one is not None})
