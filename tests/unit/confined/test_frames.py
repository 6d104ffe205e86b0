"""Frames between node and worker: the same on both sides, in whatever pieces, and nothing else is taken for one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from tdn import errors
from tdn.confined import frames
from tdn.confined.frames import Assembler, BadFrame, encode, error_as_object, error_from_object

TEXT = st.text(max_size=5)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda part: st.lists(part, max_size=3), max_leaves=4)
CONTENT = st.dictionaries(TEXT, JSON, max_size=3)
FRAMES = st.lists(st.tuples(CONTENT, st.lists(st.binary(max_size=50), max_size=3)), max_size=3)


@settings(derandomize=True, max_examples=examples(60), deadline=None)
@given(FRAMES, st.integers(1, 40))
def test_round_trip_in_pieces(sent: list[tuple[dict[str, object], list[bytes]]], size: int) -> None:
    data = b"".join(encode(content, parts) for content, parts in sent)
    assembler = Assembler()
    received = [frame for start in range(0, len(data), size) for frame in assembler.feed(data[start : start + size])]
    assert received == sent


def frame(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", len(head), len(body)) + head + body


@pytest.mark.parametrize(
    "data",
    [
        frame(b"{"),
        frame(b"\xff"),
        frame(b"[]"),
        frame(b"[" * 100_000),
        frame(b'{"parts":3}'),
        frame(b'{"parts":[true]}', b"x"),
        frame(b'{"parts":[-1,2]}', b"x"),
        frame(b'{"parts":[2]}', b"x"),
        frame(b"{}", b"x"),
        struct.pack(">II", frames.MAX_OBJECT_BYTES + 1, 0),
        struct.pack(">II", 2, frames.MAX_PARTS_BYTES + 1),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    """The last two before a byte of what they announce is taken in."""
    with pytest.raises(BadFrame):
        list(Assembler().feed(data))


def test_too_large_a_frame_is_not_made() -> None:
    with pytest.raises(BadFrame):
        encode({"x": "y" * frames.MAX_OBJECT_BYTES})
    with pytest.raises(BadFrame):
        encode({}, [b"x" * frames.MAX_PARTS_BYTES, b"x"])


CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TdnError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_the_same_on_the_other_side(kind: type[errors.TdnError]) -> None:
    sent = kind("what happened", detail={"topic": "x", "position": 3})
    received = error_from_object(json.loads(json.dumps(error_as_object(sent))))
    assert type(received) is kind
    assert (received.message, received.detail) == (sent.message, sent.detail)


@pytest.mark.parametrize(
    "sent",
    [None, [], {}, {"class": "Exception", "message": "", "detail": {}}, {"class": "Refused", "message": "", "detail": 3}, {"class": []},
     {"class": "MalformedMessage", "message": "", "detail": {}, "received": "xy"}],
)  # fmt: skip
def test_an_odd_error_is_no_error_of_ours(sent: object) -> None:
    with pytest.raises(BadFrame):
        error_from_object(sent)
