"""Publishing and subscribing over a real broker (T20, T28): confirmed, in order, over lost connections and restarts; what joins a tree is bound
before its first message, what leaves it is unbound.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pika.exceptions
import pytest

from entity_client import EntityClient, path
from entity_client.messaging import Publisher
from tdn.bus import topology
from tdn.bus.connection import Connection
from tdn.errors import Refused, UsageError
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.protocol.trees import Gathering, Hosting
from tdn.trust import credentials, messages
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tests.conftest import Connect
from tests.live import LiveNetwork, meet, reading, until

pytestmark = pytest.mark.broker

OPEN = Hosting(allow_children=True)
NESTING = Gathering(child_collections=True, inclusion=True)


def named(client: EntityClient) -> str:
    return client.identity.name.id


def tell(*clients: EntityClient) -> None:
    """Each knows what the others have receipts for, so that whichever node it asks answers from a view that has it."""
    seen = max(client.seen for client in clients)
    for client in clients:
        client.seen = seen


async def topic(client: EntityClient, **how: Any) -> str:
    return (await client.create(path("topic"), **how)).uuid


async def shared(owner: EntityClient, right: str, *others: EntityClient, **how: Any) -> str:
    """A topic that others may use too."""
    uuid = await topic(owner, **how)
    for other in others:
        await owner.grants.give(right, uuid, named(other))
    tell(owner, *others)
    return uuid


def queue_of(live: LiveNetwork, client: EntityClient, uuid: str) -> str:
    """The queue of a subscription, as the log names it."""
    fact = live.fact("feed", f"{uuid} {named(client)}")
    assert fact is not None
    return names.feed_queue(named(client), uuid, fact["queue"])


def bound_to(live: LiveNetwork, queue: str) -> set[str]:
    return {binding["source"] for binding in live.manage("GET", f"/queues/tdn/{queue}/bindings") if binding["source"]}


def exchanges(live: LiveNetwork) -> set[str]:
    return {exchange["name"] for exchange in live.manage("GET", "/exchanges/tdn?columns=name")}


def queues(live: LiveNetwork) -> set[str]:
    return {queue["name"] for queue in live.manage("GET", "/queues/tdn?columns=name")}


# --- messages ------------------------------------------------------------------------------------------------------------------------


async def test_every_kind_of_body(live: LiveNetwork, connect: Connect) -> None:
    """T20: in order, as it was sent, with who sent it and when; confirmed before `publish` returns."""
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, PUBLISH, friend)
    bodies: list[bytes | str] = ["first", b"", "", bytes(range(256)), "ünïcode ☃\n", b"x" * 1_000_000]
    async with reading(owner, uuid) as reader:
        before = datetime.now(UTC).replace(microsecond=0)
        async with friend.publisher(uuid) as publisher:
            published = [await publisher.publish(body) for body in bodies]
        await until(lambda: len(reader.got) == len(bodies), "all of them")
    given = reader.got
    assert [message.body for message in given] == [body.encode() if isinstance(body, str) else body for body in bodies]
    assert [message.id for message in given] == [one.id for one in published]
    for message, body in zip(given, bodies, strict=True):
        assert (message.topic, message.publisher, message.signed, message.encrypted) == (uuid, named(friend), False, False)
        assert message.content_type == (messages.TEXT if isinstance(body, str) else messages.BYTES)
        assert message.at is not None
        assert before <= message.at <= datetime.now(UTC)
    value = given[0].as_object()
    assert {name: value[name] for name in ("topic", "id", "publisher", "body")} == {
        "topic": uuid,
        "id": published[0].id,
        "publisher": named(friend),
        "body": "first",
    }
    assert "body_base64" in given[3].as_object()
    with pytest.raises(UsageError, match="the broker takes"):
        await friend.publish(uuid, b"x" * (messages.MAX_BYTES + 1))


async def test_thousands_at_once_keep_their_order(live: LiveNetwork, connect: Connect) -> None:
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    numbers = [str(number) for number in range(3000)]
    async with reading(friend, uuid) as reader, owner.publisher(uuid) as publisher:
        await asyncio.gather(*(publisher.publish(number) for number in numbers))
        await until(lambda: len(reader.got) >= len(numbers), "all of them")
        assert reader.bodies == numbers


async def test_away_and_back(live: LiveNetwork, connect: Connect) -> None:
    """T20: what was published while a subscriber was away waits for it, and only what came since it first subscribed."""
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    await owner.publish(uuid, "before anybody subscribed")
    async with reading(friend, uuid) as reader:
        await owner.publish(uuid, "while it was there")
        await reader.has("while it was there")
    await friend.close()
    for number in range(50):
        await owner.publish(uuid, f"away {number}")
    assert live.waiting(queue_of(live, friend, uuid)) >= 50
    again = await connect(live, friend._session.credentials.folder)
    async with reading(again, uuid) as reader:
        bodies = await reader.has("away 49")
    assert bodies == [f"away {number}" for number in range(50)]
    async with reading(again, uuid) as reader:
        await owner.publish(uuid, "once only")
        assert await reader.has("once only") == ["once only"]


async def test_two_subscribers_and_two_programs(live: LiveNetwork, connect: Connect) -> None:
    """T20: each subscriber gets every message; programs of one entity share them, each message to one."""
    owner, one, other = await meet(live, connect, 3)
    uuid = await shared(owner, SUBSCRIBE, one, other)
    second = await connect(live, one._session.credentials.folder)
    second.seen = one.seen
    numbers = [str(number) for number in range(400)]
    async with (
        reading(one, uuid) as first_half,
        reading(second, uuid) as second_half,
        reading(other, uuid) as whole,
        owner.publisher(uuid) as publisher,
    ):
        await asyncio.gather(*(publisher.publish(number) for number in numbers))
        await whole.has(*numbers)
        await until(lambda: len(first_half.got) + len(second_half.got) >= len(numbers), "both halves")
        assert whole.bodies == numbers
        assert sorted(first_half.bodies + second_half.bodies, key=int) == numbers
        assert first_half.got, "the first program got its share"
        assert second_half.got, "the second program got its share"


async def test_count_and_closing_give_the_rest_back(live: LiveNetwork, connect: Connect) -> None:
    """T20: what was handed over and finished is gone; what was not comes again, marked as such, when a program ended in the middle of it."""
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    async with friend.subscribe(uuid):
        pass
    for number in range(6):
        await owner.publish(uuid, str(number))
    async with friend.subscribe(uuid) as subscription:
        assert [(await anext(subscription)).body for _ in range(2)] == [b"0", b"1"]
    with contextlib.suppress(ZeroDivisionError):
        async with friend.subscribe(uuid) as subscription:
            assert (await anext(subscription)).body == b"2"
            raise ZeroDivisionError
    async with friend.subscribe(uuid) as subscription:
        again = [await anext(subscription) for _ in range(4)]
    assert [message.body for message in again] == [b"2", b"3", b"4", b"5"]
    assert again[0].redelivered


_DIES = """
import asyncio, sys
from entity_client import EntityClient

