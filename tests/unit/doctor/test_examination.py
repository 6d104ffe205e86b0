"""The doctor on a home where nothing runs: healthy, and with one thing broken at a time. Real keys, certificates and stores; no broker."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tdn.doctor import files, reach, running
from tdn.doctor.examination import examine
from tdn.doctor.findings import Finding, State, exit_code, ok, problem, warning
from tdn.doctor.stores import Store
from tdn.errors import BrokerUnavailable, NoRoom, TdnError, TrustError, UsageError
from tdn.home_form import HOME_VERSION
from tdn.local.ca import CertificateAuthority
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.local.processes import start_mark
from tdn.protocol.names import Role
from tdn.store.schema import MIGRATIONS
from tdn.store.view import View

PATIENCE = 1.0


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("doctor") / "home")
    operator = Network(home).operator
    operator.found()
    for role, name in ((Role.BROKER, "broker"), (Role.GUARD, "g1"), (Role.NODE, "n1"), (Role.NODE, "n2"), (Role.ENTITY, "alice")):
        operator.issue(role, name)
    home.management_password()
    for node in ("n1", "n2"):
        View(home.store(node)).close()
    return home.folder


@pytest.fixture
def home(_made: Path, tmp_path: Path) -> Home:
    folder = tmp_path / "home"
    shutil.copytree(_made, folder)
    folder.chmod(0o700)
    return Home(folder)


def problems(home: Home) -> list[Finding]:
    return [finding for finding in findings(home) if finding.state is State.PROBLEM]


def findings(home: Home) -> list[Finding]:
    told: list[Finding] = []
    found = examine(home, told.append, timeout_seconds=PATIENCE)
    assert told == found
    assert not [finding for finding in found if "the check itself failed" in finding.what], found
    return found


def only(home: Home, fragment: str, do: str, code: int) -> None:
    """One problem, and it says what is wrong and what to do."""
    found = problems(home)
    assert len(found) == 1, found
    assert fragment in found[0].what
    assert do in (found[0].do or "")
    assert exit_code(found) == code


def test_a_healthy_home(home: Home) -> None:
    found = findings(home)
    assert [finding for finding in found if finding.state is State.PROBLEM] == []
    assert exit_code(found) == 0
    (silent,) = [finding for finding in found if finding.state is State.WARNING and finding.check == "processes"]
    assert "nothing of this network runs here" in silent.what
    assert {"home", "settings", "private files", "certificates", "disk", "revocations", "stores", "ports"} <= {
        finding.check for finding in found
    }
    assert any("node n1 364" in finding.what or "node n1 365" in finding.what for finding in found)


def test_it_changes_nothing(home: Home) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        paths = (path for path in home.folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = state()
    findings(home)
    assert state() == before


def test_no_secret_is_shown(home: Home) -> None:
    for path in home.folder.rglob("key.pem"):
        path.chmod(0o644)
    (home.folder / "network" / "management-password").chmod(0o644)
    told = "\n".join(json.dumps(finding.as_object()) for finding in findings(home))
    secrets = [(home.folder / "network" / "management-password").read_text()]
    secrets += [line for path in home.folder.rglob("key.pem") for line in path.read_text().splitlines() if "--" not in line]
    assert not [secret for secret in secrets if secret in told]


def test_no_home(tmp_path: Path) -> None:
    only(Home(tmp_path / "none"), "there is no home", "`tdn up` makes one", 2)
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    only(Home(tmp_path / "empty"), "there is no network", "`tdn up` makes one", 2)


def test_a_newer_home(home: Home) -> None:
    (home.folder / "home.json").write_text(json.dumps({"version": HOME_VERSION + 1}))
    (found,) = problems(home)
    assert f"of version {HOME_VERSION + 1}" in found.what
    assert exit_code([found]) == 2


def test_settings_with_a_mistake(home: Home) -> None:
    (home.folder / "nodes" / "n1" / "node.toml").write_text("[limits]\nquery_secs = 1\n")
    only(home, "did you mean query_seconds?", "there are", 2)
    (home.folder / "tdn.toml").write_text("[broker]\nmode = 'rented'\n")
    found = findings(home)
    assert exit_code(found) == 2
    assert any("are not looked at without them" in finding.what for finding in found)


def test_settings_without_what_they_need(home: Home) -> None:
    """Every other command refuses them; every key in them is known all the same."""
    (home.folder / "tdn.toml").write_text("[broker]\nmode = 'own'\n")
    only(home, "broker.hosts is missing", "a broker of your own needs it", 2)


def test_a_home_that_may_not_be_looked_into(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: Path, *_: object) -> None:
        # Root may look into every folder, so the system's answer is played.
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", closed)
    monkeypatch.setattr(Path, "exists", closed)
    only(home, "home.json cannot be read", "run as the owner of the home", 2)


@pytest.mark.parametrize(
    ("name", "said", "do"),
    [
        ("ca/nodes.pem", "ca/nodes.pem holds no certificates", "restore"),
        ("ca/entities.key", "ca/entities.key is no unencrypted PEM file: nothing can be issued with it", "from a backup"),
        ("nodes/n1/cert.pem", "nodes/n1 is no unencrypted PEM file", "`tdn ca issue n1 --node`"),
        ("entities/alice/key.pem", "entities/alice is no unencrypted PEM file", "`tdn ca issue alice`"),
        ("nodes/n2/trust.pem", "nodes/n2/trust.pem holds no certificates", "from a backup"),
    ],
)
def test_what_cannot_be_read_as_a_key_or_certificate(home: Home, name: str, said: str, do: str) -> None:
    """Named, with what to do; not a failure of the doctor's own."""
    (home.folder / name).write_bytes(b"garbage")
    only(home, said, do, 4)


