"""What the Spark tests share: one local session, and a network whose log has everything that changes who finds what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Helper modules of the unit tests, and ours.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from little_world import World, make_world  # found by the lines above

from spark.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with session("local[2]") as opened:
        # A world of some hundred records: of sixteen parts most would be empty, and each is a task. Commands of tests have as many as users'.
        opened.conf.set("spark.sql.shuffle.partitions", "3")
        yield opened


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))
