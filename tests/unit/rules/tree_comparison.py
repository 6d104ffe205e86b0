"""`apply` and `Sight` beside the model of hierarchies, collections and watches: one log, one model, compared after every record.

The steps are chosen from outside, so that hypothesis and a plain loop drive the same.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from little_network import DAY, MINUTE, SECOND, Log, fresh_uuid
from tree_model import COLLECTION, LIVE, TOPIC, Model, Place, Settled, Told, decode
from tree_requests import ENTITIES, ROOMY, TANGLED, TIGHT, Choices, Requests, TwoInstitutions

from tdn.errors import UsageError
from tdn.protocol.access import Asker
from tdn.protocol.times import format_time, parse_time
from tdn.rules import clock, countersignatures, endings, watches
from tdn.rules.sight import Seen, Sight
from tdn.rules.state import Outcome

NET = TwoInstitutions("trees")

#: How the rules' words are told apart: the first that is found names the reason.
REASONS = {
    "for another request": "id",
    "after its deadline": "deadline",
    "did not mint": "not minted",
    "minted is taken": "taken",
    "that you may see": "absent",
    "which has members and no child topics": "collection",
    "does not take child topics": "no children",
    "may not register children": "may not register",
    "MaxDepth); nothing": "depth",
    "all the children": "width",
    "may ask for": "asks too much",
    "before its child would begin": "ends before",
    "another UUID than": "another UUID",
    "only its creator": "not its creator",
    "a UUID never comes back": "ended",
    "advertised before, with other": "other content",
    "dated in the future": "not in time",
    "more than a day ago": "not in time",
    "expired before it was advertised": "not in time",
    "was not registered": "not registered",
    "registered with other content": "registered otherwise",
    "its parent has ended": "parent ended",
    "its parent now ends before it": "parent shorter",
    "that you own": "not owned",
    "was withdrawn and stays so": "ended",
    "has expired; create": "ended",
    "only a collection has members": "topic",
    "may not add to": "may not add",
    "is fixed; its members": "fixed",
    "cannot be in itself": "itself",
    "who has its countersignature": "no consent",
    "that its owner may not see": "hidden from the owner",
    "already": "already",
    "takes no child collections": "no collections",
    "cannot be part of others": "no inclusion",
    "is fixed, and collection": "not fixed",
    "never inside itself": "cycle",
    "is full": "limit",
    "can take no more": "limit",
    "too many members": "limit",
    "too deep": "limit",
    "does not take topics of everybody": "owners",
    "as far as you may see": "not in it",
    "can take it out": "may not remove",
    "moved to where": "where it is",
    "that you may follow": "absent",
    "that you follow": "not followed",
}


_OF_PLACES = ("discover", "hierarchy")


def reason_of(outcome: Outcome) -> str:
    message = str((outcome.error or {}).get("message", ""))
    return next((reason for words, reason in REASONS.items() if words in message), message)


#: The steps, those that build more often than those that end something.
STEPS = (
    *(
        "register",
        "add",
        "create",
        "move",
        "add",
        "register",
        "add",
        "watch",
        "create",
        "add",
        "renew",
        "register",
        "add",
        "tick",
    ),
    *(
        "remove",
        "create",
        "add",
        "move",
        "create",
        "register",
        "advertise_late",
        "send_again",
        "add",
        "watch",
        "withdraw",
        "tick",
    ),
    *("unwatch", "renew", "change_certificate"),
)


@cache
def _beginning() -> tuple[Log, Model]:
    """A log with everybody in it, and the model of it."""
    log, model = NET.log(ENTITIES), Model()
    for record in log.records:
        assert model.take(record.raw).status == "accepted"
    return log, model


class Comparison:
    """Entities register, gather, watch, renew and withdraw through three nodes; certificates are revoked; requests come twice."""

    #: How much a record, and a tick, settles; None: as released.
    at_once: int | None = None
    max_ends: int | None = None
    lease: timedelta = 12 * MINUTE
    #: How many changes are kept for a watcher.
    kept = watches.KEPT_CHANGES
    #: Most collections that there are at the beginning.
    collections = 5
    manner = TIGHT
    steps = STEPS

    def __init__(self, tell: Callable[[str], object] = lambda text: None) -> None:
        self._tell = tell
        log, model = _beginning()
        self.log = Log(NET, copy.deepcopy(log.state), list(log.records), list(log.outcomes))
        self.model = copy.deepcopy(model)
        self.model.lease = self.lease
        self.model.at_once = self.at_once is None
        self.requests = Requests(NET, self.model, manner=self.manner)
        self.sent: list[tuple[str, bytes]] = []
        self.last = self.model.time
        #: What has ended and was looked at since.
        self.over: set[str] = set()

    # --- steps ---

    def plant(self, choose: Choices) -> None:
        """Nobody has to wait for a first topic and a first collection."""
        for _ in range(choose.number(1, 4)):
            self._advertise(choose, self.requests.root(choose, self.model.time))
        for _ in range(choose.number(1, self.collections)):
            self._advertise(choose, self.requests.collection(choose, self.model.time))

    def create(self, choose: Choices) -> None:
        at = self._at(choose)
        uuid = self.requests.root(choose, at) if choose.chance(40) else self.requests.collection(choose, at)
        if choose.chance(90):
            self._advertise(choose, uuid, at)

    def register(self, choose: Choices) -> None:
        at = self._at(choose)
        request = self.requests.register(choose, at)
        outcome = self._put(choose, "register", request, at)
        if outcome.status == "accepted":
            self.requests.registered(request, outcome)
            assert outcome.receipt is not None
            uuid = outcome.receipt["uuid"]
            if choose.chance(25):
                # Meanwhile its parent is renewed, often for a shorter time.
                parent = self.model.things[self.model.reserved[uuid].parent]
                shorter = NET.renew(self.requests.entity(parent.owner), parent.uuid, self.requests.lifetime(choose), at=at)
                self._put(choose, "renew", shorter, at)
            if choose.chance(75):
                self._advertise(choose, uuid, at)

    def advertise_late(self, choose: Choices) -> None:
        """What was minted or registered a while ago, or is advertised already."""
        uuid = self.requests.unclaimed(choose)
        if uuid is not None:
            self._advertise(choose, uuid)

    def add(self, choose: Choices) -> None:
        self._ask(choose, "add")

    def remove(self, choose: Choices) -> None:
        self._ask(choose, "remove")

    def move(self, choose: Choices) -> None:
        self._ask(choose, "move")

    def renew(self, choose: Choices) -> None:
        self._ask(choose, "renew")

    def withdraw(self, choose: Choices) -> None:
        self._ask(choose, "withdraw")

    def watch(self, choose: Choices) -> None:
        for _ in range(1 + choose.number(0, 2)):
            self._ask(choose, "watch")

    def unwatch(self, choose: Choices) -> None:
        self._ask(choose, "unwatch")

    def tick(self, choose: Choices) -> None:
        """A node's clock, or those of all; some are slow."""
        ahead = choose.pick((5, 20, 1, -30, 61, 150, 400)) * SECOND
        at = self._edge(choose) if choose.chance(50) else self.model.time + ahead
        nodes = NET.node_ids if choose.chance(70) else (choose.pick(NET.node_ids),)
        for node in nodes:
            self._append(NET.record("tick", by=node, at=at))

    def change_certificate(self, choose: Choices) -> None:
        """Somebody is revoked, or comes back with a later certificate, maybe of another institution."""
        gone = [who for who in ENTITIES if self.model.asker(who) is None]
        who = choose.pick(gone or ENTITIES)
        generation = self.requests.generations[who]
        if self.model.asker(who) is None or (choose.chance(30) and generation < 6):
            self.requests.generations[who] += 1
            request = NET.hello(self.requests.entity(who), at=self.model.time)
            self._append(NET.record("hello", request, at=self.model.time), self.model.time)
        elif generation < 6:
            until = NET.entity(who, generation).identity.issued + 30 * MINUTE
            request = NET.revoke(f"entity:{who}", until=until, at=self.model.time)
            self._append(NET.record("revoke", request, at=self.model.time), self.model.time)

    def send_again(self, choose: Choices) -> None:
        """T22: a doubled request has the outcome that it had, and no second effect, whichever node takes it."""
        if not self.sent:
            return
        kind, request = choose.pick(self.sent[-6:] if choose.chance(70) else self.sent)
        before = self.log.state.digest()
        outcome = self._put(choose, kind, request, self.model.time, again=True)
        assert outcome.status in ("repeated", "refused", "void")
        assert self.log.state.digest() == before

    def finish(self) -> None:
        """In the end all questions, and nothing stays unsettled for long."""
        self.look_everywhere()
        for _ in range(200):
            if not self.model.unsettled() and not list(self.log.state.all("settling")):
                break
            self._append(NET.record("tick", at=self.model.time))
        assert not self.model.unsettled()
        assert not list(self.log.state.all("settling"))
        assert not list(self.log.state.all("pending"))
        followed = {f"{uuid} {who} {watch.since:012d}" for (uuid, who), watch in self.model.watches.items()}
        assert {key.rpartition(" ")[0] for key, _ in self.log.state.all("change")} <= followed

    # --- one step ---

    def put(self, choose: Choices, kind: str, who: str, *, ahead: timedelta = 0 * SECOND, **body: Any) -> Outcome:
        """A certain request, at log time or by a clock that is ahead of it."""
        at = self.model.time + ahead
        return self._put(choose, kind, NET.request(kind, body, self.requests.entity(who), at=at), at)

    def gather(self, choose: Choices, number: int, lists: Mapping[str, Any] | None = None, **limits: int) -> str:
        """A certain collection of alice's, whose UUID comes where the number says."""
        options = {"fixed": False, "child_collections": True, "inclusion": True}
        return self.mint(
            choose, number, lists, gathering={**options, "limits": {"breadth": 0, "depth": 0, "topics": 0, **limits}}
        )

    def mint(self, choose: Choices, number: int, lists: Mapping[str, Any] | None = None, **body: Any) -> str:
        """A certain topic, or collection, of alice's."""
        at, alice = self.model.time, self.requests.entity("alice")
        token = NET.mint(alice, uuid=fresh_uuid(number), at=at, lists=lists, **body)
        outcome = self._put(choose, "advertise", NET.advertise(alice, token, at=at), at)
        assert outcome.status == "accepted", outcome
        return fresh_uuid(number)

    def pass_time(self, how_long: timedelta) -> None:
        """Every node's clock goes on."""
        at = self.model.time + how_long
        for node in NET.node_ids:
            self._append(NET.record("tick", by=node, at=at))

    def certify(self, who: str) -> None:
        """The next certificate of somebody."""
        self.requests.generations[who] += 1
        self._append(NET.record("hello", NET.hello(self.requests.entity(who), at=self.model.time), at=self.model.time))

    def _at(self, choose: Choices) -> datetime:
        """A node's clock: mostly log time, sometimes slow, sometimes so far ahead that things have ended which no tick has ended yet."""
        if choose.chance(20):
            return self._edge(choose)
        return self.model.time + choose.pick((0, 0, 0, 0, 10, -10, 90, 240)) * SECOND

    def _edge(self, choose: Choices) -> datetime:
        """A moment at which something ends, or a second beside it; not far away."""
        ends = [at for at, space, _ in self.model.due() if space != "request" and at <= self.model.time + 15 * MINUTE]
        return choose.pick(ends[:6] or [self.model.time]) + choose.pick((0, 1, -1)) * SECOND

    def _ask(self, choose: Choices, kind: str) -> None:
        if choose.chance(15) and any(self.model.asker(who) is None for who in ENTITIES):
            self.change_certificate(choose)
        at = self._at(choose)
        self._put(choose, kind, getattr(self.requests, kind)(choose, at), at)

    def _advertise(self, choose: Choices, uuid: str, at: datetime | None = None) -> None:
        at = self._at(choose) if at is None else at
        self._put(choose, "advertise", self.requests.advertise(choose, at, uuid), at)

    def _put(self, choose: Choices, kind: str, request: bytes, at: datetime, *, again: bool = False) -> Outcome:
        minted = None
        if kind == "register":
            minted = {"uuid": self.requests.new_uuid(choose), "seed": f"{self.requests.given:022d}"}
        if not again:
            self.sent.append((kind, request))
        return self._append(NET.record(kind, request, by=choose.pick(NET.node_ids), at=at, minted=minted), at)

    def _append(self, raw: bytes, at: datetime | None = None) -> Outcome:
        """A record with its node's clock; a tick has log time."""
        with self._portions():
            outcome = self.log.append(raw)
        verdict = self.model.take(raw)
        at = self.model.time if at is None else at
        self.last = max(at, self.model.time)
        self._tell(
            f"{self.model.seq}: {_described(raw)}: {outcome.status} {reason_of(outcome)}, by the model {verdict.status} {verdict.reason}"
        )
        assert (outcome.status, reason_of(outcome) if outcome.status != "void" else "") == (
            verdict.status,
            verdict.reason if verdict.status != "void" else "",
        ), (outcome, verdict)
        if outcome.receipt is not None:
            assert {name: outcome.receipt.get(name) for name in verdict.fixed} == dict(verdict.fixed)
            assert outcome.receipt.get("cut") == verdict.fixed.get("cut")
        if self.at_once is not None:
            self.model.follow(at, self._settled())
        self.look(changed=outcome.status == "accepted")
        settling = {key.split(" ")[1] for key, _ in self.log.state.all("settling") if not key.startswith("watch")}
        around = {other for uuid in settling for other in (*self.model.below(uuid), *self.model.members.get(uuid, ()))}
        self.requests.favoured = sorted(settling | around)
        return outcome

    @contextmanager
    def _portions(self) -> Iterator[None]:
        before = (endings.AT_ONCE, clock.MAX_ENDS, watches.LEASE, watches.KEPT_CHANGES)
        try:
            endings.AT_ONCE = self.at_once or before[0]
            clock.MAX_ENDS = self.max_ends or before[1]
            watches.LEASE, watches.KEPT_CHANGES = self.lease, self.kept
            yield
        finally:
            endings.AT_ONCE, clock.MAX_ENDS, watches.LEASE, watches.KEPT_CHANGES = before

    def _settled(self) -> Settled:
        """What the record has settled beside what it asked for."""
        state, model, settled = self.log.state, self.model, Settled()
        for uuid, thing in model.things.items():
            fact = self.log.topic(uuid)
            if thing.state == LIVE and fact["state"] != LIVE:
                settled.topic.append(uuid)
            elif thing.state == LIVE and parse_time(fact["expires"]) != thing.expires:
                settled.cut[uuid] = parse_time(fact["expires"])
        settled.reserved = [uuid for uuid in model.reserved if state.get("reserved", uuid) is None]
        settled.watch = [f"{uuid} {who}" for uuid, who in model.watches if state.get("watch", f"{uuid} {who}") is None]
        settled.request = [key for key in model.answers if state.get("request", key) is None]
        settled.certificate = [
            name
            for name, until in model.certificates.items()
            if until is not None and state.get("ends", f"{format_time(until)} certificate {name}") is None
        ]
        for place, held in model.members.items():
            for member in sorted(held):
                gone = model.things[member].kind == COLLECTION or self.log.topic(place)["state"] != LIVE
                if gone and state.get("in", f"{member} {place}") is None:
                    settled.released.append((place, member))
        return settled

    # --- what must be equal ---

    def look(self, *, changed: bool = True) -> None:
        """Compare everything. What a record that did nothing leaves unchanged is not asked for again, nor what ended long ago."""
        self._compare_facts()
        self._compare_watches()
        if changed:
            present = [uuid for uuid in self.model.things if uuid not in self.over]
            for asker in self._askers():
                sight = Sight(self.log.state, asker, self.last)
                for uuid in present:
                    self._compare_sight(asker, sight, uuid, self.last)
            self.over |= {uuid for uuid, thing in self.model.things.items() if thing.state != LIVE}

    def look_everywhere(self) -> None:
        """The questions that are not asked after each record: about what has ended, at other moments, in pages; and owners' words."""
        for ahead in (0 * SECOND, 3 * MINUTE):
            now = self.model.time + ahead
            for asker in self._askers():
                for uuid in self.model.things:
                    self._compare_sight(asker, Sight(self.log.state, asker, now), uuid, now)
                    self._compare_pages(asker, uuid, now)
        self._compare_words()

    def _askers(self) -> list[Asker]:
        return [self.model.asker(who) or Asker(who, "nowhere") for who in ENTITIES]

    def _compare_facts(self) -> None:
        state, model = self.log.state, self.model
        assert self.log.time == format_time(model.time)
        assert {
            uuid: (fact["kind"], fact["state"], fact["owner"], fact["expires"], fact.get("parent"))
            for uuid, fact in state.all("topic")
        } == {
            uuid: (thing.kind, thing.state, thing.owner, format_time(thing.expires), thing.parent)
            for uuid, thing in model.things.items()
        }
        assert {uuid: fact["until"] for uuid, fact in state.all("reserved")} == {
            uuid: format_time(reserved.until) for uuid, reserved in model.reserved.items()
        }
        assert {key for key, _ in state.all("child")} == {
            f"{thing.parent} {format_time(thing.created)} {uuid}"
            for uuid, thing in model.things.items()
            if thing.parent is not None and thing.state == LIVE
        }
        held = {(place, uuid) for place, members in model.members.items() for uuid in members}
        assert {key for key, _ in state.all("member")} == {f"{place} {model.things[uuid].kind} {uuid}" for place, uuid in held}
        assert {key for key, _ in state.all("in")} == {f"{uuid} {place}" for place, uuid in held}
        assert {key for key, _ in state.all("ends")} == {f"{format_time(at)} {space} {name}" for at, space, name in model.due()}
        for uuid, thing in model.things.items():
            size = state.get("size", uuid) or {}
            emptied = thing.kind == COLLECTION and uuid not in model.members
            counts = {"members": 0} if emptied else model.counts(uuid)
            assert size.get("members", 0) == counts["members"]
            if thing.kind == COLLECTION and thing.state == LIVE:
                assert size.get("topics", 0) == (counts["topics"] if thing.gathering["limits"]["topics"] else 0)
            if thing.state == LIVE:
                assert not model.exceeded(uuid)
        assert {key for key, _ in state.all("size")} <= set(model.things)
        if self.at_once is None:
            assert not list(state.all("pending"))

    def _compare_watches(self) -> None:
        state, model = self.log.state, self.model
        assert {key: (fact["since"], fact["version"], fact["until"]) for key, fact in state.all("watch")} == {
            f"{uuid} {who}": (watch.since, len(watch.told), format_time(watch.until))
            for (uuid, who), watch in model.watches.items()
        }
        followed: dict[str, int] = {}
        for (uuid, who), watch in model.watches.items():
            answer = watches.told_since(state, uuid, who, 0, 10**6)
            assert answer is not None
            version, changes = answer
            # Without holes, as far back as changes are kept.
            assert version == len(watch.told)
            assert [change.version for change in changes] == list(range(max(0, version - self.kept) + 1, version + 1))
            found = [_told(change.fact) for change in changes]
            # In order of the records; what one record tells has no order of its own.
            assert [told.seq for told in found] == sorted(told.seq for told in found)
            assert not Counter(found) - Counter(watch.told)
            assert not Counter(told for told in watch.told if version <= self.kept or told.seq > found[0].seq) - Counter(found)
            root = [thing.uuid for thing in model.upward(uuid)][-1]
            for counted in (uuid, f"tree {root}") if model.things[uuid].kind == TOPIC else (uuid,):
                followed[counted] = followed.get(counted, 0) + 1
        assert {key: fact["count"] for key, fact in state.all("watched")} == followed

    def _compare_sight(self, asker: Asker, sight: Sight, uuid: str, now: datetime) -> None:
        model = self.model
        assert (sight.topic(uuid) is not None) == model.sees(uuid, asker, now)
        assert (sight.place(uuid) is not None) == model.sees_place(uuid, asker, now)
        if model.things[uuid].kind == TOPIC:
            _same(sight.parents(uuid), model.visible_parents(uuid, asker, now))
            _same(sight.tree(uuid), model.visible_tree(uuid, asker, now))
        else:
            _same(sight.topics(uuid), model.visible_topics(uuid, asker, now))
            _same(sight.collections(uuid), model.visible_collections(uuid, asker, now), ordered=False)
        _same(sight.containing(uuid), model.visible_containers(uuid, asker, now), ordered=False)

    def _compare_pages(self, asker: Asker, uuid: str, now: datetime) -> None:
        """To a depth; and from where another answer ended, or from what the asker made up."""
        model, sight = self.model, Sight(self.log.state, asker, now)
        if model.things[uuid].kind == TOPIC:
            tree = model.visible_tree(uuid, asker, now)
            for depth in (1, 2):
                _same(sight.tree(uuid, depth), [place for place in tree if place.depth <= depth])
                _same(sight.parents(uuid, depth), model.visible_parents(uuid, asker, now)[:depth])
            for number, place in enumerate(tree, start=1):
                _same(sight.tree(uuid, None, place.uuid), tree[number:])
                _same(sight.tree(uuid, 1, place.uuid), [below for below in tree[number:] if below.depth <= 1])
            for other in model.things if tree else ():
                chain = [thing.uuid for thing in model.upward(other)]
                way = chain[: chain.index(uuid)] if uuid in chain else []
                if other != uuid and not (way and all(model.admits(at, about, asker) for at in way for about in _OF_PLACES)):
                    # Where it stands must not show by what comes after it.
                    with pytest.raises(UsageError):
                        list(sight.tree(uuid, None, other))
        else:
            topics = model.visible_topics(uuid, asker, now)
            inner = model.visible_collections(uuid, asker, now)
            for depth in (1, 2):
                _same(sight.topics(uuid, "", depth), [place for place in topics if place.depth <= depth])
                _same(sight.collections(uuid, depth), [place for place in inner if place.depth <= depth], ordered=False)
            for number, place in enumerate(topics, start=1):
                _same(sight.topics(uuid, place.uuid), topics[number:])

    def _compare_words(self) -> None:
        """T27: countersignatures of every kind hold where the model says so, for whatever they are shown."""
        state, model = self.log.state, self.model
        for token, _, uuid, given, place in self.requests.words:
            fact = state.get("topic", uuid)
            for right in ("discover", "register", "include"):
                for entity in {given, "alice"}:
                    for collection in {place, None}:
                        asked: dict[str, Any] = {"entity": entity, "now": model.time, "collection": collection}
                        holds = countersignatures.holds(state, token, right, uuid, fact, **asked)
                        assert holds == model.countersigned(token, right, uuid, entity, model.time, collection)


