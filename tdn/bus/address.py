"""Where the network is: `connection.toml` in a folder of credentials. Its brokers, and the nodes that also answer by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tdn.bus.connection import Broker
from tdn.errors import UsageError
from tdn.settings_file import Host, Key, Tables, Text, Whole, check_table, read_toml


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node answers by itself over HTTPS, and the name that its certificate must carry."""

    id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    network: str
    vhost: str
    brokers: Sequence[Broker]
    nodes: Sequence[NodeAddress] = ()


_HOST = Key("host", Host(), "Where it listens: the name that its certificate carries.", required=True)
_PORT = Key("port", Whole(1, 65_535), "The port there.", required=True)
#: What may stand in the file.
_FILE = (
    Key("network", Text(), "The network's digest.", required=True),
    Key("vhost", Text(), "The brokers' virtual host.", default="tdn"),
    Key("broker", Tables((_HOST, _PORT)), "The brokers.", required=True),
    Key("node", Tables((Key("id", Text(), "The node's id.", required=True), _HOST, _PORT)), "Nodes that answer by themselves.", default=()),
)


def load_connection(folder: Path) -> ConnectionSettings:
    path = folder / "connection.toml"
    try:
        given = read_toml(path)
        if given is None:
            raise UsageError("is missing; copy the whole folder of credentials, or let `tdn ca issue` make it")
        values = check_table("", given, _FILE)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}") from error
    return ConnectionSettings(
        values["network"],
        values["vhost"],
        [Broker(entry["host"], entry["port"]) for entry in values["broker"]],
        [NodeAddress(entry["id"], entry["host"], entry["port"]) for entry in values["node"]],
    )


def write_connection(folder: Path, settings: ConnectionSettings) -> None:
    lines = [
        "# How this identity reaches the network. Any of the brokers will do: one is taken by chance, and another when that one is away.",
        f'network = "{settings.network}"',
        f'vhost = "{settings.vhost}"',
    ]
    for broker in settings.brokers:
        lines += ["", "[[broker]]", f'host = "{broker.host}"', f"port = {broker.port}"]
    if settings.nodes:
        lines += ["", "# Nodes that answer questions by themselves while no broker can be reached."]
    for node in settings.nodes:
        lines += ["", "[[node]]", f'id = "{node.id}"', f'host = "{node.host}"', f"port = {node.port}"]
    (folder / "connection.toml").write_text("\n".join(lines) + "\n", "utf-8")
