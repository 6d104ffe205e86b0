"""Collections: what they take, from whom, under which limits of all above them on every path, and every way to ask wrongly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from little_network import HOUR, MINUTE, LittleNetwork, Log, fresh_uuid, message_of, payload_of, read_uuid
from pki import T0
from sound_trees import Counted, accepted, check_sound, refused

from tdn.errors import MalformedMessage, UsageError
from tdn.protocol.access import access, lists
from tdn.protocol.trees import MAX_FIRST_MEMBERS, check_limit
from tdn.rules import collections
from tdn.rules.apply import apply
from tdn.rules.sight import Sight, asker_of
from tdn.rules.state import EMPTY_HEAD, LogRecord, Outcome, Write

PEOPLE = ("alice", "bob", "carol", "dave")
#: A collection that others can use in every way.
OPEN: dict[str, Any] = {
    "child_collections": True,
    "inclusion": True,
    "lists": {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]},
}


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    return net.log(PEOPLE)


def add(log: Log, place: str, uuid: str, who: str = "alice", **body: Any) -> Outcome:
    return log.change("add", who, collection=place, uuid=uuid, **body)


def remove(log: Log, place: str, uuid: str, who: str = "alice") -> Outcome:
    return log.change("remove", who, collection=place, uuid=uuid)


def move(log: Log, uuid: str, source: str, target: str, who: str = "alice", **body: Any) -> Outcome:
    return log.change("move", who, uuid=uuid, to=target, **{"from": source}, **body)


def found(log: Log, who: str = "alice", **choices: Any) -> Outcome:
    """A collection that is created with members, judged."""
    creator = log.net.entity(who)
    options = {name: choices.pop(name, False) for name in ("fixed", "child_collections", "inclusion")}
    limits = {"breadth": 0, "depth": 0, "topics": 0, **choices.pop("limits", {})}
    countersigned = choices.pop("countersigned", None)
    token = log.net.mint(creator, gathering={**options, "limits": limits}, **choices)
    body: dict[str, Any] = {"uuid": read_uuid(token), "opening": log.net._openings[token]}
    if countersigned is not None:
        body["countersigned"] = countersigned
    return log.put("advertise", log.net.request("advertise", body, creator, tail=token))


def members(log: Log, place: str) -> set[str]:
    return {key.split(" ")[2] for key, _ in log.state.all("member") if key.startswith(place)}


def chain(log: Log, length: int, **choices: Any) -> list[str]:
    """Collections inside each other, the outermost first."""
    made = [log.collection(**OPEN, **choices) for _ in range(length)]
    for outer, inner in itertools.pairwise(made):
        accepted(add(log, outer, inner))
    return made


# --- T31: what it is ---


def test_a_collection_is_created_like_a_topic(log: Log) -> None:
    """T31: signed, with a UUID of its own and another for its change topic; with its lifetime, limits and options."""
    uuid = log.collection(limits={"breadth": 1, "depth": 2, "topics": 3}, lists={"discover_deny": ["dave"]})
    fact = log.topic(uuid)
    assert (fact["kind"], fact["owner"], fact["state"]) == ("collection", "alice", "live")
    gathering = dict(fact["gathering"])
    assert gathering.pop("notifications") != uuid
    assert gathering == {
        "fixed": False,
        "limits": {"breadth": 1, "depth": 2, "topics": 3},
        "child_collections": False,
        "inclusion": False,
    }
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), uuid, 2 * HOUR)))
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), uuid)))


def test_a_collection_that_is_advertised_as_a_topic(log: Log) -> None:
    """T31: what is signed and what is hidden are of one kind."""
    alice = log.net.entity("alice")
    topic = log.net.mint(alice)
    limits = {"breadth": 0, "depth": 0, "topics": 0}
    other = log.net.mint(
        alice, gathering={"fixed": False, "limits": limits, "child_collections": False, "inclusion": False}, uuid=read_uuid(topic)
    )
    assert payload_of(other)["kind"] == "collection"
    opening = log.net._openings[other]
    raw = log.net.advertise(alice, topic, opening=opening)
    assert message_of(log.put("advertise", raw)) == "the opening does not belong to the advertisement"


@pytest.mark.parametrize("name", ["breadth", "depth", "topics"])
@pytest.mark.parametrize("value", [-1, 1_000_001, 10**30, "3", "", 0.5, None, True, []])
def test_limits_that_are_negative_huge_or_no_numbers(log: Log, name: str, value: object) -> None:
    """T31: refused by the schema; nothing is minted."""
    limits = {"breadth": 0, "depth": 0, "topics": 0, name: value}
    gathering = {"fixed": False, "limits": limits, "child_collections": False, "inclusion": False}
    with pytest.raises(MalformedMessage, match=rf"gathering\.limits\.{name}"):
        log.net.create(log.net.entity("alice"), gathering=gathering)


@pytest.mark.parametrize("text", ["-1", "1000001", "3.0", "", "many", "1e3", "٣"])
def test_limits_as_a_person_writes_them(text: str) -> None:
    """T31: a clear answer before anything is sent."""
    with pytest.raises(UsageError, match="is no limit; write a whole number from 0"):
        check_limit(text)
    assert check_limit("1000000") == 1_000_000


# --- T33: the three requirements ---


def test_an_owner_adds_its_topic_to_its_collection(log: Log) -> None:
    """T33: the receipt names both; it is a member in both directions."""
    place, topic = log.collection(), log.advertised()
    receipt = accepted(add(log, place, topic))
    assert (receipt["collection"], receipt["uuid"]) == (place, topic)
    assert members(log, place) == {topic}
    check_sound(log.state)


def test_the_requester_owns_the_topic_or_has_its_owners_word(log: Log) -> None:
    """T33: someone else's topic is refused, also to the collection's owner; with a countersignature it is taken."""
    place = log.collection(lists={"owner_allow": ["*"]})
    topic = log.advertised("bob")
    assert refused(log, partial(add, log, place, topic)) == (
        f"only the owner of {topic}, or who has its countersignature, can put it into a collection"
    )
    word = log.net.countersign(log.net.entity("bob"), "include", topic, "alice")
    accepted(add(log, place, topic, countersigned=word))
    check_sound(log.state)


def test_the_collection_authorises_the_requester(log: Log) -> None:
    """T33: by default its owner alone; with a list, whoever is on it and not barred."""
    closed = log.collection(lists={"owner_allow": ["*"]})
    chosen = log.collection(lists={"owner_allow": ["*"], "add_allow": ["bob", "carol"], "add_deny": ["carol"]})
    barred = log.collection(lists={"owner_allow": ["*"], "add_deny": ["carol"]})
    topics = {who: log.advertised(who) for who in PEOPLE}
    allowed = {
        (name, who)
        for name, place in (("closed", closed), ("chosen", chosen), ("barred", barred))
        for who in PEOPLE
        if add(log, place, topics[who], who).status == "accepted"
    }
    assert allowed == {("closed", "alice"), ("chosen", "alice"), ("chosen", "bob"), ("barred", "alice")}
    assert refused(log, partial(add, log, closed, topics["bob"], "bob")) == f"you may not add to collection {closed}"


def test_whose_topics_a_collection_takes(log: Log) -> None:
    """T32: by default its owner's alone; with a list, those owners'. It is the topic's owner that counts, not who asks."""
    own = log.collection(lists={"add_allow": ["*"]})
    chosen = log.collection(lists={"add_allow": ["*"], "owner_allow": ["bob"], "owner_deny": ["carol"]})
    topics = {who: log.advertised(who) for who in PEOPLE}
    taken = {
        (name, who)
        for name, place in (("own", own), ("chosen", chosen))
        for who in PEOPLE
        if add(log, place, topics[who], who).status == "accepted"
    }
    assert taken == {("own", "alice"), ("chosen", "alice"), ("chosen", "bob")}
    assert refused(log, partial(add, log, own, topics["dave"], "dave")) == (
        f"collection {own}, or one above it, does not take topics of everybody; "
        "those that would come are not all of owners that it takes"
    )
    word = log.net.countersign(log.net.entity("dave"), "include", topics["dave"], "alice")
    assert "does not take topics of everybody" in refused(
        log, partial(add, log, own, topics["dave"], "alice", countersigned=word)
    )


