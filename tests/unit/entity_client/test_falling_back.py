"""T22: which way a question takes. Real credentials and messages; the broker and the endpoints are played, so that each can fail at will."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from entity_client import session as sessions
from entity_client.endpoints import FILE, Endpoints
from entity_client.patience import Patience
from entity_client.session import Session
from tdn.bus.address import ConnectionSettings, NodeAddress, load_connection, write_connection
from tdn.bus.connection import Broker
from tdn.errors import BrokerUnavailable, LoginRefused, Refused, TdnError, TrustError
from tdn.local.ca import CertificateAuthority
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import credentials, envelope, sealing
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

NETWORK = "0" * 64
N1 = NodeAddress("n1", "127.0.0.1", 7451)
UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"

Answering = Callable[[bytes], list[bytes]]


@dataclass
class People:
    alice: Credentials
    nodes: dict[str, Credentials]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    folder = tmp_path_factory.mktemp("people")
    authority = CertificateAuthority(folder / "ca")
    authority.create()
    authority.issue(Role.ENTITY, "alice", folder / "alice")
    for name in ("n1", "n2"):
        authority.issue(Role.NODE, name, folder / name)
    return People(credentials.load(folder / "alice"), {name: credentials.load(folder / name) for name in ("n1", "n2")})


def reply(
    people: People,
    question: bytes,
    kind: str,
    body: dict[str, Any],
    *,
    by: Credentials | None = None,
    age: timedelta | None = timedelta(seconds=40),
) -> bytes:
    """What a node answers at its endpoint."""
    node = by or people.nodes["n1"]
    raw = sealing.unseal(question, people.nodes["n1"].key) if sealing.is_sealed(question) else question
    asked = envelope.authenticate(raw, lambda header: people.alice.identity)
    now = datetime.now(UTC)
    return sealing.seal(
        envelope.write(
            kind,
            body,
            node,
            audience="entity:alice",
            now=now,
            life=timedelta(minutes=1),
            answers=asked.id,
            with_chain=True,
            as_of=now - age if age is not None else None,
        ),
        people.alice.identity.public_key,
    )


def located(people: People, question: bytes, node: str = "n1") -> bytes:
    body = {"node": node, "institution": "local", "policy": {}, "network": NETWORK, "seq": 1, "peers": []}
    return reply(people, question, "located", body, by=people.nodes[node])


class Played(Session):
    """A session whose broker does what a test says, and whose endpoints answer as one wants."""

    def __init__(self, people: People, *, broker: TdnError | None, answer: Answering | None) -> None:
        nodes = [N1] if answer is not None else []
        super().__init__(people.alice, ConnectionSettings(NETWORK, "tdn", [Broker("127.0.0.1", 1)], nodes))
        self.broker = broker
        self.tried = 0
        self.asked: list[bytes] = []
        self._answer = answer
        self._endpoints.ask = self._ask_them  # type: ignore[method-assign]

    async def _open_line(self) -> Any:
        self.tried += 1
        if self.broker is None:
            await asyncio.sleep(3600)
        raise cast(TdnError, self.broker)

    async def _ask_them(self, message: bytes, node: str | None, *, seconds: float) -> AsyncGenerator[bytes, None]:
        assert self._answer is not None
        self.asked.append(message)
        for answer in self._answer(message):
            yield answer


async def ask(session: Session, *, seconds: float = 1.0) -> list[Envelope]:
    answers = session.ask("locate", {}, None, key=names.nodes_key(), patience=Patience(seconds))
    return [answer async for answer in answers]


GONE = BrokerUnavailable("nobody listens there")


async def test_no_broker_and_an_endpoint(people: People) -> None:
    """The same question goes to the endpoint, at once; how old its answer is by the node's own clock, is kept."""
    session = Played(people, broker=GONE, answer=lambda question: [located(people, question)])
    began = asyncio.get_running_loop().time()
    (answer,) = await ask(session, seconds=10)
    assert asyncio.get_running_loop().time() - began < 3
    assert (answer.kind, answer.signer.name.id) == ("located", "n1")
    assert 39 <= session.ages["n1"].seconds <= 42
    assert session.ages["n1"].as_of == answer.as_of
    assert session.is_away
    await session.close()


