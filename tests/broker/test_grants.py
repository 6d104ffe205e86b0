"""Grants over real nodes and a real guard (T20): given, passed on, listed, renewed, revoked, and what each of them opens at the broker.

What happens to those who are at it when a right ends is in test_revocation.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from entity_client import EntityClient, lists, path
from entity_client.grants import Granted
from tdn.errors import Absent, Refused, UsageError
from tdn.protocol.names import mint_uuid
from tdn.protocol.times import parse_time
from tdn.protocol.trees import Gathering, Hosting
from tdn.trust import credentials, grants, statements
from tdn.trust.grants import PUBLISH, SUBSCRIBE
from tests.conftest import Connect
from tests.live import LiveNetwork, meet, until

pytestmark = pytest.mark.broker

OPEN = Hosting(allow_children=True)
HOUR = timedelta(hours=1)
NONE = "A" * 22


def named(client: EntityClient) -> str:
    return client.identity.name.id


def tell(*clients: EntityClient) -> None:
    """Each knows what the others have receipts for, so that whichever node it asks answers from a view that has it."""
    seen = max(client.seen for client in clients)
    for client in clients:
        client.seen = seen


async def topic(client: EntityClient, **how: Any) -> str:
    return (await client.create(path("topic"), **how)).uuid


async def all_of(client: EntityClient, uuid: str | None = None) -> dict[str, Granted]:
    return {granted.id: granted async for granted in client.grants.find(uuid)}


async def may(client: EntityClient, right: str, uuid: str) -> bool:
    """What a node says; and that a guard does the same."""
    says = (await client.can(right, uuid)).allowed
    try:
        if right == PUBLISH:
            await client.publish(uuid, "x")
        else:
            async with client.subscribe(uuid):
                pass
        assert says, "the broker allowed what the node had denied"
    except Refused:
        assert not says, "the broker refused what the node had allowed"
    return says


async def test_given_and_listed(live: LiveNetwork, connect: Connect) -> None:
    """T20: for one entity, one topic and one right, for a while; whoever it concerns finds it, with its proof, and nobody else does."""
    owner, friend, stranger = await meet(live, connect, 3)
    uuid = await topic(owner)
    before = datetime.now(UTC).replace(microsecond=0)
    given = await owner.grants.give(PUBLISH, uuid, named(friend), lifetime=HOUR)
    tell(owner, friend, stranger)
    value = given.as_object()
    assert set(value) == {
        *("id", "right", "topic", "tree", "issuer", "grantee", "not_before", "expires", "delegable", "state", "token", "receipt")
    }
    assert {name: value[name] for name in ("right", "topic", "issuer", "grantee", "delegable", "tree", "state")} == {
        "right": "publish",
        "topic": uuid,
        "issuer": named(owner),
        "grantee": named(friend),
        "delegable": False,
        "tree": False,
        "state": "live",
    }
    assert parse_time(value["not_before"]) <= before
    assert before + HOUR <= parse_time(value["expires"]) <= datetime.now(UTC) + HOUR
    # Anybody who has the roots can follow it, bound to the grantee's key.
    roots = credentials.load(live.entity()).roots
    bundle = grants.read_bundle(value["token"].encode(), statements.by_roots(roots))
    assert bundle.grants[-1].terms.to == str(friend.identity.name)
    assert bundle.advertisement.uuid == uuid
    receipt = statements.read(value["receipt"].encode(), statements.by_roots(roots))
    assert (receipt.payload["kind"], receipt.payload["grant"]) == ("give", given.id)
    for client in (owner, friend):
        assert (await client.grants.get(given.id)).token == given.token
        (found,) = (await all_of(client, uuid)).values()
        assert found.as_object() == {name: value[name] for name in value if name != "receipt"}
        assert given.id in await all_of(client)
    assert await all_of(stranger, uuid) == {}
    assert given.id not in await all_of(stranger)
    with pytest.raises(Absent, match="concerns you"):
        await stranger.grants.get(given.id)
    assert await may(friend, PUBLISH, uuid)
    assert not await may(friend, SUBSCRIBE, uuid)
    assert not await may(stranger, PUBLISH, uuid)
    assert await may(owner, PUBLISH, uuid)
    assert await may(owner, SUBSCRIBE, uuid)


async def test_for_whom(live: LiveNetwork, connect: Connect) -> None:
    """T20: an institution means its members, with spaces in its name too; `*` everyone with a certificate."""
    owner, outsider = await meet(live, connect, 2)
    (member,) = await meet(live, connect, 1, institution="Hôpital & Söhne 1:2")
    for_members, for_all = await topic(owner), await topic(owner)
    await owner.grants.give(SUBSCRIBE, for_members, "institution:Hôpital & Söhne 1:2")
    everyone = await owner.grants.give(PUBLISH, for_all, "*")
    tell(owner, member, outsider)
    assert await may(member, SUBSCRIBE, for_members)
    assert not await may(outsider, SUBSCRIBE, for_members)
    assert not await may(member, PUBLISH, for_members)
    for client in (member, outsider):
        assert await may(client, PUBLISH, for_all)
        assert everyone.id in await all_of(client)
    reason = (await member.can(SUBSCRIBE, for_members)).because
    assert reason.startswith(f"{named(owner)} let all of 'Hôpital & Söhne 1:2' subscribe until ")
    with pytest.raises(Absent, match="does not know entity nobody-like-this yet; it must have connected once"):
        await owner.grants.give(PUBLISH, for_all, "nobody-like-this")
    with pytest.raises(UsageError, match="cannot be granted"):
        await owner.grants.give("discover", for_all, "*")


async def test_from_and_until(live: LiveNetwork, connect: Connect) -> None:
    """T20: nothing before it begins, and nothing after it has ended."""
    owner, friend = await meet(live, connect, 2)
    later, brief = await topic(owner), await topic(owner)
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    waits = await owner.grants.give(PUBLISH, later, named(friend), not_before=begins)
    ends = await owner.grants.give(PUBLISH, brief, named(friend), lifetime=timedelta(seconds=2))
    tell(owner, friend)
    early = await friend.can(PUBLISH, later)
    if datetime.now(UTC) < begins:
        assert (early.allowed, early.because) == (False, f"grant {waits.id} holds from {waits.as_object()['not_before']} on")
    assert (await friend.grants.get(waits.id)).state == "live"

    async def has_begun() -> bool:
        return (await friend.can(PUBLISH, later)).allowed

    await until(has_begun, "the grant to begin")
    assert datetime.now(UTC) >= begins
    assert await may(friend, PUBLISH, later)

    async def has_ended() -> bool:
        return not (await friend.can(PUBLISH, brief)).allowed

    await until(has_ended, "the grant to end")
    assert (
        await friend.can(PUBLISH, brief)
    ).because == f"grant {ends.id} of {named(owner)} ended at {ends.as_object()['expires']}"
    assert (await friend.grants.get(ends.id)).state == "expired"
    assert not await may(friend, PUBLISH, brief)


async def test_renewed(live: LiveNetwork, connect: Connect) -> None:
    """T20: the same grant with another end, by its issuer alone; not one that has ended."""
    owner, friend = await meet(live, connect, 2)
    uuid = await topic(owner)
    given = await owner.grants.give(PUBLISH, uuid, named(friend), lifetime=HOUR)
    tell(owner, friend)
    with pytest.raises(Refused, match=f"was given by {named(owner)}, who alone can renew it"):
        await friend.grants.renew(given.id, HOUR)

    # Also within the second in which it was given: a grant is signed to the second, and the client waits for the next.
    for _ in range(2):
        longer = await owner.grants.renew(given.id, 2 * HOUR)
    assert longer.id == given.id
    assert longer.grant.terms.expires >= given.grant.terms.expires + HOUR - timedelta(seconds=1)
    tell(owner, friend)
    (found,) = (await all_of(friend, uuid)).values()
    assert found.token == longer.token
    assert await may(friend, PUBLISH, uuid)
    await owner.grants.revoke(given.id)
    with pytest.raises(Refused, match="has ended; give a new one"):
        await owner.grants.renew(given.id, HOUR)


async def test_passed_on(live: LiveNetwork, connect: Connect) -> None:
    """T20: a chain from the owner down, never wider than what it rests on; each link is named in the answer to "may I?"."""
    owner, agent, second, last = await meet(live, connect, 4)
    uuid, other = await topic(owner), await topic(owner)
    root = await owner.grants.give(PUBLISH, uuid, named(agent), lifetime=HOUR, delegable=True)
    tell(owner, agent)
    middle = await agent.grants.give(PUBLISH, uuid, named(second), lifetime=timedelta(days=30), delegable=True)
    assert (middle.cut, middle.as_object()["cut"], middle.as_object()["parent"]) == (True, True, root.id)
    assert middle.grant.terms.expires == root.grant.terms.expires
    tell(agent, second)
    end = await second.grants.give(PUBLISH, uuid, named(last), lifetime=timedelta(minutes=5))
    assert [grant.id for grant in end.bundle.grants] == [root.id, middle.id, end.id]
    assert not end.cut
    tell(owner, agent, second, last)
    judgement = await last.can(PUBLISH, uuid)
    assert judgement.grants == (root.id, middle.id, end.id)
    until_root, until_end = root.as_object()["expires"], end.as_object()["expires"]
    assert judgement.because == (
        f"{named(owner)} let {named(agent)} publish until {until_root}; {named(agent)} let {named(second)} publish until {until_root}; "
        f"{named(second)} let you publish until {until_end}"
    )
    assert await may(last, PUBLISH, uuid)
    # Not further than it was allowed, not for more, and not back.
    nothing = f"there is no topic {uuid} that you may let others"
    with pytest.raises(Refused, match=f"{nothing} publish to"):
        await last.grants.give(PUBLISH, uuid, named(agent))
    with pytest.raises(Refused, match=f"grant {end.id} may not be passed on"):
        await last.grants.give(PUBLISH, uuid, named(agent), parent=end.id)
    with pytest.raises(Refused, match=f"{nothing} subscribe to"):
        await agent.grants.give(SUBSCRIBE, uuid, named(last))
    with pytest.raises(Refused, match="narrower than what would be passed on"):
        await agent.grants.give(SUBSCRIBE, uuid, named(last), parent=root.id)
    with pytest.raises(Refused, match=f"or does not cover {other}"):
        await agent.grants.give(PUBLISH, other, named(last), parent=root.id)
    with pytest.raises(Refused, match=f"come back to {named(owner)}"):
        await second.grants.give(PUBLISH, uuid, named(owner))
    # The owner sees all of it; those above a grant, and its owner, may end it.
    assert set(await all_of(owner, uuid)) == {root.id, middle.id, end.id}
    await agent.grants.revoke(end.id)
    tell(agent, last)
    assert not await may(last, PUBLISH, uuid)


async def test_trees(live: LiveNetwork, connect: Connect) -> None:
    """T20: a grant on a hierarchy or collection covers what its grantor owns in it, also what joins later; of others' what they passed on."""
    owner, other, friend = await meet(live, connect, 3)
    root = await topic(owner, hosting=OPEN)
    mine = await topic(owner, parent=root, hosting=OPEN)
    theirs = await topic(other, parent=mine)
    await owner.grants.give(PUBLISH, root, named(friend), tree=True)
    tell(owner, other, friend)
    later = await topic(owner, parent=mine)
    tell(owner, friend)
    for uuid in (root, mine, later):
        assert await may(friend, PUBLISH, uuid)
    assert not await may(friend, PUBLISH, theirs)
    passed = await other.grants.give(PUBLISH, theirs, named(owner), delegable=True)
    tell(other, friend)
    assert await may(friend, PUBLISH, theirs)
    await other.grants.revoke(passed.id)
    tell(other, friend)
    assert not await may(friend, PUBLISH, theirs)
    collection = (await owner.create_collection(path("collection"), Gathering())).uuid
    with pytest.raises(Refused, match="carries no messages itself"):
        await owner.grants.give(SUBSCRIBE, collection, named(friend))
    await owner.grants.give(SUBSCRIBE, collection, named(friend), tree=True)
    alone = await topic(owner)
    tell(owner, friend)
    assert not await may(friend, SUBSCRIBE, alone)
    await owner.collections.add(collection, alone)
    tell(owner, friend)
    assert await may(friend, SUBSCRIBE, alone)
    await owner.collections.remove(collection, alone)
    tell(owner, friend)
    assert not await may(friend, SUBSCRIBE, alone)


