"""Queries that are wrong, hostile or too expensive. Each ends in a clear answer, and the node is alive and quick afterwards (T13, T22).

They are sent as envelopes of their own: a client would not let most of them out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entity_client import EntityClient, path, xml
from tdn.confined.lanes import Limits
from tdn.errors import QueryError, Refused
from tdn.protocol import names
from tdn.trust import sealing
from tdn.trust.envelope import Envelope
from tests.conftest import Connect
from tests.live import LiveNetwork, RawEntity, is_alive, until, wait_for

pytestmark = pytest.mark.broker

#: The limit of n1 and n3 is 2 s. An easy query that took so long has been in somebody's way.
QUICK_SECONDS = 1.5

#: Something for XPath and XQuery to be slow on.
SLOW = "<bulk>" + "<i><j/></i>" * 1_000 + "</bulk>"


@pytest.fixture(scope="module")
def bulk(_particular: LiveNetwork) -> str:
    """The UUID of a topic with a large document."""
    _particular.up()

    async def make() -> str:
        async with await _particular.client(timeout=30) as client:
            topic = await client.create(xml(SLOW))
            await client.create(path("easy/to/find"))
        for node in ("n1", "n3"):
            await until(lambda node=node: _particular.fact("topic", topic.uuid, node), f"{node} to have it")
        return topic.uuid

    return asyncio.run(make())


@pytest.fixture
def asker(particular: LiveNetwork, bulk: str) -> Iterator[RawEntity]:
    yield from _hello(particular)


@pytest.fixture
def witness(particular: LiveNetwork, bulk: str) -> Iterator[RawEntity]:
    yield from _hello(particular)


def _hello(network: LiveNetwork) -> Iterator[RawEntity]:
    raw = RawEntity(network)
    raw.hello()
    yield raw
    raw.close()


def discover(raw: RawEntity, language: str, query: str, *, node: str = "n1", **more: Any) -> Envelope:
    return raw.ask("discover", {"language": language, "query": query, "limit": 100, **more}, node)


def require_quick(witness: RawEntity, *, node: str = "n1") -> None:
    """An easy query, answered at once by the node."""
    begun = time.monotonic()
    reply = discover(witness, "string", "easy find", node=node)
    took = time.monotonic() - begun
    assert (reply.kind, reply.body.get("count")) == ("discovered", 1), reply.body
    assert took < QUICK_SECONDS, f"an easy query took {took:.2f} s"


def processes(network: LiveNetwork) -> dict[str, int]:
    return {entry["id"]: entry["pid"] for entry in network.network.status()}


# --- text that is no query -----------------------------------------------------------------------------------------------------------

#: Language, query, and what the error says.
WRONG: dict[str, tuple[str, str, str]] = {
    "regex that is never closed": ("regex", "a(b", "missing"),
    "huge repetition count": ("regex", "a{1001}", "repetition"),
    "repetition of repetitions": ("regex", "((a{100}){100}){100}", ""),
    "look-ahead": ("regex", "(?=a)b", ""),
    "back-reference": ("regex", r"(a)\1", ""),
    "join": ("sql", "SELECT * FROM topics t JOIN topics u ON t.uuid = u.uuid", ""),
    "union": ("sql", "SELECT * FROM topics UNION SELECT * FROM topics", ""),
    "subquery": ("sql", "uuid IN (SELECT uuid FROM topics)", ""),
    "exists": ("sql", "EXISTS (SELECT 1)", ""),
    "other table": ("sql", "SELECT * FROM records", ""),
    "attach": ("sql", "ATTACH DATABASE '/tmp/x' AS x", ""),
    "pragma": ("sql", "PRAGMA table_info(topics)", ""),
    "function": ("sql", "load_extension('x')", ""),
    "randomblob": ("sql", "randomblob(1000000000) = 1", ""),
    "line comment": ("sql", "a = 1 -- comment", ""),
    "block comment": ("sql", "a = 1 /* comment */", ""),
    "stacked statements": ("sql", "a = 1; DELETE FROM topics", ""),
    "delete": ("sql", "DELETE FROM topics", ""),
    "deep parentheses": ("sql", "(" * 3_000 + "a = 1" + ")" * 3_000, ""),
    "xpath doc()": ("xpath", "doc('file:///etc/passwd')//a", "doc"),
    "xpath unparsed-text()": ("xpath", "unparsed-text('file:///etc/passwd')", "unparsed-text"),
    "xpath environment": ("xpath", "environment-variable('HOME')", "environment-variable"),
    "xpath collection": ("xpath", "collection('file:///tmp')", "collection"),
    "xpath never closed": ("xpath", "//a[", ""),
    "xpath nested deeply": ("xpath", "(" * 3_000 + "1" + ")" * 3_000, ""),
    "xquery doc()": ("xquery", "doc('file:///etc/passwd')", "doc"),
    "xquery fn:doc()": ("xquery", "fn:doc('file:///etc/passwd')", "doc"),
    "xquery unparsed-text()": ("xquery", "unparsed-text('file:///etc/passwd')", "unparsed-text"),
    "xquery transform()": ("xquery", "fn:transform(map {'stylesheet-text': 'x'})", "transform"),
    "xquery put": ("xquery", "put(<a/>, 'file:///tmp/tdn-was-here')", "put"),
    "xquery by another name": ("xquery", "function-lookup(xs:QName('fn:doc'), 1)('file:///etc/passwd')", "function-lookup"),
    "xquery import": ("xquery", "import module namespace m = 'm' at 'file:///tmp/m.xq'; 1", ""),
    "xquery java": ("xquery", "declare namespace s = 'java:java.lang.System'; s:exit(1)", ""),
    "xquery option": ("xquery", "declare option saxon:output 'method=text'; 1", ""),
    "xquery unknown variable": ("xquery", "//i[. = $nothing]", ""),
}


@pytest.mark.parametrize("flaw", WRONG)
def test_what_is_no_query_is_refused_with_a_reason(
    particular: LiveNetwork, asker: RawEntity, witness: RawEntity, flaw: str
) -> None:
    """T13: by the node itself, in a sentence and where it can with the position; it costs nobody anything."""
    language, query, says = WRONG[flaw]
    before = processes(particular)
    reply = discover(asker, language, query)
    assert (reply.kind, reply.body["error"]) == ("error", "usage"), reply.body
    assert says in reply.body["message"]
    assert 0 <= reply.body["detail"].get("position", 0) <= len(query)
    assert asker.more_replies() == 0
    require_quick(witness)
    assert processes(particular) == before


def test_a_catastrophic_regex_is_no_catastrophe(particular: LiveNetwork, asker: RawEntity, witness: RawEntity) -> None:
    """T13: RE2 takes time in proportion to the text, whatever the pattern; Python's own would take for ever."""
    for pattern in ("(a+)+$", "(a|a)*b", "(.*)*x", r"(\w+\s?)*$", "(i|j|<|>|/)*bulk$"):
        begun = time.monotonic()
        reply = discover(asker, "regex", pattern)
        assert reply.kind == "discovered", reply.body
        assert time.monotonic() - begun < QUICK_SECONDS
    require_quick(witness)


