"""Who sees what: topics, places in hierarchies, members of collections. What is hidden, ended or absent is one and the same, word for word."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, LittleNetwork, Log, fresh_uuid
from pki import T0
from sound_trees import accepted, in_turn, refused

from tdn.errors import LogDiverged, UsageError
from tdn.protocol.access import Asker
from tdn.protocol.names import Role
from tdn.rules.sight import Sight, asker_of, live
from tdn.rules.state import Outcome, Write

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


def eyes(log: Log, who: str = "bob", at: datetime = T0) -> Sight:
    asker = asker_of(log.state, who)
    assert asker is not None
    return Sight(log.state, asker, at)


def seers(log: Log, uuid: str) -> set[str]:
    return {who for who in PEOPLE if eyes(log, who).topic(uuid) is not None}


def placers(log: Log, uuid: str) -> set[str]:
    return {who for who in PEOPLE if eyes(log, who).place(uuid) is not None}


def open_with(**lists: list[str]) -> dict[str, Any]:
    return {**OPEN, "lists": {**OPEN["lists"], **lists}}


def add(log: Log, place: str, *uuids: str) -> None:
    for uuid in uuids:
        accepted(log.change("add", "alice", collection=place, uuid=uuid))


# --- T27: visible ---


@pytest.mark.parametrize(
    ("root", "child", "seen_by"),
    [
        ({}, {}, {"alice", "bob", "carol", "dave"}),
        ({"discover_allow": ["bob"]}, {}, {"bob"}),
        ({"discover_allow": ["bob"]}, {"discover_allow": ["carol"]}, {"bob", "carol"}),
        ({"discover_allow": ["bob"]}, {"discover_allow": ["*"]}, {"alice", "bob", "carol", "dave"}),
        ({"discover_deny": ["carol"]}, {}, {"alice", "bob", "dave"}),
        ({"discover_deny": ["carol"]}, {"discover_allow": ["carol", "dave"]}, {"bob", "dave"}),
        ({"discover_deny": ["bob"]}, {"discover_deny": ["dave"]}, {"alice", "bob", "carol"}),
        ({"discover_allow": ["dave"], "discover_deny": ["dave"]}, {}, {"bob"}),
        ({"discover_deny": ["*"]}, {"discover_allow": ["*"]}, {"bob"}),
        ({"hierarchy_deny": ["dave"], "register_deny": ["dave"]}, {}, {"alice", "bob", "carol", "dave"}),
    ],
)
def test_who_sees_a_child(log: Log, root: dict[str, Any], child: dict[str, Any], seen_by: set[str]) -> None:
    """T27: its owner (bob); else barred neither by it nor by an ancestor, and allowed by the nearest list present."""
    above = log.advertised(hosting=HOSTS, lists=root)
    word = log.net.countersign(log.net.entity("alice"), "register", above, "bob")
    uuid = log.child(above, "bob", lists=child, countersigned=word)
    assert seers(log, uuid) == seen_by


def test_lists_of_all_ancestors(log: Log) -> None:
    """T27: bars of each level add up; the nearest allow list counts, however far up the next one is."""
    top = log.advertised(hosting=HOSTS, lists={"discover_deny": ["dave"], "discover_allow": ["bob"]})
    middle = log.child(top, hosting=HOSTS, lists={"discover_deny": ["carol"]})
    widened = log.child(middle, hosting=HOSTS, lists={"discover_allow": ["*"]})
    leaf = log.child(widened)
    assert seers(log, top) == {"alice", "bob"}
    assert seers(log, middle) == {"alice", "bob"}
    assert seers(log, widened) == seers(log, leaf) == {"alice", "bob"}
    other = log.child(top, hosting=HOSTS, lists={"discover_allow": ["*"]})
    assert seers(log, log.child(other)) == {"alice", "bob", "carol"}


def test_the_place_of_a_topic_has_lists_of_its_own(log: Log) -> None:
    """T23, T27: to see where it stands one must see it and be admitted by the hierarchy lists; they are inherited in the same way."""
    root = log.advertised(hosting=HOSTS, lists={"hierarchy_allow": ["bob", "carol"], "discover_deny": ["carol"]})
    child = log.child(root, "dave", hosting=HOSTS)
    widened = log.child(child, "dave", lists={"hierarchy_allow": ["*"]})
    assert (seers(log, root), placers(log, root)) == ({"alice", "bob", "dave"}, {"alice", "bob"})
    assert placers(log, child) == {"bob", "dave"}
    assert placers(log, widened) == {"alice", "bob", "dave"}


def test_institutions_are_meant_by_their_name(log: Log) -> None:
    """T27: as the certificate says; the operator is nobody's owner and on no list by name."""
    net = log.net
    erin = net.pki.credentials(Role.ENTITY, "erin", institution="Physics")
    accepted(log.put("hello", net.hello(erin)))
    root = log.advertised(hosting=HOSTS, lists={"discover_allow": ["institution:Physics", "carol"]})
    child = log.child(root, lists={"discover_deny": ["carol"]})
    assert (seers(log, child), eyes(log, "erin").topic(child) is not None) == ({"alice"}, True)
    operator = Sight(log.state, Asker(None, "Physics"), T0)
    assert operator.topic(child) is not None
    assert Sight(log.state, Asker(None, "Arts"), T0).topic(child) is None


