"""What the environment sets besides files: numbers for tests and trials, and the broker's program. The one table.

A value that cannot be meant is told with what to write, where it is read and, by whoever starts a network, before anything begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tdn.errors import UsageError

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Number(Generic[N]):
    """A variable that holds a number."""

    variable: str
    kind: Callable[[str], N]
    what: str
    least: N
    most: N

    def read(self, default: N) -> N:
        text = os.environ.get(self.variable)
        if text is None:
            return default
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        if value is None or not self.least <= value <= self.most:
            raise UsageError(f"${self.variable}: write {self.what} from {self.least:,} to {self.most:,}, or unset it")
        return value


TICK_SECONDS = Number("TDN_TICK_SECONDS", float, "a number of seconds", 0.01, 3600)
SILENCE_SECONDS = Number("TDN_SILENCE_SECONDS", float, "a number of seconds", 0.01, 3600)
LOOK_SECONDS = Number("TDN_LOOK_SECONDS", float, "a number of seconds", 0.01, 3600)
CHECKPOINT_RECORDS = Number("TDN_CHECKPOINT_RECORDS", int, "a whole number of records", 1, 1_000_000_000)
#: RabbitMQ takes no larger segments.
LOG_SEGMENT_BYTES = Number("TDN_LOG_SEGMENT_BYTES", int, "a whole number of bytes", 1_000, 3_000_000_000)
RABBITMQ_SERVER = "TDN_RABBITMQ_SERVER"
PORTS = "TDN_PORTS"
#: Below the kernel's usual range for outgoing connections (32768 up), so that between our choice and the
#: server's bind no client of anybody is given the port, and a network that was down finds its ports free.
_PORTS = range(20_000, 32_000)
_FEWEST_PORTS = 100


def ports() -> range:
    """The ports of this machine from which a private network chooses its own. Two that choose at the same moment choose alike only if they choose from the same."""
    text = os.environ.get(PORTS)
    if text is None:
        return _PORTS
    first, _, last = text.partition("-")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        chosen = range(0)
    else:
        chosen = range(int(first), int(last) + 1)
    if len(chosen) < _FEWEST_PORTS or chosen[0] < 1024 or chosen[-1] > 65_535:
        raise UsageError(f"${PORTS}: write two ports from 1,024 to 65,535 as FIRST-LAST, at least {_FEWEST_PORTS} of them, or unset it")
    return chosen


def require_numbers() -> None:
    """Say before anything begins what would otherwise end the first process that reads it, or a node once it has found a broker."""
    for seconds in (TICK_SECONDS, SILENCE_SECONDS, LOOK_SECONDS):
        seconds.read(seconds.least)
    for number in (CHECKPOINT_RECORDS, LOG_SEGMENT_BYTES):
        number.read(number.least)
    ports()


def require_program() -> None:
    """For whoever starts a private broker."""
    named = os.environ.get(RABBITMQ_SERVER)
    if named and not is_program(Path(named)):
        raise UsageError(f"${RABBITMQ_SERVER}: {named} is no program that can be run; name RabbitMQ's server script, or unset it")


def is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
