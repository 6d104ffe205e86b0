"""What the `entity` commands have in common: descriptors from arguments, topics for a person, staying until one is told to end."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from entity_client.client import EntityClient
from entity_client.objects import Topic
from tdn.cli import output
from tdn.cli.output import emit, note
from tdn.errors import UsageError
from tdn.protocol import descriptor as descriptors
from tdn.protocol.access import NO_LISTS
from tdn.protocol.times import describe_duration, parse_duration
from tdn.trust.grants import RIGHTS

Act = Callable[[EntityClient, argparse.Namespace], Awaitable[int | None]]


class Command(Protocol):
    """Makes a command: its name, what it does, what it is for, and under which other command it stands."""

    def __call__(self, name: str, act: Act, text: str, under: Any = ...) -> argparse.ArgumentParser: ...


E = "(E: an entity's id, institution:X, or * for everyone)"


def add_description(parser: argparse.ArgumentParser) -> None:
    """The options that say what a topic or collection is about, and for how long."""
    kinds = parser.add_argument_group("descriptor (one kind)")
    kinds.add_argument("--path", metavar="P", help="steps separated by '/'")
    kinds.add_argument("--text", metavar="T", help="a description")
    kinds.add_argument("--keyword", action="append", default=[], metavar="K", help="with --text; repeat it for more")
    kinds.add_argument(
        "--property", action="append", default=[], metavar="K=V", help="typed by its form, or K:TYPE=V; repeat it for more"
    )
    kinds.add_argument("--xml", metavar="FILE", help="an XML document, '-' for standard input")
    parser.add_argument("--synopsis-type", default="string", choices=("string", "tags", "properties", "xml"))
    parser.add_argument("--synopsis", metavar="TEMPLATE", help="with {uuid} once, where the minted UUID goes")
    parser.add_argument("--lifetime", type=parse_duration, default=timedelta(days=1), metavar="D", help="default: 1d")
    parser.add_argument("--node", metavar="ID", help="which node mints (default: the one chosen before, or the first to answer)")


def add_member_countersignatures(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--countersigned",
        action="append",
        default=[],
        metavar="FILE",
        help="the countersignature of the owner of a collection's first member; repeat it for more",
    )


def member_countersignatures(arguments: argparse.Namespace) -> list[str]:
    return [read_text(file).strip() for file in arguments.countersigned]


def add_lists(group: argparse._ArgumentGroup, subject: str, allowed: str, denied: str) -> None:
    """A pair of options for a pair of lists."""
    group.add_argument(f"--{subject}-allow", action="append", default=[], metavar="E", help=f"{allowed}; repeat it for more")
    group.add_argument(
        f"--{subject}-deny", action="append", default=[], metavar="E", help=f"{denied}, even if allowed; repeat it for more"
    )


def descriptor_of(arguments: argparse.Namespace) -> descriptors.Descriptor:
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
    return descriptors.xml(read_text(arguments.xml))


async def until_told(working: Coroutine[Any, Any, None]) -> None:
    """Do something until it ends or we are told to end: it is meant to run until then, so that is no failure."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    work, stopping = asyncio.create_task(working), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, stopping):
            task.cancel()
        await asyncio.gather(work, stopping, return_exceptions=True)


def add_passing_on(parser: argparse._ActionsContainer, owner: str) -> None:
    """The option by which a joining topic's owner lets the tree's owner grant it too."""
    parser.add_argument(
        "--pass-on",
        action="append",
        default=[],
        choices=RIGHTS,
        help=f"let {owner} grant this right on it, so that grants on the whole tree cover it; repeat it for both",
    )


async def pass_on(client: EntityClient, arguments: argparse.Namespace, uuid: str, joined: str) -> None:
    for right in dict.fromkeys(arguments.pass_on):
        granted = await client.grants.let_pass_on(right, uuid, joined)
        if granted is not None:
            note(f"{granted.grant.grantee} may pass on the right to {right}: grant {granted.id}")


def tell_ages(client: EntityClient) -> None:
    """Whatever was answered without the broker may be out of date: by whom, and how old it is."""
    for node, age in sorted(client.ages.items()):
        note(f"answered by node {node} without the broker, as of {describe_duration(timedelta(seconds=age.seconds))} ago")


LINE = "{:36}  {:16}  {:10}  {}"


def print_topic(topic: Topic) -> None:
    values = topic.as_object()
    rows: dict[str, Any] = {key: values[key] for key in ("uuid", "kind", "creator", "owner", "institution", "created", "expires")}
    if topic.cut:
        rows["expires"] += ", when its parent ends"
    rows["about"] = about(topic)
    if topic.opened is not None:
        rows["sealed"] = "for you"
    rows["synopsis"] = topic.synopsis
    rows |= _hidden_rows(topic)
    rows["signed by"] = f"node {topic.advertisement.node}, verified"
    if topic.receipt is not None:
        rows["receipt"] = "in the log, verified"
    output.record(rows)


#: What a pair of lists is called for a person: those allowed, those barred.
_LISTS = {
    "discover": ("discoverable by", "hidden from"),
    "hierarchy": ("place shown to", "place hidden from"),
    "register": ("children by", "no children by"),
    "add": ("added to by", "not added to by"),
    "owner": ("takes topics of", "takes none of"),
    "watch": ("watched by", "not watched by"),
    "include": ("included by", "not included by"),
}


def _hidden_rows(topic: Topic) -> dict[str, Any]:
    """What the advertisement hides, as far as we may know."""
    told, rows = topic.hides, dict[str, Any]()
    if told.parent is not None:
        rows["parent"] = told.parent
    if told.hosting is not None:
        limits = [("depth", told.hosting.max_depth), ("width", told.hosting.max_width)]
        rows["children"] = ", ".join(
            ["allowed" if told.hosting.allow_children else "none", *(f"{name} up to {most}" for name, most in limits if most)]
        )
    if told.gathering is not None:
        kept = told.gathering
        options = {"fixed": kept.fixed, "takes collections": kept.child_collections, "may be included": kept.inclusion}
        limits = list(kept.limits.as_object().items())
        rows["collection"] = (
            ", ".join(
                [
                    *(name for name, chosen in options.items() if chosen),
                    *(f"{name} up to {most}" for name, most in limits if most),
                ]
            )
            or "no options"
        )
        rows["notifications"] = told.notifications
    for subject, (allowed, barred) in _LISTS.items():
        pair = told.access.about(subject) if told.access is not None else NO_LISTS
        if pair.allow is not None:
            rows[allowed] = ", ".join(pair.allow)
        if pair.deny:
            rows[barred] = ", ".join(pair.deny)
    return rows


def print_decided(value: dict[str, Any], arguments: argparse.Namespace, sentence: str) -> None:
    if arguments.json:
        emit(value)
    else:
        output.say(sentence)


def about(topic: Topic) -> str:
    if topic.is_sealed and topic.opened is None:
        return "(sealed)"
    return " | ".join(descriptors.searchable(topic.descriptor).split("\n"))


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def read_text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8") from error
