"""T38: a query that takes longer than it may is given up, whatever its language, and the others get their answers. No Spark is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark.search import budget, bulk
from spark.search import topics as topics_module
from spark.search.asked import Asked
from spark.search.bulk import Bulk
from spark.search.confined import DOCUMENTS, OVERRUN, Confined
from spark.search.topics import COLUMNS, Topics
from tdn.confined.frames import WorkFailed
from tdn.confined.processes import Cut, Done, Ending, Raised, StartFailed
from tdn.errors import TrustError
from tdn.queries.model import indexed_text
from tdn.queries.regex import compile_regex

#: Allowed, and without a clue: 1 to 2 s for a megabyte of prose, and ten times that through Arrow.
HOSTILE = "[[:print:]]*e[[:print:]]{250}Ω"
#: Smaller, so that it is left to Arrow: half a second for a megabyte.
SMALLER = "[[:print:]]*e[[:print:]]{60}Ω"
_DRAWS = Random(1)
_WORDS = ["".join(_DRAWS.choices("etaoinshrdlu", k=_DRAWS.randint(2, 9))) for _ in range(500)]


def prose(count: int) -> list[str]:
    """So many texts of two kilobytes."""
    return [f"{number} the {' '.join(_DRAWS.choices(_WORDS, k=300))}" for number in range(count)]


def topics(kind: str, values: Sequence[str]) -> Topics:
    """Topics that are described by nothing else."""
    columns = {name: pa.nulls(len(values), pa.string()) for name in COLUMNS}
    columns[kind] = pa.array(values)
    columns["descriptor_kind"] = pa.array([kind] * len(values))
    columns |= {name: pa.array([f"{name} {number}" for number in range(len(values))]) for name in ("uuid", "creator", "owner", "synopsis")}
    columns["indexed"] = pa.array([indexed_text({"kind": kind, kind: value}, "") for value in values])
    moment = pa.array([0] * len(values), pa.timestamp("us", tz="UTC"))
    return Topics.of(pa.RecordBatch.from_pydict({**columns, "created": moment, "expires": moment}))


def asked(*queries: tuple[str, str]) -> list[Asked]:
    return [Asked(number, f"q{number}", language, text) for number, (language, text) in enumerate(queries)]


def told(queries: Sequence[Asked], batches: Sequence[Topics], confined: Any = None) -> tuple[dict[int, int], dict[int, str]]:
    """How many topics each query found, and why some were given up."""
    counts = {one.number: 0 for one in queries}
    given_up: dict[int, str] = {}
    asking = Bulk(queries, confined or Confined())
    for batch in batches:
        for number, found in asking.ask(batch):
            if isinstance(found, str):
                given_up[number] = found
            else:
                counts[number] += len(found)
    return counts, given_up


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """A test may have compiled queries otherwise."""
    yield
    bulk._compiled.cache_clear()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SECONDS", 0.2)


@pytest.mark.parametrize("hostile", [HOSTILE, SMALLER])
@pytest.mark.parametrize("batches", [1, 8])
def test_a_slow_pattern_is_given_up(little: None, monkeypatch: pytest.MonkeyPatch, hostile: str, batches: int) -> None:
    """Within one batch, and over many that each take less than all of it; through Arrow too, which cannot be stopped within a slice."""
    monkeypatch.setattr(topics_module, "_SLICE_BYTES", 128 * 1024)
    assert (compile_regex(hostile).instructions <= bulk._MOST_INSTRUCTIONS) == (hostile == SMALLER)
    asked_of = [topics("path", prose(2000 // batches)) for _ in range(batches)]
    began = budget.clock()
    counts, given_up = told(asked(("regex", hostile), ("regex", "^[0-9]+ the")), asked_of)
    took = budget.clock() - began
    assert given_up.keys() == {0}
    assert "was stopped" in given_up[0]
    assert counts[1] == 2000
    # To its end it would take two to ten seconds.
    assert took < 1.5


@pytest.mark.parametrize(
    "query",
    [("string", "the"), ("sql", "path LIKE '%a%e%'"), ("sql", "COALESCE(path, owner) LIKE '%a%e%'"), ("sql", "path LIKE '%a%e%' AND owner <> 'owner 1'")],
)
def test_strings_and_sql_are_asked_in_slices(monkeypatch: pytest.MonkeyPatch, query: tuple[str, str]) -> None:
    """SQL topic by topic, and by different values. The clock goes on by a second each time that it is looked at."""
    moments = iter(range(1000))
    monkeypatch.setattr(bulk, "clock", lambda: 0.0)
    monkeypatch.setattr(budget, "clock", lambda: float(next(moments)))
    some = topics("path", [f"the/area/{number}" for number in range(1500)])
    _, given_up = told(asked(query), [some])
    assert given_up.keys() == {0}


def test_a_broad_query_over_many_topics_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by how much it takes in all: what there is to look at counts."""
    monkeypatch.setattr(budget, "SECONDS", 0.05)
    queries = asked(("regex", "[a-z]+"), ("sql", "owner <> creator AND COALESCE(path, owner) <> 'x'"))
    counts, given_up = told(queries, [topics("path", [f"weather/oslo/{number}" for number in range(5_000)]) for _ in range(4)])
    assert given_up == {}
    assert counts == {0: 20_000, 1: 20_000}


