r"""Regular expressions: RE2's dialect, found anywhere in the descriptor's text, in this very case unless the pattern says `(?i)`.

The text is `descriptor.searchable`; the synopsis is not in it. RE2 takes time in proportion to the text whatever the pattern, and the
limits here bound the proportion. Only QueryError leaves `compile_regex`, whatever it is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import re2

from tdn.errors import QueryError
from tdn.protocol import descriptor as descriptors
from tdn.queries.model import Anything, Clue, Subject, require_length
from tdn.queries.regex_literals import NotUnderstood, read

#: Longest pattern. The limits below are reached by less.
MAX_PATTERN_CHARACTERS = 4096
#: Memory of a compiled pattern, its cache of states included. A node keeps some hundreds of compiled queries at once.
MAX_MEMORY_BYTES = 1 << 20
# RE2 builds a deterministic automaton as it goes. When that grows beyond its memory RE2 quietly goes on without, at a price per byte of text
# that grows with the pattern: `[ab]*a[ab]{900}c` took 1.4 s for 100 KB. Hence three limits; the docs have the worst case that they allow.
#: Places in the pattern where RE2 can stand, counted repetitions written out: 1 for most characters, 4 for `.`, 294 for `\pL`.
MAX_STATES = 600
#: Instructions of the compiled pattern.
MAX_INSTRUCTIONS = 2500
#: Assertions, counted repetitions written out. They are looked at again at every byte: 600 of them made the worst case twice as slow.
MAX_ASSERTIONS = 50
#: Instructions of a pattern whose assertions we could not count.
MAX_INSTRUCTIONS_UNREAD = 1000
#: How many places in the pattern are tried as the one that RE2 complains of.
_TRIED_POSITIONS = 5

_PARENTHESES = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]|([()])", re.DOTALL)

_LOOK_AROUND = "RE2 has no look-ahead or look-behind; ask for the text itself, or use SQL with NOT"
_BACKREFERENCE = "RE2 has no backreferences; write the text again"
_POSSESSIVE = "RE2 has no possessive repetition and needs none; leave the second '+' out"
_TOO_LARGE = "use smaller counts in braces, fewer alternatives, or fewer classes such as \\pL"

#: What to do next, by RE2's word for the error and by how the fragment that it names begins. The first that fits.
_HINTS: tuple[tuple[str, str, str], ...] = (
    ("invalid perl operator", r"\(\?<?[=!]", _LOOK_AROUND),
    ("invalid perl operator", r"\(\?P=", _BACKREFERENCE),
    ("invalid perl operator", r"\(\?>", "RE2 has no atomic groups and needs none; write (?:…)"),
    ("invalid perl operator", r"\(\?#", "RE2 has no comments"),
    ("invalid perl operator", r"\(\?[&0-9R+]", "RE2 has no recursion"),
    ("invalid perl operator", "", "groups are (…), (?:…) and (?P<name>…); flags are i, m, s and U, as in (?i) and (?i:…)"),
    ("invalid escape sequence", r"\\[1-9]", _BACKREFERENCE),
    ("invalid escape sequence", r"\\k", _BACKREFERENCE),
    ("invalid escape sequence", r"\\Z", "write \\z, or $, for the end of the text"),
    ("invalid escape sequence", r"\\[uUNx]", "write a character by its number as \\x41 or \\x{1F600}"),
    ("invalid escape sequence", r"\\E", "\\E ends what \\Q began, and nothing was begun"),
    ("invalid escape sequence", "", "a backslash and a letter must mean something to RE2; write \\\\ for the backslash itself"),
    ("bad repetition operator", r".*\+$", _POSSESSIVE),
    ("bad repetition operator", "", "to repeat what is repeated, put it into a group: (?:…)*"),
    ("no argument for repetition operator", "", "put a backslash before it if the character itself is meant"),
    ("invalid repetition size", "", "at most 1000 times, counts within counts multiplied, and the smaller number first"),
    ("missing )", "", "close this group with ), or write \\( for the character itself"),
    ("unexpected )", "", "nothing is open here; write \\) for the character itself"),
    ("missing ]", "", "close this class with ], or write \\[ for the character itself"),
    ("trailing \\", "", "write \\\\ for the backslash itself"),
    ("invalid character class range", r"\\[pP]", "classes of Unicode are written \\pL, \\p{Lu} or \\p{Greek}"),
    ("invalid character class range", r"\[:", "named classes are written [[:alpha:]]"),
    (
        "invalid character class range",
        "",
        "a range goes from the smaller to the larger character; a '-' of its own stands first or last",
    ),
    ("invalid named capture group", "", "write (?P<name>…) with letters, digits and '_'"),
    ("pattern too large", "", _TOO_LARGE),
)


@dataclass(frozen=True, slots=True)
class RegexQuery:
    """A pattern that RE2 has compiled."""

    pattern: str
    clue: Clue
    _compiled: Any = field(repr=False, compare=False)

    @property
    def language(self) -> str:
        return "regex"

    @property
    def instructions(self) -> int:
        """How large it is, compiled."""
        return int(self._compiled.programsize)

    def matches(self, subject: Subject) -> bool:
        return self.stands_in(descriptors.searchable(subject.descriptor).encode())

    def stands_in(self, searchable: bytes) -> bool:
        """Whether it is found in a descriptor's text, for who has that at hand."""
        # As bytes: of a text RE2's binding would count the characters before the match, which nobody asks for.
        return self._compiled.search(searchable) is not None


