"""The bare limit of an index: each ES256 signature of an archive checked with raw `cryptography`, and nothing else."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pyarrow.parquet as pq
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from bench.bulk_data import QUICK
from tdn.archive import segments
from tdn.trust import signing
from tdn.trust.certificates import decode_chain

#: Of how many records signatures are checked, or some more.
_CHECKED = 500 if QUICK else 20_000

#: What each process checks: set before it is forked, so that nothing is handed over while it is timed.
_jobs: list[list[tuple[bytes, bytes, bytes]]] = []


def bare_rate(archive: Path, processes: int) -> float:
    """Records a second of which each ES256 signature is checked with raw `cryptography` and nothing else: of records, requests and advertisements, and those
    on the certificates that came along. Records of all kinds, taken evenly from the whole archive."""
    files = sorted((archive / "segments").iterdir())
    records = [record for path in files for record in list(segments.read(path))[:: max(1, _signed_records(files) // _CHECKED)]]
    keys = _keys(archive)
    found = [[(signed, signature, keys[who]) for signed, signature, who in _signatures(record.raw)] + _certificates(record.effects) for record in records]
    _jobs[:] = [[one for signatures in found[start::processes] for one in signatures] for start in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(_check, [(number, 100) for number in range(processes)], chunksize=1)
        began = time.perf_counter()
        pool.map(_check, [(number, None) for number in range(processes)], chunksize=1)
        return len(records) / (time.perf_counter() - began)


def _signed_records(files: Sequence[Path]) -> int:
    return sum(pq.ParquetFile(path).metadata.num_rows for path in files)


def _keys(archive: Path) -> dict[str, bytes]:
    """Public keys by thumbprint, of all certificates that the log took."""
    return {
        thumbprint: x509.load_der_x509_certificate(chain[0]).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for path in sorted((archive / "segments").iterdir())
        for record in segments.read(path)
        for thumbprint, chain in _chains(record.effects)
    }


def _chains(effects: str) -> Iterator[tuple[str, Sequence[bytes]]]:
    for space, thumbprint, value in orjson.loads(effects) if "certificate" in effects else ():
        if space == "certificate":
            yield thumbprint, decode_chain(value["chain"])


def _certificates(effects: str) -> list[tuple[bytes, bytes, bytes]]:
    """The signature on each certificate that a record brought. Those above it are the same for all."""
    found = []
    for _, chain in _chains(effects):
        leaf, issuer = (x509.load_der_x509_certificate(der) for der in chain[:2])
        key = issuer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        found.append((leaf.tbs_certificate_bytes, leaf.signature, key))
    return found


def _signatures(raw: bytes) -> list[tuple[bytes, bytes, str]]:
    found = []
    rest: bytes | None = raw
    while rest is not None:
        message = signing.split(rest)
        r, s = int.from_bytes(message.signature[:32], "big"), int.from_bytes(message.signature[32:], "big")
        found.append((message.signed, encode_dss_signature(r, s), message.header.thumbprint))
        rest = message.tail
    return found


def _check(job: tuple[int, int | None]) -> None:
    number, most = job
    known: dict[bytes, ec.EllipticCurvePublicKey] = {}
    algorithm = ec.ECDSA(hashes.SHA256())
    for signed, signature, der in _jobs[number][:most]:
        key = known.get(der)
        if key is None:
            loaded = load_der_public_key(der)
            assert isinstance(loaded, ec.EllipticCurvePublicKey)
            key = known[der] = loaded
        key.verify(signature, signed, algorithm)
