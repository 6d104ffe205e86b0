"""`entity hierarchy`, `entity collection` and `entity countersign` as installed: what they print where, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, Topic, lists, path
from entity_client.cli.main import build_parser
from tdn.cli import output
from tdn.protocol.trees import Gathering, Hosting
from tdn.trust import credentials, statements
from tests.live import LiveNetwork, Ran, run, wait_for

pytestmark = pytest.mark.broker

TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
UUID = "6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"
HUGE = "9" * 5000
OPEN = Hosting(allow_children=True)


class Watcher:
    """A watch command that runs: what it has printed so far, and how it ends."""

    def __init__(self, folder: Path, words: tuple[str | Path, ...], number: int) -> None:
        self._out, self._err = folder / f"watch-{number}.out", folder / f"watch-{number}.err"
        inherited = {key: value for key, value in os.environ.items() if key not in ("TDN_HOME", "TDN_ENTITY")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [str(Path(sys.executable).parent / "entity"), *map(str, words)]
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=inherited)

    @property
    def out(self) -> list[str]:
        return self._out.read_text("utf-8").splitlines()

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out]

    def ready(self) -> str:
        """Wait until it says that it follows; what it says."""
        wait_for(lambda: "following" in self.err or self.process.poll() is not None, "the watcher to follow")
        assert "following" in self.err, self.err
        return self.err

    def shows(self, count: int) -> list[str]:
        wait_for(lambda: len(self.out) >= count or self.process.poll() is not None, f"{count} changes")
        return self.out

    def end(self, number: signal.Signals | None = None) -> int:
        """Its exit code, when it has ended; by a signal, if one is given."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(20)


