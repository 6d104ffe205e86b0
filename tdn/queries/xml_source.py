"""An XPath or XQuery text that was read: its tokens, what its prolog declares, and every function in it on the list.

`read` promises that the text is bounded and closed (`xml_lexer`), and that every function called or referred to by name is on the list of
`xml_functions` or declared in the query itself. It raises QueryError with a position otherwise. After that, `refuse_harmful` looks at the
text of an XQuery without reading it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tdn.errors import QueryError
from tdn.queries.model import MAX_QUERY_CHARACTERS, require_length
from tdn.queries.xml_functions import ERR, FN, LOCAL, PREFIXES, RESERVED, refusal, refuse_harmful
from tdn.queries.xml_lexer import KEYWORDS, Reader, Token, check_prefix, read_uri

#: Characters that XML cannot hold, and so no engine reads: controls and lone surrogates.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(slots=True)
class Source:
    """A text that was read: its tokens, the same text with comments blanked out, and what its prolog declares."""

    text: str
    #: Comments replaced by as many spaces: positions stay, and engines' own readers of comments are not needed.
    plain: str
    tokens: list[Token]
    #: Prefixes that the prolog declares, and functions as (namespace, local name).
    namespaces: dict[str, str] = field(default_factory=dict)
    #: Where the prolog ends: an index of `tokens`.
    body: int = 0


def read(language: str, text: str) -> Source:
    """Tokens of an "xpath" or "xquery" text, all checks done."""
    require_length(language, text, MAX_QUERY_CHARACTERS)
    if bad := _NOT_XML.search(text):
        raise QueryError(f"the query holds the character U+{ord(bad.group()):04X}, which XML cannot hold", position=bad.start())
    if not text.strip():
        raise QueryError("the query is empty", position=0, hint="write an expression, such as //sensor[@id = 'x42']")
    reader = Reader(text, constructors=language == "xquery")
    reader.expressions(0, 0, closer=None)
    pieces, at = [], 0
    for start, end in reader.comments:
        pieces += [text[at:start], " " * (end - start)]
        at = end
    source = Source(text, "".join(pieces) + text[at:], reader.tokens)
    bindings = {prefix: {uri} for prefix, uri in PREFIXES.items()}
    declared: set[tuple[str, str, int]] = set()
    if language == "xquery":
        bindings["local"], bindings["err"] = {LOCAL}, {ERR}
        declared = _read_prolog(source, bindings)
        for prefix, uri in reader.bound:
            bindings.setdefault(prefix, set()).add(uri)
    _check_functions(source, bindings, declared)
    if language == "xquery":
        # Last, because what was refused above says better why. It looks at all of the text, whatever was made of it.
        refuse_harmful(text)
    return source


def _read_prolog(source: Source, bindings: dict[str, set[str]]) -> set[tuple[str, str, int]]:
    """What stands before the last `;`: declarations that are allowed, and what they declare."""
    ends = [index for index, token in enumerate(source.tokens) if token.text == ";" and token.kind == "symbol"]
    for index in ends:
        if source.tokens[index].depth:
            raise QueryError("';' ends a declaration, and stands in no brackets", position=source.tokens[index].start)
    source.body = ends[-1] + 1 if ends else 0
    functions: list[tuple[Token, int]] = []
    begin = 0
    for end in ends:
        functions.extend(_read_declaration(source, source.tokens[begin:end], bindings))
        begin = end + 1
    if source.body >= len(source.tokens):
        raise QueryError(
            "the query declares, and asks nothing", position=len(source.text), hint="write an expression after the last ';'"
        )
    # The main expression may not be a declaration whose ';' was forgotten: an engine might accept what was not looked at.
    first, *rest = source.tokens[source.body : source.body + 2]
    if first.text in ("declare", "import", "module", "xquery") and rest and rest[0].kind == "name":
        raise QueryError(f"'{first.text} {rest[0].text[:20]}' is not ended by ';', or not allowed", position=first.start)
    declared = set()
    for token, arity in functions:
        for uri, local in _resolve(token, bindings):
            if uri in PREFIXES.values():
                raise QueryError(f"{token.text[:40]!r} cannot be declared", position=token.start, hint="write local:name")
            declared.add((uri, local, arity))
    return declared


def _read_declaration(source: Source, tokens: list[Token], bindings: dict[str, set[str]]) -> list[tuple[Token, int]]:
    said = [token.text for token in tokens[:6]]
    position = tokens[0].start if tokens else 0
    if said[:2] == ["xquery", "version"]:
        # Version 4.0 has functions that the list does not know.
        if len(tokens) < 3 or _string(said[2]) not in ("1.0", "3.0", "3.1"):
            raise QueryError("the version is 3.1", position=position, hint="write xquery version '3.1';")
        return []
    if said[:1] == ["import"] or said[:1] == ["module"]:
        raise QueryError(f"'{said[0]}' is not allowed", position=position, hint="write the expression into the query itself")
    if said[:1] != ["declare"] or len(tokens) < 2:
        raise QueryError("a declaration was expected before ';'", position=position)
    for token in tokens:
        if token.text == "external" and token.kind == "name" and token.depth == 0:
            raise QueryError("'external' is not allowed", position=token.start, hint="a query gets nothing from outside")
    if said[1] == "namespace":
        if len(tokens) != 5 or tokens[3].text != "=" or tokens[4].kind != "string":
            raise QueryError("write declare namespace prefix = 'uri';", position=position)
        prefix, uri = said[2], read_uri(_string(tokens[4].text), tokens[4].start)
        if prefix in PREFIXES and PREFIXES[prefix] != uri:
            raise QueryError(
                f"the prefix {prefix[:40]!r} keeps its meaning", position=tokens[2].start, hint="choose another prefix"
            )
        check_prefix(prefix, tokens[2].start)
        source.namespaces[prefix] = uri
        bindings[prefix] = {uri}
        return []
    if said[1:4] == ["default", "element", "namespace"]:
        return []
    if said[1] in ("boundary-space", "construction", "ordering", "copy-namespaces") or said[1:3] == ["default", "order"]:
        return []
    if said[1] == "variable" and len(tokens) > 3 and said[2] == "$":
        return []
    at = 1
    while at + 1 < len(tokens) and tokens[at].text == "%":
        if tokens[at + 1].text not in ("private", "public"):
            raise QueryError("annotations are not allowed", position=tokens[at].start)
        at += 2
    if at + 2 < len(tokens) and tokens[at].text == "variable":
        return []
    if at + 2 < len(tokens) and tokens[at].text == "function" and tokens[at + 1].kind == "name" and tokens[at + 2].text == "(":
        return [(tokens[at + 1], _arguments(tokens, at + 2))]
    raise QueryError(
        f"'declare {said[1][:20]}' is not allowed", position=position, hint="namespaces, variables and functions may be declared"
    )


def _check_functions(source: Source, bindings: dict[str, set[str]], declared: set[tuple[str, str, int]]) -> None:
    for token, following in pairwise(source.tokens):
        if token.kind == "name" and token.text == "validate" and following.text in ("{", "strict", "lax", "type"):
            raise QueryError("'validate' is not allowed", position=token.start, hint="descriptors have no schema")
        if token.kind == "name" and token.text == "collation" and following.kind == "string":
            raise QueryError("a collation is not allowed", position=token.start, hint="strings are compared by their codepoints")
        if token.kind == "symbol" and token.text == "%" and following.text not in ("private", "public"):
            raise QueryError("annotations are not allowed", position=token.start)
    for index, arity in _calls(source.tokens):
        token = source.tokens[index]
        for uri, local in _resolve(token, bindings):
            if arity is not None and (uri, local, arity) in declared:
                continue
            reason = refusal(uri, local, arity)
            if reason is not None:
                raise QueryError(reason[0], position=token.start, hint=reason[1])


def _calls(tokens: list[Token]) -> Iterator[tuple[int, int | None]]:
    """Where a function is called or referred to by name, and with how many arguments.

    A name after `?` (a key whose value is called) or after `%` counts as one: it is refused if no function of that name is allowed.
    """
    for index, token in enumerate(tokens[:-1]):
        if token.kind != "name":
            continue
        before = tokens[index - 1] if index and tokens[index - 1].kind == "symbol" else None
        if before is not None and before.text == "$" and ":" not in token.text:
            # A variable. With a prefix it is one, too, but in `map{$k:f()}` that is for each reader to say.
            continue
        following = tokens[index + 1]
        if following.text == "#" and following.kind == "symbol":
            number = tokens[index + 2] if index + 2 < len(tokens) else None
            yield index, int(number.text[:4]) if number is not None and number.text.isascii() and number.text.isdigit() else None
        elif following.text == "(" and following.kind == "symbol" and token.text not in RESERVED and token.text not in KEYWORDS:
            arrow = index > 0 and tokens[index - 1].text == "=>" and tokens[index - 1].kind == "symbol"
            declaring = index > 0 and tokens[index - 1].text == "function" and tokens[index - 1].kind == "name"
            yield index, _arguments(tokens, index + 1) + (1 if arrow and not declaring else 0)


def _arguments(tokens: list[Token], opening: int) -> int:
    """How many arguments stand in the brackets that open here."""
    depth = tokens[opening].depth
    count, empty, bindings = 1, True, 0
    for token in tokens[opening + 1 :]:
        if token.depth == depth and token.text == ")" and token.kind == "symbol":
            return 0 if empty else count
        empty = False
        if token.depth != depth + 1:
            continue
        # Between `for` and `return` a comma stands between variables.
        if token.kind == "name" and token.text in ("for", "let", "some", "every") and not token.after_operand:
            bindings += 1
        elif token.kind == "name" and token.text in ("return", "satisfies") and token.after_operand and bindings:
            bindings -= 1
        elif token.text == "," and token.kind == "symbol" and not bindings:
            count += 1
    return count


def _resolve(token: Token, bindings: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """The names that a lexical name can stand for; more than one if elements in the query bind its prefix otherwise."""
    if token.text.startswith("Q{"):
        uri, _, local = token.text[2:].partition("}")
        yield read_uri(uri, token.start), local
        return
    prefix, colon, local = token.text.partition(":")
    if not colon:
        yield FN, token.text
        return
    uris = bindings.get(prefix)
    if not uris:
        raise QueryError(
            f"the prefix {prefix[:40]!r} is not declared",
            position=token.start,
            hint=f"write Q{{uri}}{local[:40]}, or *:{local[:40]} for elements",
        )
    for uri in sorted(uris):
        yield uri, local


def _string(literal: str) -> str:
    return literal[1:-1].replace(literal[0] * 2, literal[0])
