"""Running one node or one guard in the foreground: what `tdn up`, systemd and containers start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tdn.cli.output import printable
from tdn.errors import UsageError
from tdn.guard.service import Guard, GuardSettings
from tdn.local import node_file
from tdn.local.home import Home
from tdn.node.service import Node, NodeSettings
from tdn.protocol.names import Role
from tdn.protocol.rates import Rate
from tdn.trust import credentials

#: Between reports to the home. `tdn status` is that fresh.
_REPORT_SECONDS = 0.25
#: Between counts of live topics: a million of them take some 20 ms.
_COUNT_SECONDS = 2.0


def serve_node(home: Home, name: str, *, verbose: bool) -> None:
    folder = _folder(home, Role.NODE, name)
    connection = home.connection()
    policy, limits = node_file.read(folder)
    settings = NodeSettings(
        brokers=connection.brokers,
        vhost=connection.vhost,
        genesis=home.genesis(),
        store=home.store(name),
        enrolments=home.enrolments,
        tick_seconds=float(os.environ.get("TDN_TICK_SECONDS", "5")),
        policy=policy,
        limits=limits,
        # `tdn up` waits as long as something gets on.
        progress=lambda count: home.report(f"{Role.NODE}-{name}", {"pid": os.getpid(), "ready": False, "sequence": count}),
    )

    async def run() -> None:
        node = Node(credentials.load(folder), settings)

        counted, topics = 0.0, 0

        def state() -> dict[str, Any]:
            nonlocal counted, topics
            if time.monotonic() - counted > _COUNT_SECONDS:
                counted, topics = time.monotonic(), node.replica.reader.count_live(datetime.now(UTC))
            return {
                "ready": node.condition.ready,
                "sequence": node.replica.position[0],
                "head": node.replica.position[1],
                "lag": node.replica.lag,
                "topics": topics,
                "counts": dict(node.condition.counts),
            }

        await _run(node.run, home, f"{Role.NODE}-{name}", state)

    _log(verbose)
    asyncio.run(run())


def serve_guard(home: Home, name: str, *, listen: str | None = None, management: str | None = None, verbose: bool) -> None:
    folder = _folder(home, Role.GUARD, name)
    connection = home.connection()
    configured = home.settings()
    host, port = _address(listen) if listen is not None else (configured.guard_host, configured.guard_port)
    settings = GuardSettings(
        brokers=connection.brokers,
        vhost=connection.vhost,
        genesis=home.genesis(),
        store=folder / "store.sqlite",
        enrolments=home.enrolments,
        host=host,
        port=port,
        management_url=(management or configured.management_url).rstrip("/"),
        management_password=home.management_password(),
        silence_seconds=float(os.environ.get("TDN_SILENCE_SECONDS", "20")),
    )

    async def run() -> None:
        guard = Guard(credentials.load(folder), settings)

        def state() -> dict[str, Any]:
            return {
                "ready": guard.sure,
                "sequence": guard.replica.position[0],
                "lag": guard.replica.lag,
                "cutting": guard.cutting,
                # A guard that was stopped in its tracks cannot say so; that it says nothing shows it.
                "at": int(time.time()),
                "counts": dict(guard.counts),
            }

        await _run(guard.run, home, f"{Role.GUARD}-{name}", state)

    _log(verbose)
    asyncio.run(run())


async def _run(service: Callable[[asyncio.Event], Any], home: Home, name: str, state: Callable[[], dict[str, Any]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def report() -> None:
        last: dict[str, Any] = {}
        while True:
            values = {"pid": os.getpid(), **state()}
            if values != last:
                home.report(name, values)
                last = values
            await asyncio.sleep(_REPORT_SECONDS)

    # What was made by starting stays: looking through it for garbage again and again costs more than it finds.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    reporting = asyncio.create_task(report())
    try:
        await service(stop)
    finally:
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError(f"{text[:80]!r} is not an address; write HOST:PORT")
    return host.strip("[]"), int(port)


def _folder(home: Home, role: Role, name: str) -> Any:
    folder = home.credentials(role, name)
    if not (folder / "cert.pem").exists():
        raise UsageError(f"there is no {role} {name!r} in {home}; known: {', '.join(home.ids(role)) or 'none'}")
    return folder


class _PlainLines(logging.Formatter):
    """One line per message, whatever a sender put into it; a traceback of ours keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


class _Bounded(logging.Filter):
    """So many lines a second and no more: a log that others can write to must not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = Rate(burst=500, per_second=20.0, clock=time.monotonic)
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._rate.take(""):
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out} lines before this were left out)", ()
            self._left_out = 0
        return True


def _log(verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_Bounded())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
