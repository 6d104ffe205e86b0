"""Several nodes over one log in memory, which delays, reorders and doubles what they append, while they crash and begin again.

A node here is `tdn/node/changes.py` in miniature: look whether a request has its outcome, append it, wait for one's own apply, answer.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, overload

import pytest
from little_network import MINUTE, SECOND
from pki import T0
from sizes import LONG
from tree_model import COLLECTION, LIVE, Model
from tree_requests import ENTITIES, Requests, Seeded, TwoInstitutions

from tdn.protocol.times import format_time
from tdn.rules import apply as rules
from tdn.rules.apply import apply, repeated, request_key, requester, write_record
from tdn.rules.state import EMPTY_HEAD, LogRecord, MemoryState, Outcome, State, next_head
from tdn.store.view import View
from tdn.trust import envelope
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope

NET = TwoInstitutions("simulation", nodes=("n1", "n2", "n3", "n4"))


class Crashed(Exception):
    """A node's process ended here."""


# --- what a node keeps ---


class Store(Protocol):
    """A state that survives its node, as far as it was committed."""

    @property
    def state(self) -> State: ...

    @property
    def applied(self) -> int: ...

    def apply_all(self, records: Sequence[bytes]) -> list[Outcome]: ...

    def reopen(self) -> None: ...

    def digest(self) -> str: ...


class InMemory:
    """Committed facts in a dict. A batch is applied to a copy, which takes their place when all of it is done."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.head = EMPTY_HEAD
        self.applied = 0

    def apply_all(self, records: Sequence[bytes]) -> list[Outcome]:
        state, head, seq = copy.deepcopy(self.state), self.head, self.applied
        outcomes = []
        for raw in records:
            seq, head = seq + 1, next_head(head, raw)
            outcome = apply(state, LogRecord(seq, head, raw))
            state.write(outcome)
            outcomes.append(outcome)
        self.state, self.head, self.applied = state, head, seq
        return outcomes

    def reopen(self) -> None:
        pass

    def digest(self) -> str:
        return self.state.digest()


class OnDisk:
    """The view that real nodes have."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = View(path)

    @property
    def applied(self) -> int:
        return self.state.position.seq

    def apply_all(self, records: Sequence[bytes]) -> list[Outcome]:
        offsets = _Numbered(self.state.position.offset + 1, records)
        return [outcome for _, outcome in self.state.apply_all(offsets, durable=False)]

    def reopen(self) -> None:
        self.state.close()
        self.state = View(self._path)

    def digest(self) -> str:
        return self.state.digest()


@dataclass
class _Numbered(Sequence[tuple[int, bytes]]):
    """Records with their offsets in the stream, which may end with a crash instead."""

    first: int
    records: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> tuple[int, bytes]: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, bytes]]: ...

    def __getitem__(self, at: int | slice) -> Any:
        return list(self)[at]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return ((self.first + number, raw) for number, raw in enumerate(self.records))


@dataclass
class _Interrupted(Sequence[bytes]):
    """A batch in whose middle the process ends."""

    records: Sequence[bytes]
    after: int

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, at: Any) -> Any:
        return self.records[at]

    def __iter__(self) -> Iterator[bytes]:
        yield from self.records[: self.after]
        raise Crashed


# --- a node ---


@dataclass
class Answer:
    """What one node told the requester."""

    node: str
    receipt: Any
    error: Any
    seq: int


