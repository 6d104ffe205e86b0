"""Checkpoints: what the nodes say the state was at a place in the log, and which of their words count.

A node states the digest of the canonical state at a record that it has applied. When a majority of the nodes that are enrolled and not revoked
have stated the same, it counts: whoever has facts with that digest has the state there, without replay.
"""

from __future__ import annotations

from tdn.errors import Refused
from tdn.protocol.names import Name, Role
from tdn.rules.state import Fact, State, Write

#: Statements of a node that are kept. One that is slow still finds what the others said of the same place.
KEPT = 3
#: Nodes that are looked at. Far more than a network has.
_MOST_NODES = 10_000

#: What must be the same for two statements to be the same.
_STATED = ("seq", "head", "at", "digest")


def state_checkpoint(state: State, node: Name, stated: Fact, seq: int) -> tuple[Write, ...]:
    """The writes of one node's statement; and, when it makes a majority, of the checkpoint that counts from now on."""
    before = state.get("checkpoint", node.id)
    earlier = list(before["stated"]) if before is not None else []
    if stated["seq"] >= seq:
        raise Refused("a checkpoint is about what came before it")
    if earlier and earlier[-1]["seq"] >= stated["seq"]:
        raise Refused(f"node {node.id} has stated a checkpoint at record {earlier[-1]['seq']} already")
    mine = {name: stated[name] for name in _STATED}
    writes = (Write("checkpoint", node.id, {"stated": [*earlier, {**mine, "record": seq}][-KEPT:]}),)
    enrolled = enrolled_nodes(state)
    others = {one: record for one in enrolled if one != node.id and (record := _record_of(state, one, mine)) is not None}
    agreeing = {**others, node.id: seq}
    counted = latest(state)
    if not is_majority(len(agreeing), len(enrolled)) or (counted is not None and counted["seq"] >= mine["seq"]):
        return writes
    return (*writes, Write("counted", "latest", {**mine, "records": sorted(agreeing.values())}))


def latest(state: State) -> Fact | None:
    """The last checkpoint that counts: seq, head, time and digest, and the records in which a majority stated it."""
    return state.get("counted", "latest")


def enrolled_nodes(state: State) -> list[str]:
    """Nodes that have a voice: enrolled by the operator, and not revoked."""
    found = state.scan("principal", after=f"{Role.NODE}:", up_to=f"{Role.NODE}:~", limit=_MOST_NODES)
    return [key.partition(":")[2] for key, fact in found if fact["key"] and fact["key"] not in fact["revoked"]]


def is_majority(some: int, of: int) -> bool:
    return 2 * some > of


def _record_of(state: State, node: str, stated: Fact) -> int | None:
    fact = state.get("checkpoint", node)
    same = [one for one in (fact["stated"] if fact is not None else ()) if all(one[name] == stated[name] for name in _STATED)]
    return int(same[0]["record"]) if same else None
