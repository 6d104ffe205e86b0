"""The signed samples in `tests/vectors`: each goes through the function that meets it in life, and gets exactly the expected verdict."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509
from little_network import fresh_uuid

from entity_client.objects import read_change
from tdn import errors
from tdn.errors import MalformedMessage, TdnError, TrustError
from tdn.protocol import jsontext
from tdn.protocol.times import parse_time
from tdn.rules import watches
from tdn.rules.apply import RULES, apply, audience, network_id, read_genesis, requester
from tdn.rules.rights import Rights
from tdn.rules.sight import asker_of
from tdn.rules.state import EMPTY_HEAD, LogRecord, MemoryState, Outcome, next_head
from tdn.trust import envelope, grants, messages, openings, sealed, sealing, statements, verdict
from tdn.trust.certificates import TrustRoots
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.replay import MAX_CHANGE_LIFE, MAX_QUESTION_LIFE, ReplayWindow
from tdn.trust.statements import by_roots

FOLDER = Path(__file__).parents[1] / "vectors"
INDEX: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text("utf-8"))
NOW: datetime = parse_time(INDEX["now"])


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vectors_build", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load_script()


def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def roots() -> TrustRoots:
    """The committed roots; a fresh object, so that no verdict rests on what another test has cached."""
    return TrustRoots(x509.load_pem_x509_certificates(sample("roots.pem")))


def replay() -> tuple[MemoryState, list[Outcome]]:
    """The state after the sample log."""
    state, head, outcomes = MemoryState(), EMPTY_HEAD, []
    for seq, entry in enumerate(INDEX["log"], start=1):
        raw = sample(entry["file"])
        head = next_head(head, raw)
        outcome = apply(state, LogRecord(seq, head, raw))
        state.write(outcome)
        outcomes.append(outcome)
    return state, outcomes


STATE, OUTCOMES = replay()


# --- the doors that samples are sent through ---


def read_advertisement(raw: bytes, entry: dict[str, Any]) -> None:
    """As anyone does; and what it hides or seals, as those do who hold the opening or a key."""
    advertisement = statements.read_advertisement(raw, by_roots(roots()))
    if "opening" in entry:
        opened = openings.read(entry["opening"], advertisement.hidden)
        claims = entry.get("claims") or {"access": entry["lists"]}
        shown = {
            "access": opened.access and opened.access.as_object(),
            "hosting": opened.hosting and opened.hosting.as_object(),
            "parent": opened.parent,
            "gathering": opened.gathering and {**opened.gathering.as_object(), "notifications": opened.notifications},
            "members": list(opened.members) or None,
        }
        assert {name: value for name, value in shown.items() if value is not None} == claims
        assert opened.whole == (claims.keys() == entry["opening"].keys())
    if "readers" in entry:
        holders = {"alice": SCRIPT.ALICE, "bob": SCRIPT.BOB, "carol": SCRIPT.CAROL}
        opened = {
            name: sealed.open_descriptor(
                advertisement.descriptor, creator=advertisement.creator, network=INDEX["network"], key=who.key
            )
            for name, who in holders.items()
        }
        assert opened == {name: entry["inside"] if name in entry["readers"] else None for name in holders}


def read_beside(raw: bytes, entry: dict[str, Any]) -> None:
    """As `tdn verify` does with one of our JSON lines: the advertisement, and what is said beside it."""
    beside = entry["through"].removeprefix("beside ")
    first, second = verdict.judge([sample(beside), raw], roots())
    assert first.valid
    statements.read(raw, by_roots(roots()))
    if not second.valid:
        raise MalformedMessage(second.error or "")


def _authenticate(raw: bytes) -> Envelope:
    return envelope.authenticate(raw, lambda header: requester(STATE, header, NOW))


def _question(raw: bytes, audiences: set[str], window: ReplayWindow) -> Envelope:
    question = _authenticate(raw)
    envelope.require_addressed(question, audiences=frozenset(audiences), now=NOW, longest=MAX_QUESTION_LIFE)
    window.admit(str(question.signer.name), question.id, question.expires, NOW)
    return question


def ask_create(raw: bytes, entry: dict[str, Any]) -> None:
    """A creation request at node n1: admitted, then minted."""
    window = ReplayWindow()
    node = Credentials(roots().identify(SCRIPT.NODE.chain, at=NOW), SCRIPT.NODE.key, roots(), FOLDER)
    for _ in range(entry.get("times", 1)):
        question = _question(raw, {"node:n1"}, window)
        assert question.kind == "create"
        change_topic = fresh_uuid() if openings.GATHERING in question.body else None
        opening = openings.conceal(openings.claims_of(question.body, change_topic), openings.new_seed())
        token = statements.mint(question, uuid=fresh_uuid(), network=INDEX["network"], opening=opening, node=node, now=NOW)
        minted = statements.read_advertisement(token, by_roots(roots()))
        assert (minted.creator, minted.institution) == (question.signer.name.id, question.signer.institution)


def ask(raw: bytes, entry: dict[str, Any]) -> None:
    _question(raw, {"node:n1"}, ReplayWindow())


def locate(raw: bytes, entry: dict[str, Any]) -> None:
    _question(raw, {"tdn:nodes"}, ReplayWindow())


def change(raw: bytes, entry: dict[str, Any]) -> None:
    """A change at any node, as far as admission; its effect is the log's business."""
    request = _authenticate(raw)
    if request.kind not in RULES:
        raise TrustError(f"{request.kind} is not a change")
    envelope.require_addressed(request, audiences=frozenset({audience(STATE)}), now=NOW, longest=MAX_CHANGE_LIFE)


