"""Single messages of an entity with a valid certificate that once stopped nodes. They are taken off, and the nodes serve on."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pika
import pytest

from entity_client import EntityClient, path, text
from tdn.protocol import names
from tests.live import LiveNetwork, RawEntity, wait_for

pytestmark = pytest.mark.broker

Connect = Callable[..., Awaitable[EntityClient]]


class RawProperties(pika.BasicProperties):  # type: ignore[misc]  # pika ships no types
    """Properties as bytes: what pika itself would not write, and RabbitMQ passes on."""

    def __init__(self, flags: int, content: bytes) -> None:
        super().__init__()
        self._raw = struct.pack(">H", flags) + content

    def encode(self) -> list[bytes]:
        return [self._raw]


def short(content: bytes) -> bytes:
    return bytes([len(content)]) + content


def table(**entries: bytes) -> bytes:
    content = b"".join(short(name.replace("_", "-").encode()) + value for name, value in entries.items())
    return struct.pack(">I", len(content)) + content


def long_text(content: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(content)) + content


def nested(levels: int) -> bytes:
    value = b"V"
    for _ in range(levels):
        inner = short(b"k") + value
        value = b"F" + struct.pack(">I", len(inner)) + inner
    return value


_HEADERS, _REPLY_TO = 1 << 13, 1 << 9


@pytest.mark.parametrize(
    "value",
    [pytest.param(b"T" + b"\xff" * 8, id="a time beyond the calendar"), pytest.param(nested(3000), id="tables in tables")],
)
@pytest.mark.parametrize("way", [names.CHANGE_PATH, names.QUESTION_PATH])
async def test_headers_that_pika_cannot_read(live: LiveNetwork, connect: Connect, raw: RawEntity, value: bytes, way: str) -> None:
    """T22: one such message ended every node's connection, came again, and did so for ever."""
    before = {node: live.home.reported(f"node-{node}")["pid"] for node in live.nodes()}
    properties = RawProperties(_HEADERS, table(tdn_path=long_text(way.encode()), x=value))
    raw.channel.basic_publish(names.REQUESTS, names.TOPICS, b"x", properties)
    client = await connect(live)
    for node in live.nodes():
        topic = await client.create(path("after/odd/headers"), node=node)
        assert topic.receipt is not None
    wait_for(lambda: live.waiting(names.CHANGES) == 0 and live.waiting(names.DEAD) == 0, "the queues to be empty")
    assert live.ready()
    assert {node: live.home.reported(f"node-{node}")["pid"] for node in live.nodes()} == before


async def test_a_reply_address_that_is_not_text(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """It failed in the change queue, and then for ever among the dead letters."""
    raw.introduce()
    change = raw.write("withdraw", {"uuid": "00000000-0000-4000-8000-000000000000"}, reply=None)
    properties = RawProperties(_HEADERS | _REPLY_TO, table(tdn_path=long_text(names.CHANGE_PATH.encode())) + short(b"\xff\xfe"))
    failed = live.counts("failed", *live.nodes())
    raw.channel.basic_publish(names.REQUESTS, names.TOPICS, change, properties)
    client = await connect(live)
    await client.create(path("after/odd/address"))
    wait_for(lambda: live.waiting(names.CHANGES) == 0 and live.waiting(names.DEAD) == 0, "the queues to be empty")
    assert live.counts("failed", *live.nodes()) == failed


def test_an_error_fits_into_its_reply(live: LiveNetwork, raw: RawEntity) -> None:
    """A key of 5,000 characters in the sender's own body made the error too long for its schema, and the question come again."""
    raw.hello()
    body: dict[str, Any] = {
        "creator": raw.name.id,
        "institution": "local",
        "lifetime_seconds": 60,
        "descriptor": {"kind": "properties", "properties": {"a": 1}, "types": {"k" * 5000: "no such type"}},
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
    }
    failed = live.counts("failed", "n1")
    raw.question(raw.seal(raw.claim("create", body, audience="node:n1"), "n1"), "n1")
    wait_for(lambda: live.unanswered("n1") == 0, "the question to be taken")
    assert live.counts("failed", "n1") == failed


async def test_unknown_certificates_hold_nobody_up(live: LiveNetwork, connect: Connect, raw: RawEntity) -> None:
    """Anybody can name a certificate that does not exist; a node waits for a few of them, not for all."""
    header = {"alg": "ES256", "typ": "tdn-withdraw+jwt", "x5t#S256": "A" * 43}
    stranger = raw.sign(header, '{"v":1}')
    for _ in range(500):
        raw.change(stranger)
    client = await connect(live, timeout=10.0)
    topic = await client.create(path("while/strangers/wait"))
    assert topic.receipt is not None


async def test_a_long_answer_comes_in_parts(live: LiveNetwork, connect: Connect) -> None:
    """T16: one question gets a bounded answer; the client goes on with the cursor by itself, and finds everything once."""
    client = await connect(live)
    word = f"bulky{raw_word(client)}"
    created = {(await client.create(text(f"{word} {'x' * 15_000}", []))).uuid for _ in range(90)}
    found = [topic.uuid async for topic in client.discover(word, nodes=["n1"], limit=200)]
    assert len(found) == len(set(found)) == 90
    assert set(found) == created


def raw_word(client: EntityClient) -> str:
    return client.identity.name.id.replace("-", "")