def test_whose_topics_are_taken_is_asked_of_every_collection_above(log: Log) -> None:
    """T32, T33: an open collection inside one that takes alice's alone takes alice's alone; on one of two paths that is enough."""
    picky = log.collection(child_collections=True)
    relaxed, inner = log.collection(**OPEN), log.collection(**OPEN)
    accepted(add(log, relaxed, inner))
    bobs, hers = log.advertised("bob"), log.advertised()
    accepted(add(log, inner, bobs, "bob"))
    assert "does not take topics of everybody" in refused(log, partial(add, log, picky, inner))
    accepted(remove(log, inner, bobs, "bob"))
    accepted(add(log, picky, inner))
    assert f"collection {inner}, or one above it" in refused(log, partial(add, log, inner, bobs, "bob"))
    accepted(add(log, inner, hers))
    check_sound(log.state)


def test_an_owner_that_was_revoked_has_no_topics_to_be_taken(log: Log) -> None:
    """T32: whom a list means is what certificates say now."""
    place = log.collection(lists={"add_allow": ["*"], "owner_allow": ["bob"]})
    topic = log.advertised("bob")
    word = log.net.countersign(log.net.entity("bob"), "include", topic, "alice")
    log.put("revoke", log.net.revoke("entity:bob", until=T0))
    assert refused(log, partial(add, log, place, topic, countersigned=word)) == (
        f"only the owner of {topic}, or who has its countersignature, can put it into a collection"
    )


