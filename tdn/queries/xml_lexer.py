"""XPath and XQuery text cut into tokens, before any engine sees it: what is a string, a comment, an element, a function that is called.

`read` promises that the text is bounded (characters, tokens, nesting), that strings, comments, brackets and elements are closed, and that
every function called or referred to by name is on the list of `xml_functions` or declared in the query itself. It raises QueryError with
a position otherwise, and takes time in proportion to the text. Where it is not certain how an engine reads something, it refuses: a call
that this module takes for text would reach the engine unchecked. After that,
`refuse_harmful` looks at the text of an XQuery without reading it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from tdn.errors import QueryError
from tdn.queries.model import MAX_QUERY_CHARACTERS, require_length
from tdn.queries.xml_functions import ERR, FN, LOCAL, PREFIXES, RESERVED, refusal, refuse_harmful, words

#: Most tokens, and deepest brackets and elements. Engines recurse over both; a query that a person writes has a few dozen tokens.
MAX_TOKENS = 2000
MAX_NESTING = 48

_NAME = r"[^\W\d][\w.\-\xb7\u0300-\u036f\u200c\u200d\u203f\u2040]*"
_LEXEME = re.compile(
    rf"""(?P<space>[ \t\r\n]+)
    |(?P<comment>\(:)
    |(?P<pragma>\(\#)
    |(?P<braced>Q\{{[^{{}}]*\}}(?:{_NAME}|\*))
    |(?P<name>(?:{_NAME}|\*):(?:{_NAME})|{_NAME}:\*|{_NAME})
    |(?P<number>(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][+-]?[0-9]+)?)
    |(?P<string>"(?:[^"]|"")*"|'(?:[^']|'')*')
    |(?P<symbol>::|:=|!=|<=|>=|<<|>>|=>|\|\||//|\.\.|[$@/|,;!=<>+\-*.?:\#%(){{}}\[\]])""",
    re.VERBOSE,
)
_TAG_NAME = re.compile(rf"{_NAME}(?::{_NAME})?")
_SPACES = re.compile(r"[ \t\r\n]*")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}

#: Names that stand before `(` as keywords. None of them is a function, so taking them for keywords hides none.
_KEYWORDS = words(
    "and or div idiv mod to eq ne lt le gt ge is union intersect except return satisfies in then else where by when case "
    "of as instance treat cast castable for let some every ascending descending default start end only"
)
#: Where Saxon expects an operator it ends a name at `-` or `.` if what stands before that is one of these: `1 eq-abs(1)` calls abs().
_OPERATORS = words(
    "after and andAlso as before case default div else eq except follows ge gt idiv in intersect into is le lt mod modify ne or orElse otherwise "
    "precedes return satisfies then to union where with"
)
_SPLIT = re.compile(rf"(?:{'|'.join(sorted(_OPERATORS))})[-.]")
#: Signs after which no operator can stand, so that Saxon takes such a name whole.
_BEFORE_NAMES = words("/ // @ :: $ ( , [ { | || ! = != < <= > >= << >> := + - =>")
#: A `<` begins an element behind these alone, because nothing but an operand can follow them. Behind everything else it could be a
#: comparison, and what is text to one reader would be code to the other: `xs:integer? <?a or doc('x') or xs:integer?> 1` was one.
_BEFORE_ELEMENTS = frozenset({";", "(", ",", "{", "[", ":="})
#: So do these words, if they are words of the grammar and not names of elements.
_WORDS_BEFORE_ELEMENTS = frozenset({"return", "then", "else", "satisfies", "in"})
#: After an operand, these leave the reader still behind an operand.
_SUFFIXES = frozenset({"ascending", "descending", "empty", "greatest", "least", "default"})
#: Two-word operators: the second word stands where an operand would.
_PAIRS = {"instance": "of", "treat": "as", "cast": "as", "castable": "as", "order": "by", "group": "by"}
#: Characters that XML cannot hold, and so no engine reads: controls and lone surrogates.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text. `kind` is name, number, string, symbol or element (a whole constructor, its expressions left out)."""

    kind: str
    text: str
    start: int
    end: int
    #: Brackets and elements around it.
    depth: int
    #: Whether it stands where an operator is expected: a name there is a keyword.
    after_operand: bool


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
    reader = _Reader(text, constructors=language == "xquery")
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


