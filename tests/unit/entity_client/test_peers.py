"""T17: answering other entities: whose questions are taken, what is found for whom, and how much is said. Real credentials, no broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork
from pki import Pki

from entity_client import peers
from entity_client.discovery import Discovery, Wanted
from entity_client.objects import Topic, read_topic
from entity_client.peers import Answering, PeerAnswer, _page, _parts, recall_queue
from tdn.bus.connection import Delivery
from tdn.confined import frames
from tdn.errors import MalformedMessage, NoNodeAnswered, QueryError, Refused, TdnError, TrustError, UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext
from tdn.protocol.access import Asker
from tdn.protocol.names import Role
from tdn.trust import envelope, sealing
from tdn.trust.credentials import Credentials
from tdn.trust.statements import by_roots

#: When the tests were collected: what certificates and topics are dated by. Questions live for seconds, and are dated when they are asked.
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
SESSION = "ab" * 16


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class Neighbours:
    """A network whose certificates are valid now: questions between entities are judged by the clock."""

    def __init__(self) -> None:
        self.pki = Pki("neighbours", not_before=NOW - timedelta(days=2), not_after=NOW + timedelta(days=900))
        self.alice = self.person(Role.ENTITY, "alice")
        self.bob = self.person(Role.ENTITY, "bob")
        self.node = self.person(Role.NODE, "n1")
        self.net = LittleNetwork("neighbours")
        self.net.pki = self.pki

    def person(self, role: Role, name: str, **choices: Any) -> Credentials:
        return self.pki.credentials(role, name, not_before=NOW - timedelta(days=1), **choices)

    def topic(self, creator: Credentials | None = None, **choices: Any) -> Topic:
        """A topic as its owner has it, opening included."""
        who = creator or self.alice
        choices = {"at": NOW - HOUR, "lifetime": 3 * HOUR, "network": "ab" * 32, **choices}
        token = self.net.mint(who, node=self.node, **choices)
        opened = read_topic(token, by_roots(self.pki.roots), choices["network"], who.key)
        return replace(opened, opening=self.net._openings[token])

    def question(self, sender: Credentials | None = None, kind: str = "discover", body: Any = None, **choices: Any) -> bytes:
        who = sender or self.bob
        given = {
            "audience": "tdn:peers",
            "now": now(),
            "life": timedelta(seconds=20),
            "reply": SESSION,
            "with_chain": True,
            **choices,
        }
        return envelope.write(kind, {"limit": 10} if body is None else body, who, **given)


@pytest.fixture(scope="module")
def there() -> Neighbours:
    return Neighbours()


def delivery(body: bytes, login: str | None) -> Delivery:
    return Delivery(1, body, {}, None, "", False, None, login)


def answering(there: Neighbours, *topics: Topic, folder: Path = Path("nowhere")) -> Answering:
    session = SimpleNamespace(credentials=replace(there.alice, folder=folder), network="ab" * 32)
    found = Answering(cast(Any, SimpleNamespace(identity=there.alice.identity)), cast(Any, session))
    found._topics = list(topics)
    return found


# --- whose questions are taken ---


def test_a_question_is_admitted_once(there: Neighbours) -> None:
    """Signed by the key that the broker let in, for now; a second time it is a replay, to another it is another's first."""
    raw, login = there.question(), str(there.bob.identity.name)
    taking = answering(there)
    admitted = taking._admit(delivery(raw, login))
    assert admitted.signer.name == there.bob.identity.name
    assert admitted.body == {"limit": 10}
    with pytest.raises(TrustError, match="was received before"):
        taking._admit(delivery(raw, login))
    answering(there)._admit(delivery(raw, login))