def test_an_authority_without_its_key(home: Home) -> None:
    """The network goes on without; nothing can be issued."""
    (home.folder / "ca/nodes.key").unlink()
    (found,) = [finding for finding in findings(home) if "ca/nodes.key" in finding.what]
    assert (found.state, "is missing" in found.what, "from a backup" in (found.do or "")) == (State.WARNING, True, True)


@pytest.mark.parametrize("name", ["nodes/n1/key.pem", "entities/alice/key.pem", "ca/root.key", "network/management-password"])
def test_a_key_that_others_can_read(home: Home, name: str) -> None:
    (home.folder / name).chmod(0o644)
    only(home, "everybody on this machine can reach", f"chmod 600 {home.folder / name}", 4)


def test_a_volume_of_kubernetes_is_nothing_wrong(home: Home) -> None:
    """Its top is root's, for a group; what the process made in it is the process's own."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    for path in home.folder.rglob("*"):
        os.chown(path, 10001, 10001)
    os.chown(home.folder, 0, 10001)
    home.folder.chmod(0o2775)
    found = [finding for finding in findings(home) if finding.check in ("home", "private files")]
    (whose,) = [finding for finding in found if finding.state is not State.OK]
    assert whose.state is State.WARNING
    assert "belongs to user 10001, and this is user 0" in whose.what, "as which it is to be run"
    (home.folder / "nodes" / "n1" / "key.pem").chmod(0o660)
    assert any("the group 10001 can reach" in finding.what for finding in problems(home))


def reissue(home: Home, role: Role, name: str, *, begun: timedelta, life: timedelta) -> None:
    """A certificate from a CA whose clock is elsewhere."""
    moment = datetime.now(UTC) + begun
    authority = CertificateAuthority(home.folder / "ca", clock=lambda: moment)
    for register in (authority.folder / "issued.jsonl",):
        register.write_text("")
    authority.issue(role, name, home.credentials(role, name), lifetime=life)


def test_an_expired_certificate(home: Home) -> None:
    reissue(home, Role.NODE, "n1", begun=timedelta(minutes=-30), life=timedelta(minutes=10))
    only(home, "node n1: the certificate expired at", "`tdn ca issue n1 --node`", 4)
    (left,) = [finding.what for finding in findings(home) if finding.what.startswith("days left")]
    assert ("node n2" in left, "node n1" in left) == (True, False)


def test_a_certificate_of_tomorrow(home: Home) -> None:
    reissue(home, Role.GUARD, "g1", begun=timedelta(days=1), life=timedelta(days=90))
    only(home, "guard g1: the certificate is not valid before", "look at the clock", 4)


def test_a_certificate_that_ends_soon(home: Home) -> None:
    reissue(home, Role.NODE, "n1", begun=timedelta(minutes=-30), life=timedelta(days=12))
    found = findings(home)
    assert exit_code(found) == 0
    assert any(finding.state is State.WARNING and "node n1: 11 days left" in finding.what for finding in found)


def test_an_expired_entity_is_only_counted(home: Home) -> None:
    reissue(home, Role.ENTITY, "alice", begun=timedelta(minutes=-30), life=timedelta(minutes=10))
    found = findings(home)
    assert exit_code(found) == 0
    assert any("of 1 entities here, 1 has an expired certificate" in finding.what for finding in found)


def test_another_root(home: Home, tmp_path: Path) -> None:
    """One finding, where every certificate is issued by the right CA and the root is another's."""
    stranger = CertificateAuthority(tmp_path / "stranger")
    stranger.create()
    shutil.copy(tmp_path / "stranger" / "root.pem", home.folder / "ca" / "root.pem")
    only(home, "not those of this network", "restore", 4)


