"""What an advertisement hides: bound by its digest, told to few, and of one length whatever it is."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_network import NO_LISTS, LittleNetwork, Log, fresh_uuid, message_of, payload_of

from tdn.errors import TrustError
from tdn.protocol import schemas
from tdn.protocol.access import Lists, lists
from tdn.trust import openings

CHOICES = [
    lists(),
    lists(["bob"]),
    lists(["*"], ["carol", "institution:Elsewhere"]),
    lists([f"e{number}" for number in range(500)]),
]


def opening(value: dict[str, Any], salt: str = "A" * 22) -> dict[str, Any]:
    return {"access": {"salt": salt, "value": value}}


@pytest.mark.parametrize("choice", CHOICES, ids=["none", "one", "both", "500"])
def test_round_trip(choice: Lists) -> None:
    """T18: whoever has the opening reads the lists; the digest is of one length, with lists and without."""
    made = openings.conceal(choice)
    schemas.check("opening", dict(made))
    hidden = openings.digest_of(made)
    assert len(hidden) == 43
    assert openings.read(made, hidden) == choice


def test_digest_is_as_documented() -> None:
    """Others can compute it: canonical JSON of [salt, name, value], hashed; those by name, hashed again."""

    def sha256(value: Any) -> str:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()

    value = {"discover_deny": ["bob", "institution:Zürich"]}
    assert openings.digest_of(opening(value)) == sha256({"access": sha256(["A" * 22, "access", value])})


def test_salt_name_and_value_are_bound() -> None:
    """T18: another salt, another claim's name or another value is another digest, and none is read in another's place."""
    value = {"discover_allow": ["bob"]}
    variants = [
        opening(value),
        opening(value, "B" * 22),
        opening({"discover_deny": ["bob"]}),
        opening({"discover_allow": ["bob", "carol"]}),
        opening({}),
        {"other": {"salt": "A" * 22, "value": value}},
        {**opening(value), "other": {"salt": "A" * 22, "value": value}},
    ]
    digests = [openings.digest_of(variant) for variant in variants]
    assert len(set(digests)) == len(variants)
    for place, variant in enumerate(variants):
        for other, digest in enumerate(digests):
            if place != other:
                with pytest.raises(TrustError, match="does not belong to the advertisement"):
                    openings.read(variant, digest)


@given(st.sampled_from(CHOICES))
def test_equal_lists_have_unequal_digests(choice: Lists) -> None:
    """T18: nobody finds out by comparing whether two topics have the same lists, or none; nor by trying likely ones."""
    one, other = openings.conceal(choice), openings.conceal(choice)
    assert one["access"]["salt"] != other["access"]["salt"]
    assert openings.digest_of(one) != openings.digest_of(other)
    assert len(base64.urlsafe_b64decode(one["access"]["salt"] + "==")) == 16


# --- in the log ---


@pytest.mark.parametrize(
    ("value", "restricts"),
    [({}, False), ({"discover_allow": ["bob"]}, True), ({"discover_deny": ["bob"]}, True), ({"discover_allow": ["*"]}, True)],
)
def test_lists_land_in_the_fact_where_they_restrict(net: LittleNetwork, value: dict[str, Any], restricts: bool) -> None:
    """T18: the log knows the lists; without any, the fact has no member for them. Applied twice, the same fact."""
    raw = net.record(
        "advertise", net.advertise(net.entity("alice"), net.mint(net.entity("alice"), uuid=(uuid := fresh_uuid()), lists=value))
    )
    begun, states = net.opening(), []
    for _ in range(2):
        log = Log(net)
        assert [log.append(each).status for each in (*begun, raw)][-1] == "accepted"
        states.append(log.state.digest())
        assert log.topic(uuid).get("lists") == (value if restricts else None)
    assert states[0] == states[1]


def test_advertise_with_an_opening_that_is_not_its_own(net: LittleNetwork) -> None:
    """T18: not other lists, not another salt, not no lists: the creator cannot choose after minting, and nothing is written."""
    alice = net.entity("alice")
    token = net.mint(alice, lists={"discover_deny": ["bob"]}, salt="A" * 22)
    for wrong in (
        NO_LISTS,
        opening({}),
        opening({"discover_deny": ["carol"]}),
        opening({"discover_allow": ["bob"]}),
        opening({"discover_deny": ["bob"]}, "B" * 22),
    ):
        log = net.log()
        before = {uuid for uuid, _ in log.state.all("topic")}
        outcome = log.put("advertise", net.advertise(alice, token, opening=wrong))
        assert outcome.status == "refused"
        assert message_of(outcome) == "the opening does not belong to the advertisement"
        assert {uuid for uuid, _ in log.state.all("topic")} == before
    assert (
        net.log().put("advertise", net.advertise(alice, token, opening=opening({"discover_deny": ["bob"]}))).status == "accepted"
    )


def test_signed_bytes_do_not_tell(net: LittleNetwork) -> None:
    """T18: two advertisements, with long lists and with none, have the same members and the same length."""
    alice, uuid = net.entity("alice"), fresh_uuid()
    plain = net.mint(alice, uuid=uuid)
    listed = net.mint(alice, uuid=uuid, lists={"discover_allow": [f"e{number}" for number in range(500)]})
    assert len(plain) == len(listed)
    one, other = payload_of(plain), payload_of(listed)
    assert {name for name in one if one[name] != other[name]} == {"hidden"}
    assert one.keys() == other.keys()
