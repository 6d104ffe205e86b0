"""Plain strings: every word, somewhere, whatever the case."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries.model import AllOf, Anything, Contains, Query, Subject, fold, holds
from tdn.queries.string import MAX_QUERY_CHARACTERS, MAX_WORDS, compile_string


def subject(described: descriptor.Descriptor, synopsis: str = "") -> Subject:
    return Subject("u", "topic", "alice", "alice", "local", "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z", described, synopsis)


def found(query: str, text: str) -> bool:
    compiled: Query = compile_string(query)
    topic = subject(descriptor.text(text))
    found = compiled.matches(topic)
    assert not found or holds(compiled.clue, topic)
    return found


@pytest.mark.parametrize(
    ("query", "text", "match"),
    [
        ("weather", "weather/europe", True),
        ("WEATHER", "weather/europe", True),
        ("weather", "WEATHER/EUROPE", True),
        ("eat", "weather", True),
        ("weather rain", "rain and weather", True),
        ("weather snow", "rain and weather", False),
        ("  weather\t\n rain  ", "rain and weather", True),
        ("strasse", "Straße", True),
        ("Straße", "STRASSE", True),
        ("zürich", unicodedata.normalize("NFD", "Zürich"), True),
        (unicodedata.normalize("NFD", "Zürich"), "ZÜRICH", True),
        ("zurich", "Zürich", False),
        ("ΣΊΣΥΦΟΣ", "σίσυφος", True),
        ("a.c", "abc", False),
        ("a%", "abc", False),
        ("*", "abc", False),
        ("k=1", "k=10", True),
        ("天气", "欧洲天气", True),
    ],
)
def test_matches(query: str, text: str, match: bool) -> None:
    """T13: plain: nothing in it is a pattern."""
    assert found(query, text) is match


@pytest.mark.parametrize("query", ["", " ", "\t\n", "\u00a0", "\u2003"])
def test_empty(query: str) -> None:
    """An empty "all of" is an error, not a yes."""
    with pytest.raises(QueryError, match="empty"):
        compile_string(query)


def test_limits() -> None:
    compile_string("a" * MAX_QUERY_CHARACTERS)
    with pytest.raises(QueryError, match="characters"):
        compile_string("a" * (MAX_QUERY_CHARACTERS + 1))
    words = [f"w{number}" for number in range(MAX_WORDS + 1)]
    compile_string(" ".join(words[:-1]))
    with pytest.raises(QueryError, match="words"):
        compile_string(" ".join(words))
    assert compile_string("a " * 1000).words == ("a",)


@pytest.mark.parametrize(
    ("query", "position", "why"),
    [
        ("\0", 0, "NUL"),
        ("rain\0snow", 4, "NUL"),
        ("ab\ud800", 2, "surrogate"),
        ("\udfff x", 0, "surrogate"),
    ],
)
def test_what_is_no_text(query: str, position: int, why: str) -> None:
    """T13: what no descriptor can hold is refused, with its place, and never reaches an index."""
    with pytest.raises(QueryError, match=why) as refused:
        compile_string(query)
    assert refused.value.detail["position"] == position


@pytest.mark.parametrize("query", ["x" * 1_000_000, "\0" * 1_000_000, "\ud800" * 1_000_000])
def test_a_megabyte(query: str) -> None:
    with pytest.raises(QueryError, match="1000000 characters"):
        compile_string(query)


@pytest.mark.parametrize(
    ("described", "word"),
    [
        (descriptor.path("weather/Europe"), "r/eu"),
        (descriptor.text("Rain today", ["snow", "Ice"]), "RAIN"),
        (descriptor.text("Rain today", ["snow", "Ice"]), "ice"),
        (descriptor.properties(["height=2.50", "name=Roof", "on=true"]), "HEIGHT=2.5"),
        (descriptor.properties(["height=2.50", "name=Roof", "on=true"]), "on=true"),
        (descriptor.xml('<a b="1">&#65;x</a>'), 'b="1">&#65;X</A>'),
    ],
)
def test_what_is_searched(described: descriptor.Descriptor, word: str) -> None:
    """T2, T13: every kind of descriptor, as it is written, and the synopsis."""
    assert compile_string(word).matches(subject(described))
    assert compile_string(f"topic=1 {word}").matches(subject(described, "Topic=1"))
    assert not compile_string(f"topic=1 {word}").matches(subject(described, "Topic=2"))
    assert not compile_string(word).matches(subject(descriptor.path("elsewhere"), "Topic=1"))


def test_the_two_lines_do_not_touch() -> None:
    assert not compile_string("abcd").matches(subject(descriptor.path("ab"), "cd"))


def test_clue() -> None:
    """Every word that is long enough for an index; a short one says nothing."""
    assert compile_string("Ocean BUOY no").clue == AllOf((Contains("ocean"), Contains("buoy")))
    assert compile_string("Ocean").clue == Contains("ocean")
    assert compile_string("a no").clue == Anything()
    assert compile_string("Ocean").language == "string"


@settings(derandomize=True, deadline=None)
@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_word_of_the_text_finds_it(word: str, before: str, after: str) -> None:
    """Whatever stands in the text as a word of its own is found by it, in any case."""
    if "\0" in word or not fold(word).split():
        return
    for query in (word, word.upper(), word.lower(), word.casefold()):
        if fold(query) == fold(word):
            assert found(query, f"{before}\n{word}\n{after}")


@settings(derandomize=True, deadline=None)
@given(st.text(max_size=30), st.text(max_size=60))
def test_against_a_plain_definition(query: str, text: str) -> None:
    words = fold(query).split()
    if words and "\0" not in query:
        assert found(query, text) == all(word in fold(text) for word in words)


@settings(derandomize=True, deadline=None)
@given(st.text(st.characters(exclude_categories=[]), max_size=200))
def test_only_query_errors_leave(query: str) -> None:
    """Fuzz: whatever the text, a query or a QueryError, and a query that can be asked of anything."""
    try:
        compiled = compile_string(query)
    except QueryError:
        return
    assert compiled.matches(subject(descriptor.text("x"), query))
