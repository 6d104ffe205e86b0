"""The broker enforces: what an entity with a valid certificate, and a stranger without one, cannot do by any path that AMQP offers."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from entity_client import EntityClient, path
from tdn.bus.connection import tls_context
from tdn.errors import TrustError
from tdn.local.ca import CertificateAuthority
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import credentials
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, run, until, wait_for

pytestmark = pytest.mark.broker

REFUSED = (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)
NO_ENTRY = (pika.exceptions.AMQPError, ssl.SSLError, OSError)

Act = Callable[[RawEntity, "LiveNetwork", str], Any]


def _publish(exchange: str, key: str) -> Act:
    return lambda raw, live, other: raw.channel.basic_publish(exchange, key, b"x")


def _consume(queue: str) -> Act:
    return lambda raw, live, other: raw.channel.basic_consume(queue, lambda *_: None)


def _get(queue: str) -> Act:
    return lambda raw, live, other: raw.channel.basic_get(queue)


FORBIDDEN: dict[str, Act] = {
    "declare a queue": lambda raw, live, other: raw.channel.queue_declare("mine"),
    "declare a queue with a server's name": lambda raw, live, other: raw.channel.queue_declare("", exclusive=True),
    "declare a queue under its own reply name": lambda raw, live, other: raw.channel.queue_declare(
        names.reply_queue(raw.name, names.new_session())
    ),
    "declare a queue that dead-letters": lambda raw, live, other: raw.channel.queue_declare(
        "letters", arguments={"x-dead-letter-exchange": names.REPLIES, "x-dead-letter-routing-key": other}
    ),
    "declare an exchange": lambda raw, live, other: raw.channel.exchange_declare("mine", "topic"),
    "declare an alternate exchange": lambda raw, live, other: raw.channel.exchange_declare(
        "mine", "topic", arguments={"alternate-exchange": names.REPLIES}
    ),
    "delete its own reply queue": lambda raw, live, other: raw.channel.queue_delete(raw.queue),
    "delete another's reply queue": lambda raw, live, other: raw.channel.queue_delete(other),
    "delete the changes": lambda raw, live, other: raw.channel.queue_delete(names.CHANGES),
    "delete the log": lambda raw, live, other: raw.channel.queue_delete(names.LOG),
    "delete an exchange": lambda raw, live, other: raw.channel.exchange_delete(names.REQUESTS),
    "purge another's replies": lambda raw, live, other: raw.channel.queue_purge(other),
    "purge the changes": lambda raw, live, other: raw.channel.queue_purge(names.CHANGES),
    "bind its queue to the requests": lambda raw, live, other: raw.channel.queue_bind(raw.queue, names.REQUESTS, names.TOPICS),
    "bind its queue with # to the requests": lambda raw, live, other: raw.channel.queue_bind(raw.queue, names.REQUESTS, "#"),
    "bind its queue with * to the requests": lambda raw, live, other: raw.channel.queue_bind(
        raw.queue, names.REQUESTS, "Services.Discovery.*"
    ),
    "bind its queue to another's replies": lambda raw, live, other: raw.channel.queue_bind(raw.queue, names.REPLIES, other),
    "bind its queue with # to amq.topic": lambda raw, live, other: raw.channel.queue_bind(raw.queue, "amq.topic", "#"),
    "bind its queue to the broadcast": lambda raw, live, other: raw.channel.queue_bind(raw.queue, names.BROADCAST, ""),
    "unbind a node's queue": lambda raw, live, other: raw.channel.queue_unbind(
        live.own_queue("n1"), names.REQUESTS, names.topics_key("n1")
    ),
    "bind exchange to exchange": lambda raw, live, other: raw.channel.exchange_bind("amq.topic", names.REQUESTS, "#"),
    "bind the replies to the requests": lambda raw, live, other: raw.channel.exchange_bind(names.REPLIES, names.REQUESTS, "#"),
    "unbind the broadcast": lambda raw, live, other: raw.channel.exchange_unbind(names.BROADCAST, names.REQUESTS, names.TOPICS),
    "consume another's replies": lambda raw, live, other: raw.channel.basic_consume(other, lambda *_: None),
    "get another's replies": lambda raw, live, other: raw.channel.basic_get(other),
    "consume a node's queue": lambda raw, live, other: raw.channel.basic_consume(live.own_queue("n1"), lambda *_: None),
    "get from a node's queue": lambda raw, live, other: raw.channel.basic_get(live.own_queue("n2")),
    "consume the changes": _consume(names.CHANGES),
    "get from the changes": _get(names.CHANGES),
    "get from the dead letters": _get(names.DEAD),
    "consume the dead letters": _consume(names.DEAD),
    "consume the log": lambda raw, live, other: (
        raw.channel.basic_qos(prefetch_count=10),
        raw.channel.basic_consume(names.LOG, lambda *_: None, arguments={"x-stream-offset": "first"}),
    ),
    "publish to the default exchange": lambda raw, live, other: raw.channel.basic_publish("", other, b"x"),
    "publish to its own queue": lambda raw, live, other: raw.channel.basic_publish("", raw.queue, b"x"),
    "append to the log": _publish("", names.LOG),
    "publish to the changes past the exchange": _publish("", names.CHANGES),
    "publish to the dead letters": _publish("", names.DEAD),
    "publish a reply": lambda raw, live, other: raw.channel.basic_publish(names.REPLIES, other, b"x"),
    "publish to the broadcast": _publish(names.BROADCAST, ""),
    "publish to amq.topic": _publish("amq.topic", names.TOPICS),
    "publish to amq.direct": _publish("amq.direct", "x"),
    "publish to amq.headers": _publish("amq.headers", "x"),
    "publish outside the service topics": _publish(names.REQUESTS, "Elsewhere"),
    "publish on a name that begins like one": _publish(names.REQUESTS, f"{names.TOPICS}x"),
    "publish on a topic above": _publish(names.REQUESTS, "Services.Discovery"),
    "publish with a wildcard": _publish(names.REQUESTS, "#"),
}


@pytest.fixture(scope="module")
def other(live: LiveNetwork) -> Any:
    """Another entity's reply queue, in use."""
    entity = RawEntity(live)
    entity.hello()
    yield entity
    entity.close()


