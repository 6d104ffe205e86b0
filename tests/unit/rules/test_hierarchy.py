"""Topics below topics: who may register where, limits of all ancestors, the reserved slot, lifetimes, and every way to ask wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, Log, fresh_uuid, message_of, payload_of, read_uuid
from pki import T0
from sound_trees import Counted, accepted, check_sound, refused

from tdn.errors import MalformedMessage, UsageError
from tdn.protocol.access import access, lists
from tdn.protocol.times import format_time
from tdn.rules.apply import apply
from tdn.rules.hierarchy import MAX_INHERITED, RESERVED_FOR
from tdn.rules.state import EMPTY_HEAD, LogRecord, Outcome
from tdn.trust import envelope, openings, signing, statements

PEOPLE = ("alice", "bob", "carol", "dave")
HOSTS = {"allow_children": True}


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    return net.log(PEOPLE)


def register(log: Log, parent: str, who: str = "alice", *, at: datetime = T0, by: str = "n1", **body: Any) -> Outcome:
    """A request for a child, judged."""
    minted = body.pop("minted", None)
    return log.put("register", log.net.register(log.net.entity(who), parent, at=at, **body), at=at, by=by, minted=minted)


def registered(log: Log, parent: str, who: str = "alice", **body: Any) -> tuple[bytes, str]:
    """The advertisement of a child that has its slot and is not advertised yet, and its UUID."""
    at = body.get("at", T0)
    request = log.net.register(log.net.entity(who), parent, **body)
    outcome = log.put("register", request, at=at)
    return log.net.mint_child(request, outcome), str(accepted(outcome)["uuid"])


def advertise(log: Log, token: bytes, who: str = "alice", *, at: datetime = T0, **choices: Any) -> Outcome:
    return log.put("advertise", log.net.advertise(log.net.entity(who), token, at=at, **choices), at=at)


def hosting_of(log: Log, uuid: str) -> Mapping[str, Any]:
    hosting: Mapping[str, Any] = log.topic(uuid)["hosting"]
    return hosting


# --- T23: fields and defaults ---


def test_a_topic_is_a_root_and_takes_no_children_by_default(log: Log) -> None:
    """T23: RootTopic is true and AllowChildTopics false where nothing is said."""
    root = log.advertised()
    assert not {"parent", "root", "hosting"} & log.topic(root).keys()
    assert refused(log, partial(register, log, root)) == (
        f"topic {root} does not take child topics; its creator did not allow them"
    )


def test_limits_alone_allow_no_children(log: Log) -> None:
    """T23: limits say how many, AllowChildTopics says whether."""
    root = log.advertised(hosting={"allow_children": False, "max_depth": 5, "max_width": 5})
    assert "does not take child topics" in refused(log, partial(register, log, root))


def test_a_child_knows_its_parent_and_its_root(log: Log) -> None:
    """T23: ParentTopic. Registered by anybody, where there is no list; and it is not a root."""
    root = log.advertised(hosting=HOSTS)
    child = log.child(root, "bob", hosting=HOSTS)
    grandchild = log.child(child, "carol")
    assert (log.topic(child)["parent"], log.topic(child)["root"], log.topic(child)["owner"]) == (root, root, "bob")
    assert (log.topic(grandchild)["parent"], log.topic(grandchild)["root"]) == (child, root)
    check_sound(log.state)


def test_a_child_takes_no_children_by_default(log: Log) -> None:
    """T23: AllowChildTopics is each topic's own, and false where nothing is said."""
    child = log.child(log.advertised(hosting=HOSTS))
    assert refused(log, partial(register, log, child)) == (
        f"topic {child} does not take child topics; its creator did not allow them"
    )


def test_a_child_that_names_no_limit_takes_what_its_ancestors_leave(log: Log) -> None:
    """T23: one level less, the same width; and so on down."""
    root = log.advertised(hosting={**HOSTS, "max_depth": 3, "max_width": 2})
    child = log.child(root, hosting=HOSTS)
    assert hosting_of(log, child) == {"allow": True, "depth": 2, "width": 2}
    grandchild = log.child(child, hosting=HOSTS)
    assert hosting_of(log, grandchild) == {"allow": True, "depth": 1, "width": 2}


def test_zero_and_absent_are_no_limit_at_a_root(log: Log) -> None:
    """T23: 0 = no limit."""
    for asked in ({"max_depth": 0, "max_width": 0}, {}):
        root = log.advertised(hosting={**HOSTS, **asked})
        assert hosting_of(log, root) == {"allow": True, "depth": None, "width": None}
        assert hosting_of(log, log.child(root, hosting=HOSTS)) == {"allow": True, "depth": None, "width": None}
        assert hosting_of(log, log.child(root, hosting={**HOSTS, "max_depth": 0, "max_width": 0}))["depth"] is None


