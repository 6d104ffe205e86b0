"""What the machine beneath us says when it fails, in words for a person: files, disks, ports and SQLite. The one table.

A full disk may have room again, so whoever meets `NoRoom` goes on trying and says so; a damaged store does not mend itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tdn.errors import NoRoom, StoreDamaged, TdnError, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_NO_DESCRIPTORS = "too many open files; raise the limit (`ulimit -n`, in systemd `LimitNOFILE=`)"
_TOO_LARGE = "a file may not become so large there; raise the limit (`ulimit -f`), or take another file system"

#: SQLite's primary codes; the extended ones carry them in their low byte.
_SQLITE_UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
#: A process that cannot read its store does not know whether the log that it was made from still has its beginning.
_TRIMMED = (
    "Not so once the log was trimmed (`tdn log trim`): then move the store away and start with a snapshot of another node, `tdn snapshot --to FILE` there and "
    "`--snapshot FILE` here; never remove the only store that such a network has"
)
_SQLITE_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def explain(error: BaseException, path: Path | None = None) -> TdnError | None:
    """Our error for one of the machine's, about a file where it is known; None for what is no failure of the machine."""
    if isinstance(error, TdnError):
        return error
    if isinstance(error, sqlite3.Error):
        return _of_sqlite(error, path)
    return _of_the_system(error, path) if isinstance(error, OSError) else None


@contextlib.contextmanager
def explained(path: Path | None = None) -> Iterator[None]:
    """What fails in it by the machine's fault is raised as ours."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if (ours := explain(error, path)) is None:
            raise
        raise ours from error


def cannot_write(error: OSError, place: Path) -> TdnError:
    """For what a command was told to write."""
    if error.errno in _FULL:
        return NoRoom(f"{place} cannot be written: its disk is full; free some room, or name another place")
    if error.errno == errno.EFBIG:
        return NoRoom(f"{place} cannot be written: {_TOO_LARGE}")
    if error.errno in _DESCRIPTORS:
        return NoRoom(_NO_DESCRIPTORS)
    return UsageError(f"{place} cannot be written: {error.strerror or error}")


def cannot_read(error: OSError, place: Path) -> TdnError:
    """For what a command was told to read."""
    if error.errno in _DESCRIPTORS:
        return NoRoom(_NO_DESCRIPTORS)
    return UsageError(f"{place} cannot be read: {error.strerror or error}")


def cannot_listen(error: OSError, host: str, port: int, setting: str) -> TdnError:
    """For a server that could not take its port; `setting` says where another one is named."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"port {where} is in use by another program; end that one, or name another port: {setting}")
    if error.errno in _FORBIDDEN:
        return UsageError(f"this user may not listen at {where}; name a port above 1023: {setting}")
    return UsageError(f"nothing can listen at {where}: {error.strerror or error}; name another address: {setting}")


def require_writable(*folders: Path) -> None:
    """Say before anything begins what would otherwise show with the first record, or never."""
    for folder in folders:
        if not os.access(folder, os.W_OK):
            raise UsageError(
                f"{folder} cannot be written: it is another user's, or its file system is read-only; run as the owner of the home, or mount it for writing"
            )


def _of_the_system(error: OSError, path: Path | None) -> TdnError | None:
    where = error.filename if error.filename is not None else path
    if error.errno in _FULL:
        return NoRoom(f"the disk{f' with {where}' if where else ''} is full; free some room, or move the home to another disk")
    if error.errno in _DESCRIPTORS:
        return NoRoom(_NO_DESCRIPTORS)
    if error.errno == errno.EFBIG:
        return NoRoom(f"{f'{where}: ' if where else ''}{_TOO_LARGE}")
    if where is None:
        return None
    if error.errno == errno.EROFS:
        return UsageError(f"{where} cannot be written: its file system is read-only; mount it for writing, or name another home")
    if error.errno in _FORBIDDEN:
        return UsageError(f"{where}: this user may not ({error.strerror}); run as the owner of the home, or `chown` it")
    if error.errno == errno.ENOEXEC:
        return UsageError(f"{where} is no program that this machine can run")
    if error.errno in _IN_THE_WAY:
        return UsageError(f"{where}: {error.strerror}; a home is a folder, name another")
    return None


def _of_sqlite(error: sqlite3.Error, path: Path | None) -> TdnError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = f"store {path}" if path is not None else "store"
    if code == sqlite3.SQLITE_FULL:
        return NoRoom(f"the disk with the {name} is full; free some room")
    if code == sqlite3.SQLITE_IOERR:
        return NoRoom(f"the disk with the {name} does not do its work ({error}); look at the kernel's log and at the room on it")
    if code in _SQLITE_UNWRITABLE:
        return UsageError(
            f"the {name} cannot be written ({error}); look at its owner, at its folder's, and whether its disk is read-only"
        )
    if code in _SQLITE_DAMAGED:
        remove = f"`rm {shlex.quote(str(path))}*`" if path is not None else "remove its store.sqlite*"
        return StoreDamaged(f"the {name} is damaged ({error}); {remove} and start again: it is made anew from the log. {_TRIMMED}")
    return None