def compile_regex(text: str) -> RegexQuery:
    """The query, or QueryError with its position and a hint."""
    require_length("regex", text, MAX_PATTERN_CHARACTERS)
    if not text:
        raise QueryError("the regular expression is empty", hint="write . to find every topic whose descriptor has any text")
    try:
        compiled = _compile(text)
    except UnicodeEncodeError as error:
        raise QueryError("the regular expression has half of a surrogate pair", position=error.start) from None
    except re2.error as error:
        _refuse(text, error)
    try:
        reading = read(text)
    except NotUnderstood:
        clue: Clue = Anything()
        _require("instructions", compiled.programsize, MAX_INSTRUCTIONS_UNREAD)
    else:
        clue = reading.clue
        _require("instructions", compiled.programsize, MAX_INSTRUCTIONS)
        _require("assertions", reading.assertions, MAX_ASSERTIONS)
    _require("states", sum(compiled.programfanout), MAX_STATES)
    return RegexQuery(text, clue, compiled)


def _compile(text: str) -> Any:
    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.log_errors = False
    # Without groups to report, RE2 stays with its automaton. A million topics notice.
    options.never_capture = True
    return re2.compile(text.encode(), options)


def _require(what: str, count: int, most: int) -> None:
    if count > most:
        raise QueryError(
            f"the regular expression is too large: it compiles to {count} {what}, at most {most} are allowed", hint=_TOO_LARGE
        )


def _refuse(text: str, error: re2.error) -> NoReturn:
    message, fragment = _complaint(error)
    position = _position(text, message, fragment)
    # Of a group RE2 names no more than its beginning.
    about = text[position:] if position is not None and message == "invalid perl operator" else fragment
    hint = next((hint for word, begin, hint in _HINTS if message.startswith(word) and re.match(begin, about)), None)
    # Quoted, because it may hold control characters, but with backslashes as the asker wrote them.
    quoted = "" if fragment in ("", text) else " " + repr(fragment[:40]).replace("\\\\", "\\")
    raise QueryError(f"the regular expression has an error: {message}{quoted}", position=position, hint=hint) from None


def _complaint(error: re2.error) -> tuple[str, str]:
    """RE2's word for the error, and the fragment of the pattern that it names."""
    text = error.args[0] if error.args else b""
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    message, _, fragment = said.partition(": ")
    return message, fragment


def _position(text: str, message: str, fragment: str) -> int | None:
    if message.startswith(("missing )", "unexpected )")):
        return _unpaired(text)
    if message.startswith("trailing"):
        return len(text) - 1
    if message.startswith("missing ]"):
        return len(text) - len(fragment)
    if not fragment or fragment not in text:
        return None
    # The same characters may stand earlier and be right there. RE2 reads from the left: it is the first place at which it stops so.
    at = first = text.index(fragment)
    for _ in range(_TRIED_POSITIONS):
        try:
            _compile(text[: at + len(fragment)])
        except re2.error as error:
            if _complaint(error) == (message, fragment):
                return at
        at = text.find(fragment, at + 1)
        if at < 0:
            break
    return first


def _unpaired(text: str) -> int | None:
    """The parenthesis that has no partner: one that closes nothing, or else the last that is still open."""
    opened: list[int] = []
    for token in _PARENTHESES.finditer(text):
        if token[1] == "(":
            opened.append(token.start())
        elif token[1] == ")":
            if not opened:
                return token.start()
            opened.pop()
    return opened[-1] if opened else None
