"""`entity discover`, the options of `create` that say who may know, `advertise` and `answer`, as a user types them."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tdn.protocol.names import mint_uuid
from tests.live import LiveNetwork, Ran, descendants, is_alive, run, wait_for

pytestmark = pytest.mark.broker


class As:
    """An entity at its terminal."""

    def __init__(self, live: LiveNetwork, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self.before = ("--home", live.home.folder, "--as", self.name)

    def __call__(self, *words: str | Path, **how: Any) -> Ran:
        return run("entity", *self.before, *words, **how)

    def uuids(self, *words: str) -> set[str]:
        ran = self("--json", "discover", *words)
        assert ran.code == 0, ran.err
        return {line["uuid"] for line in ran.lines}

    def topic(self, *words: str | Path) -> dict[str, Any]:
        ran = self("--json", "create", *words)
        assert ran.code == 0, ran.err
        return ran.one


@dataclass(frozen=True)
class Scene:
    """Alice's topics, with a word that nothing else has and lifetimes of their own; bob of ACME may see all, carol not the last."""

    alice: As
    bob: As
    carol: As
    word: str
    seconds: int
    topics: dict[str, dict[str, Any]]

    def named(self, *names: str) -> set[str]:
        return {self.topics[name]["uuid"] for name in names}


@pytest.fixture(scope="module")
def scene(live: LiveNetwork, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    alice, bob, carol = (
        As(live, live.entity(name, institution=place))
        for name, place in (("alice", "ACME"), ("bob", "ACME"), ("carol", "Elsewhere"))
    )
    word, seconds = f"w{secrets.token_hex(6)}", 200_000_000 + secrets.randbelow(50_000) * 1_000
    document = tmp_path_factory.mktemp("scene") / "a.xml"
    document.write_text(f"<obs run='{word}'><speed unit='kn'>7</speed></obs>")
    assert bob("locate").code == 0, "known from now on"

    def lifetime(number: int) -> tuple[str, str]:
        return "--lifetime", f"{seconds + number}s"

    topics = {
        "path": alice.topic("--path", f"{word}/weather/oslo", *lifetime(0)),
        "text": alice.topic("--text", f"{word} wind over the fjord", "--keyword", "gusts", *lifetime(1)),
        "properties": alice.topic("--property", f"tag={word}", "--property", "height=12", *lifetime(2)),
        "xml": alice.topic("--xml", document, *lifetime(3)),
        "hidden": alice.topic(
            *("--path", f"{word}/hidden", "--discover-allow", bob.name, "--discover-allow", "institution:Elsewhere"),
            *("--discover-deny", carol.name, *lifetime(4)),
        ),
        "sealed": alice.topic("--text", f"{word} sunken", "--sealed-for", bob.name, *lifetime(5)),
    }
    for node in ("n1", "n2"):
        for topic in topics.values():
            wait_for(lambda node=node, topic=topic: live.fact("topic", topic["uuid"], node), f"{node} to have it")
    return Scene(alice, bob, carol, word, seconds, topics)


QUERIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "string": ("--string", "{w} FJORD", ("text",)),
    "regex": ("--regex", "^{w}/w[a-z]+/", ("path",)),
    "sql": ("--sql", "tag = '{w}' AND height BETWEEN 10 AND 20", ("properties",)),
    "sql select": ("--sql", "SELECT * FROM topics WHERE path LIKE '{w}/%' AND institution = 'ACME'", ("path", "hidden")),
    "xpath": ("--xpath", "//obs[@run = '{w}']/speed > 5", ("xml",)),
    "xquery": ("--xquery", "for $o in //obs where $o/@run = '{w}' return $o/speed", ("xml",)),
    "sealed": ("--string", "{w} sunken", ("sealed",)),
}


@pytest.mark.parametrize("case", QUERIES)
def test_languages(scene: Scene, case: str) -> None:
    """T9, T13: one option for each language; a table for people, objects for programs."""
    option, query, names = QUERIES[case]
    ran = scene.bob("--json", "discover", option, query.format(w=scene.word))
    assert (ran.code, ran.err) == (0, "")
    assert {line["uuid"] for line in ran.lines} == scene.named(*names)
    assert len(ran.lines) == len(names)
    if case == "string":
        table = scene.bob("discover", option, query.format(w=scene.word))
        head, line = table.out.splitlines()
        assert head.split() == ["UUID", "CREATOR", "EXPIRES", "IN", "ABOUT"]
        assert line.startswith(scene.topics["text"]["uuid"])
        assert "wind over the fjord | gusts" in line
        assert (table.code, table.err) == (0, "")


