"""Work of strangers in processes that can be killed: every way in which a job can end, and that the others never notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tdn.confined.frames import WorkFailed
from tdn.confined.lanes import Lanes, Limits
from tdn.confined.processes import StartFailed
from tdn.errors import Absent, LoginRefused, MalformedMessage, QueryError, Refused, TdnError

HERE = str(Path(__file__).parent)
MEGABYTE = 1024**2
#: Small, so that tests are short, and one worker in each lane, so that what holds it is seen.
SMALL = {
    "quick_seconds": 0.05,
    "slow_seconds": 0.3,
    "memory_bytes": 200 * MEGABYTE,
    "quick_workers": 1,
    "slow_workers": 1,
    "heavy_workers": 1,
}
#: For tests in which no limit should strike, however slow the machine.
PATIENT = {**SMALL, "quick_seconds": 30.0, "slow_seconds": 30.0}
#: Longest wait for a condition, in seconds. A failure, not a pause.
LONG = 20.0


@pytest.fixture(autouse=True)
def _handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


@contextlib.asynccontextmanager
async def open_lanes(settings: dict[str, Any], *, argument: Any = None, work: str = "handlers:make") -> AsyncIterator[Lanes]:
    lanes = Lanes(work, argument, limits=Limits(**settings))
    await lanes.start()
    try:
        async with asyncio.timeout(60):
            yield lanes
    finally:
        await lanes.close()


async def pid_of(lanes: Lanes, **how: Any) -> int:
    return int((await lanes.run({"do": "count"}, asker="test", **how))[0]["pid"])


def staff(lanes: Lanes, *names: str) -> set[int]:
    """The pids of the workers in these lanes, or in all."""
    return {worker.pid for lane in lanes._lanes if not names or lane.name in names for worker in lane._staff}


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition was never fulfilled"
        await asyncio.sleep(0.005)


def exists(pid: int) -> bool:
    """As a process, or as a zombie that nobody has reaped."""
    return Path(f"/proc/{pid}").exists()


def gone(pid: int) -> bool:
    """No such process, or only its zombie, which whoever inherits it has not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# What comes back.


async def test_results_and_parts_come_back() -> None:
    async with open_lanes(PATIENT, argument={"store": "x"}) as lanes:
        assert await lanes.run({"do": "echo", "say": ["é\ud800", 1.5, None]}, asker="a") == ({"said": ["é\ud800", 1.5, None]}, [])
        counted, _ = await lanes.run({"do": "count", "parts": "a job may use any name"}, asker="a")
        assert counted["argument"] == {"store": "x"}
        _, parts = await lanes.run({"do": "parts", "count": 1000, "size": 2000}, asker="a")
        assert parts == [bytes([number % 256]) * 2000 for number in range(1000)]
        assert await lanes.run({"do": "parts", "count": 1, "size": 2 * MEGABYTE}, asker="a", heavy=True) == (
            {},
            [bytes(2 * MEGABYTE)],
        )


async def test_errors_of_ours_survive() -> None:
    """T13: a wrong query gets its position and a hint, also through a process."""
    raised: list[tuple[type[TdnError], dict[str, Any]]] = [
        (QueryError, {"position": 7, "hint": "close the bracket"}),
        (QueryError, {}),
        (Refused, {"detail": {"limit": 3, "nested": {"a": [1]}}}),
        (Absent, {}),
        (LoginRefused, {"detail": {"x": None}}),
    ]
    async with open_lanes(PATIENT) as lanes:
        for kind, fields in raised:
            with pytest.raises(TdnError) as caught:
                await lanes.run({"do": "error", "class": kind.__name__, "message": "bad", "fields": fields}, asker="a")
            assert type(caught.value) is kind
            assert caught.value.as_object() == kind("bad", **fields).as_object()
        with pytest.raises(MalformedMessage) as malformed:
            await lanes.run({"do": "malformed"}, asker="a")
        assert malformed.value.received == b"\x00\xff"
        with pytest.raises(QueryError) as particular:
            await lanes.run({"do": "own_class"}, asker="a")
        assert particular.value.detail == {"position": 3}