# --- envelopes that no client would send ---------------------------------------------------------------------------------------------

#: Bodies that do not fit the schema: whoever sends one gets no answer but at its direct address.
MALFORMED: dict[str, dict[str, Any]] = {
    "longer than any query": {"language": "string", "query": "x" * 16_385, "limit": 1},
    "unknown language": {"language": "perl", "query": "x", "limit": 1},
    "language that is no text": {"language": ["sql"], "query": "x", "limit": 1},
    "query that is no text": {"language": "sql", "query": {"a": 1}, "limit": 1},
    "negative limit": {"language": "string", "query": "x", "limit": -1},
    "limit of nothing": {"language": "string", "query": "x", "limit": 0},
    "limit beyond all": {"language": "string", "query": "x", "limit": 10_001},
    "no limit": {"language": "string", "query": "x"},
    "cursor that is too long": {"language": "string", "query": "x", "limit": 1, "cursor": "c" * 513},
    "times of nonsense": {"limit": 1, "times": {"created_after": "yesterday"}},
    "times of another kind": {"limit": 1, "times": {"forever": True}},
    "valid for less than nothing": {"limit": 1, "times": {"valid_at_least": -5}},
    "sealed is not false": {"limit": 1, "sealed": False},
    "member of nobody": {"limit": 1, "as": "entity:somebody-else"},
}

