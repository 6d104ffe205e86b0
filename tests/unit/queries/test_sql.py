"""SQL predicates: what they mean, what they refuse, and that a clue never loses a topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from tdn.errors import QueryError, UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol.times import parse_time
from tdn.queries.model import (
    MAX_QUERY_CHARACTERS,
    AllOf,
    AnyOf,
    Anything,
    Contains,
    Subject,
    Value,
    finds,
    holds,
    microseconds,
)
from tdn.queries.sql import compile_sql
from tdn.queries.sql_clues import MAX_PARTS
from tdn.queries.sql_syntax import MAX_LEVELS
from tdn.queries.sql_terms import Both, Column, Either, Inverse, Part, Term, divided, terms
from tdn.queries.sql_tokens import MAX_NESTING, MAX_TOKENS
from tdn.queries.sql_values import MAX_PATTERN_CHARACTERS

UUID = "6f1c2b3a-0000-4000-8000-000000000001"


def topic(descriptor: Mapping[str, Any], **fields: str) -> Subject:
    known = {
        "uuid": UUID,
        "kind": "topic",
        "creator": "alice@uni.example",
        "owner": "bob@uni.example",
        "institution": "uni.example",
        "created": "2027-01-31T12:00:00Z",
        "expires": "2027-03-01T00:00:00Z",
        "synopsis": f"topic={UUID}",
    }
    return Subject(descriptor=descriptor, **{**known, **fields})


SENSOR = topic(
    descriptors.properties(
        [
            "temperature=21.5",
            "count=7",
            "negative=-7",
            "whole:float=4",
            "biggest=9223372036854775807",
            "smallest:integer=-9223372036854775808",
            "huge:float=1e308",
            "site=roof",
            "Site=ROOF",
            "number:string=7",
            "at=2027-01-31T12:00:00.250Z",
            "at_text:string=2027-01-31T13:00:00.250+01:00",
            "on_air=true",
            "broken=false",
            "room-temp=3",
            "room.temp=4",
            "created=99",
            "street=Straße",
            "emoji=a😀b",
            "empty=",
        ]
    )
)
PATH = topic(descriptors.path("weather/europe/Zürich"))
TEXT = topic(descriptors.text("Rain, or 50% snow_flakes", ["hail"]), kind="collection")
XML = topic(descriptors.xml("<a/>"))


def truth(predicate: str, subject: Subject = SENSOR) -> bool | None:
    """TRUE, FALSE or NULL, as seen from outside: by asking for the predicate and for its opposite."""
    is_true = compile_sql(predicate).matches(subject)
    is_false = compile_sql(f"NOT ({predicate})").matches(subject)
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("temperature = 21.5", True),
        ("temperature > 20 AND site = 'roof'", True),
        ("20 < temperature", True),
        ("temperature <> 21.5", False),
        ("temperature != 21.5", False),
        ("temperature >= 21.5 AND temperature <= 21.5 AND NOT temperature < 21.5", True),
        # Missing is NULL, and NULL is neither.
        ("humidity > 20", None),
        ("humidity = NULL", None),
        ("NULL = NULL", None),
        ("humidity IS NULL", True),
        ("humidity IS NOT NULL", False),
        ("temperature IS NULL", False),
        ("humidity > 20 OR site = 'roof'", True),
        ("humidity > 20 AND site = 'roof'", None),
        ("humidity > 20 AND site = 'cellar'", False),
        ("humidity > 20 OR site = 'cellar'", None),
        # Families do not meet, but for a time and a string.
        ("number = 7", None),
        ("number = '7'", True),
        ("count = '7'", None),
        ("on_air = 1", None),
        ("on_air = 'true'", None),
        ("site <> 7", None),
        ("at = TIMESTAMP '2027-01-31T12:00:00.25Z'", True),
        ("at = '2027-01-31T12:00:00.250Z'", True),
        ("at = '2027-01-31T17:00:00.250+05:00'", True),
        ("at > '2027-01-31T12:00:00Z'", True),
        ("at > 'noon'", None),
        ("at_text = TIMESTAMP '2027-01-31T12:00:00.25Z'", True),
        ("at_text = at", True),
        ("at_text = '2027-01-31T12:00:00.250Z'", False),
        ("site > TIMESTAMP '2027-01-31T12:00:00Z'", None),
        ("count > TIMESTAMP '2027-01-31T12:00:00Z'", None),
        ("created = TIMESTAMP '2027-01-31T12:00:00Z'", True),
        ("created BETWEEN '2027-01-31T11:59:59.9Z' AND '2027-01-31T12:00:00.1Z'", True),
        ("expires > created", True),
        ("created = 5", None),
        # Numbers are compared exactly: as a float the two would be equal.
        ("biggest = 9223372036854775807", True),
        ("biggest = 9223372036854775807.0", False),
        ("biggest < 9223372036854775807.0", True),
        ("smallest = -9223372036854775808", True),
        ("count = 7.0 AND count = 7e0", True),
        ("whole = 4 AND whole = 4.0", True),
        ("temperature = 21.50000", True),
        ("0.1 + 0.2 = 0.3", False),
        # Arithmetic.
        ("count / 2 = 3", True),
        ("negative / 2 = -3", True),
        ("negative / -2 = 3", True),
        ("negative % 2 = -1", True),
        ("count % -4 = 3", True),
        ("whole / 8 = 0.5", True),
        ("-7.5 % 2 = -1.5", True),
        ("count / 0 IS NULL AND count % 0 IS NULL AND whole / 0.0 IS NULL AND whole % 0 IS NULL", True),
        ("biggest + 1 IS NULL", True),
        ("smallest - 1 IS NULL", True),
        ("-smallest IS NULL", True),
        ("smallest / -1 IS NULL", True),
        ("biggest * 2 IS NULL AND biggest * 2.0 > biggest", True),
        ("huge * 10 IS NULL AND huge + huge IS NULL", True),
        ("site + 1 IS NULL AND on_air + 1 IS NULL AND -site IS NULL AND at - at IS NULL", True),
        ("1 + 2 * 3 = 7 AND (1 + 2) * 3 = 9 AND 10 - 4 - 3 = 3 AND 100 / 10 / 5 = 2 AND -2 * -3 = 6 AND - -2 = 2", True),
        ("humidity + 1 = 2", None),
        # Precedence: NOT, then AND, then OR.
        ("TRUE OR FALSE AND FALSE", True),
        ("NOT FALSE AND FALSE", False),
        ("NOT count = 7 OR TRUE", True),
        ("count BETWEEN 1 AND 7 AND site = 'roof'", True),
        ("count NOT BETWEEN 1 AND 7", False),
        ("count BETWEEN 7 AND 1", False),
        ("count BETWEEN 8 AND NULL", False),
        ("count BETWEEN 1 AND NULL", None),
        ("count BETWEEN 1 AND 'z'", None),
        ("count BETWEEN NULL AND 9", None),
        ("count BETWEEN NULL AND 1", False),
        ("count BETWEEN count - 1 AND NULL", None),
        # IN is a chain of =.
        ("count IN (1, 7.0)", True),
        ("count IN (1, 2)", False),
        ("count IN (1, 'x')", None),
        ("count IN (7, 'x', NULL)", True),
        ("count IN (1, NULL)", None),
        ("count NOT IN (1, 2)", True),
        ("count NOT IN (1, NULL)", None),
        ("count IN (3 + 4, temperature)", True),
        ("count IN (temperature, site)", None),
        ("on_air IN (1)", None),
        ("on_air IN (1, TRUE)", True),
        ("at IN ('2027-01-31T12:00:00.25Z')", True),
        ("at IN ('x', '2027-01-31T12:00:00Z')", None),
        ("at_text IN (TIMESTAMP '2027-01-31T12:00:00.25Z')", True),
        ("site IN (TIMESTAMP '2027-01-31T12:00:00.25Z')", None),
        ("site IN ('roof', 1)", True),
        ("site IN ('cellar')", False),
        # LIKE.
        ("site LIKE 'roof'", True),
        ("site LIKE 'ROOF'", False),
        ("site LIKE 'r%'", True),
        ("site LIKE '%f'", True),
        ("site LIKE '%oo%'", True),
        ("site LIKE '%o_o%'", False),
        ("site LIKE 'r__f'", True),
        ("site LIKE '____'", True),
        ("site LIKE '___'", False),
        ("site LIKE '%_____%'", False),
        ("site LIKE '%'", True),
        ("site LIKE '%%%'", True),
        ("site LIKE ''", False),
        ("empty LIKE ''", True),
        ("empty LIKE '_'", False),
        ("site NOT LIKE 'x%'", True),
        ("'aba' LIKE 'ab%ba'", False),
        ("'abba' LIKE 'ab%ba'", True),
        ("'abab' LIKE 'ab%ab%ab'", False),
        ("'ab' LIKE 'ab%_'", False),
        ("emoji LIKE 'a_b'", True),
        ("count LIKE '7'", None),
        ("at LIKE '2027%'", None),
        ("site LIKE 7", None),
        ("site LIKE NULL", None),
        ("'50%' LIKE '50!%' ESCAPE '!'", True),
        ("'505' LIKE '50!%' ESCAPE '!'", False),
        ("'a_!' LIKE 'a!_!!' ESCAPE '!'", True),
        ("'a%b' LIKE 'a%%b' ESCAPE '%'", True),
        ("'axb' LIKE 'a%%b' ESCAPE '%'", False),
        ("'a\\b' LIKE 'a\\_'", True),
        ("site LIKE site", True),
        ("'x' LIKE site", False),
        ("site LIKE count", None),
        # Booleans.
        ("on_air", True),
        ("NOT on_air", False),
        ("broken", False),
        ("site", None),
        ("count", None),
        ("humidity", None),
        ("on_air AND NOT broken", True),
        ("on_air = TRUE", True),
        ("broken < on_air", True),
        ("on_air IS TRUE AND broken IS FALSE AND humidity IS NOT TRUE AND humidity IS NOT FALSE AND site IS NOT TRUE", True),
        ("(count > 5) = TRUE", True),
        ("(humidity > 5) IS NULL", True),
        ("NULL", None),
        # Functions.
        ("lower(Site) = 'roof' AND upper(site) = 'ROOF' AND LENGTH(site) = 4", True),
        ("upper(street) = 'STRASSE'", True),
        ("length(street) = 6 AND length(emoji) = 3 AND length(empty) = 0", True),
        ("lower(count) IS NULL AND upper(at) IS NULL AND length(on_air) IS NULL AND length(humidity) IS NULL", True),
        ("coalesce(humidity, 5) = 5 AND coalesce(humidity, NULL) IS NULL AND coalesce(count, 'x') = 7", True),
        ("coalesce(humidity > 5, TRUE)", True),
        # Names.
        ('"room-temp" = 3 AND room.temp = 4 AND "room.temp" = 4 AND properties."room-temp" = 3', True),
        ("properties.created = 99 AND properties.room.temp = 4", True),
        ("SITE = 'ROOF'", None),
        ("Site = 'ROOF' AND site = 'roof'", True),
        ("lower IS NULL AND timestamp IS NULL AND limit IS NULL AND properties IS NULL", True),
        # Fields.
        (f"uuid = '{UUID}' AND kind = 'topic' AND descriptor_kind = 'properties'", True),
        ("creator = 'alice@uni.example' AND owner <> creator AND institution LIKE 'uni.%'", True),
        ("path IS NULL AND text IS NULL AND synopsis LIKE 'topic=%'", True),
        ("'it''s' = 'it''s' AND length('''') = 1", True),
        # Strings by code point, whatever a locale says.
        ("'Z' < 'a' AND 'z' < 'é' AND '\uffff' < '😀' AND 'a' < 'aa'", True),
    ],
)
def test_meaning(predicate: str, expected: bool | str | None) -> None:
    """T13: each rule of docs/queries/sql.md, in three-valued logic."""
    assert truth(predicate) is expected


def test_fields_by_kind_of_descriptor() -> None:
    """T13: path and text are NULL unless the descriptor is of that kind; properties are NULL unless it has some."""
    assert truth("path = 'weather/europe/Zürich' AND text IS NULL AND temperature IS NULL", PATH) is True
    assert truth("descriptor_kind = 'path'", PATH) is True
    assert truth("text LIKE '%50!% snow!_%' ESCAPE '!' AND path IS NULL AND kind = 'collection'", TEXT) is True
    assert truth("text LIKE '%hail%'", TEXT) is False
    assert truth("descriptor_kind = 'xml' AND path IS NULL AND text IS NULL", XML) is True
    assert truth("path LIKE 'weather/%/Z_rich'", PATH) is True


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM topics WHERE count = 7",
        'select count, "room-temp", properties.created from Topics where count = 7;',
        "SELECT uuid FROM topics WHERE count = 7 ;  ",
        'SELECT uuid FROM "topics" WHERE (count) = (7)',
        "WHERE count = 7",
        "where\n\tcount\r\n= 7;",
        "SELECT * FROM topics",
        "SELECT a, b FROM topics;",
    ],
)
def test_statements(statement: str) -> None:
    """T13: a SELECT answers with the topics themselves, whatever it selects; without WHERE with all."""
    assert compile_sql(statement).language == "sql"
    assert compile_sql(statement).matches(SENSOR)
    assert compile_sql(statement).matches(PATH) is ("count = 7" not in statement and "count" not in statement)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("", None, "predicate"),
        (" \n;", None, "predicate"),
        ("WHERE", 5, "leave out WHERE"),
        ("SELECT * FROM topics WHERE", 26, "leave out WHERE"),
        ("SELECT", 6, "plain names"),
        ("SELECT *", 8, "FROM topics"),
        ("SELECT * FROM", 13, "one table"),
        ("SELECT *, a FROM topics", 8, "plain names"),
        ("SELECT a + 1 FROM topics", 9, "plain names"),
        ("SELECT 1", 7, "plain names"),
        ("SELECT count(*) FROM topics", 7, "count or group"),
        ("SELECT lower(a) FROM topics", 7, "plain names"),
        ("SELECT a b FROM topics", 9, "plain names"),
        ("SELECT a AS b FROM topics", 9, "no other names"),
        ("SELECT TOP 5 a FROM topics", 7, "outside the query"),
        ("SELECT * FROM users", 14, "one table"),
        ("SELECT * FROM main.topics", 14, "one table"),
        ("SELECT * FROM topics t WHERE t.a = 1", 21, "one table"),
        ("SELECT * FROM topics, topics WHERE a = 1", 20, "one table"),
        ("SELECT * FROM topics LEFT JOIN b ON a = c", 26, "one table"),
        ("SELECT * FROM topics LIMIT 5", 21, "outside the query"),
        ("SELECT * FROM (SELECT * FROM topics)", 14, "one table"),
        ("a = 1 ORDER BY a", 6, "ordered by"),
        ("a = 1 LIMIT 5", 6, "outside the query"),
        ("a = 1 OFFSET 5", 6, "outside the query"),
        ("a = 1 GROUP BY a", 6, "group them afterwards"),
        ("a = 1 HAVING a", 6, "group them afterwards"),
        ("SELECT DISTINCT a FROM topics", 7, "group them afterwards"),
        ("WITH t AS (SELECT 1) SELECT * FROM t", 0, "one table"),
        ("a = 1 UNION SELECT * FROM topics", 6, "AND, OR and NOT"),
        ("a = 1 INTERSECT SELECT 1", 6, "AND, OR and NOT"),
        ("a = 1 EXCEPT SELECT 1", 6, "AND, OR and NOT"),
        ("EXISTS (SELECT 1)", 0, "one table"),
        ("a IN (SELECT b FROM topics)", 6, "one table"),
        ("a = (SELECT 1)", 5, "one table"),
        ("a = ANY (b)", 4, "one table"),
        ("sum(a) OVER () > 1", 0, "group them afterwards"),
        ("lower(a) OVER () = 'x'", 9, "group them afterwards"),
        ("CAST(a AS int) = 1", 0, "types"),
        ("a::int = 1", 1, "casts"),
        ("DATE '2027-01-01' < a", 0, "TIMESTAMP"),
        ("a < INTERVAL '1 day'", 4, "TIMESTAMP"),
        ("CASE WHEN a THEN b END", 0, "coalesce"),
        ("a = ?", 4, "parameters"),
        ("a = :name", 4, "parameters"),
        ("a = $1", 4, "parameters"),
        ("a = @x", 4, "parameters"),
        ("a = {x}", 4, "parameters"),
        ("a = 1 -- comment", 6, "leave it out"),
        ("a /* comment */ = 1", 2, "leave it out"),
        ("/*+ hint */ a = 1", 0, "leave it out"),
        ("a--1 = 2", 1, "- -1"),
        ("a = 1 # comment", 6, "comments"),
        ("a = 1; DROP TABLE topics", 7, "changes nothing"),
        ("a = 1; b = 2", 5, "not followed"),
        ("a = 1;;", 5, "not followed"),
        ("ATTACH 'x' AS y", 0, "changes nothing"),
        ("PRAGMA user_version", 0, "changes nothing"),
        ("INSERT INTO topics VALUES (1)", 0, "changes nothing"),
        ("UPDATE topics SET a = 1", 0, "changes nothing"),
        ("DELETE FROM topics", 0, "changes nothing"),
        ("VACUUM", 0, "changes nothing"),
        ("COMMIT", 0, "changes nothing"),
        ("EXPLAIN a = 1", 0, "changes nothing"),
        # What sqlglot would read in a way of its own.
        ("a = b = c", 0, "parentheses"),
        ("1 < a < 5", 0, "parentheses"),
        ("a IS NULL IS NULL", 0, "parentheses"),
        ("a = b IS NULL", None, "parentheses"),
        ("a = NOT b", 4, "parentheses"),
        ("a LIKE b LIKE c", None, ""),
        ("a IN (1) = TRUE", None, "parentheses"),
        ("!a", 0, "NOT"),
        ("a == 1", 2, "single ="),
        ("a <=> 1", 4, "write a name"),
        ("a ^= 1", 2, "operators are"),
        ("a || b = 'c'", 2, "operators are"),
        ("a & 1 = 1", 2, "operators are"),
        ("a ~ 'x'", 2, "operators are"),
        ("a -> 'x'", 3, "write a name"),
        ("+a = 1", 0, "write a name"),
        ("a = +1", 4, "write a name"),
        ("'a' 'b' = c", 4, "operator between"),
        ("e'a' = b", 1, "without a letter"),
        ("x'41' = b", 1, "without a letter"),
        ("b'01' = b", 1, "without a letter"),
        ("n'a' = b", 1, "without a letter"),
        ("U&'\\0041' = b", 1, "operators are"),
        ("$$a$$ = b", 0, "parameters"),
        ("0x1F = a", 0, "numbers as"),
        ("1_000 = a", 0, "numbers as"),
        ("1L = a", 0, "numbers as"),
        ("1.2.3 = a", 0, "numbers as"),
        ("1e = a", 0, "numbers as"),
        ("a. b = 1", 1, "without spaces"),
        ("a.1 = 1", 1, "operator between"),
        ("a.* = 1", 1, ""),
        ("`a` = 1", 0, "double quotes"),
        ("[a] = 1", 0, "double quotes"),
        ("a[1] = 1", 1, "double quotes"),
        ("a isnull", 2, "IS NULL"),
        ("a NOTNULL", 2, "IS NULL"),
        ("a NOT NULL", 2, ""),
        ("a IS UNKNOWN", 2, "= or <>"),
        ("a IS 5", 2, "= or <>"),
        ("a IS NOT b", 2, "= or <>"),
        ("a IS DISTINCT FROM b", 5, ""),
        ("a ILIKE 'x'", 2, "lower"),
        ("a GLOB 'x'", 2, "lower"),
        ("a SIMILAR TO 'x'", 2, "lower"),
        ("a REGEXP 'x'", 2, "lower"),
        ("a COLLATE nocase = 'x'", 2, "code point"),
        ("a XOR b", 2, "AND, OR"),
        ("a DIV 2 = 1", 2, "a % b"),
        ("mod(a, 2) = 1", 0, "a % b"),
        ("ifnull(a, 1) = 1", 0, "coalesce"),
        ("len(a) = 1", 0, "length"),
        ("lcase(a) = 'x'", 0, "lower, upper, length and coalesce"),
        ("load_extension('x')", 0, "lower, upper, length and coalesce"),
        ('"lower"(a) = 1', 0, "lower, upper, length and coalesce"),
        ("properties.lower(a) = 1", 0, "lower, upper, length and coalesce"),
        ("now() > created", 0, "TIMESTAMP"),
        ("CURRENT_TIMESTAMP > created", 0, "TIMESTAMP"),
        ("lower(a, b) = 'x'", None, ""),
        ("lower() = 'x'", 6, "write a name"),
        ("coalesce() = 1", 9, "write a name"),
        ("lower(DISTINCT a) = 'x'", 6, ""),
        ("a NOT BETWEEN SYMMETRIC 1 AND 2", 24, ""),
        ("a IN ()", 6, "write a name"),
        ("a IN b", None, ""),
        ("a IN (1, (2, 3))", None, ""),
        ("(a, b) = (1, 2)", 0, ""),
        ("a BETWEEN 1", None, ""),
        ("a LIKE 'x' ESCAPE", 17, "write a name"),
        ("a LIKE 'x' ESCAPE b", None, ""),
        ("a LIKE 'x' ESCAPE '!!'", 18, "ESCAPE '!'"),
        ("a LIKE 'x' ESCAPE ''", 18, "ESCAPE '!'"),
        ("a LIKE 'x!y' ESCAPE '!'", 7, "LIKE"),
        ("a LIKE 'x!' ESCAPE '!'", 7, "LIKE"),
        ("a = 'b' ESCAPE '!'", None, ""),
        # Plain mistakes.
        ("a b", 2, "operator between"),
        ("a =", 3, "write a name"),
        ("= a", 0, "write a name"),
        ("a = = b", 4, "write a name"),
        ("a AND", 5, "write a name"),
        ("a AND OR b", 6, "write a name"),
        ("NOT", 3, "write a name"),
        ("a = 1)", 5, "open"),
        ("((a = 1)", 0, "belongs"),
        ("a = 'x", 4, "written ''"),
        ('"a = 1', 0, "ends with"),
        ("a = 1 \x00", 6, ""),
        ("é = 1", 0, ""),
        ("a\u00a0= 1", 1, ""),
        ("a = \ud800", 4, "surrogate"),
        ('"temp°" = 1', 0, "letters"),
        ('"" = 1', 0, "letters"),
        ('a."" = 1', 0, "letters"),
        ('"a""b" = 1', 3, ""),
        (f"{'a' * 65} = 1", 0, "at most 64"),
        ('SELECT "°" FROM topics', 7, "letters"),
        ("9223372036854775808 = a", 0, "float"),
        ("a = -9223372036854775809", 5, "float"),
        (f"a = {'9' * 5000}", 4, "float"),
        ("a = 1e309", 4, "1.8e308"),
        ("a > TIMESTAMP 'noon'", 14, "2027-01-31T12:00:00Z"),
        ("a > TIMESTAMP '2027-02-30T00:00:00Z'", 14, "2027-01-31T12:00:00Z"),
        # What can never be TRUE, and nobody means.
        ("5", 0, "compare it"),
        ("'x'", 0, "compare it"),
        ("a + 1", 2, "compare it"),
        ("a AND 5", 6, "compare it"),
        ("uuid OR a", 0, "compare it"),
        ("NOT created", 4, "compare it"),
        ("lower(a)", 0, "compare it"),
        ("(a = 1) AND (length(b))", 13, "compare it"),
        ("5 IS TRUE", 0, "compare it"),
        ("created > '2027-01-31'", 10, "with its zone"),
        ("'2027-01-31' < expires", 0, "with its zone"),
        ("created IN ('2027-01-31T00:00:00Z', 'x')", 36, "with its zone"),
        ("created BETWEEN '2027' AND '2028'", 16, "with its zone"),
        ("(created) = ('x')", 13, "with its zone"),
        ("created LIKE '2027%'", 8, "BETWEEN"),
    ],
)
def test_refusals(text: str, position: int | None, hint: str) -> None:
    """T13: what is not a plain predicate is refused, with its place and what to do instead."""
    with pytest.raises(QueryError) as refused:
        compile_sql(text)
    assert hint in refused.value.detail["hint"]
    assert len(refused.value.message) < 400
    if position is not None:
        assert refused.value.detail["position"] == position


def test_limits() -> None:
    """Each limit, and just below it."""
    compile_sql("a = 'x'".ljust(MAX_QUERY_CHARACTERS))
    with pytest.raises(QueryError, match="characters"):
        compile_sql("a = 'x'".ljust(MAX_QUERY_CHARACTERS + 1))
    items = (MAX_TOKENS - 4) // 2
    compile_sql(f"a IN ({', '.join(['1'] * items)})")
    with pytest.raises(QueryError, match="words and signs"):
        compile_sql(f"a IN ({', '.join(['1'] * (items + 2))})")
    for opening, closing in (("(", ")"), ("NOT ", ""), ("NOT (", ")"), ("coalesce(", ")")):
        deep = MAX_NESTING // (2 if opening == "NOT (" else 1)
        compile_sql(f"{opening * deep}a{closing * deep}")
        with pytest.raises(QueryError, match="nested"):
            compile_sql(f"{opening * (deep + 1)}a{closing * (deep + 1)}")
    compile_sql(f"{'- ' * MAX_NESTING}a = 1")
    with pytest.raises(QueryError, match="nested"):
        compile_sql(f"{'- ' * (MAX_NESTING + 1)}a = 1")
    compile_sql(f"{' + '.join(['a'] * (MAX_LEVELS - 1))} = 1")
    with pytest.raises(QueryError, match="operations on each other"):
        compile_sql(f"{' + '.join(['a'] * (MAX_LEVELS + 1))} = 1")
    compile_sql(f"a LIKE '{'_' * MAX_PATTERN_CHARACTERS}'")
    with pytest.raises(QueryError, match="pattern"):
        compile_sql(f"a LIKE '{'_' * (MAX_PATTERN_CHARACTERS + 1)}'")
    long_chain = compile_sql(" AND ".join(["count = 7"] * 499))
    assert long_chain.matches(SENSOR)
    assert not compile_sql(" AND ".join(["count = 7"] * 498 + ["count = 8"])).matches(SENSOR)


def at_depth(left: int, text: str) -> None:
    """Compile with so many frames of the stack left."""
    depth = 0
    frame: Any = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            compile_sql(text)

    deeper(sys.getrecursionlimit() - depth - left)


@pytest.mark.parametrize(
    "deepest",
    [
        f"{opening * MAX_NESTING}a{closing * MAX_NESTING}" if "NOT" not in opening else f"{opening * 10}a{closing * 10}"
        for opening, closing in (
            ("(", ")"),
            ("NOT (", ")"),
            ("coalesce(", ")"),
            ("a IN (", ")"),
            ("b OR a = (", ")"),
            ("NOT coalesce(", ")"),
        )
    ],
)
def test_the_deepest_query_leaves_room(deepest: str) -> None:
    """What the limits allow compiles also for a caller who has used 350 frames himself."""
    at_depth(sys.getrecursionlimit() - 350, deepest)


def test_a_stack_that_is_almost_used_up() -> None:
    """Only QueryError comes out, whatever the caller has left of the stack, and it works again afterwards."""
    refused = 0
    for left in range(30, 400, 10):
        try:
            at_depth(left, "((((a = 1) AND b = 2)))")
        except QueryError:
            refused += 1
    assert refused
    assert compile_sql("((((count = 7) AND site = 'roof')))").matches(SENSOR)


def test_worst_patterns_are_cheap() -> None:
    """A pattern that makes a backtracking matcher try 10^12 ways: linear here, or this test would not end."""
    subject = topic(descriptors.text("ab" * 8192))
    for pattern in ("%a" * 500 + "%c", "%a_" * 340 + "c", "%" + "_" * 1000 + "c%", "%" + "ab_" * 330 + "c%", "%_" * 511 + "%"):
        query = compile_sql(f"text LIKE '{pattern}'")
        for _ in range(5):
            assert query.matches(subject) is (pattern == "%_" * 511 + "%")
    dynamic = compile_sql("text LIKE synopsis")
    assert not dynamic.matches(topic(descriptors.text("a"), synopsis="%" * (MAX_PATTERN_CHARACTERS + 1)))
    assert dynamic.matches(topic(descriptors.text("a"), synopsis="%" * MAX_PATTERN_CHARACTERS))


def test_integers_that_are_floats() -> None:
    """A float that JSON wrote as 5 is still a float: 5 / 2 is 2.5."""
    descriptor = {"kind": "properties", "properties": {"x": 5, "y": 10**300}, "types": {"x": "float", "y": "float"}}
    descriptors.check(descriptor)
    assert compile_sql("x / 2 = 2.5 AND y * 2 > 1e300").matches(topic(descriptor))


@pytest.mark.parametrize("predicate", ["x = {}", "x <= {}", "x IN ({}, 1)", "x BETWEEN {} AND {}", "NOT x > {}.0"])
def test_clues_of_integers_that_are_floats(predicate: str) -> None:
    """The float of 2^53 + 1 is 2^53, which the index need not know: the clue finds it under both."""
    for written_as, value in ((2**53 + 1, 2**53), (-(2**53) - 1, -(2**53)), (2**60 + 127, 2**60)):
        descriptor = {"kind": "properties", "properties": {"x": written_as}, "types": {"x": "float"}}
        query = compile_sql(predicate.replace("{}", str(value)))
        assert query.matches(topic(descriptor))
        assert holds(query.clue, topic(descriptor))


@pytest.mark.parametrize(
    ("text", "understood"),
    [
        # Another order, another binding, something left out, something more, another operator or place of NOT.
        ("a = b", "b = a"),
        ("a - b - c = 1", "a - (b - c) = 1"),
        ("a - (b - c) = 1", "a - b - c = 1"),
        ("a = 1 AND b", "a = 1"),
        ("a = 1", "a = 1 AND b"),
        ("a AND b OR c", "a AND (b OR c)"),
        ("NOT a = 1", "a = 1"),
        ("a < 1", "a <= 1"),
        ("a IN (1, 2)", "a IN (1)"),
        ("a NOT IN (1)", "a IN (1)"),
        ("a IN (1)", "a NOT IN (1)"),
        ("a IS NOT NULL", "a IS NULL"),
        ("a IS TRUE", "a IS FALSE"),
        ("a LIKE 'x' ESCAPE '!'", "a LIKE 'x'"),
        ("a BETWEEN 1 AND 2", "a BETWEEN 2 AND 1"),
        ("lower(a) = 'x'", "upper(a) = 'x'"),
        ("coalesce(a, b) = 1", "coalesce(a) = 1"),
        ("- a = 1", "a = 1"),
        ("a = 1", "a = '1'"),
        ("a", "a LIMIT 1"),
        ("a", "a; SELECT 1"),
        ("a BETWEEN 1 AND 2", "a BETWEEN SYMMETRIC 1 AND 2"),
        ("lower(a) = 'x'", "lower(a) OVER () = 'x'"),
        ("a = 1", "a::int = 1"),
        ("a = (1)", "a = (SELECT 1)"),
    ],
)
def test_a_parser_that_misunderstands(text: str, understood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should sqlglot read one query as another, as it does in other dialects and may in another version, the walk over its tree refuses."""
    real = sqlglot.parse
    skeletons = []

    def note(skeleton: str, read: str) -> Any:
        skeletons.append(skeleton)
        return real(skeleton, read=read)

    monkeypatch.setattr(sqlglot, "parse", note)
    compile_sql(text)
    stand_ins = {"a": "", "b": "", "c": "", "1": "", "2": "", "'x'": "", "'!'": "", "'1'": ""}
    tokens = text.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    shown = skeletons[0].split()[5:]
    stand_ins |= {token: stand_in for token, stand_in in zip(tokens, shown, strict=True) if token in stand_ins}
    spaced = understood.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").replace("::", " :: ").replace(";", " ; ")
    other = " ".join(stand_ins.get(token) or token for token in spaced.split())
    monkeypatch.setattr(sqlglot, "parse", lambda skeleton, read: real(f"SELECT * FROM topics WHERE {other}", read=read))
    with pytest.raises(QueryError):
        compile_sql(text)


