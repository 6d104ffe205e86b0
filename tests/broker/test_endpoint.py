"""A node's own endpoint: discovery goes on while no broker can be reached (T22), and who gets nothing from it."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, Topic, path, properties, text, xml
from tdn.bus.address import NodeAddress
from tdn.errors import Absent, BrokerUnavailable
from tdn.local.ca import CertificateAuthority
from tdn.node.answering import MAX_QUESTION_BYTES
from tdn.protocol import framing
from tdn.protocol.access import lists
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.protocol.trees import Hosting
from tdn.trust import credentials, envelope, sealing
from tdn.trust.certificates import Identity
from tdn.trust.envelope import Envelope
from tests.conftest import Connect
from tests.live import LiveNetwork, Ran, run, until, wait_for

pytestmark = pytest.mark.broker


# --- without a broker ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dark:
    """A network whose only broker was killed, and what was in it before."""

    network: LiveNetwork
    alice: Path
    bob: Path
    carol: Path
    word: str
    topics: dict[str, Topic]

    def entity(self, who: Path, *words: str, timeout: str = "10s") -> Ran:
        return run("entity", "--credentials", who, "--timeout", timeout, "--json", *words)

    def back(self) -> None:
        self.network.up()


@pytest.fixture(scope="module")
def dark(_mortal: LiveNetwork) -> Iterator[Dark]:
    _mortal.up()
    word = f"w{secrets.token_hex(6)}"
    alice, bob, carol = (_mortal.entity(name) for name in ("alice", "bob", "carol"))
    topics = asyncio.run(_fill(_mortal, alice, bob, carol, word))
    broker: Any = _mortal.network.broker()
    broker._broker.kill_hard()
    wait_for(lambda: not broker.alive(), "the broker to be gone")
    try:
        yield Dark(_mortal, alice, bob, carol, word, topics)
    finally:
        _mortal.up()


async def _fill(network: LiveNetwork, alice: Path, bob: Path, carol: Path, word: str) -> dict[str, Topic]:
    async with await EntityClient.connect(alice) as client:
        root = await client.create(path(f"snow/{word}"), hosting=Hosting(allow_children=True))
        topics = {
            "path": root,
            "child": await client.create(path(f"snow/{word}/deep"), parent=root.uuid),
            "text": await client.create(text(f"avalanches and {word}")),
            "properties": await client.create(properties([f"place={word}", "depth=42"])),
            "xml": await client.create(xml(f'<snow word="{word}"><depth>42</depth></snow>')),
            "hidden": await client.create(path(f"hidden/{word}"), lists=lists([bob.name], [])),
        }
        topics["collection"] = await client.create_collection(text(f"shelf of {word}"), members=[root.uuid])
        for right in ("publish", "subscribe"):
            await client.grants.give(right, root.uuid, "*")
    for folder in (bob, carol):
        async with await EntityClient.connect(folder) as client:
            # Known to the network, as everybody is who has been there before.
            await client.choose()
    for node in network.nodes():
        for topic in topics.values():
            await until(lambda node=node, topic=topic: network.fact("topic", topic.uuid, node), f"{node} to have it")
        for folder in (bob, carol):
            await until(
                lambda node=node, name=folder.name: network.fact("principal", f"entity:{name}", node), f"{node} to know it"
            )
    return topics


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--string", "{word}"), {"path", "child", "text", "properties", "xml", "collection"}),
        (("--regex", "snow/{word}/d.*p"), {"child"}),
        (("--sql", "place = '{word}' AND depth > 41"), {"properties"}),
        (("--xpath", "/snow[@word = '{word}']/depth = 42"), {"xml"}),
        (("--xquery", "for $s in /snow where $s/@word = '{word}' return $s"), {"xml"}),
    ],
)
def test_discovery_goes_on_without_a_broker(dark: Dark, words: tuple[str, str], found: set[str]) -> None:
    """T13, T22: every language, through the command line; each object says as of when, and so does a person's note."""
    done = dark.entity(dark.carol, "discover", words[0], words[1].replace("{word}", dark.word))
    assert done.code == 0, done.err
    assert {line["uuid"] for line in done.lines} == {dark.topics[name].uuid for name in found}
    for line in done.lines:
        assert timedelta(0) <= datetime.now(UTC) - parse_time(line["as_of"]) < timedelta(minutes=10)
    assert "answered by node n1 without the broker, as of " in done.err
    assert "answered by node n2 without the broker, as of " in done.err


