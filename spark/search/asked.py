"""A file of queries: one JSON object a line. What is wrong with one is told with its id, and stops none of the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tdn.confined.frames import WorkFailed
from tdn.errors import QueryError, TdnError, UsageError
from tdn.protocol.times import parse_duration, parse_time
from tdn.queries.compile import LANGUAGES, compile_query
from tdn.queries.times import ANY_TIME, Times

_TIMES = ("created_after", "created_before", "expires_after", "expires_before")
_DURATIONS = ("valid_at_least", "valid_at_most")
#: Longest id. It stands in every row of the results.
_MAX_ID = 200
#: Characters of an error that nobody expected.
_MOST_SAID = 200
#: Most queries of one job: each task holds all of them, compiled.
MOST_QUERIES = 100_000


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a job. Without a text (and a language) it asks for times alone."""

    number: int
    id: str
    language: str
    text: str | None
    times: Times = ANY_TIME


@dataclass(frozen=True, slots=True)
class Faulty:
    """One that cannot run, and why. Without an id of its own it is called by its line."""

    id: str
    error: str


def unexpected(error: BaseException) -> str:
    """Why a query could not run that failed in a way that nobody has thought of, in a sentence. A bug of ours, which must cost the other queries nothing."""
    # Of a traceback that another process has sent, the last line says what it was.
    said = error.traceback.rstrip().rpartition("\n")[2] if isinstance(error, WorkFailed) else f"{type(error).__name__}: {error}"
    return f"the query could not be evaluated, which is a fault of this build ({' '.join(said.split())[:_MOST_SAID]}); write it in another way"


def read(lines: Iterable[str]) -> tuple[list[Asked], list[Faulty]]:
    """The queries of a file that compile, and those that do not."""
    asked: list[Asked] = []
    faulty: list[Faulty] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(asked) + len(faulty) == MOST_QUERIES:
            raise UsageError(f"there are more than {MOST_QUERIES} queries; divide the file")
        name = f"line {number}"
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise UsageError("the line is not a JSON object")
            name = _id(value, name, seen)
            asked.append(_read(value, len(asked), name))
        except ValueError as error:
            faulty.append(Faulty(name, f"the line is not JSON: {error}"))
        except RecursionError:
            faulty.append(Faulty(name, "the line is nested too deeply; a query is one flat object"))
        except TdnError as error:
            faulty.append(Faulty(name, error.message))
    if not asked and not faulty:
        raise UsageError("there is no query in the file; write one JSON object a line")
    return asked, faulty


def read_file(path: Path) -> tuple[list[Asked], list[Faulty]]:
    """The same of a file."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8") from error
    # Not `splitlines`: a text in JSON may hold U+2028 or U+0085 as they are.
    return read(text.split("\n"))


def _id(value: dict[str, Any], line: str, seen: set[str]) -> str:
    name = value.get("id")
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_ID or not name.isprintable():
        raise UsageError(f"an id is a text of up to {_MAX_ID} characters that print")
    if name in seen:
        # Under the line's name: the query that had the id first keeps it.
        raise UsageError(f"the id {name!r} stands before already")
    seen.add(name)
    return name


def _read(value: dict[str, Any], number: int, name: str) -> Asked:
    if unknown := sorted(value.keys() - {"id", "language", "query", *_TIMES, *_DURATIONS}):
        raise UsageError(f"{unknown[0]!r} is not known; there are id, language, query, {', '.join((*_TIMES, *_DURATIONS))}")
    language, text = value.get("language"), value.get("query")
    if language is None and text is None:
        asked_times = times(value)
        if asked_times == ANY_TIME:
            raise UsageError("there is nothing to look for; write a language and a query, a time such as created_after, or both")
        return Asked(number, name, "", None, asked_times)
    if language not in LANGUAGES:
        raise UsageError(f"{str(language)[:20]!r} is not a query language; there are {', '.join(LANGUAGES)}")
    if not isinstance(text, str):
        raise UsageError("the query is not a text")
    try:
        compile_query.__wrapped__(language, text)
    except QueryError as error:
        raise UsageError(error.message) from error
    except (TdnError, OSError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(unexpected(error)) from error
    return Asked(number, name, language, text, times(value))


def times(value: dict[str, Any]) -> Times:
    """Time filters as a line, or a command, names them."""
    given: dict[str, datetime | int] = {}
    for name in (*_TIMES, *_DURATIONS):
        text = value.get(name)
        if text is None:
            continue
        if not isinstance(text, str):
            raise UsageError(f"{name} is not a text")
        given[name] = parse_time(text) if name in _TIMES else int(parse_duration(text).total_seconds())
    return Times(**given) if given else ANY_TIME  # type: ignore[arg-type]
