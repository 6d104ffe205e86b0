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
from tdn.protocol.access import Access, access, lists
from tdn.protocol.trees import Gathering, Hosting, Limits
from tdn.rules.sight import access_of
from tdn.trust import openings

PARENT, CHANGES, MEMBER, OTHER = (fresh_uuid(number) for number in range(901, 905))
CHOICES = [
    access("alice"),
    access("alice", discover=lists(["bob"])),
    access("alice", discover=lists(["*"], ["carol", "institution:Elsewhere"]), hierarchy=lists((), ["*"]), add=lists(["bob"])),
    access("alice", discover=lists([f"e{number}" for number in range(500)])),
]
#: What a child topic hides, and what a collection does: all claims that there are.
CHILD = {"lists": CHOICES[1].as_object(), "hosting": {"allow_children": True, "max_depth": 3}, "parent": PARENT}
GATHERING = Gathering(fixed=True, limits=Limits(4, 0, 9), child_collections=True)
COLLECTION = {"lists": CHOICES[2].as_object(), "gathering": GATHERING.as_object(), "members": [MEMBER, OTHER]}
BODIES: list[dict[str, Any]] = [{}, {"lists": CHOICES[2].as_object()}, CHILD, COLLECTION, {"gathering": GATHERING.as_object()}]
SEEDS = ("A" * 22, "B" * 22)
REGISTERED = {"v": 1, "kind": "register", "node": "n1", "at": "2027-01-01T00:00:00Z"}


def conceal(body: dict[str, Any], seed: str = SEEDS[0]) -> openings.Opening:
    return openings.conceal(openings.claims_of(body, CHANGES if "gathering" in body else None), seed)


def opening(value: dict[str, Any], salt: str = "A" * 22) -> dict[str, Any]:
    return {"access": {"salt": salt, "value": value}}


@pytest.mark.parametrize("choice", CHOICES, ids=["none", "one", "several", "500"])
def test_round_trip(choice: Access) -> None:
    """T18: whoever has the opening reads the lists; the digest is of one length, with lists and without."""
    made = conceal({"lists": choice.as_object()})
    schemas.check("opening", dict(made))
    hidden = openings.digest_of(made)
    assert len(hidden) == 43
    assert openings.read(made, hidden) == openings.Opened(access=choice)


def test_what_a_child_hides() -> None:
    """T23: its lists, what children it takes and whose child it is; and nothing that it does not have."""
    made = conceal(CHILD)
    schemas.check("opening", dict(made))
    assert set(made) == {"access", "hosting", "parent"}
    opened = openings.read(made, openings.digest_of(made))
    assert opened == openings.Opened(access=CHOICES[1], hosting=Hosting(True, max_depth=3), parent=PARENT)
    assert opened.whole


def test_what_a_collection_hides() -> None:
    """T31, T32: its lists, its options with the change topic that a node minted, and its first members; also when there are none."""
    made = conceal(COLLECTION)
    schemas.check("opening", dict(made))
    assert set(made) == {"access", "gathering", "members"}
    opened = openings.read(made, openings.digest_of(made))
    assert (opened.access, opened.gathering, opened.notifications) == (CHOICES[2], GATHERING, CHANGES)
    assert (opened.members, opened.hosting, opened.parent, opened.whole) == ((MEMBER, OTHER), None, None, True)
    without = conceal(BODIES[-1])
    assert without["members"]["value"] == []
    assert openings.read(without, openings.digest_of(without)).members == ()


# --- some of it ---


@pytest.mark.parametrize("body", BODIES, ids=["nothing", "lists", "child", "collection", "bare collection"])
def test_disclosed_in_part(body: dict[str, Any]) -> None:
    """T23, T31: whoever gets some claims verifies them against the same signed digest; of the others it has nothing but a digest."""
    made = conceal(body)
    hidden = openings.digest_of(made)
    whole = openings.read(made, hidden)
    for shown in (set(), {"gathering"}, {"parent", "hosting"}, {"access"}, set(made), {*made, "of no kind"}):
        part = openings.disclose(made, shown)
        schemas.check("opening", dict(part))
        assert openings.digest_of(part) == hidden
        assert set(part) == set(made)
        opened = openings.read(part, hidden)
        assert opened.whole == (set(made) <= shown)
        for claim, empty in (("access", None), ("hosting", None), ("parent", None), ("gathering", None), ("members", ())):
            assert getattr(opened, claim) == (getattr(whole, claim) if claim in shown else empty), claim
        assert opened.notifications == (whole.notifications if "gathering" in shown else None)
        closed = json.dumps({name: part[name] for name in set(made) - shown})
        assert "salt" not in closed
        assert "value" not in closed
        for secret in ("bob", "carol", PARENT, MEMBER, CHANGES, "max_depth"):
            assert secret not in closed
        # What was closed stays so, whoever passes it on.
        assert openings.disclose(part, set(made)) == dict(sorted(part.items()))


def test_a_part_of_another_opening() -> None:
    """T18: a claim cannot be put in the place of another's, nor opened with another value; not even a closed one."""
    one, other = conceal(COLLECTION), conceal({**COLLECTION, "members": [OTHER]}, SEEDS[1])
    hidden = openings.digest_of(one)
    lied = {**one["gathering"], "value": {**one["gathering"]["value"], "fixed": False}}
    closed, its = openings.disclose(one, ()), openings.disclose(other, ())
    for wrong in (
        {**one, "members": other["members"]},
        {**one, "gathering": lied},
        {**closed, "members": its["members"]},
        {**closed, "gathering": lied},
        {**one, "members": one["access"]},
        {**closed, "members": closed["access"]},
        {name: claim for name, claim in one.items() if name != "members"},
        {name: claim for name, claim in closed.items() if name != "members"},
        {**closed, "parent": openings.disclose(conceal(CHILD), ())["parent"]},
    ):
        with pytest.raises(TrustError, match="does not belong to the advertisement"):
            openings.read(wrong, hidden)


