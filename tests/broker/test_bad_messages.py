"""Bad messages through the real queues. Each is answered where its sender is entitled to an answer, costs the node nothing more, and is
gone: never redelivered for ever, and the node serves on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import path
from tdn.bus import topology
from tdn.errors import Refused
from tdn.local import node_file
from tdn.node.changes import Changes
from tdn.node.service import Node, NodeSettings
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.rules.state import Outcome
from tdn.trust import signing, statements
from tdn.trust.envelope import Envelope
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, until, wait_for

pytestmark = pytest.mark.broker

UUID = "6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"


def create_body(raw: RawEntity, **changes: Any) -> dict[str, Any]:
    return {
        "creator": raw.name.id,
        "institution": raw.credentials.identity.institution,
        "lifetime_seconds": 3600,
        "descriptor": {"kind": "path", "path": "a/b"},
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
        **changes,
    }


@pytest.fixture(scope="module")
def witness(live: LiveNetwork) -> Iterator[RawEntity]:
    """Somebody who asks the nodes after every test."""
    entity = RawEntity(live)
    entity.hello()
    yield entity
    entity.close()


@pytest.fixture(autouse=True)
def still_serving(live: LiveNetwork, witness: RawEntity) -> Iterator[None]:
    """After every test here: the same processes, ready, with empty queues, and both answer."""
    pids = {entry["id"]: entry["pid"] for entry in live.network.status()}
    yield
    assert {entry["id"]: entry["pid"] for entry in live.network.status()} == pids
    assert live.ready()
    assert live.counts("failed") == 0, "a bad message is the sender's fault, not a failure of ours"
    for queue in (names.CHANGES, names.DEAD):
        wait_for(lambda queue=queue: live.waiting(queue) == 0, f"{queue} to be empty")
    for node in ("n1", "n2"):
        wait_for(lambda node=node: live.unanswered(node) == 0, f"{node} to have taken all")
    for node in ("n1", "n2"):
        witness.question(witness.seal(witness.write("create", create_body(witness), audience=f"node:{node}"), node), node)
        assert witness.reply().kind == "created"


def turned_away(live: LiveNetwork, *nodes: str) -> Callable[[], bool]:
    """A condition: the nodes have turned one more message away. One: had it come back, there would be more."""
    before = live.counts("turned away", *nodes)
    return lambda: live.counts("turned away", *nodes) > before


# --- messages that nobody can be named for -------------------------------------------------------------------------------------------


def _with_signature_of_another(raw: RawEntity) -> bytes:
    head, payload, _ = raw.write("renew", {"uuid": UUID, "lifetime_seconds": 60}).split(b".")
    other = raw.write("withdraw", {"uuid": UUID}).split(b".")[2]
    return b".".join((head, payload, other))


def _unsigned(raw: RawEntity) -> bytes:
    return raw.write("withdraw", {"uuid": UUID}).rsplit(b".", 1)[0] + b"."


def _alg(raw: RawEntity, alg: str, *, keep: bool = False) -> bytes:
    message = raw.claim("withdraw", {"uuid": UUID}, header={"alg": alg})
    return message if keep else message.rsplit(b".", 1)[0] + b"."


def _jwk(raw: RawEntity) -> bytes:
    return raw.claim("withdraw", {"uuid": UUID}, header={"jwk": {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}})


def _deep(raw: RawEntity) -> bytes:
    return raw.sign(_header(raw, "withdraw"), '{"v": 1, "body": ' + "[" * 5000 + "]" * 5000 + "}")


def _doubled(raw: RawEntity) -> bytes:
    text = signing.decode_segment(raw.claim("withdraw", {"uuid": UUID}).split(b".")[1]).decode()
    return raw.sign(_header(raw, "withdraw"), text.replace('"v": 1', '"v": 1, "v": 1', 1))


def _header(raw: RawEntity, kind: str) -> dict[str, Any]:
    return {"alg": "ES256", "typ": f"tdn-{kind}+jwt", "x5t#S256": raw.credentials.identity.thumbprint}


def _changed_byte(raw: RawEntity) -> bytes:
    message = bytearray(raw.write("withdraw", {"uuid": UUID}))
    place = message.index(b".") + 20
    message[place] = ord("A") if message[place] != ord("A") else ord("B")
    return bytes(message)


def _as_another_kind(raw: RawEntity) -> bytes:
    """The payload of a withdrawal under the header of a renewal: the kind is signed with it."""
    _, payload, signature = raw.write("withdraw", {"uuid": UUID}).split(b".")
    header = signing.encode_segment(json.dumps(_header(raw, "renew")).encode()).encode()
    return b".".join((header, payload, signature))


NAMELESS: dict[str, tuple[Callable[[RawEntity], bytes], str, str]] = {
    "empty": (lambda raw: b"", "usage", "not a signed message"),
    "not JSON": (lambda raw: b"hello there", "usage", "not a signed message"),
    "three parts of nothing": (lambda raw: b"..", "usage", "JSON"),
    "binary": (lambda raw: bytes(range(256)) * 10, "usage", "not a signed message"),
    "header is no JSON": (lambda raw: b"aGVsbG8.aGVsbG8.aGVsbG8", "usage", "not JSON"),
    "oversized": (lambda raw: b"x" * 300_000, "usage", "over the limit"),
    "oversized and signed": (
        lambda raw: raw.claim("withdraw", {"uuid": UUID, "filler": "x" * 300_000}),
        "usage",
        "over the limit",
    ),
    "deep": (_deep, "usage", "deeper"),
    "a key twice": (_doubled, "usage", "twice"),
    "unknown schema version": (lambda raw: raw.claim("withdraw", {"uuid": UUID}, v=2), "usage", "schema version 2 is unknown"),
    "schema version as text": (lambda raw: raw.claim("withdraw", {"uuid": UUID}, v="1"), "usage", "schema version"),
    "a claim too many": (lambda raw: raw.claim("withdraw", {"uuid": UUID}, admin=True), "usage", "admin"),
    "a body member too many": (lambda raw: raw.claim("withdraw", {"uuid": UUID, "force": True}), "usage", "force"),
    "payload is no object": (lambda raw: raw.sign(_header(raw, "withdraw"), "[1]"), "usage", "not an object"),
    "NaN": (lambda raw: raw.sign(_header(raw, "withdraw"), '{"v": NaN}'), "usage", "NaN"),
    "unsigned": (_unsigned, "trust", "signature"),
    "signature of another message": (_with_signature_of_another, "trust", "signature"),
    "changed byte": (_changed_byte, "trust", "signature"),
    "alg none": (lambda raw: _alg(raw, "none"), "trust", "'none' is refused"),
    "alg none, signature kept": (lambda raw: _alg(raw, "none", keep=True), "trust", "'none' is refused"),
    "alg HS256": (lambda raw: _alg(raw, "HS256", keep=True), "trust", "'HS256' is refused"),
    "key in a header": (_jwk, "trust", "jwk"),
    "one kind presented as another": (_as_another_kind, "trust", "signature"),
    "a kind that nobody knows": (lambda raw: raw.claim("conquer", {}), "usage", "unknown"),
    "another sender named": (
        lambda raw: raw.claim("withdraw", {"uuid": UUID}, iss=f"tdn:entity:somebody:{'0' * 64}"),
        "trust",
        "another sender",
    ),
    "tail that was not signed": (lambda raw: raw.write("withdraw", {"uuid": UUID}) + b"~extra", "trust", "not what was signed"),
}


@pytest.mark.parametrize("flaw", NAMELESS)
@pytest.mark.parametrize("way", ["change", "question"])
def test_turned_away(live: LiveNetwork, raw: RawEntity, flaw: str, way: str) -> None:
    """T19: nothing is believed; the one address that proves its sender gets a clear, signed error, and nobody else gets any."""
    raw.hello()
    make, error, words = NAMELESS[flaw]
    before = live.counts("turned away")
    send = {"change": raw.change, "question": lambda body, **rest: raw.question(body, "n1", **rest)}[way]
    send(make(raw), reply_to=names.DIRECT_REPLY)
    answer = raw.direct_reply()
    assert answer.kind == "error"
    assert answer.audience == "tdn:sender"
    assert answer.body["error"] == error
    assert words in answer.body["message"]

    if way == "question":
        return
    send(make(raw))
    wait_for(lambda: live.counts("turned away") >= before + 2, "the second to be turned away")
    assert raw.more_replies() == 0
    assert live.counts("turned away") == before + 2, "each of them once"


def test_what_is_not_known_is_named(live: LiveNetwork) -> None:
    """T19: a certificate that has not said hello is told so, and to whom to say it."""
    stranger = RawEntity(live)
    stranger.change(stranger.write("withdraw", {"uuid": UUID}), reply_to=names.DIRECT_REPLY)
    answer = stranger.direct_reply()
    assert (answer.body["error"], "hello" in answer.body["message"]) == ("trust", True)
    stranger.close()


def test_a_hello_with_anothers_chain(live: LiveNetwork, raw: RawEntity) -> None:
    """T19: a chain proves nothing without its key."""
    victim = RawEntity(live)
    raw.credentials = type(raw.credentials)(victim.credentials.identity, raw.credentials.key, raw.credentials.roots, raw.folder)
    raw.publish(names.NODES, raw.write("hello", {}, with_chain=True), reply_to=names.DIRECT_REPLY)
    answer = raw.direct_reply()
    victim.close()
    assert (answer.kind, answer.body["error"]) == ("error", "trust")
    assert "signature" in answer.body["message"]


# --- messages of a verified sender: answered with an error ---------------------------------------------------------------------------


def ask(raw: RawEntity, kind: str, body: dict[str, Any], node: str = "n1", **claims: Any) -> Envelope:
    raw.question(raw.seal(raw.claim(kind, body, audience=f"node:{node}", **claims), node), node)
    return raw.reply()


def test_claimed_creator_and_institution(live: LiveNetwork, raw: RawEntity) -> None:
    """T1: creator and institution are the certificate's; a request that claims others is refused with both named."""
    raw.hello()
    for changes, words in (({"creator": "somebody"}, "'somebody'"), ({"institution": "Elsewhere"}, "'Elsewhere'")):
        answer = ask(raw, "create", create_body(raw, **changes))
        assert (answer.kind, answer.body["error"]) == ("error", "trust")
        assert words in answer.body["message"]
        assert "its certificate says" in answer.body["message"]


