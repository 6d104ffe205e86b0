"""The `entity` command as installed: what it prints where, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tdn.protocol.names import mint_uuid
from tests.live import LiveNetwork, Ran, run, wait_for

pytestmark = pytest.mark.broker

TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


class As:
    """An entity at its terminal."""

    def __init__(self, live: LiveNetwork, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self._before = ("--home", live.home.folder, "--as", self.name)

    def __call__(self, *words: str | Path, **how: Any) -> Ran:
        return run("entity", *self._before, *words, **how)

    def topic(self, *words: str) -> dict[str, Any]:
        return self("--json", "create", *(words or ("--path", "a/b"))).one


@pytest.fixture
def alice(live: LiveNetwork) -> As:
    return As(live, live.entity("alice", institution="ACME"))


@pytest.fixture
def bob(live: LiveNetwork) -> As:
    return As(live, live.entity("bob"))


# --- conventions ---------------------------------------------------------------------------------------------------------------------


def test_where_options_stand(live: LiveNetwork, alice: As) -> None:
    """Global options stand before the command; `--json` is taken after it too, and means the same."""
    before, after = alice("--json", "locate"), alice("locate", "--json")
    assert before.code == after.code == 0
    assert {line["node"] for line in before.lines} == {line["node"] for line in after.lines} == {"n1", "n2"}
    assert set(before.lines[0]) >= {"node", "institution", "milliseconds", "policy"}
    misplaced = run("entity", "locate", "--home", live.home.folder, "--as", alice.name, "--json")
    assert (misplaced.code, misplaced.error["error"]) == (2, "usage")


def test_environment(live: LiveNetwork, alice: As, tmp_path: Path) -> None:
    """`$TDN_HOME` and `$TDN_ENTITY` are the defaults; options win; without either the home is ./.tdn."""
    env = {"TDN_HOME": str(live.home.folder), "TDN_ENTITY": alice.name}
    assert run("entity", "locate", env=env).code == 0
    assert run("entity", "--as", "nobody-here", "locate", env=env).code == 4
    assert run("entity", "--home", tmp_path / "none", "locate", env=env).code == 4
    (tmp_path / ".tdn").symlink_to(live.home.folder)
    assert run("entity", "--as", alice.name, "locate", cwd=tmp_path).code == 0
    unnamed = run("entity", "--home", live.home.folder, "--json", "locate")
    assert (unnamed.code, unnamed.error["error"]) == (2, "usage")
    assert "--as NAME" in unnamed.error["message"]


def test_results_and_all_else(alice: As) -> None:
    """Results on stdout, all else on stderr, for people and for programs."""
    table = alice("locate")
    assert (table.code, table.err) == (0, "")
    assert table.out.split("\n")[0].split() == ["NODE", "INSTITUTION", "MILLISECONDS", "ANSWERS"]
    kept = alice("create", "--path", "kept/back", "--no-advertise")
    assert kept.code == 0
    assert "not advertised" in kept.err
    assert "not advertised" not in kept.out
    nothing = alice("discover", "--string", "no-such-words-anywhere")
    assert (nothing.code, nothing.out) == (0, "")
    assert "nothing found" in nothing.err
    assert alice("--json", "discover", "--string", "no-such-words-anywhere") == Ran(0, "", "")


def test_credentials_from_elsewhere(live: LiveNetwork, alice: As, tmp_path: Path) -> None:
    """An entity elsewhere needs only a copy of its folder."""
    copy = shutil.copytree(alice.folder, tmp_path / "carried")
    assert {path.name for path in copy.iterdir()} >= {"cert.pem", "key.pem", "trust.pem", "connection.toml"}
    assert (copy / "key.pem").stat().st_mode & 0o777 == 0o600
    created = run("entity", "--credentials", copy, "--json", "create", "--path", "carried", cwd=tmp_path)
    assert created.code == 0, created.err
    assert created.one["creator"] == alice.name
    empty = run("entity", "--credentials", tmp_path / "empty", "--json", "locate")
    assert (empty.code, empty.error["error"]) == (4, "trust")


@pytest.mark.parametrize("command", ["tdn", "entity"])
def test_help(command: str) -> None:
    helped = run(command, "--help")
    assert (helped.code, helped.err) == (0, "")
    assert "--home DIR" in helped.out


# --- the way of a topic --------------------------------------------------------------------------------------------------------------


def test_create_prints_the_topic(alice: As, tmp_path: Path) -> None:
    """The object of the interface, for every kind of descriptor and synopsis (T2, T3)."""
    (tmp_path / "a.xml").write_text("<a><b>1</b></a>")
    given = {
        "path": (("--path", "a/b/c"), {"kind": "path", "path": "a/b/c"}),
        "text": (
            ("--text", "Wind", "--keyword", "k1", "--keyword", "k2"),
            {"kind": "text", "text": "Wind", "keywords": ["k1", "k2"]},
        ),
        "properties": (
            (
                "--property",
                "n=42",
                "--property",
                "f=1.5",
                "--property",
                "b=true",
                "--property",
                "s:string=42",
                "--property",
                "t=2027-01-31T12:00:00Z",
            ),
            {"n": 42, "f": 1.5, "b": True, "s": "42", "t": "2027-01-31T12:00:00Z"},
        ),
        "xml": (("--xml", str(tmp_path / "a.xml")), {"kind": "xml", "xml": "<a><b>1</b></a>"}),
    }
    synopses = {"path": "string", "text": "tags", "properties": "properties", "xml": "xml"}
    for kind, (words, descriptor) in given.items():
        topic = alice.topic(*words, "--synopsis-type", synopses[kind], "--lifetime", "90s")
        assert set(topic) >= {
            *("uuid", "kind", "creator", "owner", "institution", "created", "expires"),
            *("descriptor", "synopsis", "node", "advertisement", "receipt"),
        }
        assert (topic["kind"], topic["creator"], topic["owner"], topic["institution"]) == (
            "topic",
            alice.name,
            alice.name,
            "ACME",
        )
        assert topic["uuid"] in topic["synopsis"]
        assert TIME.fullmatch(topic["created"])
        assert TIME.fullmatch(topic["expires"])
        found = topic["descriptor"]
        assert found["kind"] == kind
        assert (found["properties"] if kind == "properties" else found) == descriptor
    piped = alice("--json", "create", "--xml", "-", stdin="<from><stdin/></from>")
    assert piped.one["descriptor"]["xml"] == "<from><stdin/></from>"
    people = alice("create", "--path", "for/people", "--node", "n2")
    assert people.code == 0
    assert "node n2, verified" in people.out
    assert "in the log, verified" in people.out


def test_advertise_from_file_and_standard_input(live: LiveNetwork, alice: As, bob: As, tmp_path: Path) -> None:
    """T7: what `create --no-advertise` printed, or the signed bytes alone; by its creator, and by nobody else."""
    kept = alice("--json", "create", "--path", "kept", "--no-advertise")
    topic = kept.one
    assert "receipt" not in topic
    assert bob("show", topic["uuid"]).code == 6
    (tmp_path / "line.json").write_text(kept.out)
    (tmp_path / "bytes.jws").write_text(topic["advertisement"] + "\n")

    stolen = bob("--json", "advertise", tmp_path / "line.json")
    assert (stolen.code, stolen.error["error"], stolen.out) == (5, "refused", "")
    first = alice("--json", "advertise", tmp_path / "line.json")
    assert first.code == 0, first.err
    assert (first.one["kind"], first.one["uuid"]) == ("advertise", topic["uuid"])
    for again in (
        alice("--json", "advertise", "-", stdin=topic["advertisement"]),
        alice("--json", "advertise", tmp_path / "bytes.jws"),
    ):
        assert again.code == 0, "harmless to repeat, and gives a receipt again"
        assert (again.one["uuid"], again.one["expires"]) == (topic["uuid"], topic["expires"])
    wait_for(lambda: live.records("n1", "seq >= ?", again.one["seq"]), "n1 to have all of it")
    fact = live.fact("topic", topic["uuid"])
    assert fact is not None
    assert fact["advertised"] == fact["seq"] == first.one["seq"], "with one effect"
    assert "is advertised: record" in alice("advertise", "-", stdin=kept.out).out

    for bad, code in (("{}", 2), ("{", 2), ('{"advertisement": 1}', 2), ("nonsense", 2)):
        assert alice("--json", "advertise", "-", stdin=bad).code == code, bad
    tampered = topic["advertisement"][:-6] + ("A" if topic["advertisement"][-6] != "A" else "B") + topic["advertisement"][-5:]
    refused = alice("--json", "advertise", "-", stdin=tampered)
    assert (refused.code, refused.error["error"]) == (4, "trust")
    assert alice("--json", "advertise", tmp_path / "missing").error["error"] == "usage"


def test_show_renew_withdraw(alice: As, bob: As) -> None:
    """T39, and the codes for what is not there or not one's own."""
    topic = alice.topic()
    uuid = topic["uuid"]
    shown = wait_for(lambda: (ran := bob("--json", "show", uuid)).code == 0 and ran.one, "bob to see it")
    assert shown["advertisement"] == topic["advertisement"]
    assert "status" in shown
    assert uuid in bob("show", uuid).out

    renewed = alice("--json", "renew", uuid, "--lifetime", "30d")
    assert renewed.code == 0, renewed.err
    assert renewed.one["expires"] > topic["expires"]
    wait_for(lambda: bob("--json", "show", uuid).one["expires"] == renewed.one["expires"], "bob to follow")

    for words in (("renew", uuid, "--lifetime", "1d"), ("withdraw", uuid)):
        theirs = bob("--json", *words)
        unknown = bob("--json", words[0], other := mint_uuid(), *words[2:])
        assert (theirs.code, unknown.code) == (5, 5)
        assert theirs.error["error"] == unknown.error["error"] == "refused"
        assert theirs.error["message"].replace(uuid, "X") == unknown.error["message"].replace(other, "X")

    withdrawn = alice("withdraw", uuid)
    assert withdrawn.code == 0
    assert "withdrawn for ever" in withdrawn.out
    wait_for(lambda: bob("show", uuid).code == 6, "bob not to see it")
    gone, never = bob("--json", "show", uuid), bob("--json", "show", other := mint_uuid())
    assert gone.error["message"].replace(uuid, "X") == never.error["message"].replace(other, "X")
    assert alice("renew", uuid, "--lifetime", "1d").code == 5


