"""`tdn snapshot`, `log trim`, `backup` and `restore` where they cannot do what they are asked: what is said, and the exit code. No network runs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.store.view import View
from tests.live import Ran, run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home that was never started, whose node has an empty store."""
    home = Home(tmp_path_factory.mktemp("keeping") / "home")
    operator = Network(home).operator
    operator.found()
    operator.issue(Role.NODE, "n1")
    operator.issue(Role.GUARD, "g1")
    with closing(View(home.store("n1"))):
        pass
    return home


def tdn(home: Home | Path, *words: str | Path) -> Ran:
    return run("tdn", "--home", str(home), "--json", *words)


def test_without_a_network(tmp_path: Path) -> None:
    for words in (("snapshot", "--to", "f"), ("log", "trim", "--archive", "a"), ("backup", "--to", "f")):
        ran = tdn(tmp_path / "none", *words)
        assert (ran.code, ran.error["error"]) == (2, "usage")
        assert "there is no network" in ran.error["message"]
    assert not (tmp_path / "none").exists()


def test_no_checkpoint_yet(home: Home, tmp_path: Path) -> None:
    for words in (("snapshot", "--to", tmp_path / "f"), ("snapshot", "--to", tmp_path / "f", "--node", "n7")):
        ran = tdn(home, *words)
        assert (ran.code, ran.error["error"]) == (6, "absent")
        assert "no checkpoint counts yet" in ran.error["message"]
    assert not (tmp_path / "f").exists()


def test_trimming_needs_a_node_that_serves(home: Home, tmp_path: Path) -> None:
    ran = tdn(home, "log", "trim", "--archive", tmp_path)
    assert (ran.code, ran.error["error"]) == (3, "unreachable")
    assert "tdn up" in ran.error["message"]


def test_scratch_is_beside_the_stores(tmp_path: Path) -> None:
    """A state of a million topics does not fit /tmp of a container."""
    looks = """
import os, sqlite3, sys
from pathlib import Path
from tdn.cli.keeping import _keep_scratch_beside
from tdn.local.home import Home
_keep_scratch_beside(Home(Path(sys.argv[1])))
db = sqlite3.connect("", isolation_level=None)
db.execute("CREATE TABLE much (x)")
db.execute("PRAGMA cache_size=10")
db.execute("BEGIN")
db.executemany("INSERT INTO much VALUES (?)", [("x" * 4000,)] * 500)
print(*(os.readlink(f"/proc/self/fd/{one}") for one in range(3, 10) if os.path.islink(f"/proc/self/fd/{one}")))
"""
    home = tmp_path / "it's here"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "SQLITE_TMPDIR"}
    done = subprocess.run([sys.executable, "-c", looks, str(home)], capture_output=True, text=True, check=True, env=env)
    assert f"{home}/etilqs_" in done.stdout
    assert list(home.iterdir()) == []


def test_a_snapshot_that_is_none(home: Home, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"noise")
    for role, name in (("node", "n1"), ("guard", "g1")):
        absent = tdn(home, role, "--id", name, "--snapshot", tmp_path / "absent")
        assert (absent.code, absent.error["error"]) == (2, "usage")
        noise = tdn(home, role, "--id", name, "--snapshot", tmp_path / "noise")
        assert (noise.code, noise.error["error"]) == (4, "trust")
        assert "not a whole snapshot" in noise.error["message"]
    assert home.store("n1").exists()


def test_a_backup_says_what_is_not_in_it(home: Home, tmp_path: Path) -> None:
    (home.folder / "again").symlink_to(".")
    saved = tdn(home, "backup", "--to", tmp_path / "saved")
    (home.folder / "again").unlink()
    assert (saved.code, "not in it: again (a link to a folder that it is in)" in saved.err) == (0, True), saved.err
    (home.folder / "ca").rename(home.folder / "elsewhere")
    (home.folder / "ca").symlink_to("/media/not-mounted/ca")
    missing = tdn(home, "backup", "--to", tmp_path / "other")
    (home.folder / "ca").unlink()
    (home.folder / "elsewhere").rename(home.folder / "ca")
    assert (missing.code, missing.error["error"]) == (2, "usage")
    assert f"{home.folder / 'ca'} leads to /media/not-mounted/ca" in missing.error["message"]
    assert not (tmp_path / "other").exists()


def test_backup_and_restore(home: Home, tmp_path: Path) -> None:
    saved = tdn(home, "backup", "--to", tmp_path / "saved")
    assert saved.code == 0
    assert saved.one["files"] > 10
    assert "every key" in saved.err
    assert "not in it" not in saved.err
    again = tdn(home, "backup", "--to", tmp_path / "saved")
    assert (again.code, again.error["error"]) == (2, "usage")
    occupied = tdn(home, "restore", tmp_path / "saved")
    assert (occupied.code, occupied.error["error"]) == (2, "usage")
    assert "is not empty" in occupied.error["message"]
    restored = tdn(tmp_path / "new", "restore", tmp_path / "saved")
    assert restored.code == 0
    assert restored.one["network"] == home.network
    assert {entry["id"] for entry in tdn(tmp_path / "new", "status").lines} == {"n1", "g1"}
    (tmp_path / "saved").write_bytes(b"noise")
    noise = tdn(tmp_path / "newer", "restore", tmp_path / "saved")
    assert (noise.code, noise.error["error"]) == (4, "trust")
    assert not (tmp_path / "newer").exists()
