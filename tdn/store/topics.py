"""The table of live topics with its indexes: filled from accepted records, emptied of what has ended, made anew when its rules change.

It is derived: everything in it follows from the records and the facts. An ended topic leaves it (its tombstone is a fact), so that
discovery never steps over what is gone. What a node's policy does not store never enters it.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import TdnError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext
from tdn.protocol.access import NO_LISTS, Lists, read_access
from tdn.protocol.times import parse_time
from tdn.queries.model import SHORTEST_CLUE, Scalar, indexed_text, indexed_values
from tdn.rules.state import Fact
from tdn.trust import signing

logger = logging.getLogger(__name__)

#: Version of what is derived. A store made by another is derived anew when it is opened.
_DERIVATION = 3
#: One topic in so many is counted in `grams`. Enough to tell rare trigrams from common ones, and a small part of the work.
_SAMPLE_EVERY = 16

ALLOWED, BARRED = 1, 2


@dataclass(frozen=True, slots=True)
class Stores:
    """What a view keeps in its table of topics. The rule state is whole in every view, whatever this says (T11)."""

    #: Whether a topic belongs in, by its advertisement's payload.
    accepts: Callable[[Mapping[str, Any]], bool]
    #: Changes when what is accepted changes.
    stamp: str
    #: Told now and then how many topics have been taken in, while the table is made anew.
    progress: Callable[[int], None] = lambda count: None


EVERYTHING = Stores(lambda payload: True, "everything")
#: For a guard, which never answers discovery: a replay without indexes is much faster.
NOTHING = Stores(lambda payload: False, "nothing")


def advertisement_in(raw: bytes) -> bytes:
    """The advertisement that an accepted record carries: record ~ request ~ advertisement."""
    return raw.split(signing.TILDE, 2)[2]


def request_body_in(raw: bytes) -> dict[str, Any]:
    """The body of the request that an accepted record carries."""
    request = raw.split(signing.TILDE, 2)[1]
    claims: dict[str, Any] = jsontext.parse(signing.decode_segment(request.split(b".")[1]))
    body: dict[str, Any] = claims["body"]
    return body


def bring_up_to_date(db: sqlite3.Connection, stores: Stores) -> None:
    """Make the table and its indexes anew when they were made by other rules than these."""
    stamp = f"{_DERIVATION} {stores.stamp}"
    if db.execute("SELECT stamp FROM derived").fetchone()[0] == stamp:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for table in ("topics", "listed", "sealed_for", "property_values", "grams"):
            db.execute(f"DELETE FROM {table}")  # noqa: S608  # one of five names above
        db.execute("INSERT INTO topic_text (topic_text) VALUES ('delete-all')")
        db.execute("UPDATE derived SET sampled = 0")
        for count, (uuid, fact, raw) in enumerate(_live(db)):
            write(db, uuid, fact, raw, stores)
            if count % 1000 == 0:
                stores.progress(count)
        db.execute("UPDATE derived SET stamp = ?", (stamp,))
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _live(db: sqlite3.Connection) -> Iterator[tuple[str, Fact, bytes]]:
    rows = db.execute(
        "SELECT facts.key, facts.value, records.raw FROM facts JOIN records ON records.seq = json_extract(facts.value, '$.advertised')"
        " WHERE facts.space = 'topic' AND json_extract(facts.value, '$.state') = 'live'"
    )
    for uuid, value, raw in rows:
        yield uuid, jsontext.parse(value.encode()), bytes(raw)


def write(db: sqlite3.Connection, uuid: str, topic: Fact, raw: bytes, stores: Stores) -> None:
    """Bring one topic's rows in line with its fact. `raw` is the record that advertised it, when this is about that record."""
    if topic["state"] != "live":
        _remove(db, uuid)
    elif raw:
        _insert(db, uuid, topic, raw, stores)
    else:
        db.execute(
            "UPDATE topics SET expires = ?, duration = ?, owner = ?, seq = ? WHERE uuid = ?",
            (topic["expires"], _duration(topic), topic["owner"], topic["seq"], uuid),
        )


