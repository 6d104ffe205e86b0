"""`tdn demo`: the main job, told step by step on a private network that is made for it and removed afterwards.

Everything in it is real: a broker, a guard, two nodes, four identities, and attacks that are tried and refused. A step that does not end
as the story says ends the demo with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from entity_client import EntityClient, path, properties, text, xml
from entity_client.objects import Change, Topic
from tdn.bus.connection import Connection
from tdn.cli import demo_archive
from tdn.cli.output import emit
from tdn.errors import Absent, MalformedMessage, Refused, TdnError, TrustError, UsageError
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.protocol import jsontext, names
from tdn.protocol.access import lists
from tdn.protocol.names import Role
from tdn.protocol.trees import Hosting
from tdn.trust import credentials, signing
from tdn.trust.envelope import new_id
from tdn.trust.statements import Advertisement
from tdn.trust.verdict import judge

_WIDTH = 92


class Story:
    """Tells what happens, why, and how long it took."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._colour = not as_json and sys.stdout.isatty()
        self._number = 0
        self.timings: list[tuple[str, float]] = []

    def title(self, sentence: str) -> None:
        if not self._json:
            print(f"\n{self._paint('1', sentence)}\n")

    @contextlib.contextmanager
    def step(self, heading: str, why: str = "") -> Iterator[None]:
        self._number += 1
        if not self._json:
            print(self._paint("1;36", f"{self._number:2}. {heading}"))
            if why:
                print(self._paint("2", textwrap.fill(why, _WIDTH, initial_indent="    ", subsequent_indent="    ")), flush=True)
        started = time.perf_counter()
        yield
        elapsed = (time.perf_counter() - started) * 1000
        self.timings.append((heading, elapsed))
        if self._json:
            emit({"step": self._number, "heading": heading, "milliseconds": round(elapsed, 1)})
        else:
            print(self._paint("2", f"    {_took(elapsed)}\n"), flush=True)

    def show(self, sentence: str) -> None:
        if not self._json:
            print(textwrap.fill(sentence, _WIDTH, initial_indent="    → ", subsequent_indent="      "), flush=True)

    def good(self, sentence: str) -> None:
        if not self._json:
            filled = textwrap.fill(sentence, _WIDTH, initial_indent="    ✔ ", subsequent_indent="      ")
            print(self._paint("32", filled), flush=True)

    def command(self, line: str) -> None:
        if not self._json:
            print(self._paint("33", f"    $ {line}"), flush=True)

    def _paint(self, code: str, words: str) -> str:
        return f"\033[{code}m{words}\033[0m" if self._colour else words


def run_demo(*, as_json: bool = False) -> int:
    """Tell the whole story. Whatever happens, no process and no folder stays behind."""
    story = Story(as_json=as_json)
    folder = Path(tempfile.mkdtemp(prefix="tdn-demo-"))
    network = Network(Home(folder / "home"), lambda sentence: story.show(sentence))
    story.title("A secure topic discovery network, from an empty folder to a signed topic, discovered")
    try:
        with story.step(
            "A private network",
            "A certificate authority, a RabbitMQ that lets nobody in without a certificate, a guard that the broker asks about "
            "every single action, and two topic discovery nodes that share one signed log.",
        ):
            story.command("tdn up")
            network.up()
            story.good("broker, guard and both nodes are ready; nothing listens outside this machine")
        with story.step(
            "Three people get certificates",
            "An identity is a P-256 key with a certificate whose name holds the key's own hash, so a name cannot be borrowed. That "
            "name is also the login at the broker: there are no passwords.",
        ):
            for name, institution in (("alice", "Institute of Oceans"), ("bob", "City of Oslo"), ("mallory", "Elsewhere")):
                story.command(f"tdn ca issue {name} --institution '{institution}'")
                network.operator.issue(Role.ENTITY, name, institution=institution)
        asyncio.run(_topics(network, story))
        demo_archive.tell(network.home, folder, story)
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            story.show("stopping everything and removing the folder")
            network.down()
            shutil.rmtree(folder, ignore_errors=True)
    story.title("That was it. To try it yourself:")
    for line in (
        "tdn up",
        "tdn ca issue alice",
        "entity --as alice create --path weather/oslo",
        "entity --as alice discover --string oslo",
        "tdn archive export --to archive",
        "tdn-spark index --archive archive --index index",
        "tdn down",
    ):
        story.command(f".venv/bin/{line}")
    if not as_json:
        print()
    return 0


