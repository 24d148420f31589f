"""Copies a store directory while a broker serves it: tables first, then the log.

Every table says how far something has come in the log, so a log that is read after them has all that they refer to.
The log is read up to its last valid record: everything that was acknowledged before the copy began is in the file by
then. Queues, index, timer wheel and checkpoint follow from the log and are left out; only the offsets at which queues
begin, whose messages have all left the log, are noted.

What a broker may do meanwhile:

    deletes segments         the copy begins where the log begins at last
    takes its log back       the end of the copy, or the epochs, differ from the log's afterwards: begun again
    heals, compacts, saves   files change, which their stamps tell: copied again

Works on the directory of a RocketMQ broker, too. Takes no lock of the store, and writes nothing there.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.errors import ConfigError, NotNow, StoreCorrupt
from mqspark.record.record import CheckedRecord
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import file_name, file_start
from mqspark.store.disk.notes.brokeridentity import OwnIdentity, decode_identity
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.logread import LogReader
from mqspark.store.log.scan import Run
from mqspark.store.recovery.rocksdb import found_in_rocksdb
from mqspark.store.tools.backupmanifest import (
    BLOCK_BYTES,
    FILES,
    LOCK,
    LOG,
    MANIFEST,
    PIECE_BYTES,
    BackupManifest,
    CopiedFile,
    Pace,
    QueueBegin,
    Stamp,
    encode_manifest,
    load_manifest,
    pieces,
    place_below,
)
from mqspark.store.tools.offlinestore import OfflineStore, ReadOnlyFiles, require_store

_log = sparing(__name__)

MAX_ATTEMPTS = 5
_TAIL_BYTES = 64 << 10
"""How much of the end of the log is compared once it is copied. Logs that part do not meet again."""

_DERIVED = frozenset(
    (
        "commitlog",
        "consumequeue",
        "consumequeue_ext",
        "batchconsumequeue",
        "index",
        "timerwheel",
        "timerlog",
        "checkpoint",
        "mqspark.checkpoint",
        "mqspark.index",
        "mqspark.index.bak",
        "mqspark.ends",
        "mqspark.begin",
    )
)
"""What a start makes from the log and from ``config/timercheck``."""
_OF_A_PROCESS = frozenset(
    (
        "abort",
        "abort.bak",
        "lock",
        "mqspark.nonce",
        "mqspark.compact.lock",
        "mqspark.rebuild",
        "mqspark.archivecache",
        "mqspark.diverged",
    )
)
_PASSING = (".new", ".tmp", ".lock")
"""Names of files that are being written, or hold nothing."""
_IN_GENERATIONS = ("mqspark.compacted/", "compaction/")
_FIRST = "mqspark.tables"
"""Written after the tables: read before them, it is never ahead of them."""


class Owner(NamedTuple):
    """Whose store it is, as far as it is known, and the version of the program that looks."""

    cluster: str = ""
    broker_name: str = ""
    broker_id: int = -1
    version: str = ""


class BackedUp(NamedTuple):
    manifest: BackupManifest
    written_bytes: int
    attempts: int


class _Moved(Exception):
    """The store has changed in a way that makes the attempt void."""


def back_up(
    config: StoreConfig,
    directory: Path,
    clock: Clock,
    owner: Owner | None = None,
    pace: Pace = lambda count: None,
) -> BackedUp:
    """Copy into ``directory`` what it does not have yet. Raises ConfigError, StoreCorrupt for a directory that is no
    store or whose backup is another's, StoreLocked while another backup is made there, NotNow when the store changes
    faster than it is copied, OSError. The backup that was there is then still whole."""
    return _Backup(config, directory, clock, owner, pace).run()


class _Backup:
    def __init__(
        self, config: StoreConfig, directory: Path, clock: Clock, owner: Owner | None, pace: Pace
    ) -> None:
        self._config = config
        self._directory = directory
        self._clock = clock
        self._owner = owner
        self._pace = pace
        self._store_files = ReadOnlyFiles()
        self._files = OsFiles()
        self._paths = config.paths
        self._old: BackupManifest | None = None
        """The backup that is there."""
        self._known_log: dict[str, CopiedFile] = {}
        self._known_files: dict[str, CopiedFile] = {}
        """What was copied before, also by an attempt that was void."""
        self._number = 0
        self._written = 0
        self._attempt = 0

    def run(self) -> BackedUp:
        require_store(self._paths)
        self._check_place()
        for part in found_in_rocksdb(self._paths, self._store_files):
            raise StoreCorrupt(f"{part.text}, which is not copied: {part.advice}", path=str(self._paths.root))
        self._files.make_directory(self._directory, durable=True)
        lock = self._files.lock(self._directory / LOCK)
        try:
            self._old = load_manifest(self._directory, self._files)
            if self._old is not None:
                self._number = self._old.number
                self._known_log = {file.path: file for file in self._old.log}
                self._known_files = {file.path: file for file in self._old.files}
            self._number += 1
            manifest = self._made()
            self._files.sync_directory(self._directory)
            ConfigFile(self._directory / MANIFEST, self._files, with_backup=False).save(
                encode_manifest(manifest)
            )
            self._remove_others(manifest)
            return BackedUp(manifest, self._written, self._attempt)
        finally:
            self._files.unlock(self._directory / LOCK, lock)

    def _check_place(self) -> None:
        place = self._directory.resolve()
        for path in (self._paths.root, *self._paths.commit_logs.all):
            inside = path.resolve()
            if place.is_relative_to(inside) or inside.is_relative_to(place):
                raise ConfigError(
                    f"the backup cannot be in {path}, or around it: it would be lost with the store"
                )
        strange = sorted({*self._files.names(place)} - {MANIFEST, f"{MANIFEST}.new", LOG, FILES, LOCK})
        if strange:
            raise ConfigError(
                f"{self._directory} has other files than a backup ({strange[0]}): give it one of its own"
            )

    def _made(self) -> BackupManifest:
        while True:
            self._attempt += 1
            try:
                return self._try()
            except (_Moved, FileNotFoundError) as error:
                if self._attempt == MAX_ATTEMPTS:
                    raise NotNow(
                        f"the store changed each of {MAX_ATTEMPTS} times while it was copied, last: {error}; try again"
                    ) from error
                _log.warning("the copy is begun again: %s", error)

    def _try(self) -> BackupManifest:
        began_ms = self._clock.now_ms()
        before = self._epochs()
        files = self._copy_files()
        store_id = (self._store_files.read(self._paths.identity) or b"").decode("ascii", "replace").strip()
        if self._old is not None and store_id and self._old.store_id not in ("", store_id):
            raise ConfigError(
                f"{self._directory} has the backup of another store: each needs a directory of its own"
            )
        offline = self._look()
        try:
            tail = _LogEnd(offline.log)
            end = tail.find()
            copied = self._copy_log(offline.log.segments, end)
            begins = self._begins(offline, copied[0].path if copied else "")
        finally:
            offline.log.close()
            offline.table.maps.clear()
            offline.batch_table.maps.clear()
        self._compare(offline.log.segments, copied, end, before)
        owner = self._known_owner()
        return BackupManifest(
            number=self._number,
            began_ms=began_ms,
            ended_ms=self._clock.now_ms(),
            version=owner.version,
            log_begin=int(copied[0].path) if copied else end,
            log_end=end,
            newest_ms=tail.newest_ms,
            log=tuple(copied),
            files=tuple(files),
            queues=tuple(begins),
            queue_file_bytes=offline.table.file_bytes,
            batch_queue_file_bytes=offline.batch_table.file_bytes,
            store_id=store_id,
            cluster=owner.cluster,
            broker_name=owner.broker_name,
            broker_id=owner.broker_id,
        )

    def _look(self) -> OfflineStore:
        try:
            return OfflineStore(self._config)
        except StoreCorrupt as error:
            if not self._store_files.is_locked(self._paths.lock):
                raise
            raise _Moved(str(error)) from error  # a queue's file was made or deleted at this moment

    def _known_owner(self) -> Owner:
        owner = self._owner if self._owner is not None else Owner()
        if owner.broker_name:
            return owner
        identity: OwnIdentity | None = decode_identity(
            self._store_files.read(self._paths.root / "brokerIdentity") or b""
        )
        if identity is None:
            return owner
        return owner._replace(
            cluster=identity.cluster, broker_name=identity.name, broker_id=identity.broker_id
        )

    def _epochs(self) -> bytes | None:
        return self._store_files.read(self._paths.epochs)

    # --- tables and other files ------------------------------------------------------------------------------

    def _copy_files(self) -> list[CopiedFile]:
        paths = self._paths_to_copy()
        copied = [self._copy_file(path, self._known_files.get(path)) for path in paths]
        self._known_files |= {file.path: file for file in copied}
        # The files of a generation belong together.
        if self._paths_to_copy() != paths:
            raise _Moved("files came or went")
        for file in copied:
            if file.path.startswith(_IN_GENERATIONS):
                found = place_below(self._paths.root, file.path).stat()
                if _stamp(found) != file.stamp:
                    raise _Moved(f"{file.path} was replaced")
        return copied

    def _paths_to_copy(self) -> list[str]:
        names = self._store_files.names(self._paths.root)
        found = [
            path
            for name in names
            if name not in _DERIVED and name not in _OF_A_PROCESS
            for path in self._below(name)
        ]
        present = set(found)
        for path in found:
            if (
                path.endswith(".bak")
                and path.removesuffix(".bak") not in present
                and self._attempt < MAX_ATTEMPTS
            ):
                raise _Moved(f"{path.removesuffix('.bak')} is being replaced")
        return sorted(found, key=lambda path: (path != _FIRST, path))

    def _below(self, path: str) -> Iterator[str]:
        place = place_below(self._paths.root, path)
        mode = place.lstat().st_mode
        if stat.S_ISDIR(mode):
            for name in self._store_files.names(place):
                yield from self._below(f"{path}/{name}")
        elif stat.S_ISREG(mode) and not path.endswith(_PASSING) and not _is_audit_log(path):
            yield path

    def _copy_file(self, path: str, old: CopiedFile | None) -> CopiedFile:
        source = place_below(self._paths.root, path)
        fd = self._store_files.open_read(source)
        try:
            stamp = _stamp(os.fstat(fd))
            if old is not None and old.stamp == stamp and stamp.size_bytes > PIECE_BYTES and self._has(old):
                return old
            if stamp.size_bytes <= PIECE_BYTES:  # written in place, perhaps at this moment
                read = [self._store_files.read_at(fd, PIECE_BYTES + 1, 0) for _ in range(2)]
                if read[0] != read[1]:
                    raise _Moved(f"{path} is being written")
            place = f"{FILES}/{self._number}/{path}"
            digests = self._copy(fd, place, [(0, stamp.size_bytes, 0, "")], stamp.size_bytes, path)
            if _stamp(os.fstat(fd)) != stamp:
                raise _Moved(f"{path} is being written")
        finally:
            self._store_files.close(fd)
        return CopiedFile(path, place, stamp.size_bytes, tuple(digests), stamp)

    # --- the log ----------------------------------------------------------------------------------------------

    def _copy_log(self, segments: list[Segment], end: int) -> list[CopiedFile]:
        copied: list[CopiedFile] = []
        for segment in segments:
            length = min(segment.length, end - segment.start)
            if length <= 0:
                continue
            name = file_name(segment.start)
            try:
                file = self._copy_segment(segment, name, length, self._known_log.get(name))
                self._known_log[name] = file
                copied.append(file)
            except FileNotFoundError:
                copied.clear()  # retention deletes the oldest first
        return copied

    def _copy_segment(self, segment: Segment, name: str, length: int, old: CopiedFile | None) -> CopiedFile:
        fd = self._store_files.open_read(segment.path)
        try:
            stamp = _stamp(os.fstat(fd))
            if old is not None and (old.size_bytes > length or not self._has(old)):
                old = None
            if old is not None and old.stamp == stamp and old.size_bytes == length:
                return old
            place = old.place if old is not None else self._new_place(name)
            try:
                digests = self._copy(fd, place, _steps(length, old), length, name)
            except _Differs:
                place = self._new_place(name)
                digests = self._copy(fd, place, _steps(length, None), length, name)
        finally:
            self._store_files.close(fd)
        return CopiedFile(name, place, length, tuple(digests), stamp, segment.end - segment.start)

    def _new_place(self, name: str) -> str:
        """Where a segment goes that is not what it was: the manifest that is there needs the file that is there."""
        is_named = self._old is not None and any(file.path == name for file in self._old.log)
        return f"{LOG}/{name}.{self._number}" if is_named else f"{LOG}/{name}"

    def _has(self, old: CopiedFile) -> bool:
        try:
            return place_below(self._directory, old.place).stat().st_size >= old.size_bytes
        except FileNotFoundError:
            return False

    def _copy(
        self, fd: int, place: str, steps: list[tuple[int, int, int, str]], length: int, path: str
    ) -> list[str]:
        """Copy a file in steps: begin and end of bytes to read, from where on they are written, and the checksum that
        those before should have. Returns the checksums of the blocks."""
        target = place_below(self._directory, place)
        self._files.make_directory(target.parent, durable=True)
        out = self._files.open(target, create=True)
        digests: list[str] = []
        read = 0
        try:
            for low, high, write_from, expected in steps:
                for start in range(low, high, BLOCK_BYTES):
                    stop = min(start + BLOCK_BYTES, high)
                    digests.append(self._copy_block(fd, out, start, stop, write_from, expected))
                    read += stop - start
            if steps and self._files.length(out) > length:
                self._files.set_length(out, length)
            self._files.sync(out)
        except _Short:
            raise _Moved(f"{path} was cut while it was copied") from None
        finally:
            self._files.close(out)
        self._files.sync_directory(target.parent)
        return digests

    def _copy_block(self, fd: int, out: int, low: int, high: int, write_from: int, expected: str) -> str:
        hashed, at = hashlib.sha256(), low
        borders = sorted({low, min(max(write_from, low), high), high})
        for start, stop in itertools.pairwise(borders):
            for piece in pieces(self._store_files, fd, start, stop):
                hashed.update(piece)
                if start >= write_from:
                    self._files.write(out, piece, at)
                    self._written += len(piece)
                at += len(piece)
                self._pace(len(piece))
            if at < stop:
                raise _Short
            if stop == write_from and hashed.hexdigest() != expected:
                raise _Differs
        return hashed.hexdigest()

    def _begins(self, offline: OfflineStore, first: str) -> list[QueueBegin]:
        """The queues that begin behind offset 0, in a log whose first segment has this name."""
        if not first or not int(first):
            return []
        minimum, found = int(first), []
        for queue in offline.table.queues.values():
            begin = queue.first_kept(minimum, queue.file_starts, queue.min_offset, queue.max_offset)
            if begin > 0 and queue.topic not in offline.table.batch_topics:
                found.append(QueueBegin(queue.topic, queue.queue_id, begin))
        for array in offline.batch_table.queues.values():
            low, high = array.min_offset, array.max_offset
            if high and array.first_kept(minimum, array.file_starts, low, high) == high:
                last = array.packed_entry(high - 1)
                if last is not None:
                    found.append(QueueBegin(array.topic, array.queue_id, high, last.hex()))
        return found

    def _compare(
        self, segments: list[Segment], copied: list[CopiedFile], end: int, epochs: bytes | None
    ) -> None:
        """Whether the log still begins where the copy does, and ends with it or goes on."""
        starts = [
            start
            for directory in self._paths.commit_logs.all
            for name in self._store_files.names(directory)
            if (start := file_start(name)) is not None
        ]
        if copied and min(starts, default=0) != int(copied[0].path):
            raise _Moved("the log begins at another segment now")
        if self._epochs() != epochs:
            raise _Moved("another epoch has begun")
        last = copied[-1] if copied else None
        segment = next(
            (each for each in segments if last is not None and file_name(each.start) == last.path), None
        )
        if last is None or segment is None:
            return
        low = max(0, last.size_bytes - _TAIL_BYTES)
        if self._read(segment.path, low, last.size_bytes) != self._read(
            place_below(self._directory, last.place), low, last.size_bytes
        ):
            raise _Moved(f"the log was taken back from {end}")

    def _read(self, path: Path, low: int, high: int) -> bytes:
        fd = self._store_files.open_read(path)
        try:
            return self._store_files.read_at(fd, high - low, low)
        finally:
            self._store_files.close(fd)

    # --- what is not needed any more ----------------------------------------------------------------------------

    def _remove_others(self, manifest: BackupManifest) -> None:
        named = {place_below(self._directory, file.place) for file in manifest.copies}
        for top in (LOG, FILES):
            for root, directories, names in os.walk(self._directory / top, topdown=False):
                for name in names:
                    if (path := Path(root, name)) not in named:
                        self._files.remove(path)
                for name in directories:
                    path = Path(root, name)
                    if not any(path.iterdir()):
                        path.rmdir()


class _Short(Exception):
    """A file has fewer bytes than it had."""


class _Differs(Exception):
    """The beginning of a file is not what was copied before."""


def _steps(length: int, old: CopiedFile | None) -> list[tuple[int, int, int, str]]:
    """What of a segment to read, and from where on to write, if the copy has ``old``."""
    if old is None:
        return [(0, length, 0, "")]
    steps = [(low, min(low + BLOCK_BYTES, length), high, digest) for low, high, digest in old.blocks()]
    done = steps[-1][1] if steps else 0
    return [*steps, (done, length, 0, "")] if done < length else steps


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def _is_audit_log(path: str) -> bool:
    return path.rpartition("/")[2].startswith("audit.log")


class _LogEnd(LogReader):
    """Finds the end of the last valid record."""

    def __init__(self, log: CommitLog) -> None:
        super().__init__(log, verify_crc=True, verify_property_crc=False)
        self.newest_ms = 0

    def find(self) -> int:
        """Reads the last segment, and the one before it if that is empty."""
        segments = self._log.segments
        end = 0
        for segment in reversed(segments[-2:]):
            end = max(end, self._scan(segment.start))
            if self.newest_ms:
                break
        return end

    def _take(self, record: CheckedRecord, position: int) -> None:
        self.newest_ms = record.store_timestamp_ms

    def _take_run(self, run: Run) -> None:
        self.newest_ms = int(run.store_timestamps_ms[-1])

    def _take_damaged(self, record: CheckedRecord, position: int) -> None:
        """It is copied as it is."""
