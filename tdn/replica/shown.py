"""What every view of the log shows of itself, node's or guard's."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from tdn.observe.metrics import Metrics
from tdn.replica.replica import Replica
from tdn.rules import principals

T = TypeVar("T")


def show_view(shown: Metrics, replica: Replica, store: Path, clock: Callable[[], datetime]) -> None:
    shown.gauge("tdn_sequence", "the last record applied", lambda: replica.position[0])
    shown.gauge("tdn_lag_records", "records known to be in the log and not applied yet", lambda: replica.lag)
    shown.gauge(
        "tdn_log_time_behind_seconds",
        "this process's clock less log time; a few seconds are usual, as ticks are that far apart",
        lambda: -seconds_until(principals.log_time(replica.reader), clock),
    )
    shown.gauge("tdn_store_bytes", "the store on disk, with what is not folded back into it yet", lambda: _size(store))


def seconds_until(moment: datetime, clock: Callable[[], datetime]) -> float:
    return (moment - clock()).total_seconds()


class Kept(Generic[T]):
    """What takes long to find out, asked again only after a while."""

    def __init__(self, seconds: float, find: Callable[[], T]) -> None:
        self._seconds = seconds
        self._find = find
        self._found: tuple[float, T] | None = None

    def get(self) -> T:
        if self._found is None or time.monotonic() - self._found[0] > self._seconds:
            self._found = (time.monotonic(), self._find())
        return self._found[1]


def _size(store: Path) -> int:
    parts = (store.with_name(store.name + ending) for ending in ("", "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
