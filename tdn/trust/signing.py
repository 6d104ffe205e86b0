"""JWS in compact form, ES256 and nothing else, over exact bytes that are kept and never re-serialised.

The header is an allow-list: `alg`, `typ`, the signer's certificate by thumbprint (`x5t#S256`) or chain (`x5c`), and the moment of signing
(`iat`): of a statement, kept out of the payload so that two nodes sign the same one; of a message on a topic, to know its certificate by.
Any other member, such as a key that the sender would like us to use, is refused unread. A signed message may be followed by a tilde and a
*tail*, bytes that the signed payload names by digest: a record's request, a request's advertisement, without wrapping base64 in base64.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from jwt.algorithms import ECAlgorithm

from tdn.errors import MalformedMessage, TrustError
from tdn.protocol import jsontext

_ES256 = ECAlgorithm(ECAlgorithm.SHA256)
#: The same for verifying, without what PyJWT makes anew for each signature.
_ECDSA = ECDSA(SHA256())
_HEADER_MEMBERS = frozenset({"alg", "typ", "x5t#S256", "x5c", "iat"})
TILDE = b"~"
#: Latest moment that anything is signed at, the end of the year 2999: later ones leave the calendar (9999) when a lifetime is added.
LAST_SECOND = 32_503_679_999
#: Longest header, in base64. Room for six certificates; what is kept of headers before anything is verified stays small.
_MAX_HEADER_BYTES = 32_768


@dataclass(frozen=True, slots=True)
class Header:
    kind: str
    thumbprint: str
    #: DER certificates, leaf first; empty where the header has the thumbprint alone.
    chain: tuple[bytes, ...]
    #: When it was signed, in seconds; only statements and messages on topics say so here.
    issued: int | None = None


@dataclass(frozen=True, slots=True)
class Unverified:
    """A signed message in its parts. Its payload is not to be believed before `verify`."""

    header: Header
    signed: bytes
    signature: bytes
    payload_segment: bytes
    tail: bytes | None


def digest(content: bytes) -> str:
    """SHA-256 as messages write it."""
    return encode_segment(hashlib.sha256(content).digest())


def sign(
    kind: str,
    payload: Mapping[str, Any],
    key: EllipticCurvePrivateKey,
    *,
    chain: Sequence[bytes],
    with_chain: bool = False,
    tail: bytes | None = None,
    issued: int | None = None,
) -> bytes:
    """The payload as a signed message. `chain` is the signer's; all of it goes along only for those who may not know it."""
    segment = _header_segment(kind, tuple(chain) if with_chain else (chain[0],), with_chain, issued)
    claims = payload if tail is None else {**payload, "tail": digest(tail)}
    signed = segment + b"." + encode_segment(jsontext.canonical(claims)).encode()
    token = signed + b"." + encode_segment(_ES256.sign(signed, key)).encode()
    return token if tail is None else token + TILDE + tail


def split(message: bytes, *, max_bytes: int = jsontext.MAX_MESSAGE_BYTES) -> Unverified:
    """Take a signed message apart without believing any of it, or MalformedMessage. A larger limit is the tail's alone."""
    if len(message) > max_bytes:
        raise MalformedMessage(f"message of {len(message)} bytes is over the limit of {max_bytes}", received=message)
    token, tilde, tail = message.partition(TILDE)
    if len(token) > jsontext.MAX_MESSAGE_BYTES:
        raise MalformedMessage(
            f"signed part of {len(token)} bytes is over the limit of {jsontext.MAX_MESSAGE_BYTES}", received=message
        )
    segments = token.split(b".")
    if len(segments) != 3:
        raise MalformedMessage("not a signed message", received=message)
    return Unverified(
        header=read_header(segments[0]),
        signed=token[: len(segments[0]) + 1 + len(segments[1])],
        signature=decode_segment(segments[2]),
        payload_segment=segments[1],
        tail=tail if tilde else None,
    )


def verify(message: Unverified, key: EllipticCurvePublicKey) -> dict[str, Any]:
    """The payload, once the signature over the received bytes holds and the tail is the one that was signed."""
    if not _holds(message.signed, message.signature, key):
        raise TrustError("the signature does not hold")
    payload = parse_payload(message)
    named = payload.get("tail")
    found = digest(message.tail) if message.tail is not None else None
    if named != found:
        raise TrustError("what follows the signed message is not what was signed")
    return payload


#: Digests of what was signed with the signature, and whose key it was, for signatures that held. A node checks a request when it admits
#: it and again when it applies it; the answer for the same bytes and the same key is the same.
_held: OrderedDict[bytes, EllipticCurvePublicKey] = OrderedDict()
_most_held = 4096
#: r and s of P-256.
_SIGNATURE_BYTES = 64


def _holds(signed: bytes, signature: bytes, key: EllipticCurvePublicKey) -> bool:
    # Of one length, so that signature and signed bytes have one boundary: a shorter signature over longer bytes is another message, and a
    # node that remembered the one would have believed the other.
    if len(signature) != _SIGNATURE_BYTES:
        return False
    if not _most_held:
        return _check(signed, signature, key)
    content = hashlib.sha256(signature + signed).digest()
    if _held.get(content) is key:
        return True
    if not _check(signed, signature, key):
        return False
    _held[content] = key
    if len(_held) > _most_held:
        with contextlib.suppress(KeyError):
            _held.popitem(last=False)
    return True