async def test_a_bug_brings_its_traceback_and_the_worker_stays() -> None:
    bugs = {
        "bug": "a bug of ours",
        "system_exit": "SystemExit",
        "not_json": "not JSON serializable",
        "too_large": "BadFrame",
        "odd_detail": "not JSON serializable",
    }
    async with open_lanes(PATIENT) as lanes:
        before = await pid_of(lanes)
        for do, named in bugs.items():
            with pytest.raises(WorkFailed, match=named) as caught:
                await lanes.run({"do": do}, asker="a")
            assert "Traceback" in caught.value.traceback
            assert not isinstance(caught.value, TdnError)
        assert await pid_of(lanes) == before


# Time.


async def test_a_busy_loop_is_refused_at_its_limit_and_others_are_answered_meanwhile() -> None:
    """T13: a query that is too expensive ends in a clear error, and other askers do not notice."""
    async with open_lanes(SMALL) as lanes:
        before = staff(lanes, "quick")  # In the others a busy machine may leave no time to react.
        expensive = asyncio.create_task(lanes.run({"do": "spin"}, asker="hostile"))
        answered = 0
        while not expensive.done():
            await lanes.run({"do": "echo", "say": 1}, asker="other")
            answered += 1
        with pytest.raises(Refused, match=r"took longer than 0\.3 s and was stopped; make it more selective"):
            await expensive
        assert answered > 10
        assert staff(lanes, "quick") == before, "an interruption costs no process"


async def test_what_is_not_quick_starts_over_at_the_lowest_priority() -> None:
    async with open_lanes({**SMALL, "quick_seconds": 0.2, "slow_seconds": 30.0}) as lanes:
        quick, _ = await lanes.run({"do": "nice", "seconds": 0}, asker="a")
        slow, _ = await lanes.run({"do": "nice", "seconds": 0.3}, asker="a")
        heavy, _ = await lanes.run({"do": "nice", "seconds": 0}, asker="a", heavy=True)
        assert (slow["nice"], heavy["nice"]) == (19, 19)
        assert quick["nice"] == os.nice(0)
        assert len({quick["pid"], slow["pid"], heavy["pid"]}) == 3


async def test_an_interruption_cannot_be_swallowed() -> None:
    """Neither `except Exception` nor a result made after the interruption stands: it may be a wrong one."""
    async with open_lanes({**SMALL, "slow_workers": 3}) as lanes:
        before = staff(lanes, "quick")  # In the others a busy machine may leave no time to react.
        jobs = ["catches_exceptions", "swallows_once", "swallowed_by_sqlite"]
        for ended in await asyncio.gather(*(lanes.run({"do": do}, asker=do) for do in jobs), return_exceptions=True):
            assert isinstance(ended, Refused), ended
            assert "took longer" in ended.message
        assert staff(lanes, "quick") == before, "no worker had to be killed"


async def test_what_cannot_be_interrupted_is_killed_and_replaced(tmp_path: Path) -> None:
    async with open_lanes({**SMALL, "quick_workers": 2, "slow_workers": 2}) as lanes:
        quick, slow = staff(lanes, "quick"), staff(lanes, "slow")
        jobs = [{"do": do, "into": str(tmp_path / do)} for do in ("deaf", "in_c")]
        for ended in await asyncio.gather(*(lanes.run(job, asker=job["do"]) for job in jobs), return_exceptions=True):
            assert isinstance(ended, Refused), ended
            assert "took longer than 0.3 s" in ended.message
        assert {int(os.readlink(tmp_path / do)) for do in ("deaf", "in_c")} == slow, "each had its time in both lanes"
        await until(lambda: all(gone(pid) for pid in quick | slow))
        assert await pid_of(lanes) not in quick


async def test_heavy_work_is_killed_at_its_limit_and_disturbs_nobody() -> None:
    async with open_lanes(SMALL) as lanes:
        others, heavy = staff(lanes, "quick", "slow"), await pid_of(lanes, heavy=True)
        began = time.monotonic()
        with pytest.raises(Refused, match=r"took longer than 0\.3 s"):
            await lanes.run({"do": "in_c"}, asker="a", heavy=True)
        assert time.monotonic() - began >= 0.3
        await until(lambda: gone(heavy))
        assert await pid_of(lanes, heavy=True) != heavy
        assert staff(lanes, "quick", "slow") == others


