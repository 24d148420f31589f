"""Queries of queue offsets: the bounds of a queue, and the offset at a time or a log position.

Only visible messages count, but for ``stored_bounds``. Must not know how anything is stored or when it becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import numpy as np

from mqspark.store.compaction.compactedqueues import CompactedQueues
from mqspark.store.oldermessages import OlderMessages
from mqspark.store.queue.batchqueue import BatchQueue
from mqspark.store.queue.consumequeue import FILLER_SIZE, ConsumeQueue
from mqspark.store.storedata import StoreData


class QueueOffsets:
    """The offset queries of one store."""

    def __init__(self, data: StoreData, compacted: CompactedQueues) -> None:
        self._log = data.log
        self._tables = data.tables
        self._queues = data.table.queues
        self._batch_queues = data.batch_table.batch_queues
        self._compacted = compacted
        self.older: OlderMessages | None = None
        """What an archive has, if there is one."""

    def entries(
        self, topic: str, queue_id: int, offset: int, limit: int
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """Visible queue entries (physical offset, record size, tags code) from ``offset`` on, or from the
        next existing one, and the offset of the first. At most ``limit``, and none from a second file; empty
        at the end."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return offset, []
        offset = max(offset, queue.min_offset)
        if offset >= queue.max_offset:
            return offset, []
        found = queue.read(offset, limit)
        if not len(found):
            offset = queue.next_existing_offset(offset)
            found = queue.read(offset, limit) if offset < queue.max_offset else found
        if queue.ext is not None and len(found):
            found = found.copy()
            found["tags_code"] = queue.ext.tags_codes(found["tags_code"].astype(np.int64))
        return offset, found.tolist()

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchQueue | None:
        key = (topic, queue_id)
        return self._queues.get(key) or self._batch_queues.get(key)

    def log_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first offset that the log has, and the first that is not visible yet; (0, 0) for an unknown
        queue."""
        queue = self._queue(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def stored_bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """The offsets of a queue that the log has, shown or not; None for an unknown queue."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else (queue.min_offset, queue.next_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """End of the visible messages; 0 for an unknown queue."""
        queue = self._queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset; -1 for an unknown queue, as in RocketMQ."""
        queue = self._queue(topic, queue_id)
        return -1 if queue is None else self._min_offset(topic, queue_id, queue)

    def _min_offset(self, topic: str, queue_id: int, queue: ConsumeQueue | BatchQueue) -> int:
        if self._compacted.begins(topic, queue_id):
            return 0
        if self.older is not None and queue.min_offset:
            return self.older.begin(topic, queue_id, queue.min_offset)
        return queue.min_offset

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """``min_offset`` and ``max_offset``."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return -1, 0
        return self._min_offset(topic, queue_id, queue), queue.max_offset

    def sure_min_offset(self, topic: str, queue_id: int) -> int:
        """``min_offset`` for a reader that starts there. Raises NotAtHand and StoreUnreadable when it is not known what
        the archive has."""
        queue = self._queue(topic, queue_id)
        if (
            queue is None
            or self.older is None
            or not queue.min_offset
            or self._compacted.begins(topic, queue_id)
        ):
            return self.min_offset(topic, queue_id)
        return self.older.sure_begin(topic, queue_id, queue.min_offset)

    def offset_by_timestamp(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """The first offset stored at or after a time (``upper``: the last one stored at or before it).

        After the last message: the max offset (the last offset). Before the first: the min offset. 0 for an
        unknown or empty queue (ConsumeQueue.getOffsetInQueueByTime). All messages of an inner batch have its
        time.
        """
        bound = timestamp_ms + 1 if upper else timestamp_ms
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        begin = queue.min_offset
        if self.older is not None and begin:
            older = self.older.offset_by_time(topic, queue_id, bound, begin)
            if older < begin:
                return max(older - 1, self.older.begin(topic, queue_id, begin)) if upper else older
            begin = self.older.begin(topic, queue_id, begin)
        if queue.min_offset >= queue.max_offset:
            return queue.min_offset
        if isinstance(queue, BatchQueue):
            found = queue.offset_by_time(bound)
        else:
            at = self._log.store_timestamp_at
            found = queue.first_where(
                lambda position, _size, _tags: at(position) >= bound, queue.min_offset, queue.max_offset
            )
        return max(found - 1, begin) if upper else found

    def offset_by_position(self, topic: str, queue_id: int, position: int) -> int:
        """Offset of the first visible message at or after ``position`` in the log, otherwise the max offset;
        0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        return queue.first_where(lambda at, _size, _tags: at >= position, queue.min_offset, queue.max_offset)

    def store_timestamp_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at this offset; -1 when there is none."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return -1
        if isinstance(queue, BatchQueue):
            batch = queue.entry(queue.number_of(offset))
            return batch.store_ms if batch is not None and batch.base <= offset else -1
        entry = queue.entry(offset)
        return self._log.store_timestamp_at(entry[0]) if entry is not None and entry[1] != FILLER_SIZE else -1

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the queue ever got a message."""
        found = (table.queues.get((topic, queue_id)) for table in self._tables)
        return any(queue is not None and queue.file_starts for queue in found)

    def queue_ids(self, topic: str) -> list[int]:
        """Ascending, of every queue of a topic that ever got a message."""
        return [
            key[1] for table in self._tables for key in table.keys_of(topic) if table.queues[key].file_starts
        ]

    def topics(self) -> Iterator[str]:
        """Those of every queue that ever got a message. Queues may come and go between two topics."""
        for table in self._tables:
            for topic, keys in groupby(table.in_order, key=itemgetter(0)):
                if any(queue.file_starts for queue in filter(None, map(table.queues.get, keys))):
                    yield topic

    def queues(self) -> dict[str, list[int]]:
        """Topic → ascending queue ids, of every queue that ever got a message."""
        topics: dict[str, list[int]] = {}
        for table in self._tables:
            for topic, queue_id in table.in_order:
                if table.queues[topic, queue_id].file_starts:
                    topics.setdefault(topic, []).append(queue_id)
        return topics

    def queues_since(self, position: int) -> dict[str, list[int]]:
        """Topic → queue ids, of every queue whose newest record, visible or not, is at or after ``position``."""
        topics: dict[str, list[int]] = {}
        for table in self._tables:
            for (topic, queue_id), queue in table.queues.items():
                newest = queue.entry_before(queue.next_offset)
                if newest is not None and newest[0] >= position:
                    topics.setdefault(topic, []).append(queue_id)
        return topics
