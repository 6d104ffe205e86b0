"""What every match of a regular expression must contain: the clue of a pattern that RE2 has accepted.

A small reader of RE2's syntax that errs to one side only. What it is not sure of counts as "any text"; so a clue may say too little,
and never too much. Work and result are bounded whatever the pattern: depth, length of literals, number of alternatives.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tdn.queries.model import AllOf, AnyOf, Anything, Clue, all_of, any_of, contains_literal

#: Deepest group that is read. The reader recurses; RE2 itself takes a thousand and more.
MAX_GROUP_DEPTH = 100
#: Longest literal that is followed. A longer one says no more to an index.
MAX_LITERAL_CHARACTERS = 128
#: Most literals that must all stand in the text. The longest are kept: they are the rarest.
MAX_LITERALS = 8
#: Most texts in one clue. A pattern with thousands of alternatives would be thousands of searches in an index.
MAX_CLUE_TEXTS = 64

_REPETITION = re.compile(r"\{(0|[1-9][0-9]{0,8})(,(0|[1-9][0-9]{0,8})?)?\}")
_GROUP = re.compile(r"\(\?(?:P?<[^>]*>|([imsU]*)(-[imsU]+)?([:)]))")
_UNICODE_CLASS = re.compile(r"\\[pP](?:\{[^}]*\}|[^{])", re.DOTALL)
_NAMED_CLASS = re.compile(rf"\[:\^?[a-z]+:\]|\\[dDsSwW]|{_UNICODE_CLASS.pattern}", re.DOTALL)
_OCTAL = re.compile(r"[0-7]{1,3}")
_HEXADECIMAL = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PUNCTUATION = frozenset(map(chr, range(128))) - frozenset(string.ascii_letters + string.digits)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the reader makes of a pattern."""

    clue: Clue
    #: How many assertions (`^ $ \\b \\B \\A \\z`) there are when counted repetitions are written out.
    assertions: int


class NotUnderstood(Exception):
    """The pattern is nested too deep, or is none that RE2 accepts. Never leaves `tdn.queries`."""


