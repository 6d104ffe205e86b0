"""The commands in deploy/, run as the files say: a home is made as deploy/README.md says, carried as it says, and each file's words start a guard and a node against
a real broker with the files of deploy/broker/. Only paths, ports and the container engine are replaced."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from deploy import broker_files
from tdn.local.broker import REMEMBERING_BACKEND, BrokerPorts, BrokerTls, PrivateBroker, find_rabbitmq
from tdn.local.processes import free_ports
from tests.deploy.as_systemd import directives
from tests.live import TICK_SECONDS, Ran, descendants, is_alive, processes_of, run, wait_for

# Six certificates and a broker come before the first test; on a busy machine that alone takes a minute.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))

SETTINGS = """\
[broker]
mode = "own"
hosts = ["127.0.0.1:{amqps}"]
management_url = "https://127.0.0.1:{management}"
guard_listen = "127.0.0.1:{guard}"
"""


def carry(home: Path, to: Path, *words: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.carry", "--home", str(home), *words, "--to", str(to)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return to


def unpack(tar: Path, folder: Path) -> Path:
    """With the words of the manifest's init container."""
    pod = yaml.safe_load_all((DEPLOY / "kubernetes" / "20-nodes.yaml").read_text("utf-8"))
    (template,) = [one["spec"]["template"]["spec"] for one in pod if one["kind"] == "StatefulSet"]
    folder.mkdir(parents=True, exist_ok=True)
    words = [word.replace("/carried/$(POD_NAME).tar", str(tar)).replace("/var/lib/tdn", str(folder)) for word in template["initContainers"][0]["command"]]
    assert str(tar) in words
    assert str(folder) in words
    subprocess.run(words, check=True)
    return folder


@dataclass
class Place:
    """A machine with a broker of its own, and an operator's home elsewhere."""

    folder: Path
    operator: Path
    broker: PrivateBroker
    guard_port: int

    def home_of(self, role: str, name: str, *words: str, at: Path) -> Path:
        return unpack(carry(self.operator, self.folder / f"{name}.tar", f"--{role}", name, *words), at)

    def mapped(self, words: list[str], home: Path, written: str = "/var/lib/tdn") -> list[str]:
        """A file's words with this place's paths and ports."""
        ports = {"127.0.0.1:7443": f"127.0.0.1:{self.guard_port}", "https://127.0.0.1:15671": f"https://127.0.0.1:{self.broker.ports.management}"}
        return [ports.get(word, word.replace(written, str(home))) for word in words]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    issued = (("g1", "--role", "guard"), ("tdn-server-0", "--role", "guard"), ("n1", "--node"), ("tdn-node-0", "--node"), ("alice",))
    with founded(tmp_path_factory.mktemp("deployed"), *issued) as place:
        yield place


@contextmanager
def founded(folder: Path, *issued: tuple[str, ...]) -> Iterator[Place]:
    """A network for whose processes these are issued, and its broker."""
    assert find_rabbitmq() is not None, "RabbitMQ is not installed; run `make setup`"
    ports, guard = BrokerPorts(*free_ports(4)), free_ports(1)[0]
    operator = folder / "operator"
    operator.mkdir(mode=0o700)
    (operator / "tdn.toml").write_text(SETTINGS.format(amqps=ports.amqps, management=ports.management, guard=guard))
    issue = ("--home", operator, "ca", "issue")
    for words in (("rabbit", "--role", "broker", "--host", "rabbit-1"), *issued):
        done = run("tdn", *issue, *words)
        assert done.code == 0, done.err
    carried = folder / "etc" / "rabbitmq" / "tdn"
    carried.mkdir(parents=True)
    with tarfile.open(carry(operator, folder / "broker.tar", "--broker")) as tar:
        tar.extractall(carried, filter="data")
    broker = PrivateBroker(
        folder / "rabbitmq",
        ports,
        BrokerTls(carried / "trust.pem", carried / "cert.pem", carried / "key.pem"),
        f"https://127.0.0.1:{guard}",
        auth_backend="http",
    )
    broker.write_configuration()
    place = Place(folder, operator, broker, guard)
    for name in broker_files.FILES:
        # What was rendered for the private broker is replaced by what deploy/ ships.
        (broker.folder / name).write_text(_mapped_configuration(place, (DEPLOY / "broker" / name).read_text("utf-8")))
    compile_module(broker.folder / "code")
    broker.start()
    try:
        yield place
    finally:
        broker.kill_hard()
        assert processes_of(folder) == []


