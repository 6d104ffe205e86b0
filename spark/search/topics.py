"""Rows of the index as topics that queries can be asked of, made one at a time and only where one is needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark.index.rows import as_value
from tdn.protocol import descriptor as descriptors
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
        self._texts: dict[int, bytes] = {}
        self._all_texts: pa.Array | None = None
        self._maps: tuple[list[int], list[str], list[str], list[str]] | None = None

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

    def times(self, name: str) -> list[str]:
        """A column of times as advertisements write them: whole seconds of UTC."""
        key = f"{name} as text"
        found = self._columns.get(key)
        if found is None:
            seconds = self._batch.column(name).cast(pa.timestamp("s", tz="UTC"), safe=False)
            found = self._columns[key] = pc.strftime(seconds, "%Y-%m-%dT%H:%M:%SZ").to_pylist()
        return found

    def subject(self, row: int) -> Subject:
        found = self._subjects.get(row)
        if found is None:
            found = self._subjects[row] = Subject(
                self.column("uuid")[row],
                self.column("kind")[row],
                self.column("creator")[row],
                self.column("owner")[row],
                self.column("institution")[row],
                self.times("created")[row],
                self.times("expires")[row],
                self._descriptor(row),
                self.column("synopsis")[row],
            )
        return found

    def searchable(self, row: int) -> bytes:
        """What regular expressions see of a topic."""
        found = self._texts.get(row)
        if found is None:
            found = self._texts[row] = descriptors.searchable(self._descriptor(row)).encode()
        return found

    def all_searchable(self) -> pa.Array:
        """The same of all of them."""
        if self._all_texts is None:
            kinds = self.column("descriptor_kind")
            # Of these two it is what the column holds.
            others = [None if kind in ("path", "xml") else self.searchable(row) for row, kind in enumerate(kinds)]
            self._all_texts = pc.coalesce(self.arrow("path"), self.arrow("xml"), pa.array(others, pa.binary()).cast(pa.string()))
        return self._all_texts

    def _descriptor(self, row: int) -> dict[str, Any]:
        kind = self.column("descriptor_kind")[row]
        if kind == "text":
            return {"kind": kind, "text": self.column("text")[row], "keywords": self.column("keywords")[row]}
        if kind == "properties":
            offsets, names, texts, kinds = self._flat_maps()
            some = slice(offsets[row], offsets[row + 1])
            types = dict(zip(names[some], kinds[some], strict=True))
            values = {name: as_value(text, types[name]) for name, text in zip(names[some], texts[some], strict=True)}
            return {"kind": kind, "properties": values, "types": types}
        return {"kind": kind} if kind == "sealed" else {"kind": kind, kind: self.column(kind)[row]}

    def maps(self) -> tuple[Any, Any, Any, Any]:
        """The properties of all topics as flat arrays: where those of each begin, their names, values and types. A map of its own for each topic would take
        most of the time."""
        properties, types = self._batch.column("properties"), self._batch.column("types")
        return properties.offsets, properties.keys, properties.items, types.items

    def _flat_maps(self) -> tuple[list[int], list[str], list[str], list[str]]:
        if self._maps is None:
            offsets, names, texts, kinds = (part.to_pylist() for part in self.maps())
            self._maps = offsets, names, texts, kinds
        return self._maps
