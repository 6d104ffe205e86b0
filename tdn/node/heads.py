"""Who has more than the log, and what is to be done about it before anyone appends. Pure: words in, the next step out.

The log may be shorter than what was acknowledged: streams do not fsync, so a broker can lose the log's end in a power cut. What it lost is
in stores. The longest store puts its end back, byte for byte, while everybody else waits; the log then is the one that was acknowledged.
Stores that disagree about what the log lacks are for the operator to judge: nobody appends anything.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tdn.protocol.names import Role

#: A head is a SHA-256, in hexadecimal.
_HEAD = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Word:
    """What a node or a guard says of its store."""

    #: Its principal, `node:n1`.
    who: str
    #: How far its store goes, and the rolling hash there.
    seq: int
    head: str
    #: The record up to which it has found its store in the log, which it has read to the end.
    log: int
    #: A node that has compared since it is connected, and appends.
    settled: bool = False
    #: A node that has seen stores disagree.
    torn: bool = False
    #: Of a guard, which does not append: what the log lacks, from `log + 1` on, as much as fits.
    records: tuple[bytes, ...] = ()

    @property
    def ahead(self) -> bool:
        """Whether it has more than the log."""
        return self.seq > self.log

    @property
    def is_node(self) -> bool:
        return self.who.startswith(f"{Role.NODE}:")

    def as_object(self) -> dict[str, Any]:
        told: dict[str, Any] = {"seq": self.seq, "head": self.head, "log": self.log, "settled": self.settled, "torn": self.torn}
        if self.records:
            told["records"] = [base64.b64encode(raw).decode() for raw in self.records]
        return told


def read_word(who: str, told: Any) -> Word:
    """A word as it was written, or ValueError. That `who` wrote it is the broker's word."""
    try:
        seq, log = told["seq"], told["log"]
        if type(seq) is not int or type(log) is not int or not 0 <= log <= seq or _HEAD.fullmatch(told["head"]) is None:
            raise ValueError("numbers or head")
        records = tuple(base64.b64decode(text, validate=True) for text in told.get("records", ()))
        return Word(who, seq, told["head"], log, told.get("settled") is True, told.get("torn") is True, records)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a word about a store: {error!r}") from error


def read_body(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@dataclass(frozen=True, slots=True)
class Go:
    """Nobody has more than the log: append."""


@dataclass(frozen=True, slots=True)
class Wait:
    """For words of those who are expected, or for the log to grow."""

    why: str
    for_words: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """This node's store is the longest: it puts back what follows record `log`."""

    log: int


@dataclass(frozen=True, slots=True)
class Pass:
    """A guard has more than any node: this node puts back what it said, after record `log`."""

    log: int
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Stores disagree about what the log lacks."""

    why: str


Step = Go | Wait | Restore | Pass | Stop


def next_step(mine: Word, heard: Collection[Word], silent: Collection[str], head_at: Callable[[int], str | None]) -> Step:
    """What this node does next: `heard` are the latest words of others, `silent` those who are still expected to speak.

    `head_at` gives this store's own hash at a record, or None where it does not keep it.
    """
    nodes = [word for word in heard if word.is_node]
    if any(word.settled for word in nodes):
        # They compared, and append. The log they made holds what this store has, or something else: reading on will tell.
        return Wait("others have gone on; the log will show with what") if mine.ahead else Go()
    if torn := next((word.who for word in nodes if word.torn), None):
        return Stop(f"{torn} says that stores disagree about what the log has lost after record {mine.log}")
    for word in nodes:
        if mine.log < word.seq <= mine.seq and head_at(word.seq) not in (None, word.head):
            return Stop(
                f"the log ends at record {mine.log}, and {mine.who} (up to {mine.seq}) and {word.who} (up to {word.seq}) have different records after it"
            )
    if silent:
        return Wait(f"{', '.join(sorted(silent))} may have more of the log", for_words=True)
    # Of equals one does the work. The smallest name is as good as any.
    longest = min([mine, *nodes], key=lambda word: (-word.seq, word.who))
    if longest.seq > mine.log:
        return Restore(mine.log) if longest is mine else Wait(f"{longest.who} has the log up to record {longest.seq}")
    further = [word for word in heard if not word.is_node and word.seq > mine.log]
    if not further:
        return Go()
    guard = min(further, key=lambda word: (-word.seq, word.who))
    if guard.log == mine.log and guard.records and mine.who == min([mine.who, *(word.who for word in nodes)]):
        return Pass(mine.log, guard.records)
    return Wait(f"{guard.who} has the log up to record {guard.seq}")