def compile_module(to: Path) -> None:
    """With the words of the image, and this machine's Erlang, which is the one that its RabbitMQ runs on. Without it every login would be refused."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "container" / "Containerfile").read_text("utf-8"))
    stage = text.partition(" AS broker\n")[2]
    (source, folder), (script,) = re.findall(r"^COPY (\S+) (\S+)$", stage, re.M)[0], re.findall(r"^RUN (.*)$", stage, re.M)
    (place,) = re.findall(r"^ENV RABBITMQ_SERVER_CODE_PATH=(\S+)$", stage, re.M)
    here = script.replace(f"{folder}{Path(source).name}", shlex.quote(str(ROOT / source))).replace(place, shlex.quote(str(to)))
    subprocess.run(["sh", "-ec", here], check=True)
    assert (to / f"{REMEMBERING_BACKEND}.beam").is_file()


def _mapped_configuration(place: Place, text: str) -> str:
    ports = place.broker.ports
    for written, here in (
        ("/etc/rabbitmq/tdn/", f"{place.broker.tls.key.parent}/"),
        ("/etc/rabbitmq/definitions.json", str(place.broker.folder / "definitions.json")),
        ("0.0.0.0:5671", f"127.0.0.1:{ports.amqps}"),
        ("management.ssl.port = 15671", f"management.ssl.port = {ports.management}"),
        ("https://127.0.0.1:7443", f"https://127.0.0.1:{place.guard_port}"),
        ("rabbit@rabbit-1", place.broker.nodename),
    ):
        text = text.replace(written, here)
    # One of the three brokers runs here.
    return re.sub(r"^.*rabbit@rabbit-[23]\n", "", text, flags=re.M)


@dataclass
class Command:
    """What a file runs: its words, whose home, as whom, and how long a stop may take."""

    argv: list[str]
    home: Path
    name: str
    stop_seconds: float


@contextmanager
def running(place: Place, *commands: Command, **environment: str) -> Iterator[list[int]]:
    """Commands until all are ready (a guard is once there is a log, which a node makes); gives their pids. Then SIGTERM to each, the last first: it must end well within
    its time, with all that it started."""
    processes: list[subprocess.Popen[bytes]] = []
    env = {"PATH": f"{BIN}:/usr/bin:/bin", "TDN_TICK_SECONDS": TICK_SECONDS, "PYTHONPATH": str(ROOT), **environment}
    logs = [place.folder / f"{command.name}.log" for command in commands]
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as out:
                processes.append(subprocess.Popen(command.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=place.folder, env=env))
        for process, command, log in zip(processes, commands, logs, strict=True):
            wait_for(partial(_is_ready, process, command, log), f"{command.name} to be ready", seconds=60)
        yield [process.pid for process in processes]
        for process, command, log in reversed(list(zip(processes, commands, logs, strict=True))):
            below = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(command.stop_seconds) == 0, log.read_text()[-2000:]
            wait_for(partial(_all_ended, below), "what it started to end")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _all_ended(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def _is_ready(process: subprocess.Popen[bytes], command: Command, log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    try:
        state = json.loads((command.home / "run" / f"{command.name}.state.json").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return bool(state.get("ready")) and state.get("pid") == process.pid


# --- systemd ---


def test_why_a_node_may_change_its_own_code(tmp_path: Path) -> None:
    """Nodes have no MemoryDenyWriteExecute because Saxon's library is not loaded under it; when that is no longer so, the unit gets it."""
    node = DEPLOY / "systemd" / "tdn-node@.service"
    assert "MemoryDenyWriteExecute" not in directives(node)
    strict = tmp_path / "strict.service"
    strict.write_text(node.read_text("utf-8").replace("UMask=0077\n", "UMask=0077\nMemoryDenyWriteExecute=yes\n"))
    argv = [sys.executable, str(Path(__file__).with_name("as_systemd.py")), str(strict), sys.executable, "-c", "import saxonche"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "cannot make segment writable for relocation" in done.stderr


def unit_command(place: Place, role: str, instance: str, home: Path) -> Command:
    """ExecStart of a unit, under the unit's own confinement."""
    path = DEPLOY / "systemd" / f"tdn-{role}@.service"
    said = directives(path)
    assert said["StateDirectory"] == ["tdn-archive" if role == "archive" else f"tdn/{role}-%i"]
    words = [word.replace("%i", instance) for word in said["ExecStart"][0].split()]
    assert words[0] == "/opt/tdn/bin/tdn"
    argv = [sys.executable, str(Path(__file__).with_name("as_systemd.py")), str(path), str(BIN / "tdn"), *place.mapped(words[1:], home.parent)]
    return Command(argv, home, f"{role}-{instance}", float(said.get("TimeoutStopSec", ["0"])[0]))


def entity(place: Place, *words: str) -> Ran:
    return run("entity", "--home", place.operator, "--as", "alice", "--json", *words)


def test_units_run_as_they_are_written(place: Place) -> None:
    """T22: guard, node and archive by their units' words, under the kernel's part of their hardening; Saxon's native code among what runs."""
    var = place.folder / "systemd" / "var" / "lib" / "tdn"
    guard_home = place.home_of("guard", "g1", at=var / "guard-g1")
    node_home = place.home_of("node", "n1", at=var / "node-n1")
    guard = unit_command(place, "guard", "g1", guard_home)
    node = unit_command(place, "node", "n1", node_home)
    with running(place, guard, node) as pids:
        for pid in [*pids, *descendants(pids[1])]:
            assert "\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text()
        document = place.folder / "sensor.xml"
        document.write_text("<sensor><kind>wind</kind><height>10</height></sensor>")
        made = entity(place, "create", "--xml", str(document))
        assert made.code == 0, made.err
        for query in (("--xquery", "exists(//sensor[height >= 10])"), ("--xpath", "//kind = 'wind'"), ("--regex", "w.nd"), ("--string", "WIND")):
            found = entity(place, "discover", *query)
            assert (found.code, [one["uuid"] for one in found.lines]) == (0, [made.one["uuid"]]), (query, found.err)
        # The archive lies beside the nodes' folder, as the unit has it.
        archive = Path(f"{var}-archive")
        export = unit_command(place, "archive", "n1", node_home).argv
        assert export[-1] == str(archive)
        done = subprocess.run(export, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert run("tdn", "archive", "verify", archive, "--trust", node_home / "nodes" / "n1" / "trust.pem").code == 0


# --- containers ---


def image_command(words: list[str]) -> list[str]:
    entrypoints = re.findall(r'^ENTRYPOINT \["([a-z-]+)"\]$', (DEPLOY / "container" / "Containerfile").read_text("utf-8"), re.M)
    assert entrypoints == ["tdn", "tdn-spark"]
    return [str(BIN / entrypoints[0]), *words]


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


def test_compose_services_run_as_they_are_written(place: Place) -> None:
    guard, node = COMPOSE["services"]["guard-1"], COMPOSE["services"]["node-1"]
    guard_home = place.home_of("guard", "g1", at=place.folder / "compose" / "g1")
    (endpoint,) = free_ports(1)
    node_home = place.home_of("node", "n1", "--endpoint", f"localhost:{endpoint}", at=place.folder / "compose" / "n1")
    assert guard["volumes"][0] == "${TDN_HOMES:?see deploy/README.md}/g1:/var/lib/tdn"
    with running(
        place,
        Command(image_command(place.mapped(guard["command"], guard_home)), guard_home, "guard-g1", seconds(guard["stop_grace_period"])),
        Command(image_command(place.mapped(node["command"], node_home)), node_home, "node-n1", seconds(node["stop_grace_period"])),
    ):
        made = entity(place, "create", "--path", "found/without/a/broker")
        assert made.code == 0, made.err
        assert [one["node"] for one in entity(place, "locate").lines] == ["n1"]
        # The same entity where no broker can be reached: it knows from the node itself where that answers.
        alone = place.folder / "alone"
        shutil.copytree(place.operator / "entities" / "alice", alone)
        written = (alone / "connection.toml").read_text()
        assert "[[node]]" not in written
        (alone / "connection.toml").write_text(written.replace(f"port = {place.broker.ports.amqps}", f"port = {free_ports(1)[0]}"))
        found = run("entity", "--credentials", alone, "--json", "discover", "--string", "without a broker")
        assert ([one["uuid"] for one in found.lines], "answered by node n1 without the broker" in found.err) == ([made.one["uuid"]], True), found.err


def test_pods_run_as_they_are_written(place: Place) -> None:
    objects = {one["kind"]: one for name in ("10-broker", "20-nodes") for one in yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text("utf-8"))}
    brokers = objects["RabbitmqCluster"]["spec"]["override"]["statefulSet"]["spec"]["template"]["spec"]
    nodes = objects["StatefulSet"]["spec"]["template"]["spec"]
    (guard,) = [one for one in brokers["containers"] if one["name"] == "guard"]
    guard_home = place.home_of("guard", "tdn-server-0", at=place.folder / "pods" / "tdn-server-0")
    node_home = place.home_of("node", "tdn-node-0", at=place.folder / "pods" / "tdn-node-0")

    def command(container: dict[str, Any], home: Path, role: str) -> Command:
        assert container["env"] == [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        words = place.mapped([word.replace("$(POD_NAME)", home.name) for word in container["args"]], home)
        return Command(image_command(words), home, f"{role}-{home.name}", float(nodes["terminationGracePeriodSeconds"]))

    with running(place, command(guard, guard_home, "guard"), command(nodes["containers"][0], node_home, "node")):
        assert [one["node"] for one in entity(place, "locate").lines] == ["tdn-node-0"]


def test_the_health_check_believes_the_process(place: Place) -> None:
    """The words of compose's health check, against something that answers at that path as a node does."""
    status = 503

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    words = COMPOSE["services"]["node-1"]["healthcheck"]["test"]
    assert words[:2] == ["CMD", "python"]
    argv = [sys.executable, words[2], words[3].replace("127.0.0.1:9464", f"127.0.0.1:{server.server_port}")]
    try:
        assert subprocess.run(argv, capture_output=True, check=False).returncode != 0
        status = 200
        assert subprocess.run(argv, capture_output=True, check=False).returncode == 0
    finally:
        server.shutdown()
        server.server_close()
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


# --- what an operator does with it ---


def plain_commands(place: Place, below: str) -> tuple[Command, Command]:
    """A guard and a node, each in a home of its own, as whatever starts them does."""
    homes = place.home_of("guard", "g1", at=place.folder / below / "g1"), place.home_of("node", "n1", at=place.folder / below / "n1")
    guard_words = place.mapped(COMPOSE["services"]["guard-1"]["command"], homes[0])
    node_words = place.mapped(COMPOSE["services"]["node-1"]["command"], homes[1])
    return Command(image_command(guard_words), homes[0], "guard-g1", 20.0), Command(image_command(node_words), homes[1], "node-n1", 30.0)


def the_status(home: Path) -> dict[str, Any]:
    done = run("tdn", "--home", home, "--json", "status")
    assert done.code == 0, done.err
    return done.one


def test_carried_homes_are_looked_at(place: Place) -> None:
    """What nobody of ours has started is seen by what it says of itself: by status, by the doctor, and by `tdn up` and `down`, which leave it alone. And the
    operator revokes (T21) from a home that reaches a broker and runs nothing; what could not be sent is kept, and told."""
    guard, node = plain_commands(place, "looked at")
    operator = ("--home", place.operator)
    pending = place.operator / "network" / "pending" / "revoke-entity-bob.jws"
    for who in ("bob", "carol"):
        assert run("tdn", *operator, "ca", "issue", who).code == 0
    failed = run("tdn", *operator, "--timeout", "2s", "ca", "revoke", "bob")
    # No guard, so the broker lets nobody in.
    assert (failed.code, "`tdn ca revoke bob` once more sends it" in failed.err) == (4, True), failed.err
    assert pending.exists()
    with running(place, guard, node) as pids:
        assert run("tdn", *operator, "ca", "revoke", "bob").code == 0
        assert not pending.exists()
        asking = ("--home", place.operator, "--as", "carol", "discover", "--string", "anything")
        assert run("entity", *asking).code == 0
        done = run("tdn", *operator, "--json", "ca", "revoke", "carol")
        assert (done.code, done.one["revoked"], bool(done.one["receipt"])) == (0, "entity:carol", True), done.err
        for who in ("bob", "carol"):
            refused = run("entity", "--home", place.operator, "--as", who, "locate")
            assert (refused.code, "revoked" in refused.err) == (4, True), refused.err
        for command, pid in zip((guard, node), pids, strict=True):
            said = the_status(command.home)
            assert (said["alive"], said["ready"], said["pid"], said.get("denies_all", False)) == (True, True, pid, False), said
            examined = run("tdn", "--home", command.home, "doctor")
            assert (examined.code, "problem" in examined.out) == (0, False), examined.out
            up = run("tdn", "--home", command.home, "up")
            assert (up.code, "already running" in up.err) == (0, True), up.err
            down = run("tdn", "--home", command.home, "down")
            assert (down.code, f"{said['role']} {said['id']} goes on" in down.err) == (0, True), down.err
            assert is_alive(pid)
        os.kill(pids[1], signal.SIGSTOP)
        try:
            wait_for(lambda: not the_status(node.home)["ready"], "a paused node to be seen")
            said = the_status(node.home)
            assert (said["alive"], said["pid"], "has said nothing for" in said["why"]) == (True, pids[1], True), said
            examined = run("tdn", "--home", node.home, "doctor")
            assert (examined.code, "node n1 is not ready: it has said nothing for" in examined.out) == (3, True), examined.out
        finally:
            os.kill(pids[1], signal.SIGCONT)
        wait_for(lambda: the_status(node.home)["ready"], "it to go on")
    for command in (guard, node):
        assert the_status(command.home)["alive"] is False
        for words in (("up",), ("ca", "issue", "mallory"), ("ca", "revoke", "alice")):
            refused = run("tdn", "--home", command.home, *words)
            assert (refused.code, "is not the operator's home" in refused.err, refused.out) == (2, True, ""), (words, refused.err)
        assert not (command.home / "ca").exists()


# --- what is carried ---


def test_a_carried_home_holds_one_key_and_never_the_networks(place: Place) -> None:
    for words, own, extra in (
        (("--node", "n1"), "nodes/n1", set()),
        (("--guard", "g1"), "guards/g1", {"network/management-password"}),
    ):
        with tarfile.open(carry(place.operator, place.folder / "looked-at.tar", *words)) as tar:
            files = {entry.name: entry.mode for entry in tar if entry.isfile()}
            folders = {entry.mode for entry in tar if entry.isdir()}
        settings = {"nodes/n1/node.toml", "guards/g1/guard.toml"}
        enrolments = {f"network/enrolments/{name}.jws" for name in ("guard-g1", "guard-tdn-server-0", "node-n1", "node-tdn-node-0")}
        assert files.keys() - settings == {
            *("tdn.toml", "network/genesis.jws", *enrolments, *extra),
            *(f"{own}/{name}" for name in ("cert.pem", "key.pem", "trust.pem", "connection.toml")),
        }
        assert {name for name, mode in files.items() if mode == 0o600} == {f"{own}/key.pem", *extra}
        assert folders == {0o700}
    assert (place.folder / "looked-at.tar").stat().st_mode & 0o777 == 0o600


def test_carrying_again_leaves_the_store_and_adds_where_it_is_observed(place: Place) -> None:
    home = place.home_of("node", "n1", at=place.folder / "again")
    (home / "nodes" / "n1" / "store.sqlite").write_text("kept")
    unpack(carry(place.operator, place.folder / "again.tar", "--node", "n1", "--observe", "0.0.0.0:9464"), home)
    assert (home / "nodes" / "n1" / "store.sqlite").read_text() == "kept"
    settings = (home / "nodes" / "n1" / "node.toml").read_text()
    assert tomllib.loads(settings)["observe"] == {"listen": "0.0.0.0:9464"}


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--node", "n1", "--endpoint", "node-1"), "'node-1' is no HOST:PORT"), (("--guard", "g1", "--endpoint", "node-1:7451"), "--endpoint goes with --node")],
)
def test_an_endpoint_that_is_none(place: Place, words: tuple[str, ...], said: str) -> None:
    argv = [sys.executable, "-m", "deploy.carry", "--home", str(place.operator), *words, "--to", str(place.folder / "none.tar")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_what_is_not_there_is_told(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.carry", "--home", str(place.operator), "--node", "n9", "--to", str(place.folder / "n9.tar")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "there is no key in" in done.stderr
    assert "there are: n1, tdn-node-0" in done.stderr
    assert not (place.folder / "n9.tar").exists()
