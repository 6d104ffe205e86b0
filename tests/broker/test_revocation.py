"""Rights that end while they are used (T21): after the receipt nothing more is accepted from, or delivered to, whoever lost them; everybody else
goes on undisturbed.

Publishers here are stubborn: they hold open channels on which RabbitMQ has remembered a yes, connect anew when they are cut off, and ask no node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, path
from entity_client.grants import Revocation
from tdn.bus.connection import Connection
from tdn.errors import LoginRefused, Refused, TdnError, TrustError
from tdn.guard import audit
from tdn.guard.memory import MEMORY_FILE
from tdn.guard.service import LEASE_SECONDS, Guard, GuardSettings
from tdn.local.processes import free_ports
from tdn.node.changes import Changes
from tdn.protocol.names import Role
from tdn.protocol.trees import Gathering
from tdn.rules.state import Outcome
from tdn.trust import statements
from tdn.trust.envelope import Envelope
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tests.broker.test_faults import node_in_this_process
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, Reading, Stubborn, meet, reading, run, stubborn, unread, until

pytestmark = pytest.mark.broker

#: A guard looks at its clock twice a second, and needs a moment for what it finds.
BY_THE_CLOCK = 2.0


def named(client: EntityClient) -> str:
    return client.identity.name.id


def folder_of(client: EntityClient) -> Path:
    return client._session.credentials.folder


def tell(*clients: EntityClient) -> None:
    """Each knows what the others have receipts for, so that whichever node it asks answers from a view that has it."""
    seen = max(client.seen for client in clients)
    for client in clients:
        client.seen = seen


async def topic(client: EntityClient, **how: Any) -> str:
    """A topic that has its exchange: its owner has published something."""
    uuid = (await client.create(path("topic"), **how)).uuid
    await client.publish(uuid, "first")
    return uuid


async def grant(owner: EntityClient, right: str, uuid: str, to: EntityClient, **how: Any) -> str:
    granted = await owner.grants.give(right, uuid, named(to), **how)
    tell(owner, to)
    return granted.id


class Undisturbed:
    """That somebody's connections stay: a client's one, or those of a stubborn publisher."""

    def __init__(self, *who: EntityClient | Stubborn) -> None:
        self._lines = [(one, one._session._line) for one in who if isinstance(one, EntityClient)]
        self._publishers = [(one, one.connections, len(one.refusals)) for one in who if isinstance(one, Stubborn)]

    async def check(self) -> None:
        for client, line in self._lines:
            assert client._session._line is line, f"{named(client)} had to connect again"
            assert line is not None
            assert line.is_open, f"the connection of {named(client)} was closed"
        for publisher, connections, refusals in self._publishers:
            await publisher.publishes(20)
            assert (publisher.connections, len(publisher.refusals)) == (connections, refusals), publisher.refusals[-1:]


async def nothing_since(moment: float, publisher: Stubborn, owner: EntityClient, uuid: str, reader: Reading) -> None:
    """Nothing was accepted from a publisher after a moment, by its own account and by a subscriber's."""
    await publisher.is_refused()
    await owner.publish(uuid, f"after {named(owner)}")
    await reader.has(f"after {named(owner)}")
    mine = f"{publisher.credentials.identity.name.id} "
    arrived = {body for body in reader.bodies if body.startswith(mine)}
    assert publisher.taken, "it did publish before"
    assert max(publisher.taken.values()) < moment
    assert arrived >= publisher.taken.keys(), "what was confirmed has arrived"
    assert max(publisher.sent[body] for body in arrived) < moment
    late = len(publisher.taken)
    await publisher.is_refused()
    assert len(publisher.taken) == late


def entries(network: LiveNetwork, client: EntityClient, uuid: str | None = None) -> list[dict[str, Any]]:
    """What the guard has noted about an entity."""
    path = network.home.credentials(Role.GUARD, "g1") / audit.AUDIT_FILE
    return list(audit.search(path, entity=named(client), topic=uuid))


# --- a grant -------------------------------------------------------------------------------------------------------------------------


