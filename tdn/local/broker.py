"""The private RabbitMQ of `tdn up`: an epmd and a broker as processes of ours, from our folder, on our ports.

Promises: nothing of a system-wide RabbitMQ is read, changed or started; everything listens on loopback only;
`start` returns once the broker serves AMQP over TLS, and needs no guard for that (the guard needs the broker
first); `stop` leaves no process behind and no data lost. What the broker enforces is in `broker_config/`.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
import signal
import socket
import ssl
import string
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tdn.environment import RABBITMQ_SERVER, is_program
from tdn.errors import BrokerUnavailable, UsageError
from tdn.local.erlang import compile_module, find_epmd
from tdn.local.processes import DetachedProcess, tail_of

#: The virtual host that broker_config/definitions.json makes.
VIRTUAL_HOST = "tdn"

_LOOPBACK = "127.0.0.1"

#: For Erlang: brokers and tools talk to each other on loopback only.
LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"

#: What `auth_backends` names: our module, which remembers a channel's topics, or RabbitMQ's HTTP backend alone. They ask the same guard.
REMEMBERING_BACKEND = "rabbit_auth_backend_tdn"
PLAIN_BACKEND = "http"

_TEMPLATES = ("rabbitmq.conf", "advanced.config", "enabled_plugins", "definitions.json")

#: What AMQP 0-9-1 clients say first; the broker answers with Connection.Start, or with a header of its own.
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"

#: A method frame on channel 0: what a broker that is ready answers with.
_METHOD_FRAME = b"\x01\x00\x00"

#: RabbitMQ writes its data on SIGTERM and takes about a second; with many queues it takes longer.
_STOP_SECONDS = 30.0

#: What one call of RabbitMQ's own tools may take.
_TOOL_SECONDS = 120.0

#: The server script, where packages put it. Debian's wrapper in /usr/sbin is left out on purpose: it changes
#: user and folder.
_PLACES = (
    "/usr/lib/rabbitmq/bin",  # Debian, Ubuntu, Fedora
    "/usr/local/lib/rabbitmq/bin",
    "/opt/rabbitmq/sbin",  # the container image
    "/usr/local/rabbitmq/sbin",
    "/opt/homebrew/opt/rabbitmq/sbin",  # Homebrew on Apple's and on Intel's processors
    "/usr/local/opt/rabbitmq/sbin",
)
_PLACES_WITH_VERSION = (
    "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
    "/opt/rabbitmq_server-*/sbin",  # the generic-unix archive
)


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """All on 127.0.0.1. `dist` and `epmd` are Erlang's own: between brokers, and for finding them."""

    amqps: int
    management: int
    dist: int
    epmd: int


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """PEM files: the trusted roots; the broker's certificate followed by the intermediate; its key."""

    root: Path
    chain: Path
    key: Path


class Broker(Protocol):
    """What `tdn up` and `tdn down` need of a broker, wherever it runs."""

    def write_configuration(self) -> str | None:
        """Gives what the operator should know about it, if there is anything."""

    def start(self, *, timeout_seconds: float = 60.0) -> None: ...

    def stop(self) -> None: ...

    def kill_hard(self) -> None: ...

    def alive(self) -> bool: ...

    @property
    def pid(self) -> int | None: ...


