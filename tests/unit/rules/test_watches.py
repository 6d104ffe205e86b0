"""Following: each change that a watcher may see, once, numbered for it without holes; and nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, Log, fresh_uuid, message_of
from pki import T0
from sound_trees import accepted, check_sound, refused

from tdn.protocol import schemas
from tdn.protocol.names import Role
from tdn.protocol.times import format_time
from tdn.rules import clock, endings, watches
from tdn.rules.state import Outcome
from tdn.rules.watches import LEASE, told_by, told_since

PEOPLE = ("alice", "bob", "carol", "dave")
HOSTS = {"allow_children": True}
OPEN: dict[str, Any] = {
    "child_collections": True,
    "inclusion": True,
    "lists": {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]},
}


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    return net.log(PEOPLE)


def watch(log: Log, uuid: str, who: str = "bob", at: datetime = T0) -> Outcome:
    return log.change("watch", who, at=at, uuid=uuid)


def follow(log: Log, uuid: str, who: str = "bob") -> None:
    accepted(watch(log, uuid, who))


def add(log: Log, place: str, uuid: str, who: str = "alice") -> None:
    accepted(log.change("add", who, collection=place, uuid=uuid))


def remove(log: Log, place: str, uuid: str, who: str = "alice") -> None:
    accepted(log.change("remove", who, collection=place, uuid=uuid))


def withdraw(log: Log, uuid: str, who: str = "alice") -> None:
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity(who), uuid)))


def heard(log: Log, uuid: str, who: str = "bob", since: int = 0) -> list[tuple[str, str, str | None]]:
    """What a watcher was told: change, of what, in what. That versions have no holes is found on the way."""
    return [(told.fact["change"], told.fact["uuid"], told.fact.get("in")) for told in log.told(uuid, who, since)]


# --- T29: hierarchies ---


def test_additions_and_ends_below_a_followed_topic(log: Log) -> None:
    """T29: each in order, numbered from 1; children of children too, as they are registered later."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    receipt = accepted(watch(log, root))
    assert (receipt["uuid"], receipt["version"]) == (root, 0)
    child = log.child(root, hosting=HOSTS, lifetime=DAY)
    grandchild = log.child(child, "carol", lifetime=HOUR)
    log.tick(T0 + HOUR)
    withdraw(log, child)
    assert heard(log, root) == [
        ("added", child, root),
        ("added", grandchild, child),
        ("expired", grandchild, child),
        ("withdrawn", child, root),
    ]
    check_sound(log.state)


def test_what_was_before_is_not_told(log: Log) -> None:
    """T29: a watcher is told from the moment on in which the log took its watch."""
    root = log.advertised(hosting=HOSTS)
    log.child(root)
    follow(log, root)
    assert heard(log, root) == []
    child = log.child(root)
    assert heard(log, root) == [("added", child, root)]


def test_a_reserved_child_is_not_told(log: Log) -> None:
    """T29: it is added when it is advertised; one that never is, never."""
    root = log.advertised(hosting=HOSTS)
    follow(log, root)
    request = log.net.register(log.net.entity("alice"), root)
    accepted(log.put("register", request))
    log.tick(T0 + 2 * MINUTE)
    assert heard(log, root) == []


def test_a_hidden_change_leaves_no_hole(log: Log) -> None:
    """T29: numbers are each watcher's own; what one may not see has none for it, whichever list hides it."""
    root = log.advertised(hosting=HOSTS)
    for who in ("bob", "carol"):
        follow(log, root, who)
    first = log.child(root)
    hidden = [
        log.child(root, lists={"discover_deny": ["bob"]}),
        log.child(root, lists={"hierarchy_deny": ["bob"]}),
        log.child(root, lists={"discover_allow": ["carol"]}),
        log.child(root, lists={"hierarchy_allow": ["carol"]}),
    ]
    for uuid in hidden:
        withdraw(log, uuid)
    last = log.child(root)
    assert heard(log, root) == [("added", first, root), ("added", last, root)]
    assert [told.version for told in log.told(root, "bob")] == [1, 2]
    assert len(heard(log, root, "carol")) == 10
    check_sound(log.state)


