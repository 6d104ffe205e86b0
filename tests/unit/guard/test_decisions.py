"""What a login may do at the broker: every role, resource and permission, and everybody who should not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from granting import Granting
from little_network import DAY, HOUR, SECOND, LittleNetwork, fresh_uuid
from pki import T0, Pki

from tdn.guard.decisions import Decision, Knowledge, may_enter, may_log_in, may_manage, may_publish, may_route, may_use
from tdn.protocol import names
from tdn.protocol.names import Name, Role
from tdn.rules.rights import Basis
from tdn.rules.state import MemoryState
from tdn.trust.credentials import Credentials

VHOST = "tdn"
SESSION = "ab" * 16
#: A topic of alice's that bob holds a grant for, in a log where there is one; a topic of bob's; and a name like theirs that is no topic's.
UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
OF_BOB = "b2d8a0c4-91f7-4e65-8f3a-0c7d1e92b6f8"
TOPICS = (UUID, OF_BOB, fresh_uuid())
#: The queues of a subscription of bob's to alice's topic and of one of alice's to her own; under each, names that are nearly theirs.
BOBS, ALICES = "b0" * 16, "a1" * 16
FEEDS = tuple(
    f"Feed.{entity}.{uuid}.{secret}"
    for entity in ("alice", "bob")
    for uuid in (UUID, OF_BOB)
    for secret in (ALICES, BOBS, SESSION)
)
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
    names.NOTIFICATIONS,
    names.GUARDS,
    names.HEADS,
    *TOPICS,
    UUID.upper(),
    f"{UUID}\n",
    f" {UUID}",
    f"{UUID}.",
    UUID.replace("-4", "-1"),
    "unheard.of",
    "*",
    "#",
    ".*",
)
QUEUES = (
    names.RESTORING,
    names.heads_queue("n1", "0" * 32),
    names.CHANGES,
    names.DEAD,
    names.LOG,
    names.node_queue("n1", SESSION),
    names.guards_queue("n1", SESSION),
    names.guards_queue("guard", SESSION),
    names.guards_queue("guard", "short"),
    names.guards_queue("guard.x", SESSION),
    *FEEDS,
    *TOPICS,
    f"Feed.alice.{SESSION}",
    f"Feed.alice.{UUID}",
    f"Feed.bob.{UUID}.*",
    f"Feed.bob.{UUID}.{BOBS.upper()}",
    f"Feed.bob.{UUID}.{BOBS}\n",
    f"Feed.*.{UUID}.{BOBS}",
    f"feed.bob.{UUID}.{BOBS}",
    f"Entity.bob.{UUID}.{BOBS}",
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
def log(net: LittleNetwork) -> Granting:
    begun = net.log()
    log = Granting(net, begun.state, begun.records)
    log.put("enrol", net.enrol(net.guard()))
    return log


@pytest.fixture
def know(log: Granting) -> Knowledge:
    return Knowledge(log.state, VHOST, {}, True, T0)


@pytest.fixture
def busy(log: Granting) -> Granting:
    """That log with alice's topic and bob's, a grant to publish and one to subscribe, for bob, and two subscriptions to alice's."""
    log.advertised("alice", uuid=UUID)
    log.advertised("bob", uuid=OF_BOB)
    log.gave("alice", "bob", UUID, "publish", grant_id=PUBLISHES, ends=T0 + HOUR / 2)
    log.gave("alice", "bob", UUID, "subscribe", grant_id=SUBSCRIBES, ends=T0 + HOUR / 2)
    for entity, secret in (("bob", BOBS), ("alice", ALICES)):
        assert log.subscribe(entity, UUID, queue=secret).status == "accepted"
    return log


PUBLISHES, SUBSCRIBES = "publish-by-bob-00000001", "subscribe-by-bob-000001"


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


