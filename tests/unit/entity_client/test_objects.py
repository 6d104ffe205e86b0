"""A topic from a line of an answer: every form of line, all of it verified, and about each other."""

from __future__ import annotations

from typing import Any

import pytest
from little_network import DAY, HOUR, NO_LISTS, LittleNetwork, fresh_uuid, payload_of, read_uuid
from pki import T0, derive_key

from entity_client.objects import LocatedNode, Placed, Topic, read_change, read_placed, read_topic
from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext
from tdn.protocol.access import Asker, lists
from tdn.protocol.times import format_time
from tdn.queries.model import Subject
from tdn.trust import openings, sealed, statements
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


# --- places and changes ---

GATHERING = {"fixed": False, "limits": {"breadth": 2, "depth": 0, "topics": 9}, "child_collections": True, "inclusion": False}


def place_of(**place: Any) -> bytes:
    return encode_segment(jsontext.canonical(place)).encode()


def placed(net: LittleNetwork, line: bytes, *, in_hierarchy: bool = True) -> Placed:
    holder = net.entity("bob")
    return read_placed(line, by_roots(holder.roots), net.id, holder.key, in_hierarchy=in_hierarchy)


def child_of(net: LittleNetwork) -> tuple[bytes, str]:
    """The advertisement of a child, and its parent."""
    log = net.log()
    root = log.advertised(hosting={"allow_children": True})
    request = net.register(net.entity("alice"), root, lists={"discover_deny": ["carol"]}, hosting={"allow_children": False})
    return net.mint_child(request, log.put("register", request)), root


def test_a_collection_as_others_see_it(net: LittleNetwork) -> None:
    """T31: its options and change topic, verified; of its lists and first members, nothing but that there is something closed."""
    token = net.mint(net.entity("alice"), gathering=GATHERING, members=[fresh_uuid()], lists=LISTS)
    part = openings.disclose(net._openings[token], {"gathering"})
    topic = read(net, token + b"  " + hidden(part), who="bob")
    told = topic.as_object()
    assert told["kind"] == "collection"
    assert {name: told[name] for name in GATHERING} == GATHERING
    assert told["notifications"] == net._openings[token]["gathering"]["value"]["notifications"]
    assert not {"members", "discover_allow", "discover_deny", "root_topic"} & told.keys()
    assert topic.lists is None
    assert not topic.hides.whole
    whole = read(net, token + b"  " + hidden(net._openings[token])).as_object()
    assert len(whole["members"]) == 1
    assert {name: whole[name] for name in LISTS} == LISTS


def test_a_place_in_a_hierarchy(net: LittleNetwork) -> None:
    """T27: after the advertisement, its status and what it hides, each with or without; the signed parent is the one that is told."""
    token, root = child_of(net)
    part = hidden(openings.disclose(net._openings[token], {"parent"}))
    told = status(net, read_uuid(token))
    for line, has_status, has_opening in (
        (b" ".join([token, b"", b"", place_of(depth=2)]), False, False),
        (b" ".join([token, told, b"", place_of(depth=2)]), True, False),
        (b" ".join([token, b"", part, place_of(**{"depth": 2, "in": root})]), False, True),
        (b" ".join([token, told, part, place_of(**{"depth": 2, "in": root})]), True, True),
    ):
        found = placed(net, line)
        assert (found.uuid, found.depth, found.inside) == (read_uuid(token), 2, root if has_opening else None)
        assert (found.topic.status is not None, found.topic.opening is not None) == (has_status, has_opening)
        shown = found.as_object()
        assert (shown["depth"], shown.get("parent")) == (2, root if has_opening else None)
        assert "discover_deny" not in shown


def test_a_place_in_a_collection(net: LittleNetwork) -> None:
    """T36: a child topic stands there in a collection, whatever its parent is; to its owner, too, who is told both."""
    token, root = child_of(net)
    collection = fresh_uuid()
    for opening in (None, openings.disclose(net._openings[token], {"parent"}), net._openings[token]):
        part = b"" if opening is None else hidden(opening)
        line = b" ".join([token, b"", part, place_of(**{"depth": 1, "in": collection})])
        found = placed(net, line, in_hierarchy=False)
        assert (found.inside, found.topic.hides.parent) == (collection, None if opening is None else root)


def test_places_that_are_not_believed(net: LittleNetwork) -> None:
    """T27: another parent than the signed one, an opening of another topic, what is no place: refused as a whole."""
    token, root = child_of(net)
    part = openings.disclose(net._openings[token], {"parent"})
    elsewhere = fresh_uuid()
    lied = {**part, "parent": {**part["parent"], "value": elsewhere}}
    for line, error, fragment in (
        (b" ".join([token, b"", hidden(part), place_of(**{"depth": 1, "in": elsewhere})]), TrustError, "another parent"),
        (
            b" ".join([token, b"", hidden(net._openings[token]), place_of(**{"depth": 1, "in": elsewhere})]),
            TrustError,
            "another parent",
        ),
        (b" ".join([token, b"", b"", place_of(**{"depth": 1, "in": root})]), TrustError, "another parent"),
        (b" ".join([token, b"", hidden(lied), place_of(**{"depth": 1, "in": elsewhere})]), TrustError, "does not belong"),
        (b" ".join([token, b"", hidden(part), place_of(depth=-1)]), MalformedMessage, "depth"),
        (b" ".join([token, b"", hidden(part), place_of(**{"depth": 1, "in": root, "owner": "bob"})]), MalformedMessage, "place"),
        (b" ".join([token, b"", hidden(part)]), MalformedMessage, "place"),
        (token, MalformedMessage, ""),
        (place_of(depth=1), MalformedMessage, ""),
    ):
        with pytest.raises(error) as caught:
            placed(net, line)
        assert fragment in caught.value.message, line[-80:]


def change_of(net: LittleNetwork, **changes: Any) -> bytes:
    subject = fresh_uuid()
    payload = {
        **{"v": 1, "network": net.id, "subject": subject, "watcher": "bob", "version": 3, "change": "added"},
        **{"uuid": fresh_uuid(), "kind": "topic", "in": subject, "seq": 9, "at": format_time(T0)},
        **changes,
    }
    return statements.sign("notification", payload, net.node("n1"), T0)


def test_a_change(net: LittleNetwork) -> None:
    """T29, T35: read by whom it is for, with all that it says and the signed bytes that prove it."""
    token = change_of(net)
    payload = payload_of(token)
    change = read_change(token, by_roots(net.pki.roots), net.id, "bob")
    assert change.as_object() == {
        **{name: payload[name] for name in ("subject", "version", "change", "uuid", "kind", "at", "in")},
        "node": "n1",
        "notification": token.decode(),
    }


def test_changes_that_are_not_ours(net: LittleNetwork) -> None:
    """T35: another's, another network's, an entity's, or something else that a node signed."""
    token = change_of(net)
    for wrong, fragment in (
        (change_of(net, watcher="alice"), "not for us"),
        (change_of(net, network="0" * 64), "not for us"),
        (status(net, fresh_uuid()), "not for us"),
        (statements.sign("notification", payload_of(token), net.entity("alice"), T0), "is not a node"),
        (statements.sign("notification", payload_of(token), net.entity("bob"), T0), "is not a node"),
    ):
        with pytest.raises(TrustError, match=fragment):
            read_change(wrong, by_roots(net.pki.roots), net.id, "bob")


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
