"""Questions about grants: which there are, whether somebody may, and who reads a topic (T20). Read-only, from a node's own view."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tdn.errors import Absent, LogDiverged, Refused
from tdn.protocol import schemas
from tdn.protocol.access import EVERYONE, INSTITUTION, Asker
from tdn.protocol.times import format_time, from_epoch, parse_time
from tdn.rules import feeds
from tdn.rules.rights import Rights, who_key
from tdn.rules.sight import COLLECTION, LIVE, Sight, asker_of
from tdn.rules.state import Fact, scan_below
from tdn.store.search import Reader
from tdn.store.topics import advertisement_in
from tdn.trust import grants, signing, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.grants import PUBLISH

#: Grants, and bytes of them, in one answer; readers' certificates in one.
_PAGE = 50
_PAGE_BYTES = 140_000
_READERS = 40
DISCOVER = "discover"


def listed(question: Envelope, reader: Reader, node: Credentials, network: str, now: datetime) -> tuple[dict[str, Any], bytes]:
    """Grants with all that they rest on: of a topic that the asker owns, or those that it gave and holds."""
    body, asker = question.body, question.signer.asker
    lines: list[bytes] = []
    size, last = 0, ""
    answer: dict[str, Any] = {}
    for grant, fact in _found(body, reader, asker):
        line = f"{_state(reader, grant, fact, now)} ".encode() + _bundle(reader, fact, node, network, now)
        if lines and (len(lines) == _PAGE or size + len(line) > _PAGE_BYTES):
            answer["cursor"] = last
            break
        lines.append(line)
        size += len(line) + 1
        last = grant
    return {"count": len(lines), **answer}, b"\n".join(lines)


def _found(body: Fact, reader: Reader, asker: Asker) -> Iterator[tuple[str, Fact]]:
    """In the order of their ids, each once."""
    after = body.get("cursor", "")
    mine = [("issued", asker.entity or ""), *(("held", who_key(name)) for name in sorted(asker.names))]
    uuid = body.get("uuid")
    if uuid is not None and (reader.get("topic", uuid) or {}).get("owner") == asker.entity:
        mine = [("about", uuid)]
    one = body.get("grant")
    sources: list[Iterator[str]] = (
        [iter([one])] if one is not None else [_ids(reader, space, prefix, after) for space, prefix in mine]
    )
    for grant, _ in itertools.groupby(heapq.merge(*sources)):
        fact = reader.get("grant", grant)
        if fact is None or (uuid is not None and fact["topic"] != uuid):
            continue
        if one is not None and not _concerns(reader, fact, asker):
            continue
        yield grant, fact


def _ids(reader: Reader, space: str, prefix: str, after: str) -> Iterator[str]:
    return (grant for grant, _ in scan_below(reader, space, prefix, after=after))


def _concerns(reader: Reader, fact: Fact, asker: Asker) -> bool:
    owner = (reader.get("topic", fact["topic"]) or {}).get("owner")
    return asker.entity in (fact["issuer"], owner) or asker.is_meant_by([fact["grantee"]])


def _state(reader: Reader, grant: str, fact: Fact, now: datetime) -> str:
    if fact["state"] != LIVE:
        return str(fact["state"])
    if parse_time(fact["until"]) <= now:
        return "expired"
    if parse_time(fact["from"]) > now:
        return LIVE
    # Whoever lost what it rests on has lost it too.
    return LIVE if Rights(reader, now).chain_of(grant, fact["topic"]) is not None else "revoked"


def _bundle(reader: Reader, fact: Fact, node: Credentials, network: str, now: datetime) -> bytes:
    records = (fact["given"], *(seq for seq, _ in fact["rests"]))
    tokens = [_token(reader, seq) for seq in records]
    issuer, uuid = grants.issuer_and_topic(tokens[-1])
    topic = reader.get("topic", uuid) or {}
    if issuer != topic["creator"]:
        tokens.append(_owner(uuid, topic, issuer, records[-1], tokens[-1], node, network, now))
    return grants.join(*tokens, _token(reader, topic["advertised"]))


def _token(reader: Reader, seq: int) -> bytes:
    raw = reader.record(seq)
    if raw is None:
        raise LogDiverged("the store has lost a record that a grant rests on")
    return advertisement_in(raw)


def _owner(
    uuid: str, topic: Fact, issuer: str, seq: int, grant: bytes, node: Credentials, network: str, now: datetime
) -> bytes:
    """Who owned a topic that has changed hands when a grant on it was given, as this node says it: the log took it from its owner only. The
    topic may have changed hands again since, and the grant may have been kept."""
    issued = from_epoch(signing.parse_payload(signing.split(grant))["iat"])
    payload = {
        "v": schemas.VERSION,
        "network": network,
        "uuid": uuid,
        "owner": issuer,
        "expires": topic["expires"],
        "state": LIVE,
        "seq": seq,
        "at": format_time(issued),
    }
    return statements.sign("status", payload, node, now)


def judged(question: Envelope, reader: Reader, now: datetime) -> dict[str, Any]:
    """May I? With the reason. Of what the asker may not see, nothing but that."""
    uuid, right, asker = question.body["uuid"], question.body["right"], question.signer.asker
    answer = {"uuid": uuid, "right": right}
    seen = Sight(reader, asker, now).topic(uuid)
    if right == DISCOVER:
        if seen is None:
            return {**answer, "allowed": False, "because": f"there is no topic {uuid} that you may see"}
        why = "you own it" if seen["owner"] == asker.entity else "its lists let you see it"
        return {**answer, "allowed": True, "because": why}
    basis = Rights(reader, now).basis(asker, right, uuid)
    if basis is not None:
        names = list(basis.grants)
        why = _chain_in_words(reader, names, right, asker) if names else "you own it"
        return {**answer, "allowed": True, "because": why, "grants": names}
    return {**answer, "allowed": False, "because": _why_not(reader, uuid, right, asker, seen, now)}


def _chain_in_words(reader: Reader, chain: list[str], right: str, asker: Asker) -> str:
    words = []
    for number, grant in enumerate(chain, start=1):
        fact = reader.get("grant", grant) or {}
        whom = "you" if number == len(chain) and fact["grantee"] == asker.entity else _whom(fact["grantee"])
        where = " to all in its tree" if fact["tree"] else ""
        words.append(f"{fact['issuer']} let {whom} {right}{where} until {fact['until']}")
    return "; ".join(words)[:1000]


def _whom(grantee: str) -> str:
    if grantee == EVERYONE:
        return "everyone"
    return f"all of {grantee.removeprefix(INSTITUTION)!r}" if grantee.startswith(INSTITUTION) else grantee


def _why_not(reader: Reader, uuid: str, right: str, asker: Asker, seen: Fact | None, now: datetime) -> str:
    for grant, _ in scan_below(reader, "about", uuid):
        fact = reader.get("grant", grant)
        if fact is None or fact["right"] != right or fact["grantee"] != asker.entity:
            continue
        if fact["state"] == LIVE and parse_time(fact["from"]) > now:
            return f"grant {grant} holds from {fact['from']} on"
        ended = {"revoked": "was revoked", "expired": f"ended at {fact['until']}"}.get(_state(reader, grant, fact, now))
        if ended is not None:
            return f"grant {grant} of {fact['issuer']} {ended}"
    if seen is None:
        return f"there is no topic {uuid} that you may see"
    if seen["kind"] == COLLECTION:
        return "it is a collection, which carries no messages itself"
    return f"no grant lets you; its owner is {seen['owner']}"


def readers(question: Envelope, reader: Reader, now: datetime) -> dict[str, Any]:
    """Who reads a topic now, for somebody who may publish to it and encrypts."""
    uuid, cursor = question.body["uuid"], question.body.get("cursor", "")
    if Rights(reader, now).basis(question.signer.asker, PUBLISH, uuid) is None:
        raise Absent(f"there is no topic {uuid} that you may publish to")
    entities = sorted({feed.entity for feed in feeds.reaching(reader, uuid, now) if feed.entity > cursor})
    chains = [chain for entity in entities[:_READERS] if (chain := _certificate(reader, entity)) is not None]
    more = {"cursor": entities[_READERS - 1]} if len(entities) > _READERS else {}
    return {"chains": chains, **more}


def _certificate(reader: Reader, entity: str) -> list[str] | None:
    principal = reader.get("principal", f"entity:{entity}")
    if principal is None or asker_of(reader, entity) is None:
        return None
    certificate = reader.get("certificate", principal["thumbprint"])
    return list(certificate["chain"]) if certificate is not None else None


def require_entity(question: Envelope) -> None:
    if question.signer.asker.entity is None:
        raise Refused("only entities have grants")
