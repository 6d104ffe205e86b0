"""The file: gzip, lines of JSON. A first line that says what it is, the state's text as it is, the records that it refers to, and a last line, without
which it is not whole.

    {"snapshot": {format, network, rules, seq, head, at, digest, before, offset, record, statements}}
    ["space","key",{…}]           each fact; SHA-256 over these lines is `digest`
    {"seq": 17, "raw": "…"}       each record that a fact refers to
    {"end": {"facts": n, "records": n}}
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tdn.errors import TdnError, TrustError, UsageError
from tdn.protocol import jsontext
from tdn.store.state_text import Place

FORMAT = 1
#: Longest line that is read. The largest fact is far below it; a file that is none must not fill the memory.
_LONGEST_LINE = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Title:
    """What a snapshot says of itself. To be believed only as far as its statements prove."""

    network: str
    rules: int
    place: Place
    #: Digest of the state there.
    digest: str
    #: The record there, the log's rolling hash before it, and its offset in the stream when the snapshot was made.
    record: bytes
    before: str
    offset: int
    #: Records of the log in which nodes stated this checkpoint.
    statements: tuple[bytes, ...]

    def as_object(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "network": self.network,
            "rules": self.rules,
            "seq": self.place.seq,
            "head": self.place.head,
            "at": self.place.at,
            "digest": self.digest,
            "before": self.before,
            "offset": self.offset,
            "record": base64.b64encode(self.record).decode(),
            "statements": [one.decode() for one in self.statements],
        }


def write(to: IO[bytes], title: Title, text: Path, records: Iterable[tuple[int, bytes]]) -> tuple[int, int]:
    """Write a snapshot; how many facts and records it has. The text is taken over as it was compressed."""
    count = 0
    to.write(_packed(jsontext.canonical({"snapshot": title.as_object()}) + b"\n"))
    with open(text, "rb") as packed:
        shutil.copyfileobj(packed, to, 1024**2)
    with gzip.open(text, "rb") as lines:
        facts = sum(piece.count(b"\n") for piece in iter(lambda: lines.read(1024**2), b""))
    with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=to, mtime=0) as rest:
        for seq, raw in records:
            count += 1
            rest.write(jsontext.canonical({"seq": seq, "raw": raw.decode()}) + b"\n")
        rest.write(jsontext.canonical({"end": {"facts": facts, "records": count}}) + b"\n")
    return facts, count


class Contents:
    """A snapshot that is read once, from its first line to its last."""

    def __init__(self, lines: gzip.GzipFile, name: str) -> None:
        self._lines = lines
        self._name = name
        self.facts = self.records = 0
        self._next = b""
        self.title = self._read_title()

    def fact_lines(self) -> Iterator[bytes]:
        while (line := self._line()).startswith(b"["):
            self.facts += 1
            yield line
        self._next = line

    def record_lines(self) -> Iterator[tuple[int, bytes]]:
        """Records, after the facts; then the last line is looked for."""
        while (value := json.loads(self._line())).keys() == {"seq", "raw"}:
            self.records += 1
            yield int(value["seq"]), str(value["raw"]).encode()
        if value != {"end": {"facts": self.facts, "records": self.records}} or self._lines.read(1):
            raise TrustError(f"{self._name} is not a whole snapshot: it does not end as it should")

    def _line(self) -> bytes:
        line, self._next = self._next or self._lines.readline(_LONGEST_LINE), b""
        if not line.endswith(b"\n"):
            raise TrustError(f"{self._name} is not a whole snapshot: it ends in the middle")
        return line

    def _read_title(self) -> Title:
        value: Mapping[str, Any] = json.loads(self._line())["snapshot"]
        if value["format"] != FORMAT:
            raise UsageError(f"{self._name} is a snapshot of format {value['format']}; this build reads {FORMAT}")
        return Title(
            str(value["network"]),
            int(value["rules"]),
            Place(int(value["seq"]), str(value["head"]), str(value["at"])),
            str(value["digest"]),
            base64.b64decode(value["record"], validate=True),
            str(value["before"]),
            int(value["offset"]),
            tuple(str(one).encode() for one in value["statements"]),
        )


@contextmanager
def read(path: Path) -> Iterator[Contents]:
    """A snapshot to be read. Whatever its bytes are, what is wrong with them is a TrustError."""
    try:
        with gzip.GzipFile(path, "rb") as lines:
            yield Contents(lines, path.name)
    except TdnError:
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (EOFError, OSError, zlib.error, binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrustError(f"{path.name} is not a whole snapshot: {str(error)[:200] or type(error).__name__}") from error


def _packed(line: bytes) -> bytes:
    return gzip.compress(line, compresslevel=1, mtime=0)
