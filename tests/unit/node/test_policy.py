"""T11: a node's policy: whom it answers, what it stores, how an operator writes it, and what is said when that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from little_network import LittleNetwork, payload_of
from pki import T0

from tdn.errors import Refused, UsageError
from tdn.node import questions
from tdn.node.policy import EVERYBODY, KINDS, Policy, read_policy
from tdn.node.questions import Desk
from tdn.protocol import descriptor as descriptors
from tdn.protocol import schemas
from tdn.protocol.access import Asker
from tdn.protocol.names import Role
from tdn.rules.state import MemoryState
from tdn.trust import envelope
from tdn.trust.credentials import Credentials

ALICE, BOB = Asker("alice", "Physics"), Asker("bob", "Elsewhere")


def test_nothing_said_means_everybody() -> None:
    assert read_policy({}) == EVERYBODY == Policy(("*",), ("*",), KINDS)
    assert EVERYBODY.serves(ALICE)
    assert EVERYBODY.serves(Asker(None, ""))
    assert EVERYBODY.stored().accepts({"creator": "x", "institution": "y", "descriptor": {"kind": "sealed"}})


def test_a_realm() -> None:
    """One line: answers and stores one institution, and nothing else."""
    realm = read_policy({"realm": "Physics"})
    assert realm.as_object() == {"answers": ["institution:Physics"], "stores": ["institution:Physics"], "kinds": list(KINDS)}
    assert realm.serves(ALICE)
    assert realm.serves(Asker(None, "Physics"))
    assert not realm.serves(BOB)
    accepts = realm.stored().accepts
    assert accepts({"creator": "bob", "institution": "Physics", "descriptor": {"kind": "path"}})
    assert not accepts({"creator": "alice", "institution": "Elsewhere", "descriptor": {"kind": "path"}})
    assert read_policy({"realm": "Physics", "kinds": ["xml"]}).kinds == ("xml",)


def test_answers_and_stores_are_apart() -> None:
    policy = read_policy({"answers": ["alice", "institution:Elsewhere"], "stores": ["bob"]})
    assert (policy.serves(ALICE), policy.serves(BOB), policy.serves(Asker("carol", "Physics"))) == (True, True, False)
    for creator, stored in (("bob", True), ("alice", False)):
        assert policy.stored().accepts({"creator": creator, "institution": "Elsewhere", "descriptor": {"kind": "text"}}) is stored


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    accepts = read_policy({"kinds": [kind]}).stored().accepts
    assert [other for other in KINDS if accepts({"creator": "a", "institution": "b", "descriptor": {"kind": other}})] == [kind]


def test_accepts_what_nodes_sign(net: LittleNetwork) -> None:
    """What is judged is an advertisement's payload, as it stands in the log."""
    payload = payload_of(net.mint(net.entity("alice"), descriptor=descriptors.xml("<a/>")))
    assert read_policy({"realm": "local", "kinds": ["xml"]}).stored().accepts(payload)
    assert not read_policy({"realm": "local", "kinds": ["text"]}).stored().accepts(payload)
    assert not read_policy({"realm": "other"}).stored().accepts(payload)


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"relm": "Physics"}, "policy: 'relm' is unknown; there are answers, kinds, realm, stores"),
        ({"realm": "Physics", "answers": ["*"]}, "leave out answers and stores"),
        ({"realm": "Physics", "stores": ["*"]}, "leave out answers and stores"),
        ({"realm": ["Physics"]}, "policy.realm: write the institution's name in quotes"),
        ({"realm": 7}, "policy.realm: write the institution's name in quotes"),
        ({"realm": ""}, "names no institution"),
        ({"realm": "a\nb"}, "names no institution"),
        ({"answers": "alice"}, "policy.answers: write a list"),
        ({"answers": []}, "policy.answers: write a list"),
        ({"stores": [1]}, "policy.stores: write a list"),
        ({"stores": {}}, "policy.stores: write a list"),
        ({"stores": ["Alice"]}, "'Alice' names nobody"),
        ({"answers": ["institution:"]}, "names no institution"),
        ({"kinds": []}, "policy.kinds: write a list of path, text, properties, xml, sealed, with at least one"),
        ({"kinds": "xml"}, "policy.kinds: write a list"),
        ({"kinds": ["yaml"]}, "policy.kinds: write a list"),
        ({"kinds": [["xml"]]}, "policy.kinds: write a list"),
    ],
)
def test_mistakes(values: dict[str, Any], fragment: str) -> None:
    """Each says which setting, and what to write."""
    with pytest.raises(UsageError) as caught:
        read_policy(values)
    assert fragment in caught.value.message


# --- at the desk ---


def desk(net: LittleNetwork, policy: Policy) -> Desk:
    return Desk(net.node("n1"), net.id, policy, position=lambda: 7)


def ask(net: LittleNetwork, policy: Policy, kind: str, body: dict[str, Any], who: Credentials) -> list[questions.Answer]:
    question = envelope.authenticate(net.request(kind, body, who, audience="node:n1"), lambda _: who.identity)
    return list(questions.answer(desk(net, policy), question, MemoryState(), T0))  # type: ignore[arg-type]  # asked for facts alone


def test_whom_it_does_not_serve_is_told(net: LittleNetwork) -> None:
    """T11: declined aloud, with the node's name and whom it answers; a silent node would be taken for none (T17)."""
    alice = net.entity("alice")
    realm = read_policy({"realm": "elsewhere"})
    for kind, body in (("show", {"uuid": "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"}), ("lookup", {"principal": "entity:bob"})):
        with pytest.raises(Refused, match="node n1 answers only institution:elsewhere; ask another node") as caught:
            ask(net, realm, kind, body, alice)
        assert caught.value.as_object()["detail"] == {"declined": "n1"}
    question = envelope.authenticate(net.request("discover", {"limit": 1}, alice, audience="node:n1"), lambda _: alice.identity)
    with pytest.raises(Refused, match="ask another node"):
        questions.require_served(desk(net, realm), question)
    questions.require_served(desk(net, read_policy({"answers": ["alice"]})), question)


def test_everybody_is_told_the_policy(net: LittleNetwork) -> None:
    """T11, T12: a locate is answered with the policy by which an asker knows whether to ask further."""
    policy = read_policy({"answers": ["institution:Elsewhere"], "stores": ["bob"], "kinds": ["xml"]})
    (answer,) = ask(net, policy, "locate", {}, net.entity("alice"))
    schemas.check("located", answer.body)
    assert answer.body["policy"] == {"answers": ["institution:Elsewhere"], "stores": ["bob"], "kinds": ["xml"]}


def test_only_entities_and_the_operator_ask(net: LittleNetwork) -> None:
    for who in (net.node("n2"), net.guard()):
        with pytest.raises(Refused, match="only entities ask"):
            ask(net, EVERYBODY, "locate", {}, who)
    assert net.operator.identity.asker.entity is None, "an operator's id is no entity's"
    assert net.pki.credentials(Role.ENTITY, "operator").identity.asker.entity == "operator"
