"""Collections over real nodes and a real broker (T31 to T36): created, filled under their rules, nested, moved, looked at, ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from entity_client import EntityClient, Topic, lists, path, properties
from entity_client.objects import Placed
from tdn.errors import Absent, Refused, TdnError, UsageError
from tdn.protocol import names
from tdn.protocol.access import Lists
from tdn.protocol.trees import Gathering, Limits
from tdn.trust import statements
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, until, wait_for

pytestmark = pytest.mark.broker

#: Takes collections, and may be put into others.
NESTING = Gathering(child_collections=True, inclusion=True)
EVERYONE = lists(["*"])


async def uuids(looking: AsyncIterator[Placed]) -> list[str]:
    return [placed.uuid async for placed in looking]


async def found(looking: AsyncIterator[Placed]) -> set[tuple[str, int, str | None]]:
    """What is seen: each with its depth and what it is in."""
    return {(placed.uuid, placed.depth, placed.inside) async for placed in looking}


def tell(*clients: EntityClient) -> None:
    """Each knows what the others have receipts for, so that whichever node it asks answers from a view that has it."""
    seen = max(client.seen for client in clients)
    for client in clients:
        client.seen = seen


def named(client: EntityClient) -> str:
    return client.identity.name.id


async def collection(client: EntityClient, gathering: Gathering = NESTING, **how: Any) -> Topic:
    return await client.create_collection(path(how.pop("name", "collection")), gathering, **how)


async def topics(client: EntityClient, count: int) -> list[str]:
    return [topic.uuid for topic in await asyncio.gather(*(client.create(path(f"member/{n}")) for n in range(count)))]


async def words_of(attempt: Any, *uuids: str) -> tuple[type[TdnError], str]:
    """The error that an attempt ends in, without the UUIDs that it was about."""
    with pytest.raises(TdnError) as caught:
        await attempt
    said = str(caught.value)
    for uuid in uuids:
        said = said.replace(uuid, "X")
    return type(caught.value), said


# --- creating ------------------------------------------------------------------------------------------------------------------------


async def test_created_and_signed_like_a_topic(live: LiveNetwork, connect: Connect) -> None:
    """T31: its own UUID and its own change topic, minted and signed by a node, found by what it is about and as what it is."""
    client, other = await connect(live), await connect(live)
    word = f"w{secrets.token_hex(6)}"
    topic = await client.create_collection(
        properties([f"word={word}", "height=12"]), synopsis_type="tags", lifetime=timedelta(hours=3), node="n2"
    )
    plain = await client.create(properties([f"word={word}"]))
    advertisement = topic.advertisement
    assert (advertisement.kind, advertisement.node, topic.synopsis) == ("collection", "n2", f"topic={topic.uuid}")
    assert advertisement.expires - advertisement.created == timedelta(hours=3)
    assert topic.receipt is not None
    notifications = topic.hides.notifications
    assert notifications is not None
    assert names.check_uuid(notifications) != topic.uuid
    receipt = statements.read(topic.receipt.encode(), statements.by_roots(live.credentials(names.Role.NODE, "n1").roots))
    assert receipt.payload["uuid"] == topic.uuid
    tell(client, other)
    for node in ("n1", "n2"):
        await until(lambda node=node: live.fact("topic", plain.uuid, node), "both nodes to have both")
    for query, expected in (
        (f"kind = 'collection' AND word = '{word}'", {topic.uuid}),
        (f"kind = 'topic' AND word = '{word}'", {plain.uuid}),
        (f"word = '{word}'", {topic.uuid, plain.uuid}),
    ):
        assert {one.uuid async for one in other.discover(query, language="sql")} == expected
    # Renewed and withdrawn like a topic too.
    renewed = await client.renew(topic.uuid, timedelta(days=2))
    assert (await client.show(topic.uuid)).expires == renewed.expires
    await client.withdraw(topic.uuid)
    with pytest.raises(Absent):
        await client.show(topic.uuid)


async def test_every_option_is_signed_and_told(live: LiveNetwork, connect: Connect) -> None:
    """T31, T32: options, limits and change topic go to whoever may see it; lists and first members to its owner alone."""
    client, other = await connect(live), await connect(live)
    members = await topics(client, 2)
    gathering = Gathering(True, Limits(5, 4, 3), True, True)
    word = f"w{secrets.token_hex(6)}"
    chosen = {
        "discover": lists(["*"], ["foe"]),
        "add": lists(["friend"]),
        "owner": lists(["*"], ["institution:Rivals"]),
        "watch": lists(["friend", named(other)]),
        "include": lists(["friend"]),
    }
    topic = await client.create_collection(path(word), gathering, members=[*members, members[0]], lists=chosen)
    tell(client, other)
    for told in (topic, await client.show(topic.uuid)):
        assert told.hides.whole
        assert told.hides.gathering == gathering
        assert set(told.hides.members) == set(members)
        assert told.hides.access is not None
        assert {subject: told.hides.access.about(subject) for subject in chosen} == chosen
    (listed,) = [one async for one in other.discover(word)]
    for told in (await other.show(topic.uuid), listed):
        values = told.as_object()
        assert values["fixed"] is True
        assert values["limits"] == {"breadth": 5, "depth": 4, "topics": 3}
        assert values["notifications"] == topic.hides.notifications
        assert told.hides.access is None
        assert told.hides.members == ()
        assert not {"add_allow", "watch_allow", "members"} & set(values)


async def test_defaults(live: LiveNetwork, connect: Connect) -> None:
    """T32: not fixed, no limits, no collections inside and in no others; only its owner adds, and only its owner's topics."""
    client, other = await connect(live), await connect(live)
    plain, outer = await collection(client, Gathering(), lists={"discover": EVERYONE}), await collection(client)
    assert plain.hides.gathering == Gathering(False, Limits(0, 0, 0), False, False)
    (mine,), (theirs,) = await topics(client, 1), await topics(other, 1)
    tell(client, other)
    with pytest.raises(Refused, match="you may not add to collection"):
        await other.collections.add(plain.uuid, theirs)
    with pytest.raises(Refused, match="does not take topics of everybody"):
        await client.collections.add(plain.uuid, theirs, countersigned=other.countersign("include", theirs, named(client)))
    with pytest.raises(Refused, match="takes no child collections"):
        await client.collections.add(plain.uuid, outer.uuid)
    with pytest.raises(Refused, match="cannot be part of others"):
        await client.collections.add(outer.uuid, plain.uuid)
    decided = await client.collections.add(plain.uuid, mine)
    assert (decided.kind, decided.collection, decided.uuid) == ("add", plain.uuid, mine)
    assert await found(client.collections.topics(plain.uuid)) == {(mine, 1, plain.uuid)}