async def test_a_publisher_at_work(live: LiveNetwork, connect: Connect) -> None:
    """T21: not one message after the receipt, which says whose connections were closed; another publisher and a reader notice nothing."""
    owner, friend, other, watcher = await meet(live, connect, 4)
    uuid, elsewhere = await topic(owner), await topic(owner)
    lost = await grant(owner, PUBLISH, uuid, friend)
    await grant(owner, PUBLISH, elsewhere, friend)
    await grant(owner, PUBLISH, uuid, other)
    await grant(owner, SUBSCRIBE, uuid, watcher)
    async with (
        reading(watcher, uuid) as reader,
        stubborn(live, folder_of(friend), uuid) as publisher,
        stubborn(live, folder_of(other), uuid) as innocent,
    ):
        undisturbed = Undisturbed(owner, watcher, innocent)
        revocation = await owner.grants.revoke(lost)
        moment = time.monotonic()
        await nothing_since(moment, publisher, owner, uuid, reader)
        await undisturbed.check()
        assert innocent.taken.keys() <= set(await reader.has(*innocent.taken))
    assert revocation.cut == {"connections": [f"entity:{named(friend)}"], "queues": 0, "bindings": 0}
    _check_receipt(live, revocation, grant=lost)
    # The rest of its rights are as they were; a client comes back by itself.
    tell(owner, friend)
    await friend.publish(elsewhere, "still allowed")
    with pytest.raises(Refused, match=f"there is no topic {uuid} that you may publish to"):
        await friend.publish(uuid, "no more")
    noted = await until(
        lambda: [entry for entry in entries(live, friend) if entry["action"] == "cut"], "the guard to have written it down"
    )
    assert noted[0]["because"] == "a right to publish has ended; connect again"
    allowed = [entry for entry in entries(live, friend, uuid) if entry["allowed"]]
    assert {(entry["action"], entry["grant"]) for entry in allowed} == {("publish", lost)}
    denied = [entry for entry in entries(live, friend, uuid) if not entry["allowed"] and entry["action"] == "publish"]
    assert denied[0]["because"] == f"no grant lets entity:{named(friend)} publish to {uuid}, or the topic has ended"
    assert {entry["grant"] for entry in entries(live, owner, uuid) if entry["action"] == "publish"} == {"owner"}


def _check_receipt(network: LiveNetwork, revocation: Revocation, **about: str) -> None:
    """A receipt that a node signed, and that says what the object says."""
    statement = statements.read(revocation.receipt.encode(), statements.by_roots(network.credentials(Role.NODE, "n1").roots))
    assert (statement.kind, statement.signer.name.role) == ("revocation", Role.NODE)
    payload = statement.payload
    assert revocation.as_object() == {
        **about,
        "cut": payload["cut"],
        "milliseconds": payload["milliseconds"],
        "guards": ["g1"],
        "fenced": [],
        "unconfirmed": [],
        "seq": payload["seq"],
        "receipt": revocation.receipt,
    }
    assert payload["network"] == network.home.network
    assert 0 < payload["milliseconds"] < 15_000
    (record,) = network.records("n1", "seq = ?", payload["seq"])
    assert (record["status"], record["kind"]) == ("accepted", "retract")


async def test_a_subscriber_at_work(live: LiveNetwork, connect: Connect) -> None:
    """T21: its queue is deleted, so nothing that is published after the receipt reaches it; its connection stays, and so do others' queues.
    Granted again, it begins anew."""
    owner, friend, other = await meet(live, connect, 3)
    uuid, elsewhere = await topic(owner), await topic(owner)
    lost = await grant(owner, SUBSCRIBE, uuid, friend)
    for client in (friend, other):
        await grant(owner, SUBSCRIBE, elsewhere, client)
    await grant(owner, SUBSCRIBE, uuid, other)
    async with (
        reading(friend, uuid) as reader,
        reading(friend, elsewhere) as kept,
        reading(other, uuid) as innocent,
        stubborn(live, folder_of(owner), uuid) as pouring,
    ):
        await reader.has(*list(pouring.taken)[:20])
        undisturbed = Undisturbed(owner, friend, other, pouring)
        revocation = await owner.grants.revoke(lost)
        moment = time.monotonic()
        tell(owner, friend)
        assert str(await reader.error()) == f"there is no topic {uuid} that you may subscribe to"
        await pouring.publishes(50)
        await innocent.has(list(pouring.taken)[-1])
        assert max(pouring.sent[body] for body in reader.bodies) < moment
        assert set(pouring.taken) <= set(await innocent.has(*pouring.taken))
        await owner.publish(elsewhere, "goes on")
        await kept.has("goes on")
        await undisturbed.check()
        assert revocation.cut == {"connections": [], "queues": 1, "bindings": 0}
        _check_receipt(live, revocation, grant=lost)
    await grant(owner, SUBSCRIBE, uuid, friend)
    async with reading(friend, uuid) as reader:
        await owner.publish(uuid, "anew")
        assert await reader.has("anew") == ["anew"]
    allowed = [entry for entry in entries(live, friend, uuid) if entry["action"] == "subscribe" and entry["allowed"]]
    assert allowed[0]["grant"] == lost
    cut = [entry for entry in entries(live, friend, uuid) if entry["action"] == "cut"]
    assert cut[0]["resource"].startswith(f"Feed.{named(friend)}.{uuid}.")
    assert cut[0]["because"] == f"a subscription that may not read {uuid}"


