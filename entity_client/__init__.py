"""The client side: an asyncio library for entities, and the `entity` command on top of it.

    from entity_client import EntityClient, path

    async with await EntityClient.connect("home/entities/alice") as alice:
        topic = await alice.create(path("weather/oslo"))
        async for found in alice.discover("oslo"):
            print(found.uuid, found.synopsis)

Every advertisement that comes out of here was verified against the entity's own trust roots.
"""

from entity_client.client import EntityClient
from entity_client.objects import Decided, LocatedNode, Topic
from tdn.protocol.access import lists
from tdn.protocol.descriptor import path, properties, text, xml
from tdn.queries.times import Times

__all__ = ["Decided", "EntityClient", "LocatedNode", "Times", "Topic", "lists", "path", "properties", "text", "xml"]
