"""Certificates: who a chain says somebody is, once it reaches a trusted root.

An identity's name is the certificate's URI, `tdn:ROLE:ID:KEYHASH`; its institution the subject's organisation. The hash must be that of
the certificate's own key, so a name cannot be lent. Intermediates of the embedded CA carry `tdn:ca:nodes` or `tdn:ca:entities`: an
intermediate so marked cannot make the other kind, whatever it writes into a leaf.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from tdn.errors import TrustError
from tdn.protocol.access import Asker
from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time
from tdn.trust.signing import digest

#: Marks of the embedded CA's intermediates and the roles that each may issue.
CA_MARKS = {
    "tdn:ca:entities": frozenset({Role.ENTITY}),
    "tdn:ca:nodes": frozenset({Role.NODE, Role.GUARD, Role.OPERATOR, Role.BROKER}),
}

#: Longest chain: leaf, two intermediates, root. A user's own PKI rarely has more.
_MAX_CHAIN_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate that was followed to a trusted root. Its existence is the proof: only TrustRoots makes one, or the log's state."""

    name: Name
    institution: str
    thumbprint: str
    #: When the whole chain is valid, not the leaf alone.
    not_before: datetime
    not_after: datetime
    #: When the leaf itself was issued: a later one supersedes it.
    issued: datetime
    public_key: ec.EllipticCurvePublicKey = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)

    @property
    def asker(self) -> Asker:
        """Its holder as lists and policies name it. Only an entity's id can be on a list."""
        return Asker(self.name.id if self.name.role is Role.ENTITY else None, self.institution)

    def require_valid_at(self, moment: datetime) -> None:
        if not self.not_before <= moment <= self.not_after:
            verb = "is not valid before" if moment < self.not_before else "expired at"
            limit = self.not_before if moment < self.not_before else self.not_after
            raise TrustError(f"the certificate of {self.name.principal} {verb} {format_time(limit)}")


class TrustRoots:
    """The roots that somebody believes, and the chains that were followed to them."""

    def __init__(self, roots: Iterable[x509.Certificate]) -> None:
        self._roots = tuple(roots)
        if not self._roots:
            raise TrustError("no trusted root is configured")
        self._store = verification.Store(list(self._roots))
        # A chain check costs ten signature checks; its result holds for every moment at which all of its certificates are valid.
        self._followed: dict[tuple[bytes, ...], Identity] = {}

    @property
    def ders(self) -> tuple[bytes, ...]:
        return tuple(root.public_bytes(serialization.Encoding.DER) for root in self._roots)

    def identify(self, chain: Sequence[bytes], *, at: datetime) -> Identity:
        """Who holds this chain, valid at a moment; or TrustError. Remembers what it followed: for readers, never inside `apply`."""
        key = tuple(chain)
        known = self._followed.get(key)
        if known is None or not known.not_before <= at <= known.not_after:
            # Another path of the same chain may be valid now.
            known = self.follow(key, at=at)
            if len(self._followed) >= 10_000:
                self._followed.clear()
            self._followed[key] = known
        return known

    def follow(self, chain: tuple[bytes, ...], *, at: datetime) -> Identity:
        """The same without any memory: the answer depends on the chain, the roots and the moment alone."""
        identity = self._follow(chain, at)
        identity.require_valid_at(at)
        return identity

    def _follow(self, chain: tuple[bytes, ...], at: datetime) -> Identity:
        try:
            certificates = [x509.load_der_x509_certificate(der) for der in chain]
            verifier = (
                verification.PolicyBuilder()
                .store(self._store)
                .time(at)
                .max_chain_depth(_MAX_CHAIN_DEPTH)
                .extension_policies(ca_policy=verification.ExtensionPolicy.webpki_defaults_ca(), ee_policy=_leaf_policy())
                .build_client_verifier()
            )
            path = verifier.verify(certificates[0], certificates[1:]).chain
        except verification.VerificationError as error:
            _require_dates(certificates, at)
            raise TrustError("the certificate does not lead to a trusted root", detail={"because": _first_line(error)}) from error
        except (ValueError, TypeError, x509.ExtensionNotFound) as error:
            raise TrustError("the certificate cannot be read", detail={"because": _first_line(error)}) from error
        except Exception as error:
            # cryptography has exceptions of its own for odd certificates; whatever it is, this one is not believed.
            if not type(error).__module__.startswith(("cryptography", "asn1", "builtins")):
                raise
            raise TrustError("the certificate cannot be read", detail={"because": _first_line(error)}) from error
        leaf = path[0]
        name = name_of(leaf)
        for issuer in path[1:]:
            if not _may_issue(issuer, name.role):
                raise TrustError(f"the certificate of {name.principal} was issued by an authority for other roles")
        key = leaf.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101  # for mypy: name_of checked it
        return Identity(
            name=name,
            institution=institution_of(leaf),
            thumbprint=digest(chain[0]),
            not_before=max(certificate.not_valid_before_utc for certificate in path),
            not_after=min(certificate.not_valid_after_utc for certificate in path),
            issued=leaf.not_valid_before_utc,
            public_key=key,
            chain=chain,
        )


