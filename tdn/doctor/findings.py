"""What a check finds: a state, a sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tdn.errors import BrokerUnavailable, Refused, TdnError, TrustError, UsageError

#: Of several problems, the exit code is that of the first kind here: a cause comes before what follows from it. A network with an expired
#: certificate is unreachable as well. 1, for a check that failed itself, comes last: it is ours, not the operator's.
_CAUSES_FIRST = tuple(kind.exit_code for kind in (TrustError, UsageError, Refused, BrokerUnavailable, TdnError))


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: State
    what: str
    #: What to do, where something is to be done.
    do: str | None = None
    #: The kind of error that a problem is; its exit code is the doctor's.
    kind: type[TdnError] | None = None

    def as_object(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "state": str(self.state),
            "what": self.what,
            "do": self.do,
            "error": self.kind.word if self.kind is not None else None,
        }


def ok(check: str, what: str) -> Finding:
    return Finding(check, State.OK, what)


def warning(check: str, what: str, do: str | None = None) -> Finding:
    return Finding(check, State.WARNING, what, do)


def problem(check: str, kind: type[TdnError], what: str, do: str | None = None) -> Finding:
    return Finding(check, State.PROBLEM, what, do, kind)


def of_error(check: str, error: TdnError, about: str = "", do: str | None = None) -> Finding:
    """An error as a finding. Ours say what happened, then what to do, with a semicolon between."""
    what, _, remedy = error.message.partition("; ")
    return problem(check, type(error), f"{about}: {what}" if about else what, remedy or do)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when nothing is a problem, else that of the most fundamental one."""
    codes = {finding.kind.exit_code for finding in findings if finding.state is State.PROBLEM and finding.kind is not None}
    return next((code for code in _CAUSES_FIRST if code in codes), min(codes, default=0))
