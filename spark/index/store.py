"""An index on disk: tables made of batches, and a commit for each batch. What has no commit is not there.

    commits/FIRST-LAST.json            a batch that is whole: which records, how many rows of each table, in which files
    tables/TABLE/batch=FIRST-LAST/…    its rows, as Parquet: a file of each task

A batch is written beside the others, and then committed. Killed anywhere, the next run removes what has no commit and does the same records again: each is in
the index once. A file that is lost or cut short afterwards is missed before anything is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark.places import UNFINISHED, Place
from spark.tables import TABLES
from tdn.archive.manifest import Entry
from tdn.errors import Absent, Refused, TrustError, UsageError
from tdn.trust.certificates import TrustRoots

FORMAT = 3
_COMMIT = re.compile(r"[0-9]{20}-[0-9]{20}\.json")
_BATCH = re.compile(r"batch=[0-9]{20}-[0-9]{20}")
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch."""

    format: int
    network: str
    #: Which trust roots it was verified against, by a digest over them.
    roots: str
    first: int
    last: int
    #: Rolling hash of the log up to and with the last record.
    head: str
    #: When the last record was judged.
    until: str
    rows: Mapping[str, int]
    #: Of each table that has any, the files by their names in the batch's folder, and how many bytes each has.
    files: Mapping[str, Mapping[str, int]]

    @property
    def batch(self) -> str:
        return batch_name(self.first, self.last)


def batch_name(first: int, last: int) -> str:
    return f"{first:020}-{last:020}"


def digest_of_roots(roots: TrustRoots) -> str:
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(der).digest() for der in roots.ders))).hexdigest()


class Index:
    def __init__(self, place: Place) -> None:
        self.place = place

    def commits(self) -> list[Commit]:
        """What is in it, in order; none of a folder that holds no index."""
        found = [self._read(name) for name in self.place.list("commits") if _COMMIT.fullmatch(name)]
        if found and found[0].first != 1:
            raise TrustError(f"the index in {self.place} begins with record {found[0].first}; make it anew")
        for before, after in itertools.pairwise(found):
            if after.first != before.last + 1 or after.network != before.network:
                raise TrustError(f"the index in {self.place} has a hole after record {before.last}; make it anew")
        return found

    def require_ours(self) -> None:
        """A folder that holds an index, or nothing but what a first run leaves that was killed: UsageError of any other, of which nothing is to be touched."""
        if any(_COMMIT.fullmatch(name) for name in self.place.list("commits")):
            return
        strange = [name for name in self.place.list() if name not in ("", "commits", "tables", _LOCK)]
        strange += [f"commits/{name}" for name in self.place.list("commits") if not name.endswith(UNFINISHED)]
        for table in self.place.list("tables"):
            batches = self.place.list("tables", table) if table in TABLES else []
            strange += [f"tables/{table}/{batch}" for batch in batches if not _BATCH.fullmatch(batch)] if table in TABLES else [f"tables/{table}"]
        if strange:
            raise UsageError(f"{self.place} is not empty and holds no index: there is {strange[0]}; name an index, or a folder that is empty or not there yet")

    def require(self, roots: TrustRoots) -> list[Commit]:
        """The commits of an index that was verified against these roots, and whose files are all there."""
        commits = self.commits()
        if not commits:
            raise Absent(f"there is no index in {self.place}; `tdn-spark index --archive DIR --index {self.place}` makes one")
        self.require_roots(commits, roots)
        self.require_whole(commits)
        return commits

    def require_roots(self, commits: Iterable[Commit], roots: TrustRoots) -> None:
        if any(commit.roots != digest_of_roots(roots) for commit in commits):
            raise TrustError(f"the index in {self.place} was verified against other trust roots than these; index the archive anew")

    def require_whole(self, commits: Iterable[Commit]) -> None:
        """Every file that was committed is there, as long as it was, and no other beside it. One that is gone would be missed by nobody: without the row
        that withdrew it, a topic is back."""
        there: dict[tuple[str, ...], dict[str, int]] = {}
        for path, size in self.place.sizes("tables").items():
            table, batch, file = path.split("/", 2) if path.count("/") > 1 else ("", "", path)
            there.setdefault((table, batch), {})[file] = size
        for commit in commits:
            for table in TABLES:
                said, found = commit.files.get(table, {}), there.get((table, f"batch={commit.batch}"), {})
                if said != found:
                    file, _ = min(said.items() ^ found.items())
                    what = "is missing" if file not in found else "was not committed" if file not in said else "has another length"
                    raise TrustError(
                        f"the index in {self.place} is damaged: tables/{table}/batch={commit.batch}/{file} {what}; index the archive anew, into another folder"
                    )

    def written(self, batch: str) -> dict[str, dict[str, int]]:
        """The files of a batch, for its commit."""
        found = {table: self.place.sizes("tables", table, f"batch={batch}") for table in TABLES}
        return {table: files for table, files in found.items() if files}

    def _read(self, name: str) -> Commit:
        try:
            said: dict[str, Any] = json.loads(self.place.read("commits", name))
            if said["format"] != FORMAT:
                raise UsageError(f"the index in {self.place} is of format {said['format']}; this build reads {FORMAT}; index the archive anew, into another folder")
            commit = Commit(**said)
        except (ValueError, TypeError, KeyError) as error:
            raise TrustError(f"{self.place}: commits/{name} cannot be read; make the index anew") from error
        if name != f"{commit.batch}.json":
            raise TrustError(f"{self.place}: commits/{name} is about another batch")
        return commit

    def paths(self, table: str, commits: Iterable[Commit]) -> list[str]:
        """The folders of a table's rows, as Spark reads them."""
        return [self.place.spark_pattern("tables", table, f"batch={commit.batch}") for commit in commits if commit.rows.get(table)]

    def files(self, table: str, commits: Iterable[Commit]) -> list[str]:
        """The files of a table, by their paths within the table."""
        return [f"batch={commit.batch}/{file}" for commit in commits for file in sorted(commit.files.get(table, ()))]

    # --- writing ---

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else writes it meanwhile, on this machine. Elsewhere that is up to whoever starts the job."""
        self.place.make()
        folder = self.place.local
        if folder is None:
            yield
            return
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Refused(f"another process is writing the index in {self.place}; wait until it is done") from error
            yield
        finally:
            os.close(descriptor)

    def tidy(self, commits: Iterable[Commit]) -> None:
        """Remove batches of our tables that have no commit. What else somebody keeps there is not ours."""
        kept = {f"batch={commit.batch}" for commit in commits}
        for table in TABLES:
            for batch in self.place.list("tables", table):
                if _BATCH.fullmatch(batch) and batch not in kept:
                    self.place.remove("tables", table, batch)

    def commit(self, commit: Commit) -> None:
        for table in TABLES:
            self.place.tidy("tables", table, f"batch={commit.batch}")
        self.place.write(json.dumps(asdict(commit), indent=1).encode() + b"\n", "commits", f"{commit.batch}.json")


def commit_of(
    entries: list[Entry], roots: TrustRoots, rows: Mapping[str, int], until: str, files: Mapping[str, Mapping[str, int]]
) -> Commit:
    first, last = entries[0], entries[-1]
    return Commit(
        FORMAT,
        first.network,
        digest_of_roots(roots),
        first.first,
        last.last,
        last.head,
        until,
        {table: rows.get(table, 0) for table in TABLES},
        files,
    )
