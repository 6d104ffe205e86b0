"""The home: one folder with everything of a network on one machine, and the file in it that an operator edits.

home.json              of which version the home is
tdn.toml               settings: private broker or one's own, embedded CA or one's own PKI
ports.json             ports that were chosen free, remembered; endpoints.json: those of nodes' own endpoints; metrics.json: where nodes
                       and guards show their numbers
ca/                    the embedded CA
network/               genesis.jws, enrolments/ (the operator's statements), pending/ (revocations not sent yet)
operator/ broker/ guards/ID/ nodes/ID/ entities/NAME/      credentials, and stores; a guard's audit log and memory
broker2/ broker3/ ...  the further private brokers
run/                   pids, logs, and what each process says of itself
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdn import home_form
from tdn.bus.address import ConnectionSettings, NodeAddress
from tdn.bus.connection import Broker
from tdn.errors import TdnError, TrustError, UsageError
from tdn.local import node_file
from tdn.local.ca import write_private
from tdn.local.processes import free_ports, is_free
from tdn.protocol.names import Role
from tdn.rules.apply import network_id, read_genesis
from tdn.settings_file import Address, Key, ListOf, Section, SettingsFile, Text, Url, split_address
from tdn.store import schema
from tdn.store.search import Reader
from tdn.trust.envelope import Envelope
from tdn.trust.private_files import read_private

#: Which port is for what: of the brokers and guards, of nodes' endpoints, of metrics.
_NETWORK, _ENDPOINTS, _METRICS = "ports.json", "endpoints.json", "metrics.json"
_PORTS = ("amqps", "management", "dist", "epmd", "guard")
#: What each further private broker has of its own, with its number behind: `amqps2`. They share one epmd.
_FURTHER_PORTS = ("amqps", "management", "dist", "guard")
#: A process that has reported nothing for so long is paused or stuck: each reports every second.
SILENT_SECONDS = 5.0
#: Private brokers at most. Five survive the loss of two.
MOST_BROKERS = 5

_FURTHER_BROKER = re.compile(r"broker[2-9]")
_FURTHER_GUARD = re.compile(r"g[2-9]")

#: What `tdn.toml` may say.
TDN = SettingsFile(
    "tdn.toml",
    "Settings of this network. Read by `tdn up`, `tdn node` and `tdn guard`; take effect at the next start.",
    (
        Section(
            "broker",
            "",
            (
                Key(
                    "mode",
                    Text(("private", "own")),
                    '"private": a RabbitMQ of our own, started and stopped with the network (the default).\n'
                    '"own":     yours, 3.10 to 4.x, configured with the templates in broker_config/.',
                    "private",
                    written=True,
                ),
                Key(
                    "hosts",
                    ListOf(Address()),
                    'For "own": where it listens for AMQP over TLS. Tried in order.',
                    example=("rabbit-1.example:5671", "rabbit-2.example:5671"),
                ),
                Key("vhost", Text(), 'For "own": the virtual host.', "tdn"),
                Key(
                    "management_url",
                    Url(),
                    'For "own": its management API. The guard logs in there as "tdn-management" with the password in\n'
                    "network/management-password, which it accepts itself when the broker asks.",
                    example="https://rabbit-1.example:15671",
                ),
                Key(
                    "management_urls",
                    ListOf(Url()),
                    "Or that of each broker: the guard uses whichever answers.",
                    example=("https://rabbit-1.example:15671", "https://rabbit-2.example:15671"),
                ),
                Key(
                    "guard_listen",
                    Address(),
                    'For "own": where the guard listens for the broker\'s questions.',
                    "127.0.0.1:7443",
                ),
            ),
        ),
        Section(
            "pki",
            "",
            (
                Key(
                    "mode",
                    Text(("embedded", "own")),
                    '"embedded": certificates from the CA in ca/ (the default).\n'
                    '"own":      from your PKI: `tdn ca request` makes a key and a request, `tdn ca install` takes the certificate.',
                    "embedded",
                    written=True,
                ),
                Key("roots", Text(), 'For "own": the PEM file with your trusted roots, relative to this folder.', "roots.pem"),
            ),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    private_broker: bool
    hosts: Sequence[Broker]
    vhost: str
    management_urls: Sequence[str]
    guard_host: str
    guard_port: int
    embedded_pki: bool
    roots: Path

    @property
    def management_url(self) -> str:
        """The first broker's."""
        return self.management_urls[0]


