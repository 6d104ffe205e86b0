"""The guard alone: decisions a second with few and with a million grants (`filled_grants`), and what it takes to hold them.

- Its decision by itself: `may_use`, in a process of its own, on the store.
- A whole guard: `tdn guard` on that store, asked over HTTPS with a broker's certificate, on as many connections as RabbitMQ keeps open. It is
  sure, since its broker runs; it remembers whom it allowed what, and writes its audit log.
- Beside them, bare: an aiohttp server that answers the same requests with a constant, and one look into the table by its primary key.

*Busy*: the same 1,000 questions again and again, as of publishers who rotate over more topics than a channel remembers. *Any*: questions
about pairs all over the store. In the small one they repeat soon; in the large one hardly any does, so that nothing that was read before
helps, and each is one more that the guard remembers.

`TDN_BENCH_GRANT_TOPICS` and `TDN_BENCH_GRANTS` set the large size; `TDN_BENCH_KEEP` names a folder where filled networks are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import re
import shutil
import sqlite3
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from bench.figures import percentile, print_table
from bench.filled_grants import KINDS, Question, Size, fill, lookup_keys
from bench.filled_trees import kept_in
from tdn.guard.audit import AUDIT_FILE
from tdn.guard.decisions import Knowledge, may_use
from tdn.guard.memory import MEMORY_FILE
from tdn.local.broker import VIRTUAL_HOST
from tdn.local.home import Home
from tdn.local.network import BROKER, GUARD, Network
from tdn.local.processes import free_ports
from tdn.protocol.names import Role
from tdn.store.search import Reader
from tdn.trust import credentials

_QUICK = bool(os.environ.get("TDN_BENCH_QUICK"))
SMALL = Size(1_000, 1_000)
LARGE = Size(
    int(os.environ.get("TDN_BENCH_GRANT_TOPICS", "2000" if _QUICK else "100000")),
    int(os.environ.get("TDN_BENCH_GRANTS", "10000" if _QUICK else "1000000")),
)
GOAL = 1.5
#: Each has its turn so often, with so many questions: of the decision by itself, and over HTTPS.
_ROUNDS = 2 if _QUICK else 10
_PURE = 800 if _QUICK else 8_000
_ASKED = 400 if _QUICK else 4_000
#: Connections to the guard: RabbitMQ's HTTP client keeps some of them open.
_CONNECTIONS = 8
_BUSY_QUESTIONS = 1_000
BUSY, ANY = MODES = ("busy", "any")

_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)


def run(folder: Path) -> None:
    stages = [_Stage(kept_in(folder) / f"grants-{size.topics}-{size.grants}", size) for size in (SMALL, LARGE)]
    for stage in stages:
        stage.prepare()
    _decide(stages)
    for stage in stages:
        stage.network.up()
    try:
        _ask(stages)
    finally:
        for stage in stages:
            stage.network.down()


class _Stage:
    """A network whose guard has so many topics and grants in its store."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.size = size
        self.home = Home(folder)
        self.network = Network(self.home)
        self.store = self.home.credentials(Role.GUARD, GUARD) / "store.sqlite"

    def __str__(self) -> str:
        return f"{self.size.topics} topics, {self.size.grants} grants"

    def prepare(self) -> None:
        done = self.home.folder / "filled"
        if done.exists():
            # As a guard that was never asked: what it remembers of an earlier time would be counted with what it takes.
            for name in (AUDIT_FILE, MEMORY_FILE):
                for leftover in self.store.parent.glob(f"{name}*"):
                    leftover.unlink()
            return
        shutil.rmtree(self.home.folder, ignore_errors=True)
        self.network.up(nodes=1)
        like = credentials.load(self.network.operator.issue(Role.ENTITY, "bench-like")).identity
        self.network.down()
        started = time.perf_counter()
        facts = fill(self.store, self.size, like)
        print(f"filled a guard's store with {self}: {facts} facts in {time.perf_counter() - started:.0f} s", flush=True)
        done.write_text("", "utf-8")

    @property
    def megabytes(self) -> float:
        return sum(path.stat().st_size for path in self.store.parent.glob("store.sqlite*")) / 1e6


