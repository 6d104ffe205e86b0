"""How a log begins, and which rules it may ask for."""

from __future__ import annotations

import pytest
from little_network import DAY, LittleNetwork, Log, message_of
from pki import T0, Pki

from tdn.errors import MalformedMessage, TrustError, UnknownRules
from tdn.protocol.names import Role
from tdn.rules.apply import RULES_VERSION, network_id, read_genesis
from tdn.trust import envelope


def test_genesis_begins_the_log(net: LittleNetwork) -> None:
    log = Log(net)
    outcome = log.put("genesis", net.genesis)
    assert (outcome.status, outcome.kind) == ("accepted", "genesis")
    network = log.state.get("network", "network")
    assert network is not None
    assert network["id"] == net.id == network_id(net.genesis)
    assert network["time"] == "2027-01-01T00:00:00Z"
    assert log.state.get("principal", "operator:operator") is not None


def test_before_the_genesis_everything_is_void(net: LittleNetwork) -> None:
    log = Log(net)
    alice = net.entity("alice")
    for raw in (
        b"",
        b"garbage",
        net.record("tick"),
        net.record("hello", net.hello(alice)),
        net.record("enrol", net.enrol(net.node("n1"))),
        net.genesis,
    ):
        assert log.append(raw).status == "void"
    assert log.state.digest() == Log(net).state.digest()
    assert log.put("genesis", net.genesis).status == "accepted"


def test_second_genesis_changes_nothing(net: LittleNetwork) -> None:
    log = net.log()
    before = log.state.get("network", "network")
    assert log.put("genesis", net.genesis).status == "void"
    other = LittleNetwork("rival")
    assert log.append(other.record("genesis", other.genesis)).status == "void"
    # Even one that the operator addresses to the running network.
    addressed = net.request("genesis", envelope.authenticate(net.genesis, lambda _: net.operator.identity).body, net.operator)
    outcome = log.put("genesis", addressed)
    assert (outcome.status, message_of(outcome)) == ("refused", "the log has its genesis")
    assert log.state.get("network", "network") == before


def test_genesis_needs_the_operator_that_it_names(net: LittleNetwork) -> None:
    with pytest.raises(TrustError):
        read_genesis(net.write_genesis(signer=net.entity("alice")))
    stranger = Pki("strangers").credentials(Role.OPERATOR, "operator")
    with pytest.raises(TrustError):
        read_genesis(net.write_genesis(signer=stranger))


def test_genesis_of_a_node_is_refused(net: LittleNetwork) -> None:
    """A node's certificate reaches the same roots; the role is what is missing."""
    node = net.node("n1")
    from tdn.trust.certificates import encode_chain

    with pytest.raises(TrustError, match="signed by the operator"):
        read_genesis(net.write_genesis(signer=node, operator=encode_chain(node.identity.chain)))


@pytest.mark.parametrize("raw", [b"", b"a.b.c", b"eyJ9.eyJ9.eyJ9"])
def test_genesis_that_is_none(raw: bytes) -> None:
    with pytest.raises((MalformedMessage, TrustError)):
        read_genesis(raw)


def test_unknown_rules_stop_the_reader_at_the_genesis(net: LittleNetwork) -> None:
    log = Log(net)
    with pytest.raises(UnknownRules):
        log.put("genesis", net.write_genesis(rules=RULES_VERSION + 1))
    assert log.records == []


def test_unknown_rules_stop_the_reader_later(net: LittleNetwork) -> None:
    log = net.log()
    before = log.state.digest()
    with pytest.raises(UnknownRules, match=f"rules version {RULES_VERSION + 1}"):
        log.put("rules", net.request("rules", {"rules": RULES_VERSION + 1}, net.operator))
    assert log.state.digest() == before


def test_rules_only_by_the_operator(net: LittleNetwork) -> None:
    log = net.log()
    assert log.put("rules", net.request("rules", {"rules": RULES_VERSION}, net.operator)).status == "accepted"
    outcome = log.put("rules", net.request("rules", {"rules": RULES_VERSION + 7}, net.entity("alice")))
    assert (outcome.status, message_of(outcome)) == ("refused", "only the operator can do this")


def test_a_statement_after_its_deadline(net: LittleNetwork) -> None:
    """A request whose memory may have been cleared is not judged a second time."""
    log = net.log()
    log.tick(T0 + 2 * DAY)
    outcome = log.put("rules", net.request("rules", {"rules": RULES_VERSION}, net.operator), at=T0 + 2 * DAY)
    assert (outcome.status, message_of(outcome)) == ("refused", "the request came after its deadline")
