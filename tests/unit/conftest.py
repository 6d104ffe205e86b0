"""What the unit tests share: helper modules in `support/`, and one little network for the whole session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# pytest imports tests by file (importlib mode), so helper modules need a place on the path.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from little_network import LittleNetwork  # found by the line above
from sizes import examples

# Shared machines stall; a deadline per example would measure the neighbours.
settings.register_profile("unit", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")


@pytest.fixture(scope="session")
def net() -> LittleNetwork:
    """CA, operator, genesis, three nodes and a few entities. Values only: tests cannot disturb each other through it."""
    return LittleNetwork()
