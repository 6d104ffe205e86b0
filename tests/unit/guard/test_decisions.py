"""What a login may do at the broker: every role, resource and permission, and everybody who should not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from little_network import LittleNetwork, Log
from pki import T0, Pki

from tdn.guard.decisions import Decision, Knowledge, may_enter, may_log_in, may_route, may_use
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.rules.state import MemoryState
from tdn.trust.credentials import Credentials

VHOST = "tdn"
SESSION = "ab" * 16
PERMISSIONS = ("configure", "write", "read")
EXCHANGES = (
    "",
    "amq.default",
    "amq.topic",
    "amq.fanout",
    names.REQUESTS,
    names.BROADCAST,
    names.REPLIES,
    names.PEERS,
    names.PEER_REPLIES,
    "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11",
    "unheard.of",
    "*",
    "#",
    ".*",
)
QUEUES = (
    names.CHANGES,
    names.DEAD,
    names.LOG,
    names.node_queue("n1"),
    f"Entity.alice.{SESSION}",
    f"Entity.bob.{SESSION}",
    f"Operator.operator.{SESSION}",
    f"Guard.guard.{SESSION}",
    f"Peer.alice.{SESSION}",
    f"Peer.bob.{SESSION}",
    f"Peer.operator.{SESSION}",
    f"Peer.guard.{SESSION}",
    "Peer.alice",
    "Peer.alice.*",
    f"peer.alice.{SESSION}",
    f"Peer.alice.{SESSION.upper()}",
    f"Peer.alice.bob.{SESSION}",
    "Entity.alice",
    "Entity.alice.*",
    "Entity.alice.#",
    "amq.gen-alice",
    "",
)


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    log = net.log()
    log.put("enrol", net.enrol(net.guard()))
    return log


@pytest.fixture
def know(log: Log) -> Knowledge:
    return Knowledge(log.state, VHOST, {}, True)


def login(who: Credentials) -> str:
    return str(who.identity.name)


def allowed(know: Knowledge, who: str, vhost: str = VHOST) -> set[tuple[str, str, str]]:
    """All that a login may do with the resources above."""
    asked = [
        *product(["exchange"], EXCHANGES, PERMISSIONS),
        *product(["queue"], QUEUES, PERMISSIONS),
        *product(["topic", "", "vhost"], [names.REQUESTS, names.LOG], [*PERMISSIONS, "", "admin"]),
    ]
    return {question for question in asked if may_use(know, who, vhost, *question).allowed}


def test_entity_writes_requests_and_reads_its_own_replies(net: LittleNetwork, know: Knowledge) -> None:
    """T21: nothing else: it configures nothing, binds nothing, and reads nobody else's replies."""
    assert allowed(know, login(net.entity("alice"))) == {
        ("exchange", names.REQUESTS, "write"),
        ("queue", f"Entity.alice.{SESSION}", "read"),
        ("queue", f"Peer.alice.{SESSION}", "read"),
    }
    assert allowed(know, login(net.entity("bob"))) == {
        ("exchange", names.REQUESTS, "write"),
        ("queue", f"Entity.bob.{SESSION}", "read"),
        ("queue", f"Peer.bob.{SESSION}", "read"),
    }


def test_entities_write_to_each_other_only_while_no_node_is_there(net: LittleNetwork, log: Log, know: Knowledge) -> None:
    """T17: two exchanges open for entities while nodes are silent, to write alone; nothing else changes, and for nobody else."""
    silent = replace(know, nodes_silent=True)
    between = {("exchange", names.PEERS, "write"), ("exchange", names.PEER_REPLIES, "write")}
    for entity in ("alice", "bob", "carol"):
        who = login(net.entity(entity))
        assert allowed(silent, who) == allowed(know, who) | between
        assert not allowed(know, who) & between
    for other in (net.operator, net.guard()):
        assert allowed(silent, login(other)) == allowed(know, login(other))
        assert not allowed(silent, login(other)) & between
    assert (
        "entities ask nodes while one is there"
        in may_use(know, login(net.entity("alice")), VHOST, "exchange", names.PEERS, "write").because
    )
    # Silence of the nodes opens nothing to those who are no longer, or not yet, anybody.
    assert allowed(replace(silent, sure=False), login(net.entity("alice"))) == set()
    assert not may_use(silent, login(net.entity("alice")), "other", "exchange", names.PEERS, "write").allowed
    log.put("revoke", net.revoke("entity:alice"))
    assert allowed(silent, login(net.entity("alice"))) == set()


