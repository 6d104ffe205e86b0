"""Our own network as a target: started privately, with a victim, an attacker that has one legitimate grant elsewhere, and who else is needed."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entity_client import EntityClient, path
from entity_client.messaging import use
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.trust import credentials
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tests.live import LiveNetwork, run
from tests.redteam.target import Party, Target


@dataclass(frozen=True, slots=True)
class Ours:
    """The private network. The victim is alice, who owns topic V; the attacker is mallory, whom grace lets use topic G."""

    live: LiveNetwork
    target: Target

    def folder(self, name: str) -> Path:
        return self.live.home.credentials(Role.ENTITY, name)

    def audit(self, *words: str) -> list[dict[str, Any]]:
        """What `tdn audit` shows."""
        done = run("tdn", "--home", self.live.home.folder, "--json", "audit", "--limit", "0", *words)
        assert done.code == 0, done.err
        return done.lines

    def resident_mib(self) -> dict[str, float]:
        """Memory of the guard and the nodes."""
        found = {}
        for role in (Role.GUARD, Role.NODE):
            for name in self.live.home.ids(role):
                pid = self.live.network.process(role, name).pid
                status = Path(f"/proc/{pid}/status").read_text()
                found[f"{role}:{name}"] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return found


def set_up(live: LiveNetwork) -> Ours:
    """Topics and rights, made with our own client: what is attacked is what its users have."""
    for name in ("alice", "carol", "grace", "mallory", "sybil"):
        live.network.operator.issue(Role.ENTITY, name)
    return Ours(live, asyncio.run(_prepare(live)))


async def _prepare(live: LiveNetwork) -> Target:
    def folder(name: str) -> Path:
        return live.home.credentials(Role.ENTITY, name)

    alice, grace, mallory, sybil = [await EntityClient.connect(folder(name)) for name in ("alice", "grace", "mallory", "sybil")]
    try:
        for newcomer in (mallory, sybil):
            await newcomer.choose()
        victims, granted = await alice.create(path("victims/topic")), await grace.create(path("other/topic"))
        await grace.grants.give(PUBLISH, granted.uuid, "mallory")
        await grace.grants.give(SUBSCRIBE, granted.uuid, "mallory")
        parties = []
        for client, topic in ((mallory, granted), (alice, victims)):
            await use(client, topic.uuid, PUBLISH)
            secret = await use(client, topic.uuid, SUBSCRIBE)
            parties.append(party(folder(client.identity.name.id), topic.uuid, secret))
    finally:
        for client in (alice, grace, mallory, sybil):
            await client.close()
    settings = live.home.settings()
    (broker,) = settings.hosts
    nodes = live.nodes()
    return Target(
        host=broker.host,
        port=broker.port,
        vhost=settings.vhost,
        attacker=parties[0],
        victim=parties[1],
        management=settings.management_url,
        guard=f"https://{settings.guard_host}:{settings.guard_port}",
        private_queues=(
            names.LOG,
            names.CHANGES,
            names.DEAD,
            *(live.own_queue(node, kind) for node in nodes for kind in ("node", "guards", "heads")),
        ),
        private_exchanges=(
            names.BROADCAST,
            names.REPLIES,
            names.NOTIFICATIONS,
            names.GUARDS,
            names.HEADS,
            names.PEERS,
            names.PEER_REPLIES,
        ),
        service=(names.REQUESTS, names.TOPICS),
        # Ports of this machine are others' too; `test_nothing_else_listens` looks at the processes instead.
        closed={},
    )


def party(folder: Path, topic: str, secret: str) -> Party:
    name = credentials.load(folder).identity.name
    return Party(
        login=str(name),
        exchange=topic,
        queue=names.feed_queue(name.id, topic, secret),
        trust=folder / "trust.pem",
        certificate=folder / "cert.pem",
        key=folder / "key.pem",
    )


def listening(pid: int) -> set[tuple[str, int]]:
    """Address and port of every TCP socket that a process listens on."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(link)
        except OSError:
            continue
        if name.startswith("socket:["):
            sockets.add(name[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found
