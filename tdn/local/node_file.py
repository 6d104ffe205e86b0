"""`node.toml`: what the operator of one node sets, in the folder with its credentials."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tdn.errors import UsageError
from tdn.node.policy import Policy, read_policy
from tdn.node.service import NodeLimits

FILE = "node.toml"

_TEMPLATE = """\
# Settings of this node. Read when it starts; a change of [policy] makes it build its indexes anew.

[policy]
# Serve one institution, and store its topics alone: one line makes a realm node.
# realm = "physics"
# Or in detail. Whom it answers, and whose topics it stores: entity ids, "institution:X", "*" for everyone with a certificate.
# answers = ["*"]
# stores = ["*"]
# Kinds of descriptor that it stores.
# kinds = ["path", "text", "properties", "xml", "sealed"]

[limits]
# How long one discovery may run, and how much memory it may take, before it is stopped.
# query_seconds = 5.0
# query_memory_mb = 512
# Discoveries of one entity: steadily, and at once after a pause.
# queries_per_second = 100.0
# queries_burst = 2000
"""


def write_template(folder: Path) -> None:
    """The file with every setting in a comment, for a node that has none."""
    path = folder / FILE
    if not path.exists():
        path.write_text(_TEMPLATE, "utf-8")


def read(folder: Path) -> tuple[Policy, NodeLimits]:
    """Policy and limits as the file says, or the defaults."""
    path = folder / FILE
    try:
        values = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
        if unknown := sorted(values.keys() - {"policy", "limits"}):
            raise UsageError(f"[{unknown[0]}] is unknown; there are [policy] and [limits]")
        return read_policy(_table(values, "policy")), _limits(_table(values, "limits"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}") from error


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{name} is a table: write [{name}] on a line of its own")
    return table


def _limits(values: Mapping[str, Any]) -> NodeLimits:
    known = {field.name for field in fields(NodeLimits)}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"limits: {name!r} is unknown; there are {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
            raise UsageError(f"limits.{name}: write a number above 0")
        if name in ("query_memory_mb", "queries_burst") and not isinstance(value, int):
            raise UsageError(f"limits.{name}: write a whole number")
    return NodeLimits(**values)