class As:
    """An entity at its terminal."""

    def __init__(self, live: LiveNetwork, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self._live = live
        self._before = ("--home", live.home.folder, "--as", self.name)
        self.watchers: list[Watcher] = []

    def __call__(self, *words: str | Path, **how: Any) -> Ran:
        return run("entity", *self._before, *words, **how)

    def does(self, *words: str | Path, **how: Any) -> dict[str, Any]:
        """A command that must succeed, and the one object that it prints. Both nodes have its effect."""
        ran = self("--json", *words, **how)
        assert ran.code == 0, ran.err
        if receipt := ran.one.get("receipt"):
            self._at_both(
                statements.read(receipt.encode(), statements.by_roots(credentials.load(self.folder).roots)).payload["seq"]
            )
        return ran.one

    def topic(self, **how: Any) -> str:
        """A topic that another command needs, made by the library: a command takes ten times as long."""
        return self._made(lambda client: client.create(path("topic"), **how))

    def collection(self, gathering: Gathering = Gathering(), **how: Any) -> str:  # noqa: B008  frozen
        return self._made(lambda client: client.create_collection(path("collection"), gathering, **how))

    def withdraw(self, uuid: str) -> None:
        async def end() -> None:
            async with await EntityClient.connect(self.folder) as client:
                self._at_both((await client.withdraw(uuid)).seq)

        asyncio.run(end())

    def _made(self, make: Callable[[EntityClient], Awaitable[Topic]]) -> str:
        async def create() -> str:
            async with await EntityClient.connect(self.folder) as client:
                topic = await make(client)
                self._at_both(client.seen)
                return topic.uuid

        return asyncio.run(create())

    def _at_both(self, seq: int) -> None:
        for node in ("n1", "n2"):
            wait_for(lambda node=node: self._live.records(node, "seq = ?", seq), f"{node} to have it")

    def watch(self, *words: str | Path) -> Watcher:
        self.watchers.append(Watcher(self.folder, (*self._before, *words), len(self.watchers)))
        return self.watchers[-1]


@pytest.fixture
def alice(live: LiveNetwork) -> Iterator[As]:
    yield from _at_terminal(live, "alice")


@pytest.fixture
def bob(live: LiveNetwork) -> Iterator[As]:
    yield from _at_terminal(live, "bob")


def _at_terminal(live: LiveNetwork, name: str) -> Iterator[As]:
    entity = As(live, live.entity(name))
    yield entity
    for watcher in entity.watchers:
        with contextlib.suppress(ProcessLookupError):
            watcher.process.kill()
        watcher.process.wait(10)


def at_once(*commands: Any) -> list[Ran]:
    """Commands beside each other: each is mostly a start of Python."""
    with ThreadPoolExecutor(4) as pool:
        return [future.result() for future in [pool.submit(command) for command in commands]]


# --- hierarchies ---------------------------------------------------------------------------------------------------------------------


def test_children_and_trees(alice: As, bob: As) -> None:
    """T23 to T27: created below each other with every option; parents, children and tree in objects and for people."""
    root = alice.does("create", "--path", "root", "--allow-children", "--max-depth", "3", "--max-width", "2", "--lifetime", "1h")
    assert (root["allow_children"], root["max_depth"], root["max_width"]) == (True, 3, 2)
    lists = ("--hierarchy-allow", "*", "--hierarchy-deny", "foe", "--register-allow", alice.name, "--register-deny", "foe")
    middle = bob.does("create", "--path", "middle", "--parent", root["uuid"], "--allow-children", "--lifetime", "2d", *lists)
    assert middle["parent"] == root["uuid"]
    assert (middle["hierarchy_allow"], middle["hierarchy_deny"]) == (["*"], ["foe"])
    assert (middle["register_allow"], middle["register_deny"]) == ([alice.name], ["foe"])
    assert (middle["expires"], middle["cut"]) == (root["expires"], True)
    below = alice.does("create", "--path", "below", "--parent", middle["uuid"], "--node", "n2")
    assert below["node"] == "n2"
    uuids = [topic["uuid"] for topic in (root, middle, below)]

    tree, children, parents, deep, people = at_once(
        lambda: bob("--json", "hierarchy", "tree", uuids[0]),
        lambda: bob("hierarchy", "children", uuids[0], "--json"),
        lambda: bob("--json", "hierarchy", "parents", uuids[2]),
        lambda: bob("--json", "hierarchy", "tree", uuids[0], "--depth", "1"),
        lambda: bob("hierarchy", "tree", uuids[0]),
    )
    assert {ran.code for ran in (tree, children, parents, deep, people)} == {0}
    assert [(line["uuid"], line["depth"], line.get("parent")) for line in tree.lines] == [
        (uuids[0], 0, None),
        (uuids[1], 1, uuids[0]),
        (uuids[2], 2, uuids[1]),
    ]
    assert all(set(line) >= {"kind", "creator", "owner", "descriptor", "advertisement", "expires"} for line in tree.lines)
    assert [line["uuid"] for line in children.lines] == [uuids[1]]
    assert [(line["uuid"], line["depth"]) for line in parents.lines] == [(uuids[1], 1), (uuids[0], 2)]
    assert [line["uuid"] for line in deep.lines] == uuids[:2]
    head, *rows = people.out.splitlines()
    assert head.split() == ["UUID", "OWNER", "EXPIRES", "IN", "ABOUT"]
    assert [row.split()[0] for row in rows] == uuids
    assert [len(row) - len(row.rstrip("abcdefghijklmnopqrstuvwxyz")) for row in rows] == [4, 6, 5]
    assert [row[row.index(name) - 2 : row.index(name)] for row, name in zip(rows[1:], ("middle", "below"), strict=True)] == [
        "  ",
        "  ",
    ]
    assert rows[1].index("middle") == rows[0].index("root") + 2
    assert rows[2].index("below") == rows[0].index("root") + 4

    shown, none = at_once(lambda: bob("show", uuids[1]), lambda: bob("hierarchy", "children", uuids[2]))
    for words in ("parent", root["uuid"], "children", "allowed", "place shown to", "children by", alice.name):
        assert words in shown.out
    assert (none.code, none.out, none.err) == (0, "", "nothing found\n")


def test_children_that_are_refused(alice: As, bob: As) -> None:
    """T24: exit 5 with which limit; what cannot be seen, has ended or never was: 5, in the same words."""
    root = alice.topic(hosting=Hosting(True, 2, 1))
    hidden = alice.topic(hosting=OPEN, lists=lists([alice.name]))
    ended = alice.topic(hosting=OPEN)
    alice.withdraw(ended)
    below = ("--json", "create", "--path", "a", "--parent")
    alone = alice.topic()
    deep, unlimited, sterile, *gone = at_once(
        lambda: bob(*below, root, "--max-depth", "2"),
        lambda: bob(*below, root, "--max-width", "0"),
        lambda: bob(*below, alone),
        lambda: bob(*below, hidden),
        lambda: bob(*below, ended),
        lambda: bob(*below, UUID),
    )
    assert (deep.code, deep.error["error"], "MaxDepth" in deep.error["message"]) == (5, "refused", True)
    assert (unlimited.code, "MaxWidth" in unlimited.error["message"]) == (5, True)
    assert (sterile.code, "does not take child topics" in sterile.error["message"]) == (5, True)
    assert {ran.code for ran in gone} == {5}
    assert len({ran.error["message"].replace(uuid, "X") for ran, uuid in zip(gone, (hidden, ended, UUID), strict=True)}) == 1
    bob.topic(parent=root)
    full = bob("create", "--path", "a", "--parent", root)
    assert (full.code, full.out) == (5, "")
    assert full.err == f"error: topic {root} has all the children that it may have (MaxWidth 1)\n"


def test_kept_and_cut(alice: As, tmp_path: Path) -> None:
    """T7, T26: a child that is not advertised yet says how long its slot is kept; a lifetime that was cut is told to people too."""
    root = alice.topic(hosting=OPEN, lifetime=timedelta(hours=1))
    kept = alice("create", "--path", "kept", "--parent", root, "--no-advertise")
    assert (kept.code, "within a minute" in kept.err) == (0, True)
    line = alice("--json", "create", "--path", "kept", "--parent", root, "--no-advertise", "--lifetime", "1m")
    (tmp_path / "line.json").write_text(line.out)
    assert alice.does("advertise", tmp_path / "line.json")["uuid"] == line.one["uuid"]
    assert "cut" not in line.one
    longer = alice("create", "--path", "longer", "--parent", root, "--lifetime", "2h")
    assert ", when its parent ends" in longer.out
    renewed = alice("renew", line.one["uuid"], "--lifetime", "30d")
    assert (renewed.code, ", when its parent ends" in renewed.out) == (0, True)


# --- collections ---------------------------------------------------------------------------------------------------------------------


def test_collections(live: LiveNetwork, alice: As, bob: As) -> None:
    """T31 to T36: created with every option, filled, looked at, moved, emptied."""
    topic, other = alice.topic(), alice.topic()
    full = alice.does(
        *("collection", "create", "--text", "Everything", "--keyword", "all", "--lifetime", "2h", "--node", "n1"),
        *("--max-breadth", "7", "--max-depth", "6", "--max-topics", "5", "--allow-child-collections", "--allow-inclusion"),
        *("--member", topic, "--discover-allow", "*", "--discover-deny", "foe", "--add-allow", bob.name, "--add-deny", "foe"),
        *("--owner-allow", "*", "--owner-deny", "foe", "--watch-allow", bob.name, "--watch-deny", "foe"),
        *("--include-allow", bob.name, "--include-deny", "foe", "--synopsis-type", "tags"),
    )
    assert set(full) >= {"uuid", "kind", "creator", "owner", "created", "expires", "descriptor", "synopsis", "node", "receipt"}
    assert (full["kind"], full["fixed"], full["node"]) == ("collection", False, "n1")
    assert full["limits"] == {"breadth": 7, "depth": 6, "topics": 5}
    assert full["notifications"] not in (full["uuid"], topic)
    assert full["members"] == [topic]
    for subject in ("add", "watch", "include"):
        assert (full[f"{subject}_allow"], full[f"{subject}_deny"]) == ([bob.name], ["foe"])
    assert full["owner_allow"] == full["discover_allow"] == ["*"]
    uuid = full["uuid"]
    part = alice.collection(Gathering(fixed=True, inclusion=True), members=[other])

    added = alice.does("collection", "add", uuid, part)
    assert (added["kind"], added["collection"], added["uuid"]) == ("add", uuid, part)
    assert run("tdn", "--home", live.home.folder, "verify", "-", stdin=json.dumps(added)).code == 0
    topics, collections, holders, shown, found, people, table = at_once(
        lambda: bob("--json", "collection", "topics", uuid),
        lambda: bob("--json", "collection", "collections", uuid),
        lambda: bob("--json", "collection", "of", other),
        lambda: bob("--json", "show", uuid),
        lambda: bob("--json", "discover", "--sql", f"kind = 'collection' AND uuid = '{uuid}'"),
        lambda: bob("show", uuid),
        lambda: bob("collection", "topics", uuid),
    )
    assert {(line["uuid"], line["depth"], line["parent"]) for line in topics.lines} == {(topic, 1, uuid), (other, 2, part)}
    assert [(line["uuid"], line["depth"], line["fixed"]) for line in collections.lines] == [(part, 1, True)]
    assert [(line["uuid"], line["depth"]) for line in holders.lines] == [(part, 1), (uuid, 2)]
    for line in (shown.one, found.one):
        assert (line["limits"], line["fixed"]) == (full["limits"], False)
        assert line["notifications"] == full["notifications"]
        assert not {"add_allow", "members", "watch_allow"} & set(line), "others are not told the lists"
    assert "takes collections, may be included, breadth up to 7, depth up to 6, topics up to 5" in people.out
    assert re.search(rf"^notifications +{full['notifications']}$", people.out, re.MULTILINE)
    assert table.out.splitlines()[0].split() == ["UUID", "OWNER", "EXPIRES", "IN", "ABOUT"]
    assert {row.split()[0] for row in table.out.splitlines()[1:]} == {topic, other}

    target = alice.collection()
    moved = alice.does("collection", "move", topic, "--from", uuid, "--to", target)
    assert (moved["kind"], moved["collection"], moved["uuid"]) == ("move", target, topic)
    removed = alice.does("collection", "remove", target, topic)
    assert (removed["kind"], removed["collection"]) == ("remove", target)
    said = [
        alice("collection", "add", target, topic),
        alice("collection", "move", topic, "--from", target, "--to", uuid),
        alice("collection", "remove", uuid, topic),
    ]
    assert [ran.code for ran in said] == [0, 0, 0], said
    expected = (f"is in collection {target}", f"is now in collection {uuid}", f"is out of collection {uuid}")
    for ran, words in zip(said, expected, strict=True):
        assert re.fullmatch(rf"{topic} {words}: record \d+ of the log\n", ran.out)
        assert ran.err == ""


def test_collections_that_refuse(alice: As, bob: As) -> None:
    """T32, T33: exit 5 and a sentence: fixed, not authorised, not in it, hidden or absent."""
    topic, more, theirs = alice.topic(), alice.topic(), bob.topic()
    fixed = alice.collection(Gathering(fixed=True), members=[topic])
    open_one = alice.collection(members=[topic])
    hidden = alice.collection(lists={"discover": lists([alice.name]), "add": lists(["*"])})
    attempts = {
        "is fixed": lambda: alice("--json", "collection", "add", fixed, more),
        "you may not add": lambda: bob("--json", "collection", "add", open_one, theirs),
        "is not in collection": lambda: alice("--json", "collection", "remove", open_one, more),
        f"there is no collection {hidden} that": lambda: bob("--json", "collection", "add", hidden, theirs),
        f"there is no collection {UUID} that": lambda: bob("--json", "collection", "add", UUID, theirs),
        f"there is no {UUID}": lambda: alice("--json", "collection", "create", "--path", "a", "--member", UUID),
    }
    for words, ran in zip(attempts, at_once(*attempts.values()), strict=True):
        assert (ran.code, ran.out, ran.error["error"]) == (5, "", "refused"), (words, ran)
        assert words in ran.error["message"]


def test_looking_at_what_is_not_there(alice: As, bob: As) -> None:
    """T18: reads end with 6, hidden and absent in the same words; what is of the other kind is a mistake in the command."""
    private = lists([alice.name])
    topic, gathered = alice.topic(lists=private), alice.collection(lists={"discover": private})
    looks = [("hierarchy", what) for what in ("parents", "children", "tree")]
    looks += [("collection", what) for what in ("topics", "collections", "of")]
    hidden = [(*look, topic if look[0] == "hierarchy" else gathered) for look in looks]
    absent = [("hierarchy", "tree", UUID), ("collection", "of", UUID)]
    ran = at_once(*((lambda words=words: bob("--json", *words)) for words in (*hidden, *absent)))
    said: dict[str, set[str]] = {"hierarchy": set(), "collection": set()}
    for (group, _, uuid), one in zip((*hidden, *absent), ran, strict=True):
        assert (one.code, one.out, one.error["error"]) == (6, "", "absent")
        said[group].add(one.error["message"].replace(uuid, "X"))
    assert said == {"hierarchy": {"there is no topic X"}, "collection": {"there is no X"}}
    wrong, other_way = at_once(
        lambda: alice("--json", "hierarchy", "tree", gathered), lambda: alice("--json", "collection", "topics", topic)
    )
    assert (wrong.code, "entity collection" in wrong.error["message"]) == (2, True)
    assert (other_way.code, "entity hierarchy" in other_way.error["message"]) == (2, True)


def test_countersigning(alice: As, bob: As, tmp_path: Path) -> None:
    """T27, T33: printed for the other to use, for looking, registering, including; from a file and from standard input."""
    root = alice.topic(hosting=OPEN, lists=lists([alice.name]))
    topic = alice.topic()
    gathered = bob.collection(lists={"owner": lists(["*"])})
    look = alice("countersign", "discover", root, bob.name)
    assert (look.code, look.err, look.out.count("\n")) == (0, "", 1)
    register = alice.does("countersign", "register", root, bob.name, "--lifetime", "5m")
    assert {key: register[key] for key in ("right", "uuid", "entity")} == {"right": "register", "uuid": root, "entity": bob.name}
    include = alice("countersign", "include", topic, bob.name, "--collection", gathered)
    for name, text in (("look", look.out), ("register", register["countersignature"]), ("include", include.out)):
        (tmp_path / name).write_text(text)

    child = bob.does("create", "--path", "a", "--parent", root, "--countersigned", tmp_path / "register")["uuid"]
    tree = bob("--json", "hierarchy", "tree", root, "--countersigned", "-", stdin=look.out)
    assert [line["uuid"] for line in tree.lines] == [root, child]
    assert bob.does("collection", "add", gathered, topic, "--countersigned", tmp_path / "include")["uuid"] == topic
    first = bob.does(
        *("collection", "create", "--path", "first", "--member", topic, "--fixed", "--owner-allow", "*"),
        *("--countersigned", _written(tmp_path / "any", alice("countersign", "include", topic, bob.name).out)),
    )
    assert first["fixed"] is True
    wrong, garbage, missing, alone = at_once(
        lambda: bob("--json", "hierarchy", "tree", root, "--countersigned", tmp_path / "register"),
        lambda: bob("--json", "hierarchy", "tree", root, "--countersigned", "-", stdin="garbage"),
        lambda: bob("--json", "hierarchy", "tree", root, "--countersigned", tmp_path / "none"),
        lambda: bob("--json", "create", "--path", "a", "--countersigned", tmp_path / "register"),
    )
    assert (wrong.code, wrong.error["error"]) == (6, "absent")
    assert [(ran.code, ran.error["error"]) for ran in (garbage, missing, alone)] == [(2, "usage")] * 3


def _written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


# --- following -----------------------------------------------------------------------------------------------------------------------


def test_one_terminal_shows_what_another_does(live: LiveNetwork, alice: As, bob: As) -> None:
    """T35: in real time, in objects and for people; Ctrl-C and SIGTERM end it in order."""
    gathered, topic = alice.collection(), alice.topic()
    watcher, people = bob.watch("collection", "watch", gathered, "--json"), alice.watch("collection", "watch", gathered)
    said = watcher.ready()
    assert said == f"following {gathered} from version 0 on; Ctrl-C ends it\n"
    people.ready()
    alice.does("collection", "add", gathered, topic)
    alice.does("collection", "remove", gathered, topic)
    watcher.shows(2)
    first, second = watcher.lines
    assert set(first) >= {"subject", "version", "change", "uuid", "kind", "at"}
    assert (first["subject"], first["uuid"], first["kind"]) == (gathered, topic, "topic")
    assert [(line["version"], line["change"]) for line in (first, second)] == [(1, "added"), (2, "removed")]
    assert TIME.fullmatch(first["at"])
    verdict = run("tdn", "--home", live.home.folder, "--json", "verify", "-", stdin=json.dumps(first))
    assert verdict.code == 0, verdict
    assert (verdict.one["valid"], verdict.one["kind"]) == (True, "notification")
    assert any(topic in sentence and "added" in sentence for sentence in verdict.one["proves"])
    forged = {**first, "notification": first["notification"][:-6] + ("AAAAAA" if first["notification"][-6] != "A" else "BBBBBB")}
    assert run("tdn", "--home", live.home.folder, "verify", "-", stdin=json.dumps(forged)).code == 4

    rows = people.shows(2)
    assert [row.split() for row in rows] == [
        [str(line["version"]), line["at"], line["change"], "topic", topic, "in", gathered] for line in (first, second)
    ]
    assert watcher.end(signal.SIGINT) == 0
    assert people.end(signal.SIGTERM) == 0
    assert watcher.err == said, "nothing more to say"

    # Away, and back: what happened meanwhile, and no more than was asked for.
    alice.does("collection", "add", gathered, topic)
    resumed, all_of_it = at_once(
        lambda: bob("--json", "collection", "watch", gathered, "--since", "1", "--count", "2"),
        lambda: bob("--json", "collection", "watch", gathered, "--since", "0", "--count", "1"),
    )
    assert (resumed.code, all_of_it.code) == (0, 0)
    assert [(line["version"], line["change"]) for line in resumed.lines] == [(2, "removed"), (3, "added")]
    assert all_of_it.lines[0]["version"] == 1
    ended = bob("collection", "unwatch", gathered)
    assert ended.code == 0
    assert re.fullmatch(rf"{gathered} is followed no longer: record \d+ of the log\n", ended.out)


def test_watching_a_hierarchy(alice: As, bob: As) -> None:
    """T29: `--count` ends it by itself; a topic that is withdrawn is the last that is told."""
    root = alice.topic(hosting=OPEN)
    watcher = bob.watch("--json", "hierarchy", "watch", root, "--count", "3")
    watcher.ready()
    child = alice.topic(parent=root)
    alice.withdraw(child)
    alice.withdraw(root)
    assert watcher.end() == 0
    assert [(line["version"], line["change"], line["uuid"], line["kind"]) for line in watcher.lines] == [
        (1, "added", child, "topic"),
        (2, "withdrawn", child, "topic"),
        (3, "withdrawn", root, "topic"),
    ]
    # Also to somebody who comes later, and was told before.
    late = bob("--json", "hierarchy", "watch", root, "--since", "2", "--count", "1")
    assert (late.code, late.one["change"]) == (0, "withdrawn")
    assert bob.does("hierarchy", "unwatch", root)["kind"] == "unwatch"


def test_watching_that_cannot_be(alice: As, bob: As) -> None:
    """Absent and hidden in the same words; a version that is not there yet; what one does not follow."""
    hidden, shown = alice.topic(lists=lists([alice.name])), alice.topic()
    gone, never, early, unwatched, one_way = at_once(
        lambda: bob("--json", "hierarchy", "watch", hidden),
        lambda: bob("--json", "hierarchy", "watch", UUID),
        lambda: bob("--json", "hierarchy", "watch", shown, "--since", "5"),
        lambda: bob("--json", "collection", "unwatch", UUID),
        lambda: bob("hierarchy", "watch", UUID),
    )
    assert gone.code == never.code == 5
    assert gone.error["message"].replace(hidden, "X") == never.error["message"].replace(UUID, "X")
    assert (early.code, early.error["error"]) == (2, "usage")
    assert "there is no version 5 yet" in early.error["message"]
    assert (unwatched.code, unwatched.error["error"]) == (5, "refused")
    assert (one_way.out, one_way.err) == ("", f"error: there is no {UUID} that you may follow\n")


# --- objects and mistakes ------------------------------------------------------------------------------------------------------------


def test_a_collection_is_verified_offline(live: LiveNetwork, alice: As) -> None:
    created = alice.does("collection", "create", "--path", "a")
    ran = run("tdn", "--home", live.home.folder, "verify", "-", "--json", stdin=json.dumps(created))
    assert ran.code == 0, ran
    assert [verdict["kind"] for verdict in ran.lines] == ["advertisement", "receipt"]
    assert any(f"minted collection {created['uuid']}" in sentence for sentence in ran.lines[0]["proves"])


USAGE: dict[str, tuple[str, ...]] = {
    "hierarchy alone": ("hierarchy",),
    "collection alone": ("collection",),
    "unknown look": ("hierarchy", "cousins", UUID),
    "not a UUID": ("hierarchy", "tree", "x"),
    "no UUID": ("collection", "topics"),
    "depth of nothing": ("hierarchy", "tree", UUID, "--depth", "0"),
    "negative depth": ("hierarchy", "children", UUID, "--depth", "-1"),
    "depth that is no number": ("collection", "topics", UUID, "--depth", "deep"),
    "huge depth": ("collection", "of", UUID, "--depth", HUGE),
    "negative limit": ("create", "--path", "a", "--max-depth", "-1"),
    "huge limit": ("create", "--path", "a", "--max-width", "1000001"),
    "enormous limit": ("create", "--path", "a", "--max-width", HUGE),
    "limit with a fraction": ("collection", "create", "--path", "a", "--max-breadth", "1.5"),
    "limit that is no number": ("collection", "create", "--path", "a", "--max-topics", "many"),
    "limit in other digits": ("collection", "create", "--path", "a", "--max-depth", "٣"),
    "parent that is no UUID": ("create", "--path", "a", "--parent", "root"),
    "own bar": ("create", "--path", "a", "--register-deny", "{name}"),
    "bar of nobody": ("create", "--path", "a", "--hierarchy-deny", "No Body"),
    "fixed without members": ("collection", "create", "--path", "a", "--fixed"),
    "member that is no UUID": ("collection", "create", "--path", "a", "--member", "x"),
    "no descriptor": ("collection", "create"),
    "own bar on a collection": ("collection", "create", "--path", "a", "--add-deny", "{name}"),
    "no collection": ("collection", "add", UUID),
    "move from nowhere": ("collection", "move", UUID, "--to", UUID),
    "count of nothing": ("collection", "watch", UUID, "--count", "0"),
    "negative version": ("collection", "watch", UUID, "--since", "-1"),
    "version that is no number": ("hierarchy", "watch", UUID, "--since", "latest"),
    "huge version": ("hierarchy", "watch", UUID, "--since", HUGE),
    "a right that is none": ("countersign", "rule", UUID, "bob"),
    "countersigned for a group": ("countersign", "discover", UUID, "*"),
    "countersigned for too long": ("countersign", "discover", UUID, "bob", "--lifetime", "31d"),
    "a collection for a look": ("countersign", "discover", UUID, "bob", "--collection", UUID),
    "too many names": ("create", "--path", "a", *(word for n in range(501) for word in ("--register-allow", f"e{n}"))),
    "too many members": (
        *("collection", "create", "--path", "a"),
        *(word for n in range(1001) for word in ("--member", f"{n:08x}{UUID[8:]}")),
    ),
}


def _as_asked(live: LiveNetwork, name: str, words: tuple[str, ...]) -> list[str]:
    return ["--home", str(live.home.folder), "--as", name, "--json", *(word.replace("{name}", name) for word in words)]


@pytest.mark.parametrize("mistake", USAGE)
def test_usage(live: LiveNetwork, capsys: pytest.CaptureFixture[str], mistake: str) -> None:
    """Exit 2, nothing on stdout, and one object on stderr with a sentence of bearable length. What the command does, without its start."""
    code = output.run(build_parser(), _as_asked(live, live.entity().name, USAGE[mistake]))
    printed = capsys.readouterr()
    ran = Ran(code, printed.out, printed.err)
    assert (ran.code, ran.out) == (2, ""), ran
    assert ran.error["error"] == "usage"
    assert len(ran.err.splitlines()) == 1
    assert 10 < len(ran.error["message"]) < 400


def test_usage_of_the_installed_command(alice: As) -> None:
    mistakes = ("negative limit", "too many names")
    for ran in at_once(*((lambda words=USAGE[mistake]: alice("--json", *words)) for mistake in mistakes)):
        assert (ran.code, ran.out, ran.error["error"]) == (2, "", "usage")


def test_numbers_at_their_limits(alice: As) -> None:
    """0 means no limit of its own; the largest is a million."""
    free, most = at_once(
        lambda: alice("--json", "collection", "create", "--path", "a", "--max-depth", "0", "--max-topics", "1000000"),
        lambda: alice("--json", "create", "--path", "a", "--allow-children", "--max-depth", "1000000", "--max-width", "0"),
    )
    assert free.one["limits"] == {"breadth": 0, "depth": 0, "topics": 1_000_000}
    assert (most.one["max_depth"], most.one["max_width"]) == (1_000_000, 0)


@pytest.mark.parametrize("group", ["hierarchy", "collection"])
def test_help(group: str) -> None:
    helped = run("entity", group, "--help")
    assert (helped.code, helped.err) == (0, "")
    for command in {"hierarchy": ("parents", "children", "tree"), "collection": ("create", "add", "move", "of")}[group]:
        assert re.search(rf"^ +{command} ", helped.out, re.MULTILINE)
    assert "watch" in helped.out
