"""A node's policy (T11): whom it answers, and which topics it stores for discovery.

It limits what a node indexes and answers, never what it decides: every node keeps the whole rule state, appends for everybody, and
answers a `locate` with its policy, so that an asker knows that it was declined rather than unheard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tdn.errors import UsageError
from tdn.protocol import jsontext
from tdn.protocol.access import EVERYONE, INSTITUTION, Asker, check_who
from tdn.store.topics import Stores

KINDS = ("path", "text", "properties", "xml", "sealed")

_MEMBERS = frozenset({"realm", "answers", "stores", "kinds"})


@dataclass(frozen=True, slots=True)
class Policy:
    #: Whom it answers: entities, institutions, everyone.
    answers: tuple[str, ...] = (EVERYONE,)
    #: Whose topics it stores, in the same words, and with which kinds of descriptor.
    stores: tuple[str, ...] = (EVERYONE,)
    kinds: tuple[str, ...] = KINDS

    def serves(self, asker: Asker) -> bool:
        return asker.is_meant_by(self.answers)

    def stored(self, progress: Callable[[int], None] = lambda count: None) -> Stores:
        """What the view's table of topics takes in. `progress` is told of it while the table is made anew."""

        def accepts(payload: Mapping[str, Any]) -> bool:
            creator = Asker(payload["creator"], payload["institution"])
            return payload["descriptor"]["kind"] in self.kinds and creator.is_meant_by(self.stores)

        return Stores(accepts, jsontext.canonical([sorted(self.stores), sorted(self.kinds)]).decode(), progress)

    def as_object(self) -> dict[str, Any]:
        return {"answers": list(self.answers), "stores": list(self.stores), "kinds": list(self.kinds)}


EVERYBODY = Policy()


def read_policy(values: Mapping[str, Any]) -> Policy:
    """A policy as an operator writes it. `realm = "X"` is short for answering and storing institution X alone."""
    if unknown := sorted(values.keys() - _MEMBERS):
        raise UsageError(f"policy: {unknown[0]!r} is unknown; there are {', '.join(sorted(_MEMBERS))}")
    if "realm" in values:
        if len(values) > 1 and ("answers" in values or "stores" in values):
            raise UsageError("policy: realm says whom to answer and what to store; leave out answers and stores")
        if not isinstance(values["realm"], str):
            raise UsageError("policy.realm: write the institution's name in quotes")
        realm = (check_who(f"{INSTITUTION}{values['realm']}"),)
        return Policy(realm, realm, _kinds(values))
    return Policy(_names(values, "answers"), _names(values, "stores"), _kinds(values))


def _names(values: Mapping[str, Any], member: str) -> tuple[str, ...]:
    given = values.get(member, [EVERYONE])
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        raise UsageError(f'policy.{member}: write a list of entity ids, "institution:X" or "*", with at least one')
    return tuple(check_who(name) for name in given)


def _kinds(values: Mapping[str, Any]) -> tuple[str, ...]:
    given = values.get("kinds", list(KINDS))
    if not isinstance(given, list) or not given or not all(kind in KINDS for kind in given):
        raise UsageError(f"policy.kinds: write a list of {', '.join(KINDS)}, with at least one")
    return tuple(given)
