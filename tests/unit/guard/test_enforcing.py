"""What a guard ends at the broker, and what it leaves alone (T20, T21, T22). The log and its state are real; the broker's part is played, so that a test says what
is there, when it can be ended, and what happens in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from granting import Granting, begin, fresh_queue
from little_network import DAY, LittleNetwork
from pki import T0

from tdn.errors import BrokerUnavailable
from tdn.guard import enforcing
from tdn.guard.enforcing import Enforcer
from tdn.protocol import names
from tdn.rules import feeds
from tests.live import until

HOSTS = {"allow_children": True}


class Api:
    """A broker: its queues with the topics that each is bound to, and exchanges. What is in `stuck` cannot be ended; `listing` is called before bindings are told."""

    def __init__(self) -> None:
        self.bound: dict[str, set[str]] = {}
        self.topics: set[str] = set()
        self.stuck: set[str] = set()
        self.tried = 0
        self.listing: Callable[[], object] = lambda: None

    async def queues(self) -> list[str]:
        return [*self.bound]

    async def exchanges(self) -> list[str]:
        return [*self.topics]

    async def bindings_to(self, queue: str) -> list[tuple[str, str]]:
        found = [(topic, "~") for topic in sorted(self.bound[queue])]
        self.listing()
        return found

    async def bindings_from(self, exchange: str) -> list[tuple[str, str]]:
        return [(queue, "~") for queue, topics in self.bound.items() if exchange in topics]

    async def delete_queue(self, queue: str) -> bool:
        self._require(queue)
        return self.bound.pop(queue, None) is not None

    async def delete_exchange(self, exchange: str) -> bool:
        self._require(exchange)
        self.topics.discard(exchange)
        return True

    async def unbind(self, exchange: str, queue: str, binding: str) -> bool:
        self.bound[queue].discard(exchange)
        return True

    async def close_connections(self, login: str, reason: str) -> None:
        self._require(login)

    def _require(self, what: str) -> None:
        if what in self.stuck:
            self.tried += 1
            raise BrokerUnavailable(f"{what} cannot be ended")


class Guarded:
    """A log, a broker, and what a guard that follows the one ends at the other."""

    def __init__(self, log: Granting) -> None:
        self.log = log
        self.api = Api()
        self.publishers: list[str] = []
        #: What is in the log and not read yet: it is as soon as somebody reads to the end.
        self.unread: list[Callable[[], object]] = []
        api: Any = self.api
        memory: Any = SimpleNamespace(publishers=lambda topic: self.publishers, mark=lambda: 0, forget=lambda login, until: None)
        know: Any = lambda: SimpleNamespace(now=log.now, state=log.state, sure=True)  # noqa: E731
        self.enforcer = Enforcer(log.state, memory, api, know, lambda *note: None, self._read_to_end)

    async def _read_to_end(self) -> None:
        for read in self.unread:
            read()
        self.unread.clear()

    def queue(self, entity: str, subject: str, secret: str, *topics: str) -> str:
        """One that a node has made."""
        name = names.feed_queue(entity, subject, secret)
        self.api.bound[name] = {*topics}
        self.api.topics |= {*topics}
        return name

    async def look(self, *, at_once: bool = False) -> dict[str, object]:
        return (await self.enforcer.look_through(at_once=at_once)).as_object()


@pytest.fixture
def guarded(net: LittleNetwork) -> Guarded:
    return Guarded(begin(net))


def a_topic(guarded: Guarded, **how: Any) -> str:
    return guarded.log.advertised(**how)


async def test_what_the_log_gives_stays(guarded: Guarded) -> None:
    uuid = a_topic(guarded)
    guarded.log.subscribe("alice", uuid, queue="a" * 32)
    kept = guarded.queue("alice", uuid, "a" * 32, uuid)
    for at_once in (True, False, False):
        assert await guarded.look(at_once=at_once) == {"connections": [], "queues": 0, "bindings": 0}
    assert guarded.api.bound == {kept: {uuid}}
    assert guarded.api.topics == {uuid}


async def test_what_is_over_goes_at_once_and_what_is_unknown_at_the_second_look(guarded: Guarded) -> None:
    uuid = a_topic(guarded)
    guarded.log.subscribe("alice", uuid, queue="a" * 32)
    guarded.log.unsubscribe("alice", uuid)
    over, unknown = guarded.queue("alice", uuid, "a" * 32, uuid), guarded.queue("bob", uuid, fresh_queue(), uuid)
    assert (await guarded.look())["queues"] == 1
    assert over not in guarded.api.bound
    assert unknown in guarded.api.bound
    assert (await guarded.look())["queues"] == 1
    assert guarded.api.bound == {}


async def test_after_a_start(guarded: Guarded) -> None:
    """T21: what lost its right goes at once. What is unknown may be of a record that this guard's broker does not have yet, with a day's messages in it."""
    uuid, secret = a_topic(guarded), fresh_queue()
    grant = guarded.log.gave("alice", "bob", uuid, "subscribe")
    guarded.log.subscribe("bob", uuid, queue=secret)
    guarded.log.retract("alice", grant)
    lost, unknown = guarded.queue("bob", uuid, secret, uuid), guarded.queue("carol", uuid, fresh_queue(), uuid)
    assert (await guarded.look(at_once=True))["queues"] == 1
    assert lost not in guarded.api.bound
    assert unknown in guarded.api.bound
    assert (await guarded.look())["queues"] == 1


async def test_what_was_made_for_a_record_that_is_not_read_yet(guarded: Guarded) -> None:
    """A guard that is behind reads to the end of the log before it judges what it saw."""
    uuid, secret = a_topic(guarded), fresh_queue()
    queue = guarded.queue("alice", uuid, secret, uuid)
    guarded.unread.append(lambda: guarded.log.subscribe("alice", uuid, queue=secret))
    for _ in range(2):
        assert (await guarded.look())["queues"] == 0
    assert queue in guarded.api.bound


async def test_in_doubt_twice_and_not_in_a_row(guarded: Guarded) -> None:
    uuid, secret = a_topic(guarded), fresh_queue()
    queue = guarded.queue("bob", uuid, secret, uuid)
    await guarded.look()
    del guarded.api.bound[queue]
    await guarded.look()
    guarded.queue("bob", uuid, secret, uuid)
    assert (await guarded.look())["queues"] == 0


async def test_a_binding_to_what_a_tree_does_not_give(guarded: Guarded) -> None:
    root = a_topic(guarded, hosting=HOSTS)
    child, foreign = guarded.log.child(root), a_topic(guarded)
    guarded.log.subscribe("alice", root, tree=True, queue="a" * 32)
    queue = guarded.queue("alice", root, "a" * 32, root, child, foreign)
    assert (await guarded.look())["bindings"] == 0
    assert (await guarded.look())["bindings"] == 1
    assert guarded.api.bound == {queue: {root, child}}


async def test_one_that_cannot_be_ended_keeps_no_other(guarded: Guarded) -> None:
    """It is told in the end, and what was in doubt is known to the next look."""
    uuid, over = a_topic(guarded), a_topic(guarded)
    guarded.log.withdraw("alice", over)
    first, _ = (guarded.queue("bob", uuid, fresh_queue(), uuid) for _ in range(2))
    guarded.api.topics.add(over)
    await guarded.look()
    guarded.api.topics.add(over)
    guarded.api.stuck = {first}
    with pytest.raises(BrokerUnavailable, match="cannot be ended"):
        await guarded.look()
    assert guarded.api.bound.keys() == {first}
    assert over not in guarded.api.topics
    guarded.api.stuck = set()
    assert (await guarded.look())["queues"] == 1


async def test_a_look_ends_several_at_once(guarded: Guarded) -> None:
    """T22: each may take seconds while a broker is away."""
    uuid, both, delete = a_topic(guarded), asyncio.Barrier(2), guarded.api.delete_queue

    async def together(queue: str) -> bool:
        async with asyncio.timeout(5):
            await both.wait()
        return await delete(queue)

    guarded.api.delete_queue = together  # type: ignore[method-assign]
    for _ in range(2):
        guarded.queue("bob", uuid, fresh_queue(), uuid)
    assert (await guarded.look())["queues"] == 0
    assert (await guarded.look())["queues"] == 2


async def test_an_exchange_stays_until_the_log_has_ended_its_topic(guarded: Guarded) -> None:
    """By this guard's clock it has run out; by log time it has not, and may be renewed."""
    uuid = a_topic(guarded)
    guarded.api.topics.add(uuid)
    late: Any = lambda: SimpleNamespace(now=T0 + 400 * DAY, state=guarded.log.state, sure=True)  # noqa: E731
    guarded.enforcer._know = late
    await guarded.look()
    assert guarded.api.topics == {uuid}
    guarded.log.withdraw("alice", uuid)
    await guarded.look()
    assert guarded.api.topics == set()


