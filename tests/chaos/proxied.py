"""A node or guard that reaches the brokers by other addresses: `python -m tests.chaos.proxied PORT,PORT,…`, then what follows `tdn`.

The product has no hooks for this; where the brokers are is replaced here, before the same entry point runs. So is, where `$TESTS_HEARTBEAT_SECONDS` says
it, how often heartbeats come: what is found out without them then shows.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from tdn.bus import connection as connections
from tdn.bus.address import ConnectionSettings
from tdn.bus.connection import Broker
from tdn.cli.main import run
from tdn.local.home import Home


def reach_brokers_at(ports: list[int]) -> None:
    connection = Home.connection

    def elsewhere(home: Home) -> ConnectionSettings:
        return replace(connection(home), brokers=[Broker("127.0.0.1", port) for port in ports])

    Home.connection = elsewhere  # type: ignore[method-assign, assignment]  # `self` is called as what it is


if __name__ == "__main__":
    connections.HEARTBEAT_SECONDS = int(os.environ.get("TESTS_HEARTBEAT_SECONDS", connections.HEARTBEAT_SECONDS))
    reach_brokers_at([int(text) for text in sys.argv.pop(1).split(",")])
    run()
