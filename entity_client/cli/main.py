"""`entity`: create, advertise and discover topics from a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from entity_client.client import EntityClient
from entity_client.objects import Topic
from tdn.cli import output
from tdn.cli.output import add_globals, add_json, emit, note, table
from tdn.errors import UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol.names import check_id, check_uuid
from tdn.protocol.times import describe_duration, format_time, parse_duration

Act = Callable[[EntityClient, argparse.Namespace], Awaitable[int | None]]


def build_parser() -> argparse.ArgumentParser:
    parser = output.Parser(prog="entity", description="Create signed topics and discover them.")
    add_globals(parser)
    parser.add_argument(
        "--as", dest="name", default=os.environ.get("TDN_ENTITY"), metavar="NAME", help="who you are (default: $TDN_ENTITY)"
    )
    parser.add_argument(
        "--credentials", type=Path, metavar="DIR", help="a folder of credentials from elsewhere, instead of --home and --as"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, act: Act, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(perform=lambda arguments: _perform(act, arguments))
        add_json(added)
        return added

    command("locate", _locate, "find the nodes that answer")

    create = command("create", _create, "create a topic, verify its advertisement and advertise it")
    kinds = create.add_argument_group("descriptor (one kind)")
    kinds.add_argument("--path", metavar="P", help="steps separated by '/'")
    kinds.add_argument("--text", metavar="T", help="a description")
    kinds.add_argument("--keyword", action="append", default=[], metavar="K", help="with --text; repeat it for more")
    kinds.add_argument(
        "--property", action="append", default=[], metavar="K=V", help="typed by its form, or K:TYPE=V; repeat it for more"
    )
    kinds.add_argument("--xml", metavar="FILE", help="an XML document, '-' for standard input")
    create.add_argument("--synopsis-type", default="string", choices=("string", "tags", "properties", "xml"))
    create.add_argument("--synopsis", metavar="TEMPLATE", help="with {uuid} once, where the minted UUID goes")
    create.add_argument("--lifetime", type=parse_duration, default=timedelta(days=1), metavar="D", help="default: 1d")
    create.add_argument("--node", metavar="ID", help="which node mints (default: the one chosen before, or the first to answer)")
    create.add_argument(
        "--no-advertise", action="store_true", help="only mint: keep the advertisement for `entity advertise`, within a day"
    )

    advertise = command("advertise", _advertise, "advertise a topic that was created with --no-advertise")
    advertise.add_argument("file", metavar="FILE|-", help="what `entity create` printed with --json, or the signed bytes alone")

    show = command("show", _show, "show one topic with its present status")
    renew = command("renew", _renew, "give a topic of yours a new lifetime, counted from now")
    withdraw = command("withdraw", _withdraw, "end a topic of yours, for ever")
    for added in (show, renew, withdraw):
        added.add_argument("uuid", metavar="UUID", type=check_uuid)
    renew.add_argument("--lifetime", type=parse_duration, required=True, metavar="D")

    discover = command("discover", _discover, "find topics; each is verified before it is shown")
    discover.add_argument("--string", metavar="S", help="every word of S stands in the topic, whatever the case")
    discover.add_argument("--node", action="append", default=[], metavar="ID", help="ask this node only; repeat it for a subset")
    discover.add_argument("--limit", type=_limit, default=100, metavar="N", help="default: 100")
    discover.add_argument("--cursor", metavar="C", help="go on after an earlier answer")
    return parser


def run() -> None:
    """Entry point of the `entity` command."""
    sys.exit(output.run(build_parser()))


def _perform(act: Act, arguments: argparse.Namespace) -> int | None:
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("pika").setLevel(logging.CRITICAL)

    async def session() -> int | None:
        async with await EntityClient.connect(_folder(arguments), timeout=arguments.timeout) as client:
            return await act(client, arguments)

    return asyncio.run(session())


def _folder(arguments: argparse.Namespace) -> Path:
    if arguments.credentials is not None:
        return Path(arguments.credentials)
    if not arguments.name:
        raise UsageError("say who you are: `entity --as NAME …`, or set $TDN_ENTITY")
    return Path(arguments.home) / "entities" / check_id(arguments.name)


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
                "everyone" if node.policy.get("answers") == ["*"] else "restricted",
            )
        )
    if not arguments.json:
        table(rows, ("NODE", "INSTITUTION", "MILLISECONDS", "ANSWERS"))


async def _create(client: EntityClient, arguments: argparse.Namespace) -> None:
    topic = await client.create(
        _descriptor(arguments),
        synopsis_type=arguments.synopsis_type,
        placeholder=arguments.synopsis,
        lifetime=arguments.lifetime,
        node=arguments.node,
        advertise=not arguments.no_advertise,
    )
    if arguments.json:
        emit(topic.as_object())
        return
    _print_topic(topic)
    if topic.receipt is None:
        note("minted, not advertised: nobody can discover it yet; save it with --json, then `entity advertise FILE` within a day")


def _descriptor(arguments: argparse.Namespace) -> descriptors.Descriptor:
    given = [bool(arguments.path), bool(arguments.text), bool(arguments.property), bool(arguments.xml)]
    if sum(given) != 1:
        raise UsageError("say what the topic is about in one way: --path, --text, --property or --xml")
    if arguments.keyword and not arguments.text:
        raise UsageError("--keyword goes with --text")
    if arguments.path:
        return descriptors.path(arguments.path)
    if arguments.text:
        return descriptors.text(arguments.text, arguments.keyword)
    if arguments.property:
        return descriptors.properties(arguments.property)
    return descriptors.xml(_read_text(arguments.xml))


async def _advertise(client: EntityClient, arguments: argparse.Namespace) -> None:
    text = _read_text(arguments.file).strip()
    if text.startswith("{"):
        try:
            text = str(json.loads(text)["advertisement"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{arguments.file} holds no advertisement") from error
    decided = await client.advertise(text)
    _print_decided(decided.as_object(), arguments, f"topic {decided.uuid} is advertised: record {decided.seq} of the log")


async def _show(client: EntityClient, arguments: argparse.Namespace) -> None:
    topic = await client.show(arguments.uuid)
    if arguments.json:
        emit(topic.as_object())
    else:
        _print_topic(topic)


async def _renew(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.renew(arguments.uuid, arguments.lifetime)
    until = format_time(decided.expires) if decided.expires else "?"
    _print_decided(
        decided.as_object(), arguments, f"topic {decided.uuid} now lasts until {until}: record {decided.seq} of the log"
    )


async def _withdraw(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.withdraw(arguments.uuid)
    _print_decided(decided.as_object(), arguments, f"topic {decided.uuid} is withdrawn for ever: record {decided.seq} of the log")


async def _discover(client: EntityClient, arguments: argparse.Namespace) -> int:
    if arguments.string is None:
        raise UsageError("say what to look for: --string WORDS")
    found = 0
    discovery = client.discover(arguments.string, nodes=arguments.node, limit=arguments.limit, cursor=arguments.cursor)
    async for topic in discovery:
        if arguments.json:
            emit(topic.as_object())
        else:
            if not found:
                print(_LINE.format("UUID", "CREATOR", "EXPIRES IN", "ABOUT"))
            left = describe_duration(topic.expires - datetime.now(UTC))
            output.say(_LINE.format(topic.uuid, _cut(topic.advertisement.creator, 16), left, _cut(_about(topic), 60)))
        found += 1
    for node, error in discovery.disbelieved:
        note(f"warning: node {node} gave an advertisement that does not verify and was not shown: {error}")
    for node in sorted(discovery.silent):
        note(f"warning: node {node} did not answer in time")
    if not found and not arguments.json:
        note("nothing found")
    if discovery.cursor is not None:
        note(f"there is more: --cursor {discovery.cursor}")
    return 0


_LINE = "{:36}  {:16}  {:10}  {}"


def _print_topic(topic: Topic) -> None:
    values = topic.as_object()
    rows: dict[str, Any] = {key: values[key] for key in ("uuid", "creator", "owner", "institution", "created", "expires")}
    rows["about"] = _about(topic)
    rows["synopsis"] = topic.synopsis
    rows["signed by"] = f"node {topic.advertisement.node}, verified"
    if topic.receipt is not None:
        rows["receipt"] = "in the log, verified"
    output.record(rows)


def _print_decided(value: dict[str, Any], arguments: argparse.Namespace, sentence: str) -> None:
    if arguments.json:
        emit(value)
    else:
        output.say(sentence)


def _about(topic: Topic) -> str:
    return " | ".join(descriptors.searchable(topic.advertisement.descriptor).split("\n"))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _read_text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8") from error


def _limit(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise UsageError("--limit is between 1 and 10000")
    return int(text)


if __name__ == "__main__":
    run()