class _Reader:
    def __init__(self, text: str, *, constructors: bool) -> None:
        self.text = text
        self.constructors = constructors
        self.tokens: list[Token] = []
        self.comments: list[tuple[int, int]] = []
        #: Prefixes that elements in the query bind for the expressions inside them.
        self.bound: list[tuple[str, str]] = []

    def expressions(self, at: int, depth: int, *, closer: str | None) -> int:
        """Read from `at` to the closer that ends an enclosed expression, or to the end of the text. Returns where that is."""
        if depth > MAX_NESTING:
            raise QueryError(f"the query is nested deeper than {MAX_NESTING} levels", position=at)
        opened: list[tuple[str, int]] = []
        operand = False
        pair: str | None = None
        text = self.text
        #: The last tokens of this expression, not of those around it.
        recent: deque[Token] = deque(maxlen=3)
        while at < len(text):
            found = _LEXEME.match(text, at)
            if found is None:
                self._refuse_character(at)
            kind, start, end = str(found.lastgroup), at, found.end()
            lexeme = found.group()
            if kind == "space":
                at = end
                continue
            if kind == "comment":
                at = self._comment(start)
                continue
            if kind == "pragma":
                raise QueryError("extensions (# … #) are not allowed", position=start)
            level = depth + len(opened)
            if kind == "symbol" and lexeme in "([{":
                if level + 1 > MAX_NESTING:
                    raise QueryError(f"the query is nested deeper than {MAX_NESTING} levels", position=start)
                if lexeme == "{" and recent and recent[-1].text == "Q" and recent[-1].end == start:
                    # Saxon reads up to the next `}`, whatever stands between, quotes too.
                    raise QueryError("a name is missing after Q{…}", position=start - 1, hint="write Q{uri}name")
                recent.append(self._add(kind, lexeme, start, end, level, operand))
                opened.append((lexeme, start))
                at, operand, pair = end, False, None
                continue
            if kind == "symbol" and lexeme in ")]}":
                if not opened:
                    if lexeme == closer:
                        return start
                    raise QueryError(f"'{lexeme}' closes nothing", position=start)
                opener, where = opened.pop()
                if _CLOSERS[opener] != lexeme:
                    raise QueryError(f"'{opener}' at character {where + 1} is closed by '{lexeme}'", position=start)
                recent.append(self._add(kind, lexeme, start, end, level - 1, True))
                at, operand = end, True
                continue
            if lexeme == "<" and self.constructors and _opens_element(text, start):
                if text[start + 1] in "!?/" or not _awaits_operand(recent):
                    raise QueryError(
                        "'<' here could be a comparison or an element",
                        position=start,
                        hint="write a space after '<' to compare, or put brackets around the element: (<name/>)",
                    )
                index = len(self.tokens)
                self._add("element", "<", start, end, level, False)
                at = self._element(start, level)
                self.tokens[index] = Token("element", text[start:at], start, at, level, False)
                recent.append(self.tokens[index])
                operand = True
                continue
            if lexeme == "<" and self.constructors and _awaits_operand(recent):
                raise QueryError("'<' compares nothing here", position=start, hint="an element begins with '<' and its name")
            if kind == "symbol":
                recent.append(self._add(kind, lexeme, start, end, level, operand))
                # `*` and `.` stand for something where an operand is expected, and `..` always does.
                operand = lexeme in (".", "..") or (lexeme == "*" and not operand)
                pair = None
            elif kind in ("name", "braced"):
                if self.constructors:
                    _check_name(lexeme, start, recent)
                recent.append(self._add("name", lexeme, start, end, level, operand))
                if pair is not None and lexeme == pair:
                    operand, pair = False, None
                elif operand:
                    pair = _PAIRS.get(lexeme)
                    operand = lexeme in _SUFFIXES
                else:
                    operand = True
            else:
                recent.append(self._add(kind, lexeme, start, end, level, operand))
                operand, pair = True, None
            at = end
        if opened:
            opener, where = opened[-1]
            raise QueryError(f"'{opener}' is never closed", position=where)
        if closer is not None:
            raise QueryError(f"the query ends before a '{closer}'", position=len(text))
        return at

    def _add(self, kind: str, text: str, start: int, end: int, depth: int, operand: bool) -> Token:
        if len(self.tokens) >= MAX_TOKENS:
            raise QueryError(f"the query has more than {MAX_TOKENS} words and signs", position=start)
        token = Token(kind, text, start, end, depth, operand)
        self.tokens.append(token)
        return token

    def _refuse_character(self, at: int) -> NoReturn:
        sign = self.text[at]
        if sign in "\"'":
            raise QueryError("a string is never closed", position=at, hint=f"a {sign} inside it is written twice")
        if self.text.startswith("``[", at):
            raise QueryError("string constructors ``[ … ]`` are not allowed", position=at, hint="use quotes, and ||")
        raise QueryError(
            f"{sign!r} has no meaning here",
            position=at,
            hint="strings are in quotes; other names can be tested with local-name()",
        )

    def _comment(self, start: int) -> int:
        deep, at = 0, start
        for mark in _COMMENT_MARKS.finditer(self.text, start):
            deep += 1 if mark.group() == "(:" else -1
            if deep == 0:
                at = mark.end()
                self.comments.append((start, at))
                return at
        raise QueryError("a comment (: … :) is never closed", position=start)

    def _element(self, start: int, depth: int) -> int:
        """Read a direct constructor; the expressions enclosed in it become tokens. Returns the position after it."""
        if depth > MAX_NESTING:
            raise QueryError(f"the query is nested deeper than {MAX_NESTING} levels", position=start)
        text = self.text
        if text.startswith(("<!", "<?"), start):
            # They hold text that nobody reads here. Nothing is lost: no query needs to make one.
            raise QueryError(
                "comments, CDATA sections and instructions cannot be made by signs",
                position=start,
                hint="write comment { 'text' }",
            )
        found = _TAG_NAME.match(text, start + 1)
        if found is None:
            raise QueryError("'<' begins no element here", position=start, hint="write a space after '<' to compare")
        name, at = found.group(), found.end()
        at, empty = self._attributes(start, at, depth)
        if empty:
            return at
        while True:
            mark = _CONTENT_MARK.search(text, at)
            if mark is None:
                raise QueryError(f"the element <{name[:40]}> is never closed", position=start)
            at = mark.start()
            if text.startswith(("{{", "}}"), at):
                at += 2
            elif text[at] == "{":
                at = self.expressions(at + 1, depth + 1, closer="}") + 1
            elif text[at] == "}":
                raise QueryError("'}' in an element is written twice", position=at)
            elif text.startswith("</", at):
                closing = _TAG_NAME.match(text, at + 2)
                if closing is None or closing.group() != name:
                    raise QueryError(
                        f"the element <{name[:40]}> at character {start + 1} is closed by something else", position=at
                    )
                end = _spaces(text, closing.end())
                if not text.startswith(">", end):
                    raise QueryError("a closing tag ends with '>'", position=end)
                return end + 1
            else:
                at = self._element(at, depth + 1)

    def _attributes(self, start: int, at: int, depth: int) -> tuple[int, bool]:
        text = self.text
        while True:
            space = at
            at = _spaces(text, at)
            if text.startswith("/>", at):
                return at + 2, True
            if text.startswith(">", at):
                return at + 1, False
            found = _TAG_NAME.match(text, at)
            if found is None or space == at:
                raise QueryError("a tag is not well-formed", position=min(at, len(text)), hint="write <name attribute='value'>")
            name = found.group()
            at = _spaces(text, found.end())
            if not text.startswith("=", at):
                raise QueryError("an attribute has no '='", position=at)
            at = _spaces(text, at + 1)
            quote = text[at : at + 1]
            if quote not in ("'", '"'):
                raise QueryError("an attribute's value is in quotes", position=at)
            begun = at
            at += 1
            while True:
                if at >= len(text):
                    raise QueryError("an attribute's value is never closed", position=begun)
                sign = text[at]
                if text.startswith(quote * 2, at) or text.startswith(("{{", "}}"), at):
                    at += 2
                elif sign == quote:
                    break
                elif sign == "{":
                    if name.startswith("xmlns"):
                        raise QueryError("a namespace is named by a plain string", position=at)
                    at = self.expressions(at + 1, depth + 1, closer="}") + 1
                elif sign in "}<":
                    raise QueryError(f"{sign!r} cannot stand in an attribute's value", position=at)
                else:
                    at += 1
            if name.startswith("xmlns:"):
                _check_prefix(name[6:], begun)
                self.bound.append((name[6:], _uri(text[begun + 1 : at], begun)))
            at += 1


