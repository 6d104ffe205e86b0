"""The embedded certificate authority: a P-256 root, one intermediate for nodes and one for entities, and what they issued.

Small on purpose: an operator with a PKI of their own has it sign the requests of `tdn ca request` instead. Every certificate that was
issued stands in `issued.jsonl`, so that revoking a name can name its keys. An intermediate can be replaced by a later one; its certificate
is kept in `retired/`, its key is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tdn.errors import TrustError, UsageError
from tdn.protocol.names import Name, Role, check_id
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.trust import credentials
from tdn.trust.certificates import CA_MARKS, key_hash
from tdn.trust.signing import digest

_ROOT_LIFE = timedelta(days=7300)
_INTERMEDIATE_LIFE = timedelta(days=3650)
#: Default life of a leaf. Short enough that rotation is practised, long enough to be no chore.
LEAF_LIFE = timedelta(days=365)
#: Certificates of authorities begin a little earlier, for machines whose clock is behind.
_BACKDATE = timedelta(hours=1)

#: A key whose certificate is still being made elsewhere.
REQUESTED_KEY = "requested-key.pem"

#: Who is connected to: brokers, guards by their broker, nodes at their own endpoint.
_SERVERS = frozenset({Role.BROKER, Role.GUARD, Role.NODE})

#: The intermediates, and whom each issues to.
AUTHORITIES = {name: CA_MARKS[f"tdn:ca:{name}"] for name in ("nodes", "entities")}


@dataclass(frozen=True, slots=True)
class Issued:
    principal: str
    key_hash: str
    thumbprint: str
    not_before: str
    not_after: str


@dataclass(frozen=True, slots=True)
class Rotated:
    """An intermediate that took another's place."""

    subject: str
    not_after: str
    #: Where the certificate of the former one is kept.
    retired: Path


