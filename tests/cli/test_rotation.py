"""Keys and certificates rotate while the network runs: entities, nodes, guard, broker and both intermediates. What was signed before still
verifies, owners keep their topics, and an old key ends when the new one is known."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from entity_client import EntityClient, path
from tdn.errors import TrustError
from tdn.protocol.names import Role
from tdn.trust import credentials
from tests.conftest import Connect
from tests.live import LiveNetwork, Ran, run, until

pytestmark = pytest.mark.broker

NO_ENTRY = (pika.exceptions.AMQPError, ssl.SSLError, OSError)


@dataclass(frozen=True)
class Owner:
    """An entity with a topic that was made before anything was rotated."""

    live: LiveNetwork
    folder: Path
    uuid: str
    #: What `entity create --json` printed: advertisement and receipt.
    line: str
    #: The trust root of that time, outside of the home.
    root: Path

    def entity(self, *words: str, folder: Path | None = None) -> Ran:
        return run("entity", "--credentials", folder or self.folder, "--json", *words)

    async def still_owns(self) -> None:
        """The old statements verify offline, with the old root alone; the topic can be renewed and found."""
        verified = run("tdn", "--home", self.root.parent / "none", "--json", "verify", "-", "--trust", self.root, stdin=self.line)
        assert verified.code == 0, verified.out
        assert [verdict["kind"] for verdict in verified.lines] == ["advertisement", "receipt"]
        renewed = await asyncio.to_thread(self.entity, "renew", self.uuid, "--lifetime", "2d")
        assert renewed.code == 0, renewed.err
        found = await asyncio.to_thread(self.entity, "discover", "--string", f"rotation/{self.folder.name}")
        assert [topic["uuid"] for topic in found.lines] == [self.uuid], found.err

    def key(self) -> bytes:
        return (self.folder / "key.pem").read_bytes()


async def tdn(live: LiveNetwork, *words: str) -> dict[str, Any]:
    """A `tdn` command that must succeed; our own connections go on meanwhile."""
    ran = await asyncio.to_thread(run, "tdn", "--home", live.home.folder, "--json", *words)
    assert ran.code == 0, ran.err
    return ran.one


def owner(live: LiveNetwork, scratch: Path) -> Owner:
    folder = live.entity("owner", institution="ACME")
    root = Path(shutil.copy(live.home.folder / "ca" / "root.pem", scratch / "root.pem"))
    created = run("entity", "--credentials", folder, "--json", "create", "--path", f"rotation/{folder.name}")
    assert created.code == 0, created.err
    return Owner(live, folder, created.one["uuid"], created.out, root)


def is_cut(connection: pika.BlockingConnection) -> bool:
    try:
        connection.process_data_events(0.02)
    except pika.exceptions.AMQPError:
        return True
    return False


def is_shut_out(live: LiveNetwork, folder: Path) -> bool:
    """Whether the broker lets nobody in with these credentials."""
    try:
        live.amqp(folder).close()
    except NO_ENTRY:
        return True
    return False


async def works(client: EntityClient) -> bool:
    return bool((await client.create(path("works"))).receipt)


async def test_an_entity_rotates(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T19: a new certificate for the same key disturbs nobody who has the old one yet; with a new key the old one ends."""
    alice = owner(mortal, tmp_path)
    before = credentials.load(alice.folder).identity
    first = shutil.copytree(alice.folder, tmp_path / "first")
    session, plain = await connect(mortal, first), mortal.amqp(first)

    key = alice.key()
    issued = await tdn(mortal, "ca", "issue", alice.folder.name, "--keep-key")
    assert (issued["name"], issued["institution"], issued["rotated"]) == (str(before.name), "ACME", True)
    assert alice.key() == key
    after = credentials.load(alice.folder).identity
    assert after.thumbprint != before.thumbprint
    await alice.still_owns()
    fact = mortal.fact("principal", before.name.principal)
    assert fact is not None
    assert (fact["thumbprint"], fact["superseded"]) == (after.thumbprint, []), "the hello brought the new certificate"
    assert await works(session), "a session that began with the earlier certificate"
    assert not is_cut(plain)
    assert alice.entity("show", alice.uuid, folder=first).code == 0, "and one that begins with it"
    assert (await session.lookup(before.name.principal)).thumbprint == after.thumbprint, "which does not bring it back"

    await tdn(mortal, "ca", "issue", alice.folder.name)
    assert alice.key() != key
    assert await works(session), "until the new key has said hello"
    await alice.still_owns()
    await until(lambda: is_cut(plain), "the old key's connection to be cut")
    assert is_shut_out(mortal, first)
    refused = alice.entity("renew", alice.uuid, "--lifetime", "3d", folder=first)
    assert (refused.code, refused.error["error"]) == (4, "trust")
    with pytest.raises(TrustError):
        await works(session)


