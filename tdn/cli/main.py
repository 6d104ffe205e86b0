"""`tdn`: the operator's command."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tdn.cli import archive, audit, doctor, keeping, output, watch
from tdn.cli.output import add_globals, add_json, emit, note, table
from tdn.errors import TdnError, TrustError, UsageError
from tdn.local.ca import AUTHORITIES, LEAF_LIFE, write_request
from tdn.local.home import Home
from tdn.local.network import Network
from tdn.observe.settings import LOG_FORMATS
from tdn.protocol.names import Role, check_id
from tdn.protocol.times import parse_duration
from tdn.trust import credentials
from tdn.trust.verdict import find_statements, judge


def build_parser() -> argparse.ArgumentParser:
    parser = output.Parser(prog="tdn", description="Run a secure topic discovery network.")
    add_globals(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start the network of this home; make it if it is new")
    up.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: those of the home, or 2)")
    up.add_argument(
        "--brokers", type=int, metavar="N", help="how many private brokers: 1, 3 or 5 (default: those of the home, or 1)"
    )
    up.add_argument("--snapshot", type=Path, metavar="FILE", help="nodes and guards that have no store, or one behind it, start from it")
    up.set_defaults(perform=_up)

    down = commands.add_parser("down", help="stop everything of this home; nothing is lost")
    down.set_defaults(perform=_down)

    status = commands.add_parser("status", help="one line per process")
    watch.add_arguments(status)
    status.set_defaults(perform=_status)

    for role, perform in ((Role.NODE, _node), (Role.GUARD, _guard)):
        foreground = commands.add_parser(str(role), help=f"run one {role} in the foreground")
        foreground.add_argument("--id", required=True, metavar="ID")
        foreground.add_argument(
            "--log-format", choices=LOG_FORMATS, help="lines for people, or one JSON object per line (default: as its file says, or text)"
        )
        foreground.add_argument(
            "--snapshot", type=Path, metavar="FILE", help="where it has no store, or one behind this: start from it (`tdn snapshot`)"
        )
        foreground.set_defaults(perform=perform)
        if role is Role.GUARD:
            foreground.add_argument("--listen", metavar="HOST:PORT", help="where its broker asks it (default: as in tdn.toml)")
            foreground.add_argument("--management", metavar="URL", help="its broker's management API (default: as in tdn.toml)")

    ca = commands.add_parser("ca", help="certificates")
    acts = ca.add_subparsers(dest="act", required=True, metavar="ACT")
    issue = acts.add_parser("issue", help="make credentials; for a NAME that has some, a new certificate that supersedes the old")
    issue.add_argument("name", metavar="NAME")
    issue.add_argument("--institution", metavar="X", help="default: local, or what the present certificate says")
    issue.add_argument("--node", action="store_true", help="for a node instead of an entity")
    issue.add_argument("--role", type=Role, choices=(Role.GUARD, Role.BROKER), help="for a guard, or for a RabbitMQ of your own")
    issue.add_argument("--host", action="append", default=[], metavar="H", help="with --node or --role: a name or address it is reached by")
    issue.add_argument("--lifetime", type=parse_duration, default=LEAF_LIFE, metavar="D", help="default: 365d")
    issue.add_argument("--keep-key", action="store_true", help="for a NAME that has a key: a new certificate for that key")
    issue.set_defaults(perform=_issue)
    revoke = acts.add_parser("revoke", help="void every certificate of NAME until now, in the log and at the broker")
    revoke.add_argument("name", metavar="NAME")
    revoke.add_argument("--node", action="store_true", help="a node, where an entity has the same name")
    revoke.add_argument("--guard", action="store_true", help="a guard")
    revoke.set_defaults(perform=_revoke)
    rotate = acts.add_parser("rotate", help="a new intermediate; what the former one signed stays valid, its key is deleted")
    rotate.add_argument("authority", choices=tuple(AUTHORITIES), help="the one for nodes, guards and brokers, or for entities")
    rotate.add_argument(
        "--reissue", action="store_true", help="also a new certificate for the present key of everybody below it in this home"
    )
    rotate.set_defaults(perform=_rotate)
    request = acts.add_parser("request", help="a key and a signing request, for a PKI of your own")
    request.add_argument("name", metavar="NAME")
    request.add_argument("--role", type=Role, default=Role.ENTITY, choices=list(Role), help="default: entity")
    request.add_argument("--institution", default="local", metavar="X")
    request.set_defaults(perform=_request)
    install = acts.add_parser("install", help="take the certificate that your PKI made for a request")
    install.add_argument("name", metavar="NAME")
    install.add_argument("chain", type=Path, metavar="CHAIN.pem", help="the certificate, then its intermediates")
    install.add_argument("--role", type=Role, default=Role.ENTITY, choices=list(Role), help="default: entity")
    install.set_defaults(perform=_install)

    audit_log = commands.add_parser("audit", help="what the guards allowed and denied, what the log refused, and why")
    audit.add_arguments(audit_log)
    audit_log.set_defaults(perform=audit.perform)

    archived = archive.add_parsers(commands)
    kept = keeping.add_parsers(commands)
    examined = doctor.add_parser(commands)

    verify = commands.add_parser(
        "verify", help="check an advertisement, grant, receipt, revocation, notification, status or manifest entry, offline"
    )
    verify.add_argument("file", metavar="FILE|-", help="the signed bytes, or one of our JSON lines")
    verify.add_argument("--trust", type=Path, metavar="PEM", help="trusted roots (default: those of the home)")
    verify.set_defaults(perform=_verify)

    demo = commands.add_parser("demo", help="a guided tour on a private network of its own, cleaned up afterwards")
    demo.set_defaults(perform=_demo)

    for command in (up, down, status, issue, revoke, rotate, request, install, audit_log, *archived, *kept, examined, verify, demo):
        add_json(command)
    return parser


def run() -> None:
    """Entry point of the `tdn` command."""
    sys.exit(output.run(build_parser()))


def _home(arguments: argparse.Namespace) -> Home:
    home = Home(arguments.home)
    home.require_version()
    return home


def _up(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments), note)
    started = network.up(nodes=arguments.nodes, brokers=arguments.brokers, snapshot=arguments.snapshot)
    if not started:
        note("already running; nothing was changed")
    else:
        note(f"the network in {network.home} is up")
    _show_status(network, as_json=arguments.json)


def _down(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments), note)
    stopped = network.down()
    others = [f"{role} {name}" for role, name in network.not_ours()]
    note("stopped; nothing is lost" if stopped else "nothing was running" if not others else "nothing that `tdn up` has started was running")
    if others:
        note(f"{', '.join(others)} {'goes' if len(others) == 1 else 'go'} on: end what was started by other means (systemd, a container, by hand) there")


def _status(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments))
    if not network.home.exists:
        note(f"there is no network in {network.home}; `tdn up` makes one")
    if arguments.watch:
        watch.perform(network, arguments)
        return
    _show_status(network, as_json=arguments.json)


def _show_status(network: Network, *, as_json: bool) -> None:
    entries = network.status()
    if as_json:
        for entry in entries:
            emit(entry)
    elif entries:
        table([watch.row(entry) for entry in entries], watch.HEADINGS)
        for line in watch.reasons(entries):
            output.say(line)


def _demo(arguments: argparse.Namespace) -> None:
    # These three are loaded here: a whole node or guard takes half a second, and all other commands go without.
    from tdn.cli.demo import run_demo

    run_demo(as_json=arguments.json)


def _node(arguments: argparse.Namespace) -> None:
    from tdn.cli.serve import serve_node

    serve_node(
        _home(arguments),
        arguments.id,
        snapshot=arguments.snapshot,
        log_format=arguments.log_format,
        verbose=arguments.verbose,
    )


def _guard(arguments: argparse.Namespace) -> None:
    from tdn.cli.serve import serve_guard

    home = _home(arguments)
    serve_guard(
        home,
        arguments.id,
        listen=arguments.listen,
        management=arguments.management,
        snapshot=arguments.snapshot,
        log_format=arguments.log_format,
        verbose=arguments.verbose,
    )


def _issue(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments), note)
    check_id(arguments.name)
    network.operator.found()
    if arguments.role and arguments.node:
        raise UsageError("--node and --role exclude each other")
    if arguments.host and not arguments.role and not arguments.node:
        raise UsageError("--host goes with --node or --role: nobody connects to an entity")
    role = arguments.role or (Role.NODE if arguments.node else Role.ENTITY)
    again = (network.home.credentials(role, arguments.name) / "cert.pem").exists()
    folder = network.operator.issue(
        role,
        arguments.name,
        institution=arguments.institution,
        lifetime=arguments.lifetime,
        hosts=arguments.host,
        keep_key=arguments.keep_key,
    )
    if again:
        network.take_up(role, arguments.name, timeout=arguments.timeout)
    who = credentials.load(folder).identity
    if arguments.json:
        emit({"folder": str(folder), "name": str(who.name), "institution": who.institution, "rotated": again})
    else:
        print(folder)


def _rotate(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments), note)
    if not network.home.exists:
        raise UsageError(f"there is no network in {network.home}; `tdn up` makes one")
    rotated = network.operator.rotate(arguments.authority)
    note(f"new intermediate {rotated.subject!r}, valid until {rotated.not_after}; the former certificate is in {rotated.retired}")
    reissued = []
    for role, name in network.operator.leaves(arguments.authority) if arguments.reissue else ():
        network.operator.reissue(role, name)
        network.take_up(role, name, timeout=arguments.timeout)
        reissued.append(f"{role}:{name}")
        note(f"{role} {name} has a new certificate for its key")
    if arguments.json:
        emit({"rotated": arguments.authority, "subject": rotated.subject, "not_after": rotated.not_after, "reissued": reissued})


def _revoke(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments), note)
    home = network.home
    check_id(arguments.name)
    network.operator.require_here()
    is_node = arguments.node or (arguments.name in home.ids(Role.NODE) and arguments.name not in home.ids(Role.ENTITY))
    role = Role.GUARD if arguments.guard else Role.NODE if is_node else Role.ENTITY
    if not home.exists or (
        not network.operator.authority.issued_to(f"{role}:{arguments.name}") and arguments.name not in home.ids(role)
    ):
        raise TrustError(f"{arguments.name!r} has no certificate from this network; nothing to revoke")
    if role is not Role.ENTITY and not [name for name in home.ids(role) if name != arguments.name]:
        raise UsageError(f"the last {role} cannot be revoked: nothing would work any more; issue another {role} first")
    if role is Role.GUARD and home.settings().private_broker and arguments.name in network.guards():
        raise UsageError(
            f"the private broker asks guard {arguments.name}, so it cannot be revoked; `tdn ca issue` gives it a new key"
        )
    network.operator.revoke(role, arguments.name)
    result: dict[str, object] = {"revoked": f"{role}:{arguments.name}", "receipt": None}
    ended = ""
    # Brokers of one's own are elsewhere, and so are nodes, mostly: whether they run is seen by asking them.
    if not home.settings().private_broker or any(entry["alive"] for entry in network.status()):
        if role is Role.NODE:
            network.process(role, arguments.name).stop()
        try:
            sent = asyncio.run(network.operator.send_pending(timeout=arguments.timeout))
        except TdnError:
            note(f"the revocation of {role} {arguments.name} is signed and kept here, and may not be in the log yet. `tdn ca revoke {arguments.name}` once more sends it")
            raise
        result["receipt"] = sent[-1].receipt if sent else None
        network.await_cut([one.receipt for one in sent], timeout=arguments.timeout)
        if sent and sent[-1].revocation is not None:
            proof = network.read_statement(sent[-1].revocation)
            result |= {"cut": proof["cut"], "milliseconds": proof["milliseconds"], "revocation": sent[-1].revocation}
            ended = f", within {proof['milliseconds']} ms"
        note(f"{role} {arguments.name} is revoked in the log; the guard refuses its keys and has ended its connections{ended}")
    else:
        note(f"{role} {arguments.name} is revoked; the network is not running, so the log learns it at the next `tdn up`")
    if role is not Role.ENTITY:
        _retire(network, role, arguments.name)
    if arguments.json:
        emit(result)


def _retire(network: Network, role: Role, name: str) -> None:
    """A revoked node or guard does not start again, and its enrolment is not offered again."""
    folder = network.home.credentials(role, name)
    (network.home.enrolments / f"{role}-{name}.jws").unlink(missing_ok=True)
    (folder / "cert.pem").rename(folder / "revoked-cert.pem")


def _request(arguments: argparse.Namespace) -> None:
    home = _home(arguments)
    home.prepare()
    path = write_request(arguments.role, arguments.name, home.credentials(arguments.role, arguments.name), arguments.institution)
    if arguments.json:
        emit({"request": str(path)})
    else:
        print(path)


def _install(arguments: argparse.Namespace) -> None:
    network = Network(_home(arguments), note)
    try:
        chain = arguments.chain.read_bytes()
    except OSError as error:
        raise UsageError(f"{arguments.chain} cannot be read: {error.strerror}") from error
    folder = network.operator.install(arguments.role, arguments.name, chain)
    if arguments.json:
        emit({"folder": str(folder)})
    else:
        print(folder)


def _verify(arguments: argparse.Namespace) -> int:
    try:
        text = sys.stdin.buffer.read() if arguments.file == "-" else Path(arguments.file).read_bytes()
    except OSError as error:
        raise UsageError(f"{arguments.file} cannot be read: {error.strerror}") from error
    roots = archive.trusted(arguments)
    verdicts = judge(find_statements(text), roots)
    for verdict in verdicts:
        if arguments.json:
            emit(verdict.as_object())
            continue
        if not verdict.valid:
            output.say(f"NOT VALID: {verdict.kind}: {verdict.error}")
            continue
        output.say(f"VALID: {verdict.kind}, signed by {verdict.signer}")
        for sentence in verdict.proves:
            output.say(f"  proves: {sentence}")
        for sentence in verdict.not_checked:
            output.say(f"  not checked: {sentence}")
    if all(verdict.valid for verdict in verdicts):
        return 0
    return TrustError.exit_code


if __name__ == "__main__":
    run()
