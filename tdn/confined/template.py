"""The template process: it imports what the work needs, once, and forks a worker whenever the node asks for one.

It has one thread, so forking it is sound, and it does no work itself, so it is always there to fork and to kill. Measured with all five query
languages: a start of Python takes 0.45 s and 40 MB, a fork 3 ms and 6 MB. Every worker is its child; when it ends, none is left.

Run as `python -m tdn.confined.template FD PARENT WORK`. On FD come commands; each is a letter and the worker's number.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import traceback

from tdn.confined import frames, worker

#: `F` forks a worker, whose channel comes with the command; `K` kills one. The node chooses the number.
COMMAND = struct.Struct(">cQ")
FORK, KILL = b"F", b"K"

_TASKS = "/proc/self/task"


def resolve(work: str) -> worker.Factory:
    """The factory that `package.module:function` names."""
    module, colon, name = work.partition(":")
    if not colon:
        raise ValueError(f"{work!r} is not of the form package.module:function")
    found = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise TypeError(f"{work} cannot be called")
    factory: worker.Factory = found
    return factory


class Template:
    """Forks, kills and reaps."""

    def __init__(self, control: socket.socket, factory: worker.Factory) -> None:
        self._control = control
        self._factory = factory
        self._children: dict[int, int] = {}  # number -> pid, of those that are not reaped: a pid in here is nobody else's.
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def run(self) -> None:
        """Until the node hangs up; afterwards no child is left."""
        try:
            while True:
                ready, _, _ = select.select([self._control.fileno(), self._woken], [], [])
                self._reap()
                if self._control.fileno() in ready and not self._obey():
                    return
        finally:
            for pid in self._children.values():
                os.kill(pid, signal.SIGKILL)
            for pid in self._children.values():
                os.waitpid(pid, 0)

    def _obey(self) -> bool:
        # Each command was sent at once, so that a read of its length gets it whole; a descriptor comes with its own command only.
        data, descriptors, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
        if len(data) != COMMAND.size:
            return False
        letter, number = COMMAND.unpack(data)
        if letter == KILL:
            if number in self._children:
                os.kill(self._children[number], signal.SIGKILL)
        elif descriptors:
            self._fork(number, socket.socket(fileno=descriptors[0]))
        return True

    def _fork(self, number: int, channel: socket.socket) -> None:
        template = os.getpid()
        # When there can be no more processes, the node sees the channel close.
        with channel, contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                self._become_worker(channel, template)
            self._children[number] = pid

    def _become_worker(self, channel: socket.socket, template: int) -> None:
        """Never returns: above are the template's frames."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            worker.die_with_parent(template)
            self._control.close()
            os.close(self._woken)
            os.close(self._waker)
            worker.serve(channel, self._factory)
            status = 0
        except BrokenPipeError:
            status = 0  # The node hung up while we answered.
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        numbers = {pid: number for number, pid in self._children.items()}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in numbers:
                    del self._children[numbers[pid]]


def main(descriptor: int, parent: int, work: str) -> int:
    worker.leave_signals_to_the_node()
    worker.die_with_parent(parent)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    try:
        factory = resolve(work)
        if os.path.isdir(_TASKS) and len(os.listdir(_TASKS)) > 1:
            raise RuntimeError(f"{work}: importing it starts threads, which a fork would lose; start them in the factory")
    except BaseException as error:  # Whatever an import raises, the node is told.
        control.sendall(frames.encode({"failed": "".join(traceback.format_exception_only(error)).strip()[-2000:]}))
        return 1
    gc.collect()
    gc.freeze()  # Else the first collection in each worker would touch, and so copy, all that it shares with us.
    control.sendall(frames.encode({"ready": os.getpid()}))
    Template(control, factory).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
