"""An owner's word for another entity: what it lets somebody do, for how long, and everything that makes it worth nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from little_network import DAY, HOUR, SECOND, LittleNetwork, Log, fresh_uuid, read_uuid
from pki import T0
from sound_trees import accepted, check_sound, refused

from tdn.rules.countersignatures import LONGEST, holds
from tdn.rules.state import Outcome
from tdn.trust.replay import CLOCK_SKEW

PEOPLE = ("alice", "bob", "carol")
HOSTS = {"allow_children": True}
#: A topic where alice alone may register.
ALONE: dict[str, Any] = {"hosting": HOSTS, "lists": {"register_allow": ["alice"]}, "lifetime": 60 * DAY}


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    return net.log(PEOPLE)


def word(log: Log, right: str, uuid: str, entity: str = "bob", owner: str = "alice", **choices: Any) -> str:
    return log.net.countersign(log.net.entity(owner), right, uuid, entity, **choices)


def register(log: Log, parent: str, token: str | None = None, who: str = "bob", at: datetime = T0, **body: Any) -> Outcome:
    if token is not None:
        body["countersigned"] = token
    return log.put("register", log.net.register(log.net.entity(who), parent, at=at, **body), at=at)


# --- what it lets somebody do ---


def test_registering_with_the_owners_word(log: Log) -> None:
    """T24, T27: whom the lists do not admit, and to whom the topic is hidden; the child is the requester's own."""
    for lists in ({"register_allow": ["alice"]}, {"register_deny": ["bob"]}, {"discover_allow": ["alice"]}):
        root = log.advertised(hosting=HOSTS, lists=lists)
        refused(log, partial(register, log, root))
        child = log.child(root, "bob", countersigned=word(log, "register", root))
        assert log.topic(child)["owner"] == "bob"
    check_sound(log.state)


def test_it_passes_lists_and_not_limits(log: Log) -> None:
    """T24: nor whether children are taken at all, nor that a collection takes none."""
    full = log.advertised(hosting={**HOSTS, "max_width": 1})
    log.child(full)
    flat = log.advertised(hosting={**HOSTS, "max_depth": 1})
    closed, collection = log.advertised(), log.collection()
    for uuid, said in (
        (full, "has all the children that it may have"),
        (flat, "is at the lowest level that is allowed"),
        (closed, "does not take child topics"),
        (collection, "is a collection, which has members and no child topics"),
    ):
        assert said in refused(log, partial(register, log, uuid, word(log, "register", uuid)))


def test_including_with_the_owners_word(log: Log) -> None:
    """T33: another's topic or collection, also one that is hidden; into any collection, or into the one that the word names."""
    hidden = {"discover_allow": ["alice"]}
    here, there = (log.collection("bob", child_collections=True, lists={"owner_allow": ["*"]}) for _ in range(2))
    for uuid in (log.advertised(lists=hidden), log.collection(lists=hidden, inclusion=True)):
        add = partial(log.change, "add", "bob", uuid=uuid)
        absent = f"there is no {uuid} that you may see; it may have ended"
        for_here = word(log, "include", uuid, collection=here)
        assert refused(log, partial(add, collection=here)) == absent
        assert refused(log, partial(add, collection=there, countersigned=for_here)) == absent
        accepted(add(collection=here, countersigned=for_here))
        accepted(add(collection=there, countersigned=word(log, "include", uuid)))
    check_sound(log.state)


