"""`tdn verify`: what holds, what it proves, and what could not be checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from little_network import LittleNetwork, payload_of, read_uuid
from pki import T0, Pki

from tdn.errors import MalformedMessage
from tdn.trust import statements
from tdn.trust.verdict import Verdict, find_statements, judge


def receipt(net: LittleNetwork, token: bytes, **changes: Any) -> bytes:
    log = net.log()
    outcome = log.put("advertise", net.advertise(net.entity("alice"), token))
    assert outcome.receipt is not None
    return statements.sign("receipt", {**outcome.receipt, **changes}, net.node("n2"), T0)


def status(net: LittleNetwork, uuid: str) -> bytes:
    payload = {
        "v": 1,
        "network": net.id,
        "uuid": uuid,
        "owner": "alice",
        "expires": "2027-01-02T00:00:00Z",
        "state": "withdrawn",
        "seq": 9,
        "at": "2027-01-01T00:00:00Z",
    }
    return statements.sign("status", payload, net.node("n1"), T0)


def test_advertisement(net: LittleNetwork) -> None:
    """T5: says "minted", and that a receipt would say more."""
    token = net.mint(net.entity("alice"))
    (verdict,) = judge([token], net.pki.roots)
    assert (verdict.valid, verdict.kind, verdict.signer) == (True, "advertisement", "node:n1")
    assert any("minted topic" in sentence and read_uuid(token) in sentence for sentence in verdict.proves)
    assert any("ever advertised" in sentence for sentence in verdict.not_checked)
    assert any("revoked" in sentence for sentence in verdict.not_checked)
    assert "error" not in verdict.as_object()


def test_receipt_says_in_the_log(net: LittleNetwork) -> None:
    """T5: "minted" and "in the log" are not the same, and only the receipt says the second."""
    token = net.mint(net.entity("alice"))
    first, second = judge([token, receipt(net, token)], net.pki.roots)
    assert first.valid
    assert (second.valid, second.kind, second.signer) == (True, "receipt", "node:n2")
    assert any("of the log" in sentence for sentence in second.proves)
    assert not any("of the log" in sentence for sentence in first.proves)


def test_status(net: LittleNetwork) -> None:
    """T39: the changed state, beside the unchanged advertisement."""
    token = net.mint(net.entity("alice"))
    _, verdict = judge([token, status(net, read_uuid(token))], net.pki.roots)
    assert verdict.valid
    assert any("withdrawn" in sentence for sentence in verdict.proves)


def told(net: LittleNetwork) -> bytes:
    """A notification as a node signs it: a topic was added to a collection that bob follows."""
    log = net.log()
    place, topic = log.collection(), log.advertised()
    assert log.change("watch", "bob", uuid=place).status == "accepted"
    assert log.change("add", "alice", collection=place, uuid=topic).status == "accepted"
    (change,) = log.told(place, "bob")
    return statements.sign("notification", change.payload(net.id), net.node("n2"), T0)


def test_notification(net: LittleNetwork) -> None:
    """T29, T35: what changed where, by which record, and which of bob's changes it is; not what came later."""
    token = told(net)
    payload = payload_of(token)
    (verdict,) = judge([token], net.pki.roots)
    assert (verdict.valid, verdict.kind, verdict.signer) == (True, "notification", "node:n2")
    first, second, third = verdict.proves
    assert f"topic {payload['uuid']} was added in {payload['subject']}" in first
    assert f"record {payload['seq']} of the log of network {net.id[:12]}" in first
    assert f"change 1 of {payload['subject']} that entity bob was told" in second
    assert "certificate of node n2" in third
    assert any("came later" in sentence for sentence in verdict.not_checked)
    assert any("revoked" in sentence for sentence in verdict.not_checked)


def test_notification_without_a_place(net: LittleNetwork) -> None:
    """T29: the end of what is followed itself; told in a whole sentence all the same."""
    payload = {name: value for name, value in payload_of(told(net)).items() if name != "in"}
    payload |= {"change": "withdrawn", "uuid": payload["subject"], "kind": "collection"}
    (verdict,) = judge([statements.sign("notification", payload, net.node("n1"), T0)], net.pki.roots)
    assert verdict.valid
    assert f"collection {payload['subject']} was withdrawn at {payload['at']}" in verdict.proves[0]


def test_notification_signed_by_an_entity(net: LittleNetwork) -> None:
    """T8, T35: bob cannot make himself a notification."""
    (verdict,) = judge([statements.sign("notification", payload_of(told(net)), net.entity("bob"), T0)], net.pki.roots)
    assert (verdict.valid, verdict.kind, verdict.signer, verdict.proves) == (False, "notification", None, ())
    assert "is not a node" in (verdict.error or "")


