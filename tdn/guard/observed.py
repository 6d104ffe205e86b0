"""What a guard shows of itself: its numbers, and a line of the log and a span for each record of which it has drawn the consequences."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tdn.guard.enforcing import Cut
from tdn.observe.metrics import GuardMetrics
from tdn.observe.traces import Traces
from tdn.observe.trail import DONE, REFUSED, Trail
from tdn.replica.replica import Applied, Replica
from tdn.replica.shown import seconds_until, show_view
from tdn.rules.state import Outcome
from tdn.trust.certificates import Identity

#: One line for each change. The bound on lines counts these apart, so that they push out nothing else.
requests = logging.getLogger("tdn.requests")


class Observed:
    def __init__(
        self,
        *,
        replica: Replica,
        identity: Identity,
        store: Path,
        clock: Callable[[], datetime],
        connected: Callable[[], bool],
        sure: Callable[[], bool],
        cutting: Callable[[], int],
        audit_waiting: Callable[[], int],
        traces: Traces | None = None,
    ) -> None:
        self._traces = traces
        self.metrics = GuardMetrics()
        shown = self.metrics
        show_view(shown, replica, store, clock)
        shown.gauge("tdn_connected", "1 while connected to a broker", connected)
        shown.gauges(
            "tdn_certificate_seconds_left",
            "until this process's own certificate ends",
            "whose",
            ("own",),
            lambda whose: seconds_until(identity.not_after, clock),
        )
        shown.gauge("tdn_guard_sure", "1 while its view is known to be up to date; otherwise it denies entities everything", sure)
        shown.gauge("tdn_guard_cutting", "ends that are in the log and not known to be carried out at the broker yet", cutting)
        shown.gauge("tdn_guard_audit_waiting", "rows that are not in the audit file yet", audit_waiting)

    def on_applied(self, applied: Applied, *, tell: bool) -> None:
        """Records were applied. They are told one by one while they are news, not while the past is read."""
        for record, outcome in applied:
            self.metrics.applied(outcome.status)
            if tell and outcome.request is not None:
                requests.info("%s applied", outcome.kind, extra=_fields(outcome, record.seq))
                self._trace("apply", outcome, record.seq, 0.0)

    def settled(self, outcome: Outcome | None, seq: int | None, cut: Cut, began: float) -> None:
        """What a record ends has been ended at the broker, or what ended otherwise."""
        seconds = time.monotonic() - began
        self.metrics.settled(seconds)
        self.metrics.cut(len(cut.logins), cut.queues, cut.bindings)
        if outcome is not None:
            fields = {**_fields(outcome, seq), "outcome": "settled", "milliseconds": round(seconds * 1000, 1)}
            requests.info(
                "%s settled: %d connections, %d queues, %d bindings ended",
                outcome.kind,
                len(cut.logins),
                cut.queues,
                cut.bindings,
                extra=fields,
            )
            self._trace("settle", outcome, seq, seconds)

    def _trace(self, path: str, outcome: Outcome, seq: int | None, seconds: float) -> None:
        """What has just been done for a record, and took so long, in the trace of its request."""
        if self._traces is None or outcome.request is None:
            return
        took = int(seconds * 1_000_000_000)
        request = outcome.request.partition("/")[2]
        ended, reason = (REFUSED, outcome.status) if outcome.status == "refused" else (DONE, None)
        self._traces.tell(
            Trail(
                path,
                outcome.kind,
                request,
                seq=seq,
                outcome=ended,
                reason=reason,
                began_at=time.time_ns() - took,
                _began=time.perf_counter_ns() - took,
            )
        )


def _fields(outcome: Outcome, seq: int | None) -> dict[str, object]:
    principal, _, request = (outcome.request or "").partition("/")
    return {"request": request, "principal": principal, "kind": outcome.kind, "seq": seq, "outcome": outcome.status}