def test_another_ca(home: Home, tmp_path: Path) -> None:
    stranger = CertificateAuthority(tmp_path / "stranger")
    stranger.create()
    stranger.issue(Role.NODE, "n1", home.credentials(Role.NODE, "n1"))
    only(home, "node n1: the certificate does not lead to a trusted root", "`tdn ca issue n1 --node`", 4)
    (home.credentials(Role.NODE, "n1") / "trust.pem").write_bytes((home.folder / "ca" / "root.pem").read_bytes())
    only(home, "node n1: the certificate does not lead to a trusted root", "`tdn ca issue n1 --node`", 4)


def test_a_key_of_another_certificate(home: Home) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    pem = other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (home.folder / "nodes" / "n1" / "key.pem").write_bytes(pem)
    only(home, "node n1: key.pem and cert.pem do not belong together", "`tdn ca issue n1 --node`", 4)


def test_a_guard_without_its_name(home: Home) -> None:
    CertificateAuthority(home.folder / "ca").issue(Role.GUARD, "g1", home.credentials(Role.GUARD, "g1"), hosts=("guard.example",))
    assert not {"localhost"} & set(
        files.hosts_of(x509.load_pem_x509_certificate((home.folder / "guards/g1/cert.pem").read_bytes()))
    )
    only(home, "guard g1: the certificate does not name localhost", "--host localhost", 4)


@pytest.mark.parametrize("damage", ["flipped", "cut", "no database"])
def test_a_damaged_store(home: Home, damage: str) -> None:
    path = home.store("n1")
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        # The b-tree of the second page on: its header and cells.
        for place in range(4096, len(content), 4096):
            content[place : place + 16] = b"\xff" * 16
    elif damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[:100] = b"x" * 100
    path.write_bytes(content)
    found = problems(home)
    assert found
    assert exit_code(found) == 4
    assert all(finding.check == "stores" and "node n1" in finding.what for finding in found)
    assert f"rm {path}*" in (found[0].do or "")


def test_a_file_without_tables_is_no_store(home: Home) -> None:
    """What a disk that was full at the first start leaves."""
    for name in ("n1", "n2"):
        home.store(name).write_bytes(b"")
    found = findings(home)
    assert exit_code(found) == 0
    assert sum("has none yet" in finding.what for finding in found if finding.check == "stores") >= 2
    assert home.furthest_store() is None


def test_a_store_without_one_of_its_tables(home: Home) -> None:
    with contextlib.closing(sqlite3.connect(home.store("n1"))) as db, db:
        db.execute("DROP TABLE facts")
    only(home, "cannot be read: no such table: facts", f"rm {home.store('n1')}*", 4)


def test_a_store_of_a_newer_build(home: Home) -> None:
    with contextlib.closing(sqlite3.connect(home.store("n2"))) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    only(home, f"the store is of version {len(MIGRATIONS) + 1}", "install the newer build", 4)


def fill(store: Path, records: list[tuple[int, str, bytes]]) -> None:
    with contextlib.closing(sqlite3.connect(store)) as db, db:
        for seq, head, raw in records:
            db.execute("INSERT INTO records VALUES (?, ?, 'tick', 'accepted', '{}', ?, ?, NULL, NULL)", (seq, seq, head, raw))
        db.execute("UPDATE position SET seq = ?, offset = ?, head = ?", (records[-1][0], records[-1][0], records[-1][1]))


@pytest.fixture
def trimmed(home: Home) -> Home:
    """After `tdn log trim`: what is left of the log begins with record 11, in the stores that were there."""
    for name in ("n1", "n2"):
        fill(home.store(name), [(11, "aa", b"x")])
        with contextlib.closing(sqlite3.connect(home.store(name))) as db, db:
            db.execute("UPDATE kept SET first = 11")
    return home


def said_of(home: Home, fragment: str) -> str:
    (found,) = [finding for finding in findings(home) if finding.check == "stores" and fragment in finding.what]
    return found.do or ""


