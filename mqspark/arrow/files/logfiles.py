"""The files of a CommitLog, in a directory here or at any fsspec URL (``s3://...``, ``memory://...``).

A remote segment is copied piece by piece to a temporary file when it is read, so that all readers work on mapped
files. Must not know Spark, and imports fsspec only if a URL requires it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mqspark.arrow.files.locations import filesystem_of, is_remote, local_path
from mqspark.errors import ConfigError
from mqspark.store.disk.layout import file_start

_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """One segment."""

    start: int
    """Physical offset of its first byte."""
    length: int
    url: str
    stamp: str
    """Changes when the file changes."""


def list_log(url: str) -> list[LogFile]:
    """The segments under ``url``, oldest first. Raises FileNotFoundError, ConfigError when fsspec is missing."""
    found = list(_list_remote(url) if is_remote(url) else _list_local(local_path(url)))
    # A crash during the creation of a file leaves an empty one.
    return sorted(each for each in found if each.length > 0)


def find_log(url: str) -> list[LogFile]:
    """Like ``list_log``, for a log that must exist. Raises ConfigError."""
    try:
        log = list_log(url)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError.of("store", f"there is no CommitLog at {url}") from None
    if not log:
        raise ConfigError.of("store", f"there is no segment at {url}")
    return log


def segment_bytes_of(log: list[LogFile]) -> int:
    """The length of a full segment; 0 if there is none."""
    return max((each.length for each in log), default=0)


def _list_local(directory: Path) -> Iterator[LogFile]:
    with os.scandir(directory) as entries:
        for entry in entries:
            start = file_start(entry.name)
            if start is not None:
                status = entry.stat()
                yield LogFile(start, status.st_size, entry.path, str(status.st_mtime_ns))


def _list_remote(url: str) -> Iterator[LogFile]:
    filesystem, root = filesystem_of(url)
    for info in filesystem.ls(root, detail=True):
        start = file_start(info["name"].rpartition("/")[2])
        if start is not None and info["type"] == "file":
            stamp = next(
                (str(info[key]) for key in ("ETag", "mtime", "created", "last_modified") if key in info), ""
            )
            yield LogFile(start, int(info["size"]), filesystem.unstrip_protocol(info["name"]), stamp)


@contextmanager
def local_copy(file: LogFile) -> Iterator[Path]:
    """The segment as a local file; a copy of a remote one is removed afterwards."""
    if not is_remote(file.url):
        yield local_path(file.url)
        return
    filesystem, path = filesystem_of(file.url)
    with tempfile.NamedTemporaryFile(prefix="mqspark-segment-") as copy:
        with filesystem.open(path, "rb") as source:
            shutil.copyfileobj(source, copy, _COPY_BYTES)
        copy.flush()
        yield Path(copy.name)


@contextmanager
def local_log(url: str | None) -> Iterator[str | None]:
    """A log as a directory of this host: a copy of a remote one, which is removed afterwards. Raises ConfigError."""
    if url is None or not is_remote(url):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="mqspark-log-") as directory:
        for file in find_log(url):
            with local_copy(file) as path:
                shutil.copyfile(path, Path(directory, f"{file.start:020d}"))
        yield directory