@dataclass(slots=True)
class _Times:
    """Seconds of questions, by what they rest on, and of all of them together."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    elapsed: float = 0.0

    def add(self, kinds: Sequence[str], seconds: Sequence[float], elapsed: float) -> None:
        for kind, value in zip(kinds, seconds, strict=True):
            self.seconds[kind].append(value)
        self.elapsed += elapsed

    @property
    def all(self) -> list[float]:
        return [value for values in self.seconds.values() for value in values]

    @property
    def rate(self) -> float:
        return len(self.all) / self.elapsed

    def row(self) -> tuple[float, float, float]:
        return self.rate, percentile(self.all, 0.5) * 1e6, percentile(self.all, 0.99) * 1e6


def _questions(size: Size, mode: str, number: int, count: int) -> list[Question]:
    """Those of a round; of the first, which is not counted, each busy one once."""
    draw = random.Random(f"{mode} {number}")
    if mode == ANY:
        return size.questions(draw, count)
    known = size.questions(random.Random(0), _BUSY_QUESTIONS)
    return known if number == 0 else [draw.choice(known) for _ in range(count)]


# --- the decision by itself -----------------------------------------------------------------------------------------------------------


def _decide(stages: Sequence[_Stage]) -> None:
    times = {(stage.size, mode): _Times() for stage in stages for mode in MODES}
    looks: dict[Size, float] = {stage.size: 0.0 for stage in stages}
    with contextlib.ExitStack() as stack:
        workers = {stage.size: stack.enter_context(_worker(_decider, stage.store, stage.size)) for stage in stages}
        opened = {size: worker.recv() for size, worker in workers.items()}
        memory: dict[Size, list[float]] = {size: [] for size in workers}

        def ask(size: Size, what: str, number: int) -> Any:
            workers[size].send((what, number))
            return workers[size].recv()

        for mode in ("", *MODES):
            for number in range(_ROUNDS + 1 if mode else 0):
                for size in workers:
                    answer = ask(size, mode, number)
                    if number > 0:
                        times[size, mode].add(*answer)
                        looks[size] += ask(size, "look", number) / _ROUNDS / len(MODES)
            for size in workers:
                memory[size].append(ask(size, "memory", 0))
    _print_decisions(stages, times, looks)
    _print_held(stages, opened, memory)


@contextlib.contextmanager
def _worker(target: Any, *args: Any) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*args, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _decider(store: Path, size: Size, pipe: Pipe) -> None:
    started = time.perf_counter()
    reader = Reader(store, cached=True)
    know = Knowledge(reader, VIRTUAL_HOST, {}, True, datetime.now(UTC))
    first = size.questions(random.Random(-1), 1)[0]
    _ask_one(know, first)
    pipe.send(time.perf_counter() - started)
    while True:
        what, number = pipe.recv()
        if what == "memory":
            pipe.send(_resident_megabytes())
        elif what == "look":
            pipe.send(_look(store, size, random.Random(number)))
        else:
            questions = _questions(size, what, number, _PURE)
            seconds = []
            began = time.perf_counter()
            for question in questions:
                started = time.perf_counter()
                _ask_one(know, question)
                seconds.append(time.perf_counter() - started)
            pipe.send(([question.kind for question in questions], seconds, time.perf_counter() - began))


def _ask_one(know: Knowledge, question: Question) -> None:
    decision = may_use(know, question.login, VIRTUAL_HOST, "exchange", question.topic, "write")
    if decision.allowed is not question.allowed:
        raise RuntimeError(f"wrongly decided: {question} {decision.because}")


def _look(store: Path, size: Size, draw: random.Random) -> float:
    """Bare looks into the table a second."""
    keys = list(lookup_keys(size, draw, _PURE))
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, isolation_level=None)) as db:
        started = time.perf_counter()
        for key in keys:
            if db.execute("SELECT value FROM facts WHERE space = ? AND key = ?", key).fetchone() is None:
                raise RuntimeError(f"{key} is not in the store")
        return len(keys) / (time.perf_counter() - started)


def _print_decisions(stages: Sequence[_Stage], times: dict[tuple[Size, str], _Times], looks: dict[Size, float]) -> None:
    rows: list[tuple[object, ...]] = []
    for mode in MODES:
        few = times[stages[0].size, mode]
        for stage in stages:
            one = times[stage.size, mode]
            rate, p50, p99 = one.row()
            growth = percentile(one.all, 0.99) / percentile(few.all, 0.99)
            rows.append((mode, str(stage), round(rate), p50, p99, few.rate / rate, growth, looks[stage.size] / rate))
    titles = ("questions", "", "decisions/s", "p50 us", "p99 us", "growth", "of p99", "bare looks : decisions")
    print_table("The decision by itself, one process; growth in time for one", titles, rows)
    rows = [("a bare look by primary key", *(f"{looks[stage.size]:.0f}/s" for stage in stages), "", "")]
    for kind in KINDS:
        halves, most = (
            [percentile(times[stage.size, ANY].seconds[kind], share) * 1e6 for stage in stages] for share in (0.5, 0.99)
        )
        both = [f"{one:.0f}, {other:.0f}" for one, other in zip(halves, most, strict=True)]
        rows.append((kind, *both, halves[1] / halves[0], most[1] / most[0]))
    headings = ("", *map(str, stages), "p50 growth", "p99 growth")
    print_table("By what the right rests on, any questions: p50 and p99 microseconds", headings, rows)


def _print_held(stages: Sequence[_Stage], opened: dict[Size, float], memory: dict[Size, list[float]]) -> None:
    """Its memory: at first, after busy questions, after any."""
    rows = [(str(stage), stage.megabytes, opened[stage.size] * 1000, *_grown(stages, memory, stage)) for stage in stages]
    print_table("What that process holds", ("", "on disk MB", "open and decide once ms", *_HELD), rows)


#: Headings of resident memory, as it is read in turn.
_HELD = ("memory at first MB", "after busy MB", "growth", "after any MB", "growth")


def _grown(stages: Sequence[_Stage], memory: dict[Size, list[float]], stage: _Stage) -> tuple[float, ...]:
    _, few_busy, few_any = memory[stages[0].size]
    first, busy, of_any = memory[stage.size]
    return first, busy, busy / few_busy, of_any, of_any / few_any


def _resident_megabytes(pid: int | str = "self") -> float:
    match = re.search(r"VmRSS:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    return int(match[1]) / 1e3 if match else 0.0


# --- a whole guard, over HTTPS --------------------------------------------------------------------------------------------------------


def _ask(stages: Sequence[_Stage]) -> None:
    seconds = {}
    for stage in stages:
        started = time.perf_counter()
        stage.network.restart(Role.GUARD, GUARD)
        seconds[stage.size] = time.perf_counter() - started
    memory = {stage.size: [_guard_megabytes(stage)] for stage in stages}
    times = {(stage.size, mode): _Times() for stage in stages for mode in MODES}
    bare = _Times()
    port = free_ports(1)[0]
    broker = stages[0].home.credentials(Role.BROKER, BROKER)
    with _worker(_constant, stages[0].home.credentials(Role.GUARD, GUARD), port) as worker:
        worker.recv()
        for mode in MODES:
            for number in range(_ROUNDS + 1):
                for stage in stages:
                    asked_by, at = stage.home.credentials(Role.BROKER, BROKER), stage.home.ports()["guard"]
                    questions = _questions(stage.size, mode, number, _ASKED)
                    answer = asyncio.run(_ask_all(asked_by, at, questions, None))
                    if number > 0:
                        times[stage.size, mode].add(*answer)
                if number > 0:
                    questions = _questions(stages[0].size, ANY, number, _ASKED)
                    bare.add(*asyncio.run(_ask_all(broker, port, questions, b"allow")))
            for stage in stages:
                memory[stage.size].append(_guard_megabytes(stage))
    _print_guard(stages, times, bare)
    rows = [(str(stage), seconds[stage.size], *_grown(stages, memory, stage)) for stage in stages]
    print_table("What that guard holds", ("", "restart s", *_HELD), rows)


def _print_guard(stages: Sequence[_Stage], times: dict[tuple[Size, str], _Times], bare: _Times) -> None:
    rows: list[tuple[object, ...]] = []
    for mode in MODES:
        few = times[stages[0].size, mode]
        for stage in stages:
            one = times[stage.size, mode]
            rate, p50, p99 = one.row()
            growth = percentile(one.all, 0.99) / percentile(few.all, 0.99)
            rows.append((mode, str(stage), round(rate), p50 / 1e3, p99 / 1e3, few.rate / one.rate, growth, bare.rate / rate))
    rate, p50, p99 = bare.row()
    rows.append(("", "bare: a constant", round(rate), p50 / 1e3, p99 / 1e3, "", "", 1.0))
    headings = ("questions", "", "decisions/s", "p50 ms", "p99 ms", "growth", "of p99", "bare : ours")
    title = f"A guard asked over HTTPS on {_CONNECTIONS} connections at once (goal: growth at most {GOAL})"
    print_table(title, headings, rows)


def _guard_megabytes(stage: _Stage) -> float:
    return _resident_megabytes(stage.network.process(Role.GUARD, GUARD).pid or "self")


def _constant(folder: Path, port: int, pipe: Pipe) -> None:
    """A server with the guard's certificate that says yes to everybody whom TLS lets in."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text="allow")

    async def serve() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "trust.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
        app = web.Application()
        app.router.add_post("/auth/{question}", answer)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=300)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        pipe.send(None)
        await asyncio.Event().wait()

    asyncio.run(serve())


