"""Starting with something wrong: each tells a person what it is and what to do, with the exit code that was promised, and no traceback.

None of these needs a broker: what is wrong is found before one is looked for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tdn.errors import NoRoom, Refused
from tdn.home_form import HOME_VERSION
from tdn.local import backup
from tdn.local.ca import CertificateAuthority
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.store import schema
from tdn.store.view import View
from tests.chaos.small_disk import SmallDisk
from tests.live import Ran, run, wait_for


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("bad starts") / "home")
    operator = Network(home).operator
    operator.found()
    for role, name in ((Role.BROKER, "broker"), (Role.GUARD, "g1"), (Role.NODE, "n1"), (Role.ENTITY, "alice")):
        operator.issue(role, name)
    home.management_password()
    return home.folder


@pytest.fixture
def home(_made: Path, tmp_path: Path) -> Home:
    shutil.copytree(_made, tmp_path / "home")
    (tmp_path / "home").chmod(0o700)
    return Home(tmp_path / "home")


def start(home: Home, role: Role = Role.NODE, name: str = "n1") -> Ran:
    return run("tdn", "--home", home.folder, "--json", str(role), "--id", name)


def certify(home: Home, begun: timedelta, life: timedelta) -> None:
    """A node's certificate from a CA whose clock is elsewhere."""
    moment = datetime.now(UTC) + begun
    (home.folder / "ca" / "issued.jsonl").write_text("")
    authority = CertificateAuthority(home.folder / "ca", clock=lambda: moment)
    authority.issue(Role.NODE, "n1", home.credentials(Role.NODE, "n1"), lifetime=life)


def other_roots(home: Home) -> None:
    stranger = CertificateAuthority(home.folder.parent / "stranger")
    stranger.create()
    (home.credentials(Role.NODE, "n1") / "trust.pem").write_bytes(stranger.roots_pem())


def damage(home: Home) -> None:
    View(home.store("n1")).close()
    home.store("n1").write_bytes(b"x" * 5000)


def below(name: str, section: str, text: str) -> Callable[[Home], object]:
    """Another line in a section of a settings file."""

    def write(home: Home) -> None:
        path = home.folder / name
        before, found, after = path.read_text("utf-8").partition(f"[{section}]\n")
        assert found
        path.write_text(f"{before}{found}{text}{after}", "utf-8")

    return write


def garbage(name: str) -> Callable[[Home], object]:
    return lambda home: (home.folder / name).write_bytes(bytes(range(256)))


def turned(home: Home) -> None:
    """One character of the signature."""
    raw = bytearray(home.genesis_path.read_bytes().strip())
    raw[-10] = ord("A") if raw[-10] != ord("A") else ord("B")
    home.genesis_path.write_bytes(raw)


def chmod(name: str, mode: int) -> Callable[[Home], object]:
    return lambda home: (home.folder / name).chmod(mode)


