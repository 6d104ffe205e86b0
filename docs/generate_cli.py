"""Write docs/cli.md from what the commands themselves say with `--help`, and the tables of docs/spark.md from `spark/tables.py`.

    .venv/bin/python docs/generate_cli.py

`tests/unit/test_cli_reference.py` generates both again and compares.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

from entity_client.cli.main import build_parser as build_entity
from spark.cli.main import build_parser as build_spark
from spark.tables import TABLES
from tdn.cli.main import build_parser as build_tdn

CLI_REFERENCE = Path(__file__).with_name("cli.md")
SPARK = Path(__file__).with_name("spark.md")

#: argparse folds its text at the terminal's width; the reference has one width for everybody.
COLUMNS = "100"

_OPENING = """\
# Command line

Made from `--help` by `docs/generate_cli.py`; do not edit. Results go to stdout, all else to stderr. `--json` prints one object
per line and is taken before and after the command.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a bug of ours |
| 2 | usage: bad arguments, or a query that does not parse |
| 3 | broker or node unreachable |
| 4 | trust: a signature, certificate or identity is wrong |
| 5 | refused |
| 6 | absent |

An error is one line on stderr; with `--json` it is `{"error": "usage|unreachable|trust|refused|absent|bug", "message": …, "detail": {…}}`.
"""


def generate() -> str:
    """The whole reference. Deaf to the terminal's width and to the environment that defaults are read from."""
    kept = dict(os.environ)
    os.environ |= {"COLUMNS": COLUMNS, "NO_COLOR": "1"}
    for name in ("TDN_HOME", "TDN_ENTITY"):
        os.environ.pop(name, None)
    try:
        parts = [_OPENING]
        for build in (build_tdn, build_entity, build_spark):
            for prog, text in _helps(build()):
                heading = "##" if " " not in prog else "###"
                parts.append(f"{heading} `{prog}`\n\n```\n{text.rstrip()}\n```\n")
        return "\n".join(parts)
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """A command and those below it, each with its help, in the order in which they are listed."""
    yield parser.prog, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _helps(below)


_TABLES = re.compile(r"(<!-- tables: [^>]*-->\n).*?(<!-- end of tables -->)", re.DOTALL)


def generate_spark() -> str:
    """docs/spark.md with the tables as the code has them."""
    lines: list[str] = []
    for table in TABLES.values():
        lines += [f"**`{table.name}`**: {table.about}", "", "| column | type | |", "|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {about} |" for name, kind, about in table.columns]
        lines.append("")
    tables = "\n".join(lines)
    return _TABLES.sub(lambda found: f"{found[1]}\n{tables}\n{found[2]}", SPARK.read_text("utf-8"))


if __name__ == "__main__":
    CLI_REFERENCE.write_text(generate(), "utf-8")
    SPARK.write_text(generate_spark(), "utf-8")
