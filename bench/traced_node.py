"""A node that writes down when it takes, appends, reads, applies and tells a change; otherwise a node like any other.

`TracedNetwork` starts its nodes so. A mark is one short write to a file, some microseconds; `perf_counter` is one clock for all processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from tdn.bus.log import Appender
from tdn.local.network import Network
from tdn.node.intake import Intake
from tdn.node.telling import Telling
from tdn.protocol.names import Role
from tdn.replica.replica import Replica
from tdn.store.view import View

#: What is marked, in the order in which it happens to a change: a method, and whether its beginning or its end counts.
_MARKED: tuple[tuple[str, type, str, bool], ...] = (
    ("taken", Intake, "_change", True),
    ("appended", Appender, "append", True),
    ("read", Replica, "_apply", True),
    ("applied", View, "apply_all", False),
    ("told", Telling, "_tell", False),
)
STEPS = tuple(name for name, *_ in _MARKED)


class TracedNetwork(Network):
    """A network whose nodes write down what they do."""

    def _spawn(self, role: Role, name: str) -> None:
        if role is not Role.NODE:
            super()._spawn(role, name)
            return
        self.home.report(f"{role}-{name}", {})
        argv = [sys.executable, "-m", "bench.traced_node", str(self._trace(name)), "--home", str(self.home), "node", "--id", name]
        self.process(role, name).spawn(argv, env=dict(os.environ), cwd=self.home.folder)

    def _trace(self, name: str) -> Path:
        return self.home.run / f"{name}.trace"

    def marks(self) -> list[list[Mark]]:
        """What each node has written down, in order."""
        return [_read(self._trace(name)) for name in self.home.ids(Role.NODE)]


@dataclass(frozen=True, slots=True)
class Mark:
    step: str
    at: float


def _read(path: Path) -> list[Mark]:
    lines = (line.split(" ") for line in path.read_text("ascii").splitlines())
    return [Mark(step, float(at)) for step, at in lines]


def times_of(marks: list[list[Mark]], start: float, end: float) -> dict[str, float] | None:
    """When each step was reached by a change that was sent and told in this time, at the node that took it; nothing where one is missing."""
    for of_node in marks:
        during = [mark for mark in of_node if start <= mark.at <= end]
        if all(any(mark.step == step for mark in during) for step in ("taken", "told")):
            break
    else:
        return None
    taken = next(mark.at for mark in during if mark.step == "taken")
    found = {
        "taken": taken,
        "appended": next((mark.at for mark in during if mark.step == "appended" and mark.at >= taken), taken),
    }
    # Other records may be read meanwhile: what counts is what came just before the watcher was told.
    latest = end
    for step in ("told", "applied", "read"):
        latest = found[step] = next((mark.at for mark in reversed(during) if mark.step == step and mark.at <= latest), start)
    return found


def _mark(file: int, step: str, method: Callable[..., Any], at_start: bool) -> Callable[..., Any]:
    def note() -> None:
        os.write(file, f"{step} {time.perf_counter():.6f}\n".encode())

    @wraps(method)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if at_start:
            note()
            return method(*args, **kwargs)
        try:
            return method(*args, **kwargs)
        finally:
            note()

    return marked


def main() -> None:
    file = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step, kind, name, at_start in _MARKED:
        setattr(kind, name, _mark(file, step, getattr(kind, name), at_start))
    from tdn.cli.main import run

    run()


if __name__ == "__main__":
    main()
