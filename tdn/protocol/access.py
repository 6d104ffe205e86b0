"""Who is meant: one entity by its id, `institution:X` for all of an institution, `*` for every authenticated one; and lists of those.

A pair of lists says who may: whoever is barred may not, however much allowed; where an allow list is present, only who is on it; the owner
always may. A topic has such a pair for each thing that others may do with it: discover it (T18), see its place in a hierarchy, register
children (T23); a collection for adding to it, for whose topics it takes, for watching it, for putting it into others (T32). Node policies
(T11) name whom they serve in the same words.
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

DISCOVER, HIERARCHY, REGISTER = "discover", "hierarchy", "register"
ADD, OWNER, WATCH, INCLUDE = "add", "owner", "watch", "include"
#: What a topic has lists about. They hold for all that is registered below it (T27).
TOPIC_LISTS = (DISCOVER, HIERARCHY, REGISTER)
#: What a collection has lists about. Without a list, adding, whose topics are taken and inclusion are for its owner alone.
COLLECTION_LISTS = (DISCOVER, ADD, OWNER, WATCH, INCLUDE)
_FOR_THE_OWNER = frozenset({ADD, OWNER, INCLUDE})
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
    """One pair. No allow list means everyone; sorted and without doubles, so that one choice has one text."""

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

    def below(self, above: Lists) -> Lists:
        """These lists as they hold under those of an ancestor (T27): its bars hold too, and its allow list where there is none here."""
        return Lists(above.allow if self.allow is None else self.allow, tuple(sorted({*self.deny, *above.deny})))


NO_LISTS = Lists()


@dataclass(frozen=True, slots=True)
class Access:
    """All pairs of lists of a topic or collection, by what they are about."""

    pairs: Mapping[str, Lists]

    def about(self, subject: str) -> Lists:
        return self.pairs.get(subject, NO_LISTS)

    @property
    def discover(self) -> Lists:
        return self.about(DISCOVER)

    @property
    def restrict(self) -> bool:
        return any(pair.restrict for pair in self.pairs.values())

    def admit(self, subject: str, asker: Asker, owner: str) -> bool:
        pair = self.about(subject)
        if subject in _FOR_THE_OWNER and pair.allow is None:
            return asker.entity == owner
        return pair.admit(asker, owner)

    def below(self, above: Access) -> Access:
        """The access that holds under an ancestor's: every pair below its pair."""
        return Access({subject: self.about(subject).below(above.about(subject)) for subject in TOPIC_LISTS})

    @property
    def longest(self) -> int:
        return max((len(names) for pair in self.pairs.values() for names in (pair.allow or (), pair.deny)), default=0)

    def as_object(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for subject, pair in sorted(self.pairs.items()):
            if pair.allow is not None:
                result[f"{subject}_allow"] = list(pair.allow)
            if pair.deny:
                result[f"{subject}_deny"] = list(pair.deny)
        return result


NO_ACCESS = Access({})


def lists(allow: Iterable[str] = (), deny: Iterable[str] = ()) -> Lists:
    """Lists as a person names them. None allowed by name means that there is no such list."""
    allowed, denied = _sorted(allow), _sorted(deny)
    return Lists(allowed or None, denied)


def access(creator: str, **pairs: Lists) -> Access:
    """The access that a creator chooses, by what each pair is about. A list that bars its own creator is a mistake: owners always may."""
    for subject, pair in pairs.items():
        if creator in pair.deny:
            raise UsageError(
                f"the list of those barred ({subject}) names {creator}, its own creator, who always may; leave it out"
            )
    return Access({subject: pair for subject, pair in pairs.items() if pair.restrict})


def read_access(value: Mapping[str, Any]) -> Access:
    """Access from a message or fact that fits its schema."""
    subjects = {name.rpartition("_")[0] for name in value}
    return Access({subject: _read_pair(value, subject) for subject in sorted(subjects)})


def _read_pair(value: Mapping[str, Any], subject: str) -> Lists:
    allow = value.get(f"{subject}_allow")
    return Lists(tuple(allow) if allow is not None else None, tuple(value.get(f"{subject}_deny", ())))


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