# --- T33: removing ---


def test_who_can_take_a_member_out(log: Log) -> None:
    """T33: its owner or the collection's; nobody else, however much it may add."""
    place = log.collection(**OPEN)
    topics = [log.advertised("bob") for _ in range(2)]
    for topic in topics:
        accepted(add(log, place, topic, "bob"))
    assert refused(log, partial(remove, log, place, topics[0], "carol")) == (
        f"only the owner of {topics[0]} or of collection {place} can take it out"
    )
    receipt = accepted(remove(log, place, topics[0], "bob"))
    assert (receipt["collection"], receipt["uuid"]) == (place, topics[0])
    accepted(remove(log, place, topics[1], "alice"))
    assert not members(log, place)
    check_sound(log.state)


def test_nobody_puts_a_topic_where_its_owner_does_not_see_it(log: Log) -> None:
    """T33: not even with its word: its owner could not take it out again."""
    place = log.collection(lists={"owner_allow": ["*"], "discover_deny": ["bob"]})
    topic = log.advertised("bob")
    word = log.net.countersign(log.net.entity("bob"), "include", topic, "alice")
    assert refused(log, partial(add, log, place, topic, countersigned=word)) == (
        f"{topic} cannot be put into a collection that its owner may not see"
    )
    check_sound(log.state)


def test_a_collections_owner_takes_out_what_is_hidden_from_it(log: Log) -> None:
    """T33: the member's lists do not keep it in."""
    place = log.collection(**OPEN)
    topic = log.advertised("bob", lists={"discover_allow": ["bob"]})
    accepted(add(log, place, topic, "bob"))
    accepted(remove(log, place, topic))


# --- bad input ---


def test_adding_twice(log: Log) -> None:
    """T33: the second time is refused, by whomever; the same request again is only told its outcome (T22)."""
    place, topic = log.collection(), log.advertised()
    raw = log.net.request("add", {"collection": place, "uuid": topic}, log.net.entity("alice"))
    accepted(log.put("add", raw))
    assert log.put("add", raw, by="n2").status == "repeated"
    assert refused(log, partial(add, log, place, topic)) == f"{topic} is in collection {place} already"
    check_sound(log.state)


def test_removing_what_is_absent(log: Log) -> None:
    """T33: what was never in, what was taken out before, what there is not: the same words."""
    place, other, out = log.collection(), log.advertised(), log.advertised()
    accepted(add(log, place, out))
    accepted(remove(log, place, out))
    for uuid in (other, out, fresh_uuid(), place):
        assert refused(log, partial(remove, log, place, uuid)) == (f"{uuid} is not in collection {place}, as far as you may see")


def test_unknown_members(log: Log) -> None:
    """T33: added, or named when the collection is created; then there is no collection."""
    nowhere = fresh_uuid()
    said = f"there is no {nowhere} that you may see; it may have ended"
    assert refused(log, partial(add, log, log.collection(), nowhere)) == said
    topic = log.advertised()
    assert refused(log, partial(found, log, members=[topic, nowhere])) == said


@pytest.mark.parametrize("how", ["withdrawn", "by the clock"])
def test_members_that_have_ended(log: Log, how: str) -> None:
    """T33: the same words as for one that there never was."""
    place = log.collection(lifetime=2 * HOUR)
    topic = log.advertised(lifetime=MINUTE)
    at = T0 + MINUTE
    if how == "withdrawn":
        at = T0
        accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), topic)))
    assert refused(log, lambda: log.change("add", "alice", at=at, collection=place, uuid=topic)) == (
        f"there is no {topic} that you may see; it may have ended"
    )


