"""The files of timer messages: timer log, timer wheel and ``config/timercheck`` (TimerMessageStore,
TimerCheckpoint).

The checkpoint tells how far the two others are valid:

    log position    end of the timer log then: what follows can be read again from the queue
    queue offset    every message before it is in the timer log before that position, or has been delivered
    read time       messages of every earlier tick have been delivered, and the deliveries are on disk

RocketMQ's 56 bytes are followed by an extension that RocketMQ ignores: a word, the number of used slots of
the wheel, the CRC-32 of everything before, a digest of these slots, and again the CRC-32 of everything before.
After RocketMQ has written the checkpoint the CRCs are wrong, and the extension does not count.

The checkpoint is written after what it refers to. Everything can be rebuilt from the queue of timer messages.

Facts: docs/rocketmq/later.md#timer-check-point.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mqspark.errors import ProtocolError, StoreCorrupt, is_shortage
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.diskjobs import PreparedJob
from mqspark.store.disk.files import FileLayer, is_disk_full
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.timer.timerlog import RECORD_BYTES, TimerLog
from mqspark.store.timer.timerwheel import SLOTS, Seal, Snapshot, TimerWheel, save_pages

_FIELDS = struct.Struct(">7q")
_SEAL = struct.Struct(">8sq")
_SEAL_WORD = b"mqspark1"
_CRC = struct.Struct(">I")
_DIGEST = struct.Struct(">Q")
_FILE_BYTES = 4096
READ_AGAIN = 1 << 62
"""Log position of a checkpoint while messages are read again: no log reaches it."""
_UNSAVED_RECORDS = 1 << 16
"""Last records of the timer log that the wheel's file may be missing; it certainly has all before them."""


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
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """From what a master sends. Raises ProtocolError."""
        if len(data) < _FIELDS.size:
            raise ProtocolError(f"a timer checkpoint has {len(data)} bytes instead of {_FIELDS.size}")
        found = cls(*_FIELDS.unpack_from(data))
        if min(found.read_time_ms, found.queue_offset, found.master_queue_offset) < 0:
            raise ProtocolError(f"a timer checkpoint is impossible: {found}")
        return found

    @classmethod
    def load(cls, path: Path, files: FileLayer) -> TimerCheckpoint | None:
        """None when there is no file."""
        data = files.read(path)
        return cls(*_FIELDS.unpack_from(data)) if data is not None and len(data) >= _FIELDS.size else None

    def encode(self) -> bytes:
        """The 56 bytes that begin the file and are sent to slaves."""
        return _FIELDS.pack(
            self.read_time_ms,
            self.log_position,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.version_timestamp_ms,
            self.version_counter,
        )

    def save(self, path: Path, files: FileLayer, seal: Seal) -> None:
        """Write in place, as RocketMQ does. ``seal``: of the wheel. Blocking. Raises OSError."""
        text = self.encode() + _SEAL.pack(_SEAL_WORD, seal.used)
        text += _CRC.pack(zlib.crc32(text)) + _DIGEST.pack(seal.digest)
        files.make_directory(path.parent)
        fd = files.open(path, create=True)
        try:
            if files.length(fd) != _FILE_BYTES:
                files.set_length(fd, _FILE_BYTES)
            files.write(fd, text + _CRC.pack(zlib.crc32(text)), 0)
            files.sync(fd)
        finally:
            files.close(fd)


