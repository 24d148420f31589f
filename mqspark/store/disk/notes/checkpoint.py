"""How far the store is safe on disk: RocketMQ's ``checkpoint``, and the exact ``mqspark.checkpoint`` beside
it.

RocketMQ's file (StoreCheckpoint) holds store timestamps, from which recovery can choose a segment.
``mqspark.checkpoint`` holds a physical offset, from which recovery can start at a record. It counts only
while it has the timestamps of RocketMQ's file: after a RocketMQ broker has run on the directory they differ.

Facts: docs/rocketmq/store.md#checkpoint.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from mqspark.base.config import INT64_MAX
from mqspark.store.disk.files import FileLayer, disk_full_as_typed

_FIELDS = struct.Struct(">5q")
_FILE_BYTES = 4096
_LONGEST_LEAP_MS = 10 * 365 * 86_400_000
"""How far a timestamp may lie in the future, in case the clock was once ahead."""
_SAFETY_MS = 3000
"""RocketMQ's margin between a timestamp in the file and what is certainly on disk."""


_TITLE = b"mqspark-checkpoint-1"


def _mark_crc(text: bytes) -> bytes:
    return f"{zlib.crc32(text):08x}".encode()


def _mark_numbers(data: bytes | None) -> list[int] | None:
    """Position, two times and the number of queues; None for a damaged file, and for the content of another one."""
    text, _, crc = (data or b"").rstrip(b"\n").rpartition(b" ")
    title, *words = text.split(b" ")
    if crc != _mark_crc(text) or title != _TITLE:
        return None
    numbers = [int(word) for word in words]
    return numbers if max(numbers, default=0) <= INT64_MAX else None


@dataclass(slots=True)
class Checkpoint:
    physic_msg_timestamp_ms: int = 0
    """Store time of the last flushed record of the CommitLog."""
    logics_msg_timestamp_ms: int = 0
    """Store time of the last record whose ConsumeQueue entry is flushed."""
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    position: int = -1
    """Everything before this log position is on disk: the bytes of the log and their queue entries. -1:
    unknown. Only in ``mqspark.checkpoint``."""

    queue_count: int = 0
    """Number of queues. Fewer at start: an operator removed some to have them rebuilt. Only in
    ``mqspark.checkpoint``."""

    is_distrusted: bool = False
    """A process of this project has said that the checkpoint counts no more (``distrusted``), and RocketMQ has not
    written one since."""

    @classmethod
    def load(cls, path: Path, mark_path: Path, files: FileLayer) -> Checkpoint:
        """Read both files. A missing or short file counts as zeros."""
        data = files.read(path) or b""
        checkpoint = cls(*_FIELDS.unpack_from(data)) if len(data) >= _FIELDS.size else cls()
        numbers = _mark_numbers(files.read(mark_path))
        if numbers is not None:
            position, physic, logics, queue_count = numbers
            if (physic, logics) == (checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms):
                checkpoint.position = position
                checkpoint.queue_count = queue_count
        is_nothing = not checkpoint.physic_msg_timestamp_ms and not checkpoint.logics_msg_timestamp_ms
        checkpoint.is_distrusted = len(data) >= _FIELDS.size and checkpoint.position < 0 and is_nothing
        return checkpoint

    @property
    def ends_limit(self) -> int:
        """Up to where ``mqspark.ends`` counts. A start that rebuilt queues and was interrupted has left all of it."""
        return INT64_MAX if self.is_distrusted else self.position

    def distrusted(self) -> Checkpoint:
        """One that says nothing of log and queues."""
        return replace(
            self, physic_msg_timestamp_ms=0, logics_msg_timestamp_ms=0, confirm_physical_offset=0, position=-1
        )

    @staticmethod
    def problem(path: Path, mark_path: Path, files: FileLayer, now_ms: int) -> str | None:
        """Why the content of the two files is invalid, or None."""
        data, mark = files.read(path), files.read(mark_path)
        if data is not None and len(data) < _FIELDS.size:
            return f"{path.name} has {len(data)} bytes"
        numbers = _FIELDS.unpack_from(data) if data is not None else (0,) * 5
        if min(numbers[:3]) < 0 or max(numbers[:3]) > now_ms + _LONGEST_LEAP_MS:
            return f"{path.name} has impossible times: {numbers[:3]}"
        if mark is None:
            return None
        found = _mark_numbers(mark)
        if found is None:
            return f"the CRC of {mark_path.name} is wrong, or it has the content of another file"
        if any(numbers) or not any(found[1:3]):
            return None
        return f"{path.name} is empty, unlike {mark_path.name}"  # which has times

    @property
    def safe_timestamp_ms(self) -> int:
        """Records stored up to this time are certainly in the log and in the queues."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - _SAFETY_MS)

    def save(self, path: Path, mark_path: Path, files: FileLayer) -> None:
        """Write and sync both files. Blocking. After a crash in between, the second file does not count.
        Raises DiskFull when there is no space: the previous checkpoint then stays valid. Raises OSError when
        a sync failed."""
        fields = (
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        self._write(path, _FIELDS.pack(*fields), _FILE_BYTES, files)
        if self.position >= 0:
            numbers = (self.position, fields[0], fields[1], self.queue_count)
            text = _TITLE + b"".join(b" %020d" % number for number in numbers)
            line = text + b" " + _mark_crc(text) + b"\n"
            self._write(mark_path, line, len(line), files)

    @staticmethod
    def _write(path: Path, data: bytes, length: int, files: FileLayer) -> None:
        # Written in place, as RocketMQ does: the old content stays true until it is replaced.
        with disk_full_as_typed(path.name):
            fd = files.open(path, create=True)
        try:
            with disk_full_as_typed(path.name):
                if files.length(fd) != length:
                    files.set_length(fd, length)
                files.write(fd, data, 0)
            files.sync(fd)
        finally:
            files.close(fd)
