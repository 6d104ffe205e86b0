"""A disk that can be full: a tmpfs in the place of a folder. Mounting needs root; where it is not possible, that is said. And what needs no mounting: files of
this process that cannot grow."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """As on a file system that has no larger files: writing on is an error (Python ignores the signal)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class SmallDisk:
    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tdn-chaos", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        #: Why there is none.
        self.missing = None if done.returncode == 0 else done.stderr.strip() or "mount is not possible"

    def fill(self) -> None:
        """Take every byte that is free, now and as long as it is full."""
        with (self.folder / "ballast").open("ab", buffering=0) as ballast:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(bytes(size))

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    @property
    def full(self) -> bool:
        return shutil.disk_usage(self.folder).free == 0

    def unmount(self) -> None:
        if self.missing is None:
            subprocess.run(["umount", str(self.folder)], check=True, capture_output=True)
