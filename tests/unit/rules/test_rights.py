"""Who may publish and subscribe: trees, times, chains, revoked certificates; and what one question may cost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from granting import Granting, TwoHouses, begin, granted
from little_network import DAY, HOUR, MINUTE, SECOND
from pki import T0
from sound_trees import Counted, StoredLog, accepted

from tdn.protocol.access import Asker
from tdn.rules.rights import MAX_LOOKS, MAX_WAYS, Basis, Rights, topics_in, who_key
from tdn.rules.state import MemoryState, Outcome, Write

NET = TwoHouses("rights")
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


def put_into(log: Granting, collection: str, *uuids: str) -> None:
    for uuid in uuids:
        accepted(log.change("add", log.topic(uuid)["owner"], collection=collection, uuid=uuid))


# --- times ---


def test_from_and_until_to_the_second(log: Granting, topic: str) -> None:
    """T20: by log time and by the reader's clock alike; a fraction of a second does not count."""
    log.gave("alice", "bob", topic, begins=T0 + MINUTE, ends=T0 + HOUR)
    moments = {
        T0: False,
        T0 + MINUTE - timedelta(microseconds=1): False,
        T0 + MINUTE: True,
        T0 + HOUR - timedelta(microseconds=1): True,
        T0 + HOUR: False,
    }
    assert {at: log.may("bob", "publish", topic, at=at) for at in moments} == moments
    log.tick(T0 + MINUTE)
    assert log.may("bob", "publish", topic)
    log.tick(T0 + HOUR)
    assert not log.may("bob", "publish", topic)
    assert not log.may("bob", "publish", topic, at=T0 + 10 * MINUTE), "what log time has ended, no slow clock revives"


def test_a_certificate_that_has_run_out(log: Granting, topic: str) -> None:
    """T21: a connection outlives it, a right does not; what its holder granted while it was valid stays."""
    grant = log.gave("alice", "dave", topic, delegable=True, ends=T0 + DAY)
    log.passed("dave", "carol", grant, ends=T0 + DAY)
    mine = log.advertised("dave", lifetime=DAY)
    end = T0 + 5 * HOUR
    for uuid in (topic, mine):
        assert log.may("dave", "publish", uuid, at=end - SECOND)
        assert not log.may("dave", "publish", uuid, at=end + SECOND)
    assert log.may("carol", "publish", topic, at=end + SECOND)
    log.certify("dave", 2)
    assert log.may("dave", "publish", topic, at=end + SECOND)


# --- identities ---


def test_a_grant_is_the_entitys_whatever_its_key(log: Granting, topic: str) -> None:
    """T20: given to one key, it holds for the next one of the same entity."""
    log.gave("alice", "carol", topic)
    log.certify("carol", 2)
    assert log.may("carol", "publish", topic)


def test_nobody_is_meant_who_is_no_entity(log: Granting, topic: str) -> None:
    """T20: a node asks as one without an id. `*` means entities."""
    log.gave("alice", "*", topic)
    assert Rights(log.state, T0).basis(Asker(None, "north"), "publish", topic) is None


def test_a_revoked_grantee(log: Granting, topic: str) -> None:
    """T21: it has nothing while it is revoked; certified again, what it was granted before."""
    log.gave("alice", "carol", topic)
    accepted(log.revoke("carol"))
    assert not log.may("carol", "publish", topic)
    log.certify("carol", 2)
    assert log.may("carol", "publish", topic)


@pytest.mark.parametrize("who", ["alice", "bob", "carol"])
def test_a_revoked_issuer(log: Granting, topic: str, who: str) -> None:
    """T21: whether owner or in the middle: what it gave, and all that rests on it, gives nothing while it is revoked."""
    first = log.gave("alice", "bob", topic, delegable=True)
    second = log.passed("bob", "carol", first, delegable=True)
    third = log.passed("carol", "erin", second)
    people = ("alice", "bob", "carol", "erin")
    accepted(log.revoke(who))
    before = people.index(who)
    assert [log.may(name, "publish", topic) for name in people] == [name in people[:before] for name in people]
    log.certify(who, 3 if who == "bob" else 2)
    assert log.rests("erin", "publish", topic) == (first, second, third)


