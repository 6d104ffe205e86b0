"""How our commands speak: one JSON object per line, or a table for people; errors as the public interface says.

Shared by `tdn` and `entity`, so that the conventions hold for both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tdn import machine
from tdn.errors import TdnError, UsageError
from tdn.protocol.times import parse_duration

#: An id that begins with a dash, as one grant in 64 has it. What is words after two dashes is an option, and if there is none of that name, a mistake: taken for an
#: argument, it would be published, or searched for. (Of ids, one in 10¹¹ looks so.)
_DASHED_ID = re.compile(r"(?!--[a-z]+(-[a-z]+)*$)-[A-Za-z0-9_-]{21,63}")


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are UsageError, so that they too come out as the interface says."""

    _intermixing = False

    def error(self, message: str) -> Any:
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def _parse_optional(self, arg_string: str) -> Any:
        """What could be an option: not an id, which argparse would take for one that is unknown, or for `-h`."""
        if _DASHED_ID.fullmatch(arg_string) and not any(option.startswith(arg_string) for option in self._option_string_actions):
            return None
        return super()._parse_optional(arg_string)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options may stand before, between and after arguments. argparse alone takes an argument that may be left out for absent as soon
        as an option stands before it."""
        may_be_left_out = any(action.nargs == argparse.OPTIONAL for action in self._get_positional_actions())
        if not may_be_left_out or self._intermixing:
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixing = False


def add_globals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home",
        type=Path,
        default=Path(os.environ.get("TDN_HOME", ".tdn")),
        metavar="DIR",
        help="folder of the network (default: $TDN_HOME or ./.tdn)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more on stderr, with tracebacks")
    parser.add_argument(
        "--timeout", type=duration_seconds, default=10.0, metavar="D", help="how long to wait for the network (default: 10s)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json` is taken after the command too."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def duration_seconds(text: str) -> float:
    return parse_duration(text).total_seconds()


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse, do, and turn whatever happens into the promised exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json, verbose = "--json" in words, "-v" in words or "--verbose" in words
    try:
        arguments = parser.parse_args(words)
        perform: Callable[[argparse.Namespace], int | None] = arguments.perform
        return perform(arguments) or 0
    except TdnError as error:
        _complain(error.as_object(), as_json=as_json, verbose=verbose)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if (ours := machine.explain(error)) is not None:
            _complain(ours.as_object(), as_json=as_json, verbose=verbose)
            return ours.exit_code
        _complain({"error": "bug", "message": f"{type(error).__name__}: {error}", "detail": {}}, as_json=as_json, verbose=True)
        return 1


def _complain(error: dict[str, Any], *, as_json: bool, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    if as_json:
        print(_json_line(error), file=sys.stderr)
    else:
        note(f"error: {error['message']}")
        if isinstance(query := error["detail"].get("query"), str) and isinstance(at := error["detail"].get("position"), int):
            _point(query, at)
        if broker := error["detail"].get("broker"):
            note(f"  the broker says: {broker}")


def _point(query: str, at: int) -> None:
    """The line of a query that is wrong, with a mark below the place."""
    begin = query.rfind("\n", 0, at) + 1
    line = query[begin:].split("\n", 1)[0]
    column = at - begin
    # Of a long line, what stands around the place.
    start = max(0, column - 50)
    note(f"  {line[start : start + 100]}")
    note(f"  {' ' * (column - start)}^")


def printable(text: str) -> str:
    """Text from elsewhere, safe for a terminal: what does not print (escape sequences, direction marks) shows as a dot."""
    return text if text.isprintable() else "".join(character if character.isprintable() else "·" for character in text)


def say(text: str) -> None:
    """A line of results for a person."""
    print(printable(text), flush=True)


def note(text: str) -> None:
    """A line beside the results."""
    print("\n".join(printable(line) for line in text.split("\n")), file=sys.stderr, flush=True)


def emit(value: dict[str, Any]) -> None:
    """A result for a program. Characters that do not print are escaped: a person may look at it on a terminal."""
    print(_json_line(value), flush=True)


def _json_line(value: dict[str, Any]) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else json.dumps(value)


def table(rows: Iterable[Sequence[Any]], headings: Sequence[str]) -> None:
    for line in lines_of(rows, headings):
        print(line)


def lines_of(rows: Iterable[Sequence[Any]], headings: Sequence[str]) -> list[str]:
    """A readable table: columns as wide as what stands in them."""
    texts = [[("-" if cell is None else printable(str(cell))) for cell in row] for row in rows]
    widths = [max([len(heading), *(len(row[column]) for row in texts)]) for column, heading in enumerate(headings)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [list(headings), *texts]]
    return ["  ".join(row).rstrip() for row in padded]


def record(value: dict[str, Any]) -> None:
    """One object for a person: a line per field."""
    width = max(len(key) for key in value)
    for key, content in value.items():
        say(f"{key.ljust(width)}  {_plain(content)}")


def _plain(content: Any) -> str:
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, dict | list):
        return json.dumps(content, ensure_ascii=False)
    return str(content)
