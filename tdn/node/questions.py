"""Questions that a node answers from its own view: locate, create, discover, show, lookup, about trees and their changes, about grants.

A question is sealed to the node, lives a minute or two, and has no effect; minting too leaves nothing behind (T7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tdn.bus.address import NodeAddress
from tdn.errors import Absent, Refused, UsageError
from tdn.node import granted
from tdn.node.policy import Policy
from tdn.node.searching import Result, read_places, read_result
from tdn.protocol import jsontext, schemas
from tdn.protocol.access import Asker
from tdn.protocol.names import Role, check_uuid, mint_uuid
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.rules import countersignatures, watches
from tdn.rules.sight import COLLECTION, Sight, asker_of
from tdn.store.search import FoundTopic, Reader
from tdn.trust import openings, signing, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

#: Bytes of advertisements in one page. Signed, sealed and in base64 it stays below the message limit, the largest descriptor included.
_PAGE_BYTES = 140_000
#: Topics in one page: small enough that the first ones show at once, large enough that a page's signature is a small part.
_PAGE_TOPICS = 100

#: A node that has not ticked for so long is taken to be away.
_PRESENT_WITHIN = timedelta(seconds=20)
#: How old a status may be that is given out, and how many are kept.
_STATUS_FOR = timedelta(seconds=5)
_STATUSES = 5_000
_PEERS_FOR = timedelta(seconds=0.2)

#: Notifications in one answer: each costs a signature.
_CHANGES_AT_ONCE = 50

KINDS = frozenset(
    {"locate", "create", "discover", "show", "lookup", "peer", "tree", "changes", "use", "readers", "may", "grants"}
)
_OF_GRANTS = frozenset({"may", "grants", "readers"})
#: Questions that may take long, and are looked into by a process that can be killed.
SEARCHED = frozenset({"discover", "tree"})


@dataclass(frozen=True, slots=True)
class Answer:
    kind: str
    body: dict[str, Any]
    tail: bytes | None = None


class Peers:
    """Nodes that have ticked lately, so that an asker knows whom it can expect to hear from. Looked up a few times a second."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._present: list[str] = []

    def present(self, reader: Reader, now: datetime) -> list[str]:
        if self._at is None or not timedelta(0) <= now - self._at < _PEERS_FOR:
            since = format_time(whole_seconds(now) - _PRESENT_WITHIN)
            self._present = [node for node, tick in reader.all("tick") if tick["at"] >= since]
            self._at = now
        return self._present


@dataclass(frozen=True, slots=True)
class Desk:
    """What questions are answered with."""

    node: Credentials
    network: str
    policy: Policy
    #: How far the node's view of the log is.
    position: Callable[[], int]
    #: Where it answers by itself, if it does.
    endpoint: NodeAddress | None = None
    peers: Peers = field(default_factory=Peers)
    #: Statuses that were signed lately, by topic and change.
    statuses: dict[tuple[str, int], tuple[datetime, bytes]] = field(default_factory=dict)


def answer(desk: Desk, question: Envelope, reader: Reader, now: datetime) -> Iterator[Answer]:
    """The answers to a question, one message each; or one of our errors."""
    if question.signer.name.role not in (Role.ENTITY, Role.OPERATOR):
        raise Refused("only entities ask")
    if question.kind == "locate":
        yield _locate(desk, reader, now)
        return
    require_served(desk, question)
    if question.kind == "create":
        yield _create(desk, question, now)
    elif question.kind == "show":
        yield _show(desk, question, reader, now)
    elif question.kind == "lookup":
        yield _lookup(question, reader)
    elif question.kind == "changes":
        yield _changes(desk, question, reader, now)
    elif question.kind in _OF_GRANTS:
        yield _of_grants(desk, question, reader, now)
    else:
        raise UsageError(f"{question.kind} is not a question")


def require_served(desk: Desk, question: Envelope) -> None:
    """Decline aloud whom the policy does not serve (T11): silence would mean that no node is there (T17)."""
    if not desk.policy.serves(question.signer.asker):
        names = ", ".join(desk.policy.answers)
        raise Refused(
            f"node {desk.node.identity.name.id} answers only {names}; ask another node",
            detail={"declined": desk.node.identity.name.id},
        )


def _locate(desk: Desk, reader: Reader, now: datetime) -> Answer:
    identity = desk.node.identity
    body: dict[str, Any] = {
        "node": identity.name.id,
        "institution": identity.institution,
        "policy": desk.policy.as_object(),
        "network": desk.network,
        "seq": desk.position(),
        "peers": desk.peers.present(reader, now),
    }
    if desk.endpoint is not None:
        body["endpoint"] = {"host": desk.endpoint.host, "port": desk.endpoint.port}
    return Answer("located", body)


