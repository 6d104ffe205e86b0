"""Hierarchies, collections and watches (T23 to T36) as their definitions say them, for comparison with `tdn.rules`.

Everything is worked out from scratch for each question: ancestors are walked, every path of the collections is enumerated, every watcher is
asked by definition. Nothing is carried down, counted along or remembered. The only facts are what was asked for (lists, limits, lifetimes),
who is directly below or in what, and what has ended.

The model takes a log's records, as bytes, one after the other (`take`), and believes their signatures: those are tested elsewhere. So it
replays a real log as well as one in memory. In a log where more hangs on one thing than a record settles at once, it is told what has
been settled (`follow`); it checks that this was due. Otherwise everything follows at once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

from tdn.protocol.access import Asker
from tdn.protocol.names import Name
from tdn.protocol.times import format_time, parse_time
from tdn.trust import signing
from tdn.trust.certificates import institution_of, name_of

LIVE, WITHDRAWN, EXPIRED = "live", "withdrawn", "expired"
TOPIC, COLLECTION = "topic", "collection"

SKEW = timedelta(seconds=30)
DAY = timedelta(days=1)
LONGEST_WORD = timedelta(days=30)
LEASE = timedelta(days=30)


class No(Exception):
    """A request is refused, for a reason that is named in a word or two."""


@dataclass
class Thing:
    """A topic or collection, with what its creator asked for."""

    uuid: str
    kind: str
    owner: str
    created: datetime
    expires: datetime
    digest: str
    lists: Mapping[str, Any]
    hosting: Mapping[str, Any]
    gathering: Mapping[str, Any]
    parent: str | None
    state: str = LIVE


@dataclass(frozen=True)
class Reserved:
    """A child that was registered and not advertised yet."""

    creator: str
    parent: str
    created: datetime
    expires: datetime
    claims: Mapping[str, Any]
    until: datetime


@dataclass(frozen=True, order=True)
class Told:
    """One change, as one watcher was told it."""

    seq: int
    change: str
    uuid: str
    kind: str
    at: str
    inside: str = ""


@dataclass
class Watch:
    since: int
    until: datetime
    told: list[Told] = field(default_factory=list)


@dataclass
class Principal:
    """Who the log says somebody is: its current certificate."""

    name: Name
    thumbprint: str
    institution: str
    issued: datetime
    expires: datetime
    revoked: set[str] = field(default_factory=set)

    @property
    def current(self) -> bool:
        return self.name.key_hash not in self.revoked


@dataclass(frozen=True)
class Verdict:
    """What a record does: `accepted`, `refused`, `repeated` or `void`; and why not."""

    status: str
    reason: str = ""
    key: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Something that is seen around something else: how far away, and what it may be said to be directly in (or below)."""

    uuid: str
    depth: int
    inside: frozenset[str | None]


def decode(raw: bytes) -> tuple[signing.Header, dict[str, Any], bytes | None]:
    """A signed message's header, payload and tail; its signature is believed."""
    message = signing.split(raw)
    return message.header, json.loads(signing.decode_segment(message.payload_segment)), message.tail