@pytest.mark.parametrize(
    ("breaking", "code", "fragments"),
    [
        (below("nodes/n1/node.toml", "limits", "query_secs = 1\n"), 2, ("node.toml: limits: 'query_secs'", "did you mean query_seconds?")),
        (below("nodes/n1/node.toml", "limits", "query_seconds = '1'\n"), 2, ("limits.query_seconds: write a number from",)),
        (below("tdn.toml", "pki", "root = 'x'\n"), 2, ("tdn.toml: pki: 'root' is unknown (did you mean roots?)",)),
        (chmod("nodes/n1/key.pem", 0o644), 4, ("everybody on this machine can reach", "run `chmod 600 ")),
        (chmod("nodes/n1/key.pem", 0o640), 4, ("the group", "run `chmod 600 ")),
        (lambda home: os.chown(home.folder / "nodes/n1/key.pem", 12345, -1), 4, ("belongs to user 12345", "run `chown ")),
        (lambda home: (home.folder / "nodes/n1/key.pem").unlink(), 4, ("key.pem is missing", "tdn ca issue")),
        (garbage("nodes/n1/key.pem"), 4, ("nodes/n1/key.pem is no unencrypted PEM file", "`tdn ca issue NAME` makes others")),
        (garbage("nodes/n1/cert.pem"), 4, ("nodes/n1/cert.pem holds no certificates", "`tdn ca issue NAME` makes others")),
        (garbage("nodes/n1/trust.pem"), 4, ("nodes/n1/trust.pem holds no certificates", "or from a backup")),
        (garbage("network/genesis.jws"), 4, ("genesis.jws is not what an operator signed", "from a backup")),
        (lambda home: home.genesis_path.write_bytes(b""), 4, ("genesis.jws is not what an operator signed",)),
        (turned, 4, ("genesis.jws is not what an operator signed",)),
        (
            lambda home: shutil.copy(home.folder / "guards/g1/key.pem", home.folder / "nodes/n1/key.pem"),
            4,
            ("do not belong together",),
        ),
        (other_roots, 4, ("does not lead to a trusted root", "`tdn ca issue n1 --node`")),
        (lambda home: certify(home, timedelta(hours=-1), timedelta(minutes=1)), 4, ("expired at", "`tdn ca issue n1 --node`")),
        (lambda home: certify(home, timedelta(hours=1), timedelta(days=1)), 4, ("is not valid before", "look at the clock")),
        (
            lambda home: (home.folder / "home.json").write_text(json.dumps({"version": HOME_VERSION + 1})),
            2,
            (f"of version {HOME_VERSION + 1}", "Install the newer build"),
        ),
        (damage, 4, ("store.sqlite is damaged", "rm ", "made anew from the log", "Not so once the log was trimmed", "--snapshot FILE")),
    ],
    ids=(
        *(
            "unknown key",
            "wrong type",
            "unknown key of the network",
            "world-readable",
            "group-readable",
            "of another user",
            "no key",
            "garbage for a key",
            "garbage for a certificate",
            "garbage for roots",
            "garbage for a genesis",
            "empty genesis",
            "changed genesis",
        ),
        *("another key", "another CA", "expired", "of tomorrow", "newer home", "damaged store"),
    ),
)
def test_a_node_does_not_start(home: Home, breaking: Callable[[Home], object], code: int, fragments: tuple[str, ...]) -> None:
    if breaking.__code__.co_names[:1] == ("os",) and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    breaking(home)
    ran = start(home)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    for fragment in fragments:
        assert fragment in ran.error["message"]


def no_snapshot(home: Home) -> None:
    (home.folder.parent / "snapshot").write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("breaking", "more", "code", "fragments"),
    [
        (garbage("network/genesis.jws"), (), 4, ("genesis.jws is not what an operator signed", "from a backup")),
        (lambda home: (home.folder / "ca/root.pem").unlink(), (), 4, ("no trusted roots", "ca/root.pem is missing", "from a backup")),
        (garbage("ca/root.pem"), (), 4, ("ca/root.pem holds no certificates", "from a backup")),
        (lambda home: None, ("--snapshot", "snapshot"), 2, ("snapshot cannot be read: No such file or directory",)),
        (no_snapshot, ("--snapshot", "snapshot"), 4, ("snapshot is not a whole snapshot",)),
    ],
    ids=("garbage for a genesis", "no root", "garbage for a root", "no snapshot", "garbage for a snapshot"),
)
def test_a_network_is_not_started_for_nothing(
    home: Home, breaking: Callable[[Home], object], more: tuple[str, ...], code: int, fragments: tuple[str, ...]
) -> None:
    """What no guard and no node can start with is told before brokers are."""
    breaking(home)
    ran = run("tdn", "--home", home.folder, "--json", "up", *(home.folder.parent / word if word == "snapshot" else word for word in more))
    assert ran.code == code, ran.err
    for fragment in fragments:
        assert fragment in ran.error["message"]
    assert "Traceback" not in ran.err
    assert not list(home.run.glob("*.log"))
    assert not (home.folder / "broker" / "rabbitmq").exists()