def _create(desk: Desk, question: Envelope, now: datetime) -> Answer:
    if question.signer.name.role is not Role.ENTITY:
        raise Refused("only entities create topics")
    uuid = mint_uuid()
    notifications = mint_uuid() if openings.GATHERING in question.body else None
    opening = openings.conceal(openings.claims_of(question.body, notifications), openings.new_seed())
    token = statements.mint(question, uuid=uuid, network=desk.network, opening=opening, node=desk.node, now=now)
    return Answer("created", {"uuid": uuid, "opening": opening}, token)


def search_job(question: Envelope, now: datetime) -> dict[str, Any]:
    """A discovery as the process that searches takes it; or one of our errors when the question contradicts itself."""
    body = question.body
    if ("query" in body) != ("language" in body):
        raise UsageError("a query needs its language, and a language its query")
    if body.get("sealed") and "query" in body:
        raise UsageError("no query finds sealed topics; ask for them without one, and match those that you can open")
    asker = question.signer.asker
    return {
        **{name: body[name] for name in ("language", "query", "times", "sealed", "count", "limit") if name in body},
        "entity": asker.entity,
        "institution": asker.institution,
        "now": format_time(now),
        "after": _read_cursor(body.get("cursor")),
    }


def tree_job(question: Envelope, reader: Reader, now: datetime) -> dict[str, Any]:
    """A look at a tree as the process that looks takes it: with the eyes of the asker, or of the owner that countersigned (T27)."""
    body = question.body
    asker = question.signer.asker
    topic = reader.get("topic", body["uuid"])
    viewer: Asker | None = asker
    if asker.entity is not None and countersignatures.holds(
        reader,
        body.get("countersigned"),
        countersignatures.DISCOVER,
        body["uuid"],
        topic,
        entity=asker.entity,
        now=now,
    ):
        viewer = asker_of(reader, topic["owner"] if topic is not None else "")
    if viewer is None:
        raise Absent(f"there is no topic {body['uuid']}")
    return {
        **{name: body[name] for name in ("uuid", "depth", "cursor") if name in body},
        "tree": body["what"],
        "asker": asker.entity,
        "entity": viewer.entity,
        "institution": viewer.institution,
        "now": format_time(now),
    }


def placed(desk: Desk, result: Result, now: datetime) -> Iterator[Answer]:
    """What was seen of a tree, in pages."""
    seen = read_places(result)
    pages = list(_pages([_line(desk, topic, now, place) for topic, place in seen]))
    for number, lines in enumerate(pages, start=1):
        page: dict[str, Any] = {"page": number, "last": number == len(pages), "count": len(lines)}
        if page["last"] and result[0]["more"]:
            page["cursor"] = seen[-1][0].uuid
        yield Answer("placed", page, b"\n".join(lines) if lines else None)


def followed(question: Envelope, reader: Reader) -> str:
    """The change topic of what an entity follows; Absent when it follows no such thing, or may no longer (T35)."""
    uuid, signer = question.body["uuid"], question.signer
    fact = reader.get("topic", uuid)
    watch = reader.get("watch", f"{uuid} {signer.name.id}")
    # Also when it has ended: that is the last that a watcher is told.
    if fact is None or watch is None or not Sight(reader, signer.asker, datetime.min).may_follow(fact):
        raise Absent(f"there is no {uuid} that you follow")
    notifications: str = fact["gathering"]["notifications"] if fact["kind"] == COLLECTION else uuid
    return notifications


def _changes(desk: Desk, question: Envelope, reader: Reader, now: datetime) -> Answer:
    """T29: what an entity was to be told after a version."""
    followed(question, reader)
    body, watcher = question.body, question.signer.name.id
    version, told = watches.told_since(reader, body["uuid"], watcher, body["since"], _CHANGES_AT_ONCE) or (0, [])
    if body["since"] > version:
        raise UsageError(f"there is no version {body['since']} yet; you were told {version} changes of {body['uuid']}")
    first = told[0].version if told else version + 1
    if first > body["since"] + 1:
        raise Refused(
            f"changes before version {first} are no longer kept; list {body['uuid']} again and go on with --since {first - 1}",
            detail={"version": version, "oldest": first},
        )
    tokens: list[bytes] = []
    size = 0
    for change in told:
        token = statements.sign("notification", change.payload(desk.network), desk.node, now)
        size += len(token) + 1
        if tokens and size > _PAGE_BYTES:
            # The version says that there are more; whoever wants them asks again.
            break
        tokens.append(token)
    return Answer("changed", {"version": version, "count": len(tokens)}, b"\n".join(tokens) if tokens else None)


