"""What an advertisement hides and yet binds: claims as salted digests under one digest that everybody verifies (selective disclosure).

Access lists must not be in the bytes that go to everybody. The node signs `hidden`, a digest over one digest per claim; the *opening* (each
claim's value and salt) goes to the creator, into the log, and to whoever is entitled. Every advertisement has a `hidden` of the same
length, lists or none, so the signed bytes do not tell.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from tdn.errors import TrustError
from tdn.protocol import jsontext
from tdn.protocol.access import Lists, read_lists
from tdn.trust import signing

Opening = Mapping[str, Any]

_SALT_BYTES = 16


def conceal(lists: Lists) -> Opening:
    """An opening of these lists, with a fresh salt: equal lists give unequal digests."""
    return {"access": {"salt": secrets.token_urlsafe(_SALT_BYTES), "value": lists.as_object()}}


def digest_of(opening: Opening) -> str:
    """What stands in the signed advertisement as `hidden`."""
    claims = {name: signing.digest(jsontext.canonical([claim["salt"], name, claim["value"]])) for name, claim in opening.items()}
    return signing.digest(jsontext.canonical(claims))


def read(opening: Opening, hidden: str) -> Lists:
    """The lists that an advertisement hides, once the opening is shown to be its own."""
    if digest_of(opening) != hidden:
        raise TrustError("the opening does not belong to the advertisement")
    return read_lists(opening["access"]["value"])