async def main():
    async with await EntityClient.connect(sys.argv[1], timeout=30) as client:
        async with client.subscribe(sys.argv[2]) as subscription:
            async for message in subscription:
                print(message.body.decode(), flush=True)
                if message.body == b"2":
                    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_subscriber(live: LiveNetwork, connect: Connect) -> None:
    """T20: killed over a message: that one and all after it come to the next program."""
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    async with friend.subscribe(uuid):
        pass
    for number in range(5):
        await owner.publish(uuid, str(number))
    folder = friend._session.credentials.folder
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _DIES, str(folder), uuid, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert [(await process.stdout.readline()).decode().strip() for _ in range(3)] == ["0", "1", "2"]
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with reading(friend, uuid) as reader:
        bodies = await reader.has("2", "3", "4")
        # The broker may not have heard any more that the first two were finished with.
        assert bodies == [str(number) for number in range(5)][-len(bodies) :]
        assert reader.got[0].redelivered


async def test_unsubscribing(live: LiveNetwork, connect: Connect) -> None:
    """T20: the queue is gone when it returns, with what waited in it; a node says so under its signature."""
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    async with friend.subscribe(uuid):
        pass
    await owner.publish(uuid, "waits")
    queue = queue_of(live, friend, uuid)
    assert queue in queues(live)
    revocation = await friend.unsubscribe(uuid)
    assert queue not in queues(live)
    assert (revocation.about, revocation.cut["queues"], revocation.cut["connections"]) == ({"uuid": uuid}, 1, [])
    with pytest.raises(Refused, match="no subscription of yours"):
        await friend.unsubscribe(uuid)
    async with reading(friend, uuid) as reader:
        await owner.publish(uuid, "anew")
        assert await reader.has("anew") == ["anew"]
        assert queue_of(live, friend, uuid) != queue


