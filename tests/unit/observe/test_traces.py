"""Traces: entity and node make the same one from the request's id alone, with OpenTelemetry's own SDK."""

from __future__ import annotations

import logging
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tdn.observe import traces
from tdn.observe.otel import OtelTraces
from tdn.observe.trail import REFUSED, Trail


def test_entity_and_node_meet_in_one_trace() -> None:
    shown = InMemorySpanExporter()
    sender = OtelTraces("entity", "entity", SimpleSpanProcessor(shown))
    node = OtelTraces("node", "n1", SimpleSpanProcessor(shown))
    sent = Trail("change", "advertise", "request-1")
    taken = Trail("change", "advertise", "request-1", seq=7)
    for name in ("admit", "append", "apply", "answer"):
        with taken.step(name):
            pass
    node.tell(taken)
    sender.tell(sent)
    spans = {span.name: span for span in shown.get_finished_spans()}
    assert set(spans) == {"entity advertise", "node advertise", "admit", "append", "apply", "answer"}
    assert {span.context.trace_id for span in spans.values()} == {traces.ids_of("request-1")[0]}
    first, inner = spans["entity advertise"], spans["node advertise"]
    assert first.parent is None
    assert inner.parent is not None
    assert inner.parent.span_id == first.context.span_id
    assert inner.attributes is not None
    assert (inner.attributes["tdn.seq"], inner.attributes["tdn.request"]) == (7, "request-1")
    assert not any("principal" in name or "entity" in name for name in inner.attributes), "a trace tells which request, not whose"
    for name in ("admit", "append", "apply", "answer"):
        part = spans[name]
        assert part.parent is not None
        assert part.parent.span_id == inner.context.span_id
        assert inner.start_time is not None
        assert part.start_time is not None
        assert part.end_time is not None
        assert inner.end_time is not None
        assert inner.start_time <= part.start_time <= part.end_time <= inner.end_time


def test_what_failed_says_so() -> None:
    shown = InMemorySpanExporter()
    node = OtelTraces("node", "n1", SimpleSpanProcessor(shown))
    node.tell(Trail("change", "advertise", "request-2", outcome=REFUSED, reason="refused"))
    node.tell(Trail("change"))
    (span,) = shown.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "refused")


def test_requests_have_traces_of_their_own() -> None:
    assert traces.ids_of("a") == traces.ids_of("a")
    assert len({traces.ids_of(str(number)) for number in range(1000)}) == 1000


def test_off_unless_a_collector_is_named() -> None:
    assert traces.open_traces("node", "n1", None, {}) is None
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert traces.open_traces("node", "n1", None, {**there, "OTEL_SDK_DISABLED": "true"}) is None
    opened = traces.open_traces("node", "n1", None, there)
    assert opened is not None
    opened.close()


def test_a_missing_package_is_told_and_harms_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr("tdn.observe.otel", raising=False)
    monkeypatch.setitem(sys.modules, "tdn.observe.otel", None)
    with caplog.at_level(logging.WARNING):
        assert traces.open_traces("node", "n1", "http://127.0.0.1:4318", {}) is None
    assert "tdn[otel]" in caplog.text
