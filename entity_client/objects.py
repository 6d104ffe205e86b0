"""What the library returns: verified values, and their form in `--json` output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from tdn.bus.address import NodeAddress
from tdn.errors import TrustError
from tdn.protocol import jsontext, schemas
from tdn.protocol.access import Asker, Lists
from tdn.protocol.times import format_time, parse_time
from tdn.queries.model import Subject
from tdn.trust import openings, sealed, statements
from tdn.trust.certificates import Identity
from tdn.trust.openings import Opened, Opening
from tdn.trust.signing import decode_segment, encode_segment
from tdn.trust.statements import Advertisement, IdentifyAt, Statement


@dataclass(frozen=True, slots=True)
class LocatedNode:
    """A node that answered (T12)."""

    id: str
    institution: str
    milliseconds: float
    policy: dict[str, Any]
    identity: Identity = field(repr=False)
    #: Where it answers by itself, if it said so; and, where it just did, how old its view of the log may be.
    endpoint: NodeAddress | None = None
    as_of: datetime | None = None

    def serves(self, asker: Asker) -> bool:
        """Whether it answers this asker, by the policy that it told (T11)."""
        answers = self.policy.get("answers")
        return not isinstance(answers, list) or asker.is_meant_by(answers)

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "node": self.id,
            "institution": self.institution,
            "milliseconds": round(self.milliseconds, 2),
            "policy": self.policy,
            "certificate_expires": format_time(self.identity.not_after),
        }
        if self.endpoint is not None:
            result["endpoint"] = f"{self.endpoint.host}:{self.endpoint.port}"
        return result | told_as_of(self.as_of)


def told_as_of(moment: datetime | None) -> dict[str, Any]:
    """What is added to an object that a node gave without the broker: it may be as old as this."""
    return {"as_of": format_time(moment)} if moment is not None else {}


@dataclass(frozen=True, slots=True)
class Decided:
    """A change that is in the log, with the proof."""

    kind: str
    uuid: str | None
    seq: int
    expires: datetime | None
    receipt: str = field(repr=False)
    #: Whether the lifetime was cut to that of an ancestor (T26).
    cut: bool = False
    #: The collection that was changed.
    collection: str | None = None
    #: How many changes a watcher has been told.
    version: int | None = None
    #: What else the node said.
    answer: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {"kind": self.kind, "seq": self.seq, "receipt": self.receipt}
        if self.expires is not None:
            result["expires"] = format_time(self.expires)
        if self.cut:
            result["cut"] = True
        told = {"uuid": self.uuid, "collection": self.collection, "version": self.version}
        return result | {name: value for name, value in told.items() if value is not None}


def read_decided(receipt: Statement) -> Decided:
    """What a verified receipt says."""
    payload = receipt.payload
    return Decided(
        payload["kind"],
        payload.get("uuid"),
        payload["seq"],
        parse_time(payload["expires"]) if "expires" in payload else None,
        receipt.token,
        "cut" in payload,
        payload.get("collection"),
        payload.get("version"),
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A verified topic. Owner and expiry are the present ones, which a signed status may have changed since minting (T39)."""

    advertisement: Advertisement
    owner: str
    expires: datetime
    status: str | None = field(default=None, repr=False)
    receipt: str | None = field(default=None, repr=False)
    #: What its advertisement hides, for its creator; needed to advertise it.
    opening: Opening | None = field(default=None, repr=False)
    #: The descriptor inside a sealed one, where our key opens it (T9).
    opened: Mapping[str, Any] | None = field(default=None, repr=False)
    #: Whether a child was just created with less than the lifetime that was asked for: its ancestors end sooner (T26).
    cut: bool = False
    #: Where a node gave it without the broker: as it was at this moment. What happened since, the node may not know.
    as_of: datetime | None = None

    @property
    def uuid(self) -> str:
        return self.advertisement.uuid

    @property
    def descriptor(self) -> Mapping[str, Any]:
        """What it is about, as far as we may know: a sealed descriptor that is not ours says nothing."""
        return self.advertisement.descriptor if self.opened is None else self.opened

    @property
    def is_sealed(self) -> bool:
        return bool(self.advertisement.descriptor["kind"] == "sealed")

    @property
    def hides(self) -> Opened:
        """What its advertisement hides, as far as we may know."""
        return openings.read(self.opening, self.advertisement.hidden) if self.opening is not None else NOTHING_OPENED

    @property
    def lists(self) -> Lists | None:
        """Who may discover it, where we may know."""
        access = self.hides.access
        return access.discover if access is not None else None

    @property
    def subject(self) -> Subject:
        """The topic as queries see it."""
        told = self.advertisement
        created, expires = format_time(told.created), format_time(self.expires)
        return Subject(
            told.uuid, told.kind, told.creator, self.owner, told.institution, created, expires, self.descriptor, told.synopsis
        )

    @property
    def place(self) -> str:
        """Where it stands in the order of answers, as cursors write it."""
        return f"{format_time(self.advertisement.created)}_{self.uuid}"

    def line(self, *, hidden: bool = True) -> bytes:
        """The line that `read_topic` reads."""
        parts = [self.token.encode(), (self.status or "").encode()]
        if hidden and self.opening is not None:
            parts.append(encode_segment(jsontext.canonical(dict(self.opening))).encode())
        return b" ".join(parts).rstrip(b" ")

    @property
    def synopsis(self) -> str:
        return self.advertisement.synopsis

    @property
    def token(self) -> str:
        """The signed advertisement."""
        return self.advertisement.token

    def as_object(self) -> dict[str, Any]:
        advertisement = self.advertisement
        result: dict[str, Any] = {
            "uuid": advertisement.uuid,
            "kind": advertisement.kind,
            "creator": advertisement.creator,
            "owner": self.owner,
            "institution": advertisement.institution,
            "created": format_time(advertisement.created),
            "expires": format_time(self.expires),
            "descriptor": {"kind": "sealed"} if self.is_sealed and self.opened is None else dict(self.descriptor),
            "synopsis": advertisement.synopsis,
            "synopsis_type": advertisement.synopsis_type,
            "node": advertisement.node,
            "advertisement": advertisement.token,
        }
        if self.is_sealed:
            result["sealed"] = True
        if self.cut:
            result["cut"] = True
        if self.opening is not None:
            result |= {**_described(self.hides), "opening": dict(self.opening)}
        if self.status is not None:
            result["status"] = self.status
        if self.receipt is not None:
            result["receipt"] = self.receipt
        return result | told_as_of(self.as_of)