def test_who_was_revoked_is_nobody(log: Log) -> None:
    assert asker_of(log.state, "bob") == Asker("bob", "local")
    log.put("revoke", log.net.revoke("entity:bob", until=T0))
    log.put("revoke", log.net.revoke("entity:stranger", until=T0))
    for who in ("bob", "stranger", "nobody"):
        assert asker_of(log.state, who) is None


def test_live_by_either_clock(log: Log) -> None:
    """T26: to the second; never before it was, never after."""
    root = log.advertised(hosting=HOSTS, lifetime=HOUR)
    assert live(log.state, root, T0 + HOUR - MINUTE) is not None
    assert live(log.state, root, T0 + HOUR) is None
    assert live(log.state, fresh_uuid(), T0) is None


def test_lists_that_the_store_has_lost_are_not_taken_for_none(log: Log) -> None:
    """T18: a fact that names lists which are not there stops the node; it does not open the topic to everybody."""
    uuid = log.advertised(lists={"discover_allow": ["carol", "only-here"]})
    digest = log.topic(uuid)["access"]
    log.state.write(Outcome("accepted", "facts", (Write("access", digest, None),)))
    with pytest.raises(LogDiverged, match="has lost the lists of a topic"):
        eyes(log, "bob").topic(uuid)


# --- T27: parents, children, subtree ---


@pytest.fixture
def family(log: Log) -> dict[str, str]:
    """A root with three levels below it."""
    names = {"root": log.advertised(hosting=HOSTS)}
    for name, parent in (("left", "root"), ("right", "root"), ("grandchild", "left"), ("leaf", "grandchild")):
        names[name] = log.child(names[parent], hosting=HOSTS)
    return names


def test_ancestors(log: Log, family: dict[str, str]) -> None:
    """T27: the nearest first, to a depth."""
    sight = eyes(log)
    found = [(family["grandchild"], 1, family["left"]), (family["left"], 2, family["root"]), (family["root"], 3, None)]
    assert in_turn(sight.parents(family["leaf"])) == found
    assert in_turn(sight.parents(family["leaf"], 1)) == found[:1]
    assert in_turn(sight.parents(family["leaf"], 2)) == found[:2]
    assert in_turn(sight.parents(family["root"])) == []


def test_a_subtree_to_a_depth(log: Log, family: dict[str, str]) -> None:
    """T27: each before its children, in the order of creation."""
    sight = eyes(log)
    whole = [
        (family["root"], 0, None),
        (family["left"], 1, family["root"]),
        (family["grandchild"], 2, family["left"]),
        (family["leaf"], 3, family["grandchild"]),
        (family["right"], 1, family["root"]),
    ]
    assert in_turn(sight.tree(family["root"])) == whole
    for depth in range(5):
        assert in_turn(sight.tree(family["root"], depth)) == [entry for entry in whole if entry[1] <= depth]
    assert in_turn(sight.tree(family["grandchild"])) == [
        (family["grandchild"], 0, None),
        (family["leaf"], 1, family["grandchild"]),
    ]


