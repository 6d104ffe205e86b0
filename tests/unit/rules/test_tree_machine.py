"""Hierarchies, collections and watches against the model, over many random steps."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from little_network import HOUR, MINUTE, SECOND
from sizes import LONG
from tree_comparison import NET, STEPS, Comparison, InPortions, Tangled
from tree_model import Model, decode
from tree_requests import Drawn, Seeded

from tdn.rules import hierarchy, watches

#: As many steps as one has patience for; otherwise a few thousand.


class TreeMachine(RuleBasedStateMachine):
    """Entities register, gather, watch, renew and withdraw through three nodes; certificates are revoked; requests come twice."""

    kind = Comparison

    def __init__(self) -> None:
        super().__init__()
        self.trees = self.kind(note)

    @initialize(data=st.data())
    def plant(self, data: st.DataObject) -> None:
        self.trees.plant(Drawn(data))

    @rule(data=st.data(), number=st.integers(0, len(STEPS) - 1))
    def step(self, data: st.DataObject, number: int) -> None:
        steps = self.trees.steps
        getattr(self.trees, steps[number % len(steps)])(Drawn(data))

    def teardown(self) -> None:
        self.trees.finish()


class PortionsMachine(TreeMachine):
    kind = InPortions


class TangledMachine(TreeMachine):
    kind = Tangled


@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.parametrize("machine", [TreeMachine, PortionsMachine, TangledMachine])
def test_trees_agree_with_the_model(machine: type[TreeMachine]) -> None:
    """T23 to T36: whatever is asked in whatever order, outcome, relations, numbers, sight and notifications are what the model says."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=1000 if LONG else 8,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )


@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.parametrize("kind", [Comparison, InPortions, Tangled])
def test_long_histories_agree_with_the_model(kind: type[Comparison]) -> None:
    """T23 to T36: the same over longer histories, in which much has come and gone. A seed that fails is named in the error."""
    for seed in range(400 if LONG else 3):
        choose = Seeded(random.Random(seed))
        trees = kind()
        trees.plant(choose)
        try:
            for _ in range(200):
                getattr(trees, choose.pick(kind.steps))(choose)
            trees.finish()
        except Exception as error:
            error.add_note(f"seed {seed}, after {len(trees.log.records)} records")
            raise


def test_the_longest_way_counts() -> None:
    """T33: where a collection is above another on a longer and a shorter way, its depth holds on the longer one, in whatever order the
    ways are found."""
    choose = Seeded(random.Random(1))
    for order in itertools.permutations(range(5)):
        trees = Comparison()
        place, middle, higher, beside, inner = (trees.gather(choose, 100 + number) for number in order)
        top = trees.gather(choose, 99, depth=4)
        for collection, member in ((middle, place), (higher, middle), (top, higher), (beside, place), (top, beside)):
            assert trees.put(choose, "add", "alice", collection=collection, uuid=member).status == "accepted"
        assert trees.put(choose, "add", "alice", collection=place, uuid=inner).status == "refused"
        assert trees.put(choose, "remove", "alice", collection=top, uuid=higher).status == "accepted"
        assert trees.put(choose, "add", "alice", collection=place, uuid=inner).status == "accepted"
        assert trees.put(choose, "add", "alice", collection=top, uuid=higher).status == "refused"


def test_who_may_no_longer_follow_is_not_told() -> None:
    """T29, T35: bob followed as one of an institution that he has left. What happens later is not for him."""
    choose, trees = Seeded(random.Random(1)), Comparison()
    north = ["institution:north"]
    collection = trees.gather(choose, 101, {"watch_allow": north})
    root = trees.mint(choose, 102, {"hierarchy_allow": north}, hosting={"allow_children": True})
    first, second = trees.mint(choose, 103), trees.mint(choose, 104)
    for uuid in (collection, root):
        assert trees.put(choose, "watch", "bob", uuid=uuid).status == "accepted"
    trees.put(choose, "add", "alice", collection=collection, uuid=first)
    trees.certify("bob")
    trees.put(choose, "add", "alice", collection=collection, uuid=second)
    trees.put(choose, "withdraw", "alice", uuid=collection)
    trees.put(choose, "withdraw", "alice", uuid=root)
    assert [told.fact["uuid"] for told in trees.log.told(collection, "bob")] == [first]
    assert trees.log.told(root, "bob") == []


def test_hidden_places_of_a_member_do_not_show() -> None:
    """T35, T36: a topic ends that is also in a collection that bob does not see. He is told as if it were in the other alone."""
    choose, trees = Seeded(random.Random(1)), Comparison()
    hidden = trees.gather(choose, 101, {"discover_allow": ["alice"]})
    shown = trees.gather(choose, 102)
    topic = trees.mint(choose, 103)
    for collection in (hidden, shown):
        assert trees.put(choose, "add", "alice", collection=collection, uuid=topic).status == "accepted"
    assert trees.put(choose, "watch", "bob", uuid=shown).status == "accepted"
    trees.put(choose, "withdraw", "alice", uuid=topic)
    assert [told.fact["in"] for told in trees.log.told(shown, "bob")] == [shown]


def test_limits_of_what_has_ended_hold_nobody_back() -> None:
    """T33: a collection has ended and is not emptied yet. What was in it is as free as if it were."""
    choose, trees = Seeded(random.Random(1)), InPortions()
    outer = trees.gather(choose, 101, breadth=4)
    inner = [trees.gather(choose, 102 + number) for number in range(4)]
    for collection in inner:
        assert trees.put(choose, "add", "alice", collection=outer, uuid=collection).status == "accepted"
    assert trees.put(choose, "withdraw", "alice", uuid=outer).status == "accepted"
    assert outer in trees.model.members, "nothing is left to be released"
    for number in range(5):
        topic = trees.mint(choose, 110 + number)
        assert trees.put(choose, "add", "alice", collection=inner[-1], uuid=topic).status == "accepted"
    trees.finish()


def test_a_fast_clock_takes_no_news_from_followers() -> None:
    """T35: by one node's clock a collection has ended; then it is renewed by another's. Its followers know what happened between."""
    choose, trees = Seeded(random.Random(1)), Comparison()
    collection, topic = trees.gather(choose, 101), trees.mint(choose, 102, lifetime=4 * HOUR)
    assert trees.put(choose, "add", "alice", collection=collection, uuid=topic).status == "accepted"
    assert trees.put(choose, "watch", "bob", uuid=collection).status == "accepted"
    assert trees.put(choose, "withdraw", "alice", ahead=2 * HOUR, uuid=topic).status == "accepted"
    assert trees.put(choose, "renew", "alice", uuid=collection, lifetime_seconds=7200).status == "accepted"
    assert [told.fact["change"] for told in trees.log.told(collection, "bob")] == ["withdrawn"]


def test_a_slow_clock_revives_no_word() -> None:
    """T27: a countersignature that has expired by log time counts no more, whatever time its node thinks it is."""
    choose, trees = Seeded(random.Random(1)), Comparison()
    root = trees.mint(choose, 101, {"register_allow": ["alice"]}, hosting={"allow_children": True})
    word = NET.countersign(NET.entity("alice"), "register", root, "bob", life=MINUTE)
    asked = decode(NET.register(NET.entity("bob"), root, countersigned=word))[1]["body"]
    trees.pass_time(2 * MINUTE)
    assert trees.put(choose, "register", "bob", ahead=-90 * SECOND, **asked).status == "refused"


def test_model_has_the_numbers_of_the_rules() -> None:
    """Where the rules change a length of time, the model must be told."""
    assert Model().lease == watches.LEASE
    assert Model.reserved_for == hierarchy.RESERVED_FOR
