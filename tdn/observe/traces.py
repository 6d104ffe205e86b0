"""Traces as an option: where a collector is named and OpenTelemetry is installed, every trail becomes spans there.

Nothing about traces goes over the wire. The trace's id is a hash of the request's id, which all who work on a request know: entity and nodes give the
same trace without having told each other, and a request that is found in a log is found in the collector by the same id.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from tdn.observe.trail import Trail

logger = logging.getLogger(__name__)

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Traces(Protocol):
    def tell(self, trail: Trail) -> None:
        """Show what has ended. Trails without a request are nobody's."""
        ...

    def close(self) -> None: ...


def ids_of(request: str) -> tuple[int, int]:
    """The trace of a request, and the span of whoever sent it, which is the parent of all others."""
    digest = hashlib.sha256(b"tdn trace\0" + request.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def open_traces(role: str, name: str, collector: str | None = None, environment: Mapping[str, str] = os.environ) -> Traces | None:
    """Traces to the collector that the setting or the environment names; None where neither does, or the packages are not there."""
    if collector is None and not any(environment.get(variable) for variable in _VARIABLES):
        return None
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from tdn.observe import otel  # Half a second of imports, and an extra: for those who want it.
    except ImportError as error:
        logger.warning("no traces: a collector is named, but %s is not installed; install tdn[otel]", error.name)
        return None
    return otel.to_collector(role, name, collector)


@lru_cache(maxsize=1)
def of_entity() -> Traces | None:
    """Those of a process that sends requests, by its environment alone. The entity's name is not told: a trace shows which request, not whose."""
    return open_traces("entity", "entity")
