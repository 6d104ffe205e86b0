"""Ways in that are not the right one: other logins, other protocols, other ports, the management API and the guard. By sockets and HTTP."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pika
import pika.exceptions
import pika.frame
import pika.spec

from tests.redteam.target import Party, Target

#: What every RabbitMQ had once, what people choose, and what our guard knows.
PASSWORDS = ("", "guest", "password", "tdn-management", "\0", "x" * 5000)


def sasl_logins(target: Target) -> dict[str, tuple[str, bytes]]:
    """Mechanisms and first responses that must not let anybody in, though the certificate is a good one."""
    victim, attacker = target.victim.login.encode(), target.attacker.login.encode()
    return {
        "PLAIN as guest": ("PLAIN", b"\0guest\0guest"),
        "PLAIN as oneself, without a password": ("PLAIN", b"\0" + attacker + b"\0"),
        "PLAIN as the victim, without a password": ("PLAIN", b"\0" + victim + b"\0"),
        "PLAIN as the victim, authorised by oneself": ("PLAIN", victim + b"\0" + attacker + b"\0x"),
        "PLAIN as the manager": ("PLAIN", b"\0tdn-management\0guest"),
        "AMQPLAIN as guest": ("AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"),
        "AMQPLAIN as the victim": (
            "AMQPLAIN",
            b"\x05LOGINS" + struct.pack(">I", len(victim)) + victim + b"\x08PASSWORDS\0\0\0\0",
        ),
        "ANONYMOUS": ("ANONYMOUS", b""),
        "RABBIT-CR-DEMO": ("RABBIT-CR-DEMO", b"guest"),
        "SCRAM-SHA-256": ("SCRAM-SHA-256", b"n,,n=guest,r=x"),
        "a mechanism that is none": ("external", b""),
        "no mechanism": ("", b""),
    }


def log_in(target: Target, context: ssl.SSLContext, mechanism: str, response: bytes) -> bool:
    """Whether the broker goes on after a login, asked by hand: a client library sends only what the broker offers."""
    with (
        socket.create_connection((target.host, target.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=target.host) as secured,
    ):
        secured.sendall(b"AMQP\0\0\x09\x01")
        methods = _methods(secured)
        if not isinstance(next(methods, None), pika.spec.Connection.Start):
            return False
        login = pika.spec.Connection.StartOk({}, mechanism, response.decode("latin-1"), "en_US")
        secured.sendall(pika.frame.Method(0, login).marshal())
        return isinstance(next(methods, None), pika.spec.Connection.Tune)


def _methods(secured: ssl.SSLSocket) -> Iterator[Any]:
    """Methods as they come, until the broker closes. It waits a second before it says no."""
    buffer = b""
    while True:
        used, frame = pika.frame.decode_frame(buffer)
        if used:
            buffer = buffer[used:]
            yield getattr(frame, "method", None)
            continue
        try:
            more = secured.recv(65_536)
        except (ssl.SSLError, ConnectionError):
            return
        if not more:
            return
        buffer += more


# --- HTTP ---


@dataclass(frozen=True, slots=True)
class Got:
    status: int
    body: bytes


def fetch(
    url: str,
    method: str,
    path: str,
    context: ssl.SSLContext,
    *,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> Got:
    where = urlsplit(url)
    connection = http.client.HTTPSConnection(where.hostname or "", where.port, timeout=10, context=context)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Got(response.status, response.read())
    finally:
        connection.close()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def claims(target: Target) -> dict[str, dict[str, str]]:
    """Ways to claim to be somebody at the management API."""
    found: dict[str, dict[str, str]] = {
        "nobody": {},
        "a bearer": {"Authorization": "Bearer " + "x" * 40},
        "a cookie": {"Cookie": "auth=" + base64.b64encode(b"guest:guest").decode()},
        "no base64": {"Authorization": "Basic %%%"},
        "a certificate in a header": {"X-SSL-Cert": "x", "X-Forwarded-User": "tdn-management", "X-Remote-User": "tdn-management"},
        "guest": basic("guest", "guest"),
    }
    for who, user in (("oneself", target.attacker.login), ("the victim", target.victim.login)):
        found |= {f"{who} without a password": basic(user, ""), f"{who} with a guess": basic(user, "guest")}
    for number, password in enumerate(PASSWORDS):
        found[f"the manager, guess {number}"] = basic("tdn-management", password)
    return found


def operations(target: Target) -> list[tuple[str, str, Any]]:
    """What an operator can do over HTTP, and would open the victim's topic."""
    vhost, names = target.vhost, target.names
    exchange, queue = names["V"], names["Q"]
    definition = {"exchange_dst": names["G"], "pattern": ".*", "definition": {"dead-letter-exchange": names["G"]}}
    return [
        ("GET", "/api/overview", None),
        ("GET", "/api/whoami", None),
        ("GET", "/api/definitions", None),
        ("GET", "/api/connections", None),
        ("GET", f"/api/queues/{vhost}", None),
        ("GET", f"/api/exchanges/{vhost}/{exchange}/bindings/source", None),
        ("POST", f"/api/queues/{vhost}/{queue}/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}),
        ("DELETE", f"/api/queues/{vhost}/{queue}/contents", None),
        ("DELETE", f"/api/queues/{vhost}/{queue}", None),
        (
            "POST",
            f"/api/exchanges/{vhost}/{exchange}/publish",
            {"properties": {}, "routing_key": "", "payload": "intruder over HTTP", "payload_encoding": "string"},
        ),
        ("POST", f"/api/bindings/{vhost}/e/{exchange}/q/{names['O']}", {"routing_key": "", "arguments": {}}),
        ("PUT", f"/api/policies/{vhost}/mine", {"pattern": ".*", "definition": {"alternate-exchange": names["G"]}}),
        ("PUT", f"/api/policies/{vhost}/letters", definition),
        ("PUT", f"/api/operator-policies/{vhost}/mine", {"pattern": ".*", "definition": {"max-length": 0}, "apply-to": "queues"}),
        ("PUT", f"/api/parameters/shovel/{vhost}/mine", {"value": {"src-queue": queue, "dest-queue": names["O"]}}),
        ("PUT", f"/api/parameters/federation-upstream/{vhost}/mine", {"value": {"uri": "amqp://127.0.0.1"}}),
        ("PUT", "/api/users/mallory", {"password": "x", "tags": "administrator"}),
        ("PUT", f"/api/permissions/{vhost}/mallory", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("PUT", "/api/vhosts/mine", {}),
        ("PUT", "/api/global-parameters/x", {"value": {}}),
        ("PUT", "/api/feature-flags/x/enable", {}),
        ("DELETE", f"/api/connections/username/{target.victim.login}", None),
        ("POST", "/api/login", {"username": "guest", "password": "guest"}),
        ("PUT", "/api/login", {"username": target.victim.login, "password": ""}),
        ("POST", "/api/definitions", {"users": [{"name": "mallory", "password": "x", "tags": "administrator"}]}),
    ]


def send(target: Target, party: Party, operation: tuple[str, str, Any], headers: dict[str, str]) -> Got:
    method, path, body = operation
    assert target.management is not None
    content = json.dumps(body).encode() if body is not None else None
    return fetch(
        target.management,
        method,
        path.replace(":", "%3A"),
        party.context(),
        headers={"Content-Type": "application/json", **headers},
        body=content,
    )


# --- Erlang's own ports ---


def join_cluster(host: str, port: int, cookie: bytes, name: bytes = b"mallory@localhost") -> bool:
    """Whether Erlang's distribution takes us for a node of the cluster: its handshake, by hand."""
    # What nodes of OTP 25 and later demand of each other.
    flags = 0x7DF7FBD | 1 << 34
    with socket.create_connection((host, port), timeout=5) as link:
        _write(link, b"N" + struct.pack(">QIH", flags, 1, len(name)) + name)
        if not _message(link).startswith(b"sok"):
            return False
        challenge = _message(link)
        (number,) = struct.unpack_from(">I", challenge, 9)
        digest = hashlib.md5(cookie + str(number).encode(), usedforsecurity=False).digest()
        _write(link, b"r" + struct.pack(">I", 1) + digest)
        return _message(link).startswith(b"a")


def _write(link: socket.socket, message: bytes) -> None:
    link.sendall(struct.pack(">H", len(message)) + message)


def _message(link: socket.socket) -> bytes:
    size = link.recv(2)
    if len(size) < 2:
        return b""
    return link.recv(struct.unpack(">H", size)[0])


def is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
