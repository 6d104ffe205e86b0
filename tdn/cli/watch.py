"""`tdn status --watch`: the table of processes again and again, with rates from their counters: in place on a terminal, a block each time elsewhere."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from tdn.cli.output import duration_seconds, emit, lines_of, printable
from tdn.errors import UsageError
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.protocol.times import format_time, whole_seconds

#: How long a process may take to show its numbers. One that hangs must not hold up the picture of the others.
_FETCH_SECONDS = 1.0
_DAY_SECONDS = 86_400.0

HEADINGS = ("ROLE", "ID", "PID", "STATE", "SEQUENCE", "LAG", "TOPICS")
_WATCHED = (*HEADINGS, "REQ/S", "REFUSED/S", "QUEUE", "CERT")

#: Home, and what is right of and below the cursor erased: nothing flickers as when the whole screen is cleared first.
_TOP, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_HIDE_CURSOR, _SHOW_CURSOR, _OTHER_SCREEN, _FORMER_SCREEN = "\x1b[?25l", "\x1b[?25h", "\x1b[?1049h", "\x1b[?1049l"

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="go on showing it, with requests a second, until Ctrl-C")
    parser.add_argument("--interval", type=_interval, default=2.0, metavar="D", help="with --watch: between two looks (default: 2s)")
    parser.add_argument("--count", type=_count, metavar="N", help="with --watch: end after N looks")


def row(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """One process in the table of `tdn status`."""
    return (
        *(entry["role"], entry["id"], entry["pid"], _condition(entry)),
        *(entry.get(name) for name in ("sequence", "lag", "topics")),
    )


def _condition(entry: Mapping[str, Any]) -> str:
    state = "stopped" if not entry["alive"] else "ready" if entry.get("ready", True) else "not ready"
    return f"{state}: denies entities everything" if entry.get("denies_all") else state


def reasons(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why processes are not ready, or have ended, in lines to stand below the table: a sentence in a column makes all lines of it long."""
    alike: dict[str, list[str]] = {}
    for entry in entries:
        if entry.get("why"):
            alike.setdefault(printable(str(entry["why"])), []).append(str(entry["id"]))
    return ["", *(f"{', '.join(those)}: {why}" for why, those in alike.items())] if alike else []


@dataclass(frozen=True, slots=True)
class Seen:
    """Counters of one process at a moment. Another pid begins anew."""

    at: float
    pid: int | None
    requests: float
    refused: float


def perform(network: Network, arguments: argparse.Namespace) -> None:
    live = sys.stdout.isatty() and not arguments.json
    before: dict[tuple[str, str], Seen] = {}
    looks = 0
    try:
        if live:
            sys.stdout.write(_OTHER_SCREEN + _HIDE_CURSOR)
        while True:
            entries = _look(network, before)
            looks += 1
            if arguments.json:
                for entry in entries:
                    emit(entry)
            elif live:
                sys.stdout.write(_picture(network, entries, arguments.interval))
            else:
                print("\n".join([*_block(entries), *reasons(entries)]), end="\n\n")
            sys.stdout.flush()
            if looks == arguments.count:
                return
            time.sleep(arguments.interval)
    except KeyboardInterrupt:
        # It is how one ends it, not a failure.
        return
    finally:
        if live:
            sys.stdout.write(_SHOW_CURSOR + _FORMER_SCREEN)
            sys.stdout.flush()


def _look(network: Network, before: dict[tuple[str, str], Seen]) -> list[dict[str, Any]]:
    """All processes as they are now, with what happened since the last look."""
    entries = network.status()
    with ThreadPoolExecutor(max(1, len(entries))) as pool:
        fetched = list(pool.map(_fetch, (entry.get("metrics") for entry in entries)))
    for entry, samples in zip(entries, fetched, strict=True):
        key = (entry["role"], entry["id"])
        entry["at"] = format_time(whole_seconds(datetime.now(UTC)))
        if entry["role"] == Role.BROKER:
            entry["certificate_days"] = _broker_days(network, str(entry["id"]))
            continue
        entry |= dict.fromkeys(("requests_per_second", "refused_per_second", "queue", "certificate_days"))
        if samples is None:
            before.pop(key, None)
            continue
        seen = _counted(entry, samples)
        if (last := before.get(key)) is not None and last.pid == seen.pid and seen.at > last.at:
            seconds = seen.at - last.at
            entry["requests_per_second"] = round((seen.requests - last.requests) / seconds, 1)
            entry["refused_per_second"] = round((seen.refused - last.refused) / seconds, 1)
        before[key] = seen
        entry["queue"] = _whole(_value(samples, "tdn_node_changes_waiting"))
        left = _value(samples, "tdn_certificate_seconds_left", whose="own")
        entry["certificate_days"] = None if left is None else _in_days(left)
    return entries


