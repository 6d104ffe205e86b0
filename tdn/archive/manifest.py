"""The manifest: one signed entry for each segment, in a file named by the segment's first record. Entries never change and none is removed.

An entry is a node's word that a file, by its digest, holds so many records of the log in their order. The next entry begins where it ends, with the
same rolling hash; so a hole, an entry of another archive and two that overlap are noticed from the entries alone.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tdn.archive.segments import FORMAT, digest_of
from tdn.errors import Absent, TdnError, TrustError, UnknownRules, UsageError
from tdn.protocol import schemas
from tdn.rules.apply import RULES_VERSION
from tdn.rules.state import EMPTY_HEAD
from tdn.trust import signing, statements
from tdn.trust.certificates import TrustRoots
from tdn.trust.credentials import Credentials

MANIFEST, SEGMENTS = "manifest", "segments"
_ENTRY_NAME = re.compile(r"([0-9]{20})\.jws")
_SEGMENT_NAME = re.compile(r"[0-9]{20}-[0-9]{20}-[0-9a-f]{16}\.parquet")


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified entry."""

    network: str
    rules: int
    first: int
    last: int
    #: Of the first and the last record, in the broker's stream.
    offsets: tuple[int, int]
    #: Rolling hash of the log before the segment, and up to and with it.
    before: str
    head: str
    file: str
    sha256: str
    bytes: int
    node: str
    signed_at: datetime
    token: str


def entry_name(first: int) -> str:
    return f"{first:020}.jws"


def segment_name(first: int, last: int, sha256: str) -> str:
    return f"{first:020}-{last:020}-{sha256[:16]}.parquet"


def sign(
    node: Credentials,
    now: datetime,
    *,
    network: str,
    rules: int,
    first: int,
    last: int,
    offsets: tuple[int, int],
    before: str,
    head: str,
    sha256: str,
    size: int,
) -> bytes:
    payload = {
        "v": schemas.VERSION,
        "format": FORMAT,
        "network": network,
        "rules": rules,
        "first": first,
        "last": last,
        "offsets": list(offsets),
        "before": before,
        "head": head,
        "file": segment_name(first, last, sha256),
        "sha256": sha256,
        "bytes": size,
    }
    return statements.sign("archive", payload, node, now)


def read_entry(token: bytes, roots: TrustRoots, name: str) -> Entry:
    """An entry whose signature leads to the roots; or TrustError that names it."""
    try:
        statement = statements.read(token.strip(), statements.by_roots(roots))
    except TdnError as error:
        raise TrustError(f"manifest entry {name}: {error.message}", detail=error.detail) from error
    payload: Mapping[str, Any] = statement.payload
    if statement.kind != "archive":
        raise TrustError(f"manifest entry {name} is a {statement.kind}, not an entry of a manifest")
    if payload["format"] != FORMAT:
        raise UsageError(f"manifest entry {name} is of format {payload['format']}; this build reads {FORMAT}")
    if name != entry_name(payload["first"]) or not payload["first"] <= payload["last"]:
        raise TrustError(f"manifest entry {name} is about records {payload['first']} to {payload['last']}")
    if payload["file"] != segment_name(payload["first"], payload["last"], payload["sha256"]):
        raise TrustError(f"manifest entry {name} names a file {payload['file']!r} that is not its own")
    return Entry(
        payload["network"],
        payload["rules"],
        payload["first"],
        payload["last"],
        (payload["offsets"][0], payload["offsets"][1]),
        payload["before"],
        payload["head"],
        payload["file"],
        payload["sha256"],
        payload["bytes"],
        statement.signer.name.id,
        statement.signed_at,
        statement.token,
    )


def require_rules(entry: Entry) -> None:
    """Whoever takes what records did for what they mean has to know the rules that they did it by."""
    if entry.rules != RULES_VERSION:
        raise UnknownRules(f"segment {entry.file} follows rules version {entry.rules}; this build judges by {RULES_VERSION}")