class Slow:
    """Takes a little less for each portion than a portion may."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    def ask(self, asked: Asked, documents: Sequence[str]) -> tuple[list[int], float]:
        self.asked += 1
        return list(range(len(documents))), self.seconds


def test_xpath_has_one_budget_for_a_task() -> None:
    """1.9 s for each portion is not for ever; what a broad one takes is."""
    documents = [topics("xml", ["<a/>"] * (2 * DOCUMENTS))] * 20
    slow = Slow(1.9)
    _, given_up = told(asked(("xpath", "//a")), documents, slow)
    assert "was stopped" in given_up[0]
    assert slow.asked < 5
    broad = Slow(DOCUMENTS * 1e-3)
    counts, given_up = told(asked(("xpath", "//a")), documents, broad)
    assert (counts[0], given_up) == (20 * 2 * DOCUMENTS, {})


def test_slices_are_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "_SLICE_BYTES", 100)
    for sizes in ([10], [100, 100, 1], [250, 1, 1, 120], [1] * 350):
        batch = topics("path", ["x" * size for size in sizes])
        assert [text for part in batch.slices for text in part.to_pylist()] == batch.column("path")
        assert all(len(before) for before, _ in pairwise([*batch.slices, batch.slices[-1]]))
        assert max(len(part) for part in batch.slices) <= 101


# --- what nobody has thought of ---


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception, *, compiling: bool = False) -> None:
    """The string query `boom` fails so."""
    real = bulk._matching

    def matching(query: Any) -> Any:
        if getattr(query, "words", None) != ("boom",):
            return real(query)
        if compiling:
            raise error
        return bulk._failing(error)

    monkeypatch.setattr(bulk, "_matching", matching)
    bulk._compiled.cache_clear()


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("error", [RecursionError("too\ndeep"), KeyError("a" * 10_000), AssertionError(), ValueError("x")])
def test_a_query_that_fails_as_nobody_expects(monkeypatch: pytest.MonkeyPatch, error: Exception, compiling: bool) -> None:
    """T38: has that as its error, in a bounded sentence; the others have their answers."""
    broken(monkeypatch, error, compiling=compiling)
    counts, given_up = told(asked(("regex", "a"), ("string", "boom"), ("sql", "owner = 'owner 1'")), [topics("path", ["boom/a"] * 3)] * 2)
    assert counts == {0: 6, 1: 0, 2: 2}
    assert given_up.keys() == {1}
    assert type(error).__name__ in given_up[1]
    assert "a fault of this build" in given_up[1]
    assert len(given_up[1]) < 400
    assert "\n" not in given_up[1]


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device"), pa.ArrowMemoryError("malloc failed"), TrustError("damaged")])
def test_what_is_the_machines_is_no_querys(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    broken(monkeypatch, error)
    with pytest.raises(type(error)):
        told(asked(("regex", "a"), ("string", "boom")), [topics("path", ["boom/a"])])


@pytest.mark.parametrize("error", [pa.ArrowInvalid("Unexpected end of stream"), OSError("Corrupt zstd data")])
def test_a_damaged_file_is_no_querys(error: Exception) -> None:
    def read(name: str) -> Any:
        if name == "path":
            raise error
        return whole.arrow(name)

    whole = topics("path", ["a"])
    with pytest.raises(TrustError, match=r"a file of the index is damaged; .*(end of stream|zstd)"):
        told(asked(("sql", "path = 'a' OR owner = 'b'"), ("regex", "a")), [Topics(read, 1, 1)])


class Odd(Confined):
    """Whose processes do not come to the end that somebody thought of."""

    def __init__(self, *, start: Exception | None = None) -> None:
        super().__init__()
        self.start = start
        self.tried = 0

    async def _run(self, language: str, frame: bytes) -> tuple[Ending, float]:
        self.tried += 1
        if self.start is not None and language == "xpath":
            raise self.start
        if b"//boom" in frame:
            return Raised(WorkFailed("Traceback (most recent call last):\n  File x\nRecursionError: maximum recursion depth exceeded\n")), 0.1
        return (Cut.OVERRUN, 0.1) if b"//slow" in frame else (Done({"matched": [0]}, []), 0.1)


def test_an_xpath_that_fails_as_nobody_expects() -> None:
    documents = [topics("xml", ["<a><boom/><slow/></a>", "<b/>"])] * 2
    with Odd() as confined:
        counts, given_up = told(asked(("xpath", "//boom"), ("xpath", "//a"), ("xpath", "//slow"), ("regex", "a")), documents, confined)
        assert confined.check(asked(("xpath", "//boom"))[0]) == given_up[0]
    assert counts == {0: 0, 1: 2, 2: 0, 3: 2}
    assert given_up[2] == OVERRUN
    assert "RecursionError: maximum recursion depth exceeded" in given_up[0]
    assert "Traceback" not in given_up[0]


def test_a_process_that_does_not_start() -> None:
    """Each query of its language says so, and it is tried once: a start that never comes takes a minute. Others go on."""
    documents = [topics("xml", ["<a/>", "<b/>"])] * 2
    queries = asked(("xpath", "//a"), ("xpath", "//b"), ("xquery", "//a"), ("regex", "a"))
    with Odd(start=StartFailed("it cannot be loaded: no such module\nand more")) as confined:
        counts, given_up = told(queries, documents, confined)
    assert counts == {0: 0, 1: 0, 2: 2, 3: 2}
    assert given_up.keys() == {0, 1}
    assert all("did not start (it cannot be loaded: no such module)" in why for why in given_up.values())
    assert confined.tried == 3
