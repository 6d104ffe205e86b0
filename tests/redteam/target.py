"""What the red team attacks: a broker's addresses, an attacker and a victim on it, and an oracle that knows whether a message got in or out.

Nothing here knows our network: a file describes any RabbitMQ (README.md says how), and `ours.py` describes the private one that is started
when no file is named.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import ssl
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

#: What an attacker's messages begin with, and a victim's. Whoever has one of the other has crossed the line.
INTRUDER, SECRET = b"intruder ", b"secret "

#: Ports of what a RabbitMQ may offer besides AMQP over TLS, each of them a door of its own. Closed, or not to be reached from outside.
OTHER_PORTS: Mapping[str, int] = {
    "AMQP in the clear": 5672,
    "management in the clear": 15672,
    "MQTT": 1883,
    "MQTT over TLS": 8883,
    "MQTT over WebSockets": 15675,
    "STOMP": 61613,
    "STOMP over TLS": 61614,
    "STOMP over WebSockets": 15674,
    "streams": 5552,
    "streams over TLS": 5551,
    "Prometheus": 15692,
    "Erlang's port mapper": 4369,
    "Erlang distribution": 25672,
}


@dataclass(frozen=True, slots=True)
class Party:
    """Somebody who may log in; with the exchange that it may write to, and the queue that it may read."""

    login: str
    exchange: str
    queue: str
    trust: Path
    certificate: Path | None = None
    key: Path | None = None
    password: str | None = field(default=None, repr=False)

    def context(self, *, with_certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.trust))
        if with_certificate and self.certificate is not None:
            context.load_cert_chain(str(self.certificate), str(self.key))
        return context


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    vhost: str
    attacker: Party
    victim: Party
    #: `https://host:port` of the management API, and of whatever decides for the broker, if there is such a thing.
    management: str | None = None
    guard: str | None = None
    #: Service queues and exchanges that no user has any business with.
    private_queues: tuple[str, ...] = ()
    private_exchanges: tuple[str, ...] = ()
    #: An exchange that every user may write to, and a routing key that it takes.
    service: tuple[str, str] | None = None
    #: Ports that must be closed; empty where a better look is possible.
    closed: Mapping[str, int] = field(default_factory=lambda: OTHER_PORTS)

    @property
    def names(self) -> dict[str, str]:
        """What the tables of attacks fill in."""
        return {
            "V": self.victim.exchange,
            "Q": self.victim.queue,
            "victim": self.victim.login,
            "G": self.attacker.exchange,
            "O": self.attacker.queue,
            "attacker": self.attacker.login,
        }

    def parameters(self, party: Party, *, vhost: str | None = None, context: ssl.SSLContext | None = None) -> Any:
        login = (
            pika.PlainCredentials(party.login, party.password)
            if party.password is not None
            else pika.credentials.ExternalCredentials()
        )
        return pika.ConnectionParameters(
            self.host,
            self.port,
            self.vhost if vhost is None else vhost,
            login,
            ssl_options=pika.SSLOptions(context or party.context(), self.host),
            socket_timeout=5,
            stack_timeout=10,
            blocked_connection_timeout=10,
            heartbeat=0,
        )

    def connect(self, party: Party, **rest: Any) -> pika.BlockingConnection:
        return pika.BlockingConnection(self.parameters(party, **rest))


def read_target(path: Path) -> Target:
    """A target from a file. Paths in it are relative to it."""
    values = tomllib.loads(path.read_text("utf-8"))
    broker = values["broker"]

    def party(name: str) -> Party:
        given = values[name]
        files = {key: path.parent / given[key] for key in ("trust", "certificate", "key") if key in given}
        return Party(given["login"], given["exchange"], given["queue"], password=given.get("password"), **files)

    service = broker.get("service")
    return Target(
        host=broker["host"],
        port=int(broker.get("port", 5671)),
        vhost=broker["vhost"],
        attacker=party("attacker"),
        victim=party("victim"),
        management=broker.get("management"),
        guard=broker.get("guard"),
        private_queues=tuple(broker.get("private_queues", ())),
        private_exchanges=tuple(broker.get("private_exchanges", ())),
        service=(service["exchange"], service["routing_key"]) if service is not None else None,
        closed={**OTHER_PORTS, **broker.get("closed", {})},
    )


def close(connection: Any) -> None:
    """End a connection that the broker, or the end of the broker, may have ended a moment before."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        if connection.is_open:
            connection.close()


class Oracle:
    """The victim itself. It whispers secrets on its topic and leaves them in its queue for a while, so that there is something to steal."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._numbers = itertools.count(1)
        self._mark = SECRET + secrets.token_hex(4).encode()
        self._whispered: list[bytes] = []
        self._connect()
        self.hear()

    def _connect(self) -> None:
        self._connection = self._target.connect(self._target.victim)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def whisper(self) -> bytes:
        secret = b"%s %d" % (self._mark, next(self._numbers))
        if not self._connection.is_open:
            self._connect()
        self._channel.basic_publish(self._target.victim.exchange, "", secret)
        self._whispered.append(secret)
        return secret

    def hear(self) -> list[bytes]:
        """All that is in the victim's queue."""
        heard: list[bytes] = []
        while True:
            method, _, body = self._channel.basic_get(self._target.victim.queue, auto_ack=True)
            if method is None:
                return heard
            heard.append(body)

    def judge(self, stolen: list[bytes]) -> list[str]:
        """What went wrong since the last time, in words; an empty list is what one wants."""
        wrong = []
        heard, self._whispered, whispered = self.hear(), [], self._whispered
        if heard != whispered:
            wrong.append(f"the victim whispered {whispered} and heard {heard}")
        if taken := [body for body in stolen if self._mark in body]:
            wrong.append(f"the attacker has {taken}")
        return wrong

    def close(self) -> None:
        close(self._connection)


class Attacker:
    """A user with a valid login and one right elsewhere, that speaks AMQP 0-9-1 and keeps all that it is sent."""

    def __init__(self, target: Target, party: Party | None = None) -> None:
        self.target = target
        self.party = party or target.attacker
        self.connection = target.connect(self.party)
        self.channel = self.connection.channel()
        self.heard: list[bytes] = []

    def publish(self, exchange: str, key: str = "", *, confirm: bool = True, mandatory: bool = False, **properties: Any) -> None:
        """One message that says that it does not belong here; returns when the broker has judged it."""
        body = INTRUDER + f"{exchange} {key} {sorted(properties)}".encode()
        if confirm:
            self.channel.confirm_delivery()
        try:
            self.channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory=mandatory)
        except pika.exceptions.UnroutableError:
            # Taken, and led nowhere.
            return
        if not confirm:
            self.settle()

    def settle(self) -> None:
        """Wait until the broker has looked at all that was sent on the channel: it answers in order."""
        self.channel.basic_qos(prefetch_count=100)

    def consume(self, queue: str, **rest: Any) -> str:
        return str(self.channel.basic_consume(queue, lambda *event: self.heard.append(event[3]), **rest))

    def get(self, queue: str, *, ack: bool = True) -> Any:
        method, _, body = self.channel.basic_get(queue, auto_ack=ack)
        if method is not None:
            self.heard.append(body)
        return method

    def listen(self, seconds: float) -> None:
        """Take what comes, on all channels."""
        if self.connection.is_open:
            deadline = time.monotonic() + seconds
            self.connection.process_data_events(0)
            while self.connection.is_open and (left := deadline - time.monotonic()) > 0:
                self.connection.process_data_events(left)

    def close(self) -> None:
        close(self.connection)
