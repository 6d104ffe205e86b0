"""Envelopes: made and taken apart; bound to kind, sender, audience, time and tail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, payload_of
from pki import T0

from tdn.errors import MalformedMessage, TrustError
from tdn.trust import envelope, signing
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
OTHER_UUID = "b2d8a0c4-91f7-4e65-8f3a-0c7d1e92b6f8"


def read(raw: bytes, who: Credentials) -> Envelope:
    return envelope.authenticate(raw, lambda _: who.identity)


def test_round_trip(net: LittleNetwork) -> None:
    """T19: signed, and bound to its kind, audience and time."""
    alice = net.entity("alice")
    raw = envelope.write(
        "show",
        {"uuid": UUID},
        alice,
        audience="node:n1",
        now=T0,
        life=MINUTE,
        message_id="my-own-id",
        reply="ab" * 16,
        answers="their-own-id",
        tail=b"tail",
    )
    found = read(raw, alice)
    assert (found.kind, found.signer, found.audience) == ("show", alice.identity, "node:n1")
    assert (found.issued, found.expires, found.id) == (T0, T0 + MINUTE, "my-own-id")
    assert (found.reply, found.answers, found.body, found.tail) == ("ab" * 16, "their-own-id", {"uuid": UUID}, b"tail")
    assert found.raw == raw


def test_ids_are_fresh() -> None:
    assert len({envelope.new_id() for _ in range(100)}) == 100


def test_we_send_nothing_that_we_would_refuse(net: LittleNetwork) -> None:
    with pytest.raises(MalformedMessage):
        envelope.write("show", {"uuid": "x"}, net.entity("alice"), audience="node:n1", now=T0, life=MINUTE)


def test_header_carries_thumbprint_or_chain(net: LittleNetwork) -> None:
    alice = net.entity("alice")
    for with_chain in (False, True):
        raw = envelope.write("hello", {}, alice, audience=net.audience, now=T0, life=MINUTE, with_chain=with_chain)
        header = signing.split(raw).header
        assert header.thumbprint == alice.identity.thumbprint
        assert header.chain == (alice.identity.chain if with_chain else ())


def forge(net: LittleNetwork, kind: str = "show", signer: Credentials | None = None, **changes: Any) -> bytes:
    """A rightly signed envelope with claims of the sender's own choosing."""
    alice = net.entity("alice")
    claims = payload_of(envelope.write("show", {"uuid": UUID}, alice, audience="node:n1", now=T0, life=MINUTE))
    claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
    who = signer or alice
    return signing.sign(kind, claims, who.key, chain=who.identity.chain)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"v": 2}, MalformedMessage, "schema version 2 is unknown"),
        ({"v": None}, MalformedMessage, "schema version None is unknown"),
        ({"v": True}, MalformedMessage, "envelope: v"),
        ({"v": "1"}, MalformedMessage, "schema version 1 is unknown"),
        ({"iss": f"tdn:entity:bob:{'0' * 64}"}, TrustError, "names another sender"),
        ({"iss": f"tdn:entity:alice:{'0' * 64}"}, TrustError, "names another sender"),
        ({"iss": "alice"}, MalformedMessage, "envelope: iss"),
        ({"aud": "everyone"}, MalformedMessage, "envelope: aud"),
        ({"aud": ["node:n1"]}, MalformedMessage, "envelope: aud"),
        ({"jti": "short"}, MalformedMessage, "envelope: jti"),
        ({"jti": "x" * 65}, MalformedMessage, "envelope: jti"),
        ({"jti": "with/slash"}, MalformedMessage, "envelope: jti"),
        ({"iat": None}, MalformedMessage, "iat"),
        ({"exp": None}, MalformedMessage, "exp"),
        ({"exp": "soon"}, MalformedMessage, "envelope: exp"),
        ({"exp": 10**17}, MalformedMessage, "envelope: exp"),
        ({"iat": 10**17}, MalformedMessage, "envelope: iat"),
        ({"iat": -1}, MalformedMessage, "envelope: iat"),
        ({"reply": "amq.rabbitmq.reply-to"}, MalformedMessage, "envelope: reply"),
        ({"reply": "Entity.bob." + "ab" * 16}, MalformedMessage, "envelope: reply"),
        ({"tail": "A" * 43}, TrustError, "not what was signed"),
        ({"body": None}, MalformedMessage, "body"),
        ({"body": []}, MalformedMessage, "envelope: body"),
        ({"body": {}}, MalformedMessage, "show"),
        ({"body": {"uuid": UUID, "owner": "alice"}}, MalformedMessage, "show"),
        ({"sub": "alice"}, MalformedMessage, "envelope"),
    ],
)
def test_claims_refused(net: LittleNetwork, changes: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        read(forge(net, **changes), net.entity("alice"))


def test_signed_by_another(net: LittleNetwork) -> None:
    with pytest.raises(TrustError, match="signature does not hold"):
        read(forge(net, signer=net.entity("bob")), net.entity("alice"))
    with pytest.raises(TrustError, match="names another sender"):
        read(forge(net, signer=net.entity("bob")), net.entity("bob"))


@pytest.mark.parametrize(
    "kind",
    [
        *("advertisement", "receipt", "status", "notification", "revocation", "grant", "message", "record"),
        *("envelope", "common", "place", "../create", "", "show2"),
    ],
)
def test_kinds_that_do_not_travel_in_envelopes(net: LittleNetwork, kind: str) -> None:
    """T19: a statement, a grant or a record is no request, whatever it says."""
    with pytest.raises(MalformedMessage, match="is unknown"):
        read(forge(net, kind), net.entity("alice"))


#: Kinds whose body a show's is too: a UUID and nothing else that they would need.
LIKE_SHOW = {"show", "shown", "withdraw", "watch", "unwatch", "open", "unsubscribe", "readers", "ready", "grants"}
#: Kinds whose bodies are alike too: where in a collection.
ALIKE = ("add", "remove")


@pytest.mark.parametrize("kind", sorted(envelope.BODY_KINDS - LIKE_SHOW))
def test_one_kind_as_another(net: LittleNetwork, kind: str) -> None:
    """T19: the body of a show does not pass as any other kind with other fields."""
    with pytest.raises(MalformedMessage, match=kind):
        read(forge(net, kind), net.entity("alice"))


@pytest.mark.parametrize("kind", sorted(LIKE_SHOW - {"show"}))
def test_kind_is_signed(net: LittleNetwork, kind: str) -> None:
    """T19: show, withdraw, watch, open and others have the same body; the signature tells them apart."""
    show = forge(net)
    assert read(forge(net, kind), net.entity("alice")).body == read(show, net.entity("alice")).body
    header = forge(net, kind).split(b".")[0]
    with pytest.raises(TrustError, match="signature does not hold"):
        read(b".".join([header, *show.split(b".")[1:]]), net.entity("alice"))


@pytest.mark.parametrize(("kind", "other"), [ALIKE, ALIKE[::-1]])
def test_an_addition_is_no_removal(net: LittleNetwork, kind: str, other: str) -> None:
    """T19, T33: the same members, another kind in the header, the signature left as it was."""
    body = {"collection": UUID, "uuid": OTHER_UUID}
    sent = forge(net, kind, body=body)
    assert read(sent, net.entity("alice")).body == body
    header = forge(net, other, body=body).split(b".")[0]
    with pytest.raises(TrustError, match="signature does not hold"):
        read(b".".join([header, *sent.split(b".")[1:]]), net.entity("alice"))


@pytest.mark.parametrize("kind", ["create", "register"])
def test_own_uuid(net: LittleNetwork, kind: str) -> None:
    """T4: refused with words that say why; of a child as of a root."""
    alice = net.entity("alice")
    body = payload_of(net.create(alice) if kind == "create" else net.register(alice, OTHER_UUID))["body"]
    assert read(forge(net, kind, body=body), alice).body == body
    with pytest.raises(MalformedMessage, match=f"{kind}: a request cannot bring its own UUID; nodes mint them"):
        read(forge(net, kind, body={**body, "uuid": UUID}), alice)


def test_signed_outside_the_certificate(net: LittleNetwork) -> None:
    alice = net.entity("alice")
    for at in (alice.identity.not_before - SECOND, alice.identity.not_after + SECOND):
        raw = envelope.write("hello", {}, alice, audience=net.audience, now=at, life=MINUTE)
        with pytest.raises(TrustError, match=r"not valid before|expired"):
            read(raw, alice)


@pytest.mark.parametrize(
    ("audience", "now", "longest", "why"),
    [
        ("node:n2", T0, HOUR, "addressed to somebody else"),
        ("tdn:nodes", T0, HOUR, "addressed to somebody else"),
        ("node:n1", T0 - HOUR, HOUR, "in the future"),
        ("node:n1", T0 + HOUR, HOUR, "has expired"),
        ("node:n1", T0, 59 * SECOND, "live longer"),
    ],
)
def test_addressed(net: LittleNetwork, audience: str, now: Any, longest: timedelta, why: str) -> None:
    """T19: bound to its audience and to a short time window."""
    found = read(forge(net), net.entity("alice"))
    envelope.require_addressed(found, audiences=frozenset({"node:n1"}), now=T0, longest=HOUR)
    with pytest.raises(TrustError, match=why):
        envelope.require_addressed(found, audiences=frozenset({audience}), now=now, longest=longest)


def test_no_audience_is_a_no(net: LittleNetwork) -> None:
    with pytest.raises(TrustError, match="somebody else"):
        envelope.require_addressed(read(forge(net), net.entity("alice")), audiences=frozenset(), now=T0, longest=HOUR)


def test_certificate_ended_since_signing(net: LittleNetwork) -> None:
    """Signed in time, sent too late: an expired certificate gets nothing done."""
    alice = net.entity("alice")
    end = alice.identity.not_after
    raw = envelope.write("hello", {}, alice, audience=net.audience, now=end, life=DAY)
    with pytest.raises(TrustError, match="has expired"):
        envelope.require_addressed(read(raw, alice), audiences=frozenset({net.audience}), now=end + HOUR, longest=DAY)
