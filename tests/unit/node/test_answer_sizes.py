"""What an answer holds is bounded with all that goes along: openings and statuses too. Statuses are signed once in a while, not each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from little_network import HOUR, LittleNetwork, fresh_uuid, payload_of, read_uuid
from pki import T0

from tdn.confined import frames
from tdn.errors import Absent, UsageError
from tdn.node import questions, searching
from tdn.node.policy import EVERYBODY
from tdn.node.questions import Desk, discovered
from tdn.node.searching import ANSWER_BYTES, read_result, search
from tdn.protocol.times import format_time
from tdn.store.search import FoundTopic, Reader
from tdn.store.view import View
from tdn.trust import envelope, openings, statements

NOW = T0 + timedelta(minutes=1)
COUNT = 110
#: The longest lists that there are: 2 × 500 names, some 50 KB of JSON beside an advertisement of 2 KB.
LONGEST = {
    "discover_allow": [f"{'n' * 40}{number:03d}" for number in range(500)],
    "discover_deny": [f"{'n' * 40}{number:03d}x" for number in range(500)],
}
NET = LittleNetwork("answer sizes")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One entity's topics with the longest lists."""
    path = Path(tmp_path_factory.mktemp("sizes")) / "view.db"
    alice, view = NET.entity("alice"), View(path)
    tokens = [NET.mint(alice, lists=LONGEST) for _ in range(COUNT)]
    records = [*NET.opening(), *(NET.record("advertise", NET.advertise(alice, token)) for token in tokens)]
    decided = view.apply_all(list(enumerate(records)), durable=False)
    assert {outcome.status for _, outcome in decided} == {"accepted"}
    view.close()
    with closing(Reader(path)) as reader:
        yield reader


def job(entity: str, **more: Any) -> dict[str, Any]:
    return {"entity": entity, "institution": "local", "now": format_time(NOW), "after": ["", ""], "limit": 10_000, **more}


@pytest.mark.parametrize("asked", [{}, {"language": "sql", "query": "owner = 'alice'"}], ids=["all", "query"])
def test_openings_count(reader: Reader, asked: dict[str, Any]) -> None:
    """T16, T18: an owner's many topics with the longest lists come in several answers, each a frame that can be sent; none is missing."""
    found: list[str] = []
    answers, after = 0, ["", ""]
    while True:
        result = search(reader, job("alice", after=after, **asked))
        assert len(frames.encode({"result": result[0]}, result[1])) < ANSWER_BYTES * 1.2
        topics, place = read_result(result)
        for topic in topics:
            assert topic.opening is not None
            opened = openings.read(topic.opening, str(payload_of(topic.advertisement)["hidden"]))
            assert opened.access is not None
            assert opened.access.as_object() == LONGEST
        found += [topic.uuid for topic in topics]
        answers += 1
        if place is None:
            break
        after = list(place)
    assert len(found) == len(set(found)) == COUNT
    assert answers > 3


def test_a_frame_would_not_hold_them_all(reader: Reader) -> None:
    """Why they are counted."""
    topics = reader.discover(searching.Search(searching.Asker("alice", "local"), NOW), limit=1000).topics
    with pytest.raises(frames.BadFrame):
        frames.encode({"rows": [topic.opening for topic in topics]})


def made(number: int, *, advertisement: int = 1000, changed: bool = False, opening: int = 0) -> FoundTopic:
    uuid = fresh_uuid(number + 1)
    hidden = {"a": "x" * (opening - len('{"a": ""}'))} if opening else None
    return FoundTopic(
        uuid, "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z", "a", 2 if changed else 1, 1, b"x" * advertisement, hidden
    )


