"""T9: sealed topics open for their creator and whom it named, for nobody else, and tell the others nothing."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from little_network import LittleNetwork
from pki import T0, derive_key
from sizes import examples

from tdn.errors import MalformedMessage, UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext, schemas
from tdn.queries.compile import compile_query
from tdn.queries.model import Subject, finds, indexed_text, indexed_values
from tdn.trust import envelope, openings, sealed, statements
from tdn.trust.signing import decode_segment, encode_segment
from tdn.trust.statements import by_roots

CREATOR, BOB, CAROL = derive_key("creator"), derive_key("bob"), derive_key("carol")
NETWORK = "ab" * 32
SECRET = descriptors.text("Reactor 4 is behind schedule", ["secret"])


def seal(descriptor: descriptors.Descriptor, *readers: EllipticCurvePrivateKey, creator: str = "alice") -> dict[str, Any]:
    return sealed.seal_descriptor(
        descriptor, creator=creator, network=NETWORK, readers=[reader.public_key() for reader in readers or (CREATOR,)]
    )


def read(descriptor: dict[str, Any], key: EllipticCurvePrivateKey, creator: str = "alice", network: str = NETWORK) -> Any:
    return sealed.open_descriptor(descriptor, creator=creator, network=network, key=key)


@pytest.mark.parametrize(
    "inside",
    [
        SECRET,
        descriptors.path("a/b"),
        descriptors.xml("<a>Zürich</a>"),
        descriptors.properties(["a=1", "b=x", "c=1.5", "d=true", "e=2027-01-01T00:00:00Z"]),
        descriptors.text("trailing spaces   ", []),
    ],
    ids=lambda inside: inside["kind"],
)
def test_opens_for_creator_and_named(inside: descriptors.Descriptor) -> None:
    closed = seal(inside, CREATOR, BOB)
    schemas.check("descriptor", closed)
    sealed.check(closed)
    assert read(closed, CREATOR) == inside
    assert read(closed, BOB) == inside
    assert read(closed, CAROL) is None


def test_copied_under_another_name_it_opens_for_nobody() -> None:
    """A descriptor that somebody copies into a topic of its own, or into another network, says nothing to its readers."""
    closed = seal(SECRET, CREATOR, BOB)
    for key in (CREATOR, BOB):
        assert read(closed, key, creator="bob") is None
        assert read(closed, key, network="cd" * 32) is None
        assert read(closed, key) == SECRET


@pytest.mark.parametrize(("readers", "keys"), [(1, 4), (2, 4), (4, 4), (5, 8), (8, 8), (9, 16)])
def test_number_of_readers_does_not_show(readers: int, keys: int) -> None:
    """A power of two, four at least; keys of one length, none twice, in no order that tells."""
    everybody = [derive_key(f"reader {number}") for number in range(readers)]
    closed = seal(SECRET, *everybody)
    assert len(closed["keys"]) == keys
    assert {len(key) for key in closed["keys"]} == {151}
    assert len(set(closed["keys"])) == keys
    for reader in everybody:
        assert read(closed, reader) == SECRET


def test_as_many_readers_as_there_can_be() -> None:
    """Each key is tried in turn, so their number bounds what a stranger's topic costs."""
    everybody = [derive_key(f"reader {number}") for number in range(sealed.MOST_KEYS)]
    closed = seal(SECRET, *everybody)
    schemas.check("descriptor", closed)
    assert len(closed["keys"]) == sealed.MOST_KEYS == 64
    assert read(closed, everybody[-1]) == SECRET


def test_order_of_keys_does_not_tell() -> None:
    """The creator's own key stands anywhere."""

    def place(closed: dict[str, Any]) -> int:
        return next(number for number, key in enumerate(closed["keys"]) if read({**closed, "keys": [key]}, CREATOR))

    assert len({place(seal(SECRET, CREATOR, BOB)) for _ in range(40)}) > 1


