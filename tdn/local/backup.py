"""A home in one file, and a home from such a file.

A backup is taken while the network runs: stores as SQLite copies them, everything else as it is, also what is elsewhere and only linked; without what belongs
to the running processes, and without the broker's data, of which no consistent copy exists while it runs. What can be neither saved nor done without is named, and
there is no backup. It holds every key of the home: whoever can read it is the network. The manifest in it names each file with its digest, so that one that was changed or cut is not restored.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from tdn import machine
from tdn.errors import LogDiverged, NoRoom, TdnError, TrustError, UsageError
from tdn.local.home import MOST_BROKERS, Home, private_broker
from tdn.protocol.times import format_time, whole_seconds
from tdn.store.state_text import private

FORMAT = 1
MANIFEST = "manifest.json"
#: A broker's own folder, beside its credentials; in it, what its data and its name rest on.
_BROKER, _BROKER_KEEPS = "rabbitmq", ("data", "home")
_BROKERS = frozenset(private_broker(number) for number in range(1, MOST_BROKERS + 1))
#: What is only of use to a process that runs, or is half of something: by the end of its name, which may have a process's number behind it. Ids have no dots.
_HALF_MADE = re.compile(r".*\.(new|pid|from-snapshot|unfinished)(-[0-9a-z]+)*")
#: What SQLite keeps beside a database that is open.
_BESIDE = ("-wal", "-shm", "-journal")
#: What a link says that leads nowhere, or only to itself.
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_SQLITE = b"SQLite format 3\0"
#: What SQLite says when it cannot write: of two databases it is the copy that is written.
_OF_THE_COPY = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
_PIECE = 1024**2
_IN_THE_WAY = (FileExistsError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, slots=True)
class Saved:
    file: Path
    files: int
    bytes: int
    broker: bool
    #: What of the home is not in it because it has no content.
    passed_over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    network: str
    created: str
    files: int
    broker: bool


def backup(home: Home, to: Path, *, with_broker: bool = False) -> Saved:
    """Write a home into a new file, mode 0600; in a folder, under a name of its own. The broker's data only while nothing runs."""
    network = home.network
    now = datetime.now(UTC)
    if to.is_dir():
        to = to / f"tdn-{network[:12]}-{now:%Y%m%dT%H%M%SZ}.tar.gz"
    if to.exists():
        raise UsageError(f"{to} is there already; a backup is never written over")
    unfinished = to.with_name(f".{to.name}.unfinished-{os.getpid()}")
    described: list[dict[str, Any]] = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".tdn-backup-", dir=to.parent) as scratch,
            private(unfinished) as target,
            tarfile.open(fileobj=target, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as tar,
        ):
            contents = _Contents(home.folder, with_broker=with_broker, but=(unfinished, Path(scratch)))
            for path in contents.files():
                copy = _copied(path, Path(scratch) / "copy", to)
                if copy is not None and (saved := _add(tar, copy, path.relative_to(home.folder))) is not None:
                    described.append(saved)
            manifest = {
                "format": FORMAT,
                "network": network,
                "created": format_time(whole_seconds(now)),
                "broker": with_broker,
                "files": described,
            }
            text = json.dumps(manifest, indent=1).encode() + b"\n"
            member = tarfile.TarInfo(MANIFEST)
            member.size, member.mode = len(text), 0o600
            tar.addfile(member, io.BytesIO(text))
        with open(unfinished, "rb") as written:
            os.fsync(written.fileno())
        size = unfinished.stat().st_size
        os.link(unfinished, to)
    except OSError as error:
        raise machine.cannot_write(error, to) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return Saved(to, len(described), size, with_broker, tuple(contents.passed_over))


