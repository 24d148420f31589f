"""Blocking disk work as objects: created and finished on the loop thread, run in any thread.

An error always reaches the owner of the job: ``done`` is called whatever ``run`` did. After a failed sync of the
log or of queue files the store becomes read-only. Nothing is synced twice: after a failure the kernel may have
dropped the pages, and a second sync would falsely succeed. A job that only lacked a descriptor or memory has not
failed; it is run again.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from mqspark.errors import NotNow
from mqspark.store.disk.files import FileLayer, failed_sync
from mqspark.store.disk.filesystemsync import FilesystemSync
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.disk.notes.durable import DurableNote

_MANY_FILES = 256
"""From so many on, one sync of the file system takes less time than theirs, though it writes what others wrote, too."""


def joined(buffers: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """The buffers as one. A single buffer, such as the records of a large batch, is not copied."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


class Job(Protocol):
    """Blocking work. ``done`` is always called once after ``run``, so that an owner never waits for a job that has
    failed."""

    def run(self) -> None:
        """The work, in any thread. An error that the owner expects, such as a full disk, may be kept in the job; every
        other error is raised."""

    def done(self, error: BaseException | None = None) -> None:
        """On the owner's thread; ``error`` is what ``run`` raised. Afterwards the owner can begin another job, or is
        visibly failed."""


class PreparedJob(Job):
    """A job that begins with long work on the loop's thread. It is done in slices, between which other requests are
    served."""

    @abstractmethod
    def prepare(self) -> Iterator[None]:
        """Called before ``run``. What is left of it, ``run`` does itself: an owner with one thread need not call it."""


def run_here(job: Job) -> None:
    """Run a job and finish it on this thread. Raises what ``run`` raises, after ``done``."""
    try:
        job.run()
    except BaseException as error:
        job.done(error)
        raise
    job.done()


class StoreProgress(Struct, gc=False):
    """State of the store. Positions are physical offsets and refer to everything before them."""

    written: int
    durable: int
    acked: int
    """Producers whose records end at or before this may be answered OK."""
    arrivals: list[tuple[str, int, int]]
    """(topic, queue id, new max offset) of queues with newly visible messages."""
    failed: str | None
    """Why the store is read-only, or None."""


class FlushJob(Struct, eq=False):
    """Writes pending bytes to the active file (``offset``, ``buffers``), syncs the log up to ``end``, and
    notes that (``durable.py``). Either ``run`` does all three, or the caller calls ``write``, syncs
    ``active`` itself, and calls ``synced``."""

    _files: FileLayer
    left: list[int]
    """Descriptors of finished segments; closed after the job."""
    active: int
    _directories: list[Path]
    end: int
    store_timestamp_ms: int
    _note: DurableNote
    _offset: int = 0
    _buffers: Sequence[bytes | memoryview] = ()
    unwritten_bytes: int = 0
    """Number of bytes that ``write`` writes: those of ``buffers``, which are many."""
    step: str = "writing"
    """The current step, which names the failed one after an error."""
    error: Exception | None = None
    """Whatever it is, ``end`` is not synced."""

    @property
    def syncs_only_active(self) -> bool:
        """Whether no segment was completed and none is new."""
        return not self.left and not self._directories

    def write(self) -> None:
        """Write the pending bytes. Repeating it writes the same bytes to the same place, in any thread.
        Raises OSError."""
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
        except Exception as error:
            self.error = error

    def synced(self, error_number: int) -> None:
        """Record the result of a sync done by the caller: 0 or its errno."""
        self.step = "syncing"
        try:
            if error_number:
                raise failed_sync(error_number)
            self._note.write(self.end)
        except Exception as error:
            self.error = error