def _broker_days(network: Network, broker: str) -> float | None:
    """What is left of the certificate that a private broker of this home shows; it says nothing of it itself."""
    try:
        certificate = x509.load_pem_x509_certificate((network.home.credentials(Role.BROKER, broker) / "cert.pem").read_bytes())
    except (OSError, ValueError):
        return None
    return _in_days((certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds())


def _in_days(seconds: float) -> float:
    """Never more than are left: the last of `tdn doctor`'s whole days has begun."""
    return math.floor(seconds / _DAY_SECONDS * 10) / 10


def _counted(entry: Mapping[str, Any], samples: Samples) -> Seen:
    """Of a node, messages; of a guard, the broker's questions."""
    counted = samples.get("tdn_guard_decisions_total" if entry["role"] == Role.GUARD else "tdn_node_requests_total", ())
    refused = sum(value for labels, value in counted if labels["outcome"] in ("denied", "refused", "turned_away", "failed"))
    return Seen(time.monotonic(), entry["pid"], sum(value for _, value in counted), refused)


def _fetch(url: str | None) -> Samples | None:
    if url is None:
        return None
    try:
        # Past any proxy of the environment: it is a process beside us.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=_FETCH_SECONDS) as answer:
            return read_samples(answer.read().decode())
    except (OSError, ValueError, urllib.error.URLError):
        return None


def read_samples(text: str) -> Samples:
    """Every sample of a page of metrics, by its name."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    # Loaded here: its package begins with a web server, and only a watched status reads metrics.
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _value(samples: Samples, name: str, **labels: str) -> float | None:
    found = next((value for at, value in samples.get(name, ()) if labels.items() <= at.items()), None)
    return None if found is None or math.isnan(found) else found


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _block(entries: Sequence[Mapping[str, Any]], width: int | None = None) -> list[str]:
    """The table; where it is too wide, without the columns that are missed least."""
    rows = [
        (*row(entry), *(entry.get(name) for name in ("requests_per_second", "refused_per_second", "queue")), _days(entry))
        for entry in entries
    ]
    columns = list(range(len(_WATCHED)))
    for dispensable in (None, "PID", "SEQUENCE", "TOPICS", "REFUSED/S"):
        columns = [column for column in columns if _WATCHED[column] != dispensable]
        lines = lines_of([[cells[column] for column in columns] for cells in rows], [_WATCHED[column] for column in columns])
        if width is None or max(map(len, lines)) <= width:
            break
    return lines


def _days(entry: Mapping[str, Any]) -> str | None:
    days = entry.get("certificate_days")
    return None if days is None else f"{math.floor(days)} d" if days >= 2 else f"{days * 24:.0f} h"


def _picture(network: Network, entries: Sequence[Mapping[str, Any]], interval: float) -> str:
    """The screen written over, each line cut to the width of the terminal."""
    width, height = shutil.get_terminal_size()
    title = f"{network.home}  {format_time(whole_seconds(datetime.now(UTC)))}  every {interval:g} s, Ctrl-C ends"
    told = [part for line in reasons(entries) for part in textwrap.wrap(line, width) or [""]]
    lines = [title, "", *_block(entries, width), *told][: max(1, height - 1)]
    return _TOP + "".join(f"{line[:width]}{_REST_OF_LINE}\r\n" for line in lines) + _REST_OF_SCREEN


def _interval(text: str) -> float:
    seconds = duration_seconds(text)
    if seconds > 3600:
        raise UsageError("--interval is at most 1h")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:10]) < 1_000_000_000:
        raise UsageError("--count is a whole number above 0")
    return int(text)