def test_create_with_its_own_uuid(live: LiveNetwork, raw: RawEntity) -> None:
    """T4: there is no place for a UUID in a request; wherever it stands, the request is turned away with the reason."""
    raw.hello()
    for body in (
        create_body(raw, uuid=UUID),
        create_body(raw, synopsis={"type": "string", "placeholder": "{uuid}", "value": UUID}),
    ):
        gone = turned_away(live, "n1")
        message = raw.seal(raw.claim("create", body, audience="node:n1"), "n1")
        raw.question(message, "n1", reply_to=names.DIRECT_REPLY)
        answer = raw.direct_reply()
        assert (answer.kind, answer.body["error"]) == ("error", "usage")
        assert "UUID" in answer.body["message"] or "value" in answer.body["message"]
        wait_for(gone)
    answer = ask(raw, "create", create_body(raw, synopsis={"type": "string", "placeholder": UUID}))
    assert (answer.kind, answer.body["error"]) == ("error", "usage")
    assert "UUID of its own" in answer.body["message"]


def test_a_question_that_is_not_sealed(live: LiveNetwork, raw: RawEntity) -> None:
    raw.hello()
    raw.question(raw.write("create", create_body(raw), audience="node:n1"), "n1")
    answer = raw.reply()
    assert (answer.kind, answer.body["error"]) == ("error", "refused")
    assert "sealed" in answer.body["message"]


