"""A home in a file: everything that must be there, nothing that must not, and never anything that was changed on the way."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from little_network import LittleNetwork

from tdn.errors import TrustError, UsageError
from tdn.local.backup import MANIFEST, backup, restore
from tdn.local.home import Home
from tdn.local.operator import Operator
from tdn.protocol.names import Role
from tdn.store.search import Reader
from tdn.store.view import View

NET = LittleNetwork("backup")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a node, an entity, and what a running network leaves lying about."""
    home = Home(tmp_path / "home")
    operator = Operator(home)
    operator.found()
    for role, name in ((Role.BROKER, "broker"), (Role.GUARD, "g1"), (Role.NODE, "n1"), (Role.ENTITY, "alice")):
        operator.issue(role, name)
    home.management_password()
    (home.run / "node-n1.log").write_text("said\n")
    for place in ("data/x", "home", "log"):
        (home.folder / "broker" / "rabbitmq" / place).mkdir(parents=True)
    (home.folder / "broker" / "rabbitmq" / "data" / "x" / "0.segment").write_bytes(b"records")
    (home.folder / "broker" / "rabbitmq" / "data" / "rabbitmq.pid").write_text("17")
    (home.folder / "broker" / "rabbitmq" / "home" / ".erlang.cookie").write_text("cookie")
    (home.folder / "broker" / "rabbitmq" / "log" / "broker.log").write_text("said\n")
    (home.store("n1").parent / "store.sqlite.from-snapshot").write_bytes(b"half")
    return home


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_and_back(home: Home, tmp_path: Path) -> None:
    """The same files, private to their owner; without processes' own, without the broker's."""
    saved = backup(home, tmp_path / "saved")
    assert saved.file.stat().st_mode & 0o777 == 0o600
    assert saved.bytes == saved.file.stat().st_size
    new = Home(tmp_path / "new")
    restored = restore(saved.file, new)
    assert (restored.network, restored.files, restored.broker) == (home.network, saved.files, False)
    left_out = ("run/", "broker/rabbitmq/", "nodes/n1/store.sqlite.from-snapshot")
    assert contents(new.folder) == {name: text for name, text in contents(home.folder).items() if not name.startswith(left_out)}
    assert new.network == home.network
    for path in [new.folder, *new.folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert new.run.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "new", "saved"}, "nothing is left lying about"


def test_with_the_brokers_data(home: Home, tmp_path: Path) -> None:
    restore(backup(home, tmp_path / "saved", with_broker=True).file, Home(tmp_path / "new"))
    kept = [name for name in contents(tmp_path / "new") if name.startswith("broker/rabbitmq/")]
    assert sorted(kept) == ["broker/rabbitmq/data/x/0.segment", "broker/rabbitmq/home/.erlang.cookie"]


def test_a_store_that_is_being_written(home: Home, tmp_path: Path) -> None:
    """What was committed is in the copy, although it is not in the file itself yet."""
    with closing(View(home.store("n1"))) as view:
        view.apply_all(list(enumerate(NET.opening())))
        assert home.store("n1").with_name("store.sqlite-wal").stat().st_size > 0
        saved = backup(home, tmp_path / "saved")
        position = view.position
    restore(saved.file, Home(tmp_path / "new"))
    assert [path.name for path in (tmp_path / "new/nodes/n1").glob("store*")] == ["store.sqlite"]
    with closing(Reader(Home(tmp_path / "new").store("n1"))) as reader:
        assert reader.position() == position


def moved(path: Path, to: Path) -> None:
    """What an operator does who has another disk for it."""
    path.rename(to)
    path.symlink_to(to)


