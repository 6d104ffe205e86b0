"""Grants that nobody gave: what the log must not take, whoever sends it and whoever signed it. About our own network."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pika.exceptions
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from tdn.protocol.names import Role
from tdn.trust import grants, signing
from tdn.trust.credentials import Credentials
from tests.live import RawEntity
from tests.redteam.ours import Ours

DAY = 86_400


@dataclass(slots=True)
class Scene:
    """The players, each on a connection of its own, and what they have."""

    ours: Ours
    players: dict[str, RawEntity]
    #: Digests of the advertisements by topic, and the tokens and ids of true grants by what they are called.
    advertisements: dict[str, str]
    held: dict[str, Held]

    def player(self, name: str) -> RawEntity:
        """Somebody, connected: who loses a right to publish has its connections closed."""
        player = self.players.get(name)
        if player is not None:
            with contextlib.suppress(pika.exceptions.AMQPError, ValueError):
                player.connection.process_data_events(0)
        if player is None or not player.connection.is_open:
            player = self.players[name] = RawEntity(self.ours.live, self.ours.folder(name))
            player.hello()
        return player

    @property
    def alice(self) -> RawEntity:
        return self.player("alice")

    @property
    def grace(self) -> RawEntity:
        return self.player("grace")

    @property
    def mallory(self) -> RawEntity:
        return self.player("mallory")

    @property
    def sybil(self) -> RawEntity:
        return self.player("sybil")

    @property
    def victims(self) -> str:
        return self.ours.target.victim.exchange

    @property
    def granted(self) -> str:
        return self.ours.target.attacker.exchange

    def claims(self, issuer: RawEntity, on: str | None = None, to: RawEntity | None = None, **other: Any) -> dict[str, Any]:
        """The claims of a grant of the issuer's to mallory on the victim's topic; without what is None."""
        now = int(time.time())
        topic = on or self.victims
        payload = {
            "v": 1,
            "iss": str(issuer.name),
            "sub": str((to or self.mallory).name),
            "aud": issuer.network,
            "jti": grants.new_id(),
            "iat": now,
            "nbf": now - 30,
            "exp": now + 3600,
            "right": "publish",
            "topic": topic,
            "tree": False,
            "delegable": False,
            "advertisement": self.advertisements.get(topic, "A" * 43),
            **other,
        }
        return {key: value for key, value in payload.items() if value is not None}

    def passing_on(self, name: str, issuer: RawEntity, to: RawEntity, **other: Any) -> dict[str, Any]:
        """The claims of a grant that rests on a true one."""
        above = self.held[name]
        rests = {"parent": {"grant": above.id, "digest": above.digest}, "advertisement": None}
        times = {"nbf": above.claims["nbf"], "exp": above.claims["exp"]}
        return self.claims(issuer, above.claims["topic"], to, **{**rests, **times, **other})


@dataclass(frozen=True, slots=True)
class Held:
    token: bytes

    @property
    def claims(self) -> dict[str, Any]:
        return signing.parse_payload(signing.split(self.token))

    @property
    def id(self) -> str:
        return str(self.claims["jti"])

    @property
    def digest(self) -> str:
        return signing.digest(signing.split(self.token).payload_segment)


def sign(claims: dict[str, Any], signer: Credentials) -> bytes:
    return signing.sign("grant", claims, signer.key, chain=signer.identity.chain, with_chain=True)


def give(sender: RawEntity, token: bytes, **body: Any) -> bytes:
    """A request that puts a grant into the log, signed by its sender. Names what the token claims unless told otherwise."""
    claims = json.loads(signing.decode_segment(token.split(b".")[1]))
    return sender.write("give", {"grant": claims["jti"], "uuid": claims["topic"], **body}, tail=token)


def refusal(sender: RawEntity, request: bytes) -> str | None:
    """What the network says against a request; None when it was taken."""
    sender.change(request)
    answer = sender.reply()
    return str(answer.body["message"]) if answer.kind == "error" else None


def _as(scene: Scene, role: Role, name: str) -> Credentials:
    return scene.ours.live.credentials(role, name)


def _by_authority(scene: Scene, file: str, claims: dict[str, Any]) -> bytes:
    """Signed with the key of a certificate authority, under its own certificate."""
    folder = scene.ours.live.home.folder / "ca"
    certificate = x509.load_pem_x509_certificates((folder / f"{file}.pem").read_bytes())[0]
    key: Any = load_pem_private_key((folder / f"{file}.key").read_bytes(), None)
    return signing.sign("grant", claims, key, chain=[certificate.public_bytes(Encoding.DER)], with_chain=True)


def _under(header: dict[str, Any]) -> Callable[[Scene], bytes]:
    def build(scene: Scene) -> bytes:
        chain = [base64.b64encode(der).decode() for der in scene.alice.credentials.identity.chain]
        return scene.mallory.sign(
            {"alg": "ES256", "typ": "tdn-grant+jwt", "x5c": chain, **header}, json.dumps(scene.claims(scene.alice))
        )

    return build


def _signed(**other: Any) -> Callable[[Scene], bytes]:
    """Mallory's own, with some claims changed."""
    return lambda scene: sign(scene.claims(scene.mallory, **other), scene.mallory.credentials)


