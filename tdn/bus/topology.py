"""Exchanges and queues of the service, declared by nodes alone and alike by every node (T10).

Entities write to one exchange, `tdn.requests`. What is addressed to one node goes to that node's queue; what is addressed to all goes
on by its `tdn-path` header: changes to the quorum queue that the nodes share, questions to every node's own queue.

What must outlive a broker is on several of them: the log and the changes always, subscriptions' queues where there are several brokers. What a
node hears for itself lives with its connection; a session's queue lives on one broker, and its entity says hello again when that one is gone.
"""

from __future__ import annotations

from tdn import environment
from tdn.bus.connection import Channel
from tdn.protocol import names
from tdn.protocol.names import Name

#: Failed deliveries of a change before it goes to the dead-letter queue, so that a poison message does not come back for ever.
DELIVERY_LIMIT = 5
#: A node's questions wait this long at most: the asker has long asked elsewhere.
_QUESTION_MILLISECONDS = 60_000
#: A reply queue that nobody reads goes away, with what is in it. Answers to changes are given again on request.
_SESSION_IDLE_MILLISECONDS = 60_000

#: A dead letter waits this long for a node that tells its sender.
_DEAD_MILLISECONDS = 86_400_000

#: A peer queue that nobody has read for so long goes away. An entity that comes back asks a node for another.
_PEER_IDLE_MILLISECONDS = 7 * 86_400_000
#: How long a message to a peer waits. Whoever asked has stopped waiting by then.
_PEER_MILLISECONDS = 30_000

#: How old a guard's report may get.
_REPORT_MILLISECONDS = 30_000

#: A subscriber that is away finds so much: of the last day, and no more than this. The oldest goes first. After a week without a reader the
#: queue goes away.
FEED_MILLISECONDS = 86_400_000
FEED_IDLE_MILLISECONDS = 7 * 86_400_000
FEED_MESSAGES = 100_000
FEED_BYTES = 64 * 1024 * 1024

#: How often a message comes again that its subscriber took and did not finish with. RabbitMQ 4 gives up after 20 by itself.
_FEED_DELIVERIES = 1_000_000

#: The log is kept in segments of about this size, and trimmed by whole ones (docs/operations.md). Fixed when the stream is first declared.
_LOG_SEGMENT_BYTES = 64 * 1024**2

SEGMENT_ARGUMENT = "x-stream-max-segment-size-bytes"

#: Kinds of a subscription's queue: on one broker, or on several, so that nothing that was confirmed is lost with one.
CLASSIC, QUORUM = "classic", "quorum"


def log_arguments() -> dict[str, str | int]:
    """Of the log's stream."""
    return {"x-queue-type": "stream", SEGMENT_ARGUMENT: environment.LOG_SEGMENT_BYTES.read(_LOG_SEGMENT_BYTES)}


async def declare(channel: Channel) -> None:
    """What all nodes share. Harmless to repeat."""
    await channel.declare_exchange(names.REQUESTS, "topic")
    await channel.declare_exchange(names.BROADCAST, "headers")
    await channel.declare_exchange(names.REPLIES, "direct")
    await channel.declare_exchange(names.NOTIFICATIONS, "direct")
    await channel.declare_exchange(names.PEERS, "fanout")
    await channel.declare_exchange(names.PEER_REPLIES, "direct")
    await channel.declare_exchange(names.GUARDS, "fanout")
    await channel.declare_exchange(names.HEADS, "fanout")
    await channel.declare_queue(names.LOG, log_arguments())
    # What cannot even be given up in order is dropped in the end: nothing circulates for ever.
    await channel.declare_queue(
        names.DEAD,
        {
            "x-queue-type": QUORUM,
            "x-max-length": 10_000,
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-message-ttl": _DEAD_MILLISECONDS,
        },
    )
    await channel.declare_queue(
        names.CHANGES,
        {
            "x-queue-type": QUORUM,
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": names.DEAD,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-max-length": 1_000_000,
        },
    )
    await channel.bind_exchange(names.BROADCAST, names.REQUESTS, names.TOPICS)
    await channel.bind_exchange(names.BROADCAST, names.REQUESTS, names.NODES)
    await channel.bind_queue(names.CHANGES, names.BROADCAST, arguments={"x-match": "all", names.PATH_HEADER: names.CHANGE_PATH})


async def declare_majority(channel: Channel) -> None:
    """Where several brokers confirm a guard's word: only when most of them have it."""
    await channel.declare_exchange(names.MAJORITY, "fanout")
    await channel.declare_queue(names.MAJORITY, {"x-queue-type": QUORUM, "x-max-length": 1})
    await channel.bind_queue(names.MAJORITY, names.MAJORITY)


