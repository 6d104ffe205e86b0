"""Messages on topics: as they are, signed by their publisher, or signed and encrypted for those who may read them.

What is signed names its network, topic, id, publisher, moment and content type, and carries the publisher's chain: anybody who has the
roots can verify it, also after days in a queue. What is encrypted is always signed inside, and the signature names the readers too: no
reader can pass it on as if it had been meant for others, or for everybody.

Encryption hides the content and nothing else. Its length, its topic and the number of readers show. Each reader finds its key by a tag,
made from the hash of its public key and the message's id. So one message's tags say nothing about those of another; but whoever knows
an entity's key hash, which is in its name and so no secret, can tell whether a message is for it: the broker, and other subscribers.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tdn.errors import MalformedMessage, TrustError, UsageError
from tdn.protocol import schemas
from tdn.protocol.names import Name
from tdn.protocol.times import format_time, from_epoch, parse_time, whole_seconds
from tdn.trust import signing
from tdn.trust.certificates import key_hash
from tdn.trust.credentials import Credentials
from tdn.trust.replay import CLOCK_SKEW
from tdn.trust.statements import IdentifyAt

KIND = "message"
#: AMQP content types of the two forms that are ours. Anything else is a body as it is.
SIGNED = "application/tdn-signed"
ENCRYPTED = "application/tdn-encrypted"
#: Content types that publishers use where they say nothing else.
BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"

#: Longest message in any form: what the broker takes (`max_message_size`). Bounds memory before anything is verified.
MAX_BYTES = 16_777_216
#: Most readers of one encrypted message. Each costs its publisher 0.1 ms and every message 121 bytes.
MOST_READERS = 1000

#: First bytes of an encrypted message: a version, and nothing that a signed one could begin with.
MAGIC = b"\x00tdnm1"

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_COUNT_BYTES = 2
#: Two of 1,000 readers share a tag in one of 10^13 messages, and then one of them cannot read it. Nobody can bring that about: the tag
#: depends on an id that is chosen later than the key.
_TAG_BYTES = 8
#: Encapsulated key, content key and tag of HPKE.
_WRAPPED_BYTES = 65 + 32 + 16
_SLOT_BYTES = _TAG_BYTES + _WRAPPED_BYTES
_NONCE_BYTES = 12
_GCM_TAG_BYTES = 16

_RESERVED = "application/tdn-"
_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_CONTENT_TYPE = re.compile(r"[!-~]+( [!-~]+)*")
_MAX_CONTENT_TYPE = 128


@dataclass(frozen=True, slots=True)
class Read:
    """A message as its reader may use it. Where it is not signed, only the broker vouches for who published it."""

    body: bytes = field(repr=False)
    content_type: str
    #: Who signed it, verified; None where nobody did.
    publisher: Name | None
    at: datetime | None
    signed: bool
    encrypted: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a message belongs. A copy that is found anywhere else does not hold."""

    network: str
    topic: str
    message_id: str

    def context(self) -> bytes:
        # A wild id could be made to read like another message's context, or not be text at all.
        if _ID.fullmatch(self.message_id) is None:
            raise MalformedMessage("an encrypted message has an id of 8 to 64 letters, digits, '-' and '_'")
        return f"tdn/v1 message {self.message_id} on {self.topic} in {self.network}".encode()


def write(
    body: bytes,
    content_type: str,
    *,
    sender: Credentials | None,
    readers: Sequence[EllipticCurvePublicKey] | None,
    topic: str,
    network: str,
    message_id: str,
    now: datetime,
) -> tuple[bytes, str]:
    """The AMQP body and content type: as it is without `sender`, signed with it, and encrypted if there are `readers` as well."""
    _check_content_type(content_type)
    place = _Place(network, topic, message_id)
    if sender is None:
        if readers is not None:
            raise UsageError("an encrypted message is signed as well; say who signs it")
        return _fitting(body), content_type
    if readers is None:
        return _fitting(_sign(body, content_type, sender, place, now, None)), SIGNED
    tags = _require_readers(readers, place.context())
    token = _sign(body, content_type, sender, place, now, _digest_of(sorted(tags)))
    return _encrypt(token, tags, place), ENCRYPTED


