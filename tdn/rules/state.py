"""What the log has made true, as facts: small JSON values in named spaces. The seam between the rules and whatever stores them.

SQLite implements it in `store/`, a dict here. The rules read facts and return writes; nothing needs the whole state in memory, and the
canonical text of all facts is what a state's digest is taken of.

Spaces:
    network    `network`: id, rules, log time, roots (base64 DER)
    principal  `entity:alice`: current certificate, superseded and revoked keys
    certificate  thumbprint: chain, and what it says
    tick       node id: its latest time
    request    `entity:alice/<request id>`: what was asked, and the outcome
    topic      uuid: advertisement digest, owner, expiry, state; for ever, also when ended
    ends       `<time> <space> <key>`: what to look at when log time gets there
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tdn.protocol import jsontext

Fact = Mapping[str, Any]


class State(Protocol):
    """What the rules can ask."""

    def get(self, space: str, key: str) -> Fact | None: ...

    def scan(self, space: str, *, up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        """Facts of a space in the order of their keys, keys below or equal to `up_to`, at most `limit`."""
        ...

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        """Every fact of a small space (nodes' ticks), in the order of the keys."""
        ...


@dataclass(frozen=True, slots=True)
class Write:
    """One fact to set, or to remove when `value` is None."""

    space: str
    key: str
    value: Fact | None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Bytes from the log with their place: our own sequence number, and the hash of the log up to and with them."""

    seq: int
    head: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a record did. `accepted` and `refused` are final for its request; `repeated` gives the first outcome again; `void` did nothing."""

    status: str
    kind: str
    writes: tuple[Write, ...] = ()
    #: `entity:alice/<request id>`, by which the waiting node finds its answer.
    request: str | None = None
    #: Payload of the receipt, for a request that was accepted now or before.
    receipt: Fact | None = None
    #: The error object, for a request that was refused; or why a record is void.
    error: Fact | None = None
    #: Logins whose open connections the guards end.
    cut: tuple[str, ...] = ()

    def as_fact(self) -> dict[str, Any]:
        return {"status": self.status, "kind": self.kind, "request": self.request, "receipt": self.receipt, "error": self.error}


class MemoryState:
    """The state in a dict: for tests and simulations."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], Fact] = {}

    def get(self, space: str, key: str) -> Fact | None:
        return self._facts.get((space, key))

    def scan(self, space: str, *, up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        found = ((key, fact) for key, fact in self.all(space) if key <= up_to)
        for _, item in zip(range(limit), found, strict=False):
            yield item

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        yield from sorted((key, fact) for (of, key), fact in self._facts.items() if of == space)

    def write(self, outcome: Outcome) -> None:
        for change in outcome.writes:
            if change.value is None:
                self._facts.pop((change.space, change.key), None)
            else:
                self._facts[change.space, change.key] = change.value

    def digest(self) -> str:
        return digest_of((space, key, fact) for (space, key), fact in sorted(self._facts.items()))


def digest_of(facts: Iterator[tuple[str, str, Fact]]) -> str:
    """SHA-256 over the canonical text of facts in the order of (space, key)."""
    total = hashlib.sha256()
    for space, key, fact in facts:
        total.update(jsontext.canonical([space, key, fact]) + b"\n")
    return total.hexdigest()


def next_head(head: str, raw: bytes) -> str:
    """The rolling hash: the log up to and with a record, from the log before it."""
    return hashlib.sha256(bytes.fromhex(head) + hashlib.sha256(raw).digest()).hexdigest()


#: The rolling hash of an empty log.
EMPTY_HEAD = "0" * 64
