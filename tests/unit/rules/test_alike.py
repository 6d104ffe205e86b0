"""Nodes that have the same log have the same state, whatever each has seen, cached or been told besides.

Each of these once divided two nodes, or stopped them, on a running network.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest

from tdn.errors import MalformedMessage
from tdn.protocol import jsontext
from tdn.trust import signing


def test_a_signature_has_one_boundary() -> None:
    """The memory of signatures that held must not believe a shorter signature over longer bytes."""
    signature, signed = b"s" * 64, b"header.payload"
    key: Any = object()
    signing._held[hashlib.sha256(signature + signed).digest()] = key
    assert signing._holds(signed, signature, key)
    for cut in range(64):
        assert not signing._holds(signature[cut:] + signed, signature[:cut], key)


def test_remembered_refusals_hold_no_librarys_words(net: Any) -> None:
    """What a parser or a certificate library says differs between versions; the state keeps our own words."""
    log = net.log()
    alice = net.entity("alice")
    head, payload, signature = net.mint(alice).split(b".")
    flawed = (head + b"." + payload[:-4] + b"." + signature, b"eyJ4." + payload + b"." + signature, b"no.no.no")
    for number, token in enumerate(flawed):
        uuid = f"00000000-0000-4000-8000-00000000000{number}"
        outcome = log.put("advertise", net.advertise(alice, token, uuid=uuid))
        assert outcome.status == "refused"
        request = next(write for write in outcome.writes if write.space == "request")
        assert request.value["error"]["message"].startswith("the request was refused when it was first judged")
        assert outcome.error["message"] != request.value["error"]["message"]


def test_an_open_string_is_looked_through_once() -> None:
    """24 KB of this took seven seconds, before any signature was checked."""
    hostile = b"[]" * 40 + b'"' + b'\\"' * 60_000
    started = time.perf_counter()
    with pytest.raises(MalformedMessage):
        jsontext.parse(hostile)
    assert time.perf_counter() - started < 1.0


def test_depth_is_seen_behind_strings() -> None:
    with pytest.raises(MalformedMessage, match="nested"):
        jsontext.parse(b'["\\"[", ' + b"[" * 40 + b"]" * 41)
    assert jsontext.parse(b'["' + b"[" * 100 + b'"]') == ["[" * 100]