@settings(max_examples=examples(40))
@given(st.integers(1, 3000))
def test_length_does_not_show(length: int) -> None:
    """The content's length is a power of two above the nonce and the tag: what has the same length may be half as long."""
    closed = seal(descriptors.text("x" * length, []))
    inside = len(decode_segment(closed["content"].encode())) - 12 - 16
    needed = len(jsontext.canonical(dict(descriptors.text("x" * length, []))))
    assert inside & (inside - 1) == 0
    assert inside >= 256
    assert needed <= inside < max(257, 2 * needed)


def test_two_sealings_share_nothing() -> None:
    one, other = seal(SECRET, CREATOR), seal(SECRET, CREATOR)
    assert one["content"] != other["content"]
    assert set(one["keys"]).isdisjoint(other["keys"])


def test_any_change_closes_it() -> None:
    closed = seal(SECRET, CREATOR)
    content = decode_segment(closed["content"].encode())
    for place in range(0, len(content), 7):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        assert read({**closed, "content": encode_segment(changed)}, CREATOR) is None
    assert (
        read({**closed, "keys": [key for key in closed["keys"] if not read({**closed, "keys": [key]}, CREATOR)]}, CREATOR) is None
    )
    assert read({**closed, "content": encode_segment(b"")}, CREATOR) is None


def by_hand(inside: bytes, key: EllipticCurvePrivateKey = CREATOR) -> dict[str, Any]:
    """Sealed for a reader by somebody who does not keep to the rules about what is inside."""
    context = sealed._context("alice", NETWORK)
    symmetric, nonce = AESGCM.generate_key(256), b"0" * 12
    content = nonce + AESGCM(symmetric).encrypt(nonce, inside, context)
    slot = encode_segment(sealed._SUITE.encrypt(symmetric, key.public_key(), info=context))
    return {"kind": "sealed", "content": encode_segment(content), "keys": [slot] * 4}


@pytest.mark.parametrize(
    "inside",
    [
        *(
            b"",
            b" " * 256,
            b"nonsense",
            b"[]",
            b"null",
            b'{"kind": "poem"}',
            b'{"kind": "path"}',
            b"\xff\xfe",
            b'{"kind": "path", "path": "a//b"}',
        ),
        *(b'{"kind": "xml", "xml": "<a"}', b'{"kind": "xml", "xml": "<!DOCTYPE a><a/>"}', b"[" * 5000),
        *(
            b'{"kind": "path", "kind": "path", "path": "a"}',
            b'{"kind": "properties", "properties": {"a": 1}, "types": {"a": "string"}}',
        ),
    ],
    ids=range(14),
)
def test_nonsense_inside_is_no_topic(inside: bytes) -> None:
    """Whoever can seal for us can write anything: it is not read, and does not break the reader."""
    assert read(by_hand(inside), CREATOR) is None
    assert read(by_hand(jsontext.canonical(dict(SECRET)).ljust(300)), CREATOR) == SECRET


def test_sealed_inside_sealed_is_no_topic() -> None:
    """No reader is led on from one to the next."""
    assert read(by_hand(jsontext.canonical(seal(SECRET, CREATOR))), CREATOR) is None
    with pytest.raises(UsageError, match="is sealed already"):
        seal(seal(SECRET, CREATOR))


def test_what_cannot_be_sealed() -> None:
    with pytest.raises(UsageError, match="needs somebody who can read it"):
        sealed.seal_descriptor(SECRET, creator="alice", network=NETWORK, readers=[])
    with pytest.raises(UsageError, match="at most 63 others"):
        sealed.seal_descriptor(SECRET, creator="alice", network=NETWORK, readers=[BOB.public_key()] * 65)
    with pytest.raises(MalformedMessage):
        seal({"kind": "poem"})
    with pytest.raises(MalformedMessage, match="empty"):
        seal(descriptors.path("a//b"))
    with pytest.raises(UsageError, match="at most 65536 can be sealed"):
        seal(descriptors.xml(f"<a>{'x' * 65_520}</a>"))


