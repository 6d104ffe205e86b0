"""Log time: moved only by ticks, the lower median of the nodes' latest, never back. What is due then ends.

So an idle network still expires things, and one fast clock expires nothing.
"""

from __future__ import annotations

from datetime import datetime

from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time, parse_time
from tdn.protocol.trees import EXPIRED
from tdn.rules import endings, feeds, grants, hierarchy, principals, watches
from tdn.rules.sight import LIVE
from tdn.rules.state import Draft, Occasion, State, Write

#: How much one tick ends. What is left ends at the next, so that no single record stalls every node.
MAX_ENDS = 1000


def tick(state: State, node: Name, at: datetime, seq: int) -> tuple[Write, ...]:
    """The writes of one node's tick."""
    draft = Draft(state)
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
    draft.put("tick", node.id, {"at": mine, "seq": seq})
    draft.put("network", "network", {**network, "time": now})
    _end_what_is_due(draft, now, Occasion(seq, parse_time(now), parse_time(now)))
    return draft.writes


def latest(state: State, *, but: str) -> datetime | None:
    """What the clock of any other node has said at last."""
    told = [str(fact["at"]) for key, fact in state.all("tick") if key != but and _counts(state, key)]
    return parse_time(max(told)) if told else None


def _end_what_is_due(draft: Draft, now: str, occasion: Occasion) -> None:
    due = list(draft.scan("ends", up_to=f"{now} ~", limit=MAX_ENDS))
    for key, _ in due:
        if draft.work > endings.MOST_WORK:
            # Each of these hangs together with much. The next tick goes on.
            break
        moment, space, name = key.split(" ", 2)
        draft.put("ends", key, None)
        if space == "topic":
            topic = draft.get("topic", name)
            if topic is not None and topic["state"] == LIVE and topic["expires"] == moment:
                endings.end(draft, name, EXPIRED, occasion)
        elif space == "request":
            draft.put("request", name, None)
        elif space == "reserved":
            hierarchy.release(draft, name)
        elif space == "watch":
            watches.end(draft, name)
        elif space == "grant":
            grants.end(draft, name, moment)
        elif space == "feed":
            feeds.end(draft, name, occasion)
        elif space == "stale":
            draft.put("stale", name, None)
    endings.settle(draft, occasion, max(MAX_ENDS - len(due), MAX_ENDS // 4))


def _counts(state: State, node_id: str) -> bool:
    """A node that was revoked has no voice in what time it is."""
    principal = state.get("principal", f"{Role.NODE}:{node_id}")
    return principal is not None and principal["key"] not in principal["revoked"]