# --- T24: limits of all ancestors ---


@pytest.mark.parametrize(("asked", "wanted"), [(2, "2"), (0, "no limit"), (1_000_000, "1000000")])
def test_the_example_of_max_depth_2_refused(log: Log, asked: int, wanted: str) -> None:
    """T24: under a root with MaxDepth 2, a child asking for MaxDepth 2 or 0 is refused."""
    root = log.advertised(hosting={**HOSTS, "max_depth": 2})
    said = refused(log, partial(register, log, root, hosting={**HOSTS, "max_depth": asked}))
    assert said == f"MaxDepth: a child of topic {root} may ask for 1 at most, not for {wanted}"


@pytest.mark.parametrize("asked", [{"max_depth": 1}, {}], ids=["one", "absent"])
def test_the_example_of_max_depth_2_accepted(log: Log, asked: dict[str, int]) -> None:
    """T24: … and one that asks for 1 or for nothing is registered, at the lowest level."""
    root = log.advertised(hosting={**HOSTS, "max_depth": 2})
    child = log.child(root, hosting={**HOSTS, **asked})
    assert refused(log, partial(register, log, child)) == (
        f"topic {child} is at the lowest level that is allowed (MaxDepth); nothing can be registered below it"
    )
    check_sound(log.state)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_max_depth_counts_levels_with_its_own(log: Log, levels: int) -> None:
    """T24: a root with MaxDepth N has N levels, its own included."""
    at = log.advertised(hosting={**HOSTS, "max_depth": levels})
    for _ in range(levels - 1):
        at = log.child(at, hosting=HOSTS)
    assert "lowest level" in refused(log, partial(register, log, at))


def test_a_nearer_ancestor_can_ask_for_less(log: Log) -> None:
    """T24: each ancestor's limit holds, the tightest wins, and beside it the root's still does."""
    root = log.advertised(hosting={**HOSTS, "max_depth": 5})
    narrow = log.child(root, hosting={**HOSTS, "max_depth": 2})
    wide = log.child(root, hosting=HOSTS)
    assert "lowest level" in refused(log, partial(register, log, log.child(narrow, hosting=HOSTS)))
    assert "may ask for 3 at most, not for 4" in refused(log, partial(register, log, wide, hosting={**HOSTS, "max_depth": 4}))
    log.child(wide, hosting={**HOSTS, "max_depth": 3})
    check_sound(log.state)


@pytest.mark.parametrize(("asked", "wanted"), [(3, "3"), (0, "no limit")])
def test_a_child_asks_for_more_width_than_there_is(log: Log, asked: int, wanted: str) -> None:
    """T24: ancestors' limits win, for MaxWidth as for MaxDepth."""
    root = log.advertised(hosting={**HOSTS, "max_width": 2})
    said = refused(log, partial(register, log, root, hosting={**HOSTS, "max_width": asked}))
    assert said == f"MaxWidth: a child of topic {root} may ask for 2 at most, not for {wanted}"


def test_max_width_holds_for_every_topic_of_the_subtree(log: Log) -> None:
    """T24: each topic below a root with MaxWidth 2 has two children at most, whatever level it is on."""
    root = log.advertised(hosting={**HOSTS, "max_width": 2})
    level = [root]
    for _ in range(2):
        level = [log.child(at, hosting=HOSTS) for at in level for _ in range(2)]
    for at in (root, *level[:1]):
        if at in level:
            log.child(at)
            log.child(at)
        assert refused(log, partial(register, log, at)) == (f"topic {at} has all the children that it may have (MaxWidth 2)")
    check_sound(log.state)


# --- T24, T27: who may register ---


def test_who_is_allowed_to_register(log: Log) -> None:
    """T24: the owner always, whoever is on the allow list, nobody else; in words that say what to do next."""
    root = log.advertised(hosting=HOSTS, lists={"register_allow": ["bob"]})
    for who in ("alice", "bob"):
        accepted(register(log, root, who))
    assert refused(log, partial(register, log, root, "carol")) == (
        f"you may not register children of topic {root}; ask its owner, or have it countersign"
    )


def test_barred_wins_over_allowed(log: Log) -> None:
    """T24, T27: whoever is barred may not, however much allowed."""
    root = log.advertised(hosting=HOSTS, lists={"register_allow": ["*"], "register_deny": ["carol"]})
    accepted(register(log, root, "bob"))
    assert "you may not register" in refused(log, partial(register, log, root, "carol"))


