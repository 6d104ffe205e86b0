"""Subscriptions: which queue gets which topic's messages, when a queue is replaced, and how whatever was lost is found."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from granting import Granting, TwoHouses, begin, fresh_queue, looked_at, looked_at_by_guards
from little_network import DAY, HOUR, MINUTE, SECOND, fresh_uuid, message_of
from pki import T0
from sound_trees import accepted, refused

from tdn.protocol.times import format_time
from tdn.rules import feeds
from tdn.rules.state import Outcome

NET = TwoHouses("feeds")
HOSTS = {"allow_children": True}
LISTS = {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]}
TAKES: dict[str, Any] = {"child_collections": True, "inclusion": True, "lists": LISTS, "lifetime": 60 * DAY}
LONG = {"ends": T0 + 50 * DAY}


@pytest.fixture
def log() -> Granting:
    return begin(NET)


@pytest.fixture
def topic(log: Granting) -> str:
    """Alice's, and erin may subscribe to it and to what is below it."""
    uuid = log.advertised("alice", lifetime=60 * DAY, hosting=HOSTS)
    log.gave("alice", "erin", uuid, "subscribe", tree=True, **LONG)
    return uuid


def put_into(log: Granting, collection: str, *uuids: str) -> None:
    for uuid in uuids:
        accepted(log.change("add", log.topic(uuid)["owner"], collection=collection, uuid=uuid))


def reached(log: Granting, uuid: str) -> set[tuple[str, str]]:
    """Who gets a topic's messages by which subscription."""
    return {(feed.entity, feed.subject) for feed in feeds.reaching(log.state, uuid, log.now)}


# --- asking ---


def test_a_queue_for_a_topic(log: Granting, topic: str) -> None:
    """T20: with the right to it; kept for a while; the topic is open from then on."""
    queue = fresh_queue()
    receipt = accepted(log.subscribe("erin", topic, queue=queue))
    assert (receipt["uuid"], receipt["queue"], receipt["expires"]) == (topic, queue, format_time(T0 + feeds.LEASE))
    assert log.state.get("opened", topic) is not None
    assert log.gets("erin", topic, topic) == [True]
    assert reached(log, topic) == {("erin", topic)}
    assert feeds.goes_on(log.state, log.feed(topic, "erin"), T0)


def test_without_the_right(log: Granting, topic: str) -> None:
    """T20, T18: neither a queue nor an exchange, and no other word than for a topic that there is not."""
    absent = fresh_uuid()
    for act in (log.subscribe, log.open):
        told = refused(log, partial(act, "bob", topic))
        assert told.replace(topic, absent) == refused(log, partial(act, "bob", absent))
    log.gave("alice", "bob", topic, "publish")
    refused(log, partial(log.subscribe, "bob", topic))
    accepted(log.open("bob", topic))


def test_a_topic_is_opened_once(log: Granting, topic: str) -> None:
    """By whoever may publish or subscribe; again changes nothing."""
    accepted(log.open("alice", topic))
    first = log.state.get("opened", topic)
    accepted(log.open("erin", topic))
    assert log.state.get("opened", topic) == first
    collection = log.collection("alice", **TAKES)
    assert "no topic" in refused(log, partial(log.open, "alice", collection))


def test_a_node_names_the_queue(log: Granting, topic: str) -> None:
    """T21: names that nobody can guess; never the subscriber's own choice."""
    request = NET.request("subscribe", {"uuid": topic, "tree": False}, NET.entity("erin"))
    minted = {"uuid": fresh_uuid(), "seed": "0" * 22}
    assert "did not name a queue" in refused(log, lambda: log.put("subscribe", request, minted=minted))


def test_unsubscribed(log: Granting, topic: str) -> None:
    """The queue is to go; nothing is left of it after a while."""
    accepted(log.subscribe("erin", topic))
    queue = log.queue("erin", topic)
    outcome = log.unsubscribe("erin", topic)
    accepted(outcome)
    assert feeds.losses(outcome.writes).stale == {(topic, "erin", queue)}
    spaces = ("feed", "follower", "feeds")
    assert log.spaces(*spaces) == {space: [] for space in spaces}
    assert reached(log, topic) == set()
    told = refused(log, partial(log.unsubscribe, "erin", topic))
    absent = fresh_uuid()
    assert told.replace(topic, absent) == refused(log, partial(log.unsubscribe, "erin", absent))
    log.tick(T0 + feeds.STALE_FOR - SECOND)
    assert log.spaces("stale")["stale"] == [f"{topic} erin {queue}"]
    log.tick(T0 + feeds.STALE_FOR)
    assert log.spaces("stale")["stale"] == []
    assert not [key for key in log.spaces("ends")["ends"] if key.split(" ")[1] in ("feed", "stale")]


