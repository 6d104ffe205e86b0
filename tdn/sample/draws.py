"""Chance that is the same everywhere: draws from a seed, and numbers that look random and never come twice.

Python promises that `random.Random(int).random()` gives the same sequence on every version and platform, and promises it of nothing else in that
module; so everything here is made of that one call and of exact arithmetic (no logarithms, whose last digit belongs to the machine).
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")

#: Crockford's base 32: no letter that is read as another.
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CODE_BITS = 40
_CODE_MASK = (1 << _CODE_BITS) - 1


class Draws:
    """One stream of draws. Two with the same seed are equal."""

    __slots__ = ("_next",)

    def __init__(self, seed: int) -> None:
        self._next = random.Random(seed).random  # noqa: S311  # the same sample for the same seed

    def share(self) -> float:
        return self._next()

    def chance(self, share: float) -> bool:
        return self._next() < share

    def below(self, limit: int) -> int:
        return int(self._next() * limit)

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._next() * (high - low + 1))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self._next() * len(choices))]

    def some_of(self, choices: Sequence[T], count: int) -> list[T]:
        """Different ones, in the order in which they were drawn."""
        left = list(choices)
        return [left.pop(int(self._next() * len(left))) for _ in range(min(count, len(left)))]

    def number(self, low: float, high: float, decimals: int) -> float:
        """Mostly from the middle of a range. Never minus zero."""
        return round(low + (high - low) * (self._next() + self._next()) / 2, decimals) + 0.0


class Ranks:
    """Ranks drawn as often as 1/(rank + flatness): a few large ones, and a long tail."""

    __slots__ = ("_sums", "_total")

    def __init__(self, count: int, flatness: int) -> None:
        # Not sum(): how it adds floats differs between versions.
        self._sums = list(accumulate(1.0 / (rank + flatness) for rank in range(count)))
        self._total = self._sums[-1]

    def at(self, share: float) -> int:
        """The rank that a share from 0 (included) to 1 falls on."""
        return min(bisect_right(self._sums, share * self._total), len(self._sums) - 1)


def scattered(label: str, number: int) -> bytes:
    """32 bytes that depend on label and number alone."""
    return hashlib.sha256(f"{label} {number}".encode()).digest()


def code_number(salt: int, number: int) -> int:
    """A number of 40 bits for each number of 40 bits, never the same for two: each step can be undone."""
    mixed = (number + salt) & _CODE_MASK
    mixed = mixed * 0x9E3779B97F4A7C15 & _CODE_MASK
    mixed ^= mixed >> 17
    mixed = mixed * 0xC2B2AE3D27D4EB4F & _CODE_MASK
    return mixed ^ mixed >> 21


def code(salt: int, number: int) -> str:
    """The same as eight letters and digits."""
    mixed = code_number(salt, number)
    return "".join([_LETTERS[mixed >> shift & 31] for shift in range(_CODE_BITS - 5, -1, -5)])
