"""A private network on one machine: up, down, status. Everything it starts is remembered in the home and ends with `down`.

The brokers come first because all else needs them, a guard beside each because its broker asks it at the first login, then the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tdn import environment
from tdn.bus.address import write_connection
from tdn.errors import BrokerUnavailable, NoRoom, UsageError, from_object
from tdn.local.broker import Broker
from tdn.local.cluster import Cluster, check_count
from tdn.local.home import SILENT_SECONDS, Home, private_broker
from tdn.local.operator import Operator
from tdn.local.processes import DetachedProcess, is_free, start_mark
from tdn.protocol.names import Role
from tdn.snapshots import file as snapshot_file
from tdn.store.search import Reader
from tdn.trust import credentials, statements

#: How long a node or guard may take to be ready once it was started. A long log to catch up with is shown as progress, not as failure.
_READY_SECONDS = 60.0

#: `disk_free_limit` in broker_config/rabbitmq.conf.
_BROKER_ROOM_BYTES = 200_000_000

GUARD = "g1"
BROKER = private_broker(1)

Say = Callable[[str], None]


class Network:
    def __init__(self, home: Home, say: Say = lambda _: None) -> None:
        self.home = home
        self._say = say
        self.operator = Operator(home)
        self.cluster = Cluster(home, say)
        self._snapshot: Path | None = None

    # --- up and down ---

    def up(self, *, nodes: int | None = None, brokers: int | None = None, snapshot: Path | None = None) -> bool:
        """Start what does not run. False when everything was running already. Whose store is not as far as the snapshot begins with it."""
        self._snapshot = snapshot.absolute() if snapshot is not None else None
        if self._snapshot is not None:
            # What it holds is judged by whoever begins with it. That it is one shows before a broker is started.
            with snapshot_file.read(self._snapshot):
                pass
        if nodes is not None and not 1 <= nodes <= 50:
            raise UsageError("--nodes is between 1 and 50")
        self.home.prepare()
        with self._locked():
            present = len(self.home.places()) if self.home.settings().private_broker else 0
            wanted_brokers = brokers if brokers is not None else present
            if brokers is not None:
                self._check_brokers(brokers, present)
            known = self.home.ids(Role.NODE)
            wanted = max(len(known), nodes if nodes is not None else len(known) or (0 if self.home.is_carried else 2))
            if self.running() and wanted == len(known) and wanted_brokers == present:
                return False
            environment.require_numbers()
            if present:
                environment.require_program()
            if wanted_brokers > present:
                self._found_brokers(wanted_brokers)
            running = [entry for entry in self.status() if entry["alive"]]
            self._prepare(wanted)
            try:
                self._start()
            except BaseException:
                # Half a network helps nobody, and KeyboardInterrupt must leave no stray process either. But what ran before goes on.
                self._say("stopping what was started")
                if running:
                    self._stop_others(running)
                else:
                    self._stop()
                raise
        return True

    def down(self) -> bool:
        """Stop everything; nothing is lost. False when nothing ran."""
        if not self.home.run.is_dir():
            return False
        with self._locked():
            not_ours = {(str(role), name) for role, name in self.not_ours()}
            ran = any(entry["alive"] for entry in self.status() if (entry["role"], entry["id"]) not in not_ours)
            self._stop()
            return ran

    def running(self) -> bool:
        others = {name for name in self.home.ids(Role.GUARD) if name not in self.guards()} if self.home.exists else set()
        entries = [entry for entry in self.status() if entry["role"] != Role.GUARD or entry["id"] not in others]
        # A broker that runs and does not serve may have to be told to.
        return bool(entries) and all(entry["alive"] and (entry["ready"] or entry["role"] != Role.BROKER) for entry in entries)

    def status(self) -> list[dict[str, Any]]:
        """One entry per process that the home knows of."""
        if not self.home.exists:
            return []
        entries = self.cluster.status() if self.home.settings().private_broker else []
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

    def broker(self, name: str = BROKER) -> Broker:
        return self.cluster.broker(next(place for place in self.home.places() if place.broker == name))

    # --- inside ---

    def _prepare(self, nodes: int) -> None:
        settings = self.home.settings()
        if settings.private_broker and _taken(self._ports_to_be_free()):
            self._say("a remembered port is taken by another program; choosing new ones")
            # What still runs knows the old ones only; and an epmd on the old one makes Erlang start another, which stays.
            self._stop()
            self.home.choose_ports()
        self._found()
        # Every guard and node would end at these, and with them the brokers that were started before.
        credentials.load_roots(settings.roots)
        self.home.require_genesis()
        if settings.private_broker:
            for place in self.home.places():
                self._issue_missing(Role.BROKER, place.broker)
                self._issue_missing(Role.GUARD, place.guard)
        elif not self.home.ids(Role.GUARD):
            self.operator.issue(Role.GUARD, GUARD)
        number = 1
        while len(self.home.ids(Role.NODE)) < nodes:
            if f"n{number}" not in self.home.ids(Role.NODE):
                self.operator.issue(Role.NODE, f"n{number}")
            number += 1
        for name in self.home.ids(Role.NODE):
            port = self.home.endpoint_port(name)
            if port is not None and self._pid(Role.NODE, name) is None and _taken([port]):
                self.home.endpoint_port(name, anew=True)
        # Where the network is may have changed (other ports); who they are has not.
        for role in (Role.NODE, Role.GUARD, Role.ENTITY):
            for name in self.home.ids(role):
                write_connection(self.home.credentials(role, name), self.home.connection())

    def _require_room(self) -> None:
        """A broker without room starts, takes nothing, and lets everybody wait."""
        free = shutil.disk_usage(self.home.folder).free
        if free < _BROKER_ROOM_BYTES:
            raise NoRoom(
                f"{free // 1_000_000} MB are free where {self.home} is, and RabbitMQ takes no messages below {_BROKER_ROOM_BYTES // 1_000_000}; "
                "free some room, or move the home to another disk"
            )

    def _start(self) -> None:
        settings = self.home.settings()
        if settings.private_broker:
            self._require_room()
        for name in self.guards():
            if self._pid(Role.GUARD, name) is None:
                self._spawn(Role.GUARD, name)
        if settings.private_broker:
            self.cluster.start()
        self._say("starting guards and nodes" if len(self.guards()) > 1 else "starting guard and nodes")
        for name in self.home.ids(Role.NODE):
            if self._pid(Role.NODE, name) is None:
                self._spawn(Role.NODE, name)
        everyone = [(Role.GUARD, name) for name in self.guards()] + [(Role.NODE, name) for name in self.home.ids(Role.NODE)]
        not_ours = self.not_ours()
        everyone = [one for one in everyone if one not in not_ours]
        together = [self._process(role, name) for role, name in everyone]
        for role, name in everyone:
            self._await_ready(role, name, together)
        if any(self.home.pending.glob("*.jws")):
            self._say("putting waiting revocations into the log")
            asyncio.run(self.operator.send_pending(timeout=20.0))

    def not_ours(self) -> list[tuple[Role, str]]:
        """Nodes and guards that run here and that `tdn up` has not started."""
        known = [(role, name) for role in (Role.GUARD, Role.NODE) for name in self.home.ids(role)]
        return [one for one in known if self._pid(*one) is not None and not self._process(*one).alive()]

    def _pid(self, role: Role, name: str) -> int | None:
        """Of a node or guard that runs here: as the one that `tdn up` started, or as it says itself, which systemd, a container or somebody's hand started."""
        if (pid := self._process(role, name).pid) is not None:
            return pid
        said = self.home.reported(f"{role}-{name}")
        pid, started = said.get("pid"), said.get("started")
        return pid if isinstance(pid, int) and started and start_mark(pid) == started and "ended" not in said else None

    def guards(self) -> list[str]:
        """The guards that are started here: of private brokers those that they ask. Others are run by hand, beside the brokers that ask them."""
        known = self.home.ids(Role.GUARD)
        if not self.home.settings().private_broker:
            return known
        return [place.guard for place in self.home.places() if place.guard in known]

    def _stop(self) -> None:
        for name in self.home.ids(Role.NODE):
            self._process(Role.NODE, name).stop()
        if self.home.exists and self.home.settings().private_broker:
            self.cluster.stop()
        for name in self.home.ids(Role.GUARD):
            self._process(Role.GUARD, name).stop()

    def _stop_others(self, running: Sequence[Mapping[str, Any]]) -> None:
        """Stop what runs now and did not run before."""
        before = {(entry["role"], entry["id"]) for entry in running}
        for role in (Role.NODE, Role.GUARD):
            for name in self.home.ids(role):
                if (str(role), name) not in before:
                    self._process(role, name).stop()
        if self.home.settings().private_broker:
            self.cluster.stop(but={name for role, name in before if role == Role.BROKER})

    def _process(self, role: Role, name: str) -> DetachedProcess:
        return DetachedProcess(self.home.run, f"{role}-{name}")

    def _spawn(self, role: Role, name: str) -> None:
        self.home.report(f"{role}-{name}", {})
        self.home.choose_metrics_port(role, name)
        argv = [sys.executable, "-m", "tdn.cli.main", "--home", str(self.home), str(role), "--id", name]
        if self._snapshot is not None:
            argv += ["--snapshot", str(self._snapshot)]
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
                if (words := self.home.reported(ended.name).get("ended")) is not None:
                    raise from_object({**words, "message": f"{ended.name} ended while starting: {words.get('message')}"})
                raise BrokerUnavailable(f"{ended.name} ended while starting:\n{ended.tail(lines=15)}")
            if (words := state.get("waits")) is not None and state.get("pid") == process.pid:
                # It would wait for room without end; whoever started it is told at once.
                raise from_object({**words, "message": f"{process.name} cannot start: {words.get('message')}"})
            if state.get("sequence", 0) > seen:
                # It is catching up: as long as it gets on, it is waited for.
                seen = state.get("sequence", 0)
                deadline = time.monotonic() + _READY_SECONDS
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"{role} {name} was not ready in time:\n{process.tail(lines=15)}")
            time.sleep(0.05)

    def _process_status(self, role: Role, name: str) -> dict[str, Any]:
        pid = self._pid(role, name)
        alive = pid is not None
        said = self.home.reported(f"{role}-{name}")
        state = said if alive else {}
        silent_seconds = self.home.silence_seconds(f"{role}-{name}") if alive else 0.0
        is_silent = silent_seconds > SILENT_SECONDS
        entry: dict[str, Any] = {
            "role": str(role),
            "id": name,
            "pid": pid,
            "alive": alive,
            "ready": bool(state.get("ready")) and not is_silent,
        }
        why = state.get("why") if alive else (said.get("ended") or {}).get("message")
        if is_silent:
            why = f"it has said nothing for {silent_seconds:.0f} s: it is paused, or has too much to do"
        if why:
            entry["why"] = why
        if role is Role.GUARD:
            entry |= {"sequence": state.get("sequence"), "lag": state.get("lag")}
            # What it cannot know it does not allow, and the broker lets nobody in whom no guard vouches for.
            entry["denies_all"] = not entry["ready"]
        entry["metrics"] = state.get("metrics")
        if role is Role.NODE:
            entry |= {"sequence": state.get("sequence"), "lag": state.get("lag"), "topics": state.get("topics")}
            store = self.home.credentials(role, name) / "store.sqlite"
            if not alive and store.exists():
                entry |= _stored(store)
        return entry

    def _ports_to_be_free(self) -> list[int]:
        """All but those that our own brokers, guards and epmd hold: what outlives a broker that was killed."""
        guards = [place.guard_port for place in self.home.places() if self._pid(Role.GUARD, place.guard) is None]
        return [*self.cluster.ports_to_be_free(), *guards]

    def _check_brokers(self, brokers: int, present: int) -> None:
        if not self.home.settings().private_broker:
            raise UsageError("this network uses a RabbitMQ of its own; name its brokers in `hosts` of tdn.toml")
        check_count(brokers, present)
        if brokers > present and self.cluster.has_data():
            # RabbitMQ 3.10.8 fails at giving streams that it has to brokers that join later (`bad_generator` in rabbit_stream_coordinator).
            raise UsageError(
                f"this home has {present} broker{'s' if present > 1 else ''} and keeps that number: RabbitMQ does not copy the log to brokers that join later. "
                f"For {brokers}: `tdn down`, `tdn backup --to FILE`, `tdn --home NEW restore FILE`, `tdn --home NEW up --brokers {brokers}`; messages that subscribers have not fetched do not come along"
            )

    def _found_brokers(self, brokers: int) -> None:
        """The brokers of a new home."""
        self._found()
        for number in range(1, brokers + 1):
            # Before the home counts them: with a PKI of one's own, each has to be made first.
            self._issue_missing(Role.BROKER, private_broker(number))
            if number > 1:
                self._issue_missing(Role.GUARD, f"g{number}")
        self.home.choose_ports(brokers, keep=True)

    def _found(self) -> None:
        if not self.home.exists and self.home.settings().embedded_pki:
            self._say("making a certificate authority: P-256 root, one intermediate for nodes, one for entities")
        self.operator.found()

    def _issue_missing(self, role: Role, name: str) -> None:
        if not (self.home.credentials(role, name) / "cert.pem").exists():
            self.operator.issue(role, name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time for a home."""
        self.home.run.mkdir(parents=True, exist_ok=True)
        with open(self.home.run / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _taken(ports: Iterable[int]) -> bool:
    return not all(map(is_free, ports))


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
