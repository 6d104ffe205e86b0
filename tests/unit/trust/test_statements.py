"""Advertisements: minted from a request and a certificate, verified by anyone with the roots."""

from __future__ import annotations

from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, LittleNetwork, fresh_uuid, payload_of
from pki import T0, YEAR, Pki

from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext, synopsis
from tdn.protocol.names import Role
from tdn.trust import envelope, signing, statements
from tdn.trust.statements import Advertisement, by_roots

DESCRIPTORS = [
    descriptors.path("weather/europe"),
    descriptors.text("Wetter in Zürich", ["rain"]),
    descriptors.properties(["a=1", "b=1.5", "c=true", "d=x", "e=2027-01-31T12:00:00Z"]),
    descriptors.xml("<weather><area>Zürich</area></weather>"),
]


def read(net: LittleNetwork, token: bytes) -> Advertisement:
    return statements.read_advertisement(token, by_roots(net.pki.roots))


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda value: value["kind"])
@pytest.mark.parametrize("synopsis_type", sorted(synopsis.DEFAULTS))
def test_minted_as_asked(net: LittleNetwork, descriptor: Any, synopsis_type: str) -> None:
    """T1, T2, T3, T5: everything in the request, the final synopsis with the minted UUID, signed, read back by the roots alone."""
    uuid = fresh_uuid()
    placeholder = synopsis.DEFAULTS[synopsis_type]
    token = net.mint(
        net.entity("alice"),
        uuid=uuid,
        lifetime=2 * HOUR,
        descriptor=descriptor,
        synopsis={"type": synopsis_type, "placeholder": placeholder},
    )
    found = read(net, token)
    assert found.uuid == uuid
    assert found.descriptor == descriptor
    assert (found.synopsis_type, found.synopsis) == (synopsis_type, placeholder.replace("{uuid}", uuid))
    assert (found.created, found.expires) == (T0, T0 + 2 * HOUR)
    assert (found.creator, found.creator_key) == ("alice", net.entity("alice").identity.name.key_hash)
    assert (found.node, found.network, found.kind) == ("n1", net.id, "topic")
    assert found.token.encode() == token


def test_creator_and_institution_are_the_certificates(net: LittleNetwork) -> None:
    """T1: never what the request claims."""
    alice = net.entity("alice")
    with pytest.raises(TrustError, match="claims creator 'bob'"):
        net.mint(alice, creator="bob")
    with pytest.raises(TrustError, match="claims institution 'CERN'"):
        net.mint(alice, institution="CERN")


@pytest.mark.parametrize(
    "body",
    [
        {"descriptor": descriptors.path("a//b")},
        {"descriptor": descriptors.xml("<!DOCTYPE a><a/>")},
        {"synopsis": {"type": "string", "placeholder": "x"}},
        {"synopsis": {"type": "tags", "placeholder": f"a={{uuid}},b={fresh_uuid()}"}},
    ],
)
def test_not_minted(net: LittleNetwork, body: dict[str, Any]) -> None:
    """T3, T4: what does not fit is refused before anything is signed."""
    with pytest.raises(MalformedMessage):
        net.mint(net.entity("alice"), **body)


def test_verified_years_later(net: LittleNetwork) -> None:
    """T5: the node's certificate has long ended; what it signed in time still holds."""
    old = net.pki.credentials(Role.NODE, "old", not_before=T0 - YEAR, not_after=T0 + HOUR)
    assert read(net, net.mint(net.entity("alice"), node=old)).node == "old"
    with pytest.raises(TrustError):
        read(net, net.mint(net.entity("alice"), node=old, at=T0 + 2 * HOUR))


@pytest.mark.parametrize("role", [Role.ENTITY, Role.GUARD, Role.OPERATOR, Role.BROKER])
def test_only_nodes_sign(net: LittleNetwork, role: Role) -> None:
    """T8: refused everywhere, whatever else the certificate is for."""
    with pytest.raises(TrustError, match="is not a node"):
        read(net, net.mint(net.entity("alice"), node=net.pki.credentials(role, "n1")))


def test_unknown_ca(net: LittleNetwork) -> None:
    with pytest.raises(TrustError, match="does not lead to a trusted root"):
        read(net, net.mint(net.entity("alice"), node=Pki("strangers").credentials(Role.NODE, "n1")))


