"""Grants (T20): who lets whom publish or subscribe to what, for how long; signed by the issuer, and proof of themselves to anyone, offline.

A grant rests on something: the advertisement of a topic that its issuer owns, or a grant that its issuer holds and may pass on. It names that
by digest. A *bundle* is a grant followed by all that it rests on, down to the advertisement, divided by tildes: whoever has the roots
can follow it. Where the topic changed hands, the status that names its owner stands before the advertisement.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import schemas
from tdn.protocol.names import Name, Role
from tdn.protocol.times import MAX_LIFETIME, from_epoch
from tdn.trust import signing, statements
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.statements import Advertisement, IdentifyAt, Statement

PUBLISH, SUBSCRIBE = "publish", "subscribe"
RIGHTS = (PUBLISH, SUBSCRIBE)
#: Grants between a topic's owner and whoever uses it. Every decision follows all of them.
MAX_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Terms:
    """What an issuer promises."""

    right: str
    topic: str
    #: One entity's full name, `institution:X`, or `*`.
    to: str
    not_before: datetime
    expires: datetime
    tree: bool = False
    delegable: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant whose signature and form were checked. Whether its issuer may give it is for the log, or for its bundle, to say."""

    id: str
    issuer: Identity
    network: str
    terms: Terms
    issued: datetime
    #: Digest of the advertisement's payload, where the issuer owns the topic.
    advertisement: str | None
    #: Id and digest of the grant that is passed on, where the issuer holds one.
    parent: tuple[str, str] | None
    digest: str
    token: bytes = field(repr=False)

    @property
    def grantee(self) -> str:
        """As lists name it: an entity's id, `institution:X`, or `*`."""
        return grantee_of(self.terms.to)

    @property
    def grantee_key(self) -> str | None:
        name = Name.parse(self.terms.to)
        return name.key_hash if name is not None else None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A grant with all that it rests on, each verified and none wider than what it rests on. The nearest to the owner first."""

    grants: tuple[Grant, ...]
    advertisement: Advertisement
    #: Who owned the topic when it changed hands since it was minted, as a node said it.
    owner: str | None


def grantee_of(to: str) -> str:
    name = Name.parse(to)
    return name.id if name is not None else to


def new_id() -> str:
    return secrets.token_urlsafe(16)


def write(
    terms: Terms,
    issuer: Credentials,
    *,
    network: str,
    now: datetime,
    rests_on: Advertisement | Grant,
    grant_id: str | None = None,
) -> bytes:
    """A grant, signed now. What it rests on is the topic's advertisement, or the grant that is passed on."""
    payload: dict[str, Any] = {
        "v": schemas.VERSION,
        "iss": str(issuer.identity.name),
        "sub": terms.to,
        "aud": f"tdn:network:{network}",
        "jti": grant_id or new_id(),
        "iat": int(now.timestamp()),
        "nbf": int(terms.not_before.timestamp()),
        "exp": int(terms.expires.timestamp()),
        "right": terms.right,
        "topic": terms.topic,
        "tree": terms.tree,
        "delegable": terms.delegable,
    }
    if isinstance(rests_on, Grant):
        payload["parent"] = {"grant": rests_on.id, "digest": rests_on.digest}
    else:
        payload["advertisement"] = rests_on.digest
    schemas.check("grant", payload)
    return signing.sign("grant", payload, issuer.key, chain=issuer.identity.chain, with_chain=True)