def test_a_peer_queue_is_read_by_its_entity_alone(net: LittleNetwork, know: Knowledge) -> None:
    """T17: also an operator or guard of the same id reads it not; nor does anybody declare or write it but a node."""
    queue = f"Peer.alice.{SESSION}"
    assert may_use(know, login(net.entity("alice")), VHOST, "queue", queue, "read").allowed
    for permission in ("write", "configure"):
        assert not may_use(know, login(net.entity("alice")), VHOST, "queue", queue, permission).allowed
    assert not may_use(know, login(net.entity("bob")), VHOST, "queue", queue, "read").allowed
    assert not may_use(know, login(net.operator), VHOST, "queue", f"Peer.operator.{SESSION}", "read").allowed


def test_operator_is_no_more_than_an_entity(net: LittleNetwork, know: Knowledge) -> None:
    assert allowed(know, login(net.operator)) == {
        ("exchange", names.REQUESTS, "write"),
        ("queue", f"Operator.operator.{SESSION}", "read"),
    }


def test_guard_reads_the_log(net: LittleNetwork, know: Knowledge) -> None:
    assert allowed(know, login(net.guard())) == {("queue", names.LOG, "read")}


def test_node_does_everything(net: LittleNetwork, know: Knowledge) -> None:
    everything = {*product(["exchange"], EXCHANGES, PERMISSIONS), *product(["queue"], QUEUES, PERMISSIONS)}
    assert everything <= allowed(know, login(net.node("n1")))


@pytest.mark.parametrize("role", ["alice", "operator", "guard", "n1"])
def test_other_vhosts(net: LittleNetwork, know: Knowledge, role: str) -> None:
    """A name of this network has no rights anywhere else."""
    who = {"alice": net.entity("alice"), "operator": net.operator, "guard": net.guard(), "n1": net.node("n1")}[role]
    assert may_log_in(know, login(who)).allowed
    assert may_enter(know, login(who), VHOST).allowed
    for vhost in ("/", "", "tdn2", "TDN", "*"):
        assert not may_enter(know, login(who), vhost).allowed
        assert allowed(know, login(who), vhost) == set()


@pytest.mark.parametrize(
    "stranger",
    ["", "guest", "alice", "tdn-management", "entity:alice", "tdn:entity:alice", f"tdn:admin:alice:{'0' * 64}", "*"],
)
def test_foreign_logins(know: Knowledge, stranger: str) -> None:
    assert not may_log_in(know, stranger).allowed
    assert not may_enter(know, stranger, VHOST).allowed
    assert allowed(know, stranger) == set()
    assert not may_route(know, stranger, VHOST, names.REQUESTS, "write", names.TOPICS).allowed


@pytest.mark.parametrize("role", [Role.NODE, Role.GUARD, Role.OPERATOR])
def test_a_certificate_alone_makes_no_node(net: LittleNetwork, know: Knowledge, role: Role) -> None:
    """T8: a certificate that says node, guard or operator is nothing without the operator's enrolment of that key."""
    who = login(net.pki.credentials(role, "n9"))
    assert not may_log_in(know, who).allowed
    assert allowed(know, who) == set()
    # Nor does another key in the name of one that is enrolled.
    enrolled = {Role.NODE: "n1", Role.GUARD: "guard", Role.OPERATOR: "operator"}[role]
    assert not may_log_in(know, str(Name(role, enrolled, "0" * 64))).allowed


def test_broker_does_not_log_in(net: LittleNetwork, know: Knowledge) -> None:
    assert not may_log_in(know, login(net.pki.credentials(Role.BROKER, "broker"))).allowed


def test_statement_at_hand_lets_the_first_node_in(net: LittleNetwork) -> None:
    """Before the log speaks of anybody, the operator's signed statements do; the state alone would lock everybody out."""
    node = net.node("n1")
    empty = Knowledge(MemoryState(), VHOST, {}, False)
    assert not may_log_in(empty, login(node)).allowed
    enrolled: Mapping[str, Name] = {login(node): node.identity.name}
    assert may_log_in(replace(empty, enrolled=enrolled), login(node)).allowed
    assert not may_log_in(replace(empty, enrolled=enrolled), login(net.node("n2"))).allowed


def test_statement_does_not_outlive_a_revocation(net: LittleNetwork, log: Log) -> None:
    """T8: the enrolment is still in the folder; the log has ended the key."""
    node = net.node("n2")
    log.put("revoke", net.revoke("node:n2"))
    know = Knowledge(log.state, VHOST, {login(node): node.identity.name}, True)
    assert not may_log_in(know, login(node)).allowed
    assert allowed(know, login(node)) == set()


