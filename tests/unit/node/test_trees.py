"""What a node answers about trees and their changes, over a real store: in pages, nothing lost or doubled, and to each what it may know."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from little_network import DAY, HOUR, MINUTE, LittleNetwork, Log, fresh_uuid, payload_of, read_uuid
from pki import T0
from sound_trees import StoredLog, accepted

from tdn.errors import Absent, Refused, TdnError, UsageError
from tdn.node import questions, searching
from tdn.node.policy import EVERYBODY
from tdn.node.questions import Answer, Desk
from tdn.protocol import jsontext, schemas
from tdn.rules import watches
from tdn.store.search import Reader
from tdn.store.view import View
from tdn.trust import envelope, openings, sealing, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.signing import decode_segment

PEOPLE = ("alice", "bob", "carol")
HOSTS = {"allow_children": True}
OPEN: dict[str, Any] = {
    "child_collections": True,
    "inclusion": True,
    "lists": {"add_allow": ["*"], "owner_allow": ["*"], "include_allow": ["*"]},
}
WHATS = ("parents", "children", "tree", "topics", "collections", "of")


@pytest.fixture
def log(net: LittleNetwork) -> Log:
    return net.log(PEOPLE)


@pytest.fixture
def stored(log: Log, tmp_path: Path) -> Iterator[StoredLog]:
    with closing(StoredLog(log, tmp_path / "view.db")) as stored:
        yield stored


def add(log: Log, place: str, *uuids: str) -> None:
    for uuid in uuids:
        accepted(log.change("add", "alice", collection=place, uuid=uuid))


def withdraw(log: Log, uuid: str) -> None:
    accepted(log.put("withdraw", log.net.withdraw(log.net.entity("alice"), uuid)))


def desk(net: LittleNetwork) -> Desk:
    return Desk(net.node("n1"), net.id, EVERYBODY, position=lambda: 1)


def question(net: LittleNetwork, kind: str, asker: Credentials, **body: Any) -> Envelope:
    raw = net.request(kind, body, asker, audience="node:n1")
    return envelope.authenticate(raw, lambda _: asker.identity)


def look(net: LittleNetwork, reader: Reader, who: str | Credentials, at: datetime = T0, **body: Any) -> list[Answer]:
    """The pages of one answer about a tree, as a node sends them."""
    asker = net.entity(who) if isinstance(who, str) else who
    job = questions.tree_job(question(net, "tree", asker, **body), reader, at)
    # As it goes to the process that looks and comes back.
    job = jsontext.parse(jsontext.canonical(job))
    pages = list(questions.placed(desk(net), searching.look_at_tree(reader, job), at))
    for page in pages:
        schemas.check("placed", page.body)
    return pages


class Line:
    """One line of a page, taken apart."""

    def __init__(self, line: bytes) -> None:
        parts = line.split(b" ")
        assert len(parts) == 4
        self.token, self.status, hidden, place = parts
        self.uuid = read_uuid(self.token)
        self.opening = jsontext.parse(decode_segment(hidden)) if hidden else None
        self.place = jsontext.parse(decode_segment(place))
        schemas.check("place", self.place)

    @property
    def shown(self) -> set[str]:
        """The claims that are open."""
        assert self.opening is not None
        schemas.check("opening", self.opening)
        openings.read(self.opening, payload_of(self.token)["hidden"])
        return {name for name, claim in self.opening.items() if "value" in claim}


def lines_of(pages: list[Answer]) -> list[Line]:
    return [Line(line) for page in pages for line in (page.tail or b"").split(b"\n") if line]


def seen(stored: StoredLog, what: str, uuid: str, who: str = "bob", **body: Any) -> dict[str, Line]:
    """What one answer shows, by UUID."""
    return {line.uuid: line for line in lines_of(look(stored.log.net, stored.reader, who, what=what, uuid=uuid, **body))}


def walk(
    stored: StoredLog, what: str, uuid: str, between: Callable[[list[str]], None] = lambda given: None, **body: Any
) -> list[str]:
    """All answers, one after the other with the cursor; something may happen in between."""
    given: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        pages = look(stored.log.net, stored.reader, "bob", what=what, uuid=uuid, **body, **cursor)
        assert [page.body["last"] for page in pages] == [False] * (len(pages) - 1) + [True]
        assert all("cursor" not in page.body for page in pages[:-1])
        given += [line.uuid for line in lines_of(pages)]
        if "cursor" not in pages[-1].body:
            return given
        cursor = {"cursor": pages[-1].body["cursor"]}
        assert cursor["cursor"] == given[-1]
        between(given)
        stored.catch_up()


# --- pages ---


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few in an answer that small trees need many."""
    monkeypatch.setattr(searching, "_TREE_TOPICS", 5)
    monkeypatch.setattr(questions, "_PAGE_TOPICS", 2)


