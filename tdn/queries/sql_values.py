"""What SQL does with values: families and their comparison, arithmetic, LIKE.

A value is None (NULL), a bool, an int or float (one family, number), a str or a datetime in UTC. Every function here is total: what has no
answer (other families, overflow, a division by zero) is NULL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

from tdn.errors import QueryError, UsageError
from tdn.protocol.descriptor import MAX_INTEGER
from tdn.protocol.times import parse_time

#: Anything that a value can be. `Any`, because the families are told apart by the type and mypy would want it told again at each step.
Value: TypeAlias = Any

#: bool is a subclass of int in Python, but no number here: always look up the exact type.
FAMILY: dict[type, str] = {int: "number", float: "number", str: "string", bool: "boolean", datetime: "timestamp"}

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
#: a OP b is b MIRRORED[OP] a.
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: NOT a OP b is a OPPOSITE[OP] b, NULL included: both are NULL for the same values.
OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def moment(text: str) -> datetime | None:
    """The time that a string stands for where it meets a timestamp. Most strings are none, and that is seen without an exception."""
    if len(text) < 20 or text[4] != "-":
        return None
    try:
        return parse_time(text)
    except UsageError:
        return None


def compare(test: Callable[[Any, Any], bool], left: Value, right: Value) -> bool | None:
    """Numbers exactly, strings by code point, FALSE before TRUE, times by time; a time and a string as two times. Other pairs are NULL."""
    one, other = FAMILY.get(type(left)), FAMILY.get(type(right))
    if one is None or other is None:
        return None
    if one != other:
        if one == "timestamp" and other == "string":
            right = moment(right)
        elif one == "string" and other == "timestamp":
            left = moment(left)
        else:
            return None
        if left is None or right is None:
            return None
    return test(left, right)


def against(name: str, literal: Value) -> Callable[[Value], bool | None]:
    """`compare` with a right side that is always the same: a third of its time."""
    test = COMPARE[name]
    family = FAMILY.get(type(literal))
    if family == "number":
        return lambda value: test(value, literal) if type(value) is int or type(value) is float else None
    if family == "boolean":
        return lambda value: test(value, literal) if type(value) is bool else None
    if family is None:
        return lambda value: None
    time = moment(literal) if family == "string" else literal

    def check(value: Value) -> bool | None:
        kind = type(value)
        if kind is datetime:
            return test(value, time) if time is not None else None
        if kind is not str:
            return None
        if family == "string":
            return test(value, literal)
        read = moment(value)
        return test(read, time) if read is not None else None

    return check


def one_of(literals: tuple[Value, ...]) -> Callable[[Value], bool | None]:
    """`value IN (literals)` by hashing: a thousand of them cost what one does. NULL where none is equal and any comparison is NULL."""
    by_family: dict[str | None, set[Value]] = {None: set(), **{family: set() for family in FAMILY.values()}}
    for literal in literals:
        by_family[FAMILY.get(type(literal))].add(literal)
    numbers, booleans = by_family["number"], by_family["boolean"]
    strings, times = by_family["string"], by_family["timestamp"]
    read = {moment(text) for text in strings}
    all_times = (read | times) - {None}
    nothing = bool(by_family[None])
    if_number = None if nothing or strings or booleans or times else False
    if_boolean = None if nothing or strings or numbers or times else False
    if_string = None if nothing or numbers or booleans else False
    if_time = None if nothing or numbers or booleans or None in read else False

    def check(value: Value) -> bool | None:
        kind = type(value)
        if kind is str:
            if value in strings:
                return True
            if not times:
                return if_string
            time = moment(value)
            return True if time in times else if_string if time is not None else None
        if kind is int or kind is float:
            return True if value in numbers else if_number
        if kind is bool:
            return True if value in booleans else if_boolean
        if kind is datetime:
            return True if value in all_times else if_time
        return None

    return check


def negative(value: Value) -> Value:
    if type(value) is float:
        return -value
    return -value if type(value) is int and -value <= MAX_INTEGER else None


def add(left: Value, right: Value) -> Value:
    return _bounded(left + right) if _numbers(left, right) else None


def subtract(left: Value, right: Value) -> Value:
    return _bounded(left - right) if _numbers(left, right) else None


def multiply(left: Value, right: Value) -> Value:
    return _bounded(left * right) if _numbers(left, right) else None


def divide(left: Value, right: Value) -> Value:
    """Of two integers without the fraction, toward zero."""
    if not _numbers(left, right) or right == 0:
        return None
    if type(left) is int and type(right) is int:
        quotient = abs(left) // abs(right)
        return _bounded(quotient if (left < 0) == (right < 0) else -quotient)
    return _bounded(left / right)


def remainder(left: Value, right: Value) -> Value:
    """With the sign of the dividend, so that a = (a / b) * b + a % b for integers."""
    if not _numbers(left, right) or right == 0:
        return None
    if type(left) is int and type(right) is int:
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right)


ARITHMETIC: dict[str, Callable[[Value, Value], Value]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}


def _numbers(left: Value, right: Value) -> bool:
    return FAMILY.get(type(left)) == "number" == FAMILY.get(type(right))


def _bounded(value: int | float) -> int | float | None:
    if type(value) is int:
        return value if -MAX_INTEGER - 1 <= value <= MAX_INTEGER else None
    return value if math.isfinite(value) else None


# --- LIKE ---

#: Longest pattern. Bounds what a test of one string costs, and the memory of its tables.
MAX_PATTERN_CHARACTERS = 1024

#: A piece of a pattern between two `%`: its characters, None for `_`.
Piece: TypeAlias = tuple[str | None, ...]


def pieces(pattern: str, escape: str | None) -> tuple[Piece, ...]:
    """The pieces of a pattern between its `%`, of which there is one more than of `%` (`%%` is one `%`). A wrong pattern is a QueryError."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise QueryError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed")
    done: list[Piece] = []
    piece: list[str | None] = []
    characters = iter(enumerate(pattern))
    for index, character in characters:
        if character == escape:
            _, escaped = next(characters, (index, ""))
            if escaped not in ("%", "_", escape):
                raise QueryError(f"in the pattern nothing but %, _ and {escape} may follow the escape character")
            piece.append(escaped)
        elif character == "%":
            if not done or piece:
                done.append(tuple(piece))
            piece = []
        else:
            piece.append(None if character == "_" else character)
    return (*done, tuple(piece))


