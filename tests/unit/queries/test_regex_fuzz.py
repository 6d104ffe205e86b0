"""Fuzz targets for regular expressions: a clue never loses a match, and only QueryError leaves the compiler, soon.

Clues are checked with every literal counted, not only those that are long enough for the index of trigrams: a mistake of the reader then
shows in patterns of a few characters, which random texts do match.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from tdn.errors import QueryError
from tdn.protocol import descriptor
from tdn.queries import model
from tdn.queries.model import Subject, holds
from tdn.queries.regex import compile_regex
from tdn.queries.regex_literals import read

FUZZ = settings(derandomize=True, deadline=None, max_examples=examples(200))

#: A pattern, and a text that it may match.
Sample = tuple[str, str]

#: Letters whose case is odd (Kelvin, long s, sharp s, dotted I, sigma), what RE2 reads as syntax, and plain ones.
CHARACTERS = "aabbkKsS\u212a\u017fßẞİςσéÉ天 \n\0-/{}]:^$.|*+?()[\\,0127"
SYNTAX = "aabcK\u212a01257|||()()[[]]**++??{}{},,^$..--::\\\\\\QEpPxdDwbBAzCLinmsU<>=!P"
QUANTIFIERS = [
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "{0}",
    "{1}",
    "{2}",
    "{0,2}",
    "{1,2}",
    "{2,}",
    "{0,}",
    "{2,3}?",
    "{,2}",
    "{01}",
    "{2",
]
GROUPS = ["(", "(?:", "(?P<n>", "(?<n>", "(?i:", "(?-i:", "(?s:", "(?im-sU:", "(?-s:"]
#: Classes of RE2 with a character in them.
CLASSES = [
    (r"\d", "1"),
    (r"\D", "a"),
    (r"\w", "k"),
    (r"\s", " "),
    (r"\pL", "é"),
    (r"\p{Greek}", "σ"),
    (r"\PN", "a"),
    (r"\C", "a"),
    (".", "b"),
    ("[a-c]", "b"),
    ("[^a]", "b"),
    ("[[:alpha:]]", "s"),
    (r"[\d\pL]", "2"),
    ("[]a]", "]"),
    ("[^]a]", "b"),
    ("[a-]", "-"),
    ("[K]", "K"),
    ("[kK]", "K"),
    ("[k-k]", "k"),
    (r"[\x6b]", "k"),
    ("[ßẞ]", "ß"),
    ("[[:x]", ":"),
]


def escaped(character: str) -> st.SearchStrategy[Sample]:
    """The ways to write one character."""
    code = ord(character)
    ways = [f"\\x{{{code:x}}}", f"\\Q{character}\\E", character if character not in "\\.+*?()|[]{}^$" else f"\\{character}"]
    if code < 256:
        ways.append(f"\\x{code:02X}")
    if 8 <= code < 512:
        ways.append(f"\\{code:03o}")
    if character.isascii() and not character.isalnum():
        ways.append(f"\\{character}")
    if character == "\n":
        ways.append(r"\n")
    return st.sampled_from([(way, character) for way in ways])


@st.composite
def grown(draw: st.DrawFn, parts: st.SearchStrategy[Sample]) -> Sample:
    """Larger patterns from smaller ones."""
    kind = draw(st.sampled_from(["sequence", "sequence", "sequence", "alternatives", "group", "repetition", "flags"]))
    if kind == "sequence":
        items = draw(st.lists(parts, min_size=2, max_size=4))
        return "".join(pattern for pattern, _ in items), "".join(text for _, text in items)
    if kind == "alternatives":
        branches = draw(st.lists(parts, min_size=2, max_size=3))
        return draw(st.sampled_from(["({})", "(?:{})", "{}"])).format("|".join(pattern for pattern, _ in branches)), branches[-1][
            1
        ]
    pattern, text = draw(parts)
    if kind == "group":
        return f"{draw(st.sampled_from(GROUPS))}{pattern})", text
    if kind == "flags":
        return draw(st.sampled_from(["(?i)", "(?-i)", "(?s)", "(?m)", "(?U)", "(?)"])) + pattern, text
    quantifier = draw(st.sampled_from(QUANTIFIERS))
    return draw(st.sampled_from(["({}){}", "(?:{}){}", "{}{}"])).format(pattern, quantifier), text * draw(st.integers(0, 3))


LEAVES = st.one_of(
    st.sampled_from(CHARACTERS).flatmap(escaped),
    st.sampled_from(CLASSES),
    st.sampled_from(
        [("^", ""), ("$", ""), (r"\b", ""), (r"\B", ""), (r"\A", ""), (r"\z", ""), ("", ""), ("{,2}", "{,2}"), (r"\Q\E", "")]
    ),
    st.text("abK/. ", min_size=1, max_size=4).map(lambda text: (rf"\Q{text}", text)),
)
PATTERNS = st.recursive(LEAVES, grown, max_leaves=10)


def topic(text: str) -> Subject:
    return Subject("u", "topic", "a", "a", "local", "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z", descriptor.text(text), "")


def check(pattern: str, texts: list[str]) -> int:
    """How many of the texts the pattern matches; each of them must fulfil its clue."""
    try:
        query = compile_regex(pattern)
    except QueryError:
        return 0
    read(pattern)  # Whatever RE2 accepts, the reader understands.
    matched = [text for text in texts if query.matches(topic(text))]
    for text in matched:
        assert holds(query.clue, topic(text)), f"{pattern!r} matches {text!r}, which its clue {query.clue} leaves out"
    return len(matched)


@pytest.fixture(params=[1, 3])
def shortest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SHORTEST_CLUE", request.param)


@pytest.mark.usefixtures("shortest")
class TestClues:
    def test_patterns_by_the_grammar(self) -> None:
        """T13: an index never changes an answer."""
        matched = []

        @FUZZ
        @given(PATTERNS, st.text(CHARACTERS, max_size=4), st.text(CHARACTERS, max_size=4))
        def run(sample: Sample, before: str, after: str) -> None:
            pattern, text = sample
            variants = [text, text.upper(), text.lower(), text.swapcase(), text.replace("k", "\u212a").replace("s", "\u017f")]
            matched.append(check(pattern, [*variants, *(before + variant + after for variant in variants), ""]))

        run()
        assert sum(map(bool, matched)) > len(matched) / 3, "most patterns should match something, or this shows nothing"

    def test_patterns_by_chance(self) -> None:
        matched = []

        @FUZZ
        @given(
            st.text(SYNTAX, min_size=1, max_size=14), st.lists(st.text("aabcK\u212a01Q]-{},", max_size=6), min_size=4, max_size=8)
        )
        def run(pattern: str, texts: list[str]) -> None:
            matched.append(check(pattern, [*texts, pattern, pattern.lower(), ""]))

        run()
        assert any(matched)


VALID = [
    "sensor-[0-9]+-roof",
    "(alpha|beta)/temperature",
    "(?i)Ocean.*Buoy",
    r"^\Qa.b\E{2,3}(?P<n>x|[^\pL\d])+?$",
    r"(?s:\x{1F600}|[[:alpha:]]\b){0,30}",
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    pattern = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(pattern)))
        width = draw(st.integers(0, 3))
        pattern = pattern[:at] + draw(st.text(SYNTAX + "\ud800é\0", max_size=3)) + pattern[at + width :]
    return pattern


@FUZZ
@given(
    st.one_of(
        st.text(st.characters(exclude_categories=[]), max_size=60),
        st.text(SYNTAX, max_size=60),
        mutated(),
        st.tuples(mutated(), st.integers(1, 400)).map(lambda pair: pair[0] * pair[1]),
    )
)
def test_only_query_errors_leave(pattern: str) -> None:
    """T13: whatever the text: a query that can be asked, or a QueryError whose position is in the text."""
    before = time.thread_time()
    try:
        compile_regex(pattern).matches(topic("sensor-17-roof/alpha/temperature"))
    except QueryError as error:
        position = error.detail.get("position", 0)
        in_the_text = position == 0 or 0 < position < len(pattern)
    else:
        in_the_text = True
    assert in_the_text
    assert time.thread_time() - before < 2
