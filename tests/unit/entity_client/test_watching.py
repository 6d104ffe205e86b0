"""What a client believes of notifications and of lines about trees: what a node signed, for this watcher, of what it follows, and in agreement
with the advertisements. Following over a real network is shown in `tests/broker`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from little_network import DAY, HOUR, LittleNetwork, Log, fresh_uuid
from pki import T0, Pki
from sound_trees import StoredLog, accepted

from entity_client import watching as watching_module
from entity_client.client import EntityClient
from entity_client.objects import Change, Placed, read_change, read_placed
from entity_client.session import Session
from entity_client.watching import Watching
from tdn.errors import BrokerUnavailable, LoginRefused, MalformedMessage, NoNodeAnswered, TrustError
from tdn.node import questions, searching
from tdn.node.policy import EVERYBODY
from tdn.node.questions import Desk
from tdn.protocol import jsontext
from tdn.trust import envelope, openings, sealing, signing, statements
from tdn.trust.signing import decode_segment, encode_segment
from tdn.trust.statements import by_roots

HOSTS = {"allow_children": True}
SUBJECT, TOPIC = fresh_uuid(2**45 + 1), fresh_uuid(2**45 + 2)


def payload(net: LittleNetwork, **changes: Any) -> dict[str, Any]:
    told = {
        **{"v": 1, "network": net.id, "subject": SUBJECT, "watcher": "bob", "version": 7, "change": "added"},
        **{"uuid": TOPIC, "kind": "topic", "in": SUBJECT, "seq": 99, "at": "2027-01-01T00:00:00Z"},
        **changes,
    }
    return {name: value for name, value in told.items() if value is not None}


def notification(net: LittleNetwork, **changes: Any) -> bytes:
    return statements.sign("notification", payload(net, **changes), net.node("n1"), T0)


def read(net: LittleNetwork, token: bytes) -> Change:
    return read_change(token, by_roots(net.pki.roots), net.id, "bob")


# --- notifications ---


def test_a_notification_of_ours(net: LittleNetwork) -> None:
    """T29: everything that it says, the node that signed it, and the token itself as the proof."""
    token = notification(net)
    change = read(net, token)
    assert change.as_object() == {
        **{"subject": SUBJECT, "version": 7, "change": "added", "uuid": TOPIC, "kind": "topic", "at": "2027-01-01T00:00:00Z"},
        **{"in": SUBJECT, "node": "n1", "notification": token.decode()},
    }
    assert "in" not in read(net, notification(net, **{"in": None})).as_object()


@pytest.mark.parametrize("changes", [{"watcher": "carol"}, {"network": "0" * 64}], ids=["another watcher", "another network"])
def test_a_notification_of_somebody_else(net: LittleNetwork, changes: dict[str, Any]) -> None:
    """T29: versions are each watcher's own; another's would make a hole, or close one."""
    with pytest.raises(TrustError, match="the notification is not for us"):
        read(net, notification(net, **changes))


def test_a_statement_of_another_kind(net: LittleNetwork) -> None:
    """T29: a status of the same node is no notification."""
    told = {
        **{"v": 1, "network": net.id, "uuid": TOPIC, "owner": "bob", "expires": "2027-01-02T00:00:00Z", "state": "live"},
        **{"seq": 9, "at": "2027-01-01T00:00:00Z"},
    }
    with pytest.raises(TrustError, match="the notification is not for us"):
        read(net, statements.sign("status", told, net.node("n1"), T0))


@pytest.mark.parametrize("who", ["the watcher itself", "another entity", "the operator", "a guard"])
def test_a_notification_that_no_node_signed(net: LittleNetwork, who: str) -> None:
    """T29: only nodes sign changes."""
    signer = {
        "the watcher itself": net.entity("bob"),
        "another entity": net.entity("carol"),
        "the operator": net.operator,
        "a guard": net.guard(),
    }[who]
    with pytest.raises(TrustError, match="which is not a node; only nodes sign those"):
        read(net, statements.sign("notification", payload(net), signer, T0))


def test_a_notification_of_a_stranger(net: LittleNetwork) -> None:
    """T29: a node of other roots."""
    stranger = LittleNetwork("elsewhere").node("n1")
    with pytest.raises(TrustError):
        read(net, statements.sign("notification", payload(net), stranger, T0))
    assert Pki("elsewhere").roots != net.pki.roots


def test_a_notification_that_was_changed(net: LittleNetwork) -> None:
    """T29: one character of the version."""
    header, told, signature = notification(net).split(b".")
    text = decode_segment(told).replace(b'"version":7', b'"version":8')
    forged = b".".join([header, encode_segment(text).encode(), signature])
    with pytest.raises(TrustError, match="signature"):
        read(net, forged)


@pytest.mark.parametrize(
    "changes",
    [{"version": 0}, {"version": -1}, {"version": "7"}, {"change": "renamed"}, {"kind": "node"}, {"uuid": "x"}, {"more": 1}],
    ids=str,
)
def test_a_notification_that_does_not_fit_its_schema(net: LittleNetwork, changes: dict[str, Any]) -> None:
    """T29: signed by a node all the same; refused as malformed."""
    node = net.node("n1")
    token = signing.sign(
        "notification",
        payload(net, **changes),
        node.key,
        chain=node.identity.chain,
        with_chain=True,
        issued=int(T0.timestamp()),
    )
    with pytest.raises(MalformedMessage, match="notification"):
        read(net, token)


# --- what arrives ---


@pytest.fixture
def watching(net: LittleNetwork) -> Watching:
    """Of bob, who follows the subject. Nothing is sent here: it is asked what it believes of what arrives."""
    session = SimpleNamespace(credentials=net.entity("bob"), network=net.id)
    return Watching(cast(EntityClient, SimpleNamespace(seen=0)), cast(Session, session), SUBJECT, 6)


def sealed(net: LittleNetwork, token: bytes, who: str = "bob") -> bytes:
    return sealing.seal(token, net.entity(who).identity.public_key)


def test_what_is_sent_to_us(net: LittleNetwork, watching: Watching) -> None:
    """T29: sealed for us, signed, of what we follow."""
    change = watching._read(sealed(net, notification(net)))
    assert change is not None
    assert (change.version, change.uuid) == (7, TOPIC)


def test_a_notification_of_another_subject(net: LittleNetwork, watching: Watching) -> None:
    """T29: in an answer it is an error; as a message it is no more than a hint that there is something to ask for."""
    other = notification(net, subject=TOPIC)
    with pytest.raises(TrustError, match="the notification is of something else"):
        watching._verified(other)
    assert watching._read(sealed(net, other)) is None


def test_messages_that_are_not_to_be_believed_are_hints(net: LittleNetwork, watching: Watching) -> None:
    """T29: whoever can send to our queue can make us ask, and nothing more."""
    good = notification(net)
    for message in (
        b"",
        b"x",
        good,
        sealed(net, good, "carol"),
        sealed(net, notification(net, watcher="carol")),
        sealed(net, notification(net, network="0" * 64)),
        sealed(net, statements.sign("notification", payload(net), net.entity("carol"), T0)),
        sealed(net, good)[:-1],
    ):
        assert watching._read(message) is None


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), NoNodeAnswered("gone"), TrustError("gone")], ids=str)
def test_a_lost_connection_is_one_whatever_says_so(watching: Watching, error: Exception) -> None:
    """T29: following goes on when the connection is back."""
    with pytest.raises(BrokerUnavailable, match="gone"):
        watching._read(cast(Any, error))


class _Enough(Exception):
    """The watcher got on."""


@pytest.mark.parametrize(
    ("may_be_late", "moments", "ends"),
    [
        # As long as guards may be behind, for a minute; then, or when we were told that our key is over, no longer.
        (True, [0.0, 0.0, 59.0], _Enough),
        (True, [0.0, 0.0, 60.0], LoginRefused),
        (False, [0.0, 0.0, 0.0], LoginRefused),
    ],
)
async def test_guards_that_let_nobody_in_yet(monkeypatch: pytest.MonkeyPatch, may_be_late: bool, moments: list[float], ends: type[Exception]) -> None:
    """T22, T29: brokers are back, and what their guards have to read of the log takes longer than a login waits for it."""
    arriving: asyncio.Queue[object] = asyncio.Queue()
    session = SimpleNamespace(guards_may_be_late=may_be_late, notifications=lambda uuid: contextlib.nullcontext(arriving))
    watching = Watching(cast(EntityClient, SimpleNamespace()), cast(Session, session), SUBJECT, 6)
    happens = [LoginRefused("refused"), LoginRefused("refused"), _Enough()]

    async def register() -> None:
        raise happens.pop(0)

    monkeypatch.setattr(watching, "_register", register)
    monkeypatch.setattr(watching_module, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(watching_module, "time", SimpleNamespace(monotonic=iter([*moments, *moments[-1:] * 10]).__next__))
    with pytest.raises(ends):
        await anext(aiter(watching))


# --- lines about trees ---


@pytest.fixture
def stored(net: LittleNetwork, tmp_path: Path) -> Iterator[StoredLog]:
    with closing(StoredLog(net.log(("alice", "bob")), tmp_path / "view.db")) as stored:
        yield stored


def lines(stored: StoredLog, what: str, uuid: str, who: str = "bob") -> list[bytes]:
    """The lines of a node's answer."""
    net = stored.log.net
    stored.catch_up()
    asker = net.entity(who)
    raw = net.request("tree", {"uuid": uuid, "what": what}, asker, audience="node:n1")
    job = questions.tree_job(envelope.authenticate(raw, lambda _: asker.identity), stored.reader, T0)
    desk = Desk(net.node("n1"), net.id, EVERYBODY, position=lambda: 1)
    pages = questions.placed(desk, searching.look_at_tree(stored.reader, job), T0)
    return [line for page in pages for line in (page.tail or b"").split(b"\n") if line]