async def test_nodes_guard_and_intermediates_rotate(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T8, T19: each with the network running, and everything signed before still good."""
    alice = owner(mortal, tmp_path)
    session = await connect(mortal, alice.folder)
    old_node = shutil.copytree(mortal.home.credentials(Role.NODE, "n1"), tmp_path / "n1")
    old_guard = shutil.copytree(mortal.home.credentials(Role.GUARD, "g1"), tmp_path / "g1")

    await tdn(mortal, "ca", "issue", "n1", "--node")
    await until(lambda: is_shut_out(mortal, old_node), "the guard to refuse the node's old key")
    await alice.still_owns()

    await tdn(mortal, "ca", "issue", "g1", "--role", "guard")
    assert is_shut_out(mortal, old_guard), "its old key has ended when the command has"
    await alice.still_owns()

    holders = {
        f"{role}:{name}": mortal.home.credentials(role, name)
        for role, names in ((Role.BROKER, ["broker"]), (Role.GUARD, ["g1"]), (Role.NODE, mortal.nodes()))
        for name in names
    }
    former = {who: chain(folder) for who, folder in holders.items()}
    rotated = await tdn(mortal, "ca", "rotate", "nodes", "--reissue")
    assert sorted(rotated["reissued"]) == sorted(holders)
    for who, folder in holders.items():
        leaf, intermediate = chain(folder)
        assert (leaf != former[who][0], intermediate != former[who][1]) == (True, True), who
    assert mortal.ready()
    await alice.still_owns()
    located = {node.id: node async for node in session.locate()}
    assert sorted(located) == mortal.nodes()
    assert await works(session), "a session that is older than all of that"

    key, below = alice.key(), chain(alice.folder)
    rotated = await tdn(mortal, "ca", "rotate", "entities", "--reissue")
    assert f"entity:{alice.folder.name}" in rotated["reissued"]
    assert alice.key() == key
    assert chain(alice.folder)[1] != below[1]
    await alice.still_owns()
    assert await works(session)
    newcomer = mortal.entity()
    assert chain(newcomer)[1] == chain(alice.folder)[1]
    assert await works(await connect(mortal, newcomer))
    assert (await session.renew(alice.uuid, timedelta(days=3))).uuid == alice.uuid


def chain(folder: Path) -> tuple[bytes, ...]:
    return credentials.load(folder).identity.chain


def test_rotation_mistakes(mortal: LiveNetwork, tmp_path: Path) -> None:
    home, entity = mortal.home.folder, mortal.entity()
    for words in (("ca", "rotate"), ("ca", "rotate", "root"), ("ca", "issue", "nobody-yet", "--keep-key")):
        ran = run("tdn", "--home", home, "--json", *words)
        assert (ran.code, ran.error["error"]) == (2, "usage"), words
    assert not (mortal.home.credentials(Role.ENTITY, "nobody-yet") / "cert.pem").exists()
    assert run("tdn", "--home", tmp_path / "none", "--json", "ca", "rotate", "nodes").code == 2
    assert not (tmp_path / "none").exists()
    assert run("tdn", "--home", home, "ca", "revoke", entity.name).code == 0
    ran = run("tdn", "--home", home, "--json", "ca", "issue", entity.name, "--keep-key")
    assert (ran.code, "revoked" in ran.error["message"]) == (2, True), "a revoked key is not made good by paper"
