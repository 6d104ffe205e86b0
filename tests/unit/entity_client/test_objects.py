"""A topic from a line of an answer: every form of line, all of it verified, and about each other."""

from __future__ import annotations

from typing import Any

import pytest
from little_network import DAY, HOUR, NO_LISTS, LittleNetwork, fresh_uuid, payload_of, read_uuid
from pki import T0, derive_key

from entity_client.objects import LocatedNode, Topic, read_topic
from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext
from tdn.protocol.access import Asker, lists
from tdn.protocol.times import format_time
from tdn.queries.model import Subject
from tdn.trust import sealed, statements
from tdn.trust.signing import encode_segment
from tdn.trust.statements import by_roots

LISTS = {"discover_allow": ["bob", "institution:Zürich"], "discover_deny": ["carol"]}


def read(net: LittleNetwork, line: bytes, *, who: str = "alice", network: str | None = None) -> Topic:
    holder = net.entity(who)
    return read_topic(line, by_roots(holder.roots), network or net.id, holder.key)


def status(net: LittleNetwork, uuid: str, **changes: Any) -> bytes:
    payload = {
        **{"v": 1, "network": net.id, "uuid": uuid, "owner": "bob", "expires": format_time(T0 + DAY), "state": "live"},
        **{"seq": 9, "at": format_time(T0)},
        **changes,
    }
    return statements.sign("status", payload, net.node("n1"), T0)


def hidden(opening: Any) -> bytes:
    return encode_segment(jsontext.canonical(dict(opening))).encode()


def test_an_advertisement_alone(net: LittleNetwork) -> None:
    """T16: as it was minted: creator owns it, and nothing is known of its lists."""
    token = net.mint(net.entity("alice"), lifetime=HOUR)
    topic = read(net, token, who="bob")
    assert (topic.uuid, topic.owner, topic.expires) == (read_uuid(token), "alice", T0 + HOUR)
    assert (topic.status, topic.opening, topic.lists, topic.opened, topic.is_sealed) == (None, None, None, None, False)
    assert topic.line() == topic.line(hidden=False) == token
    assert topic.place == f"2027-01-01T00:00:00Z_{topic.uuid}"
    assert not {"opening", "status", "sealed", "discover_allow"} & topic.as_object().keys()


def test_with_a_status(net: LittleNetwork) -> None:
    """T39: owner and expiry are the present ones, in the object and as queries see it."""
    token = net.mint(net.entity("alice"), lifetime=HOUR)
    told = status(net, read_uuid(token))
    topic = read(net, token + b" " + told)
    assert (topic.owner, topic.expires, topic.status) == ("bob", T0 + DAY, told.decode())
    assert topic.line() == token + b" " + told
    assert (topic.subject.owner, topic.subject.creator, topic.subject.expires) == ("bob", "alice", "2027-01-02T00:00:00Z")
    assert topic.as_object()["owner"] == "bob"


@pytest.mark.parametrize("changed", [False, True])
def test_with_what_it_hides(net: LittleNetwork, changed: bool) -> None:
    """T18: for its owner, with or without a status before it; told to others, the line leaves it out."""
    token = net.mint(net.entity("alice"), lists=LISTS)
    told = status(net, read_uuid(token)) if changed else b""
    opening = net._openings[token]
    line = b" ".join([token, told, hidden(opening)])
    topic = read(net, line)
    assert topic.opening == opening
    assert topic.lists == lists(LISTS["discover_allow"], LISTS["discover_deny"])
    assert (topic.status is not None) is changed
    assert topic.line() == line
    assert topic.line(hidden=False) == (token + b" " + told).rstrip()
    assert read(net, topic.line()) == topic
    told_to_owner = topic.as_object()
    assert {name: told_to_owner[name] for name in LISTS} == LISTS
    assert told_to_owner["opening"] == opening


