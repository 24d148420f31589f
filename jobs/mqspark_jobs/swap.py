"""Replaces queue and index files with new ones: all of them by renaming, or one by one while a broker is running.

The swap can be killed at any point and run again: finished steps are skipped.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import struct
from pathlib import Path

from mqspark.base.names import path_below
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths, file_start
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexfile import HEADER_BYTES, IndexHeader, Shape
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES
from mqspark_jobs.job import Summary


class Swap:
    """A swap of files. The new files are in ``new`` below ``work``, which is in the store's root; their paths there are
    those in a store."""

    def __init__(self, paths: StorePaths, work: Path) -> None:
        self._paths = paths
        self._work = work
        self._new = work / "new"

    def keep_silent_queues(self, built: set[tuple[str, int]], *, has_ext: bool) -> None:
        """Keep the last file of each queue without a record in the log, because it holds the queue's next offset."""
        for root in (self._paths.consume_queue, self._paths.batch_consume_queue):
            for topic in names_in(root):
                for queue in names_in(path_below(root, topic)):
                    directory = path_below(root, topic, queue)
                    names = [name for name in names_in(directory) if file_start(name) is not None]
                    if queue.isdigit() and names and (topic, int(queue)) not in built:
                        target = path_below(self._new / root.name, topic, queue)
                        OsFiles.like(directory).make_directory(target)
                        _copy(directory / max(names), target / max(names))
                        units = path_below(self._paths.consume_queue_ext, topic, queue)
                        if has_ext and root == self._paths.consume_queue and units.is_dir():
                            copied = path_below(self._new / units.parent.parent.name, topic, queue)
                            shutil.copytree(units, copied, copy_function=_copy)

    def is_ready(self) -> bool:
        """Whether an earlier run was killed after everything was built: only the swap is left."""
        return (self._new / "ready").exists()

    def mark_ready(self, end: int, shape: Shape) -> None:
        """Record that the new files are complete and on disk. ``end``: the end of the log that they cover."""
        if (self._new / "index").is_dir():
            # The mark describes the new files; until they are in place it does not apply to the old ones.
            files = OsFiles.like(self._new / "index")
            index = MessageIndex(
                self._new / "index",
                self._new / self._paths.index_mark.name,
                files,
                lambda: 0,
                shape=shape,
            )
            index.load(clean=True, safe_timestamp_ms=0)
            index.skip(end)
            index.note_durable(end)
            job = index.begin_sync()
            if job is not None:
                job.run()
                if job.error is not None:
                    raise job.error
            index.close()
        _sync_tree(self._new)
        (self._new / "ready").touch()
        _sync_directory(self._new)

    def swap(self) -> None:
        """Rename the old files away and the new ones in; finished steps are skipped."""
        old = self._work / "old"
        old.mkdir(exist_ok=True)
        paths = self._paths
        queues, ext = paths.consume_queue.name, paths.consume_queue_ext.name
        # Queue entries refer to ext units: old entries and new units, or the reverse, must never be visible
        # together.
        self._rename_old_files(queues)
        for name in (ext, paths.batch_consume_queue.name, queues, "index"):
            if name == "index" and (self._new / name).is_dir():
                for path in (paths.index_mark, paths.index_mark.with_name("mqspark.index.bak")):
                    path.unlink(missing_ok=True)
            self._rename_old_files(name)
            if (self._new / name).is_dir():
                self._rename(self._new / name, self._paths.root / name)
        mark = self._new / self._paths.index_mark.name
        if mark.exists():
            os.replace(mark, self._paths.index_mark)
        _sync_directory(self._paths.root)
        (self._new / "ready").unlink(missing_ok=True)
        _sync_directory(self._new)

    def _rename_old_files(self, name: str) -> None:
        """Rename the old files away, if the new ones are ready."""
        here, old = self._paths.root / name, self._work / "old" / name
        if (self._new / name).is_dir() and here.is_dir():
            shutil.rmtree(old, ignore_errors=True)
            self._rename(here, old)

    def _rename(self, source: Path, target: Path) -> None:
        """Rename durably: a power cut leaves the steps before one that it leaves."""
        os.rename(source, target)
        _sync_directory(target.parent)
        _sync_directory(source.parent)

    def replace_files(self, sealed_end: int) -> Summary:
        """While a broker is running: replace full files that cover only the log before ``sealed_end``, if they
        differ."""
        compared = replaced = 0
        built = (
            [] if names_in(self._paths.consume_queue_ext) else list((self._new / "consumequeue").rglob("*"))
        )
        for new in sorted([*built, *(self._new / "index").rglob("*")]):
            live = self._paths.root / new.relative_to(self._new)
            if not new.is_file() or not live.is_file():
                continue
            siblings = [name for name in names_in(live.parent) if name.isdigit()]
            if live.name == max(siblings) or not _is_full(new, sealed_end):
                continue
            compared += 1
            if not filecmp.cmp(new, live, shallow=False):
                os.replace(new, live)
                _sync_directory(live.parent)
                replaced += 1
        return {"files_compared": compared, "files_replaced": replaced}


_LAST_POSITION = struct.Struct(">q")


def _is_full(path: Path, sealed_end: int) -> bool:
    """Whether the last entry of a queue or index file is used and refers to a sealed segment."""
    length = path.stat().st_size
    with path.open("rb") as file:
        if path.parent.name == "index":
            header = IndexHeader.decode(os.pread(file.fileno(), HEADER_BYTES, 0))
            last = os.pread(file.fileno(), ENTRY_BYTES, length - ENTRY_BYTES)
            (position,) = _LAST_POSITION.unpack_from(last, 4)
            return bool(0 < position == header.end_position and position < sealed_end)
        position, size, _ = ENTRY.unpack(os.pread(file.fileno(), ENTRY_BYTES, length - ENTRY_BYTES))
        return bool(size > 0 and position + size <= sealed_end)


def _copy(source: Path | str, target: Path | str) -> None:
    """Copy and sync: after a power cut the file would be empty, and a queue would assign its offsets again."""
    shutil.copyfile(source, target)
    files = OsFiles()
    fd = files.open(target)
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _sync_tree(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        _sync_directory(Path(directory))


def _sync_directory(path: Path) -> None:
    OsFiles().sync_directory(path)
