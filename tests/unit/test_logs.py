"""Lines of the log: each names its request, JSON is one object a line, and a busy hour pushes out nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tdn.cli.logs import Bounded, JsonLines, PlainLines
from tdn.observe import trail

HOSTILE = "a\x1b[2Jb\nc\u202ed"


def record(message: str, name: str = "tdn.node", **extra: Any) -> logging.LogRecord:
    return logging.getLogger(name).makeRecord(name, logging.INFO, "", 0, message, (), None, extra=extra)


def test_json_is_one_object_a_line() -> None:
    line = JsonLines().format(record(HOSTILE, request="r1", seq=7, outcome="done", milliseconds=1.5, principal="entity:a", kind="renew"))
    assert line.isprintable()
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {
        **{"level": "info", "logger": "tdn.node", "message": HOSTILE, "request": "r1", "principal": "entity:a"},
        **{"kind": "renew", "seq": 7, "outcome": "done", "milliseconds": 1.5},
    }


def test_a_traceback_stays_in_its_object() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = logging.getLogger("x").makeRecord("x", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__))
    line = JsonLines().format(made)
    assert line.isprintable()
    assert "ValueError: broken" in json.loads(line)["traceback"]


def test_plain_lines_name_the_request_too() -> None:
    line = PlainLines().format(record(HOSTILE, request="r1", seq=7))
    assert line.isprintable()
    assert line.endswith("request=r1 seq=7")


@pytest.mark.parametrize("form", [JsonLines(), PlainLines()])
async def test_whatever_is_said_while_a_message_is_worked_on_names_it(form: logging.Formatter) -> None:
    lines = []

    async def work() -> None:
        trail.identified("renew", "r9", "entity:a")
        await asyncio.sleep(0)
        lines.append(form.format(record("something odd")))

    await trail.follow("change", work, lambda ended: None)
    assert "r9" in lines[0]
    assert "r9" not in form.format(record("later"))


def test_lines_of_requests_push_out_no_others() -> None:
    bounded = Bounded()
    flood = [bounded.filter(record("done", "tdn.requests")) for _ in range(2000)]
    assert 500 <= sum(flood) < 600
    other = record("the log and the store disagree")
    assert bounded.filter(other)
    assert "left out" not in other.getMessage()