@pytest.mark.parametrize("act", FORBIDDEN)
def test_an_entity_may_not(live: LiveNetwork, other: RawEntity, raw: RawEntity, act: str) -> None:
    """T21: the broker says 403, and nothing has come of it."""
    raw.introduce()
    channel = raw.channel = raw.connection.channel()

    def attempt() -> None:
        FORBIDDEN[act](raw, live, other.queue)
        # A publish is judged asynchronously: the next answer of the broker brings the refusal.
        channel.confirm_delivery()

    with pytest.raises(REFUSED) as refusal:
        attempt()
    assert refusal.value.reply_code == 403, refusal.value
    assert other.more_replies() == 0


def test_after_all_of_that_everything_is_as_it_was(live: LiveNetwork) -> None:
    """Queues, exchanges and bindings are the nodes' own; nothing an entity tried has left anything."""
    queues = {queue["name"] for queue in live.manage("GET", "/queues/tdn")}
    ours = {names.CHANGES, names.DEAD, names.LOG}
    ours |= {live.own_queue(node, kind) for node in ("n1", "n2") for kind in ("node", "guards")}
    heads = [queue.split(".")[2] for queue in queues if queue.startswith(f"{names.HEADS}.")]
    assert sorted(heads) == ["n1", "n2"], "one for each node's connection"
    # The operator asks as entities do, when other tests have it revoke something.
    assert {queue for queue in queues if not queue.startswith(("Entity.", "Operator.", "Peer.", "Feed.", f"{names.HEADS}."))} == ours
    exchanges = {exchange["name"] for exchange in live.manage("GET", "/exchanges/tdn")}
    assert {exchange for exchange in exchanges if not exchange.startswith("amq.") and not names.is_topic(exchange)} == {
        "",
        names.REQUESTS,
        names.BROADCAST,
        names.REPLIES,
        names.NOTIFICATIONS,
        names.PEERS,
        names.PEER_REPLIES,
        names.GUARDS,
        names.HEADS,
    }
    topics = {exchange for exchange in exchanges if names.is_topic(exchange)}
    allowed = {"Entity": {"", names.REPLIES}, "Operator": {"", names.REPLIES}, "Peer": {"", names.PEERS, names.PEER_REPLIES}, "Feed": {"", *topics}}
    for binding in live.manage("GET", "/bindings/tdn"):
        sources = allowed.get(binding["destination"].partition(".")[0])
        assert sources is None or binding["source"] in sources, binding
    assert live.ready()


