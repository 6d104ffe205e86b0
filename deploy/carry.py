"""What one process needs of the operator's home, as a tar file to be carried to where it runs.

    python -m deploy.carry --home HOME --node n1 --to n1.tar
    python -m deploy.carry --home HOME --guard g1 --to g1.tar
    python -m deploy.carry --home HOME --broker --to broker.tar

There: `tar --extract --no-same-owner --file n1.tar --directory /var/lib/tdn/node-n1`. Extracting it again, with a later one, takes nothing away: a store stays.

A tar holds the key of one process, and never the CA's or the operator's: whoever has those is the network. `--observe ADDRESS` adds where the process shows
its health and metrics, and `--endpoint ADDRESS` where entities reach a node while no broker answers, unless its settings say so already. Standard library only, and nothing of `tdn`: a home is files.
"""

from __future__ import annotations

import argparse
import io
import os
import secrets
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

#: Of a principal's folder. Stores, audit logs and what else it gathered stay where they are.
_CREDENTIALS = ("cert.pem", "key.pem", "trust.pem", "connection.toml")
_SECRET = frozenset({"key.pem", "management-password"})
#: Settings of a process, beside its credentials, if there are any.
_SETTINGS = {"nodes": "node.toml", "guards": "guard.toml"}


class CannotCarry(Exception):
    """What was asked for is not in the home, or is not to be carried."""


def contents(home: Path, role: str, name: str, *, observe: str | None = None, endpoint: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Paths in the home, and what stands in each."""
    folder = home / role / name if role != "broker" else home / role
    if not (folder / "key.pem").is_file():
        known = sorted(path.parent.name for path in (home / role).glob("*/key.pem"))
        raise CannotCarry(f"there is no key in {folder}; `tdn ca issue` makes one" + (f" (there are: {', '.join(known)})" if known else ""))
    for file in _CREDENTIALS:
        if role == "broker":
            # RabbitMQ reads its files from one folder.
            if file != "connection.toml":
                yield file, (folder / file).read_bytes()
        elif (folder / file).is_file():
            yield f"{role}/{name}/{file}", (folder / file).read_bytes()
    if role == "broker":
        return
    settings = folder / _SETTINGS[role]
    text = settings.read_text("utf-8") if settings.is_file() else ""
    if observe is not None:
        text = _saying(text, "observe", {"listen": observe}, settings)
    if endpoint is not None:
        if role != "nodes":
            raise CannotCarry("--endpoint goes with --node: nobody else answers entities")
        text = _saying(text, "endpoint", {"listen": f"0.0.0.0:{_port(endpoint)}", "public": endpoint}, settings)
    if text:
        yield f"{role}/{name}/{settings.name}", text.encode()
    yield "tdn.toml", (home / "tdn.toml").read_bytes()
    yield "network/genesis.jws", (home / "network" / "genesis.jws").read_bytes()
    for path in sorted((home / "network" / "enrolments").glob("*.jws")):
        yield f"network/enrolments/{path.name}", path.read_bytes()
    if role == "guards":
        yield "network/management-password", _management_password(home / "network" / "management-password")


def _saying(text: str, section: str, values: Mapping[str, str], path: Path) -> str:
    """A settings file that says where the process listens for something; one that says it already is left alone."""
    try:
        if "listen" in tomllib.loads(text).get(section, {}):
            return text
    except tomllib.TOMLDecodeError as error:
        raise CannotCarry(f"{path} is not TOML: {error}") from error
    header, written = f"[{section}]", [f'{key} = "{value}"' for key, value in values.items()]
    lines = text.splitlines()
    if header in lines:
        place = lines.index(header) + 1
        lines[place:place] = written
    else:
        lines += ["", header, *written]
    return "\n".join(lines) + "\n"


def _port(address: str) -> int:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise CannotCarry(f"{address!r} is no HOST:PORT by which entities reach the node")
    return int(port)


def _management_password(path: Path) -> bytes:
    """What guards log in with at their brokers' management API. Made here if no guard of this home has run: all guards share it."""
    if not path.is_file():
        _write_private(path, secrets.token_urlsafe(32).encode())
    return path.read_bytes()


def _write_private(path: Path, data: bytes) -> None:
    """Nobody else's from the first byte on."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def pack(files: Iterator[tuple[str, bytes]]) -> bytes:
    """The tar: the same bytes for the same files, folders for their owner alone, and a place for what a process says of itself."""
    found = sorted(files)
    folders = {"run"} | {str(parent) for path, _ in found for parent in Path(path).parents if str(parent) != "."}
    if not any("/" in path for path, _ in found):
        folders = set()
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(entry)
        for path, data in found:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o600 if Path(path).name in _SECRET else 0o640
            tar.addfile(entry, io.BytesIO(data))
    return held.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.carry", description="Put what one process needs of a home into a tar file.")
    parser.add_argument("--home", type=Path, required=True, metavar="DIR", help="the operator's home")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--node", metavar="ID")
    which.add_argument("--guard", metavar="ID")
    which.add_argument("--broker", action="store_true")
    parser.add_argument("--observe", metavar="HOST:PORT", help="where it serves /healthz, /readyz and /metrics")
    parser.add_argument("--endpoint", metavar="HOST:PORT", help="with --node: where entities reach it while no broker answers; it listens at that port")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE.tar")
    arguments = parser.parse_args(argv)
    role, name = ("nodes", arguments.node) if arguments.node else ("guards", arguments.guard) if arguments.guard else ("broker", "")
    try:
        _write_private(arguments.to, pack(contents(arguments.home, role, name, observe=arguments.observe, endpoint=arguments.endpoint)))
    except (CannotCarry, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
