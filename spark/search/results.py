"""What a task found: written by it, as one file of (query, topic) rows that appears when it is whole, and told in one row of counts.

A task that is done twice, because its worker was thought dead, writes another file; those that count are the ones that are told of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.places import Place
from spark.search.bulk import Found
from spark.search.topics import Rows, Topics

MATCHES = pa.schema([("query", pa.string()), ("uuid", pa.string())])
#: Of one task: its file, if it found anything; how many topics it looked at; of each query the matches; which queries were given up, and why.
TOLD = pa.schema(
    [
        ("file", pa.string()),
        ("topics", pa.int64()),
        ("numbers", pa.list_(pa.int32())),
        ("matches", pa.list_(pa.int64())),
        ("given_up", pa.list_(pa.int32())),
        ("reasons", pa.list_(pa.string())),
    ]
)
SUFFIXES = {"jsonl": "json", "parquet": "parquet"}
#: Matches that are kept before they are written, ordered by query.
_AT_ONCE = 500_000


class Part:
    """The results of one task. Use it as a context, and ask what to tell afterwards."""

    def __init__(self, folder: Place, name: str, form: str, ids: Sequence[str]) -> None:
        self._folder = folder
        self._name = f"{name}.{SUFFIXES[form]}"
        self._form = form
        self._ids = pa.array(ids, pa.string())
        self._counts = np.zeros(len(ids), np.int64)
        self._given_up: dict[int, str] = {}
        self._topics = 0
        self._kept: list[tuple[Any, Any]] = []
        self._kept_rows = 0
        self._stack = ExitStack()
        self._write: Any = None

    def __enter__(self) -> Part:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._stack.__exit__(kind, error, trace)

    def add(self, found: Iterable[Found], topics: Topics) -> None:
        """What queries found among some topics."""
        self._topics += len(topics)
        numbers: list[int] = []
        rows: list[Rows] = []
        size = 0
        for number, told in found:
            if isinstance(told, str):
                self._given_up[number] = told
                continue
            self._counts[number] += len(told)
            numbers.append(number)
            rows.append(told)
            size += len(told)
            # A few topics may be found by thousands of queries, so what they found is not all kept until the last of them.
            if size >= _AT_ONCE:
                self._keep(numbers, rows, topics)
                numbers, rows, size = [], [], 0
        if rows:
            self._keep(numbers, rows, topics)

    def _keep(self, numbers: list[int], rows: list[Rows], topics: Topics) -> None:
        places = np.concatenate(rows)
        self._kept.append((np.repeat(numbers, [len(one) for one in rows]), topics.arrow("uuid").take(pa.array(places))))
        self._kept_rows += len(places)
        if self._kept_rows >= _AT_ONCE:
            self._flush()

    def told(self) -> pa.RecordBatch:
        some = np.flatnonzero(self._counts)
        said = {
            "file": self._name if len(some) else None,
            "topics": self._topics,
            "numbers": some.tolist(),
            "matches": self._counts[some].tolist(),
            "given_up": list(self._given_up),
            "reasons": list(self._given_up.values()),
        }
        return pa.RecordBatch.from_pylist([said], schema=TOLD)

    def _flush(self) -> None:
        if not self._kept:
            return
        numbers = np.concatenate([kept for kept, _ in self._kept])
        uuids = pa.concat_arrays([kept for _, kept in self._kept]).cast(pa.string())
        self._kept, self._kept_rows = [], 0
        order = pa.array(np.argsort(numbers, kind="stable"))
        if self._write is None:
            self._write = (self._jsonl if self._form == "jsonl" else self._parquet)(self._stack.enter_context(self._folder.writing(self._name)))
        self._write(pa.array(numbers).take(order), uuids.take(order))

    def _jsonl(self, stream: Any) -> Any:
        starts = pa.array([f'{{"query":{json.dumps(name, ensure_ascii=False)},"uuid":"' for name in self._ids.to_pylist()], pa.string())

        def write(numbers: Any, uuids: Any) -> None:
            # Lines one after the other are what Arrow keeps of an array of them.
            lines = pc.binary_join_element_wise(starts.take(numbers), uuids, '"}\n', "")
            stream.write(lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py()))

        return write

    def _parquet(self, stream: Any) -> Any:
        writer = self._stack.enter_context(pq.ParquetWriter(stream, MATCHES, compression="zstd", use_dictionary=["query"]))
        return lambda numbers, uuids: writer.write_table(pa.Table.from_arrays([self._ids.take(numbers), uuids], schema=MATCHES))