def planted(log: Log, levels: int = 3, each: int = 3) -> tuple[str, list[str]]:
    """A tree: its root, and what is below it as a walk gives it."""
    root = log.advertised(hosting=HOSTS)

    def grow(parent: str, level: int) -> Iterator[str]:
        for _ in range(each):
            child = log.child(parent, hosting=HOSTS)
            yield child
            if level < levels:
                yield from grow(child, level + 1)

    return root, list(grow(root, 1))


@pytest.mark.usefixtures("few")
def test_a_tree_in_many_answers(stored: StoredLog) -> None:
    """T27: with the cursor of each the next; together the whole, each once, in the same order as in one answer; to a depth too."""
    root, below = planted(stored.log)
    stored.catch_up()
    assert walk(stored, "tree", root) == [root, *below]
    children = [uuid for uuid in below if stored.log.topic(uuid)["parent"] == root]
    assert walk(stored, "children", root) == children
    two = [uuid for uuid in below if stored.log.topic(uuid)["parent"] in (root, *children)]
    assert walk(stored, "tree", root, depth=2) == [root, *two]
    assert walk(stored, "children", root, depth=2) == two
    pages = look(stored.log.net, stored.reader, "bob", what="tree", uuid=root)
    assert [page.body["count"] for page in pages] == [2, 2, 1]


@pytest.mark.usefixtures("few")
def test_parents_in_many_answers(stored: StoredLog) -> None:
    """T27: the nearest first, however many."""
    chain = [stored.log.advertised(hosting=HOSTS)]
    for _ in range(17):
        chain.append(stored.log.child(chain[-1], hosting=HOSTS))
    stored.catch_up()
    assert walk(stored, "parents", chain[-1]) == chain[-2::-1]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("what", ["tree", "children"])
@pytest.mark.parametrize("ends", ["the last given", "one given before", "one to come", "an ancestor of the last"])
def test_topics_that_end_between_answers(stored: StoredLog, what: str, ends: str) -> None:
    """T27: nothing is given twice, and nothing is lost that lives all the while; what has ended does not come any more."""
    log = stored.log
    root, below = planted(log)
    stored.catch_up()
    depth = {} if what == "tree" else {"depth": 3}
    ended: set[str] = set()

    def end_one(given: list[str]) -> None:
        # Of those who are not gone already, with all that is below them.
        choice = {
            "the last given": [given[-1]],
            "one given before": [uuid for uuid in given[-3:-1] if uuid != root],
            "one to come": [uuid for uuid in below if uuid not in given],
            "an ancestor of the last": [log.topic(given[-1]).get("parent", root)],
        }[ends]
        for uuid in choice[:1]:
            if uuid != root and log.topic(uuid)["state"] == "live":
                withdraw(log, uuid)
                ended.update(known for known in below if log.topic(known)["state"] != "live")

    given = walk(stored, what, root, end_one, **depth)
    assert ended
    assert len(given) == len(set(given))
    assert set(below) - ended <= set(given)
    order = [root, *below]
    assert given == sorted(given, key=order.index)


@pytest.mark.usefixtures("few")
def test_children_that_come_between_answers(stored: StoredLog) -> None:
    """T27: those behind the cursor are given, the others not; none twice."""
    log = stored.log
    root, below = planted(log, levels=2)
    stored.catch_up()
    made: list[str] = []
    given = walk(stored, "tree", root, lambda given: made.append(log.child(root, at=T0 + MINUTE)))
    assert given[: len(below) + 1] == [root, *below]
    assert given[len(below) + 1 :] == made


