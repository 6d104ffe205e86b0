"""What a login may do at the broker. Pure: a name, a resource and the state in, yes or no with the reason out.

Entities configure nothing and bind nothing: they write requests and read their own reply queues, no more. (An entity that could declare
a queue kept a dead-letter path alive, and one that could bind kept a binding alive, after its rights had ended.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.rules import principals
from tdn.rules.state import State

#: Roles that the operator enrols: their keys must stand in the log or in an enrolment statement at hand.
_ENROLLED = frozenset({Role.NODE, Role.GUARD, Role.OPERATOR})


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    because: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a guard decides from."""

    state: State
    vhost: str
    #: Logins that the operator's statements enrol, until the log speaks of them: how the first node gets in.
    enrolled: Mapping[str, Name]
    #: Whether the view is known to be up to date. While it is not, entities wait outside.
    sure: bool
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
        return Decision(resource == "queue" and name == names.LOG and permission == "read", "guards read the log")
    if resource == "exchange" and name == names.REQUESTS and permission == "write":
        return Decision(True, "anyone with a certificate may ask")
    if resource == "exchange" and name in names.BETWEEN_ENTITIES and permission == "write" and who.role is Role.ENTITY:
        return Decision(know.nodes_silent, "no node is there" if know.nodes_silent else "entities ask nodes while one is there")
    if resource == "queue" and permission == "read" and names.owns_queue(who, name):
        # Also before its certificate has reached this guard's view: the queue's name was sealed to its key by a node that has it.
        return Decision(True, "its own replies")
    return Decision(False, f"{who.role} may not {permission} {resource} {name[:80]!r}")


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
