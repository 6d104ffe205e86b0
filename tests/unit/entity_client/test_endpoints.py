"""T22: what a node may do at its own endpoint to whoever asks it. A real server over mutual TLS, with a node's certificate; what it says is a test's."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from entity_client.endpoints import Endpoints
from tdn.bus.address import NodeAddress
from tdn.local.ca import CertificateAuthority
from tdn.local.processes import free_ports
from tdn.protocol import framing
from tdn.protocol.names import Role
from tdn.trust import credentials
from tests.live import until

#: More than fit between two processes and into what may wait.
MANY = 200_000


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    authority = CertificateAuthority(folder / "ca")
    authority.create()
    authority.issue(Role.ENTITY, "alice", folder / "alice")
    authority.issue(Role.NODE, "n1", folder / "n1", hosts=("127.0.0.1",))
    return folder


@contextlib.asynccontextmanager
async def node(people: Path, frames: int, written: list[int] | None = None) -> AsyncIterator[NodeAddress]:
    """One that answers each question with so many messages, and may note each."""
    message = framing.frame(b"x" * 100)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": framing.CONTENT_TYPE})
        await response.prepare(request)
        for number in range(frames):
            await response.write(message)
            if written is not None:
                written.append(number)
        return response

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(people / "n1" / "trust.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(str(people / "n1" / "cert.pem"), str(people / "n1" / "key.pem"))
    app = web.Application()
    app.add_routes([web.post("/ask", answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        (port,) = free_ports(1)
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        yield NodeAddress("n1", "127.0.0.1", port)
    finally:
        await runner.cleanup()


async def test_all_that_a_node_answers(people: Path) -> None:
    async with node(people, 100) as address:
        endpoints = Endpoints(credentials.load(people / "alice"), [address])
        assert [answer async for answer in endpoints.ask(b"question", None, seconds=10)] == [b"x" * 100] * 100


@pytest.mark.timeout(30)
async def test_who_has_read_enough_of_an_endless_answer_leaves(people: Path) -> None:
    """The node goes on; there is no room for another message, nor for the word that there are no more."""
    written: list[int] = []
    seen = 0

    def stands() -> bool:
        nonlocal seen
        before, seen = seen, len(written)
        return 0 < before == seen

    async with node(people, MANY, written) as address:
        answers = Endpoints(credentials.load(people / "alice"), [address]).ask(b"question", None, seconds=60)
        assert await anext(answers) == b"x" * 100
        await until(stands, "as many to wait as may")
        assert len(written) < MANY
        async with asyncio.timeout(5):
            await answers.aclose()


@pytest.mark.timeout(30)
async def test_a_fault_of_ours_is_no_silence(people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: framing.Frames, data: bytes) -> list[bytes]:
        raise RuntimeError("ours")

    monkeypatch.setattr(framing.Frames, "feed", broken)
    async with node(people, 1) as address:
        with pytest.raises(RuntimeError, match="ours"):
            _ = [answer async for answer in Endpoints(credentials.load(people / "alice"), [address]).ask(b"q", None, seconds=10)]