def test_discover(alice: As, bob: As) -> None:
    """T15, T16: tables and objects, nodes by name, limit and cursor."""
    word = f"w{mint_uuid()[:8]}"
    topics = [alice.topic("--path", f"{word}/{number}") for number in range(3)]
    uuids = {topic["uuid"] for topic in topics}
    wait_for(
        lambda: all(len(bob("--json", "discover", "--string", word, "--node", node).lines) == 3 for node in ("n1", "n2")),
        "both nodes to have all",
    )
    found = bob("--json", "discover", "--string", word)
    assert {line["uuid"] for line in found.lines} == uuids
    assert len(found.lines) == 3
    assert all(line["advertisement"] and line["creator"] == alice.name for line in found.lines)
    both = bob("--json", "discover", "--string", word.upper(), "--node", "n1", "--node", "n2")
    assert {line["uuid"] for line in both.lines} == uuids
    table = bob("discover", "--string", word)
    assert table.out.splitlines()[0].split() == ["UUID", "CREATOR", "EXPIRES", "IN", "ABOUT"]
    assert len(table.out.splitlines()) == 4

    first = bob("--json", "discover", "--string", word, "--limit", "2", "--node", "n1")
    cursor = re.search(r"--cursor (\S+)", first.err)
    assert len(first.lines) == 2
    assert cursor is not None
    rest = bob("--json", "discover", "--string", word, "--limit", "2", "--node", "n1", "--cursor", cursor[1])
    assert {line["uuid"] for line in (*first.lines, *rest.lines)} == uuids
    assert "--cursor" not in rest.err

    missing = bob("--timeout", "3s", "discover", "--string", word, "--node", "n1", "--node", "n9")
    assert missing.code == 0
    assert "node n9 did not answer" in missing.err
    assert bob("--json", "--timeout", "2s", "discover", "--string", word, "--node", "n9").code == 3


