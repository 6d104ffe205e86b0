"""Detached processes: found again, never mistaken for another, and gone when stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tdn.local import processes
from tdn.local.processes import DetachedProcess, free_port, free_ports, tail_of

ENVIRONMENT = {"PATH": os.environ["PATH"], "MARK": "ours"}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def shell(process: DetachedProcess, script: str) -> int:
    return process.spawn(["/bin/sh", "-c", script], env=ENVIRONMENT)


def is_there(pid: int) -> bool:
    try:
        return ") Z " not in Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_output_environment_and_session(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path / "run", "one")
    pid = shell(process, 'echo "mark $MARK home ${HOME:-none}"; echo bad >&2; read line || echo no input; sleep 60')
    try:
        wait_for(lambda: "no input" in process.tail())
        assert process.tail() == "mark ours home none\nbad\nno input"
        assert process.pid == pid
        assert os.getsid(pid) == pid
    finally:
        process.stop()
    assert not process.alive()
    assert process.pid is None
    process.stop()


#: What a node does: it logs, and now and then something is printed past the log, by itself or by what it has started.
WRITER = """
import logging, os, pathlib, subprocess, sys
from tdn.cli import logs
from tdn.local import processes
processes.MOST_LOG_BYTES = 20_000
logs.Bounded.filter = lambda self, record: True
logs.configure(verbose=False, log_format="text", own=pathlib.Path(sys.argv[1]))
for number in range(1000):
    logging.info("line %d %s", number, "x" * 100)
print("printed", flush=True)
subprocess.run(["sh", "-c", "echo started >&2"])
raise ValueError("the last words")
"""


def write(run: Path, own: Path) -> DetachedProcess:
    process = DetachedProcess(run, "one")
    process.spawn([sys.executable, "-c", WRITER, str(own)], env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2])})
    wait_for(lambda: not process.alive())
    return process


def test_a_log_is_bounded_and_ends_with_what_was_printed_last(tmp_path: Path) -> None:
    """1,000 lines make a hundred and forty kilobytes; what is kept is the end of them, whole, and the interpreter's own words are where they belong."""
    (tmp_path / "one.log").write_text("of an earlier run\n")
    process = write(tmp_path, tmp_path / "one.log")
    assert sorted(path.name for path in tmp_path.iterdir() if "log" in path.name) == ["one.log", "one.log.1", "one.log.2"]
    assert all(path.stat().st_size < 21_000 for path in tmp_path.glob("one.log*"))
    kept = "".join((tmp_path / name).read_text() for name in ("one.log.2", "one.log.1", "one.log"))
    numbers = [int(line.split("line ")[1].split()[0]) for line in kept.splitlines() if "line " in line and "xxx" in line]
    assert numbers == list(range(numbers[0], 1000))
    assert len(numbers) > 250
    told = process.tail(lines=50)
    assert "printed\nstarted\nTraceback" in told
    assert told.endswith("ValueError: the last words")


def test_a_file_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    """Somebody's `tdn node 2> FILE`, a journal, a container's pipe: whoever made them bounds them."""
    write(tmp_path / "run", tmp_path / "other.log")
    assert [path.name for path in (tmp_path / "run").iterdir() if "log" in path.name] == ["one.log"]
    assert (tmp_path / "run" / "one.log").stat().st_size > 100_000


