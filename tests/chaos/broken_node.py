"""A node with a defect that the checker must find: `python -m tests.chaos.broken_node DEFECT`, then what follows `tdn`.

The product has no hooks for this; what is broken is replaced here, before the same entry point runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tdn.cli.main import run
from tdn.local.network import Network
from tdn.node import changes
from tdn.node.intake import Intake
from tdn.protocol.names import Role
from tdn.rules import apply, hierarchy

#: How long a node that acknowledges too early takes to begin its work, as a busy one does. A kill falls into it sooner or later.
_BUSY_SECONDS = 0.3


def forget_what_was_decided() -> None:
    """No deduplication: every copy of a request is judged anew."""

    def nothing(*_: Any) -> None:
        return None

    apply.repeated = nothing  # type: ignore[assignment]
    setattr(changes, "repeated", nothing)  # noqa: B010  # it came there by import


def acknowledge_too_early() -> None:
    """The broker is told that a message is done with before anything was done."""
    finish = Intake._finish

    class Acknowledged:
        """The channel, as the rest of the work sees it: there is nothing left to acknowledge."""

        def __init__(self, channel: Any) -> None:
            self.closed = channel.closed

        def ack(self, tag: int) -> None: ...

        def nack(self, tag: int) -> None: ...

    async def finish_early(self: Intake, channel: Any, delivery: Any, work: Any) -> None:
        channel.ack(delivery.tag)
        if work == self._change:
            await asyncio.sleep(_BUSY_SECONDS)
        await finish(self, Acknowledged(channel), delivery, work)  # type: ignore[arg-type]

    Intake._finish = finish_early  # type: ignore[method-assign]


def register_without_limits() -> None:
    """A child is registered however many there are already, and however deep."""

    def room(*_: Any) -> None: ...

    hierarchy._require_room = room  # type: ignore[assignment]


DEFECTS: dict[str, Callable[[], None]] = {
    "no-deduplication": forget_what_was_decided,
    "early-acknowledgement": acknowledge_too_early,
    "no-limits": register_without_limits,
}


class BrokenNetwork(Network):
    """A network whose nodes have a defect."""

    defect = ""

    def _spawn(self, role: Role, name: str) -> None:
        if role is not Role.NODE:
            super()._spawn(role, name)
            return
        self.home.report(f"{role}-{name}", {})
        argv = [sys.executable, "-m", "tests.chaos.broken_node", self.defect, "--home", str(self.home), str(role), "--id", name]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        self._process(role, name).spawn(argv, env=env, cwd=self.home.folder)


if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    run()