class ReadAheadJob:
    """Brings reserved blocks without data into the page cache, so that the write that reaches them only
    copies. Fresh pages would cost it many times as much (AllocateMappedFileService warms files)."""

    __slots__ = ("_files", "_length", "_offset", "_path")

    def __init__(self, files: FileLayer, path: Path, offset: int, length: int) -> None:
        self._files = files
        self._path = path
        self._offset = offset
        self._length = length

    def run(self) -> None:
        with contextlib.suppress(OSError):  # a hint: the next write meets any error
            fd = self._files.open(self._path)
            try:
                self._files.read_ahead(fd, self._offset, self._length)
            finally:
                self._files.close(fd)

    def done(self, error: BaseException | None = None) -> None:
        """Nothing to finish, and nobody waits."""


class UnmapJob(PreparedJob):
    """Frees maps that are used no more: a gigabyte takes the kernel milliseconds."""

    __slots__ = ("_slices", "_unmapped")

    def __init__(self, unmapped: Iterable[list[object]], slices: Iterable[None]) -> None:
        """``slices``: fill the lists further."""
        self._unmapped = unmapped
        self._slices = iter(slices)

    def prepare(self) -> Iterator[None]:
        return self._slices

    def run(self) -> None:
        for _ in self._slices:
            continue
        for maps in self._unmapped:
            with contextlib.suppress(IndexError):  # the loop's thread may free them, too
                while True:
                    maps.pop()

    def done(self, error: BaseException | None = None) -> None:
        """Nothing to finish, and nobody waits."""


class CheckpointJob(PreparedJob):
    """Syncs the queue files written so far, then records that in the checkpoint."""

    __slots__ = (
        "_before_save",
        "_checkpoint",
        "_files",
        "_filesystem",
        "_finish",
        "_paths",
        "_slices",
        "directories",
        "error",
        "queue_files",
    )

    def __init__(
        self,
        files: FileLayer,
        paths: StorePaths,
        checkpoint: Checkpoint,
        queue_files: set[str],
        directories: set[str],
        finish: Callable[[CheckpointJob], None],
        before_save: Callable[[], None] = lambda: None,
        filesystem: FilesystemSync | None = None,
        slices: Iterable[None] = (),
    ) -> None:
        """``before_save`` is called once the queues are synced, in the thread of ``run``. Blocking. Raises OSError,
        DiskFull. ``filesystem``: that of most files, which is synced as a whole when there are many. ``slices``: what
        ``prepare`` does; may raise OSError."""
        self._before_save = before_save
        self._filesystem = filesystem
        self._files = files
        self._paths = paths
        self._checkpoint = checkpoint
        self._slices = iter(slices)
        self.queue_files = queue_files
        self.directories = directories
        self._finish = finish
        self.error: BaseException | None = None
        """DiskFull: everything is synced, but the checkpoint could not be written. A shortage
        (``is_shortage``), or any error but OSError: possibly nothing is synced."""

    def prepare(self) -> Iterator[None]:
        return self._slices

    def run(self) -> None:
        files = self._files
        try:
            for _ in self._slices:
                continue
            self._sync_together()
            for path in self._left(self.queue_files):
                try:
                    fd = files.open(path)
                except FileNotFoundError:
                    continue  # its topic was deleted since
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
            for directory in self._left(self.directories):
                try:
                    files.sync_directory(directory)
                except FileNotFoundError:
                    continue
            self._before_save()
            self._checkpoint.save(self._paths.checkpoint, self._paths.mark, files)
            for paths in (self.queue_files, self.directories):
                while paths:  # one by one: the loop would wait while very many are freed at once
                    paths.pop()
        except (OSError, NotNow) as error:
            self.error = error

    def _sync_together(self) -> None:
        """Sync the file system if that is cheaper. When it fails, each file says whether it is concerned."""
        if len(self.queue_files) + len(self.directories) < _MANY_FILES or self._filesystem is None:
            self._filesystem = None
            return
        try:
            self._filesystem.sync()
        except OSError:
            self._filesystem = None

    def _left(self, paths: set[str]) -> Iterator[str]:
        """Those that the sync of the file system did not sync."""
        filesystem = self._filesystem
        return (path for path in paths if filesystem is None or not filesystem.has(path))

    def done(self, error: BaseException | None = None) -> None:
        self.error = error or self.error
        self._finish(self)
