"""T21: what a guard says of itself goes on whatever becomes of the words, and it vouches for nobody when the others cannot hear it. RabbitMQ's part is
played; what each exchange is told, and when, is the guard's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pika.exceptions
import pytest
import pytest_asyncio
from little_network import LittleNetwork
from played_broker import PlayedChannel, PlayedConnection

from tdn.bus.connection import Channel
from tdn.cli.serve import guard_state
from tdn.guard import service
from tdn.guard.others import SILENT_BEATS
from tdn.guard.service import LEASE_SECONDS, Guard, GuardSettings
from tdn.protocol import names
from tests.live import until


@pytest_asyncio.fixture
async def guard(net: LittleNetwork, tmp_path: Path) -> AsyncIterator[Guard]:
    """One of three, which has read all of the log."""
    brokers: Any = ["b1", "b2", "b3"]
    settings = GuardSettings(brokers, "tdn", net.genesis, tmp_path / "store.sqlite", tmp_path, "", 0, ["https://b1"], "password")
    guard = Guard(net.guard("g1"), settings)
    guard._following = True
    guard._confirmed = time.monotonic()
    yield guard
    guard.replica.close()
    guard._audit.close()
    guard._memory.close()


@pytest.fixture
def broker(guard: Guard) -> PlayedConnection:
    connection: Any = PlayedConnection()
    guard._connection = connection
    return connection  # type: ignore[no-any-return]  # played


async def said(guard: Guard, broker: PlayedConnection, count: int) -> list[asyncio.Task[bool]]:
    """Words of which the broker says nothing yet."""
    words = [asyncio.create_task(guard._say({})) for _ in range(count)]
    await until(lambda: sum(len(channel.sent) for channel in broker.opened) >= count, "the words to be sent")
    return words


def ends(channel: PlayedChannel, error: Exception) -> None:
    channel.closed(channel, error)


#: What RabbitMQ says of a channel on which something was published to an exchange that is not there.
NOT_FOUND = pika.exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no exchange")


async def test_words_go_on_while_none_is_confirmed(guard: Guard, broker: PlayedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of several brokers hanging, nobody's word is confirmed; whoever waited for that would be taken for dead by the others."""
    monkeypatch.setattr(service, "BEAT_SECONDS", 0.02)
    began = time.monotonic()
    beating = asyncio.create_task(guard._beat())
    await until(lambda: broker.opened and len(broker.opened[0].sent) >= SILENT_BEATS, "the guard to speak on")
    assert time.monotonic() - began < LEASE_SECONDS
    assert guard.sure
    under_way = asyncio.all_tasks()
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() < under_way
    assert asyncio.all_tasks() == {asyncio.current_task()}, "what is under way ends with it"


async def test_the_broker_that_hung_is_declared_dead(guard: Guard, broker: PlayedConnection) -> None:
    """T22: RabbitMQ then refuses, at once, all words that were to reach a queue there. All guards stay sure: each says its words again. (When they were
    unsure at the same moment, nobody could do anything, and the counting of who is silent began anew.)"""
    seen: list[bool] = []
    words = await said(guard, broker, 3)
    assert guard.sure
    broker.opened[0].says(pika.spec.Basic.Nack, 3, multiple=True)
    while len(broker.opened) < 2 or len(broker.opened[1].sent) < 3:
        seen.append(guard.sure)
        await asyncio.sleep(0)
    broker.opened[1].says(pika.spec.Basic.Ack, 3, multiple=True)
    assert await asyncio.gather(*words) == [True] * 3
    assert all(seen)
    assert guard.sure


async def test_words_are_numbered(guard: Guard, broker: PlayedConnection, net: LittleNetwork, tmp_path: Path) -> None:
    """In the order in which they leave, also when they are said again; and those of the next process are others."""
    words = await said(guard, broker, 3)
    broker.opened[0].says(pika.spec.Basic.Nack, 3, multiple=True)
    await until(lambda: len(broker.opened) == 2 and len(broker.opened[1].sent) == 3, "the words to be said again")
    broker.opened[1].says(pika.spec.Basic.Ack, 3, multiple=True)
    await asyncio.gather(*words)
    numbers = [json.loads(body)["word"] for channel in broker.opened for body in channel.sent]
    assert numbers == [[numbers[0][0], number] for number in range(1, 7)]
    assert 0 <= time.time_ns() - numbers[0][0] < 60e9
    following = Guard(net.guard("g1"), replace(guard._settings, store=tmp_path / "other" / "store.sqlite"))
    assert following._began > guard._began
    following.replica.close()
    following._audit.close()
    following._memory.close()


async def test_words_that_are_refused_again(guard: Guard, broker: PlayedConnection) -> None:
    """Then they are nowhere."""
    words = await said(guard, broker, 2)
    broker.opened[0].says(pika.spec.Basic.Nack, 2, multiple=True)
    await until(lambda: len(broker.opened) == 2 and len(broker.opened[1].sent) == 2, "the words to be said again")
    broker.opened[1].says(pika.spec.Basic.Nack, 2, multiple=True)
    assert await asyncio.gather(*words) == [False] * 2
    assert not guard.sure
    assert guard.readiness()["reason"] == "the broker has taken no word of it for 3 s"


