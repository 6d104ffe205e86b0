"""Topics below topics over real nodes and a real broker (T23 to T27, T30): registered, limited, looked at, ended; and nothing of it shows."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from entity_client import EntityClient, Topic, lists, path
from entity_client.objects import Placed
from tdn.errors import Absent, NoNodeAnswered, Refused, TdnError, UsageError
from tdn.protocol import names
from tdn.protocol.access import Lists
from tdn.protocol.trees import Hosting
from tdn.trust import openings, statements
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, until, wait_for

pytestmark = pytest.mark.broker

OPEN = Hosting(allow_children=True)


async def found(looking: AsyncIterator[Placed]) -> list[tuple[str, int, str | None]]:
    """What is seen of a tree: each with its depth and what it is below."""
    return [(placed.uuid, placed.depth, placed.inside) async for placed in looking]


async def uuids(looking: AsyncIterator[Placed]) -> list[str]:
    return [placed.uuid async for placed in looking]


def tell(*clients: EntityClient) -> None:
    """Each knows what the others have receipts for, so that whichever node it asks answers from a view that has it."""
    seen = max(client.seen for client in clients)
    for client in clients:
        client.seen = seen


async def child(client: EntityClient, parent: Topic, name: str = "child", **how: Any) -> Topic:
    return await client.create(path(name), parent=parent.uuid, **how)


async def words_of(attempt: Any, uuid: str) -> tuple[type[TdnError], str]:
    """The error that an attempt ends in, without the UUID that it was about."""
    with pytest.raises(TdnError) as caught:
        await attempt
    return type(caught.value), str(caught.value).replace(uuid, "X")


# --- registering ---------------------------------------------------------------------------------------------------------------------


async def test_a_topic_takes_no_children_unless_it_says_so(live: LiveNetwork, connect: Connect) -> None:
    """T23: a root by default, and without children; its creator may not have any either."""
    client = await connect(live)
    root = await client.create(path("alone"))
    assert (root.hides.parent, root.hides.hosting) == (None, None)
    with pytest.raises(Refused, match="does not take child topics"):
        await child(client, root)
    limited = await client.create(path("limits alone"), hosting=Hosting(max_depth=3, max_width=3))
    with pytest.raises(Refused, match="does not take child topics"):
        await child(client, limited)
    assert await found(client.hierarchy.tree(root.uuid)) == [(root.uuid, 0, None)]
    assert await found(client.hierarchy.parents(root.uuid)) == []
    assert await found(client.hierarchy.children(root.uuid)) == []


async def test_a_child_says_what_it_was_registered_with(live: LiveNetwork, connect: Connect) -> None:
    """T23: parent, limits and lists are in what the node signed, hidden from everybody else; its owner is told on every way."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("root"), hosting=OPEN)
    hosting = Hosting(True, 2, 3)
    topic = await child(
        client, root, hosting=hosting, hierarchy=lists(["friend"]), register=lists(["*"], ["foe"]), lists=lists(deny=["foe"])
    )
    tell(client, other)
    for told in (topic, await client.show(topic.uuid), (await _placed(client.hierarchy.children(root.uuid)))[0].topic):
        assert (told.hides.parent, told.hides.hosting, told.hides.whole) == (root.uuid, hosting, True)
        assert told.hides.access is not None
        assert told.hides.access.about("hierarchy") == Lists(("friend",))
        assert told.hides.access.about("register") == Lists(("*",), ("foe",))
        assert told.lists == Lists(deny=("foe",))
    assert topic.as_object()["parent"] == root.uuid
    shown = await other.show(topic.uuid)
    assert shown.token == topic.token
    assert shown.hides.parent is None
    assert shown.hides.access is None


async def _placed(looking: AsyncIterator[Placed]) -> list[Placed]:
    return [placed async for placed in looking]


async def test_limits_of_the_ancestors_win(live: LiveNetwork, connect: Connect) -> None:
    """T24: MaxDepth counts levels with its own; under a root with MaxDepth 2 a child that asks for 2 or 0 is refused."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("two levels"), hosting=Hosting(True, max_depth=2))
    for asked, said in ((2, "not for 2"), (0, "not for no limit"), (1_000_000, "not for 1000000")):
        with pytest.raises(Refused, match=f"MaxDepth: a child of topic {root.uuid} may ask for 1 at most, {said}"):
            await child(other, root, hosting=Hosting(True, max_depth=asked))
    for hosting in (OPEN, Hosting(True, max_depth=1)):
        lowest = await child(other, root, hosting=hosting)
        with pytest.raises(Refused, match="lowest level"):
            await child(client, lowest)
    assert len(await found(other.hierarchy.tree(root.uuid))) == 3


async def test_width_holds_for_every_topic_of_the_subtree(live: LiveNetwork, connect: Connect) -> None:
    """T23, T24: also below a child that names no limit; a smaller one of its own holds there; an ended child's slot is free again."""
    client = await connect(live)
    root = await client.create(path("wide"), hosting=Hosting(True, max_width=2))
    first, second = await child(client, root, hosting=OPEN), await child(client, root, hosting=Hosting(True, max_width=1))
    with pytest.raises(Refused, match="MaxWidth 2"):
        await child(client, root)
    for asked in (0, 3):
        with pytest.raises(Refused, match=r"MaxWidth: .* may ask for 2 at most"):
            await child(client, first, hosting=Hosting(True, max_width=asked))
    below = [await child(client, first), await child(client, first)]
    with pytest.raises(Refused, match="MaxWidth 2"):
        await child(client, first)
    await child(client, second)
    with pytest.raises(Refused, match="MaxWidth 1"):
        await child(client, second)
    await client.withdraw(below[0].uuid)
    again = await child(client, first)
    assert set(await uuids(client.hierarchy.children(first.uuid))) == {below[1].uuid, again.uuid}


