"""A start that takes long: it can be ended, and says what it is at."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from tdn.cli import serve
from tdn.cli.starting import Starting, report
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tests.live import until


async def test_a_start_is_ended_where_it_says_how_far_it_is(tmp_path: Path) -> None:
    """SIGTERM sets `stop`; the loop must turn for that, and the work must hear of it."""
    home = Home(tmp_path / "home")
    home.run.mkdir(parents=True)
    starting, stop = Starting(home, Role.NODE, "n1"), asyncio.Event()
    began = threading.Event()

    def begin() -> str:
        for count in itertools.count():
            starting.progress(count)
            began.set()
            time.sleep(0.001)
        raise AssertionError

    making = asyncio.create_task(starting.make(begin, stop))
    try:
        assert await asyncio.to_thread(began.wait, 20)
        assert starting.readiness()["reason"].startswith("it makes its store ready, and has taken in ")
        # Again and again, or it would be taken for paused.
        for _ in range(2):
            await until(lambda: home.reported("node-n1").get("why", "").startswith("it makes its store ready"), "it to say so")
            home.withdraw_report("node-n1")
    finally:
        stop.set()
    assert await asyncio.wait_for(making, 20) is None


async def test_what_a_start_fails_with_is_told(tmp_path: Path) -> None:
    def begin() -> str:
        return (tmp_path / "absent").read_text()

    with pytest.raises(FileNotFoundError):
        await Starting(Home(tmp_path), Role.GUARD, "g1").make(begin, asyncio.Event())


async def test_a_full_disk_is_told_in_the_place_of_what_was_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that said nothing any more, nobody would know that it runs, where `tdn up` has not started it, and nobody why it does not serve."""
    home = Home(tmp_path / "home")
    home.run.mkdir(parents=True)
    report(home, "node-n1", {"ready": True, "sequence": 1_000_000})

    def full(self: Path, *_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as while_it_is_full:
        while_it_is_full.setattr(Path, "write_text", full)
        stop = asyncio.Event()
        running = asyncio.create_task(serve._run(asyncio.Event.wait, stop, home, "node-n1", lambda: {"ready": True}))
        await until(lambda: home.reported("node-n1").get("ready") is False, "it to say that it cannot")
        status = Network(home)._process_status(Role.NODE, "n1")
        assert (status["alive"], status["pid"], status["ready"]) == (True, os.getpid(), False)
        assert status["why"] == f"the disk with {home.run} is full; free some room, or move the home to another disk"
    await until(lambda: home.reported("node-n1").get("ready") is True, "it to go on")
    assert "why" not in Network(home)._process_status(Role.NODE, "n1")
    stop.set()
    await running