class _Asker(asyncio.Protocol):
    """One connection: the next request when the last was answered. Bytes only, so that asking costs less than answering."""

    def __init__(self, requests: Iterator[tuple[int, bytes, bytes]], seconds: list[float]) -> None:
        self._requests = requests
        self._seconds = seconds
        self._received = b""
        self._transport: Any = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self) -> None:
        following = next(self._requests, None)
        if following is None:
            self.done.set_result(None)
            return
        self._number, request, self._expected = following
        self._asked = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, ends, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not ends or length is None or len(body) < int(length[1]):
            return
        self._seconds[self._number] = time.perf_counter() - self._asked
        self._received = b""
        if body != self._expected:
            self._fail(f"answered {body!r}, not {self._expected!r}")
            return
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended: {exc}")

    def _fail(self, what: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(what))


async def _ask_all(
    folder: Path, port: int, questions: Sequence[Question], always: bytes | None
) -> tuple[list[str], list[float], float]:
    """Kinds, seconds of each, and of all. With the certificate of a broker."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "trust.pem"))
    context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    seconds = [0.0] * len(questions)
    requests = iter(
        [
            (number, _request(question), always or (b"allow" if question.allowed else b"deny"))
            for number, question in enumerate(questions)
        ]
    )
    loop = asyncio.get_running_loop()
    askers = [
        (await loop.create_connection(lambda: _Asker(requests, seconds), "127.0.0.1", port, ssl=context))[1]
        for _ in range(_CONNECTIONS)
    ]
    started = time.perf_counter()
    for asker in askers:
        asker.ask()
    await asyncio.gather(*(asker.done for asker in askers))
    elapsed = time.perf_counter() - started
    for asker in askers:
        asker._transport.close()
    return [question.kind for question in questions], seconds, elapsed


def _request(question: Question) -> bytes:
    """As RabbitMQ's HTTP backend asks."""
    fields = {"username": question.login, "vhost": VIRTUAL_HOST, "resource": "exchange", "name": question.topic}
    body = urlencode({**fields, "permission": "write", "tags": ""}).encode()
    lines = ["POST /auth/resource HTTP/1.1", "host: 127.0.0.1", "connection: keep-alive"]
    lines += ["content-type: application/x-www-form-urlencoded", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
