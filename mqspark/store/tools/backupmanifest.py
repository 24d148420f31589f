"""What a backup of a store directory consists of, and whether it still does.

    mqspark.backup       the manifest: JSON in one line, and its SHA-256 in the next
    log/<start>          segments of the CommitLog, the last one up to the end of its last record
    files/<n>/<path>     the other files, as the n-th backup into the directory found them
    lock

A manifest replaces the one before once everything that it names is on disk, and only then is removed what it does not
name. So a directory has one backup at any time, or none while the first one is made. A segment that is longer than its
manifest says is the work of a backup that did not finish.

Each file has a checksum for every 16 MiB, so that damage has a place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mqspark.base.names import path_below
from mqspark.errors import IllegalName, StoreCorrupt
from mqspark.store.disk.files import FileLayer

FORMAT = 1
MANIFEST = "mqspark.backup"
LOG, FILES, LOCK = "log", "files", "lock"
BLOCK_BYTES = 16 << 20
PIECE_BYTES = 1 << 20

Pace = Callable[[int], None]
"""Called with the number of bytes that were read; may wait."""


class Stamp(msgspec.Struct, frozen=True, rename="camel"):
    """What changes when a file is written or replaced."""

    inode: int
    size_bytes: int
    modified_ns: int


class CopiedFile(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    """In the store directory; of a segment, its name."""
    place: str
    """In the backup."""
    size_bytes: int
    sha256: tuple[str, ...]
    """The hash of every block."""
    stamp: Stamp
    """The stamp of the file that was copied."""
    segment_bytes: int = 0
    """The length of a segment's file; 0 for other files."""

    def blocks(self) -> Iterator[tuple[int, int, str]]:
        """Begin, end and checksum of each block."""
        for number, digest in enumerate(self.sha256):
            low = number * BLOCK_BYTES
            yield low, min(low + BLOCK_BYTES, self.size_bytes), digest


class QueueBegin(msgspec.Struct, frozen=True, rename="camel"):
    """A queue whose first messages have left the log: none of its offsets before is assigned again."""

    topic: str
    queue_id: int
    offset: int
    """The first whose message is in the log or comes next."""
    last_entry: str = ""
    """The last entry of a BatchConsumeQueue, which keeps the offset, in hexadecimal."""


class BackupManifest(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    began_ms: int
    ended_ms: int
    version: str
    """The version of mqspark."""
    log_begin: int
    log_end: int
    newest_ms: int
    """When the last message was stored; 0 for an empty log."""
    log: tuple[CopiedFile, ...]
    files: tuple[CopiedFile, ...]
    queues: tuple[QueueBegin, ...] = ()
    queue_file_bytes: int = 0
    batch_queue_file_bytes: int = 0
    store_id: str = ""
    cluster: str = ""
    broker_name: str = ""
    broker_id: int = -1
    format: int = FORMAT

    @property
    def is_replica(self) -> bool:
        """Whether the store is one of a set in controller mode."""
        return any(file.path == "mqspark.member" for file in self.files)

    @property
    def copies(self) -> tuple[CopiedFile, ...]:
        return self.files + self.log

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.copies)


class BackupFault(NamedTuple):
    """Bytes of a backup that are not those that were copied."""

    place: str
    low: int
    high: int
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class _Format(msgspec.Struct):
    format: int


def load_manifest(directory: Path, files: FileLayer) -> BackupManifest | None:
    """None if there is none. Raises StoreCorrupt for one that is damaged or of a newer format, OSError."""
    path = directory / MANIFEST
    data = files.read(path)
    if data is None:
        return None
    text, _, digest = data.removesuffix(b"\n").rpartition(b"\n")
    if digest.decode("ascii", "replace") != hashlib.sha256(text).hexdigest():
        raise StoreCorrupt(f"{path} is damaged: its checksum is wrong", path=str(path))
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != FORMAT:
            raise StoreCorrupt(
                f"{path} has format {found}, this version reads {FORMAT}: use the version that wrote it",
                path=str(path),
            )
        return msgspec.json.decode(text, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{path} is damaged: {error}", path=str(path)) from error


def require_manifest(directory: Path, files: FileLayer) -> BackupManifest:
    """Raises StoreCorrupt without a backup, as ``load_manifest``."""
    manifest = load_manifest(directory, files)
    if manifest is None:
        raise StoreCorrupt(
            f"{directory} has no complete backup: {MANIFEST}, which is written last, is missing",
            path=str(directory),
        )
    return manifest


def encode_manifest(manifest: BackupManifest) -> bytes:
    text = msgspec.json.encode(manifest)
    return b"%s\n%s\n" % (text, hashlib.sha256(text).hexdigest().encode())


def place_below(root: Path, path: str) -> Path:
    """Where a path of a manifest is below a directory. Raises StoreCorrupt."""
    try:
        return path_below(root, *path.split("/"))
    except IllegalName as error:
        raise StoreCorrupt(f"a manifest names {path!r}: {error}") from error


def missing_files(directory: Path, copies: Sequence[CopiedFile]) -> Iterator[BackupFault]:
    """The files that are gone or too short, by their lengths alone."""
    for file in copies:
        path = place_below(directory, file.place)
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            yield BackupFault(file.place, 0, file.size_bytes, "it is missing")
            continue
        if length < file.size_bytes:
            text = f"it ends at byte {length}, and had {file.size_bytes}"
            yield BackupFault(file.place, length, file.size_bytes, text)


def damaged_blocks(
    directory: Path, file: CopiedFile, files: FileLayer, pace: Pace = lambda count: None
) -> Iterator[BackupFault]:
    """The blocks of a copy that are not what was copied. Raises OSError."""
    fd = files.open_read(place_below(directory, file.place))
    try:
        for low, high, digest in file.blocks():
            hashed = hashlib.sha256()
            for piece in pieces(files, fd, low, high):
                hashed.update(piece)
                pace(len(piece))
            if hashed.hexdigest() != digest:
                yield BackupFault(
                    file.place, low, high, f"its bytes from {low} to {high} are not those that were copied"
                )
    finally:
        files.close(fd)


def pieces(files: FileLayer, fd: int, low: int, high: int) -> Iterator[memoryview]:
    """Bytes of a file, the same memory each time. What is missing at its end is left out. Raises OSError."""
    buffer = memoryview(bytearray(min(PIECE_BYTES, max(high - low, 1))))
    while low < high:
        count = files.read_into(fd, buffer[: min(len(buffer), high - low)], low)
        if not count:
            return
        yield buffer[:count]
        low += count