async def test_fixed(live: LiveNetwork, connect: Connect) -> None:
    """T32, T33: its members are named when it is created and never change, until they end; inside it, all is fixed."""
    client, other = await connect(live), await connect(live)
    first, second, late = await topics(client, 3)
    (theirs,) = await topics(other, 1)
    with pytest.raises(Refused, match="there is no"):
        await collection(client, Gathering(fixed=True), members=[first, names.mint_uuid()])
    with pytest.raises(Refused, match="countersignature"):
        await collection(client, Gathering(fixed=True), members=[first, theirs], lists={"owner": EVERYONE})
    word = other.countersign("include", theirs, named(client))
    fixed = await collection(
        client,
        Gathering(fixed=True, inclusion=True),
        members=[first, second, theirs],
        lists={"owner": EVERYONE},
        countersigned=[word],
    )
    assert set(await uuids(client.collections.topics(fixed.uuid))) == {first, second, theirs}
    tell(client, other)
    for attempt in (
        client.collections.add(fixed.uuid, late),
        client.collections.remove(fixed.uuid, first),
        other.collections.remove(fixed.uuid, theirs),
        client.collections.move(late, source=(await collection(client, members=[late])).uuid, target=fixed.uuid),
    ):
        with pytest.raises(Refused, match="is fixed"):
            await attempt
    changing = await collection(client)
    for members, fits in (([fixed.uuid], True), ([changing.uuid], False)):
        if fits:
            outer = await collection(
                client, Gathering(fixed=True, child_collections=True), members=members, lists={"owner": EVERYONE}
            )
            assert set(await uuids(client.collections.topics(outer.uuid))) == {first, second, theirs}
        else:
            with pytest.raises(Refused, match="which is not, would change it"):
                await collection(client, Gathering(fixed=True, child_collections=True), members=members)
    await other.withdraw(theirs)
    tell(client, other)
    assert set(await uuids(client.collections.topics(fixed.uuid))) == {first, second}


