"""Plain strings: every word of the query stands somewhere in the topic's searchable text, whatever the case.

Words are separated by white space. The searchable text is the descriptor's (`descriptor.searchable`) and the synopsis, on lines of
their own. Case is folded as Unicode says (`Straße` finds `STRASSE`), after composing characters (NFC).
"""

from __future__ import annotations

from dataclasses import dataclass

from tdn.errors import QueryError
from tdn.protocol import descriptor as descriptors
from tdn.queries.model import Clue, Subject, all_of, contains_folded, fold, require_length

#: Longest query. Far beyond what a person types; bounds the work of folding it.
MAX_QUERY_CHARACTERS = 4096
#: Most words. Each is a search of its own in every candidate.
MAX_WORDS = 32


@dataclass(frozen=True, slots=True)
class StringQuery:
    #: Folded, each to be found.
    words: tuple[str, ...]

    @property
    def language(self) -> str:
        return "string"

    @property
    def clue(self) -> Clue:
        return all_of(*map(contains_folded, self.words))

    def matches(self, subject: Subject) -> bool:
        return self.stands_in(fold(f"{descriptors.searchable(subject.descriptor)}\n{subject.synopsis}"))

    def stands_in(self, folded: str) -> bool:
        """Whether it is found in a topic's folded text, for who has that at hand."""
        return all(word in folded for word in self.words)


def compile_string(text: str) -> StringQuery:
    require_length("string", text, MAX_QUERY_CHARACTERS)
    if "\0" in text:
        raise QueryError("the query has a NUL character", position=text.index("\0"), hint="leave it out; it separates no words")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryError("the query has half of a surrogate pair", position=error.start) from None
    words = tuple(dict.fromkeys(fold(text).split()))
    if not words:
        raise QueryError("the query is empty; give at least one word")
    if len(words) > MAX_WORDS:
        raise QueryError(f"the query has {len(words)} words; at most {MAX_WORDS} are allowed")
    return StringQuery(words)
