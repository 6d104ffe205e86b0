"""Grants in the log: who may give, pass on, renew and end them; topics that change hands; and what is cleared away."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from granting import Granting, TwoHouses, begin, granted, sign_grant
from little_network import DAY, HOUR, MINUTE, SECOND, Log, fresh_uuid, message_of
from pki import T0
from sound_trees import accepted, refused

from tdn.protocol.names import Role
from tdn.protocol.times import MAX_LIFETIME, format_time
from tdn.rules import grants
from tdn.rules.state import MemoryState, Outcome
from tdn.trust.replay import CLOCK_SKEW

NET = TwoHouses("granting")
HOSTS = {"allow_children": True}
TAKES: dict[str, Any] = {
    "child_collections": True,
    "inclusion": True,
    "lists": {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]},
    "lifetime": 60 * DAY,
}


@pytest.fixture
def log() -> Granting:
    return begin(NET)


@pytest.fixture
def topic(log: Granting) -> str:
    """Alice's."""
    return log.advertised("alice", lifetime=60 * DAY, hosting=HOSTS)


def replayed(log: Log) -> str:
    """The digest of a state to which all records were applied anew."""
    again = Log(log.net, MemoryState())
    for record in log.records:
        again.append(record.raw)
    return again.state.digest()


# --- giving ---


@pytest.mark.parametrize(
    ("to", "who"),
    [
        ("bob", {"bob"}),
        ("institution:north", {"bob", "erin"}),
        ("institution:south", {"carol", "dave"}),
        ("*", {"bob", "carol", "dave", "erin"}),
        ("institution:elsewhere", set()),
        ("institution:north pole", set()),
    ],
)
@pytest.mark.parametrize("right", ["publish", "subscribe"])
def test_an_owner_grants(log: Granting, topic: str, to: str, who: set[str], right: str) -> None:
    """T20: one right on one topic, to one entity, an institution or everyone; and nobody else has it, nor they another."""
    outcome = log.give("alice", to, topic, right)
    receipt = accepted(outcome)
    assert (receipt["uuid"], receipt["expires"]) == (topic, format_time(T0 + HOUR))
    other = "subscribe" if right == "publish" else "publish"
    people = ("bob", "carol", "dave", "erin")
    assert {name for name in people if log.may(name, right, topic)} == who
    assert not any(log.may(name, other, topic) for name in people)
    for name in who:
        basis = log.basis(name, right, topic)
        assert basis is not None
        assert (basis.grants, basis.until) == ((receipt["grant"],), format_time(T0 + HOUR))
    assert replayed(log) == log.state.digest()


def test_an_owner_needs_no_grant(log: Granting, topic: str) -> None:
    """T20: it publishes and subscribes as long as the topic lasts."""
    basis = log.basis("alice", "publish", topic)
    assert basis is not None
    assert (basis.grants, basis.until) == ((), log.topic(topic)["expires"])


@pytest.mark.parametrize("who", ["bob", "carol"])
def test_others_do_not_grant(log: Granting, topic: str, who: str) -> None:
    """T20: neither a neighbour nor a stranger; and the words are those for a topic that there is not."""
    told = refused(log, partial(log.give, who, "dave", topic))
    absent = fresh_uuid()
    assert told.replace(topic, absent) == refused(log, partial(log.give, who, "dave", absent))


def test_a_sibling_and_a_parent_do_not_grant(log: Granting, topic: str) -> None:
    """T20: owning the topic beside or above gives no word about this one."""
    child = log.child(topic, "bob", lifetime=DAY)
    log.child(topic, "carol", lifetime=DAY)
    for who in ("alice", "carol"):
        assert "no topic" in refused(log, partial(log.give, who, "dave", child))
    assert log.give("bob", "dave", child).status == "accepted"


def test_a_former_owner_does_not_grant(log: Granting, topic: str) -> None:
    """T20: nor renews; the one who owns it now does."""
    grant = log.gave("alice", "carol", topic)
    log.hand_over("alice", topic, "bob", keep_grants=True)
    assert "no topic" in refused(log, partial(log.give, "alice", "dave", topic))
    assert "no topic" in refused(log, partial(log.renew_grant, grant, at=T0 + SECOND, ends=T0 + 2 * HOUR))
    assert log.give("bob", "dave", topic).status == "accepted"


@pytest.mark.parametrize("role", ["node", "guard", "operator", "authority"])
def test_only_entities_grant(log: Granting, topic: str, role: str) -> None:
    """T20: not a node, a guard, the operator or a CA, whoever puts it into the log."""
    others = {
        "node": NET.node("n1"),
        "guard": NET.guard(),
        "operator": NET.operator,
        "authority": NET.pki.credentials(Role.ENTITY, "alice", institution="north", generation=7, not_before=T0 - DAY + HOUR),
    }
    outcome = log.give("alice", "bob", topic, by=others[role])
    assert outcome.status == "refused"
    assert not log.may("bob", "publish", topic)
    if role in ("node", "operator"):
        # Nor do they bring one along.
        assert log.give("alice", "bob", topic, sender=others[role]).status != "accepted"