def restore(file: Path, home: Home) -> Restored:
    """Make a home from a backup. It must not be there yet; it appears when every file was found as it was saved."""
    target = home.folder
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty; a backup is restored into a new home: `tdn --home NEW restore {file}`")
    with contextlib.ExitStack() as failed:
        try:
            for above in reversed(target.parents):
                if not above.exists():
                    above.mkdir(exist_ok=True)
                    failed.callback(_remove_empty, above)
            fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.restoring-", dir=target.parent))
            failed.callback(shutil.rmtree, fresh, ignore_errors=True)
            manifest = _unpack(file, fresh)
            # Before it is in its place: nothing that can fail comes after.
            try:
                Home(fresh).prepare()
            except TdnError as error:
                raise UsageError(error.message.replace(str(fresh), str(target))) from error
            fresh.rename(target)
        except OSError as error:
            raise machine.cannot_write(error, target) from error
        failed.pop_all()
    return Restored(manifest["network"], manifest["created"], len(manifest["files"]), bool(manifest["broker"]))


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


class _Contents:
    """What of a home is saved: its folders and files, and what links in it lead to, which a restored home has in its place."""

    def __init__(self, home: Path, *, with_broker: bool, but: tuple[Path, ...]) -> None:
        self._home = home
        self._with_broker = with_broker
        self._but = {os.path.realpath(path) for path in but}
        #: What holds nothing that could be saved.
        self.passed_over: list[str] = []

    def files(self) -> Iterator[Path]:
        """In order."""
        yield from self._below(self._home, frozenset({_identity(self._home.stat())}))

    def _below(self, folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
        """Through links too. A folder that is inside itself that way is not entered again: all of it is saved already."""
        for name in _listed(folder):
            path = folder / name
            if not self._belongs(path) or (found := _looked_at(path)) is None:
                continue
            if stat.S_ISREG(found.st_mode):
                if not _is_beside_a_database(path):
                    yield path
            elif not stat.S_ISDIR(found.st_mode):
                self._pass_over(path, "a socket, a pipe or a device")
            elif (own := _identity(found)) in above:
                self._pass_over(path, "a link to a folder that it is in")
            else:
                yield from self._below(path, above | {own})

    def _belongs(self, path: Path) -> bool:
        own = path.relative_to(self._home).parts
        if own == ("run",) or _HALF_MADE.fullmatch(path.name) or os.path.realpath(path) in self._but:
            return False
        if own[0] not in _BROKERS or own[1:2] != (_BROKER,):
            return True
        if not self._with_broker or len(own) != 3:
            return self._with_broker
        return path.name in _BROKER_KEEPS if path.is_dir() else not path.name.endswith(".log")

    def _pass_over(self, path: Path, what: str) -> None:
        self.passed_over.append(f"{path.relative_to(self._home)} ({what})")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        # It has just gone.
        return []
    except OSError as error:
        raise machine.cannot_read(error, folder) from error


def _looked_at(path: Path) -> os.stat_result | None:
    """What a path is, or leads to; None when it has just gone. What a link should lead to may be what the backup is for."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in _NOWHERE and path.is_symlink():
            raise UsageError(
                f"{path} leads to {os.readlink(path)}, where nothing is: no backup is made without it. Bring it back (mount its disk), or remove the link"
            ) from error
        if isinstance(error, FileNotFoundError):
            return None
        raise machine.cannot_read(error, path) from error


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_beside_a_database(path: Path) -> bool:
    """Whether it is SQLite's own, beside a database of which a whole copy is saved."""
    for ending in _BESIDE:
        if path.name.endswith(ending):
            database = path.with_name(path.name.removesuffix(ending))
            with contextlib.suppress(OSError):
                # Of one that is linked, SQLite keeps it where the link leads.
                return not database.is_symlink() and _is_database(database)
    return False


def _is_database(path: Path) -> bool:
    if path.suffix != ".sqlite":
        return False
    with open(path, "rb") as file:
        return _Read(file, path).read(len(_SQLITE)) == _SQLITE


def _copied(path: Path, scratch: Path, to: Path) -> Path | None:
    """A file as it can be read in peace: of a database a copy of its own. None when it has just gone."""
    try:
        if not _is_database(path):
            return path
        scratch.unlink(missing_ok=True)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source, closing(sqlite3.connect(scratch)) as copy:
            source.execute("PRAGMA busy_timeout=10000")
            source.backup(copy)
            # As one file: what it was copied from has its newest pages beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
        return scratch
    except FileNotFoundError:
        return None
    except OSError as error:
        raise machine.cannot_read(error, path) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) in _OF_THE_COPY:
            raise NoRoom(f"{to} cannot be written: its disk is full, or does not do its work; free some room, or name another place") from error
        if isinstance(ours := machine.explain(error, path), NoRoom):
            raise ours from error
        if not os.access(path.resolve().parent, os.W_OK):
            # SQLite writes beside a database that it only reads.
            raise UsageError(
                f"{path} cannot be copied where nothing can be written beside it: copy the home to where you can write (`cp -a`), and save that one"
            ) from error
        raise LogDiverged(f"{path} cannot be copied: {error}; look at that file first, or move it away") from error


