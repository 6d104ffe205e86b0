"""A running network for tests: real RabbitMQ, guard and nodes as processes of their own, and ways to look at them from outside.

Nothing in here is simulated. `RawEntity` is an entity with a valid certificate that speaks AMQP by itself, so that it can misbehave;
`compare_states` is the checker that every fault test ends with.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions

from entity_client import EntityClient
from entity_client.messaging import Message, Subscription
from tdn.bus.connection import Broker, Channel, Connection, tls_context
from tdn.errors import TdnError
from tdn.local.broker import find_rabbitmq
from tdn.local.ca import LEAF_LIFE
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol import names
from tdn.protocol.names import MANAGEMENT_USER, Name, Role
from tdn.store.view import View
from tdn.trust import credentials, envelope, sealing, signing
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tests.commands import ENTRY_POINTS, READ_AT_START, server

#: Ticks of nodes that tests start: log time, and with it expiry, is then fine enough to wait for.
TICK_SECONDS = "0.5"

_COUNT = itertools.count(1)

Condition = Callable[[], Any]


def _pause(began: float) -> float:
    """Until the next look. Where a look takes a while, as a command does, a processor has other things to do in between."""
    return min(0.5, max(0.02, 3 * (time.monotonic() - began)))


def wait_for(condition: Condition, what: str = "the condition", *, seconds: float = 20.0) -> Any:
    """Wait until a condition holds; gives its value."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(_pause(began))
        began = time.monotonic()
    return value


async def until(condition: Condition, what: str = "the condition", *, seconds: float = 20.0) -> Any:
    """The same for tests whose event loop has to go on meanwhile. The condition may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        await asyncio.sleep(_pause(began))


def processes_of(folder: Path) -> list[int]:
    """Every process that has this folder in its environment or command line, or works in it: broker, epmd, guard, nodes, and whatever they started. A
    node's search processes have neither its environment nor its words, only where it works."""
    found = []
    mark = str(folder).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                told = entry.joinpath("environ").read_bytes() + b"\0" + entry.joinpath("cmdline").read_bytes()
                works_here = entry.joinpath("cwd").readlink().is_relative_to(folder.resolve())
                if (mark in told or works_here) and ") Z " not in entry.joinpath("stat").read_text():
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and what those have started: of a node, its template and the workers that search."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, parent = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def unread(port: int) -> int:
    """Bytes that have come to a port of this machine and were not read by whoever listens there: it hangs."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            found += int(fields[4].rpartition(":")[2], 16)
    return found


def is_alive(pid: int) -> bool:
    """Whether it runs; what has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output of a `--json` command: one object per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def one(self) -> dict[str, Any]:
        assert len(self.lines) == 1, f"{self.out!r}, {self.err!r}"
        return self.lines[0]

    @property
    def error(self) -> dict[str, Any]:
        """The one error object on standard error, which is its last line."""
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        assert set(error) == {"error", "message", "detail"}
        # Another for each request: `request` gives it.
        error["detail"].pop("request", None)
        return error

    @property
    def request(self) -> str:
        """The id of the request that ended in an error."""
        return str(json.loads(self.err.splitlines()[-1])["detail"]["request"])


