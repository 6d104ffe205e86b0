"""Traces: entity and node make the same one from the request's id alone, with OpenTelemetry's own SDK."""

from __future__ import annotations

import gzip
import logging
import sys
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tdn.guard.enforcing import Cut
from tdn.guard.observed import Observed
from tdn.observe import traces
from tdn.observe.otel import OtelTraces
from tdn.observe.trail import REFUSED, Trail
from tdn.rules.state import LogRecord, Outcome


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


def test_a_guard_shows_in_the_trace_of_a_request_what_it_did_for_its_record(tmp_path: Path) -> None:
    shown = InMemorySpanExporter()
    guard = Observed(
        replica=SimpleNamespace(position=(0, ""), lag=0),  # type: ignore[arg-type]  # asked when numbers are fetched, which they are not here
        identity=SimpleNamespace(not_after=None),  # type: ignore[arg-type]
        store=tmp_path / "store.sqlite",
        clock=lambda: datetime.now(UTC),
        connected=lambda: True,
        sure=lambda: True,
        cutting=lambda: 0,
        audit_waiting=lambda: 0,
        traces=OtelTraces("guard", "g1", SimpleSpanProcessor(shown)),
    )
    accepted = Outcome("accepted", "retract", request="entity:alice/request-3")
    refused = Outcome("refused", "retract", request="entity:alice/request-4")
    guard.on_applied([(LogRecord(7, "head", b""), accepted), (LogRecord(8, "head", b""), refused)], tell=True)
    guard.on_applied([(LogRecord(9, "head", b""), accepted)], tell=False)
    guard.on_applied([(LogRecord(10, "head", b""), Outcome("accepted", "tick"))], tell=True)
    guard.settled(accepted, 7, Cut(), time.monotonic() - 0.25)
    guard.settled(None, None, Cut(), time.monotonic())
    spans = shown.get_finished_spans()
    told = [(span.name, span.attributes["tdn.path"], span.attributes["tdn.seq"]) for span in spans if span.attributes is not None]
    assert told == [("guard retract", "apply", 7), ("guard retract", "apply", 8), ("guard retract", "settle", 7)]
    assert [span.context.trace_id for span in spans] == [traces.ids_of(f"request-{number}")[0] for number in (3, 4, 3)]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET]
    settled = spans[2]
    assert 0.25e9 <= settled.end_time - settled.start_time < 60e9


def test_a_collector_gets_them() -> None:
    """Over HTTP, as OpenTelemetry's exporter sends them: to the address that the settings name, and without anybody's name in it."""
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        opened = traces.open_traces("guard", "g1", f"http://127.0.0.1:{server.server_port}/", {})
        assert opened is not None
        opened.tell(Trail("settle", "retract", "request-5", principal="entity:alice", seq=9))
        opened.close()
        server.shutdown()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"alice" not in body
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    said = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (said["service.name"], said["service.instance.id"]) == ("tdn-guard", "g1")
    (span,) = resource.scope_spans[0].spans
    assert (span.name, int.from_bytes(span.trace_id)) == ("guard retract", traces.ids_of("request-5")[0])


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