async def test_a_subscription_that_is_widened_while_it_is_narrowed(guarded: Guarded) -> None:
    """What an earlier record takes away and a later one gives again is not unbound, however late the broker answers."""
    root = a_topic(guarded, hosting=HOSTS)
    child = guarded.log.child(root, hosting=HOSTS)
    below = guarded.log.child(child)
    guarded.log.subscribe("alice", root, tree=True, queue="a" * 32)
    queue = guarded.queue("alice", root, "a" * 32, root, child, below)
    narrowed = guarded.log.subscribe("alice", root, tree=True, depth=1)
    guarded.api.listing = lambda: guarded.log.subscribe("alice", root, tree=True)
    await guarded.enforcer.settle(feeds.losses(narrowed.writes), [])
    assert guarded.api.bound == {queue: {root, child, below}}
    guarded.api.listing = lambda: None
    narrowed = guarded.log.subscribe("alice", root, tree=True, depth=1)
    await guarded.enforcer.settle(feeds.losses(narrowed.writes), [])
    assert guarded.api.bound == {queue: {root, child}}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcing, "_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(enforcing, "_AGAIN_MOST_SECONDS", 0.002)


async def test_one_step_that_is_stuck_keeps_no_other_waiting(guarded: Guarded, hasty: None) -> None:
    uuid = a_topic(guarded)
    secrets = [fresh_queue() for _ in range(40)]
    queues = [guarded.queue("alice", uuid, secret) for secret in secrets]
    guarded.api.stuck = {queues[0]}
    settling = asyncio.create_task(guarded.enforcer.settle(feeds.Touched(stale={(uuid, "alice", secret) for secret in secrets}), []))
    await until(lambda: guarded.api.bound.keys() == {queues[0]}, "the others to be ended")
    await until(lambda: guarded.api.tried > 20, "it to be tried again and again")
    assert not settling.done()
    guarded.api.stuck = set()
    assert (await settling).queues == 40