def read(token: bytes, identify: IdentifyAt) -> Grant:
    """One grant, verified by itself; or TrustError/MalformedMessage."""
    message = signing.split(token)
    if message.header.kind != "grant":
        raise MalformedMessage(f"a {message.header.kind[:40]} is not a grant")
    if message.tail is not None:
        raise MalformedMessage("a grant is followed by nothing here")
    # Its moment is inside: the certificate is looked for before the payload is believed, and held against the moment after.
    claimed = signing.parse_payload(message)
    issued = from_epoch(_second(claimed, "iat"))
    issuer = identify(message.header, issued)
    payload = signing.verify(message, issuer.public_key)
    if payload.get("v") != schemas.VERSION:
        raise MalformedMessage(
            f"schema version {str(payload.get('v'))[:20]} is unknown; this side speaks version {schemas.VERSION}"
        )
    schemas.check("grant", payload)
    if issuer.name.role is not Role.ENTITY:
        raise TrustError(f"signed by {issuer.name.principal}; only entities grant")
    if payload["iss"] != str(issuer.name):
        raise TrustError("the grant names another issuer than its signature")
    issuer.require_valid_at(issued)
    if ("advertisement" in payload) == ("parent" in payload):
        raise MalformedMessage("a grant rests on an advertisement or on another grant, on one of them")
    parent = payload.get("parent")
    grant = Grant(
        id=payload["jti"],
        issuer=issuer,
        network=payload["aud"].rpartition(":")[2],
        terms=Terms(
            right=payload["right"],
            topic=payload["topic"],
            to=payload["sub"],
            not_before=from_epoch(payload["nbf"]),
            expires=from_epoch(payload["exp"]),
            tree=payload["tree"],
            delegable=payload["delegable"],
        ),
        issued=issued,
        advertisement=payload.get("advertisement"),
        parent=(parent["grant"], parent["digest"]) if parent is not None else None,
        digest=signing.digest(message.payload_segment),
        token=token,
    )
    if not grant.terms.not_before < grant.terms.expires <= grant.issued + 2 * MAX_LIFETIME:
        raise MalformedMessage("the grant's times do not fit together")
    return grant


def _second(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= signing.LAST_SECOND:
        raise MalformedMessage(f"grant.{name}: not a moment")
    return value


def issuer_and_topic(token: bytes) -> tuple[str, str]:
    """Of a grant that the log took, and that was verified then."""
    claims = signing.parse_payload(signing.split(token))
    name = Name.parse(str(claims.get("iss")))
    if name is None:
        raise MalformedMessage("grant.iss: not a name")
    return name.id, str(claims.get("topic"))


def join(*parts: bytes) -> bytes:
    """A bundle from its parts: the grant, what it rests on, the advertisement last."""
    return signing.TILDE.join(parts)


def read_bundle(bundle: bytes, identify: IdentifyAt) -> Bundle:
    """Follow a grant down to the advertisement. Whether the log took it, and has not ended it since, is for a node to say."""
    parts = bundle.split(signing.TILDE)
    status: Statement | None = None
    if len(parts) > 2 and signing.split(parts[-2]).header.kind == "status":
        status = statements.read(parts.pop(-2), identify)
    if not 2 <= len(parts) <= MAX_CHAIN + 1:
        raise MalformedMessage(f"a grant comes with all that it rests on, {MAX_CHAIN} grants at most and the advertisement last")
    advertisement = statements.read_advertisement(parts[-1], identify)
    grants = tuple(read(part, identify) for part in reversed(parts[:-1]))
    root = grants[0]
    if root.advertisement != advertisement.digest:
        raise TrustError("the first grant does not rest on this advertisement")
    owner: str | None = None
    if status is not None:
        owner = status.payload["owner"]
        if status.payload["uuid"] != advertisement.uuid:
            raise TrustError("the status is of another topic")
    if root.terms.topic != advertisement.uuid:
        raise TrustError("the first grant is for another topic than its advertisement")
    if root.issuer.name.id != (owner or advertisement.creator):
        raise TrustError(f"{root.issuer.name.principal} does not own topic {advertisement.uuid}")
    networks = {advertisement.network, *(grant.network for grant in grants)}
    if len(networks | ({status.payload["network"]} if status is not None else set())) > 1:
        raise TrustError("the grants, or what they rest on, are of different networks")
    for above, below in itertools.pairwise(grants):
        if below.parent != (above.id, above.digest):
            raise TrustError(f"grant {below.id} does not rest on grant {above.id}")
        if not above.terms.delegable:
            raise TrustError(f"grant {above.id} may not be passed on")
        require_holder(above, below.issuer)
        require_no_wider(above.terms, below.terms)
    return Bundle(grants, advertisement, owner)


def require_holder(above: Grant, issuer: Identity) -> None:
    if not issuer.asker.is_meant_by([above.grantee]):
        raise TrustError(f"{issuer.name.principal} passes on grant {above.id}, which is for {above.grantee}")


def require_no_wider(above: Terms, below: Terms) -> None:
    """A grant that is passed on is never wider than the one it rests on. Whether another topic is inside its tree, the log knows."""
    if below.right != above.right:
        raise TrustError(f"a grant to {above.right} was passed on as one to {below.right}")
    if (below.topic != above.topic or below.tree) and not above.tree:
        raise TrustError("a grant for one topic was passed on for more than that")
    if below.not_before < above.not_before or below.expires > above.expires:
        raise TrustError("a grant was passed on for longer than it lasts itself")
