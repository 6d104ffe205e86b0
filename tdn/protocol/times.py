"""Times and durations as people and messages write them: RFC 3339 in UTC, and `90s`, `15m`, `12h`, `30d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from tdn.errors import UsageError

#: Longest lifetime of anything, from the public interface. Keeps all arithmetic far from the calendar's end.
MAX_LIFETIME = timedelta(days=3650)

_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Hour 24 is left out: newer versions of Python read it, older ones do not, and every node must judge alike.
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_duration(text: str) -> timedelta:
    """`90s`, `15m`, `12h` or `30d`, at least a second and at most ten years."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration; write 90s, 15m, 12h or 30d")
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]]
    if seconds < 1 or seconds > MAX_LIFETIME.total_seconds():
        raise UsageError(f"{text!r} is out of range; a duration is between 1s and 3650d")
    return timedelta(seconds=seconds)


@lru_cache(maxsize=4096)
def parse_time(text: str) -> datetime:
    """An RFC 3339 time with its zone, in UTC. Remembered: what is read together was mostly written in the same seconds."""
    if _RFC3339.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a time; write it as 2027-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is not a time: {error}") from error


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, with more digits only when there are any."""
    moment = moment.astimezone(UTC)
    # Not strftime: its %Y has no leading zeros on Linux.
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds" if moment.microsecond else "seconds")
    return f"{text.removesuffix('000')}Z" if moment.microsecond else f"{text}Z"


@lru_cache(maxsize=4096)
def from_epoch(seconds: int | float) -> datetime:
    """Remembered, as `parse_time` does."""
    return datetime.fromtimestamp(seconds, UTC)


def whole_seconds(moment: datetime) -> datetime:
    """The moment without its fraction. What is signed carries whole seconds, so that every place prints it alike."""
    return moment.astimezone(UTC).replace(microsecond=0)


def describe_duration(duration: timedelta) -> str:
    """A duration for a person: the largest unit that says it without a fraction, or the two largest."""
    seconds = max(0, round(duration.total_seconds()))
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNIT_SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