def test_a_change_on_the_path_of_questions(live: LiveNetwork, raw: RawEntity) -> None:
    """T19: a change that is sent to one node as a question has no effect; its sender is told where changes go."""
    raw.hello()
    raw.question(raw.seal(raw.write("withdraw", {"uuid": UUID}), "n1"), "n1")
    answer = raw.reply()
    assert (answer.kind, answer.body["error"]) == ("error", "refused")
    assert "is not a question" in answer.body["message"]
    assert live.records_about(UUID) == []


def test_a_question_on_the_path_of_changes(live: LiveNetwork, raw: RawEntity) -> None:
    """T19: a question among the changes is not answered and not logged; the direct reply-to says why."""
    raw.hello()
    before = live.records("n1")[-1]["seq"]
    raw.change(raw.write("locate", {}, audience="tdn:nodes"), reply_to=names.DIRECT_REPLY)
    assert "is not a change" in raw.direct_reply().body["message"]
    gone = turned_away(live)
    raw.change(raw.write("show", {"uuid": UUID}, audience="node:n1"))
    wait_for(gone)
    assert raw.more_replies() == 0
    assert {record["kind"] for record in live.records("n1", "seq > ?", before)} <= {"tick", "hello"}


def test_forged_path_header(live: LiveNetwork, raw: RawEntity) -> None:
    """The header only routes: with a false, missing or doubled one a message lands in the wrong queue or in none, and that is all."""
    raw.hello()
    for path_header in ("", "x", None):
        raw.publish(names.TOPICS, raw.write("withdraw", {"uuid": UUID}), path=path_header)
    raw.publish(names.TOPICS, raw.write("withdraw", {"uuid": UUID}), path=names.QUESTION_PATH)
    # As a question to both nodes, unsealed and of the wrong kind: each tells the verified sender.
    assert [raw.reply().body["error"] for _ in range(2)] == ["refused", "refused"]
    # To one node's own topic with the header of changes: it is the node's queue all the same.
    raw.publish(names.topics_key("n2"), raw.write("withdraw", {"uuid": UUID}), path=names.CHANGE_PATH)
    assert "is not a question" in raw.reply().body["message"]
    assert raw.more_replies() == 0
    assert live.records_about(UUID) == []


