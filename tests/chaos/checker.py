"""Holds what a race left behind against the model: the logs and outcomes of all nodes, what the requesters sent and were answered, what the
watchers received. Raises `Violations` with all that is wrong.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdn.protocol.times import parse_time
from tests.chaos.limits import Accepted
from tests.unit.rules.tree_model import Model, Told, decode

#: Records that are no request of an entity about trees.
_OTHERS = ("genesis", "enrol", "hello", "rules", "revoke", "tick")
#: What the model judges. What other records do shows elsewhere: what they do to rights, in the traffic.
_OF_TREES = ("register", "advertise", "renew", "withdraw", "add", "remove", "move", "watch", "unwatch")


class Violations(AssertionError):
    """What the checker found."""

    def __init__(self, found: list[str]) -> None:
        self.found = found
        super().__init__(f"{len(found)} violations:\n" + "\n".join(found[:30]))


@dataclass(frozen=True)
class Answer:
    """What a node answered to a request: its kind, its body, and the payload of the statement that came with it."""

    kind: str
    body: Mapping[str, Any]
    statement: Mapping[str, Any] | None


@dataclass
class Sent:
    """A request as its sender knows it."""

    #: `entity:alice/<request id>`, as the log names it.
    key: str
    kind: str
    #: Whether the broker has said that it keeps it; and how many copies it was given.
    confirmed: bool = False
    copies: int = 0
    answers: list[Answer] = field(default_factory=list)


@dataclass
class Received:
    """What one watcher was told, in the order in which it came: the payloads of the notifications."""

    subject: str
    watcher: str
    payloads: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Entry:
    """A record with the outcome that a node has for it."""

    seq: int
    kind: str
    status: str
    outcome: Mapping[str, Any]
    raw: bytes


@dataclass
class Log:
    """A node's log: the entries to reason about, and the rows as they stand, to compare with other nodes'."""

    entries: list[Entry]
    rows: list[tuple[Any, ...]]

    def outcomes(self) -> dict[str, list[Entry]]:
        """Every request with the records that decided it. Of a right log each has one."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.status in ("accepted", "refused") and entry.outcome["request"] is not None:
                found.setdefault(entry.outcome["request"], []).append(entry)
        return found

    def count(self) -> Counter[str]:
        """How the requests of entities about trees were judged."""
        return Counter(entry.status for entry in self.entries if entry.kind in _OF_TREES)


def read_log(store: Path) -> Log:
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT seq, offset, kind, status, outcome, head, raw FROM records ORDER BY seq").fetchall()
    entries = [Entry(seq, kind, status, json.loads(outcome), bytes(raw)) for seq, _, kind, status, outcome, _, raw in rows]
    return Log(entries, rows)