def test_a_collection_that_there_is_not(log: Log) -> None:
    """T33: unknown, ended and hidden are one; a topic is none."""
    topic, nowhere = log.advertised("bob"), fresh_uuid()
    ended = log.collection("bob")
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("bob"), ended)))
    hidden = log.collection(lists={"discover_allow": ["alice"], "add_allow": ["bob"], "owner_allow": ["*"]})
    for place in (nowhere, ended, hidden):
        said = f"there is no collection {place} that you may see; it may have ended"
        assert refused(log, partial(add, log, place, topic, "bob")) == said
        assert refused(log, partial(remove, log, place, topic, "bob")) == said
    other = log.advertised("bob")
    for act in (add, remove):
        assert refused(log, partial(act, log, other, topic, "bob")) == f"{other} is a topic; only a collection has members"


def test_a_collection_is_not_added_to_itself(log: Log) -> None:
    """T33: nor created with itself, which no request can name."""
    place = log.collection(**OPEN)
    assert refused(log, partial(add, log, place, place)) == f"collection {place} cannot be in itself"


def test_a_collection_that_is_minted_with_itself_as_a_member(log: Log) -> None:
    """T33: a rogue node knows the UUID beforehand; what it mints is refused."""
    uuid = fresh_uuid()
    outcome = partial(found, log, uuid=uuid, members=[uuid], child_collections=True, inclusion=True)
    assert refused(log, outcome) == f"collection {uuid} cannot be in itself"


def test_a_list_that_bars_its_own_creator(log: Log) -> None:
    """T32: a person is told; where it comes all the same, the owner still may, and its topics are taken."""
    with pytest.raises(UsageError, match=r"barred \(add\) names alice, its own creator"):
        access("alice", add=lists(deny=["alice"]))
    barred = {f"{subject}_deny": ["alice"] for subject in ("discover", "add", "owner", "watch", "include")}
    place = log.collection(child_collections=True, inclusion=True, lists=barred)
    accepted(add(log, place, log.advertised()))
    accepted(log.change("watch", "alice", uuid=place))
    accepted(add(log, log.collection(**OPEN), place))


def test_ten_thousand_names_in_a_list(log: Log) -> None:
    """T32: refused by the schema."""
    names = [f"entity-{number}" for number in range(10_000)]
    with pytest.raises(MalformedMessage, match=r"lists\.add_allow"):
        log.collection(lists={"add_allow": names})


# --- T32: fixed ---


def test_a_fixed_collection_never_changes(log: Log) -> None:
    """T32: its members are named when it is created; afterwards nobody adds, removes or moves, its owner included."""
    inside, outside = log.advertised(), log.advertised()
    fixed = str(accepted(found(log, fixed=True, members=[inside]))["uuid"])
    other = log.collection()
    accepted(add(log, other, outside))
    said = f"collection {fixed} is fixed; its members were named when it was created"
    assert refused(log, partial(add, log, fixed, outside)) == said
    assert refused(log, partial(remove, log, fixed, inside)) == said
    assert refused(log, partial(move, log, outside, other, fixed)) == said
    assert refused(log, partial(move, log, inside, fixed, other)) == said
    assert members(log, fixed) == {inside}
    check_sound(log.state)


def test_first_members_are_held_to_the_same_rules(log: Log) -> None:
    """T33: ownership, whose topics, limits; if one cannot join, there is no collection and the others are in nothing."""
    mine, bobs = [log.advertised() for _ in range(3)], log.advertised("bob")
    assert "only the owner of" in refused(log, partial(found, log, fixed=True, members=[*mine, bobs]))
    assert "at most 2 direct members" in refused(log, partial(found, log, members=mine, limits={"breadth": 2}))
    assert "at most 2 topics in its tree" in refused(log, partial(found, log, members=mine, limits={"topics": 2}))
    word = log.net.countersign(log.net.entity("bob"), "include", bobs, "alice")
    assert "does not take topics of everybody" in refused(
        log, partial(found, log, fixed=True, members=[*mine, bobs], countersigned=[word])
    )
    fixed = accepted(
        found(log, fixed=True, members=[*mine, bobs], countersigned=[word], lists={"owner_allow": ["bob"]}, limits={"topics": 4})
    )
    assert members(log, str(fixed["uuid"])) == {*mine, bobs}
    check_sound(log.state)