async def _topics(network: Network, story: Story) -> None:
    home = network.home
    async with contextlib.AsyncExitStack() as stack:

        async def client(name: str) -> EntityClient:
            return await stack.enter_async_context(await EntityClient.connect(home.credentials(Role.ENTITY, name), timeout=20.0))

        alice, bob, mallory = await client("alice"), await client("bob"), await client("mallory")
        topic = await _create(alice, bob, story)
        await _ask_and_hide(alice, bob, mallory, story)
        await _grow(alice, bob, story)
        await _talk(alice, bob, mallory, topic, story)
        await _attack(network, mallory, alice, topic, story)
        await _survive(network, alice, bob, story)
        await _end(network, alice, bob, mallory, topic, story)


async def _create(alice: EntityClient, bob: EntityClient, story: Story) -> Topic:
    with story.step(
        "Alice looks for nodes",
        "Her first message brings her certificate into the log; a node makes a reply queue that only she can read. Then she asks all "
        "nodes, and every one that serves her answers, signed, and encrypted to her key.",
    ):
        story.command("entity --as alice locate")
        async for node in alice.locate():
            story.show(f"node {node.id} of {node.institution!r} answered in {node.milliseconds:.1f} ms")
    with story.step(
        "Alice creates a topic",
        "The node mints a random UUID (nobody can bring their own and so claim another's topic), puts it into the synopsis, signs all "
        "of it and forgets it. Alice verifies the advertisement, then advertises it. Only then is it in the log, and she holds a receipt.",
    ):
        story.command("entity --as alice create --text 'Water temperature, Oslo fjord, hourly' --keyword sea --keyword oslo")
        topic = await alice.create(text("Water temperature, Oslo fjord, hourly", ["sea", "oslo"]))
        story.good(f"topic {topic.uuid}")
        story.show(
            f"minted by node {topic.advertisement.node} for {topic.advertisement.creator} of {topic.advertisement.institution!r}"
        )
    with story.step(
        "Bob discovers it",
        "Bob knows no name and no UUID. He asks every node in plain words; the answers are encrypted to him, the same topic from two "
        "nodes shows once, and each advertisement is verified against his own trust root before he sees it.",
    ):
        story.command("entity --as bob discover --string 'fjord temperature'")
        discovery = bob.discover("fjord temperature")
        found = [item async for item in discovery]
        _expect([item.uuid for item in found] == [topic.uuid], "bob found exactly that topic")
        story.good(f"found {found[0].uuid}, created by {found[0].advertisement.creator}")
        story.show(f"answered by {' and '.join(sorted(discovery.answered))}")
    with story.step(
        "Anyone verifies it, offline",
        "No network, no node: the signed bytes and the root certificate are enough, also years from now.",
    ):
        story.command("tdn verify topic.json")
        tokens = [topic.token.encode(), (topic.receipt or "").encode()]
        for verdict in judge(tokens, alice._session.credentials.roots):
            _expect(verdict.valid, "the statement verifies")
            story.good(f"{verdict.kind}: {verdict.proves[0]}")
    return topic