def test_reading_replies_of_a_name_that_begins_alike(live: LiveNetwork) -> None:
    """T21: entity `x` does not read the queues of `x-1`, nor the other way round."""
    short, long = live.entity("pre"), None
    long = live.network.operator.issue(Role.ENTITY, f"{short.name}-1")
    first, second = RawEntity(live, short), RawEntity(live, long)
    first.introduce()
    second.introduce()
    for reader, victim in ((first, second), (second, first)):
        with pytest.raises(REFUSED, match="ACCESS_REFUSED"):
            reader.channel.basic_get(victim.queue)
    first.close()
    second.close()


def test_headers_lead_nowhere_else(live: LiveNetwork, other: RawEntity) -> None:
    """T21: CC and BCC add routing keys; from the requests they reach no entity and not the log. RabbitMQ 4 asks the guard about them too
    and closes the channel; 3.10 does not ask, and there the bindings lead nowhere else."""
    for key in ("CC", "BCC"):
        raw = RawEntity(live)
        raw.hello()
        before = live.records("n1")[-1]["seq"]
        raw.publish(
            names.topics_key("n1"),
            raw.write("locate", {}, audience="tdn:nodes"),
            path=names.QUESTION_PATH,
            headers={key: [other.queue, names.LOG, names.CHANGES]},
        )
        wait_for(lambda raw=raw: raw.more_replies() or not raw.channel.is_open, "an answer or a refusal")
        if raw.channel.is_open:
            assert raw.reply().kind == "located"
        raw.close()
        assert all(record["kind"] in ("tick", "hello") for record in live.records("n1", "seq > ?", before))
    assert other.more_replies() == 0


# --- who gets in at all --------------------------------------------------------------------------------------------------------------


def test_no_certificate(live: LiveNetwork) -> None:
    context = ssl.create_default_context(cafile=str(live.home.folder / "ca" / "root.pem"))
    with pytest.raises(NO_ENTRY):
        pika.BlockingConnection(live.parameters(context))


def test_certificate_of_another_authority(live: LiveNetwork, tmp_path: Path) -> None:
    """T19: the same name from another CA is nobody."""
    stranger = CertificateAuthority(tmp_path / "ca")
    stranger.create()
    stranger.issue(Role.ENTITY, "mallory", tmp_path / "mallory")
    context = ssl.create_default_context(cafile=str(live.home.folder / "ca" / "root.pem"))
    context.load_cert_chain(tmp_path / "mallory" / "cert.pem", tmp_path / "mallory" / "key.pem")
    with pytest.raises(NO_ENTRY):
        pika.BlockingConnection(live.parameters(context))


@pytest.mark.parametrize("user", ["guest", "tdn-management", "entity", "node"])
def test_passwords(live: LiveNetwork, entity: Path, user: str) -> None:
    """PLAIN is not offered: not to the management login with its true password, not to a node's name."""
    who = credentials.load(entity)
    login = {"entity": str(who.identity.name), "node": str(live.node("n1").name)}.get(user, user)
    password = live.home.management_password() if user == "tdn-management" else "guest"
    with pytest.raises(NO_ENTRY):
        pika.BlockingConnection(live.parameters(tls_context(who), pika.PlainCredentials(login, password)))