def test_a_fixed_collection_takes_only_fixed_ones(log: Log) -> None:
    """T32: otherwise it would change by what changes inside it."""
    loose = log.collection(inclusion=True)
    firm = str(accepted(found(log, fixed=True, inclusion=True, members=[log.advertised()]))["uuid"])
    outcome = partial(found, log, fixed=True, child_collections=True, members=[firm, loose])
    said = refused(log, outcome)
    assert said.startswith("collection ")
    assert said.endswith(f"is fixed, and collection {loose}, which is not, would change it")
    accepted(found(log, fixed=True, child_collections=True, members=[firm]))
    check_sound(log.state)


def test_a_thousand_first_members(log: Log) -> None:
    """T32: as many as a request holds; one more is refused by the schema."""
    topics = [fresh_uuid() for _ in range(MAX_FIRST_MEMBERS + 1)]
    template = log.topic(log.advertised())
    log.state.write(Outcome("accepted", "facts", tuple(Write("topic", uuid, template) for uuid in topics)))
    assert len(members(log, str(accepted(found(log, fixed=True, members=topics[1:]))["uuid"]))) == 1000
    with pytest.raises(MalformedMessage, match="members"):
        found(log, members=topics)


# --- T32: nesting ---


def test_nesting_has_to_be_allowed_by_both(log: Log) -> None:
    """T32: may have child collections; may be part of others. By default neither."""
    outer, inner = log.collection(child_collections=True), log.collection(inclusion=True)
    plain = log.collection()
    assert refused(log, partial(add, log, plain, inner)) == (
        f"collection {plain} takes no child collections; its creator did not allow them"
    )
    assert refused(log, partial(add, log, outer, plain)) == (
        f"collection {plain} cannot be part of others; its creator did not allow it"
    )
    accepted(add(log, outer, inner))
    check_sound(log.state)


def test_who_may_put_a_collection_into_others(log: Log) -> None:
    """T32: its owner; whom its include lists name, if they see it; who has its owner's word."""
    inner = log.collection("alice", inclusion=True, lists={"include_allow": ["bob", "dave"], "include_deny": ["dave"]})
    places = {who: log.collection(who, **OPEN) for who in PEOPLE}
    assert {who for who in PEOPLE if add(log, places[who], inner, who).status == "accepted"} == {"alice", "bob"}
    word = log.net.countersign(log.net.entity("alice"), "include", inner, "carol")
    accepted(add(log, places["carol"], inner, "carol", countersigned=word))
    hidden = log.collection("alice", inclusion=True, lists={"include_allow": ["bob"], "discover_deny": ["bob"]})
    assert refused(log, partial(add, log, places["bob"], hidden, "bob")) == (
        f"there is no {hidden} that you may see; it may have ended"
    )
    check_sound(log.state)


@pytest.mark.parametrize("length", [2, 3, 7])
def test_cycles_are_refused_at_any_depth(log: Log, length: int) -> None:
    """T33: a collection is never inside itself, by whatever way."""
    made = chain(log, length)
    assert refused(log, partial(add, log, made[-1], made[0])) == (
        f"collection {made[0]} holds {made[-1]}, so it cannot be put into it: a collection is never inside itself"
    )
    accepted(remove(log, made[0], made[1]))
    accepted(add(log, made[-1], made[0]))
    assert "never inside itself" in refused(log, partial(add, log, made[0], made[1]))
    check_sound(log.state)


def test_a_cycle_by_a_move(log: Log) -> None:
    """T33, T34: what is moved is held against what is above where it goes."""
    outer, middle, inner = chain(log, 3)
    assert "never inside itself" in refused(log, partial(move, log, middle, outer, inner))
    check_sound(log.state)


def test_a_diamond_is_no_cycle(log: Log) -> None:
    """T34: a collection in two others that are in one."""
    top, left, right, bottom = (log.collection(**OPEN) for _ in range(4))
    for place, uuid in ((top, left), (top, right), (left, bottom), (right, bottom)):
        accepted(add(log, place, uuid))
    assert "never inside itself" in refused(log, partial(add, log, bottom, top))
    check_sound(log.state)


# --- T33: limits at every ancestor on every path ---


