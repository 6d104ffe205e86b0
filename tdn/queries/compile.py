"""The five languages by name (T13), each compiled by its own module."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tdn.errors import QueryError
from tdn.queries.model import Query

LANGUAGES = ("string", "regex", "sql", "xpath", "xquery")


@lru_cache(maxsize=256)
def compile_query(language: str, text: str) -> Query:
    """The query, or QueryError with its position and a hint. The same text is compiled once."""
    return _compiler(language)(text)


def load_languages() -> None:
    """Import every compiler now. A process in which queries are interrupted does so first: an import that is cut off half way is of no
    use to the next query either.
    """
    for language in LANGUAGES:
        _compiler(language)


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
