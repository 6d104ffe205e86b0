"""The client side: an asyncio library for entities, and the `entity` command on top of it.

    from entity_client import EntityClient, path

    async with await EntityClient.connect("home/entities/alice") as alice:
        topic = await alice.create(path("weather/oslo"))
        async for found in alice.discover("oslo"):
            print(found.uuid, found.synopsis)
        await alice.grants.give("publish", topic.uuid, "bob")
        async with alice.subscribe(topic.uuid) as messages:
            async for message in messages:
                print(message.publisher, message.body)

Every advertisement and grant that comes out of here was verified against the entity's own trust roots.
"""

from entity_client.client import EntityClient
from entity_client.endpoints import Age
from entity_client.grants import Granted, Judgement, Revocation
from entity_client.messaging import Message, Published, Publisher, Subscription
from entity_client.objects import Change, Decided, LocatedNode, Placed, Topic
from tdn.protocol.access import lists
from tdn.protocol.descriptor import path, properties, text, xml
from tdn.protocol.trees import Gathering, Hosting, Limits
from tdn.queries.times import Times

__all__ = [
    "Age",
    "Change",
    "Decided",
    "EntityClient",
    "Gathering",
    "Granted",
    "Hosting",
    "Judgement",
    "Limits",
    "LocatedNode",
    "Message",
    "Placed",
    "Published",
    "Publisher",
    "Revocation",
    "Subscription",
    "Times",
    "Topic",
    "lists",
    "path",
    "properties",
    "text",
    "xml",
]