@dataclass
class Node:
    name: str
    store: Store
    network: Network
    #: How far its clock is from the right time.
    skew: int = 0
    #: Requests that wait for the outcome of a record of ours.
    waiting: dict[bytes, Envelope] = field(default_factory=dict)

    @property
    def credentials(self) -> Credentials:
        return NET.node(self.name)

    @property
    def clock(self) -> datetime:
        return self.network.time + self.skew * SECOND

    def take(self, raw: bytes) -> None:
        """A request from the shared queue."""
        request = envelope.authenticate(raw, lambda header: requester(self.store.state, header, self.clock))
        before = repeated(self.store.state, request)
        if before is not None:
            self.answer(request, before)
            return
        minted = None
        if request.kind == "register":
            minted = {"uuid": self.network.requests.new_uuid(self.network.choose), "seed": f"{len(self.network.log):022d}"}
        record = write_record(request.kind, self.credentials, self.clock, raw, minted)
        self.waiting[record] = request
        self.network.post(self, record)

    def tick(self) -> None:
        self.network.post(self, write_record("tick", self.credentials, self.clock))

    def read(self, most: int, crash_after: int | None = None) -> None:
        """Apply some of what the log has and this node has not, commit once, then answer whoever waits."""
        batch: Sequence[bytes] = self.network.log[self.store.applied : self.store.applied + most]
        outcomes = self.store.apply_all(batch if crash_after is None else _Interrupted(batch, crash_after))
        for raw, outcome in zip(batch, outcomes, strict=True):
            if (request := self.waiting.pop(raw, None)) is not None:
                self.answer(request, outcome)

    def answer(self, request: Envelope, outcome: Outcome) -> None:
        assert outcome.status != "void", outcome
        self.network.answered(request, Answer(self.name, outcome.receipt, outcome.error, self.store.applied))

    def crash(self) -> None:
        """What was not committed is gone, and so is who waited."""
        self.waiting.clear()
        self.store.reopen()


# --- everything between ---


class Network:
    """The log, what is on its way to it, the shared queue of requests, and the entities' side of it."""

    def __init__(self, seed: int, path: Path, node: Callable[..., Node] = Node) -> None:
        self.choose = Seeded(random.Random(seed))
        self.time = T0
        self.log: list[bytes] = []
        #: The log as the model judges it, record by record, at the moment each is in it.
        self.model = Model()
        self.requests = Requests(NET, self.model)
        self.flying: list[tuple[Node, bytes]] = []
        self.queue: list[bytes] = []
        self.answers: dict[str, list[Answer]] = {}
        self.sent: dict[str, bytes] = {}
        self.crashes = 0
        for raw in NET.opening(ENTITIES):
            self.place(raw)
        self._plant()
        self.nodes = [node(name, InMemory(), self) for name in NET.node_ids[:-1]]
        self.nodes.append(node(NET.node_ids[-1], OnDisk(path / f"{seed}.sqlite"), self))
        for each in self.nodes:
            each.skew = self.choose.number(-8, 8)
            each.read(10**6)

    def _plant(self) -> None:
        """A few topics and collections that are there from the beginning."""
        for number in range(6):
            uuid = (self.requests.root if number % 2 else self.requests.collection)(self.choose, T0)
            self.place(write_record("advertise", NET.node("n1"), T0, self.requests.advertise(self.choose, T0, uuid)))

    # --- the log ---

    def post(self, node: Node, record: bytes) -> None:
        self.flying.append((node, record))

    def place(self, raw: bytes) -> None:
        """A record is in the log, and nothing is larger than it may be."""
        self.log.append(raw)
        verdict = self.model.take(raw)
        assert verdict.status != "void", verdict
        for uuid, thing in self.model.things.items():
            assert thing.state != LIVE or not self.model.exceeded(uuid), uuid

    def land(self) -> None:
        """Something that was on its way is in the log: any of it, and sometimes twice."""
        number = self.choose.number(0, len(self.flying) - 1)
        raw = self.flying[number][1]
        if not self.choose.chance(12):
            del self.flying[number]
        self.place(raw)

    # --- entities ---

    def ask(self) -> None:
        """An entity sends a request, and several others do at the same moment."""
        at = self.time
        for _ in range(self.choose.number(1, 4)):
            kind = self.choose.pick(_KINDS)
            if kind == "create":
                uuid = (self.requests.root if self.choose.chance(50) else self.requests.collection)(self.choose, at)
                request = self.requests.advertise(self.choose, at, uuid)
            elif kind == "advertise":
                waiting = self.requests.unclaimed(self.choose)
                if waiting is None:
                    continue
                request = self.requests.advertise(self.choose, at, waiting)
            else:
                request = getattr(self.requests, kind)(self.choose, at)
            self.send(request)

    def send(self, request: bytes) -> None:
        self.queue.append(request)
        known = envelope.authenticate(request, lambda header: requester(self.nodes[0].store.state, header, self.time))
        self.sent[request_key(known)] = request

    def deliver(self) -> None:
        """A node gets a request. It stays in the queue until it is answered; sometimes two nodes get it."""
        for _ in range(2 if self.choose.chance(15) else 1):
            self.choose.pick(self.nodes).take(self.choose.pick(self.queue))

    def answered(self, request: Envelope, answer: Answer) -> None:
        key = request_key(request)
        first = key not in self.answers
        self.answers.setdefault(key, []).append(answer)
        self.queue = [raw for raw in self.queue if raw != request.raw]
        if first and answer.receipt is not None and request.kind == "register":
            self.requests.registered(request.raw, Outcome("accepted", "register", receipt=answer.receipt))
        if first and self.choose.chance(15):
            # The answer was lost, so it is asked again.
            self.queue.append(request.raw)

    # --- what goes wrong ---

    def crash(self) -> None:
        """A node ends, maybe in the middle of a batch. Of what it was appending, some gets there."""
        node = self.choose.pick(self.nodes)
        self.crashes += 1
        behind = len(self.log) - node.store.applied
        if behind and self.choose.chance(60):
            before, digest = node.store.applied, node.store.digest()
            with pytest.raises(Crashed):
                node.read(behind, crash_after=self.choose.number(0, behind))
            node.crash()
            assert (node.store.applied, node.store.digest()) == (before, digest)
        node.crash()
        self.flying = [(whose, raw) for whose, raw in self.flying if whose is not node or self.choose.chance(50)]

    def step(self) -> None:
        self.time += self.choose.pick((0, 0, 0, 1)) * SECOND
        action = self.choose.pick(_ACTIONS)
        if action == "ask" and len(self.queue) < 8:
            self.ask()
        elif action == "deliver" and self.queue:
            self.deliver()
        elif action == "land":
            for _ in range(min(self.choose.number(1, 4), len(self.flying))):
                self.land()
        elif action == "read":
            self.choose.pick(self.nodes).read(self.choose.pick((1, 3, 30)))
        elif action == "tick":
            self.time += self.choose.pick((1, 3, 10, 30)) * SECOND
            self.choose.pick(self.nodes).tick()
        elif action == "crash" and self.choose.chance(50):
            self.crash()

    def finish(self) -> None:
        """No more faults: everything gets there, and everybody is answered."""
        for _ in range(1000):
            if not self.queue and not self.flying:
                break
            for request in list(self.queue):
                self.choose.pick(self.nodes).take(request)
            while self.flying:
                self.place(self.flying.pop(0)[1])
            for node in self.nodes:
                node.read(10**6)
        assert not self.queue
        for node in self.nodes:
            node.tick()
        while self.flying:
            self.place(self.flying.pop(0)[1])
        for node in self.nodes:
            node.read(10**6)