@pytest.mark.parametrize(
    "text", ["a - (b - c) = 1", "(a + b) * c = 1", "-(a + b) = 1", "a AND (b OR c)", "NOT (a AND b)", "a = (b = c)"]
)
def test_a_parser_that_binds_otherwise(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should sqlglot read `a - b - c` as `a - (b - c)`, the same tokens in the same order, the walk over its tree refuses that too."""
    real = sqlglot.parse

    def without_parentheses(skeleton: str, read: str) -> Any:
        numbered = iter(range(100))
        bare = [token for token in skeleton.split() if token not in "()"]
        (tree,) = real(" ".join(wanted), read=read)
        tree = tree.transform(lambda node: node.this if isinstance(node, exp.Paren) else node)
        # The stand-ins are numbered by place, which is another without the parentheses.
        names = [token for token in bare[5:] if token[0] in "\"'0123456789"]
        for leaf in tree.args["where"].find_all(exp.Identifier, exp.Literal, bfs=False):
            leaf.set("this", names[next(numbered)].strip("\"'"))
        return [tree]

    wanted: list[str] = []
    monkeypatch.setattr(sqlglot, "parse", lambda skeleton, read: wanted.extend(skeleton.split()) or real(skeleton, read=read))
    compile_sql(text)
    monkeypatch.setattr(sqlglot, "parse", without_parentheses)
    plain = text.replace("(", "").replace(")", "")
    with pytest.raises(QueryError):
        compile_sql(plain)


# --- clues ---


def us(text: str) -> int:
    return microseconds(parse_time(text))


T = "2027-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("predicate", "clue"),
    [
        ("count = 7", Value("n:count", 7, 7)),
        ("7 < count", Value("n:count", 7, None)),
        ("count <= 7.5", Value("n:count", None, 7.5)),
        ("count BETWEEN 3 AND 9", Value("n:count", 3, 9)),
        ("count > 3 AND count < 9 AND count < 12", Value("n:count", 3, 9)),
        ("NOT (count < 3 OR count > 9)", Value("n:count", 3, 9)),
        ("NOT count >= 7", Value("n:count", None, 7)),
        ("count IN (1, 2)", AnyOf((Value("n:count", 1, 1), Value("n:count", 2, 2)))),
        ("count IN (1, NULL)", Value("n:count", 1, 1)),
        ("count NOT IN (1, 2)", Value("n:count", None, None)),
        ("count <> 7", Value("n:count", None, None)),
        ("count NOT BETWEEN 3 AND 9", AnyOf((Value("n:count", None, 3), Value("n:count", 9, None)))),
        ("site = 'roof'", Value("s:site", "roof", "roof")),
        ("site > 'roof'", Value("s:site", "roof", None)),
        (f"at = '{T}'", AnyOf((Value("s:at", T, T), Value("t:at", us(T), us(T))))),
        (f"at > TIMESTAMP '{T}'", AnyOf((Value("t:at", us(T), None), Value("s:at", None, None)))),
        (
            f"at BETWEEN TIMESTAMP '{T}' AND TIMESTAMP '{T}'",
            AnyOf((Value("t:at", us(T), us(T)), Value("s:at", None, None))),
        ),
        ("ok", Value("b:ok", 1, 1)),
        ("NOT ok", Value("b:ok", 0, 0)),
        ("ok IS TRUE", Value("b:ok", 1, 1)),
        ("ok IS FALSE", Value("b:ok", 0, 0)),
        ("ok = FALSE", Value("b:ok", 0, 0)),
        ("ok IS NOT TRUE", Anything()),
        ("x IS NULL", Anything()),
        ("x IS NOT NULL", AnyOf(tuple(Value(f"{family}x", None, None) for family in ("n:", "s:", "b:", "t:")))),
        ("creator = 'a@b'", Value("@creator", "a@b", "a@b")),
        ("creator <> 'a@b'", Anything()),
        ("properties.creator = 'a@b'", Value("s:creator", "a@b", "a@b")),
        ("uuid LIKE '6f1c%'", Value("@uuid", "6f1c", "6f1d")),
        ("created >= '2027-01-31T12:00:00.9Z'", Value("@created", T, None)),
        ("created < '2027-01-31T14:00:00.9+02:00'", Value("@created", None, T)),
        ("expires = TIMESTAMP '2027-01-31T12:00:00Z'", Value("@expires", T, T)),
        ("kind = 'topic'", Anything()),
        ("path = 'Weather/x'", Contains("weather/x")),
        ("path LIKE '%Straße/_ab%'", Contains("strasse/")),
        ("text LIKE 'abc%_def_gh%ijkl'", AllOf((Contains("ijkl"), Contains("abc"), Contains("def")))),
        ("synopsis LIKE '%ab%'", Anything()),
        ("path NOT LIKE '%abc%'", Anything()),
        ("site LIKE 'roof'", AllOf((Value("s:site", "roof", "roof"), Contains("site=roof")))),
        ("site LIKE 'ro%'", AllOf((Value("s:site", "ro", "rp"), Contains("site=ro")))),
        ("site LIKE '%roof%'", Contains("roof")),
        ("site LIKE '%x%'", Value("s:site", None, None)),
        ("site LIKE 'a!%b%' ESCAPE '!'", AllOf((Value("s:site", "a%b", "a%c"), Contains("site=a%b")))),
        ("site LIKE '\U0010ffff%'", AllOf((Value("s:site", "\U0010ffff", None), Contains("site=\U0010ffff")))),
        ("site LIKE '\ud7ff%'", AllOf((Value("s:site", "\ud7ff", "\ue000"), Contains("site=\ud7ff")))),
        ("lower(site) = 'roof'", Contains("site=roof")),
        ("lower(path) LIKE '%roof%'", Contains("roof")),
        ("upper(path) = 'ABCIDEF'", AllOf((Contains("abc"), Contains("def")))),
        ("lower(creator) = 'abc'", Anything()),
        ("count = 7 OR site = 'x'", AnyOf((Value("n:count", 7, 7), Value("s:site", "x", "x")))),
        ("count = 7 OR x IS NULL", Anything()),
        ("count = 7 AND x IS NULL", Value("n:count", 7, 7)),
        ("count = 7 AND y + 1 = 2 AND a = b", Value("n:count", 7, 7)),
        ("count = 7 OR site = NULL", Value("n:count", 7, 7)),
        ("count = NULL", Anything()),
        ("count + 1 = 7", Anything()),
        ("coalesce(count, 1) = 7", Anything()),
        ("a = b", Anything()),
        ("TRUE", Anything()),
        ("SELECT * FROM topics", Anything()),
        ("creator = 5", Anything()),
    ],
)
def test_clues(predicate: str, clue: object) -> None:
    """What is selective gives an index something to look up."""
    assert compile_sql(predicate).clue == clue


def test_large_lists_give_small_clues() -> None:
    """A list is looked up item by item as long as that is cheap, then from its least to its greatest."""
    clue = compile_sql(f"count IN ({', '.join(map(str, range(MAX_PARTS)))})").clue
    assert isinstance(clue, AnyOf)
    assert len(clue.clues) == MAX_PARTS
    assert compile_sql(f"count IN ({', '.join(map(str, range(MAX_PARTS + 1)))})").clue == Value("n:count", 0, MAX_PARTS)
    mixed = " OR ".join(f"{name} IN ({', '.join(map(str, range(300)))})" for name in ("a", "b"))
    assert compile_sql(mixed).clue == Anything()
    assert isinstance(compile_sql(f"({mixed.replace(' OR ', ') AND (')})").clue, AnyOf)


def test_how_case_folds() -> None:
    """The one character that a clue of lower or upper must avoid, in this Python's Unicode."""
    characters = [chr(number) for number in range(sys.maxunicode + 1)]
    assert [c for c in characters if c.lower().casefold() != c.casefold()] == []
    assert [c for c in characters if c.upper().casefold() != c.casefold()] == ["ı"]


# --- against a second, slow definition ---

#: For a long search: EXAMPLES=20000.
EXAMPLES = int(os.environ.get("EXAMPLES", "200"))

_NAMES = {
    # How it is written: what it is.
    "a": ("property", "a"),
    "b": ("property", "b"),
    '"a-b"': ("property", "a-b"),
    "a.b": ("property", "a.b"),
    "properties.path": ("property", "path"),
    "uuid": ("field", "uuid"),
    "creator": ("field", "creator"),
    "created": ("field", "created"),
    "expires": ("field", "expires"),
    "kind": ("field", "kind"),
    "descriptor_kind": ("field", "descriptor_kind"),
    "path": ("field", "path"),
    "text": ("field", "text"),
    "synopsis": ("field", "synopsis"),
}
_TIMES = [
    "2027-01-31T12:00:00Z",
    "2027-01-31T12:00:00.250Z",
    "2027-01-31T12:00:00.999999Z",
    "2027-01-31t14:00:00.25+02:00",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
]
_STRINGS = [
    "",
    "a",
    "abc",
    "ABC",
    "abcabd",
    "İI",
    "ıab",
    "straße",
    "STRASSE",
    "ΑΣΑΣ",
    "ας",
    "it's",
    "50%",
    "a_b",
    "z\0z",
    "😀b",
    "é",
    "e\u0301",
    "7",
]
_INTEGERS = [0, 1, -1, 2, 7, -7, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
_FLOATS = [0.0, -0.0, 0.5, 7.0, -7.25, 2.0**53, 2.0**63, 1e308, -1e308, 5e-324]

_text = st.sampled_from([*_STRINGS, *_TIMES]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
_constant = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(_INTEGERS),
    st.sampled_from(_FLOATS),
    _text,
    st.sampled_from(_TIMES).map(parse_time),
)
_leaf = st.tuples(st.just("constant"), _constant) | st.tuples(st.just("name"), st.sampled_from(list(_NAMES) + ["a", "b"] * 4))
_pattern = st.lists(st.sampled_from(["%", "_", "a", "b", "abc", "ab", "!", "ß", "I", "😀", "'", "A"]), max_size=6).map("".join)


def _extend_value(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/%"), value, value),
        st.tuples(st.just("negative"), value),
        st.tuples(st.sampled_from(["lower", "upper", "length"]), value),
        st.tuples(st.just("coalesce"), st.lists(value, min_size=1, max_size=3)),
    )


_value = st.recursive(_leaf, _extend_value, max_leaves=4)
_comparison = st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), _value, _value)
_simple = st.one_of(
    _comparison,
    st.tuples(st.sampled_from(["=", "<", ">=", "<>"]), st.tuples(st.just("name"), st.sampled_from(list(_NAMES))), _leaf),
    st.tuples(st.just("name"), st.sampled_from(["a", "b", '"a-b"'])),
    st.tuples(st.just("constant"), st.sampled_from([None, True, False])),
    st.tuples(st.just("in"), _value, st.lists(_leaf | _value, min_size=1, max_size=4)),
    st.tuples(st.just("between"), _value, _leaf, _leaf),
    st.tuples(st.just("like"), _value, st.tuples(st.just("constant"), _pattern | _text), st.none() | st.just("!")),
    st.tuples(st.just("like"), _value, _leaf, st.none()),
    st.tuples(st.just("is"), _value, st.none()),
)