@dataclass(frozen=True, slots=True)
class Place:
    """A private broker and the guard that it asks: what they are called, and their ports on 127.0.0.1."""

    broker: str
    #: The broker's name in Erlang.
    nodename: str
    guard: str
    amqps: int
    management: int
    dist: int
    epmd: int
    guard_port: int


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
    def is_carried(self) -> bool:
        """Whether this is what one process needs of an operator's home (`deploy/carry.py`): it has the network, and nobody who signs for it."""
        return self.exists and not (self.credentials(Role.OPERATOR, "") / "cert.pem").exists()

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
        if role is Role.BROKER and _FURTHER_BROKER.fullmatch(name):
            return self.folder / name
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
        found = [self.store(node) for node in self.ids(Role.NODE) if schema.is_made(self.store(node))]
        return max(found, key=_position, default=None)

    def genesis(self) -> bytes:
        self.require_version()
        try:
            return self.genesis_path.read_bytes().strip()
        except FileNotFoundError as error:
            raise UsageError(f"there is no network in {self}; `tdn up` makes one") from error

    def require_genesis(self) -> Envelope:
        """What began this network, sound in itself: with any other a process would wait for a log that nobody has."""
        raw = self.genesis()
        try:
            return read_genesis(raw)
        except TdnError as error:
            raise TrustError(
                f"{self.genesis_path} is not what an operator signed ({error.message}); bring it from the operator's home, or from a backup"
            ) from error

    @property
    def network(self) -> str:
        return network_id(self.genesis())

    def prepare(self) -> None:
        """The folder and its settings file, private to its owner."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.require_version()
        TDN.write_template(self.folder)
        if not (self.folder / home_form.FILE).exists():
            (self.folder / home_form.FILE).write_text(json.dumps({"version": home_form.HOME_VERSION}) + "\n", "utf-8")
        for folder in (self.enrolments, self.pending, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def settings(self) -> Settings:
        self.require_version()
        values = TDN.read(self.folder)
        broker, pki = values["broker"], values["pki"]
        embedded = pki["mode"] == "embedded"
        roots = self._carried_roots() or (self.folder / "ca" / "root.pem" if embedded else self.folder / pki["roots"])
        if broker["mode"] == "own":
            urls = broker["management_urls"] or (broker["management_url"] and [broker["management_url"]])
            for name, value in (("hosts", broker["hosts"]), ("management_url", urls)):
                if value is None:
                    raise UsageError(f"{self.folder / TDN.name}: broker.{name} is missing; a broker of your own needs it")
            hosts = [Broker(*split_address(text)) for text in broker["hosts"]]
            urls = [url.rstrip("/") for url in urls]
            return Settings(False, hosts, broker["vhost"], urls, *split_address(broker["guard_listen"]), embedded, roots)
        places = self.places()
        hosts = [Broker("127.0.0.1", place.amqps) for place in places]
        urls = [f"https://127.0.0.1:{place.management}" for place in places]
        return Settings(True, hosts, "tdn", urls, "127.0.0.1", places[0].guard_port, embedded, roots)

    def _carried_roots(self) -> Path | None:
        """In a carried home, what its own process trusts: the CA's folder is the operator's."""
        if not self.is_carried:
            return None
        found = (self.credentials(role, name) / "trust.pem" for role in (Role.NODE, Role.GUARD) for name in self.ids(role))
        return next((path for path in found if path.exists()), None)

    def version(self) -> int:
        """Which changes of the home's form it has seen, or UsageError when `home.json` does not say."""
        return home_form.version_of(self.folder)

    def require_version(self) -> None:
        """A newer home is refused, never guessed at."""
        home_form.require_version(self.folder)

    def connection(self) -> ConnectionSettings:
        settings = self.settings()
        return ConnectionSettings(self.network, settings.vhost, settings.hosts, self.endpoints())

    def endpoints(self) -> list[NodeAddress]:
        """Where the nodes that have credentials here answer by themselves."""
        found = []
        for node in self.ids(Role.NODE):
            # What is wrong with a node's file is said when that node starts, not to whoever else is issued something.
            with suppress(UsageError):
                offered = node_file.read_endpoint(self.credentials(Role.NODE, node), node, self.endpoint_port(node))
                if offered is not None:
                    found.append(offered.public)
        return found

    def endpoint_port(self, node: str, *, anew: bool = False) -> int | None:
        """The port of a node's endpoint in a private network: chosen free once, then the same; another one when that is wanted."""
        if not self.settings().private_broker:
            return None
        known = self._read_ports(_ENDPOINTS)
        if anew or node not in known:
            (known[node],) = self._more_ports(1)
            self._write_ports(_ENDPOINTS, known)
        return known[node]

    def ports(self) -> dict[str, int]:
        """Ports of the private network: chosen free once, then the same for ever."""
        known = self._read_ports(_NETWORK)
        return known if set(known) >= set(_PORTS) else self.choose_ports()

    def choose_ports(self, brokers: int | None = None, *, keep: bool = False) -> dict[str, int]:
        """Ports for so many private brokers, or for as many as there are; all of them anew, or only what is missing."""
        known = self._read_ports(_NETWORK)
        names = _port_names(brokers or _brokers_in(known))
        ports = {name: known[name] for name in names if keep and name in known}
        missing = [name for name in names if name not in ports]
        ports |= zip(missing, self._more_ports(len(missing)), strict=True)
        self._write_ports(_NETWORK, ports)
        return ports

    def _more_ports(self, count: int) -> list[int]:
        """Ports that nothing listens on, and that this home has not chosen for anything: what it has chosen may not have started yet."""
        chosen = {port for file in (_NETWORK, _ENDPOINTS, _METRICS) for port in self._read_ports(file).values()}
        return [port for port in free_ports(count + len(chosen)) if port not in chosen][:count]

    def _read_ports(self, file: str) -> dict[str, int]:
        try:
            known = json.loads((self.folder / file).read_text("utf-8"))
            return {str(name): int(port) for name, port in known.items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}

    def _write_ports(self, file: str, ports: Mapping[str, int]) -> None:
        fresh = self.folder / f"{file}.new"
        fresh.write_text(json.dumps(ports) + "\n", "utf-8")
        fresh.replace(self.folder / file)

    def places(self) -> list[Place]:
        """The private brokers of this home, each with its guard. As many as it has ports for."""
        ports = self.ports()
        return [
            Place(
                broker=private_broker(number),
                nodename=f"tdn{_behind(number)}@localhost",
                guard=self._guard_of(number),
                epmd=ports["epmd"],
                guard_port=ports[f"guard{_behind(number)}"],
                **{name: ports[f"{name}{_behind(number)}"] for name in ("amqps", "management", "dist")},
            )
            for number in range(1, _brokers_in(ports) + 1)
        ]

    def _guard_of(self, number: int) -> str:
        """g1 beside the first broker; in a home whose first guard has another name, that one. g2 and so on beside the others."""
        known = [guard for guard in self.ids(Role.GUARD) if not _FURTHER_GUARD.fullmatch(guard)]
        return known[0] if number == 1 and known and "g1" not in known else f"g{number}"

    # --- where processes show their numbers ---

    def metrics_port(self, role: Role, name: str) -> int | None:
        """The port that was chosen for a process, if one was."""
        return self._read_ports(_METRICS).get(f"{role}-{name}")

    def choose_metrics_port(self, role: Role, name: str) -> None:
        """A free port, then the same for ever, or until something else listens there."""
        known = self._read_ports(_METRICS)
        port = known.get(f"{role}-{name}")
        if port is not None and is_free(port):
            return
        (known[f"{role}-{name}"],) = self._more_ports(1)
        self._write_ports(_METRICS, known)

    @property
    def has_management_password(self) -> bool:
        return (self.folder / "network" / "management-password").is_file()

    def management_password(self) -> str:
        path = self.folder / "network" / "management-password"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private(path, secrets.token_urlsafe(32).encode())
        return read_private(path).decode("utf-8").strip()

    # --- what each process says of itself ---

    def report(self, name: str, values: Mapping[str, Any]) -> None:
        path = self.run / f"{name}.state.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(values) + "\n", "utf-8")
        fresh.replace(path)

    def report_over(self, name: str, values: Mapping[str, Any]) -> None:
        """The same where there is no room for another file: over what was said before, which has its room. Who reads meanwhile may read nothing."""
        with (self.run / f"{name}.state.json").open("r+b") as file:
            file.write(json.dumps(values).encode() + b"\n")
            file.truncate()

    def withdraw_report(self, name: str) -> None:
        """Nothing is said rather than something that was true once."""
        with contextlib.suppress(OSError):
            (self.run / f"{name}.state.json").unlink(missing_ok=True)

    def reported(self, name: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.run / f"{name}.state.json").read_text("utf-8"))
            return values
        except (FileNotFoundError, ValueError):
            return {}


    def silence_seconds(self, name: str) -> float:
        """How long a process has said nothing of itself, by this machine's clock, whatever its own says."""
        try:
            return time.time() - (self.run / f"{name}.state.json").stat().st_mtime
        except FileNotFoundError:
            return 0.0


def private_broker(number: int) -> str:
    """What a private broker is called: `broker`, `broker2`, `broker3` …"""
    return f"broker{_behind(number)}"


def _behind(number: int) -> str:
    return "" if number == 1 else str(number)


def _port_names(brokers: int) -> list[str]:
    return [*_PORTS, *(f"{name}{number}" for number in range(2, brokers + 1) for name in _FURTHER_PORTS)]


def _brokers_in(ports: Mapping[str, int]) -> int:
    """For how many brokers there are ports."""
    return max(number for number in range(1, MOST_BROKERS + 1) if number == 1 or set(_port_names(number)) <= set(ports))


def _position(store: Path) -> int:
    with closing(Reader(store)) as reader:
        return reader.position().seq
