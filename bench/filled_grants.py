"""A guard's store with so many topics and grants, and questions about them whose answers are known.

The facts are those that the rules write (grants and principals by the rules' own functions), put into the store of a guard that is down; the
records that would have brought them are not there, since no decision looks at one. Everything follows from numbers: whoever knows the
size knows who was granted what.

A tenth of the topics each is granted to an institution, to everyone, through a chain of three grants, through a collection's tree and through a
hierarchy's, three deep; the other half directly, to as many entities as there are grants left.
"""

from __future__ import annotations

import base64
import hashlib
import random
import sqlite3
import uuid as uuids
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tdn.protocol import jsontext
from tdn.protocol.access import EVERYONE, INSTITUTION
from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time, whole_seconds
from tdn.rules import grants, principals
from tdn.rules.sight import COLLECTION, LIVE, TOPIC
from tdn.trust.certificates import Identity
from tdn.trust.grants import PUBLISH

#: Topics in a collection, and in a hierarchy: a root, seven below it, the others below those.
TREE, BRANCHES = 50, 7
CHAIN = 3
_LIFETIME = timedelta(days=365)
#: Facts in one statement, and memory for the pages that are written again and again, in KiB.
_AT_ONCE = 10_000
_CACHE_KIB = 1_000_000

#: What the right asked about rests on; the last has none.
KINDS = ("owner", "direct", "institution", "everyone", "chain of 3", "collection", "hierarchy", "none")
_OWNER, _DIRECT, _INSTITUTION, _EVERYONE, _CHAIN, _COLLECTION, _HIERARCHY, _NONE = KINDS


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a login may publish to a topic; and whether it may."""

    kind: str
    login: str
    topic: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class Size:
    topics: int
    grants: int

    @property
    def entities(self) -> int:
        return max(100, self.topics // 10)

    @property
    def strangers(self) -> int:
        """Entities that nobody granted anything."""
        return self.entities // 10

    @property
    def institutions(self) -> int:
        return max(10, self.entities // 100)

    @property
    def direct_topics(self) -> int:
        return self.topics // 2

    @property
    def of_a_kind(self) -> int:
        """Topics of each of the other kinds."""
        return self.topics // 10

    @property
    def trees(self) -> int:
        """Collections, and hierarchies."""
        return -(-self.of_a_kind // TREE)

    @property
    def direct_grants(self) -> int:
        return self.grants - (2 + CHAIN) * self.of_a_kind - 2 * self.trees

    def __post_init__(self) -> None:
        if self.topics % 10 or self.direct_grants < 1 or self.direct_grants > self.direct_topics * self.entities // 2:
            raise ValueError(f"{self.topics} topics and {self.grants} grants do not go together here")

    # --- who is who ---

    def owner(self, kind: str, number: int) -> int:
        """A tree's topics belong to the owner of the tree: then its grants cover them."""
        return (number // TREE if kind in (_COLLECTION, _HIERARCHY) else number) % self.entities

    def grantee(self, kind: str, number: int, step: int = 0) -> int:
        """Never the owner; and of one topic each grantee is another."""
        return (self.owner(kind, number) + 1 + 3 * step) % self.entities

    def institution_of(self, entity: int) -> str:
        return f"Institute {entity % self.institutions}"

    # --- what is asked ---

    def questions(self, draw: random.Random, count: int) -> list[Question]:
        """As many of each kind."""
        return [self._question(draw, kind) for _ in range(-(-count // len(KINDS))) for kind in KINDS][:count]

    def _question(self, draw: random.Random, kind: str) -> Question:
        number = draw.randrange(self.of_a_kind)
        if kind == _OWNER:
            number = draw.randrange(self.direct_topics)
            return Question(kind, login(self.owner(_DIRECT, number)), topic_uuid(_DIRECT, number), True)
        if kind == _DIRECT:
            grant = draw.randrange(self.direct_grants)
            number = grant % self.direct_topics
            who = self.grantee(kind, number, grant // self.direct_topics)
            return Question(kind, login(who), topic_uuid(kind, number), True)
        if kind == _NONE:
            of = draw.choice([_DIRECT, _INSTITUTION, _CHAIN, _COLLECTION, _HIERARCHY])
            return Question(kind, login(draw.randrange(self.strangers), "stranger"), topic_uuid(of, number), False)
        who = self.grantee(kind, number, CHAIN - 1 if kind == _CHAIN else 0)
        if kind == _EVERYONE:
            who = draw.randrange(self.entities)
        elif kind == _INSTITUTION:
            who = draw.randrange(self.entities // self.institutions) * self.institutions + number % self.institutions
        return Question(kind, login(who), topic_uuid(kind, number), True)


def login(number: int, kind: str = "entity") -> str:
    return str(_name(number, kind))


def _name(number: int, kind: str = "entity") -> Name:
    name = f"{kind}-{number}"
    return Name(Role.ENTITY, name, hashlib.sha256(name.encode()).hexdigest())


def topic_uuid(kind: str, number: int) -> str:
    return str(uuids.UUID(bytes=_hash(f"topic {kind} {number}"), version=4))


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def fill(store: Path, size: Size, identity: Identity) -> int:
    """Put everything into the store of a guard that is down; how many facts that were. Principals are like the one given, but for their names."""
    db = sqlite3.connect(store, isolation_level=None)
    db.execute("PRAGMA synchronous=OFF")
    db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    db.execute("PRAGMA wal_autocheckpoint=100000")
    sheet = _Sheet(db)
    filling = _Filling(sheet, size, whole_seconds(datetime.now(UTC)))
    filling.principals(identity)
    filling.topics()
    filling.grants()
    sheet.flush()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return sheet.count


class _Sheet:
    """What the rules write to, straight into the table of facts."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: list[tuple[str, str, str]] = []
        self.count = 0

    def put(self, space: str, key: str, value: Mapping[str, Any]) -> None:
        self._rows.append((space, key, jsontext.canonical(value).decode() if value else "{}"))
        if len(self._rows) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO facts VALUES (?, ?, ?)", self._rows)
        self._db.execute("COMMIT")
        self.count += len(self._rows)
        self._rows.clear()


class _Filling:
    def __init__(self, sheet: _Sheet, size: Size, now: datetime) -> None:
        self._sheet = sheet
        self._size = size
        self._now = now
        self._from, self._until = format_time(now - timedelta(minutes=5)), format_time(now + _LIFETIME)
        self._given = 0

    def principals(self, like: Identity) -> None:
        size = self._size
        everybody = [(_name(number), size.institution_of(number)) for number in range(size.entities)]
        everybody += [(_name(number, "stranger"), "Nowhere") for number in range(size.strangers)]
        for name, institution in everybody:
            thumbprint = base64.urlsafe_b64encode(hashlib.sha256(name.id.encode()).digest()).decode().rstrip("=")
            identity = replace(like, name=name, institution=institution, thumbprint=thumbprint)
            for write in principals.first_certificate(identity, self._now):
                assert write.value is not None
                self._sheet.put(write.space, write.key, write.value)

    def topics(self) -> None:
        size = self._size
        for number in range(size.direct_topics):
            self._topic(_DIRECT, number)
        for number in range(size.of_a_kind):
            for kind in (_INSTITUTION, _EVERYONE, _CHAIN, _COLLECTION):
                self._topic(kind, number)
            self._topic(_HIERARCHY, number, **self._place(number))
            self._join(number)

    def _topic(self, kind: str, number: int, is_a: str = TOPIC, uuid: str = "", **more: Any) -> None:
        uuid = uuid or topic_uuid(kind, number)
        owner = _name(self._size.owner(kind, number)).id
        fact = {
            "kind": is_a,
            "digest": _digest(uuid),
            "creator": owner,
            "owner": owner,
            "created": self._from,
            "expires": self._until,
            "state": LIVE,
            "seq": 1,
            "advertised": 1,
            **more,
        }
        self._sheet.put("topic", uuid, fact)
        self._sheet.put("ends", f"{self._until} topic {uuid}", {})

    def _place(self, number: int) -> dict[str, Any]:
        """Where a topic of a hierarchy stands, and its parent told."""
        hosting = {"allow": True, "depth": None, "width": None}
        first = number - number % TREE
        if number == first:
            return {"hosting": hosting}
        parent = topic_uuid(_HIERARCHY, first if number - first <= BRANCHES else first + 1 + number % BRANCHES)
        self._sheet.put("child", f"{parent} {self._from} {topic_uuid(_HIERARCHY, number)}", {})
        return {"parent": parent, "root": topic_uuid(_HIERARCHY, first), "hosting": hosting}

    def _join(self, number: int) -> None:
        """Into its collection, which is made with its first topic."""
        collection, topic = _collection(number), topic_uuid(_COLLECTION, number)
        if number % TREE == 0:
            self._topic(_COLLECTION, number, COLLECTION, collection)
        self._sheet.put("member", f"{collection} {TOPIC} {topic}", {})
        self._sheet.put("in", f"{topic} {collection}", {})

    def grants(self) -> None:
        size = self._size
        for number in range(size.direct_grants):
            topic = number % size.direct_topics
            self._grant(_DIRECT, topic, _name(size.grantee(_DIRECT, topic, number // size.direct_topics)).id)
        for number in range(size.of_a_kind):
            self._grant(_INSTITUTION, number, f"{INSTITUTION}{size.institution_of(number)}")
            self._grant(_EVERYONE, number, EVERYONE)
            self._chain(number)
        for number in range(0, size.of_a_kind, TREE):
            for kind, uuid in ((_COLLECTION, _collection(number)), (_HIERARCHY, topic_uuid(_HIERARCHY, number))):
                self._grant(kind, number, _name(size.grantee(kind, number)).id, topic=uuid, tree=True)
        if self._given != size.grants:
            raise RuntimeError(f"{self._given} grants were made, not {size.grants}")

    def _chain(self, number: int) -> None:
        parent: dict[str, Any] = {}
        rests: list[int] = []
        issuer = self._size.owner(_CHAIN, number)
        for step in range(CHAIN):
            to = self._size.grantee(_CHAIN, number, step)
            more = {**parent, "issuer": _name(issuer).id, "rests": list(rests), "delegable": step < CHAIN - 1}
            grant_id = self._grant(_CHAIN, number, _name(to).id, **more)
            parent, issuer = {"parent": grant_id}, to
            rests.insert(0, self._given)

    def _grant(self, kind: str, number: int, grantee: str, *, topic: str = "", **more: Any) -> str:
        self._given += 1
        grant_id = base64.urlsafe_b64encode(_hash(f"grant {self._given}")).decode().rstrip("=")
        fact = {
            "right": PUBLISH,
            "topic": topic or topic_uuid(kind, number),
            "tree": False,
            "issuer": _name(self._size.owner(kind, number)).id,
            "grantee": grantee,
            "from": self._from,
            "until": self._until,
            "delegable": False,
            "digest": _digest(grant_id),
            "issued": self._from,
            "state": LIVE,
            "epoch": 0,
            "rests": [],
            **more,
            "seq": self._given,
            "given": self._given,
        }
        grants._write(self._sheet, grant_id, fact)  # type: ignore[arg-type]
        return grant_id


def _collection(number: int) -> str:
    return topic_uuid("the collection", number // TREE)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def lookup_keys(size: Size, draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Space and key of grants at random, for a bare look into the table."""
    for _ in range(count):
        yield "grant", base64.urlsafe_b64encode(_hash(f"grant {1 + draw.randrange(size.grants)}")).decode().rstrip("=")
