"""The bare limit of a creation: raw pika and raw crypto, doing no more than the paper's six steps need.

The same broker, the same TLS, as many hops with the same sizes, the same signature and HPKE calls on the same side, one confirmed append
to a stream and one `synchronous=FULL` commit. Locating goes to two responders, as it goes to two nodes, and ends with the first answer.
No JSON, no schemas, no rules, no queries, no other reader of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pika
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.credentials import ExternalCredentials

from tdn.bus.address import load_connection
from tdn.bus.connection import tls_context
from tdn.trust import credentials

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_HASH = ec.ECDSA(hashes.SHA256())

NODE_QUEUES, CLIENT_QUEUE, CHANGES, LOG = ("bench.node.1", "bench.node.2"), "bench.client", "bench.changes", "bench.log"
#: Fans a locate out to both responders.
LOCATE = "bench.locate"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of each message of one creation, as they were seen on a real one."""

    locate: int
    located: int
    create: int
    created: int
    advertise: int
    decided: int
    record: int


class Crypto:
    """The raw calls, with one key: what they cost does not depend on whose it is."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._public = self._key.public_key()
        self._samples: dict[int, tuple[bytes, bytes, bytes]] = {}

    def sign(self, size: int) -> None:
        self._key.sign(self._sample(size)[0], _HASH)

    def verify(self, size: int) -> None:
        message, signature, _ = self._sample(size)
        self._public.verify(signature, message, _HASH)

    def seal(self, size: int) -> None:
        _SUITE.encrypt(self._sample(size)[0], self._public)

    def unseal(self, size: int) -> None:
        _SUITE.decrypt(self._sample(size)[2], self._key)

    def _sample(self, size: int) -> tuple[bytes, bytes, bytes]:
        if size not in self._samples:
            message = b"x" * size
            self._samples[size] = (message, self._key.sign(message, _HASH), _SUITE.encrypt(message, self._public))
        return self._samples[size]


async def connect(folder: Path, *, port: int | None = None) -> AsyncioConnection:
    """Raw pika, logged in by certificate; at another port than the network's own, if one is named."""
    settings = load_connection(folder)
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[AsyncioConnection] = loop.create_future()
    parameters = pika.ConnectionParameters(
        host=settings.brokers[0].host,
        port=port or settings.brokers[0].port,
        virtual_host=settings.vhost,
        credentials=ExternalCredentials(),
        ssl_options=pika.SSLOptions(tls_context(credentials.load(folder)), settings.brokers[0].host),
    )
    AsyncioConnection(
        parameters,
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        custom_ioloop=loop,
    )
    return await opened


async def open_channel(connection: AsyncioConnection, *, prefetch: int = 100) -> Any:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=opened.set_result)
    channel = await opened
    await call(channel.basic_qos, prefetch_count=prefetch)
    return channel


async def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    
    def finish(frame: Any) -> None:
        if not done.done():
            done.set_result(frame)

    method(*args, callback=finish, **kwargs)
    return await done


async def declare(channel: Any) -> None:
    """Fresh queues of the kinds that the service uses."""
    for queue, arguments in (
        (NODE_QUEUES[0], {"x-queue-type": "classic"}),
        (NODE_QUEUES[1], {"x-queue-type": "classic"}),
        (CLIENT_QUEUE, {"x-queue-type": "classic"}),
        (CHANGES, {"x-queue-type": "quorum"}),
        (LOG, {"x-queue-type": "stream"}),
    ):
        await call(channel.queue_delete, queue)
        await call(channel.queue_declare, queue, durable=True, arguments=arguments)
    await call(channel.exchange_declare, LOCATE, exchange_type="fanout", durable=True)
    for queue in NODE_QUEUES:
        await call(channel.queue_bind, queue, LOCATE, routing_key="")


async def remove(channel: Any) -> None:
    for queue in (*NODE_QUEUES, CLIENT_QUEUE, CHANGES, LOG):
        await call(channel.queue_delete, queue)
    await call(channel.exchange_delete, LOCATE)


def respond(folder: Path, store: Path, sizes: Sizes, number: int, ready: Event) -> None:
    """One node's side, in a process of its own, until it is terminated."""
    asyncio.run(_respond(folder, store, sizes, number, ready))