# Memory and death.


async def test_memory_that_grows_is_seen_and_stopped() -> None:
    """Well below what the kernel would give: it is the node that looks."""
    async with open_lanes(PATIENT) as lanes:
        before = await pid_of(lanes)
        with pytest.raises(Refused, match="needed more than 200 MB and was stopped"):
            await lanes.run({"do": "grow", "size": 300 * MEGABYTE}, asker="a")
        await until(lambda: gone(before))
        assert await pid_of(lanes) != before


async def test_memory_taken_at_once_is_not_given() -> None:
    """The kernel says no before the node could look; the worker is replaced."""
    async with open_lanes(PATIENT) as lanes:
        assert (await lanes.run({"do": "told_no", "size": 4096 * MEGABYTE}, asker="a"))[0] == {"no": True}
        before = await pid_of(lanes)
        with pytest.raises(Refused, match="needed more than 200 MB"):
            await lanes.run({"do": "grow_at_once", "size": 4096 * MEGABYTE}, asker="a")
        assert await pid_of(lanes) != before
        assert (await lanes.run({"do": "grow_at_once", "size": 50 * MEGABYTE}, asker="a"))[0] == {"size": 50 * MEGABYTE}


async def test_a_worker_that_keeps_much_is_replaced_before_another_job_is_blamed() -> None:
    async with open_lanes(PATIENT) as lanes:
        kept, _ = await lanes.run({"do": "keep", "size": 150 * MEGABYTE, "seconds": 0.2}, asker="a")
        assert await pid_of(lanes) != kept["pid"]
        await until(lambda: gone(kept["pid"]))


async def test_a_worker_that_dies_is_replaced() -> None:
    async with open_lanes(SMALL) as lanes:
        for do, heavy in [("leave", False), ("crash", False), ("leave", True), ("crash", True)]:
            before = await pid_of(lanes, heavy=heavy)
            with pytest.raises(Refused, match="could not be evaluated"):
                await lanes.run({"do": do}, asker="a", heavy=heavy)
            assert await pid_of(lanes, heavy=heavy) != before


async def test_a_worker_that_was_taken_over_cannot_do_more_than_fail() -> None:
    """What it sends becomes neither objects nor an answer to another; it is killed."""
    frames = [
        b"\xff" * 64,
        *(struct.pack(">II", len(head), 0) + head for head in (b"{}", b"[]", b'{"error":null}', b'{"result":[]}')),
    ]
    async with open_lanes(SMALL) as lanes:
        for frame in frames:
            before = await pid_of(lanes)
            with pytest.raises(Refused, match="could not be evaluated"):
                await lanes.run({"do": "taken_over", "bytes": frame.hex()}, asker="a")
            assert await pid_of(lanes) != before
            await until(lambda pid=before: gone(pid))  # type: ignore[misc]


@pytest.mark.parametrize("heavy", [False, True])
async def test_a_worker_opens_nothing_once_it_is_ready(heavy: bool) -> None:
    """An engine that is talked past its own settings still finds no file and no network."""
    async with open_lanes(PATIENT) as lanes:
        tried, _ = await lanes.run({"do": "reach_out"}, asker="a", heavy=heavy)
        assert tried == dict.fromkeys(("file", "socket", "copy", "pipe"), "Too many open files")


async def test_the_heavy_lane_knows_that_it_is() -> None:
    async with open_lanes(PATIENT, argument={"a": 1}) as lanes:
        assert (await lanes.run({"do": "count"}, asker="a"))[0]["argument"] == {"a": 1}
        assert (await lanes.run({"do": "count"}, asker="a", heavy=True))[0]["argument"] == {"a": 1, "heavy": True}


