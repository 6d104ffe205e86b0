"""Builds the signed samples beside this file: most of them have one flaw, which their name tells.

    python tests/vectors/build.py

The messages are put together here by hand (json, base64, ECDSA), not by the code that must judge them, so that a mistake in our signing
cannot hide one in our verifying. Keys, serial numbers and signatures are derived from names (RFC 6979), so a second run gives the same
bytes, and the repository holds no private key. `vectors.json` says of each sample what it is and what must be said about it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tdn.protocol.names import Role
from tdn.trust.certificates import key_hash

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit" / "support"))

from pki import T0, YEAR, Authority, Pki, derive_key  # noqa: E402  # found by the line above

DAY = timedelta(days=1)
UUID = "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11"
OTHER_UUID = "b2d8a0c4-91f7-4e65-8f3a-0c7d1e92b6f8"
#: A topic that takes children, one child of it, a collection and its change topic.
ROOT_UUID = "0d1f6a3e-5b7c-4f12-8a90-6c2e4b8d7f01"
CHILD_UUID = "1e2a7b4f-6c8d-4a23-9ba1-7d3f5c9e8a12"
COLLECTION_UUID = "2f3b8c5a-7d9e-4b34-8cb2-8e4a6daf9b23"
CHANGES_UUID = "4a4c9d6b-8eaf-4c45-9dc3-9f5b7eb0ac34"
NOW = int(T0.timestamp())

#: Certificates that samples stay valid with: what is signed at T0 can be verified for as long as anyone has the roots.
PKI = Pki("vectors", not_before=T0 - YEAR, not_after=T0 + 100 * YEAR)
STRANGERS = Pki("strangers", not_before=T0 - YEAR, not_after=T0 + 100 * YEAR)
NODE = PKI.leaf(Role.NODE, "n1", institution="Example", not_after=T0 + YEAR)
NODE_2 = PKI.leaf(Role.NODE, "n2", institution="Example", not_after=T0 + YEAR)
ALICE = PKI.leaf(Role.ENTITY, "alice", institution="Example", not_after=T0 + YEAR)
BOB = PKI.leaf(Role.ENTITY, "bob", institution="Elsewhere", not_after=T0 + YEAR)
#: Has a certificate of the network, and has never said hello.
CAROL = PKI.leaf(Role.ENTITY, "carol", institution="Example", not_after=T0 + YEAR)
OPERATOR = PKI.leaf(Role.OPERATOR, "operator", not_after=T0 + 10 * YEAR)


# --- messages by hand ---------------------------------------------------------------------------------------------------------------


def b64url(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def digest(content: bytes) -> str:
    return b64url(hashlib.sha256(content).digest()).decode()


def text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def es256(content: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    return r.to_bytes(32) + s.to_bytes(32)


def token(header: Any, payload: Any, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A signed message. Bytes are taken as they are; anything else becomes JSON."""
    parts = [part if isinstance(part, bytes) else text(part) for part in (header, payload)]
    signed = b".".join(b64url(part) for part in parts)
    return signed + b"." + b64url(es256(signed, key))


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")


def _expand(suite: bytes, key: bytes, label: bytes, context: bytes, length: int) -> bytes:
    # Never more than one block of HKDF is asked for here.
    told = length.to_bytes(2) + b"HPKE-v1" + suite + label + context
    return hmac.digest(key, told + b"\x01", "sha256")[:length]


