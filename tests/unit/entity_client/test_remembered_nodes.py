"""T12, T15, T22: nodes that answered a locate a moment ago are asked without another; what that must not cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import LittleNetwork
from pki import T0

from entity_client.discovery import Discovery, Wanted
from entity_client.objects import LocatedNode
from tdn.errors import BrokerUnavailable
from tdn.protocol import descriptor as descriptors

NET = LittleNetwork("remembered nodes")
ALICE, BOB = NET.entity("alice"), NET.entity("bob")
TOKEN = NET.mint(ALICE, at=T0, descriptor=descriptors.path("snow/1"))


def located(name: str) -> LocatedNode:
    return LocatedNode(name, "local", 1.0, {"answers": ["*"]}, NET.node(name).identity)


class Network:
    """A session and a client in one: nodes that are about, nodes that are remembered, and what happens when each is asked."""

    network = NET.id
    credentials = BOB
    asker = BOB.identity.asker
    seen = 0
    timeout = 5.0

    def __init__(
        self, *, about: Iterable[str], remembered: Iterable[str], troubles: Iterable[Exception] = (), cuts: int = 0
    ) -> None:
        self.about = list(about)
        self.remembered = list(remembered)
        self.troubles = list(troubles)
        #: How often the connection is lost in the middle of a locate.
        self.cuts = cuts
        self.sealed_before: dict[str, Any] = {}
        self.asked: list[str] = []
        self.locates = 0

    def nodes_about(self) -> list[LocatedNode]:
        return [located(name) for name in self.remembered]

    def remember_nodes(self, found: list[LocatedNode]) -> None:
        self.remembered = [node.id for node in found]

    def forget_nodes(self) -> None:
        self.remembered = []

    async def locate(self, *, expect: Iterable[str]) -> AsyncIterator[LocatedNode]:
        self.locates += 1
        for name in self.about:
            yield located(name)
            if self.cuts:
                self.cuts -= 1
                raise BrokerUnavailable("the connection is gone")

    async def ask(self, kind: str, body: Any, identity: Any, **more: Any) -> AsyncIterator[Any]:
        self.asked.append(identity.name.id)
        if self.troubles:
            raise self.troubles.pop(0)
        yield SimpleNamespace(kind="discovered", body={"page": 1, "last": True, "count": 1}, tail=TOKEN, as_of=None)


async def discover(network: Network) -> Discovery:
    looking = Discovery(
        cast(Any, network), cast(Any, network), wanted=Wanted(query="snow"), nodes=frozenset(), limit=10, cursor=None
    )
    assert [topic.descriptor["path"] async for topic in looking] == ["snow/1"]
    return looking


async def test_asked_without_a_locate() -> None:
    network = Network(about=["n1", "n2"], remembered=["n1", "n2"])
    assert (await discover(network)).answered == {"n1", "n2"}
    assert (network.locates, sorted(network.asked)) == (0, ["n1", "n2"])


async def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    """T22: the connection went while a remembered node was asked; it is about, so it is asked once more."""
    network = Network(about=["n1"], remembered=["n1"], troubles=[BrokerUnavailable("the connection is gone")])
    looking = await discover(network)
    assert (looking.answered, looking.silent, network.asked) == ({"n1"}, set(), ["n1", "n1"])


@pytest.mark.parametrize(
    ("cuts", "troubles", "locates"), [(1, 0, 2), (2, 0, 3), (0, 2, 2), (0, 1, 1)], ids=["locating", "twice", "asking", "one of two"]
)
async def test_a_connection_that_was_lost_begins_anew(cuts: int, troubles: int, locates: int) -> None:
    """T22: whoever locates, or has located, when its broker is killed asks everybody again over another, as long as nobody has answered."""
    gone = [BrokerUnavailable("the connection is gone") for _ in range(troubles)]
    network = Network(about=["n1", "n2"], remembered=[], troubles=gone, cuts=cuts)
    looking = await discover(network)
    assert network.locates == locates
    assert looking.answered == ({"n1", "n2"} if locates > 1 else {"n2"})
    assert looking.silent == ({"n1"} if locates == 1 else set())


async def test_it_is_not_tried_without_end() -> None:
    network = Network(about=["n1"], remembered=[], troubles=[BrokerUnavailable("the connection is gone")] * 9)
    network.timeout = 0.7
    with pytest.raises(BrokerUnavailable, match="the connection is gone"):
        await discover(network)
    assert 2 <= network.locates <= 3


async def test_a_fault_of_ours_is_heard() -> None:
    """An answer that could not be worked on for a reason of our own is not taken for silence."""
    network = Network(about=["n1"], remembered=["n1"], troubles=[ZeroDivisionError("ours")])
    with pytest.raises(ZeroDivisionError, match="ours"):
        await discover(network)
