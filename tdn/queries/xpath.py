"""XPath 3.1 over XML descriptors: true, or a result that is not empty, is a match (T13).

`compile_xpath` finds what is wrong with the text itself and says where; it evaluates nothing. `matches` answers for one descriptor: a
document on which the expression fails (a cast, a type) does not match, and a descriptor that is not XML never does. elementpath has no
limit of time: whoever asks runs this where it can be interrupted or killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elementpath import XPathContext
from elementpath.exceptions import ElementPathError
from lxml import etree

from tdn.errors import QueryError
from tdn.queries import xml_clues, xml_source, xpath_document
from tdn.queries.model import Clue, Subject
from tdn.queries.xpath_parser import Parser

#: Deepest tree of a parsed expression. elementpath spends up to five of Python's thousand stack frames on each level.
MAX_DEPTH = 100

#: What elementpath raises, by itself and through Python, on documents and texts that do not suit it. Nothing broader: the exception of a
#: signal handler that ends a long evaluation must get through, and so must MemoryError.
_FAILURES: tuple[type[Exception], ...] = (
    ElementPathError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)

#: What reading a document raises.
NOT_READ: tuple[type[Exception], ...] = (etree.LxmlError, ValueError)

#: Tokens of these symbols keep values inside themselves while they are evaluated: elementpath binds the arguments of a function to its tokens.
#: No answer was seen to change by it, but nodes of one document would live on in the query while the next is read.
_STATEFUL = frozenset({"function", "#", "?", "=>", "map", "array", "("})


@dataclass(frozen=True, slots=True)
class XPathQuery:
    text: str
    clue: Clue
    #: The parsed expression; None if it cannot be used twice and is parsed again for each document.
    _parsed: Any = field(repr=False, compare=False)
    language: str = "xpath"

    def matches(self, subject: Subject) -> bool:
        if subject.descriptor["kind"] != "xml":
            return False
        try:
            document = xpath_document.read(subject.descriptor["xml"])
        except NOT_READ:
            return False
        return self.holds_in(document)

    def holds_in(self, document: xpath_document.Document) -> bool:
        """Whether it matches a document, for who has read that for other queries too."""
        try:
            context = XPathContext(document, timezone="Z")
            expression = self._parsed if self._parsed is not None else _parse(self.text)
            return is_match(expression.select(context))
        except _FAILURES:
            return False


def is_match(items: Iterator[Any]) -> bool:
    """Neither nothing at all nor the single value false. A second item is looked for, the rest is not computed."""
    first = next(items, _NOTHING)
    if first is _NOTHING:
        return False
    return first is not False or next(items, _NOTHING) is not _NOTHING


_NOTHING = object()


def compile_xpath(text: str) -> XPathQuery:
    source = xml_source.read("xpath", text)
    text = _with_short_attributes(source)
    parsed = parse(text, {})
    _check_variables(parsed)
    clue = xml_clues.of_match(parsed)
    return XPathQuery(text=text, clue=clue, _parsed=None if _keeps_state(parsed) else parsed)


def _with_short_attributes(source: xml_source.Source) -> str:
    """`attribute::Q{uri}name` written as `@Q{uri}name`, which is the same and which elementpath 5.1 can read. Positions stay."""
    text = source.plain
    for axis, colons, name in zip(source.tokens, source.tokens[1:], source.tokens[2:], strict=False):
        if axis.text == "attribute" and colons.text == "::" and name.text.startswith("Q{"):
            text = f"{text[: axis.start]}{' ' * (colons.end - axis.start - 1)}@{text[colons.end :]}"
    return text


def parse(text: str, namespaces: Mapping[str, str]) -> Any:
    """The tree of an expression that `xml_lexer` has read. Raises QueryError; has evaluated nothing."""
    try:
        parsed = _parse(text, namespaces)
    except _FAILURES as error:
        raise _query_error(text, error) from error
    _check_depth(parsed)
    return parsed


def _parse(text: str, namespaces: Mapping[str, str] | None = None) -> Any:
    # elementpath looks for names with regular expressions that know only spaces and newlines between tokens.
    return Parser(dict(namespaces or {})).parse(text)


def _query_error(text: str, error: Exception) -> QueryError:
    if isinstance(error, RecursionError):
        return QueryError("the expression is nested too deeply", position=0)
    code = str(getattr(error, "code", "") or "").removeprefix("err:")
    token = getattr(error, "token", None)
    position: int | None = None
    if token is not None:
        position = len(text) if token.symbol == "(end)" else token.span[0]
    message = str(getattr(error, "message", "") or "").strip() or "this is not an XPath expression"
    return QueryError(
        f"{message[:200]}{f' [{code}]' if code else ''}", position=position if position is not None else 0, hint=_HINTS.get(code)
    )


_HINTS = {
    "XPST0003": "the expression is not XPath 3.1",
    "XPST0008": "a variable is bound by for, let, some, every or a function's arguments",
    "XPST0017": "docs/queries/xpath.md lists the functions and their arguments",
    "XPST0051": "types are those of XML Schema, such as xs:integer",
    "XPST0081": "no prefixes are declared but fn, xs, math, map and array; write Q{uri}name or *:name",
}


def _check_depth(parsed: Any) -> None:
    level, depth = [parsed], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise QueryError(f"the expression is nested deeper than {MAX_DEPTH} levels", position=level[0].span[0])
        level = [child for token in level for child in children(token)]


def children(token: Any) -> list[Any]:
    """The tokens under a token. elementpath keeps the body of a function and the contents of maps apart from the others."""
    found = list(token)
    body = getattr(token, "body", None)
    if body is not None:
        found.append(body)
    return [*found, *(getattr(token, "_values", None) or ())]


def _keeps_state(token: Any) -> bool:
    stateful = token.symbol in _STATEFUL and (token.symbol != "(" or len(token) > 1)
    return stateful or "partial" in str(token.label) or any(_keeps_state(child) for child in children(token))


def _check_variables(parsed: Any) -> None:
    """Every variable that is used is bound around it. elementpath would only notice when it evaluates."""
    for token in _free(parsed, frozenset()):
        raise QueryError(
            f"the variable ${str(token[0].value)[:40]} is not bound", position=token.span[0], hint=_HINTS["XPST0008"]
        )


def free_variables(parsed: Any) -> set[str]:
    """Names of the variables that an expression uses and does not bind."""
    return {str(token[0].value) for token in _free(parsed, frozenset())}


def _free(token: Any, bound: frozenset[str]) -> Iterator[Any]:
    if token.symbol == "$" and len(token) == 1:
        if str(token[0].value) not in bound:
            yield token
    elif token.symbol in ("for", "let", "some", "every") and len(token) > 2:
        for index in range(0, len(token) - 1, 2):
            yield from _free(token[index + 1], bound)
            bound = bound | {str(token[index][0].value)}
        yield from _free(token[-1], bound)
    elif token.symbol == "function" and getattr(token, "body", None) is not None:
        yield from _free(token.body, bound | {str(name) for name in token.varnames or ()})
    else:
        for child in children(token):
            yield from _free(child, bound)
