"""`tdn doctor` on a network that runs: healthy, then with one part broken at a time; and what a node does when its disk is full, its store
damaged, or when it is told to stop in the middle of its work."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entity_client import path
from tdn.protocol import names
from tdn.protocol.names import Role
from tests.conftest import Connect
from tests.live import LiveNetwork, Ran, compare_states, run, until, wait_for

pytestmark = pytest.mark.broker


def doctor(network: LiveNetwork, *words: str) -> Ran:
    return run("tdn", "--home", network.home.folder, "--timeout", "5s", "doctor", "--json", *words)


def said(ran: Ran, state: str, check: str) -> list[dict[str, Any]]:
    return [line for line in ran.lines if line["state"] == state and line["check"] == check]


def test_a_healthy_network(mortal: LiveNetwork) -> None:
    ran = doctor(mortal)
    assert (ran.code, said(ran, "problem", "log")) == (0, []), ran.out
    assert [line for line in ran.lines if line["state"] == "problem"] == []
    # Other tests leave entities behind whose certificates were meant to expire.
    assert [line["check"] for line in ran.lines if line["state"] == "warning"] in ([], ["certificates"])
    checks = {line["check"] for line in ran.lines}
    assert checks == {
        *("home", "settings", "private files", "disk", "certificates", "revocations", "stores", "processes", "open files"),
        *("clock", "broker", "guard", "alarms", "log"),
    }
    assert any(re.search(r"RabbitMQ .*, TLSv1\.3, 36[45] days left of its certificate$", line["what"]) for line in said(ran, "ok", "broker"))
    assert any("offsets 0 to" in line["what"] for line in said(ran, "ok", "log"))
    assert mortal.home.management_password() not in ran.out
    people = run("tdn", "--home", mortal.home.folder, "doctor")
    assert people.code == 0
    assert "\033" not in people.out, "colours are for terminals"
    assert people.out.startswith("ok       home           ")


def test_the_guard_is_gone(mortal: LiveNetwork) -> None:
    mortal.network.process(Role.GUARD, "g1").stop()
    ran = doctor(mortal)
    assert ran.code == 3, ran.out
    assert any("guard g1 does not run" in line["what"] and "`tdn up`" in line["do"] for line in said(ran, "problem", "processes"))


def test_the_broker_is_gone(mortal: LiveNetwork) -> None:
    broker: Any = mortal.network.broker()
    broker.kill_hard()
    ran = doctor(mortal)
    assert ran.code == 3, ran.out
    assert any("does not answer" in line["what"] and "tdn up" in line["do"] for line in said(ran, "problem", "broker"))
    assert said(ran, "ok", "certificates"), "files are looked at all the same"


def test_a_key_that_others_can_read(mortal: LiveNetwork) -> None:
    key = mortal.home.credentials(Role.GUARD, "g1") / "key.pem"
    key.chmod(0o644)
    try:
        ran = doctor(mortal)
        assert ran.code == 4
        assert any(str(key) in line["what"] and "chmod 600" in line["do"] for line in said(ran, "problem", "private files"))
    finally:
        key.chmod(0o600)


def test_a_damaged_store(mortal: LiveNetwork) -> None:
    """T22: a node whose store is not what it wrote ends with a sentence; removed, the store is made anew from the log."""
    mortal.stop("n2")
    store = mortal.home.store("n2")
    kept = store.read_bytes()
    for content in (kept[: len(kept) // 2], kept[:4096] + b"\xff" * (len(kept) - 4096)):
        for companion in store.parent.glob("store.sqlite-*"):
            companion.unlink()
        store.write_bytes(content)
        ran = run("tdn", "--home", mortal.home.folder, "--json", "node", "--id", "n2")
        assert (ran.code, ran.error["error"]) == (4, "trust"), ran.err
        assert "Traceback" not in ran.err
        assert "is damaged" in ran.error["message"]
    (entry,) = [line for line in run("tdn", "--home", mortal.home.folder, "status", "--json").lines if line["id"] == "n2"]
    assert (entry["alive"], "is damaged" in entry["why"]) == (False, True)
    examined = doctor(mortal)
    assert examined.code == 4
    assert any(
        "node n2" in line["what"] and f"rm {store}*" in line["do"].replace("'", "")
        for line in said(examined, "problem", "stores")
    )
    assert any("ended by itself" in line["what"] for line in said(examined, "problem", "processes"))
    up = run("tdn", "--home", mortal.home.folder, "--json", "up")
    assert (up.code, "is damaged" in up.error["message"]) == (4, True), "tdn up says it in the node's own words"
    for path_ in store.parent.glob("store.sqlite*"):
        path_.unlink()
    mortal.up()
    assert doctor(mortal).code == 0


# --- a full disk ---


@contextlib.contextmanager
def small_disk(network: LiveNetwork, node: str) -> Iterator[Callable[[bool], None]]:
    """A node on a disk that can be filled and emptied: a tmpfs in the place of its folder, or, where nothing can be mounted, a limit on how
    large its files may grow. The node runs when this begins, and when it ends."""
    folder = network.home.credentials(Role.NODE, node)
    network.stop(node)
    aside = network.home.folder.with_name(f"{node}-aside")
    shutil.copytree(folder, aside)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode == 0:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        network.start(node)
        ballast = folder / "ballast"

        def fill(full: bool) -> None:
            if not full:
                ballast.unlink()
                return
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                for size in (1 << 20, 1 << 12, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(b"x" * size)
    else:
        network.start(node)

        def fill(full: bool) -> None:
            pid = network.network.process(Role.NODE, node).pid
            assert pid is not None
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096 if full else resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    try:
        yield fill
    finally:
        network.stop(node)
        if mounted.returncode == 0:
            shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns("ballast"))
            wait_for(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, "nobody to use it")
            shutil.copytree(aside, folder, dirs_exist_ok=True)
        shutil.rmtree(aside)
        network.start(node)


async def test_a_full_disk(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: a node without room stops serving and says so; the others go on; with room again it goes on where it was."""

    def state() -> dict[str, Any]:
        (entry,) = [entry for entry in mortal.network.status() if entry["id"] == "n2"]
        return entry

    client = await connect(mortal, timeout=30)
    stack = contextlib.ExitStack()
    fill = await asyncio.to_thread(stack.enter_context, small_disk(mortal, "n2"))
    try:
        pid = state()["pid"]
        fill(True)
        # Ticks alone would do it in a while; changes do it now.
        while not state().get("why"):
            await client.create(path("while n2 has no room"))
        assert "disk" in state()["why"]
        assert not state()["ready"]
        examined = await asyncio.to_thread(doctor, mortal)
        assert examined.code != 0
        assert any("node n2 is not ready: the disk" in line["what"] for line in said(examined, "problem", "processes")), (
            examined.out
        )
        topic = await client.create(path("n1 goes on"))
        fill(False)
        await until(lambda: state()["ready"], "n2 to go on by itself")
        assert state()["pid"] == pid, "it is the same process"
        await until(lambda: mortal.fact("topic", topic.uuid, "n2"), "n2 to have what it missed")
    finally:
        await asyncio.to_thread(stack.close)
    await until(mortal.ready, "both to serve")
    compare_states(mortal, tmp_path / "states").close()


