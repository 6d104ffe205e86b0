"""T20, T22: what a subscriber does while brokers or nodes are away. Broker and nodes are played, and so is the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork, fresh_uuid

from entity_client import messaging
from entity_client.messaging import Subscription
from tdn.bus.connection import Delivery
from tdn.errors import BrokerUnavailable, LoginRefused, NoNodeAnswered, Refused, TdnError
from tdn.protocol.names import Name, Role
from tdn.trust import messages

NET = LittleNetwork("subscribing")
TOPIC = fresh_uuid()
AWAY = BrokerUnavailable("no broker answered in time; nothing was changed, and nothing can be until a broker is back")
NOBODY = NoNodeAnswered("no node answered in time")
NOBODY_IN = LoginRefused("the broker refused the login of alice: its key is revoked or superseded, or the guard does not answer")
BEHIND = Refused("the broker refused it", detail={"broker": "ACCESS_REFUSED"})


class Played:
    """A client, its session, the broker and its channels in one. `happens` when a node is asked, each in turn: an error, or all is well."""

    network = NET.id
    credentials = NET.entity("alice")
    identity = credentials.identity
    timeout = 5.0
    seen = 0
    guards_may_be_late = True

    def __init__(self, *happens: TdnError | None) -> None:
        self._happens = list(happens)
        self.asked = 0
        self.reads, self.asked_again = asyncio.Event(), asyncio.Event()
        self.ended: list[asyncio.Future[None]] = []
        self._deliver: Callable[[Delivery], None] | None = None

    async def ask_pages(self, kind: str, body: Any) -> list[Any]:
        self.asked += 1
        if self.asked == 3:
            self.asked_again.set()
        if self._happens and (error := self._happens.pop(0)) is not None:
            raise error
        return [SimpleNamespace(kind="ready", body={"uuid": TOPIC, "queue": "secret"})]

    async def line(self, timeout: float) -> Any:
        return self

    async def channel(self, *, prefetch: int) -> Any:
        self.ended.append(asyncio.get_running_loop().create_future())
        return SimpleNamespace(
            closed=self.ended[-1], close=self._close, on_cancelled=lambda _: None, consume=self._consume, ack=lambda _: None
        )

    async def _close(self) -> None: ...

    async def _consume(self, queue: str, deliver: Callable[[Delivery], None]) -> None:
        self._deliver = deliver
        self.reads.set()

    def lose(self) -> None:
        self.reads.clear()
        self.ended[-1].set_result(None)

    def publish(self, text: str) -> None:
        body, kind = messages.write(
            text.encode(), messages.TEXT, sender=None, readers=None, topic=TOPIC, network=NET.id, message_id=text, now=datetime.now(UTC)
        )
        assert self._deliver is not None
        who = str(Name(Role.ENTITY, "bob", "0" * 64))
        self._deliver(cast(Delivery, SimpleNamespace(
            tag=1, body=body, content_type=kind, message_id=text, exchange=TOPIC, login=who, sent=None, redelivered=False
        )))  # fmt: skip

    def subscribe(self) -> Subscription:
        return Subscription(cast(Any, self), cast(Any, self), TOPIC, children=False, depth=None, signed_only=False)


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "_AGAIN_SECONDS", 0.0)
    # Every look at the clock is a minute and a half after the last.
    monkeypatch.setattr(messaging, "time", SimpleNamespace(monotonic=count(0.0, 90.0).__next__))


async def _next(subscription: Subscription, played: Played, text: str) -> str:
    """A message that is published as soon as somebody reads; or why nobody will."""
    waiting = asyncio.ensure_future(anext(subscription))
    reads = asyncio.ensure_future(played.reads.wait())
    await asyncio.wait([waiting, reads], return_when=asyncio.FIRST_COMPLETED)
    reads.cancel()
    if not waiting.done():
        played.publish(text)
    return (await waiting).body.decode()


async def test_it_goes_on_however_long_they_are_away(caplog: pytest.LogCaptureFixture) -> None:
    """Two of three brokers are dead for minutes, then no node is there, then a guard is behind: what was published meanwhile is given all the same."""
    played = Played(None, AWAY, AWAY, AWAY, NOBODY, NOBODY)
    async with played.subscribe() as subscription:
        assert await _next(subscription, played, "one") == "one"
        played.lose()
        assert await _next(subscription, played, "two") == "two"
    assert played.asked == 7
    (interrupted, goes_on) = [record.getMessage() for record in caplog.records]
    assert interrupted == f"the subscription to {TOPIC} is interrupted and will go on by itself: no broker answered in time"
    assert goes_on == f"the subscription to {TOPIC} goes on"


async def test_a_guard_that_is_behind_after_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The minute for it begins when the brokers are back, not when they were lost."""
    moments = iter([0.0, 70.0, 71.0, *[200.0] * 10])
    monkeypatch.setattr(messaging, "time", SimpleNamespace(monotonic=moments.__next__))
    played = Played(None, AWAY, BEHIND)
    async with played.subscribe() as subscription:
        played.lose()
        assert await _next(subscription, played, "one") == "one"


@pytest.mark.parametrize(("second_look", "goes_on"), [(125.0, True), (131.0, False)])
async def test_guards_that_let_nobody_in_yet(monkeypatch: pytest.MonkeyPatch, second_look: float, goes_on: bool) -> None:
    """The brokers are back, and what their guards have to read of the log takes them longer than a login waits for it. A minute of that is enough."""
    moments = iter([0.0, 70.0, 71.0, *[second_look] * 10])
    monkeypatch.setattr(messaging, "time", SimpleNamespace(monotonic=moments.__next__))
    played = Played(None, AWAY, NOBODY_IN, NOBODY_IN)
    async with played.subscribe() as subscription:
        played.lose()
        if goes_on:
            assert await _next(subscription, played, "one") == "one"
        else:
            with pytest.raises(LoginRefused):
                await _next(subscription, played, "one")


async def test_one_whose_key_is_over_ends() -> None:
    """It was cut off, and told so."""
    played = Played(None, NOBODY_IN)
    played.guards_may_be_late = False
    async with played.subscribe() as subscription:
        played.lose()
        with pytest.raises(LoginRefused):
            await _next(subscription, played, "one")


async def test_one_that_is_refused_ends() -> None:
    played = Played(None, AWAY, Refused("the grant was revoked"))
    async with played.subscribe() as subscription:
        played.lose()
        with pytest.raises(Refused, match="the grant was revoked"):
            await _next(subscription, played, "one")


async def test_nobody_to_ask_whether_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are away, the broker is not: messages go on coming."""
    monkeypatch.setattr(messaging, "_CHECK_SECONDS", 0.01)
    played = Played(None, NOBODY)
    async with played.subscribe() as subscription:
        waiting = asyncio.ensure_future(anext(subscription))
        async with asyncio.timeout(5):
            await played.asked_again.wait()
        played.publish("one")
        assert (await waiting).body == b"one"