async def test_members_that_cannot_be(live: LiveNetwork, connect: Connect) -> None:
    """Too many, of nobody, twice: none of it leaves half a collection behind."""
    client = await connect(live)
    with pytest.raises(UsageError, match="1001 first members are too many"):
        await collection(client, members=[names.mint_uuid() for _ in range(1001)])
    with pytest.raises(UsageError):
        await collection(client, members=["x"])
    with pytest.raises(UsageError, match="no lists about hierarchy"):
        await collection(client, lists={"hierarchy": EVERYONE})
    with pytest.raises(UsageError, match="its own creator"):
        await collection(client, lists={"add": lists(deny=[named(client)])})
    members = await topics(client, 3)
    word = f"w{secrets.token_hex(6)}"
    with pytest.raises(Refused, match="full: at most 2 direct members"):
        await collection(client, Gathering(limits=Limits(breadth=2)), members=members, name=word)
    assert [one async for one in client.discover(word)] == []
    assert await uuids(client.collections.containing(members[0])) == []


@pytest.mark.parametrize("limit", ["breadth", "depth", "topics"])
@pytest.mark.parametrize("value", [-1, 1_000_001, 1.5, "3", None])
async def test_limits_that_are_none(live: LiveNetwork, connect: Connect, limit: str, value: Any) -> None:
    client = await connect(live)
    with pytest.raises(TdnError, match=limit) as refused:
        await collection(client, Gathering(limits=Limits(**{limit: value})))
    assert refused.value.word == "usage"


# --- adding and removing -------------------------------------------------------------------------------------------------------------


async def test_who_may_add_what(live: LiveNetwork, connect: Connect) -> None:
    """T33: all three: one's own or countersigned, authorised by the collection, of an owner that it takes; by name, by institution, barred."""
    owner = await connect(live)
    friend, foe = await connect(live, live.entity(institution="Guild")), await connect(live)
    third = await connect(live, live.entity(institution="Guild"))
    gathered = await collection(
        owner, lists={"add": lists(["institution:Guild", named(foe)], [named(foe)]), "owner": lists(["institution:Guild"])}
    )
    (mine,), (friends,), (foes,), (thirds,) = [await topics(client, 1) for client in (owner, friend, foe, third)]
    tell(owner, friend, foe, third)
    await friend.collections.add(gathered.uuid, friends)
    await owner.collections.add(gathered.uuid, mine)
    with pytest.raises(Refused, match="you may not add"):
        await foe.collections.add(gathered.uuid, foes)
    with pytest.raises(Refused, match="only the owner of"):
        await friend.collections.add(gathered.uuid, thirds)
    here, elsewhere = (
        third.countersign("include", thirds, named(friend), collection=at) for at in (gathered.uuid, names.mint_uuid())
    )
    for token in (
        elsewhere,
        third.countersign("discover", thirds, named(friend)),
        friend.countersign("include", thirds, named(friend)),
    ):
        with pytest.raises(Refused, match="only the owner of"):
            await friend.collections.add(gathered.uuid, thirds, countersigned=token)
    await friend.collections.add(gathered.uuid, thirds, countersigned=here)
    with pytest.raises(Refused, match="does not take topics of everybody"):
        await friend.collections.add(gathered.uuid, foes, countersigned=foe.countersign("include", foes, named(friend)))
    with pytest.raises(Refused, match=r"is in collection .* already"):
        await friend.collections.add(gathered.uuid, friends)
    assert set(await uuids(friend.collections.topics(gathered.uuid))) == {mine, friends, thirds}


async def test_who_may_take_out(live: LiveNetwork, connect: Connect) -> None:
    """T33: the member's owner and the collection's; whoever put it there may not, nor anybody else."""
    owner, friend, third = await connect(live), await connect(live), await connect(live)
    gathered = await collection(owner, lists={"add": EVERYONE, "owner": EVERYONE})
    own, other = await topics(third, 2)
    tell(owner, friend, third)
    for uuid in (own, other):
        await friend.collections.add(gathered.uuid, uuid, countersigned=third.countersign("include", uuid, named(friend)))
    with pytest.raises(Refused, match="only the owner of"):
        await friend.collections.remove(gathered.uuid, own)
    decided = await third.collections.remove(gathered.uuid, own)
    assert (decided.kind, decided.collection, decided.uuid) == ("remove", gathered.uuid, own)
    await owner.collections.remove(gathered.uuid, other)
    tell(owner, friend)
    assert await uuids(friend.collections.topics(gathered.uuid)) == []
    for uuid in (own, names.mint_uuid()):
        with pytest.raises(Refused, match="is not in collection"):
            await owner.collections.remove(gathered.uuid, uuid)


