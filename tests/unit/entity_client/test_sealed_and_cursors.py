"""T9, T15 to T17: what a discovery makes of sealed topics, late nodes and what other entities say. Real credentials, no broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork, fresh_uuid
from pki import T0

from entity_client import discovery as discovering
from entity_client import peers
from entity_client.discovery import Arrivals, Discovery, Wanted
from entity_client.objects import Topic, read_topic
from entity_client.peers import PeerAnswer
from tdn.errors import TdnError
from tdn.node import questions
from tdn.protocol import descriptor as descriptors
from tdn.trust import sealed
from tdn.trust.credentials import Credentials
from tdn.trust.statements import by_roots

NET = LittleNetwork("sealed and cursors")
ALICE, BOB = NET.entity("alice"), NET.entity("bob")
NODES = [NET.node(name) for name in NET.node_ids]
UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"


def mint(number: int = 0, *readers: Credentials, creator: Credentials = ALICE) -> bytes:
    """A topic, created so many seconds after the first; sealed, where readers are named."""
    descriptor: Mapping[str, Any] = descriptors.path(f"snow/{number}")
    if readers:
        keys = [who.identity.public_key for who in readers]
        descriptor = sealed.seal_descriptor(descriptor, creator=creator.identity.name.id, network=NET.id, readers=keys)
    return NET.mint(creator, uuid=fresh_uuid(), at=T0 + timedelta(seconds=number), descriptor=descriptor)


def place_of(token: bytes) -> str:
    return read_topic(token, by_roots(NET.pki.roots), NET.id, None).place


class Nodes:
    """A session with nodes that all have the same sealed topics, and give them one at a time."""

    network = NET.id
    credentials = BOB

    def __init__(self, tokens: Sequence[bytes] = ()) -> None:
        self.tokens = tokens
        self.asked: list[str] = []

    async def ask(self, kind: str, body: Mapping[str, Any], identity: Any, **more: Any) -> AsyncIterator[Any]:
        assert kind == "discover"
        self.asked.append(identity.name.id)
        after = body.get("cursor", "")
        rest = [token for token in self.tokens if place_of(token) > after]
        page: dict[str, Any] = {"page": 1, "last": True, "count": len(rest[:1])}
        if len(rest) > 1:
            page["cursor"] = place_of(rest[0])
        yield SimpleNamespace(kind="discovered", body=page, tail=rest[0] if rest else None, as_of=None)


class Client(SimpleNamespace):
    """What a discovery keeps from one to the next."""

    def __init__(self) -> None:
        super().__init__(seen=0, timeout=5.0, sealed_before={})


def discovery(
    client: Client | None = None, session: Nodes | None = None, *, cursor: str | None = None, query: str | None = None
) -> Discovery:
    return Discovery(
        cast(Any, client or Client()),
        cast(Any, session or Nodes()),
        wanted=Wanted(query=query),
        nodes=frozenset(),
        limit=2,
        cursor=cursor,
    )


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sealed contents that our key was tried on."""
    contents: list[str] = []
    real = sealed.open_descriptor

    def count(descriptor: Mapping[str, Any], **rest: Any) -> dict[str, Any] | None:
        contents.append(descriptor["content"])
        return real(descriptor, **rest)

    monkeypatch.setattr(sealed, "open_descriptor", count)
    return contents


# --- sealed topics ---


async def test_each_is_tried_once_for_all_nodes_and_discoveries(tried: list[str]) -> None:
    """T9: what three nodes give, twice over, costs one try each; for us or not, the answer is the same every time."""
    ours, others = mint(1, ALICE, BOB), mint(2, ALICE)
    session, client = Nodes([ours, others]), Client()
    for _ in range(2):
        looking = discovery(client, session, query="snow")
        for node in NODES:
            found = await looking._ask_sealed(
                cast(Any, SimpleNamespace(id=node.identity.name.id, identity=node.identity)), None, None
            )
            assert [topic.descriptor for topic in found] == [descriptors.path("snow/1")]
        assert looking.unopened == 0
        assert looking.disbelieved == []
    assert len(session.asked) == 12
    assert len(tried) == len(set(tried)) == 2