async def test_everything_below_a_grant(live: LiveNetwork, connect: Connect) -> None:
    """T21: a link of a chain takes all below it along, publishers and subscribers, and nothing above."""
    owner, agent, last = await meet(live, connect, 3)
    uuid = await topic(owner)
    roots = {right: await grant(owner, right, uuid, agent, delegable=True) for right in (PUBLISH, SUBSCRIBE)}
    middles = {right: await grant(agent, right, uuid, last) for right in roots}
    async with (
        reading(owner, uuid) as watching,
        reading(last, uuid) as below,
        stubborn(live, folder_of(agent), uuid) as above,
        stubborn(live, folder_of(last), uuid) as publisher,
    ):
        undisturbed = Undisturbed(owner, above)
        ended = await agent.grants.revoke(middles[PUBLISH])
        await nothing_since(time.monotonic(), publisher, owner, uuid, watching)
        await undisturbed.check()
        assert ended.cut["connections"] == [f"entity:{named(last)}"]
        for right in (PUBLISH, SUBSCRIBE):
            ended = await owner.grants.revoke(roots[right])
            if right == PUBLISH:
                await nothing_since(time.monotonic(), above, owner, uuid, watching)
        assert ended.cut["queues"] == 1
        tell(owner, last)
        assert isinstance(await below.error(), Refused)


@pytest.mark.parametrize("to", ["institution:Nearly All", "*"])
async def test_a_grant_for_many(live: LiveNetwork, connect: Connect, to: str) -> None:
    """T21: all who used it are cut off, however many; not those who may by another grant as well."""
    (owner,) = await meet(live, connect, 1)
    one, other, both = await meet(live, connect, 3, institution="Nearly All")
    uuid = await topic(owner)
    many = (await owner.grants.give(PUBLISH, uuid, to)).id
    await grant(owner, PUBLISH, uuid, both)
    tell(owner, one, other, both)
    async with (
        reading(owner, uuid) as reader,
        stubborn(live, folder_of(one), uuid) as first,
        stubborn(live, folder_of(other), uuid) as second,
        stubborn(live, folder_of(both), uuid) as innocent,
    ):
        undisturbed = Undisturbed(owner, innocent)
        revocation = await owner.grants.revoke(many)
        moment = time.monotonic()
        assert revocation.cut["connections"] == sorted(f"entity:{named(client)}" for client in (one, other))
        for publisher in (first, second):
            await nothing_since(moment, publisher, owner, uuid, reader)
        await undisturbed.check()


async def test_a_tree(live: LiveNetwork, connect: Connect) -> None:
    """T21: of a queue for many topics, the bindings go that rested on the grant; what is granted otherwise goes on, in the same queue."""
    owner, friend = await meet(live, connect, 2)
    collection = (await owner.create_collection(path("collection"), Gathering())).uuid
    one, other, own = [await topic(owner) for _ in range(3)]
    for uuid in (one, other, own):
        await owner.collections.add(collection, uuid)
    lost = {right: await grant(owner, right, collection, friend, tree=True) for right in (PUBLISH, SUBSCRIBE)}
    await grant(owner, SUBSCRIBE, own, friend)
    async with (
        reading(friend, collection) as reader,
        reading(owner, one) as watching,
        stubborn(live, folder_of(friend), one) as publisher,
    ):
        ended = await owner.grants.revoke(lost[PUBLISH])
        await nothing_since(time.monotonic(), publisher, owner, one, watching)
        assert ended.cut["connections"] == [f"entity:{named(friend)}"]
        for uuid in (one, other, own):
            await owner.publish(uuid, f"before {uuid}")
        await reader.has(*(f"before {uuid}" for uuid in (one, other, own)))
        undisturbed = Undisturbed(friend)
        ended = await owner.grants.revoke(lost[SUBSCRIBE])
        assert ended.cut == {"connections": [], "queues": 0, "bindings": 2}
        for uuid in (one, other, own):
            await owner.publish(uuid, f"after {uuid}")
        await reader.has(f"after {own}")
        assert not {f"after {one}", f"after {other}"} & set(reader.bodies)
        await undisturbed.check()


