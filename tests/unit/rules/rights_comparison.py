"""The rules of grants and subscriptions beside the model of them: the same requests to both, compared after every record.

Requests are decided as `apply` decides them once their signatures were checked, which costs most of the time and is tested elsewhere. A
grant itself is signed and verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from granting import ENTITIES, Granting, TwoHouses, begin, fresh_grant, fresh_queue, looked_at, sign_grant
from little_network import DAY, HOUR, MINUTE, SECOND, fresh_id
from pki import T0
from rights_model import COLLECTION, TOPIC, Event, World
from sound_trees import check_sound, fork
from tree_requests import Choices

from tdn.protocol.times import format_time, parse_time
from tdn.rules import clock, feeds
from tdn.rules.apply import _decide
from tdn.rules.feeds import Feed
from tdn.rules.rights import Rights
from tdn.rules.sight import asker_of
from tdn.rules.state import LogRecord, Outcome
from tdn.trust.envelope import Envelope

RIGHTS = ("publish", "subscribe")
GRANTEES = (*ENTITIES, *ENTITIES, "institution:north", "institution:south", "*")


NET = TwoHouses("houses")
HOSTS = {"allow_children": True}
GATHERS: Mapping[str, Any] = {"child_collections": True, "inclusion": True}
TAKES = {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]}
#: Lists that some of the topics and collections have, one set for each network that a history begins with.
HIDDEN: Sequence[Mapping[str, Mapping[str, list[str]]]] = (
    {},
    {
        "r2": {"hierarchy_deny": ["erin"]},
        "u": {"discover_allow": ["carol", "institution:north"]},
        "d": {"discover_deny": ["dave"]},
        "e": {"discover_allow": ["institution:north"]},
    },
    {"r": {"discover_deny": ["institution:south"]}, "r1": {"hierarchy_allow": ["bob", "erin"]}, "c": {"discover_deny": ["erin"]}},
    {
        "r": {"hierarchy_allow": ["institution:north"]},
        "r1": {"hierarchy_allow": ["*"]},
        "c": {"discover_allow": ["institution:north"]},
        "s": {"discover_allow": ["carol", "dave"]},
    },
)


@cache
def _beginning(number: int) -> tuple[Granting, tuple[Event, ...], Mapping[str, str]]:
    """A log with some topics and collections, and the history of it: two levels below `r`; `c`, `d` and `e` hold topics and each other."""
    log = begin(NET)
    history = [Event("hello", who, T0, certificate(who, 1)) for who in ENTITIES]
    names: dict[str, str] = {}

    def plant(name: str, owner: str, kind: str, parent: str | None = None, lifetime: timedelta = 90 * DAY) -> None:
        lists = dict(HIDDEN[number].get(name, {}))
        choices: dict[str, Any] = {"lifetime": lifetime}
        if kind == COLLECTION:
            names[name] = log.collection(owner, **choices, **GATHERS, lists={**lists, **TAKES})
        else:
            choices |= {"hosting": HOSTS, **({"lists": lists} if lists else {})}
            names[name] = log.child(names[parent], owner, **choices) if parent else log.advertised(owner, **choices)
        above = names[parent] if parent else None
        expires = parse_time(log.topic(names[name])["expires"])
        body = {"uuid": names[name], "kind": kind, "expires": expires, "parent": above, "lists": lists}
        history.append(Event("plant", owner, T0, body))

    plant("r", "alice", TOPIC)
    plant("r1", "alice", TOPIC, "r")
    plant("r2", "bob", TOPIC, "r")
    plant("r11", "bob", TOPIC, "r1")
    plant("s", "bob", TOPIC)
    plant("u", "carol", TOPIC, lifetime=2 * HOUR)
    plant("c", "alice", COLLECTION)
    plant("d", "bob", COLLECTION, lifetime=3 * HOUR)
    plant("e", "carol", COLLECTION)
    for collection, member in (("c", "s"), ("c", "d"), ("d", "u"), ("d", "r1"), ("e", "d")):
        owner = log.topic(names[member])["owner"]
        body = {"collection": names[collection], "uuid": names[member]}
        assert log.change("add", owner, **body).status == "accepted"
        history.append(Event("add", owner, T0, body))
    return log, tuple(history), names


def certificate(who: str, generation: int) -> Mapping[str, Any]:
    """What the model is told of a certificate."""
    identity = NET.entity(who, generation).identity
    return {"institution": identity.institution, "until": identity.not_after}


#: What a subscription got: its queue, and the topic.
Got = tuple[Feed, str]


class Comparison:
    """One log and the model of it."""

    #: Those that build more often than those that end something.
    steps = (
        *("give", "give_tree", "pass_on", "subscribe", "give", "pass_on", "add", "give_tree", "pass_on", "subscribe"),
        *("give", "pass_on", "renew_grant", "retract", "remove", "hand_over", "certify", "revoke", "tick", "open"),
        *("give_tree", "pass_on", "subscribe", "move", "give", "unsubscribe", "transfer", "accept", "renew", "withdraw"),
    )

    def __init__(self) -> None:
        self.now = T0
        self.generation = dict.fromkeys(ENTITIES, 1)

    def plant(self, choose: Choices) -> None:
        log, history, self.names = _beginning(choose.number(0, len(HIDDEN) - 1))
        copy = fork(log)
        self.log = Granting(NET, copy.state, copy.records, copy.outcomes)
        self.history = list(history)
        self.world = World(self.history)
        self.topics = [self.names[name] for name in ("r", "r1", "r2", "r11", "s", "u")]
        self.collections = [self.names[name] for name in ("c", "d", "e")]
        self.publishers, self.got = self._holders()

    # --- one record ---

    def decide(self, kind: str, who: str, body: Mapping[str, Any], **more: Any) -> Outcome:
        """A request of an entity, or the operator's about it, as `apply` decides it; and what must be true afterwards."""
        at = more.get("at", self.now)
        identity = NET.operator.identity if kind == "revoke" else NET.entity(who, self.generation[who]).identity
        request = Envelope(kind, identity, "", at, at + DAY, fresh_id(), None, None, body, more.get("tail"), b"")
        record = LogRecord(len(self.log.records) + 1, "0" * 64, b"")
        self.log.records.append(record)
        outcome = _decide(self.log.state, request, record, at, more.get("minted"))
        self.log.state.write(outcome)
        return outcome

    def take(self, outcome: Outcome, event: Event, expected: bool | None) -> bool:
        """Compare an outcome with what was expected of it, and everybody's rights with the model's."""
        accepted = outcome.status == "accepted"
        assert expected is None or accepted == expected, f"{event} should be {'accepted' if expected else 'refused'}: {outcome}"
        if accepted:
            self.history.append(event)
            self.world = World(self.history)
            self.compare(outcome)
        else:
            assert {write.space for write in outcome.writes} <= {"request", "ends"}
        return accepted

    def ask(self, kind: str, who: str, expected: bool | None, body: Mapping[str, Any], **more: Any) -> bool:
        return self.take(self.decide(kind, who, body, **more), Event(kind, who, self.now, body), expected)

    # --- what is compared ---

    def _holders(self) -> tuple[set[tuple[str, str]], set[Got]]:
        """Who may publish what, and what every subscription gets, by the rules; each held against the model."""
        rights = Rights(self.log.state, self.now)
        publishers = set()
        for who in ENTITIES:
            asker = asker_of(self.log.state, who)
            assert (asker is not None) == self.world.stands(who)
            for uuid in (*self.topics, *self.collections):
                for right in RIGHTS:
                    basis = rights.basis(asker, right, uuid) if asker is not None else None
                    assert (basis is not None) == self.world.may(who, right, uuid), (who, right, self.called(uuid))
                    if basis is not None:
                        self._check_basis(basis.grants, basis.until, who, right, uuid)
                        if right == "publish":
                            publishers.add((who, uuid))
        got: set[Got] = set()
        stored = {tuple(key.split(" ")): feeds.read_feed(key, fact) for key, fact in self.log.state.all("feed")}
        assert set(stored) == set(self.world.wishes)
        for (subject, who), feed in stored.items():
            mine = {uuid for uuid in self.topics if feeds.gets(self.log.state, feed, uuid, self.now)}
            assert mine == self.world.gets(subject, who), (who, self.called(subject), list(map(self.called, mine)))
            assert not feed.single or feeds.lasts(self.log.state, feed, self.now) == (subject in mine)
            got |= {(feed, uuid) for uuid in mine}
        for uuid in self.topics:
            reaching = list(feeds.reaching(self.log.state, uuid, self.now))
            assert len(reaching) == len(set(reaching))
            assert {(feed, uuid) for feed in reaching} == {pair for pair in got if pair[1] == uuid}
        return publishers, got

    def _check_basis(self, grants: tuple[str, ...], until: str, who: str, right: str, uuid: str) -> None:
        links = [self.world.grants[grant] for grant in grants]
        assert len(links) <= 8
        assert all(self.world.holds(link) and link.right == right and self.world.inside(link, uuid) for link in links)
        assert until == format_time(min([self.world.things[uuid].expires, *(link.ends for link in links)]))
        assert (self.world.things[uuid].owner == who) == (not grants)
        if links:
            assert self.world.means(links[-1].to, who)
            assert links[0].parent is None

    def compare(self, outcome: Outcome) -> None:
        """T21: whatever anybody lost by a record is found from what the record wrote."""
        before_publishers, before_got = self.publishers, self.got
        self.publishers, self.got = self._holders()
        touched = feeds.losses(outcome.writes)
        topics = looked_at(self.log.state, outcome)
        for who, uuid in before_publishers - self.publishers:
            # Of these entities, guards ask again about whatever they were allowed.
            asked = who in touched.entities | touched.certified
            assert uuid in topics or asked, f"{who} lost {self.called(uuid)} unseen"
        for feed, uuid in before_got - self.got:
            if self.log.state.get("opened", uuid) is None:
                # Nothing was bound to it yet.
                continue
            dropped = (feed.subject, feed.entity, feed.queue) in touched.stale
            looked = feed.tree and (feed.subject, feed.entity) in touched.feeds
            assert uuid in topics or dropped or looked, f"{feed.entity} lost {self.called(uuid)} unseen"

    def called(self, uuid: str) -> str:
        return next((name for name, known in self.names.items() if known == uuid), uuid)

    def finish(self) -> None:
        check_sound(self.log.state)
        check_grants_sound(self.log)

    # --- the steps ---

    def _somebody(self, choose: Choices) -> str | None:
        standing = [who for who in ENTITIES if self.world.active(who)]
        return choose.pick(standing) if standing else None

    def give(self, choose: Choices) -> None:
        self._give(choose, choose.pick(self.topics), choose.chance(30))

    def give_tree(self, choose: Choices) -> None:
        self._give(choose, choose.pick([*self.collections, self.names["r"], self.names["r1"]]), not choose.chance(5))

    def _give(self, choose: Choices, uuid: str, tree: bool) -> None:
        owner = self.world.things[uuid].owner
        who = owner if self.world.active(owner) and not choose.chance(8) else self._somebody(choose)
        if who is not None:
            self._hand_in(
                choose, who, fresh_grant(), uuid, choose.pick(RIGHTS), choose.pick(GRANTEES), tree, choose.chance(75), None
            )

    def pass_on(self, choose: Choices) -> None:
        above = self._some_grant(choose, delegable=not choose.chance(10))
        who = None if above is None else self._holder(choose, self.world.grants[above].to)
        if above is None or who is None:
            return
        terms = self.world.grants[above]
        tree = terms.tree and choose.chance(60)
        right, uuid = terms.right, terms.topic
        if terms.tree and choose.chance(60):
            uuid = choose.pick([*self.topics, *self.collections])
        if choose.chance(4):
            right, tree = choose.pick(RIGHTS), True
        self._hand_in(choose, who, fresh_grant(), uuid, right, choose.pick(GRANTEES), tree, choose.chance(70), above)

    def _holder(self, choose: Choices, to: str) -> str | None:
        named = [who for who in ENTITIES if self.world.means(to, who) and self.world.active(who)]
        return choose.pick(named) if named and not choose.chance(8) else self._somebody(choose)

    def _some_grant(self, choose: Choices, *, delegable: bool = False) -> str | None:
        """One of the latest few, rather one that holds."""
        known = [key for key, grant in self.world.grants.items() if grant.delegable or not delegable]
        holding = [key for key in known if self.world.holds(self.world.grants[key])]
        offered = holding if holding and not choose.chance(10) else known
        return choose.pick(offered[-6:]) if offered else None

    def renew_grant(self, choose: Choices) -> None:
        grant = self._some_grant(choose)
        if grant is None:
            return
        terms = self.world.grants[grant]
        who = terms.issuer if not choose.chance(8) else self._somebody(choose)
        if who is not None and self.world.active(who):
            delegable = terms.delegable if not choose.chance(5) else not terms.delegable
            if choose.chance(80):
                self._pass_time(SECOND)
            what = (terms.topic, terms.right, terms.to, terms.tree, delegable, terms.parent)
            if self.world.active(who):
                self._hand_in(choose, who, grant, *what)

    def _hand_in(
        self,
        choose: Choices,
        who: str,
        grant: str,
        uuid: str,
        right: str,
        to: str,
        tree: bool,
        delegable: bool,
        above: str | None,
    ) -> None:
        parent = self.world.grants[above] if above is not None else None
        begins = self.now if choose.chance(75) else self.now + choose.pick((-HOUR, 10 * MINUTE))
        ends = self.now + choose.pick((DAY, 4 * HOUR, HOUR, 20 * MINUTE))
        if parent is not None and choose.chance(85):
            begins, ends = max(begins, parent.begins), min(ends, parent.ends)
        if begins >= ends:
            return
        terms = {
            "right": right,
            "topic": uuid,
            "to": to,
            "begins": begins,
            "ends": ends,
            "tree": tree,
            "delegable": delegable,
            "parent": above,
            "issued": self.now,
        }
        expected = self.world.takes_give(who, grant, terms)
        issuer = NET.entity(who, self.generation[who])
        named = to if to not in ENTITIES else str(NET.entity(to, self.generation[to]).identity.name)
        rests_on: Any = (above, self.log.grant(above)["digest"]) if above is not None else self.log.topic(uuid)["digest"]
        choices = {"at": self.now, "begins": begins, "ends": ends, "tree": tree, "delegable": delegable, "grant_id": grant}
        token = sign_grant(NET, issuer, named, right, uuid, rests_on, **choices)
        outcome = self.decide("give", who, {"grant": grant, "uuid": uuid}, tail=token)
        present = self.log.grant(grant) if outcome.status == "accepted" else {}
        if expected is False and outcome.status == "accepted" and present["seq"] != len(self.log.records):
            # The very same again, within the second: nothing is changed by it.
            return
        self.take(outcome, Event("give", who, self.now, {"grant": grant, **terms}), expected)

    def retract(self, choose: Choices) -> None:
        grant = self._some_grant(choose)
        who = self._somebody(choose)
        if grant is not None and who is not None:
            chain = self.world.chain(grant)
            wanted = choose.pick([who, chain[0].issuer, chain[-1].issuer, chain[0].to])
            who = wanted if self.world.active(wanted) else who
            self.ask("retract", who, self.world.takes_retract(who, grant), {"grant": grant})

    def transfer(self, choose: Choices) -> None:
        uuid = choose.pick([*self.topics, *self.collections])
        owner = self.world.things[uuid].owner
        who = owner if self.world.active(owner) and not choose.chance(15) else self._somebody(choose)
        if who is not None:
            to = choose.pick(ENTITIES)
            self.ask("transfer", who, self.world.takes_transfer(who, uuid, to), {"uuid": uuid, "to": to})

    def accept(self, choose: Choices) -> None:
        offered = [uuid for uuid, thing in self.world.things.items() if thing.offer is not None]
        uuid = choose.pick(offered) if offered else choose.pick(self.topics)
        offer = self.world.things[uuid].offer
        who = offer[0] if offer is not None and self.world.active(offer[0]) and not choose.chance(10) else self._somebody(choose)
        if who is not None:
            body = {"uuid": uuid, "keep_grants": choose.chance(50)}
            self.ask("accept", who, self.world.takes_accept(who, uuid), body)

    def hand_over(self, choose: Choices) -> None:
        self.transfer(choose)
        self.accept(choose)

    def open(self, choose: Choices) -> None:
        who, uuid = self._somebody(choose), choose.pick(self.topics)
        if who is not None:
            self.ask("open", who, self.world.takes_open(who, uuid), {"uuid": uuid})

    def subscribe(self, choose: Choices) -> None:
        who = self._somebody(choose)
        if who is None:
            return
        mine = [uuid for uuid in self.topics if self.world.may(who, "subscribe", uuid)]
        uuid = choose.pick(mine) if mine and choose.chance(50) else choose.pick([*self.collections, *self.topics])
        tree, depth = choose.chance(50), choose.pick((None, 1, 2))
        body = {"uuid": uuid, "tree": tree, **({} if depth is None else {"depth": depth})}
        before = self.log.state.get("feed", f"{uuid} {who}")
        lasted = before is not None and self._has_lasted(uuid, before, tree)
        queue = fresh_queue()
        outcome = self.decide("subscribe", who, body, minted={"queue": queue})
        event = Event("subscribe", who, self.now, {"uuid": uuid, "tree": tree, "depth": depth})
        if self.take(outcome, event, self.world.takes_subscribe(who, uuid, tree)):
            assert self.log.queue(who, uuid) == (before["queue"] if before is not None and lasted else queue)

    def _has_lasted(self, uuid: str, before: Mapping[str, Any], tree: bool) -> bool:
        """Whether a subscription rests on what it rested on: the same owner, or grants that all still hold for the topic."""
        thing = self.world.things[uuid]
        if (tree or thing.kind == COLLECTION) != before["tree"]:
            return False
        rested = before["basis"]["grants"]
        if not rested:
            return bool(before["basis"]["epoch"] == len(thing.kept))
        return all(self.world.holds(self.world.grants[grant]) for grant in rested) and self.world.good(rested[-1], uuid, 1)

    def unsubscribe(self, choose: Choices) -> None:
        wishes = [key for key in self.world.wishes if self.world.active(key[1])]
        if wishes:
            uuid, who = choose.pick(wishes)
            self.ask("unsubscribe", who, True, {"uuid": uuid})
        elif (who := self._somebody(choose)) is not None:  # type: ignore[assignment]
            self.ask("unsubscribe", who, False, {"uuid": choose.pick(self.topics)})

    def add(self, choose: Choices) -> None:
        collection, uuid = choose.pick(self.collections), choose.pick([*self.topics, *self.collections])
        owner = self.world.things[uuid].owner
        if self.world.active(owner):
            self.ask("add", owner, None, {"collection": collection, "uuid": uuid})

    def remove(self, choose: Choices) -> None:
        place = self._some_place(choose)
        if place is not None:
            collection, uuid, owner = place
            self.ask("remove", owner, None, {"collection": collection, "uuid": uuid})

    def move(self, choose: Choices) -> None:
        place = self._some_place(choose)
        if place is not None:
            collection, uuid, owner = place
            to = choose.pick(self.collections)
            outcome = self.decide("move", owner, {"from": collection, "to": to, "uuid": uuid})
            if outcome.status == "accepted":
                self.history.append(Event("remove", owner, self.now, {"collection": collection, "uuid": uuid}))
                self.take(outcome, Event("add", owner, self.now, {"collection": to, "uuid": uuid}), None)

    def _some_place(self, choose: Choices) -> tuple[str, str, str] | None:
        places = sorted(place for place in self.world.members if self.world.active(self.world.things[place[1]].owner))
        if not places:
            return None
        collection, uuid = choose.pick(places)
        return collection, uuid, self.world.things[uuid].owner

    def renew(self, choose: Choices) -> None:
        uuid = choose.pick([*self.topics, *self.collections])
        owner = self.world.things[uuid].owner
        if self.world.active(owner):
            seconds = choose.pick((86400, 3600, 600))
            outcome = self.decide("renew", owner, {"uuid": uuid, "lifetime_seconds": seconds})
            expires = parse_time(outcome.receipt["expires"]) if outcome.receipt is not None else None
            self.take(outcome, Event("renew", owner, self.now, {"uuid": uuid, "expires": expires}), self.world.live(uuid))

    def withdraw(self, choose: Choices) -> None:
        uuid = choose.pick([*self.topics, *self.collections])
        owner = self.world.things[uuid].owner
        if self.world.active(owner) and choose.chance(40):
            again = self.world.things[uuid].withdrawn
            self.ask("withdraw", owner, None if again else self.world.live(uuid), {"uuid": uuid})

    def revoke(self, choose: Choices) -> None:
        who = self._somebody(choose)
        if who is not None:
            until = NET.entity(who, self.generation[who]).identity.issued
            body = {"principal": f"entity:{who}", "issued_until": format_time(until), "keys": []}
            self.take(self.decide("revoke", who, body), Event("revoke", who, self.now), True)

    def certify(self, choose: Choices) -> None:
        revoked = sorted(self.world.revoked)
        who = choose.pick(revoked) if revoked and choose.chance(70) else choose.pick(ENTITIES)
        if self.generation[who] > 40:
            return
        self.generation[who] += 1
        identity = NET.entity(who, self.generation[who]).identity
        while who in self.world.revoked and identity.name.key_hash in self._revoked_keys(who):
            self.generation[who] += 1
            identity = NET.entity(who, self.generation[who]).identity
        event = Event("hello", who, self.now, certificate(who, self.generation[who]))
        self.take(self.decide("hello", who, {}), event, True)

    def _revoked_keys(self, who: str) -> Sequence[str]:
        fact = self.log.state.get("principal", f"entity:{who}")
        return fact["revoked"] if fact is not None else ()

    def tick(self, choose: Choices) -> None:
        self._pass_time(choose.pick((MINUTE, 10 * MINUTE, HOUR, 20 * MINUTE, 5 * HOUR)))

    def _pass_time(self, time: timedelta) -> None:
        """Every node ticks. By the second one's tick log time gets there."""
        moment: datetime = self.now + time
        for number, node in enumerate(NET.node_ids):
            seq = len(self.log.records) + 1
            self.log.records.append(LogRecord(seq, "0" * 64, b""))
            name = NET.node(node).identity.name
            outcome = Outcome("accepted", "tick", clock.tick(self.log.state, name, moment, seq))
            self.log.state.write(outcome)
            if number == 1:
                self.now = moment
            self.take(outcome, Event("tick", node, self.now), True)


