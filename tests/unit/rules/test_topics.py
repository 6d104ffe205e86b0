"""Topics in the log: advertised by their creator, renewed and withdrawn by their owner, ended for ever."""

from __future__ import annotations

from datetime import timedelta

import pytest
from little_network import DAY, HOUR, MINUTE, NO_LISTS, SECOND, LittleNetwork, fresh_id, fresh_uuid, message_of, read_uuid
from pki import T0, Pki

from tdn.protocol.names import Role
from tdn.rules import sight
from tdn.trust import signing

# --- advertise ---


def test_creator_advertises(net: LittleNetwork) -> None:
    """T7: after the creator's record, and not before, the topic is there; the receipt says where in the log."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice)
    uuid = read_uuid(token)
    assert log.state.get("topic", uuid) is None
    outcome = log.put("advertise", net.advertise(alice, token, message_id="my-request-1"))
    assert outcome.status == "accepted"
    assert outcome.receipt is not None
    assert outcome.receipt["uuid"] == uuid
    assert outcome.receipt["seq"] == len(log.records)
    assert outcome.receipt["head"] == log.records[-1].head
    assert outcome.receipt["request"] == "my-request-1"
    assert outcome.receipt["network"] == net.id
    assert outcome.request == "entity:alice/my-request-1"
    topic = log.topic(uuid)
    assert (topic["owner"], topic["state"], topic["expires"]) == ("alice", "live", "2027-01-01T01:00:00Z")


def test_only_the_creator_advertises(net: LittleNetwork) -> None:
    """T7: nobody but the creator can advertise it; afterwards the creator still can."""
    log = net.log()
    token = net.mint(net.entity("alice"))
    outcome = log.put("advertise", net.advertise(net.entity("bob"), token))
    assert outcome.status == "refused"
    assert "only its creator" in message_of(outcome)
    assert log.put("advertise", net.advertise(net.entity("alice"), token)).status == "accepted"


@pytest.mark.parametrize("role", ["node", "operator"])
def test_only_entities_advertise(net: LittleNetwork, role: str) -> None:
    log = net.log()
    sender = net.node("n2") if role == "node" else net.operator
    outcome = log.put("advertise", net.advertise(sender, net.mint(net.entity("alice"))))
    assert (outcome.status, message_of(outcome)) == ("refused", "only an entity can do this")


def test_advertising_twice_has_one_effect(net: LittleNetwork) -> None:
    """T22: a second request for the same advertisement is answered alike and writes nothing but its memory."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice)
    log.put("advertise", net.advertise(alice, token))
    before = log.topic(read_uuid(token))
    outcome = log.put("advertise", net.advertise(alice, token))
    assert outcome.status == "accepted"
    assert {write.space for write in outcome.writes} == {"request", "ends"}
    assert log.topic(read_uuid(token)) == before


def test_two_signatures_of_one_payload_are_one_advertisement(net: LittleNetwork) -> None:
    """An advertisement's identity is its payload's digest, not its signature."""
    log = net.log()
    alice = net.entity("alice")
    uuid = fresh_uuid()
    first, second = (net.mint(alice, uuid=uuid, salt="0" * 22) for _ in range(2))
    assert first != second
    assert log.put("advertise", net.advertise(alice, first)).status == "accepted"
    assert log.put("advertise", net.advertise(alice, second)).status == "accepted"


def test_the_first_content_of_a_uuid_is_final(net: LittleNetwork) -> None:
    """T4: a node that minted one UUID twice gets only the first one into the log."""
    log = net.log()
    alice = net.entity("alice")
    uuid = log.advertised()
    other = net.mint(alice, uuid=uuid, lifetime=2 * HOUR)
    outcome = log.put("advertise", net.advertise(alice, other))
    assert outcome.status == "refused"
    assert "with other content" in message_of(outcome)
    assert log.topic(uuid)["expires"] == "2027-01-01T01:00:00Z"


