"""The offline verdict on a signed statement: whether it holds, what it proves, and what could not be checked (T5).

Says "minted" of an advertisement and "in the log" of a receipt: the two are not the same, and only the second makes a topic known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tdn.errors import MalformedMessage, TdnError
from tdn.protocol import jsontext
from tdn.protocol.times import format_time
from tdn.trust import signing, statements
from tdn.trust.certificates import TrustRoots
from tdn.trust.statements import Statement, by_roots

#: Members of our JSON objects that hold signed bytes.
_MEMBERS = ("advertisement", "receipt", "status", "notification")

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
        raise MalformedMessage("the JSON object holds no advertisement, receipt, status or notification")
    return found


def judge(tokens: list[bytes], roots: TrustRoots) -> list[Verdict]:
    """A verdict on each; a receipt or status that comes with an advertisement must be about it."""
    verdicts = []
    advertisement: Statement | None = None
    for token in tokens:
        try:
            statement = statements.read(token, by_roots(roots))
            if statement.kind == "advertisement":
                statements.read_advertisement(token, by_roots(roots))
                advertisement = statement
            elif advertisement is not None:
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
    else:
        proves = (
            f"node {node} says that topic {payload['uuid']} was {payload['state']} at {payload['at']}, owned by {payload['owner']}, until {payload['expires']}",
            certificate,
        )
        unchecked = (f"what happened after {payload['at']}", _REVOCATION)
    return Verdict(True, statement.kind, statement.signer.name.principal, proves, unchecked)


def _claimed_kind(token: bytes) -> str:
    try:
        return signing.split(token).header.kind
    except TdnError:
        return "unknown"