# --- by time, and with the topic -----------------------------------------------------------------------------------------------------


async def test_a_grant_runs_out(live: LiveNetwork, connect: Connect) -> None:
    """T21: on open channels too, by the guard's own clock."""
    owner, friend, other = await meet(live, connect, 3)
    uuid = await topic(owner)
    await grant(owner, PUBLISH, uuid, other)
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=8)
    for right in (PUBLISH, SUBSCRIBE):
        await owner.grants.give(right, uuid, named(friend), lifetime=ends - datetime.now(UTC).replace(microsecond=0))
    tell(owner, friend)
    async with (
        reading(friend, uuid) as reader,
        stubborn(live, folder_of(friend), uuid) as publisher,
        stubborn(live, folder_of(other), uuid) as innocent,
    ):
        undisturbed = Undisturbed(owner, innocent)
        assert isinstance(await reader.error(), Refused)
        await publisher.is_refused()
        monotonic_end = time.monotonic() - (datetime.now(UTC) - ends).total_seconds()
        assert max(publisher.taken.values()) < monotonic_end + BY_THE_CLOCK
        assert max(innocent.sent[body] for body in reader.bodies if body in innocent.sent) < monotonic_end + BY_THE_CLOCK
        await undisturbed.check()


async def test_a_topic_ends(live: LiveNetwork, connect: Connect) -> None:
    """T21: withdrawn or run out, with everybody's rights to it, its owner's too."""
    owner, friend = await meet(live, connect, 2)
    withdrawn, brief = await topic(owner), await topic(owner, lifetime=timedelta(seconds=10))
    for uuid in (withdrawn, brief):
        for right in (PUBLISH, SUBSCRIBE):
            await grant(owner, right, uuid, friend)
    async with (
        reading(friend, withdrawn) as reader,
        reading(friend, brief) as brief_reader,
        stubborn(live, folder_of(friend), withdrawn) as publisher,
        stubborn(live, folder_of(owner), withdrawn) as owner_too,
        stubborn(live, folder_of(friend), brief) as brief_publisher,
    ):
        await owner.withdraw(withdrawn)
        moment = time.monotonic()
        tell(owner, friend)
        for one in (publisher, owner_too):
            await one.is_refused()
            assert max(one.taken.values()) < moment + BY_THE_CLOCK
        assert isinstance(await reader.error(), Refused)
        assert isinstance(await brief_reader.error(), Refused)
        await brief_publisher.is_refused()
        for one in (publisher, owner_too, brief_publisher):
            late = len(one.taken)
            await one.is_refused()
            assert len(one.taken) == late
    queues = {queue["name"] for queue in live.manage("GET", "/queues/tdn?columns=name")}
    assert not [queue for queue in queues if queue.startswith(f"Feed.{named(friend)}.")]


@pytest.mark.parametrize("keep", [False, True])
async def test_a_topic_changes_hands(live: LiveNetwork, connect: Connect, keep: bool) -> None:
    """T21: the former owner's rights end with the receipt; those whom it had granted something go too, unless the new one keeps them."""
    owner, new, friend = await meet(live, connect, 3)
    uuid = await topic(owner)
    await grant(owner, PUBLISH, uuid, friend)
    await owner.transfer(uuid, named(new))
    async with stubborn(live, folder_of(owner), uuid) as former, stubborn(live, folder_of(friend), uuid) as granted:
        undisturbed = Undisturbed(new, granted)
        revocation = await new.accept(uuid, keep_grants=keep)
        moment = time.monotonic()
        async with reading(new, uuid) as reader:
            ended = [former] if keep else [former, granted]
            for publisher in ended:
                await publisher.is_refused()
                assert max(publisher.taken.values()) < moment
            await new.publish(uuid, "mine now")
            await reader.has("mine now")
            # It subscribed after the receipt: whatever it was given was accepted after it.
            assert not [body for body in reader.bodies if any(body in publisher.sent for publisher in ended)]
            if keep:
                await undisturbed.check()
    assert revocation.about == {"uuid": uuid}
    assert set(revocation.cut["connections"]) == {f"entity:{publisher.credentials.identity.name.id}" for publisher in ended}


