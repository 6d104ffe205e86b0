"""An index of rows that a test writes down, without a log: for names and values that no network would be made for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.index.store import FORMAT, Commit, Index, batch_name, digest_of_roots
from spark.places import Place
from spark.tables import TABLES
from tdn.queries.model import indexed_text
from tdn.trust.certificates import TrustRoots

T0 = datetime(2027, 1, 1, tzinfo=UTC)
LATER = datetime(2028, 1, 1, tzinfo=UTC)
#: Whose index it is: nothing in it is signed.
ROOTS = cast("TrustRoots", SimpleNamespace(ders=()))


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def principal(entity: str, institution: str) -> dict[str, Any]:
    said = {"principal": f"entity:{entity}", "institution": institution, "thumbprint": "x", "key": "k", "expires": LATER, "revoked": False}
    return {"seq": 1, "judged_at": T0, **said}


def topic(number: int, text: str, **more: Any) -> dict[str, Any]:
    """An advertisement of a path, minted at T0."""
    return {
        **{"uuid": uuid(number), "seq": number, "judged_at": T0, "created": T0, "expires": LATER, "creator": "alice", "institution": "Physics"},
        **{"kind": "topic", "descriptor_kind": "path", "path": text, "synopsis": uuid(number)},
        **{"indexed": indexed_text({"kind": "path", "path": text}, uuid(number))},
        **more,
    }


def make(place: Place | Path | str, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> Index:
    """One batch of these rows, committed."""
    index = Index(place if isinstance(place, Place) else Place(place))
    tables = {name: pa.Table.from_pylist([dict(row) for row in given], schema=TABLES[name].schema) for name, given in rows.items()}
    last = max((row for table in tables.values() for row in table["seq"].to_pylist()), default=1)
    records = pa.Table.from_pylist([{"seq": seq, "judged_at": T0, "kind": "tick", "status": "accepted"} for seq in range(1, last + 1)], schema=TABLES["records"].schema)
    batch = batch_name(1, last)
    for name, table in {"records": records, **tables}.items():
        for folder, part in _divided(name, table):
            content = pa.BufferOutputStream()
            pq.write_table(part, content)
            index.place.write(content.getvalue(), "tables", name, f"batch={batch}", *folder, "part-1.parquet")
    counts = {name: tables[name].num_rows if name in tables else 0 for name in TABLES} | {"records": last}
    index.commit(Commit(FORMAT, "network", digest_of_roots(ROOTS), 1, last, "head", "2027-01-01T00:00:00Z", counts, index.written(batch)))
    return index


def _divided(name: str, table: pa.Table) -> Iterable[tuple[tuple[str, ...], pa.Table]]:
    column = TABLES[name].partition
    if column is None:
        yield (), table
        return
    for value in pc.unique(table[column]).to_pylist():
        yield (f"{column}={value}",), table.filter(pc.equal(table[column], value)).drop_columns([column])
