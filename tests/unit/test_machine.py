"""What a failing machine is called: what to do, and the exit code that goes with it."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from tdn import machine
from tdn.errors import LogDiverged, NoRoom, StoreDamaged, TdnError, UsageError
from tdn.store.view import View


def failure(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "kind", "fragment"),
    [
        (failure(errno.ENOSPC, "/h/x"), NoRoom, "the disk with /h/x is full; free some room"),
        (failure(errno.ENOSPC), NoRoom, "the disk is full"),
        (failure(errno.EDQUOT, "/h"), NoRoom, "is full"),
        (failure(errno.EMFILE), NoRoom, "ulimit -n"),
        (failure(errno.EROFS, "/h"), UsageError, "/h cannot be written: its file system is read-only"),
        (failure(errno.EACCES, "/h"), UsageError, "/h: this user may not"),
        (failure(errno.ENOTDIR, "/h"), UsageError, "a home is a folder"),
        (failure(errno.EFBIG, "/h/x"), NoRoom, "/h/x: a file may not become so large there; raise the limit (`ulimit -f`)"),
        (failure(errno.ENOEXEC, "/s"), UsageError, "/s is no program that this machine can run"),
    ],
)
def test_failures_of_the_system(error: OSError, kind: type[TdnError], fragment: str) -> None:
    ours = machine.explain(error)
    assert type(ours) is kind
    assert fragment in ours.message


@pytest.mark.parametrize(
    "error",
    [failure(errno.ECONNREFUSED), failure(errno.EACCES), failure(errno.ENOENT, "/h"), ValueError("x"), sqlite3.Error("x")],
)
def test_what_is_no_failure_of_the_machine(error: Exception) -> None:
    """A bug is not explained away."""
    assert machine.explain(error) is None
    with pytest.raises(type(error)), machine.explained():
        raise error


@pytest.mark.parametrize(
    ("number", "kind", "fragment"),
    [
        (errno.ENOSPC, NoRoom, "/h/x cannot be written: its disk is full; free some room"),
        (errno.EDQUOT, NoRoom, "/h/x cannot be written: its disk is full; free some room"),
        (errno.EFBIG, NoRoom, "/h/x cannot be written: a file may not become so large there"),
        (errno.EMFILE, NoRoom, "ulimit -n"),
        (errno.EACCES, UsageError, "/h/x cannot be written: Permission denied"),
    ],
)
def test_what_a_command_was_told_to_write(number: int, kind: type[TdnError], fragment: str) -> None:
    ours = machine.cannot_write(failure(number, "/h/.x.unfinished"), Path("/h/x"))
    assert (type(ours), fragment in ours.message) == (kind, True)


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_store_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"is damaged \(.*\); `rm '.*a store\.sqlite'\*` and start again") as caught:
        View(path)
    assert isinstance(caught.value, LogDiverged), "whoever stops for the one stops for the other"


def test_a_store_that_is_damaged_while_it_is_used(tmp_path: Path) -> None:
    view = View(tmp_path / "store.sqlite")
    view._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray((tmp_path / "store.sqlite").read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    (tmp_path / "store.sqlite").write_bytes(content)
    view._db.execute("PRAGMA shrink_memory")
    with pytest.raises(StoreDamaged):
        view.apply_all([(1, b"garbage")])
    view.close()


def test_a_store_in_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="a home is a folder"):
        View(tmp_path / "file" / "store.sqlite")


@pytest.mark.parametrize(
    ("number", "fragment"),
    [(errno.EADDRINUSE, "in use by another program"), (errno.EACCES, "above 1023"), (errno.EADDRNOTAVAIL, "nothing can listen")],
)
def test_ports(number: int, fragment: str) -> None:
    ours = machine.cannot_listen(failure(number), "127.0.0.1", 7443, "guard_listen in tdn.toml")
    assert (ours.exit_code, fragment in ours.message, "guard_listen in tdn.toml" in ours.message) == (2, True, True)
