"""One broker without a network: a certificate authority, a guard that says what a test wants, and a client.

For tests of what RabbitMQ itself does with our configuration. `tests/live.py` has whole networks.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pika
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tdn.local.broker import VIRTUAL_HOST, BrokerPorts, BrokerTls, PrivateBroker
from tdn.local.processes import free_ports

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
class StandInGuard:
    """A guard that says yes to whoever shows a certificate of its root, but for what is refused, and remembers what it was asked."""

    port: int
    tls: BrokerTls
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    #: Names of exchanges and queues that nobody may use.
    refused: set[str] = field(default_factory=set)
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
        if fields.get("name") in self.refused:
            return web.Response(text="deny")
        return web.Response(text="allow administrator" if question == "user" else "allow")


@dataclass
class OneBroker:
    """A broker, the guard that it asks, and who signs certificates for both and for whoever comes."""

    authority: Authority
    guard: StandInGuard
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
