"""Synopses: a placeholder with one slot, of one of four types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import MalformedMessage
from tdn.protocol import synopsis

UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"


@pytest.mark.parametrize("kind", sorted(synopsis.DEFAULTS))
def test_defaults_fit(kind: str) -> None:
    """T3: each type's own default."""
    synopsis.check(kind, synopsis.DEFAULTS[kind])
    assert UUID in synopsis.fill(synopsis.DEFAULTS[kind], UUID)


@pytest.mark.parametrize(
    ("kind", "placeholder"),
    [
        ("tags", "topic={uuid}, area=ch"),
        ("tags", "area=, topic=urn:{uuid}:x"),
        ("tags", "a b={uuid}"),
        ("properties", '{"topic": "urn:{uuid}", "n": 1, "f": 1.5, "b": true}'),
        ("xml", "<topic><id>{uuid}</id></topic>"),
        ("xml", "<topic><![CDATA[{uuid}]]></topic>"),
        ("xml", '<t:topic xmlns:t="urn:t" t:uuid="{uuid}"/>'),
    ],
)
def test_fits(kind: str, placeholder: str) -> None:
    synopsis.check(kind, placeholder)


@pytest.mark.parametrize(
    ("kind", "placeholder"),
    [
        ("string", ""),
        ("string", "topic"),
        ("string", " {uuid}"),
        ("string", "{uuid}{uuid}"),
        ("string", "{UUID}"),
        ("tags", "{uuid}"),
        ("tags", "{uuid}=topic"),
        ("tags", "topic={uuid},"),
        ("tags", "topic={uuid},area"),
        ("tags", "topic={uuid},topic=x"),
        ("tags", "=,{uuid}"),
        ("tags", "a=b={uuid}"),
        ("properties", "{uuid}"),
        ("properties", '["{uuid}"]'),
        ("properties", '{"{uuid}": 1}'),
        ("properties", '{"topic": ["{uuid}"]}'),
        ("properties", '{"topic": "{uuid}", "x": null}'),
        ("properties", '{"topic": "{uuid}", "x": {}}'),
        ("properties", '{"topic": "{uuid}", "topic": "x"}'),
        ("properties", '{"topic": "{uuid}", "x": NaN}'),
        ("properties", '{"topic": "{uuid}", "x": 1e999}'),
        ("properties", '{"topic": "{uuid}", "x": "\\ud800"}'),
        ("properties", '{"topic": "{uuid}", "x": ' + "[" * 8000 + "]" * 8000 + "}"),
        ("properties", '{"topic": "{uuid}"'),
        ("xml", "{uuid}"),
        ("xml", "<{uuid}/>"),
        ("xml", "<t><!-- {uuid} --></t>"),
        ("xml", "<t><?p {uuid}?></t>"),
        ("xml", "<t>{uuid}"),
        ("xml", '<!DOCTYPE t [<!ENTITY e "{uuid}">]><t>&e;</t>'),
        ("json", "{uuid}"),
        ("", "{uuid}"),
    ],
)
def test_does_not_fit(kind: str, placeholder: str) -> None:
    """T3: a placeholder that does not fit its type is refused; the UUID must stand in a value."""
    with pytest.raises(MalformedMessage, match=r"^synopsis\."):
        synopsis.check(kind, placeholder)


@pytest.mark.parametrize("brought", [UUID, UUID.upper(), "00000000-0000-1000-8000-000000000000"])
@pytest.mark.parametrize(
    ("kind", "placeholder"),
    [("tags", "topic={{uuid}},was={}"), ("properties", '{{"topic": "{{uuid}}", "was": "{}"}}'), ("string", "{}")],
)
def test_brings_its_own_uuid(kind: str, placeholder: str, brought: str) -> None:
    """T4: a request that brings its own UUID is refused, whoever sends it, in whatever spelling."""
    with pytest.raises(MalformedMessage, match="cannot bring a UUID of its own"):
        synopsis.check(kind, placeholder.format(brought))


@given(st.sampled_from(sorted(synopsis.DEFAULTS)), st.text(max_size=40), st.text(max_size=40))
def test_whatever_fits_holds_the_uuid(kind: str, before: str, after: str) -> None:
    """T3: what was accepted and filled carries the minted UUID exactly once."""
    placeholder = before + "{uuid}" + after
    try:
        synopsis.check(kind, placeholder)
    except MalformedMessage:
        return
    filled = synopsis.fill(placeholder, UUID)
    assert filled.count(UUID) == 1
    assert "{uuid}" not in filled
