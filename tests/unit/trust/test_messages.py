"""Messages on topics: whatever is put in comes out, for those it was meant for, where it belongs; and nothing that was touched does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from little_network import LittleNetwork
from pki import T0, YEAR, Pki, derive_key
from sizes import examples

from tdn.errors import MalformedMessage, TdnError, TrustError, UsageError
from tdn.protocol import jsontext
from tdn.protocol.names import Role
from tdn.trust import messages, signing, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import BODY_KINDS, new_id
from tdn.trust.messages import BYTES, ENCRYPTED, SIGNED, TEXT, Read
from tdn.trust.replay import CLOCK_SKEW
from tdn.trust.statements import by_roots

PKI = Pki("messages")
ALICE = PKI.credentials(Role.ENTITY, "alice")
MALLORY = PKI.credentials(Role.ENTITY, "mallory")
BOB, CAROL, DAVE = derive_key("bob"), derive_key("carol"), derive_key("dave")
NETWORK = "ab" * 32
TOPIC = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
OTHER_TOPIC = "b2d8a0c4-91f7-4e65-8f3a-0c7d1e92b6f8"
ID = "message-0001"
NOW = T0 + timedelta(milliseconds=123)

#: One step that spoils a message; what comes back must be refused.
Spoil = Callable[[bytes], bytes]


def write(
    body: bytes = b"Hello",
    content_type: str = BYTES,
    *,
    sender: Credentials | None = ALICE,
    readers: Sequence[EllipticCurvePrivateKey] | None = None,
    now: datetime = NOW,
    **place: str,
) -> tuple[bytes, str]:
    return messages.write(
        body,
        content_type,
        sender=sender,
        readers=None if readers is None else [reader.public_key() for reader in readers],
        now=now,
        **{"topic": TOPIC, "network": NETWORK, "message_id": ID, **place},
    )


def read(
    message: tuple[bytes, str], *, key: EllipticCurvePrivateKey = BOB, now: datetime = NOW, pki: Pki = PKI, **place: str
) -> Read:
    return messages.read(
        *message,
        key=key,
        identify=by_roots(pki.roots),
        now=now,
        **{"topic": TOPIC, "network": NETWORK, "message_id": ID, **place},
    )


def by_hand(body: bytes | None = b"Hello", *, who: Credentials = ALICE, kind: str = "message", **changes: Any) -> bytes:
    """Signed by somebody who does not keep to the rules about what is said."""
    issued, with_chain = changes.pop("issued", int(T0.timestamp())), changes.pop("with_chain", True)
    claims = {
        "v": 1,
        "network": NETWORK,
        "topic": TOPIC,
        "id": ID,
        "publisher": str(who.identity.name),
        "at": "2027-01-01T00:00:00.123Z",
        "content_type": BYTES,
        **changes,
    }
    claims = {name: value for name, value in claims.items() if value is not None}
    return signing.sign(kind, claims, who.key, chain=who.identity.chain, with_chain=with_chain, issued=issued, tail=body)


def encrypt(content: bytes, *readers: EllipticCurvePrivateKey, message_id: str = ID) -> bytes:
    keys = [reader.public_key() for reader in readers]
    return messages.encrypt(content, readers=keys, topic=TOPIC, network=NETWORK, message_id=message_id)


# --- what is put in comes out ---


@settings(max_examples=examples(40))
@given(st.binary(max_size=300) | st.sampled_from([b"~", b"a~b~", b"eyJ.eyJ.x~", messages.MAGIC, b"\0" * 300]), st.integers(0, 3))
def test_round_trip(body: bytes, readers: int) -> None:
    """Any bytes, also tildes, in all three forms."""
    assert read(write(body, sender=None)) == Read(body, BYTES, None, None, signed=False, encrypted=False)
    name = ALICE.identity.name
    assert read(write(body)) == Read(body, BYTES, name, NOW, signed=True, encrypted=False)
    everybody = [BOB, CAROL, DAVE][: readers + 1]
    message = write(body, readers=everybody)
    for reader in everybody:
        assert read(message, key=reader) == Read(body, BYTES, name, NOW, signed=True, encrypted=True)


def test_forms() -> None:
    """The plain form is the body and its type; the others say what they are."""
    assert write(b"Hello", TEXT, sender=None) == (b"Hello", TEXT)
    signed, content_type = write(b"Hello", TEXT)
    assert content_type == SIGNED
    assert signed.endswith(b"~Hello")
    closed, content_type = write(b"Hello", TEXT, readers=[BOB, CAROL])
    assert content_type == ENCRYPTED
    assert closed.startswith(messages.MAGIC + b"\0\2")
    assert b"Hello" not in closed
    assert read((signed, SIGNED)).content_type == read((closed, ENCRYPTED)).content_type == TEXT


@pytest.mark.parametrize("size", [262_144, 1_048_576, messages.MAX_BYTES - 8192])
def test_large_bodies(size: int) -> None:
    """Beyond what any other message of ours may have, up to what the broker takes."""
    body = b"~" * size
    assert read(write(body)).body == body
    assert read(write(body, readers=[BOB])).body == body


def test_as_much_as_the_broker_takes() -> None:
    body = bytes(messages.MAX_BYTES)
    assert read(write(body, sender=None)).body == body
    for choices in ({"sender": None}, {}, {"readers": [BOB]}):
        with pytest.raises(UsageError, match=r"the broker takes 16777216 at most"):
            write(body + b"x", **choices)  # type: ignore[arg-type]
    for content_type in (BYTES, SIGNED, ENCRYPTED):
        with pytest.raises(MalformedMessage, match="over the limit of 16777216") as caught:
            read((body + b"x", content_type))
        assert len(caught.value.received) <= 200


def test_waited_in_a_queue_for_longer_than_its_certificate_lasted() -> None:
    """A message is as good as on its first day, however late it is read."""
    for readers in (None, [BOB]):
        assert read(write(readers=readers), now=T0 + 15 * YEAR).publisher == ALICE.identity.name


def test_milliseconds() -> None:
    moment = T0 + timedelta(seconds=59, microseconds=999_999)
    assert read(write(now=moment), now=moment).at == T0 + timedelta(seconds=59, milliseconds=999)
    assert read(write(now=T0), now=T0).at == T0


def test_clocks_may_differ_a_little() -> None:
    assert read(write(), now=NOW - CLOCK_SKEW).body == b"Hello"
    with pytest.raises(TrustError, match="dated in the future"):
        read(write(), now=NOW - CLOCK_SKEW - timedelta(milliseconds=1))


def test_a_reader_named_twice_has_one_key() -> None:
    assert len(write(readers=[BOB, BOB, CAROL])[0]) == len(write(readers=[BOB, CAROL])[0])


def test_a_thousand_readers() -> None:
    """Each finds its own key at once; one more is too many."""
    everybody = [derive_key(f"reader {number}") for number in range(messages.MOST_READERS)]
    message = write(b"Hello, all of you", readers=everybody)
    assert len(message[0]) < 130_000
    for reader in (everybody[0], everybody[499], everybody[-1]):
        assert read(message, key=reader).body == b"Hello, all of you"
    with pytest.raises(TrustError, match="not for us"):
        read(message, key=BOB)
    with pytest.raises(UsageError, match="at most 1000 readers; there are 1001"):
        write(readers=[*everybody, BOB])


def test_two_messages_share_no_tag_and_no_order() -> None:
    """Who sees tags without knowing the readers' keys cannot tell whether two messages have the same readers."""
    tags = [
        [closed[8 + 121 * place :][:8] for place in range(2)]
        for closed in (write(readers=[BOB, CAROL], message_id=new_id())[0] for _ in range(20))
    ]
    assert len({tag for pair in tags for tag in pair}) == 40
    context = messages._Place(NETWORK, TOPIC, ID).context()
    keys = [BOB.public_key(), CAROL.public_key()]
    ordered = sorted(messages._tag(key, context) for key in keys)
    for readers in ([BOB, CAROL], [CAROL, BOB]):
        closed = write(readers=readers)[0]
        assert [closed[8 + 121 * place :][:8] for place in range(2)] == ordered