def test_bars_are_inherited_and_the_nearest_allow_list_counts(log: Log) -> None:
    """T27: below, an ancestor's bar holds whatever is allowed there; an allow list of one's own widens, its absence takes the ancestor's."""
    root = log.advertised(hosting=HOSTS, lists={"register_allow": ["bob"], "register_deny": ["dave"]})
    takes_over = log.child(root, "bob", hosting=HOSTS)
    widens = log.child(root, "bob", hosting=HOSTS, lists={"register_allow": ["*"]})
    narrows = log.child(root, "bob", hosting=HOSTS, lists={"register_deny": ["alice"]})
    may = {
        (name, who): register(log, at, who).status == "accepted"
        for name, at in (("takes over", takes_over), ("widens", widens), ("narrows", narrows))
        for who in PEOPLE
    }
    assert {name_who for name_who, yes in may.items() if yes} == {
        ("takes over", "bob"),
        ("widens", "alice"),
        ("widens", "bob"),
        ("widens", "carol"),
        # bob owns it; alice, who owns the root, is nobody here.
        ("narrows", "bob"),
    }


@pytest.mark.parametrize("role", ["node", "operator"])
def test_only_entities_register(log: Log, role: str) -> None:
    sender = log.net.node("n2") if role == "node" else log.net.operator
    root = log.advertised(hosting=HOSTS)
    raw = log.net.register(sender, root)
    assert refused(log, partial(log.put, "register", raw)) == "only an entity can do this"


# --- T25: the last free slot ---


def test_the_last_free_slot_goes_to_the_first_in_the_log(log: Log) -> None:
    """T25: two nodes append for two requesters; the record that comes first wins, advertised or not."""
    root = log.advertised(hosting={**HOSTS, "max_width": 3})
    log.child(root)
    log.child(root, "carol")
    first = register(log, root, "bob", by="n2")
    assert accepted(first)["uuid"]
    assert refused(log, partial(register, log, root, "carol", by="n1")) == (
        f"topic {root} has all the children that it may have (MaxWidth 3)"
    )
    check_sound(log.state)


def test_a_repeated_registration_has_one_slot_and_one_child(log: Log) -> None:
    """T22, T25: the same request from another node, with another UUID minted for it, gives the first outcome."""
    root = log.advertised(hosting={**HOSTS, "max_width": 1})
    request = log.net.register(log.net.entity("bob"), root)
    first = log.put("register", request, by="n1")
    again = log.put("register", request, by="n2")
    assert (first.status, again.status) == ("accepted", "repeated")
    assert again.receipt == first.receipt
    assert again.writes == ()
    check_sound(log.state)


def test_a_child_that_ends_frees_its_slot(log: Log) -> None:
    """T25: by withdrawal at once, by expiry with the tick that ends it."""
    root = log.advertised(hosting={**HOSTS, "max_width": 1}, lifetime=DAY)
    child = log.child(root)
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), child)))
    log.child(root, lifetime=HOUR)
    assert "has all the children" in refused(log, partial(register, log, root))
    log.tick(T0 + HOUR)
    log.child(root, at=T0 + HOUR)
    check_sound(log.state)


# --- T7: a slot that is reserved ---


def test_a_reserved_slot_frees_after_a_minute_of_log_time_and_not_before(log: Log) -> None:
    """T7, T25: 59 s later the slot is taken; at 60 s it is free, and the child can no longer be advertised."""
    assert RESERVED_FOR == MINUTE
    root = log.advertised(hosting={**HOSTS, "max_width": 1})
    token, uuid = registered(log, root, "bob")
    log.tick(T0 + 59 * SECOND)
    assert "has all the children" in refused(log, partial(register, log, root, at=T0 + 59 * SECOND))
    log.tick(T0 + MINUTE)
    check_sound(log.state)
    assert log.state.get("reserved", uuid) is None
    assert log.state.get("size", root) is None
    assert refused(log, partial(advertise, log, token, "bob", at=T0 + MINUTE)) == (
        f"topic {uuid} was not registered, or its slot was kept for 60 s in vain; create it again"
    )
    accepted(register(log, root, "carol", at=T0 + MINUTE))


def test_one_fast_clock_frees_no_slot(log: Log) -> None:
    """T7: log time is the lower median of the nodes'; a node that is ahead takes no slot from anybody."""
    root = log.advertised(hosting={**HOSTS, "max_width": 1})
    token, uuid = registered(log, root)
    log.tick(T0, "n2", "n3")
    log.tick(T0 + HOUR, "n1")
    assert log.state.get("reserved", uuid) is not None
    accepted(advertise(log, token, at=T0 + SECOND))


