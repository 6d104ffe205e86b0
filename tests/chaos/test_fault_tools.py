"""The faults do what they say: connections through the proxy are cut, stalled and lost; a clock is wrong."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.fragile import compile_clock
from tests.chaos.proxy import Proxy
from tests.live import processes_of

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[int]:
    """Says everything again."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        finally:
            writer.close()

    server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    proxy = Proxy([echo])
    yield proxy
    proxy.close()


async def connect(proxy: Proxy) -> Ends:
    ends = await asyncio.open_connection("127.0.0.1", proxy.ports[0])
    assert await said(ends, b"hello") == b"hello"
    return ends


async def said(ends: Ends, words: bytes) -> bytes:
    reader, writer = ends
    writer.write(words)
    async with asyncio.timeout(10):
        return await reader.readexactly(len(words))


async def test_cut(proxy: Proxy) -> None:
    """T22: both ends learn at once that the connection is gone; a new one works."""
    ends = await connect(proxy)
    proxy.cut(1.0)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await said(ends, b"are you there?")
    ends[1].close()
    (await connect(proxy))[1].close()


async def test_stall(proxy: Proxy) -> None:
    """T22: what was sent meanwhile comes later, and nothing is lost."""
    ends = await connect(proxy)
    proxy.stall(0.7)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        # The command may be on its way for a moment.
        began_one = time.monotonic()
        assert await said(ends, b"word") == b"word"
        if time.monotonic() - began_one > 0.3:
            break
    else:
        pytest.fail("nothing was held up")
    ends[1].close()


async def test_silence(proxy: Proxy) -> None:
    """T22: neither end is told, and what is sent is gone."""
    ends = await connect(proxy)
    proxy.silence(1.0)

    async def ask() -> None:
        # The command may be on its way for a moment.
        while True:
            async with asyncio.timeout(0.5):
                await said(ends, b"is anybody there?")

    with pytest.raises(TimeoutError):
        await ask()
    assert not ends[0].at_eof()
    ends[1].close()
    (await connect(proxy))[1].close()


def test_processes_of_a_folder(tmp_path: Path) -> None:
    """T22: whoever works in it is found too, whatever its environment and its words are: of a node, the processes that search."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={}, cwd=tmp_path) as process:
        assert processes_of(tmp_path) == [process.pid]
        assert processes_of(tmp_path / "below") == []
        process.kill()
    assert processes_of(tmp_path) == []


def test_clock(tmp_path: Path) -> None:
    """T22: a process with the library has a time of day that is wrong by as much as the file says, at once; what it measures is right."""
    library, clock = compile_clock(tmp_path), tmp_path / "clock"
    if library is None:
        pytest.skip("there is no C compiler; `deploy/setup.sh chaos` installs one")
    clock.write_bytes(struct.pack("=q", -7200))
    program = f"""
import struct, time, datetime
begun = time.monotonic()
print(time.time(), datetime.datetime.now(datetime.UTC).timestamp())
open({str(clock)!r}, "r+b").write(struct.pack("=q", 7200))
print(time.time(), time.monotonic() - begun)
"""
    environment = {"LD_PRELOAD": str(library), "TDN_CHAOS_CLOCK": str(clock)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    before, dated, after, elapsed = map(float, ran.stdout.split())
    now = time.time()
    assert before - now == pytest.approx(-7200, abs=60)
    assert dated == pytest.approx(before, abs=1)
    assert after - now == pytest.approx(7200, abs=60)
    assert elapsed < 60
