"""What a guard is told when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tdn.bus.connection import Broker
from tdn.observe.traces import Traces

#: No tick of any node for so long means that none is there.
SILENCE_SECONDS = 20.0
#: Between two looks through all queues and exchanges in the broker.
LOOK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class GuardSettings:
    brokers: Sequence[Broker]
    vhost: str
    genesis: bytes
    store: Path
    enrolments: Path
    host: str
    port: int
    #: `https://127.0.0.1:15671` of each broker, its own first, and the password that only the guards and the operator know.
    management_urls: Sequence[str]
    management_password: str
    #: The broker that asks this guard, where it is known which.
    own_broker: Broker | None = None
    silence_seconds: float = SILENCE_SECONDS
    look_seconds: float = LOOK_SECONDS
    #: How many rows the audit log keeps.
    audit_rows: int = 1_000_000
    traces: Traces | None = None
