"""What an index can know about the topics that an SQL predicate finds: `necessary(predicate) -> Clue`.

A clue is followed down to where a sub-predicate must be TRUE, or, below a NOT, FALSE; NULL is neither, so both say that the values were there and
of families that compare. What a value can be is kept as one range for each family: a string and a time compare when the string reads
as a time, so a property that is compared with one may be the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from tdn.protocol.times import format_time, whole_seconds
from tdn.queries import sql_syntax as syntax
from tdn.queries.model import (
    BOOLEAN,
    FIELD,
    INDEXED_FIELDS,
    NUMBER,
    STRING,
    TIMESTAMP,
    AllOf,
    AnyOf,
    Anything,
    Clue,
    Scalar,
    Value,
    all_of,
    any_of,
    contains_literal,
    microseconds,
)
from tdn.queries.sql_tokens import Constant
from tdn.queries.sql_values import MIRRORED, OPPOSITE, Piece, moment, pieces

#: Most values and texts in one clue. An index looks each of them up; a list of 400 UUIDs, which a query has room for, is still looked up.
MAX_PARTS = 500
#: Most texts from one pattern, the longest, and the most characters of each. More would not exclude more topics.
MAX_TEXTS = 4
MAX_TEXT_CHARACTERS = 100
#: From here on two integers can be the same float.
_EXACT_FLOATS = 2**53
#: Fields that stand in the indexed text.
_TEXT_FIELDS = frozenset({"path", "text", "synopsis"})
_TIME_FIELDS = frozenset({"created", "expires"})
#: `upper` makes an I of a dotless ı, which folds to itself and not to i. No other character folds otherwise after `lower` or `upper`.
_NOT_FOLDED_ALIKE = "I"

_Range: TypeAlias = tuple[Scalar | None, Scalar | None]


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The one value of a property or field is under one of these keys, in its range. `name` tells properties and fields apart."""

    name: str
    by_key: dict[str, _Range]


#: None: it cannot be.
_Known: TypeAlias = Clue | _Ranges | None


def necessary(predicate: syntax.Expression) -> Clue:
    """A condition that every topic fulfils for which the predicate is TRUE. One that is never TRUE gives no clue."""
    known = _known(predicate, True)
    return Anything() if known is None else _clue(known)


def _known(node: syntax.Expression, wanted: bool) -> _Known:
    """What holds where the predicate is TRUE, or, if that is wanted, FALSE."""
    if isinstance(node, syntax.Both):
        return (_all if wanted else _any)([_known(term, wanted) for term in node.terms])
    if isinstance(node, syntax.Either):
        return (_any if wanted else _all)([_known(term, wanted) for term in node.terms])
    if isinstance(node, syntax.Inverse):
        return _known(node.operand, not wanted)
    if isinstance(node, syntax.Comparison):
        operator = node.operator if wanted else OPPOSITE[node.operator]
        if isinstance(node.left, syntax.Literal):
            return _compared(MIRRORED[operator], node.right, node.left)
        return _compared(operator, node.left, node.right)
    if isinstance(node, syntax.Among):
        compared = [_compared("=" if wanted else "<>", node.operand, item) for item in node.items]
        return _any(compared) if wanted else _all(compared)
    if isinstance(node, syntax.Within):
        if wanted:
            return _all([_compared(">=", node.operand, node.low), _compared("<=", node.operand, node.high)])
        return _any([_compared("<", node.operand, node.low), _compared(">", node.operand, node.high)])
    if isinstance(node, syntax.Alike):
        return _alike(node) if wanted else _unlike(node.operand)
    if isinstance(node, syntax.Is):
        return _is(node, wanted)
    if isinstance(node, syntax.Property):
        return _Ranges(node.name, {BOOLEAN + node.name: (int(wanted), int(wanted))})
    return Anything()


def _is(node: syntax.Is, wanted: bool) -> _Known:
    if node.wanted is None:
        if not wanted and isinstance(node.operand, syntax.Property):
            return _Ranges(
                node.operand.name, {family + node.operand.name: (None, None) for family in (NUMBER, STRING, BOOLEAN, TIMESTAMP)}
            )
        return Anything()
    return _known(node.operand, node.wanted) if wanted else Anything()