def test_breadth_of_its_own(log: Log) -> None:
    """T31, T33: direct members, topics and collections together."""
    place = log.collection(**OPEN, limits={"breadth": 2})
    accepted(add(log, place, log.advertised()))
    accepted(add(log, place, log.collection(**OPEN)))
    for uuid in (log.advertised(), log.collection(**OPEN)):
        assert refused(log, partial(add, log, place, uuid)) == f"collection {place} is full: at most 2 direct members"
    check_sound(log.state)


def test_breadth_holds_for_every_collection_of_the_tree(log: Log) -> None:
    """T33: whoever set it further up is not told."""
    top = log.collection(**OPEN, limits={"breadth": 2})
    middle, bottom = log.collection(**OPEN), log.collection(**OPEN)
    accepted(add(log, top, middle))
    accepted(add(log, middle, bottom))
    for _ in range(2):
        accepted(add(log, bottom, log.advertised()))
    assert refused(log, partial(add, log, bottom, log.advertised())) == (
        f"collection {bottom} can take no more: a limit above it is reached"
    )
    broad = log.collection(**OPEN)
    for _ in range(3):
        accepted(add(log, broad, log.advertised()))
    assert refused(log, partial(add, log, middle, broad)) == (
        f"collection {broad} has a collection with too many members in its tree for collection {middle}"
    )
    check_sound(log.state)


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_depth_counts_levels_of_collections(log: Log, limit: int) -> None:
    """T31: its own included; topics are leaves and count for none."""
    made = [log.collection(**OPEN, limits={"depth": limit}), *(log.collection(**OPEN) for _ in range(limit))]
    for outer, inner in itertools.pairwise(made[:limit]):
        accepted(add(log, outer, inner))
    assert refused(log, partial(add, log, made[limit - 1], made[limit])) == (
        f"collection {made[limit]} would make the tree of collection {made[limit - 1]} too deep"
    )
    accepted(add(log, made[limit - 1], log.advertised()))
    check_sound(log.state)


def test_the_longest_way_up_counts(log: Log) -> None:
    """T33: on every path. By the short one there is room, by the long one there is not."""
    top = log.collection(**OPEN, limits={"depth": 4})
    one, two, bottom, extra, deeper = (log.collection(**OPEN) for _ in range(5))
    for place, uuid in ((top, bottom), (top, one), (one, two)):
        accepted(add(log, place, uuid))
    accepted(add(log, bottom, extra))
    assert "too deep" in refused(log, partial(add, log, two, bottom))
    accepted(remove(log, bottom, extra))
    accepted(add(log, two, bottom))
    assert "too deep" in refused(log, partial(add, log, bottom, extra))
    assert "too deep" in refused(log, partial(add, log, two, chain(log, 2)[0]))
    accepted(add(log, top, deeper))
    check_sound(log.state)


def test_total_topics_are_distinct(log: Log) -> None:
    """T31: a topic that is in by two ways counts once, and until the last is gone."""
    top = log.collection(**OPEN, limits={"topics": 2})
    left, right = log.collection(**OPEN), log.collection(**OPEN)
    for inner in (left, right):
        accepted(add(log, top, inner))
    topic, other = log.advertised(), log.advertised()
    for place in (left, right, top):
        accepted(add(log, place, topic))
    assert log.state.get("size", top) == {"members": 3, "topics": 1}
    accepted(add(log, left, other))
    third = log.advertised()
    assert refused(log, partial(add, log, right, third)) == (f"collection {right} can take no more: a limit above it is reached")
    assert refused(log, partial(add, log, top, third)) == f"collection {top} is full: at most 2 topics in its tree"
    accepted(remove(log, left, topic))
    accepted(remove(log, top, topic))
    assert "a limit above it" in refused(log, partial(add, log, right, third))
    accepted(remove(log, right, topic))
    accepted(add(log, right, third))
    check_sound(log.state)


def test_limits_hold_on_every_path(log: Log) -> None:
    """T33: a collection in two trees stays within the limits of both, also those of the one that is reached by two steps."""
    roomy, tight = log.collection(**OPEN, limits={"topics": 9}), log.collection(**OPEN, limits={"topics": 1})
    between, shared = log.collection(**OPEN), log.collection(**OPEN)
    for place, uuid in ((roomy, shared), (tight, between), (between, shared)):
        accepted(add(log, place, uuid))
    accepted(add(log, shared, log.advertised()))
    assert "a limit above it" in refused(log, partial(add, log, shared, log.advertised()))
    accepted(remove(log, between, shared))
    accepted(add(log, shared, log.advertised()))
    assert "a limit above it is reached" in refused(log, partial(add, log, between, shared))
    check_sound(log.state)


