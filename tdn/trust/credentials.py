"""A principal's own folder: `cert.pem` (leaf, then intermediates), `key.pem` (mode 0600), `trust.pem` (roots)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tdn.errors import TrustError
from tdn.trust.certificates import Identity, TrustRoots, institution_of, key_hash


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, with our key and whom we believe."""

    identity: Identity
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    roots: TrustRoots = field(repr=False)
    folder: Path


def load(folder: Path, *, now: datetime | None = None) -> Credentials:
    """Read a folder of credentials. An expired or foreign certificate is refused here, before the broker does it vaguely."""
    roots = load_roots(folder / "trust.pem")
    try:
        key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), password=None)
        chain = x509.load_pem_x509_certificates((folder / "cert.pem").read_bytes())
    except FileNotFoundError as error:
        raise TrustError(
            f"no credentials in {folder}: {Path(error.filename).name} is missing; `tdn ca issue NAME` makes them"
        ) from error
    except (ValueError, TypeError) as error:
        raise TrustError(f"the credentials in {folder} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TrustError(f"the key in {folder} is not P-256")
    ders = [certificate.public_bytes(serialization.Encoding.DER) for certificate in chain]
    identity = roots.identify(ders, at=now or datetime.now(UTC))
    if key_hash(key.public_key()) != identity.name.key_hash:
        raise TrustError(f"key.pem and cert.pem in {folder} do not belong together")
    return Credentials(identity, key, roots, folder)


def load_roots(path: Path) -> TrustRoots:
    try:
        return TrustRoots(x509.load_pem_x509_certificates(path.read_bytes()))
    except FileNotFoundError as error:
        raise TrustError(f"no trusted roots: {path} is missing") from error
    except ValueError as error:
        raise TrustError(f"{path} holds no certificates: {error}") from error


def load_institution(folder: Path) -> str:
    """The institution in a folder's certificate, valid or not: a rotation keeps it."""
    return institution_of(x509.load_pem_x509_certificates((folder / "cert.pem").read_bytes())[0])
