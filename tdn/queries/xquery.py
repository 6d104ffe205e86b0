"""XQuery 3.1 over XML descriptors: true, or a result that is not empty, is a match (T13).

`compile_xquery` reads the text itself and refuses every function and declaration that is not allowed; it does not start the engine. What
only the engine finds (an unknown variable, a wrong type name) `prepare` raises as QueryError, and so does `matches`. A document on which a
query fails does not match. Saxon has no limit of time and none of recursion: a process that runs queries is killed from outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tdn.errors import MalformedMessage, QueryError
from tdn.protocol import xmltext
from tdn.queries import xml_clues, xml_source, xpath
from tdn.queries.model import Anything, Clue, Subject, all_of
from tdn.queries.xml_clues import Bound
from tdn.queries.xml_lexer import Token
from tdn.queries.xml_source import Source

#: What is put around a query's expression. To answer, two items at most are computed, and only truths leave the engine.
_TO_ANSWER = ("subsequence((", "), 1, 2) ! (if (. instance of xs:boolean) then . else true())")
#: To check it, it is compiled and not evaluated.
_TO_CHECK = ("if (count(/*/*) < 0) then (", ") else ()")

_CODE = re.compile(r"\b((?:X[PQ]|F[OR]|SX)[A-Z]{2}[0-9]{4})\b\s*(.*)")
_LINE_COLUMN = re.compile(r"on line ([0-9]+) column ([0-9]+)")
_CHARACTER = re.compile(r"at char ([0-9]+)(?: on line ([0-9]+))?")
_VARIABLE = re.compile(r"variable \$([^\s;,.]+)")
_HINTS = {
    "XPST0003": "the query is not XQuery 3.1",
    "XPST0008": "a variable is bound by for, let, some, every, declare variable or a function's arguments",
    "XPST0017": "docs/queries/xpath.md lists the functions",
    "XPST0051": "types are those of XML Schema, such as xs:integer",
    "XPST0081": "write declare namespace prefix = 'uri';, or Q{uri}name, or *:name",
}
_PREFIX = re.compile(r"prefix '?([^\s']+)'?")


@dataclass(frozen=True, slots=True)
class XQueryQuery:
    #: The text with its comments blanked out, and where its expression begins, after the prolog.
    text: str
    body: int
    clue: Clue
    language: str = "xquery"

    def prepare(self) -> None:
        """Compile the query in the engine. Raises QueryError if it is wrong."""
        self._run(_TO_CHECK, "<x/>")

    def matches(self, subject: Subject) -> bool:
        if subject.descriptor["kind"] != "xml":
            return False
        document = subject.descriptor["xml"]
        if "<!DOCTYPE" in document:
            # It may stand in a comment; the check knows.
            try:
                xmltext.check(document)
            except MalformedMessage:
                return False
        truths = self._run(_TO_ANSWER, document)
        return len(truths) > 1 or truths == [True]

    def _run(self, around: tuple[str, str], document: str) -> list[bool]:
        # Not before: the engine is large, and a process that only compiles has no use for it.
        from tdn.queries import saxon

        query = f"{self.text[: self.body]}{around[0]}{self.text[self.body :]}{around[1]}"
        try:
            return saxon.engine().run(query, document)
        except saxon.Failed as failure:
            if _is_static(str(failure)):
                raise _query_error(self.text, self.body, len(around[0]), query, str(failure)) from None
            return []


def compile_xquery(text: str) -> XQueryQuery:
    source = xml_source.read("xquery", text)
    return XQueryQuery(text=source.plain, body=source.tokens[source.body].start, clue=_Clues(source).of_query())


def _is_static(message: str) -> bool:
    """Whether the query is at fault, whatever the document. A type that can never fit is not: XQuery lets engines notice it early or late."""
    code = _CODE.search(message)
    return message.startswith("Static error") or (code is not None and code.group(1)[:4] in ("XPST", "XQST"))


def _query_error(text: str, body: int, inserted: int, query: str, message: str) -> QueryError:
    code = _CODE.search(message)
    said = f"{code.group(2).strip()[:200]} [{code.group(1)}]" if code else "the engine does not accept the query"
    position = _position(query, message) or 0
    if position >= body + inserted:
        position -= inserted
    elif position > body:
        position = body
    if position >= len(text):
        # What the engine saw there is not the asker's: it was put around the query.
        said = f"the query ends too early [{code.group(1) if code else 'XPST0003'}]"
    return QueryError(said, position=min(position, len(text)), hint=_HINTS.get(code.group(1) if code else ""))


def _position(query: str, message: str) -> int | None:
    """Where in `query` the engine saw the error, from the words that it uses."""
    if found := _LINE_COLUMN.search(message):
        return _offset(query, int(found.group(1)), int(found.group(2)))
    if found := _CHARACTER.search(message):
        return _offset(query, int(found.group(2) or 1), int(found.group(1)))
    for pattern, sign in ((_VARIABLE, "${}"), (_PREFIX, "{}:")):
        if (found := pattern.search(message)) and (at := query.find(sign.format(found.group(1)))) >= 0:
            return at
    return None


def _offset(query: str, line: int, column: int) -> int:
    lines = query.split("\n")
    return sum(len(before) + 1 for before in lines[: line - 1]) + max(column - 1, 0)


class _Clues:
    """The clue of a query: that of its expression where it is XPath, and of the clauses of a FLWOR where those are.

    XQuery makes nodes, and XPath does not. An expression is looked at only if it makes none, and uses no variable of which that is not known.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._parses = 0

    def of_query(self) -> Clue:
        tokens = self._source.tokens[self._source.body :]
        text = self._source.plain
        # In XQuery, not in XPath, strings have references (`&amp;`) and line ends that are normalised: literals would be others.
        if "&" in text or "\r" in text:
            return Anything()
        try:
            return xml_clues.bounded(self._match(tokens, {}))
        except _NotUnderstood:
            return Anything()

    def _match(self, tokens: list[Token], variables: dict[str, Bound]) -> Clue:
        parsed = self._parsed(tokens, variables)
        if parsed is not None:
            return xml_clues.of_match(parsed, variables)
        return self._flwor(tokens, variables, match=True)

    def _items(self, tokens: list[Token], variables: dict[str, Bound]) -> Bound | None:
        """What is known of the items of an expression; None if not even that they are no nodes of another document."""
        parsed = self._parsed(tokens, variables)
        return None if parsed is None else xml_clues.of_items(parsed, variables)

    def _parsed(self, tokens: list[Token], variables: dict[str, Bound]) -> Any:
        if not tokens or any(token.kind == "element" or token.text == "{" for token in tokens):
            return None
        self._parses += 1
        if self._parses > _MAX_PARSES:
            raise _NotUnderstood
        try:
            parsed = xpath.parse(self._source.plain[tokens[0].start : tokens[-1].end], self._source.namespaces)
        except QueryError:
            return None
        return parsed if xpath.free_variables(parsed) <= variables.keys() else None

    def _flwor(self, tokens: list[Token], variables: dict[str, Bound], *, match: bool) -> Clue:
        clauses = list(_clauses(tokens))
        if not clauses or clauses[-1][0] != "return" or clauses[0][0] not in ("for", "let"):
            return Anything()
        variables = dict(variables)
        clues: list[Clue] = []
        repeated = False
        for keyword, words in clauses[:-1]:
            if keyword == "for":
                repeated = True
                for binding in _split(words):
                    clues.append(self._for(binding, variables))
            elif keyword == "let":
                for binding in _split(words):
                    self._let(binding, variables)
            elif keyword == "where":
                parsed = self._parsed(words, variables)
                if parsed is not None:
                    clues.append(xml_clues.of_truth(parsed, variables))
            elif keyword in ("group", "count"):
                # Numbers, and the values that tuples are grouped by: no nodes.
                for name in _variables(words):
                    variables[name] = Bound(Anything(), nodes=False)
        result = clauses[-1][1]
        if any(token.text == "," and token.depth == tokens[0].depth for token in result):
            # Another expression follows, and it may find something where this one does not.
            return Anything()
        if match and not repeated:
            return all_of(*clues, self._match(result, variables))
        items = self._items(result, variables)
        if items is not None:
            return all_of(*clues, items.nonempty)
        return all_of(*clues, self._flwor(result, variables, match=False))

    def _for(self, binding: list[Token], variables: dict[str, Bound]) -> Clue:
        if binding and binding[0].text in ("tumbling", "sliding"):
            # The conditions of a window bind variables of their own, which may hide those known here.
            raise _NotUnderstood
        at = _index(binding, "in")
        names = _variables(binding[:at]) if at is not None else []
        items = self._items(binding[at + 1 :], variables) if at is not None else None
        for name in names[1:]:
            variables[name] = Bound(Anything(), nodes=False)
        if not names:
            raise _NotUnderstood
        if items is None:
            variables.pop(names[0], None)
            return Anything()
        variables[names[0]] = replace(items, nonempty=Anything())
        return Anything() if any(token.text == "allowing" for token in binding[:at]) else items.nonempty

    def _let(self, binding: list[Token], variables: dict[str, Bound]) -> None:
        at = next((index for index, token in enumerate(binding) if token.text == ":=" and token.depth == binding[0].depth), None)
        names = _variables(binding[:at]) if at is not None else []
        if at is None or not names:
            raise _NotUnderstood
        items = self._items(binding[at + 1 :], variables)
        if items is None:
            variables.pop(names[0], None)
        else:
            variables[names[0]] = items


