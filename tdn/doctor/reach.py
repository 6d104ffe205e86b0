"""Checks over the network: brokers, their alarms, guards, the log, and clocks. Each has a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
from aiohttp import InvalidURL

from tdn.bus import log
from tdn.bus.connection import Broker, Connection, tls_context
from tdn.doctor.files import SOON
from tdn.doctor.findings import Finding, of_error, ok, problem, warning
from tdn.doctor.lost_stores import start_from_a_snapshot
from tdn.doctor.stores import Store
from tdn.errors import BrokerUnavailable, LogDiverged, LoginRefused, LogTrimmed, NoRoom, TdnError, TrustError
from tdn.guard import trim_policy
from tdn.guard.management import Management
from tdn.local import guard_file
from tdn.local.home import Home, Settings
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time, parse_time
from tdn.rules import principals
from tdn.store.search import Reader
from tdn.trust import credentials
from tdn.trust.credentials import Credentials

#: What AMQP 0-9-1 clients say first; a broker answers with its name and version.
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
#: Clocks that differ by less are none of anybody's business; by more than the second, questions, which live a minute, are refused.
_CLOCK_DIFFERS = timedelta(seconds=5)
_CLOCK_WRONG = timedelta(seconds=60)
#: A node that serves has ticked within this.
_TICK_OLD = timedelta(seconds=60)
#: Changes that wait for nodes, and records that a store lacks, beyond which something does not keep up.
_MANY_WAITING = 1_000
_FAR_BEHIND = 10_000


def load_someone(home: Home) -> Credentials | None:
    """Credentials to look with, of those that can be loaded: a node's reads the log; any other reaches the broker."""
    for role in (Role.NODE, Role.GUARD, Role.OPERATOR):
        for name in home.ids(role) if role is not Role.OPERATOR else ["operator"]:
            with contextlib.suppress(TdnError):
                return credentials.load(home.credentials(role, name))
    return None


async def look_at_brokers(settings: Settings, who: Credentials, seconds: float) -> list[Finding]:
    """Each broker by itself: TLS, the certificate's name, and what it is. No login, so no guard is needed for it."""
    return [await _look_at_broker(broker, who, seconds) for broker in settings.hosts]


async def _look_at_broker(broker: Broker, who: Credentials, seconds: float) -> Finding:
    where = f"{broker.host}:{broker.port}"
    try:
        async with asyncio.timeout(seconds), _secured(broker.host, broker.port, who, broker.host) as (reader, writer):
            writer.write(_AMQP_HEADER)
            await writer.drain()
            frame = pika.frame.decode_frame(await _frame(reader))[1]
            about = frame.method.server_properties
            tls = writer.get_extra_info("ssl_object")
            ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(tls.getpeercert()["notAfter"]), UTC)
    except ssl.SSLCertVerificationError as error:
        do = f"`tdn ca issue NAME --role broker --host {broker.host}` (NAME is the broker's in `tdn status`, or `broker`), or correct hosts in tdn.toml"
        return problem("broker", TrustError, f"{where}: its certificate does not hold: {error.verify_message}", do)
    except ssl.SSLError as error:
        return problem(
            "broker", TrustError, f"{where}: TLS failed: {error.reason or error}", "look at the certificates of both sides, above"
        )
    except (OSError, TimeoutError, asyncio.IncompleteReadError, AttributeError, pika.exceptions.AMQPError) as error:
        return problem(
            "broker",
            BrokerUnavailable,
            f"{where} does not answer: {_said(error)}",
            "start it (`tdn up`), or correct hosts in tdn.toml",
        )
    what = f"{about.get('product', 'AMQP')} {about.get('version', 'of an unknown version')}, {tls.version()}"
    return _of_broker(f"{where}: {what}", ends, datetime.now(UTC))


def _of_broker(what: str, ends: datetime, now: datetime) -> Finding:
    """With what is left of the certificate that it shows: the one in a home may not have been brought there yet, and nothing else tells of it."""
    what = f"{what}, {(ends - now).days} days left of its certificate"
    if ends < now + SOON:
        return warning("broker", what, "`tdn ca issue NAME --role broker` in the operator's home, and bring it there: all that connects is refused after that")
    return ok("broker", what)


def _said(error: BaseException) -> str:
    """The system's words for it: asyncio puts its own in their place."""
    if isinstance(error, TimeoutError):
        return "not in time"
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or type(error).__name__


