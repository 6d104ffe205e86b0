"""`[observe]` in node.toml and guard.toml: what it means, and what is said of every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tdn.errors import UsageError
from tdn.local import guard_file, node_file
from tdn.local.home import Home
from tdn.local.processes import free_port, is_free
from tdn.observe.settings import Address, ObserveSettings
from tdn.protocol.names import Role
from tdn.settings_file import split_address

Read = Callable[[Path], ObserveSettings]
READERS = [
    (node_file.FILE, node_file.read_observe),
    (guard_file.GUARD.name, lambda folder: guard_file.read(folder).observe),
]


@pytest.mark.parametrize(("file", "read"), READERS)
def test_settings(tmp_path: Path, file: str, read: Read) -> None:
    assert read(tmp_path) == ObserveSettings()
    (tmp_path / file).write_text(
        "[observe]\nlisten = '[::1]:9464'\nlog_format = 'json'\ntraces = 'http://127.0.0.1:4318'\n", "utf-8"
    )
    assert read(tmp_path) == ObserveSettings(Address("::1", 9464), False, "json", "http://127.0.0.1:4318")
    (tmp_path / file).write_text("[observe]\nlisten = 'off'\n", "utf-8")
    assert read(tmp_path) == ObserveSettings(off=True)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("observe = 1", "write [observe] on a line of its own"),
        ("[observed]\n", "[observed] is unknown (did you mean [observe]?)"),
        ("[observe]\nport = 1", "observe: 'port' is unknown; there are listen, log_format, traces"),
        ("[observe]\nlisten = 9464", 'observe.listen: write "HOST:PORT" or "off"'),
        ("[observe]\nlisten = '9464'", 'observe.listen: write "HOST:PORT" or "off"'),
        ("[observe]\nlisten = 'localhost:99999'", 'observe.listen: write "HOST:PORT" or "off"'),
        ("[observe]\nlog_format = 'xml'", 'observe.log_format: write "text" or "json"'),
        ("[observe]\ntraces = '127.0.0.1:4318'", 'observe.traces: write "http://HOST:PORT" or "https://HOST:PORT"'),
        ("[observe", "Expected ']'"),
    ],
)
@pytest.mark.parametrize(("file", "read"), READERS)
def test_mistakes(tmp_path: Path, file: str, read: Read, text: str, fragment: str) -> None:
    (tmp_path / file).write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path / file}: ")
    assert fragment in caught.value.message


def test_addresses() -> None:
    places = ("127.0.0.1:1", "[::1]:1", "localhost:1", "0.0.0.0:1", "host:1")
    assert [Address(*split_address(text)).is_loopback for text in places] == [True, True, True, False, False]
    assert [str(Address(*split_address(text))) for text in places] == list(places)


def test_ports_are_remembered_while_they_are_free(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.metrics_port(Role.NODE, "n1") is None
    home.choose_metrics_port(Role.NODE, "n1")
    home.choose_metrics_port(Role.GUARD, "n1")
    first, guard = home.metrics_port(Role.NODE, "n1"), home.metrics_port(Role.GUARD, "n1")
    assert first != guard
    home.choose_metrics_port(Role.NODE, "n1")
    assert home.metrics_port(Role.NODE, "n1") == first
    assert is_free(free_port())
    (tmp_path / "metrics.json").write_text("nonsense", "utf-8")
    assert home.metrics_port(Role.NODE, "n1") is None
    home.choose_metrics_port(Role.NODE, "n1")
    assert home.metrics_port(Role.NODE, "n1") is not None
