"""The bare parts of a change that a watcher is told: raw pika and raw SQLite, with the sizes and rows of a real one.

Counted: a confirmed append to a stream, a `synchronous=FULL` commit of the same rows into a store with the same tables, a publish and its
delivery over TLS. Beside them, for context, what else no change can do without that is signed, goes to whichever node is there and is
decided by the log: a publish to a quorum queue and its delivery, reading the record back from the stream, and the raw crypto calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from bench import bare
from bench.bare import Crypto
from tdn.store import schema

LOG, PUSHES, REQUESTS = "bench.trees.log", "bench.trees.pushes", "bench.trees.requests"
_KINDS = {LOG: "stream", PUSHES: "classic", REQUESTS: "quorum"}


@dataclass(frozen=True, slots=True)
class Rows:
    """What one change put into a node's store."""

    kind: str
    outcome: str
    head: str
    raw: bytes
    facts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of each part, one after the other."""

    append: float
    commit: float
    push: float
    request: float
    read: float
    crypto: float

    @property
    def counted(self) -> float:
        """What the goal is about."""
        return self.append + self.commit + self.push

    @property
    def whole(self) -> float:
        """All of it."""
        return self.counted + self.request + self.read + self.crypto


def read_rows(store: Path, request_kind: str, keys: tuple[tuple[str, str], ...]) -> Rows:
    """The latest record of a kind in a node's store, and its facts: those of the request, and those named by space and beginning of the key."""
    db = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        query = (
            "SELECT kind, outcome, head, raw, json_extract(outcome, '$.request') FROM records WHERE kind = ? ORDER BY seq DESC"
        )
        kind, outcome, head, raw, request = db.execute(query, (request_kind,)).fetchone()
        facts = db.execute(
            "SELECT space, key, value FROM facts WHERE space IN ('request', 'ends') AND key LIKE '%' || ?", (request,)
        ).fetchall()
        for space, start in keys:
            facts += db.execute(
                "SELECT space, key, value FROM facts WHERE space = ? AND key LIKE ? || '%' ORDER BY key DESC LIMIT 1",
                (space, start),
            ).fetchall()
        return Rows(kind, outcome, head, bytes(raw), tuple(facts))
    finally:
        db.close()


class BareWatching:
    """One after the other, in one process: what no change that is logged, kept and told can do without."""

    def __init__(self, sender: Any, receiver: Any, log: Any, store: Path, rows: Rows, *, request: int, push: int) -> None:
        self._sender = sender
        self._receiver = receiver
        self._log = log
        self._rows = rows
        self._request = b"x" * request
        self._push = b"x" * push
        self._crypto = Crypto()
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        self._confirmed: asyncio.Queue[None] = asyncio.Queue()
        self._count = 0
        self._db = sqlite3.connect(store, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "wal_autocheckpoint=8000"):
            self._db.execute(f"PRAGMA {pragma}")
        schema.migrate(self._db)

    async def open(self) -> None:
        for queue, kind in _KINDS.items():
            await bare.call(self._sender.queue_delete, queue)
            await bare.call(self._sender.queue_declare, queue, durable=True, arguments={"x-queue-type": kind})
        await bare.call(self._sender.confirm_delivery, lambda frame: self._confirmed.put_nowait(None))
        for queue in (PUSHES, REQUESTS):
            await bare.call(self._receiver.basic_consume, queue, self._arrive, auto_ack=True)
        await bare.call(self._log.basic_consume, LOG, self._arrive, arguments={"x-stream-offset": "next"})
        self._work()

    def _arrive(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._arrived.put_nowait(method.routing_key)
        if channel is self._log:
            channel.basic_ack(method.delivery_tag)

    async def close(self) -> None:
        self._db.close()
        for queue in _KINDS if self._sender.is_open else ():
            await bare.call(self._sender.queue_delete, queue)

    async def change(self) -> Parts:
        """One change; the seconds of its parts."""
        request = await self._deliver(REQUESTS, self._request, persistent=True)
        started = time.perf_counter()
        self._publish(LOG, self._rows.raw, persistent=True)
        await self._confirmed.get()
        appended = time.perf_counter()
        await self._arrived.get()
        read = time.perf_counter()
        self._commit()
        committed = time.perf_counter()
        push = await self._deliver(PUSHES, self._push, persistent=False)
        told = time.perf_counter()
        self._work()
        return Parts(
            append=appended - started,
            commit=committed - read,
            push=push,
            request=request,
            read=read - appended,
            crypto=time.perf_counter() - told,
        )

    def _work(self) -> None:
        """The entity's signature and the node's check of it; the record's, checked when it is read; the notification's, sealed and opened."""
        crypto, request, record, push = self._crypto, len(self._request), len(self._rows.raw), len(self._push)
        for size in (request, record, push):
            crypto.sign(size)
            crypto.verify(size)
        crypto.seal(push)
        crypto.unseal(push)

    async def _deliver(self, queue: str, body: bytes, *, persistent: bool) -> float:
        started = time.perf_counter()
        self._publish(queue, body, persistent=persistent)
        while await self._arrived.get() != queue:
            pass
        elapsed = time.perf_counter() - started
        # The confirm is not waited for by whoever waits for the delivery; it must only not be taken for the next one's.
        await self._confirmed.get()
        return elapsed

    def _publish(self, queue: str, body: bytes, *, persistent: bool) -> None:
        self._sender.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2 if persistent else 1))

    def _commit(self) -> None:
        self._count += 1
        rows, number = self._rows, self._count
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT INTO records VALUES (?, ?, ?, 'accepted', ?, ?, ?, NULL, NULL)",
            (number, number, rows.kind, rows.outcome, rows.head, rows.raw),
        )
        for space, key, value in rows.facts:
            self._db.execute(
                "INSERT INTO facts VALUES (?, ?, ?) ON CONFLICT (space, key) DO UPDATE SET value = excluded.value",
                (space, f"{key} {number}", value),
            )
        self._db.execute("UPDATE position SET seq = ?, offset = ?, head = ?", (number, number, rows.head))
        self._db.execute("COMMIT")


@contextlib.asynccontextmanager
async def watching(folder: Path, store: Path, rows: Rows, *, request: int, push: int) -> AsyncIterator[BareWatching]:
    """Two connections with the credentials of a node: one sends, the other receives."""
    connections = [await bare.connect(folder) for _ in range(2)]
    try:
        sender, receiver = [await bare.open_channel(connection) for connection in connections]
        log = await bare.open_channel(connections[1])
        parts = BareWatching(sender, receiver, log, store, rows, request=request, push=push)
        await parts.open()
        try:
            yield parts
        finally:
            await parts.close()
    finally:
        for connection in connections:
            if connection.is_open:
                connection.close()
