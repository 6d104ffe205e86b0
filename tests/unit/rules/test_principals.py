"""Who is who in the log: enrolled, greeted, rotated, revoked."""

from __future__ import annotations

import pytest
from little_network import DAY, HOUR, SECOND, LittleNetwork, Log, fresh_uuid, message_of
from pki import T0, Pki

from tdn.errors import TrustError
from tdn.protocol.names import Role
from tdn.rules import countersignatures, principals
from tdn.rules.apply import RULES_VERSION
from tdn.trust import signing
from tdn.trust.certificates import encode_chain
from tdn.trust.credentials import Credentials


def principal(log: Log, name: str) -> dict[str, object]:
    fact = log.state.get("principal", name)
    assert fact is not None
    return dict(fact)


# --- enrolment ---


def test_node_enrols_itself_with_the_operators_statement(net: LittleNetwork) -> None:
    """The first node has nobody to append for it: the operator's signature is what makes it one."""
    log = Log(net)
    log.put("genesis", net.genesis)
    outcome = log.put("enrol", net.enrol(net.node("n1")))
    assert outcome.status == "accepted"
    assert outcome.receipt is not None
    assert outcome.receipt["principal"] == "operator:operator"
    assert log.put("tick", None).status == "accepted"


def test_newcomer_may_append_nothing_but_its_enrolment(net: LittleNetwork) -> None:
    """A statement in hand is not yet an enrolment: with it as a tail, a newcomer could otherwise move the clock."""
    log = net.log()
    newcomer = net.node("n9")
    statement = net.enrol(newcomer)
    for kind in ("tick", "hello", "advertise"):
        assert log.put(kind, statement, by=newcomer, at=T0 + DAY).status == "void"
    assert log.time == "2027-01-01T00:00:00Z"
    assert log.put("enrol", statement, by=newcomer).status == "accepted"


def test_guard_enrols_through_a_node(net: LittleNetwork) -> None:
    log = net.log()
    guard = net.guard()
    assert log.put("enrol", net.enrol(guard)).status == "accepted"
    assert principals.is_current_login(log.state, guard.identity.name)
    # It is enrolled as a guard; that gives it no voice in the log.
    assert log.put("tick", None, by=guard).status == "void"


def test_guard_cannot_append_its_own_enrolment(net: LittleNetwork) -> None:
    log = net.log()
    guard = net.guard("g2")
    assert log.put("enrol", net.enrol(guard), by=guard).status == "void"


def test_enrolment_by_a_stranger_is_refused(net: LittleNetwork) -> None:
    """T8: a node is one because the operator enrolled its key, not because a CA wrote so."""
    log = net.log()
    newcomer = net.node("n9")
    outcome = log.put("enrol", net.enrol(newcomer, signer=net.entity("alice")))
    assert (outcome.status, message_of(outcome)) == ("refused", "only the operator can do this")
    outcome = log.put("enrol", net.enrol(newcomer, signer=net.node("n2")))
    assert (outcome.status, message_of(outcome)) == ("refused", "only the operator can do this")
    assert log.put("enrol", net.enrol(newcomer, signer=newcomer), by=newcomer).status == "void"
    assert log.put("tick", None, by=newcomer).status == "void"


def test_enrolment_of_another_does_not_let_the_appender_in(net: LittleNetwork) -> None:
    log = net.log()
    assert log.put("enrol", net.enrol(net.node("n8")), by=net.node("n9")).status == "void"


def test_entity_cannot_be_enrolled_as_a_node(net: LittleNetwork) -> None:
    """T8: the role stands in the certificate; even the operator cannot enrol an entity."""
    log = net.log()
    outcome = log.put("enrol", net.enrol(net.entity("carol")))
    assert outcome.status == "refused"
    assert "cannot be enrolled this way" in message_of(outcome)


def test_enrolment_of_a_foreign_certificate(net: LittleNetwork) -> None:
    log = net.log()
    stranger = Pki("strangers").credentials(Role.NODE, "n9")
    outcome = log.put("enrol", net.enrol(stranger))
    assert outcome.status == "refused"
    assert "does not lead to a trusted root" in message_of(outcome)


def test_enrolment_for_another_network(net: LittleNetwork) -> None:
    log = net.log()
    outcome = log.put("enrol", net.enrol(net.node("n9"), audience=f"tdn:network:{'1' * 64}"))
    assert (outcome.status, message_of(outcome)) == ("void", "the request is addressed to somebody else")


