"""Topic descriptors (T2): path, text with keywords, typed properties, XML; and sealed, which is any of them to whoever holds its key (T9).

A descriptor is kept as the JSON value that was signed; `check` says whether it is sound, and `searchable` gives the
text that string and regular-expression queries see, the same on every node and in the archive.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tdn.errors import MalformedMessage, UsageError
from tdn.protocol import xmltext
from tdn.protocol.times import format_time, parse_time

Descriptor = Mapping[str, Any]

#: Integers are 64-bit, so that every engine that later reads them (SQLite, Arrow, the JVM) holds them exactly.
MAX_INTEGER = 2**63 - 1
_MAX_FLOAT = sys.float_info.max

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]{1,3})?")
_PROPERTY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_TYPES = ("string", "integer", "float", "boolean", "timestamp")


def path(text: str) -> Descriptor:
    return {"kind": "path", "path": text}


def text(body: str, keywords: Iterable[str] = ()) -> Descriptor:
    return {"kind": "text", "text": body, "keywords": list(keywords)}


def xml(document: str) -> Descriptor:
    return {"kind": "xml", "xml": document}


def properties(assignments: Iterable[str]) -> Descriptor:
    """Properties from `k=v` and `k:type=v`, the type read from the value's form where it is not named."""
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for assignment in assignments:
        left, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"{assignment!r} is not a property; write name=value or name:type=value")
        name, _, named_type = left.partition(":")
        if _PROPERTY_NAME.fullmatch(name) is None:
            raise UsageError(
                f"{name!r} is not a property name; use letters, digits, '_', '.', '-', starting with a letter or '_'"
            )
        if name in values:
            raise UsageError(f"property {name!r} is given twice")
        if named_type and named_type not in _TYPES:
            raise UsageError(f"{named_type!r} is not a property type; the types are {', '.join(_TYPES)}")
        types[name] = named_type or _type_of(value)
        values[name] = _read(name, value, types[name])
    return {"kind": "properties", "properties": values, "types": types}


def check(descriptor: Descriptor) -> None:
    """What the schema cannot say: values that fit their types, and XML that is safe to read."""
    if descriptor["kind"] == "path":
        if any(not step.strip() for step in descriptor["path"].removeprefix("/").split("/")):
            raise MalformedMessage("descriptor.path: a step between two '/' is empty")
    elif descriptor["kind"] == "properties":
        values, types = descriptor["properties"], descriptor["types"]
        if values.keys() != types.keys():
            raise MalformedMessage("descriptor: every property needs a type, and every type a property")
        for name, value in values.items():
            if not _fits(value, types[name]):
                raise MalformedMessage(f"descriptor.properties.{name}: {str(value)[:40]!r} is not of type {types[name]}")
    elif descriptor["kind"] == "xml":
        try:
            xmltext.check(descriptor["xml"])
        except MalformedMessage as error:
            raise MalformedMessage(f"descriptor.xml: {error.message}") from error


def searchable(descriptor: Descriptor) -> str:
    """The text that string and regular-expression queries see: the path; the text, then each keyword on a line; sorted `k=v` lines; the XML."""
    if descriptor["kind"] == "sealed":
        return ""
    if descriptor["kind"] == "path":
        return str(descriptor["path"])
    if descriptor["kind"] == "text":
        return "\n".join([descriptor["text"], *descriptor["keywords"]])
    if descriptor["kind"] == "properties":
        return "\n".join(f"{name}={_plain(value)}" for name, value in sorted(descriptor["properties"].items()))
    return str(descriptor["xml"])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _type_of(value: str) -> str:
    if value in ("true", "false"):
        return "boolean"
    if _INTEGER.fullmatch(value) and abs(int(value)) <= MAX_INTEGER:
        return "integer"
    if _FLOAT.fullmatch(value) and math.isfinite(float(value)):
        return "float"
    try:
        parse_time(value)
    except UsageError:
        return "string"
    return "timestamp"


def _read(name: str, value: str, kind: str) -> Any:
    try:
        if kind == "boolean":
            return {"true": True, "false": False}[value]
        if kind == "integer" and _INTEGER.fullmatch(value):
            return int(value)
        if kind == "float" and _FLOAT.fullmatch(value) and math.isfinite(float(value)):
            return float(value)
        if kind == "timestamp":
            return format_time(parse_time(value))
    except (KeyError, UsageError):
        pass
    if kind != "string":
        raise UsageError(f"property {name!r}: {value!r} is not of type {kind}")
    return value


def _fits(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "integer":
        return isinstance(value, int) and -MAX_INTEGER - 1 <= value <= MAX_INTEGER
    if kind == "float":
        # An integer is compared, not converted: one of four hundred digits is no float.
        return isinstance(value, (int, float)) and -_MAX_FLOAT <= value <= _MAX_FLOAT
    if not isinstance(value, str) or len(value) > 4096:
        return False
    if kind == "timestamp":
        try:
            return format_time(parse_time(value)) == value
        except UsageError:
            return False
    return True