class _NotUnderstood(Exception):
    """A clause that is not of the form that the walk knows. The engine will say what is wrong with it, if anything is."""


#: Most pieces of a query that are looked at. Each `return` of a nested FLWOR is one, up to the end: 280 of them took five seconds.
_MAX_PARSES = 32
_KEYWORDS = frozenset({"for", "let", "where", "order", "stable", "group", "count", "return"})


def _clauses(tokens: list[Token]) -> Iterator[tuple[str, list[Token]]]:
    """The clauses of a FLWOR, each with the tokens after its keyword; everything after the first `return` is its last."""
    depth = tokens[0].depth if tokens else 0
    begun: str | None = None
    start = 0
    for index, token in enumerate(tokens):
        keyword = (
            token.kind == "name" and token.depth == depth and token.text in _KEYWORDS and (index == 0 or token.after_operand)
        )
        if not keyword:
            continue
        if begun is not None:
            yield begun, tokens[start:index]
        begun, start = token.text, index + 1
        if begun == "return":
            break
    if begun is not None:
        yield begun, tokens[start:]


def _split(tokens: list[Token]) -> Iterator[list[Token]]:
    """Bindings of one clause, between commas."""
    part: list[Token] = []
    for token in tokens:
        if token.text == "," and token.depth == tokens[0].depth:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _index(tokens: list[Token], keyword: str) -> int | None:
    for index, token in enumerate(tokens):
        if token.kind == "name" and token.text == keyword and token.depth == tokens[0].depth and token.after_operand:
            return index
    return None


def _variables(tokens: list[Token]) -> list[str]:
    """Names after `$` that stand in no brackets."""
    return [
        tokens[index + 1].text
        for index, token in enumerate(tokens[:-1])
        if token.text == "$" and token.kind == "symbol" and token.depth == tokens[0].depth
    ]
