"""`apply` against a model that is obviously right, and against whatever anybody could sign."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, fresh_id, fresh_uuid, read_uuid
from pki import T0

from tdn.errors import UnknownRules
from tdn.protocol.times import format_time
from tdn.rules.state import Outcome
from tdn.trust import signing

NET = LittleNetwork("machine")
ENTITIES = ("alice", "bob", "carol")
minutes = st.integers(0, 180)


@dataclass
class Topic:
    """What the model knows of a minted topic."""

    token: bytes
    uuid: str
    creator: str
    created: datetime
    expires: datetime
    state: str = "minted"


@dataclass
class Model:
    """The rules in a few lines: who owns what, until when, and what time it is."""

    time: datetime = T0
    ticks: dict[str, datetime] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)

    def tick(self, node: str, at: datetime) -> None:
        self.ticks[node] = max(at, self.ticks.get(node, at))
        ordered = sorted(self.ticks.values())
        self.time = max(self.time, ordered[(len(ordered) - 1) // 2])
        for topic in self.topics.values():
            if topic.state == "live" and topic.expires <= self.time:
                topic.state = "expired"

    def advertise(self, who: str, topic: Topic, at: datetime) -> bool:
        if who != topic.creator:
            return False
        if topic.state != "minted":
            return topic.state == "live"
        now = max(at, self.time)
        if topic.created > at + 30 * SECOND:
            return False
        if now > topic.created + DAY or now >= topic.expires:
            return False
        topic.state = "live"
        return True

    def owned(self, who: str, topic: Topic, at: datetime) -> bool:
        return who == topic.creator and topic.state == "live" and max(at, self.time) < topic.expires


class LogMachine(RuleBasedStateMachine):
    """Entities mint, advertise, renew and withdraw through several nodes whose clocks differ; records are doubled and damaged."""

    topics = Bundle("topics")
    requests = Bundle("requests")

    @initialize()
    def begin(self) -> None:
        self.log = NET.log(ENTITIES)
        self.model = Model()

    def _put(self, kind: str, request: bytes, node: str, at: datetime, expected: bool) -> tuple[str, bytes, Outcome]:
        outcome = self.log.put(kind, request, by=node, at=at)
        assert outcome.status == ("accepted" if expected else "refused"), outcome
        assert (outcome.receipt is not None) == expected
        return kind, request, outcome

    @rule(target=topics, who=st.sampled_from(ENTITIES), node=st.sampled_from(NET.node_ids), early=minutes, life=minutes)
    def mint(self, who: str, node: str, early: int, life: int) -> Topic:
        """Minting leaves nothing behind (T7)."""
        before = self.log.state.digest()
        created = self.model.time + (early - 60) * MINUTE
        lifetime = life * MINUTE + SECOND
        token = NET.mint(NET.entity(who), node=NET.node(node), at=created, lifetime=lifetime)
        topic = Topic(token, read_uuid(token), who, created, created + lifetime)
        self.model.topics[topic.uuid] = topic
        assert self.log.state.digest() == before
        return topic

    @rule(
        target=requests,
        topic=topics,
        who=st.sampled_from(ENTITIES),
        own=st.booleans(),
        node=st.sampled_from(NET.node_ids),
        ahead=minutes,
    )
    def advertise(self, topic: Topic, who: str, own: bool, node: str, ahead: int) -> Any:
        who = topic.creator if own else who
        at = self.model.time + (ahead - 30) * MINUTE
        request = NET.advertise(NET.entity(who), topic.token, at=self.model.time)
        return self._put("advertise", request, node, at, self.model.advertise(who, topic, at))

    @rule(
        target=requests,
        topic=topics,
        who=st.sampled_from(ENTITIES),
        own=st.booleans(),
        node=st.sampled_from(NET.node_ids),
        life=minutes,
    )
    def renew(self, topic: Topic, who: str, own: bool, node: str, life: int) -> Any:
        who = topic.creator if own else who
        at = self.model.time
        allowed = self.model.owned(who, topic, at)
        lifetime = life * MINUTE + SECOND
        if allowed:
            topic.expires = at + lifetime
        return self._put("renew", NET.renew(NET.entity(who), topic.uuid, lifetime, at=at), node, at, allowed)

    @rule(target=requests, topic=topics, who=st.sampled_from(ENTITIES), own=st.booleans(), node=st.sampled_from(NET.node_ids))
    def withdraw(self, topic: Topic, who: str, own: bool, node: str) -> Any:
        who = topic.creator if own else who
        at = self.model.time
        again = topic.state == "withdrawn" and who == topic.creator
        allowed = again or self.model.owned(who, topic, at)
        if allowed:
            topic.state = "withdrawn"
        return self._put("withdraw", NET.withdraw(NET.entity(who), topic.uuid, at=at), node, at, allowed)

    @rule(node=st.sampled_from(NET.node_ids), ahead=st.integers(-30, 240))
    def tick(self, node: str, ahead: int) -> None:
        at = self.model.time + ahead * MINUTE
        assert self.log.put("tick", None, by=node, at=at).status == "accepted"
        self.model.tick(node, at)

    @rule(request=requests, node=st.sampled_from(NET.node_ids))
    def send_again(self, request: tuple[str, bytes, Outcome], node: str) -> None:
        """T22: a doubled request has the outcome it had, or comes too late; never a second effect."""
        kind, raw, first = request
        before = self.log.state.digest()
        outcome = self.log.put(kind, raw, by=node, at=self.model.time)
        if outcome.status == "repeated":
            assert (outcome.receipt, outcome.error) == (first.receipt, first.error)
        else:
            assert outcome.status == "refused"
            assert self.model.time >= T0 + DAY
        assert self.log.state.digest() == before

    @rule(target=requests, request=consumes(requests), raw=st.binary(max_size=40))
    def damage(self, request: tuple[str, bytes, Outcome], raw: bytes) -> Any:
        before = self.log.state.digest()
        kind, sound, _ = request
        record = NET.record(kind, sound)
        place = len(raw) * 7 % len(record)
        for damaged in (raw, record[:place] + raw + b"!" + record[place:], record[: len(record) - 1 - place]):
            assert self.log.append(damaged).status == "void"
        assert self.log.state.digest() == before
        return multiple(request)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.time == format_time(self.model.time)
        known = {
            uuid: (topic.state, topic.creator, format_time(topic.expires))
            for uuid, topic in self.model.topics.items()
            if topic.state != "minted"
        }
        found = {uuid: (fact["state"], fact["owner"], fact["expires"]) for uuid, fact in self.log.state.all("topic")}
        assert found == known


def test_apply_agrees_with_the_model() -> None:
    """T7, T22, T39: many steps of several entities on three nodes: owner, expiry and state are always what the model says."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LogMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


