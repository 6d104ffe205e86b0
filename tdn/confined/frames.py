"""What node and worker say to each other: frames of one JSON object and, after it, raw parts.

No pickle. A worker runs strangers' queries in engines written in C; if one of them is ever taken over, its bytes can become nothing but
JSON values and bytes here, of a bounded size, or `BadFrame`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tdn import errors
from tdn.errors import MalformedMessage, TdnError

#: Sizes of the object and of all parts together, in bytes.
_PREFIX = struct.Struct(">II")
#: Largest JSON object in a frame: a few times the longest request. Bounds what the other end makes us hold.
MAX_OBJECT_BYTES = 4 * 1024 * 1024
#: Largest sum of parts: some times the largest answer (2 MB).
MAX_PARTS_BYTES = 16 * 1024 * 1024
#: How much of a traceback is sent. The end tells most.
_KEPT_TRACEBACK = 20_000

Frame: TypeAlias = tuple[dict[str, Any], list[bytes]]

_CLASSES: dict[str, type[TdnError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TdnError)
}


class BadFrame(Exception):
    """Bytes that are no frame, or too large a one."""


class WorkFailed(Exception):
    """A bug: the work raised what it should not have. Its traceback, as text, is in `traceback` and in the message."""

    def __init__(self, traceback: str) -> None:
        self.traceback = traceback[-_KEPT_TRACEBACK:]
        super().__init__(f"the work in a confined process failed\n{self.traceback}")


def encode(content: Mapping[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """A frame. `content` must not use the key `parts`, which is ours."""
    lengths = [len(part) for part in parts]
    head = json.dumps({**content, "parts": lengths} if lengths else content, separators=(",", ":")).encode("ascii")
    if len(head) > MAX_OBJECT_BYTES or sum(lengths) > MAX_PARTS_BYTES:
        raise BadFrame(
            f"a frame of {len(head)} + {sum(lengths)} bytes; at most {MAX_OBJECT_BYTES} + {MAX_PARTS_BYTES} are allowed"
        )
    return b"".join((_PREFIX.pack(len(head), sum(lengths)), head, *parts))


class Assembler:
    """Frames out of the pieces in which a stream delivers them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = _PREFIX.size

    def feed(self, piece: bytes) -> Iterable[Frame]:
        """The frames that this piece completes. Raises BadFrame."""
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size >= self._needed:
            data = b"".join(self._pieces)
            head, parts = _PREFIX.unpack_from(data)
            if head > MAX_OBJECT_BYTES or parts > MAX_PARTS_BYTES:
                raise BadFrame(f"a frame of {head} + {parts} bytes is announced")
            total = _PREFIX.size + head + parts
            self._pieces, self._needed = [data], total
            if len(data) < total:
                return
            rest = data[total:]
            self._pieces, self._size, self._needed = [rest] if rest else [], len(rest), _PREFIX.size
            yield _decode(data, _PREFIX.size + head, total)


def _decode(data: bytes, body: int, end: int) -> Frame:
    try:
        content = json.loads(data[_PREFIX.size : body])
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadFrame("not a JSON object")
    lengths = content.pop("parts", [])
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 0 for length in lengths):
        raise BadFrame("odd lengths of parts")
    if sum(lengths) != end - body:
        raise BadFrame("the lengths of the parts are not what follows")
    parts = []
    for length in lengths:
        parts.append(data[body : body + length])
        body += length
    return content, parts


def error_as_object(error: TdnError) -> dict[str, Any]:
    """An error of ours, for a frame. A class that `tdn.errors` does not have travels as the nearest one above it that it has."""
    kind = next(kind for kind in type(error).__mro__ if _CLASSES.get(kind.__name__) is kind)
    received = error.received.hex() if isinstance(error, MalformedMessage) else ""
    return {"class": kind.__name__, "message": error.message, "detail": error.detail, "received": received}


def error_from_object(error: Any) -> TdnError:
    """The same error again. Raises BadFrame."""
    try:
        kind, message, detail = _CLASSES[error["class"]], str(error["message"]), dict(error["detail"])
        if issubclass(kind, MalformedMessage):
            return kind(message, received=bytes.fromhex(error["received"]), detail=detail)
        return kind(message, detail=detail)
    except (KeyError, TypeError, ValueError) as bad:
        raise BadFrame("an error that cannot be read") from bad
