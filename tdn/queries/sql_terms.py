"""An SQL predicate divided into terms of one property or field each, for whoever asks it of many topics at once.

A term is evaluated by the query's own definition (`sql`), once for each different value instead of once for each topic; what joins terms (AND, OR, NOT,
IS TRUE, IS FALSE) is three-valued logic that any engine of arrays has. A predicate in which a term needs two properties at once cannot be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tdn.queries import sql_syntax as syntax
from tdn.queries.model import Subject
from tdn.queries.sql import SqlQuery, evaluation


@dataclass(frozen=True, slots=True)
class Column:
    """What a term looks at."""

    name: str
    is_property: bool


@dataclass(frozen=True, slots=True)
class Term:
    """A predicate over one column; over none, if it is a constant."""

    column: Column | None
    _evaluate: Callable[[Subject], Any]

    def truth(self, value: Any, kind: str = "") -> bool | None:
        """TRUE, FALSE or NULL for one value of the column; None: the topic has none. `kind` is a property's type."""
        found = self._evaluate(_subject(self.column, value, kind))
        return found if type(found) is bool else None


@dataclass(frozen=True, slots=True)
class Both:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Inverse:
    part: Part


@dataclass(frozen=True, slots=True)
class Is:
    part: Part
    wanted: bool


Part: TypeAlias = Term | Both | Either | Inverse | Is


def divided(query: SqlQuery) -> Part | None:
    """The query as terms and what joins them; None where it cannot be divided."""
    return _divided(query.tree)


def terms(part: Part) -> Iterator[Term]:
    """The terms of a divided query."""
    if isinstance(part, Term):
        yield part
    elif isinstance(part, Both | Either):
        for one in part.parts:
            yield from terms(one)
    else:
        yield from terms(part.part)


def _divided(node: syntax.Expression) -> Part | None:
    if isinstance(node, syntax.Both | syntax.Either):
        parts = [_divided(term) for term in node.terms]
        whole = tuple(part for part in parts if part is not None)
        if len(whole) < len(parts):
            return None
        return Both(whole) if isinstance(node, syntax.Both) else Either(whole)
    if isinstance(node, syntax.Inverse):
        part = _divided(node.operand)
        return None if part is None else Inverse(part)
    if isinstance(node, syntax.Is) and node.wanted is not None:
        part = _divided(node.operand)
        return None if part is None else Is(part, node.wanted)
    columns = set(_columns(node))
    return Term(next(iter(columns), None), evaluation(node)) if len(columns) <= 1 else None


def _columns(node: syntax.Expression) -> Iterator[Column]:
    if isinstance(node, syntax.Property | syntax.Field):
        yield Column(node.name, isinstance(node, syntax.Property))
    for below in syntax.operands(node):
        yield from _columns(below)


def _subject(column: Column | None, value: Any, kind: str) -> Subject:
    """A topic that has this value and nothing else."""
    if column is None or value is None:
        return _NOTHING
    if column.is_property:
        return Subject("", "topic", "", "", "", "", "", {"kind": "properties", "properties": {column.name: value}, "types": {column.name: kind}}, "")
    if column.name in ("path", "text"):
        return replace(_NOTHING, descriptor={"kind": column.name, column.name: value})
    return replace(_NOTHING, **({"descriptor": {"kind": value}} if column.name == "descriptor_kind" else {column.name: value}))


_NOTHING = Subject("", "topic", "", "", "", "", "", {"kind": ""}, "")
