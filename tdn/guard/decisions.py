"""What a login may do at the broker. Pure: a name, a resource and the state in, yes or no with the reason out.

Entities configure nothing and bind nothing: they write requests, publish where a grant lets them, and read their own queues, no more. (An
entity that could declare a queue kept a dead-letter path alive, and one that could bind kept a binding alive, after its rights had ended.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.rules import feeds, principals
from tdn.rules.rights import Basis, Rights
from tdn.rules.sight import asker_of
from tdn.rules.state import State
from tdn.trust.grants import PUBLISH, SUBSCRIBE

#: Roles that the operator enrols: their keys must stand in the log or in an enrolment statement at hand.
_ENROLLED = frozenset({Role.NODE, Role.GUARD, Role.OPERATOR})


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    because: str
    #: The topic that it is about, and what the right to it rests on.
    topic: str | None = None
    basis: Basis | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a guard decides from."""

    state: State
    vhost: str
    #: Logins that the operator's statements enrol, until the log speaks of them: how the first node gets in.
    enrolled: Mapping[str, Name]
    #: Whether the view is known to be up to date. While it is not, entities wait outside.
    sure: bool
    #: What counts as now: the guard's own clock, or log time where that is later.
    now: datetime
    #: Whether no node has ticked for a while: entities may then ask each other (T17).
    nodes_silent: bool = False


def may_log_in(know: Knowledge, login: str) -> Decision:
    name = Name.parse(login)
    if name is None:
        return Decision(False, "not a name of this network")
    return _standing(know, name)


def may_enter(know: Knowledge, login: str, vhost: str) -> Decision:
    if vhost != know.vhost:
        return Decision(False, f"vhost {vhost!r} is not the network's")
    return may_log_in(know, login)


def may_use(know: Knowledge, login: str, vhost: str, resource: str, name: str, permission: str) -> Decision:
    """RabbitMQ's question about a resource: `exchange` or `queue`, its name, and configure, write or read."""
    who = Name.parse(login)
    if who is None or vhost != know.vhost:
        return Decision(False, "not a name or a vhost of this network")
    standing = _standing(know, who)
    if not standing.allowed:
        return standing
    if who.role is Role.NODE:
        return Decision(True, "nodes declare, bind, read and write")
    if who.role is Role.GUARD:
        return _guard(who, resource, name, permission)
    if resource == "exchange" and name == names.REQUESTS and permission == "write":
        return Decision(True, "anyone with a certificate may ask")
    if resource == "exchange" and name in names.BETWEEN_ENTITIES and permission == "write" and who.role is Role.ENTITY:
        return Decision(know.nodes_silent, "no node is there" if know.nodes_silent else "entities ask nodes while one is there")
    if resource == "exchange" and names.is_topic(name) and permission == "write" and who.role is Role.ENTITY:
        return _publish(know, who, name)
    if resource == "queue" and permission == "read" and (feed := names.read_feed_queue(name)) is not None:
        return _read_feed(know, who, *feed)
    if resource == "queue" and permission == "read" and names.owns_queue(who, name):
        # Also before its certificate has reached this guard's view: the queue's name was sealed to its key by a node that has it.
        return Decision(True, "its own replies")
    return Decision(False, f"{who.role} may not {permission} {resource} {name[:80]!r}")


def _guard(who: Name, resource: str, name: str, permission: str) -> Decision:
    reads = (resource, name, permission) == ("queue", names.LOG, "read")
    reports = resource == "exchange" and name in (names.GUARDS, names.MAJORITY) and permission == "write"
    # The queue is declared, bound and read; the exchange is read for the binding.
    hears = (resource, name, permission) == ("exchange", names.GUARDS, "read") or (
        resource == "queue" and names.is_guards_queue(who.id, name)
    )
    return Decision(reads or reports or hears, "guards read the log, say how far they are, and hear each other")


def may_manage(resource: str, name: str, permission: str) -> Decision:
    """What this guard does through the management API: end topics' exchanges, and subscriptions' queues and bindings. It reads no message."""
    exchange = resource == "exchange" and names.is_topic(name) and permission in ("configure", "read")
    queue = resource == "queue" and names.read_feed_queue(name) is not None and permission in ("configure", "write")
    return Decision(exchange or queue, "the guard ends what the log has ended")


def may_publish(know: Knowledge, login: str, uuid: str) -> Decision:
    """Whether what a login was allowed before still holds."""
    who = Name.parse(login)
    if who is None or who.role is not Role.ENTITY:
        return Decision(False, "not an entity of this network")
    standing = _standing(know, who)
    return _publish(know, who, uuid) if standing.allowed else standing


def _publish(know: Knowledge, who: Name, uuid: str) -> Decision:
    asker = asker_of(know.state, who.id)
    if asker is None or not principals.is_current_login(know.state, who):
        return Decision(False, f"{who.principal} is not known to the log with this key", uuid)
    if principals.has_expired(know.state, who.principal, know.now):
        return Decision(False, f"the certificate of {who.principal} has expired", uuid)
    basis = Rights(know.state, know.now).basis(asker, PUBLISH, uuid)
    if basis is None:
        return Decision(False, f"no grant lets {who.principal} publish to {uuid}, or the topic has ended", uuid)
    return Decision(True, "its own topic" if not basis.grants else "a grant", uuid, basis)


def _read_feed(know: Knowledge, who: Name, entity: str, subject: str, secret: str) -> Decision:
    if who.role is not Role.ENTITY or who.id != entity or not principals.is_current_login(know.state, who):
        return Decision(False, f"{who.principal} may not read a queue of entity {entity}", subject)
    if principals.has_expired(know.state, who.principal, know.now):
        return Decision(False, f"the certificate of {who.principal} has expired", subject)
    feed = feeds.feed_of(know.state, subject, entity)
    if feed is None or feed.queue != secret:
        return Decision(False, f"{who.principal} has no such subscription to {subject}", subject)
    if not feeds.lasts(know.state, feed, know.now):
        return Decision(False, f"no grant lets {who.principal} subscribe to {subject}, or it has ended", subject)
    asker = asker_of(know.state, entity)
    # What a tree's subscription rests on differs from topic to topic.
    basis = Rights(know.state, know.now).basis(asker, SUBSCRIBE, subject) if asker is not None and feed.single else None
    return Decision(True, "its own subscription", subject, basis)


def may_route(know: Knowledge, login: str, vhost: str, exchange: str, permission: str, routing_key: str) -> Decision:
    """RabbitMQ's question about a routing key on a topic exchange."""
    decision = may_use(know, login, vhost, "exchange", exchange, permission)
    who = Name.parse(login)
    if not decision.allowed or (who is not None and who.role is Role.NODE):
        return decision
    ours = routing_key in (names.TOPICS, names.NODES) or routing_key.startswith((f"{names.TOPICS}.", f"{names.NODES}."))
    return Decision(ours, "a service topic" if ours else f"{routing_key[:80]!r} is not a service topic")


def _standing(know: Knowledge, name: Name) -> Decision:
    if principals.is_ended_login(know.state, name):
        return Decision(False, f"the key of {name.principal} was revoked or superseded")
    if name.role in _ENROLLED:
        if principals.is_current_login(know.state, name) or know.enrolled.get(str(name)) == name:
            return Decision(True, "enrolled by the operator")
        return Decision(False, f"{name.principal} is not enrolled with this key")
    if name.role is not Role.ENTITY:
        return Decision(False, f"a {name.role} does not log in")
    if not know.sure:
        return Decision(False, "the guard has not caught up with the log")
    return Decision(True, "a certificate of this network")
