"""The rows of topics, read by the task that asks queries of them.

Spark says which rows of which file stand and show, from a few narrow columns; the wide ones go from the file to Arrow here, and only those that a query
needs. Handed over by Spark, row by row, they took most of a search's time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.places import Place
from spark.search.topics import Rows, Topics
from spark.tables import ADVERTISEMENTS, TIME

#: A row of a file, and the owner and expiry that the topic has if they are no longer those of its advertisement.
CHOSEN = pa.schema([("file", pa.string()), ("row", pa.int64()), ("owner", pa.string()), ("expires", TIME)])
#: Topics are asked about together up to so many, or up to so many bytes of them: what each query costs for a batch is shared by more.
_MOST_ROWS = 32_768
_MOST_BYTES = 64 * 1024**2


def read_topics(batches: Iterator[pa.RecordBatch], index: str) -> Iterator[Topics]:
    """The topics of the rows that were chosen, some thousand at a time."""
    files = _Files(Place(index))
    together: list[_Part] = []
    rows = size = 0
    for batch in batches:
        for part in _parts(batch, files):
            together.append(part)
            rows += len(part.rows)
            size += part.bytes
            if rows >= _MOST_ROWS or size >= _MOST_BYTES:
                yield _topics(together)
                together, rows, size = [], 0, 0
    if together:
        yield _topics(together)


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a file."""

    file: pq.ParquetFile
    number: int
    size: int
    bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of one row group."""

    group: _Group
    rows: Rows
    owner: Any
    expires: Any

    @property
    def bytes(self) -> int:
        return self.group.bytes

    def column(self, name: str) -> Any:
        if name == "descriptor_kind":
            return pa.repeat(pa.scalar(self.group.kind), len(self.rows))
        if name == "owner":
            return pc.coalesce(self.owner, self._stored("creator"))
        if name == "expires":
            return pc.coalesce(self.expires, self._stored("expires"))
        return self._stored(name)

    def _stored(self, name: str) -> Any:
        column = self.group.file.read_row_group(self.group.number, columns=[name], use_threads=False)[name].combine_chunks()
        return column if len(self.rows) == self.group.size else column.take(pa.array(self.rows))


class _Files:
    """The file that is being read. Rows come in the order of files."""

    def __init__(self, index: Place) -> None:
        self._index = index
        self._name = ""
        self._groups: list[_Group] = []
        self._starts: Rows = np.zeros(1, np.int64)

    def groups(self, name: str) -> tuple[list[_Group], Rows]:
        """The row groups of a file, and with which of its rows each begins."""
        if name != self._name:
            file = pq.ParquetFile(self._index.open("tables", ADVERTISEMENTS.name, *name.split("/")))
            kind = name.split(f"{ADVERTISEMENTS.partition}=", 1)[1].split("/", 1)[0]
            described = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            self._groups = [_Group(file, number, group.num_rows, group.total_byte_size, kind) for number, group in enumerate(described)]
            self._starts = np.cumsum([0, *(group.size for group in self._groups)])
            self._name = name
        return self._groups, self._starts


def _parts(batch: pa.RecordBatch, files: _Files) -> Iterator[_Part]:
    names, rows = batch.column("file").dictionary_encode(), batch.column("row").to_numpy()
    codes, different = names.indices.to_numpy(), names.dictionary.to_pylist()
    for start, end in _runs(codes):
        groups, starts = files.groups(different[codes[start]])
        of_groups = np.searchsorted(starts, rows[start:end], side="right") - 1
        for begin, stop in _runs(of_groups):
            some = slice(start + begin, start + stop)
            number = int(of_groups[begin])
            owner, expires = (batch.column(name).slice(some.start, stop - begin) for name in ("owner", "expires"))
            yield _Part(groups[number], rows[some] - starts[number], owner, expires)


def _runs(values: Any) -> Iterator[tuple[int, int]]:
    """From where to where the same value stands."""
    if len(values):
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        yield from itertools.pairwise(edges)


def _topics(parts: list[_Part]) -> Topics:
    def read(name: str) -> Any:
        return parts[0].column(name) if len(parts) == 1 else pa.concat_arrays([part.column(name) for part in parts])

    size_bytes = sum(part.bytes * len(part.rows) // part.group.size for part in parts)
    return Topics(read, sum(len(part.rows) for part in parts), size_bytes)