def test_a_grant_that_names_another_issuer(log: Granting, topic: str) -> None:
    """T20: signed by mallory's key, with alice's name on it."""
    name = str(NET.entity("alice").identity.name)
    outcome = log.give("alice", "bob", topic, by=NET.entity("carol"), iss=name)
    assert outcome.error is not None
    assert (outcome.status, outcome.error["error"]) == ("refused", "trust")


def test_only_the_issuer_puts_it_into_the_log(log: Granting, topic: str) -> None:
    """T20: a grant that somebody found is of no use to it."""
    token = sign_grant(NET, NET.entity("alice"), log.name("bob"), "publish", topic, log.topic(topic)["digest"])
    assert "only its issuer" in refused(log, partial(log.hand_in, NET.entity("bob"), token))
    assert log.hand_in(NET.entity("alice"), token).status == "accepted"


def test_a_request_that_carries_another_grant(log: Granting, topic: str) -> None:
    token = sign_grant(NET, NET.entity("alice"), log.name("bob"), "publish", topic, log.topic(topic)["digest"])
    for other in ({"grant": "x" * 22}, {"uuid": fresh_uuid()}):
        assert "another grant" in refused(log, partial(log.hand_in, NET.entity("alice"), token, **other))
    bare = NET.request("give", {"grant": "x" * 22, "uuid": topic}, NET.entity("alice"))
    assert "carries no grant" in refused(log, lambda: log.put("give", bare))


def test_a_grant_of_another_network_or_topic(log: Granting, topic: str) -> None:
    """T20: it is bound to the network, the topic and its advertisement."""
    other = log.advertised("alice", lifetime=DAY)
    assert "another network" in message_of(log.give("alice", "bob", topic, aud=f"tdn:network:{'0' * 64}"))
    assert "another advertisement" in refused(
        log, partial(log.give, "alice", "bob", topic, rests_on=str(log.topic(other)["digest"]))
    )


def test_a_grant_comes_in_time(log: Granting, topic: str) -> None:
    """T20: not dated in the future beyond what clocks differ; within a day of its signing; not over already; not for ever."""
    ahead = T0 + CLOCK_SKEW
    token = partial(sign_grant, NET, NET.entity("alice"), log.name("bob"), "publish", topic, log.topic(topic)["digest"])
    hand_in = partial(log.hand_in, NET.entity("alice"))
    assert "in the future" in refused(log, lambda: hand_in(token(at=ahead + SECOND)))
    assert hand_in(token(at=ahead)).status == "accepted"
    old = {"at": T0, "ends": T0 + 3 * DAY}
    assert "more than a day ago" in refused(log, lambda: hand_in(token(**old), at=T0 + DAY + SECOND))
    assert hand_in(token(**old), at=T0 + DAY).status == "accepted"
    assert "ended already" in refused(log, lambda: hand_in(token(at=T0 + DAY, ends=T0 + DAY + SECOND), at=T0 + DAY + SECOND))
    longest = T0 + MAX_LIFETIME + CLOCK_SKEW
    assert f"{MAX_LIFETIME.days} days" in refused(log, lambda: hand_in(token(ends=longest + SECOND)))
    assert hand_in(token(ends=longest)).status == "accepted"


def test_log_time_counts_where_a_node_is_slow(log: Granting, topic: str) -> None:
    """T20: a node whose clock is behind takes no grant that has ended by log time."""
    log.tick(T0 + 2 * HOUR)
    assert "ended already" in refused(log, partial(log.give, "alice", "bob", topic, at=T0))


def test_the_grantee_must_be_known(log: Granting, topic: str) -> None:
    """T20: bound to its identity and key: somebody who never came, or comes with another key by now, or was revoked, gets nothing."""
    stranger = str(NET.pki.credentials(Role.ENTITY, "zoe").identity.name)
    assert "does not know entity zoe" in refused(log, partial(log.give, "alice", stranger, topic))
    rotated = str(NET.entity("erin", 2).identity.name)
    assert "another key" in refused(log, partial(log.give, "alice", rotated, topic))
    log.certify("erin")
    assert "another key" in refused(log, partial(log.give, "alice", "erin", topic))
    assert log.give("alice", rotated, topic).status == "accepted"
    log.revoke("carol")
    assert "does not know entity carol" in refused(log, partial(log.give, "alice", "carol", topic))


def test_not_to_oneself(log: Granting, topic: str) -> None:
    assert "oneself" in refused(log, partial(log.give, "alice", "alice", topic))


