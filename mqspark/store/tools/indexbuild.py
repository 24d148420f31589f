"""Builds the index of a whole log in parallel with the queues, for a large log in a separate process.

The work begins before the end of the log is known and stays away from its tail until ``finish`` gives the
end. The two processes share only the files of the log, which both only read up to there. ``IndexTask`` and
``BuiltIndex`` go through a pipe as JSON.

Must not know queues.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from mmap import MADV_DONTNEED
from pathlib import Path

from mqspark.errors import MQError
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.logpaths import LogPaths
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexer import Indexer, Slice
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.log.logwindow import WINDOW_BYTES
from mqspark.store.log.scan import MAX_RUN_RECORDS
from mqspark.store.tools.offlinestore import release

_STEP_BYTES = 16 << 20
_WITHOUT_TURNS = Slice(MAX_RUN_RECORDS, WINDOW_BYTES, WINDOW_BYTES, math.inf)
"""Nobody waits for a turn here."""
WORTH_A_PROCESS_BYTES = 256 << 20
"""Bytes of the log from which on a process is used; a process needs a third of a second to start."""
MAX_MAPPED = 16


@dataclass(slots=True, frozen=True)
class IndexTask:
    log_directories: tuple[str, ...]
    segment_bytes: int
    root: str
    """Root of the store for which the index is built: ``index/`` and the mark are written there."""
    slots: int
    entries: int
    now_ms: int
    """Time for the names of the files."""
    tail_bytes: int = 64 << 20
    """Bytes at the end of the log that are left alone until its end is known. A torn tail is usually
    shorter."""


@dataclass(slots=True, frozen=True)
class BuiltIndex:
    files: int
    entries: int
    full_timestamp_ms: int


class _Builder:
    """Builds the index. Raises DiskFull, OSError, StoreCorrupt."""

    def __init__(self, task: IndexTask) -> None:
        files = OsFiles.like(task.log_directories[0])
        paths = StorePaths(Path(task.root))
        self._tail_bytes = task.tail_bytes
        self.log = CommitLog(
            LogPaths(tuple(map(Path, task.log_directories))),
            files,
            segment_bytes=task.segment_bytes,
            allocation_step=0,
            max_mapped=MAX_MAPPED,
        )
        self.log.load()
        self._budget = MapBudget()
        self.index = MessageIndex(
            paths.index,
            paths.index_mark,
            files,
            lambda: task.now_ms,
            shape=Shape(task.slots, task.entries),
            budget=self._budget,
        )
        self._indexer = Indexer(
            self.log,
            self.index,
            lambda: 0,
            window_bytes=WINDOW_BYTES,
            bounds=_WITHOUT_TURNS,
        )
        self._released: Segment | None = None
        self._released_bytes = 0
        last = self.log.segments[-1] if self.log.segments else None
        self._data_end = (
            max((high for _, high in self.log.data_ranges(last, last.start)), default=0) if last else 0
        )
        self._indexer.open(self._data_end, clean=True, safe_timestamp_ms=0)

    def step_before_the_tail(self) -> bool:
        """Index a step. Returns False when only ``finish`` can continue."""
        return self.index.position + self._tail_bytes <= self._data_end and not self._step(self._data_end)

    def finish(self, end: int, progress: Callable[[int], None]) -> BuiltIndex:
        """``end``: of the log. ``progress`` is called with the position."""
        self.index.cut(end)
        while not self._step(end):
            progress(self.index.position)
        job = self.index.begin_sync()
        if job is not None:
            run_here(job)
            if job.error is not None:
                raise job.error
        built = BuiltIndex(
            len(self.index.index_files),
            sum(file.header.next_number - 1 for file in self.index.index_files),
            self.index.full_timestamp_ms,
        )
        self.index.close()
        self.index.maps.clear()
        self.log.close()
        return built

    def _step(self, end: int) -> bool:
        is_done = self._indexer.follow(end, end, _STEP_BYTES)
        if self._indexer.problem is not None:
            raise OSError(f"the index cannot be built: {self._indexer.problem}")
        self._release()
        return is_done

    def _release(self) -> None:
        """Release pages that are not needed soon, so that memory stays bounded."""
        segment = self.log.segment_of(self.index.position)
        if self._released is not None and segment is not self._released:
            release(self.log.view(self._released), self._released_bytes, self._released.length)
            self._released_bytes = 0
        if segment is not None:
            low = self.index.position - segment.start
            release(self.log.view(segment), self._released_bytes, low)
            self._released_bytes = low
        self._released = segment
        self._budget.unmapped.clear()
        if self.index.index_files:
            self.index.maps.writable(self.index.index_files[-1])[0].madvise(MADV_DONTNEED)


class IndexBuild:
    """A build that begins at once. ``finish`` or ``abandon`` must be called."""

    def __init__(self, task: IndexTask, *, in_process: bool) -> None:
        """``in_process``: whether a separate process does it."""
        self.child: subprocess.Popen[str] | None = None
        self._task = task
        if in_process:
            self.child = subprocess.Popen(
                [sys.executable, "-c", "from mqspark.store.tools.indexbuild import child; child()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._send(asdict(task))

    def _send(self, message: object) -> None:
        if self.child is not None and self.child.stdin is not None:
            self.child.stdin.write(json.dumps(message) + "\n")
            self.child.stdin.flush()

    def finish(self, end: int, progress: Callable[[int], None]) -> BuiltIndex:
        """``end``: end of the recovered log. Raises DiskFull, OSError."""
        if self.child is None or self.child.stdout is None:
            return _Builder(self._task).finish(end, progress)
        self._send(end)
        for line in self.child.stdout:
            told = json.loads(line)
            if "position" in told:
                progress(told["position"])
            elif "problem" in told:
                raise OSError(told["problem"])
            else:
                self.abandon()
                return BuiltIndex(**told)
        raise OSError("the process that built the index ended early")

    def abandon(self) -> None:
        """End the process and wait for it."""
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
            self.child = None


def child() -> None:
    """The process: reads a task, then the end of the log; writes positions, then the result."""

    def tell(message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    task = json.loads(sys.stdin.readline())
    try:
        builder = _Builder(IndexTask(**task))
        while builder.step_before_the_tail():
            continue
        line = sys.stdin.readline()
        if line:  # otherwise the parent has gone
            tell(asdict(builder.finish(json.loads(line), lambda position: tell({"position": position}))))
    except (OSError, MQError) as error:
        tell({"problem": str(error)})