def test_what_is_below_a_hidden_topic_is_not_told(log: Log) -> None:
    """T27, T29: all that is between must show, as when one looks; whoever follows below the hidden one is told."""
    root = log.advertised(hosting=HOSTS)
    hidden = log.child(root, hosting=HOSTS, lists={"hierarchy_allow": ["carol"]})
    widened = log.child(hidden, hosting=HOSTS, lists={"hierarchy_allow": ["*"]})
    follow(log, root)
    follow(log, root, "carol")
    follow(log, widened)
    grandchild = log.child(widened)
    assert heard(log, root) == []
    assert heard(log, widened) == [("added", grandchild, widened)]
    assert heard(log, root, "carol") == [("added", grandchild, widened)]


def test_a_bar_is_not_lifted_below(log: Log) -> None:
    """T27, T29: an allow list further down does not let in whom an ancestor bars."""
    root = log.advertised(hosting=HOSTS)
    barred = log.child(root, hosting=HOSTS, lists={"hierarchy_deny": ["bob"]})
    below = log.child(barred, hosting=HOSTS, lists={"hierarchy_allow": ["*"]})
    follow(log, root)
    assert refused(log, partial(watch, log, below)) == f"there is no {below} that you may follow"
    log.child(below)
    assert heard(log, root) == []


def test_an_owner_is_told_of_its_own_through_what_it_sees(log: Log) -> None:
    """T29: owning a topic below a hidden one does not show that there is a way to it."""
    root = log.advertised(hosting=HOSTS)
    hidden = log.child(root, hosting=HOSTS, lists={"discover_deny": ["bob"]})
    follow(log, root)
    word = log.net.countersign(log.net.entity("alice"), "register", hidden, "bob")
    own = log.child(hidden, "bob", countersigned=word)
    assert heard(log, root) == []
    follow(log, own)


def test_the_end_of_a_subtree_is_one_change(log: Log) -> None:
    """T29: whoever follows above is told of its root alone; who follows inside, of the end of what it follows."""
    root = log.advertised(hosting=HOSTS)
    child = log.child(root, hosting=HOSTS)
    grandchild = log.child(child, hosting=HOSTS)
    log.child(grandchild)
    for uuid in (root, child, grandchild):
        follow(log, uuid)
    withdraw(log, child)
    assert heard(log, root) == [("withdrawn", child, root)]
    assert heard(log, child) == [("withdrawn", child, None)]
    assert heard(log, grandchild) == [("expired", grandchild, None)]


def test_the_expiry_of_a_subtree_is_one_change(log: Log) -> None:
    """T29: also where all of it is due at one moment, in whatever order its UUIDs stand."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    child = child_as(log, fresh_uuid(2**40), root, hosting=HOSTS)
    child_as(log, fresh_uuid(2**39), child)
    child_as(log, fresh_uuid(2**41), child)
    follow(log, root)
    log.tick(T0 + HOUR)
    assert heard(log, root) == [("expired", child, root)]
    check_sound(log.state)


def child_as(log: Log, uuid: str, parent: str, **choices: Any) -> str:
    """A child of an hour with this UUID."""
    alice = log.net.entity("alice")
    request = log.net.register(alice, parent, **choices)
    outcome = log.put("register", request, minted={"uuid": uuid, "seed": "0" * 22})
    accepted(log.put("advertise", log.net.advertise(alice, log.net.mint_child(request, outcome))))
    return uuid


def test_a_subtree_that_settles_in_portions_is_still_one_change(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """T29: whatever a tick ends meanwhile."""
    monkeypatch.setattr(endings, "AT_ONCE", 3)
    monkeypatch.setattr(clock, "MAX_ENDS", 4)
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    child = log.child(root, hosting=HOSTS, lifetime=DAY)
    for number in range(12):
        log.child(child, lifetime=timedelta(seconds=10 + number))
    follow(log, root)
    withdraw(log, child)
    for number in range(12):
        log.tick(T0 + timedelta(seconds=number))
    assert heard(log, root) == [("withdrawn", child, root)]
    check_sound(log.state)


def test_a_shortened_topic_is_told_when_it_ends(log: Log) -> None:
    """T29: renewals are no change of the tree."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    child = log.child(root, lifetime=DAY)
    follow(log, root)
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), child, MINUTE)))
    assert heard(log, root) == []
    log.tick(T0 + MINUTE)
    assert heard(log, root) == [("expired", child, root)]


