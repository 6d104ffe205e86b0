"""No node is there (T17): entities ask each other, through a broker whose guard lets them only then; and a node comes back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from entity_client import Topic, path, text, xml
from entity_client import peers as between
from tdn.errors import BrokerUnavailable, NoNodeAnswered, TrustError
from tdn.protocol import names
from tdn.protocol.access import lists
from tdn.queries.times import Times
from tdn.trust import envelope, sealing, signing, statements
from tdn.trust.certificates import Identity
from tdn.trust.envelope import Envelope
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, run, wait_for

pytestmark = pytest.mark.broker

#: Askers who take turns, since each may ask only so often.
ERINS = [f"erin-{number}" for number in range(4)]
_TURN = itertools.cycle(ERINS)

#: Clients look for nodes so long before they turn to entities.
PATIENCE = 1.0


class Answerer:
    """`entity answer` in the background, as a user runs it."""

    def __init__(self, network: LiveNetwork, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self._log = folder / "answer.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).parent / "entity", "-v", "--home", network.home.folder, "--as", self.name, "answer"],
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def await_ready(self, topics: int) -> None:
        wait_for(lambda: f"ready to answer for {topics} topics" in self.said or self.process.poll() is not None, self.said)
        assert self.process.poll() is None, self.said

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


class Peer:
    """An entity that asks others by itself, with a queue that a node made for it before."""

    def __init__(self, network: LiveNetwork, folder: Path) -> None:
        queue = between.recall_queue(folder, "ask")
        assert queue is not None
        self.raw = RawEntity(network, folder)
        self.queue = names.peer_queue(self.raw.name, queue.session)
        self.session = queue.session
        self.replies: list[bytes] = []
        self.raw.channel.basic_consume(self.queue, lambda *event: self.replies.append(event[3]), auto_ack=True)

    def write(self, body: dict[str, Any] | None = None, **how: Any) -> bytes:
        return envelope.write(
            how.pop("kind", "discover"),
            {"limit": 100} if body is None else body,
            self.raw.credentials,
            audience=how.pop("audience", "tdn:peers"),
            now=how.pop("now", datetime.now(UTC)),
            life=how.pop("life", timedelta(seconds=20)),
            reply=how.pop("reply", self.session),
            with_chain=True,
            **how,
        )

    def publish(self, message: bytes, *, login: str | None = "", exchange: str = names.PEERS, key: str = "") -> None:
        """On a channel of its own, with confirms: what the broker refuses raises here."""
        channel = self.raw.connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(user_id=str(self.raw.name) if login == "" else login)
        channel.basic_publish(exchange, key, message, properties)
        channel.close()

    def ask(self, body: dict[str, Any] | None = None, **how: Any) -> str:
        message_id = envelope.new_id()
        self.publish(self.write(body, message_id=message_id, **how))
        return message_id

    def gather(self, message_id: str, *peers: str) -> dict[str, Envelope]:
        """The answers to a question, until these have answered. Everything that came before them has come by then."""
        got: dict[str, Envelope] = {}

        def arrived() -> bool:
            self.raw.connection.process_data_events(0.02)
            while self.replies:
                reply = self.read(self.replies.pop(0))
                if reply.answers == message_id:
                    assert reply.signer.name.id not in got, "a second answer of one peer"
                    got[reply.signer.name.id] = reply
                else:
                    self.others.append(reply)
            return set(peers) <= got.keys()

        wait_for(arrived, f"answers of {peers}")
        return got

    @property
    def others(self) -> list[Envelope]:
        """Answers to other questions that came meanwhile."""
        return self.__dict__.setdefault("_others", [])

    def read(self, message: bytes) -> Envelope:
        overhead = len(sealing.seal(b"", self.raw.credentials.identity.public_key)) - sealing.STEPS[0]
        assert len(message) - overhead in sealing.STEPS
        raw = sealing.unseal(message, self.raw.credentials.key)

        def identify(header: signing.Header) -> Identity:
            return self.raw.credentials.roots.identify(header.chain, at=datetime.now(UTC))

        return envelope.authenticate(raw, identify)

    def topics(self, reply: Envelope) -> list[str]:
        """UUIDs in an answer, each advertisement verified."""
        roots = statements.by_roots(self.raw.credentials.roots)
        return [statements.read_advertisement(line.partition(b" ")[0], roots).uuid for line in (reply.tail or b"").split(b"\n")]

    def close(self) -> None:
        self.raw.close()


@dataclass(frozen=True)
class Silence:
    """A network without nodes. Alice and gus answer; bob, carol and several erins may ask; carol is barred from what alice has."""

    network: LiveNetwork
    alice: Answerer
    gus: Answerer
    folders: dict[str, Path]
    topics: dict[str, Topic]
    seconds: int


def is_open(network: LiveNetwork, folder: Path) -> bool:
    """Whether the guard lets an entity write to the peers. Not, when it lets it and cuts it off at once, because a last tick has come."""
    connection = network.amqp(folder)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(names.PEERS, "", b"is anybody there")
        connection.close()
    except pika.exceptions.ChannelClosedByBroker as error:
        connection.close()
        if error.reply_code != 403:
            raise
        return False
    except (pika.exceptions.ConnectionClosed, pika.exceptions.ConnectionWrongStateError):
        return False
    return True


@pytest.fixture(scope="module")
def silence(_particular: LiveNetwork) -> Iterator[Silence]:
    network = _particular
    network.up()
    folders = {name: network.entity(name) for name in ("alice", "gus", "bob", "carol", *ERINS, "mallory", "watcher")}
    seconds = 123_456

    async def prepare() -> dict[str, Topic]:
        for name in ("bob", "carol", *ERINS, "mallory"):
            async with await network.client(folders[name]) as client:
                assert [topic async for topic in client.discover("nothing of that kind")] == []
                await client.prepare_for_silence()
                assert between.recall_queue(folders[name], "ask") is not None
        async with await network.client(folders["alice"]) as alice, await network.client(folders["gus"]) as gus:
            barred = lists([], [folders["carol"].name])
            return {
                "plain": await alice.create(text("a quiet harbour", ["ships"]), lists=barred),
                "record": await alice.create(xml("<harbour depth='12'/>"), lists=barred),
                "sealed": await alice.create(
                    path("harbour/secret"), lists=barred, sealed_for=[folders["bob"].name], lifetime=timedelta(seconds=seconds)
                ),
                **{
                    f"large {number}": await gus.create(xml(f"<chart n='{number}'>{'x' * 45_000}</chart>")) for number in range(4)
                },
            }

    topics = asyncio.run(prepare())
    assert run("tdn", "--home", network.home.folder, "ca", "revoke", folders["mallory"].name).code == 0
    answerers = [Answerer(network, folders[name]) for name in ("alice", "gus")]
    try:
        for answerer, count in zip(answerers, (3, 4), strict=True):
            answerer.await_ready(count)
        # While a node is there, the way between entities is shut.
        assert not is_open(network, folders["watcher"])
        for node in network.nodes():
            network.stop(node)
        wait_for(lambda: is_open(network, folders["watcher"]), "the guard to notice the silence")
        yield Silence(network, *answerers, folders, topics, seconds)
    finally:
        for answerer in answerers:
            answerer.process.kill()
            answerer.process.wait()


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come within a tenth of a second; who waits for nothing need not wait for three."""
    monkeypatch.setattr(between, "GATHER_SECONDS", 1.5)


