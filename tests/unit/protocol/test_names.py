"""Names of principals, ids, UUIDs, topics and queues."""

from __future__ import annotations

import uuid as uuids

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdn.errors import UsageError
from tdn.protocol import names
from tdn.protocol.names import Name, Role, check_id, check_uuid, mint_uuid

HASH = "0123456789abcdef" * 4
ids = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)


@given(st.sampled_from(Role), ids)
def test_name_round_trip(role: Role, identifier: str) -> None:
    name = Name(role, identifier, HASH)
    assert Name.parse(str(name)) == name
    assert name.principal == f"{role}:{identifier}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alice",
        f"tdn:entity:alice:{HASH}\n",
        f" tdn:entity:alice:{HASH}",
        f"tdn:entity:alice:{HASH.upper()}",
        f"tdn:entity:alice:{HASH[:-1]}",
        f"tdn:entity:Alice:{HASH}",
        f"tdn:entity::{HASH}",
        f"tdn:entity:{'a' * 64}:{HASH}",
        f"tdn:entity:a.b:{HASH}",
        f"tdn:admin:alice:{HASH}",
        f"tdn:ca:nodes:{HASH}",
        f"tdn:entity:alice:bob:{HASH}",
        "tdn-management",
    ],
)
def test_foreign_names(text: str) -> None:
    assert Name.parse(text) is None


@pytest.mark.parametrize("text", ["a", "0", "alice", "a-b_c", "0" * 63])
def test_ids(text: str) -> None:
    assert check_id(text) == text


@pytest.mark.parametrize("text", ["", "A", "-a", "_a", "a.b", "a b", "a\n", "é", "a" * 64, "a/b", "a*", "#"])
def test_ids_refused(text: str) -> None:
    """No dot, star or hash: an id becomes part of a routing key and a queue's name."""
    with pytest.raises(UsageError):
        check_id(text)


def test_uuids() -> None:
    """T4: random, version 4."""
    minted = {mint_uuid() for _ in range(100)}
    assert len(minted) == 100
    for text in minted:
        assert check_uuid(text) == text
        assert uuids.UUID(text).version == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "6fa459ea-ee8a-11ed-a05b-0242ac120003",
        str(uuids.UUID(int=0)),
        "3F0C9B52-7A1E-4C83-9D41-5B8E6F207A11",
        "3f0c9b527a1e4c839d415b8e6f207a11",
        "{3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11}",
        "3f0c9b52-7a1e-4c83-9d41-5b8e6f207a11\n",
        "3f0c9b52-7a1e-4c83-cd41-5b8e6f207a11",
    ],
)
def test_uuids_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check_uuid(text)


def test_service_topics_keep_the_papers_names() -> None:
    """T10: written with dots as routing keys."""
    assert names.topics_key() == "Services.Discovery.Topics"
    assert names.topics_key("n1") == "Services.Discovery.Topics.n1"
    assert names.nodes_key() == "Services.Discovery.TopicDiscoveryNode"
    assert names.nodes_key("n1") == "Services.Discovery.TopicDiscoveryNode.n1"


def test_queues_cannot_be_guessed() -> None:
    sessions = {names.new_session() for _ in range(100)}
    assert len(sessions) == 100
    assert all(names.is_session(session) for session in sessions)


@given(ids, ids, st.sampled_from(Role), st.sampled_from(Role))
def test_a_queue_has_one_owner(one: str, two: str, role: Role, other: Role) -> None:
    """T6: each entity reads its own queues; two principals never share a name."""
    session = "ab" * 16
    owner, stranger = Name(role, one, HASH), Name(other, two, HASH)
    queue = names.reply_queue(owner, session)
    assert names.owns_queue(owner, queue)
    assert names.owns_queue(stranger, queue) == (stranger == owner)


@pytest.mark.parametrize(
    "queue",
    [
        "",
        "Entity.alice",
        "Entity.alice.",
        "Entity.alice.*",
        "Entity.alice.#",
        f"Entity.alice.{'AB' * 16}",
        f"Entity.alice.{'ab' * 15}",
        f"Entity.alice.x.{'ab' * 16}",
        f"entity.alice.{'ab' * 16}",
        f"Entity.alice.{'ab' * 16}\n",
        names.CHANGES,
        names.LOG,
        f"tdn.node.alice.{'ab' * 16}",
    ],
)
def test_not_its_queue(queue: str) -> None:
    assert not names.owns_queue(Name(Role.ENTITY, "alice", HASH), queue)
