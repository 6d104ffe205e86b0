"""Work for the tests, done in real worker processes: each job names what it does."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tdn import errors

Result = tuple[dict[str, Any], Sequence[bytes]]


def make(argument: Any) -> Callable[[dict[str, Any]], Result]:
    """Fails to start while the file `argument["fails"]` exists."""
    if argument and (flag := argument.get("fails")) and Path(flag).exists():
        raise RuntimeError("told to fail")
    done = 0

    def handle(job: dict[str, Any]) -> Result:
        nonlocal done
        done += 1
        if job["do"] == "count":
            return {"done": done, "pid": os.getpid(), "template": os.getppid(), "argument": argument}, []
        if into := job.get("into"):
            # A link: a worker can open no file to write into.
            Path(into).unlink(missing_ok=True)
            os.symlink(str(os.getpid()), into)
        result: Result = globals()[job["do"]](job)
        return result

    return handle


def make_refused(argument: Any) -> None:
    raise errors.Refused("no such store", detail={"store": argument})


def make_broken(argument: Any) -> None:
    raise ZeroDivisionError("in the factory")


def echo(job: dict[str, Any]) -> Result:
    return {"said": job["say"]}, []


def parts(job: dict[str, Any]) -> Result:
    return {}, [bytes([number % 256]) * job["size"] for number in range(job["count"])]


def nice(job: dict[str, Any]) -> Result:
    """Busy for some time, then the priority it had: 0 in the quick lane, 19 in the others."""
    _spin(job["seconds"])
    return {"nice": os.nice(0), "pid": os.getpid()}, []


def sleep(job: dict[str, Any]) -> Result:
    time.sleep(job["seconds"])
    return {"pid": os.getpid()}, []


def spin(job: dict[str, Any]) -> Result:
    _spin(3600)
    raise AssertionError


def catches_exceptions(job: dict[str, Any]) -> Result:
    while True:
        try:
            _spin(3600)
        except Exception:
            continue


def swallows_once(job: dict[str, Any]) -> Result:
    """Takes the interruption for an ordinary failure, and answers wrongly."""
    try:
        _spin(3600)
    except BaseException:
        return {"wrong": True}, []
    raise AssertionError


def swallowed_by_sqlite(job: dict[str, Any]) -> Result:
    """SQLite turns whatever a function raises into an OperationalError."""
    database = sqlite3.connect(":memory:")
    database.create_function("spin", 0, lambda: _spin(3600))
    try:
        database.execute("select spin()").fetchall()
    except sqlite3.OperationalError:
        return {"wrong": True}, []
    raise AssertionError


def deaf(job: dict[str, Any]) -> Result:
    """Cannot be interrupted: the alarm is blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(3600)
    raise AssertionError


def in_c(job: dict[str, Any]) -> Result:
    """Cannot be interrupted: no Python code runs until the sum is known, in some hours."""
    sum(range(10**12))
    raise AssertionError


def grow(job: dict[str, Any]) -> Result:
    """More and more memory, a few megabytes at a time, then no more."""
    kept = []
    while len(kept) * 4_000_000 < job["size"]:
        kept.append(b"x" * 4_000_000)
    time.sleep(3600)
    raise AssertionError


def grow_at_once(job: dict[str, Any]) -> Result:
    return {"size": len(b"x" * job["size"])}, []


def told_no(job: dict[str, Any]) -> Result:
    """Whether so much memory is there."""
    try:
        return {"no": False, "size": len(b"x" * job["size"])}, []
    except MemoryError:
        return {"no": True}, []


def keep(job: dict[str, Any]) -> Result:
    """Memory that stays when the job is over, and time enough to be seen with it."""
    _kept.append(b"x" * job["size"])
    time.sleep(job["seconds"])
    return {"pid": os.getpid()}, []


_kept: list[bytes] = []


def leave(job: dict[str, Any]) -> Result:
    os._exit(3)


def system_exit(job: dict[str, Any]) -> Result:
    raise SystemExit(3)


def crash(job: dict[str, Any]) -> Result:
    ctypes.string_at(0)
    raise AssertionError


def bug(job: dict[str, Any]) -> Result:
    raise ZeroDivisionError("a bug of ours")


def not_json(job: dict[str, Any]) -> Result:
    return {"odd": object()}, []


def too_large(job: dict[str, Any]) -> Result:
    return {}, [b"x" * (64 * 1024 * 1024)]


def error(job: dict[str, Any]) -> Result:
    raise getattr(errors, job["class"])(job["message"], **job["fields"])


def malformed(job: dict[str, Any]) -> Result:
    raise errors.MalformedMessage("not ours", received=b"\x00\xff")


def odd_detail(job: dict[str, Any]) -> Result:
    raise errors.Refused("no", detail={"odd": object()})


def own_class(job: dict[str, Any]) -> Result:
    class Particular(errors.QueryError):
        pass

    raise Particular("bad", position=3)


def reach_out(job: dict[str, Any]) -> Result:
    """What an engine that was talked into it would try."""
    tried: dict[str, Any] = {}
    for name, attempt in (
        ("file", lambda: os.open("/etc/hostname", os.O_RDONLY)),
        ("socket", lambda: socket.socket()),
        ("copy", lambda: os.dup(0)),
        ("pipe", lambda: os.pipe()),
    ):
        try:
            attempt()
            tried[name] = "done"
        except OSError as error:
            tried[name] = error.strerror
    return tried, []


def environment(job: dict[str, Any]) -> Result:
    return {"names": sorted(os.environ)}, []


def taken_over(job: dict[str, Any]) -> Result:
    """What a worker could do whose engine was taken over: write what it likes to the node."""
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, bytes.fromhex(job["bytes"]))
        except OSError:
            continue
    _spin(3600)
    raise AssertionError


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
