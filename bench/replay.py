"""A new node reaching a log of 100,000 advertisements: records a second, beside the bare replay of the stream and the bare signature checks.

The log is real: every record is signed by an enrolled node, wraps a request signed by an entity, which carries an advertisement signed by
a node. The three checks a record are what no node can do without.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import bare
from bench.bare import Crypto
from bench.figures import print_table
from tdn.bus.connection import Connection
from tdn.bus.log import Appender, last_offset
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol import names
from tdn.protocol.descriptor import text
from tdn.protocol.names import Role, mint_uuid
from tdn.replica.replica import Replica
from tdn.rules.apply import write_record
from tdn.trust import credentials, envelope, openings, statements
from tdn.trust.credentials import Credentials

ADVERTISEMENTS = int(os.environ.get("TDN_BENCH_RECORDS", "100000"))
_WINDOW = 500
#: Signature checks that are timed. Their rate does not depend on how many there are.
_CHECKS = 6000


async def measure(home: Home) -> None:
    network = Network(home)
    node = credentials.load(home.credentials(Role.NODE, "n1"))
    entity = credentials.load(network.operator.issue(Role.ENTITY, "bench-replay"))
    # The guard stays, since the broker asks it; the nodes would only compete for the processor.
    for name in home.ids(Role.NODE):
        await asyncio.to_thread(network.process(Role.NODE, name).stop)
    settings = home.connection()
    connection = await Connection.open(settings.brokers, node, vhost=settings.vhost)
    try:
        size = await _fill(connection, node, entity, settings.network)
        await _guard_idle(home)
        streamed = await _bare_stream(home)
        checked = _bare_checks(size)
        applied = await _replay(connection, settings.network)
    finally:
        await connection.close()
    both = 1 / (1 / streamed + 1 / checked)
    rows: list[tuple[object, ...]] = [
        ("our node: read, verify, apply, commit", applied, 1.0),
        ("bare replay of the stream (raw pika)", streamed, streamed / applied),
        ("bare signature checks, 3 a record", checked, checked / applied),
        ("bare replay and checks, one after the other", both, both / applied),
    ]
    print_table(f"Replay of {ADVERTISEMENTS} advertisements, {size} bytes a record", ("", "records/s", "times ours"), rows)


async def _fill(connection: Connection, node: Credentials, entity: Credentials, network: str) -> int:
    """Append the entity's first contact and its advertisements."""
    appender = await Appender.open(connection)
    audience = f"tdn:network:{network}"
    now = datetime.now(UTC)
    hello = envelope.write("hello", {}, entity, audience=audience, now=now, life=timedelta(minutes=1), with_chain=True)
    await appender.append(write_record("hello", node, now, hello))
    size = 0
    waiting: list[asyncio.Future[None]] = []
    for number in range(ADVERTISEMENTS):
        raw = _record(number, node, entity, audience, network)
        size += len(raw)
        waiting.append(appender.append(raw))
        if len(waiting) == _WINDOW:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)
    return size // ADVERTISEMENTS


def _record(number: int, node: Credentials, entity: Credentials, audience: str, network: str) -> bytes:
    now = datetime.now(UTC)
    body = {
        "creator": entity.identity.name.id,
        "institution": entity.identity.institution,
        "lifetime_seconds": 86_400,
        "descriptor": text(f"Measurements of station {number}, every minute", ["weather", f"station-{number}"]),
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
    }
    raw = envelope.write("create", body, entity, audience=node.identity.name.principal, now=now, life=timedelta(minutes=1))
    request = envelope.authenticate(raw, lambda header: entity.identity)
    uuid = mint_uuid()
    opening = openings.conceal({"access": {}}, openings.new_seed())
    advertisement = statements.mint(request, uuid=uuid, network=network, opening=opening, node=node, now=now)
    body = {"uuid": uuid, "opening": opening}
    change = envelope.write("advertise", body, entity, audience=audience, now=now, life=timedelta(days=1), tail=advertisement)
    return write_record("advertise", node, now, change)


async def _guard_idle(home: Home) -> None:
    """Wait until the guard has applied the log too, so that it does not compete."""
    for _ in range(7200):
        if home.reported(f"{Role.GUARD}-g1").get("sequence", 0) >= ADVERTISEMENTS:
            return
        await asyncio.sleep(0.5)


async def _bare_stream(home: Home) -> float:
    connection = await bare.connect(home.credentials(Role.NODE, "n1"))
    channel = await bare.open_channel(connection, prefetch=1000)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    count = 0

    def take(_: object, method: object, properties: object, body: bytes) -> None:
        nonlocal count
        count += 1
        if count % 100 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)  # type: ignore[attr-defined]
        if count == ADVERTISEMENTS and not done.done():
            done.set_result(None)

    started = time.perf_counter()
    await bare.call(channel.basic_consume, names.LOG, take, arguments={"x-stream-offset": "first"})
    await done
    elapsed = time.perf_counter() - started
    connection.close()
    return ADVERTISEMENTS / elapsed


def _bare_checks(size: int) -> float:
    crypto = Crypto()
    crypto.verify(size)
    started = time.perf_counter()
    for _ in range(_CHECKS):
        crypto.verify(size)
    return _CHECKS / 3 / (time.perf_counter() - started)


async def _replay(connection: Connection, network: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        replica = Replica(Path(folder) / "store.sqlite", network)
        await last_offset(connection)
        started = time.perf_counter()
        following = asyncio.create_task(replica.follow(connection))
        await replica.reached(ADVERTISEMENTS, within_seconds=3600)
        elapsed = time.perf_counter() - started
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        applied = replica.position[0]
        replica.close()
        return applied / elapsed