def test_a_collection_is_granted_as_a_tree(log: Granting) -> None:
    """T20: it carries no messages itself."""
    collection = log.collection("alice", **TAKES)
    assert "--tree" in refused(log, partial(log.give, "alice", "bob", collection))
    assert log.give("alice", "bob", collection, tree=True).status == "accepted"
    assert not log.may("bob", "publish", collection)


@pytest.mark.parametrize("end", ["withdrawn", "expired", "expired by the node's clock"])
def test_an_ended_topic_takes_no_grant(log: Granting, topic: str, end: str) -> None:
    """T20, T26: nor do the ones before give anything; and the words are those for a topic that there is not."""
    child = log.child(topic, "alice", lifetime=HOUR)
    log.gave("alice", "bob", child, ends=T0 + DAY)
    at = T0
    if end == "withdrawn":
        accepted(log.withdraw("alice", topic))
    else:
        at = T0 + HOUR
        assert log.may("bob", "publish", child, at=at - SECOND)
        if end == "expired":
            log.tick(at)
    assert not log.may("bob", "publish", child, at=at)
    assert not log.may("alice", "publish", child, at=at)
    told = refused(log, partial(log.give, "alice", "bob", child, at=at))
    absent = fresh_uuid()
    assert told.replace(child, absent) == refused(log, partial(log.give, "alice", "bob", absent, at=at))


def test_few_alike(log: Granting, topic: str) -> None:
    """T20: of one right on one thing for one grantee, sixteen count at once; of others there is room. One that is renewed needs none."""
    ids = [log.gave("alice", "bob", topic) for _ in range(grants.MAX_ALIKE)]
    assert f"{grants.MAX_ALIKE} grants" in refused(log, partial(log.give, "alice", "bob", topic))
    assert log.renew_grant(ids[0], at=T0 + SECOND).status == "accepted"
    for other in (("carol", topic, "publish"), ("bob", topic, "subscribe"), ("*", topic, "publish")):
        assert log.give("alice", *other).status == "accepted"
    accepted(log.retract("alice", ids[3]))
    assert log.give("alice", "bob", topic).status == "accepted"
    assert log.give("alice", "bob", topic).status == "refused"


def test_the_same_again_changes_nothing(log: Granting, topic: str) -> None:
    """T20: sent by two nodes, or by somebody who heard no answer."""
    token = sign_grant(NET, NET.entity("alice"), log.name("bob"), "publish", topic, log.topic(topic)["digest"])
    first = accepted(log.hand_in(NET.entity("alice"), token))
    before = log.grant(first["grant"])
    again = log.hand_in(NET.entity("alice"), token, at=T0 + MINUTE)
    assert accepted(again)["expires"] == first["expires"]
    assert {write.space for write in again.writes} == {"request", "ends"}
    assert log.grant(first["grant"]) == before


# --- renewing ---


def test_renewed_for_longer_and_for_shorter(log: Granting, topic: str) -> None:
    """T20: the same grant under the same id until another moment; the last one counts, and no end of an earlier one."""
    grant = log.gave("alice", "bob", topic, ends=T0 + HOUR)
    accepted(log.renew_grant(grant, at=T0 + SECOND, ends=T0 + 3 * HOUR))
    log.tick(T0 + 2 * HOUR)
    assert log.may("bob", "publish", topic)
    accepted(log.renew_grant(grant, at=T0 + 2 * HOUR, ends=T0 + 2 * HOUR + MINUTE))
    basis = log.basis("bob", "publish", topic)
    assert basis is not None
    assert basis.until == format_time(T0 + 2 * HOUR + MINUTE)
    log.tick(T0 + 2 * HOUR + MINUTE)
    assert not log.may("bob", "publish", topic)
    assert log.grant(grant)["state"] == "expired"
    assert replayed(log) == log.state.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"right": "subscribe"},
        {"to": "carol"},
        {"to": "*"},
        {"tree": True},
        {"delegable": True},
        {"other topic": True},
        {"who": "carol"},
    ],
)
def test_an_id_is_for_one_grant(log: Granting, topic: str, change: dict[str, Any]) -> None:
    """T20: nothing but its times changes under an id."""
    grant = log.gave("alice", "bob", topic)
    terms = {"who": "alice", "to": "bob", "right": "publish", **change}
    uuid = topic
    if terms.pop("other topic", False):
        uuid = log.advertised("alice", lifetime=DAY)
    if terms["who"] == "carol":
        uuid = log.advertised("carol", lifetime=DAY)
    what = (terms.pop("who"), terms.pop("to"), uuid, terms.pop("right"))
    assert "used for another grant" in refused(log, partial(log.give, *what, grant_id=grant, at=T0 + SECOND, **terms))