def matcher(pattern: tuple[Piece, ...]) -> Callable[[str], bool]:
    """A test of whole strings against a pattern, in time that no pattern can drive up: `find` for literal pieces, which is linear, and for
    pieces with `_` in the middle one step of machine words for each character (the worst pair, a text of 16,384 characters and a pattern of 1,024, takes a few milliseconds)."""
    if len(pattern) == 1:
        return _exactly(pattern[0])
    first, *middle, last = pattern
    starts, ends = _at(first), _at(last)
    finds = tuple(_finder(piece) for piece in middle)
    first_length, last_length = len(first), len(last)

    def matches(text: str) -> bool:
        stop = len(text) - last_length
        if stop < first_length or not starts(text, 0) or not ends(text, stop):
            return False
        position = first_length
        # The leftmost place for each piece leaves the most room for those after it.
        for find in finds:
            position = find(text, position, stop)
            if position < 0:
                return False
        return True

    return matches


def _exactly(piece: Piece) -> Callable[[str], bool]:
    stands, length = _at(piece), len(piece)
    if None not in piece:
        return "".join(map(str, piece)).__eq__
    return lambda text: len(text) == length and stands(text, 0)


def _at(piece: Piece) -> Callable[[str, int], bool]:
    """Whether a piece stands at a place of a text that is known to have room for it."""
    if None not in piece:
        literal = "".join(map(str, piece))
        return lambda text, position: text.startswith(literal, position)
    fixed = tuple((offset, character) for offset, character in enumerate(piece) if character is not None)
    return lambda text, position: all(text[position + offset] == character for offset, character in fixed)


def _finder(piece: Piece) -> Callable[[str, int, int], int]:
    """Where the first occurrence of a piece within text[start:stop] ends, or -1."""
    length = len(piece)
    if None not in piece:
        literal = "".join(map(str, piece))

        def find(text: str, start: int, stop: int) -> int:
            found = text.find(literal, start, stop)
            return found + length if found >= 0 else -1

        return find
    # Bit i of the state: the first i + 1 characters of the piece end here. All of them advance with one shift (Baeza-Yates and Gonnet).
    anything = sum(1 << index for index, character in enumerate(piece) if character is None)
    masks: dict[str, int] = {}
    for index, character in enumerate(piece):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << index
    complete = 1 << (length - 1)

    def search(text: str, start: int, stop: int) -> int:
        state = 0
        for position in range(start, stop):
            state = (state << 1 | 1) & masks.get(text[position], anything)
            if state & complete:
                return position + 1
        return -1

    return search