#: Bodies that fit the schema and contradict themselves.
CONTRADICTORY: dict[str, tuple[dict[str, Any], str]] = {
    "language without query": ({"language": "sql", "limit": 1}, "a language its query"),
    "query without language": ({"query": "x", "limit": 1}, "a query needs its language"),
    "sealed with query": ({"language": "string", "query": "x", "sealed": True, "limit": 1}, "no query finds sealed topics"),
    "garbage cursor": ({"limit": 1, "cursor": "garbage"}, "cursor"),
    "cursor of half a place": ({"limit": 1, "cursor": "2026-01-01T00:00:00Z_"}, "cursor"),
    "cursor of no day": ({"limit": 1, "cursor": "2026-13-41T00:00:00Z_6f1c2b1e-0f3b-4a57-9c1d-2a3b4c5d6e7f"}, "cursor"),
    "cursor with SQL": ({"limit": 1, "cursor": "2026-01-01T00:00:00Z_' OR 1=1 --"}, "cursor"),
}


@pytest.mark.parametrize("flaw", MALFORMED)
def test_malformed_discoveries(particular: LiveNetwork, asker: RawEntity, witness: RawEntity, flaw: str) -> None:
    """T22: what does not fit the schema is turned away before anything is looked for."""
    before = particular.counts("turned away", "n1")
    raw = asker.seal(asker.claim("discover", MALFORMED[flaw], audience="node:n1"), "n1")
    asker.question(raw, "n1", reply_to=names.DIRECT_REPLY)
    reply = asker.direct_reply()
    assert (reply.kind, reply.body["error"]) == ("error", "usage"), reply.body
    assert asker.more_replies() == 0
    require_quick(witness)
    wait_for(lambda: particular.counts("turned away", "n1") > before, "the node to have counted it")


@pytest.mark.parametrize("flaw", CONTRADICTORY)
def test_contradictory_discoveries(particular: LiveNetwork, asker: RawEntity, witness: RawEntity, flaw: str) -> None:
    """T22: told to whoever sent it, in words."""
    body, says = CONTRADICTORY[flaw]
    reply = asker.ask("discover", body, "n1")
    assert (reply.kind, reply.body["error"]) == ("error", "usage")
    assert says in reply.body["message"]
    require_quick(witness)


async def test_a_query_of_a_megabyte(particular: LiveNetwork, connect: Connect, asker: RawEntity, witness: RawEntity) -> None:
    """A client says so itself; a message of that size is turned away unopened."""
    client = await connect(particular)
    for language in ("string", "regex", "sql", "xpath", "xquery"):
        with pytest.raises(QueryError, match="at most"):
            [topic async for topic in client.discover("x" * 1_000_000, language=language)]

    def send() -> None:
        before = particular.counts("turned away", "n1")
        long = asker.claim("discover", {"language": "string", "query": "x" * 1_000_000, "limit": 1}, audience="node:n1")
        asker.question(sealing.MAGIC + long, "n1")
        asker.question(long, "n1")
        wait_for(lambda: particular.counts("turned away", "n1") >= before + 2, "both to be turned away")
        require_quick(witness)

    await asyncio.to_thread(send)


# --- queries that take too much ------------------------------------------------------------------------------------------------------

#: Queries that would run for hours or take all memory.
HOGS: dict[str, tuple[str, str]] = {
    "nested counts": ("xpath", "/bulk[count(//*[count(//*[count(//*[count(//*) > 0]) > 0]) > 0]) > 0]"),
    "a long range": ("xpath", "count((1 to 10000000000)[. mod 2 = 0]) > 1"),
    "a long string": ("xpath", "string-length(string-join(for $i in 1 to 100000000 return 'xxxxxxxxxx')) > 1"),
    "tail recursion": ("xquery", "declare function local:f($n) { local:f($n + 1) }; local:f(1)"),
    "recursion": ("xquery", "declare function local:f($n) { 1 + local:f($n + 1) }; local:f(1)"),
    "two that call each other": (
        "xquery",
        "declare function local:f($n) { local:g($n + 1) }; declare function local:g($n) { 1 + local:f($n * 2) }; local:f(1)",
    ),
    "nested counts in XQuery": ("xquery", "/bulk[count(//*[count(//*[count(//*[count(//*) > 0]) > 0]) > 0]) > 0]"),
    "a product": ("xquery", "/bulk[count(for $a in //*, $b in //*, $c in //*, $d in //* where $a != $d return $b) > 1]"),
    "a long range in XQuery": ("xquery", "count((1 to 10000000000)[. mod 2 = 0]) > 1"),
    "a large sequence": ("xquery", "let $s := for $i in 1 to 100000000 return <a>{$i}</a> return count(reverse($s)) > 1"),
    "a large string": (
        "xquery",
        "declare function local:f($s, $n) { if ($n = 0) then $s else local:f($s || $s, $n - 1) }; string-length(local:f('xxxxxxxx', 40)) > 1",
    ),
}


