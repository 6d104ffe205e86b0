"""A principal's own folder: `cert.pem` (leaf, then intermediates), `key.pem` (its owner's alone: see `private_files`), `trust.pem` (roots)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tdn.errors import TrustError
from tdn.protocol.names import Role
from tdn.trust.certificates import Identity, TrustRoots, key_hash, name_of
from tdn.trust.private_files import read_private

#: What to do about files of which nothing can be read, so that it is not known whose they are.
_OTHERS = "`tdn ca issue NAME` makes others (a node: `--node`, a guard: `--role guard`)"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, with our key and whom we believe."""

    identity: Identity
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    roots: TrustRoots = field(repr=False)
    folder: Path


def load(folder: Path, *, now: datetime | None = None) -> Credentials:
    """Read a folder of credentials. What is wrong with them is said here, with what to do, before the broker does it vaguely."""
    roots = load_roots(folder / "trust.pem")
    try:
        key = read_key(folder / "key.pem", _OTHERS)
        chain = read_certificates(folder / "cert.pem", _OTHERS)
    except FileNotFoundError as error:
        raise TrustError(
            f"no credentials in {folder}: {Path(error.filename).name} is missing; `tdn ca issue NAME` makes them"
        ) from error
    ders = [certificate.public_bytes(serialization.Encoding.DER) for certificate in chain]
    try:
        identity = roots.identify(ders, at=now or datetime.now(UTC))
    except TrustError as error:
        raise TrustError(f"{folder}: {error.message}; {remedy(chain[0])}", detail=error.detail) from error
    if key_hash(key.public_key()) != identity.name.key_hash:
        raise TrustError(f"key.pem and cert.pem in {folder} do not belong together; {remedy(chain[0])}")
    return Credentials(identity, key, roots, folder)


def remedy(leaf: x509.Certificate) -> str:
    """The command that makes another certificate in the place of one that does not serve."""
    try:
        name = name_of(leaf)
    except TrustError:
        return "`tdn ca issue NAME` makes a certificate that this network takes"
    if name.role is Role.OPERATOR:
        return "the operator's certificate stands in the genesis and cannot be made anew: restore operator/ and ca/ from one backup, and look at the clock"
    flag = {Role.ENTITY: "", Role.NODE: " --node"}.get(name.role, f" --role {name.role}")
    return f"the operator makes a new one with `tdn ca issue {name.id}{flag}` (a PKI of your own: `tdn ca request`); look at the clock, too"


def load_roots(path: Path) -> TrustRoots:
    remedy = "bring it from another folder of this network's credentials, or from a backup"
    try:
        return TrustRoots(read_certificates(path, remedy))
    except FileNotFoundError as error:
        raise TrustError(f"no trusted roots: {path} is missing; {remedy}") from error


def read_certificates(path: Path, remedy: str) -> list[x509.Certificate]:
    """The certificates of a PEM file, one at least; or TrustError that names the file and what to do. FileNotFoundError when it is not there."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TrustError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        # What the library says is for who wrote the file: of PEM's framing, with an address of its own questions and answers.
        raise TrustError(f"{path} holds no certificates; {remedy}") from error


def read_key(path: Path, remedy: str) -> ec.EllipticCurvePrivateKey:
    """The P-256 key of a PEM file; or TrustError that names the file and what to do. FileNotFoundError when it is not there."""
    try:
        key = serialization.load_pem_private_key(read_private(path), password=None)
    except (ValueError, TypeError) as error:
        raise TrustError(f"{path} is no unencrypted PEM file; {remedy}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise TrustError(f"the key in {path} is not P-256; {remedy}")
    return key