def test_a_question_to_another_node(live: LiveNetwork, raw: RawEntity) -> None:
    """T19: sealed to another node, or addressed to another, a question is not answered by whoever it reaches."""
    raw.hello()
    misdirected = {
        "sealed to another": raw.seal(raw.write("create", create_body(raw), audience="node:n2"), "n2"),
        "addressed to another": raw.seal(raw.write("create", create_body(raw), audience="node:n2"), "n1"),
        "addressed to all": raw.seal(raw.write("create", create_body(raw), audience="tdn:nodes"), "n1"),
        "addressed to the network": raw.seal(raw.write("create", create_body(raw)), "n1"),
    }
    for flaw, message in misdirected.items():
        gone = turned_away(live, "n1")
        raw.question(message, "n1")
        wait_for(gone, flaw)
    # Resealed by whoever was meant to read it, for the other node: addressed still to the first.
    assert raw.more_replies() == 0


@pytest.mark.parametrize("flaw", ["expired", "future", "too long", "other network"])
def test_not_for_now_or_not_for_here(live: LiveNetwork, raw: RawEntity, flaw: str) -> None:
    """T19: outside its short window, or for another network, a message has no effect."""
    raw.hello()
    now = int(time.time())
    claims: dict[str, Any] = {
        "expired": {"iat": now - 300, "exp": now - 200},
        "future": {"iat": now + 300, "exp": now + 330},
        "too long": {"iat": now, "exp": now + 7 * 86400},
        "other network": {"aud": f"tdn:network:{'0' * 64}"},
    }[flaw]
    # Not valid before its certificate is: then the signature is what fails first.
    raw.change(raw.claim("withdraw", {"uuid": UUID}, **claims), reply_to=names.DIRECT_REPLY)
    deadline = time.monotonic() + 10
    while not raw.more_replies():
        assert time.monotonic() < deadline
    answer = raw.reply() if raw._replies else raw.direct_reply()
    assert (answer.kind, answer.body["error"]) == ("error", "trust")
    assert live.records_about(UUID) == []
    if flaw != "other network":
        gone = turned_away(live, "n1")
        raw.question(raw.seal(raw.claim("create", create_body(raw), audience="node:n1", **claims), "n1"), "n1")
        wait_for(gone)
        assert raw.more_replies() == 0


# --- replays -------------------------------------------------------------------------------------------------------------------------


