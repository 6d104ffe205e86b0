"""The `tdn` command as installed: up, down, status, certificates, and offline verification."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tdn.local.ca import CertificateAuthority
from tests.live import LiveNetwork, Ran, is_alive, processes_of, run

pytestmark = pytest.mark.broker

Tdn = Callable[..., Ran]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[LiveNetwork]:
    """A home that does not exist yet; whatever runs in it at the end is ended."""
    network = LiveNetwork(tmp_path / "fresh home")
    yield network
    network.end()


# It starts a network twice: most of a minute where nothing else runs.
@pytest.mark.timeout(300)
def test_life_of_a_network(fresh: LiveNetwork, live: LiveNetwork) -> None:
    """up, up again, status, down, down again, and up once more: the same network, beside another one that notices nothing."""
    home = fresh.home.folder

    def tdn(*words: str, installed: bool = False) -> Ran:
        return run("tdn", "--home", home, "--json", *words, installed=installed)

    def entity(name: str, *words: str, installed: bool = False) -> Ran:
        return run("entity", "--home", home, "--as", name, "--json", *words, installed=installed)

    before = tdn("status")
    assert (before.code, before.out) == (0, "")
    assert "no network" in before.err
    assert (tdn("down").code, home.exists()) == (0, False), "harmless, and makes nothing"
    neighbours = {entry["id"]: entry["pid"] for entry in live.network.status()}

    # Each command is the installed one once; a second more for every further time would show nothing.
    up = tdn("up", installed=True)
    assert up.code == 0, up.err
    assert sorted((line["role"], line["id"]) for line in up.lines) == [
        ("broker", "broker"),
        ("guard", "g1"),
        ("node", "n1"),
        ("node", "n2"),
    ]
    assert all(line["alive"] and isinstance(line["pid"], int) for line in up.lines)
    assert all(set(line) >= {"sequence", "lag", "topics"} for line in up.lines if line["role"] == "node")
    assert home.stat().st_mode & 0o077 == 0, "keys are nobody else's business"

    again = tdn("up")
    assert again.code == 0
    assert "already running" in again.err
    assert {line["pid"] for line in again.lines} == {line["pid"] for line in up.lines}
    assert {line["pid"] for line in tdn("status", installed=True).lines} == {line["pid"] for line in up.lines}
    assert "ROLE" in run("tdn", "--home", home, "status").out

    issued = run("tdn", "--home", home, "ca", "issue", "alice", "--institution", "ACME")
    assert issued == Ran(0, f"{home}/entities/alice\n", "")
    assert tdn("ca", "issue", "bob", installed=True).code == 0
    topic = entity("alice", "create", "--path", "outlives/restarts", installed=True).one
    assert topic["institution"] == "ACME"
    stranger = run("entity", "--credentials", home / "entities" / "alice", "--json", "show", topic["uuid"])
    assert stranger.code == 0
    assert not set(fresh.home.ports().values()) & set(live.home.ports().values())
    assert fresh.home.network != live.home.network

    searching = [pid for node in fresh.nodes() for pid in fresh.searching(node)]
    assert len(searching) >= 4
    assert set(searching) <= set(processes_of(home)), "if one were left, it would be found"
    down = tdn("down", installed=True)
    assert (down.code, down.out) == (0, "")
    assert processes_of(home) == []
    assert not any(map(is_alive, searching)), "nor any process that searched"
    assert tdn("down").code == 0
    assert [line["alive"] for line in tdn("status").lines] == [False] * 4
    assert [line["topics"] for line in tdn("status").lines if line["role"] == "node"] == [1, 1]
    unreachable = run("entity", "--home", home, "--as", "alice", "--json", "--timeout", "1s", "show", topic["uuid"])
    assert (unreachable.code, unreachable.error["error"], unreachable.out) == (3, "unreachable", "")
    # Revoked while nothing runs: the log learns it at the next start.
    revoked = tdn("ca", "revoke", "bob", installed=True)
    assert (revoked.code, revoked.one["receipt"]) == (0, None)
    assert "next `tdn up`" in revoked.err
    assert {entry["id"]: entry["pid"] for entry in live.network.status()} == neighbours

    assert tdn("up").code == 0
    shown = entity("alice", "show", topic["uuid"], installed=True)
    assert shown.one["advertisement"] == topic["advertisement"], "same CA, same topics"
    assert entity("bob", "locate").code == 4
    assert {entry["id"]: entry["pid"] for entry in live.network.status()} == neighbours


def test_up_mistakes(tmp_path: Path) -> None:
    for words in (("up", "--nodes", "0"), ("up", "--nodes", "99"), ("up", "--nodes", "two"), ("rise",), ()):
        ran = run("tdn", "--home", tmp_path / "none", "--json", *words)
        assert (ran.code, ran.error["error"]) == (2, "usage"), words
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "tdn.toml").write_text("[broker]\nmode = 'rented'\n")
    ran = run("tdn", "--home", tmp_path / "bad", "--json", "up")
    assert (ran.code, ran.error["error"]) == (2, "usage")
    assert 'broker.mode: write "private" or "own"' in ran.error["message"]


def test_foreground_commands_name_what_is_missing(live: LiveNetwork) -> None:
    for command in ("node", "guard"):
        ran = run("tdn", "--home", live.home.folder, "--json", command, "--id", "x9")
        assert (ran.code, ran.error["error"]) == (2, "usage")
        assert "x9" in ran.error["message"]


# --- certificates --------------------------------------------------------------------------------------------------------------------


def test_ca_issue(live: LiveNetwork, entity: Path) -> None:
    """Prints the folder; for an existing name a new certificate, the institution kept; names and lifetimes are checked."""
    home = live.home.folder
    first = run(
        "tdn", "--home", home, "--json", "ca", "issue", f"{entity.name}-x", "--institution", "Ä & Co", "--lifetime", "30d"
    ).one
    assert Path(first["folder"]).is_dir()
    assert (first["institution"], first["rotated"]) == ("Ä & Co", False)
    second = run("tdn", "--home", home, "ca", "issue", "--json", f"{entity.name}-x").one
    assert (second["institution"], second["rotated"], second["folder"]) == ("Ä & Co", True, first["folder"])
    assert second["name"] != first["name"]
    for words in (("Upper",), ("-dash",), ("a" * 64,), ("ok", "--lifetime", "1y"), ("ok", "--institution", ""), ()):
        ran = run("tdn", "--home", home, "--json", "ca", "issue", *words)
        assert (ran.code, ran.error["error"]) == (2, "usage"), words


def test_ca_revoke_of_nobody(live: LiveNetwork, tmp_path: Path) -> None:
    ran = run("tdn", "--home", live.home.folder, "--json", "ca", "revoke", "nobody-of-that-name")
    assert (ran.code, ran.error["error"]) == (4, "trust")
    assert run("tdn", "--home", tmp_path / "none", "--json", "ca", "revoke", "alice").code == 4


def test_ca_install_refuses_what_does_not_belong(live: LiveNetwork, entity: Path, tmp_path: Path) -> None:
    home = live.home.folder
    name = f"{entity.name}-r"
    request = run("tdn", "--home", home, "--json", "ca", "request", name).one["request"]
    assert "CERTIFICATE REQUEST" in Path(request).read_text()
    other = run("tdn", "--home", home, "--json", "ca", "install", name, entity / "cert.pem")
    assert (other.code, other.error["error"]) == (4, "trust"), "a certificate for somebody else"
    (tmp_path / "empty.pem").write_text("")
    assert run("tdn", "--home", home, "--json", "ca", "install", name, tmp_path / "empty.pem").code == 2
    assert run("tdn", "--home", home, "--json", "ca", "install", name, tmp_path / "missing.pem").code == 2
    assert run("tdn", "--home", home, "--json", "ca", "install", entity.name, entity / "trust.pem").code in (2, 4)


# --- offline verification ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def line(live: LiveNetwork) -> str:
    """What `entity create --json` printed."""
    return run("entity", "--home", live.home.folder, "--as", live.entity().name, "--json", "create", "--path", "verified").out


def verify(live: LiveNetwork, text: str, *words: str | Path) -> Ran:
    return run("tdn", "--home", live.home.folder, "--json", "verify", "-", *words, stdin=text)


def test_verify_says_what_it_proves(live: LiveNetwork, line: str, tmp_path: Path) -> None:
    """T5: from a file or standard input, our JSON line or the signed bytes; offline, with the trust root alone."""
    topic = json.loads(line)
    (tmp_path / "line.json").write_text(line)
    whole = run("tdn", "--home", live.home.folder, "--json", "verify", tmp_path / "line.json")
    assert whole.code == 0
    assert [(verdict["kind"], verdict["valid"]) for verdict in whole.lines] == [("advertisement", True), ("receipt", True)]
    for verdict in whole.lines:
        assert verdict["signer"].startswith("node:n")
        assert verdict["proves"]
        assert verdict["not_checked"]
    assert topic["uuid"] in whole.lines[0]["proves"][0]
    assert "log" in whole.lines[1]["proves"][0]

    alone = verify(live, topic["advertisement"] + "\n")
    assert (alone.code, alone.one["kind"]) == (0, "advertisement")
    (tmp_path / "receipt.jws").write_text(topic["receipt"])
    root = live.home.folder / "ca" / "root.pem"
    elsewhere = run("tdn", "--home", tmp_path / "no home", "--json", "verify", tmp_path / "receipt.jws", "--trust", root)
    assert (elsewhere.code, elsewhere.one["kind"]) == (0, "receipt")
    people = run("tdn", "--home", live.home.folder, "verify", tmp_path / "line.json")
    assert people.out.startswith("VALID: advertisement, signed by node:n")
    assert "not checked:" in people.out


def test_verify_refuses(live: LiveNetwork, line: str, tmp_path: Path) -> None:
    """T5: a changed byte, another's receipt, another trust root, nonsense: exit 4, and it says so."""
    topic: dict[str, Any] = json.loads(line)
    header, payload, signature = topic["advertisement"].split(".")
    for place in (5, len(payload) - 2):
        changed = payload[:place] + ("A" if payload[place] != "A" else "B") + payload[place + 1 :]
        ran = verify(live, f"{header}.{changed}.{signature}")
        assert (ran.code, ran.one["valid"]) == (4, False)
        assert ran.one["error"]

    other = json.loads(
        run("entity", "--home", live.home.folder, "--as", live.entity().name, "--json", "create", "--path", "verified").out
    )
    mixed = verify(live, json.dumps({**topic, "receipt": other["receipt"]}))
    assert mixed.code == 4
    assert [verdict["valid"] for verdict in mixed.lines] == [True, False]

    stranger = CertificateAuthority(tmp_path / "ca")
    stranger.create()
    foreign = verify(live, line, "--trust", tmp_path / "ca" / "root.pem")
    assert foreign.code == 4
    assert not any(verdict["valid"] for verdict in foreign.lines)
    assert "trusted root" in foreign.lines[0]["error"]

    assert verify(live, "nonsense").code == 4
    assert verify(live, json.dumps({"uuid": topic["uuid"]})).code == 2, "an object that holds nothing signed"
    assert run("tdn", "--home", live.home.folder, "--json", "verify", tmp_path / "missing").error["error"] == "usage"
    homeless = run("tdn", "--home", tmp_path / "none", "--json", "verify", "-", stdin=line)
    assert (homeless.code, "--trust" in homeless.error["message"]) == (2, True), "it says how to name the roots"
