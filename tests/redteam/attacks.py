"""Ways around a missing right that AMQP 0-9-1 offers to somebody who may log in, as a table. None needs to know whose broker it is.

In names, {V} and {Q} are the victim's exchange and queue, {G} and {O} what the attacker may write to and read. An attack that the broker asks
its guard about says what the audit log must have; one that it does not ask about says why not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions

from tests.redteam.target import INTRUDER, Attacker, Target

Act = Callable[[Attacker, dict[str, str]], Any]

ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, CONNECTION_FORCED = 403, 404, 406, 320

#: As a UUID that nobody minted.
ABSENT = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Attack:
    act: Act
    #: Action and resource as the guard is asked, or nothing.
    asked: tuple[str, str] | None
    #: AMQP's codes that an answer may have; None is an answer that refuses nothing, and still nothing comes of it.
    codes: frozenset[int | None] = frozenset({ACCESS_REFUSED})
    #: Why the guard is not asked.
    unasked: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the broker made of an attempt: the code with which it closed the channel or the connection, and its words."""

    code: int | None
    text: str = ""


def attempt(act: Callable[[], Any]) -> Answer:
    try:
        act()
    except (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker) as error:
        return Answer(error.reply_code, error.reply_text)
    return Answer(None)


def _publish(exchange: str, key: str = "", **rest: Any) -> Act:
    return lambda attacker, names: attacker.publish(
        exchange.format(**names), key.format(**names), **{name: filled(value, names) for name, value in rest.items()}
    )


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, dict):
        return {key: filled(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, names) for inner in value]
    return value


def _do(method: str, *words: str, **rest: Any) -> Act:
    """A method of the channel, with names filled in."""
    return lambda attacker, names: getattr(attacker.channel, method)(
        *(word.format(**names) for word in words), **{name: filled(value, names) for name, value in rest.items()}
    )


def _read(how: str, queue: str, **rest: Any) -> Act:
    return lambda attacker, names: getattr(attacker, how)(queue.format(**names), **rest)


def _to_bytes(attacker: Attacker, names: dict[str, str]) -> None:
    """A name that is no text."""
    attacker.channel.confirm_delivery()
    attacker.channel.basic_publish(names["V"].encode() + b"\xff", "", INTRUDER)


def _in_transaction(attacker: Attacker, names: dict[str, str]) -> None:
    """One that is allowed, one that is not, and a commit of both."""
    attacker.channel.tx_select()
    body = INTRUDER + b"in a transaction"
    attacker.channel.basic_publish(names["G"], "", body)
    attacker.channel.basic_publish(names["V"], "", body)
    attacker.channel.tx_commit()


def _rolled_back(attacker: Attacker, names: dict[str, str]) -> None:
    attacker.channel.tx_select()
    attacker.channel.basic_publish(names["V"], "", INTRUDER + b"rolled back")
    attacker.channel.tx_rollback()


def _warmed(attacker: Attacker, names: dict[str, str]) -> None:
    """The broker remembers what a channel was allowed; no memory may speak for another name."""
    for _ in range(20):
        attacker.publish(names["G"])
    attacker.publish(names["V"])


def _many_at_once(attacker: Attacker, names: dict[str, str]) -> None:
    """A refusal comes after the messages that were under way. None of those counts."""
    for number in range(200):
        attacker.channel.basic_publish(names["V"] if number % 2 else names["G"], "", INTRUDER + b"at once")
    attacker.settle()


def _last_queue(act: Act) -> Act:
    """An empty name stands for the queue that the channel declared last, and a passive declare counts as one."""

    def act_on_it(attacker: Attacker, names: dict[str, str]) -> None:
        attacker.channel.queue_declare(names["Q"], passive=True)
        act(attacker, names)

    return act_on_it


def _thief_of_tags(method: str, **rest: Any) -> Act:
    """Delivery tags belong to a channel: another's are unknown on ours."""

    def act(attacker: Attacker, names: dict[str, str]) -> None:
        getattr(attacker.channel, method)(1, **rest)
        attacker.settle()

    return act


