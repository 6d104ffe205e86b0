"""Encryption to a receiver's certificate key: HPKE with P-256, HKDF-SHA256 and AES-256-GCM. Sign, then seal.

Twice as fast as JWE and one call. The context string binds a sealed message to this protocol and version, so that nothing sealed for
another purpose with the same key opens here. What is sealed has one of a few sizes (`STEPS`): whoever sees messages go by, the broker
included, learns neither how long a question is nor how much was found.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tdn.errors import MalformedMessage, TrustError

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_INFO = b"tdn/v1 sealed message"

#: First bytes of a sealed message. A signed one starts with `eyJ`, so the two cannot be confused.
MAGIC = b"\x00tdn2"

#: Sizes that sealed messages have, in bytes before sealing. The first holds most questions and one topic, the last the largest message.
STEPS = (4_096, 16_384, 65_536, 131_072, 196_608, 270_336)
_LENGTH_BYTES = 4
#: At most so much longer is a sealed message than the largest that its step holds.
OVERHEAD_BYTES = 256


def seal(message: bytes, receiver: EllipticCurvePublicKey) -> bytes:
    return MAGIC + _SUITE.encrypt(_padded(message), receiver, info=_INFO)


def is_sealed(message: bytes) -> bool:
    return message.startswith(MAGIC)


def unseal(message: bytes, key: EllipticCurvePrivateKey) -> bytes:
    """What was sealed to this key. One error for every failure: a sender learns nothing from the difference."""
    if not is_sealed(message):
        raise TrustError("the message is not sealed")
    try:
        padded = _SUITE.decrypt(message[len(MAGIC) :], key, info=_INFO)
    except (InvalidTag, ValueError) as error:
        raise TrustError("the message is not sealed to this key") from error
    length = int.from_bytes(padded[:_LENGTH_BYTES])
    if len(padded) not in STEPS or length > len(padded) - _LENGTH_BYTES:
        raise TrustError("the sealed message is not padded as ours are")
    return padded[_LENGTH_BYTES : _LENGTH_BYTES + length]


def _padded(message: bytes) -> bytes:
    needed = len(message) + _LENGTH_BYTES
    step = next((step for step in STEPS if step >= needed), None)
    if step is None:
        raise MalformedMessage(f"a message of {len(message)} bytes is too long to be sealed")
    return (len(message).to_bytes(_LENGTH_BYTES) + message).ljust(step, b"\0")