async def test_a_worker_sees_little_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDN_SECRET", "x")
    async with open_lanes(PATIENT) as lanes:
        names = (await lanes.run({"do": "environment"}, asker="a"))[0]["names"]
        assert "PATH" in names
        assert "TDN_SECRET" not in names


# Between askers.


async def test_askers_take_turns() -> None:
    """T13: thirty jobs of one asker do not delay another's one."""
    async with open_lanes(PATIENT) as lanes:
        order: list[str] = []

        async def ask(asker: str) -> None:
            await lanes.run({"do": "echo", "say": 1}, asker=asker)
            order.append(asker)

        await asyncio.gather(*(ask("many") for _ in range(30)), ask("one"), ask("two"), ask("two"))
        assert order[:6].count("one") == 1
        assert order[:6].count("two") == 2


async def test_slow_work_of_one_asker_is_capped() -> None:
    async with open_lanes({**SMALL, "slow_seconds": 0.8}) as lanes:
        asked = [asyncio.create_task(lanes.run({"do": "spin"}, asker="a")) for _ in range(3)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Refused, match="you have 2 long queries in work here already"):
            await done.pop()
        assert (await lanes.run({"do": "echo", "say": 1}, asker="a"))[0] == {"said": 1}, "quick ones are still answered"
        slow, _ = await asyncio.gather(lanes.run({"do": "nice", "seconds": 0.2}, asker="b"), asyncio.wait(asked[:1]))
        assert slow[0]["nice"] == 19, "another's takes its turn between them"
        assert not all(task.done() for task in asked), "before the second of the first asker"
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_heavy_work_of_one_asker_is_capped_and_counted_down() -> None:
    async with open_lanes({**PATIENT, "heavy_per_asker": 2}) as lanes:
        for _ in range(2):
            first, second = (
                asyncio.create_task(lanes.run({"do": "sleep", "seconds": 0.05}, asker="a", heavy=True)) for _ in range(2)
            )
            await asyncio.sleep(0)
            with pytest.raises(Refused, match="you have 2 long queries"):
                await lanes.run({"do": "sleep", "seconds": 0}, asker="a", heavy=True)
            await asyncio.gather(first, second)


async def test_nobody_holds_every_worker_of_a_lane() -> None:
    async with open_lanes({**PATIENT, "heavy_workers": 2, "quick_workers": 2}) as lanes:
        held = [
            asyncio.create_task(lanes.run({"do": "sleep", "seconds": 3600}, asker="a", heavy=heavy))
            for heavy in (True, True, False, False)
        ]
        await asyncio.sleep(0)
        for heavy in (True, False):
            assert (await lanes.run({"do": "echo", "say": 1}, asker="b", heavy=heavy))[0] == {"said": 1}
        assert not any(task.done() for task in held)
        for task in held:
            task.cancel()


async def test_a_full_lane_refuses_whoever_has_most_in_it() -> None:
    async with open_lanes({**PATIENT, "waiting": 5}) as lanes:
        greedy = [asyncio.create_task(lanes.run({"do": "sleep", "seconds": 0.05}, asker="greedy")) for _ in range(6)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in greedy), "one runs and five wait"
        assert (await lanes.run({"do": "echo", "say": 1}, asker="modest"))[0] == {"said": 1}
        with pytest.raises(Refused, match="too many queries are waiting here"):
            await greedy[-1]
        await asyncio.gather(*greedy[:-1])


# Cancelling.


