"""Subscriptions (T20, T28): which queue of which entity gets the messages of which topic. The log says it, nodes bind accordingly.

A *feed* is one queue of one entity, for a topic, or for what is below a topic or in a collection. It is a wish that lasts for a while; whether
it gets a topic's messages is asked anew each time: the entity must have the right to each topic, and see the way to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tdn.errors import Refused
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.rules.principals import has_expired
from tdn.rules.rights import Rights, topics_in
from tdn.rules.sight import COLLECTION, LIVE, TOPIC, Sight, asker_of, live
from tdn.rules.state import Draft, Fact, Occasion, State, Write, scan_below
from tdn.trust.envelope import Envelope
from tdn.trust.grants import PUBLISH, SUBSCRIBE

#: How long a subscription is kept that nobody asks for again.
LEASE = timedelta(days=30)
#: How long the queue of an ended subscription is remembered. The broker drops a queue that nobody reads after a week by itself.
STALE_FOR = timedelta(days=7)
#: Subscriptions of one entity: each is a queue in the broker.
MAX_FEEDS = 1000
#: Subscriptions to one topic, collection or tree: each is a binding for every topic that it reaches.
MAX_SUBSCRIBERS = 10_000


@dataclass(frozen=True, slots=True)
class Feed:
    subject: str
    entity: str
    #: The secret part of the queue's name.
    queue: str
    tree: bool
    depth: int | None

    @property
    def single(self) -> bool:
        """Whether it is for one topic and nothing else."""
        return not self.tree


def open_topic(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """Have a topic's exchange made. It is remembered, so that whoever binds later knows which there are."""
    uuid = request.body["uuid"]
    rights = Rights(draft, occasion.now)
    asker = request.signer.asker
    if rights.basis(asker, PUBLISH, uuid) is None and rights.basis(asker, SUBSCRIBE, uuid) is None:
        raise Refused(f"there is no topic {uuid} that you may publish or subscribe to")
    _mark_opened(draft, uuid, occasion)
    return {"uuid": uuid}