def test_refused_questions(there: Neighbours) -> None:
    """Each for its own reason, and none is remembered: the good one that follows is taken."""
    bob, login = there.bob, str(there.bob.identity.name)
    other = str(there.person(Role.ENTITY, "bob", generation=2).identity.name)
    strangers = Pki("strangers", not_before=NOW - timedelta(days=2), not_after=NOW + timedelta(days=9))
    stranger = strangers.credentials(Role.ENTITY, "bob", not_before=NOW - timedelta(days=1))
    cases: list[tuple[bytes, str | None, type[TdnError], str]] = [
        (there.question(), str(there.alice.identity.name), TrustError, "another login than its signature names"),
        (there.question(), other, TrustError, "another login"),
        (there.question(), None, TrustError, "another login"),
        (there.question(), "", TrustError, "another login"),
        (there.question(audience="node:n1"), login, TrustError, "addressed to somebody else"),
        (there.question(audience="tdn:nodes"), login, TrustError, "addressed to somebody else"),
        (there.question(now=now() - timedelta(minutes=10)), login, TrustError, "has expired"),
        (there.question(now=now() + timedelta(minutes=10)), login, TrustError, "dated in the future"),
        (there.question(life=timedelta(days=1)), login, TrustError, "live longer"),
        (there.question(with_chain=False), login, TrustError, "does not carry its certificate chain"),
        (there.question(stranger), str(stranger.identity.name), TrustError, "does not lead to a trusted root"),
        (there.question(there.node), str(there.node.identity.name), TrustError, "only entities ask and answer each other"),
        (there.question(reply=None), login, UsageError, "entities answer discoveries alone"),
        (there.question(body={"limit": 1, "sealed": True}), login, UsageError, "entities answer discoveries alone"),
        (there.question(body={"limit": 1, "count": True}), login, UsageError, "entities answer discoveries alone"),
        (there.question(kind="locate", body={}), login, UsageError, "entities answer discoveries alone"),
        (
            there.question(kind="withdraw", body={"uuid": "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"}),
            login,
            UsageError,
            "discoveries alone",
        ),
        (there.question()[:-1], login, TrustError, ""),
        (there.question() + b"~more", login, TrustError, "not what was signed"),
        (b"x" * (jsontext.MAX_REQUEST_BYTES + 1), login, UsageError, "too long"),
        (b"", login, MalformedMessage, ""),
        (sealing.seal(there.question(), there.alice.identity.public_key), login, MalformedMessage, ""),
    ]
    taking = answering(there)
    for raw, named, error, fragment in cases:
        with pytest.raises((TrustError, UsageError, MalformedMessage)) as caught:
            taking._admit(delivery(raw, named))
        assert fragment in caught.value.message, fragment
        if fragment:
            assert type(caught.value) is error
    taking._admit(delivery(there.question(bob), login))


def test_a_certificate_that_has_ended(there: Neighbours) -> None:
    """The chain that comes along must be valid now."""
    late = there.pki.credentials(Role.ENTITY, "carol", not_before=NOW - timedelta(days=1), not_after=NOW - HOUR)
    with pytest.raises(TrustError, match="expired"):
        answering(there)._admit(delivery(there.question(late), str(late.identity.name)))


# --- what is found for whom ---


async def _found(taking: Answering, asker: Asker, body: dict[str, Any]) -> list[str]:
    return [topic.uuid for topic in await taking._find(asker, body)]


def test_lists_times_expiry_and_order(there: Neighbours) -> None:
    """T17, T18: own live topics that the asker may see, in the order of answers, after the cursor."""
    everyone = there.topic(at=NOW - timedelta(minutes=50))
    for_bob = there.topic(lists={"discover_allow": ["bob"]}, at=NOW - timedelta(minutes=40))
    not_local = there.topic(lists={"discover_deny": ["institution:local"]}, at=NOW - timedelta(minutes=30))
    ended = there.topic(lifetime=timedelta(minutes=10), at=NOW - timedelta(minutes=45))
    taking = answering(there, not_local, for_bob, ended, everyone)
    bob, carol, abroad = Asker("bob", "local"), Asker("carol", "local"), Asker("erin", "Elsewhere")

    async def look() -> None:
        assert await _found(taking, bob, {"limit": 10}) == [everyone.uuid, for_bob.uuid]
        assert await _found(taking, carol, {"limit": 10}) == [everyone.uuid]
        assert await _found(taking, abroad, {"limit": 10}) == [everyone.uuid, not_local.uuid]
        assert await _found(taking, bob, {"limit": 10, "cursor": everyone.place}) == [for_bob.uuid]
        assert await _found(taking, bob, {"limit": 10, "times": {"valid_at_most": 60}}) == []
        since = {"created_after": (NOW - timedelta(minutes=45)).strftime("%Y-%m-%dT%H:%M:%SZ")}
        assert await _found(taking, bob, {"limit": 10, "times": since}) == [for_bob.uuid]

    asyncio.run(look())


