"""Lines of a node's or guard's log: for people, or one JSON object each; bounded, and safe to look at, whoever wrote the text.

A line that speaks of a request names it (`request`), and so does every line that is written while a message is worked on: the id that the client chose
leads through the logs of node and guard, and the record in the log carries it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from tdn.cli.output import printable
from tdn.local import processes
from tdn.observe import trail
from tdn.protocol.rates import Rate

#: What a line may say beside its message, in this order.
FIELDS = ("request", "principal", "kind", "seq", "outcome", "reason", "milliseconds")


class PlainLines(logging.Formatter):
    """One line per message, whatever a sender put into it; a traceback of ours keeps its lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        told = "".join(f" {name}={value}" for name, value in fields_of(record).items())
        record.message = printable(record.message + told)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One object per line. Characters that do not print are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        line = json.dumps(told, ensure_ascii=False, default=str)
        return line if line.isprintable() else json.dumps(told, default=str)


class Bounded(logging.Filter):
    """So many lines a second and no more: a log that others can write to must not fill the disk. Lines of requests are counted apart: a busy hour must not
    push out the one line that matters."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = Rate(burst=500, per_second=20.0, clock=time.monotonic)
        self._left_out = {"requests": 0, "others": 0}

    def filter(self, record: logging.LogRecord) -> bool:
        sort = "requests" if record.name == "tdn.requests" else "others"
        if not self._rate.take(sort):
            self._left_out[sort] += 1
            return False
        if self._left_out[sort]:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out[sort]} lines before this were left out)", ()
            self._left_out[sort] = 0
        return True


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says beside its message: its own fields, or those of the message in work."""
    told = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
    if "request" not in told and (now := trail.current()) is not None and now.request is not None:
        told |= {"request": now.request, "principal": now.principal, "kind": now.kind}
    return told


class OwnFile(logging.StreamHandler[TextIO]):
    """Error output that goes to a file of the home, where `tdn up` has led it: when that is full, another one is begun. Nobody else would: whoever started
    this process has long ended."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        # One that could not be put aside grows on, and it is tried again with the next line.
        with contextlib.suppress(OSError):
            if os.fstat(2).st_size >= processes.MOST_LOG_BYTES and processes.is_output(self._path):
                processes.begin_another_log(self._path)


def configure(*, verbose: bool, log_format: str, own: Path) -> None:
    """Log to error output: in the foreground a terminal's, journal's or container's, which bounds it; or the file `own` of the home."""
    handler = OwnFile(own) if processes.is_output(own) else logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else PlainLines())
    handler.addFilter(Bounded())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
