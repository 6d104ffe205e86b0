"""What an advertisement hides and yet binds: claims as salted digests under one digest that everybody verifies (selective disclosure).

Access lists, the parent and limits must not be in the bytes that go to everybody. The node signs `hidden`, a digest over one digest per
claim; the *opening* (each claim's value and salt) goes to the creator, into the log, and in part to whoever is entitled to that part.
Every advertisement has a `hidden` of the same length, whatever it hides, so the signed bytes do not tell.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import TrustError
from tdn.protocol import jsontext
from tdn.protocol.access import Access, read_access
from tdn.protocol.trees import Gathering, Hosting, read_gathering, read_hosting
from tdn.trust import signing

Opening = Mapping[str, Any]

#: Claims in the order in which they are described: lists; what children it takes; its parent; a collection's options; its first members.
ACCESS, HOSTING, PARENT, GATHERING, MEMBERS = "access", "hosting", "parent", "gathering", "members"

_SEED_BYTES = 16
#: Characters of a salt: 128 bits.
_SALT_CHARACTERS = 22


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opening shows. None where the advertisement has no such claim, or where the opening keeps it closed."""

    access: Access | None = None
    hosting: Hosting | None = None
    parent: str | None = None
    gathering: Gathering | None = None
    #: The UUID of a collection's change topic (T31).
    notifications: str | None = None
    members: tuple[str, ...] = ()
    #: Whether nothing was kept closed.
    whole: bool = True


def claims_of(body: Mapping[str, Any], notifications: str | None = None) -> dict[str, Any]:
    """What the advertisement of a requested topic or collection hides."""
    claims: dict[str, Any] = {ACCESS: body.get("lists", {})}
    for claim in (HOSTING, PARENT):
        if claim in body:
            claims[claim] = body[claim]
    if GATHERING in body:
        claims[GATHERING] = {**body[GATHERING], "notifications": notifications}
        claims[MEMBERS] = body.get(MEMBERS, [])
    return claims


def new_seed() -> str:
    """What salts are made from: fresh, so that equal claims give unequal digests."""
    return secrets.token_urlsafe(_SEED_BYTES)


def conceal(claims: Mapping[str, Any], seed: str) -> Opening:
    """An opening of these claims. One salt tells nothing of the seed, nor of another salt."""
    return {
        name: {"salt": signing.digest(f"{seed} {name}".encode())[:_SALT_CHARACTERS], "value": value}
        for name, value in claims.items()
    }


def digest_of(opening: Opening) -> str:
    """What stands in the signed advertisement as `hidden`."""
    return signing.digest(jsontext.canonical({name: _claim_digest(name, claim) for name, claim in opening.items()}))


def disclose(opening: Opening, names: Collection[str]) -> Opening:
    """The opening with some claims shown and the others closed. Its digest is the same."""
    return {name: claim if name in names else {"digest": _claim_digest(name, claim)} for name, claim in sorted(opening.items())}


def read(opening: Opening, hidden: str) -> Opened:
    """What an advertisement hides, once the opening is shown to be its own."""
    if digest_of(opening) != hidden:
        raise TrustError("the opening does not belong to the advertisement")
    values = {name: claim["value"] for name, claim in opening.items() if "digest" not in claim}
    gathering = values.get(GATHERING)
    return Opened(
        access=read_access(values[ACCESS]) if ACCESS in values else None,
        hosting=read_hosting(values[HOSTING]) if HOSTING in values else None,
        parent=values.get(PARENT),
        gathering=read_gathering(gathering) if gathering is not None else None,
        notifications=gathering["notifications"] if gathering is not None else None,
        members=tuple(values.get(MEMBERS, ())),
        whole=len(values) == len(opening),
    )


def _claim_digest(name: str, claim: Mapping[str, Any]) -> str:
    if "digest" in claim:
        return str(claim["digest"])
    return signing.digest(jsontext.canonical([claim["salt"], name, claim["value"]]))