Act = Callable[[EntityClient, str], Awaitable[Any]]


async def _subscribe(client: EntityClient, uuid: str) -> None:
    async with client.subscribe(uuid):
        pass


async def _follow(client: EntityClient, uuid: str) -> None:
    async with client.subscribe(uuid, children=True):
        pass


HIDDEN: dict[str, Act] = {
    "publish": lambda client, uuid: client.publish(uuid, "x"),
    "subscribe": _subscribe,
    "follow": _follow,
    "unsubscribe": lambda client, uuid: client.unsubscribe(uuid),
    "let publish": lambda client, uuid: client.grants.give(PUBLISH, uuid, named(client)),
    "let subscribe to its tree": lambda client, uuid: client.grants.give(SUBSCRIBE, uuid, "*", tree=True),
    "transfer": lambda client, uuid: client.transfer(uuid, named(client)),
    "accept": lambda client, uuid: client.accept(uuid),
}


@pytest.mark.parametrize("act", HIDDEN)
async def test_forbidden_is_absent(live: LiveNetwork, connect: Connect, act: str) -> None:
    """T20: of a topic that it may not see, an entity hears the same as of one that is not there."""
    owner, stranger = await meet(live, connect, 2)
    hidden = await topic(owner, lists=lists([named(owner)]), hosting=OPEN)
    tell(owner, stranger)
    said = []
    for uuid in (hidden, mint_uuid()):
        with pytest.raises(Refused) as refusal:
            await HIDDEN[act](stranger, uuid)
        assert set(refusal.value.detail) <= {"request"}
        said.append(str(refusal.value).replace(uuid, "UUID"))
    assert said[0] == said[1]
    assert said[0].startswith(("there is no topic UUID that", "there is no subscription of yours to UUID"))