async def test_other_reading_goes_on_without_a_broker(dark: Dark, connect: Connect) -> None:
    """T22, T27, T36: locating, showing, trees, collections, rights, grants and counts; each says as of when."""
    carol, alice = await connect(dark.network, dark.carol), await connect(dark.network, dark.alice)
    root, child, shelf = (dark.topics[name].uuid for name in ("path", "child", "collection"))
    located = [node async for node in carol.locate()]
    assert {node.endpoint for node in located} == set(dark.network.home.endpoints())
    shown = await carol.show(root)
    assert (shown.uuid, shown.owner) == (root, dark.alice.name)
    looks = {
        (root, child): [placed.topic async for placed in carol.hierarchy.tree(root)],
        (root,): [placed.topic async for placed in carol.hierarchy.parents(child)],
        (shelf,): [placed.topic async for placed in carol.collections.containing(root)],
    }
    looks[root,] += [placed.topic async for placed in carol.collections.topics(shelf)]
    for wanted, topics in looks.items():
        assert {topic.uuid for topic in topics} == set(wanted)
    may = await carol.can("publish", root)
    assert may.allowed
    granted = [grant async for grant in alice.grants.find(root)]
    assert {grant.grant.terms.right for grant in granted} == {"publish", "subscribe"}
    assert (await carol.lookup(f"entity:{dark.bob.name}")).name.id == dark.bob.name
    assert (await carol.count(dark.word))[1] == 6
    told = [*located, shown, *(topic for topics in looks.values() for topic in topics), may, *granted]
    assert all(one.as_of is not None and "as_of" in one.as_object() for one in told)


async def test_lists_hold_without_a_broker(dark: Dark, connect: Connect) -> None:
    """T18, T22: a hidden topic is as absent as ever, and shows to those on its list."""
    hidden = dark.topics["hidden"].uuid
    bob, carol = await connect(dark.network, dark.bob), await connect(dark.network, dark.carol)
    assert hidden in {topic.uuid async for topic in bob.discover(dark.word)}
    assert hidden not in {topic.uuid async for topic in carol.discover(dark.word)}
    assert (await bob.show(hidden)).uuid == hidden
    with pytest.raises(Absent):
        await carol.show(hidden)


async def test_the_age_is_told_and_grows(dark: Dark, connect: Connect) -> None:
    """T22: an answer says as of when; later answers say the same moment, and are older."""
    client = await connect(dark.network, dark.bob)
    root = dark.topics["path"].uuid
    first = await client.show(root)
    (node, age), *_ = client.ages.items()
    assert first.as_of == age.as_of

    async def is_older() -> bool:
        assert (await client.show(root)).as_of == first.as_of
        return client.ages[node].seconds > age.seconds

    await until(is_older, "the age to grow")


@pytest.mark.parametrize("words", [("create", "--path", "not/now"), ("publish", "ROOT", "hello")])
def test_changes_are_refused_without_a_broker(dark: Dark, words: tuple[str, ...]) -> None:
    """T22: exit 3, and a sentence that says why."""
    words = tuple(word.replace("ROOT", dark.topics["path"].uuid) for word in words)
    done = dark.entity(dark.alice, *words, timeout="1s")
    assert (done.code, done.out) == (3, ""), done.err
    assert done.error["error"] == "unreachable"
    assert "broker" in done.error["message"]
    assert "nothing was changed" in done.error["message"]