@pytest.mark.parametrize("kind", ["depth", "width"])
@pytest.mark.parametrize("value", [-1, 1_000_001, 1.5, True, "2"])
async def test_limits_that_are_none(live: LiveNetwork, connect: Connect, kind: str, value: Any) -> None:
    """Refused before anything is reserved, with the place of the mistake."""
    client = await connect(live)
    with pytest.raises(TdnError, match=f"max_{kind}") as refused:
        await client.create(path("a"), hosting=Hosting(True, **{f"max_{kind}": value}))
    assert refused.value.word == "usage"


async def test_one_slot_and_many_who_want_it(live: LiveNetwork, connect: Connect) -> None:
    """T25: registered at once by several entities at both nodes, the last slots go to as many as there are; the others hear why."""
    owner = await connect(live)
    rivals = [await connect(live) for _ in range(4)]
    await asyncio.gather(*(rival.choose() for rival in rivals))
    root = await owner.create(path("contested"), hosting=Hosting(True, max_width=3))
    attempts = [
        child(rival, root, f"try/{number}", node=node) for number, rival in enumerate(rivals) for node in ("n1", "n2", None)
    ]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    won = {outcome.uuid for outcome in outcomes if isinstance(outcome, Topic)}
    lost = [outcome for outcome in outcomes if not isinstance(outcome, Topic)]
    assert len(won) == 3
    assert all(isinstance(error, Refused) and "MaxWidth 3" in str(error) for error in lost), lost
    tell(owner, *rivals)
    assert set(await uuids(owner.hierarchy.children(root.uuid))) == won


async def test_a_child_that_is_kept_back(live: LiveNetwork, connect: Connect) -> None:
    """T7: minted and not advertised it holds its slot and shows to nobody; advertised later, also by its bytes alone, it is in its place."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("kept"), hosting=Hosting(True, max_width=1))
    kept = await child(client, root, advertise=False)
    assert kept.receipt is None
    tell(client, other)
    assert await uuids(client.hierarchy.tree(root.uuid)) == [root.uuid]
    with pytest.raises(Absent):
        await client.show(kept.uuid)
    with pytest.raises(Refused, match="MaxWidth 1"):
        await child(other, root)
    with pytest.raises(Refused, match="only its creator"):
        await other.advertise(kept.token, opening=kept.opening)
    await client.advertise(kept.token)
    assert await found(client.hierarchy.children(root.uuid)) == [(kept.uuid, 1, root.uuid)]
    assert (await client.advertise(kept.token)).uuid == kept.uuid, "harmless to repeat"


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_the_node_that_was_named_mints_the_child(live: LiveNetwork, connect: Connect, node: str) -> None:
    client = await connect(live)
    root = await client.create(path("by name"), hosting=OPEN, node={"n1": "n2", "n2": "n1"}[node])
    topic = await child(client, root, node=node)
    assert topic.advertisement.node == node
    assert (await client.show(topic.uuid)).token == topic.token


async def test_a_named_node_that_is_not_there(live: LiveNetwork, connect: Connect) -> None:
    """Nobody else takes a child that was meant for one node, and no slot is lost by it."""
    client = await connect(live, timeout=2)
    root = await client.create(path("nowhere"), hosting=Hosting(True, max_width=1))
    with pytest.raises(NoNodeAnswered, match="n77"):
        await child(client, root, node="n77")
    assert (await child(client, root)).receipt


async def test_a_sealed_child(live: LiveNetwork, connect: Connect) -> None:
    """T9, T24: a child's descriptor can be for a few alone; its place shows all the same to whoever may see it."""
    client, reader, other = await connect(live), await connect(live), await connect(live)
    await reader.choose()
    root = await client.create(path("sealed below"), hosting=OPEN)
    topic = await child(client, root, "secret/name", sealed_for=[reader.identity.name.id])
    tell(client, reader, other)
    (placed,) = await _placed(reader.hierarchy.children(root.uuid))
    assert placed.topic.descriptor["path"] == "secret/name"
    (placed,) = await _placed(other.hierarchy.children(root.uuid))
    assert (placed.uuid, placed.topic.as_object()["descriptor"]) == (topic.uuid, {"kind": "sealed"})