def _extend_predicate(predicate: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), st.lists(predicate, min_size=2, max_size=3)),
        st.tuples(st.just("not"), predicate),
        st.tuples(st.just("is"), predicate, st.sampled_from([None, True, False])),
        st.tuples(st.sampled_from(["=", "<>"]), predicate, predicate),
    )


_predicate = st.recursive(_simple, _extend_predicate, max_leaves=5)


@st.composite
def _properties(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "a-b", "a.b", "path"]), min_size=1, max_size=5, unique=True)):
        kind = draw(st.sampled_from(["string", "integer", "float", "boolean", "timestamp"]))
        types[name] = kind
        if kind == "string":
            values[name] = draw(_text)
        elif kind == "integer":
            values[name] = draw(st.sampled_from(_INTEGERS))
        elif kind == "float":
            values[name] = draw(st.sampled_from([*_FLOATS, *_INTEGERS]))
        elif kind == "boolean":
            values[name] = draw(st.booleans())
        else:
            values[name] = descriptors.properties([f"x:timestamp={draw(st.sampled_from(_TIMES))}"])["properties"]["x"]
    return {"kind": "properties", "properties": values, "types": types}


_descriptor = st.one_of(
    _properties(),
    _properties(),
    _properties(),
    _text.filter(bool).map(descriptors.path),
    _text.filter(bool).map(lambda body: descriptors.text(body, ["abc"])),
    st.just(descriptors.xml("<abc/>")),
)
_subject = st.builds(
    topic,
    _descriptor,
    uuid=st.sampled_from([UUID, "abc"]),
    creator=_text,
    created=st.sampled_from(["2027-01-31T12:00:00Z", "2027-01-31T12:00:01Z", "0001-01-01T00:00:00Z"]),
    synopsis=_text,
)

