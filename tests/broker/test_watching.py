"""Following hierarchies and collections over real nodes and a real broker (T29, T35): as it happens, in order, numbered for each watcher
without holes, whatever is lost, doubled, cut or killed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
import pytest_asyncio

from entity_client import EntityClient, lists, path
from entity_client.objects import Change, read_change
from entity_client.watching import Watching
from tdn.errors import Absent, Refused, TdnError, TrustError, UsageError
from tdn.node.telling import Telling
from tdn.protocol import names
from tdn.protocol.names import Role
from tdn.protocol.trees import Gathering, Hosting
from tdn.replica.replica import Applied
from tdn.trust import sealing, statements
from tests.broker.test_faults import node_in_this_process
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, run, until, wait_for

pytestmark = pytest.mark.broker

OPEN = Hosting(allow_children=True)
NESTING = Gathering(child_collections=True, inclusion=True)


class Follower:
    """A watcher at work: what it was told so far, and how it ended."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching
        self.told: list[Change] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for change in self.watching:
            self.told.append(change)

    async def ready(self) -> None:
        await until(lambda: self.watching.ready.is_set() or self._task.done(), "the watcher to be ready")
        if self._task.done():
            self._task.result()

    async def heard(self, count: int) -> list[tuple[int, str, str]]:
        """Wait for so many changes; version, what happened and to what."""
        await until(lambda: len(self.told) >= count or self._task.done(), f"{count} changes, not {len(self.told)}")
        if self._task.done():
            self._task.result()
        return [(change.version, change.change, change.uuid) for change in self.told]

    async def error(self) -> TdnError:
        """What it ended with."""
        await until(self._task.done, "the watcher to end")
        error = self._task.exception()
        assert isinstance(error, TdnError), error
        return error

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


Follow = Callable[..., Awaitable[Follower]]


@pytest_asyncio.fixture
async def follow() -> AsyncIterator[Follow]:
    """Makes followers that are ready; they are stopped after the test."""
    followers: list[Follower] = []

    async def begin(client: EntityClient, uuid: str, *, since: int | None = None) -> Follower:
        followers.append(Follower(client.collections.watch(uuid, since=since)))
        await followers[-1].ready()
        return followers[-1]

    yield begin
    for follower in followers:
        await follower.stop()


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is believed for ever: what a watcher hears, it was sent, or asked for because of what it was sent."""
    monkeypatch.setattr("entity_client.watching._ASK_SECONDS", 1000.0)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is not believed for long, where a test would wait for it."""
    monkeypatch.setattr("entity_client.watching._ASK_SECONDS", 0.3)


async def child(client: EntityClient, parent: str, **how: Any) -> str:
    return (await client.create(path("child"), parent=parent, **how)).uuid


async def collection(client: EntityClient, gathering: Gathering = NESTING, **how: Any) -> str:
    return (await client.create_collection(path("collection"), gathering, **how)).uuid


async def topic(client: EntityClient, **how: Any) -> str:
    return (await client.create(path("topic"), **how)).uuid


def named(client: EntityClient) -> str:
    return client.identity.name.id


def tell(*clients: EntityClient) -> None:
    """Each knows what the others have receipts for, so that whichever node it asks answers from a view that has it."""
    seen = max(client.seen for client in clients)
    for client in clients:
        client.seen = seen