def read(pattern: str) -> Reading:
    """Read a pattern that RE2 has accepted, or raise NotUnderstood."""
    reader = _Reader(pattern)
    part = reader.alternatives(depth=0)
    if reader.at != len(pattern):
        raise NotUnderstood
    return Reading(part.whole(), part.assertions)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of the text that a piece of the pattern matches, as it is written or in another case."""

    #: All of the text, where there is only one.
    exact: str | None
    #: How the text begins and ends, and what else it contains. Of no use beside `exact`.
    prefix: str = ""
    suffix: str = ""
    inside: tuple[Clue, ...] = ()
    assertions: int = 0

    def begin(self) -> str:
        return self.prefix if self.exact is None else self.exact

    def end(self) -> str:
        return self.suffix if self.exact is None else self.exact

    def whole(self) -> Clue:
        if self.exact is not None:
            return contains_literal(self.exact)
        return all_of(*_chosen([contains_literal(self.prefix), *self.inside, contains_literal(self.suffix)]))


_UNKNOWN = _Part(None)
_EMPTY = _Part("")
_ASSERTION = _Part("", assertions=1)


class _Reader:
    """Recursive descent. `at` is the next character; `ignore_case` is RE2's flag `i` at this place."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.ignore_case = False

    def alternatives(self, depth: int) -> _Part:
        """Up to the group's closing parenthesis, or the end."""
        if depth > MAX_GROUP_DEPTH:
            raise NotUnderstood
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else _either(branches)

    def _sequence(self, depth: int) -> _Part:
        # Flags alone, `(?i)`, and an empty `\Q\E` leave no item: a repetition after them belongs to the item before, as in RE2.
        items: list[_Part] = []
        while (character := self._peek()) and character not in "|)":
            if character == "(":
                items.extend(self._group(depth))
            elif character == "[":
                items.append(self._class())
            elif character == "\\":
                items.extend(self._escape())
            elif character == ".":
                self.at += 1
                items.append(_UNKNOWN)
            elif character in "^$":
                self.at += 1
                items.append(_ASSERTION)
            elif (repetition := self._repetition()) is not None:
                if not items:
                    raise NotUnderstood
                items[-1] = _repeat(items[-1], *repetition)
            else:
                self.at += 1
                items.append(self._literal([character]))
        return _join(items)

    def _group(self, depth: int) -> list[_Part]:
        before = self.ignore_case
        opened = _GROUP.match(self.pattern, self.at)
        if opened is None:
            if self.pattern.startswith("(?", self.at):
                raise NotUnderstood
            self.at += 1
        else:
            self.at = opened.end()
            if "i" in (opened[1] or ""):
                self.ignore_case = True
            if "i" in (opened[2] or ""):
                self.ignore_case = False
            if opened[3] == ")":
                # Flags alone count until the end of the group around them, in its later alternatives too.
                return []
        part = self.alternatives(depth + 1)
        if not self._take(")"):
            raise NotUnderstood
        self.ignore_case = before
        return [part]

    def _repetition(self) -> tuple[int, int | None] | None:
        """The least and most times, and past an unwilling `?`; None where a brace is only a brace."""
        character = self.pattern[self.at]
        counted = _REPETITION.match(self.pattern, self.at) if character == "{" else None
        if counted is not None:
            self.at = counted.end()
            least = int(counted[1])
            most = least if counted[2] is None else int(counted[3]) if counted[3] else None
        elif character in "*+?":
            self.at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        else:
            return None
        self._take("?")
        return least, most

    def _escape(self) -> list[_Part]:
        following = self.pattern[self.at + 1 : self.at + 2]
        if following == "Q":
            quoted, ended, _ = self.pattern[self.at + 2 :].partition(r"\E")
            self.at += 2 + len(quoted) + len(ended)
            return [self._literal([character]) for character in quoted]
        if following and following in "bBAz":
            self.at += 2
            return [_ASSERTION]
        if following and following in "dDsSwWC":
            self.at += 2
            return [_UNKNOWN]
        if unicode_class := _UNICODE_CLASS.match(self.pattern, self.at):
            self.at = unicode_class.end()
            return [_UNKNOWN]
        return [self._literal([self._escaped_character()])]

    def _escaped_character(self) -> str:
        """After a backslash: a character by its number, a control character, or punctuation that stands for itself."""
        self.at += 1
        if number := _OCTAL.match(self.pattern, self.at):
            self.at = number.end()
            return chr(int(number[0], 8))
        if number := _HEXADECIMAL.match(self.pattern, self.at):
            self.at = number.end()
            value = int(number[1] or number[2], 16)
            if value > sys.maxunicode:
                raise NotUnderstood
            return chr(value)
        character = self._peek()
        self.at += 1
        if character in _CONTROL:
            return _CONTROL[character]
        if character in _PUNCTUATION:
            return character
        raise NotUnderstood

    def _class(self) -> _Part:
        self.at += 1
        negated = self._take("^")
        members: list[str] = []
        simple, first = not negated, True
        while first or self._peek() != "]":
            first = False
            if not self._peek():
                raise NotUnderstood
            if special := _NAMED_CLASS.match(self.pattern, self.at):
                self.at = special.end()
                simple = False
            else:
                members.append(self._class_character())
                if self._peek() == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
                    self.at += 1
                    members.append(self._class_character())
                    simple = simple and members[-2] == members[-1]
        self.at += 1
        return self._literal(members) if simple else _UNKNOWN

    def _class_character(self) -> str:
        if self._peek() == "\\":
            return self._escaped_character()
        self.at += 1
        return self.pattern[self.at - 1 : self.at]

    def _literal(self, members: list[str]) -> _Part:
        """One character, or one of a few that are all the same in another case (`[Oo]`)."""
        if len({member.casefold() for member in members}) != 1:
            return _UNKNOWN
        # `\x{D800}` is accepted by RE2 and stands in no text; an index could not even be asked for it.
        if any("\ud800" <= member <= "\udfff" for member in members):
            return _UNKNOWN
        # Ignoring case, RE2 knows pairs (µ and μ, ẞ and ß) that need not fold alike. For ASCII they do; a test tries all of Unicode.
        if self.ignore_case and not members[0].isascii():
            return _UNKNOWN
        return _Part(members[0])

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self.at += 1
        return True


