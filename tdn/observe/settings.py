"""Where and how a process shows what it does. `[observe]` in `node.toml` and `guard.toml` says it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class ObserveSettings:
    listen: Address | None = None
    #: Whether it says that nothing is to be served, which is more than saying nothing.
    off: bool = False
    log_format: str = "text"
    #: A collector's address.
    traces: str | None = None