async def test_may_i(live: LiveNetwork, connect: Connect) -> None:
    """The answer and its reason; of what the asker may not see, what it hears of what is not there."""
    owner, friend = await meet(live, connect, 2)
    seen, hidden = await topic(owner), await topic(owner, lists=lists([named(owner)]))
    grant = await owner.grants.give(SUBSCRIBE, hidden, named(friend))
    tell(owner, friend)
    for right in ("publish", "subscribe", "discover"):
        own = await owner.can(right, hidden)
        assert (own.allowed, own.because, own.grants) == (True, "you own it", ())
    assert (await friend.can("discover", seen)).because == "its lists let you see it"
    assert (await friend.can(PUBLISH, seen)).because == f"no grant lets you; its owner is {named(owner)}"
    # A grant on a topic is a right to its messages, and none to find it.
    assert (await friend.can(SUBSCRIBE, hidden)).grants == (grant.id,)
    for uuid in (hidden, mint_uuid()):
        for right in ("publish", "discover"):
            answer = await friend.can(right, uuid)
            assert (answer.allowed, answer.because) == (False, f"there is no topic {uuid} that you may see")
    await owner.grants.revoke(grant.id)
    tell(owner, friend)
    assert (await friend.can(SUBSCRIBE, hidden)).because == f"grant {grant.id} of {named(owner)} was revoked"


