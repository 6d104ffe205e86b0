"""Signed statements that must prove themselves later, to anyone, offline: advertisements, receipts, statuses, notifications,
revocations and entries of archives.

Each carries its signer's chain in its header. A reader brings trusted roots (or the log's state, inside `apply`) and gets a value whose
type says that it was verified. The signer must be a node, valid at the moment the statement names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tdn.errors import MalformedMessage, TrustError, UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext, schemas, synopsis
from tdn.protocol.names import Role
from tdn.protocol.times import format_time, from_epoch, parse_time, whole_seconds
from tdn.trust import openings, sealed, signing
from tdn.trust.certificates import Identity, TrustRoots
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.openings import Opening

#: Finds who signed, valid at a moment. Raises TrustError when nobody trustworthy is there.
IdentifyAt = Callable[[signing.Header, datetime], Identity]

KINDS = frozenset({"advertisement", "receipt", "status", "notification", "revocation", "archive"})


@dataclass(frozen=True, slots=True)
class Statement:
    """A verified statement of any kind."""

    kind: str
    signer: Identity
    payload: Mapping[str, Any]
    signed_at: datetime
    token: str = field(repr=False)
    #: Digest of the payload alone: two nodes that sign the same outcome give the same digest.
    digest: str


@dataclass(frozen=True, slots=True)
class Advertisement:
    """A verified advertisement (T5)."""

    uuid: str
    kind: str
    network: str
    creator: str
    creator_key: str
    institution: str
    created: datetime
    expires: datetime
    descriptor: Mapping[str, Any]
    synopsis_type: str
    synopsis: str
    #: Digest of what it hides; see `openings`.
    hidden: str
    node: str
    digest: str
    token: str = field(repr=False)


def by_roots(roots: TrustRoots) -> IdentifyAt:
    """Believe a chain that reaches these roots: what a client or an offline verifier does."""

    def identify(header: signing.Header, at: datetime) -> Identity:
        if not header.chain:
            raise TrustError("the statement does not carry its certificate chain")
        return roots.identify(header.chain, at=at)

    return identify


def mint(
    request: Envelope,
    *,
    uuid: str,
    network: str,
    opening: Opening,
    node: Credentials,
    now: datetime,
    expires: datetime | None = None,
) -> bytes:
    """The advertisement of a topic or collection that `request` asks for (T1 to T5, T31). Creator and institution are the certificate's,
    never the claim. `expires` is a child's end, where an ancestor's cuts it (T26)."""
    body, signer = request.body, request.signer
    if body["creator"] != signer.name.id:
        raise TrustError(f"the request claims creator {body['creator']!r}; its certificate says {signer.name.id!r}")
    if body["institution"] != signer.institution:
        raise TrustError(f"the request claims institution {body['institution']!r}; its certificate says {signer.institution!r}")
    if body["descriptor"]["kind"] == "sealed":
        sealed.check(body["descriptor"])
        if body["synopsis"]["type"] != "string":
            raise MalformedMessage("synopsis.type: the synopsis of a sealed topic is its UUID alone; anything else would show")
    descriptors.check(body["descriptor"])
    synopsis.check(body["synopsis"]["type"], body["synopsis"]["placeholder"])
    created = whole_seconds(now)
    lifetime = timedelta(seconds=body["lifetime_seconds"]) if expires is None else expires - created
    payload = {
        "v": schemas.VERSION,
        "kind": "collection" if openings.GATHERING in body else "topic",
        "uuid": uuid,
        "network": network,
        "creator": signer.name.id,
        "creator_key": signer.name.key_hash,
        "institution": signer.institution,
        "created": format_time(created),
        "expires": format_time(created + lifetime),
        "lifetime_seconds": int(lifetime.total_seconds()),
        "descriptor": body["descriptor"],
        "synopsis": {**body["synopsis"], "value": synopsis.fill(body["synopsis"]["placeholder"], uuid)},
        "hidden": openings.digest_of(opening),
        "node": node.identity.name.id,
    }
    schemas.check("advertisement", payload)
    token = sign(payload=payload, kind="advertisement", node=node, now=created)
    # What it hides goes along when it is advertised, in base64: a topic that could never be advertised is not minted.
    size = len(token) + len(jsontext.canonical(dict(opening))) * 4 // 3
    if size > jsontext.MAX_ADVERTISEMENT_BYTES:
        raise MalformedMessage(
            f"the advertisement with its lists would have {size} bytes; at most {jsontext.MAX_ADVERTISEMENT_BYTES} are allowed: shorten the descriptor or the lists"
        )
    return token


def sign(kind: str, payload: Mapping[str, Any], node: Credentials, now: datetime) -> bytes:
    """A statement, signed now. Two nodes that sign the same outcome differ in header and signature alone."""
    schemas.check(kind, payload)
    return signing.sign(kind, payload, node.key, chain=node.identity.chain, with_chain=True, issued=int(now.timestamp()))


def read(token: bytes, identify: IdentifyAt) -> Statement:
    """A verified statement, or TrustError/MalformedMessage."""
    message = signing.split(token)
    kind = message.header.kind
    if kind not in KINDS:
        raise MalformedMessage(f"{kind[:40]!r} is not a statement that proves itself")
    if message.tail is not None:
        raise MalformedMessage("a statement is followed by nothing")
    if message.header.issued is None:
        raise MalformedMessage("the statement does not say when it was signed")
    moment = from_epoch(message.header.issued)
    signer = identify(message.header, moment)
    if signer.name.role is not Role.NODE:
        raise TrustError(f"signed by {signer.name.principal}, which is not a node; only nodes sign those")
    signer.require_valid_at(moment)
    payload = signing.verify(message, signer.public_key)
    if payload.get("v") != schemas.VERSION:
        raise MalformedMessage(
            f"schema version {str(payload.get('v'))[:20]} is unknown; this side speaks version {schemas.VERSION}"
        )
    schemas.check(kind, payload)
    return Statement(kind, signer, payload, moment, token.decode(), signing.digest(message.payload_segment))


def read_advertisement(token: bytes, identify: IdentifyAt) -> Advertisement:
    """A verified advertisement. What its schema cannot say (times that agree, a synopsis that was filled) is checked here."""
    statement = read(token, identify)
    if statement.kind != "advertisement":
        raise MalformedMessage(f"a {statement.kind} is not an advertisement")
    payload = statement.payload
    try:
        created, expires = parse_time(payload["created"]), parse_time(payload["expires"])
    except UsageError as error:
        raise MalformedMessage(f"advertisement: {error.message}") from error
    if created != statement.signed_at:
        raise TrustError("the advertisement names another moment than its signature")
    if expires - created != timedelta(seconds=payload["lifetime_seconds"]):
        raise TrustError("the advertisement's times do not agree with its lifetime")
    if payload["synopsis"]["value"] != synopsis.fill(payload["synopsis"]["placeholder"], payload["uuid"]):
        raise TrustError("the advertisement's synopsis is not its placeholder with its UUID")
    if payload["node"] != statement.signer.name.id:
        raise TrustError("the advertisement names another node than its signature")
    return Advertisement(
        uuid=payload["uuid"],
        kind=payload["kind"],
        network=payload["network"],
        creator=payload["creator"],
        creator_key=payload["creator_key"],
        institution=payload["institution"],
        created=created,
        expires=expires,
        descriptor=payload["descriptor"],
        synopsis_type=payload["synopsis"]["type"],
        synopsis=payload["synopsis"]["value"],
        hidden=payload["hidden"],
        node=payload["node"],
        digest=statement.digest,
        token=statement.token,
    )
