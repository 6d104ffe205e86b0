"""Grants, delegations, transfers, subscriptions and revocations against the model, over many random steps."""

from __future__ import annotations

import random

import pytest
import rights_model
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from rights_comparison import Comparison
from sizes import LONG
from tree_requests import Drawn, Seeded

from tdn.rules import feeds, grants
from tdn.trust.grants import MAX_CHAIN

#: As many steps as one has patience for; otherwise a few thousand.


class RightsMachine(RuleBasedStateMachine):
    """Entities of two institutions grant, pass on, retract, hand over and subscribe; certificates are revoked and come again."""

    def __init__(self) -> None:
        super().__init__()
        self.rights = Comparison()

    @initialize(data=st.data())
    def plant(self, data: st.DataObject) -> None:
        self.rights.plant(Drawn(data))

    @rule(data=st.data(), number=st.integers(0, len(Comparison.steps) - 1))
    def step(self, data: st.DataObject, number: int) -> None:
        getattr(self.rights, Comparison.steps[number])(Drawn(data))

    def teardown(self) -> None:
        self.rights.finish()


@pytest.mark.timeout(7200 if LONG else 600)
def test_rights_agree_with_the_model() -> None:
    """T20, T21, T28: whatever is asked in whatever order, who may publish and subscribe to what, and which subscription gets what, is what
    the model says; and everything that anybody loses by a record is found from what the record wrote."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        RightsMachine,
        settings=settings(
            max_examples=3000 if LONG else 30,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )


@pytest.mark.timeout(7200 if LONG else 600)
def test_long_histories_agree_with_the_model() -> None:
    """T20, T21, T28: the same over longer histories, in which much has come and gone. A seed that fails is named in the error."""
    for seed in range(2000 if LONG else 10):
        choose = Seeded(random.Random(seed))
        rights = Comparison()
        rights.plant(choose)
        step = ""
        try:
            for _ in range(80):
                step = choose.pick(Comparison.steps)
                getattr(rights, step)(choose)
            rights.finish()
        except Exception as error:
            error.add_note(f"seed {seed}, after {len(rights.log.records)} records, at {step}")
            raise


def test_model_has_the_numbers_of_the_rules() -> None:
    """Where the rules change a number, the model must be told."""
    assert rights_model.LEASE == feeds.LEASE
    assert rights_model.OFFERED_FOR == grants.OFFER_FOR
    assert rights_model.ALIKE == grants.MAX_ALIKE
    assert rights_model.LONGEST_CHAIN == MAX_CHAIN
