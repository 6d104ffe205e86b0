"""What commands show on a terminal while they work: one line, written over; and nothing elsewhere. On a terminal of the kernel's own."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import pytest

from spark.cli.main import _Progress
from tdn.cli.archive import progress_line


class Terminal:
    """A terminal that is `sys.stderr`, and what somebody sees on it."""

    columns = 40

    def __init__(self) -> None:
        self._leader, follower = pty.openpty()
        termios.tcsetwinsize(follower, (24, self.columns))
        self.stream = os.fdopen(follower, "w", encoding="utf-8")
        self.sent = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The leader's end is told by an error, on Linux.
        try:
            while content := os.read(self._leader, 4096):
                self.sent += content.decode()
        except OSError:
            pass

    @property
    def lines(self) -> list[str]:
        lines, at = [""], 0
        rest = self.sent
        while rest:
            if rest.startswith("\x1b[K"):
                lines[-1], rest = lines[-1][:at], rest[3:]
                continue
            letter, rest = rest[0], rest[1:]
            if letter == "\r":
                at = 0
            elif letter == "\n" or at == self.columns:
                lines, at = [*lines, "" if letter == "\n" else letter], 0 if letter == "\n" else 1
            else:
                lines[-1] = f"{lines[-1][:at]:{at}}{letter}{lines[-1][at + 1 :]}"
                at += 1
        return lines

    def shows(self, *lines: str) -> None:
        """Wait until these are its lines."""
        end = time.monotonic() + 10.0
        while self.lines != list(lines):
            assert time.monotonic() < end, (self.lines, lines)
            time.sleep(0.01)

    def close(self) -> None:
        self.stream.close()
        self._reader.join(30.0)
        os.close(self._leader)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


class Stages:
    """A session's tracker of what runs."""

    def __init__(self, *done: tuple[int, int] | None) -> None:
        self.done = done
        self.sparkContext = SimpleNamespace(statusTracker=lambda: self)

    def getActiveStageIds(self) -> list[int]:
        return list(range(len(self.done)))

    def getStageInfo(self, stage: int) -> Any:
        done = self.done[stage]
        return None if done is None else SimpleNamespace(numCompletedTasks=done[0], numTasks=done[1])


def test_a_job_has_one_line(terminal: Terminal) -> None:
    with redirect_stderr(terminal.stream), _Progress() as progress:
        progress("starting Spark")
        terminal.shows("starting Spark")
        # Before there is a stage, and one that ends while it is looked at.
        progress.watch(Stages())
        progress("records 1 to 90: signatures")
        terminal.shows("records 1 to 90: signatures")
        stages = Stages((3, 16), None)
        progress.watch(stages)
        terminal.shows("records 1 to 90: signatures  [3/16]")
        stages.done = ((11, 16),)
        terminal.shows("records 1 to 90: signatures  [11/16]")
        # Shorter than what it is written over; and longer than the terminal is wide.
        progress("results")
        terminal.shows("results  [11/16]")
        progress("q" * 100)
        terminal.shows("q" * 39)
        # By Spark Connect, and when the session is gone, nobody knows.
        progress.watch(object())
        progress("more")
        terminal.shows("more")
    terminal.shows("")


def test_the_line_is_gone_when_a_job_fails(terminal: Terminal) -> None:
    def fail() -> None:
        with redirect_stderr(terminal.stream), _Progress() as progress:
            progress("results")
            terminal.shows("results")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    print("error: what happened", end="", file=terminal.stream, flush=True)
    terminal.shows("error: what happened")


def test_records_are_counted_in_one_line(terminal: Terminal) -> None:
    with redirect_stderr(terminal.stream):
        show = progress_line()
        show(0, 300)
        terminal.shows("0 of 300 records")
        show(100, 300)
        terminal.shows("100 of 300 records")
        # As `verify` says it: at the end of the last batch, and of the last segment.
        show(300, 300)
        show(300, 300)
        print("done", end="", file=sys.stderr, flush=True)
    terminal.shows("300 of 300 records", "done")


@pytest.mark.parametrize("work", [lambda: progress_line()(1, 2), lambda: _job()])
def test_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    before = threading.active_count()
    work()
    assert threading.active_count() == before
    assert written.getvalue() == ""


def _job() -> None:
    with _Progress() as progress:
        progress("results")
        progress.watch(Stages((1, 2)))
        assert not progress._thread.is_alive()