async def test_what_one_may_not_see_is_absent(live: LiveNetwork, connect: Connect) -> None:
    """T18, T33: to change or look at what is hidden, absent, or ended gives the same words."""
    owner, other = await connect(live), await connect(live)
    private = lists([named(owner)])
    hidden, ended = await collection(owner, lists={"discover": private}), await collection(owner)
    hidden_topic = await owner.create(path("h"), lists=private)
    await owner.withdraw(ended.uuid)
    (mine,), target = await topics(other, 1), await collection(other)
    tell(owner, other)
    never = names.mint_uuid()
    gone = (hidden.uuid, ended.uuid, never)
    manage = other.collections
    assert {await words_of(manage.add(uuid, mine), uuid) for uuid in gone} == {
        (Refused, "there is no collection X that you may see; it may have ended")
    }
    assert {await words_of(manage.remove(uuid, mine), uuid) for uuid in gone} == {
        (Refused, "there is no collection X that you may see; it may have ended")
    }
    assert {await words_of(manage.add(target.uuid, uuid), uuid) for uuid in (*gone, hidden_topic.uuid)} == {
        (Refused, "there is no X that you may see; it may have ended")
    }
    for what in ("topics", "collections", "containing"):
        assert {await words_of(uuids(getattr(manage, what)(uuid)), uuid) for uuid in gone} == {(Absent, "there is no X")}
    assert (await words_of(uuids(manage.topics(mine)), mine))[0] is UsageError
    assert (await words_of(uuids(other.hierarchy.tree(target.uuid)), target.uuid))[0] is UsageError
    with pytest.raises(Refused, match="is a topic; only a collection has members"):
        await manage.add(mine, target.uuid)


async def test_limits_hold_at_every_collection_above(live: LiveNetwork, connect: Connect) -> None:
    """T33: breadth, depth and distinct topics, in it and above it on every path; who set the limit above is not told."""
    client = await connect(live)
    top = await collection(client, Gathering(limits=Limits(breadth=2, depth=2, topics=3), child_collections=True))
    free = await collection(client, Gathering(child_collections=True))
    left, right = [await collection(client) for _ in range(2)]
    for outer in (top, free):
        for inner in (left, right):
            await client.collections.add(outer.uuid, inner.uuid)
    one, two, three, four = await topics(client, 4)
    add = client.collections.add
    with pytest.raises(Refused, match="full: at most 2 direct members"):
        await add(top.uuid, one)
    await add(left.uuid, one)
    await add(left.uuid, two)
    with pytest.raises(Refused, match="a limit above it is reached"):
        await add(left.uuid, three)
    await add(right.uuid, two)
    await add(right.uuid, three)
    assert set(await uuids(client.collections.topics(top.uuid))) == {one, two, three}
    await client.collections.remove(left.uuid, one)
    await add(left.uuid, three)
    assert set(await uuids(client.collections.topics(top.uuid))) == {two, three}
    # The third distinct topic is free again, the fourth is not.
    await client.collections.remove(left.uuid, three)
    await add(left.uuid, four)
    await client.collections.remove(left.uuid, four)
    lower = await collection(client)
    with pytest.raises(Refused, match=r"would make the tree of collection .* too deep"):
        await add(left.uuid, lower.uuid)
    wide = await collection(client, members=await topics(client, 3))
    await client.collections.remove(top.uuid, left.uuid)
    with pytest.raises(Refused, match="too many members in its tree"):
        await add(top.uuid, wide.uuid)
    await add(free.uuid, wide.uuid)


