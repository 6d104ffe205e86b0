"""The private broker for real: who gets in, who does not, and that nothing is left when it stops."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pika
import pika.exceptions
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tdn.errors import BrokerUnavailable
from tdn.local.broker import VIRTUAL_HOST, BrokerPorts, BrokerTls, PrivateBroker, find_rabbitmq
from tdn.local.processes import free_ports

pytestmark = pytest.mark.broker

ALICE = "tdn:entity:alice:0123456789abcdef"


class Authority:
    """A root and an intermediate, as the network's own CA has them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        root_key = ec.generate_private_key(ec.SECP256R1())
        root = _certificate(f"{name} root", root_key, f"{name} root", root_key, path_length=1)
        self._name = f"{name} intermediate"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _certificate(self._name, self._key, f"{name} root", root_key, path_length=0)
        self.root = self.folder / "root.pem"
        self.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *alternatives: x509.GeneralName) -> BrokerTls:
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _certificate(name, key, self._name, self._key, alternatives=alternatives)
        chain_path, key_path = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        chain_path.write_bytes(b"".join(c.public_bytes(serialization.Encoding.PEM) for c in (leaf, self._certificate)))
        key_path.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return BrokerTls(self.root, chain_path, key_path)

    def entity(self, uri: str = ALICE) -> BrokerTls:
        return self.issue(uri.split(":")[2], x509.UniformResourceIdentifier(uri))

    def server(self, name: str, host: str = "localhost") -> BrokerTls:
        return self.issue(
            name,
            x509.UniformResourceIdentifier(f"tdn:{name}:{name}:0"),
            x509.DNSName(host),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        )


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    path_length: int | None = None,
    alternatives: tuple[x509.GeneralName, ...] = (),
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(path_length is not None, path_length), critical=True)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


@dataclass
class AllowAll:
    """A guard that says yes to whoever shows a certificate of its root, and remembers what it was asked."""

    port: int
    tls: BrokerTls
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _stopping: asyncio.Event | None = None

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        if self._loop is not None and self._stopping is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10)
            self._loop = None

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.tls.root))
        context.load_cert_chain(self.tls.chain, self.tls.key)
        context.verify_mode = ssl.CERT_REQUIRED
        application = web.Application()
        application.router.add_post("/auth/{question}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=context, reuse_address=True).start()
        ready.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        fields = {key: str(value) for key, value in (await request.post()).items()}
        question = request.match_info["question"]
        assert request.transport is not None
        self.asked.append((question, fields))
        self.peers.append(request.transport.get_extra_info("peername")[1])
        subject = request.transport.get_extra_info("peercert")["subject"]
        self.clients.append(subject[0][0][1])
        return web.Response(text="allow administrator" if question == "user" else "allow")


@dataclass
class Network:
    authority: Authority
    guard: AllowAll
    broker: PrivateBroker


def make_broker(folder: Path, authority: Authority, guard_port: int) -> PrivateBroker:
    broker = PrivateBroker(
        folder,
        BrokerPorts(*free_ports(4)),
        authority.server("broker"),
        f"https://127.0.0.1:{guard_port}",
    )
    broker.write_configuration()
    return broker


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    assert find_rabbitmq() is not None, "RabbitMQ is not installed; run `make setup`"
    # A blank in the path: homes have them.
    folder = tmp_path_factory.mktemp("private broker")
    authority = Authority(folder, "local")
    guard = AllowAll(free_ports(1)[0], authority.server("guard"))
    broker = make_broker(folder / "broker", authority, guard.port)
    # In this order: the guard reads the log from the broker, so the broker has to come up without it.
    broker.start()
    guard.start()
    yield Network(authority, guard, broker)
    # Not `stop`, which has a test of its own and takes six seconds with the management plugin.
    broker.kill_hard()
    guard.stop()


def client_context(tls: BrokerTls, *, with_certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.root))
    if with_certificate:
        context.load_cert_chain(tls.chain, tls.key)
    return context


def connect(
    broker: PrivateBroker,
    context: ssl.SSLContext,
    credentials: object | None = None,
) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            broker.ports.amqps,
            VIRTUAL_HOST,
            credentials or pika.credentials.ExternalCredentials(),
            ssl_options=pika.SSLOptions(context, "127.0.0.1"),
            socket_timeout=5,
            stack_timeout=10,
            blocked_connection_timeout=10,
        )
    )


def processes_of(folder: Path) -> list[int]:
    """Every process that was started with this broker's folder in its environment, or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = entry.joinpath("environ").read_bytes() + entry.joinpath("cmdline").read_bytes()
                if str(folder).encode() in told and ") Z " not in entry.joinpath("stat").read_text():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def test_certificate_gets_in_and_the_guard_is_asked(network: Network) -> None:
    """The login name is the certificate's URI, and no password is ever sent."""
    network.guard.asked.clear()
    with connect(network.broker, client_context(network.authority.entity())) as connection:
        channel = connection.channel()
        channel.exchange_declare("t-1", "fanout")
        channel.confirm_delivery()
        channel.basic_publish("t-1", "", b"x")
    questions = {question for question, _ in network.guard.asked}
    assert questions >= {"user", "vhost", "resource"}
    assert all(fields["username"] == ALICE for _, fields in network.guard.asked)
    assert all("password" not in fields for _, fields in network.guard.asked)


