"""What a running network shows of itself: metrics, readiness, one request's id through all logs, a live picture, files that name real metrics."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tdn.cli.watch import Samples, read_samples
from tdn.errors import UsageError
from tdn.observe.endpoint import Endpoint
from tdn.observe.metrics import NodeMetrics
from tdn.observe.settings import Address
from tdn.protocol.names import Role
from tests.live import LiveNetwork, Ran, run, until, wait_for

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
JSON_LINES = '[observe]\nlog_format = "json"\n'


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNetwork]:
    """Two nodes and a guard that write their logs as JSON."""
    live = LiveNetwork(tmp_path_factory.mktemp("observed network") / "home")
    try:
        live.issue_nodes({"n1": JSON_LINES, "n2": JSON_LINES})
        live.network.operator.issue(Role.GUARD, "g1")
        (live.home.credentials(Role.GUARD, "g1") / "guard.toml").write_text(JSON_LINES, "utf-8")
        live.up(nodes=2)
        yield live
    finally:
        live.end()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def addresses(network: LiveNetwork) -> dict[str, str]:
    """Where each node and guard shows its metrics, as `tdn status` says."""
    lines = run("tdn", "--home", network.home.folder, "--json", "status").lines
    return {line["id"]: line["metrics"] for line in lines if line["role"] != "broker"}


def scrape(network: LiveNetwork) -> dict[str, tuple[str, Samples]]:
    texts = {name: get(url)[1] for name, url in addresses(network).items()}
    return {name: (text, read_samples(text)) for name, text in texts.items()}


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for at, value in samples.get(name, ()) if labels.items() <= at.items())


def lines_about(network: LiveNetwork, process: str, request: str) -> list[dict[str, Any]]:
    """What a process wrote about a request. Every line of its log is one JSON object."""
    told = [json.loads(line) for line in (network.home.run / f"{process}.log").read_text("utf-8").splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in told)
    return [line for line in told if line.get("request") == request]


def as_entity(network: LiveNetwork, name: str, *words: str) -> Ran:
    return run("entity", "--home", network.home.folder, "--as", name, "--json", "-v", *words)


def named(ran: Ran, kind: str) -> str:
    """The id of a request of some kind, from what `entity -v` says."""
    (found,) = re.findall(rf"{kind} is request (\S+)", ran.err)
    return str(found)


@pytest.fixture(scope="module")
def people(network: LiveNetwork) -> tuple[str, str]:
    return network.entity("owner").name, network.entity("friend").name


@pytest.fixture(scope="module")
def created(network: LiveNetwork, people: tuple[str, str]) -> Ran:
    ran = as_entity(network, people[0], "create", "--path", "observed/place/unmistakable", "--allow-children")
    assert ran.code == 0, ran.err
    return ran


def test_one_request_through_entity_node_log_and_guard(network: LiveNetwork, people: tuple[str, str], created: Ran) -> None:
    """The id that `entity -v` shows is in the line of the node that answered, in the record, and in the guard's lines, with the same number."""
    owner, friend = people
    uuid = created.one["uuid"]
    assert as_entity(network, friend, "locate").code == 0
    granted = as_entity(network, owner, "grant", "publish", uuid, friend)
    assert granted.code == 0, granted.err
    revoked = as_entity(network, owner, "grant", "revoke", granted.one["id"])
    assert revoked.code == 0, revoked.err
    child = as_entity(network, owner, "create", "--path", "observed/child", "--parent", uuid)
    assert child.code == 0, child.err
    # One live topic is counted below.
    assert as_entity(network, owner, "withdraw", child.one["uuid"]).code == 0
    for ran, kind in ((created, "advertise"), (child, "register"), (revoked, "retract")):
        request = named(ran, kind)
        (record,) = [record for record in network.records() if (record["request"] or "").endswith(f"/{request}")]
        (answered,) = [line for node in network.nodes() for line in lines_about(network, f"node-{node}", request)]
        assert answered == answered | {"kind": kind, "seq": record["seq"], "outcome": "done", "principal": f"entity:{owner}"}
        assert 0 < answered["milliseconds"] < 30_000
        settled = wait_for(
            lambda request=request: [line for line in lines_about(network, "guard-g1", request) if line["outcome"] in ("accepted", "settled")],
            "the guard's line",
        )
        assert {line["seq"] for line in settled} == {record["seq"]}
    assert "settled" in {line["outcome"] for line in lines_about(network, "guard-g1", named(revoked, "retract"))}