def test_what_is_linked_is_a_part_of_the_home(home: Home, tmp_path: Path) -> None:
    """Saved like the rest, and in its place in a restored home, which has no links."""
    with closing(View(home.store("n1"))) as view:
        view.apply_all(list(enumerate(NET.opening())))
    before = contents(home.folder)
    disk = tmp_path / "disk"
    disk.mkdir()
    moved(home.folder / "ca", disk / "ca")
    moved(home.folder / "nodes/n1", disk / "n1")
    moved(disk / "n1/store.sqlite", disk / "the store.sqlite")
    moved(home.folder / "entities/alice/key.pem", disk / "key of alice")
    moved(home.folder / "operator/key.pem", disk / "key")
    moved(disk / "key", disk / "key of the operator")
    (tmp_path / "as linked").symlink_to(home.folder)
    saved = backup(Home(tmp_path / "as linked"), tmp_path / "saved")
    new = tmp_path / "new"
    restore(saved.file, Home(new))
    assert not [path for path in new.rglob("*") if path.is_symlink()]
    left_out = ("run/", "broker/rabbitmq/", "nodes/n1/store.sqlite.from-snapshot")
    assert contents(new).keys() == {name for name in before if not name.startswith(left_out)}
    for name, content in contents(new).items():
        assert content == before[name] or name == "nodes/n1/store.sqlite"
    with closing(Reader(Home(new).store("n1"))) as reader, closing(Reader(home.store("n1"))) as present:
        assert reader.position() == present.position()
    assert saved.passed_over == ()


def test_links_that_go_round(home: Home, tmp_path: Path) -> None:
    """Each is entered once on a way, and named; two that lead to one folder are two."""
    (home.folder / "nodes/n1/home").symlink_to(home.folder)
    (home.folder / "nodes/n2").symlink_to("n1")
    (home.folder / "here").symlink_to(".")
    saved = backup(home, tmp_path / "saved")
    assert sorted(saved.passed_over) == [f"{name} (a link to a folder that it is in)" for name in ("here", "nodes/n1/home", "nodes/n2/home")]
    restore(saved.file, Home(tmp_path / "new"))
    kept = contents(tmp_path / "new")
    assert kept["nodes/n2/key.pem"] == kept["nodes/n1/key.pem"]
    assert not [name for name in kept if name.count("nodes/") > 1]


@pytest.mark.parametrize("leads_to", ["/nowhere/ca", "ca", "home.json/ca"], ids=["absent", "itself", "through a file"])
def test_a_link_that_leads_nowhere(home: Home, tmp_path: Path, leads_to: str) -> None:
    """A disk that is not mounted, say: a backup without it would not be one."""
    (home.folder / "ca").rename(tmp_path / "ca")
    (home.folder / "ca").symlink_to(leads_to)
    with pytest.raises(UsageError, match=rf"home/ca leads to {leads_to}, where nothing is: .*mount its disk") as caught:
        backup(home, tmp_path / "saved")
    assert caught.value.exit_code == 2
    assert {path.name for path in tmp_path.iterdir()} == {"home", "ca"}


def test_what_has_no_content(home: Home, tmp_path: Path) -> None:
    os.mkfifo(home.folder / "nodes/n1/pipe")
    (home.folder / "guards/g1/null").symlink_to("/dev/null")
    saved = backup(home, tmp_path / "saved")
    assert saved.passed_over == ("guards/g1/null (a socket, a pipe or a device)", "nodes/n1/pipe (a socket, a pipe or a device)")


def test_what_cannot_be_read_is_named(home: Home, tmp_path: Path) -> None:
    """It opens, and gives an error when it is read."""
    (home.folder / "nodes/n1/more.sqlite").symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, match=r"nodes/n1/more.sqlite cannot be read: "):
        backup(home, tmp_path / "saved")
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


def test_names_that_only_look_like_something_else(home: Home, tmp_path: Path) -> None:
    """Ids may say what SQLite and brokers call their own."""
    operator = Operator(home)
    names = ("lab-journal-1", "x-wal-2", "y-shm-3", "run", "rabbitmq", "ends-wal")
    for name in names:
        operator.issue(Role.NODE, name)
        operator.issue(Role.ENTITY, name)
        (home.credentials(Role.ENTITY, name) / f"notes-{name}").write_text("kept")
    (home.folder / "nodes/rabbitmq/data.log").write_text("kept")
    (home.folder / "nodes/n1/lonely.sqlite-wal").write_text("kept")
    with closing(View(home.store("x-wal-2"))):
        assert home.store("x-wal-2").with_name("store.sqlite-wal").exists()
        restore(backup(home, tmp_path / "saved").file, Home(tmp_path / "new"))
        left_out = {name for name in contents(home.folder) if name.startswith(("run/", "broker/rabbitmq/")) or name.endswith(".from-snapshot")}
        left_out |= {f"nodes/x-wal-2/store.sqlite-{ending}" for ending in ("wal", "shm")}
        assert contents(tmp_path / "new").keys() == contents(home.folder).keys() - left_out
    assert (tmp_path / "new/network/enrolments/node-lab-journal-1.jws").exists()