def check_grants_sound(log: Granting) -> None:
    """Facts about grants and subscriptions that agree with each other."""
    state = log.state
    spaces = {space: dict(state.all(space)) for space in ("grant", "feed", "stale", "ends", "feeds")}
    keys = log.spaces("granted", "issued", "held", "about", "follower", "ends")
    due = {(key.split(" ")[1], key.split(" ", 2)[2]) for key in keys["ends"]}
    grants = spaces["grant"].items()
    assert {key.rpartition(" ")[2] for key in keys["granted"]} == {grant for grant, fact in grants if fact["state"] == "live"}
    for space in ("issued", "held", "about"):
        assert {key.rpartition(" ")[2] for key in keys[space]} == set(spaces["grant"])
    # Each is looked at once more, and no more often.
    assert {name for kind, name in due if kind == "grant"} == set(spaces["grant"])
    assert sum(key.split(" ")[1] == "grant" for key in keys["ends"]) == len(spaces["grant"])
    assert {name for kind, name in due if kind == "feed"} == set(spaces["feed"])
    assert sum(key.split(" ")[1] == "feed" for key in keys["ends"]) == len(spaces["feed"])
    assert {name for kind, name in due if kind == "stale"} == set(spaces["stale"])
    assert {tuple(key.split(" ")) for key in keys["follower"]} == {tuple(reversed(key.split(" "))) for key in spaces["feed"]}
    counts: dict[str, int] = {}
    for key in spaces["feed"]:
        uuid, _, entity = key.partition(" ")
        for counted in (f"of {entity}", f"to {uuid}"):
            counts[counted] = counts.get(counted, 0) + 1
    assert {key: fact["count"] for key, fact in spaces["feeds"].items()} == counts