def subscribe(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T20, T28: a queue for a topic's messages, or for a tree's. Asking again keeps the queue, if the right has lasted since."""
    body, entity = request.body, request.signer.name.id
    uuid = body["uuid"]
    if occasion.minted is None or "queue" not in occasion.minted:
        raise Refused("the node did not name a queue for the subscription")
    tree = is_tree(draft, uuid, body["tree"])
    basis = _basis(draft, request, tree, occasion)
    key = f"{uuid} {entity}"
    present = draft.get("feed", key)
    if present is None:
        _count(draft, f"of {entity}", 1, MAX_FEEDS, f"you have {MAX_FEEDS} subscriptions; end some")
        _count(draft, f"to {uuid}", 1, MAX_SUBSCRIBERS, f"{uuid} has {MAX_SUBSCRIBERS} subscribers; no more can be")
    else:
        draft.put("ends", f"{present['until']} feed {key}", None)
    lasted = present is not None and present["tree"] == tree and _has_lasted(draft, uuid, present["basis"], occasion.now)
    queue = present["queue"] if present is not None and lasted else occasion.minted["queue"]
    if present is not None and not lasted:
        _leave_behind(draft, key, present["queue"], occasion)
    until = format_time(whole_seconds(occasion.now) + LEASE)
    depth = body.get("depth") if tree else None
    fact = {"queue": queue, "tree": tree, "depth": depth, "basis": basis, "until": until, "seq": occasion.seq}
    draft.put("feed", key, fact)
    draft.put("follower", f"{entity} {uuid}", {})
    draft.put("ends", f"{until} feed {key}", {})
    return {"uuid": uuid, "queue": queue, "expires": until}


def unsubscribe(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    uuid = request.body["uuid"]
    key = f"{uuid} {request.signer.name.id}"
    present = draft.get("feed", key)
    if present is None:
        raise Refused(f"there is no subscription of yours to {uuid}")
    draft.put("ends", f"{present['until']} feed {key}", None)
    end(draft, key, occasion)
    return {"uuid": uuid}


def end(draft: Draft, key: str, occasion: Occasion) -> None:
    present = draft.get("feed", key)
    if present is not None:
        uuid, _, entity = key.partition(" ")
        draft.put("feed", key, None)
        draft.put("follower", f"{entity} {uuid}", None)
        _leave_behind(draft, key, present["queue"], occasion)
        _count(draft, f"of {entity}", -1)
        _count(draft, f"to {uuid}", -1)


def _leave_behind(draft: Draft, key: str, queue: str, occasion: Occasion) -> None:
    """Note a queue that is to go, for the guards."""
    draft.put("stale", f"{key} {queue}", {})
    draft.put("ends", f"{format_time(whole_seconds(occasion.now) + STALE_FOR)} stale {key} {queue}", {})


def is_stale(state: State, entity: str, subject: str, queue: str) -> bool:
    """Whether a queue is known to be that of a subscription that ended."""
    return state.get("stale", f"{subject} {entity} {queue}") is not None


def is_tree(state: State, uuid: str, asked: bool) -> bool:
    """Whether a subscription is for more than one topic. A collection has no messages of its own, so it is for its topics."""
    return asked or (state.get("topic", uuid) or {}).get("kind") == COLLECTION


def _basis(draft: Draft, request: Envelope, tree: bool, occasion: Occasion) -> dict[str, Any]:
    """What a subscription rests on, so that one whose right was interrupted is given a new queue."""
    uuid, asker = request.body["uuid"], request.signer.asker
    if not tree:
        found = Rights(draft, occasion.now).basis(asker, SUBSCRIBE, uuid)
        if found is None:
            raise Refused(f"there is no topic {uuid} that you may subscribe to")
        _mark_opened(draft, uuid, occasion)
        return {"grants": list(found.grants), "epoch": _epoch(draft, uuid)}
    sight = Sight(draft, asker, occasion.now)
    if sight.place(uuid) is None and sight.collection(uuid) is None:
        raise Refused(f"there is no topic {uuid} that you may subscribe to")
    return {"grants": [], "epoch": _epoch(draft, uuid)}


def _epoch(state: State, uuid: str) -> int:
    return int((state.get("topic", uuid) or {}).get("epoch", 0))


def _has_lasted(state: State, uuid: str, basis: Fact, now: datetime) -> bool:
    """Whether what a subscription rested on never ended since: ended grants do not come back, and an owner that changed is another epoch."""
    if not basis["grants"]:
        return bool(basis["epoch"] == _epoch(state, uuid))
    rights = Rights(state, now)
    hold = all((fact := state.get("grant", grant)) is not None and rights.holds(fact) for grant in basis["grants"])
    return hold and rights.chain_of(basis["grants"][-1], uuid) is not None


def _mark_opened(draft: Draft, uuid: str, occasion: Occasion) -> None:
    if draft.get("opened", uuid) is None:
        draft.put("opened", uuid, {"seq": occasion.seq})


def _count(draft: Draft, key: str, number: int, limit: int | None = None, refusal: str = "") -> None:
    present = draft.get("feeds", key)
    count = (0 if present is None else int(present["count"])) + number
    if limit is not None and count > limit:
        raise Refused(refusal)
    draft.put("feeds", key, {"count": count} if count else None)


# --- who gets what ---


def read_feed(key: str, fact: Fact) -> Feed:
    subject, _, entity = key.partition(" ")
    return Feed(subject, entity, fact["queue"], fact["tree"], fact["depth"])


def feed_of(state: State, subject: str, entity: str) -> Feed | None:
    fact = state.get("feed", f"{subject} {entity}")
    return read_feed(f"{subject} {entity}", fact) if fact is not None else None


def reaching(state: State, uuid: str, now: datetime) -> Iterator[Feed]:
    """The feeds that get a topic's messages now."""
    rights = Rights(state, now)
    for subject in (uuid, *rights.above(uuid)):
        if state.get("feeds", f"to {subject}") is None:
            continue
        for entity, fact in scan_below(state, "feed", subject):
            feed = read_feed(f"{subject} {entity}", fact)
            if gets(state, feed, uuid, now, rights):
                yield feed


def gets(state: State, feed: Feed, uuid: str, now: datetime, rights: Rights | None = None) -> bool:
    """Whether a feed gets a topic's messages: its entity has the right to them, and sees the way down to the topic."""
    asker = asker_of(state, feed.entity)
    rights = rights or Rights(state, now)
    if asker is None or rights.basis(asker, SUBSCRIBE, uuid) is None:
        return False
    if feed.subject == uuid:
        return True
    return feed.tree and _sees_way(state, Sight(state, asker, now), feed, uuid)


def lasts(state: State, feed: Feed, now: datetime) -> bool:
    """Whether its entity may read a feed's queue at all. What gets into it is decided topic by topic."""
    if feed.tree:
        is_somebody = asker_of(state, feed.entity) is not None and not has_expired(state, f"entity:{feed.entity}", now)
        return is_somebody and live(state, feed.subject, now) is not None
    return gets(state, feed, feed.subject, now)


def goes_on(state: State, feed: Feed, now: datetime) -> bool:
    """Whether a subscription need not be asked for again: its right has lasted since it was made, and it is kept for a good while yet."""
    fact = state.get("feed", f"{feed.subject} {feed.entity}")
    return (
        fact is not None
        and parse_time(fact["until"]) > now + LEASE / 2
        and lasts(state, feed, now)
        and _has_lasted(state, feed.subject, fact["basis"], now)
    )


def _sees_way(state: State, sight: Sight, feed: Feed, uuid: str) -> bool:
    subject = state.get("topic", feed.subject)
    if subject is None or sight.topic(uuid) is None:
        return False
    if subject["kind"] == COLLECTION:
        return sight.collection(feed.subject) is not None and any(
            seen.uuid == feed.subject for seen in sight.containing(uuid, feed.depth)
        )
    steps, at = 0, uuid
    while at != feed.subject:
        fact = sight.place(at)
        steps += 1
        if fact is None or "parent" not in fact or (feed.depth is not None and steps > feed.depth):
            return False
        at = fact["parent"]
    return sight.place(feed.subject) is not None


# --- what a record touched ---


@dataclass(slots=True)
class Touched:
    """What somebody may have gained or lost by some writes: topics, whole trees, and feeds."""

    topics: set[str] = field(default_factory=set)
    trees: set[str] = field(default_factory=set)
    #: Subject and entity of feeds that changed; and, with the secret of the queue, of those whose queue is to go.
    feeds: set[tuple[str, str]] = field(default_factory=set)
    stale: set[tuple[str, str, str]] = field(default_factory=set)
    #: Entities that were revoked, or whose certificate has run out.
    entities: set[str] = field(default_factory=set)
    #: Entities that came with another certificate, or lost one. It may name another institution: whatever they were allowed is to be
    #: asked again.
    certified: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.topics or self.trees or self.feeds or self.stale or self.entities or self.certified)