def _requeue_its_own(attacker: Attacker, names: dict[str, str]) -> None:
    """What is taken and put back goes back where it was, by whichever way."""
    ways: tuple[Callable[[int], Any], ...] = (
        lambda tag: attacker.channel.basic_nack(tag, requeue=True),
        lambda tag: attacker.channel.basic_reject(tag, requeue=True),
        lambda tag: attacker.channel.basic_nack(tag, requeue=False),
        lambda tag: attacker.channel.basic_recover(requeue=True),
    )
    for give_back in ways:
        attacker.publish(names["G"])
        method = attacker.get(names["O"], ack=False)
        assert method is not None, "the attacker's own right does not work, so nothing here would show anything"
        give_back(method.delivery_tag)
    attacker.settle()


def _cancel_others(attacker: Attacker, names: dict[str, str]) -> None:
    """Consumer tags are a channel's own as well."""
    with contextlib.suppress(ValueError):
        attacker.channel.basic_cancel("ctag1.1")
    attacker.settle()


def _new_secret(attacker: Attacker, names: dict[str, str]) -> None:
    """What renews tokens of OAuth 2 must not renew anything else."""
    attacker.connection.update_secret("secret", "because")


_UNROUTED = frozenset({None, ACCESS_REFUSED})
_NOT_ASKED_HEADERS = "RabbitMQ 3.10 asks about no routing keys in headers, and a fanout exchange looks at none"
_OWN_THINGS = "it is about what the attacker has itself"

TOPIC = ("publish", "exchange {V}")
FEED = ("subscribe", "queue {Q}")
DEFAULT = ("write", "exchange amq.default")
OWN_BINDING = ("write", "queue {O}")

PUBLISHING: dict[str, Attack] = {
    "publish": Attack(_publish("{V}"), TOPIC),
    "publish with a routing key": Attack(_publish("{V}", "{Q}"), TOPIC),
    "publish without waiting": Attack(_publish("{V}", confirm=False), TOPIC),
    "publish many at once, allowed ones among them": Attack(_many_at_once, TOPIC),
    "publish mandatory, to hear whether anybody listens": Attack(_publish("{V}", mandatory=True), TOPIC),
    "publish after the channel was allowed much": Attack(_warmed, TOPIC),
    "publish in a transaction": Attack(_in_transaction, TOPIC),
    "publish and roll back": Attack(_rolled_back, TOPIC),
    "publish under its own login, rightly": Attack(_publish("{V}", user_id="{attacker}"), TOPIC),
    "publish where nothing is": Attack(_publish(ABSENT), ("publish", f"exchange {ABSENT}")),
    "publish to the name in capitals": Attack(
        lambda attacker, names: attacker.publish(names["V"].upper()), ("write", "exchange {upper_V}")
    ),
    "publish to the name and a line break": Attack(_publish("{V}\n"), ("write", "exchange {V}·")),
    "publish to the name and a zero": Attack(_publish("{V}\0"), ("write", "exchange {V}·")),
    "publish to the name and half a character": Attack(_to_bytes, ("write", "exchange {V}\ufffd")),
    "publish to a name that a form would divide": Attack(
        _publish("{V}&name={G}&permission=write"), ("write", "exchange {V}&name={G}&permission=write")
    ),
    "publish to a name that a form would decode": Attack(_publish("{V}%26x%3d"), ("write", "exchange {V}%26x%3d")),
    "CC on what it may write to": Attack(
        _publish("{G}", headers={"CC": ["{V}", "{Q}"]}), None, _UNROUTED, unasked=_NOT_ASKED_HEADERS
    ),
    "BCC on what it may write to": Attack(
        _publish("{G}", headers={"BCC": ["{V}", "{Q}"]}), None, _UNROUTED, unasked=_NOT_ASKED_HEADERS
    ),
    "CC and BCC at the default exchange": Attack(_publish("", "{O}", headers={"CC": ["{Q}"], "BCC": ["{Q}"]}), DEFAULT),
    "headers that RabbitMQ writes itself": Attack(
        _publish(
            "{G}",
            headers={
                "x-death": [{"queue": "{Q}", "exchange": "{V}", "routing-keys": ["{Q}"], "reason": "rejected", "count": 1}],
                "x-first-death-exchange": "{V}",
                "x-first-death-queue": "{Q}",
                "x-dead-letter-exchange": "{V}",
                "x-match": "any",
                "x-delay": 1,
            },
        ),
        None,
        _UNROUTED,
        unasked=_OWN_THINGS,
    ),
    "a message that expires at once": Attack(_publish("{G}", expiration="0"), None, _UNROUTED, unasked=_OWN_THINGS),
    "the default exchange, to the victim's queue": Attack(_publish("", "{Q}"), DEFAULT),
    "the default exchange, to its own queue": Attack(_publish("", "{O}"), DEFAULT),
    "the default exchange by another name": Attack(_publish("amq.default", "{Q}"), ("write", "exchange amq.default")),
    "direct reply-to as an address": Attack(
        _publish("", "amq.rabbitmq.reply-to.g2dkAA5yYWJiaXRAbG9jYWxob3N0AAAB.AAAAAAAAAAAAAAAAAAAAAA=="), DEFAULT
    ),
    "the victim's queue as the address of replies": Attack(_publish("{G}", reply_to="{Q}"), None, _UNROUTED, unasked=_OWN_THINGS),
    "another's login in a message": Attack(
        _publish("{G}", user_id="{victim}"),
        None,
        frozenset({PRECONDITION_FAILED}),
        unasked="RabbitMQ compares user_id with the login by itself",
    ),
    **{
        f"publish to {exchange}": Attack(_publish(exchange, "{Q}"), ("write", f"exchange {exchange}"))
        for exchange in ("amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic", "amq.rabbitmq.trace")
    },
}