def _insert(db: sqlite3.Connection, uuid: str, topic: Fact, raw: bytes, stores: Stores) -> None:
    payload: dict[str, Any] = jsontext.parse(signing.decode_segment(advertisement_in(raw).split(b".")[1]))
    if not stores.accepts(payload):
        return
    descriptor, synopsis = payload["descriptor"], payload["synopsis"]["value"]
    try:
        body, values = _indexed(descriptor, synopsis)
    except (TdnError, KeyError, TypeError, ValueError) as error:
        # A node signed what no node should have, such as XML that is none. The log took it; what cannot be read is not searched, and it must
        # not stop every node that reads the log.
        logger.error("topic %s cannot be indexed and is left out: %s", uuid, error)
        return
    identifier = topic["advertised"]
    lists = _lists(db, topic)
    restricted = (ALLOWED if lists.allow is not None else 0) | (BARRED if lists.deny else 0)
    db.execute(
        "INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            identifier,
            uuid,
            topic["created"],
            topic["expires"],
            _duration(topic),
            topic["creator"],
            topic["owner"],
            payload["institution"],
            topic["kind"],
            descriptor["kind"],
            topic["seq"],
            restricted,
            topic.get("access"),
            jsontext.canonical(descriptor).decode(),
            synopsis,
        ),
    )
    if restricted:
        sides = [(ALLOWED, who) for who in lists.allow or ()] + [(BARRED, who) for who in lists.deny]
        if db.execute("SELECT 1 FROM listed WHERE access = ? LIMIT 1", (topic["access"],)).fetchone() is None:
            db.executemany("INSERT INTO listed VALUES (?, ?, ?)", [(topic["access"], side, who) for side, who in sides])
        if descriptor["kind"] == "sealed":
            db.executemany("INSERT INTO sealed_for VALUES (?, ?)", [(who, identifier) for who in lists.allow or ()])
    db.executemany("INSERT INTO property_values VALUES (?, ?, ?)", [(key, value, identifier) for key, value in values])
    if body:
        db.execute("INSERT INTO topic_text (rowid, body) VALUES (?, ?)", (identifier, body))
        if identifier % _SAMPLE_EVERY == 0:
            _sample(db, body)


def _lists(db: sqlite3.Connection, topic: Fact) -> Lists:
    """Who may discover a topic, as it holds under its ancestors' lists."""
    if "access" not in topic:
        return NO_LISTS
    row = db.execute("SELECT value FROM facts WHERE space = 'access' AND key = ?", (topic["access"],)).fetchone()
    return read_access(json.loads(row[0])).discover


def _indexed(descriptor: Mapping[str, Any], synopsis: str) -> tuple[str, list[tuple[str, Scalar]]]:
    """What the indexes hold of a topic; or an error, of values that do not fit their types."""
    if descriptor["kind"] == "properties":
        descriptors.check(descriptor)
    return indexed_text(descriptor, synopsis), [(key, as_stored(value)) for key, value in indexed_values(descriptor)]


def _sample(db: sqlite3.Connection, body: str) -> None:
    db.executemany(
        "INSERT INTO grams VALUES (?, 1) ON CONFLICT (gram) DO UPDATE SET seen = seen + 1",
        [(gram,) for gram in sorted({body[at : at + SHORTEST_CLUE] for at in range(len(body) - SHORTEST_CLUE + 1)})],
    )
    db.execute("UPDATE derived SET sampled = sampled + 1")


def _remove(db: sqlite3.Connection, uuid: str) -> None:
    row = db.execute("SELECT id, descriptor, synopsis, descriptor_kind, access FROM topics WHERE uuid = ?", (uuid,)).fetchone()
    if row is None:
        return
    identifier, text, synopsis, kind, access = row
    body, values = _indexed(jsontext.parse(text.encode()), synopsis)
    if body:
        # An index that keeps no content is told what to forget. `grams` is a sample of what was ever seen, and stays.
        db.execute("INSERT INTO topic_text (topic_text, rowid, body) VALUES ('delete', ?, ?)", (identifier, body))
    db.executemany(
        "DELETE FROM property_values WHERE key = ? AND value = ? AND topic = ?",
        [(key, value, identifier) for key, value in values],
    )
    if kind == "sealed":
        db.execute("DELETE FROM sealed_for WHERE topic = ?", (identifier,))
    db.execute("DELETE FROM topics WHERE id = ?", (identifier,))
    # Lists go with the last topic that has them.
    if access is not None and db.execute("SELECT 1 FROM topics WHERE access = ? LIMIT 1", (access,)).fetchone() is None:
        db.execute("DELETE FROM listed WHERE access = ?", (access,))


def as_stored(value: Scalar) -> Scalar:
    """A value as SQLite can hold it: a whole number beyond 64 bits becomes the nearest float. Order is kept, so a range still covers it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def _duration(topic: Fact) -> int:
    return int((parse_time(topic["expires"]) - parse_time(topic["created"])).total_seconds())