def test_node_rotates(net: LittleNetwork) -> None:
    """A later certificate supersedes: the old key's records are void from there on."""
    log = net.log()
    later = net.node("n1", 2)
    outcome = log.put("enrol", net.enrol(later), by=later)
    assert outcome.status == "accepted"
    assert outcome.cut == (str(net.node("n1").identity.name),)
    assert log.put("tick", None, by=later).status == "accepted"
    void = log.put("tick", None, by=net.node("n1"))
    assert void.status == "void"
    assert "superseded" in message_of(void)


# --- first contact ---


def test_hello_brings_the_certificate(net: LittleNetwork) -> None:
    log = net.log(())
    carol = net.entity("carol")
    outcome = log.put("hello", net.hello(carol))
    assert outcome.status == "accepted"
    assert principal(log, "entity:carol")["thumbprint"] == carol.identity.thumbprint
    assert principals.is_current_login(log.state, carol.identity.name)


def test_hello_again_changes_nothing(net: LittleNetwork) -> None:
    log = net.log()
    before = principal(log, "entity:alice")
    assert log.put("hello", net.hello(net.entity("alice"))).status == "accepted"
    assert principal(log, "entity:alice") == before


def test_hello_of_a_stranger(net: LittleNetwork) -> None:
    """T19: a certificate of another PKI does not get in."""
    log = net.log()
    stranger = Pki("strangers").credentials(Role.ENTITY, "mallory")
    outcome = log.put("hello", net.hello(stranger))
    assert outcome.status == "void"
    assert "does not lead to a trusted root" in message_of(outcome)
    assert log.state.get("principal", "entity:mallory") is None


def test_hello_is_for_entities(net: LittleNetwork) -> None:
    """T8: a node's certificate that the operator did not enrol cannot greet its way in."""
    log = net.log()
    outcome = log.put("hello", net.hello(net.node("n9")))
    assert outcome.status == "refused"
    assert "cannot be enrolled this way" in message_of(outcome)
    assert log.state.get("principal", "node:n9") is None


def test_hello_rotates(net: LittleNetwork) -> None:
    log = net.log()
    old, new = net.entity("alice"), net.entity("alice", 2)
    outcome = log.put("hello", net.hello(new))
    assert outcome.status == "accepted"
    assert outcome.cut == (str(old.identity.name),)
    assert principals.is_ended_login(log.state, old.identity.name)
    assert principals.is_current_login(log.state, new.identity.name)


def test_older_certificate_does_not_come_back(net: LittleNetwork) -> None:
    """T19: whoever stole a superseded key cannot make it current again."""
    log = net.log()
    log.put("hello", net.hello(net.entity("alice", 2)))
    outcome = log.put("hello", net.hello(net.entity("alice")))
    assert outcome.status == "refused"
    assert "not later than its current one" in message_of(outcome)
    void = log.put("withdraw", net.withdraw(net.entity("alice"), "00000000-0000-4000-8000-000000000000"))
    assert void.status == "void"
    assert "superseded" in message_of(void)


def test_same_key_in_a_later_certificate(net: LittleNetwork) -> None:
    """Renewing a certificate without a new key ends no login."""
    log = net.log()
    again = net.pki.credentials(Role.ENTITY, "alice", not_before=T0 - HOUR)
    outcome = log.put("hello", net.hello(again))
    assert (outcome.status, outcome.cut) == ("accepted", ())
    assert principals.is_current_login(log.state, again.identity.name)
    assert not principals.is_ended_login(log.state, again.identity.name)


def test_a_former_key_certified_again_is_current(net: LittleNetwork) -> None:
    """A user's own PKI may certify an earlier key anew; log and guard must agree on what that means."""
    log = net.log()
    log.put("hello", net.hello(net.entity("alice", 2)))
    again = net.pki.credentials(Role.ENTITY, "alice", not_before=T0 - HOUR)
    assert log.put("hello", net.hello(again)).status == "accepted"
    assert principals.is_current_login(log.state, again.identity.name)
    assert not principals.is_ended_login(log.state, again.identity.name)
    assert principals.is_ended_login(log.state, net.entity("alice", 2).identity.name)


def test_institution_is_the_certificates(net: LittleNetwork) -> None:
    """T1: what the log notes of an institution was read from the certificate."""
    log = net.log()
    log.put("hello", net.hello(net.pki.credentials(Role.ENTITY, "dora", institution="ETH Zürich")))
    assert principal(log, "entity:dora")["institution"] == "ETH Zürich"


# --- revocation ---


