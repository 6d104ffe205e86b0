"""Logs made by hand: the replay finds an outcome that is not right, and a limit that is exceeded by what was accepted; a watcher's tale is held
against what it was due. No network is needed for that."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from little_network import HOUR, MINUTE, LittleNetwork  # type: ignore[import-not-found]  # by conftest.py
from little_network import Log as LittleLog
from pki import T0  # type: ignore[import-not-found]

from tests.chaos.checker import Checker, Entry, Log, Received, _as_told, replay
from tests.chaos.limits import Accepted
from tests.unit.rules.tree_model import Told

NET = LittleNetwork("chaos")


class Written:
    """A log as the real rules write it, until a test falsifies an entry."""

    def __init__(self) -> None:
        self.log = NET.log()

    def entries(self) -> list[Entry]:
        judged = zip(self.log.records, self.log.outcomes, strict=True)
        return [Entry(record.seq, one.kind, one.status, one.as_fact(), record.raw) for record, one in judged]

    def accepted(self, **receipt: Any) -> list[Entry]:
        """With the last entry, which was refused, as if it had been accepted."""
        *before, last = self.entries()
        assert last.status == "refused", last
        told = {"seq": last.seq, **receipt}
        return [*before, replace(last, status="accepted", outcome={**last.outcome, "receipt": told, "error": None})]


def wrong(entries: list[Entry]) -> list[str]:
    return replay(Log(entries, []))[1]


def sound() -> Written:
    """A hierarchy and a collection that are full, something that was refused, and something that has ended."""
    written = Written()
    log = written.log
    root = log.advertised(hosting={"allow_children": True, "max_width": 1, "max_depth": 2})
    log.child(root, lifetime=2 * MINUTE)
    assert log.put("register", NET.register(NET.entity("bob"), root)).status == "refused"
    place = log.collection(limits={"topics": 1})
    log.change("add", "alice", collection=place, uuid=log.advertised())
    assert log.change("add", "alice", collection=place, uuid=log.advertised()).status == "refused"
    log.tick(T0 + 3 * MINUTE)
    # The first child has ended, so there is a place again.
    log.child(root, at=T0 + 3 * MINUTE)
    return written


def test_a_sound_log() -> None:
    """T22: nothing is found where nothing is wrong."""
    assert wrong(sound().entries()) == []


def refuse(entries: list[Entry]) -> str:
    """A change that had to be accepted."""
    number = next(number for number, one in enumerate(entries) if one.kind == "advertise")
    error = {"error": "refused", "message": "no", "detail": {}}
    outcome = {**entries[number].outcome, "error": error, "receipt": None}
    entries[number] = replace(entries[number], status="refused", outcome=outcome)
    return "is refused (no), should be accepted"


def accept(entries: list[Entry]) -> str:
    """One that had to be refused."""
    number = next(number for number, one in enumerate(entries) if one.kind == "add" and one.status == "refused")
    entries[number] = replace(entries[number], status="accepted", outcome={**entries[number].outcome, "receipt": {}, "error": None})
    return "is accepted (None), should be refused (limit)"


def promise_more(entries: list[Entry]) -> str:
    number = next(number for number, one in enumerate(entries) if one.kind == "register")
    receipt = {**entries[number].outcome["receipt"], "expires": "2100-01-01T00:00:00Z"}
    entries[number] = replace(entries[number], outcome={**entries[number].outcome, "receipt": receipt})
    return "the receipt says expires 2100-01-01T00:00:00Z; it is"


def say_it_was_cut(entries: list[Entry]) -> str:
    number = next(number for number, one in enumerate(entries) if one.kind == "register")
    receipt = {**entries[number].outcome["receipt"], "cut": True}
    entries[number] = replace(entries[number], outcome={**entries[number].outcome, "receipt": receipt})
    return "the receipt says that the lifetime was cut; it was not"


def begin_twice(entries: list[Entry]) -> str:
    entries.append(replace(entries[0], seq=len(entries) + 1))
    return "a second genesis counts"


def pass_over(entries: list[Entry]) -> str:
    number = next(number for number, one in enumerate(entries) if one.kind == "advertise")
    entries[number] = replace(entries[number], status="void", outcome={**entries[number].outcome, "error": "nonsense"})
    return "should not be there: nonsense"


@pytest.mark.parametrize("flaw", [refuse, accept, promise_more, say_it_was_cut, begin_twice, pass_over])
def test_outcomes_that_are_not_right(flaw: Callable[[list[Entry]], str]) -> None:
    """T22: of a log that is sound but for one outcome, that is found first."""
    entries = sound().entries()
    said = flaw(entries)
    assert said in wrong(entries)[0]


def child(log: LittleLog, parent: str, **choices: Any) -> dict[str, Any]:
    """A child that is refused; gives what a receipt would fix."""
    log.put("register", NET.register(NET.entity("alice"), parent, **choices))
    return {"uuid": "another child", "expires": "2026-01-01T00:00:00Z"}


def too_wide(log: LittleLog) -> tuple[dict[str, Any], str]:
    root = log.advertised(hosting={"allow_children": True, "max_width": 1})
    log.child(root)
    return child(log, root), f"MaxWidth 1 of {root} is exceeded: {root} has 2 children"


def too_deep(log: LittleLog) -> tuple[dict[str, Any], str]:
    root = log.advertised(hosting={"allow_children": True, "max_depth": 2})
    low = log.child(root, hosting={"allow_children": True})
    return child(log, low), f"MaxDepth 2 of {root} is exceeded"


def too_broad(log: LittleLog) -> tuple[dict[str, Any], str]:
    place = log.collection(limits={"breadth": 1}, members=[log.advertised()])
    log.change("add", "alice", collection=place, uuid=log.advertised())
    return {}, f"breadth 1 of {place} is exceeded"


def too_many(log: LittleLog) -> tuple[dict[str, Any], str]:
    inner = log.collection(inclusion=True, members=[log.advertised()])
    outer = log.collection(limits={"topics": 1}, child_collections=True, members=[inner])
    log.change("add", "alice", collection=inner, uuid=log.advertised())
    return {}, f"topics 1 of {outer} are exceeded: 2"


def nested_too_deep(log: LittleLog) -> tuple[dict[str, Any], str]:
    inner, place = log.collection(inclusion=True), log.collection(limits={"depth": 1}, child_collections=True)
    log.change("add", "alice", collection=place, uuid=inner)
    return {}, f"depth 1 of {place} is exceeded"


def inside_itself(log: LittleLog) -> tuple[dict[str, Any], str]:
    inner = log.collection(inclusion=True, child_collections=True)
    outer = log.collection(inclusion=True, child_collections=True, members=[inner])
    log.change("add", "alice", collection=inner, uuid=outer)
    return {}, f"collection {inner} is inside itself"


def outlived(log: LittleLog) -> tuple[dict[str, Any], str]:
    root = log.advertised(hosting={"allow_children": True}, lifetime=MINUTE)
    log.tick(T0 + HOUR)
    return child(log, root, at=T0 + HOUR), f"another child outlives its parent {root}"


@pytest.mark.parametrize(
    "flaw", [too_wide, too_deep, too_broad, too_many, nested_too_deep, inside_itself, outlived], ids=lambda flaw: flaw.__name__
)
def test_limits_that_are_exceeded(flaw: Callable[[LittleLog], tuple[Mapping[str, Any], str]]) -> None:
    """T25, T26, T33: one too many that was accepted is found by what was accepted alone, and once; the model, which would have refused it, has no part in it."""
    written = Written()
    receipt, said = flaw(written.log)
    entries = written.accepted(**receipt)
    accepted, found = Accepted(), []
    for entry in entries[:-1]:
        if entry.status == "accepted" and entry.kind not in ("genesis", "enrol", "hello"):
            found += accepted.take(entry.raw, entry.kind, entry.outcome["receipt"], T0 if entry.kind != "tick" else T0 + HOUR)
    assert found == []
    now = T0 if flaw is not outlived else T0 + HOUR
    last = entries[-1]
    assert said in accepted.take(last.raw, last.kind, last.outcome["receipt"], now)[0]
    assert accepted.take(last.raw, "tick", None, now) == []
    assert any(said in one for one in wrong(entries)), "the replay tells it too"


def test_a_child_too_many_in_the_stores(tmp_path: Path) -> None:
    """T25: stores that agree on it do not make it right."""
    written = Written()
    receipt, said = too_wide(written.log)
    entries = written.accepted(**receipt)
    stores = {node: tmp_path / node for node in ("n1", "n2")}
    for store in stores.values():
        with sqlite3.connect(store) as db:
            db.execute("CREATE TABLE records (seq, offset, kind, status, outcome, head, raw)")
            rows = [(one.seq, one.seq, one.kind, one.status, json.dumps(one.outcome), "", one.raw) for one in entries]
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        db.close()
    with pytest.raises(AssertionError, match=r"MaxWidth 1 of .* is exceeded") as found:
        Checker(stores).check([])
    assert said in str(found.value)


# --- what watchers are told ---

DUE = [
    Told(7, "added", "child", "topic", "2026-01-01T00:00:00Z", "root"),
    Told(9, "removed", "one", "topic", "2026-01-01T00:00:01Z", "root"),
    Told(9, "removed", "other", "topic", "2026-01-01T00:00:01Z", "root"),
]


def payloads(told: list[Told]) -> list[dict[str, Any]]:
    return [
        {"version": version, "seq": one.seq, "change": one.change, "uuid": one.uuid, "kind": one.kind, "at": one.at, "in": one.inside}
        for version, one in enumerate(told, start=1)
    ]


def told(*payloads: Mapping[str, Any]) -> list[str]:
    return list(_as_told(DUE, Received("root", "wanda", list(payloads))))


def test_what_watchers_are_told() -> None:
    """T29, T35: a hole, a double, another order, another change: each is found; changes of one record have no order."""
    first, second, third = payloads(DUE)
    assert told(first, second, third) == []
    swapped = payloads([DUE[0], DUE[2], DUE[1]])
    assert told(*swapped) == []
    later = {**third, "version": 4, "seq": 12}
    assert told(first, second, third, later) == [], "the log has gone on since it was looked at"
    assert "received versions [1, 3]" in told(first, third)[0]
    assert "received versions [1, 2, 2, 3]" in told(first, second, second, third)[0]
    assert "received versions [2, 1, 3]" in told(second, first, third)[0]
    assert "received 2 of 3 changes; missing" in told(first, second)[0]
    assert "not told by the log" in told(first, second, {**third, "uuid": "unheard of"})[0]
    assert "received 3 of 3 changes" in told(*payloads([DUE[1], DUE[0], DUE[2]]))[0]
    assert list(_as_told([], Received("root", "wanda", []))) == []