# Levels of binding, written down a second time: or, and, not, predicate, sum, product, sign, the rest.
_LEVELS = {
    "or": 0,
    "and": 1,
    "not": 2,
    "in": 3,
    "between": 3,
    "like": 3,
    "is": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
    "negative": 6,
}
_LEVELS.update(dict.fromkeys(["=", "<>", "<", "<=", ">", ">="], 3))


def written(node: Any, level: int = 0) -> str:
    """As SQL, with the fewest parentheses that keep its meaning."""
    own = _LEVELS.get(node[0], 7)
    if own == 7:
        return _written_leaf(node)
    match node:
        case ("or" | "and", terms):
            text = f" {node[0].upper()} ".join(written(term, own + 1) for term in terms)
        case ("not", operand):
            text = f"NOT {written(operand, 2)}"
        case ("in", operand, items):
            text = f"{written(operand, 4)} IN ({', '.join(written(item) for item in items)})"
        case ("between", operand, low, high):
            text = f"{written(operand, 4)} BETWEEN {written(low, 4)} AND {written(high, 4)}"
        case ("like", operand, pattern, escape):
            text = f"{written(operand, 4)} LIKE {written(pattern, 4)}" + (f" ESCAPE '{escape}'" if escape else "")
        case ("is", operand, wanted):
            text = f"{written(operand, 4)} IS {str(wanted).upper() if wanted is not None else 'NULL'}"
        case ("negative", operand):
            text = f"- {written(operand, 6)}"
        case (operator, left, right):
            text = f"{written(left, own + (own == 3))} {operator} {written(right, own + 1)}"
    return f"({text})" if own < level else text


