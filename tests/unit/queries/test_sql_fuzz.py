"""Hostile text for the SQL compiler: a query or a QueryError comes out, and soon; and what compiles matches without an error."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sizes import examples

from tdn.errors import QueryError
from tdn.protocol import descriptor as descriptors
from tdn.queries.model import MAX_QUERY_CHARACTERS, Subject, holds
from tdn.queries.sql import compile_sql

#: For a long search: EXAMPLES=20000.
EXAMPLES = int(os.environ.get("EXAMPLES", examples(250)))
#: A hundred times what the worst query needs: it tells slow from endless, on a busy machine too.
SECONDS = 4.0


def _topic(descriptor: descriptors.Descriptor) -> Subject:
    return Subject(
        uuid="6f1c2b3a-0000-4000-8000-000000000001",
        kind="topic",
        creator="alice@uni.example",
        owner="alice@uni.example",
        institution="uni.example",
        created="2027-01-31T12:00:00Z",
        expires="2027-03-01T00:00:00Z",
        descriptor=descriptor,
        synopsis="abc",
    )


SUBJECTS = [
    _topic(descriptors.properties(["a=1", "b=x", "c=true", "d=2027-01-31T12:00:00Z", "e=0.5"])),
    _topic(descriptors.properties(["a=x", "b=1", "c:string=true", "d=1.5", "e=false"])),
    _topic(descriptors.path("a/b")),
    _topic(descriptors.text("abc", ["a"])),
    _topic(descriptors.xml("<a/>")),
]

WORDS = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "path",
    "text",
    "created",
    "expires",
    "uuid",
    "kind",
    "properties.created",
    '"a-b"',
    '"x',
    'y"',
    "a.b",
    "topics",
    "SELECT",
    "FROM",
    "WHERE",
    "AND",
    "OR",
    "NOT",
    "IN",
    "BETWEEN",
    "LIKE",
    "ESCAPE",
    "IS",
    "NULL",
    "TRUE",
    "FALSE",
    "TIMESTAMP",
    "lower",
    "upper",
    "length",
    "coalesce",
    "ORDER",
    "BY",
    "GROUP",
    "HAVING",
    "LIMIT",
    "DISTINCT",
    "UNION",
    "ALL",
    "EXISTS",
    "CASE",
    "WHEN",
    "THEN",
    "END",
    "CAST",
    "AS",
    "WITH",
    "JOIN",
    "ON",
    "ANY",
    "INTERVAL",
    "DATE",
    "OVER",
    "COLLATE",
    "PRAGMA",
    "ATTACH",
    "INSERT",
    "UPDATE",
    "DELETE",
    "DROP",
    "CREATE",
    "SET",
    "=",
    "<>",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "(",
    ")",
    ",",
    ";",
    ".",
    "::",
    "==",
    "||",
    "->",
    "->>",
    "@",
    "?",
    ":",
    "$",
    "#",
    "!",
    "~",
    "^",
    "&",
    "|",
    "[",
    "]",
    "{",
    "}",
    "`",
    "\\",
    "--",
    "/*",
    "*/",
    "1",
    "0",
    "7",
    "-1",
    "0.5",
    ".5",
    "5.",
    "1e3",
    "1e999",
    "9223372036854775807",
    "9223372036854775808",
    "0x1F",
    "1_000",
    "1L",
    "007",
    "'x'",
    "''",
    "'it''s'",
    "'%'",
    "'a%'",
    "'2027-01-31T12:00:00Z'",
    "'unclosed",
    '"unclosed',
    "e'x'",
    "x'41'",
    "b'01'",
    "n'x'",
    "$$x$$",
    "{{x}}",
]
VALID = [
    "a > 20 AND b = 'roof'",
    "SELECT * FROM topics WHERE a IN (1, 2.5, 'x', NULL) OR NOT c",
    "a BETWEEN 1 AND 5 AND b NOT LIKE 'x!%%' ESCAPE '!' AND d >= TIMESTAMP '2027-01-31T12:00:00Z';",
    "coalesce(a, e, 0) * 2 - 1 <> length(lower(b)) % 3",
    "(c IS NOT TRUE OR e IS FALSE) AND properties.created IS NULL",
    "created BETWEEN '2027-01-01T00:00:00Z' AND '2028-01-01T00:00:00.5+02:00'",
    "NOT (path LIKE '%a_b%' OR upper(text) = 'ABC')",
]


def check(text: str) -> bool:
    """Whether it compiled. Every other outcome than QueryError is raised."""
    start = time.process_time()
    try:
        query = compile_sql(text)
    except QueryError as error:
        position = error.detail.get("position")
        assert position is None or 0 <= position <= len(text)
        return False
    finally:
        assert time.process_time() - start < SECONDS
    for subject in SUBJECTS:
        assert not query.matches(subject) or holds(query.clue, subject)
    return True


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(st.text(max_size=60))
@example("\ud800")
@example("a = '\ud800'")
@example("\x00")
@example("a\u2028= 1")
def test_any_text(text: str) -> None:
    """T13: whatever the text, a query or a QueryError."""
    check(text)


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from([" ", "", "\n"]))
def test_token_soup(words: list[str], space: str) -> None:
    """T13: words and signs of SQL in any order."""
    check(space.join(words))


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120), st.sampled_from(WORDS)), min_size=1, max_size=3),
)
def test_mutated_queries(text: str, changes: list[tuple[int, int, str]]) -> None:
    """T13: good queries with a character left out, words put in, parts doubled."""
    for how, place, word in changes:
        place %= len(text) + 1
        if how == 0:
            text = text[:place] + text[place + 1 :]
        elif how == 1:
            text = f"{text[:place]} {word} {text[place:]}"
        elif how == 2:
            text = text[:place] + word + text[place:]
        else:
            text = text[:place] + text[place // 2 :]
    check(text)


def test_the_good_ones_are_good() -> None:
    assert all(check(text) for text in VALID)


FILL = MAX_QUERY_CHARACTERS


@pytest.mark.parametrize(
    "text",
    [
        "(" * FILL,
        ")" * FILL,
        "(" * (FILL // 2) + "a" + ")" * (FILL // 2 - 1),
        "NOT " * (FILL // 4),
        "- " * (FILL // 2),
        "-" * FILL,
        "'" * FILL,
        "'" * (FILL - 1),
        '"' * FILL,
        "a" * FILL,
        "a." * (FILL // 2),
        "a.b" * (FILL // 3),
        "1" * FILL,
        "1." * (FILL // 2),
        "." * FILL,
        "1e" + "9" * (FILL - 2),
        "a=" * (FILL // 2),
        "a=1 OR " * (FILL // 7) + "a",
        "a+" * (FILL // 2 - 1) + "a",
        ("a+" * 900 + "a=1"),
        ("a=" * 900 + "a"),
        ("a AND " * 900 + "a"),
        ("NOT a OR " * 400 + "a"),
        "a IN (" + "1," * 8000 + "1)",
        "a IN (" + "1," * 990 + "1)",
        "lower(" * 2700 + "a",
        "coalesce(" + "a," * 900 + "a) = 1",
        "a LIKE '" + "%_" * (FILL // 2 - 10) + "'",
        "a LIKE '" + "%_" * 512 + "'",
        "a BETWEEN " * 1600,
        "a BETWEEN 1 AND 2 AND " * 240 + "a",
        "CASE WHEN " * 1600,
        "SELECT * FROM (" * 1000,
        ";" * FILL,
        "/*" * (FILL // 2),
        " " * FILL,
        "\x00" * FILL,
        "😀" * FILL,
        "a" * 10_000_000,
        "(" * 1_000_000,
    ],
    ids=lambda text: f"{text[:12]!r}x{len(text)}",
)
def test_large_and_deep(text: str) -> None:
    """T13: megabytes, and the most of everything that fits: an answer in the time of a bad query, and the compiler works afterwards."""
    check(text)
    assert check("a = 1")
