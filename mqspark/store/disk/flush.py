"""Blocking disk work as objects: made and finished on the loop thread, run in any thread.

``run`` never raises: it keeps the error, and the store turns it into its read-only state when the loop hands
the job back. Nothing is synced twice: after one failure the kernel may have dropped the pages and would lie
the second time. A job that only lacked a descriptor or memory has failed in nothing: it is run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mqspark.errors import NotNow
from mqspark.store.disk.checkpoint import Checkpoint
from mqspark.store.disk.durable import DurableNote
from mqspark.store.disk.files import FileLayer, failed_sync
from mqspark.store.disk.layout import StorePaths

__all__ = ["CheckpointJob", "FlushJob", "Job", "Progress", "ReadAheadJob", "joined"]


def joined(buffers: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """As one buffer; a single one, the records of a large batch, is not copied."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


class Job(Protocol):
    def run(self) -> None:
        """Blocking; any thread; never raises."""

    def done(self) -> None:
        """On the loop thread, after ``run``."""


@dataclass(slots=True)
class Progress:
    """How far the store is. Positions are physical offsets; everything before them is meant."""

    written: int
    durable: int
    acked: int
    """Producers whose records end here or before may be told OK."""
    arrivals: list[tuple[str, int, int]] = field(default_factory=list)
    """(topic, queue id, new max offset): what became visible to consumers."""
    failed: str | None = None
    """Why the store accepts no writes any more."""


class FlushJob:
    """Write of what has to go into the active file (``offset``, ``buffers``) and fdatasync of the log up to ``end``,
    and a note of that (``durable.py``): all of it by ``run``, or by ``write``, a sync of ``active`` and ``synced``."""

    __slots__ = (
        "_buffers",
        "_directories",
        "_files",
        "_note",
        "_offset",
        "active",
        "end",
        "error",
        "left",
        "step",
        "store_timestamp_ms",
    )

    def __init__(
        self,
        files: FileLayer,
        left: list[int],
        active: int,
        directories: list[Path],
        end: int,
        store_timestamp_ms: int,
        note: DurableNote,
        offset: int = 0,
        buffers: Sequence[bytes | memoryview] = (),
    ) -> None:
        self._files = files
        self._note = note
        self._offset = offset
        self._buffers = buffers
        self._directories = directories
        self.left = left
        """Descriptors of segments that are complete; closed when the job is."""
        self.active = active
        self.end = end
        self.store_timestamp_ms = store_timestamp_ms
        self.step = "writing"
        """What failed, if something did."""
        self.error: OSError | None = None

    @property
    def unwritten_bytes(self) -> int:
        """Of what ``write`` writes."""
        return sum(map(len, self._buffers))

    @property
    def syncs_only_active(self) -> bool:
        """No segment was completed and none is new."""
        return not self.left and not self._directories

    def write(self) -> None:
        """What has to go into the file; the same bytes at the same place however often, in whatever thread. Raises
        OSError."""
        if self._buffers:
            self._files.write(self.active, joined(self._buffers), self._offset)

    def run(self) -> None:
        try:
            self.write()
            self.step = "syncing"
            for fd in self.left:
                self._files.sync(fd)
            self._files.sync(self.active)
            for directory in self._directories:
                self._files.sync_directory(directory)
            self._note.write(self.end)
        except OSError as error:
            self.error = error

    def synced(self, error_number: int) -> None:
        """How the sync ended that others did: 0, or its errno."""
        self.step = "syncing"
        try:
            if error_number:
                raise failed_sync(error_number)
            self._note.write(self.end)
        except OSError as error:
            self.error = error


class ReadAheadJob:
    """Bring blocks that nothing was written to yet into the page cache, so that the write which gets there only copies:
    fresh pages cost it many times as much (AllocateMappedFileService warms files)."""

    __slots__ = ("_files", "_length", "_offset", "_path")

    def __init__(self, files: FileLayer, path: Path, offset: int, length: int) -> None:
        self._files = files
        self._path = path
        self._offset = offset
        self._length = length

    def run(self) -> None:
        with contextlib.suppress(OSError):  # a hint: what is wrong with the file the next write finds out
            fd = self._files.open(self._path)
            try:
                self._files.read_ahead(fd, self._offset, self._length)
            finally:
                self._files.close(fd)

    def done(self) -> None:
        """Nothing depends on it."""


class CheckpointJob:
    """Sync the queue files written so far, then say so in the checkpoint."""

    __slots__ = ("_checkpoint", "_files", "_finish", "_paths", "directories", "error", "queue_files")

    def __init__(
        self,
        files: FileLayer,
        paths: StorePaths,
        checkpoint: Checkpoint,
        queue_files: Iterable[str],
        directories: Iterable[str],
        finish: Callable[[CheckpointJob], None],
    ) -> None:
        self._files = files
        self._paths = paths
        self._checkpoint = checkpoint
        self.queue_files = list(queue_files)
        self.directories = list(directories)
        self._finish = finish
        self.error: OSError | NotNow | None = None
        """DiskFull: all is synced, but for want of space nothing says so. Of a shortage (``is_shortage``): it may be
        that nothing is synced."""

    def run(self) -> None:
        files = self._files
        try:
            for path in self.queue_files:
                try:
                    fd = files.open(path)
                except FileNotFoundError:
                    continue  # its topic was deleted since
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
            for directory in self.directories:
                try:
                    files.sync_directory(directory)
                except FileNotFoundError:
                    continue
            self._checkpoint.save(self._paths.checkpoint, self._paths.mark, files)
        except (OSError, NotNow) as error:
            self.error = error

    def done(self) -> None:
        self._finish(self)
