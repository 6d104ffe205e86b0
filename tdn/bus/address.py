"""Where the network is: `connection.toml` in a folder of credentials. Its brokers, and the nodes that also answer by themselves."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class _Value:
    wanted: str
    fits: Callable[[Any], bool]


_TEXT = _Value("text in quotes", lambda value: isinstance(value, str) and bool(value) and value.isprintable())
_PORT = _Value("a whole number from 1 to 65535", lambda value: type(value) is int and 0 < value < 65_536)
_TABLES = _Value(
    "one or more of it in double brackets, [[…]], each with its keys below",
    lambda value: isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value),
)
#: What may stand in the file, and in its tables.
_FILE = {"network": _TEXT, "vhost": _TEXT, "broker": _TABLES, "node": _TABLES}
_BROKER = {"host": _TEXT, "port": _PORT}
_NODE = {"id": _TEXT, "host": _TEXT, "port": _PORT}


def load_connection(folder: Path) -> ConnectionSettings:
    path = folder / "connection.toml"
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        _check("", values, _FILE, optional={"vhost", "node"})
        brokers, nodes = values["broker"], values.get("node", [])
        for entry in brokers:
            _check("[[broker]]: ", entry, _BROKER)
        for entry in nodes:
            _check("[[node]]: ", entry, _NODE)
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing; copy the whole folder of credentials, or let `tdn ca issue` make it") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}") from error
    return ConnectionSettings(
        values["network"],
        values.get("vhost", "tdn"),
        [Broker(entry["host"], entry["port"]) for entry in brokers],
        [NodeAddress(entry["id"], entry["host"], entry["port"]) for entry in nodes],
    )


def _check(place: str, given: Mapping[str, Any], known: Mapping[str, _Value], *, optional: Collection[str] = ()) -> None:
    """Nothing else stands there, nothing is missing, and each is what it must be; or UsageError, which says what to write."""
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(f"{place}{name!r} is unknown{meant}; there are {', '.join(known)}")
        if not known[name].fits(value):
            raise UsageError(f"{place}{name}: write {known[name].wanted}")
    for name in known:
        if name not in given and name not in optional:
            raise UsageError(f"{place}{name!r} is missing; write {known[name].wanted}")


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
