"""The tables of an index: their columns, in one place for whoever writes, reads and documents them (docs/spark.md).

Every row says by which record of the log it came (`seq`), and most say when that was judged (`judged_at`). Tables only grow; what held at a moment is what the
latest rows up to then say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")
TEXT, NUMBER, TEXTS = pa.string(), pa.int64(), pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    about: str
    #: Name, type, what it says.
    columns: tuple[tuple[str, Any, str], ...]
    #: How its files are ordered: readers of a part of it read a part of the files.
    order: tuple[str, ...] = ("seq",)
    #: A column that files are divided by, into folders of its values.
    partition: str | None = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, kind) for name, kind, _ in self.columns])


_SEQ = ("seq", NUMBER, "record of the log")
_AT = ("judged_at", TIME, "when that was judged")
_UUID = ("uuid", TEXT, "the topic or collection")

ADVERTISEMENTS = Table(
    "advertisements",
    "Every topic and collection that was ever advertised, as its advertisement says; without the signed bytes.",
    (
        _UUID,
        _SEQ,
        _AT,
        ("created", TIME, "when it was minted"),
        ("expires", TIME, "until when, as it was minted; `changes` has what became of it"),
        ("creator", TEXT, "who created it, and owned it first"),
        ("institution", TEXT, "the creator's"),
        ("kind", TEXT, "`topic` or `collection`"),
        ("descriptor_kind", TEXT, "`path`, `text`, `properties`, `xml` or `sealed`"),
        ("path", TEXT, "of a path"),
        ("text", TEXT, "of a text"),
        ("keywords", TEXTS, "of a text"),
        ("properties", pa.map_(TEXT, TEXT), "of properties, each value as text"),
        ("types", pa.map_(TEXT, TEXT), "their types"),
        ("xml", TEXT, "of XML"),
        ("synopsis_type", TEXT, "`string`, `tags`, `properties` or `xml`"),
        ("synopsis", TEXT, "with the UUID in it"),
        ("node", TEXT, "who minted and signed it"),
        ("digest", TEXT, "of the signed payload"),
        ("access", TEXT, "its lists, by their digest in `access`; none: everyone"),
        ("parent", TEXT, "what it is registered under"),
        ("indexed", TEXT, "folded text, for looking up what queries must contain"),
    ),
    ("institution", "created", "uuid"),
    "descriptor_kind",
)
SIGNED = Table(
    "signed",
    "The signed bytes of each advertisement, and what it hides.",
    (
        _UUID,
        _SEQ,
        ("advertisement", TEXT, "the signed bytes"),
        ("opening", TEXT, "JSON: what it hides, with the salts"),
    ),
    ("uuid",),
)
PROPERTIES = Table(
    "properties",
    "One row for each property of each advertisement.",
    (
        _UUID,
        _SEQ,
        ("name", TEXT, "of the property"),
        ("type", TEXT, "`string`, `integer`, `float`, `boolean` or `timestamp`"),
        ("value", TEXT, "as text"),
        ("number", pa.float64(), "of an integer or a float"),
        ("moment", TIME, "of a timestamp"),
    ),
    ("name", "value"),
)
CHANGES = Table(
    "changes",
    "What became of topics after they were advertised: renewed, withdrawn, handed over, ended with their parent. An expiry in time is no change.",
    (
        _UUID,
        _SEQ,
        _AT,
        ("owner", TEXT, "from then on"),
        ("expires", TIME, "from then on"),
        ("state", TEXT, "`live`, `withdrawn` or `expired`"),
        ("honours", NUMBER, "`epoch` of the oldest grants that count from then on; 0: all"),
    ),
)
ACCESS = Table(
    "access",
    "Lists, by their digest, as they hold for topics with those of their ancestors. The same digest is always the same lists.",
    (
        ("access", TEXT, "digest"),
        _SEQ,
        ("allow", TEXTS, "who may discover; none: everyone"),
        ("deny", TEXTS, "who may not"),
        ("lists", TEXT, "JSON: all of them, also about hierarchies and collections"),
    ),
)
PRINCIPALS = Table(
    "principals",
    "Who is who, each time that changes: entities, nodes, guards, the operator.",
    (
        ("principal", TEXT, "`entity:alice`"),
        _SEQ,
        _AT,
        ("institution", TEXT, "by the current certificate"),
        ("thumbprint", TEXT, "of that certificate"),
        ("key", TEXT, "hash of its key"),
        ("expires", TIME, "end of that certificate"),
        ("revoked", pa.bool_(), "whether its key is revoked"),
    ),
)
CERTIFICATES = Table(
    "certificates",
    "Every certificate that the log took, each followed to a trusted root again.",
    (
        ("thumbprint", TEXT, "digest"),
        _SEQ,
        _AT,
        ("principal", TEXT, "`entity:alice`"),
        ("name", TEXT, "the URI in it"),
        ("institution", TEXT, "in it"),
        ("not_before", TIME, "of the whole chain"),
        ("not_after", TIME, "of the whole chain"),
        ("issued", TIME, "of the leaf"),
        ("public_key", pa.binary(), "DER"),
        ("chain", pa.list_(pa.binary()), "DER, leaf first"),
    ),
)
MEMBERS = Table(
    "members",
    "What came into collections, and what left.",
    (
        ("collection", TEXT, "the collection"),
        _UUID,
        ("kind", TEXT, "`topic` or `collection`"),
        _SEQ,
        _AT,
        ("present", pa.bool_(), "came, or left"),
    ),
)
GRANTS = Table(
    "grants",
    "Grants each time they change: given, renewed, revoked, expired.",
    (
        ("id", TEXT, "of the grant"),
        _SEQ,
        _AT,
        ("right", TEXT, "`publish` or `subscribe`"),
        ("topic", TEXT, "topic, root or collection"),
        ("tree", pa.bool_(), "whether for all below it"),
        ("issuer", TEXT, "who gave it"),
        ("grantee", TEXT, "entity, `institution:X` or `*`"),
        ("not_before", TIME, "from"),
        ("expires", TIME, "until"),
        ("delegable", pa.bool_(), "whether it may be passed on"),
        ("parent", TEXT, "the grant that it was passed on from; none: the owner gave it"),
        ("epoch", NUMBER, "how often the topic had changed hands when it was given"),
        (
            "state",
            TEXT,
            "what became of the grant itself: `live`, `revoked`, `expired`, or `forgotten`: no longer listed. One that is `live` counts only while `parent` does, and an owner's only while `epoch` is not below the topic's `honours` in `changes`",
        ),
    ),
)
SETTLING = Table(
    "settling",
    "Topics that ended, or were shortened, and whose subtrees have not all followed yet.",
    (_UUID, _SEQ, ("present", pa.bool_(), "begins, or is done")),
)
RECORDS = Table(
    "records",
    "Every record of the log.",
    (_SEQ, _AT, ("kind", TEXT, "`advertise`, `tick`, …"), ("status", TEXT, "`accepted`, `refused`, `repeated` or `void`")),
)
REJECTED = Table(
    "rejected",
    "Records whose signatures do not hold, or that cannot be read. They are in `records` too, and a certificate that one brought is in `certificates` if it leads to the roots; no other table has a row of them.",
    (
        _SEQ,
        _AT,
        ("kind", TEXT, "as archived"),
        ("uuid", TEXT, "where it is about a topic"),
        ("reason", TEXT, "what is wrong"),
        ("raw", pa.binary(), "the record"),
    ),
)

TABLES = {
    table.name: table
    for table in (
        *(ADVERTISEMENTS, SIGNED, PROPERTIES, CHANGES, ACCESS, PRINCIPALS, CERTIFICATES, MEMBERS, GRANTS, SETTLING, RECORDS),
        REJECTED,
    )
}
