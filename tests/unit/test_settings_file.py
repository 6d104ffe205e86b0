"""Settings files: the table is what the template, the checks and the documentation come from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tdn.errors import UsageError
from tdn.home_form import HOME_VERSION
from tdn.local import guard_file
from tdn.local.guard_file import GUARD
from tdn.local.home import TDN, Home
from tdn.local.node_file import NODE
from tdn.settings_file import Address, Flag, Key, Section, SettingsFile, Whole, split_address

FILES = (TDN, NODE, GUARD)
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def uncommented(template: str) -> str:
    """A template with every setting in force."""
    return "\n".join(line.removeprefix("# ") if re.match(r"# [a-z_]+ = ", line) else line for line in template.splitlines())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_template_holds_every_key_with_its_default(file: SettingsFile) -> None:
    as_made = file.check(tomllib.loads(file.template()))
    assert as_made == file.check({}), "what a template says is what no file says"
    shown = tomllib.loads(uncommented(file.template()))
    for section in file.sections:
        assert list(shown[section.name]) == [key.name for key in section.keys]
        for key in section.keys:
            expected = key.default if key.default is not None else key.example
            assert shown[section.name][key.name] == (list(expected) if isinstance(expected, tuple) else expected)
    file.check(shown)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_key_is_documented(file: SettingsFile) -> None:
    """docs/operations.md has a table for each file, with every key below its section and nothing else."""
    text = OPERATIONS.read_text("utf-8")
    heading = f"### `{file.name}`"
    assert heading in text
    part = text.split(heading, 1)[1].split("\n#", 1)[0]
    rows = [line.split("|")[1:4] for line in part.splitlines() if line.startswith("| `")]
    told = [(cells[0].strip(" `"), cells[1].strip(" `")) for cells in rows]
    assert told == [(section.name, key.name) for section in file.sections for key in section.keys]
    for (section, name), cells in zip(told, rows, strict=True):
        default = next(key.default for one in file.sections if one.name == section for key in one.keys if key.name == name)
        if default is None:
            assert cells[2].strip() == "none"
        else:
            shown = tomllib.loads(f"x = {cells[2].strip().strip('`')}")["x"]
            assert shown == (list(default) if isinstance(default, tuple) else default), (section, name)


def test_a_section_of_ones_own(tmp_path: Path) -> None:
    """What a new section costs: its lines in the table."""
    file = SettingsFile(
        "x.toml", "X.", (Section("observe", "", (Key("on", Flag(), "Whether.", False), Key("n", Whole(1, 9), "How many."))),)
    )
    assert file.read(tmp_path) == {"observe": {"on": False, "n": None}}
    (tmp_path / "x.toml").write_text("[observe]\non = true\nn = 9\n")
    assert file.read(tmp_path) == {"observe": {"on": True, "n": 9}}


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[brocker]\n", "[brocker] is unknown (did you mean [broker]?); there are [broker], [pki]"),
        ("[zzz]\n", "[zzz] is unknown; there are [broker], [pki]"),
        ("mode = 'own'\n", "'mode' stands in no section; write it below [broker] or [pki]"),
        ("broker = 3\n", "broker is a section: write [broker] on a line of its own"),
        ("[broker]\nmod = 'own'\n", "broker: 'mod' is unknown (did you mean mode?); there are mode, hosts,"),
        ("[broker]\nmode = 'rented'\n", 'broker.mode: write "private" or "own"'),
        ("[broker]\nmode = 1\n", 'broker.mode: write "private" or "own"'),
        ("[broker]\nhosts = 'a:1'\n", 'broker.hosts: write a list with at least one element, each "HOST:PORT"'),
        ("[broker]\nhosts = []\n", "broker.hosts: write a list with at least one"),
        ("[broker]\nhosts = ['a:1', 'b']\n", "broker.hosts: write a list"),
        ("[broker]\nmanagement_url = 'http://a:1'\n", 'broker.management_url: write "https://HOST:PORT"'),
        ("[broker]\nmanagement_url = 'https://u:p@a:1'\n", "broker.management_url: write"),
        ("[broker]\nmanagement_url = 'https://a:99999'\n", "broker.management_url: write"),
        ("[broker]\nguard_listen = '7443'\n", 'broker.guard_listen: write "HOST:PORT"'),
        ("[broker]\nguard_listen = '::1:7443'\n", "broker.guard_listen: write"),
        ("[broker]\nvhost = ''\n", "broker.vhost: write text in quotes"),
        ("[broker]\nmode = 'own'\n", "broker.hosts is missing"),
        ("[broker]\nmode = 'own'\nhosts = ['a:1']\n", "broker.management_url is missing"),
        ("[pki]\nroots = ['x']\n", "pki.roots: write text in quotes"),
        ("[broker\n", "is not TOML"),
        ("x = " + "[" * 100_000, "is not TOML"),
        ("# " + "x" * 1_000_000, "over a megabyte"),
    ],
)
def test_mistakes_in_tdn_toml(tmp_path: Path, text: str, fragment: str) -> None:
    (tmp_path / "tdn.toml").write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        Home(tmp_path).settings()
    assert caught.value.message.startswith(f"{tmp_path / 'tdn.toml'}: ")
    assert fragment in caught.value.message


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[broker]\nlisten = 7443\n", 'broker.listen: write "HOST:PORT"'),
        ("[audit]\nrows = 10\n", "audit.rows: write a whole number from 1,000 to 100,000,000"),
        ("[audit]\nrows = true\n", "audit.rows: write a whole number"),
        ("[audits]\n", "[audits] is unknown (did you mean [audit]?)"),
    ],
)
def test_mistakes_in_guard_toml(tmp_path: Path, text: str, fragment: str) -> None:
    (tmp_path / "guard.toml").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=re.escape(fragment)):
        guard_file.read(tmp_path)


def test_guard_toml(tmp_path: Path) -> None:
    assert guard_file.read(tmp_path) == guard_file.GuardFile(None, None, 1_000_000)
    (tmp_path / "guard.toml").write_text(
        '[broker]\nlisten = "[::1]:7444"\nmanagement_url = "https://b:1"\n[audit]\nrows = 5000\n'
    )
    assert guard_file.read(tmp_path) == guard_file.GuardFile(("::1", 7444), "https://b:1", 5000)


@pytest.mark.parametrize(
    ("text", "parts"), [("a:1", ("a", 1)), ("[::1]:65535", ("::1", 65535)), ("127.0.0.1:5671", ("127.0.0.1", 5671))]
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:1x", "a:²", "::1", "a b:1", "[]:1", "a:000001"]
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        split_address(text)


def test_an_address_or_a_word() -> None:
    kind = Address(("off",))
    assert (kind.wanted, kind.fits("off"), kind.fits("a:1"), kind.fits("on"), kind.fits(1)) == (
        '"HOST:PORT" or "off"',
        True,
        True,
        False,
        False,
    )


# --- the home's version ---


def test_a_new_home_says_its_version(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert home.version() == 1, "none at all is of the first"
    home.prepare()
    assert home.version() == HOME_VERSION
    home.prepare()


@pytest.mark.parametrize("content", ["{}", "[]", "x", '{"version": "2"}', '{"version": true}', '{"version": -1}', "\x00"])
def test_a_version_that_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "home.json").write_text(content)
    with pytest.raises(UsageError, match=r"home\.json"):
        Home(tmp_path).settings()


@pytest.mark.parametrize("use", ["settings", "genesis", "prepare"])
def test_a_newer_home_is_refused(tmp_path: Path, use: str) -> None:
    (tmp_path / "home.json").write_text(f'{{"version": {HOME_VERSION + 1}}}')
    act: Any = getattr(Home(tmp_path), use)
    with pytest.raises(
        UsageError, match=f"of version {HOME_VERSION + 1}; this build knows {HOME_VERSION}. Install the newer build"
    ):
        act()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home.json"], "and nothing is written into it"