@pytest.fixture
def erin(silence: Silence) -> Iterator[Peer]:
    peer = Peer(silence.network, silence.folders[next(_TURN)])
    yield peer
    peer.close()


@pytest.fixture
def bob(silence: Silence) -> Iterator[Peer]:
    peer = Peer(silence.network, silence.folders["bob"])
    yield peer
    peer.close()


async def discovered(silence: Silence, connect: Connect, name: str, *words: Any, **how: Any) -> dict[str, Topic]:
    client = await connect(silence.network, silence.folders[name], timeout=PATIENCE)
    discovery = client.discover(*words, **how)
    found = {topic.uuid: topic async for topic in discovery}
    assert (discovery.answered, discovery.disbelieved) == (set(), [])
    return found


async def test_creators_answer_for_their_own(silence: Silence, connect: Connect) -> None:
    """T17: a query, answered by who has such topics; what comes is verified, the sealed one is opened by whom it names."""
    client = await connect(silence.network, silence.folders["bob"], timeout=PATIENCE)
    discovery = client.discover("harbour quiet")
    (topic,) = [topic async for topic in discovery]
    assert discovery.peers == {silence.alice.name}
    assert topic.token == silence.topics["plain"].token
    assert (topic.opening, topic.lists) == (None, None), "what it hides stays hidden"
    wait_for(lambda: f"answered {silence.folders['bob'].name}: " in silence.alice.said, "alice to say so")


async def test_every_query_and_times_among_entities(silence: Silence, connect: Connect) -> None:
    """T9, T14, T17: other languages too; sealed ones by time and, for whom they name, by what is in them."""
    found = await discovered(silence, connect, "bob", "//harbour[@depth > 10]", language="xpath")
    assert set(found) == {silence.topics["record"].uuid}
    # Sealed ones go along with every answer; whoever can open them matches them itself.
    found = await discovered(silence, connect, "bob", "harbour secret")
    assert set(found) == {silence.topics["sealed"].uuid}
    times = Times(valid_at_least=silence.seconds, valid_at_most=silence.seconds)
    found = await discovered(silence, connect, "bob", times=times)
    (sealed,) = found.values()
    assert sealed.uuid == silence.topics["sealed"].uuid
    assert sealed.opened == {"kind": "path", "path": "harbour/secret"}


