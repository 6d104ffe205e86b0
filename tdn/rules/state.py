"""What the log has made true, as facts: small JSON values in named spaces. The seam between the rules and whatever stores them.

SQLite implements it in `store/`, a dict here. The rules read facts and return writes; nothing needs the whole state in memory, and the
canonical text of all facts is what a state's digest is taken of.

Spaces:
    network    `network`: id, rules, log time, roots (base64 DER)
    principal  `entity:alice`: current certificate, superseded and revoked keys
    certificate  thumbprint: chain, and what it says
    tick       node id: its latest time
    checkpoint  node id: the last few digests of the state that it stated; `counted`, `latest`: the last one that a majority stated
    request    `entity:alice/<request id>`: what was asked, and the outcome
    topic      uuid: a topic or collection: advertisement digest, owner, expiry, state; for ever, also when ended
    access     digest: lists as they hold for a topic, with what its ancestors put on it; shared by all topics with the same
    reserved   uuid: a child that was registered and not advertised yet
    child      `<parent> <created> <child>`: who is directly below whom
    member     `<collection> topic|collection <uuid>`: who is directly in what; `in` has the same the other way round
    size       uuid: how many are directly below or in it; of a collection with such a limit, how many topics its tree has
    settling   `topic <uuid>`, `collection <uuid>`, `watch <…>`: has ended, or was shortened, and what hangs on it has not all followed yet
    pending    `topics`: how many topics are settling, when any is
    watch      `<uuid> <entity>`: who follows what since when, and how many changes it was told
    watched    uuid, and `tree <root>`: how many follow it, or something in that hierarchy
    change     `<uuid> <entity> <since> <version>`: what a watcher was, or is to be, told
    grant      id: a grant: who lets whom do what with which topic, from when until when, what it rests on, whether it still counts
    granted    `<topic> <right> <grantee> <id>`: the grants that count on something
    issued     `<entity> <id>`: the grants that somebody gave, ended ones for a while too; `held` has them by grantee, `about` by topic
    kept       `<entity> <topic or collection>`: owners who kept grants of an owner before
    opened     uuid: a topic whose exchange was made
    feed       `<topic or collection> <entity>`: a subscription: its queue, how deep it goes, what it rests on
    follower   `<entity> <topic or collection>`: the same the other way round
    stale      `<topic or collection> <entity> <queue>`: the queue of a subscription that is over
    feeds      `of <entity>`, `to <uuid>`: how many subscriptions
    ends       `<time> <space> <key>`: what to look at when log time gets there
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tdn.errors import Refused
from tdn.protocol import jsontext

Fact = Mapping[str, Any]


class State(Protocol):
    """What the rules can ask."""

    def get(self, space: str, key: str) -> Fact | None: ...

    def scan(self, space: str, *, after: str = "", up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        """Facts of a space in the order of their keys, keys above `after`, below or equal to `up_to`, at most `limit`."""
        ...

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        """Every fact of a small space (nodes' ticks), in the order of the keys."""
        ...


#: Spaces of which an archive keeps every write: what discovery, its rules of access and its history can need (T37).
ARCHIVED = frozenset({"principal", "certificate", "topic", "access", "member", "settling", "grant"})


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
class Occasion:
    """The record that something is decided in."""

    seq: int
    #: The appending node's clock; for a tick, log time.
    at: datetime
    #: What counts as now: that, or log time where it is later.
    now: datetime
    #: What the node added: to a `register` a fresh UUID and what its salts are made from, to a `subscribe` the queue's secret.
    minted: Mapping[str, str] | None = None
    #: Digest of the record's bytes. Facts that refer to a record hold it, so that who has the state can tell the true bytes from others.
    record: str = ""


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


#: Work that one change may be: facts read, and written, which count for more. About a second; what takes longer would stall every node.
MOST_WORK = 100_000
_WRITING = 3


class Draft:
    """A state with the writes of one record on top, which later steps of the same record see. Nothing is written unless it is accepted.

    It counts the work, alike on every node, so that a change which reaches too far can be refused, and a tick leaves the rest to the next.
    """

    def __init__(self, state: State, most_work: int | None = None) -> None:
        self._state = state
        self._most_work = most_work
        self.work = 0
        self._drafted: dict[tuple[str, str], Fact | None] = {}
        #: Drafted keys of each space, in order: a tick may end a thousand topics, and each looks at what is around it.
        self._keys: dict[str, list[str]] = {}

    def put(self, space: str, key: str, value: Fact | None) -> None:
        """Set a fact, or remove it when the value is None."""
        self._count(_WRITING)
        if (space, key) not in self._drafted:
            bisect.insort(self._keys.setdefault(space, []), key)
        self._drafted[space, key] = value

    @property
    def writes(self) -> tuple[Write, ...]:
        return tuple(Write(space, key, value) for (space, key), value in self._drafted.items())

    def get(self, space: str, key: str) -> Fact | None:
        if space != "access":
            # Lists that were read before are remembered by their digest, on one node longer than on another: they do not count.
            self._count(1)
        if (space, key) in self._drafted:
            return self._drafted[space, key]
        return self._state.get(space, key)

    def scan(self, space: str, *, after: str = "", up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        keys = self._keys.get(space, [])
        drafted = keys[bisect.bisect_right(keys, after) : bisect.bisect_right(keys, up_to)]
        # What the draft removed is still in the state: so many more have to be looked at.
        found = dict(self._state.scan(space, after=after, up_to=up_to, limit=limit + len(drafted)))
        for key in drafted:
            fact = self._drafted[space, key]
            if fact is not None:
                found[key] = fact
            else:
                found.pop(key, None)
        given = sorted(found.items())[:limit]
        self._count(1 + len(given))
        return iter(given)

    def _count(self, work: int) -> None:
        self.work += work
        if self._most_work is not None and self.work > self._most_work:
            raise Refused("the change reaches too much at once: too many topics, collections or watchers hang on it; divide it")

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        found: dict[str, Fact | None] = dict(self._state.all(space))
        found |= {key: self._drafted[space, key] for key in self._keys.get(space, [])}
        return iter(sorted((key, fact) for key, fact in found.items() if fact is not None))


def scan_below(state: State, space: str, prefix: str, *, after: str = "") -> Iterator[tuple[str, Fact]]:
    """Every fact whose key is the prefix, a space and something more, which is what is given; in order, read in portions."""
    start = f"{prefix} {after}"
    while True:
        portion = list(state.scan(space, after=start, up_to=f"{prefix} ~", limit=_PORTION))
        for key, fact in portion:
            yield key[len(prefix) + 1 :], fact
        if len(portion) < _PORTION:
            return
        start = portion[-1][0]


_PORTION = 500


class MemoryState:
    """The state in a dict: for tests and simulations."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], Fact] = {}
        #: Keys of each space, in order.
        self._keys: dict[str, list[str]] = {}

    def get(self, space: str, key: str) -> Fact | None:
        return self._facts.get((space, key))

    def scan(self, space: str, *, after: str = "", up_to: str, limit: int) -> Iterator[tuple[str, Fact]]:
        keys = self._keys.get(space, [])
        first, last = bisect.bisect_right(keys, after), bisect.bisect_right(keys, up_to)
        return iter([(key, self._facts[space, key]) for key in keys[first : min(last, first + limit)]])

    def all(self, space: str) -> Iterator[tuple[str, Fact]]:
        return iter([(key, self._facts[space, key]) for key in self._keys.get(space, [])])

    def write(self, outcome: Outcome) -> None:
        for change in outcome.writes:
            keys = self._keys.setdefault(change.space, [])
            at = bisect.bisect_left(keys, change.key)
            present = at < len(keys) and keys[at] == change.key
            if change.value is not None:
                self._facts[change.space, change.key] = change.value
                if not present:
                    keys.insert(at, change.key)
            elif present:
                del self._facts[change.space, change.key]
                del keys[at]

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


def effects_of(outcome: Outcome) -> str:
    """The writes of a record that archives keep, as one JSON text: the same wherever the record was applied."""
    return jsontext.canonical([[one.space, one.key, one.value] for one in outcome.writes if one.space in ARCHIVED]).decode()


#: The rolling hash of an empty log.
EMPTY_HEAD = "0" * 64
