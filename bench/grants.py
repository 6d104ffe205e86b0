"""Grants that the broker enforces: what they cost whoever publishes, how soon one is ended, and what a guard with many of them can do.

- `publishing`: publishes a second over 1 to 1,000 topics in rotation, by a broker that asks no guard, by one that asks the network's guard
  through RabbitMQ's HTTP backend alone, and by one as the network has it, which remembers a channel's topics (`rabbit_auth_backend_tdn`).
- `revocation`: from the command to the last message that still passes, under 1,000 a second (`bench/revocation.py`).
- `decisions`: the guard alone, with 1,000 and with 1,000,000 grants (`bench/guard_decisions.py`).

`TDN_BENCH_QUICK=1` looks only whether everything works.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pika.frame
from pika.adapters.asyncio_connection import AsyncioConnection

from bench import bare, guard_decisions, revocation
from bench.figures import print_table
from tdn.local.broker import PLAIN_BACKEND, REMEMBERING_BACKEND, VIRTUAL_HOST, BrokerPorts, BrokerTls, PrivateBroker
from tdn.local.home import Home
from tdn.local.network import BROKER, Network
from tdn.local.processes import free_ports
from tdn.protocol.names import Role
from tdn.trust import credentials

_QUICK = bool(os.environ.get("TDN_BENCH_QUICK"))
TOPICS = (1, 100) if _QUICK else (1, 12, 100, 1000)
#: Every broker has its turn with each number of topics, so often.
_ROUNDS = 1 if _QUICK else 5
_SECONDS = 0.3 if _QUICK else 2.0
#: Publishes that await their confirm.
_WINDOW = 1000
#: Publishes between two looks at the window.
_BURST = 100
_BODY = b"x" * 256


def run(folder: Path) -> None:
    for name, section in SECTIONS.items():
        section(folder / name)


# --- publishing -----------------------------------------------------------------------------------------------------------------------


def publishing(folder: Path) -> None:
    """Nothing is bound to the topics: what a publish costs beside its decision is then as little as it can be, and the ratio as hard.

    The publisher is a node, whom the guard allows every topic without looking for a grant.
    """
    network = Network(Home(folder))
    network.up(nodes=1)
    try:
        publisher = network.home.credentials(Role.NODE, network.home.ids(Role.NODE)[0])
        with _brokers(network, publisher) as ports:
            asyncio.run(_compare(publisher, ports))
    finally:
        network.down()


@dataclass(frozen=True, slots=True)
class _Speed:
    """Publishes a second once every topic was published to, and the seconds that this took at first."""

    rate: float
    first_seconds: float


async def _compare(publisher: Path, ports: dict[str, int]) -> None:
    topics = [str(uuid.uuid4()) for _ in range(max(TOPICS))]
    async with contextlib.AsyncExitStack() as stack:
        connections = {}
        for name, port in ports.items():
            connections[name] = await bare.connect(publisher, port=port)
            stack.callback(connections[name].close)
            await _declare(connections[name], topics)
        for title, send in _SENDERS.items():
            speeds: dict[tuple[int, str], list[_Speed]] = {}
            for _ in range(_ROUNDS):
                for count in TOPICS:
                    for name, connection in connections.items():
                        speeds.setdefault((count, name), []).append(await _measure(connection, topics[:count], send))
            _print(title, speeds)


def _print(title: str, speeds: dict[tuple[int, str], list[_Speed]]) -> None:
    rows: list[tuple[object, ...]] = []
    for count in TOPICS:
        rate = {name: statistics.median(speed.rate for speed in speeds[count, name]) for name in _NAMES}
        first = statistics.median(speed.first_seconds for speed in speeds[count, OURS])
        rows.append(
            (
                count,
                round(rate[NO_GUARD]),
                round(rate[PLAIN]),
                rate[PLAIN] / rate[NO_GUARD],
                round(rate[OURS]),
                rate[OURS] / rate[NO_GUARD],
                first * 1000,
            )
        )
    headings = ("topics", NO_GUARD, PLAIN, "ratio", OURS, "ratio", "ours, first rotation ms")
    print_table(f"Publishes a second, confirmed, {title}; medians of {_ROUNDS} times {_SECONDS:g} s", headings, rows)


NO_GUARD, PLAIN, OURS = _NAMES = "no guard", "HTTP backend", "ours"


@contextlib.contextmanager
def _brokers(network: Network, publisher: Path) -> Iterator[dict[str, int]]:
    """The ports of three that differ only in whom they ask. The network's own has nodes to serve, which would not be fair."""
    folder = network.home.credentials(Role.BROKER, BROKER)
    tls = BrokerTls(root=folder / "trust.pem", chain=folder / "cert.pem", key=folder / "key.pem")
    guard = f"https://127.0.0.1:{network.home.ports()['guard']}"
    brokers = {
        name: PrivateBroker(
            network.home.folder / name.replace(" ", "-"), BrokerPorts(*free_ports(4)), tls, guard, auth_backend=backend
        )
        for name, backend in ((NO_GUARD, PLAIN_BACKEND), (PLAIN, PLAIN_BACKEND), (OURS, REMEMBERING_BACKEND))
    }
    try:
        for name, broker in brokers.items():
            if notice := broker.write_configuration():
                raise RuntimeError(notice)
            if name == NO_GUARD:
                _ask_nobody(broker.folder, login=str(credentials.load(publisher).identity.name))
            broker.start()
        yield {name: broker.ports.amqps for name, broker in brokers.items()}
    finally:
        for broker in brokers.values():
            broker.kill_hard()