def test_an_owner_who_kept_grants_is_behind_them(log: Granting, topic: str) -> None:
    """T21: not their issuer, who may be gone; and when the owner is revoked they give nothing."""
    log.gave("alice", "carol", topic)
    log.hand_over("alice", topic, "bob", keep_grants=True)
    accepted(log.revoke("alice"))
    assert log.may("carol", "publish", topic)
    accepted(log.revoke("bob"))
    assert not log.may("carol", "publish", topic)


def test_an_entity_that_leaves_its_institution(log: Granting, topic: str) -> None:
    """T20: with the same key or another, what the institution was granted is no longer its."""
    log.gave("alice", "institution:north", topic)
    for who in ("bob", "erin"):
        assert log.may(who, "publish", topic)
        log.certify(who, 2)
        assert not log.may(who, "publish", topic)


def test_institutions_with_odd_names(log: Granting, topic: str) -> None:
    """T20: one with spaces, percent signs or tildes is meant by exactly its own name."""
    odd = ["north pole", "north%20pole", "north", "~", "a b c", "*"]
    for name in odd:
        log.gave("alice", f"institution:{name}", topic, "subscribe")
    assert len({who_key(f"institution:{name}") for name in odd}) == len(odd)
    for name in (*odd, "north pol", "pole"):
        found = Rights(log.state, T0).basis(Asker("zoe", name), "subscribe", topic)
        assert (found is not None) == (name in odd), name


def test_a_store_answers_alike(log: Granting, topic: str, tmp_path: Path) -> None:
    """T20: what is decided in memory is decided on disk, for names in any alphabet."""
    for name in ("north pole", "Ærø ~", "北", "a%b"):
        log.gave("alice", f"institution:{name}", topic, "subscribe")
    grant = log.gave("alice", "institution:north", topic, delegable=True)
    log.passed("bob", "carol", grant)
    accepted(log.subscribe("alice", topic, tree=True))
    log.hand_over("alice", topic, "erin", keep_grants=True)
    log.tick(T0 + MINUTE)
    stored = StoredLog(log, tmp_path / "store.sqlite")
    assert stored.view.digest() == log.state.digest()
    for institution in ("north pole", "Ærø ~", "北", "a%b", "north", "Ærø", "a"):
        for right in ("publish", "subscribe"):
            answers = [Rights(state, T0).basis(Asker("carol", institution), right, topic) for state in (log.state, stored.reader)]
            assert answers[0] == answers[1]
    stored.close()


# --- chains that lose a link ---


@pytest.mark.parametrize("how", ["retracted", "expired", "renewed shorter", "not yet"])
def test_nothing_holds_without_what_it_rests_on(log: Granting, topic: str, how: str) -> None:
    """T21: at once, and without anything being written about it."""
    first = log.gave("alice", "bob", topic, delegable=True, ends=T0 + 10 * MINUTE)
    second = log.passed("bob", "carol", first, delegable=True, ends=T0 + 5 * MINUTE)
    third = log.passed("carol", "erin", second, ends=T0 + 5 * MINUTE)
    assert log.may("erin", "publish", topic)
    if how == "retracted":
        accepted(log.retract("bob", second))
    elif how == "expired":
        log.tick(T0 + 10 * MINUTE)
    elif how == "renewed shorter":
        accepted(log.renew_grant(first, at=T0 + SECOND, begins=T0, ends=T0 + MINUTE))
        assert log.may("erin", "publish", topic)
        log.tick(T0 + MINUTE)
    else:
        accepted(log.renew_grant(first, at=T0 + SECOND, begins=T0 + 2 * MINUTE, ends=T0 + 10 * MINUTE))
    assert not log.may("erin", "publish", topic)
    assert log.grant(third)["state"] == ("expired" if how == "expired" else "live")
    if how == "not yet":
        assert log.may("erin", "publish", topic, at=T0 + 2 * MINUTE)