def test_a_pki_of_ones_own_without_roots(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    theirs = CertificateAuthority(tmp_path / "theirs")
    theirs.create()
    home.folder.mkdir(mode=0o700)
    (home.folder / "tdn.toml").write_text("[pki]\nmode = 'own'\n")
    theirs.issue(Role.OPERATOR, "operator", home.folder / "operator")

    def install() -> Ran:
        chain = home.folder / "operator" / "cert.pem"
        return run("tdn", "--home", home.folder, "--json", "ca", "install", "operator", "--role", "operator", chain)

    ran = install()
    assert (ran.code, "roots.pem is missing; put the PEM file with your trusted roots there" in ran.error["message"]) == (4, True), ran.err
    (home.folder / "roots.pem").write_bytes(b"garbage")
    ran = install()
    assert (ran.code, f"{home.folder / 'roots.pem'} holds no certificates; put the" in ran.error["message"]) == (4, True), ran.err
    (home.folder / "roots.pem").write_bytes(theirs.roots_pem())
    assert install().code == 0


def test_why_it_did_not_start_is_kept(home: Home) -> None:
    damage(home)
    assert start(home).code == 4
    status = run("tdn", "--home", home.folder, "--json", "status")
    (node,) = [line for line in status.lines if line["role"] == "node"]
    assert (node["alive"], "store.sqlite is damaged" in node["why"]) == (False, True)
    assert "\nn1: the store" in run("tdn", "--home", home.folder, "status").out


def test_a_broken_genesis_is_told_by_guard_and_doctor(home: Home) -> None:
    turned(home)
    ran = start(home, Role.GUARD, "g1")
    assert (ran.code, "genesis.jws is not what an operator signed" in ran.error["message"]) == (4, True), ran.err
    doctor = run("tdn", "--home", home.folder, "--json", "doctor")
    (found,) = [line for line in doctor.lines if line["check"] == "certificates" and "genesis.jws is not what" in line["what"]]
    assert (doctor.code, "from a backup" in found["do"]) == (4, True)


@pytest.mark.parametrize("name", ["guards/g1/key.pem", "network/management-password"])
def test_a_guard_does_not_start(home: Home, name: str) -> None:
    (home.folder / name).chmod(0o604)
    ran = start(home, Role.GUARD, "g1")
    assert (ran.code, ran.error["error"]) == (4, "trust")
    assert (
        f"chmod 600 '{home.folder / name}'" in ran.error["message"] or f"chmod 600 {home.folder / name}" in ran.error["message"]
    )
    assert "Traceback" not in ran.err


def test_an_entity_that_is_not_there(home: Home, tmp_path: Path) -> None:
    ran = run("entity", "--home", home.folder, "--as", "alise", "--json", "locate")
    said = f"there is no entity 'alise' in {home.folder} (known: alice); `tdn ca issue alise` makes it, or name another home"
    assert (ran.code, ran.error["error"], said in ran.error["message"]) == (4, "trust", True), ran.err
    ran = run("entity", "--home", tmp_path / "none", "--as", "alice", "--json", "locate")
    assert (ran.code, "(known: none)" in ran.error["message"]) == (4, True), ran.err
    ran = run("entity", "--credentials", tmp_path / "none", "--json", "locate")
    assert (ran.code, f"no folder of credentials {tmp_path / 'none'}" in ran.error["message"]) == (4, True), ran.err


def test_an_entity_and_the_operator(home: Home) -> None:
    (home.folder / "entities/alice/key.pem").chmod(0o644)
    ran = run("entity", "--home", home.folder, "--as", "alice", "--json", "locate")
    assert (ran.code, "chmod 600" in ran.error["message"]) == (4, True)
    (home.folder / "ca/nodes.key").chmod(0o644)
    ran = run("tdn", "--home", home.folder, "--json", "ca", "issue", "n2", "--node")
    assert (ran.code, "chmod 600" in ran.error["message"]) == (4, True)
    (home.folder / "ca/nodes.key").chmod(0o600)
    (home.folder / "operator/key.pem").chmod(0o644)
    ran = run("tdn", "--home", home.folder, "--json", "ca", "issue", "n2", "--node")
    assert (ran.code, "operator/key.pem" in ran.error["message"]) == (4, True)


def test_a_guards_port_in_use(home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", home.ports()["guard"]))
        other.listen()
        ran = start(home, Role.GUARD, "g1")
    assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
    assert f"port 127.0.0.1:{home.ports()['guard']} is in use by another program" in ran.error["message"]
    assert "guard_listen in tdn.toml" in ran.error["message"]
    assert "Traceback" not in ran.err


def test_a_nodes_endpoints_port_in_use(home: Home) -> None:
    port = home.endpoint_port("n1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        ran = start(home)
    assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
    assert f"port 127.0.0.1:{port} is in use by another program" in ran.error["message"]
    assert "[endpoint] in node.toml" in ran.error["message"]
    assert "Traceback" not in ran.err


def read_only(home: Home, *words: str) -> Ran:
    """A command for which the home is read-only: on a mount of its own for root, whom modes do not stop; by modes for others."""
    tdn = str(Path(sys.executable).parent / "tdn")
    command = [tdn, "--home", str(home), "--json", *words]
    if os.geteuid() == 0:
        script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99; shift; exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, "sh", str(home), *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode != 99, f"root can make no read-only mount here: {done.stderr}"
        return Ran(done.returncode, done.stdout, done.stderr)
    folders = [home.folder, *(path for path in home.folder.rglob("*") if path.is_dir())]
    with contextlib.ExitStack() as restored:
        for folder in folders:
            restored.callback(folder.chmod, 0o700)
            folder.chmod(0o500)
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "words",
    [("up",), ("node", "--id", "n1"), ("guard", "--id", "g1"), ("ca", "issue", "bob"), ("ca", "rotate", "nodes")],
    ids=" ".join,
)
def test_a_read_only_home(home: Home, words: tuple[str, ...]) -> None:
    ran = read_only(home, *words)
    assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
    assert str(home) in ran.error["message"]
    assert "read-only" in ran.error["message"] or "this user may not" in ran.error["message"]
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("role", [Role.NODE, Role.GUARD], ids=str)
def test_a_read_only_home_that_has_served(home: Home, role: Role) -> None:
    """With a store it needs to write nothing before a broker answers, which it would wait for without end."""
    name = home.ids(role)[0]
    View(home.credentials(role, name) / "store.sqlite").close()
    ran = read_only(home, str(role), "--id", name)
    assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
    assert str(home.credentials(role, name)) in ran.error["message"]
    assert "read-only" in ran.error["message"]


def test_a_read_only_home_can_be_looked_at(home: Home) -> None:
    assert read_only(home, "status").code == 0
    doctor = read_only(home, "doctor")
    assert doctor.code == 2
    assert any("cannot be written" in line["what"] for line in doctor.lines)
    assert any(line["check"] == "certificates" for line in doctor.lines), "and the rest is looked at all the same"


def test_no_room_for_a_broker(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is started: a broker below its limit takes nothing, and everybody would wait for it."""
    used = shutil.disk_usage(home.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: used._replace(free=199_000_000))
    with pytest.raises(NoRoom, match=r"199 MB are free where .* takes no messages below 200"):
        Network(home).up()
    limit = (Path(__file__).parents[2] / "broker_config" / "rabbitmq.conf").read_text("utf-8")
    assert "disk_free_limit.absolute = 200MB" in limit, "it is the broker's own"


@pytest.fixture(params=[Role.NODE, Role.GUARD], ids=str)
def full(home: Home, request: pytest.FixtureRequest) -> Iterator[tuple[Role, SmallDisk]]:
    """A process that has never run, and its folder on a disk without a free byte."""
    role: Role = request.param
    folder = home.credentials(role, home.ids(role)[0])
    aside = home.folder.with_name("aside")
    shutil.copytree(folder, aside)
    disk = SmallDisk(folder, 4)
    if disk.missing is not None:
        pytest.skip(f"a full disk at the start was not tried: {disk.missing}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        disk.fill()
        assert disk.full
        yield role, disk
    finally:
        disk.unmount()


@contextlib.contextmanager
def started(home: Home, role: Role, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process as systemd starts it: our child, so that we see how it ends."""
    words = [sys.executable, "-m", "tdn.cli.main", "--home", str(home), str(role), "--id", home.ids(role)[0]]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stderr=file)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_disk_that_is_full_at_the_start(home: Home, full: tuple[Role, SmallDisk], tmp_path: Path) -> None:
    """T22: a full disk ends nothing, at the start neither: it waits and says why, no command takes what is left there for a store, and with room it goes
    on by itself."""
    role, disk = full
    who, store = f"{role}-{home.ids(role)[0]}", disk.folder / "store.sqlite"
    with started(home, role, tmp_path / "log") as process:
        wait_for(lambda: home.reported(who).get("why"), "it to say why it waits")
        assert "full; free some room" in home.reported(who)["why"]
        assert store.exists(), "there is a file, and no table in it"
        export = run("tdn", "--home", home.folder, "--json", "archive", "export", "--to", tmp_path / "archive")
        assert (export.code, "no node of this home has a store yet" in export.error["message"]) == (2, True)
        snapshot = run("tdn", "--home", home.folder, "--json", "snapshot", "--to", tmp_path / "snapshot")
        assert (snapshot.code, "no checkpoint counts yet" in snapshot.error["message"]) == (6, True)
        findings = [line for line in run("tdn", "--home", home.folder, "--json", "doctor").lines if line["check"] == "stores"]
        assert {line["state"] for line in findings} == {"warning"}, findings
        assert all(line["do"] for line in findings)
        disk.free()
        wait_for(lambda: "waits" not in home.reported(who), "it to go on by itself")
        assert schema.is_made(store)
        assert process.poll() is None, "it is the same process"


@pytest.mark.parametrize("full", [Role.NODE], indirect=True, ids=str)
def test_a_full_disk_is_not_waited_for_when_told_to_stop(home: Home, full: tuple[Role, SmallDisk], tmp_path: Path) -> None:
    role, _ = full
    with started(home, role, tmp_path / "log"):
        wait_for(lambda: "waits for room" in (tmp_path / "log").read_text(), "it to wait")


@pytest.mark.parametrize("full", [Role.NODE], indirect=True, ids=str)
def test_whoever_starts_it_on_a_full_disk_is_told_at_once(home: Home, full: tuple[Role, SmallDisk]) -> None:
    role, _ = full
    network, name = Network(home), home.ids(role)[0]
    try:
        with pytest.raises(Refused, match=f"{role}-{name} cannot start: the disk .*is full"):
            network.start_one(role, name)
    finally:
        network.process(role, name).stop()


def test_a_backup_onto_a_full_disk(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoRoom, match="its disk is full"):
        backup.backup(home, tmp_path / "saved")
    assert list(tmp_path.glob("*saved*")) == []


def test_a_backup_of_a_home_that_is_read_only(home: Home, tmp_path: Path) -> None:
    """SQLite cannot read where it cannot write beside the file."""
    View(home.store("n1")).close()
    ran = read_only(home, "backup", "--to", str(tmp_path / "saved"))
    assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
    assert "`cp -a`" in ran.error["message"]


@pytest.mark.parametrize(
    ("variable", "text", "write"),
    [
        ("TDN_TICK_SECONDS", "often", "write a number of seconds from 0.01 to 3,600"),
        ("TDN_TICK_SECONDS", "nan", "write a number of seconds"),
        ("TDN_SILENCE_SECONDS", "", "write a number of seconds"),
        ("TDN_LOOK_SECONDS", "0", "write a number of seconds"),
        ("TDN_CHECKPOINT_RECORDS", "often", "write a whole number of records from 1 to "),
        ("TDN_CHECKPOINT_RECORDS", "0", "write a whole number of records"),
        ("TDN_LOG_SEGMENT_BYTES", "64 MB", "write a whole number of bytes from 1,000 to 3,000,000,000"),
        ("TDN_LOG_SEGMENT_BYTES", "-1", "write a whole number of bytes"),
        ("TDN_PORTS", "20000", "write two ports from 1,024 to 65,535 as FIRST-LAST"),
        ("TDN_PORTS", "65000-65536", "write two ports"),
        ("TDN_PORTS", "20000-20010", "write two ports from 1,024 to 65,535 as FIRST-LAST, at least 100 of them"),
    ],
)
def test_an_environment_that_says_nonsense(home: Home, variable: str, text: str, write: str) -> None:
    """Told by each process and by whoever starts them, before anything begins; and of no concern to any other command."""
    for words in (("node", "--id", "n1"), ("guard", "--id", "g1"), ("up",)):
        ran = run("tdn", "--home", home.folder, "--json", *words, env={variable: text}, seconds=30)
        assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
        assert f"${variable}: {write}" in ran.error["message"]
        assert "Traceback" not in ran.err
        assert "starting" not in ran.err
    assert run("tdn", "--home", home.folder, "status", env={variable: text}, installed=True).code == 0


@pytest.mark.parametrize("kind", ["absent", "a folder", "not executable", "no program"])
def test_a_server_script_that_is_none(home: Home, tmp_path: Path, kind: str) -> None:
    named = tmp_path / "server"
    if kind == "a folder":
        named.mkdir()
    elif kind != "absent":
        named.write_bytes(b"\0 no program")
        named.chmod(0o700 if kind == "no program" else 0o600)
    ran = run("tdn", "--home", home.folder, "--json", "up", env={"TDN_RABBITMQ_SERVER": str(named)})
    assert (ran.code, ran.error["error"]) == (2, "usage"), ran.err
    assert str(named) in ran.error["message"]
    assert "is no program" in ran.error["message"]
    assert "Traceback" not in ran.err
    assert not any(line["alive"] for line in run("tdn", "--home", home.folder, "--json", "status").lines)


def test_a_file_in_the_place_of_a_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("tdn", "--home", tmp_path / "file", "--json", "up")
    assert (ran.code, ran.error["error"], "Traceback" in ran.err) == (2, "usage", False)
