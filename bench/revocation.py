"""Ending a right under 1,000 messages a second: how long messages still pass, and that none passes after the receipt.

Half of the revocations end the grant of the publisher, half that of the subscriber; a fresh grant each time. From the moment of the command:
to the last message that was accepted from the revoked publisher (confirmed to it, or seen by somebody else), to the last one delivered to
the revoked subscriber, to the receipt. Both go on trying after it. Beside it, in turn, the bare limit on the same broker under the same
traffic: one call to the management API that closes the publisher's connections, or deletes the subscriber's queue, with no log, no guard
and no second look.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import percentile, print_table
from bench.grant_traffic import OTHERS_RATE, RATE, Cast, Others, Seen, Traffic
from entity_client import EntityClient, path
from entity_client.grants import Granted, Revocation
from entity_client.messaging import use
from tdn.guard.management import Management
from tdn.local.home import Home
from tdn.local.network import GUARD, Network
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import credentials
from tdn.trust.grants import PUBLISH, SUBSCRIBE

_QUICK = bool(os.environ.get("TDN_BENCH_QUICK"))
REVOCATIONS = int(os.environ.get("TDN_BENCH_REVOCATIONS", "8" if _QUICK else "200"))
#: Of each kind, the bare limit is taken so often for one revocation.
_BARE_SHARE = 0.5
GOAL_SECONDS = 0.5
#: Traffic before each command, at random between the two, so that commands keep no step with anything that beats.
_BEFORE_SECONDS = (0.2, 0.5)
#: How long the revoked go on trying: at least so long after the receipt, and so long after the command.
_AFTER_SECONDS, _WATCHED_SECONDS = 0.4, 0.8

PUBLISHER, SUBSCRIBER, OTHER_PUBLISHER, OTHER_SUBSCRIBER, OWNER = (
    *("bench-publisher", "bench-subscriber", "bench-other-publisher"),
    *("bench-other-subscriber", "bench-owner"),
)


@dataclass(slots=True)
class _Samples:
    """Seconds from the command, and what came late."""

    #: To the last message accepted or delivered, and to the receipt.
    last: list[float] = field(default_factory=list)
    receipt: list[float] = field(default_factory=list)
    #: Messages sent after the receipt: tries, and how many of them passed. And those sent before that passed after it.
    tries: int = 0
    passed: int = 0
    late: int = 0


def run(folder: Path) -> None:
    network = Network(Home(folder))
    network.up()
    try:
        asyncio.run(_measure(network))
    finally:
        network.down()


async def _measure(network: Network) -> None:
    home = network.home
    async with contextlib.AsyncExitStack() as stack:
        scene = await _Scene.prepare(stack, network)
        guard = credentials.load(home.credentials(Role.GUARD, GUARD))
        settings = home.settings()
        management = await stack.enter_async_context(
            Management(settings.management_urls, home.management_password(), home.connection().vhost, guard)
        )
        scene.traffic = await stack.enter_async_context(Traffic(scene.cast))
        await scene.let_publish(insist=True)
        await scene.let_read(insist=True)
        samples = {name: _Samples() for name in ("publisher", "subscriber", "close", "delete")}
        bare_rounds = 0.0
        began, sent = time.monotonic(), 0
        for number in range(-(-REVOCATIONS // 2)):
            sent += await scene.end_publisher(samples["publisher"])
            sent += await scene.end_subscriber(samples["subscriber"])
            bare_rounds += _BARE_SHARE
            if bare_rounds >= 1:
                bare_rounds -= 1
                sent += await scene.close_bare(management, samples["close"])
                sent += await scene.delete_bare(management, samples["delete"])
            if number % 25 == 24:
                print(f"{2 * number + 2} revocations after {time.monotonic() - began:.0f} s", flush=True)
        others = await scene.traffic.end()
    _print(samples, scene, others)


class _Scene:
    """The owner who commands, the traffic, and the clients that are asked for queues."""

    traffic: Traffic
    cast: Cast

    def __init__(self, owner: EntityClient, subscriber: EntityClient, topic: str) -> None:
        self._owner = owner
        self._subscriber = subscriber
        self._topic = topic
        self._grants: dict[str, Granted] = {}
        #: Revocations whose receipt named a guard that was not done, or did not say what was cut.
        self.unconfirmed = 0
        self.unsaid = 0
        #: Messages a second in the time just before each command.
        self.rates: list[float] = []

    @classmethod
    async def prepare(cls, stack: contextlib.AsyncExitStack, network: Network) -> _Scene:
        folders = {name: network.operator.issue(Role.ENTITY, name) for name in (PUBLISHER, SUBSCRIBER, OTHER_PUBLISHER)}
        folders |= {name: network.operator.issue(Role.ENTITY, name) for name in (OTHER_SUBSCRIBER, OWNER)}
        clients = {
            name: await stack.enter_async_context(await EntityClient.connect(folder, timeout=60.0))
            for name, folder in folders.items()
        }
        owner = clients[OWNER]
        topic = (await owner.create(path("bench/revocation"))).uuid
        # Known to the log from their first contact on.
        for client in clients.values():
            await client._session.ready(60.0)
        await use(owner, topic, PUBLISH)
        scene = cls(owner, clients[SUBSCRIBER], topic)
        await owner.grants.give(PUBLISH, topic, OTHER_PUBLISHER)
        await owner.grants.give(SUBSCRIBE, topic, OTHER_SUBSCRIBER)
        secret = await use(clients[OTHER_SUBSCRIBER], topic, SUBSCRIBE, {"tree": False})
        for name in (PUBLISHER, OTHER_PUBLISHER, OTHER_SUBSCRIBER):
            # Their connections are the traffic's: only those are to be cut, or kept.
            await clients[name].close()
        scene.cast = Cast(
            publisher=folders[PUBLISHER],
            subscriber=folders[SUBSCRIBER],
            other_publisher=folders[OTHER_PUBLISHER],
            other_subscriber=folders[OTHER_SUBSCRIBER],
            topic=topic,
            other_queue=names.feed_queue(OTHER_SUBSCRIBER, topic, secret),
        )
        scene._login = str(clients[PUBLISHER].identity.name)
        return scene

    _login: str

    async def let_publish(self, *, insist: bool, grant: bool = True) -> None:
        if grant:
            self._grants[PUBLISHER] = await self._owner.grants.give(PUBLISH, self._topic, PUBLISHER)
        await self.traffic.publish(insist=insist)

    async def let_read(self, *, insist: bool, grant: bool = True) -> None:
        if grant:
            self._grants[SUBSCRIBER] = await self._owner.grants.give(SUBSCRIBE, self._topic, SUBSCRIBER)
            self._subscriber.seen = max(self._subscriber.seen, self._owner.seen)
        await self.traffic.read(await self._queue(), insist=insist)

    async def _queue(self) -> str:
        secret = await use(self._subscriber, self._topic, SUBSCRIBE, {"tree": False})
        return names.feed_queue(SUBSCRIBER, self._topic, secret)

    # --- one end each; how many messages were sent meanwhile ---

    async def end_publisher(self, samples: _Samples) -> int:
        started, answered, seen = await self._act(lambda: self._revoke(PUBLISHER, "connections"))
        _note(samples, started, answered, seen.confirmed + seen.passed, seen.sent)
        await self.traffic.rest()
        await self.let_publish(insist=True)
        return len(seen.sent)

    async def end_subscriber(self, samples: _Samples) -> int:
        started, answered, seen = await self._act(lambda: self._revoke(SUBSCRIBER, "queues"))
        _note(samples, started, answered, seen.delivered, seen.tried)
        await self.traffic.rest()
        await self.let_read(insist=True)
        return len(seen.sent)

    async def close_bare(self, management: Management, samples: _Samples) -> int:
        """One call, and no second: the publisher, who keeps its right, does not connect again."""
        await self.traffic.publish(insist=False)
        started, answered, seen = await self._act(lambda: management.close_connections(self._login, "bench"))
        _note(samples, started, answered, seen.confirmed + seen.passed, seen.sent)
        await self.let_publish(insist=True, grant=False)
        return len(seen.sent)

    async def delete_bare(self, management: Management, samples: _Samples) -> int:
        queue = await self._queue()
        await self.traffic.read(queue, insist=False)
        started, answered, seen = await self._act(lambda: management.delete_queue(queue))
        _note(samples, started, answered, seen.delivered, seen.tried)
        await self.let_read(insist=True, grant=False)
        return len(seen.sent)

    async def _revoke(self, whose: str, what: str) -> None:
        revocation: Revocation = await self._owner.grants.revoke(self._grants[whose].grant.id)
        self.unconfirmed += bool(revocation.unconfirmed or revocation.fenced)
        self.unsaid += not revocation.cut[what]

    async def _act(self, act: Callable[[], Awaitable[object]]) -> tuple[float, float, Seen]:
        await self.traffic.seen()
        await asyncio.sleep(random.uniform(*_BEFORE_SECONDS))
        started = time.monotonic()
        await act()
        answered = time.monotonic()
        await asyncio.sleep(max(_AFTER_SECONDS, started + _WATCHED_SECONDS - answered))
        seen = await self.traffic.seen()
        before = [moment for moment in seen.sent if moment < started]
        self.rates.append(len(before) / (before[-1] - before[0]) if len(before) > 1 else 0.0)
        return started, answered, seen


def _note(samples: _Samples, started: float, answered: float, passed: list[tuple[float, float]], tries: list[float]) -> None:
    """What passed before the command counts as no time at all. A message that was seen twice is the one that was sent at that moment."""
    latest: dict[float, float] = {}
    for sent, at in passed:
        latest[sent] = max(at, latest.get(sent, at))
    samples.last.append(max(0.0, max(latest.values(), default=started) - started))
    samples.receipt.append(answered - started)
    samples.tries += sum(moment > answered for moment in tries)
    samples.passed += sum(sent > answered for sent in latest)
    samples.late += sum(sent <= answered < at for sent, at in latest.items())


def _print(samples: dict[str, _Samples], scene: _Scene, others: Others) -> None:
    publisher, subscriber, close, delete = samples.values()
    limits = {"accepted": percentile(close.last, 0.5), "delivered": percentile(delete.last, 0.5)}
    rows: list[tuple[object, ...]] = []
    for name, seconds, limit in (
        ("publisher: to the last message accepted", publisher.last, limits["accepted"]),
        ("publisher: to the receipt", publisher.receipt, None),
        ("subscriber: to the last message delivered", subscriber.last, limits["delivered"]),
        ("subscriber: to the receipt", subscriber.receipt, None),
        ("both: to the last message", publisher.last + subscriber.last, None),
        ("bare: connections closed, to the last message accepted", close.last, None),
        ("bare: queue deleted, to the last message delivered", delete.last, None),
    ):
        if seconds:
            over = sum(value > GOAL_SECONDS for value in seconds)
            ratio: object = percentile(seconds, 0.5) / limit if limit else ""
            milliseconds = (percentile(seconds, 0.5) * 1000, percentile(seconds, 0.99) * 1000, max(seconds) * 1000)
            rows.append((name, len(seconds), *milliseconds, over, ratio))
    rate = percentile(scene.rates, 0.5)
    title = f"Revocation under {rate + OTHERS_RATE:.0f} messages a second (asked for: {RATE} and {OTHERS_RATE}), from the command, milliseconds"
    headings = ("", "times", "p50", "p99", "max", f"over {GOAL_SECONDS * 1000:.0f} ms", "p50 : bare")
    print_table(f"{title} (goal: at most 1 in 100 over {GOAL_SECONDS * 1000:.0f} ms)", headings, rows)
    print_table(
        "After the receipt (goal: none of what was sent after it)",
        ("revoked", "tries after it", "of these passed", "sent before it, passed after"),
        [
            ("publisher: messages sent, accepted", publisher.tries, publisher.passed, publisher.late),
            ("subscriber: reads tried, messages delivered", subscriber.tries, subscriber.passed, subscriber.late),
        ],
    )
    print_table(
        "Those who kept their rights, all the time",
        ("", "count"),
        [
            ("messages of the other publisher: sent", others.sent),
            ("… confirmed", others.confirmed),
            ("… delivered to the other subscriber", others.delivered),
            ("… longest wait for a confirm, ms", others.longest_confirm * 1000),
            ("connections of these two lost", others.lost),
            ("connections of the revoked subscriber lost (it loses its queue alone)", others.subscriber_lost),
            ("receipts that name a guard which is not done", scene.unconfirmed),
            ("receipts that do not name what was cut", scene.unsaid),
        ],
    )
