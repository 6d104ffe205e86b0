"""Who is who, according to the log: trust roots, the operator, enrolled nodes and guards, entities, superseded and revoked keys.

A node or a guard is one because the operator enrolled its key, not because a CA wrote so. A later certificate of a principal with another
key supersedes the earlier one; with the same key both serve, so that who has not taken it up yet goes on. A revocation voids every
certificate issued until a moment, and names the keys so that the guard, which sees only logins, can refuse them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from tdn.errors import Refused, TrustError
from tdn.protocol.names import Name, Role
from tdn.protocol.times import format_time, parse_time, whole_seconds
from tdn.rules.state import Fact, State, Write
from tdn.trust import signing
from tdn.trust.certificates import Identity, TrustRoots, decode_chain, encode_chain, roots_from_ders

#: Roles that need the operator's word.
ENROLLED = frozenset({Role.NODE, Role.GUARD})


def network(state: State) -> Fact:
    found = state.get("network", "network")
    if found is None:
        raise TrustError("the log has no genesis")
    return found


def log_time(state: State) -> datetime:
    """The time that ticks have made (`clock`)."""
    return parse_time(network(state)["time"])


def trust_roots(state: State) -> TrustRoots:
    return roots_from_ders(decode_chain(network(state)["roots"]))


def known(state: State, header: signing.Header) -> Identity:
    """The identity of a certificate that the log holds, current and not revoked; or TrustError."""
    fact = state.get("certificate", header.thumbprint)
    if fact is None:
        raise TrustError(
            "the certificate is not known to the network; enrol with a hello first", detail={"unknown": header.thumbprint}
        )
    identity = _identity(fact["at"], tuple(fact["chain"]), tuple(network(state)["roots"]))
    institution = _require_current_key(state, identity)["institution"]
    # An earlier certificate of the current key may name another institution; the latest one counts.
    return identity if identity.institution == institution else replace(identity, institution=institution)


def current(state: State, principal: str) -> Identity:
    """The identity of a principal's current certificate; or TrustError."""
    fact = state.get("principal", principal)
    certificate = state.get("certificate", fact["thumbprint"]) if fact is not None else None
    if certificate is None:
        raise TrustError(f"{principal} is not enrolled")
    identity = _identity(certificate["at"], tuple(certificate["chain"]), tuple(network(state)["roots"]))
    require_current(state, identity)
    return identity


def require_current(state: State, identity: Identity) -> None:
    """Refuse a certificate that was revoked or superseded at this point of the log, or that has not reached it."""
    _require_current_key(state, identity)
    if state.get("certificate", identity.thumbprint) is None:
        raise TrustError(f"this certificate of {identity.name.principal} is not in the log yet")


def _require_current_key(state: State, identity: Identity) -> Fact:
    """The principal whose current key a certificate has; or TrustError."""
    principal = state.get("principal", identity.name.principal)
    if principal is None:
        raise TrustError(f"{identity.name.principal} is not enrolled")
    _require_not_revoked(principal, identity)
    if principal["key"] != identity.name.key_hash:
        raise TrustError(f"the certificate of {identity.name.principal} was superseded by a later one")
    return principal


def issuer(state: State, header: signing.Header) -> Identity:
    """Who signed a statement: enrolled in the log with this very certificate, and not revoked. A superseded certificate still proves what
    it signed. The chain that was logged counts, not the one that the statement brings: every node then follows the same."""
    fact = state.get("certificate", header.thumbprint)
    if fact is None:
        raise TrustError("signed with a certificate that is not enrolled in the log")
    identity = _identity(fact["at"], tuple(fact["chain"]), tuple(network(state)["roots"]))
    principal = state.get("principal", identity.name.principal)
    if principal is None:
        raise TrustError(f"{identity.name.principal} is not enrolled")
    _require_not_revoked(principal, identity)
    return identity


def has_expired(state: State, principal: str, now: datetime) -> bool:
    """Whether a principal's latest certificate has run out."""
    fact = state.get("principal", principal)
    return fact is not None and parse_time(fact["expires"]) < now


def enrolled(state: State, role: Role) -> list[str]:
    """The ids that the operator has enrolled in a role and not revoked."""
    found = state.scan("principal", after=f"{role}:", up_to=f"{role}:~", limit=1000)
    return [key.partition(":")[2] for key, fact in found if fact["thumbprint"] and fact["key"] not in fact["revoked"]]


def is_current_login(state: State, name: Name) -> bool:
    """Whether a login at the broker is the current key of its principal."""
    principal = state.get("principal", name.principal)
    return principal is not None and principal["key"] == name.key_hash and name.key_hash not in principal["revoked"]


