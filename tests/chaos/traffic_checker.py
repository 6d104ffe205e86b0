"""Holds what was shown, published and read against who might: pure functions over what was written down during a run.

Moments are of one clock, that of the process which made the load. Nothing here knows how the product decides: who may see is the model's
answer from the log, who may publish and read follows from what owners asked for and were told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdn.protocol import names
from tdn.protocol.access import Asker
from tests.unit.rules.tree_model import LIVE, Model

PUBLISH, SUBSCRIBE = "publish", "subscribe"


@dataclass
class Held:
    """A right that somebody may have had: from when its owner asked for it until the end of it was signed. No end: it was not ended, or nobody
    was told that it is."""

    entity: str
    right: str
    topic: str
    begins: float
    ends: float | None = None


@dataclass
class Message:
    """A message as its publisher knows it; taken when the broker has confirmed it, as far as its publisher was told."""

    id: str
    topic: str
    publisher: str
    sent: float
    taken: float | None = None


@dataclass(frozen=True)
class Got:
    """A message that a reader was given. Who begins to read anew may be given again what it had not finished with."""

    reader: str
    topic: str
    id: str
    at: float
    reading: int = 0


@dataclass(frozen=True)
class Shown:
    """A topic that somebody was shown, in answer to what."""

    asker: Asker
    uuid: str
    question: str


@dataclass(frozen=True)
class Unshown:
    """A topic that everybody may see and that was there all the time, and a discovery that was answered without it."""

    asker: str
    uuid: str
    question: str
    at: float


@dataclass
class Traffic:
    """All of it, as it was written down."""

    held: list[Held] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    shown: set[Shown] = field(default_factory=set)
    unshown: list[Unshown] = field(default_factory=list)
    #: Readers that kept their right and read all the time, with their topics.
    steady: dict[str, str] = field(default_factory=dict)

    def violations(self, model: Model) -> list[str]:
        return [*self._published(), *self._read(), *self.lost(), *self._doubled(), *self._seen(model), *self._unseen()]

    def _held_by(self, entity: str, right: str, topic: str) -> list[Held]:
        return [held for held in self.held if (held.entity, held.right, held.topic) == (entity, right, topic)]

    def _published(self) -> Iterator[str]:
        """T20, T21: the broker took nothing from who had no right, and nothing that was sent after the end of a right was signed. What somebody
        was given it has taken, whether or not its publisher heard of that."""
        given: dict[str, float] = {}
        for got in self.got:
            given[got.id] = min(got.at, given.get(got.id, got.at))
        for message in self.messages.values():
            moments = [moment for moment in (message.taken, given.get(message.id)) if moment is not None]
            if not moments:
                continue
            taken = min(moments)
            rights = self._held_by(message.publisher, PUBLISH, message.topic)
            if not any(held.begins <= taken and (held.ends is None or message.sent <= held.ends) for held in rights):
                late = max((message.sent - held.ends for held in rights if held.ends is not None), default=None)
                since = f"{late * 1000:.0f} ms after the end was signed" if late is not None and late >= 0 else "never allowed"
                yield f"unauthorised: {message.publisher} published {message.id} to {message.topic}, {since}"

    def _read(self) -> Iterator[str]:
        """T20, T21: nobody was given what was published when it had no right, or none any more."""
        for got in self.got:
            message = self.messages.get(got.id)
            if message is None or message.topic != got.topic:
                yield f"{got.reader} read {got.id} on {got.topic}, which nobody published there"
                continue
            rights = self._held_by(got.reader, SUBSCRIBE, got.topic)
            if not any(held.begins <= got.at and (held.ends is None or message.sent <= held.ends) for held in rights):
                yield f"unauthorised: {got.reader} read {got.id} of {got.topic} without a right"

    def lost(self) -> list[str]:
        """T22: what the broker has confirmed, whoever reads all the time has been given."""
        found = []
        for reader, topic in self.steady.items():
            given = {got.id for got in self.got if got.reader == reader}
            taken = [message.id for message in self.messages.values() if message.topic == topic and message.taken is not None]
            found += [f"{reader} was not given {one}, which the broker has confirmed" for one in taken if one not in given]
        return found

    def _doubled(self) -> Iterator[str]:
        for (reader, reading, one), count in Counter((got.reader, got.reading, got.id) for got in self.got).items():
            if count > 1:
                yield f"{reader} was given {one} {count} times in one reading ({reading})"

    def _seen(self, model: Model) -> Iterator[str]:
        """T18, T27: nobody was shown what its lists, or those above it, hide from it. They never change, so no moment matters."""
        for shown in sorted(self.shown, key=lambda shown: (shown.question, shown.uuid)):
            if shown.uuid not in model.things:
                yield f"{shown.asker.entity} was shown {shown.uuid} by {shown.question}, which is not in the log"
            elif not model.admits(shown.uuid, "discover", shown.asker):
                yield f"unauthorised: {shown.asker.entity} was shown {shown.uuid} by {shown.question}"


    def _unseen(self) -> Iterator[str]:
        """T22: who was answered, whatever went wrong at that moment, was not answered with nothing."""
        for one in self.unshown:
            yield f"acknowledged and lost: {one.asker} was not shown {one.uuid} by {one.question} at {one.at:.1f}"


def incomplete(found: Mapping[str, Collection[str]], model: Model, asker: Asker, *, ends_after: Any, word: str) -> Iterator[str]:
    """What nodes do not show although it is there, or show although it is not: every live topic that the asker may see, and no other.

    What ends within moments may be shown or not.
    """
    may_show = {uuid for uuid, thing in model.things.items() if model.admits(uuid, "discover", asker) and thing.state == LIVE}
    must_show = {uuid for uuid in may_show if model.ends(uuid) > ends_after}
    for node, uuids in found.items():
        yield from (f"acknowledged and lost: {node} does not show {uuid} ({word})" for uuid in sorted(must_show - set(uuids)))
        yield from (f"{node} shows {uuid} ({word}), which is not live" for uuid in sorted(set(uuids) - may_show))


#: What a node or a guard needs at a broker: its own connection, and of a node two for direct replies; and channels of each.
MOST_CONNECTIONS = 3
MOST_CHANNELS = 30


def left_connections(connections: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Connections that nobody owns, as the broker lists them when every client has gone, and more than somebody needs."""
    of: Counter[str] = Counter()
    for connection in connections:
        name = names.Name.parse(connection.get("user") or "")
        if name is None or name.role not in (names.Role.NODE, names.Role.GUARD):
            yield f"a connection of {connection.get('user')!r} was left"
            continue
        of[name.principal] += 1
        if connection.get("channels", 0) > MOST_CHANNELS:
            yield f"{name.principal} has {connection['channels']} channels on one connection"
    yield from (f"{who} has {count} connections" for who, count in of.items() if count > MOST_CONNECTIONS)