@pytest.fixture
def shelves(log: Log) -> dict[str, Any]:
    """Collections in collections, with topics in several of them. What is nearer has no smaller UUID than what is further."""
    top = log.collection(**OPEN)
    inner = [log.collection(**OPEN) for _ in range(12)]
    add(log, top, *inner[6:])
    for outer, below in zip(inner[6:], inner[:6], strict=True):
        add(log, outer, below)
    topics = [log.advertised() for _ in range(14)]
    for topic, place in zip(topics, itertools.cycle([top, *inner]), strict=False):
        add(log, place, topic)
    for place in inner[:6]:
        add(log, place, topics[0])
    accepted(log.change("remove", "alice", collection=top, uuid=topics[0]))
    return {"top": top, "inner": inner, "topics": topics}


@pytest.mark.usefixtures("few")
def test_a_collection_in_many_answers(stored: StoredLog, shelves: dict[str, Any]) -> None:
    """T36: its topics, its collections and the collections that a topic is in: each once, all of them."""
    stored.catch_up()
    assert walk(stored, "topics", shelves["top"]) == sorted(shelves["topics"])
    assert sorted(walk(stored, "collections", shelves["top"])) == sorted(shelves["inner"])
    assert sorted(walk(stored, "of", shelves["topics"][0])) == sorted([shelves["top"], *shelves["inner"]])


def test_the_nearer_first_where_one_answer_holds_them(stored: StoredLog, shelves: dict[str, Any]) -> None:
    """T36: collections in the order of their distance."""
    stored.catch_up()
    for what, uuid in (("collections", shelves["top"]), ("of", shelves["topics"][1])):
        depths = [line.place["depth"] for line in seen(stored, what, uuid).values()]
        assert len(depths) > 1
        assert depths == sorted(depths)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("what", ["topics", "collections", "of"])
@pytest.mark.parametrize("ends", ["the last given", "one given before", "one to come"])
def test_members_that_end_between_answers(stored: StoredLog, shelves: dict[str, Any], what: str, ends: str) -> None:
    """T36: nothing twice, and nothing lost that is in the tree all the while."""
    log = stored.log
    stored.catch_up()
    uuid = shelves["topics"][0] if what == "of" else shelves["top"]
    whole = set(walk(stored, what, uuid))
    gone: set[str] = set()

    def end_one(given: list[str]) -> None:
        choice = {
            "the last given": given[-1:],
            "one given before": given[-2:-1],
            "one to come": sorted(whole - set(given)),
        }[ends]
        # The collection that was asked about stays, or there is nothing to go on with.
        for member in choice[:1]:
            if member not in gone and member not in (uuid, shelves["top"]):
                withdraw(log, member)
                gone.add(member)

    given = walk(stored, what, uuid, end_one)
    assert gone
    assert len(given) == len(set(given))
    after = set(walk(stored, what, uuid))
    assert after <= set(given)
    assert set(given) <= whole


def test_an_answer_holds_no_more_than_it_may(stored: StoredLog) -> None:
    """T27: by bytes too, with the openings that go along to their owner; every page fits into a message, signed and sealed."""
    log = stored.log
    names = [f"{'n' * 50}{number:03d}" for number in range(500)]
    root = log.advertised(hosting=HOSTS)
    below = [log.child(root, lists={"discover_deny": names, "hierarchy_deny": names}) for _ in range(40)]
    stored.catch_up()
    given: list[str] = []
    cursor: dict[str, str] = {}
    answers = 0
    while True:
        pages = look(log.net, stored.reader, "alice", what="tree", uuid=root, **cursor)
        answers += 1
        assert sum(len(page.tail or b"") for page in pages) < 1.5 * searching.ANSWER_BYTES
        for page in pages:
            raw = envelope.write(
                page.kind, page.body, log.net.node("n1"), audience="entity:alice", now=T0, life=MINUTE, tail=page.tail
            )
            assert len(raw) < jsontext.MAX_MESSAGE_BYTES
        given += [line.uuid for line in lines_of(pages)]
        if "cursor" not in pages[-1].body:
            break
        cursor = {"cursor": pages[-1].body["cursor"]}
    assert given == [root, *below]
    assert answers > 1