def _rightly_but(change: Callable[[int], dict[str, Any]]) -> Callable[[Scene], bytes]:
    """On mallory's own topic, where it may grant, with times that do not do."""
    return lambda scene: sign(
        scene.claims(scene.mallory, scene.held["own"].claims["topic"], scene.sybil, **change(int(time.time()))),
        scene.mallory.credentials,
    )


def _passed_on(name: str, **other: Any) -> Callable[[Scene], bytes]:
    def build(scene: Scene) -> bytes:
        changed = {key: value(scene) if callable(value) else value for key, value in other.items()}
        return sign(scene.passing_on(name, scene.mallory, scene.sybil, **changed), scene.mallory.credentials)

    return build


def _edited(token: bytes, **other: Any) -> bytes:
    """A signed text with some claims changed, under its old signature."""
    header, payload, signature = token.split(b".")
    claims = {**json.loads(signing.decode_segment(payload)), **other}
    return b".".join([header, signing.encode_segment(json.dumps(claims).encode()).encode(), signature])


#: Each is sent by mallory, who holds: a grant on G, `plain`; one that may be passed on, `delegable`; and owns a topic, with a grant on it, `own`.
FORGED: dict[str, Callable[[Scene], bytes]] = {
    "one's own word about another's topic": _signed(),
    "to everyone": _signed(sub="*"),
    "to an institution": _signed(sub="institution:local"),
    "to read": _signed(right="subscribe"),
    "on the tree below it": _signed(tree=True),
    "in the owner's name, signed by oneself": lambda scene: sign(scene.claims(scene.alice), scene.mallory.credentials),
    "under the owner's certificate, signed by oneself": _under({}),
    "unsigned": _under({"alg": "none"}),
    "with a secret of one's own": _under({"alg": "HS256"}),
    "with the key in its header": _under({"jwk": {"kty": "EC"}}),
    "relabelled: an advertisement's kind": _under({"typ": "tdn-advertisement+jwt"}),
    "by a node": lambda scene: sign(
        scene.claims(scene.alice, iss=str(_as(scene, Role.NODE, "n1").identity.name)), _as(scene, Role.NODE, "n1")
    ),
    "by a node in the owner's name": lambda scene: sign(scene.claims(scene.alice), _as(scene, Role.NODE, "n1")),
    "by a guard": lambda scene: sign(
        scene.claims(scene.alice, iss=str(_as(scene, Role.GUARD, "g1").identity.name)), _as(scene, Role.GUARD, "g1")
    ),
    "by the authority for entities": lambda scene: _by_authority(scene, "entities", scene.claims(scene.alice)),
    "by the root authority": lambda scene: _by_authority(scene, "root", scene.claims(scene.alice)),
    "stolen: another's true grant, sent by oneself": lambda scene: scene.held["stolen"].token,
    "stolen: with oneself written into it": lambda scene: _edited(scene.held["stolen"].token, sub=str(scene.mallory.name)),
    "for another topic: one's own grant with the topic changed": lambda scene: _edited(
        scene.held["plain"].token, topic=scene.victims
    ),
    "for another network": _rightly_but(lambda now: {"aud": "tdn:network:" + "0" * 64}),
    "that has expired": _rightly_but(lambda now: {"nbf": now - 100, "exp": now - 1}),
    "signed before its signer was certified": _rightly_but(lambda now: {"iat": now - 2 * DAY, "nbf": now - 2 * DAY}),
    "dated in the future": _rightly_but(lambda now: {"iat": now + 3600}),
    "that ends before it begins": _rightly_but(lambda now: {"nbf": now + 7200, "exp": now + 3600}),
    "that lasts for a lifetime": _rightly_but(lambda now: {"exp": now + 4000 * DAY}),
    "resting on another topic's advertisement": _rightly_but(lambda now: {"advertisement": "A" * 43}),
    "resting on nothing": _rightly_but(lambda now: {"advertisement": None}),
    "resting on both": _rightly_but(lambda now: {"parent": {"grant": grants.new_id(), "digest": "A" * 43}}),
    "passed on though it may not be": _passed_on("plain"),
    "passed on by who does not hold it": lambda scene: sign(
        scene.passing_on("stolen", scene.mallory, scene.mallory), scene.mallory.credentials
    ),
    "wider: another right": _passed_on("delegable", right="subscribe"),
    "wider: the tree": _passed_on("delegable", tree=True),
    "wider: another topic": _passed_on("delegable", topic=lambda scene: scene.victims),
    "wider: a later end": _passed_on("delegable", exp=lambda scene: scene.held["delegable"].claims["exp"] + 1),
    "wider: an earlier beginning": _passed_on("delegable", nbf=lambda scene: scene.held["delegable"].claims["nbf"] - 1),
    "resting on a text that it does not have": _passed_on(
        "delegable", parent=lambda scene: {"grant": scene.held["delegable"].id, "digest": "A" * 43}
    ),
    "resting on a grant that is not there": _passed_on(
        "delegable", parent=lambda scene: {"grant": grants.new_id(), "digest": scene.held["delegable"].digest}
    ),
    "resting on itself": _passed_on("delegable", jti="r" * 22, parent=lambda scene: {"grant": "r" * 22, "digest": "A" * 43}),
    "under the id of another's grant": lambda scene: sign(
        scene.claims(scene.mallory, scene.held["own"].claims["topic"], scene.sybil, jti=scene.held["stolen"].id),
        scene.mallory.credentials,
    ),
}