def test_a_replayed_question_is_answered_once(live: LiveNetwork, raw: RawEntity) -> None:
    """T19: the same bytes a second time, from whomever, are not answered again."""
    raw.hello()
    message = raw.seal(raw.write("create", create_body(raw), audience="node:n1"), "n1")
    raw.question(message, "n1")
    assert raw.reply().kind == "created"
    attacker = RawEntity(live)
    for sender in (raw, attacker):
        gone = turned_away(live, "n1")
        sender.question(message, "n1")
        wait_for(gone)
    attacker.close()
    assert raw.more_replies() == 0


async def test_a_replayed_change_has_one_effect(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """T19, T22: the same change again, by its sender or an eavesdropper, gives the same receipt and no second record that counts."""
    client = await connect(live, entity)
    topic = await client.create(path("replayed"), lifetime=timedelta(hours=1))
    raw, attacker = RawEntity(live, entity), RawEntity(live)
    raw.hello()
    message = raw.write("renew", {"uuid": topic.uuid, "lifetime_seconds": 7200}, seconds=3600)
    raw.change(message)
    first = receipt_of(raw.reply(), raw)
    await client.renew(topic.uuid, timedelta(days=5))
    renewed = (await client.show(topic.uuid)).expires
    for sender in (raw, attacker):
        for _ in range(3):
            sender.change(message)
            # The answer goes to the one who signed, never to who replayed.
            assert receipt_of(raw.reply(), raw) == first
    assert attacker.more_replies() == 0
    accepted = [
        record for record in live.records_about(topic.uuid) if record["kind"] == "renew" and record["status"] == "accepted"
    ]
    assert len(accepted) == 2
    assert (await client.show(topic.uuid)).expires == renewed, "a replay does not bring the earlier state back"
    # The same id for another request is no replay but a refusal.
    request = message.split(b".")[1]
    jti = json.loads(signing.decode_segment(request))["jti"]
    raw.change(raw.write("renew", {"uuid": topic.uuid, "lifetime_seconds": 60}, message_id=jti))
    answer = raw.reply()
    assert (answer.kind, answer.body["error"]) == ("error", "refused")
    raw.close()
    attacker.close()


def receipt_of(reply: Envelope, raw: RawEntity) -> dict[str, Any]:
    assert reply.kind == "decided", reply.body
    return dict(statements.read(reply.tail or b"", statements.by_roots(raw.credentials.roots)).payload)


# --- malicious addresses and headers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "amq.rabbitmq.reply-to.none.none",
        "amq.rabbitmq.reply-to.",
        "amq.rabbitmq.reply-to.g1h2AAAA.x",
        "amq.rabbitmq.reply-to." + "x" * 200,
        names.LOG,
        names.CHANGES,
        "another's queue",
    ],
)
@pytest.mark.parametrize("content", ["garbage", "good"])
def test_malicious_reply_to(live: LiveNetwork, raw: RawEntity, address: str, content: str) -> None:
    """A made-up address closes at most a connection that the node can lose; another's queue gets nothing, and nothing gets into the log."""
    victim = RawEntity(live)
    victim.introduce()
    raw.hello()
    before = live.records("n1")[-1]["seq"]
    reply_to = victim.queue if address == "another's queue" else address
    if content == "garbage":
        gone = turned_away(live)
        raw.change(b"garbage", reply_to=reply_to)
        wait_for(gone)
        raw.question(b"garbage", "n1", reply_to=reply_to)
    else:
        raw.publish(names.NODES, raw.write("hello", {}, with_chain=True, reply=None), reply_to=reply_to)
        raw.question(raw.seal(raw.write("show", {"uuid": UUID}, audience="node:n1", reply=None), "n1"), "n1", reply_to=reply_to)
    # Whoever has been introduced is served on, by both nodes, and newcomers too.
    raw.publish(names.NODES, raw.write("locate", {}, audience="tdn:nodes"), path=names.QUESTION_PATH)
    assert {raw.reply().body["node"] for _ in range(2)} == {"n1", "n2"}
    newcomer = RawEntity(live)
    newcomer.hello()
    newcomer.close()
    assert live.waiting(victim.queue) == 0
    victim.close()
    wait_for(lambda: live.records("n1", "seq > ?", before), "a record after it")
    assert {record["status"] for record in live.records("n1", "seq > ?", before)} == {"accepted"}, "nothing void in the log"


