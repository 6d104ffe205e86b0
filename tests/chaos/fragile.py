"""A network that can be hurt in every way that a run needs: whoever uses it reaches the brokers through a proxy of ours, one node keeps its
store on a disk that can be full, and one has a clock that can be wrong. Which these are, the seed says.

What this machine cannot do (mounting needs root, clocks need a C compiler) is said in `missing`, and left out.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdn.bus.address import ConnectionSettings, write_connection
from tdn.bus.connection import Broker
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tests.chaos.checker import payload_of
from tests.chaos.proxy import Proxy
from tests.chaos.small_disk import SmallDisk
from tests.live import LiveNetwork

#: How large a disk is that can be full.
DISK_MEGABYTES = 256

_CLOCK_SOURCE = Path(__file__).with_name("clock.c")


def compile_clock(folder: Path) -> Path | None:
    """The library that makes a process's time of day wrong; nothing where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    done = subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_CLOCK_SOURCE)], check=False)
    return library if done.returncode == 0 else None


class ProxiedNetwork(Network):
    """A network whose nodes go through a proxy, some of them with an environment of their own."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.proxy: Proxy | None = None
        self.environments: dict[str, dict[str, str]] = {}

    def brokers_behind(self) -> Proxy:
        if self.proxy is None:
            self.proxy = Proxy([broker.port for broker in self.home.settings().hosts])
        return self.proxy

    def _spawn(self, role: Role, name: str) -> None:
        if role is not Role.NODE:
            # A guard stands beside its broker.
            super()._spawn(role, name)
            return
        self.home.report(f"{role}-{name}", {})
        text = ",".join(map(str, self.brokers_behind().ports))
        argv = [sys.executable, "-m", "tests.chaos.proxied", text, "--home", str(self.home), str(role), "--id", name]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **self.environments.get(name, {})}
        self._process(role, name).spawn(argv, env=env, cwd=self.home.folder)


class FragileNetwork(LiveNetwork):
    """A live network to be hurt."""

    network: ProxiedNetwork

    def __init__(self, folder: Path, *, seed: int, nodes: int) -> None:
        super().__init__(folder)
        self.network = ProxiedNetwork(self.home)
        self._count = nodes
        #: The node whose disk can be full, and the one whose clock can be wrong.
        self.on_a_small_disk, self.with_another_clock = random.Random(seed).sample([f"n{n}" for n in range(1, nodes + 1)], 2)
        #: What cannot be done here, and why.
        self.missing: dict[str, str] = {}
        self._clock = folder.parent / "clock-of-one-node"
        self._disk: SmallDisk | None = None
        #: Names of the entities that were made here.
        self.issued: set[str] = set()

    # --- life ---

    def up(self, nodes: int | None = None, brokers: int | None = None) -> None:
        self.home.prepare()
        self._mount()
        self._wind_up()
        super().up(nodes or self._count, brokers)

    def end(self) -> None:
        try:
            super().end()
        finally:
            if self.network.proxy is not None:
                self.network.proxy.close()
            if self._disk is not None:
                self._disk.unmount()

    @property
    def proxy(self) -> Proxy:
        return self.network.brokers_behind()

    @property
    def connection(self) -> ConnectionSettings:
        """Where an entity finds the brokers: behind the proxy."""
        return replace(self.home.connection(), brokers=[Broker("127.0.0.1", port) for port in self.proxy.ports])

    def entity(self, kind: str = "e", **how: Any) -> Path:
        folder = super().entity(kind, **how)
        write_connection(folder, self.connection)
        self.issued.add(folder.name)
        return folder

    # --- brokers and guards ---

    def manage(self, method: str, path: str, broker: int = 0) -> Any:
        """Through whichever broker answers."""
        for number in range(broker, len(self.brokers()) - 1):
            with contextlib.suppress(OSError):
                return super().manage(method, path, number)
        return super().manage(method, path, len(self.brokers()) - 1)

    def brokers(self) -> list[Any]:
        return [self.network.cluster.broker(place) for place in self.home.places()]

    @contextlib.contextmanager
    def stopped(self, pid: int | None) -> Iterator[None]:
        """A process that hangs (SIGSTOP) for a while."""
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # --- a disk that can be full ---

    def _mount(self) -> None:
        folder = self.home.credentials(Role.NODE, self.on_a_small_disk)
        folder.mkdir(parents=True, exist_ok=True)
        disk = SmallDisk(folder, DISK_MEGABYTES)
        if disk.missing is None:
            self._disk = disk
        else:
            self.missing["fill the disk"] = disk.missing

    def fill_disk(self) -> None:
        """Take every byte that is free on the disk of one node, now and as long as it is full."""
        assert self._disk is not None
        self._disk.fill()

    def free_disk(self) -> None:
        assert self._disk is not None
        self._disk.free()

    @property
    def disk_is_full(self) -> bool:
        assert self._disk is not None
        return self._disk.full

    # --- a clock that can be wrong ---

    def _wind_up(self) -> None:
        library = compile_clock(self._clock.parent)
        if library is None:
            self.missing["jump of a clock"] = "there is no C compiler; `deploy/setup.sh chaos` installs one"
            return
        self.set_clock(0)
        self.network.environments[self.with_another_clock] = {"LD_PRELOAD": str(library), "TDN_CHAOS_CLOCK": str(self._clock)}

    def set_clock(self, seconds: int) -> None:
        """Have the clock of one node wrong by so much, at once."""
        # In place: the node has the file in its memory.
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    def clock_error(self) -> float:
        """By how many seconds that node's clock is wrong, as its last tick in the log says."""
        path = self.home.store(next(node for node in self.nodes() if node not in (self.with_another_clock, self.on_a_small_disk)))
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            newest = store.execute("SELECT raw FROM records WHERE kind IN ('tick', 'void') ORDER BY seq DESC LIMIT 40").fetchall()
        # By a clock at which its certificate does not hold yet, they are void, and it stops.
        records = [payload_of(raw) for (raw,) in newest]
        last = next((record for record in records if record["node"] == self.with_another_clock), None)
        return parse_time(last["at"]).timestamp() - time.time() if last is not None else 0.0
