"""`entity grant`, `can`, `transfer`, `accept`, `publish`, `subscribe` and `unsubscribe` as installed, with `tdn audit` and `tdn verify` on what they did:
what they print where, and how they end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, lists
from entity_client.cli.main import build_parser as entity_commands
from tdn.cli import output
from tdn.cli.main import build_parser as tdn_commands
from tdn.protocol.names import Role
from tdn.protocol.trees import Hosting
from tdn.trust import credentials, statements
from tests.cli.test_trees import As, Watcher
from tests.live import LiveNetwork, Ran, wait_for

pytestmark = pytest.mark.broker

TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
UUID = "6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"
GRANT = re.compile(r"[A-Za-z0-9_-]{22}")
NO_GRANT = "A" * 22


class Here(As):
    """An entity at its terminal whose short commands run in this process: a start of Python takes ten times as long as what they do."""

    def __call__(self, *words: str | Path, **how: Any) -> Ran:
        return in_this_process(entity_commands, *self._before, *words, **how)

    def as_installed(self, *words: str | Path, **how: Any) -> Ran:
        return super().__call__(*words, **how)


def in_this_process(commands: Callable[[], ArgumentParser], *words: str | Path, stdin: str = "") -> Ran:
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = output.run(commands(), [str(word) for word in words])
    finally:
        sys.stdin = before
    return Ran(code, out.getvalue(), err.getvalue())


def tdn(*words: str | Path, stdin: str = "") -> Ran:
    return in_this_process(tdn_commands, *words, stdin=stdin)


@pytest.fixture
def alice(live: LiveNetwork) -> Iterator[Here]:
    with at_terminal(live, "alice") as entity:
        yield entity


@pytest.fixture
def bob(live: LiveNetwork) -> Iterator[Here]:
    with at_terminal(live, "bob") as entity:
        yield entity


@pytest.fixture
def carol(live: LiveNetwork) -> Iterator[Here]:
    with at_terminal(live, "carol") as entity:
        yield entity


@contextlib.contextmanager
def at_terminal(live: LiveNetwork, name: str) -> Iterator[Here]:
    """An entity that the network knows."""
    folder = live.entity(name)

    async def introduce() -> None:
        async with await EntityClient.connect(folder) as client:
            await client.choose()

    asyncio.run(introduce())
    for node in live.nodes():
        wait_for(lambda node=node: live.fact("principal", f"{Role.ENTITY}:{folder.name}", node), f"{node} to know it")
    entity = Here(live, folder)
    yield entity
    for watcher in entity.watchers:
        with contextlib.suppress(ProcessLookupError):
            watcher.process.kill()
        watcher.process.wait(10)


def each(*commands: Callable[[], Ran]) -> list[Ran]:
    return [command() for command in commands]


def subscribes(entity: As, *words: str) -> Watcher:
    """A subscriber that is ready."""
    watcher = entity.watch(*words)
    wait_for(lambda: "subscribed to" in watcher.err or watcher.process.poll() is not None, "the subscriber")
    assert "subscribed to" in watcher.err, watcher.err
    return watcher


def test_objects(live: LiveNetwork, alice: Here, bob: Here) -> None:
    """T20, T21: a grant from its beginning to its end, as interface.md has the objects; with what the guard noted of it."""
    uuid = alice.topic()
    given = alice.does("grant", "publish", uuid, bob.name, "--lifetime", "12h", "--delegable")
    assert GRANT.fullmatch(given["id"])
    known = {"right": "publish", "topic": uuid, "issuer": alice.name, "grantee": bob.name, "delegable": True, "state": "live"}
    assert {name: given[name] for name in known} == known
    assert TIME.fullmatch(given["not_before"])
    assert TIME.fullmatch(given["expires"])
    subscriber = subscribes(alice, "--json", "subscribe", uuid, "--count", "2")
    published, may, may_not, mine, theirs = each(
        lambda: bob.as_installed("--json", "publish", uuid, "six degrees"),
        lambda: bob("--json", "can", "publish", uuid),
        lambda: bob("--json", "can", "subscribe", uuid),
        lambda: alice("--json", "grant", "list", uuid),
        lambda: bob("--json", "grant", "list", uuid),
    )
    assert published.code == 0, published.err
    assert set(published.one) == {"topic", "id", "at"}
    assert may.one == {
        "right": "publish",
        "topic": uuid,
        "allowed": True,
        "because": f"{alice.name} let you publish until {given['expires']}",
        "grants": [given["id"]],
    }
    assert (may.code, may_not.code) == (0, 0)
    assert may_not.one == {
        "right": "subscribe",
        "topic": uuid,
        "allowed": False,
        "because": f"no grant lets you; its owner is {alice.name}",
        "grants": [],
    }
    listed = {name: value for name, value in given.items() if name != "receipt"}
    assert mine.lines == theirs.lines == [listed]
    bob.does("publish", uuid, "--sign", stdin="ten\ndegrees")
    assert subscriber.end() == 0
    first, second = subscriber.lines
    assert first == {
        "topic": uuid,
        "id": published.one["id"],
        "publisher": bob.name,
        "at": first["at"],
        "body": "six degrees",
        "signed": False,
        "encrypted": False,
    }
    assert published.one["at"].startswith(first["at"].rstrip("Z"))
    assert (second["body"], second["signed"]) == ("ten\ndegrees", True)

    ended = alice.does("grant", "revoke", given["id"])
    assert set(ended) == {"grant", "cut", "milliseconds", "guards", "fenced", "unconfirmed", "seq", "receipt"}
    assert (ended["grant"], ended["guards"], ended["fenced"], ended["unconfirmed"]) == (given["id"], ["g1"], [], [])
    assert set(ended["cut"]) == {"connections", "queues", "bindings"}
    refused, gone, audited = each(
        lambda: bob("--json", "publish", uuid, "more"),
        lambda: bob("--json", "grant", "list", uuid),
        lambda: tdn("--home", live.home.folder, "--json", "audit", "--entity", bob.name, "--topic", uuid),
    )
    assert refused.code == 5
    assert refused.error == {
        "error": "refused",
        "message": f"there is no topic {uuid} that you may publish to",
        "detail": {},
    }
    assert gone.lines == [{**listed, "state": "revoked"}]
    assert audited.code == 0, audited.err
    entry = audited.lines[0]
    assert {name: entry[name] for name in ("entity", "action", "topic", "allowed", "grant", "guard")} == {
        "entity": bob.name,
        "action": "publish",
        "topic": uuid,
        "allowed": True,
        "grant": given["id"],
        "guard": "g1",
    }


def test_words(live: LiveNetwork, alice: Here, bob: Here) -> None:
    """The same for a person."""
    uuid = alice.topic()
    given = alice("grant", "subscribe", uuid, bob.name, "--delegable")
    match = re.fullmatch(
        rf"grant ({GRANT.pattern}): {bob.name} may subscribe to topic {uuid} until ({TIME.pattern}), and pass it on\n", given.out
    )
    assert match, given
    grant, until = match.groups()
    subscriber = subscribes(bob, "subscribe", uuid, "--count", "1")
    assert subscriber.err == f"subscribed to {uuid}; Ctrl-C ends it, and what comes meanwhile waits for you\n"
    published, listed, yes, no = each(
        lambda: alice("publish", uuid, "six degrees"),
        lambda: alice("grant", "list", uuid),
        lambda: bob("can", "subscribe", uuid),
        lambda: bob("can", "publish", uuid),
    )
    assert re.fullmatch(r"published [A-Za-z0-9_-]+\n", published.out)
    head, row = listed.out.splitlines()
    assert head.split() == ["GRANT", "STATE", "RIGHT", "TOPIC", "BY", "TO", "UNTIL"]
    assert row.split()[:4] == [grant, "live", "subscribe", uuid]
    assert row.rstrip().endswith(f"{until}  delegable")
    assert yes.out == f"yes: {alice.name} let you subscribe until {until}\n"
    assert no.out == f"no: no grant lets you; its owner is {alice.name}\n"
    assert subscriber.end() == 0
    assert re.fullmatch(rf"{TIME.pattern}  {alice.name}: six degrees", subscriber.out[0])
    renewed = alice("grant", "renew", grant, "--lifetime", "30d")
    assert re.match(rf"grant {grant}: {bob.name} may subscribe to topic {uuid} until ", renewed.out), renewed.err
    ended = alice("grant", "revoke", grant)
    assert re.fullmatch(rf"grant {grant} is revoked: 1 subscriptions deleted, within [0-9]+ ms\n", ended.out), ended
    nobody, none = each(lambda: alice("grant", "revoke", grant), lambda: alice("grant", "list", alice.topic()))
    assert "nothing was open that rested on it" in nobody.out
    assert (none.code, none.out, none.err) == (0, "", "no grants\n")


def test_ownership(live: LiveNetwork, alice: Here, bob: Here) -> None:
    uuid = alice.topic()
    offered = alice("transfer", uuid, bob.name)
    assert re.fullmatch(
        rf"topic {uuid} is offered to {bob.name} until {TIME.pattern}: `entity --as {bob.name} accept {uuid}`\n", offered.out
    )
    back = alice("transfer", uuid, alice.name)
    assert back.out == f"topic {uuid} is offered to nobody any more\n"
    alice.does("transfer", uuid, bob.name)
    accepted = bob.does("accept", uuid)
    assert (accepted["uuid"], accepted["cut"]) == (uuid, {"connections": [], "queues": 0, "bindings": 0})
    found, shown, late = each(
        lambda: alice("--json", "discover", "--sql", f"owner = '{bob.name}'"),
        lambda: alice("--json", "show", uuid),
        lambda: alice("--json", "grant", "publish", uuid, alice.name),
    )
    assert [topic["uuid"] for topic in found.lines] == [uuid]
    assert (shown.one["owner"], shown.one["creator"]) == (bob.name, alice.name)
    assert (late.code, late.error["message"]) == (5, f"there is no topic {uuid} that you may let others publish to")
    # What the new owner grants is proof of itself too.
    given = bob("--json", "grant", "publish", uuid, alice.name)
    verified = tdn("--home", live.home.folder, "--json", "verify", "-", stdin=given.out)
    assert verified.code == 0, verified.out
    assert f"a node says that entity {bob.name} owns it" in verified.lines[0]["proves"]
    bob.does("transfer", uuid, alice.name)
    kept = alice("accept", uuid, "--keep-grants")
    assert re.fullmatch(rf"topic {uuid} is yours, grants were kept: .+, within [0-9]+ ms\n", kept.out)
    listed = alice("--json", "grant", "list", uuid)
    assert [grant["state"] for grant in listed.lines] == ["live"], listed.err


def test_bodies(alice: Here, bob: Here) -> None:
    """T20: from standard input, line by line, and bytes that are no text; what is not signed can be left out."""
    uuid = alice.topic()
    alice.does("grant", "subscribe", uuid, bob.name)
    everything = subscribes(alice, "--json", "subscribe", uuid, "--count", "5")
    strict = subscribes(bob, "subscribe", uuid, "--signed-only")
    lines = alice("--json", "publish", uuid, "--lines", stdin="one\r\n\ntwo\n")
    assert len(lines.lines) == 3
    assert alice("publish", uuid, "", "--sign").code == 0
    assert alice("publish", uuid, "--encrypt").code == 0
    assert everything.end() == 0
    assert [message["body"] for message in everything.lines] == ["one", "", "two", "", ""]
    assert [message["signed"] for message in everything.lines] == [False, False, False, True, True]
    assert [message["encrypted"] for message in everything.lines] == [False] * 4 + [True]
    strict.shows(2)
    assert strict.end(signal.SIGINT) == 0
    assert [line.split("  ", 1)[1] for line in strict.out] == [f"{alice.name} (signed): ", f"{alice.name} (signed) (encrypted): "]
    assert "warning: 3 messages were left out; the last: the message is not signed" in strict.err


def test_bytes(live: LiveNetwork, alice: Here) -> None:
    uuid = alice.topic()
    subscriber = subscribes(alice, "--json", "subscribe", uuid, "--count", "1")
    content = bytes(range(256))

    async def publish() -> None:
        async with await EntityClient.connect(alice.folder) as client:
            await client.publish(uuid, content)

    asyncio.run(publish())
    assert subscriber.end() == 0
    (message,) = subscriber.lines
    assert "body" not in message
    assert base64.b64decode(message["body_base64"]) == content


def test_trees_and_unsubscribing(live: LiveNetwork, alice: Here, bob: Here) -> None:
    """T28: `--children --depth`, with a child that is created while one subscribes; and the end of it."""
    root = alice.topic(hosting=Hosting(allow_children=True))
    alice.does("grant", "subscribe", root, bob.name, "--tree")
    subscriber = subscribes(bob, "--json", "subscribe", root, "--children", "--depth", "1", "--count", "2")
    child = alice.does("create", "--path", "child", "--parent", root, "--allow-children")["uuid"]
    below = alice.does("create", "--path", "below", "--parent", child)["uuid"]
    assert alice("publish", below, "too deep").code == 0
    assert alice("publish", child, "child").code == 0
    assert alice("publish", root, "root").code == 0
    assert subscriber.end() == 0
    assert [(message["topic"], message["body"]) for message in subscriber.lines] == [(child, "child"), (root, "root")]
    ended = bob.does("unsubscribe", root)
    assert (ended["uuid"], ended["cut"]["queues"], ended["cut"]["connections"]) == (root, 1, [])
    again = bob("--json", "unsubscribe", root)
    assert (again.code, again.error["message"]) == (5, f"there is no subscription of yours to {root}")
    queues = {queue["name"] for queue in live.manage("GET", "/queues/tdn?columns=name")}
    assert not [queue for queue in queues if queue.startswith(f"Feed.{bob.name}.")]


def test_the_chain_in_words(live: LiveNetwork, tmp_path: Path, alice: Here, bob: Here, carol: Here) -> None:
    """T20: `tdn verify` follows a grant offline to the minted topic; a changed one is not valid."""
    uuid = alice.topic()
    first = alice.does("grant", "publish", uuid, bob.name, "--lifetime", "2h", "--delegable")
    passed = bob("--json", "grant", "publish", uuid, carol.name, "--lifetime", "1h")
    second = passed.one
    assert second["parent"] == first["id"]
    (tmp_path / "token").write_text(second["token"])
    revoked = carol.does("grant", "revoke", second["id"])
    root = live.home.folder / "ca" / "root.pem"
    nowhere = ("--home", tmp_path / "none", "--json", "verify")
    kind, middle, claims = second["token"].partition(".")
    whole, alone, broken, receipt = each(
        lambda: tdn(*nowhere, "-", "--trust", root, stdin=passed.out),
        lambda: tdn(*nowhere, tmp_path / "token", "--trust", root),
        lambda: tdn(*nowhere, "-", "--trust", root, stdin=f"{kind}{middle}X{claims[1:]}"),
        lambda: tdn(*nowhere, "-", "--trust", root, stdin=revoked["receipt"]),
    )
    assert whole.code == alone.code == receipt.code == 0, (whole, alone, receipt)
    assert [verdict["kind"] for verdict in whole.lines] == ["grant", "receipt"]
    verdict = alone.one
    assert whole.lines[0] == verdict
    assert (verdict["valid"], verdict["kind"], verdict["signer"]) == (True, "grant", f"entity:{bob.name}")
    minted, by_alice, by_bob = verdict["proves"][:3]
    assert re.fullmatch(rf"node n[12] minted topic {uuid} for entity {alice.name}", minted)
    assert by_alice == (
        f"{alice.name} let {bob.name} publish from {first['not_before']} until {first['expires']}, and pass it on"
    )
    assert by_bob == f"{bob.name} let {carol.name} publish from {second['not_before']} until {second['expires']}"
    assert any("revoked since" in sentence for sentence in verdict["not_checked"])
    assert broken.code == 4
    assert not broken.one["valid"]
    assert receipt.one["kind"] == "revocation"
    assert f"rights on grant {second['id']} ended" in receipt.one["proves"][0]


def test_forbidden_is_absent(alice: Here, bob: Here) -> None:
    """T20: of a topic that it may not see, an entity hears the same as of one that is not there, and both are refusals."""
    hidden = alice.topic(lists=lists([alice.name]))
    commands: list[tuple[str, ...]] = [
        ("publish", "UUID", "x"),
        ("subscribe", "UUID"),
        ("subscribe", "UUID", "--children"),
        ("unsubscribe", "UUID"),
        ("grant", "subscribe", "UUID", "*", "--tree"),
        ("transfer", "UUID", bob.name),
        ("accept", "UUID"),
    ]
    asked = [
        lambda words=words, uuid=uuid: bob("--json", *(uuid if word == "UUID" else word for word in words))
        for words in commands
        for uuid in (hidden, UUID)
    ]
    ran = each(*asked)
    for words, of_hidden, of_none in zip(commands, ran[::2], ran[1::2], strict=True):
        assert (of_hidden.code, of_none.code) == (5, 5), words
        assert of_hidden.error["error"] == "refused"
        assert json.loads(json.dumps(of_hidden.error).replace(hidden, "UUID")) == json.loads(
            json.dumps(of_none.error).replace(UUID, "UUID")
        ), words


def test_absent_and_refused(alice: Here, bob: Here) -> None:
    uuid = alice.topic()
    given = alice.does("grant", "publish", uuid, bob.name)
    unknown, not_mine, nothing, may, until_then = each(
        lambda: alice("--json", "grant", "publish", uuid, "nobody-like-this"),
        lambda: bob("--json", "grant", "renew", given["id"], "--lifetime", "1d"),
        lambda: bob("--json", "grant", "revoke", NO_GRANT),
        lambda: bob("--json", "can", "discover", UUID),
        lambda: alice("--json", "grant", "publish", uuid, bob.name, "--from", "2020-01-01T00:00:00Z", "--lifetime", "1h"),
    )
    assert (unknown.code, unknown.error["error"]) == (6, "absent")
    assert f"`entity --as {'nobody-like-this'} locate`" in unknown.error["message"]
    assert (not_mine.code, not_mine.error["message"]) == (
        5,
        f"grant {given['id']} was given by {alice.name}, who alone can renew it",
    )
    assert (nothing.code, nothing.error["message"]) == (5, f"there is no grant {NO_GRANT} that you may revoke")
    assert (may.code, may.one["allowed"], may.one["because"]) == (0, False, f"there is no topic {UUID} that you may see")
    assert until_then.one["not_before"] == "2020-01-01T00:00:00Z", until_then.err


BAD: dict[str, tuple[str, ...]] = {
    "a right that cannot be granted": ("grant", "discover", UUID, "bob"),
    "nobody": ("grant", "publish", UUID),
    "somebody who cannot be": ("grant", "publish", UUID, "Bob Smith"),
    "an endless grant": ("grant", "publish", UUID, "bob", "--lifetime", "forever"),
    "too long a grant": ("grant", "publish", UUID, "bob", "--lifetime", "3651d"),
    "a time that is none": ("grant", "publish", UUID, "bob", "--from", "tomorrow"),
    "a topic that is none": ("publish", "weather", "x"),
    "a grant that is none": ("grant", "revoke", "short"),
    "renewing for no time": ("grant", "renew", NO_GRANT),
    "no depth": ("subscribe", UUID, "--depth", "0"),
    "no messages": ("subscribe", UUID, "--count", "0"),
    "a number that is none": ("subscribe", UUID, "--count", "²"),
    "may I what": ("can", "withdraw", UUID),
    "transfer to an institution": ("transfer", UUID, "institution:X"),
}


@pytest.mark.parametrize("words", BAD)
def test_usage(words: str, entity: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one object; nothing was sent."""
    code = output.run(entity_commands(), ["--json", "--credentials", str(entity), *BAD[words]])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    error: dict[str, Any] = json.loads(printed.err.splitlines()[-1])
    assert error["error"] == "usage"


