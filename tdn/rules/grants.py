"""Grants in the log (T20, T21): given by a topic's owner, passed on in chains that never widen, renewed, and ended by whoever stands above.

Owners change hands (`transfer`, `accept`): a grant names the topic's owner epoch, and lapses with it unless the new owner keeps it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tdn.errors import Refused, TrustError
from tdn.protocol.times import MAX_LIFETIME, format_time, parse_time, whole_seconds
from tdn.rules import principals
from tdn.rules.rights import Rights, who_key
from tdn.rules.sight import COLLECTION, LIVE, asker_of, live
from tdn.rules.state import Draft, Fact, Occasion, scan_below
from tdn.trust import grants
from tdn.trust.envelope import Envelope
from tdn.trust.grants import MAX_CHAIN, Grant
from tdn.trust.replay import CLOCK_SKEW

#: A grant must be put into the log within a day of its signing, so that a leaked old one cannot surface years later.
GIVE_WITHIN = timedelta(days=1)
#: Grants of one right on one thing for the same grantee: a decision may look at each.
MAX_ALIKE = 16
#: How long an ended grant is still listed.
KEPT_FOR = timedelta(days=30)
#: How long an offer of a topic waits to be accepted.
OFFER_FOR = timedelta(days=7)

REVOKED, EXPIRED = "revoked", "expired"


def give(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T20: a grant begins to count; or, under the id of one that does, lasts until another moment."""
    if request.tail is None:
        raise Refused("the request carries no grant")
    grant = grants.read(request.tail, lambda header, moment: principals.issuer(draft, header))
    _require_sound(draft, grant, request, occasion)
    present = draft.get("grant", grant.id)
    fact = _authorised(draft, grant, occasion)
    if present is None:
        _require_grantee(draft, grant, fact)
        _require_few(draft, grant)
    else:
        _require_same(present, fact, grant, occasion)
        if present["issued"] == fact["issued"]:
            return _fixed(grant)
        draft.put("ends", f"{present['until']} grant {grant.id}", None)
        fact["epoch"] = present["epoch"]
    _write(draft, grant.id, {**fact, "seq": occasion.seq, "given": occasion.seq, "record": occasion.record})
    return _fixed(grant)


