"""`tdn audit` over homes made by hand: several guards merged, filters, limits, and text of strangers. Nothing runs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tdn.cli import output
from tdn.cli.main import build_parser
from tdn.guard.audit import AUDIT_FILE, Audit, Entry
from tests.live import run

TOPIC = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
GRANT = "0a6f2c4e-5a57-4f3e-9c86-2a1b7c9d0e11"
NOW = datetime.now(UTC).replace(microsecond=0)


def login_of(entity: str) -> str:
    return f"tdn:entity:{entity}:{'ab' * 32}"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


DENIED = Entry(ago(7200), login_of("mallory"), "mallory", "publish", f"exchange {TOPIC}", TOPIC, False, "no grant covers it")
ALLOWED = Entry(ago(7000), login_of("bob"), "bob", "subscribe", "queue", TOPIC, True, "a grant of alice", GRANT)


def write(home: Path, guard: str, *entries: Entry) -> None:
    log = Audit(home / "guards" / guard / AUDIT_FILE)
    for entry in entries:
        log.note(entry)
    log.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "a home"
    (home / "network").mkdir(parents=True)
    (home / "network" / "genesis.jws").write_text("enough for a home that is only read")
    write(
        home,
        "g1",
        DENIED,
        replace(ALLOWED, at=ago(59.5)),
        replace(DENIED, at=ago(5), login="guest", entity=None, topic=None, action="login"),
    )
    write(home, "g2", ALLOWED, replace(DENIED, at=ago(60), resource="elsewhere", because="not a topic"))
    return home


class Asked:
    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._home, self._capsys = home, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = output.run(build_parser(), ["--home", str(self._home), "audit", *words])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def lines(self, *words: str) -> list[dict[str, Any]]:
        code, out, err = self(*words, "--json")
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def ask(home: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(home, capsys)


def test_all_guards_in_time_order(ask: Asked) -> None:
    """Also where one time has a fraction of a second and another has not."""
    lines = ask.lines()
    assert [(line["guard"], line["entity"]) for line in lines] == [
        ("g1", "mallory"),
        ("g2", "bob"),
        ("g2", "mallory"),
        ("g1", "bob"),
        ("g1", None),
    ]
    assert list(lines[1]) == [
        "at",
        "guard",
        "entity",
        "login",
        "action",
        "resource",
        "topic",
        "allowed",
        "because",
        "grant",
        "count",
    ]
    assert lines[1] == {
        "at": f"{ago(7000):%Y-%m-%dT%H:%M:%SZ}",
        "guard": "g2",
        "entity": "bob",
        "login": login_of("bob"),
        "action": "subscribe",
        "resource": "queue",
        "topic": TOPIC,
        "allowed": True,
        "because": "a grant of alice",
        "grant": GRANT,
        "count": 1,
    }


def test_filters(ask: Asked) -> None:
    def which(*words: str) -> list[tuple[str, str | None]]:
        return [(line["guard"], line["entity"]) for line in ask.lines(*words)]

    # NOW is when the tests were collected, perhaps long before this one.
    since = f"{15 * 60 + int((datetime.now(UTC) - NOW).total_seconds())}s"
    assert which("--entity", "bob") == [("g2", "bob"), ("g1", "bob")]
    assert which("--denied") == [("g1", "mallory"), ("g2", "mallory"), ("g1", None)]
    assert which("--topic", TOPIC, "--denied") == [("g1", "mallory"), ("g2", "mallory")]
    assert which("--since", since) == [("g2", "mallory"), ("g1", "bob"), ("g1", None)]
    assert which("--since", f"{ago(60):%Y-%m-%dT%H:%M:%SZ}") == [("g2", "mallory"), ("g1", "bob"), ("g1", None)]
    assert which("--since", since, "--entity", "mallory", "--denied") == [("g2", "mallory")]
    assert which("--limit", "3") == [("g2", "mallory"), ("g1", "bob"), ("g1", None)], "the latest of all guards"
    assert which("--limit", "0") == which("--limit", "5") == which()


def test_a_limit_says_that_there_are_more(ask: Asked) -> None:
    assert "the latest 4" in ask("--limit", "4")[2]
    for words in (("--limit", "5"), ("--limit", "0"), ()):
        assert ask(*words)[2] == ""


def test_nothing_found_is_no_error(ask: Asked) -> None:
    for words in (("--entity", "nobody"), ("--since", "1s"), ("--entity", "nobody", "--json")):
        assert ask(*words) == (0, "", "")


def test_a_guard_that_has_not_written_yet(home: Path, ask: Asked) -> None:
    (home / "guards" / "g3").mkdir()
    (home / "guards" / "g4").mkdir()
    (home / "guards" / "g4" / AUDIT_FILE).touch()
    assert len(ask.lines()) == 5


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--since", "0s"),
        ("--since", "9999999999d"),
        ("--topic", "T"),
        ("--entity", "*"),
        ("--limit", "-1"),
        ("--limit", "10001"),
        ("--limit", "9" * 5000),
    ],
)
def test_bad_arguments(ask: Asked, words: tuple[str, ...]) -> None:
    code, out, err = ask(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = Asked(tmp_path / "nowhere", capsys)("--json")
    assert (code, out, json.loads(err)["error"]) == (2, "", "usage")
    assert not (tmp_path / "nowhere").exists()


def test_a_table_for_people_is_safe_to_look_at(home: Path, ask: Asked) -> None:
    hostile = "a\x1b[2J\u202e" + "x" * 5000
    write(home, "g2", Entry(NOW, hostile, None, "publish", hostile, hostile, False, hostile))
    code, out, _ = ask()
    heading, first, *_, last = out.splitlines()
    assert code == 0
    assert heading.split() == ["AT", "GUARD", "WHO", "ACTION", "RESOURCE", "VERDICT", "TIMES", "BECAUSE", "GRANT"]
    assert "entity:mallory" in first
    assert "denied" in first
    assert "no grant covers it" in first
    assert out.count(GRANT) == 2
    assert all(line.isprintable() and len(line) < 1000 for line in out.splitlines())
    assert "a·[2J·x" in last


def test_the_installed_command(home: Path) -> None:
    done = run("tdn", "--home", home, "--json", "audit", "--denied", "--entity", "mallory")
    assert (done.code, done.err) == (0, "")
    assert [line["guard"] for line in done.lines] == ["g1", "g2"]