class CertificateAuthority:
    """One folder with three keys. `create` makes it; opening it again continues it."""

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder = folder
        self._clock = clock

    @property
    def exists(self) -> bool:
        return (self.folder / "entities.pem").exists()

    def create(self, now: datetime | None = None) -> None:
        now = now or self._clock()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        root_key = ec.generate_private_key(ec.SECP256R1())
        root = _authority("TDN root", None, root_key, root_key, now, _ROOT_LIFE, None)
        write_private(self.folder / "root.key", _pem_key(root_key))
        _write(self.folder / "root.pem", _pem(root))
        for name in AUTHORITIES:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _authority(f"TDN {name}", root.subject, key, root_key, now, _INTERMEDIATE_LIFE, f"tdn:ca:{name}")
            write_private(self.folder / f"{name}.key", _pem_key(key))
            _write(self.folder / f"{name}.pem", _pem(certificate))

    def rotate(self, name: str, now: datetime | None = None) -> Rotated:
        """A new intermediate in the place of `nodes` or `entities`: what is issued from now on comes from it.

        What the former one signed stays valid, since chains travel with what was signed and the root is the same. Its key is gone: what is
        not there cannot be stolen. Interrupted at any point, either the former one or the new one serves.
        """
        now = now or self._clock()
        with self._locked():
            former, _ = self._intermediate(name)
            root, root_key = read_authority(self.folder / "root.pem"), read_authority_key(self.folder / "root.key")
            key = ec.generate_private_key(ec.SECP256R1())
            life = min(_INTERMEDIATE_LIFE, root.not_valid_after_utc - whole_seconds(now) + _BACKDATE)
            # A name of its own: two authorities of one name make the way to the root ambiguous.
            title = f"TDN {name} {key_hash(key.public_key())[:8]}"
            certificate = _authority(title, root.subject, key, root_key, now, life, f"tdn:ca:{name}")
            retired = self.folder / "retired" / f"{name}-{_key_hash_of(former)[:16]}.pem"
            retired.parent.mkdir(mode=0o700, exist_ok=True)
            _write(retired, _pem(former))
            _write(self.folder / f"{name}.pem.new", _pem(certificate))
            write_private(self.folder / f"{name}.key.new", _pem_key(key))
            for path in (retired, self.folder / f"{name}.pem.new", self.folder / f"{name}.key.new"):
                _sync(path)
            # The key decides which of the two it is; `_intermediate` fetches its certificate.
            os.replace(self.folder / f"{name}.key.new", self.folder / f"{name}.key")
            self._intermediate(name)
        return Rotated(title, format_time(certificate.not_valid_after_utc), retired)

    def _intermediate(self, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """An intermediate and its key. A rotation that was interrupted between key and certificate is finished here."""
        present, fresh = self.folder / f"{name}.pem", self.folder / f"{name}.pem.new"
        key = read_authority_key(self.folder / f"{name}.key")
        wanted = key_hash(key.public_key())
        if _key_hash_of(read_authority(present)) != wanted and fresh.exists():
            os.replace(fresh, present)
        certificate = read_authority(present)
        if _key_hash_of(certificate) != wanted:
            raise TrustError(f"{name}.key and {name}.pem in {self.folder} do not belong together; restore both from one backup")
        return certificate, key

    def roots_pem(self) -> bytes:
        read_authority(self.folder / "root.pem")
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
        keep_key: bool = False,
    ) -> Issued:
        """A certificate in `folder`, with a new key or for the one that is there. For a name that has one already, a later one."""
        check_id(name)
        if not institution or len(institution) > 64 or not institution.isprintable():
            raise UsageError("an institution is 1 to 64 printable characters")
        with self._locked():
            key = self._present_key(role, name, folder) if keep_key else ec.generate_private_key(ec.SECP256R1())
            chain = self._sign_leaf(role, name, key.public_key(), institution, lifetime, hosts)
            issued = Issued(
                principal=f"{role}:{name}",
                key_hash=key_hash(key.public_key()),
                thumbprint=digest(chain[0].public_bytes(serialization.Encoding.DER)),
                not_before=format_time(chain[0].not_valid_before_utc),
                not_after=format_time(chain[0].not_valid_after_utc),
            )
            # Before it is in anybody's hands: a revocation then names every key that there is.
            _note(self.folder / "issued.jsonl", asdict(issued))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whole under other names first. A crash between the two replacements is mended by issuing again.
        _write(folder / "cert.pem.new", b"".join(map(_pem, chain)))
        if not keep_key:
            write_private(folder / "key.pem.new", _pem_key(key))
            os.replace(folder / "key.pem.new", folder / "key.pem")
        os.replace(folder / "cert.pem.new", folder / "cert.pem")
        _write(folder / "trust.pem", self.roots_pem())
        return issued

    def _present_key(self, role: Role, name: str, folder: Path) -> ec.EllipticCurvePrivateKey:
        """The key in a folder, for another certificate. A revoked one gets none: the network would refuse it all the same."""
        if not (folder / "key.pem").exists():
            raise UsageError(f"{name} has no key here that could be kept; leave out --keep-key")
        key = credentials.read_key(folder / "key.pem", "leave out --keep-key for a new one")
        if self.was_revoked(f"{role}:{name}", key_hash(key.public_key())):
            raise UsageError(
                f"the key of {name} was revoked and no certificate makes it good; leave out --keep-key for a new one"
            )
        return key

    def issued_to(self, principal: str) -> list[Issued]:
        return [Issued(**entry) for entry in _noted(self.folder / "issued.jsonl") if entry["principal"] == principal]

    def _sign_leaf(
        self, role: Role, name: str, key: ec.EllipticCurvePublicKey, institution: str, lifetime: timedelta, hosts: tuple[str, ...]
    ) -> tuple[x509.Certificate, x509.Certificate]:
        authority = authority_for(role)
        issuer, issuer_key = self._intermediate(authority)
        not_before = self._later_than_last(f"{role}:{name}")
        not_after = min(not_before + lifetime, issuer.not_valid_after_utc)
        if not_after <= not_before:
            raise TrustError(f"the intermediate for {authority} has expired; `tdn ca rotate {authority}` makes a new one")
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
        return builder.sign(issuer_key, hashes.SHA256()), issuer

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One that signs or rotates at a time: a certificate is never signed with half of another intermediate."""
        with open(self.folder / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def note_revocation(self, principal: str, until: datetime) -> None:
        """Remember that what was issued until a moment is void, so that the next certificate begins after it."""
        with self._locked():
            _note(self.folder / "revoked.jsonl", {"principal": principal, "until": format_time(until)})

    def was_revoked(self, principal: str, key: str) -> bool:
        """Whether a key was certified before its principal was last revoked: the revocation named it, and it stays refused."""
        until = max(self._revoked_until(principal), default=None)
        certified = (parse_time(entry.not_before) for entry in self.issued_to(principal) if entry.key_hash == key)
        return until is not None and any(moment <= until for moment in certified)

    def _revoked_until(self, principal: str) -> list[datetime]:
        return [parse_time(entry["until"]) for entry in _noted(self.folder / "revoked.jsonl") if entry["principal"] == principal]

    def _later_than_last(self, principal: str) -> datetime:
        """The present second, or the next when the last certificate began or was revoked in it: a later beginning is what supersedes."""
        moments = [parse_time(entry.not_before) for entry in self.issued_to(principal)] + self._revoked_until(principal)
        latest = max(moments, default=None)
        moment = whole_seconds(self._clock())
        while latest is not None and moment <= latest:
            time.sleep(0.05)
            moment = whole_seconds(self._clock())
        return moment


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


def authority_for(role: Role) -> str:
    """The intermediate that issues to a role."""
    return next(name for name, roles in AUTHORITIES.items() if role in roles)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses by which a node, guard or broker may be reached: a rotation keeps them."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *map(str, addresses))


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


def read_authority(path: Path) -> x509.Certificate:
    """A certificate of the CA's folder."""
    try:
        return credentials.read_certificates(path, restore(path))[0]
    except FileNotFoundError as error:
        raise TrustError(f"{path} is missing; {restore(path)}") from error


def read_authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        return credentials.read_key(path, restore(path))
    except FileNotFoundError as error:
        raise TrustError(f"{path} is missing; {restore(path)}") from error


def restore(path: Path) -> str:
    """What to do about a file of the CA that is of no use. Nothing can make an authority anew under which certificates were issued already."""
    return f"restore {path.parent} from a backup (`tdn restore` makes a home of one, beside this)"


def _noted(register: Path) -> list[dict[str, str]]:
    """All entries of a register. What a crash, or a full disk, left of a last one counts for nothing: nobody was given what it is about."""
    try:
        *lines, last = register.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries = [_entry(line) for line in lines]
    if None in entries:
        # Passed over, a key would be forgotten that a revocation has to name.
        raise TrustError(f"line {entries.index(None) + 1} of {register} is no entry; {restore(register)}")
    return [entry for entry in [*entries, _entry(last)] if entry is not None]


def _note(register: Path, entry: dict[str, str]) -> None:
    """Add an entry, on the disk before this returns."""
    with open(register, "a+b") as file:
        file.seek(0)
        last = file.read().rpartition(b"\n")[2]
        if last and _entry(last) is None:
            file.truncate(file.tell() - len(last))
            last = b""
        file.write((b"\n" if last else b"") + json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _entry(line: bytes) -> dict[str, str] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and all(isinstance(part, str) for part in value.values()) and "principal" in value else None


def _key_hash_of(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101  # for mypy: our own makes no others
    return key_hash(key)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _sync(path: Path) -> None:
    """On the disk, not only on its way there: the former key is deleted next."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