def test_a_cursor_of_somebody_elses_tree(stored: StoredLog) -> None:
    """T18: one that was never given is refused in the same words, whether there is such a topic or not."""
    log = stored.log
    root = log.advertised(hosting=HOSTS)
    hidden = log.child(root, lists={"hierarchy_deny": ["bob"]})
    log.child(root)
    stored.catch_up()
    for cursor in (hidden, fresh_uuid()):
        with pytest.raises(UsageError, match="the cursor is not one of ours"):
            look(log.net, stored.reader, "bob", what="tree", uuid=root, cursor=cursor)


# --- what of the opening goes to whom ---


def test_what_goes_along_in_a_hierarchy(stored: StoredLog) -> None:
    """T27: all to the owner; to whoever sees a child's place, its parent and what it takes below, and never its lists. Of a root nothing, so
    that it looks like a child whose parent is hidden."""
    log = stored.log
    root = log.advertised(hosting={**HOSTS, "max_depth": 9}, lists={"register_deny": ["carol"]})
    child = log.child(root, hosting={**HOSTS, "max_width": 7})
    plain = log.child(child)
    stored.catch_up()
    shown = seen(stored, "tree", root)
    assert shown[root].opening is None
    assert shown[child].shown == {"parent", "hosting"}
    assert shown[plain].shown == {"parent"}
    assert (shown[child].opening or {})["parent"]["value"] == root
    assert set(shown[child].opening or {}) == {"access", "hosting", "parent"}
    for line in seen(stored, "tree", root, "alice").values():
        assert line.shown == set(line.opening or {})
    assert [(line.place, line.uuid) for line in shown.values()] == [
        ({"depth": 0}, root),
        ({"depth": 1, "in": root}, child),
        ({"depth": 2, "in": child}, plain),
    ]
    above = seen(stored, "parents", plain)
    assert (above[child].shown, above[root].opening) == ({"parent", "hosting"}, None)


def test_a_hidden_parent_leaves_no_trace_in_the_childs_line(stored: StoredLog) -> None:
    """T27: seeing a child shows nothing of its parent, not even that there is one: as a line it is a root."""
    log = stored.log
    secret = log.advertised(hosting=HOSTS, lists={"hierarchy_allow": ["alice"]})
    child = log.child(secret, lists={"hierarchy_allow": ["*"]}, hosting=HOSTS)
    leaf = log.child(child)
    root = log.advertised(hosting=HOSTS)
    collection = log.collection(**OPEN)
    add(log, collection, child, root)
    stored.catch_up()
    net, reader = log.net, stored.reader
    for what, uuid in (("tree", child), ("parents", leaf), ("topics", collection)):
        line = seen(stored, what, uuid)[child]
        assert line.opening is None
        assert secret not in str((payload_of(line.token), line.place))
    trees = [lines_of(look(net, reader, "bob", what="tree", uuid=uuid)) for uuid in (child, root)]
    assert [(line[0].opening, line[0].place, line[0].status) for line in trees] == [(None, {"depth": 0}, b"")] * 2
    empty = [look(net, reader, "bob", what="parents", uuid=uuid) for uuid in (child, root)]
    assert empty[0] == empty[1] == [Answer("placed", {"page": 1, "last": True, "count": 0})]


