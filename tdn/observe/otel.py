"""Trails as OpenTelemetry spans. Imported only where traces are wanted: the packages are an extra."""

from __future__ import annotations

import os
from contextvars import ContextVar

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from tdn import __version__
from tdn.observe.traces import ids_of
from tdn.observe.trail import DONE, UNKNOWN, Trail

#: How long a collector that is not there holds up the end of a command.
_EXPORT_SECONDS = 2.0

#: The ids of the span that is made next, where they are not left to chance.
_GIVEN: ContextVar[tuple[int, int] | None] = ContextVar("given ids", default=None)


class _Ids(RandomIdGenerator):
    def generate_trace_id(self) -> int:
        given = _GIVEN.get()
        return super().generate_trace_id() if given is None else given[0]

    def generate_span_id(self) -> int:
        given = _GIVEN.get()
        return super().generate_span_id() if given is None else given[1]


class OtelTraces:
    def __init__(self, role: str, name: str, processor: SpanProcessor) -> None:
        self._role = role
        resource = Resource.create({"service.name": f"tdn-{role}", "service.instance.id": name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, id_generator=_Ids())
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tdn", __version__)

    def tell(self, trail: Trail) -> None:
        if trail.request is None or trail.kind == UNKNOWN:
            return
        ids = ids_of(trail.request)
        ended = trail.began_at + trail.elapsed()
        is_sender = self._role == "entity"
        # A sender's span is the first of its trace; the others hang on it, whether or not its process shows traces.
        context = None if is_sender else set_span_in_context(NonRecordingSpan(SpanContext(*ids, True, TraceFlags(TraceFlags.SAMPLED))))
        token = _GIVEN.set(ids if is_sender else None)
        try:
            span = self._tracer.start_span(
                f"{self._role} {trail.kind}",
                context,
                SpanKind.CLIENT if is_sender else SpanKind.SERVER,
                {"tdn.kind": trail.kind, "tdn.request": trail.request, "tdn.path": trail.path, "tdn.outcome": trail.outcome},
                start_time=trail.began_at,
            )
        finally:
            _GIVEN.reset(token)
        if trail.seq is not None:
            span.set_attribute("tdn.seq", trail.seq)
        if trail.outcome != DONE:
            span.set_status(Status(StatusCode.ERROR, trail.reason or trail.outcome))
        inside = set_span_in_context(span)
        for step in trail.steps:
            part = self._tracer.start_span(step.name, inside, start_time=trail.began_at + step.began)
            part.end(trail.began_at + step.ended)
        span.end(ended)

    def close(self) -> None:
        self._provider.shutdown()


def to_collector(role: str, name: str, collector: str | None) -> OtelTraces:
    seconds = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _EXPORT_SECONDS
    endpoint = None if collector is None else f"{collector.rstrip('/')}/v1/traces"
    return OtelTraces(role, name, BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=seconds)))