def test_an_error_names_its_request(network: LiveNetwork, people: tuple[str, str], created: Ran) -> None:
    """The asker finds the id in the error, and the operator the reason's word beside it in a node's log."""
    refused = as_entity(network, people[1], "withdraw", created.one["uuid"])
    assert refused.code == 5, refused.err
    request = refused.request
    (line,) = [line for node in network.nodes() for line in lines_about(network, f"node-{node}", request)]
    assert (line["outcome"], line["reason"], line["kind"]) == ("refused", "refused", "withdraw")
    audit = run("tdn", "--home", network.home.folder, "--json", "audit", "--denied", "--entity", people[1]).lines
    assert request in {entry.get("request") for entry in audit}, "and so does the audit of what the log refused"


async def test_metrics(network: LiveNetwork, people: tuple[str, str], created: Ran) -> None:
    """What happened is counted, by kinds and outcomes; no name of anybody or anything is among it."""
    secret = "unmistakable"
    found = as_entity(network, people[0], "discover", "--string", secret)
    assert [line["uuid"] for line in found.lines] == [created.one["uuid"]]
    refused = as_entity(network, people[1], "withdraw", created.one["uuid"])
    assert refused.code == 5
    shown = scrape(network)
    nodes = [shown["n1"][1], shown["n2"][1]]
    for kind in ("hello", "create", "advertise", "discover"):
        assert sum(total(at, "tdn_node_requests_total", kind=kind, outcome="done") for at in nodes) >= 1, kind
        assert sum(total(at, "tdn_node_request_seconds_count", kind=kind) for at in nodes) >= 1, kind
    assert sum(total(at, "tdn_node_requests_total", kind="withdraw", outcome="refused") for at in nodes) >= 1
    assert sum(total(at, "tdn_node_refusals_total", reason="refused") for at in nodes) >= 1
    for at in nodes:
        assert total(at, "tdn_ready") == total(at, "tdn_connected") == 1
        assert total(at, "tdn_node_append_seconds_count") > 0
        assert total(at, "tdn_node_guards", state="heard") == 1
        assert total(at, "tdn_node_guards", state="fenced") == 0
        for whose in ("own", "nodes", "guards"):
            assert 360 < total(at, "tdn_certificate_seconds_left", whose=whose) / 86_400 <= 365
        assert abs(total(at, "tdn_log_time_behind_seconds")) < 60
        assert total(at, "tdn_store_bytes") > 10_000
    guard = shown["g1"][1]
    assert total(guard, "tdn_guard_sure") == 1
    assert total(guard, "tdn_guard_decisions_total", question="user", outcome="allowed") > 0
    assert total(guard, "tdn_applied_records_total", status="accepted") > 5
    # Not at the moment of any one scrape, perhaps, but soon: the same log, and an empty queue.
    await until(lambda: all(total(at, "tdn_node_live_topics") == 1 for _, at in list(scrape(network).values())[1:]), "both to count it")
    await until(lambda: all(total(at, "tdn_node_changes_waiting") == 0 for _, at in scrape(network).values()), "an empty queue")
    for text, _ in scrape(network).values():
        for name in (*people, secret, created.one["uuid"], "entity:"):
            assert name not in text, "labels are kinds, outcomes and roles"