def _compared(operator: str, operand: syntax.Expression, other: syntax.Expression) -> _Known:
    if not isinstance(other, syntax.Literal) or isinstance(operand, syntax.Literal):
        return Anything()
    value = other.value
    if value is None:
        return None
    if isinstance(operand, syntax.Property):
        return _Ranges(operand.name, _property_ranges(operator, operand.name, value))
    if isinstance(operand, syntax.Field) and operand.name in INDEXED_FIELDS:
        return _field_ranges(operator, operand.name, value)
    if operator == "=" and isinstance(value, str):
        return _text(operand, [(value, True)])
    return Anything()


def _property_ranges(operator: str, name: str, value: Constant) -> dict[str, _Range]:
    if isinstance(value, bool):
        return {BOOLEAN + name: _range(operator, int(value))}
    if isinstance(value, (int, float)):
        return {NUMBER + name: _number_range(operator, value)}
    if isinstance(value, datetime):
        # Strings compare with it too, by the time that they stand for, which may be written with another zone.
        return {TIMESTAMP + name: _range(operator, microseconds(value)), STRING + name: (None, None)}
    assert value is not None  # noqa: S101  # for mypy: NULL is left out by the caller
    ranges = {STRING + name: _range(operator, value)}
    time = moment(value)
    if time is not None:
        ranges[TIMESTAMP + name] = _range(operator, microseconds(time))
    return ranges


def _field_ranges(operator: str, name: str, value: Constant) -> _Known:
    if operator == "<>":
        return Anything()
    if name in _TIME_FIELDS:
        time = moment(value) if isinstance(value, str) else value if isinstance(value, datetime) else None
        if time is None:
            return None
        # What is indexed has whole seconds, so that the second in which a time falls bounds it on either side.
        return _Ranges(FIELD + name, {FIELD + name: _range(operator, format_time(whole_seconds(time)))})
    if isinstance(value, str):
        return _Ranges(FIELD + name, {FIELD + name: _range(operator, value)})
    return Anything() if isinstance(value, datetime) else None


def _range(operator: str, value: Scalar) -> _Range:
    """Bounds are included, also for < and >: a clue may say too much."""
    return (value if operator in ("=", ">", ">=") else None, value if operator in ("=", "<", "<=") else None)


def _number_range(operator: str, value: int | float) -> _Range:
    low, high = _range(operator, value)
    if abs(value) < _EXACT_FLOATS:
        return low, high
    # A property of type float may have been written as an integer, whose float is not exactly it. The next float is beyond any of those.
    below, above = math.nextafter(float(value), -math.inf), math.nextafter(float(value), math.inf)
    return (
        below if low is not None and math.isfinite(below) else None,
        above if high is not None and math.isfinite(above) else None,
    )


# --- texts ---


def _alike(node: syntax.Alike) -> _Known:
    operand = node.operand
    if not isinstance(node.pattern, syntax.Literal):
        return _unlike(operand)
    if not isinstance(node.pattern.value, str):
        return None
    parts = pieces(node.pattern.value, node.escape)
    runs = [run for index, piece in enumerate(parts) for run in _runs(piece, first=index == 0)]
    text = _text(operand, runs)
    start = runs[0][0] if runs and runs[0][1] else ""
    whole = len(parts) == 1 and len(start) == len(parts[0])
    bounds = (start, start if whole else _after_all_that_start_with(start)) if start or whole else (None, None)
    if isinstance(operand, syntax.Property) and (bounds != (None, None) or isinstance(text, Anything)):
        return _all([_Ranges(operand.name, {STRING + operand.name: bounds}), text])
    if isinstance(operand, syntax.Field) and operand.name in INDEXED_FIELDS - _TIME_FIELDS and bounds != (None, None):
        return _Ranges(FIELD + operand.name, {FIELD + operand.name: bounds})
    return text


def _unlike(operand: syntax.Expression) -> _Known:
    """LIKE of whatever pattern, TRUE or FALSE, is of a string."""
    return _Ranges(operand.name, {STRING + operand.name: (None, None)}) if isinstance(operand, syntax.Property) else Anything()


def _runs(piece: Piece, *, first: bool) -> list[tuple[str, bool]]:
    """The literal texts of a piece, and of each whether a string that matches must start with it."""
    runs: list[tuple[str, bool]] = []
    run: list[str] = []
    for offset, character in enumerate((*piece, None)):
        if character is not None:
            run.append(character)
        elif run:
            runs.append(("".join(run), first and offset == len(run)))
            run = []
    return runs