def test_a_damaged_store_of_a_trimmed_log_needs_a_snapshot(trimmed: Home) -> None:
    """Removed as it was told before, it could not be made anew from a log without its beginning."""
    trimmed.store("n2").write_bytes(b"x" * 5000)
    do = said_of(trimmed, "node n2")
    assert f"move {trimmed.store('n2')}* away" in do
    assert "`tdn snapshot --to FILE --node n1`" in do
    assert "`tdn node --id n2 --snapshot FILE`" in do
    assert "node n1 has the log from record 11 on only" in do
    assert "rm " not in do
    assert "made anew" not in do


def test_the_only_store_of_a_trimmed_log_is_kept(trimmed: Home) -> None:
    """One whose pages are damaged and that still says what it lacks; no other node's could make a snapshot."""
    for path in trimmed.store("n2").parent.glob("store.sqlite*"):
        path.unlink()
    with contextlib.closing(sqlite3.connect(trimmed.store("n1"))) as db, db:
        db.execute("DROP TABLE facts")
    do = said_of(trimmed, "node n1")
    assert do.startswith(f"stop it and keep {trimmed.store('n1')}*")
    assert "no other node's store here could make a snapshot" in do
    assert "`tdn restore` a backup" in do
    assert "rm " not in do
    assert "`tdn node --id n2 --snapshot FILE`" in said_of(trimmed, "node n2 has none yet")


def test_two_damaged_stores_are_not_told_to_help_each_other(trimmed: Home) -> None:
    for name in ("n1", "n2"):
        with contextlib.closing(sqlite3.connect(trimmed.store(name))) as db, db:
            db.execute("DROP TABLE facts")
    for name in ("n1", "n2"):
        assert "stop it and keep" in said_of(trimmed, f"node {name}")


def test_where_nobody_knows_of_a_trim_both_ways_are_told(home: Home) -> None:
    home.store("n1").write_bytes(b"x" * 5000)
    do = said_of(home, "node n1")
    for words in ("made anew from the log", "Not so where the log was trimmed", "`tdn snapshot --to FILE`", "never remove the only store"):
        assert words in do
    assert "`--snapshot FILE`" in said_of(home, "guard g1 has none yet")


def test_a_store_that_the_log_has_left_behind(home: Home) -> None:
    """It is replaced by a snapshot, not removed: a log without its beginning makes no other."""
    (found,) = reach._against_the_log([Store("guard g1", home.store("n1"), 5, 4, "aa")], 9, 20)
    assert "cannot catch up" in found.what
    assert "`tdn guard --id g1 --snapshot FILE`" in (found.do or "")
    assert "remove none" in (found.do or "")


def test_stores_that_disagree(home: Home) -> None:
    fill(home.store("n1"), [(1, "aa", b"x")])
    fill(home.store("n2"), [(1, "bb", b"y")])
    only(home, "they disagree at record 1", "tdn down", 4)


def test_a_record_that_was_changed(home: Home) -> None:
    """What SQLite cannot notice, the hash chain does."""
    fill(home.store("n1"), [(1, "aa", b"x"), (2, "not the hash of aa and y", b"y")])
    found = problems(home)
    assert any("record 2 is not what the hash chain says" in finding.what for finding in found)
    assert exit_code(found) == 4


def test_pending_revocations(home: Home) -> None:
    (home.pending / "revoke-entity-bob.jws").write_text("x")
    found = findings(home)
    assert exit_code(found) == 0
    assert any("1 not in the log yet: revoke-entity-bob" in finding.what for finding in found)


def test_why_a_process_ended(home: Home) -> None:
    home.report("node-n1", {"pid": os.getpid(), "ready": False, "ended": TrustError("it is void; issue it anew").as_object()})
    only(home, "node n1 ended by itself: it is void", "issue it anew", 4)


def test_a_node_that_systemd_started(home: Home) -> None:
    """Not our child: it says itself that it is there, and how it is."""
    ours = {"pid": os.getpid(), "started": start_mark(os.getpid()), "ready": False, "why": "the disk is full"}
    home.report("node-n1", ours)
    found = problems(home)
    assert any("node n1 is not ready: the disk is full" in finding.what for finding in found)
    assert any("node n2 does not run" in finding.what for finding in found)
    # What it said last hour; and another process that has its number now.
    home.report("node-n1", {**ours, "ready": True})
    os.utime(home.run / "node-n1.state.json", (time.time() - 3600,) * 2)
    assert any("node n1 is not ready: it has said nothing for 36" in finding.what for finding in problems(home))
    home.report("node-n1", {**ours, "started": "1@another boot"})
    assert not any("node n1" in finding.what for finding in problems(home) if finding.check == "processes")