@pytest.mark.parametrize(("length", "readers"), [(sealed.MAX_SEALED_BYTES, 16), (sealed.MAX_SEALED_BYTES // 2, 64)])
def test_the_largest_fits_into_an_advertisement(net: LittleNetwork, length: int, readers: int) -> None:
    """The longest descriptor that can be sealed can still be minted, for 16 readers; for 64, one of half that length."""
    alice = net.entity("alice")
    largest = descriptors.xml(f"<a>{'x' * (length - 30)}</a>")
    assert len(jsontext.canonical(dict(largest))) == length
    keys = [alice.identity.public_key, *(derive_key(f"reader {number}").public_key() for number in range(readers - 1))]
    closed = sealed.seal_descriptor(largest, creator="alice", network=net.id, readers=keys)
    token = net.mint(alice, descriptor=closed)
    minted = statements.read_advertisement(token, by_roots(alice.roots))
    assert sealed.open_descriptor(minted.descriptor, creator="alice", network=net.id, key=alice.key) == largest


@pytest.mark.parametrize("kind", ["tags", "properties", "xml"])
def test_synopsis_of_a_sealed_topic_is_its_uuid(net: LittleNetwork, kind: str) -> None:
    """Anything else would show what the descriptor hides; even of type string, the placeholder is the UUID alone."""
    alice = net.entity("alice")
    closed = sealed.seal_descriptor(SECRET, creator="alice", network=net.id, readers=[alice.identity.public_key])
    placeholders = {"tags": "topic={uuid}", "properties": '{"topic": "{uuid}"}', "xml": "<t>{uuid}</t>"}
    with pytest.raises(MalformedMessage, match="the synopsis of a sealed topic is its UUID alone"):
        net.mint(alice, descriptor=closed, synopsis={"type": kind, "placeholder": placeholders[kind]})
    with pytest.raises(MalformedMessage):
        net.mint(alice, descriptor=closed, synopsis={"type": "string", "placeholder": "reactor {uuid}"})
    asked = envelope.authenticate(net.create(alice, descriptor=closed), lambda _: alice.identity)
    statements.mint(
        asked,
        uuid="3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11",
        network=net.id,
        opening=openings.conceal({openings.ACCESS: {}}, openings.new_seed()),
        node=net.node("n1"),
        now=T0,
    )


def test_no_query_finds_it_and_no_index_has_it() -> None:
    """What nodes search says nothing of it, not even by its base64."""
    closed = seal(SECRET, CREATOR)
    subject = Subject(
        "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11",
        "topic",
        "alice",
        "alice",
        "x",
        "2027-01-01T00:00:00Z",
        "2028-01-01T00:00:00Z",
        closed,
        "3f0c",
    )
    for language, text in (
        ("string", closed["content"][:8]),
        ("string", "3f0c"),
        ("regex", "."),
        ("sql", "owner = 'alice'"),
        ("xpath", "true()"),
        ("xquery", "true()"),
    ):
        assert not finds(compile_query(language, text), subject)
    assert indexed_text(closed, "3f0c") == ""
    assert list(indexed_values(closed)) == []


@pytest.mark.parametrize("count", [5, 6, 7, 12, 255])
def test_check_refuses_a_number_that_tells(count: int) -> None:
    with pytest.raises(MalformedMessage, match="their number is a power of two"):
        sealed.check({"kind": "sealed", "content": "A" * 64, "keys": ["A" * 151] * count})


def test_check_refuses_what_is_not_base64url() -> None:
    for content, key in (("A" * 65, "A" * 151), ("A" * 64, "A" * 150 + "_")):
        with pytest.raises(MalformedMessage, match="not base64url"):
            sealed.check({"kind": "sealed", "content": content, "keys": [key] * 4})