# --- salts ---


@pytest.mark.parametrize("body", BODIES[2:4], ids=["child", "collection"])
def test_salts_differ_by_claim_and_by_seed(body: dict[str, Any]) -> None:
    """T18: a claim that is shown gives away no other claim's salt; who appends a registration and who answers make the same ones."""
    one, other = conceal(body), conceal(body, SEEDS[1])
    assert conceal(body) == one
    salts = [claim["salt"] for opening in (one, other) for claim in opening.values()]
    assert len(set(salts)) == len(salts) == 2 * len(one)
    assert {len(salt) for salt in salts} == {22}
    assert not set(SEEDS) & set(salts)


def test_salt_is_as_documented() -> None:
    """Another implementation makes the same opening from a record's seed: SHA-256 of seed, space and claim, the first 22 characters."""
    made = conceal(CHILD)
    for name, claim in made.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(f"{SEEDS[0]} {name}".encode()).digest()).decode()
        assert claim["salt"] == digest[:22]


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


@given(st.sampled_from(BODIES))
def test_equal_claims_have_unequal_digests(body: dict[str, Any]) -> None:
    """T18: nobody finds out by comparing whether two topics have the same lists, or none; nor by trying likely ones."""
    seeds = openings.new_seed(), openings.new_seed()
    one, other = (conceal(body, seed) for seed in seeds)
    assert all(one[claim]["salt"] != other[claim]["salt"] for claim in one)
    assert openings.digest_of(one) != openings.digest_of(other)
    for seed in seeds:
        assert len(base64.urlsafe_b64decode(seed + "==")) == 16
        schemas.check("record", {**REGISTERED, "minted": {"uuid": PARENT, "seed": seed}})


# --- in the log ---


@pytest.mark.parametrize(
    ("value", "restricts"),
    [
        ({}, False),
        ({"discover_allow": ["bob"]}, True),
        ({"discover_deny": ["bob"]}, True),
        ({"discover_allow": ["*"]}, True),
        ({"hierarchy_deny": ["bob"], "register_allow": ["carol"]}, True),
    ],
)
def test_lists_land_in_the_fact_where_they_restrict(net: LittleNetwork, value: dict[str, Any], restricts: bool) -> None:
    """T18: the log knows the lists, once for all topics with the same; without any, the fact has no member for them. Applied twice, the same."""
    raw = net.record(
        "advertise", net.advertise(net.entity("alice"), net.mint(net.entity("alice"), uuid=(uuid := fresh_uuid()), lists=value))
    )
    begun, states = net.opening(), []
    for _ in range(2):
        log = Log(net)
        assert [log.append(each).status for each in (*begun, raw)][-1] == "accepted"
        states.append(log.state.digest())
        fact = log.topic(uuid)
        assert ("access" in fact) == restricts
        assert access_of(log.state, fact).as_object() == value
        assert [lists for _, lists in log.state.all("access")] == ([value] if restricts else [])
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


@pytest.mark.parametrize("shown", [(), ("gathering", "members"), ("access",), ("access", "gathering")], ids=str)
def test_the_log_takes_no_closed_opening(net: LittleNetwork, shown: tuple[str, ...]) -> None:
    """T7, T31: whoever advertises opens everything: what nodes decide by is in the log. Nothing is written of what keeps a claim closed."""
    alice, log = net.entity("alice"), net.log()
    token = net.mint(alice, gathering=GATHERING.as_object(), members=[])
    opening = net._openings[token]
    outcome = log.put("advertise", net.advertise(alice, token, opening=openings.disclose(opening, shown)))
    assert outcome.status == "refused"
    assert "goes into the log whole" in message_of(outcome)
    assert list(log.state.all("topic")) == []
    assert log.put("advertise", net.advertise(alice, token)).status == "accepted"


def test_signed_bytes_do_not_tell(net: LittleNetwork) -> None:
    """T18: two advertisements, with long lists and with none, have the same members and the same length."""
    alice, uuid = net.entity("alice"), fresh_uuid()
    plain = net.mint(alice, uuid=uuid)
    listed = net.mint(alice, uuid=uuid, lists={"discover_allow": [f"e{number}" for number in range(500)]})
    assert len(plain) == len(listed)
    one, other = payload_of(plain), payload_of(listed)
    assert {name for name in one if one[name] != other[name]} == {"hidden"}
    assert one.keys() == other.keys()


def test_signed_bytes_do_not_tell_whose_child(net: LittleNetwork) -> None:
    """T23: nor do they tell that a topic has a parent, or takes children."""
    alice, log = net.entity("alice"), net.log()
    root = log.advertised(hosting={"allow_children": True, "max_width": 1})
    request = net.register(alice, root, descriptor={"kind": "path", "path": "weather/europe"}, hosting={"allow_children": True})
    child = net.mint_child(request, log.put("register", request))
    plain = net.mint(alice)
    assert len(child) == len(plain)
    one, other = payload_of(child), payload_of(plain)
    assert {name for name in one if one[name] != other[name]} == {"uuid", "synopsis", "hidden"}
    assert one.keys() == other.keys()
    assert root not in json.dumps(one)
