"""Sealed topics (T9): a descriptor under a symmetric key, and that key encrypted to the creator and to each whom the creator names.

Nobody else learns what the topic is about, nor who may know: HPKE hides the receiver of each encrypted key, the keys are shuffled, and
their number and the content's length are rounded up. Whoever holds a certificate's key tries it on each of them. Creator and network
are bound in, so that a copied descriptor does not open under another creator's name.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tdn.errors import MalformedMessage, TdnError, UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol import jsontext, schemas
from tdn.trust.signing import decode_segment, encode_segment

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_NONCE_BYTES = 12
#: Fewest encrypted keys, and most: everybody tries each of them, so a topic can cost its readers some 7 ms and no more. Those that nobody
#: can open fill up to a power of two.
FEWEST_KEYS = 4
MOST_KEYS = 64
#: Content is rounded up to a power of two from here on.
_SMALLEST_CONTENT = 256
#: Largest descriptor that can be sealed, in bytes of JSON: with base64 twice it still fits into an advertisement, with 16 keys. For more
#: readers it must be shorter, 32 KiB for 64 of them; the node that mints it says so.
MAX_SEALED_BYTES = 65_536


def seal_descriptor(
    descriptor: Mapping[str, Any], *, creator: str, network: str, readers: Sequence[EllipticCurvePublicKey]
) -> dict[str, Any]:
    """The descriptor that nodes store and serve in place of this one. `readers` are the creator and whom it names."""
    if not readers:
        raise UsageError("a sealed topic needs somebody who can read it")
    if len(readers) > MOST_KEYS:
        raise UsageError(f"a topic can be sealed for at most {MOST_KEYS - 1} others")
    schemas.check("descriptor", dict(descriptor))
    if descriptor["kind"] == "sealed":
        raise UsageError("the descriptor is sealed already")
    descriptors.check(descriptor)
    context = _context(creator, network)
    key, nonce = AESGCM.generate_key(256), secrets.token_bytes(_NONCE_BYTES)
    content = nonce + AESGCM(key).encrypt(nonce, _padded(jsontext.canonical(dict(descriptor))), context)
    slots = max(FEWEST_KEYS, 1 << (len(readers) - 1).bit_length())
    keys = [_SUITE.encrypt(key, reader, info=context) for reader in readers]
    keys += [
        # To a key that is forgotten at once, so that the number of readers does not show.
        _SUITE.encrypt(secrets.token_bytes(len(key)), ec.generate_private_key(ec.SECP256R1()).public_key(), info=context)
        for _ in range(slots - len(keys))
    ]
    secrets.SystemRandom().shuffle(keys)
    return {"kind": "sealed", "content": encode_segment(content), "keys": [encode_segment(item) for item in keys]}


def open_descriptor(
    descriptor: Mapping[str, Any], *, creator: str, network: str, key: EllipticCurvePrivateKey
) -> dict[str, Any] | None:
    """The descriptor inside, if it was sealed for this key and is one; None to everybody else."""
    context = _context(creator, network)
    content = decode_segment(descriptor["content"].encode())
    for slot in descriptor["keys"]:
        try:
            symmetric = _SUITE.decrypt(decode_segment(slot.encode()), key, info=context)
            inside = AESGCM(symmetric).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            continue
        try:
            return _checked(inside)
        except TdnError:
            # Sealed for us by somebody who wrote nonsense: it is no topic that we can read.
            return None
    return None


def check(descriptor: Mapping[str, Any]) -> None:
    """What the schema cannot say of a sealed descriptor."""
    try:
        decode_segment(descriptor["content"].encode())
        for slot in descriptor["keys"]:
            decode_segment(slot.encode())
    except MalformedMessage as error:
        raise MalformedMessage("descriptor: the sealed content is not base64url") from error
    if len(descriptor["keys"]) & (len(descriptor["keys"]) - 1):
        raise MalformedMessage("descriptor.keys: their number is a power of two, so that it does not tell how many can read it")


def _checked(padded: bytes) -> dict[str, Any]:
    inside = jsontext.parse(padded.rstrip(b" "))
    schemas.check("descriptor", inside)
    if inside["kind"] == "sealed":
        raise MalformedMessage("a sealed descriptor inside a sealed one")
    descriptors.check(inside)
    found: dict[str, Any] = inside
    return found


def _padded(content: bytes) -> bytes:
    if len(content) > MAX_SEALED_BYTES:
        raise UsageError(f"the descriptor has {len(content)} bytes; at most {MAX_SEALED_BYTES} can be sealed")
    return content.ljust(max(_SMALLEST_CONTENT, 1 << (len(content) - 1).bit_length()), b" ")


def _context(creator: str, network: str) -> bytes:
    return f"tdn/v1 sealed topic of {creator} in {network}".encode()
