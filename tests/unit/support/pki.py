"""Certificates for tests, made with `cryptography` directly: at any moment, with any flaw, and the same bytes each time.

Keys are derived from names and ECDSA is deterministic (RFC 6979), so vectors can be built again byte for byte and no private key is
stored. Never use such keys for anything but tests: their secret is their name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tdn.protocol.names import Name, Role
from tdn.trust.certificates import TrustRoots, key_hash
from tdn.trust.credentials import Credentials

#: The present of all tests. Verification takes the time as a parameter, so it never has to be the real one.
T0 = datetime(2027, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def derive_key(name: str, curve: ec.EllipticCurve | None = None) -> ec.EllipticCurvePrivateKey:
    """The test key of a name."""
    secret = int.from_bytes(hashlib.sha512(f"tdn test key {name}".encode()).digest())
    return ec.derive_private_key(secret % (_P256_ORDER - 1) + 1, curve or ec.SECP256R1())


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


@dataclass(frozen=True)
class Authority:
    """A certificate with its key, and what stands between it and the root."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    above: tuple[bytes, ...] = ()

    @property
    def chain(self) -> tuple[bytes, ...]:
        return (der(self.certificate), *self.above)


def certify(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer: Authority | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    not_before: datetime,
    not_after: datetime,
    authority: bool,
    path_length: int | None = None,
    usages: Sequence[x509.ObjectIdentifier] | None = (),
    alternatives: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    """One certificate. `usages` None leaves the extended key usage out."""
    serial = hashlib.sha256(
        f"{subject.rfc4514_string()} {not_before} {not_after} {usages} {alternatives} {key_hash(public_key)}".encode()
    ).digest()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(public_key)
        .serial_number(int.from_bytes(serial[:16]) | 1)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=path_length), critical=True)
        .add_extension(_key_usage(authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(alternatives)), critical=False)
    return builder.sign(issuer_key, hashes.SHA256(), ecdsa_deterministic=True)


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
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


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


@dataclass
class Pki:
    """A root with one intermediate for nodes and one for entities, as `tdn/local/ca.py` makes them."""

    seed: str
    not_before: datetime = T0 - YEAR
    not_after: datetime = T0 + 20 * YEAR
    root: Authority = field(init=False)
    nodes: Authority = field(init=False)
    entities: Authority = field(init=False)

    def __post_init__(self) -> None:
        key = derive_key(f"{self.seed} root")
        name = common_name(f"TDN root {self.seed}")
        span = {"not_before": self.not_before, "not_after": self.not_after}
        self.root = Authority(certify(name, key.public_key(), None, key, authority=True, **span), key)
        self.nodes = self.authority("nodes", mark="tdn:ca:nodes")
        self.entities = self.authority("entities", mark="tdn:ca:entities")

    @property
    def roots(self) -> TrustRoots:
        return TrustRoots([self.root.certificate])

    def authority(
        self,
        name: str,
        *,
        mark: str | None = None,
        issuer: Authority | None = None,
        path_length: int | None = 0,
        not_after: datetime | None = None,
    ) -> Authority:
        issuer = issuer or self.root
        key = derive_key(f"{self.seed} authority {name}")
        certificate = certify(
            common_name(f"TDN {name} {self.seed}"),
            key.public_key(),
            issuer,
            issuer.key,
            not_before=self.not_before,
            not_after=not_after or self.not_after,
            authority=True,
            path_length=path_length,
            alternatives=[x509.UniformResourceIdentifier(mark)] if mark else [],
        )
        above = issuer.chain if issuer is not self.root else ()
        return Authority(certificate, key, above)

    def leaf(
        self,
        role: Role,
        name: str,
        *,
        institution: str | None = "local",
        not_before: datetime = T0 - timedelta(days=1),
        not_after: datetime | None = None,
        issuer: Authority | None = None,
        generation: int = 1,
        uris: Sequence[str] | None = None,
        usages: Sequence[x509.ObjectIdentifier] | None = (ExtendedKeyUsageOID.CLIENT_AUTH,),
        authority: bool = False,
        curve: ec.EllipticCurve | None = None,
    ) -> Authority:
        """A leaf and its key. `generation` gives a principal another key."""
        issuer = issuer or (self.entities if role is Role.ENTITY else self.nodes)
        key = derive_key(f"{self.seed} {role} {name} {generation}", curve)
        subject = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]
        if institution is not None:
            subject.insert(0, x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, institution))
        if uris is None:
            uris = [str(Name(role, name, key_hash(key.public_key())))]
        certificate = certify(
            x509.Name(subject),
            key.public_key(),
            issuer,
            issuer.key,
            not_before=not_before,
            not_after=not_after or not_before + YEAR,
            authority=authority,
            usages=usages,
            alternatives=[x509.UniformResourceIdentifier(uri) for uri in uris],
        )
        return Authority(certificate, key, issuer.chain)

    def credentials(self, role: Role, name: str, **choices: object) -> Credentials:
        """A principal as the code under test wants it, followed to the root at the moment its certificate begins."""
        leaf = self.leaf(role, name, **choices)  # type: ignore[arg-type]
        identity = self.roots.identify(leaf.chain, at=leaf.certificate.not_valid_before_utc)
        return Credentials(identity, leaf.key, self.roots, Path("nowhere"))
