"""T38 on a real cluster: a master and two workers on loopback. A worker that is killed during a job costs time and no answer; a warm session is used again."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from little_world import World

from spark.cluster import Cluster
from tdn.local.home import Home
from tdn.protocol.access import Asker
from tests.live import Ran, processes_of, run, wait_for

pytestmark = pytest.mark.timeout(900)

AT = "2027-01-01T00:09:00Z"
ASKED = {
    "trees": ("string", "tree"),
    "all": ("regex", "."),
    "owned": ("sql", "owner = 'kim'"),
    "xml": ("xpath", "//*"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("cluster") / "home")
    try:
        yield home
    finally:
        Cluster(home).down()
        assert processes_of(home.folder) == []


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test, on the cluster, makes an index that the second one uses."""
    return tmp_path_factory.mktemp("clustered") / "index"


def command(home: Home, world: World, *words: str | Path, seconds: float = 500) -> Ran:
    trust = world.folder / "roots.pem"
    if not trust.exists():
        _write_roots(world, trust)
    at = next((place for place, word in enumerate(words) if word in ("index", "search", "query", "report")), None)
    more = [] if at is None else ["--trust", trust]
    return run("tdn-spark", "--home", home.folder, "--json", *words, *more, seconds=seconds)


def _write_roots(world: World, path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    path.write_bytes(b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in world.roots.ders))


def matches(out: Path) -> set[tuple[str, str]]:
    rows = [json.loads(line) for path in (out / "matches").glob("*.json") for line in path.read_text("utf-8").splitlines()]
    assert len(rows) == len({(row["query"], row["uuid"]) for row in rows})
    return {(row["query"], row["uuid"]) for row in rows}


def expected(world: World, who: Asker | None) -> set[tuple[str, str]]:
    """What a live node finds that has read the same log."""
    return {(name, uuid) for name, (language, query) in ASKED.items() for uuid in world.found(who, world.moments["at the end"], language, query)}


def test_a_cluster_and_a_worker_that_is_killed(home: Home, world: World, index: Path, tmp_path: Path) -> None:
    up = command(home, world, "cluster", "up", "--workers", "2", seconds=180)
    assert up.code == 0, up.err
    again = command(home, world, "cluster", "up")
    assert (again.code, again.one["master"]) == (0, up.one["master"])
    assert "already running" in again.err
    assert oct((home.folder / "spark" / "secret").stat().st_mode)[-3:] == "600"

    indexed = command(home, world, "index", "--archive", world.archive, "--index", index, "--master", up.one["master"])
    assert indexed.code == 0, indexed.err
    assert (indexed.one["records"], indexed.one["rejected"]) == (len(world.raw), 0)

    queries = tmp_path / "queries.jsonl"
    asked = [
        *({"id": name, "language": language, "query": query} for name, (language, query) in ASKED.items()),
        {"id": "broken", "language": "regex", "query": "("},
        # Takes its whole budget in each task, so that there is a job to kill a worker of.
        {"id": "slow", "language": "xpath", "query": "count(for $a in 1 to 10000, $b in 1 to 10000 return $a * $b) = 1"},
    ]
    queries.write_text("".join(json.dumps(query) + "\n" for query in asked), "utf-8")
    search = ("search", "--index", index, "--queries", queries, "--operator", "--at", AT)

    done: dict[str, Any] = {}

    def job() -> None:
        done["ran"] = command(home, world, *search, "--out", tmp_path / "killed", "--master", "cluster")

    thread = threading.Thread(target=job)
    thread.start()
    # An executor's own Python works: the job is under way.
    executors = wait_for(lambda: _executors(home), "a task to run", seconds=240)
    worker = Cluster(home).process("worker-1")
    killed = worker.pid
    assert killed is not None
    worker.kill_hard()
    thread.join()
    ran: Ran = done["ran"]
    assert ran.code == 0, ran.err
    assert executors
    assert {one["id"] for one in ran.one["queries"] if "error" in one} == {"broken", "slow"}
    assert matches(tmp_path / "killed") == expected(world, None)

    assert command(home, world, "cluster", "down").code == 0
    assert processes_of(home.folder) == []
    assert "nothing was running" in command(home, world, "cluster", "down").err
    gone = command(home, world, *search, "--out", tmp_path / "none", "--master", up.one["master"])
    assert (gone.code, gone.error["error"]) == (3, "unreachable")
    nobody = command(home, world, *search, "--out", tmp_path / "none", "--master", "cluster")
    assert (nobody.code, nobody.error["error"]) == (6, "absent")
    assert not (tmp_path / "none").exists()


def _executors(home: Home) -> list[int]:
    """Python workers of the cluster's executors."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [int(line.split()[0]) for line in listed if "pyspark" in line and "daemon" in line]
    return [pid for pid in found if _belongs(pid, home)]


def _belongs(pid: int, home: Home) -> bool:
    try:
        return str(home.folder) in os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return False


def test_spark_connect(home: Home, world: World, index: Path, tmp_path: Path) -> None:
    """A session that stays warm answers a second job without starting anew; without the cluster's secret nobody is let in."""
    up = command(home, world, "cluster", "up", "--workers", "1", "--connect", seconds=240)
    assert up.code == 0, up.err
    indexed = command(home, world, "index", "--archive", world.archive, "--index", index, "--master", "cluster")
    assert (indexed.code, indexed.one["records"]) == (0, 0), "there is nothing new"
    queries = tmp_path / "queries.jsonl"
    asked = [{"id": name, "language": language, "query": query} for name, (language, query) in ASKED.items()]
    queries.write_text("".join(json.dumps(query) + "\n" for query in asked), "utf-8")
    search = ("search", "--index", index, "--queries", queries, "--as", "kim", "--at", AT)
    warm = command(home, world, *search, "--out", tmp_path / "warm", "--master", "cluster")
    assert warm.code == 0, warm.err
    assert matches(tmp_path / "warm") == expected(world, Asker("kim", "local")) != set()
    secret = home.folder / "spark" / "secret"
    kept = secret.read_bytes()
    secret.write_bytes(b"another")
    try:
        stranger = command(home, world, *search, "--out", tmp_path / "stranger", "--master", up.one["connect"])
    finally:
        secret.write_bytes(kept)
    assert stranger.code == 3, (stranger.out, stranger.err)
    assert not (tmp_path / "stranger").exists()
    command(home, world, "cluster", "down")
    assert processes_of(home.folder) == []
