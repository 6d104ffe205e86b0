"""T38 on a real cluster: a master and two workers on loopback, and a session that stays warm. A worker that is killed during a job costs time and no answer, and
without workers nobody waits; what `spark-submit` is given is all that executors need."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from little_world import World

from spark.cluster import Cluster
from spark.index.store import Index
from spark.places import Place
from tdn.local.home import Home
from tdn.protocol.access import Asker
from tests.live import Ran, processes_of, run, wait_for

pytestmark = pytest.mark.timeout(900)

AT = "2027-01-01T00:09:00Z"
DOCUMENT = Path(__file__).parents[2] / "deploy" / "spark.md"
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


def command(home: Home, world: World, *words: str | Path, seconds: float = 500) -> Ran:
    at = next((place for place, word in enumerate(words) if word in ("index", "search", "query", "report")), None)
    more = [] if at is None else ["--trust", _trust(world)]
    return run("tdn-spark", "--home", home.folder, "--json", "--timeout", "4m", *words, *more, seconds=seconds)


def _trust(world: World) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    path = world.folder / "roots.pem"
    if not path.exists():
        path.write_bytes(b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in world.roots.ders))
    return path


def packed(folder: Path) -> Path:
    """Our code as deploy/spark.md packs it, and beside it a Python that has what we depend on and nothing of ours."""
    assert "python -m spark.package tdn-code.zip" in DOCUMENT.read_text("utf-8")
    made = subprocess.run([sys.executable, "-m", "spark.package", folder / "tdn-code.zip"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    # Without `site` the folder of packages is a folder like others: what an editable installation adds to the path is not added.
    bare, packages = folder / "python", sysconfig.get_path("purelib")
    bare.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    nothing = subprocess.run([bare, "-c", "import pyarrow, tdn"], capture_output=True, text=True, env={}, cwd=folder, check=False)
    assert "No module named 'tdn'" in nothing.stderr
    return bare


def submitted(home: Home, world: World, folder: Path, master: str, *words: str | Path) -> Ran:
    """`spark-submit` as deploy/spark.md has it, with that Python for the driver and for executors."""
    bare, packages = packed(folder), sysconfig.get_path("purelib")
    program = re.search(r"`run\.py`: `(.*?)`", DOCUMENT.read_text("utf-8"))
    assert program is not None
    (folder / "run.py").write_text(program[1] + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith(("PYSPARK", "SPARK"))}
    settings = ["spark.driver.host=127.0.0.1", f"spark.pyspark.python={bare}", "spark.executorEnv.PYTHONPATH="]
    argv = [Path(sys.executable).parent / "spark-submit", "--master", master, "--py-files", folder / "tdn-code.zip"]
    argv += [word for setting in settings for word in ("--conf", setting)]
    argv += [folder / "run.py", "--home", home.folder, "--json", *words, "--trust", _trust(world)]
    done = subprocess.run(
        [*map(str, argv)],
        capture_output=True,
        text=True,
        env={**environment, "SPARK_HOME": f"{packages}/pyspark", "SPARK_CONF_DIR": str(Cluster(home).conf)},
        cwd=folder,
        timeout=500,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def matches(out: Path) -> set[tuple[str, str]]:
    rows = [json.loads(line) for path in (out / "matches").glob("*.json") for line in path.read_text("utf-8").splitlines()]
    assert len(rows) == len({(row["query"], row["uuid"]) for row in rows})
    return {(row["query"], row["uuid"]) for row in rows}


def expected(world: World, who: Asker | None) -> set[tuple[str, str]]:
    """What a live node finds that has read the same log."""
    return {(name, uuid) for name, (language, query) in ASKED.items() for uuid in world.found(who, world.moments["at the end"], language, query)}


def _write(path: Path, asked: Iterable[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(query) + "\n" for query in asked), "utf-8")
    return path


def _sound() -> list[dict[str, str]]:
    return [{"id": name, "language": language, "query": query} for name, (language, query) in ASKED.items()]


def _brisk(home: Home) -> None:
    """Executors live for seconds here, as other JVMs of tests (tests/conftest.py)."""
    with (Cluster(home).conf / "spark-defaults.conf").open("a") as settings:
        settings.write(f"spark.executor.extraJavaOptions {os.environ['SPARK_DAEMON_JAVA_OPTS']}\n")


def test_a_warm_cluster_and_a_worker_that_is_killed(home: Home, world: World, tmp_path: Path) -> None:
    """One session, which stays warm, indexes and searches; a worker dies under it and no answer is missing; without the cluster's secret nobody is let in."""
    up = command(home, world, "cluster", "up", "--workers", "2", "--connect", seconds=240)
    assert up.code == 0, up.err
    again = command(home, world, "cluster", "up")
    assert (again.code, again.one) == (0, up.one)
    assert "already running" in again.err
    assert oct((home.folder / "spark" / "secret").stat().st_mode)[-3:] == "600"

    index = tmp_path / "index"
    indexed = command(home, world, "index", "--archive", world.archive, "--index", index, "--master", "cluster")
    assert indexed.code == 0, indexed.err
    assert (indexed.one["records"], indexed.one["rejected"]) == (len(world.raw), 0)

    queries = _write(
        tmp_path / "queries.jsonl",
        [
            *_sound(),
            {"id": "broken", "language": "regex", "query": "("},
            # Takes its whole budget in each task, so that there is a job to kill a worker of.
            {"id": "slow", "language": "xpath", "query": "count(for $a in 1 to 10000, $b in 1 to 10000 return $a * $b) = 1"},
        ],
    )
    search = ("search", "--index", index, "--queries", queries, "--operator", "--at", AT)
    done: dict[str, Any] = {}

    def job() -> None:
        done["ran"] = command(home, world, *search, "--out", tmp_path / "killed", "--master", "cluster")

    before = _executors(home)
    thread = threading.Thread(target=job)
    thread.start()
    # A search process of an executor's Python works: the slow query is being asked.
    wait_for(lambda: _searching(home), "the job to be under way", seconds=120)
    Cluster(home).process("worker-1").kill_hard()
    thread.join()
    ran: Ran = done["ran"]
    assert ran.code == 0, ran.err
    assert before
    assert {one["id"] for one in ran.one["queries"] if "error" in one} == {"broken", "slow"}
    assert matches(tmp_path / "killed") == expected(world, None)

    kims = _write(tmp_path / "sound.jsonl", _sound())
    warm = ("search", "--index", index, "--queries", kims, "--as", "kim", "--at", AT)
    asked = command(home, world, *warm, "--out", tmp_path / "warm", "--master", "cluster")
    assert asked.code == 0, asked.err
    assert matches(tmp_path / "warm") == expected(world, Asker("kim", "local")) != set()
    secret = home.folder / "spark" / "secret"
    kept = secret.read_bytes()
    secret.write_bytes(b"another")
    try:
        stranger = command(home, world, *warm, "--out", tmp_path / "stranger", "--master", up.one["connect"])
    finally:
        secret.write_bytes(kept)
    assert stranger.code == 3, (stranger.out, stranger.err)
    assert not (tmp_path / "stranger").exists()

    left = command(home, world, "cluster", "up")
    assert (left.code, left.one) == (0, {**up.one, "workers": 1})
    Cluster(home).process("worker-2").kill_hard()
    wait_for(lambda: command(home, world, "cluster", "up").one["workers"] == 0, "the master to notice")
    idle = command(home, world, *search, "--out", tmp_path / "none", "--master", "cluster")
    assert (idle.code, "no worker" in idle.error["message"]) == (3, True)
    aside = home.folder / "spark" / "tmp"
    assert any(aside.iterdir())
    assert command(home, world, "cluster", "down").code == 0
    assert processes_of(home.folder) == []
    assert not aside.exists(), "nor is anything left of those that were killed"
    assert "nothing was running" in command(home, world, "cluster", "down").err
    gone = command(home, world, *search, "--out", tmp_path / "none", "--master", up.one["master"])
    assert (gone.code, gone.error["error"]) == (3, "unreachable")
    nobody = command(home, world, *search, "--out", tmp_path / "none", "--master", "cluster")
    assert (nobody.code, nobody.error["error"]) == (6, "absent")
    assert not (tmp_path / "none").exists()