def test_the_minute_begins_with_log_time(log: Log) -> None:
    """T7: also where the appending node's clock is behind or ahead of it."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    log.tick(T0 + HOUR)
    uuid = accepted(register(log, root, at=T0))["uuid"]
    reserved = log.state.get("reserved", uuid)
    assert reserved is not None
    assert (reserved["until"], reserved["created"]) == (format_time(T0 + HOUR + MINUTE), format_time(T0))


def test_what_was_advertised_in_time_keeps_its_slot(log: Log) -> None:
    """T7: in the last second; afterwards the minute is forgotten."""
    root = log.advertised(hosting={**HOSTS, "max_width": 1})
    token, uuid = registered(log, root)
    log.tick(T0 + 59 * SECOND)
    accepted(advertise(log, token, at=T0 + 59 * SECOND))
    log.tick(T0 + 2 * MINUTE)
    assert log.topic(uuid)["state"] == "live"
    assert "has all the children" in refused(log, partial(register, log, root, at=T0 + 2 * MINUTE))
    check_sound(log.state)


def test_advertised_twice_is_one_child(log: Log) -> None:
    """T22: by a second request of its creator; the slot is taken once."""
    root = log.advertised(hosting={**HOSTS, "max_width": 2})
    token, _ = registered(log, root)
    accepted(advertise(log, token))
    again = advertise(log, token)
    assert again.status == "accepted"
    assert {write.space for write in again.writes} == {"request", "ends"}
    check_sound(log.state)


def test_any_node_mints_what_was_registered(log: Log) -> None:
    """T7: the node that answers may be another than the one that appended; what is signed is the same but for its name."""
    root = log.advertised(hosting=HOSTS)
    request = log.net.register(log.net.entity("alice"), root)
    outcome = log.put("register", request, by="n1")
    one, other = (log.net.mint_child(request, outcome, node=log.net.node(node)) for node in ("n1", "n3"))
    assert payload_of(one) | {"node": "n3"} == payload_of(other)
    accepted(advertise(log, other))
    assert message_of(advertise(log, one)) == f"topic {read_uuid(one)} was advertised before, with other content"


# --- T26: lifetimes ---


def test_a_child_that_asks_for_more_is_cut_and_told_so(log: Log) -> None:
    """T26: its end is its parent's, in the receipt, the advertisement and the fact; the answer says that it was cut."""
    root = log.advertised(hosting=HOSTS, lifetime=HOUR)
    request = log.net.register(log.net.entity("bob"), root, lifetime=DAY, at=T0 + MINUTE)
    outcome = log.put("register", request, at=T0 + MINUTE)
    assert accepted(outcome)["cut"] is True
    assert accepted(outcome)["expires"] == format_time(T0 + HOUR)
    token = log.net.mint_child(request, outcome)
    assert payload_of(token)["lifetime_seconds"] == 59 * 60
    receipt = accepted(advertise(log, token, "bob", at=T0 + MINUTE))
    assert receipt["expires"] == log.topic(read_uuid(token))["expires"] == format_time(T0 + HOUR)


@pytest.mark.parametrize("lifetime", [HOUR, HOUR - SECOND], ids=["just as long", "shorter"])
def test_a_child_that_fits_is_not_cut(log: Log, lifetime: timedelta) -> None:
    """T26: and nothing is said of cutting."""
    root = log.advertised(hosting=HOSTS, lifetime=HOUR)
    receipt = accepted(register(log, root, lifetime=lifetime))
    assert "cut" not in receipt
    assert receipt["expires"] == format_time(T0 + lifetime)


def test_a_grandchild_is_cut_to_the_nearest_end(log: Log) -> None:
    """T26: of all ancestors."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    child = log.child(root, hosting=HOSTS, lifetime=HOUR)
    assert accepted(register(log, child, lifetime=DAY))["expires"] == format_time(T0 + HOUR)


def test_a_renewed_child_is_cut_too(log: Log) -> None:
    """T26, T39: within its parent's lifetime as it wants, beyond it to its parent's end."""
    root = log.advertised(hosting=HOSTS, lifetime=2 * HOUR)
    child = log.child(root, "bob", lifetime=HOUR)
    bob = log.net.entity("bob")
    inside = accepted(log.put("renew", log.net.renew(bob, child, 90 * MINUTE)))
    assert (inside["expires"], "cut" in inside) == (format_time(T0 + 90 * MINUTE), False)
    beyond = accepted(log.put("renew", log.net.renew(bob, child, DAY)))
    assert (beyond["expires"], beyond["cut"]) == (format_time(T0 + 2 * HOUR), True)
    check_sound(log.state)


def test_a_parent_that_is_shortened_before_its_child_is_advertised(log: Log) -> None:
    """T26: what is signed cannot be cut any more, so it is not taken; the slot comes back by itself, and a new child is cut."""
    root = log.advertised(hosting={**HOSTS, "max_width": 1}, lifetime=DAY)
    token, uuid = registered(log, root, "bob", lifetime=HOUR)
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), root, 10 * MINUTE)))
    assert refused(log, partial(advertise, log, token, "bob")) == (
        f"topic {uuid} cannot be advertised: its parent now ends before it; create it again"
    )
    check_sound(log.state)
    log.tick(T0 + MINUTE)
    assert accepted(register(log, root, "bob", at=T0 + MINUTE, lifetime=HOUR))["expires"] == format_time(T0 + 10 * MINUTE)


def test_a_grandparent_that_is_shortened_before_a_child_is_advertised(log: Log) -> None:
    """T26: also while the subtree has not all followed: the ancestors count, not the parent alone."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    for _ in range(150):
        log.child(root, lifetime=DAY)
    # Of the last second, so that it is the last that is settled.
    child = log.child(root, hosting=HOSTS, lifetime=DAY, at=T0 + SECOND)
    token, uuid = registered(log, child, lifetime=HOUR, at=T0 + SECOND)
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), root, 10 * MINUTE)))
    assert log.topic(child)["expires"] > format_time(T0 + 10 * MINUTE), "it has followed already; the test shows nothing"
    assert "its parent now ends before it" in refused(log, partial(advertise, log, token, at=T0 + SECOND))
    assert accepted(register(log, child, at=T0 + SECOND, lifetime=HOUR))["expires"] == format_time(T0 + 10 * MINUTE)
    assert log.state.get("topic", uuid) is None


