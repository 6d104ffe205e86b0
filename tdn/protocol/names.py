"""Who and where: principals as certificates and the broker name them, the paper's service topics, exchanges and queues.

A principal's name, `tdn:entity:alice:<key hash>`, is the URI in its certificate and its login at the broker, so that the guard, which
never sees a certificate, knows which key it talks to.
"""

from __future__ import annotations

import re
import secrets
import uuid as uuids
from dataclasses import dataclass
from enum import StrEnum

from tdn.errors import UsageError

ID_PATTERN = r"[a-z0-9][a-z0-9_-]{0,62}"
#: Length of the key hash in a name: SHA-256 of the public key, hexadecimal.
KEY_HASH_PATTERN = r"[0-9a-f]{64}"

_ID = re.compile(ID_PATTERN)
_NAME = re.compile(rf"tdn:(entity|node|guard|operator|broker):({ID_PATTERN}):({KEY_HASH_PATTERN})")
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_SESSION = re.compile(r"[0-9a-f]{32}")
_FEED = re.compile(rf"Feed\.({ID_PATTERN})\.({_UUID4.pattern})\.([0-9a-f]{{32}})")


class Role(StrEnum):
    """What a certificate says its holder is. Only ENTITY is open to anyone with a certificate; the others are enrolled by the operator."""

    ENTITY = "entity"
    NODE = "node"
    GUARD = "guard"
    OPERATOR = "operator"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Name:
    """A principal with the key it holds."""

    role: Role
    id: str
    key_hash: str

    def __str__(self) -> str:
        return f"tdn:{self.role}:{self.id}:{self.key_hash}"

    @property
    def principal(self) -> str:
        """The principal whatever its key: `entity:alice`."""
        return f"{self.role}:{self.id}"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The name, or None when the text is none. Whoever asks decides what a foreign name means."""
        match = _NAME.fullmatch(text)
        return cls(Role(match[1]), match[2], match[3]) if match else None


def check_id(text: str) -> str:
    if _ID.fullmatch(text) is None:
        raise UsageError(
            f"{text[:80]!r} is not an id; use lower-case letters, digits, '-' and '_', at most 63, starting with a letter or digit"
        )
    return text


def check_uuid(text: str) -> str:
    if _UUID4.fullmatch(text) is None:
        raise UsageError(f"{text[:80]!r} is not a topic UUID (version 4, lower case with dashes)")
    return text


def mint_uuid() -> str:
    """A fresh random UUID, version 4 (T4)."""
    return str(uuids.uuid4())


# The paper's service topics, written with dots as routing keys, as RabbitMQ's own MQTT plugin does.
TOPICS = "Services.Discovery.Topics"
NODES = "Services.Discovery.TopicDiscoveryNode"

#: Entities write requests here; only nodes read what comes out.
REQUESTS = "tdn.requests"
#: `Services/Discovery/Topics` and `…/TopicDiscoveryNode` fan out from here by the message's `tdn-path` header.
BROADCAST = "tdn.broadcast"
#: Nodes write replies here; each entity reads its own queues.
REPLIES = "tdn.replies"
#: Changes, shared by all nodes: a quorum queue.
CHANGES = "tdn.changes"
#: What failed too often; a node reads it and answers.
DEAD = "tdn.dead"
#: The log: a stream.
LOG = "tdn.log"

#: Where entities ask each other and answer while no node is there (T17); the guard opens both only then.
PEERS = "tdn.peers"
PEER_REPLIES = "tdn.peer-replies"
BETWEEN_ENTITIES = frozenset({PEERS, PEER_REPLIES})

#: Nodes tell watchers of changes here (T29, T35). Each has a routing key of its own, so that nobody notices what it may not see.
NOTIFICATIONS = "tdn.notifications"

#: Guards say here how far they are and what they have ended. Nodes listen, and the other guards.
GUARDS = "tdn.guards"
#: Where a guard has the brokers' majority confirm that it is with them: an exchange, and the quorum queue behind it. With several brokers only.
MAJORITY = "tdn.majority"

#: Login of the guards and the operator at the management API. Not a principal's name, so it can never be a certificate's.
MANAGEMENT_USER = "tdn-management"

#: Nodes say here, to each other alone, how far their stores go: after the broker was gone they compare before anyone appends.
HEADS = "tdn.heads"
#: Held by the connection that puts back what the log lacks.
RESTORING = "tdn.restoring"

#: Header that says which way a broadcast request goes, and its two values.
PATH_HEADER = "tdn-path"
CHANGE_PATH = "change"
QUESTION_PATH = "question"

#: RabbitMQ's direct reply-to: the one address that needs no queue and belongs to whoever wrote it.
DIRECT_REPLY = "amq.rabbitmq.reply-to"


def topics_key(node_id: str | None = None) -> str:
    return f"{TOPICS}.{node_id}" if node_id else TOPICS


def nodes_key(node_id: str | None = None) -> str:
    return f"{NODES}.{node_id}" if node_id else NODES


def node_queue(node_id: str, secret: str) -> str:
    """A node's own queue, which lives as long as one connection of it: the next connection has another, and meets nothing of the last."""
    return f"tdn.node.{node_id}.{secret}"


def notification_key(change_topic: str, entity: str) -> str:
    """Where one watcher is told of the changes of one thing: a collection's change topic (T31), or a topic's own UUID."""
    return f"{change_topic}.{entity}"


def watching(uuid: str) -> str:
    """What notifications of one thing correlate with, in the session that follows it."""
    return f"watching-{uuid}"


def new_session() -> str:
    """A session's secret half of its queue name: a passive declare tells anyone a queue's depth, so names cannot be guessed."""
    return secrets.token_hex(16)


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def reply_queue(owner: Name, session: str) -> str:
    """The paper's `Entity/<EID>`, one queue per connected session, so that two programs of one entity do not take each other's replies."""
    return f"{owner.role.capitalize()}.{owner.id}.{session}"


def peer_queue(owner: Name, session: str) -> str:
    """A queue that outlives the session and the nodes: for answers of other entities, or for their questions (T17)."""
    return f"Peer.{owner.id}.{session}"


def feed_queue(entity: str, subject: str, secret: str) -> str:
    """The queue of one subscription: whose, to what, and what nobody can guess."""
    return f"Feed.{entity}.{subject}.{secret}"


def read_feed_queue(queue: str) -> tuple[str, str, str] | None:
    """Entity, subject and secret of a subscription's queue; None for any other name."""
    match = _FEED.fullmatch(queue)
    return (match[1], match[2], match[3]) if match else None


def is_topic(name: str) -> bool:
    """Whether an exchange is a topic's: named by its UUID alone (T30)."""
    return _UUID4.fullmatch(name) is not None


def guards_queue(listener: str, secret: str) -> str:
    """Where one node, or one guard, hears of the guards, over one connection."""
    return f"{GUARDS}.{listener}.{secret}"


def is_guards_queue(listener: str, queue: str) -> bool:
    _, _, secret = queue.rpartition(".")
    return is_session(secret) and queue == guards_queue(listener, secret)


def heads_queue(node_id: str, session: str) -> str:
    """Where one node hears of the others' stores, as long as one connection lasts."""
    return f"{HEADS}.{node_id}.{session}"


def owns_queue(owner: Name, queue: str) -> bool:
    _, _, session = queue.rpartition(".")
    if not is_session(session):
        return False
    return queue == reply_queue(owner, session) or (owner.role is Role.ENTITY and queue == peer_queue(owner, session))