def test_an_id_with_another_parent(log: Granting, topic: str) -> None:
    first, second = (log.gave("alice", "bob", topic, delegable=True, ends=T0 + DAY) for _ in range(2))
    grant = log.passed("bob", "carol", first)
    outcome = partial(log.pass_on, "bob", "carol", second, grant_id=grant, at=T0 + SECOND)
    assert "used for another grant" in refused(log, outcome)


def test_renewals_are_taken_in_their_order(log: Granting, topic: str) -> None:
    """T20: an earlier text does not undo a later one, and two of the same second are told apart by their order in the log."""
    grant = log.gave("alice", "bob", topic, at=T0 + MINUTE, ends=T0 + DAY)
    for at in (T0 + MINUTE, T0):
        assert "renewed in between" in refused(log, partial(log.renew_grant, grant, at=at, ends=T0 + 2 * DAY))
    assert log.renew_grant(grant, at=T0 + MINUTE + SECOND, ends=T0 + 2 * DAY).status == "accepted"


@pytest.mark.parametrize("end", ["retracted", "expired", "expired by the node's clock"])
def test_what_has_ended_is_not_renewed(log: Granting, topic: str, end: str) -> None:
    """T21: an end is an end."""
    grant, at = log.gave("alice", "bob", topic), T0 + MINUTE
    if end == "retracted":
        accepted(log.retract("alice", grant))
    else:
        at = T0 + HOUR
        if end == "expired":
            log.tick(at)
    assert "has ended; give a new one" in refused(log, partial(log.renew_grant, grant, at=at))


# --- passing on ---


def test_passed_on(log: Granting, topic: str) -> None:
    """T20: from the owner to bob, from bob to carol, from carol to everyone; the decision names the whole chain."""
    first = log.gave("alice", "bob", topic, delegable=True)
    second = log.passed("bob", "carol", first, delegable=True, ends=T0 + 30 * MINUTE)
    third = log.passed("carol", "*", second, ends=T0 + 20 * MINUTE)
    assert log.rests("dave", "publish", topic) == (first, second, third)
    basis = log.basis("dave", "publish", topic)
    assert basis is not None
    assert basis.until == format_time(T0 + 20 * MINUTE)
    assert log.grant(third)["rests"] == [[grant["given"], grant["record"]] for grant in (log.grant(second), log.grant(first))]
    assert log.grant(third)["root"] == topic
    assert not log.may("dave", "subscribe", topic)


@pytest.mark.parametrize(
    ("wider", "why"),
    [
        ({"right": "subscribe"}, "narrower"),
        ({"tree": True}, "narrower"),
        ({"ends": T0 + HOUR + SECOND}, "nothing longer"),
        ({"begins": T0 - SECOND}, "nothing longer"),
        ({"uuid": "another"}, "does not cover"),
        ({"uuid": "below"}, "does not cover"),
        ({"uuid": "above"}, "does not cover"),
    ],
)
def test_never_wider(log: Granting, topic: str, wider: dict[str, Any], why: str) -> None:
    """T20: not another right, topic, tree or time than what it rests on."""
    child = log.child(topic, "alice", lifetime=DAY, hosting=HOSTS)
    named = {"another": log.advertised("alice", lifetime=DAY), "below": log.child(child, "alice", lifetime=DAY), "above": topic}
    grant = log.gave("alice", "bob", child, delegable=True)
    if "uuid" in wider:
        wider = {"uuid": named[wider["uuid"]]}
    assert why in refused(log, partial(log.pass_on, "bob", "carol", grant, **wider))
    assert log.pass_on("bob", "carol", grant).status == "accepted"


def test_narrower_within_a_tree(log: Granting, topic: str) -> None:
    """T20: of a tree one passes on a part, as a tree or as one topic."""
    child = log.child(topic, "alice", lifetime=DAY, hosting=HOSTS)
    leaf = log.child(child, "alice", lifetime=DAY)
    grant = log.gave("alice", "bob", topic, tree=True, delegable=True)
    part = log.passed("bob", "carol", grant, uuid=child, tree=True, delegable=True)
    one = log.passed("carol", "dave", part, uuid=leaf)
    assert [log.may("carol", "publish", uuid) for uuid in (topic, child, leaf)] == [False, True, True]
    assert [log.may("dave", "publish", uuid) for uuid in (topic, child, leaf)] == [False, False, True]
    assert log.rests("dave", "publish", leaf) == (grant, part, one)
    assert "does not cover" in refused(log, partial(log.pass_on, "carol", "dave", part, uuid=topic))


def test_only_what_may_be_passed_on(log: Granting, topic: str) -> None:
    """T20: and only by whom it is for; to anybody else it is as if there were none."""
    kept = log.gave("alice", "bob", topic)
    assert "may not be passed on" in refused(log, partial(log.pass_on, "bob", "carol", kept))
    grant = log.gave("alice", "bob", topic, delegable=True)
    told = refused(log, partial(log.pass_on, "erin", "carol", grant))
    absent = partial(log.give, "erin", "carol", topic, rests_on=("x" * 22, "A" * 43))
    assert told == refused(log, absent)
    # The owner's own word is its own grant, not one that it holds.
    assert refused(log, partial(log.pass_on, "alice", "carol", grant)) == told