def test_why_a_process_ended_is_over_with_a_new_certificate(home: Home) -> None:
    home.report("node-n1", {"pid": 1, "ready": False, "ended": TrustError("the certificate expired").as_object()})
    assert any("ended by itself" in finding.what for finding in findings(home))
    later = (home.run / "node-n1.state.json").stat().st_mtime + 10
    os.utime(home.credentials(Role.NODE, "n1") / "cert.pem", (later, later))
    assert not any("ended by itself" in finding.what for finding in findings(home))


def test_brokers_are_told_apart(home: Home) -> None:
    """Of three, each with its own log; what all nodes say is said once."""
    away = {"alive": True, "ready": False, "pid": 1, "why": "no broker takes connections"}
    entries = [
        {"role": "broker", "id": "broker", "pid": 1, "alive": True, "ready": False},
        {"role": "broker", "id": "broker2", "pid": None, "alive": False},
        *({"role": "node", "id": name, **away} for name in ("n1", "n2", "n3")),
        {"role": "guard", "id": "g1", **away, "why": "it is not connected to the broker"},
    ]
    found = list(running.look_at_processes(home, entries, ["g1"]))
    assert [finding.what for finding in found] == [
        "broker2 does not run",
        "broker is not ready: nothing is served",
        "node n1, node n2, node n3 are not ready: no broker takes connections",
        "guard g1 is not ready: entities are denied everything: it is not connected to the broker",
    ]
    assert f"{home.folder}/broker2/rabbitmq/log/broker.log" in str(found[0].do)
    assert "see its journal, or its container's log, and theirs" in str(found[2].do)
    (home.run / "node-n1.log").touch()
    found = list(running.look_at_processes(home, entries, ["g1"]))
    assert f"{home.run}/node-n1.log, and theirs" in str(found[2].do)


def test_a_full_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(home.folder)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    only(home, "0 MB of", "free some room", 5)


@pytest.mark.parametrize(("days", "state"), [(300, State.OK), (31, State.OK), (29, State.WARNING), (-1, State.WARNING)])
def test_what_is_left_of_the_certificate_that_a_broker_shows(days: int, state: State) -> None:
    """No process says so, and all that connects is refused once it has ended."""
    now = datetime.now(UTC)
    found = reach._of_broker("rabbit-1:5671: RabbitMQ", now + timedelta(days=days), now)
    assert (found.state, found.check) == (state, "broker")
    assert f"{days} days left" in found.what


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[Finding]:
    """The clock check with a node whose last tick lies so far in the future."""

    class Said:
        def __init__(self, path: Path) -> None: ...
        def close(self) -> None: ...
        def get(self, space: str, key: str) -> dict[str, str]:
            return {"time": "2027-01-01T00:00:00Z"}

        def all(self, space: str) -> list[tuple[str, dict[str, str]]]:
            at = datetime.now(UTC) + timedelta(seconds=seconds)
            return [("n1", {"at": f"{at:%Y-%m-%dT%H:%M:%SZ}"})]

    monkeypatch.setattr(reach, "Reader", Said)
    monkeypatch.setattr(reach.principals, "log_time", lambda reader: datetime.now(UTC))
    return reach.look_at_clock([Store("node n1", Path("x"), 1, 1, "")], ["n1"])


@pytest.mark.parametrize(
    ("seconds", "state"), [(0, State.OK), (-30, State.OK), (30, State.WARNING), (300, State.PROBLEM), (-300, State.WARNING)]
)
def test_clocks(monkeypatch: pytest.MonkeyPatch, seconds: float, state: State) -> None:
    assert next(iter(ticking(monkeypatch, seconds))).state is state


def test_the_exit_code_is_that_of_the_cause() -> None:
    trouble = {kind: problem("x", kind, "what") for kind in (TrustError, UsageError, NoRoom, BrokerUnavailable, TdnError)}
    assert exit_code([]) == 0
    assert exit_code([ok("x", "fine"), warning("x", "hm")]) == 0
    assert exit_code(trouble.values()) == 4
    assert exit_code([trouble[BrokerUnavailable], trouble[UsageError]]) == 2
    assert exit_code([trouble[BrokerUnavailable], trouble[NoRoom]]) == 5
    assert exit_code([trouble[TdnError], trouble[BrokerUnavailable]]) == 3
    assert exit_code([trouble[TdnError]]) == 1
