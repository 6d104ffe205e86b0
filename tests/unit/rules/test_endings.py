"""What ends with a topic or collection: its subtree, its memberships, its members' places; at once as far as anybody sees, in portions in the state."""

from __future__ import annotations

import itertools
import time
from datetime import datetime
from functools import partial

import pytest
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, Log, message_of
from pki import T0
from sound_trees import Counted, accepted, check_sound, fork, refused

from tdn.protocol.times import format_time
from tdn.rules import clock, endings
from tdn.rules.apply import apply
from tdn.rules.sight import Sight, asker_of, live
from tdn.rules.state import EMPTY_HEAD, LogRecord, Outcome

PEOPLE = ("alice", "bob", "carol")
HOSTS = {"allow_children": True}
DEEP = 1000
#: Portions for trees that are quickly made. The chain of a thousand has the real ones.
AT_ONCE, MAX_ENDS = 20, 60


@pytest.fixture
def log(net: LittleNetwork, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(endings, "AT_ONCE", AT_ONCE)
    monkeypatch.setattr(clock, "MAX_ENDS", MAX_ENDS)
    return net.log(PEOPLE)


def withdraw(log: Log, uuid: str, who: str = "alice", at: datetime = T0) -> Outcome:
    return log.put("withdraw", log.net.withdraw(log.net.entity(who), uuid, at=at), at=at)


def renew(log: Log, uuid: str, minutes: int, who: str = "alice", at: datetime = T0) -> Outcome:
    return log.put("renew", log.net.renew(log.net.entity(who), uuid, minutes * MINUTE, at=at), at=at)


def states(log: Log, uuids: list[str]) -> set[str]:
    return {str(log.topic(uuid)["state"]) for uuid in uuids}


def wide(log: Log, count: int, **choices: object) -> tuple[str, list[str]]:
    """A root, and so many children of it, bob's."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    return root, [log.child(root, "bob", lifetime=DAY, **choices) for _ in range(count)]


def chain(log: Log, depth: int, **hosting: int) -> list[str]:
    """Topics below each other, the root first."""
    topics = [log.advertised(hosting={**HOSTS, **hosting}, lifetime=DAY)]
    while len(topics) < depth:
        topics.append(log.child(topics[-1], hosting=HOSTS, lifetime=DAY))
    return topics


# --- T26: the subtree ---


def test_withdrawing_a_topic_ends_its_subtree(log: Log) -> None:
    """T26: all of it, whoever owns it; beside it nothing ends, and its parent's slot is free."""
    root = log.advertised(hosting={**HOSTS, "max_width": 2})
    child, beside = log.child(root, "bob", hosting=HOSTS), log.child(root)
    below = [log.child(child, "carol", hosting=HOSTS)]
    below.append(log.child(below[0], "alice"))
    accepted(withdraw(log, child, "bob"))
    assert log.topic(child)["state"] == "withdrawn"
    assert states(log, below) == {"expired"}
    assert states(log, [root, beside]) == {"live"}
    check_sound(log.state)
    log.child(root)
    check_sound(log.state)


def test_expiry_of_a_root_ends_its_subtree(log: Log) -> None:
    """T26: with the tick that ends it, whatever the children's own ends."""
    root = log.advertised(hosting=HOSTS, lifetime=HOUR)
    child = log.child(root, hosting=HOSTS, lifetime=HOUR)
    grandchild = log.child(child, lifetime=HOUR)
    log.tick(T0 + HOUR - SECOND)
    assert states(log, [root, child, grandchild]) == {"live"}
    log.tick(T0 + HOUR)
    assert states(log, [root, child, grandchild]) == {"expired"}
    check_sound(log.state)


def test_an_ended_subtree_stays_ended(log: Log) -> None:
    """T39: each owner is told what became of its topic; nothing brings it back."""
    root, (child,) = wide(log, 1)
    accepted(withdraw(log, root))
    assert message_of(renew(log, child, 10, "bob")) == f"topic {child} has expired; create a new one"
    assert message_of(withdraw(log, child, "bob")) == f"topic {child} has expired; create a new one"
    assert message_of(renew(log, root, 10)) == f"topic {root} was withdrawn and stays so; create a new one"
    assert withdraw(log, root).status == "accepted", "asked again by somebody who does not know"


def test_what_is_not_marked_yet_has_ended_all_the_same(log: Log) -> None:
    """T26: a record marks a hundred; the others are gone for everybody at once, and marked by the next tick."""
    root, children = wide(log, AT_ONCE + 50, hosting=HOSTS)
    grandchild = log.child(children[-1], "bob", lifetime=DAY)
    collection = log.collection("bob", lists={"add_allow": ["*"], "owner_allow": ["*"]})
    outcome = withdraw(log, root)
    assert len(outcome.writes) < 20 * AT_ONCE
    unmarked = [uuid for uuid in [*children, grandchild] if log.topic(uuid)["state"] == "live"]
    assert grandchild in unmarked
    assert len(unmarked) >= 50
    check_sound(log.state)
    uuid = unmarked[0]
    assert live(log.state, uuid, T0) is None
    absent = f"there is no topic {uuid} that you may see; it may have ended"
    bob = log.net.entity("bob")
    assert refused(log, lambda: log.put("register", log.net.register(bob, uuid))) == absent
    assert refused(log, lambda: log.change("watch", "bob", uuid=uuid)) == f"there is no {uuid} that you may follow"
    assert refused(log, partial(renew, log, uuid, 5, "bob")) == f"topic {uuid} has expired; create a new one"
    assert refused(log, partial(withdraw, log, uuid, "bob")) == f"topic {uuid} has expired; create a new one"
    assert refused(log, lambda: log.change("add", "bob", collection=collection, uuid=uuid)) == (
        f"there is no {uuid} that you may see; it may have ended"
    )
    log.tick(T0, "n1")
    assert states(log, unmarked) == {"expired"}
    assert not list(log.state.all("settling"))
    assert log.state.get("pending", "topics") is None
    check_sound(log.state)


def test_topics_elsewhere_live_on_while_a_subtree_is_settled(log: Log) -> None:
    """T26: roots and children of other trees can be seen and used as ever."""
    root, _ = wide(log, AT_ONCE + 10)
    other, (child,) = wide(log, 1, hosting=HOSTS)
    accepted(withdraw(log, root))
    assert log.state.get("pending", "topics") is not None
    for uuid in (other, child):
        assert live(log.state, uuid, T0) is not None
    log.child(child)
    check_sound(log.state)


def test_more_than_a_tick_can_end(log: Log) -> None:
    """T26: a tick ends or settles a bounded number, the next ones the rest; in between everything agrees."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    children = [log.child(root, lifetime=DAY) for _ in range(3 * MAX_ENDS)]
    accepted(withdraw(log, root))
    marked = [sum(log.topic(uuid)["state"] != "live" for uuid in children)]
    while log.state.get("pending", "topics") is not None:
        log.tick(T0, "n1")
        marked.append(sum(log.topic(uuid)["state"] != "live" for uuid in children))
        check_sound(log.state)
    assert marked[0] == AT_ONCE
    assert all(later - earlier <= MAX_ENDS for earlier, later in itertools.pairwise(marked))
    assert marked[-1] == len(children)


def test_two_subtrees_are_settled_at_once(log: Log) -> None:
    """T26: one that ends while another is being settled."""
    (one, below_one), (other, below_other) = wide(log, AT_ONCE + 20), wide(log, AT_ONCE + 20)
    accepted(withdraw(log, one))
    accepted(withdraw(log, other))
    check_sound(log.state)
    assert live(log.state, below_one[-1], T0) is None
    assert live(log.state, below_other[-1], T0) is None
    log.tick(T0, "n1")
    check_sound(log.state)
    assert states(log, below_one + below_other) == {"expired"}


# --- T26: shortened ---


def test_a_shortened_topic_shortens_what_is_below(log: Log) -> None:
    """T26: children end with it, those that end sooner anyway keep their end, and a child's own subtree follows."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    child = log.child(root, "bob", hosting=HOSTS, lifetime=DAY)
    grandchild, soon = log.child(child, lifetime=DAY), log.child(child, lifetime=5 * MINUTE)
    receipt = accepted(renew(log, root, 10))
    assert receipt["expires"] == format_time(T0 + 10 * MINUTE)
    for uuid, minutes in ((root, 10), (child, 10), (grandchild, 10), (soon, 5)):
        assert log.topic(uuid)["expires"] == format_time(T0 + minutes * MINUTE)
    check_sound(log.state)
    log.tick(T0 + 10 * MINUTE)
    assert states(log, [root, child, grandchild, soon]) == {"expired"}


def test_a_lengthened_topic_lengthens_nothing_below(log: Log) -> None:
    """T26: a child's end is its own; its owner can renew it, within the new one."""
    root = log.advertised(hosting=HOSTS, lifetime=HOUR)
    child = log.child(root, "bob", lifetime=DAY)
    accepted(renew(log, root, 600))
    assert log.topic(child)["expires"] == format_time(T0 + HOUR)
    assert accepted(renew(log, child, 60_000, "bob"))["expires"] == format_time(T0 + 600 * MINUTE)


def test_what_is_not_shortened_yet_ends_in_time_all_the_same(log: Log) -> None:
    """T26: by its ancestors' end, in what is seen and in what is registered or renewed below."""
    root, children = wide(log, AT_ONCE + 30, hosting=HOSTS)
    accepted(renew(log, root, 10))
    late = [uuid for uuid in children if log.topic(uuid)["expires"] == format_time(T0 + DAY)]
    assert late
    check_sound(log.state)
    assert live(log.state, late[0], T0 + 10 * MINUTE - SECOND) is not None
    assert live(log.state, late[0], T0 + 10 * MINUTE) is None
    assert accepted(renew(log, late[0], 60, "bob"))["expires"] == format_time(T0 + 10 * MINUTE)
    request = log.net.register(log.net.entity("bob"), late[-1], lifetime=DAY)
    assert accepted(log.put("register", request))["expires"] == format_time(T0 + 10 * MINUTE)
    log.tick(T0, "n1")
    assert {log.topic(uuid)["expires"] for uuid in children} == {format_time(T0 + 10 * MINUTE)}
    check_sound(log.state)


def test_shortened_again_and_lengthened_before_all_have_followed(log: Log) -> None:
    """T26: whatever the order, nobody outlives an ancestor once all is settled."""
    root, children = wide(log, 3 * AT_ONCE, hosting=HOSTS)
    below = [log.child(uuid, lifetime=DAY) for uuid in children[:40]]
    for minutes in (600, 300, 450, 20, 1000):
        accepted(renew(log, root, minutes))
        check_sound(log.state)
    accepted(renew(log, children[0], 700, "bob"))
    while log.state.get("pending", "topics") is not None:
        log.tick(T0, "n1")
        check_sound(log.state)
    ends = {log.topic(uuid)["expires"] for uuid in children + below}
    assert ends <= {format_time(T0 + minutes * MINUTE) for minutes in (20, 300, 450, 600, 700, 1000)}


def test_shortened_and_withdrawn_before_all_have_followed(log: Log) -> None:
    """T26: the second begins anew with the first children; none is passed over."""
    root, children = wide(log, 3 * AT_ONCE)
    accepted(renew(log, root, 10))
    accepted(withdraw(log, root))
    while log.state.get("pending", "topics") is not None:
        log.tick(T0, "n1")
        check_sound(log.state)
    assert states(log, children) == {"expired"}


# --- a chain of a thousand ---


@pytest.fixture(scope="module")
def deep(net: LittleNetwork) -> tuple[Log, list[str]]:
    log = net.log(PEOPLE)
    return log, chain(log, DEEP, max_depth=DEEP)


def settle(log: Log, at: datetime) -> tuple[int, float]:
    """Tick until all has followed: how many facts were read, and the longest that one tick took, in seconds."""
    reads, longest = 0, 0.0
    while log.state.get("pending", "topics") is not None or reads == 0:
        raw = log.net.record("tick", at=at)
        counted = Counted(log.state)
        begun = time.perf_counter()
        apply(counted, LogRecord(len(log.records) + 1, EMPTY_HEAD, raw))
        longest = max(longest, time.perf_counter() - begun)
        reads += counted.reads
        log.append(raw)
    return reads, longest


def test_a_chain_a_thousand_deep_has_its_limit(deep: tuple[Log, list[str]]) -> None:
    """T24: a root with MaxDepth 1,000 has a thousand levels, and no more."""
    log, topics = fork(deep[0]), deep[1]
    check_sound(log.state)
    assert log.topic(topics[-1])["hosting"]["depth"] == 1
    request = log.net.register(log.net.entity("alice"), topics[-1])
    assert "is at the lowest level that is allowed" in refused(log, lambda: log.put("register", request))


def test_a_chain_without_limits_goes_on(log: Log) -> None:
    """T24: registering at the end of it looks at the parent alone."""
    topics = chain(log, 100)
    assert log.topic(topics[-1])["hosting"] == {"allow": True, "depth": None, "width": None}
    log.child(topics[-1])
    check_sound(log.state)


def test_the_end_of_a_chain_a_thousand_deep(deep: tuple[Log, list[str]]) -> None:
    """T26: withdrawn at its root, it is gone at once to the last, and marked in a few ticks whose work grows with its length alone."""
    reads = {}
    for length in (DEEP // 4, DEEP):
        # A hundred end with the record itself.
        left = length - endings.AT_ONCE
        log, topics = fork(deep[0]), deep[1]
        accepted(withdraw(log, topics[DEEP - length]))
        assert live(log.state, topics[-1], T0) is None
        reads[left], longest = settle(log, T0)
        assert states(log, topics[DEEP - length + 1 :]) == {"expired"}
        check_sound(log.state)
        assert longest < 5
    assert all(count < 15 * left for left, count in reads.items()), reads


def test_the_expiry_of_a_chain_a_thousand_deep(deep: tuple[Log, list[str]]) -> None:
    """T26: all of it is due at the same moment, in the order of UUIDs."""
    log, topics = fork(deep[0]), deep[1]
    later = T0 + DAY
    assert live(log.state, topics[-1], later) is None
    for _ in range(5):
        log.tick(later)
        check_sound(log.state)
    assert states(log, topics) == {"expired"}


def test_a_chain_a_thousand_deep_is_renewed_shorter(deep: tuple[Log, list[str]]) -> None:
    """T26: to the last, in steps whose work grows with its length alone."""
    log, topics = fork(deep[0]), deep[1]
    accepted(renew(log, topics[0], 10))
    assert live(log.state, topics[-1], T0 + 10 * MINUTE) is None
    assert live(log.state, topics[-1], T0 + 9 * MINUTE) is not None
    reads, longest = settle(log, T0)
    assert {log.topic(uuid)["expires"] for uuid in topics} == {format_time(T0 + 10 * MINUTE)}
    check_sound(log.state)
    assert reads < 100 * DEEP
    assert longest < 5


def test_a_chain_a_thousand_deep_is_looked_at(deep: tuple[Log, list[str]]) -> None:
    """T27: up and down, in a number of reads that grows with its length alone; also while something elsewhere is settled."""
    log, topics = fork(deep[0]), deep[1]
    root, _ = wide(log, endings.AT_ONCE + 50)
    for settling in (False, True):
        if settling:
            accepted(withdraw(log, root))
        assert (log.state.get("pending", "topics") is not None) == settling
        counted = Counted(log.state)
        asker = asker_of(log.state, "bob")
        assert asker is not None
        sight = Sight(counted, asker, T0)
        assert [seen.uuid for seen in sight.tree(topics[0])] == topics
        assert [seen.uuid for seen in sight.parents(topics[-1])] == topics[-2::-1]
        assert counted.reads < 15 * DEEP


# --- collections ---


def test_a_topic_that_ends_leaves_its_collections(log: Log) -> None:
    """T33: all of them; fixed ones too, and their limits have room again."""
    topic = log.advertised()
    places = [log.collection(limits={"breadth": 1, "topics": 1}) for _ in range(3)]
    for place in places:
        accepted(log.change("add", "alice", collection=place, uuid=topic))
    fixed = log.collection(fixed=True, members=[topic])
    accepted(withdraw(log, topic))
    check_sound(log.state)
    assert not list(log.state.all("member"))
    other = log.advertised()
    for place in places:
        accepted(log.change("add", "alice", collection=place, uuid=other))
    assert log.topic(fixed)["state"] == "live"
    check_sound(log.state)


def test_a_collection_that_ends_lets_its_members_go(log: Log) -> None:
    """T31, T33: they live on and are in others; it leaves those that it was in."""
    root = log.collection(child_collections=True, limits={"topics": 10, "breadth": 10})
    inner = log.collection(inclusion=True, lifetime=MINUTE)
    accepted(log.change("add", "alice", collection=root, uuid=inner))
    topics = [log.advertised() for _ in range(3)]
    for topic in topics:
        accepted(log.change("add", "alice", collection=inner, uuid=topic))
    accepted(log.change("add", "alice", collection=root, uuid=topics[0]))
    size = log.state.get("size", root)
    assert size == {"members": 2, "topics": 3}
    log.tick(T0 + MINUTE)
    assert log.topic(inner)["state"] == "expired"
    assert states(log, topics) == {"live"}
    assert log.state.get("size", root) == {"members": 1, "topics": 1}
    assert [key for key, _ in log.state.all("in")] == [f"{topics[0]} {root}"]
    check_sound(log.state)


def test_a_large_collection_is_emptied_in_portions(log: Log) -> None:
    """T33: until it is empty its topics count above it, so that counts are high for a while and never low; nobody sees it any more."""
    root = log.collection(child_collections=True, limits={"topics": AT_ONCE + 40})
    inner = log.collection(inclusion=True, lifetime=DAY)
    accepted(log.change("add", "alice", collection=root, uuid=inner))
    topics = [log.advertised(lifetime=DAY) for _ in range(AT_ONCE + 40)]
    for topic in topics:
        accepted(log.change("add", "alice", collection=inner, uuid=topic))
    spare = log.advertised()
    accepted(withdraw(log, inner))
    check_sound(log.state)
    size = log.state.get("size", root)
    assert size is not None
    assert size["topics"] == 40
    asker = asker_of(log.state, "bob")
    assert asker is not None
    assert not list(Sight(log.state, asker, T0).topics(root))
    assert not list(Sight(log.state, asker, T0).containing(topics[-1]))
    accepted(log.change("add", "alice", collection=root, uuid=spare))
    log.tick(T0, "n1")
    check_sound(log.state)
    assert log.state.get("size", root) == {"members": 1, "topics": 1}
    assert states(log, topics) == {"live"}


def test_a_hierarchy_that_ends_leaves_collections(log: Log) -> None:
    """T26, T33: children end with their root and leave what they were in, each."""
    root = log.advertised(hosting=HOSTS)
    child = log.child(root)
    collection = log.collection(limits={"topics": 5})
    for uuid in (root, child):
        accepted(log.change("add", "alice", collection=collection, uuid=uuid))
    accepted(withdraw(log, root))
    assert log.state.get("size", collection) is None
    check_sound(log.state)


def test_a_shortened_collection_ends_sooner_and_its_members_do_not(log: Log) -> None:
    """T39: membership ties no lifetimes."""
    collection = log.collection(lifetime=DAY)
    topic = log.advertised(lifetime=DAY)
    accepted(log.change("add", "alice", collection=collection, uuid=topic))
    accepted(renew(log, collection, 10))
    assert log.topic(topic)["expires"] == format_time(T0 + DAY)
    assert log.state.get("pending", "topics") is None
    log.tick(T0 + 10 * MINUTE)
    assert (log.topic(collection)["state"], log.topic(topic)["state"]) == ("expired", "live")
    check_sound(log.state)


def test_an_ended_collection_far_down_is_emptied_without_looking_up_for_each_member(log: Log) -> None:
    """T33: what one tick reads grows with the members and with what is above, not with their product."""
    above = [log.collection(child_collections=True, inclusion=True, lifetime=DAY) for _ in range(60)]
    for outer, inner in itertools.pairwise(above):
        accepted(log.change("add", "alice", collection=outer, uuid=inner))
    for _ in range(60):
        accepted(log.change("add", "alice", collection=above[-1], uuid=log.advertised()))
    request = log.net.withdraw(log.net.entity("alice"), above[-1])
    counted = Counted(log.state)
    outcome = apply(counted, LogRecord(len(log.records) + 1, EMPTY_HEAD, log.net.record("withdraw", request)))
    assert outcome.status == "accepted"
    assert counted.reads < 1500
