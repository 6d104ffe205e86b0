"""JSON that two programs cannot read differently, and that cannot exhaust the one that reads it.

`parse` refuses size, depth, duplicate keys, NaN, infinite numbers, halved characters and broken UTF-8 before anything else looks at a message. `canonical` gives the one
text of a value that digests are taken of.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

from tdn.errors import MalformedMessage

#: Longest message we parse, in bytes: a record of the log, or a page of an answer. Bounds memory before any signature is checked.
MAX_MESSAGE_BYTES = 262_144
#: Longest request, its advertisement included. Far enough below the above that the record which wraps an admitted request always fits:
#: otherwise one request could make every node append what no node accepts.
MAX_REQUEST_BYTES = 131_072
#: Longest advertisement. Leaves room for the request that carries it.
MAX_ADVERTISEMENT_BYTES = 122_880
#: Deepest nesting. Python's parser recurses, and nothing in `schemas/` nests beyond eight.
MAX_DEPTH = 32

_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
# Possessive, and content with a string that never ends: otherwise an open string is looked through again from each of its quotes, and 24 KB
# of them took 7 s before any signature was checked.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)


def parse(text: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """The value that `text` holds, or MalformedMessage."""
    if len(text) > max_bytes:
        raise MalformedMessage(f"message of {len(text)} bytes is over the limit of {max_bytes}", received=text)
    _refuse_depth(text)
    try:
        value = orjson.loads(text)
        if orjson.dumps(value, option=orjson.OPT_SORT_KEYS) == text:
            # What gives the same bytes again is in canonical form, as all is that we write: no key stands twice, no number is out of range.
            return value
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass
    return _parse_carefully(text)


def _parse_carefully(text: bytes) -> Any:
    try:
        value = _DECODER.decode(text.decode("utf-8"))
        if _HALF_CHARACTER.search(text):
            # Only an escape can bring one in. Nothing that we write later (an error, a digest) could hold it.
            canonical(value)
        return value
    except UnicodeEncodeError as error:
        raise MalformedMessage("text that is not Unicode: half of a surrogate pair", received=text) from error
    except MalformedMessage as error:
        error.received = text[:200]
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"not JSON: {error}", received=text) from error


def canonical(value: Any) -> bytes:
    """The one text of a JSON value: sorted keys, no spaces, UTF-8."""
    return _ENCODER.encode(value).encode()


def _refuse_depth(text: bytes) -> None:
    # A text with few brackets cannot be deep; counting bytes is a hundred times as fast as walking the tokens.
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[1]:
            depth += 1
            if depth > MAX_DEPTH:
                raise MalformedMessage(f"nested deeper than {MAX_DEPTH} levels", received=text)
        elif match[2]:
            depth -= 1


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise MalformedMessage(f"key {doubled[:40]!r} stands twice in one object")
    return result


def _finite(text: str) -> float:
    """A number as a float, refused where Python would make it infinite and others would not."""
    number = float(text)
    if math.isinf(number):
        raise MalformedMessage(f"the number {text[:40]} is out of range")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedMessage(f"{name} is not JSON")


# Made once: `json.loads` and `json.dumps` with options make a new one for every call.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
