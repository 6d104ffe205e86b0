"""The sample as a log: records as nodes append them, which a store, a replay or an archive reads like any others.

Genesis, enrolments, the creators' first contacts, ticks, then one record for each topic, made with the project's own functions: a node's
record around the creator's signed request around an advertisement signed by a node. Contents depend on the seed alone; signatures and the
salts of what is hidden are fresh each time. What a log file holds can be read again and again, so that two runs measure the same.
"""

from __future__ import annotations

import json
import multiprocessing
import struct
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from tdn.errors import MalformedMessage
from tdn.protocol.times import format_time, parse_time
from tdn.rules.apply import write_record
from tdn.sample import topics
from tdn.sample.network import SampleNetwork
from tdn.sample.topics import Description
from tdn.trust import envelope, openings, signing, statements
from tdn.trust.credentials import Credentials
from tdn.trust.envelope import Envelope
from tdn.trust.openings import Opening

#: Records that a process makes at a time: a few megabytes, and some tenths of a second.
_AT_ONCE = 500
#: Nodes tick after so many topics, so that the log's time moves with them.
_TICK_AFTER = 10_000
_REQUEST_LIFE = timedelta(days=1)
_SECOND = timedelta(seconds=1)

_LENGTH = struct.Struct(">I")
_MAGIC = b"tdn-sample-log-1 "


def advertisements(seed: int, count: int, *, network: SampleNetwork, processes: int = 1) -> Iterator[bytes]:
    """The records of a whole log with the first `count` topics of a seed, in order. `processes` share the signing."""
    yield write_record("genesis", network.node(network.nodes[0]), network.begin, network.genesis)
    for node in network.nodes:
        yield write_record("enrol", network.node(node), network.begin, network.enrolment(node))
    yield from contents(seed, count, network=network, processes=processes)


def contents(seed: int, count: int, *, network: SampleNetwork, processes: int = 1) -> Iterator[bytes]:
    """The same without its opening, for a log that has begun with this network's genesis and nodes."""
    yield from _ticks(network, 0)
    ranks = sorted({topics.creator_rank(seed, number) for number in range(count)})
    hellos = [ranks[start : start + _AT_ONCE] for start in range(0, len(ranks), _AT_ONCE)]
    starts = range(0, count, _AT_ONCE)
    if processes == 1:
        yield from chain.from_iterable(map(partial(_hellos, network), hellos))
        yield from chain.from_iterable(map(partial(_advertised, network, seed, count), starts))
        return
    # Spawned, not forked: the process that asks may have threads.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from chain.from_iterable(pool.imap(partial(_hellos, network), hellos))
        yield from chain.from_iterable(pool.imap(partial(_advertised, network, seed, count), starts))


def record(network: SampleNetwork, seed: int, number: int) -> bytes:
    """The record with which topic `number` is advertised."""
    moment = network.moment(topics.created_offset_seconds(number))
    uuid, opening, minted = advertisement(network, seed, number)
    change = envelope.write(
        "advertise",
        {"uuid": uuid, "opening": opening},
        network.creator(topics.creator_rank(seed, number)),
        audience=network.audience,
        now=moment,
        life=_REQUEST_LIFE,
        message_id=f"sample-{seed}-{number}",
        tail=minted,
    )
    return write_record("advertise", _node(network, number), moment + _SECOND, change)


def advertisement(network: SampleNetwork, seed: int, number: int) -> tuple[str, Opening, bytes]:
    """The UUID of topic `number`, what its advertisement hides, and the advertisement, signed by a node."""
    described = topics.describe(seed, number)
    creator = network.creator(topics.creator_rank(seed, number))
    opening = openings.conceal({"access": {}}, openings.new_seed())
    minted = statements.mint(
        _asked(described, creator, network),
        uuid=described.uuid,
        network=network.id,
        opening=opening,
        node=_node(network, number),
        now=network.moment(described.created_offset_seconds),
    )
    return described.uuid, opening, minted