def test_a_topic_whose_lists_are_unknown_is_not_shown(there: Neighbours) -> None:
    """T18: without its opening nobody can tell who may see it."""
    topic = replace(there.topic(), opening=None)
    assert asyncio.run(_found(answering(there, topic), Asker("bob", "local"), {"limit": 10})) == []


def test_a_query_is_given_neither_hidden_nor_sealed_topics(there: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    """T9, T18: what goes to the process that matches is what the asker may see; where nothing does, nothing is asked of it."""
    plain = there.topic(descriptor=descriptors.path("snow/a"))
    hidden = there.topic(descriptor=descriptors.path("snow/b"), lists={"discover_deny": ["bob"]})
    taking = answering(there, plain, hidden)
    jobs: list[dict[str, Any]] = []

    async def run(job: dict[str, Any], *, asker: str, heavy: bool) -> Any:
        jobs.append({**job, "asker": asker, "heavy": heavy})
        return {"matches": list(range(len(job["subjects"])))}, []

    monkeypatch.setattr(taking._lanes, "run", run)
    assert asyncio.run(_found(taking, Asker("bob", "local"), {"limit": 10, "language": "xquery", "query": "1"})) == [plain.uuid]
    assert [subject["uuid"] for subject in jobs[0]["subjects"]] == [plain.uuid]
    assert (jobs[0]["asker"], jobs[0]["heavy"]) == ("bob", True)
    only_hidden = answering(there, hidden)
    monkeypatch.setattr(only_hidden._lanes, "run", None)
    assert asyncio.run(_found(only_hidden, Asker("bob", "local"), {"limit": 10, "query": "snow"})) == []


# --- how much is said ---


class Replies:
    """Where an answer is published: a connection, and its one channel."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, bytes]] = []
        self.closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def channel(self, **how: Any) -> Replies:
        return self

    async def publish(self, exchange: str, key: str, body: bytes, **more: Any) -> None:
        self.sent.append((exchange, key, body))


async def _answers(taking: Answering, raws: list[bytes], login: str) -> AsyncIterator[tuple[Any, Replies]]:
    for raw in raws:
        replies = Replies()
        taking._answers = None
        yield await taking._answer(delivery(raw, login), cast(Any, replies)), replies


def test_an_answer(there: Neighbours) -> None:
    """Sealed to the asker, signed by the owner, to the asker's own queue; without what the topics hide, which is the owner's alone."""
    topic = there.topic(lists={"discover_allow": ["bob"]})
    taking, login = answering(there, topic), str(there.bob.identity.name)

    async def ask() -> None:
        async for told, replies in _answers(taking, [there.question()], login):
            assert told == peers.Answered("bob", 1)
            ((exchange, key, body),) = replies.sent
            assert (exchange, key) == ("tdn.peer-replies", f"Peer.bob.{SESSION}")
            raw = sealing.unseal(body, there.bob.key)
            answer = envelope.authenticate(raw, lambda _: there.alice.identity)
            assert answer.tail == topic.line(hidden=False)
            assert answer.body == {"page": 1, "last": True, "count": 1}
            assert there.net._openings[topic.token.encode()]["access"]["salt"].encode() not in raw

    asyncio.run(ask())


def test_nothing_to_show_is_silence(there: Neighbours) -> None:
    """T18: no answer to who sees nothing, nor to oneself: whether there is a hidden topic does not show."""
    hidden = there.topic(lists={"discover_deny": ["bob"]})

    async def ask() -> None:
        for taking, who in (
            (answering(there, hidden), there.bob),
            (answering(there), there.bob),
            (answering(there, hidden), there.alice),
        ):
            async for told, replies in _answers(taking, [there.question(who)], str(who.identity.name)):
                assert told is None
                assert replies.sent == []

    asyncio.run(ask())


def test_nobody_is_answered_without_end(there: Neighbours) -> None:
    """T17: a limited rate to each asker; the burst, and then silence."""
    taking, login = answering(there, there.topic()), str(there.bob.identity.name)

    async def ask() -> int:
        return sum([told is not None async for told, _ in _answers(taking, [there.question() for _ in range(60)], login)])

    assert 20 <= asyncio.run(ask()) < 40


def test_page_bounds(there: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as asked for, no more bytes than a page, one at least; the cursor says where the rest begins."""
    topics = [there.topic(at=NOW - HOUR + timedelta(seconds=number)) for number in range(5)]
    lines = [topic.line(hidden=False) for topic in topics]
    assert _page(topics, 10) == (lines, None)
    assert _page(topics, 5) == (lines, None)
    assert _page(topics, 4) == (lines[:4], topics[3].place)
    assert _page(topics, 1) == (lines[:1], topics[0].place)
    assert _page([], 3) == ([], None)
    size = len(lines[0]) + 1
    assert {len(line) + 1 for line in lines} == {size}
    for most, count in ((0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size, 5)):
        monkeypatch.setattr(peers, "_ANSWER_BYTES", most)
        assert _page(topics, 10) == (lines[:count], topics[count - 1].place if count < 5 else None)


def test_a_full_page_can_be_sent() -> None:
    """Signed and in base64 a page stays below what can be sealed in one message."""
    assert sealing.STEPS[-1] > peers._ANSWER_BYTES + 65_536


# --- reading others' answers ---


def answer_of(
    there: Neighbours, sender: Credentials, *, answers: str = "question-1", kind: str = "discovered", **choices: Any
) -> bytes:
    body: dict[str, Any] = {"page": 1, "last": True, "count": 0} if kind == "discovered" else {}
    given = {"audience": "entity:bob", "now": now(), "life": timedelta(seconds=20), "with_chain": True, **choices}
    return sealing.seal(envelope.write(kind, body, sender, answers=answers, **given), there.bob.identity.public_key)


def test_others_answers(there: Neighbours) -> None:
    """Only an entity's, sealed to us, to our question, fresh. Whatever else comes is not believed."""
    session = cast(Any, SimpleNamespace(credentials=there.bob))
    login = str(there.alice.identity.name)
    good = peers._read_answer(session, delivery(answer_of(there, there.alice), login), "question-1")
    assert good.signer.name.id == "alice"
    for named in (None, "", str(there.bob.identity.name), str(there.person(Role.ENTITY, "alice", generation=2).identity.name)):
        with pytest.raises(TrustError, match="another login than its signature names"):
            peers._read_answer(session, delivery(answer_of(there, there.alice), named), "question-1")
    for raw, fragment in (
        (answer_of(there, there.alice, answers="question-2"), "not an answer to what was asked"),
        (answer_of(there, there.alice, kind="decided"), "not an answer to what was asked"),
        (answer_of(there, there.node), "only entities ask and answer each other"),
        (answer_of(there, there.alice, audience="entity:carol"), "addressed to somebody else"),
        (answer_of(there, there.alice, now=now() - timedelta(minutes=10)), "has expired"),
        (answer_of(there, there.alice, with_chain=False), "does not carry its certificate chain"),
        (sealing.unseal(answer_of(there, there.alice), there.bob.key), "is not sealed"),
        (sealing.seal(b"x", there.alice.identity.public_key), "not sealed to this key"),
    ):
        with pytest.raises(TrustError, match=fragment):
            peers._read_answer(session, delivery(raw, login), "question-1")


# --- what is remembered ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"session": "x", "made": 1}',
        f'{{"session": "{SESSION}", "made": "soon"}}',
        f'{{"session": "{SESSION}"}}',
        "null",
    ],
)
def test_a_damaged_memory_counts_as_none(tmp_path: Path, text: str) -> None:
    assert recall_queue(tmp_path, "ask") is None
    (tmp_path / "peer-ask.json").write_text(text)
    assert recall_queue(tmp_path, "ask") is None


