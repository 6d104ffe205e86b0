"""Topics below topics (T23 to T26): registered under limits that hold for every ancestor, exact because the log decides.

What the ancestors allow is carried down: each topic's fact has the levels and the width that are left at its place, and the lists as they
hold there. So a registration looks at its parent alone, however deep it is and however many children there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tdn.errors import Refused
from tdn.protocol import jsontext
from tdn.protocol.access import REGISTER, Access, read_access
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.protocol.trees import Hosting, read_hosting
from tdn.rules import countersignatures, principals
from tdn.rules.sight import TOPIC, Sight, access_of, live
from tdn.rules.state import Draft, Fact, Occasion
from tdn.trust import openings, signing
from tdn.trust.envelope import Envelope
from tdn.trust.statements import Advertisement

#: How long a registered child's slot is kept for its creator to advertise it, in log time (T7).
RESERVED_FOR = timedelta(minutes=1)
#: Names that may be barred from a topic, its ancestors' together with its own. Every topic below has all of them.
MAX_INHERITED = 2000
#: And how long all lists of a topic may be, with what they inherit: each topic with lists of its own has a copy.
MAX_INHERITED_BYTES = 65_536


def register(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T24, T25: reserve a child's slot, if its requester may and no ancestor's limit breaks. First in the log wins."""
    body, minted = request.body, occasion.minted
    if minted is None:
        raise Refused("the node did not mint a UUID for the child")
    if draft.get("topic", minted["uuid"]) is not None or draft.get("reserved", minted["uuid"]) is not None:
        raise Refused("the UUID that the node minted is taken; ask again")
    parent_uuid = body["parent"]
    parent = _parent_for(draft, request, occasion)
    _require_room(draft, parent_uuid, parent)
    hosting = _hosting_below(parent, parent_uuid, read_hosting(body["hosting"]) if "hosting" in body else None)
    access_below(draft, read_access(body.get("lists", {})), parent)
    created = whole_seconds(occasion.at)
    asked = created + timedelta(seconds=body["lifetime_seconds"])
    expires = min(asked, latest_end(draft, parent_uuid))
    if expires <= created:
        raise Refused(f"topic {parent_uuid} ends before its child would begin; compare the nodes' clocks")
    until = format_time(whole_seconds(principals.log_time(draft)) + RESERVED_FOR)
    reserved: dict[str, Any] = {
        "creator": request.signer.name.id,
        "parent": parent_uuid,
        "created": format_time(created),
        "expires": format_time(expires),
        "hidden": openings.digest_of(openings.conceal(openings.claims_of(body), minted["seed"])),
        "hosting": hosting,
        "until": until,
    }
    draft.put("reserved", minted["uuid"], reserved)
    draft.put("ends", f"{until} reserved {minted['uuid']}", {})
    count(draft, parent_uuid, 1)
    fixed = {"uuid": minted["uuid"], "seed": minted["seed"], "created": reserved["created"], "expires": reserved["expires"]}
    return {**fixed, "cut": True} if expires < asked else fixed


def _parent_for(draft: Draft, request: Envelope, occasion: Occasion) -> Fact:
    """The parent, if the requester may register below it. To whoever may not see it, it is absent."""
    uuid, body = request.body["parent"], request.body
    asker = request.signer.asker
    parent = live(draft, uuid, occasion.now)
    sight = Sight(draft, asker, occasion.now)
    countersigned = countersignatures.holds(
        draft,
        body.get("countersigned"),
        countersignatures.REGISTER,
        uuid,
        parent,
        entity=request.signer.name.id,
        now=occasion.now,
    )
    if parent is None or not (countersigned or sight.topic(uuid) is not None):
        raise Refused(f"there is no topic {uuid} that you may see; it may have ended")
    if parent["kind"] != TOPIC:
        raise Refused(f"{uuid} is a collection, which has members and no child topics; see `entity collection add`")
    if not parent.get("hosting", {}).get("allow"):
        raise Refused(f"topic {uuid} does not take child topics; its creator did not allow them")
    if not (countersigned or sight.admits(parent, REGISTER)):
        raise Refused(f"you may not register children of topic {uuid}; ask its owner, or have it countersign")
    return parent


def _require_room(draft: Draft, uuid: str, parent: Fact) -> None:
    hosting = parent["hosting"]
    if hosting["depth"] is not None and hosting["depth"] <= 1:
        raise Refused(f"topic {uuid} is at the lowest level that is allowed (MaxDepth); nothing can be registered below it")
    if hosting["width"] is not None and size_of(draft, uuid) >= hosting["width"]:
        raise Refused(f"topic {uuid} has all the children that it may have (MaxWidth {hosting['width']})")


def hosting_at_root(asked: Hosting | None) -> dict[str, Any] | None:
    """What a root's fact says of its subtree. No limits: None."""
    if asked is None:
        return None
    return {"allow": asked.allow_children, "depth": asked.max_depth or None, "width": asked.max_width or None}


