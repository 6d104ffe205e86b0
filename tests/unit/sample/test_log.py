"""The sample as a log: every record is accepted by the rules and by a store, whoever made it, and a file gives back what was written."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from little_network import payload_of

from tdn.errors import MalformedMessage
from tdn.local.ca import CertificateAuthority
from tdn.protocol.names import Role
from tdn.rules.apply import apply
from tdn.rules.state import EMPTY_HEAD, LogRecord, MemoryState, Outcome, next_head
from tdn.sample import log, topics
from tdn.sample.network import NODES, SampleNetwork
from tdn.store.view import View
from tdn.trust import credentials, signing, statements

SEED, COUNT = 1, 40
#: In the past, since `credentials.load` looks at the clock.
BEGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=15)


@pytest.fixture(scope="module")
def network() -> SampleNetwork:
    return SampleNetwork.found(SEED, BEGIN)


@pytest.fixture(scope="module")
def records(network: SampleNetwork) -> list[bytes]:
    return list(log.advertisements(SEED, COUNT, network=network))


def applied(records: list[bytes]) -> tuple[MemoryState, list[Outcome]]:
    state, head, outcomes = MemoryState(), EMPTY_HEAD, []
    for seq, raw in enumerate(records, 1):
        head = next_head(head, raw)
        outcomes.append(apply(state, LogRecord(seq, head, raw)))
        state.write(outcomes[-1])
    return state, outcomes


def advertised(records: list[bytes]) -> list[dict[str, Any]]:
    """The payloads of the advertisements in some records, without what is fresh each time."""
    found = []
    for raw in records:
        if payload_of(raw)["kind"] == "advertise":
            request = signing.split(raw).tail or b""
            payload = payload_of(signing.split(request).tail or b"")
            del payload["hidden"], payload["network"]
            found.append(payload)
    return found


def test_every_record_is_accepted_by_the_rules(records: list[bytes]) -> None:
    state, outcomes = applied(records)
    assert {outcome.status for outcome in outcomes} == {"accepted"}
    kinds = [outcome.kind for outcome in outcomes]
    creators = {topics.creator_rank(SEED, number) for number in range(COUNT)}
    assert kinds == ["genesis", *["enrol"] * 2, *["tick"] * 2, *["hello"] * len(creators), *["advertise"] * COUNT]
    for number in range(COUNT):
        described = topics.describe(SEED, number)
        topic = state.get("topic", described.uuid)
        assert topic is not None
        assert topic["state"] == "live"
        assert topic["creator"] == described.creator


def test_every_record_is_accepted_by_a_store(records: list[bytes], tmp_path: Path) -> None:
    view = View(tmp_path / "store.sqlite")
    decided = view.apply_all(list(enumerate(records)))
    assert Counter(outcome.status for _, outcome in decided) == {"accepted": len(records)}
    view.close()


def test_a_record_of_another_sample_network_is_void(records: list[bytes], network: SampleNetwork) -> None:
    """Equal keys do not make equal networks: the genesis does."""
    other = SampleNetwork.found(SEED, BEGIN)
    assert other.id != network.id
    _, outcomes = applied([*records, log.record(other, SEED, 0)])
    assert outcomes[-1].status == "void"
    assert "addressed to somebody else" in outcomes[-1].error["message"]


def test_a_creator_who_was_not_introduced_is_not_heard(records: list[bytes], network: SampleNetwork) -> None:
    known = {topics.creator_rank(SEED, number) for number in range(COUNT)}
    stranger = next(number for number in range(COUNT, 1000) if topics.creator_rank(SEED, number) not in known)
    _, outcomes = applied([*records, log.record(network, SEED, stranger)])
    assert outcomes[-1].status == "void"


def test_advertisements_say_what_the_sample_describes(records: list[bytes], network: SampleNetwork) -> None:
    """T5: and they verify as any other does, by the network's roots."""
    for number, raw in enumerate(records[-COUNT:]):
        described = topics.describe(SEED, number)
        token = signing.split(signing.split(raw).tail or b"").tail or b""
        advertisement = statements.read_advertisement(token, statements.by_roots(network.operator.roots))
        assert advertisement.uuid == described.uuid
        assert advertisement.institution == described.institution
        assert advertisement.descriptor == described.descriptor
        assert advertisement.created == BEGIN + timedelta(seconds=described.created_offset_seconds // network.pace)
        assert advertisement.expires == advertisement.created + timedelta(seconds=described.lifetime_seconds)


def test_processes_share_the_work_and_make_the_same(records: list[bytes], network: SampleNetwork) -> None:
    shared = list(log.advertisements(SEED, COUNT, network=network, processes=2))
    assert advertised(shared) == advertised(records)
    assert {outcome.status for outcome in applied(shared)[1]} == {"accepted"}


def test_time_passes_in_the_log(network: SampleNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_AT_ONCE", 30)
    monkeypatch.setattr(log, "_TICK_AFTER", 60)
    state, outcomes = applied(list(log.advertisements(SEED, 130, network=network)))
    assert {outcome.status for outcome in outcomes} == {"accepted"}
    assert Counter(outcome.kind for outcome in outcomes)["tick"] == 3 * len(NODES)
    found = state.get("network", "network")
    assert found is not None
    assert found["time"] == (BEGIN + timedelta(seconds=topics.created_offset_seconds(120) // 20)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_million_are_made_within_a_day() -> None:
    """A running network, whose log is at the present, takes all of them: each within a day of its creation."""
    network = SampleNetwork(SEED, BEGIN, 20, NODES, b"")
    assert network.moment(topics.created_offset_seconds(1_000_000)) - BEGIN < timedelta(hours=14)


def test_a_file_gives_back_what_was_written(network: SampleNetwork, tmp_path: Path) -> None:
    path = tmp_path / "sample.log"
    assert log.write_log(path, SEED, 5, network=network, processes=1) == len(list(log.read_log(path)))
    assert {outcome.status for outcome in applied(list(log.read_log(path)))[1]} == {"accepted"}
    assert list(log.read_log(path)) == list(log.read_log(path))
    assert log.read_network(path) == network
    assert log.read_sample(path) == (SEED, 5)
    assert [file.name for file in tmp_path.iterdir()] == ["sample.log"]


def test_a_log_that_was_broken_off_is_not_there(network: SampleNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_space(*_: object) -> bytes:
        raise OSError("no space left on device")

    monkeypatch.setattr(log, "record", out_of_space)
    with pytest.raises(OSError, match="no space"):
        log.write_log(tmp_path / "sample.log", SEED, 5, network=network, processes=1)
    assert not (tmp_path / "sample.log").exists()


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_file_that_ends_early_is_refused(network: SampleNetwork, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "sample.log"
    log.write_log(path, SEED, 2, network=network, processes=1)
    whole = path.read_bytes()
    last = list(log.read_log(path))[-1]
    # Inside the last record, and inside the four bytes that say its length.
    for content in (whole[:-cut], whole[: -len(last) - min(cut, 3)]):
        path.write_bytes(content)
        with pytest.raises(MalformedMessage, match="middle of a record"):
            list(log.read_log(path))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else\n")
    for read in (lambda path: list(log.read_log(path)), log.read_network, log.read_sample):
        with pytest.raises(MalformedMessage, match="not a log of the sample"):
            read(tmp_path / "other")


def test_a_saved_network_goes_on(network: SampleNetwork, tmp_path: Path) -> None:
    """Its folder is a network's home: the embedded authority there issues what this network's roots believe."""
    network.save(tmp_path)
    for role, folder in ((Role.OPERATOR, "operator"), *((Role.NODE, f"nodes/{node}") for node in NODES)):
        loaded = credentials.load(tmp_path / folder)
        assert loaded.identity.name.role is role
        assert (tmp_path / folder / "key.pem").stat().st_mode & 0o077 == 0
    assert credentials.load(tmp_path / "nodes" / "n1").identity == network.node("n1").identity
    authority = CertificateAuthority(tmp_path / "ca")
    assert authority.exists
    authority.issue(Role.ENTITY, "newcomer", tmp_path / "newcomer")
    newcomer = credentials.load(tmp_path / "newcomer")
    assert newcomer.roots.ders == network.operator.roots.ders
    assert (tmp_path / "network" / "genesis.jws").read_bytes() == network.genesis
    assert (tmp_path / "network" / "enrolments" / "node-n2.jws").exists()