async def _respond(folder: Path, store: Path, sizes: Sizes, number: int, ready: Event) -> None:
    connection = await connect(folder)
    channel = await open_channel(connection)
    log = await open_channel(connection)
    crypto = Crypto()
    db = sqlite3.connect(store, isolation_level=None)
    db.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE records (seq INTEGER PRIMARY KEY, raw BLOB);"
    )
    appended: dict[int, asyncio.Future[None]] = {}
    published = 0

    def confirmed(frame: Any) -> None:
        last = frame.method.delivery_tag
        for tag in [tag for tag in appended if tag <= last] if frame.method.multiple else [last]:
            appended.pop(tag).set_result(None)

    await call(log.confirm_delivery, confirmed)
    transient = pika.BasicProperties(delivery_mode=1)

    def question(_: Any, method: Any, properties: Any, body: bytes) -> None:
        if len(body) == sizes.locate:
            crypto.verify(sizes.locate)
            crypto.sign(sizes.located)
            crypto.seal(sizes.located)
            channel.basic_publish("", CLIENT_QUEUE, b"x" * sizes.located, transient)
        else:
            crypto.unseal(sizes.create)
            crypto.verify(sizes.create)
            crypto.sign(sizes.created)  # the advertisement
            crypto.sign(sizes.created)
            crypto.seal(sizes.created)
            channel.basic_publish("", CLIENT_QUEUE, b"x" * sizes.created, transient)
        channel.basic_ack(method.delivery_tag)

    async def decide(tag: int) -> None:
        crypto.verify(sizes.advertise)
        crypto.sign(sizes.record)
        nonlocal published
        published += 1
        appended[published] = asyncio.get_running_loop().create_future()
        waiting = appended[published]
        log.basic_publish("", LOG, b"x" * sizes.record, pika.BasicProperties(delivery_mode=2))
        await waiting
        crypto.verify(sizes.record)  # what a node must check of a record: the appender, the request, the advertisement
        crypto.verify(sizes.advertise)
        crypto.verify(sizes.created)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO records (raw) VALUES (?)", (b"x" * sizes.record,))
        db.execute("COMMIT")
        crypto.sign(sizes.decided)  # the receipt
        crypto.sign(sizes.decided)
        crypto.seal(sizes.decided)
        channel.basic_publish("", CLIENT_QUEUE, b"x" * sizes.decided, transient)
        channel.basic_ack(tag)

    tasks: set[asyncio.Task[None]] = set()

    def change(_: Any, method: Any, properties: Any, body: bytes) -> None:
        task = asyncio.ensure_future(decide(method.delivery_tag))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await call(channel.basic_consume, NODE_QUEUES[number], question)
    if number == 0:
        await call(channel.basic_consume, CHANGES, change)
    ready.set()
    await asyncio.Event().wait()


class BareClient:
    """The entity's side."""

    def __init__(self, channel: Any, sizes: Sizes) -> None:
        self._channel = channel
        self._sizes = sizes
        self._crypto = Crypto()
        # Answers by their size, which says what they answer; the second answer to a locate is left lying, as an entity leaves it.
        self._replies: defaultdict[int, asyncio.Queue[None]] = defaultdict(asyncio.Queue)

    async def open(self) -> None:
        await call(
            self._channel.basic_consume, CLIENT_QUEUE, lambda *event: self._replies[len(event[3])].put_nowait(None), auto_ack=True
        )

    async def _reply(self, size: int) -> None:
        await self._replies[size].get()

    async def create(self) -> float:
        """One creation; its seconds."""
        crypto, sizes, channel = self._crypto, self._sizes, self._channel
        transient, persistent = pika.BasicProperties(delivery_mode=1), pika.BasicProperties(delivery_mode=2)
        while not self._replies[sizes.located].empty():
            self._replies[sizes.located].get_nowait()
        started = time.perf_counter()
        crypto.sign(sizes.locate)
        channel.basic_publish(LOCATE, "", b"x" * sizes.locate, transient)
        await self._reply(sizes.located)
        crypto.unseal(sizes.located)
        crypto.verify(sizes.located)
        crypto.sign(sizes.create)
        crypto.seal(sizes.create)
        channel.basic_publish("", NODE_QUEUES[0], b"x" * sizes.create, transient)
        await self._reply(sizes.created)
        crypto.unseal(sizes.created)
        crypto.verify(sizes.created)
        crypto.verify(sizes.created)  # the advertisement
        crypto.sign(sizes.advertise)
        channel.basic_publish("", CHANGES, b"x" * sizes.advertise, persistent)
        await self._reply(sizes.decided)
        crypto.unseal(sizes.decided)
        crypto.verify(sizes.decided)
        crypto.verify(sizes.decided)  # the receipt
        return time.perf_counter() - started


@contextlib.contextmanager
def responders(folder: Path, scratch: Path, sizes: Sizes) -> Iterator[None]:
    """Both responders, running."""
    context = multiprocessing.get_context("spawn")
    processes = []
    try:
        for number in range(len(NODE_QUEUES)):
            ready = context.Event()
            process = context.Process(
                target=respond, args=(folder, scratch / f"bare-{number}.sqlite", sizes, number, ready), daemon=True
            )
            process.start()
            processes.append(process)
            if not ready.wait(30):
                raise RuntimeError("a bare responder did not start")
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()
