"""What the library returns: verified values, and their form in `--json` output."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tdn.errors import TrustError
from tdn.protocol.times import format_time, parse_time
from tdn.trust import statements
from tdn.trust.certificates import Identity
from tdn.trust.statements import Advertisement, IdentifyAt


@dataclass(frozen=True, slots=True)
class LocatedNode:
    """A node that answered (T12)."""

    id: str
    institution: str
    milliseconds: float
    policy: dict[str, Any]
    identity: Identity = field(repr=False)

    def as_object(self) -> dict[str, Any]:
        return {
            "node": self.id,
            "institution": self.institution,
            "milliseconds": round(self.milliseconds, 2),
            "policy": self.policy,
            "certificate_expires": format_time(self.identity.not_after),
        }


@dataclass(frozen=True, slots=True)
class Decided:
    """A change that is in the log, with the proof."""

    kind: str
    uuid: str | None
    seq: int
    expires: datetime | None
    receipt: str = field(repr=False)

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {"kind": self.kind, "seq": self.seq, "receipt": self.receipt}
        if self.uuid is not None:
            result["uuid"] = self.uuid
        if self.expires is not None:
            result["expires"] = format_time(self.expires)
        return result


@dataclass(frozen=True, slots=True)
class Topic:
    """A verified topic. Owner and expiry are the present ones, which a signed status may have changed since minting (T39)."""

    advertisement: Advertisement
    owner: str
    expires: datetime
    status: str | None = field(default=None, repr=False)
    receipt: str | None = field(default=None, repr=False)

    @property
    def uuid(self) -> str:
        return self.advertisement.uuid

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
            "descriptor": dict(advertisement.descriptor),
            "synopsis": advertisement.synopsis,
            "synopsis_type": advertisement.synopsis_type,
            "node": advertisement.node,
            "advertisement": advertisement.token,
        }
        if self.status is not None:
            result["status"] = self.status
        if self.receipt is not None:
            result["receipt"] = self.receipt
        return result


def read_topic(line: bytes, identify: IdentifyAt, network: str) -> Topic:
    """A topic from one line of an answer: the advertisement and, after a space, its status. Both verified, and about each other."""
    token, _, status_token = line.partition(b" ")
    advertisement = statements.read_advertisement(token, identify)
    if advertisement.network != network:
        raise TrustError("the advertisement was minted in another network")
    if not status_token:
        return Topic(advertisement, advertisement.creator, advertisement.expires)
    status = statements.read(status_token, identify)
    if status.kind != "status" or status.payload["uuid"] != advertisement.uuid or status.payload["network"] != network:
        raise TrustError("the status does not belong to the advertisement")
    return Topic(advertisement, status.payload["owner"], parse_time(status.payload["expires"]), status.token)