async def test_parents_that_cannot_be(live: LiveNetwork, connect: Connect) -> None:
    """A collection, one's own UUID before it exists, one that is absent, hidden, withdrawn: the last four in the same words."""
    client, owner = await connect(live), await connect(live)
    collection = await client.create_collection(path("no parent"))
    with pytest.raises(Refused, match="is a collection, which has members and no child topics"):
        await child(client, collection)
    hidden = await owner.create(path("hidden"), hosting=OPEN, lists=lists([owner.identity.name.id]))
    ended = await owner.create(path("ended"), hosting=OPEN)
    await owner.withdraw(ended.uuid)
    never = names.mint_uuid()
    told = {await words_of(client.create(path("a"), parent=uuid), uuid) for uuid in (never, hidden.uuid, ended.uuid)}
    assert told == {(Refused, "there is no topic X that you may see; it may have ended")}
    with pytest.raises(UsageError):
        await client.create(path("a"), parent="not-a-uuid")
    with pytest.raises(UsageError, match="name the parent"):
        await client.create(path("a"), countersigned="x")


# --- who may register ----------------------------------------------------------------------------------------------------------------


async def test_who_may_register(live: LiveNetwork, connect: Connect) -> None:
    """T23, T27: allowed and barred by name and by institution; what is below inherits the lists, may narrow them, and bars hold."""
    owner = await connect(live)
    friend, foe, stranger = await connect(live), await connect(live, live.entity(institution="Rivals")), await connect(live)
    named = [friend.identity.name.id, foe.identity.name.id]
    root = await owner.create(path("by list"), hosting=OPEN, register=lists(named, ["institution:Rivals"]))
    below = await child(owner, root, "inherits", hosting=OPEN)
    wider = await child(owner, root, "widens", hosting=OPEN, register=lists(["*"]))
    for parent, allowed, barred in (
        (root, [friend], [foe, stranger]),
        (below, [friend], [foe, stranger]),
        (wider, [friend, stranger], [foe]),
    ):
        for client in allowed:
            assert (await child(client, parent)).receipt
        for client in barred:
            with pytest.raises(Refused, match="you may not register children"):
                await child(client, parent)
    assert (await child(owner, root)).receipt, "the owner always may"


async def test_a_registration_that_the_owner_countersigned(live: LiveNetwork, connect: Connect) -> None:
    """T27: with the owner's word an entity registers below what it may not even see; with another's, or another word, it may not."""
    owner, guest, other = await connect(live), await connect(live), await connect(live)
    owner_id, guest_id = owner.identity.name.id, guest.identity.name.id
    root = await owner.create(path("invited"), hosting=OPEN, lists=lists([owner_id]), register=lists([owner_id]))
    plain = await owner.create(path("elsewhere"), hosting=OPEN)
    word = owner.countersign("register", root.uuid, guest_id)
    useless = {
        "none": None,
        "for somebody else": owner.countersign("register", root.uuid, other.identity.name.id),
        "for another topic": owner.countersign("register", plain.uuid, guest_id),
        "for something else": owner.countersign("discover", root.uuid, guest_id),
        "by somebody who does not own it": other.countersign("register", root.uuid, guest_id),
        "by the guest": guest.countersign("register", root.uuid, guest_id),
        "changed": word[:-4] + ("AAAA" if not word.endswith("AAAA") else "BBBB"),
        "no signature at all": "garbage",
    }
    await other.choose()
    for flaw, token in useless.items():
        with pytest.raises(TdnError, match=r"there is no topic|countersigned") as refused:
            await child(guest, root, countersigned=token)
        assert refused.value.word in ("refused", "usage"), flaw
    topic = await child(guest, root, countersigned=word)
    assert topic.owner == guest_id
    assert (await child(guest, root, countersigned=word)).receipt, "as often as it holds"
    tell(owner, guest, other)
    assert topic.uuid in await uuids(owner.hierarchy.children(root.uuid))
    with pytest.raises(Refused):
        await child(other, root, countersigned=word)


# --- lifetimes -----------------------------------------------------------------------------------------------------------------------