def read(
    body: bytes,
    content_type: str,
    *,
    key: EllipticCurvePrivateKey,
    identify: IdentifyAt,
    topic: str,
    network: str,
    message_id: str,
    now: datetime,
) -> Read:
    """A message that was found on a topic under an id, or TrustError or MalformedMessage. There is no oldest moment: it may have waited."""
    if len(body) > MAX_BYTES:
        raise MalformedMessage(f"message of {len(body)} bytes is over the limit of {MAX_BYTES}", received=body)
    place = _Place(network, topic, message_id)
    if content_type == SIGNED:
        return _verified(body, place, identify, now, None)
    if content_type == ENCRYPTED:
        token, tags = _decrypt(body, key, place)
        return _verified(token, place, identify, now, tags)
    if content_type.lower().startswith(_RESERVED):
        raise MalformedMessage(f"content type {content_type[:60]!r} is unknown; it may be of a newer version")
    return Read(body, content_type, None, None, signed=False, encrypted=False)


def encrypt(content: bytes, *, readers: Sequence[EllipticCurvePublicKey], topic: str, network: str, message_id: str) -> bytes:
    """Content under a fresh key, and that key for each reader. `write` puts the signed form inside; `read` accepts nothing else."""
    place = _Place(network, topic, message_id)
    return _encrypt(content, _require_readers(readers, place.context()), place)


def decrypt(message: bytes, *, key: EllipticCurvePrivateKey, topic: str, network: str, message_id: str) -> bytes:
    """What was encrypted for this key at this place. Says nothing about who wrote it."""
    return _decrypt(message, key, _Place(network, topic, message_id))[0]


def _sign(body: bytes, content_type: str, sender: Credentials, place: _Place, now: datetime, readers: str | None) -> bytes:
    at = now.astimezone(UTC)
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    claims: dict[str, Any] = {
        "v": schemas.VERSION,
        "network": place.network,
        "topic": place.topic,
        "id": place.message_id,
        "publisher": str(sender.identity.name),
        "at": format_time(at),
        "content_type": content_type,
    }
    if readers is not None:
        claims["readers"] = readers
    # We send nothing that we would refuse.
    schemas.check(KIND, {**claims, "tail": signing.digest(body)})
    sender.identity.require_valid_at(at)
    return signing.sign(
        KIND,
        claims,
        sender.key,
        chain=sender.identity.chain,
        with_chain=True,
        tail=body,
        issued=int(at.timestamp()),
    )


def _verified(token: bytes, place: _Place, identify: IdentifyAt, now: datetime, tags: Sequence[bytes] | None) -> Read:
    message = signing.split(token, max_bytes=MAX_BYTES)
    if message.header.kind != KIND:
        raise MalformedMessage(f"{message.header.kind[:40]!r} is not a message on a topic")
    if message.header.issued is None:
        raise MalformedMessage("the message does not say when it was signed")
    issued = from_epoch(message.header.issued)
    signer = identify(message.header, issued)
    claims = signing.verify(message, signer.public_key)
    if claims.get("v") != schemas.VERSION:
        raise MalformedMessage(
            f"schema version {str(claims.get('v'))[:20]} is unknown; this side speaks version {schemas.VERSION}"
        )
    schemas.check(KIND, claims)
    if claims["publisher"] != str(signer.name):
        raise TrustError("the message names another publisher than its signature")
    if _Place(claims["network"], claims["topic"], claims["id"]) != place:
        raise TrustError("the message was published under another id, on another topic or in another network")
    at = _moment(claims["at"])
    if whole_seconds(at) != issued:
        raise TrustError("the message names another moment than its signature")
    signer.require_valid_at(at)
    if at > now + CLOCK_SKEW:
        raise TrustError("the message is dated in the future; compare the clocks")
    if claims.get("readers") != (None if tags is None else _digest_of(tags)):
        raise TrustError("the message was signed for other readers")
    # The schema has the tail's digest, and the signature held for it.
    assert message.tail is not None  # noqa: S101  # for mypy
    return Read(message.tail, claims["content_type"], signer.name, at, signed=True, encrypted=tags is not None)


