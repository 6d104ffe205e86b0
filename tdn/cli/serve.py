"""Running one node or one guard in the foreground: what `tdn up`, systemd and containers start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tdn import environment, machine
from tdn.bus.connection import Broker
from tdn.cli import logs
from tdn.cli.starting import Starting, report, report_trouble
from tdn.errors import TdnError, UsageError
from tdn.guard.memory import MEMORY_FILE
from tdn.guard.service import Guard, GuardSettings
from tdn.guard.settings import LOOK_SECONDS, SILENCE_SECONDS
from tdn.local import guard_file, node_file
from tdn.local.guard_file import GuardFile
from tdn.local.home import Home
from tdn.node.service import TICK_SECONDS, Node, NodeSettings
from tdn.observe.endpoint import Endpoint
from tdn.observe.settings import Address, ObserveSettings
from tdn.observe.traces import open_traces
from tdn.protocol.names import Role
from tdn.settings_file import split_address
from tdn.snapshots.make import CHECKPOINT_RECORDS
from tdn.snapshots.take import take
from tdn.trust import credentials

logger = logging.getLogger(__name__)

#: Between reports to the home. `tdn status` is that fresh.
_REPORT_SECONDS = 0.25


def serve_node(
    home: Home, name: str, *, snapshot: Path | None = None, log_format: str | None = None, verbose: bool
) -> None:
    folder = _folder(home, Role.NODE, name)
    with _last_words(home, f"{Role.NODE}-{name}"):
        machine.require_writable(folder, home.run if home.run.exists() else home.folder)
        environment.require_numbers()
        home.require_genesis()
        observe = node_file.read_observe(folder)
        logs.configure(verbose=verbose, log_format=log_format or observe.log_format, own=home.run / f"{Role.NODE}-{name}.log")
        _serve_node(home, name, folder, observe, snapshot)


def serve_guard(
    home: Home,
    name: str,
    *,
    listen: str | None = None,
    management: str | None = None,
    snapshot: Path | None = None,
    log_format: str | None = None,
    verbose: bool,
) -> None:
    folder = _folder(home, Role.GUARD, name)
    with _last_words(home, f"{Role.GUARD}-{name}"):
        machine.require_writable(folder, home.run if home.run.exists() else home.folder)
        environment.require_numbers()
        home.require_genesis()
        written = guard_file.read(folder)
        logs.configure(verbose=verbose, log_format=log_format or written.observe.log_format, own=home.run / f"{Role.GUARD}-{name}.log")
        _serve_guard(home, name, folder, written, snapshot, listen=listen, management=management)


def _serve_node(home: Home, name: str, folder: Path, observe: ObserveSettings, snapshot: Path | None) -> None:
    connection = home.connection()
    policy, limits = node_file.read(folder)
    starting = Starting(home, Role.NODE, name)
    settings = NodeSettings(
        brokers=connection.brokers,
        vhost=connection.vhost,
        genesis=home.genesis(),
        store=home.store(name),
        enrolments=home.enrolments,
        tick_seconds=environment.TICK_SECONDS.read(TICK_SECONDS),
        policy=policy,
        limits=limits,
        checkpoint_records=environment.CHECKPOINT_RECORDS.read(CHECKPOINT_RECORDS),
        endpoint=node_file.read_endpoint(folder, name, home.endpoint_port(name)),
        progress=starting.progress,
        traces=open_traces("node", name, observe.traces),
    )

    def begin() -> Node:
        if snapshot is not None:
            _take(home, Role.NODE, name, snapshot, starting)
        return Node(credentials.load(folder), settings)

    async def run() -> None:
        async with _endpoint(home, Role.NODE, name, observe, starting) as endpoint:
            stop = _told_to_stop()
            node = await starting.make(begin, stop)
            if node is None:
                return
            if endpoint is not None:
                endpoint.show(node.observed.metrics, node.readiness)

            def state() -> dict[str, Any]:
                return {
                    "ready": node.condition.ready,
                    "why": node.condition.why,
                    "sequence": node.replica.position[0],
                    "head": node.replica.position[1],
                    "lag": node.replica.lag,
                    "topics": node.observed.topics,
                    "metrics": endpoint.url if endpoint is not None else None,
                    "counts": dict(node.condition.counts),
                }

            await _run(node.run, stop, home, f"{Role.NODE}-{name}", state)

    asyncio.run(run())


def _serve_guard(
    home: Home,
    name: str,
    folder: Path,
    written: GuardFile,
    snapshot: Path | None,
    *,
    listen: str | None,
    management: str | None,
) -> None:
    connection = home.connection()
    configured = home.settings()
    starting = Starting(home, Role.GUARD, name)
    host, port = configured.guard_host, configured.guard_port
    urls, own = list(configured.management_urls), None
    if configured.private_broker and (place := next((place for place in home.places() if place.guard == name), None)):
        port, own = place.guard_port, Broker("127.0.0.1", place.amqps)
        urls.sort(key=lambda url: url != f"https://127.0.0.1:{place.management}")
    if (named := split_address(listen) if listen is not None else written.listen) is not None:
        host, port = named
    if (first := management or written.management_url) is not None:
        urls = list(dict.fromkeys([first.rstrip("/"), *urls]))
    if not configured.private_broker:
        # The broker beside this guard is the one whose management API it asks first.
        own = next((broker for broker in connection.brokers if broker.host == urlsplit(urls[0]).hostname), None)
    settings = GuardSettings(
        brokers=connection.brokers,
        vhost=connection.vhost,
        genesis=home.genesis(),
        store=folder / "store.sqlite",
        enrolments=home.enrolments,
        host=host,
        port=port,
        management_urls=urls,
        management_password=home.management_password(),
        own_broker=own,
        silence_seconds=environment.SILENCE_SECONDS.read(SILENCE_SECONDS),
        look_seconds=environment.LOOK_SECONDS.read(LOOK_SECONDS),
        audit_rows=written.audit_rows,
        traces=open_traces("guard", name, written.observe.traces),
    )

    def begin() -> Guard:
        if snapshot is not None:
            _take(home, Role.GUARD, name, snapshot, starting, before_it_counts=lambda: _forget(folder))
        return Guard(credentials.load(folder), settings)

    async def run() -> None:
        async with _endpoint(home, Role.GUARD, name, written.observe, starting) as endpoint:
            stop = _told_to_stop()
            guard = await starting.make(begin, stop)
            if guard is None:
                return
            if endpoint is not None:
                endpoint.show(guard.observed.metrics, guard.readiness)

            url = endpoint.url if endpoint is not None else None
            await _run(guard.run, stop, home, f"{Role.GUARD}-{name}", lambda: guard_state(guard, url))

    asyncio.run(run())


def guard_state(guard: Guard, metrics: str | None) -> dict[str, Any]:
    """What a guard says of itself in the home."""
    ready = guard.readiness()
    return {
        "ready": ready["ready"],
        "why": ready.get("reason"),
        "sequence": ready["sequence"],
        "lag": ready["lag"],
        "cutting": guard.cutting,
        "others": guard.others,
        "metrics": metrics,
        "counts": dict(guard.counts),
    }


@contextlib.asynccontextmanager
async def _endpoint(
    home: Home, role: Role, name: str, observe: ObserveSettings, starting: Starting
) -> AsyncIterator[Endpoint | None]:
    """Where its numbers are shown: as its file says, or at the port that `tdn up` chose; or nowhere."""
    address = observe.listen
    if address is None and not observe.off and (port := home.metrics_port(role, name)) is not None:
        address = Address("127.0.0.1", port)
    if address is None:
        yield None
        return
    async with Endpoint(address, starting.readiness) as endpoint:
        yield endpoint


def _forget(guard: Path) -> None:
    """A guard that begins with a snapshot has not seen what ended before: not knowing whom it allowed what, it closes all that was open before it."""
    for ending in ("", "-wal", "-shm"):
        (guard / f"{MEMORY_FILE}{ending}").unlink(missing_ok=True)


def _take(
    home: Home, role: Role, name: str, snapshot: Path, starting: Starting, before_it_counts: Callable[[], None] = lambda: None
) -> None:
    """Begin with a snapshot where the store is not as far."""
    taken = take(
        snapshot,
        home.credentials(role, name) / "store.sqlite",
        genesis=home.genesis(),
        enrolments=[path.read_bytes() for path in sorted(home.enrolments.glob("*.jws"))],
        newcomer=f"{role}:{name}",
        progress=starting.progress,
        before_it_counts=before_it_counts,
    )
    if taken is None:
        logger.info("%s %s is as far as the snapshot already; it is left alone", role, name)
        return
    logger.info(
        "%s %s begins with record %d, as %s stated it: %d facts", role, name, taken.seq, ", ".join(taken.nodes), taken.facts
    )


@contextlib.contextmanager
def _last_words(home: Home, name: str) -> Iterator[None]:
    """What ends a process stays in the home, where `tdn status` and `tdn doctor` find it."""
    try:
        with machine.explained():
            yield
    except TdnError as error:
        with contextlib.suppress(OSError):
            report(home, name, {"ready": False, "ended": error.as_object()})
        raise


def _told_to_stop() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _run(
    service: Callable[[asyncio.Event], Any], stop: asyncio.Event, home: Home, name: str, state: Callable[[], dict[str, Any]]
) -> None:
    async def go_on_reporting() -> None:
        last: dict[str, Any] | None = {}
        while True:
            try:
                # Every second: a process that was stopped in its tracks cannot say so, but that it says nothing shows it.
                values = {"at": int(time.time()), **state()}
                if values != last:
                    report(home, name, values)
                    last = values
            except (OSError, sqlite3.Error) as error:
                # A full disk, say. The service itself decides whether it goes on.
                why = str(machine.explain(error, home.run) or error)
                if last is not None:
                    logging.getLogger(__name__).warning("%s cannot say how it is: %s", name, why)
                # Again and again: who says nothing for seconds is taken for paused.
                report_trouble(home, name, why)
                last = None
            await asyncio.sleep(_REPORT_SECONDS)

    # What was made by starting stays: looking through it for garbage again and again costs more than it finds.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    reporting = asyncio.create_task(go_on_reporting())
    try:
        await service(stop)
    finally:
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting


def _folder(home: Home, role: Role, name: str) -> Path:
    folder = home.credentials(role, name)
    if not (folder / "cert.pem").exists():
        raise UsageError(f"there is no {role} {name!r} in {home}; known: {', '.join(home.ids(role)) or 'none'}")
    return folder