async def test_a_broker_that_hangs_holds_up_the_first_question_only(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_FALLBACK_SECONDS", 0.3)
    monkeypatch.setattr(sessions, "_GLANCE_SECONDS", 0.01)
    session = Played(people, broker=None, answer=lambda question: [located(people, question)])
    for _ in range(5):
        assert await ask(session, seconds=10)
    # One try goes on beside all of them.
    assert session.tried == 1
    await session.close()


async def test_it_is_tried_again_while_the_broker_is_away(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_TRY_AGAIN_SECONDS", 0.0)
    session = Played(people, broker=GONE, answer=lambda question: [located(people, question)])
    for number in range(1, 4):
        await ask(session, seconds=10)
        assert session.tried == number
    await session.close()


REFUSED = LoginRefused("its key is revoked, or the guard does not answer")


class ComingBack(Played):
    """A broker that is away, then lets nobody in because its guard has to catch up with the log, and so on."""

    def __init__(self, people: People, *happens: TdnError) -> None:
        super().__init__(people, broker=GONE, answer=None)
        self._happens = list(happens)

    async def _open_line(self) -> Any:
        self.broker = self._happens.pop(0)
        return await super()._open_line()


async def test_who_waits_for_a_broker_waits_for_its_guard_too(people: People) -> None:
    """T22: a command that was begun while all brokers were down is not told that its key is revoked when they come back."""
    ended = TrustError("at last something that no waiting would mend")
    session = ComingBack(people, GONE, REFUSED, REFUSED, ended)
    with pytest.raises(TrustError, match="at last"):
        await session.change("create", {}, message_id=envelope.new_id(), timeout=20)
    assert session.tried == 4
    await session.close()


async def test_a_refused_login_is_told_at_once_where_the_broker_was_there(people: People) -> None:
    session = ComingBack(people, REFUSED)
    with pytest.raises(LoginRefused):
        await session.change("create", {}, message_id=envelope.new_id(), timeout=20)
    assert session.tried == 1
    await session.close()


async def test_nobody_knows_an_endpoint(people: People) -> None:
    session = Played(people, broker=GONE, answer=None)
    with pytest.raises(BrokerUnavailable, match="nobody listens there"):
        await ask(session)
    await session.close()


async def test_neither_broker_nor_endpoint(people: People) -> None:
    """What is said is that the broker is not there, not that no node is."""
    session = Played(people, broker=GONE, answer=lambda question: [])
    with pytest.raises(BrokerUnavailable, match="nobody listens there"):
        await ask(session)
    assert session.asked
    await session.close()


async def test_a_node_without_an_answer_is_not_waited_for(people: People) -> None:
    """Another node may do better: whoever asks looks for one."""
    session = Played(people, broker=GONE, answer=lambda question: [])
    node = people.nodes["n1"].identity
    answers = session.ask("show", {"uuid": UUID}, node, key=names.topics_key("n1"), patience=Patience(60))
    assert [answer async for answer in answers] == []
    assert sealing.is_sealed(session.asked[0])
    await session.close()


@pytest.mark.parametrize("kind", ["create", "peer", "changes", "use", "readers"])
async def test_what_does_more_than_read_waits_for_the_broker(people: People, kind: str) -> None:
    session = Played(people, broker=GONE, answer=lambda question: [located(people, question)])
    node = people.nodes["n1"].identity
    with pytest.raises(BrokerUnavailable):
        await anext(session.ask(kind, {}, node, key=names.topics_key("n1"), patience=Patience(0.2)))
    assert not session.asked
    await session.close()


async def test_a_change_is_refused_in_words(people: People) -> None:
    session = Played(people, broker=GONE, answer=lambda question: [located(people, question)])
    with pytest.raises(
        BrokerUnavailable, match="nobody listens there; nothing was changed, and nothing can be until a broker is back"
    ):
        await session.change("withdraw", {"uuid": UUID}, message_id=envelope.new_id(), timeout=0.3)
    with pytest.raises(BrokerUnavailable, match="nothing was changed"):
        await session.ready(0.3)
    await session.ready(0.3, to_read=True)
    assert not session.asked
    await session.close()


async def test_one_that_answers_is_enough(people: People) -> None:
    """What another complains of is told only when nobody answers."""
    error = Refused("not you").as_object()

    def answer(question: bytes) -> list[bytes]:
        return [reply(people, question, "error", error, by=people.nodes["n2"]), located(people, question)]

    session = Played(people, broker=GONE, answer=answer)
    assert [one.signer.name.id for one in await ask(session)] == ["n1"]
    session._answer = lambda question: [reply(people, question, "error", error)]
    with pytest.raises(Refused, match="not you"):
        await ask(session)
    await session.close()


async def test_whom_the_guard_refuses_hears_that(people: People) -> None:
    """A revoked key, say: nodes refuse it too, and the first reason is the better one."""
    error = TrustError("revoked").as_object()
    session = Played(
        people, broker=LoginRefused("the broker refused the login"), answer=lambda q: [reply(people, q, "error", error)]
    )
    with pytest.raises(LoginRefused, match="the broker refused the login"):
        await ask(session)
    await session.close()


async def test_who_is_new_hears_that_the_broker_is_away(people: People) -> None:
    """A hello would be good advice if there were a broker to say it to."""
    unknown = TrustError("the certificate is not known to the network; enrol with a hello first", detail={"unknown": "x"}).as_object()
    session = Played(people, broker=GONE, answer=lambda question: [reply(people, question, "error", unknown)])
    with pytest.raises(BrokerUnavailable, match="nobody listens there"):
        await ask(session)
    await session.close()


async def test_replies_that_are_not_believed(people: People) -> None:
    """Signed by an entity, for another question, by another node than was asked, or in the open: as over the broker."""

    def answer(question: bytes) -> list[bytes]:
        good = located(people, question)
        by_entity = reply(people, question, "located", {**BODY, "node": "n1"}, by=people.alice)
        return [by_entity, located(people, other), sealing.unseal(good, people.alice.key), b"nonsense"]

    other = envelope.write("locate", {}, people.alice, audience="tdn:nodes", now=datetime.now(UTC), life=timedelta(seconds=60))
    session = Played(people, broker=GONE, answer=answer)
    with pytest.raises(BrokerUnavailable):
        await ask(session)
    session._answer = lambda question: [reply(people, question, "found", {"chain": ["AAAA"]}, by=people.nodes["n2"])]
    node = people.nodes["n1"].identity
    answers = session.ask("lookup", {"principal": "node:n1"}, node, key=names.topics_key("n1"), patience=Patience(1))
    assert [one async for one in answers] == []
    await session.close()


BODY = {"node": "n1", "institution": "local", "policy": {}, "network": NETWORK, "seq": 1, "peers": []}


class Forgetful(Played):
    """A session whose broker takes every question; what comes to a node, and what comes back, is for the test to say."""

    def __init__(self, people: People, *answers: Answering) -> None:
        super().__init__(people, broker=None, answer=None)
        self._answers = list(answers)
        self.ids: list[str] = []

    async def _ensure(self, deadline: float) -> Any:
        return SimpleNamespace(replies=self, connection=SimpleNamespace(bytes_received=0))

    async def publish(self, exchange: str, key: str, message: bytes, *, message_id: str, **how: Any) -> None:
        self.ids.append(message_id)
        for answer in self._answers.pop(0)(message):
            self._pending[self.ids[0]].put_nowait(answer)


async def ask_node(people: People, session: Session, *, seconds: float = 20.0) -> list[Envelope]:
    patience = Patience(seconds)
    answers = session.ask("show", {"uuid": UUID}, people.nodes["n1"].identity, key=names.topics_key("n1"), patience=patience)
    return [answer async for answer in answers]


@pytest.fixture
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_ASK_AGAIN_SECONDS", 0.05)


@pytest.mark.usefixtures("_in_haste")
async def test_a_question_that_was_lost_is_asked_again(people: People) -> None:
    """T22: with its node's connection, say. It is another message, since a node answers one once; and either's answer will do."""
    kept: list[bytes] = []

    def shown(question: bytes) -> bytes:
        return reply(people, question, "shown", {"uuid": UUID}, age=None)

    def keep(question: bytes) -> list[bytes]:
        kept.append(question)
        return []

    session = Forgetful(people, lambda question: [], lambda question: [shown(question)])
    began = asyncio.get_running_loop().time()
    assert [answer.kind for answer in await ask_node(people, session)] == ["shown"]
    assert asyncio.get_running_loop().time() - began < 5, "nor is a second page waited for all the time there is"
    assert len(set(session.ids)) == 2
    late = Forgetful(people, keep, lambda question: [shown(kept[0]), shown(question)])
    (answer,) = await ask_node(people, late)
    assert answer.answers == late.ids[0], "the pages of two answers are not mixed"


@pytest.mark.usefixtures("_in_haste")
async def test_a_node_that_stays_silent_is_asked_ever_more_rarely(people: People) -> None:
    session = Forgetful(people, *[lambda question: []] * 9)
    assert await ask_node(people, session, seconds=1.0) == []
    assert 3 <= len(session.ids) <= 5


def test_endpoints_are_remembered(people: People, tmp_path: Path) -> None:
    """What a node says of itself counts more than what was configured, and is there the next time; a broken file is no obstacle."""
    alice = Credentials(people.alice.identity, people.alice.key, people.alice.roots, tmp_path)
    known = Endpoints(alice, [N1])
    known.learn(N1)
    assert not (tmp_path / FILE).exists()
    moved = NodeAddress("n1", "node-1.example", 443)
    known.learn(moved)
    assert Endpoints(alice, [N1])._known == {"n1": moved}
    for text in ("", "nonsense", "[1]", '{"n1": 1}', json.dumps([{"id": "n1"}])):
        (tmp_path / FILE).write_text(text, "utf-8")
        assert Endpoints(alice, [N1])._known == {"n1": N1}
    assert not Endpoints(alice, [])


def test_connection_toml_names_endpoints(tmp_path: Path) -> None:
    for nodes in ([], [N1, NodeAddress("n2", "::1", 7452)]):
        settings = ConnectionSettings(NETWORK, "tdn", [Broker("127.0.0.1", 5671)], nodes)
        write_connection(tmp_path, settings)
        assert load_connection(tmp_path) == settings
