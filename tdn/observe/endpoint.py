"""`/metrics`, `/healthz` and `/readyz` of one process, over plain HTTP.

It is answered by the very loop that does the process's work: an answer to `/healthz` means that the loop turns, and no answer that it hangs. Nothing
here can be changed by asking.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tdn.errors import UsageError
from tdn.observe.metrics import Metrics
from tdn.observe.settings import Address

logger = logging.getLogger(__name__)

#: Between two looks at how late the loop is.
_BEAT_SECONDS = 1.0

_READY = "1 while it serves, as /readyz says"

#: The numbers of a process that starts.
_NOT_READY = f"# HELP tdn_ready {_READY}\n# TYPE tdn_ready gauge\ntdn_ready 0.0\n".encode()

#: What is told of readiness: `ready`, and where it is not, `reason`.
Readiness = Callable[[], Mapping[str, Any]]


class Endpoint:
    """Bound when it is entered, so that an address in use is told before the work begins; what it shows may follow (`show`). `starting` is what is told
    until then."""

    def __init__(self, address: Address, starting: Readiness = lambda: {"ready": False, "reason": "starting"}) -> None:
        self.address = address
        self._metrics: Metrics | None = None
        self._readiness = starting
        self._late = 0.0
        self._runner: web.AppRunner | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}/metrics"

    def show(self, metrics: Metrics, readiness: Readiness) -> None:
        self._metrics, self._readiness = metrics, readiness
        metrics.gauge("tdn_ready", _READY, lambda: bool(readiness()["ready"]))
        metrics.gauge("tdn_loop_late_seconds", "how late the event loop came to its last beat, of one a second", lambda: self._late)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/healthz", self._show_health)
        app.router.add_get("/readyz", self._show_readiness)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.address.host, self.address.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise UsageError(
                f"metrics cannot be served at {self.address}: {os.strerror(error.errno) if error.errno else error}; choose another address with `listen` "
                "under [observe], or end what listens there"
            ) from error
        if not self.address.is_loopback:
            logger.warning("metrics at %s are shown to whoever connects; keep that network your own", self.address)
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _beat(self) -> None:
        while True:
            due = time.monotonic() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self._late = max(0.0, time.monotonic() - due)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        if self._metrics is None:
            # A process that starts is up: whoever is woken by one that does not answer would only start it anew.
            return web.Response(body=_NOT_READY, headers={"Content-Type": CONTENT_TYPE_LATEST})
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _show_health(self, _: web.Request) -> web.Response:
        return web.json_response({"alive": True, "loop_late_milliseconds": round(self._late * 1000)})

    async def _show_readiness(self, _: web.Request) -> web.Response:
        told = dict(self._readiness())
        return web.json_response(told, status=200 if told["ready"] else 503)
