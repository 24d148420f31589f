"""Checkpoints of an open store: when one is due, what it contains, and what the next start may rely on.

A checkpoint syncs the files of the queues and then records how far log and queues agree. Every record before
the log's durable end is then in its queue, visible, and so in that queue's file.

What grows with the queues is done in slices. Between them messages are put and topics deleted, so a slice may see more
than the checkpoint is to say, and leaves that to the next one: entries of records behind its position, queues that got
files, and those that were deleted.

Must not know who runs the jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from mqspark.errors import DiskFull, is_shortage
from mqspark.store.disk.diskjobs import CheckpointJob
from mqspark.store.disk.filesystemsync import FilesystemSync, filesystem_sync
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.queue.queuetable import queue_of, united
from mqspark.store.recovery.queueends import EndsBlock, EndsFile
from mqspark.store.storedata import StoreData

SLICE_QUEUES = 256
"""Queues that changed, and are looked at in one turn: up to a millisecond."""
COUNTED_QUEUES = 2048
"""Queues that are only counted: the same."""


class Checkpoints:
    """Call ``load``, then ``begin`` whenever ``is_due``. One job at a time."""

    def __init__(self, data: StoreData, condition: Condition, pipeline: CommitPipeline) -> None:
        """A checkpoint that could not be written poisons the store, except for lack of space, descriptors,
        memory or permissions."""
        self._paths = data.paths
        self._files = data.files
        self._clock = data.clock
        self._data = data
        self._pipeline = pipeline
        self._condition = condition
        self._tables = data.tables
        self.ends = EndsFile(data.paths.ends, data.files, *data.tables)
        self._block: EndsBlock | None = None
        self._config = data.config
        self._job: CheckpointJob | None = None
        self._before = Checkpoint()
        self._filesystem: FilesystemSync | None = None
        self._next_ms = 0
        self._started_ms = 0
        self.current = self._before
        """The last checkpoint written, or the one being written."""
        self.settled = -1
        """Position of the last checkpoint of this process: every record before it is in its queue, and both
        are on disk. -1 without one."""
        self.wanted = False
        """Makes a checkpoint due at once, even without new records."""
        self.problem: str | None = None
        """Why the last checkpoint failed although the store is healthy, or None."""

    def load(self) -> Checkpoint:
        self.current = Checkpoint.load(self._paths.checkpoint, self._paths.mark, self._files)
        self.settled = -1
        self._filesystem = filesystem_sync(self._files, self._paths.root)
        return self.current

    def close(self) -> None:
        """The store is closed. A job that runs ends as it began."""
        self._filesystem = None

    def distrust(self) -> None:
        """Invalidate the checkpoint before queues are rebuilt. If the rebuild is interrupted, the next start
        must not rely on it. The ends of the queues stay: no offset before them is assigned again. Blocking. Raises
        OSError, DiskFull."""
        files, paths = self._files, self._paths
        files.close(files.open(paths.abort, create=True))
        files.sync_directory(paths.root)
        self.current.distrusted().save(paths.checkpoint, paths.mark, files)
        files.remove(paths.mark)
        files.sync_directory(paths.root)
        self.ends.is_whole = True

    def begin_cut(self) -> None:
        """``distrust`` before the log is taken back: its queues are to end earlier. Blocking. Raises OSError,
        DiskFull."""
        self.ends.forget()
        self._files.sync_directory(self._paths.root)
        self.distrust()

    def cut(self, position: int) -> None:
        """The log was taken back to ``position``: a checkpoint is due, and none may refer to more."""
        self.settled = min(self.settled, position)
        self.wanted = True

    @property
    def is_running(self) -> bool:
        return self._job is not None

    @property
    def is_due(self) -> bool:
        """Checkpoints take at most a tenth of the time."""
        if self._job is not None or not self._pipeline.may_checkpoint:
            return False
        durable = self._data.log.durable
        changed = durable > self.current.position or any(table.dirty_files for table in self._tables)
        return self.wanted or (changed and self._clock.monotonic_ms() >= self._next_ms)

    def begin(self) -> CheckpointJob:
        """What it says is settled here; its slices, and its run, may come later."""
        data, store_ms = self._data, self._pipeline.durable_store_ms
        durable = data.log.durable
        index_ms = data.index.full_timestamp_ms if data.indexer is not None else None
        self.wanted = False
        self._started_ms = self._clock.monotonic_ms()
        queue_files: set[str] = set()
        directories: set[str] = set()
        for table in self._tables:
            queue_files, table.dirty_files = united(queue_files, table.dirty_files), set()
            directories, table.new_directories = united(directories, table.new_directories), set()
        unfinished = self._job
        if unfinished is not None:
            queue_files = united(queue_files, unfinished.queue_files)
            directories = united(directories, unfinished.directories)
            if self._block is not None:
                self._block.finish(failed=True)
        block = self._block = self.ends.block(durable)
        old = self._before = self.current
        self.current = Checkpoint(
            physic_msg_timestamp_ms=store_ms,
            logics_msg_timestamp_ms=store_ms,
            index_msg_timestamp_ms=index_ms if index_ms is not None else old.index_msg_timestamp_ms,
            master_flushed_offset=old.master_flushed_offset,
            confirm_physical_offset=durable,
            position=durable,
        )
        self._job = CheckpointJob(
            self._files,
            self._paths,
            self.current,
            queue_files,
            directories,
            self._done,
            block.write,
            self._filesystem,
            self._slices(self.current, block, queue_files),
        )
        return self._job

    def _slices(self, checkpoint: Checkpoint, block: EndsBlock, paths: set[str]) -> Iterator[None]:
        """Raises OSError."""
        keys = block.keys(map(queue_of, paths))
        while part := list(islice(keys, SLICE_QUEUES)):
            block.take(part, self._pipeline.visible_end)
            yield
        for table in self._tables:
            counted = iter(table.in_order)
            while some := list(islice(counted, COUNTED_QUEUES)):
                there = filter(None, map(table.queues.get, some))
                # A queue that got its first file since is not on disk with this checkpoint.
                checkpoint.queue_count += sum(1 for queue in there if queue.file_starts and queue.is_settled)
                yield

    def _done(self, job: CheckpointJob) -> None:
        self._job = None
        if self._block is not None:
            self._block.finish(failed=job.error is not None)
            self._block = None
        now_ms = self._clock.monotonic_ms()
        self._next_ms = now_ms + max(
            self._config.flush_interval_consume_queue, 10 * (now_ms - self._started_ms)
        )
        if isinstance(job.error, DiskFull):
            # Nothing is lost: the old checkpoint stays valid, and the next start reads more of the log.
            self.current = self._before
            self.problem = str(job.error)
        elif job.error is not None and (not isinstance(job.error, OSError) or is_shortage(job.error)):
            # What this one did not sync is synced for the next one.
            self.current = self._before
            self.problem = f"no checkpoint now: {str(job.error) or repr(job.error)}"
            table = self._tables[0]
            table.dirty_files = united(table.dirty_files, job.queue_files)
            table.new_directories = united(table.new_directories, job.directories)
        elif job.error is not None:
            self._condition.poison("writing a checkpoint failed", job.error)
        else:
            self.settled = self.current.position
            self.problem = None