def read_chain(tokens: Iterable[tuple[str, bytes]], roots: TrustRoots, known: Sequence[Entry] = ()) -> list[Entry]:
    """The entries of an archive, in order, each going on where the one before ended; or TrustError. Tokens come with their file names; those of entries that
    are known already are left out."""
    entries = list(known)
    for name, token in sorted(tokens):
        entry = read_entry(token, roots, name)
        expected = entries[-1].last + 1 if entries else 1
        if entry.first != expected:
            raise TrustError(f"the manifest has a hole: records {expected} to {entry.first - 1} are missing before entry {name}")
        if entry.before != (entries[-1].head if entries else EMPTY_HEAD):
            raise TrustError(f"manifest entry {name} does not go on where the one before it ended")
        if entries and entry.network != entries[-1].network:
            raise TrustError(f"manifest entry {name} belongs to another network")
        entries.append(entry)
    return entries


class Archive:
    """An archive in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / MANIFEST
        self.segments = folder / SEGMENTS

    def entries(self, roots: TrustRoots, known: Sequence[Entry] = ()) -> list[Entry]:
        """All entries; none of a folder that is not there yet. Whether the files are as the entries say is not looked at. Those that are known, the first
        ones, are not read again: entries never change."""
        if not self.manifest.is_dir():
            return []
        read = {entry_name(entry.first) for entry in known}
        names = [name for name in os.listdir(self.manifest) if name not in read and _ENTRY_NAME.fullmatch(name)]
        return read_chain([(name, (self.manifest / name).read_bytes()) for name in names], roots, known)

    def require_entries(self, roots: TrustRoots) -> list[Entry]:
        entries = self.entries(roots)
        if not entries:
            raise Absent(f"there is no archive in {self.folder}; `tdn archive export --to {self.folder}` makes one")
        return entries

    def require_file(self, entry: Entry) -> Path:
        """The file of an entry, whose digest is the one that was signed."""
        path = self.segments / entry.file
        if not path.is_file():
            raise TrustError(f"segment {entry.file} is missing")
        if path.stat().st_size != entry.bytes or digest_of(path) != entry.sha256:
            raise TrustError(f"segment {entry.file} is not the file that was exported: its digest differs")
        return path

    def prepare(self) -> None:
        for folder in (self.manifest, self.segments):
            folder.mkdir(parents=True, exist_ok=True)

    def unfinished(self) -> Path:
        """A name for a file that is being written."""
        return self.segments / f".unfinished-{os.getpid()}-{secrets.token_hex(6)}"

    def add(self, unfinished: Path, entry: bytes, first: int, file: str) -> bool:
        """Put a finished file and its entry in place; False when somebody else has added that segment before.

        The entry is linked, not renamed, so that of two who add one the first has it. A file that is in no entry is in no archive: what
        a killed export left is removed by the next that adds the same records.
        """
        fresh = self.unfinished()
        try:
            # Both are written before either is put in place: on a full disk the archive stays as it was.
            fresh.write_bytes(entry + b"\n")
            _sync(fresh)
            _sync(unfinished)
            os.replace(unfinished, self.segments / file)
            os.link(fresh, self.manifest / entry_name(first))
            added = True
        except FileExistsError:
            added = False
        finally:
            fresh.unlink(missing_ok=True)
        _sync(self.manifest)
        _sync(self.segments)
        self._remove_unnamed(first)
        return added

    def _remove_unnamed(self, first: int) -> None:
        """Files of a segment that its entry, which stands for ever, does not name."""
        taken = (self.manifest / entry_name(first)).read_bytes()
        for path in self.segments.glob(f"{first:020}-*.parquet"):
            if _SEGMENT_NAME.fullmatch(path.name) and not _names(taken, path.name):
                path.unlink(missing_ok=True)


def _names(token: bytes, file: str) -> bool:
    """Whether an entry of ours, which whoever wrote it signed, names a file."""
    return bool(signing.parse_payload(signing.split(token.strip())).get("file") == file)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