def _written_leaf(node: Any) -> str:
    match node:
        case ("name", name):
            return str(name)
        case ("coalesce", arguments):
            return f"coalesce({', '.join(map(written, arguments))})"
        case ("constant", None):
            return "NULL"
        case ("constant", bool() as value):
            return str(value).upper()
        case ("constant", datetime() as value):
            return f"TIMESTAMP '{value.isoformat()}'"
        case ("constant", str() as value):
            return "'" + value.replace("'", "''") + "'"
        case ("constant", value):
            return repr(value)
        case (function, argument):
            return f"{function}({written(argument)})"
    raise AssertionError(node)


def slow(node: Any, subject: Subject) -> Any:
    """The value of an expression, straight from the rules."""
    match node:
        case ("constant", value):
            return value
        case ("name", name):
            return slow_name(*_NAMES[name], subject)
        case ("and", terms):
            return from_truth(min(to_truth(slow(term, subject)) for term in terms))
        case ("or", terms):
            return from_truth(max(to_truth(slow(term, subject)) for term in terms))
        case ("not", operand):
            return from_truth(2 - to_truth(slow(operand, subject)))
        case ("in", operand, items):
            value = slow(operand, subject)
            return from_truth(max(to_truth(slow_compare("=", value, slow(item, subject))) for item in items))
        case ("between", operand, low, high):
            value = slow(operand, subject)
            bounds = slow_compare(">=", value, slow(low, subject)), slow_compare("<=", value, slow(high, subject))
            return from_truth(min(map(to_truth, bounds)))
        case ("like", operand, pattern, escape):
            return slow_like(slow(operand, subject), slow(pattern, subject), escape)
        case ("is", operand, wanted):
            value = slow(operand, subject)
            return value is None if wanted is None else isinstance(value, bool) and value == wanted
        case ("coalesce", arguments):
            return next((value for value in (slow(argument, subject) for argument in arguments) if value is not None), None)
        case ("lower" | "upper" | "length", argument):
            value = slow(argument, subject)
            return None if not isinstance(value, str) else len(value) if node[0] == "length" else getattr(value, node[0])()
        case ("negative", operand):
            return slow_arithmetic("-", 0, slow(operand, subject))
        case ("+" | "-" | "*" | "/" | "%", left, right):
            return slow_arithmetic(node[0], slow(left, subject), slow(right, subject))
        case (operator, left, right):
            return slow_compare(operator, slow(left, subject), slow(right, subject))
    raise AssertionError(node)