def notify(raw: bytes, entry: dict[str, Any]) -> None:
    """A notification at bob's client."""
    change = read_change(raw, by_roots(roots()), INDEX["network"], "bob")
    assert change.subject == SCRIPT.COLLECTION_UUID


def unseal(raw: bytes, entry: dict[str, Any]) -> None:
    """A sealed message at node n1. All that open hold the same question."""
    assert sealing.unseal(raw, SCRIPT.NODE.key) == sample("discover.jws")


def read_message(raw: bytes, entry: dict[str, Any]) -> None:
    """A message that bob finds on a topic."""
    found = messages.read(
        raw,
        messages.ENCRYPTED if entry["file"].endswith(".bin") else messages.SIGNED,
        key=SCRIPT.BOB.key,
        identify=by_roots(roots()),
        topic=SCRIPT.UUID,
        network=INDEX["network"],
        message_id=SCRIPT.MESSAGE_ID,
        now=NOW,
    )
    assert found.body in (SCRIPT.BODY, b"")
    assert found.publisher is not None
    assert found.publisher.id == "alice"
    assert found.at == NOW + timedelta(milliseconds=123)


def read_grant(raw: bytes, entry: dict[str, Any]) -> None:
    """A grant with all that it rests on, as anyone reads it who has the roots; and as `tdn verify` does."""
    found = grants.read_bundle(raw, by_roots(roots()))
    assert len(found.grants) == entry.get("grants", 1)
    assert (
        grants.join(*(grant.token for grant in reversed(found.grants))) == raw[: sum(len(g.token) + 1 for g in found.grants) - 1]
    )
    (judged,) = verdict.judge([raw], roots())
    assert judged.valid
    assert judged.kind == "grant"


DOORS: dict[str, Callable[[bytes, dict[str, Any]], None]] = {
    "advertisement": read_advertisement,
    "beside advert_path.jws": read_beside,
    "create": ask_create,
    "question": ask,
    "locate": locate,
    "change": change,
    "notification": notify,
    "sealed": unseal,
    "message": read_message,
    "grant": read_grant,
}


def _named(entry: dict[str, Any]) -> str:
    return str(entry["file"])


@pytest.mark.parametrize("entry", [e for e in INDEX["samples"] if e["verdict"] == "accepted"], ids=_named)
def test_sound_sample_is_accepted(entry: dict[str, Any]) -> None:
    """T5, T19, T20: what is right is accepted, whoever put it together."""
    DOORS[entry["through"]](sample(entry["file"]), entry)