def exported(network: LiveNetwork) -> set[str]:
    """Names of all metrics of ours, from what the processes say; without the moments at which counters began."""
    typed = {name for text, _ in scrape(network).values() for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    return {name for name in typed if not name.endswith("_created")}


def used_in(expressions: list[str]) -> set[str]:
    """Names of metrics in PromQL. A histogram's series count as the histogram."""
    found = {name for text in expressions for name in re.findall(r"\b(?:tdn|process)_[a-z_]+", text)}
    return {re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", name) for name in found}


def test_dashboard_and_alerts_use_metrics_that_exist(network: LiveNetwork) -> None:
    """deploy/grafana/tdn.json and deploy/alerts.yml ask for nothing that no process exports."""
    board = json.loads((ROOT / "deploy" / "grafana" / "tdn.json").read_text("utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels), "none lies on another"
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource"]
    asked = used_in([target["expr"] for panel in panels for target in panel["targets"]])
    known = exported(network)
    assert asked <= known
    ours = {name for name in known if name.startswith("tdn_")}
    assert ours <= asked, "the dashboard shows all of ours"
    rules = re.findall(r"^ +expr: (.+)$", (ROOT / "deploy" / "alerts.yml").read_text("utf-8"), re.MULTILINE)
    assert len(rules) >= 5
    assert used_in(rules) <= known


def test_every_metric_is_documented(network: LiveNetwork) -> None:
    """The table in docs/operations.md is what is exported, no more and no less."""
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(tdn_[a-z_]+)`", text, re.MULTILINE))
    assert documented == {name for name in exported(network) if name.startswith("tdn_")}


def test_health_and_readiness(network: LiveNetwork) -> None:
    for url in addresses(network).values():
        base = url.removesuffix("/metrics")
        status, body = get(f"{base}/healthz")
        assert (status, json.loads(body)["alive"]) == (200, True)
        status, body = get(f"{base}/readyz")
        assert (status, json.loads(body)["ready"]) == (200, True)
        assert get(f"{base}/")[0] == 404
        request = urllib.request.Request(f"{base}/metrics", data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)


async def test_not_ready_says_why() -> None:
    """503 with the reason, before there is anything to show and whenever it does not serve."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", free.getsockname()[1])

    async def fetch(path: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, f"http://{address}{path}")

    async with Endpoint(address) as endpoint:
        status, body = await fetch("/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "starting"})
        status, body = await fetch("/metrics")
        assert (status, re.findall(r"^tdn_\w+ .*$", body, re.MULTILINE)) == (200, ["tdn_ready 0.0"])
        assert (await fetch("/healthz"))[0] == 200
        endpoint.show(NodeMetrics(), lambda: {"ready": False, "reason": "the broker is not reachable"})
        status, body = await fetch("/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "the broker is not reachable")
        assert "tdn_ready 0.0" in (await fetch("/metrics"))[1]
        with pytest.raises(UsageError, match=r"metrics cannot be served at .*listen"):
            await Endpoint(address).__aenter__()
    async with Endpoint(address):
        pass  # The address is free again.


def test_a_port_in_use_is_a_clear_error(network: LiveNetwork) -> None:
    """A second n1 finds the address of the first: nothing of it starts."""
    ran = run("tdn", "--home", network.home.folder, "--json", "node", "--id", "n1", "--log-format", "json")
    assert (ran.code, ran.error["error"]) == (2, "usage")
    assert "metrics cannot be served at 127.0.0.1:" in ran.error["message"]
    wrong = run("tdn", "--home", network.home.folder, "--json", "node", "--id", "n1", "--log-format", "xml")
    assert (wrong.code, wrong.error["error"]) == (2, "usage")


def test_watching(network: LiveNetwork) -> None:
    """Elsewhere than on a terminal: a block, or a line per process, each time; as often as was asked."""
    home = network.home.folder

    def watched() -> dict[str, Any] | None:
        """The second look at each process. One that had no time to answer a look has no rates there."""
        ran = run("tdn", "--home", home, "--json", "status", "--watch", "--interval", "1s", "--count", "2")
        assert ran.code == 0, ran.err
        assert [line["id"] for line in ran.lines] == ["broker", "g1", "n1", "n2"] * 2
        later = {line["id"]: line for line in ran.lines[4:]}
        return later if all(later[name]["requests_per_second"] is not None for name in ("g1", "n1", "n2")) else None

    later = wait_for(watched, "all to answer twice", seconds=60)
    for name in ("g1", "n1", "n2"):
        assert later[name]["requests_per_second"] >= 0
        assert 360 < later[name]["certificate_days"] <= 365
    assert later["n1"]["queue"] == 0
    blocks = run("tdn", "--home", home, "status", "--watch", "--count", "1").out
    assert blocks.splitlines()[0].split() == [
        *("ROLE", "ID", "PID", "STATE", "SEQUENCE", "LAG", "TOPICS", "REQ/S", "REFUSED/S", "QUEUE", "CERT"),
    ]
    assert "\x1b" not in blocks
    for words in (("--interval", "0s"), ("--count", "0"), ("--interval", "2h")):
        assert run("tdn", "--home", home, "--json", "status", "--watch", *words).code == 2, words


def test_watching_on_a_terminal(network: LiveNetwork) -> None:
    """Drawn in place, no wider than the terminal; Ctrl-C is how it ends, with exit code 0."""
    ours, theirs = pty.openpty()
    tdn = Path(sys.executable).parent / "tdn"
    # A terminal that says nothing of its size has what these say.
    environment = {**os.environ, "COLUMNS": "60", "LINES": "12"}
    words = [tdn, "--home", network.home.folder, "status", "--watch", "--interval", "1s"]
    # A run of tests in the background may ignore SIGINT, and what it starts would inherit that.
    listens = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    watching = subprocess.Popen(words, stdout=theirs, stderr=theirs, env=environment, start_new_session=True, preexec_fn=listens)
    os.close(theirs)
    drawn = b""
    try:
        while drawn.count(b"\x1b[H") < 2:
            drawn += os.read(ours, 65_536)
        watching.send_signal(signal.SIGINT)
        while True:
            try:
                drawn += os.read(ours, 65_536)
            except OSError:  # The other end is closed.
                break
        assert watching.wait(20) == 0
    finally:
        watching.kill()
        watching.wait(20)
        os.close(ours)
    text = drawn.decode()
    plain = [re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line).strip("\r") for line in text.split("\n")]
    assert max(map(len, plain)) <= 60
    assert any("REQ/S" in line for line in plain)
    assert any(line.split()[:2] == ["node", "n2"] for line in plain)
    assert text.rstrip().endswith("\x1b[?25h\x1b[?1049l"), "the terminal is left as it was"