# --- what is not written ---


@pytest.mark.parametrize(
    "content_type", ["", " ", "text/plain\n", "ü", "a  b", "a ", "x" * 129, *(SIGNED, ENCRYPTED, "Application/TDN-x")]
)
@pytest.mark.parametrize("sender", [None, ALICE], ids=["plain", "signed"])
def test_content_types_that_cannot_be(content_type: str, sender: Credentials | None) -> None:
    """Nobody is told that a body is signed when it is not."""
    with pytest.raises(UsageError, match="content type"):
        write(content_type=content_type, sender=sender)


def test_what_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="is signed as well"):
        write(sender=None, readers=[BOB])
    with pytest.raises(UsageError, match="needs somebody who can read it"):
        write(readers=[])
    with pytest.raises(TrustError, match="expired at"):
        write(now=T0 + 2 * YEAR)
    with pytest.raises(MalformedMessage, match="publisher"):
        write(sender=PKI.credentials(Role.NODE, "n1"))
    for wrong in (
        {"topic": "x"},
        {"network": "x"},
        {"message_id": "short"},
        {"message_id": "with space"},
        {"message_id": "\ud800" * 9},
    ):
        for readers in (None, [BOB]):
            with pytest.raises(MalformedMessage):
                write(readers=readers, **wrong)


