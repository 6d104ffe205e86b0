"""The private broker for real: who gets in, who does not, and that nothing is left when it stops."""

from __future__ import annotations

import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tdn.errors import BrokerUnavailable, UsageError
from tdn.local.broker import VIRTUAL_HOST, BrokerTls, PrivateBroker
from tests.one_broker import ALICE, Authority, OneBroker, StandInGuard, client_context, connect, make_broker

pytestmark = pytest.mark.broker


@pytest.fixture
def network(one_broker: OneBroker) -> OneBroker:
    return one_broker


def processes_of(folder: Path) -> list[int]:
    """Every process that was started with this broker's folder in its environment, or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = entry.joinpath("environ").read_bytes() + entry.joinpath("cmdline").read_bytes()
                if str(folder).encode() in told and ") Z " not in entry.joinpath("stat").read_text():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def test_certificate_gets_in_and_the_guard_is_asked(network: OneBroker) -> None:
    """The login name is the certificate's URI, and no password is ever sent."""
    network.guard.asked.clear()
    with connect(network.broker, client_context(network.authority.entity())) as connection:
        channel = connection.channel()
        channel.exchange_declare("t-1", "fanout")
        channel.confirm_delivery()
        channel.basic_publish("t-1", "", b"x")
    questions = {question for question, _ in network.guard.asked}
    assert questions >= {"user", "vhost", "resource"}
    assert all(fields["username"] == ALICE for _, fields in network.guard.asked)
    assert all("password" not in fields for _, fields in network.guard.asked)


def test_broker_and_guard_prove_themselves_to_each_other(network: OneBroker) -> None:
    """The guard demands a client certificate and sees the broker's; connections are kept open."""
    network.guard.peers.clear()
    network.guard.clients.clear()
    with connect(network.broker, client_context(network.authority.entity())) as connection:
        for number in range(30):
            connection.channel(number + 1).exchange_declare(f"kept-{number}", "fanout", auto_delete=True)
    assert len(network.guard.peers) >= 30
    assert set(network.guard.clients) == {"broker"}
    assert len(set(network.guard.peers)) <= 3, "a TLS handshake per question would cost milliseconds each"


@pytest.mark.parametrize("flaw", ["unknown authority", "other name", "away"])
def test_without_the_true_guard_nobody_gets_in(network: OneBroker, tmp_path: Path, flaw: str) -> None:
    """Fails closed: an impostor on the guard's port decides nothing."""
    network.guard.stop()
    stranger = Authority(tmp_path, "stranger")
    impostor = {
        # Trusts the broker, so that a refusal can only be the broker's.
        "unknown authority": BrokerTls(network.authority.root, *_files(stranger.server("guard"))),
        "other name": network.authority.server("elsewhere", "elsewhere.example"),
        "away": None,
    }[flaw]
    guard = StandInGuard(network.guard.port, impostor) if impostor else None
    try:
        if guard:
            guard.start()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(network.broker, client_context(network.authority.entity()))
        assert guard is None or guard.asked == []
    finally:
        if guard:
            guard.stop()
        network.guard.start()
    connect(network.broker, client_context(network.authority.entity())).close()


def _files(tls: BrokerTls) -> tuple[Path, Path]:
    return tls.chain, tls.key


def test_no_certificate_or_a_strangers_is_refused(network: OneBroker, tmp_path: Path) -> None:
    network.guard.asked.clear()
    stranger = Authority(tmp_path, "stranger").entity()
    ours = network.authority.entity()
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        connect(network.broker, client_context(ours, with_certificate=False))
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        connect(network.broker, client_context(BrokerTls(ours.root, stranger.chain, stranger.key)))
    assert network.guard.asked == []


def test_passwords_and_plain_tcp_are_refused(network: OneBroker) -> None:
    network.guard.asked.clear()
    for user in ("guest", ALICE):
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(
                network.broker,
                client_context(network.authority.entity()),
                pika.PlainCredentials(user, "guest"),
            )
    assert network.guard.asked == []
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", network.broker.ports.amqps, VIRTUAL_HOST, socket_timeout=5)
        )


def test_management_needs_certificate_and_login(network: OneBroker) -> None:
    """Loopback only, mutual TLS, and the guard is asked with a password, which AMQP logins never have."""
    network.guard.asked.clear()
    url = f"https://127.0.0.1:{network.broker.ports.management}/api"
    entity = network.authority.entity()

    def get(path: str, context: ssl.SSLContext, login: str | None) -> object:
        request = urllib.request.Request(url + path)
        if login:
            request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return json.load(response)

    with pytest.raises(OSError, match=r"(?i)certificate required|alert|reset|closed"):
        get("/vhosts", client_context(entity, with_certificate=False), "node:secret")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get("/vhosts", client_context(entity), None)
    assert network.guard.asked == []
    vhosts = get("/vhosts", client_context(entity), "node:secret")
    assert isinstance(vhosts, list)
    assert [vhost["name"] for vhost in vhosts] == [VIRTUAL_HOST]
    assert get("/users", client_context(entity), "node:secret") == [], "no guest"
    assert ("user", {"username": "node", "password": "secret"}) in network.guard.asked


def test_listens_on_loopback_only(network: OneBroker) -> None:
    ports = network.broker.ports
    mine = {ports.amqps, ports.management, ports.dist, ports.epmd}
    listening = set()
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "00000000000000000000000001000000")):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) in mine:
                assert address == loopback, f"port {int(port, 16)} listens on {address}"
                listening.add(int(port, 16))
    assert listening == mine


@pytest.mark.slow
def test_two_side_by_side_restart_and_stop(network: OneBroker, tmp_path: Path) -> None:
    """A second broker of the same name; its durable queue outlives a restart; neither stop nor kill leaves
    a process."""
    second = make_broker(tmp_path / "second", network.authority, network.guard.port)
    context = client_context(network.authority.entity())
    try:
        second.start()
        assert second.pid != network.broker.pid
        assert len(processes_of(second.folder)) >= 2
        with connect(second, context) as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"still here", pika.BasicProperties(delivery_mode=2))
        with connect(network.broker, context) as connection:
            other = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                other.queue_declare("kept", passive=True)

        second.stop()
        assert not second.alive()
        assert processes_of(second.folder) == []

        # As a later command would: only the folder is known.
        again = PrivateBroker(second.folder, second.ports, second.tls, second.guard_url)
        again.start()
        assert again.pid == second.pid
        with connect(again, context) as connection:
            assert connection.channel().basic_get("kept")[2] == b"still here"
    finally:
        second.kill_hard()
    assert not second.alive()
    assert processes_of(second.folder) == []
    second.stop()
    assert network.broker.alive()


def test_failed_start_says_why_and_leaves_nothing(network: OneBroker, tmp_path: Path) -> None:
    broker = make_broker(tmp_path / "broken", network.authority, network.guard.port)
    with (broker.folder / "rabbitmq.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(BrokerUnavailable, match="no_such_setting"):
        broker.start()
    assert processes_of(broker.folder) == []

    taken = make_broker(tmp_path / "taken", network.authority, network.guard.port)
    with (
        socket.create_server(("127.0.0.1", taken.ports.amqps)),
        pytest.raises(UsageError, match="is in use by another program; end that one, or run `tdn up` again"),
    ):
        taken.start()
    assert processes_of(taken.folder) == []