def is_ended_login(state: State, name: Name) -> bool:
    """Whether a login's key was superseded or revoked."""
    principal = state.get("principal", name.principal)
    return principal is not None and (name.key_hash in principal["revoked"] or name.key_hash in principal["superseded"])


def identify(state: State, chain: Sequence[str], at: datetime) -> Identity:
    """Who holds a chain that stands in a message, by the log's own roots."""
    return trust_roots(state).follow(decode_chain(chain), at=at)


def admit(state: State, identity: Identity, at: datetime, *, roles: frozenset[Role]) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """The writes that make a certificate its principal's current one, and the logins that end with it."""
    name = identity.name
    if name.role not in roles:
        raise Refused(f"a certificate of {name.principal} cannot be enrolled this way")
    present = state.get("principal", name.principal)
    if present is None:
        return first_certificate(identity, at), ()
    _require_not_revoked(present, identity)
    same_key = present["key"] == name.key_hash
    if same_key and state.get("certificate", identity.thumbprint) is not None:
        return (), ()
    if identity.issued <= parse_time(present["issued"]):
        if not same_key:
            raise TrustError(f"the certificate of {name.principal} is not later than its current one")
        return _certificate(identity, at), ()
    rotated = present["key"] != "" and not same_key
    ended = [*present["superseded"], present["key"]] if rotated else present["superseded"]
    # A former key that was certified anew is current again.
    superseded = [key for key in ended if key != name.key_hash]
    cut = (str(Name(name.role, name.id, present["key"])),) if rotated else ()
    kept = {"superseded": superseded, "revoked": present["revoked"], "issued_until": present["issued_until"]}
    return (*_certificate(identity, at), Write("principal", name.principal, {**_principal(identity), **kept})), cut


def first_certificate(identity: Identity, at: datetime) -> tuple[Write, ...]:
    """The facts of a principal that the log did not know."""
    return (*_certificate(identity, at), Write("principal", identity.name.principal, _principal(identity)))


def _certificate(identity: Identity, at: datetime) -> tuple[Write, Write]:
    """A certificate, and its end: guards look again then at what its holder may do."""
    principal, thumbprint = identity.name.principal, identity.thumbprint
    fact = {"principal": principal, "chain": encode_chain(identity.chain), "at": format_time(at)}
    # It holds in its last second too.
    ends = f"{format_time(whole_seconds(identity.not_after) + timedelta(seconds=1))} certificate {principal} {thumbprint}"
    return Write("certificate", thumbprint, fact), Write("ends", ends, {})


def _principal(identity: Identity) -> dict[str, Any]:
    return {
        "thumbprint": identity.thumbprint,
        "key": identity.name.key_hash,
        "institution": identity.institution,
        "issued": format_time(identity.issued),
        "expires": format_time(identity.not_after),
        "superseded": [],
        "revoked": [],
        "issued_until": None,
    }


def revoke(state: State, body: Fact) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """The writes of a revocation, and the logins that end with it."""
    principal = body["principal"]
    role, _, identifier = principal.partition(":")
    fact = state.get("principal", principal)
    keys = list(body["keys"])
    if fact is None:
        # Never seen here, so there is nothing to end but its future: the keys are refused if they ever come.
        current: dict[str, Any] = {
            "thumbprint": "",
            "key": "",
            "institution": "",
            "issued": body["issued_until"],
            "expires": body["issued_until"],
        }
        fact = {**current, "superseded": [], "revoked": [], "issued_until": None}
    elif parse_time(fact["issued"]) <= parse_time(body["issued_until"]):
        keys.append(fact["key"])
    until = max(body["issued_until"], fact["issued_until"] or "")
    revoked = sorted({*fact["revoked"], *keys} - {""})
    cut = tuple(str(Name(Role(role), identifier, key)) for key in revoked)
    return (Write("principal", principal, {**fact, "revoked": revoked, "issued_until": until}),), cut


def _require_not_revoked(principal: Fact, identity: Identity) -> None:
    until = principal["issued_until"]
    if identity.name.key_hash in principal["revoked"] or (until is not None and identity.issued <= parse_time(until)):
        raise TrustError(f"the certificate of {identity.name.principal} was revoked")


@lru_cache(maxsize=10_000)
def _identity(at: str, chain: tuple[str, ...], roots: tuple[str, ...]) -> Identity:
    """An identity from its logged certificate. It was followed to the roots when it was logged; the same check gives the same answer."""
    return roots_from_ders(decode_chain(roots)).follow(decode_chain(chain), at=parse_time(at))