@pytest.mark.parametrize(
    ("choices", "each"),
    [({}, 1000), ({"changed": True}, 1000 + searching._STATUS_BYTES), ({"opening": 700}, 1700)],
    ids=["plain", "changed", "owned"],
)
def test_what_is_counted(choices: dict[str, Any], each: int) -> None:
    """The advertisement, a status where one goes along, an opening where one does; one topic at least; and where to go on."""
    topics = [made(number, **choices) for number in range(5)]
    end = ("z", "z")
    for most, count in ((0, 1), (each, 1), (2 * each - 1, 1), (2 * each, 2), (4 * each, 4)):
        place = (topics[count - 1].created, topics[count - 1].uuid)
        assert searching._up_to(most, topics, end) == (topics[:count], place)
    assert searching._up_to(5 * each, topics, end) == (topics, end)
    assert searching._up_to(0, [], None) == ([], None)


# --- statuses ---


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which statuses were signed."""
    made: list[tuple[str, int]] = []
    real = statements.sign

    def sign(kind: str, payload: dict[str, Any], node: Any, now: datetime) -> bytes:
        if kind == "status":
            made.append((payload["uuid"], payload["seq"]))
        return real(kind, payload, node, now)

    monkeypatch.setattr(statements, "sign", sign)
    return made


@pytest.fixture
def desk() -> Desk:
    return Desk(NET.node("n1"), NET.id, EVERYBODY, position=lambda: 1)


def renewed(seq: int = 9) -> FoundTopic:
    """A topic that was renewed by the record of this number."""
    token = NET.mint(NET.entity("alice"), uuid=fresh_uuid(77))
    return FoundTopic(read_uuid(token), "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z", "alice", seq, 5, token)


def status_in(desk: Desk, topic: FoundTopic, now: datetime) -> bytes:
    """The status beside a topic, as a discovery gives it."""
    row = [topic.uuid, topic.created, topic.expires, topic.owner, topic.seq, topic.advertised, topic.opening]
    (page,) = discovered(desk, ({"rows": [row], "after": None, "sealed": False}, [topic.advertisement]), now)
    assert page.tail is not None
    return page.tail.split(b" ")[1]


def test_a_status_is_signed_once_in_a_while(desk: Desk, signed: list[tuple[str, int]]) -> None:
    """T39: within five seconds the same bytes for everybody; afterwards a new one, of its own moment."""
    topic = renewed()
    first = status_in(desk, topic, NOW)
    for milliseconds in (0, 1, 4999):
        assert status_in(desk, topic, NOW + timedelta(milliseconds=milliseconds)) == first
    assert signed == [(topic.uuid, 9)]
    later = status_in(desk, topic, NOW + timedelta(seconds=5))
    assert payload_of(later)["at"] == format_time(NOW + timedelta(seconds=5))
    assert status_in(desk, topic, NOW + timedelta(seconds=6)) == later
    assert len(signed) == 2
    # A clock that was set back: a status of the future is not given out.
    assert payload_of(status_in(desk, topic, NOW))["at"] == format_time(NOW)
    assert len(signed) == 3


def test_a_change_has_a_status_of_its_own(desk: Desk, signed: list[tuple[str, int]]) -> None:
    """T39: what was signed before a renewal is never given out after it, not even within the five seconds."""
    topic = renewed()
    status_in(desk, topic, NOW)
    after = replace(topic, seq=10, expires="2027-01-05T00:00:00Z")
    told = payload_of(status_in(desk, after, NOW))
    assert (told["seq"], told["expires"]) == (10, "2027-01-05T00:00:00Z")
    assert signed == [(topic.uuid, 9), (topic.uuid, 10)]


def test_statuses_are_read_by_anyone(desk: Desk) -> None:
    """The remembered one verifies as the first did."""
    topic = renewed()
    for _ in range(2):
        said = statements.read(status_in(desk, topic, NOW), statements.by_roots(NET.pki.roots))
        assert said.payload["uuid"] == topic.uuid


def test_statuses_are_not_kept_without_end(desk: Desk, signed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_STATUSES", 10)
    topic = renewed()
    for seq in range(6, 40):
        status_in(desk, replace(topic, seq=seq), NOW)
        assert len(desk.statuses) <= 10
    assert len(signed) == 34
    status_in(desk, replace(topic, seq=39), NOW)
    assert len(signed) == 34, "the last one is still known"


def test_what_never_changed_needs_no_status(desk: Desk, signed: list[tuple[str, int]]) -> None:
    topic = replace(renewed(), seq=5)
    row = [topic.uuid, topic.created, topic.expires, topic.owner, topic.seq, topic.advertised, topic.opening]
    (page,) = discovered(desk, ({"rows": [row], "after": None, "sealed": False}, [topic.advertisement]), NOW)
    assert page.tail == topic.advertisement
    assert signed == []


def test_a_status_takes_no_more_than_is_reckoned(desk: Desk) -> None:
    """The number that answers are cut by is not smaller than a real status with the names of a real network."""
    topic = replace(renewed(), owner="o" * 63, expires=format_time(T0 + 10_000 * HOUR), seq=2**53)
    assert len(status_in(desk, topic, NOW)) <= searching._STATUS_BYTES


# --- changes of what somebody follows ---

CHANGES = 260


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Reader]]:
    """A collection that bob follows, to and from which a topic went many times."""
    path = Path(tmp_path_factory.mktemp("followed")) / "view.db"
    log = NET.log()
    place, topic = log.collection(), log.advertised()
    assert log.change("watch", "bob", uuid=place).status == "accepted"
    for number in range(CHANGES):
        kind = "remove" if number % 2 else "add"
        assert log.change(kind, "alice", collection=place, uuid=topic).status == "accepted"
    view = View(path)
    view.apply_all([(record.seq, record.raw) for record in log.records], durable=False)
    view.close()
    with closing(Reader(path)) as reader:
        yield place, reader


def changes(desk: Desk, reader: Reader, uuid: str, since: Any, who: str = "bob") -> Any:
    entity = NET.entity(who)
    raw = NET.request("changes", {"uuid": uuid, "since": since}, entity, audience="node:n1")
    (answer,) = questions.answer(desk, envelope.authenticate(raw, lambda _: entity.identity), reader, NOW)
    return answer


@pytest.mark.parametrize("page_bytes", [5_000, questions._PAGE_BYTES])
def test_changes_count(desk: Desk, followed: tuple[str, Reader], monkeypatch: pytest.MonkeyPatch, page_bytes: int) -> None:
    """T29: many changes come in several answers, each that can be sent; each says how many there are, and none is missing or twice."""
    monkeypatch.setattr(questions, "_PAGE_BYTES", page_bytes)
    uuid, reader = followed
    versions: list[int] = []
    answers = 0
    while len(versions) < CHANGES:
        answer = changes(desk, reader, uuid, len(versions))
        assert answer.kind == "changed"
        lines = answer.tail.split(b"\n")
        assert len(answer.tail) <= page_bytes
        assert answer.body == {"version": CHANGES, "count": len(lines)}
        versions += [statements.read(line, statements.by_roots(NET.pki.roots)).payload["version"] for line in lines]
        answers += 1
    assert versions == list(range(1, CHANGES + 1))
    assert answers > 1
    assert changes(desk, reader, uuid, CHANGES) == questions.Answer("changed", {"version": CHANGES, "count": 0})


def test_a_version_in_another_spelling(desk: Desk, followed: tuple[str, Reader]) -> None:
    """To JSON, 259.0 is a whole number too; beyond the last there is none, in any spelling."""
    uuid, reader = followed
    assert changes(desk, reader, uuid, float(CHANGES - 1)).body == {"version": CHANGES, "count": 1}
    for later in (CHANGES + 1, float(CHANGES + 1), 10**30):
        with pytest.raises(UsageError, match="there is no version"):
            changes(desk, reader, uuid, later)


def test_changes_of_what_one_does_not_follow(desk: Desk, followed: tuple[str, Reader]) -> None:
    """T35: to its owner who does not follow it, and of what there is not, the same words."""
    uuid, reader = followed
    words = []
    for who, asked in (("alice", uuid), ("bob", fresh_uuid(4711))):
        with pytest.raises(Absent) as caught:
            changes(desk, reader, asked, 0, who)
        words.append(caught.value.message.replace(asked, "UUID"))
    assert words == ["there is no UUID that you follow"] * 2