def test_a_collection_is_added_with_all_its_topics(log: Log) -> None:
    """T33: those that the tree has already count once."""
    top = log.collection(**OPEN, limits={"topics": 3})
    shared, fresh = log.advertised(), [log.advertised() for _ in range(3)]
    accepted(add(log, top, shared))
    inner = log.collection(**OPEN)
    for topic in (shared, *fresh[:2]):
        accepted(add(log, inner, topic))
    accepted(add(log, top, inner))
    assert log.state.get("size", top) == {"members": 2, "topics": 3}
    assert "a limit above it" in refused(log, partial(add, log, inner, fresh[2]))
    accepted(remove(log, top, inner))
    assert log.state.get("size", top) == {"members": 1, "topics": 1}
    check_sound(log.state)


# --- T34: many at once, and moved ---


def test_in_many_collections_at_once(log: Log) -> None:
    """T34: a topic, and a collection."""
    topic, inner = log.advertised(), log.collection(**OPEN)
    places = [log.collection(**OPEN) for _ in range(5)]
    for place in places:
        accepted(add(log, place, topic))
        accepted(add(log, place, inner))
    assert collections.containers(log.state, topic) == sorted(places)
    check_sound(log.state)


def test_moved(log: Log) -> None:
    """T34: out of one and into the other, in one step; what the first gives free, the second may need."""
    top = log.collection(**OPEN, limits={"topics": 1})
    source, target = log.collection(**OPEN), log.collection(**OPEN)
    for inner in (source, target):
        accepted(add(log, top, inner))
    topic = log.advertised()
    accepted(add(log, source, topic))
    receipt = accepted(move(log, topic, source, target))
    assert (receipt["collection"], receipt["uuid"]) == (target, topic)
    assert (members(log, source), members(log, target)) == (set(), {topic})
    assert log.state.get("size", top) == {"members": 2, "topics": 1}
    check_sound(log.state)


def test_a_move_is_whole_or_not_at_all(log: Log) -> None:
    """T34: where it cannot go, it stays where it is."""
    source, full = log.collection(), log.collection(limits={"breadth": 1})
    topic = log.advertised()
    accepted(add(log, source, topic))
    accepted(add(log, full, log.advertised()))
    assert refused(log, partial(move, log, topic, source, full)) == f"collection {full} is full: at most 1 direct members"
    assert refused(log, partial(move, log, topic, source, source)) == f"{topic} would be moved to where it is"
    assert refused(log, partial(move, log, topic, full, source)) == (
        f"{topic} is not in collection {full}, as far as you may see"
    )
    assert members(log, source) == {topic}
    check_sound(log.state)


def test_who_may_move(log: Log) -> None:
    """T34: whoever may take it out here and put it in there: the owner of the source alone may not."""
    source, target = log.collection("alice", **OPEN), log.collection("dave", **OPEN)
    topic = log.advertised("bob")
    accepted(add(log, source, topic, "bob"))
    assert "only the owner of" in refused(log, partial(move, log, topic, source, target, "carol"))
    assert "only the owner of" in refused(log, partial(move, log, topic, source, target, "alice"))
    word = log.net.countersign(log.net.entity("bob"), "include", topic, "alice")
    accepted(move(log, topic, source, target, "alice", countersigned=word))
    accepted(move(log, topic, target, source, "bob"))
    check_sound(log.state)


@pytest.mark.parametrize("kind", ["add", "remove", "move"])
@pytest.mark.parametrize("role", ["node", "operator"])
def test_only_entities_change_collections(log: Log, kind: str, role: str) -> None:
    sender = log.net.node("n2") if role == "node" else log.net.operator
    place, topic = log.collection(), log.advertised()
    body = {"uuid": topic, "from": place, "to": place} if kind == "move" else {"collection": place, "uuid": topic}
    raw = log.net.request(kind, body, sender)
    assert refused(log, partial(log.put, kind, raw)) == "only an entity can do this"


# --- bounds ---