def test_uuid_in_use_by_another(net: LittleNetwork) -> None:
    log = net.log()
    uuid = log.advertised()
    taken = net.mint(net.entity("bob"), uuid=uuid)
    outcome = log.put("advertise", net.advertise(net.entity("bob"), taken))
    assert outcome.status == "refused"
    assert log.topic(uuid)["owner"] == "alice"


def test_request_names_another_uuid(net: LittleNetwork) -> None:
    log = net.log()
    alice = net.entity("alice")
    outcome = log.put("advertise", net.advertise(alice, net.mint(alice), uuid=fresh_uuid()))
    assert outcome.status == "refused"
    assert "another UUID" in message_of(outcome)


def test_advertise_without_advertisement(net: LittleNetwork) -> None:
    log = net.log()
    outcome = log.put("advertise", net.request("advertise", {"uuid": fresh_uuid(), "opening": NO_LISTS}, net.entity("alice")))
    assert (outcome.status, message_of(outcome)) == ("refused", "the request carries no advertisement")


@pytest.mark.parametrize(
    ("late", "status"),
    [(DAY, "accepted"), (DAY + SECOND, "refused")],
    ids=["within a day", "a second later"],
)
@pytest.mark.parametrize("whose", ["node's clock", "log time"])
def test_advertised_within_a_day(net: LittleNetwork, late: timedelta, status: str, whose: str) -> None:
    """T7: what was minted and never advertised is gone after a day, by the record's time or by the log's."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice, lifetime=30 * DAY)
    at = T0 + late
    if whose == "log time":
        log.tick(at)
        at = T0
    outcome = log.put("advertise", net.advertise(alice, token, life=2 * DAY), at=at)
    assert outcome.status == status
    if status == "refused":
        assert "more than a day ago" in message_of(outcome)


@pytest.mark.parametrize("whose", ["node's clock", "log time"])
def test_advertised_before_it_expires(net: LittleNetwork, whose: str) -> None:
    log = net.log()
    alice = net.entity("alice")
    at = T0 + MINUTE
    if whose == "log time":
        log.tick(at)
        at = T0
    expired = log.put("advertise", net.advertise(alice, net.mint(alice, lifetime=MINUTE)), at=at)
    assert expired.status == "refused"
    assert "expired before it was advertised" in message_of(expired)
    assert log.put("advertise", net.advertise(alice, net.mint(alice, lifetime=MINUTE + SECOND)), at=at).status == "accepted"


def test_minted_in_the_future(net: LittleNetwork) -> None:
    """A node whose clock is ahead by more than clocks may differ cannot make topics that outlast their lifetime."""
    log = net.log()
    alice = net.entity("alice")
    for ahead, status in ((30 * SECOND, "accepted"), (31 * SECOND, "refused")):
        outcome = log.put("advertise", net.advertise(alice, net.mint(alice, at=T0 + ahead)))
        assert outcome.status == status
    assert "dated in the future" in message_of(outcome)


def test_minted_in_another_network(net: LittleNetwork) -> None:
    log = net.log()
    alice = net.entity("alice")
    outcome = log.put("advertise", net.advertise(alice, net.mint(alice, network="1" * 64)))
    assert (outcome.status, message_of(outcome)) == ("refused", "the advertisement was minted in another network")


def test_minted_by_a_node_that_was_never_enrolled(net: LittleNetwork) -> None:
    """T8: a certificate that says "node" is not enough in the log; the operator's word is needed."""
    log = net.log()
    alice = net.entity("alice")
    outcome = log.put("advertise", net.advertise(alice, net.mint(alice, node=net.node("n9"))))
    assert outcome.status == "refused"
    assert "not enrolled in the log" in message_of(outcome)


def test_minted_by_a_revoked_node(net: LittleNetwork) -> None:
    """T8: a revocation refuses what comes later in the log, also what was minted before it."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice, node=net.node("n3"))
    log.put("revoke", net.revoke("node:n3"))
    outcome = log.put("advertise", net.advertise(alice, token))
    assert outcome.status == "refused"
    assert "was revoked" in message_of(outcome)


def test_minted_by_a_node_that_rotated_since(net: LittleNetwork) -> None:
    """A superseded certificate still proves what it signed."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice, node=net.node("n3"))
    later = net.node("n3", 2)
    log.put("enrol", net.enrol(later), by=later)
    assert log.put("advertise", net.advertise(alice, token)).status == "accepted"


