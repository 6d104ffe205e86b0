"""deploy/setup.sh where nothing can be installed: it says exactly what to install, and fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "setup.sh"
#: What the script itself is written with; everything else is missing on this imagined machine.
TOOLS = ("bash", "dirname", "sed", "grep", "id")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A machine with nothing on it: returns the only folder of its PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "root").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path / "bin"


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(path / "bash"), str(SCRIPT), *arguments],
        env={"PATH": str(path), "TDN_SYSTEM_ROOT": str(path.parent / "root"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def java(path: Path, version: str) -> None:
    command(path, "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")


def expected(packages: str) -> str:
    return (
        f"setup: error: missing: {packages}\n"
        "setup: install with:\n"
        f"    sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}\n"
    )


def test_says_exactly_what_to_install(bare: Path) -> None:
    result = run(bare, "system", TDN_NO_INSTALL="1")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == expected("rabbitmq-server default-jre-headless")


def test_without_root_sudo_or_apt_it_says_the_same(bare: Path) -> None:
    assert run(bare, "system").stderr == expected("rabbitmq-server default-jre-headless")


@pytest.mark.parametrize(
    ("offered", "named"),
    [
        ("openjdk-17-jre-headless openjdk-21-jre-headless", "openjdk-17-jre-headless"),
        ("openjdk-21-jre-headless", "openjdk-21-jre-headless"),
        ("", "default-jre-headless"),
    ],
)
def test_names_a_java_that_the_system_offers(bare: Path, offered: str, named: str) -> None:
    command(
        bare,
        "apt-cache",
        f'case " {offered} " in *" $2 "*) echo "  Candidate: 1.0";; *) echo "  Candidate: (none)";; esac',
    )
    assert run(bare, "system", TDN_NO_INSTALL="1").stderr == expected(f"rabbitmq-server {named}")


@pytest.mark.parametrize(
    ("offered", "enough"), [("3.9.13-1ubuntu0.22.04.2", False), ("3.10.8-1.1+deb12u1", True), ("3.12.1-1ubuntu1", True), ("4.0.5-8", True), ("1:3.9.27", False), ("(none)", True)]
)
def test_a_rabbitmq_that_is_too_old_is_not_installed(bare: Path, offered: str, enough: bool) -> None:
    """Ubuntu 22.04 has 3.9, on which the queues that nodes declare are refused: better told here than by the first node."""
    java(bare, "17.0.1")
    command(bare, "apt-cache", f'[ "$2" = rabbitmq-server ] && printf "rabbitmq-server:\\n  Installed: (none)\\n  Candidate: {offered}\\n"')
    result = run(bare, "system", TDN_NO_INSTALL="1")
    assert result.returncode == 1
    if enough:
        assert result.stderr == expected("rabbitmq-server")
    else:
        assert "the packages of this system have RabbitMQ 3.9, and 3.10 or newer is needed" in result.stderr


@pytest.mark.parametrize(("version", "enough"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("21", True)])
def test_java_must_be_17_or_newer(bare: Path, version: str, enough: bool) -> None:
    java(bare, version)
    result = run(bare, "system", TDN_NO_INSTALL="1", TDN_RABBITMQ_SERVER="/opt/ours/rabbitmq-server")
    assert result.returncode == (0 if enough else 1)
    assert result.stderr == ("" if enough else expected("default-jre-headless"))


def test_rabbitmq_is_not_asked_for_where_it_is_or_docker_runs(bare: Path) -> None:
    java(bare, "17.0.1")
    assert run(bare, "system", TDN_NO_INSTALL="1").stderr == expected("rabbitmq-server")
    command(bare, "docker", "exit 1")
    assert run(bare, "system", TDN_NO_INSTALL="1").returncode == 1, "installed is not running"
    command(bare, "docker", "exit 0")
    assert run(bare, "system", TDN_NO_INSTALL="1").returncode == 0
    (bare / "docker").unlink()
    server = bare.parent / "root/usr/lib/rabbitmq/bin"
    server.mkdir(parents=True)
    command(server, "rabbitmq-server", "")
    assert run(bare, "system", TDN_NO_INSTALL="1").returncode == 0


def test_python_must_be_there_and_new_enough(bare: Path) -> None:
    command(bare, "python3", "exit 1")
    result = run(bare, "venv", TDN_NO_INSTALL="1")
    assert result.returncode == 1
    assert result.stderr == (
        "setup: error: Python 3.11 or newer is needed and none was found (tried: python3.13 python3.12 python3.11 python3)\n"
    )


def test_debians_missing_ensurepip(bare: Path) -> None:
    command(bare, "python3", f'case "$2" in *ensurepip*) exit 1;; *) exec {sys.executable} "$@";; esac')
    result = run(bare, "venv", TDN_NO_INSTALL="1")
    assert result.returncode == 1
    assert result.stderr == expected("python3-venv")


def test_usage(bare: Path) -> None:
    assert run(bare).stderr == "setup: error: usage: deploy/setup.sh venv|system|checks|chaos\n"


@pytest.mark.skipif(sys.platform != "linux", reason="units are for Linux; elsewhere nothing is asked for")
def test_checks_ask_for_what_reads_units(bare: Path) -> None:
    result = run(bare, "checks", TDN_NO_INSTALL="1")
    assert (result.returncode, result.stderr) == (1, expected("systemd"))
    command(bare, "systemd-analyze", "exit 0")
    assert run(bare, "checks", TDN_NO_INSTALL="1").returncode == 0


def test_chaos_goes_on_without_a_compiler(bare: Path) -> None:
    """What cannot be had is said, and left out of the run; the rest of it can be run all the same."""
    result = run(bare, "chaos", TDN_NO_INSTALL="1")
    assert result.returncode == 0
    assert "there is no C compiler (Debian: gcc and libc6-dev); clocks will not jump" in result.stderr
    command(bare, "gcc", "true")
    assert "compiler" not in run(bare, "chaos", TDN_NO_INSTALL="1").stderr
