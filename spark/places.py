"""Folders that may be on this machine or in an object store: files, listings and names, by pyarrow's file systems.

`s3a://` is what Spark calls what pyarrow calls `s3://`.
"""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tdn.errors import BrokerUnavailable, UsageError

#: How the name of a file ends that is being written.
UNFINISHED = ".unfinished"
#: What means something in a pattern of Hadoop's, or of DuckDB's.
_PATTERN = re.compile(r"[\\\[\]{}*?^]")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")


class Place:
    """A folder: `/data/index`, `file:///data/index`, `s3a://bucket/index`, `hdfs://…`."""

    def __init__(self, text: str | Path) -> None:
        self.text = str(text)
        try:
            if _SCHEME.match(self.text):
                self._files, self._root = fs.FileSystem.from_uri(re.sub(r"^s3[an]://", "s3://", self.text))
            else:
                self._files, self._root = fs.LocalFileSystem(), str(Path(self.text).absolute())
                self.text = self._root
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self.text} cannot be used: {_first_line(error)}") from error

    def __str__(self) -> str:
        return self.text

    @contextmanager
    def plain(self) -> Iterator[Path]:
        """A folder on this machine under a name in which no letter means anything to DuckDB, which takes every path for a pattern, and has no way to write all
        of them otherwise."""
        folder = self.local
        if folder is None:
            raise UsageError(f"{self.text} is not on this machine")
        if not _PATTERN.search(str(folder)):
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix="tdn-index-") as other:
            link = Path(other) / "index"
            link.symlink_to(folder, target_is_directory=True)
            yield link

    @property
    def local(self) -> Path | None:
        """The folder itself, where it is on this machine."""
        return Path(self._root) if isinstance(self._files, fs.LocalFileSystem) else None

    def name(self, *parts: str) -> str:
        """The path of something in it, in the words in which the folder was named."""
        return "/".join([self.text.rstrip("/"), *parts])

    def spark_name(self, *parts: str) -> str:
        """How Spark calls something in it. What is on this machine is a file there too, wherever Spark has its other files (`fs.defaultFS`)."""
        return f"file://{self._path(*parts)}" if self.local is not None else self.name(*parts)

    def spark_pattern(self, *parts: str) -> str:
        """The same where Spark reads, which takes every path for a pattern: `v[1]` would be `v1`."""
        return _PATTERN.sub(r"\\\g<0>", self.spark_name(*parts))

    def exists(self, *parts: str) -> bool:
        return bool(self._info(*parts).type != fs.FileType.NotFound)

    def list(self, *parts: str) -> list[str]:
        """Names in a folder of it; none where there is no such folder."""
        selector = fs.FileSelector(self._path(*parts), allow_not_found=True)
        return sorted(info.base_name for info in self._try(lambda: self._files.get_file_info(selector)))

    def read(self, *parts: str) -> bytes:
        with self._try(lambda: self._files.open_input_stream(self._path(*parts))) as stream:
            return bytes(stream.read())

    def open(self, *parts: str) -> Any:
        """A file, to be read at any place."""
        return self._try(lambda: self._files.open_input_file(self._path(*parts)))

    def write(self, content: bytes | pa.Buffer, *parts: str) -> None:
        with self.writing(*parts) as stream:
            stream.write(content)

    @contextmanager
    def writing(self, *parts: str) -> Iterator[Any]:
        """A file, whole or not at all: in an object store by its nature, elsewhere by a rename. Whoever else writes it has another unfinished one."""
        self.make(*parts[:-1])
        path = self._path(*parts)
        fresh = path if self._whole else self._path(*parts[:-1], f".{parts[-1]}.{secrets.token_hex(8)}{UNFINISHED}")
        with self._try(lambda: self._files.open_output_stream(fresh)) as stream:
            yield stream
        if fresh != path:
            self._files.move(fresh, path)

    @property
    def _whole(self) -> bool:
        return not isinstance(self._files, fs.LocalFileSystem | fs.HadoopFileSystem)

    def make(self, *parts: str) -> None:
        self._try(lambda: self._files.create_dir(self._path(*parts), recursive=True))

    def remove(self, *parts: str) -> None:
        info = self._info(*parts)
        if info.type == fs.FileType.Directory:
            self._try(lambda: self._files.delete_dir(info.path))
        elif info.type == fs.FileType.File:
            self._try(lambda: self._files.delete_file(info.path))

    def parquet(self, *parts: str) -> Iterator[str]:
        """Data files below a folder of it, by their paths in `files`."""
        return (info.path for info in self._below(*parts) if info.path.endswith(".parquet"))

    def sizes(self, *parts: str) -> dict[str, int]:
        """Data files below a folder of it, by their names there, and how many bytes each has."""
        base = self._path(*parts)
        return {info.path.removeprefix(base).lstrip("/"): info.size for info in self._below(*parts) if info.path.endswith(".parquet")}

    def tidy(self, *parts: str) -> None:
        """Remove what writers that were killed left below a folder of it. Readers do not look at it: its name begins with a dot."""
        for info in self._below(*parts):
            if info.path.endswith(UNFINISHED):
                self._files.delete_file(info.path)

    def _below(self, *parts: str) -> Iterator[Any]:
        selector = fs.FileSelector(self._path(*parts), allow_not_found=True, recursive=True)
        for info in self._try(lambda: self._files.get_file_info(selector)):
            if info.type == fs.FileType.File:
                yield info

    @property
    def files(self) -> Any:
        return self._files

    def _path(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *parts])

    def _info(self, *parts: str) -> Any:
        return self._try(lambda: self._files.get_file_info(self._path(*parts)))

    def _try(self, act: Any) -> Any:
        try:
            return act()
        except (pa.ArrowException, OSError) as error:
            kind = UsageError if self.local is not None else BrokerUnavailable
            raise kind(f"{self.text} cannot be used: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
