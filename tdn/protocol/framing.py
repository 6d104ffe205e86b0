"""Several messages in one answer over HTTP: each after its length in four bytes, the most significant first.

The messages themselves are signed and sealed as anywhere else; a frame only says where one ends. A page can be read as soon as it has come.
"""

from __future__ import annotations

from collections.abc import Iterator

from tdn.errors import MalformedMessage

CONTENT_TYPE = "application/vnd.tdn.messages"

#: Longest message in a frame: the largest sealed one, with room to spare. Bounds what a reader holds before it has seen a signature.
MAX_FRAME_BYTES = 300_000
_LENGTH_BYTES = 4


def frame(message: bytes) -> bytes:
    if len(message) > MAX_FRAME_BYTES:
        raise MalformedMessage(f"a message of {len(message)} bytes is too long for a frame")
    return len(message).to_bytes(_LENGTH_BYTES) + message


class Frames:
    """Takes bytes as they come, and gives the messages that are whole."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._held += data
        while len(self._held) >= _LENGTH_BYTES:
            length = int.from_bytes(self._held[:_LENGTH_BYTES])
            if length > MAX_FRAME_BYTES:
                raise MalformedMessage(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            if len(self._held) < _LENGTH_BYTES + length:
                return
            message = bytes(self._held[_LENGTH_BYTES : _LENGTH_BYTES + length])
            del self._held[: _LENGTH_BYTES + length]
            yield message