async def test_other_changes_are_refused_without_a_broker(dark: Dark, connect: Connect) -> None:
    """T22: also those that read before they write."""
    client = await connect(dark.network, dark.alice, timeout=6.0)
    root, shelf = dark.topics["text"].uuid, dark.topics["collection"].uuid
    changes = (client.withdraw(root), client.grants.give("publish", root, "*"), client.collections.add(shelf, root))
    for refused in await asyncio.gather(*changes, return_exceptions=True):
        assert isinstance(refused, BrokerUnavailable), refused
        assert "nothing was changed" in refused.message


def test_a_node_that_starts_without_a_broker_answers_from_its_store(dark: Dark) -> None:
    """T22: node and broker both died; the node alone comes back, and says how old its store is."""
    dark.network.kill("n1")
    dark.network.network._spawn(Role.NODE, "n1")
    place = next(address for address in dark.network.home.endpoints() if address.id == "n1")
    wait_for(lambda: _listens(place), "n1 to listen", seconds=90)
    done = dark.entity(dark.carol, "discover", "--string", dark.word, "--node", "n1", timeout="20s")
    assert dark.topics["xml"].uuid in {line["uuid"] for line in done.lines}, done.err
    assert all("as_of" in line for line in done.lines)


def _listens(place: NodeAddress) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((place.host, place.port)) == 0


def test_a_broker_that_hangs_is_not_waited_for(dark: Dark, tmp_path: Path) -> None:
    """T22: something accepts connections at the broker's address and says nothing. Discovery takes seconds, not minutes."""
    folder = shutil.copytree(dark.bob, tmp_path / "bob")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = dark.network.home.ports()["amqps"]
        settings = folder / "connection.toml"
        settings.write_text(settings.read_text("utf-8").replace(f"port = {port}", f"port = {mute.getsockname()[1]}"), "utf-8")
        began = time.monotonic()
        done = run("entity", "--credentials", folder, "--json", "discover", "--string", dark.word)
        assert done.code == 0, done.err
        assert len(done.lines) == 7
        # Four seconds, and what a busy machine takes for the rest.
        assert time.monotonic() - began < 20


async def test_all_continues_when_the_broker_is_back(dark: Dark, connect: Connect) -> None:
    """T22: a client that fell back goes through the broker again by itself; commands do; and changes count."""
    client = await connect(dark.network, dark.alice)
    assert dark.topics["path"].uuid in {topic.uuid async for topic in client.discover(dark.word)}
    assert client.ages
    await asyncio.to_thread(dark.back)

    async def is_fresh() -> bool:
        return (await client.show(dark.topics["path"].uuid)).as_of is None

    await until(is_fresh, "the client to use the broker again", seconds=40)
    made = await client.create(path(f"again/{dark.word}"))
    assert made.receipt is not None
    done = await asyncio.to_thread(dark.entity, dark.carol, "discover", "--string", dark.word)
    assert done.code == 0
    assert made.uuid in {line["uuid"] for line in done.lines}
    assert all("as_of" not in line for line in done.lines)
    assert "without the broker" not in done.err


async def test_endpoints_are_learned_from_nodes(live: LiveNetwork, connect: Connect) -> None:
    """An entity whose folder names no endpoint hears of them when it locates nodes, and keeps them."""
    folder = live.entity("learner")
    settings = folder / "connection.toml"
    settings.write_text(settings.read_text("utf-8").partition("# Nodes that answer")[0], "utf-8")
    client = await connect(live, folder)
    told = {node.endpoint async for node in client.locate()}
    assert told == set(live.home.endpoints())
    kept = {NodeAddress(**entry) for entry in json.loads((folder / "endpoints.json").read_text("utf-8"))}
    assert kept == told


# --- who gets nothing ----------------------------------------------------------------------------------------------------------------


