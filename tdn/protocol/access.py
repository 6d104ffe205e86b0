"""Who is meant: one entity by its id, `institution:X` for all of an institution, `*` for every authenticated one; and lists of those.

A topic's discovery lists say who may find it (T18). Its owner always may; whoever is barred may not, however much allowed; where an allow
list is present, only who is on it. Node policies (T11) name whom they serve in the same words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import UsageError
from tdn.protocol.names import check_id

EVERYONE = "*"
INSTITUTION = "institution:"
#: Longest list. A group of that size has an institution's name.
MAX_LISTED = 500
#: Longest name of an institution, as certificates may have it.
_MAX_INSTITUTION = 128


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, as its certificate says. Only entities have an id that lists can name."""

    entity: str | None
    institution: str

    @property
    def names(self) -> frozenset[str]:
        """Every way in which a list can mean this asker."""
        mine = {EVERYONE, f"{INSTITUTION}{self.institution}"}
        return frozenset(mine | {self.entity} if self.entity is not None else mine)

    def is_meant_by(self, names: Collection[str]) -> bool:
        return not self.names.isdisjoint(names)


@dataclass(frozen=True, slots=True)
class Lists:
    """Who may discover a topic. No allow list means everyone; sorted and without doubles, so that one choice has one text."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    @property
    def restrict(self) -> bool:
        """Whether they keep anybody out."""
        return self.allow is not None or bool(self.deny)

    def admit(self, asker: Asker, owner: str) -> bool:
        if asker.entity == owner:
            return True
        return not asker.is_meant_by(self.deny) and (self.allow is None or asker.is_meant_by(self.allow))

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        if self.allow is not None:
            result["discover_allow"] = list(self.allow)
        if self.deny:
            result["discover_deny"] = list(self.deny)
        return result


def lists(allow: Iterable[str] = (), deny: Iterable[str] = ()) -> Lists:
    """Lists as a person names them. None allowed by name means that there is no such list."""
    allowed, denied = _sorted(allow), _sorted(deny)
    return Lists(allowed or None, denied)


def read_lists(value: Mapping[str, Any]) -> Lists:
    """Lists from a message that fits its schema."""
    allow = value.get("discover_allow")
    return Lists(tuple(allow) if allow is not None else None, tuple(value.get("discover_deny", ())))


def check_who(text: str) -> str:
    """Refuse what names nobody."""
    if text == EVERYONE:
        return text
    if text.startswith(INSTITUTION):
        institution = text.removeprefix(INSTITUTION)
        if not 1 <= len(institution) <= _MAX_INSTITUTION or any(
            ord(character) < 32 or ord(character) == 127 for character in institution
        ):
            raise UsageError(f"{text[:80]!r} names no institution; write institution:X")
        return text
    try:
        return check_id(text)
    except UsageError as error:
        raise UsageError(f"{text[:80]!r} names nobody; write an entity's id, institution:X or *") from error


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    result = tuple(sorted({check_who(name) for name in names}))
    if len(result) > MAX_LISTED:
        raise UsageError(f"a list has {len(result)} names; at most {MAX_LISTED} are allowed: name an institution instead")
    return result
