"""T20, T22: what a publisher does when its connection is lost, or its broker hangs. Broker and nodes are played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork, fresh_uuid

from entity_client import messaging
from entity_client.messaging import Publisher
from tdn.errors import BrokerUnavailable, Refused, TdnError

NET = LittleNetwork("publishing")
TOPIC = fresh_uuid()
HANGS = None
LOST = BrokerUnavailable("the connection is gone")
NO = Refused("the broker refused it", detail={"broker": "ACCESS_REFUSED"})


class Played:
    """A client, its session, the broker and its channels in one. `happens` to each message in turn: an error, no answer at all, or it is taken."""

    network = NET.id
    credentials = NET.entity("alice")
    identity = credentials.identity
    timeout = 5.0
    seen = 0

    def __init__(self, *happens: TdnError | str | None, has_choice: bool = True, lines: tuple[TdnError | None, ...] = ()) -> None:
        self._happens = list(happens)
        self._lines = list(lines)
        self.has_choice = has_choice
        self.opened = self.asked = 0
        self.left: list[Any] = []
        self._waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.set_result(None)
        #: Whether the broker is found to be away when it is doubted.
        self.is_gone = False
        #: Whether a message is still on its way to the broker.
        self.is_sending = False
        self.sent: list[str] = []

    async def ask_pages(self, kind: str, body: Any) -> list[Any]:
        self.asked += 1
        return [SimpleNamespace(kind="ready", body={"uuid": TOPIC})]

    async def line(self, timeout: float) -> Any:
        if self._lines and (error := self._lines.pop(0)) is not None:
            raise error
        return self

    def leave(self, connection: Any) -> None:
        self.left.append(connection)
        self._end(LOST)

    @contextlib.contextmanager
    def suspecting(self, connection: Any) -> Iterator[None]:
        assert connection is self
        doubting = asyncio.get_running_loop().call_later(0.02, self._doubt)
        yield
        doubting.cancel()

    def _doubt(self) -> None:
        if self.is_gone:
            self._end(LOST)

    def _end(self, error: TdnError) -> None:
        assert self.publisher._channel is not None
        self.publisher._channel.closed.set_result(error)
        if not self._waiting.done():
            self._waiting.set_exception(error)

    async def channel(self, *, confirms: bool) -> Any:
        self.opened += 1
        closed: asyncio.Future[TdnError] = asyncio.get_running_loop().create_future()
        return SimpleNamespace(closed=closed, publish=self._publish, close=self._close)

    async def _close(self) -> None: ...

    def _publish(self, topic: str, key: str, body: bytes, *, message_id: str, **how: Any) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._sent(message_id))

    async def _sent(self, message_id: str) -> None:
        self.sent.append(message_id)
        happens = self._happens.pop(0)
        if happens is HANGS:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if isinstance(happens, TdnError):
            self._end(happens)
            raise happens

    def publish_to(self) -> Publisher:
        self.publisher = Publisher(cast(Any, self), cast(Any, self), TOPIC, sign=False, encrypt=False)
        return self.publisher


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(messaging, "_CONFIRM_SECONDS", 0.05)


async def test_a_lost_connection_asks_no_node() -> None:
    """What was ready a moment ago still is: the message is sent again, under the same id, as soon as a broker lets us in."""
    played = Played("taken", LOST, "taken", LOST, "taken")
    async with played.publish_to() as publisher:
        for text in ("one", "two", "three"):
            await publisher.publish(text)
    assert (played.asked, played.opened) == (1, 3)
    assert len(played.sent) == 5
    assert len(set(played.sent)) == 3


@pytest.mark.parametrize(
    ("happens", "lines"),
    [((NO,), ()), ((LOST,), ()), ((), (None, BrokerUnavailable("not yet")))],
    ids=["refused", "lost once more", "no broker"],
)
async def test_a_node_is_asked_when_that_was_not_all(happens: tuple[TdnError, ...], lines: tuple[TdnError | None, ...]) -> None:
    """It says whether we may, and makes what is missing."""
    played = Played("taken", LOST, *happens, "taken", lines=lines)
    async with played.publish_to() as publisher:
        await publisher.publish("one")
        await publisher.publish("two")
    assert played.asked == 2


async def test_who_was_never_served_asks_first() -> None:
    played = Played(LOST, LOST, "taken")
    async with played.publish_to() as publisher:
        await publisher.publish("one")
    assert played.asked == 3


async def test_a_broker_that_hangs_is_left() -> None:
    """Where there is another. Its heartbeats would show it after 10 to 20 s, or never, if it only has no leader for the queue."""
    played = Played("taken", HANGS, "taken")
    async with played.publish_to() as publisher:
        await publisher.publish("one")
        await publisher.publish("two")
    assert (played.left, played.asked, played.sent[1]) == ([played], 1, played.sent[2])


async def test_a_message_that_is_still_on_its_way_is_not_overdue() -> None:
    """T22: 16 MB on a slow line take longer than a broker may take to confirm them. When all of it is sent, and not before, that begins to count."""
    played = Played("taken", HANGS, "taken")
    played.is_sending = True
    async with played.publish_to() as publisher:
        await publisher.publish("one")
        publishing = asyncio.create_task(publisher.publish("a long one"))
        await asyncio.sleep(0.2)
        assert (played.left, len(played.sent)) == ([], 2)
        played.is_sending = False
        await publishing
    assert (played.left, len(played.sent)) == ([played], 3)


async def test_the_only_broker_is_waited_for() -> None:
    """As long as it is there."""
    played = Played(HANGS, has_choice=False)
    played.timeout = 0.4
    async with played.publish_to() as publisher:
        with pytest.raises(BrokerUnavailable, match="may arrive all the same"):
            await publisher.publish("one")
    assert (played.left, len(played.sent)) == ([], 1)


async def test_a_connection_that_leads_nowhere_is_left() -> None:
    """The message goes out again over the next one, also to the only broker."""
    played = Played("taken", HANGS, "taken", has_choice=False)
    played.is_gone = True
    async with played.publish_to() as publisher:
        await publisher.publish("one")
        await publisher.publish("two")
    assert (played.left, played.opened, played.sent[1]) == ([], 2, played.sent[2])
