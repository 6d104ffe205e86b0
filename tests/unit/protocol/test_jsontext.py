"""JSON: refused by size, depth, doubled keys, odd numbers and broken characters, before anything else looks at it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import KEPT_BYTES, MalformedMessage
from tdn.protocol import jsontext

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(values)
def test_round_trip(value: Any) -> None:
    assert jsontext.parse(jsontext.canonical(value)) == value


@given(values)
def test_one_text_for_one_value(value: Any) -> None:
    """Any spelling of a value has the same canonical text."""
    spelt = json.dumps(value, indent=3).encode()
    assert jsontext.canonical(jsontext.parse(spelt)) == jsontext.canonical(value)


def test_canonical() -> None:
    assert jsontext.canonical({"b": 1, "a": ["ü", None]}) == '{"a":["ü",null],"b":1}'.encode()
    with pytest.raises(ValueError, match="Out of range"):
        jsontext.canonical(float("nan"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"[1] x", "not JSON"),
        (b"\xff", "not JSON"),
        (b'"\xed\xa0\x80"', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ('{"a":1}'.encode("utf-16"), "not JSON"),
        (b'"\x01"', "not JSON"),
        (b"NaN", "NaN is not JSON"),
        (b"[Infinity]", "Infinity is not JSON"),
        (b'{"a":-Infinity}', "-Infinity is not JSON"),
        (b"1e999", "out of range"),
        (b"[-1e999]", "out of range"),
        (b"9" * 5000, "not JSON"),
        (b'"\\ud800"', "not Unicode"),
        (b'{"\\uDFFF": 1}', "not Unicode"),
        (b'"\\udc00\\ud800"', "not Unicode"),
        (b'{"a":1,"a":1}', "key 'a' stands twice"),
        (b'[{"x":{"a":1,"b":2,"a":3}}]', "key 'a' stands twice"),
        (b'{"a":1,"\\u0061":2}', "key 'a' stands twice"),
    ],
)
def test_refused(text: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why) as caught:
        jsontext.parse(text)
    assert len(caught.value.received) <= KEPT_BYTES


@pytest.mark.parametrize("text", [b'"\\ud83d\\ude00"', '"😀"'.encode(), b'"\\\\ud800"', b"1e308", b"-0.0", b'{"a":{"a":1}}'])
def test_accepted(text: bytes) -> None:
    assert jsontext.parse(text) == json.loads(text)


@pytest.mark.parametrize(("depth", "good"), [(jsontext.MAX_DEPTH, True), (jsontext.MAX_DEPTH + 1, False), (40_000, False)])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_depth(depth: int, good: bool, pair: str) -> None:
    text = ("[" * depth + "]" * depth if pair == "[]" else '{"a":' * (depth - 1) + "{" + "}" * depth).encode()
    if good:
        jsontext.parse(text)
    else:
        with pytest.raises(MalformedMessage, match="nested deeper"):
            jsontext.parse(text)


def test_brackets_in_strings_are_not_depth() -> None:
    text = json.dumps({"a": "[" * 500, 'b\\"[[': '{"' * 200}).encode()
    assert jsontext.parse(text) == json.loads(text)


def test_width_is_not_depth() -> None:
    assert len(jsontext.parse(b"[" + b",".join([b"[]"] * 1000) + b"]")) == 1000


@given(st.binary(max_size=60) | st.text('[]{}",:\\u1ad8 0e9.-', max_size=60).map(str.encode))
def test_nothing_but_malformed_message(text: bytes) -> None:
    """Whatever comes in: a value or our own error, so that a reader needs to catch one thing."""
    try:
        value = jsontext.parse(text)
    except MalformedMessage:
        return
    jsontext.canonical(value)


def test_size() -> None:
    assert jsontext.parse(b'"' + b"a" * (jsontext.MAX_MESSAGE_BYTES - 2) + b'"')
    with pytest.raises(MalformedMessage, match="over the limit"):
        jsontext.parse(b'"' + b"a" * (jsontext.MAX_MESSAGE_BYTES - 1) + b'"')
    with pytest.raises(MalformedMessage, match="over the limit of 10"):
        jsontext.parse(b'"aaaaaaaaa"', max_bytes=10)