def test_going_on_behind_any_topic(log: Log, family: dict[str, str]) -> None:
    """T27: what was given before and what comes after are the whole, at every place and depth, also when the last one has ended."""
    for depth in (None, 1, 2, 3):
        whole = in_turn(eyes(log).tree(family["root"], depth))
        for number, (uuid, _, _) in enumerate(whole, start=1):
            assert in_turn(eyes(log).tree(family["root"], depth, uuid)) == whole[number:]
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), family["grandchild"])))
    for ended in (family["grandchild"], family["leaf"]):
        assert in_turn(eyes(log).tree(family["root"], None, ended)) == [(family["right"], 1, family["root"])]


def test_a_cursor_that_was_never_given(log: Log, family: dict[str, str]) -> None:
    """T18, T27: where a hidden topic stands does not show by what comes after it; it is refused like one that there is not."""
    hidden = log.child(family["left"], hosting=HOSTS, lists={"hierarchy_deny": ["bob"]})
    below = log.child(hidden)
    unseen = log.child(family["left"], lists={"discover_deny": ["bob"]})
    for cursor in (fresh_uuid(), hidden, below, unseen, log.advertised(), log.collection()):
        with pytest.raises(UsageError, match=r"^the cursor is not one of ours; take it from the last answer$"):
            list(eyes(log).tree(family["root"], None, cursor))
    with pytest.raises(UsageError, match="not one of ours"):
        list(eyes(log).tree(family["left"], None, family["right"]))
    assert len(list(eyes(log, "alice").tree(family["root"], None, hidden))) == 3


def test_a_relation_shows_where_both_ends_do(log: Log) -> None:
    """T27: a hidden topic hides what is below it in the tree, and what is above it; seeing a child shows nothing of its parent."""
    root = log.advertised(hosting=HOSTS)
    hidden = log.child(root, hosting=HOSTS, lists={"hierarchy_allow": ["alice"]})
    widened = log.child(hidden, hosting=HOSTS, lists={"hierarchy_allow": ["*"]})
    leaf = log.child(widened)
    assert in_turn(eyes(log).tree(root)) == [(root, 0, None)]
    assert in_turn(eyes(log).parents(leaf)) == [(widened, 1, None)]
    assert in_turn(eyes(log).parents(widened)) == []
    assert in_turn(eyes(log).tree(widened)) == [(widened, 0, None), (leaf, 1, widened)]
    assert in_turn(eyes(log).tree(hidden)) == []
    assert in_turn(eyes(log).parents(hidden)) == []
    assert [uuid for uuid, _, _ in in_turn(eyes(log, "alice").tree(root))] == [root, hidden, widened, leaf]


def test_a_child_of_a_hidden_parent_looks_like_a_root(log: Log) -> None:
    """T27: what is seen of both is of the same shape."""
    secret = log.advertised(hosting=HOSTS, lists={"discover_allow": ["alice"]})
    child = log.child(secret, hosting=HOSTS, lists={"discover_allow": ["*"]})
    root = log.advertised(hosting=HOSTS)
    for uuid in (child, root):
        assert in_turn(eyes(log).parents(uuid)) == []
        assert in_turn(eyes(log).tree(uuid)) == [(uuid, 0, None)]


def test_an_owner_sees_its_child_and_not_what_is_around_it(log: Log) -> None:
    """T27: owning a topic shows its own place and no other."""
    root = log.advertised(hosting=HOSTS, lists={"discover_deny": ["bob"]})
    word = log.net.countersign(log.net.entity("alice"), "register", root, "bob")
    own = log.child(root, "bob", hosting=HOSTS, countersigned=word)
    log.child(root)
    assert in_turn(eyes(log).parents(own)) == []
    assert in_turn(eyes(log).tree(root)) == []
    assert in_turn(eyes(log).tree(own)) == [(own, 0, None)]


def test_what_has_ended_is_in_no_tree(log: Log, family: dict[str, str]) -> None:
    """T26, T27: also by the asker's clock alone."""
    soon = log.child(family["right"], lifetime=MINUTE)
    assert soon in [uuid for uuid, _, _ in in_turn(eyes(log).tree(family["root"]))]
    assert soon not in [uuid for uuid, _, _ in in_turn(eyes(log, at=T0 + MINUTE).tree(family["root"]))]
    assert in_turn(eyes(log, at=T0 + HOUR).tree(family["root"])) == []


