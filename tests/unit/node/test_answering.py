"""What a node without a broker can say of itself: up to which moment it has the log, and whether its certificate can serve."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from little_network import MINUTE, SECOND, LittleNetwork, Log
from pki import T0

from tdn.confined.frames import WorkFailed
from tdn.errors import Refused, TrustError
from tdn.local.ca import CertificateAuthority
from tdn.node.answering import Answering
from tdn.node.endpoint import cannot_serve
from tdn.node.intake import _PREFETCH
from tdn.node.policy import EVERYBODY
from tdn.node.questions import Answer, Desk
from tdn.node.senders import _UNKNOWN_WAITING
from tdn.observe import trail
from tdn.protocol.names import Role
from tdn.protocol.rates import Rate
from tdn.replica.replica import Replica
from tdn.trust import credentials, envelope, sealing

NET = LittleNetwork("answering")
ALICE = NET.entity("alice")
UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"


class Node:
    """A node's answering over a store of its own, with a clock that a test sets; it has no connection."""

    def __init__(self, folder: Path) -> None:
        self.replica = Replica(folder / "store.sqlite", NET.id)
        self.now = T0
        self.answering = Answering(
            Desk(NET.node("n1"), NET.id, EVERYBODY, lambda: self.replica.position[0]),
            self.replica,
            lambda: self.now,
            lanes=cast(Any, None),
            counts=Counter(),
            queries=Rate(burst=10, per_second=1.0, clock=lambda: 0.0),
            follows=lambda: False,
        )

    async def read(self, log: Log) -> None:
        known = self.replica.position[0]
        await self.replica._apply([(record.seq, record.raw) for record in log.records[known:]])

    def ask(self, kind: str, body: dict[str, Any], at: datetime) -> bytes:
        audience = "tdn:nodes" if kind == "locate" else "node:n1"
        raw = envelope.write(kind, body, ALICE, audience=audience, now=at, life=timedelta(minutes=1))
        return raw if kind == "locate" else sealing.seal(raw, NET.node("n1").identity.public_key)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.replica.close()


async def test_it_has_the_log_up_to_its_own_tick(node: Node) -> None:
    """What others wrote later may be followed by more that it has not seen; its own tick it has read back."""
    assert node.answering.as_of() is None
    log = NET.log()
    await node.read(log)
    assert node.answering.as_of() is None
    log.tick(T0 + MINUTE, "n1")
    log.tick(T0 + 2 * MINUTE, "n2")
    await node.read(log)
    node.now = T0 + 10 * MINUTE
    assert node.answering.as_of() == T0 + MINUTE
    node.now = T0 + 30 * SECOND
    assert node.answering.as_of() == node.now


async def test_an_answer_carries_it_signed(node: Node) -> None:
    await node.read(NET.log())
    question, sealed = await node.answering.read(node.ask("lookup", {"principal": "entity:bob"}, T0))
    assert sealed
    (answer,) = await node.answering.answers(question, T0)
    message = node.answering.reply(question, answer, as_of=T0 - MINUTE)
    reply = envelope.authenticate(sealing.unseal(message, ALICE.key), lambda header: NET.node("n1").identity)
    assert (reply.kind, reply.answers, reply.as_of) == ("found", question.id, T0 - MINUTE)
    plain = node.answering.reply(question, Answer("error", Refused("no").as_object()))
    assert envelope.authenticate(sealing.unseal(plain, ALICE.key), lambda header: NET.node("n1").identity).as_of is None


async def test_a_question_counts_once_whatever_way_it_came(node: Node) -> None:
    await node.read(NET.log())
    message = node.ask("locate", {}, T0)
    for expected in (None, TrustError):
        question, sealed = await node.answering.read(message)
        if expected is None:
            node.answering.admit(question, sealed=sealed, now=T0)
        else:
            with pytest.raises(expected, match="received before"):
                node.answering.admit(question, sealed=sealed, now=T0)


async def test_a_newcomer_who_asks_much_at_once_is_answered_all_of_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node has let it in, and this one applies that a moment later. Strangers do not hold up more than half of the work."""
    monkeypatch.setattr("tdn.node.senders._UNKNOWN_SECONDS", 20.0)
    log = NET.log()
    await node.read(log)
    carol = NET.entity("carol")
    asked = [envelope.write("locate", {}, carol, audience="tdn:nodes", now=T0, life=timedelta(minutes=1)) for _ in range(_UNKNOWN_WAITING)]
    waiting = [asyncio.create_task(node.answering.read(message)) for message in asked]
    await asyncio.sleep(0)
    with pytest.raises(TrustError, match="not known to the network"):
        await node.answering.read(asked[0])
    assert log.put("hello", NET.hello(carol, at=T0), at=T0).status == "accepted"
    await node.read(log)
    questions = [question for question, _ in await asyncio.gather(*waiting)]
    assert {question.signer.name.id for question in questions} == {"carol"}
    assert len({question.id for question in questions}) == _UNKNOWN_WAITING >= 50
    assert 2 * _UNKNOWN_WAITING <= _PREFETCH


async def test_a_search_that_fails_is_told_to_its_asker_and_counts_as_a_failure(node: Node) -> None:
    """To the asker it is an answer like others (T17: silence means that no node is there); to the operator it is a bug of ours, and no refusal."""

    class Broken:
        async def run(self, *_: object, **__: object) -> None:
            raise WorkFailed("Traceback")

    node.answering._lanes = cast(Any, Broken())
    await node.read(NET.log())
    question, _ = await node.answering.read(node.ask("discover", {"language": "string", "query": "x", "limit": 1}, T0))
    ended: list[trail.Trail] = []

    async def work() -> None:
        with pytest.raises(Refused, match="could not be evaluated here") as told:
            await node.answering.answers(question, T0)
        node.answering.reply(question, Answer("error", told.value.as_object()))

    await trail.follow("question", work, ended.append)
    assert [(one.outcome, one.reason) for one in ended] == [(trail.FAILED, "refused")]


async def test_nothing_is_waited_for_that_cannot_come(node: Node) -> None:
    """An asker has seen more of the log than a node that is cut off from it: it is answered at once, with what is there."""
    await node.read(NET.log())
    question, _ = await node.answering.read(node.ask("show", {"uuid": UUID, "after": node.replica.position[0] + 1}, T0))
    waited: list[int] = []

    async def reached(seq: int, *, within_seconds: float) -> None:
        waited.append(seq)

    node.replica.reached = reached  # type: ignore[method-assign]
    await node.answering.catch_up_with(question)
    assert not waited
    node.answering._follows = lambda: True
    await node.answering.catch_up_with(question)
    assert len(waited) == 1


def test_which_certificates_can_serve(tmp_path: Path) -> None:
    """Those that the embedded CA gives nodes, at the hosts that they name; no other PKI's without serverAuth, and no entity's."""
    authority = CertificateAuthority(tmp_path / "ca")
    authority.create()
    authority.issue(Role.NODE, "n1", tmp_path / "n1", hosts=("node-1.example", "127.0.0.1"))
    authority.issue(Role.ENTITY, "alice", tmp_path / "alice")
    node = credentials.load(tmp_path / "n1")
    assert cannot_serve(node, "node-1.example") is None
    assert cannot_serve(node, "127.0.0.1") is None
    assert "does not name the host node-2.example" in str(cannot_serve(node, "node-2.example"))
    assert "not for servers" in str(cannot_serve(credentials.load(tmp_path / "alice"), "127.0.0.1"))
    assert "not for servers" in str(cannot_serve(NET.node("n1"), "127.0.0.1"))
