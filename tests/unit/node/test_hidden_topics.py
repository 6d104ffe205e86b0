"""T18: a node with topics that an asker may not see answers it exactly as a node that never had them.

Two stores of one log, in one of which the records about hidden topics are ticks instead. Everything that a node would send is compared:
rows and advertisements, pages, cursors, counts, errors, whether there are sealed topics, and the size of each sealed message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from little_network import payload_of
from pki import T0, derive_key
from population import ASKERS, SAMPLE_SEED, Population, Remembered, choose, populate

from tdn.errors import Absent, QueryError, TdnError
from tdn.node import questions, searching
from tdn.node.policy import EVERYBODY
from tdn.node.questions import Answer, Desk
from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import Asker
from tdn.protocol.names import Role
from tdn.protocol.times import format_time
from tdn.queries.compile import LANGUAGES, compile_query
from tdn.queries.model import Subject
from tdn.sample.queries import broad_queries, selective_queries
from tdn.store.search import Reader
from tdn.trust import envelope, sealing

COUNT = 110
NOW = T0 + timedelta(seconds=55)
#: What only some may see: a document that makes some queries fail, a value that no other topic has.
TRAPS: list[descriptors.Descriptor] = [
    descriptors.xml("<v n='0'>not a number</v>"),
    descriptors.text("the only topic about xylophones", []),
    {"kind": "properties", "properties": {"only": 2**62}, "types": {"only": "integer"}},
]
#: The operator, an entity that some lists name, and one that none does.
WATCHED = [Asker(None, "Physics"), Asker("carol", "Zürich, West"), Asker("zed", "Nowhere")]
MORE = {
    "string": ["xylophones", "e", ""],
    "regex": ["xylophones?", "[a-z]{3}"],
    "sql": ["only = 4611686018427387904", "only > 1", "uuid > '8'", "expires > '2027-01-01T01:00:00Z'", "owner = 'alice'"],
    "xpath": ["1 idiv xs:integer(/v/@n) = 1", "xs:integer(/v) = 1", "//*"],
    "xquery": ["1 idiv xs:integer(/v/@n) = 1", "xs:integer(/v) = 1", "//*"],
}
WRONG = {
    "string": ["a" * 20_000, "nul\0"],
    "regex": ["(", "(?=a)", "a{2000}"],
    "sql": ["serial =", "DROP TABLE topics", "only = 4611686018427387904 AND", "priority = 'a' +"],
    "xpath": ["//[", "doc('file:///etc/passwd')", "unknown()"],
    "xquery": ["for $a in", "doc('file:///etc/passwd')", "import module 'x'; 1"],
    "prolog": ["a."],
}


@pytest.fixture(scope="module")
def population() -> Population:
    return populate("hidden", COUNT, extra=TRAPS * 3)


@pytest.fixture(scope="module", params=WATCHED, ids=str)
def pair(
    request: Any, population: Population, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Asker, Reader, Reader]]:
    """An asker, a store with topics that are hidden from it, and one without them."""
    asker: Asker = request.param
    folder = Path(tmp_path_factory.mktemp("hidden"))
    hidden = [known.uuid for known in population.topics if not known.seen_by(asker)]
    assert 20 < len(hidden) < len(population.topics) - 20
    population.build(folder / "all.db").close()
    population.build(folder / "seen.db", without=hidden).close()
    with closing(Reader(folder / "all.db")) as everything, closing(Reader(folder / "seen.db")) as seen:
        assert everything.count_live(NOW) > seen.count_live(NOW)
        yield asker, everything, seen


@pytest.fixture(params=["as it is", "little", "soon"])
def plan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden topics may change which way to the rows is taken, and must not change what comes of it."""
    choose(request.param, monkeypatch)


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    texts = {
        language: [query.text for query in found] for language, found in selective_queries(SAMPLE_SEED, COUNT, each=1).items()
    }
    return {language: [*texts[language], *(q.text for q in broad_queries()[language]), *MORE[language]] for language in LANGUAGES}