def test_a_full_log_is_put_aside_when_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for those that write no log of ours: a broker, a Spark worker."""
    monkeypatch.setattr(processes, "MOST_LOG_BYTES", 10)
    process = DetachedProcess(tmp_path, "one")
    for words in ("first one", "second one", "third one", "fourth one"):
        shell(process, f"echo {words}")
        wait_for(lambda: not process.alive())
        assert process.tail() == words
    assert [(tmp_path / name).read_text() for name in ("one.log.2", "one.log.1", "one.log")] == ["second one\n", "third one\n", "fourth one\n"]


def test_a_running_one_is_not_started_twice(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "one")
    shell(process, "exec sleep 60")
    try:
        with pytest.raises(RuntimeError, match="already runs"):
            shell(process, "exec sleep 60")
    finally:
        process.kill_hard()


def test_one_that_ends_is_reaped_and_can_start_again(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "one")
    first = shell(process, "echo first")
    wait_for(lambda: not process.alive())
    assert not Path("/proc", str(first)).exists(), "a zombie stayed"
    shell(process, "echo second")
    wait_for(lambda: not process.alive())
    assert process.tail() == "second", "only the latest run's output"
    assert process.log_path.read_text() == "first\nsecond\n"


def test_stopping_what_an_earlier_command_started(tmp_path: Path) -> None:
    """`tdn up` has ended; `tdn down` stops its processes, which are no children of its own."""
    script = (
        "import sys; from pathlib import Path; from tdn.local.processes import DetachedProcess;"
        "print(DetachedProcess(Path(sys.argv[1]), 'one').spawn(['/bin/sleep', '60'], env={}))"
    )
    told = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    process = DetachedProcess(tmp_path, "one")
    assert process.pid == int(told.stdout)
    process.stop()
    assert not is_there(int(told.stdout))
    assert not process.pid_path.exists()


def test_one_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "stubborn")
    # The second child leaves the session, as what Erlang starts does.
    pid = shell(process, "trap '' TERM; sleep 60 & echo $!; setsid sleep 60 & echo $!; echo ready; wait; sleep 60")
    wait_for(lambda: process.tail().endswith("ready"))
    children = [int(line) for line in process.tail().splitlines()[:2]]
    assert all(map(is_there, children))
    process.stop(timeout_seconds=0.2)
    assert not any(map(is_there, [pid, *children]))


def test_children_do_not_outlive_an_orderly_end(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "parent")
    shell(process, "trap 'exit 0' TERM; sleep 60 & echo $!; echo ready; wait")
    wait_for(lambda: process.tail().endswith("ready"))
    child = int(process.tail().splitlines()[0])
    process.stop()
    assert not is_there(child)


def test_kill_hard_asks_nobody(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "one")
    pid = shell(process, "trap 'echo asked' TERM; echo ready; sleep 60; sleep 60")
    wait_for(lambda: process.tail() == "ready")
    process.kill_hard()
    assert not is_there(pid)
    # Not "ready" alone: a shell that outlives its child by a moment writes "Killed".
    assert "asked" not in process.log_path.read_text()


def test_a_recycled_pid_is_neither_ours_nor_killed(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "one")
    with subprocess.Popen(["/bin/sleep", "60"]) as stranger:
        try:
            for started in ("12345@another-boot", ""):
                process.pid_path.write_text(json.dumps({"pid": stranger.pid, "started": started, "log_offset": 0}))
                assert not process.alive()
                process.stop()
                process.kill_hard()
                assert stranger.poll() is None
        finally:
            stranger.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', "4711"])
def test_a_damaged_pid_file_counts_as_none(tmp_path: Path, content: str) -> None:
    process = DetachedProcess(tmp_path, "one")
    process.pid_path.write_text(content)
    assert not process.alive()
    process.stop()


def test_gone_means_that_the_ports_are_free(tmp_path: Path) -> None:
    """A killed process with many threads is a zombie before the last of them has let go of the sockets."""
    port = free_port()
    script = (
        "import socket, threading\n"
        f"s = socket.create_server(('127.0.0.1', {port}))\n"
        "for _ in range(100): threading.Thread(target=threading.Event().wait).start()\n"
        "print('ready', flush=True)\n"
    )
    process = DetachedProcess(tmp_path, "threads")
    for _ in range(5):
        process.spawn([sys.executable, "-c", script], env=ENVIRONMENT)
        wait_for(lambda: process.tail() == "ready")
        process.kill_hard()
        socket.create_server(("127.0.0.1", port)).close()


def test_what_cannot_be_executed(tmp_path: Path) -> None:
    process = DetachedProcess(tmp_path, "one")
    with pytest.raises(FileNotFoundError):
        process.spawn(["/no/such/program"], env={})
    assert not process.alive()


def test_tail_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail_of(path) == ""
    path.write_bytes(b"x" * 100_000 + b"\n\xff last\n")
    assert tail_of(path, lines=1) == "\N{REPLACEMENT CHARACTER} last"
    assert len(tail_of(path, lines=5)) <= 16_384
    assert tail_of(path, offset=10**9).endswith("last"), "a log that was rotated away is read from its start"


def test_free_ports_are_distinct_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])):
        assert free_port() != ports[0]