def test_it_lasts_for_a_while(log: Granting, topic: str) -> None:
    """Nobody asked again: it is over, with its queue. Whoever asks again begins anew, before its half is over if it likes."""
    accepted(log.subscribe("erin", topic))
    later = T0 + feeds.LEASE / 2
    log.tick(later)
    assert not feeds.goes_on(log.state, log.feed(topic, "erin"), later)
    assert feeds.goes_on(log.state, log.feed(topic, "erin"), later - SECOND)
    queue = log.queue("erin", topic)
    accepted(log.subscribe("erin", topic, at=later))
    assert log.queue("erin", topic) == queue
    log.tick(T0 + feeds.LEASE)
    assert log.gets("erin", topic, topic) == [True]
    end = log.tick(later + feeds.LEASE, "n1", "n2")
    assert feeds.feed_of(log.state, topic, "erin") is None
    assert feeds.losses(end.writes).stale == {(topic, "erin", queue)}


def test_limits(log: Granting, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a queue and bindings in the broker. Asking again takes no more; ending gives room."""
    other = log.advertised("erin", lifetime=DAY)
    monkeypatch.setattr(feeds, "MAX_FEEDS", 1)
    accepted(log.subscribe("erin", topic))
    accepted(log.subscribe("erin", topic))
    assert "you have 1 subscriptions" in refused(log, partial(log.subscribe, "erin", other))
    monkeypatch.setattr(feeds, "MAX_SUBSCRIBERS", 1)
    assert "1 subscribers" in refused(log, partial(log.subscribe, "alice", topic))
    accepted(log.unsubscribe("erin", topic))
    accepted(log.subscribe("alice", topic))
    accepted(log.subscribe("erin", other))


# --- what comes into it ---


def test_children_to_a_depth(log: Granting, topic: str) -> None:
    """T28: one queue for what is below a topic, down to a depth; what is registered later too."""
    accepted(log.subscribe("erin", topic, tree=True, depth=1))
    child = log.child(topic, lifetime=DAY, hosting=HOSTS)
    leaf = log.child(child, lifetime=DAY)
    assert log.gets("erin", topic, topic, child, leaf) == [True, True, False]
    assert reached(log, leaf) == set()
    accepted(log.subscribe("erin", topic, tree=True, depth=2))
    assert log.gets("erin", topic, topic, child, leaf) == [True, True, True]
    accepted(log.subscribe("erin", topic, tree=True))
    assert log.gets("erin", topic, topic, child, leaf) == [True, True, True]
    accepted(log.withdraw("alice", child))
    assert log.gets("erin", topic, topic, child, leaf) == [True, False, False]


def test_one_topic_alone(log: Granting, topic: str) -> None:
    """T28: without children, none come, whatever depth was named."""
    child = log.child(topic, lifetime=DAY)
    accepted(log.subscribe("erin", topic, depth=2))
    feed = log.feed(topic, "erin")
    assert (feed.single, feed.depth) == (True, None)
    assert log.gets("erin", topic, topic, child) == [True, False]


def test_of_a_tree_comes_what_one_may_read(log: Granting) -> None:
    """T28, T20: a right to each topic; none is needed to wait for what may be granted."""
    root = log.advertised("alice", lifetime=60 * DAY, hosting=HOSTS)
    mine, theirs = log.child(root, lifetime=DAY), log.child(root, "bob", lifetime=DAY)
    accepted(log.subscribe("carol", root, tree=True))
    assert log.gets("carol", root, root, mine, theirs) == [False] * 3
    grant = log.gave("alice", "carol", mine, "subscribe")
    log.gave("bob", "institution:south", theirs, "subscribe")
    assert log.gets("carol", root, root, mine, theirs) == [False, True, True]
    accepted(log.retract("alice", grant))
    assert log.gets("carol", root, root, mine, theirs) == [False, False, True]
    assert feeds.lasts(log.state, log.feed(root, "carol"), T0)


def test_what_is_not_seen_does_not_come(log: Granting) -> None:
    """T28, T27: a topic whose place is hidden, or one behind it; also with the right to it."""
    root = log.advertised("alice", lifetime=60 * DAY, hosting=HOSTS)
    hidden = log.child(root, lifetime=DAY, hosting=HOSTS, lists={"hierarchy_deny": ["carol"]})
    behind = log.child(hidden, lifetime=DAY)
    log.gave("alice", "*", root, "subscribe", tree=True)
    for who in ("carol", "dave"):
        accepted(log.subscribe(who, root, tree=True))
    assert log.gets("dave", root, root, hidden, behind) == [True, True, True]
    assert log.gets("carol", root, root, hidden, behind) == [True, False, False]
    accepted(log.subscribe("carol", behind))
    assert log.gets("carol", behind, behind) == [True], "the right to a topic needs no sight of its place"


def test_a_tree_that_one_no_longer_sees(log: Granting) -> None:
    """T28: alice gave away what only its owner sees. She owns and sees what is below it and in it, and gets it by itself alone."""
    root = log.advertised("alice", lifetime=60 * DAY, hosting=HOSTS, lists={"hierarchy_allow": ["bob"]})
    child = log.child(root, lifetime=DAY, lists={"hierarchy_allow": ["*"]})
    collection = log.collection("alice", **{**TAKES, "lists": {**LISTS, "discover_allow": ["bob"]}})
    put_into(log, collection, child)
    for subject in (root, collection):
        accepted(log.subscribe("alice", subject, tree=True))
        assert log.gets("alice", subject, child) == [True]
        outcome = log.hand_over("alice", subject, "bob")
        assert log.gets("alice", subject, child) == [False]
        assert child in looked_at(log.state, outcome)
    accepted(log.subscribe("alice", child))
    assert reached(log, child) == {("alice", child)}


def test_a_hidden_tree_cannot_be_followed(log: Granting) -> None:
    """T18: to whoever may not see it, it is absent."""
    root = log.advertised("alice", lifetime=DAY, lists={"hierarchy_deny": ["carol"]})
    collection = log.collection("alice", **{**TAKES, "lists": {**LISTS, "discover_deny": ["carol"]}})
    for uuid in (root, collection):
        told = refused(log, partial(log.subscribe, "carol", uuid, tree=True))
        absent = fresh_uuid()
        assert told.replace(uuid, absent) == refused(log, partial(log.subscribe, "carol", absent, tree=True))


def test_a_collections_topics(log: Granting) -> None:
    """T28: one queue for all of them, in collections inside too, to a depth, as they join and leave. It needs no `tree` to be said."""
    outer, middle, inner = (log.collection("alice", **TAKES) for _ in range(3))
    near, far = (log.advertised("alice", lifetime=DAY, hosting=HOSTS) for _ in range(2))
    child = log.child(near, lifetime=DAY)
    log.gave("alice", "carol", outer, "subscribe", tree=True)
    put_into(log, outer, near, middle)
    put_into(log, middle, inner)
    put_into(log, inner, far)
    accepted(log.subscribe("carol", outer))
    assert log.feed(outer, "carol").tree
    assert log.gets("carol", outer, near, far, child, outer) == [True, True, False, False]
    for depth, gets_far in ((1, False), (2, False), (3, True)):
        accepted(log.subscribe("carol", outer, tree=True, depth=depth))
        assert log.gets("carol", outer, near, far) == [True, gets_far]
    put_into(log, middle, far)
    accepted(log.subscribe("carol", outer, depth=2))
    assert log.gets("carol", outer, far) == [True], "the nearest way counts"
    accepted(log.change("remove", "alice", collection=outer, uuid=middle))
    assert log.gets("carol", outer, near, far) == [True, False]
    accepted(log.withdraw("alice", outer))
    assert log.gets("carol", outer, near, far) == [False, False]
    assert not feeds.lasts(log.state, log.feed(outer, "carol"), T0)


def test_hidden_collections_inside(log: Granting) -> None:
    """T28, T36: what is reached through one that one does not see does not come, though one may read it; on another way it does."""
    outer = log.collection("alice", **TAKES)
    hidden = log.collection("alice", **{**TAKES, "lists": {**LISTS, "discover_deny": ["carol"]}})
    shown = log.collection("alice", **TAKES)
    uuid, unseen = (
        log.advertised("alice", lifetime=DAY),
        log.advertised("alice", lifetime=DAY, lists={"discover_deny": ["carol"]}),
    )
    log.gave("alice", "*", outer, "subscribe", tree=True)
    put_into(log, outer, hidden, shown, unseen)
    put_into(log, hidden, uuid)
    for who in ("carol", "dave"):
        accepted(log.subscribe(who, outer))
    assert log.may("carol", "subscribe", uuid)
    assert log.gets("carol", outer, uuid, unseen) == [False, False]
    assert log.gets("dave", outer, uuid, unseen) == [True, True]
    assert reached(log, uuid) == {("dave", outer)}
    put_into(log, shown, uuid)
    assert log.gets("carol", outer, uuid) == [True]


def test_several_subscriptions_get_the_same(log: Granting, topic: str) -> None:
    """T28: each is a queue of its own."""
    child, collection = log.child(topic, lifetime=DAY), log.collection("alice", **TAKES)
    put_into(log, collection, child)
    for subject, tree in ((topic, True), (child, False), (collection, True)):
        accepted(log.subscribe("erin", subject, tree=tree))
    accepted(log.subscribe("alice", child))
    assert reached(log, child) == {("erin", topic), ("erin", child), ("erin", collection), ("alice", child)}


@pytest.mark.parametrize("tree", [True, False])
def test_of_somebody_revoked_or_expired(log: Granting, topic: str, tree: bool) -> None:
    """T21: nothing comes and nothing is read."""
    log.gave("alice", "dave", topic, "subscribe", **LONG)
    for who in ("dave", "erin"):
        accepted(log.subscribe(who, topic, tree=tree))
    accepted(log.revoke("erin"))
    late = T0 + 5 * HOUR + 31 * SECOND
    for who, at in (("erin", T0), ("dave", late)):
        assert log.gets(who, topic, topic, at=at) == [False]
        assert not feeds.lasts(log.state, log.feed(topic, who), at)
    log.certify("erin", 2)
    assert log.gets("erin", topic, topic) == [True]


# --- the queue ---


def test_a_queue_is_kept_while_the_right_lasts(log: Granting, topic: str) -> None:
    """T20: also when its grant was renewed, the depth is another, or the subscriber has another key."""
    child = log.child(topic, lifetime=DAY)
    accepted(log.subscribe("erin", child))
    queue = log.queue("erin", child)
    (grant,) = log.rests("erin", "subscribe", child)
    accepted(log.renew_grant(grant, at=T0 + SECOND, begins=T0, ends=T0 + 40 * DAY))
    accepted(log.subscribe("erin", child, at=T0 + SECOND))
    sender = log.certify("erin", 2)
    accepted(log.subscribe("erin", child, at=T0 + SECOND, sender=sender))
    assert log.queue("erin", child) == queue
    accepted(log.subscribe("alice", topic, tree=True, depth=1))
    queue = log.queue("alice", topic)
    accepted(log.subscribe("alice", topic, tree=True))
    assert log.queue("alice", topic) == queue
    assert not log.spaces("stale")["stale"]


def ended_and_given_again(log: Granting, uuid: str, how: str) -> None:
    """Erin's right to it ends, and she has one again."""
    (grant,) = log.rests("erin", "subscribe", uuid)
    if how == "retracted":
        accepted(log.retract("alice", grant))
    elif how == "expired":
        accepted(log.renew_grant(grant, at=T0 + SECOND, begins=T0, ends=T0 + MINUTE))
        log.tick(T0 + MINUTE)
    elif how == "the owner changed":
        log.hand_over("alice", uuid, "bob")
        log.gave("bob", "erin", uuid, "subscribe", **LONG)
    else:
        log.hand_over("alice", uuid, "bob", keep_grants=False)
        log.hand_over("bob", uuid, "erin", keep_grants=False)
        return
    if how in ("retracted", "expired"):
        log.gave("alice", "erin", uuid, "subscribe", begins=T0, ends=T0 + DAY)


@pytest.mark.parametrize("how", ["retracted", "expired", "the owner changed", "she owns it now"])
def test_a_queue_is_replaced_when_the_right_was_interrupted(log: Granting, topic: str, how: str) -> None:
    """T21: what came into it meanwhile was not for her. The old one is to go."""
    accepted(log.subscribe("erin", topic))
    old = log.queue("erin", topic)
    ended_and_given_again(log, topic, how)
    at = T0 + MINUTE
    assert log.may("erin", "subscribe", topic, at=at)
    assert not feeds.goes_on(log.state, log.feed(topic, "erin"), at)
    outcome = log.subscribe("erin", topic, at=at)
    accepted(outcome)
    assert log.queue("erin", topic) != old
    assert feeds.losses(outcome.writes).stale == {(topic, "erin", old)}
    assert log.state.get("stale", f"{topic} erin {old}") is not None
    assert [log.state.get("feeds", key) for key in ("of erin", f"to {topic}")] == [{"count": 1}] * 2


def test_a_queue_is_replaced_when_what_was_passed_on_was_interrupted(log: Granting) -> None:
    """T21: bob let alice's collection pass his topic on, then not, then again. What is below that lasted all the time."""
    collection, uuid = log.collection("alice", **TAKES), log.advertised("bob", lifetime=DAY)
    put_into(log, collection, uuid)
    log.gave("alice", "erin", collection, "subscribe", tree=True)
    passed = log.gave("bob", "alice", uuid, "subscribe", delegable=True)
    accepted(log.subscribe("erin", uuid))
    old = log.queue("erin", uuid)
    accepted(log.retract("bob", passed))
    assert not feeds.lasts(log.state, log.feed(uuid, "erin"), T0)
    log.gave("bob", "alice", uuid, "subscribe", delegable=True)
    accepted(log.subscribe("erin", uuid))
    assert log.queue("erin", uuid) != old


def test_an_owners_own_queue(log: Granting, topic: str) -> None:
    """T21: alice gave it away and has it again. It is not the time in which her queue was made."""
    accepted(log.subscribe("alice", topic))
    accepted(log.subscribe("alice", topic))
    old = log.queue("alice", topic)
    assert not log.spaces("stale")["stale"]
    log.hand_over("alice", topic, "bob")
    log.hand_over("bob", topic, "alice")
    accepted(log.subscribe("alice", topic))
    assert log.queue("alice", topic) != old


def test_a_tree_and_a_topic_are_different_queues(log: Granting, topic: str) -> None:
    """T28: what waits in a tree's queue is not only of the topic."""
    accepted(log.subscribe("erin", topic, tree=True))
    old = log.queue("erin", topic)
    outcome = log.subscribe("erin", topic)
    accepted(outcome)
    assert log.feed(topic, "erin").single
    assert feeds.losses(outcome.writes).stale == {(topic, "erin", old)}
    assert feeds.losses(outcome.writes).feeds == {(topic, "erin")}


# --- what a record touched ---


def touched_by(outcome: Outcome) -> feeds.Touched:
    assert outcome.status == "accepted", message_of(outcome)
    return feeds.losses(outcome.writes)


def test_most_records_take_nothing(log: Granting, topic: str) -> None:
    """T21: guards have no work with what only gives, or is about something else."""
    collection = log.collection("alice", **TAKES)
    put_into(log, collection, topic)
    log.child(topic)
    accepted(log.transfer("alice", topic, "bob"))
    accepted(log.open("alice", topic))
    accepted(log.change("watch", "alice", uuid=topic))
    accepted(log.put("renew", NET.renew(NET.entity("alice"), topic, 10 * DAY)))
    for outcome in log.outcomes[-7:]:
        assert not feeds.losses(outcome.writes), outcome.kind


def test_guards_look_where_somebody_lost_something(log: Granting, topic: str) -> None:
    """T21: at the topic, at the tree, at what left, at what ended, at what a revoked one had given or followed."""
    child = log.child(topic, lifetime=DAY)
    collection, uuid = log.collection("alice", **TAKES), log.advertised("alice", lifetime=DAY)
    put_into(log, collection, uuid)
    one, tree = log.gave("alice", "bob", topic), log.gave("alice", "bob", collection, tree=True)
    look = partial(looked_at, log.state)
    assert look(log.retract("alice", one)) == {topic}
    assert look(log.retract("alice", tree)) == {uuid}
    assert look(log.change("remove", "alice", collection=collection, uuid=uuid)) == {uuid}
    accepted(log.subscribe("erin", child))
    assert look(log.hand_over("alice", topic, "bob", keep_grants=True)) == {topic, child}
    revoked = log.revoke("erin")
    assert look(revoked) == {child}
    assert touched_by(revoked).entities == touched_by(revoked).certified == {"erin"}
    put_into(log, collection, uuid)
    assert look(log.revoke("alice")) == {topic, child, uuid}
    outcome = log.withdraw("bob", topic)
    assert look(outcome) == {topic, child}


def test_a_nested_collection_that_leaves(log: Granting) -> None:
    """T21: all that it holds, in others inside it too."""
    outer, inner, innermost = (log.collection("alice", **TAKES) for _ in range(3))
    first, second = (log.advertised("alice", lifetime=DAY) for _ in range(2))
    put_into(log, outer, inner)
    put_into(log, inner, first, innermost)
    put_into(log, innermost, second)
    assert looked_at(log.state, log.change("remove", "alice", collection=outer, uuid=inner)) == {first, second}


def test_a_grant_that_expires_is_looked_at_by_its_tick(log: Granting, topic: str) -> None:
    """T21: once."""
    log.gave("alice", "bob", topic)
    log.tick(T0 + HOUR, "n1")
    outcome = log.tick(T0 + HOUR, "n2")
    assert looked_at(log.state, outcome) == {topic}
    assert not feeds.losses(log.tick(T0 + HOUR + SECOND).writes)


@pytest.mark.parametrize("who", ["bob", "erin"])
def test_another_institution(log: Granting, topic: str, who: str) -> None:
    """T21: whoever comes with another certificate, of the same key or not, is asked about again, with all that it gave and follows."""
    log.gave("alice", "institution:north", topic, "publish")
    grant = log.gave("alice", "institution:north", topic, "subscribe", delegable=True)
    log.passed(who, "carol", grant)
    other = log.advertised("carol", lifetime=DAY)
    log.gave("carol", "institution:north", other, "subscribe")
    accepted(log.subscribe(who, other))
    accepted(log.subscribe("carol", topic))
    log.certify(who, 2)
    assert log.gets(who, other, other) == [False]
    assert log.gets("carol", topic, topic) == [False]
    outcome = log.outcomes[-1]
    assert touched_by(outcome).certified == {who}
    assert looked_at(log.state, outcome) == {topic, other}


def test_a_first_certificate_takes_no_work(log: Granting) -> None:
    """T21: a newcomer has nothing to lose."""
    for outcome in log.outcomes:
        assert looked_at(log.state, outcome) == set()
        assert not touched_by(outcome).entities


def test_kept_grants_end_with_their_new_owner(log: Granting, topic: str) -> None:
    """T21: alice gave it, bob kept it, bob is revoked: carol's right has ended, and the topic is looked at."""
    log.gave("alice", "carol", topic)
    log.hand_over("alice", topic, "bob", keep_grants=True)
    outcome = log.revoke("bob")
    assert not log.may("carol", "publish", topic)
    assert topic in looked_at(log.state, outcome)


def test_guards_look_where_the_rules_say(log: Granting, topic: str) -> None:
    """T21: the guard's own search for topics is this one."""
    child = log.child(topic, lifetime=DAY)
    log.gave("alice", "carol", topic, tree=True)
    accepted(log.subscribe("erin", child))
    log.hand_over("alice", topic, "bob", keep_grants=True)
    log.certify("erin", 2)
    for who in ("alice", "bob"):
        log.revoke(who)
    log.tick(T0 + 2 * HOUR)
    for outcome in log.outcomes[-9:]:
        assert looked_at_by_guards(log.state, outcome) == looked_at(log.state, outcome), outcome.kind


def test_a_certificate_runs_out_by_the_tick_that_says_so(log: Granting, topic: str) -> None:
    """T21: whichever second that is: whoever had a right before and has none after is looked at."""
    log.gave("alice", "dave", topic, **LONG)
    end = T0 + 5 * HOUR
    looked = []
    for at in (end, end + SECOND, end + 2 * SECOND):
        before = log.may("dave", "publish", topic)
        log.tick(at, "n1")
        outcome = log.tick(at, "n2")
        if before and not log.may("dave", "publish", topic):
            looked.append(touched_by(outcome).entities)
    assert looked == [{"dave"}]
