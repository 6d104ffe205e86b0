"""Log time: moved only by ticks, the lower median of the nodes' latest, never back. What is due then ends.

So an idle network still expires things, and one fast clock expires nothing.
"""

from __future__ import annotations

from datetime import datetime

from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time
from tdn.rules import principals, topics
from tdn.rules.state import State, Write

#: How much one tick ends. What is left ends at the next, so that no single record stalls every node.
MAX_ENDS = 1000


def tick(state: State, node: Name, at: datetime, seq: int) -> tuple[Write, ...]:
    """The writes of one node's tick."""
    previous = state.get("tick", node.id)
    # Ticks are written to the second, so that their order as text is their order in time.
    mine = max(format_time(at.replace(microsecond=0)), previous["at"] if previous else "")
    latest = {
        **{key: str(fact["at"]) for key, fact in state.all("tick") if _counts(state, key)},
        node.id: mine,
    }
    ordered = sorted(latest.values())
    median = ordered[(len(ordered) - 1) // 2]
    network = principals.network(state)
    now = max(median, str(network["time"]))
    writes = [Write("tick", node.id, {"at": mine, "seq": seq}), Write("network", "network", {**network, "time": now})]
    for key, _ in state.scan("ends", up_to=f"{now} ~", limit=MAX_ENDS):
        moment, space, name = key.split(" ", 2)
        writes.append(Write("ends", key, None))
        if space == "topic":
            topic = state.get("topic", name)
            if topic is not None and topic["state"] == topics.LIVE and topic["expires"] == moment:
                writes.append(topics.expire(topic, name, seq))
        elif space == "request":
            writes.append(Write("request", name, None))
    return tuple(writes)


def _counts(state: State, node_id: str) -> bool:
    """A node that was revoked has no voice in what time it is."""
    principal = state.get("principal", f"{Role.NODE}:{node_id}")
    return principal is not None and principal["key"] not in principal["revoked"]
