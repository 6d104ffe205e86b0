"""Topics in the log: advertised by their creator, renewed and withdrawn by their owner, ended for ever (T7, T39)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tdn.errors import Refused, TrustError
from tdn.protocol.times import format_time, parse_time
from tdn.rules import principals
from tdn.rules.state import Fact, State, Write
from tdn.trust import openings, statements
from tdn.trust.envelope import Envelope
from tdn.trust.replay import CLOCK_SKEW

#: An advertisement must be applied within a day of its minting, so that a leaked old one cannot surface years later.
ADVERTISE_WITHIN = timedelta(days=1)

LIVE, WITHDRAWN, EXPIRED = "live", "withdrawn", "expired"


def advertise(state: State, request: Envelope, at: datetime, seq: int) -> tuple[tuple[Write, ...], dict[str, Any]]:
    """T7: only the named creator, once, in time. The first accepted record for a UUID is final."""
    if request.tail is None:
        raise Refused("the request carries no advertisement")
    advertisement = statements.read_advertisement(request.tail, lambda header, moment: principals.issuer(state, header))
    if advertisement.network != principals.network(state)["id"]:
        raise TrustError("the advertisement was minted in another network")
    if advertisement.uuid != request.body["uuid"]:
        raise Refused("the request names another UUID than its advertisement")
    if advertisement.creator != request.signer.name.id:
        raise Refused(f"only its creator can advertise topic {advertisement.uuid}")
    present = state.get("topic", advertisement.uuid)
    if present is not None:
        if present["state"] != LIVE:
            raise Refused(f"topic {advertisement.uuid} has ended; a UUID never comes back")
        if present["digest"] != advertisement.digest:
            raise Refused(f"topic {advertisement.uuid} was advertised before, with other content")
        return (), {"uuid": advertisement.uuid, "digest": advertisement.digest, "expires": present["expires"]}
    if advertisement.created > at + CLOCK_SKEW:
        raise Refused(f"topic {advertisement.uuid} is dated in the future; compare the nodes' clocks")
    lists = openings.read(request.body["opening"], advertisement.hidden)
    moments = (at, log_time(state))
    if any(moment > advertisement.created + ADVERTISE_WITHIN for moment in moments):
        raise Refused(f"topic {advertisement.uuid} was minted more than a day ago and never advertised; create it again")
    if any(moment >= advertisement.expires for moment in moments):
        raise Refused(f"topic {advertisement.uuid} expired before it was advertised; create it again")
    expires = format_time(advertisement.expires)
    fact: dict[str, Any] = {
        "kind": advertisement.kind,
        "digest": advertisement.digest,
        "creator": advertisement.creator,
        "owner": advertisement.creator,
        "created": format_time(advertisement.created),
        "expires": expires,
        "state": LIVE,
        "seq": seq,
        "advertised": seq,
    }
    if lists.restrict:
        fact["lists"] = lists.as_object()
    writes = (Write("topic", advertisement.uuid, fact), _end(expires, advertisement.uuid))
    return writes, {"uuid": advertisement.uuid, "digest": advertisement.digest, "expires": expires}


def renew(state: State, request: Envelope, at: datetime, seq: int) -> tuple[tuple[Write, ...], dict[str, Any]]:
    """T39: a new lifetime from now. What has ended stays ended."""
    uuid = request.body["uuid"]
    topic = _owned(state, uuid, request, at)
    expires = format_time(at + timedelta(seconds=request.body["lifetime_seconds"]))
    writes = (
        Write("topic", uuid, {**topic, "expires": expires, "seq": seq}),
        Write("ends", f"{topic['expires']} topic {uuid}", None),
        _end(expires, uuid),
    )
    return writes, {"uuid": uuid, "digest": topic["digest"], "expires": expires}


def withdraw(state: State, request: Envelope, at: datetime, seq: int) -> tuple[tuple[Write, ...], dict[str, Any]]:
    """T39: the end of a topic, for ever."""
    uuid = request.body["uuid"]
    present = state.get("topic", uuid)
    if present is not None and present["state"] == WITHDRAWN and present["owner"] == request.signer.name.id:
        # Asked again, by somebody who does not know how the first time ended.
        return (), {"uuid": uuid, "digest": present["digest"], "expires": present["expires"]}
    topic = _owned(state, uuid, request, at)
    writes = (
        Write("topic", uuid, {**topic, "state": WITHDRAWN, "seq": seq}),
        Write("ends", f"{topic['expires']} topic {uuid}", None),
    )
    return writes, {"uuid": uuid, "digest": topic["digest"], "expires": topic["expires"]}


def expire(topic: Fact, uuid: str, seq: int) -> Write:
    return Write("topic", uuid, {**topic, "state": EXPIRED, "seq": seq})


def log_time(state: State) -> datetime:
    return parse_time(principals.network(state)["time"])


def is_live(topic: Fact, now: datetime) -> bool:
    """A thing has ended when either log time or the reader's own clock says so."""
    return topic["state"] == LIVE and now < parse_time(topic["expires"])


def _owned(state: State, uuid: str, request: Envelope, at: datetime) -> Fact:
    """The live topic, if the requester owns it. To anyone else, forbidden and absent are the same words (T18)."""
    topic = state.get("topic", uuid)
    if topic is None or topic["owner"] != request.signer.name.id:
        raise Refused(f"there is no topic {uuid} that you own")
    if topic["state"] != LIVE or not is_live(topic, max(at, log_time(state))):
        ended = WITHDRAWN if topic["state"] == WITHDRAWN else EXPIRED
        raise Refused(
            f"topic {uuid} was {ended} and stays so; create a new one"
            if ended == WITHDRAWN
            else f"topic {uuid} has expired; create a new one"
        )
    return topic


def _end(expires: str, uuid: str) -> Write:
    return Write("ends", f"{expires} topic {uuid}", {})