def hpke(content: bytes, receiver: ec.EllipticCurvePublicKey, info: bytes, seed: str) -> bytes:
    """RFC 9180 in base mode, P-256, HKDF-SHA256 and AES-256-GCM, step by step. The fresh key comes from a name, so the bytes do too."""
    ephemeral = derive_key(f"vectors hpke {seed}")
    encoding = (serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    enc, to = ephemeral.public_key().public_bytes(*encoding), receiver.public_bytes(*encoding)
    kem, suite = b"KEM\x00\x10", b"HPKE\x00\x10\x00\x01\x00\x02"
    shared = _expand(kem, _extract(kem, b"", b"eae_prk", ephemeral.exchange(ec.ECDH(), receiver)), b"shared_secret", enc + to, 32)
    context = b"\x00" + _extract(suite, b"", b"psk_id_hash", b"") + _extract(suite, b"", b"info_hash", info)
    secret = _extract(suite, shared, b"secret", b"")
    key, nonce = _expand(suite, secret, b"key", context, 32), _expand(suite, secret, b"base_nonce", context, 12)
    return enc + AESGCM(key).encrypt(nonce, content, b"")


def statement_header(signer: Authority, kind: str = "advertisement", at: int = NOW, **changes: Any) -> dict[str, Any]:
    header = {"alg": "ES256", "typ": f"tdn-{kind}+jwt", "iat": at, "x5c": [b64(der) for der in signer.chain], **changes}
    return {name: value for name, value in header.items() if value is not None}


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- the network's log --------------------------------------------------------------------------------------------------------------


def name_of(who: Authority, role: str, identifier: str) -> str:
    return f"tdn:{role}:{identifier}:{key_hash(who.key.public_key())}"


def envelope(
    kind: str,
    body: Any,
    sender: Authority,
    *,
    iss: str,
    aud: str,
    jti: str,
    iat: int = NOW,
    life: int = 60,
    tail: bytes | None = None,
    with_chain: bool = False,
    claims: dict[str, Any] | None = None,
    header: dict[str, Any] | None = None,
) -> bytes:
    head: dict[str, Any] = {"alg": "ES256", "typ": f"tdn-{kind}+jwt"}
    if with_chain:
        head["x5c"] = [b64(der) for der in sender.chain]
    else:
        head["x5t#S256"] = digest(sender.chain[0])
    head |= header or {}
    content = {"v": 1, "iss": iss, "aud": aud, "iat": iat, "exp": iat + life, "jti": jti, "body": body}
    if tail is not None:
        content["tail"] = digest(tail)
    signed = token(head, {**content, **(claims or {})}, sender.key)
    return signed if tail is None else signed + b"~" + tail


OPERATOR_NAME = name_of(OPERATOR, "operator", "operator")
GENESIS = envelope(
    "genesis",
    {
        "operator": [b64(der) for der in OPERATOR.chain],
        "roots": [b64(PKI.root.chain[0])],
        "rules": 5,
        "created": rfc3339(T0),
        "salt": "5e" * 16,
    },
    OPERATOR,
    iss=OPERATOR_NAME,
    aud="tdn:nodes",
    jti="genesis-of-vectors",
    life=86400,
)
NETWORK = hashlib.sha256(GENESIS).hexdigest()
TO_NETWORK = f"tdn:network:{NETWORK}"


def record(
    kind: str, request: bytes | None, node: Authority = NODE, node_id: str = "n1", minted: dict[str, str] | None = None
) -> bytes:
    payload: dict[str, Any] = {"v": 1, "kind": kind, "node": node_id, "at": rfc3339(T0)}
    if minted is not None:
        payload["minted"] = minted
    if request is not None:
        payload["tail"] = digest(request)
    header = {"alg": "ES256", "typ": "tdn-record+jwt", "x5t#S256": digest(node.chain[0])}
    signed = token(header, payload, node.key)
    return signed if request is None else signed + b"~" + request


def by_operator(kind: str, body: Any, jti: str) -> bytes:
    return envelope(kind, body, OPERATOR, iss=OPERATOR_NAME, aud=TO_NETWORK, jti=jti, life=86400)


def hello(who: Authority, identifier: str) -> bytes:
    return envelope(
        "hello", {}, who, iss=name_of(who, "entity", identifier), aud=TO_NETWORK, jti=f"hello-{identifier}", with_chain=True
    )


# --- what is hidden, and what is sealed ---------------------------------------------------------------------------------------------


def opening_of(value: dict[str, Any], salt: str = "c2FsdC1vZi10aGUtdmVjdG9ycw") -> dict[str, Any]:
    """A claim with its salt, as the creator is told it."""
    return {"access": {"salt": salt, "value": value}}


def conceal(claims: dict[str, Any], seed: str) -> dict[str, Any]:
    """Several claims, with salts that are made from one seed."""
    return {name: {"salt": digest(f"{seed} {name}".encode())[:22], "value": value} for name, value in claims.items()}


def closed(opening: dict[str, Any], *names: str) -> dict[str, Any]:
    """The opening with some claims kept closed: their digests alone."""
    digests = {name: {"digest": digest(text([claim["salt"], name, claim["value"]]))} for name, claim in opening.items()}
    return {name: digests[name] if name in names else claim for name, claim in opening.items()}


def hidden(opening: dict[str, Any]) -> str:
    """The digest over one digest per claim."""
    claims = {name: claim["digest"] for name, claim in closed(opening, *opening).items()}
    return digest(text(claims))


#: No lists, which is hidden like any others; lists with a name of each kind; and another choice.
OPENING = opening_of({})
LISTS = {"discover_allow": ["*", "bob", "institution:Zürich West"], "discover_deny": ["carol", "institution:Elsewhere"]}
LISTED = opening_of(LISTS)

SEED = "c2VlZC1vZi1hbGwtdmVjdG"
ROOT_HOSTING = {"allow_children": True, "max_depth": 3, "max_width": 1}
ROOTED = conceal({"access": {}, "hosting": ROOT_HOSTING}, SEED)
#: A child as it is registered below; the same that says that it is somebody else's; and the same without its lists.
CHILD_CLAIMS = {"access": {"discover_deny": ["carol"]}, "hosting": {"allow_children": False}, "parent": ROOT_UUID}
CHILD_OPENING = conceal(CHILD_CLAIMS, SEED)
CHILD_OF_OTHER = conceal({**CHILD_CLAIMS, "parent": OTHER_UUID}, SEED)
CHILD_FOR_ALL = conceal({**CHILD_CLAIMS, "access": {}}, SEED)
GATHERING = {
    "fixed": False,
    "limits": {"breadth": 2, "depth": 0, "topics": 10},
    "child_collections": True,
    "inclusion": False,
}
COLLECTION_CLAIMS = {
    "access": {"watch_allow": ["bob"]},
    "gathering": {**GATHERING, "notifications": CHANGES_UUID},
    "members": [ROOT_UUID],
}
GATHERED = conceal(COLLECTION_CLAIMS, SEED)


def sealed(inside: Any, readers: Sequence[Authority], *, slots: int = 4, creator: str = "alice") -> dict[str, Any]:
    """A sealed descriptor: content under a symmetric key, the key encrypted to each reader and, for the rest, to nobody."""
    context = f"tdn/v1 sealed topic of {creator} in {NETWORK}".encode()
    key, nonce = hashlib.sha256(b"vectors symmetric key").digest(), b"nonce of one"
    content = nonce + AESGCM(key).encrypt(nonce, text(inside).ljust(256), context)
    to = [reader.key.public_key() for reader in readers]
    to += [derive_key(f"vectors nobody {number}").public_key() for number in range(slots - len(to))]
    keys = [hpke(key if number < len(readers) else bytes(32), who, context, f"slot {number}") for number, who in enumerate(to)]
    # Not in the order of the readers, as a shuffle would have it.
    return {"kind": "sealed", "content": b64url(content).decode(), "keys": [b64url(slot).decode() for slot in reversed(keys)]}


SECRET = {"kind": "text", "text": "Reactor 4 is behind schedule", "keywords": ["secret"]}


def sealed_message(
    content: bytes, to: Authority, seed: str, *, size: int = 4096, length: int | None = None, magic: bytes = b"\x00tdn2"
) -> bytes:
    """A message as it goes over the wire to one receiver: its length, itself and zeros up to a step, encrypted."""
    padded = ((len(content) if length is None else length).to_bytes(4) + content).ljust(size, b"\0")
    return magic + hpke(padded, to.key.public_key(), b"tdn/v1 sealed message", seed)


# --- statements ---------------------------------------------------------------------------------------------------------------------


def advertisement(**changes: Any) -> dict[str, Any]:
    payload = {
        "v": 1,
        "kind": "topic",
        "uuid": UUID,
        "network": NETWORK,
        "creator": "alice",
        "creator_key": key_hash(ALICE.key.public_key()),
        "institution": "Example",
        "created": rfc3339(T0),
        "expires": rfc3339(T0 + DAY),
        "lifetime_seconds": 86400,
        "descriptor": {"kind": "path", "path": "weather/europe/Zürich"},
        "synopsis": {"type": "string", "placeholder": "{uuid}", "value": UUID},
        "node": "n1",
        "hidden": hidden(OPENING),
        **changes,
    }
    return {name: value for name, value in payload.items() if value is not None}


def advert(signer: Authority = NODE, header: dict[str, Any] | None = None, **changes: Any) -> bytes:
    return token(statement_header(signer, **(header or {})), advertisement(**changes), signer.key)


def synopsis(kind: str, placeholder: str) -> dict[str, Any]:
    return {"type": kind, "placeholder": placeholder, "value": placeholder.replace("{uuid}", UUID)}


VALID = advert()
LISTED_ADVERT = advert(
    uuid=OTHER_UUID, synopsis={"type": "string", "placeholder": "{uuid}", "value": OTHER_UUID}, hidden=hidden(LISTED)
)


def about(uuid: str, opening: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What the advertisement of another UUID than the usual has."""
    return {"uuid": uuid, "synopsis": {**synopsis("string", "{uuid}"), "value": uuid}, "hidden": hidden(opening), **changes}


ROOT_ADVERT = advert(**about(ROOT_UUID, ROOTED))
CHILD_ADVERT = advert(**about(CHILD_UUID, CHILD_OPENING))
COLLECTION_ADVERT = advert(**about(COLLECTION_UUID, GATHERED, kind="collection"))
RECEIPT = {
    "v": 1,
    "network": NETWORK,
    "kind": "advertise",
    "principal": "entity:alice",
    "request": "advertise-ok",
    "seq": 7,
    "head": "ab" * 32,
    "at": rfc3339(T0),
    "uuid": UUID,
    "digest": digest(VALID.split(b".")[1]),
    "expires": rfc3339(T0 + DAY),
}
STATUS = {
    "v": 1,
    "network": NETWORK,
    "uuid": UUID,
    "owner": "alice",
    "expires": rfc3339(T0 + 2 * DAY),
    "state": "live",
    "seq": 9,
    "at": rfc3339(T0),
}
NOTIFICATION = {
    "v": 1,
    "network": NETWORK,
    "subject": COLLECTION_UUID,
    "watcher": "bob",
    "version": 1,
    "change": "added",
    "uuid": CHILD_UUID,
    "kind": "topic",
    "in": COLLECTION_UUID,
    "seq": 35,
    "at": rfc3339(T0),
}


def statement(kind: str, payload: Any, signer: Authority = NODE, **header: Any) -> bytes:
    return token(statement_header(signer, kind, **header), payload, signer.key)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def hs256_with_public_key() -> bytes:
    """The classic confusion: a verifier that lets the header choose takes the public key for an HMAC secret."""
    header = statement_header(NODE, alg="HS256")
    signed = b64url(text(header)) + b"." + b64url(text(advertisement()))
    return signed + b"." + b64url(hmac.digest(public_pem(NODE.key), signed, "sha256"))


def jwk(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    return {
        "kty": "EC",
        "crv": "P-256",
        "x": b64url(numbers.x.to_bytes(32)).decode(),
        "y": b64url(numbers.y.to_bytes(32)).decode(),
    }


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def last_bit_flipped(message: bytes) -> bytes:
    """The same signature in a second spelling: 64 bytes leave four bits of the last character unused."""
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    place = alphabet.index(message[-1])
    return message[:-1] + alphabet[place ^ 1 : (place ^ 1) + 1]


# --- requests -----------------------------------------------------------------------------------------------------------------------

ALICE_NAME = name_of(ALICE, "entity", "alice")


def create_body(**changes: Any) -> dict[str, Any]:
    return {
        "creator": "alice",
        "institution": "Example",
        "lifetime_seconds": 86400,
        "descriptor": {"kind": "path", "path": "weather/europe"},
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
        **changes,
    }


def create(jti: str, body: Any = None, **choices: Any) -> bytes:
    return envelope(
        "create",
        create_body() if body is None else body,
        choices.pop("sender", ALICE),
        iss=choices.pop("iss", ALICE_NAME),
        aud=choices.pop("aud", "node:n1"),
        jti=jti,
        **choices,
    )


def change(kind: str, body: Any, jti: str, **choices: Any) -> bytes:
    return envelope(
        kind,
        body,
        choices.pop("sender", ALICE),
        iss=choices.pop("iss", ALICE_NAME),
        aud=choices.pop("aud", TO_NETWORK),
        jti=jti,
        life=choices.pop("life", 86400),
        **choices,
    )


def relabelled(message: bytes, kind: str) -> bytes:
    """Another kind in the header, the signature left as it was."""
    header, payload, signature = message.split(b"~")[0].split(b".")
    claims = json.loads(base64.urlsafe_b64decode(header + b"=" * (-len(header) % 4)))
    return b".".join([b64url(text({**claims, "typ": f"tdn-{kind}+jwt"})), payload, signature])


Sample = tuple[bytes, dict[str, Any]]


def passes(content: bytes, what: str, through: str, **more: Any) -> Sample:
    return content, {"what": what, "through": through, "verdict": "accepted", **more}


def fails(content: bytes, what: str, through: str, error: str, fragment: str, **more: Any) -> Sample:
    return content, {"what": what, "through": through, "verdict": "refused", "error": error, "message": fragment, **more}


def advertisements() -> dict[str, Sample]:
    """What `statements.read_advertisement` must say, given roots.pem."""
    through = "advertisement"
    expired = PKI.leaf(Role.NODE, "n1", institution="Example", not_before=T0 - 30 * DAY, not_after=T0 - DAY, generation=2)
    too_early = PKI.leaf(Role.NODE, "n1", institution="Example", not_before=T0 + DAY, generation=3)
    forged = PKI.leaf(Role.NODE, "n1", issuer=PKI.entities, generation=4)
    lent = PKI.leaf(Role.NODE, "n1", generation=5, uris=[name_of(NODE, "node", "n1")])
    unmarked_use = PKI.leaf(Role.NODE, "n1", generation=6, usages=None)
    stranger = STRANGERS.leaf(Role.NODE, "n1", institution="Example")
    two_names = PKI.leaf(
        Role.NODE,
        "n1",
        generation=7,
        uris=[f"tdn:node:n1:{'0' * 64}", f"tdn:entity:alice:{'0' * 64}"],
    )
    sub_authority = Authority(ALICE.certificate, ALICE.key, ALICE.above)
    by_entity_leaf = PKI.leaf(Role.NODE, "n1", generation=8, issuer=sub_authority)
    guard = PKI.leaf(Role.GUARD, "n1")
    doubled = text(advertisement()).replace(b'{"created"', b'{"creator":"mallory","created"', 1)
    header, payload, signature = VALID.split(b".")
    middle = len(payload) // 2
    changed = payload[:middle] + (b"A" if payload[middle : middle + 1] != b"A" else b"B") + payload[middle + 1 :]
    return {
        "advert_path.jws": passes(VALID, "a path, synopsis the UUID alone", through),
        "advert_text.jws": passes(
            advert(
                descriptor={"kind": "text", "text": "Wetter in Zürich\nund Bern", "keywords": ["weather", "Straße"]},
                synopsis=synopsis("tags", "topic={uuid}, area=ch"),
            ),
            "text with keywords, synopsis of tags",
            through,
        ),
        "advert_properties.jws": passes(
            advert(
                descriptor={
                    "kind": "properties",
                    "properties": {"a": "x", "b": 42, "c": 1.5, "d": True, "e": "2027-01-31T12:00:00Z"},
                    "types": {"a": "string", "b": "integer", "c": "float", "d": "boolean", "e": "timestamp"},
                },
                synopsis=synopsis("properties", '{"topic": "{uuid}"}'),
            ),
            "properties of all five types, synopsis of properties",
            through,
        ),
        "advert_xml.jws": passes(
            advert(
                descriptor={"kind": "xml", "xml": "<weather><area>Zürich</area></weather>"},
                synopsis=synopsis("xml", '<topic uuid="{uuid}"/>'),
            ),
            "an XML document, synopsis in XML",
            through,
        ),
        "advert_with_lists.jws": passes(
            advert(hidden=hidden(LISTED)), "T18: lists, of which nothing shows but a digest", through, opening=LISTED, lists=LISTS
        ),
        "advert_sealed.jws": passes(
            advert(descriptor=sealed(SECRET, [ALICE, BOB])),
            "T9: sealed by alice for herself and bob",
            through,
            readers=["alice", "bob"],
            inside=SECRET,
        ),
        "advert_sealed_taken_by_other.jws": passes(
            advert(descriptor=sealed(SECRET, [ALICE, BOB]), creator="bob", creator_key=key_hash(BOB.key.public_key())),
            "T9: alice's sealed descriptor, copied into a topic of bob's: signed well, and opens for nobody",
            through,
            readers=[],
        ),
        "advert_sealed_nonsense.jws": passes(
            advert(descriptor=sealed({"kind": "poem"}, [ALICE])),
            "T9: something that is no descriptor is inside",
            through,
            readers=[],
        ),
        "advert_sealed_twice.jws": passes(
            advert(descriptor=sealed({"kind": "sealed", "content": "A" * 64, "keys": []}, [ALICE])),
            "T9: another sealed descriptor is inside",
            through,
            readers=[],
        ),
        "advert_child.jws": passes(
            CHILD_ADVERT, "T23: a child topic, of which nothing shows whose", through, opening=CHILD_OPENING, claims=CHILD_CLAIMS
        ),
        "advert_collection.jws": passes(
            COLLECTION_ADVERT,
            "T31: a collection with its options, its change topic and a first member",
            through,
            opening=GATHERED,
            claims=COLLECTION_CLAIMS,
        ),
        "advert_collection_to_others.jws": passes(
            COLLECTION_ADVERT,
            "T31: the same as somebody reads it who may know its options, and neither lists nor first members",
            through,
            opening=closed(GATHERED, "access", "members"),
            claims={"gathering": COLLECTION_CLAIMS["gathering"]},
        ),
        "advert_child_with_opening_of_other_parent.jws": fails(
            CHILD_ADVERT,
            "T23: the opening names another parent",
            through,
            "TrustError",
            "the opening does not belong to the advertisement",
            opening=CHILD_OF_OTHER,
        ),
        "advert_child_with_closed_parent_of_other.jws": fails(
            CHILD_ADVERT,
            "T23: the digest of another parent, and the rest as it was signed",
            through,
            "TrustError",
            "the opening does not belong to the advertisement",
            opening={**CHILD_OPENING, "parent": closed(CHILD_OF_OTHER, "parent")["parent"]},
        ),
        "advert_child_with_parent_left_out.jws": fails(
            CHILD_ADVERT,
            "T23: the opening makes a root of a child",
            through,
            "TrustError",
            "the opening does not belong to the advertisement",
            opening={name: claim for name, claim in CHILD_OPENING.items() if name != "parent"},
        ),
        "advert_collection_with_opening_of_other_options.jws": fails(
            COLLECTION_ADVERT,
            "T32: the opening promises more than was signed",
            through,
            "TrustError",
            "the opening does not belong to the advertisement",
            opening=conceal({**COLLECTION_CLAIMS, "gathering": {**COLLECTION_CLAIMS["gathering"], "inclusion": True}}, SEED),
        ),
        "advert_unknown_kind.jws": fails(
            advert(kind="hierarchy"), "neither a topic nor a collection", through, "MalformedMessage", "advertisement: kind"
        ),
        "advert_collection_with_change_topic_in_the_open.jws": fails(
            advert(**about(COLLECTION_UUID, GATHERED, kind="collection", notifications=CHANGES_UUID)),
            "T31: tells everybody where its changes are told",
            through,
            "MalformedMessage",
            "notifications",
        ),
        "advert_without_hidden.jws": fails(
            advert(hidden=None), "T18: does not say what it hides", through, "MalformedMessage", "hidden"
        ),
        "advert_hidden_not_a_digest.jws": fails(
            advert(hidden=LISTS), "T18: the lists themselves where their digest belongs", through, "MalformedMessage", "hidden"
        ),
        "advert_with_lists_in_the_open.jws": fails(
            advert(lists=LISTS), "T18: the lists beside their digest", through, "MalformedMessage", "lists"
        ),
        "advert_signed_by_entity.jws": fails(
            advert(ALICE), "T8: an entity signs its own advertisement", through, "TrustError", "which is not a node"
        ),
        "advert_signed_by_guard.jws": fails(
            advert(guard), "T8: a guard, enrolled as such, signs an advertisement", through, "TrustError", "which is not a node"
        ),
        "advert_unknown_ca.jws": fails(
            advert(stranger), "a node of somebody else's CA", through, "TrustError", "does not lead to a trusted root"
        ),
        "advert_expired_node.jws": fails(
            advert(expired),
            "signed after the node's certificate had ended",
            through,
            "TrustError",
            "the certificate expired at",
        ),
        "advert_node_not_yet_valid.jws": fails(
            advert(too_early),
            "signed before the node's certificate begins",
            through,
            "TrustError",
            "the certificate is not valid before",
        ),
        "advert_signed_by_node_from_entity_ca.jws": fails(
            advert(forged),
            "T8: the entities' intermediate writes a node's name into a leaf",
            through,
            "TrustError",
            "issued by an authority for other roles",
        ),
        "advert_certified_by_entity.jws": fails(
            advert(by_entity_leaf),
            "an entity's own certificate used as an authority",
            through,
            "TrustError",
            "does not lead to a trusted root",
        ),
        "advert_name_of_other_key.jws": fails(
            advert(lent), "a certificate that names another key than its own", through, "TrustError", "a key that is not its own"
        ),
        "advert_certificate_with_two_names.jws": fails(
            advert(two_names), "a certificate with a node's and an entity's name", through, "TrustError", "no single URI"
        ),
        "advert_certificate_without_usage.jws": fails(
            advert(unmarked_use),
            "a certificate that is not for client authentication",
            through,
            "TrustError",
            "does not lead to a trusted root",
        ),
        "advert_without_chain.jws": fails(
            token(
                {"alg": "ES256", "typ": "tdn-advertisement+jwt", "iat": NOW, "x5t#S256": digest(NODE.chain[0])},
                advertisement(),
                NODE.key,
            ),
            "the signer's thumbprint alone",
            through,
            "TrustError",
            "does not carry its certificate chain",
        ),
        "advert_without_intermediate.jws": fails(
            advert(header={"x5c": [b64(NODE.chain[0])]}),
            "the leaf without what leads to the root",
            through,
            "TrustError",
            "does not lead to a trusted root",
        ),
        "advert_chain_of_other_node.jws": fails(
            token(statement_header(NODE_2), advertisement(node="n2"), NODE.key),
            "another node's chain on our signature",
            through,
            "TrustError",
            "the signature does not hold",
        ),
        "advert_changed_byte.jws": fails(
            b".".join([header, changed, signature]),
            "one character of the payload changed",
            through,
            "TrustError",
            "the signature does not hold",
        ),
        "advert_alg_none.jws": fails(
            b64url(text(statement_header(NODE, alg="none"))) + b"." + payload + b".",
            "no signature, and says so",
            through,
            "TrustError",
            "algorithm 'none' is refused",
        ),
        "advert_alg_hs256_with_public_key.jws": fails(
            hs256_with_public_key(), "HMAC keyed with the public key", through, "TrustError", "algorithm 'HS256' is refused"
        ),
        "advert_key_in_header.jws": fails(
            token(statement_header(NODE, jwk=jwk(BOB.key)), advertisement(), BOB.key),
            "brings the key to verify with",
            through,
            "TrustError",
            "header member 'jwk' is refused",
        ),
        "advert_jku_header.jws": fails(
            advert(header={"jku": "https://keys.invalid/set.json"}),
            "names a place to fetch keys from",
            through,
            "TrustError",
            "header member 'jku' is refused",
        ),
        "advert_crit_header.jws": fails(
            advert(header={"crit": ["exp"]}),
            "a member that would have to be understood",
            through,
            "TrustError",
            "header member 'crit' is refused",
        ),
        "advert_second_base64_spelling.jws": fails(
            last_bit_flipped(VALID), "the same signature, spelt otherwise", through, "MalformedMessage", "second spelling"
        ),
        "advert_padded.jws": fails(VALID + b"==", "the same signature with padding", through, "MalformedMessage", "base64url"),
        "advert_duplicate_key.jws": fails(
            token(statement_header(NODE), doubled, NODE.key),
            "two creators, for two readers",
            through,
            "MalformedMessage",
            "key 'creator' stands twice",
        ),
        "advert_deep.jws": fails(
            token(statement_header(NODE), {"v": 1, "descriptor": nested(40)}, NODE.key),
            "nested beyond the limit",
            through,
            "MalformedMessage",
            "nested deeper than 32 levels",
        ),
        "advert_not_json.jws": fails(
            token(statement_header(NODE), b"topic, please", NODE.key),
            "a signed text that is not JSON",
            through,
            "MalformedMessage",
            "not JSON",
        ),
        "advert_not_an_object.jws": fails(
            token(statement_header(NODE), [1, 2], NODE.key), "a signed list", through, "MalformedMessage", "not an object"
        ),
        "advert_broken_utf8.jws": fails(
            token(statement_header(NODE), b'{"v":1,"uuid":"\xff"}', NODE.key),
            "bytes that are not UTF-8",
            through,
            "MalformedMessage",
            "not JSON",
        ),
        "advert_lone_surrogate.jws": fails(
            token(statement_header(NODE), b'{"v":"\\ud800"}', NODE.key),
            "half of a character",
            through,
            "MalformedMessage",
            "not Unicode",
        ),
        "advert_unknown_version.jws": fails(
            advert(v=2), "version 2 of the wire contract", through, "MalformedMessage", "schema version 2 is unknown"
        ),
        "advert_unknown_member.jws": fails(
            advert(parent=OTHER_UUID), "a member that version 1 does not have", through, "MalformedMessage", "advertisement"
        ),
        "advert_missing_member.jws": fails(
            advert(institution=None), "no institution", through, "MalformedMessage", "institution"
        ),
        "advert_uuid_version_1.jws": fails(
            advert(uuid="3f0c9b52-7a1e-1c83-9d41-5b8e6f207a11"),
            "T4: a UUID that is not random",
            through,
            "MalformedMessage",
            "advertisement: uuid",
        ),
        "advert_uuid_with_newline.jws": fails(
            advert(uuid=UUID + "\n"), "a newline after the UUID", through, "MalformedMessage", "advertisement: uuid"
        ),
        "advert_wrong_lifetime.jws": fails(
            advert(expires=rfc3339(T0 + 2 * DAY)),
            "expires later than its lifetime",
            through,
            "TrustError",
            "do not agree with its lifetime",
        ),
        "advert_wrong_synopsis.jws": fails(
            advert(synopsis={**synopsis("string", "{uuid}"), "value": OTHER_UUID}),
            "T3: the synopsis of another topic",
            through,
            "TrustError",
            "not its placeholder with its UUID",
        ),
        "advert_names_other_node.jws": fails(
            advert(node="n2"), "another node's id in the payload", through, "TrustError", "another node than its signature"
        ),
        "advert_signed_later.jws": fails(
            advert(header={"at": NOW + 60}),
            "created and signed at two moments",
            through,
            "TrustError",
            "another moment than its signature",
        ),
        "advert_without_time.jws": fails(
            advert(header={"iat": None}), "does not say when it was signed", through, "MalformedMessage", "when it was signed"
        ),
        "advert_time_beyond_calendar.jws": fails(
            advert(header={"at": 2**39}), "signed in the year 19391", through, "MalformedMessage", "time is malformed"
        ),
        "advert_impossible_date.jws": fails(
            advert(created="2027-02-30T00:00:00Z"), "the thirtieth of February", through, "MalformedMessage", "is not a time"
        ),
        "advert_with_tail.jws": fails(
            VALID + b"~more", "something after the signed message", through, "MalformedMessage", "followed by nothing"
        ),
        "advert_two_segments.jws": fails(
            b".".join([header, payload]), "the signature cut off", through, "MalformedMessage", "not a signed message"
        ),
        "advert_typ_missing.jws": fails(
            advert(header={"typ": None}), "no kind in the header", through, "MalformedMessage", "no kind of ours"
        ),
        "receipt_as_advert.jws": fails(
            statement("receipt", RECEIPT),
            "a receipt presented as an advertisement",
            through,
            "MalformedMessage",
            "a receipt is not",
        ),
        "status_as_advert.jws": fails(
            statement("advertisement", STATUS),
            "a status labelled as an advertisement",
            through,
            "MalformedMessage",
            "advertisement",
        ),
        "notification_as_advert.jws": fails(
            statement("notification", NOTIFICATION),
            "a notification presented as an advertisement",
            through,
            "MalformedMessage",
            "a notification is not",
        ),
        "request_as_advert.jws": fails(
            create("create-0001"), "a request presented as an advertisement", through, "MalformedMessage", "not a statement"
        ),
    }


def other_statements() -> dict[str, Sample]:
    """Receipts and statuses, beside the advertisement advert_path.jws: what `tdn verify` says."""
    through = "beside advert_path.jws"
    return {
        "receipt.jws": passes(statement("receipt", RECEIPT), "in the log", through),
        "status.jws": passes(statement("status", STATUS), "renewed", through),
        "status_of_other_topic.jws": fails(
            statement("status", {**STATUS, "uuid": OTHER_UUID}),
            "T39: the status of another topic",
            through,
            "MalformedMessage",
            "the status is about another advertisement",
        ),
        "receipt_of_other_topic.jws": fails(
            statement("receipt", {**RECEIPT, "uuid": OTHER_UUID}),
            "the receipt of another topic",
            through,
            "MalformedMessage",
            "the receipt is about another advertisement",
        ),
        "receipt_of_other_content.jws": fails(
            statement("receipt", {**RECEIPT, "digest": digest(b"other")}),
            "the same UUID with other content",
            through,
            "MalformedMessage",
            "the receipt is about another advertisement",
        ),
        "receipt_signed_by_entity.jws": fails(
            statement("receipt", RECEIPT, ALICE),
            "T8: an entity writes its own receipt",
            through,
            "TrustError",
            "which is not a node",
        ),
        "status_signed_by_entity.jws": fails(
            statement("status", STATUS, ALICE),
            "T8: an entity writes its own status",
            through,
            "TrustError",
            "which is not a node",
        ),
        "status_unknown_state.jws": fails(
            statement("status", {**STATUS, "state": "eternal"}),
            "a state that there is not",
            through,
            "MalformedMessage",
            "status",
        ),
    }


def notifications() -> dict[str, Sample]:
    """What bob's client must say to a notification of what he follows (T29, T35)."""
    through = "notification"

    def told(**changes: Any) -> bytes:
        payload = {**NOTIFICATION, **changes}
        return statement("notification", {name: value for name, value in payload.items() if value is not None})

    not_ours = ("TrustError", "the notification is not for us")
    return {
        "notification.jws": passes(told(), "T35: a topic came to a collection", through),
        "notification_of_an_end.jws": passes(
            told(**{"change": "withdrawn", "uuid": COLLECTION_UUID, "kind": "collection", "in": None, "version": 2}),
            "T29: what is followed has itself ended",
            through,
        ),
        "notification_signed_by_entity.jws": fails(
            statement("notification", NOTIFICATION, ALICE),
            "T8: an entity tells another what has changed",
            through,
            "TrustError",
            "which is not a node",
        ),
        "notification_signed_by_watcher.jws": fails(
            statement("notification", NOTIFICATION, BOB),
            "T8: an entity tells itself what has changed",
            through,
            "TrustError",
            "which is not a node",
        ),
        "notification_of_other_watcher.jws": fails(
            told(watcher="alice"), "T35: what alice was told, sent to bob", through, *not_ours
        ),
        "notification_of_other_network.jws": fails(told(network="0" * 64), "of another network", through, *not_ours),
        "notification_version_0.jws": fails(told(version=0), "T29: before the first", through, "MalformedMessage", "version"),
        "notification_without_version.jws": fails(
            told(version=None), "T29: not numbered, so nobody knows what is missing", through, "MalformedMessage", "version"
        ),
        "notification_to_everyone.jws": fails(
            told(watcher="*"), "T35: for no entity by name", through, "MalformedMessage", "watcher"
        ),
        "notification_unknown_change.jws": fails(
            told(change="sealed"), "a change that there is not", through, "MalformedMessage", "change"
        ),
        "notification_with_list.jws": fails(
            told(hidden_from=["carol"]), "T18: tells who may not see it", through, "MalformedMessage", "hidden_from"
        ),
        "receipt_as_notification.jws": fails(
            statement("receipt", RECEIPT), "a receipt presented as a notification", through, *not_ours
        ),
    }


def requests() -> dict[str, Sample]:
    """What node n1 must say to a request, in the network of log_*.jws, at T0."""
    asked = "create"
    changed = "change"
    advertised = change("advertise", {"uuid": UUID, "opening": OPENING}, "advertise-0001", tail=VALID)
    head, _, _ = advertised.partition(b"~")
    renewal = {"uuid": UUID, "lifetime_seconds": 3600}
    huge = text(create_body(descriptor={"kind": "properties", "properties": {"x": 0}, "types": {"x": "float"}}))

    spelt_otherwise = sealed(SECRET, [ALICE])
    spelt_otherwise["keys"][0] = last_bit_flipped(spelt_otherwise["keys"][0].encode()).decode()

    def listed(jti: str, lists: Any) -> bytes:
        return create(jti, create_body(lists=lists))

    def create_text(jti: str, body: bytes) -> bytes:
        """A create whose body is text that no JSON writer would give."""
        claims = text({"v": 1, "iss": ALICE_NAME, "aud": "node:n1", "iat": NOW, "exp": NOW + 60, "jti": jti, "body": None})
        header = {"alg": "ES256", "typ": "tdn-create+jwt", "x5t#S256": digest(ALICE.chain[0])}
        return token(header, claims.replace(b'"body":null', b'"body":' + body), ALICE.key)

    return {
        "create.jws": passes(create("create-0001"), "T1: a creation request", asked),
        "create_with_lists.jws": passes(listed("create-0026", LISTS), "T18: names who may discover it", asked),
        "create_sealed.jws": passes(
            create("create-0027", create_body(descriptor=sealed(SECRET, [ALICE, BOB]))), "T9: a sealed topic", asked
        ),
        "peer.jws": passes(
            envelope("peer", {"answers": True}, ALICE, iss=ALICE_NAME, aud="node:n1", jti="peer-0001"),
            "T17: a queue for the time without nodes",
            "question",
        ),
        "advertise.jws": passes(advertised, "T7: the creator advertises", changed),
        "renew.jws": passes(change("renew", renewal, "renew-0001"), "T39: the owner renews", changed),
        "withdraw.jws": passes(change("withdraw", {"uuid": UUID}, "withdraw-0001"), "T39: the owner withdraws", changed),
        "locate.jws": passes(
            envelope("locate", {}, ALICE, iss=ALICE_NAME, aud="tdn:nodes", jti="locate-0001"), "T12: to all nodes", "locate"
        ),
        "discover.jws": passes(
            envelope(
                "discover",
                {"language": "string", "query": "weather", "limit": 100},
                ALICE,
                iss=ALICE_NAME,
                aud="node:n1",
                jti="discover-0001",
            ),
            "T13: a question to one node",
            "question",
        ),
        "show.jws": passes(
            envelope("show", {"uuid": UUID}, ALICE, iss=ALICE_NAME, aud="node:n1", jti="show-0001"), "one topic", "question"
        ),
        "lookup.jws": passes(
            envelope("lookup", {"principal": "entity:bob"}, ALICE, iss=ALICE_NAME, aud="node:n1", jti="lookup-0001"),
            "somebody's certificate",
            "question",
        ),
        "hello_of_newcomer.jws": passes(hello(CAROL, "carol"), "first contact, with its chain", changed),
        "create_sealed_with_tags_synopsis.jws": fails(
            create(
                "create-0028",
                create_body(
                    descriptor=sealed(SECRET, [ALICE]), synopsis={"type": "tags", "placeholder": "topic={uuid}, about=reactor"}
                ),
            ),
            "T9: the synopsis tells what the descriptor hides",
            asked,
            "MalformedMessage",
            "the synopsis of a sealed topic is its UUID alone",
        ),
        "create_sealed_keys_not_power_of_two.jws": fails(
            create("create-0029", create_body(descriptor=sealed(SECRET, [ALICE, BOB], slots=5))),
            "T9: five keys, which tell how many can read it",
            asked,
            "MalformedMessage",
            "their number is a power of two",
        ),
        "create_sealed_three_keys.jws": fails(
            create("create-0030", create_body(descriptor=sealed(SECRET, [ALICE, BOB, CAROL], slots=3))),
            "T9: fewer keys than there must be",
            asked,
            "MalformedMessage",
            "descriptor.keys",
        ),
        "create_sealed_second_base64_spelling.jws": fails(
            create("create-0031", create_body(descriptor=spelt_otherwise)),
            "T9: a key in a second spelling",
            asked,
            "MalformedMessage",
            "the sealed content is not base64url",
        ),
        "create_list_names_nobody.jws": fails(
            listed("create-0032", {"discover_allow": ["Alice"]}),
            "T18: what is no id, institution or everyone",
            asked,
            "MalformedMessage",
            "lists.discover_allow.0",
        ),
        "create_list_empty.jws": fails(
            listed("create-0033", {"discover_allow": []}),
            "T18: an allow list without anybody",
            asked,
            "MalformedMessage",
            "lists.discover_allow",
        ),
        "create_list_twice.jws": fails(
            listed("create-0034", {"discover_deny": ["bob", "bob"]}),
            "T18: a name twice",
            asked,
            "MalformedMessage",
            "lists.discover_deny",
        ),
        "create_list_too_long.jws": fails(
            listed("create-0035", {"discover_deny": [f"e{number}" for number in range(501)]}),
            "T18: 501 names",
            asked,
            "MalformedMessage",
            "lists.discover_deny",
        ),
        "create_list_unknown.jws": fails(
            listed("create-0036", {"publish_allow": ["bob"]}),
            "a list that there is not",
            asked,
            "MalformedMessage",
            "publish_allow",
        ),
        "create_brings_opening.jws": fails(
            create("create-0037", create_body(opening=OPENING)),
            "T18: an opening with a salt that the creator chose",
            asked,
            "MalformedMessage",
            "opening",
        ),
        "advertise_without_opening.jws": fails(
            change("advertise", {"uuid": UUID}, "advertise-0002", tail=VALID),
            "T18: hides from the log what its advertisement hides",
            changed,
            "MalformedMessage",
            "opening",
        ),
        **_trees(),
        "create_own_uuid.jws": fails(
            create("create-0002", create_body(uuid=UUID)),
            "T4: brings its own UUID",
            asked,
            "MalformedMessage",
            "cannot bring its own UUID",
        ),
        "create_own_uuid_in_synopsis.jws": fails(
            create("create-0003", create_body(synopsis={"type": "tags", "placeholder": f"topic={{uuid}},was={UUID}"})),
            "T4: brings a UUID in its placeholder",
            asked,
            "MalformedMessage",
            "cannot bring a UUID of its own",
        ),
        "create_claims_other_creator.jws": fails(
            create("create-0004", create_body(creator="bob")),
            "T1: claims to be somebody else",
            asked,
            "TrustError",
            "its certificate says 'alice'",
        ),
        "create_claims_other_institution.jws": fails(
            create("create-0005", create_body(institution="Elsewhere")),
            "T1: claims another institution",
            asked,
            "TrustError",
            "its certificate says 'Example'",
        ),
        "create_relabelled_as_advertise.jws": fails(
            relabelled(create("create-0006", aud=TO_NETWORK), "advertise"),
            "T19: the header's kind changed after signing",
            changed,
            "TrustError",
            "the signature does not hold",
        ),
        "create_presented_as_advertise.jws": fails(
            change("advertise", create_body(), "create-0007"),
            "T19: the body of a create, signed as an advertise",
            changed,
            "MalformedMessage",
            "advertise",
        ),
        "create_sent_as_change.jws": fails(
            create("create-0008", aud=TO_NETWORK), "T19: a question sent as a change", changed, "TrustError", "is not a change"
        ),
        "reply_as_request.jws": fails(
            change("decided", {}, "decided-0001"), "T19: a reply sent as a change", changed, "TrustError", "is not a change"
        ),
        "record_as_request.jws": fails(
            record("tick", None), "T19: a record sent as a change", changed, "MalformedMessage", "envelope"
        ),
        "request_to_other_node.jws": fails(
            create("create-0009", aud="node:n2"), "T19: addressed to node n2", asked, "TrustError", "addressed to somebody else"
        ),
        "request_to_other_network.jws": fails(
            change("renew", renewal, "renew-0002", aud=f"tdn:network:{'0' * 64}"),
            "T19: addressed to another network",
            changed,
            "TrustError",
            "addressed to somebody else",
        ),
        "request_replayed.jws": fails(
            create("create-0010"), "T19: sent twice", asked, "TrustError", "was received before", times=2
        ),
        "request_expired.jws": fails(
            create("create-0011", iat=NOW - 600), "T19: its minute is over", asked, "TrustError", "has expired"
        ),
        "request_from_the_future.jws": fails(
            create("create-0012", iat=NOW + 600), "T19: dated ten minutes ahead", asked, "TrustError", "dated in the future"
        ),
        "request_lives_too_long.jws": fails(
            create("create-0013", life=86400), "T19: a question that wants to live a day", asked, "TrustError", "live longer"
        ),
        "request_time_beyond_calendar.jws": fails(
            create("create-0014", claims={"exp": 10**17}), "ends in the year three billion", asked, "MalformedMessage", "exp"
        ),
        "request_with_swapped_tail.jws": fails(
            head + b"~" + advert(uuid=OTHER_UUID, synopsis={**synopsis("string", "{uuid}"), "value": OTHER_UUID}),
            "T19: another advertisement after the same signature",
            changed,
            "TrustError",
            "not what was signed",
        ),
        "request_with_tail_cut_off.jws": fails(
            head, "T19: its advertisement cut off", changed, "TrustError", "not what was signed"
        ),
        "request_with_added_tail.jws": fails(
            change("renew", renewal, "renew-0003") + b"~more",
            "T19: something added",
            changed,
            "TrustError",
            "not what was signed",
        ),
        "request_signed_by_stranger.jws": fails(
            create("create-0015", sender=CAROL, iss=name_of(CAROL, "entity", "carol")),
            "T19: a certificate that the log does not hold",
            asked,
            "TrustError",
            "not known to the network",
        ),
        "request_iss_differs.jws": fails(
            create("create-0016", iss=name_of(BOB, "entity", "bob")),
            "T19: names another sender than it was signed by",
            asked,
            "TrustError",
            "names another sender",
        ),
        "request_thumbprint_of_other.jws": fails(
            create("create-0017", sender=BOB, header={"x5t#S256": digest(ALICE.chain[0])}),
            "T19: bob signs, and points to alice's certificate",
            asked,
            "TrustError",
            "the signature does not hold",
        ),
        "request_unknown_version.jws": fails(
            create("create-0018", claims={"v": 9}), "version 9", asked, "MalformedMessage", "schema version 9 is unknown"
        ),
        "request_unknown_kind.jws": fails(
            change("destroy", {}, "destroy-0001"), "a kind that there is not", changed, "MalformedMessage", "'destroy' is unknown"
        ),
        "request_alg_none.jws": fails(
            create("create-0019", header={"alg": "none"}), "no algorithm", asked, "TrustError", "algorithm 'none' is refused"
        ),
        "request_key_in_header.jws": fails(
            create("create-0020", header={"jwk": jwk(BOB.key)}),
            "its own key",
            asked,
            "TrustError",
            "header member 'jwk' is refused",
        ),
        "request_duplicate_key.jws": fails(
            create_text("create-0021", b'{"creator":"alice","creator":"bob"}'),
            "two creators",
            asked,
            "MalformedMessage",
            "stands twice",
        ),
        "create_huge_number.jws": fails(
            create_text("create-0022", huge.replace(b'{"x":0}', b'{"x":' + b"9" * 400 + b"}")),
            "T2: a float of four hundred digits",
            asked,
            "MalformedMessage",
            "is not of type float",
        ),
        "create_infinite_number.jws": fails(
            create_text("create-0023", huge.replace(b'{"x":0}', b'{"x":1e999}')),
            "a number that becomes infinite where it is read",
            asked,
            "MalformedMessage",
            "1e999",
        ),
        "create_synopsis_does_not_fit.jws": fails(
            create("create-0024", create_body(synopsis={"type": "properties", "placeholder": "topic={uuid}"})),
            "T3: tags where properties were announced",
            asked,
            "MalformedMessage",
            "does not fit the type properties",
        ),
        "create_xml_with_doctype.jws": fails(
            create(
                "create-0025",
                create_body(
                    descriptor={"kind": "xml", "xml": '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'}
                ),
            ),
            "T2: XML that would read a file",
            asked,
            "MalformedMessage",
            "DOCTYPE",
        ),
    }


def _trees() -> dict[str, Sample]:
    """Hierarchies, collections and watches: requests for them."""
    asked, changed, question = "create", "change", "question"
    child = create_body(parent=ROOT_UUID, hosting={"allow_children": True, "max_depth": 1, "max_width": 0})
    membership = {"collection": COLLECTION_UUID, "uuid": CHILD_UUID}
    word = {"right": "include", "uuid": CHILD_UUID, "entity": "bob"}

    def hosting(jti: str, **limits: Any) -> bytes:
        return create(jti, create_body(hosting={"allow_children": True, **limits}))

    def collection(jti: str, *, members: Any = (), **options: Any) -> bytes:
        return create(jti, create_body(gathering={**GATHERING, **options}, members=list(members)))

    def asking(kind: str, body: Any, jti: str) -> bytes:
        return envelope(kind, body, ALICE, iss=ALICE_NAME, aud="node:n1", jti=jti)

    return {
        "create_with_hosting.jws": passes(hosting("create-0040", max_depth=0, max_width=5), "T23: takes children", asked),
        "create_collection.jws": passes(collection("create-0041", members=[UUID]), "T31: a collection", asked),
        "register.jws": passes(change("register", child, "register-0001"), "T24: a child topic", changed),
        "add.jws": passes(
            change("add", {**membership, "countersigned": change("countersign", word, "countersign-0001").decode()}, "add-0001"),
            "T33: with its owner's countersignature",
            changed,
        ),
        "remove.jws": passes(change("remove", membership, "remove-0001"), "T33: out of a collection", changed),
        "move.jws": passes(
            change("move", {"uuid": UUID, "from": COLLECTION_UUID, "to": OTHER_UUID}, "move-0001"),
            "T34: both or neither",
            changed,
        ),
        "watch.jws": passes(change("watch", {"uuid": ROOT_UUID}, "watch-0001"), "T29: follows a subtree", changed),
        "unwatch.jws": passes(change("unwatch", {"uuid": ROOT_UUID}, "unwatch-0001"), "T29: no longer", changed),
        "tree.jws": passes(asking("tree", {"uuid": ROOT_UUID, "what": "children"}, "tree-0001"), "T27: one level down", question),
        "changes.jws": passes(
            asking("changes", {"uuid": ROOT_UUID, "since": 0}, "changes-0001"), "T29: from the start", question
        ),
        "create_limit_negative.jws": fails(
            hosting("create-0042", max_depth=-1), "T23: fewer than no levels", asked, "MalformedMessage", "hosting.max_depth"
        ),
        "create_limit_huge.jws": fails(
            hosting("create-0043", max_width=10**15),
            "T23: more than a limit may be",
            asked,
            "MalformedMessage",
            "hosting.max_width",
        ),
        "create_limit_not_a_number.jws": fails(
            hosting("create-0044", max_width="unlimited"), "T23: a word", asked, "MalformedMessage", "hosting.max_width"
        ),
        "create_collection_limit_negative.jws": fails(
            collection("create-0045", limits={**GATHERING["limits"], "topics": -5}),
            "T32: fewer than no topics",
            asked,
            "MalformedMessage",
            "gathering.limits.topics",
        ),
        "create_collection_member_twice.jws": fails(
            collection("create-0047", members=[UUID, UUID]), "T32: a member twice", asked, "MalformedMessage", "members"
        ),
        "create_collection_own_change_topic.jws": fails(
            collection("create-0048", notifications=CHANGES_UUID),
            "T4, T31: brings its own change topic",
            asked,
            "MalformedMessage",
            "gathering",
        ),
        "create_with_parent.jws": fails(
            create("create-0049", create_body(parent=ROOT_UUID)),
            "T24: a child that the log has not decided",
            asked,
            "MalformedMessage",
            "parent",
        ),
        "register_own_uuid.jws": fails(
            change("register", {**child, "uuid": CHILD_UUID}, "register-0002"),
            "T4: brings its own UUID",
            changed,
            "MalformedMessage",
            "cannot bring its own UUID",
        ),
        "register_without_parent.jws": fails(
            change("register", create_body(), "register-0003"), "T24: nobody's child", changed, "MalformedMessage", "parent"
        ),
        "register_brings_opening.jws": fails(
            change("register", {**child, "opening": CHILD_OPENING}, "register-0004"),
            "T18: salts that the creator chose",
            changed,
            "MalformedMessage",
            "opening",
        ),
        "add_relabelled_as_remove.jws": fails(
            relabelled(change("add", membership, "add-0002"), "remove"),
            "T19: the same members, another kind",
            changed,
            "TrustError",
            "the signature does not hold",
        ),
        "watch_relabelled_as_withdraw.jws": fails(
            relabelled(change("watch", {"uuid": UUID}, "watch-0002"), "withdraw"),
            "T19: who wants to follow a topic ends it",
            changed,
            "TrustError",
            "the signature does not hold",
        ),
        "watch_for_other.jws": fails(
            change("watch", {"uuid": ROOT_UUID, "entity": "bob"}, "watch-0003"),
            "T35: has another entity told",
            changed,
            "MalformedMessage",
            "watch",
        ),
        "countersign_sent_as_change.jws": fails(
            change("countersign", word, "countersign-0002"),
            "T33: a countersignature by itself changes nothing",
            changed,
            "TrustError",
            "is not a change",
        ),
        "add_countersigned_by_a_list.jws": fails(
            change(
                "add", {**membership, "countersigned": [change("countersign", word, "countersign-0003").decode()]}, "add-0003"
            ),
            "T33: several where one belongs",
            changed,
            "MalformedMessage",
            "countersigned",
        ),
        "tree_no_depth.jws": fails(
            asking("tree", {"uuid": ROOT_UUID, "what": "tree", "depth": 0}, "tree-0002"),
            "T27: to the depth of nothing",
            question,
            "MalformedMessage",
            "depth",
        ),
        "changes_before_the_first.jws": fails(
            asking("changes", {"uuid": ROOT_UUID, "since": -1}, "changes-0002"),
            "T29: a version that cannot be",
            question,
            "MalformedMessage",
            "since",
        ),
        "changes_of_other.jws": fails(
            asking("changes", {"uuid": ROOT_UUID, "since": 0, "watcher": "bob"}, "changes-0003"),
            "T35: what bob was told",
            question,
            "MalformedMessage",
            "watcher",
        ),
    }


def sealed_messages() -> dict[str, Sample]:
    """What node n1 must say to a sealed message: its bytes are those of discover.jws, or it does not open."""
    through, question = "sealed", requests()["discover.jws"][0]
    return {
        "sealed_question.bin": passes(sealed_message(question, NODE, "good"), "T6: a question, sealed to the node", through),
        "sealed_larger_step.bin": passes(
            sealed_message(question, NODE, "step", size=16_384), "padded further than it had to be", through
        ),
        "sealed_to_other_node.bin": fails(
            sealed_message(question, NODE_2, "other"), "T6: sealed to node n2", through, "TrustError", "not sealed to this key"
        ),
        "sealed_unpadded.bin": fails(
            sealed_message(question, NODE, "bare", size=0), "its length shows", through, "TrustError", "not padded as ours are"
        ),
        "sealed_between_steps.bin": fails(
            sealed_message(question, NODE, "between", size=8192),
            "padded to another size",
            through,
            "TrustError",
            "not padded as ours",
        ),
        "sealed_length_beyond_its_end.bin": fails(
            sealed_message(question, NODE, "beyond", length=4093),
            "says that it is longer than it is",
            through,
            "TrustError",
            "not padded as ours are",
        ),
        "sealed_magic_of_version_1.bin": fails(
            sealed_message(question, NODE, "magic", magic=b"\x00tdn1"),
            "as before padding",
            through,
            "TrustError",
            "is not sealed",
        ),
    }


MESSAGE_ID = "message-0001"
BODY = b"Hello~\x00\xff~ and any other bytes"


def message(body: bytes = BODY, signer: Authority = ALICE, *, issued: int | None = NOW, **changes: Any) -> bytes:
    """A message on a topic. A claim that is None is left out."""
    claims = {
        "v": 1,
        "network": NETWORK,
        "topic": UUID,
        "id": MESSAGE_ID,
        "publisher": name_of(signer, "entity", "alice"),
        "at": rfc3339(T0).replace("Z", ".123Z"),
        "content_type": "application/octet-stream",
        "tail": digest(body),
        **changes,
    }
    header = statement_header(signer, "message", iat=issued)
    return token(header, {claim: value for claim, value in claims.items() if value is not None}, signer.key) + b"~" + body


def message_tag(reader: Authority, context: bytes) -> bytes:
    return hashlib.sha256(context + b" " + key_hash(reader.key.public_key()).encode()).digest()[:8]


def message_context(topic: str = UUID) -> bytes:
    return f"tdn/v1 message {MESSAGE_ID} on {topic} in {NETWORK}".encode()


def encrypted(inside: bytes, readers: Sequence[Authority], seed: str, topic: str = UUID, bound: bool = True) -> bytes:
    """A message for readers. Not `bound`: the slots can be changed without anybody's noticing."""
    context = message_context(topic)
    key, nonce = (hashlib.sha256(f"vectors message {seed} {what}".encode()).digest() for what in ("key", "nonce"))
    slots = sorted(
        message_tag(reader, context) + hpke(key, reader.key.public_key(), context, f"message {seed} {place}")
        for place, reader in enumerate(readers)
    )
    head = b"\x00tdnm1" + len(slots).to_bytes(2) + b"".join(slots)
    return head + nonce[:12] + AESGCM(key).encrypt(nonce[:12], inside, context + head if bound else context)


def topic_messages() -> dict[str, Sample]:
    """What bob must say to a message that he finds on topic UUID under MESSAGE_ID."""
    through = "message"
    both = [BOB, CAROL]
    named = digest(b"".join(sorted(message_tag(reader, message_context()) for reader in both)))
    inside = message(readers=named)
    whole = encrypted(inside, both, "good")
    outdated = PKI.leaf(Role.ENTITY, "alice", institution="Example", not_before=T0 - 30 * DAY, not_after=T0 - DAY, generation=2)
    stranger = STRANGERS.leaf(Role.ENTITY, "alice", institution="Example")
    elsewhere = ("TrustError", "published under another id, on another topic or in another network")
    readers = ("TrustError", "signed for other readers")
    moment = ("TrustError", "another moment than its signature")
    return {
        "message.jws": passes(message(), "T20: a message with tildes in its body", through),
        "message_empty.jws": passes(message(b""), "T20: nothing, and signed", through),
        "message_encrypted.bin": passes(whole, "T20: for bob and carol", through),
        "message_on_other_topic.jws": fails(message(topic=OTHER_UUID), "T19: copied from another topic", through, *elsewhere),
        "message_under_other_id.jws": fails(message(id="message-0002"), "T19: sent again under a new id", through, *elsewhere),
        "message_of_other_network.jws": fails(message(network="0" * 64), "of another network", through, *elsewhere),
        "message_changed_body.jws": fails(
            message()[:-1], "T19: its last byte is gone", through, "TrustError", "not what was signed"
        ),
        "message_without_body.jws": fails(
            message(tail=None).partition(b"~")[0], "nothing follows it", through, "MalformedMessage", "tail"
        ),
        "message_claims_other_publisher.jws": fails(
            message(signer=CAROL, publisher=name_of(ALICE, "entity", "alice")),
            "T8: signed by carol, who says that she is alice",
            through,
            "TrustError",
            "another publisher than its signature",
        ),
        "message_signed_by_node.jws": fails(
            message(signer=NODE, publisher=name_of(NODE, "node", "n1")),
            "nodes do not publish",
            through,
            "MalformedMessage",
            "publisher",
        ),
        "message_unknown_ca.jws": fails(message(signer=stranger), "T8: from another root", through, "TrustError", "trusted root"),
        "message_expired_publisher.jws": fails(
            message(signer=outdated), "T8: with a certificate of last month", through, "TrustError", "expired at"
        ),
        "message_backdated.jws": fails(
            message(signer=outdated, issued=NOW - 2 * 86400), "T8: signed today as if before its expiry", through, *moment
        ),
        "message_without_time.jws": fails(
            message(issued=None), "its header has no time", through, "MalformedMessage", "does not say when it was signed"
        ),
        "message_from_the_future.jws": fails(
            message(issued=NOW + 60, at=rfc3339(T0 + timedelta(seconds=60))),
            "T19: of a minute to come",
            through,
            "TrustError",
            "dated in the future",
        ),
        "message_as_advert.jws": fails(
            message(), "a message presented as an advertisement", "advertisement", "MalformedMessage", "not a statement"
        ),
        "message_encrypted_for_carol.bin": fails(
            encrypted(inside, [CAROL], "carol"), "T20: for carol alone", through, "TrustError", "not for us"
        ),
        "message_encrypted_on_other_topic.bin": fails(
            encrypted(inside, both, "topic", OTHER_UUID), "T19: copied from another topic", through, "TrustError", "not for us"
        ),
        "message_encrypted_for_more.bin": fails(
            encrypted(inside, [*both, ALICE], "more"), "a reader encrypted it for a third", through, *readers
        ),
        "message_encrypted_shown_openly.jws": fails(inside, "a reader published what was inside", through, *readers),
        "message_encrypted_names_no_readers.bin": fails(
            encrypted(message(), both, "nobody"), "somebody encrypted what was open", through, *readers
        ),
        "message_encrypted_slots_not_bound.bin": fails(
            encrypted(inside, both, "loose", bound=False), "its slots could be exchanged", through, "TrustError", "was changed"
        ),
        "message_encrypted_not_signed.bin": fails(
            encrypted(b"Hello", both, "bare"), "nobody signed it", through, "MalformedMessage", "not a signed message"
        ),
        "message_encrypted_other_version.bin": fails(
            b"\x00tdnm2" + whole[6:], "of a newer version", through, "MalformedMessage", "newer version"
        ),
    }


# --- grants -------------------------------------------------------------------------------------------------------------------------

Signer = tuple[Authority, str]
OF_ALICE, OF_BOB, OF_CAROL = (ALICE, "entity:alice"), (BOB, "entity:bob"), (CAROL, "entity:carol")
HOUR = 3600


def full_name(who: Signer) -> str:
    return name_of(who[0], *who[1].split(":"))


def payload_digest(signed: bytes) -> str:
    return digest(signed.split(b".")[1])


def claims_in(signed: bytes) -> dict[str, Any]:
    payload = signed.split(b".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    return claims


def grant_claims(issuer: Signer, to: Signer | str, rests_on: bytes, grant_id: str, **changes: Any) -> dict[str, Any]:
    """What a grant says: to publish for an hour, on what it rests on; as wide as the grant above it, where it rests on one."""
    above = claims_in(rests_on)
    claims = {
        "v": 1,
        "iss": full_name(issuer),
        "sub": to if isinstance(to, str) else full_name(to),
        "aud": TO_NETWORK,
        "jti": f"{grant_id:-<24}",
        "iat": NOW,
        "nbf": NOW,
        "exp": NOW + HOUR,
        "right": above.get("right", "publish"),
        "topic": above.get("topic", above.get("uuid")),
        "tree": False,
        "delegable": False,
    }
    if "jti" in above:
        claims["parent"] = {"grant": above["jti"], "digest": payload_digest(rests_on)}
    else:
        claims["advertisement"] = payload_digest(rests_on)
    return {name: value for name, value in {**claims, **changes}.items() if value is not None}


def grant(
    issuer: Signer, to: Signer | str, rests_on: bytes, grant_id: str, *, header: dict[str, Any] | None = None, **changes: Any
) -> bytes:
    head = statement_header(issuer[0], "grant", **{"iat": None, **(header or {})})
    return token(head, grant_claims(issuer, to, rests_on, grant_id, **changes), issuer[0].key)


def bundle(*parts: bytes) -> bytes:
    return b"~".join(parts)


def grants() -> dict[str, Sample]:
    """What `grants.read_bundle` must say of a grant by itself: each with the advertisement that it rests on."""
    through = "grant"

    def sound(name: str, what: str, signed: bytes, on: bytes = VALID) -> dict[str, Sample]:
        return {f"grant_{name}.jws": passes(bundle(signed, on), what, through)}

    def flawed(name: str, what: str, signed: bytes, error: str, fragment: str, on: bytes = VALID) -> dict[str, Sample]:
        return {f"grant_{name}.jws": fails(bundle(signed, on), what, through, error, fragment)}

    given = grant(OF_ALICE, OF_BOB, VALID, "given")
    outdated = PKI.leaf(Role.ENTITY, "alice", institution="Example", not_before=T0 - 30 * DAY, not_after=T0 - DAY, generation=2)
    stranger = STRANGERS.leaf(Role.ENTITY, "alice", institution="Example")
    lent = PKI.leaf(Role.ENTITY, "alice", generation=3, uris=[ALICE_NAME])
    before = NOW - 2 * 86400
    head, _, signature = given.split(b".")
    hs256 = b64url(text(statement_header(ALICE, "grant", iat=None, alg="HS256"))) + b"." + b64url(text(claims_in(given)))
    by_mac = hs256 + b"." + b64url(hmac.digest(public_pem(ALICE.key), hs256, "sha256"))
    none = b64url(text(statement_header(ALICE, "grant", iat=None, alg="none"))) + b"." + b64url(text(claims_in(given)))
    widened = b".".join([head, b64url(text({**claims_in(given), "sub": "*"})), signature])
    return {
        **sound("publish", "T20: alice lets bob publish for an hour", given),
        **sound("to_institution", "T20: and one institution", grant(OF_ALICE, "institution:Example", VALID, "institution")),
        **sound("to_everyone", "T20: and everyone subscribe", grant(OF_ALICE, "*", VALID, "everyone", right="subscribe")),
        **sound(
            "on_hierarchy",
            "T20: on a topic and all below it",
            grant(OF_ALICE, OF_BOB, ROOT_ADVERT, "tree", tree=True),
            ROOT_ADVERT,
        ),
        **sound(
            "on_collection",
            "T20: on the topics of a collection",
            grant(OF_ALICE, OF_BOB, COLLECTION_ADVERT, "collection", tree=True, right="subscribe"),
            COLLECTION_ADVERT,
        ),
        **sound(
            "from_tomorrow", "T20: from and until", grant(OF_ALICE, OF_BOB, VALID, "later", nbf=NOW + 86400, exp=NOW + 90000)
        ),
        **sound(
            "of_former_key",
            "T20: signed while its certificate lasted, with a key that came before the present one",
            grant((outdated, "entity:alice"), OF_BOB, VALID, "former", iat=before, nbf=before),
        ),
        # Who signed.
        **flawed(
            "signed_by_node",
            "T20: the node that minted the topic grants it",
            grant((NODE, "node:n1"), OF_BOB, VALID, "by-node"),
            "TrustError",
            "signed by node:n1; only entities grant",
        ),
        **flawed(
            "signed_by_operator",
            "T20: so does the operator",
            grant((OPERATOR, "operator:operator"), OF_BOB, VALID, "by-operator"),
            "TrustError",
            "only entities grant",
        ),
        **flawed(
            "signed_by_ca",
            "T20: so does the authority that issued the owner's certificate",
            grant((PKI.entities, "entity:alice"), OF_BOB, VALID, "by-ca"),
            "TrustError",
            "does not lead to a trusted root",
        ),
        **flawed(
            "signed_by_sibling",
            "T20: carol, of the same institution, grants alice's topic",
            grant(OF_CAROL, OF_BOB, VALID, "by-sibling"),
            "TrustError",
            f"entity:carol does not own topic {UUID}",
        ),
        **flawed(
            "signed_by_grantee",
            "T20: bob grants to himself",
            grant(OF_BOB, OF_BOB, VALID, "by-grantee"),
            "TrustError",
            "does not own",
        ),
        **flawed(
            "names_other_issuer",
            "T20: carol signs, and says that she is alice",
            grant(OF_CAROL, OF_BOB, VALID, "as-alice", iss=ALICE_NAME),
            "TrustError",
            "another issuer than its signature",
        ),
        **flawed(
            "with_chain_of_other",
            "T20: carol signs under alice's certificate",
            token(statement_header(ALICE, "grant", iat=None), claims_in(given), CAROL.key),
            "TrustError",
            "signature does not hold",
        ),
        **flawed(
            "with_lent_name",
            "T8: a certificate of another key with alice's name in it",
            grant((lent, "entity:alice"), OF_BOB, VALID, "lent", iss=ALICE_NAME),
            "TrustError",
            "names a key that is not its own",
        ),
        **flawed(
            "unknown_ca",
            "T8: from another root",
            grant((stranger, "entity:alice"), OF_BOB, VALID, "foreign"),
            "TrustError",
            "trusted root",
        ),
        **flawed(
            "expired_certificate",
            "T8: signed today with a certificate of last month",
            grant((outdated, "entity:alice"), OF_BOB, VALID, "expired"),
            "TrustError",
            "expired at",
        ),
        **flawed(
            "without_chain",
            "it does not bring its certificates",
            grant(OF_ALICE, OF_BOB, VALID, "bare", header={"x5c": None, "x5t#S256": digest(ALICE.chain[0])}),
            "TrustError",
            "does not carry its certificate chain",
        ),
        **flawed("alg_none", "T8: not signed, and says so", none + b".", "TrustError", "algorithm 'none' is refused"),
        **flawed("alg_hs256", "T8: the public key taken for a secret", by_mac, "TrustError", "algorithm 'HS256' is refused"),
        **flawed(
            "header_brings_key",
            "T8: the header brings its own key",
            grant(OF_ALICE, OF_BOB, VALID, "key", header={"jwk": jwk(CAROL.key)}),
            "TrustError",
            "keys are never taken from a header",
        ),
        **flawed(
            "widened_after_signing", "T20: for everyone, after alice signed it for bob", widened, "TrustError", "does not hold"
        ),
        # What it says.
        **flawed(
            "of_other_network",
            "T19: of another network",
            grant(OF_ALICE, OF_BOB, VALID, "elsewhere", aud=f"tdn:network:{'0' * 64}"),
            "TrustError",
            "different networks",
        ),
        **flawed(
            "to_nodes",
            "T19: not for a network at all",
            grant(OF_ALICE, OF_BOB, VALID, "nodes", aud="tdn:nodes"),
            "MalformedMessage",
            "aud",
        ),
        **flawed(
            "for_other_topic",
            "T20: it rests on one advertisement and is for another topic",
            grant(OF_ALICE, OF_BOB, VALID, "other", topic=OTHER_UUID),
            "TrustError",
            "another topic than its advertisement",
        ),
        **flawed(
            "broken_digest",
            "T20: the digest of no advertisement",
            grant(OF_ALICE, OF_BOB, VALID, "broken", advertisement=digest(b"other")),
            "TrustError",
            "does not rest on this advertisement",
        ),
        **flawed(
            "on_other_advertisement",
            "T20: the same topic, minted again with other content",
            given,
            "TrustError",
            "does not rest on this advertisement",
            advert(institution="Elsewhere"),
        ),
        **flawed(
            "on_advert_by_entity",
            "T8: alice has minted the topic herself",
            grant(OF_ALICE, OF_BOB, advert(ALICE), "self-made"),
            "TrustError",
            "only nodes",
            advert(ALICE),
        ),
        **flawed(
            "on_nothing",
            "T20: it rests on nothing",
            grant(OF_ALICE, OF_BOB, VALID, "loose", advertisement=None),
            "MalformedMessage",
            "rests on",
        ),
        **flawed(
            "on_both",
            "T20: it rests on an advertisement and on a grant",
            grant(OF_ALICE, OF_BOB, VALID, "both", parent={"grant": "g" * 22, "digest": digest(b"g")}),
            "MalformedMessage",
            "on one of them",
        ),
        **flawed(
            "of_all_rights", "T20: to do anything", grant(OF_ALICE, OF_BOB, VALID, "all", right="*"), "MalformedMessage", "right"
        ),
        **flawed(
            "to_discover",
            "T20: what a grant is not for",
            grant(OF_ALICE, OF_BOB, VALID, "see", right="discover"),
            "MalformedMessage",
            "right",
        ),
        **flawed("to_node", "T20: to a node", grant(OF_ALICE, (NODE, "node:n1"), VALID, "node"), "MalformedMessage", "sub"),
        **flawed(
            "without_key",
            "T20: to an entity, whatever its key",
            grant(OF_ALICE, "tdn:entity:bob", VALID, "keyless"),
            "MalformedMessage",
            "sub",
        ),
        **flawed("without_end", "T20: for ever", grant(OF_ALICE, OF_BOB, VALID, "for-ever", exp=None), "MalformedMessage", "exp"),
        **flawed(
            "too_long",
            "T20: for a lifetime",
            grant(OF_ALICE, OF_BOB, VALID, "too-long", exp=NOW + 2 * 3650 * 86400 + 1),
            "MalformedMessage",
            "times do not fit",
        ),
        **flawed(
            "ends_before_it_begins",
            "T20: it ends when it begins",
            grant(OF_ALICE, OF_BOB, VALID, "empty", nbf=NOW + HOUR),
            "MalformedMessage",
            "times do not fit",
        ),
        **flawed(
            "dated_by_words",
            "its time is no number",
            grant(OF_ALICE, OF_BOB, VALID, "words", iat=rfc3339(T0)),
            "MalformedMessage",
            "not a moment",
        ),
        **flawed(
            "with_more",
            "room for what nobody knows",
            grant(OF_ALICE, OF_BOB, VALID, "more", scope="configure"),
            "MalformedMessage",
            "grant",
        ),
        **flawed(
            "of_version_2", "of a newer version", grant(OF_ALICE, OF_BOB, VALID, "newer", v=2), "MalformedMessage", "version 2"
        ),
        # In the place of something else.
        "grant_alone.jws": fails(
            given, "T20: without what it rests on", through, "MalformedMessage", "comes with all that it rests on"
        ),
        "grant_followed_by_grant.jws": fails(
            bundle(given, given), "T20: the advertisement is missing", through, "MalformedMessage", "not a statement"
        ),
        "grant_that_is_advert.jws": fails(
            bundle(VALID, VALID), "T20: an advertisement that rests on itself", through, "MalformedMessage", "is not a grant"
        ),
        "grant_that_is_countersignature.jws": fails(
            bundle(change("countersign", {"right": "include", "uuid": UUID, "entity": "bob"}, "as-grant"), VALID),
            "T19: another word of alice's for bob",
            through,
            "MalformedMessage",
            "is not a grant",
        ),
        "grant_as_advert.jws": fails(
            given, "a grant presented as an advertisement", "advertisement", "MalformedMessage", "not a statement"
        ),
        "grant_as_change.jws": fails(given, "T19: a grant presented as a request", "change", "MalformedMessage", "envelope"),
    }


def delegated_grants() -> dict[str, Sample]:
    """Bundles of grants that were passed on, and of topics that changed hands."""
    through = "grant"
    may_pass = grant(OF_ALICE, OF_BOB, VALID, "may-pass", delegable=True)
    passed = grant(OF_BOB, OF_CAROL, may_pass, "passed")
    to_all = grant(OF_ALICE, "institution:Example", VALID, "to-example", delegable=True)
    in_tree = grant(OF_ALICE, OF_BOB, ROOT_ADVERT, "in-tree", delegable=True, tree=True)
    fixed = grant(OF_ALICE, OF_BOB, VALID, "not-delegable")
    again = grant(OF_BOB, OF_CAROL, may_pass, "again", delegable=True)
    third = grant(OF_CAROL, "*", again, "third")
    owner = statement("status", {**STATUS, "owner": "bob"})
    by_new = grant(OF_BOB, OF_CAROL, VALID, "by-new-owner")
    chain = [VALID]
    people: list[Signer] = [OF_ALICE]
    for number in range(1, 10):
        people.append((PKI.leaf(Role.ENTITY, f"e{number}", institution="Example"), f"entity:e{number}"))
        chain.insert(0, grant(people[-2], people[-1], chain[0], f"link-{number}", delegable=True))

    def wider(name: str, what: str, below: bytes, fragment: str, *rest: bytes, error: str = "TrustError") -> dict[str, Sample]:
        return {f"grant_passed_on_{name}.jws": fails(bundle(below, *(rest or (may_pass, VALID))), what, through, error, fragment)}

    def transferred(name: str, what: str, fragment: str, *parts: bytes, error: str = "TrustError") -> dict[str, Sample]:
        return {f"grant_transferred_{name}.jws": fails(bundle(*parts), what, through, error, fragment)}

    return {
        "grant_passed_on.jws": passes(
            bundle(passed, may_pass, VALID), "T20: alice let bob, and bob let carol", through, grants=2
        ),
        "grant_passed_on_twice.jws": passes(bundle(third, again, may_pass, VALID), "T20: and carol everyone", through, grants=3),
        "grant_passed_on_by_member.jws": passes(
            bundle(grant(OF_CAROL, OF_BOB, to_all, "by-member"), to_all, VALID),
            "T20: who is of an institution passes on what it has",
            through,
            grants=2,
        ),
        "grant_passed_on_inside_tree.jws": passes(
            bundle(grant(OF_BOB, OF_CAROL, in_tree, "inside", topic=CHILD_UUID), in_tree, ROOT_ADVERT),
            "T20: of a tree a topic in it; that it is there, the log knows",
            through,
            grants=2,
        ),
        "grant_passed_on_narrower.jws": passes(
            bundle(grant(OF_BOB, OF_CAROL, in_tree, "narrower", nbf=NOW + 60, exp=NOW + 120, tree=True), in_tree, ROOT_ADVERT),
            "T20: for a minute of the hour",
            through,
            grants=2,
        ),
        "grant_passed_on_as_far_as_may_be.jws": passes(bundle(*chain[1:]), "T20: eight grants long", through, grants=8),
        "grant_transferred.jws": passes(
            bundle(by_new, owner, VALID), "the new owner grants, and a node says that it owns the topic", through, grants=1
        ),
        "grant_transferred_and_passed_on.jws": passes(
            bundle(
                grant(OF_CAROL, OF_ALICE, grant(OF_BOB, OF_CAROL, VALID, "new", delegable=True), "back"),
                grant(OF_BOB, OF_CAROL, VALID, "new", delegable=True),
                owner,
                VALID,
            ),
            "the former owner may hold a grant like anybody",
            through,
            grants=2,
        ),
        **wider("too_often", "T20: nine grants long", chain[0], "8 grants at most", *chain[1:], error="MalformedMessage"),
        **wider(
            "not_delegable",
            "T20: what may not be passed on",
            grant(OF_BOB, OF_CAROL, fixed, "not-allowed"),
            "may not be passed on",
            fixed,
            VALID,
        ),
        **wider(
            "by_other", "T20: carol passes on what bob holds", grant(OF_CAROL, "*", may_pass, "by-carol"), "which is for bob"
        ),
        **wider(
            "by_its_issuer",
            "T20: alice passes on what she gave away",
            grant(OF_ALICE, OF_CAROL, may_pass, "by-alice"),
            "which is for bob",
        ),
        **wider(
            "by_outsider",
            "T20: bob is of another institution",
            grant(OF_BOB, OF_CAROL, to_all, "by-outsider"),
            "which is for institution:Example",
            to_all,
            VALID,
        ),
        **wider(
            "by_node",
            "T20: a node passes it on",
            grant((NODE, "node:n1"), OF_CAROL, may_pass, "node-passes"),
            "only entities grant",
        ),
        **wider(
            "other_right",
            "T20: to subscribe, of a grant to publish",
            grant(OF_BOB, OF_CAROL, may_pass, "other-right", right="subscribe"),
            "passed on as one to subscribe",
        ),
        **wider(
            "other_topic",
            "T20: for another topic of alice's",
            grant(OF_BOB, OF_CAROL, may_pass, "other-topic", topic=OTHER_UUID),
            "for one topic was passed on for more",
        ),
        **wider(
            "for_tree",
            "T20: for all below a topic, of a grant for the topic",
            grant(OF_BOB, OF_CAROL, may_pass, "for-tree", tree=True),
            "for one topic was passed on for more",
        ),
        **wider(
            "longer",
            "T20: a second longer",
            grant(OF_BOB, OF_CAROL, may_pass, "longer", exp=NOW + HOUR + 1),
            "for longer than it lasts",
        ),
        **wider(
            "sooner", "T20: a second sooner", grant(OF_BOB, OF_CAROL, may_pass, "sooner", nbf=NOW - 1), "for longer than it lasts"
        ),
        **wider(
            "broken_digest",
            "T20: the grant above was another when it was passed on",
            grant(OF_BOB, OF_CAROL, may_pass, "renewed", parent={"grant": claims_in(may_pass)["jti"], "digest": digest(b"old")}),
            "does not rest on grant",
        ),
        **wider(
            "other_parent",
            "T20: the digest fits, the id does not",
            grant(OF_BOB, OF_CAROL, may_pass, "misnamed", parent={"grant": "g" * 22, "digest": payload_digest(may_pass)}),
            "does not rest on grant",
        ),
        **wider(
            "resting_on_advert",
            "T20: bob's grant rests on the topic, as if he owned it",
            grant(OF_BOB, OF_CAROL, VALID, "as-owner"),
            "does not rest on grant",
        ),
        **wider("without_its_parent", "T20: a link of the chain is missing", third, "does not rest on grant", may_pass, VALID),
        **wider("straight_to_advert", "T20: so are all of them", third, "does not rest on this advertisement", VALID),
        **wider("in_wrong_order", "T20: the links are exchanged", may_pass, "does not rest on this advertisement", passed, VALID),
        **wider(
            "of_other_network",
            "T19: passed on in another network",
            grant(OF_BOB, OF_CAROL, may_pass, "abroad", aud=f"tdn:network:{'0' * 64}"),
            "different networks",
        ),
        **wider(
            "widened_above",
            "T20: alice's grant was changed so that it may be passed on",
            grant(OF_BOB, OF_CAROL, fixed, "forged-above"),
            "signature does not hold",
            b".".join([fixed.split(b".")[0], b64url(text({**claims_in(fixed), "delegable": True})), fixed.split(b".")[2]]),
            VALID,
        ),
        **transferred(
            "without_status", "the new owner, and nobody says that it is one", "entity:bob does not own", by_new, VALID
        ),
        **transferred(
            "by_former_owner",
            "alice goes on granting",
            "entity:alice does not own",
            grant(OF_ALICE, OF_CAROL, VALID, "former-owner"),
            owner,
            VALID,
        ),
        **transferred(
            "status_by_entity",
            "T8: bob says himself that he is the owner",
            "which is not a node",
            by_new,
            statement("status", {**STATUS, "owner": "bob"}, BOB),
            VALID,
        ),
        **transferred(
            "status_of_other_topic",
            "bob owns another topic",
            "the status is of another topic",
            by_new,
            statement("status", {**STATUS, "owner": "bob", "uuid": OTHER_UUID}),
            VALID,
        ),
        **transferred(
            "status_of_other_network",
            "T19: bob owns it in another network",
            "different networks",
            by_new,
            statement("status", {**STATUS, "owner": "bob", "network": "0" * 64}),
            VALID,
        ),
        **transferred(
            "status_unknown_ca",
            "T8: the word of a node of another root",
            "trusted root",
            by_new,
            statement("status", {**STATUS, "owner": "bob"}, STRANGERS.leaf(Role.NODE, "n1")),
            VALID,
        ),
        **transferred(
            "status_first",
            "the status stands before the grant",
            "is not a grant",
            owner,
            by_new,
            VALID,
            error="MalformedMessage",
        ),
        **transferred(
            "status_twice", "two nodes' words", "is not a grant", by_new, owner, owner, VALID, error="MalformedMessage"
        ),
        **transferred(
            "receipt_for_status",
            "a receipt in its place",
            "is not a grant",
            by_new,
            statement("receipt", RECEIPT),
            VALID,
            error="MalformedMessage",
        ),
    }


def log() -> list[tuple[str, bytes, dict[str, str]]]:
    """A log from its genesis on, with what becomes of each record; last a topic's whole life."""
    renewal = {"uuid": UUID, "lifetime_seconds": 3600}
    accepted = {"status": "accepted"}
    return [
        ("log_01_garbage.jws", b"garbage", {"status": "void"}),
        ("log_02_genesis.jws", record("genesis", GENESIS), accepted),
        (
            "log_03_enrol_n1.jws",
            record("enrol", by_operator("enrol", {"chain": [b64(der) for der in NODE.chain]}, "enrol-n1")),
            accepted,
        ),
        (
            "log_04_enrol_n2.jws",
            record("enrol", by_operator("enrol", {"chain": [b64(der) for der in NODE_2.chain]}, "enrol-n2"), NODE_2, "n2"),
            accepted,
        ),
        ("log_05_hello_alice.jws", record("hello", hello(ALICE, "alice")), accepted),
        ("log_06_hello_bob.jws", record("hello", hello(BOB, "bob")), accepted),
        ("log_07_tick.jws", record("tick", None), accepted),
        (
            "log_08_advertise_by_other.jws",
            record(
                "advertise",
                change(
                    "advertise",
                    {"uuid": UUID, "opening": OPENING},
                    "advertise-bob",
                    sender=BOB,
                    iss=name_of(BOB, "entity", "bob"),
                    tail=VALID,
                ),
            ),
            {"status": "refused", "message": "only its creator"},
        ),
        (
            "log_09_advertise_with_opening_of_other_lists.jws",
            record("advertise", change("advertise", {"uuid": UUID, "opening": LISTED}, "advertise-listed", tail=VALID)),
            {"status": "refused", "message": "the opening does not belong to the advertisement"},
        ),
        (
            "log_10_advertise_with_opening_of_other_salt.jws",
            record(
                "advertise",
                change("advertise", {"uuid": UUID, "opening": opening_of({}, "A" * 22)}, "advertise-salt", tail=VALID),
            ),
            {"status": "refused", "message": "the opening does not belong to the advertisement"},
        ),
        (
            "log_11_advertise_without_opening.jws",
            record("advertise", change("advertise", {"uuid": UUID}, "advertise-bare", tail=VALID)),
            {"status": "void", "message": "opening"},
        ),
        (
            "log_12_advertise.jws",
            record("advertise", change("advertise", {"uuid": UUID, "opening": OPENING}, "advertise-ok", tail=VALID)),
            accepted,
        ),
        (
            "log_13_advertise_with_lists.jws",
            record(
                "advertise", change("advertise", {"uuid": OTHER_UUID, "opening": LISTED}, "advertise-other", tail=LISTED_ADVERT)
            ),
            accepted,
        ),
        (
            "log_14_signed_by_entity.jws",
            record("tick", None, ALICE, "alice"),
            {"status": "void", "message": "not appended by the node"},
        ),
        ("log_15_renew.jws", record("renew", change("renew", renewal, "renew-ok"), NODE_2, "n2"), accepted),
        ("log_16_withdraw.jws", record("withdraw", change("withdraw", {"uuid": UUID}, "withdraw-ok")), accepted),
        (
            "log_17_advertise_again.jws",
            record("advertise", change("advertise", {"uuid": UUID, "opening": OPENING}, "advertise-again", tail=VALID)),
            {"status": "refused", "message": "a UUID never comes back"},
        ),
        (
            "log_18_revoke_n2.jws",
            record(
                "revoke",
                by_operator("revoke", {"principal": "node:n2", "issued_until": rfc3339(T0), "keys": []}, "revoke-n2"),
            ),
            accepted,
        ),
        ("log_19_tick_of_revoked.jws", record("tick", None, NODE_2, "n2"), {"status": "void", "message": "was revoked"}),
        *_trees_in_the_log(),
        *_grants_in_the_log(),
    ]


def _trees_in_the_log() -> list[tuple[str, bytes, dict[str, str]]]:
    """A child, from its registration on; a collection that comes to hold it, and bob who follows that; and the end of the whole subtree."""
    accepted = {"status": "accepted"}
    child = create_body(parent=ROOT_UUID, hosting=CHILD_CLAIMS["hosting"], lists=CHILD_CLAIMS["access"])
    minted = {"uuid": CHILD_UUID, "seed": SEED}
    membership = {"collection": COLLECTION_UUID, "uuid": CHILD_UUID}
    bobs = {"sender": BOB, "iss": name_of(BOB, "entity", "bob")}

    def register(jti: str, **more: Any) -> bytes:
        return record("register", change("register", child, jti), **more)

    def advertise(jti: str, uuid: str, opening: Any, tail: bytes) -> bytes:
        return record("advertise", change("advertise", {"uuid": uuid, "opening": opening}, jti, tail=tail))

    def plain(kind: str, body: Any, jti: str, **choices: Any) -> bytes:
        return record(kind, change(kind, body, jti, **choices))

    disowned = advert(**about(CHILD_UUID, CHILD_OF_OTHER))
    return [
        ("log_20_advertise_root.jws", advertise("advertise-root", ROOT_UUID, ROOTED, ROOT_ADVERT), accepted),
        (
            "log_21_advertise_child_unregistered.jws",
            advertise("advertise-early", CHILD_UUID, CHILD_OPENING, CHILD_ADVERT),
            {"status": "refused", "message": "was not registered"},
        ),
        (
            "log_22_register_without_minted.jws",
            register("register-bare"),
            {"status": "refused", "message": "did not mint a UUID"},
        ),
        (
            "log_23_register_uuid_taken.jws",
            register("register-taken", minted={"uuid": UUID, "seed": SEED}),
            {"status": "refused", "message": "is taken"},
        ),
        ("log_24_register.jws", register("register-ok", minted=minted), accepted),
        (
            "log_25_register_beyond_width.jws",
            register("register-second", minted={"uuid": CHANGES_UUID, "seed": SEED}),
            {"status": "refused", "message": "MaxWidth 1"},
        ),
        (
            "log_26_advertise_child_with_opening_of_other_parent.jws",
            advertise("advertise-child-1", CHILD_UUID, CHILD_OF_OTHER, CHILD_ADVERT),
            {"status": "refused", "message": "the opening does not belong to the advertisement"},
        ),
        (
            "log_27_advertise_child_of_other_parent.jws",
            advertise("advertise-child-2", CHILD_UUID, CHILD_OF_OTHER, disowned),
            {"status": "refused", "message": "was registered with other content"},
        ),
        (
            "log_28_advertise_child_with_other_lists.jws",
            advertise("advertise-child-4", CHILD_UUID, CHILD_FOR_ALL, advert(**about(CHILD_UUID, CHILD_FOR_ALL))),
            {"status": "refused", "message": "was registered with other content"},
        ),
        ("log_29_advertise_child.jws", advertise("advertise-child-3", CHILD_UUID, CHILD_OPENING, CHILD_ADVERT), accepted),
        (
            "log_30_advertise_collection_half_closed.jws",
            advertise("advertise-closed", COLLECTION_UUID, closed(GATHERED, "members"), COLLECTION_ADVERT),
            {"status": "refused", "message": "goes into the log whole"},
        ),
        (
            "log_31_advertise_collection_as_topic.jws",
            advertise("advertise-as-topic", COLLECTION_UUID, GATHERED, advert(**about(COLLECTION_UUID, GATHERED))),
            {"status": "refused", "message": "hides the options of another"},
        ),
        (
            "log_32_advertise_collection.jws",
            advertise("advertise-collection", COLLECTION_UUID, GATHERED, COLLECTION_ADVERT),
            accepted,
        ),
        ("log_33_watch.jws", plain("watch", {"uuid": COLLECTION_UUID}, "watch-ok", **bobs), accepted),
        (
            "log_34_add_by_other.jws",
            plain("add", membership, "add-child-bob", **bobs),
            {"status": "refused", "message": "you may not add"},
        ),
        ("log_35_add.jws", plain("add", membership, "add-child-ok"), accepted),
        (
            "log_36_add_to_itself.jws",
            plain("add", {"collection": COLLECTION_UUID, "uuid": COLLECTION_UUID}, "add-itself"),
            {"status": "refused", "message": "cannot be in itself"},
        ),
        (
            "log_37_countersign.jws",
            plain("countersign", {"right": "include", "uuid": CHILD_UUID, "entity": "bob"}, "countersign-ok"),
            {"status": "void", "message": "record"},
        ),
        ("log_38_withdraw_root.jws", plain("withdraw", {"uuid": ROOT_UUID}, "withdraw-root"), accepted),
        (
            "log_39_renew_child_of_withdrawn.jws",
            plain("renew", {"uuid": CHILD_UUID, "lifetime_seconds": 60}, "renew-child"),
            {"status": "refused", "message": "has expired"},
        ),
    ]


def _grants_in_the_log() -> list[tuple[str, bytes, dict[str, str]]]:
    """Alice's other topic: granted, passed on, revoked, subscribed to, and handed over to bob."""
    accepted = {"status": "accepted"}
    bobs = {"sender": BOB, "iss": name_of(BOB, "entity", "bob")}
    about_topic = {"uuid": OTHER_UUID}

    def refused(message: str) -> dict[str, str]:
        return {"status": "refused", "message": message}

    def give(signed: bytes, jti: str, **choices: Any) -> bytes:
        claims = claims_in(signed)
        return record("give", change("give", {"grant": claims["jti"], "uuid": claims["topic"]}, jti, tail=signed, **choices))

    def plain(kind: str, body: Any, jti: str, minted: dict[str, str] | None = None, **choices: Any) -> bytes:
        return record(kind, change(kind, body, jti, **choices), minted=minted)

    given = grant(OF_ALICE, OF_BOB, LISTED_ADVERT, "logged-to-bob", delegable=True)
    passed = grant(OF_BOB, "institution:Example", given, "logged-passed-on")
    to_all = grant(OF_ALICE, "*", LISTED_ADVERT, "logged-to-everyone", right="subscribe")
    wider = grant(OF_BOB, "*", given, "logged-wider", exp=NOW + 2 * HOUR)
    back = grant(OF_BOB, OF_ALICE, given, "logged-back")
    by_former = grant(OF_ALICE, OF_CAROL, LISTED_ADVERT, "logged-by-former")
    revoked = {"grant": claims_in(given)["jti"]}
    return [
        ("log_40_give.jws", give(given, "give-bob"), accepted),
        (
            "log_41_give_by_grantee_of_other_topic.jws",
            give(grant(OF_BOB, "*", LISTED_ADVERT, "logged-theft"), "give-theft", **bobs),
            refused("there is no topic"),
        ),
        ("log_42_give_by_other_than_issuer.jws", give(to_all, "give-others", **bobs), refused("only its issuer")),
        (
            "log_43_give_under_other_name.jws",
            record("give", change("give", {"grant": "g" * 22, **about_topic}, "give-misnamed", tail=to_all)),
            refused("names another grant"),
        ),
        (
            "log_44_give_without_grant.jws",
            plain("give", {"grant": "g" * 22, **about_topic}, "give-bare"),
            refused("carries no grant"),
        ),
        ("log_45_give_wider_than_parent.jws", give(wider, "give-wider", **bobs), refused("nothing longer can be passed on")),
        ("log_46_give_back_to_issuer.jws", give(back, "give-back", **bobs), refused("would come back to alice")),
        ("log_47_give_passed_on.jws", give(passed, "give-passed", **bobs), accepted),
        ("log_48_give_everyone.jws", give(to_all, "give-everyone"), accepted),
        ("log_49_open.jws", plain("open", about_topic, "open-by-bob", **bobs), accepted),
        (
            "log_50_subscribe_without_queue.jws",
            plain("subscribe", {**about_topic, "tree": False}, "read-bare"),
            refused("did not name a queue"),
        ),
        (
            "log_51_subscribe.jws",
            plain("subscribe", {**about_topic, "tree": False}, "read-bob", {"queue": "b0" * 16}, **bobs),
            accepted,
        ),
        ("log_52_retract.jws", plain("retract", revoked, "retract-bob"), accepted),
        ("log_53_give_on_revoked.jws", give(grant(OF_BOB, "*", given, "logged-late"), "give-late", **bobs), refused("has ended")),
        ("log_54_give_revoked_again.jws", give(given, "give-bob-again"), refused("has ended; give a new one")),
        (
            "log_55_accept_without_offer.jws",
            plain("accept", {**about_topic, "keep_grants": True}, "accept-early", **bobs),
            refused("was offered to you"),
        ),
        ("log_56_transfer.jws", plain("transfer", {**about_topic, "to": "bob"}, "transfer-ok"), accepted),
        ("log_57_accept.jws", plain("accept", {**about_topic, "keep_grants": False}, "accept-ok", **bobs), accepted),
        ("log_58_give_by_former_owner.jws", give(by_former, "give-former"), refused("there is no topic")),
        ("log_59_unsubscribe.jws", plain("unsubscribe", about_topic, "unread-bob", **bobs), accepted),
        (
            "log_60_give_of_bundle.jws",
            give(bundle(grant(OF_BOB, "*", LISTED_ADVERT, "logged-bundle"), LISTED_ADVERT), "give-bundle", **bobs),
            refused("followed by nothing"),
        ),
    ]


def build(folder: Path) -> None:
    """Write every sample and the index into a folder."""
    samples = {**advertisements(), **other_statements(), **notifications(), **requests(), **sealed_messages(), **topic_messages()}
    samples |= {**grants(), **delegated_grants()}
    records = log()
    index = {
        "about": "Signed samples with one flaw each, built by build.py; verified with roots.pem, at `now`.",
        "now": rfc3339(T0),
        "network": NETWORK,
        "log": [{"file": name, **expected} for name, _, expected in records],
        "samples": [{"file": name, **expected} for name, (_, expected) in samples.items()],
    }
    folder.mkdir(parents=True, exist_ok=True)
    files: Sequence[tuple[str, bytes]] = [
        *((name, content) for name, (content, _) in samples.items()),
        *((name, content) for name, content, _ in records),
        ("genesis.jws", GENESIS),
        ("roots.pem", PKI.root.certificate.public_bytes(serialization.Encoding.PEM)),
        ("vectors.json", json.dumps(index, indent=1, ensure_ascii=False).encode() + b"\n"),
    ]
    for name, content in files:
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    build(HERE)
    print(f"{len([*HERE.glob('*.jws'), *HERE.glob('*.bin')])} samples in {HERE.name}/")