async def test_lists_hold_among_entities(silence: Silence, connect: Connect) -> None:
    """T17, T18: who is barred gets nothing, and cannot tell it from nobody having such a topic."""
    with pytest.raises(NoNodeAnswered) as barred:
        await discovered(silence, connect, "carol", "harbour")
    with pytest.raises(NoNodeAnswered) as absent:
        await discovered(silence, connect, "carol", "no such word anywhere")
    assert str(barred.value) == str(absent.value) == "no node answered, and no other entity that has such a topic"


async def test_an_entity_that_no_node_ever_knew(silence: Silence) -> None:
    """T17: it has no queue for answers, and is told so; exit 3."""
    newcomer = silence.network.entity("newcomer")
    words = ("--home", silence.network.home.folder, "--as", newcomer.name, "--timeout", "5s", "--json")
    ran = await asyncio.to_thread(run, "entity", *words, "discover", "--string", "harbour")
    assert (ran.code, ran.error["error"], ran.out) == (3, "unreachable", "")
    assert "only by those that a node knew before" in ran.error["message"]


async def test_a_revoked_entity_cannot_ask(silence: Silence, connect: Connect) -> None:
    """T17, T19: the guard keeps it out, nodes or no nodes."""
    with pytest.raises(TrustError):
        await discovered(silence, connect, "mallory", "harbour")
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        Peer(silence.network, silence.folders["mallory"])


def test_one_question_one_answer_of_each(silence: Silence, erin: Peer) -> None:
    """T17: everyone who has something answers once, with one page at most, sealed to the asker, in one of a few sizes."""
    answers = erin.gather(erin.ask(), silence.alice.name, silence.gus.name)
    assert set(erin.topics(answers[silence.alice.name])) == {silence.topics[name].uuid for name in ("plain", "record", "sealed")}
    large = answers[silence.gus.name]
    assert large.body["count"] == len(erin.topics(large)) < 4, "no more than a page"
    assert len(large.raw) < 270_336
    assert (large.body["page"], large.body["last"]) == (1, True)
    # The rest is asked for, from where the page ended.
    seen = erin.topics(large)
    cursor = large.body["cursor"]
    turned = []
    while cursor is not None:
        turned.append(erin.ask({"limit": 100, "cursor": cursor}))
        large = erin.gather(turned[-1], silence.gus.name)[silence.gus.name]
        seen += erin.topics(large)
        cursor = large.body.get("cursor")
    assert sorted(seen) == sorted(topic.uuid for name, topic in silence.topics.items() if name.startswith("large"))
    one = erin.gather(erin.ask({"limit": 1}), silence.alice.name, silence.gus.name)[silence.alice.name]
    assert (one.body["count"], "cursor" in one.body) == (1, True)
    # Where topics of both are of the same second, alice has some after that page too, and may be the slower one.
    late = [(reply.answers, reply.signer.name.id) for reply in erin.others]
    assert set(late) <= {(question, silence.alice.name) for question in turned}, "nothing came that was not asked for"
    assert len(late) == len(set(late)), "nor twice"


UNANSWERED = {
    "replayed": "the first time it is answered",
    "stale": "a time to live that has ended",
    "early": "not yet",
    "long-lived": "beyond what questions live",
    "to somebody else": "another audience",
    "another kind": "not a discovery",
    "count": "entities count nothing",
    "sealed": "nodes alone are asked for sealed topics",
    "no login": "the broker does not vouch for it",
    "signed by another": "the broker vouches for somebody else",
    "no chain": "nobody knows the key",
    "garbage": "not a message",
    "wrong query": "it does not compile",
}


