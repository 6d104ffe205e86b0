"""All checks of a home, in an order in which a cause comes before what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from tdn import machine
from tdn.doctor import files, reach, running, stores
from tdn.doctor.findings import Finding, State, of_error, problem, warning
from tdn.errors import TdnError
from tdn.local.home import TDN, Home, Settings
from tdn.local.network import Network
from tdn.protocol.names import Role

Say = Callable[[Finding], None]


def examine(home: Home, say: Say, *, timeout_seconds: float, thorough: bool = False) -> list[Finding]:
    """Look at everything; each finding is told as it is made, and all are given at the end. Nothing is changed."""
    findings: list[Finding] = []

    def take(check: str, look: Callable[[], Iterable[Finding]]) -> None:
        for finding in _safely(check, look):
            findings.append(finding)
            say(finding)

    take("home", lambda: files.look_at_home(home))
    # A problem that ended the look comes first: in a folder that may not be looked into, nothing more can be asked.
    if any(finding.check == "home" and finding.state is State.PROBLEM for finding in findings[-1:]) or not home.exists:
        return findings
    take("settings", lambda: files.look_at_settings(home))
    take("private files", lambda: files.look_at_private_files(home))
    take("disk", lambda: files.look_at_disk(home))
    settings = _settings(home)
    if settings is None:
        take(
            "settings",
            lambda: [
                warning("settings", "certificates, stores and the network are not looked at without them", "correct them first")
            ],
        )
        return findings
    take("certificates", lambda: files.look_at_certificates(home, settings, datetime.now(UTC)))
    take("revocations", lambda: files.look_at_pending(home))
    known: list[stores.Store] = []

    def look_at_stores() -> list[Finding]:
        found, readable = stores.look_at_stores(home, thorough=thorough)
        known.extend(readable)
        return found

    take("stores", look_at_stores)
    network = Network(home)
    entries: list[dict[str, object]] = []

    def look_at_processes() -> Iterable[Finding]:
        entries.extend(network.status())
        return running.look_at_processes(home, entries, network.guards())

    take("processes", look_at_processes)
    take("ports", lambda: running.look_at_ports(home, settings, entries))
    take("open files", lambda: running.look_at_descriptors(entries))
    alive = [(entry["role"], str(entry["id"])) for entry in entries if entry["alive"]]
    take("clock", lambda: reach.look_at_clock(known, [name for role, name in alive if role == Role.NODE]))
    if settings.private_broker and not alive:
        return findings
    someone = reach.load_someone(home)
    if someone is None:
        take(
            "broker",
            lambda: [warning("broker", "not looked at: no credentials can be loaded here", "see the certificates, above")],
        )
        return findings
    guards = [name for role, name in alive if role == Role.GUARD]
    take("broker", lambda: asyncio.run(reach.look_at_brokers(settings, someone, timeout_seconds)))
    take("guard", lambda: asyncio.run(reach.look_at_guards(home, settings, someone, guards, timeout_seconds)))
    if all(finding.state is not State.OK for finding in findings if finding.check == "broker"):
        # No broker: what is behind it has been said with it.
        return findings
    if (home.folder / "network" / "management-password").exists():
        take("alarms", lambda: asyncio.run(reach.look_at_alarms(home, settings, someone)))
    take("log", lambda: asyncio.run(reach.look_at_log(settings, someone, known, timeout_seconds)))
    return findings


def _settings(home: Home) -> Settings | None:
    """The settings, where reading them chooses nothing: a private network's ports are chosen by `tdn up`."""
    try:
        if TDN.read(home.folder)["broker"]["mode"] == "private" and not (home.folder / "ports.json").exists():
            return None
        return home.settings()
    except TdnError:
        return None


def _safely(check: str, look: Callable[[], Iterable[Finding]]) -> Iterable[Finding]:
    """What a check finds. One that fails is a finding, and stops no other."""
    try:
        yield from look()
    except Exception as error:
        ours = machine.explain(error)
        if ours is not None:
            yield of_error(check, ours)
        else:
            yield problem(
                check,
                TdnError,
                f"the check itself failed: {type(error).__name__}: {error}",
                "tell those who maintain this software",
            )