# --- what is not believed: signed ---


@pytest.mark.parametrize("readers", [None, [BOB]], ids=["signed", "encrypted"])
@pytest.mark.parametrize("other", [{"topic": OTHER_TOPIC}, {"network": "cd" * 32}, {"message_id": "message-0002"}], ids=str)
def test_found_elsewhere(readers: list[EllipticCurvePrivateKey] | None, other: dict[str, str]) -> None:
    """A copy on another topic, in another network or under another id is refused; encrypted, it does not even open."""
    message = write(readers=readers)
    with pytest.raises(
        TrustError, match="another id, on another topic or in another network" if readers is None else "not for us"
    ):
        read(message, **other)
    if readers:
        # Also where somebody who can read it encrypted it anew.
        inside = messages.decrypt(message[0], key=BOB, topic=TOPIC, network=NETWORK, message_id=ID)
        place = {"topic": TOPIC, "network": NETWORK, "message_id": ID, **other}
        with pytest.raises(TrustError, match="another id, on another topic or in another network"):
            read((messages.encrypt(inside, readers=[BOB.public_key()], **place), ENCRYPTED), **other)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw + b"x",
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b"~Hello", b"~hello"),
        lambda raw: raw.partition(b"~")[0],
        lambda raw: raw.partition(b"~")[0] + b"~",
        lambda raw: raw.replace(b"~", b"~~"),
        lambda raw: raw + b"~" + raw,
    ],
    ids=range(7),
)
def test_body_changed(spoil: Spoil) -> None:
    with pytest.raises(TrustError, match="not what was signed"):
        read((spoil(write()[0]), SIGNED))


def test_any_changed_byte_of_a_signed_message() -> None:
    original = write()[0]
    for place in range(len(original)):
        # One flip that usually stays within the base64 alphabet, one that leaves it.
        for flipped in (original[place] ^ 1, original[place] ^ 0x80):
            with pytest.raises((TrustError, MalformedMessage)):
                read((original[:place] + bytes([flipped]) + original[place + 1 :], SIGNED))


def test_any_cut_of_a_signed_message() -> None:
    original = write()[0]
    for length in range(len(original)):
        with pytest.raises((TrustError, MalformedMessage)):
            read((original[:length], SIGNED))


def spoken_for(who: Credentials, key: EllipticCurvePrivateKey) -> Credentials:
    """Somebody's certificate with another's key."""
    return replace(who, key=key)


def test_signed_by_another() -> None:
    """Under alice's certificate with another key; and under one's own with alice's name."""
    with pytest.raises(TrustError, match="signature does not hold"):
        read(write(sender=spoken_for(ALICE, MALLORY.key)))
    with pytest.raises(TrustError, match="another publisher than its signature"):
        read((by_hand(who=MALLORY, publisher=str(ALICE.identity.name)), SIGNED))
    with pytest.raises(TrustError, match="another publisher than its signature"):
        read((by_hand(who=PKI.credentials(Role.NODE, "n1"), publisher=str(ALICE.identity.name)), SIGNED))
    with pytest.raises(MalformedMessage, match="publisher"):
        read((by_hand(who=PKI.credentials(Role.NODE, "n1")), SIGNED))