_KINDS = (
    *("create", "register", "add", "add", "register", "advertise", "advertise", "move", "add", "watch"),
    *("create", "register", "advertise", "renew", "remove", "withdraw", "unwatch"),
)
_ACTIONS = (
    *("ask", "deliver", "land", "read", "ask", "deliver", "land", "read", "deliver", "land", "read", "land", "deliver"),
    *("ask", "deliver", "land", "read", "ask", "deliver", "land", "read", "tick", "crash"),
)


# --- what must be so ---


def check(network: Network) -> None:
    """Equal states, one outcome for each request, each in effect once, no limit exceeded; and a log that gives the same again."""
    again = InMemory()
    outcomes = again.apply_all(network.log)
    assert {node.store.digest() for node in network.nodes} == {again.digest()}
    judged = Model()
    for raw, outcome in zip(network.log, outcomes, strict=True):
        verdict = judged.take(raw)
        assert verdict.status == outcome.status, (verdict, outcome)
    assert {uuid: (fact["state"], fact["expires"], fact.get("parent")) for uuid, fact in again.state.all("topic")} == {
        uuid: (thing.state, format_time(thing.expires), thing.parent) for uuid, thing in judged.things.items()
    }
    assert {key for key, _ in again.state.all("in")} == {
        f"{uuid} {place}" for place, members in judged.members.items() for uuid in members
    }
    decided = Counter(outcome.request for outcome in outcomes if outcome.status in ("accepted", "refused"))
    assert set(network.answers) == set(network.sent)
    for key, answers in network.answers.items():
        # It was judged once, and whoever answered said what was decided then; what was promised is in every node's state.
        assert decided[key] == 1
        fact = again.state.get("request", key)
        assert fact is not None
        for answer in answers:
            assert (answer.receipt, answer.error) == (fact["receipt"], fact["error"])
            assert fact["seq"] <= answer.seq


