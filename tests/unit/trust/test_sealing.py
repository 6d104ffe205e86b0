"""Sealing: only the receiver reads, nothing can be changed, and one error says it all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given, settings
from hypothesis import strategies as st
from little_network import LittleNetwork
from pki import T0, derive_key
from sizes import examples

from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import jsontext
from tdn.trust import envelope, sealing

RECEIVER, OTHER = derive_key("receiver"), derive_key("other")


@given(st.binary(max_size=200))
def test_round_trip(message: bytes) -> None:
    """T6: sealed to the creator's key, read by the creator."""
    sealed = sealing.seal(message, RECEIVER.public_key())
    assert sealing.is_sealed(sealed)
    assert sealing.unseal(sealed, RECEIVER) == message
    with pytest.raises(TrustError, match="not sealed to this key"):
        sealing.unseal(sealed, OTHER)


def test_two_sealings_differ() -> None:
    assert sealing.seal(b"same", RECEIVER.public_key()) != sealing.seal(b"same", RECEIVER.public_key())


def test_any_changed_byte() -> None:
    """T6: no byte of a sealed message can be changed, cut off or added."""
    sealed = sealing.seal(b"a message", RECEIVER.public_key())
    for place in range(len(sealed)):
        with pytest.raises(TrustError):
            sealing.unseal(sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :], RECEIVER)
        with pytest.raises(TrustError):
            sealing.unseal(sealed[:place], RECEIVER)
    with pytest.raises(TrustError):
        sealing.unseal(sealed + b"\x00", RECEIVER)


@given(st.binary(max_size=150))
def test_garbage(raw: bytes) -> None:
    for message in (raw, sealing.MAGIC + raw):
        with pytest.raises(TrustError):
            sealing.unseal(message, RECEIVER)


def test_signed_is_not_sealed() -> None:
    assert not sealing.is_sealed(b"eyJhbGciOiJFUzI1NiJ9.e30.AA")
    with pytest.raises(TrustError, match="is not sealed"):
        sealing.unseal(b"eyJhbGciOiJFUzI1NiJ9.e30.AA", RECEIVER)


SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def sealed_by_hand(padded: bytes) -> bytes:
    """What a sender that does not pad as we do would send."""
    return sealing.MAGIC + SUITE.encrypt(padded, RECEIVER.public_key(), info=b"tdn/v1 sealed message")


@pytest.mark.parametrize("step", sealing.STEPS)
def test_sizes_are_steps(step: int) -> None:
    """T6, T18: whoever sees messages go by sees one of six sizes. Around each step, the message before it fits and the next does not."""
    overhead = len(sealing.MAGIC) + 65 + 16
    smaller = max((other for other in sealing.STEPS if other < step), default=0)
    for length in (max(0, smaller - 3), smaller, step - 5, step - 4):
        message = b"x" * length
        sealed = sealing.seal(message, RECEIVER.public_key())
        assert len(sealed) == step + overhead
        assert overhead <= sealing.OVERHEAD_BYTES
        assert sealing.unseal(sealed, RECEIVER) == message
    if step == sealing.STEPS[-1]:
        with pytest.raises(MalformedMessage, match="too long to be sealed"):
            sealing.seal(b"x" * (step - 3), RECEIVER.public_key())


@settings(max_examples=examples(60))
@given(st.integers(0, 70_000), st.sampled_from([b"\0", b"x", b"\xff"]))
def test_every_length_comes_back(length: int, letter: bytes) -> None:
    """Zeros at a message's end are its own, not padding."""
    sealed = sealing.seal(letter * length, RECEIVER.public_key())
    assert sealing.unseal(sealed, RECEIVER) == letter * length
    assert len(sealed) - len(sealing.seal(b"", RECEIVER.public_key())) + 4096 in sealing.STEPS


def test_the_largest_message_can_be_sealed() -> None:
    """Whatever fits the message limit can be sealed, and sealed still passes the limits that receivers check first."""
    assert sealing.STEPS[-1] - 4 >= jsontext.MAX_MESSAGE_BYTES
    assert any(step - 4 >= jsontext.MAX_REQUEST_BYTES for step in sealing.STEPS)
    assert list(sealing.STEPS) == sorted(set(sealing.STEPS))


@pytest.mark.parametrize(
    "padded",
    [
        *(b"", b"\0" * 3, b"\0" * 4, (1).to_bytes(4) + b"x", (1).to_bytes(4) + b"x" * 4095, (1).to_bytes(4) + b"x" * 4091),
        *((4093).to_bytes(4).ljust(4096), b"\xff" * 4096, (2**31).to_bytes(4).ljust(4096), (8000).to_bytes(4).ljust(8192)),
    ],
    ids=range(10),
)
def test_padded_otherwise_is_refused(padded: bytes) -> None:
    """A length beyond its message, or a size that is none of ours."""
    with pytest.raises(TrustError, match="is not padded as ours are"):
        sealing.unseal(sealed_by_hand(padded), RECEIVER)


def test_padded_by_hand_as_ours_are() -> None:
    """The tests above fail for their padding, and for nothing else."""
    assert sealing.unseal(sealed_by_hand((4092).to_bytes(4) + b"x" * 4092), RECEIVER) == b"x" * 4092
    assert sealing.unseal(sealed_by_hand((0).to_bytes(4).ljust(16_384, b"\0")), RECEIVER) == b""


def test_questions_and_answers_of_one_step_look_alike(net: LittleNetwork) -> None:
    """T18: a short question and a long one, an empty page and one with a topic, have the same sizes."""
    alice, node = net.entity("alice"), net.node("n1")

    def size(kind: str, body: dict[str, object], tail: bytes | None = None) -> int:
        sender, receiver = (alice, node) if kind == "discover" else (node, alice)
        raw = envelope.write(
            *(kind, body, sender), audience="node:n1", now=T0, life=timedelta(minutes=1), answers="12345678", tail=tail
        )
        return len(sealing.seal(raw, receiver.identity.public_key))

    questions = [
        {"limit": 1},
        {"limit": 10_000, "language": "xquery", "query": "x" * 2000},
        {"limit": 5, "times": {"created_after": "2027-01-01T00:00:00Z"}, "count": True},
    ]
    assert len({size("discover", body) for body in questions}) == 1
    topic = net.mint(alice)
    empty: dict[str, object] = {"page": 1, "last": True, "count": 0}
    assert (
        len(
            {
                size("discovered", empty),
                size("discovered", {**empty, "total": 10**6}),
                size("discovered", {**empty, "count": 1}, topic),
            }
        )
        == 1
    )


def test_sealed_for_another_purpose() -> None:
    """What was sealed to the same key in another protocol does not open here."""
    foreign = sealing.MAGIC + SUITE.encrypt(b"hello", RECEIVER.public_key(), info=b"something else")
    with pytest.raises(TrustError):
        sealing.unseal(foreign, RECEIVER)