def test_identity_is_the_payload(net: LittleNetwork) -> None:
    """Two signatures over one payload are one advertisement; another payload is another."""
    uuid = fresh_uuid()
    one, two = (read(net, net.mint(net.entity("alice"), uuid=uuid, salt="0" * 22)) for _ in range(2))
    assert one.token != two.token
    assert one.digest == two.digest
    assert read(net, net.mint(net.entity("alice"), uuid=uuid, salt="0" * 22, lifetime=DAY)).digest != one.digest


def forge(net: LittleNetwork, label: str = "advertisement", /, issued: int | None = int(T0.timestamp()), **changes: Any) -> bytes:
    """A node's signature over a payload that no honest node would sign."""
    payload = {**payload_of(net.mint(net.entity("alice"))), **changes}
    node = net.node("n1")
    return signing.sign(
        label,
        {name: value for name, value in payload.items() if value is not None},
        node.key,
        chain=node.identity.chain,
        with_chain=True,
        issued=issued,
    )


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"v": 2}, MalformedMessage, "schema version 2"),
        ({"uuid": "x"}, MalformedMessage, "uuid"),
        ({"owner": "bob"}, MalformedMessage, "advertisement"),
        ({"created": None}, MalformedMessage, "created"),
        ({"created": "2027-01-01T00:00:01Z"}, TrustError, "another moment"),
        ({"expires": "2027-01-01T00:59:59Z"}, TrustError, "do not agree with its lifetime"),
        ({"lifetime_seconds": 3601}, TrustError, "do not agree with its lifetime"),
        ({"lifetime_seconds": 0}, MalformedMessage, "lifetime_seconds"),
        ({"lifetime_seconds": 315360001}, MalformedMessage, "lifetime_seconds"),
        ({"node": "n2"}, TrustError, "another node"),
        ({"kind": "hierarchy"}, MalformedMessage, "kind"),
        ({"parent": "00000000-0001-4000-8000-000000000000"}, MalformedMessage, "advertisement"),
        ({"notifications": "00000000-0001-4000-8000-000000000000"}, MalformedMessage, "advertisement"),
        ({"synopsis": {"type": "string", "placeholder": "{uuid}", "value": "x"}}, TrustError, "not its placeholder"),
        ({"descriptor": {"kind": "sealed"}}, MalformedMessage, "descriptor"),
        ({"created": "2027-13-01T00:00:00Z"}, MalformedMessage, "is not a time"),
        ({"expires": "9027-01-01T00:00:00Z"}, MalformedMessage, "expires"),
        ({"issued": None}, MalformedMessage, "when it was signed"),
        ({"label": "receipt"}, MalformedMessage, "receipt"),
        ({"label": "notification"}, MalformedMessage, "notification"),
    ],
)
def test_dishonest_node(net: LittleNetwork, changes: dict[str, Any], error: type[Exception], why: str) -> None:
    """T5: also what a node signed must agree with itself."""
    label = changes.get("label", "advertisement")
    changes = {name: value for name, value in changes.items() if name != "label"}
    with pytest.raises(error, match=why):
        read(net, forge(net, label, **changes))


def test_a_collection_is_minted_as_one(net: LittleNetwork) -> None:
    """T31: signed, and told apart from a topic in the open; what it is created with is hidden like all else."""
    gathering = {"fixed": False, "limits": {"breadth": 0, "depth": 0, "topics": 0}, "child_collections": True, "inclusion": True}
    token = net.mint(net.entity("alice"), gathering=gathering, members=[fresh_uuid()])
    assert read(net, token).kind == "collection"
    assert payload_of(token).keys() == payload_of(net.mint(net.entity("alice"))).keys()


def test_a_childs_end_is_what_is_left_of_its_ancestors(net: LittleNetwork) -> None:
    """T26: its times agree with its lifetime also where an ancestor's end cuts it."""
    log = net.log()
    root = log.advertised(lifetime=HOUR, hosting={"allow_children": True})
    request = net.register(net.entity("alice"), root, lifetime=DAY, at=T0 + MINUTE)
    child = read(net, net.mint_child(request, log.put("register", request, at=T0 + MINUTE)))
    assert (child.created, child.expires) == (T0 + MINUTE, T0 + HOUR)
    assert payload_of(child.token.encode())["lifetime_seconds"] == 59 * 60


def notification(net: LittleNetwork, **changes: Any) -> dict[str, Any]:
    payload = {
        "v": 1,
        "network": net.id,
        "subject": fresh_uuid(),
        "watcher": "bob",
        "version": 1,
        "change": "added",
        "uuid": fresh_uuid(),
        "kind": "topic",
        "in": fresh_uuid(),
        "seq": 7,
        "at": "2027-01-01T00:00:00Z",
        **changes,
    }
    return {name: value for name, value in payload.items() if value is not None}


