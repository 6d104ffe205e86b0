"""Limits, held against what the nodes accepted: their stores say of each record whether it counts, whatever a model of the rules would have said.

So a child too many is found also where the model would make the same mistake, and is named for what it is. Only log time comes from outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tdn.protocol.times import parse_time
from tests.unit.rules.tree_model import COLLECTION, Model, decode


@dataclass
class Placed:
    """A topic or collection as it was accepted."""

    kind: str
    parent: str | None
    expires: datetime
    hosting: Mapping[str, Any]
    #: Breadth, depth and topics, of a collection.
    limits: Mapping[str, int]


@dataclass
class Accepted:
    """What is there, by what was accepted: only what has not ended."""

    live: dict[str, Placed] = field(default_factory=dict)
    #: Children that were registered and not advertised yet: their parents, and until when their places are kept.
    reserved: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _told: set[str] = field(default_factory=set)

    def take(self, raw: bytes, kind: str, receipt: Mapping[str, Any] | None, now: datetime) -> list[str]:
        """The next record that was accepted, and log time after it: what it breaks. What goes on being broken is told once."""
        self._lapse(now)
        found = [*self._place(raw, kind, receipt or {}, now), *self._exceeded()]
        new = [what for what in found if what not in self._told]
        self._told.update(new)
        return new

    def _place(self, raw: bytes, kind: str, receipt: Mapping[str, Any], now: datetime) -> Iterator[str]:
        tail = decode(raw)[2]
        if tail is None:
            return
        _, request, advertisement = decode(tail)
        body = request["body"]
        if kind == "register":
            self.reserved[receipt["uuid"]] = (body["parent"], now + Model.reserved_for)
            yield from self._outlives(receipt["uuid"], body["parent"], parse_time(receipt["expires"]))
        elif kind == "advertise" and body["uuid"] not in self.live and advertisement is not None:
            yield from self._advertise(body, decode(advertisement)[1]["kind"], parse_time(receipt["expires"]))
        elif kind == "renew" and body["uuid"] in self.live:
            thing = self.live[body["uuid"]]
            thing.expires = parse_time(receipt["expires"])
            yield from self._outlives(body["uuid"], thing.parent, thing.expires)
            self._shorten_below(body["uuid"], thing.expires)
        elif kind == "withdraw":
            self._end(body["uuid"])
        elif kind == "add":
            self.members[body["collection"]].add(body["uuid"])
        elif kind == "remove":
            self.members[body["collection"]].discard(body["uuid"])
        elif kind == "move":
            self.members[body["from"]].discard(body["uuid"])
            self.members[body["to"]].add(body["uuid"])

    def _advertise(self, body: Mapping[str, Any], kind: str, expires: datetime) -> Iterator[str]:
        uuid, claims = body["uuid"], {name: claim["value"] for name, claim in body["opening"].items()}
        self.reserved.pop(uuid, None)
        limits = claims.get("gathering", {}).get("limits", {})
        self.live[uuid] = Placed(kind, claims.get("parent"), expires, claims.get("hosting", {}), limits)
        self.members[uuid].update(claims.get("members", ()))
        yield from self._outlives(uuid, claims.get("parent"), expires)

    def _outlives(self, uuid: str, parent: str | None, expires: datetime) -> Iterator[str]:
        if parent is not None and (parent not in self.live or self.live[parent].expires < expires):
            yield f"{uuid} outlives its parent {parent}"

    # --- endings ---

    def _lapse(self, now: datetime) -> None:
        for uuid in [uuid for uuid, thing in self.live.items() if thing.expires <= now]:
            self._end(uuid)
        self.reserved = {uuid: (parent, until) for uuid, (parent, until) in self.reserved.items() if until > now}

    def _end(self, uuid: str) -> None:
        """With all below it. What it held is free, and no collection holds it."""
        self.live.pop(uuid, None)
        self.members.pop(uuid, None)
        for held in self.members.values():
            held.discard(uuid)
        for child in [child for child, thing in self.live.items() if thing.parent == uuid]:
            self._end(child)

    def _shorten_below(self, uuid: str, expires: datetime) -> None:
        for child, thing in self.live.items():
            if thing.parent == uuid and thing.expires > expires:
                thing.expires = expires
                self._shorten_below(child, expires)

    # --- limits, looked for from above ---

    def _exceeded(self) -> Iterator[str]:
        below: dict[str, list[str]] = defaultdict(list)
        for uuid, thing in self.live.items():
            if thing.parent is not None:
                below[thing.parent].append(uuid)
        for uuid, (parent, _) in self.reserved.items():
            below[parent].append(uuid)
        for uuid, thing in self.live.items():
            yield from self._exceeded_in(uuid, thing.limits) if thing.kind == COLLECTION else _exceeded_below(uuid, thing, below)

    def _exceeded_in(self, collection: str, limits: Mapping[str, int]) -> Iterator[str]:
        topics: set[str] = set()
        level, number = {collection}, 1
        while level:
            held = [self.members.get(uuid, set()) for uuid in level]
            if limits["breadth"] and max(map(len, held)) > limits["breadth"]:
                yield f"breadth {limits['breadth']} of {collection} is exceeded"
            if limits["depth"] and number > limits["depth"]:
                yield f"depth {limits['depth']} of {collection} is exceeded"
            members = set().union(*held)
            level, number = {uuid for uuid in members if uuid in self.live and self.live[uuid].kind == COLLECTION}, number + 1
            topics |= members - level
            if collection in level or number > len(self.live) + 1:
                yield f"collection {collection} is inside itself, or holds one that is"
                return
        if limits["topics"] and len(topics) > limits["topics"]:
            yield f"topics {limits['topics']} of {collection} are exceeded: {len(topics)}"


def _exceeded_below(root: str, thing: Placed, below: Mapping[str, list[str]]) -> Iterator[str]:
    depth, width = thing.hosting.get("max_depth"), thing.hosting.get("max_width")
    level, number = [root], 1
    while level and (depth or width):
        if depth and number > depth:
            yield f"MaxDepth {depth} of {root} is exceeded by {level}"
        for uuid in level:
            if width and len(below.get(uuid, ())) > width:
                yield f"MaxWidth {width} of {root} is exceeded: {uuid} has {len(below[uuid])} children"
        level, number = [child for uuid in level for child in below.get(uuid, ())], number + 1
