"""`entity grant`, `entity can`, `entity transfer` and `accept`, `entity publish` and `subscribe`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from datetime import timedelta
from typing import Any

from entity_client.cli.present import Command, E, cut, print_decided, until_told
from entity_client.client import EntityClient
from entity_client.grants import Granted, Revocation
from entity_client.messaging import Message, Publisher
from tdn.cli import output
from tdn.cli.output import emit, note, table
from tdn.errors import UsageError
from tdn.protocol.names import check_id, check_uuid
from tdn.protocol.times import format_time, parse_duration, parse_time
from tdn.trust.grants import RIGHTS

_MAY = (*RIGHTS, "discover")


def add_commands(command: Command, commands: Any) -> None:
    _add_grants(command, commands)
    can = command("can", _can, "say whether you may, and why")
    can.add_argument("right", choices=_MAY)
    can.add_argument("uuid", metavar="UUID", type=check_uuid)

    transfer = command("transfer", _transfer, "offer a topic of yours to another entity; to yourself: take the offer back")
    transfer.add_argument("uuid", metavar="UUID", type=check_uuid)
    transfer.add_argument("entity", metavar="E", type=check_id, help="an entity's id")
    accept = command("accept", _accept, "become the owner of a topic that was offered to you")
    accept.add_argument("uuid", metavar="UUID", type=check_uuid)
    accept.add_argument(
        "--keep-grants", action="store_true", help="confirm the grants of the owner before (default: they all end)"
    )

    publish = command("publish", _publish, "publish a message to a topic")
    publish.add_argument("uuid", metavar="UUID", type=check_uuid)
    publish.add_argument("body", metavar="BODY|-", nargs="?", default="-", help="the message; '-' or nothing: standard input")
    publish.add_argument("--lines", action="store_true", help="every line of standard input is a message of its own")
    publish.add_argument(
        "--sign", action="store_true", help="sign it, so that readers need not trust the broker for who wrote it"
    )
    publish.add_argument("--encrypt", action="store_true", help="sign it and encrypt it for those who subscribe now")

    subscribe = command("subscribe", _subscribe, "print the messages of a topic, or of a collection's topics, as they come")
    subscribe.add_argument("uuid", metavar="UUID", type=check_uuid)
    subscribe.add_argument("--children", action="store_true", help="those of the topics below it too, also of later ones")
    subscribe.add_argument("--depth", type=_number, metavar="N", help="with --children or a collection: so many levels")
    subscribe.add_argument("--count", type=_number, metavar="N", help="end after so many messages")
    subscribe.add_argument("--signed-only", action="store_true", help="leave out messages that are not signed")
    unsubscribe = command("unsubscribe", _unsubscribe, "end a subscription, with what waits in its queue")
    unsubscribe.add_argument("uuid", metavar="UUID", type=check_uuid)


def _add_grants(command: Command, commands: Any) -> None:
    text = "let others publish and subscribe; list, renew and revoke what was granted"
    group = commands.add_parser("grant", help=text, description=text[0].upper() + text[1:] + ".")
    under = group.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    for right in RIGHTS:
        give = command(right, _give, f"let somebody {right}", under)
        give.set_defaults(right=right)
        give.add_argument("uuid", metavar="UUID", type=check_uuid)
        give.add_argument("to", metavar="E", help=E.strip("()"))
        give.add_argument("--lifetime", type=parse_duration, default=timedelta(days=1), metavar="D", help="default: 1d")
        give.add_argument("--from", dest="begins", type=parse_time, metavar="T", help="not before then (default: now)")
        give.add_argument("--delegable", action="store_true", help="it may be passed on, never for more or longer")
        give.add_argument("--tree", action="store_true", help="also what is below the topic; of a collection, all its topics")
        give.add_argument(
            "--of", metavar="GRANT", help="pass on this grant (default: one that fits, where you are not the owner)"
        )
    listed = command("list", _list, "the grants on a topic of yours, or those that you gave and hold", under)
    listed.add_argument("uuid", metavar="UUID", type=check_uuid, nargs="?")
    renew = command("renew", _renew, "give a grant of yours a new lifetime, counted from now", under)
    renew.add_argument("grant", metavar="GRANT", type=_grant)
    renew.add_argument("--lifetime", type=parse_duration, required=True, metavar="D")
    revoke = command("revoke", _revoke, "end a grant and all that rests on it, also on open connections", under)
    revoke.add_argument("grant", metavar="GRANT", type=_grant)


async def _give(client: EntityClient, arguments: argparse.Namespace) -> None:
    granted = await client.grants.give(
        arguments.right,
        arguments.uuid,
        arguments.to,
        lifetime=arguments.lifetime,
        not_before=arguments.begins,
        delegable=arguments.delegable,
        tree=arguments.tree,
        parent=arguments.of,
    )
    _print_granted(granted, arguments)


def _print_granted(granted: Granted, arguments: argparse.Namespace) -> None:
    terms, grant = granted.grant.terms, granted.grant
    until = format_time(terms.expires) + (", when what it rests on ends" if granted.cut else "")
    where = f"all of {terms.topic}'s tree" if terms.tree else f"topic {terms.topic}"
    passed = ", and pass it on" if terms.delegable else ""
    sentence = f"grant {grant.id}: {grant.grantee} may {terms.right} to {where} until {until}{passed}"
    print_decided(granted.as_object(), arguments, sentence)


async def _list(client: EntityClient, arguments: argparse.Namespace) -> None:
    rows = []
    async for granted in client.grants.find(arguments.uuid):
        if arguments.json:
            emit(granted.as_object())
            continue
        value = granted.as_object()
        marks = [name for name in ("tree", "delegable") if value[name]]
        rows.append(
            (
                value["id"],
                value["state"],
                value["right"],
                value["topic"],
                cut(value["issuer"], 16),
                cut(value["grantee"], 24),
                value["expires"],
                ", ".join(marks),
            )
        )
    if not arguments.json and rows:
        table(rows, ("GRANT", "STATE", "RIGHT", "TOPIC", "BY", "TO", "UNTIL", ""))
    elif not arguments.json:
        note("no grants")


async def _renew(client: EntityClient, arguments: argparse.Namespace) -> None:
    _print_granted(await client.grants.renew(arguments.grant, arguments.lifetime), arguments)


async def _revoke(client: EntityClient, arguments: argparse.Namespace) -> None:
    _print_revocation(await client.grants.revoke(arguments.grant), arguments, f"grant {arguments.grant} is revoked")


def _print_revocation(revocation: Revocation, arguments: argparse.Namespace, done: str) -> None:
    print_decided(revocation.as_object(), arguments, f"{done}: {_ended(revocation)}, within {revocation.milliseconds} ms")
    for guard in revocation.unconfirmed:
        note(f"warning: guard {guard} has not said that it ended everything yet")
    for guard in revocation.fenced:
        note(f"guard {guard} is silent, and allows nothing until it has caught up")


def _ended(revocation: Revocation) -> str:
    value = revocation.cut
    parts = [
        f"connections of {', '.join(value['connections'])} closed" if value["connections"] else "",
        f"{value['queues']} subscriptions deleted" if value["queues"] else "",
        f"{value['bindings']} bindings deleted" if value["bindings"] else "",
    ]
    return ", ".join(part for part in parts if part) or "nothing was open that rested on it"


async def _can(client: EntityClient, arguments: argparse.Namespace) -> None:
    judgement = await client.can(arguments.right, arguments.uuid)
    sentence = f"{'yes' if judgement.allowed else 'no'}: {judgement.because}"
    print_decided(judgement.as_object(), arguments, sentence)


async def _transfer(client: EntityClient, arguments: argparse.Namespace) -> None:
    decided = await client.transfer(arguments.uuid, arguments.entity)
    if arguments.entity == client.identity.name.id:
        sentence = f"topic {arguments.uuid} is offered to nobody any more"
    else:
        until = format_time(decided.expires) if decided.expires else "?"
        sentence = f"topic {arguments.uuid} is offered to {arguments.entity} until {until}: `entity --as {arguments.entity} accept {arguments.uuid}`"
    print_decided(decided.as_object(), arguments, sentence)


async def _accept(client: EntityClient, arguments: argparse.Namespace) -> None:
    revocation = await client.accept(arguments.uuid, keep_grants=arguments.keep_grants)
    kept = "grants were kept" if arguments.keep_grants else "grants of the owner before have ended"
    _print_revocation(revocation, arguments, f"topic {arguments.uuid} is yours, {kept}")


async def _publish(client: EntityClient, arguments: argparse.Namespace) -> None:
    if arguments.lines and arguments.body != "-":
        raise UsageError("--lines reads standard input; leave out the message")
    async with client.publisher(arguments.uuid, sign=arguments.sign, encrypt=arguments.encrypt) as publisher:
        if arguments.lines:
            for line in sys.stdin.buffer:
                await _publish_one(publisher, _text_or_bytes(line.rstrip(b"\r\n")), arguments)
        else:
            body = _text_or_bytes(sys.stdin.buffer.read()) if arguments.body == "-" else arguments.body
            await _publish_one(publisher, body, arguments)


async def _publish_one(publisher: Publisher, body: bytes | str, arguments: argparse.Namespace) -> None:
    published = await publisher.publish(body)
    print_decided(published.as_object(), arguments, f"published {published.id}")


def _text_or_bytes(content: bytes) -> bytes | str:
    with contextlib.suppress(UnicodeDecodeError):
        return content.decode("utf-8")
    return content


async def _subscribe(client: EntityClient, arguments: argparse.Namespace) -> None:
    subscription = client.subscribe(
        arguments.uuid, children=arguments.children, depth=arguments.depth, signed_only=arguments.signed_only
    )

    async def follow() -> None:
        async with subscription:
            note(f"subscribed to {arguments.uuid}; Ctrl-C ends it, and what comes meanwhile waits for you")
            printed = 0
            async for message in subscription:
                _print_message(message, arguments)
                printed += 1
                if printed == arguments.count:
                    return

    await until_told(follow())
    if subscription.disbelieved:
        note(f"warning: {subscription.disbelieved} messages were left out; the last: {subscription.last_disbelieved}")


def _print_message(message: Message, arguments: argparse.Namespace) -> None:
    if arguments.json:
        emit(message.as_object())
        return
    when = format_time(message.at) if message.at is not None else "?"
    marks = "".join(f" ({name})" for name, is_so in (("signed", message.signed), ("encrypted", message.encrypted)) if is_so)
    try:
        text = message.body.decode("utf-8")
    except UnicodeDecodeError:
        text = f"{len(message.body)} bytes; --json shows them"
    output.say(f"{when}  {message.publisher or 'unknown'}{marks}: {text}")


async def _unsubscribe(client: EntityClient, arguments: argparse.Namespace) -> None:
    _print_revocation(await client.unsubscribe(arguments.uuid), arguments, f"the subscription to {arguments.uuid} is over")


def _grant(text: str) -> str:
    if not 22 <= len(text) <= 64 or not all(
        character.isascii() and (character.isalnum() or character in "-_") for character in text
    ):
        raise UsageError(f"{text[:80]!r} is not a grant; `entity grant list` shows them")
    return text


def _number(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{text[:20]!r} is not a number from 1 to 1000000")
    return int(text)