def _join(items: Iterable[_Part]) -> _Part:
    """One after the other: literals that touch become one."""
    assertions = 0
    inside: list[Clue] = []
    prefix: str | None = None
    run: list[str] = []
    for item in items:
        assertions += item.assertions
        if item.exact is not None:
            run.append(item.exact)
            continue
        touching = "".join([*run, item.prefix])
        if prefix is None:
            prefix = touching
        else:
            inside.append(contains_literal(touching[:MAX_LITERAL_CHARACTERS]))
        inside.extend(item.inside)
        run = [item.suffix]
    last = "".join(run)
    if prefix is None:
        return _bounded(last, last, exact=True, inside=(), assertions=assertions)
    return _bounded(prefix, last, exact=False, inside=_chosen(inside), assertions=assertions)


def _either(branches: list[_Part]) -> _Part:
    """One of them. What they share at the beginning and at the end still touches what stands beside them."""
    return _bounded(
        _shared([branch.begin() for branch in branches]),
        _shared([branch.end()[::-1] for branch in branches])[::-1],
        exact=False,
        inside=_chosen([any_of(*(branch.whole() for branch in branches))]),
        assertions=sum(branch.assertions for branch in branches),
    )


def _shared(texts: list[str]) -> str:
    """What all of them begin with."""
    # Only the least and the greatest can differ early: all others stand between them.
    least, greatest = min(texts), max(texts)
    length = next((at for at, (one, other) in enumerate(zip(least, greatest, strict=False)) if one != other), len(least))
    return least[:length]


def _repeat(part: _Part, least: int, most: int | None) -> _Part:
    assertions = part.assertions * max(1, least if most is None else most)
    if least == 0:
        return _Part(None, assertions=assertions)
    if part.exact is None:
        return _Part(None, part.prefix, part.suffix, part.inside, assertions)
    text = part.exact * min(least, MAX_LITERAL_CHARACTERS + 1)
    return _bounded(text, text, exact=most == least, inside=(), assertions=assertions)


def _bounded(begin: str, end: str, *, exact: bool, inside: tuple[Clue, ...], assertions: int) -> _Part:
    """A part whose text begins and ends so; all of it if exact. Texts that are too long are cut, and then are not all of it."""
    if exact and len(begin) <= MAX_LITERAL_CHARACTERS:
        return _Part(begin, assertions=assertions)
    return _Part(None, begin[:MAX_LITERAL_CHARACTERS], end[-MAX_LITERAL_CHARACTERS:], inside, assertions)


def _chosen(clues: Iterable[Clue]) -> tuple[Clue, ...]:
    """A few of the clues that hold together: those that say most. Leaving one out only makes the whole say less."""
    useful = dict.fromkeys(clue for clue in clues if not isinstance(clue, Anything) and _texts(clue) <= MAX_CLUE_TEXTS)
    chosen: list[Clue] = []
    texts = 0
    for clue in sorted(useful, key=_shortest, reverse=True)[:MAX_LITERALS]:
        texts += _texts(clue)
        if texts > MAX_CLUE_TEXTS:
            break
        chosen.append(clue)
    return tuple(chosen)


def _texts(clue: Clue) -> int:
    return sum(map(_texts, clue.clues)) if isinstance(clue, AllOf | AnyOf) else 1


def _shortest(clue: Clue) -> int:
    """How long a text this clue asks for at least. The longer, the fewer topics have it."""
    if isinstance(clue, AllOf):
        return max(map(_shortest, clue.clues))
    if isinstance(clue, AnyOf):
        return min(map(_shortest, clue.clues))
    return len(getattr(clue, "text", ""))
