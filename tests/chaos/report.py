"""The figures of a run: how much was asked, what went wrong on purpose, how long nobody was served, and what the checker found."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.checker import Checker
from tests.chaos.faults import SERVICES, Disturbance, Faults
from tests.chaos.race import Race
from tests.chaos.traffic import Trading

#: For how long at most nobody may be served. On a quiet machine it is a few seconds; ours may be busy.
STANDSTILL_SECONDS = 20.0


def without_service(fault: Disturbance, served: Sequence[float]) -> float:
    """The longest time during a fault, and until everybody had got on, in which nobody was served. `served` in order."""
    first = bisect_left(served, fault.began)
    moments = [fault.began, *(moment for moment in served[first:] if moment <= fault.over)]
    following = bisect_left(served, fault.over)
    moments.append(served[following] if following < len(served) else fault.over)
    return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)


def stood_still(happened: Sequence[Disturbance], served: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Faults that left enough to serve everybody, and during which nobody at all was served for too long (T22)."""
    ordered = {what: sorted(moments) for what, moments in served.items()}
    for fault in happened:
        for what in fault.leaves:
            if (seconds := without_service(fault, ordered.get(what, ()))) > STANDSTILL_SECONDS:
                yield f"nobody was served ({what}) for {seconds:.1f} s: {fault.kind}"


def longest(faults: Faults, served: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """By fault and by what was asked for, the longest time without it."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    ordered = {what: sorted(moments) for what, moments in served.items()}
    for fault in faults.happened:
        for what in SERVICES:
            found[fault.kind][what] = max(found[fault.kind][what], without_service(fault, ordered.get(what, ())))
    return {kind: dict(times) for kind, times in found.items()}


def summary(race: Race, trading: Trading, checker: Checker, faults: Faults, violations: Sequence[str]) -> dict[str, Any]:
    sent, traffic, books = race.books.sent.values(), trading.traffic, race.books
    taken = [message for message in traffic.messages.values() if message.taken is not None]
    return {
        "seconds": round(faults.happened[-1].over - faults.happened[0].began) if faults.happened else 0,
        "changes": {
            kind: {
                "asked": sum(1 for one in sent if one.kind == kind),
                "acknowledged": sum(1 for one in sent if one.kind == kind and any(a.kind != "error" for a in one.answers)),
                "refused": sum(1 for one in sent if one.kind == kind and any(a.kind == "error" for a in one.answers)),
            }
            for kind in sorted({one.kind for one in sent})
        },
        "copies": sum(one.copies for one in sent) + books.count["repeated later"],
        "log": dict(checker.log.count()),
        "discoveries": len(books.served["discover"]),
        "looks": len(books.served["look"]),
        "topics shown": len(traffic.shown),
        "notifications": sum(len(one.payloads) for one in race.received),
        "messages": {"sent": len(traffic.messages), "confirmed": len(taken), "read": len(traffic.got)},
        "refused publishes": sum(one.refused for one in (*trading.insistent, trading.outsider) if one is not None),
        "rights": {"given": len(traffic.held), "ended": sum(owner.ended for owner in trading.owners)},
        "ends without every guard": sum(owner.unconfirmed for owner in trading.owners),
        "unanswered": books.count["unanswered"],
        "faults": dict(faults.count),
        "longest without service": longest(faults, books.served),
        "violations": list(violations),
    }


def figures(race: Race, trading: Trading, checker: Checker, faults: Faults, violations: Sequence[str]) -> str:
    """In a few lines, for the terminal."""
    found = summary(race, trading, checker, faults, violations)
    changes = Counter[str]()
    for counts in found["changes"].values():
        changes.update(counts)
    return (
        f"chaos: {sum(found['faults'].values())} faults in {found['seconds']} s; changes {changes['asked']} in {found['copies']} copies, "
        f"acknowledged {changes['acknowledged']}, refused {changes['refused']}; discoveries {found['discoveries']}, looks {found['looks']}, "
        f"notifications {found['notifications']}; messages confirmed {found['messages']['confirmed']} of {found['messages']['sent']}, "
        f"read {found['messages']['read']}; rights ended {found['rights']['ended']}; violations {len(violations)}"
    )


def report(
    race: Race,
    trading: Trading,
    checker: Checker,
    faults: Faults,
    violations: Sequence[str],
    missing: Mapping[str, str],
    **how: Any,
) -> None:
    """The same as JSON, where TDN_CHAOS_REPORT says."""
    target = os.environ.get("TDN_CHAOS_REPORT")
    if target:
        found = {**how, "left out": dict(missing), **summary(race, trading, checker, faults, violations)}
        Path(target).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