@pytest.mark.parametrize("entry", [e for e in INDEX["samples"] if e["verdict"] == "refused"], ids=_named)
def test_flawed_sample_is_refused(entry: dict[str, Any]) -> None:
    """T1, T3, T4, T5, T8, T19, T20: each flaw is refused, with the class of error and the words that tell what it was."""
    with pytest.raises(TdnError) as caught:
        DOORS[entry["through"]](sample(entry["file"]), entry)
    assert type(caught.value) is getattr(errors, entry["error"])
    assert entry["message"] in caught.value.message


@pytest.mark.parametrize("place", range(len(INDEX["log"])), ids=[_named(e) for e in INDEX["log"]])
def test_log_sample(place: int) -> None:
    """A log that was written once is judged the same for ever: accepted, refused and void as noted."""
    entry, outcome = INDEX["log"][place], OUTCOMES[place]
    assert outcome.status == entry["status"], outcome.error
    assert entry.get("message", "") in str((outcome.error or {}).get("message", ""))


def test_lists_are_in_the_log_and_not_in_what_everybody_reads() -> None:
    """T18: the state knows whom a topic is hidden from, and only then; the signed bytes with lists and without differ in a digest alone."""
    listed, plain = STATE.get("topic", SCRIPT.OTHER_UUID), STATE.get("topic", SCRIPT.UUID)
    assert listed is not None
    assert plain is not None
    assert STATE.get("access", listed["access"]) == SCRIPT.LISTS
    assert "access" not in plain
    with_lists, without = sample("advert_with_lists.jws"), sample("advert_path.jws")
    assert len(with_lists) == len(without)
    for name in ("bob", "institution:", "discover_"):
        assert name.encode() not in SCRIPT.base64.urlsafe_b64decode(with_lists.split(b".")[1] + b"==")


def test_a_subtree_ended_with_its_root_in_the_log() -> None:
    """T24, T26, T29, T33: the sample log has led to a child that ended with its parent, a collection without it, and a follower that knows."""
    root, child, collection = (STATE.get("topic", uuid) for uuid in (SCRIPT.ROOT_UUID, SCRIPT.CHILD_UUID, SCRIPT.COLLECTION_UUID))
    assert root is not None
    assert child is not None
    assert collection is not None
    assert (root["state"], child["state"], collection["state"]) == ("withdrawn", "expired", "live")
    assert (child["parent"], child["root"]) == (SCRIPT.ROOT_UUID, SCRIPT.ROOT_UUID)
    for space in ("child", "member", "in", "reserved", "settling", "pending"):
        assert list(STATE.all(space)) == [], space
    found = watches.told_since(STATE, SCRIPT.COLLECTION_UUID, "bob", 0, 100)
    assert found is not None
    assert [(told.version, told.fact["change"], told.fact["uuid"]) for told in found[1]] == [
        (1, "added", SCRIPT.CHILD_UUID),
        (2, "withdrawn", SCRIPT.ROOT_UUID),
        (3, "expired", SCRIPT.CHILD_UUID),
    ]


def test_grants_in_the_log() -> None:
    """T20, T21: the sample log has led to a topic of bob's, on which nothing of what alice granted counts, and to a queue that is to go."""
    facts = {key.rstrip("-"): fact for key, fact in STATE.all("grant")}
    assert {key: (fact["state"], fact["grantee"]) for key, fact in facts.items()} == {
        "logged-to-bob": ("revoked", "bob"),
        "logged-passed-on": ("live", "institution:Example"),
        "logged-to-everyone": ("live", "*"),
    }
    rights = Rights(STATE, NOW)
    askers = {who: asker_of(STATE, who) for who in ("alice", "bob")}
    bases = {
        (who, right): rights.basis(asker, right, SCRIPT.OTHER_UUID)
        for who, asker in askers.items()
        if asker is not None
        for right in grants.RIGHTS
    }
    assert {key for key, basis in bases.items() if basis is not None} == {("bob", "publish"), ("bob", "subscribe")}
    assert {basis.grants for basis in bases.values() if basis is not None} == {()}
    assert list(STATE.all("feed")) == []
    assert [key for key, _ in STATE.all("stale")] == [f"{SCRIPT.OTHER_UUID} bob {'b0' * 16}"]
    assert [key for key, _ in STATE.all("opened")] == [SCRIPT.OTHER_UUID]


