"""Detached child processes that a later command finds again.

Promises: a process is remembered by its pid *and* its start time, so a recycled pid is never taken for ours
and never killed; what `stop` or `kill_hard` return from is gone with all of its session, whether or not it
was a child of this process. Two commands that start the same name at once are not kept apart here: whoever
calls holds a lock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tdn import environment

_PROC = Path("/proc")

#: How often a waiting stop looks, in seconds. Small beside the second that a broker takes.
_POLL_SECONDS = 0.02

#: What the rest of a session gets to end by itself once its leader is gone, in seconds: helpers of the Erlang
#: runtime notice the closed pipe at once.
_STRAGGLER_SECONDS = 1.0

#: As much goes into a log before the next one is begun, and so many former ones are kept: `NAME.log.1` is the latest of these.
MOST_LOG_BYTES = 20_000_000
_FORMER_LOGS = 2

#: Children of this very process, which have to be reaped or they stay as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What the pid file holds."""

    pid: int
    #: The kernel's start time of that pid, and the boot it counts from.
    started: str
    #: Where in the log this run begins.
    log_offset: int


class DetachedProcess:
    """One named process of a run folder: `NAME.pid` and `NAME.log` in it.

    Its output is appended to the log; `tail` shows the latest run's only. A log that is full when a run begins is put aside; a process that writes more than
    that sees to it itself (`tdn.cli.logs`).
    """

    def __init__(self, run_folder: Path, name: str) -> None:
        self.name = name
        self.run_folder = run_folder
        self.log_path = run_folder / f"{name}.log"
        self.pid_path = run_folder / f"{name}.pid"

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> int:
        """Start it in a session of its own, so that neither Ctrl-C nor the end of this process reaches it.

        The environment is exactly `env`. Raises RuntimeError while an earlier run is alive, OSError when it
        cannot be executed.
        """
        if self.alive():
            raise RuntimeError(f"{self.name} already runs as pid {self.pid}")
        self.run_folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size >= MOST_LOG_BYTES:
                begin_another_log(self.log_path)
        with self.log_path.open("ab") as log:
            offset = log.tell()
            child = subprocess.Popen(  # noqa: S603  # words of ours, no shell
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        _children[child.pid] = child
        # Our child cannot be recycled before we reap it, so the mark read here is its own.
        self._remember(_Remembered(child.pid, start_mark(child.pid) or "", offset))
        return child.pid

    @property
    def pid(self) -> int | None:
        """The pid of the run that is alive, else None."""
        remembered = self._recall()
        return remembered.pid if remembered is not None and _is_running(remembered) else None

    def alive(self) -> bool:
        return self.pid is not None

    def stop(self, *, timeout_seconds: float = 15.0) -> None:
        """SIGTERM; after the timeout SIGKILL to all of its session. Harmless when nothing runs."""
        self._end(signal.SIGTERM, timeout_seconds)

    def kill_hard(self) -> None:
        """SIGKILL to all of its session at once, as a power cut would."""
        self._end(signal.SIGKILL, 0.0)

    def tail(self, *, lines: int = 20) -> str:
        """The last lines that the latest run wrote, for an error message."""
        remembered = self._recall()
        return tail_of(self.log_path, lines=lines, offset=remembered.log_offset if remembered else 0)

    def _end(self, first: signal.Signals, timeout_seconds: float) -> None:
        remembered = self._recall()
        if remembered is None:
            return
        # Listed while the leader lives: afterwards its pid, and with it the session's id, can be anybody's.
        session = _session_of(remembered.pid) if _is_running(remembered) else {}
        if _is_running(remembered):
            if first is signal.SIGTERM:
                _send(remembered.pid, first)
                if not _wait(lambda: not _is_running(remembered), timeout_seconds):
                    session |= _session_of(remembered.pid)
                    _kill_session(remembered)
            else:
                _kill_session(remembered)
            # SIGKILL leaves no choice; what it waits for is the kernel.
            _wait(lambda: not _is_running(remembered), 10.0)
        session.pop(remembered.pid, None)

        def stragglers() -> list[int]:
            return [pid for pid, mark in session.items() if start_mark(pid) == mark]

        if not _wait(lambda: not stragglers(), _STRAGGLER_SECONDS if first is signal.SIGTERM else 0.0):
            for pid in stragglers():
                _send(pid, signal.SIGKILL)
            _wait(lambda: not stragglers(), 10.0)
        self.pid_path.unlink(missing_ok=True)

    def _remember(self, remembered: _Remembered) -> None:
        # Replaced whole: a command that is killed here leaves the old file or the new one.
        fresh = self.pid_path.with_suffix(".pid.new")
        fresh.write_text(json.dumps(asdict(remembered)) + "\n")
        fresh.replace(self.pid_path)

    def _recall(self) -> _Remembered | None:
        try:
            kept = json.loads(self.pid_path.read_text())
            return _Remembered(int(kept["pid"]), str(kept["started"]), int(kept["log_offset"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def tail_of(path: Path, *, lines: int = 20, offset: int = 0) -> str:
    """The last lines of a file, at most 16 KiB of it, from `offset` on; empty when there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset if offset <= end else 0, end - 16_384))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def is_output(path: Path, number: int = 2) -> bool:
    """Whether this process's output of a number (its error output, unless another is asked about) goes to a file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(number), path.stat())
    return False


def begin_another_log(path: Path) -> None:
    """Put a log aside, and the oldest away. What this process printed to it, it prints to the new one: tracebacks of the interpreter too, and what it
    starts from now on. What it has started before (a node's search template) goes on with the former: one file more, for as long as that runs."""
    own = [number for number in (1, 2) if is_output(path, number)]
    fresh = path.with_name(f"{path.name}.new")
    # Open before anything is moved: where that fails, all stays as it is.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    try:
        names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, _FORMER_LOGS + 1))]
        for newer, older in reversed(list(itertools.pairwise(names))):
            if newer.exists():
                newer.replace(older)
        fresh.replace(path)
        for number in own:
            os.dup2(descriptor, number)
    finally:
        os.close(descriptor)


def free_ports(count: int) -> list[int]:
    """Distinct ports of 127.0.0.1 that nothing listens on now."""
    chosen: list[int] = []
    with contextlib.ExitStack() as held:
        # Random, so that two networks that are set up at the same moment rarely meet.
        candidates = environment.ports()
        for port in random.sample(candidates, len(candidates)):
            if len(chosen) == count:
                return chosen
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # As servers do: a port whose last connections linger in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen.append(port)
    raise OSError("no free port on 127.0.0.1")


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now. For several at once: `free_ports`."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_running(remembered: _Remembered) -> bool:
    return start_mark(remembered.pid) == remembered.started


def start_mark(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when it is gone or only a zombie."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
    if not _PROC.joinpath("self").exists():
        return _start_mark_from_ps(pid)
    try:
        stat = _PROC.joinpath(str(pid), "stat").read_text()
        boot = _PROC.joinpath("sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = _after_name(stat)
    state, threads, started = fields[0], int(fields[17]), fields[19]
    # The first thread of a killed process can be a zombie while others still hold its ports.
    if state not in "ZX" or threads > 1:
        return f"{started}@{boot}"
    if child is not None and child.poll() is not None:
        # It ended since we looked first: whoever hears that it is gone finds no zombie either.
        _children.pop(pid, None)
    return None


def _start_mark_from_ps(pid: int) -> str | None:
    # Where there is no /proc (macOS). To the second only, which is what that system offers.
    answer = subprocess.run(  # noqa: S603  # a number, no shell
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False  # noqa: S607  # from the PATH, as every program of the system
    ).stdout.split(maxsplit=1)
    return None if len(answer) < 2 or answer[0].startswith("Z") else answer[1].strip()


def _session_of(leader: int) -> dict[int, str]:
    """Members of the leader's session and their descendants elsewhere, each with its start mark."""
    if not _PROC.joinpath("self").exists():
        return {}
    found: dict[int, tuple[int, int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = _after_name(entry.joinpath("stat").read_text())
                found[int(entry.name)] = (int(fields[1]), int(fields[3]))
    members = {pid for pid, (_, session) in found.items() if session == leader} | {leader}
    # The Erlang runtime puts what it starts into new sessions.
    while more := {pid for pid, (parent, _) in found.items() if parent in members} - members:
        members |= more
    return {pid: mark for pid in members if (mark := start_mark(pid)) is not None}


def _after_name(stat: str) -> list[str]:
    # The name stands in parentheses and may hold spaces and parentheses: fields count from the last one.
    return stat[stat.rindex(")") + 2 :].split()


def _kill_session(remembered: _Remembered) -> None:
    for pid, mark in _session_of(remembered.pid).items():
        if start_mark(pid) == mark:
            _send(pid, signal.SIGKILL)
    # The leader's own group too, for where sessions cannot be listed.
    if _is_running(remembered):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(remembered.pid, signal.SIGKILL)


def _send(pid: int, signal_number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def _wait(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
