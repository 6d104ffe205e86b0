"""Sealing: only the receiver reads, nothing can be changed, and one error says it all."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given
from hypothesis import strategies as st
from pki import derive_key

from tdn.errors import TrustError
from tdn.trust import sealing

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


def test_sealed_for_another_purpose() -> None:
    """What was sealed to the same key in another protocol does not open here."""
    suite = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    foreign = sealing.MAGIC + suite.encrypt(b"hello", RECEIVER.public_key(), info=b"something else")
    with pytest.raises(TrustError):
        sealing.unseal(foreign, RECEIVER)