def test_a_remembered_queue(tmp_path: Path) -> None:
    (tmp_path / "peer-ask.json").write_text(f'{{"session": "{SESSION}", "made": 0}}')
    found = recall_queue(tmp_path, "ask")
    assert found is not None
    assert (found.session, found.made.year) == (SESSION, 1970)
    assert recall_queue(tmp_path, "answer") is None


def test_own_topics_are_remembered_and_verified_again(there: Neighbours, tmp_path: Path) -> None:
    """T17: answering begins from what was remembered; a damaged line, or another's topic, is left out."""
    mine, foreign = there.topic(lists={"discover_deny": ["zoe"]}), there.topic(there.bob)
    taking = answering(there, mine, foreign, replace(there.topic(), opening=None), folder=tmp_path)
    taking._remember()
    again = answering(there, folder=tmp_path)
    again._recall()
    assert again._topics == [mine]
    path = tmp_path / "answering.json"
    assert path.stat().st_mode & 0o077 == 0
    for damaged in ("", "{", "[1, null]", '["x"]', "[" + path.read_text()[1:].replace("ey", "fy", 1)):
        path.write_text(damaged)
        after = answering(there, folder=tmp_path)
        after._recall()
        assert after._topics == []


# --- learning of one's own topics ---


class Answers:
    """A discovery that nodes answered: its topics, and where it would go on."""

    def __init__(self, *topics: Topic, answered: bool = True, cursor: str | None = None) -> None:
        self._topics = topics
        self.answered = {"n1"} if answered else set()
        self.cursor = cursor

    async def __aiter__(self) -> AsyncIterator[Topic]:
        for topic in self._topics:
            yield topic