def test_the_end_of_what_is_followed_is_the_last_that_is_told(log: Log) -> None:
    """T29: then the network still knows it, for whoever was away."""
    root = log.advertised(hosting=HOSTS, lifetime=HOUR)
    follow(log, root)
    log.tick(T0 + HOUR)
    assert heard(log, root) == [("expired", root, None)]
    assert refused(log, partial(watch, log, root, at=T0 + HOUR)) == f"there is no {root} that you may follow"
    assert heard(log, root) == [("expired", root, None)]


def test_many_levels_that_one_entity_follows(log: Log) -> None:
    """T29: one change, a number of its own for each followed topic."""
    levels = [log.advertised(hosting=HOSTS)]
    for _ in range(9):
        levels.append(log.child(levels[-1], hosting=HOSTS))
    for uuid in levels:
        follow(log, uuid)
    follow(log, levels[0], "carol")
    leaf = log.child(levels[-1], lists={"discover_deny": ["carol"]})
    for uuid in levels:
        assert heard(log, uuid) == [("added", leaf, levels[-1])]
    assert heard(log, levels[0], "carol") == []


# --- T35: collections ---


def test_members_that_come_and_go(log: Log) -> None:
    """T35: topics and collections; removed, withdrawn, expired; a move is two changes."""
    place, other = log.collection(**OPEN, lifetime=DAY), log.collection(**OPEN, lifetime=DAY)
    follow(log, place)
    topics = [log.advertised(lifetime=lifetime) for lifetime in (DAY, DAY, HOUR, DAY)]
    inner = log.collection(**OPEN, lifetime=DAY)
    for uuid in (*topics, inner):
        add(log, place, uuid)
    remove(log, place, topics[0])
    withdraw(log, topics[1])
    accepted(log.change("move", "alice", uuid=topics[3], to=other, **{"from": place}))
    log.tick(T0 + HOUR)
    withdraw(log, inner)
    assert heard(log, place) == [
        *(("added", uuid, place) for uuid in (*topics, inner)),
        ("removed", topics[0], place),
        ("withdrawn", topics[1], place),
        ("removed", topics[3], place),
        ("expired", topics[2], place),
        ("withdrawn", inner, place),
    ]
    assert [told.fact["kind"] for told in log.told(place, "bob")][4] == "collection"
    check_sound(log.state)


def test_a_change_deep_in_the_tree_reaches_those_who_follow_the_root(log: Log) -> None:
    """T35: authority on a root covers its sub-collections, whatever their own watch lists say."""
    root = log.collection(**OPEN)
    closed = {**OPEN, "lists": {**OPEN["lists"], "watch_allow": ["alice"]}}
    middle, deep = log.collection(**closed), log.collection(**closed)
    add(log, root, middle)
    add(log, middle, deep)
    follow(log, root)
    assert refused(log, partial(watch, log, deep)) == f"there is no {deep} that you may follow"
    topic = log.advertised()
    add(log, deep, topic)
    remove(log, deep, topic)
    assert heard(log, root) == [("added", topic, deep), ("removed", topic, deep)]


def test_a_change_that_is_reached_by_two_ways_is_told_once(log: Log) -> None:
    """T35: once for each followed collection."""
    top, left, right, bottom = (log.collection(**OPEN) for _ in range(4))
    for place, uuid in ((top, left), (top, right), (left, bottom), (right, bottom)):
        add(log, place, uuid)
    for uuid in (top, left, bottom):
        follow(log, uuid)
    topic = log.advertised()
    add(log, bottom, topic)
    for uuid in (top, left, bottom):
        assert heard(log, uuid) == [("added", topic, bottom)]