#: Those that an engine gives up at once, or evaluates in a cleverer way than it looks: they need not be stopped. How soon recursion has used up
#: its stack differs between machines.
GIVEN_UP = {
    *("a long range", "a long string", "recursion", "two that call each other", "nested counts in XQuery"),
    "a long range in XQuery",
}


def test_queries_that_take_too_much(particular: LiveNetwork, bulk: str, witness: RawEntity) -> None:
    """T13, T22: each is stopped at the node's limit and told so, all of them at once, while somebody else's easy queries are answered."""
    before = processes(particular)
    askers: dict[str, RawEntity] = {}
    try:
        for name, (language, query) in HOGS.items():
            asker = askers[name] = RawEntity(particular)
            asker.hello()
            body = {"language": language, "query": query, "limit": 1}
            asker.question(asker.seal(asker.write("discover", body, audience="node:n1"), "n1"), "n1")
        answered: dict[str, Envelope] = {}
        deadline = time.monotonic() + 60
        while len(answered) < len(HOGS):
            assert time.monotonic() < deadline, f"no answer to {HOGS.keys() - answered.keys()}"
            require_quick(witness)
            for name, asker in askers.items():
                if name not in answered and asker.more_replies():
                    answered[name] = asker.reply()
        said = {name: reply.body.get("message", reply.kind) for name, reply in answered.items()}
        stopped = {name for name, message in said.items() if message.endswith("and was stopped; make it more selective")}
        assert {name for name, reply in answered.items() if reply.kind == "error"} == stopped, said
        assert stopped >= HOGS.keys() - GIVEN_UP, said
        assert sum("took longer than 2 s" in said[name] for name in stopped) >= 3
        assert "needed more than 300 MB" in said["a large string"] or "took longer" in said["a large string"]
    finally:
        for asker in askers.values():
            asker.close()
    require_quick(witness)
    assert processes(particular) == before
    assert discover(witness, "xquery", "//i[1]/j").kind == "discovered"


async def test_a_client_is_told_of_the_limit(particular: LiveNetwork, connect: Connect, bulk: str) -> None:
    """T13: Refused, by every node that was asked; the others' answers still count."""
    client = await connect(particular)
    query = "/bulk[count(//*[count(//*[count(//*[count(//*) > 0]) > 0]) > 0]) > 0]"
    with pytest.raises(Refused, match="took longer than 2 s and was stopped; make it more selective"):
        [topic async for topic in client.discover(query, language="xpath", nodes=["n1"])]
    discovery = client.discover("easy find", nodes=["n1"])
    assert len([topic async for topic in discovery]) == 1


