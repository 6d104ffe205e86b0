"""The network that the sample's topics belong to: authority, operator, nodes and creators, all from a seed.

Keys are derived from their holders' names, so that every process that helps makes the same certificates and nothing has to be sent
around. **Their secret is their name**: such a network is for measuring and for showing, on a broker that nobody else reaches.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time, whole_seconds
from tdn.rules.apply import RULES_VERSION, network_id
from tdn.sample import topics
from tdn.trust import envelope
from tdn.trust.certificates import TrustRoots, encode_chain, key_hash
from tdn.trust.credentials import Credentials

#: As many as `tdn up` starts when it is not told otherwise.
NODES = ("n1", "n2")
OPERATOR = "operator"

#: Authorities begin before the network and outlive it; creators' and nodes' certificates are good for all that the sample holds.
_BEFORE = timedelta(days=30)
_AUTHORITY_LIFE = timedelta(days=7300)
_LEAF_LIFE = timedelta(days=3650)
#: How long the operator's statements may be carried to the log.
_STATEMENT_LIFE = timedelta(days=3650)

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True, slots=True)
class SampleNetwork:
    """A network, as plain values that can be sent to another process. `found` makes one."""

    seed: int
    #: When its log begins.
    begin: datetime
    #: Topics made in a second. An advertisement must be applied within a day of its creation, by the log's own time, which may be the present
    #: already when a running network is filled: at twenty a second a million are made in fourteen hours.
    pace: int
    nodes: tuple[str, ...]
    genesis: bytes

    @classmethod
    def found(cls, seed: int, begin: datetime, *, pace: int = 20, nodes: tuple[str, ...] = NODES) -> SampleNetwork:
        """A new one. Its genesis is signed, and a signature is never the same twice: so is its id not, for all that its keys are."""
        begin = whole_seconds(begin)
        operator = _credentials(seed, begin, Role.OPERATOR, OPERATOR, "local")
        body = {
            "operator": encode_chain(operator.identity.chain),
            "roots": [base64.b64encode(der).decode() for der in operator.roots.ders],
            "rules": RULES_VERSION,
            "created": format_time(begin),
            "salt": hashlib.sha256(f"tdn sample {seed}".encode()).hexdigest()[:32],
        }
        genesis = envelope.write("genesis", body, operator, audience="tdn:nodes", now=begin, life=timedelta(days=1))
        return cls(seed, begin, pace, nodes, genesis)

    @property
    def id(self) -> str:
        return _id(self.genesis)

    @property
    def audience(self) -> str:
        return f"tdn:network:{self.id}"

    @property
    def operator(self) -> Credentials:
        return _credentials(self.seed, self.begin, Role.OPERATOR, OPERATOR, "local")

    def node(self, name: str) -> Credentials:
        return _credentials(self.seed, self.begin, Role.NODE, name, "local")

    def creator(self, rank: int) -> Credentials:
        """A creator of the sample (`topics.creator`), certified when first asked for."""
        who = topics.creator(rank)
        return _credentials(self.seed, self.begin, Role.ENTITY, who.id, who.institution)

    def moment(self, offset_seconds: int) -> datetime:
        """When a topic is created that comes so many seconds after the first in the sample's own time, of one topic a second."""
        return self.begin + timedelta(seconds=offset_seconds // self.pace)

    def enrolment(self, node: str) -> bytes:
        """The operator's word that a node is one."""
        body = {"chain": encode_chain(self.node(node).identity.chain)}
        return envelope.write("enrol", body, self.operator, audience=self.audience, now=self.begin, life=_STATEMENT_LIFE)

    def save(self, home: Path) -> None:
        """Make a network's home folder of it: its authority, operator, genesis and nodes, so that `tdn up` there continues this network."""
        authority = home / "ca"
        for name, one in _authorities(self.seed, self.begin).items():
            _write_private(authority / f"{name}.key", _pem_key(one.key))
            _write(authority / f"{name}.pem", _pem(one.certificate))
        _write_credentials(home / "operator", self.operator)
        _write(home / "network" / "genesis.jws", self.genesis)
        for name in self.nodes:
            _write_credentials(home / "nodes" / name, self.node(name))
            _write(home / "network" / "enrolments" / f"node-{name}.jws", self.enrolment(name))


@lru_cache(maxsize=8)
def _id(genesis: bytes) -> str:
    return network_id(genesis)


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@lru_cache(maxsize=8)
def _authorities(seed: int, begin: datetime) -> dict[str, _Authority]:
    """A root, an intermediate for nodes and one for entities, as the embedded authority makes them."""
    made: dict[str, _Authority] = {}
    for name in ("root", "nodes", "entities"):
        key = _derive_key(f"{seed} authority {name}")
        issuer = made["root"].certificate.subject if made else None
        signer = made["root"].key if made else key
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"TDN sample {name}")])
        builder = _builder(subject, issuer or subject, key, signer, begin - _BEFORE, _AUTHORITY_LIFE, authority=True)
        if made:
            mark = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"tdn:ca:{name}")])
            builder = builder.add_extension(mark, critical=False)
        made[name] = _Authority(_signed(builder, signer), key)
    return made


@lru_cache(maxsize=topics.CREATOR_COUNT + 100)
def _credentials(seed: int, begin: datetime, role: Role, name: str, institution: str) -> Credentials:
    authorities = _authorities(seed, begin)
    issuer = authorities["entities" if role is Role.ENTITY else "nodes"]
    key = _derive_key(f"{seed} {role} {name}")
    subject = x509.Name(
        [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, institution), x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]
    )
    uri = x509.UniformResourceIdentifier(str(Name(role, name, key_hash(key.public_key()))))
    builder = (
        _builder(subject, issuer.certificate.subject, key, issuer.key, begin - timedelta(days=1), _LEAF_LIFE, authority=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    )
    certificate = _signed(builder, issuer.key)
    roots = _roots(seed, begin)
    identity = roots.identify([_der(certificate), _der(issuer.certificate)], at=begin)
    return Credentials(identity, key, roots, Path("sample"))


@lru_cache(maxsize=8)
def _roots(seed: int, begin: datetime) -> TrustRoots:
    return TrustRoots([_authorities(seed, begin)["root"].certificate])


def _derive_key(label: str) -> ec.EllipticCurvePrivateKey:
    secret = int.from_bytes(hashlib.sha512(f"tdn sample key {label}".encode()).digest(), "big")
    return ec.derive_private_key(secret % (_P256_ORDER - 1) + 1, ec.SECP256R1())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    begin: datetime,
    life: timedelta,
    *,
    authority: bool,
) -> x509.CertificateBuilder:
    public = key.public_key()
    # From the key, which is from the name: the same certificate in every process.
    serial = int.from_bytes(bytes.fromhex(key_hash(public))[:16], "big") | 1
    path_length = 0 if authority and issuer != subject else None
    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(begin)
        .not_valid_after(begin + life)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # RFC 6979: the same signature each time, so that a certificate has one thumbprint whoever makes it.
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)


def _write_credentials(folder: Path, who: Credentials) -> None:
    chain = [x509.load_der_x509_certificate(der) for der in who.identity.chain]
    _write_private(folder / "key.pem", _pem_key(who.key))
    _write(folder / "cert.pem", b"".join(_pem(certificate) for certificate in chain))
    _write(folder / "trust.pem", b"".join(_pem(x509.load_der_x509_certificate(der)) for der in who.roots.ders))


def _write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(content)


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