def placed(net: LittleNetwork, line: bytes, *, in_hierarchy: bool = True, who: str = "bob", network: str | None = None) -> Placed:
    holder = net.entity(who)
    return read_placed(line, by_roots(holder.roots), network or net.id, holder.key, in_hierarchy=in_hierarchy)


def with_parts(line: bytes, **changes: Any) -> bytes:
    """A line with another opening or place."""
    token, status, hidden, place = line.split(b" ")
    if "opening" in changes:
        opening = changes["opening"]
        hidden = b"" if opening is None else encode_segment(jsontext.canonical(dict(opening))).encode()
    if "place" in changes:
        place = encode_segment(jsontext.canonical(changes["place"])).encode()
    return b" ".join([token, status, hidden, place])


def opening_in(line: bytes) -> dict[str, Any]:
    opening: dict[str, Any] = jsontext.parse(decode_segment(line.split(b" ")[2]))
    return opening


def family(log: Log) -> tuple[str, str]:
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    return root, log.child(root, hosting=HOSTS)


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_what_a_node_says_of_a_tree(stored: StoredLog, who: str) -> None:
    """T27: with the place, the parent that the advertisement hides, and a status where something changed; to owner and others."""
    log = stored.log
    root, child = family(log)
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), root, 2 * HOUR)))
    top, below = (placed(log.net, line, who=who) for line in lines(stored, "tree", root, who))
    assert (top.uuid, top.depth, top.inside, top.topic.expires) == (root, 0, None, T0 + 2 * HOUR)
    assert (below.uuid, below.depth, below.inside) == (child, 1, root)
    assert below.topic.hides.parent == root
    assert (below.topic.hides.access is not None) == (who == "alice")
    assert (below.as_object()["parent"], below.as_object()["depth"]) == (root, 1)
    (above,) = (placed(log.net, line, who=who) for line in lines(stored, "parents", child, who))
    assert (above.uuid, above.depth) == (root, 1)


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_a_parent_that_differs_from_the_advertisement(stored: StoredLog, who: str) -> None:
    """T27: a node cannot hang a child elsewhere; nor can it by leaving out what the advertisement hides."""
    log = stored.log
    root, _ = family(log)
    line = lines(stored, "tree", root, who)[1]
    elsewhere = {"depth": 1, "in": fresh_uuid()}
    closed = openings.disclose(opening_in(line), ())
    for forged in (
        with_parts(line, place=elsewhere),
        with_parts(line, opening=None),
        with_parts(line, opening=None, place=elsewhere),
        with_parts(line, opening=closed),
    ):
        with pytest.raises(TrustError, match="the node names another parent than the advertisement"):
            placed(log.net, forged, who=who)