def test_another_way_remains(log: Granting, topic: str) -> None:
    """T21: who has two grants loses one of them and may go on; the decision names the other."""
    lost = log.gave("alice", "bob", topic)
    kept = log.gave("alice", "institution:north", topic)
    assert log.rests("bob", "publish", topic) == (lost,)
    accepted(log.retract("alice", lost))
    assert log.rests("bob", "publish", topic) == (kept,)


# --- trees ---


def test_a_hierarchy(log: Granting, topic: str) -> None:
    """T20: a grant on a tree is for the topic and all below it that the grantor owns, also what comes later; not for what is above."""
    child = log.child(topic, "alice", lifetime=DAY, hosting=HOSTS)
    grant = log.gave("alice", "carol", child, tree=True)
    leaf = log.child(child, "alice", lifetime=DAY)
    assert [log.may("carol", "publish", uuid) for uuid in (topic, child, leaf)] == [False, True, True]
    assert log.rests("carol", "publish", leaf) == (grant,)
    accepted(log.withdraw("alice", child))
    assert not log.may("carol", "publish", leaf)


def test_not_a_tree(log: Granting, topic: str) -> None:
    """T20: without it, one topic and nothing below."""
    child = log.child(topic, "alice", lifetime=DAY)
    log.gave("alice", "carol", topic)
    assert not log.may("carol", "publish", child)


def test_topics_of_others_in_a_tree(log: Granting, topic: str) -> None:
    """T20: are covered where their owner passed that right on to the grantor; revoked or not delegable, they are not."""
    child = log.child(topic, "bob", lifetime=DAY, hosting=HOSTS)
    leaf = log.child(child, "bob", lifetime=DAY)
    tree = log.gave("alice", "carol", topic, tree=True)
    assert not log.may("carol", "publish", child)
    log.gave("bob", "alice", child)
    assert not log.may("carol", "publish", child), "alice may not pass it on"
    log.gave("bob", "alice", child, "subscribe", delegable=True)
    assert not log.may("carol", "publish", child), "that is another right"
    passed = log.gave("bob", "alice", child, delegable=True)
    assert log.rests("carol", "publish", child) == (passed, tree)
    assert not log.may("carol", "publish", leaf), "only one topic was passed on"
    whole = log.gave("bob", "institution:north", child, tree=True, delegable=True)
    assert log.rests("carol", "publish", leaf) == (whole, tree)
    accepted(log.retract("bob", whole))
    accepted(log.retract("bob", passed))
    assert not log.may("carol", "publish", child)
    assert not log.may("carol", "publish", leaf)


def test_passed_on_through_two_owners_of_trees(log: Granting) -> None:
    """T20: carol's topic, in bob's collection, in alice's: each let the next pass it on."""
    outer, inner = log.collection("alice", **TAKES), log.collection("bob", **TAKES)
    uuid = log.advertised("carol", lifetime=DAY)
    put_into(log, inner, uuid)
    put_into(log, outer, inner)
    tree = log.gave("alice", "erin", outer, tree=True)
    middle = log.gave("bob", "alice", inner, tree=True, delegable=True)
    assert not log.may("erin", "publish", uuid)
    first = log.gave("carol", "bob", uuid, delegable=True)
    assert log.rests("erin", "publish", uuid) == (first, middle, tree)


def test_a_collection_follows_its_members(log: Granting) -> None:
    """T20: what joins is covered, what leaves is not; collections inside count, on whatever way."""
    outer, inner, beside = (log.collection("alice", **TAKES) for _ in range(3))
    first, second = (log.advertised("alice", lifetime=DAY, hosting=HOSTS) for _ in range(2))
    log.gave("alice", "carol", outer, tree=True)
    put_into(log, inner, first)
    assert not log.may("carol", "publish", first)
    put_into(log, outer, inner, beside, second)
    put_into(log, beside, first)
    assert [log.may("carol", "publish", uuid) for uuid in (first, second)] == [True, True]
    accepted(log.change("remove", "alice", collection=outer, uuid=inner))
    assert log.may("carol", "publish", first), "there is another way"
    other = log.collection("alice", **TAKES)
    accepted(log.change("move", "alice", **{"from": beside, "to": other, "uuid": first}))
    assert [log.may("carol", "publish", uuid) for uuid in (first, second)] == [False, True]
    accepted(log.withdraw("alice", outer))
    assert not log.may("carol", "publish", second)


