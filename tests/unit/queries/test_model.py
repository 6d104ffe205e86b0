"""What all query languages share: clues, what an index sees of a topic, and what a clue means."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.protocol.times import parse_time
from tdn.queries.model import (
    MAX_QUERY_CHARACTERS,
    AllOf,
    AnyOf,
    Anything,
    Clue,
    Contains,
    Subject,
    Value,
    all_of,
    any_of,
    contains_folded,
    contains_literal,
    finds,
    fold,
    holds,
    indexed_text,
    indexed_values,
    microseconds,
    require_length,
)
from tdn.queries.string import compile_string

ONE, TWO, THREE = Contains("one"), Contains("two"), Value("n:x", 1, 2)
SEALED = {"kind": "sealed", "sealed": "…"}


def subject(described: descriptor.Descriptor, synopsis: str = "synopsis") -> Subject:
    return Subject(
        uuid="6f1c0000-0000-4000-8000-000000000000",
        kind="topic",
        creator="alice",
        owner="bob",
        institution="Example University",
        created="2027-01-01T00:00:00Z",
        expires="2027-01-02T00:00:00Z",
        descriptor=described,
        synopsis=synopsis,
    )


@pytest.mark.parametrize(
    ("clues", "together"),
    [
        ([], Anything()),
        ([Anything()], Anything()),
        ([Anything(), Anything()], Anything()),
        ([ONE], ONE),
        ([ONE, ONE], ONE),
        ([Anything(), ONE, Anything()], ONE),
        ([ONE, TWO, ONE, THREE], AllOf((ONE, TWO, THREE))),
        ([AnyOf((ONE, TWO)), THREE], AllOf((AnyOf((ONE, TWO)), THREE))),
    ],
)
def test_all_of(clues: list[Clue], together: Clue) -> None:
    """What says nothing is left out, what is said twice is said once."""
    assert all_of(*clues) == together


@pytest.mark.parametrize(
    ("clues", "together"),
    [
        ([], Anything()),
        ([Anything()], Anything()),
        ([ONE], ONE),
        ([ONE, ONE], ONE),
        ([ONE, Anything()], Anything()),
        ([Anything(), ONE, TWO], Anything()),
        ([ONE, TWO, ONE], AnyOf((ONE, TWO))),
        ([AllOf((ONE, TWO)), THREE], AnyOf((AllOf((ONE, TWO)), THREE))),
    ],
)
def test_any_of(clues: list[Clue], together: Clue) -> None:
    """One branch without a clue, and nothing is known: the topic may match by that branch."""
    assert any_of(*clues) == together


@pytest.mark.parametrize(
    ("text", "folded", "literal"),
    [
        ("abc", Contains("abc"), Contains("abc")),
        ("ab", Anything(), Anything()),
        ("", Anything(), Anything()),
        ("a\0c", Contains("a\ufffdc"), Contains("a\ufffdc")),
        ("天气预", Contains("天气预"), Contains("天气预")),
    ],
)
def test_contains(text: str, folded: Clue, literal: Clue) -> None:
    assert contains_folded(text) == folded
    assert contains_literal(text) == literal


def test_literals_are_folded_but_not_composed() -> None:
    """A literal may end in the middle of what NFC would compose; composing it would lose topics."""
    assert contains_literal("OCEAN") == Contains("ocean")
    assert contains_literal("aß") == Contains("ass")
    decomposed = "zu\u0308rich"
    assert contains_literal(decomposed) == Contains(decomposed)
    assert fold(decomposed) == "zürich"


class TestIndexedText:
    """T13: what an index of text sees of each kind of descriptor."""

    @pytest.mark.parametrize(
        ("described", "text"),
        [
            (descriptor.path("Weather/Europe"), "weather/europe\ntopic=1"),
            (descriptor.text("Rain", ["Snow", "ICE"]), "rain\nsnow\nice\ntopic=1"),
            (descriptor.text("Rain"), "rain\ntopic=1"),
            (
                descriptor.properties(["Name=Roof", "height=2.50", "at=2027-01-01T00:00:00Z", "on=true", "n=-7"]),
                "name=roof\nat=2027-01-01t00:00:00z\nheight=2.5\nn=-7\non=true\ntopic=1",
            ),
            (descriptor.text("a\0b"), "a\ufffdb\ntopic=1"),
            (descriptor.text("Straße"), "strasse\ntopic=1"),
        ],
    )
    def test_kinds(self, described: descriptor.Descriptor, text: str) -> None:
        assert indexed_text(described, "Topic=1") == text

    def test_decomposed_characters(self) -> None:
        """Both as plain strings see them and as literals do."""
        name = unicodedata.normalize("NFD", "Zürich")
        assert indexed_text(descriptor.path(name), "s") == f"zürich\ns\n{name.lower()}\ns"
        assert indexed_text(descriptor.path("Zürich"), "s") == "zürich\ns"

    def test_xml(self) -> None:
        """As it is written, and as a parser reads it."""
        document = '<s:Site xmlns:s="urn:s" Name="&#66;erlin"><d><![CDATA[<Roof>]]> &amp; m</d>ore<!--Note--></s:Site>'
        assert indexed_text(descriptor.xml(document), "Topic") == "\n".join(
            [document.casefold(), "topic", "<site>", "<d>", "@name=berlin", "<roof> & more", "note"]
        )

    def test_sealed(self) -> None:
        """T9: nothing at all, not even its synopsis."""
        assert indexed_text(SEALED, "topic=1") == ""

    @settings(derandomize=True, deadline=None, max_examples=examples(200))
    @given(
        st.text(max_size=30),
        st.text("aA\u0308u\u0301\0ßİſK\n", max_size=12),
        st.text(max_size=30),
        st.integers(0, 9),
        st.integers(1, 9),
    )
    def test_what_is_there_is_found(self, before: str, odd: str, after: str, start: int, length: int) -> None:
        """A piece of the text, literal or folded, has a clue that holds."""
        text = before + odd + after
        topic = subject(descriptor.text(text))
        assert holds(contains_literal(text[start : start + length]), topic)
        assert holds(contains_literal(odd), topic)
        assert holds(contains_folded(fold(text)[start : start + length]), topic)


class TestIndexedValues:
    def test_families(self) -> None:
        described = descriptor.properties(
            ["name=Roof", "n=7", "big=9223372036854775807", "f=2.5", "on=true", "off=false", "zip:string=01234"]
        )
        assert dict(indexed_values(described)) == {
            "s:name": "Roof",
            "n:n": 7,
            "n:big": 2**63 - 1,
            "n:f": 2.5,
            "b:on": 1,
            "b:off": 0,
            "s:zip": "01234",
        }

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.000001Z", 1_000_001),
            ("1969-12-31T23:59:59.999999Z", -1),
            ("2027-01-31T12:00:00.5Z", 1_801_396_800_500_000),
            ("2027-01-31T13:00:00+01:00", 1_801_396_800_000_000),
            ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
            ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
        ],
    )
    def test_timestamps(self, text: str, value: int) -> None:
        """Microseconds, exact over the whole calendar: a float would lose them after 2255."""
        assert list(indexed_values(descriptor.properties([f"at={text}"]))) == [("t:at", value)]
        assert microseconds(parse_time(text)) == value

    @settings(derandomize=True, deadline=None)
    @given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=2, max_size=5))
    def test_in_the_order_of_time(self, moments: list[datetime]) -> None:
        assert sorted(moments) == sorted(moments, key=microseconds)
        assert len(set(moments)) == len(set(map(microseconds, moments)))

    @pytest.mark.parametrize("described", [descriptor.path("n=1"), descriptor.text("n=1"), descriptor.xml("<n>1</n>"), SEALED])
    def test_other_kinds_have_none(self, described: descriptor.Descriptor) -> None:
        assert list(indexed_values(described)) == []


class TestHolds:
    TOPIC = subject(descriptor.properties(["n=7", "f=2.5", "name=Roof", "on=true", "at=2027-01-01T00:00:00.25Z"]))

    @pytest.mark.parametrize(
        ("clue", "true"),
        [
            (Anything(), True),
            (Contains("name=roof"), True),
            (Contains("name=Roof"), False),
            (Contains("synopsis"), True),
            (Contains("floor"), False),
            (Value("n:n", 7, 7), True),
            (Value("n:n", 8, None), False),
            (Value("n:n", None, 6), False),
            (Value("n:n", 7, None), True),
            (Value("n:n", None, 7), True),
            (Value("n:n", None, None), True),
            (Value("n:n", 6.5, 7.5), True),
            (Value("n:missing", None, None), False),
            (Value("n:name", None, None), False),
            (Value("s:n", None, None), False),
            (Value("n:f", 2.5, 2.5), True),
            (Value("s:name", "Roof", "Roof"), True),
            (Value("s:name", "Root", None), False),
            (Value("b:on", 1, 1), True),
            (Value("b:on", 0, 0), False),
            (Value("t:at", 1_798_761_600_250_000, 1_798_761_600_250_000), True),
            (Value("t:at", 1_798_761_600_250_001, None), False),
            (Value("@uuid", "6f1c0000-0000-4000-8000-000000000000", "6f1c0000-0000-4000-8000-000000000000"), True),
            (Value("@creator", "alice", "alice"), True),
            (Value("@owner", "alice", "alice"), False),
            (Value("@owner", "bob", "bob"), True),
            (Value("@institution", "Example", "Example Z"), True),
            (Value("@created", "2027-01-01T00:00:00Z", None), True),
            (Value("@created", None, "2026-12-31T23:59:59Z"), False),
            (Value("@expires", "2027-01-02T00:00:00Z", "2027-01-02T00:00:00Z"), True),
            (AllOf((Contains("name=roof"), Value("n:n", 7, 7))), True),
            (AllOf((Contains("name=roof"), Value("n:n", 8, 8))), False),
            (AnyOf((Contains("floor"), Value("n:n", 7, 7))), True),
            (AnyOf((Contains("floor"), Value("n:n", 8, 8))), False),
            (AllOf((AnyOf((Contains("floor"), Contains("roof"))), Anything())), True),
        ],
    )
    def test_every_kind(self, clue: Clue, true: bool) -> None:
        assert holds(clue, self.TOPIC) is true

    def test_nothing_of_a_sealed_descriptor(self) -> None:
        """T9: its text gives no clue away; its fields are no secret."""
        assert not holds(Contains("synopsis"), subject(SEALED))
        assert holds(Value("@creator", "alice", "alice"), subject(SEALED))


def test_a_sealed_topic_is_found_by_none() -> None:
    """T9: not by its synopsis either; opened, it is found like any other."""
    query = compile_string("synopsis")
    assert query.matches(subject(SEALED)), "otherwise this test shows nothing"
    assert not finds(query, subject(SEALED))
    assert finds(query, subject(descriptor.path("opened")))
    assert not finds(compile_string("other"), subject(descriptor.path("opened")))


def test_length() -> None:
    require_length("sql", "x" * MAX_QUERY_CHARACTERS)
    with pytest.raises(QueryError, match=f"sql query has {MAX_QUERY_CHARACTERS + 1} characters"):
        require_length("sql", "x" * (MAX_QUERY_CHARACTERS + 1))
    require_length("regex", "xyz", 3)
    with pytest.raises(QueryError, match="at most 3"):
        require_length("regex", "wxyz", 3)