# --- a certificate -------------------------------------------------------------------------------------------------------------------


async def test_a_certificate_is_revoked(live: LiveNetwork, connect: Connect) -> None:
    """T21: `tdn ca revoke` ends its connections and subscriptions, and what it had granted to others."""
    owner, revoked, client_of_revoked, other = await meet(live, connect, 4)
    uuid = await topic(owner)
    await grant(owner, PUBLISH, uuid, revoked, delegable=True)
    await grant(owner, SUBSCRIBE, uuid, revoked)
    await grant(revoked, PUBLISH, uuid, client_of_revoked)
    await grant(owner, PUBLISH, uuid, other)
    theirs = await topic(revoked)
    await grant(revoked, PUBLISH, theirs, other)
    async with (
        reading(owner, uuid) as watching,
        reading(revoked, uuid) as reader,
        stubborn(live, folder_of(revoked), uuid) as publisher,
        stubborn(live, folder_of(client_of_revoked), uuid) as passed_on,
        stubborn(live, folder_of(other), uuid) as innocent,
    ):
        undisturbed = Undisturbed(owner, innocent)
        ran = await asyncio.to_thread(run, "tdn", "--home", live.home.folder, "--json", "ca", "revoke", named(revoked))
        moment = time.monotonic()
        assert ran.code == 0, ran.err
        assert ran.one["revoked"] == f"entity:{named(revoked)}"
        for one in (publisher, passed_on):
            await nothing_since(moment, one, owner, uuid, watching)
        assert isinstance(await reader.error(), LoginRefused)
        assert isinstance(publisher.refusals[-1], LoginRefused)
        await undisturbed.check()
    tell(owner, other)
    with pytest.raises(Refused, match=f"there is no topic {theirs} that you may publish to"):
        await other.publish(theirs, "granted by nobody any more")
    queues = {queue["name"] for queue in live.manage("GET", "/queues/tdn?columns=name")}
    assert not [queue for queue in queues if queue.startswith(f"Feed.{named(revoked)}.")]


async def test_a_certificate_runs_out(live: LiveNetwork, connect: Connect) -> None:
    """T21: the broker looks at a certificate once; the guard ends connections whose certificate has ended, publishers' and readers'."""
    owner, other = await meet(live, connect, 2)
    uuid = await topic(owner)
    writes, reads = await meet(live, connect, 2, lifetime=timedelta(seconds=10))
    for client, right in ((writes, PUBLISH), (reads, SUBSCRIBE)):
        await grant(owner, right, uuid, client)
    await grant(owner, PUBLISH, uuid, other)
    ends = max(client.identity.not_after for client in (writes, reads))
    async with (
        reading(reads, uuid) as reader,
        stubborn(live, folder_of(writes), uuid) as publisher,
        stubborn(live, folder_of(other), uuid) as innocent,
    ):
        undisturbed = Undisturbed(owner, innocent)
        assert isinstance(await reader.error(), TrustError)
        await publisher.is_refused()
        monotonic_end = time.monotonic() - (datetime.now(UTC) - ends).total_seconds()
        assert max(publisher.taken.values()) < monotonic_end + BY_THE_CLOCK
        assert max(innocent.sent[body] for body in reader.bodies if body in innocent.sent) < monotonic_end + BY_THE_CLOCK
        await undisturbed.check()


# --- guards and nodes that fail ------------------------------------------------------------------------------------------------------


async def _revoked_in_the_log(network: LiveNetwork, owner: EntityClient, uuid: str, grant: str) -> asyncio.Task[Revocation]:
    """A revocation that is in the log and waits for the guard, which is stopped."""
    guard = network.network.process(Role.GUARD, "g1").pid
    assert guard is not None
    # A channel that has just been used, so that the broker need not ask about the revocation itself.
    await owner.transfer(uuid, named(owner))
    os.kill(guard, signal.SIGSTOP)
    revoking = asyncio.create_task(owner.grants.revoke(grant))
    await until(lambda: (network.fact("grant", grant) or {})["state"] == "revoked", "the log to have it")
    return revoking


