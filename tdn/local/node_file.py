"""`node.toml`: what the operator of one node sets, in the folder with its credentials."""

from __future__ import annotations

from pathlib import Path

from tdn.bus.address import NodeAddress
from tdn.errors import UsageError
from tdn.local import observe_section
from tdn.node.limits import EndpointSettings, NodeLimits
from tdn.node.policy import KINDS, Policy, read_policy
from tdn.observe.settings import ObserveSettings
from tdn.settings_file import Address, Key, ListOf, Number, Section, SettingsFile, Text, Whole, split_address

#: What `listen` says where there is to be no endpoint.
OFF = "off"

_DEFAULTS = NodeLimits()
_WHO = ListOf(Text(words='an entity id, "institution:X" or "*"'))

NODE = SettingsFile(
    "node.toml",
    "Settings of this node. Read when it starts; a change of [policy] makes it build its indexes anew.",
    (
        Section(
            "policy",
            "",
            (
                Key(
                    "realm",
                    Text(words="the institution's name in quotes"),
                    "Serve one institution, and store its topics alone: one line makes a realm node.",
                    example="physics",
                ),
                Key(
                    "answers",
                    _WHO,
                    'Or in detail. Whom it answers: entity ids, "institution:X", "*" for everyone with a certificate.',
                    ("*",),
                ),
                Key("stores", _WHO, "Whose topics it stores, in the same words.", ("*",)),
                Key("kinds", ListOf(Text(KINDS)), "Kinds of descriptor that it stores.", KINDS),
            ),
        ),
        Section(
            "limits",
            "",
            (
                Key(
                    "query_seconds",
                    Number(0.01, 3600),
                    "How long one discovery may run before it is stopped.",
                    _DEFAULTS.query_seconds,
                ),
                Key(
                    "query_memory_mb",
                    Whole(16, 1_000_000),
                    "How much memory it may take.",
                    _DEFAULTS.query_memory_mb,
                ),
                Key(
                    "queries_per_second",
                    Number(0.001, 1_000_000),
                    "Discoveries of one entity: steadily,",
                    _DEFAULTS.queries_per_second,
                ),
                Key("queries_burst", Whole(1, 1_000_000), "and at once after a pause.", _DEFAULTS.queries_burst),
                Key(
                    "wait_for_others_seconds",
                    Number(0.01, 3600),
                    "After the broker was gone: how long to wait for nodes that ticked lately and for guards, which may have more of the log.",
                    _DEFAULTS.wait_for_others_seconds,
                ),
            ),
        ),
        Section(
            "endpoint",
            "Where this node answers questions by itself, over HTTPS with mutual TLS, while no broker can be reached. Read-only.",
            (
                Key(
                    "listen",
                    Address((OFF,)),
                    "In a private network a free port of this machine unless a place is named here; elsewhere nowhere. \"off\": nowhere.",
                    example=OFF,
                ),
                Key(
                    "public",
                    Address(),
                    "Where others reach it, when that is another address. Its certificate must carry this host's name.",
                    example="node-1.example:7451",
                ),
            ),
        ),
        observe_section.OBSERVE,
    ),
)

FILE = NODE.name


def write_template(folder: Path) -> None:
    """The file with every setting in a comment, for a node that has none."""
    NODE.write_template(folder)


def read(folder: Path) -> tuple[Policy, NodeLimits]:
    """Policy and limits as the file says, or the defaults."""
    values = NODE.read(folder)
    policy = values["policy"]
    # A realm stands for the other two, so their defaults do not stand beside it.
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in policy.items() if value is not None}
    if policy["realm"] is not None:
        for name in ("answers", "stores"):
            if policy[name] == ("*",):
                del given[name]
    try:
        return read_policy(given), NodeLimits(**values["limits"])
    except UsageError as error:
        raise UsageError(f"{folder / FILE}: {error.message}") from error


def read_observe(folder: Path) -> ObserveSettings:
    """Where and how the node shows what it does."""
    return observe_section.read(NODE.read(folder)["observe"])


def read_endpoint(folder: Path, node: str, port: int | None) -> EndpointSettings | None:
    """Where a node answers by itself: as the file says, or at a port of this machine where one was chosen for it, or nowhere."""
    values = NODE.read(folder)["endpoint"]
    if values["listen"] == OFF or (values["listen"] is None and port is None):
        return None
    listen = split_address(values["listen"]) if values["listen"] is not None else ("127.0.0.1", port or 0)
    public = split_address(values["public"]) if values["public"] is not None else listen
    return EndpointSettings(*listen, NodeAddress(node, *public))
