"""`tdn doctor`: one line per finding, what to do below it, and an exit code for scripts."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from tdn.cli.output import emit, note, printable
from tdn.doctor.findings import Finding, State, exit_code
from tdn.local.home import Home

_COLOURS = {State.OK: "32", State.WARNING: "33", State.PROBLEM: "1;31"}
#: As wide as the longest name of a state, and of a check.
_STATE_WIDTH = len(State.PROBLEM)
_CHECK_WIDTH = len("private files")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="look at home, certificates, clock, disk, broker, guard, log and stores, and say what to do"
    )
    parser.add_argument("--thorough", action="store_true", help="look through stores to their end, however long it takes")
    parser.set_defaults(perform=perform)
    return parser


def perform(arguments: argparse.Namespace) -> int:
    show = (lambda finding: emit(finding.as_object())) if arguments.json else _show
    # Loaded here: it looks at everything, with a web client among its tools.
    from tdn.doctor.examination import examine

    findings = examine(Home(arguments.home), show, timeout_seconds=arguments.timeout, thorough=arguments.thorough)
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    note(
        f"{_counted(counts[State.PROBLEM], 'problem')}, {_counted(counts[State.WARNING], 'warning')}"
        if counts[State.PROBLEM] or counts[State.WARNING]
        else "nothing is wrong"
    )
    return exit_code(findings)


def _show(finding: Finding) -> None:
    state = str(finding.state).ljust(_STATE_WIDTH)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        state = f"\033[{_COLOURS[finding.state]}m{state}\033[0m"
    print(f"{state}  {finding.check.ljust(_CHECK_WIDTH)}  {printable(finding.what)}", flush=True)
    if finding.do:
        print(f"{'':{_STATE_WIDTH + _CHECK_WIDTH + 4}}→ {printable(finding.do)}", flush=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