# --- bad input: parents ---

_ABSENT = "there is no topic {} that you may see; it may have ended"


def test_a_parent_that_there_is_not(log: Log) -> None:
    """T24: wrong parent."""
    nowhere = fresh_uuid()
    assert refused(log, partial(register, log, nowhere)) == _ABSENT.format(nowhere)


@pytest.mark.parametrize("how", ["withdrawn", "expired by a tick", "expired by the clock", "with its own parent"])
def test_a_parent_that_has_ended(log: Log, how: str) -> None:
    """T24: the same words as for one that there never was, to its owner too."""
    root = log.advertised(hosting=HOSTS)
    parent = log.child(root, hosting=HOSTS) if how == "with its own parent" else root
    at = T0
    if how in ("withdrawn", "with its own parent"):
        accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), root)))
    else:
        at = T0 + HOUR
        if how == "expired by a tick":
            log.tick(at)
    assert refused(log, partial(register, log, parent, at=at)) == _ABSENT.format(parent)


def test_a_parent_that_is_hidden(log: Log) -> None:
    """T18, T24: to whoever may not see it, it is absent, word for word, whatever else is wrong with the request."""
    hidden = {"discover_allow": ["alice"]}
    for parent in (
        log.advertised(hosting=HOSTS, lists=hidden),
        log.advertised(lists=hidden),
        log.advertised(hosting={**HOSTS, "max_depth": 1}, lists={**hidden, "register_deny": ["bob"]}),
        log.collection(lists=hidden),
    ):
        for asked in ({}, {"hosting": {**HOSTS, "max_depth": 9}}):
            assert refused(log, partial(register, log, parent, "bob", **asked)) == _ABSENT.format(parent)


def test_a_child_that_is_reserved_is_no_parent_yet(log: Log) -> None:
    root = log.advertised(hosting=HOSTS)
    _, uuid = registered(log, root, hosting=HOSTS)
    assert refused(log, partial(register, log, uuid)) == _ABSENT.format(uuid)


def test_a_child_of_a_collection(log: Log) -> None:
    """T24: a collection has members and no children; the message says where to look."""
    collection = log.collection(lists={"add_allow": ["*"], "owner_allow": ["*"]})
    assert refused(log, partial(register, log, collection)) == (
        f"{collection} is a collection, which has members and no child topics; see `entity collection add`"
    )


def test_a_topic_is_never_its_own_parent(log: Log) -> None:
    """T24: UUIDs are minted after the parent is named, so a request cannot; a node that mints the parent's UUID again is refused."""
    root = log.advertised(hosting=HOSTS)
    taken = {"uuid": root, "seed": "0" * 22}
    assert refused(log, partial(register, log, root, minted=taken)) == "the UUID that the node minted is taken; ask again"


def forged(log: Log, kind: str, body: Mapping[str, Any], who: str = "alice") -> Outcome:
    """A request that was signed without looking at its schema, in a record."""
    sender = log.net.entity(who)
    issued = int(T0.timestamp())
    claims = {
        **{"v": 1, "iss": str(sender.identity.name), "aud": log.net.audience, "iat": issued, "exp": issued + 3600},
        **{"jti": "forged-request-1", "body": dict(body)},
    }
    return log.put(kind, signing.sign(kind, claims, sender.key, chain=sender.identity.chain))


def asked_for(log: Log, parent: str, **changes: Any) -> dict[str, Any]:
    """The body of a registration."""
    return {**payload_of(log.net.register(log.net.entity("alice"), parent))["body"], **changes}


def test_what_a_forged_request_is_compared_with(log: Log) -> None:
    """The same body, unchanged, is accepted: what the next tests refuse is what they change."""
    root = log.advertised(hosting=HOSTS)
    assert forged(log, "register", asked_for(log, root)).status == "accepted"


