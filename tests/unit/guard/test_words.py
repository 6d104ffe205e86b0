"""T21: what a guard says of itself goes on whatever becomes of the words, and it vouches for nobody when the others cannot hear it. RabbitMQ's part is
played; what each exchange is told, and when, is the guard's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pika
import pika.exceptions
import pytest
import pytest_asyncio
from little_network import LittleNetwork
from played_broker import PlayedChannel, PlayedConnection

from tdn.bus.connection import Channel
from tdn.cli.serve import guard_state
from tdn.errors import BrokerUnavailable
from tdn.guard import service
from tdn.guard.enforcing import Cut
from tdn.guard.others import SILENT_BEATS
from tdn.guard.service import LEASE_SECONDS, Guard, GuardSettings
from tdn.protocol import names
from tdn.rules.state import LogRecord, Outcome
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


# --- sure ---


@pytest.mark.parametrize(
    ("elsewhere", "end"),
    [
        ({"b2": 7, "b3": "away"}, 7),
        ({"b2": 7, "b3": "hanging"}, 7),
        ({"b2": "away", "b3": "hanging"}, 5),
        # Two others are most of five, with this one's own copy.
        ({"b2": 7, "b3": 9, "b4": "hanging", "b5": "hanging"}, 9),
        ({}, 5),
    ],
)
async def test_a_broker_whose_copy_of_the_log_still_grows(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, elsewhere: dict[Any, int | str], end: int
) -> None:
    """T21: what is its end is not the log's; another broker says that. Who does not say is not waited for, where most have said."""
    asked, left = list[str](), list[str]()

    async def open_one(brokers: list[Any], *_: Any, **__: Any) -> Any:
        (broker,) = brokers
        asked.append(broker)
        if elsewhere[broker] == "away":
            raise BrokerUnavailable("away")
        if elsewhere[broker] == "hanging":
            await asyncio.Event().wait()
        return SimpleNamespace(broker=broker, abandon=lambda: left.append(broker), give_up=lambda _: None)

    async def last_offset(connection: Any) -> Any:
        return elsewhere[connection.broker]

    monkeypatch.setattr(service.Connection, "open", open_one)
    monkeypatch.setattr(service.log, "last_offset", last_offset)
    # Waited for only where it has to be.
    monkeypatch.setattr(service, "_END_SECONDS", 60.0 if end > 5 else 0.05)
    monkeypatch.setattr(guard, "_settings", replace(guard._settings, brokers=cast(Any, ["b1", *elsewhere])))
    guard.replica._found_offset = 5
    own: Any = SimpleNamespace(broker="b1")
    catching_up = asyncio.create_task(guard._catch_up(own))
    await asyncio.sleep(0)
    assert asked == [], "its own copy is read first"
    guard.replica.caught_up.set()
    await until(lambda: sorted(asked) == sorted(elsewhere), "the others to be asked")
    saying = sorted(broker for broker, said in elsewhere.items() if isinstance(said, int))
    await until(lambda: sorted(left) == saying, "their connections to be left")
    for _ in range(5):
        await asyncio.sleep(0)
    for offset in range(6, end + 1):
        assert not catching_up.done()
        guard.replica._found_offset = offset
        guard.replica._told()
        await asyncio.sleep(0)
    await asyncio.wait_for(catching_up, 5)