def _add(tar: tarfile.TarFile, content: Path, name: Path) -> dict[str, Any] | None:
    """Put a file into the backup as it is now; what the manifest says of it. None when it has just gone."""
    try:
        opened = open(content, "rb")  # noqa: SIM115  # closed below
    except FileNotFoundError:
        return None
    except OSError as error:
        raise machine.cannot_read(error, content) from error
    with opened as file:
        member = tarfile.TarInfo(str(PurePosixPath(name)))
        member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
        measured = _Measured(file, content)
        tar.addfile(member, measured)
    return {"path": member.name, "bytes": member.size, "sha256": measured.total.hexdigest()}


class _Read:
    """A file that is read. That it cannot be is told as that, not as if nothing could be written."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, size: int = -1) -> bytes:
        with _reading(self._path):
            return self._file.read(size)


class _Measured(_Read):
    """And the digest of what was read."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, path)
        self.total = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = super().read(size)
        self.total.update(piece)
        return piece


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise machine.cannot_read(error, path) from error


def _unpack(file: Path, folder: Path) -> dict[str, Any]:
    """Put what a backup holds into a folder. What cannot be read or written is told apart from what is not whole."""
    found: dict[str, tuple[int, str]] = {}
    manifest: dict[str, Any] | None = None
    with _reading(file):
        opened = open(file, "rb")  # noqa: SIM115  # closed below
    try:
        with opened, tarfile.open(fileobj=cast("IO[bytes]", _Read(opened, file)), mode="r|gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                content = tar.extractfile(member) if member.isreg() else None
                foreign = TrustError(f"{file.name} holds {member.name[:80]!r}, which no backup of ours does")
                if content is None or path.is_absolute() or ".." in path.parts or manifest is not None or member.name in found:
                    raise foreign
                if member.name == MANIFEST:
                    manifest = json.loads(content.read())
                    continue
                try:
                    found[member.name] = _unpacked(content, folder, path)
                except _IN_THE_WAY as error:
                    # A file where another's folder is: no home had both.
                    raise foreign from error
    except (tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise TrustError(f"{file.name} is not a whole backup: {str(error)[:200] or type(error).__name__}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TrustError(f"{file.name} is not a whole backup: it has no manifest of format {FORMAT}")
    try:
        named = {one["path"]: (one["bytes"], one["sha256"]) for one in manifest["files"]}
        Restored(manifest["network"], manifest["created"], len(named), bool(manifest["broker"]))
    except (KeyError, TypeError) as error:
        raise TrustError(f"{file.name} is not a whole backup: its manifest lacks something") from error
    if named != found:
        wrong = sorted(path for path in named.keys() | found.keys() if named.get(path) != found.get(path))
        raise TrustError(
            f"{file.name} is not what was saved: {wrong[0]} differs" + (f", and {len(wrong) - 1} more" if wrong[1:] else "")
        )
    return manifest


def _unpacked(content: IO[bytes], folder: Path, path: PurePosixPath) -> tuple[int, str]:
    for above in reversed(path.parents):
        (folder / above).mkdir(mode=0o700, exist_ok=True)
    total, size = hashlib.sha256(), 0
    with private(folder / path) as file:
        while piece := content.read(_PIECE):
            file.write(piece)
            total.update(piece)
            size += len(piece)
    return size, total.hexdigest()
