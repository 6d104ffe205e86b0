"""A state as text: one line for each fact, in order. Its SHA-256 is the state's digest, so whoever has the text can tell whose state it is.

It is written from a transaction of its own, which sees the state as it was when it was opened, whatever is committed meanwhile; piece by piece, so
that neither memory nor whoever serves beside it is held up.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tdn.protocol import jsontext

#: Facts read at a time: a millisecond or two of work.
_AT_ONCE = 500
#: Level 1: three quarters of what more would save, in a fifth of the time.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the log, as every node that has applied it knows it."""

    seq: int
    head: str
    #: When that record was judged.
    at: str


class Moment:
    """The state that is committed now, for as long as this is open. Opened by one thread, it may be read and closed by another."""

    def __init__(self, store: Path) -> None:
        self._db = sqlite3.connect(f"file:{store}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA busy_timeout=10000")
            self._db.execute("BEGIN")
            # The first read fixes what is seen.
            row = self._db.execute("SELECT p.seq, p.head, r.at FROM position p JOIN records r ON r.seq = p.seq").fetchone()
            self.place = Place(*row)
        except BaseException:
            self._db.close()
            raise

    def pieces(self) -> Iterator[bytes]:
        """The text, some facts at a time."""
        rows = self._db.execute("SELECT space, key, value FROM facts ORDER BY space, key")
        while portion := rows.fetchmany(_AT_ONCE):
            yield b"".join(line(space, key, value) for space, key, value in portion)

    def write(self, to: Path, *, wait: Callable[[float], None] = time.sleep) -> str:
        """Write the text, compressed, into a file that appears when it is whole; its digest. Half of the time is left to others."""
        total = hashlib.sha256()
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = to.with_name(f"{to.name}.unfinished")
        try:
            with private(unfinished) as file:
                with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed:
                    begun = time.monotonic()
                    for piece in self.pieces():
                        total.update(piece)
                        packed.write(piece)
                        wait(time.monotonic() - begun)
                        begun = time.monotonic()
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(to)
        finally:
            unfinished.unlink(missing_ok=True)
        return total.hexdigest()

    def close(self) -> None:
        self._db.close()


def line(space: str, key: str, value: str) -> bytes:
    """The line of a fact whose value is given as canonical JSON: what `rules.state.digest_of` takes."""
    return jsontext.canonical([space, key])[:-1] + b"," + value.encode() + b"]\n"


def private(path: Path) -> IO[bytes]:
    """A new file that only its owner can read: the state shows what advertisements hide."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