def _node(network: SampleNetwork, number: int) -> Credentials:
    return network.node(network.nodes[number % len(network.nodes)])


def write_log(path: Path, seed: int, count: int, *, network: SampleNetwork, processes: int = 2) -> int:
    """Write `advertisements` into a file; how many records it holds. A run that is broken off leaves no file."""
    head = {
        "seed": network.seed,
        "begin": format_time(network.begin),
        "pace": network.pace,
        "nodes": network.nodes,
        "topics": [seed, count],
    }
    unfinished = path.with_suffix(f"{path.suffix}.unfinished")
    written = 0
    with open(unfinished, "wb") as file:
        file.write(_MAGIC + json.dumps(head).encode() + b"\n")
        for raw in advertisements(seed, count, network=network, processes=processes):
            file.write(_LENGTH.pack(len(raw)) + raw)
            written += 1
    unfinished.replace(path)
    return written


def read_log(path: Path) -> Iterator[bytes]:
    """The records of a file, in order."""
    with open(path, "rb") as file:
        _read_head(file.readline(), path)
        while prefix := file.read(_LENGTH.size):
            length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else None
            raw = file.read(length) if length is not None else b""
            if len(raw) != length:
                raise MalformedMessage(f"{path.name} ends in the middle of a record")
            yield raw


def read_network(path: Path) -> SampleNetwork:
    """The network that a file's records belong to, with all its keys."""
    with open(path, "rb") as file:
        head = _read_head(file.readline(), path)
    genesis = signing.split(next(read_log(path))).tail
    if genesis is None:
        raise MalformedMessage(f"{path.name} does not begin with a genesis")
    return SampleNetwork(head["seed"], parse_time(head["begin"]), head["pace"], tuple(head["nodes"]), genesis)


def read_sample(path: Path) -> tuple[int, int]:
    """The seed of a file's topics, and how many there are."""
    with open(path, "rb") as file:
        seed, count = _read_head(file.readline(), path)["topics"]
    return seed, count


def _read_head(line: bytes, path: Path) -> dict[str, Any]:
    if not line.startswith(_MAGIC) or not line.endswith(b"\n"):
        raise MalformedMessage(f"{path.name} is not a log of the sample")
    head: dict[str, Any] = json.loads(line.removeprefix(_MAGIC))
    return head


def _hellos(network: SampleNetwork, ranks: Sequence[int]) -> list[bytes]:
    """The first contacts of some creators."""
    node = network.node(network.nodes[0])
    return [
        write_record(
            "hello",
            node,
            network.begin,
            envelope.write(
                "hello",
                {},
                network.creator(rank),
                audience=network.audience,
                now=network.begin,
                life=_REQUEST_LIFE,
                message_id=f"sample-hello-{rank}",
                with_chain=True,
            ),
        )
        for rank in ranks
    ]


def _advertised(network: SampleNetwork, seed: int, count: int, start: int) -> list[bytes]:
    """The records of some topics, with the ticks that are due before them."""
    records = [record(network, seed, number) for number in range(start, min(start + _AT_ONCE, count))]
    return [*_ticks(network, start), *records] if start and start % _TICK_AFTER == 0 else records


def _ticks(network: SampleNetwork, number: int) -> list[bytes]:
    """All nodes say what time it is when topic `number` is made."""
    moment = network.moment(topics.created_offset_seconds(number))
    return [write_record("tick", network.node(node), moment) for node in network.nodes]


def _asked(described: Description, creator: Credentials, network: SampleNetwork) -> Envelope:
    """The creator's request, as a node has it once it has checked the signature. No log holds it, so nobody signs it here."""
    moment = network.moment(described.created_offset_seconds)
    return Envelope(
        kind="create",
        signer=creator.identity,
        audience=network.audience,
        issued=moment,
        expires=moment + _REQUEST_LIFE,
        id="",
        reply=None,
        answers=None,
        body=described.body,
        tail=None,
        raw=b"",
    )