def to_truth(value: Any) -> int:
    return {True: 2, False: 0}[value] if isinstance(value, bool) else 1


def from_truth(number: int) -> bool | None:
    return {0: False, 1: None, 2: True}[number]


def slow_name(sort: str, name: str, subject: Subject) -> Any:
    descriptor = subject.descriptor
    if sort == "property":
        if descriptor["kind"] != "properties" or name not in descriptor["properties"]:
            return None
        value = descriptor["properties"][name]
        convert = {"float": float, "timestamp": parse_time}.get(descriptor["types"][name], lambda same: same)
        return convert(value)
    if name == "descriptor_kind":
        return descriptor["kind"]
    if name in ("path", "text"):
        return descriptor[name] if descriptor["kind"] == name else None
    value = getattr(subject, name)
    return parse_time(value) if name in ("created", "expires") else value


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def slow_time(text: str) -> datetime | None:
    try:
        return parse_time(text)
    except UsageError:
        return None


def slow_compare(operator: str, left: Any, right: Any) -> bool | None:
    if is_number(left) and is_number(right):
        left, right = Fraction(left), Fraction(right)
    elif isinstance(left, datetime) and isinstance(right, str):
        right = slow_time(right)
    elif isinstance(left, str) and isinstance(right, datetime):
        left = slow_time(left)
    elif isinstance(left, str) and isinstance(right, str):
        left, right = [ord(c) for c in left], [ord(c) for c in right]
    if left is None or right is None or type(left) is not type(right):
        return None
    return {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left < right or left == right,
        ">": right < left,
        ">=": right < left or left == right,
    }[operator]