class Knock:
    """Somebody at a node's endpoint who need not be polite."""

    def __init__(self, network: LiveNetwork, folder: Path, node: str = "n1") -> None:
        self.network = network
        self.folder = folder
        self.who = credentials.load(folder)
        self.node = network.node(node)
        self.place = next(address for address in network.home.endpoints() if address.id == node)

    def question(self, kind: str = "locate", body: dict[str, Any] | None = None, *, audience: str | None = None) -> bytes:
        raw = envelope.write(
            kind,
            body or {},
            self.who,
            audience=audience or ("tdn:nodes" if kind == "locate" else self.node.name.principal),
            now=datetime.now(UTC),
            life=timedelta(seconds=60),
        )
        return raw if kind == "locate" else sealing.seal(raw, self.node.public_key)

    def tls(self, *, with_certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.network.home.settings().roots))
        if with_certificate:
            context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        return context

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.place.host, self.place.port, context=context or self.tls(), timeout=30)

    def post(self, body: bytes, context: ssl.SSLContext | None = None) -> tuple[int, list[Envelope]]:
        """The status, and the messages that came, read by whom they were sealed to."""
        connection = self.connect(context)
        try:
            connection.request("POST", "/ask", body)
            response = connection.getresponse()
            return response.status, [self._read(message) for message in framing.Frames().feed(response.read())]
        finally:
            connection.close()

    def _read(self, message: bytes) -> Envelope:
        raw = sealing.unseal(message, self.who.key) if sealing.is_sealed(message) else message
        return envelope.authenticate(raw, lambda header: self._node())

    def _node(self) -> Identity:
        return self.node


@pytest.fixture
def knock(live: LiveNetwork) -> Knock:
    """An entity that the network knows."""
    folder = live.entity("knock")

    async def meet() -> None:
        async with await live.client(folder) as client:
            await client.choose()
            await until(lambda: live.fact("principal", client.identity.name.principal, "n1"), "n1 to know it")

    asyncio.run(meet())
    return Knock(live, folder)


def test_a_question_is_answered_with_its_age(knock: Knock) -> None:
    """Also while the broker is there: as of a moment ago."""
    status, (answer,) = knock.post(knock.question())
    assert (status, answer.kind, answer.body["node"]) == (200, "located", "n1")
    assert answer.as_of is not None
    assert timedelta(0) <= answer.issued - answer.as_of < timedelta(seconds=30)


def test_nobody_gets_in_without_a_certificate_of_the_network(knock: Knock, tmp_path: Path) -> None:
    strangers = CertificateAuthority(tmp_path / "ca")
    strangers.create()
    strangers.issue(Role.ENTITY, knock.who.identity.name.id, tmp_path / "stranger")
    foreign = knock.tls(with_certificate=False)
    foreign.load_cert_chain(tmp_path / "stranger" / "cert.pem", tmp_path / "stranger" / "key.pem")
    for context in (knock.tls(with_certificate=False), foreign):
        # Under TLS 1.3 the refusal shows at the first read.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            knock.post(knock.question(), context)
    plain = http.client.HTTPConnection(knock.place.host, knock.place.port, timeout=10)
    plain.request("POST", "/ask", knock.question())
    with pytest.raises((OSError, http.client.HTTPException)):
        plain.getresponse()


def test_a_question_of_another_key_than_the_connections(knock: Knock, live: LiveNetwork) -> None:
    """Bytes that somebody else signed are worth nothing, though both are known: also to a node's own certificate."""
    other = Knock(live, live.entity("other"))
    status, (answer,) = other.post(knock.question("show", {"uuid": "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"}))
    assert (status, answer.kind, answer.body["error"]) == (403, "error", "trust")
    assert "another key" in answer.body["message"]
    status, nothing = Knock(live, live.home.credentials(Role.NODE, "n2")).post(knock.question())
    assert (status, nothing) == (403, [])


