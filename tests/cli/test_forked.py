"""A command that is forked (tests/commands.py) does what the installed one does; else most tests of this folder would show nothing."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.commands import ENTRY_POINTS, server
from tests.live import descendants, run, wait_for


def test_they_are_what_is_installed() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert {name: f"{module}:run" for name, module in ENTRY_POINTS.items()} == {name: scripts[name] for name in ENTRY_POINTS}


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("tdn", ("--help",), 0),
        ("tdn", ("--json", "status"), 0),
        ("tdn", ("rise",), 2),
        ("tdn", ("verify", "-", "--trust", "absent.pem"), 4),
        ("tdn", ("-v", "--json", "verify", "absent"), 2),
        ("entity", ("--as", "ada", "create", "--help"), 0),
        ("entity", ("--json", "locate"), 2),
        ("entity", ("--as", "nobody", "locate"), 4),
        ("tdn-spark", ("--json", "search"), 2),
        ("tdn-spark", ("--json", "query", "--index", "none", "--operator", "--string", "a"), 2),
    ],
)
def test_they_end_alike(command: str, words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """The same on standard output, on standard error and as exit code, in the same folder with the same input."""
    forked, installed = (run(command, *words, cwd=tmp_path, stdin="nonsense", installed=installed) for installed in (False, True))
    assert forked == installed
    assert forked.code == code


def test_environment_and_folder_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tdn.toml").write_text("[broker]\nmode = 'rented'\n")
    by_variable = run("tdn", "--json", "up", env={"TDN_HOME": str(tmp_path / "elsewhere")})
    by_folder = run("tdn", "--home", "elsewhere", "--json", "up", cwd=tmp_path)
    assert (by_variable.code, by_variable.error["error"]) == (by_folder.code, by_folder.error["error"]) == (2, "usage")


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """It watches without end, and is killed when its time is over."""
    words = ("--home", tmp_path / "none", "status", "--watch")
    with pytest.raises(subprocess.TimeoutExpired):
        run("tdn", *words, seconds=1.0)
    wait_for(lambda: not descendants(server().pid), "it to be gone, and who waited for it")
