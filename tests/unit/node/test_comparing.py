"""T22: a node that compares goes on hearing the others whatever becomes of its words, and knows it when it hears nobody. RabbitMQ's part is played."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pika
import pika.exceptions
import pytest
from little_network import LittleNetwork
from played_broker import PlayedChannel, PlayedConnection

from tdn.errors import BrokerUnavailable, LogDiverged
from tdn.node import comparing as module
from tdn.node.comparing import Comparing
from tests.live import until

HEAD = "1" * 64


class Scene:
    """Node n1, whose store and log end at record 10, among n2 and a guard."""

    def __init__(self, net: LittleNetwork) -> None:
        self._net = net
        self.broker = PlayedConnection()
        self.comparing: Comparing

    async def open(self, *, wait_seconds: float = 60.0) -> None:
        records = SimpleNamespace(head=lambda seq: HEAD)
        replica = SimpleNamespace(position=(10, HEAD), found=10, records=records)
        name = self._net.node("n1").identity.name
        self.comparing = await Comparing.open(cast(Any, self.broker), cast(Any, replica), name, wait_seconds=wait_seconds)

    @property
    def listening(self) -> PlayedChannel:
        (channel,) = (channel for channel in self.broker.opened if channel.deliver is not None)
        return channel

    def settle(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.comparing.settle(lambda: frozenset({"node:n1", "node:n2", "guard:g1"})))

    def speaks(self, node: str, seq: int = 10, **word: Any) -> None:
        self.listening.delivers(
            self._net.node(node).identity.name,
            json.dumps({"seq": seq, "head": HEAD, "log": 10, "settled": False, "torn": False} | word).encode(),
        )

    def refuses_everything(self) -> None:
        """As RabbitMQ does once a broker with somebody's queue is declared dead; without confirms nobody is told."""
        for channel in self.broker.opened:
            if channel.confirmed is not None and channel.is_open and channel.sent:
                channel.says(pika.spec.Basic.Nack, len(channel.sent), multiple=True)

    @property
    def words(self) -> int:
        return sum(len(channel.sent) for channel in self.broker.opened)


@pytest.fixture
def scene(net: LittleNetwork, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(module, "_SAY_SECONDS", 0.02)
    monkeypatch.setattr(module, "_FRESH_SECONDS", 0.2)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    return Scene(net)


async def test_its_words_are_refused_and_it_still_hears(scene: Scene) -> None:
    """Somebody has more of the log than it. If it heard nobody any more, it would append before that was put back."""
    await scene.open(wait_seconds=0.1)
    settling = scene.settle()
    for _ in range(30):
        scene.speaks("n2", 12)
        scene.refuses_everything()
        await asyncio.sleep(0.02)
    assert not settling.done()
    before = scene.words
    await until(lambda: scene.words > before, "it to speak on")
    settling.cancel()


async def test_one_that_has_compared_answers_whoever_comes_later(scene: Scene) -> None:
    await scene.open()
    settling = scene.settle()
    scene.speaks("n2", settled=True)
    await settling
    for number in range(3):
        scene.refuses_everything()
        before = scene.words
        scene.speaks("n2")
        assert scene.words == before + 1, number
    assert not scene.comparing.broken.done()


@pytest.mark.parametrize("how", ["it hears nobody", "the broker ends its consumer", "nobody hears it"])
@pytest.mark.parametrize("settled", [False, True])
async def test_a_channel_that_ends(scene: Scene, how: str, settled: bool) -> None:
    """It does not take the others to be away: it connects anew, also when it serves already."""
    await scene.open()
    settling = scene.settle()
    await asyncio.sleep(0)
    if settled:
        scene.speaks("n2", settled=True)
        await settling
    if how == "the broker ends its consumer":
        scene.listening.cancelled(None)
    else:
        channel = next(one for one in scene.broker.opened if (one is scene.listening) == (how == "it hears nobody"))
        channel.closed(channel, pika.exceptions.ChannelClosedByBroker(404, "gone"))
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(scene.comparing.broken if settled else settling, 5)


async def test_that_stores_disagree_is_said_before_it_stops(scene: Scene) -> None:
    await scene.open()
    settling = scene.settle()
    scene.speaks("n2", torn=True)
    await until(lambda: any(b'"torn": true' in one for channel in scene.broker.opened for one in channel.sent), "it to say so")
    assert not settling.done(), "until the broker has it"
    scene.broker.opened[-1].says(pika.spec.Basic.Ack, 1)
    with pytest.raises(LogDiverged):
        await settling