async def _ask_and_hide(alice: EntityClient, bob: EntityClient, mallory: EntityClient, story: Story) -> None:
    with story.step(
        "Five ways to ask",
        "Words, regular expressions, SQL over typed properties, XPath and XQuery over XML. Each runs in a process that can be killed, on "
        "indexes that only suggest: the exact meaning of the query has the last word.",
    ):
        buoy = await alice.create(properties(["station=buoy-7", "depth=12.5", "since=2026-01-01T00:00:00Z"]))
        river = await alice.create(xml('<station river="Aker"><sensor id="x42">level</sensor></station>'))
        for language, query, wanted in (
            ("regex", "station=buoy-[0-9]+", buoy),
            ("sql", "depth > 10 AND since < '2026-06-01T00:00:00Z'", buoy),
            ("xpath", '//sensor[@id = "x42"]', river),
            ("xquery", 'for $s in //sensor where $s = "level" return $s/@id', river),
        ):
            quote = '"' if "'" in query else "'"
            story.command(f"entity --as bob discover --{language} {quote}{query}{quote}")
            found = [item.uuid async for item in bob.discover(query, language=language)]
            _expect(found == [wanted.uuid], f"the {language} query finds exactly that topic")
        story.good("each found the one topic that it describes")
    with story.step(
        "A topic that only Bob may find, and one that only Bob can read",
        "Lists decide before a query runs: to Mallory the first topic is as absent as one that never was. The second is encrypted by Alice: "
        "nodes store it without knowing what it is about, nor for whom; Bob's client opens it and matches his query itself.",
    ):
        story.command("entity --as alice create --text 'Harbour survey' --discover-allow bob")
        listed = await alice.create(text("Harbour survey"), lists=lists(["bob"]))
        story.command("entity --as alice create --text 'Survey of the wreck' --sealed-for bob")
        hidden = await alice.create(text("Survey of the wreck"), sealed_for=["bob"])
        both = {item.uuid async for item in bob.discover("survey")}
        _expect(both == {listed.uuid, hidden.uuid}, "bob finds both")
        story.good("Bob finds both")
        _expect([item async for item in mallory.discover("survey")] == [], "mallory finds neither")
        story.good("Mallory finds neither")
        try:
            await mallory.show(listed.uuid)
        except Absent as error:
            story.good(f"and who tells her the UUID tells her nothing: {error}")
        else:
            raise TdnError("mallory sees the topic")


