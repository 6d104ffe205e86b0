"""Our commands as processes of their own, without the second that each takes to import the same modules.

`python -m tests.commands ADDRESS` has imported what `tdn`, `entity` and `tdn-spark` import, and waits. For every command it forks a process that gets that
command's words, environment, folder and files, runs the function that the installed command runs, and ends as Python ends. The suite runs
many hundred commands; what is particular to the installed ones is tested with these (`run(..., installed=True)`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: The functions that pyproject.toml names for these.
ENTRY_POINTS = {"tdn": "tdn.cli.main", "entity": "entity_client.cli.main", "tdn-spark": "spark.cli.main"}
#: What commands load when they need it, and take half a second for. Not Saxon, whose threads would not survive a fork.
OFTEN_NEEDED = ("tdn.queries.sql", "tdn.queries.xpath", "tdn.doctor.examination", "spark.search.single")
#: What the interpreter itself, or a module while it is imported, reads of its environment. A command that is given such a variable is started anew.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "SSL_", "OPENSSL_")

_NUMBER = struct.Struct("!q")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class CommandServer:
    """The waiting process, from this one's side. It ends with this one, however that ends: it then reads the end of its input."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tdn-commands-")
        self._address = str(Path(self._folder.name) / "socket")
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.commands", self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(1) == b"+", "the server of commands did not start"

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._folder.cleanup()

    def run(self, command: str, words: Sequence[str], *, stdin: str | None, env: Mapping[str, str], cwd: Path | None, seconds: float) -> Ended:
        with contextlib.ExitStack() as stack:
            files: list[IO[bytes]] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write((stdin or "").encode())
            files[0].seek(0)
            asked = {"command": command, "words": list(words), "env": dict(env), "cwd": str(cwd or Path.cwd())}
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(seconds)
                line.connect(self._address)
                body = json.dumps(asked).encode()
                socket.send_fds(line, [_NUMBER.pack(len(body))], [file.fileno() for file in files])
                line.sendall(body)
                pid = _read_number(line)
                try:
                    code = _read_number(line)
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired([command, *words], seconds) from None
            told = []
            for file in files[1:]:
                file.seek(0)
                # As subprocess does with `text`: lines end in one way.
                told.append(file.read().decode().replace("\r\n", "\n").replace("\r", "\n"))
            return Ended(code, *told)


_server: CommandServer | None = None
_starting = threading.Lock()


def server() -> CommandServer:
    """The one of this process; it is started when it is first needed."""
    global _server
    with _starting:
        if _server is None:
            _server = CommandServer()
            atexit.register(_server.close)
        return _server


def _read_exactly(line: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = line.recv(count - len(parts))
        if not part:
            raise ConnectionError("the other end is gone")
        parts += part
    return parts


def _read_number(line: socket.socket) -> int:
    return int(_NUMBER.unpack(_read_exactly(line, _NUMBER.size))[0])


# --- the waiting process ---


def serve(address: str) -> Callable[[], None]:
    """Wait for commands. Returns in the processes that were forked for one, with what each has to do."""
    modules = {command: importlib.import_module(module) for command, module in ENTRY_POINTS.items()}
    for module in OFTEN_NEEDED:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a thread would be missing in what is forked"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen(64)
    # Who is forked shares what is never written to.
    gc.collect()
    gc.freeze()
    sys.stdout.write("+")
    sys.stdout.flush()
    while True:
        # Those that have ended and were not waited for.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        ready, _, _ = select.select([listening, sys.stdin], [], [], 5.0)
        if sys.stdin in ready:
            # Nobody writes there: it was closed.
            os._exit(0)
        if not ready:
            continue
        line, _ = listening.accept()
        if os.fork():
            line.close()
            continue
        listening.close()
        return _forked(line, modules)


def _forked(line: socket.socket, modules: Mapping[str, object]) -> Callable[[], None]:
    """In a process that waits for one command: fork once more, and tell how the command ended."""
    head, files, _, _ = socket.recv_fds(line, _NUMBER.size, 3)
    asked = json.loads(_read_exactly(line, int(_NUMBER.unpack(head)[0])))
    command = os.fork()
    if command:
        for file in files:
            os.close(file)
        line.sendall(_NUMBER.pack(command))
        _, status = os.waitpid(command, 0)
        with contextlib.suppress(OSError):
            line.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    line.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv = [str(Path(sys.executable).parent / asked["command"]), *asked["words"]]
    run: Callable[[], None] = modules[asked["command"]].run  # type: ignore[attr-defined]
    return run


if __name__ == "__main__":
    try:
        perform = serve(sys.argv[1])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.exit(perform())
