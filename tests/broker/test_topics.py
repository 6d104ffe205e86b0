"""Nodes and entities over a real broker: locating, creating, advertising, discovering, showing, renewing, withdrawing."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, Topic, path, properties, text, xml
from tdn.errors import Absent, MalformedMessage, NoNodeAnswered, Refused, TrustError, UsageError
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import sealing, statements
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, until

pytestmark = pytest.mark.broker


def word() -> str:
    """Something to look for that no other test has written."""
    return f"w{secrets.token_hex(6)}"


async def found(client: EntityClient, query: str, **how: Any) -> list[Topic]:
    return [topic async for topic in client.discover(query, **how)]


async def everywhere(client: EntityClient, query: str) -> list[set[str]]:
    """What each of the two nodes answers to a query."""
    return [{topic.uuid for topic in await found(client, query, nodes=[node])} for node in ("n1", "n2")]


# --- locating ------------------------------------------------------------------------------------------------------------------------


async def test_several_nodes_answer_and_one_is_chosen(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """T12: several answers, each with what one chooses by; the choice is remembered, in the folder too."""
    client = await connect(live, entity)
    located = [node async for node in client.locate()]
    assert {node.id for node in located} == {"n1", "n2"}
    assert all(node.institution == "local" and node.milliseconds > 0 and node.policy["answers"] == ["*"] for node in located)
    assert all(node.identity == live.node(node.id) for node in located), "the answers carry the nodes' own certificates"

    chosen = await client.choose(lambda nodes: next(node for node in nodes if node.id == "n2"))
    assert chosen.id == "n2"
    assert (await client.create(path("remembered"))).advertisement.node == "n2"
    later = await connect(live, entity)
    assert (await later.create(path("remembered/later"))).advertisement.node == "n2"


async def test_choice_by_credentials_alone(live: LiveNetwork, connect: Connect) -> None:
    """T12: whoever chooses sees the nodes' certificates; without a choice the first to answer is taken."""
    client = await connect(live)
    seen: list[str] = []

    def by_certificate(nodes: list[Any]) -> Any:
        seen.extend(str(node.identity.name) for node in nodes)
        return max(nodes, key=lambda node: node.identity.not_after)

    await client.choose(by_certificate)
    assert set(seen) == {str(live.node("n1").name), str(live.node("n2").name)}
    assert (await client.choose()).id in {"n1", "n2"}


async def test_a_named_node_that_is_not_there(live: LiveNetwork, connect: Connect) -> None:
    client = await connect(live, timeout=3)
    with pytest.raises((Absent, NoNodeAnswered), match="n77"):
        await client.create(path("a"), node="n77")


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_each_node_hears_the_four_topics(live: LiveNetwork, raw: RawEntity, node: str) -> None:
    """T10: a node answers on Services/Discovery/Topics, …/Topics/<TDN-ID>, …/TopicDiscoveryNode and …/TopicDiscoveryNode/<TDN-ID>."""
    raw.hello()
    for key in (names.TOPICS, f"{names.TOPICS}.{node}", names.NODES, f"{names.NODES}.{node}"):
        raw.publish(key, raw.write("locate", {}, audience="tdn:nodes"), path=names.QUESTION_PATH)
        expected = {"n1", "n2"} if key in (names.TOPICS, names.NODES) else {node}
        assert {raw.reply().body["node"] for _ in expected} == expected, key
    assert raw.more_replies() == 0


def test_each_nodes_queue_is_bound_to_its_own_topics_only(live: LiveNetwork) -> None:
    """T10: no wildcard, and nothing of another node's."""
    for node in ("n1", "n2"):
        bindings = live.manage("GET", f"/queues/tdn/{live.own_queue(node)}/bindings")
        keys = {binding["routing_key"] for binding in bindings if binding["source"] == names.REQUESTS}
        assert keys == {names.topics_key(node), names.nodes_key(node)}
    assert {
        binding["routing_key"] for binding in live.manage("GET", f"/exchanges/tdn/{names.BROADCAST}/bindings/destination")
    } == {
        names.TOPICS,
        names.NODES,
    }


# --- creating ------------------------------------------------------------------------------------------------------------------------

