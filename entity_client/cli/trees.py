"""`entity hierarchy`, `entity collection` and `entity countersign`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from entity_client.cli.present import (
    LINE,
    Act,
    Command,
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
    until_told,
)
from entity_client.client import COUNTERSIGNED, EntityClient
from entity_client.objects import Change, Placed
from entity_client.watching import Watching
from tdn.cli import output
from tdn.cli.output import emit, note
from tdn.errors import UsageError
from tdn.protocol.access import COLLECTION_LISTS, lists
from tdn.protocol.names import check_id, check_uuid
from tdn.protocol.times import describe_duration, parse_duration
from tdn.protocol.trees import Gathering, Limits, check_limit

Look = Callable[..., AsyncGenerator[Placed, None]]


def add_commands(command: Command, commands: Any) -> None:
    _add_hierarchy(command, _group(commands, "hierarchy", "look at topics below topics, and follow their changes"))
    _add_collection(
        command, _group(commands, "collection", "gather topics and collections, look at them, and follow their changes")
    )
    countersign = command(
        "countersign", _countersign, "let an entity do with something of yours as if it were you; give it what is printed"
    )
    countersign.add_argument(
        "right",
        choices=COUNTERSIGNED,
        help="look at its tree, register a child below it, or include it in a collection",
    )
    countersign.add_argument("uuid", metavar="UUID", type=check_uuid)
    countersign.add_argument("entity", metavar="ENTITY", type=check_id)
    countersign.add_argument("--collection", metavar="UUID", type=check_uuid, help="with include: in this collection only")
    countersign.add_argument("--lifetime", type=parse_duration, default=timedelta(hours=1), metavar="D", help="default: 1h")


def _group(commands: Any, name: str, text: str) -> Any:
    """A command with commands of its own."""
    group = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return group.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")


def _add_hierarchy(command: Command, under: Any) -> None:
    for name, text in (
        ("parents", "the topics above a topic, the nearest first, as far as you may see"),
        ("children", "the topics directly below a topic (with --depth: down to there)"),
        ("tree", "a topic and all below it"),
    ):
        _add_looking(command(name, _looking("hierarchy", name), text, under), "UUID")
    _add_watching(command, under, "hierarchy", "UUID", "a topic's subtree")


def _add_collection(command: Command, under: Any) -> None:
    create = command("create", _create_collection, "create a collection, verify its advertisement and advertise it", under)
    add_description(create)
    shape = create.add_argument_group("what it holds")
    shape.add_argument(
        "--max-breadth",
        type=check_limit,
        default=0,
        metavar="N",
        help="direct members of every collection of the tree (default: 0, no limit)",
    )
    shape.add_argument(
        "--max-depth",
        type=check_limit,
        default=0,
        metavar="N",
        help="levels of collections, its own included (default: 0, no limit)",
    )
    shape.add_argument(
        "--max-topics", type=check_limit, default=0, metavar="N", help="distinct topics in the tree (default: 0, no limit)"
    )
    shape.add_argument("--fixed", action="store_true", help="its members never change; name them here")
    shape.add_argument(
        "--member", action="append", default=[], type=check_uuid, metavar="UUID", help="a first member; repeat it for more"
    )
    add_member_countersignatures(shape)
    shape.add_argument("--allow-child-collections", action="store_true", help="let collections be put into it")
    shape.add_argument("--allow-inclusion", action="store_true", help="let it be put into other collections")
    access = create.add_argument_group(f"who may {E}")
    add_lists(access, "discover", "only these may discover it", "these may not discover it")
    add_lists(access, "add", "these may add to it (default: you alone)", "these may not add to it")
    add_lists(access, "owner", "whose topics it takes, in its whole tree (default: yours alone)", "whose topics it does not take")
    add_lists(access, "watch", "only these may follow it (default: who may discover it)", "these may not follow it")
    add_lists(access, "include", "these may put it into other collections (default: you alone)", "these may not")
    create.add_argument(
        "--no-advertise", action="store_true", help="only mint: keep the advertisement for `entity advertise`, within a day"
    )

    for name, act, text in (
        ("add", _add, "put a topic or collection of yours into a collection"),
        ("remove", _remove, "take a member out of a collection"),
    ):
        added = command(name, act, text, under)
        added.add_argument("collection", metavar="COLLECTION", type=check_uuid)
        added.add_argument("uuid", metavar="UUID", type=check_uuid)
        if name == "add":
            _add_countersigned(added, "its owner", "include")
            add_passing_on(added, "the collection's owner")
    move = command("move", _move, "take a topic or collection out of one collection and put it into another", under)
    move.add_argument("uuid", metavar="UUID", type=check_uuid)
    move.add_argument("--from", dest="source", required=True, metavar="COLLECTION", type=check_uuid)
    move.add_argument("--to", dest="target", required=True, metavar="COLLECTION", type=check_uuid)
    _add_countersigned(move, "its owner", "include")

    for name, text, what in (
        ("topics", "the topics in a collection and in the collections inside it, each once", "COLLECTION"),
        ("collections", "the collections inside a collection", "COLLECTION"),
        ("of", "the collections that a topic or collection is in, those that hold it directly first", "UUID"),
    ):
        _add_looking(command(name, _looking("collections", "containing" if name == "of" else name), text, under), what)
    _add_watching(command, under, "collections", "COLLECTION", "a collection and all inside it")


def _add_looking(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("uuid", metavar=what, type=check_uuid)
    parser.add_argument("--depth", type=_positive, metavar="N", help="no further than so many levels")
    _add_countersigned(parser, "its owner", "discover")


def _add_watching(command: Command, under: Any, kind: str, what: str, text: str) -> None:
    watch = command("watch", _watching(kind), f"stay, and show changes of {text} as they happen", under)
    watch.add_argument("uuid", metavar=what, type=check_uuid)
    watch.add_argument("--count", type=_positive, metavar="N", help="end after so many changes")
    watch.add_argument(
        "--since", type=_version, metavar="VERSION", help="begin with what was told after this version (default: now)"
    )
    unwatch = command("unwatch", _unwatching(kind), f"follow {text} no longer", under)
    unwatch.add_argument("uuid", metavar=what, type=check_uuid)


def _add_countersigned(parser: argparse.ArgumentParser, who: str, right: str) -> None:
    parser.add_argument("--countersigned", metavar="FILE|-", help=f"what {who} printed with `entity countersign {right}`")


def _token(arguments: argparse.Namespace) -> str | None:
    return read_text(arguments.countersigned).strip() if arguments.countersigned else None


# --- looking ---


def _looking(kind: str, what: str) -> Act:
    async def act(client: EntityClient, arguments: argparse.Namespace) -> None:
        look: Look = getattr(getattr(client, kind), what)
        found = 0
        async with contextlib.aclosing(look(arguments.uuid, depth=arguments.depth, countersigned=_token(arguments))) as seen:
            async for placed in seen:
                if arguments.json:
                    emit(placed.as_object())
                else:
                    if not found:
                        print(LINE.format("UUID", "OWNER", "EXPIRES IN", "ABOUT"))
                    _print_placed(placed, what)
                found += 1
        if not found and not arguments.json:
            note("nothing found")

    return act


def _print_placed(placed: Placed, what: str) -> None:
    topic = placed.topic
    left = describe_duration(topic.expires - datetime.now(UTC))
    # In a tree, how deep a topic is shows; elsewhere all are of one sort.
    inset = "  " * placed.depth if what in ("tree", "collections") else ""
    output.say(LINE.format(topic.uuid, cut(topic.owner, 16), left, inset + cut(about(topic), 60)))


# --- changing ---


async def _create_collection(client: EntityClient, arguments: argparse.Namespace) -> None:
    if arguments.fixed and not arguments.member:
        raise UsageError("a fixed collection never changes: name its members with --member")
    topic = await client.create_collection(
        descriptor_of(arguments),
        Gathering(
            arguments.fixed,
            Limits(arguments.max_breadth, arguments.max_depth, arguments.max_topics),
            arguments.allow_child_collections,
            arguments.allow_inclusion,
        ),
        members=arguments.member,
        synopsis_type=arguments.synopsis_type,
        placeholder=arguments.synopsis,
        lifetime=arguments.lifetime,
        node=arguments.node,
        lists={
            subject: lists(getattr(arguments, f"{subject}_allow"), getattr(arguments, f"{subject}_deny"))
            for subject in COLLECTION_LISTS
        },
        countersigned=member_countersignatures(arguments),
        advertise=not arguments.no_advertise,
    )
    if arguments.json:
        emit(topic.as_object())
        return
    print_topic(topic)
    if topic.receipt is None:
        note("minted, not advertised: nobody can discover it yet; save it with --json, then `entity advertise FILE` within a day")


async def _add(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.collections.add(arguments.collection, arguments.uuid, countersigned=_token(arguments))
    await pass_on(client, arguments, arguments.uuid, arguments.collection)
    print_decided(
        decided.as_object(), arguments, f"{decided.uuid} is in collection {decided.collection}: record {decided.seq} of the log"
    )


async def _remove(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.collections.remove(arguments.collection, arguments.uuid)
    print_decided(
        decided.as_object(),
        arguments,
        f"{decided.uuid} is out of collection {decided.collection}: record {decided.seq} of the log",
    )


async def _move(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.collections.move(
        arguments.uuid, source=arguments.source, target=arguments.target, countersigned=_token(arguments)
    )
    print_decided(
        decided.as_object(),
        arguments,
        f"{decided.uuid} is now in collection {decided.collection}: record {decided.seq} of the log",
    )


async def _countersign(client: EntityClient, arguments: argparse.Namespace) -> None:
    token = client.countersign(
        arguments.right, arguments.uuid, arguments.entity, collection=arguments.collection, lifetime=arguments.lifetime
    )
    if arguments.json:
        emit({"right": arguments.right, "uuid": arguments.uuid, "entity": arguments.entity, "countersignature": token})
    else:
        output.say(token)


# --- following ---


def _watching(kind: str) -> Act:
    async def act(client: EntityClient, arguments: argparse.Namespace) -> None:
        watching: Watching = getattr(client, kind).watch(arguments.uuid, since=arguments.since)

        async def announce() -> None:
            await watching.ready.wait()
            note(f"following {arguments.uuid} from version {watching.version} on; Ctrl-C ends it")

        async def show() -> None:
            announcing = asyncio.create_task(announce())
            shown = 0
            try:
                async with contextlib.aclosing(aiter(watching)) as changes:
                    async for change in changes:
                        _print_change(change, arguments)
                        shown += 1
                        if shown == arguments.count:
                            return
                note(f"{arguments.uuid} has ended")
            finally:
                announcing.cancel()

        await until_told(show())

    return act


def _unwatching(kind: str) -> Act:
    async def act(client: EntityClient, arguments: argparse.Namespace) -> None:
        decided = await getattr(client, kind).unwatch(arguments.uuid)
        print_decided(decided.as_object(), arguments, f"{decided.uuid} is followed no longer: record {decided.seq} of the log")

    return act


def _print_change(change: Change, arguments: argparse.Namespace) -> None:
    if arguments.json:
        emit(change.as_object())
    else:
        where = f"  in {change.inside}" if change.inside is not None else ""
        output.say(f"{change.version:6}  {change.at}  {change.change:9}  {change.kind:10}  {change.uuid}{where}")


def _positive(text: str) -> int:
    if not _is_number(text) or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{text[:40]!r} is not a whole number from 1 to 1000000")
    return int(text)


def _version(text: str) -> int:
    if not _is_number(text) or int(text) > 10**12:
        raise UsageError(f"{text[:40]!r} is no version; write the last one that you were told, or 0")
    return int(text)


def _is_number(text: str) -> bool:
    """Whether it is a whole number, of a length that Python reads."""
    return text.isascii() and text.isdigit() and len(text) <= 20