def test_a_collection_has_no_place_in_a_hierarchy(log: Log) -> None:
    collection = log.collection()
    assert eyes(log).place(collection) is None
    assert in_turn(eyes(log).tree(collection)) == in_turn(eyes(log).parents(collection)) == []


# --- T36: the four questions about collections ---


@pytest.fixture
def gathered(log: Log) -> dict[str, str]:
    """A diamond of collections with a topic in several of them."""
    made = {name: log.collection(**OPEN, lifetime=DAY) for name in ("top", "left", "right", "bottom")}
    made |= {name: log.advertised() for name in ("everywhere", "deep", "direct")}
    add(log, made["top"], made["left"], made["right"], made["direct"], made["everywhere"])
    add(log, made["left"], made["bottom"])
    add(log, made["right"], made["bottom"], made["everywhere"])
    add(log, made["bottom"], made["deep"], made["everywhere"])
    return made


def test_all_topics_of_a_tree(log: Log, gathered: dict[str, str]) -> None:
    """T36: each once, in the order of UUIDs, named by the nearest collection that holds it; of a subtree too, and to a depth."""
    top, bottom = gathered["top"], gathered["bottom"]
    found = {
        (gathered["everywhere"], 1, top),
        (gathered["direct"], 1, top),
        (gathered["deep"], 3, bottom),
    }
    assert in_turn(eyes(log).topics(top)) == sorted(found)
    assert in_turn(eyes(log).topics(top, depth=2)) == sorted(entry for entry in found if entry[1] == 1)
    assert in_turn(eyes(log).topics(top, depth=1)) == sorted(entry for entry in found if entry[1] == 1)
    assert {uuid for uuid, _, _ in in_turn(eyes(log).topics(gathered["left"]))} == {gathered["deep"], gathered["everywhere"]}
    whole = in_turn(eyes(log).topics(top))
    for number, (uuid, _, _) in enumerate(whole, start=1):
        assert in_turn(eyes(log).topics(top, after=uuid)) == whole[number:]


def test_the_collections_of_a_tree(log: Log, gathered: dict[str, str]) -> None:
    """T36: the nearer first, each once; of a subtree, and to a depth."""
    found = in_turn(eyes(log).collections(gathered["top"]))
    assert {entry[0] for entry in found[:2]} == {gathered["left"], gathered["right"]}
    assert [entry[:2] for entry in found[2:]] == [(gathered["bottom"], 2)]
    assert in_turn(eyes(log).collections(gathered["top"], 1)) == found[:2]
    assert in_turn(eyes(log).collections(gathered["left"])) == [(gathered["bottom"], 1, gathered["left"])]
    assert in_turn(eyes(log).collections(gathered["bottom"])) == []


def test_the_collections_that_something_is_in(log: Log, gathered: dict[str, str]) -> None:
    """T36: those that hold it directly first; of a topic and of a collection."""
    found = in_turn(eyes(log).containing(gathered["deep"]))
    assert found[0] == (gathered["bottom"], 1, gathered["deep"])
    assert {(uuid, depth) for uuid, depth, _ in found[1:3]} == {(gathered["left"], 2), (gathered["right"], 2)}
    assert found[3][:2] == (gathered["top"], 3)
    assert len(found) == 4
    assert {entry[0] for entry in in_turn(eyes(log).containing(gathered["everywhere"], 1))} == {
        gathered["bottom"],
        gathered["right"],
        gathered["top"],
    }
    assert len(in_turn(eyes(log).containing(gathered["bottom"]))) == 3