def _ask_nobody(folder: Path, login: str) -> None:
    """RabbitMQ's internal backend instead of the guard: one user, who may do anything."""
    path = folder / "rabbitmq.conf"
    path.write_text(path.read_text().replace(f"auth_backends.1 = {PLAIN_BACKEND}", "auth_backends.1 = internal"))
    path = folder / "definitions.json"
    definitions = json.loads(path.read_text())
    definitions["users"] = [{"name": login, "password_hash": "", "tags": ""}]
    definitions["permissions"] = [{"user": login, "vhost": VIRTUAL_HOST, "configure": ".*", "write": ".*", "read": ".*"}]
    path.write_text(json.dumps(definitions))


async def _declare(connection: AsyncioConnection, topics: Sequence[str]) -> None:
    channel = await bare.open_channel(connection)
    for topic in topics:
        await bare.call(channel.exchange_declare, exchange=topic, exchange_type="fanout")
    channel.close()


# --- one publisher --------------------------------------------------------------------------------------------------------------------

#: Given a channel and its topics in rotation, what publishes the next so many.
Send = Callable[[int], None]


def _through_pika(channel: Any, topics: Sequence[str]) -> Send:
    position = 0

    def send(count: int) -> None:
        nonlocal position
        for number in range(position, position + count):
            channel.basic_publish(topics[number % len(topics)], "", _BODY)
        position += count

    return send


def _as_bytes(channel: Any, topics: Sequence[str]) -> Send:
    """The same frames, made beforehand: the client then costs nothing, and the broker is the limit."""
    ready = [_frames(channel.channel_number, topic) for topic in topics]
    # So that a burst is one slice, wherever it begins.
    ready *= 1 + -(-_BURST // len(ready))
    position = 0

    def send(count: int) -> None:
        nonlocal position
        channel.connection._adapter_emit_data(b"".join(ready[position : position + count]))
        position = (position + count) % len(topics)

    return send


_SENDERS = {"by pika": _through_pika, "frames made beforehand": _as_bytes}


def _frames(channel_number: int, topic: str) -> bytes:
    return b"".join(
        frame.marshal()
        for frame in (
            pika.frame.Method(channel_number, pika.spec.Basic.Publish(exchange=topic, routing_key="")),
            pika.frame.Header(channel_number, len(_BODY), pika.BasicProperties()),
            pika.frame.Body(channel_number, _BODY),
        )
    )


class _Window:
    """Counts confirms, and wakes who waits for room."""

    def __init__(self) -> None:
        self.confirmed = 0
        self._moved = asyncio.Event()

    def on_confirm(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise RuntimeError("a publish was not confirmed")
        self.confirmed = frame.method.delivery_tag if frame.method.multiple else self.confirmed + 1
        self._moved.set()

    async def wait_for(self, confirmed: int) -> None:
        while self.confirmed < confirmed:
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 30)


async def _measure(connection: AsyncioConnection, topics: Sequence[str], sender: Callable[[Any, Sequence[str]], Send]) -> _Speed:
    """On a new channel, which knows of no topic whether it may write there."""
    channel = await bare.open_channel(connection)
    window = _Window()
    await bare.call(channel.confirm_delivery, window.on_confirm)
    send = sender(channel, topics)
    sent = 0

    async def publish(count: int) -> None:
        nonlocal sent
        await window.wait_for(sent + count - _WINDOW)
        send(count)
        sent += count

    started = time.perf_counter()
    for start in range(0, len(topics), _BURST):
        await publish(min(_BURST, len(topics) - start))
    await window.wait_for(sent)
    first = time.perf_counter() - started
    started = time.perf_counter()
    before = sent
    while time.perf_counter() - started < _SECONDS:
        await publish(_BURST)
    await window.wait_for(sent)
    rate = (sent - before) / (time.perf_counter() - started)
    channel.close()
    return _Speed(rate, first)


#: `python -m bench grants` runs all of them, `python -m bench grants.revocation` one.
SECTIONS: dict[str, Callable[[Path], None]] = {
    "publishing": publishing,
    "revocation": revocation.run,
    "decisions": guard_decisions.run,
}
