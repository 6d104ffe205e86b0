"""The sample's queries: selective ones find one to ten topics, by the simplest check there is."""

from __future__ import annotations

import unicodedata
from itertools import islice

import pytest
import re2

from tdn.protocol import descriptor as descriptors
from tdn.protocol import synopsis
from tdn.sample import queries, topics

SEED, SIZE = 1, 5000


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """What the descriptors and the synopses of the first topics say."""
    return [
        (descriptors.searchable(one.descriptor), synopsis.fill(one.synopsis_placeholder, one.uuid))
        for one in islice(topics.descriptions(SEED), SIZE)
    ]


def folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def string_matches(query: str, texts: list[tuple[str, str]]) -> int:
    words = folded(query).split()
    return sum(all(word in text for word in words) for text in (folded(f"{one}\n{two}") for one, two in texts))


def regex_matches(query: str, texts: list[tuple[str, str]]) -> int:
    pattern = re2.compile(query)
    return sum(pattern.search(one) is not None for one, _ in texts)


def test_selective_strings_have_one_to_ten_matches(texts: list[tuple[str, str]]) -> None:
    """T13: also when they were made for a smaller sample."""
    for size in (2000, SIZE):
        asked = queries.selective_queries(SEED, size)["string"]
        assert len({query.text for query in asked}) == len(asked) == 28
        for query in asked:
            assert 1 <= string_matches(query.text, texts) <= 10, query


def test_selective_regexes_have_one_to_ten_matches(texts: list[tuple[str, str]]) -> None:
    """T13: also when they were made for a smaller sample."""
    for size in (2000, SIZE):
        for query in queries.selective_queries(SEED, size)["regex"]:
            assert 1 <= regex_matches(query.text, texts) <= 10, query


def test_some_selective_queries_have_more_than_one_match(texts: list[tuple[str, str]]) -> None:
    asked = queries.selective_queries(SEED, SIZE)["string"]
    assert any(string_matches(query.text, texts) > 1 for query in asked if query.name == "campaign")


def test_queries_are_the_same_every_time() -> None:
    assert queries.selective_queries(SEED, SIZE) == queries.selective_queries(SEED, SIZE)
    assert queries.selective_queries(SEED, SIZE) != queries.selective_queries(SEED + 1, SIZE)
    assert tuple(queries.selective_queries(SEED, SIZE)) == queries.LANGUAGES


def test_too_few_topics_are_said_to_be_too_few() -> None:
    with pytest.raises(ValueError, match="2 topics are too few"):
        queries.selective_queries(SEED, 2)


def test_broad_queries_have_many_matches(texts: list[tuple[str, str]]) -> None:
    for query in queries.broad_queries()["string"]:
        assert string_matches(query.text, texts) > SIZE / 200, query
    for query in queries.broad_queries()["regex"]:
        assert regex_matches(query.text, texts) > SIZE / 200, query


def test_expensive_queries_match_nothing(texts: list[tuple[str, str]]) -> None:
    for query in queries.expensive_queries()["string"]:
        assert string_matches(query.text, texts) == 0, query
        assert all(len(word) < 3 for word in query.text.split()), "an index of trigrams would help"
    for query in queries.expensive_queries()["regex"]:
        assert regex_matches(query.text, texts) == 0, query
