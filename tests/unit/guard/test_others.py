"""What a guard does in place of another that is silent (T21): closes what that one's broker remembers, and says so; never on account of its own silence."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from little_network import LittleNetwork, Log

from tdn.bus import topology
from tdn.bus.connection import Channel, Delivery
from tdn.errors import BrokerUnavailable
from tdn.guard.others import SILENT_BEATS, Others


class FakeChannel:
    """A channel that takes everything; a test says when it is closed or its consumer cancelled."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_cancelled(self, tell: Any) -> None:
        self.cancel = tell

    async def consume(self, queue: str, hear: Any, *, no_ack: bool) -> str:
        return "tag"


class Scene:
    """Guard g1 among g2 and g3, and the brokers as its management API shows them."""

    def __init__(self, net: LittleNetwork, log: Log) -> None:
        self._net = net
        self.channels: list[FakeChannel] = []
        self.spared: list[set[str]] = []
        self.broker: str | None = "b1"
        self.away = False
        self.sure = True
        #: Called while connections are being closed.
        self.meanwhile: Any = lambda: None
        self.others = Others(
            "g1",
            log.state,
            sure=lambda: self.sure,
            channel=self._channel,
            own_broker=self._own_broker,
            clear=self._clear,
            news=lambda: None,
        )

    async def _channel(self) -> Channel:
        self.channels.append(FakeChannel())
        return cast(Channel, self.channels[-1])

    async def _own_broker(self) -> str:
        if self.broker is None:
            raise BrokerUnavailable("away")
        return self.broker

    async def _clear(self, spared: frozenset[str]) -> None:
        if self.away:
            raise BrokerUnavailable("away")
        self.spared.append(set(spared))
        self.meanwhile()

    def speak(self, name: str, **said: Any) -> None:
        login = str(self._net.guard(name).identity.name)
        self.others.hear(Delivery(1, json.dumps({"applied": 1, **said}).encode(), {}, None, "", False, None, login))

    async def beats(self, count: int, *speaking: str) -> None:
        for _ in range(count):
            for name in speaking:
                self.speak(name, broker=name.replace("g", "b"))
            await self.others.beat()

    @property
    def cleared(self) -> list[str]:
        return list(cast(dict[str, Any], self.others.word().get("cleared", {})))


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    log = net.log()
    for name in ("g1", "g2", "g3"):
        log.put("enrol", net.enrol(net.guard(name)))
    return log


@pytest.fixture
def scene(net: LittleNetwork, log: Log, monkeypatch: pytest.MonkeyPatch) -> Scene:
    async def declare(channel: Channel, listener: str) -> str:
        return f"tdn.guards.{listener}"

    monkeypatch.setattr(topology, "declare_guards_queue", declare)
    return Scene(net, log)


async def test_one_that_is_silent(scene: Scene) -> None:
    """All but the brokers of those that speak; once, and until it speaks again."""
    await scene.beats(SILENT_BEATS, "g2", "g3")
    await scene.beats(SILENT_BEATS - 2, "g3")
    assert (scene.spared, scene.others.word()) == ([], {"broker": "b1"})
    await scene.beats(5, "g3")
    assert scene.spared == [{"b1", "b3"}]
    assert scene.others.word() == {"broker": "b1", "cleared": {"g2": None}}
    scene.speak("g2", broker="b2")
    assert scene.cleared == []
    await scene.beats(SILENT_BEATS, "g3")
    assert scene.spared == [{"b1", "b3"}] * 2
    assert scene.cleared == ["g2"]


async def test_it_says_what_it_heard_before_it_closed(scene: Scene) -> None:
    """Its own word may be on its way for long; whoever has heard later ones of the silent guard knows that it speaks of an earlier silence."""
    scene.speak("g2", broker="b2", word=[1000, 7])
    scene.speak("g2", broker="b2", word=[1000, 8])
    await scene.beats(SILENT_BEATS, "g3")
    assert scene.others.word()["cleared"] == {"g2": [1000, 8]}
    # The same after it was unsure for a moment: what it heard before is heard.
    scene.sure = False
    await scene.beats(1, "g3")
    scene.sure = True
    await scene.beats(SILENT_BEATS, "g3")
    assert scene.others.word()["cleared"] == {"g2": [1000, 8]}
    scene.speak("g2", broker="b2", word=[2000, 1])
    assert "cleared" not in scene.others.word()
    for bad in ([], [1], [1, 2, 3], 7, None, ["a", "b"], [1, 1e999]):
        scene.speak("g2", broker="b2", word=bad)
    await scene.beats(SILENT_BEATS, "g3")
    assert scene.others.word()["cleared"] == {"g2": [2000, 1]}


