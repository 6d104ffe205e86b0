"""How long a query may take in one task, whatever its language: one sum over all that it is asked there. Beyond it the query is given up, and the others go on.

It grows with what the task looks at, so that a broad query over millions of topics is not taken for a hostile one. Slow work is done in slices, and the
clock looked at between them: a slice may end a little late, never much (measured: the most expensive patterns take a second or two for one).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: What a query has in each task, however little there is to look at.
SECONDS = 2.0
#: What it has besides for each topic and for each byte of them: several times what broad queries take (a predicate over two properties 10 µs a topic, on
#: busy cores 40; a pattern that RE2 makes an automaton of 5 ns a byte), and half and less of what hostile ones do (0.23 ms; 1 to 8 µs).
SECONDS_PER_TOPIC = 100e-6
SECONDS_PER_BYTE = 20e-9
#: An XPath or XQuery instead, for each document: with parsing it, 0.12 ms were measured.
SECONDS_PER_DOCUMENT = 2e-3

#: Between two looks at the clock: so many values, or characters of texts.
_VALUES = 256
_CHARACTERS = 32_768
#: What a text counts for beside its characters.
_A_TEXT = 128

#: Time of a processor. What a loaded machine or a slow disk adds is not the query's.
clock = time.thread_time


class Overrun(Exception):
    """The query has used up what it may take."""


class Budget:
    """What the queries of a task have used of what each of them may."""

    def __init__(self) -> None:
        self._allowed = SECONDS
        self._used: dict[int, float] = {}

    def allow(self, seconds: float) -> None:
        """There is more to look at."""
        self._allowed += seconds

    def use(self, number: int, seconds: float) -> None:
        self._used[number] = self._used.get(number, 0.0) + seconds

    def left(self, number: int) -> float:
        return self._allowed - self._used.get(number, 0.0)

    @property
    def overrun(self) -> str:
        return f"the query took longer than the {self._allowed:.1f} s that it has for what one task looks at, and was stopped; make it more selective"


def keep_to(until: float) -> None:
    """Between two slices: Overrun if a moment of the clock has passed."""
    if clock() > until:
        raise Overrun


def one_by_one(asks: Callable[..., Any], *values: Sequence[Any], until: float) -> list[Any]:
    """What a function gives for each of some values; or Overrun."""
    found = list(map(asks, *(some[:_VALUES] for some in values)))
    for start in range(_VALUES, len(values[0]), _VALUES):
        keep_to(until)
        found += map(asks, *(some[start : start + _VALUES] for some in values))
    return found


def text_by_text(asks: Callable[[Any], bool], texts: Iterable[str | bytes], *, until: float) -> list[bool]:
    """The same of texts, which may be long, and take time in proportion."""
    found: list[bool] = []
    characters = 0
    for text in texts:
        if characters > _CHARACTERS:
            keep_to(until)
            characters = 0
        found.append(asks(text))
        characters += len(text) + _A_TEXT
    return found
