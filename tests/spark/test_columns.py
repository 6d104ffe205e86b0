"""SQL by columns: for every pair of TRUE, FALSE and NULL, what joins two terms gives what the definition of the language gives. No Spark is needed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest

from spark.search import sql_columns
from spark.search.topics import Topics
from tdn.queries.sql import compile_sql

#: `a = 1` and `b = 1` are TRUE of 1, FALSE of 2, NULL where there is none.
ROWS = list(itertools.product((1, 2, None), repeat=2))


def topics() -> Topics:
    named = [[(name, value) for name, value in zip("ab", row, strict=True) if value is not None] for row in ROWS]
    columns = {
        "properties": pa.array([[(name, str(value)) for name, value in row] for row in named], pa.map_(pa.string(), pa.string())),
        "types": pa.array([[(name, "integer") for name, _ in row] for row in named], pa.map_(pa.string(), pa.string())),
        **{name: pa.array(["2027-01-31T12:00:00"] * len(ROWS)).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")) for name in ("created", "expires")},
        "descriptor_kind": pa.array(["properties"] * len(ROWS)),
        **{name: pa.array(["x"] * len(ROWS)) for name in ("uuid", "kind", "creator", "owner", "institution", "synopsis")},
    }
    return Topics(columns.__getitem__, len(ROWS))


@pytest.mark.parametrize(
    "predicate",
    [
        *("a = 1 AND b = 1", "a = 1 OR b = 1", "NOT a = 1", "NOT (NOT a = 1)", "NOT (a = 1 AND b = 1)", "NOT (a = 1 OR b = 1)"),
        *("(a = 1) IS TRUE", "(a = 1) IS FALSE", "NOT ((a = 1 AND b = 1) IS TRUE)", "NOT ((a = 1 OR b = 1) IS FALSE)"),
        *("a IS NULL OR b = 1", "a = 1 AND 1 < 2", "a = 1 OR NULL", "a + 1 = 2 AND b BETWEEN 1 AND 5", "a IN (1, NULL) OR NOT b IN (1, NULL)"),
    ],
)
def test_every_pair_of_truths(predicate: str) -> None:
    query, some = compile_sql(predicate), topics()
    by_columns = sql_columns.asks(query)
    assert by_columns is not None
    expected = [row for row in range(len(ROWS)) if query.matches(some.subject(row))]
    assert by_columns(some, np.arange(len(ROWS)), math.inf).tolist() == expected
    # Of one topic at a time there are fewer than there are values, which goes another way.
    assert [row for row in range(len(ROWS)) if len(by_columns(some, np.array([row]), math.inf))] == expected
