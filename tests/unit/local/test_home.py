"""The home's ports and places, and the settings that name brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdn.bus.connection import Broker
from tdn.errors import UsageError
from tdn.local.broker import BrokerPorts, BrokerTls, render_configuration
from tdn.local.cluster import check_count
from tdn.local.home import Home
from tdn.protocol.names import Role


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


def test_a_home_of_one_broker_is_as_it_was(home: Home) -> None:
    """Its ports have the names that they had, and its credentials the folder."""
    ports = home.ports()
    assert set(ports) == {"amqps", "management", "dist", "epmd", "guard"}
    assert home.ports() == ports
    (place,) = home.places()
    assert (place.broker, place.nodename, place.guard) == ("broker", "tdn@localhost", "g1")
    assert (place.amqps, place.guard_port, place.epmd) == (ports["amqps"], ports["guard"], ports["epmd"])
    for name in ("broker", "rabbit", "broker-2", "broker22"):
        assert home.credentials(Role.BROKER, name) == home.folder / "broker"


def test_more_brokers_keep_the_ports_of_the_first(home: Home) -> None:
    before = home.ports()
    grown = home.choose_ports(3, keep=True)
    assert before.items() <= grown.items()
    assert len(set(grown.values())) == len(grown) == 13
    assert home.ports() == grown
    places = home.places()
    assert [place.broker for place in places] == ["broker", "broker2", "broker3"]
    assert [place.nodename for place in places] == ["tdn@localhost", "tdn2@localhost", "tdn3@localhost"]
    assert [place.guard for place in places] == ["g1", "g2", "g3"]
    assert {place.epmd for place in places} == {before["epmd"]}
    assert home.credentials(Role.BROKER, "broker3") == home.folder / "broker3"
    settings = home.settings()
    assert settings.hosts == [Broker("127.0.0.1", place.amqps) for place in places]
    assert settings.management_urls == [f"https://127.0.0.1:{place.management}" for place in places]
    anew = home.choose_ports()
    assert set(anew) == set(grown)
    assert len(home.places()) == 3


@pytest.mark.parametrize("first", ["g1", "gatekeeper"])
def test_the_first_guard_keeps_its_name(home: Home, first: str) -> None:
    home.choose_ports(3)
    for guard in (first, "g2", "g3"):
        home.credentials(Role.GUARD, guard).mkdir(parents=True)
        (home.credentials(Role.GUARD, guard) / "cert.pem").touch()
    assert [place.guard for place in home.places()] == [first, "g2", "g3"]


@pytest.mark.parametrize("kept", ["", "[]", "null", '{"amqps": "x"}', '{"amqps": 1}'])
def test_ports_that_cannot_be_read_are_chosen_anew(home: Home, kept: str) -> None:
    (home.folder / "ports.json").write_text(kept)
    assert len(home.ports()) == 5


def test_management_of_a_rabbitmq_of_ones_own(home: Home) -> None:
    """One URL, or one of each broker; one of the two is needed."""
    own = '[broker]\nmode = "own"\nhosts = ["a:1", "b:2"]\n'
    for line, expected in (
        ('management_url = "https://a:3/"', ["https://a:3"]),
        ('management_urls = ["https://a:3/", "https://b:3"]', ["https://a:3", "https://b:3"]),
    ):
        (home.folder / "tdn.toml").write_text(own + line)
        assert home.settings().management_urls == expected
    for line in ("", "management_urls = []", "management_urls = 7"):
        (home.folder / "tdn.toml").write_text(own + line)
        with pytest.raises(UsageError):
            home.settings()


@pytest.mark.parametrize(("wanted", "present"), [(0, 1), (2, 1), (4, 3), (6, 1), (7, 1), (-1, 1), (1, 3), (3, 5)])
def test_numbers_of_brokers_that_cannot_be(wanted: int, present: int) -> None:
    with pytest.raises(UsageError):
        check_count(wanted, present)


def test_every_broker_is_named_to_every_other(tmp_path: Path) -> None:
    tls = BrokerTls(tmp_path / "root.pem", tmp_path / "chain.pem", tmp_path / "key.pem")
    names = ("tdn@localhost", "tdn2@localhost", "tdn3@localhost")
    render_configuration(tmp_path, ports=BrokerPorts(1, 2, 3, 4), tls=tls, guard_url="https://127.0.0.1:5", peers=names)
    lines = (tmp_path / "rabbitmq.conf").read_text().splitlines()
    for number, name in enumerate(names, 1):
        assert f"cluster_formation.classic_config.nodes.{number} = {name}" in lines
    assert "cluster_partition_handling = pause_minority" in lines


def test_no_port_is_chosen_for_two_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen and does not listen yet looks free to whoever chooses next."""
    home = Home(tmp_path)
    # A machine with few ports, all of them free: each choice begins at the first.
    monkeypatch.setattr("tdn.local.home.free_ports", lambda count: list(range(20_000, 20_000 + count)))
    chosen = [*home.choose_ports(3).values()]
    for number in range(4):
        home.choose_metrics_port(Role.NODE, f"n{number}")
        chosen += [home.endpoint_port(f"n{number}"), home.metrics_port(Role.NODE, f"n{number}")]
    assert len(set(chosen)) == len(chosen) == 13 + 8
    another = home.endpoint_port("n0", anew=True)
    assert another not in chosen