def test_minted_by_an_entity(net: LittleNetwork) -> None:
    """T8: an entity that signs an advertisement is refused."""
    log = net.log()
    alice = net.entity("alice")
    outcome = log.put("advertise", net.advertise(alice, net.mint(alice, node=net.entity("bob"))))
    assert outcome.status == "refused"
    assert "is not a node" in message_of(outcome)


def test_minted_by_a_stranger(net: LittleNetwork) -> None:
    log = net.log()
    alice = net.entity("alice")
    stranger = Pki("strangers").credentials(Role.NODE, "n1")
    outcome = log.put("advertise", net.advertise(alice, net.mint(alice, node=stranger)))
    assert outcome.status == "refused"
    assert "not enrolled in the log" in message_of(outcome)


def test_creator_rotates_between_minting_and_advertising(net: LittleNetwork) -> None:
    """A topic belongs to an entity, not to a key."""
    log = net.log()
    token = net.mint(net.entity("alice"))
    later = net.entity("alice", 2)
    log.put("hello", net.hello(later))
    assert log.put("advertise", net.advertise(later, token)).status == "accepted"
    assert log.put("withdraw", net.withdraw(later, read_uuid(token))).status == "accepted"


# --- renew and withdraw ---


def test_renew_counts_from_the_record(net: LittleNetwork) -> None:
    """T39: a new lifetime from the record's time; the advertisement's digest stays."""
    log = net.log()
    uuid = log.advertised()
    digest = log.topic(uuid)["digest"]
    outcome = log.put("renew", net.renew(net.entity("alice"), uuid, 5 * HOUR), at=T0 + 30 * MINUTE)
    assert outcome.status == "accepted"
    assert outcome.receipt is not None
    assert outcome.receipt["expires"] == log.topic(uuid)["expires"] == "2027-01-01T05:30:00Z"
    assert log.topic(uuid)["digest"] == digest
    assert log.topic(uuid)["seq"] == len(log.records)


def test_renewed_topic_outlives_its_first_end(net: LittleNetwork) -> None:
    log = net.log()
    uuid = log.advertised()
    log.put("renew", net.renew(net.entity("alice"), uuid, 3 * HOUR))
    log.tick(T0 + 2 * HOUR)
    assert log.topic(uuid)["state"] == "live"
    log.tick(T0 + 3 * HOUR)
    assert log.topic(uuid)["state"] == "expired"


def test_renewal_to_an_earlier_end(net: LittleNetwork) -> None:
    log = net.log()
    uuid = log.advertised()
    log.put("renew", net.renew(net.entity("alice"), uuid, MINUTE))
    log.tick(T0 + MINUTE)
    assert log.topic(uuid)["state"] == "expired"


def test_renewal_to_the_same_end(net: LittleNetwork) -> None:
    """The entry of its end is removed and written in one record; it must be there afterwards."""
    log = net.log()
    uuid = log.advertised(lifetime=HOUR)
    log.put("renew", net.renew(net.entity("alice"), uuid, HOUR))
    log.tick(T0 + HOUR)
    assert log.topic(uuid)["state"] == "expired"