@pytest.mark.chaos
@pytest.mark.parametrize("memory", ["kept", "lost"])
async def test_a_guard_is_killed(mortal: LiveNetwork, connect: Connect, memory: str) -> None:
    """T21: what the log ends meanwhile ends when a guard is back, whether it remembers whom it allowed what or has to begin anew. The innocent
    go on, in the second case over new connections."""
    owner, friend, other = await meet(mortal, connect, 3)
    uuid = await topic(owner)
    lost = await grant(owner, PUBLISH, uuid, friend)
    await grant(owner, PUBLISH, uuid, other)
    owner.timeout = 60.0
    async with (
        reading(owner, uuid) as reader,
        stubborn(mortal, folder_of(friend), uuid) as publisher,
        stubborn(mortal, folder_of(other), uuid) as innocent,
    ):
        revoking = await _revoked_in_the_log(mortal, owner, uuid, lost)
        await asyncio.to_thread(mortal.network.process(Role.GUARD, "g1").kill_hard)
        if memory == "lost":
            for file in mortal.home.credentials(Role.GUARD, "g1").glob(f"{MEMORY_FILE}*"):
                file.unlink()
        # Its channel remembers a yes, and nobody is there to end it: that is why the receipt waits.
        await publisher.publishes(20)
        undisturbed = Undisturbed(innocent)
        await asyncio.to_thread(mortal.network.start_one, Role.GUARD, "g1")
        revocation = await revoking
        assert ((*revocation.guards, *revocation.unconfirmed), revocation.fenced) == (("g1",), ())
        if revocation.unconfirmed:
            # On a busy machine it may take longer to start than it is waited for. Then it is named, since no other guard can end what the broker
            # remembers, and the end comes when it is there.
            await publisher.is_refused()
        await nothing_since(time.monotonic(), publisher, owner, uuid, reader)
        await innocent.publishes(20)
        if memory == "kept":
            await undisturbed.check()


@pytest.mark.chaos
async def test_a_guard_hangs(mortal: LiveNetwork, connect: Connect) -> None:
    """T21: a guard that was stopped for longer than its word counts allows nothing from its old view: what was asked meanwhile is denied."""
    owner, friend, other = await meet(mortal, connect, 3)
    uuid = await topic(owner)
    lost = await grant(owner, PUBLISH, uuid, friend)
    await grant(owner, PUBLISH, uuid, other)
    owner.timeout = 60.0
    settings, login = mortal.home.connection(), str(friend.identity.name)
    async with (
        reading(owner, uuid) as reader,
        stubborn(mortal, folder_of(friend), uuid) as publisher,
        stubborn(mortal, folder_of(other), uuid) as innocent,
    ):
        pid = mortal.network.process(Role.GUARD, "g1").pid
        assert pid is not None
        undisturbed = Undisturbed(innocent)
        connection = await Connection.open(settings.brokers, publisher.credentials, vhost=settings.vhost)
        fresh = await connection.channel(confirms=True)
        try:
            revoking = await _revoked_in_the_log(mortal, owner, uuid, lost)
            stopped = time.monotonic()
            await until(lambda: time.monotonic() > stopped + LEASE_SECONDS, "its word to count no longer")
            # On a channel for which the broker has to ask: a question that the guard finds when it goes on, before it hears of anything.
            stale = fresh.publish(uuid, "", b"stale", login=login)
            await until(lambda: unread(mortal.home.settings().guard_port), "the question to wait at the guard")
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(TdnError):
            await stale
        revocation = await revoking
        moment = time.monotonic()
        await connection.close()
        await nothing_since(moment, publisher, owner, uuid, reader)
        assert "stale" not in reader.bodies
        await undisturbed.check()
        assert revocation.cut["connections"] == [f"entity:{named(friend)}"]


