"""A node that reaches the brokers by other addresses: `python -m tests.chaos.proxied PORT,PORT,…`, then what follows `tdn`.

The product has no hooks for this; where the brokers are is replaced here, before the same entry point runs.
"""

from __future__ import annotations

import sys
from dataclasses import replace

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
    reach_brokers_at([int(text) for text in sys.argv.pop(1).split(",")])
    run()