@pytest.mark.parametrize("parent", ["", "root", None, 7, [], "0" * 36, "00000000-0001-1000-8000-000000000000"])
def test_a_parent_that_is_no_uuid(log: Log, parent: object) -> None:
    """T24: refused by the schema, before anything is judged; the record is void."""
    body = asked_for(log, log.advertised(hosting=HOSTS)) | {"parent": parent}
    digest = log.state.digest()
    outcome = forged(log, "register", body)
    assert (outcome.status, outcome.writes, log.state.digest()) == ("void", (), digest)
    assert message_of(outcome).startswith("register: parent")


def test_a_missing_parent(log: Log) -> None:
    """T24: a child names its parent; what names none is a root, and created otherwise."""
    body = asked_for(log, log.advertised(hosting=HOSTS))
    del body["parent"]
    outcome = forged(log, "register", body)
    assert (outcome.status, outcome.writes) == ("void", ())
    assert "parent" in message_of(outcome)


def test_a_request_that_brings_its_own_uuid(log: Log) -> None:
    """T4: nodes mint UUIDs; nobody can ask for one, so nobody can ask for its parent's either."""
    root = log.advertised(hosting=HOSTS)
    outcome = forged(log, "register", asked_for(log, root, uuid=root))
    assert (outcome.status, outcome.writes) == ("void", ())
    assert message_of(outcome) == "register: a request cannot bring its own UUID; nodes mint them"


@pytest.mark.parametrize("name", ["max_depth", "max_width"])
@pytest.mark.parametrize("value", [-1, -(10**30), 1_000_001, 10**30, "2", "", 1.5, None, True, [], {}])
def test_limits_that_are_negative_huge_or_no_numbers(log: Log, name: str, value: object) -> None:
    """T23: refused by the schema, of a child and of a root, by whoever writes and by whoever reads it."""
    hosting = {**HOSTS, name: value}
    root = log.advertised(hosting=HOSTS)
    outcome = forged(log, "register", asked_for(log, root, hosting=hosting))
    assert (outcome.status, outcome.writes) == ("void", ())
    assert message_of(outcome).startswith("register: hosting")
    with pytest.raises(MalformedMessage, match=f"hosting.{name}"):
        log.net.register(log.net.entity("alice"), root, hosting=hosting)
    with pytest.raises(MalformedMessage, match=f"hosting.{name}"):
        log.net.create(log.net.entity("alice"), hosting=hosting)


def test_the_largest_limits(log: Log) -> None:
    """T23: a million is a limit like any other."""
    root = log.advertised(hosting={**HOSTS, "max_depth": 1_000_000, "max_width": 1_000_000})
    assert hosting_of(log, log.child(root, hosting=HOSTS)) == {"allow": True, "depth": 999_999, "width": 1_000_000}


# --- bad input: lists ---


def test_a_list_that_bars_its_own_creator(log: Log) -> None:
    """T23: a person is told that it makes no sense; where it comes all the same, the owner still may."""
    with pytest.raises(UsageError, match=r"barred \(register\) names alice, its own creator, who always may"):
        access("alice", register=lists(deny=["bob", "alice"]))
    barred = {f"{subject}_deny": ["alice"] for subject in ("discover", "hierarchy", "register")}
    root = log.advertised(hosting=HOSTS, lists=barred)
    child = log.child(root, hosting=HOSTS, lists=barred)
    accepted(register(log, child))
    accepted(log.change("watch", "alice", uuid=child))
    accepted(register(log, child, "bob"))


def test_ten_thousand_names_in_a_list(log: Log) -> None:
    """T23: refused where they are written, and where they arrive all the same; the state is as it was."""
    names = [f"entity-{number}" for number in range(10_000)]
    with pytest.raises(UsageError, match="a list has 10000 names; at most 500 are allowed: name an institution instead"):
        lists(allow=names)
    root = log.advertised(hosting=HOSTS)
    with pytest.raises(MalformedMessage, match=r"lists\.register_deny"):
        log.net.register(log.net.entity("alice"), root, lists={"register_deny": names})
    outcome = forged(log, "register", asked_for(log, root, lists={"register_deny": names}))
    assert (outcome.status, outcome.writes) == ("void", ())


def test_bars_that_add_up_to_too_many(log: Log) -> None:
    """T27: each list is of a size that is allowed; what a topic would have with its ancestors' is not, from some level on."""
    at = log.advertised(hosting=HOSTS, lists={"discover_deny": [f"a{number}" for number in range(500)]})
    for level in "bcd":
        at = log.child(at, hosting=HOSTS, lists={"discover_deny": [f"{level}{number}" for number in range(500)]})
    assert MAX_INHERITED == 2000
    assert refused(log, partial(register, log, at, lists={"discover_deny": ["one-more"]})) == (
        "with those of its ancestors its lists would be too long: at most 2000 names are barred from a topic, "
        "and at most 65536 bytes of names listed; name institutions instead"
    )
    log.child(at, lists={"discover_deny": ["a7", "b7"], "register_deny": ["one-more"]})


