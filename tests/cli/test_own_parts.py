"""A network on a PKI and a RabbitMQ that are the user's own: made by hand here, configured in tdn.toml, used by the same commands."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tdn.local.broker import BrokerPorts, BrokerTls, PrivateBroker
from tdn.local.processes import free_ports
from tdn.protocol.names import Role
from tests.live import LiveNetwork, Ran, processes_of, run, wait_for

pytestmark = pytest.mark.broker


class Pki:
    """Somebody's PKI: a root, a policy authority under it, an issuing authority under that. Knows nothing of roles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        root_key = ec.generate_private_key(ec.SECP256R1())
        root = _authority("Corporate Root", root_key, None, root_key, 2)
        policy_key = ec.generate_private_key(ec.SECP256R1())
        policy = _authority("Corporate Policy", policy_key, root, root_key, 1)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issuer = _authority("Corporate Issuing", self._key, policy, policy_key, 0)
        self.roots = folder / "roots.pem"
        self.roots.write_bytes(_pem(root))
        self._chain = _pem(self._issuer) + _pem(policy)

    def sign(self, request_path: Path, *, server: bool = False) -> Path:
        """What a PKI does with a request: its subject and names, its own extensions."""
        request = x509.load_pem_x509_csr(request_path.read_bytes())
        assert request.is_signature_valid
        names = list(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if server:
            names += [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        now = datetime.now(UTC)
        leaf = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self._issuer.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=90))
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = request_path.with_name("signed.pem")
        path.write_bytes(_pem(leaf) + self._chain)
        return path


def _authority(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate | None, signer: ec.EllipticCurvePrivateKey, below: int
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=900))
        .add_extension(x509.BasicConstraints(True, below), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


@pytest.fixture
def users_broker(home: Path, tmp_path: Path) -> Iterator[PrivateBroker]:
    """A RabbitMQ that the user runs, from the templates of broker_config/, with a certificate of the user's PKI."""
    guard_port = free_ports(1)[0]
    tls = BrokerTls(tmp_path / "pki" / "roots.pem", home / "broker" / "cert.pem", home / "broker" / "key.pem")
    broker = PrivateBroker(tmp_path / "users-rabbitmq", BrokerPorts(*free_ports(4)), tls, f"https://127.0.0.1:{guard_port}")
    yield broker
    broker.kill_hard()
    assert processes_of(broker.folder) == []


@pytest.mark.timeout(300)  # some thirty commands, of a second or more each where cores are shared
def test_own_pki_and_own_broker(home: Path, users_broker: PrivateBroker, tmp_path: Path) -> None:
    """T19: the user's roots and intermediates, the user's RabbitMQ; the network lives beside them and stops without them."""
    pki = Pki(tmp_path / "pki")
    ports = users_broker.ports
    (home / "tdn.toml").write_text(
        f"""
[broker]
mode = "own"
hosts = ["127.0.0.1:{ports.amqps}"]
management_url = "https://127.0.0.1:{ports.management}"
guard_listen = "127.0.0.1:{users_broker.guard_url.rpartition(":")[2]}"

[pki]
mode = "own"
roots = "{pki.roots}"
"""
    )

    def tdn(*words: str | Path) -> Ran:
        return run("tdn", "--home", home, "--json", *words)

    def entity(name: str, *words: str) -> Ran:
        return run("entity", "--home", home, "--as", name, "--json", *words)

    def enrol(role: Role, name: str, *, institution: str = "Corp") -> None:
        request = tdn("ca", "request", name, "--role", str(role), "--institution", institution)
        assert request.code == 0, request.err
        signed = pki.sign(Path(request.one["request"]), server=role in (Role.GUARD, Role.BROKER))
        installed = tdn("ca", "install", name, signed, "--role", str(role))
        assert installed.code == 0, installed.err

    # What is missing is named, with the command that makes it.
    early = tdn("up")
    assert (early.code, early.error["error"]) == (2, "usage")
    assert "tdn ca request operator --role operator" in early.error["message"]
    issue = tdn("ca", "issue", "alice")
    assert (issue.code, "ca request" in issue.error["message"]) == (2, True)

    enrol(Role.OPERATOR, "operator")
    enrol(Role.BROKER, "broker")
    enrol(Role.GUARD, "g1")
    for node in ("n1", "n2"):
        enrol(Role.NODE, node, institution="Nodes Inc")
    users_broker.start()
    live = LiveNetwork(home)
    try:
        up = tdn("up")
        assert up.code == 0, up.err
        assert sorted((line["role"], line["id"]) for line in up.lines) == [("guard", "g1"), ("node", "n1"), ("node", "n2")]
        for name in ("alice", "bob"):
            enrol(Role.ENTITY, name)
        located = entity("alice", "locate")
        assert {(line["node"], line["institution"]) for line in located.lines} == {("n1", "Nodes Inc"), ("n2", "Nodes Inc")}
        topic = entity("alice", "create", "--path", "own/pki").one
        assert topic["institution"] == "Corp"
        wait_for(lambda: [line["uuid"] for line in entity("bob", "discover", "--string", "own/pki").lines] == [topic["uuid"]])
        assert run("tdn", "--home", home, "verify", "-", "--trust", pki.roots, stdin=topic["advertisement"]).code == 0

        # A stranger of the same PKI with no name of ours, and one whose name is another key's.
        revoked = tdn("ca", "revoke", "bob")
        assert revoked.code == 0, revoked.err
        assert entity("bob", "locate").code == 4
        assert entity("alice", "show", topic["uuid"]).code == 0

        assert tdn("down").code == 0
        assert users_broker.alive(), "the broker is the user's"
        left = [
            pid
            for pid in processes_of(home)
            if str(users_broker.folder).encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        ]
        assert left == []
    finally:
        for role in (Role.NODE, Role.GUARD):
            for name in live.home.ids(role):
                live.network.process(role, name).kill_hard()