def test_what_goes_along_in_a_collection(stored: StoredLog) -> None:
    """T31, T36: of a collection its options; of a topic in it nothing of its hierarchy, unless its place shows."""
    log = stored.log
    collection, inner = log.collection(**OPEN), log.collection(**OPEN)
    parent = log.advertised(hosting=HOSTS)
    child = log.child(parent)
    secret = log.advertised(hosting={**HOSTS, "max_width": 3}, lists={"hierarchy_allow": ["carol"]})
    add(log, collection, inner, parent, child, secret)
    stored.catch_up()
    shown = seen(stored, "topics", collection)
    assert (shown[child].opening, shown[secret].opening, shown[parent].opening) == (None, None, None)
    assert seen(stored, "topics", collection, "carol")[secret].opening is None
    assert seen(stored, "topics", collection, "alice")[child].shown == {"access", "parent"}
    assert {line.place["in"] for line in shown.values()} == {collection}
    assert seen(stored, "collections", collection)[inner].shown == {"gathering"}
    assert seen(stored, "of", child)[collection].shown == {"gathering"}
    assert seen(stored, "of", child, "alice")[collection].shown == {"access", "gathering", "members"}


def test_a_status_goes_along_where_something_changed(stored: StoredLog) -> None:
    """T26, T39: a child that was cut with its parent says its present end."""
    log = stored.log
    root = log.advertised(hosting=HOSTS, lifetime=DAY)
    child = log.child(root, lifetime=DAY)
    accepted(log.put("renew", log.net.renew(log.net.entity("alice"), root, HOUR)))
    later = log.child(root, lifetime=DAY)
    stored.catch_up()
    shown = seen(stored, "tree", root)
    assert {payload_of(shown[uuid].status)["expires"] for uuid in (root, child)} == {"2027-01-01T01:00:00Z"}
    assert shown[later].status == b""


# --- words ---


def said(act: Callable[[], Any]) -> tuple[type[TdnError], dict[str, Any]]:
    with pytest.raises(TdnError) as caught:
        act()
    return type(caught.value), caught.value.as_object()


@pytest.mark.parametrize("what", WHATS)
def test_hidden_and_ended_are_absent_word_for_word(stored: StoredLog, what: str) -> None:
    """T18, T27, T36: no question about a tree tells a hidden or ended one from none; nor does a countersignature that is not its owner's."""
    log = stored.log
    root = log.advertised(hosting=HOSTS)
    hidden = [
        log.advertised(hosting=HOSTS, lists={"discover_allow": ["alice"]}),
        log.child(root, lists={"discover_deny": ["bob"]}),
        log.collection(lists={"discover_allow": ["alice"], "watch_allow": ["bob"]}),
    ]
    if what in ("parents", "children", "tree"):
        hidden += [log.advertised(lists={"hierarchy_deny": ["bob"]}), log.child(root, lists={"hierarchy_allow": ["carol"]})]
    ended = [log.advertised(hosting=HOSTS), log.collection()]
    ended.append(log.child(ended[0]))
    for uuid in ended[:2]:
        withdraw(log, uuid)
    stored.catch_up()
    nowhere = fresh_uuid()
    ask = partial(look, log.net, stored.reader, "bob", what=what)
    absent = said(partial(ask, uuid=nowhere))
    assert absent[0] is Absent
    for uuid in (*hidden, *ended):
        for owner in (None, "bob", "carol"):
            word = {} if owner is None else {"countersigned": log.net.countersign(log.net.entity(owner), "discover", uuid, "bob")}
            kind, told = said(partial(ask, uuid=uuid, **word))
            assert (kind, {**told, "message": told["message"].replace(uuid, nowhere)}) == absent


@pytest.mark.parametrize("what", WHATS)
def test_a_question_about_the_wrong_kind(stored: StoredLog, what: str) -> None:
    """T27, T36: of what one sees, the message says where to look instead."""
    log = stored.log
    topic, collection = log.advertised(), log.collection()
    stored.catch_up()
    ask = partial(look, log.net, stored.reader, "bob", what=what)
    if what == "of":
        assert ask(uuid=topic)[0].body["count"] == ask(uuid=collection)[0].body["count"] == 0
        return
    wrong, other = (
        (collection, "see `entity collection`") if what in ("parents", "children", "tree") else (topic, "see `entity hierarchy`")
    )
    kind, told = said(partial(ask, uuid=wrong))
    assert kind is UsageError
    assert told["message"].endswith(other)


