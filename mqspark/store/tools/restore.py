"""Makes a store directory from a backup.

``mqspark.restoring`` marks the directory until all of it is there and synced: no broker starts on it, and the same
restore goes on where it was. Every byte is compared with the checksums of the backup on its way.

A start then builds queues, index and timer wheel from the log, as after their loss.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from mqspark.errors import ConfigError, NotNow, StoreCorrupt
from mqspark.store.config import StoreConfig
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.queue.batchqueue import BatchTable
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.tools.backup import Owner
from mqspark.store.tools.backupmanifest import (
    MANIFEST,
    BackupFault,
    BackupManifest,
    CopiedFile,
    Pace,
    damaged_blocks,
    missing_files,
    pieces,
    place_below,
    require_manifest,
)

_IDENTITY = ("brokerIdentity", "brokerIdentity-temp", "brokerIdentity.bak", "brokerIdentity-temp.bak")
"""Which replica of a set this is: never another's."""
MAX_MAPPED = 4


class Restored(NamedTuple):
    manifest: BackupManifest
    consumer_offsets: bytes | None
    """The content of ``consumerOffset.json``."""


def check_owner(manifest: BackupManifest, owner: Owner) -> None:
    """Raises ConfigError when both are known and differ."""
    for what, there, here in (
        ("brokerClusterName", manifest.cluster, owner.cluster),
        ("brokerName", manifest.broker_name, owner.broker_name),
    ):
        if there and here and there != here:
            raise ConfigError(
                f"the backup is of {what}={there}, not of {here}: --other-broker restores it all the same",
                key=what,
            )


def restore(
    source: Path,
    config: StoreConfig,
    *,
    is_replica: bool = False,
    pace: Pace = lambda count: None,
) -> Restored:
    """Fill the directory of ``config`` from the backup in ``source``. ``is_replica``: other replicas of the set have
    the messages, and this one counts as one of them once its log was compared with theirs.

    Raises ConfigError when the directory has a store, StoreCorrupt for a backup that is damaged or incomplete,
    StoreLocked, DiskFull, OSError. Then the directory is as it was, or marked as incomplete."""
    return _Restore(source, config, pace, is_replica=is_replica).run()