def retract(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """T21: the end of a grant. What was passed on from it ends with it, because nothing holds without what it rests on."""
    grant_id = request.body["grant"]
    fact = draft.get("grant", grant_id)
    if fact is None or not _may_retract(draft, fact, request.signer.name.id):
        raise Refused(f"there is no grant {grant_id} that you may revoke")
    if fact["state"] == LIVE:
        draft.put("grant", grant_id, {**fact, "state": REVOKED, "seq": occasion.seq})
        draft.put("granted", _place(grant_id, fact), None)
    return {"grant": grant_id}


def end(draft: Draft, grant_id: str, moment: str) -> None:
    """Log time has reached a grant's end, or the moment after which an ended one is no longer listed."""
    fact = draft.get("grant", grant_id)
    if fact is None:
        return
    if moment == fact["until"]:
        if fact["state"] == LIVE:
            draft.put("grant", grant_id, {**fact, "state": EXPIRED})
            draft.put("granted", _place(grant_id, fact), None)
        draft.put("ends", f"{format_time(parse_time(moment) + KEPT_FOR)} grant {grant_id}", {})
        return
    draft.put("grant", grant_id, None)
    draft.put("issued", f"{fact['issuer']} {grant_id}", None)
    draft.put("held", f"{who_key(fact['grantee'])} {grant_id}", None)
    draft.put("about", f"{fact['topic']} {grant_id}", None)


def transfer(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """An owner offers a topic or collection to another entity; to itself: takes the offer back."""
    uuid, to = request.body["uuid"], request.body["to"]
    topic = _owned(draft, uuid, request, occasion)
    changed = {name: value for name, value in topic.items() if name != "offer"}
    until = occasion.now + OFFER_FOR
    if to != topic["owner"]:
        if asker_of(draft, to) is None:
            raise Refused(
                f"the network does not know entity {to}; it must have connected once, as with `entity --as {to} locate`"
            )
        changed["offer"] = {"to": to, "until": format_time(whole_seconds(until))}
    draft.put("topic", uuid, changed)
    return {"uuid": uuid, "expires": format_time(whole_seconds(until))}


def accept(draft: Draft, request: Envelope, occasion: Occasion) -> dict[str, Any]:
    """The other entity becomes the owner. Whose grants the topic honours from now on: the new owner's, or those before as well."""
    uuid, new = request.body["uuid"], request.signer.name.id
    topic = live(draft, uuid, occasion.now)
    offer = topic.get("offer") if topic is not None else None
    if topic is None or offer is None or offer["to"] != new or parse_time(offer["until"]) <= occasion.now:
        raise Refused(f"there is no topic {uuid} that was offered to you; an offer waits for {OFFER_FOR.days} days")
    epoch = topic.get("epoch", 0) + 1
    honours = topic.get("honours", 0) if request.body["keep_grants"] else epoch
    changed = {name: value for name, value in topic.items() if name != "offer"}
    draft.put("topic", uuid, {**changed, "owner": new, "epoch": epoch, "honours": honours, "seq": occasion.seq})
    draft.put("kept", f"{topic['owner']} {uuid}", None)
    draft.put("kept", f"{new} {uuid}", {} if honours < epoch else None)
    return {"uuid": uuid, "owner": new}


# --- giving ---


def _require_sound(draft: Draft, grant: Grant, request: Envelope, occasion: Occasion) -> None:
    if (grant.id, grant.terms.topic) != (request.body["grant"], request.body["uuid"]):
        raise Refused("the request names another grant than it carries")
    if grant.network != principals.network(draft)["id"]:
        raise TrustError("the grant is for another network")
    if grant.issuer.name.principal != request.signer.name.principal:
        raise Refused("only its issuer can put a grant into the log")
    if grant.issued > occasion.at + CLOCK_SKEW:
        raise Refused("the grant is dated in the future; compare the clocks")
    if occasion.now > grant.issued + GIVE_WITHIN:
        raise Refused("the grant was signed more than a day ago; sign it again")
    if grant.terms.expires <= occasion.now:
        raise Refused("the grant would have ended already")
    if grant.terms.expires > occasion.now + MAX_LIFETIME + CLOCK_SKEW:
        raise Refused(f"a grant lasts {MAX_LIFETIME.days} days at most")


def _authorised(draft: Draft, grant: Grant, occasion: Occasion) -> dict[str, Any]:
    """The fact of a grant that its issuer may give. To whoever may not, absent and forbidden are the same words."""
    terms = grant.terms
    issuer = grant.issuer.name.id
    topic = live(draft, terms.topic, occasion.now)
    refusal = Refused(f"there is no topic {terms.topic} that you may let others {terms.right} to")
    if topic is None:
        raise refusal
    fact: dict[str, Any] = {
        "right": terms.right,
        "topic": terms.topic,
        "tree": terms.tree,
        "issuer": issuer,
        "grantee": grant.grantee,
        "from": format_time(terms.not_before),
        "until": format_time(terms.expires),
        "delegable": terms.delegable,
        "digest": grant.digest,
        "issued": format_time(grant.issued),
        "state": LIVE,
        "epoch": topic.get("epoch", 0),
        #: Records of the grants that it rests on, each with its digest, the nearest first, as they were when it was given.
        "rests": [],
    }
    if grant.parent is None:
        if topic["owner"] != issuer:
            raise refusal
        if grant.advertisement != topic["digest"]:
            raise Refused(f"the grant rests on another advertisement than that of topic {terms.topic}")
    else:
        fact |= _passed_on(draft, grant, occasion, refusal)
    if topic["kind"] == COLLECTION and not terms.tree:
        raise Refused(f"{terms.topic} is a collection, which carries no messages itself; grant its topics with --tree")
    return fact


def _passed_on(draft: Draft, grant: Grant, occasion: Occasion, refusal: Refused) -> dict[str, Any]:
    """T20: the whole chain is checked, and what is passed on is never wider than what it rests on."""
    assert grant.parent is not None  # noqa: S101  # for mypy: the caller has asked
    parent_id, digest = grant.parent
    terms = grant.terms
    parent = draft.get("grant", parent_id)
    # By its present certificate: it may sign with one that names an institution that it has left.
    issuer = asker_of(draft, grant.issuer.name.id)
    if parent is None or issuer is None or not issuer.is_meant_by([parent["grantee"]]):
        raise refusal
    rights = Rights(draft, occasion.now)
    chain = rights.chain_of(parent_id, terms.topic)
    if chain is None:
        raise Refused(f"grant {parent_id} has ended, has not begun, or does not cover {terms.topic}")
    if parent["digest"] != digest:
        raise Refused(f"grant {parent_id} was renewed since; take its present text")
    if not parent["delegable"]:
        raise Refused(f"grant {parent_id} may not be passed on")
    if parent["right"] != terms.right or (terms.tree and not parent["tree"]):
        raise Refused(f"grant {parent_id} is narrower than what would be passed on")
    if format_time(terms.not_before) < parent["from"] or format_time(terms.expires) > parent["until"]:
        raise Refused(f"grant {parent_id} holds from {parent['from']} until {parent['until']}; nothing longer can be passed on")
    if len(parent["rests"]) + 1 >= MAX_CHAIN:
        raise Refused(f"a grant is passed on at most {MAX_CHAIN - 1} times")
    issuers = {(draft.get("grant", link) or {}).get("issuer") for link in chain}
    if grant.grantee in issuers:
        raise Refused(f"the grant would come back to {grant.grantee}, whom it comes from")
    # What the chain begins with: its advertisement is a part of the proof.
    root = parent.get("root", parent["topic"])
    return {"parent": parent_id, "root": root, "rests": [[parent["given"], parent["record"]], *parent["rests"]]}


def _require_grantee(draft: Draft, grant: Grant, fact: Fact) -> None:
    key = grant.grantee_key
    if key is None:
        return
    if grant.grantee == fact["issuer"]:
        raise Refused("a grant to oneself gives nothing")
    principal = draft.get("principal", f"entity:{grant.grantee}")
    if principal is None or asker_of(draft, grant.grantee) is None:
        raise Refused(f"the network does not know entity {grant.grantee}; it must have connected once")
    if principal["key"] != key:
        raise Refused(f"entity {grant.grantee} has another key by now; look it up again")


def _require_few(draft: Draft, grant: Grant) -> None:
    place = f"{grant.terms.topic} {grant.terms.right} {who_key(grant.grantee)}"
    if sum(1 for _ in scan_below(draft, "granted", place)) >= MAX_ALIKE:
        raise Refused(f"{grant.grantee} has {MAX_ALIKE} grants of this kind on {grant.terms.topic}; renew one, or revoke some")


def _require_same(present: Fact, fact: Fact, grant: Grant, occasion: Occasion) -> None:
    """A grant that is renewed is the same but for its times."""
    fixed = ("right", "topic", "tree", "issuer", "grantee", "delegable")
    if any(present[name] != fact[name] for name in fixed) or present.get("parent") != fact.get("parent"):
        raise Refused(f"the id {grant.id} was used for another grant")
    if present["state"] != LIVE or parse_time(present["until"]) <= occasion.now:
        raise Refused(f"grant {grant.id} has ended; give a new one")
    if fact["issued"] < present["issued"] or (fact["issued"] == present["issued"] and fact["digest"] != present["digest"]):
        raise Refused(f"grant {grant.id} was renewed in between or in the same second; try again")


def _write(draft: Draft, grant_id: str, fact: dict[str, Any]) -> None:
    draft.put("grant", grant_id, fact)
    draft.put("granted", _place(grant_id, fact), {"tree": fact["tree"], "delegable": fact["delegable"]})
    draft.put("issued", f"{fact['issuer']} {grant_id}", {})
    draft.put("held", f"{who_key(fact['grantee'])} {grant_id}", {})
    draft.put("about", f"{fact['topic']} {grant_id}", {})
    draft.put("ends", f"{fact['until']} grant {grant_id}", {})


def _place(grant_id: str, fact: Fact) -> str:
    return f"{fact['topic']} {fact['right']} {who_key(fact['grantee'])} {grant_id}"


def _fixed(grant: Grant) -> dict[str, Any]:
    return {"grant": grant.id, "uuid": grant.terms.topic, "expires": format_time(grant.terms.expires)}


def _may_retract(draft: Draft, fact: Fact, entity: str) -> bool:
    """Its issuer, whoever issued one that it rests on, the topic's owner; and whoever holds it may give it up."""
    topic = draft.get("topic", fact["topic"])
    if entity == fact["grantee"] or (topic is not None and topic["owner"] == entity):
        return True
    at: Fact | None = fact
    while at is not None:
        if at["issuer"] == entity:
            return True
        at = draft.get("grant", at["parent"]) if "parent" in at else None
    return False


def _owned(draft: Draft, uuid: str, request: Envelope, occasion: Occasion) -> Fact:
    topic = live(draft, uuid, occasion.now)
    if topic is None or topic["owner"] != request.signer.name.id:
        raise Refused(f"there is no topic {uuid} that you own")
    return topic
