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
from tdn.trust.certificates import Identity, TrustRoots, institution_of, key_hash, name_of
from tdn.trust.private_files import read_private


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
    reading = "key.pem"
    try:
        key = serialization.load_pem_private_key(read_private(folder / reading), password=None)
        reading = "cert.pem"
        chain = x509.load_pem_x509_certificates((folder / reading).read_bytes())
    except FileNotFoundError as error:
        raise TrustError(
            f"no credentials in {folder}: {Path(error.filename).name} is missing; `tdn ca issue NAME` makes them"
        ) from error
    except OSError as error:
        raise TrustError(f"{error.filename} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        # What the library says is for who wrote the file: of PEM's framing, with an address of its own questions and answers.
        raise TrustError(
            f"{folder / reading} is no unencrypted PEM file; `tdn ca issue NAME` makes others (a node: `--node`, a guard: `--role guard`)"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TrustError(f"the key in {folder} is not P-256")
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
    try:
        return TrustRoots(x509.load_pem_x509_certificates(path.read_bytes()))
    except FileNotFoundError as error:
        raise TrustError(f"no trusted roots: {path} is missing") from error
    except OSError as error:
        raise TrustError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TrustError(f"{path} holds no certificates: {error}") from error


def load_institution(folder: Path) -> str:
    """The institution in a folder's certificate, valid or not: a rotation keeps it."""
    return institution_of(x509.load_pem_x509_certificates((folder / "cert.pem").read_bytes())[0])