def test_denials_are_in_the_audit_log(live: LiveNetwork, alice: Here, bob: Here) -> None:
    """T21: with the reason for the operator; the denied hears no more than that it was refused."""
    uuid = alice.topic()
    assert alice("publish", uuid, "opens it").code == 0
    plain = live.amqp(bob.folder)
    channel = plain.channel()
    channel.confirm_delivery()
    with pytest.raises(Exception, match="ACCESS_REFUSED") as refusal:
        channel.basic_publish(uuid, "", b"x")
    assert "grant" not in str(refusal.value)
    plain.close()

    def denied() -> list[dict[str, Any]]:
        return tdn("--home", live.home.folder, "--json", "audit", "--denied", "--entity", bob.name, "--since", "5m").lines

    (entry,) = wait_for(denied, "the denial to be written")
    assert (entry["action"], entry["topic"], entry["allowed"], entry["grant"]) == ("publish", uuid, False, None)
    assert entry["because"] == f"no grant lets entity:{bob.name} publish to {uuid}, or the topic has ended"
    table = tdn("--home", live.home.folder, "audit", "--topic", uuid).out
    assert re.search(rf"entity:{alice.name} +publish +exchange {uuid} +allowed +[0-9]+ +its own topic +owner", table)
    assert re.search(rf"entity:{bob.name} +publish +exchange {uuid} +denied +1 +no grant lets", table)


def test_expired_and_other_lifetimes(live: LiveNetwork, alice: Here, bob: Here) -> None:
    """A grant that was passed on lasts no longer than what it rests on, and says so."""
    uuid = alice.topic(lifetime=timedelta(days=1))
    alice.does("grant", "publish", uuid, "institution:local", "--lifetime", "10m", "--delegable")
    passed = bob("grant", "publish", uuid, "*", "--lifetime", "30d")
    assert re.fullmatch(
        rf"grant {GRANT.pattern}: \* may publish to topic {uuid} until {TIME.pattern}, when what it rests on ends\n", passed.out
    ), passed.err
    roots = credentials.load(bob.folder).roots
    ended = bob.does("grant", "revoke", passed.out.split()[1].rstrip(":"))
    statement = statements.read(ended["receipt"].encode(), statements.by_roots(roots))
    assert statement.payload["cut"] == ended["cut"]
