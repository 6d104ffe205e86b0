"""What all query languages share: the topic as a query sees it, the compiled query, and the *clue* that lets an index help.

A clue is a condition that every matching topic fulfils, in terms that an index can look up: a text that stands in the topic's indexed text,
a value in a range. It says nothing about topics that do not match, so whoever uses one still asks `Query.matches`, which has the last
word. The promise `query.matches(topic) implies holds(query.clue, topic)` is what tests check; an index can then never change an answer.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from tdn.errors import QueryError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import xmltext
from tdn.protocol.times import parse_time

#: Longest query in any language. Bounds what a compiler is given before it has looked at anything.
MAX_QUERY_CHARACTERS = 16_384
#: Shortest text that the index of trigrams can look for.
SHORTEST_CLUE = 3

#: Properties in an index are told apart by family as well as by name: values of two families never equal each other.
NUMBER, STRING, BOOLEAN, TIMESTAMP = "n:", "s:", "b:", "t:"
#: Fields of the system that an index knows, written like a family of their own.
FIELD = "@"
INDEXED_FIELDS = frozenset({"uuid", "creator", "owner", "institution", "created", "expires"})

Scalar: TypeAlias = str | int | float

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic as queries see it. Times are RFC 3339 in whole seconds of UTC; owner and expires are the present ones (T39)."""

    uuid: str
    kind: str
    creator: str
    owner: str
    institution: str
    created: str
    expires: str
    descriptor: Mapping[str, Any]
    synopsis: str


class Query(Protocol):
    """A compiled query. Immutable; `matches` has no effect and gives the same answer for the same topic every time."""

    @property
    def language(self) -> str: ...

    @property
    def clue(self) -> Clue: ...

    def matches(self, subject: Subject) -> bool: ...


@dataclass(frozen=True, slots=True)
class Anything:
    """No clue: every topic may match."""


@dataclass(frozen=True, slots=True)
class Contains:
    """`indexed_text` of the topic contains this text. Made by `contains_folded` or `contains_literal`."""

    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """The topic has a value under `key` (family and property name, or `@` and a field) from low to high, both included. None: no bound."""

    key: str
    low: Scalar | None
    high: Scalar | None


@dataclass(frozen=True, slots=True)
class AllOf:
    clues: tuple[Clue, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    clues: tuple[Clue, ...]


Clue: TypeAlias = Anything | Contains | Value | AllOf | AnyOf


def all_of(*clues: Clue) -> Clue:
    """Every one of them holds."""
    useful = tuple(dict.fromkeys(clue for clue in clues if not isinstance(clue, Anything)))
    if len(useful) <= 1:
        return useful[0] if useful else Anything()
    return AllOf(useful)


def any_of(*clues: Clue) -> Clue:
    """At least one of them holds. With one that is no clue, or with none at all, nothing is known."""
    if not clues or any(isinstance(clue, Anything) for clue in clues):
        return Anything()
    different = tuple(dict.fromkeys(clues))
    return different[0] if len(different) == 1 else AnyOf(different)


def contains_folded(word: str) -> Clue:
    """For a word that was folded with `fold`, looked for in folded text."""
    return _contains(word)


def contains_literal(literal: str) -> Clue:
    """For text that must stand literally, in this very case or in any, in what the descriptor says: a literal of a regular expression, an XPath."""
    return _contains(literal.casefold())


def _contains(text: str) -> Clue:
    text = _without_nul(text)
    return Contains(text) if len(text) >= SHORTEST_CLUE else Anything()


def fold(text: str) -> str:
    """How plain strings ignore case: characters composed (NFC), then case folded as Unicode says."""
    return unicodedata.normalize("NFC", text).casefold()


def indexed_text(descriptor: Mapping[str, Any], synopsis: str) -> str:
    """What `Contains` looks in. Nothing but an index ever sees it; a sealed topic has none.

    It holds the text that plain strings see, folded; the same without composing characters, where that differs, for literals; and of
    XML, whose literals may be written with references there (`&#65;`), what an XML parser makes of it: `<name>` for each element,
    `@name=value` for each attribute (names without prefix), the string value of the whole document, comments and processing instructions.
    """
    if descriptor["kind"] == "sealed":
        return ""
    raw = f"{descriptors.searchable(descriptor)}\n{synopsis}"
    plain = raw.casefold()
    parts = [plain]
    if not unicodedata.is_normalized("NFC", raw) and (folded := fold(raw)) != plain:
        parts = [folded, plain]
    if descriptor["kind"] == "xml":
        parts.append("\n".join(xmltext.terms(descriptor["xml"])).casefold())
    return _without_nul("\n".join(parts))


def indexed_values(descriptor: Mapping[str, Any]) -> Iterator[tuple[str, Scalar]]:
    """The (key, value) pairs of a descriptor's properties, as `Value` names them."""
    if descriptor["kind"] != "properties":
        return
    for name, value in descriptor["properties"].items():
        kind = descriptor["types"][name]
        if kind == "boolean":
            yield BOOLEAN + name, int(value)
        elif kind == "timestamp":
            yield TIMESTAMP + name, microseconds(parse_time(value))
        else:
            yield (STRING if kind == "string" else NUMBER) + name, value


def microseconds(moment: datetime) -> int:
    """A moment as the index of timestamps holds it: exact, and in the order of time (their texts are not, some having fractions)."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def holds(clue: Clue, subject: Subject) -> bool:
    """What a clue means. Indexes only come to the same result faster."""
    if isinstance(clue, Contains):
        return clue.text in indexed_text(subject.descriptor, subject.synopsis)
    if isinstance(clue, Value):
        return any(_within(value, clue) for key, value in _values(subject) if key == clue.key)
    if isinstance(clue, AllOf):
        return all(holds(part, subject) for part in clue.clues)
    if isinstance(clue, AnyOf):
        return any(holds(part, subject) for part in clue.clues)
    return True


def finds(query: Query, subject: Subject) -> bool:
    """Whether a query finds a topic. A sealed descriptor is found by none, until who holds its key has opened it (T9)."""
    return subject.descriptor["kind"] != "sealed" and query.matches(subject)


def require_length(language: str, text: str, most: int = MAX_QUERY_CHARACTERS) -> None:
    if len(text) > most:
        raise QueryError(f"the {language} query has {len(text)} characters; at most {most} are allowed")


def _values(subject: Subject) -> Iterator[tuple[str, Scalar]]:
    yield from indexed_values(subject.descriptor)
    for field in INDEXED_FIELDS:
        yield FIELD + field, getattr(subject, field)


def _within(value: Any, clue: Value) -> bool:
    return (clue.low is None or value >= clue.low) and (clue.high is None or value <= clue.high)


def _without_nul(text: str) -> str:
    # SQLite's tokenizer ends at a NUL, and would not know what follows it.
    return text.replace("\0", "\ufffd")
