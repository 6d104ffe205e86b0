"""The five languages by name (T13), each compiled by its own module."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tdn.errors import QueryError
from tdn.queries.model import Query, Subject

LANGUAGES = ("string", "regex", "sql", "xpath", "xquery")


@lru_cache(maxsize=256)
def compile_query(language: str, text: str) -> Query:
    """The query, or QueryError with its position and a hint. The same text is compiled once."""
    return _compiler(language)(text)


def warm_up(*, xquery: bool) -> None:
    """Load every compiler and ask something in every language once; XQuery's engine only where it will be used.

    For a process in which queries are interrupted and that can open no file later: an import that is cut off half way is of no use to the
    next query either.
    """
    for language in LANGUAGES:
        _compiler(language)
    about = {
        "kind": "properties",
        "properties": {"a": 1, "t": "2027-01-01T00:00:00Z"},
        "types": {"a": "integer", "t": "timestamp"},
    }
    document = {"kind": "xml", "xml": '<a b="c">text<!-- x --></a>'}
    for language, text in _FIRST_QUERIES.items():
        if language != "xquery" or xquery:
            query = compile_query(language, text)
            for descriptor in (about, document):
                query.matches(Subject("", "topic", "a", "a", "i", _MOMENT, _MOMENT, descriptor, ""))


_MOMENT = "2027-01-01T00:00:00Z"
_FIRST_QUERIES = {
    "string": "straße",
    "regex": r"(?i)\pL+x[0-9]{2,3}",
    "sql": "a + 1 > 2.5 AND t < TIMESTAMP '2027-01-31T12:00:00Z' OR lower(b) LIKE '%x_' AND c IN (1, 2) AND d BETWEEN 1 AND 2",
    "xpath": "//a[@b = 'c' and matches(., 't+')]/@b or count(//a) > 1 or xs:dateTime('2027-01-01T00:00:00Z') > xs:dateTime('2026-01-01T00:00:00Z')"
    " or upper-case(string-join(for $x in //a return $x, ' ')) = 'x'",
    "xquery": "for $x in //a where matches($x, 't') return <hit>{upper-case($x), year-from-date(xs:date('2027-01-01'))}</hit>",
}


def _compiler(language: str) -> Callable[[str], Query]:
    # Imported when needed: a command that asks in one language does not wait until the parsers of all five are loaded.
    if language == "string":
        from tdn.queries.string import compile_string

        return compile_string
    if language == "regex":
        from tdn.queries.regex import compile_regex

        return compile_regex
    if language == "sql":
        from tdn.queries.sql import compile_sql

        return compile_sql
    if language == "xpath":
        from tdn.queries.xpath import compile_xpath

        return compile_xpath
    if language == "xquery":
        from tdn.queries.xquery import compile_xquery

        return compile_xquery
    raise QueryError(f"{language[:20]!r} is not a query language; there are {', '.join(LANGUAGES)}")