def test_broker_and_guard_prove_themselves_to_each_other(network: Network) -> None:
    """The guard demands a client certificate and sees the broker's; connections are kept open."""
    network.guard.peers.clear()
    network.guard.clients.clear()
    with connect(network.broker, client_context(network.authority.entity())) as connection:
        for number in range(30):
            connection.channel(number + 1).exchange_declare(f"kept-{number}", "fanout", auto_delete=True)
    assert len(network.guard.peers) >= 30
    assert set(network.guard.clients) == {"broker"}
    assert len(set(network.guard.peers)) <= 3, "a TLS handshake per question would cost milliseconds each"


@pytest.mark.parametrize("flaw", ["unknown authority", "other name", "away"])
def test_without_the_true_guard_nobody_gets_in(network: Network, tmp_path: Path, flaw: str) -> None:
    """Fails closed: an impostor on the guard's port decides nothing."""
    network.guard.stop()
    stranger = Authority(tmp_path, "stranger")
    impostor = {
        # Trusts the broker, so that a refusal can only be the broker's.
        "unknown authority": BrokerTls(network.authority.root, *_files(stranger.server("guard"))),
        "other name": network.authority.server("elsewhere", "elsewhere.example"),
        "away": None,
    }[flaw]
    guard = AllowAll(network.guard.port, impostor) if impostor else None
    try:
        if guard:
            guard.start()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(network.broker, client_context(network.authority.entity()))
        assert guard is None or guard.asked == []
    finally:
        if guard:
            guard.stop()
        network.guard.start()
    connect(network.broker, client_context(network.authority.entity())).close()


def _files(tls: BrokerTls) -> tuple[Path, Path]:
    return tls.chain, tls.key


def test_no_certificate_or_a_strangers_is_refused(network: Network, tmp_path: Path) -> None:
    network.guard.asked.clear()
    stranger = Authority(tmp_path, "stranger").entity()
    ours = network.authority.entity()
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        connect(network.broker, client_context(ours, with_certificate=False))
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        connect(network.broker, client_context(BrokerTls(ours.root, stranger.chain, stranger.key)))
    assert network.guard.asked == []


def test_passwords_and_plain_tcp_are_refused(network: Network) -> None:
    network.guard.asked.clear()
    for user in ("guest", ALICE):
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(
                network.broker,
                client_context(network.authority.entity()),
                pika.PlainCredentials(user, "guest"),
            )
    assert network.guard.asked == []
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", network.broker.ports.amqps, VIRTUAL_HOST, socket_timeout=5)
        )


def test_management_needs_certificate_and_login(network: Network) -> None:
    """Loopback only, mutual TLS, and the guard is asked with a password, which AMQP logins never have."""
    network.guard.asked.clear()
    url = f"https://127.0.0.1:{network.broker.ports.management}/api"
    entity = network.authority.entity()

    def get(path: str, context: ssl.SSLContext, login: str | None) -> object:
        request = urllib.request.Request(url + path)
        if login:
            request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return json.load(response)

    with pytest.raises(OSError, match=r"(?i)certificate required|alert|reset|closed"):
        get("/vhosts", client_context(entity, with_certificate=False), "node:secret")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get("/vhosts", client_context(entity), None)
    assert network.guard.asked == []
    vhosts = get("/vhosts", client_context(entity), "node:secret")
    assert isinstance(vhosts, list)
    assert [vhost["name"] for vhost in vhosts] == [VIRTUAL_HOST]
    assert get("/users", client_context(entity), "node:secret") == [], "no guest"
    assert ("user", {"username": "node", "password": "secret"}) in network.guard.asked


def test_listens_on_loopback_only(network: Network) -> None:
    ports = network.broker.ports
    mine = {ports.amqps, ports.management, ports.dist, ports.epmd}
    listening = set()
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "00000000000000000000000001000000")):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) in mine:
                assert address == loopback, f"port {int(port, 16)} listens on {address}"
                listening.add(int(port, 16))
    assert listening == mine


def test_two_side_by_side_restart_and_stop(network: Network, tmp_path: Path) -> None:
    """A second broker of the same name; its durable queue outlives a restart; neither stop nor kill leaves
    a process."""
    second = make_broker(tmp_path / "second", network.authority, network.guard.port)
    context = client_context(network.authority.entity())
    try:
        second.start()
        assert second.pid != network.broker.pid
        assert len(processes_of(second.folder)) >= 2
        with connect(second, context) as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"still here", pika.BasicProperties(delivery_mode=2))
        with connect(network.broker, context) as connection:
            other = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                other.queue_declare("kept", passive=True)

        second.stop()
        assert not second.alive()
        assert processes_of(second.folder) == []

        # As a later command would: only the folder is known.
        again = PrivateBroker(second.folder, second.ports, second.tls, second.guard_url)
        again.start()
        assert again.pid == second.pid
        with connect(again, context) as connection:
            assert connection.channel().basic_get("kept")[2] == b"still here"
    finally:
        second.kill_hard()
    assert not second.alive()
    assert processes_of(second.folder) == []
    second.stop()
    assert network.broker.alive()


def test_failed_start_says_why_and_leaves_nothing(network: Network, tmp_path: Path) -> None:
    broker = make_broker(tmp_path / "broken", network.authority, network.guard.port)
    with (broker.folder / "rabbitmq.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(BrokerUnavailable, match="no_such_setting"):
        broker.start()
    assert processes_of(broker.folder) == []

    taken = make_broker(tmp_path / "taken", network.authority, network.guard.port)
    with (
        socket.create_server(("127.0.0.1", taken.ports.amqps)),
        pytest.raises(BrokerUnavailable, match="in use"),
    ):
        taken.start()
    assert processes_of(taken.folder) == []