def test_what_is_inside_a_hidden_collection_is_not_told(log: Log) -> None:
    """T35, T36: of a tree one is told what one reaches through collections that one sees; by another way it shows."""
    root = log.collection(**OPEN)
    secret = log.collection(**{**OPEN, "lists": {**OPEN["lists"], "discover_deny": ["bob"]}})
    inner = log.collection(**OPEN)
    add(log, root, secret)
    add(log, secret, inner)
    for who in ("bob", "carol"):
        follow(log, root, who)
    topic, other = log.advertised(), log.advertised()
    add(log, inner, topic)
    assert heard(log, root) == []
    add(log, root, inner)
    add(log, inner, other)
    assert heard(log, root) == [("added", inner, root), ("added", other, inner)]
    assert heard(log, root, "carol") == [("added", topic, inner), ("added", inner, root), ("added", other, inner)]
    hidden = log.advertised(lists={"discover_deny": ["bob"]})
    add(log, inner, hidden)
    remove(log, inner, hidden)
    assert len(heard(log, root)) == 2
    assert len(heard(log, root, "carol")) == 5


def test_an_end_names_the_place_that_the_watcher_sees(log: Log) -> None:
    """T29, T36: a topic in several collections ends. Who sees one of them is told of that one, as if there were no other."""
    seen, also = log.collection(), log.collection()
    secret = log.collection(lists={"discover_allow": ["alice"]})
    one, two, both = (log.advertised() for _ in range(3))
    for place, uuid in ((seen, one), (seen, two), (secret, two), (seen, both), (also, both)):
        add(log, place, uuid)
    follow(log, seen)
    for uuid in (one, two, both):
        withdraw(log, uuid)
    assert heard(log, seen) == [("withdrawn", one, seen), ("withdrawn", two, seen), ("withdrawn", both, None)]
    facts = [set(told.fact) for told in log.told(seen, "bob")]
    assert facts[0] == facts[1]


def test_first_members_are_told_to_nobody(log: Log) -> None:
    """T35: nobody can follow a collection before it is there."""
    topic = log.advertised()
    place = log.collection(fixed=True, members=[topic])
    follow(log, place)
    withdraw(log, topic)
    assert heard(log, place) == [("withdrawn", topic, place)]


def test_the_end_of_a_collection_is_one_change(log: Log) -> None:
    """T35: above it, that it is gone; to its own followers, the same, as the last. Its members are not counted off."""
    root, inner = log.collection(**OPEN), log.collection(**OPEN)
    add(log, root, inner)
    for _ in range(3):
        add(log, inner, log.advertised())
    for uuid in (root, inner):
        follow(log, uuid)
    withdraw(log, inner)
    log.tick(T0, "n1")
    assert heard(log, root) == [("withdrawn", inner, root)]
    assert heard(log, inner) == [("withdrawn", inner, None)]
    check_sound(log.state)


# --- who may follow ---


def test_who_may_follow(log: Log) -> None:
    """T29, T35: whoever sees the topic's place; whom a collection's watch lists admit. To others, the words for what there is not."""
    told = {}
    for name, uuid in {
        "topic": log.advertised(),
        "hidden topic": log.advertised(lists={"discover_allow": ["alice", "carol"]}),
        "hidden place": log.advertised(lists={"hierarchy_allow": ["carol"]}),
        "collection": log.collection(),
        "barred": log.collection(lists={"watch_deny": ["bob"]}),
        "chosen": log.collection(lists={"watch_allow": ["carol"]}),
        "seen by others": log.collection(lists={"watch_allow": ["*"], "discover_deny": ["bob"]}),
    }.items():
        told[name] = {who for who in PEOPLE if watch(log, uuid, who).status == "accepted"}
        if "bob" not in told[name]:
            assert refused(log, partial(watch, log, uuid)) == f"there is no {uuid} that you may follow"
    assert told == {
        "topic": set(PEOPLE),
        "hidden topic": {"alice", "carol"},
        "hidden place": {"alice", "carol"},
        "collection": set(PEOPLE),
        "barred": {"alice", "carol", "dave"},
        "chosen": {"alice", "carol"},
        "seen by others": {"alice", "carol", "dave"},
    }
    nowhere = fresh_uuid()
    assert refused(log, partial(watch, log, nowhere)) == f"there is no {nowhere} that you may follow"
    check_sound(log.state)