@lru_cache(maxsize=64)
def roots_from_ders(ders: tuple[bytes, ...]) -> TrustRoots:
    """Roots as the log holds them; one object per set, so that followed chains stay cached."""
    return TrustRoots(x509.load_der_x509_certificate(der) for der in ders)


def key_hash(key: ec.EllipticCurvePublicKey) -> str:
    spki = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def name_of(certificate: x509.Certificate) -> Name:
    """The name in a leaf, bound to its own key; or TrustError."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise TrustError("the certificate's key is not P-256")
    uris = _uris(certificate)
    name = Name.parse(uris[0]) if len(uris) == 1 else None
    if name is None:
        raise TrustError("the certificate has no single URI of the form tdn:ROLE:ID:KEYHASH")
    if name.key_hash != key_hash(key):
        raise TrustError(f"the certificate of {name.principal} names a key that is not its own")
    return name


def institution_of(certificate: x509.Certificate) -> str:
    values = certificate.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    value = values[0].value if values else "local"
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def encode_chain(chain: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(der).decode() for der in chain]


def decode_chain(chain: Sequence[str]) -> tuple[bytes, ...]:
    """A chain as messages carry it, or TrustError."""
    try:
        return tuple(base64.b64decode(der, validate=True) for der in chain)
    except (binascii.Error, ValueError) as error:
        raise TrustError("the certificate chain is not base64") from error


def _require_dates(certificates: Sequence[x509.Certificate], at: datetime) -> None:
    """Say of a chain that did not hold whether its dates are the reason: what most people need to know."""
    begins = max(certificate.not_valid_before_utc for certificate in certificates)
    ends = min(certificate.not_valid_after_utc for certificate in certificates)
    if at < begins:
        raise TrustError(f"the certificate is not valid before {format_time(begins)}")
    if at > ends:
        raise TrustError(f"the certificate expired at {format_time(ends)}")


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _may_issue(issuer: x509.Certificate, role: Role) -> bool:
    return all(role in CA_MARKS[mark] for mark in _marks(issuer))


@lru_cache(maxsize=256)
def _marks(issuer: x509.Certificate) -> tuple[str, ...]:
    """Remembered: issuers are few, and reading the extensions of each in a chain costs a third of a signature check."""
    return tuple(mark for mark in _uris(issuer) if mark in CA_MARKS)


def _leaf_policy() -> verification.ExtensionPolicy:
    """What a leaf must carry. RabbitMQ accepts a client certificate with no extended key usage, so we look for it ourselves."""

    def says_client(policy: verification.Policy, certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
        if usage is None or ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            raise ValueError("the certificate is not for client authentication")

    return (
        verification.ExtensionPolicy.permit_all()
        .require_present(x509.SubjectAlternativeName, verification.Criticality.AGNOSTIC, None)
        .require_present(x509.ExtendedKeyUsage, verification.Criticality.AGNOSTIC, says_client)
        .may_be_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, _not_an_authority)
    )


def _not_an_authority(
    policy: verification.Policy, certificate: x509.Certificate, constraints: x509.BasicConstraints | None
) -> None:
    if constraints is not None and constraints.ca:
        raise ValueError("an authority's certificate cannot sign messages")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
