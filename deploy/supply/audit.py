"""`make audit`: is what we install what we chose, and do we know anything bad of it?

Offline, always, and part of `make check`:
- every package of the lock has one version and SHA-256 hashes, and comes from no named index, address or path;
- requirements.in and pyproject.toml ask for the same run-time packages within the same bounds, and the lock is within them;
- what is installed here is what the lock says, and fits together (`pip check`);
- every licence was looked at, is allowed, and is what the package says of itself.

Not offline: whether a version has known vulnerabilities, or was withdrawn. That takes a service. `pip-audit` is asked when it is installed; it is not in
the lock, because it would bring fourteen packages along. A mirror without a vulnerability service makes it skip everything and end with 0, so
its answers are counted here, and "nothing was looked at" is said as loudly as "something was found".
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

from deploy.supply.lock import ASKED, LOCK, PROJECT, BadLock, Locked, normal, read
from deploy.supply.sbom import licences

#: A service that does not answer within this is not there.
_SERVICE_SECONDS = 300
#: What a package that has only a classifier says with it, as a part of the SPDX expression.
_CLASSIFIED = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def check_asked(locked: Collection[Locked], *, asked: str, project: dict[str, Any]) -> list[str]:
    """Whether requirements.in, pyproject.toml and the lock agree."""
    wanted = {normal(one.name): one for one in map(Requirement, _requirements(asked))}
    found = []
    named = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    for one in map(Requirement, named):
        name = normal(one.name)
        if name not in wanted:
            found.append(f"pyproject.toml asks for {one.name}, requirements.in does not")
        elif (wanted[name].specifier, wanted[name].extras) != (one.specifier, one.extras):
            found.append(f"pyproject.toml asks for `{one}`, requirements.in for `{wanted[name]}`")
    for name, one in wanted.items():
        versions = [package.version for package in locked if package.name == name]
        if not versions:
            found.append(f"requirements.in asks for {one.name}, which the lock lacks; run `make lock`")
        found += [
            f"the lock has {name} {version}, requirements.in asks for `{one}`; run `make lock`"
            for version in versions
            if not one.specifier.contains(version, prereleases=True)
        ]
    return found


def check_installed(locked: Iterable[Locked]) -> list[str]:
    """Whether this environment holds what the lock says for it."""
    found = []
    for one in locked:
        if one.marker is not None and not Marker(one.marker).evaluate():
            continue
        try:
            version = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{one.name} {one.version} is not installed; run `make venv`")
            continue
        if version != one.version:
            found.append(f"{one.name} {version} is installed, the lock says {one.version}; run `make venv`")
    return found


def check_licences(locked: Iterable[Locked], *, allowed: Collection[str], licensed: dict[str, str]) -> list[str]:
    """Whether each licence was looked at, is allowed, and is what the package says itself."""
    found = []
    for name in sorted({one.name for one in locked}):
        said = _said_licence(name)
        if name not in licensed:
            found.append(f"{name}: its licence was not looked at; add it to deploy/supply/licences.toml (it says: {said or 'nothing'})")
            continue
        expression = licensed[name]
        parts = set(re.split(r"\s+(?:AND|OR)\s+", expression.replace("(", "").replace(")", "")))
        if refused := sorted(parts - set(allowed)):
            found.append(f"{name}: {', '.join(refused)} is not among the licences that are allowed")
        if said and said not in expression:
            found.append(f"{name}: licences.toml says {expression}, its own metadata says {said}")
    return found


def _said_licence(name: str) -> str:
    """What an installed package says of its licence in a form that can be compared; empty when it says nothing, or is not here."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [text.rpartition("::")[2].strip() for text in metadata.get_all("Classifier", []) if text.startswith("License ::")]
    known = [_CLASSIFIED[text] for text in classifiers if text in _CLASSIFIED]
    return known[0] if len(known) == 1 else ""


def _requirements(text: str) -> list[str]:
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def check_fits() -> list[str]:
    """What `pip check` says: packages that lack something, or have it in a version that they refuse."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"], capture_output=True, text=True, check=False
    )
    return [] if done.returncode == 0 else [line for line in done.stdout.splitlines() if line.strip()] or [done.stderr.strip()[-500:]]


def ask_service(program: str, lock: Path = LOCK) -> tuple[list[str], str]:
    """Known vulnerabilities by way of pip-audit: what was found, and how much of the lock was looked at."""
    try:
        done = subprocess.run(  # noqa: S603  # the program that was found, no shell
            [program, "--requirement", str(lock), "--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SERVICE_SECONDS,
        )
        answers = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return [], "NOT CHECKED: known vulnerabilities. pip-audit reached no service."
    found = [
        f"{one['name']} {one['version']}: {flaw['id']} ({', '.join(flaw.get('fix_versions', [])) or 'no version without it'})"
        for one in answers
        for flaw in one.get("vulns", [])
    ]
    looked_at = sum("skip_reason" not in one for one in answers)
    if looked_at == 0:
        return found, f"NOT CHECKED: known vulnerabilities. The service knew none of {len(answers)} packages; a mirror, probably."
    return found, f"known vulnerabilities: {looked_at} of {len(answers)} packages looked at"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.supply.audit", description="Check what we install.")
    parser.add_argument("--offline", action="store_true", help="ask no service")
    arguments = parser.parse_args(argv)
    try:
        locked = read(LOCK.read_text("utf-8"))
    except BadLock as error:
        print(f"error: requirements.lock: {error}", file=sys.stderr)
        return 1
    allowed, licensed = licences()
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    found = check_asked(locked, asked=ASKED.read_text("utf-8"), project=project)
    found += check_installed(locked)
    found += check_fits()
    found += check_licences(locked, allowed=allowed, licensed=licensed)
    notice = "NOT CHECKED: known vulnerabilities and withdrawn versions (offline)"
    if not arguments.offline:
        program = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
        notice = "NOT CHECKED: known vulnerabilities and withdrawn versions; install pip-audit, and run this where it reaches its service"
        if program is not None:
            flaws, notice = ask_service(program)
            found += flaws
    for one in found:
        print(f"error: {one}", file=sys.stderr)
    if not found:
        print(f"{len(locked)} locked versions: hashes, bounds, installed versions and licences are in order", file=sys.stderr)
    print(notice, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