def test_a_watcher_that_is_revoked_is_told_nothing_more(log: Log) -> None:
    """T29, T35: it loses its authority with its certificate; the others are told as before."""
    root, place = log.advertised(hosting=HOSTS), log.collection()
    for uuid in (root, place):
        for who in ("bob", "carol"):
            follow(log, uuid, who)
    log.put("revoke", log.net.revoke("entity:bob", until=T0))
    log.child(root)
    add(log, place, log.advertised())
    for uuid in (root, place):
        assert (len(log.told(uuid, "bob")), len(log.told(uuid, "carol"))) == (0, 1)


def test_a_watcher_of_another_institution_sees_other_things(log: Log) -> None:
    """T29: with the certificate that it has when the change happens; its numbers go on."""
    net = log.net
    physics, arts = (
        net.pki.credentials(Role.ENTITY, "erin", institution=institution, generation=number, not_before=T0 - DAY + number * HOUR)
        for number, institution in enumerate(("Physics", "Arts"), start=1)
    )
    accepted(log.put("hello", net.hello(physics)))
    root = log.advertised(hosting=HOSTS)
    accepted(log.put("watch", net.request("watch", {"uuid": root}, physics)))
    lists = {"discover_allow": ["institution:Physics"]}
    first = log.child(root, lists=lists)
    accepted(log.put("hello", net.hello(arts)))
    log.child(root, lists=lists)
    last = log.child(root)
    assert heard(log, root, "erin") == [("added", first, root), ("added", last, root)]


# --- leases and numbers ---


def test_a_watch_lasts_a_month(log: Log) -> None:
    """T29: asked for again, it goes on counting and begins the month anew; then it is forgotten with all that was told."""
    root = log.advertised(hosting=HOSTS, lifetime=365 * DAY)
    assert accepted(watch(log, root))["expires"] == format_time(T0 + LEASE) == format_time(T0 + 30 * DAY)
    log.child(root)
    later = T0 + 20 * DAY
    log.tick(later)
    again = accepted(watch(log, root, at=later))
    assert (again["version"], again["expires"]) == (2, format_time(later + LEASE))
    log.tick(T0 + LEASE)
    log.child(root, at=T0 + LEASE)
    assert len(log.told(root, "bob")) == 3
    log.tick(later + LEASE)
    assert told_since(log.state, root, "bob", 0, 10) is None
    assert not list(log.state.all("change"))
    assert not list(log.state.all("watched"))
    check_sound(log.state)


def test_unwatch_ends_it_at_once(log: Log) -> None:
    """T29: what was told is forgotten; who follows again begins at 1."""
    place = log.collection()
    follow(log, place)
    for _ in range(3):
        add(log, place, log.advertised())
    receipt = accepted(log.change("unwatch", "bob", uuid=place))
    assert (receipt["uuid"], receipt["version"]) == (place, 3)
    assert told_since(log.state, place, "bob", 0, 10) is None
    check_sound(log.state)
    assert refused(log, lambda: log.change("unwatch", "bob", uuid=place)) == f"there is no {place} that you follow"
    assert accepted(watch(log, place))["version"] == 0
    topic = log.advertised()
    add(log, place, topic)
    assert heard(log, place) == [("added", topic, place)]
    log.tick(T0, "n1")
    assert heard(log, place) == [("added", topic, place)], "what is forgotten is what was told before"
    check_sound(log.state)


def test_unwatch_of_what_one_does_not_follow(log: Log) -> None:
    """T29: whether it is there, hidden or followed by others, the words are the same."""
    place = log.collection(lists={"discover_allow": ["alice", "carol"]})
    follow(log, place, "carol")
    for uuid in (place, log.advertised(), fresh_uuid()):
        assert refused(log, lambda uuid=uuid: log.change("unwatch", "bob", uuid=uuid)) == f"there is no {uuid} that you follow"