def test_an_institutions_grant_is_passed_on_by_its_members(log: Granting, topic: str) -> None:
    """T20: while they are."""
    grant = log.gave("alice", "institution:north", topic, delegable=True)
    passed = log.passed("bob", "carol", grant)
    assert "no topic" in refused(log, partial(log.pass_on, "dave", "carol", grant))
    assert log.may("carol", "publish", topic)
    log.certify("bob", 2)
    assert not log.may("bob", "publish", topic)
    assert not log.may("carol", "publish", topic), "bob works elsewhere"
    assert "no topic" in refused(log, partial(log.pass_on, "bob", "carol", grant, at=T0 + SECOND))
    log.certify("bob", 3)
    assert log.rests("carol", "publish", topic) == (grant, passed)


@pytest.mark.parametrize("generation", [2, 3])
def test_a_certificate_of_before_is_no_way_back(log: Granting, topic: str, generation: int) -> None:
    """T20: bob has left; he signs a grant with the certificate that says that he has not."""
    log.certify("bob", 2)
    log.certify("bob", 3)
    grant = log.gave("alice", "institution:south", topic, delegable=True)
    outcome = partial(log.pass_on, "bob", "carol", grant, by=NET.entity("bob", 2), sender=NET.entity("bob", 3))
    assert "no topic" in refused(log, outcome)


def test_a_chain_of_eight_and_none_of_nine(log: Granting, topic: str) -> None:
    """T20: every decision follows the whole chain."""
    people = [Role.ENTITY.value + f"{number}" for number in range(9)]
    for name in people:
        log.put("hello", NET.hello(_newcomer(name)))
    chain = [granted(_hand(log, "alice", _newcomer(people[0]), topic, None))]
    for above, below in itertools.pairwise(people[:8]):
        chain.append(granted(_hand(log, above, _newcomer(below), topic, chain[-1])))
    assert len(chain) == 8
    assert log.rests(people[7], "publish", topic) == tuple(chain)
    assert "at most 7 times" in refused(log, partial(_hand, log, people[7], _newcomer(people[8]), topic, chain[-1]))
    accepted(log.retract("alice", chain[3]))
    assert [log.may(name, "publish", topic) for name in people[:8]] == [True] * 3 + [False] * 5


def _newcomer(name: str) -> Any:
    return NET.pki.credentials(Role.ENTITY, name, institution="west", not_before=T0 - DAY)


def _hand(log: Granting, who: str, to: Any, topic: str, above: str | None) -> Outcome:
    sender = NET.entity(who) if who == "alice" else _newcomer(who)
    rests_on = None if above is None else (above, str(log.grant(above)["digest"]))
    return log.give("", str(to.identity.name), topic, sender=sender, rests_on=rests_on, delegable=True)


def test_no_way_round(log: Granting, topic: str) -> None:
    """T20: a grant does not come back to somebody whom it comes from: not to the owner, not to one on the way."""
    first = log.gave("alice", "bob", topic, delegable=True)
    second = log.passed("bob", "carol", first, delegable=True)
    for back in ("alice", "bob"):
        assert "come back" in refused(log, partial(log.pass_on, "carol", back, second))
    assert "oneself" in refused(log, partial(log.pass_on, "carol", "carol", second))
    assert log.pass_on("carol", "dave", second).status == "accepted"


def test_the_present_text_of_what_it_rests_on(log: Granting, topic: str) -> None:
    """T20: whoever passes on a grant names it by its digest; after it was renewed, by the new one."""
    grant = log.gave("alice", "bob", topic, delegable=True)
    before = (grant, str(log.grant(grant)["digest"]))
    passed = log.passed("bob", "carol", grant)
    accepted(log.renew_grant(grant, at=T0 + SECOND, begins=T0, ends=T0 + 2 * HOUR))
    assert "renewed since" in refused(log, partial(log.pass_on, "bob", "dave", grant, at=T0 + SECOND, rests_on=before))
    assert log.may("carol", "publish", topic), "what was passed on rests on the grant, not on its text"
    accepted(log.renew_grant(passed, at=T0 + 2 * SECOND, ends=T0 + 2 * HOUR))
    assert log.grant(passed)["rests"] == [[log.grant(grant)["given"], log.grant(grant)["record"]]]


