"""`apply(state, record) -> outcome`: what a record does, decided alike by every node that has the same history.

A record is a node's signed line (kind, node, time) with the entity's signed request as its tail. Every record has an outcome; one that
should not be there (garbage, a stranger's signature) is void and changes nothing but the sequence and the rolling hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tdn.errors import LogDiverged, MalformedMessage, Refused, TdnError, TrustError, UnknownRules, UsageError
from tdn.protocol import jsontext, schemas
from tdn.protocol.names import Role
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.rules import checkpoints, clock, collections, feeds, grants, hierarchy, principals, topics, watches
from tdn.rules.state import MOST_WORK, Draft, Fact, LogRecord, Occasion, Outcome, State, Write
from tdn.trust import envelope, signing
from tdn.trust.certificates import Identity, decode_chain, roots_from_ders
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import CLOCK_SKEW

#: The rules that this build knows. A log that asks for others stops it. (1 had no lists, 2 no hierarchies and collections, 3 no grants, 4 no checkpoints; none was released.)
RULES_VERSION = 5

#: What a repeated request is told that was refused for bytes or certificates that do not hold.
_REFUSED_BEFORE = "the request was refused when it was first judged: what it carries does not verify"

#: A change decides with what is written (facts), what the receipt says, and which logins end.
Decision = tuple[tuple[Write, ...], dict[str, Any], tuple[str, ...]]
Rule = Callable[[State, Envelope, Occasion], Decision]


def write_record(
    kind: str,
    node: Credentials,
    at: datetime,
    request: bytes | None = None,
    minted: Mapping[str, str] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
) -> bytes:
    """A record as a node appends it. What the node adds to a `register` or `subscribe` is fixed by it: whoever answers says the same. A
    `checkpoint` says what the state was."""
    payload: dict[str, Any] = {
        "v": schemas.VERSION,
        "kind": kind,
        "node": node.identity.name.id,
        "at": format_time(at.replace(microsecond=0)),
    }
    if minted is not None:
        payload["minted"] = dict(minted)
    if checkpoint is not None:
        payload["checkpoint"] = dict(checkpoint)
    return signing.sign("record", payload, node.key, chain=node.identity.chain, tail=request)


def judged_at(record: LogRecord, outcome: Outcome, network: Fact | None, before: str | None) -> str | None:
    """When a record was judged, for those who ask about the past: the time that its node gave it, not before log time, nor further ahead of
    it than clocks may be apart, nor earlier than the record before. None until the log has begun. `network` is the fact after the record."""
    if network is None:
        return before
    log_time = str(network["time"])
    if outcome.status == "void":
        return max(log_time, before or "")
    payload = jsontext.parse(signing.decode_segment(record.raw.split(b".", 2)[1]))
    given = format_time(whole_seconds(parse_time(payload["at"])))
    return max(log_time, min(given, format_time(parse_time(log_time) + CLOCK_SKEW)), before or "")


def apply(state: State, record: LogRecord) -> Outcome:
    """The same record after the same history gives the same outcome on every node."""
    try:
        message = signing.split(record.raw)
        if message.header.kind != "record":
            raise MalformedMessage("not a record")
        if state.get("network", "network") is None:
            return _genesis(message, record)
        appender = _appender(state, message)
        payload = signing.verify(message, appender.public_key)
        schemas.check("record", payload)
        kind, at = payload["kind"], whole_seconds(parse_time(payload["at"]))
        if payload["node"] != appender.name.id or appender.name.role is not Role.NODE:
            raise TrustError("the record was not appended by the node that it names")
        # A connection outlives its certificate; a signature does not.
        appender.require_valid_at(at)
        if kind == "tick":
            return Outcome("accepted", kind, clock.tick(state, appender.name, at, record.seq))
        if kind == "checkpoint":
            stated = checkpoints.state_checkpoint(state, appender.name, payload["checkpoint"], record.seq)
            return Outcome("accepted", kind, stated)
        if message.tail is None:
            raise MalformedMessage("the record carries no request")
        request = envelope.authenticate(message.tail, lambda header: requester(state, header, at))
        if request.kind != kind:
            raise TrustError("the record names another kind than its request")
        if request.audience != audience(state):
            raise TrustError("the request is addressed to somebody else")
    except (UnknownRules, LogDiverged):
        raise
    except TdnError as error:
        return Outcome("void", "void", error=error.as_object())
    return _decide(state, request, record, at, payload.get("minted"))


def audience(state: State) -> str:
    """Whom a change is addressed to: the network, so that any node can finish it."""
    return f"tdn:network:{principals.network(state)['id']}"


def request_key(request: Envelope) -> str:
    return f"{request.signer.name.principal}/{request.id}"


def body_digest(request: Envelope) -> str:
    """What was asked, apart from when: a retry that was signed again is the same request."""
    tail = signing.digest(request.tail) if request.tail is not None else None
    return signing.digest(jsontext.canonical([request.kind, request.body, tail]))


def repeated(state: State, request: Envelope) -> Outcome | None:
    """The outcome that a request already has, if any. Same id, other body: refused."""
    key = request_key(request)
    before = state.get("request", key)
    if before is None:
        return None
    if before["digest"] != body_digest(request):
        refusal = Refused("the request id was used for another request")
        return Outcome("refused", request.kind, request=key, error=refusal.as_object())
    return Outcome("repeated", request.kind, request=key, receipt=before["receipt"], error=before["error"])


def _decide(state: State, request: Envelope, record: LogRecord, at: datetime, minted: Mapping[str, str] | None) -> Outcome:
    before = repeated(state, request)
    if before is not None:
        return before
    key = request_key(request)
    if request.expires + CLOCK_SKEW <= principals.log_time(state):
        # Its entry may have been cleared away already, so it could be judged a second time.
        refusal = Refused("the request came after its deadline")
        return Outcome("refused", request.kind, request=key, error=refusal.as_object())
    receipt, error, remembered = None, None, None
    writes: tuple[Write, ...] = ()
    cut: tuple[str, ...] = ()
    try:
        occasion = Occasion(record.seq, at, max(at, principals.log_time(state)), minted, signing.digest(record.raw))
        writes, fixed, cut = RULES[request.kind](state, request, occasion)
        receipt = {
            "v": schemas.VERSION,
            "network": principals.network(state)["id"],
            "kind": request.kind,
            "principal": request.signer.name.principal,
            "request": request.id,
            "seq": record.seq,
            "head": record.head,
            "at": format_time(at),
            **fixed,
        }
    except (UnknownRules, LogDiverged):
        raise
    except TdnError as failure:
        error = failure.as_object()
        # The state holds our own words only. What a library said of bad bytes differs between versions, and must not divide the nodes.
        remembered = (
            error if isinstance(failure, Refused) else {"error": error["error"], "message": _REFUSED_BEFORE, "detail": {}}
        )
    until = format_time(request.expires + CLOCK_SKEW)
    memory = (
        Write("request", key, {"digest": body_digest(request), "receipt": receipt, "error": remembered, "seq": record.seq}),
        Write("ends", f"{until} request {key}", {}),
    )
    return Outcome("refused" if error else "accepted", request.kind, writes + memory, key, receipt, error, cut)


def _appender(state: State, message: signing.Unverified) -> Identity:
    """The node that appended: current in the log; or, for its own enrolment, the one that the operator's statement is about."""
    try:
        return principals.known(state, message.header)
    except TrustError:
        newcomer = _newcomer(state, message)
        if newcomer is None:
            raise
        return newcomer


