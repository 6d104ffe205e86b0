"""A node or guard that has long to do before it serves: whoever looks after it sees that it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tdn.local.home import Home
from tdn.local.network import Network
from tdn.local.processes import free_port
from tdn.protocol.names import Role
from tests.live import wait_for


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("long starts") / "home")
    operator = Network(home).operator
    operator.found()
    for role, name in ((Role.BROKER, "broker"), (Role.GUARD, "g1"), (Role.NODE, "n1")):
        operator.issue(role, name)
    home.management_password()
    return home


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.parametrize(("role", "name"), [(Role.NODE, "n1"), (Role.GUARD, "g1")])
def test_its_health_is_told_while_it_makes_its_store(home: Home, tmp_path: Path, role: Role, name: str) -> None:
    """From a snapshot that comes slowly: a pipe that nobody has written into yet. A kubelet ends what does not answer for a minute, and the next start would
    begin with the same again."""
    snapshot = tmp_path / "snapshot"
    os.mkfifo(snapshot)
    port = free_port()
    settings = home.credentials(role, name) / f"{role}.toml"
    settings.write_text(f'[observe]\nlisten = "127.0.0.1:{port}"\n', "utf-8")
    tdn = Path(sys.executable).parent / "tdn"
    words = [tdn, "--home", home.folder, "--json", str(role), "--id", name, "--snapshot", snapshot]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: get(f"http://127.0.0.1:{port}/healthz")[0] == 200, "it to say that it lives", seconds=60)
            status, body = get(f"http://127.0.0.1:{port}/readyz")
            assert (status, json.loads(body)) == (503, {"ready": False, "reason": "starting"})
            status, body = get(f"http://127.0.0.1:{port}/metrics")
            assert (status, body.splitlines()[-1]) == (200, "tdn_ready 0.0"), "up, for Prometheus, and not ready: nobody need be told that it hangs"
            snapshot.write_bytes(b"no snapshot")
            assert process.wait(60) == 4
            assert process.stderr is not None
            assert "not a whole snapshot" in json.loads(process.stderr.read().splitlines()[-1])["message"]
        finally:
            process.kill()
