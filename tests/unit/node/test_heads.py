"""Who puts back what the log has lost: the decision by itself, and many nodes that take it at once in every order."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_network import MINUTE, LittleNetwork
from pki import T0
from sizes import examples

from tdn.bus.connection import Delivery
from tdn.node.comparing import Comparing, expected
from tdn.node.heads import Go, Pass, Restore, Step, Stop, Wait, Word, next_step, read_word
from tdn.rules.state import EMPTY_HEAD, MemoryState, next_head


def head_of(chain: list[bytes], seq: int) -> str:
    head = EMPTY_HEAD
    for raw in chain[:seq]:
        head = next_head(head, raw)
    return head


CHAIN = [b"%d" % number for number in range(20)]
OTHER = [*CHAIN[:10], *(b"other %d" % number for number in range(10, 20))]


def word(who: str, seq: int, log: int = 10, *, chain: list[bytes] = CHAIN, **rest: Any) -> Word:
    return Word(who, seq, head_of(chain, seq), log, **rest)


def step(mine: Word, *heard: Word, silent: tuple[str, ...] = (), chain: list[bytes] = CHAIN) -> Step:
    return next_step(mine, heard, silent, lambda seq: head_of(chain, seq))


# --- the decision ---


def test_alone_and_with_equals() -> None:
    assert step(word("node:n1", 10)) == Go()
    assert step(word("node:n1", 10), word("node:n2", 10), word("guard:g1", 10)) == Go()


def test_whoever_has_compared_is_followed_at_once() -> None:
    """No wait, whoever else is silent: the broker has not been gone since."""
    assert step(word("node:n1", 10), word("node:n2", 10, settled=True), silent=("node:n3", "guard:g1")) == Go()


def test_who_is_ahead_of_those_who_went_on_appends_nothing() -> None:
    assert isinstance(step(word("node:n1", 12), word("node:n2", 10, settled=True)), Wait)
    assert isinstance(step(word("node:n1", 12), word("node:n2", 12, chain=OTHER, settled=True)), Wait)


def test_all_are_heard_first() -> None:
    waits = step(word("node:n1", 12), word("node:n2", 10), silent=("node:n3", "guard:g1"))
    assert waits == Wait("guard:g1, node:n3 may have more of the log", for_words=True)


def test_the_longest_puts_back_and_the_others_wait() -> None:
    words = [word("node:n1", 10), word("node:n2", 15), word("node:n3", 12)]
    assert step(words[1], words[0], words[2]) == Restore(10)
    for mine in (words[0], words[2]):
        assert step(mine, *(one for one in words if one is not mine)) == Wait("node:n2 has the log up to record 15")


def test_of_equals_one_puts_back() -> None:
    assert step(word("node:n1", 15), word("node:n2", 15)) == Restore(10)
    assert isinstance(step(word("node:n2", 15), word("node:n1", 15)), Wait)


def test_who_has_read_less_of_the_log_reads_on_first() -> None:
    """Nobody is ahead; another has only read further."""
    assert isinstance(step(word("node:n1", 10, log=10), word("node:n2", 12, log=12)), Wait)


def test_stores_that_disagree_stop() -> None:
    """T22: nobody appends, neither those that disagree nor the others, who hear of it."""
    found = step(word("node:n1", 15), word("node:n2", 12, chain=OTHER), word("node:n3", 10))
    assert isinstance(found, Stop)
    assert "node:n1 (up to 15) and node:n2 (up to 12) have different records" in found.why
    # Whatever else: also before all have spoken, and also where both are equally long.
    assert isinstance(step(word("node:n1", 15), word("node:n2", 12, chain=OTHER), silent=("node:n4",)), Stop)
    assert isinstance(step(word("node:n1", 12), word("node:n2", 12, chain=OTHER)), Stop)
    assert isinstance(step(word("node:n3", 10), word("node:n1", 15, torn=True), word("node:n2", 12, chain=OTHER)), Stop)


def test_a_store_that_the_log_itself_refutes_is_that_nodes_matter() -> None:
    """It finds out by reading. Those that agree with the log do not stop for it."""
    assert step(word("node:n1", 15, log=15), word("node:n2", 12, log=12, chain=OTHER)) == Go()


def test_a_record_that_the_store_does_not_keep_proves_nothing() -> None:
    assert next_step(word("node:n1", 15), [word("node:n2", 12)], (), lambda seq: None) == Restore(10)


def test_what_only_a_guard_has_is_put_back_by_one_node() -> None:
    guard = word("guard:g1", 12, records=(b"a", b"b"))
    assert step(word("node:n1", 10), guard, word("node:n2", 10)) == Pass(10, (b"a", b"b"))
    assert isinstance(step(word("node:n2", 10), guard, word("node:n1", 10)), Wait)
    # First what nodes have; and not what followed an earlier end of the log.
    assert step(word("node:n1", 11), guard, word("node:n2", 10)) == Restore(10)
    assert isinstance(step(word("node:n1", 11, log=11), guard), Wait)
    # A longer guard does not keep back those who went on: it will find out by reading.
    assert step(word("node:n1", 10), guard, word("node:n2", 10, settled=True)) == Go()


# --- words ---


def test_words_are_read_as_they_were_written() -> None:
    for one in (
        word("node:n1", 12),
        word("node:n1", 12, settled=True),
        word("node:n1", 12, torn=True),
        word("guard:g1", 12, records=(b"\0",)),
    ):
        assert read_word(one.who, json.loads(json.dumps(one.as_object()))) == one


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        "text",
        {},
        {"seq": 1, "log": 1},
        {"seq": 1, "log": 2, "head": EMPTY_HEAD},
        {"seq": 1, "log": -1, "head": EMPTY_HEAD},
        {"seq": True, "log": 0, "head": EMPTY_HEAD},
        {"seq": 1.0, "log": 0, "head": EMPTY_HEAD},
        {"seq": "1", "log": 0, "head": EMPTY_HEAD},
        {"seq": 1, "log": 0, "head": 7},
        {"seq": 1, "log": 0, "head": "0" * 63},
        {"seq": 1, "log": 0, "head": EMPTY_HEAD, "records": ["!"]},
        {"seq": 1, "log": 0, "head": EMPTY_HEAD, "records": [7]},
        {"seq": 1, "log": 0, "head": EMPTY_HEAD, "records": 7},
    ],
)
def test_what_is_no_word(told: Any) -> None:
    with pytest.raises(ValueError, match="not a word about a store"):
        read_word("node:n1", told)


class Listening(Comparing):
    """A node that only hears."""

    def __init__(self, net: LittleNetwork) -> None:
        super().__init__(None, None, None, net.node("n1").identity.name, 10.0)  # type: ignore[arg-type]  # nothing is said or read

    def words(self) -> dict[str, Word]:
        return {who: told for who, (_, told) in self._heard.items()}


def said(login: object, body: bytes) -> Delivery:
    return Delivery(1, body, {}, None, "", False, None, None if login is None else str(login))


async def test_only_nodes_and_guards_are_heard(net: LittleNetwork) -> None:
    """T19: whoever the broker does not vouch for as a node or a guard has said nothing."""
    listening = Listening(net)
    body = json.dumps(word("node:n2", 12, settled=True).as_object()).encode()
    for login in (None, "", "node:n2", "tdn:node:n2", net.entity("alice").identity.name, net.operator.identity.name):
        listening.hear(said(login, body))
    listening.hear(said(net.node("n1").identity.name, body))
    for bad in (b"", b"{", b"[]", b"7", b"[" * 100_000, b'{"store": 7}', b"\xff"):
        listening.hear(said(net.node("n2").identity.name, bad))
        listening.hear(said(net.guard().identity.name, bad))
    assert listening.words() == {}
    listening.hear(said(net.node("n2").identity.name, body))
    listening.hear(said(net.guard().identity.name, body))
    assert set(listening.words()) == {"node:n2"}, "a guard speaks of its store in a place of its own"
    listening.hear(said(net.guard().identity.name, b'{"applied": 3, "store": %s}' % body))
    assert set(listening.words()) == {"node:n2", "guard:guard"}


# --- who is waited for ---


def test_those_who_ticked_lately_and_the_guards_are_expected(net: LittleNetwork) -> None:
    log = net.log()
    log.put("enrol", net.enrol(net.guard()))
    assert expected(log.state, ["node:n9"]) == {"guard:guard"}
    for node, at in (("n1", T0), ("n2", T0 + 10 * MINUTE), ("n3", T0 + 9 * MINUTE)):
        log.put("tick", None, by=node, at=at)
    assert expected(log.state, []) == {"node:n2", "node:n3", "guard:guard"}
    log.put("revoke", net.revoke("node:n3"), at=T0 + 10 * MINUTE)
    assert expected(log.state, []) == {"node:n2", "guard:guard"}


def test_a_store_that_knows_nobody_expects_all_who_are_enrolled() -> None:
    assert expected(MemoryState(), ["node:n1", "guard:g1"]) == {"node:n1", "guard:g1"}


# --- all of them at once ---


@dataclass
class Actor:
    """A node or a guard that reads a log which others append to, in steps that anything can come between."""

    who: str
    store: list[bytes]
    scene: Scene
    found: int = 0
    heard: dict[str, Word] = field(default_factory=dict)
    state: str = "reading"
    pending: list[bytes] = field(default_factory=list)

    def mine(self, **rest: Any) -> Word:
        records = tuple(self.store[self.found : self.found + 2]) if self.who.startswith("guard") else ()
        return word(
            self.who, len(self.store), self.found, chain=self.store, settled=self.state == "settled", records=records, **rest
        )

    def read(self) -> None:
        if self.state == "stopped" or self.found == len(self.scene.log):
            return
        raw = self.scene.log[self.found]
        if self.found < len(self.store) and self.store[self.found] != raw:
            self.stop()
            return
        if self.found == len(self.store):
            self.store.append(raw)
        self.found += 1

    def stop(self) -> None:
        self.state = "stopped"
        if self.scene.holder is self:
            self.scene.holder = None

    def say(self, **rest: Any) -> None:
        for other in self.scene.actors:
            if other is not self:
                self.scene.under_way.append((other, self.mine(**rest)))

    def act(self) -> None:
        if self.state == "reading" and self.found == len(self.scene.log):
            self.state = "comparing"
        if self.state in ("reading", "stopped") or self.who.startswith("guard"):
            if self.state != "stopped" and self.state != "reading":
                self.say()
            return
        if self.state == "settled":
            self.say()
            return
        if self.scene.holder is self:
            self._restore()
            return
        self.say()
        # Who has stopped is not waited for any longer, once all that it said has come.
        coming = {told.who for to, told in self.scene.under_way if to is self}
        gone = {other.who for other in self.scene.actors if other.state == "stopped"} - coming
        heard = [one for one in self.heard.values() if one.torn or one.who not in gone]
        silent = {other.who for other in self.scene.actors} - {self.who} - gone - set(self.heard)
        match next_step(self.mine(), heard, silent, lambda seq: head_of(self.store, seq)):
            case Go():
                self.state = "settled"
                self.scene.settled = True
                self.say()
                self.scene.log.append(b"tick of %s" % self.who.encode())
            case Stop():
                self.say(torn=True)
                self.stop()
            case Restore(log):
                self._begin(log, self.store[log:])
            case Pass(log, records):
                self._begin(log, list(records))

    def _begin(self, log: int, records: list[bytes]) -> None:
        if self.scene.holder is None and self.found == log == len(self.scene.log):
            self.scene.holder, self.pending = self, records

    def _restore(self) -> None:
        if self.pending:
            self.scene.log.append(self.pending.pop(0))
        elif self.found == len(self.scene.log):
            self.scene.holder = None


class Scene:
    def __init__(self, log: list[bytes], chains: dict[str, list[bytes]], seed: int) -> None:
        self.log = list(log)
        self.actors = [Actor(who, list(chain), self) for who, chain in chains.items()]
        self.under_way: list[tuple[Actor, Word]] = []
        self.holder: Actor | None = None
        self.settled = False
        self.dice = random.Random(seed)
        self.origins = [list(log), *(list(chain) for chain in chains.values())]

    def run(self, *, killed: str | None = None) -> None:
        steps = 0
        while any(actor.state in ("reading", "comparing") for actor in self.actors if not actor.who.startswith("guard")):
            steps += 1
            assert steps < 50_000, "they wait for each other for ever"
            if killed is not None and steps == 200:
                next(actor for actor in self.actors if actor.who == killed).stop()
            if self.under_way and self.dice.random() < 0.6:
                # Of one writer in order, of several in any.
                to, told = self.under_way.pop(0)
                to.heard[told.who] = told
            else:
                actor = self.dice.choice(self.actors)
                self.dice.choice((actor.read, actor.act))()
            if not self.settled:
                assert any(origin[: len(self.log)] == self.log for origin in self.origins), "the log is nobody's"
        for actor in self.actors:
            while actor.state != "stopped" and actor.found < len(self.log):
                actor.read()

    def states(self) -> dict[str, str]:
        return {actor.who: actor.state for actor in self.actors}


LENGTHS = st.lists(st.integers(0, 15), min_size=1, max_size=4)


@settings(max_examples=examples(60))
@given(left=st.integers(0, 15), nodes=LENGTHS, guards=st.lists(st.integers(0, 15), max_size=2), seed=st.integers(0, 2**32))
def test_whatever_anybody_has_is_in_the_log_again(left: int, nodes: list[int], guards: list[int], seed: int) -> None:
    """All are there, and stores are of one log: it ends as the longest of them, in whatever order they read, speak and act."""
    chains = {f"node:n{number}": CHAIN[:length] for number, length in enumerate(nodes)}
    chains |= {f"guard:g{number}": CHAIN[:length] for number, length in enumerate(guards)}
    scene = Scene(CHAIN[:left], chains, seed)
    scene.run()
    longest = max([left, *nodes, *guards])
    assert scene.log[:longest] == CHAIN[:longest]
    assert all(raw.startswith(b"tick of") for raw in scene.log[longest:])
    assert "stopped" not in scene.states().values()
    assert all(actor.store == scene.log for actor in scene.actors)


@settings(max_examples=examples(60))
@given(lengths=st.tuples(st.integers(11, 15), st.integers(11, 15), st.integers(0, 10)), seed=st.integers(0, 2**32))
def test_where_stores_disagree_nobody_appends(lengths: tuple[int, int, int], seed: int) -> None:
    ours, others, third = lengths
    scene = Scene(CHAIN[:10], {"node:n0": CHAIN[:ours], "node:n1": OTHER[:others], "node:n2": CHAIN[:third]}, seed)
    scene.run()
    assert scene.log == CHAIN[:10]
    assert set(scene.states().values()) == {"stopped"}


@settings(max_examples=examples(60))
@given(nodes=st.lists(st.integers(5, 15), min_size=3, max_size=4), seed=st.integers(0, 2**32))
def test_who_dies_while_it_puts_back_leaves_a_log_to_go_on_with(nodes: list[int], seed: int) -> None:
    chains = {f"node:n{number}": CHAIN[:length] for number, length in enumerate(nodes)}
    longest = min(chains, key=lambda who: (-len(chains[who]), who))
    scene = Scene(CHAIN[:5], chains, seed)
    scene.run(killed=longest)
    states = scene.states()
    assert states.pop(longest) in ("stopped", "settled")
    rest = max(len(chain) for who, chain in chains.items() if who != longest)
    assert scene.log[:rest] == CHAIN[:rest], "what the others have is not lost"
    assert set(states.values()) == {"settled"}