def test_founding_with_many_words(log: Log) -> None:
    """T33: a fixed collection of several owners' topics."""
    topics = {who: log.advertised(who) for who in PEOPLE}
    creator = log.net.entity("bob")
    token = log.net.mint(
        creator,
        gathering={
            "fixed": True,
            "limits": {"breadth": 0, "depth": 0, "topics": 0},
            "child_collections": False,
            "inclusion": False,
        },
        members=list(topics.values()),
        lists={"owner_allow": ["*"]},
    )
    words = [word(log, "include", topics["alice"]), word(log, "include", topics["carol"], owner="carol")]
    for given in (words[:1], words):
        body = {"uuid": read_uuid(token), "opening": log.net._openings[token], "countersigned": given}
        outcome = partial(log.put, "advertise", log.net.request("advertise", body, creator, tail=token))
        if given is words:
            accepted(outcome())
        else:
            assert f"only the owner of {topics['carol']}" in refused(log, outcome)
    check_sound(log.state)


# --- what makes it worth nothing ---


def test_a_word_of_somebody_else(log: Log) -> None:
    """T27: of the topic's owner alone; not of the parent's, nor of whoever asks."""
    root = log.advertised(hosting=HOSTS)
    child = log.child(root, "carol", hosting=HOSTS, lists={"register_allow": ["carol"]})
    for owner in ("alice", "bob"):
        assert "you may not register" in refused(log, partial(register, log, child, word(log, "register", child, owner=owner)))
    accepted(register(log, child, word(log, "register", child, owner="carol")))


def test_a_word_for_something_else(log: Log) -> None:
    """T27: another right, topic or entity."""
    root, other = log.advertised(**ALONE), log.advertised(**ALONE)
    for token in (
        word(log, "discover", root),
        word(log, "include", root),
        word(log, "register", other),
        word(log, "register", fresh_uuid()),
        word(log, "register", root, "carol"),
    ):
        assert refused(log, partial(register, log, root, token)) == (
            f"you may not register children of topic {root}; ask its owner, or have it countersign"
        )
    accepted(register(log, root, word(log, "register", root)))


@pytest.mark.parametrize(
    ("issued", "life", "good"),
    [
        (timedelta(0), HOUR, True),
        (-HOUR, HOUR, True),
        (-HOUR - SECOND, HOUR, False),
        (CLOCK_SKEW, HOUR, True),
        (CLOCK_SKEW + SECOND, HOUR, False),
        (timedelta(0), LONGEST, True),
        (timedelta(0), LONGEST + SECOND, False),
    ],
    ids=["now", "last second", "a second late", "clocks differ", "not yet", "a month", "more than a month"],
)
def test_when_it_counts(log: Log, issued: timedelta, life: timedelta, good: bool) -> None:
    """T27: within its own times, which are no longer than a month."""
    root = log.advertised(**ALONE)
    later = T0 + 2 * HOUR
    outcome = register(log, root, word(log, "register", root, at=later + issued, life=life), at=later)
    assert (outcome.status == "accepted") == good, outcome


def test_it_ends_with_log_time_too(log: Log) -> None:
    """T27: a node whose clock is behind does not prolong it."""
    root, topic = log.advertised(**ALONE), log.advertised(lifetime=DAY)
    place = log.collection("bob", lists={"owner_allow": ["*"]}, lifetime=DAY)
    token, included = word(log, "register", root, life=HOUR), word(log, "include", topic, life=HOUR)
    log.tick(T0 + HOUR)
    accepted(register(log, root, token, at=T0))
    log.tick(T0 + HOUR + SECOND)
    assert "you may not register" in refused(log, partial(register, log, root, token, at=T0))
    assert "only the owner of" in refused(
        log, partial(log.change, "add", "bob", at=T0, collection=place, uuid=topic, countersigned=included)
    )


def test_a_word_to_another_network(log: Log) -> None:
    """T27: it is addressed, like every change."""
    root = log.advertised(**ALONE)
    body = {"right": "register", "uuid": root, "entity": "bob"}
    for audience in ("tdn:nodes", "node:n1", f"tdn:network:{'0' * 64}"):
        token = log.net.request("countersign", body, log.net.entity("alice"), audience=audience).decode()
        assert "you may not register" in refused(log, partial(register, log, root, token))