def test_entities_write_to_each_other_only_while_no_node_is_there(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
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


def test_guard_reads_the_log_and_says_how_far_it_is(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T21: it reads no topic's messages and publishes to none, whatever there is."""
    own = names.guards_queue("guard", SESSION)
    assert allowed(know, login(net.guard("guard"))) == {
        ("queue", names.LOG, "read"),
        ("exchange", names.GUARDS, "write"),
        # It hears the other guards.
        ("exchange", names.GUARDS, "read"),
        *(("queue", own, permission) for permission in PERMISSIONS),
    }


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
    empty = Knowledge(MemoryState(), VHOST, {}, False, T0)
    assert not may_log_in(empty, login(node)).allowed
    enrolled: Mapping[str, Name] = {login(node): node.identity.name}
    assert may_log_in(replace(empty, enrolled=enrolled), login(node)).allowed
    assert not may_log_in(replace(empty, enrolled=enrolled), login(net.node("n2"))).allowed


def test_statement_does_not_outlive_a_revocation(net: LittleNetwork, log: Granting) -> None:
    """T8: the enrolment is still in the folder; the log has ended the key."""
    node = net.node("n2")
    log.put("revoke", net.revoke("node:n2"))
    know = Knowledge(log.state, VHOST, {login(node): node.identity.name}, True, T0)
    assert not may_log_in(know, login(node)).allowed
    assert allowed(know, login(node)) == set()


def test_unsure_guard_keeps_entities_out(net: LittleNetwork, know: Knowledge) -> None:
    """T21: what the guard cannot know, it does not allow; nodes, which bring the log, still come in."""
    unsure = replace(know, sure=False)
    assert not may_log_in(unsure, login(net.entity("alice"))).allowed
    assert allowed(unsure, login(net.entity("alice"))) == set()
    assert may_log_in(unsure, login(net.node("n1"))).allowed
    assert may_log_in(unsure, login(net.guard())).allowed


def test_unsure_guard_ends_what_was_granted(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T21: a guard that may have missed a revocation lets nobody publish or read, not even an owner."""
    for entity in ("alice", "bob"):
        assert allowed(replace(know, sure=False), login(net.entity(entity))) == set()
        assert not may_publish(replace(know, sure=False), login(net.entity(entity)), UUID).allowed


# --- topics and subscriptions ---

#: What each may without a topic. Among the queues above, none is carol's.
REQUESTS = {("exchange", names.REQUESTS, "write")}
ALWAYS = {
    "alice": REQUESTS | {("queue", f"{kind}.alice.{SESSION}", "read") for kind in ("Entity", "Peer")},
    "bob": REQUESTS | {("queue", f"{kind}.bob.{SESSION}", "read") for kind in ("Entity", "Peer")},
    "carol": REQUESTS,
}
PUBLISH = {uuid: ("exchange", uuid, "write") for uuid in TOPICS}
BOB_READS = ("queue", names.feed_queue("bob", UUID, BOBS), "read")
ALICE_READS = ("queue", names.feed_queue("alice", UUID, ALICES), "read")


def test_who_may_publish_and_read(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T20, T21: of all roles, resources and permissions: an owner writes its topic, a grantee what it was granted, each reads the queue of its
    own subscription; nobody else anything, and no entity configures or binds."""
    alice, bob, carol = (login(net.entity(entity)) for entity in ("alice", "bob", "carol"))
    assert allowed(know, alice) == ALWAYS["alice"] | {PUBLISH[UUID], ALICE_READS}
    assert allowed(know, bob) == ALWAYS["bob"] | {PUBLISH[UUID], PUBLISH[OF_BOB], BOB_READS}
    assert allowed(know, carol) == ALWAYS["carol"]
    assert allowed(know, login(net.operator)) == {
        ("exchange", names.REQUESTS, "write"),
        ("queue", f"Operator.operator.{SESSION}", "read"),
    }
    # No node of its own: what a certificate alone says is nothing, here as elsewhere.
    assert allowed(know, login(net.pki.credentials(Role.NODE, "bob"))) == set()
    assert allowed(know, login(net.pki.credentials(Role.BROKER, "bob"))) == set()


def test_a_decision_names_what_it_rests_on(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T21: the topic and the grants, from the owner's down, and when they end at the latest; of a denial the topic, and why."""
    alice, bob, carol = (login(net.entity(entity)) for entity in ("alice", "bob", "carol"))
    assert may_use(know, bob, VHOST, *PUBLISH[UUID]) == Decision(
        True, "a grant", UUID, Basis((PUBLISHES,), "2027-01-01T00:30:00Z")
    )
    assert may_use(know, alice, VHOST, *PUBLISH[UUID]) == Decision(
        True, "its own topic", UUID, Basis((), str(busy.topic(UUID)["expires"]))
    )
    denied = may_use(know, alice, VHOST, *PUBLISH[OF_BOB])
    assert (denied.allowed, denied.topic, denied.basis) == (False, OF_BOB, None)
    assert f"no grant lets entity:alice publish to {OF_BOB}" in denied.because
    assert "carol is not known to the log with this key" in may_use(know, carol, VHOST, *PUBLISH[UUID]).because
    assert may_use(know, bob, VHOST, *BOB_READS) == Decision(
        True, "its own subscription", UUID, Basis((SUBSCRIBES,), "2027-01-01T00:30:00Z")
    )
    assert "may not read a queue of entity bob" in may_use(know, alice, VHOST, *BOB_READS).because


def test_the_end_of_a_grant_ends_one_right(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T21: revoked, each grant takes away what it gave and nothing else; and nobody else's."""
    bob = login(net.entity("bob"))
    before, others = allowed(know, bob), allowed(know, login(net.entity("alice")))
    assert may_publish(know, bob, UUID).allowed
    assert busy.retract("alice", PUBLISHES).status == "accepted"
    assert allowed(know, bob) == before - {PUBLISH[UUID]}
    assert not may_publish(know, bob, UUID).allowed
    assert busy.retract("alice", SUBSCRIBES).status == "accepted"
    assert allowed(know, bob) == before - {PUBLISH[UUID], BOB_READS}
    assert "or it has ended" in may_use(know, bob, VHOST, *BOB_READS).because
    assert allowed(know, login(net.entity("alice"))) == others


def test_a_later_moment_ends_rights_before_the_log_does(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T21: the guard's own clock: grants end at their second, topics and certificates too, though no tick has come."""
    bob = login(net.entity("bob"))
    rights = {PUBLISH[UUID], BOB_READS}
    assert allowed(replace(know, now=T0 + HOUR / 2 - SECOND), bob) >= rights
    later = allowed(replace(know, now=T0 + HOUR / 2), bob)
    assert not later & rights
    # The topics last for an hour.
    assert PUBLISH[OF_BOB] in later
    assert PUBLISH[OF_BOB] not in allowed(replace(know, now=T0 + HOUR), bob)
    assert ALICE_READS not in allowed(replace(know, now=T0 + HOUR), login(net.entity("alice")))


def test_an_expired_certificate_on_an_open_connection(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
    """T8, T21: the broker looked at it when the connection was made; topics, grants and subscriptions may last longer."""
    ends = net.entity("bob").identity.not_after
    uuid = log.advertised("alice", lifetime=3650 * DAY)
    bobs_own = log.advertised("bob", lifetime=3650 * DAY)
    log.gave("alice", "bob", uuid, "publish", ends=T0 + 1000 * DAY)
    log.gave("alice", "bob", uuid, "subscribe", ends=T0 + 1000 * DAY)
    assert log.subscribe("bob", uuid).status == "accepted"
    queue = names.feed_queue("bob", uuid, log.queue("bob", uuid))
    bob = login(net.entity("bob"))
    asked = [*((("exchange", topic, "write")) for topic in (uuid, bobs_own)), ("queue", queue, "read")]
    for question in asked:
        assert may_use(replace(know, now=ends), bob, VHOST, *question).allowed
        decision = may_use(replace(know, now=ends + SECOND), bob, VHOST, *question)
        assert (decision.allowed, decision.because) == (False, "the certificate of entity:bob has expired")
    assert not may_publish(replace(know, now=ends + SECOND), bob, uuid).allowed


def test_not_before_its_time(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
    uuid = log.advertised("alice")
    log.gave("alice", "bob", uuid, "publish", begins=T0 + HOUR / 4, ends=T0 + HOUR / 2)
    bob = login(net.entity("bob"))
    assert not may_publish(replace(know, now=T0 + HOUR / 4 - SECOND), bob, uuid).allowed
    assert may_publish(replace(know, now=T0 + HOUR / 4), bob, uuid).allowed


@pytest.mark.parametrize("ended", ["revoked", "superseded", "issuer revoked", "withdrawn", "transferred", "unsubscribed"])
def test_what_ends_a_right(net: LittleNetwork, busy: Granting, know: Knowledge, ended: str) -> None:
    """T21: of bob's rights on alice's topic: what ends both of them, whoever did it; `unsubscribe` ends the reading alone."""
    bob = login(net.entity("bob"))
    if ended == "revoked":
        busy.put("revoke", net.revoke("entity:bob"))
    elif ended == "superseded":
        busy.put("hello", net.hello(net.entity("bob", 2)))
    elif ended == "issuer revoked":
        busy.put("revoke", net.revoke("entity:alice"))
    elif ended == "withdrawn":
        busy.put("withdraw", net.withdraw(net.entity("alice"), UUID))
    elif ended == "transferred":
        busy.put("hello", net.hello(net.entity("carol")))
        busy.hand_over("alice", UUID, "carol")
    else:
        assert busy.unsubscribe("bob", UUID).status == "accepted"
    publishes, reads = (may_use(know, bob, VHOST, *question).allowed for question in (PUBLISH[UUID], BOB_READS))
    assert (publishes, reads) == (ended == "unsubscribed", False)
    # The key that came after it has them, and its queue is where it was.
    if ended == "superseded":
        assert {PUBLISH[UUID], BOB_READS} <= allowed(know, login(net.entity("bob", 2)))


def test_a_subscription_that_began_anew_has_another_queue(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T21: what waited in the old queue was for a right that ended: nobody reads it, also not the one that it was for."""
    bob = login(net.entity("bob"))
    assert busy.retract("alice", SUBSCRIBES).status == "accepted"
    busy.gave("alice", "bob", UUID, "subscribe")
    assert busy.subscribe("bob", UUID).status == "accepted"
    assert (secret := busy.queue("bob", UUID)) != BOBS
    assert "has no such subscription" in may_use(know, bob, VHOST, *BOB_READS).because
    assert may_use(know, bob, VHOST, "queue", names.feed_queue("bob", UUID, secret), "read").allowed


def test_a_tree_is_read_from_one_queue(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
    """T28: whoever follows a tree reads its own queue while the tree lasts; what gets into it is decided topic by topic."""
    root = log.advertised("alice", hosting={"allow_children": True})
    assert log.subscribe("bob", root, tree=True).status == "accepted"
    queue = names.feed_queue("bob", root, log.queue("bob", root))
    bob, alice = login(net.entity("bob")), login(net.entity("alice"))
    assert may_use(know, bob, VHOST, "queue", queue, "read").allowed
    assert not may_use(know, alice, VHOST, "queue", queue, "read").allowed
    # It gives no right to publish, nor to read a topic's exchange.
    assert not any(may_use(know, bob, VHOST, "exchange", root, permission).allowed for permission in PERMISSIONS)
    log.put("withdraw", net.withdraw(net.entity("alice"), root))
    assert not may_use(know, bob, VHOST, "queue", queue, "read").allowed


def test_a_key_that_the_log_has_not_seen(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """A grant binds to the entity, and to its current key by the log: a certificate that has not said hello uses none of it."""
    later = login(net.entity("bob", 2))
    assert may_log_in(know, later).allowed
    assert not may_publish(know, later, UUID).allowed
    assert not may_use(know, later, VHOST, *PUBLISH[UUID]).allowed
    assert not may_use(know, later, VHOST, *BOB_READS).allowed
    # Nor does anybody whose role is another, with the same id.
    for role in (Role.OPERATOR, Role.GUARD, Role.NODE):
        assert not may_publish(know, login(net.pki.credentials(role, "bob")), UUID).allowed


def test_operators_and_guards_publish_nothing_by_a_grant(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
    """T20: a grant to everyone is to every entity, and to no operator or guard."""
    busy.gave("alice", "*", UUID, "publish")
    # An entity that has the operator's id, or the guard's, has its own rights and lends them to nobody.
    for who in (net.operator, net.guard()):
        name = who.identity.name.id
        busy.put("hello", net.hello(net.entity(name)))
        assert may_use(know, login(net.entity(name)), VHOST, *PUBLISH[UUID]).allowed
        assert not may_use(know, login(who), VHOST, *PUBLISH[UUID]).allowed
    for stranger in ("", "bob", "*", "entity:bob"):
        assert not may_publish(know, stranger, UUID).allowed


def test_the_management_login_ends_and_reads_no_message(busy: Granting) -> None:
    """T21: the guard's own hand at the broker: it deletes topics' exchanges and subscriptions' queues, and unbinds; no more."""
    asked = [
        *product(["exchange"], EXCHANGES, PERMISSIONS),
        *product(["queue"], QUEUES, PERMISSIONS),
        *product(["topic", "", "vhost"], [names.REQUESTS, names.LOG, *TOPICS, *FEEDS], [*PERMISSIONS, "", "admin"]),
    ]
    assert {question for question in asked if may_manage(*question).allowed} == {
        *product(["exchange"], TOPICS, ["configure", "read"]),
        *product(["queue"], FEEDS, ["configure", "write"]),
    }


def test_first_contact(net: LittleNetwork, know: Knowledge) -> None:
    """An entity that the log does not know may say hello; it reads no queue but its own."""
    assert allowed(know, login(net.entity("carol"))) == {("exchange", names.REQUESTS, "write")}


def test_revoked_entity(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
    """T19: from the revocation on, the login is refused in every question."""
    alice = login(net.entity("alice"))
    log.put("revoke", net.revoke("entity:alice"))
    assert not may_log_in(know, alice).allowed
    assert not may_enter(know, alice, VHOST).allowed
    assert allowed(know, alice) == set()
    assert not may_route(know, alice, VHOST, names.REQUESTS, "write", names.TOPICS).allowed


def test_superseded_key(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
    log.put("hello", net.hello(net.entity("alice", 2)))
    assert not may_log_in(know, login(net.entity("alice"))).allowed
    assert allowed(know, login(net.entity("alice"))) == set()
    assert ("queue", f"Entity.alice.{SESSION}", "read") in allowed(know, login(net.entity("alice", 2)))


def test_a_revoked_key_that_was_never_seen(net: LittleNetwork, log: Granting, know: Knowledge) -> None:
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


def test_binding_with_wildcards(net: LittleNetwork, busy: Granting, know: Knowledge) -> None:
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
