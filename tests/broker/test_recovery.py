"""`tdn up` when only a part of the network has died."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from entity_client import EntityClient, path
from tdn.protocol.names import Role
from tests.live import LiveNetwork, wait_for

pytestmark = pytest.mark.broker

Connect = Callable[..., Awaitable[EntityClient]]


async def test_up_brings_back_a_broker_that_died_alone(mortal: LiveNetwork, connect: Connect) -> None:
    """T22: guard and nodes went on; they are neither moved to other ports nor restarted, and what was acknowledged is there."""
    client = await connect(mortal, timeout=40.0)
    topic = await client.create(path("before/the/crash"))
    ports, guard = mortal.home.ports(), mortal.network.process(Role.GUARD, "g1").pid
    broker = mortal.network.broker()
    broker._broker.kill_hard()  # type: ignore[attr-defined]  # the broker alone: epmd stays, as after a crash
    wait_for(lambda: not broker.alive(), "the broker to be gone")
    mortal.up()
    assert mortal.home.ports() == ports
    assert mortal.network.process(Role.GUARD, "g1").pid == guard
    assert (await client.show(topic.uuid)).uuid == topic.uuid
