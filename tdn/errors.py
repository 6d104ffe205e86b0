"""Every exception of the project, and what a person or a program is told about it.

    TdnError
      UsageError          the command or call was wrong; nothing was sent
      BrokerUnavailable   could not reach or use RabbitMQ
        NotTaken          it has refused a message, in all or in one of the queues that it was for
      NoNodeAnswered      nobody answered in time
      TrustError          a signature, chain, audience or lifetime is wrong
        LoginRefused      the broker's guard does not let this key in, or not yet
      Refused             policy or a limit said no (carries which, when the asker may know)
        NoRoom            a disk is full, or does not do its work; may be well again later
      Absent              there is no such thing, or the asker may not know of it
      MalformedMessage    bytes do not fit the schema (keeps a bounded copy)
      QueryError          bad query text, with its position; or over a limit
      LogDiverged         a store and the log disagree; nothing is served until the operator looks
        LogTrimmed        the log begins after what a store has: it needs a snapshot
        StoreDamaged      a store cannot be read as what it was written as
      UnknownRules        the log asks for rules that this build does not know

`word` is the value of `error` in `--json` output and in error replies; `exit_code` is the process's. Both are promised in the
public interface, so each class states them once, here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

#: How much of a malformed message is kept for the operator's log. Enough to recognise it, too little to fill a disk.
KEPT_BYTES = 200
#: Longest message of an error. A sender's own words may be in it, and an error must always fit into its reply.
MAX_MESSAGE_CHARACTERS = 1000


class TdnError(Exception):
    """What every error of ours is. Never raised itself."""

    word: ClassVar[str] = "bug"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = dict(detail or {})

    def as_object(self) -> dict[str, Any]:
        """The error as `--json` prints it and as a node sends it."""
        return {"error": self.word, "message": self.message[:MAX_MESSAGE_CHARACTERS], "detail": self.detail}


class UsageError(TdnError):
    word = "usage"
    exit_code = 2


class BrokerUnavailable(TdnError):
    word = "unreachable"
    exit_code = 3


class NotTaken(BrokerUnavailable):
    pass


class NoNodeAnswered(TdnError):
    word = "unreachable"
    exit_code = 3


class TrustError(TdnError):
    word = "trust"
    exit_code = 4


class LoginRefused(TrustError):
    pass


class Refused(TdnError):
    word = "refused"
    exit_code = 5


class NoRoom(Refused):
    pass


class Absent(TdnError):
    word = "absent"
    exit_code = 6


class MalformedMessage(TdnError):
    word = "usage"
    exit_code = 2

    def __init__(self, message: str, *, received: bytes = b"", detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, detail=detail)
        self.received = received[:KEPT_BYTES]


class QueryError(TdnError):
    """A query that does not compile. The position counts characters from 0; both it and the hint reach the asker in `detail`."""

    word = "usage"
    exit_code = 2

    def __init__(
        self, message: str, *, position: int | None = None, hint: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        where = "" if position is None else f" (at character {position + 1})"
        super().__init__(f"{message}{where}{'; ' + hint if hint else ''}", detail=detail)
        if position is not None:
            self.detail["position"] = position
        if hint is not None:
            self.detail["hint"] = hint


class LogDiverged(TdnError):
    word = "trust"
    exit_code = 4


class LogTrimmed(LogDiverged):
    pass


class StoreDamaged(LogDiverged):
    pass


class UnknownRules(TdnError):
    word = "refused"
    exit_code = 5


_BY_WORD: dict[str, type[TdnError]] = {
    "usage": UsageError,
    "unreachable": NoNodeAnswered,
    "trust": TrustError,
    "refused": Refused,
    "absent": Absent,
}


def from_object(error: Mapping[str, Any]) -> TdnError:
    """The exception that a node's error reply stands for. An unknown word is treated as a refusal, never as success."""
    kind = _BY_WORD.get(str(error.get("error")), Refused)
    detail = error.get("detail")
    return kind(str(error.get("message", "refused")), detail=detail if isinstance(detail, dict) else None)
