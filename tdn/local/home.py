"""The home: one folder with everything of a network on one machine, and the file in it that an operator edits.

tdn.toml               settings: private broker or one's own, embedded CA or one's own PKI
ports.json             ports that were chosen free, remembered
ca/                    the embedded CA
network/               genesis.jws, enrolments/ (the operator's statements), pending/ (revocations not sent yet)
operator/ broker/ guards/ID/ nodes/ID/ entities/NAME/      credentials, and stores; a guard's audit log and memory
run/                   pids, logs, and what each process says of itself
"""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdn.bus.address import ConnectionSettings
from tdn.bus.connection import Broker
from tdn.errors import UsageError
from tdn.local.ca import write_private
from tdn.local.processes import free_ports
from tdn.protocol.names import Role
from tdn.rules.apply import network_id
from tdn.store.search import Reader

_PORTS = ("amqps", "management", "dist", "epmd", "guard")

_SETTINGS = """\
# Settings of this network. Read by `tdn up`, `tdn node` and `tdn guard`; take effect at the next start.

[broker]
# "private": a RabbitMQ of our own, started and stopped with the network (the default).
# "own":     yours, 3.10 to 4.x, configured with the templates in broker_config/.
mode = "private"
# For "own": where it listens for AMQP over TLS, the vhost, and its management API. The guard logs in there as "tdn-management"
# with the password in network/management-password, which it accepts itself when the broker asks.
# hosts = ["rabbit-1.example:5671", "rabbit-2.example:5671"]
# vhost = "tdn"
# management_url = "https://rabbit-1.example:15671"
# Where the guard listens for the broker's questions.
# guard_listen = "127.0.0.1:7443"

[pki]
# "embedded": certificates from the CA in ca/ (the default).
# "own":      from your PKI: `tdn ca request` makes a key and a request, `tdn ca install` takes the certificate. `roots` is
#             the PEM file with your trusted roots.
mode = "embedded"
# roots = "roots.pem"
"""


@dataclass(frozen=True, slots=True)
class Settings:
    private_broker: bool
    hosts: Sequence[Broker]
    vhost: str
    management_url: str
    guard_host: str
    guard_port: int
    embedded_pki: bool
    roots: Path


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def exists(self) -> bool:
        return self.genesis_path.exists()

    @property
    def genesis_path(self) -> Path:
        return self.folder / "network" / "genesis.jws"

    @property
    def enrolments(self) -> Path:
        return self.folder / "network" / "enrolments"

    @property
    def pending(self) -> Path:
        return self.folder / "network" / "pending"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def credentials(self, role: Role, name: str) -> Path:
        """The folder of a principal."""
        if role in (Role.OPERATOR, Role.BROKER):
            return self.folder / str(role)
        return self.folder / {Role.NODE: "nodes", Role.GUARD: "guards", Role.ENTITY: "entities"}[role] / name

    def ids(self, role: Role) -> list[str]:
        """Who has credentials here."""
        folder = self.credentials(role, "x").parent
        return sorted(path.parent.name for path in folder.glob("*/cert.pem"))

    def store(self, node: str) -> Path:
        return self.credentials(Role.NODE, node) / "store.sqlite"

    def furthest_store(self) -> Path | None:
        """The store of the node here that has read most of the log: all of them say the same as far as they go."""
        found = [self.store(node) for node in self.ids(Role.NODE) if self.store(node).exists()]
        return max(found, key=_position, default=None)

    def genesis(self) -> bytes:
        try:
            return self.genesis_path.read_bytes().strip()
        except FileNotFoundError as error:
            raise UsageError(f"there is no network in {self}; `tdn up` makes one") from error

    @property
    def network(self) -> str:
        return network_id(self.genesis())

    def prepare(self) -> None:
        """The folder and its settings file, private to its owner."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "tdn.toml").exists():
            (self.folder / "tdn.toml").write_text(_SETTINGS, "utf-8")
        for folder in (self.enrolments, self.pending, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def settings(self) -> Settings:
        path = self.folder / "tdn.toml"
        try:
            values = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
            broker, pki = values.get("broker", {}), values.get("pki", {})
            private = _one_of(broker.get("mode", "private"), "private", "own") == "private"
            embedded = _one_of(pki.get("mode", "embedded"), "embedded", "own") == "embedded"
            roots = self.folder / pki.get("roots", "roots.pem") if not embedded else self.folder / "ca" / "root.pem"
            if not private:
                host, _, port = str(broker.get("guard_listen", "127.0.0.1:7443")).rpartition(":")
                hosts = [_address(text) for text in broker["hosts"]]
                return Settings(
                    False,
                    hosts,
                    broker.get("vhost", "tdn"),
                    broker["management_url"].rstrip("/"),
                    host,
                    int(port),
                    embedded,
                    roots,
                )
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path} cannot be used: {type(error).__name__} {error}") from error
        ports = self.ports()
        hosts = [Broker("127.0.0.1", ports["amqps"])]
        return Settings(
            True, hosts, "tdn", f"https://127.0.0.1:{ports['management']}", "127.0.0.1", ports["guard"], embedded, roots
        )

    def connection(self) -> ConnectionSettings:
        settings = self.settings()
        return ConnectionSettings(self.network, settings.vhost, settings.hosts)

    def ports(self) -> dict[str, int]:
        """Ports of the private network: chosen free once, then the same for ever."""
        path = self.folder / "ports.json"
        try:
            known = json.loads(path.read_text("utf-8"))
            if set(known) >= set(_PORTS):
                return {name: int(known[name]) for name in _PORTS}
        except (FileNotFoundError, ValueError):
            pass
        return self.choose_ports()

    def choose_ports(self) -> dict[str, int]:
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        (self.folder / "ports.json").write_text(json.dumps(ports) + "\n", "utf-8")
        return ports

    def management_password(self) -> str:
        path = self.folder / "network" / "management-password"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private(path, secrets.token_urlsafe(32).encode())
        return path.read_text("utf-8").strip()

    # --- what each process says of itself ---

    def report(self, name: str, values: dict[str, Any]) -> None:
        path = self.run / f"{name}.state.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(values) + "\n", "utf-8")
        fresh.replace(path)

    def reported(self, name: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.run / f"{name}.state.json").read_text("utf-8"))
            return values
        except (FileNotFoundError, ValueError):
            return {}


def _position(store: Path) -> int:
    with closing(Reader(store)) as reader:
        return reader.position().seq


def _one_of(value: str, *allowed: str) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _address(text: str) -> Broker:
    host, _, port = text.rpartition(":")
    return Broker(host, int(port))