def test_times(scene: Scene) -> None:
    """T14: alone and with a query; a sealed topic is listed by time, and shows nothing to who cannot open it."""

    def valid(first: int, last: int) -> tuple[str, ...]:
        return "--valid-at-least", f"{scene.seconds + first}s", "--valid-at-most", f"{scene.seconds + last}s"

    everything = scene.named(*scene.topics)
    assert scene.bob.uuids(*valid(0, 5)) == everything
    assert scene.bob.uuids(*valid(1, 2), "--string", scene.word) == scene.named("text", "properties")
    first, last = scene.topics["path"], scene.topics["sealed"]
    assert scene.bob.uuids(*valid(0, 5), "--created-after", first["created"], "--expires-after", first["expires"]) == everything
    assert scene.bob.uuids(*valid(0, 5), "--created-before", first["created"]) == set()
    assert scene.bob.uuids(*valid(0, 0), "--expires-before", last["expires"], "--expires-after", first["expires"]) == scene.named(
        "path"
    )
    carols = scene.carol("discover", *valid(5, 5))
    assert last["uuid"] in carols.out
    assert "(sealed)" in carols.out
    assert scene.word not in carols.out


def test_limit_cursor_and_nodes(scene: Scene) -> None:
    """T15, T16: the next cursor stands on stderr, whatever the format; results alone on stdout."""
    seen: list[str] = []
    words: tuple[str, ...] = ()
    for _ in range(3):
        ran = scene.bob("--json", "discover", "--string", scene.word, "--limit", "2", *words)
        assert ran.code == 0
        seen += [line["uuid"] for line in ran.lines]
        cursor = re.search(r"there is more: --cursor (\S+)", ran.err)
        if cursor is None:
            break
        words = ("--cursor", cursor[1])
    assert len(seen) == len(set(seen))
    assert set(seen) == scene.named(*scene.topics)
    assert scene.bob.uuids("--string", scene.word, "--node", "n2") == set(seen)


def test_count(scene: Scene) -> None:
    """T18: how many one may see; for each node that is named. Sealed ones are not counted with a query."""
    for who, many in ((scene.bob, 5), (scene.carol, 4)):
        ran = who("--json", "discover", "--string", scene.word, "--count", "--node", "n1", "--node", "n2")
        assert (ran.code, ran.lines) == (0, [{"node": "n1", "count": many}, {"node": "n2", "count": many}])
    people = scene.bob("discover", "--sql", f"tag = '{scene.word}'", "--count", "--node", "n2")
    assert people == Ran(0, "1 at node n2\n", "")
    ran = scene.bob("--json", "discover", "--string", scene.word, "--count")
    assert ran.one["node"] in ("n1", "n2")


# --- errors --------------------------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, str, int | None]] = {
    "regex": ("--regex", "a(b", 1),
    "sql": ("--sql", "height >> 3", 8),
    "sql comment": ("--sql", "height > 3 -- all", 11),
    "xpath": ("--xpath", "//a[@b = ]", 9),
    "xpath doc": ("--xpath", "doc('x')", 0),
    "xquery": ("--xquery", "for $x in //a retrun $x", 14),
    "xquery function": ("--xquery", "1 + unparsed-text('file:///etc/passwd')", 4),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_query_is_pointed_at(scene: Scene, case: str) -> None:
    """T13: exit 2; for people the query with a mark below the place, for programs the position."""
    option, query, position = WRONG[case]
    ran = scene.bob("--json", "discover", option, query)
    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "usage")
    assert ran.error["detail"]["position"] == position, ran.error
    if case not in ("sql", "xquery"):
        return
    people = scene.bob("discover", option, query)
    assert (people.code, people.out) == (2, "")
    error, shown, mark = people.err.splitlines()
    assert error.startswith("error: ")
    assert (shown, mark) == (f"  {query}", f"  {' ' * (position or 0)}^")


def test_a_wrong_line_of_many_is_pointed_at(scene: Scene) -> None:
    people = scene.bob("discover", "--xpath", "//a[\n  @b = ]\n")
    assert people.err.splitlines()[1:] == ["    @b = ]", "         ^"]
    long = scene.bob("discover", "--sql", f"{'a = 1 AND ' * 30}b = = 2")
    _, shown, mark = long.err.splitlines()
    assert len(shown) < 110
    assert shown[mark.index("^")] == "="


