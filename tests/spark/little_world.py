"""A log in which topics are listed, hidden, renewed, withdrawn, handed over, put below others, put into collections and sealed; the store that a live node
would have of it at any record, and its archive."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from granting import Granting
from little_network import DAY, HOUR, MINUTE, SECOND
from pki import T0
from population import Population, populate

from tdn.archive.export import export
from tdn.archive.manifest import Archive
from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import Asker
from tdn.queries.compile import compile_query
from tdn.queries.times import ANY_TIME, Times
from tdn.store.search import Reader, Search
from tdn.store.view import View
from tdn.trust.certificates import TrustRoots

#: What the sample does not have: names of other scripts, values that look like others, namespaces, what could be code.
ODD = [
    descriptors.path("Straße/ÎLE/北京/ñandú"),
    descriptors.path("weather/oslo'; DROP TABLE topics --/x"),
    descriptors.text("Grüße\nÅngström Å \u200dzero ‎width", ["été", "ETE", "a b", "100%"]),
    descriptors.text("the quick (brown) fox [jumps] over $the {lazy} dog.*", ["fox", "dog_1"]),
    {
        "kind": "properties",
        "properties": {"a": 9007199254740993, "b": 9007199254740993.0, "c": "9007199254740993", "d": True, "e": "2027-01-31T12:00:00Z"},
        "types": {"a": "integer", "b": "float", "c": "string", "d": "boolean", "e": "timestamp"},
    },
    {
        "kind": "properties",
        "properties": {"a": "true", "b": -0.0, "c": 1e300, "d": 5, "e": "2026-12-31T23:59:59.500Z", "site": "Zürich", "n": ""},
        "types": {"a": "string", "b": "float", "c": "float", "d": "float", "e": "timestamp", "site": "string", "n": "string"},
    },
    {"kind": "properties", "properties": {"a": -5, "d": False, "x.y-z": 1}, "types": {"a": "integer", "d": "boolean", "x.y-z": "integer"}},
    descriptors.xml('<r xmlns="urn:one" xmlns:p="urn:two"><p:a k="1">x</p:a><a k="2">9</a><!-- note --></r>'),
    descriptors.xml("<r><price>9</price><price>10</price><t>2027-01-31</t><e/>Grüße &amp; 北京</r>"),
    descriptors.xml("<r><![CDATA[<a>]]><?target data?><a xml:lang='de'>ü</a></r>"),
]

#: So many that a withdrawal leaves some to the next tick.
_CHILDREN = 110


@dataclass
class World:
    population: Population
    log: Granting
    folder: Path
    #: Moments to ask about, each after what its name says.
    moments: dict[str, datetime]
    children: list[str]
    #: Topics by what happened to them.
    topics: dict[str, str] = field(default_factory=dict)

    @property
    def roots(self) -> TrustRoots:
        return self.log.net.node("n1").roots

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def raw(self) -> list[bytes]:
        return [record.raw for record in self.log.records]

    def export(self, to: Path, records: int | None = None) -> Path:
        """An archive of the log, or of its first records."""
        store = self._store(records or len(self.log.records))
        export(store, Archive(to), self.log.net.node("n1"), self.roots, clock=lambda: T0 + HOUR)
        return to

    def found(
        self, asker: Asker | None, now: datetime, language: str, query: str | None, times: Times = ANY_TIME, records: int | None = None
    ) -> set[str]:
        """What a live node finds that has read so many records of the log. Nobody: the operator, to whom nothing is hidden. No query: by times alone."""
        store = self._store(records or len(self.log.records))
        compiled = compile_query(language, query) if query is not None else None
        with closing(Reader(store, indexes=False)) as reader:
            if asker is not None:
                page = reader.discover(Search(asker, now, compiled, times), limit=10**6)
                return {topic.uuid for topic in page.topics}
        found: set[str] = set()
        for name in self.owners:
            # Every topic is seen by its owner.
            found |= self.found(Asker(name, "nowhere"), now, language, query, times, records)
        return found

    @property
    def owners(self) -> list[str]:
        return sorted({fact["owner"] for _, fact in self.log.state.all("topic")} | {fact["creator"] for _, fact in self.log.state.all("topic")})

    def records_until(self, moment: datetime) -> int:
        """How many records were judged until a moment."""
        import sqlite3

        with closing(sqlite3.connect(self._store(len(self.log.records)))) as db:
            return int(db.execute("SELECT max(seq) FROM records WHERE at <= ?", (f"{moment:%Y-%m-%dT%H:%M:%SZ}",)).fetchone()[0])

    @cache  # noqa: B019  (one world lives as long as the tests)
    def _store(self, records: int) -> Path:
        path = self.folder / f"store-{records}.sqlite"
        view = View(path)
        view.apply_all(list(enumerate(self.raw[:records])), durable=False)
        view.close()
        return path

    def __hash__(self) -> int:
        return id(self)


def _ended_with_grants(log: Granting, long: dict[str, Any]) -> dict[str, str]:
    """Grants on topics that were withdrawn, by how they stood: the log has all of them as live."""
    at = long["at"]
    grants: dict[str, str] = {}
    for name, keep_grants in (("lapsed", False), ("kept on", True)):
        topic = log.advertised("kim", descriptor=descriptors.path(f"ended/{name}"), **long)
        grants[name] = log.gave("kim", "bob", topic, "subscribe", at=at)
        log.hand_over("kim", topic, "lee", keep_grants=keep_grants, at=at)
        assert log.put("withdraw", log.net.withdraw(log.net.entity("lee"), topic, at=at), at=at).status == "accepted"
    for name, above in (("passed on", "its parent"), ("cut off", "its revoked parent")):
        topic = log.advertised("kim", descriptor=descriptors.path(f"ended/{name}"), **long)
        grants[above] = log.gave("kim", "lee", topic, "subscribe", at=at, delegable=True)
        grants[name] = log.passed("lee", "bob", grants[above], at=at)
        if name == "cut off":
            assert log.retract("kim", grants[above], at=at).status == "accepted"
        assert log.put("withdraw", log.net.withdraw(log.net.entity("kim"), topic, at=at), at=at).status == "accepted"
    return grants


def make_world(folder: Path, topics: int = 90) -> World:
    population = populate("spark", topics, extra=ODD)
    log = Granting(population.net)
    for raw, _ in population.records:
        log.append(raw)
    net = population.net
    log.tick(T0 + MINUTE)
    moments = {"at the beginning": T0 + MINUTE + SECOND}
    at = T0 + 2 * MINUTE
    for who in ("kim", "lee"):
        log.put("hello", net.hello(net.entity(who), at=at), at=at)
    long = {"lifetime": 30 * DAY, "at": at}
    hosting = {"allow_children": True}
    root = log.advertised("kim", descriptor=descriptors.path("tree/root"), hosting=hosting, lists={"discover_allow": ["lee", "institution:Physics"]}, **long)
    log.tick(at)
    inner = log.child(root, "kim", descriptor=descriptors.path("tree/inner"), hosting=hosting, lists={"discover_deny": ["bob"]}, **long)
    leaf = log.child(inner, "kim", descriptor=descriptors.path("tree/leaf"), lists={"discover_allow": ["bob", "carol"]}, **long)
    wide = log.advertised("kim", descriptor=descriptors.path("tree/wide"), hosting=hosting, **long)
    children = [log.child(wide, "kim", descriptor=descriptors.path(f"tree/wide/{number}"), **long) for number in range(_CHILDREN)]
    collection = log.collection("kim", descriptor=descriptors.text("a collection of trees", ["tree"]), lists={"owner_allow": ["*"], "add_allow": ["*"]}, **long)
    for member in (root, leaf):
        assert log.change("add", "kim", at=at, collection=collection, uuid=member).status == "accepted"
    given = log.advertised("kim", descriptor=descriptors.path("tree/given"), lists={"discover_allow": ["kim"]}, **long)
    kept = log.advertised("lee", descriptor=descriptors.path("tree/kept"), lifetime=4 * MINUTE, at=at)
    log.gave("kim", "lee", root, "subscribe", at=at, tree=True)
    short = log.gave("kim", "lee", given, "publish", at=at, ends=at + MINUTE)
    log.tick(at + MINUTE)
    moments["with trees"] = at + MINUTE + SECOND
    at += 2 * MINUTE
    log.tick(at)
    log.hand_over("kim", given, "lee", at=at)
    assert log.put("renew", net.renew(net.entity("lee"), kept, HOUR, at=at), at=at).status == "accepted"
    assert log.change("remove", "kim", at=at, collection=collection, uuid=leaf).status == "accepted"
    log.put("withdraw", net.withdraw(net.entity("lee"), root, at=at), at=at)  # Not its own: refused.
    moments["handed over"] = at + SECOND
    log.tick(at + MINUTE)
    at += MINUTE
    ended = _ended_with_grants(log, long | {"at": at})
    held = log.gave("kim", "lee", wide, "subscribe", at=at)
    assert log.put("withdraw", net.withdraw(net.entity("kim"), wide, at=at), at=at).status == "accepted"
    assert log.state.get("pending", "topics") is not None, "some children are still to follow"
    moments["before all have followed"] = at + SECOND
    log.append(b"garbage")
    for later in (1, 2, 3):
        log.tick(at + later * MINUTE)
    assert log.state.get("pending", "topics") is None
    log.append(net.record("revoke", net.revoke("entity:erin"), at=at + 3 * MINUTE))
    moments["at the end"] = at + 4 * MINUTE
    world = World(population, log, folder, moments, children)
    world.topics |= {"root": root, "inner": inner, "leaf": leaf, "wide": wide, "given": given, "kept": kept, "collection": collection, "grant": short, "held": held}
    world.topics |= ended
    world.export(world.archive)
    return world