async def test_who_may_revoke(live: LiveNetwork, connect: Connect) -> None:
    """T21: whoever gave it, stands above it, owns the topic or holds it; for others it does not exist. Twice is once."""
    owner, agent, last, stranger = await meet(live, connect, 4)
    uuid = await topic(owner)
    root = await owner.grants.give(PUBLISH, uuid, named(agent), delegable=True)
    tell(owner, agent)
    below = [await agent.grants.give(PUBLISH, uuid, named(last)) for _ in range(3)]
    tell(agent, owner, last, stranger)
    said = []
    for name in (root.id, NONE):
        with pytest.raises(Refused) as refusal:
            await stranger.grants.revoke(name)
        said.append(str(refusal.value).replace(name, "GRANT"))
    assert said == ["there is no grant GRANT that you may revoke"] * 2
    with pytest.raises(Refused, match="that you may revoke"):
        await last.grants.revoke(root.id)
    for client, grant in zip((last, agent, owner), below, strict=True):
        revocation = await client.grants.revoke(grant.id)
        assert revocation.about == {"grant": grant.id}
        assert (await client.grants.revoke(grant.id)).about == {"grant": grant.id}
    tell(owner, last)
    assert {granted.state for granted in (await all_of(last, uuid)).values()} == {"revoked"}
    assert not await may(last, PUBLISH, uuid)
    await owner.grants.revoke(root.id)
    tell(owner, agent)
    assert (await agent.grants.get(root.id)).state == "revoked"