def test_an_entity_certificate_is_no_nodes(live: LiveNetwork, entity: Path, tmp_path: Path) -> None:
    """T8: a node is one because the operator enrolled its key. A node certificate that was not enrolled does not get in."""
    live.network.operator.authority.issue(Role.NODE, "impostor", tmp_path / "impostor")
    with pytest.raises(NO_ENTRY):
        live.amqp(tmp_path / "impostor")
    live.network.operator.authority.issue(Role.NODE, "n1", tmp_path / "n1")
    with pytest.raises(NO_ENTRY):
        live.amqp(tmp_path / "n1")


def test_only_a_broker_may_ask_the_guard(live: LiveNetwork, entity: Path) -> None:
    """The guard answers nobody but a broker: an entity or a node that asks is told no, whatever it asks; without certificate, not even that."""
    name = credentials.load(entity).identity.name
    question = urllib.parse.urlencode({"username": str(name)}).encode()
    url = f"https://localhost:{live.home.ports()['guard']}/auth/user"

    def ask(context: ssl.SSLContext) -> str:
        with urllib.request.urlopen(urllib.request.Request(url, question), timeout=10, context=context) as response:
            return str(response.read().decode())

    broker = credentials.load(live.home.credentials(Role.BROKER, "broker"))
    assert ask(tls_context(broker)) == "allow", "the question itself is a good one"
    for folder in (entity, live.home.credentials(Role.NODE, "n1"), live.home.credentials(Role.OPERATOR, "operator")):
        assert ask(tls_context(credentials.load(folder))) == "deny"
    with pytest.raises(OSError, match=r"(?i)certificate required|alert|reset|closed|EOF"):
        ask(ssl.create_default_context(cafile=str(live.home.folder / "ca" / "root.pem")))


def test_the_management_password_is_needed(live: LiveNetwork, entity: Path) -> None:
    """An entity's certificate reaches the management port; without the operator's password it sees nothing."""
    context = tls_context(credentials.load(entity))
    handler = urllib.request.HTTPPasswordMgrWithPriorAuth()
    handler.add_password(None, live.home.settings().management_url, "tdn-management", "guess", is_authenticated=True)
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), urllib.request.HTTPBasicAuthHandler(handler)
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        opener.open(f"{live.home.settings().management_url}/api/queues", timeout=10)


def test_without_the_guard_nobody_gets_in(mortal: LiveNetwork) -> None:
    """Fails closed: with the guard away no login works; when it is back, all is as before."""
    folder = mortal.entity()
    mortal.amqp(folder).close()
    guard = mortal.network.process(Role.GUARD, "g1")
    guard.kill_hard()
    try:
        for who in (folder, mortal.home.credentials(Role.NODE, "n1")):
            with pytest.raises(NO_ENTRY):
                mortal.amqp(who)
    finally:
        mortal.network.start_one(Role.GUARD, "g1")
    mortal.amqp(folder).close()
    mortal.as_node().close()


# --- rotation and revocation ---------------------------------------------------------------------------------------------------------


def closed_by_broker(connection: pika.BlockingConnection) -> bool:
    try:
        connection.process_data_events(0.02)
    except pika.exceptions.AMQPError:
        return True
    return False


async def works(client: EntityClient) -> bool:
    return bool((await client.create(path("works"))).receipt)


async def test_rotation(live: LiveNetwork, connect: Connect, entity: Path, tmp_path: Path) -> None:
    """T19: `tdn ca issue` again: the new certificate works and keeps the topics, the old one is refused and its open connection closed."""
    old = tmp_path / "old"
    client = await connect(live, entity)
    topic = await client.create(path("before"))
    shutil.copytree(entity, old)
    open_connection = live.amqp(old)
    issued = run("tdn", "--home", live.home.folder, "--json", "ca", "issue", entity.name)
    assert issued.code == 0, issued.err
    assert issued.one["rotated"] is True
    # Only when the new one is first used does the network know of it: until then the old one serves.
    assert not closed_by_broker(open_connection)

    renewed = await connect(live, entity)
    assert renewed.identity.name.key_hash != client.identity.name.key_hash
    assert await works(renewed)
    await until(lambda: closed_by_broker(open_connection), "the old connection to be closed")
    with pytest.raises(NO_ENTRY):
        live.amqp(old)
    with pytest.raises(TrustError, match="superseded"):
        await works(await connect(live, old, timeout=5))
    assert (await renewed.renew(topic.uuid, timedelta(days=2))).uuid == topic.uuid, (
        "grants and topics are the entity's, not the key's"
    )
    assert (await renewed.lookup(renewed.identity.name.principal)).name == renewed.identity.name


