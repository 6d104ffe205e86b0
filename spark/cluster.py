"""A standalone Spark cluster on this machine's loopback: a master, workers, and a Spark Connect server where one is asked for; found again by later commands.

Whoever reaches a master can run code as the one who started it, so the processes share a secret that stands in the home, readable by its owner alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tdn.errors import BrokerUnavailable, UsageError
from tdn.local.ca import write_private
from tdn.local.home import Home
from tdn.local.processes import DetachedProcess, free_ports

_HOST = "127.0.0.1"
#: How long a master, its workers, or a Connect server may take to be there. The JVM starts slowly on a busy machine.
_START_SECONDS = 120.0
_WORKER_MEMORY = "2g"
_MOST_WORKERS = 64

#: What master, workers and Connect server take from the caller's environment. The last two are Spark's own: options of the JVM.
_KEPT = ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR", "SPARK_DAEMON_JAVA_OPTS", "SPARK_SUBMIT_OPTS")


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster as the home remembers it."""

    master: str
    #: As many as were started; of a cluster that `up` found running, as many as are alive.
    workers: int
    web: int
    #: `sc://…`, where a Connect server runs too.
    connect: str | None


class Cluster:
    def __init__(self, home: Home) -> None:
        self.folder = home.folder / "spark"

    @property
    def _state(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def conf(self) -> Path:
        """Spark's settings, with the secret: for every command that uses this cluster."""
        return self.folder / "conf"

    @property
    def _scratch(self) -> Path:
        """What its processes put aside while they run: what one that is killed leaves goes with the cluster, not with the machine's next start."""
        return self.folder / "tmp"

    def process(self, name: str) -> DetachedProcess:
        return DetachedProcess(self.folder / "run", name)

    def running(self) -> Running | None:
        """The cluster of this home, if its master is alive."""
        try:
            found = Running(**json.loads(self._state.read_text("utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return found if self.process("master").alive() else None

    def up(self, workers: int, *, connect: bool = False) -> tuple[Running, bool]:
        """Start it, unless it runs; when this returns all workers are registered. Whether it was started now."""
        if not 1 <= workers <= _MOST_WORKERS:
            raise UsageError(f"--workers is between 1 and {_MOST_WORKERS}")
        with self._locked():
            return self._up(workers, connect)

    def _up(self, workers: int, connect: bool) -> tuple[Running, bool]:
        if (found := self.running()) is not None:
            return replace(found, workers=max(0, _alive_workers(found.web))), False
        self._stop()
        port, web, served = free_ports(3)
        self._configure()
        # By this name: to an address the client would speak TLS, since it brings a token.
        found = Running(f"spark://{_HOST}:{port}", workers, web, f"sc://localhost:{served}" if connect else None)
        try:
            self._spawn("master", "org.apache.spark.deploy.master.Master", "--port", str(port), "--webui-port", str(web))
            cores = max(1, (os.cpu_count() or 1) // workers)
            for number in range(1, workers + 1):
                self._spawn(
                    f"worker-{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--cores", str(cores), "--memory", _WORKER_MEMORY, "--webui-port", "0"),
                    *("--work-dir", str(self.folder / "work"), found.master),
                )
            self._await("master", lambda: _alive_workers(web) == workers, f"{workers} workers")
            if connect:
                self._serve(found.master, served)
        except BaseException:
            self._stop()
            raise
        self._state.write_text(json.dumps(asdict(found)) + "\n", "utf-8")
        return found, True

    def down(self) -> bool:
        """Stop all of it; whether there was anything. Harmless when nothing runs."""
        if not self.folder.is_dir():
            return False
        with self._locked():
            return self._stop()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time for a home: what is being started is not yet known as running, and would be stopped by the next."""
        for folder in (self.folder, self.folder / "run"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.folder / "run" / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _stop(self) -> bool:
        names = sorted(path.stem for path in (self.folder / "run").glob("*.pid"))
        # The server first: it uses the workers, and they the master.
        stopped = False
        for name in sorted(names, key=lambda name: ("connect", "worker", "master").index(name.partition("-")[0])):
            process = self.process(name)
            stopped |= process.alive()
            process.stop()
        self._state.unlink(missing_ok=True)
        shutil.rmtree(self._scratch, ignore_errors=True)
        return stopped

    def settings(self, master: str) -> bool:
        """Make a session of this process one of this cluster, if the master is this cluster's. Whether it is. BrokerUnavailable where it has no worker left."""
        found = self.running()
        if found is None or master not in (found.master, found.connect):
            return False
        if _alive_workers(found.web) == 0:
            raise BrokerUnavailable("no worker of this home's cluster is alive; `tdn-spark cluster down`, then `up`, starts it anew")
        os.environ["SPARK_CONF_DIR"] = str(self.conf)
        os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = self._secret()
        return True

    def _secret(self) -> str:
        return (self.folder / "secret").read_text("utf-8").strip()

    def _configure(self) -> None:
        for folder in (self.folder, self.conf, self.folder / "run", self.folder / "work", self._scratch):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "secret").exists():
            write_private(self.folder / "secret", secrets.token_urlsafe(32).encode())
        settings = {"spark.authenticate": "true", "spark.authenticate.secret": self._secret(), "spark.network.crypto.enabled": "true"}
        write_private(self.conf / "spark-defaults.conf", "".join(f"{name} {value}\n" for name, value in settings.items()).encode())

    def _environment(self) -> dict[str, str]:
        # Loaded for its place alone, which takes a moment.
        import pyspark

        return {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_CONF_DIR": str(self.conf),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_DIRS": str(self._scratch),
            # Of executors too, which have a worker's environment: libraries are unpacked there, and loaded.
            "JAVA_TOOL_OPTIONS": "{0}-Djava.io.tmpdir={1}{0}".format("'" if '"' in str(self._scratch) else '"', self._scratch),
            "PYSPARK_PYTHON": sys.executable,
            # What executors import beside what is sent to them: this very installation.
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }

    def _spawn(self, name: str, main: str, *arguments: str) -> None:
        environment = self._environment()
        argv = [f"{environment['SPARK_HOME']}/bin/spark-class", main, "--host", _HOST, *arguments]
        self.process(name).spawn(argv, env=environment, cwd=self.folder)

    def _serve(self, master: str, port: int) -> None:
        environment = self._environment()
        settings = {
            "spark.connect.grpc.binding.address": _HOST,
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.authenticate.token": self._secret(),
            "spark.ui.enabled": "false",
            "spark.driver.host": _HOST,
        }
        argv = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", master]
        for name, value in settings.items():
            argv += ["--conf", f"{name}={value}"]
        argv += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self.process("connect").spawn(argv, env=environment, cwd=self.folder)
        self._await("connect", lambda: _listens(port), "the Connect server")

    def _await(self, name: str, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if not self.process(name).alive():
                raise BrokerUnavailable(f"Spark's {name} did not start:\n{self.process(name).tail()}")
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"{what} were not there after {_START_SECONDS:.0f} s:\n{self.process(name).tail()}")
            time.sleep(0.1)


def _alive_workers(web: int) -> int:
    """As the master counts them; -1 where it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{_HOST}:{web}/json/", timeout=2.0) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return -1


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((_HOST, port), 1.0):
            return True
    except OSError:
        return False
