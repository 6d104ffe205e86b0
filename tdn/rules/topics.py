"""Topics and collections in the log: advertised by their creator, renewed and withdrawn by their owner, ended for ever (T7, T39)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tdn.errors import Refused, TrustError
from tdn.protocol.access import NO_ACCESS
from tdn.protocol.times import format_time
from tdn.protocol.trees import ADDED
from tdn.rules import collections, endings, hierarchy, principals, watches
from tdn.rules.sight import COLLECTION, LIVE, live
from tdn.rules.state import Draft, Fact, Occasion
from tdn.trust import openings, statements
from tdn.trust.envelope import Envelope
from tdn.trust.openings import Opened
from tdn.trust.replay import CLOCK_SKEW
from tdn.trust.statements import Advertisement

#: An advertisement must be applied within a day of its minting, so that a leaked old one cannot surface years later.
ADVERTISE_WITHIN = timedelta(days=1)

WITHDRAWN, EXPIRED = "withdrawn", "expired"


def advertise(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T7: only the named creator, once, in time. The first accepted record for a UUID is final."""
    if request.tail is None:
        raise Refused("the request carries no advertisement")
    advertisement = statements.read_advertisement(request.tail, lambda header, moment: principals.issuer(draft, header))
    uuid = advertisement.uuid
    if advertisement.network != principals.network(draft)["id"]:
        raise TrustError("the advertisement was minted in another network")
    if uuid != request.body["uuid"]:
        raise Refused("the request names another UUID than its advertisement")
    if advertisement.creator != request.signer.name.id:
        raise Refused(f"only its creator can advertise topic {uuid}")
    present = draft.get("topic", uuid)
    if present is not None:
        if present["state"] != LIVE:
            raise Refused(f"topic {uuid} has ended; a UUID never comes back")
        if present["digest"] != advertisement.digest:
            raise Refused(f"topic {uuid} was advertised before, with other content")
        return {"uuid": uuid, "digest": advertisement.digest, "expires": present["expires"]}
    opened = openings.read(request.body["opening"], advertisement.hidden)
    _require_advertisable(advertisement, opened, occasion)
    expires = format_time(advertisement.expires)
    fact: dict[str, Any] = {
        "kind": advertisement.kind,
        "digest": advertisement.digest,
        "creator": advertisement.creator,
        "owner": advertisement.creator,
        "created": format_time(advertisement.created),
        "expires": expires,
        "state": LIVE,
        "seq": occasion.seq,
        "advertised": occasion.seq,
        "record": occasion.record,
        **_standing(draft, advertisement, opened, occasion),
    }
    draft.put("topic", uuid, fact)
    draft.put("ends", f"{expires} topic {uuid}", {})
    if "parent" in fact:
        watches.tell_hierarchy(draft, uuid, fact, ADDED, occasion)
    if advertisement.kind == COLLECTION:
        collections.found(draft, request, uuid, opened.members, occasion)
    return {"uuid": uuid, "digest": advertisement.digest, "expires": expires}


def _require_advertisable(advertisement: Advertisement, opened: Opened, occasion: Occasion) -> None:
    uuid = advertisement.uuid
    if not opened.whole or opened.access is None:
        raise Refused("the opening keeps something closed; what is advertised goes into the log whole")
    if (advertisement.kind == COLLECTION) != (opened.gathering is not None) or (opened.gathering and opened.parent):
        raise Refused(f"{uuid} is advertised as one kind of thing and hides the options of another")
    if advertisement.created > occasion.at + CLOCK_SKEW:
        raise Refused(f"topic {uuid} is dated in the future; compare the nodes' clocks")
    if occasion.now > advertisement.created + ADVERTISE_WITHIN:
        raise Refused(f"topic {uuid} was minted more than a day ago and never advertised; create it again")
    if occasion.now >= advertisement.expires:
        raise Refused(f"topic {uuid} expired before it was advertised; create it again")


def _standing(draft: Draft, advertisement: Advertisement, opened: Opened, occasion: Occasion) -> dict[str, Any]:
    """What a fact has beside the advertisement's own: lists, place and options."""
    if opened.parent is not None:
        return hierarchy.claim(draft, advertisement, opened.parent, opened.access or NO_ACCESS, occasion)
    fact: dict[str, Any] = {}
    if opened.access is not None and opened.access.restrict:
        fact["access"] = hierarchy.keep_access(draft, opened.access)
    if (hosting := hierarchy.hosting_at_root(opened.hosting)) is not None:
        fact["hosting"] = hosting
    if opened.gathering is not None:
        fact["gathering"] = {**opened.gathering.as_object(), "notifications": opened.notifications}
    return fact


def renew(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T39: a new lifetime from now, within the ancestors'. What has ended stays ended."""
    uuid = request.body["uuid"]
    topic = _owned(draft, uuid, request, occasion)
    asked = occasion.at + timedelta(seconds=request.body["lifetime_seconds"])
    until = min(asked, hierarchy.latest_end(draft, topic["parent"])) if "parent" in topic else asked
    expires = format_time(until)
    endings.reschedule(draft, uuid, topic, expires, occasion)
    endings.settle(draft, occasion, endings.AT_ONCE)
    fixed = {"uuid": uuid, "digest": topic["digest"], "expires": expires}
    return {**fixed, "cut": True} if until < asked else fixed


def withdraw(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T39: the end of a topic, for ever, and of all below it."""
    uuid = request.body["uuid"]
    present = draft.get("topic", uuid)
    if present is not None and present["state"] == WITHDRAWN and present["owner"] == request.signer.name.id:
        # Asked again, by somebody who does not know how the first time ended.
        return {"uuid": uuid, "digest": present["digest"], "expires": present["expires"]}
    topic = _owned(draft, uuid, request, occasion)
    endings.end(draft, uuid, WITHDRAWN, occasion)
    endings.settle(draft, occasion, endings.AT_ONCE)
    return {"uuid": uuid, "digest": topic["digest"], "expires": topic["expires"]}


def _owned(draft: Draft, uuid: str, request: Envelope, occasion: Occasion) -> Fact:
    """The live topic, if the requester owns it. To anyone else, forbidden and absent are the same words (T18)."""
    topic = draft.get("topic", uuid)
    if topic is None or topic["owner"] != request.signer.name.id:
        raise Refused(f"there is no topic {uuid} that you own")
    if live(draft, uuid, occasion.now) is None:
        if topic["state"] == WITHDRAWN:
            raise Refused(f"topic {uuid} was withdrawn and stays so; create a new one")
        raise Refused(f"topic {uuid} has expired; create a new one")
    return topic