async def test_cancelled_jobs_are_dropped_and_nothing_stays() -> None:
    async with open_lanes(PATIENT) as lanes:
        running = asyncio.create_task(lanes.run({"do": "sleep", "seconds": 0.1}, asker="a"))
        waiting = asyncio.create_task(lanes.run({"do": "leave"}, asker="b"))
        await asyncio.sleep(0)
        for task in (running, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        counted, _ = await lanes.run({"do": "count"}, asker="c")
        assert counted["done"] == 2, "the first was left to its end, the second never ran"
        for lane in lanes._lanes:
            assert (len(lane._waiting), len(lane._running), len(lane._idle)) == (0, 0, 1)


async def test_a_cancelled_job_does_not_go_on_in_the_slow_lane() -> None:
    async with open_lanes(SMALL) as lanes:
        task = asyncio.create_task(lanes.run({"do": "spin"}, asker="a"))
        await asyncio.sleep(0)
        task.cancel()
        await pid_of(lanes)  # The quick lane has only one worker: it is free again.
        assert len(lanes._slow._running) == 0


# Beginning and end.


@pytest.mark.parametrize(
    ("work", "error", "words"),
    [
        ("no.such.module:make", StartFailed, "No module named 'no'"),
        ("handlers:no_such_function", StartFailed, "no_such_function"),
        ("handlers", StartFailed, "package.module:function"),
        ("handlers:HERE", StartFailed, "HERE"),
        ("handlers:_kept", StartFailed, "cannot be called"),
        ("threaded:make", StartFailed, "starts threads"),
        ("handlers:make_broken", StartFailed, "in the factory"),
        ("handlers:make_refused", Refused, "no such store"),
    ],
)
async def test_what_cannot_start_says_so(work: str, error: type[Exception], words: str) -> None:
    lanes = Lanes(work, "x", limits=Limits(**SMALL))
    with pytest.raises(error, match=words):
        await lanes.start()
    process = lanes._workers._process
    assert process is not None
    assert process.returncode is not None, "and leaves no process"
    with pytest.raises(RuntimeError, match="not open"):
        await lanes.run({"do": "echo"}, asker="a")


async def test_close_leaves_no_process_and_refuses_what_is_in_work() -> None:
    async with open_lanes({**PATIENT, "quick_workers": 2}) as lanes:
        pids = staff(lanes)
        assert len(pids) == 4, pids
        pids.add((await lanes.run({"do": "count"}, asker="a"))[0]["template"])
        jobs = [{"do": "deaf"}, {"do": "deaf"}, {"do": "deaf"}]
        asked = [asyncio.create_task(lanes.run(job, asker="a", heavy=heavy)) for job in jobs for heavy in (False, True)]
        await asyncio.sleep(0)
        await lanes.close()
        assert {pid for pid in pids if exists(pid)} == set()
        for ended in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(ended, Refused)
            assert "stopping" in ended.message


async def test_a_template_that_is_told_to_end_ends_its_workers_first() -> None:
    async with open_lanes(PATIENT) as lanes:
        counted, _ = await lanes.run({"do": "count"}, asker="a")
        task = asyncio.create_task(lanes.run({"do": "deaf"}, asker="a"))
        await asyncio.sleep(0)
        await lanes._workers.close()
        assert not exists(counted["pid"])
        process = lanes._workers._process
        assert process is not None
        assert process.returncode == 0, "by itself, not killed"
        with pytest.raises(Refused):
            await task


async def test_a_killed_node_leaves_no_process() -> None:
    """Not even one that is busy where no signal reaches it and no pipe is read."""
    node = textwrap.dedent("""
        import asyncio
        from tdn.confined.lanes import Lanes, Limits

        async def main():
            lanes = Lanes("handlers:make", None, limits=Limits(quick_seconds=60, slow_seconds=60))
            await lanes.start()
            pids = {worker.pid for lane in lanes._lanes for worker in lane._staff}
            pids.add((await lanes.run({"do": "count"}, asker="a"))[0]["template"])
            asked = [asyncio.create_task(lanes.run({"do": "in_c"}, asker=str(n), heavy=n > 0)) for n in range(2)]
            await asyncio.sleep(0.05)
            print(*pids, flush=True)
            await asyncio.gather(*asked)

        asyncio.run(main())
        """)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", node), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert process.stdout is not None
    pids = [int(word) for word in (await process.stdout.readline()).split()]
    assert len(pids) == 7
    assert not any(gone(pid) for pid in pids)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: all(gone(pid) for pid in pids))


async def test_signals_to_the_whole_group_are_the_nodes() -> None:
    """Ctrl-C and a service manager's SIGTERM reach every process; queries in work still end as they should."""
    async with open_lanes(PATIENT) as lanes:
        counted, _ = await lanes.run({"do": "count"}, asker="a")
        task = asyncio.create_task(lanes.run({"do": "sleep", "seconds": 0.2}, asker="a"))
        await asyncio.sleep(0)
        for pid in (counted["pid"], counted["template"]):
            assert os.getpgid(pid) != os.getpgid(0)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(pid, number)
        assert (await task)[0]["pid"] == counted["pid"]