# --- whatever anybody could sign ---

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
odd_times = st.sampled_from(
    [
        "2027-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "2999-12-31T23:59:59.999999Z",
        "0001-01-01T00:00:00Z",
        "2027-02-30T00:00:00Z",
        "2027-01-01T24:00:00Z",
        "2027-01-01T00:00:60Z",
    ]
)
odd_numbers = st.sampled_from([0, -1, 1.0, True, 10**9, 253402300799, 32503679999, 2**63, 10**30, "1", None])


def _changed(payload: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    payload = json.loads(json.dumps(payload))
    place = payload
    while True:
        name = draw(st.sampled_from(sorted(place)))
        if isinstance(place[name], dict) and place[name] and draw(st.booleans()):
            place = place[name]
            continue
        place[name] = draw(json_values | odd_times | odd_numbers)
        return payload


@st.composite
def hostile_records(draw: st.DrawFn) -> bytes:
    """Records with a right signature of a node or an entity over something that is wrong in one place."""
    alice, node = NET.entity("alice"), NET.node("n1")
    uuid = fresh_uuid(draw(st.integers(1, 3)) << 20)
    claims: dict[str, Any] = {
        "v": 1,
        "iss": str(alice.identity.name),
        "aud": NET.audience,
        "iat": int(T0.timestamp()),
        "exp": int(T0.timestamp()) + 3600,
        "jti": fresh_id(),
        "body": {"uuid": uuid, "lifetime_seconds": 3600},
    }
    kind = draw(st.sampled_from(["renew", "withdraw", "advertise", "hello", "enrol", "revoke", "rules", "tick", "genesis"]))
    if kind != "renew":
        claims["body"].pop("lifetime_seconds")
    where = draw(st.sampled_from(["request", "record", "advertisement", "nowhere"]))
    tail = None
    if kind == "advertise":
        minted: dict[str, Any] = {
            "v": 1,
            "kind": "topic",
            "uuid": uuid,
            "network": NET.id,
            "creator": "alice",
            "creator_key": alice.identity.name.key_hash,
            "institution": "local",
            "created": format_time(T0),
            "expires": format_time(T0 + HOUR),
            "lifetime_seconds": 3600,
            "descriptor": {"kind": "path", "path": "a/b"},
            "synopsis": {"type": "string", "placeholder": "{uuid}", "value": uuid},
            "node": "n1",
        }
        issued: Any = int(T0.timestamp())
        if where == "advertisement":
            minted = _changed(minted, draw)
            issued = draw(st.sampled_from([issued, 0, 32503679999]))
        tail = signing.sign("advertisement", minted, node.key, chain=node.identity.chain, with_chain=True, issued=issued)
    if where == "request":
        claims = _changed(claims, draw)
    request = signing.sign(kind, claims, alice.key, chain=alice.identity.chain, with_chain=kind == "hello", tail=tail)
    payload: dict[str, Any] = {"v": 1, "kind": kind, "node": "n1", "at": format_time(T0)}
    if where == "record":
        payload = _changed(payload, draw)
    return signing.sign("record", payload, node.key, chain=node.identity.chain, tail=request)


@settings(max_examples=200)
@given(st.lists(hostile_records(), min_size=1, max_size=4))
def test_nothing_signed_stops_apply(records: list[bytes]) -> None:
    """Every record has an outcome: an exception here would stop every node of the network at the same place."""
    log = NET.log()
    for raw in records:
        outcome = log.append(raw)
        assert outcome.status in ("accepted", "refused", "repeated", "void")
        # It is written to the store, so it must have a text.
        from tdn.protocol import jsontext

        jsontext.canonical(outcome.as_fact())
    log.tick(T0 + MINUTE)


@given(st.binary(max_size=300))
@example(b"..")
@example(b"~~~")
@example(b"eyJ.eyJ.eyJ~eyJ.eyJ.eyJ")
def test_garbage_is_void(raw: bytes) -> None:
    log = NET.log(())
    assert log.append(raw).status == "void"


def test_far_record_time_does_not_overflow() -> None:
    """A rogue node's clock at the end of the calendar: void or refused, never an exception."""
    log = NET.log()
    uuid = log.advertised()
    for at in ("9999-12-31T23:59:59Z", "2999-12-31T23:59:59Z"):
        request = NET.renew(NET.entity("alice"), uuid, 3650 * DAY)
        raw = signing.sign(
            "record",
            {"v": 1, "kind": "renew", "node": "n1", "at": at},
            NET.node("n1").key,
            chain=NET.node("n1").identity.chain,
            tail=request,
        )
        assert log.append(raw).status in ("void", "refused")


def test_unknown_rules_are_the_only_exception() -> None:
    log = NET.log()
    with pytest.raises(UnknownRules):
        log.put("rules", NET.request("rules", {"rules": 99}, NET.operator))
