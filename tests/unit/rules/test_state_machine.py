"""`apply` against a model that is obviously right, and against whatever anybody could sign."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from granting import Granting, looked_at
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
from sizes import examples

from tdn.errors import UnknownRules
from tdn.protocol import jsontext, schemas
from tdn.protocol.times import format_time
from tdn.rules import feeds
from tdn.rules.apply import RULES_VERSION
from tdn.rules.state import Outcome
from tdn.trust import openings, signing
from tdn.trust.certificates import encode_chain
from tdn.trust.credentials import Credentials

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
            max_examples=examples(40),
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


def prepared() -> tuple[Granting, list[str], list[str]]:
    """A log with a hierarchy, collections in each other, watches, grants, an offer and subscriptions; its UUIDs, and its grants' ids: records
    about them are not refused at the door."""
    begin = NET.log()
    log = Granting(NET, begin.state, begin.records)
    root = log.advertised(hosting={"allow_children": True, "max_depth": 3, "max_width": 3})
    child = log.child(root, hosting={"allow_children": True})
    topic, of_bob = log.advertised(), log.advertised("bob")
    options = {"child_collections": True, "inclusion": True, "lists": {"owner_allow": ["*"]}}
    outer = log.collection(limits={"breadth": 3, "depth": 3, "topics": 3}, **options)
    inner = log.collection(members=[topic], limits={"topics": 2}, **options)
    for kind, body in (
        ("add", {"collection": outer, "uuid": child}),
        ("watch", {"uuid": outer}),
        ("watch", {"uuid": root}),
        ("watch", {"uuid": inner}),
    ):
        assert log.change(kind, "alice", **body).status == "accepted"
    given = log.gave("alice", "bob", root, "publish", tree=True, delegable=True)
    passed = log.passed("bob", "institution:Elsewhere", given)
    held = log.gave("bob", "alice", of_bob, "subscribe", delegable=True)
    to_all = log.gave("alice", "*", outer, "subscribe", tree=True)
    for who, uuid, tree in (("alice", topic, False), ("alice", outer, True), ("bob", root, True)):
        assert log.subscribe(who, uuid, tree=tree).status == "accepted"
    assert log.open("bob", child).status == "accepted"
    assert log.transfer("bob", of_bob, "alice").status == "accepted"
    return log, [root, child, topic, of_bob, outer, inner, fresh_uuid()], [given, passed, held, to_all]


PREPARED, UUIDS, GRANTS = prepared()
ROOT, CHILD, TOPIC, OF_BOB, OUTER, INNER, NOWHERE = UUIDS
GIVEN, PASSED, HELD, TO_ALL = GRANTS
NEW_GRANT, QUEUE = "a-grant-that-is-not-yet", "ab" * 16
SEED = "s" * 22
GATHERING = {
    "fixed": False,
    "limits": {"breadth": 3, "depth": 2, "topics": 3},
    "child_collections": True,
    "inclusion": True,
    "notifications": NOWHERE,
}
OPENINGS: list[dict[str, Any]] = [
    {"access": {}},
    {"access": {"discover_deny": ["bob"]}, "hosting": {"allow_children": True, "max_width": 0}},
    {"access": {}, "hosting": {"allow_children": True}, "parent": ROOT},
    {"access": {"add_allow": ["*"]}, "gathering": GATHERING, "members": []},
    {"access": {"owner_allow": ["*"]}, "gathering": GATHERING, "members": [TOPIC, INNER]},
]
#: By kind, what alice could send of it with success; of the last three, what she may not, or what is no record.
SOUND: dict[str, dict[str, Any]] = {
    "renew": {"uuid": TOPIC, "lifetime_seconds": 60},
    "withdraw": {"uuid": ROOT},
    "advertise": {"uuid": NOWHERE, "opening": {}},
    "hello": {},
    "register": {
        "creator": "alice",
        "institution": "local",
        "lifetime_seconds": 3600,
        "descriptor": {"kind": "path", "path": "a/b"},
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
        "lists": {"discover_allow": ["bob"], "register_deny": ["*"]},
        "hosting": {"allow_children": True, "max_depth": 1, "max_width": 2},
        "parent": CHILD,
    },
    "add": {"collection": OUTER, "uuid": INNER},
    "remove": {"collection": OUTER, "uuid": CHILD},
    "move": {"uuid": TOPIC, "from": INNER, "to": OUTER},
    "watch": {"uuid": CHILD},
    "unwatch": {"uuid": OUTER},
    "give": {"grant": NEW_GRANT, "uuid": TOPIC},
    "retract": {"grant": GIVEN},
    "transfer": {"uuid": TOPIC, "to": "bob"},
    "accept": {"uuid": OF_BOB, "keep_grants": True},
    "open": {"uuid": ROOT},
    "subscribe": {"uuid": ROOT, "tree": True, "depth": 2},
    "unsubscribe": {"uuid": TOPIC},
    "tick": {},
    "checkpoint": {},
    "enrol": {"chain": encode_chain(NET.entity("alice").identity.chain)},
    "revoke": {"principal": "entity:bob", "issued_until": format_time(T0), "keys": []},
    "rules": {"rules": RULES_VERSION},
    "genesis": {
        "operator": encode_chain(NET.entity("alice").identity.chain),
        "roots": ["AAAA"],
        "rules": RULES_VERSION,
        "created": format_time(T0),
        "salt": "00" * 16,
    },
    "countersign": {"right": "include", "uuid": TOPIC, "entity": "bob"},
}
BY_OPERATOR = {"enrol", "revoke", "rules", "genesis"}


def begun() -> Granting:
    """That log once more, for one test to go on with."""
    return Granting(NET, copy.deepcopy(PREPARED.state), list(PREPARED.records))


def advertised_by_hand(uuid: str, opening: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of an advertisement, put together here so that any part of it can be wrong."""
    return {
        "v": 1,
        "kind": "collection" if "gathering" in opening else "topic",
        "uuid": uuid,
        "network": NET.id,
        "creator": "alice",
        "creator_key": NET.entity("alice").identity.name.key_hash,
        "institution": "local",
        "created": format_time(T0),
        "expires": format_time(T0 + HOUR),
        "lifetime_seconds": 3600,
        "descriptor": {"kind": "path", "path": "a/b"},
        "synopsis": {"type": "string", "placeholder": "{uuid}", "value": uuid},
        "node": "n1",
        "hidden": openings.digest_of(opening),
    }