def left_queues(
    queues: Sequence[Mapping[str, Any]],
    *,
    nodes: Collection[str],
    guards: Collection[str],
    entities: Collection[str],
    feeds: Collection[tuple[str, str, str]],
    held: Iterable[Held],
) -> Iterator[str]:
    """Queues that nobody owns, as the broker lists them when everybody has gone.

    `feeds` are the subscriptions in the log: subject, entity, and the queue's secret.
    """
    service = {names.LOG, names.CHANGES, names.DEAD, names.MAJORITY}
    # What a node or a guard hears for itself lives with its connection: one of each kind, and what is more was left by a connection that is gone.
    listening = {f"tdn.{kind}.{node}" for kind in ("node", "guards", "heads") for node in nodes}
    listening |= {f"{names.GUARDS}.{guard}" for guard in guards}
    of_nodes = Counter(queue["name"].rpartition(".")[0] for queue in queues)
    may_read = {(right.entity, right.topic) for right in held if right.right == SUBSCRIBE and right.ends is None}
    for queue in queues:
        name = queue["name"]
        parts, owner = names.read_feed_queue(name), name.rpartition(".")[0]
        if parts is not None:
            entity, subject, secret = parts
            if (subject, entity, secret) not in feeds:
                yield f"queue {name} belongs to no subscription"
            elif (entity, subject) not in may_read:
                yield f"queue {name} was left to who lost the right"
        elif name.split(".")[0] in ("Entity", "Peer", "Operator"):
            if "x-expires" not in queue["arguments"]:
                yield f"queue {name} would stay for ever"
            elif name.split(".")[0] != "Operator" and name.split(".")[1] not in entities:
                yield f"queue {name} belongs to nobody who is known"
        elif name not in service:
            if owner not in listening:
                yield f"queue {name} belongs to nobody"
            elif of_nodes[owner] > 1:
                yield f"queue {name} is one of {of_nodes[owner]} of the same listener"