def test_withdrawn_for_ever(net: LittleNetwork) -> None:
    """T7, T39: a UUID that has ended never comes back."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice)
    uuid = read_uuid(token)
    log.put("advertise", net.advertise(alice, token))
    assert log.put("withdraw", net.withdraw(alice, uuid)).status == "accepted"
    assert log.topic(uuid)["state"] == "withdrawn"
    for kind, request in (("advertise", net.advertise(alice, token)), ("renew", net.renew(alice, uuid, HOUR))):
        assert log.put(kind, request).status == "refused"
    log.tick(T0 + 2 * HOUR)
    assert log.topic(uuid)["state"] == "withdrawn"


def test_withdrawing_again_has_no_second_effect(net: LittleNetwork) -> None:
    """T22: whoever does not know how the first time ended may ask again; anybody else is told nothing."""
    log = net.log()
    uuid = log.advertised()
    log.put("withdraw", net.withdraw(net.entity("alice"), uuid))
    before = log.topic(uuid)
    outcome = log.put("withdraw", net.withdraw(net.entity("alice"), uuid))
    assert outcome.status == "accepted"
    assert {write.space for write in outcome.writes} == {"request", "ends"}
    assert log.topic(uuid) == before
    refused = log.put("withdraw", net.withdraw(net.entity("bob"), uuid))
    assert (refused.status, message_of(refused)) == ("refused", f"there is no topic {uuid} that you own")


def test_expired_for_ever(net: LittleNetwork) -> None:
    """T7, T39: what has expired stays so."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice)
    uuid = read_uuid(token)
    log.put("advertise", net.advertise(alice, token))
    log.tick(T0 + HOUR)
    assert log.topic(uuid)["state"] == "expired"
    for kind, request in (
        ("advertise", net.advertise(alice, token)),
        ("renew", net.renew(alice, uuid, HOUR)),
        ("withdraw", net.withdraw(alice, uuid)),
    ):
        assert log.put(kind, request).status == "refused"


def test_renewal_after_the_end_by_the_nodes_clock(net: LittleNetwork) -> None:
    """Log time may lag; a topic has ended when either says so."""
    log = net.log()
    uuid = log.advertised()
    outcome = log.put("renew", net.renew(net.entity("alice"), uuid, HOUR), at=T0 + HOUR)
    assert outcome.status == "refused"
    assert "has expired" in message_of(outcome)


@pytest.mark.parametrize("kind", ["renew", "withdraw"])
def test_forbidden_and_absent_sound_alike(net: LittleNetwork, kind: str) -> None:
    """T18: to whoever does not own it, a topic that exists and one that does not give the same words."""
    log = net.log()
    there, nowhere = log.advertised(), fresh_uuid()
    words = []
    for uuid in (there, nowhere):
        bob = net.entity("bob")
        request = net.renew(bob, uuid, HOUR) if kind == "renew" else net.withdraw(bob, uuid)
        outcome = log.put(kind, request)
        assert outcome.status == "refused"
        assert outcome.error is not None
        words.append(str(outcome.error).replace(uuid, "UUID"))
    assert words[0] == words[1]
    assert log.topic(there)["state"] == "live"


def test_live_by_either_clock(net: LittleNetwork) -> None:
    """T39: by the state that the log has given it, and by the clock of whoever asks, whichever ends it first."""
    log = net.log()
    uuid, other = log.advertised(lifetime=HOUR), log.advertised(lifetime=HOUR)
    assert sight.live(log.state, uuid, T0) == log.topic(uuid)
    assert sight.live(log.state, uuid, T0 + HOUR - SECOND) == log.topic(uuid)
    assert sight.live(log.state, uuid, T0 + HOUR) is None
    assert sight.live(log.state, fresh_uuid(), T0) is None
    log.put("withdraw", net.withdraw(net.entity("alice"), uuid))
    assert sight.live(log.state, uuid, T0) is None
    log.tick(T0 + HOUR)
    assert sight.live(log.state, other, T0) is None


# --- requests and records ---


def test_repeated_request_has_the_first_receipt(net: LittleNetwork) -> None:
    """T22: a redelivered, doubled or re-signed request changes nothing and gets the same receipt, from any node."""
    log = net.log()
    alice = net.entity("alice")
    token = net.mint(alice)
    key = fresh_id()
    first = log.put("advertise", net.advertise(alice, token, message_id=key))
    digest = log.state.digest()
    again = net.advertise(alice, token, message_id=key, at=T0 + MINUTE)
    for by in net.node_ids:
        outcome = log.put("advertise", again, by=by, at=T0 + MINUTE)
        assert outcome.status == "repeated"
        assert outcome.receipt == first.receipt
        assert outcome.writes == ()
    assert log.state.digest() == digest