DESCRIPTORS = {
    "path": (path("weather/oslo/wind"), "OSLO/wind"),
    "text": (text("Wind over the fjord", ["gusts", "knots"]), "gusts"),
    "properties": (properties(["place=Oslo", "height=12", "speed=3.5", "live=true", "since=2026-01-31T12:00:00Z"]), "height=12"),
    "xml": (xml("<wind place='Oslo'><speed unit='kn'>7</speed></wind>"), "<speed unit='kn'>7"),
}
SYNOPSES = {
    "string": (None, "{uuid}"),
    "tags": ("kind=wind,topic={uuid}", "kind=wind,topic={uuid}"),
    "properties": ('{"topic": "{uuid}", "qos": 1}', '{"topic": "{uuid}", "qos": 1}'),
    "xml": ("<t><id>{uuid}</id></t>", "<t><id>{uuid}</id></t>"),
}


@pytest.mark.parametrize(("kind", "synopsis_type"), [*zip(DESCRIPTORS, SYNOPSES, strict=True)])
async def test_create_every_kind(live: LiveNetwork, connect: Connect, kind: str, synopsis_type: str) -> None:
    """T1, T2, T3, T4, T5: every descriptor kind and synopsis type, minted by a node, verified, and found by what it says."""
    client = await connect(live, live.entity(institution="Universität Oslo"))
    descriptor, query = DESCRIPTORS[kind]
    placeholder, filled = SYNOPSES[synopsis_type]
    topic = await client.create(descriptor, synopsis_type=synopsis_type, placeholder=placeholder, lifetime=timedelta(hours=2))
    advertisement = topic.advertisement
    assert names.check_uuid(topic.uuid)
    assert topic.synopsis == filled.replace("{uuid}", topic.uuid)
    assert dict(advertisement.descriptor) == dict(descriptor)
    assert (advertisement.creator, advertisement.institution) == (client.identity.name.id, "Universität Oslo")
    assert advertisement.creator_key == client.identity.name.key_hash
    assert advertisement.expires - advertisement.created == timedelta(hours=2)
    assert abs(advertisement.created - datetime.now(UTC)) < timedelta(minutes=1)

    # From the stored bytes alone, as anybody with the trust root would years later.
    again = statements.read_advertisement(topic.token.encode(), statements.by_roots(live.credentials(Role.NODE, "n1").roots))
    assert again == advertisement
    assert topic.uuid in {other.uuid for other in await found(client, query, limit=10_000)}


async def test_receipt_names_its_record(live: LiveNetwork, connect: Connect) -> None:
    """The receipt verifies by itself, and the record that it names is in every node's log with this very hash."""
    client = await connect(live)
    topic = await client.create(path("receipt"))
    assert topic.receipt is not None
    receipt = statements.read(topic.receipt.encode(), statements.by_roots(live.credentials(Role.NODE, "n1").roots))
    assert receipt.kind == "receipt"
    assert receipt.payload["uuid"] == topic.uuid
    assert receipt.payload["digest"] == topic.advertisement.digest
    assert receipt.payload["principal"] == client.identity.name.principal
    for node in ("n1", "n2"):
        await until(lambda node=node: live.records(node, "seq = ?", receipt.payload["seq"]), f"record at {node}")
        (record,) = live.records(node, "seq = ? AND head = ?", receipt.payload["seq"], receipt.payload["head"])
        assert (record["kind"], record["status"]) == ("advertise", "accepted")
        assert record["receipt"] == dict(receipt.payload)


def test_the_answer_is_sealed_to_the_creator(live: LiveNetwork, raw: RawEntity) -> None:
    """T6: on the creator's reply queue lie bytes that only the creator's key opens."""
    raw.introduce()
    secret = word()
    body = create_body(raw, path(f"private/{secret}"))
    raw.question(raw.seal(raw.write("create", body, audience="node:n1"), "n1"), "n1")
    with live.as_node() as connection:
        channel = connection.channel()
        frames: list[Any] = []

        def look() -> bool:
            frames[:] = channel.basic_get(raw.queue, auto_ack=True)
            return frames[2] is not None

        while not look():
            connection.process_data_events(0.02)
    message = bytes(frames[2])
    assert sealing.is_sealed(message)
    for readable in (secret, "private", raw.name.id, "eyJ", "uuid", "created"):
        assert readable.encode() not in message
    created = raw.read(message)
    assert created.kind == "created"
    assert (
        secret
        in statements.read_advertisement(created.tail or b"", statements.by_roots(raw.credentials.roots)).descriptor["path"]
    )
    stranger = live.credentials(Role.ENTITY, live.entity().name)
    for key in (stranger.key, live.credentials(Role.NODE, "n1").key, live.credentials(Role.NODE, "n2").key):
        with pytest.raises(TrustError):
            sealing.unseal(message, key)