class InPortions(Comparison):
    """The same where a record settles two and a tick five: what has ended and is not marked yet shows as little as what is."""

    at_once = 2
    max_ends = 5
    lease = 30 * DAY
    manner = ROOMY


class Tangled(Comparison):
    """Collections above all, in each other in every way that has no cycle."""

    collections = 10
    manner = TANGLED
    kept = 3
    steps = (
        *("add", "create", "add", "move", "add", "watch", "add", "create", "add", "renew", "add", "move", "add", "tick"),
        *("add", "remove", "add", "withdraw", "add", "create"),
    )


def _described(raw: bytes) -> str:
    """A record for a person who looks for what went wrong."""
    _, record, tail = decode(raw)
    if tail is None:
        return f"{record['kind']} of {record['node']} at {record['at']}"
    _, request, advertisement = decode(tail)
    body = {name: value if isinstance(value, (int, dict)) else str(value)[:60] for name, value in request["body"].items()}
    expires = f" until {decode(advertisement)[1]['expires']}" if advertisement is not None else ""
    minted = f" as {record['minted']['uuid']}" if "minted" in record else ""
    return f"{record['kind']} at {record['at']} by {request['iss'].split(':')[2]}: {body}{minted}{expires}"


def _told(fact: Mapping[str, Any]) -> Told:
    return Told(fact["seq"], fact["change"], fact["uuid"], fact["kind"], fact["at"], fact.get("in", ""))


def _same(found: Iterator[Seen], expected: list[Place], *, ordered: bool = True) -> None:
    seen = list(found)
    if ordered:
        assert [(at.uuid, at.depth) for at in seen] == [(place.uuid, place.depth) for place in expected]
    else:
        assert [at.depth for at in seen] == sorted(at.depth for at in seen)
        assert sorted((at.uuid, at.depth) for at in seen) == sorted((place.uuid, place.depth) for place in expected)
    allowed = {place.uuid: place.inside for place in expected}
    assert all(at.inside in allowed[at.uuid] for at in seen)