def test_what_was_told_is_kept_for_a_while(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """T29: the last so many; the numbers go on."""
    assert watches.KEPT_CHANGES == 10_000
    monkeypatch.setattr(watches, "KEPT_CHANGES", 5)
    place, topic = log.collection(), log.advertised()
    follow(log, place)
    for _ in range(4):
        add(log, place, topic)
        remove(log, place, topic)
    found = told_since(log.state, place, "bob", 0, 100)
    assert found is not None
    assert (found[0], [told.version for told in found[1]]) == (8, [4, 5, 6, 7, 8])
    check_sound(log.state)


def test_a_limit_of_what_is_asked_for(log: Log) -> None:
    """T29: the oldest first, from a version on."""
    place, topic = log.collection(), log.advertised()
    follow(log, place)
    for _ in range(3):
        add(log, place, topic)
        remove(log, place, topic)
    found = told_since(log.state, place, "bob", 2, 3)
    assert found is not None
    assert (found[0], [told.version for told in found[1]]) == (6, [3, 4, 5])
    assert told_since(log.state, place, "bob", 6, 3) == (6, [])


def test_more_watchers_than_there_may_be(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """T29: each costs every change; one that leaves makes room, and who follows already can ask again."""
    assert watches.MAX_WATCHERS == 256
    monkeypatch.setattr(watches, "MAX_WATCHERS", 2)
    place = log.collection()
    follow(log, place, "bob")
    follow(log, place, "carol")
    assert refused(log, partial(watch, log, place, "dave")) == f"{place} is followed by 2 entities; no more can"
    follow(log, place, "carol")
    accepted(log.change("unwatch", "bob", uuid=place))
    follow(log, place, "dave")
    check_sound(log.state)


def test_a_repeated_request_is_told_once(log: Log) -> None:
    """T22, T29: duplicates of the log change nothing, so they tell nothing."""
    place, topic = log.collection(), log.advertised()
    follow(log, place)
    raw = log.net.request("add", {"collection": place, "uuid": topic}, log.net.entity("alice"))
    for node in ("n1", "n2", "n3"):
        log.put("add", raw, by=node)
    assert heard(log, place) == [("added", topic, place)]


def test_a_refused_change_is_not_told(log: Log) -> None:
    """T29: not even its first half."""
    place, full = log.collection(), log.collection(limits={"breadth": 1})
    topic = log.advertised()
    add(log, place, topic)
    add(log, full, log.advertised())
    follow(log, place)
    outcome = log.change("move", "alice", uuid=topic, to=full, **{"from": place})
    assert "is full" in message_of(outcome)
    assert heard(log, place) == []


# --- what is signed ---


def test_what_a_records_writes_tell(log: Log) -> None:
    """T29: a node finds in an outcome whom to tell what; the payload fits its schema, and says where in the log it happened."""
    place, topic = log.collection(), log.advertised()
    for who in ("bob", "carol"):
        follow(log, place, who)
    outcome = log.change("add", "alice", collection=place, uuid=topic, at=T0 + SECOND)
    told = list(told_by(outcome.writes))
    assert [(change.subject, change.watcher, change.version) for change in told] == [(place, "bob", 1), (place, "carol", 1)]
    payload = told[0].payload(log.net.id)
    schemas.check("notification", payload)
    assert payload == {
        **{"v": 1, "network": log.net.id, "subject": place, "watcher": "bob", "version": 1, "change": "added"},
        **{"uuid": topic, "kind": "topic", "in": place, "seq": len(log.records), "at": format_time(T0 + SECOND)},
    }
    forgotten = log.change("unwatch", "bob", uuid=place)
    assert list(told_by(forgotten.writes)) == []


@pytest.mark.parametrize("role", ["node", "operator"])
def test_only_entities_follow(log: Log, role: str) -> None:
    sender = log.net.node("n2") if role == "node" else log.net.operator
    raw = log.net.request("watch", {"uuid": log.advertised()}, sender)
    assert refused(log, partial(log.put, "watch", raw)) == "only an entity can do this"
