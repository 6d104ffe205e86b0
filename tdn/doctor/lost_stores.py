"""How a store that is of no use comes back: made anew from the log, or, once the log was trimmed, from a snapshot that another node makes.

Which of the two, the stores of the home tell where one of them lacks the log's beginning. Where none does, the log may have been trimmed from another
machine: then both are named, and the caution that goes with them.
"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tdn.protocol.names import Role
from tdn.store import schema


def start_from_a_snapshot(who: str, *, made_by: str | None = None) -> str:
    """The two commands, for whoever is called as `node n2` or `guard g1`. `made_by`: a node of this home that can make it."""
    role, _, name = who.partition(" ")
    at = f" --node {made_by.partition(' ')[2]}" if made_by is not None else ""
    where = "" if made_by is not None else " where another node runs"
    return f"`tdn snapshot --to FILE{at}`{where}, then `tdn {role} --id {name} --snapshot FILE` or `tdn up --snapshot FILE`"


@dataclass(frozen=True, slots=True)
class Kept:
    """What the stores of a home have of the log."""

    #: One that lacks the log's beginning, and where it begins.
    trimmed: tuple[str, int] | None
    #: Nodes whose stores can be read and hold something.
    nodes: tuple[str, ...]

    @classmethod
    def look(cls, stores: Iterable[tuple[str, Path]]) -> Kept:
        trimmed: tuple[str, int] | None = None
        nodes = []
        for who, path in stores:
            begins, seq = _begins(path)
            if begins > 1:
                trimmed = trimmed or (who, begins)
            if seq > 0 and who.startswith(f"{Role.NODE} "):
                nodes.append(who)
        return cls(trimmed, tuple(nodes))

    def instead_of(self, who: str, path: Path, *, useless: Collection[str]) -> str:
        """What to do about a store that is of no use. `useless`: all that are."""
        files = f"{shlex.quote(str(path))}*"
        if self.trimmed is None:
            return (
                f"stop it, `rm {files}` and start it again: it is made anew from the log. Not so where the log was trimmed (`tdn log trim`, on whatever machine): "
                f"then move it away, and {start_from_a_snapshot(who)}; never remove the only store that such a network has"
            )
        makers = [node for node in self.nodes if node not in useless]
        if makers:
            return f"stop it, move {files} away, and {start_from_a_snapshot(who, made_by=makers[0])}: {self._why()}"
        return (
            f"stop it and keep {files}: {self._why()}, and no other node's store here could make a snapshot. "
            f"With a node elsewhere: move it away, and {start_from_a_snapshot(who)}; without one, `tdn restore` a backup"
        )

    def where_none_is(self, who: str) -> str:
        """What to do where there is no store yet."""
        if self.trimmed is None:
            return "it is made from the log when it starts; of a log that was trimmed, from a snapshot (`--snapshot FILE`)"
        makers = [node for node in self.nodes if node != who]
        return f"{start_from_a_snapshot(who, made_by=makers[0] if makers else None)}: {self._why()}"

    def _why(self) -> str:
        assert self.trimmed is not None  # noqa: S101  # both callers have looked
        who, begins = self.trimmed
        return f"{who} has the log from record {begins} on only, so it was trimmed, or {who} began with a snapshot: a replay may find no beginning"


def _begins(path: Path) -> tuple[int, int]:
    """From which record on a store has all, and up to which; 1 and 0 where it does not say."""
    if not schema.is_made(path):
        return 1, 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT first FROM kept").fetchone()[0]), int(db.execute("SELECT seq FROM position").fetchone()[0])
    except (sqlite3.Error, TypeError):
        return 1, 0