@pytest.mark.chaos
async def test_one_of_two_guards_is_gone(mortal: LiveNetwork, connect: Connect, tmp_path: Path) -> None:
    """T21: the receipt names who has done it, and who is silent and therefore allows nothing; never both. The broker asks the first alone, so
    its publishers notice nothing of the second's end (tests/broker/test_cluster.py has one that is asked)."""
    owner, friend, other = await meet(mortal, connect, 3)
    uuid = await topic(owner)
    grants = [await grant(owner, PUBLISH, uuid, friend) for _ in range(3)]
    await grant(owner, PUBLISH, uuid, other)
    async with _second_guard(mortal, tmp_path) as second, stubborn(mortal, folder_of(other), uuid) as innocent:
        async with second():
            assert (await owner.grants.revoke(grants[0])).guards == ("g1", "g2")
            # A new guard has closed everything.
            await innocent.publishes(20)
            undisturbed = Undisturbed(innocent)
        revocation = await owner.grants.revoke(grants[1])
        assert (revocation.guards, revocation.fenced, revocation.unconfirmed) == (("g1",), ("g2",), ())
        assert 2000 < revocation.milliseconds < 8000
        async with second():
            revocation = await owner.grants.revoke(grants[2])
            assert (revocation.guards, revocation.fenced, revocation.unconfirmed) == (("g1", "g2"), (), ())
        await undisturbed.check()


@contextlib.asynccontextmanager
async def _second_guard(network: LiveNetwork, scratch: Path) -> AsyncIterator[Any]:
    """Another guard, enrolled for as long as this lasts; it runs in this process, as often as wanted, and ends as if killed."""
    operator = network.network.operator
    folder = await asyncio.to_thread(operator.issue, Role.GUARD, "g2")
    await operator.send_enrolment(Role.GUARD, "g2", timeout=15)
    who = network.credentials(Role.GUARD, "g2")
    # Out of the home: `tdn up` would start it there, on the first one's port.
    kept = folder.rename(scratch / "g2")
    who = type(who)(who.identity, who.key, who.roots, kept)
    connection = network.home.connection()
    settings = GuardSettings(
        brokers=connection.brokers,
        vhost=connection.vhost,
        genesis=network.home.genesis(),
        store=kept / "store.sqlite",
        enrolments=network.home.enrolments,
        host="127.0.0.1",
        port=free_ports(1)[0],
        management_urls=network.home.settings().management_urls,
        management_password=network.home.management_password(),
    )

    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[None]:
        guard = Guard(who, settings)
        task = asyncio.create_task(guard.run(asyncio.Event()))
        try:
            await until(lambda: guard.sure or task.done(), "the second guard")
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    try:
        yield running
    finally:
        await asyncio.to_thread(operator.revoke, Role.GUARD, "g2")
        await operator.send_pending(timeout=30)
        (network.home.enrolments / "guard-g2.jws").unlink()


@pytest.mark.slow
@pytest.mark.chaos
async def test_a_node_dies_before_the_receipt(mortal: LiveNetwork, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: revoked in the log, not answered, and its node is gone: the next one finds the outcome and answers with the same record."""
    decided: list[Outcome] = []

    class Dying(Changes):
        async def decide(self, request: Envelope) -> Outcome:
            outcome = await super().decide(request)
            if request.kind == "retract":
                decided.append(outcome)
                await asyncio.Event().wait()
            return outcome

    owner, friend = await meet(mortal, connect, 2)
    uuid = await topic(owner)
    lost = await grant(owner, PUBLISH, uuid, friend)
    async with reading(owner, uuid) as reader, stubborn(mortal, folder_of(friend), uuid) as publisher:
        raw = RawEntity(mortal, folder_of(owner))
        raw.hello()
        for node in mortal.nodes():
            await asyncio.to_thread(mortal.stop, node)
        monkeypatch.setattr("tdn.node.service.Changes", Dying)
        async with node_in_this_process(mortal, "n1"):
            raw.change(raw.write("retract", {"grant": lost}))
            await until(lambda: decided, "the log to decide")
            assert raw.more_replies() == 0
        monkeypatch.undo()
        await asyncio.to_thread(mortal.start, "n2")
        reply = raw.reply()
        moment = time.monotonic()
        raw.close()
        roots = statements.by_roots(raw.credentials.roots)
        receipt = statements.read(reply.tail or b"", roots).payload
        assert decided[0].receipt is not None
        assert dict(receipt) == dict(decided[0].receipt)
        said = statements.read(str(reply.body["revocation"]).encode(), roots).payload
        assert (said["seq"], said["grant"], said["guards"], said["unconfirmed"]) == (receipt["seq"], lost, ["g1"], [])
        await asyncio.to_thread(mortal.start, "n1")
        await nothing_since(moment, publisher, owner, uuid, reader)