def test_revoked_entity_is_out(net: LittleNetwork) -> None:
    """T19: from the revocation on, nothing it signs counts, and its login ends."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice)
    outcome = log.put("revoke", net.revoke("entity:alice"))
    assert outcome.status == "accepted"
    assert outcome.cut == (str(alice.identity.name),)
    for kind, request in (
        ("advertise", net.advertise(alice, token)),
        ("hello", net.hello(alice)),
    ):
        refused = log.put(kind, request)
        assert refused.status in ("void", "refused")
        assert "was revoked" in message_of(refused)
    assert principals.is_ended_login(log.state, alice.identity.name)
    assert not principals.is_current_login(log.state, alice.identity.name)


def test_revocation_leaves_others_alone(net: LittleNetwork) -> None:
    log = net.log()
    log.put("revoke", net.revoke("entity:alice"))
    uuid = log.advertised("bob")
    assert log.topic(uuid)["state"] == "live"


def test_revoked_node_cannot_append(net: LittleNetwork) -> None:
    """T8: a revoked node's records are void, its enrolment statement included."""
    log = net.log()
    statement = net.enrol(net.node("n1"))
    log.put("revoke", net.revoke("node:n1"), by="n2")
    for kind, request in (("tick", None), ("hello", net.hello(net.entity("carol"))), ("enrol", statement)):
        assert log.put(kind, request).status == "void"
    refused = log.put("enrol", statement, by="n2")
    assert refused.status == "refused"
    assert "was revoked" in message_of(refused)


def test_revoked_principal_returns_with_a_later_certificate(net: LittleNetwork) -> None:
    log = net.log()
    log.put("revoke", net.revoke("entity:alice", until=T0 - 2 * HOUR))
    assert (
        log.put("hello", net.hello(net.pki.credentials(Role.ENTITY, "alice", generation=5, not_before=T0))).status == "accepted"
    )
    assert log.put("hello", net.hello(net.entity("alice", 2))).status == "refused"


def test_revoked_key_does_not_return_in_a_later_certificate(net: LittleNetwork) -> None:
    """A key was revoked, not a piece of paper: certifying it again does not help."""
    log = net.log()
    log.put("revoke", net.revoke("entity:alice", until=T0 - 2 * HOUR))
    again = net.pki.credentials(Role.ENTITY, "alice", not_before=T0)
    outcome = log.put("hello", net.hello(again))
    assert outcome.status == "refused"
    assert "was revoked" in message_of(outcome)


def test_revocation_before_first_contact(net: LittleNetwork) -> None:
    """Keys that the log has never seen are refused when they come."""
    log = net.log()
    carol = net.entity("carol")
    log.put("revoke", net.revoke("entity:carol", keys=(carol.identity.name.key_hash,)))
    assert log.put("hello", net.hello(carol)).status == "refused"
    assert principals.is_ended_login(log.state, carol.identity.name)
    assert principal(log, "entity:carol")["thumbprint"] == ""


def test_revocation_of_earlier_certificates_keeps_the_later_one(net: LittleNetwork) -> None:
    log = net.log()
    old, new = net.entity("alice"), net.entity("alice", 2)
    log.put("hello", net.hello(new))
    outcome = log.put("revoke", net.revoke("entity:alice", until=old.identity.issued, keys=(old.identity.name.key_hash,)))
    assert outcome.status == "accepted"
    assert principals.is_current_login(log.state, new.identity.name)
    assert principals.is_ended_login(log.state, old.identity.name)


def test_revocations_add_up(net: LittleNetwork) -> None:
    log = net.log()
    log.put("revoke", net.revoke("entity:alice", until=T0, keys=("a" * 64,)))
    log.put("revoke", net.revoke("entity:alice", until=T0 - 3 * DAY, keys=("b" * 64,)))
    fact = principal(log, "entity:alice")
    assert fact["issued_until"] == "2027-01-01T00:00:00Z"
    assert fact["revoked"] == sorted(["a" * 64, "b" * 64, net.entity("alice").identity.name.key_hash])


@pytest.mark.parametrize("signer", ["alice", "n2"])
def test_only_the_operator_revokes(net: LittleNetwork, signer: str) -> None:
    log = net.log()
    who: Credentials = net.entity(signer) if signer == "alice" else net.node(signer)
    outcome = log.put("revoke", net.revoke("entity:bob", signer=who))
    assert (outcome.status, message_of(outcome)) == ("refused", "only the operator can do this")
    assert principal(log, "entity:bob")["revoked"] == []