def test_another_advertisement_is_tried_for_itself(tried: list[str]) -> None:
    """T9: by the advertisement's digest, not by the content: under another creator's name, copied content does not open."""
    client = Client()
    content = sealed.seal_descriptor(descriptors.path("snow"), creator="alice", network=NET.id, readers=[BOB.identity.public_key])
    stolen = NET.mint(NET.entity("mallory"), descriptor=content)
    looking = discovery(client)
    read = [looking._read("n1", token) for token in (NET.mint(ALICE, descriptor=content), stolen)]
    assert [topic is not None and topic.opened is not None for topic in read] == [True, False]
    assert len(tried) == 2


def test_plain_topics_are_not_tried(tried: list[str]) -> None:
    topic = discovery()._read("n1", mint())
    assert topic is not None
    assert topic.opened is None
    assert tried == []


async def test_after_a_while_no_more_are_tried(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """T9: many that are for nobody take a bounded time; how many were not tried is told; and no more are fetched."""
    monkeypatch.setattr(discovering, "_OPENING_SECONDS", 0.0)
    tokens = [mint(number, ALICE) for number in range(1, 6)]
    session, client = Nodes(tokens), Client()
    looking = discovery(client, session, query="snow")
    node = cast(Any, SimpleNamespace(id="n1", identity=NODES[0].identity))
    assert await looking._ask_sealed(node, None, None) == []
    assert len(tried) == 1
    assert looking.unopened == 1
    assert len(session.asked) == 2
    # The next discovery begins where this one ended: what was tried is known, and one more is.
    again = discovery(client, session, query="snow")
    await again._ask_sealed(node, None, None)
    assert len(tried) == len(set(tried)) == 2


def test_what_was_not_tried_is_still_a_topic(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown as sealed, when no query was asked; nobody is said to have lied."""
    monkeypatch.setattr(discovering, "_OPENING_SECONDS", -1.0)
    looking = discovery()
    topic = looking._read("n1", mint(1, ALICE, BOB))
    assert topic is not None
    assert topic.is_sealed
    assert topic.opened is None
    assert (looking.unopened, looking.disbelieved, tried) == (1, [], [])


def test_what_is_known_counts_for_nothing(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was opened before is opened also when there is no time for trying."""
    client, token = Client(), mint(1, ALICE, BOB)
    assert discovery(client)._read("n1", token) is not None
    monkeypatch.setattr(discovering, "_OPENING_SECONDS", -1.0)
    looking = discovery(client)
    topic = looking._read("n1", token)
    assert topic is not None
    assert topic.opened == descriptors.path("snow/1")
    assert looking.unopened == 0
    assert len(tried) == 1


def test_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovering, "_SEALED_KNOWN", 3)
    client = Client()
    looking = discovery(client)
    for number in range(8):
        assert looking._read("n1", mint(number, ALICE)) is not None
        assert len(client.sealed_before) <= 3


# --- where to go on ---


def test_a_late_topic_before_everything() -> None:
    """T16: a node that was late has a topic before all that were shown: the next answer begins before everything, in a cursor that nodes take."""
    late, first, second = mint(0), mint(1), mint(2)
    looking = discovery()
    looking._note_cursor(place_of(second))
    looking._mind({place_of(late)}, [place_of(first), place_of(second)])
    assert looking.cursor is not None
    assert looking.cursor < place_of(late)
    assert questions._read_cursor(looking.cursor) < (place_of(late).split("_")[0], "")
    assert discovering._is_place(looking.cursor)


def test_a_late_topic_when_nothing_more_was_announced() -> None:
    """T16: also when no node has more to give."""
    late, first = mint(0), mint(1)
    looking = discovery()
    looking._mind({place_of(late)}, [place_of(first)])
    assert looking.cursor == discovering._BEGINNING


async def test_going_on_finds_what_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: the whole way: shown without it, and found from the cursor."""
    late, first, second = mint(0), mint(1), mint(2)
    looking = discovery()

    async def feed(arrived: Arrivals, errors: list[TdnError]) -> None:
        topics = [cast(Topic, looking._read("n1", token)) for token in (first, second, late)]
        arrived.begin("n1")
        for topic in topics:
            arrived.add("n1", topic)
        arrived.end("n1")
        arrived.end("")
        looking.answered.add("n1")

    monkeypatch.setattr(looking, "_feed", feed)
    shown = [topic.place async for topic in looking]
    assert shown == [place_of(first), place_of(second)]
    assert looking.cursor is not None
    assert looking.cursor < place_of(late)


# --- what other entities say ---


async def _from_peers(monkeypatch: pytest.MonkeyPatch, looking: Discovery, *answers: PeerAnswer) -> list[str]:
    async def ask(session: Any, body: Any, *, seconds: float) -> AsyncIterator[PeerAnswer]:
        for answer in answers:
            yield answer

    monkeypatch.setattr(peers, "ask", ask)
    arrived = Arrivals()
    errors: list[TdnError] = []
    await looking._ask_peers(arrived, errors)
    assert errors == []
    async with asyncio.timeout(5):
        return [topic.uuid async for topic in arrived]


OURS = f"2027-01-01T00:00:05Z_{UUID}"
BAD_CURSORS = [
    "",
    "_",
    "0",
    "zzz",
    "2027-01-01T00:00:09Z",
    f"_{UUID}",
    f"9999_{UUID}",
    "2027-01-01T00:00:09Z_x",
    f"2027-01-01T00:00:09Z_{UUID}_more",
    f"2027-13-01T00:00:09Z_{UUID}",
    f"2027-01-01T14:00:00+14:00_{UUID}",
    f"2027-01-01T00:00:09.5Z_{UUID}",
    f"2027-01-01T00:00:09z_{UUID}",
    f"2027-01-01T00:00:09Z_{UUID.upper()}",
    f"2027-01-01T00:00:04Z_{UUID}",
    OURS,
    discovering._BEGINNING,
]


@pytest.mark.parametrize("said", BAD_CURSORS)
async def test_a_peers_cursor_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """T17: no place, or one that was passed: it would make us ask the same for ever, or fail when we go on. The topics count all the same."""
    looking = discovery(cursor=OURS)
    token, good = mint(7), f"2027-01-01T00:00:08Z_{UUID}"
    found = await _from_peers(monkeypatch, looking, PeerAnswer("bob", [], good), PeerAnswer("alice", [token], said))
    assert looking.cursor == good
    assert len(found) == 1
    assert looking.peers == {"alice", "bob"}
    alone = discovery(cursor=OURS)
    assert len(await _from_peers(monkeypatch, alone, PeerAnswer("alice", [token], said))) == 1
    assert alone.cursor is None


async def test_peers_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    """T17: the earliest of those that are places; without a cursor of ours, any place is after it."""
    looking = discovery()
    early, later = f"2027-01-01T00:00:01Z_{UUID}", f"2027-01-01T00:00:09Z_{UUID}"
    await _from_peers(
        monkeypatch, looking, PeerAnswer("alice", [], later), PeerAnswer("bob", [], "junk"), PeerAnswer("carol", [], early)
    )
    assert looking.cursor == early
    quiet = discovery()
    await _from_peers(monkeypatch, quiet, PeerAnswer("alice", [], None), PeerAnswer("bob", [], "junk"))
    assert quiet.cursor is None


async def test_a_peer_speaks_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """T17: another's topic is not taken from it, nor a line that does not verify, which is told."""
    looking = discovery()
    mine, foreign = mint(1), mint(2, creator=BOB)
    found = await _from_peers(monkeypatch, looking, PeerAnswer("alice", [foreign, mine, mine[:-4]], None))
    assert len(found) == 1
    assert [giver for giver, _ in looking.disbelieved] == ["alice"]
