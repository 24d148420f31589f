"""What was put and has not arrived yet: queue entries on their way to the files of their queues, and the flush that
runs.

The appender adds to it, the pipeline takes from it, a poisoned store forgets it. Must not know when anything is
written, durable or visible.
"""

from __future__ import annotations

from mqspark.store.disk.diskjobs import FlushJob
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.queue.batchqueue import BatchQueue
from mqspark.store.queue.consumequeue import ConsumeQueue

Queue = ConsumeQueue | BatchQueue
Group = list[tuple[Queue, bytearray]]
"""Queue entries of records that leave ``pending`` together."""


class Unsettled:
    """Belongs to the store's thread."""

    __slots__ = ("_log", "dirty", "flush", "undispatched")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.dirty: list[Queue] = []
        """Queues with unwritten entries."""
        self.undispatched: Group = []
        """Entries of visible records whose queue file could not be opened."""
        self.flush: FlushJob | None = None
        """The flush that runs, or waits after a shortage."""

    def write_in_flight(self) -> None:
        """Finish the write of a flush in flight before the store's thread writes. Otherwise a kill could leave a
        hole in the log, which looks like damage. Raises OSError."""
        if self.flush is not None:
            self.flush.write()

    def drop(self) -> None:
        """Forget what was put and is not written, and what waits for its queue: the store is read-only."""
        self._log.drop_pending()
        self.dirty.clear()
        self.undispatched.clear()