def create_body(raw: RawEntity, descriptor: Any, **changes: Any) -> dict[str, Any]:
    return {
        "creator": raw.name.id,
        "institution": raw.credentials.identity.institution,
        "lifetime_seconds": 3600,
        "descriptor": dict(descriptor),
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
        **changes,
    }


@pytest.mark.parametrize(
    "synopsis",
    [
        ("string", "no slot"),
        ("string", "prefix {uuid}"),
        ("string", "{uuid}{uuid}"),
        ("tags", "{uuid}"),
        ("tags", "{uuid}=x"),
        ("properties", '{"topic": {uuid}}'),
        ("properties", "{uuid}"),
        ("xml", "<a>{uuid}"),
        ("xml", "<!-- {uuid} --><a/>"),
        ("xml", "<!DOCTYPE a [<!ENTITY e 'x'>]><a>{uuid}&e;</a>"),
        ("string", "6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"),
        ("tags", "topic={uuid},other=6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"),
    ],
)
async def test_a_placeholder_that_does_not_fit_is_refused(live: LiveNetwork, connect: Connect, synopsis: tuple[str, str]) -> None:
    """T3, T4: a placeholder of the wrong form, or with a UUID of its own, is refused by the node with a clear error."""
    client = await connect(live)
    with pytest.raises((UsageError, MalformedMessage), match=r"synopsis\.placeholder"):
        await client.create(path("a"), synopsis_type=synopsis[0], placeholder=synopsis[1])


# --- advertising ---------------------------------------------------------------------------------------------------------------------


async def test_nothing_is_visible_before_it_is_advertised(live: LiveNetwork, connect: Connect) -> None:
    """T7: a minted topic is known to nobody, its creator included, and has left no record; advertising makes it known to all."""
    creator, other = await connect(live), await connect(live)
    query = word()
    topic = await creator.create(path(f"quiet/{query}"), advertise=False)
    for client in (creator, other):
        assert await everywhere(client, query) == [set(), set()]
        with pytest.raises(Absent, match=topic.uuid):
            await client.show(topic.uuid)
    assert live.records_about(topic.uuid, "n1") == live.records_about(topic.uuid, "n2") == []

    await creator.advertise(topic.token)
    await until(lambda: _seen_by_both(other, query, topic.uuid), "both nodes to show it")
    assert (await other.show(topic.uuid)).token == topic.token


async def _seen_by_both(client: EntityClient, query: str, uuid: str) -> bool:
    return await everywhere(client, query) == [{uuid}, {uuid}]


async def test_nobody_else_can_advertise_it(live: LiveNetwork, connect: Connect) -> None:
    """T7: somebody who got hold of the advertisement cannot advertise, renew or withdraw it; the creator still can."""
    creator, thief = await connect(live), await connect(live)
    topic = await creator.create(path("mine"), advertise=False)
    with pytest.raises(Refused, match="only its creator"):
        await thief.advertise(topic.token, opening=topic.opening)
    with pytest.raises(UsageError, match="hides is not known here"):
        await thief.advertise(topic.token)
    await creator.advertise(topic.token)
    for attempt in (thief.renew(topic.uuid, timedelta(days=2)), thief.withdraw(topic.uuid)):
        with pytest.raises(Refused) as owned:
            await attempt
        absent = str(owned.value).replace(topic.uuid, "X")
        with pytest.raises(Refused) as unknown:
            await thief.renew(other := names.mint_uuid(), timedelta(days=2))
        assert str(unknown.value).replace(other, "X") == absent, "forbidden and absent are the same words"
    assert (await creator.show(topic.uuid)).expires == topic.advertisement.expires


