"""One segment: a Parquet file with records of the log in their order, the signed bytes and what they did (docs/archive.md has the columns)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tdn.errors import TrustError
from tdn.protocol.times import parse_time

#: The columns. A reader that meets others refuses: `FORMAT` changes with them.
SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("head", pa.string(), nullable=False),
        pa.field("raw", pa.binary(), nullable=False),
        pa.field("effects", pa.string(), nullable=False),
    ]
)
FORMAT = 1

#: Most records of a segment, and bytes of them: one is read and verified by one task, and written from memory.
MOST_RECORDS = 16_384
MOST_BYTES = 64 * 1024**2
#: Records in a row group. A reader that wants one record reads a few megabytes.
_ROW_GROUP = 4_096
_DIGEST_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class ArchivedRecord:
    """A record of the log: its place, when it was judged, how, its bytes, and the writes that archives keep, as one JSON text."""

    seq: int
    offset: int
    #: None until the log has begun.
    at: str | None
    kind: str
    status: str
    head: str
    raw: bytes
    effects: str

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> ArchivedRecord:
        """From a row of a store's records, columns in this order (`COLUMNS`)."""
        seq, offset, at, kind, status, head, raw, effects = row
        return cls(seq, offset, at, kind, status, head, bytes(raw), effects)


COLUMNS = "seq, offset, at, kind, status, head, raw, effects"


def write(path: Path, records: Sequence[ArchivedRecord]) -> None:
    """A new file. Whoever gives it its name does so afterwards."""
    columns = [
        pa.array([one.seq for one in records], pa.int64()),
        pa.array([one.offset for one in records], pa.int64()),
        pa.array([parse_time(one.at) if one.at is not None else None for one in records], SCHEMA.field("at").type),
        pa.array([one.kind for one in records], pa.string()),
        pa.array([one.status for one in records], pa.string()),
        pa.array([one.head for one in records], pa.string()),
        pa.array([one.raw for one in records], pa.binary()),
        pa.array([one.effects for one in records], pa.string()),
    ]
    # Level 1: signatures do not compress, and the rest does as well as at any level.
    pq.write_table(
        pa.Table.from_arrays(columns, schema=SCHEMA), path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP
    )


def read(path: Path) -> Iterator[ArchivedRecord]:
    """The records of a segment, or TrustError of a file that is none."""
    try:
        with pq.ParquetFile(path) as file:
            require_columns(file.schema_arrow, path.name)
            for batch in file.iter_batches(batch_size=_ROW_GROUP):
                for row in batch.to_pylist():
                    at: datetime | None = row.pop("at")
                    text = None if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                    yield ArchivedRecord(at=text, **row)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # Also what Python cannot take: text that is no UTF-8, moments without a year.
        raise TrustError(f"segment {path.name} cannot be read: {str(error).splitlines()[0][:200]}") from error


def require_columns(found: pa.Schema, name: str) -> None:
    if found.names != SCHEMA.names or found.types != SCHEMA.types:
        raise TrustError(f"segment {name} has other columns than a segment of format {FORMAT}")


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_DIGEST_BYTES):
            total.update(piece)
    return total.hexdigest()