@pytest.fixture
def remembered(population: Population, pair: tuple[Asker, Reader, Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query works out each topic once, and none that the asker may not see."""
    asker = pair[0]
    hidden = {known.uuid for known in population.topics if not known.seen_by(asker)}
    made: dict[tuple[str, str], Remembered] = {}

    def is_hidden(subject: Subject) -> bool:
        return subject.uuid in hidden

    def compiled(language: str, text: str) -> Remembered:
        if (language, text) not in made:
            made[language, text] = Remembered(compile_query(language, text), is_hidden)
        return made[language, text]

    monkeypatch.setattr(searching, "compile_query", compiled)


def job(asker: Asker, **more: Any) -> dict[str, Any]:
    return {
        "entity": asker.entity,
        "institution": asker.institution,
        "now": format_time(NOW),
        "after": ["", ""],
        "limit": 10_000,
        **more,
    }


def outcome(work: Callable[[], Any]) -> Any:
    """What comes of a question: an answer, or an error as the asker is told it."""
    try:
        return work()
    except TdnError as error:
        return type(error), str(error), error.as_object()


def same(pair: tuple[Asker, Reader, Reader], asked: dict[str, Any]) -> Any:
    """The answer, after it was found to be the same from both stores, page by page to the end."""
    first = None
    while True:
        one, other = (outcome(partial(searching.search, reader, asked)) for reader in pair[1:])
        assert one == other, asked
        first = first or one
        if not isinstance(one[0], dict) or one[0].get("after") is None:
            return first
        asked = {**asked, "after": one[0]["after"]}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.usefixtures("plan", "remembered")
def test_every_language(pair: tuple[Asker, Reader, Reader], texts: dict[str, list[str]], language: str) -> None:
    """T18: rows, advertisements, cursors, counts, sealed or not. Nothing that is hidden is ever looked at by a query."""
    sizes = set()
    for number, text in enumerate(texts[language]):
        asked = job(pair[0], language=language, query=text, limit=(1, 3, 10_000)[number % 3])
        answer = same(pair, asked)
        if isinstance(answer[0], dict):
            total = same(pair, {**asked, "count": True})[0]["total"]
            assert total >= len(answer[0]["rows"])
            sizes.add(min(total, 2))
        same(pair, {**asked, "times": {"created_after": format_time(T0 + timedelta(seconds=17)), "valid_at_least": 3600}})
    assert {0, 2} <= sizes


@pytest.mark.parametrize("language", WRONG)
def test_errors(pair: tuple[Asker, Reader, Reader], language: str) -> None:
    """T18: what is wrong with a query is said in the same words, whatever is there."""
    for text in WRONG[language]:
        answer = same(pair, job(pair[0], language=language, query=text))
        assert answer[0] is QueryError, (language, text, answer)


@pytest.mark.usefixtures("plan")
def test_without_a_query(pair: tuple[Asker, Reader, Reader]) -> None:
    """T14, T18: times alone, and sealed topics alone."""
    asker = pair[0]
    for times in (
        {},
        {"created_before": format_time(T0 + timedelta(seconds=30))},
        {"expires_before": format_time(T0 + timedelta(hours=1, seconds=20)), "valid_at_most": 3600},
        {"valid_at_least": 86_400},
        {"expires_after": format_time(T0 + timedelta(days=400))},
    ):
        for more in (
            {},
            {"sealed": True},
            {"count": True},
            {"sealed": True, "count": True},
            {"limit": 7},
            {"limit": 1, "sealed": True},
        ):
            same(pair, job(asker, times=times, **more))
    found = same(pair, job(asker))
    assert len(found[0]["rows"]) > 30
    assert same(pair, job(asker, sealed=True))[0]["rows"]


def test_has_sealed_tells_of_visible_ones_alone(pair: tuple[Asker, Reader, Reader], population: Population) -> None:
    """T9, T18: a query's answer says that there are sealed topics only where the asker may see one."""
    sealed = [known for known in population.topics if known.is_sealed]
    told = set()
    for known in sealed:
        moment = known.subject.created
        times = {"created_after": moment, "created_before": moment.replace("Z", ".5Z")}
        said = same(pair, job(pair[0], language="string", query="zzzz", times=times, now=moment))[0]["sealed"]
        assert said == any(other.seen_by(pair[0]) for other in sealed if other.subject.created == moment)
        told.add(said)
    assert told == {True, False}


# --- messages ---


def answers(population: Population, reader: Reader, asked: dict[str, Any]) -> list[Answer]:
    node = population.net.node("n1")
    desk = Desk(node, population.net.id, EVERYBODY, position=lambda: 1)
    return list(questions.discovered(desk, searching.search(reader, asked), NOW))


def told(line: bytes) -> list[Any]:
    """A line of an answer without what a signature makes different each time."""
    advertisement, *rest = line.split(b" ")
    status = [payload_of(rest[0])] if rest and rest[0] else []
    return [advertisement, *status, *rest[1:]]


def test_messages_and_their_sizes(pair: tuple[Asker, Reader, Reader], population: Population) -> None:
    """T18: pages with the same lines, in sealed messages of the same sizes; how many hidden topics match shows nowhere."""
    asker, key = pair[0], derive_key("asker").public_key()
    node = population.net.node("n1")
    for asked in (
        job(asker),
        job(asker, limit=5),
        job(asker, sealed=True),
        job(asker, count=True),
        job(asker, language="string", query="e"),
        job(asker, language="string", query="xylophones"),
        job(asker, language="sql", query="priority >= 2", limit=3),
        job(asker, language="regex", query="nothing of the kind"),
    ):
        one, other = (answers(population, reader, asked) for reader in pair[1:])
        assert [(page.kind, page.body) for page in one] == [(page.kind, page.body) for page in other]
        lines = [[told(line) for page in pages for line in (page.tail or b"").split(b"\n") if line] for pages in (one, other)]
        assert lines[0] == lines[1]
        sizes = []
        for pages in (one, other):
            written = [
                envelope.write(
                    *(page.kind, page.body, node),
                    **{
                        "audience": "entity:asker",
                        "now": NOW,
                        "life": timedelta(minutes=2),
                        "answers": "question-1",
                        "tail": page.tail,
                    },
                )
                for page in pages
            ]
            sizes.append([len(sealing.seal(raw, key)) for raw in written])
        assert sizes[0] == sizes[1]


def test_show_says_the_same_of_hidden_and_absent(population: Population, tmp_path: Path) -> None:
    """T18: by UUID too, forbidden is absent, word for word but for the UUID itself."""
    net = population.net
    population.build(tmp_path / "all.db").close()
    desk = Desk(net.node("n1"), net.id, EVERYBODY, position=lambda: 1)
    carol = net.pki.credentials(Role.ENTITY, "carol", institution="Zürich, West")
    absent = "00000000-0000-4000-8000-00000000abcd"

    def show(uuid: str) -> Any:
        raw = net.request("show", {"uuid": uuid}, carol, audience="node:n1")
        question = envelope.authenticate(raw, lambda _: carol.identity)
        return outcome(lambda: list(questions.answer(desk, question, reader, NOW)))

    with closing(Reader(tmp_path / "all.db")) as reader:
        missing = show(absent)
        assert missing[0] is Absent
        seen = 0
        for known in population.topics:
            said = show(known.uuid)
            if known.seen_by(Asker("carol", "Zürich, West")) and known.subject.expires > format_time(NOW):
                seen += 1
                assert said[0].kind == "shown"
                assert ("opening" in said[0].body) == (known.subject.owner == "carol")
            else:
                assert [str(part).replace(known.uuid, absent) for part in said] == [str(part) for part in missing]
    assert 20 < seen < len(population.topics) - 20


def test_everybody_sees_something_else(population: Population) -> None:
    """The lists of this population are worth the test: no two askers of different names see the same."""
    seen = [tuple(population.expected(asker, T0)) for asker in ASKERS]
    assert len(set(seen)) >= len(ASKERS) - 1