async def test_a_child_never_outlives_its_ancestors(live: LiveNetwork, connect: Connect) -> None:
    """T26: a longer lifetime is cut and the creator told, when it is created and when it is renewed; a shortened parent shortens its subtree."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("an hour"), hosting=OPEN, lifetime=timedelta(hours=1))
    longer = await child(other, root, lifetime=timedelta(days=1), hosting=OPEN)
    shorter = await child(other, root, lifetime=timedelta(minutes=5))
    assert (longer.cut, longer.expires) == (True, root.expires)
    assert longer.as_object()["cut"] is True
    assert (shorter.cut, shorter.expires - shorter.advertisement.created) == (False, timedelta(minutes=5))
    below = await child(client, longer, lifetime=timedelta(days=2))
    assert (below.cut, below.expires) == (True, root.expires)

    renewed = await other.renew(longer.uuid, timedelta(days=5))
    assert (renewed.cut, renewed.expires) == (True, root.expires)
    assert renewed.as_object()["cut"] is True
    assert not (await other.renew(shorter.uuid, timedelta(minutes=10))).cut

    shortened = await client.renew(root.uuid, timedelta(minutes=1))
    assert shortened.expires is not None
    assert not shortened.cut
    tell(client, other)
    for client_, uuid in ((client, root.uuid), (other, longer.uuid), (other, shorter.uuid), (client, below.uuid)):
        assert (await client_.show(uuid)).expires == shortened.expires
    tree = {placed.uuid: placed.topic.expires for placed in await _placed(client.hierarchy.tree(root.uuid))}
    assert set(tree.values()) == {shortened.expires}
    # A longer life of the root gives none back: each owner asks for its own.
    await client.renew(root.uuid, timedelta(days=2))
    assert not (await other.renew(longer.uuid, timedelta(days=1))).cut


async def test_a_subtree_expires_with_its_root(live: LiveNetwork, connect: Connect) -> None:
    """T26: at its moment, for everybody and at every node; the log follows."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("short"), hosting=OPEN, lifetime=timedelta(seconds=6))
    topic = await child(other, root, hosting=OPEN)
    below = await child(client, topic)
    tell(client, other)
    assert len(await found(client.hierarchy.tree(root.uuid))) == 3
    for node in ("n1", "n2"):
        for uuid in (root.uuid, topic.uuid, below.uuid):
            await until(
                lambda node=node, uuid=uuid: (live.fact("topic", uuid, node) or {}).get("state") == "expired", f"{node} to end it"
            )
    for client_, uuid in ((client, root.uuid), (other, topic.uuid), (client, below.uuid)):
        with pytest.raises(Absent):
            await client_.show(uuid)
        with pytest.raises(Absent):
            await found(client_.hierarchy.tree(uuid))
    with pytest.raises(Refused, match="expired"):
        await other.renew(topic.uuid, timedelta(days=1))


