"""What our commands print is safe to look at, whoever wrote the text."""

from __future__ import annotations

import json

import pytest

from tdn.cli import output

#: Clears a screen, sets a title, turns the reading direction round, begins a sequence with one C1 character.
HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\u202ed\x9b31me"


def test_text_for_people_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(HOSTILE)
    output.note(HOSTILE)
    output.record({"about": HOSTILE})
    output.table([(HOSTILE,)], ("ABOUT",))
    printed = capsys.readouterr()
    for line in (printed.out + printed.err).splitlines():
        assert line.isprintable(), line


def test_json_escapes_what_does_not_print(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"about": HOSTILE, "name": "Ålesund"})
    line = capsys.readouterr().out.rstrip("\n")
    assert line.isprintable()
    assert json.loads(line) == {"about": HOSTILE, "name": "Ålesund"}


def test_ordinary_unicode_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"name": "Ålesund"})
    assert "Ålesund" in capsys.readouterr().out
