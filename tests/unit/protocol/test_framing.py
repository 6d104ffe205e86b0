"""Messages in frames: whatever way the bytes are cut up on their way, the same messages come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import MalformedMessage
from tdn.protocol.framing import MAX_FRAME_BYTES, Frames, frame
from tdn.trust import sealing


@given(st.lists(st.binary(max_size=60)), st.lists(st.integers(1, 30)))
def test_however_it_is_cut(messages: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(map(frame, messages))
    frames, read, at = Frames(), [], 0
    for cut in [*cuts, len(whole)]:
        read += list(frames.feed(whole[at : at + cut]))
        at += cut
    assert read == messages


def test_a_frame_holds_the_largest_message_and_no_more() -> None:
    assert sealing.STEPS[-1] + sealing.OVERHEAD_BYTES <= MAX_FRAME_BYTES
    with pytest.raises(MalformedMessage):
        frame(b"x" * (MAX_FRAME_BYTES + 1))
    with pytest.raises(MalformedMessage):
        list(Frames().feed((MAX_FRAME_BYTES + 1).to_bytes(4)))