BINDING: dict[str, Attack] = {
    "bind its own queue to the victim's exchange": Attack(_do("queue_bind", "{O}", "{V}"), OWN_BINDING),
    "bind its own queue with #": Attack(_do("queue_bind", "{O}", "amq.topic", "#"), OWN_BINDING),
    "bind its own queue with *": Attack(_do("queue_bind", "{O}", "amq.topic", "*.*"), OWN_BINDING),
    "bind its own queue to all traces": Attack(_do("queue_bind", "{O}", "amq.rabbitmq.trace", "publish.#"), OWN_BINDING),
    "bind its own queue once more to what it may read": Attack(_do("queue_bind", "{O}", "{G}"), OWN_BINDING),
    "bind the victim's queue to what it may write to": Attack(_do("queue_bind", "{Q}", "{G}"), ("write", "queue {Q}")),
    "bind a queue that is not there": Attack(_do("queue_bind", "nothing", "{V}"), ("write", "queue nothing")),
    "unbind the victim's queue": Attack(_do("queue_unbind", "{Q}", "{V}"), ("write", "queue {Q}")),
    "bind the victim's exchange behind its own": Attack(_do("exchange_bind", "{V}", "{G}"), TOPIC),
    "bind its own exchange behind the victim's": Attack(_do("exchange_bind", "{G}", "{V}"), ("read", "exchange {V}")),
    "bind a standard exchange behind the victim's": Attack(
        _do("exchange_bind", "amq.fanout", "{V}"), ("write", "exchange amq.fanout")
    ),
    "bind the victim's exchange behind the default one": Attack(
        _do("exchange_bind", "{V}", "", "{Q}"),
        None,
        _UNROUTED | {PRECONDITION_FAILED},
        unasked="nothing is bound to the default exchange, whoever asks",
    ),
    "unbind an exchange": Attack(_do("exchange_unbind", "{G}", "{V}"), ("read", "exchange {V}")),
    "bind the last declared queue": Attack(_last_queue(_do("queue_bind", "", "{G}")), ("write", "queue {Q}")),
}


def _declare(queue: str, **arguments: Any) -> Act:
    return _do("queue_declare", queue, arguments=arguments)


