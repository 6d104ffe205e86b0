"""The AsyncAPI document and the schemas it stands over describe the same messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdn.bus import topology
from tdn.protocol import names, schemas
from tdn.rules.apply import RULES
from tdn.trust import messages, sealing, statements
from tdn.trust.envelope import BODY_KINDS

DOCUMENT = schemas.contract_folder() / "asyncapi.json"

#: Schemas that are no message: shared parts, the claims around a body, the document itself, and what stands in archives alone.
NO_MESSAGE = {"asyncapi", "common", "envelope", "archive"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(DOCUMENT.read_text("utf-8"))
    return parsed


def references(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for item in part:
            yield from references(item)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)


def resolve(reference: str, document: dict[str, Any]) -> Any:
    file, _, pointer = reference.partition("#")
    target: Any = json.loads((DOCUMENT.parent / file).read_text("utf-8")) if file else document
    for step in pointer.split("/")[1:]:
        target = target[step.replace("~1", "/").replace("~0", "~")]
    return target


def test_document_is_asyncapi_3(document: dict[str, Any]) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["version"] == str(schemas.VERSION)


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    found = list(references(document))
    assert found
    for reference in found:
        assert resolve(reference, document), reference


def test_every_schema_of_a_message_is_referenced(document: dict[str, Any]) -> None:
    files = {path.stem for path in DOCUMENT.parent.glob("*.json")} - NO_MESSAGE
    referenced = {Path(reference).stem for reference in references(document) if reference.startswith("./")}
    assert files <= referenced


def test_every_kind_has_a_message_with_its_own_schema(document: dict[str, Any]) -> None:
    messages = document["components"]["messages"]
    assert set(messages) == BODY_KINDS | (statements.KINDS - {"archive"}) | {"record", "message", "grant"}
    for kind, message in messages.items():
        assert message["payload"] == {"$ref": f"./{kind}.json"}
        assert message["x-tdn"]["typ"] == f"tdn-{kind}+jwt"
        assert ("claims" in message["x-tdn"]) == (kind in BODY_KINDS)


def test_operations_use_messages_of_their_channels(document: dict[str, Any]) -> None:
    for name, operation in document["operations"].items():
        for part in (operation, operation.get("reply")):
            for message in part["messages"] if part else ():
                assert message["$ref"].startswith(part["channel"]["$ref"] + "/messages/"), name


def test_every_message_has_a_place(document: dict[str, Any]) -> None:
    """A message is sent somewhere, or travels as another's tail."""
    sent = set(references(document["channels"]))
    tails = {reference for message in document["components"]["messages"].values() for reference in references(message["x-tdn"])}
    for kind in document["components"]["messages"]:
        assert f"#/components/messages/{kind}" in sent | tails, kind


def test_changes_are_those_of_the_rules(document: dict[str, Any]) -> None:
    """What a node decides is what it takes from the queue of changes, what it gives up on, and what the log has records of."""
    changes = set(RULES) - {"genesis"}
    for name in ("changes", "dead"):
        assert set(document["channels"][name]["messages"]) == changes, name
    for name in ("takeChange", "giveUpChange"):
        assert {message["$ref"].rpartition("/")[2] for message in document["operations"][name]["messages"]} == changes, name
    # A hello comes by another service topic.
    assert set(document["channels"]["topics"]["messages"]) == changes - {"hello"}
    assert set(schemas.load("record")["properties"]["kind"]["enum"]) == {*RULES, "tick", "checkpoint"}


def test_notifications(document: dict[str, Any]) -> None:
    """T29, T31, T35: each watcher has a routing key of its own, of the change topic; what arrives is in its reply queue."""
    channel, telling = document["channels"]["notifications"], document["operations"]["tellChange"]
    assert channel["address"] == names.notification_key("{changeTopic}", "{entityId}")
    assert channel["bindings"]["amqp"]["exchange"]["name"] == names.NOTIFICATIONS
    assert list(channel["messages"]) == ["notification"]
    assert telling["action"] == "send"
    assert "notification" in document["channels"]["replies"]["messages"]


def test_requests_that_carry_a_countersignature(document: dict[str, Any]) -> None:
    """T27, T33: each that has room for one says so, and no other."""
    carrying = {
        kind
        for kind, message in document["components"]["messages"].items()
        if message["x-tdn"].get("carries") == {"$ref": "#/components/messages/countersign"}
    }
    assert carrying == {kind for kind in BODY_KINDS if "countersigned" in schemas.load(kind)["properties"]}