def decided_in(store: Path) -> set[str]:
    """The requests that a node knows an outcome of."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT json_extract(outcome, '$.request') FROM records WHERE status IN ('accepted', 'refused')")
        return {key for (key,) in rows if key is not None}


def payload_of(token: bytes | str) -> dict[str, Any]:
    """The payload of a signed message. Whether it is rightly signed is for others to say: nodes and client have looked."""
    segment = (token.encode() if isinstance(token, str) else token).split(b".")[1]
    payload: dict[str, Any] = json.loads(base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4)))
    return payload


def replay(log: Log) -> tuple[Model, list[str]]:
    """The model after the log, and where the two disagree: an outcome that is not right; and every limit that is exceeded at some record, by what
    the log says was accepted."""
    model, accepted, wrong = Model(), Accepted(), []
    for entry in log.entries:
        found = [*_replay_one(model, entry)]
        if entry.status == "accepted" and entry.kind in (*_OF_TREES, "tick"):
            found += accepted.take(entry.raw, entry.kind, entry.outcome["receipt"], model.time)
        wrong += [f"record {entry.seq} ({entry.kind}): {what}" for what in found]
    return model, wrong


def _replay_one(model: Model, entry: Entry) -> Iterator[str]:
    if model.network is not None and payload_of(entry.raw)["kind"] == "genesis":
        # Of several nodes that begin at once, each offers a genesis, and the first counts. The others are no business of the model's.
        model.seq += 1
        if entry.status == "accepted":
            yield "a second genesis counts"
        return
    if entry.status == "void" or entry.kind not in (*_OF_TREES, *_OTHERS):
        model.seq += 1
        if entry.status == "void" and not _out_of_its_time(model, entry.raw):
            yield f"should not be there: {entry.outcome['error']}"
        return
    verdict = model.take(entry.raw)
    if verdict.status != entry.status:
        error = (entry.outcome["error"] or {}).get("message")
        yield f"is {entry.status} ({error}), should be {verdict.status} ({verdict.reason})"
    elif entry.status == "accepted" and entry.kind not in _OTHERS:
        receipt = entry.outcome["receipt"]
        for name, value in verdict.fixed.items():
            if receipt.get(name) != value:
                yield f"the receipt says {name} {receipt.get(name)}; it is {value}"
        if "cut" in receipt and "cut" not in verdict.fixed:
            yield "the receipt says that the lifetime was cut; it was not"


def _out_of_its_time(model: Model, raw: bytes) -> bool:
    """Whether a node has signed a record by a clock that shows a moment at which its certificate does not hold."""
    header, record, _ = decode(raw)
    at = parse_time(record["at"])
    return any(not one.issued <= at <= one.expires for one in model.principals.values() if one.thumbprint == header.thumbprint)


class Checker:
    """The logs of all nodes, and the model after the longest of them."""

    def __init__(self, stores: Mapping[str, Path]) -> None:
        self._logs = {node: read_log(store) for node, store in stores.items()}
        self.log = max(self._logs.values(), key=lambda one: len(one.rows))
        self._model, self._misjudged = replay(self.log)

    @property
    def model(self) -> Model:
        return self._model

    @property
    def due(self) -> dict[tuple[str, str], int]:
        """How many changes each (subject, watcher) is to be told, by the log as it was read."""
        return {key: len(watch.told) for key, watch in self._model.watches.items()}

    def check(self, sent: Iterable[Sent], received: Iterable[Received] = ()) -> None:
        """All demands, or `Violations`.

        No limit is ever exceeded and every outcome is right; every request that the broker keeps is decided, and once; every answer agrees
        with the log; all nodes have the same outcomes; every watcher has what the log tells it, in order, without holes and doubles.
        """
        outcomes = self.log.outcomes()
        wrong = [*_same_everywhere(self._logs, self.log), *_decided_once(self.log, outcomes), *_as_answered(outcomes, sent)]
        wrong += self._misjudged
        for one in received:
            watch = self._model.watches.get((one.subject, one.watcher))
            wrong += _as_told(watch.told if watch is not None else [], one)
        if wrong:
            raise Violations(wrong)


def _same_everywhere(logs: Mapping[str, Log], longest: Log) -> Iterator[str]:
    for node, log in logs.items():
        for row, other in zip(log.rows, longest.rows, strict=False):
            if row != other:
                yield f"node {node} has record {row[0]} as {row[3]}, another node as {other[3]}: {row[4]} {other[4]}"


def _decided_once(log: Log, outcomes: Mapping[str, list[Entry]]) -> Iterator[str]:
    for key, entries in outcomes.items():
        if len(entries) > 1:
            where = ", ".join(f"{entry.status} by record {entry.seq}" for entry in entries)
            yield f"{entries[0].kind} {key} was decided {len(entries)} times: {where}"
    for entry in log.entries:
        if entry.status != "repeated":
            continue
        first = outcomes.get(entry.outcome["request"], [None])[0]
        told = (entry.outcome["receipt"], entry.outcome["error"])
        if first is None or first.seq > entry.seq or (first.outcome["receipt"], first.outcome["error"]) != told:
            yield f"record {entry.seq} repeats {entry.outcome['request']} with another outcome than it has"


def _as_answered(outcomes: Mapping[str, list[Entry]], sent: Iterable[Sent]) -> Iterator[str]:
    for request in sent:
        entries = outcomes.get(request.key)
        if entries is None:
            if request.confirmed:
                yield f"{request.kind} {request.key} was taken by the broker and is lost: it has no outcome"
            if request.answers:
                yield f"{request.kind} {request.key} was answered ({request.answers[0]}) and is not in the log"
            continue
        for answer in request.answers:
            if not any(_agrees(answer, entry.outcome) for entry in entries):
                yield f"{request.kind} {request.key} was answered {answer}; the log says {entries[0].outcome}"


def _agrees(answer: Answer, outcome: Mapping[str, Any]) -> bool:
    receipt = outcome["receipt"]
    if answer.kind == "decided":
        return receipt is not None and answer.statement == receipt
    if answer.kind == "created":
        minted = (answer.body["uuid"], (answer.statement or {}).get("uuid"), (answer.statement or {}).get("expires"))
        return receipt is not None and minted == (receipt["uuid"], receipt["uuid"], receipt["expires"])
    return answer.kind == "error" and answer.body == outcome["error"]


def _as_told(due: list[Told], received: Received) -> Iterator[str]:
    """The log may have gone on after it was looked at: what came later is left out."""
    name = f"watcher {received.watcher} of {received.subject}"
    versions = [payload["version"] for payload in received.payloads]
    if versions != list(range(1, len(versions) + 1)):
        yield f"{name} received versions {versions}"
    got = [
        Told(payload["seq"], payload["change"], payload["uuid"], payload["kind"], payload["at"], payload.get("in", ""))
        for payload in received.payloads[: len(due)]
    ]
    # Several changes of one record have no order among themselves.
    if sorted(got) != sorted(due) or [told.seq for told in got] != [told.seq for told in due]:
        missing, extra = [told for told in due if told not in got], [told for told in got if told not in due]
        yield f"{name} received {len(got)} of {len(due)} changes; missing {missing[:3]}, not told by the log {extra[:3]}"