async def test_a_withdrawn_topic_takes_its_subtree_along(live: LiveNetwork, connect: Connect) -> None:
    """T26, T39: more of it than one record settles; none of it shows from the receipt on, nor can it be used."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("falls"), hosting=OPEN)
    middle = await child(other, root, hosting=OPEN)
    below = await asyncio.gather(*(child(other, middle, f"leaf/{number}") for number in range(120)))
    beside = await client.create(path("stands"), hosting=OPEN)
    tell(client, other)
    assert len(await found(client.hierarchy.tree(root.uuid))) == 122, "over more than one page"
    assert await found(client.hierarchy.children(root.uuid)) == [(middle.uuid, 1, root.uuid)]
    await client.withdraw(root.uuid)
    tell(client, other)
    for uuid in (middle.uuid, below[0].uuid, below[-1].uuid):
        with pytest.raises(Absent):
            await other.show(uuid)
    with pytest.raises(Refused, match=r"has expired|has ended"):
        await other.renew(below[-1].uuid, timedelta(hours=1))
    with pytest.raises(Refused, match="there is no topic"):
        await child(other, middle)
    assert (await child(other, beside)).receipt
    for node in ("n1", "n2"):
        await until(
            lambda node=node: {(live.fact("topic", leaf.uuid, node) or {})["state"] for leaf in below} == {"expired"},
            f"{node} to end all of it",
        )


# --- looking -------------------------------------------------------------------------------------------------------------------------


async def test_parents_children_and_subtree(live: LiveNetwork, connect: Connect) -> None:
    """T27: each before its children, the nearest ancestors first, to a depth, at every node alike."""
    client, other = await connect(live), await connect(live)
    root = await client.create(path("r"), hosting=OPEN)
    a, b = await child(client, root, "a", hosting=OPEN), await child(other, root, "b", hosting=OPEN)
    aa, ab = await child(other, a, "aa", hosting=OPEN), await child(client, a, "ab")
    aaa = await child(client, aa, "aaa")
    tell(client, other)
    whole = [
        (root.uuid, 0, None),
        *_ordered(
            (
                a,
                [
                    (a.uuid, 1, root.uuid),
                    *_ordered((aa, [(aa.uuid, 2, a.uuid), (aaa.uuid, 3, aa.uuid)]), (ab, [(ab.uuid, 2, a.uuid)])),
                ],
            ),
            (b, [(b.uuid, 1, root.uuid)]),
        ),
    ]
    for asker in (client, other):
        for node in ("n1", "n2"):
            await asker.choose(lambda located, node=node: next(one for one in located if one.id == node))
            look = asker.hierarchy
            assert await found(look.tree(root.uuid)) == whole
            for depth in (1, 2, 3, 9):
                assert await found(look.tree(root.uuid, depth=depth)) == [place for place in whole if place[1] <= depth]
            assert await found(look.children(root.uuid)) == [place for place in whole if place[1] == 1]
            assert await found(look.children(root.uuid, depth=2)) == [place for place in whole if place[1] in (1, 2)]
            assert await found(look.parents(aaa.uuid)) == [(aa.uuid, 1, a.uuid), (a.uuid, 2, root.uuid), (root.uuid, 3, None)]
            assert await uuids(look.parents(aaa.uuid, depth=2)) == [aa.uuid, a.uuid]
            assert await found(look.tree(aa.uuid)) == [(aa.uuid, 0, None), (aaa.uuid, 1, aa.uuid)]
    for depth in (0, -1):
        with pytest.raises(UsageError, match="depth"):
            await found(client.hierarchy.tree(root.uuid, depth=depth))


def _ordered(*branches: tuple[Topic, list[Any]]) -> list[Any]:
    """Branches in the order in which nodes give them: by (created, uuid) of their uppermost topic."""
    ordered = sorted(branches, key=lambda branch: (branch[0].advertisement.created, branch[0].uuid))
    return [place for _, places in ordered for place in places]


async def test_who_sees_what_of_a_tree(live: LiveNetwork, connect: Connect) -> None:
    """T27: its owner; else barred neither by the topic nor by an ancestor, and allowed by the nearest list present."""
    owner = await connect(live)
    friend, foe, outsider = await connect(live), await connect(live), await connect(live, live.entity(institution="Elsewhere"))
    friend_id, foe_id = friend.identity.name.id, foe.identity.name.id
    root = await owner.create(path("root"), hosting=OPEN, lists=lists(["institution:local"], [foe_id]))
    inherits = await child(owner, root, "inherits", hosting=OPEN)
    narrows = await child(owner, root, "narrows", hosting=OPEN, lists=lists([friend_id]))
    widens = await child(owner, root, "widens", lists=lists(["*"]))
    theirs = await child(friend, narrows, "theirs")
    tell(owner, friend, foe, outsider)
    everything = {topic.uuid for topic in (root, inherits, narrows, widens, theirs)}
    # What is registered below inherits a list that the root's owner is not on.
    assert set(await uuids(owner.hierarchy.tree(root.uuid))) == everything - {theirs.uuid}
    assert set(await uuids(friend.hierarchy.tree(root.uuid))) == everything
    # Barred by the root, so by all that is below it, whatever that allows.
    for topic in (root, inherits, narrows, widens, theirs):
        with pytest.raises(Absent):
            await foe.show(topic.uuid)
    assert set(await uuids(outsider.hierarchy.tree(widens.uuid))) == {widens.uuid}
    for topic in (root, inherits, narrows, theirs):
        with pytest.raises(Absent):
            await outsider.show(topic.uuid)
    # Another who is local and not named sees what inherits, and past what it may not see there is nothing.
    other = await connect(live)
    tell(owner, other)
    assert set(await uuids(other.hierarchy.tree(root.uuid))) == {root.uuid, inherits.uuid, widens.uuid}
    with pytest.raises(Absent):
        await other.show(theirs.uuid)


async def test_absent_hidden_and_ended_are_the_same_words(live: LiveNetwork, connect: Connect) -> None:
    """T18, T27: of every way to look."""
    owner, other = await connect(live), await connect(live)
    hidden = await owner.create(path("h"), hosting=OPEN, lists=lists([owner.identity.name.id]))
    unplaced = await owner.create(path("p"), hosting=OPEN, hierarchy=lists([owner.identity.name.id]))
    ended = await owner.create(path("e"), hosting=OPEN)
    await owner.withdraw(ended.uuid)
    tell(owner, other)
    never = names.mint_uuid()
    for what in ("parents", "children", "tree"):
        look = getattr(other.hierarchy, what)
        told = {await words_of(found(look(uuid)), uuid) for uuid in (never, hidden.uuid, ended.uuid, unplaced.uuid)}
        assert told == {(Absent, "there is no topic X")}
    assert (await other.show(unplaced.uuid)).uuid == unplaced.uuid, "discoverable; only its place is hidden"


async def test_seeing_a_child_shows_nothing_of_its_parent(live: LiveNetwork, connect: Connect) -> None:
    """T27, T30: neither by looking around it, nor by what comes with it, nor by what it is beside a topic without a parent."""
    owner, other = await connect(live), await connect(live)
    query = f"w{secrets.token_hex(6)}"
    root = await owner.create(path("hidden parent"), hosting=OPEN, lists=lists([owner.identity.name.id]))
    topic = await child(owner, root, f"{query}/child", lists=lists(["*"]))
    plain = await owner.create(path(f"{query}/root"))
    tell(owner, other)
    assert await found(other.hierarchy.parents(topic.uuid)) == []
    assert await found(other.hierarchy.tree(topic.uuid)) == [(topic.uuid, 0, None)]
    found_here = {one.uuid: one async for one in other.discover(query)}
    assert set(found_here) == {topic.uuid, plain.uuid}
    (tree_child,), (tree_plain,) = (
        await _placed(other.hierarchy.tree(topic.uuid)),
        await _placed(other.hierarchy.tree(plain.uuid)),
    )
    pairs = [
        (found_here[topic.uuid], found_here[plain.uuid]),
        (await other.show(topic.uuid), await other.show(plain.uuid)),
        (tree_child.topic, tree_plain.topic),
    ]
    for seen, like in pairs:
        told, beside = seen.as_object(), like.as_object()
        assert set(told) == set(beside)
        assert root.uuid not in json.dumps(told)
        assert (seen.opening is None) == (like.opening is None)
        if seen.opening is not None and like.opening is not None:
            assert openings.PARENT not in seen.opening or openings.PARENT in like.opening


async def test_the_place_has_lists_of_its_own(live: LiveNetwork, connect: Connect) -> None:
    """T23, T27: who may discover a topic does not see its place where the hierarchy's lists, its own or an ancestor's, keep it out."""
    owner, friend, other = await connect(live), await connect(live), await connect(live)
    root = await owner.create(path("placed"), hosting=OPEN, hierarchy=lists([friend.identity.name.id]))
    topic = await child(owner, root)
    tell(owner, friend, other)
    assert await uuids(friend.hierarchy.tree(root.uuid)) == [root.uuid, topic.uuid]
    assert await uuids(friend.hierarchy.parents(topic.uuid)) == [root.uuid]
    assert (await other.show(topic.uuid)).uuid == topic.uuid
    for uuid in (root.uuid, topic.uuid):
        with pytest.raises(Absent):
            await found(other.hierarchy.tree(uuid))
        with pytest.raises(Absent):
            await found(other.hierarchy.parents(uuid))


async def test_a_look_that_the_owner_countersigned(live: LiveNetwork, connect: Connect) -> None:
    """T27: with the owner's word one sees what the owner sees of that topic's tree, and of no other; without it nothing."""
    owner, guest, other = await connect(live), await connect(live), await connect(live)
    owner_id, guest_id = owner.identity.name.id, guest.identity.name.id
    root = await owner.create(path("shown"), hosting=OPEN, lists=lists([owner_id]))
    topic = await child(owner, root, hosting=OPEN)
    below = await child(owner, topic)
    tell(owner, guest, other)
    word = owner.countersign("discover", topic.uuid, guest_id)
    assert await uuids(guest.hierarchy.tree(topic.uuid, countersigned=word)) == [topic.uuid, below.uuid]
    assert await uuids(guest.hierarchy.parents(topic.uuid, countersigned=word)) == [root.uuid]
    assert await uuids(guest.hierarchy.children(topic.uuid, countersigned=word)) == [below.uuid]
    (first, _) = await _placed(guest.hierarchy.tree(topic.uuid, countersigned=word))
    assert first.topic.hides.access is None, "lists are the owner's, who did not show them"
    for who, uuid, token in (
        (guest, topic.uuid, None),
        (guest, root.uuid, word),
        (guest, below.uuid, word),
        (other, topic.uuid, word),
        (guest, topic.uuid, owner.countersign("register", topic.uuid, guest_id)),
        (guest, topic.uuid, other.countersign("discover", topic.uuid, guest_id)),
    ):
        with pytest.raises(Absent):
            await found(who.hierarchy.tree(uuid, countersigned=token))
    for wrong in ({"right": "rule"}, {"lifetime": timedelta(days=31)}, {"collection": root.uuid}, {"entity": "No Body"}):
        with pytest.raises(UsageError):
            owner.countersign(**{"right": "discover", "uuid": root.uuid, "entity": guest_id, **wrong})


# --- nothing shows -------------------------------------------------------------------------------------------------------------------


async def test_the_signed_bytes_do_not_tell(live: LiveNetwork, connect: Connect) -> None:
    """T30: a child's advertisement and a root's have the same members, as long as each other; the parent is in neither."""
    client = await connect(live)
    root = await client.create(path("rooot"), hosting=Hosting(True, 3, 3), node="n1")
    topic = await child(client, root, "child", node="n1", hierarchy=lists(["*"]))
    plain = await client.create(path("plain"), node="n1")
    payloads = [
        dict(statements.read(one.token.encode(), statements.by_roots(live.credentials(names.Role.NODE, "n1").roots)).payload)
        for one in (root, topic, plain)
    ]
    assert all(set(payload) == set(payloads[0]) for payload in payloads)
    # The lifetime alone may be shorter, by the second in which it was registered.
    for payload in payloads:
        payload.pop("lifetime_seconds")
        assert {key: len(json.dumps(value)) for key, value in payload.items()} == {
            key: len(json.dumps(value)) for key, value in payloads[0].items()
        }
    decoded = b"".join(base64.urlsafe_b64decode(part + "==") for part in topic.token.split("."))
    for private in (root.uuid, root.uuid.replace("-", ""), "parent", "hosting", "hierarchy", "max_depth", "root"):
        assert private.encode() not in decoded
    assert len({payload["hidden"] for payload in payloads}) == 3


def _names_in_broker(live: LiveNetwork) -> str:
    """Every name that the broker knows: exchanges, queues, and the bindings between them with their arguments."""
    told = [
        [exchange["name"] for exchange in live.manage("GET", "/exchanges/tdn")],
        [[queue["name"], queue["arguments"]] for queue in live.manage("GET", "/queues/tdn")],
        [
            [binding[key] for key in ("source", "destination", "routing_key", "arguments")]
            for binding in live.manage("GET", "/bindings/tdn")
        ],
    ]
    return json.dumps(told)


async def test_nothing_in_the_broker_shows_a_hierarchy(live: LiveNetwork, connect: Connect) -> None:
    """T30: registering and looking leave no name; following leaves the followed UUID with the follower's, and no other topic's."""
    owner, watcher = await connect(live), await connect(live)
    root = await owner.create(path("unseen"), hosting=OPEN)
    topic = await child(owner, root, hosting=OPEN)
    below = await child(watcher, topic)
    tell(owner, watcher)
    await found(watcher.hierarchy.tree(root.uuid))
    told = _names_in_broker(live)
    assert not any(one.uuid in told or one.uuid.replace("-", "") in told for one in (root, topic, below))

    watching = watcher.hierarchy.watch(topic.uuid)
    following = asyncio.create_task(anext(aiter(watching)))
    await asyncio.wait_for(watching.ready.wait(), 10)
    await child(owner, topic)
    assert (await asyncio.wait_for(following, 4)).subject == topic.uuid
    told = _names_in_broker(live)
    assert f'"{topic.uuid}.{watcher.identity.name.id}"' in told
    assert root.uuid not in told
    assert below.uuid not in told


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


def register_body(raw: RawEntity, parent: str, **changes: Any) -> dict[str, Any]:
    return {
        "creator": raw.name.id,
        "institution": raw.credentials.identity.institution,
        "lifetime_seconds": 3600,
        "descriptor": {"kind": "path", "path": "a/b"},
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
        "parent": parent,
        **changes,
    }


@pytest.mark.usefixtures("unharmed")
async def test_the_same_registration_twice(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """T22, T25: sealed to one node, and again to the other: one slot, one UUID, the same signed content; under its id nothing else is taken."""
    owner = await connect(live)
    root = await owner.create(path("twice"), hosting=Hosting(True, max_width=1))
    raw.hello()
    body = register_body(raw, root.uuid)
    message = raw.write("register", body)
    answers = []
    for node in ("n1", "n1", "n2"):
        raw.publish(names.topics_key(node), raw.seal(message, node))
        answers.append(raw.reply())
    raw.change(message)
    answers.append(raw.reply())
    assert [answer.kind for answer in answers] == ["created"] * 4
    assert len({answer.body["uuid"] for answer in answers}) == 1
    advertised = [
        statements.read_advertisement(answer.tail or b"", statements.by_roots(raw.credentials.roots)) for answer in answers
    ]
    assert len({(one.uuid, one.hidden, one.created, one.expires) for one in advertised}) == 1
    raw.change(raw.write("register", body))
    refused = raw.reply()
    assert (refused.kind, refused.body["error"]) == ("error", "refused")
    assert "MaxWidth 1" in refused.body["message"]
    assert raw.more_replies() == 0


@pytest.mark.usefixtures("unharmed")
async def test_registrations_that_nobody_can_mint(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """Refused with the reason, on both paths; none of them takes a slot."""
    owner = await connect(live)
    root = await owner.create(path("one slot"), hosting=Hosting(True, max_width=1))
    raw.hello()
    flaws: dict[str, dict[str, Any]] = {
        "'somebody'": {"creator": "somebody"},
        "'Elsewhere'": {"institution": "Elsewhere"},
        "placeholder": {"synopsis": {"type": "string", "placeholder": "no slot"}},
    }
    for words, changes in flaws.items():
        for send in (raw.change, lambda message: raw.publish(names.topics_key("n1"), raw.seal(message, "n1"))):
            send(raw.write("register", register_body(raw, root.uuid, **changes)))
            answer = raw.reply()
            assert (answer.kind, answer.body["error"] in ("trust", "usage")) == ("error", True), answer.body
            assert words in answer.body["message"]
    raw.change(
        raw.claim("register", register_body(raw, root.uuid, hosting={"allow_children": True, "max_depth": 10**9})),
        reply_to=names.DIRECT_REPLY,
    )
    assert "max_depth" in raw.direct_reply().body["message"]
    raw.change(raw.claim("register", register_body(raw, root.uuid, uuid=root.uuid)), reply_to=names.DIRECT_REPLY)
    assert raw.direct_reply().body["error"] == "usage"
    # Not sealed to the node that it was sent to.
    raw.publish(names.topics_key("n1"), raw.write("register", register_body(raw, root.uuid)))
    assert raw.reply().body["error"] == "refused"
    assert raw.more_replies() == 0
    assert (await child(owner, root)).receipt, "the slot is still there"


@pytest.mark.usefixtures("unharmed")
async def test_looks_that_are_no_good(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """Unsealed, of an unknown sort, with a depth or a cursor that is none, with garbage for a countersignature: answered, and that is all."""
    owner = await connect(live)
    root = await owner.create(path("looked at"), hosting=OPEN)
    kids = [await child(owner, root) for _ in range(3)]
    for node in ("n1", "n2"):
        await until(lambda node=node: live.fact("topic", kids[-1].uuid, node), "both to have it")
    raw.hello()
    raw.question(raw.write("tree", {"uuid": root.uuid, "what": "tree"}, audience="node:n1"), "n1")
    answer = raw.reply()
    assert (answer.body["error"], "sealed" in answer.body["message"]) == ("refused", True)
    for body, words in (
        ({"uuid": root.uuid, "what": "everything"}, "what"),
        ({"uuid": root.uuid, "what": "tree", "depth": 0}, "depth"),
        ({"uuid": root.uuid, "what": "tree", "depth": 10**9}, "depth"),
        ({"uuid": root.uuid, "what": "tree", "depth": "1"}, "depth"),
        ({"uuid": root.uuid, "what": "tree", "cursor": "x"}, "cursor"),
        ({"uuid": root.uuid, "what": "tree", "countersigned": "x.y." + "z" * 20_000}, "countersigned"),
        ({"uuid": root.uuid, "what": "tree", "countersigned": "garbage"}, "countersigned"),
        ({"uuid": "x", "what": "tree"}, "uuid"),
        ({"what": "tree"}, "uuid"),
    ):
        raw.question(raw.seal(raw.claim("tree", body, audience="node:n1"), "n1"), "n1", reply_to=names.DIRECT_REPLY)
        answer = raw.direct_reply()
        assert (answer.kind, answer.body["error"]) == ("error", "usage")
        assert words in answer.body["message"]
    # A cursor from somewhere else, of a child that one may not see, of nothing: the same words.
    elsewhere = await owner.create(path("elsewhere"))
    unseen = await child(owner, root, lists=lists([owner.identity.name.id]))
    await until(lambda: live.fact("topic", unseen.uuid), "n1 to have it")
    for cursor in (names.mint_uuid(), elsewhere.uuid, unseen.uuid):
        for what in ("tree", "children"):
            answer = raw.ask("tree", {"uuid": root.uuid, "what": what, "cursor": cursor})
            assert (answer.kind, answer.body["error"]) == ("error", "usage")
            assert answer.body["message"] == "the cursor is not one of ours; take it from the last answer"
        assert raw.ask("tree", {"uuid": root.uuid, "what": "parents", "cursor": cursor}).body["count"] == 0
    answer = raw.ask("tree", {"uuid": root.uuid, "what": "tree", "cursor": kids[-1].uuid})
    assert answer.kind == "placed"
    # What was never a countersignature shows nothing.
    hidden = await owner.create(path("hidden"), lists=lists([owner.identity.name.id]))
    await until(lambda: live.fact("topic", hidden.uuid), "n1 to have it")
    for garbage in ("a.b.c", raw.write("withdraw", {"uuid": hidden.uuid}).decode(), "ey" * 1000 + ".x.y"):
        assert raw.ask("tree", {"uuid": hidden.uuid, "what": "tree", "countersigned": garbage}).body["error"] == "absent"
    assert raw.more_replies() == 0


async def test_lists_that_are_too_long_or_wrong(live: LiveNetwork, connect: Connect) -> None:
    """10,000 names, names of nobody, a list that bars its own creator: refused before anything is sent; what is at the limit is taken."""
    client = await connect(live)
    many = [f"e{number}" for number in range(10_000)]
    root = await client.create(path("lists"), hosting=OPEN, lifetime=timedelta(minutes=5))
    for wrong in (lambda: lists(many), lambda: lists(deny=many), lambda: lists(["no body"]), lambda: lists(["institution:"])):
        with pytest.raises(UsageError):
            wrong()
    for subject in ("lists", "hierarchy", "register"):
        with pytest.raises(UsageError, match="its own creator"):
            await child(client, root, **{subject: lists(deny=[client.identity.name.id])})
    longest = lists(many[:500], many[500:1000])
    topic = await child(client, root, lists=longest, hierarchy=longest, register=longest)
    assert (await client.show(topic.uuid)).lists == longest
