"""matches(), replace() and tokenize() for XPath, in RE2's dialect: time in proportion to the text, whatever the pattern.

elementpath would run them with Python's `re`, which one pattern of ten characters can keep busy for ever. The dialect is that of the
regex language (docs/queries/regex.md), so one knowledge serves both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2
from elementpath.xpath31 import XPath31Parser

#: Longest pattern, in characters, and most memory of one compiled pattern.
_MAX_PATTERN = 1000
_MAX_BYTES = 4 << 20

_Matches: Any = XPath31Parser.symbol_table["matches"]
_Replace: Any = XPath31Parser.symbol_table["replace"]
_Tokenize: Any = XPath31Parser.symbol_table["tokenize"]


class Matches(_Matches):  # type: ignore[misc]
    def evaluate(self, context: Any = None) -> bool:
        context = self.context if self.context is not None else context
        text = self.get_argument(context, default="", cls=str)
        return _pattern(self, context, 1).search(text) is not None


class Replace(_Replace):  # type: ignore[misc]
    def evaluate(self, context: Any = None) -> str:
        context = self.context if self.context is not None else context
        text = self.get_argument(context, default="", cls=str)
        pattern = _pattern(self, context, 1, flags=3, empty_allowed=False)
        replacement = self.get_argument(context, 2, required=True, cls=str)
        literal = len(self) > 3 and "q" in self.get_argument(context, 3, required=True, cls=str)
        parts = [replacement] if literal else _parts(self, replacement, pattern.groups)
        return str(pattern.sub(lambda found: "".join(p if isinstance(p, str) else found.group(p) or "" for p in parts), text))


class Tokenize(_Tokenize):  # type: ignore[misc]
    def evaluate(self, context: Any = None) -> list[str]:
        context = self.context if self.context is not None else context
        text = self.get_argument(context, cls=str)
        if not text:
            return []
        if len(self) == 1:
            return [word for word in text.replace("\t", " ").replace("\n", " ").replace("\r", " ").split(" ") if word]
        pattern = _pattern(self, context, 1, empty_allowed=False)
        words, at = [], 0
        for found in pattern.finditer(text):
            words.append(text[at : found.start()])
            at = found.end()
        return [*words, text[at:]]


def _pattern(token: Any, context: Any, index: int, *, flags: int = 2, empty_allowed: bool = True) -> Any:
    source = token.get_argument(context, index, required=True, cls=str)
    letters = token.get_argument(context, flags, required=True, cls=str) if len(token) > flags else ""
    if not set(letters) <= set("smiq"):
        raise token.error("FORX0001", f"the flags are s, m, i and q, not {letters[:20]!r}")
    if len(source) > _MAX_PATTERN:
        raise token.error("FORX0002", f"a pattern of more than {_MAX_PATTERN} characters")
    try:
        pattern = _compile(source, "".join(sorted(set(letters))))
    except re2.error as error:
        raise token.error("FORX0002", f"not a regular expression of RE2: {error}") from None
    if not empty_allowed and pattern.search("") is not None:
        raise token.error("FORX0003", "the pattern matches nothing at all")
    return pattern


@lru_cache(maxsize=64)
def _compile(source: str, letters: str) -> Any:
    options = re2.Options()
    options.max_mem = _MAX_BYTES
    options.log_errors = False
    if "q" in letters:
        options.literal = True
    if "i" in letters:
        options.case_sensitive = False
    inner = "".join(letter for letter in "sm" if letter in letters)
    return re2.compile(f"(?{inner}:{source})" if inner and "q" not in letters else source, options)


def _parts(token: Any, replacement: str, groups: int) -> list[str | int]:
    r"""A replacement as text and numbers of groups: `$1`, `\$` and `\\` mean what XPath says."""
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        sign, following = replacement[at], replacement[at + 1 : at + 2]
        if sign == "\\":
            if following not in ("\\", "$"):
                raise token.error("FORX0004", "in a replacement '\\' stands before '\\' or '$'")
            parts.append(following)
            at += 2
        elif sign == "$":
            if not (following.isascii() and following.isdigit()):
                raise token.error("FORX0004", "in a replacement '$' stands before a number")
            at += 1
            number = int(following)
            at += 1
            # As many digits as make the number of a group; one that does not exist stands for nothing.
            while (
                replacement[at : at + 1].isascii()
                and replacement[at : at + 1].isdigit()
                and number * 10 + int(replacement[at]) <= groups
            ):
                number = number * 10 + int(replacement[at])
                at += 1
            if number <= groups:
                parts.append(number)
        else:
            parts.append(sign)
            at += 1
    return parts