def test_a_collections_topics_do_not_bring_their_children(log: Granting, topic: str) -> None:
    """T20: a collection holds topics, not what is below them."""
    child = log.child(topic, "alice", lifetime=DAY)
    collection = log.collection("alice", **TAKES)
    put_into(log, collection, topic)
    log.gave("alice", "carol", collection, tree=True)
    assert [log.may("carol", "publish", uuid) for uuid in (topic, child)] == [True, False]
    assert sorted(topics_in(log.state, collection)) == [topic]
    assert sorted(topics_in(log.state, topic)) == sorted([topic, child])


def test_an_ended_collection_on_the_way(log: Granting) -> None:
    """T20: what is reached through it is not reached."""
    outer = log.collection("alice", **TAKES)
    inner = log.collection("alice", **{**TAKES, "lifetime": HOUR})
    uuid = log.advertised("alice", lifetime=DAY)
    put_into(log, inner, uuid)
    put_into(log, outer, inner)
    log.gave("alice", "carol", outer, tree=True, ends=T0 + DAY)
    assert log.may("carol", "publish", uuid)
    assert not log.may("carol", "publish", uuid, at=T0 + HOUR)
    log.tick(T0 + HOUR)
    assert not log.may("carol", "publish", uuid)


def test_the_whole_chain_counts_in_a_tree(log: Granting) -> None:
    """T20: what the topic's owner passed on and what the tree's owner granted are one chain, of eight at most."""
    collection, uuid = log.collection("alice", **TAKES), log.advertised("bob", lifetime=DAY)
    put_into(log, collection, uuid)
    above = log.gave("bob", "carol", uuid, delegable=True)
    passed = log.passed("carol", "alice", above, delegable=True)
    tree = log.gave("alice", "erin", collection, tree=True, delegable=True)
    last = granted(log.pass_on("erin", "dave", tree, uuid=uuid))
    assert log.rests("dave", "publish", uuid) == (above, passed, tree, last)


# --- what a question may cost ---