def test_of_a_tree_one_sees_what_is_reached_through_what_one_sees(log: Log) -> None:
    """T36: a hidden collection hides what is in it by that way alone; hidden topics are left out; from inside, nothing above it shows."""
    top, secret, inner, other = (
        log.collection(**open_with(discover_deny=["bob"]) if number == 1 else OPEN) for number in range(4)
    )
    topics = [log.advertised() for _ in range(3)]
    unseen = log.advertised(lists={"discover_deny": ["bob"]})
    add(log, top, secret, other, unseen)
    add(log, secret, inner, topics[0])
    add(log, inner, topics[1], topics[2])
    add(log, other, topics[2])
    assert in_turn(eyes(log).collections(top)) == [(other, 1, top)]
    assert in_turn(eyes(log).topics(top)) == [(topics[2], 2, other)]
    assert in_turn(eyes(log).containing(topics[1])) == [(inner, 1, topics[1])]
    assert in_turn(eyes(log).containing(topics[0])) == []
    assert in_turn(eyes(log).containing(unseen)) == []
    assert in_turn(eyes(log).collections(secret)) == []
    assert in_turn(eyes(log).topics(secret)) == []
    assert len(in_turn(eyes(log, "carol").topics(top))) == 4
    assert len(in_turn(eyes(log, "carol").collections(top))) == 3


def test_an_ended_collection_holds_nothing(log: Log, gathered: dict[str, str]) -> None:
    """T36: by the asker's clock too."""
    soon = log.collection(**OPEN, lifetime=MINUTE)
    topic = log.advertised()
    add(log, gathered["top"], soon)
    add(log, soon, topic)
    later = eyes(log, at=T0 + MINUTE)
    assert soon not in {uuid for uuid, _, _ in in_turn(later.collections(gathered["top"]))}
    assert topic not in {uuid for uuid, _, _ in in_turn(later.topics(gathered["top"]))}
    assert in_turn(later.containing(topic)) == []
    assert in_turn(later.topics(soon)) == []


def test_a_topic_holds_nothing(log: Log) -> None:
    topic = log.advertised()
    assert in_turn(eyes(log).topics(topic)) == in_turn(eyes(log).collections(topic)) == []


# --- hidden is absent, whatever is asked ---

#: Every command that takes a UUID, as bob sends it: the log, the UUID, and things that bob has.
COMMANDS: dict[str, Callable[[Log, str, dict[str, str]], Outcome]] = {
    "register below it": lambda log, uuid, own: log.put("register", log.net.register(log.net.entity("bob"), uuid)),
    "register with limits": lambda log, uuid, own: log.put(
        "register", log.net.register(log.net.entity("bob"), uuid, hosting={**HOSTS, "max_depth": 50})
    ),
    "add to it": lambda log, uuid, own: log.change("add", "bob", collection=uuid, uuid=own["topic"]),
    "add it": lambda log, uuid, own: log.change("add", "bob", collection=own["collection"], uuid=uuid),
    "add it to another's": lambda log, uuid, own: log.change("add", "bob", collection=own["another's"], uuid=uuid),
    "remove from it": lambda log, uuid, own: log.change("remove", "bob", collection=uuid, uuid=own["topic"]),
    "remove it": lambda log, uuid, own: log.change("remove", "bob", collection=own["another's"], uuid=uuid),
    "move it": lambda log, uuid, own: log.change("move", "bob", uuid=uuid, to=own["collection"], **{"from": own["another's"]}),
    "move out of it": lambda log, uuid, own: log.change("move", "bob", uuid=own["topic"], to=own["collection"], **{"from": uuid}),
    "move into it": lambda log, uuid, own: log.change("move", "bob", uuid=own["topic"], to=uuid, **{"from": own["another's"]}),
    "watch": lambda log, uuid, own: log.change("watch", "bob", uuid=uuid),
    "unwatch": lambda log, uuid, own: log.change("unwatch", "bob", uuid=uuid),
    "renew": lambda log, uuid, own: log.put("renew", log.net.renew(log.net.entity("bob"), uuid, HOUR)),
    "withdraw": lambda log, uuid, own: log.put("withdraw", log.net.withdraw(log.net.entity("bob"), uuid)),
    "create with it": lambda log, uuid, own: _create_with(log, uuid),
}


def _create_with(log: Log, uuid: str) -> Outcome:
    bob = log.net.entity("bob")
    limits = {"breadth": 0, "depth": 0, "topics": 0}
    gathering = {"fixed": False, "limits": limits, "child_collections": True, "inclusion": True}
    token = log.net.mint(bob, gathering=gathering, members=[uuid])
    return log.put("advertise", log.net.advertise(bob, token))