@pytest.mark.parametrize(
    ("kind", "words"), [("add", "addition"), ("remove", "removal"), ("move", "move"), ("watch", "following of topic")]
)
def test_receipts_of_collections(net: LittleNetwork, kind: str, words: str) -> None:
    """T33, T34, T35: each says in words what was decided, of what, and where."""
    log = net.log()
    one, other, topic = log.collection(), log.collection(), log.advertised()
    if kind in ("remove", "move"):
        log.change("add", "alice", collection=one, uuid=topic)
    body = {
        "add": {"collection": one, "uuid": topic},
        "remove": {"collection": one, "uuid": topic},
        "move": {"from": one, "to": other, "uuid": topic},
        "watch": {"uuid": topic},
    }[kind]
    outcome = log.change(kind, "alice", **body)
    assert outcome.receipt is not None
    (verdict,) = judge([statements.sign("receipt", outcome.receipt, net.node("n1"), T0)], net.pki.roots)
    assert verdict.valid
    assert words in verdict.proves[0]
    assert topic in verdict.proves[0]
    place = {"add": one, "remove": one, "move": other, "watch": None}[kind]
    assert (f"in collection {place}" in verdict.proves[0]) == (place is not None)
    assert ("collection" in verdict.proves[0]) == (place is not None)


def test_collection_says_so(net: LittleNetwork) -> None:
    """T31: what was minted is called what it is."""
    gathering = {
        "fixed": False,
        "limits": {"breadth": 0, "depth": 0, "topics": 0},
        "child_collections": False,
        "inclusion": False,
    }
    (verdict,) = judge([net.mint(net.entity("alice"), gathering=gathering)], net.pki.roots)
    assert any("minted collection" in sentence for sentence in verdict.proves)
    assert any("whether the collection was ever advertised" in sentence for sentence in verdict.not_checked)


def test_about_another_topic(net: LittleNetwork) -> None:
    token, other = net.mint(net.entity("alice")), net.mint(net.entity("alice"))
    for beside in (receipt(net, other), status(net, read_uuid(other)), receipt(net, token, digest="A" * 43)):
        first, second = judge([token, beside], net.pki.roots)
        assert first.valid
        assert not second.valid
        assert "about another advertisement" in (second.error or "")


def test_signed_by_an_entity(net: LittleNetwork) -> None:
    """T8: a verdict, not an exception: the person asked whether it holds."""
    (verdict,) = judge([net.mint(net.entity("alice"), node=net.entity("bob"))], net.pki.roots)
    assert (verdict.valid, verdict.kind, verdict.signer, verdict.proves) == (False, "advertisement", None, ())
    assert "is not a node" in verdict.as_object()["error"]


def test_unknown_roots(net: LittleNetwork) -> None:
    (verdict,) = judge([net.mint(net.entity("alice"))], Pki("strangers").roots)
    assert not verdict.valid


@pytest.mark.parametrize("token", [b"", b"x", b"a.b.c", b"\xff\xfe", b"eyJ9.eyJ9.AA"])
def test_garbage(net: LittleNetwork, token: bytes) -> None:
    (verdict,) = judge([token], net.pki.roots)
    assert (verdict.valid, verdict.kind) == (False, "unknown")
    json.dumps(verdict.as_object())


def test_request_is_no_statement(net: LittleNetwork) -> None:
    (verdict,) = judge([net.create(net.entity("alice"))], net.pki.roots)
    assert (verdict.valid, verdict.kind) == (False, "create")


def test_a_failed_advertisement_vouches_for_nothing(net: LittleNetwork) -> None:
    token = net.mint(net.entity("alice"))
    first, second = judge([token[:-4] + b"AAAA", receipt(net, token)], net.pki.roots)
    assert not first.valid
    assert isinstance(second, Verdict)


def test_find_in_json_lines(net: LittleNetwork) -> None:
    token = net.mint(net.entity("alice"))
    beside = receipt(net, token)
    line = {"uuid": "x", "receipt": beside.decode(), "advertisement": token.decode(), "status": None}
    assert find_statements(json.dumps(line).encode()) == [token, beside]
    assert find_statements(b"  " + token + b"\n") == [token]
    assert find_statements(json.dumps({"version": 1, "notification": told(net).decode()}).encode())[0].count(b".") == 2
    with pytest.raises(MalformedMessage, match="holds no advertisement"):
        find_statements(b'{"uuid": "x"}')
    with pytest.raises(MalformedMessage):
        find_statements(b'{"advertisement": "a", "advertisement": "b"}')
    assert payload_of(token)["uuid"]
