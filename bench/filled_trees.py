"""A network whose log has grown large trees: a topic with 100,000 children, which are all in one collection, and a chain 100 deep.

Roots and the collection are created over the wire. What stands below them is put into a node's store while the network is down, record by
record, by the rules themselves: whatever `register`, `advertise` and `add` read, decide and write is done as by `apply`; advertisements are
signed. Only the signatures around them are not checked, and the stream does not hold the records. Then every node, and the guard, gets
that store; so all have the same state, as large as if everything had come over the wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from entity_client import EntityClient
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol import jsontext
from tdn.protocol.descriptor import path, text
from tdn.protocol.names import Role, mint_uuid
from tdn.protocol.times import format_time, parse_time
from tdn.protocol.trees import Hosting
from tdn.rules.apply import _decide, audience
from tdn.rules.state import LogRecord, next_head
from tdn.store.view import Position, View
from tdn.trust import credentials, envelope, openings, signing, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

#: Parents with few children, and how many each has. Several, so that they still have few when each has been measured.
NARROW, FEW = 16, 10
_LIFETIME = timedelta(days=30)
_REQUEST_LIFE = timedelta(days=1)
#: Changes in one commit.
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Trees:
    """What was made."""

    wide: str
    narrow: list[str]
    #: From the root down.
    chain: list[str]
    collection: str
    children: int


class FilledNetwork:
    """A network on two nodes with trees of a size."""

    def __init__(self, folder: Path, *, children: int, depth: int) -> None:
        self.home = Home(folder)
        self.network = Network(self.home)
        self._children = children
        self._depth = depth
        self._made = folder / "trees.json"

    def prepare(self) -> Trees:
        """Make the trees, or find them made; the network is down afterwards."""
        if self._made.exists():
            return Trees(**json.loads(self._made.read_text("utf-8")))
        shutil.rmtree(self.home.folder, ignore_errors=True)
        self.network.up()
        try:
            wide, narrow, top, collection = asyncio.run(self._roots())
        finally:
            self.network.down()
        started = time.perf_counter()
        store = self.home.credentials(Role.NODE, "n1") / "store.sqlite"
        filling = _Filling(store, self._credentials(Role.NODE, "n1"), self._credentials(Role.ENTITY, "bench-grower"))
        for parent in narrow:
            for _ in range(FEW):
                filling.child(parent)
        chain = [top]
        # The last one that can have a child in the depth that is asked for.
        while len(chain) < self._depth - 1:
            chain.append(filling.child(chain[-1], hosting=Hosting(allow_children=True)))
        for _ in range(self._children):
            filling.add(collection, filling.child(wide))
        filling.close()
        for role in (Role.NODE, Role.GUARD):
            for name in self.home.ids(role):
                self._copy(store, self.home.credentials(role, name) / "store.sqlite")
        print(
            f"{self._children} children, all in one collection, and a chain of {len(chain)} in {time.perf_counter() - started:.0f} s",
            flush=True,
        )
        trees = Trees(wide, narrow, chain, collection, self._children)
        self._made.write_text(json.dumps(asdict(trees)), "utf-8")
        return trees

    async def _roots(self) -> tuple[str, list[str], str, str]:
        folder = self.network.operator.issue(Role.ENTITY, "bench-grower")
        async with await EntityClient.connect(folder, timeout=60.0) as client:

            async def root(name: str) -> str:
                hosting = Hosting(allow_children=True)
                return (await client.create(path(f"bench/{name}"), hosting=hosting, lifetime=_LIFETIME)).uuid

            collection = await client.create_collection(path("bench/collection"), lifetime=_LIFETIME)
            narrow = [await root(f"narrow/{number}") for number in range(NARROW)]
            return await root("wide"), narrow, await root("chain"), collection.uuid

    def _credentials(self, role: Role, name: str) -> Credentials:
        return credentials.load(self.home.credentials(role, name))

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        if source == target:
            return
        for leftover in (target, *target.parent.glob(f"{target.name}-*")):
            leftover.unlink(missing_ok=True)
        shutil.copyfile(source, target)


class _Filling:
    """Puts changes of one entity into a store, as if one node had appended them."""

    def __init__(self, store: Path, node: Credentials, entity: Credentials) -> None:
        self._view = View(store)
        self._node = node
        self._entity = entity
        self._audience = audience(self._view)
        self._numbers: Iterator[int] = iter(range(10**9))
        self._pending = 0
        # Nobody waits for what is written here, nor would miss it.
        self._view._db.execute("PRAGMA synchronous=OFF")
        self._view._db.execute("BEGIN")

    def child(self, parent: str, hosting: Hosting | None = None) -> str:
        number = next(self._numbers)
        body: dict[str, Any] = {
            "creator": self._entity.identity.name.id,
            "institution": self._entity.identity.institution,
            "lifetime_seconds": int(_LIFETIME.total_seconds()) // 2,
            "descriptor": text(f"Measurements of station {number}, every minute", ["weather", f"station-{number}"]),
            "synopsis": {"type": "string", "placeholder": "{uuid}"},
            "parent": parent,
        }
        if hosting is not None:
            body["hosting"] = hosting.as_object()
        request = self._request("register", body)
        fixed = self._put(request, {"uuid": mint_uuid(), "seed": openings.new_seed()})
        opening = openings.conceal(openings.claims_of(body), fixed["seed"])
        advertisement = statements.mint(
            request,
            uuid=fixed["uuid"],
            network=fixed["network"],
            opening=opening,
            node=self._node,
            now=parse_time(fixed["created"]),
            expires=parse_time(fixed["expires"]),
        )
        self._put(self._request("advertise", {"uuid": fixed["uuid"], "opening": opening}, advertisement))
        return str(fixed["uuid"])

    def add(self, collection: str, uuid: str) -> None:
        self._put(self._request("add", {"collection": collection, "uuid": uuid}))

    def close(self) -> None:
        self._commit()
        self._view._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._view.close()

    def _request(self, kind: str, body: Mapping[str, Any], tail: bytes | None = None) -> Envelope:
        """A request as it is once its signature was checked."""
        now = datetime.now(UTC).replace(microsecond=0)
        return Envelope(
            kind=kind,
            signer=self._entity.identity,
            audience=self._audience,
            issued=now,
            expires=now + _REQUEST_LIFE,
            id=envelope.new_id(),
            reply=None,
            answers=None,
            body=body,
            tail=tail,
            raw=b"",
        )

    def _put(self, request: Envelope, minted: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Decide and keep one change; what its receipt says."""
        view = self._view
        body = signing.encode_segment(jsontext.canonical({"body": dict(request.body)})).encode()
        # In the outer form of a record: readers take the request's body and the advertisement out of it. Padded to what a signed one has.
        raw = b"~".join(filter(None, [b"record.e30.".ljust(400, b"x"), b"request." + body + b".".ljust(400, b"x"), request.tail]))
        record = LogRecord(view.position.seq + 1, next_head(view.position.head, raw), raw)
        outcome = _decide(view, request, record, request.issued, minted)
        if outcome.receipt is None:
            raise RuntimeError(f"a {request.kind} was refused: {outcome.error}")
        # No offset of the stream, which does not hold it; the next one that it holds comes after those that were read from it.
        view._write(record, -1, outcome, format_time(request.issued))
        view.position = Position(record.seq, view.position.offset, record.head)
        self._pending += 1
        if self._pending % _AT_ONCE == 0:
            self._commit()
            self._view._db.execute("BEGIN")
        return outcome.receipt

    def _commit(self) -> None:
        position = self._view.position
        self._view._db.execute("UPDATE position SET seq = ?, head = ?", (position.seq, position.head))
        self._view._db.execute("COMMIT")


def kept_in(folder: Path) -> Path:
    """Where filled networks are made: where they are kept, if anybody wants them again (`TDN_BENCH_KEEP`)."""
    return Path(os.environ.get("TDN_BENCH_KEEP") or folder)