def _newcomer(state: State, message: signing.Unverified) -> Identity | None:
    if message.tail is None:
        return None
    try:
        payload = jsontext.parse(signing.decode_segment(message.payload_segment))
        at = parse_time(payload["at"])
        statement = envelope.authenticate(message.tail, lambda header: principals.known(state, header))
        # The statement lets it append its enrolment and nothing else, such as a tick.
        if statement.kind != "enrol" or payload["kind"] != "enrol":
            return None
        identity = principals.identify(state, statement.body["chain"], at)
        principals.admit(state, identity, at, roles=principals.ENROLLED)
    except (TdnError, KeyError, TypeError):
        return None
    return identity if identity.thumbprint == message.header.thumbprint else None


def requester(state: State, header: signing.Header, at: datetime) -> Identity:
    """Who signed a request. A hello brings its own chain, since it is how a certificate gets into the log."""
    if header.kind == "hello" and header.chain:
        return principals.trust_roots(state).follow(header.chain, at=at)
    return principals.known(state, header)


def _genesis(message: signing.Unverified, record: LogRecord) -> Outcome:
    """The first record that counts: roots, operator and rules, signed by that operator. Readers compare its id with the one they expect."""
    if message.tail is None:
        raise TrustError("the log has no genesis")
    request = read_genesis(message.tail)
    body = request.body
    if body["rules"] != RULES_VERSION:
        raise UnknownRules(f"the log asks for rules version {body['rules']}; this build knows {RULES_VERSION}")
    network = {
        "id": network_id(message.tail),
        "rules": body["rules"],
        "roots": body["roots"],
        "created": body["created"],
        "time": body["created"],
    }
    writes = (Write("network", "network", network), *principals.first_certificate(request.signer, parse_time(body["created"])))
    return Outcome("accepted", "genesis", writes)


