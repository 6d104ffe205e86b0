"""What a broker did not take: whoever sent it is told, and so is whoever waits on the same channel, which is closed. pika's channel is played."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

import pika
import pytest
from played_broker import PlayedChannel

from tdn.bus.connection import Channel
from tdn.errors import BrokerUnavailable


async def open_channel() -> tuple[PlayedChannel, Channel]:
    raw = PlayedChannel()
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


async def test_nobody_ever_waits_for_it() -> None:
    """What is said twice a second and never waited for is no news at exit when it was refused."""
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(str(context["message"])))
    raw, channel = await open_channel()
    channel.publish("exchange", "", b"1", mandatory=True, message_id="a")
    raw.returned(raw, None, SimpleNamespace(message_id="a"), b"1")
    raw.says(pika.spec.Basic.Ack, 1)
    channel.publish("exchange", "", b"2")
    raw.says(pika.spec.Basic.Nack, 2)
    gc.collect()
    assert unheard == []