_COMMENT_MARKS = re.compile(r"\(:|:\)")
_CONTENT_MARK = re.compile(r"[<{}]")


def _opens_element(text: str, at: int) -> bool:
    return _TAG_NAME.match(text, at + 1) is not None or text[at + 1 : at + 2] in ("!", "?", "/")


def _awaits_operand(recent: Sequence[Token]) -> bool:
    """Whether it is certain, for every reader, that an operand follows and no operator."""
    if not recent:
        return True
    last = recent[-1]
    if last.kind == "symbol":
        return last.text in _BEFORE_ELEMENTS
    if last.kind != "name" or last.text not in _WORDS_BEFORE_ELEMENTS or not last.after_operand or len(recent) < 2:
        return False
    # It is a word of the grammar if an operand stands before it. A word that may be an operator itself is none: in
    # `xs:integer? or return <a` the `?` ends a type, `or` is an operator and `return` the name of an element.
    operand, before = recent[-2], recent[-3].text if len(recent) > 2 and recent[-3].kind == "symbol" else ""
    if operand.kind == "name":
        named = before in ("$", "/", "//", "@", "::")
        return named or (operand.text in _SUFFIXES and operand.after_operand) or operand.text not in _KEYWORDS | _SUFFIXES
    if operand.kind == "symbol" and operand.text == "*":
        return before in ("/", "//", "@", "::")
    return operand.kind != "symbol" or operand.text in (")", "]", "}", ".", "..")


