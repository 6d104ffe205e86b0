"""What a node shows of itself: its numbers, a line of the log and a trace for each message, and why it is not ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from tdn.bus.connection import Channel, Connection
from tdn.confined.lanes import Lanes
from tdn.errors import TdnError
from tdn.node.guards import Guards
from tdn.observe import trail
from tdn.observe.metrics import NodeMetrics
from tdn.observe.traces import Traces
from tdn.observe.trail import Trail
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.protocol.times import parse_time
from tdn.replica.replica import Applied, Replica
from tdn.replica.shown import Kept, seconds_until, show_view
from tdn.trust.certificates import Identity

#: One line for each message. The bound on lines counts these apart, so that they push out nothing else.
requests = logging.getLogger("tdn.requests")
logger = logging.getLogger(__name__)

#: Between counts of live topics: a million of them take some 20 ms.
_COUNT_SECONDS = 2.0
#: Between looks at the broker's queues, and at the certificates of nodes and guards.
_DEPTH_SECONDS = 2.0
_CERTIFICATES_SECONDS = 30.0

_NAN = float("nan")

T = TypeVar("T")


class Observed:
    def __init__(
        self,
        *,
        replica: Replica,
        lanes: Lanes,
        guards: Guards,
        identity: Identity,
        store: Path,
        clock: Callable[[], datetime],
        traces: Traces | None = None,
    ) -> None:
        self.metrics = NodeMetrics()
        self._replica = replica
        self._traces = traces
        self._connected = False
        self._depths: dict[str, float] = {}
        self._topics = Kept(_COUNT_SECONDS, lambda: replica.reader.count_live(clock()))
        self._ends = Kept(_CERTIFICATES_SECONDS, self._nearest_ends)
        shown = self.metrics
        show_view(shown, replica, store, clock)
        shown.gauge("tdn_connected", "1 while connected to a broker", lambda: self._connected)
        shown.gauge("tdn_node_live_topics", "live topics that this node stores", self._topics.get)
        shown.gauge("tdn_node_changes_waiting", "changes that no node has taken", lambda: self._depths.get(names.CHANGES, _NAN))
        shown.gauge("tdn_node_dead_letters_waiting", "changes that were given up and not told yet", lambda: self._depths.get(names.DEAD, _NAN))
        load = lanes.load
        shown.gauges("tdn_node_search_waiting", "searches that wait for a worker", "lane", load(), lambda lane: load()[lane].waiting)
        shown.gauges("tdn_node_search_running", "searches in work", "lane", load(), lambda lane: load()[lane].running)
        shown.counted(
            "tdn_node_search_cut",
            "searches that were stopped; an overrun in the quick lane starts over in the slow one",
            ("lane", "why"),
            lambda: {(lane, why): count for lane, at in load().items() for why, count in at.cuts.items()},
        )
        standing = "enrolled guards: heard within the last seconds, or fenced"
        shown.gauges("tdn_node_guards", standing, "state", ("heard", "fenced"), lambda state: guards.standing()[state])
        shown.gauges(
            "tdn_certificate_seconds_left",
            "until a certificate ends: this process's own; of all enrolled nodes, and guards, the one that ends first",
            "whose",
            ("own", "nodes", "guards"),
            lambda whose: seconds_until(identity.not_after if whose == "own" else self._ends.get()[whose], clock),
        )

    @property
    def topics(self) -> int:
        return int(self._topics.get())

    # --- messages ---

    def follow(self, path: str, work: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """The work on a message, with its trail."""
        return trail.follow(path, work, self._ended)

    def _ended(self, ended: Trail) -> None:
        self.metrics.ended(ended)
        if self._traces is not None:
            self._traces.tell(ended)
        # Questions are many, and answered well they are nobody's concern.
        usual = ended.path != "change" and ended.outcome == trail.DONE
        level = logging.DEBUG if usual else logging.INFO
        if requests.isEnabledFor(level) and ended.request is not None:
            requests.log(level, "%s %s", ended.kind, ended.outcome, extra=fields_of(ended))

    def on_applied(self, applied: Applied) -> None:
        for _, outcome in applied:
            self.metrics.applied(outcome.status)

    # --- the broker ---

    @contextlib.contextmanager
    def connected(self, connection: Connection) -> Iterator[None]:
        """While a connection lasts: how many messages wait."""
        self._connected = True
        sampling = asyncio.create_task(self._sample(connection))
        try:
            yield
        finally:
            sampling.cancel()
            self._connected = False
            self._depths.clear()

    async def _sample(self, connection: Connection) -> None:
        channel: Channel | None = None
        while not connection.closed.done():
            try:
                if channel is None or channel.closed.done():
                    channel = await connection.channel()
                for queue in (names.CHANGES, names.DEAD):
                    self._depths[queue] = await channel.count_messages(queue)
            except TdnError as error:
                # A queue whose leader is gone, say. Not known is not nought.
                self._depths.clear()
                logger.debug("the queues' depths are not known: %s", error)
            await asyncio.sleep(_DEPTH_SECONDS)

    def _nearest_ends(self) -> Mapping[str, datetime]:
        reader = self._replica.reader
        found: dict[str, datetime] = {}
        for role, whose in ((Role.NODE, "nodes"), (Role.GUARD, "guards")):
            enrolled = reader.scan("principal", after=f"{role}:", up_to=f"{role}:~", limit=1000)
            ends = [parse_time(fact["expires"]) for _, fact in enrolled if fact["thumbprint"] and fact["key"] not in fact["revoked"]]
            if ends:
                found[whose] = min(ends)
        return found


def fields_of(ended: Trail) -> dict[str, Any]:
    """A trail as the fields of a line in the log."""
    return {
        "request": ended.request,
        "principal": ended.principal,
        "kind": ended.kind,
        "seq": ended.seq,
        "outcome": ended.outcome,
        "reason": ended.reason,
        "milliseconds": round(ended.elapsed() / 1e6, 1),
    }
