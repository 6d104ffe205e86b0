"""A home of a newer version is refused by every command that would read in it, and left as it was."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entity_client.cli import main as entity
from spark.cli import main as tdn_spark
from tdn.cli import main as tdn
from tdn.cli import output
from tdn.home_form import FILE, HOME_VERSION

PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "tdn": tdn.build_parser,
    "entity": entity.build_parser,
    "tdn-spark": tdn_spark.build_parser,
}
#: What does not look into the home that is named: it makes one of its own, or none is to be there.
ELSEWHERE = {("tdn", "demo"), ("tdn", "restore")}
#: Says it as a finding, on stdout.
FINDS = {("tdn", "doctor")}
#: Of what excludes each other, one is required; argparse says so in another place.
CHOSEN = {("tdn-spark", "search"): ["--operator"], ("tdn-spark", "query"): ["--operator", "--string", "x"]}
#: What required words must be for a command to be understood.
WORDS = {"uuid": str(uuid.UUID(int=0, version=4)), "collection": str(uuid.UUID(int=1, version=4)), "lifetime": "1h"}


def leaves(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[argparse.Action]]]:
    """Every command, and what it cannot go without."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield path, [action for action in parser._actions if action.required]
    for action in below:
        for name, one in action.choices.items():
            yield from leaves(one, (*path, name))


COMMANDS = [leaf for name, build in PARSERS.items() for leaf in leaves(build(), (name,)) if leaf[0] not in ELSEWHERE]


def words_for(action: argparse.Action, file: Path) -> list[str]:
    named = action.option_strings[-1:]
    if action.choices:
        return [*named, str(next(iter(action.choices)))]
    if action.type in (None, Path) and action.dest not in WORDS:
        is_name = action.dest in ("name", "id", "to", "entity", "grant") and action.type is None
        return [*named, "bob" if is_name and action.metavar != "UUID" else str(file)]
    return [*named, WORDS.get(action.dest, WORDS["uuid"])]


@pytest.mark.parametrize(("path", "required"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_a_newer_home_is_refused(
    path: tuple[str, ...], required: list[argparse.Action], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "home", tmp_path / "file"
    home.mkdir()
    (home / FILE).write_text(json.dumps({"version": HOME_VERSION + 1}))
    file.write_text("{}")
    words = ["--home", str(home), "--json", *(("--as", "alice") if path[0] == "entity" else ()), *path[1:], *CHOSEN.get(path, ())]
    code = output.run(PARSERS[path[0]](), [*words, *(word for action in required for word in words_for(action, file))])
    said = capsys.readouterr()
    assert code == 2, said.err
    assert f"of version {HOME_VERSION + 1}" in (said.out if path in FINDS else said.err)
    assert [one.name for one in home.iterdir()] == [FILE], "and nothing was made in it"
