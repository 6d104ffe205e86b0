"""What our commands print is safe to look at, whoever wrote the text."""

from __future__ import annotations

import json

import pytest

from entity_client.cli.main import build_parser
from tdn.cli import output
from tdn.errors import UsageError

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


@pytest.mark.parametrize("grant", ["-fPq3T8sXo1c2vYb0LkWzA", "-hPq3T8sXo1c2vYb0LkWzA", "--q3T8sXo1c2vYb0LkWzA9", "-vAs8sXo1c2vYb0LkWzA9_"])
def test_a_grant_whose_id_begins_with_a_dash(grant: str) -> None:
    """One in 64. Its owner could not take it back with the command that its listing suggests."""
    parser = build_parser()
    assert parser.parse_args(["--as", "x", "grant", "revoke", grant]).grant == grant
    assert parser.parse_args(["--as", "x", "grant", "renew", grant, "--lifetime", "1h"]).grant == grant
    uuid = "201a07f1-2421-4df5-9b83-50dc631487ef"
    assert parser.parse_args(["--as", "x", "grant", "publish", uuid, "bob", "--of", grant]).of == grant


def test_long_options_are_options() -> None:
    arguments = build_parser().parse_args(["--as", "x", "collection", "create", "--text", "t", "--allow-child-collections"])
    assert arguments.allow_child_collections is True


def test_a_long_option_that_there_is_not_is_no_argument() -> None:
    """It was published as a message."""
    with pytest.raises(UsageError, match="unrecognized arguments: --no-such-option-as-this"):
        build_parser().parse_args(["--as", "x", "publish", "201a07f1-2421-4df5-9b83-50dc631487ef", "--no-such-option-as-this"])
    with pytest.raises(UsageError, match="--string: expected one argument"):
        build_parser().parse_args(["--as", "x", "discover", "--string", "--no-such-option-as-this"])
