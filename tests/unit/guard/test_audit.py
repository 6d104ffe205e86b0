"""The audit log: what is kept, what is counted, what is pruned, and that others can read it while the guard writes or after it was killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tdn.errors import UsageError
from tdn.guard import audit
from tdn.guard.audit import DENIALS_BURST, MAX_CHARACTERS, OTHERS, REPEATS_SECONDS, TOO_MANY, Audit, Entry, search

T0 = datetime(2027, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
TOPIC = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
OTHER_TOPIC = "9d1b1a52-0c3e-4f83-8d41-5b8e6f207a12"
GRANT = "0a6f2c4e-5a57-4f3e-9c86-2a1b7c9d0e11"


def login_of(entity: str) -> str:
    return f"tdn:entity:{entity}:{'ab' * 32}"


DENIED = Entry(T0, login_of("mallory"), "mallory", "publish", f"exchange {TOPIC}", TOPIC, False, "no grant")
ALLOWED = Entry(T0, login_of("bob"), "bob", "publish", f"exchange {TOPIC}", TOPIC, True, "a grant", GRANT)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "g1" / audit.AUDIT_FILE


def found(path: Path, **filters: Any) -> list[dict[str, Any]]:
    return list(search(path, **filters))


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def test_an_entry_comes_back_whole(path: Path) -> None:
    log = Audit(path)
    log.note(ALLOWED)
    assert found(path) == [], "noting writes nothing"
    log.flush()
    assert found(path) == [
        {
            "at": T0,
            "entity": "bob",
            "login": login_of("bob"),
            "action": "publish",
            "resource": f"exchange {TOPIC}",
            "topic": TOPIC,
            "allowed": True,
            "because": "a grant",
            "grant": GRANT,
            "count": 1,
        }
    ]


def test_search_by_entity_topic_time_and_verdict(path: Path) -> None:
    log = Audit(path)
    log.note(replace(DENIED, at=at(3)))
    log.note(replace(ALLOWED, at=at(1)))
    log.note(replace(ALLOWED, at=at(2), topic=OTHER_TOPIC, resource="another"))
    log.note(replace(DENIED, at=at(4), login="guest", entity=None, topic=None, action="login"))
    log.close()

    def times(**filters: Any) -> list[float]:
        return [(entry["at"] - T0).total_seconds() for entry in search(path, **filters)]

    assert times() == [1, 2, 3, 4], "in time order, however they were noted"
    assert times(entity="bob") == [1, 2]
    assert times(entity="guest") == []
    assert times(topic=TOPIC) == [1, 3]
    assert times(entity="bob", topic=OTHER_TOPIC) == [2]
    assert times(since=at(3)) == [3, 4], "includes its moment"
    assert times(denied_only=True) == [3, 4]
    assert times(limit=2) == [3, 4], "the latest"
    assert times(limit=9) == [1, 2, 3, 4]
    assert times(limit=1, entity="bob") == [2]


def test_a_search_reads_on_over_many_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_READ_AT_ONCE", 3)
    log = Audit(path)
    for number in range(20):
        log.note(replace(DENIED, at=at(number // 4), resource=str(number)))
    log.flush()
    reading = search(path)
    first = next(reading)
    log.note(replace(DENIED, at=at(99), resource="later"))
    log.flush()
    assert [entry["resource"] for entry in (first, *reading)] == [str(number) for number in range(20)]
    assert len(found(path)) == 21


def test_equal_denials_are_one_row_with_a_count(path: Path) -> None:
    log = Audit(path)
    for number in range(500):
        log.note(replace(DENIED, at=at(number / 1000)))
        log.note(replace(DENIED, login=login_of("eve"), entity="eve"))
    log.note(replace(DENIED, because="another reason"))
    log.flush()
    assert Counter({(entry["entity"], entry["because"]): entry["count"] for entry in search(path)}) == {
        ("mallory", "no grant"): 500,
        ("eve", "no grant"): 500,
        ("mallory", "another reason"): 1,
    }
    assert found(path, entity="mallory")[0]["at"] == T0, "the first of them"
    log.note(DENIED)
    log.flush()
    assert [entry["count"] for entry in search(path, entity="mallory") if entry["because"] == "no grant"] == [500, 1]


def test_what_is_allowed_again_is_counted_once_a_minute(path: Path) -> None:
    """A channel that publishes to many topics asks for every message."""
    clock = Clock()
    log = Audit(path, clock=clock)
    for _ in range(50):
        for _ in range(100):
            log.note(ALLOWED)
        log.flush()
        clock.seconds += 0.1
    assert [entry["count"] for entry in search(path)] == [1], "told at once, then counted"
    log.note(replace(ALLOWED, grant="another"))
    log.flush()
    assert [entry["grant"] for entry in search(path)] == [GRANT, "another"], "another grant is another thing"
    clock.seconds += REPEATS_SECONDS
    log.flush()
    assert sum(entry["count"] for entry in search(path) if entry["grant"] == GRANT) == 5000
    assert len(found(path)) == 3
    log.note(ALLOWED)
    log.flush()
    assert len(found(path)) == 4, "a new minute tells it anew"


def test_counts_are_written_at_the_end(path: Path) -> None:
    log = Audit(path)
    for _ in range(7):
        log.note(ALLOWED)
    log.close()
    assert sum(entry["count"] for entry in search(path)) == 7


def test_one_login_cannot_fill_the_log(path: Path) -> None:
    """Different denials of one login are told apart up to a rate, then counted; others are not touched by it."""
    clock = Clock()
    log = Audit(path, clock=clock)
    for window in range(20):
        for number in range(1000):
            log.note(replace(DENIED, resource=f"{window} {number}"))
        log.flush()
        clock.seconds += 0.01
    log.note(ALLOWED)
    log.note(replace(DENIED, login=login_of("eve"), entity="eve"))
    log.flush()
    assert len(found(path, entity="mallory")) == DENIALS_BURST
    assert (len(found(path, entity="bob")), len(found(path, entity="eve"))) == (1, 1)

    clock.seconds += REPEATS_SECONDS
    log.flush()
    rest = found(path, entity="mallory")[DENIALS_BURST:]
    assert [(entry["resource"], entry["because"], entry["count"]) for entry in rest] == [(OTHERS, TOO_MANY, 19_000)]
    log.note(replace(DENIED, resource="later"))
    log.flush()
    assert found(path, entity="mallory")[-1]["resource"] == "later", "it is told apart again after a while"


def test_names_that_are_only_claimed_share_one_measure(path: Path) -> None:
    """Who is not logged in yet can call itself anything, another's name too; that must not use up the other's measure."""
    clock = Clock()
    log = Audit(path, clock=clock)
    for number in range(2 * DENIALS_BURST):
        name = f"e{number}"
        log.note(replace(DENIED, login=login_of(name), entity=name, action="login", resource=""))
        log.note(replace(DENIED, login=f"stranger {number}", entity=None, action="login", resource=""))
    log.note(replace(DENIED, login=login_of("e1"), entity="e1"))
    log.close()
    entries = found(path)
    assert len(entries) == DENIALS_BURST + 2
    assert sum(entry["count"] for entry in entries) == 4 * DENIALS_BURST + 1
    assert [entry["action"] for entry in found(path, entity="e1")].count("publish") == 1
    assert [entry["login"] for entry in entries if entry["resource"] == OTHERS] == [""]


def test_memory_is_bounded_while_nothing_is_flushed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_MOST_WAITING", 100)
    log = Audit(path)
    for number in range(1000):
        log.note(replace(ALLOWED, resource=str(number)))
    log.close()
    assert sum(entry["count"] for entry in search(path)) == 1000
    assert len(found(path)) == 101


@pytest.mark.parametrize("kind", ["denied", "allowed"])
def test_old_rows_go_and_neither_kind_pushes_out_the_other(path: Path, kind: str) -> None:
    few, many = (ALLOWED, DENIED) if kind == "denied" else (DENIED, ALLOWED)
    log = Audit(path, keep_rows=100)
    for number in range(10):
        log.note(replace(few, at=at(number), resource=f"few {number}"))
    for number in range(300):
        log.note(replace(many, at=at(100 + number), resource=f"many {number}"))
        if number % 7 == 0:
            log.flush()
    log.flush()
    resources = [entry["resource"] for entry in search(path)]
    assert resources == [f"few {number}" for number in range(10)] + [f"many {number}" for number in range(210, 300)]


def test_a_log_that_is_to_be_shorter_shrinks_in_portions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_PRUNED_AT_ONCE", 50)
    log = Audit(path)
    for number in range(200):
        log.note(replace(ALLOWED, at=at(number), resource=str(number)))
    log.close()
    log = Audit(path, keep_rows=20)
    sizes = []
    for _ in range(5):
        log.flush()
        sizes.append(len(found(path)))
    assert sizes == [150, 100, 50, 20, 20]
    assert [entry["resource"] for entry in search(path)] == [str(number) for number in range(180, 200)]


def test_strangers_text_is_bounded_and_prints(path: Path) -> None:
    hostile = "a\x1b[2Jb\x1b]0;title\x07c\u202ed\x9b31m\ud800\n"
    log = Audit(path)
    log.note(Entry(T0, hostile, None, hostile, hostile + "x" * 60_000, hostile, False, "y" * 60_000, hostile))
    log.note(replace(ALLOWED, grant=",".join([GRANT] * 20)))
    log.flush()
    entry, whole = found(path)
    texts = [value for value in entry.values() if isinstance(value, str)]
    assert len(texts) == 6
    for text in texts:
        assert text.isprintable()
        assert len(text) <= MAX_CHARACTERS
    assert entry["login"] == "a·[2Jb·]0;title·c·d·31m··"
    assert entry["because"].endswith("y…")
    assert whole["grant"] == ",".join([GRANT] * 20), "a chain of ours stays whole"
    assert path.stat().st_size < 100_000


def test_no_file_no_entries(path: Path) -> None:
    assert found(path) == []
    assert not path.exists(), "reading makes nothing"


def test_readers_of_a_closed_and_of_an_open_log_leave_it_alone(path: Path) -> None:
    log = Audit(path)
    log.note(DENIED)
    log.close()
    assert len(found(path)) == 1
    log = Audit(path)
    log._db.execute("PRAGMA busy_timeout=0")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM entries").fetchone()
    log.note(ALLOWED)
    log.flush()
    assert len(found(path)) == 2, "nobody who reads keeps the guard from writing"
    reader.close()
    log.close()


def test_what_was_flushed_survives_a_killed_guard(path: Path) -> None:
    program = f"""