def test_the_operator_is_not_locked_out(net: LittleNetwork) -> None:
    log = net.log()
    outcome = log.put("revoke", net.revoke("operator:operator", until=T0 + DAY))
    assert outcome.status == "refused"
    assert log.put("rules", net.request("rules", {"rules": RULES_VERSION}, net.operator)).status == "accepted"


# --- who may append ---


def test_expired_node_cannot_append(net: LittleNetwork) -> None:
    """T8: an expired certificate signs nothing, records included, although an open connection outlives it."""
    log = net.log()
    short = net.pki.credentials(Role.NODE, "short", not_after=T0 + HOUR)
    assert log.put("enrol", net.enrol(short), by=short).status == "accepted"
    assert log.put("tick", None, by=short, at=T0 + HOUR).status == "accepted"
    outcome = log.put("tick", None, by=short, at=T0 + HOUR + SECOND)
    assert outcome.status == "void"
    assert "expired" in message_of(outcome)


def test_request_signed_after_its_certificate(net: LittleNetwork) -> None:
    log = net.log()
    brief = net.pki.credentials(Role.ENTITY, "brief", not_after=T0 + HOUR)
    assert log.put("hello", net.hello(brief)).status == "accepted"
    token = net.mint(brief)
    outcome = log.put("advertise", net.advertise(brief, token, at=T0 + 2 * HOUR), at=T0 + 2 * HOUR)
    assert outcome.status == "void"
    assert "expired" in message_of(outcome)


def test_record_names_its_node(net: LittleNetwork) -> None:
    """A node cannot speak in another's name."""
    from tdn.trust import signing

    log = net.log()
    n2 = net.node("n2")
    forged = signing.sign(
        "record",
        {"v": 1, "kind": "tick", "node": "n1", "at": "2027-01-01T00:00:00Z"},
        n2.key,
        chain=n2.identity.chain,
    )
    outcome = log.append(forged)
    assert (outcome.status, message_of(outcome)) == ("void", "the record was not appended by the node that it names")


# --- certificates of one key -------------------------------------------------------------------------------------------------------------


def renewed(net: LittleNetwork, role: Role, name: str, institution: str = "local") -> Credentials:
    """A later certificate for a principal's first key."""
    return net.pki.credentials(role, name, not_before=T0 - HOUR, institution=institution)


def test_both_certificates_of_a_key_serve(net: LittleNetwork) -> None:
    """T19: who has not taken up the later certificate of the same key goes on, with what it signs and with a hello."""
    log = net.log()
    old, new = net.entity("alice"), renewed(net, Role.ENTITY, "alice")
    assert log.put("hello", net.hello(new)).status == "accepted"
    uuid = log.advertised("alice")
    assert log.topic(uuid)["owner"] == "alice"
    assert log.put("withdraw", net.withdraw(new, uuid)).status == "accepted"
    before = principal(log, "entity:alice")
    greeted = log.put("hello", net.hello(old))
    assert (greeted.status, greeted.cut) == ("accepted", ())
    assert principal(log, "entity:alice") == before, "the later one stays the current one"
    assert principals.current(log.state, "entity:alice").thumbprint == new.identity.thumbprint


def test_an_earlier_certificate_of_the_key_that_comes_second(net: LittleNetwork) -> None:
    log = net.log(())
    old, new = net.entity("alice"), renewed(net, Role.ENTITY, "alice")
    log.put("hello", net.hello(new))
    with pytest.raises(TrustError, match="not in the log yet"):
        principals.require_current(log.state, old.identity)
    before = principal(log, "entity:alice")
    assert log.put("hello", net.hello(old)).status == "accepted"
    principals.require_current(log.state, old.identity)
    assert principal(log, "entity:alice") == before
    assert log.put("advertise", net.advertise(old, net.mint(old))).status == "accepted"


def test_a_later_certificate_of_the_key_is_news(net: LittleNetwork) -> None:
    """The node that is greeted must put it into the log, or nobody could verify what it signs."""
    log = net.log()
    new = renewed(net, Role.ENTITY, "alice")
    with pytest.raises(TrustError, match="not in the log yet"):
        principals.require_current(log.state, new.identity)
    log.put("hello", net.hello(new))
    principals.require_current(log.state, new.identity)


def test_the_latest_certificates_institution_counts(net: LittleNetwork) -> None:
    """T1, T19: an entity that moved elsewhere does not act for its former institution with its former certificate."""
    log = net.log()
    old = net.entity("alice")
    log.put("hello", net.hello(renewed(net, Role.ENTITY, "alice", institution="Elsewhere")))
    log.put("hello", net.hello(old))
    header = signing.split(net.withdraw(old, fresh_uuid())).header
    known = principals.known(log.state, header)
    assert (known.institution, known.thumbprint) == ("Elsewhere", old.identity.thumbprint)


