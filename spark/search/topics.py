"""Rows of the index as topics that queries can be asked of. A column is read when the first query needs it, a topic is made only where one is needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.index.rows import as_value
from tdn.errors import TrustError
from tdn.protocol import descriptor as descriptors
from tdn.queries.model import Subject, fold
from tdn.queries.sql_terms import Column

#: What a search reads of each topic that stands and shows: `advertisements`, with the present owner and expiry.
COLUMNS = (
    *("uuid", "kind", "creator", "owner", "institution", "created", "expires", "descriptor_kind", "path", "text", "keywords"),
    *("properties", "types", "xml", "synopsis", "indexed"),
)

#: What Arrow is given of texts at once.
_SLICE_BYTES = 1024**2

#: Places of rows in a batch.
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Coded:
    """A column by its different values: a property's as texts, each with its type."""

    values: list[str]
    kinds: list[str]
    #: Of each row the place of its value; -1: it has none.
    codes: Rows

    @cached_property
    def parsed(self) -> list[Any]:
        """The values as descriptors have them."""
        return list(map(as_value, self.values, self.kinds))


class Topics:
    """Some rows."""

    def __init__(self, read: Callable[[str], Any], size: int, size_bytes: int = 0) -> None:
        """`read` gives a column of COLUMNS as an array of so many rows, which are about so many bytes."""
        self._read = read
        self._size = size
        self.bytes = size_bytes
        self._arrays: dict[str, Any] = {}
        self._columns: dict[str, list[Any]] = {}
        self._coded: dict[Column, Coded] = {}
        self._subjects: dict[int, Subject] = {}
        self._texts: dict[int, bytes] = {}
        self._folded: dict[int, str] = {}

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Topics:
        return cls(batch.column, batch.num_rows, batch.nbytes)

    def __len__(self) -> int:
        return self._size

    def arrow(self, name: str) -> Any:
        found = self._arrays.get(name)
        if found is None:
            try:
                found = self._arrays[name] = self._read(name)
            except (pa.ArrowInvalid, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                # Of a file whose length was right: it holds something else. Whichever query needs it first, it is not that query's fault.
                raise TrustError(f"a file of the index is damaged; index the archive anew, into another folder: {str(error).splitlines()[0][:200]}") from None
        return found

    def column(self, name: str) -> list[Any]:
        """A column as Python values."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self.arrow(name).to_pylist()
        return found

    def times(self, name: str) -> list[str]:
        """A column of times as advertisements write them."""
        key = f"{name} as text"
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = self._written(name).to_pylist()
        return found

    def _written(self, name: str) -> Any:
        seconds = self.arrow(name).cast(pa.timestamp("s", tz="UTC"), safe=False)
        return pc.strftime(seconds, "%Y-%m-%dT%H:%M:%SZ")

    def are(self, kind: str) -> npt.NDArray[np.bool_]:
        """Which rows have descriptors of a kind."""
        return np.asarray(pc.equal(self.arrow("descriptor_kind"), kind).to_numpy(zero_copy_only=False))

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

    def folded(self, row: int) -> str:
        """What plain strings are looked for in."""
        found = self._folded.get(row)
        if found is None:
            found = self._folded[row] = fold(f"{self.searchable(row).decode()}\n{self.column('synopsis')[row]}")
        return found

    @cached_property
    def all_searchable(self) -> Any:
        """What regular expressions see, of all of them."""
        kinds = self.column("descriptor_kind")
        # Of these two it is what the column holds.
        others = [None if kind in ("path", "xml") else self.searchable(row) for row, kind in enumerate(kinds)]
        return pc.coalesce(self.arrow("path"), self.arrow("xml"), pa.array(others, pa.binary()).cast(pa.string()))

    @cached_property
    def slices(self) -> list[Any]:
        """The same in slices of a megabyte: Arrow cannot be stopped within one."""
        texts = self.all_searchable
        ends = np.cumsum(pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False))
        edges = np.searchsorted(ends, np.arange(_SLICE_BYTES, int(ends[-1]), _SLICE_BYTES), side="right")
        bounds = sorted({0, *edges.tolist(), len(texts)})
        return [texts.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]

    def coded(self, column: Column) -> Coded:
        """A property or field by its different values."""
        found = self._coded.get(column)
        if found is None:
            found = self._coded[column] = self._property(column.name) if column.is_property else self._field(column.name)
        return found

    def _field(self, name: str) -> Coded:
        array = self._written(name) if name in ("created", "expires") else self.arrow(name)
        encoded = array.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        values: list[str] = encoded.dictionary.to_pylist()
        return Coded(values, [""] * len(values), codes)

    def _property(self, name: str) -> Coded:
        flat = self._flat
        codes = np.full(self._size, -1, np.int64)
        places = flat.places_of(name)
        texts = flat.texts.take(pa.array(places)).dictionary_encode()
        kinds = flat.kinds.take(pa.array(places)).dictionary_encode()
        count = max(1, len(kinds.dictionary))
        both = texts.indices.to_numpy().astype(np.int64) * count + kinds.indices.to_numpy()
        pairs, inverse = np.unique(both, return_inverse=True)
        codes[flat.rows[places]] = inverse
        different = texts.dictionary.to_pylist(), kinds.dictionary.to_pylist()
        pair_list = pairs.tolist()
        return Coded([different[0][pair // count] for pair in pair_list], [different[1][pair % count] for pair in pair_list], codes)

    def _descriptor(self, row: int) -> dict[str, Any]:
        kind = self.column("descriptor_kind")[row]
        if kind == "text":
            return {"kind": kind, "text": self.column("text")[row], "keywords": self.column("keywords")[row]}
        if kind == "properties":
            offsets, names, texts, kinds = self._flat.lists
            some = slice(offsets[row], offsets[row + 1])
            types = dict(zip(names[some], kinds[some], strict=True))
            values = {name: as_value(text, types[name]) for name, text in zip(names[some], texts[some], strict=True)}
            return {"kind": kind, "properties": values, "types": types}
        return {"kind": kind} if kind == "sealed" else {"kind": kind, kind: self.column(kind)[row]}

    @cached_property
    def _flat(self) -> _Flat:
        return _Flat(self.arrow("properties"), self.arrow("types"))


class _Flat:
    """The properties of all topics as flat arrays. A map of its own for each topic would take most of the time."""

    def __init__(self, properties: Any, types: Any) -> None:
        # A batch may be a part of its arrays.
        offsets = properties.offsets.to_numpy().astype(np.int64)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        self._offsets = offsets - first
        self.names = properties.keys.slice(first, count)
        self.texts = properties.items.slice(first, count)
        #: Of each the type: `types` is written in the same order.
        self.kinds = types.items.slice(types.offsets[0].as_py(), count)
        #: Of each the row that it belongs to.
        self.rows = np.repeat(np.arange(len(offsets) - 1), np.diff(self._offsets))

    def places_of(self, name: str) -> Rows:
        """Where the values of a property stand."""
        names, order, bounds = self._by_name
        code = names.get(name)
        return order[bounds[code] : bounds[code + 1]] if code is not None else order[:0]

    @cached_property
    def _by_name(self) -> tuple[dict[str, int], Rows, Rows]:
        encoded = self.names.dictionary_encode()
        names = {name: code for code, name in enumerate(encoded.dictionary.to_pylist())}
        codes = encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        return names, order, np.searchsorted(codes[order], np.arange(len(names) + 1))

    @cached_property
    def lists(self) -> tuple[list[int], list[str], list[str], list[str]]:
        """Where the properties of each topic begin, their names, values and types."""
        return self._offsets.tolist(), self.names.to_pylist(), self.texts.to_pylist(), self.kinds.to_pylist()