def test_a_forged_session_in_a_request(live: LiveNetwork, raw: RawEntity) -> None:
    """T6: the reply's queue is named by the certificate and the session: another's session leads to no queue of the other's."""
    victim = RawEntity(live)
    victim.introduce()
    raw.hello()
    raw.question(raw.seal(raw.write("create", create_body(raw), audience="node:n1", reply=victim.session), "n1"), "n1")
    raw.question(raw.seal(raw.write("create", create_body(raw), audience="node:n1"), "n1"), "n1")
    assert raw.reply().kind == "created"
    assert live.waiting(victim.queue) == 0
    victim.close()


def test_huge_header_tables(live: LiveNetwork, raw: RawEntity) -> None:
    """Headers are the broker's business: a table as large as a frame passes and nobody minds; a larger one the broker refuses."""
    raw.hello()
    headers = {f"h{number}": "x" * 100 for number in range(1000)}
    raw.publish(names.NODES, raw.write("locate", {}, audience="tdn:nodes"), path=names.QUESTION_PATH, headers=headers)
    assert {raw.reply().body["node"] for _ in range(2)} == {"n1", "n2"}
    nested: Any = {}
    for _ in range(100):
        nested = {"a": nested}
    raw.publish(names.NODES, raw.write("locate", {}, audience="tdn:nodes"), path=names.QUESTION_PATH, headers={"n": nested})
    assert {raw.reply().body["node"] for _ in range(2)} == {"n1", "n2"}


# --- a fault of our own --------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def node_in_this_process(network: LiveNetwork, name: str) -> AsyncIterator[Node]:
    """A node of the network, served by this process instead of its own."""
    folder = network.home.credentials(Role.NODE, name)
    connection = network.home.connection()
    _, limits = node_file.read(folder)
    settings = NodeSettings(
        connection.brokers,
        connection.vhost,
        network.home.genesis(),
        folder / "store.sqlite",
        network.home.enrolments,
        0.5,
        limits=limits,
    )
    node, stop = Node(network.credentials(Role.NODE, name), settings), asyncio.Event()
    serving = asyncio.create_task(node.run(stop))
    try:
        await until(lambda: node.condition.ready or serving.done(), "the node to be ready")
        yield node
    finally:
        stop.set()
        await serving


async def test_poison_is_given_up_and_answered(mortal: LiveNetwork, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: a change on which a node fails by its own fault is tried a few times, then given up; its sender is told, and it is gone."""
    tried: list[str] = []

    class Failing(Changes):
        async def decide(self, request: Envelope) -> Outcome:
            if request.kind == "withdraw":
                tried.append(request.id)
                raise RuntimeError("a bug of ours")
            return await super().decide(request)

    client = await connect(mortal)
    topic = await client.create(path("poison"))
    for node in mortal.nodes():
        mortal.stop(node)
    monkeypatch.setattr("tdn.node.service.Changes", Failing)
    async with node_in_this_process(mortal, "n1") as node:
        with pytest.raises(Refused, match="failed too often"):
            await client.withdraw(topic.uuid)
        # A retry of the client within the tries is the same change in the queue once more; each is tried so often and no more.
        await until(lambda: node.condition.counts["dead"] >= 1)
        assert len(set(tried)) == 1
        rounds = node.condition.counts["dead"]
        await until(lambda: node.condition.counts["failed"] == rounds * (topology.DELIVERY_LIMIT + 1), "every try to be over")
        for queue in (names.CHANGES, names.DEAD):
            assert await asyncio.to_thread(mortal.waiting, queue) == 0
        # The node goes on, and the topic is as it was.
        assert (await client.create(path("after"))).receipt
        assert (await client.show(topic.uuid)).expires == topic.expires
    monkeypatch.undo()
    for name in mortal.nodes():
        await asyncio.to_thread(mortal.start, name)
    # With the fault mended, the same command does it.
    assert (await client.withdraw(topic.uuid)).uuid == topic.uuid
    assert datetime.now(UTC) < topic.expires
