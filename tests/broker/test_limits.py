"""What is just within the limits is served, and what is just beyond them stops nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from entity_client import EntityClient, path, xml
from tdn.bus.connection import Connection
from tdn.bus.log import last_offset
from tdn.errors import UsageError
from tdn.protocol import jsontext
from tdn.protocol.names import Role
from tdn.store.search import Reader
from tests.live import LiveNetwork, RawEntity, wait_for

pytestmark = pytest.mark.broker

Connect = Callable[..., Awaitable[EntityClient]]


async def test_the_largest_topics_and_no_larger(live: LiveNetwork, connect: Connect) -> None:
    """T22: a request that is admitted always fits into its record. One that did not once stopped every node in turn."""
    client = await connect(live)
    large = await client.create(xml(f"<r>{'e' * 60_000}</r>"))
    assert (await client.show(large.uuid)).uuid == large.uuid
    with pytest.raises(UsageError, match="shorten the descriptor"):
        await client.create(xml(f"<r>{'é' * 65_000}</r>"), synopsis_type="xml", placeholder=f"<a b='{{uuid}}'>{'x' * 16_000}</a>")
    assert live.ready()


@pytest.mark.parametrize("size", [jsontext.MAX_REQUEST_BYTES + 1, jsontext.MAX_MESSAGE_BYTES - 100])
async def test_a_change_between_the_two_limits(live: LiveNetwork, connect: Connect, raw: RawEntity, size: int) -> None:
    """A change as long as a record may be is turned away, and the nodes go on."""
    raw.introduce()
    before = live.counts("turned away", *live.nodes())
    body = {"uuid": "00000000-0000-4000-8000-000000000000"}
    shortest = len(raw.write("withdraw", body, tail=b""))
    change = raw.write("withdraw", body, tail=b"x" * (size - shortest))
    assert len(change) == size
    raw.change(change)
    client = await connect(live)
    topic = await client.create(path("still/here"))
    assert topic.receipt is not None
    assert live.ready()
    wait_for(lambda: live.counts("turned away", *live.nodes()) > before, "the change to be turned away")


async def test_the_end_of_the_log_is_found_in_a_chunk_of_many(live: LiveNetwork, connect: Connect) -> None:
    """The broker gives the whole last chunk; looking for its end once cost the connection (540), for good, since nobody could append."""
    client = await connect(live)
    await client.create(xml(f"<r>{'e' * 50_000}</r>"))
    node = live.credentials(Role.NODE, "n1")
    settings = live.home.connection()
    connection = await Connection.open(settings.brokers, node, vhost=settings.vhost)
    reader = Reader(live.home.credentials(Role.NODE, "n1") / "store.sqlite")
    try:
        for _ in range(10):
            behind = reader.position().offset
            assert await last_offset(connection) >= behind
        assert not connection.closed.done()
    finally:
        reader.close()
        await connection.close()