@contextlib.asynccontextmanager
async def _secured(
    host: str, port: int, who: Credentials, name: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls_context(who), server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(7)
    return head + await reader.readexactly(min(int.from_bytes(head[3:7], "big"), 1_000_000) + 1)


async def look_at_alarms(home: Home, settings: Settings, who: Credentials) -> list[Finding]:
    """What each broker says of itself through the management API, where the guard logs in."""
    urls = {*settings.management_urls}
    for guard in home.ids(Role.GUARD):
        with contextlib.suppress(TdnError):
            urls.add(guard_file.read(home.credentials(Role.GUARD, guard)).management_url or settings.management_url)
    found: dict[str, dict[str, Any]] = {}
    failures: list[Finding] = []
    trimming = False
    for url in sorted(urls):
        try:
            async with Management([url.rstrip("/")], home.management_password(), settings.vhost, who) as management:
                found |= {str(row["name"]): row for row in await management.brokers()}
                trimming = trimming or await trim_policy.stands(management)
        except InvalidURL:
            failures.append(problem("alarms", BrokerUnavailable, f"{url} is no address", "correct management_url"))
        except TdnError as error:
            failures.append(of_error("alarms", error, url, "the broker and the guard must run; the guard accepts the login"))
    findings = [finding for name, row in found.items() for finding in _alarms(name, row)]
    if found and not findings:
        findings = [ok("alarms", f"none at {', '.join(found)}")]
    if trimming:
        do = f"guards remove it within {2 * trim_policy.LOOK_SECONDS:.0f} s; if it stays, look at their logs"
        findings.append(warning("alarms", f"the policy {trim_policy.POLICY} stands: a `tdn log trim` runs, or was killed", do))
    return failures + findings


def _alarms(name: str, row: dict[str, Any]) -> Iterator[Finding]:
    if not row.get("running", True):
        yield problem("alarms", BrokerUnavailable, f"{name} does not run, say the others", "start it")
    if row.get("mem_alarm"):
        yield problem(
            "alarms", NoRoom, f"{name} is out of memory and takes no messages", "give it more, or end what fills its queues"
        )
    if row.get("disk_free_alarm"):
        yield problem("alarms", NoRoom, f"{name} is out of disk and takes no messages", "free some room where its data is")
    if row.get("partitions"):
        yield problem(
            "alarms", BrokerUnavailable, f"{name} is cut off from {row['partitions']}", "look at the network between the brokers"
        )
    used, total = row.get("fd_used"), row.get("fd_total")
    if isinstance(used, int) and isinstance(total, int) and used > 0.8 * total:
        yield problem("alarms", NoRoom, f"{name} has {used} of {total} files open", "raise its limit (`LimitNOFILE=`)")


async def look_at_guards(
    home: Home, settings: Settings, who: Credentials, running: Sequence[str], seconds: float
) -> list[Finding]:
    """Whether each guard that runs here takes a connection and shows a guard's certificate. That it is sure, it says itself (processes)."""
    findings = []
    # Beside each private broker stands a guard of its own.
    beside = {place.guard: ("127.0.0.1", place.guard_port) for place in home.places()} if settings.private_broker else {}
    for guard in running:
        try:
            usual = beside.get(guard, (settings.guard_host, settings.guard_port))
            host, port = guard_file.read(home.credentials(Role.GUARD, guard)).listen or usual
        except TdnError as error:
            findings.append(of_error("guard", error, guard))
            continue
        findings.append(await _look_at_guard(guard, host, port, who, seconds))
    return findings


async def _look_at_guard(guard: str, host: str, port: int, who: Credentials, seconds: float) -> Finding:
    try:
        any_address = ipaddress.ip_address(host)
        name = "localhost" if any_address.is_loopback or any_address.is_unspecified else host
        host = "127.0.0.1" if any_address.is_unspecified else host
    except ValueError:
        name = host
    try:
        async with asyncio.timeout(seconds), _secured(host, port, who, name) as (_, writer):
            peer = writer.get_extra_info("peercert") or {}
    except ssl.SSLError as error:
        return problem(
            "guard",
            TrustError,
            f"{guard} at {host}:{port}: TLS failed: {error.reason or error}",
            f"`tdn ca issue {guard} --role guard`",
        )
    except (OSError, TimeoutError) as error:
        do = "start it; without a guard the broker refuses everybody"
        return problem("guard", BrokerUnavailable, f"{guard} does not answer at {host}:{port}: {_said(error)}", do)
    uris = [value for kind, value in peer.get("subjectAltName", ()) if kind == "URI"]
    shown = Name.parse(uris[0]) if uris else None
    if shown is None or shown.role is not Role.GUARD:
        return problem(
            "guard", TrustError, f"at {host}:{port} answers somebody who is no guard", "end that program, or correct guard_listen"
        )
    return ok("guard", f"{shown.id} answers at {host}:{port}")


async def look_at_log(settings: Settings, who: Credentials, stores: Sequence[Store], seconds: float) -> list[Finding]:
    """Where the log begins and ends, what waits in front of it, and how the stores stand to it."""
    try:
        async with asyncio.timeout(seconds):
            connection = await Connection.open(settings.hosts, who, vhost=settings.vhost)
    except TimeoutError:
        return [problem("log", BrokerUnavailable, "the broker does not let us in in time", "look at broker and guard, above")]
    except LoginRefused as error:
        # Of a sound certificate, which is looked at elsewhere: the guard is away, or not sure.
        return [problem("log", BrokerUnavailable, error.message, "look at broker and guard, above")]
    except TdnError as error:
        return [of_error("log", error, do="look at broker and guard, above")]
    try:
        async with asyncio.timeout(seconds + 20):
            channel = await connection.channel()
            waiting, dead = await channel.count_messages(names.CHANGES), await channel.count_messages(names.DEAD)
            findings = list(_queues(waiting, dead))
            if who.identity.name.role not in (Role.NODE, Role.GUARD):
                return [
                    *findings,
                    warning(
                        "log", "not read: no node's nor guard's credentials can be loaded here", "see the certificates, above"
                    ),
                ]
            last = await log.last_offset(connection)
            first, beginning = (await (await log.Follower.open(connection, offset=0)).batch(1))[0] if last >= 0 else (-1, b"")
            trimmed = "; its beginning was trimmed: who has no store, or one that is of no use, starts from a snapshot"
            said = f"offsets {first} to {last}{trimmed if last >= 0 and log.goes_on(first, beginning) else ''}"
            return [*findings, ok("log", said), *_against_the_log(stores, first, last)]
    except TimeoutError:
        return [
            problem("log", BrokerUnavailable, "the broker does not give the log in time", "look at its own log and at its load")
        ]
    except LoginRefused as error:
        # Of a sound certificate, which is looked at elsewhere: the guard is away, or not sure.
        return [problem("log", BrokerUnavailable, error.message, "look at broker and guard, above")]
    except TdnError as error:
        return [of_error("log", error, do="look at broker and guard, above")]
    finally:
        await connection.close()


def _queues(waiting: int, dead: int) -> Iterator[Finding]:
    if waiting > _MANY_WAITING:
        yield warning("log", f"{waiting} changes wait for a node", "look at the nodes' load; `tdn up --nodes N` adds nodes")
    if dead:
        yield warning(
            "log",
            f"{dead} changes failed too often and wait to be answered so",
            "nodes do that when they run; their logs say why",
        )
    yield ok("log", f"{waiting} changes wait, {dead} dead letters")


def _against_the_log(stores: Sequence[Store], first: int, last: int) -> Iterator[Finding]:
    for store in stores:
        if store.offset > last:
            # The end was asked for before or after a record that the store has seen: a few are no matter.
            if store.offset - last > _MANY_WAITING:
                yield problem(
                    "log",
                    LogDiverged,
                    f"{store.who} has records up to offset {store.offset}, the log ends at {last}: the broker has lost its end",
                    "keep the stores, and see docs/operations.md (LogDiverged)",
                )
        elif store.offset + 1 < first:
            yield problem(
                "log",
                LogTrimmed,
                f"{store.who} ends at offset {store.offset}, the log begins at {first}: it cannot catch up",
                f"{start_from_a_snapshot(store.who)}. That replaces a store that is behind: remove none",
            )
        elif last - store.offset > _FAR_BEHIND:
            yield warning(
                "log", f"{store.who} is {last - store.offset} offsets behind the log", "it catches up while it runs; see its load"
            )


def look_at_clock(stores: Sequence[Store], running: Sequence[str]) -> Iterator[Finding]:
    """This machine's clock against log time and the latest tick of each node. No time server is asked."""
    furthest = max(stores, key=lambda store: store.seq, default=None)
    if furthest is None:
        return
    with closing(Reader(furthest.path)) as reader:
        if reader.get("network", "network") is None:
            return
        now, log_time = datetime.now(UTC), principals.log_time(reader)
        ticks = {key: parse_time(tick["at"]) for key, tick in reader.all("tick")}
    do = "set the clocks of all machines by the same time servers (chrony, systemd-timesyncd)"
    if log_time - now > _CLOCK_DIFFERS:
        yield problem(
            "clock",
            TrustError,
            f"this machine's clock is {_seconds(log_time - now)} behind the log's time, {format_time(log_time)}",
            do,
        )
    for node, tick in sorted(ticks.items()):
        if tick - now > _CLOCK_WRONG:
            yield problem("clock", TrustError, f"node {node} is {_seconds(tick - now)} ahead of this machine", do)
        elif tick - now > _CLOCK_DIFFERS:
            yield warning("clock", f"node {node} is {_seconds(tick - now)} ahead of this machine", do)
        elif node in running and now - tick > _TICK_OLD:
            yield warning(
                "clock",
                f"node {node} runs, and its last tick is {_seconds(now - tick)} old: it hangs, or its clock is behind",
                do,
            )
    age = f"; the latest tick is {_seconds(now - max(ticks.values()))} old" if ticks else ""
    yield ok("clock", f"{now:%Y-%m-%dT%H:%M:%SZ} here, {format_time(log_time)} in the log{age}")


def _seconds(length: timedelta) -> str:
    total = length.total_seconds()
    return f"{total:,.0f} s" if abs(total) < 7200 else f"{total / 3600:,.1f} h"
