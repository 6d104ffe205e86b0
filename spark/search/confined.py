"""XPath and XQuery of a job, in a process beside the task that can be interrupted and killed: a hostile one costs its own budget and no worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from spark.search.asked import Asked, unexpected
from tdn.confined import frames
from tdn.confined.lanes import GRACE_SECONDS
from tdn.confined.processes import Cut, Done, Ending, Raised, StartFailed, Terms, Worker, Workers
from tdn.errors import TdnError

#: Time for one query over one portion of up to so many documents: one that never ends is stopped there. What it takes for all portions of a task has an end
#: too (`budget`). A live node gives a query five seconds over all that it has.
SECONDS = 2.0
DOCUMENTS = 250
#: And characters: a frame has an end, and a character may take six bytes in it.
CHARACTERS = 500_000
#: Memory of the process.
MEMORY_BYTES = 1024**3

OVERRUN = f"the query took longer than {SECONDS:g} s over {DOCUMENTS} documents and was stopped; make it more selective"
MEMORY = f"the query needed more than {MEMORY_BYTES // 1024**2} MB and was stopped; make it more selective"
DIED = "the query could not be evaluated: the process that worked on it ended; write it in another way"
UNSTARTED = "the query could not be evaluated: the process that would have worked on it did not start ({}); look at that machine, and search again"


class Confined:
    """The processes of one task, started when the first document is to be asked about. Close it, or use it as a context."""

    def __init__(self, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._runner: asyncio.Runner | None = None
        self._workers: Workers | None = None
        self._staff: dict[str, Worker] = {}
        #: Why there is no process for a language.
        self._unstarted: dict[str, str] = {}

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._runner is not None:
            if self._workers is not None:
                self._runner.run(self._workers.close())
            self._runner.close()
            self._runner = self._workers = None

    def ask(self, asked: Asked, documents: Sequence[str]) -> tuple[list[int] | str, float]:
        """The places of the documents, of one portion, that a query matches, or why it was given up; and how many seconds that took."""
        return self._ask(asked.language, asked.text, documents)

    def check(self, asked: Asked) -> str | None:
        """What is wrong with a query that only its engine finds; None: nothing."""
        told, _ = self._ask(asked.language, asked.text, [], check=True)
        return told if isinstance(told, str) else None

    def _ask(self, language: str, text: str | None, documents: Sequence[str], *, check: bool = False) -> tuple[list[int] | str, float]:
        if self._runner is None:
            self._runner = asyncio.Runner()
        frame = frames.encode({"job": {"language": language, "query": text, "documents": documents, "check": check}})
        if language not in self._unstarted:
            try:
                ending, seconds = self._runner.run(self._run(language, frame))
            except StartFailed as error:
                # No query's fault, and the next would wait as long for the same.
                self._unstarted[language] = UNSTARTED.format((str(error).splitlines() or [""])[0][:200])
        if language in self._unstarted:
            return self._unstarted[language], 0.0
        if isinstance(ending, Done):
            return ending.result["matched"], seconds
        if isinstance(ending, Raised):
            return ending.error.message if isinstance(ending.error, TdnError) else unexpected(ending.error), seconds
        return {Cut.OVERRUN: OVERRUN, Cut.MEMORY: MEMORY, Cut.DIED: DIED}[ending], seconds

    async def _run(self, language: str, frame: bytes) -> tuple[Ending, float]:
        worker = self._staff.get(language)
        if worker is None or not worker.alive:
            worker = self._staff[language] = await self._hire(language)
        done: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        # Without what it takes to start a process, which is no query's.
        began = time.perf_counter()
        worker.begin(frame, done.set_result)
        return await done, time.perf_counter() - began

    async def _hire(self, language: str) -> Worker:
        if self._workers is None:
            self._workers = Workers("spark.search.xml_process:evaluator")
        interruptible = language != "xquery"
        terms = Terms(
            self._seconds,
            self._seconds + (GRACE_SECONDS if interruptible else 0.0),
            interruptible=interruptible,
            nice=0,
            memory_bytes=self._memory_bytes,
        )
        return await self._workers.start(terms, {"language": language}, lambda worker: None)


def portions(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """From where to where documents of these sizes, in characters, are one portion."""
    begin = size = 0
    for place, characters in enumerate(sizes):
        if place > begin and (place - begin == DOCUMENTS or size + characters > CHARACTERS):
            yield begin, place
            begin, size = place, 0
        size += characters
    if begin < len(sizes):
        yield begin, len(sizes)