def test_unsure_guard_keeps_entities_out(net: LittleNetwork, know: Knowledge) -> None:
    """T21: what the guard cannot know, it does not allow; nodes, which bring the log, still come in."""
    unsure = replace(know, sure=False)
    assert not may_log_in(unsure, login(net.entity("alice"))).allowed
    assert allowed(unsure, login(net.entity("alice"))) == set()
    assert may_log_in(unsure, login(net.node("n1"))).allowed
    assert may_log_in(unsure, login(net.guard())).allowed


def test_first_contact(net: LittleNetwork, know: Knowledge) -> None:
    """An entity that the log does not know may say hello; it reads no queue but its own."""
    assert allowed(know, login(net.entity("carol"))) == {("exchange", names.REQUESTS, "write")}


def test_revoked_entity(net: LittleNetwork, log: Log, know: Knowledge) -> None:
    """T19: from the revocation on, the login is refused in every question."""
    alice = login(net.entity("alice"))
    log.put("revoke", net.revoke("entity:alice"))
    assert not may_log_in(know, alice).allowed
    assert not may_enter(know, alice, VHOST).allowed
    assert allowed(know, alice) == set()
    assert not may_route(know, alice, VHOST, names.REQUESTS, "write", names.TOPICS).allowed


def test_superseded_key(net: LittleNetwork, log: Log, know: Knowledge) -> None:
    log.put("hello", net.hello(net.entity("alice", 2)))
    assert not may_log_in(know, login(net.entity("alice"))).allowed
    assert allowed(know, login(net.entity("alice"))) == set()
    assert ("queue", f"Entity.alice.{SESSION}", "read") in allowed(know, login(net.entity("alice", 2)))


def test_a_revoked_key_that_was_never_seen(net: LittleNetwork, log: Log, know: Knowledge) -> None:
    carol = net.entity("carol")
    assert may_log_in(know, login(carol)).allowed
    log.put("revoke", net.revoke("entity:carol", until=T0, keys=(carol.identity.name.key_hash,)))
    assert not may_log_in(know, login(carol)).allowed


@pytest.mark.parametrize(
    ("routing_key", "good"),
    [
        (names.TOPICS, True),
        (names.NODES, True),
        (names.topics_key("n1"), True),
        (names.nodes_key("n1"), True),
        ("#", False),
        ("*", False),
        ("", False),
        ("Services.#", False),
        ("Services.Discovery.*", False),
        ("Services.Discovery.TopicsX", False),
        (f"Entity.bob.{SESSION}", False),
        (names.CHANGES, False),
    ],
)
def test_routing_keys(net: LittleNetwork, know: Knowledge, routing_key: str, good: bool) -> None:
    """Entities write to service topics and to nothing else."""
    alice = login(net.entity("alice"))
    assert may_route(know, alice, VHOST, names.REQUESTS, "write", routing_key).allowed is good
    assert may_route(know, login(net.node("n1")), VHOST, names.REQUESTS, "write", routing_key).allowed


def test_binding_with_wildcards(net: LittleNetwork, know: Knowledge) -> None:
    """T21: to bind is to write a queue and read an exchange: an entity has neither, whatever the key."""
    alice = login(net.entity("alice"))
    for exchange, key in product(EXCHANGES, ("#", "*", names.TOPICS, f"Entity.alice.{SESSION}")):
        for permission in ("read", "configure"):
            assert not may_route(know, alice, VHOST, exchange, permission, key).allowed
    for queue in QUEUES:
        assert not may_use(know, alice, VHOST, "queue", queue, "write").allowed
        assert not may_use(know, alice, VHOST, "queue", queue, "configure").allowed


def test_every_decision_gives_its_reason(net: LittleNetwork, know: Knowledge) -> None:
    decision = may_use(know, login(net.entity("alice")), VHOST, "exchange", "x" * 500, "configure")
    assert decision == Decision(False, f"entity may not configure exchange {'x' * 80!r}")


def test_same_id_from_another_pki(net: LittleNetwork, know: Knowledge) -> None:
    """The broker's TLS keeps strangers out; should one get there, its key is not the one that the log knows, so it reads nothing by
    name that it was not told. It cannot be told from a rotated key that is on its way into the log.
    """
    stranger = Pki("strangers").credentials(Role.NODE, "n1")
    assert not may_log_in(know, login(stranger)).allowed
