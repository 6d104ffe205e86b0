"""What is attacked: the broker that `--redteam-target FILE` or $TDN_REDTEAM_TARGET describes, or a private network of our own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import lasting
from tests.live import LiveNetwork
from tests.redteam.ours import Ours, set_up
from tests.redteam.target import Oracle, Target, read_target


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--redteam-target", metavar="FILE", help="attack the broker that this file describes (tests/redteam/README.md)"
    )


def _file(config: pytest.Config) -> str | None:
    # Absent when the whole test suite runs: pytest then reads this file too late for options.
    return config.getoption("--redteam-target", None) or os.environ.get("TDN_REDTEAM_TARGET")


@pytest.fixture(scope="session")
def private(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours | None]:
    """One network for the whole suite, unless another broker is the target."""
    if _file(request.config):
        yield None
        return
    live = lasting("private", LiveNetwork(tmp_path_factory.mktemp("red team") / "home"))
    try:
        live.up()
        yield set_up(live)
    finally:
        live.end()


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, private: Ours | None) -> Target:
    if private is not None:
        return private.target
    return read_target(Path(str(_file(request.config))))


@pytest.fixture
def ours(private: Ours | None) -> Ours:
    """For what is about grants, nodes and guards."""
    if private is None:
        pytest.skip("about our own network; the target is another broker")
    return private


@pytest.fixture(scope="session")
def oracle(target: Target) -> Iterator[Oracle]:
    oracle = Oracle(target)
    yield oracle
    oracle.close()