def _encrypt(content: bytes, tags: dict[bytes, EllipticCurvePublicKey], place: _Place) -> bytes:
    context = place.context()
    size = len(MAGIC) + _COUNT_BYTES + len(tags) * _SLOT_BYTES + _NONCE_BYTES + len(content) + _GCM_TAG_BYTES
    # Before the keys are wrapped: for a thousand readers that takes 0.1 s.
    _require_size(size)
    key, nonce = AESGCM.generate_key(256), secrets.token_bytes(_NONCE_BYTES)
    # In the order of the tags: that in which the readers were given may tell something.
    slots = [tag + _SUITE.encrypt(key, tags[tag], info=context) for tag in sorted(tags)]
    head = MAGIC + len(slots).to_bytes(_COUNT_BYTES) + b"".join(slots)
    # All slots are bound in, so that nobody on the way takes a reader out.
    return head + nonce + AESGCM(key).encrypt(nonce, content, context + head)


def _decrypt(message: bytes, key: EllipticCurvePrivateKey, place: _Place) -> tuple[bytes, list[bytes]]:
    """What is inside, and the tags of all who can read it."""
    begin = len(MAGIC) + _COUNT_BYTES
    if not message.startswith(MAGIC) or len(message) < begin:
        raise MalformedMessage("not an encrypted message, or one of a newer version", received=message)
    count = int.from_bytes(message[len(MAGIC) : begin])
    end = begin + count * _SLOT_BYTES
    if not 1 <= count <= MOST_READERS or len(message) < end + _NONCE_BYTES + _GCM_TAG_BYTES:
        raise MalformedMessage(f"an encrypted message is cut off, or names {count} readers", received=message)
    tags = [message[start : start + _TAG_BYTES] for start in range(begin, end, _SLOT_BYTES)]
    # Each once: otherwise a thousand slots could have ours, and each would have to be tried.
    if any(one >= other for one, other in pairwise(tags)):
        raise MalformedMessage("the readers of an encrypted message are not in order", received=message)
    context = place.context()
    tag = _tag(key.public_key(), context)
    if tag not in tags:
        raise TrustError("the message is encrypted, and not for us")
    start = begin + tags.index(tag) * _SLOT_BYTES + _TAG_BYTES
    try:
        symmetric = _SUITE.decrypt(message[start : start + _WRAPPED_BYTES], key, info=context)
        nonce, content = message[end : end + _NONCE_BYTES], message[end + _NONCE_BYTES :]
        return AESGCM(symmetric).decrypt(nonce, content, context + message[:end]), tags
    except (InvalidTag, ValueError) as error:
        raise TrustError("the encrypted message was changed, or belongs elsewhere") from error


def _require_readers(readers: Sequence[EllipticCurvePublicKey], context: bytes) -> dict[bytes, EllipticCurvePublicKey]:
    """Each reader's key once, by its tag."""
    if not readers:
        raise UsageError("an encrypted message needs somebody who can read it")
    tags = {_tag(reader, context): reader for reader in readers}
    if len(tags) > MOST_READERS:
        raise UsageError(f"a message can be encrypted for at most {MOST_READERS} readers; there are {len(tags)}")
    return tags


def _tag(key: EllipticCurvePublicKey, context: bytes) -> bytes:
    return hashlib.sha256(context + b" " + key_hash(key).encode()).digest()[:_TAG_BYTES]


def _digest_of(tags: Sequence[bytes]) -> str:
    return signing.digest(b"".join(tags))


def _moment(text: str) -> datetime:
    try:
        return parse_time(text)
    except UsageError as error:
        raise MalformedMessage(f"{KIND}: at: {error.message}") from error


def _check_content_type(content_type: str) -> None:
    if len(content_type) > _MAX_CONTENT_TYPE or _CONTENT_TYPE.fullmatch(content_type) is None:
        raise UsageError(f"{content_type[:80]!r} is not a content type")
    if content_type.lower().startswith(_RESERVED):
        raise UsageError(
            f"content types that begin with {_RESERVED} say how a message is signed and encrypted; name that of the body"
        )


def _fitting(message: bytes) -> bytes:
    _require_size(len(message))
    return message


def _require_size(size: int) -> None:
    if size > MAX_BYTES:
        raise UsageError(f"the message would have {size} bytes; the broker takes {MAX_BYTES} at most")