# --- signed and encrypted ------------------------------------------------------------------------------------------------------------


async def test_signed_and_encrypted(live: LiveNetwork, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """T20: signed for anybody to verify, encrypted for those who subscribe when it is published."""
    owner, reader_one, late = await meet(live, connect, 3)
    uuid = await shared(owner, SUBSCRIBE, reader_one, late)
    async with reading(reader_one, uuid, signed_only=True) as strict, reading(owner, uuid) as own:
        await owner.publish(uuid, "plain")
        await owner.publish(uuid, "signed", sign=True)
        await owner.publish(uuid, b"secret \x00", encrypt=True)
        await own.has("plain", "signed", "secret \x00")
        assert await strict.has("secret \x00") == ["signed", "secret \x00"]
        assert (strict.subscription.disbelieved, strict.subscription.last_disbelieved) == (1, "the message is not signed")
        assert [(message.signed, message.encrypted) for message in own.got] == [(False, False), (True, False), (True, True)]
        assert {message.publisher for message in own.got} == {named(owner)}
    # A publisher knows its readers for a while: whoever subscribes meanwhile gets what it cannot read, and leaves it out.
    async with reading(reader_one, uuid) as early, owner.publisher(uuid, encrypt=True) as publisher:
        monkeypatch.setattr("entity_client.messaging._READERS_SECONDS", 1000.0)
        await publisher.publish("for the first two")
        async with reading(late, uuid) as latecomer:
            await publisher.publish("too early")
            await early.has("for the first two", "too early")
            await until(lambda: latecomer.subscription.disbelieved, "what is not for it")
            assert latecomer.subscription.last_disbelieved == "the message is encrypted, and not for us"
            monkeypatch.setattr("entity_client.messaging._READERS_SECONDS", 0.0)
            await publisher.publish("for all three")
            assert await latecomer.has("for all three") == ["for all three"]


async def test_what_is_not_believed_is_left_out(live: LiveNetwork, connect: Connect) -> None:
    """T20: changed, copied from another topic, signed by another than who published it, or said to be what it is not."""
    owner, friend, reader_one = await meet(live, connect, 3)
    uuid, other = await topic(owner), await topic(owner)
    for client, right in ((friend, PUBLISH), (reader_one, SUBSCRIBE)):
        await owner.grants.give(right, uuid, named(client))
    tell(owner, friend, reader_one)
    folder = friend._session.credentials.folder
    network, mine = friend._session.network, credentials.load(folder)

    def signed(sender: Any, topic: str, message_id: str) -> bytes:
        return messages.write(
            b"body",
            messages.TEXT,
            sender=sender,
            readers=None,
            topic=topic,
            network=network,
            message_id=message_id,
            now=datetime.now(UTC),
        )[0]

    good = signed(mine, uuid, "a-good-message")
    wrong = {
        "a-changed-one": signed(mine, uuid, "a-changed-one")[:-1] + b"Y",
        "from-elsewhere": signed(mine, other, "from-elsewhere"),
        "under-another-id": good,
        "by-another": signed(owner._session.credentials, uuid, "by-another"),
        "no-signature": b"hello",
    }
    async with reading(reader_one, uuid) as reader:
        await friend.publish(uuid, "opens the topic")
        plain = await asyncio.to_thread(live.amqp, folder)
        channel = plain.channel()
        channel.confirm_delivery()

        def send(body: bytes, message_id: str, kind: str, login: str | None = str(friend.identity.name)) -> None:
            properties = pika.BasicProperties(message_id=message_id, content_type=kind, user_id=login)
            channel.basic_publish(uuid, "", body, properties)

        for message_id, body in wrong.items():
            send(body, message_id, messages.SIGNED)
        send(b"hello", "not-encrypted", messages.ENCRYPTED)
        send(b"hello", "of-tomorrow", "application/tdn-tomorrow")
        send(good, "a-good-message", messages.SIGNED)
        await until(lambda: len(reader.got) == 2, "the good one")
        assert reader.bodies == ["opens the topic", "body"]
        assert reader.subscription.disbelieved == len(wrong) + 2
        # Without a name of its own, a plain one has no publisher: nobody vouches for it.
        send(b"anonymous", "anonymous-one", messages.TEXT, None)
        await reader.has("anonymous")
        assert (reader.got[-1].publisher, reader.got[-1].at) == (None, None)
        # And it cannot be given another's.
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id property"):
            send(b"forged", "a-forged-one", messages.TEXT, str(owner.identity.name))
        plain.close()


# --- lost connections ----------------------------------------------------------------------------------------------------------------


async def pour(publisher: Publisher, count: int, *, begin: int = 0) -> None:
    """Numbers, several under way at once."""
    slots = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        async with slots:
            await publisher.publish(str(number))

    await asyncio.gather(*(one(number) for number in range(begin, begin + count)))


async def test_cut_connections(live: LiveNetwork, connect: Connect) -> None:
    """T22: whoever's connection is cut while it publishes or reads, each message is given once, and none is missing."""
    owner, friend = await meet(live, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    async with reading(friend, uuid) as reader, owner.publisher(uuid) as publisher:
        pouring = asyncio.create_task(pour(publisher, 3000))
        for number, victim in enumerate((owner, friend, owner, friend), start=1):
            await until(lambda number=number: len(reader.got) >= 400 * number, "messages between two cuts")
            assert not pouring.done()
            await asyncio.to_thread(live.cut, victim.identity.name)
        await pouring
        await until(lambda: len(reader.got) >= 3000, "all of them")
        await owner.publish(uuid, "3000")
        await reader.has("3000")
        assert sorted(map(int, reader.bodies)) == list(range(3001))


@pytest.mark.slow
@pytest.mark.chaos
async def test_broker_restart(mortal: LiveNetwork, connect: Connect) -> None:
    """T22: what was confirmed is there after the broker was killed, and both sides go on by themselves."""
    owner, friend = await meet(mortal, connect, 2)
    uuid = await shared(owner, SUBSCRIBE, friend)
    owner.timeout = friend.timeout = 60.0
    async with reading(friend, uuid) as reader, owner.publisher(uuid) as publisher:
        pouring = asyncio.create_task(pour(publisher, 2000))
        await until(lambda: len(reader.got) > 200, "the first ones")
        broker: Any = mortal.network.broker()
        await asyncio.to_thread(broker.kill_hard)
        assert not pouring.done()
        await asyncio.to_thread(mortal.up)
        await pouring
        await until(lambda: len(reader.got) >= 2000, "all of them")
        await owner.publish(uuid, "2000")
        await reader.has("2000")
        assert sorted(map(int, reader.bodies)) == list(range(2001))


# --- trees ---------------------------------------------------------------------------------------------------------------------------


async def test_a_later_child_from_its_first_message_on(live: LiveNetwork, connect: Connect) -> None:
    """T28: created by another and published to at once, twenty times; deeper than the depth, or not granted, is not received."""
    owner, maker, friend = await meet(live, connect, 3)
    root = await topic(owner, hosting=OPEN)
    await owner.grants.give(SUBSCRIBE, root, named(friend), tree=True)
    tell(owner, maker, friend)
    async with reading(friend, root, children=True, depth=1) as shallow, reading(owner, root, children=True) as deep:

        async def one(number: int) -> None:
            child = (await owner.create(path("child"), parent=root, hosting=OPEN)).uuid
            below = (await owner.create(path("below"), parent=child)).uuid
            await asyncio.gather(owner.publish(child, f"child {number}"), owner.publish(below, f"below {number}"))

        await asyncio.gather(*(one(number) for number in range(20)))
        theirs = (await maker.create(path("theirs"), parent=root)).uuid
        await maker.publish(theirs, "theirs")
        await owner.publish(root, "last")
        children = {f"child {number}" for number in range(20)}
        await shallow.has("last", *children)
        await deep.has("last", *children, *(f"below {number}" for number in range(20)))
        assert sorted(shallow.bodies) == sorted({"last", *children})
        assert "theirs" not in deep.bodies, "a child of another entity needs its own grant"
        assert len(deep.got) == len(set(deep.bodies)), "each once, whatever leads to it"
        # Its owner lets the one that follows read: from then on it does.
        await maker.grants.give(SUBSCRIBE, theirs, named(owner))
        await maker.publish(theirs, "granted")
        await deep.has("granted")
        assert "theirs" not in deep.bodies


async def test_a_collection_as_it_changes(live: LiveNetwork, connect: Connect) -> None:
    """T28: what joins a collection, or one inside it, is read from when the command returned, also in the middle of a stream; what leaves is
    unbound, and the innocent are not disturbed."""
    owner, friend = await meet(live, connect, 2)
    outer = (await owner.create_collection(path("outer"), NESTING)).uuid
    inner = (await owner.create_collection(path("inner"), NESTING)).uuid
    await owner.collections.add(outer, inner)
    await owner.grants.give(SUBSCRIBE, outer, named(friend), tree=True)
    joins, stays = await topic(owner), await topic(owner)
    await owner.collections.add(outer, stays)
    tell(owner, friend)
    async with reading(friend, outer) as reader, owner.publisher(joins) as publisher, owner.publisher(stays) as other:
        line = friend._session._line
        queue = queue_of(live, friend, outer)
        sent, going = 0, True

        async def stream() -> None:
            nonlocal sent
            while going:
                await publisher.publish(str(sent))
                sent += 1

        streaming = asyncio.create_task(stream())
        for _ in range(3):
            await owner.collections.add(inner, joins)
            first = sent + 1
            await until(lambda first=first: sent > first + 20, "messages of a member")
            await reader.has(*map(str, range(first, first + 20)))
            await other.publish(f"stays {first}")
            await owner.collections.remove(inner, joins)
            await until(lambda: bound_to(live, queue) == {stays}, "it to be unbound")
            gone = sent + 1
            await until(lambda gone=gone: sent > gone + 20, "messages of no member")
            await other.publish(f"stays {gone}")
            await reader.has(f"stays {gone}")
            assert not {str(number) for number in range(gone, gone + 20)} & set(reader.bodies)
        going = False
        await streaming
        assert friend._session._line is line, "no connection was closed"
        assert len(reader.got) == len(set(reader.bodies))


async def test_what_ends_leaves_the_tree(live: LiveNetwork, connect: Connect) -> None:
    """T28: a withdrawn or expired child is unbound, its exchange goes with it; its parent's messages go on."""
    owner, friend = await meet(live, connect, 2)
    root = await topic(owner, hosting=OPEN)
    withdrawn = await topic(owner, parent=root)
    brief = await topic(owner, parent=root, lifetime=timedelta(seconds=8))
    await owner.grants.give(SUBSCRIBE, root, named(friend), tree=True)
    tell(owner, friend)
    async with reading(friend, root, children=True) as reader:
        for uuid in (root, withdrawn, brief):
            await owner.publish(uuid, uuid)
        await reader.has(root, withdrawn, brief)
        queue = queue_of(live, friend, root)
        assert bound_to(live, queue) == {root, withdrawn, brief}
        await owner.withdraw(withdrawn)
        await until(lambda: bound_to(live, queue) == {root}, "both to be unbound")
        # Log time comes to an end later than the guard's own clock does.
        await until(lambda: not {withdrawn, brief} & exchanges(live), "their exchanges to go")
        for uuid in (withdrawn, brief):
            with pytest.raises(Refused, match=f"there is no topic {uuid} that you may publish to"):
                await owner.publish(uuid, "late")
        await owner.publish(root, "goes on")
        await reader.has("goes on")


async def test_one_entity_follows_and_reads(live: LiveNetwork, connect: Connect) -> None:
    """T28: a subscription to a topic becomes one to its tree, and back, with the same meaning as if it were new."""
    owner, friend = await meet(live, connect, 2)
    root = await topic(owner, hosting=OPEN)
    child = await topic(owner, parent=root)
    await owner.grants.give(SUBSCRIBE, root, named(friend), tree=True)
    tell(owner, friend)
    for how, expected in (
        ({}, ["root"]),
        ({"children": True}, ["child", "root"]),
        ({}, ["root"]),
        ({"depth": 1}, ["child", "root"]),
    ):
        async with reading(friend, root, **how) as reader:
            await owner.publish(child, "child")
            await owner.publish(root, "root")
            await reader.has(*expected)
            await until(lambda: not live.waiting(queue_of(live, friend, root)), "all of them to be read")
            assert sorted(reader.bodies) == expected
    assert len([queue for queue in queues(live) if queue.startswith(f"Feed.{named(friend)}.")]) == 1
    with pytest.raises(UsageError, match="a depth is 1 or more"):
        friend.subscribe(root, depth=0)


# --- what is left behind -------------------------------------------------------------------------------------------------------------


async def test_what_a_node_left_behind_goes(particular: LiveNetwork, connect: Connect) -> None:
    """T21, T22: what a node makes that is behind, or that dies before it looks again, no record ends any more. The guard ends it, and nothing else."""
    owner, friend = await meet(particular, connect, 2)
    root = await topic(owner, hosting=OPEN)
    kept, lost, over = [await topic(owner, parent=root) for _ in range(3)]
    for uuid in (root, kept):
        await owner.grants.give(SUBSCRIBE, uuid, named(friend))
    await owner.publish(lost, "makes its exchange")
    tell(owner, friend)
    async with reading(friend, root, children=True) as reader:
        await owner.publish(kept, "first")
        await reader.has("first")
        await owner.withdraw(over)
        queue = queue_of(particular, friend, root)
        connection = particular.home.connection()
        node = await Connection.open(connection.brokers, particular.credentials(Role.NODE, "n2"), vhost=connection.vhost)
        channel = await node.channel()
        await channel.bind_queue(queue, lost)
        left = await topology.declare_feed(channel, named(friend), lost, secrets.token_hex(16), topology.CLASSIC)
        await channel.bind_queue(left, lost)
        await topology.declare_topic(channel, over)
        # The broker has said of each that it is there.
        await until(lambda: left not in queues(particular), "the queue of nobody to go")
        await until(lambda: lost not in bound_to(particular, queue), "the binding to go")
        await until(lambda: over not in exchanges(particular), "the exchange of a topic that has ended to go")
        await node.close()
        await owner.publish(lost, "not for it")
        await owner.publish(kept, "second")
        await reader.has("second")
        assert reader.bodies == ["first", "second"]
        assert {kept, lost} <= exchanges(particular)