def test_a_replayed_question_is_not_answered_again(knock: Knock) -> None:
    question = knock.question()
    assert knock.post(question)[0] == 200
    status, (answer,) = knock.post(question)
    assert (status, answer.body["error"]) == (403, "trust")
    assert "received before" in answer.body["message"]


def test_a_question_to_another_node_or_unsealed(knock: Knock) -> None:
    status, (answer,) = knock.post(knock.question("lookup", {"principal": "node:n1"}, audience="node:n2"))
    assert (status, answer.body["error"]) == (403, "trust")
    raw = sealing.unseal(knock.question("lookup", {"principal": "node:n1"}), knock.network.credentials(Role.NODE, "n1").key)
    status, (answer,) = knock.post(raw)
    assert (status, answer.body["error"]) == (403, "refused")


@pytest.mark.parametrize("kind", ["withdraw", "create", "use"])
def test_a_change_sent_to_the_endpoint(knock: Knock, kind: str) -> None:
    """It changes nothing and says so, signed: there is no broker here. What needs one is no different."""
    uuid = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
    body: dict[str, dict[str, Any]] = {
        "withdraw": {"uuid": uuid},
        "use": {"uuid": uuid, "right": "publish"},
        "create": {
            "creator": knock.who.identity.name.id,
            "institution": "local",
            "lifetime_seconds": 60,
            "descriptor": {"kind": "path", "path": "a"},
            "synopsis": {"type": "string", "placeholder": "{uuid}"},
        },
    }
    before = knock.network.records("n1", "kind <> 'tick'")
    audience = f"tdn:network:{knock.network.home.network}" if kind == "withdraw" else None
    status, (answer,) = knock.post(knock.question(kind, body[kind], audience=audience))
    assert (status, answer.kind, answer.body["error"]) == (200, "error", "unreachable")
    assert "read-only" in answer.body["message"]
    assert knock.network.records("n1", "kind <> 'tick'")[: len(before) + 1] == before


def test_a_body_that_is_too_long_or_too_slow(knock: Knock) -> None:
    assert knock.post(b"x" * (MAX_QUESTION_BYTES + 1)) == (413, [])
    # Announced, begun, and never finished; another that never begins. Both are cut off, and others are answered meanwhile.
    slow, quiet = knock.connect(), knock.connect()
    slow.putrequest("POST", "/ask")
    slow.putheader("Content-Length", "1000")
    slow.endheaders(b"x")
    quiet.connect()
    assert knock.post(knock.question())[0] == 200
    for connection in (slow, quiet):
        assert connection.sock is not None
        connection.sock.settimeout(30)
        received = connection.sock.recv(100)
        assert received == b"" or received.split()[1] == b"408"
        connection.close()


def test_nonsense_is_turned_away(knock: Knock) -> None:
    status, (answer,) = knock.post(b"nonsense")
    assert (status, answer.kind) == (403, "error")
    for verb, place, expected in (("GET", "/ask", 405), ("POST", "/elsewhere", 404)):
        connection = knock.connect()
        connection.request(verb, place, b"")
        assert connection.getresponse().status == expected
        connection.close()


def test_a_revoked_key_gets_nothing(live: LiveNetwork, knock: Knock) -> None:
    """T19: TLS knows nothing of revocations; the log does."""
    assert knock.post(knock.question())[0] == 200
    done = run("tdn", "--home", live.home.folder, "--json", "ca", "revoke", knock.who.identity.name.id)
    assert done.code == 0, done.err
    wait_for(lambda: knock.post(knock.question())[0] == 403, "n1 to refuse the key")
    _, (answer,) = knock.post(knock.question())
    assert answer.body["error"] == "trust"


def test_an_entity_that_the_network_never_saw(live: LiveNetwork) -> None:
    newcomer = Knock(live, live.entity("newcomer"))
    status, (answer,) = newcomer.post(newcomer.question())
    assert (status, answer.body["error"]) == (403, "trust")
    assert "not known" in answer.body["message"]