async def test_a_broker_that_hangs_after_connecting_is_not_waited_for_either(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21: what was ended meanwhile is ended here when this guard has caught up, and not before. RabbitMQ would be given 5 s to close the channel."""
    raw = MagicMock(is_open=True)
    hanging = Channel(raw)

    def answer(*_: Any, callback: Callable[[Any], None], **__: Any) -> str:
        callback(SimpleNamespace(method=SimpleNamespace(message_count=1)))
        return "consumer"

    raw.queue_declare, raw.basic_consume = answer, answer

    async def open_one(*_: Any, **__: Any) -> Any:
        async def channel(**_: Any) -> Channel:
            return hanging

        return SimpleNamespace(channel=channel, give_up=hanging.end, abandon=lambda: None)

    monkeypatch.setattr(service.Connection, "open", open_one)
    monkeypatch.setattr(service, "_END_SECONDS", 0.05)
    monkeypatch.setattr("tdn.bus.connection._GOODBYE_SECONDS", 3600.0)
    assert await asyncio.wait_for(guard._end_at(cast(Any, "b2")), 5) is None


# --- done -----------------------------------------------------------------------------------------------------------------------------


class Ending:
    """Looks through the broker that last until they are let go; the logins that each was to close."""

    def __init__(self) -> None:
        self.begun: list[dict[str, str]] = []
        self.may_end = asyncio.Event()
        self.cancelled = 0

    async def settle_all(self, logins: dict[str, str]) -> Cut:
        self.begun.append(dict(logins))
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Cut(queues=1)


@pytest.fixture
def ending(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> Ending:
    """The log is read up to record 9."""
    ending = Ending()
    monkeypatch.setattr(guard, "_enforcer", ending)
    monkeypatch.setattr(type(guard.replica), "position", (9, "head"))
    monkeypatch.setattr(guard._memory, "complete", True)
    return ending


async def test_it_is_done_when_everything_is(guard: Guard, ending: Ending) -> None:
    """T21: whoever waits for a guard waits until it has ended what earlier records end, too."""
    first, second = asyncio.Event(), asyncio.Event()
    guard._begin(first.wait(), 6)  # type: ignore[arg-type]
    guard._begin(second.wait(), 8)  # type: ignore[arg-type]
    unnumbered = guard._begin(asyncio.Event().wait(), None)  # type: ignore[arg-type]
    assert guard._done == 5
    first.set()
    await until(lambda: guard._done == 7, "the first to be done")
    second.set()
    await until(lambda: guard._done == 9, "the second to be done")
    unnumbered.cancel()


async def test_a_look_that_is_not_done_when_the_next_begins(
    guard: Guard, broker: PlayedConnection, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22: after a second loss of the connection one look goes on, for all that was missed before either; and it is said for all of it."""
    told: list[tuple[int, int]] = []

    async def tell(seq: int, cut: Cut) -> None:
        told.append((seq, cut.queues))

    monkeypatch.setattr(guard, "_tell", tell)
    guard._missed, guard._missed_logins = [4, 5], {"alice": "over"}
    guard._look()
    await until(lambda: len(ending.begun) == 1, "the first look")
    guard._missed, guard._missed_logins = [8], {"bob": "over"}
    guard._look()
    await until(lambda: len(ending.begun) == 2, "the second look")
    assert ending.cancelled == 1
    assert ending.begun[1] == {"alice": "over", "bob": "over"}
    assert (guard._done, guard.cutting) == (3, 1)
    ending.may_end.set()
    await until(lambda: not guard.cutting, "the look to end")
    assert told == [(4, 1), (5, 1), (8, 1)]
    assert guard._done == 9
    guard._missed = [9]
    guard._look()
    await until(lambda: not guard.cutting, "another look")
    assert (ending.begun[2], told[3:]) == ({}, [(9, 1)])


async def test_a_guard_looks_again_and_again(guard: Guard, broker: PlayedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: whatever became of the last look; but not while it does not know that it has all of the log."""
    looked = asyncio.Event()
    failures, looks = [BrokerUnavailable("away"), ValueError("no JSON")], list[tuple[bool, bool]]()

    async def look_through(*, at_once: bool) -> Cut:
        looks.append((at_once, guard.sure))
        if failures:
            raise failures.pop()
        looked.set()
        return Cut()

    monkeypatch.setattr(guard, "_enforcer", SimpleNamespace(look_through=look_through))
    monkeypatch.setattr(guard, "_settings", replace(guard._settings, look_seconds=0.001))
    monkeypatch.setattr(service, "_LOOKING_PART", 0)
    guard._said = time.monotonic()
    guard._following = False
    looking = asyncio.create_task(guard._keep_looking())
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert looks == []
    guard._following = True
    await asyncio.wait_for(looked.wait(), 5)
    looking.cancel()
    assert looks[:3] == [(False, True)] * 3


async def test_what_was_missed_is_bounded(guard: Guard) -> None:
    """A guard that reads a long log from its beginning meets a change that ends something, millions of times. It says that it is done with none of them
    before it has looked, and tells the last."""
    guard._following = False
    count = 5 * service._TOLD_LATE
    for seq in range(1, count + 1):
        guard._on_applied([(LogRecord(seq, "0" * 64, b""), Outcome("accepted", "retract", ()))])
    assert len(guard._missed) <= 2 * service._TOLD_LATE
    assert guard._missed[0] == 1
    assert guard._missed[-service._TOLD_LATE :] == list(range(count - service._TOLD_LATE + 1, count + 1))


async def test_a_guard_that_waits_says_so_now_and_then(guard: Guard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It tries three times a second while brokers are away, and that for hours, perhaps."""
    tried: list[object] = []
    wait, enough = asyncio.sleep, asyncio.Event()

    async def open_none(*_: Any, **__: Any) -> Any:
        tried.append(None)
        if len(tried) == 20:
            enough.set()
        raise BrokerUnavailable("nobody is there")

    monkeypatch.setattr(service.Connection, "open", open_none)
    monkeypatch.setattr(service.asyncio, "sleep", lambda seconds: wait(0))
    with caplog.at_level("INFO", logger=service.__name__):
        following = asyncio.create_task(guard._follow())
        await asyncio.wait_for(enough.wait(), 5)
        assert [record.getMessage() for record in caplog.records] == [f"guard {guard.id} waits for the log: nobody is there"]
        monkeypatch.setattr(service, "_SAY_AGAIN_SECONDS", 0.0)
        enough.clear()
        tried.clear()
        await asyncio.wait_for(enough.wait(), 5)
        assert len(caplog.records) > 2
    following.cancel()
