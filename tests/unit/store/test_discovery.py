"""Discovery from the store against plain Python: whatever the index does, the answer is that of looking at every topic."""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pki import T0
from population import ASKERS, PLANS, SAMPLE_SEED, Population, Remembered, choose, populate

from tdn.errors import QueryError
from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import Asker
from tdn.protocol.times import format_time, parse_time
from tdn.queries.compile import LANGUAGES, compile_query
from tdn.queries.model import SHORTEST_CLUE, AllOf, AnyOf, Anything, Contains, Query, Subject, Value, fold, holds
from tdn.queries.times import ANY_TIME, Times
from tdn.sample.queries import broad_queries, selective_queries
from tdn.store import candidates, topics
from tdn.store.search import Page, Reader, Search

COUNT = 130
#: Texts and values that an index could stumble over.
ODD: list[descriptors.Descriptor] = [
    descriptors.text('"quoted" AND NEAR(a b) OR * ^col: - "', ["a\"b'c", "% _ \\"]),
    descriptors.text("nul\0inside and\0\0 after", ["İstanbul", "ǅ ﬁ ß ẞ"]),
    descriptors.text("e\u0301 decomposed, \u00e9 composed, \u1e9b\u0323 \ufb03", ["\ufeffbom", "\u200bzero width"]),
    descriptors.text("😀😃😄 \U0010ffff \ue000 \ufffd\ufffe", ["日本語のトピック", "ไทย"]),
    descriptors.text("ab", []),
    descriptors.text("x" * 16_384, ["y" * 128] * 64),
    descriptors.xml("<a b='&#65;&#x42;C'>r&amp;d<!-- note well --><?go now?><c xmlns='urn:x'>&lt;tag&gt;</c></a>"),
    descriptors.xml("<v n='0'>1</v>"),
    {
        "kind": "properties",
        "properties": {
            **{"int": 2**63 - 1, "low": -(2**63), "one": 1, "huge": 1e308, "tiny": 5e-324, "minus": -0.0, "wide": 10**30},
            **{
                "flag": True,
                "at": "2026-05-05T10:00:00.250Z",
                "long": "z" * 4096,
                "nul": "a\0b",
                "empty": "",
                "smile": "😀\uffff",
            },
        },
        "types": {
            **{"int": "integer", "low": "integer", "one": "integer", "huge": "float", "tiny": "float", "minus": "float"},
            **{"wide": "float", "flag": "boolean", "at": "timestamp", "long": "string", "nul": "string", "empty": "string"},
            "smile": "string",
        },
    },
    {"kind": "properties", "properties": {"one": 1.0, "wide": 2**63}, "types": {"one": "float", "wide": "float"}},
    {"kind": "properties", "properties": {"one": "1", "flag": "true"}, "types": {"one": "string", "flag": "string"}},
    {
        "kind": "properties",
        "properties": {"wide": -(10**308), "at": "2026-05-05T10:00:00Z"},
        "types": {"wide": "float", "at": "timestamp"},
    },
]
ODD_QUERIES = {
    "string": [
        '"quoted" NEAR(a',
        "inside and",
        "istanbul",
        "é",
        "e\u0301 decomposed",
        "SS",
        "ﬃ",
        "日本語",
        "😀😃",
        "x" * 3000,
    ],
    "regex": ["nul.inside", "(?i)ẞ", "\\x{1F600}.", "x{500}", "^ab$", "A", "r&amp;d", "\\*"],
    "sql": [
        *(
            "int = 9223372036854775807",
            "int >= 9223372036854775807",
            "int > 9223372036854775808.0",
            "low <= -9223372036854775808",
        ),
        *("wide > 9223372036854775807", "wide = 9223372036854775808.0", "wide < 9223372036854775808.0", "wide <= -1e308"),
        *("wide = 1e30", "wide >= 1e30", "huge >= 1e308", "tiny > 0 AND tiny < 1e-300"),
        *("one = 1", "one = 1.0", "one = '1'", "one <> 1", "one IN (1, 2)", "NOT one = 1", "minus = 0", "minus >= 0"),
        *(
            "flag",
            "flag = true",
            "NOT flag",
            "flag = 'true'",
            "empty = ''",
            "empty IS NOT NULL",
            "one IS NULL AND wide IS NOT NULL",
        ),
        *(
            "at = TIMESTAMP '2026-05-05T10:00:00.25Z'",
            "at > TIMESTAMP '2026-05-05T10:00:00Z'",
            "at < TIMESTAMP '2026-05-05T10:00:00.25Z'",
        ),
        *(f"long = '{'z' * 4096}'", "long LIKE 'zzz%'", "nul LIKE 'a%b'", "smile > '😀'", "smile >= '😀' AND smile < '😁'"),
        *(
            "priority BETWEEN 2 AND 4 OR one = 1",
            "owner = 'bob'",
            "creator = 'alice' AND priority > 2",
            "institution LIKE 'Phys%'",
        ),
        *(
            "institution = 'Zürich, West' AND (domain = 'traffic' OR domain = 'weather')",
            "kind = 'topic'",
            "created >= '2027-01-01T00:00:20Z'",
        ),
        *("expires < '2027-01-01T02:00:00Z' AND owner <> 'alice'", "descriptor_kind = 'xml'", "path LIKE '%/%'"),
    ],
    "xpath": [
        "//@b = 'ABC'",
        "contains(., 'r&d')",
        "//comment()",
        "//*:c",
        "//processing-instruction('go')",
        "1 idiv xs:integer(/v/@n) = 1",
    ],
    "xquery": ["//@b = 'ABC'", "contains(string(/), 'r&amp;d')", "1 idiv xs:integer(/v/@n) = 1", "true()"],
}


