"""Plain strings: every word of the query stands somewhere in the topic's searchable text, whatever the case.

Words are separated by white space. The searchable text is the descriptor's (`descriptor.searchable`) and the synopsis, on lines of
their own. Case is folded as Unicode says (`Straße` finds `STRASSE`), after composing characters (NFC).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import QueryError
from tdn.protocol import descriptor as descriptors

#: Longest query. Far beyond what a person types; bounds the work of folding it.
MAX_QUERY_CHARACTERS = 4096
#: Most words. Each is a search of its own in every candidate.
MAX_WORDS = 32


@dataclass(frozen=True, slots=True)
class StringQuery:
    #: Folded, each to be found.
    words: tuple[str, ...]

    def matches(self, folded: str) -> bool:
        return all(word in folded for word in self.words)


def compile_string(text: str) -> StringQuery:
    if len(text) > MAX_QUERY_CHARACTERS:
        raise QueryError(f"the query has {len(text)} characters; at most {MAX_QUERY_CHARACTERS} are allowed")
    words = tuple(dict.fromkeys(fold(text).split()))
    if not words:
        raise QueryError("the query is empty; give at least one word")
    if len(words) > MAX_WORDS:
        raise QueryError(f"the query has {len(words)} words; at most {MAX_WORDS} are allowed")
    return StringQuery(words)


def fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def searchable_text(descriptor: Mapping[str, Any], synopsis: str) -> str:
    """What a plain string is looked for in."""
    return f"{descriptors.searchable(descriptor)}\n{synopsis}"
