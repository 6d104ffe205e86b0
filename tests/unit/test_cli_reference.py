"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_cli.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_is_up_to_date(generator: ModuleType) -> None:
    written = generator.CLI_REFERENCE.read_text("utf-8")
    assert written == generator.generate(), "run `.venv/bin/python docs/generate_cli.py`"


def test_tables_are_up_to_date(generator: ModuleType) -> None:
    written = generator.SPARK.read_text("utf-8")
    assert "| `institution` |" in written
    assert written == generator.generate_spark(), "run `.venv/bin/python docs/generate_cli.py`"


@pytest.mark.parametrize("command", ["entity hierarchy watch", "entity collection create", "entity countersign", "tdn ca issue"])
def test_commands_of_commands_are_in_it(generator: ModuleType, command: str) -> None:
    assert f"\n### `{command}`\n\n```\nusage: {command} " in generator.generate()


def test_reference_is_the_same_on_every_terminal(generator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generator.generate()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TDN_HOME", "/elsewhere")
    monkeypatch.setenv("TDN_ENTITY", "somebody")
    assert generator.generate() == expected
