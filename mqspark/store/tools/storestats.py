"""Figures of a store directory, found without reading the whole log.

The end of the log is searched record by record from the last record that a queue knows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mqspark.record.record import Verdict, check_record
from mqspark.store.index.index import marked_position
from mqspark.store.queue.consumequeue import FILLER_SIZE, ConsumeQueue
from mqspark.store.tools.offlinestore import OfflineStore


@dataclass(slots=True)
class TopicStats:
    queues: int = 0
    messages: int = 0
    """Messages in its queues, including the places of lost records."""
    newest_ms: int = -1
    """Store time of the newest message; -1 when unknown."""


@dataclass(slots=True)
class StoreStats:
    path: str
    in_use: bool
    clean: bool
    segments: int = 0
    segment_bytes: int = 0
    log_bytes: int = 0
    """Bytes between the first record and the last."""
    min_offset: int = 0
    end_offset: int = 0
    checkpoint_offset: int = -1
    """Position of the last checkpoint; -1 when unknown."""
    oldest_ms: int = -1
    newest_ms: int = -1
    topics: dict[str, TopicStats] = field(default_factory=dict)
    queues: int = 0
    messages: int = 0
    queue_lag_bytes: int = 0
    """Bytes of the log whose records are in no queue yet. Open transactions are in no queue either."""
    index_files: int = 0
    index_entries: int = 0
    index_lag_bytes: int = 0
    """Bytes of the log after the last record with a key."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def store_stats(store: OfflineStore) -> StoreStats:
    log = store.log
    stats = StoreStats(str(store.paths.root), store.in_use, store.clean)
    stats.segments, stats.segment_bytes = len(log.segments), log.segment_bytes
    stats.min_offset = stats.end_offset = log.min_offset
    stats.checkpoint_offset = store.checkpoint.position
    dispatched = log.min_offset
    for queue in store.table.queues.values():
        dispatched = max(dispatched, _add_queue(store, stats, queue))
    for batch in store.batch_table.batch_queues.values():
        topic = stats.topics.setdefault(batch.topic, TopicStats())
        last = batch.entry(batch.array.max_offset - 1) if batch.array.max_offset else None
        topic.queues += 1
        topic.messages += batch.max_offset - batch.min_offset
        if last is not None:
            topic.newest_ms = max(topic.newest_ms, last.store_ms)
            dispatched = max(dispatched, last.position + last.size)
    stats.queues = sum(topic.queues for topic in stats.topics.values())
    stats.messages = sum(topic.messages for topic in stats.topics.values())
    stats.end_offset, newest_ms = _end_of_log(store, dispatched)
    stats.newest_ms = max([newest_ms, *(topic.newest_ms for topic in stats.topics.values())])
    stats.log_bytes = stats.end_offset - stats.min_offset
    if stats.log_bytes:
        stats.oldest_ms = log.store_timestamp_at(log.min_offset)
    # Half messages and similar records are in no queue; the checkpoint shows that they need no entry.
    stats.queue_lag_bytes = max(stats.end_offset - max(dispatched, store.checkpoint.position), 0)
    stats.index_files = len(store.index_files)
    stats.index_entries = sum(file.header.next_number - 1 for file in store.index_files)
    indexed = max(_index_end(store), marked_position(store.files.read(store.paths.index_mark)))
    stats.index_lag_bytes = max(stats.end_offset - indexed, 0)
    return stats


def _index_end(store: OfflineStore) -> int:
    """End of the last record with a key."""
    position = max((file.header.end_position for file in store.index_files), default=store.log.min_offset)
    size = store.log.slice(position, 4) if store.index_files else None
    return position + (int.from_bytes(size, "big") if size is not None else 0)


def _add_queue(store: OfflineStore, stats: StoreStats, queue: ConsumeQueue) -> int:
    """Add a queue to the figures. Returns the end of the record of its last entry."""
    if not queue.file_starts:
        return 0
    queue.correct_min_offset(store.log.min_offset)
    topic = stats.topics.setdefault(queue.topic, TopicStats())
    topic.queues += 1
    topic.messages += queue.max_offset - queue.min_offset
    last = queue.entry(queue.max_offset - 1) if queue.max_offset > queue.min_offset else None
    if last is None or last[1] == FILLER_SIZE:
        return 0
    topic.newest_ms = max(topic.newest_ms, store.log.store_timestamp_at(last[0]))
    return last[0] + last[1]


def _end_of_log(store: OfflineStore, position: int) -> tuple[int, int]:
    """End of the contiguous records from ``position`` on, and the store time of the last (-1: none)."""
    log, newest_ms = store.log, -1
    while (segment := log.segment_of(position)) is not None:
        view = log.view(segment)
        record = check_record(view, position - segment.start, segment.length, verify_crc=False)
        if record.verdict is Verdict.BLANK:
            position = segment.end
        elif record.verdict is Verdict.VALID and record.physical_offset == position:
            position += record.size_bytes
            newest_ms = record.store_timestamp_ms
        else:
            break
    return position, newest_ms
