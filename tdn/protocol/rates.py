"""How often somebody may do a thing that leaves something behind: a bucket of permits for each, refilled steadily."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Rate:
    """At most `burst` at once and `per_second` for ever, for each name. Remembers the latest names only."""

    def __init__(self, *, burst: int, per_second: float, clock: Callable[[], float], most_names: int = 10_000) -> None:
        self._burst = float(burst)
        self._per_second = per_second
        self._clock = clock
        self._most_names = most_names
        self._permits: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> bool:
        """Use one permit, or learn that there is none."""
        now = self._clock()
        left, since = self._permits.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        allowed = left >= 1.0
        self._permits[name] = (left - 1.0 if allowed else left, now)
        if len(self._permits) > self._most_names:
            self._permits.popitem(last=False)
        return allowed