def minted_by_hand(payload: dict[str, Any], issued: int = int(T0.timestamp())) -> bytes:
    node = NET.node("n1")
    return signing.sign("advertisement", payload, node.key, chain=node.identity.chain, with_chain=True, issued=issued)


#: What grants rest on, by what they are for: an advertisement that is alice's, or a grant that she holds.
RESTS: list[dict[str, Any]] = [
    {"topic": TOPIC, "right": "subscribe", "advertisement": PREPARED.topic(TOPIC)["digest"]},
    {"topic": ROOT, "right": "publish", "tree": True, "advertisement": PREPARED.topic(ROOT)["digest"]},
    {"topic": OUTER, "right": "subscribe", "tree": True, "advertisement": PREPARED.topic(OUTER)["digest"]},
    {"topic": OF_BOB, "right": "subscribe", "parent": {"grant": HELD, "digest": PREPARED.grant(HELD)["digest"]}},
]
GRANTEES = ("*", "institution:local", str(NET.entity("bob").identity.name))


def granted_by_hand(claims: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a grant, put together here so that any part of it can be wrong."""
    return {
        "v": 1,
        "iss": str(NET.entity("alice").identity.name),
        "sub": "*",
        "aud": NET.audience,
        "jti": NEW_GRANT,
        "iat": int(T0.timestamp()),
        "nbf": int(T0.timestamp()),
        "exp": int((T0 + HOUR).timestamp()),
        "tree": False,
        "delegable": True,
        **claims,
    }


def signed_grant(payload: dict[str, Any], signer: Credentials | None = None) -> bytes:
    who = signer or NET.entity("alice")
    return signing.sign("grant", payload, who.key, chain=who.identity.chain, with_chain=True)


def written(kind: str, claims: dict[str, Any], payload: dict[str, Any], tail: bytes | None = None) -> bytes:
    """A record with right signatures over whatever is given."""
    alice, node = NET.entity("alice"), NET.node("n1")
    request = signing.sign(kind, claims, alice.key, chain=alice.identity.chain, with_chain=kind == "hello", tail=tail)
    return signing.sign("record", payload, node.key, chain=node.identity.chain, tail=request)


def sound(kind: str, body: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The claims of alice's request and the payload of the node's record."""
    claims = {
        "v": 1,
        "iss": str(NET.entity("alice").identity.name),
        "aud": NET.audience,
        "iat": int(T0.timestamp()),
        "exp": int(T0.timestamp()) + 3600,
        "jti": fresh_id(),
        "body": SOUND[kind] if body is None else body,
    }
    payload: dict[str, Any] = {"v": 1, "kind": kind, "node": "n1", "at": format_time(T0)}
    if kind == "checkpoint":
        payload["checkpoint"] = {"seq": 1, "head": "0" * 64, "at": format_time(T0), "digest": "1" * 64}
    if kind in ("register", "subscribe"):
        payload["minted"] = {"uuid": fresh_uuid(), "seed": SEED} if kind == "register" else {"queue": QUEUE}
    return claims, payload


@st.composite
def hostile_records(draw: st.DrawFn) -> bytes:
    """Records with a right signature of a node or an entity over something that is wrong in one place, or names something else."""
    kind = draw(st.sampled_from(sorted(SOUND)))
    places = st.sampled_from([*UUIDS, *(fresh_uuid(number << 20) for number in (1, 2, 3))])
    claims, payload = sound(kind)
    named = [name for name in ("uuid", "collection", "from", "to", "parent", "grant") if name in claims["body"]]
    if draw(st.booleans()):
        others = {
            "grant": st.sampled_from([*GRANTS, NEW_GRANT]),
            "to": st.sampled_from(ENTITIES) if kind == "transfer" else places,
        }
        claims["body"] = {**claims["body"], **{name: draw(others.get(name, places)) for name in named}}
    if kind == "subscribe" and draw(st.booleans()):
        claims["body"] = {"uuid": claims["body"]["uuid"], "tree": draw(st.booleans())}
    if kind in ("add", "move", "register") and draw(st.booleans()):
        word = draw(st.sampled_from([("include", OF_BOB), ("include", INNER), ("register", ROOT), ("discover", ROOT)]))
        claims["body"] = {**claims["body"], "countersigned": NET.countersign(NET.entity("bob"), *word, "alice")}
    if kind == "register" and draw(st.booleans()):
        payload["minted"] = draw(st.fixed_dictionaries({"uuid": places, "seed": st.just(SEED)}) | st.none() | json_values)
    if kind == "subscribe" and draw(st.integers(0, 4)) == 0:
        payload["minted"] = draw(st.sampled_from([{"queue": PREPARED.queue("alice", TOPIC)}, {"uuid": ROOT, "seed": SEED}, None]))
    where = draw(st.sampled_from(["request", "record", "tail", "nowhere"]))
    tail, issued = None, int(T0.timestamp())
    if kind == "advertise":
        chosen = draw(st.sampled_from(OPENINGS))
        opening = openings.conceal(_changed(chosen, draw) if draw(st.booleans()) else chosen, SEED)
        claims["body"] = {"uuid": claims["body"]["uuid"], "opening": opening}
        minted = advertised_by_hand(claims["body"]["uuid"], opening)
        if draw(st.integers(0, 4)) == 0:
            claims["body"]["opening"] = openings.disclose(opening, draw(st.sets(st.sampled_from(sorted(opening)))))
        if where == "tail":
            minted = _changed(minted, draw)
            issued = draw(st.sampled_from([issued, 0, 32503679999]))
        tail = minted_by_hand(minted, issued)
    if kind == "give" and draw(st.integers(0, 9)):
        grant = granted_by_hand({**draw(st.sampled_from(RESTS)), "sub": draw(st.sampled_from(GRANTEES))})
        if draw(st.booleans()):
            grant["jti"] = draw(st.sampled_from([*GRANTS, NEW_GRANT]))
        if draw(st.integers(0, 3)):
            claims["body"] = {"grant": grant["jti"], "uuid": grant["topic"]}
        if where == "tail":
            grant = _changed(grant, draw)
        tail = signed_grant(grant, draw(st.sampled_from([None, NET.entity("bob"), NET.node("n1"), NET.entity("carol")])))
    if where == "request":
        claims = _changed(claims, draw)
    if where == "record":
        payload = _changed(payload, draw)
    return written(kind, claims, payload, tail)


def test_hostile_records_begin_as_sound_ones() -> None:
    """What the next test breaks was whole: every kind that the log knows, and what carries openings of every form."""
    assert {*SOUND} == {*schemas.load("record")["properties"]["kind"]["enum"], "countersign"}
    expected = dict.fromkeys(SOUND, "accepted") | dict.fromkeys(BY_OPERATOR, "refused") | {"countersign": "void"}
    found = {}
    for kind in SOUND:
        if kind not in ("advertise", "give"):
            outcome = begun().append(written(kind, *sound(kind)))
            assert outcome.status == expected[kind], (kind, outcome)
            found[kind] = outcome.status
    for rest in RESTS:
        for grantee in GRANTEES if "advertisement" in rest else GRANTEES[:2]:
            grant = granted_by_hand({**rest, "sub": grantee})
            claims, payload = sound("give", {"grant": grant["jti"], "uuid": grant["topic"]})
            outcome = begun().append(written("give", claims, payload, signed_grant(grant)))
            assert outcome.status == "accepted", outcome
            found["give"] = outcome.status
    for hidden in OPENINGS:
        log, uuid, opening = begun(), fresh_uuid(), openings.conceal(hidden, SEED)
        if "parent" in hidden:
            asked = {name: value for name, value in SOUND["register"].items() if name != "lists"}
            request, record = sound("register", {**asked, "hosting": hidden["hosting"], "parent": hidden["parent"]})
            record["minted"]["uuid"] = uuid
            assert log.append(written("register", request, record)).status == "accepted"
        request, record = sound("advertise", {"uuid": uuid, "opening": opening})
        outcome = log.append(written("advertise", request, record, minted_by_hand(advertised_by_hand(uuid, opening))))
        assert outcome.status == "accepted", outcome
        found["advertise"] = outcome.status
    assert found == expected


@settings(max_examples=examples(300))
@given(st.lists(hostile_records(), min_size=1, max_size=4))
def test_nothing_signed_stops_apply(records: list[bytes]) -> None:
    """Every record has an outcome: an exception here would stop every node of the network at the same place. Time then ends all of it."""
    log = begun()
    for raw in records:
        outcome = log.append(raw)
        assert outcome.status in ("accepted", "refused", "repeated", "void")
        # It is written to the store, so it must have a text.
        jsontext.canonical(outcome.as_fact())
        for write in outcome.writes:
            jsontext.canonical([write.space, write.key, write.value])
        for who in ENTITIES:
            for uuid in UUIDS:
                log.may(who, "publish", uuid)
                log.may(who, "subscribe", uuid)
        for uuid in UUIDS:
            list(feeds.reaching(log.state, uuid, log.now))
        looked_at(log.state, outcome)
    # The queue of a subscription that ends with the third is remembered for a week more.
    for later in (MINUTE, 2 * HOUR, 40 * DAY, 80 * DAY):
        log.tick(T0 + later)
    log.tick(T0 + 80 * DAY)
    assert {fact["state"] for _, fact in log.state.all("topic")} <= {"withdrawn", "expired"}
    for space in (
        *("child", "member", "in", "size", "reserved", "settling", "pending", "watch", "watched", "change"),
        *("grant", "granted", "issued", "held", "about", "feed", "follower", "stale", "feeds"),
    ):
        assert list(log.state.all(space)) == [], space


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
