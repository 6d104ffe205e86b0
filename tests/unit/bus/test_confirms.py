"""What a broker did not take: whoever sent it is told, and so is whoever waits on the same channel, which is closed. pika's channel is played."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from tdn.bus.connection import Channel
from tdn.errors import BrokerUnavailable


class Played:
    """What `Channel` uses of pika's channel; the broker's words are the test's."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[bytes] = []
        self.confirmed: Callable[[Any], None]

    def add_on_close_callback(self, told: Callable[..., None]) -> None:
        self.closed = told

    def add_on_return_callback(self, told: Callable[..., None]) -> None:
        self.returned = told

    def confirm_delivery(self, told: Callable[[Any], None], *, callback: Callable[[Any], None]) -> None:
        self.confirmed = told
        callback(None)

    def basic_publish(self, exchange: str, key: str, body: bytes, properties: Any, *, mandatory: bool) -> None:
        self.sent.append(body)

    def close(self) -> None:
        self.is_open = False

    def says(self, method: type[Any], tag: int, *, multiple: bool = False) -> None:
        self.confirmed(SimpleNamespace(method=method(delivery_tag=tag, multiple=multiple)))


async def open_channel() -> tuple[Played, Channel]:
    raw = Played()
    channel = Channel(raw)
    await channel.confirm()
    return raw, channel


async def test_a_channel_on_which_nothing_is_taken_is_closed() -> None:
    """T22: RabbitMQ goes on refusing on a channel that has met a queue without a leader. What was sent after the refused message may be refused too, so
    its sender is told at once, and the next message waits for another channel."""
    raw, channel = await open_channel()
    taken, refused, after = (channel.publish("exchange", "", body) for body in (b"1", b"2", b"3"))
    raw.says(pika.spec.Basic.Ack, 1)
    raw.says(pika.spec.Basic.Nack, 2)
    await taken
    for told in (refused, after, channel.publish("exchange", "", b"4")):
        with pytest.raises(BrokerUnavailable, match="did not take"):
            await told
    assert (raw.is_open, raw.sent) == (False, [b"1", b"2", b"3"])
    assert isinstance(channel.closed.result(), BrokerUnavailable)
    # What the broker says of a message before it has read that the channel is closed comes too late, and changes nothing.
    raw.says(pika.spec.Basic.Ack, 3)


async def test_several_at_once() -> None:
    raw, channel = await open_channel()
    sent = [channel.publish("exchange", "", b"") for _ in range(3)]
    raw.says(pika.spec.Basic.Nack, 2, multiple=True)
    for told in sent:
        with pytest.raises(BrokerUnavailable, match="did not take"):
            await told


async def test_nobody_waits_any_more_for_what_was_refused() -> None:
    """The next message must not meet the same refusal on the same channel."""
    raw, channel = await open_channel()
    given_up = channel.publish("exchange", "", b"1")
    given_up.cancel()
    raw.says(pika.spec.Basic.Nack, 1)
    assert not raw.is_open
    assert isinstance(channel.closed.result(), BrokerUnavailable)


async def test_a_message_that_came_back_leaves_the_channel_open() -> None:
    """Nobody was there to take it: nothing is wrong with the broker."""
    raw, channel = await open_channel()
    returned = channel.publish("exchange", "", b"1", mandatory=True, message_id="a")
    raw.returned(raw, None, SimpleNamespace(message_id="a"), b"1")
    raw.says(pika.spec.Basic.Ack, 1)
    with pytest.raises(BrokerUnavailable, match="nobody is there"):
        await returned
    assert raw.is_open
    following = channel.publish("exchange", "", b"2")
    raw.says(pika.spec.Basic.Ack, 2)
    await following