def test_the_packed_code_is_whole(tmp_path: Path) -> None:
    """What executors are sent holds every module that drivers and tasks load, and the schemas. (`test_submitted` runs it on a cluster.)"""
    bare = packed(tmp_path)
    program = "import spark.cli.main, spark.index.tasks, spark.index.building, spark.search.running, spark.search.single; from tdn.protocol import schemas; schemas.load('advertisement'); print(spark.index.tasks.__file__)"
    done = subprocess.run(
        [bare, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path / "tdn-code.zip")}, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == str(tmp_path / "tdn-code.zip" / "spark" / "index" / "tasks.py"), done.stderr


def _executors(home: Home) -> list[int]:
    """Python workers of the cluster's executors."""
    return [pid for pid, words in _listed() if "pyspark" in words and "daemon" in words and _belongs(pid, home)]


def _searching(home: Home) -> list[int]:
    """Search processes of those, at work on a query."""
    return [pid for pid, words in _listed() if "xml_process" in words and _belongs(pid, home)]


def _listed() -> list[tuple[int, str]]:
    lines = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    return [(int(line.split()[0]), line) for line in lines]


def _belongs(pid: int, home: Home) -> bool:
    try:
        return str(home.folder) in os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return False


def _kill_an_index(home: Home, world: World, index: Path) -> None:
    """`kill -9` of a command that has begun to write."""
    command = Path(sys.executable).parent / "tdn-spark"
    words = ["--home", home.folder, "index", "--archive", world.archive, "--index", index, "--master", "cluster", "--trust", _trust(world)]
    with subprocess.Popen([command, *words], stderr=subprocess.PIPE) as indexing:
        wait_for(lambda: (index / "tables").is_dir() or indexing.poll() is not None, "tables to be written", seconds=120)
        indexing.kill()
    assert indexing.returncode == -signal.SIGKILL
    assert not (index / "commits").exists()


