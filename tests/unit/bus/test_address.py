"""`connection.toml`: what an operator, or whoever carries a folder of credentials, may have got wrong in it is named, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdn.bus.address import ConnectionSettings, NodeAddress, load_connection, write_connection
from tdn.bus.connection import Broker
from tdn.errors import UsageError

BROKER = '[[broker]]\nhost = "127.0.0.1"\nport = 5671\n'
TOP = 'network = "abc"\n'

MISTAKES = {
    "no network": (BROKER, "'network' is missing; write text in quotes"),
    "no broker": (TOP, "'broker' is missing; write one or more of it in double brackets"),
    "one broker, as a section": (TOP + BROKER.replace("[[broker]]", "[broker]"), "broker: write one or more"),
    "brokers that are numbers": (TOP + "broker = [3]\n", "broker: write one or more"),
    "no brokers at all": (TOP + "broker = []\n", "broker: write one or more"),
    "a misspelt section": (TOP + BROKER.replace("broker", "brokr"), "'brokr' is unknown (did you mean broker?)"),
    "a misspelt key": ('vhots = "tdn"\n' + TOP + BROKER, "'vhots' is unknown (did you mean vhost?); there are network, vhost, broker, node"),
    "a misspelt port": (TOP + BROKER.replace("port", "prot"), "broker: 'prot' is unknown (did you mean port?)"),
    "no port": (TOP + '[[broker]]\nhost = "a"\n', "broker: 'port' is missing; write a whole number from 1 to 65,535"),
    "a port in quotes": (TOP + BROKER.replace("5671", '"5671"'), "broker.port: write a whole number"),
    "a port that is true": (TOP + BROKER.replace("5671", "true"), "broker.port: write a whole number"),
    "a port beyond all": (TOP + BROKER.replace("5671", "99999999"), "broker.port: write a whole number"),
    "an empty host": (TOP + BROKER.replace("127.0.0.1", ""), "broker.host: write a host's name or address in quotes"),
    "a host with spaces": (TOP + BROKER.replace("127.0.0.1", "the broker"), "broker.host: write a host's name or address in quotes"),
    "a node's host with spaces": (TOP + BROKER + '[[node]]\nid = "n"\nhost = "a b"\nport = 1\n', "node.host: write a host's name"),
    "a device or a dump": ("# " + "x" * 1_000_000 + "\n" + TOP + BROKER, "over a megabyte"),
    "a network that is a number": (TOP.replace('"abc"', "7") + BROKER, "network: write text in quotes"),
    "a node without an id": (TOP + BROKER + '[[node]]\nhost = "a"\nport = 1\n', "node: 'id' is missing"),
    "what is not TOML": ("network = abc", "is not TOML"),
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "connection.toml").write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        load_connection(tmp_path)
    assert caught.value.message.startswith(str(tmp_path / "connection.toml"))
    assert said in caught.value.message


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "connection.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        load_connection(tmp_path)
    (tmp_path / "connection.toml").unlink()
    with pytest.raises(UsageError, match="is missing; copy the whole folder"):
        load_connection(tmp_path)
    (tmp_path / "connection.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_connection(tmp_path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    settings = ConnectionSettings("abc", "other", [Broker("a", 1), Broker("::1", 65_535)], [NodeAddress("n1", "b", 2)])
    write_connection(tmp_path, settings)
    assert load_connection(tmp_path) == settings
    (tmp_path / "connection.toml").write_text(TOP + BROKER, "utf-8")
    assert load_connection(tmp_path) == ConnectionSettings("abc", "tdn", [Broker("127.0.0.1", 5671)], [])