def test_lines_that_are_not_believed(net: LittleNetwork) -> None:
    """A status of another topic or network, another's opening, something that is neither: refused as a whole."""
    alice = net.entity("alice")
    token, other = net.mint(alice, lists=LISTS), net.mint(alice)
    uuid, opening = read_uuid(token), net._openings[token]
    by_entity = statements.sign("status", payload_of(status(net, uuid)), alice, T0)
    for line, error, fragment in (
        (token + b" " + status(net, read_uuid(other)), TrustError, "does not belong to the advertisement"),
        (token + b" " + status(net, uuid, network="0" * 64), TrustError, "does not belong to the advertisement"),
        (token + b" " + other, TrustError, "does not belong to the advertisement"),
        (token + b" " + by_entity, TrustError, "is not a node"),
        (token + b" " + status(net, uuid)[:-4], (TrustError, MalformedMessage), ""),
        (token + b"  " + hidden(net._openings[other]), TrustError, "the opening does not belong"),
        (token + b"  " + hidden(NO_LISTS), TrustError, "the opening does not belong"),
        (token + b"  " + hidden({**opening, "more": 1}), MalformedMessage, "opening"),
        (token + b"  " + hidden({"access": {"salt": "short", "value": {}}}), MalformedMessage, "opening"),
        (token + b"  !", MalformedMessage, ""),
        (token + b"  " + hidden(opening) + b" more", MalformedMessage, ""),
        (token + b" " + hidden(opening), (TrustError, MalformedMessage), ""),
        (b" " + token, MalformedMessage, ""),
        (b"", MalformedMessage, ""),
        (status(net, uuid), MalformedMessage, "not an advertisement"),
    ):
        with pytest.raises(error) as caught:
            read(net, line)
        assert fragment in caught.value.message, line[-80:]


def test_minted_elsewhere(net: LittleNetwork) -> None:
    token = net.mint(net.entity("alice"), network="0" * 64)
    with pytest.raises(TrustError, match="minted in another network"):
        read(net, token)
    assert read(net, token, network="0" * 64).uuid == read_uuid(token)


def test_sealed_topics(net: LittleNetwork) -> None:
    """T9: opened for whom it was sealed; to others it says that it is sealed, and nothing of its base64."""
    alice, inside = net.entity("alice"), descriptors.text("Reactor 4", ["secret"])
    readers = [alice.identity.public_key, net.entity("bob").identity.public_key]
    token = net.mint(alice, descriptor=sealed.seal_descriptor(inside, creator="alice", network=net.id, readers=readers))
    for who in ("alice", "bob"):
        topic = read(net, token, who=who)
        assert topic.is_sealed
        assert topic.descriptor == topic.opened == inside
        assert topic.subject.descriptor == inside
        assert topic.as_object()["descriptor"] == inside
        assert topic.as_object()["sealed"] is True
    closed = read(net, token, who="carol")
    assert closed.opened is None
    assert closed.as_object()["descriptor"] == {"kind": "sealed"}
    assert closed.as_object()["sealed"] is True
    assert closed.subject.descriptor["kind"] == "sealed"


def test_a_copied_sealed_descriptor_stays_closed(net: LittleNetwork) -> None:
    """T9: bob puts alice's sealed descriptor into a topic of his own; alice is not shown it as bob's words."""
    alice, bob = net.entity("alice"), net.entity("bob")
    closed = sealed.seal_descriptor(descriptors.path("a"), creator="alice", network=net.id, readers=[alice.identity.public_key])
    assert read(net, net.mint(alice, descriptor=closed)).opened is not None
    assert read(net, net.mint(bob, descriptor=closed)).opened is None


def test_subject(net: LittleNetwork) -> None:
    """The library and the nodes match the same values."""
    uuid = fresh_uuid()
    topic = read(net, net.mint(net.entity("alice"), uuid=uuid, synopsis={"type": "tags", "placeholder": "t={uuid}"}))
    times = ("2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z")
    assert topic.subject == Subject(
        uuid, "topic", "alice", "alice", "local", *times, descriptors.path("weather/europe"), f"t={uuid}"
    )


def test_whom_a_node_serves(net: LittleNetwork) -> None:
    """T11: by the policy that it told. One that tells none, or something odd, is asked; it can still decline."""
    asker = Asker("alice", "local")
    for policy, served in (
        ({"answers": ["*"]}, True),
        ({"answers": ["institution:local"]}, True),
        ({"answers": ["bob", "institution:x"]}, False),
        ({"answers": []}, False),
        ({}, True),
        ({"answers": "bob"}, True),
    ):
        node = LocatedNode("n1", "local", 1.0, policy, net.node("n1").identity)
        assert node.serves(asker) is served


def test_a_foreign_key_opens_nothing(net: LittleNetwork) -> None:
    alice = net.entity("alice")
    closed = sealed.seal_descriptor(descriptors.path("a"), creator="alice", network=net.id, readers=[alice.identity.public_key])
    topic = read_topic(net.mint(alice, descriptor=closed), by_roots(alice.roots), net.id, derive_key("somebody"))
    assert topic.opened is None