def _check_name(name: str, at: int, recent: Sequence[Token]) -> None:
    """Refuse a name that Saxon may end earlier than this module does."""
    last = recent[-1] if recent else None
    if last is not None and last.kind == "symbol" and last.text == "?" and ":" in name:
        # After `?` Saxon ends a name at the colon: `map{?k:f()}` has the key ?k and calls f().
        raise QueryError("a key after '?' has no prefix", position=at, hint="write a space before ':', or $map('key')")
    if (
        last is None
        or (last.kind == "symbol" and last.text in _BEFORE_NAMES)
        or (last.kind == "name" and last.text in _OPERATORS)
    ):
        return
    if _SPLIT.match(name):
        raise QueryError(
            f"{name[:40]!r} could be a name, or an operator and a name",
            position=at,
            hint="write spaces around the operator, or ./ before the name",
        )


def _check_prefix(prefix: str, at: int) -> None:
    if _SPLIT.match(prefix):
        raise QueryError(f"the prefix {prefix[:40]!r} begins like an operator", position=at, hint="choose another prefix")


def _spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


def _uri(literal: str, position: int) -> str:
    """A namespace as XQuery reads it. References in one are refused: they would make two spellings of one name."""
    if "&" in literal:
        raise QueryError("a namespace is written without '&'", position=position)
    return " ".join(literal.split())


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
        prefix, uri = said[2], _uri(_string(tokens[4].text), tokens[4].start)
        if prefix in PREFIXES and PREFIXES[prefix] != uri:
            raise QueryError(
                f"the prefix {prefix[:40]!r} keeps its meaning", position=tokens[2].start, hint="choose another prefix"
            )
        _check_prefix(prefix, tokens[2].start)
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
        elif following.text == "(" and following.kind == "symbol" and token.text not in RESERVED and token.text not in _KEYWORDS:
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
        yield _uri(uri, token.start), local
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
