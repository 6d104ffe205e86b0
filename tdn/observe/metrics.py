"""The numbers of a process, in a registry of its own, for Prometheus to fetch.

Recording is cheap (children are bound once: some microseconds a request); what can be read is read when it is fetched, never kept twice. A number that
cannot be read is NaN, and the others are told all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tdn import __version__
from tdn.observe.trail import DONE, FAILED, TURNED_AWAY, Trail

#: Seconds. A root topic is minted in about a millisecond; a discovery may take ten seconds where the operator lets it.
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: A guard answers within parts of a millisecond, or something is wrong.
DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)

#: What RabbitMQ asks. Anything else is counted as other, whatever it was.
QUESTIONS = ("user", "vhost", "resource", "topic")
OTHER = "other"

Read = Callable[[], float]


class Metrics:
    """What every process shows. Which process it is, the scraping side knows: it names its targets."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Gauge("tdn_build_info", "1; the version and the role are in its labels", ["role", "version"], registry=self.registry).labels(
            role, __version__
        ).set(1)
        applied = Counter("tdn_applied_records", "records applied since the start, by what became of them", ["status"], registry=self.registry)
        self._applied = {status: applied.labels(status) for status in ("accepted", "refused", "repeated", "void", OTHER)}

    def gauge(self, name: str, text: str, read: Read) -> None:
        """A number that is read when it is fetched."""
        Gauge(name, text, registry=self.registry).set_function(_tried(read))

    def gauges(self, name: str, text: str, label: str, values: Iterable[str], read: Callable[[str], float]) -> None:
        """A number for each value of a label."""
        family = Gauge(name, text, [label], registry=self.registry)
        for value in values:
            family.labels(value).set_function(_tried(partial(read, value)))

    def counted(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """What somebody else counts already."""
        self.registry.register(_Counted(name, text, labels, read))

    def applied(self, status: str) -> None:
        self._applied[status if status in self._applied else OTHER].inc()

    def text(self) -> bytes:
        """All of it, in the form that Prometheus reads."""
        return generate_latest(self.registry)

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = REQUEST_BUCKETS) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


class NodeMetrics(Metrics):
    def __init__(self) -> None:
        super().__init__("node")
        self._requests = self.counter("tdn_node_requests", "messages worked on, by kind and outcome", ("kind", "outcome"))
        self._seconds = self.histogram("tdn_node_request_seconds", "from taking a message to having answered it", ("kind",))
        self._refusals = self.counter("tdn_node_refusals", "errors told to verified senders, by their word", ("reason",))
        self._turned_away = self.counter("tdn_node_turned_away", "messages of nobody who could be named, by what was wrong", ("reason",))
        self._dead = self.counter("tdn_node_dead_letters", "changes that failed too often and were given up here")
        # Without labels, so that it is there, as 0, before the first: one that begins with 1 has not increased, and no alert says so.
        self._failures = self.counter("tdn_node_failures", "messages at which this node failed by a fault of ours")
        self._append = self.histogram("tdn_node_append_seconds", "from sending a record to the broker's confirm")
        self._bound: dict[tuple[str, ...], Any] = {}

    def ended(self, trail: Trail) -> None:
        """A message was worked on. Kinds are those of the contract, or unknown: their number is bounded."""
        if trail.path == "dead":
            # Counted as a request when it was tried. A first contact that came too late is nobody's loss.
            self._dead.inc(trail.outcome != DONE)
            return
        self._child(self._requests, trail.kind, trail.outcome).inc()
        self._child(self._seconds, trail.kind).observe(trail.elapsed() / 1e9)
        self._failures.inc(trail.outcome == FAILED)
        if trail.reason is not None:
            self._child(self._turned_away if trail.outcome == TURNED_AWAY else self._refusals, trail.reason).inc()

    def appended(self, seconds: float) -> None:
        self._append.observe(seconds)

    def _child(self, family: Any, *labels: str) -> Any:
        key = (family._name, *labels)
        if (child := self._bound.get(key)) is None:
            child = self._bound[key] = family.labels(*labels)
        return child


class GuardMetrics(Metrics):
    def __init__(self) -> None:
        super().__init__("guard")
        decisions = self.counter("tdn_guard_decisions", "questions of the broker, and what they were answered", ("question", "outcome"))
        seconds = self.histogram("tdn_guard_decision_seconds", "deciding one question", ("question",), DECISION_BUCKETS)
        asked = (*QUESTIONS, OTHER)
        self._decisions = {
            (question, allowed): decisions.labels(question, "allowed" if allowed else "denied")
            for question in asked
            for allowed in (True, False)
        }
        self._seconds = {question: seconds.labels(question) for question in asked}
        cuts = self.counter("tdn_guard_cuts", "what was ended at the broker", ("what",))
        self._cuts = {what: cuts.labels(what) for what in ("connections", "queues", "bindings")}
        self._settle = self.histogram("tdn_guard_settle_seconds", "from applying a record that ends something to having ended it at the broker")

    def decided(self, question: str, allowed: bool, seconds: float) -> None:
        known = question if question in self._seconds else OTHER
        self._decisions[known, allowed].inc()
        self._seconds[known].observe(seconds)

    def cut(self, connections: int, queues: int, bindings: int) -> None:
        for what, count in (("connections", connections), ("queues", queues), ("bindings", bindings)):
            if count:
                self._cuts[what].inc(count)

    def settled(self, seconds: float) -> None:
        self._settle.observe(seconds)


class _Counted(Collector):
    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._read().items():
            family.add_metric(values, count)
        yield family


def _tried(read: Read) -> Read:
    def tried() -> float:
        try:
            return float(read())
        except Exception:
            # An empty log has no time, a store may be locked. One number must not take the others with it.
            return float("nan")

    return tried