# --- told to stop ---


def serve_in_foreground(network: LiveNetwork, node: str, log: Path) -> subprocess.Popen[bytes]:
    """A node as systemd starts it: our child, so that we see how it ends."""
    with log.open("wb") as file:
        words = [str(Path(sys.executable).parent / "tdn"), "--home", str(network.home.folder), "node", "--id", node]
        return subprocess.Popen(words, stderr=file)


async def test_a_graceful_stop(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T22: SIGTERM with fifty changes on their way: all are answered, each has one effect, and the node ends with 0 within ten seconds."""
    client = await connect(mortal, timeout=30)
    topics = [await client.create(path(f"graceful/{number}"), advertise=False) for number in range(50)]
    await asyncio.to_thread(mortal.stop, "n1")
    node = await asyncio.to_thread(serve_in_foreground, mortal, "n1", tmp_path / "n1.log")
    try:
        await until(lambda: {"ready": True, "pid": node.pid}.items() <= mortal.home.reported("node-n1").items(), "n1 to serve")
        answers = [asyncio.create_task(client.advertise(topic.token)) for topic in topics]
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert not all(answer.done() for answer in answers), "it is in the middle of its work"
        node.send_signal(signal.SIGTERM)
        told = time.monotonic()
        assert {topic.uuid for topic in await asyncio.gather(*answers)} == {topic.uuid for topic in topics}
        assert await asyncio.to_thread(node.wait, 15) == 0, (tmp_path / "n1.log").read_text()
        assert time.monotonic() - told < 10
    finally:
        node.kill()
    assert "left unfinished" not in (tmp_path / "n1.log").read_text(), "what it had begun it finished"
    await asyncio.to_thread(mortal.start, "n1")
    for topic in topics:
        assert [record["status"] for record in mortal.records_about(topic.uuid, "n2")].count("accepted") == 1
    wait_for(lambda: mortal.waiting(names.CHANGES) == 0, "nothing to be left over")
    compare_states(mortal, tmp_path / "states").close()