# --- errors --------------------------------------------------------------------------------------------------------------------------

USAGE: dict[str, tuple[str, ...]] = {
    "no command": (),
    "unknown command": ("conquer",),
    "unknown option": ("locate", "--loud"),
    "no descriptor": ("create",),
    "two descriptors": ("create", "--path", "a", "--text", "b"),
    "keyword without text": ("create", "--path", "a", "--keyword", "k"),
    "empty path step": ("create", "--path", "a//b"),
    "bad property": ("create", "--property", "novalue"),
    "property twice": ("create", "--property", "a=1", "--property", "a=2"),
    "property not of its type": ("create", "--property", "a:integer=x"),
    "XML that is not there": ("create", "--xml", "no-such-file.xml"),
    "bad duration": ("create", "--path", "a", "--lifetime", "5 days"),
    "too long": ("create", "--path", "a", "--lifetime", "3651d"),
    "no time at all": ("create", "--path", "a", "--lifetime", "0s"),
    "synopsis without slot": ("create", "--path", "a", "--synopsis", "x"),
    "synopsis of another type": ("create", "--path", "a", "--synopsis-type", "xml", "--synopsis", "{uuid}"),
    "synopsis with a UUID": ("create", "--path", "a", "--synopsis", "6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"),
    "unknown synopsis type": ("create", "--path", "a", "--synopsis-type", "yaml"),
    "not a UUID": ("show", "6F1C2B1E-0F3B-4A57-9C1D-2A3B4C5D6E7F"),
    "no lifetime": ("renew", "6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"),
    "nothing to look for": ("discover",),
    "limit of nothing": ("discover", "--string", "a", "--limit", "0"),
    "not a cursor": ("discover", "--string", "a", "--cursor", "x"),
    "bad timeout": ("--timeout", "soon", "locate"),
}