def losses(writes: Iterable[Write]) -> Touched:
    """Where somebody may have lost a right. A write that can only give one is passed over."""
    touched = Touched()
    for write in writes:
        value = write.value
        if write.space == "grant" and value is not None:
            # Also a live one: it may have been renewed for a shorter time.
            (touched.trees if value["tree"] else touched.topics).add(value["topic"])
        elif write.space == "topic" and value is not None:
            # A new owner, or an end. A tree's grants speak of the topics in it too.
            if value["state"] != LIVE or "epoch" in value:
                touched.topics.add(write.key)
                touched.trees.add(write.key)
        elif write.space == "member" and value is None:
            _, kind, uuid = write.key.split(" ")
            (touched.topics if kind == TOPIC else touched.trees).add(uuid)
        elif write.space == "feed" and value is not None:
            subject, _, entity = write.key.partition(" ")
            touched.feeds.add((subject, entity))
        elif write.space == "stale" and value is not None:
            subject, entity, queue = write.key.split(" ")
            touched.stale.add((subject, entity, queue))
        elif write.space == "ends" and value is None:
            _, space, name = write.key.split(" ", 2)
            if space == "certificate" and name.startswith("entity:"):
                touched.entities.add(name.partition(" ")[0].partition(":")[2])
        elif write.space == "principal" and value is not None and write.key.startswith("entity:"):
            entity = write.key.partition(":")[2]
            touched.certified.add(entity)
            if value["revoked"]:
                touched.entities.add(entity)
    return touched


def topics_touched(state: State, touched: Touched) -> Iterator[str]:
    """The topics at which to look again, some of them more than once."""
    yield from sorted(touched.topics)
    trees = set(touched.trees)
    for entity in touched.entities | touched.certified:
        # What somebody granted gives nothing while it is revoked; nor what it kept of an owner before.
        for grant, _ in scan_below(state, "issued", entity):
            fact = state.get("grant", grant)
            if fact is not None:
                trees.add(fact["topic"])
        for space in ("kept", "follower"):
            trees.update(subject for subject, _ in scan_below(state, space, entity))
    for tree in sorted(trees):
        yield from topics_in(state, tree)