def _text(operand: syntax.Expression, runs: list[tuple[str, bool]]) -> Clue:
    """That these texts stand in a string, in terms of the indexed text, where the string is in it: folded, a property after its name."""
    apart = ""
    if isinstance(operand, syntax.Call) and operand.function in ("LOWER", "UPPER"):
        apart = _NOT_FOLDED_ALIKE if operand.function == "UPPER" else ""
        operand = operand.arguments[0]
    before = ""
    if isinstance(operand, syntax.Property):
        before = f"{operand.name}="
    elif not isinstance(operand, syntax.Field) or operand.name not in _TEXT_FIELDS:
        return Anything()
    texts = []
    for run, at_start in runs:
        for index, part in enumerate(run.split(apart) if apart else [run]):
            if part:
                texts.append(before + part if at_start and index == 0 else part)
    texts.sort(key=len, reverse=True)
    return all_of(*(contains_literal(text[:MAX_TEXT_CHARACTERS]) for text in texts[:MAX_TEXTS]))


def _after_all_that_start_with(start: str) -> str | None:
    """The first string after all those, by code point. Surrogates are no characters and are left out."""
    kept = start.rstrip("\U0010ffff")
    if not kept:
        return None
    return kept[:-1] + ("\ue000" if kept[-1] == "\ud7ff" else chr(ord(kept[-1]) + 1))


# --- together ---


def _all(parts: list[_Known]) -> _Known:
    ranges: dict[str, _Ranges] = {}
    clues: list[Clue] = []
    for part in parts:
        if part is None:
            return None
        if not isinstance(part, _Ranges):
            clues.append(part)
        elif part.name not in ranges:
            ranges[part.name] = part
        else:
            by_key = {
                key: (_largest(low, part.by_key[key][0]), _smallest(high, part.by_key[key][1]))
                for key, (low, high) in ranges[part.name].by_key.items()
                if key in part.by_key
            }
            if not by_key:
                return None
            ranges[part.name] = _Ranges(part.name, by_key)
    if len(ranges) == 1 and all(isinstance(clue, Anything) for clue in clues):
        return next(iter(ranges.values()))
    kept: list[Clue] = []
    size = 0
    for clue in [*map(_clue, ranges.values()), *clues]:
        # Leaving one out of an "all of" only makes the clue weaker.
        if size + _size(clue) <= MAX_PARTS:
            size += _size(clue)
            kept.extend(clue.clues if isinstance(clue, AllOf) else [clue])
    return all_of(*kept)


def _any(parts: list[_Known]) -> _Known:
    possible = [part for part in parts if part is not None]
    if not possible:
        return None
    clues = [_clue(part) for part in possible]
    flat: list[Clue] = []
    for clue in clues:
        flat.extend(clue.clues if isinstance(clue, AnyOf) else [clue])
    if sum(map(_size, flat)) <= MAX_PARTS:
        return possible[0] if len(possible) == 1 else any_of(*flat)
    return _hull([part for part in possible if isinstance(part, _Ranges)]) if _of_one(possible) else Anything()


def _of_one(parts: list[Clue | _Ranges]) -> bool:
    return len({part.name if isinstance(part, _Ranges) else None for part in parts} - {None}) == 1 and all(
        isinstance(part, _Ranges) for part in parts
    )


def _hull(parts: list[_Ranges]) -> _Ranges:
    """Too many alternatives for one property: from the lowest of them to the highest."""
    by_key: dict[str, _Range] = {}
    for part in parts:
        for key, (low, high) in part.by_key.items():
            if key in by_key:
                lowest, highest = by_key[key]
                low = None if low is None or lowest is None else _smallest(low, lowest)
                high = None if high is None or highest is None else _largest(high, highest)
            by_key[key] = (low, high)
    return _Ranges(parts[0].name, by_key)


def _clue(known: Clue | _Ranges) -> Clue:
    if isinstance(known, _Ranges):
        return any_of(*(Value(key, low, high) for key, (low, high) in known.by_key.items()))
    return known


def _size(clue: Clue) -> int:
    return sum(map(_size, clue.clues)) if isinstance(clue, (AllOf, AnyOf)) else 0 if isinstance(clue, Anything) else 1


def _largest(one: Scalar | None, other: Scalar | None) -> Scalar | None:
    return other if one is None else one if other is None else max(one, other, key=_same_family)


def _smallest(one: Scalar | None, other: Scalar | None) -> Scalar | None:
    return other if one is None else one if other is None else min(one, other, key=_same_family)


def _same_family(bound: Scalar) -> Any:
    # Bounds under one key are all strings or all numbers, which the type cannot say.
    return bound
