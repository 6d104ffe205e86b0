"""What a node's file sets, as values. Apart from what uses them, so that commands that only read such a file do not load a whole node."""

from __future__ import annotations

from dataclasses import dataclass

from tdn.bus.address import NodeAddress


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What one discovery, and one entity's discoveries, may cost, and how long others are waited for. In `node.toml`."""

    #: Half of what an asker waits for by default, so that it hears why.
    query_seconds: float = 5.0
    query_memory_mb: int = 512
    queries_per_second: float = 100.0
    queries_burst: int = 2000
    #: How long nodes that ticked lately, and guards, are waited for when nobody has compared since the broker was gone.
    wait_for_others_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where it listens, and where others reach it."""

    host: str
    port: int
    public: NodeAddress
