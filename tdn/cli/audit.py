"""`tdn audit`: what the guards of a home decided, from their audit files, and which changes the log refused, merged in time order.
Needs nothing that runs."""

from __future__ import annotations

import argparse
import heapq
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tdn.cli.output import emit, note, table
from tdn.errors import UsageError
from tdn.guard import audit
from tdn.local.home import Home
from tdn.protocol.names import Name, Role, check_id, check_uuid
from tdn.protocol.times import format_time, parse_duration, parse_time
from tdn.store.search import Reader, Refusal

#: Most entries that are asked for by number. A larger number means all, and those are not gathered before they are printed.
_MAX_LIMIT = 10_000
#: How much of a resource a table shows; `--json` has the rest.
_SHOWN_CHARACTERS = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--entity", type=check_id, metavar="E", help="decisions about this entity, node or guard")
    parser.add_argument("--topic", type=check_uuid, metavar="UUID", help="decisions about this topic")
    parser.add_argument("--since", type=_since, metavar="T", help="from this time on, or for so long until now: 15m")
    parser.add_argument("--denied", action="store_true", help="only what was denied")
    parser.add_argument("--limit", type=_limit, default=100, metavar="N", help="the latest N (default: 100; 0: all)")


def perform(arguments: argparse.Namespace) -> None:
    home = Home(arguments.home)
    home.require_version()
    if not home.exists:
        raise UsageError(f"there is no network in {home}; `tdn up` makes one")
    # One more than asked for tells whether there are more.
    limit = arguments.limit + 1 if arguments.limit else None
    entries = _merged(home, arguments, limit)
    if limit is not None:
        latest = list(entries)[-limit:]
        if len(latest) == limit:
            note(f"these are the latest {arguments.limit}; there are more, see --limit and --since")
            del latest[0]
        entries = iter(latest)
    if arguments.json:
        for entry in entries:
            emit({**entry, "at": format_time(entry["at"])})
    elif rows := [_row(entry) for entry in entries]:
        table(rows, ("AT", "GUARD", "WHO", "ACTION", "RESOURCE", "VERDICT", "TIMES", "BECAUSE", "GRANT"))


def _merged(home: Home, arguments: argparse.Namespace, limit: int | None) -> Iterator[dict[str, Any]]:
    """Every guard that has ever written here, also one whose certificate is gone; and the log, which is the same in all stores."""
    paths = sorted(home.credentials(Role.GUARD, "x").parent.glob(f"*/{audit.AUDIT_FILE}"))
    return heapq.merge(
        *(_of_one(path, arguments, limit) for path in paths), _of_the_log(home, arguments, limit), key=lambda entry: entry["at"]
    )


def _of_the_log(home: Home, arguments: argparse.Namespace, limit: int | None) -> Iterator[dict[str, Any]]:
    """What was asked of the network and refused: forged grants, others' topics, limits. From the store that is furthest."""
    store = home.furthest_store()
    if store is None:
        return
    with closing(Reader(store)) as reader:
        found = (entry for entry in map(_refused, reader.refusals(arguments.since)) if _fits(entry, arguments))
        yield from found if limit is None else deque(found, maxlen=limit)


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {
        "at": parse_time(refusal.at),
        "guard": None,
        "record": refusal.seq,
        "request": refusal.request,
        "entity": refusal.principal.partition(":")[2],
        "login": refusal.principal,
        "action": refusal.kind,
        "resource": f"record {refusal.seq} of the log",
        "topic": refusal.uuid,
        "allowed": False,
        "because": refusal.because,
        "grant": refusal.grant,
        "count": 1,
    }


def _fits(entry: dict[str, Any], arguments: argparse.Namespace) -> bool:
    return arguments.entity in (None, entry["entity"]) and arguments.topic in (None, entry["topic"])


def _of_one(path: Path, arguments: argparse.Namespace, limit: int | None) -> Iterator[dict[str, Any]]:
    found = audit.search(
        path,
        entity=arguments.entity,
        topic=arguments.topic,
        since=arguments.since,
        denied_only=arguments.denied,
        limit=limit,
    )
    for entry in found:
        yield {"at": entry["at"], "guard": path.parent.name, **entry}


def _row(entry: dict[str, Any]) -> Sequence[Any]:
    who = Name.parse(entry["login"])
    resource, topic = entry["resource"], entry["topic"]
    if topic is not None and topic not in resource:
        resource = f"{resource} {topic}".strip()
    return (
        format_time(entry["at"]),
        entry["guard"] or "the log",
        who.principal if who else _shortened(entry["login"]) or None,
        entry["action"],
        _shortened(resource),
        "allowed" if entry["allowed"] else "denied",
        entry["count"],
        entry["because"],
        entry["grant"],
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _since(text: str) -> datetime:
    if re.fullmatch(r"[0-9]+[a-z]", text):
        return datetime.now(UTC) - parse_duration(text)
    try:
        return parse_time(text)
    except UsageError as error:
        raise UsageError(f"{text!r} is neither a time (2027-01-31T12:00:00Z) nor a duration (15m)") from error


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > _MAX_LIMIT:
        raise UsageError(f"--limit is between 1 and {_MAX_LIMIT}, or 0 for all")
    return int(text)
