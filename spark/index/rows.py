"""One archived record, verified and divided into the rows of tables. Pure: certificates and roots are passed in.

Every signature is checked: the node's on the record, the requester's on the request, the minting node's on an advertisement. Whether the request was to
be accepted is not judged again; that is the word of the node that signed the manifest, and `tdn archive verify` judges all of it. A record with
something wrong has no effect but a row in `rejected`; only a certificate that it brought is believed for what it is, since it leads to the roots by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from tdn.errors import TdnError, TrustError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext, schemas
from tdn.protocol.access import read_access
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.queries.model import indexed_text
from tdn.trust import envelope, signing, statements
from tdn.trust.certificates import Identity, TrustRoots
from tdn.trust.envelope import Envelope
from tdn.trust.statements import Advertisement

Row = dict[str, Any]
#: Rows by table.
Rows = dict[str, list[Row]]

#: What reading a record raises that holds something else than it should.
UNREADABLE = (TdnError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)

#: Finds a certificate that the index has verified, by its thumbprint.
Known = Callable[[str], Identity]


@dataclass(frozen=True, slots=True)
class Trust:
    """What a pass believes: the roots, the certificates that lead to them, and which network's log it is."""

    roots: TrustRoots
    known: Known
    network: str


def stage(seq: int, at: datetime | None, kind: str, status: str, raw: bytes, effects: str, trust: Trust) -> Rows:
    """The rows of a record, by table. Never raises for what the record holds."""
    staged: Rows = {"records": [{"seq": seq, "judged_at": at, "kind": kind, "status": status}]}
    if status == "void":
        # No node signed it, or it should not be there: it did nothing, and there is nothing to check it by.
        return staged
    uuid = None
    try:
        request = _verify(raw, kind, accepted=status in ("accepted", "repeated"), trust=trust)
        writes = orjson.loads(effects)
        if writes and status != "accepted":
            raise TrustError(f"a record that was {status} has effects")
        uuid = request.body.get("uuid") if request is not None else None
        staged |= _divide(writes, seq, at)
        if kind == "advertise" and status == "accepted" and request is not None:
            staged |= _advertised(request, seq, at, writes, trust)
    except UNREADABLE as error:
        return {"records": staged["records"], "rejected": [reject(seq, at, kind, raw, error, uuid=uuid)]}
    return staged


def reject(seq: int, at: datetime | None, kind: str, raw: bytes, error: Exception, *, uuid: str | None = None) -> Row:
    reason = error.message if isinstance(error, TdnError) else f"{type(error).__name__}: {error}"
    return {"seq": seq, "judged_at": at, "kind": kind, "uuid": uuid, "reason": reason[:1000], "raw": raw}


def _verify(raw: bytes, kind: str, *, accepted: bool, trust: Trust) -> Envelope | None:
    """The request that a record carries, its signatures verified; of one that was refused, the node's signature alone."""
    message = signing.split(raw)
    if message.header.kind != "record":
        raise TrustError("not a record")
    if kind == "genesis" and message.tail is not None and accepted:
        # It makes the log, and nobody was enrolled before it: what counts is the operator's signature.
        return envelope.authenticate(message.tail, lambda header: trust.known(header.thumbprint))
    appender = trust.known(message.header.thumbprint)
    payload = signing.verify(message, appender.public_key)
    schemas.check("record", payload)
    if payload["node"] != appender.name.id or appender.name.role is not Role.NODE:
        raise TrustError("the record was not appended by the node that it names")
    appender.require_valid_at(parse_time(payload["at"]))
    if payload["kind"] != kind:
        raise TrustError(f"the record is a {payload['kind']}, not a {kind}")
    if message.tail is None or not accepted:
        return None
    request = envelope.authenticate(message.tail, lambda header: trust.known(header.thumbprint))
    if request.kind != kind:
        raise TrustError("the record names another kind than its request")
    return request


def _advertised(request: Envelope, seq: int, at: datetime | None, writes: list[Any], trust: Trust) -> Rows:
    """The rows of an advertisement that the log took. One that was there already has no effects, and no rows."""
    if request.tail is None:
        raise TrustError("the request carries no advertisement")
    fact = next((value for space, key, value in writes if space == "topic" and value and value["advertised"] == seq), None)
    if fact is None:
        return {}
    minted = statements.read_advertisement(request.tail, statements.by_roots(trust.roots))
    if minted.network != trust.network:
        raise TrustError("the advertisement was minted in another network")
    if minted.digest != fact["digest"] or minted.uuid != request.body["uuid"]:
        raise TrustError("what the record did is about another advertisement than it carries")
    if minted.creator != request.signer.name.id:
        raise TrustError("the advertisement is another's than its request")
    return {
        "advertisements": [_advertisement(minted, seq, at, fact)],
        "signed": [
            {
                "uuid": minted.uuid,
                "seq": seq,
                "advertisement": minted.token,
                "opening": orjson.dumps(request.body["opening"], option=orjson.OPT_SORT_KEYS).decode(),
            }
        ],
        "properties": [_property(minted, seq, name) for name in minted.descriptor.get("properties", ())],
    }