def test_repeated_refusal_stays_a_refusal(net: LittleNetwork) -> None:
    """The outcome of a request is final, also when it would be accepted now."""
    log = net.log()
    bob, uuid = net.entity("bob"), fresh_uuid()
    request = net.withdraw(bob, uuid)
    first = log.put("withdraw", request)
    assert first.status == "refused"
    log.advertised("bob", uuid=uuid)
    again = log.put("withdraw", request)
    assert again.status == "repeated"
    assert again.error == first.error
    assert again.receipt is None
    assert log.topic(uuid)["state"] == "live"


def test_request_id_used_for_another_request(net: LittleNetwork) -> None:
    """T19: same id, other body: refused, and nothing happens."""
    log = net.log()
    alice = net.entity("alice")
    uuid = log.advertised()
    key = fresh_id()
    log.put("renew", net.renew(alice, uuid, 2 * HOUR, message_id=key))
    before = log.state.digest()
    for kind, request in (
        ("renew", net.renew(alice, uuid, 3 * HOUR, message_id=key)),
        ("withdraw", net.withdraw(alice, uuid, message_id=key)),
        ("advertise", net.advertise(alice, net.mint(alice), message_id=key)),
    ):
        outcome = log.put(kind, request)
        assert (outcome.status, message_of(outcome)) == ("refused", "the request id was used for another request")
    assert log.state.digest() == before


def test_request_ids_are_each_entitys_own(net: LittleNetwork) -> None:
    log = net.log()
    key = fresh_id()
    for name in ("alice", "bob"):
        who = net.entity(name)
        assert log.put("advertise", net.advertise(who, net.mint(who), message_id=key)).status == "accepted"


def test_record_names_another_kind_than_its_request(net: LittleNetwork) -> None:
    """T19: a node cannot make one kind of request into another."""
    log = net.log()
    uuid = log.advertised()
    outcome = log.put("renew", net.withdraw(net.entity("alice"), uuid))
    assert (outcome.status, message_of(outcome)) == ("void", "the record names another kind than its request")
    assert log.topic(uuid)["state"] == "live"


def test_request_to_another_network(net: LittleNetwork) -> None:
    log = net.log()
    uuid = log.advertised()
    outcome = log.put("withdraw", net.withdraw(net.entity("alice"), uuid, audience=f"tdn:network:{'1' * 64}"))
    assert (outcome.status, message_of(outcome)) == ("void", "the request is addressed to somebody else")
    assert log.topic(uuid)["state"] == "live"


def test_question_is_not_a_record(net: LittleNetwork) -> None:
    log = net.log()
    raw = signing.sign(
        "record",
        {"v": 1, "kind": "create", "node": "n1", "at": "2027-01-01T00:00:00Z"},
        net.node("n1").key,
        chain=net.node("n1").identity.chain,
        tail=net.create(net.entity("alice")),
    )
    assert log.append(raw).status == "void"


def test_void_records_change_nothing(net: LittleNetwork) -> None:
    """Garbage, an entity's record, a tampered one, one without its request: each moves the sequence and the head, and nothing else."""
    log = net.log()
    uuid = log.advertised()
    good = net.record("withdraw", net.withdraw(net.entity("alice"), uuid))
    record, _, request = good.partition(b"~")
    before = log.state.digest()
    for raw in (
        b"",
        b"~",
        b"\x00" * 100,
        b"{}",
        b"a.b.c",
        request,
        record,
        record + b"~",
        record + b"~" + request + b" ",
        good[:-1],
        good.replace(b".", b",", 1),
        bytes([good[0] ^ 1]) + good[1:],
        net.record("tick", by=net.entity("alice")),
        net.record("withdraw", net.withdraw(net.entity("alice"), uuid), by=net.entity("alice")),
        net.record("withdraw", net.withdraw(net.entity("alice"), uuid), by=net.operator),
        net.record("withdraw"),
        b"x" * 300_000,
    ):
        outcome = log.append(raw)
        assert outcome.status == "void", raw[:60]
        assert outcome.writes == ()
    assert log.state.digest() == before
    assert log.append(good).status == "accepted"