def test_into_a_folder_even_its_own(home: Home, tmp_path: Path) -> None:
    saved = backup(home, home.folder)
    assert saved.file.parent == home.folder
    again = backup(home, tmp_path)
    assert again.file.name.startswith(f"tdn-{home.network[:12]}-")
    with tarfile.open(again.file) as tar:
        assert saved.file.name in tar.getnames(), "what lies in the home is a part of it"
        assert not [name for name in tar.getnames() if "unfinished" in name or "tdn-backup" in name]


def test_nothing_is_written_over(home: Home, tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("precious")
    with pytest.raises(UsageError, match="never written over"):
        backup(home, tmp_path / "saved")
    assert (tmp_path / "saved").read_text() == "precious"
    saved = backup(home, tmp_path / "other").file
    with pytest.raises(UsageError, match="is not empty"):
        restore(saved, home)
    (tmp_path / "empty").mkdir()
    restore(saved, Home(tmp_path / "empty"))
    with pytest.raises(UsageError, match="cannot be written"):
        backup(home, tmp_path / "no folder" / "saved")


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content) if kind == tarfile.REGTYPE else 0, kind
    info.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    return info, content


Members = list[tuple[tarfile.TarInfo, bytes]]


def key_changed(members: Members) -> Members:
    return [(info, content[:-1] + b"x" if info.name == "operator/key.pem" else content) for info, content in members]


def one_missing(members: Members) -> Members:
    return [one for one in members if one[0].name != "operator/key.pem"]


def manifest_changed(members: Members) -> Members:
    manifest = json.loads(members[-1][1])
    manifest["files"] = manifest["files"][1:]
    return [*members[:-1], member(MANIFEST, json.dumps(manifest).encode())]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (key_changed, "operator/key.pem differs"),
        (one_missing, "operator/key.pem differs"),
        (manifest_changed, "differs"),
        (lambda members: [member("more", b"x"), *members], "more differs"),
        (lambda members: [*members, member("after", b"x")], "which no backup of ours does"),
        (lambda members: [member("../outside", b"x"), *members], "which no backup of ours does"),
        (lambda members: [member("/outside", b"x"), *members], "which no backup of ours does"),
        (lambda members: [member("link", b"", tarfile.SYMTYPE), *members], "which no backup of ours does"),
        (lambda members: [members[0], *members], "which no backup of ours does"),
        (lambda members: [member("file", b"x"), member("file/below", b"x"), *members], "which no backup of ours does"),
        (lambda members: [member("folder/below", b"x"), member("folder", b"x"), *members], "which no backup of ours does"),
        (lambda members: members[:-1], "no manifest"),
        (lambda members: [*members[:-1], member(MANIFEST, b'{"format": 1}')], "lacks something"),
        (lambda members: [*members[:-1], member(MANIFEST, b"[" * 100_000)], "not a whole backup"),
        (lambda members: [*members[:-1], member(MANIFEST, b"[]")], "no manifest"),
        (lambda members: [*members[:-1], member(MANIFEST, b"{")], "not a whole backup"),
    ],
)
def test_changed_on_the_way(home: Home, tmp_path: Path, change: Callable[[Members], Members], why: str) -> None:
    saved = backup(home, tmp_path / "saved").file
    with tarfile.open(saved) as tar:
        members = [(info, (tar.extractfile(info) or io.BytesIO()).read()) for info in tar]
    with tarfile.open(tmp_path / "forged", "w:gz") as tar:
        for info, content in change(members):
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(TrustError, match=why):
        restore(tmp_path / "forged", Home(tmp_path / "new"))
    assert {path.name for path in tmp_path.iterdir()} == {"home", "saved", "forged"}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.95])
def test_cut(home: Home, tmp_path: Path, share: float) -> None:
    saved = backup(home, tmp_path / "saved").file
    os.truncate(saved, int(saved.stat().st_size * share))
    with pytest.raises(TrustError, match="not a whole backup"):
        restore(saved, Home(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match="cannot be read"):
        restore(tmp_path / "absent", Home(tmp_path / "new"))