# --- as it happens -------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polling")
async def test_a_hierarchy_as_it_happens(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T29: each addition and each end, sent and not asked for, signed by a node for this watcher; a subtree's end is one change."""
    owner, other, watcher = await connect(live), await connect(live), await connect(live)
    root = await topic(owner, hosting=OPEN)
    before = await child(other, root, hosting=OPEN)
    tell(owner, other, watcher)
    follower = await follow(watcher, root)
    assert follower.watching.version == 0
    grandchild = await child(owner, before)
    brief = await child(other, root, lifetime=timedelta(seconds=6), hosting=OPEN)
    await child(owner, brief)
    heard = [(1, "added", grandchild), (2, "added", brief)]
    assert (await follower.heard(3))[:2] == heard
    await other.withdraw(before)
    await follower.heard(5)
    assert [change.change for change in follower.told] == ["added", "added", "added", "withdrawn", "expired"]
    assert [change.uuid for change in follower.told[3:]] == [before, brief]
    assert [change.version for change in follower.told] == [1, 2, 3, 4, 5]
    assert [change.inside for change in follower.told] == [before, root, brief, root, root]
    roots = live.credentials(Role.NODE, "n1").roots
    for change in follower.told:
        statement = statements.read(change.notification.encode(), statements.by_roots(roots))
        assert (statement.kind, statement.signer.name.role) == ("notification", Role.NODE)
        assert (change.subject, change.kind) == (root, "topic")
        assert statement.payload["watcher"] == named(watcher)
        (record,) = await until(lambda seq=change.seq: live.records("n1", "seq = ?", seq), "n1 to have it")
        assert record["status"] == "accepted"
    order = [change.seq for change in follower.told]
    assert order == sorted(order)


@pytest.mark.usefixtures("no_polling")
async def test_a_collection_as_it_happens(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T35: added, removed, withdrawn, expired; of topics and of collections; a move is told as both, to each as far as it concerns it."""
    owner, watcher = await connect(live), await connect(live)
    first, second, part = await collection(owner), await collection(owner), await collection(owner)
    one, two = await topic(owner), await topic(owner)
    brief = await topic(owner, lifetime=timedelta(seconds=8))
    tell(owner, watcher)
    at_first, at_second = await follow(watcher, first), await follow(watcher, second)
    manage = owner.collections
    await manage.add(first, one)
    await manage.add(first, brief)
    await manage.add(first, part)
    await manage.add(second, two)
    await manage.move(one, source=first, target=second)
    await manage.remove(first, part)
    await owner.withdraw(two)
    heard = await at_first.heard(6)
    assert [(change, uuid) for _, change, uuid in heard if uuid != brief] == [
        ("added", one),
        ("added", part),
        ("removed", one),
        ("removed", part),
    ]
    assert [change for _, change, uuid in heard if uuid == brief] == ["added", "expired"]
    assert [version for version, _, _ in heard] == [1, 2, 3, 4, 5, 6]
    assert {change.kind for change in at_first.told if change.uuid == part} == {"collection"}
    assert await at_second.heard(3) == [(1, "added", two), (2, "added", one), (3, "withdrawn", two)]


@pytest.mark.usefixtures("no_polling")
async def test_deep_in_the_tree(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T35: authority on the root covers what is inside: told once, however many ways lead up; of a part taken out, nothing more."""
    owner, watcher = await connect(live), await connect(live)
    root, left, right, deep = [await collection(owner) for _ in range(4)]
    for holder, held in ((root, left), (root, right), (left, deep), (right, deep)):
        await owner.collections.add(holder, held)
    one, two, three, last = [await topic(owner) for _ in range(4)]
    tell(owner, watcher)
    follower = await follow(watcher, root)
    at_deep = await follow(watcher, deep)
    await owner.collections.add(deep, one)
    await owner.collections.remove(root, left)
    await owner.collections.add(deep, two)
    await owner.collections.remove(root, right)
    await owner.collections.add(deep, three)
    await owner.collections.add(root, last)
    assert await follower.heard(5) == [
        (1, "added", one),
        (2, "removed", left),
        (3, "added", two),
        (4, "removed", right),
        (5, "added", last),
    ]
    assert follower.told[0].inside == deep
    assert await at_deep.heard(3) == [(1, "added", one), (2, "added", two), (3, "added", three)]


@pytest.mark.usefixtures("no_polling")
async def test_in_order_whoever_decides(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T29: many changes by several entities at both nodes at once: every one told, in the order of the log, numbered without a hole.

    Two nodes send them, so they arrive in any order.
    """
    owner, watcher = await connect(live), await connect(live)
    makers = [await connect(live) for _ in range(3)]
    root = await topic(owner, hosting=OPEN)
    tell(owner, watcher, *makers)
    follower = await follow(watcher, root)
    made = await asyncio.gather(
        *(child(maker, root, node=node) for maker in makers for node in ("n1", "n2", "n1", "n2", None, None))
    )
    heard = await follower.heard(len(made))
    assert [version for version, _, _ in heard] == [*range(1, len(made) + 1)]
    assert sorted(uuid for _, _, uuid in heard) == sorted(made)
    facts = [await until(lambda uuid=uuid: live.fact("topic", uuid), "n1 to have it") for _, _, uuid in heard]
    advertised = [fact["advertised"] for fact in facts]
    assert advertised == sorted(advertised)
    assert len({change.node for change in follower.told}) == 2


# --- who sees what -------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polling")
async def test_each_has_its_own_numbers(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T29, T35: watchers with different sight see different changes, each numbered from 1 without holes."""
    owner, friend, other = await connect(live), await connect(live), await connect(live)
    private = lists([named(friend)])
    root = await topic(owner, hosting=OPEN)
    gathered = await collection(owner)
    tell(owner, friend, other)
    followers = {(client, uuid): await follow(client, uuid) for client in (owner, friend, other) for uuid in (root, gathered)}
    hidden, shown = await child(owner, root, lists=private), await child(owner, root)
    for uuid in (hidden, shown):
        await owner.collections.add(gathered, uuid)
    await owner.withdraw(hidden)
    last = await child(owner, root)
    await owner.collections.add(gathered, last)
    for client in (owner, friend):
        assert await followers[client, root].heard(4) == [
            (1, "added", hidden),
            (2, "added", shown),
            (3, "withdrawn", hidden),
            (4, "added", last),
        ]
        assert [change for _, change, _ in await followers[client, gathered].heard(4)] == ["added", "added", "withdrawn", "added"]
    for uuid in (root, gathered):
        assert await followers[other, uuid].heard(2) == [(1, "added", shown), (2, "added", last)]


async def test_a_hidden_change_sends_nothing(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """T29: not a message, not an empty one: on the reply queue of a watcher lies what it may see and nothing else."""
    owner = await connect(live)
    friends = lists(["friend-of-nobody"])
    root = await topic(owner, hosting=OPEN)
    gathered = await collection(owner)
    inner = await collection(owner, lists={"discover": friends})
    await owner.collections.add(gathered, inner)
    for node in ("n1", "n2"):
        await until(lambda node=node: live.records(node, "seq = ?", owner.seen), "both to have all")
    raw.introduce()
    for uuid in (root, gathered):
        raw.change(raw.write("watch", {"uuid": uuid}))
    await until(lambda: live.waiting(raw.queue) == 2, "both to be decided")
    for uuid in (root, gathered):
        await until(lambda uuid=uuid: live.fact("watch", f"{uuid} {raw.name.id}"), "n1 to have it")
    for uuid in (root, gathered):
        body = {"uuid": uuid, "since": 0, "follow": True}
        raw.question(raw.seal(raw.claim("changes", body, audience="node:n1"), "n1"), "n1")
    await until(lambda: live.waiting(raw.queue) == 4, "both to be followed")
    visible = [await topic(owner), await topic(owner)]
    # By both nodes, and of every sort.
    for node in ("n1", "n2"):
        hidden = await child(owner, root, node=node, lists=friends)
        for at in (gathered, inner):
            await owner.collections.add(at, hidden)
        await owner.collections.add(inner, visible[0])
        await owner.collections.remove(inner, visible[0])
        await owner.collections.remove(gathered, hidden)
        await owner.withdraw(hidden)
    await owner.collections.add(gathered, visible[1])
    await until(lambda: live.waiting(raw.queue) >= 5, "what shows to be told")
    raw.listen()
    for _ in range(4):
        raw.reply()
    change = notification(raw)
    assert (change.subject, change.version, change.uuid) == (gathered, 1, visible[1])
    shown = await child(owner, root)
    change = notification(raw)
    assert (change.subject, change.version, change.uuid) == (root, 1, shown)
    assert raw.more_replies() == 0


def notification(raw: RawEntity) -> Change:
    """The next message on a reply queue, which is a notification."""
    token = sealing.unseal(raw._next(raw._replies), raw.credentials.key)
    return read_change(token, statements.by_roots(raw.credentials.roots), raw.live.home.network, raw.name.id)


async def test_what_cannot_be_followed(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T18: absent, ended, hidden, of a place or with changes that are for others: the same words, for both ways to begin."""
    owner, other = await connect(live), await connect(live)
    private = lists([named(owner)])
    ended = await topic(owner)
    await owner.withdraw(ended)
    gone = (
        names.mint_uuid(),
        ended,
        await topic(owner, lists=private),
        await topic(owner, hierarchy=private),
        await collection(owner, lists={"discover": private}),
        await collection(owner, lists={"watch": private}),
    )
    tell(owner, other)
    for since in (None, 0, 7):
        said = set()
        for uuid in gone:
            with pytest.raises(TdnError) as refused:
                await follow(other, uuid, since=since)
            said.add((type(refused.value), str(refused.value).replace(uuid, "X")))
        assert said == {(Refused, "there is no X that you may follow")}
    with pytest.raises(Refused, match="that you follow"):
        await other.hierarchy.unwatch(gone[0])
    with pytest.raises(UsageError):
        other.hierarchy.watch("not-a-uuid")
    # Whom the list names may, and the owner always.
    watched = await collection(owner, lists={"watch": lists([named(other)])})
    tell(owner, other)
    for client in (owner, other):
        await follow(client, watched)


# --- being away ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polling")
async def test_resuming_after_being_away(live: LiveNetwork, connect: Connect, follow: Follow, entity: Path) -> None:
    """T29, T35: what happened meanwhile is told from the version that one names; without one, from now on."""
    owner, watcher = await connect(live), await connect(live, entity)
    gathered = await collection(owner)
    uuids = [await topic(owner) for _ in range(6)]
    tell(owner, watcher)
    follower = await follow(watcher, gathered)
    await owner.collections.add(gathered, uuids[0])
    await follower.heard(1)
    await follower.stop()
    await watcher.close()
    for uuid in uuids[1:4]:
        await owner.collections.add(gathered, uuid)
    back = await connect(live, entity)
    resumed = await follow(back, gathered, since=1)
    expected = [(number, "added", uuid) for number, uuid in enumerate(uuids[:4], start=1)]
    assert await resumed.heard(3) == expected[1:]
    # In another session of the same entity, from the very beginning and from now on; all of them hear what follows.
    sessions = {since: await follow(await connect(live, entity), gathered, since=since) for since in (0, None)}
    assert await sessions[0].heard(4) == expected
    assert sessions[None].watching.version == 4
    await owner.collections.add(gathered, uuids[4])
    latest = (5, "added", uuids[4])
    assert (await resumed.heard(4))[-1] == latest
    assert (await sessions[0].heard(5))[-1] == latest
    assert await sessions[None].heard(1) == [latest]
    with pytest.raises(UsageError, match="followed in this session already"):
        await follow(back, gathered)


async def test_a_version_that_is_not_there_yet(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """Ahead of what one was told: a clear error, and not silence until it comes true."""
    owner, watcher = await connect(live), await connect(live)
    gathered = await collection(owner)
    tell(owner, watcher)
    for since in (1, 10**12):
        with pytest.raises(UsageError, match=f"there is no version {since} yet; you were told 0 changes of {gathered}"):
            await follow(watcher, gathered, since=since)
    with pytest.raises(TdnError) as refused:
        await follow(watcher, gathered, since=-1)
    assert refused.value.word == "usage"


@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("way", ["withdrawn", "expired"])
async def test_the_end_of_what_one_follows(live: LiveNetwork, connect: Connect, follow: Follow, entity: Path, way: str) -> None:
    """T29, T35: that it ended is the last that is told, to those who were away as well; then nothing, and nobody can begin to follow it."""
    owner, watcher, away = await connect(live), await connect(live), await connect(live, entity)
    lifetime = timedelta(seconds=8) if way == "expired" else timedelta(days=1)
    root, gathered = await topic(owner, hosting=OPEN, lifetime=lifetime), await collection(owner, lifetime=lifetime)
    member = await topic(owner)
    tell(owner, watcher, away)
    followers = {uuid: await follow(watcher, uuid) for uuid in (root, gathered)}
    for uuid in (root, gathered):
        await (await follow(away, uuid)).stop()
    below = await child(owner, root)
    await owner.collections.add(gathered, member)
    if way == "withdrawn":
        for uuid in (root, gathered):
            await owner.withdraw(uuid)
    heard = {root: [(1, "added", below), (2, way, root)], gathered: [(1, "added", member), (2, way, gathered)]}
    for uuid, follower in followers.items():
        assert await follower.heard(2) == heard[uuid]
        assert follower.told[-1].kind == ("topic" if uuid == root else "collection")
    # What it held lives on, and what becomes of that is no longer told.
    await owner.withdraw(member)
    back = await connect(live, entity)
    for uuid, follower in followers.items():
        late = await follow(back, uuid, since=0)
        assert await late.heard(2) == heard[uuid]
        assert len(follower.told) == 2
        with pytest.raises(Refused, match="that you may follow"):
            await follow(owner, uuid)
        await watcher.hierarchy.unwatch(uuid)


@pytest.mark.usefixtures("often")
async def test_unwatching(live: LiveNetwork, connect: Connect, follow: Follow, entity: Path) -> None:
    """Told no longer, in any session; what was told is forgotten, and following again begins at 1."""
    owner, watcher = await connect(live), await connect(live, entity)
    gathered = await collection(owner)
    one, two, three = [await topic(owner) for _ in range(3)]
    tell(owner, watcher)
    follower = await follow(watcher, gathered)
    await owner.collections.add(gathered, one)
    await follower.heard(1)
    elsewhere = await connect(live, entity)
    decided = await elsewhere.collections.unwatch(gathered)
    assert (decided.kind, decided.uuid, decided.version) == ("unwatch", gathered, 1)
    error = await follower.error()
    assert isinstance(error, Absent)
    assert str(error) == f"there is no {gathered} that you follow"
    with pytest.raises(Refused, match="that you follow"):
        await elsewhere.collections.unwatch(gathered)
    await owner.collections.add(gathered, two)
    again = await follow(elsewhere, gathered)
    assert again.watching.version == 0
    await owner.collections.add(gathered, three)
    assert await again.heard(1) == [(1, "added", three)]


@pytest.mark.usefixtures("often")
async def test_followed_anew_behind_ones_back(live: LiveNetwork, connect: Connect, follow: Follow, entity: Path) -> None:
    """Another session of the same entity ends the following and begins it again: a watcher that counts by the old numbers is told so."""
    owner, watcher = await connect(live), await connect(live, entity)
    gathered = await collection(owner)
    tell(owner, watcher)
    follower = await follow(watcher, gathered)
    await owner.collections.add(gathered, await topic(owner))
    await owner.collections.add(gathered, await topic(owner))
    await follower.heard(2)
    raw = RawEntity(live, entity)
    raw.hello()
    for kind in ("unwatch", "watch"):
        raw.change(raw.write(kind, {"uuid": gathered}))
    for _ in range(2):
        assert raw.reply().kind == "decided"
    raw.close()
    error = await follower.error()
    assert isinstance(error, Absent | Refused)
    assert gathered in str(error)


# --- lost, doubled, forged -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cut_off(live: LiveNetwork, client: EntityClient, change_topic: str) -> Iterator[None]:
    """What is sent to a watcher meanwhile is lost on the way."""
    queue = names.reply_queue(client.identity.name, client._session.queue or "")
    key = names.notification_key(change_topic, named(client))
    with live.as_node() as connection:
        channel = connection.channel()
        channel.queue_unbind(queue, names.NOTIFICATIONS, key)
        yield
        channel.queue_bind(queue, names.NOTIFICATIONS, key)


@pytest.mark.usefixtures("no_polling")
async def test_a_gap_is_noticed_and_healed(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T29: what was lost on the way is asked for when the next one comes, and told before it."""
    owner, watcher = await connect(live), await connect(live)
    root = await topic(owner, hosting=OPEN)
    tell(owner, watcher)
    follower = await follow(watcher, root)
    first = await child(owner, root)
    await follower.heard(1)
    with cut_off(live, watcher, root):
        lost = [await child(owner, root), await child(owner, root)]
    assert len(follower.told) == 1
    last = await child(owner, root)
    uuids = [first, *lost, last]
    assert await follower.heard(4) == [(number, "added", uuid) for number, uuid in enumerate(uuids, start=1)]


@pytest.mark.usefixtures("often")
async def test_silence_is_not_believed(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T29: the last notification can be the lost one, so a watcher asks now and then."""
    owner, watcher = await connect(live), await connect(live)
    gathered = await owner.create_collection(path("silent"))
    member = await topic(owner)
    tell(owner, watcher)
    follower = await follow(watcher, gathered.uuid)
    with cut_off(live, watcher, gathered.hides.notifications or ""):
        await owner.collections.add(gathered.uuid, member)
        assert await follower.heard(1) == [(1, "added", member)]


@pytest.mark.usefixtures("no_polling")
async def test_what_else_is_sent_does_no_harm(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T29: the same again, an old one, another watcher's, one of something else, one that an entity signed, garbage, nothing."""
    owner, watcher, other = await connect(live), await connect(live), await connect(live)
    root, beside = await topic(owner, hosting=OPEN), await topic(owner, hosting=OPEN)
    tell(owner, watcher, other)
    follower, at_beside, others = await follow(watcher, root), await follow(watcher, beside), await follow(other, root)
    for parent in (root, beside, root):
        await child(owner, parent)
    await follower.heard(2)
    (elsewhere,) = (await at_beside.heard(1)) and at_beside.told
    await others.heard(2)

    def sealed(token: str) -> bytes:
        return sealing.seal(token.encode(), watcher.identity.public_key)

    forged = statements.sign(
        "notification",
        {
            **statements.read(
                follower.told[1].notification.encode(), statements.by_roots(watcher._session.credentials.roots)
            ).payload,
            "version": 3,
        },
        other._session.credentials,
        other.identity.not_before + timedelta(minutes=1),
    ).decode()
    messages = [
        sealed(follower.told[1].notification),
        sealed(follower.told[1].notification),
        sealed(follower.told[0].notification),
        sealed(others.told[1].notification),
        sealed(elsewhere.notification),
        sealed(forged),
        follower.told[1].notification.encode(),
        b"garbage",
        b"",
        b"\x00" * 10_000,
    ]
    with live.as_node() as connection:
        channel = connection.channel()
        for message in messages:
            properties = pika.BasicProperties(correlation_id=names.watching(root))
            channel.basic_publish(names.NOTIFICATIONS, names.notification_key(root, named(watcher)), message, properties)
    last = await child(owner, root)
    heard = await follower.heard(3)
    assert [version for version, _, _ in heard] == [1, 2, 3]
    assert heard[-1] == (3, "added", last)
    assert await others.heard(3) == heard
    assert len(at_beside.told) == 1


@pytest.mark.usefixtures("no_polling")
async def test_a_connection_that_the_broker_closed(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T22, T29: a watcher comes back by itself, hears what it missed, and is sent what follows."""
    owner, watcher = await connect(live), await connect(live, timeout=20)
    root, gathered = await topic(owner, hosting=OPEN), await collection(owner)
    tell(owner, watcher)
    followers = [await follow(watcher, uuid) for uuid in (root, gathered)]
    connection = watcher._session._line.connection  # type: ignore[union-attr]
    live.cut(watcher.identity.name)
    missed = await child(owner, root)
    await owner.collections.add(gathered, missed)
    for follower in followers:
        assert await follower.heard(1) == [(1, "added", missed)]
    assert connection.closed.done()
    # Sent again, to the new session.
    later = await child(owner, root)
    await owner.collections.add(gathered, later)
    for follower in followers:
        assert await follower.heard(2) == [(1, "added", missed), (2, "added", later)]


# --- authority that is lost ----------------------------------------------------------------------------------------------------------


async def test_a_watcher_that_is_revoked(live: LiveNetwork, connect: Connect, follow: Follow, entity: Path) -> None:
    """T19, T35: its following ends with a clear error, and nothing is told to it any more."""
    owner, watcher = await connect(live), await connect(live, entity, timeout=10)
    root = await topic(owner, hosting=OPEN)
    tell(owner, watcher)
    follower = await follow(watcher, root)
    await child(owner, root)
    await follower.heard(1)
    revoked = await asyncio.to_thread(run, "tdn", "--home", live.home.folder, "ca", "revoke", entity.name)
    assert revoked.code == 0, revoked.err
    error = await follower.error()
    assert isinstance(error, TrustError)
    assert "revoked" in str(error)
    await child(owner, root)
    await until(lambda: live.records("n1", "seq >= ?", owner.seen), "n1 to have it")
    assert (live.fact("watch", f"{root} {entity.name}") or {})["version"] == 1


async def test_a_new_certificate_of_another_institution(live: LiveNetwork, connect: Connect, follow: Follow) -> None:
    """T35: what its institution gave, an entity has no longer when its certificate names another; and the other way about."""
    owner = await connect(live)
    leaving, joining = live.entity("leaving", institution="Guild"), live.entity("joining")
    clients = [await connect(live, folder, timeout=10) for folder in (leaving, joining)]
    root = await topic(owner, hosting=OPEN, hierarchy=lists(["institution:Guild"]))
    tell(owner, *clients)
    follower = await follow(clients[0], root)
    with pytest.raises(Refused):
        await follow(clients[1], root)
    first = await child(owner, root)
    await follower.heard(1)
    for folder, institution in ((leaving, "Elsewhere"), (joining, "Guild")):
        live.network.operator.issue(Role.ENTITY, folder.name, institution=institution)
    left, joined = [await connect(live, folder) for folder in (leaving, joining)]
    await left.choose()
    at_root = await follow(joined, root)
    assert isinstance(await follower.error(), TrustError), "the old certificate is superseded"
    for since in (None, 1):
        with pytest.raises(Refused, match="that you may follow"):
            await follow(left, root, since=since)
    second = await child(owner, root)
    assert await at_root.heard(1) == [(1, "added", second)]
    await until(lambda: live.records("n1", "seq >= ?", owner.seen), "n1 to have it")
    assert (live.fact("watch", f"{root} {leaving.name}") or {})["version"] == 1, "nothing was told to who may not see it"
    assert [change.uuid for change in follower.told] == [first]


# --- bad input -----------------------------------------------------------------------------------------------------------------------


async def test_following_that_is_no_good(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """To a session that never was, to none, of what one does not follow, from a version that is none: the nodes go on as they were."""
    pids = {entry["id"]: entry["pid"] for entry in live.network.status()}
    owner = await connect(live)
    root, other = await topic(owner, hosting=OPEN), await topic(owner, hosting=OPEN)
    for node in ("n1", "n2"):
        await until(lambda node=node: live.records(node, "seq = ?", owner.seen), "both to have all")
    raw.hello()
    for uuid in (other, names.mint_uuid()):
        for wanted in (True, False):
            answer = raw.ask("changes", {"uuid": uuid, "since": 0, "follow": wanted})
            assert (answer.body["error"], answer.body["message"]) == ("absent", f"there is no {uuid} that you follow")
    raw.change(raw.write("watch", {"uuid": root}))
    assert raw.reply().kind == "decided"
    for node in ("n1", "n2"):
        await until(lambda node=node: live.fact("watch", f"{root} {raw.name.id}", node), f"{node} to have it")
    good = {"uuid": root, "since": 0, "follow": True}
    made_up = names.new_session()
    for node in ("n1", "n2"):
        raw.question(raw.seal(raw.claim("changes", good, audience=f"node:{node}", reply=made_up), node), node)
        raw.question(
            raw.seal(raw.write("changes", good, audience=f"node:{node}", reply=None), node), node, reply_to=names.DIRECT_REPLY
        )
        answer = raw.direct_reply()
        assert (answer.body["error"], "name it" in answer.body["message"]) == ("refused", True)
        raw.question(raw.write("changes", good, audience=f"node:{node}"), node)
        assert "sealed" in raw.reply().body["message"]
        for body, words in (
            ({"uuid": root}, "since"),
            ({"uuid": root, "since": -1}, "since"),
            ({"uuid": root, "since": "0"}, "since"),
            ({"uuid": root, "since": 0, "follow": "yes"}, "follow"),
            ({**good, "queue": names.CHANGES}, "queue"),
        ):
            message = raw.seal(raw.claim("changes", body, audience=f"node:{node}"), node)
            raw.question(message, node, reply_to=names.DIRECT_REPLY)
            answer = raw.direct_reply()
            assert (answer.body["error"], words in answer.body["message"]) == ("usage", True), answer.body
        for since in (5, 10**30):
            answer = raw.ask("changes", {**good, "since": since}, node)
            assert (answer.body["error"], f"no version {since} yet" in answer.body["message"]) == ("usage", True)
        assert raw.ask("changes", good, node).kind == "changed"
    # Both are served on by the same processes, over the same channels.
    shown = await child(owner, root)
    assert notification(raw).uuid == shown
    for _ in range(3):
        raw.change(raw.write("watch", {"uuid": root}))
        assert raw.reply().kind == "decided"
    assert raw.more_replies() == 0
    assert {entry["id"]: entry["pid"] for entry in live.network.status()} == pids
    assert live.counts("failed") == 0
    wait_for(lambda: live.unanswered("n1") == 0, "n1 to have taken all")


async def test_nobody_else_hears(live: LiveNetwork, connect: Connect, raw: RawEntity, follow: Follow) -> None:
    """T20, T30: an entity can neither bind its queue to another's changes, nor send any, nor have them sent to another's queue."""
    owner, watcher = await connect(live), await connect(live)
    root = await topic(owner, hosting=OPEN, lists=lists([named(owner), named(watcher)]))
    tell(owner, watcher)
    follower = await follow(watcher, root)
    raw.introduce()
    key = names.notification_key(root, named(watcher))
    attempts: list[Callable[[Any], Any]] = [
        lambda channel: channel.queue_bind(raw.queue, names.NOTIFICATIONS, key),
        lambda channel: channel.queue_bind(raw.queue, names.NOTIFICATIONS, names.notification_key(root, raw.name.id)),
        lambda channel: channel.exchange_declare(names.NOTIFICATIONS, "fanout"),
        lambda channel: channel.basic_publish(names.NOTIFICATIONS, key, b"x", mandatory=True),
    ]
    for attempt in attempts:
        channel = raw.connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            attempt(channel)
    raw.question(
        raw.seal(
            raw.write("changes", {"uuid": root, "since": 0, "follow": True}, audience="node:n1", reply=watcher._session.queue),
            "n1",
        ),
        "n1",
    )
    shown = await child(owner, root)
    assert await follower.heard(1) == [(1, "added", shown)]
    assert live.waiting(raw.queue) == 0


# --- faults --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.chaos
async def test_a_node_dies_between_deciding_and_telling(
    mortal: LiveNetwork, connect: Connect, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T29, T35: decided in the log and told to nobody, and its node is gone: the watcher, which lost it with all nodes, hears it from the next."""
    untold: list[Applied] = []

    class Dying(Telling):
        def on_applied(self, applied: Applied) -> None:
            untold.append(applied)

    owner, watcher = await connect(mortal, timeout=30), await connect(mortal, timeout=30)
    gathered = await collection(owner)
    one, two = await topic(owner), await topic(owner)
    tell(owner, watcher)
    follower = await follow(watcher, gathered)
    mortal.stop("n2")
    mortal.kill("n1")
    monkeypatch.setattr("tdn.node.service.Telling", Dying)
    async with node_in_this_process(mortal, "n1"):
        await owner.collections.add(gathered, one)
    monkeypatch.undo()
    assert untold
    assert follower.told == []
    await asyncio.to_thread(mortal.start, "n2")
    assert await follower.heard(1) == [(1, "added", one)]
    await owner.collections.add(gathered, two)
    assert await follower.heard(2) == [(1, "added", one), (2, "added", two)]