def read_genesis(raw: bytes) -> Envelope:
    """A genesis that is sound in itself: signed by the operator that it names, who reaches the roots that it names."""
    message = signing.split(raw)
    claims = jsontext.parse(signing.decode_segment(message.payload_segment))
    try:
        body = claims["body"]
        schemas.check("genesis", body)
        created = parse_time(body["created"])
    except (KeyError, TypeError, UsageError) as error:
        raise MalformedMessage("not a genesis") from error
    roots = roots_from_ders(decode_chain(body["roots"]))
    chain = decode_chain(body["operator"])
    request = envelope.authenticate(raw, lambda header: roots.follow(chain, at=created))
    if (
        request.kind != "genesis"
        or request.signer.name.role is not Role.OPERATOR
        or message.header.thumbprint != request.signer.thumbprint
    ):
        raise TrustError("a genesis is signed by the operator that it names")
    return request


def network_id(genesis: bytes) -> str:
    """A network is named by its genesis."""
    return signing.decode_segment(signing.digest(genesis).encode()).hex()


# --- the rules, one function per kind of record -------------------------------------------------------------------------------------


def _hello(state: State, request: Envelope, occasion: Occasion) -> Decision:
    writes, cut = principals.admit(state, request.signer, occasion.at, roles=frozenset({Role.ENTITY}))
    return writes, {}, cut


def _enrol(state: State, request: Envelope, occasion: Occasion) -> Decision:
    _require_operator(request)
    identity = principals.identify(state, request.body["chain"], occasion.at)
    writes, cut = principals.admit(state, identity, occasion.at, roles=principals.ENROLLED)
    return writes, {}, cut


def _revoke(state: State, request: Envelope, occasion: Occasion) -> Decision:
    _require_operator(request)
    if request.body["principal"].startswith(f"{Role.OPERATOR}:"):
        raise Refused("the operator's own certificate cannot be revoked in the log; it would lock the network")
    writes, cut = principals.revoke(state, request.body)
    return writes, {}, cut


def _rules(state: State, request: Envelope, occasion: Occasion) -> Decision:
    _require_operator(request)
    asked = request.body["rules"]
    network = principals.network(state)
    if asked < network["rules"]:
        raise Refused(f"the log is at rules version {network['rules']} already")
    if asked > RULES_VERSION:
        raise UnknownRules(f"the log asks for rules version {asked}; this build knows {RULES_VERSION}")
    return (Write("network", "network", {**network, "rules": asked}),), {}, ()


def _require_operator(request: Envelope) -> None:
    if request.signer.name.role is not Role.OPERATOR:
        raise Refused("only the operator can do this")


def _by_entity(rule: Callable[[Draft, Envelope, Occasion], dict[str, Any]]) -> Rule:
    def decide(state: State, request: Envelope, occasion: Occasion) -> Decision:
        if request.signer.name.role is not Role.ENTITY:
            raise Refused("only an entity can do this")
        draft = Draft(state, MOST_WORK)
        fixed = rule(draft, request, occasion)
        return draft.writes, fixed, ()

    return decide


def _no_second_genesis(state: State, request: Envelope, occasion: Occasion) -> Decision:
    raise Refused("the log has its genesis")


RULES: dict[str, Rule] = {
    "genesis": _no_second_genesis,
    "rules": _rules,
    "enrol": _enrol,
    "revoke": _revoke,
    "hello": _hello,
    "advertise": _by_entity(topics.advertise),
    "renew": _by_entity(topics.renew),
    "withdraw": _by_entity(topics.withdraw),
    "register": _by_entity(hierarchy.register),
    "add": _by_entity(collections.add),
    "remove": _by_entity(collections.remove),
    "move": _by_entity(collections.move),
    "watch": _by_entity(watches.watch),
    "unwatch": _by_entity(watches.unwatch),
    "give": _by_entity(grants.give),
    "retract": _by_entity(grants.retract),
    "transfer": _by_entity(grants.transfer),
    "accept": _by_entity(grants.accept),
    "open": _by_entity(feeds.open_topic),
    "subscribe": _by_entity(feeds.subscribe),
    "unsubscribe": _by_entity(feeds.unsubscribe),
}