def test_the_operator_looks_as_nobodys_owner(stored: StoredLog) -> None:
    """T27: what everybody sees, and nothing of what an advertisement hides beyond that."""
    log = stored.log
    root = log.advertised(hosting=HOSTS)
    child, hidden = log.child(root), log.child(root, lists={"discover_allow": ["bob"]})
    stored.catch_up()
    lines = {line.uuid: line for line in lines_of(look(log.net, stored.reader, log.net.operator, what="tree", uuid=root))}
    assert set(lines) == {root, child}
    assert hidden not in lines
    assert lines[child].shown == {"parent"}


# --- countersigned ---


def test_looking_with_the_owners_word(stored: StoredLog) -> None:
    """T27: as its owner would see it; openings go by who asks, so lists stay closed. The word is for one topic, one entity, one while."""
    log = stored.log
    net = log.net
    root = log.advertised(hosting=HOSTS, lists={"discover_allow": ["alice"]})
    child = log.child(root, hosting=HOSTS)
    beyond = log.child(child, "alice", lists={"hierarchy_deny": ["bob"]})
    stored.catch_up()
    word = net.countersign(net.entity("alice"), "discover", root, "bob")
    shown = seen(stored, "tree", root, countersigned=word)
    assert list(shown) == [root, child, beyond]
    assert (shown[root].opening, shown[child].shown) == (None, {"parent", "hosting"})
    ask = partial(look, net, stored.reader, what="tree", countersigned=word)
    for act in (
        partial(ask, "bob", uuid=child),
        partial(ask, "carol", uuid=root),
        partial(ask, "bob", uuid=root, at=T0 + HOUR + MINUTE),
        partial(ask, net.operator, uuid=root),
    ):
        assert said(act)[0] is Absent
    registering = net.countersign(net.entity("alice"), "register", root, "bob")
    assert said(partial(look, net, stored.reader, "bob", what="tree", uuid=root, countersigned=registering))[0] is Absent


@pytest.mark.usefixtures("few")
def test_the_owners_word_goes_on_with_the_cursor(stored: StoredLog) -> None:
    """T27: every answer is asked for with it."""
    log = stored.log
    root = log.advertised(hosting=HOSTS, lists={"discover_allow": ["alice"]})
    below = [log.child(root) for _ in range(13)]
    stored.catch_up()
    word = log.net.countersign(log.net.entity("alice"), "discover", root, "bob")
    assert walk(stored, "tree", root, countersigned=word) == [root, *below]


# --- changes ---


def changes(stored: StoredLog, uuid: str, since: int, who: str = "bob", at: datetime = T0) -> tuple[Answer, list[dict[str, Any]]]:
    """The answer, and the payloads of the notifications in it, verified as anybody would."""
    net = stored.log.net
    asked = question(net, "changes", net.entity(who), uuid=uuid, since=since)
    (answer,) = questions.answer(desk(net), asked, stored.reader, at)
    schemas.check("changed", answer.body)
    tokens = answer.tail.split(b"\n") if answer.tail else []
    told = [statements.read(token, statements.by_roots(net.pki.roots)) for token in tokens]
    assert {statement.kind for statement in told} <= {"notification"}
    assert answer.body["count"] == len(told)
    return answer, [dict(statement.payload) for statement in told]


def test_changes_since_a_version(stored: StoredLog) -> None:
    """T29: signed, in order, from the next one on; none where there is none."""
    log = stored.log
    place, topic = log.collection(), log.advertised()
    accepted(log.change("watch", "bob", uuid=place))
    add(log, place, topic)
    accepted(log.change("remove", "alice", collection=place, uuid=topic))
    stored.catch_up()
    for since in range(3):
        answer, told = changes(stored, place, since)
        assert answer.body["version"] == 2
        assert [change["version"] for change in told] == list(range(since + 1, 3))
    assert changes(stored, place, 0)[1][0] == log.told(place, "bob")[0].payload(log.net.id)
    with pytest.raises(UsageError, match=f"there is no version 3 yet; you were told 2 changes of {place}"):
        changes(stored, place, 3)
    with pytest.raises(UsageError, match="there is no version"):
        changes(stored, place, 10**12)