def _advertisement(minted: Advertisement, seq: int, at: datetime | None, fact: Mapping[str, Any]) -> Row:
    descriptor = minted.descriptor
    kind = descriptor["kind"]
    if kind == "properties":
        descriptors.check(descriptor)
    return {
        "uuid": minted.uuid,
        "seq": seq,
        "judged_at": at,
        "created": minted.created,
        "expires": minted.expires,
        "creator": minted.creator,
        "institution": minted.institution,
        "kind": minted.kind,
        "descriptor_kind": kind,
        "path": descriptor.get("path"),
        "text": descriptor.get("text"),
        "keywords": descriptor.get("keywords"),
        "properties": [(name, as_text(value)) for name, value in descriptor["properties"].items()] if kind == "properties" else None,
        # In the same order: readers go along both at once.
        "types": [(name, descriptor["types"][name]) for name in descriptor["properties"]] if kind == "properties" else None,
        "xml": descriptor.get("xml"),
        "synopsis_type": minted.synopsis_type,
        "synopsis": minted.synopsis,
        "node": minted.node,
        "digest": minted.digest,
        "access": fact.get("access"),
        "parent": fact.get("parent"),
        # Refuses XML that is none: what a live node leaves out of its table is not indexed here either.
        "indexed": indexed_text(descriptor, minted.synopsis),
    }


def as_text(value: Any) -> str:
    """A property's value as the tables hold it; `as_value` gives the same value again."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def as_value(text: str, kind: str) -> Any:
    if kind == "boolean":
        return text == "true"
    if kind == "integer":
        return int(text)
    if kind == "float":
        # JSON has one kind of number: a float may have been written without its point.
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return text


def _property(minted: Advertisement, seq: int, name: str) -> Row:
    value, kind = minted.descriptor["properties"][name], minted.descriptor["types"][name]
    return {
        "uuid": minted.uuid,
        "seq": seq,
        "name": name,
        "type": kind,
        "value": as_text(value),
        "number": float(value) if kind in ("integer", "float") else None,
        "moment": parse_time(value) if kind == "timestamp" else None,
    }


def _divide(writes: list[Any], seq: int, at: datetime | None) -> Rows:
    rows: Rows = {}
    for space, key, value in writes:
        divide = _DIVIDE.get(space)
        if divide is not None and (row := divide(key, value, seq, at)) is not None:
            table, columns = row
            rows.setdefault(table, []).append(columns)
    return rows


def _topic(uuid: str, value: Mapping[str, Any], seq: int, at: datetime | None) -> tuple[str, Row] | None:
    if value["advertised"] == seq:
        # Its first state is what its advertisement says.
        return None
    expires = parse_time(value["expires"])
    if value["state"] == "expired" and at is not None and expires <= at:
        # Whoever asks compares its expiry with the moment it asks about.
        return None
    return "changes", {
        "uuid": uuid,
        "seq": seq,
        "judged_at": at,
        "owner": value["owner"],
        "expires": expires,
        "state": value["state"],
        "honours": value.get("honours", 0),
    }


def _access(digest: str, value: Mapping[str, Any] | None, seq: int, at: datetime | None) -> tuple[str, Row] | None:
    if value is None:
        return None
    pair = read_access(value).discover
    lists = {
        "access": digest,
        "seq": seq,
        "allow": None if pair.allow is None else list(pair.allow),
        "deny": list(pair.deny),
        "lists": jsontext.canonical(dict(value)).decode(),
    }
    return "access", lists


def _principal(name: str, value: Mapping[str, Any], seq: int, at: datetime | None) -> tuple[str, Row]:
    return "principals", {
        "principal": name,
        "seq": seq,
        "judged_at": at,
        "institution": value["institution"],
        "thumbprint": value["thumbprint"],
        "key": value["key"],
        "expires": parse_time(value["expires"]),
        "revoked": not value["thumbprint"] or value["key"] in value["revoked"],
    }


def _member(key: str, value: Mapping[str, Any] | None, seq: int, at: datetime | None) -> tuple[str, Row]:
    collection, kind, uuid = key.split(" ")
    return "members", {
        "collection": collection,
        "uuid": uuid,
        "kind": kind,
        "seq": seq,
        "judged_at": at,
        "present": value is not None,
    }


def _settling(key: str, value: Mapping[str, Any] | None, seq: int, at: datetime | None) -> tuple[str, Row] | None:
    kind, _, uuid = key.partition(" ")
    return ("settling", {"uuid": uuid, "seq": seq, "present": value is not None}) if kind == "topic" else None


def _grant(name: str, value: Mapping[str, Any] | None, seq: int, at: datetime | None) -> tuple[str, Row]:
    said = {"id": name, "seq": seq, "judged_at": at}
    if value is None:
        return "grants", {**said, "state": "forgotten"}
    return "grants", {
        **said,
        "right": value["right"],
        "topic": value["topic"],
        "tree": bool(value["tree"]),
        "issuer": value["issuer"],
        "grantee": value["grantee"],
        "not_before": parse_time(value["from"]),
        "expires": parse_time(value["until"]),
        "delegable": bool(value["delegable"]),
        "parent": value.get("parent"),
        "epoch": value["epoch"],
        "state": value["state"],
    }


_DIVIDE: dict[str, Callable[[str, Any, int, datetime | None], tuple[str, Row] | None]] = {
    "topic": _topic,
    "access": _access,
    "principal": _principal,
    "member": _member,
    "settling": _settling,
    "grant": _grant,
}