def test_same_name_from_another_root() -> None:
    stranger = Pki("strangers to messages").credentials(Role.ENTITY, "alice")
    with pytest.raises(TrustError, match="does not lead to a trusted root"):
        read(write(sender=stranger))
    with pytest.raises(TrustError, match="does not lead to a trusted root"):
        read(write(sender=stranger, readers=[BOB]))
    assert read(write(sender=stranger), pki=Pki("strangers to messages")).publisher == stranger.identity.name


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"not_before": T0 - 30 * timedelta(days=1), "not_after": T0 - timedelta(days=1)}, "expired at"),
        # At the second of signing it was still valid, at the millisecond no longer.
        ({"not_before": T0 - 30 * timedelta(days=1), "not_after": T0}, "expired at"),
        ({"not_before": T0 + timedelta(seconds=1)}, "not valid before"),
    ],
    ids=["expired", "expired within the second", "not yet valid"],
)
def test_certificate_counts_when_it_was_signed(span: dict[str, datetime], message: str) -> None:
    """Not when it is read; and nobody who says so can sign later with it."""
    outdated = PKI.credentials(Role.ENTITY, "alice", generation=2, **span)
    with pytest.raises(TrustError, match=message):
        read((by_hand(who=outdated), SIGNED))


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (by_hand(issued=None), MalformedMessage, "does not say when it was signed"),
        (by_hand(issued=int(T0.timestamp()) + 1), TrustError, "another moment than its signature"),
        (by_hand(at="2027-01-01T00:00:01Z"), TrustError, "another moment than its signature"),
        (by_hand(at="2027-02-30T00:00:00Z"), MalformedMessage, "not a time"),
        (by_hand(with_chain=False), TrustError, "does not carry its certificate chain"),
        (by_hand(kind="advertisement"), MalformedMessage, "not a message on a topic"),
        (by_hand(kind="renew"), MalformedMessage, "not a message on a topic"),
        (by_hand(body=None), MalformedMessage, "tail"),
        (by_hand(v=2), MalformedMessage, "schema version 2 is unknown"),
        (by_hand(v=None), MalformedMessage, "schema version None is unknown"),
        (by_hand(id=None), MalformedMessage, "id"),
        (by_hand(topic=None), MalformedMessage, "topic"),
        (by_hand(network=None), MalformedMessage, "network"),
        (by_hand(at=None), MalformedMessage, "at"),
        (by_hand(publisher="entity:alice"), MalformedMessage, "publisher"),
        (by_hand(content_type=SIGNED), MalformedMessage, "content_type"),
        (by_hand(content_type="text/plain\r\nx: y"), MalformedMessage, "content_type"),
        (by_hand(added=1), MalformedMessage, "added"),
        (by_hand(readers="A" * 43), TrustError, "signed for other readers"),
        (b"", MalformedMessage, "not a signed message"),
        (b"Hello", MalformedMessage, "not a signed message"),
    ],
    ids=range(21),
)
def test_flaws(raw: bytes, error: type[TdnError], message: str) -> None:
    with pytest.raises(error, match=message):
        read((raw, SIGNED))
    # Inside an encrypted one, where readers are named, it is no better.
    with pytest.raises(TdnError):
        read((encrypt(raw, BOB), ENCRYPTED))


def test_the_sample_by_hand_has_no_other_flaw() -> None:
    assert read((by_hand(), SIGNED)).body == b"Hello"


def test_a_message_is_nothing_else(net: LittleNetwork) -> None:
    """No statement and no request can be read as a message, nor a message as one of them."""
    assert "message" not in BODY_KINDS | statements.KINDS
    with pytest.raises(MalformedMessage, match="not a message on a topic"):
        messages.read(
            net.mint(net.entity("alice")),
            SIGNED,
            key=BOB,
            identify=by_roots(net.pki.roots),
            topic=TOPIC,
            network=net.id,
            message_id=ID,
            now=NOW,
        )
    with pytest.raises(MalformedMessage, match="not a statement"):
        statements.read(write()[0], by_roots(PKI.roots))


# --- what is not believed: encrypted ---


def test_not_for_us() -> None:
    with pytest.raises(TrustError, match=r"^the message is encrypted, and not for us$"):
        read(write(readers=[BOB, CAROL]), key=DAVE)


def test_any_changed_byte_of_an_encrypted_message() -> None:
    """Also of the slots of others: nobody takes a reader away, or puts another in its place."""
    original = write(readers=[BOB, CAROL])[0]
    head = 8 + 2 * 121
    for place in [*range(head + 40), *range(head + 40, len(original), 7), len(original) - 1]:
        changed = original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :]
        with pytest.raises((TrustError, MalformedMessage)):
            read((changed, ENCRYPTED))


