"""Small files at a path of this host or at any fsspec URL: names, bytes, and atomic writes.

Must not know Spark, and imports fsspec only if a URL requires it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, Any

from mqspark.base.wholefile import replace_file, sync
from mqspark.errors import ConfigError, MQError

MAX_SMALL_FILE_BYTES = 64 << 20
"""A manifest of 200,000 queues with long names has 40 MiB."""
_READ_BYTES = 1 << 20
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"})


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def local_path(url: str) -> Path:
    """The path that a local URL or path names; Hadoop writes ``file:/path``."""
    return Path(url.removeprefix("file://").removeprefix("file:"))


def join(url: str, *parts: str) -> str:
    return "/".join((url.rstrip("/"), *parts))


def filesystem_of(url: str) -> tuple[Any, str]:
    """The fsspec file system and the path in it. Raises ConfigError when fsspec is missing."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(
            f"{url}: reading from there needs fsspec: pip install 'mqspark[archive]'", key="url"
        ) from None
    filesystem, root = url_to_fs(url)
    return filesystem, root


def make_parent(filesystem: Any, path: str) -> None:
    """Make the directory of a file to be written. Object stores have none: there it would be the bucket, whose name
    may be misspelt."""
    protocol = filesystem.protocol
    if not _OBJECT_STORES & set([protocol] if isinstance(protocol, str) else protocol):
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)


def names(url: str) -> list[str]:
    """The entries directly under ``url``, sorted; empty if it does not exist."""
    try:
        if not is_remote(url):
            return sorted(os.listdir(local_path(url)))
        filesystem, root = filesystem_of(url)
        filesystem.invalidate_cache()
        return sorted(name.rstrip("/").rpartition("/")[2] for name in filesystem.ls(root, detail=False))
    except FileNotFoundError:
        return []


def open_input(url: str) -> IO[bytes]:
    if not is_remote(url):
        return local_path(url).open("rb")
    filesystem, path = filesystem_of(url)
    # A list from before does not have what another process has written since.
    filesystem.invalidate_cache(path)
    opened: IO[bytes] = filesystem.open(path, "rb")
    return opened


def read_bytes(url: str, most: int | None = None) -> bytes:
    """A whole file of at most ``most`` bytes, or MAX_SMALL_FILE_BYTES. Raises MQError for a larger one, of which no
    more is read, and OSError for one that ends early."""
    most = MAX_SMALL_FILE_BYTES if most is None else most
    parts: list[bytes] = []
    left = most + 1
    with open_input(url) as file:
        # A read of the whole bound would allocate as much for the smallest file.
        while part := file.read(min(left, _READ_BYTES)):
            parts.append(part)
            left -= len(part)
        size = getattr(file, "size", None)  # of an object
    if left <= 0:
        raise MQError(f"{url} has more than {most} bytes, which no file of its kind has")
    if isinstance(size, int) and (got := sum(map(len, parts))) != size:
        raise OSError(f"{url} has {size} bytes, and {got} were read")
    return b"".join(parts)


def write_bytes(url: str, data: bytes) -> None:
    """Writes all or nothing: by rename on this host; object stores write whole objects. On return it outlives a power
    cut: the log is deleted and messages are passed over because of such files."""
    if is_remote(url):
        filesystem, path = filesystem_of(url)
        make_parent(filesystem, path)
        filesystem.pipe_file(path, data)
        return
    target = local_path(url)
    made = [each for each in target.parents if not each.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, data)
    sync(*(each.parent for each in made))


def remove_tree(url: str) -> None:
    """Remove a directory and its contents; does nothing if it does not exist."""
    if is_remote(url):
        filesystem, path = filesystem_of(url)
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)
    elif local_path(url).exists():
        shutil.rmtree(local_path(url))
