"""XPath and XQuery text cut into tokens, before any engine sees it: what is a string, a comment, a name, an element.

`Reader` promises that the text is bounded (tokens, nesting), and that strings, comments, brackets and elements are closed. It raises QueryError
with a position otherwise, and takes time in proportion to the text. Where it is not certain how an engine reads something, it refuses: a
call that it takes for text would reach the engine unchecked. What the names mean is `xml_source`'s.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tdn.errors import QueryError
from tdn.queries.xml_functions import words

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
KEYWORDS = words(
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


class Reader:
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
                check_prefix(name[6:], begun)
                self.bound.append((name[6:], read_uri(text[begun + 1 : at], begun)))
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
        return named or (operand.text in _SUFFIXES and operand.after_operand) or operand.text not in KEYWORDS | _SUFFIXES
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


def check_prefix(prefix: str, at: int) -> None:
    if _SPLIT.match(prefix):
        raise QueryError(f"the prefix {prefix[:40]!r} begins like an operator", position=at, hint="choose another prefix")


def _spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


def read_uri(literal: str, position: int) -> str:
    """A namespace as XQuery reads it. References in one are refused: they would make two spellings of one name."""
    if "&" in literal:
        raise QueryError("a namespace is written without '&'", position=position)
    return " ".join(literal.split())
