"""How long one waits for answers, where several come and each may say that the rest is not worth waiting for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable


class Patience:
    """How long answers are waited for. Whoever receives them may shorten it."""

    def __init__(self, seconds: float) -> None:
        self.until = _now() + seconds

    @property
    def left(self) -> float:
        return self.until - _now()

    def shorten(self, seconds: float) -> None:
        """Wait no longer than so many seconds from now."""
        self.until = min(self.until, _now() + seconds)


async def before(patience: Patience, coming: Awaitable[bytes | None]) -> bytes | None:
    """What comes while there is patience, which may have been shortened meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(patience.until):
            return await coming
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()
