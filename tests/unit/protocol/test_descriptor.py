"""Descriptors: four kinds, the types of properties, and the text that queries see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import MalformedMessage, UsageError
from tdn.protocol import descriptor, schemas


def check(value: Any) -> None:
    """As a node does it: the schema, then what the schema cannot say."""
    body = {
        "creator": "alice",
        "institution": "local",
        "lifetime_seconds": 60,
        "descriptor": value,
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
    }
    schemas.check("create", body)
    descriptor.check(value)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (descriptor.path("weather/europe/Zürich"), "weather/europe/Zürich"),
        (descriptor.path("weather"), "weather"),
        (descriptor.text("Rain\nand snow", ["Bern", "two words"]), "Rain\nand snow\nBern\ntwo words"),
        (descriptor.text("alone"), "alone"),
        (
            descriptor.properties(["z=last", "a=1", "f=1.50", "yes=true", "no=false", "at=2027-01-31T12:00:00Z"]),
            "a=1\nat=2027-01-31T12:00:00Z\nf=1.5\nno=false\nyes=true\nz=last",
        ),
        (descriptor.xml("<a><b>ü</b></a>"), "<a><b>ü</b></a>"),
    ],
)
def test_four_kinds_and_what_queries_see(value: Any, seen: str) -> None:
    """T2: every kind is accepted, and has one text for string and regular expression."""
    check(value)
    assert descriptor.searchable(value) == seen


@pytest.mark.parametrize(
    ("assignment", "kind", "value"),
    [
        ("k=true", "boolean", True),
        ("k=false", "boolean", False),
        ("k=True", "string", "True"),
        ("k=42", "integer", 42),
        ("k=-0", "integer", 0),
        ("k=+7", "integer", 7),
        ("k=9223372036854775807", "integer", 2**63 - 1),
        ("k=9223372036854775808", "float", 9.223372036854775808e18),
        ("k=99999999999999999999999", "float", 1e23),
        ("k=1.5", "float", 1.5),
        ("k=.5", "float", 0.5),
        ("k=5.", "float", 5.0),
        ("k=1e3", "float", 1000.0),
        ("k=1e999", "string", "1e999"),
        ("k=nan", "string", "nan"),
        ("k=inf", "string", "inf"),
        ("k=0x10", "string", "0x10"),
        ("k=1_000", "string", "1_000"),
        ("k=١٢", "string", "١٢"),
        ("k= 1", "string", " 1"),
        ("k=1\n", "string", "1\n"),
        ("k=2027-01-31T12:00:00Z", "timestamp", "2027-01-31T12:00:00Z"),
        ("k=2027-01-31T12:00:00+01:00", "timestamp", "2027-01-31T11:00:00Z"),
        ("k=2027-01-31", "string", "2027-01-31"),
        ("k=2027-02-31T12:00:00Z", "string", "2027-02-31T12:00:00Z"),
        ("k=0999-01-31T12:00:00Z", "timestamp", "0999-01-31T12:00:00Z"),
        ("k=", "string", ""),
        ("k=a=b", "string", "a=b"),
        ("k:string=42", "string", "42"),
        ("k:string=true", "string", "true"),
        ("k:float=42", "float", 42.0),
        ("k:integer=42", "integer", 42),
        ("k:boolean=true", "boolean", True),
        ("k:timestamp=2027-01-31T12:00:00Z", "timestamp", "2027-01-31T12:00:00Z"),
    ],
)
def test_type_from_form(assignment: str, kind: str, value: Any) -> None:
    """T2: the type is read from the value's form, or named; what we read we also accept."""
    made = descriptor.properties([assignment])
    assert made["types"] == {"k": kind}
    assert made["properties"] == {"k": value}
    assert type(made["properties"]["k"]) is type(value)
    check(made)


@pytest.mark.parametrize(
    "assignments",
    [
        ["k"],
        ["=v"],
        ["1k=v"],
        ["k k=v"],
        ["k\n=v"],
        ["é=v"],
        [f"{'k' * 65}=v"],
        ["k=1", "k=2"],
        ["k:int=1"],
        ["k:integer=1.5"],
        ["k:integer=x"],
        ["k:float=x"],
        ["k:float=1e999"],
        ["k:boolean=yes"],
        ["k:timestamp=now"],
    ],
)
def test_assignments_refused(assignments: list[str]) -> None:
    with pytest.raises(UsageError):
        descriptor.properties(assignments)


def properties(value: Any, kind: str) -> dict[str, Any]:
    return {"kind": "properties", "properties": {"k": value}, "types": {"k": kind}}


@pytest.mark.parametrize(
    "value",
    [
        descriptor.path(""),
        descriptor.path("//weather"),
        descriptor.path("weather/"),
        descriptor.path("a//b"),
        descriptor.path("a/ /b"),
        descriptor.path("a\nb"),
        descriptor.path("a" * 1025),
        descriptor.text(""),
        descriptor.text("a" * 16385),
        descriptor.text("a", [""]),
        descriptor.text("a", ["two\nlines"]),
        descriptor.text("a", ["k"] * 65),
        descriptor.xml(""),
        descriptor.xml("no xml"),
        descriptor.xml("<a><b></a>"),
        descriptor.xml("<!DOCTYPE a><a/>"),
        descriptor.xml("<a>" + "x" * 65536 + "</a>"),
        {"kind": "sealed"},
        {"kind": "path"},
        {"kind": "path", "path": "a", "text": "b"},
        {"kind": "path", "path": ["a"]},
        {"path": "a"},
        "a/b",
        None,
        {"kind": "properties", "properties": {}, "types": {}},
        {"kind": "properties", "properties": {"a": 1}, "types": {}},
        {"kind": "properties", "properties": {"a": 1}, "types": {"b": "integer"}},
        {"kind": "properties", "properties": {"a b": 1}, "types": {"a b": "integer"}},
        {"kind": "properties", "properties": {"a\n": 1}, "types": {"a\n": "integer"}},
        properties(True, "integer"),
        properties(True, "float"),
        properties(1, "boolean"),
        properties("true", "boolean"),
        properties(1.5, "integer"),
        properties("1", "integer"),
        properties(2**63, "integer"),
        properties(-(2**63) - 1, "integer"),
        properties(10**400, "float"),
        properties(-(10**400), "float"),
        properties("x", "float"),
        properties(1, "string"),
        properties("a" * 4097, "string"),
        properties("2027-01-31", "timestamp"),
        properties("2027-01-31T12:00:00+01:00", "timestamp"),
        properties("2027-01-31T12:00:00.000Z", "timestamp"),
        properties(1, "timestamp"),
        properties(None, "string"),
        properties([1], "string"),
        properties({}, "string"),
        properties("x", "uuid"),
    ],
)
def test_refused(value: Any) -> None:
    """T2: what is none of the four kinds, or holds a value that is not of its type."""
    with pytest.raises(MalformedMessage):
        check(value)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_typed_is_accepted_and_seen(values: dict[str, str]) -> None:
    made = descriptor.properties(f"{name}={value}" for name, value in values.items())
    check(made)
    lines = descriptor.searchable(made)
    assert all(f"{name}=" in lines for name in values)
    named = descriptor.properties(f"{name}:string={value}" for name, value in values.items())
    check(named)
    assert named["properties"] == values


def test_a_path_may_begin_with_a_slash() -> None:
    """People write both `weather/oslo` and `/weather/oslo`; it is kept as it was given."""
    descriptor.check(descriptor.path("/weather/oslo"))
