"""requirements.lock as packages, and the part of it that one purpose needs.

    python -m deploy.supply.lock                  # what `tdn` needs at run time
    python -m deploy.supply.lock --extra spark    # and an extra of pyproject.toml
    python -m deploy.supply.lock --build          # what builds the wheel, and pyspark, which comes as source

Prints requirements with their hashes, as the lock has them. Who needs whom is read from the lock's own comments (`# via`). Should they ever leave
somebody out, `pip install --require-hashes` refuses the result, because it takes nothing that is not listed. Standard library only: an image is built
with it before anything is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
ASKED = ROOT / "requirements.in"
PROJECT = ROOT / "pyproject.toml"

#: Who asked for a package that no other package needs.
OURSELVES = "-r requirements.in"
#: Build packages that come as source. setuptools is in the lock for it.
_BUILDS_SOURCES = "setuptools"

_PINNED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[(?P<extras>[^]]*)\])?==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>.*))?")
_HASH = re.compile(r"--hash=sha256:(?P<hash>[0-9a-f]{64})")
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


class BadLock(Exception):
    """The lock says something that it must not."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One version of one package. A name may have several, for environments that exclude each other (`marker`)."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    wanted_by: frozenset[str]
    #: Its lines without comments: what pip reads.
    text: str


def normal(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(text: str) -> list[Locked]:
    """Every package of a lock. Whatever is not a pinned package with hashes is an error: an index, an address, a path, a bare name."""
    return [_package(lines) for lines in _entries(text.splitlines())]


def _entries(lines: Iterable[str]) -> list[list[str]]:
    found: list[list[str]] = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            found.append([])
        elif not found:
            raise BadLock(f"a line before the first package: {line.strip()[:80]}")
        found[-1].append(line)
    return found


def _package(lines: Sequence[str]) -> Locked:
    comments = [line.strip().lstrip("# ") for line in lines if line.lstrip().startswith("#")]
    said = [line.rstrip("\\").strip() for line in lines if not line.lstrip().startswith("#")]
    pinned = _PINNED.fullmatch(said[0])
    if pinned is None:
        raise BadLock(f"not a package with one version: {said[0][:80]}")
    hashes = []
    for word in said[1:]:
        one = _HASH.fullmatch(word)
        if one is None:
            raise BadLock(f"{pinned['name']}: not a SHA-256 hash: {word[:80]}")
        hashes.append(one["hash"])
    if not hashes:
        raise BadLock(f"{pinned['name']} has no hash")
    wanted = [word.removeprefix("via").strip() for word in comments]
    return Locked(
        normal(pinned["name"]),
        pinned["version"],
        pinned["marker"],
        tuple(hashes),
        frozenset(word if word == OURSELVES else normal(word) for word in wanted if word),
        " \\\n    ".join([said[0], *said[1:]]) + "\n",
    )


def needed(locked: Collection[Locked], roots: Iterable[str]) -> set[str]:
    """The names of these packages and of all that they need."""
    found: set[str] = set()
    new = {normal(name) for name in roots}
    if missing := new - {one.name for one in locked}:
        raise BadLock(f"the lock lacks {', '.join(sorted(missing))}; run `make lock`")
    while new:
        found |= new
        new = {one.name for one in locked if one.wanted_by & new} - found
    return found


def asked_for(project: Path = PROJECT, *, extras: Sequence[str] = (), build: bool = False) -> list[str]:
    """The names that pyproject.toml asks for."""
    values = tomllib.loads(project.read_text("utf-8"))
    if build:
        return [*_names(values["build-system"]["requires"]), _BUILDS_SOURCES]
    known = values["project"]["optional-dependencies"]
    if unknown := sorted(set(extras) - set(known)):
        raise BadLock(f"there is no extra {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return _names(values["project"]["dependencies"]) + [name for extra in extras for name in _names(known[extra])]


def _names(requirements: Iterable[str]) -> list[str]:
    return [match[1] for match in map(_NAME.match, requirements) if match is not None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.supply.lock", description="Print the part of requirements.lock that is needed.")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help="an extra of pyproject.toml too")
    parser.add_argument("--build", action="store_true", help="what builds, instead of what runs")
    arguments = parser.parse_args(argv)
    try:
        locked = read(LOCK.read_text("utf-8"))
        wanted = needed(locked, asked_for(extras=arguments.extra, build=arguments.build))
    except BadLock as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.stdout.writelines(one.text for one in locked if one.name in wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