async def test_a_lost_template_is_started_again() -> None:
    async with open_lanes(PATIENT) as lanes:
        counted, _ = await lanes.run({"do": "count"}, asker="a")
        os.kill(counted["template"], signal.SIGKILL)
        await until(lambda: gone(counted["pid"]))
        await until(lambda: all(worker.pid != counted["pid"] for worker in lanes._quick._staff))
        again, _ = await lanes.run({"do": "count"}, asker="a")
        assert again["template"] != counted["template"]


async def test_workers_that_cannot_start_are_tried_again_with_pauses(tmp_path: Path) -> None:
    flag = tmp_path / "fails"
    async with open_lanes(SMALL, argument={"fails": str(flag)}) as lanes:
        flag.touch()
        with pytest.raises(Refused, match="could not be evaluated"):
            await lanes.run({"do": "leave"}, asker="a")
        with pytest.raises(Refused, match="cannot be evaluated here at present"):
            await lanes.run({"do": "echo", "say": 1}, asker="a")
        flag.unlink()
        # Until the next try succeeds; it is refused at most once more, by one that was under way.
        answer = await asyncio.gather(lanes.run({"do": "echo", "say": 1}, asker="a"), return_exceptions=True)
        if isinstance(answer[0], Refused):
            answer = [await lanes.run({"do": "echo", "say": 1}, asker="a")]
        assert answer == [({"said": 1}, [])]


# A real engine.


async def test_saxon_is_stopped_in_time_and_memory() -> None:
    """T13: infinite work in XQuery, where nothing can be interrupted."""
    endless = "count(for $i in 1 to 2000000000, $j in 1 to 2000000000 where $i + $j = 1 return $i)"
    large = 'string-length(string-join(for $i in 1 to 100000000 return concat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", $i)))'
    many = 'count(distinct-values(for $i in 1 to 100000000 return concat("aaaaaaaaaaaaaaaaaaaaaaaa", $i)))'
    async with open_lanes({**SMALL, "slow_seconds": 0.5}, work="engines:make") as lanes:
        with pytest.raises(Refused, match=r"took longer than 0\.5 s"):
            await lanes.run({"query": endless}, asker="a", heavy=True)
        assert "500500" in (await lanes.run({"query": "sum(1 to 1000)"}, asker="a", heavy=True))[0]["text"]
    async with open_lanes({**PATIENT, "memory_bytes": 100 * MEGABYTE}, work="engines:make") as lanes:
        for greedy in (large, many):
            with pytest.raises(Refused, match="needed more than 100 MB"):
                await lanes.run({"query": greedy}, asker="a", heavy=True)
        assert "500500" in (await lanes.run({"query": "sum(1 to 1000)"}, asker="a", heavy=True))[0]["text"]


# Standing still.


async def test_held() -> None:
    """T22: what is in work is waited for, whatever comes meanwhile waits, in every lane; afterwards all of it goes on."""
    async with open_lanes(PATIENT | {"quick_seconds": 0.05}) as lanes:
        # Long enough to be seen at work on a busy machine.
        long = asyncio.create_task(lanes.run({"do": "sleep", "seconds": 1.0}, asker="a"))
        await until(lambda: lanes.load()["slow"].running == 1)
        async with lanes.held():
            assert not any(load.running for load in lanes.load().values())
            jobs = [{"do": "echo", "say": number} for number in range(3)]
            later = [asyncio.create_task(lanes.run(job, asker="b", heavy=heavy)) for job in jobs for heavy in (False, True)]
            await until(lambda: sum(load.waiting for load in lanes.load().values()) == len(later))
            assert not any(load.running for load in lanes.load().values())
        assert [said["said"] for said, _ in await asyncio.gather(*later)] == [0, 0, 1, 1, 2, 2]
        await long