def test_any_cut_of_an_encrypted_message() -> None:
    original = write(b"", readers=[BOB])[0]
    for length in range(len(original)):
        with pytest.raises((TrustError, MalformedMessage)):
            read((original[:length], ENCRYPTED))
    with pytest.raises(TrustError):
        read((original + b"x", ENCRYPTED))


def parts(message: bytes) -> tuple[list[bytes], bytes]:
    count = int.from_bytes(message[6:8])
    return [message[8 + 121 * place :][:121] for place in range(count)], message[8 + 121 * count :]


def joined(slots: list[bytes], content: bytes) -> bytes:
    return messages.MAGIC + len(slots).to_bytes(2) + b"".join(slots) + content


def own_slot(message: bytes, key: EllipticCurvePrivateKey = BOB) -> int:
    tag = messages._tag(key.public_key(), messages._Place(NETWORK, TOPIC, ID).context())
    return next(place for place, slot in enumerate(parts(message)[0]) if slot.startswith(tag))


def test_parts_are_what_the_tests_think() -> None:
    message = write(readers=[BOB, CAROL, DAVE])[0]
    assert joined(*parts(message)) == message


def test_slots_moved_removed_doubled_swapped() -> None:
    message = write(readers=[BOB, CAROL, DAVE])[0]
    slots, content = parts(message)
    mine = own_slot(message)
    others = [place for place in range(3) if place != mine]
    changed = "changed, or belongs elsewhere"
    in_order = "not in order"
    for spoiled, expected in (
        # A reader is taken out; the content knows.
        (joined([slot for place, slot in enumerate(slots) if place != others[0]], content), changed),
        (joined([slots[mine]], content), changed),
        (joined([slot for place, slot in enumerate(slots) if place != mine], content), "not for us"),
        # Keys change places under their tags.
        (
            joined(
                [slot[:8] + slots[(place + 1) % 3][8:] for place, slot in enumerate(slots)],
                content,
            ),
            changed,
        ),
        (joined([slots[1], slots[0], slots[2]], content), in_order),
        (joined([slots[0], slots[0], slots[1], slots[2]], content), in_order),
        (joined([slots[mine]] * 1000, content), in_order),
        # Slot and content of another message with the same id, readers and publisher.
        (joined(slots, parts(write(readers=[BOB, CAROL, DAVE])[0])[1]), changed),
        (joined(parts(write(readers=[BOB, CAROL, DAVE])[0])[0], content), changed),
    ):
        with pytest.raises((TrustError, MalformedMessage), match=expected):
            read((spoiled, ENCRYPTED))


def test_a_reader_is_added() -> None:
    """Somebody who can read it knows the key, and writes a slot for a friend: the content knows; and if it is encrypted anew, so does
    the signature."""
    message = write(readers=[BOB, CAROL])[0]
    context = messages._Place(NETWORK, TOPIC, ID).context()
    slots, content = parts(message)
    symmetric = messages._SUITE.decrypt(slots[own_slot(message)][8:], BOB, info=context)
    friend = messages._tag(DAVE.public_key(), context) + messages._SUITE.encrypt(symmetric, DAVE.public_key(), info=context)
    more = sorted([*slots, friend])
    with pytest.raises(TrustError, match="changed, or belongs elsewhere"):
        read((joined(more, content), ENCRYPTED), key=DAVE)
    inside = AESGCM(symmetric).decrypt(content[:12], content[12:], context + joined(slots, b""))
    head = joined(more, b"")
    anew = head + content[:12] + AESGCM(symmetric).encrypt(content[:12], inside, context + head)
    for key in (DAVE, BOB):
        with pytest.raises(TrustError, match="signed for other readers"):
            read((anew, ENCRYPTED), key=key)


def test_passed_on_by_a_reader() -> None:
    """What was meant for some is not shown as if alice had written it to others, or to everybody."""
    inside = messages.decrypt(write(readers=[BOB, CAROL])[0], key=BOB, topic=TOPIC, network=NETWORK, message_id=ID)
    for message in ((encrypt(inside, DAVE), ENCRYPTED), (inside, SIGNED)):
        with pytest.raises(TrustError, match="signed for other readers"):
            read(message, key=DAVE)
    # Nor the other way round.
    with pytest.raises(TrustError, match="signed for other readers"):
        read((encrypt(write()[0], DAVE), ENCRYPTED), key=DAVE)


