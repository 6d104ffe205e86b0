"""Private files: whose they are, and who else may read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdn.errors import TrustError
from tdn.trust.private_files import complaint_about, read_private

ME, OTHER, ROOT = 1000, 1001, 0
MINE, THEIRS = 500, 501


def found(mode: int, user: int, group: int = THEIRS, *, kind: int = 0o100000) -> os.stat_result:
    return os.stat_result((kind | mode, 0, 0, 1, user, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "group", "process", "fragment"),
    [
        (0o600, ME, THEIRS, ME, None),
        (0o400, ME, THEIRS, ME, None),
        (0o600, ROOT, ROOT, ROOT, None),
        # As Kubernetes mounts a secret for fsGroup, and as a package hands a key to a service.
        (0o440, ROOT, MINE, ME, None),
        (0o640, ROOT, MINE, ME, None),
        (0o644, ME, THEIRS, ME, "chmod 600"),
        (0o444, ROOT, MINE, ME, "chmod 600"),
        (0o602, ME, THEIRS, ME, "chmod 600"),
        (0o640, ME, MINE, ME, "the group 500 can reach"),
        (0o440, ROOT, THEIRS, ME, "the group 501 can reach"),
        (0o440, ROOT, ROOT, ROOT, "the group 0 can reach"),
        (0o460, ROOT, MINE, ME, "the group 500 can reach"),
        (0o600, OTHER, THEIRS, ME, "belongs to user 1001, and this process is user 1000"),
        (0o600, OTHER, THEIRS, ROOT, "run `chown 0"),
    ],
)
def test_whose_it_is(mode: int, owner: int, group: int, process: int, fragment: str | None) -> None:
    complaint = complaint_about(Path("/x/key.pem"), found(mode, owner, group), process, {process, MINE})
    assert (complaint is None) if fragment is None else (fragment in (complaint or ""))


def test_what_to_run_can_be_run() -> None:
    assert "`chmod 600 '/a home/key.pem'`" in (complaint_about(Path("/a home/key.pem"), found(0o644, ME), ME, ()) or "")


def test_no_file() -> None:
    assert complaint_about(Path("x"), found(0o600, ME, kind=0o040000), ME, ()) == "x is not a file"


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(FileNotFoundError):
        read_private(path)
    path.touch(mode=0o600)
    path.write_bytes(b"secret")
    assert read_private(path) == b"secret"
    path.chmod(0o604)
    with pytest.raises(TrustError, match="chmod 600") as caught:
        read_private(path)
    assert "secret" not in str(caught.value)


def test_a_pipe_in_its_place_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key.pem", 0o600)
    with pytest.raises(TrustError, match="is not a file"):
        read_private(tmp_path / "key.pem")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "key.pem").mkdir(mode=0o700)
    with pytest.raises(TrustError, match="is not a file"):
        read_private(tmp_path / "key.pem")