def test_what_carries_a_revocation(document: dict[str, Any]) -> None:
    """T21: whoever ends a right is told what was ended, in the answer to its change; in no other."""
    carrying = {
        kind
        for kind, message in document["components"]["messages"].items()
        if message["x-tdn"].get("carries") == {"$ref": "#/components/messages/revocation"}
    }
    assert carrying == {kind for kind in BODY_KINDS if "revocation" in schemas.load(kind)["properties"]} == {"decided"}


def test_grants_travel_with_what_they_rest_on(document: dict[str, Any]) -> None:
    """T20: a grant is the tail of the request that puts it into the log; from a node it comes with its chain."""
    tails = {kind: message["x-tdn"].get("tail") for kind, message in document["components"]["messages"].items()}
    grant = {"$ref": "#/components/messages/grant"}
    assert tails["give"] == [grant]
    assert tails["granted"] == [grant, *({"$ref": f"#/components/messages/{kind}"} for kind in ("status", "advertisement"))]
    assert [kind for kind, tail in tails.items() if grant["$ref"] in references(tail)] == ["give", "granted"]
    assert document["components"]["messages"]["grant"]["x-tdn"]["signer"] == "entity"


def test_description_of_sealed_messages_is_that_of_the_code(document: dict[str, Any]) -> None:
    """Who reads the contract alone seals with the bytes that nodes expect."""
    assert f"after the five bytes {sealing.MAGIC.hex(' ')};" in document["info"]["description"]


def test_description_of_messages_on_topics_is_that_of_the_code(document: dict[str, Any]) -> None:
    """T20: forms by their content types, and the first bytes of what is encrypted."""
    channel = document["channels"]["messages"]
    for text in (messages.SIGNED, messages.ENCRYPTED, f"after the six bytes {messages.MAGIC.hex(' ')},"):
        assert text in channel["description"]
    assert channel["bindings"]["amqp"]["exchange"]["type"] == "fanout"
    assert list(channel["messages"]) == list(document["channels"]["feeds"]["messages"]) == [messages.KIND]
    assert document["components"]["messages"][messages.KIND]["contentType"] == messages.SIGNED


def test_questions_between_entities(document: dict[str, Any]) -> None:
    """T17: a discover goes to all that offered, and what comes back is a discovered in the asker's own queue."""
    asking, answering = document["operations"]["askPeers"], document["operations"]["answerPeer"]
    assert (asking["action"], answering["action"]) == ("send", "receive")
    assert asking["reply"] == answering["reply"]
    assert list(document["channels"]["peers"]["messages"]) == ["discover"]
    assert list(document["channels"]["peerReplies"]["messages"]) == ["discovered"]
    assert document["components"]["messages"]["peer"]["x-tdn"]["sealedTo"] == "the node"


def test_addresses_are_those_of_the_code(document: dict[str, Any]) -> None:
    """T10: the four service topics, as routing keys, and the exchanges and queues behind them."""
    addresses = {name: channel["address"] for name, channel in document["channels"].items()}
    assert addresses["topics"] == names.topics_key()
    assert addresses["topicsOfNode"] == names.topics_key("{nodeId}")
    assert addresses["nodes"] == names.nodes_key()
    assert addresses["nodesOfNode"] == names.nodes_key("{nodeId}")
    assert addresses["questions"] == names.node_queue("{nodeId}", "{secret}")
    assert (addresses["changes"], addresses["dead"], addresses["log"]) == (names.CHANGES, names.DEAD, names.LOG)
    assert addresses["directReplies"] == names.DIRECT_REPLY
    owner = names.Name(names.Role.ENTITY, "{entityId}", "")
    assert addresses["replies"] == names.reply_queue(owner, "{session}")
    exchanges = {channel["bindings"]["amqp"].get("exchange", {}).get("name") for channel in document["channels"].values()}
    assert {names.REQUESTS, names.REPLIES, names.PEERS, names.PEER_REPLIES} <= exchanges
    assert addresses["peers"] == names.PEERS
    assert addresses["feeds"] == names.feed_queue("{entityId}", "{subject}", "{secret}")
    assert addresses["peerReplies"] == names.peer_queue(owner, "{session}")
    assert topology.log_arguments()["x-queue-type"] == "stream"
    paths = [
        document["components"]["schemas"][part]["properties"][names.PATH_HEADER]["const"]
        for part in ("changePath", "questionPath")
    ]
    assert paths == [names.CHANGE_PATH, names.QUESTION_PATH]