def test_more_changes_than_a_message_holds(stored: StoredLog) -> None:
    """T29: whoever was away for long gets them in several answers, each of which can be sent and read; none is left out."""
    log = stored.log
    place, topic = log.collection(), log.advertised()
    accepted(log.change("watch", "bob", uuid=place))
    for _ in range(120):
        add(log, place, topic)
        accepted(log.change("remove", "alice", collection=place, uuid=topic))
    stored.catch_up()
    versions: list[int] = []
    while len(versions) < 240:
        answer, told = changes(stored, place, len(versions))
        assert told
        raw = envelope.write(
            answer.kind, answer.body, log.net.node("n1"), audience="entity:bob", now=T0, life=MINUTE, tail=answer.tail
        )
        assert len(sealing.seal(raw, log.net.entity("bob").identity.public_key)) < jsontext.MAX_MESSAGE_BYTES
        assert envelope.authenticate(raw, lambda _: log.net.node("n1").identity).tail == answer.tail
        versions += [change["version"] for change in told]
    assert versions == list(range(1, 241))


def test_changes_that_are_no_longer_kept(stored: StoredLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """T29: a clear answer that says from where to go on, and that works."""
    monkeypatch.setattr(watches, "KEPT_CHANGES", 3)
    log = stored.log
    place, topic = log.collection(), log.advertised()
    accepted(log.change("watch", "bob", uuid=place))
    for _ in range(4):
        add(log, place, topic)
        accepted(log.change("remove", "alice", collection=place, uuid=topic))
    stored.catch_up()
    with pytest.raises(
        Refused, match=f"changes before version 6 are no longer kept; list {place} again and go on with --since 5"
    ) as caught:
        changes(stored, place, 0)
    assert caught.value.detail == {"version": 8, "oldest": 6}
    assert [change["version"] for change in changes(stored, place, 5)[1]] == [6, 7, 8]


def test_changes_of_what_one_does_not_follow(stored: StoredLog) -> None:
    """T18, T29: there, hidden, followed by others, ended or nowhere: the same words."""
    log = stored.log
    place, hidden = log.collection(), log.collection(lists={"discover_allow": ["carol"]})
    for uuid in (place, hidden):
        accepted(log.change("watch", "carol", uuid=uuid))
    ended = log.advertised()
    withdraw(log, ended)
    stored.catch_up()
    nowhere = fresh_uuid()
    absent = said(partial(changes, stored, nowhere, 0))
    assert absent == (Absent, {"error": "absent", "message": f"there is no {nowhere} that you follow", "detail": {}})
    for uuid in (place, hidden, ended):
        kind, told = said(partial(changes, stored, uuid, 0))
        assert (kind, told["message"].replace(uuid, nowhere)) == (Absent, absent[1]["message"])


def test_the_last_change_is_told_after_the_end(stored: StoredLog) -> None:
    """T29: of a topic and of a collection."""
    log = stored.log
    followed = [log.advertised(hosting=HOSTS), log.collection()]
    for uuid in followed:
        accepted(log.change("watch", "bob", uuid=uuid))
        withdraw(log, uuid)
    stored.catch_up()
    for uuid in followed:
        assert [change["change"] for change in changes(stored, uuid, 0)[1]] == ["withdrawn"]


def test_where_changes_are_sent(stored: StoredLog) -> None:
    """T31: a collection has a change topic of its own; a hierarchy's changes go by the topic that is followed."""
    log = stored.log
    root, place = log.advertised(), log.collection()
    for uuid in (root, place):
        accepted(log.change("watch", "bob", uuid=uuid))
    stored.catch_up()
    bob = log.net.entity("bob")
    topics = [questions.followed(question(log.net, "changes", bob, uuid=uuid, since=0), stored.reader) for uuid in (root, place)]
    assert topics == [root, log.topic(place)["gathering"]["notifications"]]


# --- a node with hidden trees answers as one that never had them ---


def test_answers_are_the_same_where_hidden_things_never_were(log: Log, tmp_path: Path) -> None:
    """T18, T27, T29, T36: two stores of one log; in one of them every record about what bob may not see is a tick instead."""
    net = log.net
    hidden: list[int] = []

    def secretly(act: Callable[[], Any]) -> Any:
        begin = len(log.records)
        made = act()
        hidden.extend(range(begin, len(log.records)))
        return made

    only = {"discover_allow": ["alice"]}
    root, top, inner = log.advertised(hosting=HOSTS), log.collection(**OPEN), log.collection(**OPEN)
    topics = [log.advertised() for _ in range(3)]
    add(log, top, inner, topics[0])
    for uuid in (root, top):
        accepted(log.change("watch", "bob", uuid=uuid))
    child = log.child(root, hosting=HOSTS)
    for parent, lists in ((root, only), (child, {"hierarchy_deny": ["bob"]}), (child, {"discover_deny": ["bob"]})):
        below = secretly(lambda parent=parent, lists=lists: log.child(parent, hosting=HOSTS, lists=lists))
        secretly(lambda below=below: log.child(below))
        secretly(lambda below=below: log.change("watch", "carol", uuid=below))
    secret = secretly(lambda: log.collection(**{**OPEN, "lists": {**OPEN["lists"], **only}}))
    secretly(lambda: add(log, top, secret))
    secretly(lambda: add(log, secret, topics[0], topics[1], inner))
    secretly(lambda: add(log, inner, log.advertised(lists=only)))
    add(log, inner, topics[1])
    last = log.child(child)
    withdraw(log, topics[0])
    withdraw(log, last)
    raws = [net.record("tick", at=T0) if number in hidden else record.raw for number, record in enumerate(log.records)]
    answers: list[list[Any]] = []
    for name, chosen in (("all", [record.raw for record in log.records]), ("seen", raws)):
        with closing(View(tmp_path / name)) as view:
            view.apply_all(list(enumerate(chosen)), durable=False)
            with closing(Reader(tmp_path / name)) as reader:
                answers.append(everything(net, reader, [root, child, last, top, inner, secret, *topics]))
    assert len(hidden) > 15
    assert answers[0] == answers[1]
    assert sum(len(answer) for answer in answers[0] if isinstance(answer, list)) > 10


def everything(net: LittleNetwork, reader: Reader, uuids: list[str]) -> list[Any]:
    """All that bob can ask a node about some UUIDs, and what it is told, apart from signatures."""
    found: list[Any] = []
    for uuid, what, depth in itertools.product(uuids, WHATS, ({}, {"depth": 1})):
        try:
            pages = look(net, reader, "bob", what=what, uuid=uuid, **depth)
        except TdnError as error:
            found.append((type(error), error.as_object()))
            continue
        bodies = [page.body for page in pages]
        found.append([bodies, *((line.token, bool(line.status), line.opening, line.place) for line in lines_of(pages))])
    for uuid in uuids:
        asked = question(net, "changes", net.entity("bob"), uuid=uuid, since=0)
        try:
            (answer,) = questions.answer(desk(net), asked, reader, T0)
        except TdnError as error:
            found.append((type(error), error.as_object()))
        else:
            found.append([answer.body, *(payload_of(token) for token in (answer.tail or b"").split(b"\n") if token)])
    return found


def test_a_job_says_who_asks_and_who_looks(stored: StoredLog) -> None:
    """T27: with the owner's word, another's eyes; openings still go by who asks."""
    log = stored.log
    root = log.advertised(lists={"discover_allow": ["alice"]})
    stored.catch_up()
    word = log.net.countersign(log.net.entity("alice"), "discover", root, "bob", life=timedelta(days=1))
    for given, entity in (({}, "bob"), ({"countersigned": word}, "alice")):
        asked = question(log.net, "tree", log.net.entity("bob"), uuid=root, what="tree", depth=3, **given)
        job = questions.tree_job(asked, stored.reader, T0)
        assert job == {
            **{"uuid": root, "depth": 3, "tree": "tree", "asker": "bob", "entity": entity, "institution": "local"},
            "now": "2027-01-01T00:00:00Z",
        }