def _hosting_below(parent: Fact, uuid: str, asked: Hosting | None) -> dict[str, Any]:
    """T24: what a child's fact says of its subtree. It may ask for less than its ancestors leave, never for more."""
    above = parent["hosting"]
    depth_left = None if above["depth"] is None else above["depth"] - 1
    asked = asked or Hosting()
    return {
        "allow": asked.allow_children,
        "depth": _within("MaxDepth", uuid, asked.max_depth, depth_left),
        "width": _within("MaxWidth", uuid, asked.max_width, above["width"]),
    }


def _within(name: str, uuid: str, asked: int | None, left: int | None) -> int | None:
    if asked is None:
        return left
    if left is not None and (asked == 0 or asked > left):
        wanted = "no limit" if asked == 0 else str(asked)
        raise Refused(f"{name}: a child of topic {uuid} may ask for {left} at most, not for {wanted}")
    return asked or None


def claim(draft: Draft, advertisement: Advertisement, parent: str, own: Access, occasion: Occasion) -> dict[str, Any]:
    """T7: a registered child is advertised, as it was registered. Gives what its fact has of the hierarchy."""
    uuid = advertisement.uuid
    reserved = draft.get("reserved", uuid)
    if reserved is None:
        raise Refused(
            f"topic {uuid} was not registered, or its slot was kept for {int(RESERVED_FOR.total_seconds())} s in vain; create it again"
        )
    registered = (reserved["creator"], reserved["parent"], reserved["created"], reserved["expires"], reserved["hidden"])
    given = (
        advertisement.creator,
        parent,
        format_time(advertisement.created),
        format_time(advertisement.expires),
        advertisement.hidden,
    )
    if registered != given:
        raise Refused(f"topic {uuid} was registered with other content")
    above = live(draft, parent, occasion.now)
    if above is None:
        raise Refused(f"topic {uuid} cannot be advertised: its parent has ended")
    if advertisement.expires > latest_end(draft, parent):
        # Shortened since it was registered. What is signed cannot be cut, and no child outlives an ancestor (T26).
        raise Refused(f"topic {uuid} cannot be advertised: its parent now ends before it; create it again")
    draft.put("reserved", uuid, None)
    draft.put("ends", f"{reserved['until']} reserved {uuid}", None)
    draft.put("child", f"{parent} {reserved['created']} {uuid}", {})
    fact = {"parent": parent, "root": above.get("root", parent), "hosting": reserved["hosting"]}
    access = access_below(draft, own, above)
    return {**fact, "access": keep_access(draft, access)} if access.restrict else fact


def release(draft: Draft, uuid: str) -> None:
    """A reservation ran out: the slot is free again."""
    reserved = draft.get("reserved", uuid)
    if reserved is not None:
        draft.put("reserved", uuid, None)
        count(draft, reserved["parent"], -1)


def leave(draft: Draft, uuid: str, topic: Fact) -> None:
    """A child has ended: its slot is free again."""
    draft.put("child", f"{topic['parent']} {topic['created']} {uuid}", None)
    count(draft, topic["parent"], -1)


def latest_end(draft: Draft, uuid: str) -> datetime:
    """The moment that no child of a topic outlives (T26)."""
    ends = []
    at: str | None = uuid
    while at is not None:
        fact = draft.get("topic", at) or {}
        ends.append(parse_time(fact["expires"]))
        # Facts have followed their ancestors unless one was shortened a moment ago.
        at = fact.get("parent") if draft.get("pending", "topics") is not None else None
    return min(ends)


def access_below(draft: Draft, own: Access, parent: Fact) -> Access:
    """T27: the lists that hold for a child."""
    access = own.below(access_of(draft, parent))
    # Without lists of its own it shares its parent's, which stand in the state once.
    if own.restrict and (access.longest > MAX_INHERITED or len(jsontext.canonical(access.as_object())) > MAX_INHERITED_BYTES):
        raise Refused(
            f"with those of its ancestors its lists would be too long: at most {MAX_INHERITED} names are barred from a topic, and at most {MAX_INHERITED_BYTES} bytes of names listed; name institutions instead"
        )
    return access


def keep_access(draft: Draft, access: Access) -> str:
    """Put lists into the state, once for all topics that have the same, and give their digest."""
    value = access.as_object()
    digest = signing.digest(jsontext.canonical(value))
    if draft.get("access", digest) is None:
        draft.put("access", digest, value)
    return digest


def size_of(draft: Draft, uuid: str) -> int:
    """How many children, or members, something has; those that are only registered count."""
    size = draft.get("size", uuid)
    return 0 if size is None else int(size["members"])


def count(draft: Draft, uuid: str, number: int) -> None:
    size: Mapping[str, Any] = draft.get("size", uuid) or {"members": 0}
    changed = {**size, "members": size["members"] + number}
    draft.put("size", uuid, changed if any(changed.values()) else None)