# --- bad input: advertisements of children ---


def test_a_child_whose_parent_has_ended_is_not_advertised(log: Log) -> None:
    """T26: registered under a topic that ends before the child is made known."""
    root = log.advertised(hosting=HOSTS)
    token, uuid = registered(log, root, "bob")
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), root)))
    assert refused(log, partial(advertise, log, token, "bob")) == (f"topic {uuid} cannot be advertised: its parent has ended")
    log.tick(T0 + MINUTE)
    check_sound(log.state)
    assert not list(log.state.all("reserved"))


def test_a_child_is_advertised_by_its_creator_alone(log: Log) -> None:
    """T7: not by somebody else who got hold of it, nor by the parent's owner."""
    root = log.advertised(hosting=HOSTS)
    token, uuid = registered(log, root, "bob")
    for who in ("alice", "carol"):
        assert refused(log, partial(advertise, log, token, who)) == f"only its creator can advertise topic {uuid}"
    accepted(advertise(log, token, "bob"))


def test_a_child_that_was_never_registered(log: Log) -> None:
    """T25: a node that mints a child without the log takes no slot with it."""
    root = log.advertised(hosting=HOSTS)
    request = log.net.register(log.net.entity("alice"), root)
    made_up = Outcome(
        "accepted",
        "register",
        receipt={"uuid": fresh_uuid(), "seed": "1" * 22, "created": format_time(T0), "expires": format_time(T0 + HOUR)},
    )
    token = log.net.mint_child(request, made_up)
    assert refused(log, partial(advertise, log, token)) == (
        f"topic {read_uuid(token)} was not registered, or its slot was kept for 60 s in vain; create it again"
    )


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    "change",
    [
        lambda fixed: {"expires": format_time(T0 + 2 * HOUR)},
        lambda fixed: {"expires": format_time(T0 + MINUTE)},
        lambda fixed: {"created": format_time(T0 + SECOND)},
        lambda fixed: {"seed": "x" * 22},
    ],
    ids=["lives longer", "lives shorter", "begins later", "other salts"],
)
def test_a_node_that_mints_something_else_than_was_registered(log: Log, change: Change) -> None:
    """T25, T26: a rogue node cannot lengthen a child's life, nor change what it hides; what was registered still counts."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    request = log.net.register(log.net.entity("alice"), root)
    outcome = log.put("register", request)
    fixed = dict(accepted(outcome))
    other = Outcome("accepted", "register", receipt={**fixed, **change(fixed)})
    token = log.net.mint_child(request, other)
    assert refused(log, partial(advertise, log, token)) == f"topic {fixed['uuid']} was registered with other content"
    accepted(advertise(log, log.net.mint_child(request, outcome)))


@pytest.mark.parametrize("claim", ["parent", "hosting", "lists"])
def test_a_node_that_hides_something_else_than_was_registered(log: Log, claim: str) -> None:
    """T24: another parent, more room or other lists than the log has judged."""
    root, other = (log.advertised(hosting={**HOSTS, "max_depth": 3}) for _ in range(2))
    request = log.net.register(log.net.entity("alice"), root)
    outcome = log.put("register", request)
    changed: dict[str, Any] = {
        "parent": {"parent": other},
        "hosting": {"hosting": {**HOSTS, "max_depth": 0}},
        "lists": {"lists": {"discover_deny": ["bob"]}},
    }[claim]
    body = {**payload_of(request)["body"], **changed}
    swapped = log.net.register(log.net.entity("alice"), body.pop("parent"), **_choices(body))
    token = log.net.mint_child(swapped, outcome)
    assert refused(log, partial(advertise, log, token)) == (f"topic {read_uuid(token)} was registered with other content")


def _choices(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name in ("hosting", "lists")}


def test_a_child_that_is_advertised_as_a_root(log: Log) -> None:
    """T24: a rogue node gives a registered child's UUID to a root. It is the first content of that UUID, and takes nobody's slot for long."""
    root = log.advertised(hosting={**HOSTS, "max_width": 1})
    token, uuid = registered(log, root)
    usurper = log.net.mint(log.net.entity("bob"), uuid=uuid)
    accepted(advertise(log, usurper, "bob"))
    assert "parent" not in log.topic(uuid)
    assert refused(log, partial(advertise, log, token)) == f"topic {uuid} was advertised before, with other content"
    log.tick(T0 + MINUTE)
    check_sound(log.state)
    accepted(register(log, root, at=T0 + MINUTE))


@pytest.mark.parametrize("what", ["live", "ended", "reserved"])
def test_a_node_that_mints_a_uuid_which_is_taken(log: Log, what: str) -> None:
    """T4: whatever has it, for ever; the requester is told to ask again."""
    root = log.advertised(hosting=HOSTS)
    uuid = log.advertised("bob")
    if what == "ended":
        accepted(log.put("withdraw", log.net.withdraw(log.net.entity("bob"), uuid)))
    if what == "reserved":
        _, uuid = registered(log, root)
    taken = {"uuid": uuid, "seed": "0" * 22}
    assert refused(log, partial(register, log, root, minted=taken)) == "the UUID that the node minted is taken; ask again"
    check_sound(log.state)


def test_a_node_that_mints_nothing(log: Log) -> None:
    """A record of a registration without a UUID reserves nothing."""
    root = log.advertised(hosting=HOSTS)
    request = log.net.register(log.net.entity("alice"), root)
    record = LogRecord(len(log.records) + 1, EMPTY_HEAD, _without_minted(log, request))
    outcome = apply(log.state, record)
    assert (outcome.status, message_of(outcome)) == ("refused", "the node did not mint a UUID for the child")
    assert {write.space for write in outcome.writes} == {"request", "ends"}


def _without_minted(log: Log, request: bytes) -> bytes:
    node = log.net.node("n1")
    payload = {"v": 1, "kind": "register", "node": "n1", "at": format_time(T0)}
    return signing.sign("record", payload, node.key, chain=node.identity.chain, tail=request)


def test_a_child_with_part_of_what_it_hides_kept_closed(log: Log) -> None:
    """T24: what goes into the log goes whole, the parent included."""
    root = log.advertised(hosting=HOSTS)
    token, _ = registered(log, root)
    closed = openings.disclose(log.net._openings[token], ("access",))
    assert refused(log, partial(advertise, log, token, opening=closed)) == (
        "the opening keeps something closed; what is advertised goes into the log whole"
    )


def test_a_collection_is_no_child(log: Log) -> None:
    """T24: a node that mints a collection with a parent is refused, registered or not."""
    root = log.advertised(hosting=HOSTS)
    alice = log.net.entity("alice")
    gathering = {
        "fixed": False,
        "limits": {"breadth": 0, "depth": 0, "topics": 0},
        "child_collections": False,
        "inclusion": False,
    }
    asked = envelope.authenticate(log.net.create(alice, gathering=gathering), lambda _: alice.identity)
    opening = openings.conceal({**openings.claims_of(asked.body, fresh_uuid()), "parent": root}, "2" * 22)
    token = statements.mint(asked, uuid=fresh_uuid(), network=log.net.id, opening=opening, node=log.net.node("n1"), now=T0)
    assert refused(log, partial(advertise, log, token, opening=opening)) == (
        f"{read_uuid(token)} is advertised as one kind of thing and hides the options of another"
    )


# --- T30 ---


def test_an_advertisement_does_not_show_the_hierarchy(log: Log) -> None:
    """T30: a child's signed bytes have the same members as a root's, of the same length where they are hidden, and not its parent's UUID."""
    root_token = log.net.mint(log.net.entity("alice"), hosting={**HOSTS, "max_depth": 7})
    accepted(advertise(log, root_token))
    root = read_uuid(root_token)
    child_token, _ = registered(log, root, hosting=HOSTS, lists={"hierarchy_allow": ["bob"]})
    one, other = payload_of(root_token), payload_of(child_token)
    assert one.keys() == other.keys()
    assert len(one["hidden"]) == len(other["hidden"])
    assert root not in str(other)
    assert not {"parent", "hosting", "max_depth", "lists"} & other.keys()


