"""JWS: one algorithm, one spelling, a header that is an allow-list, and a tail that is bound."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_network import LittleNetwork
from pki import derive_key

from tdn.errors import MalformedMessage, TdnError, TrustError
from tdn.trust import signing

KEY = derive_key("signing")
CHAIN = (b"leaf", b"intermediate")


def sign(payload: dict[str, Any], **choices: Any) -> bytes:
    return signing.sign("renew", payload, KEY, chain=CHAIN, **choices)


def verify(raw: bytes) -> dict[str, Any]:
    return signing.verify(signing.split(raw), KEY.public_key())


@given(st.dictionaries(st.text("abc", min_size=1), st.integers() | st.text("xyzü")), st.none() | st.binary(max_size=50))
def test_round_trip(payload: dict[str, Any], tail: bytes | None) -> None:
    raw = sign(payload, tail=tail)
    found = verify(raw)
    if tail is not None:
        assert found.pop("tail") == signing.digest(tail)
    assert found == payload
    assert signing.split(raw).tail == tail


def test_header() -> None:
    short, long = signing.split(sign({})).header, signing.split(sign({}, with_chain=True, issued=7)).header
    assert (short.kind, short.thumbprint, short.chain, short.issued) == ("renew", signing.digest(b"leaf"), (), None)
    assert (long.thumbprint, long.chain, long.issued) == (short.thumbprint, CHAIN, 7)


def test_another_key() -> None:
    with pytest.raises(TrustError, match="signature does not hold"):
        signing.verify(signing.split(sign({})), derive_key("other").public_key())


def test_verified_before_does_not_help_another_key_or_text() -> None:
    """T19: an answer that was remembered for one signature is not given for other bytes, or for another key."""
    raw = sign({"a": 1})
    verify(raw)
    verify(raw)
    with pytest.raises(TrustError):
        signing.verify(signing.split(raw), derive_key("other").public_key())
    header, _, signature = raw.split(b".")
    other = sign({"a": 2}).split(b".")[1]
    with pytest.raises(TrustError):
        verify(b".".join([header, other, signature]))


def test_tail_is_bound() -> None:
    """T19: what follows is what was signed: not another, not none, not one where none was."""
    raw = sign({"a": 1}, tail=b"one")
    head, _, _ = raw.partition(b"~")
    for other in (head + b"~two", head + b"~", head, raw + b" ", raw + b"~one"):
        with pytest.raises(TrustError, match="not what was signed"):
            verify(other)
    for added in (b"~", b"~x"):
        with pytest.raises(TrustError, match="not what was signed"):
            verify(sign({"a": 1}) + added)


def test_empty_tail_is_a_tail() -> None:
    raw = sign({}, tail=b"")
    assert signing.split(raw).tail == b""
    verify(raw)


@pytest.mark.parametrize("signature", [b"", b"AA", b"A" * 86, b"A" * 88, b"_" * 86])
def test_odd_signatures(signature: bytes) -> None:
    header, payload, _ = sign({}).split(b".")
    with pytest.raises((TrustError, MalformedMessage)):
        verify(b".".join([header, payload, signature]))


@pytest.mark.parametrize("raw", [b"", b".", b"..", b"...", b"a.b", b"a.b.c.d", b"~a.b.c", b"\xff.\xff.\xff", b"a b.c.d"])
def test_not_a_signed_message(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        signing.split(raw)


@given(st.binary(max_size=80) | st.text("eyJ.~=A_-", max_size=80).map(str.encode))
def test_split_raises_nothing_else(raw: bytes) -> None:
    with pytest.raises(TdnError):
        signing.split(raw)


def header(**members: Any) -> bytes:
    full = {"alg": "ES256", "typ": "tdn-renew+jwt", "x5t#S256": "A" * 43, **members}
    return signing.encode_segment(
        json.dumps({name: value for name, value in full.items() if value is not None}).encode()
    ).encode()


def test_sound_header() -> None:
    assert signing.read_header(header()).kind == "renew"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS256", "ES384", "EdDSA", "es256", "", None, 1, ["ES256"]])
def test_algorithm_is_fixed(algorithm: Any) -> None:
    """T19: the header does not choose."""
    with pytest.raises(TrustError, match="every message is signed with ES256"):
        signing.read_header(header(alg=algorithm))


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "kid", "crit", "x5t", "zip", "b64", "cty", "ALG", ""])
def test_keys_in_headers(member: str) -> None:
    """T19: any other member is refused unread."""
    with pytest.raises(TrustError, match="is refused; keys are never taken from a header"):
        signing.read_header(header(**{member: "x"}))


@pytest.mark.parametrize(
    "members",
    [
        {"typ": None},
        {"typ": "JWT"},
        {"typ": "tdn-renew"},
        {"typ": 1},
        {"x5t#S256": None},
        {"x5t#S256": "short"},
        {"x5t#S256": 1},
        {"x5c": ["QUFB"]},
        {"x5t#S256": None, "x5c": []},
        {"x5t#S256": None, "x5c": "QUFB"},
        {"x5t#S256": None, "x5c": [1]},
        {"x5t#S256": None, "x5c": ["*"]},
        {"x5t#S256": None, "x5c": ["QUF"]},
        {"x5t#S256": None, "x5c": ["QUFB"] * 7},
        {"iat": -1},
        {"iat": "1"},
        {"iat": 1.5},
        {"iat": True},
        {"iat": 2**39},
        {"iat": 10**30},
    ],
)
def test_malformed_headers(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        signing.read_header(header(**members))


@pytest.mark.parametrize("text", [b"[]", b"1", b'"a"', b"null", b'{"alg":"ES256","alg":"none"}', b"{", b"\xff"])
def test_headers_that_are_no_objects(text: bytes) -> None:
    with pytest.raises(MalformedMessage):
        signing.read_header(base64.urlsafe_b64encode(text).rstrip(b"="))


def test_long_header_is_refused() -> None:
    """Headers are remembered before anything is verified, so they must be small."""
    with pytest.raises(MalformedMessage, match="over the limit"):
        signing.read_header(header(typ=f"tdn-{'x' * 40_000}+jwt"))


def test_payload_must_be_an_object() -> None:
    signed = header() + b"." + signing.encode_segment(b"[1]").encode()
    raw = signed + b"." + signing.encode_segment(signing._ES256.sign(signed, KEY)).encode()
    with pytest.raises(MalformedMessage, match="not an object"):
        verify(raw)


@given(st.binary(max_size=40))
def test_segments_round_trip(content: bytes) -> None:
    assert signing.decode_segment(signing.encode_segment(content).encode()) == content


@given(st.text("ABCDwxyz0189-_", max_size=12).map(str.encode))
def test_one_spelling(segment: bytes) -> None:
    """Of all texts that a lax reader would take for the same bytes, one is accepted."""
    try:
        content = signing.decode_segment(segment)
    except MalformedMessage:
        return
    assert signing.encode_segment(content).encode() == segment


@pytest.mark.parametrize("segment", [b"QQ==", b"QQ=", b"QR", b"QUJ", b"Q", b"Q Q", b"QQ\n", b"Q+8", b"Q/8", b"=", b"\xc3\xa9"])
def test_second_spellings(segment: bytes) -> None:
    with pytest.raises(MalformedMessage):
        signing.decode_segment(segment)


def test_size_before_anything() -> None:
    with pytest.raises(MalformedMessage, match="over the limit"):
        signing.split(b"x" * 262_145)


def test_same_digest_for_two_signatures(net: LittleNetwork) -> None:
    """Two nodes that sign the same outcome sign the same payload: its digest is theirs in common."""
    payload = {"b": 1, "a": "ü"}
    one, two = (signing.sign("receipt", payload, net.node(n).key, chain=net.node(n).identity.chain) for n in ("n1", "n2"))
    assert one != two
    assert one.split(b".")[1] == two.split(b".")[1]
