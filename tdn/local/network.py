"""A private network on one machine: up, down, status. Everything it starts is remembered in the home and ends with `down`.

The broker comes first because all else needs it, the guard beside it because the broker asks it at the first login, then the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tdn.bus.address import write_connection
from tdn.errors import BrokerUnavailable, UsageError
from tdn.local.broker import Broker, BrokerPorts, BrokerTls, PrivateBroker, find_rabbitmq
from tdn.local.container import ContainerBroker, docker_runs
from tdn.local.home import Home
from tdn.local.operator import Operator
from tdn.local.processes import DetachedProcess
from tdn.protocol.names import Role
from tdn.store.search import Reader
from tdn.trust import credentials, statements

#: How long a node or guard may take to be ready once it was started. A long log to catch up with is shown as progress, not as failure.
_READY_SECONDS = 60.0

#: A guard that has reported nothing for so long is paused or stuck.
_SILENT_SECONDS = 5.0

GUARD = "g1"
BROKER = "broker"

Say = Callable[[str], None]


class Network:
    def __init__(self, home: Home, say: Say = lambda _: None) -> None:
        self.home = home
        self._say = say
        self.operator = Operator(home)

    # --- up and down ---

    def up(self, *, nodes: int | None = None) -> bool:
        """Start what does not run. False when everything was running already."""
        if nodes is not None and not 1 <= nodes <= 50:
            raise UsageError("--nodes is between 1 and 50")
        self.home.prepare()
        with self._locked():
            if self.running() and nodes is None:
                return False
            known = self.home.ids(Role.NODE)
            wanted = max(len(known), nodes if nodes is not None else len(known) or 2)
            if self.running() and wanted == len(known):
                return False
            self._prepare(wanted)
            try:
                self._start()
            except BaseException:
                # Half a network helps nobody, and KeyboardInterrupt must leave no stray process either.
                self._say("stopping what was started")
                self._stop()
                raise
        return True

    def down(self) -> bool:
        """Stop everything; nothing is lost. False when nothing ran."""
        if not self.home.run.is_dir():
            return False
        with self._locked():
            ran = any(entry["alive"] for entry in self.status())
            self._stop()
            return ran

    def running(self) -> bool:
        others = {name for name in self.home.ids(Role.GUARD) if name not in self.guards()} if self.home.exists else set()
        entries = [entry for entry in self.status() if entry["role"] != Role.GUARD or entry["id"] not in others]
        return bool(entries) and all(entry["alive"] for entry in entries)

    def status(self) -> list[dict[str, Any]]:
        """One entry per process that the home knows of."""
        if not self.home.exists:
            return []
        entries = []
        if self.home.settings().private_broker and self.home.credentials(Role.BROKER, BROKER).is_dir():
            broker = self._broker()
            entries.append({"role": "broker", "id": BROKER, "pid": broker.pid, "alive": broker.alive()})
        for guard in self.home.ids(Role.GUARD):
            entries.append(self._process_status(Role.GUARD, guard))
        for node in self.home.ids(Role.NODE):
            entries.append(self._process_status(Role.NODE, node))
        return entries

    def restart(self, role: Role, name: str) -> None:
        """Stop and start one guard or node: new credentials take effect."""
        process = self._process(role, name)
        if process.alive():
            process.stop()
            self._spawn(role, name)
            self._await_ready(role, name)

    def take_up(self, role: Role, name: str, *, timeout: float) -> None:
        """New credentials of a node or guard that runs here take effect: it starts anew. A node enrols itself; a guard cannot, so the
        operator does; then the former key is refused."""
        if role not in (Role.NODE, Role.GUARD) or not self._process(role, name).alive():
            return
        self.restart(role, name)
        if role is Role.GUARD and any(self._process(Role.NODE, node).alive() for node in self.home.ids(Role.NODE)):
            receipt = asyncio.run(self.operator.send_enrolment(role, name, timeout=timeout))
            self.await_cut([receipt], timeout=timeout)

    def start_one(self, role: Role, name: str) -> None:
        """Start one guard or node of a running network."""
        if not self._process(role, name).alive():
            self._spawn(role, name)
        self._await_ready(role, name)

    def await_cut(self, receipts: list[str], *, timeout: float) -> None:
        """Return when every guard has applied these records and has cut off whom they end."""
        seq = max((int(self.read_statement(token)["seq"]) for token in receipts), default=0)
        deadline = time.monotonic() + timeout
        for name in self.home.ids(Role.GUARD):
            # One that does not run allows nothing, and ends it all when it starts.
            while self._process_status(Role.GUARD, name)["alive"]:
                state = self.home.reported(f"{Role.GUARD}-{name}")
                if state.get("sequence", 0) >= seq and state.get("cutting") == 0:
                    break
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"it is in the log (record {seq}), but guard {name} has not said that it cut the connections"
                    )
                time.sleep(0.05)

    def read_statement(self, token: str) -> Mapping[str, Any]:
        """What a node has signed, verified against the roots of the home."""
        roots = credentials.load_roots(self.home.settings().roots)
        return statements.read(token.encode(), statements.by_roots(roots)).payload

    def process(self, role: Role, name: str) -> DetachedProcess:
        return self._process(role, name)

    def broker(self) -> Broker:
        return self._broker()

    # --- inside ---

    def _prepare(self, nodes: int) -> None:
        settings = self.home.settings()
        if not self.home.exists and settings.embedded_pki:
            self._say("making a certificate authority: P-256 root, one intermediate for nodes, one for entities")
        if settings.private_broker and not self._broker_alive() and _taken(self._ports_to_be_free()):
            self._say("a remembered port is taken by another program; choosing new ones")
            # What still runs knows the old ones only; and an epmd on the old one makes Erlang start another, which stays.
            self._stop()
            self.home.choose_ports()
        self.operator.found()
        if settings.private_broker:
            folder = self.home.credentials(Role.BROKER, BROKER)
            if not (folder / "cert.pem").exists():
                self.operator.issue(Role.BROKER, BROKER)
        if not self.home.ids(Role.GUARD):
            self.operator.issue(Role.GUARD, GUARD)
        number = 1
        while len(self.home.ids(Role.NODE)) < nodes:
            if f"n{number}" not in self.home.ids(Role.NODE):
                self.operator.issue(Role.NODE, f"n{number}")
            number += 1
        # Where the network is may have changed (other ports); who they are has not.
        for role in (Role.NODE, Role.GUARD, Role.ENTITY):
            for name in self.home.ids(role):
                write_connection(self.home.credentials(role, name), self.home.connection())

    def _start(self) -> None:
        settings = self.home.settings()
        for name in self.guards():
            if not self._process(Role.GUARD, name).alive():
                self._spawn(Role.GUARD, name)
        if settings.private_broker:
            broker = self._broker()
            if not broker.alive():
                self._say("starting a private RabbitMQ with mutual TLS")
                if notice := broker.write_configuration():
                    self._say(notice)
                broker.start()
        self._say("starting guard and nodes")
        for name in self.home.ids(Role.NODE):
            if not self._process(Role.NODE, name).alive():
                self._spawn(Role.NODE, name)
        everyone = [(Role.GUARD, name) for name in self.guards()] + [(Role.NODE, name) for name in self.home.ids(Role.NODE)]
        together = [self._process(role, name) for role, name in everyone]
        for role, name in everyone:
            self._await_ready(role, name, together)
        if any(self.home.pending.glob("*.jws")):
            self._say("putting waiting revocations into the log")
            asyncio.run(self.operator.send_pending(timeout=20.0))

    def _run_by_hand(self, guard: str) -> dict[str, Any]:
        """What a guard says of itself that was not started by `tdn up`; nothing when there is none."""
        state = self.home.reported(f"{Role.GUARD}-{guard}")
        pid = state.get("pid")
        if not isinstance(pid, int) or pid <= 0 or time.time() - state.get("at", 0) > _SILENT_SECONDS:
            return {}
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return state
        return {}

    def guards(self) -> list[str]:
        """The guards that are started here: of a private broker the one that it asks. Others are run by hand, beside the brokers that ask them."""
        known = self.home.ids(Role.GUARD)
        return known[:1] if self.home.settings().private_broker else known

    def _stop(self) -> None:
        for name in self.home.ids(Role.NODE):
            self._process(Role.NODE, name).stop()
        if self.home.exists and self.home.settings().private_broker and self.home.credentials(Role.BROKER, BROKER).is_dir():
            self._broker().stop()
        for name in self.home.ids(Role.GUARD):
            self._process(Role.GUARD, name).stop()

    def _process(self, role: Role, name: str) -> DetachedProcess:
        return DetachedProcess(self.home.run, f"{role}-{name}")

    def _spawn(self, role: Role, name: str) -> None:
        self.home.report(f"{role}-{name}", {})
        argv = [sys.executable, "-m", "tdn.cli.main", "--home", str(self.home), str(role), "--id", name]
        self._process(role, name).spawn(argv, env=dict(os.environ), cwd=self.home.folder)

    def _await_ready(self, role: Role, name: str, together: Sequence[DetachedProcess] = ()) -> None:
        """Wait for one process; when one that was started together with it has ended, there is no use in waiting."""
        deadline = time.monotonic() + _READY_SECONDS
        process = self._process(role, name)
        seen = -1
        while True:
            state = self.home.reported(f"{role}-{name}")
            if state.get("ready") and state.get("pid") == process.pid:
                return
            if (ended := next((one for one in (process, *together) if not one.alive()), None)) is not None:
                raise BrokerUnavailable(f"{ended.name} ended while starting:\n{ended.tail(lines=15)}")
            if state.get("sequence", 0) > seen:
                # It is catching up: as long as it gets on, it is waited for.
                seen = state.get("sequence", 0)
                deadline = time.monotonic() + _READY_SECONDS
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"{role} {name} was not ready in time:\n{process.tail(lines=15)}")
            time.sleep(0.05)

    def _process_status(self, role: Role, name: str) -> dict[str, Any]:
        process = self._process(role, name)
        alive = process.alive()
        state = self.home.reported(f"{role}-{name}") if alive else {}
        entry: dict[str, Any] = {
            "role": str(role),
            "id": name,
            "pid": process.pid,
            "alive": alive,
            "ready": bool(state.get("ready")),
        }
        if role is Role.GUARD:
            if not alive and name not in self.guards():
                state = self._run_by_hand(name)
                entry |= {"alive": bool(state), "pid": state.get("pid")}
            is_silent = time.time() - state.get("at", 0) > _SILENT_SECONDS
            entry["ready"] = bool(state.get("ready")) and not is_silent
            entry |= {"sequence": state.get("sequence"), "lag": state.get("lag")}
            # What it cannot know it does not allow, and the broker lets nobody in whom no guard vouches for.
            entry["denies_all"] = not entry["ready"]
        if role is Role.NODE:
            entry |= {"sequence": state.get("sequence"), "lag": state.get("lag"), "topics": state.get("topics")}
            store = self.home.credentials(role, name) / "store.sqlite"
            if not alive and store.exists():
                entry |= _stored(store)
        return entry

    def _ports_to_be_free(self) -> list[int]:
        """All but those that our own guard and epmd hold, which outlive a broker that was killed."""
        ports = dict(self.home.ports())
        if any(self._process(Role.GUARD, name).alive() for name in self.home.ids(Role.GUARD)):
            del ports["guard"]
        if DetachedProcess(self.home.credentials(Role.BROKER, BROKER) / "rabbitmq", "epmd").alive():
            del ports["epmd"]
        return list(ports.values())

    def _broker_alive(self) -> bool:
        return self.home.exists and self.home.credentials(Role.BROKER, BROKER).is_dir() and self._broker().alive()

    def _broker(self) -> Broker:
        folder = self.home.credentials(Role.BROKER, BROKER)
        ports = self.home.ports()
        tls = BrokerTls(root=folder / "trust.pem", chain=folder / "cert.pem", key=folder / "key.pem")
        kind = PrivateBroker if find_rabbitmq() is not None or not docker_runs() else ContainerBroker
        own = BrokerPorts(ports["amqps"], ports["management"], ports["dist"], ports["epmd"])
        return kind(folder / "rabbitmq", own, tls, f"https://127.0.0.1:{ports['guard']}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time for a home."""
        self.home.run.mkdir(parents=True, exist_ok=True)
        with open(self.home.run / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _taken(ports: Any) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return True
    return False


def _stored(store: Path) -> dict[str, Any]:
    """What a stopped node's store says."""
    try:
        reader = Reader(store)
        try:
            return {"sequence": reader.position().seq, "lag": None, "topics": reader.count_live(datetime.now(UTC))}
        finally:
            reader.close()
    except sqlite3.Error:
        return {}