@pytest.mark.slow
def test_submitted(home: Home, world: World, tmp_path: Path) -> None:
    """By `spark-submit`, and by a session of the command's own; an index whose command is killed while it is made is made whole by the next."""
    up = command(home, world, "cluster", "up", "--workers", "2", seconds=180)
    assert up.code == 0, up.err
    _brisk(home)
    index = tmp_path / "index"
    indexed = submitted(home, world, tmp_path, up.one["master"], "index", "--archive", world.archive, "--index", index)
    assert indexed.code == 0, indexed.err
    assert (indexed.one["records"], indexed.one["rejected"]) == (len(world.raw), 0)
    same = command(home, world, "index", "--archive", world.archive, "--index", index, "--master", "cluster")
    assert (same.code, same.one["records"]) == (0, 0), "there is nothing new"
    search = ("search", "--index", index, "--queries", _write(tmp_path / "queries.jsonl", _sound()), "--operator", "--at", AT)
    found = submitted(home, world, tmp_path, up.one["master"], *search, "--out", tmp_path / "found")
    assert found.code == 0, found.err
    assert matches(tmp_path / "found") == expected(world, None)
    _kill_an_index(home, world, tmp_path / "again")
    assert command(home, world, "index", "--archive", world.archive, "--index", tmp_path / "again", "--master", "cluster").code == 0
    # What was left to the cluster of the killed one's jobs writes the same bytes.
    assert Index(Place(tmp_path / "again")).require(world.roots) == Index(Place(index)).require(world.roots)
    command(home, world, "cluster", "down")
    assert processes_of(home.folder) == []