class Owner:
    """A client whose discoveries come out as told, one after the other: an answer, or an error."""

    def __init__(self, there: Neighbours, *outcomes: Answers | Exception) -> None:
        self.identity = there.alice.identity
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, str | None]] = []

    def discover(self, query: str, *, language: str, limit: int, cursor: str | None) -> Answers:
        assert language == "sql"
        self.asked.append((query, cursor))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Deserted:
    """A client of a network whose nodes are silent. Its discoveries are real ones."""

    def __init__(self, there: Neighbours, session: Any) -> None:
        self.identity, self.asker = there.alice.identity, Asker("alice", "local")
        self.seen, self.timeout = 0, 5.0
        self.sealed_before: dict[str, Any] = {}
        self._session = session

    def discover(self, query: str, *, language: str, limit: int, cursor: str | None) -> Discovery:
        wanted = Wanted(language, query)
        return Discovery(cast(Any, self), self._session, wanted=wanted, nodes=frozenset(), limit=limit, cursor=cursor)

    def nodes_about(self) -> list[Any]:
        return []

    def forget_nodes(self) -> None:
        pass

    async def locate(self, *, expect: Any) -> AsyncIterator[Any]:
        raise NoNodeAnswered("no node answered")
        yield


def made_queue(folder: Path) -> None:
    """A fresh queue is remembered, so that no node is asked for one."""
    (folder / "peer-answer.json").write_text(f'{{"session": "{SESSION}", "made": {NOW.timestamp()}}}')