@pytest.mark.parametrize("flaw", UNANSWERED)
def test_questions_that_are_not_answered(silence: Silence, erin: Peer, bob: Peer, flaw: str) -> None:
    """T17, T19: a question counts once, for now, from whom the broker vouches for; all else is met with silence."""
    now = datetime.now(UTC)
    query = {"language": "string", "query": "quiet harbour", "limit": 5}
    login: str | None = ""
    if flaw == "replayed":
        message = erin.write(query, message_id=(message_id := envelope.new_id()))
        erin.publish(message)
        erin.gather(message_id, silence.alice.name)
    elif flaw == "stale":
        # Issued just now, since its certificate is not much older, and ended before the clocks' difference that is allowed for.
        message = erin.write(query, life=timedelta(seconds=-40))
    elif flaw == "early":
        message = erin.write(query, now=now + timedelta(minutes=10))
    elif flaw == "long-lived":
        message = erin.write(query, life=timedelta(hours=1))
    elif flaw == "to somebody else":
        message = erin.write(query, audience="node:n1")
    elif flaw == "another kind":
        message = erin.write({"uuid": silence.topics["plain"].uuid}, kind="show")
    elif flaw == "count":
        message = erin.write({**query, "count": True})
    elif flaw == "sealed":
        message = erin.write({"limit": 5, "sealed": True})
    elif flaw == "no login":
        message, login = erin.write(query), None
    elif flaw == "signed by another":
        message = bob.write(query)
    elif flaw == "no chain":
        message = erin.raw.write("discover", query, audience="tdn:peers", reply=erin.session)
    elif flaw == "wrong query":
        message = erin.write({"language": "regex", "query": "(", "limit": 5})
    else:
        message = b"is anybody there"
    erin.publish(message, login=login)
    # Questions are taken in order: when the next is answered, this one was not.
    erin.gather(erin.ask(query), silence.alice.name)
    bob.raw.connection.process_data_events(0)
    assert erin.others == bob.replies == []


def test_a_login_cannot_be_forged(silence: Silence, erin: Peer) -> None:
    """T19: the broker itself compares the login that a message names with the one that it came by."""
    bob = silence.folders["bob"]
    name = RawEntity(silence.network, bob)
    try:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            erin.publish(erin.write(), login=str(name.name))
    finally:
        name.close()
    assert refused.value.reply_code == 406
    for exchange in (names.REPLIES, names.BROADCAST):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            erin.publish(erin.write(), exchange=exchange)
        assert refused.value.reply_code == 403


def test_a_hostile_query_among_entities(silence: Silence, erin: Peer) -> None:
    """T17: it runs where it can be killed; the answerer goes on answering."""
    erin.ask({"language": "xquery", "query": "declare function local:f($n) { local:f($n + 1) }; local:f(1)", "limit": 5})
    erin.gather(erin.ask({"language": "string", "query": "chart", "limit": 1}), silence.gus.name)
    assert silence.alice.process.poll() is None


def test_who_asks_too_often_is_not_answered(silence: Silence, erin: Peer) -> None:
    """T17: one asker empties its own allowance and nobody else's; no question makes more than one answer."""
    carol = Peer(silence.network, silence.folders["carol"])
    try:
        begun = time.monotonic()
        for _ in range(60):
            carol.ask({"language": "string", "query": "chart", "limit": 1})
        erin.gather(erin.ask({"language": "string", "query": "chart", "limit": 1}), silence.gus.name)
        carol.raw.connection.process_data_events(0.2)
        allowed = 20 + 2 * (time.monotonic() - begun) + 1
        assert 15 <= len(carol.replies) <= min(allowed, 59)
    finally:
        carol.close()


def test_a_node_comes_back(silence: Silence, erin: Peer) -> None:
    """T17: the guard cuts those who asked each other; discovery goes to the node; who answers stays, for the next time."""
    network = silence.network
    erin.gather(erin.ask({"language": "string", "query": "quiet", "limit": 5}), silence.alice.name)
    network.start("n1")

    def cut() -> bool:
        try:
            erin.raw.connection.process_data_events(0.02)
        except pika.exceptions.AMQPError:
            return True
        return not erin.raw.connection.is_open

    wait_for(cut, "the open connection to be cut")
    assert not is_open(network, silence.folders["watcher"])
    with contextlib.closing(Peer(network, erin.raw.folder)) as again:
        for exchange in (names.PEERS, names.PEER_REPLIES):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                again.publish(again.write(), exchange=exchange)
            assert refused.value.reply_code == 403

    async def by_node() -> tuple[set[str], set[str]]:
        async with await network.client(silence.folders["bob"]) as bob:
            discovery = bob.discover("quiet harbour")
            assert [topic.uuid async for topic in discovery] == [silence.topics["plain"].uuid]
            return discovery.answered, discovery.peers

    def went_to_the_node() -> bool:
        # Bob asked entities too, so a connection of his may be among those that are cut.
        with contextlib.suppress(BrokerUnavailable):
            return asyncio.run(by_node()) == ({"n1"}, set())
        return False

    wait_for(went_to_the_node, "discovery to go to the node")
    assert silence.alice.process.poll() is None

    network.stop("n1")
    wait_for(lambda: is_open(network, silence.folders["watcher"]), "the guard to notice the silence")
    with contextlib.closing(Peer(network, erin.raw.folder)) as again:

        def answered() -> bool:
            asked = again.ask({"language": "string", "query": "quiet", "limit": 5})
            with contextlib.suppress(AssertionError):
                again.gather(asked, silence.alice.name)
                return True
            return False

        wait_for(answered, "alice to answer again")
    assert silence.alice.end() == 0