@pytest.mark.parametrize("inside", [b"", b"Hello", b"~", b"." * 1000, write(b"x", readers=[BOB])[0]], ids=range(5))
def test_nothing_but_the_signed_form_is_inside(inside: bytes) -> None:
    # Random bytes may hold two dots.
    with pytest.raises(MalformedMessage, match=r"not a signed message|not base64url"):
        read((encrypt(inside, BOB), ENCRYPTED))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        messages.MAGIC,
        messages.MAGIC + b"\0",
        messages.MAGIC + b"\0\0" + bytes(200),
        messages.MAGIC + b"\xff\xff" + bytes(200),
        messages.MAGIC + b"\xff\xff" + bytes(65_535 * 121 + 100),
        messages.MAGIC + (1001).to_bytes(2) + bytes(1001 * 121 + 28),
        messages.MAGIC + b"\0\1" + bytes(121 + 27),
        b"\x00tdnm2" + b"\0\1" + bytes(1000),
        b"\x00tdn2" + bytes(1000),
        write()[0],
    ],
    ids=range(11),
)
def test_framing(raw: bytes) -> None:
    """Counts that lie, other versions, other forms: refused by their first bytes, before anything is decrypted."""
    with pytest.raises(MalformedMessage):
        read((raw, ENCRYPTED))


def test_a_slot_that_is_no_key() -> None:
    """Ours by its tag, and nonsense, or a point that is none."""
    tag = messages._tag(BOB.public_key(), messages._Place(NETWORK, TOPIC, ID).context())
    for nonsense in (bytes(113), b"\xff" * 113, b"\x04" + bytes(112), b"\x04" + b"\xff" * 112, b"\x02" + b"\x01" * 112):
        with pytest.raises(TrustError, match="changed, or belongs elsewhere"):
            read((joined([tag + nonsense], bytes(100)), ENCRYPTED))


@settings(max_examples=examples(200))
@given(
    st.binary(max_size=400), st.sampled_from([SIGNED, ENCRYPTED]), st.sampled_from([b"", messages.MAGIC + b"\0\1", b"eyJ.eyJ."])
)
def test_read_raises_nothing_else(raw: bytes, content_type: str, begin: bytes) -> None:
    with pytest.raises(TdnError):
        read((begin + raw, content_type))


def test_an_id_that_is_none() -> None:
    """AMQP lets a publisher write any id; an encrypted message has none of those."""
    for wild in ("", "x", "message-0001 on elsewhere", "\ud800" * 9, "x" * 65):
        with pytest.raises(MalformedMessage, match="an id of 8 to 64"):
            read(write(readers=[BOB]), message_id=wild)
        with pytest.raises(TrustError):
            read(write(), message_id=wild)
        assert read((b"x", BYTES), message_id=wild).body == b"x"


def test_a_form_of_a_newer_version() -> None:
    """It is not taken for a body as it is."""
    for content_type in ("application/tdn-encrypted2", "application/TDN-signed", "application/tdn-signed; x=y"):
        with pytest.raises(MalformedMessage, match="is unknown"):
            read((b"x", content_type))
    assert read((b"x", "")).content_type == ""


def test_the_signed_part_keeps_its_limit() -> None:
    """Sixteen megabytes are the body's alone: what must be taken apart before a signature is checked stays small."""
    for raw in (b"." * 1_000_000 + b"~", b"." * 1_000_000, b"a.b." + b"c" * jsontext.MAX_MESSAGE_BYTES + b"~x"):
        with pytest.raises(MalformedMessage, match="signed part of"):
            read((raw, SIGNED))
    with pytest.raises(MalformedMessage, match="over the limit of 262144"):
        signing.split(write(bytes(jsontext.MAX_MESSAGE_BYTES))[0])


def test_readers_may_be_any_sequence_of_keys() -> None:
    keys: tuple[EllipticCurvePublicKey, ...] = (BOB.public_key(), ALICE.identity.public_key)
    raw = messages.encrypt(b"x", readers=keys, topic=TOPIC, network=NETWORK, message_id=ID)
    for key in (BOB, ALICE.key):
        assert messages.decrypt(raw, key=key, topic=TOPIC, network=NETWORK, message_id=ID) == b"x"
