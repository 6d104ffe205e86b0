"""`tdn archive`: the log as files for Spark and for years to come, and whether such files are what they say. Needs nothing that runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tdn import machine
from tdn.cli.output import emit, note, record
from tdn.errors import UsageError
from tdn.local.home import Home
from tdn.protocol.names import Role
from tdn.store import schema
from tdn.trust import credentials
from tdn.trust.certificates import TrustRoots


def add_parsers(commands: Any) -> list[argparse.ArgumentParser]:
    archive = commands.add_parser("archive", help="export the log for Spark and for keeping, and check an export")
    acts = archive.add_subparsers(dest="act", required=True, metavar="ACT")
    export = acts.add_parser("export", help="add what the log has and the archive has not; can be repeated, interrupted, run twice")
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="the archive; made if it is not there")
    export.add_argument("--node", metavar="ID", help="from the store of this node (default: the one that is furthest)")
    export.set_defaults(perform=_export)
    verify = acts.add_parser("verify", help="check every digest, signature and effect of an archive, offline")
    verify.add_argument("folder", type=Path, metavar="DIR")
    verify.add_argument("--trust", type=Path, metavar="PEM", help="trusted roots (default: those of the home)")
    verify.add_argument("--quick", action="store_true", help="entries, digests and hashes only; records are not judged again")
    verify.set_defaults(perform=_verify)
    return [export, verify]


def trusted(arguments: argparse.Namespace) -> TrustRoots:
    """The roots that a command is told to believe, or those of its home."""
    home = Home(arguments.home)
    if arguments.trust is None:
        home.require_version()
    if arguments.trust is None and not home.exists:
        raise UsageError(f"there is no network in {home}; name the trusted roots with --trust PEM")
    return credentials.load_roots(arguments.trust or home.settings().roots)


def _export(arguments: argparse.Namespace) -> None:
    # Loaded here: the other commands start without pyarrow.
    from tdn.archive.export import export
    from tdn.archive.manifest import Archive

    home = Home(arguments.home)
    home.require_version()
    if not home.exists:
        raise UsageError(f"there is no network in {home}; `tdn up` makes one")
    store = home.furthest_store() if arguments.node is None else home.store(arguments.node)
    if store is None or not schema.is_made(store):
        raise UsageError("no node of this home has a store yet; start the network, or run this where a node is")
    node = credentials.load(store.parent)
    if node.identity.name.role is not Role.NODE:
        raise UsageError(f"{store.parent} holds no node's credentials")
    try:
        done = export(store, Archive(arguments.to), node, node.roots, progress=progress_line())
    except OSError as error:
        raise machine.cannot_write(error, arguments.to) from error
    _emit(
        arguments,
        {
            "archive": str(arguments.to),
            "segments": done.segments,
            "records": done.records,
            "last": done.last,
            "head": done.head,
            "node": node.identity.name.id,
        },
    )


def _verify(arguments: argparse.Namespace) -> None:
    from tdn.archive.manifest import Archive
    from tdn.archive.verify import verify

    found = verify(Archive(arguments.folder), trusted(arguments), judge=not arguments.quick, progress=progress_line())
    _emit(
        arguments,
        {
            "valid": True,
            "network": found.network,
            "segments": found.segments,
            "records": found.records,
            "head": found.head,
            "judged": found.judged,
        },
    )
    if not found.judged:
        note("not checked: signatures of records, and what they did; without --quick they are")


def _emit(arguments: argparse.Namespace, value: dict[str, Any]) -> None:
    if arguments.json:
        emit(value)
    else:
        record(value)


def progress_line() -> Callable[[int, int], None]:
    """A line on a terminal that is written over; nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda done, last: None

    shown: tuple[int, int] | None = None

    def show(done: int, last: int) -> None:
        nonlocal shown
        if (done, last) == shown:
            # The last line was ended.
            return
        shown = done, last
        print(f"\r{done} of {last} records", end="\n" if done >= last else "", file=sys.stderr, flush=True)

    return show
