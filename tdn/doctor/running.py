"""Checks of what runs on this machine: processes, their open files, and the ports that they need."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tdn.doctor.findings import Finding, of_error, ok, problem, warning
from tdn.errors import BrokerUnavailable, NoRoom, UsageError, from_object
from tdn.local.home import Home, Settings
from tdn.protocol.names import Role

#: A broker and a node under load have some hundred files open.
_FEW_DESCRIPTORS = 1024


def look_at_processes(home: Home, entries: Sequence[Mapping[str, Any]], started_here: Sequence[str]) -> Iterator[Finding]:
    """`started_here`: the guards that `tdn up` starts; others run beside brokers elsewhere."""
    some_run = any(entry["alive"] for entry in entries)
    if not some_run:
        yield warning("processes", "nothing of this network runs here, so only files and brokers are looked at", f"{_starting(home)} starts it, where it is to run here")
    for entry in entries:
        who = _who(entry)
        ended = _ended(home, entry)
        if not entry["alive"] and isinstance(ended, dict):
            yield of_error("processes", from_object(ended), f"{who} ended by itself", f"{_starting(home)} starts it again")
        elif not entry["alive"] and entry["role"] == Role.GUARD and entry["id"] not in started_here:
            yield warning("processes", f"{who} does not run here", "if it runs nowhere, revoke it: revocations wait for it")
        elif not entry["alive"] and some_run:
            yield problem(
                "processes",
                BrokerUnavailable,
                f"{who} does not run",
                f"{_starting(home)} starts it; why it ended is in {_log(home, entry)}",
            )
    yield from _not_ready(home, [entry for entry in entries if entry["alive"] and not entry.get("ready", True)])
    if running := [entry["id"] for entry in entries if entry["alive"] and entry.get("ready", True)]:
        yield ok("processes", f"ready: {', '.join(running)}")


def _ended(home: Home, entry: Mapping[str, Any]) -> Any:
    """What a process said when it ended; nothing once it has another certificate, which it was told to get, perhaps."""
    name = f"{entry['role']}-{entry['id']}"
    with contextlib.suppress(OSError, ValueError):
        issued = (home.credentials(Role(entry["role"]), str(entry["id"])) / "cert.pem").stat().st_mtime
        if issued > (home.run / f"{name}.state.json").stat().st_mtime:
            return None
    return home.reported(name).get("ended")


def _not_ready(home: Home, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """One finding for all that say the same: without a broker, every node and guard does."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        why = str(entry.get("why") or "nothing is served")
        if entry["role"] == Role.GUARD:
            why = f"entities are denied everything: {entry['why']}" if entry.get("why") else "entities are denied everything"
        alike.setdefault(why, []).append(entry)
    for why, those in alike.items():
        who = ", ".join(map(_who, those))
        logs = ", ".join(_log(home, entry) for entry in those[:1]) + (", and theirs" if len(those) > 1 else "")
        verb = "is" if len(those) == 1 else "are"
        yield problem(
            "processes", BrokerUnavailable, f"{who} {verb} not ready: {why}", f"see {logs}; the checks below may say why"
        )


def _who(entry: Mapping[str, Any]) -> str:
    return str(entry["id"]) if entry["role"] == Role.BROKER else f"{entry['role']} {entry['id']}"


def _starting(home: Home) -> str:
    return "its unit or container, or `tdn node|guard --id ID`," if home.is_carried else "`tdn up`"


def _log(home: Home, entry: Mapping[str, Any]) -> str:
    if entry["role"] == Role.BROKER:
        return str(home.folder / str(entry["id"]) / "rabbitmq" / "log" / "broker.log")
    # What `tdn up` has not started writes where its supervisor wants.
    path = home.run / f"{entry['role']}-{entry['id']}.log"
    return str(path) if path.exists() else "its journal, or its container's log"


def look_at_descriptors(entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    looked = 0
    for entry in entries:
        if not entry["alive"] or not entry["pid"]:
            continue
        try:
            limits = Path(f"/proc/{entry['pid']}/limits").read_text()
            used = len(os.listdir(f"/proc/{entry['pid']}/fd"))
        except OSError:
            # Another user's, or a system without /proc.
            continue
        looked += 1
        word = next(line.split()[3] for line in limits.splitlines() if line.startswith("Max open files"))
        limit = int(word) if word.isdigit() else None
        what = f"{entry['role']} {entry['id']} has {used} of {word} files open"
        do = "raise the limit where it is started (`ulimit -n 65536`, in systemd `LimitNOFILE=65536`) and start it again"
        if limit is not None and used > 0.8 * limit:
            yield problem("open files", NoRoom, what, do)
        elif limit is not None and limit < _FEW_DESCRIPTORS:
            yield warning("open files", what, do)
    if looked:
        yield ok("open files", f"{looked} processes are looked at; none is near its limit")


def look_at_ports(home: Home, settings: Settings, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """A port that a stopped process will need, and that another program has."""
    alive = {entry["role"] for entry in entries if entry["alive"]}
    wanted: list[tuple[str, str, int]] = []
    if Role.GUARD not in alive and home.ids(Role.GUARD):
        wanted.append(("the guard", settings.guard_host, settings.guard_port))
    if settings.private_broker and Role.BROKER not in alive:
        wanted += [("the broker", broker.host, broker.port) for broker in settings.hosts]
    taken = [(who, host, port) for who, host, port in wanted if not _is_free(host, port)]
    for who, host, port in taken:
        if settings.private_broker:
            yield warning("ports", f"{host}:{port} of {who} is taken by another program", "`tdn up` chooses others by itself")
        else:
            yield problem(
                "ports",
                UsageError,
                f"{host}:{port} of {who} is taken by another program",
                "end it, or name another port (guard_listen in tdn.toml)",
            )
    if wanted and not taken:
        yield ok("ports", f"free: {', '.join(f'{host}:{port}' for _, host, port in wanted)}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
