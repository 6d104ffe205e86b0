"""What `tdn` says, and what it leaves, when the disk that it is told to write to has no room: a real one, full at once or after some files; and, where nothing
can be mounted too, a limit on how large a file may grow."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from granting import TwoHouses, begin  # type: ignore[import-not-found]  # by conftest.py
from little_network import HOUR  # type: ignore[import-not-found]
from pki import T0  # type: ignore[import-not-found]

from tdn.cli import output
from tdn.cli.main import build_parser
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.rules.apply import write_record
from tdn.snapshots.make import text_of
from tdn.store.state_text import Moment
from tdn.store.view import View
from tests.chaos.small_disk import SmallDisk, files_up_to

LEFT_BYTES = 96 * 1024
#: SQLite needs 32 KB beside a store that it reads.
LARGEST_BYTES = 33_000


@dataclass
class Place:
    """Where no command can write all that it should."""

    folder: Path
    disk: SmallDisk | None

    @property
    def narrow(self) -> AbstractContextManager[None]:
        return nullcontext() if self.disk is not None else files_up_to(LARGEST_BYTES)

    def contents(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.name != "ballast"}


@pytest.fixture(params=["full", "nearly full", "no large files"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "place"
    folder.mkdir()
    if request.param == "no large files":
        yield Place(folder, None)
        return
    disk = SmallDisk(folder, 1)
    if disk.missing is not None:
        pytest.skip(f"a full disk was not tried: {disk.missing}")
    try:
        disk.fill()
        if request.param == "nearly full":
            os.truncate(folder / "ballast", (folder / "ballast").stat().st_size - LEFT_BYTES)
        yield Place(folder, disk)
    finally:
        disk.unmount()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose node has a store with a checkpoint that counts, and the state there; more of all than there is room for."""
    home = Home(tmp_path_factory.mktemp("full disks") / "home")
    operator = Network(home).operator
    operator.found()
    operator.issue(Role.NODE, "n1")
    net = TwoHouses("full disks", nodes=("n1", "n2"))
    log = begin(net)
    for _ in range(60):
        log.advertised("alice", lifetime=30 * HOUR)
    log.tick(T0 + HOUR)
    store = home.store("n1")
    applied = 0

    def apply() -> None:
        nonlocal applied
        with closing(View(store)) as view:
            view.apply_all([(one.seq + 10, one.raw) for one in log.records[applied:]], durable=False)
        applied = len(log.records)

    apply()
    with closing(Moment(store)) as moment:
        digest = moment.write(text_of(store, moment.place.seq), wait=lambda seconds: None)
        stated = {"seq": moment.place.seq, "head": moment.place.head, "at": moment.place.at, "digest": digest}
    for node in ("n1", "n2"):
        assert log.append(write_record("checkpoint", net.node(node), T0 + HOUR + timedelta(minutes=1), checkpoint=stated)).status == "accepted"
    apply()
    # What no compression makes small; behind the store, which a backup copies first.
    (store.parent / "unadvertised").write_bytes(os.urandom(200_000))
    return home


Tdn = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def tdn(capsys: pytest.CaptureFixture[str]) -> Tdn:
    """A command in this process, which the limit is set for: its exit code, and the error."""

    def tdn(home: Path, *words: str | Path) -> tuple[int, dict[str, Any]]:
        code = output.run(build_parser(), ["--home", str(home), "--json", *map(str, words)])
        told = capsys.readouterr().err
        assert "Traceback" not in told
        return code, json.loads(told.splitlines()[-1]) if code else {}

    return tdn


def require_refusal(told: tuple[int, dict[str, Any]], named: Path) -> None:
    code, error = told
    assert (code, error["error"]) == (5, "refused"), error
    assert f"{named} cannot be written: " in error["message"]
    assert "free some room" in error["message"] or "raise the limit" in error["message"]


@pytest.mark.parametrize("below", ["new", "to be/made/new"])
def test_restore(home: Home, place: Place, tdn: Tdn, tmp_path: Path, below: str) -> None:
    """A full disk is no damaged backup; and the same backup is whole where there is room."""
    assert tdn(home.folder, "backup", "--to", tmp_path / "saved")[0] == 0
    with place.narrow:
        require_refusal(tdn(place.folder / below, "restore", tmp_path / "saved"), place.folder / below)
    assert place.contents() == set()
    assert tdn(tmp_path / "elsewhere", "restore", tmp_path / "saved")[0] == 0


def test_backup(home: Home, place: Place, tdn: Tdn) -> None:
    with place.narrow:
        require_refusal(tdn(home.folder, "backup", "--to", place.folder / "saved"), place.folder / "saved")
    assert place.contents() == set()


def test_snapshot(home: Home, place: Place, tdn: Tdn, tmp_path: Path) -> None:
    assert tdn(home.folder, "snapshot", "--to", tmp_path / "snapshot")[0] == 0
    assert (tmp_path / "snapshot").stat().st_size > LARGEST_BYTES
    if place.disk is not None and (tmp_path / "snapshot").stat().st_size < LEFT_BYTES:
        place.disk.fill()
    with place.narrow:
        require_refusal(tdn(home.folder, "snapshot", "--to", place.folder / "snapshot"), place.folder / "snapshot")
    assert place.contents() == set()


def test_archive_export(home: Home, place: Place, tdn: Tdn) -> None:
    """The folders of an archive may stay; nothing is in them, and with room the same command goes on."""
    if place.disk is not None:
        place.disk.fill()
    archive = place.folder / "archive"
    with place.narrow:
        require_refusal(tdn(home.folder, "archive", "export", "--to", archive), archive)
    assert place.contents() <= {"archive", "archive/manifest", "archive/segments"}
    if place.disk is not None:
        place.disk.free()
    assert tdn(home.folder, "archive", "export", "--to", archive)[0] == 0


def test_what_cannot_be_read_is_not_called_damaged(tdn: Tdn, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    # The last opens, and gives an error of the device when it is read.
    for file in (tmp_path / "absent", tmp_path / "folder", tmp_path / "file" / "below", Path("/proc/self/mem")):
        code, error = tdn(tmp_path / "new", "restore", file)
        assert (code, error["error"]) == (2, "usage"), error
        assert f"{file} cannot be read: " in error["message"]
    code, error = tdn(tmp_path / "file" / "new", "restore", tmp_path / "file")
    assert (code, "cannot be written" in error["message"]) == (2, True)
    code, error = tdn(tmp_path / "new", "restore", tmp_path / "file")
    assert (code, "not a whole backup" in error["message"]) == (4, True)
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}


def test_what_may_not_be_read(home: Home, tdn: Tdn, tmp_path: Path) -> None:
    assert tdn(home.folder, "backup", "--to", tmp_path / "saved")[0] == 0
    (tmp_path / "saved").chmod(0)
    if os.access(tmp_path / "saved", os.R_OK):
        pytest.skip("modes do not stop whoever runs this, such as root")
    code, error = tdn(tmp_path / "new", "restore", tmp_path / "saved")
    assert (code, "cannot be read" in error["message"]) == (2, True)
    shutil.copytree(home.folder, tmp_path / "home")
    (tmp_path / "home" / "ca").chmod(0)
    code, error = tdn(tmp_path / "home", "backup", "--to", tmp_path / "other")
    (tmp_path / "home" / "ca").chmod(0o700)
    assert (code, f"{tmp_path / 'home' / 'ca'} cannot be read" in error["message"]) == (2, True)
