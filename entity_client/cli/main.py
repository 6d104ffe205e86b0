"""`entity`: create, advertise and discover topics from a terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from entity_client.cli import grants, trees
from entity_client.cli.present import (
    LINE,
    Act,
    E,
    about,
    add_description,
    add_lists,
    add_member_countersignatures,
    add_passing_on,
    cut,
    descriptor_of,
    member_countersignatures,
    pass_on,
    print_decided,
    print_topic,
    read_text,
    tell_ages,
    until_told,
)
from entity_client.client import EntityClient
from entity_client.objects import told_as_of
from tdn.cli import output
from tdn.cli.output import add_globals, add_json, emit, note, table
from tdn.errors import TdnError, TrustError, UsageError
from tdn.home_form import require_version
from tdn.protocol import schemas
from tdn.protocol.access import lists
from tdn.protocol.names import check_id, check_uuid
from tdn.protocol.times import describe_duration, format_time, parse_duration, parse_time
from tdn.protocol.trees import Hosting, check_limit
from tdn.queries.compile import LANGUAGES
from tdn.queries.times import ANY_TIME, Times


def build_parser() -> argparse.ArgumentParser:
    parser = output.Parser(prog="entity", description="Create signed topics, discover them, and publish and subscribe to them.")
    add_globals(parser)
    parser.add_argument(
        "--as", dest="name", default=os.environ.get("TDN_ENTITY"), metavar="NAME", help="who you are (default: $TDN_ENTITY)"
    )
    parser.add_argument(
        "--credentials", type=Path, metavar="DIR", help="a folder of credentials from elsewhere, instead of --home and --as"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, act: Act, text: str, under: Any = commands) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = under.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(perform=lambda arguments: _perform(act, arguments))
        add_json(added)
        return added

    command("locate", _locate, "find the nodes that answer")

    create = command("create", _create, "create a topic, verify its advertisement and advertise it")
    add_description(create)
    place = create.add_argument_group("place in a hierarchy")
    place.add_argument("--parent", metavar="UUID", type=check_uuid, help="register it as a child of this topic")
    place.add_argument("--allow-children", action="store_true", help="let topics be registered below it")
    place.add_argument(
        "--max-depth",
        type=check_limit,
        metavar="N",
        help="levels of the subtree, its own included; 0: no limit (default: what its ancestors leave)",
    )
    place.add_argument(
        "--max-width",
        type=check_limit,
        metavar="N",
        help="children of every topic of the subtree; 0: no limit (default: what its ancestors leave)",
    )
    place.add_argument(
        "--countersigned", metavar="FILE|-", help="what the parent's owner printed with `entity countersign register`"
    )
    add_passing_on(place, "the parent's owner")
    access = create.add_argument_group(f"who may know, and who may register below it {E}; what is below inherits the lists")
    add_lists(access, "discover", "only these may discover it", "these may not discover it")
    add_lists(access, "hierarchy", "only these may see its place in a hierarchy", "these may not see its place")
    add_lists(access, "register", "only these may register children", "these may not register children")
    access.add_argument(
        "--sealed-for",
        action="append",
        metavar="E",
        help="encrypt the descriptor for this entity (its id) and yourself: nobody else can read or search it; repeat it for more",
    )
    create.add_argument(
        "--no-advertise", action="store_true", help="only mint: keep the advertisement for `entity advertise`, within a day"
    )

    advertise = command("advertise", _advertise, "advertise a topic that was created with --no-advertise")
    advertise.add_argument("file", metavar="FILE|-", help="what `entity create` printed with --json, or the signed bytes alone")
    add_member_countersignatures(advertise)

    show = command("show", _show, "show one topic with its present status")
    renew = command("renew", _renew, "give a topic of yours a new lifetime, counted from now")
    withdraw = command("withdraw", _withdraw, "end a topic of yours, for ever")
    for added in (show, renew, withdraw):
        added.add_argument("uuid", metavar="UUID", type=check_uuid)
    renew.add_argument("--lifetime", type=parse_duration, required=True, metavar="D")

    discover = command("discover", _discover, "find topics; each is verified before it is shown")
    languages = discover.add_argument_group("query (at most one; a query, a time filter, or both)")
    one = languages.add_mutually_exclusive_group()
    one.add_argument("--string", metavar="S", help="every word of S stands in the topic, whatever the case")
    one.add_argument("--regex", metavar="R", help="a regular expression (RE2) over the descriptor")
    one.add_argument("--sql", metavar="S", help="a WHERE predicate, or a SELECT, over properties and fields")
    one.add_argument("--xpath", metavar="X", help="XPath 3.1 over XML descriptors: true, or something found")
    one.add_argument("--xquery", metavar="Q", help="XQuery 3.1 over XML descriptors: true, or something found")
    times = discover.add_argument_group("times (T: 2027-01-31T12:00:00Z, D: 90s, 15m, 12h, 30d)")
    for name in ("created-after", "created-before", "expires-after", "expires-before"):
        kept = "at T or later" if name.endswith("after") else "before T"
        times.add_argument(f"--{name}", type=parse_time, metavar="T", help=f"{name.partition('-')[0]} {kept}")
    times.add_argument("--valid-at-least", type=parse_duration, metavar="D", help="from creation to expiry at least D")
    times.add_argument("--valid-at-most", type=parse_duration, metavar="D", help="from creation to expiry at most D")
    discover.add_argument("--node", action="append", default=[], metavar="ID", help="ask this node only; repeat it for a subset")
    discover.add_argument("--limit", type=_limit, default=100, metavar="N", help="default: 100")
    discover.add_argument("--cursor", metavar="C", help="go on after an earlier answer")
    discover.add_argument(
        "--count", action="store_true", help="say how many match that you may see, at one node, rather than which"
    )

    trees.add_commands(command, commands)
    grants.add_commands(command, commands)
    command("answer", _answer, "stay, and answer for your own topics while no node is there")
    return parser


def run() -> None:
    """Entry point of the `entity` command."""
    sys.exit(output.run(build_parser()))


def _perform(act: Act, arguments: argparse.Namespace) -> int | None:
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("pika").setLevel(logging.CRITICAL)

    async def session() -> int | None:
        async with await EntityClient.connect(_folder(arguments), timeout=arguments.timeout) as client:
            try:
                return await act(client, arguments)
            finally:
                tell_ages(client)

    return asyncio.run(session())


def _folder(arguments: argparse.Namespace) -> Path:
    if arguments.credentials is not None:
        if not arguments.credentials.is_dir():
            raise TrustError(f"there is no folder of credentials {arguments.credentials}; copy an entity's from the operator's home: entities/NAME in it")
        return Path(arguments.credentials)
    if not arguments.name:
        raise UsageError("say who you are: `entity --as NAME …`, or set $TDN_ENTITY")
    require_version(arguments.home)
    folder = Path(arguments.home) / "entities" / check_id(arguments.name)
    if not folder.is_dir():
        known = sorted(path.parent.name for path in folder.parent.glob("*/cert.pem"))
        raise TrustError(
            f"there is no entity {arguments.name!r} in {arguments.home.absolute()} (known: {', '.join(known[:10]) or 'none'}{' …' if len(known) > 10 else ''}); "
            f"`tdn ca issue {arguments.name}` makes it, or name another home with --home"
        )
    return folder


async def _locate(client: EntityClient, arguments: argparse.Namespace) -> None:
    rows = []
    async for node in client.locate():
        if arguments.json:
            emit(node.as_object())
        rows.append(
            (
                node.id,
                node.institution,
                f"{node.milliseconds:.1f}",
                "everyone" if node.policy.get("answers") == ["*"] else ", ".join(map(str, node.policy.get("answers", []))),
            )
        )
    if not arguments.json:
        table(rows, ("NODE", "INSTITUTION", "MILLISECONDS", "ANSWERS"))


async def _create(client: EntityClient, arguments: argparse.Namespace) -> None:
    if arguments.pass_on and (arguments.parent is None or arguments.no_advertise):
        raise UsageError("--pass-on goes with --parent, for a topic that is advertised at once")
    topic = await client.create(
        descriptor_of(arguments),
        synopsis_type=arguments.synopsis_type,
        placeholder=arguments.synopsis,
        lifetime=arguments.lifetime,
        node=arguments.node,
        lists=lists(arguments.discover_allow, arguments.discover_deny),
        hierarchy=lists(arguments.hierarchy_allow, arguments.hierarchy_deny),
        register=lists(arguments.register_allow, arguments.register_deny),
        parent=arguments.parent,
        hosting=_hosting(arguments),
        countersigned=read_text(arguments.countersigned).strip() if arguments.countersigned else None,
        sealed_for=arguments.sealed_for,
        advertise=not arguments.no_advertise,
    )
    if arguments.parent and topic.receipt is not None:
        await pass_on(client, arguments, topic.uuid, arguments.parent)
    if arguments.json:
        emit(topic.as_object())
        return
    print_topic(topic)
    if topic.receipt is None:
        within = "a minute: its slot is kept no longer" if arguments.parent else "a day"
        note(
            f"minted, not advertised: nobody can discover it yet; save it with --json, then `entity advertise FILE` within {within}"
        )


def _hosting(arguments: argparse.Namespace) -> Hosting | None:
    asked = Hosting(arguments.allow_children, arguments.max_depth, arguments.max_width)
    return asked if asked != Hosting() else None


async def _advertise(client: EntityClient, arguments: argparse.Namespace) -> None:
    text = read_text(arguments.file).strip()
    opening = None
    if text.startswith("{"):
        try:
            line = json.loads(text)
            text, opening = str(line["advertisement"]), line.get("opening")
            if opening is not None:
                schemas.check("opening", opening)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{arguments.file} holds no advertisement") from error
    decided = await client.advertise(text, opening=opening, countersigned=member_countersignatures(arguments))
    print_decided(decided.as_object(), arguments, f"topic {decided.uuid} is advertised: record {decided.seq} of the log")


async def _show(client: EntityClient, arguments: argparse.Namespace) -> None:
    topic = await client.show(arguments.uuid)
    if arguments.json:
        emit(topic.as_object())
    else:
        print_topic(topic)


async def _renew(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.renew(arguments.uuid, arguments.lifetime)
    until = format_time(decided.expires) if decided.expires else "?"
    until += ", when its parent ends" if decided.cut else ""
    print_decided(
        decided.as_object(), arguments, f"topic {decided.uuid} now lasts until {until}: record {decided.seq} of the log"
    )


async def _withdraw(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.withdraw(arguments.uuid)
    print_decided(decided.as_object(), arguments, f"topic {decided.uuid} is withdrawn for ever: record {decided.seq} of the log")


async def _discover(client: EntityClient, arguments: argparse.Namespace) -> int:
    language, query = _query(arguments)
    times = _times(arguments)
    try:
        return await _look_for(client, arguments, language, query, times)
    except TdnError as error:
        if "position" in error.detail:
            # So that the place can be pointed at.
            error.detail["query"] = query
        raise


async def _look_for(client: EntityClient, arguments: argparse.Namespace, language: str, query: str | None, times: Times) -> int:
    if query is None and times == ANY_TIME:
        raise UsageError("say what to look for: --string, --regex, --sql, --xpath or --xquery, or a time such as --created-after")
    if arguments.count:
        return await _count(client, arguments, language, query, times)
    found = 0
    discovery = client.discover(
        query, language=language, times=times, nodes=arguments.node, limit=arguments.limit, cursor=arguments.cursor
    )
    async for topic in discovery:
        if arguments.json:
            emit(topic.as_object())
        else:
            if not found:
                print(LINE.format("UUID", "CREATOR", "EXPIRES IN", "ABOUT"))
            left = describe_duration(topic.expires - datetime.now(UTC))
            output.say(LINE.format(topic.uuid, cut(topic.advertisement.creator, 16), left, cut(about(topic), 60)))
        found += 1
    for node, error in discovery.disbelieved:
        note(f"warning: node {node} gave an advertisement that does not verify and was not shown: {error}")
    for node in sorted(discovery.silent):
        note(f"warning: node {node} did not answer in time")
    for node in sorted(discovery.declined):
        note(f"node {node} answers others only, by its policy")
    for node, message in sorted(discovery.failed.items()):
        note(f"warning: node {node}: {message}")
    if discovery.unopened:
        note(
            f"warning: {discovery.unopened} sealed topics were not tried, there are too many; narrow the times, as with --created-after"
        )
    if discovery.peers:
        note(f"no node answered; these entities answered for their own topics: {', '.join(sorted(discovery.peers))}")
    if not found and not arguments.json:
        note("nothing found")
    if discovery.cursor is not None:
        note(f"there is more: --cursor {discovery.cursor}")
    if discovery.answered:
        await client.prepare_for_silence()
    return 0


async def _count(client: EntityClient, arguments: argparse.Namespace, language: str, query: str | None, times: Times) -> int:
    if arguments.cursor is not None:
        raise UsageError("--count counts all of them; leave out --cursor")
    for wanted in arguments.node or [None]:
        node, total = await client.count(query, language=language, times=times, node=wanted)
        if arguments.json:
            age = client.ages.get(node)
            emit({"node": node, "count": total, **told_as_of(age.as_of if age is not None else None)})
        else:
            output.say(f"{total} at node {node}")
    return 0


def _query(arguments: argparse.Namespace) -> tuple[str, str | None]:
    for language in LANGUAGES:
        query: str | None = getattr(arguments, language)
        if query is not None:
            return language, query
    return "string", None


def _times(arguments: argparse.Namespace) -> Times:
    least, most = arguments.valid_at_least, arguments.valid_at_most
    return Times(
        arguments.created_after,
        arguments.created_before,
        arguments.expires_after,
        arguments.expires_before,
        int(least.total_seconds()) if least is not None else None,
        int(most.total_seconds()) if most is not None else None,
    )


async def _answer(client: EntityClient, arguments: argparse.Namespace) -> None:
    answering = client.answering()

    async def announce() -> None:
        await answering.ready.wait()
        note(f"ready to answer for {answering.topics} topics of {client.identity.name.id} while no node is there; Ctrl-C ends it")

    async def tell() -> None:
        async with contextlib.aclosing(answering.run()) as answered:
            async for answer in answered:
                if arguments.json:
                    emit(answer.as_object())
                else:
                    output.say(f"answered {answer.asker}: {answer.topics} topics")

    async def both() -> None:
        announcing = asyncio.create_task(announce())
        try:
            await tell()
        finally:
            announcing.cancel()

    await until_told(both())


def _limit(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise UsageError("--limit is between 1 and 10000")
    return int(text)


if __name__ == "__main__":
    run()
