"""The index of records by key (IndexService). ``indexfile.py`` describes the format of a file.

Files are named by the local time of their creation; only the last one grows. A file knows keys only by their
hashes, so a found record may have another key with the same hash, and the caller compares.

The index is derived from the log. It follows the log up to ``position``, and after a crash it is cut back to
what is certainly on disk. Two sources tell what that is:

* The mark, a small file in the store's root: the header of the last file at a moment before its contents were
  synced, and the position at that moment. What a file has beyond it is undone: the slots are corrected, and
  the entries will be overwritten. The mark never covers more than what the log has on disk.
* Without it (a RocketMQ broker ran last) RocketMQ's rule: a file that ends after the checkpoint's index
  timestamp is not safe. It is removed and built again.

Must not know the log's files; ``indexer.py`` reads them.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from mqspark.errors import NotNow, is_shortage
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.disk.files import FileLayer, disk_full_as_typed
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.index.indexfile import (
    DEFAULT_SHAPE,
    HEADER_BYTES,
    IndexFile,
    IndexHeader,
    IndexMaps,
    Shape,
    find_shape,
    first_of,
)
from mqspark.store.index.keys import KeyColumns, index_hash

_NAME_DIGITS = 17
_TITLE = "mqspark-index-1"


@dataclass(slots=True, frozen=True)
class _Mark:
    """State of the index at a moment: it has exactly the records before ``position``."""

    position: int
    name: str
    """Name of the last file; "-" without one."""
    header: IndexHeader

    def encode(self) -> bytes:
        text = f"{_TITLE} {self.position:020d} {self.name} {self.header.encode().hex()}".encode()
        return text + b" %08x\n" % zlib.crc32(text)

    @classmethod
    def decode(cls, data: bytes) -> _Mark | None:
        """None for a damaged file, and for the content of another one."""
        text, _, crc = data.rstrip(b"\n").rpartition(b" ")
        if crc != b"%08x" % zlib.crc32(text) or not text.startswith(_TITLE.encode() + b" "):
            return None
        _, position, name, header = text.decode("ascii").split(" ")
        return cls(int(position), name, IndexHeader.decode(bytes.fromhex(header)))


def marked_position(data: bytes | None) -> int:
    """The position of the mark: every record of the log before it is in the index. 0 without a mark."""
    mark = _Mark.decode(data) if data else None
    return mark.position if mark is not None else 0


_NEXT_ENTRIES_BYTES = 1 << 16
_MOST_EQUAL = 1_000
"""Records of one second and hash among which one is searched."""


class IndexJob:
    """Syncs what the index has written, then writes the mark. Blocking, in any thread. Keeps an error of the disk."""

    __slots__ = ("_directory", "_file", "_files", "_finish", "_mark", "error", "paths")

    def __init__(
        self,
        files: FileLayer,
        directory: Path,
        paths: list[Path],
        file: ConfigFile,
        mark: _Mark,
        finish: Callable[[IndexJob], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self.paths = paths
        self._file = file
        self._mark = mark
        self._finish = finish
        self.error: BaseException | None = None
        """DiskFull: everything is synced, but the mark could not be written. Any error but NotNow: possibly nothing
        is synced."""

    def run(self) -> None:
        files = self._files
        try:
            for path in self.paths:
                try:
                    fd = files.open(path)
                except FileNotFoundError:
                    continue  # retention has removed it
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
            files.sync_directory(self._directory)
            with disk_full_as_typed("the mark of the index"):
                self._file.save(self._mark.encode())
        except (OSError, NotNow) as error:
            self.error = error

    def done(self, error: BaseException | None = None) -> None:
        self.error = error or self.error
        self._finish(self)


class ReadSlotsJob:
    """Brings the slots of a file, and where its next entries go, into memory, so that nobody else waits for the disk
    when they are written to. In any thread."""

    __slots__ = ("_file", "_files", "_finish")

    def __init__(self, files: FileLayer, file: IndexFile, finish: Callable[[IndexFile], None]) -> None:
        self._files = files
        self._file = file
        self._finish = finish

    def run(self) -> None:
        file = self._file
        with contextlib.suppress(OSError):  # who writes meets any error
            fd = self._files.open_read(file.path)
            try:
                self._files.read_ahead(fd, 0, file.shape.entries_at)
                self._files.read_ahead(fd, file.next_entry_at, _NEXT_ENTRIES_BYTES)
            finally:
                self._files.close(fd)

    def done(self, error: BaseException | None = None) -> None:
        """After an error they are as far away as before."""
        self._finish(self._file)


# --- all files ------------------------------------------------------------------------------------------------


class MessageIndex:
    """All index files of a store. Belongs to the store's thread."""

    def __init__(
        self,
        directory: Path,
        mark_path: Path,
        files: FileLayer,
        now_ms: Callable[[], int],
        *,
        shape: Shape = DEFAULT_SHAPE,
        budget: MapBudget | None = None,
        note: Note = lambda damage: None,
    ) -> None:
        """``now_ms``: wall time, for the names of new files. ``budget``: of address space. ``note``: receives
        damage."""
        self._note = note
        self._directory = directory
        self._mark_file = ConfigFile(mark_path, files)
        self._files = files
        self._now_ms = now_ms
        self.maps = IndexMaps(files, budget)
        self._shape = shape
        self._dirty: dict[Path, None] = {}
        self._full: IndexFile | None = None
        """The newest full file, while it is written but not synced."""
        self._last_indexed = -1
        """Records up to this one are already in the index, although ``position`` is before them."""
        self._kept = self._fresh = _Mark(0, "-", IndexHeader())
        self._marked: _Mark | None = None
        """The mark on disk."""
        self._job: IndexJob | None = None
        """The running job, or the failed one."""
        self.touching = 0
        """Changes when the next keys touch pages of slots anew, which costs a fault each: after a file was made, or
        synced."""
        self.index_files: list[IndexFile] = []
        self.ignored_files: list[str] = []
        """Files in the directory that are not readable index files."""
        self.position = 0
        """Every record of the log before this position is in the index."""
        self.full_timestamp_ms = 0
        """The index timestamp of RocketMQ's checkpoint: the end of the last full file that is synced."""
        self.failed: str | None = None
        """Why the index is no longer written, or None."""
        self.full_disk: str | None = None
        """Why the last mark could not be written, or None. A crash would then repeat more work."""

    # --- load -------------------------------------------------------------------------------------------------

    def load(self, *, clean: bool, safe_timestamp_ms: int) -> None:
        """Find the files and ``position``. ``clean``: the last process stopped cleanly, so everything is on
        disk; otherwise what may be missing on disk is undone. ``safe_timestamp_ms``: the checkpoint's index
        timestamp.

        Raises DiskFull or OSError. ``cut`` must be called next.
        """
        files = self._files
        files.make_directory(self._directory)
        damaged = ""
        for name in sorted(files.names(self._directory)):
            is_ours = name.isascii() and name.isdigit()
            try:
                file = self._open(name) if is_ours else None
            except IsADirectoryError:
                is_ours, file = False, None
            if not is_ours or (file is None and len(name) != _NAME_DIGITS):
                self.ignored_files.append(name)
            elif file is None and name not in files.names(self._directory):
                continue  # left from a crash during its creation
            elif damaged or file is None or not self._follows(file):
                # The files after it are rebuilt, too: the index has no gaps. So is the one before it, if one of the two
                # lies about its place.
                if not damaged and file is not None and self.index_files:
                    self._remove(self.index_files.pop())
                if file is None:
                    files.rename(self._directory / name, self._directory / f"{name}.damaged")
                    self.ignored_files.append(name)
                else:
                    files.remove(self._directory / name)
                damaged = damaged or name
            else:
                self.index_files.append(file)
        if damaged:
            text = f"index/{damaged} is truncated or damaged; the index is rebuilt from there on"
            self._note(Damage("index.damaged", Outcome.HEALED, text))
        if self.index_files:
            self._shape = self.index_files[-1].shape
        mark = _Mark.decode(self._mark_file.load() or b"")
        if not (self._continue(mark) if clean else self._return_to(mark)):
            # The old mark must not count any more: a new file may get the name in it.
            self._remove_mark()
            if clean:
                self._trust_all()
            else:
                self._keep_safe(safe_timestamp_ms)
        self._drop_while(lambda file: file.header.next_number <= 1)
        full = [file for file in self.index_files if file.is_full]
        self.full_timestamp_ms = full[-1].header.end_timestamp_ms if full else 0
        self._kept = self._fresh = self._now()

    def _follows(self, file: IndexFile) -> bool:
        """Whether a file's header continues the file before it."""
        header = file.header
        before = self.index_files[-1].header.end_position if self.index_files else 0
        if header.next_number <= 1:
            return True
        return before <= header.begin_position <= header.end_position

    def _open(self, name: str) -> IndexFile | None:
        path = self._directory / name
        fd = self._files.open_read(path)
        try:
            header = IndexHeader.decode(self._files.read_at(fd, HEADER_BYTES, 0))
            length = self._files.length(fd)
            shape: Shape | None = self._shape
            if length != self._shape.file_bytes:
                shape = find_shape(self._files, fd, length, header)
        finally:
            self._files.close(fd)
        if not length:
            self._files.remove(path)  # left from a crash during its creation
        if shape is None or header.next_number > shape.entries:
            return None
        return IndexFile(path, shape, header, self._files, self.maps)

    def _continue(self, mark: _Mark | None) -> bool:
        """Continue after a clean stop of this broker."""
        last = self._now()
        if mark is None or (mark.name, mark.header) != (last.name, last.header):
            return False
        self.position = mark.position
        self._marked = mark
        return True

    def _trust_all(self) -> None:
        """Continue after a clean stop of RocketMQ. Records after the last one with a key are read again,
        because their number is not recorded."""
        if self.index_files:
            self.position = self._last_indexed = self.index_files[-1].header.end_position

    def _return_to(self, mark: _Mark | None) -> bool:
        """Undo what may not be on disk after a crash."""
        if mark is None:
            return False
        names = [file.name for file in self.index_files]
        kept = 0
        if mark.name != "-":
            if mark.name not in names:
                return False
            last = self.index_files[names.index(mark.name)]
            if last.header.next_number < mark.header.next_number:
                return False
            last.cut(mark.header)
            self._dirty[last.path] = None
            kept = names.index(mark.name) + 1
        self._drop_from(kept)
        self.position = mark.position
        self._marked = mark
        return True

    def _keep_safe(self, safe_timestamp_ms: int) -> None:
        # Everything from the first unsafe file on is removed, whatever the later files contain.
        safe = 0
        for file in self.index_files:
            if not 0 < file.header.end_timestamp_ms <= safe_timestamp_ms:
                break
            safe += 1
        self._drop_from(safe)
        if self.index_files:
            # Further keys of that record may have been in the next file.
            self.position = self.index_files[-1].header.end_position
            self._last_indexed = self.position - 1

    def cut(self, end: int) -> None:
        """Remove everything about the log at or after ``end``, the end of the log.

        Blocks when there is something to remove, because the mark must not refer to it. Raises DiskFull,
        OSError.
        """
        self._drop_while(lambda file: file.header.begin_position >= end)
        if self.index_files and self.index_files[-1].header.end_position >= end:
            last = self.index_files[-1]
            last.cut(last.header_before(end))
            self._dirty[last.path] = None
        self._last_indexed = min(self._last_indexed, end - 1)
        if self.position > end:
            self.position = end
            self._full = next((file for file in reversed(self.index_files) if file.is_full), None)
            job = self._new_job(self._now())
            run_here(job)
            if job.error is not None:
                raise job.error
        self._kept = self._fresh = self._now()

    def disable(self, reason: str) -> None:
        """Find and write nothing until the next start."""
        self.failed = reason
        self.index_files = []
        self.maps.clear()

    def _remove_mark(self) -> None:
        path = self._mark_file.path
        for name in (path, path.with_name(path.name + ".bak")):
            self._files.remove(name)

    def _drop_while(self, is_wrong: Callable[[IndexFile], bool]) -> None:
        """Remove files from the last one on."""
        count = len(self.index_files)
        while count and is_wrong(self.index_files[count - 1]):
            count -= 1
        self._drop_from(count)

    def _drop_from(self, index: int) -> None:
        while len(self.index_files) > index:
            self._remove(self.index_files.pop())

    def _remove(self, file: IndexFile) -> None:
        self._forget(file)
        self._files.remove(file.path)

    def _forget(self, file: IndexFile) -> None:
        self.maps.drop(file)
        self._dirty.pop(file.path, None)

    # --- write ------------------------------------------------------------------------------------------------

    def put(self, keys: KeyColumns, position: int) -> None:
        """Add the keys of all records between ``self.position`` and ``position``, and move ``self.position``
        there.

        Raises DiskFull or OSError. The same call may be repeated and continues where it ended; so does one with keys of
        fewer records.
        """
        if self._last_indexed >= 0:
            keys = _behind(keys, self._last_indexed)
        try:
            while len(keys.hashes):
                last = self._last_with_room()
                taken = last.put(keys)
                keys = keys.part(taken, len(keys.hashes))
        except (OSError, NotNow):
            self._last_indexed = int(keys.positions[0]) - 1
            raise
        if position > self._last_indexed:
            self._last_indexed = -1
        self.position = position

    def read_slots(self, finish: Callable[[IndexFile], None]) -> ReadSlotsJob:
        """A job for the last file. ``finish`` is called with it afterwards."""
        return ReadSlotsJob(self._files, self.index_files[-1], finish)

    def warm(self, keys: KeyColumns) -> None:
        """Bring the slots of these keys into memory, so that a ``put`` of many takes less time. Raises DiskFull or
        OSError."""
        self._last_with_room().warm(keys)

    def _last_with_room(self) -> IndexFile:
        """The last file, to be written to; a new one if it was full."""
        if not self.room:
            self._roll()
        last = self.index_files[-1]
        self._dirty[last.path] = None
        return last

    @property
    def is_syncing(self) -> bool:
        """Whether a job of ``begin_sync`` runs."""
        return self._job is not None

    @property
    def room(self) -> int:
        """Keys that the last file has room for; the next one begins a file if there are none."""
        if not self.index_files:
            return 0
        last = self.index_files[-1]
        return last.shape.entries - last.header.next_number

    def skip(self, position: int) -> None:
        """Move ``self.position`` to ``position``: there are no records in between."""
        self.position = position

    def _roll(self) -> None:
        name = datetime.fromtimestamp(self._now_ms() / 1000, UTC).astimezone().strftime("%Y%m%d%H%M%S%f")[:17]
        header = IndexHeader()
        if self.index_files:
            old = self.index_files[-1]
            self._full = old
            # Names must ascend even when the clock goes back.
            name = max(name, f"{int(old.name) + 1:017d}")
            header = IndexHeader(
                old.header.end_timestamp_ms,
                old.header.end_timestamp_ms,
                old.header.end_position,
                old.header.end_position,
            )
        file = IndexFile(self._directory / name, self._shape, header, self._files, self.maps)
        file.create()
        self.index_files.append(file)
        self.touching += 1

    def forget_before(self, min_physical_offset: int) -> list[Path]:
        """Forget the files that only refer to records before the log's start, never the last file. Returns their paths,
        for the caller to unlink."""
        gone: list[Path] = []
        while len(self.index_files) > 1 and self.index_files[0].header.end_position < min_physical_offset:
            file = self.index_files.pop(0)
            self._forget(file)
            gone.append(file.path)
        return gone

    # --- sync -------------------------------------------------------------------------------------------------

    def note_durable(self, position: int) -> None:
        """Note that the log is on disk up to ``position``: the mark may use the newest state of the index
        covered by it.

        Of two states the older one is kept until the log has reached the newer.
        """
        if self._fresh.position <= position:
            self._kept, self._fresh = self._fresh, self._now()
            if self._fresh.position <= position:
                self._kept = self._fresh

    def begin_sync(self) -> IndexJob | None:
        """A job that makes the index durable, or None when that is not needed or a job is running."""
        if self.failed is not None or self._job is not None or self._kept == self._marked:
            return None
        self._job = self._new_job(self._kept)
        return self._job

    def _new_job(self, mark: _Mark) -> IndexJob:
        paths, self._dirty = list(self._dirty), {}
        full, self._full = self._full, None

        def finish(job: IndexJob) -> None:
            self.touching += 1
            if isinstance(job.error, OSError) and not is_shortage(job.error):
                self.failed = f"syncing the index failed: {job.error}"
                return
            self._job = None
            self.full_disk = (str(job.error) or repr(job.error)) if job.error is not None else None
            if job.error is not None and not isinstance(job.error, NotNow):
                # How much is synced is unknown: the next job syncs it again.
                self._dirty = {**dict.fromkeys(paths), **self._dirty}
                self._full = self._full or full
                return
            if job.error is None:
                self._marked = mark
            if full is not None:
                self.full_timestamp_ms = full.header.end_timestamp_ms

        return IndexJob(self._files, self._directory, paths, self._mark_file, mark, finish)

    def _now(self) -> _Mark:
        if not self.index_files:
            return _Mark(self.position, "-", IndexHeader())
        return _Mark(self.position, self.index_files[-1].name, self.index_files[-1].header)

    def close(self) -> None:
        """Drop the mappings. After a failure, files in doubt are removed; they will be rebuilt."""
        if self.failed is not None:
            paths = self._dirty if self._job is None else {**self._dirty, **dict.fromkeys(self._job.paths)}
            wrong = [number for number, file in enumerate(self.index_files) if file.path in paths]
            if wrong:
                self._drop_from(wrong[0])
        self.maps.clear()

    # --- read -------------------------------------------------------------------------------------------------

    @property
    def last_update(self) -> tuple[int, int]:
        """Store time and physical offset of the newest record in the index; zeros without one."""
        if not self.index_files:
            return 0, 0
        header = self.index_files[-1].header
        return header.end_timestamp_ms, header.end_position

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """The first ``limit`` of ``search``, each once."""
        return first_of(self.search(topic, key, begin_ms, end_ms), limit)

    def search(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[list[int]]:
        """Physical offsets of records that have this key or one of the same hash, newest first, stored between the
        two times (inclusive, in whole seconds), step by step as ``IndexFile.search``. Follows
        IndexService.queryOffset, which stops at a number of records whatever their keys are, and at the first file that
        begins before ``begin_ms``: files before a clock went back may be of a later time."""
        key_hash = index_hash(topic, key)
        for file in reversed(self.index_files.copy()):
            # Its time first: it costs least. Retention may have removed the file since the last step.
            if file.overlaps(begin_ms, end_ms) and file in self.index_files:
                for found in file.search(key_hash, begin_ms, end_ms):
                    yield found
                    if file not in self.index_files:
                        break

    def has_one_of(self, keys: KeyColumns) -> bool:
        """Whether the first of these keys leads to its record; also when there are none."""
        if not len(keys.hashes):
            return True
        key_hash, position, store_ms = (
            int(column[0]) for column in (keys.hashes, keys.positions, keys.timestamps_ms)
        )
        return any(
            position in file.find(key_hash, _MOST_EQUAL, store_ms - 1_000, store_ms + 1_000)
            for file in self.index_files
            if file.overlaps(store_ms - 1_000, store_ms + 1_000)
        )


def _behind(keys: KeyColumns, position: int) -> KeyColumns:
    first = int(np.searchsorted(keys.positions, position, "right"))
    return keys.part(first, len(keys.positions))
