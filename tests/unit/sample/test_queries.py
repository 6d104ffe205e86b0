"""The sample's queries: selective ones find one to ten topics, by the simplest check there is."""

from __future__ import annotations

import unicodedata
from itertools import islice

import pytest
import re2

from tdn.protocol import descriptor as descriptors
from tdn.protocol import synopsis
from tdn.queries.compile import compile_query
from tdn.queries.model import Anything, Clue, Subject, Value, finds, holds
from tdn.sample import queries, topics
from tdn.sample.queries import SampleQuery

SEED, SIZE = 1, 5000


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """What regular expressions see."""
    return [descriptors.searchable(one.descriptor) for one in islice(topics.descriptions(SEED), SIZE)]


@pytest.fixture(scope="module")
def folded(texts: list[str]) -> list[str]:
    """What plain strings see: the synopsis too, and no case."""
    fills = (synopsis.fill(one.synopsis_placeholder, one.uuid) for one in islice(topics.descriptions(SEED), SIZE))
    return [fold(f"{text}\n{filled}") for text, filled in zip(texts, fills, strict=True)]


def fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def string_matches(query: str, folded: list[str]) -> int:
    words = fold(query).split()
    return sum(all(word in text for word in words) for text in folded)


def regex_matches(query: str, texts: list[str]) -> int:
    pattern = re2.compile(query)
    return sum(pattern.search(text) is not None for text in texts)


def test_selective_strings_have_one_to_ten_matches(folded: list[str]) -> None:
    """T13: also when they were made for a smaller sample."""
    for size in (2000, SIZE):
        asked = queries.selective_queries(SEED, size)["string"]
        assert len({query.text for query in asked}) == len(asked) == 28
        for query in asked:
            assert 1 <= string_matches(query.text, folded) <= 10, query


def test_selective_regexes_have_one_to_ten_matches(texts: list[str]) -> None:
    """T13: also when they were made for a smaller sample."""
    for size in (2000, SIZE):
        for query in queries.selective_queries(SEED, size)["regex"]:
            assert 1 <= regex_matches(query.text, texts) <= 10, query


def test_some_selective_queries_have_more_than_one_match(folded: list[str]) -> None:
    asked = queries.selective_queries(SEED, SIZE)["string"]
    assert any(string_matches(query.text, folded) > 1 for query in asked if query.name == "campaign")


def test_queries_are_the_same_every_time() -> None:
    asked = queries.selective_queries(SEED, SIZE, each=1)
    assert asked == queries.selective_queries(SEED, SIZE, each=1)
    assert asked != queries.selective_queries(SEED + 1, SIZE, each=1)
    assert tuple(asked) == queries.LANGUAGES


def test_too_few_topics_are_said_to_be_too_few() -> None:
    with pytest.raises(ValueError, match="2 topics are too few"):
        queries.selective_queries(SEED, 2)


def test_broad_queries_have_many_matches(texts: list[str], folded: list[str]) -> None:
    for query in queries.broad_queries()["string"]:
        assert string_matches(query.text, folded) > SIZE / 200, query
    for query in queries.broad_queries()["regex"]:
        assert regex_matches(query.text, texts) > SIZE / 200, query


def test_expensive_queries_match_nothing(texts: list[str], folded: list[str]) -> None:
    for query in queries.expensive_queries()["string"]:
        assert string_matches(query.text, folded) == 0, query
        assert all(len(word) < 3 for word in query.text.split()), "an index of trigrams would help"
    for query in queries.expensive_queries()["regex"]:
        # One in fifty: they are as slow as they are meant to be.
        assert regex_matches(query.text, texts[::50]) == 0, query


@pytest.fixture(scope="module")
def subjects() -> list[Subject]:
    return [
        Subject(
            uuid=one.uuid,
            kind="topic",
            creator=one.creator,
            owner=one.creator,
            institution=one.institution,
            created="2027-01-01T00:00:00Z",
            expires="2028-01-01T00:00:00Z",
            descriptor=one.descriptor,
            synopsis=synopsis.fill(one.synopsis_placeholder, one.uuid),
        )
        for one in islice(topics.descriptions(SEED), SIZE)
    ]


@pytest.fixture(scope="module")
def documents(subjects: list[Subject]) -> list[Subject]:
    return [subject for subject in subjects if subject.descriptor["kind"] == "xml"]


def count(query: SampleQuery, among: list[Subject]) -> int:
    compiled = compile_query(query.language, query.text)
    return sum(finds(compiled, subject) for subject in among)


@pytest.mark.parametrize("language", ["string", "regex", "sql"])
def test_selective_queries_as_compiled_have_one_to_ten_matches(language: str, subjects: list[Subject]) -> None:
    """T13: the languages themselves find what the simplest check finds; all topics are looked at."""
    for query in queries.selective_queries(SEED, SIZE, each=1)[language]:
        assert 1 <= count(query, subjects) <= 10, query


@pytest.mark.parametrize("language", ["xpath", "xquery"])
def test_selective_queries_over_xml_have_one_to_ten_matches(language: str, documents: list[Subject]) -> None:
    """T13: the same for XML. Where the clue holds all are looked at, and some where it does not: a document takes a millisecond."""
    for query in queries.selective_queries(SEED, SIZE, each=1)[language]:
        compiled = compile_query(language, query.text)
        hinted = [subject for subject in documents if holds(compiled.clue, subject)]
        assert 1 <= sum(finds(compiled, subject) for subject in hinted) <= 10, query
        known = {subject.uuid for subject in hinted}
        assert not any(finds(compiled, subject) for subject in documents[::40] if subject.uuid not in known), query


@pytest.mark.parametrize("language", queries.LANGUAGES)
def test_an_index_can_help_with_every_selective_query(language: str) -> None:
    """Each has a literal of three characters or an indexed value: that is what selective means."""
    for query in queries.selective_queries(SEED, SIZE)[language]:
        assert compile_query(language, query.text).clue != Anything(), query


@pytest.mark.parametrize("language", ["sql", "xpath", "xquery"])
def test_broad_queries_as_compiled_have_many_matches(language: str, subjects: list[Subject], documents: list[Subject]) -> None:
    among = subjects[::4] if language == "sql" else documents[::4]
    for query in queries.broad_queries()[language]:
        assert count(query, among) > len(among) / 100, query


@pytest.mark.parametrize("language", queries.LANGUAGES)
def test_expensive_queries_are_allowed_and_no_index_helps(language: str, documents: list[Subject]) -> None:
    """The most expensive that are allowed: they compile, match nothing, and leave nearly everything to be looked at."""
    among = documents[:4] if language in ("xpath", "xquery") else documents[:40]
    for query in queries.expensive_queries()[language]:
        assert not says_something(compile_query(language, query.text).clue), query
        assert count(query, among) == 0, query


def says_something(clue: Clue) -> bool:
    """Whether a clue leaves out topics for their values. That a property is there at all says little: most have the common ones."""
    if isinstance(clue, Value):
        return clue.low is not None or clue.high is not None
    return not isinstance(clue, Anything) and (not hasattr(clue, "clues") or any(says_something(part) for part in clue.clues))
