"""Random requests about small hierarchies and collections: tight limits, many lists, often somebody who may not, sometimes nonsense.

What is chosen comes from outside (`Choices`): hypothesis, which can make a failure small, or a seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st
from little_network import DAY, HOUR, MINUTE, SECOND, LittleNetwork, fresh_uuid, read_uuid
from pki import T0
from tree_model import COLLECTION, LIVE, TOPIC, Model, decode

from tdn.protocol.names import Role
from tdn.rules.state import Outcome
from tdn.trust.credentials import Credentials

ENTITIES = ("alice", "bob", "carol", "dave")
#: Where each works; and where it does with its next certificate.
INSTITUTIONS = {"alice": ("north", "north"), "bob": ("north", "south"), "carol": ("south", "south"), "dave": ("south", "north")}
WHO = (*ENTITIES, "institution:north", "institution:south", "*")
TOPIC_SUBJECTS = ("discover", "hierarchy", "register")
COLLECTION_SUBJECTS = ("discover", "add", "owner", "watch", "include")

T = TypeVar("T")


class TwoInstitutions(LittleNetwork):
    """Four entities of two institutions, some of which go to the other one with their second certificate."""

    def _principal(self, role: Role, name: str, generation: int) -> Credentials:
        if role is not Role.ENTITY or name not in INSTITUTIONS:
            return super()._principal(role, name, generation)
        key = (role, name, generation)
        if key not in self._known:
            begins = T0 - DAY + (generation - 1) * HOUR
            institution = INSTITUTIONS[name][(generation - 1) % 2]
            self._known[key] = self.pki.credentials(role, name, generation=generation, not_before=begins, institution=institution)
        return self._known[key]


class Choices(Protocol):
    def pick(self, options: Sequence[T]) -> T: ...

    def number(self, low: int, high: int) -> int: ...

    def chance(self, percent: int) -> bool: ...


@dataclass
class Drawn:
    """Chosen by hypothesis. What is chosen first, or least, is what a failure is made small with."""

    data: st.DataObject

    def pick(self, options: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def chance(self, percent: int) -> bool:
        return self.data.draw(st.integers(0, 99)) >= 100 - percent


@dataclass
class Seeded:
    """Chosen by a generator with a seed."""

    source: random.Random

    def pick(self, options: Sequence[T]) -> T:
        return self.source.choice(options)

    def number(self, low: int, high: int) -> int:
        return self.source.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self.source.random() * 100 < percent


@dataclass(frozen=True)
class Manner:
    """What is asked for, and how often: in percent."""

    limits: int
    #: Those of collections alone.
    breadth: int
    depth: int
    topics: int
    largest_limit: int
    lists: int
    opened: int
    nested: int
    #: Lifetimes, in minutes.
    lifetimes: tuple[int, ...] = (10, 30, 5, 60, 2, 20)


#: Small trees under tight limits; large ones under few; collections in collections, in every way that there is.
TIGHT = Manner(40, breadth=40, depth=40, topics=40, largest_limit=3, lists=8, opened=75, nested=87)
ROOMY = Manner(5, breadth=20, depth=20, topics=20, largest_limit=5, lists=6, opened=85, nested=95)
TANGLED = Manner(20, breadth=8, depth=40, topics=30, largest_limit=6, lists=1, opened=99, nested=99, lifetimes=(60, 120, 30, 20))


@dataclass
class Requests:
    """Makes requests that fit what the model knows. Holds what was minted or registered and is not advertised yet."""

    net: LittleNetwork
    model: Model
    #: Each entity's present certificate, counted from 1.
    generations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENTITIES, 1))
    #: Creator and advertisement of what can be advertised, by UUID.
    minted: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    #: Owners' words, as they were given out.
    words: list[tuple[str, str, str, str, str | None]] = field(default_factory=list)

    manner: Manner = TIGHT
    #: What deserves more requests than the rest: what was shortened or has ended while things hang on it.
    favoured: list[str] = field(default_factory=list)
    #: UUIDs given out. They are numbered here, so that what is tried again has the same order.
    given: int = 0

    def entity(self, name: str) -> Credentials:
        return self.net.entity(name, self.generations[name])

    def new_uuid(self, choose: Choices) -> str:
        """A UUID that comes before or behind the others."""
        self.given += 1
        return fresh_uuid(choose.number(1, 9) * 1_000_000 + self.given)

    # --- choices ---

    def uuid(self, choose: Choices, *kinds: str) -> str:
        """Mostly something live of such a kind; sometimes what has ended, is of another kind, or never was."""
        things = list(self.model.things.values())
        if self.favoured and choose.chance(40):
            return choose.pick(self.favoured)
        live = [thing.uuid for thing in things if thing.state == LIVE and thing.kind in kinds]
        if live and not choose.chance(4):
            return choose.pick(live)
        return choose.pick([*(thing.uuid for thing in things), fresh_uuid(1)])

    def owner_or_other(self, choose: Choices, uuid: str, percent: int = 60) -> str:
        thing = self.model.things.get(uuid)
        if thing is not None and choose.chance(percent):
            return thing.owner
        return choose.pick(ENTITIES)

    def lists(self, choose: Choices, creator: str, subjects: Sequence[str], open_to_all: Sequence[str] = ()) -> dict[str, Any]:
        """A few lists, about few things. Those that are for the owner alone unless said otherwise are often opened."""
        found: dict[str, Any] = {}
        for subject in subjects:
            if subject in open_to_all and choose.chance(self.manner.opened):
                found[f"{subject}_allow"] = ["*"]
            elif choose.chance(self.manner.lists):
                found[f"{subject}_allow"] = sorted({choose.pick(WHO) for _ in range(choose.number(1, 2))})
            if choose.chance(self.manner.lists * 2 // 3):
                barred = sorted({choose.pick(WHO) for _ in range(choose.number(1, 2))} - {creator})
                found |= {f"{subject}_deny": barred} if barred else {}
        return found

    def lifetime(self, choose: Choices) -> timedelta:
        return choose.pick(self.manner.lifetimes) * MINUTE + choose.number(0, 1) * SECOND

    def hosting(self, choose: Choices, *, root: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"allow_children": choose.chance(90)}
        for name, most in (("max_depth", 4), ("max_width", 3)):
            if choose.chance(self.manner.limits * 3 // 2 if root else self.manner.limits * 2 // 3):
                found[name] = choose.number(0, most)
        return found

    def word(
        self, choose: Choices, right: str, uuid: str, entity: str, at: datetime, collection: str | None = None
    ) -> str | None:
        """Sometimes a countersignature; mostly of the owner, for this, and not too old."""
        thing = self.model.things.get(uuid)
        if thing is None or not choose.chance(30):
            return None
        signer = thing.owner if choose.chance(85) else choose.pick(ENTITIES)
        asked = right if choose.chance(90) else choose.pick(("discover", "register", "include"))
        given = entity if choose.chance(90) else choose.pick(ENTITIES)
        place = choose.pick((None, collection)) if choose.chance(90) else choose.pick((fresh_uuid(2), uuid))
        signed = at + choose.pick((0, -3, -30, 3)) * MINUTE
        life = choose.pick((5 * MINUTE, HOUR, 5 * SECOND, 31 * DAY))
        token = self.net.countersign(self.entity(signer), asked, uuid, given, collection=place, at=signed, life=life)
        self.words.append((token, asked, uuid, given, place))
        return token

    # --- requests ---

    def root(self, choose: Choices, at: datetime) -> str:
        """Mint a topic of its own. Gives its UUID."""
        who = choose.pick(ENTITIES)
        hosting = {"hosting": self.hosting(choose, root=True)} if choose.chance(90) else {}
        lists, uuid = self.lists(choose, who, TOPIC_SUBJECTS), self.new_uuid(choose)
        life = self.lifetime(choose)
        return self._mint(who, self.net.mint(self.entity(who), uuid=uuid, at=at, lifetime=life, lists=lists, **hosting))

    def collection(self, choose: Choices, at: datetime) -> str:
        """Mint a collection. Gives its UUID."""
        who = choose.pick(ENTITIES)
        manner = self.manner
        often = {"breadth": manner.breadth, "depth": manner.depth, "topics": manner.topics}
        limits = {name: choose.number(2, manner.largest_limit) if choose.chance(often[name]) else 0 for name in often}
        if choose.chance(5):
            limits[choose.pick(list(limits))] = 1
        gathering = {
            "fixed": choose.chance(8),
            "limits": limits,
            "child_collections": choose.chance(manner.nested),
            "inclusion": choose.chance(manner.nested),
        }
        lists = self.lists(choose, who, COLLECTION_SUBJECTS, open_to_all=("add", "owner", "include"))
        members: dict[str, None] = {}
        if choose.chance(40):
            for _ in range(choose.number(1, 3)):
                members |= {self.uuid(choose, TOPIC, COLLECTION): None}
        choices = {"uuid": self.new_uuid(choose), "at": at, "lifetime": self.lifetime(choose), "lists": lists}
        return self._mint(who, self.net.mint(self.entity(who), **choices, gathering=gathering, members=list(members)))

    def _mint(self, who: str, token: bytes) -> str:
        self.minted[read_uuid(token)] = (who, token)
        return read_uuid(token)

    def advertise(self, choose: Choices, at: datetime, uuid: str) -> bytes:
        who, token = self.minted[uuid]
        request = self.net.advertise(self.entity(who), token, at=at)
        body = _body(request)
        opening, words = body["opening"], []
        for member in opening.get("members", {}).get("value", ()):
            word = self.word(choose, "include", member, who, at, uuid)
            words += [word] if word is not None else []
        if choose.chance(4):
            # Somebody else, or with another lifetime than it was registered with.
            who = choose.pick(ENTITIES)
        return self.net.request(
            "advertise",
            {**body, "countersigned": words} if words else body,
            self.entity(who),
            at=at,
            tail=token,
        )

    def register(self, choose: Choices, at: datetime) -> bytes:
        hosts = [
            thing.uuid for thing in self.model.things.values() if thing.state == LIVE and thing.hosting.get("allow_children")
        ]
        parent = choose.pick(hosts) if hosts and choose.chance(85) else self.uuid(choose, TOPIC)
        who = self.owner_or_other(choose, parent, 40)
        body: dict[str, Any] = {"lists": self.lists(choose, who, TOPIC_SUBJECTS)}
        if choose.chance(75):
            body["hosting"] = self.hosting(choose, root=False)
        word = self.word(choose, "register", parent, who, at)
        if word is not None:
            body["countersigned"] = word
        return self.net.register(self.entity(who), parent, at=at, lifetime=self.lifetime(choose), **body)

    def registered(self, request: bytes, outcome: Outcome) -> None:
        """A child has its slot: any node mints its advertisement."""
        assert outcome.receipt is not None
        who = str(outcome.receipt["principal"]).partition(":")[2]
        self.minted[outcome.receipt["uuid"]] = (who, self.net.mint_child(request, outcome))

    def renew(self, choose: Choices, at: datetime) -> bytes:
        hosts = self._hosts()
        uuid = choose.pick(hosts) if hosts and choose.chance(50) else self.uuid(choose, TOPIC, COLLECTION)
        who = self.owner_or_other(choose, uuid, 90)
        return self.net.renew(self.entity(who), uuid, self.lifetime(choose), at=at)

    def withdraw(self, choose: Choices, at: datetime) -> bytes:
        hosts = self._hosts()
        uuid = choose.pick(hosts) if hosts and choose.chance(40) else self.uuid(choose, TOPIC, COLLECTION)
        return self.net.withdraw(self.entity(self.owner_or_other(choose, uuid, 85)), uuid, at=at)

    def add(self, choose: Choices, at: datetime) -> bytes:
        apt = self._apt(choose, COLLECTION if choose.chance(self.manner.nested * 2 // 3) else TOPIC)
        if apt and choose.chance(75):
            place, uuid, who = choose.pick(apt)
        else:
            place, uuid = self.uuid(choose, COLLECTION), self.uuid(choose, COLLECTION if choose.chance(45) else TOPIC)
            who = self.owner_or_other(choose, uuid if choose.chance(80) else place, 80)
        body = self._with_word(choose, {"collection": place, "uuid": uuid}, "include", uuid, who, at, place)
        return self.net.request("add", body, self.entity(who), at=at)

    def remove(self, choose: Choices, at: datetime) -> bytes:
        place, uuid = self._membership(choose)
        who = self.owner_or_other(choose, choose.pick((uuid, place)), 80)
        return self.net.request("remove", {"collection": place, "uuid": uuid}, self.entity(who), at=at)

    def move(self, choose: Choices, at: datetime) -> bytes:
        away, uuid = self._membership(choose)
        who = self.owner_or_other(choose, uuid if choose.chance(75) else away, 90)
        apt = [place for place, member, _ in self._apt(choose, TOPIC, COLLECTION) if member == uuid]
        to = choose.pick(apt) if apt and choose.chance(85) else self.uuid(choose, COLLECTION)
        body = self._with_word(choose, {"from": away, "to": to, "uuid": uuid}, "include", uuid, who, at, to)
        return self.net.request("move", body, self.entity(who), at=at)

    def watch(self, choose: Choices, at: datetime) -> bytes:
        uuid = self.uuid(choose, TOPIC, COLLECTION)
        return self.net.request("watch", {"uuid": uuid}, self.entity(self.owner_or_other(choose, uuid, 30)), at=at)

    def unwatch(self, choose: Choices, at: datetime) -> bytes:
        watches = list(self.model.watches)
        if watches and not choose.chance(10):
            uuid, who = choose.pick(watches)
        else:
            uuid, who = self.uuid(choose, TOPIC, COLLECTION), choose.pick(ENTITIES)
        return self.net.request("unwatch", {"uuid": uuid}, self.entity(who), at=at)

    def _hosts(self) -> list[str]:
        """Live topics with something below them, be it only registered."""
        parents = {thing.parent for thing in self.model.things.values() if thing.state == LIVE}
        parents |= {reserved.parent for reserved in self.model.reserved.values()}
        return [uuid for uuid, thing in self.model.things.items() if thing.state == LIVE and uuid in parents]

    def unclaimed(self, choose: Choices) -> str | None:
        """Something that can be advertised; mostly what has a slot and waits."""
        waiting = [uuid for uuid in self.model.reserved if uuid in self.minted]
        if waiting and choose.chance(80):
            return choose.pick(waiting)
        return choose.pick(list(self.minted)) if self.minted else None

    def _apt(self, choose: Choices, *kinds: str) -> list[tuple[str, str, str]]:
        """Collections, things that are not in them, and their owners, where nothing obvious stands against it."""
        live = [thing for thing in self.model.things.values() if thing.state == LIVE]
        places = [thing for thing in live if thing.kind == COLLECTION and not thing.gathering["fixed"]]
        return [
            (place.uuid, thing.uuid, thing.owner)
            for place in places
            for thing in live
            if thing.kind in kinds and thing is not place and thing.uuid not in self.model.members[place.uuid]
        ]

    def _membership(self, choose: Choices) -> tuple[str, str]:
        held = [(place, uuid) for place, members in self.model.members.items() for uuid in sorted(members)]
        if held and not choose.chance(8):
            return choose.pick(held)
        return self.uuid(choose, COLLECTION), self.uuid(choose, TOPIC, COLLECTION)

    def _with_word(
        self, choose: Choices, body: Mapping[str, Any], right: str, uuid: str, who: str, at: datetime, place: str
    ) -> dict[str, Any]:
        word = self.word(choose, right, uuid, who, at, place)
        return {**body, "countersigned": word} if word is not None else dict(body)


def _body(request: bytes) -> dict[str, Any]:
    body: dict[str, Any] = decode(request)[1]["body"]
    return body
