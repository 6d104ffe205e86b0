"""What a creator asks of a hierarchy or a collection: values of requests and openings (T23, T31, T32)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import UsageError

#: Largest number that a limit may be. Who wants more has no limit in mind.
MAX_LIMIT = 1_000_000
#: Members that a collection may be created with: their UUIDs fit into one request.
MAX_FIRST_MEMBERS = 1000

#: What can change in a followed tree, as notifications say it.
ADDED, REMOVED, EXPIRED, WITHDRAWN = "added", "removed", "expired", "withdrawn"


@dataclass(frozen=True, slots=True)
class Hosting:
    """What a topic asks for its subtree. A limit of 0 asks for none; an absent one is what the ancestors leave."""

    allow_children: bool = False
    max_depth: int | None = None
    max_width: int | None = None

    def as_object(self) -> dict[str, Any]:
        asked = {"allow_children": self.allow_children, "max_depth": self.max_depth, "max_width": self.max_width}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a collection: direct members, levels of collections with its own, distinct topics in the tree. 0: none of its own."""

    breadth: int = 0
    depth: int = 0
    topics: int = 0

    def as_object(self) -> dict[str, int]:
        return {"breadth": self.breadth, "depth": self.depth, "topics": self.topics}


@dataclass(frozen=True, slots=True)
class Gathering:
    """What a collection is created with (T32)."""

    fixed: bool = False
    limits: Limits = Limits()
    #: Whether it may have child collections, and be part of others.
    child_collections: bool = False
    inclusion: bool = False

    def as_object(self) -> dict[str, Any]:
        return {
            "fixed": self.fixed,
            "limits": self.limits.as_object(),
            "child_collections": self.child_collections,
            "inclusion": self.inclusion,
        }


def read_hosting(value: Mapping[str, Any]) -> Hosting:
    return Hosting(value["allow_children"], value.get("max_depth"), value.get("max_width"))


def read_gathering(value: Mapping[str, Any]) -> Gathering:
    return Gathering(value["fixed"], Limits(**value["limits"]), value["child_collections"], value["inclusion"])


def check_limit(text: str) -> int:
    """A limit as a person writes it."""
    # Python reads no number of thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or int(text) > MAX_LIMIT:
        raise UsageError(f"{text[:40]!r} is no limit; write a whole number from 0 (no limit) to {MAX_LIMIT}")
    return int(text)
