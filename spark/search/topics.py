"""Rows of the index as topics that queries can be asked of, made one at a time and only where one is needed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from spark.index.rows import as_value
from tdn.queries.model import Subject

#: What a search reads of each topic that stands and shows: `advertisements`, with the present owner and expiry.
COLUMNS = (
    *("uuid", "kind", "creator", "owner", "institution", "created", "expires", "descriptor_kind", "path", "text", "keywords"),
    *("properties", "types", "xml", "synopsis", "indexed"),
)


class Topics:
    """One batch of rows."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[str, list[Any]] = {}
        self._subjects: dict[int, Subject] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def column(self, name: str) -> list[Any]:
        """A column as Python values."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._batch.column(name).to_pylist()
        return found

    def arrow(self, name: str) -> Any:
        return self._batch.column(name)

    def subject(self, row: int) -> Subject:
        found = self._subjects.get(row)
        if found is None:
            found = self._subjects[row] = Subject(
                self.column("uuid")[row],
                self.column("kind")[row],
                self.column("creator")[row],
                self.column("owner")[row],
                self.column("institution")[row],
                text_of(self.column("created")[row]),
                text_of(self.column("expires")[row]),
                self._descriptor(row),
                self.column("synopsis")[row],
            )
        return found

    def _descriptor(self, row: int) -> dict[str, Any]:
        kind = self.column("descriptor_kind")[row]
        if kind == "text":
            return {"kind": kind, "text": self.column("text")[row], "keywords": self.column("keywords")[row]}
        if kind == "properties":
            # Of one row: as Python values all maps of a batch would take most of the time.
            types = dict(self._batch.column("types")[row].as_py())
            values = dict(self._batch.column("properties")[row].as_py())
            return {"kind": kind, "properties": {name: as_value(text, types[name]) for name, text in values.items()}, "types": types}
        return {"kind": kind} if kind == "sealed" else {"kind": kind, kind: self.column(kind)[row]}


def text_of(moment: datetime) -> str:
    """A time as advertisements write it: whole seconds of UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