def _check(signed: bytes, signature: bytes, key: EllipticCurvePublicKey) -> bool:
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    try:
        key.verify(encode_dss_signature(r, s), signed, _ECDSA)
    except InvalidSignature:
        return False
    return True


def remember(most: int) -> None:
    """How many signatures that held this process remembers. One that meets each message once, as an index's, remembers none: it would cost more than it saves."""
    global _most_held
    _most_held = most
    _held.clear()


def parse_payload(message: Unverified) -> dict[str, Any]:
    """What the payload claims, not to be believed: to find out whose key to verify it with."""
    payload = jsontext.parse(decode_segment(message.payload_segment))
    if not isinstance(payload, dict):
        raise MalformedMessage("the signed payload is not an object")
    return payload


#: Headers with a thumbprint alone have some 130 bytes: of these more are kept than of those with chains.
_SMALL_HEADER_BYTES = 256


def read_header(segment: bytes) -> Header:
    """The checked header. Cached: a signer's header is the same on everything of one kind that it signs."""
    return _small_header(segment) if len(segment) <= _SMALL_HEADER_BYTES else _large_header(segment)


def _read_header(segment: bytes) -> Header:
    if len(segment) > _MAX_HEADER_BYTES:
        raise MalformedMessage(f"header of {len(segment)} bytes is over the limit of {_MAX_HEADER_BYTES}", received=segment)
    header = jsontext.parse(decode_segment(segment))
    if not isinstance(header, dict):
        raise MalformedMessage("the header is not an object")
    if header.get("alg") != "ES256":
        raise TrustError(f"algorithm {str(header.get('alg'))[:20]!r} is refused; every message is signed with ES256")
    if foreign := sorted(header.keys() - _HEADER_MEMBERS):
        raise TrustError(f"header member {foreign[0][:20]!r} is refused; keys are never taken from a header")
    typ = header.get("typ")
    if not isinstance(typ, str) or not (typ.startswith("tdn-") and typ.endswith("+jwt")):
        raise MalformedMessage("the header names no kind of ours")
    kind = typ[4:-4]
    issued = header.get("iat")
    if issued is not None and (not isinstance(issued, int) or isinstance(issued, bool) or not 0 <= issued <= LAST_SECOND):
        raise MalformedMessage("the header's time is malformed")
    if "x5c" in header:
        chain = header["x5c"]
        if (
            "x5t#S256" in header
            or not isinstance(chain, list)
            or not 1 <= len(chain) <= 6
            or not all(isinstance(der, str) for der in chain)
        ):
            raise MalformedMessage("the header's certificate chain is malformed")
        return Header(kind, *_read_chain(tuple(chain)), issued)
    thumbprint = header.get("x5t#S256")
    if not isinstance(thumbprint, str) or len(thumbprint) != 43:
        raise MalformedMessage("the header names no certificate")
    return Header(kind, thumbprint, (), issued)


@lru_cache(maxsize=256)
def _read_chain(chain: tuple[str, ...]) -> tuple[str, tuple[bytes, ...]]:
    """The thumbprint of a chain's first certificate, and all of them. A signer's headers differ from second to second, its chain does not."""
    try:
        ders = tuple(base64.b64decode(der, validate=True) for der in chain)
    except (binascii.Error, ValueError) as error:
        raise MalformedMessage("the header's certificate chain is not base64") from error
    return digest(ders[0]), ders


#: A signer's headers of one kind differ from second to second: what is seen again is seen soon, or has a chain.
_small_header = lru_cache(maxsize=4096)(_read_header)
_large_header = lru_cache(maxsize=1024)(_read_header)


@lru_cache(maxsize=256)
def _header_segment(kind: str, chain: tuple[bytes, ...], with_chain: bool, issued: int | None) -> bytes:
    header: dict[str, Any] = {"alg": "ES256", "typ": f"tdn-{kind}+jwt"}
    if issued is not None:
        header["iat"] = issued
    if with_chain:
        header["x5c"] = [base64.b64encode(der).decode() for der in chain]
    else:
        header["x5t#S256"] = digest(chain[0])
    return encode_segment(jsontext.canonical(header)).encode()


_TO_URL = bytes.maketrans(b"+/", b"-_")
#: The two letters of ordinary base64 become one that is none.
_FROM_URL = bytes.maketrans(b"-_+/", b"+/!!")


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
#: What a segment may end with, by how many bytes of its last group are there: all six bits of a character are used, or two, or four.
_LAST = (frozenset(_ALPHABET), frozenset(_ALPHABET[::16]), frozenset(_ALPHABET[::4]))


def encode_segment(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).translate(_TO_URL).rstrip(b"=").decode()


def decode_segment(segment: bytes) -> bytes:
    """base64url without padding, strictly: one text for one value, so that a signed message has no second spelling."""
    try:
        content = binascii.a2b_base64(segment.translate(_FROM_URL) + b"=" * (-len(segment) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedMessage("not base64url", received=segment) from error
    # Padding can stand at the end alone, and only the unused bits of the last character can differ: of all its spellings one has none of them set.
    if segment and segment[-1] not in _LAST[len(content) % 3]:
        raise MalformedMessage("base64url with a second spelling", received=segment)
    return content