async def _grow(alice: EntityClient, bob: EntityClient, story: Story) -> None:
    with story.step(
        "A hierarchy with one slot left, and eight who want it",
        "Alice's topic takes one child. Eight requests go to both nodes at once: the log puts them in an order, and every node judges them alike. "
        "The child's signed bytes do not tell whose child it is.",
    ):
        story.command("entity --as alice create --path sports --allow-children --max-width 1")
        root = await alice.create(path("sports"), hosting=Hosting(allow_children=True, max_width=1))
        story.command(f"entity --as bob create --path sports/ski --parent {root.uuid}    # and seven more")
        tried = [who.create(path(f"sports/{number}"), parent=root.uuid) for number in range(4) for who in (alice, bob)]
        results = await asyncio.gather(*tried, return_exceptions=True)
        won = [result for result in results if isinstance(result, Topic)]
        lost = [result for result in results if isinstance(result, Refused)]
        _expect((len(won), len(lost)) == (1, 7), "exactly one of eight got the slot")
        story.good(f"{won[0].advertisement.creator} got it; seven were refused: {lost[0]}")
        bob.seen = max(bob.seen, alice.seen)
        below = [placed.uuid async for placed in bob.hierarchy.children(root.uuid)]
        _expect(below == [won[0].uuid], "the tree shows that one child")
    with story.step(
        "A collection, followed live",
        "Topics come and go; Bob follows. Each change that he may see is signed and numbered for him without holes, so that he would notice a lost "
        "one, and never learns of one that is hidden from him.",
    ):
        story.command("entity --as alice collection create --text 'Fjord streams'")
        fjord = await alice.create_collection(text("Fjord streams"))
        story.command(f"entity --as bob collection watch {fjord.uuid}")
        watching = bob.collections.watch(fjord.uuid)
        changes: asyncio.Queue[Change] = asyncio.Queue()

        async def follow() -> None:
            async for change in watching:
                changes.put_nowait(change)

        following = asyncio.create_task(follow())
        try:
            await asyncio.wait_for(watching.ready.wait(), 20.0)
            open_one = await alice.create(text("Waves at the mouth"))
            secret = await alice.create(text("Depth of the wreck"), lists=lists(deny=["bob"]))
            for member in (secret, open_one):
                await alice.collections.add(fjord.uuid, member.uuid)
            await alice.collections.remove(fjord.uuid, open_one.uuid)
            for wanted in ("added", "removed"):
                change = await asyncio.wait_for(changes.get(), 20.0)
                _expect((change.change, change.uuid) == (wanted, open_one.uuid), f"bob is told that it was {wanted}")
                story.good(
                    f"change {change.version}: {change.kind} {change.uuid} was {change.change}, signed by node {change.node}"
                )
            _expect(changes.empty(), "of the hidden topic bob hears nothing")
            story.good("of a third change, to a topic that is hidden from Bob, he has no number and no message")
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _talk(alice: EntityClient, bob: EntityClient, mallory: EntityClient, topic: Topic, story: Story) -> None:
    uuid = topic.uuid
    with story.step(
        "Alice lets Bob publish",
        "A grant is signed by the topic's owner and stands in the log; the broker itself asks the guard, which finds the chain from the minted "
        "topic to whoever publishes. Each topic has an exchange named by its UUID alone.",
    ):
        await _refused(lambda: bob.publish(uuid, "7.9 °C"), "Bob publishing without a grant", story)
        story.command(f"entity --as alice grant publish {uuid} bob --lifetime 1h")
        granted = await alice.grants.give("publish", uuid, "bob", lifetime=timedelta(hours=1))
        bob.seen = max(bob.seen, alice.seen)
        for sentence in judge([granted.token.encode()], alice._session.credentials.roots)[0].proves[:2]:
            story.show(f"`tdn verify`: {sentence}")
        async with alice.subscribe(uuid) as subscription:
            story.command(f"entity --as alice subscribe {uuid}")
            story.command(f"entity --as bob publish {uuid} --sign '7.9 °C'")
            await bob.publish(uuid, "7.9 °C", sign=True)
            message = await asyncio.wait_for(anext(subscription), 20.0)
        _expect((message.publisher, message.body.decode(), message.signed) == ("bob", "7.9 °C", True), "the message arrives")
        story.good(f"from {message.publisher}, signed: {message.body.decode()}")
        await _refused(lambda: mallory.publish(uuid, "99 °C"), "Mallory publishing", story)
    with story.step(
        "Alice takes it back while Bob is publishing",
        "RabbitMQ asks once and remembers the answer as long as a channel is open. So the guard closes the connection that holds the right, before "
        "Alice gets her receipt: what is published after it is not accepted.",
    ):
        accepted = 0
        began, ended = asyncio.Event(), asyncio.Event()

        async def go_on() -> None:
            nonlocal accepted
            try:
                async with bob.publisher(uuid) as publisher:
                    while True:
                        await publisher.publish("still here")
                        accepted += 1
                        began.set()
            except Refused:
                ended.set()

        publishing = asyncio.create_task(go_on())
        try:
            await asyncio.wait_for(began.wait(), 20.0)
            story.command(f"entity --as alice grant revoke {granted.id}")
            revocation = await alice.grants.revoke(granted.id)
            after = accepted
            await asyncio.wait_for(ended.wait(), 20.0)
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
        _expect(accepted == after and revocation.cut["connections"] == ["entity:bob"], "nothing was accepted after the receipt")
        story.good(
            f"{after} messages were accepted before, none after the receipt, which says: connections of "
            f"{', '.join(revocation.cut['connections'])} closed within {revocation.milliseconds} ms"
        )


async def _attack(network: Network, mallory: EntityClient, alice: EntityClient, topic: Topic, story: Story) -> None:
    with story.step(
        "Mallory, with a valid certificate, tries to cheat",
        "Having a certificate lets her ask questions. It lets her do nothing in another's name.",
    ):
        changed = topic.token.replace(".", ".A", 1)
        await _refused(lambda: _send_anyway(mallory, topic, changed), "an advertisement with a byte put in", story)
        await _refused(lambda: _send_anyway(mallory, topic, topic.token), "Alice's topic advertised as her own", story)
        await _refused(lambda: mallory.withdraw(topic.uuid), "withdrawing Alice's topic", story)
        who = mallory._session.credentials
        forged = signing.sign(
            "advertisement",
            _payload(topic),
            who.key,
            chain=who.identity.chain,
            with_chain=True,
            issued=_seconds(topic.advertisement),
        )
        await _refused(lambda: _send_anyway(mallory, topic, forged.decode()), "an advertisement that she signs herself", story)
        session = alice._session._session or names.new_session()
        queue = names.reply_queue(alice.identity.name, session)
        await _refused(lambda: _read_queue(network, who, queue), "reading Alice's replies at the broker", story)