@pytest.fixture(scope="module")
def population() -> Population:
    return populate("discovery", COUNT, extra=ODD * 2)


@pytest.fixture(scope="module")
def path(population: Population, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("discovery")) / "view.db"
    with pytest.MonkeyPatch.context() as patch:
        # So small a store would have sampled hardly a trigram.
        patch.setattr(topics, "_SAMPLE_EVERY", 3)
        population.build(path).close()
    return path


@pytest.fixture(scope="module")
def reader(path: Path) -> Iterator[Reader]:
    reader = Reader(path)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def plain_reader(path: Path) -> Iterator[Reader]:
    reader = Reader(path, indexes=False)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def queries(population: Population) -> dict[str, list[Query]]:
    """Queries of every language: the sample's, odd ones, and some made of what the topics say."""
    texts = {
        language: [query.text for query in found] for language, found in selective_queries(SAMPLE_SEED, COUNT, each=1).items()
    }
    for language, found in broad_queries().items():
        texts[language] += [query.text for query in found]
    made = _made(population, Random("queries"))
    result: dict[str, list[Query]] = {}
    for language in LANGUAGES:
        result[language] = [
            Remembered(compile_query(language, text)) for text in [*texts[language], *ODD_QUERIES[language], *made[language]]
        ]
    return result


def _made(population: Population, draws: Random) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {language: [] for language in LANGUAGES}
    for known in draws.sample(list(population.topics), 40):
        descriptor = known.subject.descriptor
        if descriptor["kind"] == "sealed":
            continue
        said = descriptors.searchable(descriptor)
        start = draws.randrange(max(1, len(said) - 12))
        piece = said[start : start + draws.randrange(1, 12)]
        if words := piece.split():
            made["string"].append(draws.choice(words))
            made["regex"].append(re.sub(r"[^\w ]", ".", words[0]) + draws.choice(["", ".*", "[^x]?", "|zzzz"]))
        if descriptor["kind"] == "properties":
            made["sql"].append(_comparison(draws, *draws.choice(list(descriptor["properties"].items()))))
            made["sql"].append(f"{made['sql'][-1]} AND owner = '{known.subject.owner}'")
        if descriptor["kind"] == "xml":
            names = re.findall(r"<([A-Za-z]\w*)", descriptor["xml"])
            made["xpath"].append(f"//*:{draws.choice(names)}" if names else "//*")
    made["sql"] += [f"uuid = '{known.uuid}'" for known in draws.sample(list(population.topics), 5)]
    # Whose they are: a walk of its own, alone and with other parts.
    for known in draws.sample(list(population.topics), 4):
        told = known.subject
        made["sql"] += [
            f"creator = '{told.creator}'",
            f"owner = '{told.owner}' AND path LIKE '%a%'",
            f"institution = '{told.institution}' AND (text LIKE '%the%' OR descriptor_kind = 'xml')",
            f"institution = '{told.institution}' AND creator = '{told.creator}' AND created >= '{told.created}'",
        ]
    made["string"] += [known.uuid for known in draws.sample(list(population.topics), 3)]
    return made