def simulate(seed: int, path: Path, steps: int, node: Callable[..., Node] = Node) -> Network:
    network = Network(seed, path, node)
    try:
        for _ in range(steps):
            network.step()
        network.finish()
        check(network)
    except Exception as error:
        error.add_note(f"seed {seed}, {len(network.log)} records, {network.crashes} crashes")
        raise
    finally:
        for each in network.nodes:
            if isinstance(each.store, OnDisk):
                each.store.state.close()
    return network


@pytest.mark.timeout(7200 if LONG else 300)
def test_nodes_agree_whatever_happens_to_them(tmp_path: Path) -> None:
    """T22, T25: equal states, one outcome for each request and no limit exceeded, though records are delayed, reordered and doubled and
    nodes crash. That all of it took place is shown by what was counted."""
    seen: Counter[str] = Counter()
    for seed in range(300 if LONG else 3):
        network = simulate(seed, tmp_path, 500)
        outcomes = InMemory().apply_all(network.log)
        seen["crashes"] += network.crashes
        seen["doubled"] += len(network.log) - len(set(network.log))
        seen["several answers"] += sum(len(answers) > 1 for answers in network.answers.values())
        seen.update(outcome.status for outcome in outcomes)
        seen["collections"] += sum(thing.kind == COLLECTION for thing in network.model.things.values())
    assert (
        min(seen[name] for name in ("crashes", "doubled", "several answers", "accepted", "refused", "repeated", "collections"))
        > 10
    )


def _simulate_several(path: Path, node: Callable[..., Node]) -> None:
    for seed in range(20):
        simulate(seed, path, 500, node)


class Hasty(Node):
    """Answers when it has appended, by what it expects to come of it."""

    def take(self, raw: bytes) -> None:
        super().take(raw)
        for record, request in list(self.waiting.items()):
            if request.raw == raw:
                expected = apply(self.store.state, LogRecord(self.store.applied + 1, EMPTY_HEAD, record))
                self.answer(request, expected)


def test_an_early_answer_is_noticed(tmp_path: Path) -> None:
    """T22: a node that answers before its own apply promises what does not come. The simulation must be able to tell."""
    with pytest.raises(AssertionError):
        _simulate_several(tmp_path, Hasty)


def test_missing_deduplication_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: without the memory of requests, doubled ones have a second effect. The simulation must be able to tell."""
    monkeypatch.setattr(rules, "repeated", lambda state, request: None)
    with pytest.raises(AssertionError):
        _simulate_several(tmp_path, Node)


def test_last_slot_goes_to_one(tmp_path: Path) -> None:
    """T25: however many nodes get requests for the last slot, and whichever is read first, one has it."""
    for seed in range(20):
        network = Network(seed, tmp_path)
        choose = network.choose
        alice = NET.entity("alice")
        root = network.requests._mint("alice", NET.mint(alice, hosting={"allow_children": True, "max_width": 1}))
        network.send(network.requests.advertise(Seeded(_Never()), T0, root))
        network.finish()
        for who in ENTITIES:
            network.send(NET.register(network.requests.entity(who), root, at=T0 + MINUTE))
        for request in network.queue * 2:
            choose.pick(network.nodes).take(request)
        choose.source.shuffle(network.flying)
        network.finish()
        accepted = [key for key, answers in network.answers.items() if "register" in str(answers[0].receipt)]
        assert len(accepted) == 1
        check(network)
        network.nodes[-1].store.state.close()  # type: ignore[attr-defined]


class _Never(random.Random):
    """Chooses the first of everything, and never takes a chance."""

    def random(self) -> float:
        return 1.0
