"""The checker finds each violation in a history that holds it, and none in the same history without it. No network is needed for that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tdn.protocol.access import Asker
from tests.chaos.checker import Answer, Entry, Log, Sent, _as_answered, _decided_once, _same_everywhere
from tests.chaos.faults import Disturbance
from tests.chaos.race import Books
from tests.chaos.report import stood_still, without_service
from tests.chaos.traffic import Asker as Asking
from tests.chaos.traffic import Market
from tests.chaos.traffic_checker import (
    PUBLISH,
    SUBSCRIBE,
    Got,
    Held,
    Message,
    Shown,
    Traffic,
    Unshown,
    incomplete,
    left_connections,
    left_queues,
)
from tests.unit.rules.tree_model import LIVE, TOPIC, WITHDRAWN, Model, Thing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OPEN, HIDDEN, ENDED = "open", "hidden", "ended"
INSIDER, OUTSIDER = Asker("inge", "here"), Asker("otto", "elsewhere")


def thing(uuid: str, *, state: str = LIVE, **lists: list[str]) -> Thing:
    return Thing(uuid, TOPIC, "alice", NOW, NOW + timedelta(hours=1), "", lists, {}, {}, None, state)


def model() -> Model:
    found = Model()
    found.things = {OPEN: thing(OPEN), HIDDEN: thing(HIDDEN, discover_deny=["otto"]), ENDED: thing(ENDED, state=WITHDRAWN)}
    return found


def sound() -> Traffic:
    """Bob may publish from 1 to 5, carol reads from 1 to 6 and dora always; alice is the owner."""
    return Traffic(
        held=[
            Held("alice", PUBLISH, OPEN, 0.0),
            Held("bob", PUBLISH, OPEN, 1.0, 5.0),
            Held("carol", SUBSCRIBE, OPEN, 1.0, 6.0),
            Held("dora", SUBSCRIBE, OPEN, 0.0),
        ],
        messages={
            "m1": Message("m1", OPEN, "alice", 0.5, 0.6),
            "m2": Message("m2", OPEN, "bob", 4.9, 5.1),
            "refused": Message("refused", OPEN, "bob", 7.0),
        },
        got=[Got("dora", OPEN, "m1", 0.7), Got("dora", OPEN, "m2", 5.2), Got("carol", OPEN, "m2", 6.5)],
        shown={Shown(INSIDER, HIDDEN, "discover"), Shown(OUTSIDER, OPEN, "discover")},
        steady={"dora": OPEN},
    )


def taken_late(traffic: Traffic) -> None:
    traffic.messages["m3"] = Message("m3", OPEN, "bob", 5.01, 5.2)
    traffic.got.append(Got("dora", OPEN, "m3", 5.3))


def taken_from_nobody(traffic: Traffic) -> None:
    traffic.messages["m3"] = Message("m3", OPEN, "mallory", 2.0, 2.1)
    traffic.got.append(Got("dora", OPEN, "m3", 5.3))


def taken_too_early(traffic: Traffic) -> None:
    traffic.messages["m3"] = Message("m3", OPEN, "bob", 0.5, 0.9)
    traffic.got.append(Got("dora", OPEN, "m3", 5.3))


def given_unconfirmed(traffic: Traffic) -> None:
    """The confirmation was lost on its way."""
    traffic.messages["m3"] = Message("m3", OPEN, "bob", 5.01)
    traffic.got.append(Got("dora", OPEN, "m3", 5.3))


def given_before_it_was_allowed(traffic: Traffic) -> None:
    """Confirmed late, when bob had a right already."""
    traffic.messages["m3"] = Message("m3", OPEN, "bob", 0.5, 1.5)
    traffic.got.append(Got("dora", OPEN, "m3", 0.9))


def read_late(traffic: Traffic) -> None:
    traffic.messages["m3"] = Message("m3", OPEN, "alice", 6.1, 6.2)
    traffic.got += [Got("dora", OPEN, "m3", 6.3), Got("carol", OPEN, "m3", 6.3)]


def read_by_nobody(traffic: Traffic) -> None:
    traffic.got.append(Got("mallory", OPEN, "m1", 0.7))


def read_what_nobody_sent(traffic: Traffic) -> None:
    traffic.got.append(Got("dora", OPEN, "m9", 0.7))


def lose(traffic: Traffic) -> None:
    traffic.got.remove(Got("dora", OPEN, "m2", 5.2))


def double(traffic: Traffic) -> None:
    traffic.got.append(Got("dora", OPEN, "m2", 5.4))


def show_what_is_hidden(traffic: Traffic) -> None:
    traffic.shown.add(Shown(OUTSIDER, HIDDEN, "hierarchy"))


def show_what_is_not_there(traffic: Traffic) -> None:
    traffic.shown.add(Shown(INSIDER, "unheard of", "discover"))


def show_nothing(traffic: Traffic) -> None:
    traffic.unshown.append(Unshown("inge", OPEN, "discover", 5.0))


FLAWS: dict[Callable[[Traffic], None], str] = {
    taken_late: "published m3 to open, 10 ms after the end was signed",
    taken_from_nobody: "mallory published m3 to open, never allowed",
    taken_too_early: "bob published m3 to open, never allowed",
    given_unconfirmed: "published m3 to open, 10 ms after the end was signed",
    given_before_it_was_allowed: "bob published m3 to open, never allowed",
    read_late: "carol read m3 of open without a right",
    read_by_nobody: "mallory read m1 of open without a right",
    read_what_nobody_sent: "which nobody published there",
    lose: "dora was not given m2",
    double: "dora was given m2 2 times",
    show_what_is_hidden: "unauthorised: otto was shown hidden by hierarchy",
    show_nothing: "acknowledged and lost: inge was not shown open",
    show_what_is_not_there: "was shown unheard of by discover, which is not in the log",
}


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.__name__)
def test_traffic(flaw: Callable[[Traffic], None]) -> None:
    """T18, T20, T21, T22: of one history, sound but for one thing, exactly that is found."""
    traffic = sound()
    assert traffic.violations(model()) == []
    flaw(traffic)
    (found,) = traffic.violations(model())
    assert FLAWS[flaw] in found


async def test_answered_with_nothing() -> None:
    """T22: an asker writes down that it was not shown what was there all the time; of a question that was not about it, nothing."""
    client = SimpleNamespace(asker=INSIDER, identity=SimpleNamespace(name=SimpleNamespace(id="inge")))
    traffic = Traffic(steady={"dora": OPEN})
    asker = Asking(cast(Any, client), Market(traffic, Books()), Random(1), lambda: (OPEN, OPEN))

    async def answers(*uuids: str) -> AsyncIterator[Any]:
        for uuid in uuids:
            yield SimpleNamespace(uuid=uuid)

    await asker._look("discover", answers(HIDDEN, OPEN))
    await asker._look("hierarchy", answers())
    assert traffic.unshown == []
    await asker._look("discover", answers(HIDDEN))
    assert [(one.asker, one.uuid) for one in traffic.unshown] == [("inge", OPEN)]


def test_reading_anew_may_repeat() -> None:
    """T20: who begins to read anew may be given again what it had not finished with."""
    traffic = sound()
    traffic.got.append(Got("dora", OPEN, "m2", 5.4, reading=1))
    assert traffic.violations(model()) == []


def test_nodes_show_what_is_there() -> None:
    """T22: a live topic that a node does not show is lost; one that it shows although it has ended is too much."""
    soon: dict[str, Any] = {"ends_after": NOW, "word": "all"}
    assert list(incomplete({"n1": [OPEN, HIDDEN]}, model(), INSIDER, **soon)) == []
    assert "lost: n1 does not show hidden" in next(incomplete({"n1": [OPEN]}, model(), INSIDER, **soon))
    assert "shows ended" in next(incomplete({"n1": [OPEN, HIDDEN, ENDED]}, model(), INSIDER, **soon))
    assert "shows hidden" in next(incomplete({"n1": [OPEN, HIDDEN]}, model(), OUTSIDER, **soon))
    # What ends within moments may be shown or not.
    assert list(incomplete({"n1": []}, model(), INSIDER, ends_after=NOW + timedelta(hours=2), word="all")) == []


UUID = "6f1c0000-0000-4000-8000-000000000000"
SECRET = "a" * 32


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("tdn.log", {}, None),
        (f"tdn.node.n1.{SECRET}", {}, None),
        (f"tdn.node.n9.{SECRET}", {}, "belongs to nobody"),
        (f"tdn.guards.g1.{SECRET}", {}, None),
        (f"tdn.heads.g1.{SECRET}", {}, "belongs to nobody"),
        ("amq.gen-x", {}, "belongs to nobody"),
        (f"Entity.carol.{SECRET}", {"x-expires": 1}, None),
        (f"Entity.carol.{SECRET}", {}, "would stay for ever"),
        (f"Entity.mallory.{SECRET}", {"x-expires": 1}, "belongs to nobody who is known"),
        (f"Feed.dora.{UUID}.{SECRET}", {}, None),
        (f"Feed.dora.{UUID}.{'b' * 32}", {}, "belongs to no subscription"),
        (f"Feed.carol.{UUID}.{SECRET}", {}, "was left to who lost the right"),
    ],
)
def test_queues_that_are_left(name: str, arguments: dict[str, int], found: str | None) -> None:
    """T22: a queue that no living principal owns is found."""
    held = [replace(right, topic=UUID) for right in sound().held]
    feeds = {(UUID, "dora", SECRET), (UUID, "carol", SECRET)}
    entities = {"alice", "bob", "carol", "dora"}
    queues = [{"name": name, "arguments": arguments}]
    left = list(left_queues(queues, nodes=["n1"], guards=["g1"], entities=entities, feeds=feeds, held=held))
    assert [found is not None and found in one for one in left] == ([True] if found else [])


def test_queues_of_a_connection_that_is_gone() -> None:
    """T22: a node has one queue of each kind; what its earlier connections had is gone with them."""
    queues = [{"name": f"tdn.guards.n1.{secret}", "arguments": {}} for secret in (SECRET, "b" * 32)]
    left = list(left_queues(queues, nodes=["n1"], guards=["g1"], entities=(), feeds=(), held=()))
    assert ["is one of 2" in one for one in left] == [True, True]


NODE, GUARD, CAROL = (f"tdn:{who}:{'0' * 64}" for who in ("node:n1", "guard:g1", "entity:carol"))


@pytest.mark.parametrize(
    ("users", "channels", "found"),
    [
        ([NODE, NODE, NODE, GUARD], 12, []),
        ([NODE] * 4, 12, ["node:n1 has 4 connections"]),
        ([CAROL], 1, [f"a connection of '{CAROL}' was left"]),
        ([None], 0, ["a connection of None was left"]),
        ([GUARD], 31, ["guard:g1 has 31 channels on one connection"]),
    ],
)
def test_connections_that_are_left(users: list[str | None], channels: int, found: list[str]) -> None:
    """T22: a connection that no node and no guard needs is found, and so are channels that gather."""
    assert list(left_connections([{"user": user, "channels": channels} for user in users])) == found


def entry(seq: int, status: str, request: str, receipt: dict[str, object] | None) -> Entry:
    return Entry(seq, "advertise", status, {"request": request, "receipt": receipt, "error": None}, b"")


def log(*entries: Entry) -> Log:
    return Log(list(entries), [(one.seq, 0, one.kind, one.status, one.outcome, "", one.raw) for one in entries])


def test_requests() -> None:
    """T22: acknowledged and not in the log, taken by the broker and lost, decided twice, answered otherwise: each is found."""
    first = entry(1, "accepted", "entity:alice/1", {"seq": 1})
    sent = Sent("entity:alice/1", "advertise", True, 1, [Answer("decided", {}, {"seq": 1})])
    right = log(first)
    assert [*_as_answered(right.outcomes(), [sent]), *_decided_once(right, right.outcomes())] == []
    assert "is not in the log" in list(_as_answered({}, [sent]))[1]
    assert "is lost" in next(_as_answered({}, [replace(sent, answers=[])]))
    assert "was answered" in next(_as_answered(right.outcomes(), [replace(sent, answers=[Answer("decided", {}, {"seq": 2})])]))
    twice = log(first, entry(2, "accepted", "entity:alice/1", {"seq": 2}))
    assert "was decided 2 times" in next(_decided_once(twice, twice.outcomes()))
    assert "another node as refused" in next(_same_everywhere({"n1": right}, log(replace(first, status="refused"))))


def test_time_without_service() -> None:
    """T22: from the fault, or from the last one served after it, until somebody is served again."""
    fault = Disturbance("kill a node", began=10.0, undone=11.0, over=20.0)
    assert without_service(fault, [9.0, 10.5, 14.0, 19.0, 21.0]) == pytest.approx(5.0)
    assert without_service(fault, [1.0, 29.0]) == pytest.approx(19.0)
    assert without_service(fault, [10.5 + step for step in range(12)]) == pytest.approx(1.0)


def test_standing_still() -> None:
    """T22: a fault that leaves enough brokers and nodes stops nothing for long; for one that does not, nobody is blamed."""
    steady = [float(moment) for moment in range(90)]
    sound = {"change": steady, "discover": steady, "publish": steady}
    fault = Disturbance("kill a broker", began=10.0, undone=11.0, over=60.0)
    assert list(stood_still([fault], sound)) == []
    gap = sound | {"publish": [moment for moment in steady if not 20 < moment < 45]}
    assert list(stood_still([fault], gap)) == ["nobody was served (publish) for 25.0 s: kill a broker"]
    assert list(stood_still([replace(fault, leaves=("discover",))], gap)) == []
    assert len(list(stood_still([replace(fault, leaves=("publish",))], gap))) == 1
    assert len(list(stood_still([fault], {}))) == 3, "nor is it enough that nobody asked"