@pytest.mark.parametrize("end", ["retracted", "expired", "not begun"])
def test_nothing_is_passed_on_from_what_does_not_hold(log: Granting, topic: str, end: str) -> None:
    begins = T0 + MINUTE if end == "not begun" else T0
    grant, at = log.gave("alice", "bob", topic, delegable=True, begins=begins), T0
    if end == "retracted":
        accepted(log.retract("alice", grant))
    elif end == "expired":
        at = T0 + HOUR
    terms = {"at": at, "begins": max(at, begins), "ends": at + HOUR}
    assert "has ended, has not begun" in refused(log, partial(log.pass_on, "bob", "carol", grant, **terms))


# --- ending ---


def test_who_may_revoke(log: Granting, topic: str) -> None:
    """T21: its issuer, whoever issued one above it, the topic's owner, its holder; nobody else, who hears what it would of no grant."""
    for who, may in {"alice": True, "bob": True, "carol": True, "dave": True, "erin": False}.items():
        first = log.gave("alice", "bob", topic, delegable=True)
        second = log.passed("bob", "carol", first, delegable=True)
        third = log.passed("carol", "dave", second)
        if not may:
            told = refused(log, partial(log.retract, who, third))
            assert told.replace(third, "x" * 22) == refused(log, partial(log.retract, who, "x" * 22))
            continue
        accepted(log.retract(who, third))
        assert log.grant(third)["state"] == "revoked"
        assert not log.may("dave", "publish", topic)
        assert log.may("carol", "publish", topic)
        # Again, by somebody who heard no answer: nothing more happens.
        again = log.retract(who, third)
        assert accepted(again)["grant"] == third
        assert {write.space for write in again.writes} == {"request", "ends"}
        accepted(log.retract("alice", first))


def test_a_holder_below_does_not_revoke_what_is_above(log: Granting, topic: str) -> None:
    """T21: giving up is for oneself; and an institution's grant is nobody's to give up."""
    first = log.gave("alice", "bob", topic, delegable=True)
    second = log.passed("bob", "carol", first)
    assert "no grant" in refused(log, partial(log.retract, "carol", first))
    everyones = log.gave("alice", "institution:north", topic)
    assert "no grant" in refused(log, partial(log.retract, "erin", everyones))
    accepted(log.retract("carol", second))


def test_a_new_owner_revokes_what_was_before(log: Granting, topic: str) -> None:
    """T21: grants that it keeps are its to end; their former issuer may end them too."""
    kept = [log.gave("alice", "carol", topic) for _ in range(2)]
    log.hand_over("alice", topic, "bob", keep_grants=True)
    accepted(log.retract("bob", kept[0]))
    assert log.may("carol", "publish", topic)
    accepted(log.retract("alice", kept[1]))
    assert not log.may("carol", "publish", topic)


def test_an_ended_one_can_be_revoked_again(log: Granting, topic: str) -> None:
    """T21: whoever revokes one that has just expired hears that it is over."""
    grant = log.gave("alice", "bob", topic)
    log.tick(T0 + HOUR)
    assert accepted(log.retract("alice", grant, at=T0 + HOUR))["grant"] == grant
    assert log.grant(grant)["state"] == "expired"


@pytest.mark.parametrize("revoked", [True, False])
def test_nothing_is_left_over(log: Granting, topic: str, revoked: bool) -> None:
    """T20: an ended grant is listed for a while, then forgotten with all that told of it."""
    grant = log.gave("alice", "bob", topic, delegable=True)
    log.passed("bob", "institution:north", grant)
    if revoked:
        accepted(log.retract("alice", grant))
    spaces = ("grant", "granted", "issued", "held", "about")
    log.tick(T0 + HOUR)
    assert not log.spaces("granted")["granted"]
    assert {len(keys) for keys in log.spaces("grant", "issued", "held", "about").values()} == {2}
    log.tick(T0 + HOUR + grants.KEPT_FOR - SECOND)
    assert len(log.spaces("grant")["grant"]) == 2
    log.tick(T0 + HOUR + grants.KEPT_FOR)
    assert log.spaces(*spaces) == {space: [] for space in spaces}
    assert not [key for key in log.spaces("ends")["ends"] if " grant " in key]
    assert replayed(log) == log.state.digest()


def test_a_renewed_one_is_forgotten_by_its_last_end(log: Granting, topic: str) -> None:
    grant = log.gave("alice", "bob", topic)
    accepted(log.renew_grant(grant, at=T0 + SECOND, ends=T0 + 2 * HOUR))
    log.tick(T0 + HOUR + grants.KEPT_FOR)
    assert log.grant(grant)["state"] == "expired"
    log.tick(T0 + 2 * HOUR + grants.KEPT_FOR)
    assert log.state.get("grant", grant) is None