DECLARING: dict[str, Attack] = {
    "declare a queue": Attack(_do("queue_declare", "mine"), ("configure", "queue mine")),
    "declare a queue that the server names": Attack(
        lambda attacker, names: attacker.channel.queue_declare("", exclusive=True),
        None,
        unasked="asked under a name that the server makes up",
    ),
    "declare an exclusive queue": Attack(_do("queue_declare", "mine", exclusive=True), ("configure", "queue mine")),
    "declare a queue that goes by itself": Attack(_do("queue_declare", "mine", auto_delete=True), ("configure", "queue mine")),
    "declare a stream": Attack(
        _do("queue_declare", "mine", durable=True, arguments={"x-queue-type": "stream"}), ("configure", "queue mine")
    ),
    "declare a queue whose dead letters go to the victim's exchange": Attack(
        _declare("letters", **{"x-dead-letter-exchange": "{V}", "x-message-ttl": 0}), ("configure", "queue letters")
    ),
    "declare a queue whose dead letters go to the victim's queue": Attack(
        _declare("letters", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "{Q}", "x-max-length": 0}),
        ("configure", "queue letters"),
    ),
    "declare its own queue again, with dead letters": Attack(
        _declare("{O}", **{"x-dead-letter-exchange": "{V}"}), ("configure", "queue {O}")
    ),
    "declare the victim's queue as its own": Attack(_do("queue_declare", "{Q}", exclusive=True), ("configure", "queue {Q}")),
    "declare the victim's queue again, with dead letters to itself": Attack(
        _declare("{Q}", **{"x-dead-letter-exchange": "{G}"}), ("configure", "queue {Q}")
    ),
    "declare a queue in the broker's own name space": Attack(
        _do("queue_declare", "amq.mine"), None, frozenset({ACCESS_REFUSED}), unasked="RabbitMQ keeps these names for itself"
    ),
    "declare an exchange": Attack(_do("exchange_declare", "mine", "topic"), ("configure", "exchange mine")),
    "declare an internal exchange": Attack(
        _do("exchange_declare", "mine", "fanout", internal=True), ("configure", "exchange mine")
    ),
    "declare an exchange with an alternate": Attack(
        _do("exchange_declare", "mine", "topic", arguments={"alternate-exchange": "{V}"}), ("configure", "exchange mine")
    ),
    "declare its own exchange again, with an alternate": Attack(
        _do("exchange_declare", "{G}", "fanout", durable=True, arguments={"alternate-exchange": "{V}"}),
        ("configure", "exchange {G}"),
    ),
    "declare the victim's exchange with an alternate": Attack(
        _do("exchange_declare", "{V}", "fanout", durable=True, arguments={"alternate-exchange": "{G}"}),
        ("configure", "exchange {V}"),
    ),
    "declare an exchange that goes by itself": Attack(
        _do("exchange_declare", "mine", "direct", auto_delete=True), ("configure", "exchange mine")
    ),
    "declare a topic that nobody minted": Attack(_do("exchange_declare", ABSENT, "fanout"), ("configure", f"exchange {ABSENT}")),
    "delete the victim's exchange": Attack(_do("exchange_delete", "{V}"), ("configure", "exchange {V}")),
    "delete it if nobody uses it": Attack(_do("exchange_delete", "{V}", if_unused=True), ("configure", "exchange {V}")),
    "delete the victim's queue": Attack(_do("queue_delete", "{Q}"), ("configure", "queue {Q}")),
    "delete it if it is empty": Attack(_do("queue_delete", "{Q}", if_empty=True, if_unused=True), ("configure", "queue {Q}")),
    "delete the last declared queue": Attack(_last_queue(_do("queue_delete", "")), ("configure", "queue {Q}")),
    "delete its own queue": Attack(_do("queue_delete", "{O}"), ("configure", "queue {O}")),
}