def _comparison(draws: Random, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f'"{name}" = {str(value).lower()}'
    if isinstance(value, str):
        return f"\"{name}\" {draws.choice(['=', '>=', '<'])} '{value.replace(chr(39), chr(39) * 2)[:200]}'".replace("\0", "")
    return f'"{name}" {draws.choice(["=", ">=", "<", "<=", ">"])} {value!r}'


def _times(draws: Random) -> Times:
    def moment(spread: float) -> Any:
        return T0 + timedelta(seconds=round(draws.uniform(0, spread), draws.choice((0, 0, 2))))

    choice = draws.randrange(6)
    if choice < 2:
        return ANY_TIME
    created = {"created_after": moment(60), "created_before": moment(70)}
    expires = {"expires_after": moment(4000), "expires_before": moment(90_000)}
    valid = {"valid_at_least": draws.choice((1, 60, 61, 3600)), "valid_at_most": draws.choice((60, 3600, 86_400))}
    chosen = {**created, **expires, **valid} if choice == 2 else (created, expires, valid)[choice - 3]
    return Times(**{name: bound for name, bound in chosen.items() if draws.random() < 0.8})


def walk(reader: Reader, search: Search, limit: int) -> list[str]:
    """All pages, each full but the last, and no empty one after a full one."""
    found: list[str] = []
    after: tuple[str, str] | None = ("", "")
    while after is not None:
        page: Page = reader.discover(search, after=after, limit=limit)
        assert page.after is None or len(page.topics) == limit
        assert page.topics or not found
        found += [topic.uuid for topic in page.topics]
        after = page.after
    return found


class _Failing:
    """A query that fails on the first topic it is asked about."""

    language = "xpath"
    clue = Anything()

    def matches(self, subject: Subject) -> bool:
        raise QueryError("it fails here")


def test_a_query_that_fails_lets_go_of_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever still holds the error holds no half-read rows of a store that is closed by then."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    reader = Reader(path, indexes=False)
    with pytest.raises(QueryError) as failed:
        reader.discover(Search(ASKERS[0], T0, _Failing()), limit=10)
    reader.close()
    del failed
    gc.collect()
    assert unraisable == []


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_index_never_changes_an_answer(
    reader: Reader,
    population: Population,
    queries: dict[str, list[Query]],
    language: str,
    plan: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T13 to T16, T18: every language, any asker, times, page size and plan: exactly what a filter over all topics gives, in order."""
    choose(plan, monkeypatch)
    draws = Random(f"{plan} {language}")
    sizes = Counter[int]()
    for query in queries[language] * (1 if len(queries[language]) > 30 else 3):
        asker, times, limit = draws.choice(ASKERS), _times(draws), draws.choice((1, 2, 3, 7, 20, 1000))
        now = T0 + timedelta(seconds=draws.choice((0, 0, 59.5, 75, 4000)))
        expected = population.expected(asker, now, query, times)
        search = Search(asker, now, query, times)
        assert walk(reader, search, limit) == expected, (language, query, asker, times)
        assert reader.count(search) == len(expected)
        sizes[min(len(expected), 3)] += 1
    assert {0, 1, 3} <= sizes.keys(), "without matches, or with many alone, this would show little"


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_an_index_the_same(
    plain_reader: Reader, population: Population, queries: dict[str, list[Query]], language: str
) -> None:
    """T16: a reader that looks at every topic is what benchmarks compare with. Here it is compared with the model."""
    draws = Random(language)
    for query in queries[language]:
        asker, times = draws.choice(ASKERS), _times(draws)
        search = Search(asker, T0, query, times)
        expected = population.expected(asker, T0, query, times)
        assert walk(plain_reader, search, draws.choice((1, 4, 1000))) == expected
        assert plain_reader.count(search) == len(expected)


def test_every_plan_is_taken(reader: Reader, queries: dict[str, list[Query]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above compare are four ways to the rows: few fetched, all walked, walked then fetched, walked to the end after all."""
    taken = Counter[str]()
    steps: list[str] = []

    def noted(name: str) -> Any:
        way = getattr(candidates.Candidates, name)

        def step(self: candidates.Candidates, *given: Any) -> Any:
            steps.append(name)
            return way(self, *given)

        return step

    real = candidates.Candidates.rows

    def rows(self: candidates.Candidates, clue: Any, *given: Any) -> Iterator[Any]:
        steps.clear()
        yield from real(self, clue, *given)
        taken["".join(steps)] += 1
        if steps == ["_walk"] and candidates._parts(clue):
            taken["walked although there was a clue"] += 1

    for name in ("_walk", "_fetch"):
        monkeypatch.setattr(candidates.Candidates, name, noted(name))
    monkeypatch.setattr(candidates.Candidates, "rows", rows)
    for plan in ("little", "soon"):
        choose(plan, monkeypatch)
        for query in [query for found in queries.values() for query in found]:
            reader.count(Search(ASKERS[0], T0, query))
            reader.discover(Search(ASKERS[0], T0, query), limit=2)
            taken[plan + "".join(steps)] += 1
    assert {"_fetch", "_walk", "_walk_fetch", "walked although there was a clue"} <= taken.keys(), taken
    # Walked because what is wanted is common; where that was not enough, fetched or walked on.
    assert taken["soon_walk"], taken
    assert taken["soon_walk_fetch"] or taken["soon_walk_walk_fetch"], taken


@pytest.mark.parametrize("asker", ASKERS, ids=str)
def test_without_a_query(reader: Reader, plain_reader: Reader, population: Population, asker: Asker) -> None:
    """T14, T16, T18: times alone, or nothing: everything visible, sealed topics among it; or sealed ones alone."""
    draws = Random(str(asker))
    for _ in range(25):
        times, limit, now = (
            _times(draws),
            draws.choice((1, 3, 10, 1000)),
            T0 + timedelta(seconds=draws.choice((0, 60, 61.5, 4000))),
        )
        everything = population.expected(asker, now, None, times)
        sealed = population.expected(asker, now, None, times, sealed=True)
        for each in (reader, plain_reader):
            assert walk(each, Search(asker, now, None, times), limit) == everything
            assert walk(each, Search(asker, now, None, times, sealed=True), limit) == sealed
            assert each.has_sealed(Search(asker, now, None, times)) == bool(sealed)
            assert each.count(Search(asker, now, None, times, sealed=True)) == len(sealed)


def test_one_topic_by_its_uuid(reader: Reader, population: Population) -> None:
    """T18: who may not see a topic is told what one is told of a topic that is not there."""
    seen = Counter[bool]()
    for asker in ASKERS:
        for known in population.topics:
            for now in (T0, parse_time(known.subject.expires) - timedelta(seconds=0.5), parse_time(known.subject.expires)):
                visible = known.seen_by(asker) and now < parse_time(known.subject.expires)
                found = reader.topic(known.uuid, asker, now)
                assert (found is not None) == visible
                if found is not None:
                    assert (found.opening is not None) == (asker.entity == known.subject.owner)
            seen[known.seen_by(asker)] += 1
    assert min(seen.values()) > 100


def test_every_cursor_goes_on(reader: Reader, population: Population, queries: dict[str, list[Query]]) -> None:
    """T16: from any place in the order, that of a topic or not, with few candidates or many, the rest follows."""
    asker = ASKERS[0]
    for query in [None, queries["string"][0], *(queries[language][-1] for language in LANGUAGES), *queries["sql"][-12:]]:
        expected = population.expected(asker, T0, query)
        created = {known.uuid: known.subject.created for known in population.topics}
        places = [(created[uuid], uuid) for uuid in expected]
        for number, place in enumerate(places):
            page = reader.discover(Search(asker, T0, query), after=place, limit=1000)
            assert [topic.uuid for topic in page.topics] == expected[number + 1 :]
        between = (format_time(T0 + timedelta(seconds=20)), "")
        page = reader.discover(Search(asker, T0, query), after=between, limit=1000)
        assert [topic.uuid for topic in page.topics] == [uuid for place, uuid in places if (place, uuid) > between]


def test_clues_alone(reader: Reader, population: Population) -> None:
    """Every kind of clue leaves at least the topics that it means; of texts, not all others."""
    draws = Random("clues")
    subjects = {known.uuid: known.subject for known in population.topics if not known.is_sealed}
    numbers = dict(reader._db.execute("SELECT uuid, id FROM topics").fetchall())
    looked_up = candidates.Candidates(reader._db, "t.id", "TRUE", {})
    texts = [topics.indexed_text(subject.descriptor, subject.synopsis) for subject in subjects.values()]
    helped = 0
    for _ in range(300):
        said = draws.choice(texts)
        start = draws.randrange(len(said) - SHORTEST_CLUE)
        contains = Contains(said[start : start + draws.randrange(SHORTEST_CLUE, 40)])
        value = Value("n:priority", draws.choice((None, 1, 2)), draws.choice((None, 2, 4)))
        other = Contains(fold(draws.choice(texts))[:5])
        clue = draws.choice(
            [
                contains,
                value,
                AllOf((contains, value)),
                AnyOf((contains, value)),
                AllOf((AnyOf((contains, other)), value)),
                AllOf((contains, other)),
            ]
        )
        if isinstance(contains, Contains) and len(contains.text) < SHORTEST_CLUE:
            continue
        meant = {numbers[uuid] for uuid, subject in subjects.items() if holds(clue, subject)}
        given = {row[2] for row in looked_up.rows(clue, ("", ""))}
        assert meant <= given, clue
        helped += len(given) < len(subjects)
    assert helped > 200


def test_a_field_that_no_index_knows(reader: Reader) -> None:
    with pytest.raises(ValueError, match="no index knows the field kind"):
        list(candidates.Candidates(reader._db, "t.id", "TRUE", {}).rows(Value("@kind", "topic", "topic"), ("", "")))
