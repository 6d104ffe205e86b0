"""An owner's word for another entity (T27, T33): let it look, register or include as if it were the owner, for a while.

It rests on the log alone: the signer is known, current and owns what the word is about. One that does not hold gives nothing; it is not an
error by itself, since that would tell a stranger which UUIDs exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import datetime, timedelta

from tdn.errors import TdnError
from tdn.protocol import jsontext
from tdn.rules import principals
from tdn.rules.state import Fact, State
from tdn.trust import envelope, signing
from tdn.trust.replay import CLOCK_SKEW

#: Longest life of a countersignature.
LONGEST = timedelta(days=30)

DISCOVER, REGISTER, INCLUDE = "discover", "register", "include"


def sorted_by_subject(tokens: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Words by the UUID that each says it is about, unverified: of a hundred, one member's are looked at, not all for every member."""
    about: dict[str, tuple[str, ...]] = {}
    for token in tokens:
        with contextlib.suppress(TdnError, KeyError, TypeError):
            claims = jsontext.parse(signing.decode_segment(signing.split(token.encode()).payload_segment))
            uuid = str(claims["body"]["uuid"])
            about[uuid] = (*about.get(uuid, ()), token)
    return about


def holds(
    state: State,
    token: str | None,
    right: str,
    uuid: str,
    topic: Fact | None,
    *,
    entity: str,
    now: datetime,
    collection: str | None = None,
) -> bool:
    """Whether the owner of a topic or collection has signed that this entity may do this with it, now."""
    if token is None or topic is None:
        return False
    try:
        word = envelope.authenticate(token.encode(), lambda header: principals.known(state, header))
    except TdnError:
        return False
    body = word.body
    return (
        word.kind == "countersign"
        and word.signer.name.principal == f"entity:{topic['owner']}"
        and word.audience == f"tdn:network:{principals.network(state)['id']}"
        and word.issued - CLOCK_SKEW <= now <= word.expires
        and word.expires - word.issued <= LONGEST
        and (body["right"], body["uuid"], body["entity"]) == (right, uuid, entity)
        and body.get("collection", collection) == collection
    )