class Model:
    """One network's hierarchies, collections and watches."""

    #: How long a registered child's slot is kept.
    reserved_for = timedelta(minutes=1)

    def __init__(self, *, at_once: bool = True, lease: timedelta = LEASE) -> None:
        #: Whether all that hangs on something ended, or shortened, follows in the same record.
        self.at_once = at_once
        self.lease = lease
        self.seq = 0
        self.network: str | None = None
        self.time = datetime.min.replace(tzinfo=UTC)
        self.ticks: dict[str, datetime] = {}
        self.principals: dict[str, Principal] = {}
        #: When each certificate that was ever current runs out, by its holder and thumbprint; nothing once it has.
        self.certificates: dict[str, datetime | None] = {}
        self.things: dict[str, Thing] = {}
        self.reserved: dict[str, Reserved] = {}
        self.members: dict[str, set[str]] = {}
        self.watches: dict[tuple[str, str], Watch] = {}
        #: What requests had as an answer: what was asked, the verdict, and until when it is remembered.
        self.answers: dict[str, tuple[str, Verdict, datetime]] = {}

    # --- the log ---

    def take(self, raw: bytes) -> Verdict:
        """The next record of the log. What cannot be read, or was not signed by who is current, does nothing."""
        self.seq += 1
        try:
            header, record, tail = decode(raw)
            if self.network is None:
                return self._begin(record, tail)
            kind, at = record["kind"], parse_time(record["at"]).replace(microsecond=0)
            if kind == "tick":
                self._require_current(header)
                self.tick(record["node"], at)
                return Verdict("accepted")
            assert tail is not None
            if kind != "enrol":
                self._require_current(header)
            asked, request, advertisement = decode(tail)
            # A hello brings the certificate that it is about.
            signer = _principal(asked.chain[0]) if kind == "hello" else self._require_current(asked)
        except (No, ValueError, KeyError, AssertionError) as error:
            return Verdict("void", str(error))
        return self._once(kind, signer, request, at, record.get("minted"), advertisement)

    def _begin(self, record: Mapping[str, Any], tail: bytes | None) -> Verdict:
        assert tail is not None
        body = decode(tail)[1]["body"]
        self.network = signing.decode_segment(signing.digest(tail).encode()).hex()
        self.time = parse_time(body["created"])
        self._certify(_principal(base64.b64decode(body["operator"][0])))
        return Verdict("accepted")

    def _once(
        self,
        kind: str,
        signer: Principal,
        request: Mapping[str, Any],
        at: datetime,
        minted: Mapping[str, str] | None,
        advertisement: bytes | None,
    ) -> Verdict:
        """T22: a request is judged once. What comes after its deadline is not judged at all."""
        key = f"{signer.name.principal}/{request['jti']}"
        asked = json.dumps([kind, request["body"], advertisement.decode() if advertisement else None], sort_keys=True)
        if key in self.answers:
            before, verdict, _ = self.answers[key]
            return Verdict("repeated", verdict.reason, key, verdict.fixed) if before == asked else Verdict("refused", "id", key)
        until = datetime.fromtimestamp(request["exp"], UTC) + SKEW
        if until <= self.time:
            return Verdict("refused", "deadline", key)
        body = request["body"]
        try:
            if kind in ("hello", "enrol", "revoke", "rules", "genesis"):
                self._admit(kind, signer, body)
                verdict = Verdict("accepted", "", key)
            else:
                asker = Asker(signer.name.id, signer.institution)
                token = decode(advertisement) if advertisement is not None else None
                digest = signing.digest(signing.split(advertisement).payload_segment) if advertisement is not None else ""
                fixed = self.judge(kind, asker, body, at, minted=minted, advertisement=token and token[1], digest=digest)
                verdict = Verdict("accepted", "", key, fixed)
        except No as no:
            verdict = Verdict("refused", str(no), key)
        self.answers[key] = (asked, verdict, until)
        if self.at_once:
            self._settle(at)
        return verdict

    # --- who is who ---

    def _certify(self, principal: Principal) -> None:
        """A certificate becomes its holder's current one, if it is later than the one before."""
        present = self.principals.get(principal.name.principal)
        if present is not None:
            principal.revoked = present.revoked
            if principal.issued < present.issued or not principal.current:
                raise No("not later, or revoked")
        self.principals[principal.name.principal] = principal
        # It holds in its last second too.
        self.certificates.setdefault(f"{principal.name.principal} {principal.thumbprint}", principal.expires + timedelta(seconds=1))

    def _admit(self, kind: str, signer: Principal, body: Mapping[str, Any]) -> None:
        if kind == "genesis":
            raise No("has begun")
        if kind == "hello":
            self._certify(signer)
        elif kind == "enrol":
            self._certify(_principal(base64.b64decode(body["chain"][0])))
        elif kind == "revoke" and body["principal"] in self.principals:
            principal = self.principals[body["principal"]]
            principal.revoked |= set(body["keys"])
            if principal.issued <= parse_time(body["issued_until"]):
                principal.revoked.add(principal.name.key_hash)

    def _require_current(self, header: signing.Header) -> Principal:
        for principal in self.principals.values():
            if principal.thumbprint == header.thumbprint and principal.current:
                return principal
        raise No("not current")

    def asker(self, entity: str) -> Asker | None:
        """An entity as lists mean it; nobody, when it was revoked."""
        principal = self.principals.get(f"entity:{entity}")
        return Asker(entity, principal.institution) if principal is not None and principal.current else None

    # --- time ---

    def tick(self, node: str, at: datetime) -> None:
        """A node's clock. Log time is the lower median of those of current nodes; what is due then ends, the earlier first."""
        self.ticks[node] = max(at, self.ticks.get(node, at))
        ordered = sorted(moment for name, moment in self.ticks.items() if self.principals[f"node:{name}"].current)
        self.time = max(self.time, ordered[(len(ordered) - 1) // 2])
        if self.at_once:
            for moment, space, name in self.due():
                if moment <= self.time:
                    self._lapse(space, name, self.time)
            self._settle(self.time)

    def due(self) -> list[tuple[datetime, str, str]]:
        """Everything that ends by itself, with when."""
        ends = [(thing.expires, "topic", uuid) for uuid, thing in self.things.items() if thing.state == LIVE]
        ends += [(reserved.until, "reserved", uuid) for uuid, reserved in self.reserved.items()]
        ends += [(watch.until, "watch", f"{uuid} {watcher}") for (uuid, watcher), watch in self.watches.items()]
        ends += [(until, "request", key) for key, (_, _, until) in self.answers.items()]
        ends += [(until, "certificate", name) for name, until in self.certificates.items() if until is not None]
        return sorted(ends)

    def _lapse(self, space: str, name: str, at: datetime) -> None:
        if space == "topic":
            self._end(name, EXPIRED, at)
        elif space == "reserved":
            del self.reserved[name]
        elif space == "watch":
            uuid, _, watcher = name.partition(" ")
            del self.watches[uuid, watcher]
        elif space == "certificate":
            self.certificates[name] = None
        else:
            del self.answers[name]

    # --- relations, walked ---

    def upward(self, uuid: str | None) -> Iterator[Thing]:
        """A topic and its ancestors, the nearest first. A collection has none."""
        while uuid is not None:
            yield self.things[uuid]
            uuid = self.things[uuid].parent

    def below(self, uuid: str) -> list[str]:
        """All that has a topic among its ancestors."""
        return [other for other in self.things if other != uuid and uuid in [thing.uuid for thing in self.upward(other)]]

    def children(self, uuid: str) -> list[str]:
        """The children that have not been marked as ended, in the order in which they were created."""
        own = [thing for thing in self.things.values() if thing.parent == uuid and thing.state == LIVE]
        return [thing.uuid for thing in sorted(own, key=lambda thing: (thing.created, thing.uuid))]

    def containers(self, uuid: str) -> list[str]:
        return sorted(outer for outer, held in self.members.items() if uuid in held)

    def paths(self, uuid: str, members: Mapping[str, set[str]] | None = None) -> Iterator[tuple[str, ...]]:
        """Every way down from a collection, itself first, as far as each place on it: the whole graph, path by path."""
        members = self.members if members is None else members
        stack = [(uuid,)]
        while stack:
            path = stack.pop()
            yield path
            for inner in sorted(members.get(path[-1], ())):
                if inner in path:
                    raise No("cycle")
                stack.append((*path, inner))

    def counts(self, uuid: str, members: Mapping[str, set[str]] | None = None) -> dict[str, int]:
        """How large something is: of a topic its children, with reserved ones; of a collection its members, and in its tree the largest
        number of direct members, the levels of collections, and the distinct topics."""
        if self.things[uuid].kind == TOPIC:
            reserved = [child for child, at in self.reserved.items() if at.parent == uuid]
            return {"members": len(self.children(uuid)) + len(reserved)}
        members = self.members if members is None else members
        paths = list(self.paths(uuid, members))
        collections = [path for path in paths if self.things[path[-1]].kind == COLLECTION]
        return {
            "members": len(members.get(uuid, ())),
            "breadth": max(len(members.get(path[-1], ())) for path in collections),
            "depth": max(len(path) for path in collections),
            "topics": len({path[-1] for path in paths if self.things[path[-1]].kind == TOPIC}),
        }

    def exceeded(self, uuid: str, members: Mapping[str, set[str]] | None = None) -> bool:
        """Whether something is larger than it, or anything above it, allows."""
        thing = self.things[uuid]
        if thing.kind == COLLECTION:
            counts = self.counts(uuid, members)
            return any(0 < limit < counts[name] for name, limit in thing.gathering["limits"].items())
        size = self.counts(uuid)["members"]
        return any(
            0 < above.hosting.get("max_width", 0) < size or 0 < above.hosting.get("max_depth", 0) < level
            for level, above in enumerate(self.upward(uuid), start=1)
        )

    # --- who may what ---

    def live(self, uuid: str, now: datetime) -> bool:
        """T26: it has not ended, nor has any ancestor."""
        return uuid in self.things and all(thing.state == LIVE and now < thing.expires for thing in self.upward(uuid))

    def ends(self, uuid: str) -> datetime:
        """The moment after which nothing of it can be seen."""
        return min(thing.expires for thing in self.upward(uuid))

    def admits(self, uuid: str, subject: str, asker: Asker) -> bool:
        """T18, T27, T32: its owner; else who is barred nowhere upwards, and is on the nearest allow list. Where there is none: everyone,
        or for some things of a collection nobody but its owner."""
        thing = self.things[uuid]
        if asker.entity == thing.owner:
            return True
        if any(_means(above.lists.get(f"{subject}_deny", ()), asker) for above in self.upward(uuid)):
            return False
        for above in self.upward(uuid):
            if f"{subject}_allow" in above.lists:
                return _means(above.lists[f"{subject}_allow"], asker)
        return subject not in ("add", "owner", "include")

    def sees(self, uuid: str, asker: Asker, now: datetime) -> bool:
        return self.live(uuid, now) and self.admits(uuid, "discover", asker)

    def sees_place(self, uuid: str, asker: Asker, now: datetime) -> bool:
        return self.sees(uuid, asker, now) and self.things[uuid].kind == TOPIC and self.admits(uuid, "hierarchy", asker)

    def sees_collection(self, uuid: str, asker: Asker, now: datetime) -> bool:
        return self.sees(uuid, asker, now) and self.things[uuid].kind == COLLECTION

    def may_follow(self, uuid: str, asker: Asker) -> bool:
        subject = "hierarchy" if self.things[uuid].kind == TOPIC else "watch"
        return self.admits(uuid, "discover", asker) and self.admits(uuid, subject, asker)

    def countersigned(
        self, token: str | None, right: str, uuid: str, entity: str, now: datetime, collection: str | None = None
    ) -> bool:
        """T27, T33: whether the owner has signed that this entity may do this."""
        if token is None or uuid not in self.things:
            return False
        header, claims, _ = decode(token.encode())
        try:
            signer = self._require_current(header)
        except No:
            return False
        issued, expires = datetime.fromtimestamp(claims["iat"], UTC), datetime.fromtimestamp(claims["exp"], UTC)
        body = claims["body"]
        return (
            header.kind == "countersign"
            and signer.name.principal == f"entity:{self.things[uuid].owner}"
            and claims["aud"] == f"tdn:network:{self.network}"
            and issued - SKEW <= now <= expires
            and expires - issued <= LONGEST_WORD
            and (body["right"], body["uuid"], body["entity"]) == (right, uuid, entity)
            and ("collection" not in body or body["collection"] == collection)
        )

    # --- what is seen ---

    def visible_parents(self, uuid: str, asker: Asker, now: datetime) -> list[Place]:
        found: list[Place] = []
        if not self.sees_place(uuid, asker, now):
            return found
        for depth, thing in enumerate(list(self.upward(uuid))[1:], start=1):
            if not self.sees_place(thing.uuid, asker, now):
                break
            shows = thing.parent is not None and self.sees_place(thing.parent, asker, now)
            found.append(Place(thing.uuid, depth, frozenset({thing.parent if shows else None})))
        return found

    def visible_tree(self, uuid: str, asker: Asker, now: datetime, depth: int = 0, inside: str | None = None) -> list[Place]:
        """A topic and what is below it, as far as every step down shows; each before its children."""
        if not self.sees_place(uuid, asker, now):
            return []
        found = [Place(uuid, depth, frozenset({inside}))]
        for child in self.children(uuid):
            found += self.visible_tree(child, asker, now, depth + 1, uuid)
        return found

    def visible_collections(self, uuid: str, asker: Asker, now: datetime) -> list[Place]:
        """The collections inside one, through collections that show; each once, at the length of the shortest way."""
        if not self.sees_collection(uuid, asker, now):
            return []
        shown = [path for path in self.paths(uuid) if all(self.sees_collection(at, asker, now) for at in path)]
        return _nearest(shown)

    def visible_containers(self, uuid: str, asker: Asker, now: datetime) -> list[Place]:
        """The collections that something is in, likewise upwards."""
        if not self.sees(uuid, asker, now):
            return []
        shown, stack = [], [(uuid,)]
        while stack:
            path = stack.pop()
            shown.append(path)
            stack += [(*path, outer) for outer in self.containers(path[-1]) if self.sees_collection(outer, asker, now)]
        return _nearest(shown)

    def visible_topics(self, uuid: str, asker: Asker, now: datetime) -> list[Place]:
        """The topics in a collection's tree, in the order of their UUIDs. Where several hold one, the nearest names it."""
        if not self.sees_collection(uuid, asker, now):
            return []
        levels = {uuid: 0} | {place.uuid: place.depth for place in self.visible_collections(uuid, asker, now)}
        found = []
        for topic in sorted(self.things):
            holders = [at for at in levels if topic in self.members.get(at, ())]
            if holders and self.things[topic].kind == TOPIC and self.sees(topic, asker, now):
                level, inside = min((levels[at], at) for at in holders)
                found.append(Place(topic, level + 1, frozenset({inside})))
        return found

    def told(self, subject: str, watcher: str) -> list[Told]:
        return self.watches[subject, watcher].told

    # --- changes ---

    def judge(
        self,
        kind: str,
        requester: Asker,
        body: Mapping[str, Any],
        at: datetime,
        *,
        minted: Mapping[str, str] | None = None,
        advertisement: Mapping[str, Any] | None = None,
        digest: str = "",
    ) -> Mapping[str, Any]:
        """Decide a change and carry it out: what the receipt fixes, or `No` with the reason and nothing done."""
        now = max(at, self.time)
        who = requester.entity
        assert who is not None
        if kind == "register":
            return self._register(requester, body, at, now, minted)
        if kind == "advertise":
            assert advertisement is not None
            return self._advertise(requester, body, at, now, advertisement, digest)
        if kind == "renew":
            return self._renew(who, body, at, now)
        if kind == "withdraw":
            return self._withdraw(who, body["uuid"], at, now)
        if kind == "add":
            self._require_may_add(requester, body["collection"], now)
            tokens = [body["countersigned"]] if "countersigned" in body else []
            self._join(requester, body["collection"], body["uuid"], tokens, now, self.members)
            self._include(body["collection"], body["uuid"], at)
            return {"collection": body["collection"], "uuid": body["uuid"]}
        if kind == "remove":
            self._require_may_remove(requester, body["collection"], body["uuid"], now)
            self._exclude(body["collection"], body["uuid"], at)
            return {"collection": body["collection"], "uuid": body["uuid"]}
        if kind == "move":
            return self._move(requester, body, at, now)
        if kind == "watch":
            return self._watch(requester, body["uuid"], now)
        assert kind == "unwatch"
        if (body["uuid"], who) not in self.watches:
            raise No("not followed")
        return {"uuid": body["uuid"], "version": len(self.watches.pop((body["uuid"], who)).told)}

    def _register(
        self, requester: Asker, body: Mapping[str, Any], at: datetime, now: datetime, minted: Mapping[str, str] | None
    ) -> Mapping[str, Any]:
        """T24, T25."""
        parent, who = body["parent"], requester.entity
        assert who is not None
        if minted is None:
            raise No("not minted")
        if minted["uuid"] in self.things or minted["uuid"] in self.reserved:
            raise No("taken")
        word = self.countersigned(body.get("countersigned"), "register", parent, who, now)
        if not self.live(parent, now) or not (word or self.sees(parent, requester, now)):
            raise No("absent")
        if self.things[parent].kind == COLLECTION:
            raise No("collection")
        if not self.things[parent].hosting.get("allow_children"):
            raise No("no children")
        if not word and not self.admits(parent, "register", requester):
            raise No("may not register")
        above = list(self.upward(parent))
        depths = [
            (thing.hosting["max_depth"], level) for level, thing in enumerate(above, start=1) if thing.hosting.get("max_depth")
        ]
        widths = [thing.hosting["max_width"] for thing in above if thing.hosting.get("max_width")]
        if any(level + 1 > depth for depth, level in depths):
            raise No("depth")
        if any(self.counts(parent)["members"] + 1 > width for width in widths):
            raise No("width")
        asked = body.get("hosting", {})
        if any(asked.get("max_depth") == 0 or level + asked.get("max_depth", 0) > depth for depth, level in depths):
            raise No("asks too much")
        if any(asked.get("max_width") == 0 or asked.get("max_width", 0) > width for width in widths):
            raise No("asks too much")
        wanted = at + timedelta(seconds=body["lifetime_seconds"])
        expires = min(wanted, self.ends(parent))
        if expires <= at:
            raise No("ends before")
        claims = {name: body[name] for name in ("hosting", "parent") if name in body} | {"access": body.get("lists", {})}
        self.reserved[minted["uuid"]] = Reserved(who, parent, at, expires, claims, self.time + self.reserved_for)
        return _fixed(minted["uuid"], expires, wanted) | {"created": format_time(at)}

    def _advertise(
        self, requester: Asker, body: Mapping[str, Any], at: datetime, now: datetime, token: Mapping[str, Any], digest: str
    ) -> Mapping[str, Any]:
        """T7, T31."""
        uuid = body["uuid"]
        if uuid != token["uuid"]:
            raise No("another UUID")
        if token["creator"] != requester.entity:
            raise No("not its creator")
        if uuid in self.things:
            present = self.things[uuid]
            if present.state != LIVE:
                raise No("ended")
            if present.digest != digest:
                raise No("other content")
            return _fixed(uuid, present.expires)
        created, expires = parse_time(token["created"]), parse_time(token["expires"])
        claims = {name: claim["value"] for name, claim in body["opening"].items()}
        if created > at + SKEW or now > created + DAY or now >= expires:
            raise No("not in time")
        parent = claims.get("parent")
        if parent is not None:
            self._claim(uuid, token, claims, now)
        gathering = claims.get("gathering", {})
        lists, hosting = claims["access"], claims.get("hosting", {})
        thing = Thing(uuid, token["kind"], token["creator"], created, expires, digest, lists, hosting, gathering, parent)
        members = dict(self.members) | {uuid: set()}
        self.things[uuid] = thing
        try:
            for member in claims.get("members", ()):
                self._join(requester, uuid, member, body.get("countersigned", ()), now, members)
                members[uuid] = members[uuid] | {member}
        except No:
            del self.things[uuid]
            raise
        if thing.kind == COLLECTION:
            self.members = members
        if parent is not None:
            del self.reserved[uuid]
            self._tell_ancestors(uuid, "added", at)
        return _fixed(uuid, expires)

    def _claim(self, uuid: str, token: Mapping[str, Any], claims: Mapping[str, Any], now: datetime) -> None:
        """A child is advertised as it was registered, if it still does not outlive an ancestor (T26)."""
        reserved = self.reserved.get(uuid)
        if reserved is None:
            raise No("not registered")
        given = (token["creator"], claims["parent"], parse_time(token["created"]), parse_time(token["expires"]), claims)
        if given != (reserved.creator, reserved.parent, reserved.created, reserved.expires, reserved.claims):
            raise No("registered otherwise")
        if not self.live(reserved.parent, now):
            raise No("parent ended")
        if reserved.expires > self.ends(reserved.parent):
            raise No("parent shorter")

    def _renew(self, who: str, body: Mapping[str, Any], at: datetime, now: datetime) -> Mapping[str, Any]:
        """T26, T39: never longer than the ancestors; what is below is cut with it."""
        thing = self._owned(who, body["uuid"], now)
        wanted = at + timedelta(seconds=body["lifetime_seconds"])
        thing.expires = min(wanted, self.ends(thing.parent)) if thing.parent is not None else wanted
        return _fixed(thing.uuid, thing.expires, wanted)

    def _withdraw(self, who: str, uuid: str, at: datetime, now: datetime) -> Mapping[str, Any]:
        present = self.things.get(uuid)
        if present is None or present.state != WITHDRAWN or present.owner != who:
            present = self._owned(who, uuid, now)
            self._end(uuid, WITHDRAWN, at)
        return _fixed(uuid, present.expires)

    def _owned(self, who: str, uuid: str, now: datetime) -> Thing:
        if uuid not in self.things or self.things[uuid].owner != who:
            raise No("not owned")
        if not self.live(uuid, now):
            raise No("ended")
        return self.things[uuid]

    # --- collections ---

    def _require_may_add(self, requester: Asker, place: str, now: datetime) -> None:
        if not self.sees(place, requester, now):
            raise No("absent")
        if self.things[place].kind == TOPIC:
            raise No("topic")
        if not self.admits(place, "add", requester):
            raise No("may not add")
        if self.things[place].gathering["fixed"]:
            raise No("fixed")

    def _require_may_remove(self, requester: Asker, place: str, uuid: str, now: datetime) -> None:
        held = uuid in self.members.get(place, ())
        owns = held and self.live(uuid, now) and self.things[uuid].owner == requester.entity
        if not self.live(place, now) or not (owns or self.sees(place, requester, now)):
            raise No("absent")
        if self.things[place].kind == TOPIC:
            raise No("topic")
        owns_place = self.things[place].owner == requester.entity
        if not held or not self.live(uuid, now) or not (owns or owns_place or self.sees(uuid, requester, now)):
            raise No("not in it")
        if not (owns or owns_place):
            raise No("may not remove")
        if self.things[place].gathering["fixed"]:
            raise No("fixed")

    def _join(self, requester: Asker, place: str, uuid: str, tokens: Any, now: datetime, members: Mapping[str, set[str]]) -> None:
        """T33: with consent, allowed, never a cycle, and no limit breaks on any path from any collection above; tried out on a copy."""
        who = requester.entity
        assert who is not None
        if uuid == place:
            raise No("itself")
        consent = self.live(uuid, now) and (
            self.things[uuid].owner == who
            or (self.sees_collection(uuid, requester, now) and self.admits(uuid, "include", requester))
            or any(self.countersigned(token, "include", uuid, who, now, place) for token in tokens)
        )
        if not consent and not self.sees(uuid, requester, now):
            raise No("absent")
        if not consent:
            raise No("no consent")
        owner = self.asker(self.things[uuid].owner)
        if self.things[uuid].owner != who and (owner is None or not self.admits(place, "discover", owner)):
            raise No("hidden from the owner")
        if uuid in members.get(place, ()):
            raise No("already")
        member, collection = self.things[uuid], self.things[place]
        if member.kind == COLLECTION:
            if not collection.gathering["child_collections"]:
                raise No("no collections")
            if not member.gathering["inclusion"]:
                raise No("no inclusion")
            if collection.gathering["fixed"] and not member.gathering["fixed"]:
                raise No("not fixed")
        wanted = {**members, place: members.get(place, set()) | {uuid}}
        above = [
            at for at in wanted if self.things[at].state == LIVE and any(path[-1] == place for path in self.paths(at, wanted))
        ]
        # Of an ended one that is not empty yet, nobody asks how full it is; a cycle through it would still be one.
        for at in wanted:
            list(self.paths(at, wanted))
        for at in above:
            limits, counts = self.things[at].gathering["limits"], self.counts(at, wanted)
            if any(0 < limits[name] < counts[name] for name in ("breadth", "depth")):
                raise No("limit")
        coming = {path[-1] for path in self.paths(uuid, wanted) if self.things[path[-1]].kind == TOPIC}
        for at in above:
            if not all(self._takes(at, self.things[topic].owner) for topic in coming):
                raise No("owners")
        if any(self.exceeded(at, wanted) for at in above):
            raise No("limit")

    def _takes(self, place: str, owner: str) -> bool:
        """T32: whose topics a collection takes. Of who was revoked, no list can say what it is; so it takes those only if it takes all."""
        lists, asker = self.things[place].lists, self.asker(owner)
        everybody = lists.get("owner_allow") == ["*"] and not lists.get("owner_deny")
        return everybody or (asker is not None and self.admits(place, "owner", asker))

    def _include(self, place: str, uuid: str, at: datetime) -> None:
        self.members[place] = self.members[place] | {uuid}
        self._tell_outward(uuid, [place], "added", at)

    def _exclude(self, place: str, uuid: str, at: datetime) -> None:
        self._tell_outward(uuid, [place], "removed", at)
        self.members[place] = self.members[place] - {uuid}

    def _move(self, requester: Asker, body: Mapping[str, Any], at: datetime, now: datetime) -> Mapping[str, Any]:
        """T34: both or neither; what the one gives free, the other may need."""
        uuid, away, to = body["uuid"], body["from"], body["to"]
        if away == to:
            raise No("where it is")
        self._require_may_add(requester, to, now)
        self._require_may_remove(requester, away, uuid, now)
        tokens = [body["countersigned"]] if "countersigned" in body else []
        self._join(requester, to, uuid, tokens, now, {**self.members, away: self.members[away] - {uuid}})
        self._exclude(away, uuid, at)
        self._include(to, uuid, at)
        return {"collection": to, "uuid": uuid}

    # --- endings ---

    def _end(self, uuid: str, state: str, at: datetime) -> None:
        """Something ends: followers are told, and a topic leaves its collections. A collection stays until it is empty (`_settle`)."""
        thing = self.things[uuid]
        thing.state = state
        self._tell_outward(uuid, self.containers(uuid), state, at)
        if thing.parent is not None and self.live(thing.parent, self.time):
            self._tell_ancestors(uuid, state, at)
        for (subject, watcher), watch in self.watches.items():
            asker = self.asker(watcher)
            if subject == uuid and asker is not None and self.may_follow(uuid, asker):
                watch.told.append(Told(self.seq, state, uuid, thing.kind, format_time(at)))
        if thing.kind == TOPIC:
            self.members = {place: held - {uuid} for place, held in self.members.items()}

    def _settle(self, at: datetime) -> None:
        """Everything that hangs on what has ended, or was shortened, follows."""
        for place, thing in self.things.items():
            if thing.kind == COLLECTION and thing.state != LIVE:
                self.members = {at: held - {place} for at, held in self.members.items() if at != place}
        for uuid, thing in self.things.items():
            thing.expires = self.ends(uuid) if thing.state == LIVE else thing.expires
        for uuid in list(self.things):
            if self.things[uuid].state == LIVE and any(above.state != LIVE for above in self.upward(uuid)):
                self._end(uuid, EXPIRED, at)

    def unsettled(self) -> bool:
        """Whether something has not followed yet, or is due."""
        return any(moment <= self.time for moment, _, _ in self.due()) or any(
            (thing.state == LIVE and (any(above.state != LIVE for above in self.upward(uuid)) or self.ends(uuid) < thing.expires))
            or (thing.kind == COLLECTION and thing.state != LIVE and uuid in self.members)
            for uuid, thing in self.things.items()
        )

    def follow(self, at: datetime, settled: Settled) -> None:
        """Take note of what a record has settled, where not all follows at once. Each must have been due."""
        for moment, space, name in self.due():
            if moment <= self.time and name in getattr(settled, space):
                self._lapse(space, name, at)
        for place, member in settled.released:
            assert {self.things[place].state, self.things[member].state} != {LIVE}, f"{member} was taken out of {place}"
            self.members[place] = self.members[place] - {member}
        for place in [place for place, held in self.members.items() if not held and self.things[place].state != LIVE]:
            if not self.containers(place):
                del self.members[place]
        for uuid, expires in settled.cut.items():
            assert expires == self.ends(uuid), f"{uuid} ends at {expires}, and nothing above it does"
            self.things[uuid].expires = expires
        for uuid in settled.topic:
            if self.things[uuid].state == LIVE:
                assert any(above.state != LIVE for above in self.upward(uuid)), f"{uuid} ended, and nothing above it has"
                self._end(uuid, EXPIRED, at)

    # --- watches ---

    def _watch(self, requester: Asker, uuid: str, now: datetime) -> Mapping[str, Any]:
        if not self.sees(uuid, requester, now) or not self.may_follow(uuid, requester):
            raise No("absent")
        assert requester.entity is not None
        watch = self.watches.setdefault((uuid, requester.entity), Watch(self.seq, now))
        watch.until = now + self.lease
        return {"uuid": uuid, "version": len(watch.told), "expires": format_time(watch.until)}

    def _tell_ancestors(self, uuid: str, change: str, at: datetime) -> None:
        """T29: who follows an ancestor is told of a child, if the places of both and of all between show to it."""
        chain = [thing.uuid for thing in self.upward(uuid)]
        for (subject, watcher), watch in self.watches.items():
            asker = self.asker(watcher)
            if asker is None or subject not in chain[1:]:
                continue
            between = chain[: chain.index(subject) + 1]
            if all(self.admits(step, about, asker) for step in between for about in ("discover", "hierarchy")):
                watch.told.append(Told(self.seq, change, uuid, TOPIC, format_time(at), chain[1]))

    def _tell_outward(self, uuid: str, places: list[str], change: str, at: datetime) -> None:
        """T35: who follows a collection is told, once, of what comes to or goes from it or one in its tree, if it sees the way there. What
        has ended by one node's clock alone may yet be renewed: who follows it must have been told."""
        now = self.time
        for (subject, watcher), watch in self.watches.items():
            asker = self.asker(watcher)
            if asker is None or not self.sees_collection(subject, asker, now) or not self.may_follow(subject, asker):
                continue
            if not self.admits(uuid, "discover", asker):
                continue
            around = {subject} | {place.uuid for place in self.visible_collections(subject, asker, now)}
            seen = [place for place in places if self.sees_collection(place, asker, now)]
            if around & set(seen):
                inside = seen[0] if len(seen) == 1 else ""
                watch.told.append(Told(self.seq, change, uuid, self.things[uuid].kind, format_time(at), inside))


@dataclass
class Settled:
    """What one record settled: ended topics and collections; lapsed reservations, watches, answers and certificates; members that were released;
    new ends."""

    topic: list[str] = field(default_factory=list)
    reserved: list[str] = field(default_factory=list)
    watch: list[str] = field(default_factory=list)
    request: list[str] = field(default_factory=list)
    certificate: list[str] = field(default_factory=list)
    released: list[tuple[str, str]] = field(default_factory=list)
    cut: dict[str, datetime] = field(default_factory=dict)


def _principal(der: bytes) -> Principal:
    """Who holds a certificate."""
    certificate = x509.load_der_x509_certificate(der)
    span = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    return Principal(name_of(certificate), signing.digest(der), institution_of(certificate), *span)


def _means(names: Any, asker: Asker) -> bool:
    return any(name in ("*", f"institution:{asker.institution}", asker.entity) for name in names)


def _nearest(paths: list[tuple[str, ...]]) -> list[Place]:
    """Where paths end, but for where they begin; each with the shortest length, and what the shortest ones end with before it."""
    found = []
    for uuid in sorted({path[-1] for path in paths if len(path) > 1}):
        depth = min(len(path) for path in paths if path[-1] == uuid)
        found.append(Place(uuid, depth - 1, frozenset(path[-2] for path in paths if path[-1] == uuid and len(path) == depth)))
    return sorted(found, key=lambda place: place.depth)


def _fixed(uuid: str, expires: datetime, wanted: datetime | None = None) -> dict[str, Any]:
    fixed = {"uuid": uuid, "expires": format_time(expires)}
    return {**fixed, "cut": True} if wanted is not None and expires < wanted else fixed