class _Restore:
    def __init__(self, source: Path, config: StoreConfig, pace: Pace, *, is_replica: bool) -> None:
        self._source = source
        self._files = OsFiles()
        self._pace = pace
        self._is_replica = is_replica
        self._paths = config.paths

    def run(self) -> Restored:
        manifest = require_manifest(self._source, self._files)
        wanted = [file for file in manifest.files if not (self._is_replica and file.path in _IDENTITY)]
        self._check_whole(manifest)
        paths, files = self._paths, self._files
        digest = hashlib.sha256(files.read(self._source / MANIFEST) or b"").hexdigest()
        mark = f"{digest} {'replica' if self._is_replica else 'whole'}\n".encode()
        self._check_target(mark)
        files.make_directory(paths.root, durable=True)
        lock = files.lock(paths.lock)
        try:
            self._check_target(mark)
            self._write(paths.restoring, mark)
            for file in wanted:
                self._copy(file, place_below(paths.root, file.path), file.size_bytes)
            for number, segment in enumerate(manifest.log):
                directory = paths.commit_logs.for_segment(number)
                self._copy(segment, place_below(directory, segment.path), segment.segment_bytes)
            self._begin_queues(manifest)
            if self._is_replica:
                self._suspect(manifest)
            for directory in {paths.root, *paths.commit_logs.writable}:
                if directory.is_dir():
                    files.sync_directory(directory)
            files.remove(paths.restoring)
            files.sync_directory(paths.root)
            return Restored(manifest, files.read(paths.config / "consumerOffset.json"))
        finally:
            files.unlock(paths.lock, lock)

    def _check_whole(self, manifest: BackupManifest) -> None:
        """What can be known before anything is written: that all files are there, and the tables are sound."""
        for problem in missing_files(self._source, manifest.copies):
            raise self._refusal(problem)
        for file in manifest.files:
            for problem in damaged_blocks(self._source, file, self._files):
                raise self._refusal(problem)

    def _refusal(self, problem: BackupFault) -> StoreCorrupt:
        path = place_below(self._source, problem.place)
        return StoreCorrupt(
            f"{path}: {problem.text}; a restore needs all of it",
            path=str(path),
            offset=problem.low,
        )

    def _check_target(self, mark: bytes) -> None:
        """Raises ConfigError unless the directories are empty, or this restore has begun to fill them."""
        paths, files = self._paths, self._files
        found = files.read(paths.restoring)
        if found is not None and found not in (mark, b""):
            raise ConfigError(
                f"another restore has begun in {paths.root}, of another backup or role: empty it"
            )
        if found is not None:
            return
        kept = {paths.lock.name, *(_IDENTITY if self._is_replica else ())}
        strange = sorted({*files.names(paths.root)} - kept)
        if strange:
            raise ConfigError(
                f"{paths.root} is not empty (it has {strange[0]}): restore to an empty directory"
            )
        for directory in paths.commit_logs.all:
            if files.names(directory):
                raise ConfigError(f"{directory} is not empty: restore to an empty directory")

    def _write(self, path: Path, data: bytes) -> None:
        fd = self._files.open(path, create=True)
        try:
            self._files.set_length(fd, 0)
            self._files.write(fd, data, 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.sync_directory(path.parent)

    def _copy(self, file: CopiedFile, target: Path, length: int) -> None:
        """Copy the blocks that are not there yet."""
        files = self._files
        files.make_directory(target.parent, durable=True)
        source = files.open_read(place_below(self._source, file.place))
        try:
            out = files.open(target, create=True)
            try:
                if files.length(out) > length:
                    files.set_length(out, length)
                for low, high, digest in file.blocks():
                    if self._hash(out, low, high) != digest:
                        self._copy_block(file, source, out, low, high, digest)
                if files.length(out) != length:
                    files.set_length(out, length)
                files.sync(out)
                # By their age segments are deleted, and tables compared with databases.
                os.utime(out, ns=(file.stamp.modified_ns, file.stamp.modified_ns))
            finally:
                files.close(out)
        finally:
            files.close(source)
        files.sync_directory(target.parent)

    def _hash(self, fd: int, low: int, high: int) -> str:
        if self._files.length(fd) < high:
            return ""
        hashed = hashlib.sha256()
        for piece in pieces(self._files, fd, low, high):
            hashed.update(piece)
        return hashed.hexdigest()

    def _copy_block(self, file: CopiedFile, source: int, out: int, low: int, high: int, digest: str) -> None:
        hashed, at = hashlib.sha256(), low
        for piece in pieces(self._files, source, low, high):
            hashed.update(piece)
            self._files.write(out, piece, at)
            at += len(piece)
            self._pace(len(piece))
        if hashed.hexdigest() != digest:
            text = f"its bytes from {low} to {high} are not those that were copied"
            raise self._refusal(BackupFault(file.place, low, high, text))

    def _begin_queues(self, manifest: BackupManifest) -> None:
        """Let queues without messages continue at their offsets."""
        if not manifest.queues:
            return
        paths, files = self._paths, self._files
        table = QueueTable(
            paths.consume_queue, files, file_bytes=manifest.queue_file_bytes, max_mapped=MAX_MAPPED
        )
        batches = BatchTable(
            paths.batch_consume_queue,
            files,
            file_bytes=manifest.batch_queue_file_bytes,
            max_mapped=MAX_MAPPED,
        )
        for directory in (paths.consume_queue, paths.batch_consume_queue):
            files.remove_tree(directory)  # of a restore that was interrupted
        for queue in manifest.queues:
            if queue.last_entry:
                array = batches.create(queue.topic, queue.queue_id)
                array.set_end(queue.offset - 1)
                array.reserve(1)
                array.settle(bytes.fromhex(queue.last_entry))
            else:
                table.create(queue.topic, queue.queue_id).begin_empty(queue.offset)
        for each in (table, batches):
            each.maps.clear()
            for path in each.dirty_files:
                fd = files.open(path)
                try:
                    files.sync(fd)
                finally:
                    files.close(fd)
            for name in each.new_directories:
                files.sync_directory(name)

    def _suspect(self, manifest: BackupManifest) -> None:
        """Let the broker count as no member of its set before its log was compared with its master's."""

        def failed(path: Path, error: OSError) -> None:
            raise NotNow(f"{path} cannot be written: {error}") from error

        note = MemberNote(self._paths.member, self._files, failed)
        note.open()
        try:
            note.suspect(f"it was restored from a backup that ends at {manifest.log_end}")
            note.sync()
        finally:
            note.close()
