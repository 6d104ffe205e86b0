"""The certificates that the log took: followed to the trusted roots once, kept in a table, and known by thumbprint to every task of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast

import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spark.index.rows import UNREADABLE, Known, Row
from tdn.errors import TrustError
from tdn.protocol.names import Name
from tdn.protocol.times import parse_time
from tdn.trust.certificates import Identity, TrustRoots, decode_chain


def in_effects(seq: int, at: datetime | None, effects: str, roots: TrustRoots) -> list[Row]:
    """The certificates that a record brought into the log and that lead to the roots. Whatever is signed with another is rejected."""
    found: list[Row] = []
    try:
        writes = [(thumbprint, value) for space, thumbprint, value in orjson.loads(effects) if space == "certificate" and value is not None]
    except (ValueError, TypeError):
        # They cannot be read, and `stage` rejects the record for that.
        return found
    for thumbprint, value in writes:
        try:
            identity = roots.follow(decode_chain(value["chain"]), at=parse_time(value["at"]))
            if identity.thumbprint == thumbprint and identity.name.principal == value["principal"]:
                found.append(_row(identity, seq, at))
        except UNREADABLE:
            continue
    return found


def _row(identity: Identity, seq: int, at: datetime | None) -> Row:
    return {
        "thumbprint": identity.thumbprint,
        "seq": seq,
        "judged_at": at,
        "principal": identity.name.principal,
        "name": str(identity.name),
        "institution": identity.institution,
        "not_before": identity.not_before,
        "not_after": identity.not_after,
        "issued": identity.issued,
        "public_key": identity.public_key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "chain": list(identity.chain),
    }


#: What a task needs of a certificate: name, institution, validity, when it was issued, public key.
Carried = tuple[str, str, datetime, datetime, datetime, bytes]
_FIELDS = ("name", "institution", "not_before", "not_after", "issued", "public_key")
#: The columns that say so.
CARRIED = ("thumbprint", *_FIELDS)


def carried(rows: Iterable[tuple[Any, ...]]) -> dict[str, Carried]:
    """Certificates by thumbprint, of rows of `CARRIED`."""
    return {row[0]: cast("Carried", row[1:]) for row in rows}


def knower(certificates: Mapping[str, Carried]) -> Known:
    """Finds identities among certificates that were followed to the roots when they were indexed."""
    made: dict[str, Identity] = {}

    def known(thumbprint: str) -> Identity:
        identity = made.get(thumbprint)
        if identity is None:
            row = certificates.get(thumbprint)
            if row is None:
                raise TrustError("signed with a certificate that the log does not hold, or that leads to no trusted root")
            identity = made[thumbprint] = _identity(thumbprint, row)
        return identity

    return known


def _identity(thumbprint: str, row: Carried) -> Identity:
    text, institution, not_before, not_after, issued, der = row
    name, key = Name.parse(text), serialization.load_der_public_key(der)
    if name is None or not isinstance(key, ec.EllipticCurvePublicKey):
        raise TrustError("the table of certificates cannot be read")
    return Identity(name, institution, thumbprint, not_before, not_after, issued, key, ())
