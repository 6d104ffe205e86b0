"""The five languages by name (T13), each compiled by its own module."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tdn.errors import QueryError
from tdn.queries.model import Query
from tdn.queries.regex import compile_regex
from tdn.queries.sql import compile_sql
from tdn.queries.string import compile_string
from tdn.queries.xpath import compile_xpath
from tdn.queries.xquery import compile_xquery

LANGUAGES: dict[str, Callable[[str], Query]] = {
    "string": compile_string,
    "regex": compile_regex,
    "sql": compile_sql,
    "xpath": compile_xpath,
    "xquery": compile_xquery,
}


@lru_cache(maxsize=256)
def compile_query(language: str, text: str) -> Query:
    """The query, or QueryError with its position and a hint. The same text is compiled once."""
    try:
        compiler = LANGUAGES[language]
    except KeyError:
        raise QueryError(f"{language[:20]!r} is not a query language; there are {', '.join(LANGUAGES)}") from None
    return compiler(text)