READING: dict[str, Attack] = {
    "get from the victim's queue": Attack(_read("get", "{Q}"), FEED),
    "get and leave it there": Attack(_read("get", "{Q}", ack=False), FEED),
    "consume the victim's queue": Attack(_read("consume", "{Q}"), FEED),
    "consume it without acknowledging": Attack(_read("consume", "{Q}", auto_ack=True), FEED),
    "consume it alone": Attack(_read("consume", "{Q}", exclusive=True), FEED),
    "consume it before others": Attack(
        _read("consume", "{Q}", arguments={"x-priority": 100, "x-cancel-on-ha-failover": True}), FEED
    ),
    "consume it as a stream": Attack(_read("consume", "{Q}", arguments={"x-stream-offset": "first"}), FEED),
    "purge the victim's queue": Attack(_do("queue_purge", "{Q}"), FEED),
    "get from the last declared queue": Attack(_last_queue(_read("get", "")), FEED),
    "consume the last declared queue": Attack(_last_queue(_read("consume", "")), FEED),
    "purge the last declared queue": Attack(_last_queue(_do("queue_purge", "")), FEED),
    "get from a queue that is not there": Attack(_read("get", "nothing"), ("read", "queue nothing")),
    "consume an exchange's name": Attack(_read("consume", "{V}"), ("read", "queue {V}")),
    "acknowledge another's delivery": Attack(
        _thief_of_tags("basic_ack"), None, frozenset({PRECONDITION_FAILED}), unasked="delivery tags are a channel's own"
    ),
    "put another's delivery back": Attack(
        _thief_of_tags("basic_nack", requeue=True),
        None,
        frozenset({PRECONDITION_FAILED}),
        unasked="delivery tags are a channel's own",
    ),
    "put its own deliveries back": Attack(_requeue_its_own, None, frozenset({None}), unasked=_OWN_THINGS),
    "cancel another's consumer": Attack(_cancel_others, None, frozenset({None}), unasked="consumer tags are a channel's own"),
    "take a new secret": Attack(
        _new_secret, None, frozenset({None, 530, 541}), unasked="a login by certificate has no secret to renew"
    ),
}

AMQP: dict[str, Attack] = PUBLISHING | BINDING | DECLARING | READING


def on_private_parts(target: Target) -> dict[str, Attack]:
    """The service's own queues and exchanges: read, filled, emptied, bound, deleted."""
    found: dict[str, Attack] = {}
    for queue in target.private_queues:
        found[f"get from {queue}"] = Attack(_read("get", queue, ack=False), ("read", f"queue {queue}"))
        found[f"consume {queue}"] = Attack(_consume_any(queue), ("read", f"queue {queue}"))
        found[f"purge {queue}"] = Attack(_do("queue_purge", queue), ("read", f"queue {queue}"))
        found[f"delete {queue}"] = Attack(_do("queue_delete", queue), ("configure", f"queue {queue}"))
        found[f"bind {queue} to the victim's exchange"] = Attack(_do("queue_bind", queue, "{V}"), ("write", f"queue {queue}"))
        found[f"write past the exchange to {queue}"] = Attack(_publish("", queue), DEFAULT)
    for exchange in target.private_exchanges:
        found[f"write to {exchange}"] = Attack(_publish(exchange, "{Q}"), ("write", f"exchange {exchange}"))
        found[f"bind its own queue to {exchange}"] = Attack(_do("queue_bind", "{O}", exchange, "#"), OWN_BINDING)
        found[f"bind {exchange} behind its own exchange"] = Attack(
            _do("exchange_bind", exchange, "{G}"), ("write", f"exchange {exchange}")
        )
        found[f"delete {exchange}"] = Attack(_do("exchange_delete", exchange), ("configure", f"exchange {exchange}"))
    if target.service is not None:
        exchange, key = target.service
        for header in ("CC", "BCC"):
            # To queues by their names, and to all that a wildcard would match.
            keys = ["{Q}", "{V}", "#", *target.private_queues]
            found[f"{header} where everybody may write"] = Attack(
                _publish(exchange, key, headers={header: keys}), None, _UNROUTED, unasked=_NOT_ASKED_HEADERS
            )
        found["write where everybody may, for the victim's queue"] = Attack(
            _publish(exchange, "{Q}"), ("route", f"{exchange} {{Q}}")
        )
        found["a routing key that a form would divide"] = Attack(
            _publish(exchange, f"{{Q}}&routing_key={key}"), ("route", f"{exchange} {{Q}}&routing_key={key}")
        )
        found["bind its own queue to where everybody may write"] = Attack(_do("queue_bind", "{O}", exchange, "#"), OWN_BINDING)
        found["delete where everybody may write"] = Attack(
            _do("exchange_delete", exchange), ("configure", f"exchange {exchange}")
        )
    return found


def _consume_any(queue: str) -> Act:
    def act(attacker: Attacker, names: dict[str, str]) -> None:
        # Streams want to know how much may be under way.
        attacker.channel.basic_qos(prefetch_count=10)
        attacker.consume(queue, arguments={"x-stream-offset": "first"})

    return act
