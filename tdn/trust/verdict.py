"""The offline verdict on a signed statement: whether it holds, what it proves, and what could not be checked (T5).

Says "minted" of an advertisement and "in the log" of a receipt: the two are not the same, and only the second makes a topic known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import MalformedMessage, TdnError
from tdn.protocol import jsontext
from tdn.protocol.times import format_time
from tdn.trust import grants, signing, statements
from tdn.trust.certificates import TrustRoots
from tdn.trust.grants import Bundle
from tdn.trust.statements import Statement, by_roots

#: Members of our JSON objects that hold signed bytes.
_MEMBERS = ("token", "advertisement", "receipt", "status", "notification")

_NOUNS = {
    "advertise": "advertisement",
    "renew": "renewal",
    "withdraw": "withdrawal",
    "enrol": "enrolment",
    "revoke": "revocation",
    "hello": "first contact",
    "add": "addition",
    "remove": "removal",
    "move": "move",
    "watch": "following",
    "unwatch": "end of the following",
    "give": "grant",
    "retract": "revocation of a grant",
    "transfer": "offer",
    "accept": "taking over",
    "open": "opening",
    "subscribe": "subscription",
    "unsubscribe": "end of the subscription",
}

_REVOCATION = "whether the node's certificate has been revoked; the network knows"


@dataclass(frozen=True, slots=True)
class Verdict:
    valid: bool
    kind: str
    signer: str | None
    proves: tuple[str, ...]
    not_checked: tuple[str, ...]
    error: str | None = None

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "valid": self.valid,
            "kind": self.kind,
            "signer": self.signer,
            "proves": list(self.proves),
            "not_checked": list(self.not_checked),
        }
        if self.error is not None:
            result["error"] = self.error
        return result


def find_statements(text: bytes) -> list[bytes]:
    """The signed bytes in what `tdn verify` is given: themselves, or one of our JSON lines."""
    text = text.strip()
    if not text.startswith(b"{"):
        return [text]
    line = jsontext.parse(text)
    found = [line[member].encode() for member in _MEMBERS if isinstance(line.get(member), str)]
    if not found:
        raise MalformedMessage("the JSON object holds no advertisement, receipt, status, notification or grant")
    return found


def judge(tokens: list[bytes], roots: TrustRoots) -> list[Verdict]:
    """A verdict on each; a receipt or status that comes with an advertisement must be about it."""
    verdicts = []
    advertisement: Statement | None = None
    for token in tokens:
        try:
            if _claimed_kind(token) == "grant":
                verdicts.append(_describe_grant(grants.read_bundle(token, by_roots(roots))))
                continue
            statement = statements.read(token, by_roots(roots))
            if statement.kind == "advertisement":
                statements.read_advertisement(token, by_roots(roots))
                advertisement = statement
            elif advertisement is not None and statement.kind != "revocation":
                _require_about(statement, advertisement)
            verdicts.append(_describe(statement))
        except TdnError as error:
            verdicts.append(Verdict(False, _claimed_kind(token), None, (), (), str(error)))
    return verdicts


def _require_about(statement: Statement, advertisement: Statement) -> None:
    payload = statement.payload
    if (
        payload.get("uuid") != advertisement.payload["uuid"]
        or payload.get("digest", advertisement.digest) != advertisement.digest
    ):
        raise MalformedMessage(f"the {statement.kind} is about another advertisement")


def _describe(statement: Statement) -> Verdict:
    payload, node = statement.payload, statement.signer.name.id
    certificate = f"the certificate of node {node} leads to a trusted root and was valid at {format_time(statement.signed_at)}, when this was signed"
    proves: tuple[str, ...]
    unchecked: tuple[str, ...]
    if statement.kind == "advertisement":
        proves = (
            f"node {node} minted {payload['kind']} {payload['uuid']} for entity {payload['creator']} of {payload['institution']!r} at {payload['created']}",
            f"it was minted to last until {payload['expires']}",
            "descriptor and synopsis are as the node signed them",
            certificate,
        )
        unchecked = (
            f"whether the {payload['kind']} was ever advertised; a receipt says so",
            "whether it was renewed or withdrawn since",
            _REVOCATION,
        )
    elif statement.kind == "receipt":
        about = f" of {'' if 'collection' in payload else 'topic '}{payload['uuid']}" if "uuid" in payload else ""
        about += f" in collection {payload['collection']}" if "collection" in payload else ""
        about += f", grant {payload['grant']}," if "grant" in payload else ""
        proves = (
            f"node {node} says that the {_NOUNS.get(payload['kind'], payload['kind'])}{about} by {payload['principal']} is record {payload['seq']} of the log of network {payload['network'][:12]}…",
            certificate,
        )
        unchecked = ("the log itself; a node that has it compares the head", "what came later in the log", _REVOCATION)
    elif statement.kind == "notification":
        where = f" in {payload['in']}" if "in" in payload else ""
        proves = (
            f"node {node} says that {payload['kind']} {payload['uuid']} was {payload['change']}{where} at {payload['at']}, by record {payload['seq']} of the log of network {payload['network'][:12]}…",
            f"it is change {payload['version']} of {payload['subject']} that entity {payload['watcher']} was told",
            certificate,
        )
        unchecked = ("the log itself; a node that has it compares", "what came later", _REVOCATION)
    elif statement.kind == "archive":
        proves = (
            f"node {node} says that records {payload['first']} to {payload['last']} of the log of network {payload['network'][:12]}… are in file {payload['file']}, with SHA-256 {payload['sha256']}",
            certificate,
        )
        unchecked = ("the file itself; `tdn archive verify` does", _REVOCATION)
    elif statement.kind == "revocation":
        proves = (
            f"node {node} says: {_ended(payload)}",
            f"it was done within {payload['milliseconds']} ms, by {payload['at']}",
            certificate,
        )
        unchecked = ("the log and the broker themselves", *_not_done(payload), _REVOCATION)
    else:
        proves = (
            f"node {node} says that topic {payload['uuid']} was {payload['state']} at {payload['at']}, owned by {payload['owner']}, until {payload['expires']}",
            certificate,
        )
        unchecked = (f"what happened after {payload['at']}", _REVOCATION)
    return Verdict(True, statement.kind, statement.signer.name.principal, proves, unchecked)


def _ended(payload: Mapping[str, Any]) -> str:
    names = {"grant": "grant", "uuid": "topic", "principal": "the certificate of"}
    about = next((f"{word} {payload[name]}" for name, word in names.items() if name in payload), "something")
    cut = payload["cut"]
    closed = ", ".join(cut["connections"]) or "nobody"
    return (
        f"with record {payload['seq']} of the log of network {payload['network'][:12]}… rights on {about} ended; "
        f"connections of {closed} were closed, {cut['queues']} subscriptions and {cut['bindings']} bindings deleted, as guards {', '.join(payload['guards']) or 'none'} said"
    )


def _not_done(payload: Mapping[str, Any]) -> list[str]:
    silent = [f"what guard {guard} does: it was silent, and allows nothing while it is" for guard in payload["fenced"]]
    return silent + [f"whether guard {guard} has ended everything: it had not said so" for guard in payload["unconfirmed"]]


def _describe_grant(bundle: Bundle) -> Verdict:
    """The chain in words, from the minted topic to whoever may use it."""
    minted = bundle.advertisement
    words = [f"node {minted.node} minted {minted.kind} {minted.uuid} for entity {minted.creator}"]
    if bundle.owner is not None:
        words.append(f"a node says that entity {bundle.owner} owns it")
    unchecked = [
        "whether the log took these grants, and whether any of them was revoked since; a node knows",
        "whether one of the certificates has been revoked; the network knows",
    ]
    topic = minted.uuid
    for grant in bundle.grants:
        terms = grant.terms
        where = "" if terms.topic == minted.uuid else f" to {terms.topic}"
        where += " and all in its tree" if terms.tree else ""
        passed = ", and pass it on" if terms.delegable else ""
        words.append(
            f"{grant.issuer.name.id} let {grant.grantee} {terms.right}{where} from {format_time(terms.not_before)} until {format_time(terms.expires)}{passed}"
        )
        if terms.topic != topic:
            unchecked.append(f"whether {terms.topic} is in the tree of {topic}; the log knows")
            topic = terms.topic
    words.append(
        "each was signed with a certificate that leads to a trusted root and was valid then; none is wider than what it rests on"
    )
    return Verdict(True, "grant", bundle.grants[-1].issuer.name.principal, tuple(words), tuple(unchecked))


def _claimed_kind(token: bytes) -> str:
    try:
        return signing.split(token).header.kind
    except TdnError:
        return "unknown"
