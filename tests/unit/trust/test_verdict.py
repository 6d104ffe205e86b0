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
    with pytest.raises(MalformedMessage, match="holds no advertisement"):
        find_statements(b'{"uuid": "x"}')
    with pytest.raises(MalformedMessage):
        find_statements(b'{"advertisement": "a", "advertisement": "b"}')
    assert payload_of(token)["uuid"]