def discovered(desk: Desk, result: Result, now: datetime) -> Iterator[Answer]:
    """What a search gave, in pages."""
    if "total" in result[0]:
        yield Answer("discovered", {"page": 1, "last": True, "count": 0, "total": result[0]["total"]})
        return
    topics, after = read_result(result)
    pages = list(_pages([_line(desk, topic, now) for topic in topics]))
    for number, page_lines in enumerate(pages, start=1):
        last = number == len(pages)
        page: dict[str, Any] = {"page": number, "last": last, "count": len(page_lines)}
        if last and after is not None:
            page["cursor"] = _write_cursor(after)
        if result[0]["sealed"]:
            # On every page: who reads them must know before it shows the first topic that others belong in between.
            page["sealed"] = True
        yield Answer("discovered", page, b"\n".join(page_lines) if page_lines else None)


def _show(desk: Desk, question: Envelope, reader: Reader, now: datetime) -> Answer:
    uuid = question.body["uuid"]
    topic = reader.topic(uuid, question.signer.asker, now)
    if topic is None:
        raise Absent(f"there is no topic {uuid}")
    body: dict[str, Any] = {"uuid": uuid} if topic.opening is None else {"uuid": uuid, "opening": dict(topic.opening)}
    return Answer("shown", body, topic.advertisement + b" " + _status(desk, topic, now))


def _of_grants(desk: Desk, question: Envelope, reader: Reader, now: datetime) -> Answer:
    granted.require_entity(question)
    if question.kind == "may":
        return Answer("judged", granted.judged(question, reader, now))
    if question.kind == "readers":
        return Answer("reading", granted.readers(question, reader, now))
    body, lines = granted.listed(question, reader, desk.node, desk.network, now)
    return Answer("granted", body, lines or None)


def _lookup(question: Envelope, reader: Reader) -> Answer:
    name = question.body["principal"]
    principal = reader.get("principal", name)
    if principal is None or principal["key"] in principal["revoked"] or not principal["thumbprint"]:
        raise Absent(f"the network knows no {name}")
    certificate = reader.get("certificate", principal["thumbprint"])
    if certificate is None:
        raise Absent(f"the network knows no {name}")
    return Answer("found", {"chain": certificate["chain"]})


def _line(desk: Desk, topic: FoundTopic, now: datetime, place: dict[str, Any] | None = None) -> bytes:
    """One line of a page: the advertisement; where the topic changed since, its status (T39); what it hides, as far as the asker may know;
    its place in a tree."""
    status = _status(desk, topic, now) if topic.changed else b""
    hidden = _segment(dict(topic.opening)) if topic.opening is not None else b""
    where = _segment(place) if place is not None else b""
    return b" ".join([topic.advertisement, status, hidden, where]).rstrip(b" ")


def _segment(value: dict[str, Any]) -> bytes:
    return signing.encode_segment(jsontext.canonical(value)).encode()


def _status(desk: Desk, topic: FoundTopic, now: datetime) -> bytes:
    """A signed status, the same for a few seconds: an answer may hold hundreds, and each costs a signature."""
    known = desk.statuses.get((topic.uuid, topic.seq))
    if known is not None and timedelta(0) <= now - known[0] < _STATUS_FOR:
        return known[1]
    if len(desk.statuses) >= _STATUSES:
        desk.statuses.clear()
    payload = {
        "v": schemas.VERSION,
        "network": desk.network,
        "uuid": topic.uuid,
        "owner": topic.owner,
        "expires": topic.expires,
        "state": "live",
        "seq": topic.seq,
        "at": format_time(whole_seconds(now)),
    }
    token = statements.sign("status", payload, desk.node, now)
    desk.statuses[topic.uuid, topic.seq] = (now, token)
    return token


def _pages(lines: list[bytes]) -> Iterator[list[bytes]]:
    page: list[bytes] = []
    size = 0
    for line in lines:
        if page and (size + len(line) > _PAGE_BYTES or len(page) == _PAGE_TOPICS):
            yield page
            page, size = [], 0
        page.append(line)
        size += len(line) + 1
    yield page


def _write_cursor(after: tuple[str, str]) -> str:
    return "_".join(after)


def _read_cursor(cursor: str | None) -> tuple[str, str]:
    """Where to go on. Every node orders alike, so one node's cursor serves at another; its order as text is the order of topics."""
    if cursor is None:
        return ("", "")
    created, _, uuid = cursor.partition("_")
    try:
        return format_time(parse_time(created)), check_uuid(uuid)
    except UsageError as error:
        raise UsageError("the cursor is not one of ours; take it from the last answer") from error
