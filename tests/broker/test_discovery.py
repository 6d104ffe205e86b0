"""Discovery over real nodes: five languages, times, pages, counts, lists, sealed topics, and nodes with a policy (T9, T11, T13 to T18)."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, Topic, path, properties, text, xml
from tdn.bus.connection import Channel, Delivery
from tdn.errors import Absent, QueryError, Refused, UsageError
from tdn.protocol.access import lists
from tdn.protocol.names import Role, mint_uuid
from tdn.queries.times import Times
from tdn.trust import sealing, statements
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, until

pytestmark = pytest.mark.broker

LANGUAGES = ("string", "regex", "sql", "xpath", "xquery")


def word() -> str:
    """Something to look for that no other test has written."""
    return f"w{secrets.token_hex(6)}"


def lifetime() -> int:
    """A lifetime in seconds that no other test's topic has, nor any within a thousand of it."""
    return 100_000_000 + secrets.randbelow(100_000) * 1_000


async def found(client: EntityClient, query: str | None = None, **how: Any) -> list[Topic]:
    return [topic async for topic in client.discover(query, **how)]


async def uuids(client: EntityClient, query: str | None = None, **how: Any) -> set[str]:
    return {topic.uuid for topic in await found(client, query, **how)}


async def everywhere(live: LiveNetwork, *topics: Topic, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
    """Wait until every node has applied these."""
    for node in nodes:
        for topic in topics:
            await until(lambda node=node, topic=topic: live.fact("topic", topic.uuid, node), f"{node} to have it")


# --- languages and times -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shelf:
    """Topics of every kind, of one creator; the first three a second before the others."""

    word: str
    creator: str
    #: Lifetime of the first in seconds; each next one's is a second longer.
    seconds: int
    topics: Mapping[str, Topic]

    def named(self, *names: str) -> set[str]:
        return {self.topics[name].uuid for name in names}


@pytest.fixture(scope="module")
def shelf(live: LiveNetwork) -> Shelf:
    mark, seconds, folder = word(), lifetime(), live.entity("shelf", institution="Library")
    given = {
        "road": path(f"{mark}/weather/oslo"),
        "prose": text(f"{mark} Wind over the Fjord", ["gusts", "knots"]),
        "station": properties([f"tag={mark}", "height=12", "speed=3.5", "live=true", "since=2026-01-31T12:00:00Z"]),
        "mast": properties([f"tag={mark}", "height=99", "live=false"]),
        "paper": xml(f"<obs run='{mark}'><speed unit='kn'>7</speed></obs>"),
        "sheet": xml(f"<obs run='{mark}'><speed unit='ms'>12</speed><note>calm</note></obs>"),
    }

    async def fill() -> dict[str, Topic]:
        made: dict[str, Topic] = {}
        async with await live.client(folder, timeout=30) as client:
            for number, (name, descriptor) in enumerate(given.items()):
                if number == 3:
                    last = max(topic.advertisement.created for topic in made.values())
                    await until(lambda last=last: datetime.now(UTC) >= last + timedelta(seconds=1), "the next second")
                made[name] = await client.create(descriptor, lifetime=timedelta(seconds=seconds + number))
        await everywhere(live, *made.values())
        return made

    return Shelf(mark, folder.name, seconds, asyncio.run(fill()))


QUERIES: list[tuple[str, str, tuple[str, ...]]] = [
    ("string", "{w} FJORD", ("prose",)),
    ("string", "{w} gusts knots", ("prose",)),
    ("string", "{w} height", ("station", "mast")),
    ("string", "{w}", ("road", "prose", "station", "mast", "paper", "sheet")),
    ("string", "{w} elsewhere", ()),
    ("regex", "^{w}/weather/[a-z]+$", ("road",)),
    ("regex", "{w}.*Fjord\ngusts", ("prose",)),
    ("regex", "height=[0-9]{{2}}\nlive=(true|false)\n(.*\n)*tag={w}$", ("station", "mast")),
    ("regex", "run='{w}'.*unit='(kn|m)'", ("paper",)),
    ("regex", "{w}.*fjord", ()),
    ("sql", "tag = '{w}' AND height > 50", ("mast",)),
    ("sql", "tag = '{w}' AND speed IS NULL", ("mast",)),
    ("sql", "tag = '{w}' AND NOT (speed > 100)", ("station",)),
    ("sql", "SELECT * FROM topics WHERE tag IN ('{w}', 'x') AND since < '2026-02-01T00:00:00Z'", ("station",)),
    ("sql", "path LIKE '{w}/%'", ("road",)),
    ("sql", "creator = '{c}' AND institution = 'Library' AND descriptor_kind = 'xml'", ("paper", "sheet")),
    ("xpath", "/obs[@run = '{w}']/speed[@unit = 'kn']", ("paper",)),
    ("xpath", "//obs/@run = '{w}' and //speed > 10", ("sheet",)),
    ("xpath", "//obs[@run = '{w}'] and exists(//note[contains(., 'alm')])", ("sheet",)),
    ("xpath", "//obs[@run = '{w}']", ("paper", "sheet")),
    ("xquery", "for $s in //speed where $s/../@run = '{w}' and xs:integer($s) gt 10 return $s", ("sheet",)),
    (
        "xquery",
        "declare function local:f($n) {{ if ($n <= 1) then 1 else $n * local:f($n - 1) }}; //obs[@run = '{w}'][local:f(5) = 120]/speed",
        ("paper", "sheet"),
    ),
    ("xquery", "//obs[@run = '{w}'] and //note = 'wild'", ()),
]


@pytest.mark.parametrize(("language", "query", "names"), QUERIES, ids=[f"{row[0]}-{n}" for n, row in enumerate(QUERIES)])
async def test_every_language_over_the_wire(
    live: LiveNetwork, asker: EntityClient, shelf: Shelf, language: str, query: str, names: tuple[str, ...]
) -> None:
    """T2, T13: what should be found is found, by every node alike, and counted."""
    asked = query.format(w=shelf.word, c=shelf.creator)
    discovery = asker.discover(asked, language=language)
    assert {topic.uuid async for topic in discovery} == shelf.named(*names)
    assert (discovery.answered, discovery.failed, discovery.silent) == ({"n1", "n2"}, {}, set())
    for node in ("n1", "n2"):
        assert await asker.count(asked, language=language, node=node) == (node, len(names))


@pytest.fixture
async def asker(live: LiveNetwork, connect: Connect, somebody: Path) -> EntityClient:
    return await connect(live, somebody)


@pytest.fixture(scope="module")
def somebody(live: LiveNetwork) -> Path:
    return live.entity("somebody")


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_wrong_query_is_told_before_anybody_is_asked(asker: EntityClient, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: with its position where there is one. (Plain strings cannot be wrong but for their length.)"""
    said: list[object] = []
    publish = Channel.publish

    def listen(channel: Channel, *what: Any, **how: Any) -> Any:
        said.append(what)
        return publish(channel, *what, **how)

    monkeypatch.setattr(Channel, "publish", listen)
    await found(asker, "nothing has this", language="string")
    assert said, "who asks is heard here"
    said.clear()
    wrong = {"string": "x" * 20_000, "regex": "a(b", "sql": "a = = 1", "xpath": "//a[", "xquery": "for $x in //a["}[language]
    with pytest.raises(QueryError) as error:
        await found(asker, wrong, language=language)
    if language != "string":
        assert 0 <= error.value.detail["position"] <= len(wrong)
    assert not said


async def test_what_only_the_engine_finds_wrong(asker: EntityClient) -> None:
    """T13: a client does without XQuery's engine; the nodes say what is wrong, and where."""
    with pytest.raises(UsageError, match=r"expected .return.") as error:
        await found(asker, "for $x in //a retrun $x", language="xquery")
    assert error.value.detail["position"] == 14


async def test_times_alone(live: LiveNetwork, asker: EntityClient, shelf: Shelf) -> None:
    """T14: by validity, creation and expiry, without any query; `after` includes its moment, `before` does not."""
    topics = list(shelf.topics.values())
    names = list(shelf.topics)
    whole = {"valid_at_least": shelf.seconds, "valid_at_most": shelf.seconds + 5}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (whole, names),
        ({"valid_at_least": shelf.seconds + 1, "valid_at_most": shelf.seconds + 2}, names[1:3]),
        ({**whole, "created_after": topics[3].advertisement.created}, names[3:]),
        ({**whole, "created_before": topics[3].advertisement.created}, names[:3]),
        ({**whole, "expires_after": topics[0].expires, "expires_before": topics[0].expires + timedelta(seconds=1)}, names[:1]),
        ({**whole, "expires_before": topics[0].expires}, []),
        ({**whole, "created_after": datetime.now(UTC) + timedelta(days=1)}, []),
    ]
    for bounds, expected in cases:
        times = Times(**bounds)
        got = await uuids(asker, times=times)
        same_second = {name for name, topic in shelf.topics.items() if times.admit(topic.advertisement.created, topic.expires)}
        assert got == shelf.named(*same_second), bounds
        assert same_second >= set(expected), bounds
        assert (await asker.count(times=times))[1] == len(got)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_times_with_a_query(live: LiveNetwork, asker: EntityClient, shelf: Shelf, language: str) -> None:
    """T14: both must hold, in every language."""
    query, names = {
        "string": (shelf.word, list(shelf.topics)),
        "regex": (f"tag={shelf.word}", ["station", "mast"]),
        "sql": (f"tag = '{shelf.word}'", ["station", "mast"]),
        "xpath": (f"//obs/@run = '{shelf.word}'", ["paper", "sheet"]),
        "xquery": (f"//obs[@run = '{shelf.word}']/speed", ["paper", "sheet"]),
    }[language]
    assert await uuids(asker, query, language=language) == shelf.named(*names)
    for name in names:
        seconds = int((shelf.topics[name].expires - shelf.topics[name].advertisement.created).total_seconds())
        times = Times(valid_at_least=seconds, valid_at_most=seconds)
        assert await uuids(asker, query, language=language, times=times) == shelf.named(name)
        assert (await asker.count(query, language=language, times=times))[1] == 1


# --- pages ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(live: LiveNetwork) -> tuple[str, list[Topic]]:
    """A word and 230 topics with it, more than two pages, in the order of answers."""
    mark = word()

    async def fill() -> list[Topic]:
        async with await live.client(timeout=60) as client:
            topics = await asyncio.gather(*(client.create(path(f"{mark}/{number}")) for number in range(230)))
        await everywhere(live, *topics)
        return sorted(topics, key=lambda topic: topic.place)

    return mark, asyncio.run(fill())


@pytest.mark.parametrize("limit", [1000, 100, 64, 7])
async def test_pages_are_stable_and_complete(asker: EntityClient, many: tuple[str, list[Topic]], limit: int) -> None:
    """T16: whatever the limit, cursors lead through all of it once; each node's answer is in the one order, the same every time."""
    mark, topics = many
    expected = [topic.uuid for topic in topics]
    if limit == 7:
        expected = expected[:70]
    for nodes in (["n1"], ["n2"], []):
        got: list[str] = []
        cursor = None
        while len(got) < len(expected):
            discovery = asker.discover(mark, nodes=nodes, limit=limit, cursor=cursor)
            page = [topic.uuid async for topic in discovery]
            assert len(page) == min(limit, len(expected) - len(got)) or limit == 7
            got += page
            cursor = discovery.cursor
            if cursor is None:
                break
        assert got == expected
        assert (cursor is None) == (limit != 7)


async def test_cursors_with_times_in_every_language(asker: EntityClient, shelf: Shelf) -> None:
    """T14, T16: a cursor is a place in the order, so it goes on through any question."""
    times = Times(valid_at_least=shelf.seconds, valid_at_most=shelf.seconds + 5)
    in_order = sorted(shelf.topics.values(), key=lambda topic: topic.place)
    for language, query in ((None, None), ("sql", f"creator = '{shelf.creator}'"), ("regex", "."), ("string", shelf.word)):
        how = {} if language is None else {"language": language}
        got: list[str] = []
        cursor = None
        for _ in range(6):
            discovery = asker.discover(query, times=times, limit=1, cursor=cursor, nodes=["n2"], **how)
            got += [topic.uuid async for topic in discovery]
            cursor = discovery.cursor
        assert got == [topic.uuid for topic in in_order], language
        assert cursor is None


async def test_topics_come_before_the_last_page(
    live: LiveNetwork, connect: Connect, many: tuple[str, list[Topic]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T15: what has come is shown; nobody waits for the end of an answer."""
    mark, topics = many
    client = await connect(live)
    pages: list[Delivery] = []
    deliver, holding = client._session._on_reply, True

    def hold_back(delivery: Delivery) -> None:
        """Every page but the first."""
        if len(delivery.body) > 50_000:
            pages.append(delivery)
        if not holding or delivery not in pages[1:]:
            deliver(delivery)

    monkeypatch.setattr(client._session, "_on_reply", hold_back)
    discovery = client.discover(mark, nodes=["n1"], limit=1000)
    stream = aiter(discovery)
    first = [(await anext(stream)).uuid for _ in range(50)]
    assert discovery.answered == set(), "the answer has not ended"
    await until(lambda: len(pages) > 1, "the node to send more")
    holding = False
    for page in pages[1:]:
        deliver(page)
    rest = [topic.uuid async for topic in stream]
    assert first + rest == [topic.uuid for topic in topics]
    assert discovery.answered == {"n1"}


# --- lists ---------------------------------------------------------------------------------------------------------------------------


class Crowd:
    """Entities of several institutions, connected."""

    def __init__(self, clients: dict[str, EntityClient]) -> None:
        self.clients = clients

    def __getitem__(self, name: str) -> EntityClient:
        return self.clients[name]

    def id(self, name: str) -> str:
        return self.clients[name].identity.name.id

    async def who_sees(self, uuid: str, query: str, language: str = "string") -> set[str]:
        """By discovery, by counting and by `show`, which must agree."""

        async def sees(client: EntityClient) -> bool:
            listed = uuid in await uuids(client, query, language=language)
            assert (await client.count(query, language=language))[1] == listed
            try:
                return (await client.show(uuid)).uuid == uuid and listed
            except Absent:
                return listed

        answers = await asyncio.gather(*(sees(client) for client in self.clients.values()))
        return {name for name, seen in zip(self.clients, answers, strict=True) if seen}


@pytest.fixture(scope="module")
def folders(live: LiveNetwork) -> dict[str, Path]:
    """The owner, and a and b of institution X, c of Y."""
    return {
        name: live.entity(f"list-{name}", institution=place) for name, place in (("o", "O"), ("a", "X"), ("b", "X"), ("c", "Y"))
    }


@pytest.fixture
async def crowd(live: LiveNetwork, connect: Connect, folders: dict[str, Path]) -> Crowd:
    return Crowd({name: await connect(live, folder) for name, folder in folders.items()})


#: allow, deny, who then sees it. Names of the crowd stand for their ids.
LISTS: list[tuple[list[str], list[str], set[str]]] = [
    ([], [], {"o", "a", "b", "c"}),
    (["a"], [], {"o", "a"}),
    (["institution:X"], [], {"o", "a", "b"}),
    (["institution:X"], ["b"], {"o", "a"}),
    (["*"], ["institution:X"], {"o", "c"}),
    (["a"], ["a"], {"o"}),
    ([], ["*"], {"o"}),
    (["a", "c"], ["institution:X"], {"o", "c"}),
    ([], ["institution:O"], {"o", "a", "b", "c"}),
]


@pytest.mark.parametrize("number", range(len(LISTS)))
async def test_who_may_discover(live: LiveNetwork, crowd: Crowd, number: int) -> None:
    """T18: by entity, by institution, by everyone; barred wins; the owner always sees its own."""
    allow, deny, expected = LISTS[number]
    language = LANGUAGES[number % 4]
    mark = word()
    real = {name: crowd.id(name) for name in crowd.clients}
    chosen = lists([real.get(name, name) for name in allow], [real.get(name, name) for name in deny])
    descriptor, query = {
        "string": (path(f"hidden/{mark}"), mark),
        "regex": (path(f"hidden/{mark}"), f"{mark}$"),
        "sql": (properties([f"tag={mark}"]), f"tag = '{mark}'"),
        "xpath": (xml(f"<a t='{mark}'/>"), f"//a/@t = '{mark}'"),
    }[language]
    topic = await crowd["o"].create(descriptor, lists=chosen)
    await everywhere(live, topic)
    assert await crowd.who_sees(topic.uuid, query, language) == expected


async def test_lists_are_told_to_the_owner_alone(live: LiveNetwork, crowd: Crowd) -> None:
    """T18: the signed bytes hide the lists; the owner gets them back from any node, nobody else does."""
    mark = word()
    chosen = lists([crowd.id("a"), "institution:Y"], ["b-nobody"])
    topic = await crowd["o"].create(path(mark), lists=chosen)
    await everywhere(live, topic)
    for node in ("n1", "n2"):
        (mine,) = await found(crowd["o"], mark, nodes=[node])
        assert mine.lists == chosen
        assert mine.as_object()["discover_allow"] == sorted([crowd.id("a"), "institution:Y"])
        assert mine.as_object()["discover_deny"] == ["b-nobody"]
    assert (await crowd["o"].show(topic.uuid)).lists == chosen
    for name in ("a", "c"):
        (theirs,) = await found(crowd[name], mark)
        shown = await crowd[name].show(topic.uuid)
        for seen in (theirs, shown):
            assert (seen.opening, seen.lists) == (None, None)
            assert "opening" not in seen.as_object()
            assert "discover_allow" not in seen.as_object()
        assert crowd.id("a") not in str(theirs.advertisement)
    payload = statements.read(topic.token.encode(), statements.by_roots(live.credentials(Role.NODE, "n1").roots)).payload
    assert "institution:Y" not in str(payload)
    assert crowd.id("a") not in str(payload)


def sizes(live: LiveNetwork, raw: RawEntity, *, count: int) -> list[int]:
    """Take the next answers off a reply queue as the broker holds them: their sizes, before sealing."""
    overhead = len(sealing.seal(b"", raw.credentials.identity.public_key)) - sealing.STEPS[0]
    got: list[int] = []
    with live.as_node() as connection:
        channel = connection.channel()
        deadline = time.monotonic() + 15
        while len(got) < count:
            assert time.monotonic() < deadline, f"{len(got)} of {count} answers came"
            _, _, body = channel.basic_get(raw.queue, auto_ack=True)
            if body is None:
                connection.process_data_events(0.02)
                continue
            got.append(len(body) - overhead)
    return got


async def test_forbidden_and_absent_look_the_same(live: LiveNetwork, crowd: Crowd, folders: dict[str, Path]) -> None:
    """T18: the same words, and on the wire the same size; every size is one of a few."""
    mark = word()
    topic = await crowd["o"].create(xml(f"<a>{mark}{'x' * 20_000}</a>"), lists=lists([crowd.id("a")]))
    await everywhere(live, topic)
    other = mint_uuid()
    words = []
    for uuid in (topic.uuid, other):
        with pytest.raises(Absent) as absent:
            await crowd["c"].show(uuid)
        words.append(
            (str(absent.value).replace(uuid, "X"), {k: str(v).replace(uuid, "X") for k, v in absent.value.detail.items()})
        )
        # The asker's own, another for each question.
        assert words[-1][1].pop("request")
    assert words[0] == words[1]

    def look() -> tuple[list[int], list[int], list[int], list[int]]:
        raws = [RawEntity(live, folders[name]) for name in ("a", "c")]
        try:
            told = []
            for raw in raws:
                raw.introduce()
                for body in ({"uuid": topic.uuid}, {"uuid": other}):
                    raw.question(raw.seal(raw.write("show", body, audience="node:n1"), "n1"), "n1")
                    told.append(sizes(live, raw, count=1))
            found_by_a, found_by_c = [], []
            for raw, into in zip(raws, (found_by_a, found_by_c), strict=True):
                for query in (mark, word()):
                    body = {"language": "string", "query": query, "limit": 100}
                    raw.question(raw.seal(raw.write("discover", body, audience="node:n1"), "n1"), "n1")
                    into += sizes(live, raw, count=1)
            assert told[0] != told[1], "who may see it gets it"
            return told[2], told[3], found_by_a, found_by_c
        finally:
            for raw in raws:
                raw.close()

    forbidden, absent_size, by_a, by_c = await asyncio.to_thread(look)
    assert forbidden == absent_size
    assert by_c[0] == by_c[1], "an answer without it is an answer with nothing"
    assert by_a[0] > by_a[1]
    assert {*forbidden, *by_a, *by_c} <= set(sealing.STEPS)


def test_every_answer_has_one_of_a_few_sizes(live: LiveNetwork, many: tuple[str, list[Topic]]) -> None:
    """T18: pages, single topics, counts and errors alike."""
    mark, topics = many
    raw = RawEntity(live)
    try:
        raw.introduce()
        questions: list[tuple[str, dict[str, Any], int]] = [
            ("discover", {"language": "string", "query": mark, "limit": limit}, pages)
            for limit, pages in ((1, 1), (3, 1), (20, 1), (100, 1), (150, 2), (1000, 3))
        ]
        questions += [
            ("discover", {"language": "string", "query": mark, "limit": 1, "count": True}, 1),
            ("discover", {"language": "regex", "query": "(", "limit": 1}, 1),
            ("show", {"uuid": topics[0].uuid}, 1),
            ("show", {"uuid": mint_uuid()}, 1),
            ("lookup", {"principal": "node:n2"}, 1),
        ]
        seen: set[int] = set()
        for kind, body, count in questions:
            raw.question(raw.seal(raw.write(kind, body, audience="node:n1"), "n1"), "n1")
            seen |= set(sizes(live, raw, count=count))
        assert seen <= set(sealing.STEPS)
        assert len(seen) >= 3
    finally:
        raw.close()


# --- sealed topics -------------------------------------------------------------------------------------------------------------------

SEALED_QUERIES = {
    "string": "{w} depth",
    "regex": "depth='[0-9]+'",
    "sql": "descriptor_kind = 'xml' AND creator = '{c}'",
    "xpath": "//sonde[@mark = '{w}'][@depth > 100]",
    "xquery": "for $s in //sonde[@mark = '{w}'] where $s/@depth > 100 return $s",
}


@dataclass(frozen=True)
class Vault:
    word: str
    seconds: int
    owner: Path
    reader: Path
    stranger: Path
    barred: Path
    sealed: Topic
    plain: Topic
    later: Topic


@pytest.fixture(scope="module")
def vault(live: LiveNetwork) -> Vault:
    """A sealed topic between two plain ones that say the same."""
    mark, seconds = word(), lifetime()
    owner, reader, stranger, barred = (live.entity(name) for name in ("owner", "reader", "stranger", "barred"))

    async def fill() -> list[Topic]:
        for folder in (reader, stranger, barred):
            async with await live.client(folder) as client:
                await client.choose()
        async with await live.client(owner) as client:
            made: list[Topic] = []
            for readers in (None, [reader.name], None):
                if made:
                    await until(
                        lambda: datetime.now(UTC) >= made[-1].advertisement.created + timedelta(seconds=1), "the next second"
                    )
                made.append(
                    await client.create(
                        xml(f"<sonde mark='{mark}' depth='200'/>"),
                        sealed_for=readers,
                        lists=lists([], [barred.name]),
                        lifetime=timedelta(seconds=seconds),
                    )
                )
        await everywhere(live, *made)
        return made

    plain, sealed, later = asyncio.run(fill())
    return Vault(mark, seconds, owner, reader, stranger, barred, sealed, plain, later)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_sealed_topic_is_found_by_whom_it_names(live: LiveNetwork, connect: Connect, vault: Vault, language: str) -> None:
    """T9: in every language by the owner and those named, mixed with the plain ones; by nobody else, who finds the plain ones."""
    query = SEALED_QUERIES[language].format(w=vault.word, c=vault.owner.name)
    times = Times(valid_at_least=vault.seconds, valid_at_most=vault.seconds)
    for folder, expected in (
        (vault.owner, {vault.plain.uuid, vault.sealed.uuid, vault.later.uuid}),
        (vault.reader, {vault.plain.uuid, vault.sealed.uuid, vault.later.uuid}),
        (vault.stranger, {vault.plain.uuid, vault.later.uuid}),
        (vault.barred, set()),
    ):
        client = await connect(live, folder)
        assert await uuids(client, query, language=language, times=times) == expected, folder.name
        for topic in await found(client, query, language=language, times=times):
            assert topic.descriptor["kind"] == "xml"
            assert topic.is_sealed == (topic.uuid == vault.sealed.uuid)
        assert (await client.count(query, language=language, times=times))[1] == (2 if expected else 0), (
            "nodes count what they read"
        )


async def test_a_sealed_topic_by_uuid_and_time(live: LiveNetwork, connect: Connect, vault: Vault) -> None:
    """T9: everyone allowed gets it by UUID and by time; what is in it stays shut; who is barred gets nothing."""
    times = Times(valid_at_least=vault.seconds, valid_at_most=vault.seconds)
    for folder in (vault.owner, vault.reader, vault.stranger):
        client = await connect(live, folder)
        shown = await client.show(vault.sealed.uuid)
        listed = {topic.uuid: topic for topic in await found(client, times=times)}
        assert set(listed) == {vault.plain.uuid, vault.sealed.uuid, vault.later.uuid}
        for topic in (shown, listed[vault.sealed.uuid]):
            assert topic.is_sealed
            if folder == vault.stranger:
                assert topic.opened is None
                assert topic.as_object()["descriptor"] == {"kind": "sealed"}
            else:
                assert topic.as_object()["descriptor"]["xml"] == f"<sonde mark='{vault.word}' depth='200'/>"
            assert topic.as_object()["sealed"] is True
    barred = await connect(live, vault.barred)
    assert await uuids(barred, times=times) == set()
    with pytest.raises(Absent):
        await barred.show(vault.sealed.uuid)
    for readable in (vault.word, "sonde", vault.reader.name):
        assert readable not in str(vault.sealed.advertisement.descriptor)


async def test_sealed_and_plain_topics_in_one_order(live: LiveNetwork, connect: Connect, vault: Vault) -> None:
    """T9, T16: with limit and cursor nothing is left out and nothing comes twice, although sealed ones are matched by the asker."""
    client = await connect(live, vault.reader)
    times = Times(valid_at_least=vault.seconds, valid_at_most=vault.seconds)
    expected = [vault.plain.uuid, vault.sealed.uuid, vault.later.uuid]
    for language in LANGUAGES:
        query = SEALED_QUERIES[language].format(w=vault.word, c=vault.owner.name)
        for limit in (1, 2, 3):
            for nodes in (["n1"], []):
                got: list[str] = []
                cursor = None
                for _ in range(4):
                    discovery = client.discover(query, language=language, times=times, limit=limit, cursor=cursor, nodes=nodes)
                    page = [topic.uuid async for topic in discovery]
                    assert len(page) <= limit
                    got += page
                    cursor = discovery.cursor
                    if cursor is None:
                        break
                assert got == expected, (language, limit, nodes)


async def test_a_sealed_topic_renewed_and_withdrawn(live: LiveNetwork, connect: Connect, vault: Vault) -> None:
    """T9, T39: its state changes like any other's, and those who read it follow."""
    owner, reader = await connect(live, vault.owner), await connect(live, vault.reader)
    mark = word()
    topic = await owner.create(text(f"deep {mark}"), sealed_for=[vault.reader.name], lifetime=timedelta(hours=1))
    renewed = await owner.renew(topic.uuid, timedelta(days=2))

    async def followed() -> bool:
        return [seen.expires for seen in await found(reader, mark)] == [renewed.expires]

    await until(followed, "the reader to follow")
    (seen,) = await found(reader, mark)
    assert (seen.token, seen.opened) == (topic.token, {"kind": "text", "text": f"deep {mark}", "keywords": []})
    await owner.withdraw(topic.uuid)

    async def gone() -> bool:
        return await found(reader, mark) == []

    await until(gone, "it to be gone")
    with pytest.raises(Absent):
        await reader.show(topic.uuid)


async def test_sealing_for_nobody_known(live: LiveNetwork, connect: Connect) -> None:
    """T9: nothing is sealed for an entity whose key the network does not know, and nothing is minted."""
    client = await connect(live)
    with pytest.raises(Absent, match="does not know entity nobody-yet"):
        await client.create(path("a"), sealed_for=["nobody-yet"])
    mine = await client.create(path(f"only/{(mark := word())}"), sealed_for=[])
    assert await uuids(client, mark) == {mine.uuid}, "for oneself alone"


# --- nodes with a policy -------------------------------------------------------------------------------------------------------------


async def test_a_realm_node_beside_open_ones(particular: LiveNetwork, connect: Connect) -> None:
    """T11: it stores and answers for one institution; others are served by the open ones and notice nothing, unless they name it."""
    inside = await connect(particular, particular.entity("in", institution="physics"))
    outside = await connect(particular, particular.entity("out", institution="chemistry"))
    mark = word()
    ours = await inside.create(path(f"{mark}/physics"))
    theirs = await outside.create(path(f"{mark}/chemistry"))
    await everywhere(particular, ours, theirs, nodes=("n1", "n2", "n3"))

    policies = {node.id: node.policy async for node in outside.locate()}
    assert policies["n2"]["answers"] == policies["n2"]["stores"] == ["institution:physics"]
    assert policies["n1"]["answers"] == policies["n1"]["stores"] == ["*"]

    both = {ours.uuid, theirs.uuid}
    discovery = inside.discover(mark)
    assert {topic.uuid async for topic in discovery} == both
    assert discovery.answered == {"n1", "n2", "n3"}
    assert await uuids(inside, mark, nodes=["n2"]) == {ours.uuid}, "it stores its own institution's"
    assert await inside.count(mark, node="n2") == ("n2", 1)
    assert await uuids(inside, mark, nodes=["n1"]) == both

    discovery = outside.discover(mark)
    assert {topic.uuid async for topic in discovery} == both
    assert (discovery.answered, discovery.declined, discovery.failed) == ({"n1", "n3"}, {"n2"}, {})
    for attempt in (found(outside, mark, nodes=["n2"]), outside.count(mark, node="n2"), outside.create(path("a"), node="n2")):
        with pytest.raises(Refused, match="node n2 answers only institution:physics"):
            await attempt
    discovery = outside.discover(mark, nodes=["n1", "n2"])
    assert {topic.uuid async for topic in discovery} == both
    assert (discovery.answered, discovery.declined) == ({"n1"}, {"n2"})
    # Decisions are the network's: the realm node appends for everybody, and keeps the whole rule state.
    assert particular.fact("topic", theirs.uuid, "n2") == particular.fact("topic", theirs.uuid, "n1")


async def test_pages_over_nodes_with_different_stores(particular: LiveNetwork, connect: Connect) -> None:
    """T10, T16: a node that skips what it does not store is quick, and cursors still lead through all of it, each topic once, in order."""
    inside = await connect(particular, particular.entity("in", institution="physics"))
    outside = await connect(particular, particular.entity("out", institution="chemistry"))
    mark = word()
    topics = [await creator.create(path(f"{mark}/{number}")) for number, creator in enumerate([outside, outside, inside] * 2)]
    await everywhere(particular, *topics, nodes=("n1", "n2"))
    expected = [topic.uuid for topic in sorted(topics, key=lambda topic: topic.place)]
    for limit in (1, 4):
        got: list[str] = []
        cursor = None
        for _ in range(7):
            discovery = inside.discover(mark, nodes=["n1", "n2"], limit=limit, cursor=cursor)
            got += [topic.uuid async for topic in discovery]
            cursor = discovery.cursor
            if cursor is None:
                break
        assert got == expected, limit


async def test_only_a_realm_node_is_there(particular: LiveNetwork, connect: Connect) -> None:
    """T11, T17: whom it does not serve is declined aloud, which is not the silence in which entities ask each other."""
    inside = await connect(particular, particular.entity("in", institution="physics"))
    outside = await connect(particular, particular.entity("out", institution="chemistry"), timeout=6)
    mark = word()
    topic = await inside.create(path(mark))
    assert await found(outside, mark, nodes=["n1"]) is not None
    await outside.prepare_for_silence()
    await everywhere(particular, topic, nodes=("n2",))
    await asyncio.gather(*(asyncio.to_thread(particular.stop, node) for node in ("n1", "n3")))
    discovery = outside.discover(mark)
    with pytest.raises(Refused, match="answers others only: n2"):
        [topic async for topic in discovery]
    assert (discovery.declined, discovery.peers) == ({"n2"}, set())
    with pytest.raises(Refused):
        await outside.choose()
    assert await uuids(inside, mark) == {topic.uuid}
    # What it does not answer it still decides: changes are the network's.
    assert (await inside.renew(topic.uuid, timedelta(days=2))).uuid == topic.uuid


async def test_a_changed_policy_changes_what_is_stored(particular: LiveNetwork, connect: Connect) -> None:
    """T11: a node that becomes a realm of another institution builds its indexes anew, from the log."""
    physicist = await connect(particular, particular.entity("in", institution="physics"))
    chemist = await connect(particular, particular.entity("out", institution="chemistry"))
    mark = word()
    first, second = await physicist.create(path(f"{mark}/p")), await chemist.create(path(f"{mark}/c"))
    before = (particular.home.credentials(Role.NODE, "n2") / "node.toml").read_text()
    await everywhere(particular, first, second, nodes=("n2",))
    try:
        settings = '[policy]\nanswers = ["institution:chemistry"]\nstores = ["institution:chemistry"]\nkinds = ["path"]\n'
        await asyncio.to_thread(particular.configure, "n2", settings)
        with pytest.raises(Refused, match="institution:chemistry"):
            await found(physicist, mark, nodes=["n2"])
        assert await uuids(chemist, mark, nodes=["n2"]) == {second.uuid}
        prose = await chemist.create(text(f"{mark} in words"))
        await everywhere(particular, prose, nodes=("n1", "n2"))
        assert await uuids(chemist, mark, nodes=["n2"]) == {second.uuid}, "paths alone"
        assert await uuids(chemist, mark, nodes=["n1"]) == {first.uuid, second.uuid, prose.uuid}
    finally:
        await asyncio.to_thread(particular.configure, "n2", before)
    assert await uuids(physicist, mark, nodes=["n2"]) == {first.uuid}
