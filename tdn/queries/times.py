"""Time filters (T14): when topics were created, when they end, and for how long they are valid; with a query or alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from tdn.protocol.times import format_time, parse_time


@dataclass(frozen=True, slots=True)
class Times:
    """`after` includes its moment, `before` does not. Durations are seconds from creation to the present expiry. None: no bound."""

    created_after: datetime | None = None
    created_before: datetime | None = None
    expires_after: datetime | None = None
    expires_before: datetime | None = None
    valid_at_least: int | None = None
    valid_at_most: int | None = None

    def admit(self, created: datetime, expires: datetime) -> bool:
        """Whether a topic with these times is asked for."""
        valid = (expires - created).total_seconds()
        return (
            (self.created_after is None or created >= self.created_after)
            and (self.created_before is None or created < self.created_before)
            and (self.expires_after is None or expires >= self.expires_after)
            and (self.expires_before is None or expires < self.expires_before)
            and (self.valid_at_least is None or valid >= self.valid_at_least)
            and (self.valid_at_most is None or valid <= self.valid_at_most)
        )

    def as_object(self) -> dict[str, Any]:
        """As messages carry them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: format_time(bound) if isinstance(bound, datetime) else bound
            for name, bound in given.items()
            if bound is not None
        }


ANY_TIME = Times()


def read_times(value: Mapping[str, Any]) -> Times:
    """Time filters from a message that fits its schema."""
    given: dict[str, Any] = {name: parse_time(bound) if isinstance(bound, str) else bound for name, bound in value.items()}
    return Times(**given)