class PrivateBroker:
    """One RabbitMQ whose state is all in `folder`; the next start on the same folder continues it.

    `guard_url` is the guard's address without a path, such as `https://127.0.0.1:20443`. `auth_backend` is one of the two
    that are named above; without a compiler for the first, the second is taken. One of several is told the names of all, and where the epmd
    and the cookie are that they share; that epmd it starts if need be, and leaves alone when it ends.
    """

    def __init__(
        self,
        folder: Path,
        ports: BrokerPorts,
        tls: BrokerTls,
        guard_url: str,
        *,
        nodename: str = "tdn@localhost",
        auth_backend: str = REMEMBERING_BACKEND,
        peers: Sequence[str] = (),
        shared: Path | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.ports = ports
        self.tls = tls
        self.guard_url = guard_url
        self.nodename = nodename
        self.auth_backend = auth_backend
        self.peers = tuple(peers) or (nodename,)
        self._shared = shared
        self._code = self.folder / "code"
        self._broker = DetachedProcess(self.folder, "broker")
        self._epmd = DetachedProcess(shared or self.folder, "epmd")

    @property
    def pid(self) -> int | None:
        """The broker's pid while it runs."""
        return self._broker.pid

    @property
    def log_path(self) -> Path:
        """RabbitMQ's own log. What it prints before it can log is in `broker.log` of the folder itself."""
        return self.folder / "log" / "broker.log"

    def alive(self) -> bool:
        return self._broker.alive()

    def write_configuration(self) -> str | None:
        """Render the templates of broker_config/, compile its module and make the cookie. An existing cookie is kept.

        Without an Erlang compiler the broker is as strict but slower; the sentence that it gives then says so.
        """
        for name in ("home", "data", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        # Whoever reaches the cookie and the dist port runs code as the broker.
        self.folder.chmod(0o700)
        failure = None
        if self.auth_backend == REMEMBERING_BACKEND:
            failure = compile_module(template_folder() / f"{REMEMBERING_BACKEND}.erl", self._code)
        render_configuration(
            self.folder,
            ports=self.ports,
            tls=self.tls,
            guard_url=self.guard_url,
            auth_backend=PLAIN_BACKEND if failure else self.auth_backend,
            peers=self.peers,
        )
        _keep_cookie(self.folder, self._shared or self.folder)
        if failure:
            return f"publishing to more than 12 topics at once will be slow: {failure}"
        return None

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Start epmd and broker; return when AMQP is served over TLS. Changes nothing when it already is.

        Raises BrokerUnavailable, with what the log says, when the broker ends or the time is over; nothing
        then runs.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            self.begin(deadline)
            self.await_serving(deadline)
        except BaseException:
            # KeyboardInterrupt too: a broker that nobody waits for would stay.
            self.kill_hard()
            raise

    def begin(self, deadline: float) -> None:
        """Start epmd and broker, and leave the waiting to the caller: several that start together wait for each other."""
        server = find_rabbitmq()
        if server is None:
            raise BrokerUnavailable("RabbitMQ is not installed; `make setup` installs it")
        if not (self.folder / "rabbitmq.conf").exists():
            self.write_configuration()
        environment = self._environment()
        if not self._epmd.alive():
            # Ours, and started first: otherwise Erlang starts one that stays and listens everywhere.
            self._epmd.spawn(
                [str(find_epmd()), "-port", str(self.ports.epmd), "-address", _LOOPBACK],
                env=environment,
                cwd=self.folder,
            )
            self._wait_for_epmd(deadline)
        if not self._broker.alive():
            self._require_free_ports()
            self._broker.spawn([str(server)], env=environment, cwd=self.folder)

    def begin_stop(self) -> None:
        """Tell the broker to end, and leave the waiting to `stop`."""
        if (pid := self._broker.pid) is not None:
            os.kill(pid, signal.SIGTERM)

    def stop(self) -> None:
        """End the broker in order, then an epmd of its own. Harmless when neither runs."""
        self._broker.stop(timeout_seconds=_STOP_SECONDS)
        if self._shared is None:
            self._epmd.stop(timeout_seconds=5.0)

    def kill_hard(self) -> None:
        """`kill -9` for all of it, as a crash would."""
        self._broker.kill_hard()
        if self._shared is None:
            self._epmd.kill_hard()

    def control(self, tool: str, *words: str) -> str:
        """Run one of RabbitMQ's own tools against this broker; gives what it prints. A second or two each."""
        server = find_rabbitmq()
        if server is None:
            raise BrokerUnavailable("RabbitMQ is not installed; `make setup` installs it")
        try:
            done = subprocess.run(  # noqa: S603  # RabbitMQ's own tool, beside the server that was found, with words of ours
                [str(server.parent / tool), "-n", self.nodename, *words],
                env=self._environment(),
                cwd=self.folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TOOL_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BrokerUnavailable(f"{tool} does not run: {error}") from error
        if done.returncode:
            raise BrokerUnavailable(f"{tool} {words[0]} failed: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        # Only what is named here: a RABBITMQ_... or ERL_... of the caller would lead us to another broker.
        return {
            "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            # Where Erlang looks for the cookie.
            "HOME": str(self.folder / "home"),
            "RABBITMQ_NODENAME": self.nodename,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            # Where the broker finds the module that write_configuration compiled.
            "RABBITMQ_SERVER_CODE_PATH": str(self._code),
            "RABBITMQ_PID_FILE": str(self.folder / "data" / "rabbitmq.pid"),
            "RABBITMQ_DIST_PORT": str(self.ports.dist),
            "ERL_EPMD_PORT": str(self.ports.epmd),
            "ERL_EPMD_ADDRESS": _LOOPBACK,
            # `none` by default, and each wait is then a system call. Spinning a little first halves the
            # start: 8.2 to 9.7 s became 3.9 to 5.1 s on two cores (3.10.8, three tries each). A creation takes as
            # long either way (docs/performance.md).
            "RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD": "short",
            "ERL_CRASH_DUMP": str(self.folder / "log" / "erl_crash.dump"),
            # Those threads serve files and crypto, and a start is no shorter for their spinning: without it a broker took an eighth less of a
            # processor for the same 150 tests (58.7 s and 51.9 s).
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{LOOPBACK_ONLY} +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_CTL_ERL_ARGS": LOOPBACK_ONLY,
            # The script then becomes the Erlang runtime instead of watching it: our child is the broker.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _require_free_ports(self) -> None:
        # RabbitMQ says it in two hundred lines of Erlang, half a minute later.
        for use, port in (
            ("AMQPS", self.ports.amqps),
            ("management", self.ports.management),
            ("distribution", self.ports.dist),
        ):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((_LOOPBACK, port))
                except OSError as error:
                    raise UsageError(
                        f"the broker's {use} port {_LOOPBACK}:{port} is in use by another program; end that one, or run `tdn up` again, which chooses others"
                    ) from error

    def _wait_for_epmd(self, deadline: float) -> None:
        while True:
            try:
                with socket.create_connection((_LOOPBACK, self.ports.epmd), timeout=1.0):
                    return
            except OSError as error:
                if not self._epmd.alive() or time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"epmd does not run on port {self.ports.epmd}: {self._epmd.tail(lines=5) or error}"
                    ) from error
            time.sleep(0.02)

    def await_serving(self, deadline: float) -> None:
        """Return when AMQP is served over TLS. What goes wrong is told; the broker is left as it is."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.tls.root))
        # The broker's own certificate serves as a client's: we ask only whether it answers, and never log in.
        context.load_cert_chain(self.tls.chain, self.tls.key)
        # Its name is the clients' business; a certificate of our root tells it from a stranger on this port.
        context.check_hostname = False
        last: Exception | None = None
        while time.monotonic() < deadline:
            if not self._broker.alive():
                raise BrokerUnavailable(f"the broker ended while starting:\n{self._what_it_said()}")
            try:
                if self._answers_amqp(context):
                    return
            except OSError as error:
                last = error
            time.sleep(0.05)
        raise BrokerUnavailable(f"the broker does not serve AMQPS on port {self.ports.amqps} ({last}):\n{self._what_it_said()}")

    def _answers_amqp(self, context: ssl.SSLContext) -> bool:
        # RabbitMQ opens its listeners last, after plugins and definitions: an answer means that it is up.
        with (
            socket.create_connection((_LOOPBACK, self.ports.amqps), timeout=2.0) as plain,
            context.wrap_socket(plain) as secured,
        ):
            secured.sendall(_AMQP_HEADER)
            return secured.recv(len(_METHOD_FRAME)) == _METHOD_FRAME

    def _what_it_said(self) -> str:
        # Erlang ends with a page about its supervisors; the reason is in the first lines marked as errors.
        lines = [*self._broker.tail(lines=200).splitlines(), *tail_of(self.log_path, lines=50).splitlines()]
        errors = [line for line in lines if "[error]" in line]
        return "\n".join(errors[:12] or lines[-12:])


def render_configuration(
    folder: Path,
    *,
    ports: BrokerPorts,
    tls: BrokerTls,
    guard_url: str,
    auth_backend: str = PLAIN_BACKEND,
    peers: Sequence[str] = ("tdn@localhost",),
) -> None:
    """Fill in the templates of broker_config/ and write them into `folder`. `peers` are all brokers of the network, by their Erlang names."""
    values = {
        "listen_address": _LOOPBACK,
        "amqps_port": str(ports.amqps),
        "management_address": _LOOPBACK,
        "management_port": str(ports.management),
        "root": str(tls.root.absolute()),
        "chain": str(tls.chain.absolute()),
        "key": str(tls.key.absolute()),
        "definitions": str(folder.absolute() / "definitions.json"),
        "guard_url": guard_url.rstrip("/"),
        "guard_name": _certified_name(guard_url),
        "auth_backend": auth_backend,
    }
    for name, value in values.items():
        # Neither format has an escape that both versions read; a line break would be a setting of its own.
        if any(character in value for character in "\"'\\#\n\r"):
            raise UsageError(f"RabbitMQ's configuration cannot hold this {name}: {value!r}; name a home without quotes, \\ and # in its path")
    values["peers"] = "\n".join(f"cluster_formation.classic_config.nodes.{n} = {peer}" for n, peer in enumerate(peers, 1))
    for name in _TEMPLATES:
        template = string.Template((template_folder() / name).read_text())
        (folder / name).write_text(template.substitute(values))


def _keep_cookie(folder: Path, shared: Path) -> None:
    """The secret that brokers know each other by: made once, and the same for all that share it."""
    own, common = (where / "home" / ".erlang.cookie" for where in (folder, shared))
    for cookie in (common, own):
        if not cookie.exists():
            cookie.parent.mkdir(parents=True, exist_ok=True)
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(20) if cookie == common else common.read_text())
            cookie.chmod(0o400)


def _certified_name(guard_url: str) -> str:
    """The DNS name that the guard's certificate must hold: the URL's, or `localhost` for a loopback address.

    Erlang's HTTP client compares the URL's host with DNS names only, so an address needs a name beside it.
    """
    host = urlsplit(guard_url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_loopback:
        raise BrokerUnavailable(f"a guard on another machine needs a DNS name in its URL: {guard_url}")
    return "localhost"


def template_folder() -> Path:
    """broker_config/: inside the package when installed from a wheel, else at the top of the repository."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_broker_config"
    return packed if packed.is_dir() else package.parent / "broker_config"


def find_rabbitmq() -> Path | None:
    """The server script: $TDN_RABBITMQ_SERVER if set, else where packages put it, else the PATH."""
    named = os.environ.get(RABBITMQ_SERVER)
    if named:
        # Named and not there is an error of the operator's, not a reason to take another one.
        return Path(named) if is_program(Path(named)) else None
    for candidate in _candidates():
        if os.access(candidate, os.X_OK):
            return candidate
    return None


def _candidates() -> Iterator[Path]:
    for place in _PLACES:
        yield Path(place) / "rabbitmq-server"
    for pattern in _PLACES_WITH_VERSION:
        # The newest: sorted as text is good enough for two that differ.
        for found in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            yield found / "rabbitmq-server"
    on_path = shutil.which("rabbitmq-server")
    if on_path is not None:
        yield Path(on_path)