async def test_brokers_that_nobody_speaks_for(scene: Scene) -> None:
    """A guard that was never heard of has a broker that nobody knows."""
    await scene.beats(SILENT_BEATS)
    assert (scene.spared, scene.cleared) == ([{"b1"}], ["g2", "g3"])


async def test_one_that_speaks_for_no_broker(scene: Scene) -> None:
    """Whom it lets in would be cut off again and again; so nothing is closed, and nothing is said."""
    for _ in range(2 * SILENT_BEATS):
        scene.speak("g3")
        await scene.others.beat()
    assert (scene.spared, scene.cleared) == ([], [])
    await scene.beats(1, "g3")
    assert (scene.spared, scene.cleared) == ([{"b1", "b3"}], ["g2"])


async def test_its_own_broker_is_away(scene: Scene) -> None:
    scene.broker = None
    for _ in range(2 * SILENT_BEATS):
        with pytest.raises(BrokerUnavailable):
            await scene.beats(1, "g3")
    assert (scene.spared, scene.others.word()) == ([], {})


async def test_while_nothing_is_confirmed(scene: Scene) -> None:
    """Brokers that are short of memory take nobody's words. If the guards took each other for dead, they would cut off all who drain the queues."""
    await scene.beats(SILENT_BEATS, "g3")
    assert scene.cleared == ["g2"]
    scene.sure = False
    assert scene.cleared == []
    await scene.beats(3 * SILENT_BEATS)
    assert len(scene.spared) == 1
    scene.sure = True
    await scene.beats(SILENT_BEATS - 1, "g3")
    assert (len(scene.spared), scene.cleared) == (1, [])


async def test_it_says_so_only_when_it_is_done(scene: Scene) -> None:
    scene.away = True
    await scene.beats(SILENT_BEATS - 1, "g3")
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            await scene.beats(1, "g3")
        assert scene.cleared == []
    scene.away = False
    await scene.beats(1, "g3")
    assert scene.cleared == ["g2"]


async def test_one_that_speaks_meanwhile(scene: Scene) -> None:
    """It may have allowed something since."""
    scene.meanwhile = lambda: scene.speak("g2", broker="b2")
    await scene.beats(SILENT_BEATS, "g3")
    assert (len(scene.spared), scene.cleared) == (1, [])


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_guard_that_hears_nothing_itself(scene: Scene, how: str) -> None:
    """What it said of others counts no more, and they have their chance anew."""
    await scene.beats(SILENT_BEATS, "g3")
    assert scene.cleared == ["g2"]
    if how == "closed":
        scene.channels[0].closed.set_result(BrokerUnavailable("cut"))
    else:
        scene.channels[0].cancel()
    assert scene.cleared == []
    await scene.beats(SILENT_BEATS - 1)
    assert (len(scene.channels), len(scene.spared), scene.cleared) == (2, 1, [])


async def test_alone_it_listens_to_nobody(net: LittleNetwork, scene: Scene, log: Log) -> None:
    for name in ("g2", "g3"):
        log.put("revoke", net.revoke(f"guard:{name}", until=net.guard(name).identity.issued))
    await scene.beats(2 * SILENT_BEATS)
    assert (scene.channels, scene.spared, scene.others.word()) == ([], [], {})


async def test_only_guards_are_heard(net: LittleNetwork, scene: Scene) -> None:
    for _ in range(SILENT_BEATS):
        for login in (str(net.node("n1").identity.name), "g2", None):
            scene.others.hear(Delivery(1, b'{"broker": "b2"}', {}, None, "", False, None, login))
        for body in (b"not json", b"[]", b'{"broker": 7}'):
            scene.others.hear(Delivery(1, body, {}, None, "", False, None, str(net.guard("g3").identity.name)))
        await scene.others.beat()
    assert (scene.spared, scene.cleared) == ([], []), "g3 speaks, but does not say for which broker"
    await scene.beats(SILENT_BEATS)
    assert (scene.spared, scene.cleared) == ([{"b1"}], ["g2", "g3"])


async def test_how_far_the_others_are(scene: Scene) -> None:
    """What is trimmed must not be what one of them still needs: who was not heard is not known to have read anything; a silent one has what it had."""
    await scene.beats(1)
    assert scene.others.applied == {"g2": 0, "g3": 0}
    scene.speak("g2", applied=70)
    scene.speak("g3", applied="all")
    assert scene.others.applied == {"g2": 70, "g3": 0}
    await scene.beats(SILENT_BEATS + 1)
    assert scene.others.applied == {"g2": 70, "g3": 0}