def test_a_forgotten_id_may_be_used_again(log: Granting, topic: str) -> None:
    """It is as if it had never been: nothing that rested on it is revived, because that was forgotten before or holds no longer."""
    first = log.gave("alice", "bob", topic, delegable=True)
    log.passed("bob", "carol", first)
    at = T0 + HOUR + grants.KEPT_FOR
    log.tick(at)
    accepted(log.give("alice", "bob", topic, at=at, grant_id=first, delegable=True))
    assert log.may("bob", "publish", topic)
    assert not log.may("carol", "publish", topic)


@pytest.mark.parametrize("reused", ["for another right", "not to be passed on", "for somebody else", "for another topic"])
def test_a_forgotten_id_revives_nothing_wider(log: Granting, topic: str, reused: str) -> None:
    """T20: carol's grant was shortened and forgotten before the one that she passed on has ended. Under its id bob gives another: erin has
    nothing by it that she could not be given now."""
    long = {"delegable": True, "ends": T0 + 50 * DAY}
    other = log.advertised("alice", lifetime=60 * DAY)
    above = log.gave("alice", "bob", topic, **long)
    middle = log.passed("bob", "carol", above, **long)
    log.passed("carol", "erin", middle, ends=T0 + 50 * DAY)
    accepted(log.renew_grant(middle, at=T0 + SECOND, begins=T0, ends=T0 + MINUTE))
    at = T0 + MINUTE + grants.KEPT_FOR
    log.tick(T0 + MINUTE)
    log.tick(at)
    assert log.state.get("grant", middle) is None
    long["at"] = at
    if reused == "for another right":
        accepted(log.retract("alice", above, at=at))
        above = log.gave("alice", "bob", topic, "subscribe", **long)
    if reused == "for another topic":
        above = log.gave("alice", "bob", other, **long)
    to = "dave" if reused == "for somebody else" else "carol"
    if to == "dave":
        log.certify("dave", 2, at=at)
    log.passed("bob", to, above, grant_id=middle, **{**long, "delegable": reused != "not to be passed on"})
    assert log.may(to, "subscribe" if reused == "for another right" else "publish", log.grant(middle)["topic"])
    assert not log.may("erin", "publish", topic)
    assert not log.may("erin", "publish", other)


# --- changing hands ---


def test_a_topic_changes_hands(log: Granting, topic: str) -> None:
    """Both agree; the owner before has no right left, and what it granted lapses, with all that rested on it."""
    grant = log.gave("alice", "carol", topic, delegable=True)
    log.passed("carol", "dave", grant)
    offer = accepted(log.transfer("alice", topic, "bob"))
    assert (offer["uuid"], offer["expires"]) == (topic, format_time(T0 + grants.OFFER_FOR))
    assert log.may("alice", "publish", topic)
    assert not log.may("bob", "publish", topic)
    assert accepted(log.accept("bob", topic))["owner"] == "bob"
    assert {who for who in ("alice", "bob", "carol", "dave") if log.may(who, "publish", topic)} == {"bob"}
    assert log.topic(topic)["owner"] == "bob"
    assert log.topic(topic)["creator"] == "alice"
    assert "offer" not in log.topic(topic)
    log.gave("bob", "alice", topic)
    assert log.may("alice", "publish", topic)
    assert replayed(log) == log.state.digest()


def test_a_new_owner_keeps_grants(log: Granting, topic: str) -> None:
    """It speaks for them from then on: through a later owner who keeps them, until one does not."""
    grant = log.gave("alice", "carol", topic, ends=T0 + DAY)
    log.hand_over("alice", topic, "bob", keep_grants=True)
    assert log.rests("carol", "publish", topic) == (grant,)
    second = log.gave("bob", "dave", topic, ends=T0 + DAY)
    log.hand_over("bob", topic, "erin", keep_grants=True)
    assert log.rests("carol", "publish", topic) == (grant,)
    assert log.rests("dave", "publish", topic) == (second,)
    log.hand_over("erin", topic, "bob", keep_grants=False)
    assert not log.may("carol", "publish", topic)
    assert not log.may("dave", "publish", topic), "bob owns it again, but that was another time"
    log.hand_over("bob", topic, "alice", keep_grants=True)
    assert not log.may("carol", "publish", topic), "what has lapsed does not come back"


def test_a_grant_of_an_earlier_time_cannot_be_renewed_into_this_one(log: Granting, topic: str) -> None:
    """Alice owns it again and renews what lapsed meanwhile: it stays lapsed. She gives a new one."""
    grant = log.gave("alice", "carol", topic, ends=T0 + DAY)
    log.hand_over("alice", topic, "bob")
    log.hand_over("bob", topic, "alice")
    log.renew_grant(grant, at=T0 + SECOND, begins=T0, ends=T0 + DAY)
    assert not log.may("carol", "publish", topic)
    log.gave("alice", "carol", topic, at=T0 + SECOND, begins=T0)
    assert log.may("carol", "publish", topic)