async def test_the_last_slot_goes_to_one(live: LiveNetwork, connect: Connect) -> None:
    """T33: added at once by several entities, no limit above is exceeded; the others hear why."""
    owner = await connect(live)
    rivals = [await connect(live) for _ in range(4)]
    anyone = {"add": EVERYONE, "owner": EVERYONE}
    top = await collection(owner, Gathering(limits=Limits(topics=3), child_collections=True), lists=anyone)
    parts = [await collection(owner, lists=anyone) for _ in range(2)]
    for part in parts:
        await owner.collections.add(top.uuid, part.uuid)
    own = [await topics(rival, 2) for rival in rivals]
    outcomes = await asyncio.gather(
        *(
            rival.collections.add(part.uuid, topic)
            for rival, mine in zip(rivals, own, strict=True)
            for part, topic in zip(parts, mine, strict=True)
        ),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(outcomes) - len(refused) == 3
    assert all(isinstance(error, Refused) and "a limit above it is reached" in str(error) for error in refused), refused
    tell(owner, *rivals)
    assert len(await uuids(owner.collections.topics(top.uuid))) == 3


# --- nesting and moving --------------------------------------------------------------------------------------------------------------


async def test_never_a_cycle(live: LiveNetwork, connect: Connect) -> None:
    """T33: not in itself, not in what it holds, at any depth and on any path, by adding or by moving."""
    client = await connect(live)
    a, b, c, d, outer = [await collection(client, name=name) for name in "abcde"]
    for holder, held in ((a, b), (b, c), (a, c), (c, d), (outer, a)):
        await client.collections.add(holder.uuid, held.uuid)
    for holder, held in ((a, a), (b, a), (c, a), (d, a), (d, b)):
        with pytest.raises(Refused, match=r"cannot be in itself|never inside itself"):
            await client.collections.add(holder.uuid, held.uuid)
    with pytest.raises(Refused, match="never inside itself"):
        await client.collections.move(a.uuid, source=outer.uuid, target=d.uuid)
    assert set(await uuids(client.collections.collections(outer.uuid))) == {a.uuid, b.uuid, c.uuid, d.uuid}


async def test_who_may_put_a_collection_into_others(live: LiveNetwork, connect: Connect) -> None:
    """T32, T33: its owner, whom its owner named, or who has its owner's word; whose topics come with it is held against all above."""
    owner, friend, other = await connect(live), await connect(live), await connect(live)
    part = await collection(owner, members=await topics(owner, 1), lists={"include": lists([named(friend)])})
    tell(owner, friend, other)
    choosy, hers, his = (
        await collection(friend),
        await collection(friend, lists={"owner": EVERYONE}),
        await collection(other, lists={"owner": EVERYONE}),
    )
    tell(owner, friend, other)
    with pytest.raises(Refused, match="does not take topics of everybody"):
        await friend.collections.add(choosy.uuid, part.uuid)
    await friend.collections.add(hers.uuid, part.uuid)
    with pytest.raises(Refused, match="only the owner of"):
        await other.collections.add(his.uuid, part.uuid)
    await other.collections.add(his.uuid, part.uuid, countersigned=owner.countersign("include", part.uuid, named(other)))
    tell(owner, friend, other)
    assert set(await uuids(owner.collections.containing(part.uuid))) == {hers.uuid, his.uuid}
    # Later additions below are held against those above too.
    with pytest.raises(Refused, match="there is no"):
        await owner.collections.add(part.uuid, names.mint_uuid())


async def test_in_many_and_moved(live: LiveNetwork, connect: Connect) -> None:
    """T34: a topic and a collection in many at once; a move is both or neither."""
    client = await connect(live)
    a, b, full = await collection(client), await collection(client), await collection(client, Gathering(limits=Limits(breadth=1)))
    topic, filler = await topics(client, 2)
    part = await collection(client, members=[topic])
    await client.collections.add(full.uuid, filler)
    for at in (a, b):
        await client.collections.add(at.uuid, topic)
        await client.collections.add(at.uuid, part.uuid)
    assert set(await uuids(client.collections.containing(topic))) == {a.uuid, b.uuid, part.uuid}
    assert await uuids(client.collections.topics(a.uuid)) == [topic], "each once, however it is inside"
    for mover in (
        client.collections.move(topic, source=a.uuid, target=full.uuid),
        client.collections.move(topic, source=a.uuid, target=b.uuid),
        client.collections.move(topic, source=a.uuid, target=a.uuid),
        client.collections.move(topic, source=full.uuid, target=a.uuid),
        client.collections.move(topic, source=a.uuid, target=names.mint_uuid()),
    ):
        with pytest.raises(Refused):
            await mover
    assert (topic, 1, a.uuid) in await found(client.collections.topics(a.uuid, depth=1)), "neither"
    await client.collections.remove(full.uuid, filler)
    decided = await client.collections.move(topic, source=a.uuid, target=full.uuid)
    assert (decided.kind, decided.collection, decided.uuid) == ("move", full.uuid, topic)
    assert await uuids(client.collections.topics(a.uuid, depth=1)) == []
    assert await uuids(client.collections.topics(full.uuid)) == [topic]
    await client.collections.move(part.uuid, source=b.uuid, target=(new := await collection(client)).uuid)
    assert set(await uuids(client.collections.containing(part.uuid))) == {a.uuid, new.uuid}


# --- looking -------------------------------------------------------------------------------------------------------------------------


async def test_the_four_questions(live: LiveNetwork, connect: Connect) -> None:
    """T36: topics of the tree and of a subtree, collections of a tree and of a subtree, and what something is in; each as far as one sees."""
    owner, friend, foe, stranger = [await connect(live) for _ in range(4)]
    private, unless = lists([named(owner), named(friend)]), lists(deny=[named(foe)])
    top, open_part, closed_part = (
        await collection(owner, name="top"),
        await collection(owner, name="open", lists={"discover": unless}),
        await collection(owner, name="closed", lists={"discover": private}),
    )
    inner = await collection(owner, name="inner")
    one, two, three = await topics(owner, 3)
    secret = (await owner.create(path("secret"), lists=private)).uuid
    for holder, held in (
        (top.uuid, one),
        (top.uuid, open_part.uuid),
        (top.uuid, closed_part.uuid),
        (open_part.uuid, two),
        (open_part.uuid, secret),
        (closed_part.uuid, inner.uuid),
        (inner.uuid, three),
        (inner.uuid, two),
    ):
        await owner.collections.add(holder, held)
    tell(owner, friend, foe, stranger)
    whole_topics = {(one, 1, top.uuid), (two, 2, open_part.uuid), (secret, 2, open_part.uuid), (three, 3, inner.uuid)}
    whole_collections = {(open_part.uuid, 1, top.uuid), (closed_part.uuid, 1, top.uuid), (inner.uuid, 2, closed_part.uuid)}
    sees = {
        owner: (whole_topics, whole_collections),
        friend: (whole_topics, whole_collections),
        stranger: ({(one, 1, top.uuid), (two, 2, open_part.uuid)}, {(open_part.uuid, 1, top.uuid)}),
        foe: ({(one, 1, top.uuid)}, set()),
    }
    for client, (its_topics, its_collections) in sees.items():
        look = client.collections
        for node in ("n1", "n2"):
            await client.choose(lambda located, node=node: next(one for one in located if one.id == node))
            assert await found(look.topics(top.uuid)) == its_topics
            assert await found(look.collections(top.uuid)) == its_collections
        for depth in (1, 2, 3):
            assert await found(look.topics(top.uuid, depth=depth)) == {place for place in its_topics if place[1] <= depth}
            assert await found(look.collections(top.uuid, depth=depth)) == {
                place for place in its_collections if place[1] <= depth
            }
    # What a collection hides goes to others as far as they need it to use it.
    (placed,) = [placed async for placed in stranger.collections.collections(top.uuid)]
    assert (placed.topic.hides.gathering, placed.topic.hides.access, placed.topic.hides.whole) == (NESTING, None, False)
    # Of a subtree; and upwards, those that hold it directly first.
    assert await found(friend.collections.topics(closed_part.uuid)) == {(two, 2, inner.uuid), (three, 2, inner.uuid)}
    assert await found(friend.collections.collections(closed_part.uuid)) == {(inner.uuid, 1, closed_part.uuid)}
    assert await uuids(friend.collections.containing(three)) == [inner.uuid, closed_part.uuid, top.uuid]
    assert await uuids(friend.collections.containing(three, depth=1)) == [inner.uuid]
    # To whoever does not see what lies between, the way up ends there; and inner, which everybody may discover, is in nothing.
    assert await uuids(stranger.collections.containing(three)) == [inner.uuid]
    assert await uuids(stranger.collections.containing(inner.uuid)) == []
    assert set(await uuids(stranger.collections.containing(two))) == {open_part.uuid, inner.uuid, top.uuid}
    assert set(await uuids(foe.collections.containing(two))) == {inner.uuid}
    for client in (stranger, foe):
        with pytest.raises(Absent):
            await uuids(client.collections.topics(closed_part.uuid))
        with pytest.raises(Absent):
            await uuids(client.collections.containing(secret))


async def test_a_look_inside_that_the_owner_countersigned(live: LiveNetwork, connect: Connect) -> None:
    """T27, T36: with the owner's word, with the owner's eyes; for that collection alone."""
    owner, guest = await connect(live), await connect(live)
    private = {"discover": lists([named(owner)])}
    inner = await collection(owner, lists=private, members=await topics(owner, 1))
    outer = await collection(owner, lists=private)
    await owner.collections.add(outer.uuid, inner.uuid)
    tell(owner, guest)
    word = owner.countersign("discover", outer.uuid, named(guest))
    assert await uuids(guest.collections.collections(outer.uuid, countersigned=word)) == [inner.uuid]
    assert len(await uuids(guest.collections.topics(outer.uuid, countersigned=word))) == 1
    for uuid, token in ((outer.uuid, None), (inner.uuid, word)):
        with pytest.raises(Absent):
            await uuids(guest.collections.topics(uuid, countersigned=token))


async def test_more_than_a_page(live: LiveNetwork, connect: Connect) -> None:
    """T36: a collection of 130 topics, named at once; over pages, each once and in order."""
    client, other = await connect(live), await connect(live)
    members = await topics(client, 130)
    gathered = await collection(client, members=members)
    tell(client, other)
    assert await uuids(other.collections.topics(gathered.uuid)) == sorted(members)


# --- ending --------------------------------------------------------------------------------------------------------------------------


async def test_ended_members_and_ended_collections(live: LiveNetwork, connect: Connect) -> None:
    """T26, T34: what ends leaves its collections and frees its slots; a collection that ends releases what it held, which lives on."""
    client = await connect(live)
    gathered = await collection(client, Gathering(limits=Limits(breadth=2, topics=2), child_collections=True))
    first, second, third = await topics(client, 3)
    brief = await client.create(path("brief"), lifetime=timedelta(seconds=6))
    part = await collection(client, members=[first])
    await client.collections.add(gathered.uuid, brief.uuid)
    await client.collections.add(gathered.uuid, part.uuid)
    with pytest.raises(Refused, match="full"):
        await client.collections.add(gathered.uuid, second)
    await until(lambda: (live.fact("topic", brief.uuid) or {})["state"] == "expired", "n1 to end it")
    await until(lambda: (live.fact("topic", brief.uuid, "n2") or {})["state"] == "expired", "n2 to end it")
    assert await uuids(client.collections.topics(gathered.uuid)) == [first]
    await client.collections.add(gathered.uuid, second)
    await client.withdraw(part.uuid)
    assert await uuids(client.collections.topics(gathered.uuid)) == [second]
    assert await uuids(client.collections.containing(first)) == []
    assert (await client.show(first)).uuid == first
    await client.collections.add(gathered.uuid, third)
    await client.withdraw(gathered.uuid)
    assert await uuids(client.collections.containing(third)) == []
    with pytest.raises(Refused, match="there is no collection"):
        await client.collections.add(gathered.uuid, first)


# --- bad input -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unharmed(live: LiveNetwork) -> Iterator[None]:
    """After the test: the same processes, ready, nothing failed inside them, and nothing lies in their queues."""
    pids = {entry["id"]: entry["pid"] for entry in live.network.status()}
    yield
    assert {entry["id"]: entry["pid"] for entry in live.network.status()} == pids
    assert live.ready()
    assert live.counts("failed") == 0
    for queue in (names.CHANGES, names.DEAD):
        wait_for(lambda queue=queue: live.waiting(queue) == 0, f"{queue} to be empty")
    for node in ("n1", "n2"):
        wait_for(lambda node=node: live.unanswered(node) == 0, f"{node} to have taken all")


@pytest.mark.usefixtures("unharmed")
async def test_changes_that_are_no_good(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """With members left out, too many, of the wrong form, sealed as a question: told to whom they come from, and of no effect."""
    owner = await connect(live)
    gathered = await collection(owner, lists={"add": EVERYONE, "owner": EVERYONE})
    (topic,) = await topics(owner, 1)
    raw.hello()
    good = {"collection": gathered.uuid, "uuid": topic}
    for kind, body, words in (
        ("add", {"collection": gathered.uuid}, "uuid"),
        ("add", {**good, "uuid": "x"}, "uuid"),
        ("add", {**good, "uuid": [topic] * 1_000}, "uuid"),
        ("add", {**good, "countersigned": "x"}, "countersigned"),
        ("add", {**good, "countersigned": "a.b." + "c" * 5000}, "countersigned"),
        ("add", {**good, "as": "owner"}, "as"),
        ("remove", {"uuid": topic}, "collection"),
        ("move", {"uuid": topic, "from": gathered.uuid}, "to"),
        ("move", {"uuid": topic, "from": gathered.uuid, "to": 7}, "to"),
    ):
        raw.change(raw.claim(kind, body), reply_to=names.DIRECT_REPLY)
        answer = raw.direct_reply()
        assert (answer.kind, answer.body["error"]) == ("error", "usage"), body
        assert words in answer.body["message"]
    for garbage in ("a.b.c", raw.write("add", good).decode()):
        raw.change(raw.write("add", {**good, "countersigned": garbage}))
        answer = raw.reply()
        assert (answer.kind, answer.body["error"]) == ("error", "refused")
        assert "only the owner of" in answer.body["message"]
    raw.question(raw.seal(raw.write("add", good), "n1"), "n1")
    assert "is not a question" in raw.reply().body["message"]
    assert raw.more_replies() == 0
    assert await uuids(owner.collections.topics(gathered.uuid)) == []


@pytest.mark.usefixtures("unharmed")
async def test_collections_that_are_no_good(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """Lists of 10,000 names, thousands of members, limits out of range: a node that is asked past the client refuses them too."""
    raw.hello()

    def body(**changes: Any) -> dict[str, Any]:
        return {
            "creator": raw.name.id,
            "institution": raw.credentials.identity.institution,
            "lifetime_seconds": 3600,
            "descriptor": {"kind": "path", "path": "a"},
            "synopsis": {"type": "string", "placeholder": "{uuid}"},
            "gathering": Gathering().as_object(),
            **changes,
        }

    limits = Limits().as_object()
    for changes, words in (
        ({"lists": {"add_allow": [f"e{number}" for number in range(10_000)]}}, "add_allow"),
        ({"lists": {"add_allow": ["No Body"]}}, "add_allow"),
        ({"lists": {"conquer_allow": ["x"]}}, "conquer_allow"),
        ({"members": [names.mint_uuid() for _ in range(2_000)]}, "members"),
        ({"members": "x"}, "members"),
        ({"gathering": {**Gathering().as_object(), "limits": {**limits, "topics": -1}}}, "topics"),
        ({"gathering": {**Gathering().as_object(), "limits": {**limits, "depth": 10**30}}}, "depth"),
        ({"gathering": {**Gathering().as_object(), "notifications": names.mint_uuid()}}, "notifications"),
        ({"gathering": {"fixed": "yes"}}, "gathering"),
    ):
        raw.question(raw.seal(raw.claim("create", body(**changes), audience="node:n1"), "n1"), "n1", reply_to=names.DIRECT_REPLY)
        answer = raw.direct_reply()
        assert (answer.kind, answer.body["error"]) == ("error", "usage"), words
        assert words in answer.body["message"]
    # More than a request can be: the direct reply alone can say so.
    raw.question(
        raw.seal(raw.claim("create", body(members=[names.mint_uuid() for _ in range(3_000)]), audience="node:n1"), "n1"),
        "n1",
        reply_to=names.DIRECT_REPLY,
    )
    assert "over the limit" in raw.direct_reply().body["message"]
    assert raw.ask("create", body()).kind == "created"
    assert raw.more_replies() == 0


async def test_lists_at_their_limit(live: LiveNetwork, connect: Connect) -> None:
    """500 names in each of several lists are taken; one more, in any of them, is refused before it is sent."""
    client = await connect(live)
    many = [f"e{number}" for number in range(10_000)]
    with pytest.raises(UsageError, match="at most 500"):
        lists(many[:501])
    with pytest.raises(UsageError, match="at most 500"):
        lists(deny=many)
    longest = lists(many[:500], many[500:1000])
    gathered = await collection(client, lists={"add": longest, "owner": longest, "watch": longest})
    told = (await client.show(gathered.uuid)).hides.access
    assert told is not None
    assert told.about("watch") == longest == Lists(tuple(sorted(many[:500])), tuple(sorted(many[500:1000])))