@pytest.mark.parametrize("changes", [{}, {"in": None}, {"change": "withdrawn", "kind": "collection"}], ids=str)
def test_notifications_are_statements(net: LittleNetwork, changes: dict[str, Any]) -> None:
    """T29, T35: verified with the roots alone, and alike whichever node signed."""
    payload = notification(net, **changes)
    said = [
        statements.read(statements.sign("notification", payload, net.node(n), T0), by_roots(net.pki.roots)) for n in ("n1", "n2")
    ]
    assert [(one.kind, one.payload) for one in said] == [("notification", payload)] * 2
    assert said[0].digest == said[1].digest
    with pytest.raises(MalformedMessage, match="a notification is not an advertisement"):
        read(net, said[0].token.encode())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 0}, "version"),
        ({"version": None}, "version"),
        ({"watcher": None}, "watcher"),
        ({"watcher": "*"}, "watcher"),
        ({"change": "renewed"}, "change"),
        ({"kind": "entity"}, "kind"),
        ({"subject": "x"}, "subject"),
        ({"in": "x"}, "in"),
        ({"head": "ab" * 32}, "notification"),
    ],
    ids=str,
)
def test_notifications_that_no_node_should_sign(net: LittleNetwork, changes: dict[str, Any], why: str) -> None:
    """T29: refused by whoever reads, not only by whoever signs."""
    payload, node = notification(net, **changes), net.node("n1")
    with pytest.raises(MalformedMessage, match=why):
        statements.sign("notification", payload, node, T0)
    token = signing.sign(
        "notification", payload, node.key, chain=node.identity.chain, with_chain=True, issued=int(T0.timestamp())
    )
    with pytest.raises(MalformedMessage, match=why):
        statements.read(token, by_roots(net.pki.roots))


@pytest.mark.parametrize("role", [Role.ENTITY, Role.GUARD, Role.OPERATOR, Role.BROKER])
def test_only_nodes_notify(net: LittleNetwork, role: Role) -> None:
    """T8, T35: an entity cannot tell another what has changed."""
    token = statements.sign("notification", notification(net), net.pki.credentials(role, "n1"), T0)
    with pytest.raises(TrustError, match="is not a node"):
        statements.read(token, by_roots(net.pki.roots))


def test_statement_without_its_chain(net: LittleNetwork) -> None:
    node = net.node("n1")
    token = signing.sign(
        "advertisement",
        payload_of(net.mint(net.entity("alice"))),
        node.key,
        chain=node.identity.chain,
        issued=int(T0.timestamp()),
    )
    with pytest.raises(TrustError, match="does not carry its certificate chain"):
        read(net, token)


def test_requests_and_records_are_not_statements(net: LittleNetwork) -> None:
    alice = net.entity("alice")
    for raw in (net.create(alice), net.hello(alice), net.record("tick"), net.genesis):
        with pytest.raises(MalformedMessage):
            statements.read(raw, by_roots(net.pki.roots))


def test_signing_checks_its_own_schema(net: LittleNetwork) -> None:
    with pytest.raises(MalformedMessage):
        statements.sign("status", {"v": 1}, net.node("n1"), T0)


def test_mint_takes_only_verified_requests(net: LittleNetwork) -> None:
    """The type says so: a request that another signed does not become an envelope."""
    bob = net.entity("bob")
    with pytest.raises(TrustError):
        envelope.authenticate(net.create(net.entity("alice")), lambda _: bob.identity)


def test_what_could_never_be_advertised_is_not_minted(net: LittleNetwork) -> None:
    """T7, T18: the lists go along when a topic is advertised, so they count when it is minted: what is minted fits into a request."""
    alice = net.entity("alice")
    names = [f"institution:{number:03d}{'x' * 120}" for number in range(500)]
    room = jsontext.MAX_ADVERTISEMENT_BYTES - 500 * 137 * 4 // 3 - 4_000
    fits = net.mint(alice, descriptor=descriptors.xml(f"<a>{'y' * (room * 3 // 4)}</a>"), lists={"discover_allow": names})
    assert len(net.advertise(alice, fits)) <= jsontext.MAX_REQUEST_BYTES
    too_much = descriptors.xml(f"<a>{'y' * (room * 3 // 4 + 4_000)}</a>")
    with pytest.raises(MalformedMessage, match="shorten the descriptor or the lists"):
        net.mint(alice, descriptor=too_much, lists={"discover_allow": names})
    assert net.mint(alice, descriptor=too_much)