@pytest.mark.parametrize("mistake", USAGE)
def test_usage(live: LiveNetwork, mistake: str) -> None:
    """Exit 2, nothing on stdout, a sentence on stderr, and with --json one object."""
    folder = live.entity()
    ran = run("entity", "--home", live.home.folder, "--as", folder.name, "--json", *USAGE[mistake])
    assert (ran.code, ran.out) == (2, ""), ran
    assert ran.error["error"] == "usage"
    assert len(ran.err.splitlines()) == 1
    assert len(ran.error["message"]) > 10


def test_errors_for_people(alice: As) -> None:
    """Without --json: one line that begins with `error:`; `-v` adds the traceback."""
    ran = alice("show", mint_uuid())
    assert ran.code == 6
    assert ran.err.startswith("error: there is no topic")
    assert len(ran.err.splitlines()) == 1
    verbose = alice("-v", "show", mint_uuid())
    assert verbose.code == 6
    assert "Traceback" in verbose.err


def test_xml_that_is_not_safe(alice: As, tmp_path: Path) -> None:
    (tmp_path / "bomb.xml").write_text('<!DOCTYPE a [<!ENTITY b "boom">]><a>&b;</a>')
    ran = alice("--json", "create", "--xml", tmp_path / "bomb.xml")
    assert (ran.code, ran.error["error"]) == (2, "usage")
    (tmp_path / "latin.xml").write_bytes("<a>é</a>".encode("latin-1"))
    assert alice("--json", "create", "--xml", tmp_path / "latin.xml").error["error"] == "usage"


def test_trust(live: LiveNetwork, alice: As, tmp_path: Path) -> None:
    """Exit 4: unknown identity, a key that is not the certificate's, trust roots of somebody else."""
    stranger = run("entity", "--home", live.home.folder, "--as", "stranger", "--json", "locate")
    assert (stranger.code, stranger.error["error"]) == (4, "trust")

    mixed = shutil.copytree(alice.folder, tmp_path / "mixed")
    shutil.copy(live.entity() / "key.pem", mixed / "key.pem")
    ran = run("entity", "--credentials", mixed, "--json", "locate")
    assert (ran.code, ran.error["error"]) == (4, "trust")
    assert "do not belong together" in ran.error["message"]

    broken = shutil.copytree(alice.folder, tmp_path / "broken")
    (broken / "cert.pem").write_text("nothing")
    assert run("entity", "--credentials", broken, "--json", "locate").error["error"] == "trust"


def test_a_node_cannot_act_as_an_entity(live: LiveNetwork) -> None:
    """T8: roles are the certificate's. A node's folder does not create topics."""
    ran = run("entity", "--credentials", live.home.folder / "nodes" / "n1", "--json", "--timeout", "4s", "create", "--path", "a")
    assert ran.code in (4, 5), ran
    assert json.loads(ran.err.splitlines()[-1])["error"] in ("trust", "refused")