CONFLICTS: dict[str, tuple[str | Path, ...]] = {
    "two languages": ("discover", "--string", "a", "--regex", "b"),
    "nothing at all": ("discover",),
    "a node alone": ("discover", "--node", "n1"),
    "count with cursor": ("discover", "--string", "a", "--count", "--cursor", "2026-01-01T00:00:00Z_x"),
    "time that is none": ("discover", "--created-after", "yesterday"),
    "time of no day": ("discover", "--created-after", "2026-02-31T00:00:00Z"),
    "duration that is none": ("discover", "--valid-at-least", "-5s"),
    "limit beyond all": ("discover", "--string", "a", "--limit", "10001"),
    "limit that is none": ("discover", "--string", "a", "--limit", "many"),
    "cursor that is none": ("discover", "--string", "a", "--cursor", "x"),
    "allowed nobody": ("create", "--path", "a", "--discover-allow", ""),
    "allowed no entity": ("create", "--path", "a", "--discover-allow", "Not An Id"),
    "sealed for an institution": ("create", "--path", "a", "--sealed-for", "institution:ACME"),
    "query that is too long": ("discover", "--string", "x" * 100_000),
    "query that is not UTF-8": ("discover", "--string", b"a\xff\xfeb".decode("utf-8", "surrogateescape")),
    "regex that is not UTF-8": ("discover", "--regex", b"a\xff\xfeb".decode("utf-8", "surrogateescape")),
    "sql that is not UTF-8": ("discover", "--sql", b"a = '\xff\xfeb'".decode("utf-8", "surrogateescape")),
    "xpath that is not UTF-8": ("discover", "--xpath", b"//a = '\xff\xfeb'".decode("utf-8", "surrogateescape")),
    "xquery that is not UTF-8": ("discover", "--xquery", b"//a = '\xff\xfeb'".decode("utf-8", "surrogateescape")),
    "path that is not UTF-8": ("create", "--path", b"a/\xff\xfeb".decode("utf-8", "surrogateescape")),
}


def test_usage(scene: Scene) -> None:
    """Exit 2, nothing on stdout, one object on stderr."""
    with ThreadPoolExecutor(2) as pool:
        ran = dict(zip(CONFLICTS, pool.map(lambda words: scene.bob("--json", *words), CONFLICTS.values()), strict=True))
    for mistake, done in ran.items():
        assert (done.code, done.out) == (2, ""), (mistake, done)
        assert done.error["error"] == "usage", mistake
        assert len(done.err.splitlines()) == 1, mistake


def test_exit_codes_of_nodes(scene: Scene) -> None:
    """Exit 3 when the named node is not there; 6 when there is no such entity to seal for; 0 when nothing is found."""
    assert scene.bob("--timeout", "2s", "discover", "--string", "a", "--node", "n9").code == 3
    sealed = scene.alice("--json", "create", "--path", "a", "--sealed-for", "nobody-of-that-name")
    assert (sealed.code, sealed.error["error"]) == (6, "absent")
    nothing = scene.bob("discover", "--sql", f"tag = '{mint_uuid()}'")
    assert nothing == Ran(0, "", "nothing found\n")


def test_refused_by_a_limit(particular: LiveNetwork) -> None:
    """T13: exit 5, and a sentence that says what to do."""
    bob = As(particular, particular.entity("bob"))
    query = "declare function local:f($n) { local:f($n + 1) }; local:f(1)"
    made = bob("--json", "create", "--xml", "-", stdin="<a/>")
    assert made.code == 0, made.err
    wait_for(lambda: particular.fact("topic", made.one["uuid"], "n1"), "n1 to have it")
    ran = bob("--json", "discover", "--xquery", query, "--node", "n1")
    assert (ran.code, ran.error["error"], ran.out) == (5, "refused", "")
    assert ran.error["message"] == "the query took longer than 2 s and was stopped; make it more selective"
    declined = bob("--json", "discover", "--string", "a", "--node", "n2")
    assert (declined.code, declined.error["error"]) == (5, "refused")
    assert "institution:physics" in declined.error["message"]
    unnoticed = bob("discover", "--xpath", "/a")
    assert unnoticed.code == 0
    assert "node n2 answers others only, by its policy" in unnoticed.err
    located = {line["node"]: line["policy"] for line in bob("--json", "locate").lines}
    assert located["n2"]["answers"] == ["institution:physics"]
    assert "institution:physics" in bob("locate").out


# --- who may know --------------------------------------------------------------------------------------------------------------------