async def declare_node(channel: Channel, node_id: str) -> str:
    """A node's own queue, bound to the four topics of T10. It ends with the connection: a queue that outlived it would be lost, and could not
    be made again, while the broker that it lived on is away."""
    # Homes of earlier builds have one that lasts. Nobody reads it, and when it is full it rejects what others would take.
    await channel.delete_queue(f"tdn.node.{node_id}")
    queue = names.node_queue(node_id, names.new_session())
    await channel.declare_queue(
        queue,
        {
            "x-queue-type": CLASSIC,
            "x-message-ttl": _QUESTION_MILLISECONDS,
            "x-max-length": 20_000,
            "x-overflow": "reject-publish",
        },
        exclusive=True,
    )
    await channel.bind_queue(queue, names.BROADCAST, arguments={"x-match": "all", names.PATH_HEADER: names.QUESTION_PATH})
    await channel.bind_queue(queue, names.REQUESTS, names.topics_key(node_id))
    await channel.bind_queue(queue, names.REQUESTS, names.nodes_key(node_id))
    return queue


async def declare_session(channel: Channel, owner: Name, session: str) -> str:
    """A reply queue for one connected session of an entity: the paper's `Entity/<EID>`."""
    queue = names.reply_queue(owner, session)
    await channel.declare_queue(
        queue,
        {
            "x-queue-type": CLASSIC,
            "x-expires": _SESSION_IDLE_MILLISECONDS,
            "x-message-ttl": _SESSION_IDLE_MILLISECONDS,
            "x-max-length-bytes": 64 * 1024 * 1024,
        },
    )
    await channel.bind_queue(queue, names.REPLIES, queue)
    return queue


async def follow(channel: Channel, owner: Name, session: str, change_topic: str) -> None:
    """Have a session's reply queue told of changes. The queue is declared too: one that has just gone away must not break the channel."""
    queue = await declare_session(channel, owner, session)
    await channel.bind_queue(queue, names.NOTIFICATIONS, names.notification_key(change_topic, owner.id))


async def declare_peer(channel: Channel, owner: Name, session: str, *, answers: bool) -> str:
    """A queue of an entity for the time when no node is there (T17): for others' questions, or for answers to its own. Bounded."""
    queue = names.peer_queue(owner, session)
    await channel.declare_queue(
        queue,
        {
            "x-queue-type": CLASSIC,
            "x-expires": _PEER_IDLE_MILLISECONDS,
            "x-message-ttl": _PEER_MILLISECONDS,
            "x-max-length": 1000,
            "x-max-length-bytes": 16 * 1024 * 1024,
        },
    )
    if answers:
        await channel.bind_queue(queue, names.PEERS)
    else:
        await channel.bind_queue(queue, names.PEER_REPLIES, queue)
    return queue


async def declare_guards_queue(channel: Channel, listener: str) -> str:
    """Where a node hears how far the guards are, and a guard whether the others are there."""
    queue = names.guards_queue(listener, names.new_session())
    await channel.declare_queue(
        queue,
        {"x-queue-type": CLASSIC, "x-message-ttl": _REPORT_MILLISECONDS, "x-max-length": 10_000},
        exclusive=True,
    )
    await channel.bind_queue(queue, names.GUARDS)
    return queue


async def declare_heads_queue(channel: Channel, node_id: str) -> str:
    """Where a node hears of the other stores, while this connection lasts: what was said to an earlier one counts no more."""
    queue = names.heads_queue(node_id, names.new_session())
    await channel.declare_queue(queue, {"x-queue-type": "classic", "x-max-length": 1000}, exclusive=True)
    await channel.bind_queue(queue, names.HEADS)
    await channel.bind_queue(queue, names.GUARDS)
    return queue


async def declare_topic(channel: Channel, uuid: str) -> None:
    """A topic's exchange: its UUID, and nothing that tells what it is about or where it stands (T30)."""
    await channel.declare_exchange(uuid, "fanout")


async def declare_feed(channel: Channel, entity: str, subject: str, secret: str, kind: str) -> str:
    """The queue of one subscription. Bounded: a subscriber that never comes back must not fill the broker."""
    queue = names.feed_queue(entity, subject, secret)
    await channel.declare_queue(
        queue,
        {
            "x-queue-type": kind,
            "x-expires": FEED_IDLE_MILLISECONDS,
            "x-message-ttl": FEED_MILLISECONDS,
            "x-max-length": FEED_MESSAGES,
            "x-max-length-bytes": FEED_BYTES,
            **({"x-delivery-limit": _FEED_DELIVERIES} if kind == QUORUM else {}),
        },
    )
    return queue
