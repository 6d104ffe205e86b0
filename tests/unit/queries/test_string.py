"""Plain strings: every word, somewhere, whatever the case."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries.string import MAX_QUERY_CHARACTERS, MAX_WORDS, compile_string, fold, searchable_text


def found(query: str, text: str) -> bool:
    return compile_string(query).matches(fold(text))


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


def test_what_is_searched() -> None:
    """T13: the descriptor's text and the synopsis, on lines of their own."""
    text = searchable_text(descriptor.text("Rain", ["snow"]), "topic=1")
    assert text == "Rain\nsnow\ntopic=1"


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_word_of_the_text_finds_it(word: str, before: str, after: str) -> None:
    """Whatever stands in the text as a word of its own is found by it, in any case."""
    if not fold(word).split():
        return
    for query in (word, word.upper(), word.lower(), word.casefold()):
        if fold(query) == fold(word):
            assert found(query, f"{before}\n{word}\n{after}")


@given(st.text(max_size=30), st.text(max_size=60))
def test_against_a_plain_definition(query: str, text: str) -> None:
    words = fold(query).split()
    if words:
        assert found(query, text) == all(word in fold(text) for word in words)