def test_show_for_the_owner_and_for_others(scene: Scene) -> None:
    """T9, T18: the owner is told its lists; others neither these nor that there are any; who may not see it learns nothing."""
    hidden, sealed = scene.topics["hidden"], scene.topics["sealed"]
    assert hidden["discover_allow"] == sorted([scene.bob.name, "institution:Elsewhere"])
    assert hidden["discover_deny"] == [scene.carol.name]
    owner = scene.alice("--json", "show", hidden["uuid"]).one
    assert (owner["discover_allow"], owner["discover_deny"]) == (hidden["discover_allow"], hidden["discover_deny"])
    people = scene.alice("show", hidden["uuid"]).out
    assert re.search(rf"^discoverable by +.*{scene.bob.name}", people, re.M)
    assert re.search(rf"^hidden from +{scene.carol.name}$", people, re.M)

    other = scene.bob("--json", "show", hidden["uuid"]).one
    assert not {"discover_allow", "discover_deny", "opening"} & other.keys()
    assert "hidden from" not in scene.bob("show", hidden["uuid"]).out
    barred, absent = scene.carol("--json", "show", hidden["uuid"]), scene.carol("--json", "show", unknown := mint_uuid())
    assert barred.code == absent.code == 6
    words = [json.dumps(ran.error).replace(uuid, "X") for ran, uuid in ((barred, hidden["uuid"]), (absent, unknown))]
    assert words[0] == words[1]
    assert hidden["uuid"] not in scene.carol.uuids("--string", scene.word)

    for who in (scene.alice, scene.bob):
        shown = who("--json", "show", sealed["uuid"]).one
        assert (shown["sealed"], shown["descriptor"]["text"]) == (True, f"{scene.word} sunken")
        assert re.search(r"^sealed +for you$", who("show", sealed["uuid"]).out, re.M)
    shown = scene.carol("--json", "show", sealed["uuid"]).one
    assert (shown["sealed"], shown["descriptor"]) == (True, {"kind": "sealed"})
    assert re.search(r"^about +\(sealed\)$", scene.carol("show", sealed["uuid"]).out, re.M)


def test_advertise_what_was_kept(scene: Scene, tmp_path: Path) -> None:
    """T7, T18: from the JSON line; from the signed bytes where they were made; elsewhere they say too little, which is told."""
    words = ("--json", "create", "--no-advertise", "--discover-allow", scene.bob.name, "--path")
    first, second = scene.alice(*words, "kept/line"), scene.alice(*words, "kept/bytes")
    copy = shutil.copytree(scene.alice.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("unadvertised"))
    elsewhere = run("entity", "--credentials", copy, "--json", "advertise", "-", stdin=second.one["advertisement"])
    assert (elsewhere.code, elsewhere.error["error"], elsewhere.out) == (2, "usage", "")
    assert "give the JSON line that `entity create --no-advertise --json` printed" in elsewhere.error["message"]
    assert run("entity", "--credentials", copy, "--json", "advertise", "-", stdin=first.out).code == 0
    assert scene.alice("--json", "advertise", "-", stdin=second.one["advertisement"]).code == 0
    assert not [*(scene.alice.folder / "unadvertised").glob(f"{second.one['uuid']}*")], "kept no longer than needed"
    for kept in (first.one, second.one):
        seen = wait_for(lambda kept=kept: (ran := scene.bob("--json", "show", kept["uuid"])).code == 0 and ran, "bob to see it")
        assert seen.one["advertisement"] == kept["advertisement"]
        assert scene.carol("show", kept["uuid"]).code == 6
    tampered = {**first.one, "opening": {"access": {"salt": "A" * 22, "value": {}}}}
    lied = scene.alice("--json", "advertise", "-", stdin=json.dumps(tampered))
    assert (lied.code, lied.error["error"]) == (4, "trust")


# --- answering -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def answering(live: LiveNetwork, scene: Scene) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [Path(sys.executable).parent / "entity", *map(str, scene.alice.before), "answer"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_answer_ends_in_order(live: LiveNetwork, scene: Scene, answering: subprocess.Popen[str], number: signal.Signals) -> None:
    """T17: it says when it is ready and for how much; told to end, it leaves nothing behind. Nobody else notices."""
    before = run("tdn", "--home", live.home.folder, "--json", "status")
    assert answering.stderr is not None
    ready = answering.stderr.readline()
    assert re.match(rf"ready to answer for [0-9]+ topics of {scene.alice.name} while no node is there; Ctrl-C ends it", ready)
    started = descendants(answering.pid)
    assert started
    after = run("tdn", "--home", live.home.folder, "--json", "status")
    assert [(line["id"], line["pid"], line["alive"]) for line in before.lines] == [
        (line["id"], line["pid"], line["alive"]) for line in after.lines
    ]
    answering.send_signal(number)
    out, err = answering.communicate(timeout=20)
    assert (answering.returncode, out, err) == (0, "", "")
    wait_for(lambda: not any(map(is_alive, started)), "what it started to end")
    kept = scene.alice.folder / "answering.json"
    assert kept.stat().st_mode & 0o777 == 0o600
