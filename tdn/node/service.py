"""A node's life: connect, catch up, enrol, serve, and start over when the broker went away.

It ends by itself only when going on would be wrong: the log and its store disagree, the log asks for rules that it does not know, or its
own certificate no longer counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tdn import machine
from tdn.bus import topology
from tdn.bus.connection import Broker, Connection
from tdn.bus.log import Appender
from tdn.confined.lanes import Lanes, Limits
from tdn.errors import BrokerUnavailable, LogDiverged, TdnError, TrustError, UnknownRules
from tdn.node.answering import Answering
from tdn.node.changes import Changes, LogStands, NoLongerCurrent
from tdn.node.checkpointing import Checkpointing
from tdn.node.comparing import Comparing, expected
from tdn.node.endpoint import Endpoint, cannot_serve
from tdn.node.folding import Folding
from tdn.node.guards import Guards
from tdn.node.intake import Intake, Post
from tdn.node.limits import EndpointSettings, NodeLimits
from tdn.node.observed import Observed
from tdn.node.policy import EVERYBODY, Policy
from tdn.node.questions import Desk
from tdn.node.telling import Telling
from tdn.observe.traces import Traces
from tdn.protocol.names import Role
from tdn.protocol.rates import Rate
from tdn.protocol.times import parse_time
from tdn.replica.replica import Applied, Replica
from tdn.rules import principals
from tdn.rules.apply import network_id, requester
from tdn.snapshots.make import CHECKPOINT_RECORDS
from tdn.trust import envelope
from tdn.trust.credentials import Credentials

logger = logging.getLogger(__name__)

#: Between ticks. Log time, and so expiry in the log, is this fine.
TICK_SECONDS = 5.0

#: What a node that is told to stop has for finishing what it has begun. `tdn down` waits a little longer than this.
_STOP_SECONDS = 9.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    brokers: Sequence[Broker]
    vhost: str
    genesis: bytes
    store: Path
    #: Folder of the operator's enrolment statements (`*.jws`), appended when the log does not have them.
    enrolments: Path
    tick_seconds: float = TICK_SECONDS
    policy: Policy = EVERYBODY
    limits: NodeLimits = field(default_factory=NodeLimits)
    #: Between two checkpoints, in records; the same for all nodes, or no majority states the same.
    checkpoint_records: int = CHECKPOINT_RECORDS
    #: Where it answers by itself when no broker can be reached. None: nowhere.
    endpoint: EndpointSettings | None = None
    #: Told how far indexing is, when a start has to index all topics anew.
    progress: Callable[[int], None] = lambda count: None
    traces: Traces | None = None


@dataclass(slots=True)
class Condition:
    """What `tdn status` shows of a node."""

    ready: bool = False
    #: Why it stopped serving, until it serves again.
    why: str | None = None
    counts: Counter[str] = field(default_factory=Counter)


class Node:
    def __init__(
        self, credentials: Credentials, settings: NodeSettings, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        if credentials.identity.name.role is not Role.NODE:
            raise TrustError(f"{credentials.identity.name.principal} is not a node; `tdn ca issue NAME --node` makes one")
        self.id = credentials.identity.name.id
        self.condition = Condition()
        self._credentials = credentials
        self._settings = settings
        self._clock = clock
        self.network = network_id(settings.genesis)
        self.replica = Replica(
            settings.store,
            self.network,
            self._on_applied,
            stores=settings.policy.stored(settings.progress),
            stop_every=settings.checkpoint_records,
            on_stop=self._note_checkpoint,
        )
        self._checkpointing = Checkpointing(settings.store, self.replica.reader)
        self._intake: Intake | None = None
        self._guards = Guards(self.replica.reader)
        self._telling = Telling(credentials, self.network, self.replica.reader, clock)
        self._served = False
        limits = settings.limits
        self._lanes = Lanes(
            "tdn.node.search_process:searcher",
            {"store": str(settings.store)},
            limits=Limits(slow_seconds=limits.query_seconds, memory_bytes=limits.query_memory_mb * 1024 * 1024),
        )
        self._folding = Folding(settings.store, self._lanes)
        self.observed = Observed(
            replica=self.replica,
            lanes=self._lanes,
            guards=self._guards,
            identity=credentials.identity,
            store=settings.store,
            clock=clock,
            traces=settings.traces,
        )
        offered = self._offered()
        answering = Answering(
            Desk(
                credentials,
                self.network,
                settings.policy,
                lambda: self.replica.position[0],
                offered.public if offered is not None else None,
            ),
            self.replica,
            clock,
            lanes=self._lanes,
            counts=self.condition.counts,
            queries=Rate(burst=limits.queries_burst, per_second=limits.queries_per_second, clock=time.monotonic),
            follows=lambda: self.condition.ready,
        )
        strangers = Rate(burst=50, per_second=10.0, clock=time.monotonic)
        self._endpoint: Endpoint | None = None
        if offered is not None:
            self._endpoint = Endpoint(
                offered,
                answering,
                credentials,
                clock,
                counts=self.condition.counts,
                strangers=strangers,
                questions_per_second=limits.queries_per_second,
                questions_burst=limits.queries_burst,
                observed=self.observed,
            )
        self._post = Post(
            credentials=credentials,
            brokers=settings.brokers,
            vhost=settings.vhost,
            network=self.network,
            clock=clock,
            replica=self.replica,
            answering=answering,
            counts=self.condition.counts,
            sessions=Rate(burst=200, per_second=5.0, clock=time.monotonic),
            peers=Rate(burst=6, per_second=6 / 3600, clock=time.monotonic),
            strangers=strangers,
            guards=self._guards,
            feeds=topology.QUORUM if self._several else topology.CLASSIC,
            observed=self.observed,
        )

    def readiness(self) -> dict[str, Any]:
        """Whether it serves, and if not, why."""
        told = {"ready": self.condition.ready, "sequence": self.replica.position[0], "lag": self.replica.lag}
        return told if self.condition.ready else {**told, "reason": self.condition.why or "it is starting or stopping"}

    def _offered(self) -> EndpointSettings | None:
        """The endpoint that was configured, if this node's certificate can serve there."""
        offered = self._settings.endpoint
        reason = cannot_serve(self._credentials, offered.public.host) if offered is not None else None
        if reason is None:
            return offered
        logger.warning(
            'node %s has no endpoint of its own: %s; see "A node\'s own endpoint" in docs/operations.md', self.id, reason
        )
        return None

    @property
    def _several(self) -> bool:
        return len(self._settings.brokers) > 1

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, over as many connections as it takes. Ends by itself only when going on would be wrong."""
        stopping = asyncio.create_task(stop.wait())
        folding: asyncio.Task[None] | None = None
        delay = 0.2
        try:
            await self._lanes.start()
            folding = asyncio.create_task(self._folding.run())
            if self._endpoint is not None:
                # From the store, whether or not a broker is there.
                await self._endpoint.open()
            while not stop.is_set():
                serving = asyncio.create_task(self._serve_once(stop))
                await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    # Graceful: what is in work is finished and answered first. One that does not serve has nothing in work.
                    await asyncio.wait([serving], timeout=_STOP_SECONDS if self._intake is not None else 0)
                    serving.cancel()
                    await asyncio.gather(serving, return_exceptions=True)
                    return
                error = serving.exception()
                error = (error and machine.explain(error, self._settings.store)) or error
                if isinstance(error, LogDiverged | UnknownRules | NoLongerCurrent):
                    raise error
                if self._served:
                    delay = 0.2
                self._served = self.condition.ready = False
                self.condition.why = str(error)
                # Ours to look into when it is not one of our own errors; a full disk, say, may have room again.
                unexpected = error if not isinstance(error, TdnError) else None
                logger.warning("node %s stopped serving, trying again in %.1f s: %s", self.id, delay, error, exc_info=unexpected)
                await asyncio.wait([stopping], timeout=delay)
                # Not longer: when the broker is back, the others wait for what this node has.
                delay = min(delay * 2, 2.0)
        finally:
            self.condition.ready = False
            stopping.cancel()
            if folding is not None:
                folding.cancel()
                await asyncio.gather(folding, return_exceptions=True)
            if self._endpoint is not None:
                await self._endpoint.close()
            await self._lanes.close()
            await self._checkpointing.close()
            self.replica.close()

    async def _serve_once(self, stop: asyncio.Event) -> None:
        connection = await Connection.open(self._settings.brokers, self._credentials, vhost=self._settings.vhost)
        session: list[asyncio.Task[Any]] = []
        closing = contextlib.AsyncExitStack()
        closing.push_async_callback(connection.close)
        closing.enter_context(self.observed.connected(connection))
        try:
            channel = await connection.channel()
            await topology.declare(channel)
            if self._several:
                await topology.declare_majority(channel)
            queue = await topology.declare_node(channel, self.id)
            wait_seconds = self._settings.limits.wait_for_others_seconds
            name = self._credentials.identity.name
            comparing = await Comparing.open(connection, self.replica, name, wait_seconds=wait_seconds)
            following = asyncio.create_task(self.replica.follow(connection))
            session.append(following)
            await _first(self.replica.placed.wait(), following)
            await _first(comparing.settle(self._expected), following)
            await _first(self.replica.caught_up.wait(), following)
            appender = await Appender.open(connection)
            work = Changes(self.replica, appender, self._credentials, self._clock, appended=self.observed.metrics.appended)
            await _first(self._enter(work), following)
            # Before anybody is served: the others then count this node among those that are about.
            await _first(work.append("tick", None), following)
            intake = Intake(self._post, connection, work)
            closing.push_async_callback(intake.close)
            await self._guards.listen(await connection.channel(), self.id)
            await intake.open(queue)
            self._intake = intake
            self._telling.channel = await connection.channel()
            session.append(asyncio.create_task(self._tick(work)))
            session.append(asyncio.create_task(self._checkpointing.state(work)))
            session.append(asyncio.create_task(_result(connection.closed)))
            session.append(asyncio.create_task(_result(intake.broken)))
            session.append(asyncio.create_task(_result(comparing.broken)))
            self.condition.ready = self._served = True
            self.condition.why = None
            logger.info("node %s serves network %s at record %d", self.id, self.network[:12], self.replica.position[0])
            stopping = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*session, stopping], return_when=asyncio.FIRST_COMPLETED)
            self.condition.ready = False
            if stopping in done:
                await intake.drain()
                return
            stopping.cancel()
            for task in done:
                if isinstance(task.exception(), LogDiverged | UnknownRules | NoLongerCurrent):
                    raise task.exception()  # type: ignore[misc]  # it is one of the three
            for task in done:
                if task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]  # just looked
                if isinstance(task.result(), TdnError):
                    raise task.result()
        except LogStands as error:
            # The connection may lead nowhere: nobody waits for the broker to close it in order.
            connection.give_up(error)
            raise
        finally:
            self._telling.channel = None
            self._intake = None
            for task in session:
                task.cancel()
            await asyncio.gather(*session, return_exceptions=True)
            await closing.aclose()

    def _note_checkpoint(self) -> None:
        self._checkpointing.begin()

    def _on_applied(self, applied: Applied) -> None:
        self.observed.on_applied(applied)
        self._telling.on_applied(applied)
        if self._intake is not None:
            self._intake.on_applied(applied)

    def _expected(self) -> frozenset[str]:
        """Whose words count before this node appends. A statement's file is named by what it enrols: `node-n1.jws`."""
        statements_found = self._settings.enrolments.glob("*.jws")
        return expected(self.replica.reader, [path.stem.replace("-", ":", 1) for path in statements_found])

    async def _enter(self, work: Changes) -> None:
        """Make sure that the log begins, and that the operator's enrolments, ours among them, stand in it."""
        if self.replica.reader.get("network", "network") is None:
            await work.offer("genesis", self._settings.genesis)
        statements_found = sorted(self._settings.enrolments.glob("*.jws"))
        for path in sorted(statements_found, key=lambda path: path.stem != f"node-{self.id}"):
            raw = path.read_bytes().strip()
            if self._is_news(raw, path):
                outcome = await work.append("enrol", raw)
                if outcome.error is not None:
                    logger.warning("enrolment %s was refused: %s", path.name, outcome.error.get("message"))
        principals.require_current(self.replica.reader, self._credentials.identity)

    def _is_news(self, raw: bytes, path: Path) -> bool:
        try:
            statement = envelope.authenticate(raw, lambda header: requester(self.replica.reader, header, self._clock()))
            identity = principals.identify(self.replica.reader, statement.body["chain"], self._clock())
        except TdnError as error:
            logger.warning("enrolment %s is not usable: %s", path.name, error)
            return False
        present = self.replica.reader.get("principal", identity.name.principal)
        return present is None or parse_time(present["issued"]) < identity.issued

    async def _tick(self, work: Changes) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            silent = self._guards.silent()
            await work.append("tick", None)
            self._guards.note_appended(silent, self.replica.position[0])


async def _result(future: asyncio.Future[Any]) -> Any:
    """Wait for a future that others wait for too: cancelling this leaves it alone."""
    return await asyncio.shield(future)


async def _first(wanted: Coroutine[Any, Any, Any], lost: asyncio.Task[None]) -> None:
    """Wait for something, or fail with what makes it impossible."""
    task = asyncio.create_task(wanted)
    await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        lost.result()
        raise BrokerUnavailable("the reading of the log ended")
    task.result()
