"""The deletion of topics: their queues disappear at once, and their files once the deletion is on disk.

The records stay in the log until retention deletes them. Must not know who deletes.
"""

from __future__ import annotations

from collections.abc import Collection

from mqspark.base.logs import printable
from mqspark.errors import InvalidMessage
from mqspark.store.compaction.compactedqueues import CompactedQueues
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.disk.files import disk_full_as_typed
from mqspark.store.disk.layout import is_storable_topic
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.reads import Reads
from mqspark.store.recovery.deletions import Deletions
from mqspark.store.storedata import StoreData
from mqspark.store.upkeep.checkpoints import Checkpoints

REMOVED_AT_ONCE = 8
"""Queues of a deleted topic whose files are removed in one step, up to a millisecond of the loop's thread."""


class TopicDeletion:
    """Deletes topics of one store. A queue of a deleted topic is created again only when nothing is left of it."""

    def __init__(
        self,
        data: StoreData,
        condition: Condition,
        pipeline: CommitPipeline,
        compacted: CompactedQueues,
        reads: Reads,
        checkpoints: Checkpoints,
    ) -> None:
        self._data = data
        self._condition = condition
        self._pipeline = pipeline
        self._compacted = compacted
        self._reads = reads
        self._checkpoints = checkpoints
        file = ConfigFile(data.paths.deletions, data.files, condition.distrust)
        self.deletions = Deletions(file, data.files, self._remove, data.note, data.deleted)
        """The deleted topics. While it is behind, its job has to be run."""
        for table in data.tables:
            table.before_create = self._finish

    def delete(self, topics: Collection[str]) -> None:
        """Remove the queues of these topics. The removal is permanent as soon as ``deletions`` is no longer behind.
        Raises InvalidMessage for a name that no topic can have."""
        for topic in topics:
            if not is_storable_topic(topic):
                raise InvalidMessage(
                    f"topic {printable(topic, 40)} cannot be stored, so it cannot be deleted", field="topic"
                )
        data, gone = self._data, frozenset(topics)
        self._pipeline.forget_topics(gone)
        for table in data.tables:
            table.hide_topics(gone)
        data.table.batch_topics -= gone
        for topic in topics:
            hidden = [queue for table in data.tables for queue in table.hidden.get(topic, ())]
            self._checkpoints.ends.note({queue.key for queue in hidden})
            if any(topic in table.hidden for table in data.tables):
                self.deletions.add(topic, data.log.position)
                if self._reads.older is not None:
                    self._reads.older.forget(topic, data.log.position)
            else:
                self._compacted.forget(topic)

    def finish_all(self) -> None:
        """Save the list and remove all files, on this thread. An error makes the store read-only."""
        try:
            if self.deletions.behind:
                run_here(self.deletions.job())
        except OSError as error:
            self._condition.poison("deleting topics failed", error)

    def _remove(self, topic: str) -> bool:
        """Remove files of a topic whose deletion is on disk. Returns whether some are left."""
        for table in self._data.tables:
            if table.remove_topic(topic, REMOVED_AT_ONCE):
                return True
        self._compacted.forget(topic)
        # Until the next checkpoint a start would find fewer queues than the last one counted, and read the
        # whole log.
        self._checkpoints.wanted = True
        return False

    def _finish(self, topic: str) -> None:
        """Finish the deletion of a topic before one of its queues is created again. Raises DiskFull,
        StoreReadOnly."""
        try:
            with disk_full_as_typed("the list of deleted topics"):
                self.deletions.finish(topic)
        except OSError as error:
            raise self._condition.poison(f"deleting topic {topic} failed", error) from error