async def test_advertising_twice_has_one_effect(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """T22: a repeated command is harmless and gives a receipt again, from another session too."""
    client = await connect(live, entity)
    topic = await client.create(path("twice"), advertise=False)
    first = await client.advertise(topic.token)
    renewed = await client.renew(topic.uuid, timedelta(days=3))
    again = await (await connect(live, entity)).advertise(topic.token)
    assert again.uuid == first.uuid
    await until(lambda: live.records("n1", "seq >= ?", again.seq), "n1 to have all of it")
    fact = live.fact("topic", topic.uuid)
    assert fact is not None
    # A renewed topic does not fall back to what was first advertised.
    assert (fact["advertised"], fact["seq"]) == (first.seq, renewed.seq)


async def test_a_uuid_that_ended_never_comes_back(live: LiveNetwork, connect: Connect, entity: Path) -> None:
    """T7, T39: withdrawn means withdrawn, to its creator too, whatever is sent again."""
    client = await connect(live, entity)
    query = word()
    topic = await client.create(path(f"ends/{query}"))
    await client.withdraw(topic.uuid)
    await until(lambda: _gone_everywhere(client, query), "both nodes to hide it")
    with pytest.raises(Absent):
        await client.show(topic.uuid)
    with pytest.raises(Refused, match="withdrawn"):
        await client.renew(topic.uuid, timedelta(days=1))
    with pytest.raises(Refused, match="never comes back"):
        await client.advertise(topic)
    assert (await client.withdraw(topic.uuid)).uuid == topic.uuid, "asked again: it is withdrawn"
    assert await everywhere(client, query) == [set(), set()]


async def _gone_everywhere(client: EntityClient, query: str) -> bool:
    return await everywhere(client, query) == [set(), set()]


# --- discovering ---------------------------------------------------------------------------------------------------------------------


async def test_all_nodes_one_node_a_subset(live: LiveNetwork, connect: Connect) -> None:
    """T15: to all, to one, to a subset; the same advertisement from several nodes appears once."""
    creator, asker = await connect(live), await connect(live)
    query = word()
    topics = [await creator.create(path(f"{query}/{number}"), node=node) for number, node in enumerate(("n1", "n2"))]
    await until(lambda: _all_at_both(asker, query, {topic.uuid for topic in topics}), "both nodes to have both")
    for nodes in ([], ["n1"], ["n2"], ["n1", "n2"]):
        discovery = asker.discover(query, nodes=nodes)
        uuids = [topic.uuid async for topic in discovery]
        assert sorted(uuids) == sorted(topic.uuid for topic in topics)
        assert discovery.answered == set(nodes or ["n1", "n2"])
        assert not discovery.silent
        assert not discovery.disbelieved
    assert {topic.advertisement.node for topic in await found(asker, query)} == {"n1", "n2"}


async def _all_at_both(client: EntityClient, query: str, uuids: set[str]) -> bool:
    return await everywhere(client, query) == [uuids, uuids]


async def test_pages_and_cursor(live: LiveNetwork, connect: Connect) -> None:
    """T16: answers beyond a page of 100, in the order (created, uuid); a cursor goes on where an answer ended, at any node."""
    creator, asker = await connect(live), await connect(live)
    query = word()
    tokens = [
        topic.token
        for topic in await asyncio.gather(*(creator.create(path(f"{query}/{number}"), advertise=False) for number in range(230)))
    ]
    await asyncio.gather(*(creator.advertise(token) for token in tokens))
    await until(lambda: _count_at_both(asker, query, 230), "both nodes to have all")

    whole = asker.discover(query, nodes=["n1"], limit=500)
    topics = [topic async for topic in whole]
    assert len(topics) == len({topic.uuid for topic in topics}) == 230
    assert whole.cursor is None
    order = [(topic.advertisement.created, topic.uuid) for topic in topics]
    assert order == sorted(order)

    assert {topic.uuid for topic in await found(asker, query, limit=500)} == {topic.uuid for topic in topics}
    assert len(await found(asker, query)) == 100, "the default limit"

    gathered: list[str] = []
    cursor = None
    for node in ("n1", "n2", "n1", "n2"):
        discovery = asker.discover(query, nodes=[node], limit=75, cursor=cursor)
        gathered += [topic.uuid async for topic in discovery]
        cursor = discovery.cursor
        if cursor is None:
            break
    assert gathered == [topic.uuid for topic in topics]

    gathered, cursor = [], None
    while True:
        discovery = asker.discover(query, limit=75, cursor=cursor)
        gathered += [topic.uuid async for topic in discovery]
        cursor = discovery.cursor
        if cursor is None:
            break
    assert sorted(gathered) == sorted(topic.uuid for topic in topics)
    with pytest.raises(UsageError, match="cursor"):
        await found(asker, query, cursor="2026-01-01_nowhere")


async def _count_at_both(client: EntityClient, query: str, count: int) -> bool:
    return all([len(await found(client, query, nodes=[node], limit=1000)) == count for node in ("n1", "n2")])


async def test_string_query_words_and_case(live: LiveNetwork, connect: Connect) -> None:
    client = await connect(live)
    query = word()
    topic = await client.create(text(f"Ønsker fra {query}", ["Größe"]))
    for matching in (query, query.upper(), f"ØNSKER {query}", f"größe {query}"):
        assert [found_topic.uuid for found_topic in await found(client, matching)] == [topic.uuid], matching
    assert await found(client, f"{query} elsewhere") == []


async def test_concurrent_discoveries_keep_apart(live: LiveNetwork, connect: Connect) -> None:
    """T15: many questions of one session at once, each with its own answers."""
    client = await connect(live)
    queries = [word() for _ in range(10)]
    topics = await asyncio.gather(*(client.create(path(f"{query}/x")) for query in queries))
    await until(lambda: _all_at_both(client, queries[-1], {topics[-1].uuid}))
    answers = await asyncio.gather(*(found(client, query) for query in queries))
    assert [[topic.uuid for topic in answer] for answer in answers] == [[topic.uuid] for topic in topics]


# --- after creation ------------------------------------------------------------------------------------------------------------------


async def test_renewal_is_followed_by_everybody(live: LiveNetwork, connect: Connect) -> None:
    """T39: the advertisement stays as it was; the new expiry is served and signed beside it, and found by others."""
    owner, other = await connect(live), await connect(live)
    query = word()
    topic = await owner.create(path(query), lifetime=timedelta(hours=1))
    decided = await owner.renew(topic.uuid, timedelta(days=3))
    assert decided.expires is not None
    assert decided.expires > topic.expires + timedelta(days=2)

    async def followed() -> bool:
        seen = [*await found(other, query, nodes=["n1"]), *await found(other, query, nodes=["n2"])]
        return [entry.expires for entry in seen] == [decided.expires] * 2

    await until(followed, "both nodes to follow")
    (seen,) = await found(other, query)
    assert seen.token == topic.token, "the signed advertisement stays as it was"
    assert seen.status is not None
    status = statements.read(seen.status.encode(), statements.by_roots(live.credentials(Role.NODE, "n1").roots))
    assert (status.payload["uuid"], status.payload["owner"], status.payload["state"]) == (
        topic.uuid,
        owner.identity.name.id,
        "live",
    )
    assert (await other.show(topic.uuid)).expires == decided.expires


async def test_a_short_life_ends_by_itself(live: LiveNetwork, connect: Connect) -> None:
    """T26, T39: expired by log time at every node, hidden from everybody, and not to be renewed."""
    client = await connect(live)
    query = word()
    topic = await client.create(path(query), lifetime=timedelta(seconds=2))
    await until(lambda: _gone_everywhere(client, query), "it to expire")
    assert datetime.now(UTC) >= topic.expires
    with pytest.raises(Absent):
        await client.show(topic.uuid)
    for node in ("n1", "n2"):
        await until(lambda node=node: (live.fact("topic", topic.uuid, node) or {})["state"] == "expired", "log time to get there")
    with pytest.raises(Refused, match="expired"):
        await client.renew(topic.uuid, timedelta(days=1))


async def test_show(live: LiveNetwork, connect: Connect) -> None:
    """One topic, with its signed present status; what is not there is absent."""
    client = await connect(live)
    topic = await client.create(path("shown"))
    shown = await client.show(topic.uuid)
    assert (shown.uuid, shown.token, shown.owner, shown.expires) == (
        topic.uuid,
        topic.token,
        client.identity.name.id,
        topic.expires,
    )
    assert shown.status is not None
    with pytest.raises(Absent):
        await client.show(names.mint_uuid())
    with pytest.raises(UsageError):
        await client.show("not-a-uuid")


async def test_lookup(live: LiveNetwork, connect: Connect) -> None:
    """The current certificate of whoever is known; nobody else's."""
    alice, bob = await connect(live), await connect(live)
    await bob.create(path("hello"))
    assert await alice.lookup(bob.identity.name.principal) == bob.identity
    assert await alice.lookup("node:n2") == live.node("n2")
    with pytest.raises(Absent):
        await alice.lookup("entity:nobody-of-that-name")
