"""Topic synopses (T3): a placeholder with `{uuid}` once, of one of four types, filled with the UUID that the node minted."""

from __future__ import annotations

import re
from typing import Any

from tdn.errors import MalformedMessage
from tdn.protocol import jsontext, xmltext

SLOT = "{uuid}"

DEFAULTS = {
    "string": "{uuid}",
    "tags": "topic={uuid}",
    "properties": '{"topic": "{uuid}"}',
    "xml": '<topic uuid="{uuid}"/>',
}

#: Stands in for the UUID when a placeholder is checked before one is minted.
_SAMPLE = "00000000-0000-4000-8000-000000000000"
_ANY_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_TAG = re.compile(r"[^=,\s][^=,]*=[^=,]*")


def check(synopsis_type: str, placeholder: str) -> None:
    """Refuse a placeholder that does not fit its type, or that brings a UUID of its own (T4)."""
    if _ANY_UUID.search(placeholder):
        raise MalformedMessage(
            "synopsis.placeholder: a request cannot bring a UUID of its own; {uuid} marks where the minted one goes"
        )
    if placeholder.count(SLOT) != 1:
        raise MalformedMessage("synopsis.placeholder: {uuid} must stand in it exactly once")
    if synopsis_type not in DEFAULTS:
        raise MalformedMessage(f"synopsis.type: {synopsis_type[:20]!r} is not string, tags, properties or xml")
    if not _holds_uuid(synopsis_type, placeholder.replace(SLOT, _SAMPLE)):
        raise MalformedMessage(
            f"synopsis.placeholder: does not fit the type {synopsis_type}; its default is {DEFAULTS[synopsis_type]}"
        )


def fill(placeholder: str, uuid: str) -> str:
    return placeholder.replace(SLOT, uuid)


def _holds_uuid(synopsis_type: str, value: str) -> bool:
    """Whether a filled synopsis is of its type and carries the UUID in a value, not in a name or a comment."""
    if synopsis_type == "string":
        return value == _SAMPLE
    if synopsis_type == "tags":
        pairs = value.split(",")
        names = [pair.partition("=")[0].strip() for pair in pairs]
        return (
            all(_TAG.fullmatch(pair.strip()) for pair in pairs)
            and len(set(names)) == len(names)
            and any(_SAMPLE in pair.partition("=")[2] for pair in pairs)
        )
    if synopsis_type == "properties":
        try:
            found: Any = jsontext.parse(value.encode())
        except (MalformedMessage, UnicodeEncodeError):
            return False
        return (
            isinstance(found, dict)
            and all(isinstance(item, (str, int, float, bool)) for item in found.values())
            and any(isinstance(item, str) and _SAMPLE in item for item in found.values())
        )
    try:
        contents = xmltext.check(value)
        return _SAMPLE in "".join(contents.texts) or any(_SAMPLE in content for _, content in contents.attributes)
    except MalformedMessage:
        return False