async def test_a_word_that_is_refused_again_takes_back_no_later_one(guard: Guard, broker: PlayedConnection) -> None:
    (word,) = await said(guard, broker, 1)
    broker.opened[0].says(pika.spec.Basic.Nack, 1)
    await until(lambda: len(broker.opened) == 2 and broker.opened[1].sent, "the word to be said again")
    guard._channels.clear()
    later = asyncio.create_task(guard._say({}))
    await until(lambda: len(broker.opened) == 3 and broker.opened[2].sent, "another word")
    broker.opened[1].says(pika.spec.Basic.Nack, 1)
    assert not await word
    assert guard.sure
    broker.opened[2].says(pika.spec.Basic.Ack, 1)
    assert await later


async def test_before_there_is_such_an_exchange(guard: Guard, broker: PlayedConnection) -> None:
    """Whoever nobody hears vouches for nobody, however well the rest goes; also when words were on their way together."""
    for count in (1, 3):
        words = await said(guard, broker, count)
        ends(broker.opened[-1], NOT_FOUND)
        assert await asyncio.gather(*words) == [False] * count
        assert not guard.sure
        broker.opened.clear()


async def test_without_a_connection_nothing_is_said(guard: Guard, broker: PlayedConnection) -> None:
    (word,) = await said(guard, broker, 1)
    broker.opened[0].says(pika.spec.Basic.Ack, 1)
    assert await word
    assert guard.sure
    guard._connection = None
    guard._channels.clear()
    assert not await guard._say({})
    assert not guard.sure


async def test_most_brokers_are_asked_meanwhile(guard: Guard, broker: PlayedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel for words is made anew, and that takes its time: what most brokers say does not wait for it."""
    monkeypatch.setattr(service, "BEAT_SECONDS", 0.02)
    waits = asyncio.Event()
    guard._channels[names.MAJORITY] = await broker.channel(confirms=True)
    monkeypatch.setattr(broker, "channel", lambda **how: waits.wait())
    speaking = asyncio.create_task(guard._say({}))
    await asyncio.sleep(0)
    asking = asyncio.create_task(guard._ask_majority())
    for number in range(3):
        await until(lambda number=number: len(broker.opened[0].sent) > number, "most brokers to be asked", seconds=2)
        before = guard._confirmed
        broker.opened[0].says(pika.spec.Basic.Ack, number + 1)
        await until(lambda before=before: guard._confirmed > before, "the answer to count", seconds=2)
    for task in (speaking, asking):
        task.cancel()
    await asyncio.gather(speaking, asking, return_exceptions=True)


async def test_the_time_that_a_channel_takes_is_not_the_answers(
    guard: Guard, broker: PlayedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is believed from the moment before it was asked for."""
    opens, opened = broker.channel, 0.0

    async def slowly(**how: Any) -> Channel:
        nonlocal opened
        await asyncio.sleep(0.05)
        opened = time.monotonic()
        return await opens(**how)

    monkeypatch.setattr(broker, "channel", slowly)
    asking = asyncio.create_task(guard._ask_majority())
    await until(lambda: broker.opened and broker.opened[0].sent, "most brokers to be asked")
    sent = time.monotonic()
    broker.opened[0].says(pika.spec.Basic.Ack, 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    assert opened <= guard._confirmed <= sent


async def test_a_doubt_ends_with_the_guard(guard: Guard, broker: PlayedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left who looks whether a connection answers that nobody has any more."""
    waits = asyncio.Event()

    async def listen() -> Any:
        return SimpleNamespace(cleanup=lambda: asyncio.sleep(0))

    monkeypatch.setattr(broker, "answers", waits.wait)
    monkeypatch.setattr(guard, "_follow", waits.wait)
    monkeypatch.setattr(guard, "_management", contextlib.nullcontext())
    monkeypatch.setattr(service.trim_policy, "watch", lambda _: waits.wait())
    monkeypatch.setattr(guard._answering, "listen", listen)
    guard._doubt()
    stop = asyncio.Event()
    stop.set()
    await guard.run(stop)
    assert guard._doubting is not None
    assert guard._doubting.cancelled()


@pytest.mark.parametrize(
    ("following", "said", "confirmed", "reason"),
    [
        (True, 0.0, 0.0, None),
        (True, LEASE_SECONDS, 0.0, "the broker has taken no word of it for 3 s"),
        (True, 0.0, LEASE_SECONDS, "the broker has confirmed nothing for 3 s"),
        (False, 0.0, 0.0, "it has not read all of the log"),
    ],
    ids=["all is well", "no word got out", "nothing is confirmed", "the log is not read"],
)
def test_who_is_sure(
    guard: Guard, broker: PlayedConnection, following: bool, said: float, confirmed: float, reason: str | None
) -> None:
    guard._following = following
    guard._said, guard._confirmed = time.monotonic() - said, time.monotonic() - confirmed
    told = guard.readiness()
    assert (told["ready"], told.get("reason")) == (reason is None, reason)
    assert guard.sure is (reason is None)
    # And so `tdn status` and `tdn doctor` know it.
    in_the_home = guard_state(guard, None)
    assert (in_the_home["ready"], in_the_home["why"]) == (reason is None, reason)