def test_what_the_log_decides_is_what_was_signed() -> None:
    """T29: the sample notification is the payload that every node signs of the sample log."""
    found = watches.told_since(STATE, SCRIPT.COLLECTION_UUID, "bob", 0, 1)
    assert found is not None
    (told,) = found[1]
    assert told.payload(INDEX["network"]) == SCRIPT.NOTIFICATION


def test_network_is_named_by_its_genesis() -> None:
    genesis = sample("genesis.jws")
    assert network_id(genesis) == INDEX["network"]
    assert read_genesis(genesis).signer.name.principal == "operator:operator"


def test_every_file_is_in_the_index() -> None:
    named = {entry["file"] for entry in [*INDEX["samples"], *INDEX["log"]]} | {"genesis.jws"}
    assert {path.name for path in FOLDER.iterdir() if path.suffix in (".jws", ".bin")} == named


def test_samples_are_what_the_script_builds(tmp_path: Path) -> None:
    """The committed bytes come from `build.py`: a flaw cannot be lost by editing one without the other."""
    SCRIPT.build(tmp_path)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built.keys() == {path.name for path in FOLDER.iterdir() if path.suffix in (".jws", ".bin", ".json", ".pem")}
    assert [name for name, content in built.items() if content != sample(name)] == []


def test_any_changed_byte_is_refused() -> None:
    """T5: flip each bit in turn, and replace each byte by other letters of the alphabet: nothing but the original is accepted."""
    original = sample("advert_path.jws")
    identify = by_roots(roots())
    statements.read_advertisement(original, identify)
    for place in range(len(original)):
        # One flip that usually stays within the base64 alphabet, one that leaves it, so that every check is met at every place.
        for flipped in (original[place] ^ 1, original[place] ^ 0x80):
            changed = original[:place] + bytes([flipped]) + original[place + 1 :]
            with pytest.raises((TrustError, MalformedMessage)):
                statements.read_advertisement(changed, identify)


# A changed serial number may be a negative one, of which the library warns before the signature is looked at.
@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_any_changed_byte_of_a_bundle_is_refused() -> None:
    """T20: whatever part it is in: the grant, what it rests on, the word on its owner, the advertisement."""
    identify = by_roots(roots())
    for name in ("grant_passed_on.jws", "grant_transferred.jws"):
        original = sample(name)
        grants.read_bundle(original, identify)
        for place in range(0, len(original), 5):
            changed = original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :]
            with pytest.raises((TrustError, MalformedMessage)):
                grants.read_bundle(changed, identify)


def test_any_cut_is_refused() -> None:
    """T5: no beginning of an advertisement is one."""
    original = sample("advert_path.jws")
    identify = by_roots(roots())
    for length in range(0, len(original), 3):
        with pytest.raises((TrustError, MalformedMessage)):
            statements.read_advertisement(original[:length], identify)


def test_advert_oversized() -> None:
    """Size is refused before anything is decoded: not stored, since the repository should stay small."""
    with pytest.raises(MalformedMessage, match="over the limit") as caught:
        statements.read_advertisement(sample("advert_path.jws") + b"A" * jsontext.MAX_MESSAGE_BYTES, by_roots(roots()))
    assert len(caught.value.received) <= errors.KEPT_BYTES


def test_valid_for_decades() -> None:
    """T5: verified offline from its stored bytes, without asking what time it is now: the moment of signing is what counts."""
    advertisement = statements.read_advertisement(sample("advert_path.jws"), by_roots(roots()))
    assert advertisement.creator == "alice"
    assert advertisement.institution == "Example"
    assert advertisement.synopsis == advertisement.uuid