def slow_arithmetic(operator: str, left: Any, right: Any) -> Any:
    if not is_number(left) or not is_number(right) or (operator in "/%" and right == 0):
        return None
    exact = isinstance(left, int) and isinstance(right, int)
    one, other = Fraction(left), Fraction(right)
    if not exact:
        # The float nearest to what Python computes with floats; a remainder of floats is exact.
        one, other = Fraction(float(left)), Fraction(float(right))
    if operator in "/%":
        whole = int(one / other)
        result = (Fraction(whole) if exact else one / other) if operator == "/" else one - whole * other
    else:
        result = {"+": one + other, "-": one - other, "*": one * other}[operator]
    if exact:
        return int(result) if -(2**63) <= result < 2**63 else None
    try:
        return float(result)
    except OverflowError:
        return None


def slow_like(value: Any, pattern: Any, escape: str | None) -> bool | None:
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None

    @cache
    def match(v: int, p: int) -> bool:
        if p == len(pattern):
            return v == len(value)
        if pattern[p] == escape:
            return v < len(value) and value[v] == pattern[p + 1] and match(v + 1, p + 2)
        if pattern[p] == "%":
            return match(v, p + 1) or (v < len(value) and match(v + 1, p))
        return v < len(value) and pattern[p] in ("_", value[v]) and match(v + 1, p + 1)

    return match(0, 0)


