"""A TCP proxy of ours between everybody and the brokers, as a process of its own: `python -m tests.chaos.proxy PORT …`.

It says which ports it listens on, one for each port behind it, and then does what it is told on standard input, line by line: `cut SHARE`
ends some connections at once, `stall SECONDS` lets nothing pass for a while, `silence SHARE` loses some connections without telling either
end, as a firewall does that forgets them. It ends with its standard input, and so with whoever started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: As much as is taken from one side before the other has to take it.
_CHUNK_BYTES = 65_536


class Line:
    """One connection through the proxy: both halves of it."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.silent = False

    def cut(self) -> None:
        for writer in self._writers:
            # Reset, not closed in order.
            writer.transport.abort()


class Forwarding:
    """What the process does."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._lines: set[Line] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def listen(self, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(reader, writer, port)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        line = Line(writer, their_writer)
        self._lines.add(line)
        ways = [
            asyncio.ensure_future(self._pump(line, reader, their_writer)),
            asyncio.ensure_future(self._pump(line, their_reader, writer)),
        ]
        try:
            # Either end has left: so does the other.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lines.discard(line)
            line.cut()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                if line.silent:
                    continue
                writer.write(data)
                await writer.drain()

    async def obey(self, command: str) -> None:
        word, _, value = command.partition(" ")
        if word == "stall":
            self._flowing.clear()
            asyncio.get_running_loop().call_later(float(value), self._flowing.set)
            return
        for line in [line for line in self._lines if self._dice.random() < float(value)]:
            if word == "cut":
                line.cut()
            else:
                line.silent = True


async def serve(ports: Sequence[int], seed: int) -> None:
    forwarding = Forwarding(random.Random(seed))
    print(json.dumps([await forwarding.listen(port) for port in ports]), flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        await forwarding.obey(line.decode().strip())


class Proxy:
    """The process, for whoever commands it."""

    def __init__(self, ports: Sequence[int], *, seed: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", str(seed), *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        #: Where it listens, in the order of the ports behind it.
        self.ports: list[int] = json.loads(self._process.stdout.readline())

    def cut(self, share: float) -> None:
        """End some of the connections."""
        self._command(f"cut {share}")

    def stall(self, seconds: float) -> None:
        """Let nothing pass for a while; what was sent meanwhile comes later."""
        self._command(f"stall {seconds}")

    def silence(self, share: float) -> None:
        """Lose some of the connections: both ends believe that they are open, and what either sends is gone."""
        self._command(f"silence {share}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _command(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve([int(text) for text in sys.argv[2:]], int(sys.argv[1])))
