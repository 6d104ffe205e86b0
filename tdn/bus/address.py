"""Where the network is: `connection.toml` in a folder of credentials. Its brokers, and the nodes that also answer by themselves."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tdn.bus.connection import Broker
from tdn.errors import UsageError


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


def load_connection(folder: Path) -> ConnectionSettings:
    path = folder / "connection.toml"
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        brokers = [Broker(str(entry["host"]), int(entry["port"])) for entry in values["broker"]]
        if not brokers:
            raise ValueError("no broker is named")
        nodes = [NodeAddress(str(entry["id"]), str(entry["host"]), int(entry["port"])) for entry in values.get("node", [])]
        return ConnectionSettings(str(values["network"]), str(values.get("vhost", "tdn")), brokers, nodes)
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing; copy the whole folder of credentials, or let `tdn ca issue` make it") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


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