def joined(log: Log, pairs: list[tuple[str, str]], kind: str) -> None:
    """Memberships as facts, of things that are there: what a thousand requests would have made."""
    writes = []
    size: dict[str, int] = {}
    for place, uuid in pairs:
        writes += [Write("member", f"{place} {kind} {uuid}", {}), Write("in", f"{uuid} {place}", {})]
        size[place] = size.get(place, 0) + 1
    writes += [Write("size", place, {"members": count}) for place, count in size.items()]
    log.state.write(Outcome("accepted", "facts", tuple(writes)))


def copies(log: Log, uuid: str, count: int) -> list[str]:
    """More of something that there is one of, as facts."""
    made = [fresh_uuid() for _ in range(count)]
    fact: Mapping[str, Any] = log.topic(uuid)
    ends = [Write("ends", f"{fact['expires']} topic {copy}", {}) for copy in made]
    log.state.write(Outcome("accepted", "facts", tuple([Write("topic", copy, fact) for copy in made] + ends)))
    return made


def test_collections_a_thousand_deep(log: Log) -> None:
    """T33: a clear answer at the bound; what is there can still be looked at, taken out and ended."""
    first = log.collection(**OPEN)
    made = [first, *copies(log, first, collections.MAX_ABOVE)]
    joined(log, list(itertools.pairwise(made)), "collection")
    topic = log.advertised()
    accepted(add(log, made[collections.MAX_ABOVE - 1], topic))
    assert refused(log, partial(add, log, made[-1], topic)) == (
        f"more than 1000 collections are above collection {made[-1]}; nothing more can be added to it"
    )
    outermost = log.collection(**OPEN)
    assert refused(log, partial(add, log, outermost, first)) == (
        f"collection {first} has more than 1000 collections in its tree; too many to be added at once"
    )
    asker = asker_of(log.state, "bob")
    assert asker is not None
    assert len(list(Sight(log.state, asker, T0).collections(first))) == 1000
    assert [seen.depth for seen in Sight(log.state, asker, T0).topics(first)] == [1000]
    assert len(list(Sight(log.state, asker, T0).containing(topic))) == 1000
    assert "never inside itself" in refused(log, partial(add, log, made[900], made[1]))
    accepted(remove(log, made[500], made[501]))
    accepted(add(log, outermost, first))
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), made[1])))
    assert log.state.get("size", first) is None


def test_more_topics_inside_than_are_looked_at(log: Log) -> None:
    """T33: only where somebody above asks how many or whose they are."""
    topic = log.advertised()
    large = log.collection(**OPEN)
    joined(log, [(large, uuid) for uuid in copies(log, topic, collections.MAX_TOPICS_INSIDE + 1)], "topic")
    limited, careless = log.collection(**OPEN, limits={"topics": 1_000_000}), log.collection(**OPEN)
    assert refused(log, partial(add, log, limited, large)) == (
        f"collection {large} has more than 10000 topics in its tree; too many to be added at once"
    )
    accepted(add(log, careless, large))


def test_in_a_thousand_collections(log: Log) -> None:
    """T34: a topic can be in so many; its end takes it out of all of them."""
    topic = log.advertised()
    first = log.collection()
    places = [first, *copies(log, first, collections.MAX_CONTAINERS - 1)]
    joined(log, [(place, topic) for place in places], "topic")
    assert refused(log, partial(add, log, log.collection(), topic)) == f"{topic} is in 1000 collections; no more can hold it"
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), topic)))
    check_sound(log.state)
    assert not list(log.state.all("member"))


def test_adding_reads_the_same_in_a_full_and_an_empty_collection(log: Log) -> None:
    """T33: what it looks at does not grow with the members that there are, nor does taking one out."""
    topic = log.advertised()
    reads: dict[tuple[str, int], int] = {}
    for count in (10, 3000):
        place = log.collection(limits={"breadth": 10_000, "topics": 10_000})
        inside = copies(log, topic, count)
        joined(log, [(place, uuid) for uuid in inside], "topic")
        log.state.write(Outcome("accepted", "facts", (Write("size", place, {"members": count, "topics": count}),)))
        for kind, uuid in (("add", log.advertised()), ("remove", inside[count // 2])):
            raw = log.net.record(kind, log.net.request(kind, {"collection": place, "uuid": uuid}, log.net.entity("alice")))
            counted = Counted(log.state)
            assert apply(counted, LogRecord(len(log.records) + 1, EMPTY_HEAD, raw)).status == "accepted"
            reads[kind, count] = counted.reads
    assert reads["add", 10] == reads["add", 3000]
    assert reads["remove", 10] == reads["remove", 3000]
