"""Spark and DuckDB over the committed tables of an index: the two that answer `standing`'s questions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark.index.store import Commit, Index
from spark.tables import TABLES, Table
from tdn.errors import NoRoom, TrustError
from tdn.protocol.access import Asker


class SparkTables:
    """The tables as temporary views of a session."""

    timestamp = "TIMESTAMP"

    def __init__(self, spark: Any, index: Index, commits: list[Commit]) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._spark = spark
        self._asking: list[str] = []
        self.commits = commits
        for name, table in TABLES.items():
            schema = from_arrow_schema(table.schema)
            if paths := index.paths(name, commits):
                # Columns that are folders begin below the table: one above, `institution=oslo`, is no column of ours.
                base = index.place.spark_name("tables", name)
                read = spark.read.schema(schema).option("basePath", base).parquet(*paths)
                # Where each row is, beside what it says: its file within the table, and the place in it.
                file = f"substring_index(_metadata.file_path, '/tables/{name}/', -1) AS file"
                frame = read.selectExpr(*table.schema.names, file, "_metadata.row_index AS row")
            else:
                frame = spark.createDataFrame([], schema).selectExpr("*", "'' AS file", "0L AS row")
            frame.createOrReplaceTempView(name)

    def frame(self, sql: str) -> Any:
        return self._spark.sql(sql)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self._spark.sql(sql).collect()]

    def asking(self, who: Asker) -> str:
        from pyspark.sql import functions as F

        names = F.array(*map(F.lit, sorted(who.names)))
        # As columns: a session puts values for `${…}` into SQL text, and may read its quotes and backslashes, and those of parameters, in several ways. By a
        # name of its own: a session may have several searches at once.
        view = f"asking_{secrets.token_hex(8)}"
        self._spark.range(1).select(names.alias("names"), F.lit(who.entity).alias("entity")).createOrReplaceTempView(view)
        self._asking.append(view)
        return view

    def close(self) -> None:
        """Nothing of who asked stays in the session."""
        while self._asking:
            # A session that is gone has none, and why it is gone is the error that is on its way.
            with suppress(Exception):
                self._spark.catalog.dropTempView(self._asking.pop())

    def overlap(self, one: str, other: str) -> str:
        return f"arrays_overlap({one}, {other})"


class DuckTables:
    """The tables as views of a DuckDB of this process. For an index on this machine."""

    timestamp = "TIMESTAMPTZ"

    def __init__(self, index: Index, commits: list[Commit]) -> None:
        import duckdb

        self.commits = commits
        self._place = index.place
        with ExitStack() as stack:
            folder = stack.enter_context(index.place.plain()) / "tables"
            self._db = stack.enter_context(closing(duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})))
            # Days and months begin by UTC, wherever this machine is. Of cursors too.
            self._db.execute("SET GLOBAL TimeZone = 'UTC'")
            self._open(index, folder)
            self._stack = stack.pop_all()

    def _open(self, index: Index, folder: Path) -> None:
        for name, table in TABLES.items():
            if files := index.files(name, self.commits):
                with self._reading():
                    self._db.execute(f"CREATE VIEW {name} AS {_all_of(table, folder / name, files)}")
            else:
                # A table: what is only registered is not there for other cursors.
                self._db.register("nothing", table.schema.empty_table())
                self._db.execute(f"CREATE TABLE {name} AS SELECT * FROM nothing")  # noqa: S608  # a name of ours

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """DuckDB's errors become ours. Its files were of the right lengths, and the questions are ours: what is left is that they hold something else."""
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise NoRoom(f"DuckDB has too little memory for this question: {_first_line(error)}; `tdn-spark search` needs less at a time") from error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise TrustError(
                f"the index in {self._place} is damaged: {_first_line(error)}; index the archive anew, into another folder"
            ) from error

    def batches(self, sql: str, values: list[Any], rows: int = 4000) -> Iterator[pa.RecordBatch]:
        """The rows of a question, as Arrow batches."""
        with self._reading():
            # By a cursor of its own: other questions are asked before its rows are all read.
            yield from self._db.cursor().sql(sql, params=values).to_arrow_reader(rows)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with self._reading():
            found = self._db.execute(sql, list(values))
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def asking(self, who: Asker) -> str:
        self._db.execute("CREATE OR REPLACE TABLE asking AS SELECT ?::VARCHAR[] AS names, ?::VARCHAR AS entity", [sorted(who.names), who.entity])
        return "asking"

    def overlap(self, one: str, other: str) -> str:
        return f"list_has_any({one}, {other})"


def _all_of(table: Table, folder: Path, files: Sequence[str]) -> str:
    """SQL for the rows of a table. What its own folders say is said here, of each file: DuckDB would make columns of folders above the index too, as of
    `institution=oslo`, and they would take the place of the table's."""
    divided: dict[str, list[str]] = {}
    for file in files:
        parts = dict(part.split("=", 1) for part in file.split("/")[:-1])
        divided.setdefault(parts.get(table.partition or "", ""), []).append(str(folder / file))
    selects = []
    for value, some in divided.items():
        columns = (f"{_quoted(value)} AS {column}" if column == table.partition else f'"{column}"' for column in table.schema.names)
        selects.append(f"SELECT {', '.join(columns)} FROM read_parquet([{', '.join(map(_quoted, some))}], hive_partitioning=false)")  # noqa: S608  # names of ours; values are quoted
    return " UNION ALL ".join(selects)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