async def test_revocation_of_an_entity(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """T19, T21: in the log, at the broker, on open connections, and for what it signed before and sends now."""
    other = await connect(live)
    client = await connect(live, entity, timeout=4)
    kept = await client.create(path("stays"))
    minted = await client.create(path("never"), advertise=False)
    open_connection = live.amqp(entity)

    revoked = run("tdn", "--home", live.home.folder, "--json", "ca", "revoke", entity.name)
    assert revoked.code == 0, revoked.err
    assert revoked.one["revoked"] == f"entity:{entity.name}"
    assert run("tdn", "--home", live.home.folder, "verify", "-", stdin=revoked.one["receipt"]).code == 0
    await until(lambda: closed_by_broker(open_connection), "the open connection to be closed")
    with pytest.raises(NO_ENTRY):
        live.amqp(entity)
    with pytest.raises(TrustError, match="revoked"):
        await client.advertise(minted.token)
    for node in ("n1", "n2"):
        fact = await until(lambda node=node: live.fact("principal", f"entity:{entity.name}", node), "the fact")
        assert client.identity.name.key_hash in fact["revoked"]
    assert [record["status"] for record in live.records("n1", "kind = 'revoke' AND outcome LIKE ?", "%operator%")][
        -1
    ] == "accepted"
    assert (await other.show(kept.uuid)).token == kept.token, "what it had advertised stays"
    assert live.records_about(minted.uuid) == []
    refused = run("entity", "--home", live.home.folder, "--as", entity.name, "--json", "locate")
    assert refused.code == 4
    assert refused.error["error"] == "trust"


async def test_a_new_certificate_after_revocation(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """A revocation voids every certificate until then; the operator can issue another."""
    client = await connect(live, entity)
    assert await works(client)
    assert run("tdn", "--home", live.home.folder, "ca", "revoke", entity.name).code == 0
    assert run("tdn", "--home", live.home.folder, "ca", "issue", entity.name).code == 0
    assert await works(await connect(live, entity))


async def test_revocation_before_first_contact(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """A certificate that the network has never seen can be revoked too; it never gets in."""
    assert run("tdn", "--home", live.home.folder, "ca", "revoke", entity.name).code == 0
    wait_for(lambda: live.fact("principal", f"entity:{entity.name}"), "the fact")
    with pytest.raises(TrustError):
        await works(await connect(live, entity, timeout=5))


async def test_revocation_of_a_node(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T8: what a revoked node minted before and is advertised after is refused; its login too; what was advertised before stays."""
    mortal.up(nodes=3)
    client = await connect(mortal)
    before = await client.create(path("before"), node="n3")
    minted = await client.create(path("after"), node="n3", advertise=False)
    kept = shutil.copytree(mortal.home.credentials(Role.NODE, "n3"), tmp_path / "n3")
    revoked = await asyncio.to_thread(run, "tdn", "--home", mortal.home.folder, "--json", "ca", "revoke", "n3")
    assert revoked.code == 0, revoked.err
    assert revoked.one["revoked"] == "node:n3"
    with pytest.raises(TrustError, match="node:n3 was revoked"):
        await client.advertise(minted.token)
    with pytest.raises(NO_ENTRY):
        mortal.amqp(kept)
    assert (await client.show(before.uuid)).token == before.token
    assert {node.id async for node in client.locate()} == {"n1", "n2"}
    mortal.up()
    assert mortal.nodes() == ["n1", "n2"], "a revoked node does not start again"
