"""T18: who may see what does not hang on what an institution, or a folder, is called: by Spark in our sessions and in somebody's own, and by DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_index import LATER, ROOTS, T0, make, principal, topic, uuid

from spark.index.store import Index
from spark.search import standing
from spark.search.engines import DuckTables, SparkTables
from spark.search.standing import Engine
from tdn.protocol.access import EVERYONE, INSTITUTION, Asker, Lists

#: Institutions, whose names are free text. What somebody would mean by `${…}`, and what that becomes where it is taken for text of ours.
NAMES = [
    *("${env:HOME}", os.environ["HOME"], "O'Slo", "O\\'Slo", 'O"Slo', "\\", "\\u0041", "A", "', '*'), array('"),
    *("${spark.app.name}", "${", "$1", "{names}", "$names", ":names", "?"),
    *("O''Slo", "\\\\", "\\n", "\n", "'] OR TRUE --", "/* */", "`x`"),
    *("100%", "100_", "a%", "Zürich", "Zu\u0308rich", "北京", "😀", "\u2028", "\ufeff", " ", "", "*", "institution:A", "NULL", "x\x00y"),
]
#: A question takes Spark most of a second, so that it is asked for the first of them.
_IN_SPARK = 7
_MOMENT = standing.Moment(10_000, T0)


def lists() -> list[Lists]:
    named = [f"{INSTITUTION}{name}" for name in NAMES]
    return [*(Lists(None, (name,)) for name in named), *(Lists((name,)) for name in named), Lists((EVERYONE,), tuple(named[::3])), Lists(tuple(named[::2]), tuple(named[::3]))]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """A topic for each pair of lists, and an entity of each institution."""
    pairs = list(enumerate(lists(), start=1))
    return make(
        tmp_path_factory.mktemp("hostile") / "index",
        {
            "principals": [principal(f"e{number}", name) for number, name in enumerate(NAMES)],
            "advertisements": [topic(number, f"topic/{number}", access=f"A{number}") for number, _ in pairs],
            "access": [{"access": f"A{n}", "seq": n, "allow": pair.allow, "deny": pair.deny, "lists": "{}"} for n, pair in pairs],
            "signed": [{"uuid": uuid(number), "seq": number, "advertisement": "…", "opening": "{}"} for number, _ in pairs],
        },
    )


@contextmanager
def configured(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def require_the_definition(engine: Engine, names: Sequence[str]) -> None:
    """Each sees what the pure definition says, by the institution that the tables have."""
    for number, institution in enumerate(names):
        who = standing.asker(engine, f"e{number}", _MOMENT)
        assert who == Asker(f"e{number}", institution)
        seen = {row["uuid"] for row in engine.rows(standing.whole(engine, _MOMENT, who))}
        assert seen == {uuid(n) for n, pair in enumerate(lists(), start=1) if pair.admit(who, "alice")}, institution
    owner = {row["uuid"] for row in engine.rows(standing.whole(engine, _MOMENT, Asker("alice", NAMES[0])))}
    assert len(owner) == len(lists())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        # A session of somebody's own, that reads texts as Spark once did.
        {"spark.sql.variable.substitute": "true", "spark.sql.parser.escapedStringLiterals": "true", "spark.sql.ansi.doubleQuotedIdentifiers": "true"},
    ],
    ids=["ours", "another"],
)
def test_names_in_spark(spark: Any, index: Index, settings: dict[str, str]) -> None:
    with configured(spark, {"spark.sql.shuffle.partitions": "1", **settings}), closing(SparkTables(spark, index, index.commits())) as tables:
        require_the_definition(tables, NAMES[:_IN_SPARK])


def test_names_in_duckdb(index: Index) -> None:
    with closing(DuckTables(index, index.commits())) as tables:
        require_the_definition(tables, NAMES)


def test_what_is_marked_and_is_no_topic(tmp_path: Path) -> None:
    """A node's word alone says what is settling: it is no part of a question, whatever it is."""
    marks = ["x') OR TRUE --", "'", "${env:HOME}"]
    index = make(
        tmp_path / "index",
        {
            "advertisements": [topic(1, "a"), topic(2, "b", parent=uuid(1), seq=2), topic(3, "c")],
            "settling": [{"uuid": mark, "seq": 3, "present": True} for mark in [*marks, uuid(1)]],
            "changes": [{"uuid": uuid(1), "seq": 3, "judged_at": T0, "owner": "alice", "expires": LATER, "state": "withdrawn"}],
        },
    )
    with closing(DuckTables(index, index.require(ROOTS))) as tables:
        assert [row["uuid"] for row in tables.rows(standing.whole(tables, _MOMENT, None))] == [uuid(3)]
