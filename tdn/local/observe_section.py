"""`[observe]`, which `node.toml` and `guard.toml` share: where a process shows its numbers, how it writes its log, and where traces go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdn.observe.settings import LOG_FORMATS, ObserveSettings
from tdn.observe.settings import Address as Place
from tdn.settings_file import Address, Key, Section, Text, Url, split_address

OFF = "off"

OBSERVE = Section(
    "observe",
    "What this process shows of itself: /metrics, /healthz and /readyz over plain HTTP, its log, traces.",
    (
        Key(
            "listen",
            Address((OFF,)),
            "Whoever connects can read it: keep it on loopback, or on a network of your own. Without this line it is the port that\n"
            '`tdn up` chose, and nowhere if `tdn up` was not used. "off": nowhere.',
            example="127.0.0.1:9464",
        ),
        Key("log_format", Text(LOG_FORMATS), 'Lines of the log: "text" for people, "json" with one object per line.', "text"),
        Key(
            "traces",
            Url(("http", "https")),
            "An OpenTelemetry collector (OTLP over HTTP), if the extra `otel` is installed. $OTEL_EXPORTER_OTLP_ENDPOINT does the same.",
            example="http://127.0.0.1:4318",
        ),
    ),
)


def read(values: Mapping[str, Any]) -> ObserveSettings:
    """The section's values, as the process takes them."""
    listen = values["listen"]
    place = None if listen in (None, OFF) else Place(*split_address(listen))
    return ObserveSettings(place, listen == OFF, values["log_format"], values["traces"])