async def test_the_rate_of_one_is_not_the_rate_of_another(particular: LiveNetwork, connect: Connect, bulk: str) -> None:
    """T22: n3 lets one entity ask twelve times at once; who asks more is refused, and nobody else."""
    eager, calm = await connect(particular), await connect(particular)

    async def ask(client: EntityClient) -> int:
        return (await client.count("easy find", node="n3"))[1]

    answers = await asyncio.gather(*(ask(eager) for _ in range(20)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert [answer for answer in answers if not isinstance(answer, Refused)] == [1] * (20 - len(refused))
    assert 4 <= len(refused) <= 8
    assert {str(answer) for answer in refused} == {
        "too many discoveries in a short time; wait a moment, or ask for more topics at once"
    }
    assert await ask(calm) == 1
    assert (await eager.count("easy find", node="n1"))[1] == 1, "each node counts for itself"
    with pytest.raises(Refused):
        await ask(eager)


# --- the processes that search -------------------------------------------------------------------------------------------------------


#: Two in each of the three lanes.
WORKERS = Limits().quick_workers + Limits().slow_workers + Limits().heavy_workers


def workers_of(network: LiveNetwork, node: str) -> list[int]:
    """The workers alone: the template is their parent, and the first of them all."""
    _, *workers = network.searching(node)
    return workers


def test_killed_workers_cost_their_query_alone(particular: LiveNetwork, bulk: str, asker: RawEntity, witness: RawEntity) -> None:
    """T22: whoever kills a node's workers ends at most what they worked on; others take their place."""
    require_quick(witness)
    before = processes(particular)
    killed = wait_for(lambda: len(found := workers_of(particular, "n1")) == WORKERS and found, "all workers to be there")
    body = {"language": "xpath", "query": HOGS["nested counts"][1], "limit": 1}
    asker.question(asker.seal(asker.write("discover", body, audience="node:n1"), "n1"), "n1")
    busy = wait_for(lambda: [pid for pid in killed if _state(pid) == "R"], "a worker to be busy")
    assert busy
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    reply = asker.reply()
    assert (reply.kind, reply.body["error"]) == ("error", "refused")
    assert "the process that worked on it ended" in reply.body["message"]
    wait_for(lambda: not any(map(is_alive, killed)) and len(workers_of(particular, "n1")) == WORKERS, "all to be replaced")
    for _ in range(10):
        require_quick(witness)
    assert discover(witness, "xquery", "//i/j").kind == "discovered"
    assert processes(particular) == before


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_template_is_replaced(particular: LiveNetwork, bulk: str, witness: RawEntity) -> None:
    """T22: all workers end with it; the node starts another, and goes on."""
    require_quick(witness)
    searching = particular.searching("n1")
    os.kill(searching[0], signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, searching)), "its workers to end with it")

    def answered() -> bool:
        return discover(witness, "string", "easy find").kind == "discovered"

    wait_for(answered, "the node to search again")
    require_quick(witness)
    assert not set(particular.searching("n1")) & set(searching)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_no_worker_outlives_its_node(particular: LiveNetwork, bulk: str, asker: RawEntity, how: str) -> None:
    """T22: neither a stopped nor a killed node leaves a process behind, not even one in the middle of a query."""
    searching = particular.searching("n3")
    assert len(searching) == WORKERS + 1
    body = {"language": "xquery", "query": HOGS["tail recursion"][1], "limit": 1}
    asker.question(asker.seal(asker.write("discover", body, audience="node:n3"), "n3"), "n3")
    wait_for(lambda: any(_state(pid) == "R" for pid in searching), "a worker to be busy")
    (particular.kill if how == "kill" else particular.stop)("n3")
    wait_for(lambda: not any(map(is_alive, searching)), "all of them to end", seconds=5)
    particular.start("n3")


# --- documents -----------------------------------------------------------------------------------------------------------------------

BOMBS = {
    "a billion laughs": "<!DOCTYPE a [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'><!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;'>]><a>&c;</a>",
    "an external entity": "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>",
    "a parameter entity": "<!DOCTYPE a [<!ENTITY % x SYSTEM 'http://127.0.0.1:1/x'> %x;]><a/>",
    "an external DTD": "<!DOCTYPE a SYSTEM 'http://127.0.0.1:1/a.dtd'><a/>",
}


@pytest.mark.parametrize("flaw", BOMBS)
def test_documents_that_explode_or_reach_out(particular: LiveNetwork, asker: RawEntity, witness: RawEntity, flaw: str) -> None:
    """T2: a node mints no topic with a document type."""
    body = {
        "creator": asker.name.id,
        "institution": asker.credentials.identity.institution,
        "lifetime_seconds": 3600,
        "descriptor": {"kind": "xml", "xml": BOMBS[flaw]},
        "synopsis": {"type": "string", "placeholder": "{uuid}"},
    }
    asker.publish(
        names.nodes_key("n1"),
        asker.seal(asker.claim("create", body, audience="node:n1"), "n1"),
        path=names.QUESTION_PATH,
    )
    reply = asker.reply()
    assert (reply.kind, reply.body["error"]) == ("error", "usage")
    require_quick(witness)