class Made:
    """A state of our own making: what nobody would build by requests within a test's time."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self._grants = 0

    def write(self, *writes: Write) -> None:
        self.state.write(Outcome("accepted", "made", writes))

    def person(self, name: str, institution: str = "north") -> None:
        fact = {"thumbprint": "x", "key": "k", "revoked": [], "institution": institution, "expires": "2030-01-01T00:00:00Z"}
        self.write(Write("principal", f"entity:{name}", fact))

    def thing(self, uuid: str, owner: str, kind: str = "topic", **more: Any) -> None:
        fact = {"kind": kind, "owner": owner, "state": "live", "expires": "2030-01-01T00:00:00Z", **more}
        self.write(Write("topic", uuid, fact))

    def inside(self, uuid: str, collection: str) -> None:
        self.write(Write("in", f"{uuid} {collection}", {}))

    def grant(self, uuid: str, issuer: str, to: str, *, delegable: bool = False, **more: Any) -> str:
        self._grants += 1
        grant = f"g{self._grants:05d}"
        fact = {
            "state": "live",
            "from": "2020-01-01T00:00:00Z",
            "until": "2030-01-01T00:00:00Z",
            "topic": uuid,
            "tree": True,
            "right": "publish",
            "issuer": issuer,
            "grantee": to,
            "delegable": delegable,
            "epoch": 0,
            **more,
        }
        place = f"{uuid} publish {who_key(to)} {grant}"
        self.write(Write("grant", grant, fact), Write("granted", place, {"tree": True, "delegable": delegable}))
        return grant

    def ask(self, who: str, uuid: str) -> tuple[Basis | None, int]:
        """The answer, and how many facts were read for it."""
        counted = Counted(self.state)
        return Rights(counted, T0).basis(Asker(who, "north"), "publish", uuid), counted.reads


#: A look is at most a scan that finds sixteen, and a few facts about one of them; ways up are read once.
MOST_READS = 3 * MAX_LOOKS + 4 * MAX_WAYS


@pytest.fixture
def made() -> Made:
    made = Made()
    for name in ("alice", "bob", "zoe"):
        made.person(name)
    made.thing("x", "alice")
    return made


@pytest.mark.parametrize("delegable", [True, False])
@pytest.mark.parametrize("owners", [1, 1000])
def test_a_topic_in_a_thousand_collections(made: Made, delegable: bool, owners: int) -> None:
    """T21: each with a grant for everyone, none of which covers it: the answer comes, and no guard is held up."""
    for number in range(1000):
        owner = f"owner{number % owners}"
        made.person(owner)
        made.thing(f"c{number}", owner, "collection")
        made.inside("x", f"c{number}")
        made.grant(f"c{number}", owner, "*", delegable=delegable)
    found, reads = made.ask("bob", "x")
    assert found is None
    assert reads < MOST_READS
    # What its owner says itself is found first.
    mine = made.grant("x", "alice", "institution:north")
    found, reads = made.ask("bob", "x")
    assert found is not None
    assert found.grants == (mine,)
    assert reads < 50


def test_the_last_of_a_thousand_collections(made: Made) -> None:
    """T20: it is found, as long as no more is to be looked at than can be."""
    for number in range(1000):
        made.thing(f"c{number:04d}", "alice", "collection")
        made.inside("x", f"c{number:04d}")
    last = made.grant("c0999", "alice", "bob")
    found, reads = made.ask("bob", "x")
    assert found is not None
    assert found.grants == (last,)
    assert reads < MOST_READS


def test_chains_that_branch(made: Made) -> None:
    """T21: sixteen grants at each of eight steps are four thousand million ways. All of them are known to lead nowhere soon enough."""
    for level in range(8):
        made.person(f"p{level}")
        for name in (f"p{level}", "institution:north", "*"):
            for _ in range(16):
                made.grant("x", "nobody", name, delegable=True, parent="g00001" if level else "absent")
    found, reads = made.ask("bob", "x")
    assert found is None
    assert reads < MOST_READS


def test_trees_that_point_at_each_other(made: Made) -> None:
    """T21: a ring of owners, each of whom would pass on what the next one passed on to it. Nobody has it to begin with."""
    for number in range(20):
        made.person(f"p{number}")
        made.thing(f"c{number}", f"p{number}", "collection")
        made.inside("x", f"c{number}")
    for number in range(20):
        for other in range(20):
            made.grant(f"c{number}", f"p{number}", f"p{other}", delegable=True)
        made.grant(f"c{number}", f"p{number}", "*", delegable=True)
    found, reads = made.ask("bob", "x")
    assert found is None
    assert reads < 2 * MOST_READS
    # One word of the topic's owner, and it holds.
    made.grant("x", "alice", "p7", delegable=True)
    found, reads = made.ask("bob", "x")
    assert found is not None
    assert reads < 2 * MOST_READS


def test_a_tower_of_collections(made: Made) -> None:
    """T21: levels of collections, each in all of the next level: ways up are counted, not followed for ever."""
    below = ["x"]
    for level in range(30):
        layer = [f"c{level:02d}x{number:02d}" for number in range(20)]
        for uuid in layer:
            made.thing(uuid, "alice", "collection")
            for inner in below:
                made.inside(inner, uuid)
        below = layer
    near, far = made.grant("c00x05", "alice", "bob"), made.grant("c29x05", "alice", "zoe")
    found, reads = made.ask("bob", "x")
    assert found is not None
    assert found.grants == (near,)
    found, reads = made.ask("zoe", "x")
    assert found is None, f"{far} is too far up to be looked for"
    assert reads < MOST_READS


def test_a_deep_hierarchy(made: Made) -> None:
    """T20: a thousand levels, with the grant on the root."""
    made.thing("t0000", "alice")
    for level in range(1, 1001):
        made.thing(f"t{level:04d}", "alice", parent=f"t{level - 1:04d}")
    root = made.grant("t0000", "alice", "bob")
    found, reads = made.ask("bob", "t1000")
    assert found is not None
    assert found.grants == (root,)
    assert reads < MOST_READS