async def test_ownership(live: LiveNetwork, connect: Connect) -> None:
    """A topic changes hands with both signatures, in the log; old grants lapse; whoever owns it is found by it, and grants it from then on."""
    first, second, friend, stranger = await meet(live, connect, 4)
    uuid = (await first.create(path(f"owned/{named(first)}"))).uuid
    old = await first.grants.give(PUBLISH, uuid, named(friend))
    with pytest.raises(Refused, match="offered to you"):
        await second.accept(uuid)
    await first.transfer(uuid, named(second))
    await first.transfer(uuid, named(first))
    with pytest.raises(Refused, match="offered to you"):
        await second.accept(uuid)
    offered = await first.transfer(uuid, named(second))
    assert offered.expires is not None
    assert timedelta(days=6) < offered.expires - datetime.now(UTC) <= timedelta(days=7)
    with pytest.raises(Refused, match="offered to you"):
        await stranger.accept(uuid)
    revocation = await second.accept(uuid)
    assert revocation.about == {"uuid": uuid}
    tell(first, second, friend, stranger)
    shown = await stranger.show(uuid)
    assert (shown.owner, shown.advertisement.creator) == (named(second), named(first))
    for owner, found in ((second, [uuid]), (first, [])):
        query = f"owner = '{named(owner)}' AND path LIKE 'owned/%'"
        assert [topic.uuid async for topic in stranger.discover(query, language="sql")] == found
    assert not await may(friend, PUBLISH, uuid)
    assert (await friend.grants.get(old.id)).state == "revoked"
    assert not await may(first, PUBLISH, uuid)
    assert await may(second, SUBSCRIBE, uuid)
    with pytest.raises(Refused, match="that you may let others"):
        await first.grants.give(PUBLISH, uuid, named(friend))
    # The new owner's grants prove themselves although another entity's name is in the advertisement.
    new = await second.grants.give(PUBLISH, uuid, named(friend))
    assert new.bundle.owner == named(second)
    tell(second, friend, first)
    assert (await friend.grants.get(new.id)).bundle.owner == named(second)
    assert await may(friend, PUBLISH, uuid)
    # And on, with all grants kept: they still prove themselves, and the new owner can end them.
    await second.transfer(uuid, named(stranger))
    await stranger.accept(uuid, keep_grants=True)
    tell(stranger, friend)
    assert (await friend.can(PUBLISH, uuid)).grants == (new.id,)
    assert await may(friend, PUBLISH, uuid)
    kept = await friend.grants.get(new.id)
    assert (kept.state, kept.bundle.owner) == ("live", named(second))
    assert {name: granted.state for name, granted in (await all_of(friend, uuid)).items()} == {
        old.id: "revoked",
        new.id: "live",
    }
    await stranger.grants.revoke(new.id)
    tell(stranger, friend)
    assert not await may(friend, PUBLISH, uuid)


async def test_many_grants_are_listed_in_pages(live: LiveNetwork, connect: Connect) -> None:
    (owner,) = await meet(live, connect, 1)
    topics = [await topic(owner) for _ in range(3)]
    given = []
    for uuid in topics:
        given += await asyncio.gather(*(owner.grants.give(right, uuid, "*") for right in (PUBLISH, SUBSCRIBE) for _ in range(10)))
    found = await all_of(owner)
    # Beside those for everyone of other tests.
    assert {name for name in found if found[name].grant.issuer.name.id == named(owner)} == {granted.id for granted in given}
    assert set(await all_of(owner, topics[0])) == {granted.id for granted in given if granted.grant.terms.topic == topics[0]}