def _hidden(log: Log, name: str, own: dict[str, str]) -> str:
    """Something of alice that bob may not see."""
    only = {"discover_allow": ["alice"]}
    if name == "root":
        return log.advertised(hosting=HOSTS, lists=only)
    if name == "full root":
        return log.advertised(hosting={**HOSTS, "max_depth": 1}, lists=only)
    if name == "child":
        return log.child(log.advertised(hosting=HOSTS), hosting=HOSTS, lists=only)
    if name == "child of a hidden root":
        return log.child(log.advertised(hosting=HOSTS, lists=only), hosting=HOSTS)
    if name == "barred":
        return log.advertised(hosting=HOSTS, lists={"discover_deny": ["bob"], "hierarchy_allow": ["bob"]})
    if name in ("ended topic", "ended subtree", "ended collection"):
        uuid = log.collection() if name == "ended collection" else log.advertised(hosting=HOSTS)
        ended = log.child(uuid, hosting=HOSTS) if name == "ended subtree" else uuid
        accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), uuid)))
        return ended
    if name == "member":
        uuid = log.advertised(lists=only)
        add(log, own["another's"], uuid)
        return uuid
    lists = {**only, "add_allow": ["bob"], "owner_allow": ["*"], "watch_allow": ["bob"], "include_allow": ["bob"]}
    if name == "collection":
        return log.collection(child_collections=True, inclusion=True, lists=lists)
    if name == "inner collection":
        uuid = log.collection(child_collections=True, inclusion=True, lists=lists)
        add(log, own["another's"], uuid)
        return uuid
    assert name == "followed by others"
    uuid = log.collection(lists={"discover_deny": ["bob"]})
    accepted(log.change("watch", "carol", uuid=uuid))
    return uuid


HIDDEN = (
    *("root", "full root", "child", "child of a hidden root", "barred", "ended topic", "ended subtree", "ended collection"),
    *("member", "collection", "inner collection", "followed by others"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_hidden_and_ended_are_absent_word_for_word(log: Log, command: str) -> None:
    """T18, T27, T36: to those who may not see a tree, its errors tell nothing: no command's words differ from those for a UUID that does not exist."""
    own = {"topic": log.advertised("bob"), "collection": log.collection("bob", **OPEN), "another's": log.collection(**OPEN)}
    accepted(log.change("add", "bob", collection=own["another's"], uuid=own["topic"]))
    nowhere = fresh_uuid()
    ask = COMMANDS[command]
    absent = refused(log, lambda: ask(log, nowhere, own))
    for name in HIDDEN:
        uuid = _hidden(log, name, own)
        said = refused(log, lambda uuid=uuid: ask(log, uuid, own))
        assert said.replace(uuid, nowhere) == absent, name


def test_the_commands_would_be_taken_where_bob_may(log: Log) -> None:
    """The requests above are refused for what they name: each of them is accepted where nothing is hidden."""
    answers: dict[str, set[str]] = {}
    for command, name in itertools.product(COMMANDS, ("topic", "collection")):
        fresh = log.net.log(PEOPLE)
        own = {
            "topic": fresh.advertised("bob"),
            "collection": fresh.collection("bob", **OPEN),
            "another's": fresh.collection(**OPEN),
        }
        if command != "move it":
            accepted(fresh.change("add", "bob", collection=own["another's"], uuid=own["topic"]))
        uuid = fresh.advertised("bob", hosting=HOSTS) if name == "topic" else fresh.collection("bob", **OPEN)
        if command in ("remove it", "move it"):
            accepted(fresh.change("add", "bob", collection=own["another's"], uuid=uuid))
        if command in ("remove from it", "move out of it") and name == "collection":
            accepted(fresh.change("add", "bob", collection=uuid, uuid=own["topic"]))
        if command == "unwatch":
            accepted(fresh.change("watch", "bob", uuid=uuid))
        answers.setdefault(command, set()).add(COMMANDS[command](fresh, uuid, own).status)
    assert all("accepted" in said for said in answers.values()), answers
