"""The bill of materials: requirements.lock as CycloneDX 1.6, in sbom.cdx.json.

    python -m deploy.supply.sbom            # write it (`make sbom`)
    python -m deploy.supply.sbom --check    # exit 1 when the file is not what the lock says

Made from the lock, pyproject.toml and licences.toml alone, so that it is the same on every machine and at any time: no moment, no serial number,
nothing that happens to be installed. One line a component, so that a difference can be read. It lists Python packages; RabbitMQ, Erlang, Java and what is
in a base image are not in the lock, and not in here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from deploy.supply.lock import LOCK, PROJECT, ROOT, Locked, asked_for, needed, normal, read

SBOM = ROOT / "sbom.cdx.json"
LICENCES = Path(__file__).with_name("licences.toml")


def licences() -> tuple[frozenset[str], dict[str, str]]:
    """The licences that are allowed, and each package's, as licences.toml has them."""
    values = tomllib.loads(LICENCES.read_text("utf-8"))
    return frozenset(values["allowed"]), {normal(name): text for name, text in values["packages"].items()}


def build(lock: str) -> dict[str, Any]:
    """The bill of materials for a lock."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    locked = read(lock)
    extras = sorted(project["optional-dependencies"])
    always, sometimes = needed(locked, asked_for()), needed(locked, asked_for(extras=extras))
    _, licensed = licences()
    us = f"pkg:pypi/{project['name']}@{project['version']}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": us,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": us,
            },
            "properties": [
                {"name": "tdn:hashes", "value": "one for each file of a version; pip takes a file whose hash is among them"},
                {"name": "tdn:scope", "value": f"required: tdn; optional: its extras ({', '.join(extras)}); excluded: building, testing and checking"},
            ],
        },
        "components": [
            _component(one, "required" if one.name in always else "optional" if one.name in sometimes else "excluded", licensed)
            for one in locked
        ],
        "dependencies": [
            {"ref": us, "dependsOn": _refs(locked, {normal(name) for name in asked_for(extras=extras)})},
            *({"ref": _purl(one), "dependsOn": _refs(locked, _needs(locked, one.name))} for one in locked),
        ],
    }


def _component(one: Locked, scope: str, licensed: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(one),
        "name": one.name,
        "version": one.version,
        "scope": scope,
        "hashes": [{"alg": "SHA-256", "content": content} for content in one.hashes],
    }
    if one.name in licensed:
        found["licenses"] = [{"expression": licensed[one.name]}]
    found["purl"] = _purl(one)
    if one.marker:
        found["properties"] = [{"name": "tdn:marker", "value": one.marker}]
    return found


def _purl(one: Locked) -> str:
    return f"pkg:pypi/{one.name}@{one.version}"


def _needs(locked: Collection[Locked], name: str) -> set[str]:
    return {one.name for one in locked if name in one.wanted_by}


def _refs(locked: Collection[Locked], names: Collection[str]) -> list[str]:
    return [_purl(one) for one in locked if one.name in names]


def write(bill: dict[str, Any]) -> str:
    """As JSON, one line for each component and each of its dependencies."""
    lines = ["{"]
    for number, (key, value) in enumerate(bill.items()):
        comma = "," if number + 1 < len(bill) else ""
        if isinstance(value, list):
            rows = ",\n".join(f"  {_compact(row)}" for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]{comma}")
        else:
            lines.append(f" {json.dumps(key)}: {_compact(value)}{comma}")
    return "\n".join([*lines, "}"]) + "\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.supply.sbom", description="Write sbom.cdx.json from requirements.lock.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    arguments = parser.parse_args(argv)
    text = write(build(LOCK.read_text("utf-8")))
    if not arguments.check:
        SBOM.write_text(text, "utf-8")
        return 0
    if SBOM.exists() and SBOM.read_text("utf-8") == text:
        return 0
    print(f"error: {SBOM.name} is not what requirements.lock says; run `make sbom`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
