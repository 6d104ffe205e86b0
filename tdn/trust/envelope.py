"""Signed requests, questions and replies: made here, and taken apart here.

`authenticate` answers "who signed this, and is it what its kind says": a pure question about bytes, asked by a node at admission and
again by every `apply`. Whether it is fresh, and addressed to us, is asked once, at admission (`require_addressed`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import schemas
from tdn.protocol.times import from_epoch
from tdn.trust import signing
from tdn.trust.certificates import Identity
from tdn.trust.credentials import Credentials
from tdn.trust.replay import CLOCK_SKEW, require_fresh

#: Finds who a header speaks of. Raises TrustError when nobody trustworthy is there.
Identify = Callable[[signing.Header], Identity]


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message whose signature, schema, signer and tail were checked."""

    kind: str
    signer: Identity
    audience: str
    issued: datetime
    expires: datetime
    id: str
    reply: str | None
    answers: str | None
    body: Mapping[str, Any]
    tail: bytes | None
    raw: bytes
    #: In a reply of a node's own endpoint: the node has all that was in the log at this moment. What came later it may lack.
    as_of: datetime | None = None


def new_id() -> str:
    return secrets.token_urlsafe(18)


def write(
    kind: str,
    body: Mapping[str, Any],
    sender: Credentials,
    *,
    audience: str,
    now: datetime,
    life: timedelta,
    message_id: str | None = None,
    reply: str | None = None,
    answers: str | None = None,
    tail: bytes | None = None,
    with_chain: bool = False,
    as_of: datetime | None = None,
) -> bytes:
    """A signed message of a kind. The body is checked against its schema here too: we send nothing that we would refuse."""
    schemas.check(kind, body)
    issued = int(now.timestamp())
    claims: dict[str, Any] = {
        "v": schemas.VERSION,
        "iss": str(sender.identity.name),
        "aud": audience,
        "iat": issued,
        "exp": issued + int(life.total_seconds()),
        "jti": message_id or new_id(),
        "body": dict(body),
    }
    if reply is not None:
        claims["reply"] = reply
    if answers is not None:
        claims["re"] = answers
    if as_of is not None:
        claims["as_of"] = int(as_of.timestamp())
    return signing.sign(kind, claims, sender.key, chain=sender.identity.chain, with_chain=with_chain, tail=tail)


def authenticate(raw: bytes, identify: Identify) -> Envelope:
    """Who signed these bytes, and what they say. Never re-serialises: the received bytes are what is verified."""
    message = signing.split(raw)
    signer = identify(message.header)
    claims = signing.verify(message, signer.public_key)
    if claims.get("v") != schemas.VERSION:
        raise MalformedMessage(
            f"schema version {str(claims.get('v'))[:20]} is unknown; this side speaks version {schemas.VERSION}"
        )
    schemas.check("envelope", claims)
    if claims["iss"] != str(signer.name):
        raise TrustError("the message names another sender than its signature")
    issued = from_epoch(claims["iat"])
    signer.require_valid_at(issued)
    _check_body(message.header.kind, claims["body"])
    return Envelope(
        kind=message.header.kind,
        signer=signer,
        audience=claims["aud"],
        issued=issued,
        expires=from_epoch(claims["exp"]),
        id=claims["jti"],
        reply=claims.get("reply"),
        answers=claims.get("re"),
        body=claims["body"],
        tail=message.tail,
        raw=raw,
        as_of=from_epoch(claims["as_of"]) if "as_of" in claims else None,
    )


def require_addressed(envelope: Envelope, *, audiences: frozenset[str], now: datetime, longest: timedelta) -> None:
    """Refuse what is meant for another reader, or not for now."""
    if envelope.audience not in audiences:
        raise TrustError("the message is addressed to somebody else")
    require_fresh(envelope.issued, envelope.expires, now, longest)
    if now > envelope.signer.not_after + CLOCK_SKEW:
        raise TrustError(f"the certificate of {envelope.signer.name.principal} has expired")


def _check_body(kind: str, body: Mapping[str, Any]) -> None:
    if kind not in BODY_KINDS:
        raise MalformedMessage(f"kind {kind[:40]!r} is unknown")
    if kind in ("create", "register") and "uuid" in body:
        raise MalformedMessage(f"{kind}: a request cannot bring its own UUID; nodes mint them")
    schemas.check(kind, body)


#: Changes by which somebody may lose a right. A node answers them when every guard has ended it, or is known to allow nothing.
ENDS_RIGHTS = frozenset({"retract", "revoke", "accept", "unsubscribe"})

#: Questions that a node answers from its store alone: they need no broker, and are also answered at a node's own endpoint.
READS = frozenset({"locate", "discover", "show", "lookup", "tree", "may", "grants"})

#: Every kind that travels in an envelope. The signed statements (advertisement, receipt, status, notification, revocation), grants, messages and records do not.
BODY_KINDS = frozenset(
    {
        *("locate", "hello", "create", "discover", "show", "lookup", "peer", "tree", "changes"),
        *("advertise", "renew", "withdraw", "enrol", "revoke", "genesis", "rules"),
        *("register", "add", "remove", "move", "watch", "unwatch", "countersign"),
        *("give", "retract", "transfer", "accept", "open", "subscribe", "unsubscribe", "use", "readers", "may", "grants"),
        *("ready", "reading", "judged", "granted"),
        *("located", "welcome", "created", "decided", "discovered", "shown", "found", "peered", "placed", "changed", "error"),
    }
)
