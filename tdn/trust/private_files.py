"""Private files: keys and passwords, read only where nobody else can have read or written them.

The rule is PostgreSQL's. The owner is the process's user, or root. Nobody else may read it, with one exception: a file of root's may be
readable by a group that the process, not being root itself, is in. That is how Kubernetes mounts a secret for `fsGroup` (mode 0440), and how
a package hands a key to a service. Readable by everyone is refused always.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Collection
from pathlib import Path

from tdn.errors import TrustError

#: Longest key or password. A device in its place is not read for ever.
_MAX_BYTES = 1_000_000


def read_private(path: Path) -> bytes:
    """Its bytes; or TrustError with the command that makes it private. FileNotFoundError when it is not there."""
    try:
        # Not waiting: a pipe in its place would hold us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TrustError(f"{path} cannot be read: {_because(error)}") from error
    try:
        # Of what was opened, not of what stands at the path by then.
        if (complaint := complaint_about(path, os.fstat(descriptor), os.geteuid(), {os.getegid(), *os.getgroups()})) is not None:
            raise TrustError(complaint)
        return os.read(descriptor, _MAX_BYTES)
    except OSError as error:
        raise TrustError(f"{path} cannot be read: {_because(error)}") from error
    finally:
        os.close(descriptor)


def complaint_about(path: Path, found: os.stat_result, user: int, groups: Collection[int]) -> str | None:
    """What is wrong with a private file for a process of this user and these groups, and what to do; None when nothing is."""
    mode = stat.S_IMODE(found.st_mode)
    quoted = shlex.quote(str(path))
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a file"
    if mode & 0o007:
        return f"everybody on this machine can reach {path} (mode {mode:04o}); run `chmod 600 {quoted}`, and if others were here, make a new one"
    if found.st_uid not in (user, 0):
        return f"{path} belongs to user {found.st_uid}, and this process is user {user}; run `chown {user} {quoted}`, or run as its owner"
    if mode & 0o070:
        by_group = found.st_uid == 0 and user != 0 and found.st_gid in groups
        if not by_group or mode & 0o030:
            return f"the group {found.st_gid} can reach {path} (mode {mode:04o}); run `chmod 600 {quoted}`"
    return None


def _because(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"user {os.geteuid()} may not; run as its owner, or `chown` it"
    return error.strerror or str(error)
