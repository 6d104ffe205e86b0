"""Settings files: one table of sections and keys, from which the commented template, the checks and the documentation come.

A file is read whole or refused: an unknown section or key, a wrong type or a number out of bounds is named with its place and what to
write instead, and nothing starts with half of its settings. `connection.toml`, which is not a settings file of ours alone, is read and checked in the same way.
To add a section, add a `Section` to the file's table; whoever needs it reads
`values["section"]["key"]`, which is there for every key, with its default where the file says nothing.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tdn.errors import UsageError

#: Most that a settings file may be. Ours are a few KB; a device or a dump in its place is not read into memory.
_MAX_BYTES = 1_000_000


class Kind(Protocol):
    """What a value may be."""

    @property
    def wanted(self) -> str:
        """What to write, after "write"."""

    def fits(self, value: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class Text:
    """Words in quotes; one of `choices`, where there are some."""

    choices: tuple[str, ...] = ()
    words: str = "text in quotes"

    @property
    def wanted(self) -> str:
        return " or ".join(f'"{choice}"' for choice in self.choices) or self.words

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value) and value.isprintable() and (not self.choices or value in self.choices)


@dataclass(frozen=True, slots=True)
class Host:
    """A host's name, or its address."""

    @property
    def wanted(self) -> str:
        return "a host's name or address in quotes"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value) and value.isprintable() and " " not in value


@dataclass(frozen=True, slots=True)
class Number:
    """A number in bounds, both included. NaN is in none."""

    low: float
    high: float

    @property
    def wanted(self) -> str:
        return f"a number from {self.low:,} to {self.high:,}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Whole:
    low: int
    high: int

    @property
    def wanted(self) -> str:
        return f"a whole number from {self.low:,} to {self.high:,}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Flag:
    @property
    def wanted(self) -> str:
        return "true or false"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Address:
    """HOST:PORT, an IPv6 address in brackets; or one of `words`, where those mean something."""

    words: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        return " or ".join(f'"{word}"' for word in ("HOST:PORT", *self.words))

    def fits(self, value: Any) -> bool:
        try:
            return isinstance(value, str) and (value in self.words or bool(split_address(value)))
        except UsageError:
            return False


@dataclass(frozen=True, slots=True)
class Url:
    """An HTTPS address without a path; or one of other schemes, where those will do."""

    schemes: tuple[str, ...] = ("https",)

    @property
    def wanted(self) -> str:
        return " or ".join(f'"{scheme}://HOST:PORT"' for scheme in self.schemes)

    def fits(self, value: Any) -> bool:
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
            return (
                parts is not None
                and parts.scheme in self.schemes
                and bool(parts.hostname)
                and parts.port != 0
                and parts.username is None
                and parts.path in ("", "/")
                and not (parts.query or parts.fragment)
            )
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class ListOf:
    """At least one of a kind."""

    kind: Kind

    @property
    def wanted(self) -> str:
        return f"a list with at least one element, each {self.kind.wanted}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(self.kind.fits(one) for one in value)


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    kind: Kind
    #: What it means: lines of the template, and of the documentation.
    comment: str
    #: What holds when the file does not name it; None where there is nothing to fall back on, or where the program decides.
    default: Any = None
    #: What the template shows where there is no default to show.
    example: Any = None
    #: Stands in the template as a setting, not as a comment.
    written: bool = False
    #: The file must name it.
    required: bool = False


@dataclass(frozen=True, slots=True)
class Tables:
    """At least one table in double brackets, each with these keys."""

    keys: tuple[Key, ...]

    @property
    def wanted(self) -> str:
        return "one or more of it in double brackets, [[…]], each with its keys below"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    comment: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One kind of file: what it is called, what it is for, and all that may stand in it."""

    name: str
    comment: str
    sections: tuple[Section, ...]

    def template(self) -> str:
        """The file with every setting explained, as a new home gets it."""
        lines = _commented(self.comment)
        for section in self.sections:
            lines += ["", f"[{section.name}]", *(_commented(section.comment) if section.comment else [])]
            for key in section.keys:
                shown = key.default if key.default is not None else key.example
                lines += [*_commented(key.comment), f"{'' if key.written else '# '}{key.name} = {_toml(shown)}"]
        return "\n".join(lines) + "\n"

    def write_template(self, folder: Path) -> None:
        """For a folder that has no such file yet."""
        path = folder / self.name
        if not path.exists():
            path.write_text(self.template(), "utf-8")

    def read(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Every section with every key, defaults filled in; or UsageError that names file, place and what to write. No file: the defaults."""
        path = folder / self.name
        try:
            return self.check(read_toml(path) or {})
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}") from error

    def check(self, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        known = {section.name: section for section in self.sections}
        for name, table in given.items():
            if name not in known:
                places = [f"[{section.name}]" for section in self.sections if any(key.name == name for key in section.keys)]
                if places:
                    raise UsageError(f"{name!r} stands in no section; write it below {' or '.join(places)}")
                raise UsageError(f"[{name}] is unknown{_nearest(name, known, '[{}]')}; there are {_listed(known, '[{}]')}")
            if not isinstance(table, dict):
                raise UsageError(f"{name} is a section: write [{name}] on a line of its own")
        return {name: check_table(name, given.get(name, {}), section.keys) for name, section in known.items()}


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT in its parts, or UsageError."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    colons_stand_in_brackets = ":" not in bare or bare != host
    if (
        not colons_stand_in_brackets
        or not Host().fits(bare)
        or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536)
    ):
        raise UsageError(f"{text[:80]!r} is not an address; write HOST:PORT")
    return bare, int(port)


def read_toml(path: Path) -> dict[str, Any] | None:
    """What stands in a file, None where there is none; or UsageError, which does not name the file."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise UsageError("it is over a megabyte; that is no settings file")
        return tomllib.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"is not TOML: {error}") from error


def check_table(place: str, given: Mapping[str, Any], keys: Sequence[Key]) -> dict[str, Any]:
    """Every key, with its default where it may be missing; or UsageError that names its place, "" for the top of a file, and what to write."""
    known = {key.name: key for key in keys}
    above = f"{place}: " if place else ""
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{above}{name!r} is unknown{_nearest(name, known, '{}')}; there are {_listed(known, '{}')}")
        if not known[name].kind.fits(value):
            # The value itself is not repeated: it may be what should have stood elsewhere.
            raise UsageError(f"{place}{'.' if place else ''}{name}: write {known[name].kind.wanted}")
    values: dict[str, Any] = {}
    for name, key in known.items():
        if key.required and name not in given:
            raise UsageError(f"{above}{name!r} is missing; write {key.kind.wanted}")
        values[name] = given.get(name, key.default)
        if isinstance(key.kind, Tables) and name in given:
            values[name] = [check_table(name, entry, key.kind.keys) for entry in given[name]]
    return values


def _nearest(name: str, known: Mapping[str, Any], form: str) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {form.format(found[0])}?)" if found else ""


def _listed(known: Mapping[str, Any], form: str) -> str:
    return ", ".join(form.format(name) for name in known)


def _commented(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in text.split("\n")]


def _toml(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_toml(one) for one in value)}]"
    # JSON's strings, numbers and words are TOML's as well.
    return json.dumps(value, ensure_ascii=False)