@dataclass(frozen=True, slots=True)
class Placed:
    """A verified topic or collection in a tree: how far from what was asked about, and what it is directly below or in, where that shows."""

    topic: Topic
    depth: int
    inside: str | None

    @property
    def uuid(self) -> str:
        return self.topic.uuid

    def as_object(self) -> dict[str, Any]:
        place: dict[str, Any] = {"depth": self.depth} if self.inside is None else {"depth": self.depth, "parent": self.inside}
        return {**self.topic.as_object(), **place}


@dataclass(frozen=True, slots=True)
class Change:
    """A verified change of what we follow (T29, T35)."""

    subject: str
    version: int
    change: str
    uuid: str
    kind: str
    at: str
    #: What it was added to or removed from, where that is one thing.
    inside: str | None
    #: The record of the log that made it.
    seq: int
    node: str
    notification: str = field(repr=False)

    def as_object(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "subject": self.subject,
            "version": self.version,
            "change": self.change,
            "uuid": self.uuid,
            "kind": self.kind,
            "at": self.at,
        }
        if self.inside is not None:
            told["in"] = self.inside
        return {**told, "node": self.node, "notification": self.notification}


NOTHING_OPENED = Opened(whole=False)


def _described(opened: Opened) -> dict[str, Any]:
    """What an advertisement hides, in the words of the public interface."""
    told: dict[str, Any] = opened.access.as_object() if opened.access is not None else {}
    if opened.parent is not None:
        told["parent"] = opened.parent
    if opened.hosting is not None:
        told |= opened.hosting.as_object()
    if opened.whole and opened.gathering is None:
        told["root_topic"] = opened.parent is None
    if opened.gathering is not None:
        told |= {**opened.gathering.as_object(), "notifications": opened.notifications}
    if opened.members:
        told["members"] = list(opened.members)
    return told


def read_placed(
    line: bytes, identify: IdentifyAt, network: str, key: EllipticCurvePrivateKey | None, *, in_hierarchy: bool
) -> Placed:
    """What stands in one line of an answer about a tree. Where a topic's parent is told, its advertisement must say the same; what is in
    which collection is the node's word, which it signs."""
    rest, _, place_segment = line.rpartition(b" ")
    place = jsontext.parse(decode_segment(place_segment))
    schemas.check("place", place)
    topic = read_topic(rest.rstrip(b" "), identify, network, key)
    inside = place.get("in")
    if in_hierarchy and inside is not None and topic.hides.parent != inside:
        raise TrustError("the node names another parent than the advertisement")
    return Placed(topic, place["depth"], inside)


def read_change(token: bytes, identify: IdentifyAt, network: str, watcher: str) -> Change:
    """A notification that is ours."""
    statement = statements.read(token, identify)
    payload = statement.payload
    if statement.kind != "notification" or (payload["network"], payload["watcher"]) != (network, watcher):
        raise TrustError("the notification is not for us")
    return Change(
        payload["subject"],
        payload["version"],
        payload["change"],
        payload["uuid"],
        payload["kind"],
        payload["at"],
        payload.get("in"),
        payload["seq"],
        statement.signer.name.id,
        statement.token,
    )


def read_topic(line: bytes, identify: IdentifyAt, network: str, key: EllipticCurvePrivateKey | None) -> Topic:
    """A topic from one line of an answer: the advertisement and, after spaces, its status and what it hides, as far as we may know. All of it
    verified, and about each other. A sealed one is opened, if it was sealed for this key.
    """
    token, _, rest = line.partition(b" ")
    status_token, _, hidden = rest.partition(b" ")
    advertisement = statements.read_advertisement(token, identify)
    if advertisement.network != network:
        raise TrustError("the advertisement was minted in another network")
    opened = None
    if key is not None and advertisement.descriptor["kind"] == "sealed":
        opened = sealed.open_descriptor(advertisement.descriptor, creator=advertisement.creator, network=network, key=key)
    opening = None
    if hidden:
        opening = jsontext.parse(decode_segment(hidden))
        schemas.check("opening", opening)
        openings.read(opening, advertisement.hidden)
    if not status_token:
        return Topic(advertisement, advertisement.creator, advertisement.expires, opening=opening, opened=opened)
    status = statements.read(status_token, identify)
    if status.kind != "status" or status.payload["uuid"] != advertisement.uuid or status.payload["network"] != network:
        raise TrustError("the status does not belong to the advertisement")
    return Topic(
        advertisement,
        status.payload["owner"],
        parse_time(status.payload["expires"]),
        status.token,
        opening=opening,
        opened=opened,
    )