async def test_one_subscriber_that_is_stuck_keeps_no_other_of_its_topic(guarded: Guarded, hasty: None) -> None:
    """T21: they would read on for as long as a broker is away that has a copy of its queue."""
    uuid = a_topic(guarded)
    guarded.log.open("alice", uuid)
    grant = guarded.log.gave("alice", "*", uuid, "subscribe")
    queues = []
    for entity in ("bob", "carol", "dave", "erin"):
        secret = fresh_queue()
        guarded.log.subscribe(entity, uuid, queue=secret)
        queues.append(guarded.queue(entity, uuid, secret, uuid))
    guarded.api.stuck = {queues[0]}
    retracted = guarded.log.retract("alice", grant)
    settling = asyncio.create_task(guarded.enforcer.settle(feeds.losses(retracted.writes), []))
    await until(lambda: guarded.api.bound.keys() == {queues[0]}, "the others to be ended")
    assert not settling.done()
    guarded.api.stuck = set()
    assert (await settling).queues == 4


class Pausing:
    """`asyncio`, but for pauses: they last until they are let go, one after the other."""

    def __init__(self) -> None:
        self.asleep = 0
        self.let_go = asyncio.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        self.asleep += 1
        await self.let_go.acquire()
        self.asleep -= 1


async def test_what_waits_is_done_as_soon_as_one_can_be(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21: not after as long again as nothing could be ended."""
    pausing = Pausing()
    monkeypatch.setattr(enforcing, "asyncio", pausing)
    uuid = a_topic(guarded)
    secrets = [fresh_queue() for _ in range(40)]
    guarded.api.stuck = {guarded.queue("alice", uuid, secret) for secret in secrets}
    settling = [asyncio.create_task(guarded.enforcer.settle(feeds.Touched(stale={(uuid, "alice", secret)}), [])) for secret in secrets]
    await until(lambda: guarded.api.tried == 40 and pausing.asleep == 8, "all to be tried, and some to be tried again")
    pausing.let_go.release()
    await until(lambda: guarded.api.tried == 41 and pausing.asleep == 8, "another to be tried again")
    guarded.api.stuck = set()
    pausing.let_go.release()
    await until(lambda: len(guarded.api.bound) == 7, "all to be done but those whose pause still lasts")
    for _ in range(7):
        pausing.let_go.release()
    assert sum([(await one).queues for one in settling]) == 40


async def test_a_guard_that_is_told_to_stop_stops(guarded: Guarded, hasty: None) -> None:
    """Also when nothing can be ended: neither queues nor connections."""
    uuid, secret = a_topic(guarded), fresh_queue()
    queue = guarded.queue("alice", uuid, secret)
    login = str(guarded.log.net.entity("alice").identity.name)
    guarded.api.stuck = {queue, login}
    touched = feeds.Touched(stale={(uuid, "alice", secret)})
    settling = asyncio.create_task(guarded.enforcer.settle(touched, [(login, "a right has ended")]))
    await until(lambda: guarded.api.tried > 10, "it to be tried again and again")
    settling.cancel()
    await asyncio.wait([settling], timeout=5)
    assert settling.cancelled()


async def test_an_answer_that_nobody_understands_is_no_end_of_it(guarded: Guarded, hasty: None) -> None:
    uuid, secret = a_topic(guarded), fresh_queue()
    guarded.queue("alice", uuid, secret)
    answers: list[Exception] = [KeyError("items"), ValueError("no JSON")]
    delete = guarded.api.delete_queue

    async def strange(queue: str) -> bool:
        if answers:
            raise answers.pop()
        return await delete(queue)

    guarded.api.delete_queue = strange  # type: ignore[method-assign]
    assert (await guarded.enforcer.settle(feeds.Touched(stale={(uuid, "alice", secret)}), [])).queues == 1
