"""The files of the timer messages together: timer log, timer wheel and ``config/timercheck`` (TimerMessageStore,
TimerCheckpoint; reference store-and-broker §10.2.5, §10.2.6).

The checkpoint says how far the two others may be believed:

    log position    where the timer log was then: what is behind may be known again from the queue
    queue offset    every message before it is in the timer log before that position, or has been delivered
    read time       what that holds for every earlier tick has been delivered, and the deliveries are on the disk

It is written after what it speaks of. Everything can be rebuilt from the queue of timer messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mqspark.errors import is_shortage
from mqspark.store.files import FileLayer, is_disk_full
from mqspark.store.timerlog import TimerLog
from mqspark.store.timerwheel import Page, TimerWheel, save_pages

__all__ = ["TimerCheckpoint", "TimerFiles", "TimerFlush"]

_FIELDS = struct.Struct(">7q")
_FILE_BYTES = 4096


@dataclass(slots=True, frozen=True)
class TimerCheckpoint:
    read_time_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_timestamp_ms: int = 0
    version_counter: int = 0

    @classmethod
    def load(cls, path: Path, files: FileLayer) -> TimerCheckpoint | None:
        """None when there is none."""
        data = files.read(path)
        return cls(*_FIELDS.unpack_from(data)) if data is not None and len(data) >= _FIELDS.size else None

    def encode(self) -> bytes:
        """56 bytes: what the file begins with, and what slaves are told."""
        return _FIELDS.pack(
            self.read_time_ms,
            self.log_position,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.version_timestamp_ms,
            self.version_counter,
        )

    def save(self, path: Path, files: FileLayer) -> None:
        """Blocking; in place, as RocketMQ does. Raises OSError."""
        files.make_directory(path.parent)
        fd = files.open(path, create=True)
        try:
            if files.length(fd) != _FILE_BYTES:
                files.set_length(fd, _FILE_BYTES)
            files.write(fd, self.encode(), 0)
            files.sync(fd)
        finally:
            files.close(fd)


class TimerFiles:
    """``load`` first. One thread owns it; only ``TimerFlush.run`` may be elsewhere."""

    def __init__(
        self,
        root: Path,
        files: FileLayer,
        *,
        precision_ms: int,
        log_file_bytes: int,
        on_failure: Callable[[Path, OSError], None] | None = None,
    ) -> None:
        """``on_failure`` hears of every error but a full disk and want of descriptors or memory, in the thread where it
        happens."""
        self._files = files
        self._on_failure = on_failure
        self._precision_ms = precision_ms
        self._wheel_path = root / "timerwheel"
        self._checkpoint_path = root / "config" / "timercheck"
        self.log = TimerLog(root / "timerlog", files, file_bytes=log_file_bytes)
        self.wheel = TimerWheel()
        self.checkpoint = TimerCheckpoint()
        """The one that is on the disk."""
        self._unfinished: TimerFlush | None = None

    def load(self) -> None:
        """Make the wheel agree with the log, and both end where the log's valid records do. Afterwards
        ``log.position`` before ``checkpoint.log_position`` means that records are lost. Raises StoreCorrupt,
        OSError."""
        self.checkpoint = TimerCheckpoint.load(self._checkpoint_path, self._files) or TimerCheckpoint()
        self.log.load()
        has_wheel = self.wheel.load(self._wheel_path, self._files)
        if not has_wheel and not self.log.files_from(0):
            return
        saved = self.checkpoint
        end = self.log.find_end(max(0, saved.log_position - self.log.file_bytes))
        lost = self.wheel.first_behind(end) if has_wheel else 0
        if lost is not None:
            self._revise(lost)
            self.wheel.clear_behind(end)
        # What is behind may be for an earlier tick and not be delivered, when the clock had gone back.
        self.wheel.clear_before(saved.read_time_ms // self._precision_ms)
        self._revise(saved.log_position)

    def failed(self, error: OSError) -> None:
        """Something could not be written or synced."""
        if self._on_failure is not None and not is_disk_full(error) and not is_shortage(error):
            self._on_failure(self._checkpoint_path, error)

    def _revise(self, begin: int) -> None:
        for start in self.log.files_from(begin):
            positions, records = self.log.records(start)
            is_behind = positions >= begin
            positions, records = positions[is_behind], records[is_behind]
            times_ms = records["written_ms"].astype(np.int64) + records["delay_ms"]
            self.wheel.revise(times_ms // self._precision_ms, positions)

    def flush(self, checkpoint: TimerCheckpoint, min_position: int) -> TimerFlush:
        """A job that puts everything as it is now on the disk, then says so with ``checkpoint``; and removes the
        log's files that only know messages before ``min_position`` of the CommitLog."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            self.wheel.put_back(unfinished.pages)
        paths, directory = self.log.take_unsynced()
        job = TimerFlush(
            self,
            paths if unfinished is None else sorted({*paths, *unfinished.log_paths}),
            directory if unfinished is None else directory or unfinished.directory,
            self.wheel.take_dirty(),
            self.log.drop_before(min_position) + (unfinished.doomed if unfinished is not None else []),
            checkpoint,
        )
        self._unfinished = job
        return job


class TimerFlush:
    """Blocking work; ``done`` on the owner's thread, if ``run`` did not raise."""

    def __init__(
        self,
        owner: TimerFiles,
        log_paths: list[Path],
        directory: Path | None,
        pages: list[Page],
        doomed: list[Path],
        checkpoint: TimerCheckpoint,
    ) -> None:
        self._owner = owner
        self.log_paths = log_paths
        self.directory = directory
        self.pages = pages
        self.doomed = doomed
        self.checkpoint = checkpoint

    def run(self) -> None:
        """Raises OSError."""
        try:
            self._run()
        except OSError as error:
            self._owner.failed(error)
            raise

    def _run(self) -> None:
        files = self._owner._files
        for path in self.log_paths:
            if path in self.doomed:
                continue
            fd = files.open(path)
            try:
                files.sync(fd)
            finally:
                files.close(fd)
        if self.directory is not None:
            files.sync_directory(self.directory)
        if self.pages:
            save_pages(self._owner._wheel_path, self.pages, files)
        self.checkpoint.save(self._owner._checkpoint_path, files)
        for path in self.doomed:
            files.remove(path)
            files.sync_directory(path.parent)  # one by one: what is left must have no gap

    def done(self) -> None:
        self._owner._unfinished = None
        self._owner.checkpoint = self.checkpoint