def test_offers(log: Granting, topic: str) -> None:
    """Only the owner offers, only to somebody who is there; the last offer counts, and it can be taken back."""
    told = refused(log, partial(log.transfer, "bob", topic, "carol"))
    absent = fresh_uuid()
    assert told.replace(topic, absent) == refused(log, partial(log.transfer, "bob", absent, "carol"))
    assert "does not know entity zoe" in refused(log, partial(log.transfer, "alice", topic, "zoe"))
    log.revoke("dave")
    assert "does not know entity dave" in refused(log, partial(log.transfer, "alice", topic, "dave"))
    accepted(log.transfer("alice", topic, "bob"))
    accepted(log.transfer("alice", topic, "carol"))
    assert "offered to you" in refused(log, partial(log.accept, "bob", topic))
    accepted(log.transfer("alice", topic, "alice"))
    assert "offered to you" in refused(log, partial(log.accept, "carol", topic))
    assert "offer" not in log.topic(topic)


def test_who_may_accept(log: Granting, topic: str) -> None:
    """Whom it was offered to, once, within a week; for anybody else there is no such topic, hidden or not."""
    hidden = log.advertised("alice", lifetime=60 * DAY, lists={"discover_allow": ["alice"]})
    told = refused(log, partial(log.accept, "carol", fresh_uuid()))
    for uuid in (topic, hidden):
        accepted(log.transfer("alice", uuid, "bob"))
        assert refused(log, partial(log.accept, "carol", uuid))[-60:] == told[-60:]
    accepted(log.accept("bob", hidden))
    assert "offered to you" in refused(log, partial(log.accept, "bob", hidden))
    late = T0 + grants.OFFER_FOR
    assert "7 days" in refused(log, partial(log.accept, "bob", topic, at=late))
    assert log.accept("bob", topic, at=late - SECOND).status == "accepted"


def test_an_ended_topic_changes_no_hands(log: Granting, topic: str) -> None:
    accepted(log.transfer("alice", topic, "bob"))
    accepted(log.withdraw("alice", topic))
    assert "offered to you" in refused(log, partial(log.accept, "bob", topic))
    assert "that you own" in refused(log, partial(log.transfer, "alice", topic, "bob"))


def test_an_offer_survives_other_changes(log: Granting, topic: str) -> None:
    """A renewal between offer and acceptance; and the new owner does what owners do."""
    accepted(log.transfer("alice", topic, "bob"))
    accepted(log.put("renew", NET.renew(NET.entity("alice"), topic, 20 * DAY)))
    accepted(log.accept("bob", topic))
    assert log.put("renew", NET.renew(NET.entity("alice"), topic, DAY)).status == "refused"
    accepted(log.put("renew", NET.renew(NET.entity("bob"), topic, 30 * DAY)))
    assert log.topic(topic)["epoch"] == 1
    accepted(log.withdraw("bob", topic))


def test_a_collection_changes_hands(log: Granting) -> None:
    """What it held of its owner was covered as the owner's own; the new one speaks for its own topics."""
    collection = log.collection("alice", **TAKES)
    hers, his = log.advertised("alice", lifetime=DAY), log.advertised("bob", lifetime=DAY)
    for who, uuid in (("alice", hers), ("bob", his)):
        accepted(log.change("add", who, collection=collection, uuid=uuid))
    log.gave("alice", "carol", collection, tree=True)
    assert [log.may("carol", "publish", uuid) for uuid in (hers, his)] == [True, False]
    log.hand_over("alice", collection, "bob", keep_grants=True)
    assert [log.may("carol", "publish", uuid) for uuid in (hers, his)] == [False, True]


def test_kept_is_noted_for_the_owner_who_kept(log: Granting, topic: str) -> None:
    """T21: so that guards find whose rights end with its certificate."""
    log.hand_over("alice", topic, "bob", keep_grants=True)
    assert log.spaces("kept") == {"kept": [f"bob {topic}"]}
    log.hand_over("bob", topic, "carol", keep_grants=True)
    assert log.spaces("kept") == {"kept": [f"carol {topic}"]}
    log.hand_over("carol", topic, "alice", keep_grants=False)
    assert log.spaces("kept") == {"kept": []}


def test_only_entities_ask(log: Granting, topic: str) -> None:
    """Nodes and the operator own, grant and read nothing."""
    bodies: dict[str, dict[str, Any]] = {
        "retract": {"grant": "x" * 22},
        "transfer": {"uuid": topic, "to": "bob"},
        "accept": {"uuid": topic, "keep_grants": False},
        "open": {"uuid": topic},
        "subscribe": {"uuid": topic, "tree": False},
        "unsubscribe": {"uuid": topic},
    }
    for kind, body in bodies.items():
        for sender in (NET.node("n1"), NET.operator):
            outcome = log.put(kind, NET.request(kind, body, sender))
            assert message_of(outcome) == "only an entity can do this"
