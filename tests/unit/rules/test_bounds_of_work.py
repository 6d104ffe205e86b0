"""What one record may cost: changes that reach too far are refused, ticks leave the rest to the next, and no list grows without end."""

from __future__ import annotations

from pathlib import Path

import pytest
from little_network import HOUR, MINUTE, LittleNetwork, Log, message_of
from pki import T0

from tdn.errors import Refused
from tdn.rules import clock, endings, hierarchy
from tdn.rules import state as states
from tdn.rules.state import Draft, MemoryState, Outcome, Write
from tdn.store.view import View

NET = LittleNetwork("bounds")
OPEN = {"allow_children": True}


@pytest.fixture
def log() -> Log:
    return NET.log(("alice", "bob", "carol"))


def test_work_is_counted_alike_whatever_is_remembered() -> None:
    """Lists are remembered by their digest, on one node longer than on another: reading them is no work."""
    state = MemoryState()
    state.write(Outcome("accepted", "x", tuple(Write("topic", f"a {number}", {"n": number}) for number in range(5))))
    draft = Draft(state)
    assert list(draft.scan("topic", after="a", up_to="a ~", limit=3))
    assert draft.work == 4
    draft.get("topic", "a 1")
    draft.get("access", "digest")
    assert draft.work == 5
    draft.put("topic", "b", {})
    assert draft.work == 8


def test_more_than_enough_is_refused() -> None:
    draft = Draft(MemoryState(), most_work=3)
    for _ in range(3):
        draft.get("topic", "a")
    with pytest.raises(Refused, match="reaches too much"):
        draft.get("topic", "a")


def test_a_change_that_reaches_too_far(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic in many collections with much above each: refused, and the state is as it was."""
    top = log.collection(limits={"topics": 9}, child_collections=True, inclusion=True)
    topic = log.advertised()
    for _ in range(8):
        holder = log.collection(child_collections=True, inclusion=True)
        assert log.change("add", "alice", collection=holder, uuid=topic).status == "accepted"
        assert log.change("add", "alice", collection=top, uuid=holder).status == "accepted"
    monkeypatch.setattr("tdn.rules.apply.MOST_WORK", 60)
    outcome = log.change("add", "alice", collection=top, uuid=topic)
    assert outcome.status == "refused"
    assert "reaches too much" in message_of(outcome)
    assert {write.space for write in outcome.writes} == {"request", "ends"}
    monkeypatch.setattr("tdn.rules.apply.MOST_WORK", states.MOST_WORK)
    assert log.change("add", "alice", collection=top, uuid=topic).status == "accepted"


def test_a_tick_leaves_what_is_too_much_to_the_next(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """T26: all of it ends, over several ticks; a slot is never free before its holder has ended."""
    uuids = [log.advertised(lifetime=MINUTE) for _ in range(30)]
    monkeypatch.setattr(endings, "MOST_WORK", 100)
    ended = []
    for second in range(12):
        log.put("tick", None, by="n1", at=T0 + HOUR + second * MINUTE)
        log.put("tick", None, by="n2", at=T0 + HOUR + second * MINUTE)
        ended.append(sum(log.topic(uuid)["state"] == "expired" for uuid in uuids))
    assert 0 < ended[0] < 30
    assert ended[-1] == 30
    assert ended == sorted(ended)


def test_ended_collections_do_not_keep_topics_from_settling(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a large collection again and again delays others' subtrees by a share, not for ever."""
    monkeypatch.setattr(endings, "AT_ONCE", 1)
    monkeypatch.setattr(endings, "_PORTION", 2)
    monkeypatch.setattr(clock, "MAX_ENDS", 8)
    root = log.advertised("alice", hosting=OPEN)
    children = [log.child(root, "alice") for _ in range(6)]
    members = [log.advertised("bob") for _ in range(9)]
    log.put("withdraw", NET.withdraw(NET.entity("alice"), root))
    for second in range(5):
        gathered = log.collection("bob", members=members)
        log.put("withdraw", NET.withdraw(NET.entity("bob"), gathered))
        log.tick(T0 + (second + 1) * MINUTE / 60)
    assert {log.topic(child)["state"] for child in children} == {"expired"}


def test_lists_that_grow_from_level_to_level(log: Log, tmp_path: Path) -> None:
    """Long names on every level: refused before they are longer than anybody reads; and every store takes what was accepted."""
    view = View(tmp_path / "store.sqlite")
    parent, level = log.advertised(hosting=OPEN, lists=_names(0)), 0
    while True:
        level += 1
        request = NET.register(NET.entity("alice"), parent, hosting=OPEN, lists=_names(level))
        registered = log.put("register", request)
        if registered.status != "accepted":
            break
        outcome = log.put("advertise", NET.advertise(NET.entity("alice"), NET.mint_child(request, registered)))
        assert outcome.status == "accepted"
        assert registered.receipt is not None
        parent = registered.receipt["uuid"]
        assert level < 20
    assert "too long" in message_of(registered)
    view.apply_all([(offset, record.raw) for offset, record in enumerate(log.records)])
    assert view.digest() == log.state.digest()
    view.close()


def test_lists_stand_in_the_state_once_their_topic_is_advertised(log: Log) -> None:
    """A child that is registered and never advertised leaves nothing behind, its lists included."""
    root = log.advertised(hosting=OPEN)
    before = len(list(log.state.all("access")))
    request = NET.register(NET.entity("bob"), root, lists={"discover_allow": ["carol"]})
    registered = log.put("register", request)
    assert len(list(log.state.all("access"))) == before
    log.put("advertise", NET.advertise(NET.entity("bob"), NET.mint_child(request, registered)))
    assert len(list(log.state.all("access"))) == before + 1


def test_without_lists_of_its_own_a_child_shares_its_parents(log: Log) -> None:
    """T27: however long those are."""
    root = log.advertised(hosting=OPEN, lists=_names(0, 330))
    assert len(str(log.state.get("access", log.topic(root)["access"]))) > hierarchy.MAX_INHERITED_BYTES
    assert log.topic(log.child(root, "alice"))["access"] == log.topic(root)["access"]


def test_nobody_freezes_anothers_collection_unseen(log: Log) -> None:
    """T33: who may include it cannot put it where its owner does not see it: limits up there would bind it, and nobody could take it out."""
    mine = log.collection("alice", inclusion=True, lists={"include_allow": ["*"]})
    hidden = log.collection("bob", child_collections=True, lists={"owner_allow": ["*"], "discover_allow": ["carol"]})
    seen = log.collection("bob", child_collections=True, lists={"owner_allow": ["*"]})
    outcome = log.change("add", "bob", collection=hidden, uuid=mine)
    assert outcome.status == "refused"
    assert "its owner may not see" in message_of(outcome)
    assert log.change("add", "bob", collection=seen, uuid=mine).status == "accepted"
    assert log.change("remove", "alice", collection=seen, uuid=mine).status == "accepted"


def _names(level: int, count: int = 150) -> dict[str, list[str]]:
    names = sorted(f"institution:{level}-{number}-{'x' * 100}" for number in range(count))
    return {"discover_deny": names, "hierarchy_deny": names}
