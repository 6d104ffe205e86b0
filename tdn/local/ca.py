"""The embedded certificate authority: a P-256 root, one intermediate for nodes and one for entities, and what they issued.

Small on purpose: an operator with a PKI of their own has it sign the requests of `tdn ca request` instead. Every certificate that was
issued stands in `issued.jsonl`, so that revoking a name can name its keys.
"""

from __future__ import annotations

import ipaddress
import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tdn.errors import UsageError
from tdn.protocol.names import Name, Role, check_id
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.trust.certificates import key_hash
from tdn.trust.signing import digest

_ROOT_LIFE = timedelta(days=7300)
_INTERMEDIATE_LIFE = timedelta(days=3650)
#: Default life of a leaf. Short enough that rotation is practised, long enough to be no chore.
LEAF_LIFE = timedelta(days=365)
#: Certificates of authorities begin a little earlier, for machines whose clock is behind.
_BACKDATE = timedelta(hours=1)

#: A key whose certificate is still being made elsewhere.
REQUESTED_KEY = "requested-key.pem"

_SERVERS = frozenset({Role.BROKER, Role.GUARD})


@dataclass(frozen=True, slots=True)
class Issued:
    principal: str
    key_hash: str
    thumbprint: str
    not_before: str
    not_after: str


class CertificateAuthority:
    """One folder with three keys. `create` makes it; opening it again continues it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        return (self.folder / "entities.pem").exists()

    def create(self, now: datetime | None = None) -> None:
        now = now or datetime.now(UTC)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        root_key = ec.generate_private_key(ec.SECP256R1())
        root = _authority("TDN root", None, root_key, root_key, now, _ROOT_LIFE, None)
        write_private(self.folder / "root.key", _pem_key(root_key))
        _write(self.folder / "root.pem", _pem(root))
        for name in ("nodes", "entities"):
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _authority(f"TDN {name}", root.subject, key, root_key, now, _INTERMEDIATE_LIFE, f"tdn:ca:{name}")
            write_private(self.folder / f"{name}.key", _pem_key(key))
            _write(self.folder / f"{name}.pem", _pem(certificate))

    def roots_pem(self) -> bytes:
        return (self.folder / "root.pem").read_bytes()

    def issue(
        self,
        role: Role,
        name: str,
        folder: Path,
        *,
        institution: str = "local",
        lifetime: timedelta = LEAF_LIFE,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
    ) -> Issued:
        """A new key and certificate in `folder`. For a name that has one already, the new one supersedes it."""
        check_id(name)
        if not institution or len(institution) > 64 or not institution.isprintable():
            raise UsageError("an institution is 1 to 64 printable characters")
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign_leaf(role, name, key.public_key(), institution, lifetime, hosts)
        issuer = (self.folder / f"{_authority_for(role)}.pem").read_bytes()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The key first, under another name: a crash between the two leaves the old pair whole.
        write_private(folder / "key.pem.new", _pem_key(key))
        _write(folder / "cert.pem.new", _pem(certificate) + issuer)
        os.replace(folder / "key.pem.new", folder / "key.pem")
        os.replace(folder / "cert.pem.new", folder / "cert.pem")
        _write(folder / "trust.pem", self.roots_pem())
        issued = Issued(
            principal=f"{role}:{name}",
            key_hash=key_hash(key.public_key()),
            thumbprint=digest(certificate.public_bytes(serialization.Encoding.DER)),
            not_before=format_time(certificate.not_valid_before_utc),
            not_after=format_time(certificate.not_valid_after_utc),
        )
        with open(self.folder / "issued.jsonl", "a", encoding="utf-8") as register:
            register.write(json.dumps(asdict(issued)) + "\n")
        return issued

    def issued_to(self, principal: str) -> list[Issued]:
        try:
            lines = (self.folder / "issued.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [entry for entry in (Issued(**json.loads(line)) for line in lines) if entry.principal == principal]

    def _sign_leaf(
        self, role: Role, name: str, key: ec.EllipticCurvePublicKey, institution: str, lifetime: timedelta, hosts: tuple[str, ...]
    ) -> x509.Certificate:
        issuer_name = _authority_for(role)
        issuer = x509.load_pem_x509_certificate((self.folder / f"{issuer_name}.pem").read_bytes())
        issuer_key = serialization.load_pem_private_key((self.folder / f"{issuer_name}.key").read_bytes(), None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        not_before = self._later_than_last(f"{role}:{name}")
        not_after = min(not_before + lifetime, issuer.not_valid_after_utc)
        uri = str(Name(role, name, key_hash(key)))
        alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in _SERVERS:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            alternatives += [_host_name(host) for host in hosts]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject(name, institution))
            .issuer_name(issuer.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before)
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        )
        return builder.sign(issuer_key, hashes.SHA256())

    def note_revocation(self, principal: str, until: datetime) -> None:
        """Remember that what was issued until a moment is void, so that the next certificate begins after it."""
        with open(self.folder / "revoked.jsonl", "a", encoding="utf-8") as register:
            register.write(json.dumps({"principal": principal, "until": format_time(until)}) + "\n")

    def _revoked_until(self, principal: str) -> list[datetime]:
        try:
            lines = (self.folder / "revoked.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [parse_time(entry["until"]) for entry in map(json.loads, lines) if entry["principal"] == principal]

    def _later_than_last(self, principal: str) -> datetime:
        """The present second, or the next when the last certificate began or was revoked in it: a later beginning is what supersedes."""
        moments = [parse_time(entry.not_before) for entry in self.issued_to(principal)] + self._revoked_until(principal)
        latest = max(moments, default=None)
        while latest is not None and whole_seconds(datetime.now(UTC)) <= latest:
            time.sleep(0.05)
        return whole_seconds(datetime.now(UTC))


def subject(name: str, institution: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, institution), x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]
    )


def write_request(role: Role, name: str, folder: Path, institution: str) -> Path:
    """A key and a signing request for a user's own PKI, with the name that the network expects."""
    check_id(name)
    key = ec.generate_private_key(ec.SECP256R1())
    uri = str(Name(role, name, key_hash(key.public_key())))
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(name, institution))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Under another name: until the certificate is there, the present key goes with the present certificate.
    write_private(folder / REQUESTED_KEY, _pem_key(key))
    _write(folder / "request.pem", request.public_bytes(serialization.Encoding.PEM))
    return folder / "request.pem"


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner reads, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)


def _authority_for(role: Role) -> str:
    return "entities" if role is Role.ENTITY else "nodes"


def _authority(
    name: str,
    issuer: x509.Name | None,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    now: datetime,
    life: timedelta,
    mark: str | None,
) -> x509.Certificate:
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = whole_seconds(now) - _BACKDATE
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer or own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None if mark is None else 0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if mark is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(mark)]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _key_usage(*, authority: bool) -> x509.KeyUsage:
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


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