async def refreshed(taking: Answering, enough: Callable[[], bool]) -> None:
    """Look for own topics again and again, until it was often enough."""
    running = asyncio.create_task(taking._refresh())
    async with asyncio.timeout(10):
        while not enough():
            assert not running.done(), running
            await asyncio.sleep(0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("nothing", [True, False], ids=["nothing of ours", "an old one of ours"])
async def test_entities_tell_us_nothing_of_our_own_topics(
    there: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing: bool
) -> None:
    """T17: while no node is there, whoever answers in their place could make us forget our topics, or their lists."""
    made_queue(tmp_path)
    mine = there.topic(lists={"discover_deny": ["mallory"]})
    taking = answering(there, mine, folder=tmp_path)
    taking._client = cast(Any, Deserted(there, taking._session))
    taking._remember()
    written = (tmp_path / "answering.json").read_bytes()
    heard = 0

    async def ask(session: Any, body: Any, *, seconds: float) -> AsyncIterator[PeerAnswer]:
        nonlocal heard
        yield PeerAnswer("mallory", [] if nothing else [there.topic().line()], None)
        heard += 1

    monkeypatch.setattr(peers, "ask", ask)
    with pytest.raises(NoNodeAnswered):
        await taking._fetch()
    assert heard == 1
    monkeypatch.setattr(peers, "_REFRESH_SECONDS", 0)
    await refreshed(taking, lambda: heard > 3)
    assert taking._topics == [mine]
    assert (tmp_path / "answering.json").read_bytes() == written
    assert taking.ready.is_set(), "what is remembered is answered for"


async def test_nodes_are_believed(there: Neighbours) -> None:
    """T17: all pages of an answer of nodes; one's own topics alone, those whose lists are known. None at all is an answer too."""
    first, second, foreign = there.topic(), there.topic(), there.topic(there.bob)
    unknown = replace(there.topic(), opening=None)
    taking = answering(there, there.topic())
    client = Owner(there, Answers(first, foreign, cursor=first.place), Answers(unknown, second))
    taking._client = cast(Any, client)
    await taking._fetch()
    assert taking._topics == [first, second]
    assert client.asked == [("owner = 'alice'", None), ("owner = 'alice'", first.place)]
    client.outcomes = [Answers()]
    await taking._fetch()
    assert taking._topics == []


async def test_nodes_that_go_away_in_between(there: Neighbours) -> None:
    """Half of an answer is no answer."""
    known, first = there.topic(), there.topic()
    taking = answering(there, known)
    taking._client = cast(Any, Owner(there, Answers(first, cursor=first.place), Answers(answered=False)))
    with pytest.raises(NoNodeAnswered):
        await taking._fetch()
    assert taking._topics == [known]


async def test_looking_goes_on_whatever_a_node_says(there: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T17: a refusal, by policy or by rate, must not end the answering: what is known stays, and what is new is learnt later."""
    made_queue(tmp_path)
    monkeypatch.setattr(peers, "_REFRESH_SECONDS", 0)
    known, new = there.topic(), there.topic()
    taking = answering(there, known, folder=tmp_path)
    seen: list[list[Topic]] = []
    client = Owner(
        there,
        Refused("every node that is there answers others only"),
        UsageError("the cursor is not one of ours"),
        QueryError("too long"),
        TrustError("expired"),
        NoNodeAnswered("none"),
        Answers(new),
        *[Answers(new) for _ in range(1000)],
    )
    real = client.discover

    def discover(*query: Any, **how: Any) -> Answers:
        seen.append(list(taking._topics))
        return real(*query, **how)

    monkeypatch.setattr(client, "discover", discover)
    taking._client = cast(Any, client)
    await refreshed(taking, lambda: len(seen) > 6)
    assert seen[:7] == [[known]] * 6 + [[new]]
    assert taking.ready.is_set()
    again = answering(there, folder=tmp_path)
    again._recall()
    assert again._topics == [new]


# --- jobs for the process that matches ---


@pytest.mark.parametrize("sign", ["x", "\u00e9", "\u96ea", "\U0001f328"], ids=["ASCII", "two bytes", "three bytes", "four bytes"])
async def test_jobs_are_small_enough(there: Neighbours, monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    """T17: seventy topics of the largest size go in several frames. In one they would be refused, and no question be answered at all."""
    document = f"<snow>{sign * min(65_000, 80_000 // len(sign.encode()))}</snow>"
    one = there.topic(descriptor=descriptors.xml(document))
    topics = [
        replace(one, advertisement=replace(one.advertisement, uuid=f"3f0c9b52-7a1e-4c83-9d41-{number:012d}"))
        for number in range(70)
    ]
    taking = answering(there, *topics)
    sizes: list[int] = []

    async def run(job: dict[str, Any], *, asker: str, heavy: bool) -> Any:
        sizes.append(len(frames.encode({"job": job})))
        # All but the first of each: numbers are those of the part.
        return {"matches": list(range(1, len(job["subjects"])))}, []

    monkeypatch.setattr(taking._lanes, "run", run)
    found = await taking._find(Asker("bob", "local"), {"limit": 100, "query": "snow"})
    assert len(sizes) > 5
    assert sum(sizes) > frames.MAX_OBJECT_BYTES
    assert len(found) == 70 - len(sizes)
    parts = list(_parts(topics))
    assert [topic for part in parts for topic in part] == topics
    firsts = {part[0].uuid for part in parts}
    assert {topic.uuid for topic in found} == {topic.uuid for topic in topics} - firsts


def test_parts(there: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit, one at least, all of them, in order."""
    topics = [there.topic() for _ in range(5)]
    size = len(topics[0].token)
    assert {len(topic.token) for topic in topics} == {size}
    for most, counts in (
        (0, [1] * 5),
        (size, [1] * 5),
        (2 * size - 1, [1] * 5),
        (2 * size, [2, 2, 1]),
        (4 * size, [4, 1]),
        (9 * size, [5]),
    ):
        monkeypatch.setattr(peers, "_JOB_BYTES", most)
        parts = list(_parts(topics))
        assert [len(part) for part in parts] == counts
        assert [topic for part in parts for topic in part] == topics
    assert list(_parts([])) == []


# --- taking questions ---


class Line(Replies):
    """A connection with a queue of questions, and what was acknowledged of them."""

    def __init__(self, *questions: Delivery) -> None:
        super().__init__()
        self.questions = questions
        self.acked: list[int] = []

    async def consume(self, queue: str, take: Callable[[Delivery], None], **how: Any) -> None:
        assert how["no_ack"] is False
        for question in self.questions:
            take(question)

    def ack(self, tag: int) -> None:
        self.acked.append(tag)


async def test_every_question_is_acknowledged(
    there: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T17: one that is refused, and one that finds a bug of ours, must not come again nor keep the next from being answered."""
    made_queue(tmp_path)
    taking = answering(there, there.topic(), folder=tmp_path)
    troubles: list[Exception] = [
        Refused("no"),
        QueryError("bad"),
        frames.BadFrame("a frame of 5000000 + 0 bytes"),
        frames.WorkFailed("Traceback"),
        KeyError("limit"),
        RuntimeError("a bug"),
    ]
    real, waiting = taking._find, list(troubles)

    async def find(asker: Asker, body: Any) -> list[Topic]:
        if waiting:
            raise waiting.pop(0)
        return await real(asker, body)

    monkeypatch.setattr(taking, "_find", find)
    login = str(there.bob.identity.name)
    raws = [b"", b"junk", *(there.question() for _ in range(len(troubles) + 2))]
    line = Line(*(replace(delivery(raw, login), tag=tag) for tag, raw in enumerate(raws, 1)))

    async def connect(seconds: float) -> Line:
        return line

    taking._session.line = connect  # type: ignore[method-assign, assignment]
    answered: asyncio.Queue[peers.Answered] = asyncio.Queue()
    serving = asyncio.create_task(taking._serve_once(answered))
    async with asyncio.timeout(10):
        assert [await answered.get() for _ in range(2)] == [peers.Answered("bob", 1)] * 2
        while len(line.acked) < len(raws):
            assert not serving.done(), serving
            await asyncio.sleep(0)
    assert sorted(line.acked) == list(range(1, len(raws) + 1))
    assert len(line.sent) == 2
    # A bug is told with its traceback, and each once.
    bugs = [record.exc_info[1] for record in caplog.records if record.name == peers.__name__ and record.exc_info]
    assert bugs == [trouble for trouble in troubles if not isinstance(trouble, TdnError)]
    line.closed.set_result(None)
    async with asyncio.timeout(10):
        await serving


async def test_nothing_is_acknowledged_on_a_channel_that_closed(there: Neighbours) -> None:
    """The broker hands the question out again."""
    taking, line = answering(there), Line()
    line.closed.set_result(None)
    await taking._take(delivery(b"", None), cast(Any, line), cast(Any, line), asyncio.Queue())
    assert line.acked == []
