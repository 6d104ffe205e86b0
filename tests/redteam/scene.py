"""Players and topics for attacks on grants: set up with our own client, then everybody speaks for itself. About our own network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from entity_client import EntityClient, path
from entity_client.messaging import use
from tdn.protocol.names import Role
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tests.redteam.forged import Held, Scene
from tests.redteam.ours import Ours, party
from tests.redteam.target import Party, Target

PLAYERS = ("alice", "carol", "grace", "mallory", "sybil")


@contextlib.asynccontextmanager
async def clients(ours: Ours, *names: str) -> AsyncIterator[list[EntityClient]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await EntityClient.connect(ours.folder(name), timeout=30)) for name in names]


def play(ours: Ours, names: str, act: Callable[..., Awaitable[Any]]) -> Any:
    """Let some players do something with our client; gives what they made of it."""

    async def whole() -> Any:
        async with clients(ours, *names.split()) as connected:
            return await act(*connected)

    return asyncio.run(whole())


def make_scene(ours: Ours) -> Scene:
    victims, granted = ours.target.victim.exchange, ours.target.attacker.exchange

    async def prepare(alice: EntityClient, carol: EntityClient, grace: EntityClient, mallory: EntityClient, *_: Any) -> Any:
        await carol.choose()
        own = await mallory.create(path("mallorys/own"))
        held = {
            "stolen": await alice.grants.give(PUBLISH, victims, "carol", delegable=True),
            "delegable": await grace.grants.give(PUBLISH, granted, "mallory", delegable=True),
            "own": await mallory.grants.give(PUBLISH, own.uuid, "sybil"),
        }
        async for grant in mallory.grants.find(granted):
            if grant.grant.terms.right == PUBLISH and not grant.grant.terms.delegable:
                held["plain"] = grant
        advertisements = {topic: (await mallory.show(topic)).advertisement.digest for topic in (victims, granted, own.uuid)}
        return {name: Held(grant.token.encode().split(b"~")[0]) for name, grant in held.items()}, advertisements

    held, advertisements = play(ours, " ".join(PLAYERS), prepare)
    return Scene(ours, {}, advertisements, held)


async def reader_of(client: EntityClient, folder: Path, topic: str) -> Party:
    """Have a client's topic opened and subscribed to; the client as a party that may write and read it."""
    await use(client, topic, PUBLISH)
    return party(folder, topic, await use(client, topic, SUBSCRIBE))


def against(target: Target, victim: Party) -> Target:
    """The same target with another victim."""
    return replace(target, victim=victim)


def as_entity(ours: Ours, name: str) -> Party:
    """Somebody to attack as, without a topic."""
    return party(ours.live.home.credentials(Role.ENTITY, name), "", "")