class TimerFiles:
    """Call ``load`` first. One thread owns it; only ``TimerFlush.run`` may run in another."""

    def __init__(
        self,
        root: Path,
        files: FileLayer,
        *,
        precision_ms: int,
        log_file_bytes: int,
        on_failure: Callable[[Path, OSError], None] | None = None,
        note: Note = lambda damage: None,
        budget: MapBudget | None = None,
    ) -> None:
        """``on_failure`` is called for every error except a full disk and what ``is_shortage`` names, in the
        thread where it happens. ``note`` receives damage. ``budget``: as of ``TimerLog``."""
        self._files = files
        self._on_failure = on_failure
        self._note = note
        self._precision_ms = precision_ms
        self._wheel_path = root / "timerwheel"
        self._checkpoint_path = root / "config" / "timercheck"
        self.log = TimerLog(root / "timerlog", files, file_bytes=log_file_bytes, budget=budget)
        self.wheel = TimerWheel()
        self.checkpoint = TimerCheckpoint()
        """The checkpoint on disk."""
        self.is_reset = False
        """The checkpoint was invalid. Which messages of the queue are in the log has to be read from the log
        itself."""
        self._unfinished: TimerFlush | None = None

    def load(self, now_ms: int = 1 << 60, queue_end: int = 1 << 60, *, clean: bool = False) -> list[int]:
        """Make the wheel consistent with the log, and end both where the log's valid records end. If
        ``log.position`` is then less than ``checkpoint.log_position``, records are lost. Returns the positions of
        records that the wheel had in slots of other ticks: one of the two is wrong. Raises StoreCorrupt, OSError.

        ``queue_end``: end of the queue of timer messages. ``clean``: the last process has saved everything.
        An implausible checkpoint is ignored, and a wheel that contradicts the log is rebuilt from it.
        """
        data = self._files.read(self._checkpoint_path)
        self.checkpoint = TimerCheckpoint.load(self._checkpoint_path, self._files) or TimerCheckpoint()
        self.log.load()
        has_wheel = self._load_wheel()
        found, (sealed, digest) = self.wheel.seal, _sealed(data)
        is_lost = has_wheel and self._is_wheel_lost(found.used, sealed, clean=clean)
        is_other = has_wheel and digest is not None and found.digest != digest
        why = self._why_invalid(data, now_ms, queue_end)
        if why:
            self._reset(why)
        elif not has_wheel and sealed:
            text = "timerwheel is missing; rebuilt from the timer log"
            self._note(Damage("timer.wheel", Outcome.HEALED, text))
        if not has_wheel and not self.log.files_from(0):
            return []
        saved = self.checkpoint
        if why:
            end = self.log.find_end(0)
            self.wheel.clear_behind(end)
            # The wheel has the waiting messages. The most recent records may be missing in its file.
            self._revise(end - _UNSAVED_RECORDS * RECORD_BYTES if has_wheel else 0)
            return self._check_wheel(0, is_lost=False)
        is_synced = saved.log_position != READ_AGAIN
        end = self.log.find_end(max(0, saved.log_position - self.log.file_bytes) if is_synced else 0)
        lost = self.wheel.first_behind(end) if has_wheel else 0
        if lost is not None:
            self._revise(lost)
            self.wheel.clear_behind(end)
        if is_other:
            # After a kill it may be newer than the checkpoint. What is not due yet is in each that is not older.
            is_lost = is_lost or clean or not self._has_all(now_ms // self._precision_ms, saved.log_position)
        if end < saved.log_position:
            self.wheel.clear_all()  # it does not have what was read again since it was saved
            self._revise(0)
        # Later records may belong to an earlier tick and be undelivered, if the clock went back.
        self.wheel.clear_before(saved.read_time_ms // self._precision_ms)
        self._revise(saved.log_position)
        if end < saved.log_position:
            text = (
                f"it ends at {end}, before {saved.log_position}; its messages are read again from their queue"
            )
            self._note(Damage("timer.log", Outcome.HEALED, text))
        return self._check_wheel(saved.read_time_ms // self._precision_ms, is_lost=is_lost)

    def discard(self) -> None:
        """Remove wheel and log; read the checkpoint. In place of ``load``. Raises OSError."""
        self._files.remove(self._wheel_path)
        self.log.remove_all()
        self.checkpoint = TimerCheckpoint.load(self._checkpoint_path, self._files) or TimerCheckpoint()

    @property
    def is_flushing(self) -> bool:
        """Whether a job of ``flush`` is not done."""
        return self._unfinished is not None

    def restart(self, checkpoint: TimerCheckpoint) -> None:
        """Start again with an empty wheel and log, and ``checkpoint``. Not while ``is_flushing``. Raises OSError."""
        self.wheel.restart()
        self.log.restart()
        self._files.remove(self._wheel_path)
        self.is_reset = False
        checkpoint.save(self._checkpoint_path, self._files, Seal(0, 0))
        self.checkpoint = checkpoint

    def read_again(self) -> None:
        """Until another checkpoint is saved, let each start go on reading messages again behind the log's last one.
        Raises OSError."""
        self._files.remove(self._wheel_path)  # the log has all of it
        self.checkpoint = replace(self.checkpoint, log_position=READ_AGAIN)
        self.checkpoint.save(self._checkpoint_path, self._files, Seal(0, 0))

    def _load_wheel(self) -> bool:
        try:
            return self.wheel.load(self._wheel_path, self._files)
        except StoreCorrupt as error:
            self._note(Damage("timer.wheel", Outcome.HEALED, f"{error}; rebuilt from the timer log"))
            self._files.remove(self._wheel_path)
            return False

    def _why_invalid(self, data: bytes | None, now_ms: int, queue_end: int) -> str:
        """Why the checkpoint's file is invalid; empty when it is valid."""
        if data is None:
            return ""
        if len(data) < _FIELDS.size:
            return f"it has {len(data)} bytes"
        if _is_flipped(data):
            return "its CRC is wrong in one byte"
        if self.checkpoint == TimerCheckpoint() and self.log.files_from(0):
            return "it is empty"
        return "" if self._is_plausible(now_ms, queue_end) else f"{self.checkpoint} is impossible"

    def _is_plausible(self, now_ms: int, queue_end: int) -> bool:
        """Whether the checkpoint is possible. A clock that went back leaves a read time in the future, but
        not by more than a turn of the wheel."""
        saved = self.checkpoint
        numbers = (saved.read_time_ms, saved.log_position, saved.queue_offset, saved.master_queue_offset)
        starts = self.log.files_from(0)
        # All of it may be lost, whatever was there.
        farthest = starts[-1] + 2 * self.log.file_bytes if starts else saved.log_position
        return (
            min(numbers) >= 0
            and saved.read_time_ms <= now_ms + SLOTS * self._precision_ms
            and (saved.log_position <= farthest or saved.log_position == READ_AGAIN)
            and max(saved.queue_offset, saved.master_queue_offset) <= queue_end
        )

    def _reset(self, why: str) -> None:
        self.is_reset = True
        self.checkpoint = TimerCheckpoint()
        text = (
            f"config/timercheck: {why}; waiting messages are read from the wheel, the timer log and the queue"
        )
        self._note(Damage("timer.checkpoint", Outcome.HEALED, text))

    def _is_wheel_lost(self, used_before: int, sealed: int | None, *, clean: bool) -> bool:
        """``used_before``: used slots in the file. ``sealed``: used slots in the checkpoint. RocketMQ empties
        no slot. This broker writes the wheel before the checkpoint, so a crash may leave the wheel ahead."""
        if not self.log.files_from(0):
            return False
        return used_before != sealed if clean and sealed is not None else not used_before and sealed != 0

    def _check_wheel(self, read_tick: int, *, is_lost: bool) -> list[int]:
        """Rebuild the wheel when it is lost, or when its chains do not begin where the log says. Messages of
        ticks before ``read_tick`` have been delivered. Returns what ``load`` does."""
        used = self.wheel.used(read_tick)
        why = "it is not the one that was saved" if is_lost else ""
        doubtful: list[int] = []
        for start in self.log.files_from(0):
            inside = used[(used["last"] >= start) & (used["last"] < start + self.log.file_bytes)]
            if len(inside):
                others = self.log.not_of(start, inside["last"], inside["tick"], self._precision_ms)
                doubtful += others
        if doubtful:
            why = "a slot does not lead to a record of its tick"
        if why:
            self.wheel.clear_all()
            self._revise(0)
            self.wheel.clear_before(read_tick)
            self._note(
                Damage("timer.wheel", Outcome.HEALED, f"timerwheel: {why}; rebuilt from the timer log")
            )
        return doubtful

    def _has_all(self, tick: int, log_position: int) -> bool:
        """Whether the wheel has every record of the log before ``log_position`` that is due at ``tick`` or later."""
        for start in self.log.files_from(0):
            positions, records = self.log.records(start)
            ticks = (records["written_ms"].astype(np.int64) + records["delay_ms"]) // self._precision_ms
            wanted = (ticks >= tick) & (positions < log_position)
            if not self.wheel.has_all(ticks[wanted], positions[wanted]):
                return False
        return True

    def failed(self, error: OSError) -> None:
        """Report that something could not be written or synced."""
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
        """A job that writes and syncs the current state, then saves ``checkpoint``. It also removes the log's
        files that only refer to messages before ``min_position`` of the CommitLog."""
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
            self.wheel.seal,
            self.log.next_start(),
        )
        self._unfinished = job
        return job


class TimerFlush(PreparedJob):
    """Blocking work. After an error the next flush repeats this one."""

    def __init__(
        self,
        owner: TimerFiles,
        log_paths: list[Path],
        directory: Path | None,
        pages: Snapshot,
        doomed: list[Path],
        checkpoint: TimerCheckpoint,
        seal: Seal,
        next_start: int | None,
    ) -> None:
        self._owner = owner
        self._seal = seal
        self._next_start = next_start
        self.log_paths = log_paths
        self.directory = directory
        self.pages = pages
        self.doomed = doomed
        self.checkpoint = checkpoint

    def prepare(self) -> Iterator[None]:
        return self.pages.copied()

    def run(self) -> None:
        """Write and sync. Raises OSError."""
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
        if self.pages.numbers:
            save_pages(self._owner._wheel_path, self.pages, files)
        self.checkpoint.save(self._owner._checkpoint_path, files, self._seal)
        for path in self.doomed:
            files.remove(path)
            files.sync_directory(path.parent)  # one by one: the remaining files must have no gap
        if self._next_start is not None:
            self._make_ahead(self._next_start)

    def _make_ahead(self, start: int) -> None:
        try:
            self._owner.log.make_ahead(start)
        except OSError:
            # What was to be saved is saved. The log makes the file when it gets there, and reports why it cannot.
            self._next_start = None

    def done(self, error: BaseException | None = None) -> None:
        if error is not None:
            return
        self._owner._unfinished = None
        self._owner.checkpoint = self.checkpoint
        if self._next_start is not None:
            self._owner.log.is_made_ahead(self._next_start)


def timer_damage(
    root: Path,
    files: FileLayer,
    now_ms: int,
    queue_end: int,
    *,
    precision_ms: int,
    log_file_bytes: int,
    clean: bool,
) -> list[Damage]:
    """The damage that a start would find in the timer files of a directory. ``files`` changes nothing."""
    found: list[Damage] = []
    would = TimerFiles(
        root,
        files,
        precision_ms=precision_ms,
        log_file_bytes=log_file_bytes,
        note=found.append,
        budget=MapBudget(1),  # a file that is too short is not made longer
    )
    try:
        would.load(now_ms, queue_end, clean=clean)
    except StoreCorrupt as error:
        found.append(Damage("timer.log", Outcome.WRONG, str(error)))
    return found


def _sealed(data: bytes | None) -> tuple[int | None, int | None]:
    """Number of used slots of the wheel, and their digest, according to the checkpoint's extension. None for what it
    does not have: RocketMQ wrote the checkpoint, or a version without digests."""
    end = _FIELDS.size + _SEAL.size
    if data is None or not _ends_with_crc(data, end):
        return None, None
    word, used = _SEAL.unpack_from(data, _FIELDS.size)
    if word != _SEAL_WORD:
        return None, None
    at = end + _CRC.size
    has_digest = _ends_with_crc(data, at + _DIGEST.size)
    return used, _DIGEST.unpack_from(data, at)[0] if has_digest else None


def _is_flipped(data: bytes) -> bool:
    """Whether one byte of a checkpoint of this project was changed. RocketMQ, which leaves the CRCs as they are,
    replaces several."""
    end = _FIELDS.size + _SEAL.size
    if not any(data[_FIELDS.size : end + _CRC.size]) or _ends_with_crc(data, end):
        return False
    changed = bytearray(data[:end])
    (wanted,) = _CRC.unpack_from(data, end)
    for at, value in enumerate(data[:end]):
        for other in range(256):
            changed[at] = other
            if zlib.crc32(changed) == wanted:
                return True
        changed[at] = value
    text = (
        data[:end]
        + _CRC.pack(zlib.crc32(data[:end]))
        + data[end + _CRC.size : end + _CRC.size + _DIGEST.size]
    )
    return _ends_with_crc(text + data[len(text) :], len(text))  # the CRC itself


def _ends_with_crc(data: bytes, end: int) -> bool:
    return len(data) >= end + _CRC.size and _CRC.unpack_from(data, end)[0] == zlib.crc32(data[:end])