def wrong(node: Any) -> bool:
    """Whether the documentation calls this a mistake: a wrong escape, a text beside a field that is a time, a predicate that is none."""
    match node:
        case ("constant" | "name", _):
            return False
        case ("and" | "or", terms):
            return any(map(wrong, terms))
        case ("coalesce", arguments):
            return any(map(wrong, arguments))
        case ("like", operand, pattern, escape):
            return wrong(operand) or is_time_field(operand) or wrong_escape(pattern, escape)
        case ("in", operand, items):
            return wrong(operand) or any(wrong(item) or no_time(operand, item) for item in items)
        case ("between", operand, low, high):
            return wrong(operand) or no_time(operand, low) or no_time(operand, high)
        case ("is", operand, _):
            return wrong(operand)
        case (_, operand):
            return wrong(operand)
        case (operator, left, right):
            return wrong(left) or wrong(right) or (_LEVELS[operator] == 3 and no_time(left, right))
    raise AssertionError(node)


def is_time_field(node: Any) -> bool:
    return bool(node[0] == "name" and node[1] in ("created", "expires"))


def no_time(one: Any, other: Any) -> bool:
    return any(
        is_time_field(field) and value[0] == "constant" and isinstance(value[1], str) and slow_time(value[1]) is None
        for field, value in ((one, other), (other, one))
    )


def wrong_escape(pattern: Any, escape: str | None) -> bool:
    if escape is None or pattern[0] != "constant" or not isinstance(pattern[1], str):
        return False
    rest = pattern[1].replace("!!", "").replace("!%", "").replace("!_", "")
    return "!" in rest and "!" in pattern[1].replace("!!", "\n").replace("!%", "\n").replace("!_", "\n")


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(_predicate, st.lists(_subject, min_size=2, max_size=4))
def test_against_a_slow_definition(node: Any, subjects: list[Subject]) -> None:
    """T13: the compiled predicate and a plain interpreter of the rules agree, and no clue excludes a topic that matches."""
    sql = written(node)
    if wrong(node):
        with pytest.raises(QueryError):
            compile_sql(sql)
        return
    query, opposite = compile_sql(sql), compile_sql(f"SELECT a FROM topics WHERE NOT ({sql});")
    for subject in subjects:
        value = slow(node, subject)
        assert query.matches(subject) is (value is True), (sql, value)
        assert opposite.matches(subject) is (value is False), (sql, value)
        for asked in (query, opposite):
            if finds(asked, subject):
                assert holds(asked.clue, subject), (asked.text, asked.clue)
            if (whole := divided(asked)) is not None:
                assert (from_truth(joined(whole, subject)) is True) is asked.matches(subject), asked.text


def joined(part: Part, subject: Subject) -> int:
    """A divided predicate for a topic, as `to_truth` numbers it."""
    if isinstance(part, Term):
        return to_truth(part.truth(*value_of(part.column, subject)))
    if isinstance(part, Both | Either):
        return (min if isinstance(part, Both) else max)(joined(one, subject) for one in part.parts)
    truth = joined(part.part, subject)
    return 2 - truth if isinstance(part, Inverse) else to_truth(truth == to_truth(part.wanted))


def value_of(column: Column | None, subject: Subject) -> tuple[Any, str]:
    """What a topic has in a column, and the type of a property."""
    descriptor = subject.descriptor
    if column is None:
        return None, ""
    if column.is_property:
        has = descriptor["kind"] == "properties" and column.name in descriptor["properties"]
        return (descriptor["properties"][column.name], descriptor["types"][column.name]) if has else (None, "")
    if column.name in ("path", "text"):
        return descriptor[column.name] if descriptor["kind"] == column.name else None, ""
    return descriptor["kind"] if column.name == "descriptor_kind" else getattr(subject, column.name), ""


@pytest.mark.parametrize("predicate", ["a = b", "a + b > 1", "a > 1 AND path = creator", "a IN (1, b)", "a LIKE b", "COALESCE(a, b) = 1"])
def test_what_needs_two_values_at_once_is_not_divided(predicate: str) -> None:
    assert divided(compile_sql(predicate)) is None


def test_what_can_be_divided() -> None:
    whole = divided(compile_sql("NOT (a > 1 OR a < 0 AND b + 1 < 2) AND (path LIKE 'x%') IS TRUE AND 1 < 2"))
    assert whole is not None
    assert [term.column for term in terms(whole)] == [
        *(Column("a", is_property=True), Column("a", is_property=True), Column("b", is_property=True)),
        *(Column("path", is_property=False), None),
    ]


_tried: list[bool] = []
_simple_name = st.sampled_from(["a", "b", "path", "text", "synopsis", "creator", "created", "uuid"])


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(_simple_name, st.sampled_from(["=", "<", ">=", "like", "lower", "upper", "in"]), st.data(), _subject)
def test_clues_of_what_matches(name: str, how: str, data: st.DataObject, subject: Subject) -> None:
    """A predicate made from the topic's own value, so that most match: no clue excludes them."""
    value = slow_name(*_NAMES[name], subject)
    constant: Any = ("constant", value)
    operand: Any = ("name", name)
    if how == "like" and isinstance(value, str) and name != "created":
        cut = data.draw(st.integers(0, len(value)))
        pattern = "".join(data.draw(st.sampled_from([c, c, c, "_", "%"])) for c in value[:cut]) + "%"
        node: Any = ("like", operand, ("constant", pattern), None)
    elif how in ("lower", "upper"):
        if not isinstance(value, str):
            return
        node = ("=", (how, operand), ("constant", getattr(value, how)()))
    elif how == "in":
        node = ("in", operand, [data.draw(st.tuples(st.just("constant"), st.sampled_from(_INTEGERS))), constant])
    else:
        node = ("=" if how == "like" else how, operand, constant)
    query = compile_sql(written(node))
    assert query.matches(subject) is (slow(node, subject) is True)
    _tried.append(query.matches(subject))
    assert not query.matches(subject) or holds(query.clue, subject), (query.text, query.clue)


def test_most_of_those_matched() -> None:
    """The test before has seen matches, and clues that say something."""
    if _tried:
        assert sum(_tried) > len(_tried) / 4


def test_times_at_the_ends_of_the_calendar() -> None:
    early = topic(descriptors.properties(["at:timestamp=0001-01-01T00:00:00Z"]), created="0001-01-01T00:00:00Z")
    for predicate in (
        "at < TIMESTAMP '9999-12-31T23:59:59.999999Z'",
        "at = '0001-01-01T01:00:00+01:00'",
        "created <= '0001-01-01T00:00:00.5Z'",
    ):
        query = compile_sql(predicate)
        assert query.matches(early)
        assert holds(query.clue, early)
    assert truth("at > '0001-01-01T00:00:00+01:00'", early) is None
    assert datetime(1, 1, 1, tzinfo=UTC) == parse_time("0001-01-01T00:00:00Z")