def test_an_opening_of_another_parent(stored: StoredLog) -> None:
    """T27: what is opened is bound to the signed advertisement."""
    log = stored.log
    root, _ = family(log)
    line = lines(stored, "tree", root)[1]
    other = fresh_uuid()
    opening = opening_in(line)
    opening["parent"] = {**opening["parent"], "value": other}
    with pytest.raises(TrustError, match="the opening does not belong to the advertisement"):
        placed(log.net, with_parts(line, opening=opening, place={"depth": 1, "in": other}))


def test_a_root_that_is_said_to_have_a_parent(stored: StoredLog) -> None:
    """T27: its advertisement hides none."""
    log = stored.log
    root, child = family(log)
    line = lines(stored, "tree", root)[0]
    with pytest.raises(TrustError, match="another parent"):
        placed(log.net, with_parts(line, place={"depth": 1, "in": child}))


@pytest.mark.parametrize(
    "place", [{}, {"depth": -1}, {"depth": "1"}, {"depth": 1, "in": "x"}, {"depth": 1, "more": 1}, [], 7], ids=str
)
def test_a_place_that_does_not_fit_its_schema(stored: StoredLog, place: object) -> None:
    log = stored.log
    root, _ = family(log)
    with pytest.raises(MalformedMessage, match="place"):
        placed(log.net, with_parts(lines(stored, "tree", root)[0], place=place))


def test_a_line_of_another_network(stored: StoredLog) -> None:
    log = stored.log
    root, _ = family(log)
    with pytest.raises(TrustError, match="minted in another network"):
        placed(log.net, lines(stored, "tree", root)[0], network="0" * 64)


def test_a_child_in_a_collection_is_inside_the_collection(stored: StoredLog) -> None:
    """T36: there the place is a collection, which is no parent; also to the owner, who knows the parent."""
    log = stored.log
    _, child = family(log)
    collection = log.collection()
    accepted(log.change("add", "alice", collection=collection, uuid=child))
    for who in ("alice", "bob"):
        (line,) = lines(stored, "topics", collection, who)
        found = placed(log.net, line, who=who, in_hierarchy=False)
        assert (found.uuid, found.inside) == (child, collection)
    (line,) = lines(stored, "of", child)
    assert placed(log.net, line, in_hierarchy=False).topic.hides.gathering is not None
