"""The brokers' management API when a broker is slow, away or refuses (T21, T22): real servers over TLS; what each does with a request is a test's."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tdn.errors import BrokerUnavailable
from tdn.guard import enforcing, management
from tdn.guard.enforcing import Enforcer
from tdn.guard.management import Management
from tdn.local.ca import CertificateAuthority
from tdn.local.processes import free_ports
from tdn.protocol.names import Role
from tdn.trust import credentials
from tests.live import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DONE, GONE, FAILED = 204, 404, 500
#: What an enforcer has and does not need.
NOTHING: Any = None


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("issued")
    authority = CertificateAuthority(folder / "ca")
    authority.create()
    authority.issue(Role.GUARD, "g1", folder / "g1")
    authority.issue(Role.NODE, "server", folder / "server", hosts=("127.0.0.1",))
    return folder


class Broker:
    """One that answers requests one after the other as it is told; a number is a status, an event what it waits for before it has done it, and what is
    listed are names."""

    def __init__(self, *answers: int | asyncio.Event | list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.given_up = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, asyncio.Event):
            try:
                await answer.wait()
            except asyncio.CancelledError:
                self.given_up += 1
                raise
            answer = DONE
        if isinstance(answer, list):
            return web.json_response([{"name": name} for name in answer])
        return web.Response(status=answer)


@contextlib.asynccontextmanager
async def asking(issued: Path, *brokers: Broker | None) -> AsyncIterator[Management]:
    """A guard's view of some brokers, the first its own; one that is None is not there."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued / "server" / "cert.pem", issued / "server" / "key.pem")
    runners, urls = [], []
    for broker, port in zip(brokers, free_ports(len(brokers)), strict=True):
        urls.append(f"https://127.0.0.1:{port}")
        if broker is not None:
            application = web.Application()
            application.router.add_route("*", "/{path:.*}", broker.handle)
            # As RabbitMQ does, it ends the work on a request whose connection is gone.
            runners.append(web.AppRunner(application, handler_cancellation=True))
            await runners[-1].setup()
            await web.TCPSite(runners[-1], "127.0.0.1", port, ssl_context=context).start()
    try:
        async with Management(urls, "password", "tdn", credentials.load(issued / "g1")) as api:
            yield api
    finally:
        await asyncio.gather(*(runner.cleanup() for runner in runners))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "_ASK_ANOTHER_SECONDS", 0.05)


async def test_absent_is_no_error(issued: Path) -> None:
    async with asking(issued, Broker(DONE, GONE)) as api:
        assert await api.delete_queue("q")
        assert not await api.delete_queue("q")


async def test_a_list_is_of_one_moment(issued: Path) -> None:
    """T21: page by page, what moves up when something is deleted meanwhile would be passed over, and said to be ended."""
    everything = [f"q{number}" for number in range(1234)]
    broker = Broker(everything)
    async with asking(issued, broker) as api:
        assert await api.queues() == everything
        assert await api.exchanges() == everything
    assert broker.asked == 2


async def test_a_slow_broker_goes_on_while_others_are_asked(issued: Path, impatient: None) -> None:
    """What it does takes as long as it takes: given up early, a deletion of a queue that is on several brokers is never done."""
    done = asyncio.Event()
    slow, refusing = Broker(done), Broker(FAILED)
    async with asking(issued, slow, None, refusing) as api:
        deleting = asyncio.create_task(api.delete_queue("q"))
        await until(lambda: refusing.asked, "the third to be asked")
        assert not deleting.done()
        assert not slow.given_up
        done.set()
        assert await deleting
    assert (slow.asked, refusing.asked) == (1, 1)


async def test_the_first_answer_counts(issued: Path, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who gave it is asked first the next time."""
    hanging, quick = Broker(asyncio.Event()), Broker(DONE)
    async with asking(issued, hanging, quick) as api:
        assert await api.delete_queue("q")
        # Now there is time: only the first is asked.
        monkeypatch.setattr(management, "_ASK_ANOTHER_SECONDS", 20.0)
        assert await api.delete_queue("q")
        assert (hanging.asked, quick.asked) == (1, 2)


async def test_a_connection_is_closed_while_deletions_wait(issued: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21: as many as there may be at once, for a broker that is away."""
    monkeypatch.setattr(management, "_AT_ONCE", 2)
    waiting = asyncio.Event()
    broker = Broker(waiting, waiting, DONE)
    async with asking(issued, broker) as api:
        deleting = [asyncio.create_task(api.delete_queue(f"q{number}")) for number in range(2)]
        await until(lambda: broker.asked == 2, "both to wait")
        await api.close_connections("tdn:entity:alice:0", "a right has ended")
        assert broker.asked == 3
        waiting.set()
        assert await asyncio.gather(*deleting) == [True, True]


async def test_nobody_answers(issued: Path, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(issued, None, Broker(FAILED)) as api:
        with pytest.raises(BrokerUnavailable, match="answered 500"):
            await api.delete_queue("q")
    monkeypatch.setattr(management, "_ANSWER_SECONDS", 0.2)
    async with asking(issued, Broker(asyncio.Event()), None, Broker(asyncio.Event())) as api:
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            await api.delete_queue("q")


async def test_the_time_that_a_request_waits_for_a_connection_is_not_its_own(issued: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21: where very many wait for a broker that is away, the last would be given up as soon as they are sent."""
    monkeypatch.setattr(management, "_AT_ONCE", 1)
    # The second connects within it, also on a busy machine.
    monkeypatch.setattr(management, "_ANSWER_SECONDS", 1.5)
    broker = Broker(asyncio.Event(), DONE)
    async with asking(issued, broker) as api:
        first, second = await asyncio.gather(api.delete_queue("q1"), api.delete_queue("q2"), return_exceptions=True)
    assert isinstance(first, BrokerUnavailable)
    assert second is True


async def test_what_ends_a_right_is_tried_until_it_is_done(issued: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T21: nobody is told before, however long the broker refuses."""
    monkeypatch.setattr(enforcing, "_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(enforcing, "_AGAIN_MOST_SECONDS", 0.002)
    broker = Broker(*[FAILED] * 60, DONE)
    noted: list[tuple[Any, ...]] = []
    state: Any = SimpleNamespace(get=lambda space, key: None)
    async with asking(issued, broker) as api:
        enforcer = Enforcer(state, NOTHING, api, NOTHING, lambda *note: noted.append(note), NOTHING)
        touched = enforcing.Touched(stale={("subject", "entity", "secret")})
        cut = await enforcer.settle(touched, [])
    assert (broker.asked, cut.queues, len(noted)) == (61, 1, 1)