def test_a_word_that_is_something_else(log: Log) -> None:
    """T27: another signed message of the owner, about the same topic, is none."""
    root = log.advertised(**ALONE)
    token = log.net.request("watch", {"uuid": root}, log.net.entity("alice")).decode()
    assert "you may not register" in refused(log, partial(register, log, root, token))


@pytest.mark.parametrize("flaw", ["no signature", "another's signature", "no base64", "no header", "other text"])
def test_a_word_that_does_not_verify(log: Log, flaw: str) -> None:
    """T27: gives nothing and is no error by itself: the answer is the one without it."""
    root = log.advertised(**ALONE)
    header, payload, signature = word(log, "register", root).split(".")
    forged = {
        "no signature": f"{header}.{payload}.{'A' * len(signature)}",
        "another's signature": f"{header}.{payload}.{word(log, 'register', root, owner='carol').split('.')[2]}",
        "no base64": f"{header}.{payload}x.{signature}",
        "no header": f"x.{payload}.{signature}",
        "other text": f"{header}.{word(log, 'register', root, 'carol').split('.')[1]}.{signature}",
    }[flaw]
    assert refused(log, partial(register, log, root, forged)) == (
        f"you may not register children of topic {root}; ask its owner, or have it countersign"
    )


@pytest.mark.parametrize("how", ["revoked", "rotated", "unknown"])
def test_a_word_of_a_certificate_that_no_longer_counts(log: Log, how: str) -> None:
    """T27: the signer is current when the word is used; a stolen old key countersigns nothing."""
    net = log.net
    root = log.advertised(**ALONE)
    token = word(log, "register", root)
    if how == "revoked":
        log.put("revoke", net.revoke("entity:alice", until=T0))
    elif how == "rotated":
        accepted(log.put("hello", net.hello(net.entity("alice", 2))))
    else:
        body = {"right": "register", "uuid": root, "entity": "bob"}
        token = net.request("countersign", body, net.entity("alice", 3)).decode()
    assert "you may not register" in refused(log, partial(register, log, root, token))
    if how == "rotated":
        body = {"right": "register", "uuid": root, "entity": "bob"}
        accepted(register(log, root, net.request("countersign", body, net.entity("alice", 2)).decode()))


def test_it_tells_a_stranger_nothing(log: Log) -> None:
    """T18: with a word of its own or of another's, a hidden topic is absent, word for word."""
    hidden = log.advertised(hosting=HOSTS, lists={"discover_allow": ["alice"]})
    nowhere = fresh_uuid()
    for owner in ("bob", "carol"):
        said = [
            refused(log, partial(register, log, uuid, word(log, "register", uuid, owner=owner))) for uuid in (hidden, nowhere)
        ]
        assert said[0].replace(hidden, nowhere) == said[1]


def test_an_ended_topic_has_no_owner_that_could_let_anybody(log: Log) -> None:
    """T26: the word ends with the topic."""
    root = log.advertised(**ALONE)
    token = word(log, "register", root)
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), root)))
    assert refused(log, partial(register, log, root, token)) == (f"there is no topic {root} that you may see; it may have ended")


def test_the_question_itself(log: Log) -> None:
    """T27: no word and no topic is no."""
    root = log.advertised(**ALONE)
    fact, token = log.topic(root), word(log, "discover", root)
    ask = partial(holds, log.state, right="discover", uuid=root, entity="bob", now=T0)
    assert ask(token=token, topic=fact)
    assert not ask(token=None, topic=fact)
    assert not ask(token=token, topic=None)
    assert not ask(token=token, topic={**fact, "owner": "carol"})
    # A word that names a collection is good for that one alone.
    named = word(log, "include", root, collection=root)
    assert holds(log.state, named, "include", root, fact, entity="bob", now=T0, collection=root)
    assert not holds(log.state, named, "include", root, fact, entity="bob", now=T0, collection=fresh_uuid())
    assert not holds(log.state, named, "include", root, fact, entity="bob", now=T0)