import sys
from datetime import UTC, datetime
from pathlib import Path
from tdn.guard.audit import Audit, Entry
log = Audit(Path({str(path)!r}))
for number in range(1000):
    log.note(Entry(datetime.now(UTC), "x", None, "publish", str(number), None, False, "no"))
    log.flush()
print("flushed", flush=True)
log.note(Entry(datetime.now(UTC), "x", None, "publish", "never", None, False, "no"))
sys.stdin.read()
"""
    writer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "flushed\n"
    assert len(found(path)) == 1000, "while it writes"
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    writer.communicate()
    assert [entry["resource"] for entry in search(path)] == [str(number) for number in range(1000)]
    again = Audit(path)
    again.note(DENIED)
    again.close()
    assert len(found(path)) == 1001


def test_a_log_that_cannot_be_written_keeps_its_entries(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Audit(path)
    log._db.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(3):
        log.note(DENIED)
        log.flush()
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"
    other.execute("ROLLBACK")
    other.close()
    log.flush()
    assert [entry["count"] for entry in search(path)] == [3]


def test_an_unusable_log_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(UsageError, match="cannot be read"):
        found(path)
    log = Audit(path)
    assert "a new one begins" in caplog.text
    log.note(DENIED)
    log.close()
    assert len(found(path)) == 1
    (aside,) = path.parent.glob("audit.sqlite.unusable-*")
    assert aside.read_bytes().startswith(b"no database")


def test_a_log_that_breaks_while_the_guard_runs_is_set_aside(path: Path) -> None:
    log = Audit(path)
    log.note(DENIED)
    log.flush()
    log._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    log._db.execute("PRAGMA cache_size=0")
    with path.open("r+b") as file:
        # The table itself; the indexes stay sound, so that opening the file would not show it.
        file.seek(4096)
        file.write(b"\xff" * 4096)
    for _ in range(2):
        log.note(ALLOWED)
        log.flush()
    assert [entry["entity"] for entry in search(path)] == ["bob"]
    assert len(list(path.parent.glob("audit.sqlite.unusable-*"))) == 1


def test_a_log_of_a_newer_build_is_left_alone(path: Path) -> None:
    Audit(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UsageError, match="newer build"):
        Audit(path)
    with pytest.raises(UsageError, match="newer build"):
        found(path)
