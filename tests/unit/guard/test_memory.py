"""What a guard remembers: whom it allowed to publish where, in both directions, after a kill, and beside new connections."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.guard import memory
from tdn.guard.memory import MEMORY_FILE, Remembered

ALICE, BOB = (f"tdn:entity:{name}:{'ab' * 32}" for name in ("alice", "bob"))
T1, T2, T3 = "topic-1", "topic-2", "topic-3"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "g1" / MEMORY_FILE


def pairs(remembered: Remembered) -> set[tuple[str, str]]:
    """Everything, after a look that both indexes agree."""
    one = {(login, topic) for login in remembered.logins() for topic in remembered.topics_of(login)}
    other = {(login, topic) for topic in remembered.all_topics() for login in remembered.publishers(topic)}
    assert one == other
    assert len(one) == len(remembered)
    return one


def reopened(remembered: Remembered) -> Remembered:
    remembered.close()
    return Remembered(remembered.path)


def test_both_directions(path: Path) -> None:
    remembered = Remembered(path)
    remembered.remember(ALICE, T1, ("g1", "g2"))
    remembered.remember(ALICE, T2, ())
    remembered.remember(BOB, T1, ("g3",))
    for again in (remembered, reopened(remembered)):
        assert sorted(again.publishers(T1)) == [ALICE, BOB]
        assert again.publishers(T2) == [ALICE]
        assert sorted(again.topics_of(ALICE)) == [T1, T2]
        assert (again.topics_of("nobody"), again.publishers("nothing")) == ([], [])
        assert (sorted(again.logins()), sorted(again.all_topics())) == ([ALICE, BOB], [T1, T2])


def test_forgetting_a_login_or_one_of_its_topics(path: Path) -> None:
    remembered = Remembered(path)
    for login in (ALICE, BOB):
        for topic in (T1, T2):
            remembered.remember(login, topic, ())
    remembered.forget_topic(ALICE, T2)
    remembered.forget_topic(ALICE, "nothing")
    remembered.forget_topic("nobody", T1)
    remembered.forget("nobody")
    assert pairs(remembered) == {(ALICE, T1), (BOB, T1), (BOB, T2)}
    remembered.forget(BOB)
    remembered = reopened(remembered)
    assert pairs(remembered) == {(ALICE, T1)}
    assert remembered.publishers(T2) == []
    assert remembered.all_topics() == [T1]


def test_what_is_allowed_after_the_mark_stays(path: Path) -> None:
    """A login connects anew while its old connections are being closed: its new rights must not be forgotten with the old."""
    remembered = Remembered(path)
    remembered.remember(ALICE, T1, ())
    remembered.remember(ALICE, T2, ())
    moment = remembered.mark()
    remembered.remember(ALICE, T2, ())
    remembered.remember(ALICE, T3, ())
    remembered.forget(ALICE, until=moment)
    assert pairs(remembered) == {(ALICE, T2), (ALICE, T3)}
    assert pairs(reopened(remembered)) == {(ALICE, T2), (ALICE, T3)}


def test_two_closings_at_once(path: Path) -> None:
    remembered = Remembered(path)
    remembered.remember(ALICE, T1, ())
    first = remembered.mark()
    remembered.remember(ALICE, T2, ())
    second = remembered.mark()
    remembered.remember(ALICE, T3, ())
    remembered.forget_topic(ALICE, T2, until=first)
    remembered.forget(ALICE, until=first)
    assert pairs(remembered) == {(ALICE, T2), (ALICE, T3)}
    remembered.forget(ALICE, until=second)
    assert pairs(remembered) == {(ALICE, T3)}
    remembered = reopened(remembered)
    remembered.forget(ALICE, until=remembered.mark())
    assert pairs(remembered) == set(), "what was loaded is older than any mark"


def test_only_the_first_time_is_written(path: Path) -> None:
    remembered = Remembered(path)
    remembered.remember(ALICE, T1, ("g1",))
    before = remembered._db.total_changes
    for _ in range(10):
        remembered.remember(ALICE, T1, ("g1",))
    assert remembered._db.total_changes == before


def test_a_killed_guard_remembers(path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from tdn.guard.memory import Remembered
remembered = Remembered(Path({str(path)!r}))
remembered.completed()
for number in range(500):
    remembered.remember({ALICE!r}, str(number), ("g",))
remembered.forget_topic({ALICE!r}, "7")
print("done", flush=True)
sys.stdin.read()
"""
    guard = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert guard.stdout is not None
    assert guard.stdout.readline() == "done\n"
    guard.kill()
    assert guard.wait() == -signal.SIGKILL
    guard.communicate()
    again = Remembered(path)
    assert pairs(again) == {(ALICE, str(number)) for number in range(500) if number != 7}
    assert again.complete


def test_what_cannot_be_written_is_not_remembered(path: Path) -> None:
    """The guard then fails, and the publish is denied."""
    remembered = Remembered(path)
    remembered.remember(ALICE, T1, ())
    remembered._db.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError):
        remembered.remember(ALICE, T2, ())
    with pytest.raises(sqlite3.OperationalError):
        remembered.forget(ALICE)
    other.execute("ROLLBACK")
    other.close()
    assert pairs(remembered) == {(ALICE, T1)}
    remembered.remember(ALICE, T2, ())
    assert pairs(reopened(remembered)) == {(ALICE, T1), (ALICE, T2)}


def test_complete_only_while_nothing_can_be_lost(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(memory, "_BOOT_ID", boot)
    boot.write_text("first\n")
    remembered = Remembered(path)
    assert not remembered.complete, "a new file knows nothing of connections that are open"
    remembered = reopened(remembered)
    assert not remembered.complete, "until somebody says that they were closed"
    remembered.completed()
    assert remembered.complete
    remembered.remember(ALICE, T1, ())
    remembered = reopened(remembered)
    assert remembered.complete

    boot.write_text("second\n")
    remembered = reopened(remembered)
    assert not remembered.complete, "the machine went down: the last entries may be lost"
    assert pairs(remembered) == {(ALICE, T1)}
    remembered.completed()
    assert reopened(remembered).complete

    boot.unlink()
    remembered = reopened(remembered)
    remembered.completed()
    assert not reopened(remembered).complete, "without a sign of the machine's start, every start may be one"


def test_an_unusable_memory_is_set_aside_and_is_not_complete(path: Path) -> None:
    remembered = Remembered(path)
    remembered.completed()
    remembered.close()
    path.write_bytes(b"no database" * 1000)
    again = Remembered(path)
    assert not again.complete
    assert pairs(again) == set()
    again.remember(ALICE, T1, ())
    assert pairs(reopened(again)) == {(ALICE, T1)}
    assert len(list(path.parent.glob(f"{MEMORY_FILE}.unusable-*"))) == 1


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["remember", "forget", "forget_topic", "reopen"]), st.sampled_from("abc"), st.sampled_from("xyz")
        ),
        max_size=40,
    )
)
def test_it_is_a_set_of_pairs_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    remembered = Remembered(tmp_path_factory.mktemp("memory") / MEMORY_FILE)
    model: set[tuple[str, str]] = set()
    for act, login, topic in steps:
        if act == "remember":
            remembered.remember(login, topic, ("g",))
            model.add((login, topic))
        elif act == "forget":
            remembered.forget(login)
            model = {pair for pair in model if pair[0] != login}
        elif act == "forget_topic":
            remembered.forget_topic(login, topic)
            model.discard((login, topic))
        else:
            remembered = reopened(remembered)
        assert pairs(remembered) == model
    remembered.close()
