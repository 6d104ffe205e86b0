"""The sample as an archive of any size: the records of `log`, with what they did, in signed segments.

What advertisements do is written down without judging each, which would take a millisecond: the sample's are all sound and of one form. Everything else
is judged. `tdn archive verify` judges all of it, and finds the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from tdn.archive import segments
from tdn.archive.export import add_segment
from tdn.archive.manifest import Archive, Entry
from tdn.archive.segments import ArchivedRecord
from tdn.protocol import jsontext
from tdn.rules.apply import RULES_VERSION, apply, judged_at
from tdn.rules.state import EMPTY_HEAD, LogRecord, MemoryState, Outcome, Write, effects_of, next_head
from tdn.sample import log
from tdn.sample.network import SampleNetwork
from tdn.trust import signing


def write_archive(folder: Path, seed: int, count: int, *, network: SampleNetwork, processes: int = 2) -> list[Entry]:
    """An archive with the first `count` topics of a seed, signed by the network's first node. `processes` share the signing."""
    archive = Archive(folder)
    archive.prepare()
    node = network.node(network.nodes[0])
    before = EMPTY_HEAD
    portion: list[ArchivedRecord] = []
    size = 0

    def finish() -> None:
        nonlocal before, size
        add_segment(archive, portion, node, network.begin + timedelta(days=1), network=network.id, rules=RULES_VERSION, before=before)
        before, size = portion[-1].head, 0
        portion.clear()

    for record in _judged(log.advertisements(seed, count, network=network, processes=processes)):
        size += len(record.raw) + len(record.effects)
        if portion and (len(portion) == segments.MOST_RECORDS or size > segments.MOST_BYTES):
            finish()
        portion.append(record)
    finish()
    return archive.entries(node.roots)


def _judged(records: Iterator[bytes]) -> Iterator[ArchivedRecord]:
    state = MemoryState()
    head, moment = EMPTY_HEAD, None
    for seq, raw in enumerate(records, start=1):
        head = next_head(head, raw)
        record = LogRecord(seq, head, raw)
        outcome = _advertised(record) if raw.count(signing.TILDE) == 2 else apply(state, record)
        if outcome.kind != "advertise":
            state.write(outcome)
        moment = judged_at(record, outcome, state.get("network", "network"), moment)
        yield ArchivedRecord(seq, seq - 1, moment, outcome.kind, outcome.status, head, raw, effects_of(outcome))


def _advertised(record: LogRecord) -> Outcome:
    """What `rules.topics.advertise` does with a root without lists."""
    advertisement = record.raw.split(signing.TILDE, 2)[2]
    segment = advertisement.split(b".")[1]
    payload = jsontext.parse(signing.decode_segment(segment))
    fact = {
        "kind": payload["kind"],
        "digest": signing.digest(segment),
        "creator": payload["creator"],
        "owner": payload["creator"],
        "created": payload["created"],
        "expires": payload["expires"],
        "state": "live",
        "seq": record.seq,
        "advertised": record.seq,
        "record": signing.digest(record.raw),
    }
    return Outcome("accepted", "advertise", (Write("topic", payload["uuid"], fact),))