def test_a_node_goes_on_with_the_earlier_certificate_of_its_key(net: LittleNetwork) -> None:
    """Whoever starts first logs all enrolments at hand. A node that still runs with the certificate before must not end by it."""
    log = net.log()
    new = renewed(net, Role.NODE, "n1")
    outcome = log.put("enrol", net.enrol(new), by="n2")
    assert (outcome.status, outcome.cut) == ("accepted", ())
    assert log.put("tick", None, by="n1").status == "accepted"
    assert log.put("tick", None, by=new).status == "accepted"


def test_an_owners_word_outlives_its_certificate_and_not_its_key(net: LittleNetwork) -> None:
    """T27: what an owner countersigned holds after a new certificate for the same key, and not after a new key."""
    log = net.log()
    uuid = log.advertised("alice")
    word = net.countersign(net.entity("alice"), "register", uuid, "bob")

    def holds() -> bool:
        return countersignatures.holds(log.state, word, "register", uuid, log.topic(uuid), entity="bob", now=T0)

    assert holds()
    log.put("hello", net.hello(renewed(net, Role.ENTITY, "alice")))
    assert holds()
    log.put("hello", net.hello(net.pki.credentials(Role.ENTITY, "alice", generation=2, not_before=T0 - SECOND)))
    assert not holds()


def test_all_certificates_of_a_key_end_together(net: LittleNetwork) -> None:
    """T19: by another key, or by a revocation."""
    for end in ("hello", "revoke"):
        log = net.log()
        old, new = net.entity("alice"), renewed(net, Role.ENTITY, "alice")
        log.put("hello", net.hello(new))
        later = net.pki.credentials(Role.ENTITY, "alice", generation=2, not_before=T0 - SECOND)
        log.put(end, net.hello(later) if end == "hello" else net.revoke("entity:alice"))
        for who in (old, new):
            assert log.put("hello", net.hello(who)).status == "refused"
            assert log.put("withdraw", net.withdraw(who, fresh_uuid())).status == "void"
            assert principals.is_ended_login(log.state, who.identity.name)


def test_an_earlier_certificate_counts_as_long_as_it_says(net: LittleNetwork) -> None:
    log = net.log(())
    brief = net.pki.credentials(Role.ENTITY, "brief", not_after=T0 + HOUR)
    log.put("hello", net.hello(brief))
    log.put("hello", net.hello(renewed(net, Role.ENTITY, "brief")))
    outcome = log.put("withdraw", net.withdraw(brief, fresh_uuid(), at=T0 + 2 * HOUR), at=T0 + 2 * HOUR)
    assert (outcome.status, "expired" in message_of(outcome)) == ("void", True)


# --- intermediates ---------------------------------------------------------------------------------------------------------------------


def test_certificates_of_another_intermediate(net: LittleNetwork) -> None:
    """T8: nodes and entities with certificates of a later intermediate take their places; what the former ones signed stays good."""
    log = net.log()
    uuid = log.advertised("alice")
    unsent = net.mint(net.entity("alice"))
    nodes = net.pki.authority("nodes of later", mark="tdn:ca:nodes")
    entities = net.pki.authority("entities of later", mark="tdn:ca:entities")
    n1 = net.pki.credentials(Role.NODE, "n1", issuer=nodes, generation=2, not_before=T0 - HOUR)
    alice = net.pki.credentials(Role.ENTITY, "alice", issuer=entities, not_before=T0 - HOUR)
    assert log.put("enrol", net.enrol(n1), by=n1).status == "accepted"
    assert log.put("hello", net.hello(alice), by=n1).status == "accepted"
    assert log.put("advertise", net.advertise(alice, unsent), by=n1).status == "accepted", "minted by the certificate before"
    assert log.put("withdraw", net.withdraw(alice, uuid), by=n1).status == "accepted"


def test_an_intermediate_keeps_to_its_roles(net: LittleNetwork) -> None:
    """T8: the mark of a later intermediate binds it as the first one's does."""
    log = net.log()
    entities = net.pki.authority("entities of later", mark="tdn:ca:entities")
    leaf = net.pki.leaf(Role.NODE, "n9", issuer=entities)
    body = {"chain": encode_chain(leaf.chain)}
    outcome = log.put("enrol", net.request("enrol", body, net.operator))
    assert outcome.status == "refused"
    assert "authority for other roles" in message_of(outcome)
