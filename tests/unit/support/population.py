"""Topics of several owners with lists of every form, of every kind of descriptor, in a store; and the plain Python that says what is found.

The model beside the store knows nothing of SQL: a list of topics and a filter. Whatever the store answers is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from little_network import HOUR, LittleNetwork, fresh_uuid, read_uuid
from pki import T0

from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import DISCOVER, Access, Asker, Lists, lists
from tdn.protocol.names import Role
from tdn.protocol.times import format_time, parse_time
from tdn.queries.model import Clue, Query, Subject, finds
from tdn.queries.times import ANY_TIME, Times
from tdn.sample.topics import describe
from tdn.store import candidates
from tdn.store.topics import EVERYTHING, Stores
from tdn.store.view import View
from tdn.trust import sealed
from tdn.trust.credentials import Credentials

SAMPLE_SEED = 7
#: How the store may choose its way to the rows, in numbers that a small store meets. Left out: as it is, where all is few.
PLANS: dict[str, dict[str, float]] = {
    "as it is": {},
    "walk": {"_FEW": -1, "_STRIDE": 0, "_MANY": -1, "_COMMON": 2},
    "little": {"_FEW": 3, "_VERY_FEW": 0, "_STRIDE": 5, "_MANY": 12, "_COMMON": 2},
    "rows first": {"_FEW": 0, "_STRIDE": 7, "_MANY": 300, "_COMMON": 2},
    "at once": {"_FEW": 2, "_VERY_FEW": 1, "_STRIDE": 0, "_MANY": 90, "_COMMON": 2},
    "soon": {"_FEW": 5, "_VERY_FEW": 2, "_STRIDE": 3, "_MANY": 40, "_COMMON": 0.001, "_SOON": 100_000},
}
INSTITUTIONS = {"alice": "Physics", "bob": "Physics", "carol": "Zürich, West", "dave": "Elsewhere", "erin": "Elsewhere"}
ASKERS = [
    *(Asker(name, institution) for name, institution in INSTITUTIONS.items()),
    Asker("zoe", "Physics"),
    Asker("zed", "Nowhere"),
    # The operator: of an institution, and no entity.
    Asker(None, "Physics"),
]
_NAMES = ["*", *INSTITUTIONS, "zoe", *(f"institution:{name}" for name in sorted({*INSTITUTIONS.values(), "Nowhere"}))]
_LIFETIMES = (timedelta(minutes=1), HOUR, 2 * HOUR, timedelta(days=1), timedelta(days=30))


@dataclass(frozen=True)
class Known:
    """A topic as the model has it."""

    subject: Subject
    lists: Lists

    @property
    def uuid(self) -> str:
        return self.subject.uuid

    @property
    def is_sealed(self) -> bool:
        return bool(self.subject.descriptor["kind"] == "sealed")

    def seen_by(self, asker: Asker) -> bool:
        return self.lists.admit(asker, self.subject.owner)


@dataclass(frozen=True)
class Population:
    net: LittleNetwork
    #: The log: each record, and the topic that it is about.
    records: Sequence[tuple[bytes, str | None]]
    #: The live ones by log time.
    topics: Sequence[Known]

    def build(self, path: Path, stores: Stores = EVERYTHING, without: Iterable[str] = ()) -> View:
        """A store of the log. Records about topics that it is built `without` are ticks instead, so that all others keep their places."""
        left_out, tick = set(without), self.net.record("tick")
        view = View(path, stores)
        decided = view.apply_all(list(enumerate(tick if uuid in left_out else raw for raw, uuid in self.records)), durable=False)
        assert {outcome.status for _, outcome in decided} == {"accepted"}
        return view

    def expected(
        self, asker: Asker, now: datetime, query: Query | None = None, times: Times = ANY_TIME, *, sealed: bool = False
    ) -> list[str]:
        """The UUIDs of what must be found, in order."""
        found = [
            known.subject
            for known in self.topics
            if known.seen_by(asker)
            and now < parse_time(known.subject.expires)
            and times.admit(parse_time(known.subject.created), parse_time(known.subject.expires))
            and (known.is_sealed or not sealed)
            and (query is None or finds(query, known.subject))
        ]
        return [subject.uuid for subject in sorted(found, key=lambda subject: (subject.created, subject.uuid))]


def populate(seed: str, count: int, *, extra: Iterable[descriptors.Descriptor] = (), plain: bool = False) -> Population:
    """So many topics of the sample, some more of one's own, and among them sealed, renewed and withdrawn ones. `plain`: without lists."""
    draws = Random(seed)
    net = LittleNetwork(f"population {seed}")
    people = {name: net.pki.credentials(Role.ENTITY, name, institution=place) for name, place in INSTITUTIONS.items()}
    records: list[tuple[bytes, str | None]] = [(raw, None) for raw in net.opening(())]
    records += [(net.record("hello", net.hello(who)), None) for who in people.values()]
    topics: list[Known] = []
    sample: list[descriptors.Descriptor] = [describe(SAMPLE_SEED, number).descriptor for number in range(count)]
    for number, descriptor in enumerate([*sample, *extra]):
        owner = people[draws.choice(list(people))]
        created = T0 + timedelta(seconds=draws.randrange(count // 2 + 1))
        known, record = _advertise(
            net, owner, _sealed(net, owner, descriptor) if number % 9 == 4 else descriptor, created, draws, plain
        )
        records.append((record, known.uuid))
        fate = draws.random()
        if fate < 0.1:
            later = created + timedelta(seconds=draws.randrange(50)), draws.choice(_LIFETIMES)
            records.append((net.record("renew", net.renew(owner, known.uuid, later[1], at=created), at=later[0]), known.uuid))
            known = replace(known, subject=replace(known.subject, expires=format_time(later[0] + later[1])))
        if 0.05 < fate < 0.2:
            records.append((net.record("withdraw", net.withdraw(owner, known.uuid, at=created), at=created), known.uuid))
        else:
            topics.append(known)
    return Population(net, records, topics)


def _advertise(
    net: LittleNetwork, owner: Credentials, descriptor: descriptors.Descriptor, created: datetime, draws: Random, plain: bool
) -> tuple[Known, bytes]:
    chosen = Lists() if plain or draws.random() < 0.35 else lists(_some(draws), _some(draws) if draws.random() < 0.5 else ())
    lifetime, uuid = draws.choice(_LIFETIMES), fresh_uuid(draws.randrange(1, 2**40))
    hidden = Access({DISCOVER: chosen}).as_object()
    token = net.mint(owner, uuid=uuid, at=created, lifetime=lifetime, lists=hidden, descriptor=descriptor)
    name = owner.identity.name.id
    times = format_time(created), format_time(created + lifetime)
    subject = Subject(read_uuid(token), "topic", name, name, INSTITUTIONS[name], *times, descriptor, uuid)
    return Known(subject, chosen), net.record("advertise", net.advertise(owner, token, at=created), at=created)


def _sealed(net: LittleNetwork, owner: Credentials, descriptor: descriptors.Descriptor) -> dict[str, Any]:
    return sealed.seal_descriptor(descriptor, creator=owner.identity.name.id, network=net.id, readers=[owner.identity.public_key])


def _some(draws: Random) -> list[str]:
    return draws.sample(_NAMES, draws.choice((0, 1, 1, 2, 3)))


def choose(plan: str, patch: pytest.MonkeyPatch) -> None:
    """Have the store choose its way to the rows by these numbers."""
    for name, value in PLANS[plan].items():
        patch.setattr(candidates, name, value)


class Remembered:
    """A query that works out each topic once, however often it is asked: the stores are tested here, not the engines."""

    def __init__(self, query: Query, forbidden: Callable[[Subject], bool] = lambda subject: False) -> None:
        self._query = query
        self._forbidden = forbidden
        self._answers: dict[tuple[str, str], bool] = {}

    @property
    def language(self) -> str:
        return self._query.language

    @property
    def clue(self) -> Clue:
        return self._query.clue

    def matches(self, subject: Subject) -> bool:
        assert subject.descriptor["kind"] != "sealed", "a query is never given a sealed topic"
        assert not self._forbidden(subject), "a topic that the asker may not see was looked at"
        place = (subject.uuid, subject.expires)
        if place not in self._answers:
            self._answers[place] = self._query.matches(subject)
        return self._answers[place]