def test_equal_children_hide_it_differently(log: Log) -> None:
    """T30: two children of one parent cannot be told from two roots by what they hide."""
    root = log.advertised(hosting=HOSTS)
    one, other = (payload_of(registered(log, root)[0])["hidden"] for _ in range(2))
    assert one != other


# --- cost ---


def test_a_registration_reads_the_same_under_many_and_few_children(log: Log) -> None:
    """T25: what it looks at does not grow with the children that there are, nor with the depth."""
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    deep = root
    for _ in range(60):
        deep = log.child(deep, hosting=HOSTS, lifetime=DAY)
    crowded = log.advertised(hosting=HOSTS)
    for _ in range(60):
        log.child(crowded)
    reads = {}
    shallow = log.child(log.advertised(hosting=HOSTS), hosting=HOSTS)
    for name, parent in (("shallow", shallow), ("deep", deep), ("alone", log.advertised(hosting=HOSTS)), ("crowded", crowded)):
        raw = log.net.record("register", log.net.register(log.net.entity("bob"), parent))
        counted = Counted(log.state)
        assert apply(counted, LogRecord(len(log.records) + 1, EMPTY_HEAD, raw)).status == "accepted"
        reads[name] = counted.reads
    assert reads["shallow"] == reads["deep"]
    assert reads["alone"] == reads["crowded"]