async def _survive(network: Network, alice: EntityClient, bob: EntityClient, story: Story) -> None:
    with story.step(
        "A node is killed in the middle of it",
        "kill -9, as a power cut would. Changes wait in a quorum queue that all nodes share; whoever is left finishes them. The killed "
        "node continues from its store, and equal logs give equal states.",
    ):
        network.process(Role.NODE, "n1").kill_hard()
        story.show("node n1 is dead")
        topic = await alice.create(path("weather/oslo/tomorrow"))
        found = [item.uuid async for item in bob.discover("tomorrow")]
        _expect(found == [topic.uuid], "created and discovered with one node left")
        story.good(f"topic {topic.uuid} was created and discovered all the same")
        await asyncio.to_thread(network.start_one, Role.NODE, "n1")
        found = [item.uuid async for item in bob.discover("tomorrow", nodes=["n1"])]
        _expect(found == [topic.uuid], "the restarted node knows what happened while it was dead")
        story.good("node n1 is back and knows the topic that was made without it")


async def _end(
    network: Network, alice: EntityClient, bob: EntityClient, mallory: EntityClient, topic: Topic, story: Story
) -> None:
    with story.step(
        "Alice withdraws her topic", "Its UUID stays a tombstone in the log: it can never come back, not even by Alice."
    ):
        story.command(f"entity --as alice withdraw {topic.uuid}")
        decided = await alice.withdraw(topic.uuid)
        # Bob may ask a node that applies the record a moment later.
        bob.seen = max(bob.seen, decided.seq)
        try:
            await bob.show(topic.uuid)
        except Absent:
            story.good(f"record {decided.seq} of the log; for Bob the topic is gone")
        else:
            raise TdnError("the topic is still there")
    with story.step(
        "The operator revokes Mallory",
        "The revocation is a record in the log. The guard refuses her key from that record on, and ends the connection that she has open.",
    ):
        story.command("tdn ca revoke mallory")
        await asyncio.to_thread(network.operator.revoke, Role.ENTITY, "mallory")
        await network.operator.send_pending(timeout=20.0)
        line = mallory._session._line
        if line is not None:
            await asyncio.wait_for(asyncio.shield(line.connection.closed), 20.0)
        story.good("her open connection is closed")
        await _refused(lambda: mallory.show(topic.uuid), "her next attempt", story)


async def _refused(attempt: Callable[[], Awaitable[Any]], what: str, story: Story) -> None:
    try:
        await attempt()
    except (TrustError, Refused, MalformedMessage, UsageError) as error:
        story.good(f"{what}: refused ({error})")
        return
    raise TdnError(f"{what} was not refused")


async def _send_anyway(mallory: EntityClient, topic: Topic, token: str) -> None:
    """Advertise without the library's own check, so that it is the network that refuses."""
    reply = await mallory._session.change(
        "advertise", {"uuid": topic.uuid, "opening": topic.opening or {}}, message_id=new_id(), tail=token.encode(), timeout=20.0
    )
    raise TdnError(f"the network answered {reply.kind}")


async def _read_queue(network: Network, who: credentials.Credentials, queue: str) -> None:
    settings = network.home.connection()
    connection = await Connection.open(settings.brokers, who, vhost=settings.vhost)
    try:
        channel = await connection.channel()
        await channel.consume(queue, lambda delivery: None)
    finally:
        await connection.close()


def _payload(topic: Topic) -> dict[str, Any]:
    claims: dict[str, Any] = jsontext.parse(signing.decode_segment(topic.token.split(".")[1].encode()))
    return claims


def _seconds(advertisement: Advertisement) -> int:
    return int(advertisement.created.timestamp())


def _expect(held: bool, what: str) -> None:
    if not held:
        raise TdnError(f"the demo expected this, and it did not happen: {what}")


def _took(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
