"""The same by AMQP 1.0, as a table: each with what the guard is asked, or nothing where RabbitMQ decides by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.redteam import attacks
from tests.redteam.amqp10 import Peer
from tests.redteam.target import INTRUDER

Act = Callable[[Peer, dict[str, str]], Any]


def _sends(address: str | None, **rest: Any) -> Act:
    return lambda peer, names: peer.send(
        peer.sender(address and address.format(**names)),
        INTRUDER + b"by 1.0",
        **{key: attacks.filled(value, names) for key, value in rest.items()},
    )


def _receives(address: str) -> Act:
    return lambda peer, names: peer.receiver(address.format(**names))


def _manages(method: str, where: str, body: Any = None) -> Act:
    def act(peer: Peer, names: dict[str, str]) -> None:
        status, told = peer.ask(peer.pair(), method, where.format(**names), attacks.filled(body, names))
        assert status in ("400", "401", "403", "404", "405"), (status, told)

    return act


_KEPT = {"durable": True, "auto_delete": False}

#: Each with what the guard is asked, or nothing where RabbitMQ decides by itself.
AMQP10: dict[str, tuple[Act, tuple[str, str] | None]] = {
    "send to the exchange": (_sends("/exchanges/{V}"), attacks.TOPIC),
    "send to the exchange with a key": (_sends("/exchanges/{V}/x"), attacks.TOPIC),
    "send to the queue": (_sends("/queues/{Q}"), attacks.DEFAULT),
    "send to nobody, with the exchange in the message": (_sends(None, to="/exchanges/{V}"), attacks.TOPIC),
    "send to nobody, with the queue in the message": (_sends(None, to="/queues/{Q}"), attacks.DEFAULT),
    "send to its own, with more keys": (_sends("/exchanges/{G}", annotations={"x-cc": ["{V}", "{Q}"]}), None),
    "send to its own, under another's login": (_sends("/exchanges/{G}", user_id="{victim}"), None),
    "send to its own, with the queue for replies": (_sends("/exchanges/{G}", reply_to="/queues/{Q}"), None),
    "send by an old address": (_sends("/exchange/{V}/x"), attacks.TOPIC),
    "send by an old address of a queue": (_sends("/amq/queue/{Q}"), attacks.DEFAULT),
    "receive from the queue": (_receives("/queues/{Q}"), attacks.FEED),
    "receive from the exchange": (_receives("/exchanges/{V}"), None),
    "receive by an old address": (_receives("/exchange/{V}/#"), None),
    "receive by an old address of a topic": (_receives("/topic/{V}"), None),
    "receive by an old address of a queue": (_receives("/amq/queue/{Q}"), attacks.FEED),
    "declare a queue": (
        _manages("PUT", "/queues/mine", {**_KEPT, "exclusive": False, "arguments": {}}),
        ("configure", "queue mine"),
    ),
    "declare a queue with dead letters": (
        _manages("PUT", "/queues/mine", {**_KEPT, "exclusive": False, "arguments": {"x-dead-letter-exchange": "{V}"}}),
        ("configure", "queue mine"),
    ),
    "declare an exchange with an alternate": (
        _manages(
            "PUT",
            "/exchanges/{V}",
            {**_KEPT, "type": "fanout", "internal": False, "arguments": {"alternate-exchange": "{G}"}},
        ),
        ("configure", "exchange {V}"),
    ),
    "purge the queue": (_manages("DELETE", "/queues/{Q}/messages"), attacks.FEED),
    "delete the queue": (_manages("DELETE", "/queues/{Q}"), ("configure", "queue {Q}")),
    "delete the exchange": (_manages("DELETE", "/exchanges/{V}"), ("configure", "exchange {V}")),
    "bind its own queue": (
        _manages("POST", "/bindings", {"source": "{V}", "destination_queue": "{O}", "binding_key": "", "arguments": {}}),
        attacks.OWN_BINDING,
    ),
    "bind its own exchange": (
        _manages("POST", "/bindings", {"source": "{V}", "destination_exchange": "{G}", "binding_key": "", "arguments": {}}),
        ("read", "exchange {V}"),
    ),
    "unbind the queue": (_manages("DELETE", "/bindings/src={V};dstq={Q};key=;args="), ("write", "queue {Q}")),
    "list what the exchange is bound to": (_manages("GET", "/bindings?src={V}&key="), None),
}