def run(
    command: str,
    *words: str | Path,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 100,
    installed: bool = False,
) -> Ran:
    """Run a command to its end, in a process of its own: forked from one that has imported what it needs, or the installed one, from nothing."""
    # Without these two of the caller's: a test says itself where its home is.
    inherited = {key: value for key, value in os.environ.items() if key not in ("TDN_HOME", "TDN_ENTITY")}
    environment = {**inherited, **(env or {})}
    if not installed and command in ENTRY_POINTS and not any(name.startswith(READ_AT_START) for name in env or {}):
        ended = server().run(command, [*map(str, words)], stdin=stdin, env=environment, cwd=cwd, seconds=seconds)
        return Ran(ended.code, ended.out, ended.err)
    done = subprocess.run(
        [str(Path(sys.executable).parent / command), *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        timeout=seconds,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class LiveNetwork:
    """A network that runs, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        assert find_rabbitmq() is not None, "RabbitMQ is not installed; run `make setup`"
        self.home = Home(folder)
        self.network = Network(self.home)
        self._looking: pika.BlockingConnection | None = None

    # --- life ---

    def up(self, nodes: int | None = None, brokers: int | None = None) -> None:
        self.network.up(nodes=nodes, brokers=brokers)

    def end(self) -> None:
        """End all of it, as a power cut would, and make sure that nothing is left."""
        if not self.home.exists:
            return
        searching = [pid for node in self.nodes() for pid in self.searching(node)]
        for role in (Role.NODE, Role.GUARD):
            for name in self.home.ids(role):
                self.network.process(role, name).kill_hard()
        wait_for(lambda: not any(map(is_alive, searching)), "the searching processes to end with their nodes")
        self.network.cluster.kill_hard()
        left = processes_of(self.home.folder)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes of {self.home} were left: {left}"

    def kill(self, node: str) -> None:
        """`kill -9` of a node, with all that it has started, as a power cut does."""
        self.network.process(Role.NODE, node).kill_hard()

    def kill_alone(self, node: str) -> None:
        """`kill -9` of a node's own process, as the kernel does when memory runs out. What searches for it must end by itself."""
        searching = self.searching(node)
        self.signal(node, signal.SIGKILL)
        wait_for(lambda: self.network.process(Role.NODE, node).pid is None, f"{node} to be gone")
        wait_for(lambda: not any(map(is_alive, searching)), f"what searched for {node} to end with it")

    def stop(self, node: str) -> None:
        self.network.process(Role.NODE, node).stop()

    def start(self, node: str) -> None:
        self.network.start_one(Role.NODE, node)

    def signal(self, node: str, number: signal.Signals) -> None:
        pid = self.network.process(Role.NODE, node).pid
        assert pid is not None
        os.kill(pid, number)

    @contextlib.contextmanager
    def paused(self, node: str) -> Iterator[None]:
        """A node that hangs (SIGSTOP) for a while; it may be killed meanwhile."""
        self.signal(node, signal.SIGSTOP)
        try:
            yield
        finally:
            if self.network.process(Role.NODE, node).pid is not None:
                self.signal(node, signal.SIGCONT)

    def nodes(self) -> list[str]:
        return self.home.ids(Role.NODE)

    def searching(self, node: str) -> list[int]:
        """The processes that search for a node: the template, and the workers that it forks."""
        pid = self.network.process(Role.NODE, node).pid
        return descendants(pid) if pid is not None else []

    def issue_nodes(self, settings: dict[str, str]) -> None:
        """Nodes with a `node.toml` of their own, before the network is started for the first time."""
        self.network.operator.found()
        for node, text in settings.items():
            self.network.operator.issue(Role.NODE, node)
            self._settings_of(node).write_text(text, "utf-8")

    def configure(self, node: str, settings: str) -> None:
        """Give a node another `node.toml`, and start it again with it."""
        self._settings_of(node).write_text(settings, "utf-8")
        self.network.restart(Role.NODE, node)

    def _settings_of(self, node: str) -> Path:
        return self.home.credentials(Role.NODE, node) / "node.toml"

    # --- who is there ---

    def entity(self, kind: str = "e", *, institution: str | None = None, lifetime: timedelta = LEAF_LIFE) -> Path:
        """Credentials of a new entity, with a name that no other test has."""
        name = f"{kind}-{next(_COUNT)}-{os.getpid()}"
        return self.network.operator.issue(Role.ENTITY, name, institution=institution, lifetime=lifetime)

    async def client(self, folder: Path | None = None, *, timeout: float = 15.0) -> EntityClient:
        return await EntityClient.connect(folder or self.entity(), timeout=timeout)

    def credentials(self, role: Role, name: str) -> Credentials:
        return credentials.load(self.home.credentials(role, name))

    def node(self, name: str) -> Identity:
        return self.credentials(Role.NODE, name).identity

    # --- looking at the broker ---

    def amqp(self, folder: Path) -> pika.BlockingConnection:
        """A plain AMQP connection with the certificate of a folder."""
        return pika.BlockingConnection(self.parameters(tls_context(credentials.load(folder))))

    def parameters(self, context: ssl.SSLContext, login: Any = None) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(
            "127.0.0.1",
            self.home.ports()["amqps"],
            "tdn",
            login or pika.credentials.ExternalCredentials(),
            ssl_options=pika.SSLOptions(context, "127.0.0.1"),
            socket_timeout=5,
            stack_timeout=10,
            blocked_connection_timeout=10,
            # A test that waits elsewhere does not serve its plain connections meanwhile.
            heartbeat=0,
        )

    def as_node(self, node: str = "n1") -> pika.BlockingConnection:
        return self.amqp(self.home.credentials(Role.NODE, node))

    def waiting(self, queue: str) -> int:
        """Messages in a queue that nobody has taken."""
        try:
            return self._depth(queue)
        except (pika.exceptions.AMQPError, OSError):
            # The connection that we keep for looking was lost with its broker.
            self._looking = None
            return self._depth(queue)

    def _depth(self, queue: str) -> int:
        if self._looking is None or not self._looking.is_open:
            self._looking = self.as_node()
        channel = self._looking.channel()
        try:
            return int(channel.queue_declare(queue, passive=True).method.message_count)
        finally:
            if channel.is_open:
                channel.close()

    def own_queue(self, node: str, kind: str = "node") -> str:
        """The name of a node's own queue, as it is now; or of the one where it hears of the guards."""
        begin = f"tdn.{kind}.{node}."
        listed = self.manage("GET", "/queues/tdn?columns=name")
        (name,) = (queue["name"] for queue in listed if queue["name"].startswith(begin))
        return str(name)

    def unanswered(self, node: str) -> int:
        """Messages in a node's own queue. Nobody else may look into it; the broker counts every few seconds."""
        return int(self.manage("GET", f"/queues/tdn/{self.own_queue(node)}").get("messages", 0))

    def manage(self, method: str, path: str, broker: int = 0) -> Any:
        """A broker's management API, the first one's unless another is named, with the operator's login."""
        request = urllib.request.Request(f"{self.home.settings().management_urls[broker]}/api{path}", method=method)
        login = f"{MANAGEMENT_USER}:{self.home.management_password()}"
        request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
        context = tls_context(self.credentials(Role.GUARD, "g1"))
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            body = response.read()
        return json.loads(body) if body else None

    def cut(self, name: Name) -> None:
        """Close every connection of a login, as the broker does to a peer that misses its heartbeats."""
        self.manage("DELETE", f"/connections/username/{quote(str(name), safe='')}")

    # --- looking at the nodes ---

    def counts(self, what: str, *nodes: str) -> int:
        """How often the nodes say that something happened."""
        return sum(self.home.reported(f"node-{node}").get("counts", {}).get(what, 0) for node in nodes or self.nodes())

    def ready(self) -> bool:
        return all(entry["alive"] and entry.get("ready", True) for entry in self.network.status())

    def copy_store(self, node: str, to: Path) -> Path:
        """A consistent copy of a node's store, taken while the node goes on."""
        to.parent.mkdir(parents=True, exist_ok=True)
        source = sqlite3.connect(f"file:{self.home.credentials(Role.NODE, node) / 'store.sqlite'}?mode=ro", uri=True)
        target = sqlite3.connect(to)
        with contextlib.closing(source), contextlib.closing(target):
            source.backup(target)
        return to

    def records(self, node: str = "n1", where: str = "1 = 1", *values: Any) -> list[dict[str, Any]]:
        """Records of the log as a node has them: seq, kind, status, outcome."""
        path = self.home.credentials(Role.NODE, node) / "store.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            rows = store.execute(f"SELECT seq, kind, status, outcome FROM records WHERE {where} ORDER BY seq", values)
            return [{"seq": seq, "kind": kind, "status": status, **json.loads(outcome)} for seq, kind, status, outcome in rows]

    def records_about(self, uuid: str, node: str = "n1") -> list[dict[str, Any]]:
        """Every record that has a receipt or an error that names a topic."""
        return self.records(node, "outcome LIKE ?", f"%{uuid}%")

    def fact(self, space: str, key: str, node: str = "n1") -> dict[str, Any] | None:
        path = self.home.credentials(Role.NODE, node) / "store.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            row = store.execute("SELECT value FROM facts WHERE space = ? AND key = ?", (space, key)).fetchone()
        return json.loads(row[0]) if row else None


def compare_states(live: LiveNetwork, scratch: Path) -> View:
    """Every node has the same log and the same state, and so has a replay from nothing. Gives that replay.

    Nodes tick on while they are looked at, so each copy is brought to the longest one's end by the records that it lacks.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    views = {node: View(live.copy_store(node, scratch / f"{node}.sqlite")) for node in live.nodes()}
    longest = max(views.values(), key=lambda view: view.position.seq)
    log = [(offset, bytes(raw)) for offset, raw in longest._db.execute("SELECT offset, raw FROM records ORDER BY seq")]
    replayed = View(scratch / "replayed.sqlite")
    if log:
        replayed.apply_all(log)
    for node, view in views.items():
        missing = log[view.position.seq :]
        if missing:
            view.apply_all(missing)
        assert view.position == replayed.position, f"the log of {node} is another one"
        assert view.digest() == replayed.digest(), f"the state of {node} is another one"
        assert [*view._db.execute("SELECT * FROM topics ORDER BY uuid")] == [
            *replayed._db.execute("SELECT * FROM topics ORDER BY uuid")
        ], f"the topics of {node} are others"
        view.close()
    return replayed


class RawEntity:
    """An entity with a valid certificate and no manners: it writes whatever a test wants, where the broker lets it."""

    def __init__(self, live: LiveNetwork, folder: Path | None = None) -> None:
        self.live = live
        self.folder = folder or live.entity("raw")
        self.credentials = credentials.load(self.folder)
        self.connection = live.amqp(self.folder)
        self.channel = self.connection.channel()
        self._direct: list[bytes] = []
        self._replies: list[bytes] = []
        self.channel.basic_consume(names.DIRECT_REPLY, lambda *event: self._direct.append(event[3]), auto_ack=True)
        self.session: str | None = None
        self.network = f"tdn:network:{live.home.network}"

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.connection.close()

    @property
    def name(self) -> Name:
        return self.credentials.identity.name

    @property
    def queue(self) -> str:
        assert self.session is not None
        return names.reply_queue(self.name, self.session)

    def write(self, kind: str, body: dict[str, Any], *, audience: str | None = None, seconds: int = 60, **rest: Any) -> bytes:
        """A signed message, addressed to the network unless another audience is named, to be answered on our reply queue."""
        return envelope.write(
            kind,
            body,
            self.credentials,
            audience=audience or self.network,
            now=datetime.now(UTC),
            life=timedelta(seconds=seconds),
            reply=rest.pop("reply", self.session),
            **rest,
        )

    def claim(
        self, kind: str, body: Any, *, audience: str | None = None, header: dict[str, Any] | None = None, **claims: Any
    ) -> bytes:
        """A message with any claims and header at all, rightly signed. What `write` would refuse to send."""
        issued = int(time.time())
        payload = {
            "v": 1,
            "iss": str(self.name),
            "aud": audience or self.network,
            "iat": issued,
            "exp": issued + 60,
            "jti": envelope.new_id(),
            "body": body,
            **({"reply": self.session} if self.session else {}),
            **claims,
        }
        thumbprint = self.credentials.identity.thumbprint
        return self.sign(
            {"alg": "ES256", "typ": f"tdn-{kind}+jwt", "x5t#S256": thumbprint, **(header or {})}, json.dumps(payload)
        )

    def sign(self, header: dict[str, Any], payload: str) -> bytes:
        """Any text as payload, under any header."""
        signed = ".".join(signing.encode_segment(part.encode()) for part in (json.dumps(header), payload)).encode()
        return signed + b"." + signing.encode_segment(signing._ES256.sign(signed, self.credentials.key)).encode()

    def seal(self, raw: bytes, node: str) -> bytes:
        return sealing.seal(raw, self.live.node(node).public_key)

    def publish(
        self,
        key: str,
        body: bytes,
        *,
        path: str | None = names.CHANGE_PATH,
        reply_to: str | None = None,
        headers: dict[str, Any] | None = None,
        exchange: str = names.REQUESTS,
    ) -> None:
        properties = pika.BasicProperties(
            headers={**({names.PATH_HEADER: path} if path else {}), **(headers or {})}, reply_to=reply_to, delivery_mode=2
        )
        self.channel.basic_publish(exchange, key, body, properties)

    def change(self, body: bytes, **rest: Any) -> None:
        """On the path of changes: to the queue that all nodes share."""
        self.publish(names.TOPICS, body, **rest)

    def question(self, body: bytes, node: str, **rest: Any) -> None:
        """To one node."""
        self.publish(names.topics_key(node), body, path=names.QUESTION_PATH, **rest)

    def ask(self, kind: str, body: Any, node: str = "n1") -> Envelope:
        """A question to one node that no client has looked at, and its first answer."""
        self.question(self.seal(self.claim(kind, body, audience=f"node:{node}"), node), node)
        return self.reply()

    def hello(self) -> Envelope:
        """Introduce ourselves and read our reply queue from now on."""
        welcome = self.introduce()
        self.listen()
        return welcome

    def introduce(self) -> Envelope:
        """Introduce ourselves; what comes to the reply queue stays there."""
        raw = self.write("hello", {}, with_chain=True, reply=None)
        self.publish(names.NODES, raw, reply_to=names.DIRECT_REPLY)
        welcome = self.direct_reply()
        self.session = str(welcome.body["session"])
        return welcome

    def listen(self) -> None:
        self.channel.basic_consume(self.queue, lambda *event: self._replies.append(event[3]), auto_ack=True)

    def direct_reply(self) -> Envelope:
        """The next answer that came to our direct reply-to address."""
        return self.read(self._next(self._direct))

    def reply(self) -> Envelope:
        """The next answer that came to our reply queue."""
        return self.read(self._next(self._replies))

    def more_replies(self) -> int:
        """How many answers are here that no test has read."""
        self.connection.process_data_events(0.05)
        return len(self._replies) + len(self._direct)

    def read(self, message: bytes) -> Envelope:
        raw = sealing.unseal(message, self.credentials.key) if sealing.is_sealed(message) else message
        return envelope.authenticate(raw, self._node)

    def _node(self, header: signing.Header) -> Identity:
        for node in self.live.nodes():
            if (identity := self.live.node(node)).thumbprint == header.thumbprint:
                return identity
        raise AssertionError("an answer that no node signed")

    def _next(self, queue: list[bytes]) -> bytes:
        deadline = time.monotonic() + 15
        while not queue:
            assert time.monotonic() < deadline, "no answer came"
            self.connection.process_data_events(0.05)
        return queue.pop(0)


def with_key_of(raw: RawEntity, other: Path) -> RawEntity:
    """The same connection, signing as somebody else."""
    raw.credentials = replace(raw.credentials, key=credentials.load(other).key)
    return raw


# --- messages on topics ---


async def meet(
    network: LiveNetwork, connect: Callable[..., Awaitable[EntityClient]], count: int, **how: Any
) -> list[EntityClient]:
    """Clients of new entities that every node knows, so that they can be granted something."""
    clients = [await connect(network, network.entity(**how)) for _ in range(count)]
    for client in clients:
        await client.choose()
    for client in clients:
        for node in network.nodes():
            await until(partial(network.fact, "principal", client.identity.name.principal, node), f"{node} to know it")
    return clients


class Reading:
    """A subscriber at work: what it was given so far, and how it ended."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.got: list[Message] = []
        self.bodies: list[str] = []
        self._known: set[str] = set()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for message in self.subscription:
            body = message.body.decode("utf-8", "replace")
            self.got.append(message)
            self.bodies.append(body)
            self._known.add(body)

    async def has(self, *bodies: str) -> list[str]:
        """Wait for messages; gives all that came, up to now."""
        await until(lambda: self._known.issuperset(bodies) or self._task.done(), f"all of {bodies[:10]}")
        if self._task.done():
            self._task.result()
        return self.bodies

    async def error(self) -> TdnError:
        """What it ended with."""
        await until(self._task.done, "the subscriber to end")
        error = self._task.exception()
        assert isinstance(error, TdnError), error
        return error

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def reading(client: EntityClient, uuid: str, **how: Any) -> AsyncIterator[Reading]:
    """A subscription that is ready and is read. Its queue stays afterwards, as it does when a program ends."""
    async with client.subscribe(uuid, **how) as subscription:
        reader = Reading(subscription)
        try:
            yield reader
        finally:
            await reader.stop()


class Stubborn:
    """Publishes to a topic without end, over plain connections of its own: it asks no node, and what is refused it tries again. A message
    says who sent it, and a number."""

    def __init__(
        self, network: LiveNetwork, folder: Path, topic: str, prefer: Broker | None = None, only: Broker | None = None
    ) -> None:
        self.credentials = credentials.load(folder)
        self._settings = network.home.connection()
        self._brokers = self._settings.brokers if only is None else [only]
        self._topic = topic
        self._prefer = prefer
        #: When each message was sent, and when the broker confirmed it.
        self.sent: dict[str, float] = {}
        self.taken: dict[str, float] = {}
        self.refusals: list[TdnError] = []
        self.connections = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                connection = await Connection.open(
                    self._brokers, self.credentials, vhost=self._settings.vhost, prefer=self._prefer
                )
                self.connections += 1
                try:
                    while True:
                        # A refusal closes the channel, not the connection.
                        await self._publish(await connection.channel(confirms=True))
                finally:
                    await connection.close()
            except TdnError as error:
                self.refusals.append(error)
                await asyncio.sleep(0.02)

    async def _publish(self, channel: Channel) -> None:
        login = str(self.credentials.identity.name)
        try:
            while True:
                text = f"{self.credentials.identity.name.id} {len(self.sent)}"
                self.sent[text] = time.monotonic()
                await channel.publish(self._topic, "", text.encode(), persistent=True, message_id=text, login=login)
                self.taken[text] = time.monotonic()
                # Some hundred a second.
                await asyncio.sleep(0.002)
        except TdnError as error:
            self.refusals.append(error)
            await asyncio.sleep(0.02)

    async def publishes(self, more: int = 1) -> None:
        """Wait until so many more were taken."""
        enough = len(self.taken) + more
        await until(lambda: len(self.taken) >= enough, f"{more} more messages to be taken; {self.refusals[-1:]}")

    async def is_refused(self, more: int = 5) -> None:
        """Wait until it was refused so often once more."""
        enough = len(self.refusals) + more
        await until(lambda: len(self.refusals) >= enough, f"{more} more refusals, beside {len(self.taken)} that were taken")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def stubborn(
    network: LiveNetwork, folder: Path, topic: str, prefer: Broker | None = None, only: Broker | None = None
) -> AsyncIterator[Stubborn]:
    """One that publishes already; at one of several brokers, as long as that lets it in, or at one alone."""
    publisher = Stubborn(network, folder, topic, prefer, only)
    try:
        await publisher.publishes(20)
        yield publisher
    finally:
        await publisher.stop()
